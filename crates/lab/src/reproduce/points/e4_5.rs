//! Checks the published statements ("points") about experiment E4.5 against our simulation records, and draws its
//! figures: reductions of one word, of integers and of floats, host-based and on the NIC. Source: Buntinas, section
//! 4.3.

use super::e4::{EXECUTORS, HOST, NIC, fitted, near, ratio, word};
use super::{Experiment, OWN_SCHEMES, Point};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence};
use weir_sim::plan::{SchemeName, Settings};

pub const EXPERIMENT: Experiment = Experiment {
    id: "E4.5",
    title: "Programmable NIC: reduction",
    source: "Buntinas, section 4.3, Figs 4.3 to 4.8",
    plans: &["e4.5"],
    points,
    figures,
};

const LATENCY: &str = "latency_ns";
const HOST_TIME: &str = "host_ns";
const WORDS: [&str; 2] = ["integer", "float"];
/// The largest delay of the experiment. Unit: us.
const MAX_DELAY_US: f64 = 1000.0;
/// The ranks of the chain and of the flat tree.
const NODES: [f64; 2] = [2.0, 8.0];

fn delay_us(it: &Settings) -> f64 {
    it.workload_number("max_delay_ns").unwrap_or(0.0) / 1e3
}

/// What of a world is looked at.
#[derive(Clone, Copy)]
struct Which {
    tree: &'static str,
    executor: &'static str,
    word: &'static str,
    measure: &'static str,
}

impl Which {
    fn holds(self, it: &Settings) -> bool {
        let Which { tree, executor, word: of_word, measure } = self;
        // For the latency the last rank is late, and for the time in the call it is not.
        let is_of_latency = it.workload_number("last_delay_ns").unwrap_or(0.0) > 0.0;
        let is_word = word(it, "word") == of_word && is_of_latency == (measure == LATENCY);
        it.scheme == SchemeName::Unlimited
            && is_word
            && word(it, "tree") == tree
            && word(it, "executor") == executor
    }

    /// Over the number of nodes, with this largest delay. Unit: us.
    fn by_ranks(self, evidence: &Evidence<'_>, of_delay_us: f64) -> Curve {
        evidence.curve(
            |it| self.holds(it) && delay_us(it) == of_delay_us,
            |it| Some(it.ranks.into()),
            |record| record.measures.get(self.measure).map(|measure| measure.mean / 1e3),
        )
    }

    /// Over the largest delay, with 16 nodes. Unit: us.
    fn by_delay(self, evidence: &Evidence<'_>) -> Curve {
        evidence.curve(
            |it| self.holds(it) && it.ranks == 16,
            |it| Some(delay_us(it)),
            |record| record.measures.get(self.measure).map(|measure| measure.mean / 1e3),
        )
    }
}

fn both(tree: &'static str, of_word: &'static str, measure: &'static str) -> [Which; 2] {
    [HOST, NIC].map(|executor| Which { tree, executor, word: of_word, measure })
}

/// Host time divided by NIC time, over nodes.
fn factor(evidence: &Evidence<'_>, which: [Which; 2], of_delay_us: f64) -> Curve {
    let [host, nic] = which.map(|which| which.by_ranks(evidence, of_delay_us));
    ratio(&host, &nic)
}

/// Host time less NIC time, over nodes. Unit: us.
fn gain(evidence: &Evidence<'_>, tree: &'static str, of_word: &'static str) -> Curve {
    let [host, nic] = both(tree, of_word, LATENCY).map(|which| which.by_ranks(evidence, 0.0));
    Curve(host.0.iter().filter_map(|&(x, host)| Some((x, host - nic.at(x)?))).collect())
}

/// The growth of a curve for each node, from the first number of nodes to the last.
fn slope(curve: &Curve) -> Option<f64> {
    let [from, to] = NODES;
    Some((curve.at(to)? - curve.at(from)?) / (to - from))
}

fn points(evidence: &Evidence<'_>) -> Vec<Point> {
    let [chain, float_chain] = WORDS.map(|of_word| slope(&gain(evidence, "chain", of_word)));
    let two_nodes = |of_word| gain(evidence, "flat", of_word).at(NODES[0]).map(|gain| -gain);
    let mut points: Vec<Point> = [
        fitted("chain, integers: the host's latency grows faster, for each level", 3.70, chain, " us"),
        fitted("chain, floats: the host's latency grows faster, for each level", 2.64, float_chain, " us"),
        fitted("depth 1, integers: the host is faster by", 2.19, two_nodes("integer"), " us"),
    ]
    .into_iter()
    .flatten()
    .collect();
    for (of_word, latency, time, fewer) in
        [("integer", 1.19, 2.7, &[2.0][..]), ("float", 1.06, 2.3, &[2.0, 4.0])]
    {
        let of_latency = factor(evidence, both("binomial", of_word, LATENCY), 0.0);
        let of_time = factor(evidence, both("binomial", of_word, HOST_TIME), 0.0);
        let late = factor(evidence, both("binomial", of_word, HOST_TIME), MAX_DELAY_US);
        let text = |what: &str| format!("16 nodes, {of_word}: {what}, host / NIC");
        points.extend([
            near(&format!("latency.{of_word}"), &text("latency"), latency, of_latency.at(16.0), ""),
            better_from(of_word, &of_latency, fewer),
            near(
                &format!("host-time.{of_word}"),
                &text("time of a rank in the call"),
                time,
                of_time.at(16.0),
                "",
            ),
            near(
                &format!("skew.{of_word}"),
                &text("the same with delays of up to 1,000 us"),
                4.5,
                late.at(16.0),
                "",
            ),
            grows(
                &format!("host-time.{of_word}.grows"),
                &format!("{of_word}: the factor of the time in the call"),
                &of_time,
            ),
            grows(
                &format!("skew.{of_word}.grows"),
                &format!("{of_word}: the same with delays of up to 1,000 us"),
                &late,
            ),
        ]);
    }
    points.push(near(
        "flat.float",
        "depth 1, floats: the host is faster by",
        3.63,
        two_nodes("float"),
        " us",
    ));
    let [host, nic] = both("binomial", "integer", HOST_TIME).map(|which| which.by_delay(evidence));
    let early = ratio(&host, &nic).at(200.0);
    let text = "16 nodes, integer: time of a rank in the call with delays of up to 200 us, host / NIC";
    points.push(near("skew.200", text, 3.7, early, ""));
    for (scheme, name) in OWN_SCHEMES {
        let time = |executor| {
            evidence
                .curve(
                    |it| {
                        it.scheme == scheme
                            && word(it, "executor") == executor
                            && word(it, "word") == "integer"
                    },
                    |it| Some(delay_us(it)),
                    |record| record.measures.get(HOST_TIME).map(|measure| measure.mean / 1e3),
                )
                .at(MAX_DELAY_US)
        };
        if let (Some(host), Some(nic)) = (time(HOST), time(NIC)) {
            let text = format!(
                "16 nodes, integer, delays of up to 1,000 us with {name}: time of a rank in the call"
            );
            points.push(Point::beside(text, format!("{host:.2} us host, {nic:.2} us NIC")));
        }
    }
    points
}

/// The NIC is faster, except with so few nodes.
fn better_from(of_word: &str, factor: &Curve, fewer: &[f64]) -> Point {
    let all = [2.0, 4.0, 8.0, 16.0];
    let values: Option<Vec<(f64, f64)>> = all.iter().map(|&nodes| Some((nodes, factor.at(nodes)?))).collect();
    let found = values.map(|values| {
        let words: Vec<String> = values.iter().map(|(_, factor)| format!("{factor:.2}")).collect();
        (words.join(", "), values.iter().all(|(nodes, factor)| (*factor > 1.0) != fewer.contains(nodes)))
    });
    let words: Vec<String> = fewer.iter().map(f64::to_string).collect();
    let text = format!(
        "{of_word}, 2, 4, 8, 16 nodes: the NIC has the lower latency, except with {}",
        words.join(" and ")
    );
    Point::of(format!("latency.{of_word}.from"), text, "lower", found)
}

/// A factor grows from 2 nodes to 4, 8, 16.
fn grows(id: &str, text: &str, factor: &Curve) -> Point {
    let values: Option<Vec<f64>> = [2.0, 4.0, 8.0, 16.0].iter().map(|nodes| factor.at(*nodes)).collect();
    let found = values.map(|values| {
        let words: Vec<String> = values.iter().map(|factor| format!("{factor:.2}")).collect();
        (words.join(", "), values.is_sorted_by(|one, other| one < other))
    });
    Point::of(id, format!("{text} grows with each doubling of the nodes"), "grows", found)
}

fn figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let mut latency = Chart::new("Latency of a reduction", "nodes", "us");
    let mut time = Chart::new("Time of a rank in a reduction, 16 nodes", "us of largest delay", "us");
    for ((executor, who), of_word) in
        EXECUTORS.into_iter().flat_map(|executor| WORDS.map(|of_word| (executor, of_word)))
    {
        let which = Which { tree: "binomial", executor, word: of_word, measure: LATENCY };
        latency.curve(format!("{who}, {of_word}"), which.by_ranks(evidence, 0.0));
        let which = Which { measure: HOST_TIME, ..which };
        time.curve(format!("{who}, {of_word}"), which.by_delay(evidence));
    }
    latency
        .mark(Mark::Words { text: "published: 1.19 (integer) and 1.06 (float) times faster with 16 nodes" });
    time.mark(Mark::Words { text: "published: up to 4.5 times less" });
    vec![latency, time]
}
