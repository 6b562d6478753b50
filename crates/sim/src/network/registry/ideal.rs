//! The keys of an ideal network in network files, and the model that they describe.

use super::{Nanoseconds, NetworkInfo, NetworkKeys, Nodes, Shape, TIME};
use crate::network::ideal::Ideal;

keys! {
    /// Keys of `[network]`.
    IdealKeys {
        latency_ns: Nanoseconds = TIME, "100.0", "From the processor of the sender to the mailbox.";
        byte_ns: Nanoseconds = TIME, "100.0", "One byte on the wire.";
    }
}

impl NetworkKeys for IdealKeys {
    type Network = Ideal;

    const INFO: NetworkInfo = NetworkInfo {
        name: "ideal",
        about: "A latency and a bandwidth, without contention.",
        page: "explanation/simulator.md",
        keys: IdealKeys::KEYS,
        nodes: Nodes::None,
        geometry: None,
        repairs: false,
        has_cost: true,
        assumes_receive_call: false,
    };

    fn check(&self) -> Result<(), (&'static str, String)> {
        self.check_ranges()
    }

    fn network(&self, _: Shape) -> Ideal {
        Ideal::new(self.latency_ns.0, self.byte_ns.0)
    }
}
