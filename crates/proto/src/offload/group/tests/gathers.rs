//! Gathers and scatters of one member: blocks of 16 bytes. In a group of four, everyone sends to the root. In one of 193, rank
//! 1 leads ranks 2 and 3.

use super::*;

/// To rank 2.
const GATHER: Operation = Operation::Gather { root: 2, bytes: 16 };
/// From rank 2.
const SCATTER: Operation = Operation::Scatter { root: 2, bytes: 16 };
const LARGE_GATHER: Operation = Operation::Gather { root: 0, bytes: 16 };
const LARGE_SCATTER: Operation = Operation::Scatter { root: 0, bytes: 16 };

/// Rank 1 of 193 members.
fn leader() -> Member {
    let mut member = Member::alone();
    let members = (0..193).map(Peer).collect();
    let membership =
        Membership { group: GROUP, members, rank: 1, patience_ns: None, shape: Shape::default() };
    member.post(GroupCommand::Join(membership));
    member.hear_joined(0, false);
    member.hear_joined(0, true);
    member
}

impl Member {
    /// A packet with `blocks` blocks in all.
    fn blocks(
        &mut self,
        (operation, blocks): (Operation, u16),
        from: u32,
        number: u32,
        (offset, payload): (u32, u32),
    ) -> Vec<String> {
        self.packet(from, number, GroupPacket::Part { group: GROUP, operation, blocks, offset }, payload)
    }
}

#[test]
fn a_member_of_a_gather_ends_at_once_and_its_root_when_all_blocks_are_there() {
    let mut member = Member::of_four(1);
    assert_eq!(
        member.begin(5, GATHER),
        [
            "buffer 0 of 16",
            "copy 16 of request 5+0 to buffer 0+0",
            "blocks 0 to 2: 16 of buffer 0+0 at 0 of 16",
            "5 Done"
        ]
    );
    assert!(!member.machine.is_quiescent(), "the root reads the buffer");
    assert_eq!(member.taken(2, 0, false), ["free 0"]);
    assert!(member.machine.is_quiescent());

    let mut root = Member::of_four(2);
    // From rank 2 on, in a circle: 2, 3, 0, 1.
    assert_eq!(root.of(GATHER, 1, 0, (0, 16)), ["buffer 0 of 16", "copy 16 of payload to buffer 0+0"]);
    assert!(root.machine.is_quiescent());
    assert_eq!(root.begin(5, GATHER), [""; 0]);
    assert_eq!(root.of(GATHER, 0, 0, (0, 8)), ["copy 8 of payload to request 5+32"]);
    assert_eq!(root.of(GATHER, 3, 0, (0, 16)), ["copy 16 of payload to request 5+16", "taken 0 to 3"]);
    assert_eq!(
        root.of(GATHER, 0, 0, (8, 8)),
        [
            "copy 8 of payload to request 5+40",
            "taken 0 to 0",
            "copy 16 of buffer 0+0 to request 5+48",
            "free 0",
            "taken 0 to 1",
            "5 Done"
        ]
    );
    assert!(root.machine.is_quiescent());
}

#[test]
fn the_root_of_a_scatter_ends_at_once_and_a_member_when_its_block_is_there() {
    let mut root = Member::of_four(2);
    assert_eq!(
        root.begin(5, SCATTER),
        [
            "buffer 0 of 64",
            "copy 64 of request 5+0 to buffer 0+0",
            "blocks 0 to 3: 16 of buffer 0+16 at 0 of 16",
            "blocks 0 to 0: 16 of buffer 0+32 at 0 of 16",
            "blocks 0 to 1: 16 of buffer 0+48 at 0 of 16",
            "5 Done"
        ]
    );
    assert_eq!(root.taken(0, 0, false), [""; 0]);
    assert_eq!(root.taken(3, 0, false), [""; 0]);
    assert_eq!(root.taken(1, 0, false), ["free 0"]);
    assert!(root.machine.is_quiescent());

    let mut member = Member::of_four(1);
    assert_eq!(member.of(SCATTER, 2, 0, (0, 8)), ["buffer 0 of 16", "copy 8 of payload to buffer 0+0"]);
    assert_eq!(member.begin(5, SCATTER), [""; 0]);
    assert_eq!(
        member.of(SCATTER, 2, 0, (8, 8)),
        [
            "copy 8 of payload to buffer 0+8",
            "copy 16 of buffer 0+0 to request 5+0",
            "free 0",
            "taken 0 to 2",
            "5 Done"
        ]
    );
    member.begin(6, SCATTER);
    assert_eq!(
        member.of(SCATTER, 2, 1, (0, 16)),
        ["copy 16 of payload to request 6+0", "taken 1 to 2", "6 Done"]
    );
    assert!(member.machine.is_quiescent() && member.buffers() == 0);
}

#[test]
fn a_leader_passes_the_blocks_of_its_interval_on_as_one() {
    let mut leader = leader();
    assert_eq!(leader.begin(5, LARGE_GATHER), ["buffer 0 of 48", "copy 16 of request 5+0 to buffer 0+0"]);
    assert_eq!(leader.blocks((LARGE_GATHER, 1), 3, 0, (0, 16)), ["copy 16 of payload to buffer 0+32"]);
    assert_eq!(
        leader.blocks((LARGE_GATHER, 1), 2, 0, (0, 16)),
        [
            "copy 16 of payload to buffer 0+16",
            "taken 0 to 2",
            "taken 0 to 3",
            "blocks 0 to 0: 48 of buffer 0+0 at 0 of 48",
            "5 Done"
        ]
    );
    assert_eq!(leader.taken(0, 0, false), ["free 0"]);

    assert_eq!(leader.begin(6, LARGE_SCATTER), [""; 0]);
    assert_eq!(
        leader.blocks((LARGE_SCATTER, 3), 0, 1, (0, 40)),
        ["buffer 0 of 48", "copy 40 of payload to buffer 0+0"]
    );
    assert_eq!(
        leader.blocks((LARGE_SCATTER, 3), 0, 1, (40, 8)),
        [
            "copy 8 of payload to buffer 0+40",
            "copy 16 of buffer 0+0 to request 6+0",
            "taken 1 to 0",
            "blocks 1 to 2: 16 of buffer 0+16 at 0 of 16",
            "blocks 1 to 3: 16 of buffer 0+32 at 0 of 16",
            "6 Done"
        ]
    );
    assert_eq!(leader.taken(3, 1, false), [""; 0]);
    assert_eq!(leader.taken(2, 1, false), ["free 0"]);
    assert!(leader.machine.is_quiescent());
}

#[test]
fn blocks_that_nobody_is_to_send_or_of_another_number_are_rejected() {
    let mut member = Member::of_four(1);
    assert_eq!(member.of(GATHER, 0, 0, (0, 16)), ["reject 0"], "rank 2 is the root");
    assert_eq!(member.of(SCATTER, 0, 0, (0, 16)), ["reject 0"], "rank 2 is the root");
    let mut root = Member::of_four(2);
    assert_eq!(root.blocks((GATHER, 2), 0, 0, (0, 16)), ["reject 0"], "a member of four has one block");
    assert_eq!(root.of(GATHER, 0, 0, (8, 16)), ["reject 0"], "more than a block");
    assert_eq!(root.buffers(), 0);
    for number in 0..MAX_ROUNDS {
        assert_eq!(root.of(GATHER, 0, number, (0, 16)).len(), 2, "{number}");
    }
    assert_eq!(
        root.of(GATHER, 0, MAX_ROUNDS, (0, 16)),
        ["reject 0"],
        "its sender has had no answer so often"
    );
    for wrong in [
        Operation::Gather { root: 4, bytes: 16 },
        Operation::Scatter { root: 0, bytes: MAX_EXCHANGE_BYTES + 1 },
    ] {
        assert_eq!(member.begin(5, wrong), ["5 Refused"], "{wrong:?}");
    }
    let mut leader = leader();
    for (bytes, is_taken) in [(MAX_GATHERED_BYTES / 193, true), (MAX_GATHERED_BYTES / 193 + 1, false)] {
        let calls = leader.begin(5, Operation::Gather { root: 0, bytes });
        assert_eq!(calls == ["5 Refused"], !is_taken, "{bytes}: {calls:?}");
    }
}

#[test]
fn a_failure_ends_a_gather_and_a_scatter_and_keeps_what_is_on_its_way() {
    let mut root = Member::of_four(2);
    root.begin(5, GATHER);
    root.of(GATHER, 3, 0, (0, 16));
    root.of(GATHER, 1, 0, (0, 16));
    root.of(GATHER, 0, 0, (0, 8));
    assert_eq!(root.failed(0, 3), ["failed to 3: 3 Died", "refused 0 to 1", "5 lost with 3 Died"]);
    assert_eq!(root.of(GATHER, 0, 0, (8, 8)), ["refused 0 to 0"]);
    assert!(root.machine.is_quiescent() && root.buffers() == 0);

    let mut leader = leader();
    leader.begin(5, LARGE_GATHER);
    leader.blocks((LARGE_GATHER, 1), 2, 0, (0, 16));
    leader.begin(6, LARGE_SCATTER);
    leader.blocks((LARGE_SCATTER, 3), 0, 1, (0, 40));
    assert_eq!(leader.buffers(), 2);
    assert_eq!(
        leader.failed(0, 3),
        ["free 0", "5 lost with 3 Died", "free 1", "6 lost with 3 Died"],
        "rank 2 has had its answer"
    );
    assert_eq!(leader.blocks((LARGE_SCATTER, 3), 0, 1, (40, 8)), ["refused 1 to 0"]);
    assert_eq!(leader.blocks((LARGE_GATHER, 1), 3, 0, (0, 16)), ["refused 0 to 3"]);
    assert!(leader.machine.is_quiescent() && leader.buffers() == 0);
}

#[test]
fn blocks_for_a_group_that_is_not_there_are_refused_when_the_last_has_come() {
    let mut member = Member::alone();
    assert_eq!(member.blocks((LARGE_SCATTER, 3), 0, 1, (0, 40)), [""; 0]);
    assert_eq!(member.blocks((LARGE_SCATTER, 3), 0, 1, (40, 8)), ["refused 1 to 0"]);
    assert_eq!(member.blocks((LARGE_SCATTER, 3), 0, 1, (48, 8)), ["reject 0"]);
}
