//! The data of the page of `weir run --report`: traces of all endpoints on one time axis, reduced to what a figure can
//! show. It has the memory, waits and credits of the endpoints over time, and the totals of each pair of sender and
//! receiver.
//!
//! The run is divided into [`Timeline::bins`] bins of equal length, and a series has one value for each bin. Memory and
//! credits of a bin without a sample are those of the bin before it. The growth of waits between two samples is spread
//! evenly over the bins between them. Where nothing is known of an endpoint, the value is `NaN`.
//!
//! The counters of an endpoint count as its last sample, so an endpoint without a trace can have a line too. If all
//! samples of an endpoint fall into one bin, its line begins with zeros where the endpoint was opened.

use std::collections::{BTreeMap, HashMap};
use weir_engine::stats::EndpointReport;
use weir_engine::trace::{Gauges, PairSample, Sample, Trace, TracedEndpoint};
use weir_proto::Counters;

/// Bins of a run.
const BINS: usize = 240;
/// Shortest span that the time axis shows. Unit: ns.
const MIN_SPAN_NS: u64 = 1_000_000;

/// One value for each bin; `NaN`: not known.
pub type Series = Vec<f64>;

/// One endpoint.
#[derive(Debug)]
pub struct TimelineEndpoint {
    /// Rank 0: `0` for its first endpoint, `0.1` for its second; `pid 4711` if the rank is not known.
    pub name: String,
    /// Its counters.
    pub counters: Counters,
    /// Its samples; empty if it left neither a trace nor counters.
    trace: Trace,
    /// Number of peers that it waits for, on average over each bin.
    pub waiting: Series,
    /// One series for each entry of [`MEMORY`]: the maximum of each bin.
    pub memory: [Series; MEMORY.len()],
    /// Senders that wait for free slots of its mailbox: the maximum of each bin.
    pub waiting_senders: Series,
}

/// Memory that the page shows: heading, and whether the unit is bytes (otherwise it is a count).
pub const MEMORY: [(&str, bool); 5] = [
    ("mailbox", true),
    ("peer state", true),
    ("unexpected messages", false),
    ("unexpected payload", true),
    ("process (RssAnon + RssShmem)", true),
];

/// Index of the memory of the process in [`MEMORY`].
pub const PROCESS: usize = 4;

/// A sender and a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Index of the sender in [`Timeline::endpoints`].
    pub from: usize,
    /// Index of the receiver.
    pub to: usize,
    /// Time for which the sender waited for credit. Unit: ns.
    pub stalled_ns: u64,
    /// Slots that the sender filled, modulo 2^32; 0 with schemes that do not count them.
    pub slots: u64,
    /// The last smoothed round trip over a network; 0: none was measured. Unit: us.
    pub round_trip_us: u32,
    /// Bundles of packets that were sent again over a network.
    pub sent_again: u64,
}

/// Credits of one peer.
#[derive(Debug)]
pub struct PeerSeries {
    /// Index of the peer in [`Timeline::endpoints`].
    pub endpoint: usize,
    /// The average of each bin.
    pub slots: Series,
}

/// A whole run.
#[derive(Debug)]
pub struct Timeline {
    /// By rank.
    pub endpoints: Vec<TimelineEndpoint>,
    /// Length of the run. Unit: s.
    pub span_s: f64,
    /// Number of bins.
    pub bins: usize,
    /// Pairs in which the sender ever sent, ordered by the time it waited, then by the slots it filled.
    pub pairs: Vec<Pair>,
    start_ns: u64,
    by_identity: HashMap<u64, usize>,
}

/// Totals of a pair. Its counters restart at 0 whenever the sender attaches again to the mailbox of the receiver.
#[derive(Default)]
struct Totals {
    slots: u64,
    stalled_ns: u64,
    connected: bool,
    last_spent: u64,
    last_stalled_ns: u64,
    round_trip_us: u32,
    sent_again: u64,
    last_sent_again: u64,
}

impl Totals {
    fn add(&mut self, pair: &PairSample) {
        let grown = |now: u64, before: u64| if now >= before { now - before } else { now };
        let spent = u64::from(pair.spent_total.unwrap_or(0));
        self.slots += grown(spent, self.last_spent);
        self.stalled_ns = self.stalled_ns.saturating_add(grown(pair.stalled_ns, self.last_stalled_ns));
        self.connected |= pair.credits.is_some();
        if pair.round_trip_us > 0 {
            self.round_trip_us = pair.round_trip_us;
        }
        let sent_again = u64::from(pair.sent_again);
        self.sent_again += grown(sent_again, self.last_sent_again);
        self.last_sent_again = sent_again;
        (self.last_spent, self.last_stalled_ns) = (spent, pair.stalled_ns);
    }
}

impl Timeline {
    /// The timeline of the endpoints of a run, from their counters and their traces.
    pub fn new(endpoints: &[EndpointReport], traces: Vec<Trace>) -> Timeline {
        let mut traces: HashMap<u64, Trace> =
            traces.into_iter().map(|trace| (trace.subject.identity, trace)).collect();
        let traces: Vec<Trace> = endpoints
            .iter()
            .map(|endpoint| with_counters(traces.remove(&endpoint.identity), endpoint))
            .collect();
        let sampled = || traces.iter().filter(|trace| !trace.samples.is_empty());
        let end =
            |trace: &Trace| trace.samples.last().map_or(0, |last| trace.subject.started_ns + last.at_ns);
        let start_ns = sampled().map(|trace| trace.subject.started_ns).min().unwrap_or(0);
        let end_ns = sampled().map(end).max().unwrap_or(0).max(start_ns + MIN_SPAN_NS);
        let by_identity =
            endpoints.iter().enumerate().map(|(index, endpoint)| (endpoint.identity, index)).collect();
        let mut timeline = Timeline {
            endpoints: Vec::new(),
            span_s: (end_ns - start_ns) as f64 / 1e9,
            bins: BINS,
            pairs: Vec::new(),
            start_ns,
            by_identity,
        };
        for ((endpoint, name), mut trace) in endpoints.iter().zip(names(endpoints)).zip(traces) {
            timeline.begin_with_zeros_if_short(&mut trace);
            timeline.endpoints.push(TimelineEndpoint {
                name,
                counters: endpoint.counters,
                waiting: timeline.rate(&trace, |sample| sample.counters.stalled_ns),
                memory: timeline.memory(&trace),
                waiting_senders: timeline.gauge(&trace, |gauges| gauges.waiting_senders),
                trace,
            });
        }
        timeline.pairs = timeline.all_pairs();
        timeline
    }

    /// Adds a sample of zeros where the endpoint was opened, if all its samples fall into one bin.
    fn begin_with_zeros_if_short(&self, trace: &mut Trace) {
        let bin = |sample: &Sample| self.bin(trace, sample.at_ns);
        if let (Some(first), Some(last)) = (trace.samples.first(), trace.samples.last())
            && first.at_ns > 0
            && bin(first) == bin(last)
        {
            trace.samples.insert(0, Sample::default());
        }
    }

    /// The place of a moment of a trace on the common axis. Unit: bins.
    fn place(&self, trace: &Trace, at_ns: u64) -> f64 {
        let at_ns = (trace.subject.started_ns - self.start_ns) as f64 + at_ns as f64;
        at_ns / 1e9 / self.span_s * self.bins as f64
    }

    fn bin(&self, trace: &Trace, at_ns: u64) -> usize {
        (self.place(trace, at_ns) as usize).min(self.bins - 1)
    }

    /// The middle of a bin. Unit: s.
    pub fn time_s(&self, bin: usize) -> f64 {
        (bin as f64 + 0.5) * self.span_s / self.bins as f64
    }

    /// The growth of a total in each bin, divided by the length of the bin. Between two samples it grows evenly.
    fn rate(&self, trace: &Trace, total_ns: impl Fn(&Sample) -> u64) -> Series {
        let mut rate = vec![f64::NAN; self.bins];
        let bin_ns = self.span_s * 1e9 / self.bins as f64;
        let Some(last_ns) = trace.samples.last().map(|last| last.at_ns) else { return rate };
        rate[self.bin(trace, 0)..=self.bin(trace, last_ns)].fill(0.0);
        let (mut from, mut before_ns) = (self.place(trace, 0), 0);
        for sample in &trace.samples {
            let (to, now_ns) = (self.place(trace, sample.at_ns), total_ns(sample));
            let grown_ns = now_ns.saturating_sub(before_ns) as f64;
            if grown_ns > 0.0 && to > from {
                for (bin, rate) in rate.iter_mut().enumerate().take(to as usize + 1).skip(from as usize) {
                    let overlap = (to.min(bin as f64 + 1.0) - from.max(bin as f64)).max(0.0);
                    *rate += grown_ns * overlap / (to - from) / bin_ns;
                }
            }
            (from, before_ns) = (to, now_ns);
        }
        rate
    }

    fn memory(&self, trace: &Trace) -> [Series; MEMORY.len()] {
        let mut series: [Series; MEMORY.len()] = std::array::from_fn(|_| vec![f64::NAN; self.bins]);
        for sample in &trace.samples {
            let gauges = &sample.gauges;
            let values = [
                gauges.mailbox_bytes,
                gauges.peer_state_bytes,
                gauges.unexpected_messages,
                gauges.unexpected_bytes,
                gauges.process_bytes,
            ];
            let bin = self.bin(trace, sample.at_ns);
            for (index, (series, value)) in series.iter_mut().zip(values).enumerate() {
                if index == PROCESS && value == 0 {
                    continue; // not known
                }
                series[bin] = series[bin].max(value as f64); // `max` ignores a NaN
            }
        }
        series.iter_mut().for_each(|series| fill(series));
        series
    }

    /// The maximum of a gauge in each bin.
    fn gauge(&self, trace: &Trace, value: impl Fn(&Gauges) -> u64) -> Series {
        let mut series = vec![f64::NAN; self.bins];
        for sample in &trace.samples {
            let bin = self.bin(trace, sample.at_ns);
            series[bin] = series[bin].max(value(&sample.gauges) as f64);
        }
        fill(&mut series);
        series
    }

    fn all_pairs(&self) -> Vec<Pair> {
        let mut pairs = Vec::new();
        for (from, endpoint) in self.endpoints.iter().enumerate() {
            let trace = &endpoint.trace;
            let mut totals: BTreeMap<u32, Totals> = BTreeMap::new();
            for (&number, pair) in trace.samples.iter().flat_map(|sample| &sample.pairs) {
                totals.entry(number).or_default().add(pair);
            }
            for (number, totals) in totals {
                let Totals { slots, stalled_ns, connected, round_trip_us, sent_again, .. } = totals;
                let Some(&to) = trace.peers.get(&number).and_then(|peer| self.by_identity.get(peer)) else {
                    continue;
                };
                if connected || stalled_ns > 0 || round_trip_us > 0 {
                    pairs.push(Pair { from, to, stalled_ns, slots, round_trip_us, sent_again });
                }
            }
        }
        pairs.sort_by_key(|pair| std::cmp::Reverse((pair.stalled_ns, pair.slots)));
        pairs
    }

    /// Credits that the endpoint in `endpoint` has at its peers, over time.
    pub fn credits_of(&self, endpoint: usize) -> Vec<PeerSeries> {
        self.peer_series(endpoint, |pair| pair.credits)
    }

    /// Slots of the mailbox of `endpoint` that are its senders', over time.
    pub fn granted_by(&self, endpoint: usize) -> Vec<PeerSeries> {
        self.peer_series(endpoint, |pair| pair.current)
    }

    /// Slots that the senders to `endpoint` want beyond those that they own, over time; empty without credits on demand.
    pub fn demand_at(&self, endpoint: usize) -> Vec<PeerSeries> {
        self.peer_series(endpoint, |pair| pair.demand)
    }

    /// Of the slots of the mailbox of `endpoint` that are its senders', those for which they have told no use.
    pub fn idle_at(&self, endpoint: usize) -> Vec<PeerSeries> {
        self.peer_series(endpoint, |pair| pair.idle)
    }

    fn peer_series(&self, endpoint: usize, value: impl Fn(&PairSample) -> Option<u32>) -> Vec<PeerSeries> {
        let trace = &self.endpoints[endpoint].trace;
        let mut sums: BTreeMap<usize, Vec<(f64, u32)>> = BTreeMap::new();
        let mut state: BTreeMap<usize, u32> = BTreeMap::new();
        for sample in &trace.samples {
            for (number, pair) in &sample.pairs {
                let peer = trace.peers.get(number).and_then(|peer| self.by_identity.get(peer));
                let Some(&peer) = peer else { continue };
                match value(pair) {
                    Some(slots) => drop(state.insert(peer, slots)),
                    None => drop(state.remove(&peer)),
                }
            }
            let bin = self.bin(trace, sample.at_ns);
            for (&peer, &slots) in &state {
                let sums = sums.entry(peer).or_insert_with(|| vec![(0.0, 0); self.bins]);
                sums[bin] = (sums[bin].0 + f64::from(slots), sums[bin].1 + 1);
            }
        }
        let mean = |(sum, count): (f64, u32)| if count > 0 { sum / f64::from(count) } else { f64::NAN };
        sums.into_iter()
            .map(|(endpoint, sums)| {
                let mut slots: Series = sums.into_iter().map(mean).collect();
                fill(&mut slots);
                PeerSeries { endpoint, slots }
            })
            .collect()
    }

    /// The endpoints at which was waited longest, then sent most: at most `count`, beginning with those.
    pub fn busiest(&self, count: usize) -> Vec<usize> {
        let mut weight = vec![(0u64, 0u64); self.endpoints.len()];
        for pair in &self.pairs {
            for endpoint in [pair.from, pair.to] {
                weight[endpoint].0 = weight[endpoint].0.saturating_add(pair.stalled_ns);
                weight[endpoint].1 = weight[endpoint].1.saturating_add(pair.slots);
            }
        }
        let mut endpoints: Vec<usize> = (0..self.endpoints.len()).collect();
        endpoints.sort_by_key(|&endpoint| std::cmp::Reverse(weight[endpoint]));
        endpoints.truncate(count);
        endpoints
    }
}

/// Gives bins without a sample, between the first and the last sample, the value of the bin before.
fn fill(series: &mut [f64]) {
    let Some(last) = series.iter().rposition(|value| !value.is_nan()) else { return };
    let mut before = f64::NAN;
    for value in &mut series[..last] {
        if value.is_nan() {
            *value = before;
        }
        before = *value;
    }
}

/// The samples of an endpoint, and its counters as the last one, if they are newer than the samples.
fn with_counters(trace: Option<Trace>, endpoint: &EndpointReport) -> Trace {
    let &EndpointReport { rank, pid, started_ns, identity, .. } = endpoint;
    let mut trace = trace.unwrap_or_else(|| Trace {
        path: endpoint.path.clone(),
        subject: TracedEndpoint { rank, pid, started_ns, identity },
        peers: BTreeMap::new(),
        samples: Vec::new(),
    });
    let at_ns = endpoint.polled_ns.saturating_sub(trace.subject.started_ns);
    if at_ns > trace.samples.last().map_or(0, |last| last.at_ns) {
        let gauges = Gauges {
            mailbox_bytes: endpoint.mailbox_bytes,
            peer_state_bytes: endpoint.peer_state_bytes,
            unexpected_messages: endpoint.unexpected_messages,
            unexpected_bytes: endpoint.unexpected_bytes,
            backlog: endpoint.backlog,
            process_bytes: 0,
            free_slots: endpoint.lending.map_or(0, |lending| lending.free_slots),
            waiting_senders: endpoint.lending.map_or(0, |lending| lending.waiting_senders),
        };
        let counters = endpoint.counters;
        trace.samples.push(Sample { at_ns, gauges, counters, pairs: BTreeMap::new() });
    }
    trace
}

fn names(endpoints: &[EndpointReport]) -> Vec<String> {
    let mut seen: HashMap<String, u32> = HashMap::new();
    let mut name = |endpoint: &EndpointReport| {
        let name = endpoint.rank.map_or_else(|| format!("pid {}", endpoint.pid), |rank| rank.to_string());
        let count = seen.entry(name.clone()).or_insert(0);
        *count += 1;
        if *count == 1 { name } else { format!("{name}.{}", *count - 1) }
    };
    endpoints.iter().map(&mut name).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::report::tests::endpoint;

    pub(crate) fn sample(at_ms: u64, stalled_ms: u64, pairs: &[(u32, PairSample)]) -> Sample {
        Sample {
            at_ns: at_ms * 1_000_000,
            gauges: Gauges { unexpected_bytes: at_ms, ..Gauges::default() },
            counters: Counters { stalled_ns: stalled_ms * 1_000_000, ..Counters::default() },
            pairs: pairs.iter().copied().collect(),
        }
    }

    pub(crate) fn trace(rank: u64, samples: Vec<Sample>, peers: &[(u32, u64)]) -> Trace {
        let subject =
            TracedEndpoint { rank: Some(rank), pid: 1, started_ns: 5_000_000_000, identity: 1000 + rank };
        Trace { path: "x.trace".into(), subject, peers: peers.iter().copied().collect(), samples }
    }

    fn reports(ranks: u64) -> Vec<EndpointReport> {
        (0..ranks)
            .map(|rank| EndpointReport { identity: 1000 + rank, ..endpoint(rank, true, 1, 0) })
            .collect()
    }

    fn two() -> Timeline {
        let pair = |credits, stalled_ms: u64| PairSample {
            credits: Some(credits),
            spent_total: Some(10),
            current: Some(256 - credits),
            stalled_ns: stalled_ms * 1_000_000,
            round_trip_us: credits, // none at the end
            sent_again: 3 + credits,
            ..PairSample::default()
        };
        let samples = vec![
            sample(0, 0, &[(0, pair(256, 0))]),
            sample(120, 0, &[]),
            sample(240, 60, &[(0, pair(0, 60))]),
        ];
        Timeline::new(&reports(2), vec![trace(0, samples, &[(0, 1001)])])
    }

    #[test]
    fn traces_share_one_time_axis_and_stalls_are_spread_over_their_interval() {
        let timeline = two();
        assert!((timeline.span_s - 0.24).abs() < 1e-9 && timeline.bins == 240);
        let waiting = &timeline.endpoints[0].waiting;
        assert!(waiting[..120].iter().all(|share| *share == 0.0));
        assert!(waiting[120..].iter().all(|share| (share - 0.5).abs() < 1e-9), "{waiting:?}");
        assert!(timeline.endpoints[1].waiting[0].is_nan(), "an endpoint without a trace has no values");
        assert_eq!(timeline.endpoints[0].memory[3][200], 120.0); // as it was before
        assert_eq!(timeline.endpoints[0].memory[3][239], 240.0);
    }

    #[test]
    fn pairs_and_their_credits_come_from_the_senders_trace() {
        let timeline = two();
        let expected = Pair {
            from: 0,
            to: 1,
            stalled_ns: 60_000_000,
            slots: 10,
            round_trip_us: 256,  // the last one that was measured
            sent_again: 259 + 3, // those of a path that has ended, and of the next one
        };
        assert_eq!(timeline.pairs, [expected]);
        let credits = timeline.credits_of(0);
        assert_eq!((credits.len(), credits[0].endpoint), (1, 1));
        assert_eq!((credits[0].slots[0], credits[0].slots[238], credits[0].slots[239]), (256.0, 256.0, 0.0));
        assert_eq!(timeline.granted_by(0)[0].slots[239], 256.0);
        assert_eq!(timeline.busiest(1), [0]);
    }

    #[test]
    fn endpoints_of_one_rank_have_distinct_names() {
        let endpoints = [endpoint(0, true, 1, 0), endpoint(1, true, 1, 0), endpoint(1, true, 1, 0)];
        assert_eq!(names(&endpoints), ["0", "1", "1.1"]);
    }

    #[test]
    fn counters_are_the_last_sample_and_the_line_of_a_short_run_begins_at_zero() {
        let started_ns = 5_000_000_000;
        let mut reports = reports(3);
        for report in &mut reports {
            (report.started_ns, report.polled_ns) = (started_ns, started_ns + 2_000_000);
        }
        // Rank 0 leaves no trace, rank 1 one sample in the bin of its counters, rank 2 a longer trace.
        let near_end = Sample { at_ns: 1_999_000, ..sample(1, 0, &[]) };
        let traces =
            vec![trace(1, vec![near_end], &[]), trace(2, vec![sample(0, 0, &[]), sample(1, 0, &[])], &[])];
        let timeline = Timeline::new(&reports, traces);
        assert!((timeline.span_s - 0.002).abs() < 1e-9);
        for endpoint in &timeline.endpoints[..2] {
            let mailbox = &endpoint.memory[0];
            assert_eq!((mailbox[0], mailbox[238], mailbox[239]), (0.0, 0.0, 16896.0), "{}", endpoint.name);
            assert!(endpoint.memory[PROCESS].iter().all(|bytes| bytes.is_nan()), "not known");
            let enclosed = endpoint.waiting.iter().sum::<f64>() * timeline.span_s / timeline.bins as f64;
            assert!((enclosed - 0.0015).abs() < 1e-9, "the counters say 1.5 ms");
        }
        let mailbox = &timeline.endpoints[2].memory[0];
        assert_eq!((mailbox[0], mailbox[120], mailbox[239]), (0.0, 0.0, 16896.0));
    }

    #[test]
    fn an_empty_run_has_an_empty_timeline() {
        let timeline = Timeline::new(&[], Vec::new());
        assert!(timeline.endpoints.is_empty() && timeline.pairs.is_empty() && timeline.span_s > 0.0);
    }
}
