//! The keys of a LogGOPS network in network files, and the model that they describe. A file has no `[cost]`: the
//! model's `o` is the price of the processor.

use super::{Nanoseconds, NetworkInfo, NetworkKeys, Nodes, Shape, TIME};
use crate::cost::Cost;
use crate::keys::Value;
use crate::network::loggops::{LogGops, Parameters};

keys! {
    /// Keys of `[network]`.
    LoggopsKeys {
        latency_ns: Nanoseconds = TIME, "100.0", "L: latency.";
        overhead_ns: Nanoseconds = TIME, "100.0",
            "o: processor time of a send or a receive; at least `gap_byte_ns`.";
        gap_ns: Nanoseconds = TIME, "100.0", "g: time between two messages of a rank.";
        gap_byte_ns: Nanoseconds = TIME, "100.0", "G: time of each further byte.";
        eager_bytes: u64 = Value::Number { unit: "bytes", least: 0 }, "65535",
            "S: longest message that is sent eagerly.";
    }
}

impl NetworkKeys for LoggopsKeys {
    type Network = LogGops;

    const INFO: NetworkInfo = NetworkInfo {
        name: "loggops",
        about: "The LogGOPS model. A file of this kind has no `[cost]`: processors spend `overhead_ns`.",
        page: "explanation/fidelity/goal.md",
        keys: LoggopsKeys::KEYS,
        nodes: Nodes::None,
        geometry: None,
        repairs: false,
        has_cost: false,
        assumes_receive_call: false,
    };

    fn check(&self) -> Result<(), (&'static str, String)> {
        self.check_ranges()?;
        if self.overhead_ns.0 < self.gap_byte_ns.0 {
            let what = String::from("overhead_ns is less than gap_byte_ns; allowed: at least gap_byte_ns");
            return Err(("overhead_ns", what));
        }
        Ok(())
    }

    fn cost(&self) -> Option<Cost> {
        Some(self.parameters().cost())
    }

    fn network(&self, shape: Shape) -> LogGops {
        LogGops::new(self.parameters(), shape.ranks)
    }
}

impl LoggopsKeys {
    /// The parameters of the model.
    pub fn parameters(&self) -> Parameters {
        Parameters {
            latency_ps: self.latency_ns.0,
            overhead_ps: self.overhead_ns.0,
            gap_ps: self.gap_ns.0,
            gap_byte_ps: self.gap_byte_ns.0,
            eager_bytes: self.eager_bytes,
        }
    }
}
