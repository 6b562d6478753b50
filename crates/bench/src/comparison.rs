//! A transport compared with weir, for the tables of several benchmarks: the text of a table cell, the empty table with
//! its headings, and the notes below a table of interleaved rounds. Also the warning that the host is busy.

use crate::machine::Machine;
use crate::statistics::Spread;
use crate::transport::Transport;
use comfy_table::{Cell, ContentArrangement, Table, presets};
use weir_output::quantity;
use weir_output::table::right;

/// The spread of one transport, compared with the spread of weir.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Median.
    pub median: String,
    /// Smallest and largest sample.
    pub range: String,
    /// Ratio of the medians. `None` for weir itself.
    pub ratio: Option<String>,
    /// Whether the two spreads overlap, so that the samples do not distinguish the transports.
    pub within_noise: bool,
}

impl Compared {
    /// Compares `spread` with `weirs`, which is `None` for weir itself. `show` formats a value with its unit.
    pub fn new(spread: &Spread, weirs: Option<&Spread>, show: impl Fn(f64) -> String) -> Compared {
        let ratio = |weir: &Spread| format!("{} x weir", quantity::three_digits(spread.median / weir.median));
        Compared {
            median: show(spread.median),
            range: format!("{} .. {}", show(spread.min), show(spread.max)),
            ratio: weirs.map(ratio),
            within_noise: weirs.is_some_and(|weir| spread.overlaps(weir)),
        }
    }
}

/// The lines of a cell.
impl std::fmt::Display for Compared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Compared { median, range, ratio, within_noise } = self;
        write!(formatter, "{median}\n{range}")?;
        if let Some(ratio) = ratio {
            write!(formatter, "\n{ratio}")?;
        }
        if *within_noise { formatter.write_str("\nwithin noise") } else { Ok(()) }
    }
}

/// A table with a column for each transport, for cells of several lines.
pub fn transport_table(transports: &[Transport]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL).set_content_arrangement(ContentArrangement::Disabled);
    let headings = transports.iter().map(|transport| right(transport.heading()));
    table.set_header(std::iter::once(Cell::new("")).chain(headings));
    table
}

/// Notes below a table of `rounds` interleaved rounds. `mpis`: names and versions of the MPIs.
pub fn notes(machine: &Machine, mpis: &str, rounds: u32) -> [String; 2] {
    [
        format!(
            "Median, smallest .. largest of {rounds} interleaved rounds; {mpis}, {}, {} cores, Linux {}, load before {}.",
            machine.processor, machine.cores, machine.kernel, machine.load
        ),
        String::from(
            "Within noise: the spreads overlap, so these rounds do not distinguish the two. Other work widens the spreads.",
        ),
    ]
}

/// A warning if other work disturbed the measurements.
pub fn busy_warning(machine: &Machine) -> Option<String> {
    machine.is_busy().then(|| {
        format!(
            "The machine was not idle (load {}): on {} cores other work influences the numbers more than transports do.",
            machine.load, machine.cores
        )
    })
}
