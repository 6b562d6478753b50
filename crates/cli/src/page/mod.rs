//! The page of `weir run --report`: one HTML file without references to other files, with figures as inline SVG.
//!
//! Up to eight ranks are a line each in the figures over time. More ranks are drawn as heat maps, or as bands between
//! minimum and maximum. The page also has counters, waits by pair and the series of the busiest ranks as JSON (`<script
//! id="weir-data">`).

mod loans;
mod network;
mod operations;
mod timeline;

use crate::report::{Job, Rank};
use serde_json::{Value, json};
use timeline::{MEMORY, PROCESS, Pair, PeerSeries, Series, Timeline};
use weir_bench::statistics::Spread;
use weir_engine::stats::EndpointReport;
use weir_engine::trace::Trace;
use weir_output::figures::{self, COLD, COLOURS, Columns, HOT, HeatMap, Line, Unit};
use weir_output::markup::Html;
use weir_output::quantity::{bytes, count, time_ns};
use weir_proto::PACKET_KINDS;

/// Name of the file.
pub const FILE: &str = "report.html";

/// Up to this number of ranks, each rank or peer is a line. More are a heat map and a band.
const MAX_LINES: usize = 8;
/// The number of endpoints whose credits are drawn: the busiest ones.
const MAX_SHOWN: usize = 16;
/// Pairs in the table of waiting pairs.
const MAX_LISTED: usize = 20;
/// Pairs in the JSON data.
const MAX_PAIRS: usize = 4096;
/// A table of ranks with more rows is folded.
const MAX_OPEN_ROWS: usize = 32;
const WIDE: (u32, u32) = (980, 240);
const HALF: (u32, u32) = (484, 200);

/// The content of the page.
pub struct Content<'a> {
    /// The program and its arguments.
    pub command: &'a [String],
    /// A summary of the run: `4 ranks, MPICH 5.0.2, 1.20 s, exit status 0`.
    pub summary: &'a str,
    /// Settings of weir and their values.
    pub settings: Vec<(String, String)>,
    /// Problems, one line each.
    pub warnings: &'a [String],
    /// Counters by rank.
    pub job: &'a Job,
    /// Counters by endpoint.
    pub endpoints: &'a [EndpointReport],
    /// Samples of the endpoints.
    pub traces: Vec<Trace>,
}

/// The whole page.
pub fn render(content: Content<'_>) -> String {
    let Content { command, summary, settings, warnings, job, endpoints, traces } = content;
    let timeline = Timeline::new(endpoints, traces);
    let title = format!("weir: {}", command.join(" "));
    let mut html = Html::begin(&title);
    html.heading(1, &title);
    html.paragraph(summary);
    let settings: Vec<_> = settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    html.note(&settings.join("  "));
    for warning in warnings {
        html.warning(warning);
    }
    tiles(&mut html, job);
    stalls(&mut html, &timeline);
    credits(&mut html, &timeline);
    loans::section(&mut html, &timeline, job);
    operations::section(&mut html, job);
    network::section(&mut html, &timeline, job);
    memory(&mut html, &timeline);
    packets(&mut html, &timeline);
    ranks(&mut html, &timeline, job);
    html.data(&data(&timeline, job, command));
    html.end()
}

fn tiles(html: &mut Html, job: &Job) {
    let total = &job.total.counters;
    html.tiles(&[
        ("messages", count(total.messages_sent), format!("{} of payload", bytes(total.bytes_sent))),
        (
            "waited for credit",
            time_ns(total.stalled_ns as f64),
            format!("in {} stalls, sum over all pairs", count(total.stalls)),
        ),
        (
            "unexpected messages",
            count(total.peak_unexpected_messages),
            format!("peak of any rank; payload {}", bytes(total.peak_unexpected_bytes)),
        ),
        ("mailboxes", bytes(job.total.mailbox_bytes), format!("all {} ranks", job.ranks.len())),
        (
            "packets",
            count(total.packets_sent),
            format!("{} of these are credit packets", count(total.credit_packets_sent)),
        ),
    ]);
}

fn names(timeline: &Timeline) -> Vec<String> {
    timeline.endpoints.iter().map(|endpoint| endpoint.name.clone()).collect()
}

/// The names of the ranks, for a figure.
fn rank_names(job: &Job) -> Vec<String> {
    job.ranks.iter().map(Rank::short_name).collect()
}

/// A table with a row for each rank. A long one is folded.
fn rank_table(html: &mut Html, heading: &[&str], rows: Vec<Vec<String>>) {
    let is_long = rows.len() > MAX_OPEN_ROWS;
    if is_long {
        html.begin_details(&format!("{} ranks", rows.len()));
    }
    html.table(heading, rows);
    if is_long {
        html.end_details();
    }
}

/// A heat map of senders and receivers, if there are more than two endpoints and a value.
///
/// - `scale`: what the values are. `show`: a value with its unit.
fn pair_map(
    html: &mut Html,
    timeline: &Timeline,
    scale: &str,
    caption: &str,
    value: impl Fn(&Pair) -> f64,
    show: impl Fn(f64) -> String,
) {
    let names = names(timeline);
    let mut values = vec![vec![0.0; names.len()]; names.len()];
    for pair in &timeline.pairs {
        values[pair.from][pair.to] = value(pair);
    }
    let top = figures::max_value(values.iter().map(Vec::as_slice));
    if names.len() <= 2 || top == 0.0 {
        return;
    }
    let columns = Columns::Names(&names, "receiver");
    let heat = HeatMap { rows: &names, row_title: "sender", columns, values: &values, top, colour: HOT };
    html.scale(scale, "0", &show(top), &figures::hex(HOT));
    let width = if names.len() > 24 { WIDE.0 } else { 560 };
    html.figure(caption, &figures::heat_map(width, &heat));
}

fn legend(html: &mut Html, entries: impl IntoIterator<Item = String>) {
    html.legend(entries.into_iter().zip(COLOURS).map(|(name, colour)| (name, figures::hex(colour))));
}

/// Draws few series as lines, and many as their median and range.
fn over_time(
    html: &mut Html,
    caption: &str,
    size: (u32, u32),
    timeline: &Timeline,
    series: &[&Series],
    unit: Unit,
) {
    let figure = if series.len() <= MAX_LINES {
        let lines: Vec<_> =
            series.iter().zip(COLOURS).map(|(values, colour)| Line { values, colour }).collect();
        figures::lines(size, timeline.span_s, &lines, None, unit)
    } else {
        let [low, middle, high] = spread(series);
        let line = Line { values: &middle, colour: COLOURS[0] };
        figures::lines(size, timeline.span_s, &[line], Some((&low, &high)), unit)
    };
    html.figure(caption, &figure);
}

/// Minimum, median and maximum of many series, bin by bin.
fn spread(series: &[&Series]) -> [Series; 3] {
    let bins = series.iter().map(|values| values.len()).max().unwrap_or(0);
    let mut spread = [const { Vec::new() }; 3];
    for bin in 0..bins {
        let known: Vec<f64> =
            series.iter().map(|values| values[bin]).filter(|value| !value.is_nan()).collect();
        let of_bin =
            Spread::of(&known).map_or([f64::NAN; 3], |of_bin| [of_bin.min, of_bin.median, of_bin.max]);
        for (series, value) in spread.iter_mut().zip(of_bin) {
            series.push(value);
        }
    }
    spread
}

fn stalls(html: &mut Html, timeline: &Timeline) {
    html.heading(2, "Who waits for credit");
    let waiting: Vec<_> = timeline.endpoints.iter().map(|endpoint| &endpoint.waiting).collect();
    let top = figures::max_value(waiting.iter().map(|values| values.as_slice()));
    if top == 0.0 {
        html.paragraph("No rank waited for credit.");
        return;
    }
    let names = names(timeline);
    if timeline.endpoints.len() <= MAX_LINES {
        legend(html, names.iter().map(|name| format!("rank {name}")));
        let caption = "Number of peers for whose credit each rank waits, average over 1/240 of the run. At 1, the rank \
                       waited for one peer all the time.";
        over_time(html, caption, WIDE, timeline, &waiting, Unit::Count("peers"));
    } else {
        let values: Vec<Vec<f64>> = waiting.into_iter().cloned().collect();
        let columns = Columns::Time(timeline.span_s);
        let heat = HeatMap { rows: &names, row_title: "rank", columns, values: &values, top, colour: HOT };
        html.scale(
            "Number of peers for whose credit each rank waits, average over time",
            "0",
            &format!("{top:.2}"),
            &figures::hex(HOT),
        );
        html.figure("Grey: not sampled.", &figures::heat_map(WIDE.0, &heat));
    }
    pair_map(
        html,
        timeline,
        "How long each sender (row) waited for each receiver (column)",
        "White: the sender did not wait.",
        |pair| pair.stalled_ns as f64,
        time_ns,
    );
    let waited: Vec<_> = timeline.pairs.iter().filter(|pair| pair.stalled_ns > 0).collect();
    let rows = waited.iter().take(MAX_LISTED).map(|pair| {
        let share = pair.stalled_ns as f64 / (timeline.span_s * 1e9) * 100.0;
        let name = |endpoint: usize| timeline.endpoints[endpoint].name.clone();
        let (waited, slots) = (time_ns(pair.stalled_ns as f64), count(pair.slots));
        vec![name(pair.from), name(pair.to), waited, format!("{share:.1} %"), slots]
    });
    html.table(&["sender", "receiver", "waited", "share of the run", "slots sent"], rows);
    if waited.len() > MAX_LISTED {
        html.note(&format!(
            "The {MAX_LISTED} pairs that waited longest, of {} pairs that waited.",
            count(waited.len() as u64)
        ));
    }
}

fn credits(html: &mut Html, timeline: &Timeline) {
    html.heading(2, "Credits per peer over time");
    let few = timeline.endpoints.len() <= MAX_LINES;
    let mut shown = timeline.busiest(MAX_SHOWN);
    if few {
        shown.sort_unstable();
    }
    let drawn: Vec<_> = shown
        .into_iter()
        .map(|endpoint| (endpoint, timeline.credits_of(endpoint), timeline.granted_by(endpoint)))
        .filter(|(_, credits, granted)| !credits.is_empty() || !granted.is_empty())
        .collect();
    if drawn.is_empty() {
        html.paragraph("No endpoint has a trace with peers.");
        return;
    }
    html.paragraph(
        "Left: the credits of the rank at its peers. A credit permits it to fill one slot there; at 0 it waits. Right: the \
         slots of its own mailbox that each sender owns. These are the sender's credits, credits on the way to it, and \
         slots that it has filled and the rank has not read. Values are averages over 1/240 of the run.",
    );
    if drawn.len() < timeline.endpoints.len() {
        html.note(&format!(
            "The {} ranks that waited most, then sent most, of {}.",
            drawn.len(),
            timeline.endpoints.len()
        ));
    }
    if few {
        legend(html, names(timeline).iter().map(|name| format!("rank {name}")));
    }
    let choice: Vec<_> =
        drawn.iter().map(|(endpoint, ..)| timeline.endpoints[*endpoint].name.clone()).collect();
    html.selector("rank", &choice, !few);
    for (endpoint, credits, granted) in &drawn {
        let name = &timeline.endpoints[*endpoint].name;
        html.begin_choice("rank", name);
        html.heading(3, &format!("Rank {name}"));
        html.begin_row();
        peers(html, timeline, few, PeerQuantity::Credits, credits);
        peers(html, timeline, few, PeerQuantity::Slots, granted);
        html.end_block();
        let (demand, idle) = (timeline.demand_at(*endpoint), timeline.idle_at(*endpoint));
        if !demand.is_empty() {
            html.begin_row();
            peers(html, timeline, few, PeerQuantity::Demand, &demand);
            peers(html, timeline, few, PeerQuantity::Idle, &idle);
            html.end_block();
        }
        html.end_block();
    }
}

/// The values that a figure of a rank's peers shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PeerQuantity {
    /// Credits of the rank at its peers.
    Credits,
    /// Slots of the peers in the rank's mailbox.
    Slots,
    /// Slots that the peers want beyond those.
    Demand,
    /// Of the slots of the peers, those for which they have told no use.
    Idle,
}

/// Draws the peers of a rank: few as lines in the colours of their ranks, many as a band and a heat map.
fn peers(html: &mut Html, timeline: &Timeline, few: bool, quantity: PeerQuantity, peers: &[PeerSeries]) {
    let caption = match quantity {
        PeerQuantity::Credits => "credits at its peers",
        PeerQuantity::Slots => "slots of its mailbox, by sender",
        PeerQuantity::Demand => "demand for its slots, by sender",
        PeerQuantity::Idle => "idle slots (guaranteed, prefetched), by sender",
    };
    if peers.is_empty() {
        html.figure(&format!("{caption}: none"), "");
        return;
    }
    if few {
        let colour = |peer: &PeerSeries| COLOURS[peer.endpoint % COLOURS.len()];
        let lines: Vec<_> =
            peers.iter().map(|peer| Line { values: &peer.slots, colour: colour(peer) }).collect();
        html.figure(caption, &figures::lines(HALF, timeline.span_s, &lines, None, Unit::Count("slots")));
        return;
    }
    html.begin_column();
    let series: Vec<_> = peers.iter().map(|peer| &peer.slots).collect();
    let [low, middle, high] = spread(&series);
    let line = Line { values: &middle, colour: COLOURS[0] };
    let band = figures::lines(HALF, timeline.span_s, &[line], Some((&low, &high)), Unit::Count("slots"));
    html.figure(&format!("{caption}: median and range of {}", peers.len()), &band);
    let rows: Vec<_> = peers.iter().map(|peer| timeline.endpoints[peer.endpoint].name.clone()).collect();
    let top = figures::max_value(series.iter().map(|values| values.as_slice()));
    // A cell shows the maximum of what it merges. For credits the minimum matters. So the map shows `top - credits`.
    let shown = |slots: f64| if quantity == PeerQuantity::Credits { top - slots } else { slots };
    let values: Vec<Series> =
        series.iter().map(|slots| slots.iter().map(|slots| shown(*slots)).collect()).collect();
    if figures::max_value(values.iter().map(Vec::as_slice)) == 0.0 {
        html.figure(&format!("each peer: {top:.0} all the time"), "");
        html.end_block();
        return;
    }
    let (colour, scale) = match quantity {
        PeerQuantity::Credits => (HOT, format!("each peer; dark: no credits, white: {top:.0} credits")),
        PeerQuantity::Slots | PeerQuantity::Demand | PeerQuantity::Idle => {
            (COLD, format!("each peer; dark: {top:.0} slots, white: none"))
        }
    };
    let columns = Columns::Time(timeline.span_s);
    let heat = HeatMap { rows: &rows, row_title: "peer", columns, values: &values, top, colour };
    html.figure(&scale, &figures::heat_map(HALF.0, &heat));
    html.end_block();
}

fn memory(html: &mut Html, timeline: &Timeline) {
    html.heading(2, "Memory of each rank over time");
    if timeline.endpoints.len() <= MAX_LINES {
        legend(html, names(timeline).iter().map(|name| format!("rank {name}")));
    } else {
        html.paragraph("Line: the median of all ranks. Band: from minimum to maximum.");
    }
    html.begin_row();
    for (index, (what, is_bytes)) in MEMORY.into_iter().enumerate() {
        let series: Vec<_> = timeline.endpoints.iter().map(|endpoint| &endpoint.memory[index]).collect();
        if series.iter().all(|values| values.iter().all(|value| value.is_nan())) {
            html.figure(&format!("{what}: not sampled"), "");
            continue;
        }
        let unit = if is_bytes { Unit::Bytes } else { Unit::Count("messages") };
        let peak = figures::max_value(series.iter().map(|values| values.as_slice()));
        let peak = if is_bytes { bytes(peak as u64) } else { count(peak as u64) };
        over_time(html, &format!("{what}: at most {peak}"), HALF, timeline, &series, unit);
    }
    html.end_block();
}

fn packets(html: &mut Html, timeline: &Timeline) {
    html.heading(2, "Packets by kind");
    let parts: Vec<Vec<f64>> = timeline
        .endpoints
        .iter()
        .map(|endpoint| endpoint.counters.packets_by_kind().map(|number| number as f64).to_vec())
        .collect();
    let mut total = [0u64; PACKET_KINDS.len()];
    for endpoint in &timeline.endpoints {
        for (sum, number) in total.iter_mut().zip(endpoint.counters.packets_by_kind()) {
            *sum = sum.saturating_add(number);
        }
    }
    if total.iter().all(|number| *number == 0) {
        html.paragraph("No rank sent a packet.");
        return;
    }
    legend(html, PACKET_KINDS.map(String::from));
    html.figure(
        "Packets that each rank sent.",
        &figures::bars(WIDE, &names(timeline), ("rank", "packets sent"), &parts),
    );
    html.table(&PACKET_KINDS, [total.map(count).to_vec()]);
}

fn ranks(html: &mut Html, timeline: &Timeline, job: &Job) {
    html.heading(2, "Ranks");
    let heading = [
        "rank",
        "messages sent",
        "bytes sent",
        "messages received",
        "bytes received",
        "packets sent",
        "waited for credit",
        "unexpected messages, peak",
        "unexpected bytes, peak",
        "process memory, peak",
    ];
    let process_bytes = |name: &str| {
        let endpoints = timeline.endpoints.iter().filter(|endpoint| endpoint.name == name);
        endpoints
            .map(|endpoint| figures::max_value([endpoint.memory[PROCESS].as_slice()]))
            .fold(0.0, f64::max)
    };
    let rows = job.ranks.iter().map(|rank| {
        let counters = &rank.share.counters;
        let name = rank.short_name();
        let process = bytes(process_bytes(&name) as u64);
        vec![
            name,
            count(counters.messages_sent),
            bytes(counters.bytes_sent),
            count(counters.messages_received),
            bytes(counters.bytes_received),
            count(counters.packets_sent),
            time_ns(counters.stalled_ns as f64),
            count(counters.peak_unexpected_messages),
            bytes(counters.peak_unexpected_bytes),
            process,
        ]
    });
    rank_table(html, &heading, rows.collect());
}

/// The numbers of the page, as JSON.
fn data(timeline: &Timeline, job: &Job, command: &[String]) -> Value {
    let rounded = |series: &Series| {
        let number =
            |value: &f64| if value.is_nan() { Value::Null } else { json!((value * 1e4).round() / 1e4) };
        series.iter().map(number).collect::<Vec<_>>()
    };
    // With many ranks all series together are megabytes. The data have the counters of all endpoints, and the series of
    // the busiest ones.
    let shown = timeline.busiest(MAX_SHOWN);
    let endpoints: Vec<_> = timeline
        .endpoints
        .iter()
        .enumerate()
        .map(|(index, endpoint)| {
            let kinds = PACKET_KINDS.iter().zip(endpoint.counters.packets_by_kind());
            let mut entry = json!({
                "name": endpoint.name,
                "packets_by_kind": kinds.map(|(kind, number)| ((*kind).to_owned(), number.into())).collect::<serde_json::Map<_, _>>(),
                "stalled_ns": endpoint.counters.stalled_ns,
            });
            if shown.contains(&index) {
                let memory = MEMORY.iter().zip(&endpoint.memory);
                entry["peers_waited_for"] = rounded(&endpoint.waiting).into();
                entry["memory"] = memory.map(|((what, _), series)| ((*what).to_owned(), rounded(series).into())).collect::<serde_json::Map<_, _>>().into();
            }
            entry
        })
        .collect();
    let pairs = timeline.pairs.iter().take(MAX_PAIRS).map(|pair| {
        let name = |endpoint: usize| &timeline.endpoints[endpoint].name;
        json!({
            "sender": name(pair.from), "receiver": name(pair.to), "stalled_ns": pair.stalled_ns, "slots": pair.slots,
            "round_trip_us": pair.round_trip_us, "sent_again": pair.sent_again,
        })
    });
    json!({
        "schema": "weir-page-1",
        "command": command,
        "span_s": timeline.span_s,
        "times_s": (0..timeline.bins).map(|bin| (timeline.time_s(bin) * 1e6).round() / 1e6).collect::<Vec<_>>(),
        "job": job,
        "endpoints": endpoints,
        "pairs": pairs.collect::<Vec<_>>(),
        "pairs_in_all": timeline.pairs.len(),
    })
}

#[cfg(test)]
mod tests;
