//! Packets and frames on their way into bundles, in order. A packet that is longer than what is left of a bundle is cut:
//! its rest follows in the next bundles, behind frames that say how long it is.
//!
//! ```text
//! bundle 7    packet, packet, header and 700 B of a packet of 4096 B
//! bundle 8    rest 1388, 1388 B
//! bundle 9    rest 1388, 1388 B
//! bundle 10   rest 572, 572 B, packet, fill 0
//! ```
//! A bundle without room for the beginning of a long packet is filled up: only datagrams of one length leave in one call. Where
//! there is no room for the frame that says so, the inverted bytes of the position fill it.
//!
//! So the length of a packet does not depend on that of a datagram, which can become less. All parts of a packet are
//! appended together, or none.

use super::buffers::Buffers;
use super::link::{DatagramLink, Shared};
use super::network::DatagramNetwork;
use super::path::Path;
use super::seal::LEAST_DATAGRAM_BYTES;
use super::send_gate::Passage;
use crate::Quota;
use crate::memory::UserMemory;
use weir_proto::wire::{FILL_FRAME, LEASE_FRAME, LINK_FRAME_BYTES, LinkFrame, REST_FRAME, VERSION};
use weir_proto::{Instant, LinkBusy, Packet};
use zerocopy::IntoBytes;

/// The least payload of the first part of a packet. It is small, so that most datagrams have the same length: only such
/// datagrams leave in one call. Unit: bytes.
const LEAST_BEGIN_BYTES: usize = 16;
/// The least payload of the parts behind it, but the last. Unit: bytes.
pub(super) const LEAST_PART_BYTES: usize = 256;

/// Whoever submits so many bundles without a poll looks for acknowledgements, so that the window does not close before the
/// peer's answers are read.
pub(super) const LOOK_BUNDLES: u32 = 64;

/// A packet or a frame. It begins with a word.
pub(super) struct Item<'item> {
    pub header: &'item [u8],
    pub payload: Option<(&'item UserMemory, u64)>,
    pub payload_bytes: usize,
    /// The packet, if it is one.
    pub packet: Option<&'item Packet>,
    /// It asks the gate before it begins bundles.
    pub asks: bool,
    /// The machine appends more of its message at once.
    pub more_follow: bool,
}

/// Whether an item begins in an open bundle with so much room, and how many more bundles it needs.
fn split(item_bytes: usize, header_bytes: usize, room: Option<usize>, bundle_bytes: usize) -> (bool, usize) {
    let room = room.filter(|&room| item_bytes <= room || room >= header_bytes + LEAST_BEGIN_BYTES);
    let rest_bytes = item_bytes.saturating_sub(room.unwrap_or(bundle_bytes));
    let rest = rest_bytes.div_ceil(bundle_bytes - LINK_FRAME_BYTES);
    (room.is_some(), rest + usize::from(room.is_none()))
}

fn frame(kind: u8, number: u16, quota: Quota) -> LinkFrame {
    let Quota { data_slots, start_slots, credit_slots } = quota;
    LinkFrame {
        word: 0.into(),
        version: VERSION,
        kind,
        number: number.into(),
        data_slots: data_slots.into(),
        start_slots: start_slots.into(),
        credit_slots: credit_slots.into(),
        unused: [],
    }
}

const NO_QUOTA: Quota = Quota { data_slots: 0, start_slots: 0, credit_slots: 0 };

impl<P: Copy> Path<P> {
    /// Bundles that the peer has not acknowledged, and the open one.
    fn held(&self) -> usize {
        self.unacknowledged() + usize::from(self.io.open.is_some())
    }

    /// Whether there is room for so many bundles more.
    fn has_room(&self, bundles: usize, window: u32, copies: &Buffers) -> bool {
        bundles == 0 || (self.held() + bundles <= window as usize && copies.have_for(self.held(), bundles))
    }

    /// Whether there is room for a packet of `bytes` bytes, however it is cut.
    pub(super) fn takes<N: DatagramNetwork<Place = P>>(
        &self,
        bytes: usize,
        window: u32,
        shared: &Shared<N>,
    ) -> bool {
        let (_, bundles) = split(bytes, bytes, None, self.bundle_bytes(&shared.network));
        self.has_room(bundles, window, &shared.copies)
    }

    /// Length of a bundle that begins now.
    pub(super) fn bundle_bytes<N: DatagramNetwork<Place = P>>(&self, network: &N) -> usize {
        self.io.largest_datagram.min(network.largest_datagram()) - LEAST_DATAGRAM_BYTES
    }

    /// Appends to the open bundle: a header, whose first word becomes the position of the bundle, and payload up to its end.
    /// Returns the bytes of that.
    fn write(&mut self, header: &[u8], item: &Item<'_>, written: usize, bundle_bytes: usize) -> usize {
        let position = self.machine.next_position() as u32;
        let Some(open) = &mut self.io.open else { return 0 };
        let begin = open.len();
        open.extend_from_slice(header);
        open[begin..begin + 4].copy_from_slice(&position.to_le_bytes());
        let part = bundle_bytes.saturating_sub(open.len()).min(item.payload_bytes - written);
        match item.payload {
            Some((memory, offset)) => memory.append_to(offset + written as u64, part, open),
            None => open.resize(open.len() + part, 0),
        }
        part
    }

    /// Fills the open bundle up, if there is room for that.
    pub(super) fn fill(&mut self, bundle_bytes: usize) {
        let position = self.machine.next_position() as u32;
        let Some(open) = &mut self.io.open else { return };
        let room = bundle_bytes.saturating_sub(open.len());
        if let Some(rest_bytes) = room.checked_sub(LINK_FRAME_BYTES) {
            let frame = LinkFrame { word: position.into(), ..frame(FILL_FRAME, rest_bytes as u16, NO_QUOTA) };
            open.extend_from_slice(frame.as_bytes());
            open.resize(bundle_bytes, 0);
        } else {
            open.extend((!position).to_le_bytes().into_iter().cycle().take(room));
        }
    }
}

impl<N: DatagramNetwork> DatagramLink<N> {
    /// Something of this path must leave with the next poll.
    pub(super) fn note_unsent(&mut self, id: u32) {
        if !self.open.contains(&id) {
            self.open.push(id);
        }
        self.has_unsent = true;
    }

    /// Appends an item to the bundles of a path. Returns the position of the bundle with its end.
    ///
    /// # Errors
    /// [`LinkBusy`]: the window of the path, or the memory for copies, is used up, or the gate holds the item back. Nothing is
    /// written.
    pub(super) fn append(&mut self, id: u32, item: &Item<'_>) -> Result<u64, LinkBusy> {
        if self.submitted_since_look >= LOOK_BUNDLES {
            self.look();
        }
        let window = self.options.reliability.window_bundles;
        let DatagramLink { paths, shared, busy, .. } = self;
        let Some(path) = paths.get_mut(id as usize).and_then(Option::as_deref_mut) else {
            return Err(LinkBusy);
        };
        let bundle_bytes = path.bundle_bytes(&shared.network);
        let room = path.io.open.as_ref().map(|open| bundle_bytes.saturating_sub(open.len()));
        let item_bytes = item.header.len() + item.payload_bytes;
        let (begins_in_open, bundles) = split(item_bytes, item.header.len(), room, bundle_bytes);
        if !path.has_room(bundles, window, &shared.copies) {
            return Err(LinkBusy);
        }
        // The gate and the path share one look at the clock.
        let begun = if bundles > 0 { shared.network.now() } else { Instant(0) };
        if let Some(proxy) = shared.proxy.as_mut().filter(|_| bundles > 0) {
            proxy.sends_at(shared.network.host_time_at(begun));
        }
        let (mut passage, mut waits) = (Passage::Free, false);
        if shared.gate.is_some() {
            if bundles > 0 && path.io.awaits_gate {
                let left = path.leave_behind_gate(id, item.asks, begun, shared);
                path.io.refused_by_gate |= left.is_err();
                return left.and_then(|()| self.append(id, item));
            }
            // A message that waits in the endpoint comes before what could wait here.
            let may_wait = !begins_in_open && busy.is_empty();
            let passed = path.passage(id, (bundles as u32, may_wait), item, begun, shared);
            if item.asks {
                path.io.refused_by_gate = passed.is_err();
            }
            passage = passed?;
            waits = path.io.awaits_gate;
        }
        // With nothing under way, nothing else would make it leave soon. It leaves in one call with what follows.
        path.leaves_at_once |= path.unacknowledged() == 0
            || (path.machine.allows_long_delays() && path.machine.is_quiet(shared.network.now()));
        let leaves = !item.more_follow && !waits && std::mem::take(&mut path.leaves_at_once);
        let now = if bundles == 0 && leaves { shared.network.now() } else { begun };
        if !begins_in_open {
            if bundles > 1 {
                path.fill(bundle_bytes);
            }
            path.next_bundle(id, now, shared)?;
        }
        let mut written = path.write(item.header, item, 0, bundle_bytes);
        while written < item.payload_bytes {
            path.next_bundle(id, now, shared)?;
            let rest = (item.payload_bytes - written).min(bundle_bytes - LINK_FRAME_BYTES);
            let frame = frame(REST_FRAME, rest as u16, NO_QUOTA);
            written += path.write(frame.as_bytes(), item, written, bundle_bytes);
        }
        path.io.taken_packets += u64::from(item.packet.is_some());
        if passage != Passage::Free {
            path.count(bundles as u32, passage, begun, shared);
        }
        let submitted = bundles as u32 + u32::from(leaves);
        let position = path.machine.next_position();
        if leaves && path.submit(id, now, shared).is_ok() {
            let _ = shared.flush(); // what it refuses waits
        } else {
            self.note_unsent(id);
        }
        self.submitted_since_look += submitted;
        Ok(position)
    }

    /// Appends a frame. Returns the position of its bundle.
    ///
    /// # Errors
    /// [`LinkBusy`].
    pub(super) fn append_frame(&mut self, id: u32, kind: u8, number: u16) -> Result<u64, LinkBusy> {
        let quota = if kind == LEASE_FRAME { self.options.quota } else { NO_QUOTA };
        let frame = frame(kind, number, quota);
        let header = frame.as_bytes();
        let item =
            Item { header, payload: None, payload_bytes: 0, packet: None, asks: false, more_follow: false };
        self.append(id, &item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_cut_only_where_a_part_is_worth_it() {
        assert_eq!(split(100, 48, Some(100), 1000), (true, 0), "it fits");
        assert_eq!(split(101, 48, Some(63), 1000), (false, 1), "too little room for a part");
        assert_eq!(split(101, 48, Some(64), 1000), (true, 1), "the rest in the next bundle");
        assert_eq!(split(1000, 48, None, 1000), (false, 1));
        assert_eq!(split(1000 + 980, 48, None, 1000), (false, 2));
        assert_eq!(split(1000 + 981, 48, None, 1000), (false, 3));
        assert_eq!(split(500 + 980, 48, Some(500), 1000), (true, 1));
    }
}
