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
use weir_output::quantity::{self, exact_bytes, three_digits, time_ns};

/// All tables, by loss, then bare UDP.
pub fn render(results: &BTreeMap<u32, Results>, bare: &BTreeMap<usize, Option<Spread>>) -> String {
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
pub fn bare_lines(results: Option<&Results>, bare: &BTreeMap<usize, Option<Spread>>) -> Vec<String> {
    let lines = bare.iter().filter_map(|(&bytes, spread)| {
        let spread = spread.as_ref()?;
        let show = |us: f64| time_ns(us * 1e3);
        let of_weir = Measure { what: Quantity::HalfRoundTripUs, at: bytes as u64 };
        let weir = results.and_then(|results| results.spread(of_weir, WEIR));
        let ratio =
            weir.map(|weir| format!("; weir is at {} x that", three_digits(weir.median / spread.median)));
        Some(format!(
            "  {}: {} ({} .. {}){}",
            exact_bytes(bytes as u64),
            show(spread.median),
            show(spread.min),
            show(spread.max),
            ratio.unwrap_or_default()
        ))
    });
    std::iter::once(String::from(
        "Half round trip of bare UDP, spinning; from 64 KiB on with the link's cipher",
    ))
    .chain(lines)
    .collect()
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
        let text = render(&results, &BTreeMap::from([(8, Spread::of(&[6.0])), (1400, Spread::of(&[7.0]))]));
        for part in [
            "Half round trip\n",
            "2.00 x weir",
            "With 1 % of the frames lost",
            "8 B: 6.00 us",
            "at 1.50 x that",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(
            text.contains("1400 B: 7.00 us (7.00 us .. 7.00 us)\n") || text.ends_with("7.00 us)"),
            "{text}"
        );
    }
}
