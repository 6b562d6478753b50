//! Tests of the exact actions: multi-sends, whose copies leave together.

use super::*;
use crate::event::{MessageCopy, MultiSendCommand};
use crate::offload::multi_send::{MAX_DESTINATIONS, MAX_MULTI_SENDS};

const OTHER: Peer = Peer(2);
const THIRD: Peer = Peer(3);

/// An endpoint with `credits` credits at each of three peers.
fn three_peers(credits: u32) -> Bench {
    let mut bench = with_credits(credits);
    for peer in [OTHER, THIRD] {
        let (quota_slots, start_slots) = (credits, credits);
        bench.event(Event::Connected { peer, quota_slots, start_slots, credit_slots: 1, epoch: 0 });
        bench.event(Event::Attached { peer, quota_slots, start_slots, epoch: 0 });
    }
    bench
}

impl Bench {
    fn multi_send(&mut self, copies: &[(Peer, u32)], bytes: u64) -> Vec<String> {
        let copies: Vec<_> = copies.iter().map(|(to, request)| copy(*to, *request)).collect();
        self.event(Event::PostedCopies(multi_send(&copies, bytes)))
    }

    fn send_to(&mut self, to: Peer, request: u32, bytes: u64) -> Vec<String> {
        let (request, space, level) = (Request(request), Space::Tagged, SendLevel::Buffered);
        self.post(Command::Send(SendCommand { request, to, space, tag: 0, data: None, bytes, level }))
    }

    fn credits_of(&mut self, from: Peer, granted_total: u32) -> Vec<String> {
        let packet = Packet { granted_total, ..Packet::new(Body::Credit, 0) };
        self.event(Event::Arrived { from, packet: &packet })
    }
}

fn copy(to: Peer, request: u32) -> MessageCopy {
    MessageCopy { to, request: Request(request), data: None }
}

fn multi_send(copies: &[MessageCopy], bytes: u64) -> MultiSendCommand<'_> {
    MultiSendCommand { copies, space: Space::Tagged, tag: 0, bytes, level: SendLevel::Buffered }
}

#[test]
fn copies_leave_at_once_with_numbers_of_their_own_if_there_is_credit() {
    let mut sender = three_peers(4);
    sender.send_to(OTHER, 9, 8);
    let copies = [copy(PEER, 0), copy(OTHER, 1), copy(THIRD, 2)];
    let mut actions = Vec::new();
    let event = Event::PostedCopies(multi_send(&copies, 16));
    sender.machine.handle(event, Recorder::new(sender.now, &mut actions)).expect("within the bounds");
    let sent = actions.iter().filter_map(|action| match action {
        Action::Transmit { to, packet, .. } => Some((*to, packet.number, packet.payload_bytes)),
        _ => None,
    });
    assert!(sent.eq([(PEER, 0, 16), (OTHER, 1, 16), (THIRD, 0, 16)]), "{actions:?}");
    let done = actions.iter().filter(|action| matches!(action, Action::Complete { .. })).count();
    assert_eq!((done, actions.len()), (3, 6));
}

#[test]
fn no_copy_leaves_before_there_is_credit_for_all_and_later_messages_wait_behind() {
    let mut sender = three_peers(1);
    assert_eq!(sender.send_to(OTHER, 9, 8), ["transmit eager 8", "done 9"]);
    assert_eq!(sender.multi_send(&[(PEER, 0), (OTHER, 1), (THIRD, 2)], 16), [""; 0]);
    assert_eq!(sender.send_to(PEER, 3, 8), [""; 0], "behind the copy");
    let copies =
        ["transmit eager 16", "done 0", "transmit eager 16", "done 1", "transmit eager 16", "done 2"];
    assert_eq!(sender.credits_of(OTHER, 1), [&["retire"][..], &copies].concat());
    assert_eq!(sender.credits_of(PEER, 1), ["retire", "transmit eager 8", "done 3"]);
}

#[test]
fn an_older_multi_send_that_waits_holds_a_later_one_of_the_same_path_only() {
    let mut sender = three_peers(2);
    for request in [20, 21] {
        sender.send_to(OTHER, request, 8);
    }
    assert_eq!(sender.multi_send(&[(PEER, 0), (OTHER, 1)], 8), [""; 0]);
    assert_eq!(sender.multi_send(&[(THIRD, 2), (PEER, 3)], 8), [""; 0], "behind the copy to PEER");
    assert_eq!(sender.multi_send(&[(THIRD, 4)], 8), [""; 0], "behind the copy to THIRD");
    let first = ["retire", "transmit eager 8", "done 0", "transmit eager 8", "done 1"];
    let second = ["transmit eager 8", "done 2", "transmit eager 8", "done 4", "transmit eager 8", "done 3"];
    assert_eq!(sender.credits_of(OTHER, 1), [&first[..], &second].concat());
}

#[test]
fn a_dead_destination_gets_an_error_and_the_others_their_copies() {
    let mut sender = three_peers(1);
    sender.send_to(OTHER, 9, 8);
    assert_eq!(sender.multi_send(&[(PEER, 0), (OTHER, 1), (THIRD, 2)], 16), [""; 0]);
    let lost = Event::Lost { peer: OTHER, fault: PeerFault::Died };
    let others = ["drop peer", "transmit eager 16", "done 0", "transmit eager 16", "done 2", "lost 1"];
    assert_eq!(sender.event(lost), others);
    let mut sender = three_peers(1);
    sender.event(Event::Lost { peer: OTHER, fault: PeerFault::Died });
    let others = ["transmit eager 8", "done 0", "lost 1", "transmit eager 8", "done 2"];
    let mut ended = sender.multi_send(&[(PEER, 0), (OTHER, 1), (THIRD, 2)], 8);
    ended.sort_unstable();
    let mut sorted = others.map(String::from);
    sorted.sort_unstable();
    assert_eq!(ended, sorted);
}

#[test]
fn a_receiver_that_wants_its_lane_back_does_not_wait_for_the_others() {
    let mut sender = three_peers(1);
    sender.send_to(OTHER, 9, 8);
    assert_eq!(sender.multi_send(&[(PEER, 0), (OTHER, 1)], 8), [""; 0]);
    let asked = Event::DetachRequested { peer: PEER };
    assert_eq!(sender.event(asked), ["transmit eager 8", "done 0", "detach", "disconnect"]);
    assert_eq!(sender.credits_of(OTHER, 1), ["retire", "transmit eager 8", "done 1"]);
}

#[test]
fn a_copy_to_a_new_peer_waits_for_its_lane_and_the_others_for_it() {
    let mut sender = three_peers(4);
    assert_eq!(sender.multi_send(&[(Peer(7), 0), (PEER, 1)], 8), ["connect"]);
    let (quota_slots, start_slots) = (4, 4);
    let connected = Event::Connected { peer: Peer(7), quota_slots, start_slots, credit_slots: 1, epoch: 0 };
    assert_eq!(sender.event(connected), ["transmit eager 8", "done 0", "transmit eager 8", "done 1"]);
}

#[test]
fn a_peer_that_comes_twice_gets_two_messages() {
    let mut sender = three_peers(1);
    let ended = sender.multi_send(&[(PEER, 0), (OTHER, 1), (PEER, 2)], 8);
    assert_eq!(ended, ["transmit eager 8", "done 0", "transmit eager 8", "done 1"]);
    assert_eq!(sender.credits_of(PEER, 1), ["retire", "transmit eager 8", "done 2"]);
}

#[test]
fn too_many_multi_sends_or_destinations_are_refused_and_nothing_changes() {
    let mut sender = three_peers(1);
    sender.send_to(OTHER, 9, 8);
    for request in 0..MAX_MULTI_SENDS as u32 {
        assert_eq!(sender.multi_send(&[(PEER, 2 * request), (OTHER, 2 * request + 1)], 8), [""; 0]);
    }
    let backlogged = sender.machine.backlogged();
    let mut refused = |copies: &[MessageCopy]| {
        let mut actions = Vec::new();
        let event = Event::PostedCopies(multi_send(copies, 8));
        let result = sender.machine.handle(event, Recorder::new(sender.now, &mut actions));
        assert_eq!((result, actions), (Err(Refusal::Backlog), Vec::new()));
    };
    refused(&[copy(PEER, 500), copy(THIRD, 501)]);
    refused(&[copy(THIRD, 500); MAX_DESTINATIONS + 1]);
    assert_eq!(sender.machine.backlogged(), backlogged);
}
