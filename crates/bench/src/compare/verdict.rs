//! The verdict of a run on a limit ([`Limit`], [`Verdict`]). It compares the limit with the smallest and the largest ratio
//! that the samples of both sides allow. If only some of these ratios keep the limit, the verdict is "within noise".

use super::measure::Quantity;
use crate::statistics::Spread;
use serde::Serialize;
use weir_output::quantity::three_digits;

/// Fewest samples of either side for a verdict.
pub const MIN_SAMPLES: usize = 3;

/// The limit of a ratio, or of a difference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// The ratio is at most this.
    AtMost(f64),
    /// The ratio is at least this.
    AtLeast(f64),
    /// The value is greater than the other one by at most this, in the unit of the quantity.
    DifferenceAtMost(f64),
}

/// The verdict of a run on a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// All combinations of samples keep the limit.
    Reached,
    /// No combination keeps it.
    Missed,
    /// Some combinations keep it.
    WithinNoise,
    /// There are too few samples.
    TooFewRounds,
    /// Values are missing.
    NotMeasured,
}

impl Verdict {
    /// The text in tables.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Reached => "reached",
            Verdict::Missed => "MISSED",
            Verdict::WithinNoise => "within noise",
            Verdict::TooFewRounds => "too few rounds",
            Verdict::NotMeasured => "not measured",
        }
    }
}

/// A target with its verdict.
#[derive(Clone, Debug, Serialize)]
pub struct JudgedTarget {
    /// The measure, and the transports with which weir is compared.
    pub text: String,
    /// `at most 0.85`.
    pub limit: String,
    /// Ratio of the medians, with the medians.
    pub found: String,
    /// Ratio of the medians.
    pub ratio: Option<f64>,
    /// The verdict.
    pub verdict: Verdict,
}

/// `3 of 12 targets reached, 2 missed, 1 within noise, 6 not measured or in too few rounds`.
pub fn summary_of(judged: &[JudgedTarget]) -> String {
    let count = |verdict| judged.iter().filter(|target| target.verdict == verdict).count();
    format!(
        "{} of {} targets reached, {} missed, {} within noise, {} not measured or in too few rounds",
        count(Verdict::Reached),
        judged.len(),
        count(Verdict::Missed),
        count(Verdict::WithinNoise),
        count(Verdict::NotMeasured) + count(Verdict::TooFewRounds)
    )
}

/// Number and spread of samples.
#[derive(Clone, Copy, Debug)]
pub struct Samples {
    count: usize,
    /// Their spread.
    pub spread: Spread,
}

impl Samples {
    /// Of these values. `None`: there are none.
    pub fn of(values: &[f64]) -> Option<Samples> {
        Some(Samples { count: values.len(), spread: Spread::of(values)? })
    }

    /// A value that was not measured.
    pub fn constant(value: f64) -> Samples {
        Samples { count: usize::MAX, spread: Spread { min: value, median: value, max: value } }
    }
}

/// What a value is compared with.
#[derive(Clone, Debug)]
pub enum Baseline {
    /// Nothing: the value is a ratio already.
    Nothing,
    /// A value with its name. `None`: it is missing.
    Value(Option<(String, Samples)>),
}

/// Judges the limit of `ours` over `baseline`.
pub fn judge(
    text: String,
    what: Quantity,
    limit: Limit,
    ours: Option<Samples>,
    baseline: Baseline,
) -> JudgedTarget {
    let is_ratio = matches!(baseline, Baseline::Nothing);
    let theirs = match baseline {
        Baseline::Nothing => Some((String::new(), Samples::constant(1.0))),
        Baseline::Value(value) => value,
    };
    let (verdict, found, ratio) = match (ours, theirs) {
        (Some(ours), Some((name, theirs))) => {
            let ratio = ours.spread.median / theirs.spread.median;
            let (our_median, their_median) = (what.show(ours.spread.median), what.show(theirs.spread.median));
            let numbers = match is_ratio {
                true => format!("{} .. {}", what.show(ours.spread.min), what.show(ours.spread.max)),
                false => format!("{our_median} / {their_median} {name}").trim_end().to_owned(),
            };
            let shown = if is_ratio { our_median } else { three_digits(ratio) };
            let verdict = match ours.count.min(theirs.count) < MIN_SAMPLES {
                true => Verdict::TooFewRounds,
                false => limit.verdict(&ours.spread, &theirs.spread),
            };
            (verdict, format!("{shown} ({numbers})"), Some(ratio))
        }
        _ => (Verdict::NotMeasured, String::from("-"), None),
    };
    JudgedTarget { text, limit: limit.word(what), found, ratio, verdict }
}

impl Limit {
    fn word(self, what: Quantity) -> String {
        match self {
            Limit::AtMost(limit) if what.is_percentage() => format!("at most {}", what.show(limit)),
            Limit::AtMost(limit) => format!("at most {limit}"),
            Limit::AtLeast(limit) => format!("at least {limit}"),
            Limit::DifferenceAtMost(limit) => format!("at most {} more", what.show(limit)),
        }
    }

    /// The verdict on `ours / theirs`, by the smallest and the largest ratio that the samples allow.
    fn verdict(self, ours: &Spread, theirs: &Spread) -> Verdict {
        let (least, greatest) = match self {
            Limit::DifferenceAtMost(_) => (ours.min - theirs.max, ours.max - theirs.min),
            _ => (ours.min / theirs.max, ours.max / theirs.min),
        };
        let (always, never) = match self {
            Limit::AtMost(limit) | Limit::DifferenceAtMost(limit) => (greatest <= limit, least > limit),
            Limit::AtLeast(limit) => (least >= limit, greatest < limit),
        };
        match (always, never) {
            (true, _) => Verdict::Reached,
            (_, true) => Verdict::Missed,
            _ => Verdict::WithinNoise,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency(limit: Limit, ours: &[f64], theirs: &[f64]) -> JudgedTarget {
        let theirs = Samples::of(theirs).map(|theirs| (String::from("tcp"), theirs));
        let what = Quantity::HalfRoundTripUs;
        judge(String::from("time"), what, limit, Samples::of(ours), Baseline::Value(theirs))
    }

    #[test]
    fn a_difference_is_judged_by_its_extremes() {
        let more = Limit::DifferenceAtMost(1.0);
        let close = latency(more, &[9.0, 9.5, 9.8], &[9.0, 9.1, 9.2]);
        assert_eq!((close.limit.as_str(), close.verdict), ("at most 1.00 us more", Verdict::Reached));
        assert_eq!(close.found, "1.04 (9.50 us / 9.10 us tcp)");
        assert_eq!(latency(more, &[10.5, 11.0, 12.0], &[9.0, 9.1, 9.2]).verdict, Verdict::Missed);
        assert_eq!(latency(more, &[9.0, 9.5, 12.0], &[9.0, 9.1, 9.2]).verdict, Verdict::WithinNoise);
    }

    #[test]
    fn a_constant_needs_no_rounds_and_a_missing_value_gives_no_verdict() {
        let what = Quantity::MessagesPerS;
        let million = || Baseline::Value(Some((String::new(), Samples::constant(1e6))));
        let limit = Limit::AtLeast(1.0);
        let rate = judge(String::from("rate"), what, limit, Samples::of(&[7e5; 3]), million());
        assert_eq!((rate.found.as_str(), rate.verdict), ("0.70 (700 k/s / 1.00 M/s)", Verdict::Missed));
        let few = judge(String::from("rate"), what, limit, Samples::of(&[7e5; 2]), million());
        assert_eq!(few.verdict, Verdict::TooFewRounds);
        let missing = latency(Limit::AtMost(1.0), &[1.0; 3], &[]);
        assert_eq!((missing.found.as_str(), missing.verdict), ("-", Verdict::NotMeasured));
        let all = summary_of(&[rate, few, missing]);
        assert_eq!(
            all,
            "0 of 3 targets reached, 1 missed, 0 within noise, 2 not measured or in too few rounds"
        );
    }
}
