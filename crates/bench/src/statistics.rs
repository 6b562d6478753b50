//! Statistics of samples: spreads, quartiles, paired ratios with an interval, verdicts, and Jain's fairness index of shares.
//!
//! Ratios are averaged by their logarithms, so that twice as slow and twice as fast cancel out. The interval is
//! Student's over pairs, so what slows down both runs of a pair alike does not widen it.

use serde::Serialize;
use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, StudentsT};
use statrs::statistics::{Data, Max, Min, OrderStatistics, Statistics};

/// Smallest, median and largest sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The smallest sample.
    pub min: f64,
    /// The median: the middle sample, or the mean of the two in the middle.
    pub median: f64,
    /// The largest sample.
    pub max: f64,
}

impl Spread {
    /// The spread of at least one sample; `None` without samples.
    pub fn of(samples: &[f64]) -> Option<Spread> {
        let mut data = Data::new(samples.to_vec());
        (!samples.is_empty()).then(|| Spread { min: data.min(), median: data.median(), max: data.max() })
    }

    /// Whether the two spreads have a value in common, so that their medians do not differ significantly.
    pub fn overlaps(&self, other: &Spread) -> bool {
        self.min <= other.max && other.min <= self.max
    }
}

/// A median with the interval in which the true one lies with a probability of 95 %, whatever the distribution is: two
/// samples of the sorted ones. So a few samples that other load has made slow do not matter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MedianInterval {
    /// The median.
    pub median: f64,
    /// The interval begins here. `None`: there are too few samples, as for `high`.
    pub low: Option<f64>,
    /// It ends here.
    pub high: Option<f64>,
}

impl MedianInterval {
    /// The interval of at least one sample; `None` without samples. Source: the number of samples below the true median is
    /// binomial with probability one half.
    pub fn of(samples: &[f64]) -> Option<MedianInterval> {
        let median = Spread::of(samples)?.median;
        let mut sorted = samples.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let below = Binomial::new(0.5, sorted.len() as u64).ok()?;
        // The interval is from sample `skipped` from the low end to the same from the high end.
        let skipped = (0..sorted.len() as u64 / 2).take_while(|&count| below.cdf(count) <= 0.025).count();
        let (low, high) = match skipped.checked_sub(1) {
            None => (None, None),
            Some(skipped) => (Some(sorted[skipped]), Some(sorted[sorted.len() - 1 - skipped])),
        };
        Some(MedianInterval { median, low, high })
    }

    /// Whether the true median is at most `limit`, in the words of tables.
    pub fn verdict(&self, limit: f64) -> &'static str {
        match (self.low, self.high) {
            (Some(_), Some(high)) if high <= limit => "reached",
            (Some(low), Some(_)) if low > limit => "MISSED",
            (Some(_), Some(_)) => "within noise",
            _ => "too few rounds",
        }
    }
}

/// Fewest samples for a verdict on a target.
const MIN_SAMPLES: usize = 3;

/// Quartiles of samples. All are NaN without samples.
#[derive(Clone, Copy, Debug)]
pub struct Quartiles {
    /// A quarter of the samples is below it.
    pub lower: f64,
    /// The median.
    pub median: f64,
    /// A quarter of the samples is above it.
    pub upper: f64,
    samples: usize,
}

impl Quartiles {
    /// The quartiles of `samples`.
    pub fn of(samples: &[f64]) -> Quartiles {
        let mut data = Data::new(samples.to_vec());
        let (lower, median, upper) = (data.lower_quartile(), data.median(), data.upper_quartile());
        Quartiles { lower, median, upper, samples: samples.len() }
    }

    /// Lower quartile, median, upper quartile.
    pub fn ordered(&self) -> [f64; 3] {
        [self.lower, self.median, self.upper]
    }

    /// Whether the samples are at most `limit`, in the words of tables.
    pub fn verdict(&self, limit: f64) -> &'static str {
        match self.samples {
            few if few < MIN_SAMPLES => "too few rounds",
            _ if self.upper <= limit => "reached",
            _ if self.lower > limit => "MISSED",
            _ => "within noise",
        }
    }
}

/// Ratios round by round; `None` if a round lacks a value or has a value that is not positive.
pub fn ratios(ours: &[f64], theirs: &[f64]) -> Option<Vec<f64>> {
    let comparable =
        ours.len() == theirs.len() && !ours.is_empty() && theirs.iter().all(|&value| value > 0.0);
    comparable.then(|| ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect())
}

/// Jain's fairness index of shares: 1 if all are equal, 1/n if one sender has everything. `None` without shares.
///
/// Source: Jain, Chiu, Hawe, DEC Research Report TR-301 (1984), section 3: (sum x)^2 / (n sum x^2).
pub fn fairness(shares: &[u64]) -> Option<f64> {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// A mean ratio with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Geometric mean.
    pub mean: f64,
    /// Lower end of the interval; `None` for a single pair.
    pub low: Option<f64>,
    /// Upper end; `None` for a single pair.
    pub high: Option<f64>,
    /// Number of pairs.
    pub pairs: usize,
}

impl Ratio {
    /// The mean of `ours[i] / theirs[i]`. Samples without a partner are ignored. `None` without a pair of positive
    /// numbers.
    pub fn of_pairs(ours: &[f64], theirs: &[f64]) -> Option<Ratio> {
        let logs: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| (ours / theirs).ln()).collect();
        Ratio::of_logs(&logs)
    }

    /// The mean ratio from logarithms of ratios. `None` without any, or if one is not finite.
    pub fn of_logs(logs: &[f64]) -> Option<Ratio> {
        if logs.is_empty() || !logs.iter().all(|log| log.is_finite()) {
            return None;
        }
        let mean = logs.mean();
        let half = half_width(logs);
        let bound = |sign: f64| half.map(|half| (mean + sign * half).exp());
        Some(Ratio { mean: mean.exp(), low: bound(-1.0), high: bound(1.0), pairs: logs.len() })
    }

    /// The verdict on the claim that the ratio is at most `limit`. An interval wider than `widest` resolves nothing.
    pub fn verdict(&self, limit: f64, widest: f64) -> Verdict {
        match (self.low, self.high) {
            (Some(low), _) if low > limit => Verdict::Failed,
            (Some(low), Some(high)) if high <= limit && high - low <= widest => Verdict::Passed,
            _ => Verdict::NotResolved,
        }
    }

    /// About the number of pairs for an interval of width `widest`, with the same scatter. The width falls with the
    /// root of the number.
    pub fn pairs_for(&self, widest: f64) -> Option<u64> {
        let width = self.high? - self.low?;
        Some((self.pairs as f64 * (width / widest).powi(2)).ceil() as u64)
    }
}

/// Half of the 95 % interval of a mean. Source: Student's t with n - 1 degrees of freedom.
fn half_width(samples: &[f64]) -> Option<f64> {
    let count = samples.len() as f64;
    let t = StudentsT::new(0.0, 1.0, count - 1.0).ok()?.inverse_cdf(0.975);
    Some(t * (samples.variance() / count).sqrt())
}

/// The verdict of pairs on a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The whole interval is within the limit.
    Passed,
    /// The whole interval is beyond the limit.
    Failed,
    /// The limit lies in the interval, or the interval is too wide, or there is none.
    NotResolved,
}

impl Verdict {
    /// The text in tables.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Passed => "passed",
            Verdict::Failed => "FAILED",
            Verdict::NotResolved => "not resolved",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(value: Option<f64>, expected: f64) -> bool {
        value.is_some_and(|value| (value - expected).abs() < 1e-4)
    }

    #[test]
    fn medians_and_spreads() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Some(Spread { min: 1.0, median: 2.0, max: 3.0 }));
        assert_eq!(Spread::of(&[4.0, 1.0]).map(|spread| spread.median), Some(2.5));
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn the_interval_of_a_median_ends_at_samples_and_tells_limits_apart() {
        // With 10 samples the second and the ninth: a probability of 11/1024 beyond each, of 56/1024 beyond the third.
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        let of_ten = MedianInterval::of(&ten).unwrap();
        assert_eq!(of_ten, MedianInterval { median: 5.5, low: Some(2.0), high: Some(9.0) });
        assert_eq!([1.9, 2.0, 9.0].map(|limit| of_ten.verdict(limit)), ["MISSED", "within noise", "reached"]);
        // 1/64 beyond the least of six, 1/32 of five.
        let six = MedianInterval::of(&ten[..6]).unwrap();
        assert_eq!((six.low, six.high), (Some(1.0), Some(6.0)));
        let five = MedianInterval::of(&ten[..5]).unwrap();
        assert_eq!((five.low, five.verdict(9.0)), (None, "too few rounds"));
        assert_eq!(MedianInterval::of(&[]), None);
    }

    #[test]
    fn fairness_is_1_for_equal_shares_and_1_over_n_for_one_sender() {
        assert_eq!(fairness(&[5, 5, 5]), Some(1.0));
        assert_eq!(fairness(&[9, 0, 0]), Some(1.0 / 3.0));
        // (1 + 2 + 3)^2 / (3 * 14).
        assert!(near(fairness(&[1, 2, 3]), 36.0 / 42.0));
        assert_eq!([fairness(&[]), fairness(&[0, 0])], [None, None]);
    }

    #[test]
    fn confidence_intervals_match_the_textbook() {
        // Mean 3, variance 2.5, t(4; 0.975) = 2.776445: 2.776445 * sqrt(2.5 / 5) = 1.963243.
        assert!(near(half_width(&[1.0, 2.0, 3.0, 4.0, 5.0]), 1.963_243));
        // t(29; 0.975) = 2.045230; 15 times -1 and 1 have variance 30/29.
        let thirty: Vec<f64> = (0..30).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
        assert!(near(half_width(&thirty), 2.045_230 * (1.0_f64 / 29.0).sqrt()));
        assert_eq!(half_width(&[1.0]), None);
    }

    #[test]
    fn ratios_are_paired_and_averaged_by_logarithm() {
        let ratio = Ratio::of_pairs(&[2.0, 50.0], &[1.0, 100.0]).unwrap();
        assert!((ratio.mean - 1.0).abs() < 1e-12);
        // If all pairs have the same ratio, the interval has no width.
        let certain = Ratio::of_pairs(&[1.1, 2.2, 11.0], &[1.0, 2.0, 10.0]).unwrap();
        assert!(near(certain.low, 1.1) && near(certain.high, 1.1), "{certain:?}");
        let logs = Ratio::of_logs(&[0.01, 0.02, 0.03, 0.04, 0.05]).unwrap();
        assert!(near(logs.low, (0.03_f64 - 0.019_632_43).exp()), "{logs:?}");
        assert!(near(logs.high, (0.03_f64 + 0.019_632_43).exp()), "{logs:?}");
        let single = Ratio::of_pairs(&[3.0], &[2.0]).unwrap();
        assert_eq!((single.mean, single.low, single.pairs), ((1.5_f64).ln().exp(), None, 1));
        assert_eq!(Ratio::of_pairs(&[1.0], &[0.0]), None);
        assert_eq!(Ratio::of_pairs(&[], &[]), None);
    }

    #[test]
    fn verdicts() {
        let ratio = |low, high| Ratio { mean: 1.0, low: Some(low), high: Some(high), pairs: 30 };
        let verdict = |low, high| ratio(low, high).verdict(1.03, 0.03);
        assert_eq!(verdict(1.005, 1.03), Verdict::Passed);
        assert_eq!(verdict(0.99, 1.01), Verdict::Passed);
        assert_eq!(verdict(1.01, 1.031), Verdict::NotResolved);
        assert_eq!(verdict(1.031, 1.2), Verdict::Failed);
        // Below the limit, but wider than it: not resolved.
        assert_eq!(verdict(0.90, 1.02), Verdict::NotResolved);
        assert_eq!(ratio(0.90, 1.02).verdict(1.03, f64::INFINITY), Verdict::Passed);
        let alone = Ratio { mean: 1.0, low: None, high: None, pairs: 1 };
        assert_eq!(alone.verdict(1.03, 0.03), Verdict::NotResolved);
        // An interval twice as wide needs four times as many pairs.
        assert_eq!(ratio(1.0, 1.0625).pairs_for(0.03125), Some(120));
    }
}
