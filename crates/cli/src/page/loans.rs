//! The section about credits on demand: how many senders wait for slots of each rank, and what each rank has lent. Other
//! schemes have no such section.

use super::timeline::Timeline;
use super::{HOT, MAX_LINES, WIDE, legend, names, over_time};
use crate::report::Job;
use weir_output::figures::{self, Columns, HeatMap, Unit};
use weir_output::markup::Html;
use weir_output::quantity::count;

pub(super) fn section(html: &mut Html, timeline: &Timeline, job: &Job) {
    if job.total.lending.is_none() {
        return;
    }
    html.heading(2, "Loans");
    let waiting: Vec<_> = timeline.endpoints.iter().map(|endpoint| &endpoint.waiting_senders).collect();
    let top = figures::max_value(waiting.iter().map(|values| values.as_slice()));
    let names = names(timeline);
    if top == 0.0 {
        html.paragraph("No sender was seen waiting for free slots.");
    } else if timeline.endpoints.len() <= MAX_LINES {
        legend(html, names.iter().map(|name| format!("rank {name}")));
        let caption = "Number of senders that wait for free slots of each rank, peak of 1/240 of the run.";
        over_time(html, caption, WIDE, timeline, &waiting, Unit::Count("senders"));
    } else {
        let values: Vec<Vec<f64>> = waiting.into_iter().cloned().collect();
        let columns = Columns::Time(timeline.span_s);
        let heat = HeatMap { rows: &names, row_title: "rank", columns, values: &values, top, colour: HOT };
        let scale = "Number of senders that wait for free slots of each rank";
        html.scale(scale, "0", &format!("{top:.0}"), &figures::hex(HOT));
        html.figure("Grey: not sampled.", &figures::heat_map(WIDE.0, &heat));
    }
    let heading = [
        "rank",
        "lent, slots",
        "prefetched, slots",
        "given back, slots",
        "senders that had to wait",
        "more turns",
    ];
    let rows = job.ranks.iter().map(|rank| {
        let lending = rank.share.lending.unwrap_or_default();
        vec![
            rank.short_name(),
            count(lending.lent_slots),
            count(lending.prefetched_slots),
            count(rank.share.counters.credits_given_back),
            count(lending.demands_queued),
            count(lending.queue_turns),
        ]
    });
    html.table(&heading, rows);
}
