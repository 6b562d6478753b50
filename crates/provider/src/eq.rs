//! Event queues. An event says that all members of a group have joined it, or that one is lost ([`crate::group`]); nothing
//! else is asynchronous but data transfers. A queue also carries what the program writes. Reading a queue makes progress on
//! the domains whose endpoints are bound to it. It does not enter domains opened with `FI_THREAD_DOMAIN`, because that
//! promise does not cover calls on event queues.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::deadline::{deadline, remaining_ns};
use crate::errno::{Error, ssize_status, status};
use crate::error_text::copy_error_text;
use crate::ffi::*;
use crate::state::domain_state::{Domain, Mode};
use crate::state::event_queue::EventQueue;
use crate::wait_object::WaitObject;

/// The object that C holds. It belongs to a fabric, not to a domain, so it has its own locks. No call enters a domain
/// while it holds one of them.
#[repr(C)]
pub struct EventQueueHandle {
    pub(crate) fid: Fid,
    pub(crate) ops: *const FiOpsEq<EventQueueHandle>,
    /// Shared with the endpoints that are bound to it.
    pub(crate) queue: Arc<EventQueue>,
    watched: Mutex<Vec<Weak<Domain>>>,
    writable: bool,
    api_version: u32,
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
pub fn open(
    api_version: u32,
    attr: Option<&FiEqAttr>,
    context: usize,
) -> Result<*mut EventQueueHandle, Error> {
    let (wait, flags) = attr.map_or((wait_obj::NONE, 0), |attr| (attr.wait_obj, attr.flags));
    let queue = Arc::new(EventQueue::new(WaitObject::open(wait)?));
    let fid = Fid { fclass: class::EQ, context, ops: (&raw const FID_OPS).cast() };
    let (watched, writable) = (Mutex::default(), flags & flags::WRITE != 0);
    Ok(hand_out(EventQueueHandle { fid, ops: &OPS, queue, watched, writable, api_version }))
}

extern "C" fn close(queue: Box<EventQueueHandle>) -> c_int {
    drop(queue);
    0
}

impl EventQueueHandle {
    /// Makes reads of this queue progress the domain.
    pub fn watch(&self, domain: &Arc<Domain>) {
        if domain.mode == Mode::Serialised {
            return;
        }
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|watched| watched.strong_count() > 0);
        if !watched.iter().any(|watched| watched.as_ptr() == Arc::as_ptr(domain)) {
            watched.push(Arc::downgrade(domain));
        }
    }

    /// `fi_trywait`: whether the program may block at the descriptor.
    ///
    /// # Errors
    /// The queue has none.
    pub fn try_wait(&self) -> Result<bool, Error> {
        self.queue.try_wait()
    }

    fn progress(&self) {
        let watched: Vec<Arc<Domain>> = {
            let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
            watched.iter().filter_map(Weak::upgrade).collect()
        };
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
    ssize_status(queue.queue.take(&mut number, &mut to, room, flags))
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
        let taken = queue.queue.take(&mut number, &mut to, room, flags);
        if taken != Err(Error::AGAIN) || remaining_ns(deadline).is_none() {
            return ssize_status(taken);
        }
        std::thread::yield_now();
    }
}

extern "C" fn control(queue: &EventQueueHandle, command: c_int, argument: *mut c_void) -> c_int {
    status(queue.queue.wait.control(command, argument))
}

extern "C" fn readerr(queue: &EventQueueHandle, to: EqErrorOut, flags: u64) -> isize {
    match queue.queue.take_error(flags) {
        Some(entry) => {
            to.fill(&entry, queue.api_version);
            size_of::<FiEqErrEntry>() as isize
        }
        None => Error::AGAIN.code() as isize,
    }
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
    queue.queue.write(number, data);
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
