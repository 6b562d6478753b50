//! `weir reproduce`: the published experiments, run, evaluated and drawn.
//!
//! An experiment is some plans (in files), points and figures (in [`points`]); points are evaluated from records only. A
//! point that does not hold is a result like any other: it is printed, marked on the page, and explained in docs/fidelity.md.

mod evidence;
mod page;
mod points;

use crate::sim::ExecutionOptions;
use crate::sim::{execute, places};
use clap::Args;
use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, presets};
use evidence::Evidence;
use points::{Experiment, Point, Verdict};
use serde::Serialize;
use std::collections::HashSet;
use weir_output::Failure;
use weir_output::chart;
use weir_output::quantity::several;
use weir_sim::plan::{Plan, Record};

/// Options of `weir reproduce`.
#[derive(Args, Debug)]
#[command(after_help = "\
Runs the plans of published experiments (worlds that are recorded are not run again), evaluates their points, and writes \
DIR/reproduce.html, one page that needs nothing else, and DIR/points.json. What each experiment is: `weir reproduce list`.

Exit status: 0 if everything ran, whether points hold or not; 1 if a world did not end (what did is on the page), or with \
--strict if a point does not hold; 130 or 143 if it was interrupted (SIGINT, SIGTERM).

Examples:
  weir reproduce E1.2 --quick
  weir reproduce all --out results")]
pub struct ReproduceArguments {
    /// Experiments by number (E1.2), all of them, or `list`.
    #[arg(value_name = "EXPERIMENT", required = true)]
    experiments: Vec<String>,
    #[command(flatten)]
    how: ExecutionOptions,
    /// Fail if a point does not hold.
    #[arg(long)]
    strict: bool,
}

/// An experiment with what its plans gave.
struct Reproduced<'a> {
    experiment: &'static Experiment,
    plans: Vec<&'a Plan>,
    evidence: Evidence<'a>,
    points: Vec<Point>,
}

/// What `points.json` holds.
#[derive(Serialize)]
struct Output<'a> {
    schema: &'static str,
    weir_version: &'static str,
    quick: bool,
    experiments: Vec<ExperimentOutput<'a>>,
}

#[derive(Serialize)]
struct ExperimentOutput<'a> {
    id: &'static str,
    title: &'static str,
    points: &'a [Point],
    worlds: usize,
}

/// Runs experiments. The result is the exit status.
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
    let all: Vec<&Plan> = plans.iter().map(|(_, plan)| plan).collect();
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
            let evidence = Evidence::new(records, &results.memory);
            let mut points = (experiment.points)(&evidence);
            if missing > 0 {
                points.iter_mut().for_each(|point| point.open_without(missing));
            }
            Reproduced { experiment, plans, evidence, points }
        })
        .collect();
    weir_output::write::print(render(&reproduced))?;
    let quick = arguments.how.quick;
    let page = options.out.join("reproduce.html");
    std::fs::write(&page, page::render(&reproduced, quick))
        .map_err(Failure::system(page.display().to_string()))?;
    let output = Output {
        schema: "weir-reproduce-1",
        weir_version: env!("CARGO_PKG_VERSION"),
        quick,
        experiments: reproduced
            .iter()
            .map(|it| ExperimentOutput {
                id: it.experiment.id,
                title: it.experiment.title,
                points: &it.points,
                worlds: it.evidence.records.len(),
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
        return Ok(points::ALL.iter().collect());
    }
    if let Some(alone) = names.iter().find(|name| ["all", "list"].contains(&name.as_str())) {
        return Err(Failure::Usage(format!("{alone} with others; allowed: {alone} alone, or experiments")));
    }
    let find = |name: &String| {
        points::ALL.iter().find(|experiment| experiment.id.eq_ignore_ascii_case(name)).ok_or_else(|| {
            let ids = points::ALL.iter().map(|experiment| experiment.id).collect::<Vec<_>>().join(", ");
            Failure::Usage(format!("{name}: no such experiment; allowed: all, list, {ids}"))
        })
    };
    let mut chosen: Vec<&'static Experiment> = Vec::new();
    for name in names {
        let experiment = find(name)?;
        if !chosen.iter().any(|known| known.id == experiment.id) {
            chosen.push(experiment);
        }
    }
    Ok(chosen)
}

/// Two lines for each experiment.
fn list() -> Vec<String> {
    let lines = |experiment: &Experiment| {
        let plans = experiment.plans.iter().map(|name| format!("experiments/{name}.toml"));
        let plans = plans.collect::<Vec<_>>().join(", ");
        format!("{:6} {}\n       {}; {plans}", experiment.id, experiment.title, experiment.source)
    };
    points::ALL.iter().map(lines).collect()
}

/// The worlds of all experiments, each once: some are of two.
fn worlds<'a>(reproduced: &[Reproduced<'a>]) -> Vec<&'a Record> {
    let mut known = HashSet::new();
    let records = reproduced.iter().flat_map(|it| it.evidence.records.iter().copied());
    records.filter(|record| known.insert(&record.key)).collect()
}

/// Point, published, ours, holds.
fn render(reproduced: &[Reproduced<'_>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY.row_separator(LineStyle::none()));
    table.set_content_arrangement(ContentArrangement::Dynamic);
    if !std::io::IsTerminal::is_terminal(&std::io::stdout()) {
        table.set_width(150);
    }
    table.set_header(["", "point", "published", "ours", ""]);
    for it in reproduced {
        for point in &it.points {
            table.add_row([
                Cell::new(it.experiment.id),
                Cell::new(&point.text),
                Cell::new(&point.published),
                Cell::new(&point.ours),
                Cell::new(point.verdict.word()).set_alignment(CellAlignment::Left),
            ]);
        }
    }
    let lines: Vec<_> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

fn summary(reproduced: &[Reproduced<'_>], quick: bool) -> String {
    let verdicts = reproduced.iter().flat_map(|it| &it.points).map(|point| point.verdict);
    let verdicts: Vec<Verdict> = verdicts.filter(|verdict| *verdict != Verdict::NotPublished).collect();
    let mut text = sentence(&verdicts, worlds(reproduced).len());
    if quick {
        text.push_str(
            "\nquick: worlds smaller and fewer than published; what a point says about 1024 ranks is not tested by them, and it may hold at \
             full size and not here",
        );
    }
    if verdicts.contains(&Verdict::DoesNotHold) {
        text.push_str("\nwhy a point does not hold: docs/fidelity.md");
    }
    text
}

/// `3 of 6 points hold, 1 does not, 2 are not evaluated; 12 worlds`.
fn sentence(verdicts: &[Verdict], worlds: usize) -> String {
    let count = |verdict| verdicts.iter().filter(|it| **it == verdict).count();
    let verb = |verdict, one: &str, more: &str| {
        let count = count(verdict);
        format!("{count} {}", if count == 1 { one } else { more })
    };
    let (hold, all) = (count(Verdict::Holds), verdicts.len());
    format!(
        "{hold} of {} {}, {}, {}; {}",
        several(all as u64, "point"),
        if hold == 1 { "holds" } else { "hold" },
        verb(Verdict::DoesNotHold, "does not", "do not"),
        verb(Verdict::NotEvaluated, "is not evaluated", "are not evaluated"),
        several(worlds as u64, "world")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_one_are_singular() {
        let (yes, no, open) = (Verdict::Holds, Verdict::DoesNotHold, Verdict::NotEvaluated);
        for (verdicts, said) in [
            (&[yes][..], "1 of 1 point holds, 0 do not, 0 are not evaluated; 1 world"),
            (&[yes, no, open], "1 of 3 points holds, 1 does not, 1 is not evaluated; 3 worlds"),
            (&[yes, yes, no, no], "2 of 4 points hold, 2 do not, 0 are not evaluated; 4 worlds"),
        ] {
            assert_eq!(sentence(verdicts, verdicts.len()), said);
        }
    }
}
