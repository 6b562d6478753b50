//! Tests of peeks, claims and discards of unexpected messages.

use super::*;

#[test]
fn a_peek_leaves_claims_or_discards_its_message() {
    let (one, other) = pair(threading::SAFE, 0);
    let mut from = [7; 16];
    for tag in [1, 2] {
        one.send(&mut from, 50 + tag, tag, 0);
        one.read(&other).expect("the send");
    }
    assert_eq!(other.peek(2, 30, flags::PEEK), 0);
    let (entry, source) = other.read(&one).expect("found");
    assert_eq!((entry.len, entry.tag, entry.data, entry.buf, source), (16, 2, 52, 0, 1));
    assert_eq!(other.peek(1, 31, flags::PEEK | flags::CLAIM), 0);
    assert_eq!(other.read(&one).expect("claimed").0.tag, 1);
    assert_eq!(other.peek(1, 32, flags::PEEK), 0); // another peek does not find it
    assert_eq!(other.read(&one).unwrap_err(), -259);
    assert_eq!(other.error().err, 42);
    let mut to = [0_u8; 16];
    let pieces = [libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: 16 }];
    // SAFETY: the buffer outlives the endpoints.
    let msg_iov = unsafe { UserVector::new(pieces.as_ptr()) };
    // Open MPI passes a meaningless address with a claim.
    let claim = FiMsgTagged { msg_iov, iov_count: 1, addr: 12345, tag: 0, context: 31, ..zeroed() };
    assert_eq!((other.tagged().recvmsg)(other.endpoint(), &claim, flags::CLAIM), 0);
    assert_eq!(other.read(&one).expect("received").0.op_context, 31);
    assert_eq!(to, [7; 16]);
    assert_eq!((other.tagged().recvmsg)(other.endpoint(), &claim, flags::CLAIM), -22); // only once
    assert_eq!(other.peek(2, 33, flags::PEEK | flags::CLAIM), 0);
    assert_eq!(other.read(&one).expect("claimed").0.op_context, 33);
    assert_eq!(other.peek(2, 33, flags::CLAIM | flags::DISCARD), 0);
    assert_eq!(other.read(&one).expect("discarded").0.op_context, 33);
}

/// See [`crate::message::Receive::post`].
#[test]
fn a_peek_from_any_sender_with_the_flag_of_mpi_libraries_finds_a_message_at_the_second_look() {
    let (one, other) = pair(threading::SAFE, 0);
    one.send(&mut [7; 16], 0, 2, 0);
    one.read(&other).expect("the send");
    assert_eq!(other.peek(2, 30, flags::PEEK | flags::COMPLETION), 0);
    assert_eq!(other.read(&one).unwrap_err(), -259);
    assert_eq!(other.error().err, 42);
    assert_eq!(other.peek(2, 30, flags::PEEK | flags::COMPLETION), 0);
    assert_eq!(other.read(&one).expect("found").0.tag, 2);
}

#[test]
fn messages_claimed_with_one_context_are_received_in_the_order_of_their_claims() {
    let (one, other) = pair(threading::SAFE, 0);
    for (byte, tag) in [(7, 1), (8, 2), (9, 3)] {
        one.send(&mut [byte; 4], 0, tag, 0);
        one.read(&other).expect("the send");
    }
    for tag in [1, 2, 3] {
        assert_eq!(other.peek(tag, 31, flags::PEEK | flags::CLAIM), 0);
        assert_eq!(other.read(&one).expect("claimed").0.tag, tag);
    }
    let mut to = [0_u8; 4];
    let pieces = [libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: 4 }];
    // SAFETY: the buffer outlives the endpoints.
    let msg_iov = unsafe { UserVector::new(pieces.as_ptr()) };
    let claim = FiMsgTagged { msg_iov, iov_count: 1, addr: 1, tag: 0, context: 31, ..zeroed() };
    assert_eq!((other.tagged().recvmsg)(other.endpoint(), &claim, flags::CLAIM), 0);
    assert_eq!(other.read(&one).expect("the first").0.tag, 1);
    assert_eq!(to, [7; 4]);
    assert_eq!(other.peek(0, 31, flags::CLAIM | flags::DISCARD), 0);
    assert_eq!(other.read(&one).expect("the second").0.tag, 2);
    assert_eq!((other.tagged().recvmsg)(other.endpoint(), &claim, flags::CLAIM), 0);
    assert_eq!(other.read(&one).expect("the third").0.tag, 3);
    assert_eq!(to, [9; 4]);
    assert_eq!((other.tagged().recvmsg)(other.endpoint(), &claim, flags::CLAIM), -22); // none is left
}

#[test]
fn a_claimed_untagged_message_is_reported_as_untagged() {
    let (one, other) = pair(threading::SAFE, 0);
    let (mut from, mut to) = ([7; 8], [0_u8; 8]);
    let untagged = table(other.endpoint().msg);
    for context in [5, 6] {
        assert_eq!((untagged.inject)(one.endpoint(), buffer(&mut from), 8, 1), 0);
        let pieces = [libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: 8 }];
        // SAFETY: the buffer outlives the endpoints.
        let msg_iov = unsafe { UserVector::new(pieces.as_ptr()) };
        let message = FiMsg { msg_iov, iov_count: 1, addr: 1, context, ..zeroed() };
        let then = if context == 5 { flags::CLAIM } else { flags::CLAIM | flags::DISCARD };
        other.progress();
        for flags in [flags::PEEK | flags::CLAIM, then] {
            assert_eq!((untagged.recvmsg)(other.endpoint(), &message, flags | flags::COMPLETION), 0);
            let entry = other.read(&one).expect("the message").0;
            assert_eq!((entry.op_context, entry.flags), (context, flags::RECV | flags::MSG));
        }
    }
    assert_eq!(to, [7; 8]);
}
