//! The C form of the interface, `include/weir.h`: opening, groups, requests, registered memory. `c/operations.rs` has
//! the operations.
//!
//! Each function checks its pointers and numbers, calls the safe code, and returns a number ([`Error::code`]; 0: no
//! error). The text of the last error of a thread is kept for [`weir_error`]. Memory of operations is the caller's,
//! so nothing is copied: it must stay until the request has ended, or the endpoint is closed. A broken promise of the
//! caller, or a bug here, ends the process; no panic crosses into C.

mod locks;
mod operations;

use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use weir_link::memory::UserMemory;

use crate::exchange::Exchange;
use crate::segment::{ALIGNMENT, deregister, register};
use crate::{Endpoint, Error, Options, launcher};

pub use locks::*;
pub use operations::*;

/// `WEIR_INTERFACE`: counts changes that a program must know of.
pub const INTERFACE: u32 = 1;
/// `WEIR_AUTOMATIC_PROGRESS`.
pub const AUTOMATIC_PROGRESS: u32 = 1;
/// `WEIR_READABLE`.
pub const READABLE: u32 = 1;
/// `WEIR_WRITABLE`.
pub const WRITABLE: u32 = 2;
/// `WEIR_WORLD`: the first group that an endpoint joins.
pub const WORLD: u32 = 1;

/// `weir_all_gather`: gets a context, our block, room for the blocks of all ranks, and the length of a block. Returns
/// 0 if it has done it.
pub type AllGatherCall = unsafe extern "C" fn(*mut c_void, *const c_void, *mut c_void, usize) -> c_int;

/// `weir_options`: how to open an endpoint.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct COptions {
    /// [`INTERFACE`] of the program's header.
    pub interface: u32,
    /// Length of this structure. Unit: bytes.
    pub bytes: u32,
    /// [`AUTOMATIC_PROGRESS`].
    pub flags: u32,
    /// Our rank, if `size` is not 0.
    pub rank: u32,
    /// Number of ranks. 0: that of the launcher's variables, as the rank.
    pub size: u32,
    /// [`Options::patience`]. 0: a minute. Unit: ms.
    pub patience_ms: u32,
    /// [`Exchange::Directory`], or null.
    pub directory: *const c_char,
    /// [`Exchange::Call`], or none.
    pub all_gather: Option<AllGatherCall>,
    /// Its context.
    pub context: *mut c_void,
}

thread_local! {
    /// The text of the last error of this thread.
    static TEXT: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Keeps the text of an error, and returns its number.
fn status(result: Result<(), Error>) -> c_int {
    let Err(error) = result else { return 0 };
    let mut text = error.to_string().into_bytes();
    text.retain(|&byte| byte != 0);
    TEXT.with_borrow_mut(|kept| *kept = CString::new(text).ok());
    error.code()
}

fn null(what: &'static str) -> Error {
    Error::argument(what, "null", "a pointer to it")
}

/// The endpoint behind a pointer of the program.
///
/// # Safety
/// Null, or from [`weir_open`] and not closed, also not during `'call`.
unsafe fn endpoint<'call>(pointer: *const Endpoint) -> Result<&'call Endpoint, Error> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| null("endpoint"))
}

/// Writes a result to a variable of the program.
///
/// # Safety
/// Null, or a variable of the caller.
unsafe fn give<T>(variable: *mut T, what: &'static str, value: T) -> Result<(), Error> {
    if variable.is_null() {
        return Err(null(what));
    }
    // SAFETY: the caller's promise.
    unsafe { variable.write(value) };
    Ok(())
}

/// Memory of the program. Of length 0, the pointer is not used.
///
/// # Safety
/// Null, or `bytes` bytes that the program leaves to the operation until it has ended.
unsafe fn memory(address: *const c_void, bytes: usize, what: &'static str) -> Result<UserMemory, Error> {
    if bytes == 0 {
        return Ok(UserMemory::EMPTY);
    }
    if address.is_null() {
        return Err(null(what));
    }
    if isize::try_from(bytes).is_err() {
        return Err(Error::argument("length in bytes", bytes, format!("0 to {}", isize::MAX)));
    }
    // SAFETY: the caller's promise. What only gives data is not written to.
    Ok(unsafe { UserMemory::contiguous(address.cast_mut().cast(), bytes) })
}

/// `weir_interface`: [`INTERFACE`] of this library.
#[unsafe(no_mangle)]
pub extern "C" fn weir_interface() -> u32 {
    INTERFACE
}

/// `weir_error`: the text of the last error of this thread. Valid until its next call.
#[unsafe(no_mangle)]
pub extern "C" fn weir_error() -> *const c_char {
    TEXT.with_borrow(|text| text.as_deref().unwrap_or(c"").as_ptr())
}

/// What C's options say.
///
/// # Safety
/// The directory is null or a string.
unsafe fn options(given: &COptions) -> Result<Options, Error> {
    let expected = (INTERFACE, size_of::<COptions>() as u32);
    if (given.interface, given.bytes) != expected {
        let value = format!("{} with options of {} bytes", given.interface, given.bytes);
        let allowed = format!("{} with {} bytes: the header and the library differ", expected.0, expected.1);
        return Err(Error::argument("interface", value, allowed));
    }
    if given.flags & !AUTOMATIC_PROGRESS != 0 {
        return Err(Error::argument("flags", given.flags, format!("0 and {AUTOMATIC_PROGRESS}")));
    }
    let rank_and_size = match given.size {
        0 => launcher::rank_and_size(|name| std::env::var(name).ok())?,
        size => (given.rank, size),
    };
    let exchange = match (given.all_gather, given.directory.is_null()) {
        (Some(_), false) => {
            return Err(Error::argument("exchange", "by a call and a directory", "one of them"));
        }
        (Some(call), true) => by_call(call, given.context, rank_and_size.1),
        (None, false) => {
            // SAFETY: the caller's promise.
            let path = unsafe { CStr::from_ptr(given.directory) };
            Exchange::Directory(OsStr::from_bytes(path.to_bytes()).into())
        }
        (None, true) => Exchange::Automatic,
    };
    let patience = match given.patience_ms {
        0 => Options::default().patience,
        ms => Duration::from_millis(ms.into()),
    };
    let automatic_progress = given.flags & AUTOMATIC_PROGRESS != 0;
    Ok(Options { rank_and_size: Some(rank_and_size), exchange, patience, automatic_progress })
}

fn by_call(call: AllGatherCall, context: *mut c_void, size: u32) -> Exchange {
    Exchange::Call(Box::new(move |block| {
        let mut all = vec![0_u8; block.len() * size as usize];
        // SAFETY: the program's function and its context, called inside `weir_open`; a block to read, and room for
        // those of all ranks.
        let answer = unsafe { call(context, block.as_ptr().cast(), all.as_mut_ptr().cast(), block.len()) };
        match answer {
            0 => Ok(all),
            code => Err(format!("it returned {code}")),
        }
    }))
}

/// `weir_open`.
///
/// # Safety
/// Null, or options whose directory is null or a string; a variable for the endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_open(given: *const COptions, opened: *mut *mut Endpoint) -> c_int {
    let open = || {
        if opened.is_null() {
            return Err(null("endpoint"));
        }
        // SAFETY: the caller's promise.
        unsafe {
            let given = given.as_ref().ok_or_else(|| null("options"))?;
            let endpoint = Endpoint::open(options(given)?)?;
            give(opened, "endpoint", Box::into_raw(Box::new(endpoint)))
        }
    };
    status(open())
}

/// `weir_close`. The pointer is then no longer valid.
///
/// # Safety
/// Null, or from [`weir_open`], which no other thread uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_close(closed: *mut Endpoint) -> c_int {
    if closed.is_null() {
        return status(Err(null("endpoint")));
    }
    // SAFETY: `weir_open` made it, and the caller returns it.
    let endpoint = unsafe { Box::from_raw(closed) };
    status(endpoint.close())
}

/// `weir_rank`. Of a null pointer: 0.
///
/// # Safety
/// As [`weir_wait`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_rank(of: *const Endpoint) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { endpoint(of) }.map_or(0, Endpoint::rank)
}

/// `weir_size`. Of a null pointer: 0.
///
/// # Safety
/// As [`weir_wait`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_size(of: *const Endpoint) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { endpoint(of) }.map_or(0, Endpoint::size)
}

/// `weir_progress`.
///
/// # Safety
/// As [`weir_wait`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_progress(at: *const Endpoint) -> c_int {
    // SAFETY: the caller's promise.
    status(unsafe { endpoint(at) }.and_then(Endpoint::progress))
}

/// `weir_group_join`.
///
/// # Safety
/// As [`weir_wait`]; an array of `count` ranks; a variable for the group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_group_join(
    at: *const Endpoint,
    ranks: *const u32,
    count: usize,
    group: *mut u32,
) -> c_int {
    let join = || {
        if ranks.is_null() || group.is_null() {
            return Err(null(if ranks.is_null() { "ranks" } else { "group" }));
        }
        let at_most = count.min(crate::MAX_RANKS as usize + 1); // too many are refused without a look at all
        // SAFETY: the caller's promise.
        unsafe {
            let ranks = std::slice::from_raw_parts(ranks, at_most);
            let number = endpoint(at)?.shared().join(ranks)?;
            give(group, "group", number)
        }
    };
    status(join())
}

/// `weir_group_close`.
///
/// # Safety
/// As [`weir_wait`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_group_close(at: *const Endpoint, group: u32) -> c_int {
    let close = |endpoint: &Endpoint| match group {
        WORLD => Err(Error::argument("group", group, "groups that weir_group_join has made")),
        _ => endpoint.shared().with(|inner| inner.close_group(group)),
    };
    // SAFETY: the caller's promise.
    status(unsafe { endpoint(at) }.and_then(close))
}

/// `weir_group_rank`.
///
/// # Safety
/// As [`weir_wait`]; null or variables for rank and size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_group_rank(
    at: *const Endpoint,
    group: u32,
    rank: *mut u32,
    size: *mut u32,
) -> c_int {
    let look = |endpoint: &Endpoint| {
        let member = endpoint.shared().with(|inner| inner.group(group).cloned())?;
        for (variable, value) in [(rank, member.rank), (size, member.ranks.len() as u32)] {
            if !variable.is_null() {
                // SAFETY: the caller's promise.
                unsafe { variable.write(value) };
            }
        }
        Ok(())
    };
    // SAFETY: the caller's promise.
    status(unsafe { endpoint(at) }.and_then(look))
}

/// `weir_register`.
///
/// # Safety
/// As [`weir_wait`]; `bytes` bytes that stay until they are deregistered and no rank uses them, or the endpoint is
/// closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_register(
    at: *const Endpoint,
    key: u64,
    address: *mut c_void,
    bytes: usize,
    rights: u32,
) -> c_int {
    let checked = || {
        if rights == 0 || rights & !(READABLE | WRITABLE) != 0 {
            return Err(Error::argument("rights", rights, "WEIR_READABLE, WEIR_WRITABLE, or both"));
        }
        if !address.addr().is_multiple_of(ALIGNMENT) {
            let value = format!("{address:p}");
            return Err(Error::argument("address", value, format!("multiples of {ALIGNMENT}")));
        }
        // SAFETY: the caller's promise.
        let (endpoint, memory) = unsafe { (endpoint(at)?, memory(address, bytes, "memory")?) };
        let rights = (rights & READABLE != 0, rights & WRITABLE != 0);
        register(endpoint.shared(), key, memory, rights, None)
    };
    status(checked())
}

/// `weir_deregister`.
///
/// # Safety
/// As [`weir_wait`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_deregister(at: *const Endpoint, key: u64) -> c_int {
    // SAFETY: the caller's promise.
    status(unsafe { endpoint(at) }.and_then(|endpoint| deregister(endpoint.shared(), key)))
}

/// The number in a variable for a request.
///
/// # Safety
/// Null, or a variable.
unsafe fn request(variable: *const u64) -> Result<u64, Error> {
    // SAFETY: the caller's promise.
    unsafe { variable.as_ref() }.copied().ok_or_else(|| null("request"))
}

/// `weir_test`. A request that has ended is 0 then, also with an error.
///
/// # Safety
/// As [`weir_wait`]; a variable for the answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_test(at: *const Endpoint, tested: *mut u64, done: *mut c_int) -> c_int {
    let test = || {
        // SAFETY: the caller's promise.
        let (endpoint, number) = unsafe { (endpoint(at)?, request(tested)?) };
        if done.is_null() {
            return Err(null("done"));
        }
        let ended = if number == 0 { Some(Ok(None)) } else { endpoint.shared().test(number)? };
        // SAFETY: the caller's promise; neither is null.
        unsafe {
            done.write(ended.is_some().into());
            if ended.is_some() {
                tested.write(0);
            }
        }
        ended.map_or(Ok(()), |ended| ended.map(|_| ()))
    };
    status(test())
}

/// `weir_wait`. The request is 0 then, also with an error. 0 is a request that has ended.
///
/// # Safety
/// The endpoint is null, or from [`weir_open`] and not closed during the call. The request is null or a variable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_wait(at: *const Endpoint, waited: *mut u64) -> c_int {
    let wait = || {
        // SAFETY: the caller's promise.
        let (endpoint, number) = unsafe { (endpoint(at)?, request(waited)?) };
        if number == 0 {
            return Ok(());
        }
        let ended = endpoint.shared().wait(number)?;
        // SAFETY: the caller's promise; it is not null.
        unsafe { waited.write(0) };
        ended.map(|_| ())
    };
    status(wait())
}
