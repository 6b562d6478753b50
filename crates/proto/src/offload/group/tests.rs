//! Tests of the exact calls of one machine of groups. This file has their driver and a member of four.

use alloc::format;
use alloc::string::String;
use alloc::vec;

use super::*;
use crate::event::BufferId;
use crate::machine::{Memory, Operand, Payload};
use crate::offload::{Offload, OffloadCommand, Offloaded, WordOperation, WordType, WordUpdate};
use crate::time::Instant;

mod barriers;
mod blocks;
mod broadcasts;
mod exchanges;
mod exchanges_of_all;
mod failures;
mod gathers;
mod joining;
mod reductions;

const GROUP: u32 = 9;
const SUM: Combination = Combination { operation: WordOperation::Sum, word_type: WordType::U64 };
const FLOAT_SUM: Combination = Combination { operation: WordOperation::Sum, word_type: WordType::F64 };

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
        assert_eq!(timer, MachineTimer::Group { group: GROUP });
        self.calls.push(format!("timer at {}", at.0));
    }

    fn cancel_timer(&mut self, timer: MachineTimer) {
        assert_eq!(timer, MachineTimer::Group { group: GROUP });
        self.calls.push("no timer".into());
    }

    fn send(&mut self, to: Peer, number: u32, packet: Offloaded, payload: Option<Payload>) {
        let Offloaded::Group(packet) = packet else { panic!("{packet:?}") };
        assert_eq!(packet.group(), GROUP);
        let payload = payload.map(|payload| format!("{} of {}", payload.bytes, place(payload.memory)));
        self.calls.push(match (packet, payload) {
            (GroupPacket::Joined { all: false, .. }, None) => format!("joined to {}", to.0),
            (GroupPacket::Joined { all: true, .. }, None) => format!("all joined to {}", to.0),
            (GroupPacket::Part { operation: Operation::Barrier, offset: 0, .. }, None) => {
                format!("barrier {number} to {}", to.0)
            }
            (GroupPacket::Part { operation, blocks, offset, .. }, Some(payload)) => {
                let name = match operation {
                    Operation::Reduce(_) => "contribution",
                    Operation::AllReduce(_) => "all-reduce",
                    Operation::Broadcast { .. } => "broadcast",
                    Operation::Exchange { .. } => "block",
                    Operation::Gather { .. } | Operation::Scatter { .. } => "blocks",
                    Operation::AllGather { .. } | Operation::AllToAll { .. } => "blocks",
                    Operation::Barrier => panic!("a barrier has no payload"),
                };
                let bytes = operation.bytes() * u32::from(blocks);
                format!("{name} {number} to {}: {payload} at {offset} of {bytes}", to.0)
            }
            (GroupPacket::Taken { refused: false, .. }, None) => format!("taken {number} to {}", to.0),
            (GroupPacket::Taken { refused: true, .. }, None) => format!("refused {number} to {}", to.0),
            (GroupPacket::Failed { member, fault, .. }, None) => {
                format!("failed to {}: {member} {fault:?}", to.0)
            }
            other => panic!("{other:?}"),
        });
    }

    fn reject(&mut self, from: Peer) {
        self.calls.push(format!("reject {}", from.0));
    }

    fn update_word(&mut self, _key: u64, _offset: u64, _update: &WordUpdate) -> Option<u64> {
        unimplemented!("groups change no words")
    }

    fn place_word(&mut self, _request: Request, _word: u64, _bytes: u32) {
        unimplemented!("groups place no words")
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
        assert!([SUM, FLOAT_SUM].contains(&combination), "{combination:?}");
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

/// A member of a group of four. Peers have the numbers of the ranks.
struct Member {
    machine: Offload,
    driver: Calls,
}

impl Member {
    fn alone() -> Member {
        Member { machine: Offload::default(), driver: Calls::default() }
    }

    /// It has joined and heard nobody.
    fn joined(rank: u32, patience_ns: Option<u64>) -> Member {
        let mut member = Member::alone();
        let members = (0..4).map(Peer).collect();
        let membership = Membership { group: GROUP, members, rank, patience_ns, shape: Shape::default() };
        let neighbours: &[&str] = match rank {
            0 => &["joined to 1", "joined to 2"],
            1 => &["joined to 0"],
            2 => &["joined to 0", "joined to 3"],
            _ => &["joined to 2"],
        };
        assert_eq!(member.post(GroupCommand::Join(membership)), neighbours);
        member
    }

    /// The same after all have joined.
    fn of_four(rank: u32) -> Member {
        Member::ready(rank, None)
    }

    fn ready(rank: u32, patience_ns: Option<u64>) -> Member {
        let mut member = Member::joined(rank, patience_ns);
        member.hear_all(rank);
        member
    }

    /// Its neighbours say that all have joined.
    fn hear_all(&mut self, rank: u32) -> Vec<String> {
        let children: &[u32] = [&[1, 2][..], &[], &[3], &[]][rank as usize];
        let mut calls: Vec<String> =
            children.iter().flat_map(|child| self.hear_joined(*child, true)).collect();
        if rank > 0 {
            let parent = rank & (rank - 1);
            calls.extend(self.hear_joined(parent, false));
            calls.extend(self.hear_joined(parent, true));
        }
        calls
    }

    fn hear_joined(&mut self, from: u32, all: bool) -> Vec<String> {
        self.packet(from, 0, GroupPacket::Joined { group: GROUP, all }, 0)
    }

    fn event(&mut self, event: MachineEvent<OffloadCommand, Offloaded>) -> Vec<String> {
        self.machine.handle(event, &mut self.driver).expect("within the bounds");
        core::mem::take(&mut self.driver.calls)
    }

    fn post(&mut self, command: GroupCommand) -> Vec<String> {
        self.event(MachineEvent::Posted(OffloadCommand::Group(command)))
    }

    fn start(&mut self, request: u32, bytes: u32) -> Vec<String> {
        self.post(start(request, bytes))
    }

    fn packet(&mut self, from: u32, number: u32, packet: GroupPacket, payload_bytes: u32) -> Vec<String> {
        let packet = Offloaded::Group(packet);
        self.event(MachineEvent::Arrived { from: Peer(from), number, packet, payload_bytes })
    }

    /// A packet of a contribution of `bytes` bytes, with `payload` bytes at `offset`.
    fn part(&mut self, from: u32, number: u32, bytes: u32, (offset, payload): (u32, u32)) -> Vec<String> {
        self.of(reduce(bytes), from, number, (offset, payload))
    }

    /// A packet of any operation.
    fn of(
        &mut self,
        operation: Operation,
        from: u32,
        number: u32,
        (offset, payload): (u32, u32),
    ) -> Vec<String> {
        self.packet(from, number, GroupPacket::Part { group: GROUP, operation, blocks: 1, offset }, payload)
    }

    fn begin(&mut self, request: u32, operation: Operation) -> Vec<String> {
        self.post(GroupCommand::Start { request: Request(request), group: GROUP, operation })
    }

    fn contribution(&mut self, from: u32, number: u32, bytes: u32) -> Vec<String> {
        self.part(from, number, bytes, (0, bytes))
    }

    fn taken(&mut self, from: u32, number: u32, refused: bool) -> Vec<String> {
        self.packet(from, number, GroupPacket::Taken { group: GROUP, refused }, 0)
    }

    fn failed(&mut self, from: u32, member: u32) -> Vec<String> {
        let fault = PeerFault::Died;
        self.packet(from, 0, GroupPacket::Failed { group: GROUP, member, fault }, 0)
    }

    fn lose(&mut self, peer: u32) -> Vec<String> {
        self.event(MachineEvent::Lost { peer: Peer(peer), fault: PeerFault::Died })
    }

    fn buffers(&self) -> usize {
        self.driver.buffers.iter().filter(|used| **used).count()
    }
}

fn reduce(bytes: u32) -> Operation {
    Operation::Reduce(Vector { bytes, combination: SUM })
}

fn start(request: u32, bytes: u32) -> GroupCommand {
    GroupCommand::Start { request: Request(request), group: GROUP, operation: reduce(bytes) }
}
