//! Completion queues: the calls that open, read and close them. A read converts entries from one compact form to the
//! caller's format, and makes progress if there are none. If the program serialises its calls, the first read after a
//! post may only make progress, although entries wait (see `read_entries`). `fi_cq_sread` waits for an entry.
//! `fi_cq_read` can spin, yield or sleep for a moment before it returns nothing.
//!
//! A queue grows as needed. Sizes given by programs are only hints (MPICH gives 0, Open MPI 100), and `FI_RM_ENABLED`
//! promises that no completion is lost. Errors stay in order: the entries before an error are read first. Then reads
//! return `-FI_EAVAIL` until `fi_cq_readerr` has taken the error.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use crate::deadline::{deadline, remaining_ns};
use crate::errno::{Error, ssize_status, status};
use crate::error_text::copy_error_text;
use crate::ffi::*;
use crate::group_wait;
use crate::state::completion_queue::CompletionQueue;
use crate::state::domain_state::{Domain, Mode, ProgressTarget, State, skip_in_forked_child};
use crate::state::entry::Entry;
use crate::state::entry_queue::EntryQueue;
use crate::wait_object::WaitObject;

/// The object that C holds.
#[repr(C)]
pub struct QueueHandle {
    pub(crate) fid: Fid,
    pub(crate) ops: *const FiOpsCq<QueueHandle>,
    pub(crate) domain: Arc<Domain>,
    pub(crate) index: usize,
    format: c_int,
    wait: WaitObject,
}

object!(QueueHandle, class::CQ, FID_OPS);

static FID_OPS: FiOps<QueueHandle> = FiOps {
    size: size_of::<FiOps<QueueHandle>>(),
    close,
    bind: no_bind,
    control,
    ops_open: not_implemented,
    tostr: not_implemented,
    ops_set: not_implemented,
};

static OPS: FiOpsCq<QueueHandle> = FiOpsCq {
    size: size_of::<FiOpsCq<QueueHandle>>(),
    read,
    readfrom,
    readerr,
    sread,
    sreadfrom,
    signal,
    strerror,
};

/// `fi_cq_open`.
///
/// # Errors
/// Unknown format: invalid. Those of [`WaitObject::open`].
pub fn open(
    domain: &Arc<Domain>,
    attr: Option<&FiCqAttr>,
    context: usize,
) -> Result<*mut QueueHandle, Error> {
    let (format, wait) =
        attr.map_or((cq_format::UNSPEC, wait_obj::NONE), |attr| (attr.format, attr.wait_obj));
    if !(cq_format::UNSPEC..=cq_format::TAGGED).contains(&format) {
        return Err(Error::INVALID);
    }
    let wait = WaitObject::open(wait)?;
    let queue = CompletionQueue { descriptor: wait.descriptor().cloned(), ..CompletionQueue::default() };
    let index = domain.enter().queues.insert(queue);
    let fid = Fid { fclass: class::CQ, context, ops: (&raw const FID_OPS).cast() };
    Ok(hand_out(QueueHandle { fid, ops: &OPS, domain: domain.clone(), index, format, wait }))
}

extern "C" fn close(queue: Box<QueueHandle>) -> c_int {
    skip_in_forked_child!(queue);
    let mut state = queue.domain.enter();
    let in_use = &state.queues[queue.index];
    if !in_use.endpoints.is_empty() || in_use.poll_sets > 0 {
        drop(state);
        Box::leak(queue); // the program keeps it
        return Error::BUSY.code();
    }
    state.queues.remove(queue.index);
    0
}

impl QueueHandle {
    /// Reads up to `count` entries. Makes progress if there are none.
    ///
    /// If the program serialises its calls, the first read after a post only makes progress and returns "again". The
    /// reason is MPICH. It has a second source of messages: those of a process to itself. It looks at that source
    /// only when a read of the provider finds nothing. Answers of other ranks must not overtake these messages. For
    /// example, mpi4py's mutex resets a variable of its own, joins a queue, and waits until its successor sets the
    /// variable. If the reset comes last, it waits for ever. The rule costs one more read, usually while there is
    /// nothing to read anyway.
    ///
    /// The rule does not apply if nothing has arrived since the first of those posts. Then all completions are older
    /// than the program's last actions. This avoids an empty read, after which MPICH yields the core; that is
    /// expensive if other ranks want it. [`weir_engine::Engine::before_post`] polls before the first post for this
    /// reason.
    ///
    /// It is inlined into [`read`], which MPI libraries call most.
    #[inline(always)]
    fn read_entries(
        &self,
        state: &mut State,
        buffer: OutArray<u8>,
        count: usize,
        sources: OutArray<FiAddr>,
        pause: bool,
    ) -> Result<usize, Error> {
        let target = ProgressTarget::Queue(self.index);
        if self.domain.mode == Mode::Serialised
            && count > 0
            && std::mem::take(&mut state.poll_before_report)
            && !state.write_earlier_completions(target)
        {
            state.progress(target);
            state.after_empty_read_of(target);
            return Err(Error::AGAIN);
        }
        if count == 0 || state.queues[self.index].entries.is_empty() {
            let mut events = state.progress(target);
            if events == 0 && pause && state.spin_for_arrival(target) {
                loop {
                    events = state.progress(target);
                    if events > 0 || !state.continues_spin(target) {
                        break;
                    }
                }
            }
            if state.queues[self.index].entries.is_empty() {
                state.after_empty_read_of(target);
                if events == 0 && pause {
                    state.pause(target);
                }
                return Err(Error::AGAIN);
            }
        }
        let queue = state.begin_successful_read(self.index);
        let read = self.move_entries(&mut queue.entries, buffer, count, sources);
        state.poll_if_overdue(target);
        read
    }

    /// [`QueueHandle::read_entries`] for rarely used calls.
    #[inline(never)]
    fn read_entries_out_of_line(
        &self,
        state: &mut State,
        buffer: OutArray<u8>,
        count: usize,
        sources: OutArray<FiAddr>,
        pause: bool,
    ) -> Result<usize, Error> {
        self.read_entries(state, buffer, count, sources, pause)
    }

    /// Moves up to `count` entries to the caller, in the queue's format.
    #[inline(always)]
    fn move_entries(
        &self,
        entries: &mut EntryQueue,
        buffer: OutArray<u8>,
        count: usize,
        sources: OutArray<FiAddr>,
    ) -> Result<usize, Error> {
        match self.format {
            cq_format::MSG => move_entries(entries, buffer.cast(), count, sources, |entry| {
                [entry.context as u64, entry.flags, entry.length]
            }),
            cq_format::DATA => move_entries(entries, buffer.cast(), count, sources, |entry| {
                [entry.context as u64, entry.flags, entry.length, entry.buffer as u64, entry.data]
            }),
            cq_format::TAGGED => move_entries(entries, buffer.cast(), count, sources, Entry::tagged),
            _ => move_entries(entries, buffer.cast(), count, sources, |entry| entry.context),
        }
    }

    /// Reads, and waits up to `timeout_ms` (for ever if negative).
    fn read_entries_blocking(
        &self,
        buffer: OutArray<u8>,
        count: usize,
        sources: OutArray<FiAddr>,
        timeout_ms: c_int,
    ) -> Result<usize, Error> {
        let deadline = deadline(timeout_ms);
        loop {
            let mut state = self.domain.enter();
            match self.read_entries_out_of_line(
                &mut state,
                buffer.reborrow(),
                count,
                sources.reborrow(),
                false,
            ) {
                Err(Error::AGAIN) => {}
                done => return done,
            }
            if std::mem::take(&mut state.queues[self.index].signalled) {
                return Err(Error::AGAIN);
            }
            let Some(remaining_ns) = remaining_ns(deadline) else { return Err(Error::AGAIN) };
            self.domain.block(state, ProgressTarget::Queue(self.index), remaining_ns)?;
        }
    }

    /// `fi_trywait`: whether the program may block at the descriptor.
    ///
    /// # Errors
    /// The queue has none; those of [`State::arm`].
    pub fn try_wait(&self) -> Result<bool, Error> {
        self.wait.descriptor().ok_or(Error::INVALID)?;
        Ok(self.domain.enter().arm(ProgressTarget::Queue(self.index))?.is_some())
    }
}

/// Moves successful entries from the queue to the caller, at most `count` and not beyond an error.
fn move_entries<T>(
    entries: &mut EntryQueue,
    mut to: OutArray<T>,
    count: usize,
    mut sources: OutArray<FiAddr>,
    convert: impl Fn(&Entry) -> T,
) -> Result<usize, Error> {
    let mut done = 0;
    while done < count
        && let Some(entry) = entries.front()
    {
        if entry.error != 0 {
            break;
        }
        to.set(done, convert(entry));
        sources.set(done, entry.source);
        entries.pop_front();
        done += 1;
    }
    if done == 0 && count > 0 {
        let is_delayed = entries.front().is_some_and(|error| group_wait::delays(error.error));
        return Err(if is_delayed { Error::AGAIN } else { Error::ERROR_AVAILABLE });
    }
    Ok(done)
}

extern "C" fn read(queue: &QueueHandle, buffer: OutArray<u8>, count: usize) -> isize {
    let mut state = queue.domain.enter();
    ssize_status(queue.read_entries(&mut state, buffer, count, OutArray::none(), count > 0))
}

extern "C" fn readfrom(
    queue: &QueueHandle,
    buffer: OutArray<u8>,
    count: usize,
    sources: OutArray<FiAddr>,
) -> isize {
    let mut state = queue.domain.enter();
    ssize_status(queue.read_entries_out_of_line(&mut state, buffer, count, sources, count > 0))
}

extern "C" fn readerr(queue: &QueueHandle, to: CqErrorOut, _flags: u64) -> isize {
    let mut state = queue.domain.enter();
    let entries = &mut state.queues[queue.index].entries;
    match entries.front() {
        Some(entry) if entry.error != 0 => {
            to.fill(&entry.error(), queue.domain.api_version);
            entries.pop_front();
            1
        }
        _ => Error::AGAIN.code() as isize,
    }
}

extern "C" fn sread(
    queue: &QueueHandle,
    buffer: OutArray<u8>,
    count: usize,
    _condition: *const c_void,
    timeout_ms: c_int,
) -> isize {
    ssize_status(queue.read_entries_blocking(buffer, count, OutArray::none(), timeout_ms))
}

extern "C" fn sreadfrom(
    queue: &QueueHandle,
    buffer: OutArray<u8>,
    count: usize,
    sources: OutArray<FiAddr>,
    _condition: *const c_void,
    timeout_ms: c_int,
) -> isize {
    ssize_status(queue.read_entries_blocking(buffer, count, sources, timeout_ms))
}

/// The signal stays until a blocking read takes it. It also makes the descriptor readable.
extern "C" fn signal(queue: &QueueHandle) -> c_int {
    let mut state = queue.domain.enter();
    let queue = &mut state.queues[queue.index];
    queue.signalled = true;
    if let Some(descriptor) = &queue.descriptor {
        descriptor.ring();
    }
    status(Ok(()))
}

extern "C" fn control(queue: &QueueHandle, command: c_int, argument: *mut c_void) -> c_int {
    status(queue.wait.control(command, argument))
}

extern "C" fn strerror(
    _queue: &QueueHandle,
    number: c_int,
    _data: *const c_void,
    mut buffer: OutArray<u8>,
    bytes: usize,
) -> *const c_char {
    copy_error_text(number, &mut buffer, bytes)
}
