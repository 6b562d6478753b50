//! The doorbell of a mailbox: how senders announce, and how the reader sleeps without missing anybody.
//!
//! It knows lanes by number and nothing of what is in them. Four parts, all in the header of the segment:
//! - a bitmap with one bit per lane and a summary with one bit per bitmap word: "something has come". A sender sets
//!   them only when its lane is not polled (see [`super::inbox`]); the reader takes them by exchange.
//! - `calls`, in the same line as the summary: something else than a packet wants the reader's attention.
//! - the `asleep` word: `4 * episode + stage`, stages awake (0), asleep (1), being woken (2).
//!
//! A worked exchange; R sleeps, A and B send:
//! ```text
//! R: asleep = 4e+1, heavy fence, looks again, nothing, waits while the word is 4e+1
//! A: publishes, light fence, sees 4e+1: makes it 4e+2, wakes, notes that it has woken episode e
//! B: publishes, light fence, sees 4e+2, has not woken episode e itself: wakes, notes it
//! R: up: asleep = 4e+4; finds both
//! ```
//! Why B wakes again: A may be stopped or killed between its exchange and its wake, and a sender that is must not
//! delay others. Each sender makes at most one system call per episode. Why the exchange: if A wakes when R
//! has looked but not yet begun to wait, the changed word makes the wait return at once. Episodes repeat
//! after 2^30 sleeps; a sender idle for exactly that many would omit one wake-up, and the sleep is bounded.
//!
//! A sender killed between the two announcements leaves a bit that nobody looks for until another sender of the
//! same 64 lanes rings: what it wrote may stay unread, as if it had died a moment earlier. Nobody else relies on its
//! summary bit, since every announcement sets both.

use super::ring::Line;
use super::sync::{AtomicU32, AtomicU64, BITMAP_WORDS, Futex, Ordering, heavy_fence, light_fence};

const STAGES: u32 = 3;
const ASLEEP: u32 = 1;

/// The most lanes that a mailbox can have.
pub const MAX_LANES: u32 = BITMAP_WORDS as u32 * 64;
/// How long a sleep may be when the heavy fence failed (membarrier forbidden after we began), so that a missed
/// wake-up costs at most this.
const UNFENCED_SLEEP_NS: u64 = 1_000_000;

/// What a call is about. Hints: who is called looks for itself.
pub mod call {
    /// Somebody waits for a lane here.
    pub const NEWCOMER: u32 = 1;
    /// The reader is, elsewhere, asked to leave, or is given a lane.
    pub const AS_SENDER: u32 = 2;
}

/// What a reader looks at in every poll.
#[repr(C)]
#[derive(Debug, Default)]
struct Signals {
    summary: AtomicU64,
    calls: AtomicU32,
}

/// The doorbell, as it lies in the header.
#[repr(C)]
#[derive(Debug)]
pub struct Doorbell {
    asleep: Line<Futex>,
    signals: Line<Signals>,
    bitmap: [AtomicU64; BITMAP_WORDS],
}

impl Default for Doorbell {
    fn default() -> Doorbell {
        Doorbell {
            asleep: Line::default(),
            signals: Line::default(),
            bitmap: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

/// The reader's count of its sleeps, times 4.
#[derive(Clone, Copy, Debug, Default)]
pub struct Episode(u32);

/// The last sleep that a sender has ended itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct WokenEpisode(u32);

impl Doorbell {
    /// First half of announcing: the lane's bit. Release, as the second half: who sees the bit sees the slot.
    #[inline]
    pub fn announce_lane(&self, lane: u32) {
        self.bitmap[(lane / 64) as usize % BITMAP_WORDS].fetch_or(1 << (lane % 64), Ordering::Release);
    }

    /// Second half: the summary bit.
    #[inline]
    pub fn announce_summary(&self, lane: u32) {
        self.signals.0.summary.fetch_or(1 << (lane / 64 % 64), Ordering::Release);
    }

    /// Wakes the reader if it sleeps. Called after publishing, announcing and a light fence.
    #[inline]
    pub fn wake(&self, woken: &mut WokenEpisode) {
        let word = self.asleep.0.word().load(Ordering::Relaxed);
        if word & STAGES != 0 {
            self.wake_sleeper(word, woken);
        }
    }

    #[cold]
    fn wake_sleeper(&self, word: u32, woken: &mut WokenEpisode) {
        if self.mark_woken(word, woken) {
            self.wake_futex();
        }
    }

    /// First half of waking: makes a wait that has not begun return at once. `false`: we have woken this episode before.
    fn mark_woken(&self, word: u32, woken: &mut WokenEpisode) -> bool {
        let episode = word | STAGES; // never 0, so that a new sender has woken nobody
        if woken.0 == episode {
            return false;
        }
        woken.0 = episode;
        if word & STAGES == ASLEEP {
            // If it fails, the reader has got up or another sender has been quicker: both are fine.
            let _ =
                self.asleep.0.word().compare_exchange(word, word + 1, Ordering::AcqRel, Ordering::Relaxed);
        }
        true
    }

    /// Second half: the system call.
    fn wake_futex(&self) {
        self.asleep.0.wake();
    }

    /// The halves one by one, for tests that stop a sender between them.
    #[cfg(test)]
    pub fn mark_woken_only(&self, woken: &mut WokenEpisode) -> bool {
        let word = self.asleep.0.word().load(Ordering::Relaxed);
        word & STAGES != 0 && self.mark_woken(word, woken)
    }

    /// See [`Doorbell::mark_woken_only`].
    #[cfg(test)]
    pub fn wake_futex_only(&self) {
        self.wake_futex();
    }

    /// Whether anybody has announced anything.
    #[inline]
    pub fn announced(&self) -> bool {
        // Two words of one line, one branch.
        let calls = self.signals.0.calls.load(Ordering::Relaxed);
        self.signals.0.summary.load(Ordering::Relaxed) | u64::from(calls) != 0
    }

    /// Whether somebody has called.
    #[inline]
    pub fn called(&self) -> bool {
        self.signals.0.calls.load(Ordering::Relaxed) != 0
    }

    /// Calls the reader about `what`, also if it sleeps. Seldom, so it pays for a full fence.
    pub fn call_about(&self, what: u32) {
        self.signals.0.calls.fetch_or(what, Ordering::Release);
        light_fence(true); // between the call and `asleep`
        self.wake(&mut WokenEpisode::default());
    }

    /// Takes all calls.
    pub fn take_calls(&self) -> u32 {
        self.signals.0.calls.swap(0, Ordering::Acquire)
    }

    /// Takes all announcements.
    pub fn take(&self, mut lane_announced: impl FnMut(u32)) {
        let mut words = self.signals.0.summary.swap(0, Ordering::Acquire);
        while words != 0 {
            let word = words.trailing_zeros();
            words &= words - 1;
            let mut lanes = self.bitmap[word as usize % BITMAP_WORDS].swap(0, Ordering::Acquire);
            while lanes != 0 {
                lane_announced(word * 64 + lanes.trailing_zeros());
                lanes &= lanes - 1;
            }
        }
    }

    /// Sleeps until woken, at most `at_most_ns`, unless `anything` has come. The reader's alone, with its own count
    /// of episodes: what stands in the word may be anything. `full_fences`: all senders pay full fences.
    pub fn sleep(
        &self,
        episode: &mut Episode,
        full_fences: bool,
        at_most_ns: u64,
        anything: impl FnOnce() -> bool,
    ) {
        let word = self.asleep.0.word();
        let asleep = episode.0 | ASLEEP;
        word.store(asleep, Ordering::Relaxed);
        let at_most_ns =
            if heavy_fence(full_fences) { at_most_ns } else { at_most_ns.min(UNFENCED_SLEEP_NS) };
        if !anything() {
            self.asleep.0.wait(asleep, at_most_ns);
        }
        episode.0 = episode.0.wrapping_add(STAGES + 1);
        word.store(episode.0, Ordering::Relaxed);
    }
}
