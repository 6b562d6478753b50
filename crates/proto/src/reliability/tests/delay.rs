//! Acknowledgements that wait longer while nothing takes them along, and senders that see that coming.

use super::*;

/// Two paths on a network that loses nothing and takes 20 us.
struct Pair {
    ends: [Bench; 2],
    /// Time of arrival, receiver, and the datagram.
    under_way: Vec<(Instant, usize, Datagram)>,
    now: Instant,
    bare: usize,
}

const DELAY_NS: u64 = 20 * MICROSECOND;

impl Pair {
    fn new() -> Pair {
        Pair::broken(None)
    }

    fn broken(mutant: Option<Mutant>) -> Pair {
        let path = |epoch| {
            let mut path = ReliablePath::new(ReliabilityConfig::default(), epoch);
            mutant.into_iter().for_each(|mutant| path.mutate(mutant));
            Bench { path, ..Bench::new() }
        };
        Pair {
            ends: [7, 9].map(|number| path(epoch(number))),
            under_way: Vec::new(),
            now: Instant(0),
            bare: 0,
        }
    }

    fn carry(&mut self, from: usize) {
        for call in self.ends[from].take() {
            if let Call::Transmit(header, position) = call {
                self.bare += usize::from(position.is_none());
                let position = position.map(|position| position as u32);
                let datagram = Datagram { header, position, marked: false };
                self.under_way.push((self.now.plus_ns(DELAY_NS), 1 - from, datagram));
            }
        }
    }

    fn submit(&mut self, from: usize) {
        self.ends[from].now = self.now;
        self.ends[from].path.submit(self.now, 100, &mut self.ends[from].calls).expect("the window has room");
        self.carry(from);
    }

    /// Runs timers and the network until `at`.
    fn run_until(&mut self, at: Instant) {
        loop {
            let arrival = self.under_way.iter().map(|(at, ..)| *at).min();
            let timers = self.ends.iter().filter_map(|end| end.calls.timer);
            let Some(next) = timers.chain(arrival).min().filter(|next| *next <= at) else { break };
            self.now = self.now.max(next);
            for end in [0, 1] {
                self.ends[end].now = self.now;
                let due = self.under_way.iter().position(|(at, to, _)| *at <= self.now && *to == end);
                if let Some(index) = due {
                    let (_, _, datagram) = self.under_way.remove(index);
                    let Bench { path, calls, .. } = &mut self.ends[end];
                    path.arrived(self.now, &datagram, calls);
                    path.batch_ended(self.now, calls);
                    path.bundles_read(self.now, calls);
                } else if self.ends[end].calls.timer.take_if(|timer| *timer <= self.now).is_some() {
                    let Bench { path, calls, .. } = &mut self.ends[end];
                    path.expired(self.now, calls);
                }
                self.carry(end);
            }
        }
        self.now = at;
    }

    /// One bundle after the other, `interval_ns` apart; every `answers`th has an answer. Returns the datagrams without a bundle for
    /// each hundred bundles of the second half.
    fn run(&mut self, bundles: u32, interval_ns: u64, answers: u32) -> usize {
        for number in 0..bundles {
            if number == bundles / 2 {
                self.bare = 0;
            }
            self.submit(0);
            self.run_until(self.now.plus_ns(interval_ns / 2));
            if answers > 0 && number % answers == 0 {
                self.submit(1);
            }
            self.run_until(self.now.plus_ns(interval_ns / 2));
        }
        self.bare * 200 / bundles as usize
    }

    /// How long it takes until nothing is under way from the first end.
    fn until_acknowledged_ns(&mut self) -> u64 {
        let begun = self.now;
        while self.ends[0].path.view().unacknowledged_bundles > 0 {
            assert!(self.now < begun.plus_ns(1_000_000 * MICROSECOND), "never");
            self.run_until(self.now.plus_ns(MICROSECOND));
        }
        self.now.since_ns(begun)
    }

    /// How long it takes until a bundle is acknowledged, with nothing else to send.
    fn acknowledged_after_ns(&mut self) -> u64 {
        self.until_acknowledged_ns();
        self.submit(0);
        self.until_acknowledged_ns()
    }

    fn sent_again(&self) -> u64 {
        self.ends.iter().map(|end| end.path.counters().sent_again).sum()
    }
}

/// The usual delay of an acknowledgement.
const USUAL_NS: u64 = 50 * MICROSECOND;

#[test]
fn many_bundles_without_an_answer_share_an_acknowledgement_and_none_is_sent_again() {
    for (interval, most) in [(20, 6), (200, 25), (400, 34)] {
        let mut pair = Pair::new();
        let bare = pair.run(2000, interval * MICROSECOND, 0);
        assert!((1..=most).contains(&bare), "{bare} acknowledgements of 100 bundles, {interval} us apart");
        assert_eq!(pair.sent_again(), 0, "{interval} us apart");
    }
}

#[test]
fn answers_that_come_late_take_acknowledgements_along_and_early_ones_end_the_wait() {
    let mut pair = Pair::new();
    pair.run(601, 400 * MICROSECOND, 2);
    assert!(pair.run(601, 400 * MICROSECOND, 2) <= 2, "those of bundles that measure the round trip");
    assert_eq!(pair.sent_again(), 0);
    assert_eq!(pair.acknowledged_after_ns(), 2 * DELAY_NS + 16 * USUAL_NS);
    pair.run(200, 50 * MICROSECOND, 1);
    assert_eq!(pair.acknowledged_after_ns(), 2 * DELAY_NS + 2 * USUAL_NS);
}

#[test]
fn a_lost_bundle_is_sent_again_soon_and_the_next_acknowledgements_wait_no_longer_than_usual() {
    let mut pair = Pair::new();
    pair.run(1000, 200 * MICROSECOND, 0);
    pair.submit(0);
    pair.under_way.clear();
    let lost_at = pair.now;
    while pair.ends[0].path.view().unacknowledged_bundles > 0 {
        assert!(pair.now < lost_at.plus_ns(32 * USUAL_NS), "twice the longest delay");
        pair.run_until(pair.now.plus_ns(10 * MICROSECOND));
    }
    assert!(pair.sent_again() > 0);
    for _ in 0..100 {
        assert_eq!(pair.acknowledged_after_ns(), 2 * DELAY_NS + USUAL_NS);
    }
    pair.run(300, 200 * MICROSECOND, 0);
    assert!(pair.acknowledged_after_ns() > 2 * DELAY_NS + USUAL_NS, "nothing was lost for a long time");
}

#[test]
fn who_needs_an_acknowledgement_soon_waits_no_longer_than_usual() {
    let mut pair = Pair::new();
    pair.run(1000, 200 * MICROSECOND, 0);
    assert_eq!(pair.acknowledged_after_ns(), 2 * DELAY_NS + 16 * USUAL_NS);
    // The driver says that somebody waits.
    pair.ends[0].calls.awaits_acknowledgement = true;
    assert_eq!(pair.acknowledged_after_ns(), 2 * DELAY_NS + USUAL_NS);
    pair.ends[0].calls.awaits_acknowledgement = false;
    // Somebody begins to wait when the bundle has left.
    pair.submit(0);
    assert!(pair.ends[0].path.allows_long_delays());
    let (now, Bench { path, calls, .. }) = (pair.now, &mut pair.ends[0]);
    path.hurry(now, calls);
    pair.carry(0);
    assert_eq!(pair.until_acknowledged_ns(), 2 * DELAY_NS);
    assert_eq!(pair.acknowledged_after_ns(), 2 * DELAY_NS + 8 * USUAL_NS, "others may begin to wait too");
    // A question is open, and its answer may not cover what leaves after it.
    let (now, Bench { path, calls, .. }) = (pair.now, &mut pair.ends[0]);
    path.check(now, calls);
    pair.carry(0);
    assert!(pair.acknowledged_after_ns() <= 2 * DELAY_NS + USUAL_NS);
    // More bundles than half of what the peer has room for.
    let (now, Bench { path, calls, .. }) = (pair.now, &mut pair.ends[0]);
    path.set_grant(now, 6, calls);
    (0..3).for_each(|_| pair.submit(0));
    assert_eq!(pair.until_acknowledged_ns(), 2 * DELAY_NS + 16 * USUAL_NS, "half of it is left");
    (0..4).for_each(|_| pair.submit(0));
    assert!(pair.until_acknowledged_ns() <= 2 * DELAY_NS + USUAL_NS, "less is left");
    // A bundle waits.
    let (now, Bench { path, calls, .. }) = (pair.now, &mut pair.ends[0]);
    path.set_grant(now, 1, calls);
    (0..2).for_each(|_| pair.submit(0));
    assert!(pair.until_acknowledged_ns() <= 2 * (2 * DELAY_NS + USUAL_NS), "one after the other");
}

#[test]
fn waits_know_only_the_delays_of_what_is_under_way() {
    let mut pair = Pair::new();
    pair.run(1000, 200 * MICROSECOND, 0);
    pair.until_acknowledged_ns();
    // The peer names the first bundle, which allows much, because the second one does not. Then nothing allows much any more.
    pair.submit(0);
    pair.ends[0].calls.awaits_acknowledgement = true;
    pair.submit(0);
    pair.run_until(pair.now.plus_ns(DELAY_NS));
    pair.submit(0);
    pair.under_way.retain(|(at, to, _)| *to == 0 || *at <= pair.now); // the third one is lost
    let lost_at = pair.now;
    assert_eq!(pair.until_acknowledged_ns() / (500 * MICROSECOND), 0, "{:?}", pair.now.since_ns(lost_at));
    assert!(pair.sent_again() > 0);
}

#[test]
fn the_round_trip_is_known_although_acknowledgements_wait() {
    let mut pair = Pair::new();
    pair.run(4000, 200 * MICROSECOND, 0);
    let round_trip_ns = |pair: &Pair| pair.ends[0].path.view().round_trip_ns;
    assert!(
        (2 * DELAY_NS..=2 * DELAY_NS + USUAL_NS).contains(&round_trip_ns(&pair)),
        "{}",
        round_trip_ns(&pair)
    );
    // Samples below it, above it, and those that a wait explains.
    let mut round_trip = round_trip::RoundTrip::default();
    (0..100).for_each(|_| round_trip.sample_with_delay(100_000, 0));
    let smoothed_ns = round_trip.smoothed_ns();
    (0..100).for_each(|_| round_trip.sample_with_delay(840_000, 750_000));
    assert_eq!(round_trip.smoothed_ns(), smoothed_ns);
    (0..100).for_each(|_| round_trip.sample_with_delay(2_750_000, 750_000));
    assert!((1_990_000..=2_000_000).contains(&round_trip.smoothed_ns()), "{}", round_trip.smoothed_ns());
    (0..100).for_each(|_| round_trip.sample_with_delay(500_000, 750_000));
    assert!((500_000..=510_000).contains(&round_trip.smoothed_ns()), "{}", round_trip.smoothed_ns());
}

#[test]
fn a_path_is_quiet_when_only_bundles_that_may_wait_are_under_way() {
    let mut pair = Pair::new();
    let is_quiet = |pair: &Pair| pair.ends[0].path.is_quiet(pair.now);
    assert!(is_quiet(&pair));
    pair.submit(0);
    assert!(!is_quiet(&pair));
    pair.run(1000, 200 * MICROSECOND, 0);
    pair.until_acknowledged_ns();
    pair.submit(0);
    assert!(!is_quiet(&pair), "it has just left");
    pair.run_until(pair.now.plus_ns(2 * DELAY_NS + 2 * USUAL_NS));
    assert!(is_quiet(&pair) && pair.ends[0].path.allows_long_delays());
    pair.ends[0].calls.awaits_acknowledgement = true;
    pair.submit(0);
    assert!(!is_quiet(&pair), "somebody waits for this one");
}

#[test]
fn wrong_rules_of_delays_are_noticed() {
    let mut pair = Pair::broken(Some(Mutant::WaitsIgnoreTheAllowedDelay));
    pair.run(1000, 200 * MICROSECOND, 0);
    assert!(pair.sent_again() > 0);
    let mut pair = Pair::broken(Some(Mutant::LossesKeepTheAllowedDelay));
    pair.run(1000, 200 * MICROSECOND, 0);
    pair.until_acknowledged_ns();
    pair.submit(0);
    pair.under_way.clear();
    assert!(pair.acknowledged_after_ns() > 2 * DELAY_NS + USUAL_NS);
    let mut pair = Pair::broken(Some(Mutant::TheLongestDelayCounts));
    pair.run(1000, 200 * MICROSECOND, 0);
    pair.until_acknowledged_ns();
    pair.submit(0);
    pair.ends[0].calls.awaits_acknowledgement = true;
    pair.submit(0);
    assert!(pair.until_acknowledged_ns() > 2 * DELAY_NS + USUAL_NS);
}
