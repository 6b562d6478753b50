//! The published statements about each experiment ("points"), and the rules that compare our records with them.
//! [`Point`], [`Verdict`] and [`Experiment`] are the types of all experiments. [`ALL`] and [`CONGESTION`] list the
//! experiments for `weir reproduce`, which runs their plans first; [`EXTENSIONS`] lists what publications leave open,
//! [`OWN`] weir's own goals.
//!
//! A file below has one experiment or several (`e3_worlds` has what those at the node share), each with its `points` (published, ours, verdict) and `figures`. Both
//! see only the results of worlds ([`Evidence`]). A rule may need a number of its own, for example how much "stable"
//! allows. It is a constant of the file. Rows without a verdict show numbers of ours that have no published
//! counterpart.

mod demand;
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
mod e3_control;
mod e3_programs;
mod e3_proxy;
mod e3_switch;
#[cfg(test)]
mod e3_tests;
mod e3_thresholds;
mod e3_worlds;
mod e4;
mod e4_1;
mod e4_2;
mod e4_3;
mod e4_4;
mod e4_5;
mod e4_6;
mod e4_7;
mod e4_8;

use super::chart::Chart;
pub use demand::MEMORY_FIGURE;

use super::evidence::{Evidence, First, slots};
use serde::Serialize;
use weir_proto::DataRegion;
use weir_sim::plan::{SchemeName, Settings};

/// The smallest difference that a reader of a published figure can see. A rule that says "more" or "less"
/// requires it, because two worlds never have exactly the same time. Unit: percentage points.
const VISIBLE: f64 = 1.0;

/// Verdict about a point.
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
    /// The worlds that ran do not decide it. The quick variant leaves some worlds out.
    NotEvaluated,
    /// Nothing was published that could be judged. The row shows a number of ours.
    NotPublished,
}

impl Verdict {
    /// The verdict as text.
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

/// A published statement beside our result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Name of the rule within its experiment. The same rule has the same name at every size of the worlds.
    pub id: String,
    /// The compared quantity, and the rule.
    pub text: String,
    /// The published statement.
    pub published: String,
    /// Our result.
    pub ours: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The dependence of the verdict on each assumed parameter; empty if nothing was swept.
    pub sensitivity: Vec<VerdictRange>,
    /// Number of seeds with the same verdict, and number of seeds; `None` with one seed.
    pub seeds: Option<(usize, usize)>,
    /// `ours` with the smallest and largest of each number over the seeds; `None` with one seed.
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

    /// A point that the worlds that ran do not decide.
    pub fn open(id: impl Into<String>, text: impl Into<String>, published: impl Into<String>) -> Point {
        Point { verdict: Verdict::NotEvaluated, ..Point::new(id, text, published, "not run", false) }
    }

    /// Withdraws the verdict, because `missing` worlds failed.
    pub fn open_without(&mut self, missing: usize) {
        let worlds = if missing == 1 { "a world is" } else { "worlds are" };
        self.ours = format!("{worlds} missing; without: {}", self.ours);
        if self.verdict != Verdict::NotPublished {
            self.verdict = Verdict::NotEvaluated;
        }
    }

    /// A number of ours without a published one.
    pub fn beside(text: impl Into<String>, ours: impl Into<String>) -> Point {
        Point::beside_published(text, "-", ours)
    }

    /// A number of ours beside a published one that no result could miss.
    pub fn beside_published(
        text: impl Into<String>,
        published: impl Into<String>,
        ours: impl Into<String>,
    ) -> Point {
        Point { verdict: Verdict::NotPublished, ..Point::new("", text, published, ours, true) }
    }

    /// A point about the first size from which on something holds. It is not evaluated if the sizes that ran
    /// do not decide it.
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

    /// [`Point::new`] of a result, or [`Point::open`] without one.
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
        let narrow = self.sensitivity.iter().filter(|range| !range.is_all);
        let ranges: Vec<String> =
            narrow.map(|range| format!("{} in {}", range.parameter, range.range())).collect();
        format!("{} {}", self.verdict.word(), ranges.join(", "))
    }
}

/// The range of an assumed parameter over which a verdict stays.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VerdictRange {
    /// Name and unit of the parameter.
    pub parameter: &'static str,
    /// The smallest value with the same verdict, in the range around the assumed value.
    pub from: f64,
    /// The largest such value.
    pub to: f64,
    /// Whether the range contains all values of the sweep.
    pub is_all: bool,
}

impl VerdictRange {
    /// `[0.5, 2]`.
    pub fn range(&self) -> String {
        format!("[{}, {}]", self.from, self.to)
    }
}

/// A published experiment, or worlds with goals of weir's own.
pub struct Experiment {
    /// Its number in the evaluation.
    pub id: &'static str,
    /// Title.
    pub title: &'static str,
    /// The publication, with the place in it.
    pub source: &'static str,
    /// Its plans, by the names of their files.
    pub plans: &'static [&'static str],
    /// Evaluates the points. Text of one point may name the size of its worlds; its `id` does not.
    pub points: fn(&Evidence<'_>) -> Vec<Point>,
    /// Draws the figures.
    pub figures: fn(&Evidence<'_>) -> Vec<Chart>,
}

/// All published experiments, in order.
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
    e4_1::EXPERIMENT,
    e4_2::EXPERIMENT,
    e4_3::EXPERIMENT,
    e4_4::EXPERIMENT,
    e4_5::EXPERIMENT,
    e4_6::EXPERIMENT,
    e4_7::EXPERIMENT,
    e4_8::EXPERIMENT,
];

/// Published experiments about congestion at the node. No flow-control scheme is compared: the worlds have none.
pub const CONGESTION: &[Experiment] = &[
    e3_thresholds::RANKS,
    e3_thresholds::MESSAGES,
    e3_control::MECHANISMS,
    e3_control::COST,
    e3_programs::ALL_TO_ALL,
    e3_programs::RANDOM_ACCESS,
    e3_switch::EXPERIMENT,
];

/// What the publications about congestion at the node leave open. No row has a verdict, so nothing is swept.
pub const EXTENSIONS: &[Experiment] = &[e3_proxy::COMBINING, e3_proxy::DRAINING, e3_proxy::WITH_CREDITS];

/// Worlds with goals of weir's own, in the form of experiments. A goal stands where others have a published value. The
/// assumed parameters of the models are not swept.
pub const OWN: &[Experiment] = &[demand::EXPERIMENT];

/// `12.3 %`.
fn percent(value: f64) -> String {
    format!("{value:.1} %")
}

/// The overheads of credits on demand, with the computed floor of each: `51.6 % at 8 (floor 51.3 %)`. `None` if none ran.
fn demand_with_floors(evidence: &Evidence<'_>, which: impl Fn(&Settings) -> bool) -> Option<String> {
    let is_demand = |it: &Settings| it.scheme == SchemeName::Demand && which(it);
    let floors = evidence.curve(is_demand, slots, |record| Some(evidence.floor(record)?.of_waiting));
    let overheads = evidence.overhead_by_slots(is_demand);
    let words = overheads.0.iter().map(|&(slots, overhead)| match floors.at(slots) {
        Some(floor) => format!("{} at {slots} (floor {})", percent(overhead), percent(floor)),
        None => format!("{} at {slots}", percent(overhead)),
    });
    (!overheads.is_empty()).then(|| words.collect::<Vec<_>>().join(", "))
}

/// The name of a curve of static credits.
fn static_name(credit_slots: u32) -> String {
    format!("static, {credit_slots} credit slot{}", if credit_slots == 1 { "" } else { "s" })
}

/// Name of the curve of weir's dynamic credits in all figures. The number of ranks decides which of its points is the
/// default.
const WEIR: &str = "weir (dynamic, piggybacking, equal shares at first contact)";

/// Name of the curve of credits on demand in all figures.
const DEMAND: &str = "demand (credits on demand, piggybacking)";

/// weir's own schemes, with the names of their curves.
const OWN_SCHEMES: [(SchemeName, &str); 2] = [(SchemeName::Weir, WEIR), (SchemeName::Demand, DEMAND)];

/// weir's default slots per peer, with credit slots, for a job of `ranks` (0: no world ran): 16 and 2, and
/// more for few ranks.
fn weir_slots(ranks: u32) -> f64 {
    f64::from(DataRegion::default_slots(16, ranks) / ranks.max(1) + 2)
}

#[cfg(test)]
mod tests;
