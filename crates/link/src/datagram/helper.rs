//! The helper of a link: a thread that does what waits for the next poll while the program does not poll ([`run`]). A packet
//! in an open bundle is the rest of a completed send, so it must not wait until the program has computed.
//!
//! ```text
//! owner    appends to a bundle; changes: 1         wakes the helper, which sleeps
//! helper   sees 1; TICK later still 1              borrows the link, sends the bundle; changes: 2
//! helper   TICK later still 2                      sleeps
//!
//! owner    appends, polls, appends, polls ...      changes: 3, 4, 5, 6 ...
//! helper   sees another number after each TICK     the program polls itself: does nothing
//! ```
//! So the owner makes a system call when it appends after a pause, not for each message. While it uses the link, the helper
//! costs a look every LONGEST_TICK. What waits leaves after two ticks, unless the network is busy or the window is full.
//!
//! The owner stores `changes` and then reads whether the helper sleeps. The helper says that it sleeps and then reads
//! `changes`. There is a fence in between, a light one at the owner ([`crate::shm::sync`]), so no wake-up is lost.
//!
//! This file does not know links.

use crate::helper_lock::Helper;
use crate::shm::sync::{
    AtomicU32, AtomicU64, Futex, Ordering, heavy_fence_inside, light_fence, register_inside, sleep,
};
use core::time::Duration;

/// The time between two looks after a sleep. Half of the longest time that something waits then.
const TICK: Duration = Duration::from_micros(500);
/// The time between two looks while the program uses the link itself: each look in vain doubles it up to this bound. A look
/// takes a core from a rank that spins, which makes its long messages slower.
const LONGEST_TICK: Duration = Duration::from_millis(5);
/// The longest sleep. Unit: ns.
const LONGEST_SLEEP_NS: u64 = 3_600_000_000_000;
/// The same after a failed heavy fence (`membarrier` was forbidden after the start), when a wake-up can be lost. Unit: ns.
const UNFENCED_SLEEP_NS: u64 = 1_000_000;

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// What the two threads tell each other.
#[derive(Debug)]
pub(super) struct Notice {
    /// Odd: something waits for the next poll. Whoever has the link stores.
    changes: AtomicU64,
    asleep: Futex,
    stop: AtomicU32,
    /// There is no `membarrier`, so that the owner's fence is a full one.
    full_fences: bool,
}

impl Notice {
    pub(super) fn new() -> Notice {
        Notice {
            changes: AtomicU64::new(0),
            asleep: Futex::default(),
            stop: AtomicU32::new(0),
            full_fences: !register_inside(),
        }
    }

    /// Notes whether something waits. Only whoever has the link may call this.
    #[inline]
    pub(super) fn note(&self, waits: bool) {
        let changes = self.changes.load(Ordering::Relaxed);
        if (changes % 2 == 1) != waits {
            self.changes.store(changes + 1, Ordering::Relaxed);
            if waits {
                light_fence(self.full_fences);
                if self.asleep.word().load(Ordering::Relaxed) == ASLEEP {
                    self.wake();
                }
            }
        }
    }

    /// The helper ends soon.
    pub(super) fn stop(&self) {
        self.stop.store(1, Ordering::Release);
        light_fence(true);
        self.wake();
    }

    #[cold]
    fn wake(&self) {
        self.asleep.word().store(AWAKE, Ordering::Release);
        self.asleep.wake();
    }

    /// The helper sleeps until something waits, or until it is stopped.
    fn sleep(&self) {
        self.asleep.word().store(ASLEEP, Ordering::Relaxed);
        let is_fenced = heavy_fence_inside() || self.full_fences;
        let at_most_ns = if is_fenced { LONGEST_SLEEP_NS } else { UNFENCED_SLEEP_NS };
        let has_work = self.changes.load(Ordering::Relaxed) % 2 == 1 || self.is_stopped();
        if !has_work {
            self.asleep.wait(ASLEEP, at_most_ns);
        }
        self.asleep.word().store(AWAKE, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire) != 0
    }
}

/// The thread. `send` sends what waits, and returns whether something still waits.
pub(super) fn run<T>(mut helper: Helper<T>, notice: &Notice, send: impl Fn(&mut T) -> bool) {
    let (mut seen, mut tick) = (0, TICK);
    while !notice.is_stopped() {
        let changes = notice.changes.load(Ordering::Relaxed);
        if changes == seen {
            tick = TICK;
            if changes.is_multiple_of(2) {
                notice.sleep();
                seen = notice.changes.load(Ordering::Relaxed);
            } else if let Some(mut value) = helper.borrow() {
                let waits = send(&mut value);
                notice.note(waits);
            }
        } else {
            seen = changes;
            tick = (2 * tick).min(LONGEST_TICK);
        }
        sleep(tick);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::helper_lock::helper_lock;
    use crate::shm::sync::{Arc, Watched, explore, thread, yield_now};

    /// What waits in the bundle of a link.
    struct Bundle(Watched<u32>);

    impl Bundle {
        fn append(&self) {
            // SAFETY: whoever calls has the lock. Loom reports a race.
            self.0.with_mut(|open| unsafe { *open += 1 });
        }

        fn send(&self) -> u64 {
            // SAFETY: as above.
            self.0.with_mut(|open| unsafe { core::mem::take(&mut *open) }).into()
        }
    }

    /// The owner appends, sends some of it itself, and then calls the link no more. Loom reports a lost wake-up as a
    /// deadlock: the model's futex never times out. The owner does not look at the link while it waits: loom would let the
    /// helper meet it there for ever.
    #[test]
    fn loom_what_waits_leaves_without_its_owner() {
        explore(2, || {
            let (mut owner, helper) = helper_lock(Bundle(Watched::new(0)));
            let (notice, left) = (Arc::new(Notice::new()), Arc::new(AtomicU64::new(0)));
            let thread = {
                let (notice, left) = (Arc::clone(&notice), Arc::clone(&left));
                thread::spawn(move || {
                    run(helper, &notice, |bundle: &mut Bundle| {
                        left.fetch_add(bundle.send(), Ordering::AcqRel);
                        false
                    });
                })
            };
            for sends_itself in [true, false] {
                let bundle = owner.enter();
                bundle.append();
                notice.note(true);
                drop(bundle);
                if sends_itself {
                    let bundle = owner.enter();
                    left.fetch_add(bundle.send(), Ordering::AcqRel);
                    notice.note(false);
                }
            }
            while left.load(Ordering::Acquire) < 2 {
                yield_now();
            }
            notice.stop();
            thread.join().unwrap();
        });
    }
}
