//! Counters of completed and failed operations: the calls that open, read, change and await them. Reading a counter
//! makes progress, because some programs call nothing else while they wait (MPICH's window flush).

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::deadline::{deadline, remaining_ns};
use crate::errno::{Error, status};
use crate::ffi::*;
use crate::state::counter::Counter;
use crate::state::domain_state::{Domain, ProgressTarget, skip_in_forked_child};
use crate::wait_object::WaitObject;

/// The object that C holds.
#[repr(C)]
pub struct CounterHandle {
    pub(crate) fid: Fid,
    pub(crate) ops: *const FiOpsCntr<CounterHandle>,
    pub(crate) domain: Arc<Domain>,
    pub(crate) index: usize,
    wait: WaitObject,
}

object!(CounterHandle, class::CNTR, FID_OPS);

static FID_OPS: FiOps<CounterHandle> = FiOps {
    size: size_of::<FiOps<CounterHandle>>(),
    close,
    bind: no_bind,
    control,
    ops_open: not_implemented,
    tostr: not_implemented,
    ops_set: not_implemented,
};

static OPS: FiOpsCntr<CounterHandle> =
    FiOpsCntr { size: size_of::<FiOpsCntr<CounterHandle>>(), read, readerr, add, set, wait, adderr, seterr };

/// `fi_cntr_open`.
///
/// # Errors
/// Events other than completions, for example bytes: not implemented. Flags, which are reserved: bad flags. Those of
/// [`WaitObject::open`].
pub fn open(
    domain: &Arc<Domain>,
    attr: Option<&FiCntrAttr>,
    context: usize,
) -> Result<*mut CounterHandle, Error> {
    let (events, wait, flags) =
        attr.map_or((0, wait_obj::NONE, 0), |attr| (attr.events, attr.wait_obj, attr.flags));
    if flags != 0 {
        return Err(Error::BAD_FLAGS);
    }
    if events != 0 {
        return Err(Error::NOT_IMPLEMENTED);
    }
    let wait = WaitObject::open(wait)?;
    let counter = Counter { descriptor: wait.descriptor().cloned(), ..Counter::default() };
    let index = domain.enter().counters.insert(counter);
    let fid = Fid { fclass: class::CNTR, context, ops: (&raw const FID_OPS).cast() };
    Ok(hand_out(CounterHandle { fid, ops: &OPS, domain: domain.clone(), index, wait }))
}

extern "C" fn close(counter: Box<CounterHandle>) -> c_int {
    skip_in_forked_child!(counter);
    let mut state = counter.domain.enter();
    let in_use = &state.counters[counter.index];
    if !in_use.endpoints.is_empty() || in_use.poll_sets > 0 {
        drop(state);
        Box::leak(counter); // the program keeps it
        return Error::BUSY.code();
    }
    state.counters.remove(counter.index);
    0
}

impl CounterHandle {
    fn change(&self, change: impl FnOnce(&mut Counter)) -> c_int {
        let mut state = self.domain.enter();
        let counter = &mut state.counters[self.index];
        change(counter);
        counter.changed();
        0
    }

    /// Reads the value. A caller that finds the same value again and has no other event probably waits. Then the call
    /// yields the core or sleeps, as the engine decides, like a read of a queue.
    fn poll(&self) -> u64 {
        let target = ProgressTarget::Counter(self.index);
        let mut state = self.domain.enter();
        let events = state.progress(target);
        let counter = &mut state.counters[self.index];
        let value = counter.value;
        counter.has_changed = false;
        let moved = std::mem::replace(&mut counter.last_read, value) != value;
        if events == 0 && !moved {
            state.pause(target);
        }
        value
    }

    fn values(&self) -> (u64, u64) {
        let mut state = self.domain.enter();
        state.progress(ProgressTarget::Counter(self.index));
        let counter = &mut state.counters[self.index];
        counter.has_changed = false;
        (counter.value, counter.errors)
    }

    /// `fi_trywait`: whether the program may block at the descriptor. It may not if the counter has changed since the
    /// program has read it.
    ///
    /// # Errors
    /// The counter has no descriptor; those of [`crate::state::domain_state::State::arm`].
    pub fn try_wait(&self) -> Result<bool, Error> {
        self.wait.descriptor().ok_or(Error::INVALID)?;
        Ok(self.domain.enter().arm(ProgressTarget::Counter(self.index))?.is_some())
    }

    /// Waits until the counter reaches `threshold`. Also changes by the program, from other threads, end the wait.
    ///
    /// # Errors
    /// The error count changes, or the timeout expires.
    fn wait(&self, threshold: u64, timeout_ms: c_int) -> Result<(), Error> {
        let deadline = deadline(timeout_ms);
        let (_, errors_before) = self.values();
        loop {
            let mut state = self.domain.enter();
            state.progress(ProgressTarget::Counter(self.index));
            let counter = &mut state.counters[self.index];
            counter.has_changed = false;
            if counter.value >= threshold {
                return Ok(());
            }
            if counter.errors != errors_before {
                return Err(Error::ERROR_AVAILABLE);
            }
            let remaining_ns = remaining_ns(deadline).ok_or(Error::TIMED_OUT)?;
            self.domain.block(state, ProgressTarget::Counter(self.index), remaining_ns)?;
        }
    }
}

extern "C" fn control(counter: &CounterHandle, command: c_int, argument: *mut c_void) -> c_int {
    status(counter.wait.control(command, argument))
}

extern "C" fn read(counter: &CounterHandle) -> u64 {
    counter.poll()
}

extern "C" fn readerr(counter: &CounterHandle) -> u64 {
    counter.values().1
}

extern "C" fn add(counter: &CounterHandle, value: u64) -> c_int {
    counter.change(|counter| counter.value = counter.value.wrapping_add(value))
}

extern "C" fn set(counter: &CounterHandle, value: u64) -> c_int {
    counter.change(|counter| counter.value = value)
}

extern "C" fn adderr(counter: &CounterHandle, value: u64) -> c_int {
    counter.change(|counter| counter.errors = counter.errors.wrapping_add(value))
}

extern "C" fn seterr(counter: &CounterHandle, value: u64) -> c_int {
    counter.change(|counter| counter.errors = value)
}

extern "C" fn wait(counter: &CounterHandle, threshold: u64, timeout_ms: c_int) -> c_int {
    status(counter.wait(threshold, timeout_ms))
}
