//! Tests of the exact calls of one machine of remote atomics, without an endpoint.

use alloc::format;
use alloc::string::String;

use super::*;
use crate::machine::{Memory, Operand, Payload};
use crate::offload::{Combination, Offload, OffloadCommand, WordOperation, WordType};
use crate::time::Instant;
use crate::timers::MachineTimer;

const PEER: Peer = Peer(1);

/// A driver that notes the calls. Every word has the value 40. It cannot change words that are not aligned.
#[derive(Default)]
struct Calls {
    calls: Vec<String>,
    /// The name of the next buffer.
    next_buffer: u32,
}

fn memory(memory: Memory) -> String {
    match memory {
        Memory::Request { request, offset } => format!("request {}+{offset}", request.0),
        Memory::Buffer { buffer, offset } => format!("buffer {}+{offset}", buffer.0),
        Memory::Region { .. } => panic!("{memory:?}"),
    }
}

impl MachineDriver for Calls {
    fn send(&mut self, to: Peer, number: u32, packet: Offloaded, payload: Option<Payload>) {
        let Offloaded::Atomic(packet) = packet else { panic!("{packet:?}") };
        let payload =
            payload.map(|Payload { memory: from, bytes }| format!("{bytes} bytes of {}", memory(from)));
        assert!(
            payload.is_none()
                || matches!(packet, AtomicPacket::Vector { .. } | AtomicPacket::VectorResult { .. })
        );
        let payload = payload.unwrap_or_default();
        self.calls.push(match packet {
            AtomicPacket::Vector { fetch, .. } => format!("ask vector {} {number}: {fetch} {payload}", to.0),
            AtomicPacket::VectorResult { .. } => format!("answer vector {} {number}: {payload}", to.0),
            AtomicPacket::Request { key, offset, .. } => format!("ask {} {number}: {key}+{offset}", to.0),
            AtomicPacket::Result { old, refused: false } => format!("answer {} {number}: {old}", to.0),
            AtomicPacket::Result { refused: true, .. } => format!("refuse {} {number}", to.0),
        });
    }

    fn reject(&mut self, from: Peer) {
        self.calls.push(format!("reject {}", from.0));
    }

    fn update_word(&mut self, key: u64, offset: u64, update: &WordUpdate) -> Option<u64> {
        self.calls.push(format!("update {key}+{offset} to {}", update.apply(40)));
        offset.is_multiple_of(u64::from(update.word_type.bytes())).then_some(40)
    }

    fn update_vector(&mut self, update: &VectorUpdate, old: Option<Memory>) -> bool {
        let VectorUpdate { key, offset, bytes, .. } = update;
        let old = old.map_or_else(|| "nowhere".into(), memory);
        self.calls.push(format!("update {bytes} bytes of {key}+{offset}, old to {old}"));
        true
    }

    fn place_word(&mut self, request: Request, word: u64, bytes: u32) {
        self.place_word_at(request, 0, word, bytes);
    }

    fn place_word_at(&mut self, request: Request, offset: u32, word: u64, bytes: u32) {
        let place = if offset == 0 { String::new() } else { format!("+{offset}") };
        self.calls.push(format!("place {word} in {} bytes of {}{place}", bytes, request.0));
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
        self.calls.push(format!("allocate {bytes}"));
        BufferId(self.next_buffer)
    }

    fn free(&mut self, buffer: BufferId) {
        self.calls.push(format!("free {}", buffer.0));
    }

    fn copy(&mut self, from: Operand, into: Memory, bytes: u32) {
        assert_eq!(from, Operand::Arrived);
        self.calls.push(format!("copy {bytes} to {}", memory(into)));
    }

    fn combine(&mut self, from: Operand, into: Memory, _combination: Combination, _bytes: u32) {
        unimplemented!("{from:?} with {into:?}")
    }

    fn complete(&mut self, request: Request, outcome: Outcome) {
        self.calls.push(format!("{outcome:?} {}", request.0));
    }
}

/// The calls of an event.
fn calls(machine: &mut Offload, event: MachineEvent<AtomicsCommand, AtomicPacket>) -> Vec<String> {
    let mut calls = Calls { next_buffer: 7, ..Calls::default() };
    let event = match event {
        MachineEvent::Posted(command) => MachineEvent::Posted(OffloadCommand::Atomics(command)),
        MachineEvent::Arrived { from, number, packet, payload_bytes } => {
            MachineEvent::Arrived { from, number, packet: Offloaded::Atomic(packet), payload_bytes }
        }
        MachineEvent::TimerExpired(timer) => MachineEvent::TimerExpired(timer),
        MachineEvent::Lost { peer, fault } => MachineEvent::Lost { peer, fault },
    };
    machine.handle(event, &mut calls).expect("within the bounds");
    calls.calls
}

fn add(word_type: WordType, operand: u64) -> WordUpdate {
    WordUpdate { operation: WordOperation::Sum, word_type, operand, compare: 0 }
}

fn fetch(request: u32, peer: Peer, update: WordUpdate) -> MachineEvent<AtomicsCommand, AtomicPacket> {
    let request = Request(request);
    MachineEvent::Posted(AtomicsCommand::Fetch(FetchCommand {
        request,
        peer,
        key: 5,
        offset: 8,
        update,
        fetch: true,
    }))
}

fn expose(bytes: u64, readable: bool, writable: bool) -> MachineEvent<AtomicsCommand, AtomicPacket> {
    let region = ExposedRegion { bytes, readable, writable };
    MachineEvent::Posted(AtomicsCommand::Expose { key: 5, region })
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
        let packet = AtomicPacket::request(5, offset, add(word_type, 2), true);
        calls(machine, arrived(9, packet))
    };
    assert_eq!(ask(&mut machine, 0, WordType::U64), ["refuse 1 9"]);
    calls(&mut machine, expose(12, true, true));
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
    assert_eq!(calls(&mut machine, lost.clone()), ["Lost { peer: Some(Peer(1)), fault: Died } 3"]);
    assert_eq!(calls(&mut machine, lost.clone()), [""; 0], "it may come again");
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
        let command =
            FetchCommand { request: Request(MAX_ATOMICS), peer, key: 5, offset: 8, update, fetch: true };
        MachineEvent::Posted(OffloadCommand::Atomics(AtomicsCommand::Fetch(command)))
    };
    let mut driver = Calls::default();
    assert_eq!(machine.handle(fetch_at(PEER), &mut driver), Err(Refusal::RemoteOperations));
    assert_eq!(driver.calls, [""; 0]);
    assert_eq!(machine.handle(fetch_at(Peer(2)), &mut driver), Ok(()), "others are not affected");
    calls(&mut machine, answer(0, 1));
    assert_eq!(machine.handle(fetch_at(PEER), &mut driver), Ok(()), "the answer admits one more");
}

fn vector_of(operation: WordOperation, bytes: u32) -> VectorUpdate {
    VectorUpdate {
        key: 5,
        offset: 8,
        bytes,
        combination: Combination { operation, word_type: WordType::U64 },
    }
}

fn post_vector(
    request: u32,
    operation: WordOperation,
    bytes: u32,
    fetch: bool,
) -> MachineEvent<AtomicsCommand, AtomicPacket> {
    let update = vector_of(operation, bytes);
    let command = VectorCommand { request: Request(request), peer: PEER, update, fetch };
    MachineEvent::Posted(AtomicsCommand::Vector(command))
}

/// A part of a request for a vector of 24 bytes.
fn part(number: u32, at: u32, payload_bytes: u32, fetch: bool) -> MachineEvent<AtomicsCommand, AtomicPacket> {
    let packet = AtomicPacket::Vector { update: vector_of(WordOperation::Sum, 24), fetch, at };
    MachineEvent::Arrived { from: PEER, number, packet, payload_bytes }
}

fn result_part(
    number: u32,
    bytes: u32,
    at: u32,
    payload_bytes: u32,
) -> MachineEvent<AtomicsCommand, AtomicPacket> {
    let packet = AtomicPacket::VectorResult { bytes, at };
    MachineEvent::Arrived { from: PEER, number, packet, payload_bytes }
}

#[test]
fn a_fetched_vector_completes_with_its_last_part() {
    let mut machine = Offload::default();
    let asked = calls(&mut machine, post_vector(3, WordOperation::Sum, 24, true));
    assert_eq!(asked, ["ask vector 1 0: true 24 bytes of request 3+0"], "the old words replace its operands");
    assert_eq!(calls(&mut machine, result_part(0, 24, 0, 16)), ["copy 16 to request 3+0"]);
    assert!(!machine.is_quiescent());
    assert_eq!(calls(&mut machine, result_part(0, 24, 16, 8)), ["copy 8 to request 3+16", "Done 3"]);
    assert!(machine.is_quiescent());
    let read = calls(&mut machine, post_vector(3, WordOperation::Read, 24, true));
    assert_eq!(read, ["ask vector 1 0: true "], "a read has no operands");
}

#[test]
fn a_vector_that_fetches_nothing_completes_with_the_answer() {
    let mut machine = Offload::default();
    let asked = calls(&mut machine, post_vector(3, WordOperation::Sum, 24, false));
    assert_eq!(asked, ["ask vector 1 0: false 24 bytes of request 3+0"]);
    assert_eq!(calls(&mut machine, result_part(0, 24, 0, 24)), ["reject 1"], "nobody wants the old words");
    assert_eq!(calls(&mut machine, answer(0, 0)), ["Done 3"]);
}

#[test]
fn a_target_changes_a_vector_part_by_part_and_answers_the_last_one() {
    let mut machine = Offload::default();
    calls(&mut machine, expose(32, true, true));
    let first = calls(&mut machine, part(9, 0, 16, true));
    assert_eq!(first, ["allocate 24", "update 16 bytes of 5+8, old to buffer 7+0"]);
    assert!(!machine.is_quiescent());
    let last = calls(&mut machine, part(9, 16, 8, true));
    let update = "update 8 bytes of 5+24, old to buffer 7+16";
    assert_eq!(last, [update, "answer vector 1 9: 24 bytes of buffer 7+0"]);
    let whole = calls(&mut machine, part(9, 0, 24, false));
    assert_eq!(whole, ["update 24 bytes of 5+8, old to nowhere", "answer 1 9: 0"]);
    assert!(machine.is_quiescent());
}

#[test]
fn a_vector_beyond_the_region_or_without_rights_is_refused_once() {
    let mut machine = Offload::default();
    calls(&mut machine, expose(31, true, true));
    assert_eq!(calls(&mut machine, part(9, 0, 16, true)), [""; 0], "it ends at 32");
    assert_eq!(calls(&mut machine, part(9, 16, 8, true)), ["refuse 1 9"]);
    calls(&mut machine, expose(32, false, true));
    assert_eq!(calls(&mut machine, part(9, 0, 24, true)), ["refuse 1 9"]);
    assert_eq!(calls(&mut machine, part(9, 0, 24, false)).len(), 2, "it fetches nothing");
    calls(&mut machine, expose(32, true, false));
    assert_eq!(calls(&mut machine, part(9, 0, 24, false)), ["refuse 1 9"]);
    // Deregistered between two parts.
    calls(&mut machine, expose(32, true, true));
    calls(&mut machine, part(9, 0, 16, true));
    calls(&mut machine, MachineEvent::Posted(AtomicsCommand::Withdraw { key: 5 }));
    assert_eq!(calls(&mut machine, part(9, 16, 8, true)), ["free 7", "refuse 1 9"]);
}

#[test]
fn parts_that_do_not_follow_are_rejected() {
    for wrong in [part(9, 8, 16, true), part(8, 16, 8, true), part(9, 16, 8, false), part(9, 16, 16, true)] {
        let mut machine = Offload::default();
        calls(&mut machine, expose(64, true, true));
        calls(&mut machine, part(9, 0, 16, true));
        assert_eq!(calls(&mut machine, wrong.clone()), ["free 7", "reject 1"], "{wrong:?}");
        assert!(machine.is_quiescent());
    }
    let mut machine = Offload::default();
    calls(&mut machine, expose(64, true, true));
    for wrong in [part(9, 8, 8, true), part(9, 0, 0, true), part(9, 0, 12, true), part(9, 0, 32, true)] {
        assert_eq!(calls(&mut machine, wrong.clone()), ["reject 1"], "{wrong:?}");
    }
    calls(&mut machine, post_vector(3, WordOperation::Sum, 24, true));
    let short = answer(0, 0);
    for wrong in [result_part(0, 16, 0, 16), result_part(0, 24, 8, 8), result_part(0, 24, 0, 32), short] {
        assert_eq!(calls(&mut machine, wrong.clone()), ["reject 1"], "{wrong:?}");
    }
}

#[test]
fn a_word_is_fetched_and_changed_with_the_rights_for_it() {
    let ask = |readable, writable, operation, fetch| {
        let mut machine = Offload::default();
        calls(&mut machine, expose(8, readable, writable));
        let update = WordUpdate { operation, ..add(WordType::U64, 2) };
        let packet = AtomicPacket::request(5, 0, update, fetch);
        calls(&mut machine, arrived(9, packet)).last() != Some(&"refuse 1 9".into())
    };
    use WordOperation::{Read, Sum};
    assert_eq!([ask(true, false, Read, true), ask(false, true, Read, true)], [true, false]);
    assert_eq!([ask(true, false, Sum, false), ask(false, true, Sum, false)], [false, true]);
    assert_eq!([ask(true, false, Sum, true), ask(false, true, Sum, true)], [false, false]);
}

#[test]
fn a_request_of_several_words_completes_with_the_last_answer() {
    let post = |request| {
        let swap =
            |compare| WordUpdate { operation: WordOperation::CompareSwap, compare, ..add(WordType::U64, 1) };
        let updates = [swap(1), swap(2)].to_vec();
        let (request, peer, key, offset) = (Request(request), PEER, 5, 8);
        MachineEvent::Posted(AtomicsCommand::Words { request, peer, key, offset, updates })
    };
    let mut machine = Offload::default();
    assert_eq!(calls(&mut machine, post(3)), ["ask 1 0: 5+8", "ask 1 1: 5+16"]);
    assert_eq!(calls(&mut machine, answer(0, 1)), ["place 1 in 8 bytes of 3"]);
    assert_eq!(calls(&mut machine, answer(1, 2)), ["place 2 in 8 bytes of 3+8", "Done 3"]);
    calls(&mut machine, post(4));
    let refused = AtomicPacket::Result { old: 0, refused: true };
    let numbers = [1, 0]; // the last one that was free comes first
    assert_eq!(calls(&mut machine, arrived(numbers[0], refused)), [""; 0]);
    assert_eq!(calls(&mut machine, answer(numbers[1], 2)).last(), Some(&"Refused 4".into()));
    calls(&mut machine, post(5));
    calls(&mut machine, answer(1, 2));
    let lost = MachineEvent::Lost { peer: PEER, fault: PeerFault::Died };
    assert_eq!(calls(&mut machine, lost.clone()), ["Lost { peer: Some(Peer(1)), fault: Died } 5"], "once");
    calls(&mut machine, post(6));
    assert_eq!(
        calls(&mut machine, lost.clone()),
        ["Lost { peer: Some(Peer(1)), fault: Died } 6"],
        "with two words"
    );
    assert!(machine.is_quiescent());
}

#[test]
fn a_peer_that_is_lost_within_a_vector_leaves_no_buffer() {
    let mut machine = Offload::default();
    calls(&mut machine, expose(32, true, true));
    calls(&mut machine, part(9, 0, 16, true));
    let lost = MachineEvent::Lost { peer: PEER, fault: PeerFault::Died };
    assert_eq!(calls(&mut machine, lost.clone()), ["free 7"]);
    assert!(machine.is_quiescent());
}

#[test]
fn an_initiator_has_a_bound_on_the_bytes_that_it_fetches_from_a_peer() {
    let mut machine = Offload::default();
    let mut post = |request, bytes, fetch| {
        let MachineEvent::Posted(command) = post_vector(request, WordOperation::Sum, bytes, fetch) else {
            panic!("not posted")
        };
        machine.handle(MachineEvent::Posted(OffloadCommand::Atomics(command)), &mut Calls::default())
    };
    let count = MAX_FETCHED_BYTES / MAX_ATOMIC_BYTES;
    for request in 0..count {
        assert_eq!(post(request, MAX_ATOMIC_BYTES, true), Ok(()));
    }
    assert_eq!(post(count, 8, true), Err(Refusal::RemoteOperations));
    assert_eq!(post(count, MAX_ATOMIC_BYTES, false), Ok(()), "it fetches nothing");
    calls(&mut machine, result_part(0, MAX_ATOMIC_BYTES, 0, MAX_ATOMIC_BYTES));
    let longer = calls(&mut machine, post_vector(count + 1, WordOperation::Sum, MAX_ATOMIC_BYTES + 8, true));
    assert_eq!(longer, [format!("Refused {}", count + 1)]);
    let fits = calls(&mut machine, post_vector(count + 1, WordOperation::Sum, MAX_ATOMIC_BYTES, true));
    assert!(fits[0].starts_with("ask vector"), "{fits:?}");
}

#[test]
fn a_target_has_a_bound_on_the_bytes_of_answers_to_a_peer() {
    let mut machine = Offload::default();
    calls(&mut machine, expose(1 << 20, true, true));
    let mut buffers = 0;
    let mut ask = |machine: &mut Offload, from| {
        let update = vector_of(WordOperation::Read, MAX_ATOMIC_BYTES);
        let packet = Offloaded::Atomic(AtomicPacket::Vector { update, fetch: true, at: 0 });
        let event = MachineEvent::Arrived { from, number: 1, packet, payload_bytes: 0 };
        buffers += 1;
        let mut driver = Calls { next_buffer: buffers, ..Calls::default() };
        machine.handle(event, &mut driver).expect("no command");
        driver.calls.last().cloned().expect("an answer").starts_with("answer")
    };
    let count = MAX_FETCHED_BYTES / MAX_ATOMIC_BYTES;
    assert!((0..count).all(|_| ask(&mut machine, PEER)));
    assert!(!ask(&mut machine, PEER), "it has not read its answers");
    assert!(ask(&mut machine, Peer(2)));
    machine.answer_left(BufferId(1));
    assert!(ask(&mut machine, PEER));
}
