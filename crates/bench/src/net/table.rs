//! The tables of `weir bench net`: those of `weir bench`, one set for each loss, and lines about limits.

use super::limits::{Bare, Over};
use super::targets::OVER_TCP;
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

/// The limits, in the order in which they are shown.
const LIMITS: [(&str, Over, &[Quantity]); 6] = [
    (
        "Half round trip of bare UDP, spinning; from 64 KiB on with the link's cipher",
        Over::Udp,
        &[Quantity::HalfRoundTripUs],
    ),
    (
        "The same with the link's cipher, in as many datagrams as weir has",
        Over::UdpInParts,
        &[Quantity::HalfRoundTripUs],
    ),
    (
        "Streams over bare UDP, in windows that are answered, with the link's cipher and segmentation offload",
        Over::Udp,
        &[Quantity::MessagesPerS, Quantity::BytesPerS],
    ),
    ("The same with as many datagrams and calls as weir has", Over::UdpInParts, &[Quantity::MessagesPerS]),
    (
        "Incast of 2 KiB over bare UDP, in windows that are answered, with the link's cipher and segmentation offload",
        Over::Udp,
        &[Quantity::IncastPerS],
    ),
    ("Incast of 2 KiB over plain TCP, with the link's cipher", Over::Tcp, &[Quantity::IncastPerS]),
];

/// All tables, by loss, then limits.
pub fn render(results: &BTreeMap<u32, Results>, bare: &BTreeMap<Bare, Spread>) -> String {
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

/// Limits, and weir's ratio to each.
pub fn bare_lines(results: Option<&Results>, bare: &BTreeMap<Bare, Spread>) -> Vec<String> {
    let mut lines = Vec::new();
    for (heading, over, whats) in LIMITS {
        let mut chosen: Vec<_> = bare
            .iter()
            .filter(|(bare, _)| bare.over == over && whats.contains(&bare.measure.what))
            .map(|(bare, spread)| (bare.measure, spread))
            .collect();
        chosen.sort_by_key(|(measure, _)| measure.at);
        lines.extend((!chosen.is_empty()).then(|| String::from(heading)));
        let is_one = |measure: &Measure| measure.what == Quantity::IncastPerS && measure.at == 1;
        let one = chosen.iter().find(|(measure, _)| is_one(measure)).map(|(_, spread)| spread.median);
        lines.extend(chosen.iter().map(|&(measure, spread)| {
            limit_line(results, over, measure, spread, one.filter(|_| !is_one(&measure)))
        }));
    }
    lines
}

/// `one`: the median of one sender, beside that of several.
fn limit_line(
    results: Option<&Results>,
    over: Over,
    measure: Measure,
    spread: &Spread,
    one: Option<f64>,
) -> String {
    let show = |value| measure.what.show(value);
    let place = match measure.what {
        Quantity::IncastPerS => measure.what.place(measure.at),
        _ => exact_bytes(measure.at),
    };
    let contender = if over == Over::Tcp { OVER_TCP } else { WEIR };
    let weir = results.and_then(|results| results.spread(measure, contender));
    let share = one.map(|one| format!("; {} x one to one", three_digits(spread.median / one)));
    let ratio = weir.map(|weir| {
        format!("; {} is at {} x that", contender.heading(), three_digits(weir.median / spread.median))
    });
    format!(
        "  {place}: {} ({} .. {}){}{}",
        show(spread.median),
        show(spread.min),
        show(spread.max),
        share.unwrap_or_default(),
        ratio.unwrap_or_default()
    )
}

/// How to read the numbers, and what is missing.
///
/// - `host_ranks`: ranks on each host in collectives.
pub fn notes(
    machine: &Machine,
    set: &ContenderSet,
    results: &BTreeMap<u32, Results>,
    (rounds, host_ranks): (u32, u32),
) -> Vec<String> {
    let mut notes = comparison::notes(machine, &set.mpis().join(", "), rounds).to_vec();
    notes.push(format!(
        "Hosts are namespaces of this machine on a bridge, with {} each, and share its {}.",
        if host_ranks == 1 { String::from("one rank") } else { format!("{host_ranks} ranks in collectives") },
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
            let jobs = [
                measured(WEIR, what, 8, &[us]),
                measured(TCP, what, 8, &[2.0 * us]),
                measured(WEIR, Quantity::IncastPerS, 1, &[4e5]),
                measured(WEIR, Quantity::IncastPerS, 7, &[1.5e5]),
                measured(OVER_TCP, Quantity::IncastPerS, 7, &[1.2e5]),
            ];
            Results::new(&[WEIR, TCP, OVER_TCP], &jobs.concat())
        };
        let results = BTreeMap::from([(0, of(9.0)), (10, of(20.0))]);
        let incast = |senders| Measure { what: Quantity::IncastPerS, at: senders };
        let rate = Measure { what: Quantity::MessagesPerS, at: 8 };
        let bare = [
            (Bare::udp(half_round_trip(8)), 6.0),
            (Bare::udp(half_round_trip(1400)), 7.0),
            (Bare { over: Over::UdpInParts, measure: half_round_trip(8) }, 6.75),
            (Bare::udp(rate), 5e6),
            (Bare { over: Over::UdpInParts, measure: rate }, 2.5e6),
            (Bare::udp(incast(1)), 8e5),
            (Bare::udp(incast(7)), 6e5),
            (Bare { over: Over::Tcp, measure: incast(7) }, 3e5),
        ];
        let spread = |value: f64| Spread { min: value, median: value, max: value };
        let text = render(&results, &bare.map(|(measure, value)| (measure, spread(value))).into());
        for part in [
            "Half round trip\n",
            "2.00 x weir",
            "With 1 % of the frames lost",
            "8 B: 6.00 us",
            "; weir is at 1.50 x that",
            "\n  1400 B: 7.00 us (7.00 us .. 7.00 us)\n",
            "cipher, in as many datagrams as weir has\n  8 B: 6.75 us (6.75 us .. 6.75 us); weir is at 1.33 x that\n",
            "\n  8 B: 5.00 M/s (5.00 M/s .. 5.00 M/s)",
            "as weir has\n  8 B: 2.50 M/s",
            "\n  1 to 1: 800 k/s (800 k/s .. 800 k/s); weir is at 0.50 x that\n",
            "\n  7 to 1: 600 k/s (600 k/s .. 600 k/s); 0.75 x one to one; weir is at 0.25 x that\n",
            "TCP, with the link's cipher\n  7 to 1: 300 k/s (300 k/s .. 300 k/s); weir over ofi:tcp is at 0.40 x that",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
