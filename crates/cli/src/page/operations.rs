//! The section about collective operations: their time, and how much of it is skew.

use super::{WIDE, legend, rank_names};
use crate::report::Job;
use crate::report::operations::{executor, operation, skew, skew_lines};
use weir_engine::operation_times::{OperationSums, Operations};
use weir_output::figures;
use weir_output::markup::Html;
use weir_output::quantity::{count, time_ns};

const NS_PER_MS: f64 = 1e6;

pub(super) fn section(html: &mut Html, job: &Job) {
    if job.total.operations.is_empty() {
        return;
    }
    html.heading(2, "Collective operations");
    for line in skew_lines(job.skews()) {
        html.paragraph(&line);
    }
    legend(html, ["skew", "the rest, and what is not known"].map(String::from));
    let bar = |sums: &OperationSums| {
        let skew = sums.skew.min(sums.time);
        vec![skew as f64 / NS_PER_MS, (sums.time - skew) as f64 / NS_PER_MS]
    };
    let names: Vec<String> = job.total.operations.iter().map(|(class, _)| operation(*class)).collect();
    let parts: Vec<Vec<f64>> = job.total.operations.iter().map(|(_, sums)| bar(sums)).collect();
    html.figure(
        "Time of each operation, summed over the ranks, in ms.",
        &figures::bars(WIDE, &names, ("operation", "ms"), &parts),
    );
    let of_rank = |operations: &Operations| {
        let all = operations.iter();
        bar(&all.fold(OperationSums::default(), |sum, (_, sums)| sum.plus(sums)))
    };
    let parts: Vec<Vec<f64>> = job.ranks.iter().map(|rank| of_rank(&rank.share.operations)).collect();
    html.figure(
        "Time of each rank in all operations, in ms. Ranks with little skew are those for which others wait.",
        &figures::bars(WIDE, &rank_names(job), ("rank", "ms"), &parts),
    );
    let rows = job.total.operations.iter().map(|(class, sums)| {
        let time = |ns: u64| time_ns(ns as f64);
        let names = [operation(*class), executor(*class).to_owned()];
        let numbers = [count(sums.count), time(sums.time), skew(*class, sums), time(sums.longest)];
        names.into_iter().chain(numbers).collect()
    });
    html.table(&["operation", "done by", "number", "time", "skew", "longest"], rows);
}
