//! Tests of the exact actions: lost peers, malformed packets and closing.

use super::*;

#[test]
fn a_malformed_packet_loses_its_sender() {
    let nonsense = [
        Body::More { offset: 0 },
        Body::Finished { transfer: Transfer(3), count: 1, refused: false },
        Body::Fetch { transfer: Transfer(0), reply: Transfer(0), length: 8 },
        Body::Piece { transfer: Transfer(0), offset: 0, last: true },
        Body::Located {
            transfer: Transfer(0),
            key: 0,
            offset: 0,
            address: RemoteAddress::without_key(0),
            refused: false,
        },
    ];
    for body in nonsense {
        let mut receiver = with_credits(8);
        assert_eq!(receiver.arrive(body, 0), ["retire", "drop peer"], "{body:?}");
        assert_eq!(receiver.machine.counters().malformed_packets, 1);
        assert_eq!(receiver.send(0, 8), ["lost 0"]);
    }
}

#[test]
fn a_malformed_packet_that_the_link_rejects_is_counted() {
    let mut receiver = with_credits(8);
    receiver.event(Event::Lost { peer: PEER, fault: PeerFault::Malformed });
    assert_eq!(receiver.machine.counters().malformed_packets, 1);
    receiver.event(Event::Lost { peer: PEER, fault: PeerFault::Malformed });
    assert_eq!(receiver.machine.counters().malformed_packets, 1, "once for each lost peer");
}

#[test]
fn a_grant_of_unspent_credits_is_rejected() {
    let mut sender = with_credits(4);
    sender.send(0, 8);
    assert_eq!(sender.credits_back(2), ["retire", "drop peer"]);
}

#[test]
fn a_dead_peer_fails_only_the_operations_that_depend_on_it() {
    let mut survivor = with_credits(1);
    survivor.send(0, 8);
    survivor.send(1, 8); // waits for credit
    survivor.send(2, 5000); // waits behind it
    survivor.receive(3, 8, None); // from any source
    let pattern = Pattern { from: Some(Peer(2)), ..ANY };
    let other = ReceiveCommand { request: Request(4), pattern, capacity_bytes: 8, multi: None };
    survivor.post(Command::Receive(other));
    let lost = Event::Lost { peer: PEER, fault: PeerFault::Died };
    assert_eq!(survivor.event(lost), ["drop peer", "lost 1", "lost 2", "lost 3"]);
    assert_eq!(survivor.receive(5, 8, None), ["lost 5"]); // the awaited message may have been the lost peer's
    assert_eq!(survivor.post(Command::Cancel { request: Request(4) }), ["canceled 4"]);
}

#[test]
fn an_orderly_close_fails_sends_to_the_peer_and_keeps_receives() {
    let mut survivor = with_credits(1);
    survivor.send(0, 8);
    survivor.send(1, 8);
    survivor.receive(2, 8, None);
    let lost = Event::Lost { peer: PEER, fault: PeerFault::Closed };
    assert_eq!(survivor.event(lost), ["drop peer", "lost 1"]);
    assert_eq!(survivor.post(Command::Cancel { request: Request(2) }), ["canceled 2"]);
}

#[test]
fn a_copy_from_a_closed_sender_fails_its_receive_only() {
    let mut receiver = with_credits(8);
    receiver.rendezvous(5000, 1);
    assert_eq!(receiver.receive(0, 5000, None), ["copy 5000"]);
    receiver.receive(1, 8, None); // from any source
    let done = Event::CopyDone { transfer: Transfer(0), result: Err(crate::event::CopyFault::Closed) };
    assert_eq!(receiver.event(done), ["drop peer", "lost 0"]);
    assert_eq!(receiver.machine.fault(PEER), Some(PeerFault::Closed));
    assert_eq!(receiver.machine.counters().peers_lost, 0);
    assert_eq!(receiver.receive(2, 8, None), [""; 0], "others may still send");
}

#[test]
fn two_closing_endpoints_do_not_wait_for_each_other() {
    let mut closing = with_credits(4);
    assert_eq!(closing.send(0, 5000), ["transmit rendezvous 0"]);
    assert!(closing.machine.has_undelivered());
    assert_eq!(closing.post(Command::Close), ["transmit goodbye 0"]);
    assert_eq!(closing.arrive(Body::Goodbye, 0), ["lost 0", "retire"]);
    assert!(!closing.machine.has_undelivered());
    // The other side had matched it before it closed, and acknowledges late.
    let finished = Body::Finished { transfer: Transfer(0), count: 1, refused: false };
    assert_eq!(closing.arrive(finished, 0), ["retire"]);
}

#[test]
fn a_goodbye_cancels_queued_rendezvous() {
    let mut sender = with_credits(1);
    sender.send(0, 8);
    assert_eq!(sender.send(1, 5000), [""; 0]);
    assert_eq!(sender.arrive(Body::Goodbye, 0), ["lost 1", "retire", "credit total 1"]);
    assert_eq!(sender.credits_back(1), ["retire"]);
    assert!(sender.machine.is_quiescent());
}

#[test]
fn a_goodbye_ends_queued_synchronous_sends() {
    for bytes in [0, 8] {
        let mut sender = with_credits(1);
        sender.send(0, 8);
        assert_eq!(sender.send_at(1, bytes, SendLevel::Matched), [""; 0]);
        assert_eq!(sender.arrive(Body::Goodbye, 0), ["lost 1", "retire", "credit total 1"]);
        assert_eq!(sender.credits_back(1), ["retire"]);
    }
    // The first packet has left, so the rest follows.
    let mut sender = with_credits(1);
    assert_eq!(sender.send_at(0, 40, SendLevel::Matched), ["transmit eager 8"]);
    assert_eq!(sender.arrive(Body::Goodbye, 0), ["retire", "credit total 1"]);
    assert_eq!(sender.credits_back(1), ["retire", "transmit more 32", "done 0"]);
}

#[test]
fn a_goodbye_without_credit_does_not_delay_close() {
    let mut closing = with_credits(1);
    closing.send(0, 8);
    assert_eq!(closing.post(Command::Close), [""; 0]);
    assert!(!closing.machine.has_undelivered());
}

#[test]
fn a_dead_peer_fails_any_source_multi_receives() {
    let mut survivor = with_credits(4);
    survivor.receive(0, 100, Some(10));
    let lost = Event::Lost { peer: PEER, fault: PeerFault::Died };
    assert_eq!(survivor.event(lost), ["drop peer", "lost 0"]);
}

#[test]
fn a_multi_receive_for_failed_peers_takes_what_has_arrived_and_is_lost() {
    let mut survivor = with_credits(4);
    survivor.eager(8, 8);
    survivor.event(Event::Lost { peer: PEER, fault: PeerFault::Died });
    let received = ["deliver 8", "free", "received 0 8 at 0 last false", "lost 0"];
    assert_eq!(survivor.receive(0, 100, Some(10)), received);
    assert_eq!(survivor.receive(1, 100, Some(10)), ["lost 1"], "from any source");
    let pattern = Pattern { from: Some(PEER), ..ANY };
    let receive = ReceiveCommand { request: Request(2), pattern, capacity_bytes: 100, multi: Some(10) };
    assert_eq!(survivor.post(Command::Receive(receive)), ["lost 2"], "from the dead peer");
    let pattern = Pattern { from: Some(Peer(2)), ..ANY };
    let receive = ReceiveCommand { request: Request(3), pattern, capacity_bytes: 100, multi: Some(10) };
    assert_eq!(survivor.post(Command::Receive(receive)), [""; 0], "from another peer");
    assert_eq!(survivor.post(Command::Cancel { request: Request(3) }), ["canceled 3"]);
}
