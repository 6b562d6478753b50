//! Atomics, fences and the futex, as the machine has them and as the model checker has them.
//!
//! The mailbox has two places where a writer and the reader each store one word and then look at the other's
//! (Dekker's pattern): published slot against `polled`, published slot against `asleep`. Somebody must pay for a
//! full fence there. Here the reader pays, since it goes idle rarely and senders send often: the sender has only
//! a [`light_fence`] (for the compiler), the reader a [`heavy_fence`], which is membarrier: it returns after every
//! running thread of every registered process has passed a full fence. Either the sender's fence comes before
//! that point, then the reader sees its slot; or after, then the sender sees the reader's word.
//!
//! Cost, measured on the 2-core VM this was written on (Linux 6.18, nested KVM; example `costs`): membarrier global
//! expedited takes 0.17 us while no other registered process runs, and 17 us (median; 24 us at p99) while one
//! spins on the other core, since it then interrupts that core, which is dear in a nested VM. A store with a SeqCst
//! fence takes 7 ns, the light fence nothing. So a reader should go idle seldom, and spin some 20 us before it sleeps.
//!
//! This is the only file that knows `cfg(loom)`. Under loom both fences are SeqCst fences: the model then checks
//! the protocol on the assumption that membarrier and a compiler fence pair like two full fences, which is
//! what membarrier(2) promises.

#[cfg(loom)]
pub use modelled::*;
#[cfg(not(loom))]
pub use native::*;

#[cfg(not(loom))]
mod native {
    pub use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
    use core::sync::atomic::{compiler_fence, fence};
    pub use std::sync::{Mutex, MutexGuard};
    #[cfg(test)]
    pub use std::{sync::Arc, thread};

    /// Words are words: layouts may be asserted.
    pub const NATIVE: bool = true;
    /// Words of the arrival bitmap, of 64 lanes each; one summary bit per word.
    pub const BITMAP_WORDS: usize = 64;
    /// Places in the queue for a lane.
    pub const LANE_QUEUE_PLACES: usize = 64;

    const MEMBARRIER_CMD_GLOBAL_EXPEDITED: i32 = 1 << 1;
    const MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;
    const MEMBARRIER_CMD_PRIVATE_EXPEDITED: i32 = 1 << 3;
    const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

    fn membarrier(command: i32) -> bool {
        // SAFETY: membarrier takes three integers and touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    /// Registers this process as one whose threads other processes' heavy fences reach. `false`: the kernel
    /// has no membarrier, or forbids it.
    pub fn register_across_processes() -> bool {
        membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED)
    }

    /// Registers this process for [`heavy_fence_inside`].
    pub fn register_inside() -> bool {
        membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
    }

    /// A full fence on every running thread of every registered process. `false`: only on this thread. `full`: the other
    /// side pays itself, so that a fence here is enough.
    #[cold]
    pub fn heavy_fence(full: bool) -> bool {
        fence(Ordering::SeqCst);
        full || membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED)
    }

    /// A full fence on every running thread of this process. `false`: only on this thread.
    #[cold]
    pub fn heavy_fence_inside() -> bool {
        fence(Ordering::SeqCst);
        membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)
    }

    /// The other half of a heavy fence. `full`: one side has no membarrier, so we pay ourselves.
    #[inline(always)]
    pub fn light_fence(full: bool) {
        if full { fence(Ordering::SeqCst) } else { compiler_fence(Ordering::SeqCst) }
    }

    /// A word to sleep on, shared between processes.
    #[repr(transparent)]
    #[derive(Debug, Default)]
    pub struct Futex(AtomicU32);

    impl Futex {
        /// The word.
        #[inline(always)]
        pub fn word(&self) -> &AtomicU32 {
            &self.0
        }

        /// Sleeps while the word is `expected`, for at most `at_most_ns`. May return early.
        pub fn wait(&self, expected: u32, at_most_ns: u64) {
            let timeout = libc::timespec {
                tv_sec: (at_most_ns / 1_000_000_000).min(i64::MAX as u64) as libc::time_t,
                tv_nsec: (at_most_ns % 1_000_000_000) as libc::c_long,
            };
            // SAFETY: the word and the timeout live across the call; the kernel only reads them. Not the
            // private kind, since wakers are other processes.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.0.as_ptr(),
                    libc::FUTEX_WAIT,
                    expected,
                    &raw const timeout,
                    core::ptr::null::<u32>(),
                    0,
                );
            }
        }

        /// Wakes whoever sleeps.
        pub fn wake(&self) {
            // SAFETY: the kernel uses the address as a key only.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.0.as_ptr(),
                    libc::FUTEX_WAKE,
                    1,
                    core::ptr::null::<libc::timespec>(),
                    core::ptr::null::<u32>(),
                    0,
                );
            }
        }
    }

    /// Takes a lock; a panic of an earlier holder does not matter to what we guard.
    pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A number for the calling thread, never used by another one.
    #[inline]
    pub fn this_thread() -> u64 {
        use core::cell::Cell;
        static NEXT: AtomicU64 = AtomicU64::new(1);
        thread_local!(static NUMBER: Cell<u64> = const { Cell::new(0) });
        NUMBER.with(|number| {
            if number.get() == 0 {
                number.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            number.get()
        })
    }

    /// Gives the core away.
    pub fn yield_now() {
        std::thread::yield_now();
    }

    /// Tells the core that we spin.
    #[inline]
    pub fn spin_hint() {
        core::hint::spin_loop();
    }

    /// Plain memory of a slot on the heap; the model checker watches accesses to it.
    #[cfg(test)]
    #[derive(Debug)]
    pub struct Watched<T>(core::cell::UnsafeCell<T>);

    #[cfg(test)]
    impl<T> Watched<T> {
        /// Memory with this content.
        pub fn new(value: T) -> Watched<T> {
            Watched(core::cell::UnsafeCell::new(value))
        }
        /// For reading.
        pub fn with<R>(&self, look: impl FnOnce(*const T) -> R) -> R {
            look(self.0.get())
        }
        /// For writing.
        pub fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
            change(self.0.get())
        }
    }

    /// Runs a concurrent test often, for want of a model checker (that is `--cfg loom`).
    #[cfg(test)]
    pub fn explore(_preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
        for _ in 0..if cfg!(miri) { 3 } else { 300 } {
            test();
        }
    }
}

#[cfg(loom)]
#[allow(missing_docs)]
mod modelled {
    #[cfg(test)]
    pub use loom::sync::Arc;
    use loom::sync::Condvar;
    use loom::sync::atomic::fence;
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
    pub use loom::sync::{Mutex, MutexGuard};
    #[cfg(test)]
    pub use loom::thread;

    pub const NATIVE: bool = false;
    pub const BITMAP_WORDS: usize = 1;
    pub const LANE_QUEUE_PLACES: usize = 2;

    pub fn register_across_processes() -> bool {
        true
    }
    pub fn register_inside() -> bool {
        true
    }
    pub fn heavy_fence(_full: bool) -> bool {
        fence(Ordering::SeqCst);
        true
    }
    pub fn heavy_fence_inside() -> bool {
        fence(Ordering::SeqCst);
        true
    }
    pub fn light_fence(_full: bool) {
        fence(Ordering::SeqCst);
    }

    /// A futex that never times out, so that a lost wake-up is a deadlock, which loom reports.
    #[derive(Debug)]
    pub struct Futex {
        word: AtomicU32,
        mutex: Mutex<()>,
        sleepers: Condvar,
    }

    impl Default for Futex {
        fn default() -> Futex {
            Futex { word: AtomicU32::new(0), mutex: Mutex::new(()), sleepers: Condvar::new() }
        }
    }

    impl Futex {
        pub fn word(&self) -> &AtomicU32 {
            &self.word
        }
        pub fn wait(&self, expected: u32, _at_most_ns: u64) {
            let guard = self.mutex.lock().unwrap();
            // The kernel reads the word under its own lock, with full fences: the newest value.
            if self.word.fetch_add(0, Ordering::AcqRel) == expected {
                drop(self.sleepers.wait(guard).unwrap());
            }
        }
        pub fn wake(&self) {
            drop(self.mutex.lock().unwrap());
            self.sleepers.notify_one();
        }
    }

    pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }
    pub fn this_thread() -> u64 {
        // Not part of the model: any number that differs between the threads of one run.
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        loom::thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
        NUMBER.with(|number| *number)
    }
    pub fn yield_now() {
        loom::thread::yield_now();
    }
    pub fn spin_hint() {
        loom::thread::yield_now();
    }

    #[cfg(test)]
    #[derive(Debug)]
    pub struct Watched<T>(loom::cell::UnsafeCell<T>);

    #[cfg(test)]
    impl<T> Watched<T> {
        pub fn new(value: T) -> Watched<T> {
            Watched(loom::cell::UnsafeCell::new(value))
        }
        pub fn with<R>(&self, look: impl FnOnce(*const T) -> R) -> R {
            self.0.with(look)
        }
        pub fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
            self.0.with_mut(change)
        }
    }

    #[cfg(test)]
    pub fn explore(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(test);
    }
}
