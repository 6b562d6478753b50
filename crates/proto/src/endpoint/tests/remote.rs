//! Tests of the exact actions: remote reads and writes.

use super::*;

#[test]
fn a_large_remote_write_is_copied_by_its_initiator() {
    let mut initiator = with_credits(8);
    let (request, peer, key) = (Request(0), PEER, 5);
    let write = RemoteCommand { request, peer, key, offset: 0, bytes: 5000, data: Some(3) };
    assert_eq!(initiator.post(Command::Write(write)), ["transmit locate 0"]);
    let located = Body::Located {
        transfer: Transfer(0),
        key,
        offset: 0,
        address: RemoteAddress::without_key(4096),
        refused: false,
    };
    assert_eq!(initiator.arrive(located, 0), ["copy 5000", "retire"]);
    let done = Event::CopyDone { transfer: Transfer(0), result: Ok(()) };
    assert_eq!(initiator.event(done), ["transmit written 0", "done 0"]);
}

#[test]
fn a_remote_write_with_data_completes_when_its_notification_has_left() {
    let mut initiator = with_credits(2);
    let (request, peer, key) = (Request(0), PEER, 5);
    let write = RemoteCommand { request, peer, key, offset: 0, bytes: 5000, data: Some(9) };
    initiator.post(Command::Write(write));
    initiator.send(1, 8); // spends the last credit
    let located = Body::Located {
        transfer: Transfer(0),
        key,
        offset: 0,
        address: RemoteAddress::without_key(4096),
        refused: false,
    };
    initiator.arrive(located, 0);
    let done = Event::CopyDone { transfer: Transfer(0), result: Ok(()) };
    assert_eq!(initiator.event(done), [""; 0]);
    assert_eq!(initiator.machine.undelivered(), []);
    initiator.granted = 1;
    assert_eq!(initiator.arrive(Body::Credit, 0), ["retire", "transmit written 0", "done 0"]);
}

#[test]
fn an_unrequested_located_reply_does_not_complete_a_queued_write() {
    let mut initiator = with_credits(1);
    initiator.send(1, 8); // this spends the only credit
    let (request, peer, key) = (Request(0), PEER, 5);
    let write = RemoteCommand { request, peer, key, offset: 0, bytes: 50, data: None };
    assert_eq!(initiator.post(Command::Write(write)), [""; 0]);
    let located = Body::Located {
        transfer: Transfer(0),
        key,
        offset: 0,
        address: RemoteAddress::without_key(0),
        refused: true,
    };
    assert_eq!(initiator.arrive(located, 0), ["retire", "drop peer", "lost 0"]);
}

#[test]
fn a_slow_reader_does_not_stop_sends_to_others() {
    let mut target = with_credits(1);
    target.machine.paths.config.max_backlog = 2;
    target.post(Command::RegisterMemory { key: 5, bytes: 1000, readable: true, writable: false });
    for transfer in 0..10 {
        let read = Body::Read { transfer: Transfer(transfer), key: 5, offset: 0, length: 1000 };
        target.arrive(read, 0);
    }
    assert_eq!(target.machine.backlogged(), 10);
    let send = |to, request| {
        let (request, space, level) = (Request(request), Space::Tagged, SendLevel::Delivered);
        Command::Send(SendCommand { request, to, space, tag: 0, data: None, bytes: 8, level })
    };
    let mut post = |to, request| {
        let mut actions = Vec::new();
        let driver = Recorder::new(Instant(0), &mut actions);
        target.machine.handle(Event::Posted(send(to, request)), driver)
    };
    assert_eq!(post(PEER, 0), Err(Refusal::Backlog), "it waits behind the answers");
    assert_eq!(post(Peer(2), 1), Ok(()));
    assert_eq!(post(Peer(2), 2), Ok(()));
    assert_eq!(post(Peer(2), 3), Err(Refusal::Backlog), "two wait there");
    assert_eq!(post(Peer(3), 4), Ok(()));
}

#[test]
fn an_initiator_has_a_bound_on_remote_operations_with_a_peer() {
    let mut initiator = with_credits(1);
    let read = |peer, request| {
        let (request, key) = (Request(request), 5);
        Command::Read(RemoteCommand { request, peer, key, offset: 0, bytes: 8, data: None })
    };
    (0..MAX_REMOTE_OPERATIONS).for_each(|request| drop(initiator.post(read(PEER, request))));
    let mut actions = Vec::new();
    let driver = Recorder::new(Instant(0), &mut actions);
    let refused = initiator.machine.handle(Event::Posted(read(PEER, u32::MAX - 1)), driver);
    assert_eq!(refused, Err(Refusal::RemoteOperations));
    assert_eq!(initiator.post(read(Peer(2), u32::MAX - 2)), ["connect"], "others are not affected");
    // The first one has left. Its end admits one more.
    let piece = Body::Piece { transfer: Transfer(0), offset: 0, last: true };
    assert!(initiator.arrive(piece, 8).contains(&"done 0".into()));
    assert_eq!(initiator.post(read(PEER, u32::MAX - 1)), [""; 0]);
    let driver = Recorder::new(Instant(0), &mut actions);
    let refused = initiator.machine.handle(Event::Posted(read(PEER, u32::MAX - 3)), driver);
    assert_eq!(refused, Err(Refusal::RemoteOperations));
}

#[test]
fn a_reader_beyond_the_bound_is_malformed() {
    let mut target = with_credits(1);
    target.send(0, 8); // this spends the only credit
    target.post(Command::RegisterMemory { key: 5, bytes: 8, readable: true, writable: true });
    let read = |transfer| Body::Read { transfer: Transfer(transfer), key: 5, offset: 0, length: 8 };
    let locate =
        |transfer| Body::Locate { transfer: Transfer(transfer), key: 5, offset: 0, length: 8, write: true };
    let unknown = |transfer| Body::Read { transfer: Transfer(transfer), key: 6, offset: 0, length: 8 };
    for transfer in 0..MAX_REMOTE_OPERATIONS + MAX_ANSWERS {
        let body = [read(transfer), locate(transfer), unknown(transfer)][transfer as usize % 3];
        assert!(!target.arrive(body, 0).contains(&"drop peer".into()), "{transfer}");
    }
    assert_eq!(target.arrive(read(0), 0), ["retire", "drop peer"]);
}

#[test]
fn a_read_of_a_region_that_shrank_is_refused() {
    let mut target = with_credits(1);
    let expose = |bytes| Command::RegisterMemory { key: 5, bytes, readable: true, writable: false };
    target.post(expose(1000));
    let read = Body::Read { transfer: Transfer(3), key: 5, offset: 0, length: 1000 };
    assert_eq!(target.arrive(read, 0), ["transmit piece 8", "retire", "credit total 1"]);
    target.post(Command::DeregisterMemory { key: 5 });
    target.post(expose(10));
    assert_eq!(target.credits_back(1), ["retire", "refused"]);
}
