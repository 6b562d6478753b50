//! The keys of an InfiniBand network in network files, and the model that they describe. The check of a tree of
//! switches also serves the switched Ethernet.

use super::{Nanoseconds, NetworkInfo, NetworkKeys, Nodes, Shape, TIME};
use crate::keys::Value;
use crate::network::fat_tree::FatTree;
use crate::network::infiniband::{GEOMETRY, InfiniBand, Parameters};

const MTU: Value = Value::Number { unit: "bytes", least: GEOMETRY.slot_bytes as u64 };

keys! {
    /// Keys of `[network]`.
    InfinibandKeys {
        arity: u32 = Value::Number { unit: "", least: 2 }, "8", "Hosts or switches below each switch.";
        levels: u32 = Value::Words("at least 1; `arity` to this power is at most 1048576"), "1",
            "Levels of switches.";
        mtu_bytes: u32 = MTU, "2048", "Payload that one packet carries at most.";
        packet_header_bytes: u32 = Value::Number { unit: "bytes", least: 0 }, "26",
            "Header that a link carries with each packet.";
        link_byte_ns: Nanoseconds = TIME, "100.0", "One byte on a link.";
        hop_ns: Nanoseconds = TIME, "100.0",
            "From the start of a packet on a link until the next switch can forward it.";
        buffer_packets: u32 = Value::Number { unit: "packets", least: 1 }, "4",
            "Packets that a port buffers for the link that leads to it.";
        host_byte_ns: Nanoseconds = TIME, "100.0", "One byte between adapter and memory.";
        host_packet_ns: Nanoseconds = TIME, "100.0", "Time that the adapter spends on each packet, at each end.";
        send_ns: Nanoseconds = TIME, "100.0", "Latency from the doorbell to the start of the DMA.";
        receive_ns: Nanoseconds = TIME, "100.0", "Latency from the last byte in memory to the completion entry.";
        read_ns: Nanoseconds = TIME, "100.0", "From the arrival of a read request to the start of the answer.";
        ack_timeout_ns: Nanoseconds = TIME, "100.0",
            "How long a connection waits for an acknowledgement before it sends again.";
    }
}

impl NetworkKeys for InfinibandKeys {
    type Network = InfiniBand;

    const INFO: NetworkInfo = NetworkInfo {
        name: "infiniband",
        about: "Adapters on a fat tree of switches.",
        page: "explanation/fidelity/infiniband.md",
        keys: InfinibandKeys::KEYS,
        nodes: Nodes::Hosts,
        geometry: Some(GEOMETRY),
        repairs: true,
        has_cost: true,
        assumes_receive_call: true,
    };

    fn check(&self) -> Result<(), (&'static str, String)> {
        check_tree(self.arity, self.levels)?;
        self.check_ranges()
    }

    fn hosts(&self) -> Option<u32> {
        Some(self.tree().hosts())
    }

    fn network(&self, shape: Shape) -> InfiniBand {
        InfiniBand::new(self.parameters(shape.ranks_per_node))
    }
}

/// Checks the size of a tree: a switch has at least two ports, and a tree has at most as many hosts as a world may have
/// ranks.
pub(super) fn check_tree(arity: u32, levels: u32) -> Result<(), (&'static str, String)> {
    let hosts = arity.checked_pow(levels).filter(|hosts| *hosts <= crate::MAX_RANKS);
    if arity >= 2 && levels >= 1 && hosts.is_some() {
        return Ok(());
    }
    let what = format!(
        "arity is {arity} and levels is {levels}; allowed: arity ^ levels from 2 to 2^20, arity at least 2"
    );
    Err(("arity", what))
}

impl InfinibandKeys {
    fn tree(&self) -> FatTree {
        FatTree { arity: self.arity, levels: self.levels }
    }

    /// The parameters of a network with this number of ranks on a node.
    pub fn parameters(&self, ranks_per_node: u32) -> Parameters {
        Parameters {
            tree: self.tree(),
            ranks_per_node,
            mtu_bytes: self.mtu_bytes,
            packet_header_bytes: self.packet_header_bytes,
            link_byte_ps: self.link_byte_ns.0,
            hop_ps: self.hop_ns.0,
            buffer_packets: self.buffer_packets,
            host_byte_ps: self.host_byte_ns.0,
            host_packet_ps: self.host_packet_ns.0,
            send_ps: self.send_ns.0,
            receive_ps: self.receive_ns.0,
            read_ps: self.read_ns.0,
            ack_timeout_ps: self.ack_timeout_ns.0,
        }
    }
}
