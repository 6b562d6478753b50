//! The doorbell of a mailbox: senders announce packets with it, and the reader sleeps at it without missing one.
//!
//! It knows lanes by number and nothing about their contents. It has four parts, all in the header of the segment:
//! - a bitmap with one bit per lane, and a summary with one bit per bitmap word. A sender sets its two bits only when
//!   its lane is not polled (see [`super::inbox`]). The reader takes them with an exchange.
//! - `calls`, in the same line as the summary: requests to the reader other than packets.
//! - the `asleep` word: `4 * episode + stage`, with the stages awake (0), asleep (1) and being woken (2).
//!
//! An example: reader R sleeps, senders A and B send:
//! ```text
//! R: asleep = 4e+1, heavy fence, polls again, nothing, waits while the word is 4e+1
//! A: publishes, light fence, sees 4e+1: makes it 4e+2, wakes R, notes that it has woken episode e
//! B: publishes, light fence, sees 4e+2, has not woken episode e itself: wakes R, notes it
//! R: runs: asleep = 4e+4; finds both packets
//! ```
//! B wakes R too, because A may be stopped or killed between its exchange and its wake-up, and must not delay others.
//! For its packets, each sender makes at most one system call per episode. The exchange matters when A wakes R before R
//! waits: the changed word makes the wait return at once. Episodes repeat after 2^30 sleeps. A sender that was idle for
//! exactly that many omits one wake-up; the sleep then ends at its time limit.
//!
//! The reader can also sleep elsewhere, for example in `poll(2)`. Then another thread of its process, the watcher, sleeps
//! at the futex in its place ([`Doorbell::look`], [`Doorbell::sleep_since`]). Senders notice no difference. Only one
//! thread may wait at the futex, because a wake-up wakes one. So a reader with a watcher never waits there itself:
//! ```text
//! watcher: looks (4e), waits while the word is 4e
//! R: asleep = 4e+1, heavy fence, polls again, nothing, poll(2)
//! A: publishes, light fence, sees 4e+1: makes it 4e+2, wakes the watcher
//! watcher: looks, sees 4e+2, which it has not reported: makes R's descriptor readable
//! ```
//!
//! A sender killed between the two announcements leaves a lane bit without its summary bit. The reader finds it when
//! another sender of the same 64 lanes rings. Until then the packet is unread, as if the sender had died a moment
//! earlier. No other sender relies on that summary bit, because every announcement sets both bits.

use super::ring::CacheLine;
use super::sync::{AtomicU32, AtomicU64, BITMAP_WORDS, Futex, Ordering, heavy_fence, light_fence};

const STAGES: u32 = 3;
const ASLEEP: u32 = 1;
const BEING_WOKEN: u32 = 2;

/// Bound on the lanes of a mailbox.
pub const MAX_LANES: u32 = BITMAP_WORDS as u32 * 64;
/// Bound on a sleep after a failed heavy fence (`membarrier` was forbidden after the start). A missed wake-up then
/// costs at most this time.
const UNFENCED_SLEEP_NS: u64 = 1_000_000;

/// The reasons for a call. They are hints: the called endpoint checks for itself.
pub mod call {
    /// A newcomer waits for a lane in this mailbox.
    pub const NEWCOMER: u32 = 1;
    /// The endpoint is asked to detach from another mailbox, or has got a lane there.
    pub const AS_SENDER: u32 = 2;
    /// Something has arrived over another link of the endpoint, or another thread wants to wake it.
    pub const BELL: u32 = 4;
}

/// The words that a reader checks in every poll.
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
    asleep: CacheLine<Futex>,
    signals: CacheLine<Signals>,
    bitmap: [AtomicU64; BITMAP_WORDS],
}

impl Default for Doorbell {
    fn default() -> Doorbell {
        Doorbell {
            asleep: CacheLine::default(),
            signals: CacheLine::default(),
            bitmap: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

/// Number of the reader's sleep, times 4.
#[derive(Clone, Copy, Debug, Default)]
pub struct Episode(u32);

/// The state of the reader's sleep as its watcher has seen it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look(u32);

impl Look {
    /// Whether a sender has woken the reader in this episode.
    pub fn is_woken(self) -> bool {
        self.0 & STAGES == BEING_WOKEN
    }
}

/// The last episode that this sender has woken.
#[derive(Clone, Copy, Debug, Default)]
pub struct WokenEpisode(u32);

impl Doorbell {
    /// First half of an announcement: the lane's bit. Both halves are Release, so that a reader who sees the bit sees
    /// the slot.
    #[inline]
    pub fn announce_lane(&self, lane: u32) {
        self.bitmap[(lane / 64) as usize % BITMAP_WORDS].fetch_or(1 << (lane % 64), Ordering::Release);
    }

    /// Second half of an announcement: the summary bit.
    #[inline]
    pub fn announce_summary(&self, lane: u32) {
        self.signals.0.summary.fetch_or(1 << (lane / 64 % 64), Ordering::Release);
    }

    /// Wakes the reader if it sleeps. Call this after publishing, announcing and a light fence.
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

    /// First half of a wake-up: makes a wait that has not begun yet return at once. `false`: this sender has woken
    /// the episode before.
    fn mark_woken(&self, word: u32, woken: &mut WokenEpisode) -> bool {
        let episode = word | STAGES; // never 0, so that a new sender has woken no episode
        if woken.0 == episode {
            return false;
        }
        woken.0 = episode;
        if word & STAGES == ASLEEP {
            // It fails if the reader is awake or another sender was faster. Both are fine.
            let _ =
                self.asleep.0.word().compare_exchange(word, word + 1, Ordering::AcqRel, Ordering::Relaxed);
        }
        true
    }

    /// Second half of a wake-up: the system call.
    fn wake_futex(&self) {
        self.asleep.0.wake();
    }

    /// One half alone, for tests that stop a sender between the halves.
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

    /// Whether there is an announcement or a call.
    #[inline]
    pub fn announced(&self) -> bool {
        // Both words are in one cache line; one branch serves both.
        let calls = self.signals.0.calls.load(Ordering::Relaxed);
        self.signals.0.summary.load(Ordering::Relaxed) | u64::from(calls) != 0
    }

    /// Whether there is a call.
    #[inline]
    pub fn called(&self) -> bool {
        self.signals.0.calls.load(Ordering::Relaxed) != 0
    }

    /// Calls the reader for the reason `what`, even if it sleeps. Calls are rare, so this executes a full fence.
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

    /// Sleeps until a wake-up, at most `at_most_ns`, unless `anything` returns true. Only the reader calls this.
    /// `full_fences`: all senders execute full fences.
    pub fn sleep(
        &self,
        episode: &mut Episode,
        full_fences: bool,
        at_most_ns: u64,
        anything: impl FnOnce() -> bool,
    ) {
        let fenced = self.begin_sleep(episode, full_fences);
        let at_most_ns = if fenced { at_most_ns } else { at_most_ns.min(UNFENCED_SLEEP_NS) };
        if !anything() {
            self.asleep.0.wait(episode.0 | ASLEEP, at_most_ns);
        }
        self.end_sleep(episode);
    }

    /// Announces a sleep of the reader. Poll once more after it: everything that this poll does not find wakes the
    /// reader. The reader counts `episode` itself, because a peer may have overwritten the word. Returns whether that
    /// promise holds.
    pub fn begin_sleep(&self, episode: &Episode, full_fences: bool) -> bool {
        self.asleep.0.word().store(episode.0 | ASLEEP, Ordering::Relaxed);
        heavy_fence(full_fences)
    }

    /// Ends the reader's sleep.
    pub fn end_sleep(&self, episode: &mut Episode) {
        episode.0 = episode.0.wrapping_add(STAGES + 1);
        self.asleep.0.word().store(episode.0, Ordering::Relaxed);
    }

    /// The state of the reader's sleep, for its watcher.
    pub fn look(&self) -> Look {
        Look(self.asleep.0.word().load(Ordering::Acquire))
    }

    /// The watcher waits until the state is not `look` any more, at most `at_most_ns`. May return early.
    pub fn sleep_since(&self, look: Look, at_most_ns: u64) {
        self.asleep.0.wait(look.0, at_most_ns);
    }

    /// Ends the wait of the watcher, if it waits.
    pub fn wake_watcher(&self) {
        self.wake_futex();
    }
}
