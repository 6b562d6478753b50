//! Contents of announced messages ([`Contents`]). They pass beside the packets: on protected paths in large messages of the
//! network ([`super::network::LargeMessages`]), encrypted or authenticated as datagrams are; over a network that has none, in
//! datagrams (`contents_in_datagrams`).
//!
//! ```text
//! A: register(memory)       key 0x9a, which a packet carries to B
//! B: start(copy of 1 MiB)   frames to A: want 0x9a, 128 KiB from 0, number 70; ... number 77
//! A: poll                   seals piece 70 in memory of the network, and sends it; 71; ...
//! B: poll                   opens each piece, and copies it to its place; after the last one the copy has its result
//! ```
//! ```text
//! message    number (8 bytes)   contents   tag (16 bytes)      without contents: nobody offers this memory
//! ```
//! An endpoint asks for no more large messages than it has memory for. It drops messages with other numbers, and those that are not
//! authentic: the true piece still comes. A message without contents fails the copy, and packets carry the contents.

use super::appending::Item;
use super::link::{DatagramLink, Shared};
use super::network::DatagramNetwork;
use super::seal::{Key, nonce_of};
use crate::memory::UserMemory;
use crate::{CopyStatus, LocalHandle, MemoryAttributes, PeerAccess, Protection, Registration, RemoteCopy};
use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use weir_proto::wire::{TAG_BYTES, WantFrame};
use weir_proto::{CopyFault, Direction, Instant, Peer, RemoteAddress};
use zerocopy::IntoBytes;

/// Length of the number at the beginning of a message. Unit: bytes.
const NUMBER_BYTES: usize = 8;
/// What a message has beside its contents. Unit: bytes.
const FRAME_BYTES: usize = NUMBER_BYTES + TAG_BYTES;
/// Bound on the copies under way with one peer.
const COPIES_PER_PEER: u32 = 8;
/// The most pieces that a peer may want at a time: more than an endpoint has memory for.
const MOST_WANTED: usize = 64;
/// Pieces that leave for one peer before this endpoint looks at the network again.
const PIECES_AT_ONCE: usize = 2;
/// Pieces in datagrams that are under way on a path, and their length: what comes back on them takes longer than a question.
const PIECES_IN_DATAGRAMS: usize = 4;
const PIECE_BYTES: u64 = 256 << 10;
/// Pieces that have come so recently say that others will come soon. Unit: ns.
const SOON_NS: u64 = 5_000_000;

/// A piece that a peer wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub key: u64,
    pub offset: u64,
    pub bytes: u64,
    pub number: u64,
    /// Bytes of it that have left in datagrams.
    pub sent: u64,
}

impl Wanted {
    /// Its memory, if somebody offers that. `offered`: by key.
    pub fn memory<'all>(&self, offered: &'all HashMap<u64, UserMemory>) -> Option<&'all UserMemory> {
        let end = self.offset.checked_add(self.bytes)?;
        offered.get(&self.key).filter(|memory| end <= memory.bytes())
    }
}

/// What one path needs.
#[derive(Debug)]
pub(super) struct PathContents {
    outgoing: Key,
    incoming: Key,
    pub wanted: VecDeque<Wanted>,
    /// The number of the last piece that was wanted. No number is sealed twice.
    last_number: u64,
}

#[derive(Debug)]
pub(super) struct Copy {
    pub context: u64,
    path: u32,
    remote: RemoteAddress,
    pub memory: UserMemory,
    /// Offset of the copy in our memory.
    begin: u64,
    bytes: u64,
    /// Bytes of the pieces that were asked for.
    asked: u64,
    has_failed: bool,
}

/// A piece that was asked for and has not come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub number: u64,
    pub context: u64,
    pub path: u32,
    /// Its place in our memory.
    pub offset: u64,
    pub bytes: u64,
    /// Bytes of it that have come in datagrams.
    pub arrived: u64,
}

/// What an endpoint may ask for.
struct Portion {
    /// Pieces under way, in all and of one path.
    pieces: usize,
    of_path: usize,
    /// Length of a piece.
    bytes: u64,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Contents {
    keys: RandomState,
    next_key: u64,
    /// By key.
    pub offered: HashMap<u64, UserMemory>,
    pub paths: HashMap<u32, PathContents>,
    pub copies: Vec<Copy>,
    pub pieces: Vec<Piece>,
    /// Paths whose peers want pieces, in turn.
    pub waiting: VecDeque<u32>,
    /// Frames that have not been appended.
    pub unsent: Vec<(u32, WantFrame)>,
    /// Of copies that have ended, with their paths.
    results: VecDeque<(u32, u64, Result<(), CopyFault>)>,
    /// The network has memory for large messages that arrive.
    has_begun: bool,
    /// A copy has begun or a piece has come, so others may be asked for.
    pub may_ask: bool,
    /// The number of the last piece that this endpoint has asked for.
    last_number: u64,
    /// When a copy has begun or a piece has come last.
    moved_at: Option<Instant>,
    /// Contents have come in datagrams since somebody asked.
    pub has_moved: bool,
    /// Where the piece of the last datagram with contents was in the list.
    pub last_index: usize,
    /// Copies that have ended well, and their bytes.
    pub copied: (u64, u64),
}

impl Contents {
    /// Whether there may be something to do.
    #[inline]
    pub fn is_in_use(&self) -> bool {
        self.has_begun || self.may_ask || !self.waiting.is_empty() || !self.unsent.is_empty()
    }

    /// Whether a copy with the peer of this path is under way.
    pub fn has_copies(&self, id: u32) -> bool {
        self.copies.iter().any(|copy| copy.path == id)
    }

    /// Whether copies are under way whose large messages wake nobody, and something has moved just now.
    pub fn must_poll(&self, now: Instant) -> bool {
        let is_soon = || self.moved_at.is_some_and(|moved_at| now.since_ns(moved_at) < SOON_NS);
        self.has_begun && !self.copies.is_empty() && is_soon()
    }

    /// Whether there is something to try again that no arrival announces, over a network with large messages.
    pub fn waits_for_room(&self) -> bool {
        !self.waiting.is_empty()
            || self.copies.iter().any(|copy| copy.asked < copy.bytes)
            || !self.unsent.is_empty()
    }

    /// Offers memory to peers that are told its key, which is not 0.
    fn offer(&mut self, memory: &UserMemory) -> Registration {
        let key = loop {
            self.next_key += 1;
            let key = self.keys.hash_one(self.next_key);
            if key != 0 && !self.offered.contains_key(&key) {
                break key;
            }
        };
        self.offered.insert(key, memory.view());
        Registration { domain: 0, handle: Some(LocalHandle(key)), remote: RemoteAddress { address: 0, key } }
    }

    /// The path was removed.
    pub fn remove_path(&mut self, id: u32) {
        self.forget(id);
        self.paths.remove(&id);
    }

    /// Ends all copies with the peer of a path. They have no result.
    pub fn forget(&mut self, id: u32) {
        self.unsent.retain(|(path, _)| *path != id);
        self.pieces.retain(|piece| piece.path != id);
        self.copies.retain(|copy| copy.path != id);
        self.results.retain(|(path, ..)| *path != id);
        self.waiting.retain(|path| *path != id);
        if let Some(path) = self.paths.get_mut(&id) {
            path.wanted.clear();
        }
        self.may_ask = true; // others may have its place
    }

    /// Ends everything. Nobody reads or writes memory of the program any more.
    pub fn close(&mut self) {
        *self = Contents { copied: self.copied, ..Contents::default() };
    }

    /// Pieces of one path that may be under way, if `most` may in all: half of them, or a quarter if several paths have copies.
    fn most_of_path(&self, most: usize) -> usize {
        let are_several = self.copies.windows(2).any(|pair| pair[0].path != pair[1].path);
        if are_several { most.div_ceil(4) } else { most.div_ceil(2) }
    }

    fn pieces_of(&self, path: u32) -> usize {
        self.pieces.iter().filter(|piece| piece.path == path).count()
    }

    /// Asks for the next piece of a copy, of at most `most` bytes. Returns whether there was one.
    fn ask_next(&mut self, index: usize, most: u64) -> bool {
        let copy = &mut self.copies[index];
        if copy.has_failed || copy.asked == copy.bytes {
            return false;
        }
        let (context, path) = (copy.context, copy.path);
        let (offset, at) = (copy.begin + copy.asked, copy.remote.address.wrapping_add(copy.asked));
        let bytes = (copy.bytes - copy.asked).min(most);
        copy.asked += bytes;
        self.last_number += 1;
        let number = self.last_number;
        self.pieces.push(Piece { number, context, path, offset, bytes, arrived: 0 });
        self.unsent.push((path, WantFrame::new(copy.remote.key, at, number, bytes as u32)));
        true
    }

    /// A piece of the copy, which is not among those under way any more, has arrived. `is_whole`: its contents are in place.
    pub fn piece_arrived(&mut self, context: u64, is_whole: bool) {
        self.may_ask = true;
        let Some(index) = self.copies.iter().position(|copy| copy.context == context) else { return };
        let copy = &mut self.copies[index];
        copy.has_failed |= !is_whole;
        let waits = self.pieces.iter().any(|piece| piece.context == context);
        if waits || (copy.asked < copy.bytes && !copy.has_failed) {
            return;
        }
        let Copy { context, path, bytes, has_failed, .. } = self.copies.remove(index);
        if !has_failed {
            self.copied = (self.copied.0 + 1, self.copied.1 + bytes);
        }
        self.results.push_back((path, context, if has_failed { Err(CopyFault::BadAddress) } else { Ok(()) }));
    }
}

/// Writes a message: the piece of offered memory, or nothing if nobody offers that. Returns its length.
fn write_message(
    room: &mut [u8],
    memory: Option<&UserMemory>,
    wanted: &Wanted,
    seal: impl FnOnce(&mut [u8]) -> [u8; TAG_BYTES],
) -> usize {
    let has_room = wanted.bytes <= (room.len() - FRAME_BYTES) as u64;
    let memory = memory.filter(|_| has_room);
    let bytes = memory.map_or(0, |_| wanted.bytes as usize);
    let (number, rest) = room.split_at_mut(NUMBER_BYTES);
    let (contents, rest) = rest.split_at_mut(bytes);
    number.copy_from_slice(&wanted.number.to_le_bytes());
    if let Some(memory) = memory {
        memory.read(wanted.offset, contents);
    }
    rest[..TAG_BYTES].copy_from_slice(&seal(contents));
    bytes + FRAME_BYTES
}

/// The number, the sealed contents and the tag of a message.
fn split_message(message: &mut [u8]) -> Option<(u64, &mut [u8], [u8; TAG_BYTES])> {
    let (number, rest) = message.split_first_chunk_mut::<NUMBER_BYTES>()?;
    let (contents, tag) = rest.split_last_chunk_mut::<TAG_BYTES>()?;
    Some((u64::from_le_bytes(*number), contents, *tag))
}

impl<N: DatagramNetwork> DatagramLink<N> {
    /// Whether contents can pass beside packets, with one peer or another. What a gate or a proxy holds back are packets.
    pub(super) fn has_contents(&mut self) -> bool {
        let is_protected = self.address.protection_with(&self.address) != Protection::Off;
        let Shared { network, gate, proxy, .. } = &mut self.shared;
        let has_way = network.carries_contents() || (is_protected && network.large().is_some());
        gate.is_none() && proxy.is_none() && has_way
    }

    /// What this endpoint may ask for.
    fn portion(&mut self) -> Portion {
        let DatagramLink { shared, contents, .. } = self;
        match shared.network.large() {
            Some(large) => {
                let (pieces, bytes) = (large.begin(), (large.longest() - FRAME_BYTES) as u64);
                contents.has_begun = true;
                Portion { pieces, of_path: contents.most_of_path(pieces), bytes }
            }
            None => Portion { pieces: usize::MAX, of_path: PIECES_IN_DATAGRAMS, bytes: PIECE_BYTES },
        }
    }

    /// How copies of contents with a peer work.
    pub(super) fn contents_attributes(&mut self, peer: Peer) -> Option<MemoryAttributes> {
        self.id_of(peer)?;
        self.has_contents().then_some(MemoryAttributes {
            domain: 0,
            registers: true,
            copies_per_peer: COPIES_PER_PEER,
            needs_owner: true,
        })
    }

    /// Offers memory that peers may read. What peers write comes in packets.
    ///
    /// # Errors
    /// [`CopyFault`].
    pub(super) fn register_contents(
        &mut self,
        memory: &UserMemory,
        access: PeerAccess,
    ) -> Result<Registration, CopyFault> {
        if access == PeerAccess::default() {
            // For copies of this endpoint nothing is needed.
            return Ok(Registration { domain: 0, handle: None, remote: RemoteAddress::NONE });
        }
        if !access.read || !self.has_contents() {
            return Err(CopyFault::BadAddress);
        }
        Ok(self.contents.offer(memory))
    }

    /// The memory is the program's again.
    pub(super) fn deregister_contents(&mut self, handle: LocalHandle) {
        self.contents.offered.remove(&handle.0);
        self.keep_borrowed(Some(handle));
    }

    /// Copies what bundles have borrowed of this offer, or of all. Nobody reads that memory any more.
    pub(super) fn keep_borrowed(&mut self, of: Option<LocalHandle>) {
        if self.shared.borrowed > 0 {
            let kept: usize = self.paths.iter_mut().flatten().map(|path| path.keep_borrowed(of)).sum();
            self.shared.borrowed -= kept;
        }
    }

    /// Starts a copy of contents to our memory.
    ///
    /// # Errors
    /// [`CopyFault`]: packets carry them.
    pub(super) fn start_contents(
        &mut self,
        copy: &RemoteCopy,
        memory: &UserMemory,
    ) -> Result<CopyStatus, CopyFault> {
        let RemoteCopy { context, peer, direction, remote, offset: begin, bytes } = *copy;
        let path = self.id_of(peer).filter(|_| self.has_contents()).ok_or(CopyFault::Forbidden)?;
        let is_over = self.path(path).is_none_or(|path| path.is_over());
        // Peers that do not poll may hold all memory for large messages. Then packets carry it.
        let most = self.portion().pieces;
        let has_room = self.contents.pieces.len() < most || self.contents.pieces_of(path) > 0;
        let is_somewhere = remote.key != 0 && remote.address.checked_add(bytes).is_some();
        if direction == Direction::Put || !is_somewhere || is_over || !has_room {
            return Err(CopyFault::BadAddress);
        }
        self.note_contents(path);
        let memory = memory.view();
        let (asked, has_failed) = (0, false);
        let copy = Copy { context, path, remote, memory, begin, bytes, asked, has_failed };
        self.contents.copies.push(copy);
        self.contents.moved_at = Some(self.shared.network.now());
        self.ask();
        Ok(CopyStatus::Pending)
    }

    pub(super) fn next_contents_result(&mut self) -> Option<(u64, Result<(), CopyFault>)> {
        let (_, context, result) = self.contents.results.pop_front()?;
        Some((context, result))
    }

    /// Takes pieces that have come, asks for others, and sends what peers want.
    pub(super) fn work_contents(&mut self) {
        if self.contents.has_begun {
            self.take_pieces();
        }
        let may_ask = std::mem::take(&mut self.contents.may_ask) && !self.contents.copies.is_empty();
        if may_ask || !self.contents.unsent.is_empty() {
            self.ask();
        }
        self.send_wanted();
    }

    /// Asks for pieces, as many as there is memory for.
    fn ask(&mut self) {
        let portion = self.portion();
        let contents = &mut self.contents;
        contents.may_ask = false;
        for index in 0..contents.copies.len() {
            let path = contents.copies[index].path;
            while contents.pieces.len() < portion.pieces
                && contents.pieces_of(path) < portion.of_path
                && contents.ask_next(index, portion.bytes)
            {}
        }
        // A path without room keeps its frames, in order.
        let mut refused = Vec::new();
        let unsent = std::mem::take(&mut self.contents.unsent);
        for (index, &(id, frame)) in unsent.iter().enumerate() {
            let more_follow = unsent.get(index + 1).is_some_and(|(next, _)| *next == id);
            let header = frame.as_bytes();
            let (payload, packet) = (None, None);
            let item = Item { header, payload, payload_bytes: 0, packet, asks: false, more_follow };
            if self.path(id).is_none_or(|path| path.is_over()) {
                continue; // nobody answers any more
            }
            if refused.contains(&id) || self.append(id, &item).is_err() {
                refused.push(id);
                self.contents.unsent.push((id, frame));
            }
        }
    }

    /// Opens pieces that have come, and copies them to their places.
    fn take_pieces(&mut self) {
        let DatagramLink { shared, contents, paths, counters, .. } = self;
        let now = shared.network.now();
        let Some(large) = shared.network.large() else { return };
        large.receive(&mut |message| {
            let Some((number, sealed, tag)) = split_message(message) else {
                counters.malformed += 1;
                return;
            };
            let found = contents.pieces.iter().position(|piece| piece.number == number);
            let Some((index, piece)) = found.map(|index| (index, contents.pieces[index])) else {
                counters.foreign += 1;
                return;
            };
            let epochs = paths[piece.path as usize].as_deref().and_then(|path| path.epochs());
            let key = contents.paths.get(&piece.path).map(|path| &path.incoming);
            let opened = key.zip(epochs).is_some_and(|(key, (own, others))| {
                key.open_contents(&nonce_of((others, own), number), sealed, &tag).is_ok()
            });
            if !opened {
                counters.forged += 1;
                return;
            }
            contents.pieces.swap_remove(index);
            contents.moved_at = Some(now);
            let is_whole = sealed.len() as u64 == piece.bytes;
            if let Some(copy) = contents.copies.iter().find(|copy| is_whole && copy.context == piece.context)
            {
                copy.memory.write(piece.offset, sealed);
            }
            contents.piece_arrived(piece.context, is_whole);
        });
    }

    /// Makes what a path needs, if it does not have it.
    fn note_contents(&mut self, id: u32) {
        let own = self.address;
        if !self.contents.paths.contains_key(&id)
            && let Some(address) = self.path(id).map(|path| path.io.address)
        {
            let (outgoing, incoming) = (Key::of_contents(&own, &address), Key::of_contents(&address, &own));
            let path = PathContents { outgoing, incoming, wanted: VecDeque::new(), last_number: 0 };
            self.contents.paths.insert(id, path);
        }
    }

    /// The peer of a path wants contents. Returns whether it may.
    pub(super) fn wanted(&mut self, id: u32, frame: &WantFrame) -> bool {
        let WantFrame { key, offset, number, bytes, .. } = *frame;
        let (key, offset, number) = (key.get(), offset.get(), number.get());
        let wanted = Wanted { key, offset, bytes: bytes.get().into(), number, sent: 0 };
        if self.shared.network.large().is_none() && !self.shared.network.carries_contents() {
            return false;
        }
        if self.is_closed {
            return true; // the peer learns that this endpoint has left
        }
        self.note_contents(id);
        let Contents { paths, waiting, .. } = &mut self.contents;
        let Some(path) = paths.get_mut(&id) else { return false };
        if number <= path.last_number || path.wanted.len() == MOST_WANTED || wanted.bytes == 0 {
            return false;
        }
        path.last_number = number;
        if path.wanted.is_empty() {
            waiting.push_back(id);
        }
        path.wanted.push_back(wanted);
        if self.shared.network.large().is_some() {
            self.send_wanted();
        }
        true
    }

    /// Sends what peers want, as far as there is room.
    fn send_wanted(&mut self) {
        if self.shared.network.large().is_none() {
            self.send_wanted_in_datagrams();
            return;
        }
        let DatagramLink { contents, paths, shared, .. } = self;
        let Contents { offered, paths: of_paths, waiting, .. } = contents;
        let Some(large) = shared.network.large() else { return };
        for _ in 0..waiting.len() {
            let Some(id) = waiting.pop_front() else { return };
            let Some(PathContents { outgoing, wanted: all, .. }) = of_paths.get_mut(&id) else { continue };
            let path = paths.get(id as usize).and_then(Option::as_deref).filter(|path| !path.is_over());
            let Some(path) = path else {
                all.clear(); // nobody waits for them any more
                continue;
            };
            let Some(epochs) = path.epochs() else {
                waiting.push_back(id);
                continue;
            };
            for _ in 0..PIECES_AT_ONCE {
                let Some(wanted) = all.front() else { break };
                let nonce = nonce_of(epochs, wanted.number);
                let seal = |contents: &mut [u8]| outgoing.seal_contents(&nonce, contents);
                let memory = wanted.memory(offered);
                if !large.send(path.io.place, &mut |room| write_message(room, memory, wanted, seal)) {
                    break;
                }
                all.pop_front();
            }
            if !all.is_empty() {
                waiting.push_back(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::DatagramOptions;
    use super::*;
    use crate::ofi::exchange::{Exchange, LONGEST_LARGE};
    use crate::ofi::{OfiNetwork, OfiOptions};
    use crate::{Address, Addressing, Quota};

    fn open(exchange: &Exchange, number: u64) -> DatagramLink<OfiNetwork> {
        let core = Box::new(exchange.open_with_large(number));
        let network =
            OfiNetwork::open(core, &OfiOptions { ports: None, limit_ns: 1_000_000_000, has_proxy: false })
                .expect("a network");
        let options = DatagramOptions::new(Quota { data_slots: 100, start_slots: 10, credit_slots: 2 });
        DatagramLink::open(&Address::new(number, [number as u8; 16]), network, options)
    }

    #[test]
    fn a_peer_wants_no_number_twice_not_nothing_and_not_too_much() {
        let exchange = Exchange::new(1, 64, 2048);
        let [mut link, other] = [1, 2].map(|number| open(&exchange, number));
        let id = link.path_to(&other.address()).expect("a path");
        let mut wants =
            |number: u64, bytes: usize| link.wanted(id, &WantFrame::new(7, u64::MAX, number, bytes as u32));
        let most = LONGEST_LARGE - FRAME_BYTES;
        // More than a message carries is refused later.
        assert!(wants(5, most) && wants(6, most + 1));
        for (number, bytes) in [(6, 1), (5, 1), (0, 1), (7, 0)] {
            assert!(!wants(number, bytes), "number {number}, {bytes} bytes");
        }
        assert!((2..MOST_WANTED as u64).all(|number| wants(number + 10, 1)));
        assert!(!wants(u64::MAX, 1), "more than {MOST_WANTED}");
        assert!(link.contents.is_in_use());
        link.remove(id);
        assert!(link.contents.waiting.is_empty(), "a path with this number may be another one");
    }

    #[test]
    fn a_network_without_large_messages_is_asked_for_none() {
        let exchange = Exchange::new(1, 64, 2048);
        let network = OfiNetwork::open(
            Box::new(exchange.open(1)),
            &OfiOptions { ports: None, limit_ns: 1, has_proxy: false },
        );
        let options = DatagramOptions::new(Quota { data_slots: 100, start_slots: 10, credit_slots: 2 });
        let mut link = DatagramLink::open(&Address::new(1, [1; 16]), network.expect("a network"), options);
        let other = open(&exchange, 2).address();
        let id = link.path_to(&other).expect("a path");
        assert!(!link.has_contents() && !link.wanted(id, &WantFrame::new(7, 0, 1, 1)));
    }
}
