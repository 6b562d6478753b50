//! Admission in the link: which packets ask the gate ([`SendGate`]), which bundles count, and who is the next.

use super::appending::Item;
use super::link::{DatagramLink, Shared};
use super::network::DatagramNetwork;
use super::path::{Path, PathIo};
use super::send_gate::{Passage, SendGate};
use super::send_proxy::SendProxy;
use weir_proto::admission::HOLD_NS;
use weir_proto::{Body, LinkBusy};

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
    /// How the gate lets an item of `path` pass that begins `bundles` bundles.
    ///
    /// # Errors
    /// [`LinkBusy`]: it holds the item back.
    pub(super) fn passage(&mut self, path: u32, bundles: u32, item: &Item<'_>) -> Result<Passage, LinkBusy> {
        let Shared { network, gate, .. } = self;
        let Some(gate) = gate else { return Ok(Passage::Free) };
        if !item.asks || bundles == 0 {
            return Ok(gate.unasked());
        }
        let bytes = message_bytes(item);
        if gate.ignores(bytes) {
            return Ok(Passage::Free);
        }
        gate.passage(network.host_time(), path, bundles, bytes).ok_or(LinkBusy)
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
            let now = shared.network.host_time();
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
    /// Begins `bundles` bundles more, the last of which is open, for a packet that passes the gate in this way.
    pub(super) fn count<N: DatagramNetwork<Place = P>>(
        &mut self,
        bundles: u32,
        passage: Passage,
        shared: &mut Shared<N>,
    ) {
        if bundles == 0 || passage == Passage::Free {
            return;
        }
        let Some(gate) = &mut shared.gate else { return };
        let now = shared.network.host_time();
        let io = &mut self.io;
        io.moved_at = now;
        io.counted += bundles;
        io.counted_before = self.machine.next_position() + 1;
        gate.took(now, bundles, passage == Passage::Admitted);
    }
}
