//! The page of `weir tune --network`: curves without admission and over the number of tokens, the table and the record. It
//! is one HTML file.

use super::choice::{self, Comparison, Point};
use super::table;
use super::unlimited::{self, Unlimited};
use crate::congestion::Traffic;
use serde_json::Value;
use weir_output::chart::{Chart, Curve};
use weir_output::markup::Html;

/// Returns the page.
pub fn render(sweep: &[Unlimited], comparisons: &[Comparison], notes: &[String], record: &Value) -> String {
    let mut html = Html::begin("weir tune --network");
    html.heading(1, "Tokens of admission between hosts");
    notes.iter().for_each(|note| html.note(note));
    html.heading(2, "Without admission");
    html.note("Operations of all ranks, of one job for each point.");
    html.charts(&unlimited::charts(sweep));
    html.heading(2, "With tokens");
    html.note("Points are medians of the rounds. Thin lines go from the smallest to the largest.");
    html.charts(&charts(comparisons));
    html.heading(2, "Numbers");
    let cells = comparisons.iter().map(|one| {
        let best = choice::best(comparisons, one.point);
        std::iter::once(table::point_name(one.point)).chain(table::cells(one, best)).collect()
    });
    html.table(&table::HEADINGS, cells);
    html.data(record);
    html.end()
}

/// For each kind of traffic: operations and the 99th percentile as ratios to off, over tokens, with a curve for each
/// point.
fn charts(comparisons: &[Comparison]) -> Vec<Chart> {
    let mut kinds: Vec<Traffic> = comparisons.iter().map(|one| one.traffic).collect();
    kinds.sort();
    kinds.dedup();
    let mut points: Vec<Point> = comparisons.iter().map(|one| one.point).collect();
    points.dedup();
    let of = |what: &str, kind: Traffic, value: fn(&Comparison) -> crate::statistics::Spread| {
        let mut chart =
            Chart::new(format!("{}: {what}", kind.word()), "tokens", "ratio to off").logarithmic_x();
        for (number, &point) in points.iter().enumerate() {
            let here = comparisons.iter().filter(|one| (one.point, one.traffic) == (point, kind));
            let values: Vec<_> = here.map(|one| (f64::from(one.tokens), value(one))).collect();
            let curve = values.iter().map(|(tokens, spread)| (*tokens, spread.median)).collect();
            let ends = values.iter().map(|(tokens, spread)| (*tokens, spread.min, spread.max)).collect();
            chart.spread_curve(number, table::point_name(point), Curve(curve), ends);
        }
        chart
    };
    let figures =
        |kind| [of("operations", kind, |one| one.ratio), of("99th percentile", kind, |one| one.p99_ratio)];
    kinds.into_iter().flat_map(figures).collect()
}

#[cfg(test)]
mod tests {
    use super::super::choice::tests::sample;
    use super::*;

    #[test]
    fn the_page_has_curves_of_operations_and_tails_for_each_kind_of_traffic() {
        let point = Point { bytes: 2048, ranks: 4 };
        let one = |traffic, tokens| {
            Comparison::of(point, traffic, tokens, &[sample(1000.0, 90.0, 0)], &[sample(990.0, 60.0, 0)])
                .unwrap()
        };
        let comparisons: Vec<_> = [Traffic::Random, Traffic::Incast]
            .into_iter()
            .flat_map(|kind| [one(kind, 8), one(kind, 24)])
            .collect();
        let sweep = [1, 16].map(|outstanding| Unlimited::of(point, outstanding, &sample(1000.0, 90.0, 0)));
        let page =
            render(&sweep, &comparisons, &[String::from("a note")], &serde_json::json!({"comparisons": 4}));
        assert_eq!(page.matches("<svg").count(), 5);
        assert!(page.contains("2 KiB, 4 ranks a host") && page.contains("a note"));
    }
}
