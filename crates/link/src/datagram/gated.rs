//! The gate of admission in the link ([`SendGate`]): which packets ask it, which bundles count, and who is the next.

use super::link::{DatagramLink, Shared};
use super::network::DatagramNetwork;
use super::path::{Path, PathIo};
use super::send_gate::SendGate;
use weir_proto::admission::HOLD_NS;

impl<N: DatagramNetwork> Shared<N> {
    /// Whether the gate lets a packet of `path` pass that begins `bundles` bundles.
    pub(super) fn admits(&mut self, path: u32, bundles: u32) -> bool {
        let Shared { network, gate, .. } = self;
        gate.as_mut().is_none_or(|gate| gate.may_pass(network.host_time(), path, bundles))
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

    /// Whether the gate holds packets back. Peers that acknowledge nothing hold no tokens any more.
    pub(super) fn holds_back(&mut self) -> bool {
        let DatagramLink { shared, paths, busy, .. } = self;
        let Some(gate) = &mut shared.gate else { return false };
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
        let Some(gate) = &mut shared.gate else { return };
        let held = (self.copies.len() + usize::from(self.open.is_some())) as u32;
        if let Some(fewer) = self.counted.checked_sub(held).filter(|fewer| *fewer > 0) {
            let now = shared.network.host_time();
            (self.counted, self.moved_at) = (held, now);
            gate.gave_back(now, fewer);
        }
    }

    /// The bundles of this path count no more at the gate.
    pub(super) fn release<N: DatagramNetwork<Place = P>>(&mut self, shared: &mut Shared<N>) {
        if let Some(gate) = &mut shared.gate {
            gate.gave_back(shared.network.host_time(), std::mem::take(&mut self.counted));
        }
    }
}

impl<P: Copy> Path<P> {
    /// Begins `bundles` bundles more. `asked`: for a packet that has asked the gate.
    pub(super) fn count<N: DatagramNetwork<Place = P>>(
        &mut self,
        bundles: u32,
        asked: bool,
        shared: &mut Shared<N>,
    ) {
        let Some(gate) = &mut shared.gate else { return };
        let now = shared.network.host_time();
        if bundles > 0 {
            self.io.moved_at = now;
        }
        self.io.counted += bundles;
        gate.took(now, bundles, asked);
    }
}
