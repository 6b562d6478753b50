//! The proxy before a network ([`SendProxy`]): sealed datagrams with bundles wait in the queue of their endpoint, and one
//! endpoint of the node at a time sends those of all. It applies [`crate::shm::proxy_queues`] to one endpoint. The machine
//! of the same mechanism in the simulator is [`weir_proto::admission::Proxy`].
//!
//! ```text
//! path     a bundle leaves: sealed, then `add`; no room: the link is busy for this peer
//! flush    own queue not empty: `serve`   I have the server token: what is in the queues of my pool leaves by my socket
//!                                         another has it: nothing
//! ```
//! - While no other endpoint of the pool sends or has something in its queue, its datagrams leave directly: one at a time
//!   sends anyway.
//! - What has no bundle leaves directly: questions, and acknowledgements, since a late one stops a peer. So does what
//!   leaves in fragments.
//! - Datagrams to one place that follow each other leave in one call, whoever's they are ([`super::outgoing`]).
//! - The receiver finds the path by the epoch in the header, since the datagram comes from another socket of the host.
//!
//! This file does not know paths or seals.

use super::network::DatagramNetwork;
use super::outgoing::Outgoing;
use crate::shm::node_segment::NodeHandle;
use crate::shm::proxy_queues::{ProxyQueues, SERVER_HOLD_NS};
use weir_proto::{Instant, LinkBusy};

/// So many datagrams leave in one service, so that a program does not send for others for ever.
const MOST_SERVED: u32 = 256;
/// So many of a queue leave before the next has its turn: what one call sends.
const BATCH: u32 = 64;

/// The time between two looks whether others send. Unit: ns.
const COUNT_NS: u64 = SERVER_HOLD_NS / 10;

/// What a proxy has done. Unit: datagrams, but for the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyCounters {
    /// Those that went through the queue of this endpoint.
    pub queued: u64,
    /// Those of other endpoints that this endpoint sent.
    pub sent_for_others: u64,
    /// Times that the queue had no room for one.
    pub without_room: u64,
}

/// A place in the queue of an endpoint. It is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuePlace(u64);

/// See the head of this file.
#[derive(Debug)]
pub struct SendProxy {
    queues: ProxyQueues,
    /// A queue is emptied before the next has its turn.
    drains: bool,
    /// The own queue was not empty when this endpoint looked last, or something was added since.
    has_added: bool,
    /// No other endpoint of the pool sends.
    is_alone: bool,
    /// When that is to be found out again.
    count_at: Instant,
    /// A datagram while it is sealed.
    sealing: Vec<u8>,
    /// What a network needs to find the receiver of a datagram that leaves.
    part: Vec<u8>,
    counters: ProxyCounters,
}

impl SendProxy {
    /// The proxy of an endpoint. `None`: there is no memory for its queue, or there are too many endpoints.
    ///
    /// - `servers`: so many endpoints of the node may send at a time, at least 1.
    /// - `drains`: a server empties a queue before it goes on to the next. Otherwise it takes a batch from each in turn.
    /// - `domain`: [`DatagramNetwork::domain`].
    pub fn open(node: &NodeHandle, servers: u32, drains: bool, domain: u64) -> Option<SendProxy> {
        let queues = ProxyQueues::open(node, servers, domain).ok().flatten()?;
        Some(SendProxy {
            queues,
            drains,
            has_added: false,
            is_alone: false,
            count_at: Instant(0),
            sealing: Vec::new(),
            part: Vec::new(),
            counters: ProxyCounters::default(),
        })
    }

    /// What it has done.
    pub fn counters(&self) -> ProxyCounters {
        self.counters
    }

    /// A bundle begins, or leaves again, at `now`, in the time of the host.
    #[inline]
    pub(super) fn sends_at(&mut self, now: Instant) {
        if now >= self.count_at {
            self.count_at = now.plus_ns(COUNT_NS);
            self.is_alone = self.queues.is_alone(now);
            self.has_added = !self.is_empty(); // others may have taken all
        }
    }

    /// Whether bundles need not pass the queue: nobody else sends, and they overtake nothing there.
    pub(super) fn is_idle(&self) -> bool {
        self.is_alone && self.is_empty()
    }

    /// Whether nothing waits in the own queue.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        !self.has_added || self.queues.is_empty()
    }

    /// Whether the queue can take a datagram of `length` bytes for the receiver with this part of its address.
    pub(super) fn has_room(&self, part: &[u8], length: usize) -> bool {
        self.queues.has_room(part.len(), length)
    }

    /// Adds a datagram of `length` bytes, which `write` appends to its argument, for the receiver with this part of its
    /// address. Nothing is written if there is no room. Returns where it waits.
    ///
    /// # Errors
    /// [`LinkBusy`]: there is no room.
    pub(super) fn add(
        &mut self,
        part: &[u8],
        length: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<QueuePlace, LinkBusy> {
        if !self.has_room(part, length) {
            self.counters.without_room += 1;
            return Err(LinkBusy);
        }
        self.sealing.clear();
        write(&mut self.sealing);
        debug_assert_eq!(self.sealing.len(), length, "the length of a datagram");
        let end = self.queues.put(part, &self.sealing);
        self.has_added = true;
        self.counters.queued += 1;
        Ok(QueuePlace(end))
    }

    /// Whether nobody has taken what was added at this place.
    pub(super) fn waits(&self, place: QueuePlace) -> bool {
        self.queues.is_behind(place.0)
    }

    /// Sends what is in the queues of this pool, if the own one has something and nobody else serves. `outgoing` is sent too.
    ///
    /// # Errors
    /// [`LinkBusy`]: the network takes nothing now.
    pub(super) fn serve<N: DatagramNetwork>(
        &mut self,
        network: &mut N,
        outgoing: &mut Outgoing<N::Place>,
    ) -> Result<(), LinkBusy> {
        let (mut left, mut is_work) = (MOST_SERVED, !self.is_empty());
        while left > 0 && is_work && self.queues.try_serve(network.host_time()) {
            let before = left;
            let served = self.serve_in_turn(network, outgoing, &mut left);
            let served = served.and_then(|()| outgoing.flush(network));
            // Somebody may have added who saw that this endpoint serves. A queue that gave nothing is its owner's affair.
            is_work = self.queues.stop_serving() && left < before;
            served?;
        }
        self.has_added = !self.is_empty();
        Ok(())
    }

    /// Sends until all queues are empty, until `left` datagrams have left, or until somebody else serves.
    fn serve_in_turn<N: DatagramNetwork>(
        &mut self,
        network: &mut N,
        outgoing: &mut Outgoing<N::Place>,
        left: &mut u32,
    ) -> Result<(), LinkBusy> {
        loop {
            let before = *left;
            for queue in self.queues.served() {
                let batch = if self.drains { *left } else { BATCH.min(*left) };
                let sent = self.take_from(queue, batch, network, outgoing)?;
                *left -= sent;
            }
            if *left == before || *left == 0 || !self.queues.try_serve(network.host_time()) {
                return Ok(());
            }
        }
    }

    /// Sends at most `most` datagrams of a queue. Returns how many.
    fn take_from<N: DatagramNetwork>(
        &mut self,
        queue: usize,
        most: u32,
        network: &mut N,
        outgoing: &mut Outgoing<N::Place>,
    ) -> Result<u32, LinkBusy> {
        let mut sent = 0;
        while sent < most
            && let Some(first) = self.queues.first(queue)
        {
            self.part.clear();
            first.append_part(&mut self.part);
            // Without a place, another process has written what no endpoint of this network writes.
            let place = network.place_of(&self.part).filter(|_| first.datagram_bytes() > 0);
            if queue != self.queues.index() && place.is_some_and(|place| network.has_failed(place)) {
                break; // its owner may reach it
            }
            if let Some(place) = place {
                let (length, largest) = (first.datagram_bytes(), network.largest_datagram());
                outgoing.append(network, place, length, largest, 2 * BATCH as usize, |bytes| {
                    first.append_datagram(bytes);
                })?;
            }
            if !first.take() {
                place.iter().for_each(|_| outgoing.remove_last(first.datagram_bytes()));
                break;
            }
            self.counters.sent_for_others += u64::from(queue != self.queues.index());
            sent += 1;
        }
        Ok(sent)
    }

    /// Sends what is in the own queue, as far as the network takes it, with or without the server token. Nobody else takes
    /// from it any more.
    pub(super) fn leave<N: DatagramNetwork>(&mut self, network: &mut N, outgoing: &mut Outgoing<N::Place>) {
        let own = self.queues.index();
        while !self.is_empty() {
            if self.take_from(own, MOST_SERVED, network, outgoing) != Ok(MOST_SERVED) {
                break; // the queue is empty, or the network is busy: the path sends the rest again, directly
            }
        }
        self.queues.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagram::lossy::{Impairments, LossyNetwork, Switch};
    use crate::datagram::network::Batch;
    use crate::shm::ShmLink;
    use crate::shm::counted_word::before_access;
    use crate::shm::node_segment::{JobKey, NodeSegment};
    use crate::shm::options::for_tests;

    const DOMAIN: u64 = 5;

    struct Member {
        proxy: SendProxy,
        network: LossyNetwork,
        outgoing: Outgoing<u16>,
        _node: NodeSegment,
        _mailbox: ShmLink,
    }

    impl Member {
        fn open(directory: &tempfile::TempDir, switch: &Switch, port: u16, domain: u64) -> Member {
            let mailbox = ShmLink::open(&for_tests(directory.path())).unwrap();
            let node = NodeSegment::join(&mailbox, JobKey::new(&"a job")).unwrap();
            let proxy = SendProxy::open(&node.handle(), 1, false, domain).unwrap();
            let network = switch.open(port);
            Member { proxy, network, outgoing: Outgoing::new(), _node: node, _mailbox: mailbox }
        }

        fn add(&mut self, to: u16, byte: u8) -> Result<QueuePlace, LinkBusy> {
            self.proxy.add(&to.to_le_bytes(), 100, |bytes| bytes.resize(100, byte))
        }

        fn serve(&mut self) -> Result<(), LinkBusy> {
            self.proxy.serve(&mut self.network, &mut self.outgoing)
        }
    }

    /// What has arrived: who sent it, and its first byte; sorted.
    fn arrivals(network: &mut LossyNetwork) -> Vec<(u16, u8)> {
        let mut batch = Batch::new();
        network.receive(&mut batch);
        let datagrams = batch.datagrams.iter().map(|it| (it.from, batch.bytes[it.range.start]));
        let mut all: Vec<(u16, u8)> = datagrams.collect();
        all.sort_unstable();
        all
    }

    fn quiet() -> (tempfile::TempDir, Switch) {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        (directory, Switch::new(1, Impairments::default()))
    }

    #[test]
    fn whoever_serves_sends_what_is_in_all_queues_and_the_others_return_at_once() {
        let (directory, switch) = quiet();
        let mut to = switch.open(60);
        let [mut a, mut b, mut stranger] = [(1, DOMAIN), (2, DOMAIN), (3, DOMAIN + 1)]
            .map(|(port, domain)| Member::open(&directory, &switch, port, domain));
        for member in [&mut a, &mut b, &mut stranger] {
            member.add(60, 10 * member.proxy.queues.index() as u8).unwrap();
            member.add(60, 10 * member.proxy.queues.index() as u8 + 1).unwrap();
        }
        assert!(
            b.proxy.queues.try_serve(b.network.host_time()),
            "b is the server, and does not go on for now"
        );
        a.serve().unwrap();
        assert_eq!((arrivals(&mut to), a.proxy.is_empty()), (vec![], false));
        b.serve().unwrap();
        // The queue of another network is left to its owner.
        assert_eq!(arrivals(&mut to), [(2, 0), (2, 1), (2, 10), (2, 11)]);
        assert!(a.proxy.is_empty() && b.proxy.is_empty() && !stranger.proxy.is_empty());
        stranger.serve().unwrap();
        assert_eq!(arrivals(&mut to), [(3, 20), (3, 21)]);
        let sent_for_others = [&a, &b, &stranger].map(|member| member.proxy.counters().sent_for_others);
        assert_eq!((sent_for_others, a.proxy.counters().queued), ([0, 2, 0], 2));
    }

    #[test]
    fn an_endpoint_that_sends_alone_does_not_use_its_queue() {
        let (directory, switch) = quiet();
        let [mut a, mut b, mut stranger] = [(1, DOMAIN), (2, DOMAIN), (3, DOMAIN + 1)]
            .map(|(port, domain)| Member::open(&directory, &switch, port, domain));
        let at = |us: u64| Instant(SERVER_HOLD_NS + 1000 * us);
        stranger.proxy.sends_at(at(0));
        a.proxy.sends_at(at(0));
        assert!(a.proxy.is_idle(), "the other one is in another network");
        a.add(60, 1).unwrap();
        assert!(!a.proxy.is_idle(), "nothing overtakes what waits");
        a.serve().unwrap();
        assert!(a.proxy.is_idle());
        b.proxy.sends_at(at(500));
        assert!(!b.proxy.is_idle() && a.proxy.is_idle(), "a has not looked again");
        a.proxy.sends_at(at(1000));
        assert!(!a.proxy.is_idle());
        a.proxy.sends_at(at(10_499));
        assert!(!a.proxy.is_idle());
        a.proxy.sends_at(at(11_499));
        assert!(a.proxy.is_idle(), "b has not sent for 10 ms");
    }

    #[test]
    fn an_endpoint_that_sends_no_more_has_its_queue_served_by_the_next_that_sends() {
        let (directory, switch) = quiet();
        let mut to = switch.open(60);
        let [mut a, mut b] = [1, 2].map(|port| Member::open(&directory, &switch, port, DOMAIN));
        let at = |us: u64| Instant(SERVER_HOLD_NS + 1000 * us);
        b.proxy.sends_at(at(0));
        b.add(60, 7).unwrap(); // and it computes
        a.proxy.sends_at(at(20_000));
        assert!(!a.proxy.is_idle());
        a.add(60, 8).unwrap();
        a.serve().unwrap();
        assert_eq!((arrivals(&mut to), b.proxy.is_empty()), (vec![(1, 7), (1, 8)], true));
        a.proxy.sends_at(at(21_000));
        assert!(a.proxy.is_idle(), "nothing is left of b");
    }

    #[test]
    fn queues_take_turns_unless_a_server_drains_them_and_a_service_has_an_end() {
        for (drains, for_others) in [(false, BATCH), (true, 2 * BATCH - 100)] {
            let (directory, switch) = quiet();
            let mut to = switch.open(60);
            let mut members = [1, 2].map(|port| Member::open(&directory, &switch, port, DOMAIN));
            members[0].proxy.drains = drains;
            for member in &mut members {
                (0..100).for_each(|byte| assert!(member.add(60, byte).is_ok()));
            }
            let Member { proxy, network, outgoing, .. } = &mut members[0];
            let mut left = 2 * BATCH;
            proxy.serve_in_turn(network, outgoing, &mut left).unwrap();
            outgoing.flush(network).unwrap();
            assert_eq!((left, arrivals(&mut to).len()), (0, 2 * BATCH as usize));
            assert_eq!(proxy.counters().sent_for_others, u64::from(for_others));
        }
    }

    #[test]
    fn a_datagram_waits_until_it_is_taken_and_one_without_room_is_not_written() {
        let (directory, switch) = quiet();
        let mut member = Member::open(&directory, &switch, 1, DOMAIN);
        let [first, second] = [1, 2].map(|byte| member.add(60, byte).unwrap());
        assert!(member.proxy.waits(first) && member.proxy.waits(second));
        let Member { proxy, network, outgoing, .. } = &mut member;
        proxy.take_from(0, 1, network, outgoing).unwrap();
        assert!(!member.proxy.waits(first) && member.proxy.waits(second));
        member.serve().unwrap();
        assert!(!member.proxy.waits(second));
        let added = (0..2000).take_while(|_| member.add(60, 1).is_ok()).count() as u64;
        assert!((500..600).contains(&added), "64 KiB for {added} of 100 B");
        let written = member.proxy.add(&[60, 0], 100, |_| panic!("there is no room"));
        assert_eq!(written, Err(LinkBusy));
        let ProxyCounters { queued, without_room, .. } = member.proxy.counters();
        assert_eq!((queued, without_room), (2 + added, 2));
    }

    #[test]
    fn what_another_server_takes_while_it_is_copied_leaves_once() {
        use std::{cell::RefCell, rc::Rc};
        for access in 0..60 {
            let (directory, switch) = quiet();
            let mut to = switch.open(60);
            let [mut server, other] = [1, 2].map(|port| Member::open(&directory, &switch, port, DOMAIN));
            (10..13).for_each(|byte| assert!(server.add(60, byte).is_ok()));
            let taken = Rc::new(RefCell::new(Vec::new()));
            let others = Rc::clone(&taken);
            before_access(access, move || {
                while let Some(first) = other.proxy.queues.first(0) {
                    let mut datagram = Vec::new();
                    first.append_datagram(&mut datagram);
                    assert!(first.take());
                    others.borrow_mut().push((0, datagram[0]));
                }
            });
            server.serve().unwrap();
            server.outgoing.flush(&mut server.network).unwrap();
            let mut all = arrivals(&mut to);
            all.extend(taken.take());
            let mut bytes: Vec<u8> = all.into_iter().map(|(_, byte)| byte).collect();
            bytes.sort_unstable();
            assert_eq!(bytes, [10, 11, 12], "{access}");
        }
    }

    #[test]
    fn what_the_network_refuses_leaves_later_and_once() {
        let (directory, switch) = quiet();
        let mut to = switch.open(60);
        let mut members = [1, 2].map(|port| Member::open(&directory, &switch, port, DOMAIN));
        for byte in 0..20 {
            members[0].add(60 + u16::from(byte) % 2, byte).unwrap(); // nothing joins what goes elsewhere
        }
        switch.impair(Impairments { refused: 1000, ..Impairments::default() });
        assert_eq!(members[0].serve(), Err(LinkBusy));
        assert!(!members[0].proxy.is_empty() && arrivals(&mut to).is_empty());
        switch.impair(Impairments::default());
        // The other one takes what is in the queue still; what the first one has taken, it sends itself.
        members[1].add(60, 99).unwrap();
        members[1].serve().unwrap();
        members[0].serve().unwrap();
        members[0].outgoing.flush(&mut members[0].network).unwrap();
        let mut bytes: Vec<u8> = arrivals(&mut to).into_iter().map(|(_, byte)| byte).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 99]);
    }

    #[test]
    fn an_endpoint_that_leaves_sends_what_is_in_its_queue_and_a_new_one_begins_empty() {
        let (directory, switch) = quiet();
        let mut to = switch.open(60);
        let mut members = [1, 2].map(|port| Member::open(&directory, &switch, port, DOMAIN));
        members[0].add(60, 7).unwrap();
        assert!(members[1].proxy.queues.try_serve(members[1].network.host_time()));
        let Member { proxy, network, outgoing, .. } = &mut members[0];
        proxy.leave(network, outgoing);
        outgoing.flush(network).unwrap();
        assert_eq!(arrivals(&mut to), [(1, 7)]);
        let [_, mut second] = members;
        // One that has died with a datagram in its queue.
        let dead = Member::open(&directory, &switch, 4, DOMAIN);
        dead.proxy.queues.put(&60_u16.to_le_bytes(), &[8; 100]);
        let Member { proxy, _node: node, .. } = dead;
        let again = ProxyQueues::open(&node.handle(), 1, DOMAIN).unwrap().unwrap();
        drop(proxy);
        assert!(again.is_empty());
        second.add(60, 6).unwrap();
        second.serve().unwrap();
        assert_eq!(arrivals(&mut to), [(2, 6)]);
    }
}
