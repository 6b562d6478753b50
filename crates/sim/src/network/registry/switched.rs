//! The keys of a switched Ethernet in network files, and the model that they describe.

use super::infiniband::check_tree;
use super::{Nanoseconds, NetworkInfo, NetworkKeys, Nodes, Shape, TIME};
use crate::keys::Value;
use crate::network::fat_tree::FatTree;
use crate::network::switched::{GEOMETRY, Parameters, Switched};

keys! {
    /// Keys of `[network]`.
    SwitchedKeys {
        arity: u32 = Value::Number { unit: "", least: 2 }, "8", "Hosts or switches below each switch.";
        levels: u32 = Value::Words("at least 1; `arity` to this power is at most 1048576"), "1",
            "Levels of switches.";
        packet_header_bytes: u32 = Value::Number { unit: "bytes", least: 0 }, "106",
            "Header that a link carries with each packet, beside weir's own.";
        link_byte_ns: Nanoseconds = TIME, "100.0", "One byte on a link.";
        hop_ns: Nanoseconds = TIME, "100.0",
            "From the end of a packet on a link until it enters the queue behind the link.";
        ends_ns: Nanoseconds = TIME, "100.0", "Latency of a packet at both ends together, beside the other times.";
        queue_packets: u32 = Value::Number { unit: "packets; 0: as many as needed", least: 0 }, "0",
            "Packets that the queue of a switch port holds. A packet that finds it full is dropped. Then the world ends with an error, unless the plan has `reliability`.";
        mark_packets: u32 = Value::Number { unit: "packets; 0: none", least: 0 }, "0",
            "A packet that finds as many packets in the queue of a switch port is marked.";
    }
}

impl NetworkKeys for SwitchedKeys {
    type Network = Switched;

    const INFO: NetworkInfo = NetworkInfo {
        name: "switched",
        about: "Ethernet: a fat tree of switches that store and forward, with a queue for each port. Nothing holds a sender back.",
        page: "explanation/simulator.md",
        keys: SwitchedKeys::KEYS,
        nodes: Nodes::Hosts,
        geometry: Some(GEOMETRY),
        repairs: false,
        has_cost: true,
        assumes_receive_call: false,
    };

    fn check(&self) -> Result<(), (&'static str, String)> {
        check_tree(self.arity, self.levels)?;
        self.check_ranges()?;
        let SwitchedKeys { queue_packets, mark_packets, .. } = *self;
        if queue_packets > 0 && mark_packets >= queue_packets {
            let what = format!(
                "mark_packets is {mark_packets}, and such a queue is full already; allowed: less than queue_packets, {queue_packets}"
            );
            return Err(("mark_packets", what));
        }
        Ok(())
    }

    fn hosts(&self) -> Option<u32> {
        Some(self.tree().hosts())
    }

    fn network(&self, shape: Shape) -> Switched {
        Switched::new(self.parameters(shape.ranks_per_node))
    }
}

impl SwitchedKeys {
    fn tree(&self) -> FatTree {
        FatTree { arity: self.arity, levels: self.levels }
    }

    /// The parameters of a network with this number of ranks on a node.
    pub fn parameters(&self, ranks_per_node: u32) -> Parameters {
        Parameters {
            tree: self.tree(),
            ranks_per_node,
            packet_header_bytes: self.packet_header_bytes,
            link_byte_ps: self.link_byte_ns.0,
            hop_ps: self.hop_ns.0,
            ends_ps: self.ends_ns.0,
            queue_packets: self.queue_packets,
            mark_packets: self.mark_packets,
        }
    }
}
