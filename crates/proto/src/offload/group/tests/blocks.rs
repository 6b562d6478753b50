//! Reductions in blocks, of one member. With vectors of 4096 bytes each rank is a leader, with 2048 bytes 0 and 2 are.

use super::*;

fn sum(bytes: u32) -> Vector {
    Vector { bytes, combination: FLOAT_SUM }
}

#[test]
fn a_leader_combines_its_vector_from_the_right_packet_by_packet() {
    let mut leader = Member::of_four(1);
    let operation = Operation::Reduce(sum(4096));
    assert_eq!(
        leader.begin(5, operation),
        [""; 0],
        "it sends nothing before it has heard the ranks before it"
    );
    assert_eq!(
        leader.of(operation, 0, 0, (0, 1000)),
        [
            "buffer 0 of 4096",
            "copy 1000 of payload to buffer 0+0",
            "combine 1000 of request 5+0 into buffer 0+0"
        ]
    );
    assert_eq!(
        leader.of(operation, 0, 0, (1000, 3096)),
        [
            "copy 3096 of payload to buffer 0+1000",
            "combine 3096 of request 5+1000 into buffer 0+1000",
            "taken 0 to 0",
            "contribution 0 to 2: 4096 of buffer 0+0 at 0 of 4096"
        ]
    );
    assert_eq!(leader.taken(2, 0, false), ["5 Done", "free 0"]);
    assert!(leader.machine.is_quiescent());
}

#[test]
fn what_comes_before_the_start_becomes_the_buffer() {
    let mut leader = Member::of_four(1);
    let operation = Operation::Reduce(sum(4096));
    let held = ["buffer 0 of 4096", "copy 4096 of payload to buffer 0+0"];
    assert_eq!(leader.of(operation, 0, 0, (0, 4096)), held);
    assert_eq!(
        leader.begin(5, operation),
        [
            "combine 4096 of request 5+0 into buffer 0+0",
            "taken 0 to 0",
            "contribution 0 to 2: 4096 of buffer 0+0 at 0 of 4096"
        ]
    );
    assert_eq!(leader.taken(2, 0, false), ["5 Done", "free 0"]);
    assert_eq!(leader.buffers(), 0);
}

#[test]
fn a_leader_takes_its_block_after_the_ranks_before_it() {
    let mut last = Member::of_four(2);
    let operation = Operation::AllReduce(sum(2048));
    last.begin(5, operation);
    let held = ["buffer 0 of 2048", "copy 2048 of payload to buffer 0+0"];
    assert_eq!(last.of(operation, 3, 0, (0, 2048)), held);
    assert_eq!(
        last.of(operation, 0, 0, (0, 2048)),
        [
            "buffer 1 of 2048",
            "copy 2048 of payload to buffer 1+0",
            "combine 2048 of request 5+0 into buffer 1+0",
            "combine 2048 of buffer 0+0 into buffer 1+0",
            "free 0",
            "copy 2048 of buffer 1+0 to request 5+0",
            "all-reduce 0 to 0: 2048 of buffer 1+0 at 0 of 2048",
            "all-reduce 0 to 3: 2048 of buffer 1+0 at 0 of 2048",
            "5 Done"
        ],
        "the result answers both"
    );
    last.taken(0, 0, false);
    assert_eq!(last.taken(3, 0, false), ["free 1"]);
    assert!(last.machine.is_quiescent());
}

#[test]
fn rank_0_gets_the_result_of_a_reduction_after_its_contribution() {
    let operation = Operation::Reduce(sum(2048));
    let mut root = Member::of_four(0);
    root.begin(5, operation);
    assert_eq!(root.of(operation, 2, 0, (0, 2048)), ["reject 2"], "rank 1 has not been heard");
    let mut root = Member::of_four(0);
    root.begin(5, operation);
    assert_eq!(
        root.of(operation, 1, 0, (0, 2048)),
        [
            "combine 2048 of payload into request 5+0",
            "taken 0 to 1",
            "buffer 0 of 2048",
            "copy 2048 of request 5+0 to buffer 0+0",
            "contribution 0 to 2: 2048 of buffer 0+0 at 0 of 2048"
        ]
    );
    assert_eq!(root.of(operation, 2, 0, (0, 8)), ["copy 8 of payload to request 5+0"]);
    assert_eq!(
        root.of(operation, 2, 0, (8, 2040)),
        ["copy 2040 of payload to request 5+8", "taken 0 to 2", "5 Done", "free 0"]
    );
    assert!(root.machine.is_quiescent());
}

#[test]
fn the_result_may_come_before_the_answer_of_the_next_leader() {
    // Leaders 0 to 3. The result goes from 3 to 2 and 1, and from 1 to 0.
    let mut leader = Member::of_four(1);
    let operation = Operation::AllReduce(sum(4096));
    leader.begin(5, operation);
    leader.of(operation, 0, 0, (0, 4096));
    assert_eq!(
        leader.of(operation, 3, 0, (0, 4096)),
        [
            "copy 4096 of payload to buffer 0+0",
            "all-reduce 0 to 0: 4096 of buffer 0+0 at 0 of 4096",
            "copy 4096 of payload to request 5+0",
            "taken 0 to 3",
            "5 Done"
        ]
    );
    assert_eq!(leader.taken(0, 0, false), [""; 0]);
    assert_eq!(leader.taken(2, 0, false), ["free 0"]);
    assert!(leader.machine.is_quiescent());
}

#[test]
fn a_lost_member_ends_a_reduction_in_blocks_with_all_its_buffers() {
    let operation = Operation::AllReduce(sum(2048));
    let mut last = Member::of_four(2);
    last.of(operation, 0, 0, (0, 2048));
    last.of(operation, 3, 0, (0, 1000));
    last.begin(5, operation);
    assert_eq!(last.lose(1)[..2], ["failed to 0: 1 Died", "failed to 3: 1 Died"]);
    assert_eq!((last.buffers(), last.machine.is_quiescent()), (0, true));
    let mut leader = Member::of_four(1);
    let operation = Operation::AllReduce(sum(4096));
    leader.begin(5, operation);
    leader.of(operation, 0, 0, (0, 4096));
    leader.of(operation, 3, 0, (0, 8));
    // It has begun to forward the result to rank 0, which gets the rest, and it waits for the answer of 2 to its own vector.
    assert_eq!(
        leader.lose(3),
        [
            "failed to 0: 3 Died",
            "failed to 0: 3 Died",
            "all-reduce 0 to 0: 4088 of buffer 0+8 at 8 of 4096",
            "5 lost with 3 Died"
        ]
    );
    assert_eq!(leader.taken(2, 0, true), [""; 0]);
    assert_eq!(leader.taken(0, 0, true), ["free 0"]);
    assert!(leader.machine.is_quiescent());
}
