//! The table of `weir bench net --admission`, and the notes below it.

use super::{LATENCY_LIMIT, RecordContent, Row};
use crate::comparison;
use crate::congestion::{Case, NetworkOptions, Traffic};
use crate::statistics::Spread;
use comfy_table::Cell;
use weir_output::quantity::{exact_bytes, rate, three_digits, time_ns};
use weir_output::table::{self, right};

/// The headings of the columns: the case, then those of [`cells`].
pub const HEADINGS: [&str; 9] =
    ["", "", "operations", "(range)", "to off", "p50", "p99", "Jain", "sent again"];

/// Name of a case.
pub fn case_name(case: Case) -> String {
    let Case { traffic, ranks_per_host, outstanding, bytes } = case;
    let bytes = exact_bytes(bytes.into());
    match traffic {
        Traffic::Latency => format!("half round trip {bytes}"),
        Traffic::Alltoall => format!("all-to-all {bytes}, {ranks_per_host} ranks a host"),
        _ => format!("{} {bytes}, {ranks_per_host} ranks a host, {outstanding} each", traffic.word()),
    }
}

/// The cells of a row: mechanism, rate, its range, ratio to off, percentiles, fairness, bundles sent again.
pub fn cells(row: &Row) -> [String; 8] {
    let time = |us: f64| time_ns(us * 1e3);
    let shown = |per_s: f64| match row.case.traffic {
        Traffic::Latency => time(1e6 / per_s),
        _ => rate(per_s),
    };
    let (low, high) = match row.case.traffic {
        Traffic::Latency => (row.per_s.max, row.per_s.min),
        _ => (row.per_s.min, row.per_s.max),
    };
    let range = format!("{} .. {}", shown(low), shown(high));
    let ratio = row.to_off.map_or_else(String::new, |ratio| {
        let [low, middle, high] = [ratio.min, ratio.median, ratio.max].map(three_digits);
        format!("{middle} x ({low} .. {high})")
    });
    [
        row.mechanism.word().to_owned(),
        shown(row.per_s.median),
        range,
        ratio,
        time(row.p50_us),
        row.p99_range.map_or_else(String::new, |p99| of_rounds(p99, time)),
        row.fairness.map_or_else(String::new, |index| format!("{index:.3}")),
        of_rounds(row.sent_again_range, |share| format!("{} %", three_digits(share * 100.0))),
    ]
}

/// A median, and the least and the greatest value if they differ.
fn of_rounds(values: Spread, shown: impl Fn(f64) -> String) -> String {
    let [low, middle, high] = [values.min, values.median, values.max].map(shown);
    if low == high { middle } else { format!("{middle} ({low} .. {high})") }
}

/// What each mechanism adds to the latency, with the verdict on the target.
fn of_latency(row: &Row) -> Option<String> {
    let interval = row.interval?;
    let four = |ratio: Option<f64>| ratio.map_or_else(|| String::from("?"), |ratio| format!("{ratio:.4}"));
    Some(format!(
        "{} with {}: {} x off ({} .. {}), at most {LATENCY_LIMIT}: {}",
        case_name(row.case),
        row.mechanism.word(),
        four(Some(interval.median)),
        four(interval.low),
        four(interval.high),
        interval.verdict(LATENCY_LIMIT)
    ))
}

/// The table.
pub fn render(rows: &[Row]) -> String {
    let mut table = table::plain();
    table.set_header(HEADINGS.map(Cell::new));
    let mut before = None;
    for row in rows {
        let name = if before == Some(row.case) { String::new() } else { case_name(row.case) };
        before = Some(row.case);
        let [mechanism, numbers @ ..] = cells(row);
        let cells = [Cell::new(name), Cell::new(mechanism)].into_iter().chain(numbers.map(right));
        table.add_row(cells);
    }
    table::text(&table)
}

/// How to read the numbers, and what is missing.
pub fn notes(content: &RecordContent<'_>) -> Vec<String> {
    let mut notes = vec![comparison::notes(content.machine, &content.mpi, content.rounds)[0].clone()];
    let NetworkOptions { hosts, link, .. } = content.network;
    let ports = content.network.ports_in_words();
    notes.push(format!(
        "{hosts} hosts are namespaces of this machine and share its cores; link {link}; {ports}."
    ));
    notes.push(format!(
        "Operations of all ranks a second (a half round trip: its time); to off: the ratio in the same round; p50, p99: time of \
         one operation; Jain: 1 if all ranks that send had the same share; sent again: {}.",
        content.network.sent_again_in_words()
    ));
    let of_latency: Vec<String> = content.rows.iter().filter_map(of_latency).collect();
    if !of_latency.is_empty() {
        notes.push(String::from(
            "Latency: the median of the ratios of the rounds, with its 95 % interval; reached: all of that is within the target, \
             if nothing was held back.",
        ));
        notes.extend(of_latency);
    }
    notes.extend(comparison::busy_warning(content.machine));
    notes.extend(content.failures.iter().map(|failed| {
        format!(
            "{} with {}: {}; not tried again",
            case_name(failed.case),
            failed.mechanism.word(),
            failed.why
        )
    }));
    notes
}

#[cfg(test)]
mod tests {
    use super::super::tests::{RANDOM, rows};
    use super::*;

    #[test]
    fn the_table_names_a_case_once_and_shows_ratios_with_their_range() {
        let text = render(&rows(RANDOM, &[1000.0, 1000.0], &[1500.0, 2500.0]));
        assert_eq!(text.matches("random 16 B, 4 ranks a host, 16 each").count(), 1, "{text}");
        for part in ["2.00 x (1.50 .. 2.50)", "90.0 us", "0.500", "2.00 %"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let latency = Case { traffic: Traffic::Latency, bytes: 8, ..RANDOM };
        let text = render(&rows(latency, &[200_000.0], &[100_000.0]));
        assert!(
            text.contains("half round trip 8 B") && text.contains("10.0 us") && text.contains("2.00 x"),
            "{text}"
        );
    }

    #[test]
    fn percentiles_and_what_is_sent_again_have_their_range() {
        let mut rows = rows(RANDOM, &[1000.0], &[1500.0]);
        rows[1].p99_range = Some(Spread { min: 80.0, median: 90.0, max: 120.0 });
        rows[1].sent_again_range = Spread { min: 0.01, median: 0.02, max: 0.025 };
        let text = render(&rows);
        assert!(text.contains("90.0 us (80.0 us .. 120 us)"), "{text}");
        assert!(text.contains("2.00 % (1.00 % .. 2.50 %)"), "{text}");
    }

    #[test]
    fn latency_has_a_verdict_from_the_interval_of_its_median() {
        let latency = Case { traffic: Traffic::Latency, bytes: 8, ..RANDOM };
        let rates: Vec<f64> = (0..10).map(|round| 1000.0 - f64::from(round)).collect();
        let line = |off: &[f64]| rows(latency, off, &rates).iter().find_map(of_latency).expect("a ratio");
        let same = "half round trip 8 B with token: 1.0000 x off (1.0000 .. 1.0000), at most 1.01: reached";
        assert_eq!(line(&rates), same);
        let faster: Vec<f64> = rates.iter().map(|rate| rate * 1.02).collect();
        assert!(line(&faster).ends_with("1.0200 x off (1.0200 .. 1.0200), at most 1.01: MISSED"));
        assert_eq!(rows(RANDOM, &rates, &rates).iter().find_map(of_latency), None);
    }
}
