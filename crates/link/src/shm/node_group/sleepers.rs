//! Members of a group that sleep until another one has written, without losing a wake-up.
//!
//! A sleeper says in its own *bed*, a futex, for whom it waits. It sets its bit in a word that all writers look at. A
//! writer that sees no bit makes no system call.
//! ```text
//! sleeper 0   bed = 7e+2 (waits for member 1), bit 0, heavy fence; looks once more, nothing; waits while the bed is 7e+2
//! member 1    publishes; light fence; sees bit 0, and its own number in the bed: bed = 7e, wakes the futex
//! sleeper 0   runs: clears its bit, bed = 8e
//! ```
//! Here e is the number of states of a bed: asleep for each member, asleep for all, awake. The exchange matters when member 1
//! wakes before member 0 waits: the changed word makes the wait return at once. Fences as in `sync.rs`: the sleeper has the
//! heavy one, so a writer pays nothing.
//!
//! **Deaths.** A writer that is killed between the exchange and the wake-up leaves a sleeper to its time limit. A
//! sleeper that is killed leaves its bit, so writers look at its bed until the group ends.

use crate::shm::ring::CacheLine;
use crate::shm::sync::{AtomicU64, Futex, Ordering, heavy_fence, light_fence};

/// A place to sleep.
pub type Bed = CacheLine<Futex>;

/// Members whose bits are in one word.
const BITS: usize = u64::BITS as usize;
/// Bits of a bed that say for whom its member waits: 0 for nobody, a rank plus 1, or [`FOR_ALL`].
const TARGET: u32 = 0x1ff;
const FOR_ALL: u32 = TARGET;
/// Bound on a sleep after a failed heavy fence (`membarrier` was forbidden after the start). Unit: nanoseconds.
const UNFENCED_SLEEP_NS: u64 = 1_000_000;

/// Words for the bits of the largest group.
pub const SLEEPER_WORDS: usize = 4;

/// Number of a member's sleep, times the states of a bed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Episode(u32);

/// The bits and beds of a group.
#[derive(Clone, Copy, Debug)]
pub struct Sleepers<'a> {
    bits: &'a [AtomicU64],
    beds: &'a [Bed],
}

impl<'a> Sleepers<'a> {
    /// - `bits`: [`SLEEPER_WORDS`] words.
    /// - `beds`: one for each member.
    pub fn new(bits: &'a [AtomicU64], beds: &'a [Bed]) -> Sleepers<'a> {
        Sleepers { bits: &bits[..beds.len().div_ceil(BITS)], beds }
    }

    /// Nobody sleeps. Nobody else looks.
    pub fn clear(self) {
        self.bits.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.beds.iter().for_each(|bed| bed.0.word().store(0, Ordering::Relaxed));
    }

    /// The member `rank` sleeps until `awaited` has published, or anybody if it is `None`, at most `at_most_ns`.
    ///
    /// - `is_missing`: whether what it waits for has not come yet.
    pub fn sleep(
        self,
        rank: u32,
        episode: &mut Episode,
        awaited: Option<u32>,
        at_most_ns: u64,
        is_missing: impl FnOnce() -> bool,
    ) {
        let bed = &self.beds[rank as usize].0;
        let (word, bit) = (&self.bits[rank as usize / BITS], 1 << (rank as usize % BITS));
        let asleep = episode.0 | awaited.map_or(FOR_ALL, |member| member + 1);
        bed.word().store(asleep, Ordering::Relaxed);
        // Release: who sees the bit sees the bed.
        word.fetch_or(bit, Ordering::Release);
        let at_most_ns = if heavy_fence(false) { at_most_ns } else { at_most_ns.min(UNFENCED_SLEEP_NS) };
        if is_missing() {
            bed.wait(asleep, at_most_ns);
        }
        word.fetch_and(!bit, Ordering::Relaxed);
        episode.0 = episode.0.wrapping_add(TARGET + 1);
        bed.word().store(episode.0, Ordering::Relaxed);
    }

    /// Wakes those that wait for the member `rank`, which has published. Returns how many.
    ///
    /// - `full_fence`: the heavy fences of others do not reach this process.
    #[inline]
    pub fn wake(self, rank: u32, full_fence: bool) -> u32 {
        light_fence(full_fence);
        let bits = |word: &AtomicU64| word.load(Ordering::Acquire);
        if self.bits.iter().all(|word| bits(word) == 0) { 0 } else { self.wake_sleepers(rank) }
    }

    #[cold]
    fn wake_sleepers(self, rank: u32) -> u32 {
        let mut woken = 0;
        for (number, bed) in self.beds.iter().enumerate() {
            if self.bits[number / BITS].load(Ordering::Acquire) & 1 << (number % BITS) == 0 {
                continue;
            }
            let asleep = bed.0.word().load(Ordering::Relaxed);
            let is_for_us = [rank + 1, FOR_ALL].contains(&(asleep & TARGET));
            let awake = asleep & !TARGET;
            // It fails if the sleeper is awake, or another member was faster.
            if is_for_us
                && bed.0.word().compare_exchange(asleep, awake, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                bed.0.wake();
                woken += 1;
            }
        }
        woken
    }
}
