//! The output of `weir bench overhead`: tables of instructions and times, the verdict on each limit, and advice where
//! the times decide nothing. Also tells the command whether everything was measured and passed.

use super::super::statistics::{Ratio, Verdict};
use super::pairs::{PairsResult, Point};
use super::{Results, Schemes};
use crate::machine::Machine;
use comfy_table::{Cell, Table};
use serde::Serialize;
use weir_mpi::find::Mpi;
use weir_output::quantity::{exact_bytes, time_ns};
use weir_output::table;

/// The limits of a scheme's cost, as ratios.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Limits {
    /// Instructions of a message.
    pub instructions: f64,
    /// Time, over all benchmarks and sizes.
    pub time: f64,
}

/// Whether everything was measured and passed.
pub fn all_passed(results: &Results, limits: Limits) -> bool {
    let counted =
        results.instructions.iter().all(|(flow, over)| flow.both() / over.both() <= limits.instructions);
    let timed = results.time.as_ref().is_none_or(|time| verdict(time, limits) == Verdict::Passed);
    results.missing.is_empty() && counted && timed
}

/// The verdict on the time. An interval that is wider than the limit allows resolves nothing.
fn verdict(time: &PairsResult, limits: Limits) -> Verdict {
    time.overall.map_or(Verdict::NotResolved, |overall| overall.verdict(limits.time, limits.time - 1.0))
}

/// Returns the tables, verdicts and notes.
pub fn render(
    results: &Results,
    schemes: &Schemes,
    limits: Limits,
    machine: &Machine,
    mpi: Option<&Mpi>,
) -> String {
    let mut lines = Vec::new();
    if !results.instructions.is_empty() {
        lines.push(format!("Instructions of a message, {} over {}:", schemes.flow, schemes.over));
        lines.extend(instructions(results, schemes, limits));
    }
    if let Some(time) = &results.time {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.push(format!("Time under IMB-MPI1 on 2 ranks, {} over {}:", schemes.flow, schemes.over));
        lines.extend(times(time, schemes, limits));
        if let Some(mpi) = mpi {
            lines.push(format!("{} {}, interleaved pairs of runs.", mpi.kind.name(), mpi.version));
        }
        if machine.is_busy() {
            lines.push(format!(
                "The machine was not idle (load {}): other work widens the interval but does not shift it.",
                machine.load
            ));
        }
    }
    lines.push(format!("{}, {} cores, Linux {}.", machine.processor, machine.cores, machine.kernel));
    lines.extend(results.missing.iter().cloned());
    lines.join("\n")
}

fn instructions(results: &Results, schemes: &Schemes, limits: Limits) -> Vec<String> {
    let mut table = new_table(&["message", "side", &schemes.flow, &schemes.over, "difference"]);
    let mut verdicts = Vec::new();
    for (flow, over) in &results.instructions {
        let message = format!("{}, {}", exact_bytes(u64::from(flow.bytes)), flow.traffic.describe());
        for (side, flow, over) in [
            ("sender", flow.sender, over.sender),
            ("receiver", flow.receiver, over.receiver),
            ("both", flow.both(), over.both()),
        ] {
            let name = if side == "sender" { message.clone() } else { String::new() };
            table.add_row(row([
                name,
                side.to_owned(),
                format!("{flow:.1}"),
                format!("{over:.1}"),
                percent(flow / over),
            ]));
        }
        let ratio = flow.both() / over.both();
        let word = if ratio <= limits.instructions { Verdict::Passed } else { Verdict::Failed }.word();
        verdicts.push(format!(
            "{message}: {}, limit {}: {word}.",
            percent(ratio),
            percent(limits.instructions)
        ));
    }
    std::iter::once(table::text(&table)).chain(verdicts).collect()
}

fn times(time: &PairsResult, schemes: &Schemes, limits: Limits) -> Vec<String> {
    let interval = |ratio: Option<Ratio>| match ratio {
        None => [String::from("-"), String::from("-")],
        Some(ratio) => [percent(ratio.mean), ends(&ratio)],
    };
    let mut table =
        new_table(&["benchmark", "message", &schemes.flow, &schemes.over, "mean overhead", "95 % interval"]);
    let mut last = "";
    for point in &time.points {
        let name = if point.benchmark == last { "" } else { point.benchmark };
        last = point.benchmark;
        let [mean, ends] = interval(point.ratio());
        let (flow, over) = medians(point);
        table.add_row(row([name.to_owned(), exact_bytes(point.bytes), flow, over, mean, ends]));
    }
    let [mean, ends] = interval(time.overall);
    table.add_row(row([String::from("all"), String::new(), String::new(), String::new(), mean, ends]));
    let verdict = verdict(time, limits);
    let mut lines = vec![table::text(&table)];
    let pairs = time.overall.map_or(0, |overall| overall.pairs);
    lines.push(format!(
        "Over all, {pairs} pairs, limit {}: {}.{}",
        percent(limits.time),
        verdict.word(),
        if verdict == Verdict::NotResolved { advice(time.overall, limits) } else { String::new() }
    ));
    lines.push(String::from(
        "The last line of the table has the verdict. Of the other lines one in twenty is outside its interval by chance.",
    ));
    lines
}

/// Advice that would resolve the verdict.
fn advice(overall: Option<Ratio>, limits: Limits) -> String {
    let Some(overall) = overall else { return String::from(" There are no pairs.") };
    let widest = limits.time - 1.0;
    match (overall.low, overall.high) {
        (Some(low), Some(high)) if high - low > widest => match overall.pairs_for(widest) {
            Some(pairs @ ..=1000) => format!(
                " The interval is wider than the limit; about {pairs} pairs like these would narrow it enough."
            ),
            _ => String::from(
                " The interval is far wider than the limit: other work on this machine hides the difference.",
            ),
        },
        (Some(_), Some(_)) => String::from(" The limit lies within the interval; measure more pairs."),
        _ => String::from(" One pair has no interval."),
    }
}

/// Medians over the pairs.
fn medians(point: &Point) -> (String, String) {
    let show = |samples: &[f64]| {
        let spread = super::super::statistics::Spread::of(samples);
        spread.map_or_else(|| String::from("-"), |spread| time_ns(spread.median * 1e3))
    };
    (show(&point.flow_us), show(&point.over_us))
}

fn ends(ratio: &Ratio) -> String {
    match (ratio.low, ratio.high) {
        (Some(low), Some(high)) => format!("{} .. {}", percent(low), percent(high)),
        _ => String::from("-"),
    }
}

/// `1.0312` as `+3.1 %`.
fn percent(ratio: f64) -> String {
    // A ratio far above any scheme's cost shows only other work.
    if ratio > 10.0 {
        return String::from("> +900 %");
    }
    // Avoids `-0.0`.
    let tenths = ((ratio - 1.0) * 1000.0).round() / 10.0 + 0.0;
    format!("{tenths:+.1} %")
}

fn new_table(headings: &[&str]) -> Table {
    let mut table = table::plain();
    table.set_header(headings.iter().enumerate().map(|(column, heading)| cell(column, heading)));
    table
}

/// The first two columns are words, all others are numbers.
fn cell(column: usize, text: &str) -> Cell {
    if column < 2 { Cell::new(text) } else { table::right(text) }
}

fn row<const N: usize>(texts: [String; N]) -> Vec<Cell> {
    texts.iter().enumerate().map(|(column, text)| cell(column, text)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::instructions::Count;
    use super::super::workload::Traffic;
    use super::*;

    const LIMITS: Limits = Limits { instructions: 1.05, time: 1.03 };

    fn count(sender: f64, receiver: f64) -> Count {
        Count { bytes: 2048, traffic: Traffic::OneWay, sender, receiver }
    }

    fn results(more: f64, logs: &[f64]) -> Results {
        let point =
            Point { benchmark: "PingPong", bytes: 8, flow_us: vec![0.51, 0.52], over_us: vec![0.5, 0.5] };
        Results {
            instructions: vec![(count(1000.0 + more, 1000.0), count(1000.0, 1000.0))],
            time: Some(PairsResult { points: vec![point], overall: Ratio::of_logs(logs) }),
            missing: Vec::new(),
        }
    }

    fn text(results: &Results) -> String {
        let schemes = Schemes { flow: "static".into(), over: "unlimited".into() };
        render(results, &schemes, LIMITS, &Machine::of_this(), None)
    }

    #[test]
    fn results_within_both_limits_pass() {
        let good = results(100.0, &[0.010, 0.011, 0.012]);
        let shown = text(&good);
        assert!(shown.contains("2 KiB, one way: +5.0 %, limit +5.0 %: passed."), "{shown}");
        assert!(shown.contains("Over all, 3 pairs, limit +3.0 %: passed."), "{shown}");
        // The mean of +2 % and +4 %.
        assert!(shown.contains("+3.0 %") && shown.contains("515 ns"), "{shown}");
        assert!(all_passed(&good, LIMITS));
    }

    #[test]
    fn too_many_instructions_fail() {
        let costly = results(102.0, &[0.010, 0.011, 0.012]);
        assert!(text(&costly).contains("2 KiB, one way: +5.1 %, limit +5.0 %: FAILED."));
        assert!(!all_passed(&costly, LIMITS));
    }

    #[test]
    fn unresolved_results_fail_with_advice() {
        let noisy = results(0.0, &[-3.0, 0.0, 3.0]);
        assert!(text(&noisy).contains("far wider than the limit"));
        let wide = results(0.0, &[-0.05, 0.0, 0.05]);
        let shown = text(&wide);
        assert!(shown.contains("not resolved. The interval is wider than the limit; about "), "{shown}");
        assert!(!all_passed(&wide, LIMITS));
        let across = results(0.0, &[0.029, 0.030, 0.031]);
        assert!(text(&across).contains("not resolved. The limit lies within the interval"));
        assert!(!all_passed(&across, LIMITS));
        let slow = results(0.0, &[0.10, 0.11, 0.12]);
        assert!(text(&slow).contains("Over all, 3 pairs, limit +3.0 %: FAILED."));
        assert!(text(&results(0.0, &[0.01])).contains("not resolved. One pair has no interval."));
    }

    #[test]
    fn missing_measurements_are_reported_and_fail() {
        let results = Results { missing: vec![String::from("no valgrind")], ..Results::default() };
        assert!(text(&results).ends_with("\nno valgrind"));
        assert!(!all_passed(&results, LIMITS));
    }

    #[test]
    fn percentages_have_a_sign_and_no_negative_zero() {
        assert_eq!([1.0312, 0.98, 1.0, 0.99999].map(percent), ["+3.1 %", "-2.0 %", "+0.0 %", "+0.0 %"]);
        assert_eq!(percent(38.6), "> +900 %");
    }
}
