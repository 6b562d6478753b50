//! Reductions and all-reduces of one member.

use super::*;
use crate::offload::reduce::MAX_VECTOR_BYTES;

fn all_reduce(bytes: u32) -> Operation {
    Operation::AllReduce(Vector { bytes, combination: SUM })
}

#[test]
fn a_leaf_sends_a_copy_of_its_vector_and_completes_with_the_answer() {
    let mut leaf = Member::of_four(3);
    let sent = ["buffer 0 of 16", "copy 16 of request 5+0 to buffer 0+0"];
    assert_eq!(leaf.start(5, 16)[..2], sent);
    assert_eq!(leaf.start(6, 8)[2], "contribution 1 to 2: 8 of buffer 1+0 at 0 of 8");
    assert!(!leaf.machine.is_quiescent());
    assert_eq!(leaf.taken(2, 0, false), ["5 Done", "free 0"]);
    assert_eq!(leaf.taken(2, 1, false), ["6 Done", "free 1"]);
    assert!(leaf.machine.is_quiescent());
    assert_eq!(leaf.taken(2, 2, false), ["reject 2"], "nothing is sent");
}

#[test]
fn the_root_combines_in_the_order_of_ranks_and_straight_from_the_slots_if_it_can() {
    let mut root = Member::of_four(0);
    // The second child comes first, in two packets, before the start and after.
    assert_eq!(
        root.part(2, 0, 16, (0, 8)),
        ["buffer 0 of 16", "copy 8 of payload to buffer 0+0"],
        "its turn has not come"
    );
    assert_eq!(root.start(5, 16), [""; 0]);
    assert_eq!(root.part(2, 0, 16, (8, 8)), ["copy 8 of payload to buffer 0+8"]);
    assert_eq!(root.part(1, 0, 16, (0, 8)), ["combine 8 of payload into request 5+0"]);
    assert_eq!(
        root.part(1, 0, 16, (8, 8)),
        [
            "combine 8 of payload into request 5+8",
            "taken 0 to 1",
            "combine 16 of buffer 0+0 into request 5+0",
            "free 0",
            "taken 0 to 2",
            "5 Done"
        ]
    );
    assert!(root.machine.is_quiescent());
}

#[test]
fn an_inner_member_sends_what_it_has_combined_when_all_have_joined() {
    let mut inner = Member::joined(2, None);
    assert_eq!(inner.start(5, 8), ["buffer 0 of 8", "copy 8 of request 5+0 to buffer 0+0"]);
    inner.hear_joined(3, true);
    assert_eq!(inner.contribution(3, 0, 8), ["combine 8 of payload into buffer 0+0"]);
    assert_eq!(inner.hear_joined(0, false), ["all joined to 0"]);
    assert_eq!(
        inner.hear_joined(0, true),
        ["all joined to 3", "taken 0 to 3", "contribution 0 to 0: 8 of buffer 0+0 at 0 of 8"]
    );
    assert_eq!(inner.hear_joined(0, true), [""; 0], "it knows");
    assert_eq!(inner.taken(0, 0, false), ["5 Done", "free 0"]);
}

#[test]
fn a_group_of_one_and_an_empty_vector_complete() {
    let mut alone = Member::alone();
    let members = vec![Peer(7)];
    let membership =
        Membership { group: GROUP, members, rank: 0, patience_ns: None, shape: Shape::default() };
    assert_eq!(alone.post(GroupCommand::Join(membership)), [""; 0]);
    assert_eq!(alone.start(5, 8), ["5 Done"]);
    assert_eq!(alone.begin(6, all_reduce(8)), ["6 Done"]);
    assert_eq!(alone.begin(7, Operation::Barrier), ["7 Done"]);
    assert_eq!(alone.begin(8, Operation::Broadcast { root: 0, bytes: 8 }), ["8 Done"]);
    let mut root = Member::of_four(0);
    root.start(5, 0);
    root.contribution(1, 0, 0);
    assert_eq!(root.contribution(2, 0, 0).last().expect("a call"), "5 Done");
}

#[test]
fn an_inner_member_forwards_the_result_of_an_all_reduce_packet_by_packet() {
    let mut inner = Member::of_four(2);
    assert_eq!(inner.begin(5, all_reduce(16)).len(), 2);
    assert_eq!(
        inner.of(all_reduce(16), 3, 0, (0, 16)),
        ["combine 16 of payload into buffer 0+0", "all-reduce 0 to 0: 16 of buffer 0+0 at 0 of 16"],
        "the result answers"
    );
    assert_eq!(
        inner.of(all_reduce(16), 0, 0, (0, 8)),
        [
            "copy 8 of payload to buffer 0+0",
            "all-reduce 0 to 3: 8 of buffer 0+0 at 0 of 16",
            "copy 8 of payload to request 5+0"
        ]
    );
    assert_eq!(
        inner.of(all_reduce(16), 0, 0, (8, 8)),
        [
            "copy 8 of payload to buffer 0+8",
            "all-reduce 0 to 3: 8 of buffer 0+8 at 8 of 16",
            "copy 8 of payload to request 5+8",
            "taken 0 to 0",
            "5 Done"
        ]
    );
    assert!(!inner.machine.is_quiescent(), "its child may still read the buffer");
    assert_eq!(inner.taken(3, 0, false), ["free 0"]);
    assert!(inner.machine.is_quiescent());
}

#[test]
fn the_root_of_an_all_reduce_sends_a_copy_of_the_result() {
    let mut root = Member::of_four(0);
    root.begin(5, all_reduce(8));
    root.of(all_reduce(8), 1, 0, (0, 8));
    assert_eq!(
        root.of(all_reduce(8), 2, 0, (0, 8)),
        [
            "combine 8 of payload into request 5+0",
            "buffer 0 of 8",
            "copy 8 of request 5+0 to buffer 0+0",
            "all-reduce 0 to 1: 8 of buffer 0+0 at 0 of 8",
            "all-reduce 0 to 2: 8 of buffer 0+0 at 0 of 8",
            "5 Done"
        ]
    );
    assert_eq!(root.taken(2, 0, false), [""; 0]);
    assert_eq!(root.taken(1, 0, false), ["free 0"]);
}

#[test]
fn a_result_before_our_contribution_is_rejected() {
    let mut inner = Member::of_four(2);
    inner.begin(5, all_reduce(8));
    assert_eq!(inner.of(all_reduce(8), 0, 0, (0, 8)), ["reject 0"], "member 3 has not contributed");
    let mut leaf = Member::of_four(1);
    assert_eq!(leaf.of(all_reduce(8), 0, 0, (0, 8)), ["reject 0"], "we have not started it");
    assert!(leaf.machine.is_quiescent());
}

#[test]
fn a_member_has_a_bound_on_operations_and_a_sender_that_exceeds_it_is_malformed() {
    let mut leaf = Member::of_four(1);
    (0..MAX_ROUNDS).for_each(|request| drop(leaf.start(request, 8)));
    let command = OffloadCommand::Group(start(99, 8));
    let refused = leaf.machine.handle(MachineEvent::Posted(command), &mut leaf.driver);
    assert_eq!((refused, leaf.driver.calls.len()), (Err(Refusal::RemoteOperations), 0));
    leaf.taken(0, 0, false);
    assert_eq!(leaf.start(99, 8)[2], "contribution 4 to 0: 8 of buffer 0+0 at 0 of 8");
    let mut root = Member::of_four(0);
    for number in 0..MAX_ROUNDS {
        assert_eq!(root.contribution(1, number, 8).len(), 2, "a buffer");
    }
    assert_eq!(root.contribution(1, MAX_ROUNDS, 8), ["reject 1"]);
    // Another member may be ahead by the same number, also of other operations.
    for number in MAX_ROUNDS..2 * MAX_ROUNDS {
        assert_eq!(root.contribution(2, number, 8).len(), 2, "a buffer");
    }
    assert_eq!(root.of(Operation::Barrier, 2, 2 * MAX_ROUNDS, (0, 0)), ["reject 2"]);
}

#[test]
fn contributions_that_make_no_sense_are_rejected() {
    let good = Vector { bytes: 16, combination: SUM };
    let long = Vector { bytes: MAX_VECTOR_BYTES + 8, combination: SUM };
    let operation = WordOperation::Write;
    let replace = Vector { combination: Combination { operation, ..SUM }, ..good };
    let broken = Vector { bytes: 12, ..good };
    let cases: [(u32, u32, Vector, u32, u32); 10] = [
        (3, 0, good, 0, 16),        // no child
        (9, 0, good, 0, 16),        // no member
        (1, 0, good, 8, 8),         // not the next part
        (1, 0, good, 0, 24),        // longer than the vector
        (1, 0, good, 0, 0),         // short: nothing
        (1, 0, good, 0, 4),         // short: half an element
        (1, 0, long, 0, 8),         // too long
        (1, 0, replace, 0, 16),     // does not combine
        (1, 0, broken, 0, 12),      // half an element
        (1, 0, good, u32::MAX, 16), // beyond the numbers
    ];
    for (from, number, vector, offset, payload_bytes) in cases {
        let mut root = Member::of_four(0);
        root.start(5, 16);
        let rejected = [format!("reject {from}")];
        let calls = root.of(Operation::Reduce(vector), from, number, (offset, payload_bytes));
        assert_eq!(calls, rejected, "{vector:?} {payload_bytes}");
        assert_eq!(root.buffers(), 0);
    }
    let mut root = Member::of_four(0);
    root.start(5, 16);
    root.contribution(1, 0, 16);
    assert_eq!(root.contribution(1, 0, 16), ["reject 1"], "twice");
    root.contribution(2, 0, 16);
    assert_eq!(root.contribution(2, 0, 16), ["reject 2"], "the reduction has ended");
    assert_eq!(root.contribution(2, 1 << 31, 16), ["reject 2"], "far away");
    // Vectors of other lengths than ours, before the start and after.
    let mut root = Member::of_four(0);
    root.contribution(1, 0, 8);
    assert_eq!(
        root.start(5, 16),
        ["reject 1", "failed to 2: 1 Malformed", "free 0", "5 lost with 1 Malformed"]
    );
    let mut root = Member::of_four(0);
    root.start(5, 16);
    assert_eq!(root.contribution(1, 0, 8), ["reject 1"]);
    assert_eq!(root.contribution(1, 1, 8).len(), 2);
    assert_eq!(root.contribution(2, 1, 16), ["reject 2"], "another vector than member 1");
}
