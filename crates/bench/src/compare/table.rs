//! The tables of a run of `weir bench` for a terminal: contenders by sizes, ranks or senders, and the targets with
//! their verdicts. The page (`page.rs`) takes its sections, headings and cells from here.

use super::measure::{Measure, Quantity};
use super::results::{Results, WEIR};
use super::verdict::JudgedTarget;
use crate::comparison::Compared;
use crate::contender::Contender;
use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, presets};

/// The sections: title and quantities of each table.
pub const SECTIONS: [(&str, &[Quantity]); 10] = [
    ("Half round trip", &[Quantity::HalfRoundTripUs]),
    ("Bandwidth, message rate", &[Quantity::BytesPerS, Quantity::MessagesPerS]),
    ("Barrier", &[Quantity::BarrierUs]),
    ("All-reduce of 8 B", &[Quantity::AllreduceUs]),
    ("All-to-all of 2 KiB", &[Quantity::AlltoallUs]),
    ("Incast of 2 KiB: messages of all senders together", &[Quantity::IncastPerS]),
    (
        "Incast: rate over one to one; Jain's fairness index",
        &[Quantity::IncastShare, Quantity::IncastFairness],
    ),
    (
        "Incast: datagrams that were sent again, and those that were lost",
        &[Quantity::IncastSentAgain, Quantity::IncastLost],
    ),
    ("Flood", &[Quantity::FloodS, Quantity::FloodGrowthBytes]),
    ("Memory of a rank after all-to-alls", &[Quantity::RankBytes]),
];

/// The measures of a section that have values.
pub fn columns(results: &Results, whats: &[Quantity]) -> Vec<Measure> {
    let of_what = |&what: &Quantity| results.places(what).into_iter().map(move |at| Measure { what, at });
    whats.iter().flat_map(of_what).collect()
}

/// The heading of a column: `8 B`, or `Message rate, 8 B` if the section has several quantities.
pub fn heading(measure: Measure, whats: &[Quantity]) -> String {
    match (whats.len(), measure.what) {
        (1, what) => what.place(measure.at),
        (_, Quantity::FloodS) => String::from("time"),
        (_, Quantity::FloodGrowthBytes) => String::from("growth of the receiver"),
        (_, Quantity::IncastShare) => format!("rate, {}", measure.what.place(measure.at)),
        (_, Quantity::IncastFairness) => format!("fairness, {}", measure.what.place(measure.at)),
        (_, Quantity::IncastSentAgain) => format!("sent again, {}", measure.what.place(measure.at)),
        (_, Quantity::IncastLost) => format!("lost, {}", measure.what.place(measure.at)),
        _ => measure.describe(),
    }
}

/// Two lines: median and spread; ratio to weir's median and whether it is within noise.
pub fn cell(results: &Results, measure: Measure, contender: Contender) -> [String; 2] {
    if results.skipped.contains(&contender) {
        return [String::from("skipped"), String::new()]; // the notes say why
    }
    // The reason up to ` after ` or `:`; the notes have the rest.
    let failure = results.failure(measure, contender);
    let failure = failure.and_then(|why| why.split(" after ").next()?.split(':').next());
    let samples = results.samples(measure, contender).len();
    let Some(spread) = results.spread(measure, contender) else {
        return [failure.unwrap_or("-").to_owned(), String::new()];
    };
    let weirs = results.spread(measure, WEIR);
    let weirs = weirs.filter(|_| contender != WEIR && measure.what.is_compared());
    let compared = Compared::new(&spread, weirs.as_ref(), |value| measure.what.show(value));
    let first = match samples {
        1 => compared.median,
        _ => format!("{} ({})", compared.median, shortened(&compared.range)),
    };
    let noise = compared.within_noise.then(|| String::from("within noise"));
    let failure = failure.map(|failure| format!("then {failure}"));
    let second = [compared.ratio, noise, failure].into_iter().flatten().collect::<Vec<_>>().join(", ");
    [first, second]
}

/// `590 .. 610 ns` for `590 ns .. 610 ns`.
fn shortened(range: &str) -> String {
    let ends = range.split_once(" .. ").and_then(|(low, high)| Some((low.split_once(' ')?, high)));
    match ends {
        Some(((low, unit), high)) if high.ends_with(&format!(" {unit}")) => format!("{low} .. {high}"),
        _ => range.to_owned(),
    }
}

/// Returns all tables.
pub fn render(results: &Results) -> String {
    let mut parts = Vec::new();
    for (title, whats) in SECTIONS {
        let columns = columns(results, whats);
        if columns.is_empty() {
            continue;
        }
        let mut table = empty();
        let headings = columns.iter().map(|measure| right(heading(*measure, whats)));
        table.set_header(std::iter::once(Cell::new("")).chain(headings));
        for &contender in &results.contenders {
            let cells: Vec<_> = columns.iter().map(|measure| cell(results, *measure, contender)).collect();
            let second = cells.iter().any(|[_, second]| !second.is_empty());
            let text = |[first, second_line]: &[String; 2]| match second {
                true => right(format!("{first}\n{second_line}")),
                false => right(first.clone()),
            };
            let row = std::iter::once(Cell::new(contender.heading())).chain(cells.iter().map(text));
            table.add_row(row.collect::<Vec<_>>());
        }
        parts.push(format!("{title}\n{}", lines(&table)));
    }
    parts.join("\n\n")
}

/// Returns the table of targets with their verdicts.
pub fn targets(judged: &[JudgedTarget]) -> String {
    let mut table = empty();
    table.set_header(["target", "limit", "found", ""]);
    for target in judged {
        table.add_row([&target.text, &target.limit, &target.found, target.verdict.word()]);
    }
    format!("Targets: ratios of medians, judged with their spreads\n{}", lines(&table))
}

fn empty() -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY.row_separator(LineStyle::none()))
        .set_content_arrangement(ContentArrangement::Disabled);
    table
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

fn lines(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::{SHM, TCP, UCX, ended, measured};
    use super::super::store::Outcome;
    use super::super::targets;
    use super::*;
    use crate::contender::OtherMpi;

    const INTEL: Contender = Contender::OtherMpi(OtherMpi::IntelMpi);

    fn results() -> Results {
        let what = Quantity::HalfRoundTripUs;
        let jobs = [
            measured(WEIR, what, 8, &[1.0, 1.2, 0.9]),
            measured(SHM, what, 8, &[1.1, 3.0, 2.0]),
            measured(TCP, what, 8, &[4.0, 5.0, 6.0]),
            vec![ended(UCX, "latency-2", 1, Outcome::Failed("timed out after 60 s".into()))],
            measured(WEIR, Quantity::FloodGrowthBytes, 3, &[0.0]),
            measured(SHM, Quantity::FloodGrowthBytes, 3, &[4096.0]),
        ];
        Results::new(&[WEIR, SHM, TCP, UCX], &jobs.concat())
    }

    #[test]
    fn cells_show_the_ratio_and_mark_noise() {
        let results = results();
        let half = Measure { what: Quantity::HalfRoundTripUs, at: 8 };
        let of = |contender| cell(&results, half, contender).join(" | ");
        assert_eq!(of(WEIR), "1.00 us (900 ns .. 1.20 us) | ");
        assert_eq!(of(SHM), "2.00 us (1.10 .. 3.00 us) | 2.00 x weir, within noise");
        assert_eq!(of(TCP), "5.00 us (4.00 .. 6.00 us) | 5.00 x weir");
        assert_eq!(of(UCX), "timed out | ");
        let growth = Measure { what: Quantity::FloodGrowthBytes, at: 3 };
        assert_eq!(cell(&results, growth, SHM), ["4.00 KiB".to_owned(), String::new()]);
        assert_eq!(cell(&results, growth, TCP), ["-".to_owned(), String::new()]);
    }

    #[test]
    fn a_contender_that_is_not_installed_has_a_row_that_says_so() {
        let results = results().skipping(&[INTEL]);
        let half = Measure { what: Quantity::HalfRoundTripUs, at: 8 };
        assert_eq!(cell(&results, half, INTEL), ["skipped".to_owned(), String::new()]);
        assert!(render(&results).contains("Intel MPI"));
    }

    #[test]
    fn only_measured_sections_have_a_table() {
        let text = render(&results());
        assert!(text.starts_with("Half round trip\n"), "{text}");
        assert!(text.contains("\n\nFlood\n") && text.contains("growth of the receiver"), "{text}");
        assert!(!text.contains("Barrier"), "{text}");
        let targets = targets(&targets::judge(&results()));
        assert!(targets.contains("not measured") && targets.contains("within noise"), "{targets}");
    }
}
