//! Tests of the exact actions: receives, peeks and multi-receive buffers, and messages beyond the bounds of a receiver.

use super::*;

#[test]
fn an_unexpected_message_is_buffered_and_truncated_to_the_receive() {
    let mut receiver = with_credits(8);
    assert_eq!(receiver.eager(100, 100), ["allocate 100", "place 100", "retire"]);
    assert_eq!(receiver.receive(0, 60, None), ["deliver 60", "free", "received 0 60 at 0 last true"]);
}

#[test]
fn a_message_matched_halfway_takes_its_start_from_the_unexpected_buffer() {
    let mut receiver = with_credits(8);
    assert_eq!(receiver.eager(100, 40), ["allocate 100", "place 40", "retire"]);
    assert_eq!(receiver.receive(0, 200, None), ["deliver 40", "free"]);
    let more = Body::More { offset: 40 };
    assert_eq!(receiver.arrive(more, 60), ["place 60", "received 0 100 at 0 last true", "retire"]);
}

#[test]
fn a_multi_receive_buffer_packs_messages_and_is_released_with_the_last() {
    let mut receiver = with_credits(64);
    assert_eq!(receiver.receive(0, 100, Some(30)), [""; 0]);
    assert_eq!(receiver.eager(45, 45), ["place 45", "received 0 45 at 0 last false", "retire"]);
    assert_eq!(receiver.eager(25, 25), ["place 25", "received 0 25 at 45 last false", "retire"]);
    // 30 bytes are free, which is not fewer than 30.
    assert_eq!(receiver.eager(1, 1), ["place 1", "received 0 1 at 70 last true", "retire"]);
}

#[test]
fn a_message_too_long_for_the_rest_of_a_multi_receive_buffer_goes_to_the_next() {
    let mut receiver = with_credits(64);
    receiver.receive(0, 100, Some(10));
    receiver.receive(1, 100, Some(10));
    receiver.eager(60, 60);
    assert_eq!(receiver.eager(50, 50), ["released 0", "place 50", "received 1 50 at 0 last false", "retire"]);
}

#[test]
fn a_multi_receive_buffer_is_released_after_its_pending_message() {
    let mut receiver = with_credits(64);
    receiver.receive(0, 100, Some(50));
    assert_eq!(receiver.rendezvous(60, 1), ["copy 60", "retire"]); // closes it
    let done = Event::CopyDone { transfer: Transfer(0), result: Ok(()) };
    assert_eq!(receiver.event(done), ["received 0 60 at 0 last true", "finished"]);
}

#[test]
fn messages_that_waited_fill_a_multi_receive_buffer_in_order() {
    let mut receiver = with_credits(64);
    receiver.eager(5, 5);
    receiver.eager(6, 6);
    assert_eq!(
        receiver.receive(0, 100, Some(10)),
        [
            "deliver 5",
            "free",
            "received 0 5 at 0 last false",
            "deliver 6",
            "free",
            "received 0 6 at 5 last false"
        ]
    );
}

#[test]
fn a_multi_receive_buffer_can_be_canceled_before_and_during_a_message() {
    let mut receiver = with_credits(64);
    receiver.receive(0, 100, Some(10));
    assert_eq!(receiver.post(Command::Cancel { request: Request(0) }), ["canceled 0"]);
    receiver.receive(1, 100, Some(10));
    receiver.rendezvous(60, 1);
    assert_eq!(receiver.post(Command::Cancel { request: Request(1) }), [""; 0]);
    let done = Event::CopyDone { transfer: Transfer(0), result: Ok(()) };
    assert_eq!(receiver.event(done), ["received 1 60 at 0 last false", "canceled 1", "finished"]);
}

#[test]
fn peek_leaves_claims_or_discards() {
    let mut receiver = with_credits(64);
    let peek = |request, then| Command::Peek { request: Request(request), pattern: ANY, then };
    assert_eq!(receiver.post(peek(0, PeekThen::Leave)), ["absent 0"]);
    receiver.eager(5, 5);
    receiver.eager(6, 6);
    assert_eq!(receiver.post(peek(1, PeekThen::Leave)), ["found 1"]);
    assert_eq!(receiver.post(peek(2, PeekThen::Claim)), ["found 2"]);
    assert_eq!(receiver.post(peek(3, PeekThen::Discard)), ["free", "found 3"]); // the second message
    assert_eq!(receiver.receive(4, 10, None), [""; 0]); // the claimed one is not there for others
    let claimed = Command::ReceiveClaimed { request: Request(5), message: MessageId(0), capacity_bytes: 10 };
    assert_eq!(receiver.post(claimed), ["deliver 5", "free", "received 5 5 at 0 last true"]);
}

#[test]
fn leave_until_seen_twice_reports_at_the_second_peek() {
    let mut receiver = with_credits(64);
    receiver.eager(5, 5);
    let then = PeekThen::LeaveUntilSeenTwice;
    let peek = |request| Command::Peek { request: Request(request), pattern: ANY, then };
    assert_eq!(receiver.post(peek(0)), ["absent 0"]);
    assert_eq!(receiver.post(peek(1)), ["found 1"]);
    assert_eq!(receiver.post(peek(2)), ["found 2"]);
}

#[test]
fn a_discarded_rendezvous_is_acknowledged() {
    let mut receiver = with_credits(64);
    receiver.rendezvous(5000, 1);
    let discard = Command::Peek { request: Request(0), pattern: ANY, then: PeekThen::Discard };
    assert_eq!(receiver.post(discard), ["finished", "found 0"]);
}

#[test]
fn an_oversized_message_is_rejected_before_memory_is_allocated() {
    let mut receiver = with_credits(8);
    assert_eq!(receiver.eager(MAX_EAGER_BYTES as u32 + 1, 16), ["retire", "drop peer"]);
}

#[test]
fn a_sender_beyond_the_unexpected_message_bound_is_lost() {
    let mut receiver = with_credits(64);
    for _ in 0..4 {
        receiver.eager(0, 0);
    }
    assert_eq!(receiver.eager(0, 0), ["retire", "drop peer"]);
    assert_eq!(vec![receiver.machine.counters().peak_unexpected_messages], [4]);
}
