//! Tests of completion queues and counters: which completions make an entry, entry formats, errors, blocking reads.

use super::*;
use crate::group_wait::GroupPrecedence;
use crate::state::entry::Entry;

#[test]
fn selective_completion_reports_flagged_operations_and_all_errors() {
    let (one, other) = pair(threading::SAFE, SELECTIVE);
    let (mut from, mut to) = ([5_u8; 8], [0_u8; 4]);
    let pieces = [libc::iovec { iov_base: from.as_mut_ptr().cast(), iov_len: 8 }];
    // SAFETY: the buffer outlives the endpoints.
    let msg_iov = unsafe { UserVector::new(pieces.as_ptr()) };
    let silent = FiMsgTagged { msg_iov, iov_count: 1, addr: 1, tag: 3, context: 0, ..zeroed() };
    // Delivery complete alone makes no entry.
    assert_eq!((one.tagged().sendmsg)(one.endpoint(), &silent, flags::DELIVERY_COMPLETE), 0);
    let receive = FiMsgTagged { addr: ADDR_UNSPEC, tag: 3, context: 4, iov_count: 1, ..zeroed() };
    let pieces = [libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: 4 }];
    // SAFETY: as above.
    let receive = FiMsgTagged { msg_iov: unsafe { UserVector::new(pieces.as_ptr()) }, ..receive };
    assert_eq!((other.tagged().recvmsg)(other.endpoint(), &receive, 0), 0);
    assert_eq!(other.read(&one).unwrap_err(), -259);
    let error = other.error();
    assert_eq!((error.err, error.op_context, error.len, error.olen, error.tag), (265, 4, 4, 4, 3));
    assert_eq!((error.flags, error.src_addr), (0x408, 1));
    one.progress();
    assert_eq!((table(one.queue().ops).read)(one.queue(), OutArray::none(), 1), -11);
    assert_eq!(one.sent(), 1);
}

#[test]
fn error_entries_fit_the_api_version() {
    for (api_version, untouched) in [(version(1, 4), 72), (version(1, 5), 80), (version(1, 20), 88)] {
        let mut bytes = [0xEE_u8; 96];
        let side = Side::open(threading::SAFE, api_version, cq_format::TAGGED, 0);
        assert_eq!(side.peek(1, 5, flags::PEEK), 0);
        assert_eq!(side.read(&side).unwrap_err(), -259);
        bytes[72..80].fill(0); // err_data_size: no buffer given
        let place = CqErrorOut::from(bytes.as_mut_ptr().cast::<FiCqErrEntry>());
        assert_eq!((table(side.queue().ops).readerr)(side.queue(), place, 0), 1);
        assert!(bytes[untouched.max(80)..].iter().all(|&byte| byte == 0xEE));
        assert_eq!(i32::from_ne_bytes([bytes[56], bytes[57], bytes[58], bytes[59]]), 42);
    }
}

#[test]
fn successes_before_an_error_are_read_first() {
    let (one, other) = pair(threading::SAFE, 0);
    let (mut from, mut to) = ([1], [0]);
    one.inject(&mut from, 1);
    other.receive(&mut to, 1, 1, 1);
    other.progress();
    assert_eq!(other.peek(9, 2, flags::PEEK), 0);
    assert_eq!(other.read(&one).expect("the message").0.op_context, 1);
    assert_eq!(other.read(&one).unwrap_err(), -259);
    assert_eq!(other.read(&one).unwrap_err(), -259); // until readerr takes it
    assert_eq!(other.error().op_context, 2);
    assert_eq!(
        (table(other.queue().ops).readerr)(other.queue(), CqErrorOut::from(std::ptr::null_mut()), 0),
        -11
    );
}

#[test]
fn a_member_that_waits_in_a_group_reads_the_error_of_a_lost_peer_later() {
    let (one, _other) = pair(threading::SAFE, 0);
    let fail = |error| {
        let queue = one.queue();
        queue.domain.enter().queues[queue.index].entries.push_back(Entry { error, ..Entry::default() });
    };
    let read = || {
        let mut entry = [zeroed::<FiCqTaggedEntry>()];
        (table(one.queue().ops).read)(one.queue(), OutArray::from(&mut entry[..]).cast(), 1)
    };
    fail(libc::ECANCELED);
    fail(libc::ECONNRESET);
    let precedence = GroupPrecedence::begin();
    assert_eq!((read(), one.error().err), (-259, libc::ECANCELED), "it tells of no loss");
    assert_eq!((read(), read()), (-11, -11));
    drop(precedence);
    assert_eq!((read(), one.error().err), (-259, libc::ECONNRESET));
}

#[test]
fn counters_with_unknown_attributes_are_rejected() {
    let (one, _other) = pair(threading::SAFE, 0);
    let open = |attr: FiCntrAttr| {
        let mut made = std::ptr::null_mut();
        (table(one.domain.ops).cntr_open)(&one.domain, Some(&attr), Out::from(&mut made), 0)
    };
    assert_eq!(open(FiCntrAttr { flags: 1, ..zeroed() }), -260);
    assert_eq!(open(FiCntrAttr { events: 1, ..zeroed() }), -38); // bytes, not completions
}

#[test]
fn short_cq_formats_are_prefixes_of_the_tagged_one() {
    for (format, words) in
        [(cq_format::UNSPEC, 1), (cq_format::CONTEXT, 1), (cq_format::MSG, 3), (cq_format::DATA, 5)]
    {
        let side = Side::open(threading::SAFE, version(1, 21), format, 0);
        side.insert_addresses(&[side.address(), side.address()]);
        assert_eq!(
            (table(side.endpoint().tagged.get()).inject)(side.endpoint(), buffer(&mut [1; 4]), 4, 0, 1),
            0
        );
        let mut to = [0; 4];
        side.receive(&mut to, 0, 1, 33);
        let mut entry = [u64::MAX; 6];
        let until = std::time::Instant::now() + std::time::Duration::from_secs(2);
        while (table(side.queue().ops).read)(side.queue(), OutArray::from(&mut entry[..]).cast(), 1) != 1 {
            assert!(std::time::Instant::now() < until);
        }
        assert_eq!(entry[0], 33);
        assert_eq!(entry.iter().take_while(|&&word| word != u64::MAX).count(), words);
    }
}

#[test]
fn blocking_reads_end_in_time_and_on_a_signal() {
    let (one, _other) = pair(threading::SAFE, 0);
    let ops = table(one.queue().ops);
    let null = std::ptr::null();
    let start = std::time::Instant::now();
    assert_eq!((ops.sread)(one.queue(), OutArray::none(), 1, null, 30), -11);
    assert!(start.elapsed() >= std::time::Duration::from_millis(30));
    assert_eq!((ops.signal)(one.queue()), 0);
    assert_eq!((ops.sread)(one.queue(), OutArray::none(), 1, null, -1), -11);
    let counter = one.counter.as_ref().expect("open");
    assert_eq!((table(counter.ops).wait)(counter, 1, 10), -110);
    assert_eq!((table(counter.ops).wait)(counter, 0, -1), 0);
}

#[test]
fn a_queue_in_use_cannot_be_closed() {
    let mut side = Side::open(threading::SAFE, version(1, 21), cq_format::TAGGED, 0);
    let queue = side.queue.take().expect("open");
    let pointer = Box::into_raw(queue);
    // SAFETY: the queue remains the test's if closing fails. Until then only `close` has it.
    let closing = unsafe { Box::from_raw(pointer) };
    assert_eq!((ops::<QueueHandle>(&closing.fid).close)(closing), -16);
    // SAFETY: closing failed.
    side.queue = Some(unsafe { Box::from_raw(pointer) });
}
