//! Which number of tokens is best at a point ([`best`]), and the steps that follow from all points ([`token_table`]).
//!
//! A number of tokens is kept only if no kind of traffic loses throughput by it or gets a long tail, and at least one
//! gains: in throughput, in its 99th percentile, or in datagrams that are sent again. Ratios are those to `off` in the
//! same round.

use crate::congestion::{Sample, Traffic};
use crate::statistics::{Spread, ratios};
use serde::Serialize;
use weir_proto::admission::{TokenStep, TokenTable};

/// The least ratio of throughputs, in the median.
const LEAST_RATIO: f64 = 0.98;
/// From this ratio on, throughput gains.
const GAIN_RATIO: f64 = 1.05;
/// Up to this ratio of the 99th percentiles, the tail gains.
const TAIL_RATIO: f64 = 0.8;
/// Beyond this ratio of the 99th percentiles, the tail loses.
const MOST_TAIL_RATIO: f64 = 1.2;
/// Datagrams that are sent again gain if they fall by half, and were more than this share.
const LEAST_AGAIN: f64 = 0.01;
const AGAIN_RATIO: f64 = 0.5;
/// A number of tokens with less than this ratio of throughputs in one round costs, and is not measured again.
const FAR_BEHIND_RATIO: f64 = 0.8;

/// A message length with a number of active ranks on each host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Point {
    /// Unit: bytes.
    pub bytes: u32,
    /// Active ranks of a host.
    pub ranks: u32,
}

/// A number of tokens beside `off`, for one kind of traffic.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Where it was measured.
    #[serde(flatten)]
    pub point: Point,
    /// The kind of traffic.
    pub traffic: Traffic,
    /// Tokens of a host.
    pub tokens: u32,
    /// Operations a second without tokens.
    pub off_per_s: Spread,
    /// With them.
    pub per_s: Spread,
    /// Ratio of both in the same round.
    pub ratio: Spread,
    /// The 99th percentile of the time of an operation without tokens. Unit: us.
    pub off_p99_us: f64,
    /// With them. Unit: us.
    pub p99_us: f64,
    /// Ratio of both in the same round.
    pub p99_ratio: Spread,
    /// Bundles that were sent again without tokens, of all datagrams.
    pub off_sent_again: f64,
    /// With them.
    pub sent_again: f64,
    /// What is said about it, in one word or two.
    pub verdict: &'static str,
    /// Waits for tokens in a job.
    pub gate_waits: f64,
}

impl Comparison {
    /// - `off`, `with`: samples by round. `None`: one of them is empty.
    pub fn of(
        point: Point,
        traffic: Traffic,
        tokens: u32,
        off: &[Sample],
        with: &[Sample],
    ) -> Option<Comparison> {
        let rounds = off.len().min(with.len());
        let (off, with) = (&off[..rounds], &with[..rounds]);
        let values = |samples: &[Sample], of: fn(&Sample) -> f64| samples.iter().map(of).collect::<Vec<_>>();
        let per_s = |sample: &Sample| sample.per_s;
        let spread = |samples, of| Spread::of(&values(samples, of));
        let compared = |of| Spread::of(&ratios(&values(with, of), &values(off, of))?);
        let mut comparison = Comparison {
            point,
            traffic,
            tokens,
            off_per_s: spread(off, per_s)?,
            per_s: spread(with, per_s)?,
            ratio: compared(per_s)?,
            off_p99_us: spread(off, Sample::tail_us)?.median,
            p99_us: spread(with, Sample::tail_us)?.median,
            p99_ratio: compared(Sample::tail_us)?,
            off_sent_again: spread(off, Sample::sent_again_share)?.median,
            sent_again: spread(with, Sample::sent_again_share)?.median,
            verdict: "",
            gate_waits: spread(with, |sample| sample.gate_waits as f64)?.median,
        };
        comparison.verdict = comparison.judge();
        Some(comparison)
    }

    fn judge(&self) -> &'static str {
        if self.ratio.median < LEAST_RATIO || self.is_far_behind() {
            "throughput falls"
        } else if self.p99_ratio.median > MOST_TAIL_RATIO {
            "tail grows"
        } else if self.ratio.median >= GAIN_RATIO {
            "throughput gains"
        } else if self.p99_ratio.median <= TAIL_RATIO {
            "tail gains"
        } else if self.off_sent_again > LEAST_AGAIN && self.sent_again <= AGAIN_RATIO * self.off_sent_again {
            "fewer sent again"
        } else {
            "as off"
        }
    }

    fn costs(&self) -> bool {
        ["throughput falls", "tail grows"].contains(&self.verdict)
    }

    fn gains(&self) -> bool {
        !self.costs() && self.verdict != "as off"
    }

    /// Whether it has lost so much throughput that it cannot be the best.
    pub fn is_far_behind(&self) -> bool {
        self.ratio.min < FAR_BEHIND_RATIO
    }

    /// How good it is: throughput for each time of the slowest operations, both as ratios.
    fn score(&self) -> f64 {
        self.ratio.median / self.p99_ratio.median
    }
}

/// The best number of tokens at a point. `None`: off is the best.
pub fn best(comparisons: &[Comparison], point: Point) -> Option<u32> {
    let here: Vec<&Comparison> = comparisons.iter().filter(|one| one.point == point).collect();
    let mut numbers: Vec<u32> = here.iter().map(|one| one.tokens).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let of = |tokens: u32| here.iter().filter(move |one| one.tokens == tokens);
    let is_kept = |&tokens: &u32| !of(tokens).any(|one| one.costs()) && of(tokens).any(|one| one.gains());
    let score = |tokens: u32| of(tokens).map(|one| one.score()).product::<f64>();
    numbers.into_iter().filter(is_kept).max_by(|&one, &other| score(one).total_cmp(&score(other)))
}

/// The steps: at each point the best number of tokens, where it differs from that of fewer ranks.
pub fn token_table(comparisons: &[Comparison]) -> TokenTable {
    let mut points: Vec<Point> = comparisons.iter().map(|one| one.point).collect();
    points.sort_unstable();
    points.dedup();
    let mut steps: Vec<TokenStep> = Vec::new();
    for of_size in points.chunk_by(|one, other| one.bytes == other.bytes) {
        let is_limited_below = !steps.is_empty();
        let (mut before, begins_at) = (0, steps.len());
        for &point in of_size {
            let tokens = best(comparisons, point).unwrap_or(0);
            if tokens != before {
                steps.push(TokenStep { bytes: point.bytes, tasks: point.ranks, tokens });
                before = tokens;
            }
        }
        // A size without any tokens ends the steps of smaller ones. So there are no more steps than points.
        if is_limited_below && steps.len() == begins_at {
            steps.push(TokenStep { bytes: of_size[0].bytes, tasks: 1, tokens: 0 });
        }
    }
    TokenTable::new(steps).expect("no more steps than points, each of which is there once")
}

#[cfg(test)]
pub mod tests {
    use super::*;

    const POINT: Point = Point { bytes: 2048, ranks: 4 };

    pub fn sample(per_s: f64, p99_us: f64, sent_again: u64) -> Sample {
        Sample {
            per_s,
            p50_us: p99_us / 2.0,
            p99_us: Some(p99_us),
            fairness: None,
            datagrams: 1000,
            sent_again,
            timeouts: 0,
            gate_waits: 3,
            most_held: 4,
            tcp: None,
        }
    }

    /// One number of tokens, by ratios to off: throughput, 99th percentile; and datagrams sent again of a thousand:
    /// off, with.
    fn one(
        point: Point,
        traffic: Traffic,
        tokens: u32,
        (ratio, tail): (f64, f64),
        again: [u64; 2],
    ) -> Comparison {
        let off = sample(1000.0, 500.0, again[0]);
        let with = sample(1000.0 * ratio, 500.0 * tail, again[1]);
        Comparison::of(point, traffic, tokens, &[off], &[with]).expect("a round")
    }

    fn of(ratio: f64, tail: f64, again: [u64; 2]) -> &'static str {
        one(POINT, Traffic::Random, 9, (ratio, tail), again).verdict
    }

    #[test]
    fn a_verdict_needs_the_stated_ratios() {
        assert_eq!(of(0.979, 0.1, [500, 0]), "throughput falls");
        assert_eq!(of(2.0, 1.21, [0, 0]), "tail grows");
        assert_eq!(of(1.05, 1.2, [0, 0]), "throughput gains");
        assert_eq!([of(0.98, 0.8, [0, 0]), of(0.98, 0.81, [0, 0])], ["tail gains", "as off"]);
        assert_eq!(of(1.0, 1.0, [11, 5]), "fewer sent again");
        assert_eq!([of(1.0, 1.0, [11, 6]), of(1.0, 1.0, [10, 0])], ["as off", "as off"]);
    }

    #[test]
    fn the_median_of_the_rounds_decides() {
        let off = [100.0, 200.0, 400.0].map(|per_s| sample(per_s, 50.0, 0));
        let with = [90.0, 220.0, 440.0].map(|per_s| sample(per_s, 50.0, 0));
        let comparison = Comparison::of(POINT, Traffic::Incast, 9, &off, &with).unwrap();
        assert_eq!(comparison.verdict, "throughput gains");
        assert!((comparison.ratio.median - 1.1).abs() < 1e-9 && (comparison.ratio.min - 0.9).abs() < 1e-9);
        assert!(!comparison.is_far_behind());
        assert!(Comparison::of(POINT, Traffic::Incast, 9, &off, &[]).is_none());
        let uneven = Comparison::of(POINT, Traffic::Incast, 9, &off, &with[..1]).unwrap();
        assert!((uneven.ratio.median - 0.9).abs() < 1e-9, "only rounds that both have");
    }

    #[test]
    fn a_number_of_tokens_must_harm_no_traffic_and_the_one_with_the_best_tail_is_chosen() {
        let both = |tokens, random, incast| {
            [(Traffic::Random, random), (Traffic::Incast, incast)]
                .map(|(traffic, ratios)| one(POINT, traffic, tokens, ratios, [0, 0]))
        };
        let all: Vec<_> = [
            both(8, (0.9, 0.3), (1.3, 0.3)),
            both(16, (1.0, 0.7), (0.99, 0.6)),
            both(32, (1.0, 0.9), (1.0, 0.6)),
            both(64, (1.0, 1.0), (1.0, 0.95)),
        ]
        .concat();
        assert_eq!(best(&all, POINT), Some(16));
        assert_eq!(best(&all[4..], POINT), Some(32));
        assert_eq!(best(&all[6..], POINT), None, "nothing gains");
        assert_eq!(best(&all[..2], POINT), None, "random loses");
        assert_eq!(best(&all, Point { ranks: 8, ..POINT }), None, "not measured");
    }

    #[test]
    fn steps_begin_where_the_best_number_changes_and_end_where_nothing_gains() {
        let gains =
            |bytes, ranks, tokens| one(Point { bytes, ranks }, Traffic::Random, tokens, (1.0, 0.5), [0, 0]);
        let same = |bytes, ranks| one(Point { bytes, ranks }, Traffic::Random, 7, (1.0, 1.0), [0, 0]);
        let steps = |comparisons: &[Comparison]| {
            let table = token_table(comparisons);
            table.steps().iter().map(|step| (step.bytes, step.tasks, step.tokens)).collect::<Vec<_>>()
        };
        let all = [
            same(2048, 2),
            gains(2048, 4, 96),
            gains(2048, 8, 96),
            gains(8192, 2, 24),
            same(8192, 4),
            gains(8192, 8, 48),
            same(65536, 2),
            same(65536, 8),
        ];
        let expected = [(2048, 4, 96), (8192, 2, 24), (8192, 4, 0), (8192, 8, 48), (65536, 1, 0)];
        assert_eq!(steps(&all), expected);
        assert_eq!(steps(&[same(2048, 2), gains(4096, 2, 5)]), [(4096, 2, 5)]);
        assert_eq!(steps(&[same(2048, 2), same(4096, 2)]), []);
        assert_eq!(steps(&[]), []);
    }
}
