//! Exchanges of one member: blocks of 16 bytes, of a group of four.

use super::*;

/// Rank 1 sends to 2 and hears 0.
const NEXT: Operation = Operation::Exchange { distance: 1, bytes: 16 };
/// Rank 1 sends to 3 and hears 3.
const ACROSS: Operation = Operation::Exchange { distance: 2, bytes: 16 };

#[test]
fn a_block_goes_to_one_member_and_that_of_another_takes_its_place() {
    let mut member = Member::of_four(1);
    assert_eq!(
        member.begin(5, NEXT),
        [
            "buffer 0 of 16",
            "copy 16 of request 5+0 to buffer 0+0",
            "block 0 to 2: 16 of buffer 0+0 at 0 of 16"
        ]
    );
    assert_eq!(member.of(NEXT, 0, 0, (0, 8)), ["copy 8 of payload to request 5+0"]);
    assert_eq!(member.of(NEXT, 0, 0, (8, 8)), ["copy 8 of payload to request 5+8", "taken 0 to 0", "5 Done"]);
    assert!(!member.machine.is_quiescent(), "rank 2 reads the buffer");
    assert_eq!(member.taken(2, 0, false), ["free 0"]);
    assert!(member.machine.is_quiescent());
}

#[test]
fn an_early_block_is_kept_until_the_own_one_has_been_copied() {
    let mut member = Member::of_four(1);
    assert_eq!(member.of(NEXT, 0, 0, (0, 8)), ["buffer 0 of 16", "copy 8 of payload to buffer 0+0"]);
    assert!(member.machine.is_quiescent());
    assert_eq!(
        member.begin(5, NEXT),
        [
            "buffer 1 of 16",
            "copy 16 of request 5+0 to buffer 1+0",
            "block 0 to 2: 16 of buffer 1+0 at 0 of 16"
        ]
    );
    assert_eq!(member.taken(2, 0, false), [""; 0]);
    assert_eq!(
        member.of(NEXT, 0, 0, (8, 8)),
        [
            "copy 8 of payload to buffer 0+8",
            "copy 16 of buffer 0+0 to request 5+0",
            "free 0",
            "taken 0 to 0",
            "5 Done",
            "free 1"
        ]
    );
}

#[test]
fn two_members_may_be_partners_on_both_sides() {
    let mut member = Member::of_four(1);
    member.begin(5, ACROSS);
    assert_eq!(member.taken(3, 0, false), [""; 0], "rank 3 has our block, and we wait for its own");
    assert_eq!(
        member.of(ACROSS, 3, 0, (0, 16)),
        ["copy 16 of payload to request 5+0", "taken 0 to 3", "5 Done", "free 0"]
    );
    assert_eq!(member.taken(3, 0, false), ["reject 3"], "twice");
}

#[test]
fn an_exchange_without_bytes_is_answered_too() {
    let mut member = Member::of_four(1);
    let nothing = Operation::Exchange { distance: 1, bytes: 0 };
    member.begin(5, nothing);
    assert_eq!(member.of(nothing, 0, 0, (0, 0)).last().map(String::as_str), Some("5 Done"));
    assert_eq!(member.taken(2, 0, false), ["free 0"]);
}

#[test]
fn blocks_that_nobody_is_to_send_are_rejected() {
    let mut member = Member::of_four(1);
    assert_eq!(member.of(NEXT, 2, 0, (0, 16)), ["reject 2"], "rank 2 sends to 3");
    for distance in [0, 4] {
        let none = Operation::Exchange { distance, bytes: 16 };
        assert_eq!(member.of(none, 0, 0, (0, 16)), ["reject 0"], "{distance}");
        assert_eq!(member.begin(5, none), ["5 Refused"], "{distance}");
    }
    let long = Operation::Exchange { distance: 1, bytes: MAX_EXCHANGE_BYTES + 1 };
    assert_eq!(member.begin(5, long), ["5 Refused"]);
    for number in 0..MAX_ROUNDS {
        assert_eq!(member.of(NEXT, 0, number, (0, 16)).len(), 2, "{number}");
    }
    assert_eq!(
        member.of(NEXT, 0, MAX_ROUNDS, (0, 16)),
        ["reject 0"],
        "its sender has had no answer so often"
    );
    assert_eq!(member.buffers(), MAX_ROUNDS as usize);
}

#[test]
fn a_failure_ends_an_exchange_and_keeps_what_is_on_its_way() {
    let mut member = Member::of_four(1);
    member.begin(5, NEXT);
    member.of(NEXT, 0, 0, (0, 8));
    member.of(NEXT, 0, 1, (0, 16));
    assert_eq!(
        member.failed(0, 3),
        ["5 lost with 3 Died", "refused 1 to 0", "free 1"],
        "rank 2 is no neighbour, and learns it from its own"
    );
    assert_eq!(member.of(NEXT, 0, 0, (8, 8)), ["refused 0 to 0"]);
    assert_eq!(member.buffers(), 1);
    assert_eq!(member.taken(2, 0, true), ["free 0"]);
    assert!(member.machine.is_quiescent());
}
