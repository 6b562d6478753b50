//! Who runs the machine: ownership of a value that one thread uses nearly always, and others seldom or never.
//!
//! It does not know what the value is. An MPI library calls from one thread most often, and promises nothing; a lock would
//! cost two locked instructions for every call. So ownership is biased to a thread:
//! ```text
//! thread A, at home:   its `busy` = 1, light fence, still mine? -> in;  leaving: busy = 0
//! thread B, seldom:    lock; owner = nobody; heavy fence; waits until A's busy is 0;
//!                      owner = B from now on; unlock
//! A, next time:        its `busy` = 1, light fence, not mine -> busy = 0, and does as B did
//! ```
//! Either A's store of `busy` is before B's heavy fence, then B sees it and waits; or after, then A sees that it
//! is no longer the owner. Each tenure has a `busy` word of its own, never used again: a former owner that
//! wakes up late writes to a word that nobody looks at any more.
//!
//! After [`MAX_BIASES`] changes the threads evidently share: then it is an ordinary lock for good. The same from the beginning where
//! the kernel has no membarrier.
//!
//! A guard may be held while sleeping, but then another thread waits as long. Entering again while a guard of
//! the same thread lives is a bug and panics (as a lock it may block instead: never do it).

use crate::shm::sync::{
    AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, heavy_fence_inside, light_fence, lock,
    register_inside, spin_hint, this_thread, yield_now,
};
use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

/// How often ownership moves before it becomes a lock.
pub const MAX_BIASES: usize = if crate::shm::sync::NATIVE { 16 } else { 2 };
/// `owner` while it is nobody's.
const UNBIASED: usize = usize::MAX;
/// `owner` when it has become a lock.
const PLAIN_LOCK: usize = usize::MAX - 1;
/// Looks at a busy owner before the core is given away.
const SPINS: u32 = 100;

/// How the callers behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Serialised,
    Shared,
}

#[derive(Debug)]
#[repr(align(64))]
struct Bias {
    thread: AtomicU64,
    busy: AtomicU32,
}

/// A value with an owner.
#[derive(Debug)]
pub struct BiasedLock<T> {
    mode: Mode,
    /// Number of the current tenure, or [`UNBIASED`], or [`PLAIN_LOCK`].
    current: AtomicUsize,
    biases: Box<[Bias]>,
    /// Held while ownership moves, and by every user once it is a lock. The tenures used up.
    used: Mutex<usize>,
    value: UnsafeCell<T>,
}

// SAFETY: `enter` gives out one guard at a time over all threads (module text), or, when serialised, the maker
// has promised as much; so sharing an owner is moving the value.
unsafe impl<T: Send> Sync for BiasedLock<T> {}
// SAFETY: nothing here belongs to a thread.
unsafe impl<T: Send> Send for BiasedLock<T> {}

impl<T> BiasedLock<T> {
    /// For callers on any threads (`FI_THREAD_SAFE`).
    pub fn shared(value: T) -> BiasedLock<T> {
        let current = if register_inside() { UNBIASED } else { PLAIN_LOCK };
        BiasedLock::new(value, Mode::Shared, current)
    }

    /// For callers that never call at the same time (`FI_THREAD_DOMAIN`): entering costs nothing.
    ///
    /// # Safety
    /// At no time may two guards live, on whatever threads; and what one thread did must happen before what the
    /// next one does (as it does if the callers hold a lock).
    pub unsafe fn serialised(value: T) -> BiasedLock<T> {
        BiasedLock::new(value, Mode::Serialised, UNBIASED)
    }

    fn new(value: T, mode: Mode, current: usize) -> BiasedLock<T> {
        let bias = |_| Bias { thread: AtomicU64::new(0), busy: AtomicU32::new(0) };
        let biases = if mode == Mode::Shared { MAX_BIASES } else { 0 };
        BiasedLock {
            mode,
            current: AtomicUsize::new(current),
            biases: (0..biases).map(bias).collect(),
            used: Mutex::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the value; other threads wait until the guard is gone.
    ///
    /// # Panics
    /// If this thread has a guard already.
    #[inline]
    pub fn enter(&self) -> Guard<'_, T> {
        if self.mode == Mode::Serialised {
            return self.guard(Release::Nothing);
        }
        let thread = this_thread();
        let number = self.current.load(Ordering::Relaxed);
        if let Some(bias) = self.biases.get(number)
            && bias.thread.load(Ordering::Relaxed) == thread
        {
            assert!(bias.busy.load(Ordering::Relaxed) == 0, "entered twice by one thread");
            bias.busy.store(1, Ordering::Relaxed);
            light_fence(false);
            // Acquire: our own store or that of the thread that made us the owner; not needed for the value,
            // which only we have touched since then, but it keeps the accesses below.
            if self.current.load(Ordering::Acquire) == number {
                return self.guard(Release::Busy(&bias.busy));
            }
            bias.busy.store(0, Ordering::Release);
        }
        self.enter_slow_path(thread)
    }

    #[cold]
    fn enter_slow_path(&self, thread: u64) -> Guard<'_, T> {
        let mut used = lock(&self.used);
        let number = self.current.load(Ordering::Relaxed);
        if number == PLAIN_LOCK {
            return self.guard(Release::Lock(used));
        }
        self.current.store(UNBIASED, Ordering::Relaxed);
        if let Some(bias) = self.biases.get(number) {
            // Registered in `shared`; a kernel that forbids it later leaves no safe way on, nor does a forked child
            // in which it was forgotten, which registering again mends.
            assert!(
                heavy_fence_inside() || (register_inside() && heavy_fence_inside()),
                "membarrier was allowed and is no longer"
            );
            let mut spins = 0;
            // Acquire: what the owner did in there happens before what we do.
            while bias.busy.load(Ordering::Acquire) != 0 {
                spins += 1;
                if spins < SPINS { spin_hint() } else { yield_now() }
            }
        }
        let Some(bias) = self.biases.get(*used) else {
            self.current.store(PLAIN_LOCK, Ordering::Relaxed);
            return self.guard(Release::Lock(used));
        };
        bias.thread.store(thread, Ordering::Relaxed);
        bias.busy.store(1, Ordering::Relaxed);
        self.current.store(*used, Ordering::Release);
        *used += 1;
        drop(used);
        self.guard(Release::Busy(&bias.busy))
    }

    #[inline]
    fn guard<'a>(&'a self, release: Release<'a>) -> Guard<'a, T> {
        Guard { lock: self, release, _this_thread_only: PhantomData }
    }

    /// The value, from its only holder.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

enum Release<'a> {
    Nothing,
    Busy(&'a AtomicU32),
    #[expect(dead_code, reason = "held for its drop")]
    Lock(MutexGuard<'a, usize>),
}

/// Leave to use the value.
pub struct Guard<'a, T> {
    lock: &'a BiasedLock<T>,
    release: Release<'a>,
    _this_thread_only: PhantomData<*mut ()>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: one guard lives at a time (module text; the promise of `serialised`), and we borrow from it.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; the guard is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if let Release::Busy(busy) = self.release {
            // Release: what we did happens before what the next owner does.
            busy.store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::sync::{Arc, explore, thread};

    #[test]
    fn loom_two_threads_never_hold_a_guard_at_the_same_time() {
        explore(3, || {
            let lock = Arc::new(BiasedLock::shared(crate::shm::sync::Watched::new(0_u32)));
            let add = |lock: &BiasedLock<crate::shm::sync::Watched<u32>>| {
                // SAFETY: the guard is ours alone; under loom a race is found out.
                lock.enter().with_mut(|value| unsafe { *value += 1 });
            };
            let other = {
                let lock = Arc::clone(&lock);
                thread::spawn(move || {
                    add(&lock);
                    add(&lock);
                })
            };
            add(&lock);
            add(&lock);
            other.join().unwrap();
            // SAFETY: as above.
            assert_eq!(lock.enter().with(|value| unsafe { *value }), 4);
        });
    }

    #[test]
    fn four_threads_lose_no_update() {
        let lock = BiasedLock::shared(0_u64);
        let rounds = if cfg!(miri) { 50 } else { 100_000 };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        *lock.enter() += 1;
                    }
                });
            }
        });
        assert_eq!(lock.into_inner(), 4 * rounds);
    }

    #[test]
    fn the_bias_is_kept_until_max_biases_changes() {
        let lock = BiasedLock::shared(0_u64);
        for _ in 0..3 {
            *lock.enter() += 1;
            std::thread::scope(|scope| {
                scope.spawn(|| *lock.enter() += 1);
            });
        }
        assert_eq!(lock.current.load(Ordering::Relaxed), 5); // six tenures
        for _ in 0..20 {
            *lock.enter() += 1;
            std::thread::scope(|scope| {
                scope.spawn(|| *lock.enter() += 1);
            });
        }
        assert_eq!(lock.current.load(Ordering::Relaxed), PLAIN_LOCK);
        assert_eq!(lock.into_inner(), 46);
    }

    #[test]
    #[should_panic(expected = "entered twice")]
    fn entering_twice_in_one_thread_panics() {
        let lock = BiasedLock::shared(());
        let _guard = lock.enter();
        let _ = lock.enter();
    }

    #[test]
    fn a_serialised_lock_gives_access_without_locking() {
        // SAFETY: one guard at a time below.
        let lock = unsafe { BiasedLock::serialised(1) };
        *lock.enter() += 1;
        assert_eq!(*lock.enter(), 2);
    }
}
