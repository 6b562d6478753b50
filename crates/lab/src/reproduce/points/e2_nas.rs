//! Checks the published statements ("points") about experiments E2.5 and E2.6 against our simulation records, and draws
//! their figures. NAS kernels run on InfiniBand with 100, 10 or 1 buffers for each connection. E2.5 compares the times
//! with RNR hardware, static credits (connection form) and adaptive backlog. E2.6 compares the explicit credit messages
//! of static credits and the buffers of adaptive backlog with published tables. Figures also show weir's own schemes.
//! Source: Liu & Panda, slides.

use super::{Experiment, OWN_SCHEMES, Point, VISIBLE, percent};
use crate::reproduce::chart::{Chart, Mark};
use crate::reproduce::evidence::{Curve, Evidence, mean, median};
use weir_output::quantity::count;
use weir_sim::plan::{Record, SchemeName, Settings};

pub const KERNELS: Experiment = Experiment {
    id: "E2.5",
    title: "InfiniBand: NAS kernels, pre-post 100 and 1",
    source: "Liu & Panda, slides, NAS benchmarks",
    plans: &["e2.5"],
    points: kernel_points,
    figures: kernel_figures,
};
pub const BUFFERS: Experiment = Experiment {
    id: "E2.6",
    title: "InfiniBand: explicit credit messages and buffers per connection",
    source: "Liu & Panda, slides, the tables of ECMs and of maxima",
    plans: &["e2.5"],
    points: buffer_points,
    figures: buffer_figures,
};

/// Kernel; ECMs and messages with static credits; most buffers of a connection with the adaptive scheme.
const PUBLISHED: [(&str, u64, u64, u64); 7] = [
    ("is", 0, 383, 4),
    ("ft", 0, 193, 4),
    ("lu", 9002, 48_805, 63),
    ("cg", 0, 4202, 3),
    ("mg", 1, 1595, 6),
    ("bt", 0, 28_913, 7),
    ("sp", 0, 14_531, 7),
];
/// Most buffers of a connection with LU. Source: slides, table of maxima.
const LU_BUFFERS: u64 = PUBLISHED[2].3;
const SCHEMES: [(SchemeName, &str); 3] = [
    (SchemeName::Hardware, "hardware"),
    (SchemeName::StaticConnection, "static"),
    (SchemeName::Adaptive, "adaptive"),
];
/// Meaning of "comparable". Unit: percent.
const COMPARABLE: f64 = 5.0;
/// Number of pre-posted buffers in the table of ECMs, which is not published.
const ECM_PREPOST: u32 = 10;
/// All values that run.
const PREPOSTS: [u32; 3] = [1, ECM_PREPOST, 100];
/// Meaning of "far above the rest": at least this multiple of the next.
const FAR_ABOVE: f64 = 3.0;

fn kernel(it: &Settings) -> &str {
    it.workload["nas"]["kernel"].as_str().unwrap_or("")
}

/// Buffers of a connection at the start.
fn preposted(it: &Settings) -> u32 {
    if it.scheme == SchemeName::Adaptive { it.start_slots } else { it.slots_per_peer }
}

/// A number of the worlds that `which` selects, the median over seeds.
fn of_worlds(
    evidence: &Evidence<'_>,
    which: impl Fn(&Settings) -> bool,
    value: impl Fn(&Record) -> f64,
) -> Option<f64> {
    let records = evidence.records.iter().filter(|record| which(&record.settings));
    median(&records.map(|record| value(record)).collect::<Vec<_>>())
}

/// A number of the worlds of a kernel with so many buffers at the start.
fn of(
    evidence: &Evidence<'_>,
    scheme: SchemeName,
    name: &str,
    buffers: u32,
    value: fn(&Record) -> f64,
) -> Option<f64> {
    let is = |it: &Settings| it.scheme == scheme && kernel(it) == name && preposted(it) == buffers;
    of_worlds(evidence, is, value)
}

/// A number of the worlds of one of weir's own schemes with weir's default settings.
fn of_own(evidence: &Evidence<'_>, scheme: SchemeName, name: &str, value: fn(&Record) -> f64) -> Option<f64> {
    of_worlds(evidence, |it| it.scheme == scheme && kernel(it) == name, value)
}

fn time_ns(record: &Record) -> f64 {
    record.time_ns
}

fn peak_buffers(record: &Record) -> f64 {
    record.peak_quota_slots as f64
}

/// Explicit credit messages for each message. Unit: percent.
fn ecms(record: &Record) -> f64 {
    100.0 * record.credit_packets as f64 / record.messages as f64
}

/// Times of the schemes compared with the fastest one. Unit: percent above it.
fn behind(evidence: &Evidence<'_>, name: &str, buffers: u32) -> Option<[f64; 3]> {
    let times = SCHEMES.map(|(scheme, _)| of(evidence, scheme, name, buffers, time_ns));
    let [Some(hardware), Some(fixed), Some(adaptive)] = times else { return None };
    let least = hardware.min(fixed).min(adaptive);
    Some([hardware, fixed, adaptive].map(|time_ns| 100.0 * (time_ns / least - 1.0)))
}

fn words(behind: [f64; 3]) -> String {
    let each = SCHEMES.iter().zip(behind).map(|((_, name), percent)| format!("{name} +{percent:.1} %"));
    each.collect::<Vec<_>>().join(", ")
}

fn kernel_points(evidence: &Evidence<'_>) -> Vec<Point> {
    let all = |buffers| {
        let each = PUBLISHED.iter().map(|(name, ..)| Some((*name, behind(evidence, name, buffers)?)));
        each.collect::<Option<Vec<_>>>()
    };
    let most = |behind: &[f64; 3]| behind.iter().copied().fold(0.0, f64::max);
    let enough = all(100).map(|kernels| {
        let worst = kernels.iter().max_by(|a, b| most(&a.1).total_cmp(&most(&b.1)));
        let (name, worst) = worst.map_or(("", 0.0), |(name, behind)| (*name, most(behind)));
        (format!("{} apart at most ({name})", percent(worst)), worst <= COMPARABLE)
    });
    let lu = behind(evidence, "lu", 1);
    let few = all(1).map(|kernels| {
        let means = [0, 1, 2].map(|scheme| {
            let values: Vec<f64> = kernels.iter().map(|(_, behind)| behind[scheme]).collect();
            mean(&values).unwrap_or(0.0)
        });
        (words(means), means[2] + VISIBLE <= means[0].min(means[1]))
    });
    vec![
        Point::of(
            "prepost-100",
            format!("pre-post 100: all schemes comparable (every kernel at most {COMPARABLE} % apart)"),
            "comparable",
            enough,
        ),
        Point::of(
            "lu.hardware",
            format!("pre-post 1: LU suffers with hardware (more than {COMPARABLE} % behind the best)"),
            "significantly worse",
            lu.map(|behind| (words(behind), behind[0] > COMPARABLE)),
        ),
        Point::of(
            "lu.static",
            format!("pre-post 1: LU suffers with static (more than {COMPARABLE} % behind the best)"),
            "significantly worse",
            lu.map(|behind| (words(behind), behind[1] > COMPARABLE)),
        ),
        Point::of(
            "adaptive-best",
            format!(
                "pre-post 1: adaptive is best overall (by at least {VISIBLE} point, mean over the kernels)"
            ),
            "adaptive best",
            few,
        ),
    ]
}

fn buffer_points(evidence: &Evidence<'_>) -> Vec<Point> {
    let mut points = Vec::new();
    let shares: Option<Vec<(&str, f64)>> = PUBLISHED
        .iter()
        .map(|(name, ..)| Some((*name, of(evidence, SchemeName::StaticConnection, name, ECM_PREPOST, ecms)?)))
        .collect();
    points.push(Point::of("credit-messages", 
        format!("explicit credit messages for each message, static, pre-post {ECM_PREPOST} (unknown in the table): LU far above the rest ({FAR_ABOVE} times), and the others below {VISIBLE} %"),
        "LU 18 %, the others 0",
        shares.map(|shares| {
            let most = |is_lu: bool| {
                let values = shares.iter().filter(|(name, _)| (*name == "lu") == is_lu);
                values.map(|(_, share)| *share).fold(0.0, f64::max)
            };
            let each = shares.iter().map(|(name, share)| format!("{name} {share:.1} %"));
            (each.collect::<Vec<_>>().join(", "), most(true) >= VISIBLE && most(true) >= FAR_ABOVE * most(false) && most(false) < VISIBLE)
        }),
    ));
    let others = PREPOSTS.map(|buffers| {
        let share = of(evidence, SchemeName::StaticConnection, "lu", buffers, ecms)?;
        Some(format!("{} with {buffers}", percent(share)))
    });
    let others: Vec<String> = others.into_iter().flatten().collect();
    if !others.is_empty() {
        points.push(Point::beside("the same of LU by pre-post value", others.join(", ")));
    }
    let maxima: Option<Vec<(&str, f64)>> = PUBLISHED
        .iter()
        .map(|(name, ..)| Some((*name, of(evidence, SchemeName::Adaptive, name, 1, peak_buffers)?)))
        .collect();
    let published = PUBLISHED.iter().map(|(name, _, _, most)| format!("{name} {most}"));
    points.push(Point::of("most-buffers", 
        format!(
            "the most buffers of a connection, adaptive from 1: LU far above the rest ({FAR_ABOVE} times), between half and twice the published number"
        ),
        published.collect::<Vec<_>>().join(", "),
        maxima.map(|maxima| {
            let most = |is_lu: bool| {
                let values = maxima.iter().filter(|(name, _)| (*name == "lu") == is_lu);
                values.map(|(_, most)| *most).fold(0.0, f64::max)
            };
            let each = maxima.iter().map(|(name, most)| format!("{name} {most}"));
            (each.collect::<Vec<_>>().join(", "), most(true) >= FAR_ABOVE * most(false) && ((LU_BUFFERS / 2) as f64..=(2 * LU_BUFFERS) as f64).contains(&most(true)))
        }),
    ));
    for (name, ecms, messages, _) in PUBLISHED {
        let each = |value| of(evidence, SchemeName::StaticConnection, name, ECM_PREPOST, value);
        let messages_each = each(|record| record.messages as f64 / f64::from(record.settings.ranks));
        let ecms_each = each(|record| record.credit_packets as f64 / f64::from(record.settings.ranks));
        if let Some((messages_each, ecms_each)) = messages_each.zip(ecms_each) {
            // crates/sim/tests/simulator/nas.rs
            let exchanged =
                if matches!(name, "bt" | "sp") { "; BT's and SP's fit if they are exchanged" } else { "" };
            let text = format!(
                "{name}: messages of a rank in all (published: {}, of them {} ECMs{exchanged})",
                count(messages),
                count(ecms)
            );
            points.push(Point::beside(
                text,
                format!("{}, {} ECMs", count(messages_each as u64), count(ecms_each as u64)),
            ));
        }
    }
    points
}

/// A chart of a number that every kernel has.
fn of_kernels(title: impl Into<String>, y_title: &str) -> Chart {
    Chart::new(title, "kernel, class A", y_title).categories(PUBLISHED.map(|(name, ..)| name.to_uppercase()))
}

fn buffer_figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let each = |value: &dyn Fn(&str) -> Option<f64>| {
        let values = PUBLISHED.iter().enumerate();
        Curve(values.filter_map(|(place, (name, ..))| Some((place as f64, value(name)?))).collect())
    };
    let mut shares = of_kernels("Explicit credit messages for each message", "percent");
    let published = (0..)
        .zip(PUBLISHED)
        .map(|(place, (_, ecms, messages, _))| (f64::from(place), 100.0 * ecms as f64 / messages as f64));
    shares.published("static, published", published.collect());
    shares.curve(
        format!("static, pre-post {ECM_PREPOST}"),
        each(&|name| of(evidence, SchemeName::StaticConnection, name, ECM_PREPOST, ecms)),
    );
    for (scheme, curve) in OWN_SCHEMES {
        shares.curve(curve, each(&|name| of_own(evidence, scheme, name, ecms)));
    }
    let mut most = of_kernels("The most buffers of a connection", "buffers");
    let published = (0..).zip(PUBLISHED).map(|(place, (.., most))| (f64::from(place), most as f64));
    most.published("adaptive, published", published.collect());
    let adaptive = |name: &str| of(evidence, SchemeName::Adaptive, name, 1, peak_buffers);
    most.curve("adaptive, from 1", each(&adaptive));
    most.mark(Mark::Words { text: "weir has no buffers of a connection: all share what credits move" });
    vec![shares, most]
}

fn kernel_figures(evidence: &Evidence<'_>) -> Vec<Chart> {
    let published = [
        (100, "published: comparable"),
        (1, "published: LU suffers with hardware and static, adaptive best"),
    ];
    let charts = published.map(|(buffers, text)| {
        let title = format!("Time behind the fastest scheme, pre-post {buffers}");
        let mut chart = of_kernels(title, "percent");
        chart.mark(Mark::Words { text });
        for (index, (_, name)) in SCHEMES.iter().enumerate() {
            let values = PUBLISHED.iter().enumerate().filter_map(|(place, (kernel, ..))| {
                Some((place as f64, behind(evidence, kernel, buffers)?[index]))
            });
            chart.curve(*name, Curve(values.collect()));
        }
        for (own, curve) in OWN_SCHEMES {
            let values = PUBLISHED.iter().enumerate().filter_map(|(place, (name, ..))| {
                let times =
                    SCHEMES.iter().filter_map(|(scheme, _)| of(evidence, *scheme, name, buffers, time_ns));
                let least = times.reduce(f64::min)?;
                Some((place as f64, 100.0 * (of_own(evidence, own, name, time_ns)? / least - 1.0)))
            });
            chart.curve(curve, Curve(values.collect()));
        }
        chart
    });
    charts.into_iter().collect()
}
