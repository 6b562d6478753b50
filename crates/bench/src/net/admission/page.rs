//! The page of `weir bench net --admission`: figures, the table and the record. It is one HTML file.

use super::{Row, table};
use crate::congestion::Traffic;
use serde_json::Value;
use weir_output::chart::{Chart, Curve};
use weir_output::markup::Html;

/// Returns the page.
pub fn render(rows: &[Row], notes: &[String], record: &Value) -> String {
    let mut html = Html::begin("weir bench net --admission");
    html.heading(1, "Mechanisms of admission under congestion");
    notes.iter().for_each(|note| html.note(note));
    html.heading(2, "Figures");
    html.note("Points are medians of the rounds. Thin lines go from the smallest to the largest.");
    html.charts(&charts(rows));
    html.heading(2, "Numbers");
    let cells =
        rows.iter().map(|row| std::iter::once(table::case_name(row.case)).chain(table::cells(row)).collect());
    html.table(&table::HEADINGS, cells);
    html.data(record);
    html.end()
}

/// For each kind of traffic: the ratio of each mechanism to off in each case, and the 99th percentile.
fn charts(rows: &[Row]) -> Vec<Chart> {
    let mut kinds: Vec<Traffic> = rows.iter().map(|row| row.case.traffic).collect();
    kinds.dedup();
    let of = |what: &str, kind: Traffic, value: fn(&Row) -> Option<[f64; 3]>| {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.case.traffic == kind).collect();
        let mut cases: Vec<_> = rows.iter().map(|row| row.case).collect();
        cases.dedup();
        let mut mechanisms: Vec<_> = rows.iter().map(|row| row.mechanism).collect();
        mechanisms.sort();
        mechanisms.dedup();
        let mut chart = Chart::new(format!("{}: {what}", kind.word()), "", "")
            .categories(cases.iter().map(|&case| table::case_name(case)));
        for (number, mechanism) in mechanisms.into_iter().enumerate() {
            let points = rows.iter().filter(|row| row.mechanism == mechanism).filter_map(|row| {
                let x = cases.iter().position(|&case| case == row.case)? as f64;
                value(row).map(|[low, middle, high]| (x, low, middle, high))
            });
            let points: Vec<_> = points.collect();
            let curve = points.iter().map(|&(x, _, middle, _)| (x, middle)).collect();
            let ends = points.iter().map(|&(x, low, _, high)| (x, low, high)).collect();
            chart.spread_curve(number, mechanism.word().to_owned(), Curve(curve), ends);
        }
        chart
    };
    let ratio = |row: &Row| row.to_off.map(|ratio| [ratio.min, ratio.median, ratio.max]);
    let slowest = |row: &Row| row.p99_us.map(|us| [us; 3]);
    let mut charts = Vec::new();
    for kind in kinds {
        let what = if kind == Traffic::Latency { "time, ratio to off" } else { "operations, ratio to off" };
        charts.push(of(what, kind, ratio));
        if kind != Traffic::Latency {
            charts.push(of("99th percentile of the time of one, us", kind, slowest));
        }
    }
    charts
}

#[cfg(test)]
mod tests {
    use super::super::tests::{RANDOM, rows};
    use super::*;

    #[test]
    fn the_page_has_a_figure_of_ratios_and_one_of_tails_for_each_kind_of_traffic() {
        let rows = rows(RANDOM, &[1000.0, 1000.0], &[1500.0, 2500.0]);
        let page = render(&rows, &[String::from("a note")], &serde_json::json!({"rows": 2}));
        assert_eq!(page.matches("<svg").count(), 2);
        assert!(page.contains("(1.50 .. 2.50)") && page.contains("a note"));
    }
}
