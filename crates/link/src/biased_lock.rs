//! A biased lock: a lock for a value that one thread uses almost always and other threads rarely. The provider locks
//! its domains with it.
//!
//! An MPI library usually calls from one thread but does not promise it. An ordinary lock would cost two locked
//! instructions for every call. So the lock is biased to one thread:
//! ```text
//! thread A, the owner:   its `busy` = 1, light fence, still the owner? -> has the value;  leaving: busy = 0
//! thread B, rarely:      locks; no owner; heavy fence; waits until A's busy is 0;
//!                        B is the owner from now on; unlocks
//! A, next time:          its `busy` = 1, light fence, not the owner -> busy = 0, and does as B did
//! ```
//! If A stores `busy` before B's heavy fence, B sees it and waits. Otherwise A sees that it is not the owner any more.
//! Each ownership has its own `busy` word, which is never used again. So a former owner that resumes late writes to a
//! word that nobody reads.
//!
//! A *serialised* lock is for callers that promise one call at a time. It has no `busy`: it only notes which thread
//! entered last, so entering compares one word. One exception breaks the promise. An exit handler runs while another
//! thread may be inside. It uses [`BiasedLock::interrupt`]:
//! ```text
//! exit handler E:   takes the ownership away from A; waits until any thread arrives, or a time limit is over
//! A, next time:     not the owner -> the slow path: reports its arrival, and stays there
//! E:                no call is under way, because A's call has ended and callers do not overlap -> has the value
//! ```
//! E concludes nothing from the absence of a mark, so it needs no fence. If E itself was the last to enter, no other
//! thread can be inside: it would have become the owner.
//!
//! After [`MAX_BIASES`] changes of ownership the threads evidently share the value. Then the biased lock becomes an
//! ordinary lock for good. Where the kernel has no `membarrier`, it is one from the start.
//!
//! A caller may hold a guard while it sleeps; other threads then wait as long. A thread must not enter again while it
//! holds a guard. A biased lock panics then, and an ordinary one blocks for ever. A serialised lock does not notice.

use crate::shm::sync::{
    AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, heavy_fence_inside, light_fence, lock,
    park, register_inside, sleep, spin_hint, this_thread, yield_now,
};
use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::time::Duration;

/// Changes of ownership after which this becomes an ordinary lock.
pub const MAX_BIASES: usize = if crate::shm::sync::NATIVE { 16 } else { 2 };
/// `current` while no thread owns the value.
const UNBIASED: usize = usize::MAX;
/// `current` once this is an ordinary lock.
const PLAIN_LOCK: usize = usize::MAX - 1;
/// `owner` while no thread owns a serialised lock, or if the lock is not serialised. No thread has this number.
const NO_THREAD: usize = 0;
/// Time between two looks of [`BiasedLock::interrupt`] for an arrival.
const INTERRUPT_POLL: Duration = Duration::from_millis(1);
/// Polls of a busy owner before the waiting thread yields its core.
const SPINS: u32 = 100;

/// State of a serialised lock, for a change of its callers.
#[derive(Debug, Default)]
struct Serialised {
    /// Some thread has entered.
    entered: bool,
    /// [`BiasedLock::interrupt`] was called: threads that are not the owner stay in the slow path.
    interrupted: bool,
    /// Such a thread has arrived.
    arrived: bool,
}

/// A number that no other running thread has, for serialised locks. Not 0.
#[inline(always)]
fn calling_thread() -> usize {
    if crate::shm::sync::NATIVE { crate::cores::this_thread() } else { this_thread() as usize }
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
    /// The thread that entered a serialised lock last.
    owner: AtomicUsize,
    /// `None`: the lock is shared.
    serialised: Option<Mutex<Serialised>>,
    /// Called when a second thread enters, and after each further change, until this becomes an ordinary lock.
    on_change: fn(&mut T),
    /// Number of the current ownership, or [`UNBIASED`], or [`PLAIN_LOCK`].
    current: AtomicUsize,
    biases: Box<[Bias]>,
    /// Number of ownerships used up. Locked while the ownership changes, and by every user of an ordinary lock.
    used: Mutex<usize>,
    value: UnsafeCell<T>,
}

// SAFETY: `enter` and `interrupt` give out one guard at a time over all threads (see the text of the module). For a
// serialised lock the caller has promised it for `enter`. So sharing the lock is moving the value.
unsafe impl<T: Send> Sync for BiasedLock<T> {}
// SAFETY: nothing here belongs to a thread.
unsafe impl<T: Send> Send for BiasedLock<T> {}

impl<T> BiasedLock<T> {
    /// For callers on any thread (`FI_THREAD_SAFE`). `on_change` is called when a second thread enters, and after further
    /// changes of the calling thread. An ordinary lock does not notice them ([`BiasedLock::notices_threads`]).
    pub fn shared(value: T, on_change: fn(&mut T)) -> BiasedLock<T> {
        let current = if register_inside() { UNBIASED } else { PLAIN_LOCK };
        BiasedLock::new(value, None, on_change, current)
    }

    /// Whether it notices that another thread enters: it is no ordinary lock.
    pub fn notices_threads(&self) -> bool {
        self.current.load(Ordering::Relaxed) != PLAIN_LOCK
    }

    /// For callers that never call at the same time (`FI_THREAD_DOMAIN`). Entering then costs one comparison.
    /// `on_change` is called when a second thread enters, and after each further change of the calling thread. A
    /// thread that began after another one has ended may count as the same.
    ///
    /// # Safety
    /// No two guards of [`BiasedLock::enter`] may exist at the same time, on any threads. The actions of one thread
    /// must happen before those of the next one, as they do if the callers hold a lock. Guards of
    /// [`BiasedLock::interrupt`] are exempt.
    pub unsafe fn serialised(value: T, on_change: fn(&mut T)) -> BiasedLock<T> {
        BiasedLock::new(value, Some(Mutex::new(Serialised::default())), on_change, UNBIASED)
    }

    fn new(
        value: T,
        serialised: Option<Mutex<Serialised>>,
        on_change: fn(&mut T),
        current: usize,
    ) -> BiasedLock<T> {
        let bias = |_| Bias { thread: AtomicU64::new(0), busy: AtomicU32::new(0) };
        let biases = if serialised.is_none() { MAX_BIASES } else { 0 };
        BiasedLock {
            owner: AtomicUsize::new(NO_THREAD),
            serialised,
            on_change,
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
        if self.owner.load(Ordering::Relaxed) == calling_thread() {
            return self.guard(Release::Nothing);
        }
        self.enter_as_other()
    }

    /// [`BiasedLock::enter`] of a shared lock, or by another thread than the last one.
    #[inline]
    fn enter_as_other(&self) -> Guard<'_, T> {
        if let Some(serialised) = &self.serialised {
            return self.enter_serialised(serialised);
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

    /// Enters a serialised lock that another thread entered last. Never returns if the lock was interrupted.
    #[cold]
    fn enter_serialised(&self, serialised: &Mutex<Serialised>) -> Guard<'_, T> {
        let mut state = lock(serialised);
        if state.interrupted {
            state.arrived = true;
            drop(state);
            loop {
                park();
            }
        }
        let changes = core::mem::replace(&mut state.entered, true);
        self.owner.store(calling_thread(), Ordering::Relaxed);
        drop(state);
        let mut guard = self.guard(Release::Nothing);
        if changes {
            (self.on_change)(&mut guard);
        }
        guard
    }

    /// Takes the value at the end of the process, while other threads may still enter. Other threads never enter
    /// again, except with a shared lock: then this is [`BiasedLock::enter`]. Waits for a call that may be under way, at
    /// most `limit`. `alone`: the process has no other thread, so no call is under way.
    ///
    /// `None`: a call of another thread may still be under way.
    pub fn interrupt(&self, limit: Duration, alone: bool) -> Option<Guard<'_, T>> {
        let Some(serialised) = &self.serialised else { return Some(self.enter()) };
        let thread = calling_thread();
        let mut state = lock(serialised);
        state.interrupted = true;
        let owner = self.owner.load(Ordering::Relaxed);
        if owner != thread && owner != NO_THREAD && !alone {
            self.owner.store(NO_THREAD, Ordering::Relaxed);
            let began = std::time::Instant::now();
            while !state.arrived {
                if began.elapsed() >= limit {
                    return None;
                }
                drop(state);
                sleep(INTERRUPT_POLL);
                state = lock(serialised);
            }
        }
        state.entered = true;
        self.owner.store(thread, Ordering::Relaxed);
        drop(state);
        Some(self.guard(Release::Nothing))
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
            let mut guard = self.guard(Release::Lock(used));
            (self.on_change)(&mut guard);
            return guard;
        };
        let changes = *used > 0;
        bias.thread.store(thread, Ordering::Relaxed);
        bias.busy.store(1, Ordering::Relaxed);
        self.current.store(*used, Ordering::Release);
        *used += 1;
        drop(used);
        let mut guard = self.guard(Release::Busy(&bias.busy));
        if changes {
            (self.on_change)(&mut guard);
        }
        guard
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
        // SAFETY: there is one guard at a time, and the reference borrows from it. Shared lock: see the text of the
        // module. Serialised lock: the caller of `serialised` has promised it for `enter`. A guard of `interrupt` exists
        // only after the last call of `enter` has ended, and other threads do not enter any more.
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
            let lock = Arc::new(BiasedLock::shared(crate::shm::sync::Watched::new(0_u32), |_| ()));
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

    /// A thread calls again and again until an exit handler stops it. Loom reports a race if a call is under way while
    /// the handler has the value, and an endless run if the handler waits for a thread that cannot arrive.
    #[test]
    #[cfg_attr(miri, ignore = "Miri reports threads that never end")]
    fn loom_an_exit_handler_has_the_value_alone() {
        type Lock = BiasedLock<crate::shm::sync::Watched<u32>>;
        // SAFETY: there is one guard at a time. Loom reports a race.
        let add = |lock: &Lock| lock.enter().with_mut(|value| unsafe { *value += 1 });
        for handler_has_entered in [false, true] {
            explore(3, move || {
                let value = crate::shm::sync::Watched::new(0_u32);
                // SAFETY: the handler's thread enters only before it starts the other one.
                let lock = Arc::new(unsafe { BiasedLock::serialised(value, |_| ()) });
                if handler_has_entered {
                    add(&lock);
                }
                let caller = {
                    let lock = Arc::clone(&lock);
                    move || loop {
                        add(&lock);
                        yield_now();
                    }
                };
                thread::spawn(move || crate::shm::sync::until_parked(caller));
                let guard = lock.interrupt(Duration::MAX, false).expect("the call ends");
                // SAFETY: as above.
                guard.with_mut(|value| unsafe { *value += 1 });
            });
        }
    }

    #[test]
    fn four_threads_lose_no_update() {
        let lock = BiasedLock::shared(0_u64, |_| ());
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
        let lock = BiasedLock::shared(0_u64, |_| ());
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
        let lock = BiasedLock::shared((), |()| ());
        let _guard = lock.enter();
        let _ = lock.enter();
    }

    #[test]
    fn a_lock_notes_each_change_of_the_thread() {
        let note: fn(&mut (u64, u64)) = |(_, changes)| *changes += 1;
        // SAFETY: there is one guard at a time below.
        let serialised = unsafe { BiasedLock::serialised((0, 0), note) };
        for lock in [serialised, BiasedLock::shared((0, 0), note)] {
            assert!(lock.notices_threads());
            lock.enter().0 += 1;
            lock.enter().0 += 1;
            assert_eq!(*lock.enter(), (2, 0));
            std::thread::scope(|scope| {
                scope.spawn(|| lock.enter().0 += 1);
            });
            assert_eq!(*lock.enter(), (3, 2));
        }
    }

    /// A thread that calls again and again, as a progress thread does, until the process ends.
    fn call_forever(lock: &'static BiasedLock<u64>, inside: &std::sync::atomic::AtomicBool) -> ! {
        loop {
            let mut guard = lock.enter();
            inside.store(true, Ordering::SeqCst);
            *guard += 1;
            std::thread::sleep(Duration::from_millis(2));
            inside.store(false, Ordering::SeqCst);
            drop(guard);
        }
    }

    fn leaked() -> &'static BiasedLock<u64> {
        // SAFETY: in the tests below one thread at a time enters.
        Box::leak(Box::new(unsafe { BiasedLock::serialised(0, |_| ()) }))
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri reports threads that never end")]
    fn an_exit_handler_waits_until_a_call_is_over_and_stops_further_calls() {
        static INSIDE: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
        for _ in 0..20 {
            let lock = leaked();
            std::thread::spawn(|| call_forever(lock, &INSIDE));
            while !INSIDE.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let mut guard = lock.interrupt(Duration::from_secs(10), false).expect("the call ends");
            assert!(!INSIDE.load(Ordering::SeqCst), "a call is under way");
            let calls = *guard;
            *guard += 1;
            drop(guard);
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(*lock.enter(), calls + 1, "the handler's thread enters as before, no other one does");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri reports threads that never end")]
    fn an_exit_handler_gives_up_a_call_that_does_not_end() {
        let lock = leaked();
        let (entered, has_entered) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let guard = lock.enter();
            entered.send(()).expect("the test waits");
            std::thread::sleep(Duration::from_secs(3600));
            drop(guard);
        });
        has_entered.recv().expect("it has entered");
        assert!(lock.interrupt(Duration::from_millis(20), false).is_none());
    }

    #[test]
    fn an_exit_handler_does_not_wait_if_its_thread_entered_last_or_is_alone() {
        let lock = leaked();
        assert!(lock.interrupt(Duration::ZERO, false).is_some(), "nobody has entered");
        let lock = leaked();
        *lock.enter() += 1;
        assert!(lock.interrupt(Duration::ZERO, false).is_some());
        let lock = leaked();
        std::thread::spawn(move || *lock.enter() += 1).join().expect("no panic");
        assert!(lock.interrupt(Duration::ZERO, true).is_some());
    }
}
