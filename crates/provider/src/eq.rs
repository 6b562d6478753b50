//! Event queues. weir writes no events, because only data transfers are asynchronous. A queue carries what the
//! program writes. Reading a queue makes progress on the domains whose endpoints are bound to it. It does not enter
//! domains opened with `FI_THREAD_DOMAIN`, because that promise does not cover calls on event queues.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::deadline::{deadline, remaining_ns};
use crate::errno::{Error, ssize_status, status};
use crate::error_text::copy_error_text;
use crate::ffi::*;
use crate::state::domain_state::{Domain, Mode};
use crate::wait_object::WaitObject;

struct Event {
    number: u32,
    data: Box<[u8]>,
}

#[derive(Default)]
struct EventQueue {
    events: VecDeque<Event>,
    watched: Vec<Weak<Domain>>,
}

/// The object that C holds. It belongs to a fabric, not to a domain, so it has its own lock. No call enters a domain
/// while it holds this lock.
#[repr(C)]
pub struct EventQueueHandle {
    pub(crate) fid: Fid,
    pub(crate) ops: *const FiOpsEq<EventQueueHandle>,
    queue: Mutex<EventQueue>,
    writable: bool,
    wait: WaitObject,
}

object!(EventQueueHandle, class::EQ, FID_OPS);

static FID_OPS: FiOps<EventQueueHandle> = FiOps {
    size: size_of::<FiOps<EventQueueHandle>>(),
    close,
    bind: no_bind,
    control,
    ops_open: not_implemented,
    tostr: not_implemented,
    ops_set: not_implemented,
};

static OPS: FiOpsEq<EventQueueHandle> =
    FiOpsEq { size: size_of::<FiOpsEq<EventQueueHandle>>(), read, readerr, write, sread, strerror };

/// `fi_eq_open`.
///
/// # Errors
/// Those of [`WaitObject::open`].
pub fn open(attr: Option<&FiEqAttr>, context: usize) -> Result<*mut EventQueueHandle, Error> {
    let (wait, flags) = attr.map_or((wait_obj::NONE, 0), |attr| (attr.wait_obj, attr.flags));
    let wait = WaitObject::open(wait)?;
    let fid = Fid { fclass: class::EQ, context, ops: (&raw const FID_OPS).cast() };
    let writable = flags & flags::WRITE != 0;
    Ok(hand_out(EventQueueHandle { fid, ops: &OPS, queue: Mutex::default(), writable, wait }))
}

extern "C" fn close(queue: Box<EventQueueHandle>) -> c_int {
    drop(queue);
    0
}

impl EventQueueHandle {
    fn lock(&self) -> MutexGuard<'_, EventQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes reads of this queue progress the domain.
    pub fn watch(&self, domain: &Arc<Domain>) {
        if domain.mode == Mode::Serialised {
            return;
        }
        let mut queue = self.lock();
        queue.watched.retain(|watched| watched.strong_count() > 0);
        if !queue.watched.iter().any(|watched| watched.as_ptr() == Arc::as_ptr(domain)) {
            queue.watched.push(Arc::downgrade(domain));
        }
    }

    /// Takes the oldest event, or only looks at it. Returns the length of its data.
    fn take(
        &self,
        number: &mut Out<u32>,
        to: &mut OutArray<u8>,
        room: usize,
        flags: u64,
    ) -> Result<usize, Error> {
        let mut queue = self.lock();
        let Some(event) = queue.events.front() else { return Err(Error::AGAIN) };
        if room < event.data.len() {
            return Err(Error::TOO_SMALL);
        }
        number.set(event.number);
        to.set_bytes(&event.data);
        let bytes = event.data.len();
        if flags & flags::PEEK == 0 {
            queue.events.pop_front();
        }
        Ok(bytes)
    }

    /// `fi_trywait`: whether the program may block at the descriptor.
    ///
    /// # Errors
    /// The queue has none.
    pub fn try_wait(&self) -> Result<bool, Error> {
        let descriptor = self.wait.descriptor().ok_or(Error::INVALID)?;
        let queue = self.lock(); // so that an event after the clearing is written after it
        descriptor.clear();
        Ok(queue.events.is_empty())
    }

    fn progress(&self) {
        let watched: Vec<Arc<Domain>> = self.lock().watched.iter().filter_map(Weak::upgrade).collect();
        for domain in watched {
            domain.enter().progress_all();
        }
    }
}

extern "C" fn read(
    queue: &EventQueueHandle,
    mut number: Out<u32>,
    mut to: OutArray<u8>,
    room: usize,
    flags: u64,
) -> isize {
    queue.progress();
    ssize_status(queue.take(&mut number, &mut to, room, flags))
}

extern "C" fn sread(
    queue: &EventQueueHandle,
    mut number: Out<u32>,
    mut to: OutArray<u8>,
    room: usize,
    timeout_ms: c_int,
    flags: u64,
) -> isize {
    let deadline = deadline(timeout_ms);
    loop {
        queue.progress();
        let taken = queue.take(&mut number, &mut to, room, flags);
        if taken != Err(Error::AGAIN) || remaining_ns(deadline).is_none() {
            return ssize_status(taken);
        }
        std::thread::yield_now();
    }
}

extern "C" fn control(queue: &EventQueueHandle, command: c_int, argument: *mut c_void) -> c_int {
    status(queue.wait.control(command, argument))
}

extern "C" fn readerr(_queue: &EventQueueHandle, _to: *mut c_void, _flags: u64) -> isize {
    Error::AGAIN.code() as isize // there are never any
}

extern "C" fn write(
    queue: &EventQueueHandle,
    number: u32,
    from: InArray<u8>,
    bytes: usize,
    _flags: u64,
) -> isize {
    if !queue.writable {
        return Error::INVALID.code() as isize;
    }
    let data = (0..bytes).map_while(|index| from.at(index)).collect();
    queue.lock().events.push_back(Event { number, data });
    if let Some(descriptor) = queue.wait.descriptor() {
        descriptor.ring();
    }
    bytes as isize
}

extern "C" fn strerror(
    _queue: &EventQueueHandle,
    number: c_int,
    _data: *const c_void,
    mut buffer: OutArray<u8>,
    bytes: usize,
) -> *const c_char {
    copy_error_text(number, &mut buffer, bytes)
}
