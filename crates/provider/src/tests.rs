//! Tests of the provider as a program uses it. This file sets them up: two endpoints of one process, over shared
//! memory, through the tables of functions that C calls.

use std::ffi::c_int;
use std::process::Command;

use crate::av::VectorHandle;
use crate::counter::CounterHandle;
use crate::cq::QueueHandle;
use crate::domain::DomainHandle;
use crate::endpoint_handle::EndpointHandle;
use crate::fabric::FabricHandle;
use crate::ffi::*;
use crate::mr::RegionHandle;
use weir_link::ADDRESS_BYTES;

mod addresses;
mod atomics;
mod automatic_progress;
mod callers;
mod closing;
mod collectives;
mod group_receives;
mod messages;
mod peeks;
mod queues;
mod regions;
mod waits;

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

/// Contexts of the objects.
const QUEUE_CONTEXT: usize = 101;
const COUNTER_CONTEXT: usize = 102;

const SELECTIVE: u64 = flags::SELECTIVE_COMPLETION;

/// Choices of a program that few tests make.
#[derive(Clone, Copy, Default)]
struct Choices {
    /// `fi_info.caps`. 0: those of a program that requests none.
    caps: u64,
    /// `fi_domain_attr.data_progress`.
    progress: c_int,
    /// Wait object of the queue.
    queue_wait: c_int,
    /// Wait object of the counter.
    counter_wait: c_int,
}

impl Side {
    fn open(threading: c_int, api_version: u32, format: c_int, bind_flags: u64) -> Side {
        Side::open_with(threading, api_version, format, bind_flags, Choices::default())
    }

    fn open_with(
        threading: c_int,
        api_version: u32,
        format: c_int,
        bind_flags: u64,
        choices: Choices,
    ) -> Side {
        let fabric_attr = FiFabricAttr { api_version, ..zeroed() };
        let fabric = opened(|out| crate::fabric::open(Some(&fabric_attr), out, 0));
        let mut domain_attr = FiDomainAttr { threading, data_progress: choices.progress, ..zeroed() };
        let mut tx_attr = FiTxAttr { op_flags: flags::COMPLETION, ..zeroed() };
        let mut rx_attr = FiRxAttr { op_flags: flags::COMPLETION, ..zeroed() };
        let mut info: FiInfo = zeroed();
        info.caps = choices.caps;
        info.domain_attr = &raw mut domain_attr;
        info.tx_attr = &raw mut tx_attr;
        info.rx_attr = &raw mut rx_attr;
        let domain = opened(|out| (table(fabric.ops).domain)(&fabric, Some(&info), out, 0));
        let mut vector_attr = FiAvAttr { count: 2, ..zeroed() };
        let queue_attr = FiCqAttr { format, wait_obj: choices.queue_wait, ..zeroed() };
        let counter_attr = FiCntrAttr { wait_obj: choices.counter_wait, ..zeroed() };
        let domain_ops = table(domain.ops);
        let vector = opened(|out| (domain_ops.av_open)(&domain, Some(&mut vector_attr), out, 0));
        assert_eq!(vector_attr.av_type, av_type::TABLE);
        let queue = opened(|out| (domain_ops.cq_open)(&domain, Some(&queue_attr), out, QUEUE_CONTEXT));
        let counter =
            opened(|out| (domain_ops.cntr_open)(&domain, Some(&counter_attr), out, COUNTER_CONTEXT));
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
        table(self.endpoint().tagged.get())
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
    pair_with(threading, bind_flags, Choices::default(), Choices::default())
}

/// [`pair`] with a choice for each.
fn pair_with(threading: c_int, bind_flags: u64, first: Choices, second: Choices) -> (Side, Side) {
    let open = |choices| Side::open_with(threading, version(1, 21), cq_format::TAGGED, bind_flags, choices);
    let (one, other) = (open(first), open(second));
    one.insert_addresses(&[one.address(), other.address()]);
    other.insert_addresses(&[other.address(), one.address()]);
    (one, other)
}

/// Runs `child` in a process of one thread, which has only its own engines.
///
/// The process is a fork of one that runs this test alone. A fork of this one would copy the locks that threads of other
/// tests hold.
fn run_in_child(child: impl FnOnce()) {
    const ALONE: &str = "WEIR_TEST_ALONE";
    let thread = std::thread::current();
    // The harness names threads after their tests. Without threads it runs one test after the other.
    let test = thread.name().filter(|&name| name != "main");
    if let (Some(test), None) = (test, std::env::var_os(ALONE)) {
        let mut alone = Command::new(std::env::current_exe().expect("a test has a file"));
        let output = alone.args(["--exact", test]).env(ALONE, "1").output().expect("the file of this test");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    // SAFETY: the child runs the closure and `_exit`s. The thread of the test harness only waits, so it holds no lock.
    let process = unsafe { libc::fork() };
    if process == 0 {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        // SAFETY: the end of the child.
        unsafe { libc::_exit(i32::from(ended.is_err())) };
    }
    let mut status = -1;
    // SAFETY: our own child; the status lives across the call.
    assert_eq!(unsafe { libc::waitpid(process, &raw mut status, 0) }, process);
    assert_eq!(status, 0);
}

/// Links of the tests that run over each link, and their variables.
const LINKS: [&[(&str, &str)]; 2] =
    [&[("FI_WEIR_LINK", "shm")], &[("FI_WEIR_LINK", "udp"), ("FI_WEIR_NET", "127.0.0.1")]];

/// Runs `test`, the closure of a test, over each link: in processes that run this test alone, since the settings of the links
/// are variables.
fn over_each_link<T: FnOnce()>(test: T) {
    const WITH_LINK: &str = "WEIR_TEST_LINK";
    if std::env::var_os(WITH_LINK).is_some() {
        return test();
    }
    // `CRATE::MODULES::TEST::{{closure}}`.
    let name = std::any::type_name::<T>();
    let name = name.split_once("::").and_then(|(_, rest)| rest.strip_suffix("::{{closure}}"));
    let name = name.expect("the closure of a test");
    for variables in LINKS {
        let mut alone = Command::new(std::env::current_exe().expect("a test has a file"));
        alone.args(["--exact", name]).env(WITH_LINK, "1").envs(variables.iter().copied());
        let output = alone.output().expect("the file of this test");
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success() && text[0].contains("1 passed"), "{variables:?}: {}", text.concat());
    }
}
