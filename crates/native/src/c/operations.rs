//! The operations of C's interface: collective ones, copies, and changes of words. Each starts a request.

use std::ffi::{c_int, c_void};

use weir_engine::CollectiveOperation;
use weir_link::memory::UserMemory;
use weir_proto::offload::{Combination, WordOperation, WordType, WordUpdate};

use super::{endpoint, memory, null, status};
use crate::remote::Way;
use crate::state::{Buffers, Inner};
use crate::{Endpoint, Error, Place};

/// `WEIR_ALL`: the root of a reduction whose result all members get.
pub const ALL: u32 = u32::MAX;

/// `weir_place`: a place in registered memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CPlace {
    /// [`Place::key`].
    pub key: u64,
    /// [`Place::offset`].
    pub offset: u64,
    /// [`Place::rank`].
    pub rank: u32,
}

/// `weir_reduction`: what a reduction does.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CReduction {
    /// The group.
    pub group: u32,
    /// The member that gets the result, or [`ALL`].
    pub root: u32,
    /// Number of a [`WordOperation`].
    pub operation: u32,
    /// Number of a [`WordType`].
    pub word_type: u32,
}

/// `weir_change`: the change of a word.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CChange {
    /// Bits of the operand, in the lower bytes.
    pub operand: u64,
    /// Bits of the compare value, in the lower bytes.
    pub compare: u64,
    /// Number of a [`WordOperation`].
    pub operation: u32,
    /// Number of a [`WordType`].
    pub word_type: u32,
}

fn combination(operation: u32, word_type: u32) -> Result<Combination, Error> {
    let found = (WordOperation::ALL.get(operation as usize), WordType::ALL.get(word_type as usize));
    match found {
        (Some(&operation), Some(&word_type)) => Ok(Combination { operation, word_type }),
        (None, _) => {
            let last = WordOperation::ALL.len() - 1;
            Err(Error::argument("operation", operation, format!("0 to {last}: enum weir_operation")))
        }
        (_, None) => {
            let last = WordType::ALL.len() - 1;
            Err(Error::argument("type", word_type, format!("0 to {last}: enum weir_type")))
        }
    }
}

/// Starts an operation, and gives its request to the program.
///
/// # Safety
/// As [`super::weir_wait`]. What `start` does with pointers.
unsafe fn begin(
    at: *const Endpoint,
    request: *mut u64,
    start: impl FnOnce(&mut Inner) -> Result<u64, Error>,
) -> c_int {
    let begin = || {
        if request.is_null() {
            return Err(null("request"));
        }
        // SAFETY: the caller's promise.
        let number = unsafe { endpoint(at)? }.shared().with(start)?;
        // SAFETY: the caller's promise; it is not null.
        unsafe { request.write(number) };
        Ok(())
    };
    status(begin())
}

/// `weir_start_barrier`.
///
/// # Safety
/// As [`super::weir_wait`]; a variable for the request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_start_barrier(at: *const Endpoint, group: u32, request: *mut u64) -> c_int {
    let start = |inner: &mut Inner| {
        inner.start_collective(group, CollectiveOperation::Barrier, 0, Buffers::EMPTY, false)
    };
    // SAFETY: the caller's promise.
    unsafe { begin(at, request, start) }
}

/// `weir_start_broadcast`.
///
/// # Safety
/// As [`weir_start_barrier`]; `bytes` bytes that the program leaves to the operation until it has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_start_broadcast(
    at: *const Endpoint,
    group: u32,
    root: u32,
    data: *mut c_void,
    bytes: usize,
    request: *mut u64,
) -> c_int {
    let start = |inner: &mut Inner| {
        // SAFETY: the caller's promise.
        let data = unsafe { memory(data, bytes, "data")? };
        let buffers = Buffers::of_caller(data, UserMemory::EMPTY);
        inner.start_collective(group, CollectiveOperation::Broadcast { root }, bytes as u64, buffers, false)
    };
    // SAFETY: the caller's promise.
    unsafe { begin(at, request, start) }
}

/// `weir_start_reduce`.
///
/// # Safety
/// As [`weir_start_barrier`]; null or a reduction; `count` elements of data, and as many of result at members that
/// get it, which the program leaves to the operation until it has ended. They are the same, or do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_start_reduce(
    at: *const Endpoint,
    reduction: *const CReduction,
    data: *const c_void,
    result: *mut c_void,
    count: usize,
    request: *mut u64,
) -> c_int {
    let start = |inner: &mut Inner| {
        // SAFETY: the caller's promise.
        let given = unsafe { reduction.as_ref() }.ok_or_else(|| null("reduction"))?;
        let CReduction { group, root, operation, word_type } = *given;
        let combination = combination(operation, word_type)?;
        let bytes = count.saturating_mul(combination.word_type.bytes() as usize);
        let gets = root == ALL || inner.group(group)?.rank == root;
        // SAFETY: the caller's promise.
        let buffers = unsafe {
            let result = memory(result, if gets { bytes } else { 0 }, "result")?;
            Buffers::of_caller(memory(data, bytes, "data")?, result)
        };
        let operation = match root {
            ALL => CollectiveOperation::AllReduce { combination },
            root => CollectiveOperation::Reduce { root, combination },
        };
        inner.start_collective(group, operation, bytes as u64, buffers, false)
    };
    // SAFETY: the caller's promise.
    unsafe { begin(at, request, start) }
}

/// `weir_start_all_gather`.
///
/// # Safety
/// As [`weir_start_barrier`]; `bytes` bytes of data, and as many of result for each member, which the program leaves
/// to the operation until it has ended. They do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_start_all_gather(
    at: *const Endpoint,
    group: u32,
    data: *const c_void,
    result: *mut c_void,
    bytes: usize,
    request: *mut u64,
) -> c_int {
    let start = |inner: &mut Inner| {
        let all = bytes.saturating_mul(inner.group(group)?.ranks.len());
        // SAFETY: the caller's promise.
        let buffers = unsafe {
            let result = memory(result, all, "result")?;
            Buffers::of_caller(memory(data, bytes, "data")?, result)
        };
        inner.start_collective(group, CollectiveOperation::AllGather, bytes as u64, buffers, false)
    };
    // SAFETY: the caller's promise.
    unsafe { begin(at, request, start) }
}

/// The place behind a pointer of the program.
///
/// # Safety
/// Null, or a place.
unsafe fn place(pointer: *const CPlace) -> Result<Place, Error> {
    // SAFETY: the caller's promise.
    let CPlace { key, offset, rank } = *unsafe { pointer.as_ref() }.ok_or_else(|| null("place"))?;
    Ok(Place { rank, key, offset })
}

/// `weir_start_put`.
///
/// # Safety
/// As [`weir_start_barrier`]; null or a place; `bytes` bytes that the program leaves to the operation until it has
/// ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_start_put(
    at: *const Endpoint,
    to: *const CPlace,
    data: *const c_void,
    bytes: usize,
    request: *mut u64,
) -> c_int {
    let start = |inner: &mut Inner| {
        // SAFETY: the caller's promise.
        let (place, data) = unsafe { (place(to)?, memory(data, bytes, "data")?) };
        inner.start_copy(Way::Put, place, Buffers::of_caller(data, UserMemory::EMPTY))
    };
    // SAFETY: the caller's promise.
    unsafe { begin(at, request, start) }
}

/// `weir_start_get`.
///
/// # Safety
/// As [`weir_start_put`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_start_get(
    at: *const Endpoint,
    from: *const CPlace,
    into: *mut c_void,
    bytes: usize,
    request: *mut u64,
) -> c_int {
    let start = |inner: &mut Inner| {
        // SAFETY: the caller's promise.
        let (place, data) = unsafe { (place(from)?, memory(into, bytes, "memory")?) };
        inner.start_copy(Way::Get, place, Buffers::of_caller(data, UserMemory::EMPTY))
    };
    // SAFETY: the caller's promise.
    unsafe { begin(at, request, start) }
}

/// `weir_start_atomic`.
///
/// # Safety
/// As [`weir_start_barrier`]; null or a place, and a change; null or room for the old word, which the program leaves
/// to the operation until it has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_start_atomic(
    at: *const Endpoint,
    of: *const CPlace,
    change: *const CChange,
    old: *mut c_void,
    request: *mut u64,
) -> c_int {
    let start = |inner: &mut Inner| {
        // SAFETY: the caller's promise.
        let (place, given) = unsafe { (place(of)?, *change.as_ref().ok_or_else(|| null("change"))?) };
        let CChange { operand, compare, operation, word_type } = given;
        let Combination { operation, word_type } = combination(operation, word_type)?;
        let update = WordUpdate { operation, word_type, operand, compare };
        let bytes = if old.is_null() { 0 } else { word_type.bytes() as usize };
        // SAFETY: the caller's promise.
        let result = unsafe { memory(old, bytes, "old")? };
        inner.start_atomic(place, update, !old.is_null(), Buffers::of_caller(UserMemory::EMPTY, result))
    };
    // SAFETY: the caller's promise.
    unsafe { begin(at, request, start) }
}
