//! Every key of a plan and every scheme, as the reference page lists them.
//!
//! The structs that read a file decide what is allowed; this table describes it. The tests compare both: names, values
//! of enumerations, which keys are required, and defaults. The keys of network files are in
//! [`crate::network::registry`], and are exported from here too.

mod workload;

pub use crate::keys::{KeyInfo, Presence, Section, Value};
pub use crate::network::registry::{COSTS, NETWORKS, NIC};
pub use workload::{GOAL, WORKLOADS};

impl Section {
    /// Names of the measures that a workload records, the one that tables show as *time* first. Empty for
    /// other sections.
    pub fn records(&self) -> &'static [&'static str] {
        let example = format!("[{}]\n{}", self.name, self.example());
        toml::from_str::<crate::workload::Workload>(&example).map_or(&[], |workload| workload.records())
    }

    /// The required keys with their examples, as TOML.
    pub fn example(&self) -> String {
        let required = self.keys.iter().filter(|key| key.presence == Presence::Required);
        required.map(|key| format!("{} = {}\n", key.name, key.example)).collect()
    }
}

const TEXT: Value = Value::Words("text");
const SWITCH: Value = Value::Words("true or false");
const BYTES: Value = Value::Words("bytes, at most 2^40");
const PER_MILLION: Value = Value::Words(
    "packets per million, at most 500000; 0 where links do not retransmit and ranks have no `reliability`",
);
const NANOSECONDS: Value = Value::Words("ns, a whole number of at most 10^12");

/// Keys at the top of a plan.
pub const TOP: &[KeyInfo] = &[
    KeyInfo::required("title", TEXT, "\"An example\"", "What the plan shows, in one line."),
    KeyInfo::required(
        "experiment",
        TEXT,
        "\"mine\"",
        "The experiment whose points use the records, such as `E1.2`; choose any other name for your own.",
    ),
    KeyInfo::required("source", TEXT, "\"my own question\"", "Where the experiment was published."),
    KeyInfo::optional(
        "seeds",
        Value::Words("a list of whole numbers"),
        "[1]",
        "allowed only in a plan without `[[sweep]]`",
        "Each world runs once with each seed.",
    ),
    KeyInfo::optional(
        "memory_peers",
        Value::Words("a list of whole numbers, each 64 to 4194304"),
        "[1024]",
        "memory is not measured",
        "Numbers of peers for which a receiver's memory is measured.",
    ),
    KeyInfo::with_default(
        "reference",
        SWITCH,
        "true",
        "Each world is compared with the same world without flow control, which runs too.",
    ),
    KeyInfo::optional(
        "base",
        Value::Words("a table"),
        "{}",
        "each sweep has all keys",
        "Keys that all sweeps share.",
    ),
    KeyInfo::optional(
        "sweep",
        Value::Words("a list of tables, `[[sweep]]`"),
        "[]",
        "allowed only with `memory_peers`",
        "Each table is laid over `base`. A list in it is a list of alternatives: each combination is a world.",
    ),
    KeyInfo::optional(
        "quick",
        Value::Words("a table with `seeds`, `memory_peers`, `base` or `sweep`"),
        "{}",
        "`--quick` changes nothing",
        "What `--quick` changes: `base` is laid over the plan's, the others replace it.",
    ),
];

/// Keys of `base` and of each sweep.
pub const SWEEP: &[KeyInfo] = &[
    KeyInfo::required(
        "network",
        Value::Words("a table with `file`"),
        "{ file = \"infiniband\" }",
        "The network: `file` is a name in `experiments/networks`; every other key replaces that key of the file.",
    ),
    KeyInfo::optional(
        "cost",
        Value::Words("a table"),
        "{ match_ns = 100.0 }",
        "as in the network's file",
        "Replaces keys of the file's `[cost]`.",
    ),
    KeyInfo::optional(
        "nic",
        Value::Words("a table"),
        "{ packet_send_ns = 1000.0, send_ns_per_kib = 0.0, packet_receive_ns = 1000.0, copy_send_ns = 300.0, \
         get_ns = 500.0, host_read_ns = 0.0, host_write_ns = 0.0, word_ns = 0.0, copy_ns_per_kib = 0.0, combine_ns_per_kib = 0.0, \
         float_combine_ns_per_kib = 0.0 }",
        "as in the network's file; without `[nic]` there, NICs have no processor of their own",
        "Prices of a processor on each NIC; see below.",
    ),
    KeyInfo::required(
        "workload",
        Value::Words("a table with one key, the name of a workload"),
        "{ latency = { message_bytes = 8, round_trips = 10 } }",
        "What the ranks do. A workload of another name replaces the one in `base`.",
    ),
    KeyInfo::required("ranks", Value::Words("1 to 1048576"), "8", "Ranks of the world."),
    KeyInfo::optional(
        "ranks_per_node",
        Value::Words("a whole number"),
        "1",
        "1 on networks with nodes",
        "Ranks on each node. Networks without nodes refuse the key.",
    ),
    KeyInfo::optional(
        "mesh_nodes",
        Value::Words("text, such as `4x4x1`; each side is 1 to 64"),
        "\"4x2x1\"",
        "required on networks whose nodes form a mesh, refused on others",
        "Nodes along x, y and z. Nodes times `ranks_per_node` are the ranks.",
    ),
    KeyInfo::required(
        "scheme",
        Value::OneOf(&[
            "unlimited",
            "hardware",
            "static",
            "static-connection",
            "adaptive",
            "dynamic",
            "weir",
            "demand",
        ]),
        "\"static\"",
        "Flow control; see the table below.",
    ),
    KeyInfo::with_default(
        "piggyback",
        SWITCH,
        "false",
        "Credits return with data packets too. Allowed with `static` and `dynamic`; `weir` always does it.",
    ),
    KeyInfo::optional(
        "slots_per_peer",
        Value::Words("slots, at most 65536; at least twice `credit_slots` where the scheme has those"),
        "30",
        "required by every scheme except `unlimited`",
        "Slots that a receiver sets aside for each rank, credit slots included.",
    ),
    KeyInfo::with_default(
        "credit_slots",
        Value::Words("slots, 1 to 16"),
        "2",
        "How many of these slots are for explicit credit packets. Used by `static`, `dynamic` and `weir`.",
    ),
    KeyInfo::with_default(
        "eager_bytes",
        Value::Words("bytes, at most 1048576"),
        "2048",
        "Longest message that is sent eagerly. Longer messages use a rendezvous.",
    ),
    KeyInfo::with_default(
        "start_skew_ns",
        NANOSECONDS,
        "0",
        "Each rank starts later than time 0 by a random time of at most this.",
    ),
    KeyInfo::with_default(
        "rnr_timer_ns",
        NANOSECONDS,
        "20000",
        "How long a sender waits after an RNR NAK. Used by `hardware`.",
    ),
    KeyInfo::with_default(
        "start_slots",
        Value::Words("slots, 1 to `slots_per_peer`"),
        "4",
        "Slots that each sender owns at first, at most `slots_per_peer`. Used by `adaptive`.",
    ),
    KeyInfo::optional(
        "reliability",
        Value::Words("a table"),
        "{ min_timeout_ns = 200000 }",
        "a dropped packet ends the world with an error",
        "Ranks of different hosts send over reliable paths; see below. Allowed on `switched`.",
    ),
    KeyInfo::optional(
        "faults",
        Value::Words("a table"),
        "{ link_jitter_ns = 100 }",
        "there are no faults",
        "Faults of links and ranks; see below.",
    ),
];

/// Keys of the table `reliability`.
pub const RELIABILITY: Section = Section {
    name: "reliability",
    about: "A path sends lost packets again, and lowers its congestion window for losses and marks. `reliability = {}` has the \
            values of the provider. With it, faults of links may lose, duplicate and reorder packets.",
    keys: &[
        KeyInfo::with_default(
            "window_packets",
            Value::Words("packets, a power of two, 64 to 65536"),
            "256",
            "Packets of a path that are not acknowledged. The congestion window begins with as many.",
        ),
        KeyInfo::with_default(
            "grant_packets",
            Value::Words("packets; 0: as many as the window"),
            "0",
            "Packets that a path may have under way, whatever its congestion window is.",
        ),
        KeyInfo::with_default("min_timeout_ns", NANOSECONDS, "200000", "The shortest timeout."),
        KeyInfo::with_default(
            "acknowledgement_delay_ns",
            NANOSECONDS,
            "50000",
            "The time that an acknowledgement waits for a packet to ride on. A sender that needs none soon doubles it up to four times.",
        ),
    ],
};

/// Keys of the table `faults`.
pub const FAULTS: Section = Section {
    name: "faults",
    about: "Faults of links are drawn from the seed. The list of a key is one value, so it has double brackets: \
            `slow = [[{ rank = 1, percent = 300 }]]`.",
    keys: &[
        KeyInfo::with_default(
            "loss_per_million",
            PER_MILLION,
            "0",
            "Packets that are lost on a link. The link sends them again, and the packets behind them wait.",
        ),
        KeyInfo::with_default(
            "duplication_per_million",
            PER_MILLION,
            "0",
            "Packets that arrive twice. The link discards one.",
        ),
        KeyInfo::with_default(
            "reordering_per_million",
            PER_MILLION,
            "0",
            "Packets that arrive behind later ones. The link restores the order.",
        ),
        KeyInfo::with_default(
            "link_jitter_ns",
            NANOSECONDS,
            "0",
            "Each packet and each remote get takes longer by a random time of at most this.",
        ),
        KeyInfo::with_default(
            "slow",
            Value::Words("a list of tables with `rank` and `percent`"),
            "[]",
            "Ranks whose processors are slow: 300 percent is three times the time.",
        ),
        KeyInfo::with_default(
            "pauses",
            Value::Words("a list of tables with `rank`, `at_ns` and `pause_ns`"),
            "[]",
            "Ranks that pause.",
        ),
        KeyInfo::with_default(
            "crashes",
            Value::Words("a list of tables with `rank` and `at_ns`"),
            "[]",
            "Ranks that crash. A workload that waits for a crashed rank can fail.",
        ),
        KeyInfo::with_default(
            "notice_ns",
            NANOSECONDS,
            "0",
            "Time from a crash until the other ranks learn of it.",
        ),
    ],
};

/// Flow-control schemes of [`SWEEP`]: name and meaning.
pub const SCHEMES: &[(&str, &str)] = &[
    ("unlimited", "No flow control; mailboxes grow as needed. It is the reference of all others."),
    (
        "hardware",
        "No credits: a receiver without a buffer answers RNR NAK, and the sender tries again (Liu & Panda).",
    ),
    ("static", "Each sender has a fixed share of the mailbox, with credits (Prades, chapter 5)."),
    ("static-connection", "Pre-posted buffers for each connection, with credits (Liu & Panda)."),
    (
        "adaptive",
        "As `static-connection`; a receiver posts more buffers when a sender had to wait (Liu & Panda).",
    ),
    ("dynamic", "The mailbox moves slots to the senders that use them, as published (Prades, chapter 6)."),
    ("weir", "The provider's dynamic credits: piggybacking, a share at first contact."),
    (
        "demand",
        "The provider's default: senders say what they need, and receivers lend free slots; sizes as with `weir`.",
    ),
];

#[cfg(test)]
mod tests;
