//! Tests of the provider as a program uses it: two endpoints of one process, over shared memory, through the tables
//! of functions that C calls.

use std::ffi::c_int;

use crate::av::VectorHandle;
use crate::counter::CounterHandle;
use crate::cq::QueueHandle;
use crate::domain::DomainHandle;
use crate::endpoint_handle::EndpointHandle;
use crate::fabric::FabricHandle;
use crate::ffi::*;
use crate::mr::RegionHandle;
use weir_link::ADDRESS_BYTES;

mod closing;

fn zeroed<T>() -> T {
    // SAFETY: used for plain C structures of numbers and pointers only, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

/// The object that an opening call returns.
fn opened<H>(open: impl FnOnce(Out<*mut H>) -> c_int) -> Box<H> {
    let mut made = std::ptr::null_mut();
    assert_eq!(open(Out::from(&mut made)), 0);
    // SAFETY: `hand_out` just made it, and the test is the program that owns it.
    unsafe { Box::from_raw(made) }
}

/// The `fi_ops` of an object.
fn ops<H: 'static>(fid: &Fid) -> &'static FiOps<H> {
    inner(fid.ops.cast()).expect("every object has its table")
}

fn table<T>(pointer: *const T) -> &'static T {
    inner(pointer).expect("every object has its tables")
}

fn any(fid: &Fid) -> AnyObject<'_> {
    AnyObject::from(&raw const *fid)
}

/// A buffer that lives as long as the test.
fn buffer(bytes: &mut [u8]) -> UserBuffer {
    // SAFETY: the tests keep their buffers until the endpoints are closed.
    unsafe { UserBuffer::new(bytes.as_mut_ptr().cast()) }
}

/// The objects of one process.
struct Side {
    endpoint: Option<Box<EndpointHandle>>,
    vector: Option<Box<VectorHandle>>,
    queue: Option<Box<QueueHandle>>,
    counter: Option<Box<CounterHandle>>,
    domain: Box<DomainHandle>,
    fabric: Box<FabricHandle>,
}

const SELECTIVE: u64 = flags::SELECTIVE_COMPLETION;

impl Side {
    fn open(threading: c_int, api_version: u32, format: c_int, bind_flags: u64) -> Side {
        let fabric_attr = FiFabricAttr { api_version, ..zeroed() };
        let fabric = opened(|out| crate::fabric::open(Some(&fabric_attr), out, 0));
        let mut domain_attr = FiDomainAttr { threading, ..zeroed() };
        let mut tx_attr = FiTxAttr { op_flags: flags::COMPLETION, ..zeroed() };
        let mut rx_attr = FiRxAttr { op_flags: flags::COMPLETION, ..zeroed() };
        let mut info: FiInfo = zeroed();
        info.domain_attr = &raw mut domain_attr;
        info.tx_attr = &raw mut tx_attr;
        info.rx_attr = &raw mut rx_attr;
        let domain = opened(|out| (table(fabric.ops).domain)(&fabric, Some(&info), out, 0));
        let mut vector_attr = FiAvAttr { count: 2, ..zeroed() };
        let queue_attr = FiCqAttr { format, ..zeroed() };
        let domain_ops = table(domain.ops);
        let vector = opened(|out| (domain_ops.av_open)(&domain, Some(&mut vector_attr), out, 0));
        assert_eq!(vector_attr.av_type, av_type::TABLE);
        let queue = opened(|out| (domain_ops.cq_open)(&domain, Some(&queue_attr), out, 0));
        let counter = opened(|out| (domain_ops.cntr_open)(&domain, None, out, 0));
        let endpoint = opened(|out| (domain_ops.endpoint)(&domain, Some(&info), out, 0));
        let fid = ops::<EndpointHandle>(&endpoint.fid);
        assert_eq!((fid.control)(&endpoint, control::ENABLE, std::ptr::null_mut()), -267); // no address vector
        assert_eq!((fid.bind)(&endpoint, any(&vector.fid), 0), 0);
        assert_eq!((fid.control)(&endpoint, control::ENABLE, std::ptr::null_mut()), -263); // no queue
        assert_eq!((fid.bind)(&endpoint, any(&queue.fid), flags::SEND | flags::RECV | bind_flags), 0);
        for remote in [flags::REMOTE_READ, flags::REMOTE_WRITE, flags::WRITE | flags::REMOTE_WRITE] {
            assert_eq!((fid.bind)(&endpoint, any(&counter.fid), remote), -38); // the provider cannot count them
        }
        assert_eq!((fid.bind)(&endpoint, any(&counter.fid), flags::SEND | flags::WRITE), 0);
        let side = Side {
            endpoint: Some(endpoint),
            vector: Some(vector),
            queue: Some(queue),
            counter: Some(counter),
            domain,
            fabric,
        };
        assert_eq!(side.name(ADDRESS_BYTES), (-258, ADDRESS_BYTES)); // not enabled, so it has no address
        assert_eq!((fid.control)(side.endpoint(), control::ENABLE, std::ptr::null_mut()), 0);
        side
    }

    fn endpoint(&self) -> &EndpointHandle {
        self.endpoint.as_ref().expect("open")
    }
    fn queue(&self) -> &QueueHandle {
        self.queue.as_ref().expect("open")
    }
    fn tagged(&self) -> &'static FiOpsTagged<EndpointHandle> {
        table(self.endpoint().tagged)
    }

    fn name(&self, room: usize) -> (c_int, usize) {
        let (mut bytes, mut name) = (room, [0_u8; ADDRESS_BYTES]);
        let cm = table(self.endpoint().cm);
        let code = (cm.getname)(self.endpoint(), OutArray::from(&mut name[..]), Out::from(&mut bytes));
        (code, bytes)
    }

    fn address(&self) -> [u8; ADDRESS_BYTES] {
        let (mut bytes, mut name) = (ADDRESS_BYTES, [0_u8; ADDRESS_BYTES]);
        let cm = table(self.endpoint().cm);
        assert_eq!((cm.getname)(self.endpoint(), OutArray::from(&mut name[..]), Out::from(&mut bytes)), 0);
        name
    }

    /// Inserts addresses; the first gets number 0.
    fn insert_addresses(&self, addresses: &[[u8; ADDRESS_BYTES]]) {
        let vector = self.vector.as_ref().expect("open");
        let table = table(vector.ops);
        let mut numbers = vec![77; addresses.len()];
        let inserted = (table.insert)(
            vector,
            InArray::from(addresses),
            addresses.len(),
            OutArray::from(&mut numbers[..]),
            0,
            OutArray::none(),
        );
        assert_eq!(inserted as usize, addresses.len());
    }

    /// Reads one entry with its source. Fails after 2 s.
    fn read(&self, partner: &Side) -> Result<(FiCqTaggedEntry, FiAddr), isize> {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(2);
        loop {
            let (mut entry, mut source) = ([zeroed::<FiCqTaggedEntry>()], [0]);
            let out = OutArray::from(&mut entry[..]).cast();
            let read =
                (table(self.queue().ops).readfrom)(self.queue(), out, 1, OutArray::from(&mut source[..]));
            match read {
                1 => return Ok((entry[0], source[0])),
                -11 if std::time::Instant::now() < until => partner.progress(),
                error => return Err(error),
            }
        }
    }

    /// Makes progress without reading anything.
    fn progress(&self) {
        let read = (table(self.queue().ops).read)(self.queue(), OutArray::none(), 0);
        assert!(read == 0 || read == -11, "{read}");
    }

    fn error(&self) -> FiCqErrEntry {
        let mut entry = zeroed::<FiCqErrEntry>();
        let taken = (table(self.queue().ops).readerr)(self.queue(), CqErrorOut::from(&raw mut entry), 0);
        assert_eq!(taken, 1);
        entry
    }

    fn receive(&self, bytes: &mut [u8], from: FiAddr, tag: u64, context: usize) {
        let length = bytes.len();
        let null = std::ptr::null_mut();
        let posted =
            (self.tagged().recv)(self.endpoint(), buffer(bytes), length, null, from, tag, 0, context);
        assert_eq!(posted, 0);
    }

    fn send(&self, bytes: &mut [u8], data: u64, tag: u64, context: usize) {
        let (length, null) = (bytes.len(), std::ptr::null_mut());
        let sent =
            (self.tagged().senddata)(self.endpoint(), buffer(bytes), length, null, data, 1, tag, context);
        assert_eq!(sent, 0);
    }

    fn inject(&self, bytes: &mut [u8], tag: u64) {
        let length = bytes.len();
        assert_eq!((self.tagged().inject)(self.endpoint(), buffer(bytes), length, 1, tag), 0);
    }

    /// `fi_trecvmsg` with no buffer.
    fn peek(&self, tag: u64, context: usize, flags: u64) -> isize {
        let message = FiMsgTagged { addr: ADDR_UNSPEC, tag, context, ..zeroed() };
        (self.tagged().recvmsg)(self.endpoint(), &message, flags)
    }

    fn sent(&self) -> u64 {
        let counter = self.counter.as_ref().expect("open");
        (table(counter.ops).read)(counter)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // Closes in Open MPI's order: endpoint, vector, queue, domain, fabric.
        let endpoint = self.endpoint.take().expect("open");
        assert_eq!((ops::<EndpointHandle>(&endpoint.fid).close)(endpoint), 0);
        let vector = self.vector.take().expect("open");
        assert_eq!((ops::<VectorHandle>(&vector.fid).close)(vector), 0);
        let queue = self.queue.take().expect("open");
        assert_eq!((ops::<QueueHandle>(&queue.fid).close)(queue), 0);
        let counter = self.counter.take().expect("open");
        assert_eq!((ops::<CounterHandle>(&counter.fid).close)(counter), 0);
        let _ = &self.fabric;
    }
}

/// Two sides. Each has itself as address 0 and the other as address 1.
fn pair(threading: c_int, bind_flags: u64) -> (Side, Side) {
    let open = || Side::open(threading, version(1, 21), cq_format::TAGGED, bind_flags);
    let (one, other) = (open(), open());
    one.insert_addresses(&[one.address(), other.address()]);
    other.insert_addresses(&[other.address(), one.address()]);
    (one, other)
}

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
fn a_peek_leaves_claims_or_discards_its_message() {
    let (one, other) = pair(threading::SAFE, 0);
    let mut from = [7; 16];
    for tag in [1, 2] {
        one.send(&mut from, 50 + tag, tag, 0);
        one.read(&other).expect("the send");
    }
    // A peek from any sender that sees the message for the first time: see `Receive::post`.
    assert_eq!(other.peek(2, 30, flags::PEEK), 0);
    assert_eq!(other.read(&one).unwrap_err(), -259);
    assert_eq!(other.error().err, 42);
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

#[test]
fn remote_writes_and_reads_reach_registered_memory() {
    let (one, other) = pair(threading::SAFE, 0);
    let mut window = [0_u8; 64];
    let mr = table(other.domain.mr);
    let access = flags::REMOTE_READ | flags::REMOTE_WRITE;
    let key = 1 << 63 | 5;
    let window_buffer = buffer(&mut window);
    let region: Box<RegionHandle> =
        opened(|out| (mr.reg)(&other.domain, window_buffer, 64, access, 0, key, 0, out, 0));
    assert_eq!(region.key, key);
    let mut second = std::ptr::null_mut();
    let again = (mr.reg)(&other.domain, window_buffer, 64, access, 0, key, 0, Out::from(&mut second), 0);
    assert_eq!(again, -266);
    let rma = table(one.endpoint().rma);
    let (mut from, null) = ([6; 8], std::ptr::null_mut());
    assert_eq!((rma.write)(one.endpoint(), buffer(&mut from), 8, null, 1, 16, key, 1), 0);
    let entry = one.read(&other).expect("the write").0;
    assert_eq!((entry.op_context, entry.flags), (1, flags::RMA | flags::WRITE));
    let mut to = [0; 8];
    assert_eq!((rma.read)(one.endpoint(), buffer(&mut to), 8, null, 1, 12, key, 2), 0);
    assert_eq!(one.read(&other).expect("the read").0.flags, flags::RMA | flags::READ);
    assert_eq!(to, [0, 0, 0, 0, 6, 6, 6, 6]);
    assert_eq!((rma.injectdata)(one.endpoint(), buffer(&mut from), 8, 77, 1, 0, key), 0);
    let entry = other.read(&one).expect("the notice").0;
    assert_eq!((entry.data, entry.op_context), (77, 0));
    assert_eq!(entry.flags, flags::RMA | flags::REMOTE_WRITE | flags::REMOTE_CQ_DATA);
    // Beyond the end: the target refuses, the source reports it.
    assert_eq!((rma.write)(one.endpoint(), buffer(&mut from), 8, null, 1, 60, key, 3), 0);
    assert_eq!(one.read(&other).unwrap_err(), -259);
    assert_eq!((one.error().err, one.sent()), (13, 2)); // two writes succeeded
    assert_eq!((ops::<RegionHandle>(&region.fid).close)(region), 0);
}

#[test]
fn the_whole_address_space_can_be_a_region() {
    let (one, other) = pair(threading::SAFE, 0);
    let mr = table(other.domain.mr);
    // SAFETY: only the 8 bytes below are accessed.
    let everything = unsafe { UserBuffer::new(std::ptr::null_mut()) };
    let access = flags::REMOTE_READ | flags::REMOTE_WRITE;
    let region: Box<RegionHandle> =
        opened(|out| (mr.reg)(&other.domain, everything, usize::MAX, access, 0, 9, 0, out, 0));
    let (mut from, to, null) = ([8; 8], Box::leak(Box::new([0_u8; 8])), std::ptr::null_mut());
    let rma = table(one.endpoint().rma);
    let address = to.as_mut_ptr() as u64;
    assert_eq!((rma.write)(one.endpoint(), buffer(&mut from), 8, null, 1, address, 9, 1), 0);
    one.read(&other).expect("the write");
    assert_eq!(to, &[8; 8]);
    assert_eq!((ops::<RegionHandle>(&region.fid).close)(region), 0);
}

#[test]
fn long_reads_and_writes_reach_all_pieces_of_a_region() {
    const PIECE_BYTES: usize = 20_000;
    run_in_child(|| {
        let (one, other) = pair(threading::SAFE, 0);
        let mr = table(other.domain.mr);
        let mut window = [vec![1_u8; PIECE_BYTES], vec![2; PIECE_BYTES], vec![3; PIECE_BYTES]];
        let pieces = window
            .each_mut()
            .map(|piece| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: PIECE_BYTES });
        // SAFETY: the pieces outlive the region.
        let vector = unsafe { UserVector::new(pieces.as_ptr()) };
        let access = flags::REMOTE_READ | flags::REMOTE_WRITE;
        let region: Box<RegionHandle> =
            opened(|out| (mr.regv)(&other.domain, vector, pieces.len(), access, 0, 9, 0, out, 0));
        let rma = table(one.endpoint().rma);
        let (mut from, mut to, null) = (vec![8; PIECE_BYTES], vec![0; PIECE_BYTES], std::ptr::null_mut());
        let middle = PIECE_BYTES as u64 / 2;
        assert_eq!((rma.write)(one.endpoint(), buffer(&mut from), PIECE_BYTES, null, 1, middle, 9, 1), 0);
        assert_eq!(one.read(&other).expect("the write").0.op_context, 1);
        assert_eq!((rma.read)(one.endpoint(), buffer(&mut to), PIECE_BYTES, null, 1, 2 * middle, 9, 2), 0);
        assert_eq!(one.read(&other).expect("the read").0.op_context, 2);
        let halves =
            |[first, second]: [u8; 2]| [[first; PIECE_BYTES / 2], [second; PIECE_BYTES / 2]].concat();
        assert_eq!(window, [halves([1, 8]), halves([8, 2]), vec![3; PIECE_BYTES]]);
        assert_eq!(to, halves([8, 2]));
        assert_eq!((ops::<RegionHandle>(&region.fid).close)(region), 0);
    });
}

#[test]
fn regions_with_unknown_arguments_are_rejected() {
    let (one, other) = pair(threading::SAFE, 0);
    let mr = table(one.domain.mr);
    let mut window = [0_u8; 8];
    let window = buffer(&mut window);
    let register = |access, offset, flags| {
        let mut made = std::ptr::null_mut();
        (mr.reg)(&one.domain, window, 8, access, offset, 1, flags, Out::from(&mut made), 0)
    };
    let access = flags::REMOTE_READ;
    assert_eq!(register(access, 8, 0), -22); // reserved, must be 0
    assert_eq!(register(access, 0, 1 << 56), -260); // remote events
    assert_eq!(register(access | 1, 0, 0), -22);
    let attr = FiMrAttr { iov_count: 33, access, ..zeroed() };
    assert_eq!((mr.regattr)(&one.domain, Some(&attr), 0, Out::from(&mut std::ptr::null_mut())), -22);

    let region: Box<RegionHandle> =
        opened(|out| (mr.reg)(&one.domain, window, 8, access | flags::REMOTE_WRITE, 0, 1, 0, out, 0));
    let fid = ops::<RegionHandle>(&region.fid);
    let counter = &one.counter.as_ref().expect("open").fid;
    assert_eq!((fid.bind)(&region, any(counter), flags::REMOTE_WRITE), -38); // the provider cannot count them
    assert_eq!((fid.bind)(&region, any(&one.endpoint().fid), 1), -260);
    assert_eq!((fid.bind)(&region, any(&other.endpoint().fid), 0), -262); // of another domain
    assert_eq!((fid.bind)(&region, any(&one.queue().fid), 0), -22);
    assert_eq!((fid.bind)(&region, any(&one.endpoint().fid), 0), 0);
    assert_eq!((fid.control)(&region, control::ENABLE, std::ptr::null_mut()), 0);
    assert_eq!((fid.close)(region), 0);
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
        assert_eq!((table(side.endpoint().tagged).inject)(side.endpoint(), buffer(&mut [1; 4]), 4, 0, 1), 0);
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
fn a_forked_child_that_closes_objects_does_not_affect_its_parent() {
    for threading in [threading::SAFE, threading::DOMAIN] {
        let (mut one, other) = pair(threading, 0);
        let exchange = |one: &Side, tag: u64| {
            let (mut from, mut to) = ([tag as u8; 4], [[0_u8; 4]; 2]);
            for (side, to) in [one, &other].into_iter().zip(&mut to) {
                side.receive(to, 1, tag, 1);
            }
            one.inject(&mut from, tag);
            other.inject(&mut from, tag);
            assert_eq!(one.read(&other).expect("a message").0.tag, tag);
            assert_eq!(other.read(one).expect("a message").0.tag, tag);
            assert_eq!(to, [[tag as u8; 4]; 2]);
        };
        exchange(&one, 1);
        // SAFETY: the child only closes objects and `_exit`s. Closing allocates nothing and takes no lock there.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let endpoint = one.endpoint.take().expect("open");
            let mut ended = (ops::<EndpointHandle>(&endpoint.fid).close)(endpoint);
            let vector = one.vector.take().expect("open");
            ended |= (ops::<VectorHandle>(&vector.fid).close)(vector);
            let queue = one.queue.take().expect("open");
            ended |= (ops::<QueueHandle>(&queue.fid).close)(queue);
            // SAFETY: the end of the child.
            unsafe { libc::_exit(ended) };
        }
        let mut status = -1;
        // SAFETY: our own child; the status lives across the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        other.progress(); // this would read a goodbye from the child
        exchange(&one, 2);
        exchange(&one, 3);
    }
}

/// Runs `child` in a process that has only its own engines.
fn run_in_child(child: impl FnOnce()) {
    // SAFETY: the child runs the closure and `_exit`s. The closure needs no other thread of the test harness.
    let process = unsafe { libc::fork() };
    if process == 0 {
        crate::state::endpoint::OPEN_ENGINES.store(0, std::sync::atomic::Ordering::Relaxed);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        // SAFETY: the end of the child.
        unsafe { libc::_exit(i32::from(ended.is_err())) };
    }
    let mut status = -1;
    // SAFETY: our own child; the status lives across the call.
    assert_eq!(unsafe { libc::waitpid(process, &raw mut status, 0) }, process);
    assert_eq!(status, 0);
}

/// Number of times that this thread has slept.
fn sleeps() -> i64 {
    let mut usage: libc::rusage = zeroed();
    // SAFETY: the kernel fills a structure that lives across the call.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) }, 0);
    usage.ru_nvcsw
}

#[test]
fn one_idle_engine_sleeps_and_several_do_not() {
    run_in_child(|| {
        let open = || Side::open(threading::DOMAIN, version(1, 21), cq_format::TAGGED, 0);
        let read = |side: &Side| {
            let nothing = (table(side.queue().ops).read)(side.queue(), OutArray::none(), 1);
            assert_eq!(nothing, -11);
        };
        let (one, mut awaited) = (open(), [0; 8]);
        one.receive(&mut awaited, FiAddr::MAX, 1, 1);
        let before = sleeps();
        assert!((0..100_000).any(|_| {
            read(&one);
            sleeps() > before
        }));
        let other = open();
        let before = sleeps();
        for _ in 0..2000 {
            read(&one);
            read(&other);
        }
        assert_eq!(sleeps(), before);
        drop(other);
        let before = sleeps();
        assert!((0..100_000).any(|_| {
            read(&one);
            sleeps() > before
        }));
    });
}

#[test]
fn reading_an_unchanged_counter_yields_the_core() {
    run_in_child(|| {
        let one = Side::open(threading::DOMAIN, version(1, 21), cq_format::TAGGED, 0);
        let mut awaited = [0; 8];
        one.receive(&mut awaited, FiAddr::MAX, 1, 1);
        let before = sleeps();
        assert!((0..100_000).any(|_| {
            assert_eq!(one.sent(), 0);
            sleeps() > before
        }));
    });
}

#[test]
fn a_second_thread_in_a_serialised_domain_is_noticed() {
    let (one, _other) = pair(threading::DOMAIN, 0);
    let enter_elsewhere = || {
        let domain = std::sync::Arc::clone(&one.queue().domain);
        std::thread::spawn(move || drop(domain.enter())).join().expect("no panic");
    };
    enter_elsewhere();
    assert!(!one.queue().domain.enter().several_threads, "one thread opens, and another one uses");
    one.progress();
    enter_elsewhere();
    assert!(one.queue().domain.enter().several_threads);
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

/// After many reads without a poll, the next poll may find an answer to what was posted meanwhile.
#[test]
fn new_arrivals_are_reported_after_a_poll() {
    let (one, other) = pair(threading::DOMAIN, 0);
    let (mut early, mut last, mut to, mut answer) = ([1; 8], [2; 8], [0; 8], [0; 8]);
    for _ in 0..200 {
        one.inject(&mut early, 7);
        one.progress();
        other.progress();
    }
    other.receive(&mut answer, 1, 99, 5);
    let once = || {
        let mut entry = [zeroed::<FiCqTaggedEntry>()];
        match (table(other.queue().ops).read)(other.queue(), OutArray::from(&mut entry[..]).cast(), 1) {
            1 => Some(entry[0].tag),
            read => {
                assert_eq!(read, -11);
                None
            }
        }
    };
    assert_eq!(once(), None); // the first receive requires a poll
    let before = other.queue().domain.enter().reads_without_poll;
    assert_eq!(before, 0);
    while other.queue().domain.enter().reads_without_poll < 63 {
        other.receive(&mut to, 1, 7, 6);
        assert_eq!(once(), Some(7));
    }
    one.inject(&mut last, 99);
    other.receive(&mut to, 1, 7, 6);
    assert_eq!(once(), Some(7)); // and polls
    assert_eq!(once(), None, "the program looks at its other sources first");
    assert_eq!(once(), Some(99));
    assert_eq!(answer, last);
}
