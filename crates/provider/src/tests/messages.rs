//! Tests of sends and receives: tagged, injected, cancelled and multi-receive, with their addresses and flags. Also
//! tests of flags that are refused, and of peers that are inserted late or never.

use super::*;

#[test]
fn a_tagged_message_arrives_with_tag_data_and_source() {
    for threading in [threading::SAFE, threading::DOMAIN] {
        let (one, other) = pair(threading, 0);
        let (mut from, mut to) = (*b"hello", [0; 8]);
        other.receive(&mut to, 1, 7, 21);
        one.send(&mut from, 99, 7, 11);
        let (entry, source) = other.read(&one).expect("the message");
        assert_eq!(
            (entry.op_context, entry.flags, entry.len, entry.data, entry.tag),
            (21, 0x20408, 5, 99, 7)
        );
        assert_eq!((source, &to[..5]), (1, &b"hello"[..]));
        let (entry, source) = one.read(&other).expect("the send");
        assert_eq!((entry.op_context, entry.flags, source), (11, 0x808, ADDR_UNSPEC));
    }
}

#[test]
fn getname_reports_the_needed_length() {
    let (one, _other) = pair(threading::SAFE, 0);
    // The most that MPICH takes: FI_NAME_MAX of libfabric.
    assert_eq!(one.name(0), (-257, 64));
    assert_eq!(one.name(63), (-257, 64));
    assert_eq!(one.name(64), (0, 64));
}

#[test]
fn injected_messages_make_no_entry_but_count() {
    let (one, other) = pair(threading::SAFE, 0);
    let (mut from, mut to) = ([1, 2, 3], [0; 3]);
    one.inject(&mut from, 5);
    from = [9; 3]; // the buffer belongs to the program again
    other.receive(&mut to, ADDR_UNSPEC, 5, 1);
    assert_eq!(other.read(&one).expect("the message").0.len, 3);
    assert_eq!((to, from), ([1, 2, 3], [9; 3]));
    one.progress();
    assert_eq!(one.sent(), 1);
    let nothing = (table(one.queue().ops).read)(one.queue(), OutArray::none(), 1);
    assert_eq!(nothing, -11);
}

#[test]
fn fences_and_unknown_flags_are_refused() {
    let (one, other) = pair(threading::SAFE, 0);
    let (untagged, rma) = (table(one.endpoint().msg), table(one.endpoint().rma));
    let target = FiRmaIov { addr: 0, len: 0, key: 0 };
    let tagged_message = FiMsgTagged { addr: 1, ..zeroed() };
    let message = FiMsg { addr: 1, ..zeroed() };
    let remote = FiMsgRma { addr: 1, rma_iov: &raw const target, rma_iov_count: 1, ..zeroed() };
    for refused in [flags::FENCE, flags::FENCE | flags::COMPLETION, 1 << 30, 1 << 63] {
        assert_eq!((one.tagged().sendmsg)(one.endpoint(), &tagged_message, refused), -260);
        assert_eq!((one.tagged().recvmsg)(one.endpoint(), &tagged_message, refused), -260);
        assert_eq!((untagged.sendmsg)(one.endpoint(), &message, refused), -260);
        assert_eq!((untagged.recvmsg)(one.endpoint(), &message, refused), -260);
        assert_eq!((rma.writemsg)(one.endpoint(), &remote, refused), -260);
        assert_eq!((rma.readmsg)(one.endpoint(), &remote, refused), -260);
    }
    // A flag of the other direction is not known either. A hint is.
    assert_eq!((one.tagged().sendmsg)(one.endpoint(), &tagged_message, flags::PEEK), -260);
    assert_eq!((one.tagged().recvmsg)(one.endpoint(), &tagged_message, flags::INJECT), -260);
    assert_eq!(other.peek(0, 5, flags::PEEK), 0);
    assert_eq!(other.read(&one).unwrap_err(), -259); // nothing was sent
    assert_eq!((one.tagged().sendmsg)(one.endpoint(), &tagged_message, flags::MORE | flags::COMPLETION), 0);
    one.read(&other).expect("the send");
}

#[test]
fn a_cancelled_receive_makes_one_error() {
    let (one, _other) = pair(threading::SAFE, 0);
    let mut to = [0; 4];
    one.receive(&mut to, 1, 1, 44);
    let cancel = table(one.endpoint().ops).cancel;
    assert_eq!(cancel(one.endpoint(), 44), 0);
    assert_eq!(cancel(one.endpoint(), 45), -2);
    assert_eq!(one.read(&one).unwrap_err(), -259);
    let error = one.error();
    assert_eq!((error.err, error.op_context, error.flags & flags::RECV), (125, 44, flags::RECV));
}

#[test]
fn a_multi_receive_buffer_is_filled_contiguously_and_released() {
    let (one, other) = pair(threading::SAFE, SELECTIVE);
    let least = [16_usize];
    let ops = table(other.endpoint().ops);
    assert_eq!((ops.setopt)(other.endpoint(), 0, 0, InArray::from(&least[..]), 8), 0);
    assert_eq!((ops.setopt)(other.endpoint(), 0, 1, InArray::from(&least[..]), 8), -92);
    let mut to = [0_u8; 40];
    let pieces = [libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: 40 }];
    // SAFETY: the buffer outlives the endpoints.
    let msg_iov = unsafe { UserVector::new(pieces.as_ptr()) };
    let message = FiMsg { msg_iov, iov_count: 1, addr: ADDR_UNSPEC, context: 8, ..zeroed() };
    let untagged = table(other.endpoint().msg);
    assert_eq!((untagged.recvmsg)(other.endpoint(), &message, flags::MULTI_RECV | flags::COMPLETION), 0);
    let mut from = [3; 13];
    for _ in 0..2 {
        assert_eq!((untagged.inject)(one.endpoint(), buffer(&mut from), 13, 1), 0);
    }
    let base = to.as_ptr() as usize;
    let mut released = false;
    for place in [0, 13] {
        let entry = other.read(&one).expect("a message").0;
        assert_eq!((entry.op_context, entry.len, entry.buf), (8, 13, base + place));
        assert_eq!(entry.flags & !flags::MULTI_RECV, flags::RECV | flags::MSG);
        released |= entry.flags & flags::MULTI_RECV != 0;
    }
    if !released {
        assert_eq!(other.read(&one).expect("the release").0.flags, flags::MULTI_RECV);
    }
}

#[test]
fn a_message_from_a_peer_inserted_later_matches_a_directed_receive() {
    let open = || Side::open(threading::SAFE, version(1, 21), cq_format::TAGGED, 0);
    let (one, other) = (open(), open());
    one.insert_addresses(&[one.address(), other.address()]);
    let (mut from, mut to) = ([4; 4], [0; 4]);
    one.send(&mut from, 0, 1, 0);
    other.progress();
    other.insert_addresses(&[other.address(), one.address()]);
    other.receive(&mut to, 1, 1, 5);
    assert_eq!(other.read(&one).expect("the message").1, 1);
}

#[test]
fn an_unknown_sender_has_no_source_and_an_unknown_receiver_is_invalid() {
    let open = || Side::open(threading::SAFE, version(1, 21), cq_format::TAGGED, 0);
    let (one, other) = (open(), open());
    one.insert_addresses(&[one.address(), other.address()]);
    let (mut from, mut to) = ([4; 4], [0; 4]);
    one.send(&mut from, 0, 1, 0);
    other.receive(&mut to, ADDR_UNSPEC, 1, 5);
    assert_eq!(other.read(&one).expect("the message").1, ADDR_UNSPEC);
    assert_eq!((other.tagged().inject)(other.endpoint(), buffer(&mut from), 4, 7, 0), -22);
}
