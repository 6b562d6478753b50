//! Tests of the exact calls of one machine of reductions.

use alloc::format;
use alloc::string::String;
use alloc::vec;

use super::*;
use crate::event::BufferId;
use crate::machine::{Memory, Operand, Payload};
use crate::offload::{Offload, OffloadCommand, Offloaded, WordOperation, WordType, WordUpdate};
use crate::time::Instant;

const GROUP: u32 = 9;
const SUM: Combination = Combination { operation: WordOperation::Sum, word_type: WordType::U64 };

/// A driver that notes the calls. The time is 100 ns.
#[derive(Default)]
struct Calls {
    calls: Vec<String>,
    buffers: Vec<bool>,
}

fn place(memory: Memory) -> String {
    match memory {
        Memory::Request { request, offset } => format!("request {}+{offset}", request.0),
        Memory::Region { key, offset } => format!("region {key}+{offset}"),
        Memory::Buffer { buffer, offset } => format!("buffer {}+{offset}", buffer.0),
    }
}

fn operand(operand: Operand) -> String {
    match operand {
        Operand::Arrived => "payload".into(),
        Operand::Memory(memory) => place(memory),
    }
}

impl MachineDriver for Calls {
    fn now(&mut self) -> Instant {
        Instant(100)
    }

    fn set_timer(&mut self, timer: MachineTimer, at: Instant) {
        assert_eq!(timer, MachineTimer::Reduction { group: GROUP });
        self.calls.push(format!("timer at {}", at.0));
    }

    fn cancel_timer(&mut self, timer: MachineTimer) {
        assert_eq!(timer, MachineTimer::Reduction { group: GROUP });
        self.calls.push("no timer".into());
    }

    fn send(&mut self, to: Peer, number: u32, packet: Offloaded, payload: Option<Payload>) {
        let Offloaded::Reduce(packet) = packet else { panic!("{packet:?}") };
        assert_eq!(packet.group(), GROUP);
        let payload = payload.map(|payload| format!("{} of {}", payload.bytes, place(payload.memory)));
        self.calls.push(match (packet, payload) {
            (ReducePacket::Joined { .. }, None) => format!("joined to {}", to.0),
            (ReducePacket::Contribution { vector, offset: 0, .. }, Some(payload)) => {
                format!("contribution {number} to {}: {payload} of {}", to.0, vector.bytes)
            }
            (ReducePacket::Taken { refused: false, .. }, None) => format!("taken {number} to {}", to.0),
            (ReducePacket::Taken { refused: true, .. }, None) => format!("refused {number} to {}", to.0),
            (ReducePacket::Failed { member, fault, .. }, None) => {
                format!("failed to {}: {member} {fault:?}", to.0)
            }
            other => panic!("{other:?}"),
        });
    }

    fn reject(&mut self, from: Peer) {
        self.calls.push(format!("reject {}", from.0));
    }

    fn update_word(&mut self, _key: u64, _offset: u64, _update: &WordUpdate) -> Option<u64> {
        unimplemented!("reductions change no words")
    }

    fn place_word(&mut self, _request: Request, _word: u64, _bytes: u32) {
        unimplemented!("reductions place no words")
    }

    fn allocate(&mut self, bytes: u32) -> BufferId {
        let name = self.buffers.iter().position(|used| !used).unwrap_or(self.buffers.len());
        self.buffers.resize(self.buffers.len().max(name + 1), false);
        self.buffers[name] = true;
        self.calls.push(format!("buffer {name} of {bytes}"));
        BufferId(name as u32)
    }

    fn free(&mut self, buffer: BufferId) {
        assert!(core::mem::take(&mut self.buffers[buffer.0 as usize]), "{buffer:?} is freed twice");
        self.calls.push(format!("free {}", buffer.0));
    }

    fn copy(&mut self, from: Operand, into: Memory, bytes: u32) {
        self.calls.push(format!("copy {bytes} of {} to {}", operand(from), place(into)));
    }

    fn combine(&mut self, from: Operand, into: Memory, combination: Combination, bytes: u32) {
        assert_eq!(combination, SUM);
        self.calls.push(format!("combine {bytes} of {} into {}", operand(from), place(into)));
    }

    fn complete(&mut self, request: Request, outcome: Outcome) {
        self.calls.push(match outcome {
            Outcome::Lost { peer: Some(peer), fault } => {
                format!("{} lost with {} {fault:?}", request.0, peer.0)
            }
            outcome => format!("{} {outcome:?}", request.0),
        });
    }
}

/// A member of a group of four: peers have the numbers of the ranks.
struct Member {
    machine: Offload,
    driver: Calls,
}

impl Member {
    fn joined(rank: u32, patience_ns: Option<u64>) -> Member {
        let mut member = Member { machine: Offload::default(), driver: Calls::default() };
        let members = (0..4).map(Peer).collect();
        let membership = Membership { group: GROUP, members, rank, patience_ns };
        let neighbours: &[&str] = match rank {
            0 => &["joined to 1", "joined to 2"],
            1 => &["joined to 0"],
            2 => &["joined to 0", "joined to 3"],
            _ => &["joined to 2"],
        };
        assert_eq!(member.post(ReduceCommand::Join(membership)), neighbours);
        member
    }

    /// The same after all neighbours have joined.
    fn of_four(rank: u32) -> Member {
        let mut member = Member::joined(rank, None);
        for peer in 0..4 {
            let neighbours: &[u32] = match rank {
                0 => &[1, 2],
                1 => &[0],
                2 => &[0, 3],
                _ => &[2],
            };
            if neighbours.contains(&peer) {
                assert_eq!(member.packet(peer, 0, ReducePacket::Joined { group: GROUP }, 0).len(), 1);
            }
        }
        member
    }

    fn event(&mut self, event: MachineEvent<OffloadCommand, Offloaded>) -> Vec<String> {
        self.machine.handle(event, &mut self.driver).expect("within the bounds");
        core::mem::take(&mut self.driver.calls)
    }

    fn post(&mut self, command: ReduceCommand) -> Vec<String> {
        self.event(MachineEvent::Posted(OffloadCommand::Reduce(command)))
    }

    fn start(&mut self, request: u32, bytes: u32) -> Vec<String> {
        self.post(start(request, bytes))
    }

    fn packet(&mut self, from: u32, number: u32, packet: ReducePacket, payload_bytes: u32) -> Vec<String> {
        let packet = Offloaded::Reduce(packet);
        self.event(MachineEvent::Arrived { from: Peer(from), number, packet, payload_bytes })
    }

    /// A packet of a contribution of `bytes` bytes, with `payload` bytes at `offset`.
    fn part(&mut self, from: u32, number: u32, bytes: u32, (offset, payload): (u32, u32)) -> Vec<String> {
        let vector = Vector { bytes, combination: SUM };
        self.packet(from, number, ReducePacket::Contribution { group: GROUP, vector, offset }, payload)
    }

    fn contribution(&mut self, from: u32, number: u32, bytes: u32) -> Vec<String> {
        self.part(from, number, bytes, (0, bytes))
    }

    fn taken(&mut self, from: u32, number: u32, refused: bool) -> Vec<String> {
        self.packet(from, number, ReducePacket::Taken { group: GROUP, refused }, 0)
    }

    fn failed(&mut self, from: u32, member: u32) -> Vec<String> {
        let fault = PeerFault::Died;
        self.packet(from, 0, ReducePacket::Failed { group: GROUP, member, fault }, 0)
    }

    fn lose(&mut self, peer: u32) -> Vec<String> {
        self.event(MachineEvent::Lost { peer: Peer(peer), fault: PeerFault::Died })
    }

    fn buffers(&self) -> usize {
        self.driver.buffers.iter().filter(|used| **used).count()
    }
}

fn start(request: u32, bytes: u32) -> ReduceCommand {
    let vector = Vector { bytes, combination: SUM };
    ReduceCommand::Start { request: Request(request), group: GROUP, vector }
}

#[test]
fn a_leaf_sends_a_copy_of_its_vector_and_completes_with_the_answer() {
    let mut leaf = Member::of_four(3);
    let sent = ["buffer 0 of 16", "copy 16 of request 5+0 to buffer 0+0"];
    assert_eq!(leaf.start(5, 16)[..2], sent);
    assert_eq!(leaf.start(6, 8)[2], "contribution 1 to 2: 8 of buffer 1+0 of 8");
    assert!(!leaf.machine.is_quiescent());
    assert_eq!(leaf.taken(2, 0, false), ["free 0", "5 Done"]);
    assert_eq!(leaf.taken(2, 1, false), ["free 1", "6 Done"]);
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
fn an_inner_member_sends_what_it_has_combined_when_its_parent_has_joined() {
    let mut inner = Member::joined(2, None);
    assert_eq!(inner.start(5, 8), ["buffer 0 of 8", "copy 8 of request 5+0 to buffer 0+0"]);
    assert_eq!(inner.contribution(3, 0, 8), ["combine 8 of payload into buffer 0+0", "taken 0 to 3"]);
    let joined = ReducePacket::Joined { group: GROUP };
    assert_eq!(
        inner.packet(0, 0, joined, 0),
        ["joined to 0", "contribution 0 to 0: 8 of buffer 0+0 of 8"],
        "our first packet may have come before it joined"
    );
    assert_eq!(inner.packet(0, 0, joined, 0), [""; 0], "it knows");
    assert_eq!(inner.taken(0, 0, false), ["free 0", "5 Done"]);
}

#[test]
fn a_group_of_one_and_an_empty_vector_complete() {
    let mut alone = Member { machine: Offload::default(), driver: Calls::default() };
    let members = vec![Peer(7)];
    let membership = Membership { group: GROUP, members, rank: 0, patience_ns: None };
    assert_eq!(alone.post(ReduceCommand::Join(membership)), [""; 0]);
    assert_eq!(alone.start(5, 8), ["5 Done"]);
    let mut root = Member::of_four(0);
    root.start(5, 0);
    root.contribution(1, 0, 0);
    assert_eq!(root.contribution(2, 0, 0).last().expect("a call"), "5 Done");
}

#[test]
fn a_member_has_a_bound_on_reductions_and_a_child_that_exceeds_it_is_malformed() {
    let mut leaf = Member::of_four(1);
    (0..MAX_REDUCTIONS).for_each(|request| drop(leaf.start(request, 8)));
    let command = OffloadCommand::Reduce(start(99, 8));
    let refused = leaf.machine.handle(MachineEvent::Posted(command), &mut leaf.driver);
    assert_eq!((refused, leaf.driver.calls.len()), (Err(Refusal::RemoteOperations), 0));
    leaf.taken(0, 0, false);
    assert_eq!(leaf.start(99, 8)[2], "contribution 4 to 0: 8 of buffer 0+0 of 8");
    let mut root = Member::of_four(0);
    for number in 0..MAX_REDUCTIONS {
        assert_eq!(root.contribution(1, number, 8).len(), 2, "a buffer");
    }
    assert_eq!(root.contribution(1, MAX_REDUCTIONS, 8), ["reject 1"]);
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
        (1, 1, good, 0, 16),        // not its next reduction
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
        let packet = ReducePacket::Contribution { group: GROUP, vector, offset };
        let rejected = [format!("reject {from}")];
        assert_eq!(root.packet(from, number, packet, payload_bytes), rejected, "{packet:?} {payload_bytes}");
        assert_eq!(root.buffers(), 0);
    }
    // Vectors of other lengths than ours, before the start and after.
    let mut root = Member::of_four(0);
    root.contribution(1, 0, 8);
    assert_eq!(root.start(5, 16), ["free 0", "reject 1"]);
    let mut root = Member::of_four(0);
    root.start(5, 16);
    assert_eq!(root.contribution(1, 0, 8), ["reject 1"]);
}

#[test]
fn other_packets_that_make_no_sense_are_rejected() {
    let mut root = Member::of_four(0);
    assert_eq!(root.packet(3, 0, ReducePacket::Joined { group: GROUP }, 0), ["reject 3"]);
    assert_eq!(root.taken(1, 0, false), ["reject 1"]);
    assert_eq!(root.failed(1, 4), ["reject 1"], "no such member");
    assert_eq!(root.failed(3, 1), ["reject 3"], "no neighbour");
    let mut leaf = Member::of_four(1);
    leaf.start(5, 8);
    assert_eq!(leaf.taken(0, 0, true), ["reject 0"], "the parent has not said why");
    assert_eq!(leaf.taken(0, 1, false), ["reject 0"], "another number");
}

#[test]
fn a_lost_child_ends_all_reductions_and_the_neighbours_are_told() {
    let mut inner = Member::of_four(2);
    inner.start(5, 8);
    inner.contribution(3, 0, 8);
    inner.start(6, 8);
    assert_eq!(
        inner.lose(3),
        ["failed to 0: 3 Died", "5 lost with 3 Died", "free 1", "6 lost with 3 Died"],
        "buffer 0 may wait for credit"
    );
    assert_eq!(inner.lose(3), [""; 0], "it may come again");
    assert_eq!(inner.start(7, 8), ["7 lost with 3 Died"]);
    assert_eq!(inner.taken(0, 0, false), ["free 0"]);
    assert_eq!(inner.buffers(), 0);
}

#[test]
fn a_lost_parent_ends_what_it_has_not_answered() {
    let mut inner = Member::of_four(2);
    inner.start(5, 8);
    inner.contribution(3, 0, 8);
    inner.start(6, 8);
    inner.part(3, 1, 8, (0, 8));
    inner.part(3, 2, 16, (0, 8)); // the first half
    assert_eq!(
        inner.lose(0),
        ["free 0", "5 lost with 0 Died", "free 1", "6 lost with 0 Died", "failed to 3: 0 Died", "free 2"]
    );
    assert_eq!((inner.buffers(), inner.machine.is_quiescent()), (0, true));
    assert_eq!(inner.part(3, 2, 16, (8, 8)), ["refused 2 to 3"], "it had not heard");
}

#[test]
fn the_loss_of_a_distant_member_comes_from_a_neighbour_and_goes_to_the_others() {
    let mut root = Member::of_four(0);
    root.contribution(1, 0, 8);
    root.start(5, 8);
    root.contribution(1, 1, 8);
    assert_eq!(
        root.failed(2, 3),
        ["failed to 1: 3 Died", "refused 1 to 1", "5 lost with 3 Died", "free 0"],
        "the sender knows"
    );
    let mut leaf = Member::of_four(1);
    leaf.start(5, 8);
    leaf.start(6, 8);
    assert_eq!(leaf.failed(0, 3), ["5 lost with 3 Died", "6 lost with 3 Died"]);
    assert_eq!(leaf.taken(0, 0, false), ["free 0"]);
    assert_eq!(leaf.taken(0, 1, true), ["free 1"]);
    assert!(leaf.machine.is_quiescent());
}

#[test]
fn a_member_that_joins_late_hears_that_the_group_has_failed() {
    let mut root = Member::joined(0, None);
    assert_eq!(root.lose(2), ["failed to 1: 2 Died"]);
    assert_eq!(root.packet(1, 0, ReducePacket::Joined { group: GROUP }, 0), ["failed to 1: 2 Died"]);
}

#[test]
fn a_reduction_that_waits_too_long_names_the_missing_member() {
    let mut root = Member::joined(0, Some(50));
    assert_eq!(root.start(5, 8), ["timer at 150"]);
    assert_eq!(root.start(6, 8), [""; 0], "the oldest one counts");
    root.contribution(1, 0, 8);
    let expired = MachineEvent::TimerExpired(MachineTimer::Reduction { group: GROUP });
    assert_eq!(
        root.event(expired.clone()),
        [
            "no timer",
            "failed to 1: 2 NotReady",
            "failed to 2: 2 NotReady",
            "5 lost with 2 NotReady",
            "6 lost with 2 NotReady"
        ]
    );
    assert_eq!(root.event(expired.clone()), [""; 0], "a late report");
    let mut leaf = Member::joined(1, Some(50));
    leaf.start(5, 8);
    assert_eq!(leaf.event(expired)[1..], ["failed to 0: 0 NotReady", "free 0", "5 lost with 0 NotReady"]);
    let mut quick = Member::joined(0, Some(50));
    quick.start(5, 8);
    quick.contribution(2, 0, 8);
    assert_eq!(quick.contribution(1, 0, 8)[4..], ["taken 0 to 2", "no timer", "5 Done"]);
}

#[test]
fn a_member_that_leaves_ends_the_group_for_the_others() {
    let mut inner = Member::of_four(2);
    inner.start(5, 8);
    inner.contribution(3, 0, 8);
    let calls = inner.post(ReduceCommand::Leave { group: GROUP });
    assert_eq!(calls, ["failed to 0: 2 Closed", "failed to 3: 2 Closed", "5 lost with 2 Closed"]);
    assert_eq!(inner.start(6, 8), ["6 Refused"], "it has left");
    assert_eq!(inner.taken(0, 0, true), ["free 0"]);
    assert_eq!(inner.contribution(3, 1, 8), ["refused 1 to 3"], "it had not heard");
    assert_eq!(inner.failed(3, 2), [""; 0]);
    let membership =
        Membership { group: GROUP, members: (0..4).map(Peer).collect(), rank: 2, patience_ns: None };
    assert_eq!(inner.post(ReduceCommand::Join(membership)).len(), 2, "nothing is left of it");
}

#[test]
fn groups_have_a_bound_and_different_numbers() {
    let mut member = Member::of_four(1);
    let join = |group| {
        let members = vec![Peer(0)];
        let membership = Membership { group, members, rank: 0, patience_ns: None };
        MachineEvent::Posted(OffloadCommand::Reduce(ReduceCommand::Join(membership)))
    };
    let mut post = |group| member.machine.handle(join(group), &mut member.driver);
    assert_eq!(post(GROUP), Err(Refusal::Groups));
    for group in 1..MAX_GROUPS as u32 {
        assert_eq!(post(100 + group), Ok(()));
    }
    assert_eq!(post(1000), Err(Refusal::Groups));
    assert_eq!(
        member.post(ReduceCommand::Start {
            request: Request(1),
            group: 1000,
            vector: Vector { bytes: 8, combination: SUM }
        }),
        ["1 Refused"]
    );
    assert_eq!(member.start(2, 12), ["2 Refused"], "half an element");
}

#[test]
fn pending_reductions_depend_on_the_neighbours() {
    let mut inner = Member::of_four(2);
    let watched = |member: &Member| {
        let mut peers = Vec::new();
        member.machine.depends_on(|peer| peers.push(peer));
        peers
    };
    assert_eq!(watched(&inner), []);
    inner.start(5, 8);
    assert_eq!(watched(&inner), [Peer(0), Peer(3)]);
}
