//! Collective operations in the report: a table by operation and executor, the same as JSON, and sentences about ranks that
//! come late.

use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use weir_engine::operation_times::{Executor, OperationClass, OperationKind, OperationSums, Operations};
use weir_output::quantity::{count, time_ns};
use weir_output::table;

/// Skew has a sentence from so much on in all, as an average of a rank's operation, and as a share of the time. Unit: ns.
const LEAST_SKEW_NS: u64 = 10_000_000;
const LEAST_SKEW_EACH_NS: u64 = 100_000;
const LEAST_SHARE: f64 = 0.5;
/// A rank comes late if its skew for each operation is at most this share of the greatest of any rank.
const LATE_SHARE: f64 = 0.25;
/// Ranks in a sentence.
const MAX_NAMED: usize = 6;

/// The operations of one executor. Unit: operations.
pub fn done_by(operations: &Operations, executor: Executor) -> u64 {
    let of_executor = operations.iter().filter(|(class, _)| class.executor == executor);
    of_executor.fold(0, |sum, (_, sums)| sum.saturating_add(sums.count))
}

/// Adds operations to others.
pub fn add(to: &mut Operations, more: &Operations) {
    let mut all: BTreeMap<OperationClass, OperationSums> = to.drain(..).collect();
    for (class, sums) in more {
        let before = all.entry(*class).or_default();
        *before = before.plus(sums);
    }
    to.extend(all);
}

/// One class, in JSON.
#[derive(Serialize)]
struct Entry {
    operation: &'static str,
    blocking: bool,
    executor: &'static str,
    count: u64,
    time_ns: u64,
    skew_known: u64,
    /// `None`: of no operation it is known.
    skew_ns: Option<u64>,
    skew_is_bound: bool,
    longest_ns: u64,
}

/// The operations as objects.
pub fn as_objects<S: Serializer>(operations: &Operations, serializer: S) -> Result<S::Ok, S::Error> {
    let entry = |(class, sums): &(OperationClass, OperationSums)| Entry {
        operation: class.kind.name(),
        blocking: class.is_blocking,
        executor: class.executor.name(),
        count: sums.count,
        time_ns: sums.time,
        skew_known: sums.skew_known,
        skew_ns: (sums.skew_known > 0).then_some(sums.skew),
        skew_is_bound: class.executor.skew_is_bound(),
        longest_ns: sums.longest,
    };
    serializer.collect_seq(operations.iter().map(entry))
}

/// Who has done the operations of a class, for a table.
pub fn executor(class: OperationClass) -> &'static str {
    match class.executor {
        Executor::Node => "shared memory",
        Executor::Hosts => "across hosts",
        Executor::Messages => "messages",
        Executor::Helper => "messages, by weir's thread",
    }
}

/// The operation of a class, for a table.
pub fn operation(class: OperationClass) -> String {
    match class.is_blocking {
        true => class.kind.name().to_owned(),
        false => format!("{}, non-blocking", class.kind.name()),
    }
}

/// The skew of a class, with its share of the time.
pub fn skew(class: OperationClass, sums: &OperationSums) -> String {
    if sums.skew_known == 0 {
        return String::from("unknown");
    }
    let at_most = if class.executor.skew_is_bound() { "at most " } else { "" };
    let time = time_ns(sums.skew as f64);
    match sums.whole_skew() {
        Some(skew) => format!("{at_most}{time} ({:.0} %)", 100.0 * skew as f64 / sums.time.max(1) as f64),
        None => format!("{at_most}{time} in {} of them", count(sums.skew_known)),
    }
}

/// A table of all operations. Empty, if there are none.
pub fn text(operations: &Operations) -> String {
    if operations.is_empty() {
        return String::new();
    }
    let mut lines = table::plain();
    let right = ["number", "time", "skew", "longest"].map(table::right);
    lines.set_header(["operation", "done by"].map(comfy_table::Cell::new).into_iter().chain(right));
    for (class, sums) in operations {
        let time = |ns: u64| time_ns(ns as f64);
        let numbers = [count(sums.count), time(sums.time), skew(*class, sums), time(sums.longest)];
        let names = [operation(*class), executor(*class).to_owned()].map(comfy_table::Cell::new);
        lines.add_row(names.into_iter().chain(numbers.map(table::right)));
    }
    for column in lines.column_iter_mut() {
        column.set_padding((1, 0));
    }
    format!(
        "\n{}\nnumber, time: summed over the ranks. skew: time until a rank saw that the last of those it needed had begun. \
         longest: of any\nrank.",
        table::text(&lines)
    )
}

/// Sentences about kinds of operations of which most of the time is skew, and about the ranks that come late.
pub fn skew_lines<'a>(ranks: impl Iterator<Item = (String, &'a Operations)> + Clone) -> Vec<String> {
    OperationKind::ALL.into_iter().filter_map(|kind| skew_line(kind, ranks.clone())).collect()
}

fn skew_line<'a>(
    kind: OperationKind,
    ranks: impl Iterator<Item = (String, &'a Operations)>,
) -> Option<String> {
    let of_kind = |(name, operations): (String, &Operations)| {
        let classes = operations.iter().filter(|(class, sums)| class.kind == kind && sums.skew_known > 0);
        let sums = classes.fold(OperationSums::default(), |sum, (_, sums)| sum.plus(sums));
        (sums.skew_known > 0).then_some((name, sums))
    };
    let ranks: Vec<(String, OperationSums)> = ranks.filter_map(of_kind).collect();
    let all = ranks.iter().fold(OperationSums::default(), |sum, (_, sums)| sum.plus(sums));
    let each = |sums: &OperationSums| sums.skew / sums.skew_known.max(1);
    let is_large = all.skew >= LEAST_SKEW_NS && all.skew as f64 >= LEAST_SHARE * all.time as f64;
    if !is_large || each(&all) < LEAST_SKEW_EACH_NS {
        return None;
    }
    let greatest = ranks.iter().map(|(_, sums)| each(sums)).max()? as f64;
    let is_late = |sums: &OperationSums| each(sums) as f64 <= LATE_SHARE * greatest;
    let late: Vec<&str> =
        ranks.iter().filter(|(_, sums)| is_late(sums)).map(|(name, _)| name.as_str()).collect();
    let who = match late[..] {
        [] => String::from("ranks come late in turn"),
        [only] => format!("{only} comes late"),
        _ if late.len() > MAX_NAMED => {
            format!("{} and {} more come late", late[..MAX_NAMED].join(", "), late.len() - MAX_NAMED)
        }
        _ => format!("{} come late", late.join(", ")),
    };
    Some(format!(
        "skew: of {} in {} operations, {} ({:.0} %) was waiting for ranks that had not begun: {who}",
        time_ns(all.time as f64),
        kind.name(),
        time_ns(all.skew as f64),
        100.0 * all.skew as f64 / all.time.max(1) as f64,
    ))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    pub(crate) fn class(kind: OperationKind, executor: Executor, is_blocking: bool) -> OperationClass {
        OperationClass { kind, executor, is_blocking }
    }

    /// Barriers in shared memory of this time and skew.
    pub(crate) fn barriers(count: u64, time: u64, skew: u64) -> Operations {
        let sums = OperationSums { count, time, skew_known: count, skew, longest: time / count };
        vec![(class(OperationKind::Barrier, Executor::Node, true), sums)]
    }

    #[test]
    fn the_table_has_a_row_for_each_operation_and_executor_and_says_what_is_unknown() {
        let bound = OperationSums { count: 4, time: 8000, skew_known: 4, skew: 6000, longest: 3000 };
        let part = OperationSums { count: 1200, time: 5 * MS, skew_known: 200, skew: MS, longest: 2 * MS };
        let unknown = OperationSums { count: 2, time: 70, skew_known: 0, skew: 0, longest: 40 };
        let mut all = barriers(10, 200 * MS, 150 * MS);
        all.extend([
            (class(OperationKind::Reduce, Executor::Hosts, true), bound),
            (class(OperationKind::AllReduce, Executor::Node, false), part),
            (class(OperationKind::AllGather, Executor::Helper, false), unknown),
        ]);
        let text = text(&all);
        let rows: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        for row in [
            "operation done by number time skew longest",
            "barrier shared memory 10 200 ms 150 ms (75 %) 20.0 ms",
            "reduce across hosts 4 8.00 us at most 6.00 us (75 %) 3.00 us",
            "all-reduce, non-blocking shared memory 1,200 5.00 ms 1.00 ms in 200 of them 2.00 ms",
            "all-gather, non-blocking messages, by weir's thread 2 70.0 ns unknown 40.0 ns",
        ] {
            assert!(rows.iter().any(|found| found == row), "{row}:\n{text}");
        }
        assert_eq!(super::text(&vec![]), "");
    }

    #[test]
    fn operations_of_two_ranks_are_summed_by_class() {
        let mut sum = barriers(10, 200, 150);
        add(&mut sum, &barriers(10, 100, 0));
        let other = vec![(class(OperationKind::Barrier, Executor::Hosts, true), OperationSums::default())];
        add(&mut sum, &other);
        let expected = OperationSums { count: 20, time: 300, skew_known: 20, skew: 150, longest: 20 };
        assert_eq!((sum.len(), sum[0].1), (2, expected));
        assert_eq!((done_by(&sum, Executor::Node), done_by(&sum, Executor::Hosts)), (20, 0));
    }

    #[test]
    fn ranks_that_come_late_are_named_if_most_of_the_time_is_skew() {
        let lines = |skews: &[u64]| {
            let ranks: Vec<_> = skews.iter().map(|skew| barriers(10, (skew + 1) * MS, skew * MS)).collect();
            skew_lines((0..).zip(&ranks).map(|(rank, operations)| (format!("rank {rank}"), operations)))
        };
        assert_eq!(
            lines(&[199, 0, 199]),
            [
                "skew: of 401 ms in barrier operations, 398 ms (99 %) was waiting for ranks that had not begun: rank 1 comes \
              late"
            ]
        );
        assert!(lines(&[199, 0, 199, 10])[0].ends_with(": rank 1, rank 3 come late"));
        assert!(lines(&[90, 99, 80])[0].ends_with(": ranks come late in turn"));
        assert!(lines(&[300, 0, 0, 0, 0, 0, 0, 0])[0].ends_with("rank 6 and 1 more come late"));
        assert_eq!(lines(&[0, 0, 2]), [""; 0], "too little");
        let short = barriers(1000, 30 * MS, 29 * MS);
        assert_eq!(skew_lines([(String::new(), &short)].into_iter()), [""; 0], "29 us each");
    }
}
