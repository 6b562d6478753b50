//! Sensitivity: the range of each assumed parameter over which the verdict about a published statement (a point) stays.
//! A point that holds for some of the swept values only "holds if" a parameter lies in its range.
//!
//! Some prices of the models are assumptions, because no published time fits them ([`Assumed`]). A sweep changes one of
//! them at a time in the worlds of the quick variant, runs these worlds with one seed, and evaluates the same rules.
//! Full-size worlds would take days. So a range describes the small worlds, and only a point with the same verdict in
//! both gets it. A point that holds without a range is "not swept".
//!
//! Plans of one experiment may assume different call jitter. Worlds with the same jitter are swept together.

use super::evidence::Evidence;
use super::points::{Experiment, Point, Verdict, VerdictRange};
use crate::sim::execute::Results;
use std::collections::HashSet;
use std::path::PathBuf;
use weir_output::Failure;
use weir_sim::plan::assumed::Assumed;
use weir_sim::plan::{Plan, Record, SchemeName, Setup};

/// The worlds of one experiment with one parameter at one value.
struct Step {
    parameter: Assumed,
    value: f64,
    worlds: Vec<Setup>,
}

/// The sweep of the worlds of one experiment that assume the same call jitter.
pub struct Sweep {
    /// The experiment.
    pub experiment: &'static Experiment,
    /// Worlds of the quick variant, with the assumed values.
    base: Vec<Setup>,
    steps: Vec<Step>,
    /// The worlds to run, each once.
    pub plan: Plan,
}

/// Title of a plan that is a sweep.
pub const TITLE: &str = "sensitivity sweep";

impl Sweep {
    /// The sweeps of an experiment whose quick plans are `plans`.
    pub fn of(experiment: &'static Experiment, plans: Vec<Plan>) -> Vec<Sweep> {
        let path = plans.first().map(|plan| plan.path.clone()).unwrap_or_default();
        // One seed of each plan: the sweep compares values, not seeds.
        let first_seed = |plan: Plan| {
            let seed = plan.worlds.iter().map(|setup| setup.settings.seed).min();
            // No published point is about credits on demand.
            plan.worlds.into_iter().filter(move |setup| {
                Some(setup.settings.seed) == seed && setup.settings.scheme != SchemeName::Demand
            })
        };
        let mut groups: Vec<(f64, Vec<Setup>)> = Vec::new();
        for setup in plans.into_iter().flat_map(first_seed) {
            let jitter = Assumed::CallJitter.base_of(std::slice::from_ref(&setup));
            match groups.iter_mut().find(|(other, _)| *other == jitter) {
                Some((_, worlds)) => worlds.push(setup),
                None => groups.push((jitter, vec![setup])),
            }
        }
        groups.into_iter().map(|(_, base)| Sweep::new(experiment, path.clone(), base)).collect()
    }

    fn new(experiment: &'static Experiment, path: PathBuf, base: Vec<Setup>) -> Sweep {
        let mut steps = Vec::new();
        for parameter in Assumed::ALL {
            let assumed = parameter.base_of(&base);
            if base.iter().all(|setup| parameter.set(setup, assumed).is_none()) {
                continue;
            }
            for &value in parameter.values() {
                let change = |setup: &Setup| match value == parameter.base_of(std::slice::from_ref(setup)) {
                    true => setup.clone(),
                    false => parameter.set(setup, value).unwrap_or_else(|| setup.clone()),
                };
                steps.push(Step { parameter, value, worlds: base.iter().map(change).collect() });
            }
        }
        let mut known = HashSet::new();
        let all = base.iter().chain(steps.iter().flat_map(|step| &step.worlds));
        let worlds = all.filter(|setup| known.insert(setup.key())).cloned().collect();
        let plan = Plan {
            path,
            title: TITLE.to_owned(),
            experiment: experiment.id.to_owned(),
            source: String::new(),
            worlds,
            memory_peers: Vec::new(),
            is_quick: true,
        };
        Sweep { experiment, base, steps, plan }
    }

    /// Adds the ranges to the points of these worlds.
    fn find_ranges(&self, results: &Results, points: &mut [Point]) {
        let base = self.points(&self.base, results);
        let steps: Vec<(&Step, Vec<Point>)> =
            self.steps.iter().map(|step| (step, self.points(&step.worlds, results))).collect();
        for point in points.iter_mut().filter(|point| point.sensitivity.is_empty()) {
            let wanted = match point.verdict {
                Verdict::Holds => true,
                Verdict::DoesNotHold => false,
                _ => continue,
            };
            if verdict_of(&base, &point.id) != Some(wanted) {
                continue;
            }
            for parameter in Assumed::ALL {
                let of_it = steps.iter().filter(|(step, _)| step.parameter == parameter);
                let verdicts: Vec<(f64, bool)> = of_it
                    .map(|(step, points)| (step.value, verdict_of(points, &point.id) == Some(wanted)))
                    .collect();
                point.sensitivity.extend(same_verdict_range(
                    parameter,
                    parameter.base_of(&self.base),
                    &verdicts,
                ));
            }
        }
    }

    fn points(&self, worlds: &[Setup], results: &Results) -> Vec<Point> {
        let records: Option<Vec<&Record>> = worlds.iter().map(|setup| results.of(setup)).collect();
        // A step with a missing world is not evaluated.
        records.map_or_else(Vec::new, |records| (self.experiment.points)(&Evidence::new(records, &[])))
    }
}

/// Adds the ranges to each point of an experiment. Sets the verdict of a point that holds to `HoldsIf` or
/// `HoldsUnswept` where it does not hold with all values.
///
/// - `sweeps`: the sweeps of all experiments. Without one of this experiment, other values are unknown.
pub fn judge(experiment: &Experiment, sweeps: &[Sweep], results: &Results, points: &mut [Point]) {
    for sweep in sweeps.iter().filter(|sweep| sweep.experiment.id == experiment.id) {
        sweep.find_ranges(results, points);
    }
    for point in points.iter_mut().filter(|point| point.verdict == Verdict::Holds) {
        point.verdict = match point.sensitivity.as_slice() {
            [] => Verdict::HoldsUnswept,
            ranges if ranges.iter().all(|range| range.is_all) => Verdict::Holds,
            _ => Verdict::HoldsIf,
        };
    }
}

/// Reads the small worlds of experiments.
///
/// # Errors
/// [`Failure`] if a plan is not valid.
pub fn read(
    chosen: &[&'static Experiment],
    quick: impl Fn(&str) -> Result<Plan, Failure>,
) -> Result<Vec<Sweep>, Failure> {
    let sweep = |experiment: &&'static Experiment| {
        let plans =
            experiment.plans.iter().map(|name| quick(name)).collect::<Result<Vec<Plan>, Failure>>()?;
        Ok(Sweep::of(experiment, plans))
    };
    let sweeps: Result<Vec<Vec<Sweep>>, Failure> = chosen.iter().map(sweep).collect();
    Ok(sweeps?.into_iter().flatten().filter(|sweep| !sweep.steps.is_empty()).collect())
}

/// Whether all points with this name hold; `None` if there is none, or one is not evaluated.
fn verdict_of(points: &[Point], id: &str) -> Option<bool> {
    let mut of_it = points.iter().filter(|point| point.id == id).peekable();
    of_it.peek()?;
    of_it.try_fold(true, |all, point| {
        (point.verdict != Verdict::NotEvaluated).then_some(all && point.verdict.holds())
    })
}

/// The values around the assumed one with the same verdict. `verdicts`: value, and whether the verdict is the same.
fn same_verdict_range(parameter: Assumed, assumed: f64, verdicts: &[(f64, bool)]) -> Option<VerdictRange> {
    let base = verdicts.iter().position(|(value, same)| *value == assumed && *same)?;
    let below = verdicts[..base].iter().rev().take_while(|(_, same)| *same).count();
    let above = verdicts[base + 1..].iter().take_while(|(_, same)| *same).count();
    Some(VerdictRange {
        parameter: parameter.name(),
        from: verdicts[base - below].0,
        to: verdicts[base + above].0,
        is_all: below + above + 1 == verdicts.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_before_the_first_value_with_another_verdict() {
        let verdicts =
            |same: [bool; 4]| Assumed::CreditPrice.values().iter().copied().zip(same).collect::<Vec<_>>();
        for (same, range, is_all) in [
            ([true; 4], "[0.1, 2]", true),
            ([false, true, true, true], "[0.5, 2]", false),
            ([true, false, true, false], "[1, 1]", false),
        ] {
            let found =
                same_verdict_range(Assumed::CreditPrice, 1.0, &verdicts(same)).expect("the base is there");
            assert_eq!((found.range().as_str(), found.is_all), (range, is_all));
        }
        assert_eq!(same_verdict_range(Assumed::CreditPrice, 1.0, &[]), None);
        assert_eq!(same_verdict_range(Assumed::CreditPrice, 1.0, &verdicts([true, true, false, true])), None);
    }

    #[test]
    fn a_point_that_is_not_evaluated_has_no_verdict() {
        let points = [
            Point::new("a", "", "", "", true),
            Point::open("b", "", ""),
            Point::new("b", "", "", "", true),
            Point::new("c", "", "", "", true),
            Point::new("c", "", "", "", false),
        ];
        assert_eq!(
            ["a", "b", "c", "d"].map(|id| verdict_of(&points, id)),
            [Some(true), None, Some(false), None]
        );
    }

    #[test]
    fn a_verdict_names_the_parameters_that_it_depends_on() {
        let verdict_range =
            |from, is_all| VerdictRange { parameter: "credit price (x)", from, to: 2.0, is_all };
        let mut point = Point::new("a", "", "", "", true);
        point.sensitivity = vec![verdict_range(0.5, false), verdict_range(0.0, true)];
        assert_eq!(point.verdict_text(), "holds");
        point.verdict = Verdict::HoldsIf;
        assert_eq!(point.verdict_text(), "holds if credit price (x) in [0.5, 2]");
    }
}
