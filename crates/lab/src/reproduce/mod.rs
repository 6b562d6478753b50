//! `weir reproduce`: runs the published experiments, judges the published statements about them ("points"), and draws
//! their figures. It prints tables, and writes a page and `points.json`.
//!
//! An experiment consists of plans (files), points and figures (in `points`). Points are evaluated from records of
//! worlds, or from measurements of memory. `floor` computes what an all-to-all costs at least. Then `seeds` adds the
//! noise, and `sensitivity` the ranges of the assumed parameters over which a verdict stays. `fidelity` makes pages of
//! the documentation from the results, and `demand` the page and the figure of weir's own goals for credits on demand.
//!
//! A point that does not hold is a result too: it is printed and marked on the page.

pub mod demand;
mod evidence;
pub mod fidelity;
mod floor;
mod page;
mod points;
mod seeds;
mod sensitivity;
pub use sensitivity::TITLE as SWEEP_TITLE;

use crate::sim::ExecutionOptions;
use crate::sim::{execute, places};
use clap::Args;
use comfy_table::{Cell, ContentArrangement, Table};
use evidence::Evidence;
use points::{Experiment, Point, Verdict};
use serde::Serialize;
use std::collections::HashSet;
use weir_output::Failure;
use weir_output::chart::{self, Chart, ChartData};
use weir_output::quantity::several;
use weir_output::table;
use weir_sim::plan::assumed::Assumed;
use weir_sim::plan::{Plan, Record};

/// Options of `weir reproduce`.
#[derive(Args, Debug)]
#[command(after_help = "\
This runs the plans of published experiments, judges their points, and writes DIR/reproduce.html and DIR/points.json. \
Worlds that are recorded in DIR are not run again. `weir reproduce list` lists the experiments.

A point holds, holds if a parameter lies in a range, or does not hold. The ranges come from a sweep of the assumed \
parameters: those that no published time fits. It changes one parameter at a time in the small worlds of --quick. \
A point that holds, but not in the small worlds, is not swept. --no-sweep skips the sweep.

Exit status:
  0      everything ran, whether points hold or not
  1      a world did not end (the page shows the others), or a point does not hold with --strict
  130    interrupted (SIGINT)
  143    terminated (SIGTERM)

Examples:
  weir reproduce E1.2 --quick
  weir reproduce all --out results")]
pub struct ReproduceArguments {
    /// Experiments by number (E1.2, or E4 for all of E4), all published ones with what they leave open, `demand` for the
    /// goals of credits on demand, or `list`.
    #[arg(value_name = "EXPERIMENT", required = true)]
    experiments: Vec<String>,
    #[command(flatten)]
    how: ExecutionOptions,
    /// Fail if a point does not hold.
    #[arg(long)]
    strict: bool,
    /// Do not sweep the assumed parameters. A point that holds is then not swept.
    #[arg(long)]
    no_sweep: bool,
}

/// An experiment with the results of its plans.
struct Reproduced<'a> {
    experiment: &'static Experiment,
    plans: Vec<&'a Plan>,
    evidence: Evidence<'a>,
    points: Vec<Point>,
}

/// Format of `points.json`.
#[derive(Serialize)]
struct Output<'a> {
    schema: &'static str,
    weir_version: &'static str,
    quick: bool,
    /// Number of worlds. A world of two experiments counts once.
    worlds: usize,
    /// Worlds that ran with the checks from outside.
    checked_worlds: usize,
    experiments: Vec<ExperimentOutput<'a>>,
}

#[derive(Serialize)]
struct ExperimentOutput<'a> {
    id: &'static str,
    title: &'static str,
    points: &'a [Point],
    worlds: usize,
    /// Data of the figures.
    charts: Vec<ChartData>,
}

/// Runs experiments. Returns the exit status.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &ReproduceArguments) -> Result<u8, Failure> {
    if arguments.experiments == ["list"] {
        weir_output::write::print(list().join("\n"))?;
        return Ok(0);
    }
    let chosen = choose(&arguments.experiments)?;
    let directory = places::experiments()?;
    let mut plans = Vec::new();
    for experiment in &chosen {
        for name in experiment.plans {
            let path = directory.join(format!("{name}.toml"));
            plans.push((experiment.id, execute::read(&path, arguments.how.quick)?));
        }
    }
    let sweeps = match arguments.no_sweep {
        true => Vec::new(),
        false => {
            let is_published = |it: &&Experiment| published().any(|other| other.id == it.id);
            let chosen: Vec<_> = chosen.iter().copied().filter(|it| is_published(it)).collect();
            sensitivity::read(&chosen, |name| execute::read(&directory.join(format!("{name}.toml")), true))?
        }
    };
    let own = plans.iter().map(|(_, plan)| plan);
    let all: Vec<&Plan> = own.chain(sweeps.iter().map(|sweep| &sweep.plan)).collect();
    let options = arguments.how.options();
    let results = execute::execute(&all, &options)?;
    let reproduced: Vec<Reproduced<'_>> = chosen
        .iter()
        .map(|&experiment| {
            let own = plans.iter().filter(|(id, _)| *id == experiment.id);
            let plans: Vec<&Plan> = own.map(|(_, plan)| plan).collect();
            let records: Vec<&Record> =
                plans.iter().flat_map(|plan| &plan.worlds).filter_map(|setup| results.of(setup)).collect();
            let missing = plans.iter().map(|plan| plan.worlds.len()).sum::<usize>() - records.len();
            let setups = plans.iter().flat_map(|plan| &plan.worlds);
            let evidence = Evidence::new(records, &results.memory).with_floors(setups);
            let mut points = (experiment.points)(&evidence);
            seeds::compare(experiment, &evidence, &mut points);
            if missing > 0 {
                points.iter_mut().for_each(|point| point.open_without(missing));
            }
            sensitivity::judge(experiment, &sweeps, &results, &mut points);
            Reproduced { experiment, plans, evidence, points }
        })
        .collect();
    weir_output::write::print(render(&reproduced))?;
    if let Some(table) = render_sensitivity(&reproduced) {
        weir_output::write::print(format_args!("\n{SENSITIVITY}\n{table}"))?;
    }
    let quick = arguments.how.quick;
    let page = options.out.join("reproduce.html");
    std::fs::write(&page, page::render(&reproduced, quick))
        .map_err(Failure::system(format!("cannot write {}", page.display())))?;
    let output = Output {
        schema: "weir-reproduce-2",
        weir_version: env!("CARGO_PKG_VERSION"),
        quick,
        worlds: worlds(&reproduced).len(),
        checked_worlds: worlds(&reproduced).iter().filter(|record| record.checked).count(),
        experiments: reproduced
            .iter()
            .map(|it| ExperimentOutput {
                id: it.experiment.id,
                title: it.experiment.title,
                points: &it.points,
                worlds: it.evidence.records.len(),
                charts: (it.experiment.figures)(&it.evidence).iter().map(Chart::data).collect(),
            })
            .collect(),
    };
    weir_output::write::write_json(&output, &options.out.join("points.json").display().to_string())?;
    weir_output::write::print(summary(&reproduced, quick))?;
    weir_output::write::print(format_args!("page: {}", page.display()))?;
    results.all_ended()?;
    let all_hold =
        reproduced.iter().flat_map(|it| &it.points).all(|point| point.verdict != Verdict::DoesNotHold);
    Ok(u8::from(arguments.strict && !all_hold))
}

fn choose(names: &[String]) -> Result<Vec<&'static Experiment>, Failure> {
    if names == ["all"] {
        return Ok(published().chain(points::EXTENSIONS).collect());
    }
    if let Some(alone) = names.iter().find(|name| ["all", "list"].contains(&name.as_str())) {
        return Err(Failure::Usage(format!("{alone} with others; allowed: {alone} alone, or experiments")));
    }
    let mut chosen: Vec<&'static Experiment> = Vec::new();
    for name in names {
        let mut found = known().filter(|experiment| is_named(experiment.id, name)).peekable();
        if found.peek().is_none() {
            let ids = known().map(|experiment| experiment.id).collect::<Vec<_>>().join(", ");
            let what =
                format!("{name}: no such experiment; allowed: all, list, {ids}, or the part before a dot");
            return Err(Failure::Usage(what));
        }
        for experiment in found {
            if !chosen.iter().any(|known| known.id == experiment.id) {
                chosen.push(experiment);
            }
        }
    }
    Ok(chosen)
}

/// Whether `name` is the number of an experiment, or the part of it before the dot.
fn is_named(id: &str, name: &str) -> bool {
    let family = id.split_once('.').map(|(family, _)| family);
    id.eq_ignore_ascii_case(name) || family.is_some_and(|family| family.eq_ignore_ascii_case(name))
}

/// Two lines for each experiment.
fn list() -> Vec<String> {
    let lines = |experiment: &Experiment| {
        let plans = experiment.plans.iter().map(|name| format!("experiments/{name}.toml"));
        let plans = plans.collect::<Vec<_>>().join(", ");
        format!("{:6} {}\n       {}; {plans}", experiment.id, experiment.title, experiment.source)
    };
    known().map(lines).collect()
}

/// The published experiments, what they leave open, then weir's own goals.
fn known() -> impl Iterator<Item = &'static Experiment> {
    published().chain(points::EXTENSIONS).chain(points::OWN)
}

/// The published experiments, in order.
fn published() -> impl Iterator<Item = &'static Experiment> {
    points::ALL.iter().chain(points::CONGESTION)
}

/// The worlds of all experiments. A world of two experiments occurs once.
fn worlds<'a>(reproduced: &[Reproduced<'a>]) -> Vec<&'a Record> {
    let mut known = HashSet::new();
    let records = reproduced.iter().flat_map(|it| it.evidence.records.iter().copied());
    records.filter(|record| known.insert(&record.key)).collect()
}

/// Heading of the second table.
const SENSITIVITY: &str =
    "Range of each assumed parameter over which the verdict stays (small worlds, one parameter at a time)";

/// Points and the ranges of assumed parameters; `None` if nothing was swept.
fn render_sensitivity(reproduced: &[Reproduced<'_>]) -> Option<String> {
    let mut table = new_table();
    let names = parameters(reproduced);
    if names.is_empty() {
        return None;
    }
    table.set_header(["", "point", "verdict"].into_iter().chain(names.iter().copied()));
    for it in reproduced {
        for point in it.points.iter().filter(|point| !point.id.is_empty()) {
            let row = sensitivity_row(point, &names);
            table.add_row([it.experiment.id.to_owned()].into_iter().chain(row));
        }
    }
    Some(table::text(&table))
}

/// The parameters that were swept, in order.
fn parameters(reproduced: &[Reproduced<'_>]) -> Vec<&'static str> {
    let all = reproduced.iter().flat_map(|it| &it.points).flat_map(|point| &point.sensitivity);
    let swept: HashSet<&str> = all.map(|range| range.parameter).collect();
    let names = Assumed::ALL.iter().map(|parameter| parameter.name());
    names.filter(|name| swept.contains(name)).collect()
}

/// Name of the point, verdict, and a cell for each parameter: a range, or `-` where the parameter was not swept.
fn sensitivity_row(point: &Point, names: &[&str]) -> Vec<String> {
    let cell = |name: &&str| {
        let range = point.sensitivity.iter().find(|range| range.parameter == *name);
        range.map_or_else(|| String::from("-"), |range| range.range())
    };
    let head = [point.id.clone(), point.verdict.word().to_owned()];
    head.into_iter().chain(names.iter().map(cell)).collect()
}

fn new_table() -> Table {
    let mut table = table::plain();
    table.set_content_arrangement(ContentArrangement::Dynamic);
    if !std::io::IsTerminal::is_terminal(&std::io::stdout()) {
        table.set_width(150);
    }
    table
}

/// `ours` with the interval over seeds, if there are several.
fn ours(point: &Point) -> String {
    let mut text = point.ours.clone();
    if let Some(over_seeds) = point.over_seeds.as_ref().filter(|it| **it != point.ours) {
        text.push_str(&format!("; over seeds: {over_seeds}"));
    }
    if let Some((same, all)) = point.seeds {
        text.push_str(&format!("; {same} of {all} seeds have this verdict"));
    }
    text
}

/// Point, published, ours, verdict.
fn render(reproduced: &[Reproduced<'_>]) -> String {
    let mut table = new_table();
    table.set_header(["", "point", "published", "ours", ""]);
    for it in reproduced {
        for point in &it.points {
            table.add_row([
                Cell::new(it.experiment.id),
                Cell::new(&point.text),
                Cell::new(&point.published),
                Cell::new(ours(point)),
                Cell::new(point.verdict_text()),
            ]);
        }
    }
    table::text(&table)
}

fn summary(reproduced: &[Reproduced<'_>], quick: bool) -> String {
    let verdicts = reproduced.iter().flat_map(|it| &it.points).map(|point| point.verdict);
    let verdicts: Vec<Verdict> = verdicts.filter(|verdict| *verdict != Verdict::NotPublished).collect();
    let mut text = sentence(&verdicts, worlds(reproduced).len());
    if quick {
        text.push_str(
            "\nquick: these worlds are smaller and fewer than the published ones, so a point may hold here and not at full size, or the \
             other way round",
        );
    }
    if verdicts.contains(&Verdict::DoesNotHold) {
        text.push_str("\nwhy a point does not hold: docs/explanation/fidelity.md");
    }
    text
}

/// `7 points: 3 hold, 1 holds (not swept), 1 holds if a parameter lies in a range, 1 does not hold, 1 is not evaluated; 12 worlds`.
fn sentence(verdicts: &[Verdict], worlds: usize) -> String {
    let count = |verdict, one: &str, more: &str| {
        let count = verdicts.iter().filter(|it| **it == verdict).count();
        format!("{count} {}", if count == 1 { one } else { more })
    };
    format!(
        "{}: {}, {}, {}, {}, {}; {}",
        several(verdicts.len() as u64, "point"),
        count(Verdict::Holds, "holds", "hold"),
        count(Verdict::HoldsUnswept, "holds (not swept)", "hold (not swept)"),
        count(
            Verdict::HoldsIf,
            "holds if a parameter lies in a range",
            "hold if a parameter lies in a range"
        ),
        count(Verdict::DoesNotHold, "does not hold", "do not hold"),
        count(Verdict::NotEvaluated, "is not evaluated", "are not evaluated"),
        several(worlds as u64, "world")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_before_the_dot_chooses_all_its_experiments() {
        let chosen = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            choose(&names).map(|chosen| chosen.iter().map(|it| it.id).collect::<Vec<_>>())
        };
        assert_eq!(chosen(&["e2.4", "E2"]).expect("known")[..3], ["E2.4", "E2.1", "E2.2"]);
        assert!(chosen(&["E4"]).expect("known").contains(&"E4.3"));
        for unknown in ["E", "E9", "E1.", "2"] {
            assert!(chosen(&[unknown]).is_err(), "{unknown}");
        }
    }

    #[test]
    fn counts_of_one_are_singular() {
        let (yes, no, open) = (Verdict::Holds, Verdict::DoesNotHold, Verdict::NotEvaluated);
        for (verdicts, said) in [
            (
                &[yes][..],
                "1 point: 1 holds, 0 hold (not swept), 0 hold if a parameter lies in a range, 0 do not hold, 0 are not evaluated; 1 world",
            ),
            (
                &[yes, no, open, Verdict::HoldsIf, Verdict::HoldsUnswept],
                "5 points: 1 holds, 1 holds (not swept), 1 holds if a parameter lies in a range, 1 does not hold, 1 is not evaluated; 5 worlds",
            ),
        ] {
            assert_eq!(sentence(verdicts, verdicts.len()), said);
        }
    }
}
