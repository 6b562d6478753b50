//! Tests of the exact actions: packets of offloaded machines, which use the paths and credits of the endpoint.

use super::*;
use crate::action::Source;
use crate::event::BufferId;
use crate::event::Outgoing;
use crate::machine::{Memory, Payload};
use crate::offload::atomics::AtomicPacket;
use crate::offload::group::{GroupPacket, Operation};
use crate::offload::reduce::Vector;
use crate::offload::{Combination, Offloaded, WordOperation, WordType, WordUpdate};

const UPDATE: WordUpdate =
    WordUpdate { operation: WordOperation::Sum, word_type: WordType::U64, operand: 1, compare: 0 };
const REQUEST: Offloaded = Offloaded::Atomic(AtomicPacket::request(5, 0, UPDATE, true));
const ANSWER: Offloaded = Offloaded::Atomic(AtomicPacket::Result { old: 0, refused: false });

impl Bench {
    fn machine_sends(&mut self, to: Peer, number: u32, packet: Offloaded) -> Vec<Action> {
        self.machine_sends_payload(to, number, packet, None)
    }

    fn machine_sends_payload(
        &mut self,
        to: Peer,
        number: u32,
        packet: Offloaded,
        payload: Option<Payload>,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        let event = Event::Outgoing(Outgoing { to, number, packet, payload });
        self.machine.handle(event, Recorder::new(self.now, &mut actions)).expect("within the bounds");
        actions
    }
}

fn shorts(actions: &[Action]) -> Vec<String> {
    actions.iter().map(short).collect()
}

#[test]
fn a_packet_of_another_machine_takes_a_credit_and_carries_its_number() {
    let mut sender = with_credits(1);
    let actions = sender.machine_sends(PEER, 7, REQUEST);
    let [Action::Transmit { to: PEER, packet, .. }] = actions[..] else { panic!("{actions:?}") };
    assert_eq!((packet.number, packet.body), (7, Body::Offloaded(REQUEST)));
    assert_eq!(sender.machine.counters().remote_packets_sent, 1);
    assert_eq!(sender.machine_sends(PEER, 8, REQUEST), [], "no credit is left");
    assert_eq!(sender.credits_back(1), ["retire", "transmit offloaded 0"]);
}

#[test]
fn a_packet_of_another_machine_waits_behind_messages_and_before_later_ones() {
    let mut sender = with_credits(1);
    sender.send(0, 8); // this spends the only credit
    assert_eq!(sender.send(1, 8), [""; 0]);
    assert_eq!(sender.machine_sends(PEER, 0, REQUEST), []);
    assert_eq!(sender.send(2, 8), [""; 0]);
    assert_eq!(sender.credits_back(1), ["retire", "transmit eager 8", "done 1"]);
    assert_eq!(sender.credits_back(1), ["retire", "transmit offloaded 0"]);
    assert_eq!(sender.credits_back(1), ["retire", "transmit eager 8", "done 2"]);
}

const SUM: Combination = Combination { operation: WordOperation::Sum, word_type: WordType::U64 };

fn contribution(bytes: u32, offset: u32) -> Offloaded {
    let vector = Vector { bytes, combination: SUM };
    Offloaded::Group(GroupPacket::Part { group: 3, operation: Operation::Reduce(vector), blocks: 1, offset })
}

/// The packets that carry payload: their offset by their header, where the payload lies, and its length.
fn carried(actions: &[Action]) -> Vec<(u32, u64, u32)> {
    let packet = |action: &Action| match action {
        Action::Transmit { packet, payload: Source::Buffer { buffer: BufferId(2), offset }, .. } => {
            let Body::Offloaded(Offloaded::Group(GroupPacket::Part { offset: at, .. })) = packet.body else {
                panic!("{packet:?}")
            };
            assert_eq!(packet.number, 7);
            Some((at, *offset, packet.payload_bytes))
        }
        _ => None,
    };
    actions.iter().filter_map(packet).collect()
}

#[test]
fn payload_of_another_machine_is_cut_by_the_credits_into_whole_words() {
    let memory = Memory::Buffer { buffer: BufferId(2), offset: 16 };
    let payload = Some(Payload { memory, bytes: 200 });
    let mut sender = with_credits(2);
    let first = sender.machine_sends_payload(PEER, 7, contribution(200, 0), payload);
    assert_eq!(carried(&first), [(0, 16, 2 * 64 - 56)]);
    let mut with_more_credits = |credits| {
        let mut actions = Vec::new();
        sender.granted += credits;
        let packet = Packet {
            credit_packets_read: sender.credit_packets_read,
            granted_total: sender.granted,
            ..Packet::new(Body::Credit, 0)
        };
        let event = Event::Arrived { from: PEER, packet: &packet };
        sender.machine.handle(event, Recorder::new(Instant(0), &mut actions)).expect("not refused");
        carried(&actions)
    };
    assert_eq!(with_more_credits(1), [(72, 88, 8)]);
    assert_eq!(with_more_credits(2), [(80, 96, 72)]);
    assert_eq!(with_more_credits(2), [(152, 168, 48)]);
    assert!(sender.machine.is_quiescent());
    let mut rich = with_credits(8);
    let actions = rich.machine_sends_payload(PEER, 7, contribution(200, 0), payload);
    assert_eq!(carried(&actions), [(0, 16, 200)], "one packet");
}

#[test]
fn the_payload_of_an_arrived_packet_is_passed_on() {
    let mut target = with_credits(4);
    let packet = Packet::new(Body::Offloaded(contribution(16, 0)), 16);
    let mut actions = Vec::new();
    let event = Event::Arrived { from: PEER, packet: &packet };
    target.machine.handle(event, Recorder::new(Instant(0), &mut actions)).expect("not refused");
    let passed_on = Action::PassOn { from: PEER, number: 0, packet: contribution(16, 0), payload_bytes: 16 };
    assert_eq!(actions[..2], [passed_on, Action::Retire]);
}

#[test]
fn the_first_packet_of_another_machine_connects() {
    let mut sender = with_credits(1);
    assert_eq!(shorts(&sender.machine_sends(Peer(2), 0, REQUEST)), ["connect"]);
    let connected =
        Event::Connected { peer: Peer(2), quota_slots: 1, start_slots: 1, credit_slots: 1, epoch: 0 };
    assert_eq!(sender.event(connected), ["transmit offloaded 0"]);
}

#[test]
fn an_arrived_packet_is_passed_on_before_its_slots_are_free() {
    let mut target = with_credits(4);
    assert_eq!(target.arrive(Body::Offloaded(REQUEST), 0), ["pass on 0", "retire"]);
    assert_eq!(target.arrive(Body::Offloaded(ANSWER), 0)[..2], ["pass on 0", "retire"]);
}

#[test]
fn a_loss_reaches_the_other_machines_and_their_later_packets() {
    let mut survivor = with_credits(1);
    let lost = Event::Lost { peer: PEER, fault: PeerFault::Died };
    let mut actions = Vec::new();
    survivor.machine.handle(lost, Recorder::new(Instant(0), &mut actions)).expect("not refused");
    assert_eq!(shorts(&actions), ["drop peer", "peer lost"]);
    let actions = survivor.machine_sends(PEER, 0, REQUEST);
    assert_eq!(actions, [Action::PeerLost { peer: PEER, fault: PeerFault::Died }]);
}

#[test]
fn an_initiator_beyond_the_bound_of_answers_is_malformed() {
    let mut target = with_credits(1);
    target.send(0, 8); // this spends the only credit
    for number in 0..MAX_REMOTE_OPERATIONS + MAX_ANSWERS {
        assert_eq!(target.machine_sends(PEER, number, ANSWER), []);
    }
    assert_eq!(shorts(&target.machine_sends(PEER, 0, ANSWER)), ["drop peer", "peer lost"]);
}

#[test]
fn closing_counts_a_waiting_answer_as_undelivered() {
    let mut target = with_credits(1);
    target.send(0, 8); // this spends the only credit
    target.machine_sends(PEER, 0, ANSWER);
    let undelivered = target.machine.undelivered();
    assert_eq!(undelivered, [Undelivered { peer: PEER, messages: 0, bytes: 0, acknowledgements: 1 }]);
}

#[test]
fn packets_of_other_machines_do_not_make_all_packets_larger() {
    let largest = size_of::<(u64, Option<u64>, u64, u64, Transfer, Space)>();
    assert_eq!(size_of::<Body>(), largest, "that of a rendezvous");
}
