//! The keys of network files.

use super::{KeyInfo, Section, Value};

const TIME: Value = Value::Words("ns, at most 10^9");
const COUNT: Value = Value::Words("packets, at least 1");

const fn time(name: &'static str, meaning: &'static str) -> KeyInfo {
    KeyInfo::required(name, TIME, "100.0", meaning)
}

/// Kinds of networks, with the keys of `[network]`.
pub const NETWORKS: &[Section] = &[
    Section {
        name: "extoll",
        about: "A mesh of nodes, with links that carry packets of 64 bytes.",
        keys: &[
            time("link_packet_ns", "A packet on a link."),
            time("hop_ns", "From the start of a packet on a link until the next router can forward it."),
            time(
                "inject_packet_ns",
                "A packet from the NIC queue to the node's router. All ranks of a node share it.",
            ),
            time(
                "eject_packet_ns",
                "A packet from the node's router to memory. All ranks of a node share it.",
            ),
            time("ends_ns", "Latency of a packet at both ends together, beside the other times."),
            KeyInfo::required(
                "buffer_packets",
                COUNT,
                "16",
                "Packets that a router buffers for each incoming link.",
            ),
            KeyInfo::required(
                "nic_packets",
                COUNT,
                "16",
                "Packets of one rank that its NIC holds before the processor has to wait.",
            ),
            time("get_byte_ns", "One byte of a remote get on the wire."),
            time("get_ns", "Set-up of a remote get at both ends."),
        ],
    },
    Section {
        name: "ideal",
        about: "A latency and a bandwidth, without contention.",
        keys: &[
            time("latency_ns", "From the processor of the sender to the mailbox."),
            time("byte_ns", "One byte on the wire."),
        ],
    },
    Section {
        name: "infiniband",
        about: "Adapters on a fat tree of switches.",
        keys: &[
            KeyInfo::required(
                "arity",
                Value::Words("at least 2"),
                "8",
                "Hosts or switches below each switch.",
            ),
            KeyInfo::required(
                "levels",
                Value::Words("at least 1; `arity` to this power is at most 1048576"),
                "1",
                "Levels of switches.",
            ),
            KeyInfo::required(
                "mtu_bytes",
                Value::Words("bytes, at least one slot"),
                "2048",
                "Payload that one packet carries at most.",
            ),
            KeyInfo::required(
                "packet_header_bytes",
                Value::Words("bytes"),
                "26",
                "Header that a link carries with each packet.",
            ),
            time("link_byte_ns", "One byte on a link."),
            time("hop_ns", "From the start of a packet on a link until the next switch can forward it."),
            KeyInfo::required(
                "buffer_packets",
                COUNT,
                "4",
                "Packets that a port buffers for the link that leads to it.",
            ),
            time("host_byte_ns", "One byte between adapter and memory."),
            time("host_packet_ns", "Time that the adapter spends on each packet, at each end."),
            time("send_ns", "Latency from the doorbell to the start of the DMA."),
            time("receive_ns", "Latency from the last byte in memory to the completion entry."),
            time("read_ns", "From the arrival of a read request to the start of the answer."),
            time(
                "ack_timeout_ns",
                "How long a connection waits for an acknowledgement before it sends again.",
            ),
        ],
    },
    Section {
        name: "loggops",
        about: "The LogGOPS model. A file of this kind has no `[cost]`: processors spend `overhead_ns`.",
        keys: &[
            time("latency_ns", "L: latency."),
            time("overhead_ns", "o: processor time of a send or a receive; at least `gap_byte_ns`."),
            time("gap_ns", "g: time between two messages of a rank."),
            time("gap_byte_ns", "G: time of each further byte."),
            KeyInfo::required(
                "eager_bytes",
                Value::Words("bytes"),
                "65535",
                "S: longest message that is sent eagerly.",
            ),
        ],
    },
];

/// Keys of `[cost]`: prices of a rank's processor.
pub const COSTS: Section = Section {
    name: "cost",
    about: "The time that a rank's processor spends.",
    keys: &[
        time("send_call_ns", "A call of the program that begins a send."),
        time("receive_call_ns", "A call of the program that posts a receive."),
        time("packet_send_ns", "Handing one data packet to the network."),
        time("packet_receive_ns", "Taking one data packet from the mailbox and processing it."),
        time("credit_send_ns", "Sending one explicit credit packet."),
        time("credit_receive_ns", "Taking one explicit credit packet and processing it."),
        time("match_ns", "Matching one message with its receive."),
        time("copy_ns_per_kib", "Copying one KiB into the program's buffer."),
        time("unexpected_copy_ns_per_kib", "Copying one KiB of an unexpected message out of the slots."),
        time("get_ns", "Starting a remote get."),
        time("poll_ns", "Time between two polls of a waiting processor; 0: it sees at once what arrives."),
        time(
            "call_jitter_ns",
            "Mean of the random extra time of each send call and receive call. It is exponentially distributed and drawn \
             from the seed; 0: none, and all seeds give the same world.",
        ),
    ],
};
