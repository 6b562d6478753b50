//! A lock for a value that its owner uses all the time, and that a helper thread borrows rarely ([`helper_lock`]).
//!
//! The owner pays two stores and a load for each use, no locked instruction. The helper pays a fence on all cores that run
//! this process, and gets nothing while the owner is inside:
//! ```text
//! owner:    users = 1, light fence, borrowed? no -> has the value;  leaving: users = 0
//! helper:   borrowed = 1, heavy fence, users? 0 -> has the value;   leaving: borrowed = 0
//!                                             1 -> borrowed = 0, tries again later
//! owner:    users = 1, light fence, borrowed? yes -> waits until borrowed = 0
//! ```
//! If the owner stores `users` before the helper's heavy fence, the helper sees it and goes away. Otherwise the owner sees
//! `borrowed`. If both see each other, the helper goes away, and the owner waits for that.
//!
//! Other threads can be the owner one after the other, if something else orders them. A [`BiasedLock`] is for several
//! threads that all wait for the value: it becomes an ordinary lock when they often change.
//!
//! [`BiasedLock`]: crate::biased_lock::BiasedLock

use crate::shm::sync::{
    AtomicU32, Ordering, heavy_fence_inside, light_fence, register_inside, spin_hint, yield_now,
};
use core::cell::{Cell, UnsafeCell};
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Looks of an owner at a helper that has the value, before it yields its core.
const SPINS: u32 = 100;

#[derive(Debug)]
#[repr(align(64))]
struct Word(AtomicU32);

#[derive(Debug)]
struct Inner<T> {
    /// Guards of the owner. Only it stores.
    users: Word,
    /// The helper has the value, or wants it. Only it stores.
    borrowed: Word,
    /// There is no `membarrier`, so that the owner's fence is a full one.
    full_fences: bool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is used by the owner or by the helper, not by both at the same time (see the text of the module). Each
// is one thread at a time. So sharing this is moving the value between threads.
unsafe impl<T: Send> Sync for Inner<T> {}
// SAFETY: nothing here belongs to a thread.
unsafe impl<T: Send> Send for Inner<T> {}

/// Uses the value all the time. One thread at a time has it.
#[derive(Debug)]
pub struct Owner<T> {
    inner: Arc<Inner<T>>,
    _one_thread_at_a_time: PhantomData<Cell<()>>,
}

/// Borrows the value. One thread at a time has it.
#[derive(Debug)]
pub struct Helper<T> {
    inner: Arc<Inner<T>>,
    _one_thread_at_a_time: PhantomData<Cell<()>>,
}

/// A value, for its owner and a helper.
pub fn helper_lock<T>(value: T) -> (Owner<T>, Helper<T>) {
    let inner = Arc::new(Inner {
        users: Word(AtomicU32::new(0)),
        borrowed: Word(AtomicU32::new(0)),
        full_fences: !register_inside(),
        value: UnsafeCell::new(value),
    });
    let owner = Owner { inner: Arc::clone(&inner), _one_thread_at_a_time: PhantomData };
    (owner, Helper { inner, _one_thread_at_a_time: PhantomData })
}

impl<T> Owner<T> {
    /// The value. Waits while the helper has it, which is as long as the helper works on it.
    #[inline]
    pub fn enter(&mut self) -> OwnerMut<'_, T> {
        OwnerMut(self.look())
    }

    /// The value, for reading.
    #[inline]
    pub fn look(&self) -> OwnerRef<'_, T> {
        let inner = &*self.inner;
        let users = inner.users.0.load(Ordering::Relaxed);
        inner.users.0.store(users + 1, Ordering::Relaxed);
        light_fence(inner.full_fences);
        // Acquire: what the helper did happens before what follows.
        if inner.borrowed.0.load(Ordering::Acquire) != 0 {
            inner.wait();
        }
        OwnerRef(self)
    }
}

impl<T> Inner<T> {
    /// Waits until the helper has gone away. It does not come again while `users` is not 0.
    #[cold]
    fn wait(&self) {
        let mut spins = 0;
        while self.borrowed.0.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins < SPINS { spin_hint() } else { yield_now() }
        }
    }
}

impl<T> Helper<T> {
    /// The value. `None`: the owner has it now.
    pub fn borrow(&mut self) -> Option<HelperMut<'_, T>> {
        let inner = &*self.inner;
        // An owner that waits for `borrowed` to be 0 is inside. It should not meet the next attempt too.
        if inner.users.0.load(Ordering::Relaxed) != 0 {
            return None;
        }
        inner.borrowed.0.store(1, Ordering::Relaxed);
        // If the kernel forbids `membarrier` later, the owner's fence is too light for the helper.
        let is_fenced = heavy_fence_inside() || inner.full_fences;
        // Acquire: what the owner did happens before what follows.
        if is_fenced && inner.users.0.load(Ordering::Acquire) == 0 {
            return Some(HelperMut(self));
        }
        inner.borrowed.0.store(0, Ordering::Relaxed);
        None
    }
}

/// The value, read by its owner.
#[derive(Debug)]
pub struct OwnerRef<'a, T>(&'a Owner<T>);

/// The value, used by its owner.
#[derive(Debug)]
pub struct OwnerMut<'a, T>(OwnerRef<'a, T>);

/// The value, used by the helper.
#[derive(Debug)]
pub struct HelperMut<'a, T>(&'a mut Helper<T>);

impl<T> Deref for OwnerRef<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `users` is not 0 and the helper has gone away, so it does not have the value. An `OwnerMut` borrows the
        // owner exclusively, so no other guard of the owner changes the value.
        unsafe { &*self.0.inner.value.get() }
    }
}

impl<T> Drop for OwnerRef<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let users = &self.0.inner.users.0;
        // Release: what the owner did happens before what the helper does.
        users.store(users.load(Ordering::Relaxed) - 1, Ordering::Release);
    }
}

impl<T> Deref for OwnerMut<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for OwnerMut<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above. This guard borrows the owner exclusively, and was made from an exclusive borrow.
        unsafe { &mut *self.0.0.inner.value.get() }
    }
}

impl<T> Deref for HelperMut<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: `borrowed` is 1, and the owner had no guard after that. It waits before it uses a new one. This guard borrows
        // the helper exclusively.
        unsafe { &*self.0.inner.value.get() }
    }
}

impl<T> DerefMut for HelperMut<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed exclusively.
        unsafe { &mut *self.0.inner.value.get() }
    }
}

impl<T> Drop for HelperMut<'_, T> {
    fn drop(&mut self) {
        // Release: what the helper did happens before what the owner does.
        self.0.inner.borrowed.0.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::sync::{Watched, explore, thread};

    #[test]
    fn loom_owner_and_helper_never_have_the_value_at_the_same_time() {
        explore(4, || {
            let (mut owner, mut helper) = helper_lock(Watched::new(0_u32));
            // SAFETY: one of them has the value. Loom reports a race.
            let add = |value: &Watched<u32>| value.with_mut(|value| unsafe { *value += 1 });
            let other = thread::spawn(move || {
                let mut borrowed = 0;
                for _ in 0..2 {
                    if let Some(value) = helper.borrow() {
                        add(&value);
                        borrowed += 1;
                    }
                }
                borrowed
            });
            for _ in 0..2 {
                add(&owner.enter());
                // SAFETY: as above.
                let seen = owner.look().with(|value| unsafe { *value });
                assert!(seen > 0);
            }
            let borrowed = other.join().unwrap();
            // SAFETY: as above.
            assert_eq!(owner.look().with(|value| unsafe { *value }), 2 + borrowed);
        });
    }

    #[test]
    fn a_helper_gets_nothing_while_the_owner_has_a_guard() {
        let (mut owner, mut helper) = helper_lock(1_u32);
        assert_eq!(helper.borrow().map(|value| *value), Some(1));
        {
            let first = owner.look();
            let second = owner.look();
            drop(first); // not in order
            assert!(helper.borrow().is_none());
            assert_eq!(*second, 1);
        }
        *owner.enter() += 1;
        let value = helper.borrow().expect("the owner has none");
        assert_eq!(*value, 2);
        let waits = std::thread::scope(|scope| {
            let waiting = scope.spawn(move || *owner.enter());
            std::thread::sleep(std::time::Duration::from_millis(20));
            let waits = !waiting.is_finished();
            drop(value);
            assert_eq!(waiting.join().expect("no panic"), 2);
            waits
        });
        assert!(waits, "the owner waits for the helper");
    }

    #[test]
    fn two_threads_lose_no_update() {
        let (mut owner, mut helper) = helper_lock(0_u64);
        let rounds = if cfg!(miri) { 50 } else { 100_000 };
        let borrowed = std::thread::scope(|scope| {
            let other = scope.spawn(move || {
                let mut borrowed = 0;
                for _ in 0..rounds {
                    if let Some(mut value) = helper.borrow() {
                        *value += 1;
                        borrowed += 1;
                    }
                }
                borrowed
            });
            for _ in 0..rounds {
                *owner.enter() += 1;
            }
            other.join().expect("no panic")
        });
        assert_eq!(*owner.look(), rounds + borrowed);
    }
}
