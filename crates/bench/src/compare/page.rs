//! The page of `weir bench` (`bench.html`) and of `weir bench net`: verdicts on the targets, charts, tables and the record of
//! a run. It is one HTML file that needs no other file.

use super::measure::{Measure, Quantity};
use super::results::{Results, SenderShares};
use super::table;
use super::verdict::{JudgedTarget, Verdict};
use crate::contender::Contender;
use serde_json::Value;
use weir_output::chart::{Chart, Curve};
use weir_output::markup::Html;
use weir_output::quantity::exact_bytes;

/// The name of the file in the user's directory.
pub const FILE: &str = "bench.html";

/// A part of the results, with charts and tables of its own.
pub struct Part<'a> {
    /// Its heading; empty: none.
    pub heading: String,
    /// Its results.
    pub results: &'a Results,
}

/// The content of the page.
pub struct Content<'a> {
    /// The command.
    pub name: &'a str,
    /// What the page is about.
    pub heading: &'a str,
    /// All results.
    pub parts: &'a [Part<'a>],
    /// The targets with their verdicts.
    pub targets: &'a [JudgedTarget],
    /// Notes on how to read the numbers.
    pub notes: &'a [String],
    /// Warnings.
    pub warnings: &'a [String],
    /// The record, as `--json` writes it.
    pub record: &'a Value,
}

/// Returns the page.
pub fn render(content: &Content<'_>) -> String {
    let Content { name, heading, parts, targets, notes, warnings, record } = content;
    let mut html = Html::begin(name);
    html.heading(1, heading);
    for warning in *warnings {
        html.warning(warning);
    }
    for note in *notes {
        html.note(note);
    }
    html.heading(2, "Targets");
    html.paragraph(
        "Ratios of medians. Reached or missed: in every combination of one sample of either side; within noise: in some.",
    );
    let rows = targets.iter().map(|target| {
        let verdict = target.verdict.word().to_owned();
        let row = vec![target.text.clone(), target.limit.clone(), target.found.clone(), verdict];
        (row, target.verdict == Verdict::Missed)
    });
    html.statements(&["target", "limit", "found", ""], rows);
    html.heading(2, "Figures");
    html.note("Points are medians. Thin lines go from the smallest to the largest sample.");
    for Part { heading, results } in *parts {
        if !heading.is_empty() {
            html.heading(3, heading);
        }
        html.charts(&charts(results));
    }
    html.heading(2, "Numbers");
    for Part { heading, results } in *parts {
        for (title, whats) in table::SECTIONS {
            let title = if heading.is_empty() { title.to_owned() } else { format!("{heading}: {title}") };
            numbers(&mut html, results, &title, whats);
        }
    }
    html.data(record);
    html.end()
}

/// The table of a section, if anything of it was measured.
fn numbers(html: &mut Html, results: &Results, title: &str, whats: &[Quantity]) {
    let columns = table::columns(results, whats);
    if columns.is_empty() {
        return;
    }
    html.heading(3, title);
    let headings = columns.iter().map(|measure| table::heading(*measure, whats));
    let headings: Vec<String> = std::iter::once(String::new()).chain(headings).collect();
    let rows = results.contenders.iter().map(|&contender| {
        let cells = columns.iter().map(|measure| {
            let [first, second] = table::cell(results, *measure, contender);
            if second.is_empty() { first } else { format!("{first} {second}") }
        });
        std::iter::once(contender.heading()).chain(cells).collect()
    });
    html.table(&headings.iter().map(String::as_str).collect::<Vec<_>>(), rows);
}

fn charts(results: &Results) -> Vec<Chart> {
    let mebibyte = f64::from(1 << 20);
    let latency = Chart::new("Half round trip by message size, us", "message", "us");
    let latency = latency.logarithmic().x_powers_of_two(|bytes| exact_bytes(bytes.round() as u64));
    let collective = |what: Quantity| {
        let chart = Chart::new(format!("{} by ranks, us", what.title()), "ranks", "us");
        by_place(results, what, 1.0, chart.logarithmic().x_powers_of_two(|ranks| format!("{ranks:.0}")))
    };
    let points = |what, unit, name| {
        let measures = table::columns(results, &[what]).into_iter();
        measures.map(move |measure| by_contender(results, measure, unit, name))
    };
    let incast = Chart::new("Incast: messages of all senders together, M/s", "senders", "M/s");
    let memory = Chart::new("Memory of a rank after all-to-alls, MiB", "ranks", "MiB");

    let mut charts = vec![by_place(results, Quantity::HalfRoundTripUs, 1.0, latency)];
    charts.extend(points(Quantity::BytesPerS, 1e9, "GB/s"));
    charts.extend(points(Quantity::MessagesPerS, 1e6, "M/s"));
    charts.extend([Quantity::BarrierUs, Quantity::AllreduceUs, Quantity::AlltoallUs].map(collective));
    charts.push(by_place(results, Quantity::IncastPerS, 1e6, incast));
    charts.extend(points(Quantity::IncastFairness, 1.0, "").next_back());
    charts.extend(points(Quantity::IncastSentAgain, 0.01, "%"));
    charts.extend(senders(results));
    charts.extend(points(Quantity::FloodS, 1.0, "s"));
    charts.extend(points(Quantity::FloodGrowthBytes, mebibyte, "MiB"));
    charts.push(by_place(results, Quantity::RankBytes, mebibyte, memory));
    charts
}

/// A chart with a curve for each contender over sizes, ranks or senders. `unit`: divisor of the values.
fn by_place(results: &Results, what: Quantity, unit: f64, mut chart: Chart) -> Chart {
    for (number, &contender) in results.contenders.iter().enumerate() {
        let spreads = results.places(what).into_iter().filter_map(|at| {
            let spread = results.spread(Measure { what, at }, contender)?;
            Some((at as f64, spread))
        });
        let spreads: Vec<_> = spreads.collect();
        let curve = spreads.iter().map(|(x, spread)| (*x, spread.median / unit)).collect();
        let ends = spreads.iter().map(|(x, spread)| (*x, spread.min / unit, spread.max / unit)).collect();
        chart.spread_curve(number, contender.heading(), Curve(curve), ends);
    }
    chart
}

/// A chart with a point for each contender.
fn by_contender(results: &Results, measure: Measure, unit: f64, unit_name: &str) -> Chart {
    let title = match unit_name {
        "" => measure.describe(),
        _ => format!("{}, {unit_name}", measure.describe()),
    };
    let names = results.contenders.iter().map(|contender| contender.word().to_owned());
    let mut chart = Chart::new(title, "", unit_name).categories(names);
    for (number, &contender) in results.contenders.iter().enumerate() {
        let Some(spread) = results.spread(measure, contender) else { continue };
        let x = number as f64;
        let ends = vec![(x, spread.min / unit, spread.max / unit)];
        chart.spread_curve(number, contender.heading(), Curve(vec![(x, spread.median / unit)]), ends);
    }
    chart
}

/// The messages of each sender of the largest incast when the first had finished.
fn senders(results: &Results) -> Option<Chart> {
    let SenderShares { senders, by_contender } = results.shares_of_senders()?;
    if senders < 2 {
        return None;
    }
    let title = format!("Incast {senders} to 1: messages of each sender over their mean");
    let names = (1..=senders).map(|sender| sender.to_string());
    let mut chart = Chart::new(title, "sender", "share").categories(names);
    let number = |contender: Contender| results.contenders.iter().position(|it| *it == contender);
    for (contender, shares) in by_contender {
        let Some(number) = number(contender) else { continue };
        // Side by side, so that equal shares stay visible.
        let aside = (number as f64 - results.contenders.len() as f64 / 2.0) * 0.08;
        let points = shares.iter().enumerate().map(|(sender, share)| (sender as f64 + aside, *share));
        chart.spread_curve(number, contender.heading(), Curve(points.collect()), Vec::new());
    }
    Some(chart)
}

#[cfg(test)]
mod tests {
    use super::super::measure::Sample;
    use super::super::results::WEIR;
    use super::super::results::tests::{SHM, UCX, ended, measured};
    use super::super::store::Outcome;
    use super::super::targets;
    use super::*;

    #[test]
    fn the_page_has_a_chart_for_each_measure_and_is_self_contained() {
        let by_sender =
            |counts: &[u64]| Outcome::Measured(Sample { values: vec![], by_sender: counts.to_vec() });
        let jobs = [
            measured(WEIR, Quantity::HalfRoundTripUs, 8, &[0.4, 0.5]),
            measured(WEIR, Quantity::HalfRoundTripUs, 2048, &[0.9, 1.0]),
            measured(SHM, Quantity::HalfRoundTripUs, 8, &[0.7]),
            measured(WEIR, Quantity::MessagesPerS, 8, &[7e6]),
            vec![ended(WEIR, "incast-3", 1, by_sender(&[3, 5]))],
        ];
        let results = Results::new(&[WEIR, SHM, UCX], &jobs.concat());
        let lossy = Results::new(&[WEIR], &measured(WEIR, Quantity::HalfRoundTripUs, 8, &[20.0]));
        let content = Content {
            name: "weir bench",
            heading: "weir",
            parts: &[
                Part { heading: String::new(), results: &results },
                Part { heading: String::from("1 % lost"), results: &lossy },
            ],
            targets: &targets::judge(&results),
            notes: &[String::from("quiet")],
            warnings: &[String::from("<busy>")],
            record: &serde_json::json!({ "rows": results.rows() }),
        };
        let page = render(&content);
        assert_eq!(page.matches("<svg").count(), 4, "{page}");
        assert!(page.contains("&lt;busy&gt;") && page.contains("Incast 2 to 1"));
        assert!(page.contains("1 % lost: Half round trip") && page.contains("20.0"), "{page}");
        assert!(page.contains("not measured") && page.contains("\"median\":0.45"));
        assert!(!page.contains("http:") || page.matches("http:").count() == page.matches("xmlns").count());
    }
}
