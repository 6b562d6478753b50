//! A value of this process that its forked children do not share.
//!
//! A child has a copy of its parent's memory, but owns none of the files, names and locks in it. A thread that does not
//! exist in the child may also hold a lock in that copy. So the value carries the process id of its owner. In any other
//! process a fresh value replaces it, and the parent's copy stays as it is.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

struct Owned<T> {
    pid: u32,
    value: Mutex<T>,
}

/// A value, made at its first use in each process. It is small and never freed.
pub struct PerProcess<T: 'static>(AtomicPtr<Owned<T>>);

impl<T: Default + Send + 'static> PerProcess<T> {
    /// Not used yet.
    pub const fn new() -> PerProcess<T> {
        PerProcess(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// The value of this process, locked against its other threads.
    pub fn lock(&self) -> MutexGuard<'static, T> {
        let pid = std::process::id();
        let mut found = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or made by `Box::into_raw` below and never freed.
            if let Some(owned) = unsafe { found.as_ref() }
                && owned.pid == pid
            {
                return owned.value.lock().unwrap_or_else(PoisonError::into_inner);
            }
            let fresh = Box::into_raw(Box::new(Owned { pid, value: Mutex::default() }));
            match self.0.compare_exchange(found, fresh, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => found = fresh,
                Err(now) => {
                    // SAFETY: made above, and no other thread has seen it.
                    drop(unsafe { Box::from_raw(fresh) });
                    found = now;
                }
            }
        }
    }

    /// The value, if this process has used it and no thread holds the lock. Does not wait, for exit handlers.
    pub fn try_lock(&self) -> Option<MutexGuard<'static, T>> {
        // SAFETY: as in `lock`.
        let owned = unsafe { self.0.load(Ordering::Acquire).as_ref() }?;
        if owned.pid == std::process::id() { owned.value.try_lock().ok() } else { None }
    }
}
