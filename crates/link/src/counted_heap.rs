//! A heap that counts the memory of each thread, for measurements. It adds one addition to each call of the system's
//! heap.
//!
//! ```text
//! #[global_allocator] static HEAP: CountedHeap = CountedHeap;
//! let before = in_use_bytes(); let engine = Engine::open(..); in_use_bytes() - before
//! ```
//! If one thread allocates memory and another frees it, the first counts it and the second subtracts it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local!(static IN_USE_BYTES: Cell<i64> = const { Cell::new(0) });

/// The system's heap, counted for each thread.
#[derive(Debug)]
pub struct CountedHeap;

/// Memory that the calling thread has allocated and not freed, if the program's heap is a [`CountedHeap`]. Without
/// the overhead of the system's heap. Unit: bytes.
pub fn in_use_bytes() -> i64 {
    IN_USE_BYTES.with(Cell::get)
}

fn count(bytes: i64) {
    // A thread that is ending has no counter any more, and nobody reads it.
    let _ = IN_USE_BYTES.try_with(|in_use| in_use.set(in_use.get() + bytes));
}

// SAFETY: every call goes to the system's heap with the arguments given. Counting allocates nothing: the counter is
// constant-initialised and has no destructor.
unsafe impl GlobalAlloc for CountedHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes as i64 - layout.size() as i64);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, bytes) }
    }
}
