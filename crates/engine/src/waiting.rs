//! Decides how an endpoint that finds nothing waits: it spins briefly, yields, then sleeps on its doorbell.
//! `progress.rs` acts on it, and may sleep less.
//!
//! With more ranks than cores a rank must yield the core: what it waits for happens only when another rank runs. A rank
//! whose core nobody wants loses by sleeping: its wake-up costs each side a system call. The duration of a yield
//! distinguishes the two. An idle core returns in a fraction of a microsecond, a contended one after another process
//! has run. So a rank sleeps after one long yield, or after some with a core for every rank. Otherwise it stays awake
//! for about the cost of a sleep and its wake-up.
//!
//! A program that polls between computations (`MPI_Test` in a loop) must not sleep. Only calls that follow each other
//! at once count as waiting. While a sender waits for credit, calls at once after a yield of the MPI library count too.
//!
//! With more ranks than cores, a sender that waits for credit sleeps after a few polls, since its receiver needs the
//! core. The receiver takes many messages before it returns credits, which takes longer than a sleep and a wake-up.
//! Senders that yield instead run, with nothing to do, after each turn of the receiver. And a core on which all ranks
//! sleep takes ranks from the other cores.
//!
//! A look at a network is a system call, and takes as long as ten polls of shared memory or more. So with a network a spin
//! also ends after a time. Otherwise it would keep the core for longer than messages take, and the ranks that it waits for
//! may need that core.
//!
//! Ranks of other hosts can share the cores too, for example containers on one machine. Nobody counts those. So an
//! endpoint with a network judges by its yields ([`Contention`]): if many give the core to another process, it waits as with
//! more ranks than cores.

use std::time::{Duration, Instant};
use weir_link::cores;

/// Empty polls before the clock is read and the core is yielded. A poll takes 30 to 100 ns, and about 1 us with a look at
/// a network.
const SPIN_POLLS: u32 = 100;
/// The same with more ranks than cores.
const SPIN_POLLS_OVERSUBSCRIBED: u32 = 10;
/// The longest spin with a network. Unit: ticks of the processor, 2 to 4 for each
/// nanosecond.
const SPIN_TICKS: u64 = 20_000;
/// The same with more ranks than cores.
const SPIN_TICKS_OVERSUBSCRIBED: u64 = 2_000;
/// Empty polls before the clock is read, with more ranks than cores, while a sender waits for credit. It sleeps at the
/// next.
const SPIN_POLLS_FOR_CREDIT: u32 = 3;
/// Yields to another process before sleeping, with a core for every rank: the other process is a passer-by.
const MAX_SWITCHES: u32 = 20;
/// The same with more ranks than cores: the other process may be the one that we wait for.
const MAX_SWITCHES_OVERSUBSCRIBED: u32 = 1;
/// During a longer yield another process has run.
const SWITCH_TIME: Duration = Duration::from_micros(2);
/// Time to stay awake on a core that nobody wants.
const AWAKE_TIME: Duration = Duration::from_micros(100);
/// A caller that returns later than this has done something else in between.
const MAX_GAP: Duration = Duration::from_micros(10);
/// The same since the MPI library's last yield. Unit: ticks of the processor, 2 to 4 for each nanosecond.
pub(crate) const MAX_GAP_TICKS: u64 = 30_000;
/// Longest sleep inside a read while several threads call.
const SHARED_SLEEP_NS: u64 = 50_000;

/// What a long yield adds to [`Contention`]. A short one takes 1 away.
const LONG_YIELD: u32 = 16;
/// At this level the cores begin to be shared. They are until the level is 0.
const SHARED_CORES: u32 = 128;
/// The highest level.
const MOST_CONTENTION: u32 = 256;

/// Whether the cores are shared with processes that nobody counts, as yields show it.
///
/// ```text
/// 8 yields during which another process ran     shared
/// 128 to 256 yields that returned at once       not shared
/// ```
/// A process that passes by takes the core once or twice. On a core that nobody wants, a wait has some 200 yields.
#[derive(Clone, Copy, Debug, Default)]
struct Contention {
    level: u32,
    is_shared: bool,
}

impl Contention {
    fn note(&mut self, is_long: bool) {
        self.level = if is_long {
            (self.level + LONG_YIELD).min(MOST_CONTENTION)
        } else {
            self.level.saturating_sub(1)
        };
        self.is_shared = if self.is_shared { self.level > 0 } else { self.level >= SHARED_CORES };
    }
}

/// The next step of a caller that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// Poll again at once.
    Spin,
    /// Poll again at once: the caller did something else in between. It is `now`.
    CallerWasBusy {
        /// The time.
        now: Instant,
    },
    /// Yield the core. It is `now`.
    Yield {
        /// The time.
        now: Instant,
    },
    /// Sleep on the doorbell, at most this long.
    Sleep {
        /// Unit: ns.
        at_most_ns: u64,
    },
}

/// Decides how to wait, by the time since the last event and by whether others want the core.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// The program has chosen `spins`.
    spin_is_given: bool,
    spins: u32,
    /// The longest spin, if it is limited. Unit: ticks.
    spin_ticks: Option<u64>,
    /// There is a network, and the program has not chosen `spins`.
    limits_spin_time: bool,
    spins_for_credit: u32,
    max_switches: u32,
    sleep_ns: u64,
    /// Empty polls in a row.
    empty_polls: u32,
    /// When the first of them ended, if the spin is limited. Unit: ticks.
    spin_began: u64,
    /// Yields since the last event during which another process ran.
    switches: u32,
    contention: Contention,
    /// The time when the spin after the last event ended.
    since: Option<Instant>,
    /// The time when the last pause that read the clock ended.
    last: Option<Instant>,
}

impl Waiting {
    /// - `spin`: polls before yielding; 0: chosen by `oversubscribed`.
    /// - `sleep_us`: longest sleep; `several_threads` limits it.
    pub fn new(spin: u32, sleep_us: u32, oversubscribed: bool, several_threads: bool) -> Waiting {
        let mut waiting = Waiting {
            spin_is_given: spin > 0,
            spins: spin,
            spin_ticks: None,
            limits_spin_time: false,
            spins_for_credit: if spin > 0 { spin } else { SPIN_POLLS_FOR_CREDIT },
            max_switches: 0,
            sleep_ns: u64::from(sleep_us) * 1000,
            empty_polls: 0,
            spin_began: 0,
            switches: 0,
            contention: Contention::default(),
            since: None,
            last: None,
        };
        waiting.set_oversubscribed(oversubscribed);
        if several_threads {
            waiting.limit_sleeps();
        }
        waiting
    }

    /// Whether there are more ranks than cores from now on.
    #[cold]
    pub fn set_oversubscribed(&mut self, oversubscribed: bool) {
        if !self.spin_is_given {
            self.spins = if oversubscribed { SPIN_POLLS_OVERSUBSCRIBED } else { SPIN_POLLS };
        }
        if self.limits_spin_time {
            self.spin_ticks = Some(if oversubscribed { SPIN_TICKS_OVERSUBSCRIBED } else { SPIN_TICKS });
        }
        self.max_switches = if oversubscribed { MAX_SWITCHES_OVERSUBSCRIBED } else { MAX_SWITCHES };
    }

    /// Limits the time of a spin, because there is a network.
    pub fn limit_spin_time(&mut self, oversubscribed: bool) {
        self.limits_spin_time = !self.spin_is_given && cores::TICKS;
        self.set_oversubscribed(oversubscribed);
    }

    /// Limits sleeps, because several threads call and another may wait for the lock that this one holds.
    #[cold]
    pub fn limit_sleeps(&mut self) {
        self.sleep_ns = self.sleep_ns.min(SHARED_SLEEP_NS);
    }

    /// The longest sleep of this endpoint.
    pub fn longest_sleep(&self) -> Duration {
        Duration::from_nanos(self.sleep_ns)
    }

    /// Notes an event: spinning starts again.
    #[inline]
    pub fn reset(&mut self) {
        self.empty_polls = 0;
    }

    /// Decides what to do after another empty poll. `clock` is read only after the spin.
    #[inline]
    pub fn pause(&mut self, clock: impl FnOnce() -> Instant) -> Pause {
        self.empty_polls = self.empty_polls.saturating_add(1);
        if self.empty_polls < self.spins && !self.spin_is_over(cores::ticks) {
            return Pause::Spin;
        }
        self.pause_after_spin(clock())
    }

    /// Whether the pause after this empty poll will be a spin.
    #[inline]
    pub fn is_spinning(&self) -> bool {
        self.empty_polls + 1 < self.spins
    }

    /// Whether the spin ends before its last poll, since it takes too long.
    #[inline]
    fn spin_is_over(&mut self, ticks: impl FnOnce() -> u64) -> bool {
        let Some(spin_ticks) = self.spin_ticks else { return false };
        let now = ticks();
        if self.empty_polls == 1 {
            self.spin_began = now;
        }
        let is_over = now.wrapping_sub(self.spin_began) > spin_ticks;
        if is_over {
            self.empty_polls = self.spins;
        }
        is_over
    }

    fn pause_after_spin(&mut self, now: Instant) -> Pause {
        if self.caller_was_busy(self.spins, false, now) {
            return Pause::CallerWasBusy { now };
        }
        let awake = self.since.is_some_and(|since| now.saturating_duration_since(since) < AWAKE_TIME);
        if self.sleep_ns == 0 || (awake && self.switches < self.max_switches) {
            return Pause::Yield { now };
        }
        Pause::Sleep { at_most_ns: self.sleep_ns }
    }

    /// [`Waiting::pause`] of a sender that waits for credit, with more ranks than cores. `yielded`: the caller just
    /// yielded.
    #[cold]
    pub fn pause_for_credit(&mut self, yielded: bool, clock: impl FnOnce() -> Instant) -> Pause {
        self.empty_polls = self.empty_polls.saturating_add(1);
        if self.empty_polls < self.spins_for_credit {
            return Pause::Spin;
        }
        let now = clock();
        if self.caller_was_busy(self.spins_for_credit, yielded, now) {
            return Pause::CallerWasBusy { now };
        }
        match self.sleep_ns {
            0 => Pause::Yield { now },
            at_most_ns => Pause::Sleep { at_most_ns },
        }
    }

    /// After `spins` empty polls: whether the caller may have done something else since the last. `yielded`: it has
    /// not.
    fn caller_was_busy(&mut self, spins: u32, yielded: bool, now: Instant) -> bool {
        let gap = self.last.replace(now).map(|last| now.saturating_duration_since(last));
        if self.empty_polls == spins {
            // The first read of the clock since the last event: from here on gaps and waits are known.
            self.since = Some(now);
            self.switches = 0;
            return true;
        }
        let away = !yielded && gap.is_none_or(|gap| gap > MAX_GAP);
        if away {
            self.empty_polls = spins - 1;
        }
        away
    }

    /// Notes the end of a yield or sleep; the next gap is measured from `now`. `yielded`: when the yield began.
    #[inline]
    pub fn resumed(&mut self, yielded: Option<Instant>, now: Instant) {
        self.last = Some(now);
        if let Some(began) = yielded {
            let is_long = now.saturating_duration_since(began) > SWITCH_TIME;
            self.switches = self.switches.saturating_add(is_long.into());
            self.contention.note(is_long);
        }
    }

    /// Whether yields show that processes which nobody counts share the cores.
    #[inline]
    pub fn shares_cores(&self) -> bool {
        self.contention.is_shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The decisions for a caller that polls every `poll`, finds nothing, and whose yields take `turn`: until the first
    /// sleep, or `count` of them.
    fn wait(waiting: &mut Waiting, poll: Duration, turn: Duration, count: u32) -> Vec<Pause> {
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..count {
            now += poll;
            let pause = waiting.pause(|| now);
            pauses.push(pause);
            match pause {
                Pause::Yield { now: began } => {
                    now += turn;
                    waiting.resumed(Some(began), now);
                }
                Pause::Sleep { .. } => break,
                Pause::Spin | Pause::CallerWasBusy { .. } => {}
            }
        }
        pauses
    }

    const NS: Duration = Duration::from_nanos(1);
    const SLEEP: Option<&Pause> = Some(&Pause::Sleep { at_most_ns: 1_000_000 });

    #[test]
    fn a_caller_on_an_idle_core_yields_for_a_while_then_sleeps() {
        for oversubscribed in [false, true] {
            let mut waiting = Waiting::new(3, 1000, oversubscribed, false);
            let pauses = wait(&mut waiting, 100 * NS, 300 * NS, 10_000);
            assert_eq!(pauses[..2], [Pause::Spin; 2]);
            assert!(!waiting.is_spinning());
            let yields = pauses.iter().filter(|pause| matches!(pause, Pause::Yield { .. })).count();
            assert_eq!(pauses.last(), SLEEP);
            assert!((200..300).contains(&yields), "{yields} yields of 0.4 us in 100 us");
            waiting.reset();
            for is_next in [true, true, false] {
                assert_eq!(waiting.is_spinning(), is_next);
                assert_eq!(matches!(waiting.pause(Instant::now), Pause::Spin), is_next);
            }
        }
    }

    #[test]
    fn a_caller_on_a_contended_core_yields_once_then_sleeps() {
        let mut waiting = Waiting::new(3, 1000, true, false);
        let pauses = wait(&mut waiting, 100 * NS, 5000 * NS, 100);
        assert_eq!(pauses.len(), 5, "{pauses:?}"); // two spins, the first read of the clock, one yield
        assert_eq!(pauses.last(), SLEEP);
    }

    #[test]
    fn yields_show_whether_others_share_the_cores() {
        let mut waiting = Waiting::new(3, 1000, false, false);
        for round in 1..=8 {
            assert!(!waiting.shares_cores(), "round {round}: a passer-by");
            wait(&mut waiting, 100 * NS, 3_000_000 * NS, 100);
            waiting.reset();
        }
        assert!(waiting.shares_cores(), "another process on the core in each of eight waits");
        wait(&mut waiting, 100 * NS, 300 * NS, 10_000);
        assert!(!waiting.shares_cores(), "a wait on a core that nobody wants");
        for _ in 0..1000 {
            wait(&mut waiting, 100 * NS, 3_000_000 * NS, 100);
            waiting.reset();
            wait(&mut waiting, 100 * NS, 300 * NS, 10_000);
            waiting.reset();
            assert!(!waiting.shares_cores(), "somebody passes by every few hundred yields");
        }
    }

    #[test]
    fn a_caller_that_computes_between_polls_never_sleeps() {
        let mut waiting = Waiting::new(10, 1000, true, false);
        let pauses = wait(&mut waiting, 20_000 * NS, NS, 10_000);
        let wakeful = |pause: &Pause| matches!(pause, Pause::Spin | Pause::CallerWasBusy { .. });
        assert!(pauses.len() == 10_000 && pauses.iter().all(wakeful));
    }

    #[test]
    fn a_sender_without_credit_sleeps_after_few_polls() {
        let mut waiting = Waiting::new(0, 1000, true, false);
        let mut now = Instant::now();
        for _ in 0..100 {
            let pauses: Vec<_> = (0..5)
                .map(|_| {
                    now += 30_000 * NS;
                    waiting.pause_for_credit(true, || now)
                })
                .collect();
            assert_eq!(pauses[..2], [Pause::Spin; 2]);
            assert!(matches!(pauses[2], Pause::CallerWasBusy { .. }));
            assert_eq!(pauses[3..], [Pause::Sleep { at_most_ns: 1_000_000 }; 2]);
            waiting.reset();
        }
    }

    #[test]
    fn a_sender_that_computes_between_polls_does_not_sleep() {
        let mut waiting = Waiting::new(0, 1000, true, false);
        let mut now = Instant::now();
        for _ in 0..1000 {
            now += 20_000 * NS;
            let pauses = waiting.pause_for_credit(false, || now);
            assert!(matches!(pauses, Pause::Spin | Pause::CallerWasBusy { .. }), "{pauses:?}");
        }
        now += 100 * NS;
        assert_eq!(
            waiting.pause_for_credit(false, || now),
            Pause::CallerWasBusy { now },
            "a poll that follows at once"
        );
        assert_eq!(waiting.pause_for_credit(false, || now), SLEEP.copied().unwrap(), "now it waits");
        let mut sleepless = Waiting::new(0, 0, true, false);
        let pauses: Vec<_> = (0..4).map(|_| sleepless.pause_for_credit(true, || now)).collect();
        assert_eq!(pauses[3], Pause::Yield { now });
        let mut always_spins = Waiting::new(1000, 1000, true, false);
        assert!((1..1000).all(|_| always_spins.pause_for_credit(true, || now) == Pause::Spin));
    }

    #[test]
    fn a_spin_with_slow_polls_ends_before_its_last_poll() {
        let mut waiting = Waiting::new(0, 1000, false, false);
        waiting.limit_spin_time(false);
        for (poll_ticks, oversubscribed, expected) in [
            (100, false, SPIN_POLLS),
            (2_000, false, 12),
            (2_000, true, 3),
            (100, true, SPIN_POLLS_OVERSUBSCRIBED),
        ] {
            waiting.set_oversubscribed(oversubscribed);
            waiting.reset();
            let mut now = 1 << 40;
            let polls = (1..=expected).take_while(|_| {
                now += poll_ticks;
                waiting.empty_polls += 1;
                waiting.empty_polls < waiting.spins && !waiting.spin_is_over(|| now)
            });
            assert_eq!(polls.count() as u32, expected - 1, "{poll_ticks} ticks each, {oversubscribed}");
            assert_eq!(waiting.empty_polls, waiting.spins, "as after the last poll");
        }
        let mut given = Waiting::new(50, 1000, false, false);
        given.limit_spin_time(false);
        assert_eq!(given.spin_ticks, None, "the program has chosen");
    }

    #[test]
    fn with_several_threads_sleeps_are_short() {
        let mut waiting = Waiting::new(1, 100_000, true, true);
        let pauses = wait(&mut waiting, NS, 5000 * NS, 100);
        assert_eq!(pauses.last(), Some(&Pause::Sleep { at_most_ns: 50_000 }));
    }
}
