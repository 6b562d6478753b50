//! The workloads of plans and their keys, as the reference page lists them.

use super::{BYTES, KeyInfo, NANOSECONDS, SWITCH, Section, TEXT, Value};

const COUNT: Value = Value::Words("a whole number of at most 10^9");
const RANKS: Value = Value::Words("ranks");
const LIBRARY: KeyInfo = KeyInfo::required(
    "library",
    Value::OneOf(&["mpich", "open_mpi"]),
    "\"mpich\"",
    "The MPI library whose collective algorithms are used.",
);
const CALLS: KeyInfo = KeyInfo::required("calls", COUNT, "2", "Calls that are timed.");
const WARMUP_CALLS: KeyInfo =
    KeyInfo::with_default("warmup_calls", COUNT, "0", "Calls before them that are not timed.");
const BARRIER: KeyInfo = KeyInfo::with_default(
    "barrier_each_call",
    SWITCH,
    "false",
    "A barrier follows each call; its time does not count.",
);
const TO_EACH_OTHER: KeyInfo =
    KeyInfo::required("message_bytes", BYTES, "2048", "Payload from each rank to each other rank.");
const EACH_MESSAGE: KeyInfo = KeyInfo::required("message_bytes", BYTES, "8", "Payload of each message.");
const WINDOW: KeyInfo = KeyInfo::with_default(
    "window_messages",
    Value::Words("messages"),
    "0",
    "Sends of a rank that are under way at a time; 0: all at once.",
);
const ORDER: KeyInfo = KeyInfo::with_default(
    "order",
    Value::OneOf(&["receives_first", "sends_first"]),
    "\"receives_first\"",
    "Receives are posted before the sends, or after all sends were taken. The latter makes messages unexpected.",
);
const EXECUTOR: KeyInfo = KeyInfo::required(
    "executor",
    Value::OneOf(&["messages", "processor", "nic"]),
    "\"nic\"",
    "Who carries out the operation: the ranks by messages, or an offloaded machine. The machine runs on the processor of \
     each rank, while that is in the library, or on its NIC.",
);
const MAX_DELAY: KeyInfo = KeyInfo::with_default(
    "max_delay_ns",
    NANOSECONDS,
    "0",
    "Bound of the random delay of each rank before each call. It is drawn from the seed.",
);
const ROUND_TRIPS: KeyInfo = KeyInfo::required("round_trips", COUNT, "10", "Round trips that are timed.");
const WARMUP_ROUND_TRIPS: KeyInfo =
    KeyInfo::with_default("warmup_round_trips", COUNT, "0", "Round trips before them that are not timed.");

/// The workload that replays a file. It is not part of [`Workload`](crate::workload::Workload).
pub const GOAL: Section = Section {
    name: "goal",
    about: "Replays a GOAL schedule, the format of LogGOPSim.",
    keys: &[KeyInfo::required(
        "file",
        TEXT,
        "\"goal/alltoall-linear-32.goal\"",
        "Path of the schedule, relative to the plan. It has as many ranks as the world.",
    )],
};

/// Workloads, in the order of [`Workload`](crate::workload::Workload).
pub const WORKLOADS: &[Section] = &[
    Section {
        name: "multi_pingpong",
        about: "Several pairs of ranks play ping-pong at the same time. Rank `r` below `pairs` plays with rank \
                `r + partner_distance_ranks`. The other ranks do nothing.",
        keys: &[
            EACH_MESSAGE,
            KeyInfo::required("pairs", Value::Words("pairs, at least 1"), "2", "Pairs that play."),
            KeyInfo::required(
                "partner_distance_ranks",
                Value::Words("ranks, at least `pairs`"),
                "4",
                "Distance from a rank to its partner.",
            ),
            ROUND_TRIPS,
            WARMUP_ROUND_TRIPS,
        ],
    },
    Section {
        name: "latency",
        about: "Ranks 0 and 1 play ping-pong. The other ranks do nothing.",
        keys: &[EACH_MESSAGE, ROUND_TRIPS, WARMUP_ROUND_TRIPS],
    },
    Section {
        name: "bandwidth",
        about: "Rank 0 sends a window of messages to rank 1, which answers the last one with an empty message. \
                The other ranks do nothing.",
        keys: &[
            EACH_MESSAGE,
            KeyInfo::required(
                "window_messages",
                Value::Words("messages, at least 1"),
                "10",
                "Messages between two answers.",
            ),
            KeyInfo::required(
                "blocking",
                SWITCH,
                "false",
                "With true, each send and each receive ends before the next begins. With false, all of a window are \
                 posted, then waited for.",
            ),
            KeyInfo::required("windows", COUNT, "10", "Windows that are timed."),
            KeyInfo::with_default("warmup_windows", COUNT, "0", "Windows before them that are not timed."),
        ],
    },
    Section {
        name: "windows",
        about: "The first ranks of each node exchange windows of messages with ranks of other nodes. The others do nothing.",
        keys: &[
            EACH_MESSAGE,
            KeyInfo::required(
                "ranks_per_node",
                Value::Words("ranks; the world has an even number of full nodes"),
                "4",
                "Ranks of a node; on a network with nodes the same as that of the world.",
            ),
            KeyInfo::required(
                "active_ranks",
                Value::Words("ranks, 1 to `ranks_per_node`"),
                "2",
                "Ranks of each node that exchange.",
            ),
            KeyInfo::required(
                "window_messages",
                Value::Words("messages, at least 1"),
                "4",
                "Messages that a rank sends, and receives, before it waits for all of them; 1: blocking.",
            ),
            KeyInfo::with_default(
                "partner",
                Value::OneOf(&["opposite", "random"]),
                "\"opposite\"",
                "`opposite` is one rank at half of all active ranks, `random` another one for each message.",
            ),
            KeyInfo::required("windows", COUNT, "10", "Windows that are timed."),
            KeyInfo::with_default("warmup_windows", COUNT, "0", "Windows before them that are not timed."),
        ],
    },
    Section {
        name: "alltoall",
        about: "All ranks exchange messages with each other, call after call.",
        keys: &[
            KeyInfo::required(
                "algorithm",
                Value::OneOf(&["linear", "pairwise", "bruck"]),
                "\"linear\"",
                "`linear` posts everything at once, `pairwise` exchanges with one partner at a time, `bruck` takes \
                 log2(ranks) rounds of combined messages.",
            ),
            TO_EACH_OTHER,
            WINDOW,
            ORDER,
            CALLS,
            WARMUP_CALLS,
            BARRIER,
        ],
    },
    Section {
        name: "alltoall_groups",
        about: "Groups of consecutive ranks, from rank 0 on, do linear all-to-alls among themselves. All other ranks \
                wait in a barrier.",
        keys: &[
            KeyInfo::required(
                "message_bytes",
                BYTES,
                "2048",
                "Payload from each rank to each other of its group.",
            ),
            KeyInfo::required("group_ranks", Value::Words("ranks, at least 1"), "2", "Ranks of each group."),
            KeyInfo::with_default(
                "groups",
                Value::Words("groups, at least 1"),
                "1",
                "Groups that work at the same time.",
            ),
            WINDOW,
            ORDER,
            CALLS,
            WARMUP_CALLS,
            BARRIER,
        ],
    },
    Section {
        name: "alltoall_phases",
        about: "Linear all-to-alls among the first ranks, as many as the phase says. A barrier among all ranks separates \
                the phases. After each call rank 0 records the credits that it owns.",
        keys: &[
            TO_EACH_OTHER,
            WINDOW,
            ORDER,
            KeyInfo::with_default(
                "barrier",
                Value::OneOf(&["dissemination", "linear"]),
                "\"dissemination\"",
                "The barrier between phases. With `linear`, rank 0 receives a message from each other rank and answers each.",
            ),
            KeyInfo::required(
                "phases",
                Value::Words("a list (in double brackets) of tables with `ranks` and `calls`"),
                "[{ ranks = 8, calls = 2 }]",
                "In each phase that many ranks take part in that many calls.",
            ),
            KeyInfo::required(
                "group_ends",
                Value::Words("a list (in double brackets) of at most four ranks"),
                "[4, 8]",
                "Ends of the groups whose credits are recorded. The first group starts at rank 0.",
            ),
        ],
    },
    Section {
        name: "alltoall_local",
        about: "Linear all-to-alls in which ranks of the same node exchange through memory, without network and credits.",
        keys: &[
            TO_EACH_OTHER,
            KeyInfo::required(
                "ranks_per_node",
                RANKS,
                "1",
                "Ranks of a node; on a network with nodes the same as that of the world.",
            ),
            KeyInfo::required("local_message_ns", NANOSECONDS, "500", "Cost of one message within a node."),
            WINDOW,
            ORDER,
            CALLS,
            WARMUP_CALLS,
            BARRIER,
        ],
    },
    Section {
        name: "scatterv_moving_root",
        about: "`MPI_Scatterv` again and again. The next rank becomes the root after some calls.",
        keys: &[
            LIBRARY,
            KeyInfo::required("message_bytes", BYTES, "2048", "Payload from the root to each other rank."),
            KeyInfo::required(
                "calls_per_root",
                Value::Words("calls, at least 1"),
                "1",
                "Calls before the root changes.",
            ),
            CALLS,
            WARMUP_CALLS,
            BARRIER,
        ],
    },
    Section {
        name: "incast",
        about: "All other ranks send to rank 0, which receives in the order of arrival. Once the first sender has \
                delivered all its messages, rank 0 records how many it has from each.",
        keys: &[
            EACH_MESSAGE,
            KeyInfo::required("messages", COUNT, "10", "Messages of each sender."),
            WINDOW,
            KeyInfo::with_default(
                "local_ranks",
                RANKS,
                "0",
                "So many ranks, rank 0 among them, do not send: those of its host. 0: all others send.",
            ),
        ],
    },
    Section {
        name: "neighbours",
        about: "Each rank exchanges a face with each neighbour on a grid, then computes, step after step.",
        keys: &[
            KeyInfo::required(
                "grid",
                Value::Words("three sizes along x, y, z (in double brackets); their product is the ranks"),
                "[2, 2, 2]",
                "Ranks along each axis; x varies fastest.",
            ),
            KeyInfo::required(
                "periodic",
                SWITCH,
                "true",
                "Whether the last rank along an axis is a neighbour of the first.",
            ),
            KeyInfo::required(
                "face_bytes",
                Value::Words("three sizes in bytes (in double brackets)"),
                "[1024, 1024, 1024]",
                "Payload of a face across x, y and z.",
            ),
            KeyInfo::with_default("compute_ns", NANOSECONDS, "0", "Work of each step, after the exchange."),
            KeyInfo::required("steps", COUNT, "2", "Steps that are timed."),
            KeyInfo::with_default("warmup_steps", COUNT, "0", "Steps before them that are not timed."),
        ],
    },
    Section {
        name: "imb",
        about: "One of the Intel MPI Benchmarks, with the algorithms of an MPI library.",
        keys: &[
            KeyInfo::required(
                "benchmark",
                Value::OneOf(&[
                    "ping_pong",
                    "ping_ping",
                    "sendrecv",
                    "exchange",
                    "bcast",
                    "reduce",
                    "allreduce",
                    "reduce_scatter",
                    "allgather",
                    "allgatherv",
                    "gather",
                    "gatherv",
                    "scatter",
                    "scatterv",
                    "alltoall",
                    "alltoallv",
                    "barrier",
                ]),
                "\"ping_pong\"",
                "The benchmark. `ping_pong` reports half of the round trip.",
            ),
            LIBRARY,
            KeyInfo::required(
                "message_bytes",
                BYTES,
                "8",
                "Payload of the message, or of the block of each rank or pair; 0 with `barrier`.",
            ),
            KeyInfo::with_default(
                "every_pair",
                SWITCH,
                "false",
                "`ping_pong` and `ping_ping` only: all pairs of neighbouring ranks play, not only ranks 0 and 1.",
            ),
            KeyInfo::with_default(
                "root_shift",
                SWITCH,
                "true",
                "The root moves to the next rank after each call.",
            ),
            KeyInfo::with_default(
                "combine_ns_per_kib",
                Value::Words("ns for each KiB"),
                "0",
                "Cost of combining values in a reduction.",
            ),
            CALLS,
            WARMUP_CALLS,
            BARRIER,
        ],
    },
    Section {
        name: "nas",
        about: "One of the NAS Parallel Benchmarks: its messages, with computing as a stated time.",
        keys: &[
            KeyInfo::required(
                "kernel",
                Value::OneOf(&["is", "ft", "lu", "cg", "mg", "bt", "sp"]),
                "\"is\"",
                "The benchmark. `bt` and `sp` require a square number of ranks, the others a power of two.",
            ),
            KeyInfo::required("class", Value::OneOf(&["S", "W", "A"]), "\"S\"", "The problem size."),
            LIBRARY,
            KeyInfo::required(
                "iteration_compute_ns",
                NANOSECONDS,
                "1000",
                "Time that a rank computes in each iteration, in the mean over ranks.",
            ),
            KeyInfo::with_default(
                "imbalance_percent",
                Value::Words("percent, 0 to 100"),
                "0",
                "The work of each rank differs from the mean by at most this share. It is drawn from the seed, uniformly, \
                 and stays the same in all iterations.",
            ),
            KeyInfo::optional(
                "iterations",
                Value::Words("1 to the number that the class has"),
                "1",
                "as many as the class has",
                "Iterations that run.",
            ),
        ],
    },
    Section {
        name: "barrier",
        about: "Barriers of all ranks, one after the other. In each of its steps a call computes, and then does a barrier.",
        keys: &[
            EXECUTOR,
            KeyInfo::required(
                "algorithm",
                Value::OneOf(&["pairwise_exchange", "gather_broadcast"]),
                "\"pairwise_exchange\"",
                "`pairwise_exchange` takes log2(ranks) steps, and two more without a power of two. `gather_broadcast` goes \
                 up a tree to rank 0, and down again.",
            ),
            KeyInfo::with_default(
                "degree",
                Value::Words("ranks, at least 1"),
                "1",
                "Children of a rank in the tree of `gather_broadcast`.",
            ),
            KeyInfo::with_default(
                "compute_ns",
                NANOSECONDS,
                "0",
                "Mean work before the barrier of the first step.",
            ),
            KeyInfo::with_default(
                "compute_spread_percent",
                Value::Words("percent, at most 100"),
                "0",
                "Largest difference between the work of a rank in a step and the mean. It is drawn from the seed.",
            ),
            KeyInfo::with_default(
                "steps",
                Value::Words("1 to 1000"),
                "1",
                "Steps of a call. Step `s` computes `s` times `compute_ns`.",
            ),
            CALLS,
            WARMUP_CALLS,
        ],
    },
    Section {
        name: "reduction",
        about: "Reductions of one word to rank 0, each after a barrier of messages. `latency_ns` is measured at the last rank, \
                until rank 0 has the result; `host_ns` is the time of a rank in a call.",
        keys: &[
            EXECUTOR,
            KeyInfo::required(
                "tree",
                Value::OneOf(&["binomial", "chain", "flat"]),
                "\"binomial\"",
                "In a `chain` each rank has one child, in a `flat` tree all others are children of rank 0.",
            ),
            KeyInfo::required(
                "word",
                Value::OneOf(&["integer", "float"]),
                "\"integer\"",
                "Type of the word, of 64 bits. A NIC can need longer for floats.",
            ),
            KeyInfo::with_default(
                "last_delay_ns",
                NANOSECONDS,
                "0",
                "The last rank begins each call later by this, so that all others have started.",
            ),
            MAX_DELAY,
            CALLS,
            WARMUP_CALLS,
        ],
    },
    Section {
        name: "broadcast",
        about: "Broadcasts of rank 0 along a binomial tree, each after a barrier of messages. All other ranks are late. The time \
                is that of a rank in the call.",
        keys: &[
            EXECUTOR,
            KeyInfo::required(
                "message_bytes",
                Value::Words("bytes, at most 2^40; 16384 unless the executor is `messages`"),
                "8",
                "Length of the broadcast.",
            ),
            MAX_DELAY,
            CALLS,
            WARMUP_CALLS,
        ],
    },
    Section {
        name: "multicast",
        about: "Messages of rank 0 to all others along a postal tree: by a loop of sends (`messages`), or by multi-sends, whose \
                copies the NIC makes. The time is that until the last rank has the message.",
        keys: &[
            EXECUTOR,
            KeyInfo::required("message_bytes", BYTES, "8", "Length of the message."),
            KeyInfo::required(
                "packet_bytes",
                Value::Words("bytes, more than 0; at most 1024 packets"),
                "1536",
                "Longest packet. Each packet is a message of its own.",
            ),
            KeyInfo::required(
                "lambda",
                Value::Words("1 to 1024"),
                "1",
                "Time until a child can forward, in times that a packet occupies its sender. 1: a binomial tree; the \
                 number of ranks: a flat tree.",
            ),
            KeyInfo::with_default(
                "pipelined",
                SWITCH,
                "false",
                "Whether a rank forwards each packet as it comes. Not with the executor `messages`.",
            ),
            CALLS,
            WARMUP_CALLS,
        ],
    },
    Section {
        name: "atomics",
        about: "Rank 1 does compare&swap on a word of rank 0 again and again. With `messages`, rank 0 is a server that answers \
                requests. The other ranks do nothing.",
        keys: &[
            EXECUTOR,
            KeyInfo::with_default(
                "wake_ns",
                NANOSECONDS,
                "0",
                "Time until a server that sleeps handles a request. Only with `messages`.",
            ),
            CALLS,
            WARMUP_CALLS,
        ],
    },
    Section {
        name: "lock",
        about: "All ranks but rank 0 acquire and release a queue lock again and again. The tail of its queue is a word of \
                rank 0. Not with the executor `messages`.",
        keys: &[
            EXECUTOR,
            KeyInfo::with_default(
                "wake_ns",
                NANOSECONDS,
                "0",
                "Time until a processor that sleeps changes a word for another rank. Only with `processor`.",
            ),
            CALLS,
            WARMUP_CALLS,
        ],
    },
];
