//! Shows what two settings of the proxy gain and cost: combining messages to one host (E3.8) and draining a queue before
//! the next (E3.9). E3.10 shows control together with credits on demand. Luo et al., ICS 2012, leave all three open, so no
//! row has a verdict. The adapters are those of E3.3 to E3.6.

use super::e3_worlds::{GEMINI, QDR, is_on, spread_words, throughput, window_ns};
use super::{Experiment, Point};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence};
use weir_sim::plan::{Record, SchemeName, Settings};

pub const COMBINING: Experiment = Experiment {
    id: "E3.8",
    title: "Node congestion: the proxy combines messages to one host",
    source: "Luo et al., ICS 2012, leave it open; the worlds are ours",
    plans: &["e3.8", "e3.8-alltoall"],
    points: |evidence| COMBINES.rows(evidence),
    figures: |evidence| COMBINES.figures(evidence),
};
pub const DRAINING: Experiment = Experiment {
    id: "E3.9",
    title: "Node congestion: the proxy drains a queue before the next",
    source: "Luo et al., ICS 2012, leave it open; the worlds are ours",
    plans: &["e3.9", "e3.9-alltoall"],
    points: |evidence| DRAINS.rows(evidence),
    figures: |evidence| DRAINS.figures(evidence),
};
pub const WITH_CREDITS: Experiment = Experiment {
    id: "E3.10",
    title: "Node congestion: control together with credits on demand",
    source: "Luo et al., ICS 2012, have no credits; the worlds are ours",
    plans: &["e3.10"],
    points: |evidence| CREDITS.rows(evidence),
    figures: |evidence| CREDITS.figures(evidence),
};

/// A setting, compared with the same worlds without it.
struct Compared {
    /// Its value in a world; 0: without it.
    value: fn(&Settings) -> f64,
    /// The value in words.
    words: fn(f64) -> String,
    chart: &'static str,
    /// The axis of the chart.
    axis: &'static str,
}

const COMBINES: Compared = Compared {
    value: |it| it.network_value("combine_bytes").unwrap_or(0.0),
    words: |bytes| match bytes {
        0.0 => String::from("each alone"),
        bytes => format!("up to {bytes} B together"),
    },
    chart: "combining",
    axis: "combined up to, bytes",
};
const DRAINS: Compared = Compared {
    value: |it| it.network_value("drains").unwrap_or(0.0),
    words: |drains| String::from(if drains > 0.0 { "draining" } else { "in turn" }),
    chart: "draining",
    axis: "draining",
};
const CREDITS: Compared = Compared {
    value: |it| if it.scheme == SchemeName::Demand { it.slots_per_peer.into() } else { 0.0 },
    words: |slots| match slots {
        0.0 => String::from("no flow control"),
        slots => format!("{slots} slots"),
    },
    chart: "credits on demand",
    axis: "slots for each peer",
};

/// What the worlds of a group have in common: all but the setting.
#[derive(Clone, Debug, PartialEq)]
struct Traffic {
    /// The network, with the number of its hosts.
    place: String,
    workload: String,
    control: String,
}

impl Traffic {
    fn of(it: &Settings, compared: &Compared) -> Traffic {
        let [(qdr, qdr_ranks), gemini] = [QDR, GEMINI];
        let (name, ranks) = if is_on(it, qdr) { ("InfiniBand", qdr_ranks) } else { ("Gemini", gemini.1) };
        let number = |name: &str| it.workload_number(name).unwrap_or(0.0);
        let bytes = number("message_bytes");
        let workload = match it.workload_name() {
            "windows" => format!("RandomAccess of {bytes} B, {} outstanding", number("window_messages")),
            name => {
                let algorithm = it.workload[name]["algorithm"].as_str().unwrap_or("");
                format!("{} of {bytes} B, {algorithm}", name.replace("alltoall", "all-to-all"))
            }
        };
        let value = |key: &str| it.network_value(key).filter(|value| *value > 0.0);
        let mut control = vec![match value("servers") {
            Some(servers) => format!("{servers} servers"),
            None => String::from("no proxy"),
        }];
        control.extend(value("rate_delay_ns").map(|delay_ns| format!("a delay of {delay_ns} ns")));
        control.extend(value("tokens").map(|tokens| format!("{tokens} tokens")));
        control.extend(value("serve_ns").map(|serve_ns| format!("{serve_ns} ns for a message")));
        let combines = value("combine_bytes").filter(|&bytes| (compared.value)(it) != bytes);
        control.extend(combines.map(COMBINES.words));
        Traffic {
            place: format!("{name}, {:.0} hosts", f64::from(it.ranks) / ranks),
            workload,
            control: control.join(", "),
        }
    }

    fn words(&self) -> String {
        format!("{}, {}, {}", self.place, self.workload, self.control)
    }
}

/// The worlds of a group: the value of the setting with each, in order. The first is without it.
struct Group<'a> {
    traffic: Traffic,
    worlds: Vec<(f64, &'a Record)>,
}

impl Group<'_> {
    /// Throughput of a world, of that without the setting.
    fn gain(&self, record: &Record) -> f64 {
        window_ns(self.worlds[0].1) / window_ns(record)
    }

    /// The 99th percentile of the latency, likewise.
    fn tail(&self, record: &Record) -> f64 {
        let tail = |record: &Record| record.latency_p99_ns.max(1) as f64;
        tail(record) / tail(self.worlds[0].1)
    }
}

impl Compared {
    /// The worlds in groups, in their order.
    fn groups<'a>(&self, evidence: &Evidence<'a>) -> Vec<Group<'a>> {
        let mut groups: Vec<Group<'a>> = Vec::new();
        for &record in &evidence.records {
            let it = &record.settings;
            let value = (self.value)(it);
            let traffic = Traffic::of(it, self);
            match groups.iter_mut().find(|group| group.traffic == traffic) {
                Some(group) => group.worlds.push((value, record)),
                None => groups.push(Group { traffic, worlds: vec![(value, record)] }),
            }
        }
        for group in &mut groups {
            group.worlds.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        groups
    }

    /// A row for each group: throughput, tails and fairness of its worlds. A ratio is to the first of them.
    fn rows(&self, evidence: &Evidence<'_>) -> Vec<Point> {
        let row = |group: &Group<'_>| {
            let is_of_windows = group.worlds[0].1.settings.workload_name() == "windows";
            let words = |&(value, record): &(f64, &Record)| {
                let speed = match is_of_windows {
                    true => format!("{:.2}/us", throughput(record)?),
                    false => format!("{:.0} us", window_ns(record) / 1000.0),
                };
                let spread = spread_words(record)?;
                Some(match (group.worlds.len(), value) {
                    (1, _) => format!("{speed}, {spread}"),
                    (_, 0.0) => format!("{}: {speed}, {spread}", (self.words)(value)),
                    _ => format!("{}: {speed} ({:.2}x), {spread}", (self.words)(value), group.gain(record)),
                })
            };
            let worlds: Option<Vec<String>> = group.worlds.iter().map(words).collect();
            let text = format!(
                "{}: {}, latency of messages (50th, 99th percentile), Jain's index of the ranks' times",
                group.traffic.words(),
                if is_of_windows { "throughput of a host" } else { "time of a call" },
            );
            Some(Point::beside(text, worlds?.join("; ")))
        };
        self.groups(evidence).iter().filter_map(row).collect()
    }

    fn figures(&self, evidence: &Evidence<'_>) -> Vec<Chart> {
        let groups = self.groups(evidence);
        let of = |title: String, unit: &str, value: &dyn Fn(&Group<'_>, &Record) -> f64| {
            let mut chart = Chart::new(title, self.axis, unit);
            for group in groups.iter().filter(|group| group.worlds.len() > 1) {
                let curve = group.worlds.iter().map(|&(setting, record)| (setting, value(group, record)));
                chart.curve(group.traffic.words(), Curve(curve.collect()));
            }
            chart.mark(Mark::Words { text: "published: left open" });
            chart
        };
        vec![
            of(format!("Throughput with {} against without", self.chart), "times as much", &|group, it| {
                group.gain(it)
            }),
            of(
                format!("99th percentile of the latency with {} against without", self.chart),
                "times as long",
                &|group, it| group.tail(it),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::plan_of;
    use super::*;
    use crate::reproduce::points::{EXTENSIONS, Verdict};
    use crate::sim::blank::record;
    use weir_sim::plan::record::Measure;

    /// The records of an experiment, with windows and calls of this length. Unit: ns.
    fn records(experiment: &Experiment, quick: bool, time_ns: impl Fn(&Settings) -> f64) -> Vec<Record> {
        let plans = experiment.plans.iter().map(|name| plan_of(name, quick));
        let worlds = plans.flat_map(|plan| {
            assert_eq!(plan.experiment, experiment.id);
            plan.worlds
        });
        let of_ranks =
            |time: f64| Measure { count: 64, mean: time, min: time, max: time, of_rank_0: Vec::new() };
        let worlds = worlds.map(|setup| {
            let time = time_ns(&setup.settings);
            let mut record = record(setup.key(), setup.settings.clone(), time);
            let measures = [("call_ns", of_ranks(time)), ("call_ns_squared", of_ranks(time * time))];
            record.measures.extend(measures.map(|(name, measure)| (name.to_owned(), measure)));
            record
        });
        worlds.collect()
    }

    #[test]
    fn worlds_of_a_group_differ_in_one_setting() {
        for (experiment, compared) in EXTENSIONS.iter().zip([COMBINES, DRAINS, CREDITS]) {
            for quick in [false, true] {
                let records = records(experiment, quick, |_| 1000.0);
                let groups = compared.groups(&Evidence::new(records.iter().collect(), &[]));
                assert!(groups.iter().any(|group| group.worlds.len() > 1), "{}", experiment.id);
                for group in groups {
                    let values: Vec<f64> = group.worlds.iter().map(|world| world.0).collect();
                    assert_eq!(values[0], 0.0, "{:?}", group.traffic);
                    assert!(values.is_sorted_by(|one, next| one < next), "{:?}: {values:?}", group.traffic);
                }
            }
        }
    }

    #[test]
    fn rows_show_gains_and_have_no_verdict() {
        for experiment in EXTENSIONS {
            let is_set = |it: &Settings| [COMBINES, DRAINS, CREDITS].iter().any(|of| (of.value)(it) > 0.0);
            let records = records(experiment, false, |it| if is_set(it) { 1000.0 } else { 2000.0 });
            let evidence = Evidence::new(records.iter().collect(), &[]);
            let points = (experiment.points)(&evidence);
            assert!(points.iter().all(|point| point.verdict == Verdict::NotPublished), "{}", experiment.id);
            let row = |text: &str| points.iter().find(|it| it.text.starts_with(text)).expect("a row");
            let windows =
                row("InfiniBand, 2 hosts, RandomAccess of 16 B, 16 outstanding, 8 servers, 20 tokens:");
            let alltoall = row("InfiniBand, 2 hosts, all-to-all of 8 B, linear, 8 servers, 20 tokens:");
            // 32 ranks with 16 messages each.
            assert!(windows.ours.contains(": 256.00/us, 0.0 and 0.0 us, 1.000; "), "{}", windows.ours);
            assert!(windows.ours.contains(": 512.00/us (2.00x), "), "{}", windows.ours);
            assert!(alltoall.ours.contains(": 1 us (2.00x), "), "{}", alltoall.ours);
            let charts = (experiment.figures)(&evidence);
            assert!(charts.iter().all(|chart| !chart.is_empty() && chart.shows_published()));
        }
    }

    #[test]
    fn nothing_was_run_so_nothing_is_shown() {
        let nothing = Evidence::new(Vec::new(), &[]);
        for experiment in EXTENSIONS {
            assert!((experiment.points)(&nothing).is_empty());
            assert!((experiment.figures)(&nothing).iter().all(Chart::is_empty));
        }
    }
}
