//! The table of `weir bench net --admission`, and the notes below it.

use super::{RecordContent, Row};
use crate::comparison;
use crate::congestion::{Case, NetworkOptions, Traffic};
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
        row.p99_us.map_or_else(String::new, time),
        row.fairness.map_or_else(String::new, |index| format!("{index:.3}")),
        format!("{} %", three_digits(row.sent_again * 100.0)),
    ]
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
}
