//! The results of `weir bench one-sided`: samples and failures of each transport. Prints their table with medians,
//! spreads and ratios to weir, and gives all samples to the JSON record.

use crate::comparison::{Compared, busy_warning, notes, transport_table};
use crate::machine::Machine;
use crate::statistics::Spread;
use crate::transport::Transport;
use comfy_table::Cell;
use serde::Serialize;
use std::collections::BTreeMap;
use weir_output::quantity::{self, exact_bytes};
use weir_output::table::right;

/// One row of the table: an operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Row {
    /// Whether the target is the caller.
    pub to_itself: bool,
    /// `put`, `get` or `accumulate`.
    pub operation: String,
    /// Bytes of an operation.
    pub bytes: u64,
}

/// All samples and failures.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    transports: Vec<Transport>,
    /// Unit of samples: us.
    #[serde(serialize_with = "as_list")]
    samples: BTreeMap<Row, BTreeMap<Transport, Vec<f64>>>,
    /// Transports that are missing or have failed.
    failures: BTreeMap<&'static str, String>,
}

impl Results {
    /// No samples yet.
    pub fn new(transports: Vec<Transport>) -> Results {
        Results { transports, samples: BTreeMap::new(), failures: BTreeMap::new() }
    }

    /// Adds a sample. Unit: us.
    pub fn add(&mut self, transport: Transport, row: Row, us: f64) {
        self.samples.entry(row).or_default().entry(transport).or_default().push(us);
    }

    /// Records that a transport is missing or has failed.
    pub fn fail(&mut self, transport: &'static str, why: String) {
        self.failures.insert(transport, why);
    }

    /// Whether a transport is missing or has failed, so that it is not tried again.
    pub fn has_failed(&self, transport: &str) -> bool {
        self.failures.contains_key(transport)
    }

    /// Whether no transport is missing or has failed.
    pub fn is_complete(&self) -> bool {
        self.failures.is_empty()
    }
}

fn cell(samples: &BTreeMap<Transport, Vec<f64>>, transport: Transport) -> String {
    let spread_of = |transport| samples.get(&transport).and_then(|samples| Spread::of(samples));
    let Some(spread) = spread_of(transport) else { return String::from("-") };
    let weirs = if transport == Transport::Weir { None } else { spread_of(Transport::Weir) };
    Compared::new(&spread, weirs.as_ref(), |us| quantity::time_ns(us * 1e3)).to_string()
}

/// Returns the table and its notes.
pub fn render(results: &Results, machine: &Machine, mpis: &str, rounds: u32) -> String {
    let mut table = transport_table(&results.transports);
    // Operations to others first.
    for (Row { to_itself, operation, bytes }, samples) in &results.samples {
        let target = if *to_itself { "to itself" } else { "to another rank" };
        let cells = results.transports.iter().map(|&transport| right(cell(samples, transport)));
        let name = Cell::new(format!("{operation} {target}\n{}", exact_bytes(*bytes)));
        table.add_row(std::iter::once(name).chain(cells));
    }
    let mut lines = vec![table.to_string()];
    lines.extend(notes(machine, mpis, rounds));
    lines.extend(busy_warning(machine));
    lines.extend(results.failures.iter().map(|(transport, why)| format!("{transport}: {why}")));
    lines.join("\n")
}

fn as_list<S: serde::Serializer>(
    samples: &BTreeMap<Row, BTreeMap<Transport, Vec<f64>>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Record<'a> {
        #[serde(flatten)]
        row: &'a Row,
        transport: Transport,
        #[serde(flatten)]
        spread: Option<Spread>,
        samples: &'a [f64],
    }
    serializer.collect_seq(samples.iter().flat_map(|(row, transports)| {
        transports.iter().map(move |(&transport, samples)| Record {
            row,
            transport,
            spread: Spread::of(samples),
            samples,
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let mut results = Results::new(vec![Transport::Weir, Transport::MpichShm, Transport::OfiTcp]);
        let put = Row { to_itself: true, operation: "put".into(), bytes: 2048 };
        for (weir, tcp) in [(1.0, 4.0), (1.2, 5.0), (0.9, 6.0)] {
            results.add(Transport::Weir, put.clone(), weir);
            results.add(Transport::OfiTcp, put.clone(), tcp);
        }
        results.fail("mpich-shm", "timed out after 60 s".into());
        results
    }

    #[test]
    fn rows_name_the_operation_and_cells_the_ratio() {
        let text = render(&results(), &Machine::of_this(), "MPICH 5.0.2", 3);
        for part in ["put to itself", "2 KiB", "5.00 x weir", "mpich-shm: timed out after 60 s"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(results().has_failed("mpich-shm") && !results().is_complete());
    }

    #[test]
    fn records_have_every_sample() {
        let json = serde_json::to_value(results()).unwrap();
        let first = &json["samples"][0];
        assert_eq!((&first["operation"], &first["transport"]), (&"put".into(), &"weir".into()));
        assert_eq!(first["samples"], serde_json::json!([1.0, 1.2, 0.9]));
        assert_eq!(first["median"], 1.0);
    }
}
