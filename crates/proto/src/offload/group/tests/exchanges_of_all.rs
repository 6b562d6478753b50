//! All-gathers and all-to-alls of one member: blocks of 16 bytes, of a group of four. Rank 1 has the blocks of 1, 2, 3 and 0 in
//! its buffer, in this order.

use super::*;

const ALL_GATHER: Operation = Operation::AllGather { bytes: 16 };
const ALL_TO_ALL: Operation = Operation::AllToAll { bytes: 16 };

impl Member {
    /// A packet of an all-gather.
    fn gathered(
        &mut self,
        from: u32,
        number: u32,
        blocks: u16,
        (offset, payload): (u32, u32),
    ) -> Vec<String> {
        let packet = GroupPacket::Part { group: GROUP, operation: ALL_GATHER, blocks, offset };
        self.packet(from, number, packet, payload)
    }

    /// The endpoint ends the buffer of a packet that has left.
    fn left(&mut self, buffer: u32) {
        self.driver.free(BufferId(buffer));
        self.driver.calls.clear();
        self.machine.answer_left(BufferId(buffer));
    }
}

#[test]
fn an_all_gather_has_twice_as_many_blocks_after_each_step_and_nobody_answers() {
    let mut member = Member::of_four(1);
    assert_eq!(
        member.begin(5, ALL_GATHER),
        [
            "buffer 0 of 16",
            "copy 16 of request 5+0 to buffer 0+0",
            "blocks 0 to 0: 16 of buffer 0+0 at 0 of 16"
        ]
    );
    assert_eq!(
        member.gathered(2, 0, 1, (0, 16)),
        [
            "copy 16 of payload to request 5+16",
            "buffer 1 of 32",
            "copy 32 of request 5+0 to buffer 1+0",
            "blocks 0 to 3: 32 of buffer 1+0 at 0 of 32"
        ]
    );
    assert_eq!(member.gathered(3, 0, 2, (0, 24)), ["copy 24 of payload to request 5+32"]);
    assert!(!member.machine.is_quiescent());
    assert_eq!(member.gathered(3, 0, 2, (24, 8)), ["copy 8 of payload to request 5+56", "5 Done"]);
    assert!(member.machine.is_quiescent(), "no answer is awaited");
    assert_eq!(member.buffers(), 2, "the packets have theirs until they have left");
    member.left(0);
    member.left(1);
    assert_eq!(member.buffers(), 0);
}

#[test]
fn blocks_that_come_before_their_step_go_to_their_places_and_before_the_start_they_are_kept() {
    let mut member = Member::of_four(1);
    assert_eq!(member.gathered(3, 0, 2, (0, 32)), ["buffer 0 of 32", "copy 32 of payload to buffer 0+0"]);
    assert!(member.machine.is_quiescent());
    assert_eq!(member.begin(5, ALL_GATHER).len(), 3);
    assert_eq!(
        member.gathered(2, 0, 1, (0, 16)),
        [
            "copy 16 of payload to request 5+16",
            "buffer 2 of 32",
            "copy 32 of request 5+0 to buffer 2+0",
            "blocks 0 to 3: 32 of buffer 2+0 at 0 of 32",
            "copy 32 of buffer 0+0 to request 5+32",
            "free 0",
            "5 Done"
        ]
    );
    member.begin(6, ALL_GATHER);
    assert_eq!(member.gathered(3, 1, 2, (0, 32)), ["copy 32 of payload to request 6+32"]);
    assert_eq!(member.gathered(2, 1, 1, (0, 16)).last().map(String::as_str), Some("6 Done"));
}

#[test]
fn an_all_to_all_sends_all_blocks_at_once_and_those_of_others_take_their_places() {
    let mut member = Member::of_four(1);
    assert_eq!(member.of(ALL_TO_ALL, 0, 0, (0, 16)), ["buffer 0 of 16", "copy 16 of payload to buffer 0+0"]);
    assert_eq!(
        member.begin(5, ALL_TO_ALL),
        [
            "buffer 1 of 16",
            "copy 16 of request 5+16 to buffer 1+0",
            "blocks 0 to 2: 16 of buffer 1+0 at 0 of 16",
            "buffer 2 of 16",
            "copy 16 of request 5+32 to buffer 2+0",
            "blocks 0 to 3: 16 of buffer 2+0 at 0 of 16",
            "buffer 3 of 16",
            "copy 16 of request 5+48 to buffer 3+0",
            "blocks 0 to 0: 16 of buffer 3+0 at 0 of 16",
            "copy 16 of buffer 0+0 to request 5+48",
            "free 0"
        ]
    );
    assert_eq!(member.of(ALL_TO_ALL, 2, 0, (0, 8)), ["copy 8 of payload to request 5+16"]);
    assert_eq!(member.of(ALL_TO_ALL, 3, 0, (0, 16)), ["copy 16 of payload to request 5+32"]);
    assert_eq!(member.of(ALL_TO_ALL, 2, 0, (8, 8)), ["copy 8 of payload to request 5+24", "5 Done"]);
    assert!(member.machine.is_quiescent());
}

#[test]
fn blocks_wait_in_memory_of_their_own_until_all_have_joined() {
    let mut member = Member::joined(1, None);
    assert_eq!(member.begin(5, ALL_TO_ALL), [""; 0]);
    // Ranks 0 and 2 know already that all have joined. The block for rank 0 has not been copied yet.
    assert_eq!(member.of(ALL_TO_ALL, 0, 0, (0, 16)), ["buffer 0 of 16", "copy 16 of payload to buffer 0+0"]);
    let calls = member.hear_all(1);
    assert!(calls.contains(&"copy 16 of request 5+48 to buffer 3+0".into()), "{calls:?}");
    assert_eq!(calls[calls.len() - 2..], ["copy 16 of buffer 0+0 to request 5+48", "free 0"]);
}

#[test]
fn blocks_of_wrong_senders_numbers_and_lengths_are_rejected() {
    let mut member = Member::of_four(1);
    assert_eq!(member.gathered(0, 0, 1, (0, 16)), ["reject 0"], "3 ranks away");
    assert_eq!(member.gathered(3, 0, 1, (0, 16)), ["reject 3"], "it has two");
    assert_eq!(member.gathered(2, 0, 1, (8, 16)), ["reject 2"], "more than a block");
    for number in 0..MAX_ROUNDS {
        assert_eq!(member.gathered(2, number, 1, (0, 16)).len(), 2, "{number}");
    }
    assert_eq!(member.gathered(2, MAX_ROUNDS, 1, (0, 16)), ["reject 2"], "nobody is so far ahead");
    let most = MAX_GATHERED_BYTES / 128;
    for (bytes, is_taken) in [(most, true), (most + 1, false), (MAX_EXCHANGE_BYTES + 1, false)] {
        for operation in [Operation::AllGather { bytes }, Operation::AllToAll { bytes }] {
            let mut member = Member::alone();
            let members = (0..128).map(Peer).collect();
            let membership =
                Membership { group: GROUP, members, rank: 0, patience_ns: None, shape: Shape::default() };
            member.post(GroupCommand::Join(membership));
            assert_eq!(member.begin(5, operation) == ["5 Refused"], !is_taken, "{operation:?}");
        }
    }
}

#[test]
fn a_failure_ends_them_and_packets_on_their_way_keep_their_buffers() {
    let mut member = Member::of_four(1);
    member.begin(5, ALL_GATHER);
    member.gathered(3, 0, 2, (0, 8));
    member.gathered(3, 1, 2, (0, 32));
    assert_eq!(member.buffers(), 2, "one of a packet, one of what is early");
    assert_eq!(member.failed(0, 3), ["5 lost with 3 Died", "free 1"]);
    assert!(member.machine.is_quiescent());
    assert_eq!(member.gathered(3, 0, 2, (8, 24)), [""; 0], "nobody waits for an answer");
    member.left(0);
    assert_eq!(member.buffers(), 0);
    let mut outside = Member::alone();
    assert_eq!(outside.gathered(3, 0, 2, (0, 32)), [""; 0]);
}
