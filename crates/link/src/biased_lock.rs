//! A biased lock: a lock for a value that one thread uses almost always and other threads rarely.
//!
//! It does not know what the value is. An MPI library usually calls from one thread but does not promise it. An
//! ordinary lock would cost two locked instructions for every call. So the lock is biased to one thread:
//! ```text
//! thread A, the owner:   its `busy` = 1, light fence, still the owner? -> has the value;  leaving: busy = 0
//! thread B, rarely:      locks; no owner; heavy fence; waits until A's busy is 0;
//!                        B is the owner from now on; unlocks
//! A, next time:          its `busy` = 1, light fence, not the owner -> busy = 0, and does as B did
//! ```
//! If A stores `busy` before B's heavy fence, B sees it and waits. Otherwise A sees that it is not the owner any
//! more. Each ownership has its own `busy` word, which is never used again. So a former owner that resumes late
//! writes to a word that nobody reads.
//!
//! After [`MAX_BIASES`] changes of ownership the threads evidently share the value. Then the biased lock becomes an
//! ordinary lock for good. Where the kernel has no `membarrier`, it is one from the start.
//!
//! A caller may hold a guard while it sleeps; other threads then wait as long. A thread must not enter again while it
//! holds a guard. That panics, or blocks for ever once this is an ordinary lock.

use crate::shm::sync::{
    AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, heavy_fence_inside, light_fence, lock,
    register_inside, spin_hint, this_thread, yield_now,
};
use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

/// Changes of ownership after which this becomes an ordinary lock.
pub const MAX_BIASES: usize = if crate::shm::sync::NATIVE { 16 } else { 2 };
/// `current` while no thread owns the value.
const UNBIASED: usize = usize::MAX;
/// `current` once this is an ordinary lock.
const PLAIN_LOCK: usize = usize::MAX - 1;
/// Polls of a busy owner before the waiting thread yields its core.
const SPINS: u32 = 100;

/// Promise of the callers about threads.
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

/// A value behind a biased lock.
#[derive(Debug)]
pub struct BiasedLock<T> {
    mode: Mode,
    /// Number of the current ownership, or [`UNBIASED`], or [`PLAIN_LOCK`].
    current: AtomicUsize,
    biases: Box<[Bias]>,
    /// Number of ownerships used up. Locked while the ownership changes, and by every user of an ordinary lock.
    used: Mutex<usize>,
    value: UnsafeCell<T>,
}

// SAFETY: `enter` gives out one guard at a time over all threads (see the text of the module). For a serialised lock
// the caller has promised it. So sharing the lock is moving the value.
unsafe impl<T: Send> Sync for BiasedLock<T> {}
// SAFETY: nothing here belongs to a thread.
unsafe impl<T: Send> Send for BiasedLock<T> {}

impl<T> BiasedLock<T> {
    /// For callers on any thread (`FI_THREAD_SAFE`).
    pub fn shared(value: T) -> BiasedLock<T> {
        let current = if register_inside() { UNBIASED } else { PLAIN_LOCK };
        BiasedLock::new(value, Mode::Shared, current)
    }

    /// For callers that never call at the same time (`FI_THREAD_DOMAIN`). Entering then costs nothing.
    ///
    /// # Safety
    /// No two guards may exist at the same time, on any threads. The actions of one thread must happen before
    /// those of the next one, as they do if the callers hold a lock.
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

    /// Takes the value. Other threads wait until the guard is dropped.
    ///
    /// # Panics
    /// If this thread already holds a guard. An ordinary lock may block instead.
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
            assert!(bias.busy.load(Ordering::Relaxed) == 0, "a thread entered the lock twice");
            bias.busy.store(1, Ordering::Relaxed);
            light_fence(false);
            // Acquire: pairs with the store of the thread that made this one the owner. The value does not need it,
            // since only this thread has used it since. But the accesses below must not move before this load.
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
            // `shared` has registered this process. A forked child is not registered, so it registers again. If the
            // kernel forbids `membarrier` later, there is no safe way to continue.
            assert!(
                heavy_fence_inside() || (register_inside() && heavy_fence_inside()),
                "the kernel now forbids membarrier, which it allowed when the lock was made"
            );
            let mut spins = 0;
            // Acquire: what the owner did with the value happens before what this thread does.
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

/// Access to the value until it is dropped.
pub struct Guard<'a, T> {
    lock: &'a BiasedLock<T>,
    release: Release<'a>,
    _this_thread_only: PhantomData<*mut ()>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is one guard at a time (see the text of the module, and the promise of `serialised`), and the
        // reference borrows from it.
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
            // Release: what this thread did happens before what the next owner does.
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
                // SAFETY: there is one guard at a time. Loom reports a race.
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
        assert_eq!(lock.current.load(Ordering::Relaxed), 5); // the sixth ownership; they count from 0
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
    #[should_panic(expected = "entered the lock twice")]
    fn entering_twice_in_one_thread_panics() {
        let lock = BiasedLock::shared(());
        let _guard = lock.enter();
        let _ = lock.enter();
    }

    #[test]
    fn a_serialised_lock_gives_access_without_locking() {
        // SAFETY: there is one guard at a time below.
        let lock = unsafe { BiasedLock::serialised(1) };
        *lock.enter() += 1;
        assert_eq!(*lock.enter(), 2);
    }
}
