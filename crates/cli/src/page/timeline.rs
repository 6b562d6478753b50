//! What the page tells, in numbers: traces of all endpoints, put on one time axis and reduced to what can be drawn.
//!
//! Every endpoint has one endpoint. Series have one value for each of [`Timeline::bins`] equal parts of the run; a part in which
//! an endpoint was not sampled has the value before, and `NaN` before its first and after its last sample.

use std::collections::{BTreeMap, HashMap};
use weir_engine::stats::EndpointReport;
use weir_engine::trace::{PairSample, Sample, Trace};
use weir_proto::Counters;

/// Parts of the run, when there is room for them.
const MAX_BINS: usize = 240;

/// A value for each part of the run.
pub type Series = Vec<f64>;

/// One endpoint.
#[derive(Debug)]
pub struct TimelineEndpoint {
    /// `0`, or `0.1` for the second endpoint of a rank; `pid 4711` if its rank is not known.
    pub name: String,
    /// What it counted.
    pub counters: Counters,
    /// Its trace, if it left one with samples.
    trace: Option<Trace>,
    /// Peers waited for at a time, on average.
    pub waiting: Series,
    /// By [`MEMORY`]: the most in each part.
    pub memory: [Series; MEMORY.len()],
}

/// What is shown of memory: heading, and whether it is bytes (else a count).
pub const MEMORY: [(&str, bool); 5] = [
    ("mailbox", true),
    ("state kept for peers", true),
    ("unexpected messages", false),
    ("unexpected payload", true),
    ("process (RssAnon + RssShmem)", true),
];

/// A sender and a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Seat of the sender.
    pub from: usize,
    /// Seat of the receiver.
    pub to: usize,
    /// How long the sender waited for credit. Unit: ns.
    pub stalled_ns: u64,
    /// Slots that it filled, modulo 2^32; 0 with schemes that do not count them.
    pub slots: u64,
}

/// Credits of one peer.
#[derive(Debug)]
pub struct PeerSeries {
    /// Its endpoint.
    pub endpoint: usize,
    /// On average in each part.
    pub slots: Series,
}

/// A whole run.
#[derive(Debug)]
pub struct Timeline {
    /// By rank.
    pub endpoints: Vec<TimelineEndpoint>,
    /// Length of the run. Unit: s.
    pub span_s: f64,
    /// Parts of it.
    pub bins: usize,
    /// Pairs that ever sent, those that waited longest first, then those that sent most.
    pub pairs: Vec<Pair>,
    start_ns: u64,
    by_identity: HashMap<u64, usize>,
}

/// A pair summed up over its sender's stays: each counts its slots from 0, and the waiting begins again when a peer was
/// forgotten.
#[derive(Default)]
struct Totals {
    slots: u64,
    stalled_ns: u64,
    connected: bool,
    last_spent: u64,
    last_stalled_ns: u64,
}

impl Totals {
    fn add(&mut self, pair: &PairSample) {
        let grown = |now: u64, before: u64| if now >= before { now - before } else { now };
        let spent = u64::from(pair.spent_total.unwrap_or(0));
        self.slots += grown(spent, self.last_spent);
        self.stalled_ns = self.stalled_ns.saturating_add(grown(pair.stalled_ns, self.last_stalled_ns));
        self.connected |= pair.credits.is_some();
        (self.last_spent, self.last_stalled_ns) = (spent, pair.stalled_ns);
    }
}

impl Timeline {
    /// Puts together what endpoints have left.
    pub fn new(endpoints: &[EndpointReport], traces: Vec<Trace>) -> Timeline {
        let mut traces: HashMap<u64, Trace> = traces
            .into_iter()
            .filter(|trace| !trace.samples.is_empty())
            .map(|trace| (trace.subject.identity, trace))
            .collect();
        let end =
            |trace: &Trace| trace.samples.last().map_or(0, |last| trace.subject.started_ns + last.at_ns);
        let start_ns = traces.values().map(|trace| trace.subject.started_ns).min().unwrap_or(0);
        let end_ns = traces.values().map(end).max().unwrap_or(0).max(start_ns + 1_000_000);
        let by_identity =
            endpoints.iter().enumerate().map(|(index, endpoint)| (endpoint.identity, index)).collect();
        let bins = MAX_BINS;
        let mut timeline = Timeline {
            endpoints: Vec::new(),
            span_s: (end_ns - start_ns) as f64 / 1e9,
            bins,
            pairs: Vec::new(),
            start_ns,
            by_identity,
        };
        for (endpoint, name) in endpoints.iter().zip(names(endpoints)) {
            let trace = traces.remove(&endpoint.identity);
            let (mut waiting, mut memory) =
                (vec![f64::NAN; bins], std::array::from_fn(|_| vec![f64::NAN; bins]));
            if let Some(trace) = &trace {
                waiting = timeline.rate(trace, |sample| sample.counters.stalled_ns);
                memory = timeline.memory(trace);
            }
            timeline.endpoints.push(TimelineEndpoint {
                name,
                counters: endpoint.counters,
                trace,
                waiting,
                memory,
            });
        }
        timeline.pairs = timeline.all_pairs();
        timeline
    }

    /// Where a moment of a trace lies on the common axis. Unit: parts.
    fn place(&self, trace: &Trace, at_ns: u64) -> f64 {
        let at_ns = (trace.subject.started_ns - self.start_ns) as f64 + at_ns as f64;
        at_ns / 1e9 / self.span_s * self.bins as f64
    }

    fn bin(&self, trace: &Trace, at_ns: u64) -> usize {
        (self.place(trace, at_ns) as usize).min(self.bins - 1)
    }

    /// The middle of a part. Unit: s.
    pub fn time_s(&self, bin: usize) -> f64 {
        (bin as f64 + 0.5) * self.span_s / self.bins as f64
    }

    /// What a total grew by in each part, per time; between two samples it grew evenly.
    fn rate(&self, trace: &Trace, total_ns: impl Fn(&Sample) -> u64) -> Series {
        let mut rate = vec![f64::NAN; self.bins];
        let bin_ns = self.span_s * 1e9 / self.bins as f64;
        let last_ns = trace.samples.last().map_or(0, |last| last.at_ns);
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
            for (series, value) in series.iter_mut().zip(values) {
                series[bin] = series[bin].max(value as f64); // the other one, if one is NaN
            }
        }
        series.iter_mut().for_each(|series| fill(series));
        series
    }

    fn all_pairs(&self) -> Vec<Pair> {
        let mut pairs = Vec::new();
        for (from, endpoint) in self.endpoints.iter().enumerate() {
            let Some(trace) = &endpoint.trace else { continue };
            let mut totals: BTreeMap<u32, Totals> = BTreeMap::new();
            for (&number, pair) in trace.samples.iter().flat_map(|sample| &sample.pairs) {
                totals.entry(number).or_default().add(pair);
            }
            for (number, Totals { slots, stalled_ns, connected, .. }) in totals {
                let Some(&to) = trace.peers.get(&number).and_then(|peer| self.by_identity.get(peer)) else {
                    continue;
                };
                if connected || stalled_ns > 0 {
                    pairs.push(Pair { from, to, stalled_ns, slots });
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

    fn peer_series(&self, endpoint: usize, value: impl Fn(&PairSample) -> Option<u32>) -> Vec<PeerSeries> {
        let Some(trace) = &self.endpoints[endpoint].trace else { return Vec::new() };
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

/// What was not sampled between the first and the last sample is as it was before.
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
    use weir_engine::trace::{Gauges, TracedEndpoint};

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
        assert_eq!(timeline.pairs, [Pair { from: 0, to: 1, stalled_ns: 60_000_000, slots: 10 }]);
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
    fn an_empty_run_has_an_empty_timeline() {
        let timeline = Timeline::new(&[], Vec::new());
        assert!(timeline.endpoints.is_empty() && timeline.pairs.is_empty() && timeline.span_s > 0.0);
    }
}
