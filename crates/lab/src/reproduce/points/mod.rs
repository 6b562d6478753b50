//! What was published about each experiment, and the rules by which our records are compared with it.
//!
//! A file for each experiment: `points` (published, ours, holds) and `figures`. They see records only. A rule that needs a number of its
//! own (how much is "stable"?) names it, says why, and the number is printed with the point.

mod e1_1;
mod e1_10;
mod e1_2;
mod e1_3;
mod e1_4;
mod e1_5;
mod e1_6;
mod e1_7;
mod e1_8;
mod e1_9;
mod e2_bandwidth;
mod e2_nas;

use super::chart::Chart;
use super::evidence::{Evidence, First};
use serde::Serialize;
use weir_proto::DataRegion;

/// A difference that a reader of a published figure can see. A rule that says "more" or "less" requires it, since any two
/// worlds differ by something. Unit: percentage points.
const VISIBLE: f64 = 1.0;

/// Whether a point holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It holds with the assumed parameters and with every value to which the sweep sets one of them.
    Holds,
    /// It holds with the assumed parameters. No sweep says whether it holds with other values.
    HoldsUnswept,
    /// It holds with the assumed parameters, and does not with some other value of at least one of them.
    HoldsIf,
    /// It does not hold with the assumed parameters.
    DoesNotHold,
    /// The worlds that were run do not decide it (the quick variant leaves some out).
    NotEvaluated,
    /// Nothing was published that could be judged: the row shows a number of ours.
    NotPublished,
}

impl Verdict {
    /// For people.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::HoldsUnswept => "holds (not swept)",
            Verdict::HoldsIf => "holds if",
            Verdict::DoesNotHold => "DOES NOT HOLD",
            Verdict::NotEvaluated => "not evaluated",
            Verdict::NotPublished => "",
        }
    }

    /// Whether the point holds with the assumed parameters.
    pub fn holds(self) -> bool {
        matches!(self, Verdict::Holds | Verdict::HoldsUnswept | Verdict::HoldsIf)
    }
}

/// One statement of a paper beside ours.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Name of the rule within its experiment. The same rule has the same name at every size of the worlds.
    pub id: String,
    /// What is compared, and by which rule.
    pub text: String,
    /// What was published.
    pub published: String,
    /// What our records say.
    pub ours: String,
    /// Whether it holds.
    pub verdict: Verdict,
    /// How the verdict depends on each assumed parameter; empty if nothing was swept.
    pub sensitivity: Vec<Stay>,
    /// Seeds with the same verdict, of all that were run; `None` with one seed.
    pub seeds: Option<(usize, usize)>,
    /// `ours` with the least and the greatest of each number over the seeds; `None` with one seed.
    pub over_seeds: Option<String>,
}

impl Point {
    /// A point that was evaluated.
    pub fn new(
        id: impl Into<String>,
        text: impl Into<String>,
        published: impl Into<String>,
        ours: impl Into<String>,
        holds: bool,
    ) -> Point {
        let verdict = if holds { Verdict::Holds } else { Verdict::DoesNotHold };
        Point {
            id: id.into(),
            text: text.into(),
            published: published.into(),
            ours: ours.into(),
            verdict,
            sensitivity: Vec::new(),
            seeds: None,
            over_seeds: None,
        }
    }

    /// A point that the worlds that were run do not decide.
    pub fn open(id: impl Into<String>, text: impl Into<String>, published: impl Into<String>) -> Point {
        Point { verdict: Verdict::NotEvaluated, ..Point::new(id, text, published, "not run", false) }
    }

    /// Withdraws the verdict, since `missing` worlds did not end.
    pub fn open_without(&mut self, missing: usize) {
        let worlds = if missing == 1 { "a world is" } else { "worlds are" };
        self.ours = format!("{worlds} missing; without: {}", self.ours);
        if self.verdict != Verdict::NotPublished {
            self.verdict = Verdict::NotEvaluated;
        }
    }

    /// A number of ours beside the published ones.
    pub fn beside(text: impl Into<String>, ours: impl Into<String>) -> Point {
        Point::beside_published(text, "-", ours)
    }

    /// A number of ours beside a published one that nothing of ours can miss.
    pub fn beside_published(
        text: impl Into<String>,
        published: impl Into<String>,
        ours: impl Into<String>,
    ) -> Point {
        Point { verdict: Verdict::NotPublished, ..Point::new("", text, published, ours, true) }
    }

    /// A point about the first size from which on something holds: open if the sizes that were run leave it open.
    pub fn of_first(
        id: impl Into<String>,
        text: impl Into<String>,
        published: impl Into<String>,
        first: First,
        from: f64,
        to: f64,
    ) -> Point {
        match first.is_within(from, to) {
            Some(holds) => Point::new(id, text, published, first.words(), holds),
            None => Point { ours: first.words(), ..Point::open(id, text, published) },
        }
    }

    /// [`Point::new`] of what was found, or [`Point::open`].
    pub fn of(
        id: impl Into<String>,
        text: impl Into<String>,
        published: impl Into<String>,
        found: Option<(String, bool)>,
    ) -> Point {
        match found {
            Some((ours, holds)) => Point::new(id, text, published, ours, holds),
            None => Point::open(id, text, published),
        }
    }

    /// The verdict in words: `holds if credit price (x) in [0.5, 2], RNR timer (us) in [10, 80]`.
    pub fn verdict_text(&self) -> String {
        if self.verdict != Verdict::HoldsIf {
            return self.verdict.word().to_owned();
        }
        let narrow = self.sensitivity.iter().filter(|stay| !stay.is_all);
        let ranges: Vec<String> =
            narrow.map(|stay| format!("{} in {}", stay.parameter, stay.range())).collect();
        format!("{} {}", self.verdict.word(), ranges.join(", "))
    }
}

/// The range of an assumed parameter over which a verdict stays.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stay {
    /// Name and unit of the parameter.
    pub parameter: &'static str,
    /// The least value around the assumed one with the same verdict.
    pub from: f64,
    /// The greatest.
    pub to: f64,
    /// Whether that is all that was swept.
    pub is_all: bool,
}

impl Stay {
    /// `[0.5, 2]`.
    pub fn range(&self) -> String {
        format!("[{}, {}]", self.from, self.to)
    }
}

/// A published experiment.
pub struct Experiment {
    /// Its number in the evaluation.
    pub id: &'static str,
    /// What it is about.
    pub title: &'static str,
    /// Where it was published.
    pub source: &'static str,
    /// Its plans, by the names of their files.
    pub plans: &'static [&'static str],
    /// Evaluates the points. Text of one point may name the size of its worlds; its `id` does not.
    pub points: fn(&Evidence<'_>) -> Vec<Point>,
    /// Draws the figures.
    pub figures: fn(&Evidence<'_>) -> Vec<Chart>,
}

/// All of them, in order.
pub const ALL: &[Experiment] = &[
    e1_1::EXPERIMENT,
    e1_2::EXPERIMENT,
    e1_3::EXPERIMENT,
    e1_4::EXPERIMENT,
    e1_5::EXPERIMENT,
    e1_6::EXPERIMENT,
    e1_7::EXPERIMENT,
    e1_8::EXPERIMENT,
    e1_9::EXPERIMENT,
    e1_10::EXPERIMENT,
    e2_bandwidth::LATENCY,
    e2_bandwidth::ENOUGH,
    e2_bandwidth::FEW,
    e2_bandwidth::LARGE,
    e2_nas::KERNELS,
    e2_nas::BUFFERS,
];

/// `12.3 %`.
fn percent(value: f64) -> String {
    format!("{value:.1} %")
}

/// The name of a curve of static credits.
fn static_name(credit_slots: u32) -> String {
    format!("static, {credit_slots} credit slot{}", if credit_slots == 1 { "" } else { "s" })
}

/// The name of the curve of weir's own scheme, in all figures; which of its points is the default depends on the ranks.
const WEIR: &str = "weir (dynamic, piggybacking, equal shares at first contact)";

/// Slots per peer, credit slots included, that weir ships with for a job of `ranks` (0: nothing was run): 16 and 2, and more for few
/// ranks.
fn weir_slots(ranks: u32) -> f64 {
    f64::from(DataRegion::default_slots(16, ranks) / ranks.max(1) + 2)
}

#[cfg(test)]
mod tests;
