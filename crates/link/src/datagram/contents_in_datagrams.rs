//! Contents that pass in datagrams, over networks without large messages.
//!
//! ```text
//! B: poll    wants 256 KiB as number 70
//! A: poll    datagrams of one length: contents 1396 B of number 70 ... contents 380 B of 70, contents 996 B of 71
//! B: poll    writes them to their places, in order; after the last one the piece has come
//! ```
//! They are bundles of the path, in order and whole as all others. But the owner keeps no copy of them: until the peer has
//! acknowledged them, each transmission reads the program's memory. Before an offer ends, what is left of it is copied
//! ([`DatagramLink::keep_borrowed`]).
//!
//! Packets do not wait behind contents: these leave a part of the window free, and only as many are submitted as may leave.

use super::appending::{LEAST_PART_BYTES, LOOK_BUNDLES};
use super::buffers::Buffers;
use super::contents::{Piece, Wanted};
use super::link::DatagramLink;
use super::network::DatagramNetwork;
use super::outgoing::most_datagrams;
use super::path::{Borrowed, Path};
use crate::LocalHandle;
use weir_proto::Instant;
use weir_proto::wire::{CONTENTS_FRAME_BYTES, ContentsFrame};
use zerocopy::IntoBytes;

/// Bundles that leave in one poll, to all peers together. Rounded up to whole calls, so that with one peer and the longest
/// datagrams no call is short.
const BUNDLES_AT_ONCE: usize = 120;
/// The clock is read once for so many bundles.
const CLOCK_BUNDLES: u32 = 16;
/// So many bundles of a path that may not leave yet are enough.
const MOST_WAITING: u64 = 16;
/// Bundles of the window that contents leave free: for the longest packet, and for frames. More of them, if packets wait.
const RESERVE_BUNDLES: usize = 8;
const RESERVE_FOR_WAITING: usize = 32;

/// What has become of a piece that a peer wants.
#[derive(PartialEq, Eq)]
enum Progress {
    /// It has left, or was refused.
    Ended,
    /// The path has no room.
    Waits,
    /// Others are to have their turn.
    Turn,
}

impl<P: Copy> Path<P> {
    /// Whether a bundle of contents more may begin.
    fn takes_contents(&self, window: u32, copies: &Buffers) -> bool {
        let reserve = if self.has_refused { RESERVE_FOR_WAITING } else { RESERVE_BUNDLES };
        self.machine.waiting_bundles() < MOST_WAITING
            && self.owes_lease.is_none()
            && self.unacknowledged() + reserve < window as usize
            && copies.have_for(self.unacknowledged(), 1)
    }
}

impl<N: DatagramNetwork> DatagramLink<N> {
    /// Whether a poll would ask for contents, or send some.
    #[inline]
    pub(super) fn contents_may_move(&self) -> bool {
        self.shared.network.carries_contents() && self.contents.is_in_use() && self.has_room_for_contents()
    }

    #[cold]
    fn has_room_for_contents(&self) -> bool {
        let (contents, window) = (&self.contents, self.options.reliability.window_bundles);
        let path = |id: u32| self.paths.get(id as usize).and_then(Option::as_deref);
        let has_room = |id: u32| {
            path(id).is_some_and(|path| path.is_over() || path.takes_contents(window, &self.shared.copies))
        };
        contents.may_ask
            || contents.waiting.iter().any(|id| has_room(*id))
            || contents.unsent.iter().any(|(id, _)| has_room(*id))
    }

    /// Sends what peers want, as far as there is room.
    pub(super) fn send_wanted_in_datagrams(&mut self) {
        let call = most_datagrams(self.shared.network.largest_datagram());
        let mut turn = BUNDLES_AT_ONCE.next_multiple_of(call) as u32;
        for _ in 0..self.contents.waiting.len() {
            let Some(id) = self.contents.waiting.pop_front() else { break };
            let Some(of_path) = self.contents.paths.get_mut(&id) else { continue };
            let mut all = std::mem::take(&mut of_path.wanted);
            if self.path(id).is_none_or(|path| path.is_over()) {
                continue; // nobody waits for them any more
            }
            let mut progress = Progress::Ended;
            while progress == Progress::Ended
                && let Some(wanted) = all.front_mut()
            {
                progress = self.append_contents(id, wanted, &mut turn);
                if progress == Progress::Ended {
                    all.pop_front();
                }
            }
            self.submit_open(id);
            if !all.is_empty() {
                self.contents.waiting.push_back(id);
            }
            if let Some(of_path) = self.contents.paths.get_mut(&id) {
                of_path.wanted = all;
            }
            if progress == Progress::Turn {
                break;
            }
        }
        let _ = self.shared.flush(); // what it refuses waits
    }

    /// Nothing will fill the open bundle soon.
    fn submit_open(&mut self, id: u32) {
        let now = self.shared.network.now();
        if let Some((path, shared)) = self.path_and_shared(id)
            && !path.io.awaits_gate
            && path.submit(id, now, shared).is_err()
        {
            self.note_unsent(id);
        }
    }

    /// Appends contents of a piece to the bundles of a path.
    fn append_contents(&mut self, id: u32, wanted: &mut Wanted, turn: &mut u32) -> Progress {
        let mut now: Option<Instant> = None;
        loop {
            if self.submitted_since_look >= LOOK_BUNDLES {
                self.look();
            }
            if self.submitted_since_look.is_multiple_of(CLOCK_BUNDLES) {
                now = None;
            }
            let window = self.options.reliability.window_bundles;
            let DatagramLink { paths, shared, contents, submitted_since_look, .. } = self;
            let Some(path) = paths.get_mut(id as usize).and_then(Option::as_deref_mut) else {
                return Progress::Ended;
            };
            let memory = wanted.memory(&contents.offered);
            let left = memory.map_or(0, |_| (wanted.bytes - wanted.sent) as usize);
            let least_bytes = CONTENTS_FRAME_BYTES + left.min(LEAST_PART_BYTES);
            let at = *now.get_or_insert_with(|| shared.network.now());
            if path.io.awaits_gate && path.leave_behind_gate(id, false, at, shared).is_err() {
                return Progress::Waits; // the path is over
            }
            let mut bundle_bytes = path.bundle_bytes(&shared.network);
            let open_bytes = path.io.open.as_ref().map(Vec::len);
            if open_bytes.is_none_or(|bytes| bytes + least_bytes > bundle_bytes) {
                if *turn == 0 {
                    return Progress::Turn;
                }
                if !path.takes_contents(window, &shared.copies) {
                    return Progress::Waits;
                }
                path.fill(bundle_bytes);
                if path.submit(id, at, shared).is_err() {
                    return Progress::Waits; // the path is over
                }
                // A bundle begins.
                (*submitted_since_look, *turn) = (*submitted_since_look + 1, *turn - 1);
                bundle_bytes = path.bundle_bytes(&shared.network); // the path may have become narrower just now
            }
            let room = bundle_bytes - path.io.open.as_ref().map_or(0, Vec::len) - CONTENTS_FRAME_BYTES;
            let part = left.min(room);
            let word = (path.machine.next_position() as u32).into();
            let frame = ContentsFrame { word, ..ContentsFrame::new(wanted.number, part as u16) };
            let offset = wanted.offset + wanted.sent;
            // Nothing follows in a full bundle.
            let stretch = memory.filter(|_| part == room).and_then(|memory| memory.stretch(offset, part));
            if let Some(memory) = stretch {
                let borrowed = Borrowed { of: LocalHandle(wanted.key), frame, memory };
                if path.submit_borrowed(id, at, borrowed, shared).is_err() {
                    return Progress::Waits; // the path is over
                }
            } else {
                if path.io.open.is_none() {
                    path.io.open = shared.copies.take(path.unacknowledged());
                }
                let Some(open) = &mut path.io.open else { return Progress::Waits };
                open.extend_from_slice(frame.as_bytes());
                memory.into_iter().for_each(|memory| memory.append_to(offset, part, open));
            }
            wanted.sent += part as u64;
            if left == part {
                return Progress::Ended;
            }
        }
    }

    /// Contents of a piece have come: those of the bundle that is being polled from `begin` to where the next frame begins.
    /// Returns whether they were asked for.
    pub(super) fn contents_arrived(&mut self, number: u64, begin: usize) -> bool {
        if self.is_closed {
            return true; // nobody waits for them any more
        }
        let DatagramLink { shared, contents, reading, .. } = self;
        let Some(reading) = reading else { return false };
        let Some(bytes) = shared.arrived.bytes(&reading.bundle).get(begin..reading.at) else { return false };
        let is_wanted = |piece: &Piece| piece.number == number && piece.path == reading.id;
        let is_last = contents.pieces.get(contents.last_index).is_some_and(is_wanted);
        let last = is_last.then_some(contents.last_index);
        let Some(index) = last.or_else(|| contents.pieces.iter().position(is_wanted)) else { return false };
        contents.last_index = index;
        let piece = &mut contents.pieces[index];
        let arrived = piece.arrived + bytes.len() as u64;
        if arrived > piece.bytes {
            return false;
        }
        if let Some(copy) = contents.copies.iter().find(|copy| copy.context == piece.context) {
            copy.memory.write(piece.offset + piece.arrived, bytes);
        }
        piece.arrived = arrived;
        contents.has_moved = true;
        if bytes.is_empty() || arrived == piece.bytes {
            let Piece { context, bytes, .. } = contents.pieces.remove(index);
            contents.piece_arrived(context, arrived == bytes);
        }
        true
    }
}
