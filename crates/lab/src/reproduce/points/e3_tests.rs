//! Tests of the points of E3: they hold with the published numbers, and a deviation breaks those that are about it.

use super::e3_control::Control;
use super::e3_switch::SWITCH;
use super::e3_worlds::{GEMINI, QDR, is_on};
use super::tests::plan_of;
use super::*;
use crate::sim::blank::record;
use weir_sim::plan::{Plan, Record};

/// The points of an experiment with all worlds at full size. `speed`: messages or calls per time, in any unit.
fn judged(id: &str, speed: &dyn Fn(&Settings) -> f64) -> Vec<Point> {
    let experiment = CONGESTION.iter().find(|it| it.id == id).expect("an experiment");
    let plans: Vec<Plan> = experiment.plans.iter().map(|name| plan_of(name, false)).collect();
    let worlds = plans.iter().flat_map(|plan| &plan.worlds);
    let records: Vec<Record> = worlds
        .map(|setup| {
            let it = &setup.settings;
            let messages =
                ["active_ranks", "window_messages"].map(|name| it.workload_number(name).unwrap_or(1.0));
            let mut record = record(setup.key(), it.clone(), 1000.0 * messages[0] * messages[1] / speed(it));
            if is_on(it, SWITCH) {
                // Half of the losses and a third of the tail for as many tokens as ours here.
                let is_relieved = it.network_value("tokens") == Some(8.0) && speed(it) > 1.0;
                (record.drops, record.latency_p99_ns) = if is_relieved { (50, 100) } else { (100, 300) };
            }
            record
        })
        .collect();
    let evidence = Evidence::new(records.iter().collect(), &[]);
    (experiment.points)(&evidence)
}

fn by_ranks(it: &Settings) -> f64 {
    let active = it.workload_number("active_ranks").expect("of windows");
    let (busy, falls) = if is_on(it, QDR.0) { (20.0, 0.5 / 12.0) } else { (40.0, 0.1 / 8.0) };
    active.min(busy) / busy * (1.0 - falls * (active - busy).max(0.0))
}

fn by_messages(it: &Settings) -> f64 {
    let number = |name| it.workload_number(name).expect("of windows");
    let (active, window) = (number("active_ranks"), number("window_messages"));
    let best = match active as u32 {
        1 => 40.0,
        4 | 12 => 8.0,
        8 | 24 => 4.0,
        16 => 2.0,
        _ if is_on(it, QDR.0) => 1.0,
        _ => 2.0,
    };
    match () {
        () if window <= best => {
            if is_on(it, GEMINI.0) && active == GEMINI.1 {
                1.0
            } else {
                window / best
            }
        }
        () if window <= 2.0 * best => 0.5,
        () => {
            if is_on(it, QDR.0) {
                0.25
            } else {
                0.5
            }
        }
    }
}

fn controlled(it: &Settings) -> f64 {
    let is_blocking = it.workload_number("window_messages") == Some(1.0);
    let servers = it.network_value("servers").unwrap_or(0.0);
    match Control::of(it) {
        Control::None => 1.0,
        Control::Rate => {
            if is_blocking {
                1.0
            } else {
                2.0
            }
        }
        Control::Token if is_on(it, GEMINI.0) => 5.0,
        Control::Token => {
            if is_blocking {
                1.5
            } else {
                3.0
            }
        }
        Control::Proxy => {
            if servers == if is_blocking { 16.0 } else { 2.0 } {
                1.6
            } else {
                1.1
            }
        }
        Control::ProxyToken => 1.5,
    }
}

fn costly(it: &Settings) -> f64 {
    match Control::of(it) {
        Control::None => 1.0,
        Control::ProxyToken => 0.985,
        _ => 0.95,
    }
}

fn exchanged(it: &Settings) -> f64 {
    match (Control::of(it), it.workload["alltoall"]["algorithm"].as_str()) {
        (Control::None, Some("linear")) => 1.0,
        (Control::None, _) => 0.8,
        (Control::Token, _) => 4.0,
        (Control::Rate, _) => 1.2,
        _ if it.ranks == 64 => 1.9,
        _ => 2.7,
    }
}

fn updated(it: &Settings) -> f64 {
    if it.workload_name() == "nas" {
        return match it.workload["nas"]["kernel"].as_str() {
            _ if Control::of(it) == Control::None => 1.0,
            Some("is") => 1.17,
            Some("cg" | "ft") => 1.1,
            _ => 1.02,
        };
    }
    let is_blocking = it.workload_number("window_messages") == Some(1.0);
    match (Control::of(it), is_blocking) {
        (Control::None, true) => 1.0,
        (Control::None, false) => 1.4,
        (_, true) => 1.57,
        (_, false) => 1.6,
    }
}

/// Tokens take away losses, and throughput stays.
fn switched(it: &Settings) -> f64 {
    if it.network_value("tokens") == Some(8.0) { 1.01 } else { 1.0 }
}

type Speed = fn(&Settings) -> f64;

const PUBLISHED: [(&str, Speed); 7] = [
    ("E3.1", by_ranks),
    ("E3.2", by_messages),
    ("E3.3", controlled),
    ("E3.4", costly),
    ("E3.5", exchanged),
    ("E3.6", updated),
    ("E3.7", switched),
];

#[test]
fn as_published_every_point_holds() {
    assert_eq!(PUBLISHED.map(|it| it.0).to_vec(), CONGESTION.iter().map(|it| it.id).collect::<Vec<_>>());
    for (id, speed) in PUBLISHED {
        for point in judged(id, &speed).iter() {
            assert_eq!(point.verdict, Verdict::Holds, "{id}: {}: {}", point.text, point.ours);
        }
    }
}

#[test]
fn a_deviation_breaks_the_points_that_are_about_it() {
    let fails = |id: &str, speed: &dyn Fn(&Settings) -> f64| {
        let points = judged(id, speed).into_iter();
        points.filter(|it| it.verdict == Verdict::DoesNotHold).map(|it| it.id).collect::<Vec<_>>()
    };
    let active = |it: &Settings| it.workload_number("active_ranks").unwrap_or(0.0);
    let flat = |it: &Settings| by_ranks(it).max(if active(it) >= 20.0 { 1.0 } else { 0.0 });
    let all = ["infiniband.peak", "infiniband.fall", "infiniband.half", "gemini.peak"];
    assert_eq!(fails("E3.1", &flat), all);
    let plenty = |it: &Settings| it.workload_number("window_messages").unwrap_or(0.0);
    let messages = fails("E3.2", &plenty);
    for id in ["infiniband.all.best", "infiniband.all.two", "infiniband.all.many", "infiniband.one.best"] {
        assert!(messages.iter().any(|failed| failed == id), "{id}: {messages:?}");
    }
    let none = fails("E3.3", &|_| 1.0);
    for id in ["infiniband.rate.most", "infiniband.token.most", "gemini.token.most", "infiniband.proxy-token"]
    {
        assert!(none.iter().any(|failed| failed == id), "{id}: {none:?}");
    }
    assert_eq!(
        fails("E3.3", &|it| if Control::of(it) == Control::Rate { 2.0 } else { controlled(it) }),
        ["infiniband.rate.blocking"]
    );
    let slow = |it: &Settings| if Control::of(it) == Control::None { 1.0 } else { 0.85 };
    assert_eq!(fails("E3.4", &slow).len(), 4);
    assert_eq!(
        fails("E3.5", &|_| 1.0),
        ["infiniband.two-nodes", "infiniband.1024", "gemini.768", "infiniband.rate"]
    );
    let proxy = |it: &Settings| if Control::of(it) == Control::ProxyToken { 4.5 } else { exchanged(it) };
    assert!(fails("E3.5", &proxy).contains(&String::from("gemini.order")));
    let overlapped = |it: &Settings| if updated(it) == 1.4 { 2.0 } else { updated(it) };
    assert_eq!(fails("E3.6", &overlapped), ["overlapped.plain", "inversion"]);
    let multigrid = |it: &Settings| match it.workload["nas"]["kernel"].as_str() {
        Some("mg") if Control::of(it) != Control::None => 1.15,
        _ => updated(it),
    };
    assert_eq!(fails("E3.6", &multigrid), ["nas.intensive"]);
    let tokens = ["incast.token", "incast.proxy-token", "alltoall.token", "alltoall.proxy-token"];
    assert_eq!(fails("E3.7", &|_| 1.0), tokens, "as many losses as without control");
    assert_eq!(fails("E3.7", &|it| if switched(it) > 1.0 { 1.01 } else { 1.2 }), tokens, "slower");
}

#[test]
fn nothing_was_run_so_nothing_holds() {
    let nothing = Evidence::new(Vec::new(), &[]);
    for experiment in CONGESTION {
        for point in (experiment.points)(&nothing) {
            assert_eq!(point.verdict, Verdict::NotEvaluated, "{}: {}", experiment.id, point.text);
        }
        for chart in (experiment.figures)(&nothing) {
            assert!(chart.is_empty() && chart.shows_published(), "{}", chart.title);
        }
    }
}
