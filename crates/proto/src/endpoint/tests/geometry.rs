//! Tests of the exact actions: paths whose link has slots of another size.

use super::*;

const OTHER: Peer = Peer(2);
const LARGE_SLOTS: Geometry = Geometry {
    slot_bytes: 256,
    max_packet_slots: 2,
    eager_header_bytes: 32,
    more_header_bytes: 16,
    remote_header_bytes: 48,
    piggyback_bytes: 0,
};

/// An endpoint machine with two peers, each with a quota of 8: [`PEER`] on the common path, [`OTHER`] with large slots.
fn machine() -> Endpoint {
    let config = *with_credits(1).machine.config();
    let mut machine = Endpoint::new(config);
    machine.expect_geometry(&LARGE_SLOTS);
    let mut attach = |peer, geometry: Option<Geometry>| {
        let (quota_slots, start_slots) = (8, 8);
        let events = [
            geometry.map(|geometry| Event::PathGeometry { peer, geometry }),
            Some(Event::Connected { peer, quota_slots, start_slots, credit_slots: 1, epoch: 0 }),
            Some(Event::Attached { peer, quota_slots, start_slots, epoch: 0 }),
        ];
        for event in events.into_iter().flatten() {
            machine.handle(event, Recorder::new(Instant(0), &mut Vec::new())).expect("no operation");
        }
    };
    attach(PEER, None);
    attach(OTHER, Some(LARGE_SLOTS));
    machine
}

/// The payload bytes of the packets of a message of `bytes` bytes, and the credits that it costs.
fn packets(machine: &mut Endpoint, to: Peer, bytes: u64) -> (Vec<u32>, u32) {
    let credits = |machine: &Endpoint| {
        let pair = machine.pairs(Instant(0)).find(|pair| pair.peer == to).expect("a peer");
        pair.sending.expect("connected").credits
    };
    let before = credits(machine);
    let mut actions = Vec::new();
    let (request, space, level) = (Request(0), Space::Tagged, SendLevel::Buffered);
    let send = SendCommand { request, to, space, tag: 0, data: None, bytes, level };
    let event = Event::Posted(Command::Send(send));
    machine.handle(event, Recorder::new(Instant(0), &mut actions)).expect("within the bounds");
    let payload = |action: &Action| match action {
        Action::Transmit { packet, .. } => Some(packet.payload_bytes),
        _ => None,
    };
    assert_eq!(short(actions.last().expect("actions")), "done 0");
    (actions.iter().filter_map(payload).collect(), before - credits(machine))
}

#[test]
fn packets_are_cut_by_the_geometry_of_their_path() {
    let mut machine = machine();
    // 208 bytes behind the header, up to four slots of 64 bytes.
    assert_eq!(packets(&mut machine, PEER, 300), (vec![208, 92], 4 + 2));
    assert_eq!(packets(&mut machine, OTHER, 300), (vec![300], 2));
    assert_eq!(packets(&mut machine, OTHER, 600), (vec![480, 120], 2 + 1));
    assert_eq!(packets(&mut machine, OTHER, 8), (vec![8], 1));
    assert_eq!(packets(&mut machine, PEER, 8), (vec![8], 1));
}

#[test]
fn retrieved_slots_are_counted_by_the_geometry_of_their_path() {
    let mut machine = machine();
    let mut retrieved = |from: Peer, length: u32| {
        let body = Body::Eager { space: Space::Tagged, tag: 0, data: None, length, acknowledge: None };
        let packet = Packet::new(body, length);
        let event = Event::Arrived { from, packet: &packet };
        machine.handle(event, Recorder::new(Instant(0), &mut Vec::new())).expect("no operation");
        let pair = machine.pairs(Instant(0)).find(|pair| pair.peer == from).expect("a peer");
        pair.receiving.expect("attached").retrieved.expect("credits")
    };
    assert_eq!(retrieved(PEER, 150), 4);
    assert_eq!(retrieved(OTHER, 150), 1);
    assert_eq!(retrieved(OTHER, 300), 1 + 2);
}

#[test]
fn a_message_for_large_slots_needs_fewer_credits() {
    let machine = machine();
    assert!(machine.would_wait(PEER, 900));
    assert!(!machine.would_wait(OTHER, 900));
}

#[test]
#[should_panic(expected = "expect_geometry was not called")]
fn a_geometry_that_the_budget_does_not_cover_is_a_bug() {
    let mut machine = Endpoint::new(*with_credits(1).machine.config());
    let event = Event::PathGeometry { peer: OTHER, geometry: LARGE_SLOTS };
    machine.handle(event, Recorder::new(Instant(0), &mut Vec::new())).expect("no operation");
}
