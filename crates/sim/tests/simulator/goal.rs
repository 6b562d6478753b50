//! Tests of GOAL schedules: they finish at the times of LogGOPSim, and invalid ones are rejected.

use weir_proto::Scheme;
use weir_sim::goal::Schedule;
use weir_sim::network::loggops::{LogGops, Parameters};
use weir_sim::world::{World, WorldSpec};

/// Finishing times in ns that LogGOPSim reports with its default parameters.
const REFERENCES: &[(&str, &str, u64)] = &[
    ("bcast-binomial-32", include_str!("../../../../experiments/goal/bcast-binomial-32.goal"), 88_910),
    ("reduce-binomial-32", include_str!("../../../../experiments/goal/reduce-binomial-32.goal"), 27_710),
    ("dissemination-64", include_str!("../../../../experiments/goal/dissemination-64.goal"), 33_000),
    ("allreduce-recdoub-64", include_str!("../../../../experiments/goal/allreduce-recdoub-64.goal"), 90_120),
    ("alltoall-linear-32", include_str!("../../../../experiments/goal/alltoall-linear-32.goal"), 551_242),
    ("gather-64", include_str!("../../../../experiments/goal/gather-64.goal"), 485_194),
    ("ring-pipelined-16", include_str!("../../../../experiments/goal/ring-pipelined-16.goal"), 890_670),
];

fn finishing_ns(text: &str) -> u64 {
    let schedule = Schedule::parse(text).expect("a schedule");
    let parameters = Parameters::DEFAULT;
    let ranks = schedule.ranks();
    let mut spec = WorldSpec::new(ranks, Scheme::Unlimited, 1, parameters.cost());
    spec.config.eager_bytes = parameters.eager_bytes;
    let world = World::new(spec, LogGops::new(parameters, ranks), |rank| schedule.program(rank));
    world.run().expect("ends").finished_at / 1000
}

#[test]
fn schedules_finish_at_loggopsims_times() {
    for &(name, text, reference) in REFERENCES {
        let ours = finishing_ns(text);
        println!("{name}: {ours} ns, LogGOPSim {reference} ns");
        assert_eq!(ours, reference, "{name}");
    }
}

/// The rules of LogGOPSim. At 4,000 ns rank 1 begins to receive what lets it compute (5,000 ns, from 30,070
/// on) and then send. The message that rank 2 sent at 1,000 is received (1,542 ns) before the computation,
/// the one from 6,000 after it. The message from 31,000 comes after the start of the computation, so it is
/// received after the send.
#[test]
fn the_operation_ready_first_runs_first() {
    let finishes = |sent_after: u64| {
        finishing_ns(&format!(
            "num_ranks 4
            rank 0 {{
            l1: send 4096b to 1
            }}
            rank 1 {{
            l1: recv 4096b from 0
            l2: calc 5000
            l2 requires l1
            l3: send 8b to 3
            l3 requires l2
            l4: recv 8b from 2
            }}
            rank 2 {{
            l1: calc {sent_after}
            l2: send 8b to 1
            l2 requires l1
            }}
            rank 3 {{
            l1: recv 8b from 1
            }}"
        ))
    };
    let end_of_work = 30_070 + 5_000;
    let behind_it = 1_500 + 2_500 + 1_542; // o, L, o and the bytes of the message to rank 3
    let later = end_of_work + 1_542 + behind_it;
    assert_eq!([1_000, 6_000, 31_000].map(finishes), [later, later, end_of_work + behind_it]);
}

/// The NIC takes the second send at 1,594 ns (`g` and 99 bytes), 94 ns after the processor is free. So the
/// computation goes first, and the message arrives at 25,500.
#[test]
fn computation_precedes_a_send_that_waits_for_the_nic() {
    let schedule = "num_ranks 2
        rank 0 {
        l1: send 100b to 1
        l2: send 100b to 1
        l3: calc 20000
        }
        rank 1 {
        l1: recv 100b from 0
        l2: recv 100b from 0
        }";
    assert_eq!(finishing_ns(schedule), 1_500 + 20_000 + 1_500 + 2_500 + 2_094);
}

#[test]
fn invalid_schedules_are_rejected_with_their_line() {
    let refused = |text: &str| Schedule::parse(text).expect_err(text).to_string();
    assert_eq!(refused(""), "line 1: `num_ranks N` is missing; allowed: once, first");
    assert_eq!(refused("num_ranks 0"), "line 1: \"0\" is not a number of ranks; allowed: 1 to 1048576");
    assert_eq!(
        refused("rank 0 {\n}"),
        "line 1: `rank` comes before `num_ranks N`; allowed: `num_ranks N` first"
    );
    let twice = "num_ranks 2\nrank 0 {\n}\nrank 0 {\n}";
    assert_eq!(refused(twice), "line 4: rank 0 has a second block; allowed: one block for each rank");
    assert_eq!(
        refused("num_ranks 2\nrank 0 {\n}\n"),
        "line 3: num_ranks is 2, and rank 1 has no block; allowed: one block for each rank, `rank 1 {` to `}`"
    );
    assert_eq!(
        refused("num_ranks 2\nrank 0 {\nl1: send 8b to 1 tag 3\n}\nrank 1 {\n}"),
        "line 3: 1 message(s) from rank 0 to rank 1 with tag 3 are sent without a matching receive; allowed: as many receives as sends with the same ranks and tag"
    );
    assert_eq!(
        refused("num_ranks 2\nrank 0 {\n}\nrank 1 {\nl1: recv 8b from 0\n}"),
        "line 5: 1 message(s) from rank 0 to rank 1 with tag 0 are received without a matching send; allowed: as many receives as sends with the same ranks and tag"
    );
    assert_eq!(
        refused("num_ranks 1\nrank 1 {\n}"),
        "line 2: \"1\" is not a rank (num_ranks is 1); allowed: 0 to 0"
    );
    assert_eq!(
        refused("num_ranks 1\nrank 0 {\nl1: calc x\n}"),
        "line 3: \"x\" is not a time in nanoseconds; allowed: 0 to 1000000000000"
    );
    assert_eq!(
        refused("num_ranks 1\nrank 0 {\nl1: send 8 to 0\n}"),
        "line 3: \"8\" is not a number of bytes, like 2048b; allowed: 0b to 1099511627776b"
    );
    assert_eq!(
        refused("num_ranks 1\nrank 0 {\nl1: calc 1\nl2: calc 1\nl1 requires l2\nl2 requires l1\n}"),
        "line 3: operations of rank 0 require each other in a circle; allowed: no circle"
    );
    assert_eq!(
        refused("num_ranks 1\nrank 0 {\nl1: calc 1\nl1 requires l9\n}"),
        "line 4: rank 0 has no operation \"l9\" before this line; allowed: the label of an earlier line"
    );
    assert_eq!(
        refused("num_ranks 1\nrank 0 {\nl1: calc 1"),
        "line 3: the block of rank 0 has no end; allowed: `}` after its operations"
    );
    assert_eq!(
        refused("num_ranks 4000000000"),
        "line 1: \"4000000000\" is not a number of ranks; allowed: 1 to 1048576"
    );
    assert_eq!(
        refused("num_ranks 1\nrank 0 {\nl1: calc 20000000000000000\n}"),
        "line 3: \"20000000000000000\" is not a time in nanoseconds; allowed: 0 to 1000000000000"
    );
    assert_eq!(
        refused("num_ranks 1\nrank 0 {\nl1: send 18446744073709551615b to 0\n}"),
        "line 3: \"18446744073709551615\" is not a number of bytes, like 2048b; allowed: 0 to 1099511627776"
    );
}

#[test]
fn a_receive_smaller_than_its_message_is_rejected() {
    let schedule = |receives: &str| {
        Schedule::parse(&format!(
            "num_ranks 2\nrank 0 {{\nl1: send 800b to 1\nl2: send 8b to 1\n}}\nrank 1 {{\n{receives}}}"
        ))
    };
    // Before the run it is unknown which of the two receives gets which message.
    assert!(schedule("l1: recv 8b from 0\nl2: recv 800b from 0\n").is_ok());
    assert!(schedule("l1: recv 2000b from 0\nl2: recv 800b from 0\n").is_ok());
    assert_eq!(
        schedule("l1: recv 8b from 0\nl2: recv 799b from 0\n").expect_err("too small").to_string(),
        "line 8: the receive has 799b, and the message from rank 0 to rank 1 with tag 0 has 800b; allowed: at least as many"
    );
}

#[test]
fn a_deadlocked_schedule_is_rejected() {
    let block = |rank: u32, first: &str, second: &str| {
        format!("rank {rank} {{\nl1: {first}\nl2: {second}\nl2 requires l1\n}}\n")
    };
    let schedule = |one: [&str; 2], other: [&str; 2]| {
        let blocks = [block(0, one[0], one[1]), block(1, other[0], other[1])].concat();
        Schedule::parse(&format!("num_ranks 2\n{blocks}"))
    };
    let (send_1, receive_1) = ("send 8b to 1", "recv 8b from 1");
    let (send_0, receive_0) = ("send 8b to 0", "recv 8b from 0");
    assert_eq!(
        schedule([receive_1, send_1], [receive_0, send_0]).expect_err("a circle").to_string(),
        "line 3: deadlock: this receive of rank 0 waits for a message that can only be sent after it; allowed: messages that do \
         not depend on their receive"
    );
    for (one, other) in [
        ([send_1, receive_1], [receive_0, send_0]),
        ([receive_1, send_1], [send_0, receive_0]),
        ([send_1, receive_1], [send_0, receive_0]),
    ] {
        schedule(one, other).expect("ends");
    }
    // Values at their limits, and one rank that receives its own messages.
    let one = "num_ranks 1\nrank 0 {\nl1: calc 1000000000000\nl2: send 1099511627776b to 0\nl3: recv 1099511627776b from 0\n";
    Schedule::parse(&format!("{one}l3 irequires l2\n}}")).expect("ends");
    let refused = Schedule::parse(&format!("{one}l2 requires l3\n}}")).expect_err("a circle");
    assert_eq!(refused.line, 5, "{refused}");
}
