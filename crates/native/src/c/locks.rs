//! Locks in C's interface.

use std::ffi::c_int;
use std::sync::Arc;

use super::{endpoint, give, null, status};
use crate::{Endpoint, Error, Group, Lock};

/// `weir_lock_open`.
///
/// # Safety
/// As [`super::weir_wait`]; a variable for the lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_lock_open(
    at: *const Endpoint,
    group: u32,
    home: u32,
    key: u64,
    opened: *mut *mut Lock,
) -> c_int {
    let open = || {
        if opened.is_null() {
            return Err(null("lock"));
        }
        // SAFETY: the caller's promise.
        unsafe {
            let endpoint = endpoint(at)?;
            let group = Group::of_number(Arc::clone(&endpoint.owner), group)?;
            let lock = endpoint.lock(&group, home, key)?;
            give(opened, "lock", Box::into_raw(Box::new(lock)))
        }
    };
    status(open())
}

/// The lock behind a pointer of the program.
///
/// # Safety
/// Null, or from [`weir_lock_open`] and not closed, also not during `'call`.
unsafe fn lock<'call>(pointer: *const Lock) -> Result<&'call Lock, Error> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| null("lock"))
}

/// `weir_lock_acquire`.
///
/// # Safety
/// Null, or from [`weir_lock_open`] and not closed during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_lock_acquire(wanted: *const Lock) -> c_int {
    // SAFETY: the caller's promise.
    status(unsafe { lock(wanted) }.and_then(Lock::acquire))
}

/// `weir_lock_release`.
///
/// # Safety
/// As [`weir_lock_acquire`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_lock_release(held: *const Lock) -> c_int {
    // SAFETY: the caller's promise.
    status(unsafe { lock(held) }.and_then(Lock::release))
}

/// `weir_lock_close`. The pointer is then no longer valid.
///
/// # Safety
/// Null, or from [`weir_lock_open`], which no other thread uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_lock_close(closed: *mut Lock) -> c_int {
    if closed.is_null() {
        return status(Err(null("lock")));
    }
    // SAFETY: `weir_lock_open` made it, and the caller returns it.
    let lock = unsafe { Box::from_raw(closed) };
    status(lock.close())
}
