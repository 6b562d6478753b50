//! From samples to statements: spreads, paired ratios with an interval, verdicts.
//!
//! A ratio is averaged by its logarithm, so that twice as slow and twice as fast cancel out. The interval is Student's, over
//! pairs: what slows down both halves of a pair alike does not widen it.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Least, middle and greatest of some samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The least.
    pub min: f64,
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Of at least one sample; `None` without.
    pub fn of(samples: &[f64]) -> Option<Spread> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() {
            0 => return None,
            even if even % 2 == 0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
            _ => sorted[middle],
        };
        Some(Spread { min: sorted[0], median, max: sorted[sorted.len() - 1] })
    }

    /// Whether the two have a value in common, so that the difference of their medians means nothing.
    pub fn overlaps(&self, other: &Spread) -> bool {
        self.min <= other.max && other.min <= self.max
    }
}

/// Jain's fairness index of shares: 1 if all are equal, 1/n if one has everything. `None` without any.
///
/// Source: Jain, Chiu, Hawe, DEC Research Report TR-301 (1984), section 3: (sum x)^2 / (n sum x^2).
pub fn fairness(shares: &[u64]) -> Option<f64> {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// A mean ratio and the interval that holds the true one with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Geometric mean.
    pub mean: f64,
    /// Lower end of the interval; none for a single pair.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
    /// Pairs.
    pub pairs: usize,
}

impl Ratio {
    /// Of `ours[i] / theirs[i]`; samples without a partner are left out. `None` without a pair of positive numbers.
    pub fn of_pairs(ours: &[f64], theirs: &[f64]) -> Option<Ratio> {
        let logs: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| (ours / theirs).ln()).collect();
        Ratio::of_logs(&logs)
    }

    /// Of the logarithms of ratios. `None` without any, or if one is no number.
    pub fn of_logs(logs: &[f64]) -> Option<Ratio> {
        if logs.is_empty() || !logs.iter().all(|log| log.is_finite()) {
            return None;
        }
        let count = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / count;
        let half = half_width(logs, mean);
        let bound = |sign: f64| half.map(|half| (mean + sign * half).exp());
        Some(Ratio { mean: mean.exp(), low: bound(-1.0), high: bound(1.0), pairs: logs.len() })
    }

    /// What the interval says about the claim that the ratio is at most `limit`. `widest`: an interval wider than this
    /// shows nothing but that it is wide, and does not pass.
    pub fn verdict(&self, limit: f64, widest: f64) -> Verdict {
        match (self.low, self.high) {
            (Some(low), _) if low > limit => Verdict::Failed,
            (Some(low), Some(high)) if high <= limit && high - low <= widest => Verdict::Passed,
            _ => Verdict::NotResolved,
        }
    }

    /// Pairs after which an interval of the same scatter would be `widest` wide, about: the width falls with the root of
    /// their number.
    pub fn pairs_for(&self, widest: f64) -> Option<u64> {
        let width = self.high? - self.low?;
        Some((self.pairs as f64 * (width / widest).powi(2)).ceil() as u64)
    }
}

/// Half of the 95 % interval of a mean. Source: Student's t with n - 1 degrees of freedom.
fn half_width(samples: &[f64], mean: f64) -> Option<f64> {
    let count = samples.len() as f64;
    let t = StudentsT::new(0.0, 1.0, count - 1.0).ok()?.inverse_cdf(0.975);
    let variance = samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>() / (count - 1.0);
    Some(t * (variance / count).sqrt())
}

/// What pairs say about a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The whole interval keeps the limit.
    Passed,
    /// The whole interval is beyond it.
    Failed,
    /// The limit lies in the interval, or the interval is too wide, or there is none.
    NotResolved,
}

impl Verdict {
    /// For people.
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
        assert!(near(half_width(&[1.0, 2.0, 3.0, 4.0, 5.0], 3.0), 1.963_243));
        // t(29; 0.975) = 2.045230; 15 times -1 and 1 have variance 30/29.
        let thirty: Vec<f64> = (0..30).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
        assert!(near(half_width(&thirty, 0.0), 2.045_230 * (1.0_f64 / 29.0).sqrt()));
        assert_eq!(half_width(&[1.0], 1.0), None);
    }

    #[test]
    fn ratios_are_paired_and_averaged_by_logarithm() {
        let ratio = Ratio::of_pairs(&[2.0, 50.0], &[1.0, 100.0]).unwrap();
        assert!((ratio.mean - 1.0).abs() < 1e-12);
        // The same ratio in every pair is certain, whatever the pairs are.
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
        // Below the limit, but wider than it: says nothing.
        assert_eq!(verdict(0.90, 1.02), Verdict::NotResolved);
        assert_eq!(ratio(0.90, 1.02).verdict(1.03, f64::INFINITY), Verdict::Passed);
        let alone = Ratio { mean: 1.0, low: None, high: None, pairs: 1 };
        assert_eq!(alone.verdict(1.03, 0.03), Verdict::NotResolved);
        // Twice as wide as wanted: four times as many.
        assert_eq!(ratio(1.0, 1.0625).pairs_for(0.03125), Some(120));
    }
}
