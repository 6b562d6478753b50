//! Checks the published statements ("points") about experiment E1.7 against our simulation records, and draws its
//! figures. All-to-alls run in seven phases among all, a quarter or half of the ranks. With dynamic credits it follows
//! the mean credits of rank 0 towards three groups of ranks, for two kinds of barrier. Figures show weir's own
//! schemes too, which no point judges. Source: Prades, thesis, 7.3.

use super::{DEMAND, Experiment, Point, WEIR};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence};
use weir_sim::plan::record::Measure;
use weir_sim::plan::{Record, SchemeName};

pub const EXPERIMENT: Experiment = Experiment {
    id: "E1.7",
    title: "Credits follow the communication pattern",
    source: "Prades, thesis, 7.3: Figure 7.4",
    plans: &["e1.7"],
    points,
    figures,
};

/// Groups of Figure 7.4: active in all phases, in the phases of a half and of all ranks, in the phases of all
/// ranks.
const GROUPS: [&str; 3] = ["active in all phases", "in phases of a half and of all", "in phases of all"];

/// Meaning of "suddenly gain": at least this from one call to the next, as mean over the group. Unit: slots.
const SUDDEN: f64 = 1.0;

/// The barrier between phases. It was not published which one the cluster of the thesis used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Barrier {
    Dissemination,
    Linear,
}

fn world<'a>(evidence: &Evidence<'a>, scheme: SchemeName, barrier: Barrier) -> Option<&'a Record> {
    let is_linear =
        |record: &Record| record.settings.workload["alltoall_phases"]["barrier"].as_str() == Some("linear");
    let is = |record: &&Record| {
        record.settings.scheme == scheme && is_linear(record) == (barrier == Barrier::Linear)
    };
    evidence.records.iter().copied().find(is)
}

fn series<'a>(record: &'a Record, name: &str) -> &'a [f64] {
    record.measures.get(name).map_or(&[], |measure: &Measure| &measure.of_rank_0)
}

/// Mean credits towards a group after each call, with the phase of the call.
fn credits(record: &Record, group: usize) -> Vec<(usize, f64)> {
    let phases = series(record, "phase");
    let credits = series(record, &format!("credits_{group}_mean_slots"));
    phases.iter().zip(credits).map(|(phase, credits)| (*phase as usize, *credits)).collect()
}

/// The last value of each phase.
fn at_the_end(credits: &[(usize, f64)]) -> Vec<f64> {
    let mut ends = Vec::new();
    for &(phase, value) in credits {
        ends.resize(phase + 1, f64::NAN);
        ends[phase] = value;
    }
    ends
}

/// The last value before a phase, and the first value in it.
fn around_the_beginning(credits: &[(usize, f64)], phase: usize) -> Option<(f64, f64)> {
    let first = credits.iter().position(|(it, _)| *it == phase)?;
    Some((credits.get(first.checked_sub(1)?)?.1, credits[first].1))
}

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let of = |barrier| points_of(world(evidence, SchemeName::Dynamic, barrier));
    let linear = of(Barrier::Linear).into_iter().map(|point| Point {
        id: format!("linear.{}", point.id),
        text: format!("linear barrier: {}", point.text),
        ..point
    });
    of(Barrier::Dissemination).into_iter().chain(linear).collect()
}

fn points_of(dynamic: Option<&Record>) -> Vec<Point> {
    let ends: Vec<Vec<f64>> = (0..3)
        .map(|group| dynamic.map_or_else(Vec::new, |record| at_the_end(&credits(record, group))))
        .collect();
    let woken = dynamic.and_then(|record| around_the_beginning(&credits(record, 2), 2));
    let known = ends.iter().all(|ends| ends.len() == 7).then_some(());
    let words =
        |values: &[f64]| values.iter().map(|value| format!("{value:.0}")).collect::<Vec<_>>().join(", ");
    let point = |id: &str, text: &str, published: &str, group: usize, holds: &dyn Fn(&[f64]) -> bool| {
        Point::of(id, text, published, known.map(|()| (words(&ends[group]), holds(&ends[group]))))
    };
    // Phases, from 0: all, quarter, half, all, half, quarter, all.
    vec![
        point(
            "follow-the-pattern",
            "credits towards the ranks of all phases, at the end of each phase: most in the phases of a quarter, fewest in those of all (by at least 1 slot)",
            "they follow the pattern",
            0,
            &|ends| {
                let quarter = ends[1].min(ends[5]);
                quarter >= ends[0].max(ends[3]).max(ends[6]) + SUDDEN
                    && ends[2].min(ends[4]) >= ends[3].max(ends[6]) + SUDDEN
            },
        ),
        point(
            "gain-with-a-half",
            "towards those that come in with a half: more at the end of phase 3 (half) than of phase 2 (quarter), by at least 1 slot",
            "they gain",
            1,
            &|ends| ends[2] >= ends[1] + SUDDEN,
        ),
        point(
            "gain-with-all",
            "towards those that come in with all: more at the end of phases 4 and 7 (all) than before, by at least 1 slot",
            "they gain",
            2,
            &|ends| ends[3] >= ends[2] + SUDDEN && ends[6] >= ends[5] + SUDDEN,
        ),
        Point::of(
            "barrier-wakes",
            format!(
                "barriers wake idle ranks: those that come in with all only gain (at least {SUDDEN} slot) at the barrier before phase 3, in \
                 which they have no part"
            ),
            "they suddenly gain (after 200 calls)",
            known.and(woken).map(|(before, after)| {
                (
                    format!("{before:.1} slots before, {after:.1} after the next call"),
                    after >= before + SUDDEN,
                )
            }),
        ),
    ]
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let mut charts = Vec::new();
    for (scheme, barrier, name) in [
        (SchemeName::Dynamic, Barrier::Dissemination, "dynamic credits"),
        (SchemeName::Dynamic, Barrier::Linear, "dynamic credits, linear barrier"),
        (SchemeName::Weir, Barrier::Dissemination, WEIR),
        (SchemeName::Demand, Barrier::Dissemination, DEMAND),
    ] {
        let title = format!("Credits of rank 0 towards three groups, {name} (Figure 7.4)");
        let mut chart = Chart::new(title, "calls", "mean credits (slots)");
        if let Some(record) = world(evidence, scheme, barrier) {
            for (group, text) in GROUPS.iter().enumerate() {
                let values = credits(record, group).into_iter().enumerate();
                chart.curve(
                    *text,
                    Curve(values.map(|(call, (_, value))| (call as f64 + 1.0, value)).collect()),
                );
            }
        }
        if scheme == SchemeName::Dynamic {
            chart.mark(Mark::Words { text: "published: credits go to those who take part" });
        }
        charts.push(chart);
    }
    charts
}
