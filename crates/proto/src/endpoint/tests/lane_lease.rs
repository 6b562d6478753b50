//! Tests of the exact actions: lanes that are returned and attached again, and what happens to messages, credits,
//! acknowledgements and the peer entry meanwhile.

use super::*;

#[test]
fn a_detach_request_is_served_between_packets_and_sending_resumes() {
    let mut a = with_credits(2);
    // 300 bytes: 80 in the first two slots, and no credit for the rest.
    assert_eq!(a.send(0, 300), ["transmit eager 80"]);
    let asked = Event::DetachRequested { peer: PEER };
    assert_eq!(a.event(asked.clone()), ["detach", "disconnect", "connect"]);
    assert_eq!(a.event(asked.clone()), [""; 0], "once");
    let connected =
        Event::Connected { peer: PEER, quota_slots: 2, start_slots: 2, credit_slots: 1, epoch: 1 };
    assert_eq!(a.event(connected), ["transmit more 96"], "with the whole quota");
    a.send(1, 8);
    assert_eq!(a.event(asked.clone()), ["detach", "disconnect", "connect"]);
    let connected =
        Event::Connected { peer: PEER, quota_slots: 9, start_slots: 9, credit_slots: 1, epoch: 2 };
    assert_eq!(
        a.event(connected),
        ["transmit more 124", "done 0", "bounce 0", "transmit rendezvous 0", "done 1"]
    );
    assert_eq!(a.event(asked), ["detach", "disconnect"], "nothing waits, so it does not attach again");
}

#[test]
fn a_grant_of_an_earlier_lease_is_ignored() {
    let mut a = with_credits(2);
    assert_eq!(a.send(0, 80), ["transmit eager 80", "done 0"]);
    assert_eq!(a.event(Event::DetachRequested { peer: PEER }), ["detach", "disconnect"]);
    assert_eq!(a.send(1, 8), ["connect"]);
    let connected =
        Event::Connected { peer: PEER, quota_slots: 2, start_slots: 2, credit_slots: 1, epoch: 1 };
    assert_eq!(
        a.event(connected),
        ["bounce 0", "transmit rendezvous 0", "done 1"],
        "a new lease starts with rendezvous only"
    );
    // The receiver had not read the `Detach` when it granted these two.
    a.granted = 2;
    assert_eq!(a.arrive(Body::Credit, 0), ["retire"]);
    assert!(a.machine.fault(PEER).is_none(), "the grant is ignored, not rejected");
    assert_eq!(a.send(2, 8), ["bounce 1", "transmit rendezvous 0", "done 2"]);
    assert_eq!(a.send(3, 8), [""; 0], "there were two credits, not four");
}

#[test]
fn the_peer_entry_is_freed_when_both_sides_have_detached() {
    let mut a = with_credits(4);
    assert_eq!(a.send(0, 8), ["transmit eager 8", "done 0"]);
    let kept = a.machine.peer_state_bytes();
    assert_eq!(a.event(Event::DetachRequested { peer: PEER }), ["detach", "disconnect"]);
    assert_eq!(a.machine.peer_entries(), 1, "the peer still has a lane here");
    assert_eq!(a.arrive(Body::Detach, 0), ["retire", "free lane"]);
    assert_eq!(a.machine.peer_entries(), 0);
    assert!(a.machine.peer_state_bytes() + size_of::<PeerEntry>() as u64 <= kept);
    let mut watched = Vec::new();
    a.receive(1, 100, None);
    a.machine.depends_on(|peer| watched.push(peer));
    assert_eq!(watched, [PEER], "the peer may die while an any-source receive waits");
}

/// Without this, a sender that attaches again could wait for ever: see `lane_lease.rs`.
#[test]
fn unread_credit_packets_of_an_earlier_lease_cause_a_lane_change() {
    let mut b = bench(Scheme::Static { piggyback: false }, 2);
    let packet = Packet::new(
        Body::Eager { space: Space::Tagged, tag: 0, data: None, length: 0, acknowledge: None },
        0,
    );
    let arrived = || Event::Arrived { from: PEER, packet: &packet };
    b.event(arrived());
    assert!(b.event(arrived()).contains(&"credit total 2".into()));
    assert_eq!(b.arrive(Body::Detach, 0), ["retire", "free lane"]);
    let attached = Event::Attached { peer: PEER, quota_slots: 2, start_slots: 2, epoch: 1 };
    assert_eq!(b.event(attached), ["detach", "disconnect"]);
    // The first credits of the new lease need a lane back to the sender again. It is asked for when they are due.
    assert!(!b.event(arrived()).contains(&"connect".into()));
    assert!(b.event(arrived()).contains(&"connect".into()));
    let connected =
        Event::Connected { peer: PEER, quota_slots: 2, start_slots: 2, credit_slots: 1, epoch: 5 };
    assert_eq!(b.event(connected), ["credit total 2"]);
}

#[test]
fn a_lane_for_credits_is_asked_for_at_the_first_contact_and_later_when_they_are_due() {
    let scheme = Scheme::Static { piggyback: false };
    let mut b = bench(scheme, 4);
    b.machine = Endpoint::new(*b.machine.config()); // without lanes
    let packet = Packet::new(
        Body::Eager { space: Space::Tagged, tag: 0, data: None, length: 0, acknowledge: None },
        0,
    );
    let asks = |b: &mut Bench| {
        let event = Event::Arrived { from: PEER, packet: &packet };
        b.event(event).contains(&"connect".into())
    };
    b.event(Event::Attached { peer: PEER, quota_slots: 4, start_slots: 4, epoch: 0 });
    assert!(asks(&mut b), "in advance");
    b.event(Event::Connected { peer: PEER, quota_slots: 4, start_slots: 4, credit_slots: 1, epoch: 0 });
    assert_eq!(b.event(Event::DetachRequested { peer: PEER }), ["detach", "disconnect"]);
    assert_eq!([asks(&mut b), asks(&mut b)], [false, true], "credits return after three packets");
}

#[test]
fn coalesced_acknowledgements_leave_before_a_requested_detach() {
    let mut b = with_credits(4);
    let transfer = Transfer(1 << 31); // its payload is in a bounce buffer, so no operation waits for its end
    let acknowledge = Some(transfer);
    let packet =
        Packet::new(Body::Eager { space: Space::Tagged, tag: 0, data: None, length: 0, acknowledge }, 0);
    b.receive(0, 0, None);
    b.event(Event::Arrived { from: PEER, packet: &packet });
    assert!(b.machine.waits_for_idle());
    assert_eq!(b.event(Event::DetachRequested { peer: PEER }), ["finished", "detach", "disconnect"]);
    assert!(!b.machine.waits_for_idle());
}
