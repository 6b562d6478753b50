//! The tables of `weir bench net`: those of `weir bench`, one set for each loss, and lines about bare UDP.

use crate::compare::measure::{Measure, Quantity};
use crate::compare::results::{Results, WEIR};
use crate::compare::table;
pub use crate::compare::table::targets;
use crate::comparison;
use crate::contender_set::ContenderSet;
use crate::machine::Machine;
use crate::statistics::Spread;
use std::collections::BTreeMap;
use weir_output::quantity::{self, exact_bytes, three_digits};

/// All tables, by loss, then bare UDP.
pub fn render(results: &BTreeMap<u32, Results>, bare: &BTreeMap<Measure, Spread>) -> String {
    let mut parts = Vec::new();
    for (&loss, results) in results {
        let tables = table::render(results);
        match loss {
            0 => parts.push(tables),
            _ => parts.push(format!("{}\n\n{tables}", heading(loss))),
        }
    }
    parts.push(bare_lines(results.get(&0), bare).join("\n"));
    parts.join("\n\n")
}

/// The heading of what was measured with this loss; empty: without one.
pub fn heading(loss_per_mille: u32) -> String {
    match loss_per_mille {
        0 => String::new(),
        _ => format!("With {} % of the frames lost", f64::from(loss_per_mille) / 10.0),
    }
}

/// Bare UDP, and weir's ratio to it.
pub fn bare_lines(results: Option<&Results>, bare: &BTreeMap<Measure, Spread>) -> Vec<String> {
    let line = |(&measure, spread): (&Measure, &Spread)| {
        let show = |value| measure.what.show(value);
        let weir = results.and_then(|results| results.spread(measure, WEIR));
        let ratio =
            weir.map(|weir| format!("; weir is at {} x that", three_digits(weir.median / spread.median)));
        format!(
            "  {}: {} ({} .. {}){}",
            exact_bytes(measure.at),
            show(spread.median),
            show(spread.min),
            show(spread.max),
            ratio.unwrap_or_default()
        )
    };
    let (half_round_trips, mut streams): (Vec<_>, Vec<_>) =
        bare.iter().partition(|(measure, _)| measure.what == Quantity::HalfRoundTripUs);
    let mut lines =
        vec![String::from("Half round trip of bare UDP, spinning; from 64 KiB on with the link's cipher")];
    lines.extend(half_round_trips.into_iter().map(line));
    if !streams.is_empty() {
        lines.push(String::from(
            "Streams over bare UDP, in windows that are answered, with the link's cipher and segmentation offload",
        ));
    }
    streams.sort_by_key(|(measure, _)| measure.at);
    lines.extend(streams.into_iter().map(line));
    lines
}

/// How to read the numbers, and what is missing.
pub fn notes(
    machine: &Machine,
    set: &ContenderSet,
    results: &BTreeMap<u32, Results>,
    rounds: u32,
) -> Vec<String> {
    let mut notes = comparison::notes(machine, &set.mpis().join(", "), rounds).to_vec();
    notes.push(format!(
        "Hosts are namespaces of this machine on a bridge, with one rank each, and share its {}.",
        if machine.cores == 1 {
            String::from("core")
        } else {
            format!("{} cores", quantity::count(machine.cores as u64))
        }
    ));
    notes.extend(comparison::busy_warning(machine));
    notes.extend(
        set.missing.iter().map(|(contender, why)| format!("{} is not compared: {why}", contender.heading())),
    );
    for (loss, results) in results {
        notes.extend(results.failures.iter().map(|failed| {
            let lossy =
                if *loss > 0 { format!(" with {} % lost", f64::from(*loss) / 10.0) } else { String::new() };
            format!("{}, {}{lossy}: {}; not tried again", failed.contender.heading(), failed.job, failed.why)
        }));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::super::targets::half_round_trip;
    use super::*;
    use crate::compare::results::tests::{TCP, measured};

    #[test]
    fn each_loss_has_its_tables_and_bare_udp_its_ratio() {
        let what = Quantity::HalfRoundTripUs;
        let of = |us: f64| {
            let jobs = [measured(WEIR, what, 8, &[us]), measured(TCP, what, 8, &[2.0 * us])];
            Results::new(&[WEIR, TCP], &jobs.concat())
        };
        let results = BTreeMap::from([(0, of(9.0)), (10, of(20.0))]);
        let bare = [
            (half_round_trip(8), 6.0),
            (half_round_trip(1400), 7.0),
            (Measure { what: Quantity::MessagesPerS, at: 8 }, 5e6),
        ];
        let spread = |value: f64| Spread { min: value, median: value, max: value };
        let text = render(&results, &bare.map(|(measure, value)| (measure, spread(value))).into());
        for part in [
            "Half round trip\n",
            "2.00 x weir",
            "With 1 % of the frames lost",
            "8 B: 6.00 us",
            "at 1.50 x that",
            "\n  1400 B: 7.00 us (7.00 us .. 7.00 us)\n",
            "\n  8 B: 5.00 M/s (5.00 M/s .. 5.00 M/s)",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
