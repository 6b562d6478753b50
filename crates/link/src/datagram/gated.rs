//! Admission in the link: which packets ask the gate ([`SendGate`]), which bundles count, and who is the next.
//!
//! ```text
//! send(a)      no token: a begins a bundle that stays open, and waits there
//! send(b)      joins it
//! send(c)      no room: the link is busy, and c waits in the endpoint
//! poll         a token has come back: the bundle leaves, the path is ready for c
//! ```
//! So small messages share a datagram and a token also if there are few tokens, and a send that is complete need not wait:
//! the helper of the link asks the gate too ([`super::helper`]). What waits in a bundle keeps nobody else from going on. Packets
//! that bring credits back do not begin or join it, and those that do not ask the gate, such as credit packets, let it leave.

use super::appending::Item;
use super::link::{DatagramLink, Shared};
use super::network::DatagramNetwork;
use super::path::{Path, PathIo};
use super::send_gate::{Passage, SendGate};
use super::send_proxy::SendProxy;
use weir_proto::admission::HOLD_NS;
use weir_proto::{Body, Instant, LinkBusy};

/// Length of the message of which an item is a part; at most [`u32::MAX`]. Of a remote read in several packets, it is
/// the length of the region. Unit: bytes.
fn message_bytes(item: &Item<'_>) -> u32 {
    let memory_bytes = || item.payload.map_or(0, |(memory, _)| memory.bytes());
    let bytes = match item.packet.map(|packet| packet.body) {
        Some(Body::Eager { length, .. }) => length.into(),
        Some(Body::Piece { offset: 0, last: true, .. }) | None => item.payload_bytes as u64,
        Some(_) => memory_bytes(),
    };
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

impl<N: DatagramNetwork> Shared<N> {
    /// How the gate lets an item pass at `now` that begins `bundles` bundles, as far as that needs no look at the lines.
    #[inline]
    fn passage_at_once(&self, bundles: u32, item: &Item<'_>, now: Instant) -> Option<Passage> {
        let Some(gate) = self.gate.as_ref().filter(|_| bundles > 0) else { return Some(Passage::Free) };
        if !item.asks {
            return Some(gate.unasked());
        }
        gate.passage_at_once(self.network.host_time_at(now), bundles, || message_bytes(item))
    }

    /// The time until the gate must be asked again, if a packet waits there. Unit: ns.
    pub(super) fn gate_wait_ns(&self) -> Option<u64> {
        self.gate.as_ref().and_then(|gate| gate.wait_ns(self.network.host_time()))
    }
}

impl<N: DatagramNetwork> DatagramLink<N> {
    /// Holds packets back with `gate`.
    #[must_use]
    pub fn with_gate(mut self, gate: Option<SendGate>) -> DatagramLink<N> {
        self.shared.gate = gate.map(Box::new);
        self.note_control();
        self
    }

    /// The gate, if there is one.
    pub fn gate(&self) -> Option<&SendGate> {
        self.shared.gate.as_deref()
    }

    /// Lets bundles leave through `proxy`.
    #[must_use]
    pub fn with_proxy(mut self, proxy: Option<SendProxy>) -> DatagramLink<N> {
        self.shared.proxy = proxy.map(Box::new);
        self.note_control();
        self
    }

    fn note_control(&mut self) {
        self.shared.is_controlled = self.shared.gate.is_some() || self.shared.proxy.is_some();
    }

    /// The proxy, if there is one.
    pub fn proxy(&self) -> Option<&SendProxy> {
        self.shared.proxy.as_deref()
    }

    /// Whether the gate holds packets back that wait in the endpoint. Open bundles that wait come first.
    pub(super) fn holds_back(&mut self) -> bool {
        let has_waiting = |shared: &Shared<N>| shared.gate.as_ref().is_some_and(|gate| gate.has_waiting());
        // When an open bundle has asked in vain, something waits.
        if !has_waiting(&self.shared) {
            return false;
        }
        if !self.shared.awaiting.is_empty() {
            self.send_unsent(); // tokens may have come back just now
            let _ = self.shared.flush(); // what it refuses waits
        }
        if !self.shared.awaiting.is_empty() {
            return true;
        }
        let DatagramLink { shared, busy, .. } = self;
        let Some(gate) = shared.gate.as_mut().filter(|gate| gate.has_waiting()) else { return false };
        let now = shared.network.host_time();
        if busy.is_empty() {
            gate.end_wait(now); // the peer to which it would have gone is lost, or has nothing to send any more
            return false;
        }
        self.release_silent(now);
        self.shared.gate.as_mut().is_some_and(|gate| !gate.may_resume(now))
    }

    /// Peers that acknowledge nothing hold no tokens any more.
    fn release_silent(&mut self, now: Instant) {
        let DatagramLink { shared, paths, .. } = self;
        if shared.gate.as_mut().is_some_and(|gate| gate.must_search(now)) {
            for path in paths.iter_mut().flatten() {
                if path.io.counted > 0 && now.since_ns(path.io.moved_at) >= HOLD_NS {
                    path.io.release(shared);
                }
            }
        }
    }

    /// Lets bundles leave that have passed the gate after a wait, as far as the pace allows: the program may run no timers.
    pub(super) fn send_paced(&mut self) {
        if self.shared.paced.is_empty() || self.shared.flush().is_err() {
            return;
        }
        for id in self.shared.paced.clone() {
            self.drive(id, |machine, now, driver| machine.writable(now, driver));
        }
        self.forget_paced();
        let _ = self.shared.flush(); // what it refuses waits
    }

    /// A poll runs the timers of paths whose pace holds bundles back. So only those are kept that still wait.
    pub(super) fn forget_paced(&mut self) {
        let DatagramLink { shared, paths, .. } = self;
        let waits = |path: &Path<N::Place>| path.machine.is_paced() && !path.is_over();
        shared.paced.retain(|&id| paths[id as usize].as_deref().is_some_and(waits));
    }

    /// Lets open bundles pass the gate, in the order in which they have begun to wait. They leave with the next attempt to send
    /// what is open.
    pub(super) fn admit_awaiting(&mut self) {
        while let Some(&id) = self.shared.awaiting.front() {
            let now = self.shared.network.now();
            self.release_silent(self.shared.network.host_time_at(now));
            let passed = self.path_and_shared(id).map(|(path, shared)| path.ask_again(id, now, shared));
            match passed {
                Some(Err(LinkBusy)) => return,
                Some(Ok(())) => {}
                None => drop(self.shared.awaiting.pop_front()),
            }
        }
    }
}

impl<P: Copy> PathIo<P> {
    /// Bundles that the peer has acknowledged count no more at the gate.
    pub(super) fn settle<N: DatagramNetwork<Place = P>>(&mut self, shared: &mut Shared<N>) {
        let Some(gate) = shared.gate.as_mut().filter(|_| self.counted > 0) else { return };
        let held = self.counted_before.saturating_sub(self.first_copy) as u32;
        if let Some(fewer) = self.counted.checked_sub(held).filter(|fewer| *fewer > 0) {
            // When nothing is under way any more, the others ask only when this rank has sent last.
            let is_over = gate.held() <= fewer;
            let now = if is_over { gate.took_at() } else { shared.network.host_time() };
            (self.counted, self.moved_at) = (held, now);
            gate.gave_back(now, fewer);
        }
    }

    /// The bundles of this path count no more at the gate.
    pub(super) fn release<N: DatagramNetwork<Place = P>>(&mut self, shared: &mut Shared<N>) {
        let counted = std::mem::take(&mut self.counted);
        if let Some(gate) = shared.gate.as_mut().filter(|_| counted > 0) {
            gate.gave_back(shared.network.host_time(), counted);
        }
    }
}

impl<P: Copy> Path<P> {
    /// How an item passes the gate at `now` that begins `bundles` bundles. `may_wait`: if it begins one, it may wait in that. It
    /// joins an open bundle that waits.
    ///
    /// # Errors
    /// [`LinkBusy`]: the gate holds it back.
    #[inline]
    pub(super) fn passage<N: DatagramNetwork<Place = P>>(
        &mut self,
        id: u32,
        (bundles, may_wait): (u32, bool),
        item: &Item<'_>,
        now: Instant,
        shared: &mut Shared<N>,
    ) -> Result<Passage, LinkBusy> {
        let at_once = (!self.io.awaits_gate).then(|| shared.passage_at_once(bundles, item, now));
        match at_once.flatten() {
            Some(passage) => Ok(passage),
            None => self.passage_near_the_limit(id, (bundles, may_wait), item, now, shared),
        }
    }

    #[inline(never)]
    fn passage_near_the_limit<N: DatagramNetwork<Place = P>>(
        &mut self,
        id: u32,
        (bundles, may_wait): (u32, bool),
        item: &Item<'_>,
        now: Instant,
        shared: &mut Shared<N>,
    ) -> Result<Passage, LinkBusy> {
        let Shared { network, gate, awaiting, .. } = &mut *shared;
        let Some(gate) = gate else { return Ok(Passage::Free) };
        // What passes at once is not noted here, so a packet may seem to have news that has none.
        let told = item.packet.map(|packet| (packet.epoch, packet.credit_packets_read, packet.granted_total));
        let has_news = self.io.told != told;
        if self.io.awaits_gate {
            if !item.asks {
                let unasked = gate.unasked();
                self.end_awaiting(id, now, unasked, shared);
            } else if has_news {
                return Err(LinkBusy);
            }
            return Ok(Passage::Free);
        }
        match gate.passage(network.host_time_at(now), id, bundles, message_bytes(item)) {
            Some(passage) => {
                self.io.told = told;
                Ok(passage)
            }
            None if may_wait && bundles == 1 && !has_news => {
                (self.io.awaits_gate, self.io.awaiting_bytes) = (true, message_bytes(item));
                awaiting.push_back(id);
                Ok(Passage::Free) // it is counted when it leaves
            }
            None => Err(LinkBusy),
        }
    }

    /// The open bundle, which waits for the gate, asks again, if no other one waits before it.
    ///
    /// # Errors
    /// [`LinkBusy`]: it still waits.
    fn ask_again<N: DatagramNetwork<Place = P>>(
        &mut self,
        id: u32,
        now: Instant,
        shared: &mut Shared<N>,
    ) -> Result<(), LinkBusy> {
        let Some(gate) = shared.gate.as_mut().filter(|_| !self.is_over()) else {
            self.end_awaiting(id, now, Passage::Free, shared);
            return Ok(());
        };
        if shared.awaiting.front() != Some(&id) {
            return Err(LinkBusy);
        }
        gate.give_turn(id);
        let passage = gate.passage(shared.network.host_time_at(now), id, 1, self.io.awaiting_bytes);
        self.end_awaiting(id, now, passage.ok_or(LinkBusy)?, shared);
        Ok(())
    }

    /// The open bundle, which waits for the gate, leaves before an item that it has no room for. `asks`: if the gate lets it
    /// pass.
    ///
    /// # Errors
    /// [`LinkBusy`]: it still waits, or the path is over.
    pub(super) fn leave_behind_gate<N: DatagramNetwork<Place = P>>(
        &mut self,
        id: u32,
        asks: bool,
        now: Instant,
        shared: &mut Shared<N>,
    ) -> Result<(), LinkBusy> {
        match &shared.gate {
            Some(gate) if !asks => self.end_awaiting(id, now, gate.unasked(), shared),
            _ => self.ask_again(id, now, shared)?,
        }
        self.submit(id, now, shared)
    }

    /// The open bundle waits no more, and passes in this way.
    fn end_awaiting<N: DatagramNetwork<Place = P>>(
        &mut self,
        id: u32,
        now: Instant,
        passage: Passage,
        shared: &mut Shared<N>,
    ) {
        (self.io.awaits_gate, self.io.has_awaited) = (false, true);
        shared.awaiting.retain(|&other| other != id);
        self.count(1, passage, now, shared);
    }

    /// Has begun `bundles` bundles more at `now`, the last of which is open, for a packet that passes the gate in this way.
    #[inline]
    pub(super) fn count<N: DatagramNetwork<Place = P>>(
        &mut self,
        bundles: u32,
        passage: Passage,
        now: Instant,
        shared: &mut Shared<N>,
    ) {
        let Some(gate) = shared.gate.as_mut().filter(|_| passage != Passage::Free) else { return };
        let now = shared.network.host_time_at(now);
        if passage == Passage::Paced {
            return gate.paced(now);
        }
        let io = &mut self.io;
        (io.moved_at, io.counted_before) = (now, self.machine.next_position() + 1);
        io.counted += bundles;
        gate.took(now, bundles, passage == Passage::Admitted);
    }
}

#[cfg(test)]
mod tests {
    use super::super::lossy::{Impairments, LossyNetwork, Switch};
    use super::super::path::{PathDriver, Sent};
    use super::*;
    use crate::datagram::DatagramOptions;
    use crate::shm::ShmLink;
    use crate::shm::node_segment::{JobKey, NodeSegment};
    use crate::shm::options::for_tests;
    use crate::{Address, Quota};
    use weir_proto::reliability::{DatagramDriver, Header};
    use weir_proto::wire::LinkExtension;
    use zerocopy::FromZeros;

    /// Two endpoints of a node with a proxy, and what they need.
    fn members(directory: &tempfile::TempDir) -> [(SendProxy, NodeSegment, ShmLink); 2] {
        [(); 2].map(|()| {
            let mailbox = ShmLink::open(&for_tests(directory.path())).unwrap();
            let node = NodeSegment::join(&mailbox, JobKey::new(&"a job")).unwrap();
            (SendProxy::open(&node.handle(), 1, false, 5).unwrap(), node, mailbox)
        })
    }

    fn open(switch: &Switch, number: u16) -> DatagramLink<LossyNetwork> {
        let options = DatagramOptions::new(Quota { data_slots: 100, start_slots: 10, credit_slots: 2 });
        DatagramLink::open(&Address::new(number.into(), [7; 16]), switch.open(number), options)
    }

    #[test]
    fn the_driver_of_a_path_knows_which_of_its_bundles_wait_in_the_queue_of_the_proxy() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let [(own, _node, _mailbox), (mut other, _other_node, _other_mailbox)] = members(&directory);
        other.sends_at(Instant(0)); // so nobody sends alone
        let switch = Switch::new(1, Impairments::default());
        let mut link = open(&switch, 1).with_proxy(Some(own));
        let id = link.path_to(&open(&switch, 2).address).unwrap();
        let (path, shared) = link.path_and_shared(id).unwrap();
        let first = path.io.first_copy;
        path.io.copies.extend([1, 2].map(|packets| Sent::new(vec![7; 100], packets)));
        let mut driver = PathDriver { id, io: &mut path.io, shared, arriving: None };
        let mut number = 0;
        let mut send = |driver: &mut PathDriver<'_, _>, position| {
            number += 1;
            let header =
                Header { epoch: 1, destination_epoch: 1, number, ..LinkExtension::new_zeroed().into() };
            driver.transmit(&header, position).unwrap();
        };
        let queued = |driver: &PathDriver<'_, _>| {
            (first - 1..first + 3).filter(|&position| driver.is_queued(position)).collect::<Vec<u64>>()
        };
        assert_eq!((driver.has_queue(), queued(&driver)), (true, vec![]));
        send(&mut driver, Some(first));
        send(&mut driver, None);
        assert_eq!(queued(&driver), [first]);
        send(&mut driver, Some(first + 1));
        assert_eq!(queued(&driver), [first, first + 1]);
        driver.shared.flush().unwrap();
        assert_eq!(queued(&driver), []);
        send(&mut driver, Some(first)); // again
        assert_eq!(queued(&driver), [first]);
        driver.shared.proxy = None;
        send(&mut driver, Some(first));
        assert_eq!((driver.has_queue(), queued(&driver)), (false, vec![]));
    }

    #[test]
    fn a_bundle_that_leaves_again_goes_through_the_queue_if_others_send_meanwhile() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let switch = Switch::new(1, Impairments::default());
        let [(own, _node, _mailbox), (mut other, _other_node, _other_mailbox)] = members(&directory);
        let mut link = open(&switch, 1).with_proxy(Some(own));
        let id = link.path_to(&open(&switch, 2).address).unwrap();
        let (path, shared) = link.path_and_shared(id).unwrap();
        let first = path.io.first_copy;
        path.io.copies.push_back(Sent::new(vec![7; 100], 1));
        let now = shared.network.host_time();
        shared.proxy.iter_mut().for_each(|proxy| proxy.sends_at(now));
        let mut driver = PathDriver { id, io: &mut path.io, shared, arriving: None };
        let header =
            Header { epoch: 1, destination_epoch: 1, number: 1, ..LinkExtension::new_zeroed().into() };
        driver.transmit(&header, Some(first)).unwrap();
        assert!(!driver.is_queued(first), "it sends alone");
        switch.advance(2_000_000);
        other.sends_at(driver.shared.network.host_time());
        driver.transmit(&Header { number: 2, ..header }, Some(first)).unwrap();
        assert!(driver.is_queued(first));
    }

    #[test]
    fn the_driver_of_a_path_knows_what_waits_for_acknowledgements() {
        let switch = Switch::new(1, Impairments::default());
        let options = DatagramOptions::new(Quota { data_slots: 100, start_slots: 10, credit_slots: 2 });
        let mut link = open(&switch, 1);
        let id = link.path_to(&open(&switch, 2).address).unwrap();
        let (path, shared) = link.path_and_shared(id).unwrap();
        let driver = PathDriver { id, io: &mut path.io, shared, arriving: None };
        assert!(!driver.awaits_acknowledgement());
        driver.io.granted_at = Some(7);
        assert!(driver.awaits_acknowledgement(), "the grant of others");
        driver.io.granted_at = None;
        driver.io.awaited_packets = 1;
        assert!(driver.awaits_acknowledgement(), "an endpoint");
        driver.io.acknowledged_packets = 1;
        assert!(!driver.awaits_acknowledgement());
        driver.io.counted = 1;
        assert!(driver.awaits_acknowledgement(), "a token");
        driver.io.counted = 0;
        let buffers = options.most_copies / 2 + 1;
        let taken: Vec<_> = (0..buffers).map_while(|held| driver.shared.copies.take(held)).collect();
        assert!(taken.len() == buffers && driver.awaits_acknowledgement(), "the memory of copies");
        taken.into_iter().for_each(|buffer| driver.shared.copies.give(buffer));
        assert!(!driver.awaits_acknowledgement());
    }
}
