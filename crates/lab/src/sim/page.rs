//! The HTML page of `weir sim`: charts of time, and of overhead relative to the same world without flow control, over
//! the number that varies most, or by scheme. Below are a table of all simulated worlds, the plan, and the records as
//! JSON.

use super::table::{self, Column};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use weir_output::chart::{Chart, Curve};
use weir_output::markup::Html;
use weir_output::quantity::count;
use weir_sim::plan::{Plan, Record, SchemeName, Settings};

/// Most curves of a figure; more cannot be distinguished.
const MAX_CURVES: usize = 12;
/// Ratio of largest to smallest x from which axes are logarithmic.
const BY_POWERS: f64 = 64.0;

/// The page for at least one record.
pub fn render(plan: &Plan, records: &[&Record]) -> String {
    let title = format!("{}: {}", plan.experiment, plan.title);
    let mut html = Html::begin(&title);
    html.heading(1, &title);
    html.note(&plan.source);
    if plan.is_quick {
        html.warning("The quick variant: smaller worlds than those of the plan itself, and fewer.");
    }
    let networks: BTreeSet<&str> = records.iter().map(|record| record.settings.network.as_str()).collect();
    let networks = networks.into_iter().collect::<Vec<_>>().join("; ");
    html.note(&format!("{}; network: {networks}", plan.path.display()));
    let packets = records.iter().map(|record| record.packets).sum();
    html.paragraph(&format!(
        "{} worlds, {} packets, in virtual time. Overhead is the time of a world divided by the time of the same world without flow \
         control, minus one. Where worlds differ in seeds only, charts show their mean and range. Worlds without a value for x are \
         in the table only.",
        count(records.len() as u64),
        count(packets)
    ));
    let (charts, left_out) = charts(records);
    html.charts(&charts);
    if left_out > 0 {
        html.note(&format!("{} more curves are not drawn; their worlds are in the table.", count(left_out)));
    }
    let (headings, rows) = table::rows(records);
    html.table(&headings.iter().map(String::as_str).collect::<Vec<_>>(), rows);
    html.begin_details(&format!("The plan: {}", plan.path.display()));
    html.preformatted(&std::fs::read_to_string(&plan.path).unwrap_or_default());
    html.end_details();
    html.data(&json!({ "schema": "weir-sim-page-1", "worlds": records }));
    html.end()
}

/// The charts of time and of overhead, and the number of curves that they leave out.
fn charts(records: &[&Record]) -> ([Chart; 2], u64) {
    let columns = table::differing(records);
    let axis = Axis::of(&columns, records);
    let mut names: Vec<String> = Vec::new();
    let mut times: BTreeMap<usize, Points> = BTreeMap::new();
    let mut overheads: BTreeMap<usize, Points> = BTreeMap::new();
    for record in records {
        let Some(x) = axis.place(&record.settings) else { continue };
        let name = curve_name(&columns, axis.heading(), records, &record.settings);
        let number = names.iter().position(|known| *known == name).unwrap_or_else(|| {
            names.push(name);
            names.len() - 1
        });
        times.entry(number).or_default().add(x, record.time_ns);
        if let Some(overhead) = table::overhead(records, record)
            && record.settings.scheme != SchemeName::Unlimited
        {
            overheads.entry(number).or_default().add(x, 100.0 * overhead);
        }
    }
    let longest = records.iter().map(|record| record.time_ns).fold(0.0, f64::max);
    let (unit_ns, unit) = [(1e9, "s"), (1e6, "ms"), (1e3, "us")]
        .into_iter()
        .find(|(ns, _)| longest >= *ns)
        .unwrap_or((1.0, "ns"));
    let mut time = axis.chart("Time", unit, true);
    let mut overhead = axis.chart("Overhead over unlimited", "%", false);
    for (chart, curves, scale) in [(&mut time, times, unit_ns), (&mut overhead, overheads, 1.0)] {
        for (number, points) in curves.into_iter().filter(|(number, _)| *number < MAX_CURVES) {
            let (curve, spread) = points.drawn(scale);
            chart.spread_curve(number, &names[number], curve, spread);
        }
    }
    ([time, overhead], names.len().saturating_sub(MAX_CURVES) as u64)
}

/// The x axis: the numeric column with the most different values, or the schemes if there is none.
enum Axis<'a> {
    Numbers { column: &'a Column, by_powers: bool },
    Schemes(Vec<String>),
}

impl<'a> Axis<'a> {
    fn of(columns: &'a [Column], records: &[&Record]) -> Axis<'a> {
        let mut best: Option<(usize, Axis<'a>)> = None;
        for column in columns.iter().filter(|(heading, _)| heading != "seed") {
            // A value is empty if a scheme has no such parameter. A column with a word is not numeric.
            let values =
                records.iter().map(|record| column.1(&record.settings)).filter(|value| !value.is_empty());
            let Ok(mut values) = values.map(|value| value.parse::<f64>()).collect::<Result<Vec<_>, _>>()
            else {
                continue;
            };
            values.sort_by(f64::total_cmp);
            values.dedup();
            if values.len() > best.as_ref().map_or(1, |(most, _)| *most) {
                let (least, greatest) = (values[0], values[values.len() - 1]);
                let by_powers = least > 0.0 && greatest / least >= BY_POWERS;
                best = Some((values.len(), Axis::Numbers { column, by_powers }));
            }
        }
        best.map_or_else(
            || {
                let mut schemes: Vec<String> = Vec::new();
                for record in records {
                    let name = table::scheme_name(&record.settings);
                    if !schemes.contains(&name) {
                        schemes.push(name);
                    }
                }
                Axis::Schemes(schemes)
            },
            |(_, axis)| axis,
        )
    }

    fn heading(&self) -> &str {
        match self {
            Axis::Numbers { column, .. } => &column.0,
            Axis::Schemes(_) => "scheme",
        }
    }

    /// The x of a world; `None` if it has no such number.
    fn place(&self, settings: &Settings) -> Option<f64> {
        match self {
            Axis::Numbers { column, .. } => column.1(settings).parse().ok(),
            Axis::Schemes(names) => {
                let name = table::scheme_name(settings);
                names.iter().position(|known| *known == name).map(|index| index as f64)
            }
        }
    }

    /// - `is_positive`: whether all values of y are positive, so that their axis can be logarithmic.
    fn chart(&self, what: &str, unit: &str, is_positive: bool) -> Chart {
        let chart = Chart::new(what, self.heading(), unit);
        match self {
            Axis::Schemes(names) => chart.categories(names.iter().cloned()),
            Axis::Numbers { by_powers: true, .. } if is_positive => chart.logarithmic(),
            Axis::Numbers { by_powers: true, .. } => chart.logarithmic_x(),
            Axis::Numbers { .. } => chart,
        }
    }
}

/// Name of a curve: the scheme, and everything that distinguishes worlds of the same scheme except x and
/// seed.
fn curve_name(columns: &[Column], x: &str, records: &[&Record], settings: &Settings) -> String {
    let same = |record: &&&Record| record.settings.scheme == settings.scheme;
    let mut name = if x == "scheme" { String::from("worlds") } else { table::scheme_name(settings) };
    for (heading, value) in
        columns.iter().filter(|(heading, _)| ![x, "scheme", "seed"].contains(&heading.as_str()))
    {
        let own = value(settings);
        if !own.is_empty() && records.iter().filter(same).any(|record| value(&record.settings) != own) {
            name.push_str(&format!(", {heading} {own}"));
        }
    }
    name
}

/// Values by x. There are several where seeds differ.
#[derive(Default)]
struct Points(Vec<(f64, Vec<f64>)>);

impl Points {
    fn add(&mut self, x: f64, y: f64) {
        match self.0.iter_mut().find(|(place, _)| *place == x) {
            Some((_, values)) => values.push(y),
            None => self.0.push((x, vec![y])),
        }
    }

    /// Means in the order of x, and smallest and largest value where there are several.
    fn drawn(mut self, scale: f64) -> (Curve, Vec<(f64, f64, f64)>) {
        self.0.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64 / scale;
        let curve = Curve(self.0.iter().map(|(x, values)| (*x, mean(values))).collect());
        let several = self.0.iter().filter(|(_, values)| values.len() > 1);
        let spread = several.map(|(x, values)| {
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let greatest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            (*x, least / scale, greatest / scale)
        });
        (curve, spread.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_sim::plan::Key;

    /// A latency world with messages of `bytes` bytes that takes `time_ns`.
    fn record(scheme: SchemeName, slots_per_peer: u32, bytes: u64, time_ns: f64) -> Record {
        let settings = Settings {
            network: String::from("ideal"),
            ranks: 2,
            ranks_per_node: 0,
            mesh_nodes: String::new(),
            scheme,
            piggyback: false,
            slots_per_peer,
            credit_slots: 0,
            eager_bytes: 16384,
            start_skew_ns: 0,
            rnr_timer_ns: 0,
            start_slots: 0,
            nic: None,
            reliability: None,
            faults: None,
            workload: json!({ "latency": { "message_bytes": bytes } }),
            seed: 1,
        };
        let key = Key(format!("{scheme:?} {slots_per_peer} {bytes}"));
        crate::sim::blank::record(key, settings, time_ns)
    }

    fn names(chart: &Chart) -> Vec<String> {
        chart.legend().into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn x_is_the_number_that_varies_most_and_the_rest_distinguishes_curves() {
        let (unlimited, credited) = (SchemeName::Unlimited, SchemeName::Static);
        let mut records = Vec::new();
        for bytes in [4, 64, 1024] {
            records.push(record(unlimited, 0, bytes, 1000.0));
            records.extend([8, 16].map(|slots| record(credited, slots, bytes, 1500.0)));
        }
        let ([time, overhead], left_out) = charts(&records.iter().collect::<Vec<_>>());
        assert_eq!(names(&time), ["unlimited", "static, slots per peer 8", "static, slots per peer 16"]);
        assert_eq!(names(&overhead), ["static, slots per peer 8", "static, slots per peer 16"]);
        assert_eq!(left_out, 0);
        assert!(time.draw().contains("message_bytes") && overhead.draw().contains("50"));
        // 4 to 1024 bytes: both axes of x are logarithmic, so 500 has no label.
        for chart in [&time, &overhead] {
            let svg = chart.draw().replace(char::is_whitespace, "");
            assert!(svg.contains(">1000<") && !svg.contains(">500<"), "{svg}");
        }

        // Only the scheme varies.
        let same = [record(unlimited, 0, 4, 10.0), record(SchemeName::Hardware, 0, 4, 20.0)];
        let ([time, _], _) = charts(&same.iter().collect::<Vec<_>>());
        let svg = time.draw();
        assert!(svg.contains("unlimited") && svg.contains("hardware"), "{svg}");
    }

    #[test]
    fn several_seeds_are_a_mean_and_a_range() {
        let mut points = Points::default();
        for (x, y) in [(8.0, 4000.0), (4.0, 1000.0), (4.0, 3000.0)] {
            points.add(x, y);
        }
        let (curve, spread) = points.drawn(1e3);
        assert_eq!(curve, Curve(vec![(4.0, 2.0), (8.0, 4.0)]));
        assert_eq!(spread, [(4.0, 1.0, 3.0)]);
    }
}
