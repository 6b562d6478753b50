//! The first part of `weir tune --network`: what hosts do without admission, by message length, active ranks and
//! outstanding messages, and the thresholds beyond which they do less.
//!
//! Luo, Panda et al. (ICS 2012) found three thresholds for each message length by hand from such sweeps:
//!
//! | in the paper | here | beyond it |
//! |---|---|---|
//! | CCT | [`CongestionThresholds::ranks`] | more ranks with one message each do less |
//! | NRCT | [`CongestionThresholds::host_messages`] | more outstanding messages of a host do less |
//! | CRCT | [`RankThreshold::messages`] | more outstanding messages of a rank do less, with so many active ranks |
//!
//! Tokens bound the messages of a host. So the number at which a host does most is one of those that are tried.

use super::choice::Point;
use super::table::point_name;
use crate::congestion::Sample;
use comfy_table::Cell;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use weir_output::chart::{Chart, Curve};
use weir_output::quantity::{exact_bytes, rate};
use weir_output::table::{self, right};

/// Less than this ratio to the most operations is a fall. One round is noisy.
const FALL_RATIO: f64 = 0.9;

/// Random updates without admission.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Unlimited {
    #[serde(flatten)]
    pub point: Point,
    /// Updates of a rank without answer.
    pub outstanding: u32,
    /// Operations of all ranks a second.
    pub per_s: f64,
    /// The 99th percentile of the time of an operation. Unit: us.
    pub p99_us: f64,
}

impl Unlimited {
    /// What a job has measured.
    pub fn of(point: Point, outstanding: u32, sample: &Sample) -> Unlimited {
        Unlimited { point, outstanding, per_s: sample.per_s, p99_us: sample.tail_us() }
    }
}

/// Beyond what a host does less. `None`: it never did less among the numbers that were tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CongestionThresholds {
    /// Length of the messages. Unit: bytes.
    pub bytes: u32,
    /// Active ranks of a host with one message each (CCT).
    pub ranks: Option<u32>,
    /// Outstanding messages of a host, whatever its ranks (NRCT).
    pub host_messages: Option<u32>,
    /// Outstanding messages of a rank, by active ranks (CRCT).
    pub rank_messages: Vec<RankThreshold>,
}

/// Outstanding messages of a rank beyond which its host does less.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RankThreshold {
    /// Active ranks of a host.
    pub ranks: u32,
    /// The number. `None`: as for [`CongestionThresholds`].
    pub messages: Option<u32>,
}

/// The number with the most operations, if a greater one has less of them.
fn falls_beyond(operations: impl IntoIterator<Item = (u32, f64)>) -> Option<u32> {
    let operations: Vec<(u32, f64)> = operations.into_iter().collect();
    let &(best, most) = operations.iter().max_by(|(_, one), (_, other)| one.total_cmp(other))?;
    operations.iter().any(|&(number, per_s)| number > best && per_s < FALL_RATIO * most).then_some(best)
}

/// The values without repetition, in order.
fn distinct<T: Ord>(values: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
    values.collect::<BTreeSet<T>>().into_iter()
}

/// The thresholds of each message length.
pub fn thresholds(sweep: &[Unlimited]) -> Vec<CongestionThresholds> {
    let of_length = |bytes: u32| {
        let of: Vec<&Unlimited> = sweep.iter().filter(|one| one.point.bytes == bytes).collect();
        let mut by_host: BTreeMap<u32, f64> = BTreeMap::new();
        for one in &of {
            let most = by_host.entry(one.point.ranks * one.outstanding).or_default();
            *most = most.max(one.per_s);
        }
        let of_rank = |ranks: u32| {
            let here = of.iter().filter(|one| one.point.ranks == ranks);
            RankThreshold { ranks, messages: falls_beyond(here.map(|one| (one.outstanding, one.per_s))) }
        };
        let blocking = of.iter().filter(|one| one.outstanding == 1);
        CongestionThresholds {
            bytes,
            ranks: falls_beyond(blocking.map(|one| (one.point.ranks, one.per_s))),
            host_messages: falls_beyond(by_host),
            rank_messages: distinct(of.iter().map(|one| one.point.ranks)).map(of_rank).collect(),
        }
    };
    distinct(sweep.iter().map(|one| one.point.bytes)).map(of_length).collect()
}

/// The number of outstanding messages of a host beyond which it does less at a point. `None`: it never did.
pub fn most_at(thresholds: &[CongestionThresholds], point: Point) -> Option<u32> {
    let of_length = thresholds.iter().find(|one| one.bytes == point.bytes)?;
    let of_rank = of_length.rank_messages.iter().find(|one| one.ranks == point.ranks)?;
    Some(point.ranks * of_rank.messages?)
}

/// The table: operations a second by point and outstanding messages, and the thresholds below it.
pub fn render(sweep: &[Unlimited], thresholds: &[CongestionThresholds]) -> String {
    let numbers: Vec<u32> = distinct(sweep.iter().map(|one| one.outstanding)).collect();
    let mut table = table::plain();
    let headings = numbers.iter().map(|number| format!("{number} each"));
    table.set_header(std::iter::once(Cell::new("random updates, off")).chain(headings.map(right)));
    for point in distinct(sweep.iter().map(|one| one.point)) {
        let cell = |&number: &u32| {
            let found = sweep.iter().find(|one| (one.point, one.outstanding) == (point, number));
            right(found.map_or(String::from("-"), |one| rate(one.per_s)))
        };
        table.add_row(std::iter::once(Cell::new(point_name(point))).chain(numbers.iter().map(cell)));
    }
    let lines = thresholds.iter().map(describe);
    std::iter::once(table::text(&table)).chain(lines).collect::<Vec<_>>().join("\n")
}

fn describe(of: &CongestionThresholds) -> String {
    let number = |number: Option<u32>| number.map_or(String::from("none"), |number| number.to_string());
    let of_ranks = of.rank_messages.iter();
    let of_ranks: Vec<String> =
        of_ranks.map(|one| format!("{} with {} ranks", number(one.messages), one.ranks)).collect();
    format!(
        "{}: beyond these numbers there are fewer operations. Ranks with one message each: {}. Messages of a host: {}. Messages \
         of a rank: {}.",
        exact_bytes(of.bytes.into()),
        number(of.ranks),
        number(of.host_messages),
        of_ranks.join(", ")
    )
}

/// A chart for each message length: operations over outstanding messages of a rank, with a curve for each number of ranks.
pub fn charts(sweep: &[Unlimited]) -> Vec<Chart> {
    let mut by_length: BTreeMap<u32, BTreeMap<u32, Vec<(f64, f64)>>> = BTreeMap::new();
    for one in sweep {
        let curves = by_length.entry(one.point.bytes).or_default();
        curves.entry(one.point.ranks).or_default().push((f64::from(one.outstanding), one.per_s));
    }
    let chart = |(bytes, curves): (u32, BTreeMap<u32, Vec<(f64, f64)>>)| {
        let title = format!("random {} without admission", exact_bytes(bytes.into()));
        let mut chart = Chart::new(title, "outstanding messages of a rank", "operations/s").logarithmic_x();
        for (ranks, points) in curves {
            chart.curve(format!("{ranks} ranks a host"), Curve(points));
        }
        chart
    };
    by_length.into_iter().map(chart).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(values: &[(u32, u32, f64)]) -> Vec<Unlimited> {
        let one = |&(ranks, outstanding, per_s)| Unlimited {
            point: Point { bytes: 2048, ranks },
            outstanding,
            per_s,
            p99_us: 1.0,
        };
        values.iter().map(one).collect()
    }

    #[test]
    fn a_threshold_is_the_number_with_the_most_operations_if_they_fall_beyond_it() {
        assert_eq!(falls_beyond([(1, 10.0), (4, 40.0), (16, 35.9)]), Some(4));
        assert_eq!(falls_beyond([(1, 10.0), (4, 40.0), (16, 36.1)]), None, "within a tenth");
        assert_eq!(falls_beyond([(1, 10.0), (4, 20.0), (16, 30.0)]), None, "more is better");
        assert_eq!(falls_beyond([]), None);
    }

    #[test]
    fn the_three_thresholds_of_the_paper() {
        let sweep = sweep(&[
            (2, 1, 100.0),
            (2, 4, 300.0),
            (2, 16, 310.0),
            (4, 1, 150.0),
            (4, 4, 400.0),
            (4, 16, 300.0),
            (8, 1, 120.0),
            (8, 4, 250.0),
            (8, 16, 100.0),
        ]);
        let rank = |ranks, messages| RankThreshold { ranks, messages };
        let expected = CongestionThresholds {
            bytes: 2048,
            ranks: Some(4),
            host_messages: Some(16),
            rank_messages: vec![rank(2, None), rank(4, Some(4)), rank(8, Some(4))],
        };
        let found = thresholds(&sweep);
        assert_eq!(found, [expected]);
        let most = [2, 4, 8, 3].map(|ranks| most_at(&found, Point { bytes: 2048, ranks }));
        assert_eq!(most, [None, Some(16), Some(32), None]);
        assert_eq!(most_at(&found, Point { bytes: 4096, ranks: 4 }), None, "another length");
        let text = render(&sweep, &found);
        let line = "2 KiB: beyond these numbers there are fewer operations. Ranks with one message each: 4. Messages of a host: \
                    16. Messages of a rank: none with 2 ranks, 4 with 4 ranks, 4 with 8 ranks.";
        assert!(text.contains(line) && text.contains("16 each") && text.contains("400 /s"), "{text}");
        assert_eq!(charts(&sweep).len(), 1);
    }
}
