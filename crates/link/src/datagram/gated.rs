//! Admission in the link: which packets ask the gate ([`SendGate`]), which bundles count, and who is the next.

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
    /// How the gate lets an item of `path` pass at `now` that begins `bundles` bundles.
    ///
    /// # Errors
    /// [`LinkBusy`]: it holds the item back.
    pub(super) fn passage(
        &mut self,
        path: u32,
        bundles: u32,
        item: &Item<'_>,
        now: Instant,
    ) -> Result<Passage, LinkBusy> {
        let Shared { network, gate, .. } = self;
        let Some(gate) = gate else { return Ok(Passage::Free) };
        if !item.asks || bundles == 0 {
            return Ok(gate.unasked());
        }
        let bytes = message_bytes(item);
        if gate.ignores(bytes) {
            return Ok(Passage::Free);
        }
        gate.passage(network.host_time_at(now), path, bundles, bytes).ok_or(LinkBusy)
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
        self
    }

    /// The proxy, if there is one.
    pub fn proxy(&self) -> Option<&SendProxy> {
        self.shared.proxy.as_deref()
    }

    /// Whether the gate holds packets back. Peers that acknowledge nothing hold no tokens any more.
    pub(super) fn holds_back(&mut self) -> bool {
        let DatagramLink { shared, paths, busy, .. } = self;
        let Some(gate) = shared.gate.as_mut().filter(|gate| gate.has_waiting()) else { return false };
        let now = shared.network.host_time();
        if busy.is_empty() {
            gate.end_wait(now); // the peer to which it would have gone is lost, or has nothing to send any more
            return false;
        }
        if gate.must_search(now) {
            for path in paths.iter_mut().flatten() {
                if path.io.counted > 0 && now.since_ns(path.io.moved_at) >= HOLD_NS {
                    path.io.release(shared);
                }
            }
        }
        shared.gate.as_mut().is_some_and(|gate| !gate.may_resume(now))
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
            let now = if is_over { gate.took_at().max(self.moved_at) } else { shared.network.host_time() };
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
    /// Begins `bundles` bundles more at `now`, the last of which is open, for a packet that passes the gate in this way.
    pub(super) fn count<N: DatagramNetwork<Place = P>>(
        &mut self,
        bundles: u32,
        passage: Passage,
        now: Instant,
        shared: &mut Shared<N>,
    ) {
        if bundles == 0 || passage == Passage::Free {
            return;
        }
        let Some(gate) = &mut shared.gate else { return };
        let now = shared.network.host_time_at(now);
        let io = &mut self.io;
        io.moved_at = now;
        io.counted += bundles;
        io.counted_before = self.machine.next_position() + 1;
        gate.took(now, bundles, passage == Passage::Admitted);
    }
}

#[cfg(test)]
mod tests {
    use super::super::lossy::{Impairments, Switch};
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

    #[test]
    fn the_driver_of_a_path_knows_which_of_its_bundles_wait_in_the_queue_of_the_proxy() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let mailbox = ShmLink::open(&for_tests(directory.path())).unwrap();
        let node = NodeSegment::join(&mailbox, JobKey::new(&"a job")).unwrap();
        let switch = Switch::new(1, Impairments::default());
        let open = |number: u16| {
            let options = DatagramOptions::new(Quota { data_slots: 100, start_slots: 10, credit_slots: 2 });
            DatagramLink::open(&Address::new(number.into(), [7; 16]), switch.open(number), options)
        };
        let mut link = open(1).with_proxy(SendProxy::open(&node.handle(), 1, false, 5));
        let id = link.path_to(&open(2).address).unwrap();
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
    fn the_driver_of_a_path_knows_what_waits_for_acknowledgements() {
        let switch = Switch::new(1, Impairments::default());
        let options = DatagramOptions::new(Quota { data_slots: 100, start_slots: 10, credit_slots: 2 });
        let open = |number: u16| {
            DatagramLink::open(&Address::new(number.into(), [7; 16]), switch.open(number), options)
        };
        let mut link = open(1);
        let id = link.path_to(&open(2).address).unwrap();
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
        let buffers = options.most_copies / 2 + 1;
        let taken: Vec<_> = (0..buffers).map_while(|held| driver.shared.copies.take(held)).collect();
        assert!(taken.len() == buffers && driver.awaits_acknowledgement(), "the memory of copies");
        taken.into_iter().for_each(|buffer| driver.shared.copies.give(buffer));
        assert!(!driver.awaits_acknowledgement());
    }
}
