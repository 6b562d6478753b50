//! Tests of the exact calls of one machine of remote atomics, without an endpoint.

use alloc::format;
use alloc::string::String;

use super::*;
use crate::event::BufferId;
use crate::machine::{Memory, Operand, Payload};
use crate::offload::{Combination, Offload, OffloadCommand, WordOperation, WordType};
use crate::time::Instant;
use crate::timers::MachineTimer;

const PEER: Peer = Peer(1);

/// A driver that notes the calls. Every word has the value 40.
#[derive(Default)]
struct Calls(Vec<String>);

impl MachineDriver for Calls {
    fn send(&mut self, to: Peer, number: u32, packet: Offloaded, payload: Option<Payload>) {
        let Offloaded::Atomic(packet) = packet else { panic!("{packet:?}") };
        assert_eq!(payload, None);
        self.0.push(match packet {
            AtomicPacket::Request { key, offset, .. } => format!("ask {} {number}: {key}+{offset}", to.0),
            AtomicPacket::Result { old, refused: false } => format!("answer {} {number}: {old}", to.0),
            AtomicPacket::Result { refused: true, .. } => format!("refuse {} {number}", to.0),
        });
    }

    fn reject(&mut self, from: Peer) {
        self.0.push(format!("reject {}", from.0));
    }

    fn update_word(&mut self, key: u64, offset: u64, update: &WordUpdate) -> Option<u64> {
        self.0.push(format!("update {key}+{offset} to {}", update.apply(40)));
        offset.is_multiple_of(u64::from(update.word_type.bytes())).then_some(40)
    }

    fn place_word(&mut self, request: Request, word: u64, bytes: u32) {
        self.0.push(format!("place {word} in {} bytes of {}", bytes, request.0));
    }

    fn now(&mut self) -> Instant {
        unimplemented!("atomics have no timers")
    }

    fn set_timer(&mut self, timer: MachineTimer, _at: Instant) {
        unimplemented!("{timer:?}")
    }

    fn cancel_timer(&mut self, timer: MachineTimer) {
        unimplemented!("{timer:?}")
    }

    fn allocate(&mut self, bytes: u32) -> BufferId {
        unimplemented!("{bytes} bytes")
    }

    fn free(&mut self, buffer: BufferId) {
        unimplemented!("{buffer:?}")
    }

    fn copy(&mut self, from: Operand, into: Memory, _bytes: u32) {
        unimplemented!("{from:?} to {into:?}")
    }

    fn combine(&mut self, from: Operand, into: Memory, _combination: Combination, _bytes: u32) {
        unimplemented!("{from:?} with {into:?}")
    }

    fn complete(&mut self, request: Request, outcome: Outcome) {
        self.0.push(format!("{outcome:?} {}", request.0));
    }
}

/// The calls of an event.
fn calls(machine: &mut Offload, event: MachineEvent<AtomicsCommand, AtomicPacket>) -> Vec<String> {
    let mut calls = Calls::default();
    let event = match event {
        MachineEvent::Posted(command) => MachineEvent::Posted(OffloadCommand::Atomics(command)),
        MachineEvent::Arrived { from, number, packet, payload_bytes } => {
            MachineEvent::Arrived { from, number, packet: Offloaded::Atomic(packet), payload_bytes }
        }
        MachineEvent::TimerExpired(timer) => MachineEvent::TimerExpired(timer),
        MachineEvent::Lost { peer, fault } => MachineEvent::Lost { peer, fault },
    };
    machine.handle(event, &mut calls).expect("within the bounds");
    calls.0
}

fn add(word_type: WordType, operand: u64) -> WordUpdate {
    WordUpdate { operation: WordOperation::Sum, word_type, operand, compare: 0 }
}

fn fetch(request: u32, peer: Peer, update: WordUpdate) -> MachineEvent<AtomicsCommand, AtomicPacket> {
    let request = Request(request);
    MachineEvent::Posted(AtomicsCommand::Fetch(FetchCommand { request, peer, key: 5, offset: 8, update }))
}

fn arrived(number: u32, packet: AtomicPacket) -> MachineEvent<AtomicsCommand, AtomicPacket> {
    MachineEvent::Arrived { from: PEER, number, packet, payload_bytes: 0 }
}

fn answer(number: u32, old: u64) -> MachineEvent<AtomicsCommand, AtomicPacket> {
    arrived(number, AtomicPacket::Result { old, refused: false })
}

#[test]
fn a_fetch_completes_with_the_old_word_in_its_buffer() {
    let mut machine = Offload::default();
    assert_eq!(calls(&mut machine, fetch(3, PEER, add(WordType::U64, 1))), ["ask 1 0: 5+8"]);
    assert_eq!(calls(&mut machine, fetch(4, PEER, add(WordType::U32, 1))), ["ask 1 1: 5+8"]);
    assert!(!machine.is_quiescent());
    assert_eq!(calls(&mut machine, answer(1, 7)), ["place 7 in 4 bytes of 4", "Done 4"]);
    assert_eq!(calls(&mut machine, answer(0, 6)), ["place 6 in 8 bytes of 3", "Done 3"]);
    assert!(machine.is_quiescent());
}

#[test]
fn a_target_changes_words_of_exposed_regions_within_their_bounds() {
    let mut machine = Offload::default();
    let ask = |machine: &mut Offload, offset, word_type| {
        let packet = AtomicPacket::Request { key: 5, offset, update: add(word_type, 2) };
        calls(machine, arrived(9, packet))
    };
    assert_eq!(ask(&mut machine, 0, WordType::U64), ["refuse 1 9"]);
    calls(&mut machine, MachineEvent::Posted(AtomicsCommand::Expose { key: 5, bytes: 12 }));
    assert_eq!(ask(&mut machine, 0, WordType::U64), ["update 5+0 to 42", "answer 1 9: 40"]);
    assert_eq!(ask(&mut machine, 8, WordType::U32), ["update 5+8 to 42", "answer 1 9: 40"]);
    assert_eq!(ask(&mut machine, 8, WordType::U64), ["refuse 1 9"], "it ends at 16");
    assert_eq!(ask(&mut machine, u64::MAX, WordType::U32), ["refuse 1 9"]);
    assert_eq!(ask(&mut machine, 2, WordType::U32), ["update 5+2 to 42", "refuse 1 9"], "not aligned");
    calls(&mut machine, MachineEvent::Posted(AtomicsCommand::Withdraw { key: 5 }));
    assert_eq!(ask(&mut machine, 0, WordType::U32), ["refuse 1 9"]);
}

#[test]
fn a_refused_fetch_and_one_of_an_unknown_kind_complete_as_refused() {
    let mut machine = Offload::default();
    calls(&mut machine, fetch(3, PEER, add(WordType::U64, 1)));
    let refused = AtomicPacket::Result { old: 0, refused: true };
    assert_eq!(calls(&mut machine, arrived(0, refused)), ["Refused 3"]);
    let bitwise = WordUpdate { operation: WordOperation::Xor, ..add(WordType::F64, 1) };
    assert_eq!(calls(&mut machine, fetch(4, PEER, bitwise)), ["Refused 4"]);
    assert!(machine.is_quiescent());
}

#[test]
fn an_answer_that_nobody_waits_for_is_rejected() {
    let mut machine = Offload::default();
    assert_eq!(calls(&mut machine, answer(0, 1)), ["reject 1"]);
    calls(&mut machine, fetch(3, Peer(2), add(WordType::U64, 1)));
    assert_eq!(calls(&mut machine, answer(0, 1)), ["reject 1"], "it waits for another peer");
    assert_eq!(calls(&mut machine, answer(1 << 20, 1)), ["reject 1"]);
}

#[test]
fn a_lost_peer_ends_its_operations_and_no_others() {
    let mut machine = Offload::default();
    calls(&mut machine, fetch(3, PEER, add(WordType::U64, 1)));
    calls(&mut machine, fetch(4, Peer(2), add(WordType::U64, 1)));
    let mut peers = Vec::new();
    machine.depends_on(|peer| peers.push(peer));
    assert_eq!(peers, [PEER, Peer(2)]);
    let lost = MachineEvent::Lost { peer: PEER, fault: PeerFault::Died };
    assert_eq!(calls(&mut machine, lost), ["Lost { peer: Some(Peer(1)), fault: Died } 3"]);
    assert_eq!(calls(&mut machine, lost), [""; 0], "it may come again");
    let mut peers = Vec::new();
    machine.depends_on(|peer| peers.push(peer));
    assert_eq!(peers, [Peer(2)]);
}

#[test]
fn an_initiator_has_a_bound_on_atomics_with_a_peer() {
    let mut machine = Offload::default();
    (0..MAX_ATOMICS)
        .for_each(|request| drop(calls(&mut machine, fetch(request, PEER, add(WordType::U64, 1)))));
    let fetch_at = |peer| {
        let update = add(WordType::U64, 1);
        let command = FetchCommand { request: Request(MAX_ATOMICS), peer, key: 5, offset: 8, update };
        MachineEvent::Posted(OffloadCommand::Atomics(AtomicsCommand::Fetch(command)))
    };
    let mut driver = Calls::default();
    assert_eq!(machine.handle(fetch_at(PEER), &mut driver), Err(Refusal::RemoteOperations));
    assert_eq!(driver.0, [""; 0]);
    assert_eq!(machine.handle(fetch_at(Peer(2)), &mut driver), Ok(()), "others are not affected");
    calls(&mut machine, answer(0, 1));
    assert_eq!(machine.handle(fetch_at(PEER), &mut driver), Ok(()), "the answer admits one more");
}
