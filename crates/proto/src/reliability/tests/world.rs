//! Random worlds: two endpoints on a network that loses, repeats, delays and marks datagrams. Drivers refuse, endpoints
//! restart, the network ends. In each world:
//!
//! - every bundle of a life of an endpoint arrives at most once, in order, at one life of the other;
//! - what counts as acknowledged has arrived;
//! - copies, bundles out of order and memory stay within the window;
//! - bare datagrams are answers, so there are no more of them than of datagrams that want one;
//! - between two arrivals an end probes once;
//! - nothing happens after the last acknowledgement, and no path ends without a reason.
//!
//! A world repeats exactly from its seed. Each mutant must break a rule in some world or fail an exact test.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use core::cell::Cell;

use super::*;

const MILLISECOND: u64 = 1_000_000;

/// The bytes of a bundle: they say who made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bundle {
    epoch: u16,
    index: u64,
    bytes: u32,
}

/// What happens in a world.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    /// Share of datagrams that are lost on the way to each end. Unit: thousandths, as all shares.
    lost: [u32; 2],
    repeated: u32,
    marked: u32,
    /// Each datagram takes a base and up to so much more.
    delay_ns: u64,
    jitter_ns: u64,
    /// A driver refuses.
    refused: u32,
    /// Restarts of a random end, each at a random time up to the last one.
    restarts: u32,
    restarts_until_ns: u64,
    /// From then on nothing arrives.
    ends_at_ns: Option<u64>,
    /// Larger datagrams are lost.
    largest: Option<u32>,
    /// Bundles of each end, and the longest time between two of them.
    bundles: [u32; 2],
    interval_ns: u64,
    /// Both ends are crowded now and then.
    crowds: bool,
    /// The paths know that nothing is lost.
    is_lossless: bool,
    /// The second end runs for the first time and does not run for the second one, in turn: others have its core.
    turns_ns: Option<[u64; 2]>,
}

impl Faults {
    fn draw(random: &mut fastrand::Rng) -> Faults {
        let mut share = |most: u32| if random.bool() { random.u32(0..=most) } else { 0 };
        let (lost, repeated, marked, refused) =
            ([share(300), share(300)], share(200), share(200), share(100));
        let end = random.u64(1..20) * MILLISECOND;
        Faults {
            lost,
            repeated,
            marked,
            refused,
            delay_ns: random.u64(1..200) * MICROSECOND,
            jitter_ns: [0, 20, 200, 5_000][random.usize(..4)] * MICROSECOND,
            restarts: if random.u32(..3) == 0 { random.u32(1..5) } else { 0 },
            restarts_until_ns: end,
            ends_at_ns: (random.u32(..4) == 0).then_some(end),
            largest: None,
            bundles: [random.u32(..600), if random.bool() { random.u32(..600) } else { 0 }],
            interval_ns: [0, 2, 50, 1_000][random.usize(..4)] * MICROSECOND,
            crowds: true,
            is_lossless: false,
            turns_ns: None,
        }
    }

    /// Until when this end does not run.
    fn away_until(&self, end: usize, now: u64) -> Option<u64> {
        let [runs_ns, away_ns] = self.turns_ns.filter(|_| end == 1)?;
        let since = now % (runs_ns + away_ns);
        (since >= runs_ns).then(|| now - since + runs_ns + away_ns)
    }
}

/// A driver: the link of one end.
#[derive(Default)]
struct Link {
    copies: BTreeMap<u64, Bundle>,
    held: BTreeMap<u64, Bundle>,
    arriving: Option<Bundle>,
    sent: Vec<(Header, Option<(u64, Bundle)>)>,
    delivered: Vec<(u64, Bundle)>,
    acknowledged: Option<u64>,
    timer: Option<u64>,
    /// The timer has been set since the last event, so no event for it exists yet.
    timer_is_new: bool,
    lost: Option<PathFault>,
    is_ready: bool,
    /// Refuses the next datagrams.
    is_busy: bool,
    /// It is crowded now and then: during the second half of each 128 questions.
    crowds: bool,
    crowd_asked: Cell<u32>,
}

impl DatagramDriver for Link {
    fn transmit(&mut self, header: &Header, position: Option<u64>) -> Result<(), LinkBusy> {
        if self.is_busy {
            return Err(LinkBusy);
        }
        self.sent.push((*header, position.map(|position| (position, self.copies[&position]))));
        Ok(())
    }
    fn deliver(&mut self, position: u64) {
        self.delivered.push((position, self.arriving.expect("a bundle is being handled")));
    }
    fn hold(&mut self, position: u64) {
        let bundle = self.arriving.expect("a bundle is being handled");
        assert_eq!(self.held.insert(position, bundle), None, "position {position} is held twice");
    }
    fn deliver_held(&mut self, position: u64) {
        self.delivered.push((position, self.held.remove(&position).expect("a bundle is held")));
    }
    fn acknowledged(&mut self, before: u64) {
        self.acknowledged = Some(before);
        self.copies = self.copies.split_off(&before);
    }
    fn ready(&mut self) {
        self.is_ready = true;
    }
    fn is_crowded(&self) -> bool {
        let asked = self.crowd_asked.replace(self.crowd_asked.get() + 1);
        self.crowds && asked % 128 >= 64
    }
    fn lost(&mut self, fault: PathFault) {
        self.lost = Some(fault);
    }
    fn set_timer(&mut self, at: Instant) {
        self.timer = Some(at.0);
        self.timer_is_new = true;
    }
}

/// One life of an endpoint.
struct End {
    path: ReliablePath,
    link: Link,
    epoch: u16,
    /// Bundles that this life has submitted, and how many the endpoint has still to submit.
    submitted: u64,
    to_submit: u32,
    waits_for_ready: bool,
    /// The life of the other end from which this one has bundles, and how many.
    from: Option<u16>,
    received: u64,
    first_memory_bytes: usize,
    batch_is_open: bool,
    /// Datagrams that have arrived.
    arrivals: u64,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrives(usize, Datagram, Option<Bundle>),
    BatchEnds(usize),
    /// This end has read what was delivered.
    Reads(usize),
    Submits(usize),
    Expires(usize),
    Writable(usize),
    Restarts(usize),
}

impl Event {
    fn end(&self) -> usize {
        match *self {
            Event::Arrives(end, ..)
            | Event::BatchEnds(end)
            | Event::Reads(end)
            | Event::Submits(end)
            | Event::Expires(end)
            | Event::Writable(end)
            | Event::Restarts(end) => end,
        }
    }
}

struct World {
    faults: Faults,
    config: ReliabilityConfig,
    mutant: Option<Mutant>,
    random: fastrand::Rng,
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    event_count: u64,
    ends: [End; 2],
    /// What has arrived: the end and the life that made it, and its index.
    arrived: BTreeSet<(usize, u16, u64)>,
    /// Datagrams that want an answer and have arrived at each end, and bare ones without a question that each has sent.
    want_answer: [u64; 2],
    answers: [u64; 2],
    lost: Vec<(usize, u64, PathFault)>,
    /// Counters of ended lives.
    totals: [PathCounters; 2],
    next_epoch: u16,
}

type Rule<T> = Result<T, String>;

macro_rules! rule {
    ($condition:expr, $($reason:tt)+) => {
        if !$condition {
            return Err(format!($($reason)+));
        }
    };
}

impl World {
    fn new(seed: u64, faults: Faults, mutant: Option<Mutant>) -> World {
        let mut random = fastrand::Rng::with_seed(seed);
        let start = if random.bool() { 0 } else { u32::MAX - random.u32(..300) };
        let window_bundles = 64 << random.u32(..3);
        let is_lossless = faults.is_lossless;
        let config = ReliabilityConfig { window_bundles, start, is_lossless, ..ReliabilityConfig::default() };
        let end = |epoch, to_submit| End::new(config, epoch, mutant, to_submit);
        let ends = [end(1, faults.bundles[0]), end(2, faults.bundles[1])];
        let mut world = World {
            faults,
            config,
            mutant,
            random,
            now: 0,
            events: BTreeMap::new(),
            event_count: 0,
            ends,
            arrived: BTreeSet::new(),
            want_answer: [0; 2],
            answers: [0; 2],
            lost: Vec::new(),
            totals: [PathCounters::default(); 2],
            next_epoch: 3,
        };
        for end in 0..2 {
            world.ends[end].link.crowds = faults.crowds;
            world.schedule(0, Event::Submits(end));
        }
        for _ in 0..faults.restarts {
            let (at, end) = (world.random.u64(..faults.restarts_until_ns), world.random.usize(..2));
            world.schedule(at, Event::Restarts(end));
        }
        world
    }

    fn schedule(&mut self, in_ns: u64, event: Event) {
        self.event_count += 1;
        self.events.insert((self.now + in_ns, self.event_count), event);
    }

    /// An event of an end that does not run happens when it runs again. It looks at what has arrived before its timer.
    fn delay(&mut self, event: Event, until: u64) {
        let mut in_ns = until - self.now;
        if let Event::Expires(end) = event {
            in_ns += 1;
            let link = &mut self.ends[end].link;
            link.timer = link.timer.map(|at| if at == self.now { until + 1 } else { at });
        }
        self.schedule(in_ns, event);
    }

    fn happens(&mut self, share: u32) -> bool {
        share > 0 && self.random.u32(..1000) < share
    }

    fn is_over(&self) -> bool {
        self.faults.ends_at_ns.is_some_and(|at| self.now >= at)
    }

    /// Runs until nothing happens any more.
    fn run(&mut self) -> Rule<()> {
        while let Some(((at, _), event)) = self.events.pop_first() {
            rule!(self.event_count < 400_000, "more than 400,000 events at {} ns", self.now);
            self.now = at;
            if let Some(until) = self.faults.away_until(event.end(), at) {
                self.delay(event, until);
                continue;
            }
            let end = self.handle(event);
            self.settle(end).map_err(|reason| format!("{reason}, at {at} ns, after {event:?}"))?;
        }
        self.check_the_end()
    }

    fn handle(&mut self, event: Event) -> usize {
        let now = Instant(self.now);
        match event {
            Event::Arrives(end, datagram, bundle) => {
                if self.is_over() {
                    return end;
                }
                self.want_answer[end] += u64::from(datagram.header.asks || datagram.position.is_some());
                self.ends[end].arrivals += 1;
                let End { path, link, .. } = &mut self.ends[end];
                link.arriving = bundle;
                path.arrived(now, &datagram, link);
                link.arriving = None;
                if !self.ends[end].batch_is_open {
                    self.ends[end].batch_is_open = true;
                    let in_ns = self.random.u64(..20 * MICROSECOND);
                    self.schedule(in_ns, Event::BatchEnds(end));
                }
                end
            }
            Event::BatchEnds(end) => {
                self.ends[end].batch_is_open = false;
                let End { path, link, .. } = &mut self.ends[end];
                path.batch_ended(now, link);
                let in_ns = self.random.u64(..20 * MICROSECOND);
                self.schedule(in_ns, Event::Reads(end));
                end
            }
            Event::Reads(end) => {
                let End { path, link, .. } = &mut self.ends[end];
                path.bundles_read(now, link);
                end
            }
            Event::Submits(end) => {
                self.submit(end);
                end
            }
            Event::Expires(end) => {
                let End { path, link, .. } = &mut self.ends[end];
                if link.timer == Some(self.now) {
                    link.timer = None;
                    path.expired(now, link);
                }
                end
            }
            Event::Writable(end) => {
                let End { path, link, .. } = &mut self.ends[end];
                link.is_busy = false;
                path.writable(now, link);
                end
            }
            Event::Restarts(end) => {
                self.restart(end);
                end
            }
        }
    }

    /// Submits one bundle, and the next one later.
    fn submit(&mut self, index: usize) {
        let now = Instant(self.now);
        let bytes = self.random.u32(1..=self.config.datagram_bytes);
        let end = &mut self.ends[index];
        if end.to_submit == 0
            || end.waits_for_ready
            || self.faults.ends_at_ns.is_some_and(|at| self.now >= at)
        {
            return;
        }
        let bundle = Bundle { epoch: end.epoch, index: end.submitted, bytes };
        let next = end.path.next_position();
        let before = end.link.copies.insert(next, bundle);
        match end.path.submit(now, bytes, &mut end.link) {
            Ok(position) => {
                assert_eq!(position, next);
                end.submitted += 1;
                end.to_submit -= 1;
                let in_ns = self.random.u64(..=self.faults.interval_ns);
                self.schedule(in_ns, Event::Submits(index));
            }
            Err(LinkBusy) => {
                end.link.copies.remove(&next);
                end.link.copies.extend(before.map(|before| (next, before)));
                end.waits_for_ready = true;
            }
        }
    }

    fn restart(&mut self, end: usize) {
        let to_submit = self.ends[end].to_submit;
        self.totals[end] = self.total(end);
        self.ends[end] = End::new(self.config, self.next_epoch, self.mutant, to_submit);
        self.ends[end].link.crowds = self.faults.crowds;
        self.next_epoch += 1;
        self.schedule(0, Event::Submits(end));
    }

    fn total(&self, end: usize) -> PathCounters {
        let (before, now) = (self.totals[end], self.ends[end].path.counters());
        PathCounters {
            timeouts: before.timeouts + now.timeouts,
            malformed: before.malformed + now.malformed,
            ..now
        }
    }

    /// Does what the path of an end has asked for, and checks it.
    fn settle(&mut self, index: usize) -> Rule<()> {
        let sent = core::mem::take(&mut self.ends[index].link.sent);
        for (header, bundle) in sent {
            self.send(index, header, bundle);
        }
        let window = u64::from(self.config.window_bundles);
        let end = &mut self.ends[index];
        let view = end.path.view();
        rule!(end.link.copies.len() as u64 <= window, "{} copies", end.link.copies.len());
        rule!(end.link.held.len() as u64 <= window, "{} bundles out of order", end.link.held.len());
        rule!(view.memory_bytes == end.first_memory_bytes, "memory has grown");
        let (probes, arrivals) = (end.path.sender.counts.probes, end.arrivals);
        rule!(probes <= arrivals + 1, "{probes} probes, {arrivals} arrivals");
        for (position, bundle) in core::mem::take(&mut end.link.delivered) {
            let from = *end.from.get_or_insert(bundle.epoch);
            rule!(bundle.epoch == from, "a bundle of epoch {}, after those of {from}", bundle.epoch);
            rule!(bundle.index == end.received, "bundle {}, expected {}", bundle.index, end.received);
            rule!(position == sequence::BASE + u64::from(self.config.start) + end.received, "wrong position");
            end.received += 1;
            rule!(self.arrived.insert((1 - index, from, bundle.index)), "bundle {} twice", bundle.index);
        }
        if let Some(before) = end.link.acknowledged.take() {
            let count = before - sequence::BASE - u64::from(self.config.start);
            let is_missing = |bundle| !self.arrived.contains(&(index, end.epoch, bundle));
            let missing = (0..count).rev().take(window as usize).find(|&bundle| is_missing(bundle));
            rule!(missing.is_none(), "bundle {missing:?} is acknowledged and has not arrived");
        }
        if core::mem::take(&mut end.link.is_ready) && core::mem::take(&mut end.waits_for_ready) {
            self.schedule(0, Event::Submits(index));
        }
        let link = &mut self.ends[index].link;
        if core::mem::take(&mut link.timer_is_new)
            && let Some(at) = link.timer
        {
            // A time in the past expires now.
            let in_ns = at.saturating_sub(self.now);
            link.timer = Some(self.now + in_ns);
            self.schedule(in_ns, Event::Expires(index));
        }
        if self.faults.refused > 0 && !self.ends[index].link.is_busy && self.happens(self.faults.refused) {
            self.ends[index].link.is_busy = true;
            let in_ns = self.random.u64(..100 * MICROSECOND);
            self.schedule(in_ns, Event::Writable(index));
        }
        self.settle_loss(index)
    }

    fn settle_loss(&mut self, index: usize) -> Rule<()> {
        let Some(fault) = self.ends[index].link.lost.take() else { return Ok(()) };
        self.lost.push((index, self.now, fault));
        match fault {
            PathFault::Restarted => {
                let bound_to = self.ends[index].path.peer.map(NonZeroU16::get);
                let lives = self.ends[1 - index].epoch;
                rule!(bound_to != Some(lives), "epoch {lives} lives and counts as restarted");
                self.restart(index);
            }
            PathFault::Silent => {
                let has_reason = self.faults.ends_at_ns.is_some() || self.faults.largest.is_some();
                rule!(has_reason, "a living peer counts as silent");
            }
            PathFault::Ended => unreachable!("nobody says so in these worlds"),
        }
        Ok(())
    }

    fn send(&mut self, from: usize, header: Header, bundle: Option<(u64, Bundle)>) {
        let to = 1 - from;
        self.answers[from] += u64::from(bundle.is_none() && !header.asks);
        let bytes = bundle.map_or(0, |(_, bundle)| bundle.bytes);
        let times = 1 + u32::from(self.happens(self.faults.repeated));
        for _ in 0..times {
            let is_lost = self.happens(self.faults.lost[to])
                || self.faults.largest.is_some_and(|largest| bytes > largest);
            if is_lost {
                continue;
            }
            let position = bundle.map(|(position, _)| position as u32);
            let datagram = Datagram { header, position, marked: self.happens(self.faults.marked) };
            let in_ns = self.faults.delay_ns + self.random.u64(..=self.faults.jitter_ns);
            self.schedule(in_ns, Event::Arrives(to, datagram, bundle.map(|(_, bundle)| bundle)));
        }
    }

    /// Nothing happens any more: everything has arrived, or the path has ended.
    fn check_the_end(&self) -> Rule<()> {
        let Faults { lost, ends_at_ns, largest, bundles, restarts, .. } = self.faults;
        for (index, end) in self.ends.iter().enumerate() {
            let view = end.path.view();
            let other = &self.ends[1 - index];
            let malformed = self.total(index).malformed;
            rule!(malformed == 0, "{malformed} datagrams of a correct peer are malformed");
            let (answers, wanted) = (self.answers[index], self.want_answer[index]);
            rule!(answers <= wanted, "{answers} answers to {wanted} datagrams");
            if view.fault.is_none() {
                rule!(
                    view.unacknowledged_bundles == 0,
                    "{} bundles wait for ever",
                    view.unacknowledged_bundles
                );
                rule!(end.to_submit == 0 || ends_at_ns.is_some(), "{} bundles to submit", end.to_submit);
                rule!(view.in_flight_bytes == 0, "{} bytes under way", view.in_flight_bytes);
                let is_complete =
                    (0..end.submitted).all(|bundle| self.arrived.contains(&(index, end.epoch, bundle)));
                rule!(is_complete, "a bundle of end {index} is missing");
                // A life that began after everything had arrived never opens the path if it has nothing to say, or if the network
                // has ended.
                let says_nothing = other.submitted == 0 || ends_at_ns.is_some();
                let is_mute = restarts > 0 && says_nothing && !other.path.view().is_open;
                let is_the_one = other.from == Some(end.epoch) || (is_mute && other.from.is_none());
                rule!(end.submitted == 0 || is_the_one, "epoch {}, peer of {:?}", end.epoch, other.from);
            }
            // Half of the largest share, because the draw varies.
            let loses = lost[1 - index] >= 100 && bundles[index] >= 200;
            if loses && restarts == 0 && ends_at_ns.is_none() && largest.is_none() {
                let most_bytes = u64::from(self.config.window_bundles * self.config.datagram_bytes);
                rule!(view.window_bytes < most_bytes, "losses have not lowered the window");
            }
        }
        Ok(())
    }
}

impl End {
    fn new(config: ReliabilityConfig, epoch_number: u16, mutant: Option<Mutant>, to_submit: u32) -> End {
        let mut path = ReliablePath::new(config, epoch(epoch_number));
        path.broken.mutant = mutant;
        End {
            first_memory_bytes: path.view().memory_bytes,
            path,
            link: Link::default(),
            epoch: epoch_number,
            submitted: 0,
            to_submit,
            waits_for_ready: false,
            from: None,
            received: 0,
            batch_is_open: false,
            arrivals: 0,
        }
    }
}

/// A random world.
fn run_random(seed: u64, mutant: Option<Mutant>) -> Rule<World> {
    let faults = Faults::draw(&mut fastrand::Rng::with_seed(seed));
    let mut world = World::new(seed, faults, mutant);
    world.run().map_err(|reason| format!("world {seed}: {reason}, {faults:?}"))?;
    Ok(world)
}

/// A network that ends: who waits learns it within the limit and one timeout, without a storm of datagrams.
fn run_until_silence(seed: u64, mutant: Option<Mutant>) -> Rule<()> {
    let ends_at_ns = 3 * MILLISECOND;
    let faults = Faults {
        delay_ns: 50 * MICROSECOND,
        interval_ns: 20 * MICROSECOND,
        ends_at_ns: Some(ends_at_ns),
        bundles: [100_000, 0],
        ..Faults::default()
    };
    let mut world = World::new(seed, faults, mutant);
    world.run()?;
    let [(0, at, PathFault::Silent)] = world.lost[..] else { return Err(format!("lost: {:?}", world.lost)) };
    let ReliabilityConfig { limit_ns, max_timeout_ns, .. } = world.config;
    let latest = ends_at_ns + limit_ns + max_timeout_ns;
    rule!(at <= latest, "lost at {at} ns, not before {latest} ns");
    // 200 us doubled to 100 ms, then one for each 100 ms.
    let most = limit_ns / max_timeout_ns + 12;
    let timeouts = world.ends[0].path.counters().timeouts;
    rule!(timeouts <= most, "{timeouts} timeouts, at most {most}");
    Ok(())
}

/// A path that takes only small datagrams: the first large one ends it within the limit, although small ones arrive.
fn run_on_a_small_path(seed: u64, mutant: Option<Mutant>) -> Rule<()> {
    let interval_ns = 200 * MILLISECOND;
    let faults = Faults {
        delay_ns: 50 * MICROSECOND,
        interval_ns,
        largest: Some(1300),
        bundles: [1000, 0],
        ..Faults::default()
    };
    let mut world = World::new(seed, faults, mutant);
    world.run()?;
    let [(0, at, PathFault::Silent)] = world.lost[..] else { return Err(format!("lost: {:?}", world.lost)) };
    let ReliabilityConfig { limit_ns, max_timeout_ns, .. } = world.config;
    // The first large one is among the first hundred: one in ten is large.
    let waited_ns = at - world.ends[0].path.sender.oldest_since().0;
    rule!(waited_ns <= limit_ns + max_timeout_ns, "waited for {waited_ns} ns");
    let small = world.ends[1].received;
    let after = world.ends[0].submitted - small;
    let most = 2 * (limit_ns + max_timeout_ns) / interval_ns * 2;
    rule!(after <= most, "{after} bundles after the first large one, at most {most}");
    Ok(())
}

/// Losses in one direction only: a round trip is then never longer than both ways, a batch and the delay of an
/// acknowledgement.
fn run_with_measured_round_trips(seed: u64, mutant: Option<Mutant>) -> Rule<()> {
    let faults = Faults {
        lost: [0, 200],
        delay_ns: 40 * MICROSECOND,
        jitter_ns: 20 * MICROSECOND,
        bundles: [100, 0],
        interval_ns: 500 * MICROSECOND,
        ..Faults::default()
    };
    let mut world = World::new(seed, faults, mutant);
    world.run()?;
    let round_trip_ns = world.ends[0].path.view().round_trip_ns;
    let most_ns = 2 * (40 + 20) * MICROSECOND + 20 * MICROSECOND + world.config.acknowledgement_delay_ns;
    rule!(round_trip_ns <= most_ns, "a round trip of {round_trip_ns} ns, at most {most_ns}");
    Ok(())
}

/// A network that loses nothing, but delivers in any order: nothing leaves twice.
fn run_without_loss(seed: u64, mutant: Option<Mutant>) -> Rule<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let jitter_ns = random.u64(..400) * MICROSECOND;
    let (bundles, refused) = ([random.u32(..600), random.u32(..600)], random.u32(..100));
    let interval_ns = random.u64(1..60) * MICROSECOND;
    let delay_ns = 40 * MICROSECOND;
    let faults =
        Faults { is_lossless: true, jitter_ns, bundles, refused, interval_ns, delay_ns, ..Faults::default() };
    let mut world = World::new(seed, faults, mutant);
    world.run()?;
    let sent_again = world.ends[0].path.counters().sent_again + world.ends[1].path.counters().sent_again;
    rule!(sent_again == 0 && world.lost.is_empty(), "{sent_again} sent again, lost: {:?}", world.lost);
    Ok(())
}

/// A peer that shares its core and loses nothing: little of what is sent to it is sent twice.
fn run_with_turns(seed: u64, mutant: Option<Mutant>) -> Rule<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let faults = Faults {
        turns_ns: Some([random.u64(100..2000) * MICROSECOND, random.u64(1000..4000) * MICROSECOND]),
        delay_ns: random.u64(1..20) * MICROSECOND,
        bundles: [20_000, 0],
        // Seldom ones wait longer than acknowledgements do.
        interval_ns: [2, 10, 200][random.usize(..3)] * MICROSECOND,
        ..Faults::default()
    };
    let mut world = World::new(seed, faults, mutant);
    world.run()?;
    let end = &world.ends[0];
    let (sent_again, most) = (end.path.counters().sent_again, end.submitted / 100);
    rule!(sent_again <= most, "{sent_again} of {} bundles were sent again, {faults:?}", end.submitted);
    Ok(())
}

fn run_all(seed: u64, mutant: Option<Mutant>) -> Rule<()> {
    run_random(seed, mutant)?;
    run_without_loss(seed, mutant).map_err(|reason| format!("without loss {seed}: {reason}"))?;
    if seed.is_multiple_of(10) {
        run_until_silence(seed, mutant).map_err(|reason| format!("silence {seed}: {reason}"))?;
        run_on_a_small_path(seed, mutant).map_err(|reason| format!("small path {seed}: {reason}"))?;
        run_with_measured_round_trips(seed, mutant)
            .map_err(|reason| format!("round trips {seed}: {reason}"))?;
        run_with_turns(seed, mutant).map_err(|reason| format!("turns {seed}: {reason}"))?;
    }
    Ok(())
}

/// Seeds of a normal run. `WEIR_WORLDS` has another number.
fn seeds() -> u64 {
    std::env::var("WEIR_WORLDS").ok().and_then(|count| count.parse().ok()).unwrap_or(300)
}

#[test]
fn random_worlds_keep_the_rules() {
    for seed in 0..seeds() {
        run_all(seed, None).unwrap_or_else(|reason| panic!("{reason}"));
    }
}

#[test]
fn random_worlds_contain_every_fault() {
    let mut seen = PathCounters::default();
    let (mut restarts, mut silences) = (0, 0);
    let (mut needless_probes, mut needed_probes) = (0, 0);
    for seed in 0..60 {
        let world = run_random(seed, None).unwrap_or_else(|reason| panic!("{reason}"));
        for end in &world.ends {
            let counters = end.path.counters();
            seen.sent_again += counters.sent_again;
            seen.sent_needlessly += counters.sent_needlessly;
            seen.timeouts += counters.timeouts;
            seen.marked += counters.marked;
            seen.repeated += counters.repeated;
            seen.stale += counters.stale;
            needless_probes += end.path.sender.counts.needless_probes;
            needed_probes += end.path.sender.counts.needed_probes;
        }
        restarts += world.lost.iter().filter(|lost| lost.2 == PathFault::Restarted).count();
        silences += world.lost.iter().filter(|lost| lost.2 == PathFault::Silent).count();
    }
    let PathCounters { sent_again, sent_needlessly, timeouts, marked, repeated, stale, .. } = seen;
    for count in [sent_again, sent_needlessly, timeouts, marked, repeated, stale] {
        assert!(count > 0, "{seen:?}");
    }
    assert!(restarts > 0 && silences > 0, "{restarts} restarts, {silences} silent");
    assert!(needless_probes > 0 && needed_probes > 0, "{needless_probes} and {needed_probes} probes");
}

/// Wrong rules that these worlds do not show have exact tests beside this file: the window of a receiver, sends that
/// delay a timeout, a restart without proof, arrivals that restart the limit, what a probe says about the network, and the queue
/// of a proxy.
#[test]
fn worlds_detect_mutants() {
    let mutants = [
        Mutant::AcknowledgementIsNotCumulative,
        Mutant::TimeoutsDoNotBackOff,
        Mutant::ProbesRepeat,
        Mutant::LatePeersAreNotAwaited,
        Mutant::RoundTripCountsFromTheFirstTransmission,
        Mutant::EpochsAreNotCompared,
        Mutant::RepeatedBundlesAreDelivered,
        Mutant::AcknowledgementsAreAcknowledged,
        Mutant::WindowIgnoresLosses,
    ];
    for mutant in mutants {
        let breaks = |seed: &u64| {
            let result = std::panic::catch_unwind(|| run_all(*seed, Some(mutant)));
            !matches!(result, Ok(Ok(())))
        };
        let seed = (0..seeds()).find(breaks);
        assert!(seed.is_some(), "{mutant:?} is not detected");
        std::println!("{mutant:?}: world {seed:?}");
    }
}
