//! The keys of an EXTOLL network in network files, and how they become an [`Extoll`]. [`ExtollWires`] has those that a
//! calibration can fit. [`Model::extoll_neighbour_ps`] is the time of one packet between neighbours.

use weir_proto::Geometry;

use super::{Model, Nanoseconds, NetworkInfo, NetworkKeys, Nodes, Shape, TIME};
use crate::Picoseconds;
use crate::keys::Value;
use crate::network::extoll::{Extoll, Parameters};

const PACKETS: Value = Value::Number { unit: "packets", least: 1 };

keys! {
    /// Keys of `[network]`.
    ExtollKeys {
        link_packet_ns: Nanoseconds = TIME, "100.0", "A packet on a link.";
        hop_ns: Nanoseconds = TIME, "100.0",
            "From the start of a packet on a link until the next router can forward it.";
        inject_packet_ns: Nanoseconds = TIME, "100.0",
            "A packet from the NIC queue to the node's router. All ranks of a node share it.";
        eject_packet_ns: Nanoseconds = TIME, "100.0",
            "A packet from the node's router to memory. All ranks of a node share it.";
        ends_ns: Nanoseconds = TIME, "100.0",
            "Latency of a packet at both ends together, beside the other times.";
        buffer_packets: u32 = PACKETS, "16", "Packets that a router buffers for each incoming link.";
        nic_packets: u32 = PACKETS, "16",
            "Packets of one rank that its NIC holds before the processor has to wait.";
        get_byte_ns: Nanoseconds = TIME, "100.0", "One byte of a remote get on the wire.";
        get_ns: Nanoseconds = TIME, "100.0", "Set-up of a remote get at both ends.";
    }
}

impl NetworkKeys for ExtollKeys {
    type Network = Extoll;

    const INFO: NetworkInfo = NetworkInfo {
        name: "extoll",
        about: "A mesh of nodes, with links that carry packets of 64 bytes.",
        page: "explanation/fidelity/extoll.md",
        keys: ExtollKeys::KEYS,
        nodes: Nodes::Mesh,
        geometry: Some(Geometry::EXTOLL),
        repairs: true,
        has_cost: true,
        assumes_receive_call: false, // the fitted price of a packet contains it
    };

    fn check(&self) -> Result<(), (&'static str, String)> {
        self.check_ranges()
    }

    fn network(&self, shape: Shape) -> Extoll {
        Extoll::new(self.parameters(shape))
    }
}

impl ExtollKeys {
    /// The parameters of an EXTOLL of this shape.
    pub fn parameters(&self, shape: Shape) -> Parameters {
        let Shape { mesh, ranks_per_node, mailbox_slots, .. } = shape;
        Parameters {
            mesh,
            ranks_per_node,
            link_packet_ps: self.link_packet_ns.0,
            hop_ps: self.hop_ns.0,
            inject_packet_ps: self.inject_packet_ns.0,
            eject_packet_ps: self.eject_packet_ns.0,
            ends_ps: self.ends_ns.0,
            buffer_packets: self.buffer_packets,
            nic_packets: self.nic_packets,
            mailbox_slots,
            get_byte_ps: self.get_byte_ns.0,
            get_ps: self.get_ns.0,
        }
    }
}

/// The parameters of EXTOLL links that a calibration can fit. Sources state the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtollWires {
    /// [`Parameters::link_packet_ps`].
    pub link_packet_ps: Picoseconds,
    /// [`Parameters::hop_ps`].
    pub hop_ps: Picoseconds,
}

impl Model {
    /// The link parameters that a calibration can fit; `None` if the file describes another network.
    pub fn extoll_wires(&self) -> Option<ExtollWires> {
        let ExtollKeys { link_packet_ns, hop_ns, .. } = self.keys()?;
        Some(ExtollWires { link_packet_ps: link_packet_ns.0, hop_ps: hop_ns.0 })
    }

    /// Time of a packet from the processor of a node to the mailbox of a neighbour, without queues; `None` if the file
    /// describes another network.
    pub fn extoll_neighbour_ps(&self) -> Option<Picoseconds> {
        let ExtollKeys { hop_ns, inject_packet_ns, eject_packet_ns, ends_ns, .. } = self.keys()?;
        Some(hop_ns.0 + inject_packet_ns.0 + eject_packet_ns.0 + ends_ns.0)
    }

    /// The same model with other link parameters. A model of another network stays as it is.
    #[must_use]
    pub fn with_extoll_wires(self, wires: ExtollWires) -> Model {
        let Some(keys) = self.keys::<ExtollKeys>() else { return self };
        let link_packet_ns = Nanoseconds(wires.link_packet_ps);
        self.with_keys(ExtollKeys { link_packet_ns, hop_ns: Nanoseconds(wires.hop_ps), ..keys })
    }
}
