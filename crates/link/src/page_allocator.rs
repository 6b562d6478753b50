//! The allocator of the provider plug-in: it gets large blocks directly from the kernel and returns them to it.
//!
//! A C library's heap keeps freed memory between blocks in use. It also raises its own limit for returning memory with
//! every large block that is freed. The memory of weir's bursts (tables, unexpected buffers, bounce buffers) must be
//! gone after the burst. So an allocation of [`LARGE_BYTES`] or more, aligned to at most a page, is a mapping of its
//! own. The C library allocates all others.

use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};
use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;

/// An allocation of this size or more is a mapping. Unit: bytes.
pub const LARGE_BYTES: usize = 1 << 15;

/// The global allocator of a plug-in.
#[derive(Debug, Default)]
pub struct PageAllocator;

fn is_large(bytes: usize, align: usize) -> bool {
    bytes >= LARGE_BYTES && align <= 4096
}

// SAFETY: each block is either `System`'s or a mapping, and stays valid until it is freed. The layout decides which
// of the two, and it is the same when the block is freed.
unsafe impl GlobalAlloc for PageAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(layout.size(), layout.align()) {
            return map(layout.size());
        }
        // SAFETY: the caller's promise is `System`'s condition.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(layout.size(), layout.align()) {
            return map(layout.size()); // fresh mappings are zero
        }
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_large(layout.size(), layout.align()) {
            // SAFETY: a mapping of this length, made by `map` or `mremap`, which nobody uses any more.
            let _ = unsafe { munmap(block.cast(), layout.size()) };
            return;
        }
        // SAFETY: as in `alloc`; the block is `System`'s.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        match (is_large(layout.size(), layout.align()), is_large(bytes, layout.align())) {
            // SAFETY: as in `alloc`; the block is `System`'s and stays so.
            (false, false) => unsafe { System.realloc(block, layout, bytes) },
            (true, true) => {
                // SAFETY: the block is a mapping of the old length. The kernel may move its pages.
                let moved = unsafe { mremap(block.cast(), layout.size(), bytes, MremapFlags::MAYMOVE) };
                moved.map_or(null_mut(), |block| block.cast())
            }
            _ => {
                // SAFETY: the caller promises that the new size is valid with this alignment.
                let (new, to) = unsafe {
                    let to = Layout::from_size_align_unchecked(bytes, layout.align());
                    (self.alloc(to), to)
                };
                if !new.is_null() {
                    let both = layout.size().min(to.size());
                    // SAFETY: two valid blocks of at least this length. The old one is freed once.
                    unsafe {
                        core::ptr::copy_nonoverlapping(block, new, both);
                        self.dealloc(block, layout);
                    }
                }
                new
            }
        }
    }
}

fn map(bytes: usize) -> *mut u8 {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping anywhere. Existing memory is not touched.
    let mapped = unsafe { mmap_anonymous(null_mut(), bytes, access, MapFlags::PRIVATE) };
    mapped.map_or(null_mut(), |block| block.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(block: *mut u8, from: usize, to: usize) {
        for at in from..to {
            // SAFETY: the test's own block, at least `to` long.
            unsafe { block.add(at).write(at as u8) };
        }
    }

    #[test]
    fn realloc_across_the_size_limit_keeps_the_contents() {
        let layout = |bytes| Layout::from_size_align(bytes, 8).unwrap();
        let sizes = [100, 40_000, 5_000_000, LARGE_BYTES, LARGE_BYTES - 1, 10, 1 << 20, 60];
        // SAFETY: each block is used within its length and freed once, with its current layout.
        unsafe {
            let mut block = PageAllocator.alloc(layout(sizes[0]));
            fill(block, 0, sizes[0]);
            let mut filled = sizes[0];
            for pair in sizes.windows(2) {
                block = PageAllocator.realloc(block, layout(pair[0]), pair[1]);
                filled = filled.min(pair[1]);
                assert!((0..filled).all(|at| block.add(at).read() == at as u8));
                fill(block, filled, pair[1]);
                filled = pair[1];
            }
            PageAllocator.dealloc(block, layout(sizes[sizes.len() - 1]));
        }
    }

    #[test]
    fn freed_large_blocks_return_their_memory_to_the_kernel() {
        let resident_kib = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find(|line| line.starts_with("RssAnon")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<i64>().unwrap()
        };
        const BYTES: usize = 64 << 20;
        let layout = Layout::from_size_align(BYTES, 16).unwrap();
        // SAFETY: used within its length, freed once.
        unsafe {
            let block = PageAllocator.alloc_zeroed(layout);
            assert!((0..BYTES).step_by(4096).all(|at| block.add(at).read() == 0));
            fill(block, 0, BYTES);
            let full = resident_kib();
            PageAllocator.dealloc(block, layout);
            assert!(full - resident_kib() > 60 << 10);
        }
    }
}
