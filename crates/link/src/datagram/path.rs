//! One peer's path ([`Path`]): its machine of reliability, and the bytes of its bundles. [`PathDriver`] is the driver of
//! the machine.
//!
//! ```text
//! open       packets of the next bundle; sealed in no datagram yet
//! copies     bundles that the peer has not acknowledged, by position from `first_copy`; contents at their ends may stay in the
//!            program's memory
//! held       bundles of the peer that came before an earlier one
//! delivered  bundles of the peer in order, which nobody has polled yet
//! ```
//! This file does not know what a bundle contains.

use super::arrived::{Bundle, Place};
use super::delivered::Begun;
use super::link::Shared;
use super::network::DatagramNetwork;
use super::seal::{self, Key, SALT_BYTES, nonce_of};
use super::send_proxy::QueuePlace;
use crate::memory::UserMemory;
use crate::{Address, LaneLease, LocalHandle, copy};
use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU16;
use weir_proto::reliability::{DatagramDriver, Header, PathFault, ReliabilityConfig, ReliablePath, Standing};
use weir_proto::wire::{CONTENTS_FRAME_BYTES, ContentsFrame, EXTENSION_BYTES, LinkExtension, TAG_BYTES};
use weir_proto::{Body, Instant, LinkBusy, Packet, Peer, PeerFault};
use zerocopy::IntoBytes;

/// Length of an introduction: extension, salt, sealed address, tag. Unit: bytes.
pub(super) const INTRODUCTION_BYTES: usize = EXTENSION_BYTES + SALT_BYTES + crate::ADDRESS_BYTES + TAG_BYTES;

/// The value next to `near` whose lower 32 bits are `low`.
fn expand(low: u32, near: u64) -> u64 {
    near.wrapping_add_signed(i64::from(low.wrapping_sub(near as u32) as i32))
}

/// The extension of a datagram to the endpoint with this verification tag.
pub(super) fn extension(header: &Header, verification: u32) -> LinkExtension {
    LinkExtension { verification: verification.into(), ..LinkExtension::from(*header) }
}

/// An epoch of a peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeersEpoch {
    epoch: u16,
    /// The largest number that has arrived in it.
    latest: u64,
}

/// Our lane at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OurLane {
    /// None, and none was asked for.
    Absent,
    /// The peer was asked for a lane, or is asked when the path has room for the question.
    Wanted {
        /// Number of the lease.
        number: u16,
        /// It was asked.
        asked: bool,
    },
    /// A lane.
    Leased(LaneLease),
}

/// The peer's lane here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeersLane {
    /// None.
    Absent,
    /// It was reported. Its packets wait until it has a name.
    Attached,
    /// Its packets are polled.
    Open,
}

/// What a packet says about the credits of its destination: epoch, credit packets read, credits granted.
pub(super) type Told = (u16, u16, u32);

/// The end of a bundle: contents in memory that the program has offered.
#[derive(Debug)]
pub(super) struct Borrowed {
    /// The offer.
    pub of: LocalHandle,
    /// What is before them.
    pub frame: ContentsFrame,
    /// Valid until the offer ends.
    pub memory: UserMemory,
}

impl Borrowed {
    fn bytes(&self) -> usize {
        CONTENTS_FRAME_BYTES + self.memory.bytes() as usize
    }

    fn append_to(&self, bundle: &mut Vec<u8>) {
        bundle.extend_from_slice(self.frame.as_bytes());
        self.memory.append_to(0, self.memory.bytes() as usize, bundle);
    }
}

/// A bundle that the peer has not acknowledged.
#[derive(Debug)]
pub(super) struct Sent {
    /// Its bytes, but for its end.
    bundle: Vec<u8>,
    /// They are in a buffer of the link.
    is_buffered: bool,
    /// Its end, if that was not copied.
    borrowed: Option<Borrowed>,
    /// The number of packets that were taken before its end.
    packets: u64,
    /// Its last transmission waits in the proxy's queue until this place there has left ([`super::send_proxy`]).
    queued: Option<QueuePlace>,
}

impl Sent {
    /// A bundle that ends behind so many packets of the path.
    pub(super) fn new(bundle: Vec<u8>, packets: u64) -> Sent {
        Sent { bundle, is_buffered: true, borrowed: None, packets, queued: None }
    }

    /// Bytes of its end that were not copied.
    fn borrowed_bytes(&self) -> usize {
        self.borrowed.as_ref().map_or(0, Borrowed::bytes)
    }

    /// The buffer of the link that it has.
    fn buffer(self) -> Option<Vec<u8>> {
        self.is_buffered.then_some(self.bundle)
    }

    /// Copies its end.
    fn keep(&mut self) {
        if let Some(borrowed) = self.borrowed.take() {
            borrowed.append_to(&mut self.bundle);
        }
    }
}

/// What the driver of the machine needs.
#[derive(Debug)]
pub(super) struct PathIo<P> {
    pub place: P,
    own: Address,
    pub address: Address,
    outgoing_key: Key,
    /// That of the peer.
    verification: u32,
    /// Number of the next datagram that leaves.
    next_number: u64,
    /// Bundles before this position have left, or waited in the proxy's queue. So they leave again.
    left_before: u64,
    /// The packets of the next bundle.
    pub open: Option<Vec<u8>>,
    pub copies: VecDeque<Sent>,
    pub first_copy: u64,
    /// Those of the copies whose ends were not copied.
    borrowed: usize,
    held: HashMap<u64, Bundle>,
    /// Bundles, and where the first unread byte is.
    pub delivered: VecDeque<(Bundle, usize)>,
    /// The packet of which a part was read.
    pub begun: Begun,
    /// Packets that were taken, and those of them that the peer has acknowledged.
    pub taken_packets: u64,
    pub acknowledged_packets: u64,
    /// Packets up to the last one that closing must not lose.
    pub owed_packets: u64,
    /// Somebody waits until so many are acknowledged.
    pub awaited_packets: u64,
    /// The largest datagram that passes the path. Unit: bytes.
    pub largest_datagram: usize,
    /// So many bundles that the peer has not acknowledged count at the gate, and none of them from this position on.
    pub counted: u32,
    pub counted_before: u64,
    /// The open bundle waits for the gate, for a message of so many bytes.
    pub awaits_gate: bool,
    pub awaiting_bytes: u32,
    /// It has passed the gate, and has not been submitted yet.
    pub has_awaited: bool,
    /// The gate has refused the last packet that asked it. It has to come again.
    pub refused_by_gate: bool,
    /// When the peer has acknowledged bundles last, or bundles have begun, if there is a gate.
    pub moved_at: Instant,
    /// Position of the bundle with the last grant, until the peer has acknowledged it.
    pub granted_at: Option<u64>,
    /// What the last packet has said about the peer's credits, if there is a gate.
    pub told: Option<Told>,
    pub fault: Option<PathFault>,
    /// It is in the list of paths with delivered bundles.
    pub is_listed: bool,
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Path<P> {
    /// The name of the peer, if the endpoint knows it.
    pub peer: Option<Peer>,
    pub machine: ReliablePath,
    /// That of the machine.
    pub epoch: NonZeroU16,
    pub io: PathIo<P>,
    /// The key of what the peer sends, in all its epochs.
    incoming_key: Key,
    /// The epoch to which the path is bound.
    peers_epoch: Option<PeersEpoch>,
    pub our_lane: OurLane,
    pub peers_lane: PeersLane,
    /// The lease that the peer has asked for and that it is not told yet.
    pub owes_lease: Option<u16>,
    pub next_lease: u16,
    /// The peer has ended in this way. Nothing more comes from it.
    pub left: Option<PeerFault>,
    /// A packet was refused.
    pub has_refused: bool,
    /// Something has arrived from it since the last sleep.
    pub is_recent: bool,
    /// The message that is being written began when nothing was under way.
    pub leaves_at_once: bool,
    /// Bytes of it that later packets carry.
    message_rest_bytes: u32,
    /// The first number of both directions.
    start: u32,
}

impl<P: Copy> Path<P> {
    pub(super) fn new(
        own: &Address,
        address: &Address,
        place: P,
        config: ReliabilityConfig,
        epoch: NonZeroU16,
    ) -> Path<P> {
        let machine = ReliablePath::new(config, epoch);
        let io = PathIo {
            place,
            own: *own,
            address: *address,
            outgoing_key: Key::of_path(own, address),
            verification: seal::verification_tag(address),
            next_number: u64::from(config.start),
            left_before: machine.next_position(),
            open: None,
            copies: VecDeque::new(),
            first_copy: machine.next_position(),
            borrowed: 0,
            held: HashMap::new(),
            delivered: VecDeque::new(),
            begun: Begun::default(),
            taken_packets: 0,
            acknowledged_packets: 0,
            owed_packets: 0,
            awaited_packets: 0,
            largest_datagram: config.datagram_bytes as usize,
            counted: 0,
            counted_before: 0,
            awaits_gate: false,
            awaiting_bytes: 0,
            has_awaited: false,
            refused_by_gate: false,
            moved_at: Instant(0),
            granted_at: None,
            told: None,
            fault: None,
            is_listed: false,
        };
        Path {
            peer: None,
            machine,
            epoch,
            io,
            incoming_key: Key::of_path(address, own),
            peers_epoch: None,
            our_lane: OurLane::Absent,
            peers_lane: PeersLane::Absent,
            owes_lease: None,
            next_lease: 0,
            left: None,
            has_refused: false,
            is_recent: false,
            leaves_at_once: false,
            message_rest_bytes: 0,
            start: config.start,
        }
    }

    /// Whether nothing that is submitted here arrives any more.
    pub(super) fn is_over(&self) -> bool {
        self.io.fault.is_some() || self.left.is_some()
    }

    /// Why the peer is lost, if it is.
    pub(super) fn fault(&self) -> Option<PeerFault> {
        let of_path = |fault| match fault {
            PathFault::Silent if !self.machine.view().is_open => PeerFault::Unreachable,
            PathFault::Silent | PathFault::Restarted | PathFault::Ended => PeerFault::Died,
        };
        self.left.or(self.io.fault.map(of_path))
    }

    /// Bundles that the peer has not acknowledged.
    pub(super) fn unacknowledged(&self) -> usize {
        self.io.copies.len()
    }

    /// Whether the machine transmits more of a message behind this packet of it, unless its credits end. Then the next poll
    /// sends what waits.
    pub(super) fn more_follow(&mut self, packet: &Packet) -> bool {
        match packet.body {
            Body::Eager { length, .. } => self.message_rest_bytes = length - packet.payload_bytes,
            Body::More { .. } => {
                self.message_rest_bytes = self.message_rest_bytes.saturating_sub(packet.payload_bytes)
            }
            Body::Piece { last, .. } => return !last,
            Body::Write { left, .. } => return left > 0,
            _ => return false,
        }
        self.message_rest_bytes > 0
    }

    /// Opens a datagram of this peer, without its extension. Returns its epoch too, if the path is not bound to that.
    pub(super) fn open<'datagram>(
        &mut self,
        header: &Header,
        datagram: &'datagram mut [u8],
    ) -> Result<(&'datagram [u8], Option<PeersEpoch>), seal::Forged> {
        let Header { epoch, destination_epoch, number, .. } = *header;
        let bound = self.peers_epoch.as_mut().filter(|bound| bound.epoch == epoch);
        let near = bound.as_ref().map_or(self.start.into(), |bound| bound.latest);
        let number = expand(number, near);
        let opened = self.incoming_key.open(
            &nonce_of((epoch, destination_epoch), number),
            datagram,
            EXTENSION_BYTES,
        )?;
        let latest = number.max(near);
        let other = bound.map_or(Some(PeersEpoch { epoch, latest }), |bound| {
            bound.latest = latest;
            None
        });
        Ok((opened, other))
    }

    /// The epochs of both ends, this one first. `None`: nothing of the peer has arrived.
    pub(super) fn epochs(&self) -> Option<(u16, u16)> {
        Some((self.epoch.get(), self.peers_epoch?.epoch))
    }

    /// Binds the path to an epoch of the peer, if a datagram of it has opened the path.
    pub(super) fn bind(&mut self, epoch: PeersEpoch) {
        if self.peers_epoch.is_none() && self.machine.view().is_open {
            self.peers_epoch = Some(epoch);
        }
    }

    /// Memory of the bundles of the peer. Unit: bytes.
    pub(super) fn arrived_bytes(&self) -> usize {
        let delivered = self.io.delivered.iter().map(|(bundle, _)| bundle);
        let begun = self.io.begun.parts.iter().map(|part| &part.bundle);
        delivered.chain(begun).chain(self.io.held.values()).map(Bundle::kept_bytes).sum()
    }

    /// Submits the open bundle.
    ///
    /// # Errors
    /// [`LinkBusy`]: it stays open.
    pub(super) fn submit<N: DatagramNetwork<Place = P>>(
        &mut self,
        id: u32,
        now: Instant,
        shared: &mut Shared<N>,
    ) -> Result<(), LinkBusy> {
        let Some(bundle) = self.io.open.take() else { return Ok(()) };
        let sent = Sent::new(bundle, self.io.taken_packets);
        if let Err(LinkBusy) = self.submit_bundle(id, now, sent, shared) {
            self.io.open = self.io.copies.pop_back().and_then(Sent::buffer);
            return Err(LinkBusy);
        }
        Ok(())
    }

    /// Submits a bundle that ends with `borrowed`: what is open, and that.
    ///
    /// # Errors
    /// [`LinkBusy`]: the path is over.
    pub(super) fn submit_borrowed<N: DatagramNetwork<Place = P>>(
        &mut self,
        id: u32,
        now: Instant,
        borrowed: Borrowed,
        shared: &mut Shared<N>,
    ) -> Result<(), LinkBusy> {
        let (is_buffered, open) = (self.io.open.is_some(), self.io.open.take());
        let packets = self.io.taken_packets;
        let borrowed = Some(borrowed);
        let sent = Sent { bundle: open.unwrap_or_default(), is_buffered, borrowed, packets, queued: None };
        self.io.borrowed += 1;
        shared.borrowed += 1;
        self.submit_bundle(id, now, sent, shared)
    }

    /// Submits a bundle, which is the last one of `copies` then, also if it was refused.
    fn submit_bundle<N: DatagramNetwork<Place = P>>(
        &mut self,
        id: u32,
        now: Instant,
        sent: Sent,
        shared: &mut Shared<N>,
    ) -> Result<(), LinkBusy> {
        let bytes = (EXTENSION_BYTES + sent.bundle.len() + sent.borrowed_bytes() + TAG_BYTES) as u32;
        self.io.copies.push_back(sent);
        let Path { machine, io, .. } = self;
        let mut driver = PathDriver { id, io, shared, arriving: None };
        machine.submit(now, bytes, &mut driver).map(drop)
    }

    /// Submits the open bundle, and begins another one. The caller has looked for room.
    ///
    /// # Errors
    /// [`LinkBusy`]: the path is over.
    pub(super) fn next_bundle<N: DatagramNetwork<Place = P>>(
        &mut self,
        id: u32,
        now: Instant,
        shared: &mut Shared<N>,
    ) -> Result<(), LinkBusy> {
        self.submit(id, now, shared)?;
        self.io.open = shared.copies.take(self.unacknowledged());
        debug_assert!(self.io.open.is_some(), "a buffer that was counted");
        Ok(())
    }

    /// Copies what was not copied of this offer, or of all. Returns the number of bundles.
    pub(super) fn keep_borrowed(&mut self, of: Option<LocalHandle>) -> usize {
        if self.io.borrowed == 0 {
            return 0;
        }
        let is_of = |borrowed: &Borrowed| of.is_none_or(|of| of == borrowed.of);
        let mut kept = 0;
        for sent in self.io.copies.iter_mut().filter(|sent| sent.borrowed.as_ref().is_some_and(is_of)) {
            sent.keep();
            kept += 1;
        }
        self.io.borrowed -= kept;
        kept
    }

    /// Gives all memory back.
    pub(super) fn free<N: DatagramNetwork<Place = P>>(&mut self, shared: &mut Shared<N>) {
        self.io.release(shared);
        let io = &mut self.io;
        shared.borrowed -= std::mem::take(&mut io.borrowed);
        io.copies
            .drain(..)
            .filter_map(Sent::buffer)
            .chain(io.open.take())
            .for_each(|copy| shared.copies.give(copy));
        let delivered = io.delivered.drain(..).map(|(bundle, _)| bundle);
        delivered
            .chain(io.begun.parts.drain(..).map(|part| part.bundle))
            .chain(io.held.drain().map(|(_, bundle)| bundle))
            .for_each(|bundle| shared.arrived.give(bundle));
    }
}

/// The driver of one event of a path's machine.
pub(super) struct PathDriver<'event, N: DatagramNetwork> {
    pub id: u32,
    pub io: &'event mut PathIo<N::Place>,
    pub shared: &'event mut Shared<N>,
    /// The bundle of the datagram that is being handled, and its place, if it can stay there.
    pub arriving: Option<(&'event [u8], Option<Place>)>,
}

impl<N: DatagramNetwork> PathDriver<'_, N> {
    /// Keeps the bundle of the datagram that is being handled. `waits`: for an earlier one.
    fn keep_arriving(&mut self, waits: bool) -> Bundle {
        let (bundle, place) = self.arriving.unwrap_or_default();
        self.shared.arrived.keep(bundle, place.filter(|_| !waits))
    }

    fn list(&mut self) {
        if !std::mem::replace(&mut self.io.is_listed, true) {
            self.shared.ready.push_back(self.id);
        }
    }

    /// Sends a question to a peer that may not know us: it says our address, which only the peer can read.
    fn introduce(&mut self, header: &Header) -> Result<(), LinkBusy> {
        let Shared { network, outgoing, .. } = &mut *self.shared;
        let Some(salt) = seal::salt() else { return Err(LinkBusy) };
        let PathIo { place, own, address, verification, .. } = &*self.io;
        outgoing.append(network, *place, INTRODUCTION_BYTES, INTRODUCTION_BYTES, 0, |datagram| {
            let begin = datagram.len();
            datagram.extend_from_slice(extension(header, *verification).as_bytes());
            datagram.extend_from_slice(&salt);
            datagram.extend_from_slice(&own.0);
            Key::of_introductions(address).seal(&salt, datagram, begin, EXTENSION_BYTES + SALT_BYTES);
        })
    }

    fn send(&mut self, header: &Header, position: Option<u64>) -> Result<(), LinkBusy> {
        if header.destination_epoch == 0 {
            return self.introduce(header);
        }
        let PathIo { place, address, outgoing_key, verification, next_number, copies, first_copy, .. } =
            &*self.io;
        let sent = position.map(|position| &copies[(position - first_copy) as usize]);
        let bundle = sent.map_or(&[][..], |sent| &sent.bundle);
        let borrowed = sent.and_then(|sent| sent.borrowed.as_ref());
        let Shared { network, outgoing, proxy, .. } = &mut *self.shared;
        let number = expand(header.number, *next_number);
        let length = EXTENSION_BYTES + bundle.len() + sent.map_or(0, Sent::borrowed_bytes) + TAG_BYTES;
        let largest = self.io.largest_datagram.min(network.largest_datagram());
        let write = |datagram: &mut Vec<u8>| {
            let begin = datagram.len();
            datagram.extend_from_slice(extension(header, *verification).as_bytes());
            copy::append(bundle, datagram);
            if let Some(borrowed) = borrowed {
                borrowed.append_to(datagram);
            }
            let nonce = nonce_of((header.epoch, header.destination_epoch), number);
            outgoing_key.seal(&nonce, datagram, begin, EXTENSION_BYTES);
        };
        let is_bundle = position.is_some() && length <= largest;
        if let Some(proxy) = proxy
            && position.is_some_and(|position| position < self.io.left_before)
        {
            proxy.sends_at(network.host_time()); // it may have been long since a bundle has begun
        }
        if let Some(proxy) = proxy.as_mut().filter(|proxy| is_bundle && !proxy.is_idle()) {
            let part = address.part(network.kind()).unwrap_or_default();
            if !proxy.has_room(part, length) {
                let _ = proxy.serve(network, outgoing); // what it does not send waits there
            }
            let queued = proxy.add(part, length, write)?;
            self.note_queued(position, Some(queued));
            return Ok(());
        }
        outgoing.append(network, *place, length, largest, copies.len(), write)?;
        self.note_queued(position, None);
        Ok(())
    }

    /// The bundle of `position` has left, or waits in the proxy's queue.
    fn note_queued(&mut self, position: Option<u64>, queued: Option<QueuePlace>) {
        if let Some(position) = position {
            self.io.left_before = self.io.left_before.max(position + 1);
            self.io.copies[(position - self.io.first_copy) as usize].queued = queued;
        }
    }
}

impl<N: DatagramNetwork> DatagramDriver for PathDriver<'_, N> {
    fn transmit(&mut self, header: &Header, position: Option<u64>) -> Result<(), LinkBusy> {
        let sent = self.send(header, position);
        match sent {
            Ok(()) => self.io.next_number = expand(header.number, self.io.next_number) + 1,
            Err(LinkBusy) => self.shared.refused.push(self.id),
        }
        sent
    }

    fn has_queue(&self) -> bool {
        self.shared.proxy.is_some()
    }

    fn is_queued(&self, position: u64) -> bool {
        let Some(proxy) = &self.shared.proxy else { return false };
        let index = position.wrapping_sub(self.io.first_copy) as usize;
        self.io.copies.get(index).and_then(|sent| sent.queued).is_some_and(|place| proxy.waits(place))
    }

    fn deliver(&mut self, _position: u64) {
        let bundle = self.keep_arriving(false);
        self.io.delivered.push_back((bundle, 0));
        self.list();
    }

    fn hold(&mut self, position: u64) {
        let bundle = self.keep_arriving(true);
        self.io.held.insert(position, bundle);
    }

    fn deliver_held(&mut self, position: u64) {
        let bundle = self.io.held.remove(&position).expect("the machine names bundles that are held");
        self.io.delivered.push_back((bundle, 0));
        self.list();
    }

    fn acknowledged(&mut self, before: u64) {
        while self.io.first_copy < before {
            let sent = self.io.copies.pop_front().expect("bundles are kept until they are acknowledged");
            let packets = sent.packets;
            let borrowed = usize::from(sent.borrowed.is_some());
            self.io.borrowed -= borrowed;
            self.shared.borrowed -= borrowed;
            sent.buffer().into_iter().for_each(|copy| self.shared.copies.give(copy));
            self.io.first_copy += 1;
            // Somebody may wait for any of the packets in between.
            let is_awaited = self.io.acknowledged_packets < self.io.awaited_packets;
            if is_awaited && self.shared.acknowledged.back() != Some(&self.id) {
                self.shared.acknowledged.push_back(self.id);
            }
            self.io.acknowledged_packets = packets;
        }
        self.io.settle(self.shared);
        if self.io.granted_at.take_if(|position| *position < before).is_some() {
            self.shared.grants.iter_mut().for_each(|grants| grants.acknowledged(self.id));
        }
    }

    /// A token of the gate, the grant of others, the memory of copies, or an endpoint. Below the thresholds of a gate nothing
    /// holds tokens, so nothing waits. A proxy's queue does not hold questions: the
    /// answer to one would not acknowledge the bundles that wait there.
    fn awaits_acknowledgement(&self) -> bool {
        self.io.counted > 0
            || self.shared.proxy.is_some()
            || self.io.granted_at.is_some()
            || self.shared.copies.are_scarce()
            || self.io.acknowledged_packets < self.io.awaited_packets
    }

    fn is_crowded(&self) -> bool {
        self.shared.crowd.is_crowded
    }

    fn largest_datagram(&mut self, bytes: u32) {
        self.io.largest_datagram = bytes as usize;
    }

    fn ready(&mut self) {} // the link asks for room in each poll

    fn standing(&mut self) -> Standing {
        self.shared.network.standing(self.io.place)
    }

    fn lost(&mut self, fault: PathFault) {
        self.io.fault = Some(fault);
        self.shared.lost.push(self.id);
        self.shared.grants.iter_mut().for_each(|grants| grants.remove(self.id));
    }

    fn set_timer(&mut self, at: Instant) {
        self.shared.timers.set(self.id, at);
    }

    fn cancel_timer(&mut self) {
        self.shared.timers.cancel(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_expanded_to_the_nearest_value() {
        assert_eq!(expand(5, 0), 5);
        assert_eq!(expand(2, (7 << 32) + u64::from(u32::MAX)), (8 << 32) + 2);
        assert_eq!(expand(u32::MAX, 8 << 32), (7 << 32) + u64::from(u32::MAX));
        assert_eq!(expand(1 << 30, 3 << 32), (3 << 32) + (1 << 30));
    }
}
