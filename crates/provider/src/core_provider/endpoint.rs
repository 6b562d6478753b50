//! An endpoint of a core provider ([`OpenEndpoint`]): its objects, and its memory for messages.
//!
//! ```text
//! memory    receive 0   receive 1  ...  receive r-1   send 0  ...  send s-1     one message each; registered once
//! contexts  one for each, in the same order, then one for each copy, or for each large message: a completion names what it
//!           ends by the place of its context
//! ```
//! Receives are posted at all times, except between the completion of one and the copy of its message. A send copies the
//! message, so that its caller has the bytes back at once.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::null_mut;

use weir_link::copy::copy;
use weir_link::ofi::{
    CoreAccess, CoreAddress, CoreEndpoint, CoreError, CoreLarge, CoreMemory, CoreName, LARGE_MESSAGE_BYTES,
    LARGE_RECEIVES, MESSAGE_BYTES, POSTED_RECEIVES, Sent,
};

use super::discovery::Found;
use super::large_messages::LargeMessages;
use super::library::error_text;
use super::objects::{Object, RawAv, RawCq, RawDomain, RawEp, RawFabric, RawMr};
use super::registrations::RemoteMemory;
use crate::errno::Error;
use crate::ffi::{
    ADDR_UNSPEC, FiAddr, FiAvAttr, FiCqAttr, FiCqErrEntry, control, cq_format, flags, mr_mode, wait_obj,
};

/// Sends under way, unless the provider has fewer.
const SENDS: usize = 32;
/// Copies from and to memory of peers that are under way, if the provider has them.
const COPIES: usize = 32;
/// Large messages under way to all peers, unless the provider has fewer sends.
const LARGE_SENDS: usize = 32;
/// Completions that are read at a time.
const COMPLETIONS: usize = 32;
/// Room for a name. Unit: bytes.
const NAME_ROOM: usize = 1024;
/// Peers that the address vector is told to expect. It grows.
const PEERS: usize = 64;

/// `fi_context2`.
type Context = [usize; 8];

/// `fi_cq_msg_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Completion {
    context: *mut c_void,
    flags: u64,
    bytes: usize,
}

/// Memory that the core reads and writes.
pub(super) struct Memory {
    bytes: *mut [u8],
    contexts: *mut [Context],
    message_bytes: usize,
}

impl Memory {
    fn new(messages: usize, copies: usize, message_bytes: usize) -> Memory {
        Memory {
            bytes: Box::into_raw(vec![0; messages * message_bytes].into_boxed_slice()),
            contexts: Box::into_raw(vec![[0; 8]; messages + copies].into_boxed_slice()),
            message_bytes,
        }
    }

    fn message(&self, index: usize) -> *mut u8 {
        assert!((index + 1) * self.message_bytes <= self.bytes.len(), "message {index}");
        // SAFETY: within the allocation (asserted).
        unsafe { self.bytes.cast::<u8>().add(index * self.message_bytes) }
    }

    pub(super) fn context(&self, index: usize) -> *mut c_void {
        assert!(index < self.contexts.len(), "context {index}");
        // SAFETY: within the allocation (asserted).
        unsafe { self.contexts.cast::<Context>().add(index).cast() }
    }

    /// The number of the message or copy with this context.
    fn index_of(&self, context: *mut c_void) -> Option<usize> {
        let offset = context.addr().checked_sub(self.contexts.cast::<Context>().addr())?;
        let index = offset / size_of::<Context>();
        (index < self.contexts.len() && offset % size_of::<Context>() == 0).then_some(index)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `new` has made both, and the endpoint, which used them, is closed before.
        unsafe {
            drop(Box::from_raw(self.bytes));
            drop(Box::from_raw(self.contexts));
        }
    }
}

/// See the head of this file. The order of the members is that of closing.
pub struct OpenEndpoint {
    /// `None`: closed.
    pub(super) endpoint: Option<Object<RawEp>>,
    _registration: Option<Object<RawMr>>,
    /// `None`: no access to memory of peers.
    pub(super) remote: Option<RemoteMemory>,
    /// `None`: no large messages.
    pub(super) large: Option<LargeMessages>,
    pub(super) memory: Memory,
    queue: Object<RawCq>,
    vector: Object<RawAv>,
    pub(super) domain: Object<RawDomain>,
    fabric: Object<RawFabric>,
    provider: String,
    name: CoreName,
    receives: usize,
    /// Descriptor of the registered memory, or NULL.
    memory_descriptor: *mut c_void,
    wait_descriptor: Option<RawFd>,
    /// Receives that the core did not take.
    to_post: Vec<usize>,
    /// Receives that are complete, and the bytes of their messages.
    arrived: VecDeque<(usize, usize)>,
    /// Memory of sends that is free.
    free: Vec<usize>,
    /// The peer of each send.
    targets: Vec<FiAddr>,
    failures: VecDeque<CoreAddress>,
}

// SAFETY: the core's objects may be used by any thread, one at a time (`FI_THREAD_DOMAIN`). Nothing else has the pointers.
unsafe impl Send for OpenEndpoint {}

impl OpenEndpoint {
    /// Opens an endpoint of what was found, and posts its receives.
    ///
    /// # Errors
    /// [`CoreError::Call`].
    pub fn open(provider: &str, found: &Found) -> Result<OpenEndpoint, CoreError> {
        let failed = |call| {
            move |error| CoreError::Call { provider: provider.to_owned(), call, reason: error_text(error) }
        };
        let info = found.info.first();
        let fabric = found.source.open_fabric(&found.info, found.api_version).map_err(failed("fi_fabric"))?;
        // SAFETY: the answer is whole. Each table is that of an open object, whose provider has filled it. Variables and
        // attributes live during the calls, and each call that returns 0 has opened an object.
        unsafe {
            let limit = |size: usize, most: usize| if size == 0 { most } else { size.min(most) };
            // Large messages may have the same queue of receives.
            let of_queue = match ((*(*info).rx_attr).size, found.access) {
                (size, CoreAccess::Large) if size != 0 => size.saturating_sub(LARGE_RECEIVES).max(size / 2),
                (size, _) => size,
            };
            let receives = limit(of_queue, POSTED_RECEIVES);
            let sends = limit((*(*info).tx_attr).size, SENDS);
            let longest = limit((*(*info).ep_attr).max_msg_size, MESSAGE_BYTES);
            // Contexts beside those of messages.
            let further = match found.access {
                CoreAccess::Packets => 0,
                CoreAccess::Memory => limit((*(*info).tx_attr).size, COPIES),
                CoreAccess::Large => LARGE_RECEIVES + limit((*(*info).tx_attr).size, LARGE_SENDS),
            };
            let domain = Object::<RawDomain>::open(|to| {
                ((*(*fabric.pointer()).ops).domain)(fabric.pointer(), info, to, null_mut())
            })
            .map_err(failed("fi_domain"))?;
            let operations = (*domain.pointer()).ops;
            let (queue, wait_descriptor) =
                open_queue(&domain, receives + sends + further).map_err(failed("fi_cq_open"))?;
            let mut attributes = FiAvAttr {
                av_type: (*(*info).domain_attr).av_type,
                rx_ctx_bits: 0,
                count: PEERS,
                ep_per_node: 0,
                name: std::ptr::null(),
                map_addr: null_mut(),
                flags: 0,
            };
            let vector = Object::<RawAv>::open(|to| {
                ((*operations).av_open)(domain.pointer(), &raw mut attributes, to, null_mut())
            })
            .map_err(failed("fi_av_open"))?;
            let endpoint =
                Object::<RawEp>::open(|to| ((*operations).endpoint)(domain.pointer(), info, to, null_mut()))
                    .map_err(failed("fi_endpoint"))?;
            let basic = (*endpoint.pointer()).fid.ops;
            let call = |call, result: c_int| if result == 0 { Ok(()) } else { Err(failed(call)(-result)) };
            call("fi_ep_bind", ((*basic).bind)(endpoint.fid(), queue.fid(), flags::SEND | flags::RECV))?;
            call("fi_ep_bind", ((*basic).bind)(endpoint.fid(), vector.fid(), 0))?;
            call("fi_enable", ((*basic).control)(endpoint.fid(), control::ENABLE, null_mut()))?;
            let name = name_of(&endpoint).map_err(failed("fi_getname"))?;
            let memory = Memory::new(receives + sends, further, longest);
            let messages = receives + sends;
            let contexts = messages..messages + further;
            let is_registered = (*(*info).domain_attr).mr_mode & mr_mode::LOCAL != 0;
            let registration = is_registered
                .then(|| register(&domain, memory.bytes))
                .transpose()
                .map_err(failed("fi_mr_reg"))?;
            let (mut remote, mut large) = (None, None);
            match found.access {
                CoreAccess::Packets => {}
                CoreAccess::Memory => remote = Some(RemoteMemory::new(info, contexts)),
                CoreAccess::Large => {
                    let longest = limit((*(*info).ep_attr).max_msg_size, LARGE_MESSAGE_BYTES);
                    let messages = LargeMessages::new(longest, contexts);
                    let registered = is_registered.then(|| register(&domain, messages.bytes()));
                    let registered = registered.transpose().map_err(failed("fi_mr_reg"))?;
                    large = Some(messages.registered(registered));
                }
            }
            let memory_descriptor =
                registration.as_ref().map_or(null_mut(), |region| (*region.pointer()).mem_desc);
            let mut opened = OpenEndpoint {
                endpoint: Some(endpoint),
                _registration: registration,
                remote,
                large,
                memory,
                queue,
                vector,
                domain,
                fabric,
                provider: provider.to_owned(),
                name: CoreName { format: found.format, bytes: name },
                receives,
                memory_descriptor,
                wait_descriptor,
                to_post: (0..receives).collect(),
                arrived: VecDeque::with_capacity(receives),
                free: (receives..receives + sends).collect(),
                targets: vec![ADDR_UNSPEC; sends],
                failures: VecDeque::new(),
            };
            opened.post_receives();
            Ok(opened)
        }
    }

    /// Posts the receives that are not posted.
    fn post_receives(&mut self) {
        let Some(endpoint) = self.endpoint.as_ref().map(Object::pointer) else { return };
        while let Some(index) = self.to_post.pop() {
            // SAFETY: the endpoint is open. Memory and context of the receive belong to the core from now on.
            let result = unsafe {
                ((*(*endpoint).msg).recv)(
                    endpoint,
                    self.memory.message(index).cast(),
                    self.memory.message_bytes,
                    self.memory_descriptor,
                    ADDR_UNSPEC,
                    self.memory.context(index),
                )
            };
            if result != 0 {
                self.to_post.push(index); // the core takes it later
                return;
            }
        }
    }

    /// Lets the core take large messages that it has not taken.
    pub(super) fn work_large(&mut self) {
        let OpenEndpoint { endpoint: Some(endpoint), large: Some(large), memory, failures, .. } = self else {
            return;
        };
        if large.has_untaken() {
            // SAFETY: the endpoint is open, with `FI_TAGGED`, as it has large messages.
            unsafe { large.work(endpoint.pointer(), |index| memory.context(index), failures) }
        }
    }

    /// Reads completions, and so lets the core work. Returns whether there may be more: a core that has completions of sends
    /// does not look at the network.
    pub(super) fn progress(&mut self) -> bool {
        if self.endpoint.is_none() {
            return false;
        }
        let mut read = [Completion { context: null_mut(), flags: 0, bytes: 0 }; COMPLETIONS];
        let queue = self.queue.pointer();
        // SAFETY: the queue is open, and has the format of these entries.
        let count = unsafe { ((*(*queue).ops).read)(queue, (&raw mut read).cast(), COMPLETIONS) };
        match usize::try_from(count) {
            Ok(count) => {
                for completion in &read[..count.min(COMPLETIONS)] {
                    match self.memory.index_of(completion.context) {
                        Some(index) if index < self.receives => {
                            self.arrived.push_back((index, completion.bytes));
                        }
                        Some(index) if index < self.receives + self.targets.len() => self.free.push(index),
                        Some(index) => self.operation_ended(index, Some(completion.bytes)),
                        None => {}
                    }
                }
                count == COMPLETIONS || (count > 0 && self.arrived.is_empty())
            }
            Err(_) => count == Error::ERROR_AVAILABLE.code() as isize && self.take_error(),
        }
    }

    /// Takes an entry with an error. Returns whether there was one.
    fn take_error(&mut self) -> bool {
        let mut entry = FiCqErrEntry {
            op_context: 0,
            flags: 0,
            len: 0,
            buf: 0,
            data: 0,
            tag: 0,
            olen: 0,
            err: 0,
            prov_errno: 0,
            err_data: null_mut(),
            err_data_size: 0,
            src_addr: ADDR_UNSPEC,
        };
        let queue = self.queue.pointer();
        // SAFETY: the queue is open. The variable has the length of all versions.
        if unsafe { ((*(*queue).ops).readerr)(queue, &raw mut entry, 0) } != 1 {
            return false;
        }
        match self.memory.index_of(entry.op_context as *mut c_void) {
            // A message of a stranger that is too long, for example. The receive is used up.
            Some(index) if index < self.receives => self.to_post.push(index),
            Some(index) if index >= self.receives + self.targets.len() => self.operation_ended(index, None),
            Some(index) => {
                let target = self.targets[index - self.receives];
                self.failures.push_back(CoreAddress(target));
                self.free.push(index);
            }
            None => {}
        }
        true
    }

    /// A copy or a large message has ended, and has so many bytes. `None`: with an error.
    fn operation_ended(&mut self, index: usize, bytes: Option<usize>) {
        if let Some(remote) = &mut self.remote {
            remote.ended(index, bytes.is_some());
        }
        if let Some(large) = &mut self.large {
            self.failures.extend(large.ended(index, bytes));
        }
    }
}

impl Drop for OpenEndpoint {
    fn drop(&mut self) {
        self.remote.iter_mut().for_each(RemoteMemory::close_bound);
    }
}

/// Opens the completion queue for `entries` operations, with a descriptor to wait for if the provider has one.
///
/// # Safety
/// The domain is that of an open fabric.
unsafe fn open_queue(
    domain: &Object<RawDomain>,
    entries: usize,
) -> Result<(Object<RawCq>, Option<RawFd>), c_int> {
    let open = |wait_obj| {
        let mut attributes = FiCqAttr {
            size: entries,
            flags: 0,
            format: cq_format::MSG,
            wait_obj,
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: null_mut(),
        };
        // SAFETY: as for the function. The attributes live during the call, which opens a queue if it returns 0.
        unsafe {
            Object::<RawCq>::open(|to| {
                let operations = (*domain.pointer()).ops;
                ((*operations).cq_open)(domain.pointer(), &raw mut attributes, to, null_mut())
            })
        }
    };
    if let Ok(queue) = open(wait_obj::FD) {
        let mut descriptor: c_int = -1;
        // SAFETY: the queue is open, and this command writes a descriptor of it, which is open as long as the queue.
        let result = unsafe {
            let control = (*(*queue.fid()).ops).control;
            control(queue.fid(), control::GETWAIT, (&raw mut descriptor).cast())
        };
        if result == 0 && descriptor >= 0 {
            return Ok((queue, Some(descriptor)));
        }
    }
    Ok((open(wait_obj::NONE)?, None))
}

/// The name of an enabled endpoint.
///
/// # Safety
/// The endpoint is open.
unsafe fn name_of(endpoint: &Object<RawEp>) -> Result<Vec<u8>, c_int> {
    let (mut name, mut bytes) = (vec![0; NAME_ROOM], NAME_ROOM);
    // SAFETY: the endpoint is open; the call writes at most `bytes` bytes, and their number.
    let result = unsafe {
        let connections = (*endpoint.pointer()).cm;
        ((*connections).getname)(endpoint.fid(), name.as_mut_ptr().cast(), &raw mut bytes)
    };
    if result != 0 {
        return Err(-result);
    }
    name.truncate(bytes);
    Ok(name)
}

/// Registers memory for sends and receives of this endpoint.
///
/// # Safety
/// The domain is open. The memory stays until the registration is closed.
unsafe fn register(domain: &Object<RawDomain>, memory: *mut [u8]) -> Result<Object<RawMr>, c_int> {
    let access = flags::SEND | flags::RECV;
    // SAFETY: as for the function; the call opens a registration if it returns 0.
    unsafe {
        Object::open(|to| {
            let register = (*(*domain.pointer()).mr).reg;
            let (start, bytes) = (memory.cast::<c_void>(), memory.len());
            register(domain.fid(), start, bytes, access, 0, 0, 0, to, null_mut())
        })
    }
}

impl CoreEndpoint for OpenEndpoint {
    fn provider(&self) -> &str {
        &self.provider
    }

    fn name(&self) -> &CoreName {
        &self.name
    }

    fn longest_message(&self) -> usize {
        self.memory.message_bytes
    }

    fn posted_receives(&self) -> usize {
        self.receives
    }

    fn address_of(&mut self, name: &[u8]) -> Option<CoreAddress> {
        if name.len() != self.name.bytes.len() {
            return None;
        }
        let mut address: FiAddr = ADDR_UNSPEC;
        let vector = self.vector.pointer();
        // SAFETY: the vector is open. Names of this provider have the length of our own.
        let inserted = unsafe {
            let insert = (*(*vector).ops).insert;
            insert(vector, name.as_ptr().cast(), 1, &raw mut address, 0, null_mut())
        };
        (inserted == 1 && address != ADDR_UNSPEC).then_some(CoreAddress(address))
    }

    fn send(&mut self, to: CoreAddress, head: &[u8], body: &[u8]) -> Sent {
        let bytes = head.len() + body.len();
        assert!(bytes <= self.memory.message_bytes, "a message of {bytes} bytes");
        if self.free.is_empty() {
            self.progress();
        }
        let Some(endpoint) = self.endpoint.as_ref().map(Object::pointer) else { return Sent::Failed };
        let Some(index) = self.free.pop() else { return Sent::Busy };
        let place = self.memory.message(index);
        self.targets[index - self.receives] = to.0;
        // SAFETY: the memory of a free send is not used by the core, and has room for the bytes (asserted).
        let result = unsafe {
            place.copy_from_nonoverlapping(head.as_ptr(), head.len());
            copy(body.as_ptr(), place.add(head.len()), body.len());
            let (descriptor, context) = (self.memory_descriptor, self.memory.context(index));
            ((*(*endpoint).msg).send)(endpoint, place.cast(), bytes, descriptor, to.0, context)
        };
        if result == 0 {
            return Sent::Taken;
        }
        self.free.push(index);
        if result == -(libc::EAGAIN as isize) {
            self.progress();
            Sent::Busy
        } else {
            Sent::Failed
        }
    }

    fn receive(&mut self, take: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.work_large();
        loop {
            // What has arrived is passed on before the core is asked again, which costs it a system call.
            let may_be_more = !self.arrived.is_empty() || self.progress();
            while let Some((index, bytes)) = self.arrived.pop_front() {
                let bytes = bytes.min(self.memory.message_bytes);
                // SAFETY: the receive is complete, so the core does not write to its memory until it is posted again.
                let message = unsafe { std::slice::from_raw_parts(self.memory.message(index), bytes) };
                let takes_more = take(message);
                self.to_post.push(index);
                if !takes_more {
                    self.post_receives();
                    return true;
                }
            }
            self.post_receives();
            if !may_be_more {
                return false;
            }
        }
    }

    fn next_failure(&mut self) -> Option<CoreAddress> {
        self.failures.pop_front()
    }

    fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the queue, which owns the descriptor, is open as long as `self`.
        self.wait_descriptor.map(|descriptor| unsafe { BorrowedFd::borrow_raw(descriptor) })
    }

    fn may_wait(&mut self) -> bool {
        let has_ended = self.remote.as_ref().is_some_and(RemoteMemory::has_ended)
            || self.large.as_ref().is_some_and(LargeMessages::has_work);
        if !self.arrived.is_empty() || !self.to_post.is_empty() || has_ended {
            return false;
        }
        if self.wait_descriptor.is_none() {
            return true;
        }
        let (fabric, mut queue) = (self.fabric.pointer(), self.queue.fid());
        // SAFETY: both are open, and the list has one entry.
        unsafe { ((*(*fabric).ops).trywait)(fabric, &raw mut queue, 1) == 0 }
    }

    fn memory(&mut self) -> Option<&mut dyn CoreMemory> {
        if self.remote.is_some() { Some(self) } else { None }
    }

    fn large(&mut self) -> Option<&mut dyn CoreLarge> {
        if self.large.is_some() { Some(self) } else { None }
    }
}
