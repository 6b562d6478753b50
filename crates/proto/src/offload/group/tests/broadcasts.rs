//! Broadcasts of one member.

use super::*;

const FROM_0: Operation = Operation::Broadcast { root: 0, bytes: 16 };

#[test]
fn the_root_completes_at_once_and_keeps_a_copy_until_its_children_have_answered() {
    let mut root = Member::of_four(0);
    assert_eq!(
        root.begin(5, FROM_0),
        [
            "buffer 0 of 16",
            "copy 16 of request 5+0 to buffer 0+0",
            "broadcast 0 to 2: 16 of buffer 0+0 at 0 of 16",
            "broadcast 0 to 1: 16 of buffer 0+0 at 0 of 16",
            "5 Done"
        ]
    );
    assert!(!root.machine.is_quiescent());
    assert_eq!(root.taken(1, 0, false), [""; 0]);
    assert_eq!(root.taken(1, 0, false), ["reject 1"], "twice");
    assert_eq!(root.taken(2, 0, false), ["free 0"]);
    assert!(root.machine.is_quiescent());
}

#[test]
fn an_inner_member_forwards_before_its_program_starts() {
    let mut inner = Member::of_four(2);
    assert_eq!(
        inner.of(FROM_0, 0, 0, (0, 8)),
        ["buffer 0 of 16", "copy 8 of payload to buffer 0+0", "broadcast 0 to 3: 8 of buffer 0+0 at 0 of 16"]
    );
    assert!(!inner.machine.is_quiescent(), "a child reads the buffer");
    assert_eq!(
        inner.of(FROM_0, 0, 0, (8, 8)),
        ["copy 8 of payload to buffer 0+8", "broadcast 0 to 3: 8 of buffer 0+8 at 8 of 16"]
    );
    assert_eq!(inner.taken(3, 0, false), [""; 0], "the program needs it");
    assert_eq!(
        inner.begin(5, FROM_0),
        ["copy 16 of buffer 0+0 to request 5+0", "taken 0 to 0", "5 Done", "free 0"]
    );
    assert!(inner.machine.is_quiescent());
}

#[test]
fn a_start_between_two_packets_takes_the_rest_straight_from_the_slots() {
    let mut leaf = Member::of_four(1);
    leaf.of(FROM_0, 0, 0, (0, 8));
    assert_eq!(leaf.begin(5, FROM_0), ["copy 8 of buffer 0+0 to request 5+0", "free 0"]);
    assert_eq!(leaf.of(FROM_0, 0, 0, (8, 8)), ["copy 8 of payload to request 5+8", "taken 0 to 0", "5 Done"]);
    let mut inner = Member::of_four(2);
    inner.of(FROM_0, 0, 0, (0, 8));
    assert_eq!(inner.begin(5, FROM_0), ["copy 8 of buffer 0+0 to request 5+0"]);
    assert_eq!(
        inner.of(FROM_0, 0, 0, (8, 8)),
        [
            "copy 8 of payload to buffer 0+8",
            "broadcast 0 to 3: 8 of buffer 0+8 at 8 of 16",
            "copy 8 of payload to request 5+8",
            "taken 0 to 0",
            "5 Done"
        ]
    );
    assert_eq!(inner.taken(3, 0, false), ["free 0"]);
}

#[test]
fn another_root_has_the_same_tree_from_its_rank_on() {
    let mut root = Member::of_four(3);
    let from_3 = Operation::Broadcast { root: 3, bytes: 8 };
    let calls = root.begin(5, from_3);
    assert!(
        calls[2].starts_with("broadcast 0 to 1:") && calls[3].starts_with("broadcast 0 to 0:"),
        "{calls:?}"
    );
    let mut leaf = Member::of_four(0);
    assert_eq!(leaf.of(from_3, 1, 0, (0, 8)), ["reject 1"], "its parent is member 3");
    assert_eq!(leaf.of(from_3, 3, 0, (0, 8)).len(), 2);
}

#[test]
fn a_broadcast_that_is_not_valid_is_refused() {
    let mut member = Member::of_four(1);
    assert_eq!(member.begin(5, Operation::Broadcast { root: 4, bytes: 8 }), ["5 Refused"]);
    let bytes = MAX_BROADCAST_BYTES + 1;
    assert_eq!(member.begin(5, Operation::Broadcast { root: 0, bytes }), ["5 Refused"]);
    assert_eq!(member.of(Operation::Broadcast { root: 4, bytes: 8 }, 0, 0, (0, 8)), ["reject 0"]);
    assert_eq!(member.of(Operation::Broadcast { root: 0, bytes }, 0, 0, (0, 8)), ["reject 0"]);
}

#[test]
fn a_failed_group_keeps_a_forwarded_broadcast_until_the_child_has_answered() {
    let mut inner = Member::of_four(2);
    inner.of(FROM_0, 0, 0, (0, 8));
    assert_eq!(
        inner.failed(0, 1),
        ["failed to 3: 1 Died", "failed to 3: 1 Died", "broadcast 0 to 3: 8 of buffer 0+8 at 8 of 16"],
        "member 3 answers only the last packet"
    );
    assert_eq!(inner.buffers(), 1);
    assert_eq!(inner.of(FROM_0, 0, 0, (8, 8)), ["refused 0 to 0"], "the rest comes late");
    assert_eq!(inner.taken(3, 0, true), ["free 0"]);
    assert!(inner.machine.is_quiescent());
}

#[test]
fn a_child_that_has_left_gets_the_rest_and_answers() {
    let mut inner = Member::of_four(2);
    inner.of(FROM_0, 0, 0, (0, 8));
    let left = GroupPacket::Failed { group: GROUP, member: 3, fault: PeerFault::Closed };
    assert_eq!(
        inner.packet(3, 0, left, 0),
        ["failed to 0: 3 Closed", "failed to 3: 3 Closed", "broadcast 0 to 3: 8 of buffer 0+8 at 8 of 16"]
    );
    assert_eq!(inner.taken(3, 0, true), ["free 0"]);
    assert!(inner.machine.is_quiescent());
}

#[test]
fn a_lost_child_answers_no_more() {
    let mut root = Member::of_four(0);
    root.begin(5, FROM_0);
    root.taken(1, 0, false);
    assert_eq!(root.lose(2), ["failed to 1: 2 Died", "free 0"]);
    assert!(root.machine.is_quiescent());
}

#[test]
fn a_member_may_forward_more_broadcasts_than_it_may_have_under_way() {
    let mut leaf = Member::of_four(3);
    let most = 3 * MAX_ROUNDS;
    for number in 0..most {
        assert_ne!(leaf.of(FROM_0, 2, number, (0, 16)), ["reject 2"], "{number}");
    }
    assert_eq!(leaf.of(FROM_0, 2, most, (0, 16)), ["reject 2"]);
}
