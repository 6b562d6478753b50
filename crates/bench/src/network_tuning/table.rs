//! The table of `weir tune --network`, and the lines below it.

use super::RecordContent;
use super::choice::{self, Comparison, Point};
use crate::comparison;
use crate::congestion::{NetworkOptions, Traffic};
use comfy_table::Cell;
use weir_output::quantity::{exact_bytes, rate, three_digits, time_ns};
use weir_output::table::{self, right};

/// Headings of [`cells`], with that of the point.
pub const HEADINGS: [&str; 9] =
    ["", "traffic", "tokens", "operations", "to off", "p99", "to off", "sent again (off)", ""];

/// Name of a job.
pub fn name(point: Point, traffic: Traffic, tokens: Option<u32>) -> String {
    let tokens = tokens.map_or(String::from("off"), |tokens| format!("{tokens} tokens"));
    format!("{} {}, {tokens}", traffic.word(), point_name(point))
}

/// Name of a point.
pub fn point_name(point: Point) -> String {
    format!("{}, {} ranks a host", exact_bytes(point.bytes.into()), point.ranks)
}

/// The cells of a comparison behind its point. `best`: the best number of tokens there.
pub fn cells(one: &Comparison, best: Option<u32>) -> [String; 8] {
    let percent = |share: f64| format!("{} %", three_digits(share * 100.0));
    let ratio = one.ratio;
    let mark = if best == Some(one.tokens) { ", best" } else { "" };
    [
        one.traffic.word().to_owned(),
        one.tokens.to_string(),
        rate(one.per_s.median),
        format!(
            "{} x ({} .. {})",
            three_digits(ratio.median),
            three_digits(ratio.min),
            three_digits(ratio.max)
        ),
        time_ns(one.p99_us * 1e3),
        format!("{} x", three_digits(one.p99_ratio.median)),
        format!("{} ({})", percent(one.sent_again), percent(one.off_sent_again)),
        format!("{}{mark}", one.verdict),
    ]
}

/// The table.
pub fn render(comparisons: &[Comparison]) -> String {
    let mut table = table::plain();
    table.set_header(HEADINGS.map(Cell::new));
    let mut before = None;
    for one in comparisons {
        let name = if before == Some(one.point) { String::new() } else { point_name(one.point) };
        before = Some(one.point);
        let [traffic, numbers @ .., verdict] = cells(one, choice::best(comparisons, one.point));
        let begin = [Cell::new(name), Cell::new(traffic)];
        table.add_row(begin.into_iter().chain(numbers.map(right)).chain([Cell::new(verdict)]));
    }
    table::text(&table)
}

/// How to read the numbers, and what is missing.
pub fn notes(content: &RecordContent<'_>) -> Vec<String> {
    let mut notes = vec![comparison::notes(content.machine, &content.mpi, content.rounds)[0].clone()];
    let NetworkOptions { hosts, link, .. } = content.network;
    let ports = content.network.ports_in_words();
    notes.push(match content.host_names {
        [] => format!(
            "Measured between {hosts} pretended hosts, namespaces of this machine that share its cores, not on a network; link \
             {link}; {ports}. For a switch, give the rate and queue of its ports (--port-rate, --port-queue)."
        ),
        names => format!("Measured between {}; link {link}.", names.join(", ")),
    });
    notes.push(format!(
        "Operations of all ranks a second; to off: median ratio in the same round; p99: time of one operation; sent again: \
         {}. A number is kept if no traffic has less than 0.98 x the operations or more than 1.2 x the p99, \
         and one of them has 1.05 x the operations, 0.8 x the p99, or half of more than 1 % sent again.",
        content.network.sent_again_in_words()
    ));
    notes.extend(comparison::busy_warning(content.machine));
    notes.extend(content.failures.iter().map(|failed| {
        format!("{}: {}; not tried again", name(failed.point, failed.traffic, failed.tokens), failed.why)
    }));
    notes
}

#[cfg(test)]
mod tests {
    use super::super::choice::tests::sample;
    use super::*;

    #[test]
    fn the_table_names_a_point_once_and_marks_the_best_number() {
        let point = Point { bytes: 65536, ranks: 4 };
        let off = sample(1000.0, 500.0, 40);
        let one = |traffic, tokens, per_s, p99_us| {
            Comparison::of(point, traffic, tokens, &[off], &[sample(per_s, p99_us, 10)]).unwrap()
        };
        let comparisons = [
            one(Traffic::Random, 8, 900.0, 100.0),
            one(Traffic::Incast, 8, 1000.0, 100.0),
            one(Traffic::Random, 32, 1000.0, 500.0),
            one(Traffic::Incast, 32, 1000.0, 250.0),
        ];
        let text = render(&comparisons);
        assert_eq!(text.matches("64 KiB, 4 ranks a host").count(), 1, "{text}");
        assert_eq!(text.matches(", best").count(), 2, "{text}");
        for part in
            ["throughput falls", "tail gains, best", "fewer sent again, best", "1.00 % (4.00 %)", "0.50 x"]
        {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert_eq!(name(point, Traffic::Incast, None), "incast 64 KiB, 4 ranks a host, off");
    }
}
