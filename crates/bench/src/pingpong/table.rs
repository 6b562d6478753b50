//! The results of `weir bench pingpong` and their table: medians, spreads, ratios to weir. Also holds the transports
//! that are missing or have failed, with the reasons.

use super::benchmark::{Benchmark, Measure};
use crate::comparison::{Compared, busy_warning, notes, transport_table};
use crate::machine::Machine;
use crate::statistics::Spread;
use crate::transport::Transport;
use comfy_table::Cell;
use serde::Serialize;
use std::collections::BTreeMap;
use weir_mpi::find::Mpi;
use weir_output::quantity::{self, exact_bytes};
use weir_output::table::right;

/// All samples and failures.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    transports: Vec<Transport>,
    #[serde(serialize_with = "as_list")]
    samples: BTreeMap<(Measure, Transport), Vec<f64>>,
    /// Transports that are missing.
    missing: BTreeMap<Transport, String>,
    #[serde(serialize_with = "failures_as_list")]
    failures: BTreeMap<(Benchmark, Transport), String>,
}

impl Results {
    /// No samples yet.
    pub fn new(transports: &[Transport]) -> Results {
        Results {
            transports: transports.to_vec(),
            samples: BTreeMap::new(),
            missing: BTreeMap::new(),
            failures: BTreeMap::new(),
        }
    }

    /// Adds a sample.
    pub fn add(&mut self, transport: Transport, measure: Measure, value: f64) {
        self.samples.entry((measure, transport)).or_default().push(value);
    }

    /// Records a failed job.
    pub fn fail(&mut self, transport: Transport, benchmark: Benchmark, why: String) {
        self.failures.insert((benchmark, transport), why);
    }

    /// Records a transport that cannot be measured.
    pub fn mark_missing(&mut self, transport: Transport, why: String) {
        self.missing.insert(transport, why);
    }

    /// Whether the transport is missing or has failed, so that it is not tried again.
    pub fn has_failed(&self, transport: Transport, benchmark: Benchmark) -> bool {
        self.missing.contains_key(&transport) || self.failures.contains_key(&(benchmark, transport))
    }

    /// Whether no transport is missing or has failed.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.failures.is_empty()
    }

    fn spread(&self, measure: Measure, transport: Transport) -> Option<Spread> {
        Spread::of(self.samples.get(&(measure, transport))?)
    }

    fn cell(&self, measure: Measure, transport: Transport) -> String {
        let Some(spread) = self.spread(measure, transport) else { return String::from("-") };
        let show = |value| match measure {
            Measure::MessagesPerSecond { .. } => quantity::rate(value),
            Measure::HalfRoundTripUs { .. } | Measure::BarrierUs { .. } => quantity::time_ns(value * 1e3),
        };
        let weirs = self.spread(measure, Transport::Weir).filter(|_| transport != Transport::Weir);
        let mut text = Compared::new(&spread, weirs.as_ref(), show).to_string();
        // A failure after successful rounds: the samples stay, and the notes name it.
        if self.has_failed(transport, measure.benchmark()) {
            text.push_str("\nthen failed");
        }
        text
    }
}

/// Returns the table and its notes.
pub fn render(results: &Results, machine: &Machine, mpi: &Mpi, rounds: u32) -> String {
    let mut measures: Vec<Measure> = results.samples.keys().map(|(measure, _)| *measure).collect();
    measures.dedup();
    let mut table = transport_table(&results.transports);
    for measure in measures {
        let cells = results.transports.iter().map(|&transport| right(results.cell(measure, transport)));
        table.add_row(std::iter::once(Cell::new(name(measure))).chain(cells));
    }
    let mut lines = vec![table.to_string()];
    lines.extend(notes(machine, &format!("{} {}", mpi.kind.name(), mpi.version), rounds));
    lines.extend(busy_warning(machine));
    lines.extend(results.missing.iter().map(|(transport, why)| format!("{}: {why}", transport.word())));
    let failures = results.failures.iter();
    lines.extend(
        failures.map(|((benchmark, transport), why)| {
            format!("{}, {}: {why}", transport.word(), benchmark.word())
        }),
    );
    lines.join("\n")
}

fn name(measure: Measure) -> String {
    match measure {
        Measure::HalfRoundTripUs { bytes } => format!("half round trip\n{}", exact_bytes(bytes)),
        Measure::MessagesPerSecond { bytes } => format!("messages of {}\none way", exact_bytes(bytes)),
        Measure::BarrierUs { ranks } => format!("barrier\n{ranks} ranks"),
    }
}

#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    measure: Measure,
    transport: Transport,
    #[serde(flatten)]
    spread: Option<Spread>,
    samples: &'a [f64],
}

fn as_list<S: serde::Serializer>(
    samples: &BTreeMap<(Measure, Transport), Vec<f64>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(samples.iter().map(|(&(measure, transport), samples)| Row {
        measure,
        transport,
        spread: Spread::of(samples),
        samples,
    }))
}

fn failures_as_list<S: serde::Serializer>(
    failures: &BTreeMap<(Benchmark, Transport), String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(failures)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Measure = Measure::HalfRoundTripUs { bytes: 2048 };

    fn results() -> Results {
        let mut results =
            Results::new(&[Transport::Weir, Transport::OfiShm, Transport::OfiTcp, Transport::Ucx]);
        for (weir, shm, tcp) in [(1.0, 1.1, 4.0), (1.2, 3.0, 5.0), (0.9, 2.0, 6.0)] {
            results.add(Transport::Weir, HALF, weir);
            results.add(Transport::OfiShm, HALF, shm);
            results.add(Transport::OfiTcp, HALF, tcp);
        }
        results.fail(Transport::Ucx, Benchmark::Pingpong, "timed out after 60 s".into());
        results
    }

    #[test]
    fn cells_show_the_ratio_and_mark_noise() {
        let results = results();
        assert_eq!(results.cell(HALF, Transport::Weir), "1.00 us\n900 ns .. 1.20 us");
        assert_eq!(
            results.cell(HALF, Transport::OfiShm),
            "2.00 us\n1.10 us .. 3.00 us\n2.00 x weir\nwithin noise"
        );
        assert_eq!(results.cell(HALF, Transport::OfiTcp), "5.00 us\n4.00 us .. 6.00 us\n5.00 x weir");
        assert_eq!(results.cell(HALF, Transport::Ucx), "-");
    }

    #[test]
    fn failures_and_missing_transports_are_listed_below_the_table() {
        let mut results = results();
        results.mark_missing(Transport::Weir, "missing: no plug-in".into());
        let mpi = Mpi {
            kind: weir_mpi::find::Kind::Mpich,
            version: "5.0.2".into(),
            mpiexec: "m".into(),
            found: String::new(),
            unusable: None,
        };
        let text = render(&results, &Machine::of_this(), &mpi, 3);
        assert!(text.contains("ucx, pingpong: timed out after 60 s"), "{text}");
        assert!(text.contains("weir: missing: no plug-in"), "{text}");
        assert!(text.contains("half round trip") && text.contains("2 KiB"), "{text}");
        assert!(results.has_failed(Transport::Weir, Benchmark::Barrier));
        assert!(!results.has_failed(Transport::Ucx, Benchmark::Barrier));
    }

    #[test]
    fn records_have_every_sample() {
        let json = serde_json::to_value(results()).unwrap();
        let first = &json["samples"][0];
        assert_eq!(first["measure"], "half_round_trip_us");
        assert_eq!((&first["bytes"], &first["transport"]), (&2048.into(), &"weir".into()));
        assert_eq!(first["samples"], serde_json::json!([1.0, 1.2, 0.9]));
        assert_eq!(first["median"], 1.0);
    }
}
