//! The results of the flood benchmark and their tables: memory and time of each contender in each case. Decides whether
//! memory stayed within the bound, compares times with the fastest of MPICH's own transports, and tells whether a
//! contender may run a case again.

use super::super::contender::Contender;
use super::super::jobs::Unfinished;
use super::super::statistics::{Ratio, Spread, Verdict};
use super::super::transport::Transport;
use super::cases::{Case, Sample};
use super::figure::MemorySample;
use crate::machine::Machine;
use comfy_table::{Cell, ColumnConstraint, Width};
use serde::Serialize;
use std::collections::BTreeMap;
use weir_mpi::find::Mpi;
use weir_output::quantity::{bytes, count, three_digits, time_ns};
use weir_output::table::{self, right};

/// Bytes that an unexpected message may cost in addition to the budget.
const ENVELOPE_BYTES: u64 = 64;
/// weir may take at most this many times as long as the fastest of MPICH's other transports.
const LIMIT: f64 = 1.1;

/// The budgets of a receiver. Unit: bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Budgets {
    /// Payload of unexpected messages.
    pub budget_bytes: u64,
    /// Envelopes of unexpected messages; 0: no limit.
    pub envelope_budget_bytes: u64,
}

impl Budgets {
    /// 1.05 x the payload budget, and 64 B for each unexpected message, but at most 1.05 x the envelope budget.
    fn bound_bytes(self, unexpected_messages: u64) -> u64 {
        let envelopes = ENVELOPE_BYTES.saturating_mul(unexpected_messages);
        self.budget_bytes / 20 * 21 + envelopes.min(self.envelope_bound_bytes())
    }

    fn envelope_bound_bytes(self) -> u64 {
        match self.envelope_budget_bytes {
            0 => u64::MAX,
            bytes => bytes / 20 * 21,
        }
    }

    fn describe(self, unexpected_messages: u64) -> String {
        let budget = bytes(self.budget_bytes);
        match ENVELOPE_BYTES.saturating_mul(unexpected_messages) <= self.envelope_bound_bytes() {
            true => format!("1.05 x {budget} + 64 B x {} unexpected messages", count(unexpected_messages)),
            false => format!("1.05 x ({budget} + {} of envelopes)", bytes(self.envelope_budget_bytes)),
        }
    }
}

/// The end of one job.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It finished with a result.
    Finished(Sample),
    /// It did not finish.
    Unfinished(Unfinished),
    /// It was not started, because its payload would not fit into memory.
    TooLarge {
        /// Payload and the memory that must stay free. Unit: bytes.
        needed_bytes: u64,
        /// Memory that was available. Unit: bytes.
        available_bytes: u64,
    },
}

/// The results of one contender in one case.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// By repetition.
    samples: Vec<Sample>,
    /// The reason why it is not tried again, if so.
    #[serde(rename = "ended")]
    given_up: Option<GivenUp>,
    /// Memory of the flooded rank over time in the first repetition, if it was sampled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    memory: Vec<MemorySample>,
}

/// The memory samples of one contender.
#[derive(Clone, Copy, Debug)]
pub struct MemoryRow<'a> {
    /// The contender.
    pub contender: Contender,
    /// Time of its flood; `None` if it did not finish.
    pub seconds: Option<f64>,
    /// In order of time.
    pub samples: &'a [MemorySample],
}

/// A contender that is not tried again, and the reason.
#[derive(Clone, Debug, Serialize)]
struct GivenUp {
    /// The text in its table cell.
    word: &'static str,
    /// The reason in one line, below the table.
    why: String,
}

impl Row {
    /// The largest growth of the receiver over the repetitions.
    fn growth_bytes(&self) -> u64 {
        self.samples.iter().map(|sample| sample.growth_bytes).max().unwrap_or(0)
    }

    fn node_growth_bytes(&self) -> u64 {
        self.samples.iter().map(|sample| sample.node_growth_bytes).max().unwrap_or(0)
    }

    fn seconds(&self) -> Vec<f64> {
        self.samples.iter().map(|sample| sample.seconds).collect()
    }

    /// The text in the cell of its time.
    fn failure_label(&self) -> &'static str {
        self.given_up.as_ref().map_or("-", |given_up| given_up.word)
    }

    /// Whether it finished in all repetitions.
    fn finished(&self) -> bool {
        self.given_up.is_none() && !self.samples.is_empty()
    }
}

/// The results of one case.
#[derive(Clone, Debug, Serialize)]
pub struct CaseResults {
    /// The case.
    pub case: Case,
    #[serde(flatten)]
    budgets: Budgets,
    #[serde(serialize_with = "rows_by_word")]
    rows: BTreeMap<Contender, Row>,
}

impl CaseResults {
    /// No results yet.
    pub fn new(case: Case, contenders: &[Contender], budgets: Budgets) -> CaseResults {
        let rows = contenders.iter().map(|&contender| (contender, Row::default())).collect();
        CaseResults { case, budgets, rows }
    }

    /// Whether the contender can still run this case.
    pub fn may_run(&self, contender: Contender) -> bool {
        self.rows.get(&contender).is_some_and(|row| row.given_up.is_none())
    }

    /// Adds the result of a job.
    pub fn add(&mut self, contender: Contender, outcome: Outcome) {
        let row = self.rows.entry(contender).or_default();
        let (word, why) = match outcome {
            Outcome::Finished(sample) => return row.samples.push(sample),
            Outcome::Unfinished(unfinished) => {
                let word = match &unfinished {
                    Unfinished::TimedOut { .. } => "did not finish",
                    Unfinished::OutOfMemory => "out of memory",
                    Unfinished::Failed { .. } => "failed",
                };
                (word, unfinished.to_string())
            }
            Outcome::TooLarge { needed_bytes, available_bytes } => {
                let (needed, free) = (bytes(needed_bytes), bytes(available_bytes));
                ("not started", format!("not started: needs {needed} of free memory, {free} are free"))
            }
        };
        row.given_up = Some(GivenUp { word, why });
    }

    /// Sets the memory samples of the first repetition.
    pub fn set_memory(&mut self, contender: Contender, samples: Vec<MemorySample>) {
        self.rows.entry(contender).or_default().memory = samples;
    }

    /// The memory samples of each contender.
    pub fn memory(&self) -> impl Iterator<Item = MemoryRow<'_>> {
        self.rows.iter().map(|(&contender, row)| MemoryRow {
            contender,
            seconds: row.samples.first().map(|sample| sample.seconds),
            samples: &row.memory,
        })
    }

    /// Whether `contender` finished in all repetitions and its receiver's growth stayed within the bound.
    pub fn is_within_memory_bound(&self, contender: Contender) -> bool {
        self.rows.get(&contender).is_some_and(|row| row.finished() && self.within_bound(row))
    }

    fn within_bound(&self, row: &Row) -> bool {
        row.samples.iter().all(|sample| sample.growth_bytes <= self.bound_bytes(sample.unexpected_messages))
    }

    fn bound_bytes(&self, unexpected_messages: u64) -> u64 {
        self.budgets.bound_bytes(unexpected_messages)
    }

    /// The fastest of MPICH's other transports that finished in all repetitions.
    fn fastest_builtin(&self) -> Option<(Contender, Vec<f64>)> {
        let own = self.rows.iter().filter(|(contender, row)| contender.is_mpich_builtin() && row.finished());
        let with_median = own.filter_map(|(&contender, row)| {
            Some((Spread::of(&row.seconds())?.median, contender, row.seconds()))
        });
        let fastest = with_median.min_by(|one, other| one.0.total_cmp(&other.0));
        fastest.map(|(_, contender, seconds)| (contender, seconds))
    }

    /// The time of `contender` divided by that of the fastest of MPICH's other transports. `None` without both.
    pub fn ratio(&self, contender: Contender) -> Option<Ratio> {
        let (fastest, seconds) = self.fastest_builtin()?;
        let row = self.rows.get(&contender).filter(|row| row.finished())?;
        (fastest != contender).then(|| Ratio::of_pairs(&row.seconds(), &seconds)).flatten()
    }
}

/// The table of one case with its heading.
pub fn render(results: &CaseResults) -> String {
    const WIDTHS: [u16; 6] = [22, 13, 8, 13, 24, 24];
    let mut table = table::plain();
    let headings = [
        "receiver\ngrew by, MiB",
        "within\nbound",
        "all ranks\ngrew by, MiB",
        "time: median\n(least .. greatest)",
        "x fastest of MPICH's\nown [95 %]",
    ];
    table.set_header(std::iter::once(Cell::new("")).chain(headings.map(right)));
    let fastest = results.fastest_builtin().map(|(contender, _)| contender);
    for (&contender, row) in &results.rows {
        let mebibytes = |number: u64| three_digits(number as f64 / f64::from(1 << 20));
        let mut cells = vec![Cell::new(contender.heading())];
        match Spread::of(&row.seconds()) {
            Some(spread) if row.finished() => {
                let show = |seconds: f64| time_ns(seconds * 1e9);
                let kept = if results.within_bound(row) { "yes" } else { "no" };
                cells.extend([
                    right(mebibytes(row.growth_bytes())),
                    right(kept),
                    right(mebibytes(row.node_growth_bytes())),
                    right(if row.samples.len() == 1 {
                        show(spread.median)
                    } else {
                        format!("{} ({} .. {})", show(spread.median), show(spread.min), show(spread.max))
                    }),
                    right(match results.ratio(contender) {
                        Some(ratio) => show_ratio(&ratio),
                        None if fastest == Some(contender) => String::from("fastest"),
                        None => String::from("-"),
                    }),
                ]);
            }
            _ => {
                cells.extend(["-", "-", "-", row.failure_label(), "-"].map(right));
            }
        }
        table.add_row(cells);
    }
    for (column, width) in table.column_iter_mut().zip(WIDTHS) {
        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width))).set_padding((1, 0));
    }
    let unexpected =
        results.rows.values().flat_map(|row| &row.samples).map(|sample| sample.unexpected_messages).max();
    let all = u64::from(results.case.senders).saturating_mul(results.case.messages);
    let bound = results.bound_bytes(unexpected.unwrap_or(all));
    let mut lines = vec![format!(
        "{}\nbound of the receiver's growth: {} = {}",
        results.case.describe(),
        results.budgets.describe(unexpected.unwrap_or(all)),
        bytes(bound)
    )];
    lines.push(table::text(&table));
    lines.extend(results.rows.iter().filter_map(|(contender, row)| {
        let again = if row.samples.is_empty() {
            String::new()
        } else {
            format!(" (repetition {})", row.samples.len() + 1)
        };
        Some(format!("{}: {}{again}", contender.heading(), row.given_up.as_ref()?.why))
    }));
    lines.join("\n")
}

fn show_ratio(ratio: &Ratio) -> String {
    // The interval of two pairs can have any width.
    let end = |value: f64| if value > 99.0 { String::from("> 99") } else { three_digits(value) };
    match (ratio.low, ratio.high) {
        (Some(low), Some(high)) => format!("{} [{} .. {}]", three_digits(ratio.mean), end(low), end(high)),
        _ => three_digits(ratio.mean),
    }
}

/// Notes on the tables, and a summary of weir's results.
pub fn notes(results: &[CaseResults], repeat: u32, machine: &Machine, mpi: &Mpi) -> Vec<String> {
    let mut notes = Vec::new();
    let weir = Contender::Mpich(Transport::Weir);
    if results.iter().any(|case| case.rows.contains_key(&weir)) {
        let kept = results.iter().filter(|case| case.is_within_memory_bound(weir)).count();
        notes.push(format!("weir finished within its memory bound in {kept} of {} cases.", results.len()));
        let verdicts: Vec<Verdict> = results
            .iter()
            .filter_map(|case| case.ratio(weir))
            .map(|ratio| ratio.verdict(LIMIT, f64::INFINITY))
            .collect();
        if !verdicts.is_empty() {
            let number = |wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count();
            notes.push(format!(
                "Limit {LIMIT} x the fastest of MPICH's other transports (95 % interval): passed {}, failed {}, not resolved {}.",
                number(Verdict::Passed),
                number(Verdict::Failed),
                number(Verdict::NotResolved)
            ));
        }
    }
    let max_ranks = results.iter().map(|case| case.case.senders + 1).max().unwrap_or(1);
    notes.push(format!(
        "{repeat} interleaved repetitions. Growth: RssAnon + RssShmem since MPI_Init, the largest. {} {}, {}, {} cores, \
         Linux {}, load before {}.",
        mpi.kind.name(),
        mpi.version,
        machine.processor,
        machine.cores,
        machine.kernel,
        machine.load
    ));
    if repeat < 3 {
        notes.push(String::from(
            "Too few repetitions for times: their intervals are wide or missing. Use --repeat 3 or more.",
        ));
    }
    if max_ranks as usize > machine.cores {
        notes.push(format!(
            "With {max_ranks} ranks on {} cores, times depend on how the ranks are scheduled.",
            machine.cores
        ));
    }
    if machine.is_busy() {
        notes.push(format!(
            "The machine was not idle (load {}): times are not reliable, memory is.",
            machine.load
        ));
    }
    notes
}

/// One contender in a record.
#[derive(Serialize)]
struct RowRecord<'a> {
    transport: Contender,
    #[serde(flatten)]
    row: &'a Row,
}

fn rows_by_word<S: serde::Serializer>(
    rows: &BTreeMap<Contender, Row>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(rows.iter().map(|(&transport, row)| RowRecord { transport, row }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_mpi::find::Kind;

    const WEIR: Contender = Contender::Mpich(Transport::Weir);
    const SHM: Contender = Contender::Mpich(Transport::MpichShm);
    const TCP: Contender = Contender::Mpich(Transport::OfiTcp);
    const UCX: Contender = Contender::Mpich(Transport::Ucx);

    fn sample(seconds: f64, growth_mebibytes: u64) -> Outcome {
        let growth_bytes = growth_mebibytes << 20;
        let unexpected_messages = 1 << 20;
        Outcome::Finished(Sample {
            seconds,
            growth_bytes,
            node_growth_bytes: 2 * growth_bytes,
            unexpected_messages,
        })
    }

    fn budgets(envelope_budget_bytes: u64) -> Budgets {
        Budgets { budget_bytes: 10 << 20, envelope_budget_bytes }
    }

    #[test]
    fn an_envelope_budget_bounds_the_cost_of_all_messages() {
        assert_eq!(budgets(30 << 20).bound_bytes(1 << 40), 42 << 20);
        assert_eq!(budgets(30 << 20).describe(1 << 40), "1.05 x (10.0 MiB + 30.0 MiB of envelopes)");
        // A flood with fewer messages has no more than without a budget.
        assert_eq!(budgets(30 << 20).bound_bytes(1 << 14), budgets(0).bound_bytes(1 << 14));
        assert_eq!(budgets(30 << 20).describe(1), budgets(0).describe(1));
    }

    /// Three repetitions of 1 Mi messages, so that the bound is 10.5 + 64 MiB.
    fn results() -> CaseResults {
        let case = "1x1048576x2048-blocking".parse::<super::super::cases::CaseArgument>().unwrap().cases[0];
        let mut results = CaseResults::new(case, &[WEIR, SHM, TCP, UCX], budgets(0));
        for (weir, shm, tcp) in [(1.0, 2.0, 1.5), (1.1, 2.2, 9.0), (2.0, 4.0, 9.0)] {
            results.add(WEIR, sample(weir, 74));
            results.add(SHM, sample(shm, 468));
            results.add(TCP, sample(tcp, 1));
        }
        results.add(UCX, Outcome::Unfinished(Unfinished::TimedOut { seconds: 120 }));
        results
    }

    #[test]
    fn the_memory_bound_holds_for_every_repetition() {
        let mut results = results();
        assert_eq!(results.bound_bytes(1 << 20), (21 << 19) + (64 << 20));
        assert!(results.is_within_memory_bound(WEIR) && results.is_within_memory_bound(TCP));
        assert!(!results.is_within_memory_bound(SHM), "468 MiB");
        assert!(!results.is_within_memory_bound(UCX), "did not finish");
        results.add(WEIR, sample(1.0, 75));
        assert!(!results.is_within_memory_bound(WEIR), "once too much is too much");
    }

    #[test]
    fn ratios_use_the_fastest_mpich_transport_that_always_finished() {
        let mut results = results();
        let ratio = results.ratio(WEIR).unwrap();
        assert!((ratio.mean - 0.5).abs() < 1e-12 && ratio.pairs == 3, "by median, shared memory: {ratio:?}");
        assert_eq!(results.ratio(SHM), None);
        assert_eq!(results.ratio(UCX), None);
        results.add(SHM, Outcome::Unfinished(Unfinished::OutOfMemory));
        assert!(!results.may_run(SHM) && results.may_run(TCP));
        assert!(results.ratio(WEIR).unwrap().mean < 0.5, "tcp is the fastest that is left");
    }

    #[test]
    fn tables_show_memory_time_and_unfinished_transports() {
        let mut results = results();
        results.add(SHM, Outcome::TooLarge { needed_bytes: 3 << 30, available_bytes: 1 << 30 });
        let text = render(&results);
        let line = |start: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(start)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert!(line("weir").starts_with("weir 74.0 yes 148 1.10 s (1.00 s .. 2.00 s) 0.2"), "{text}");
        assert_eq!(line("libfabric tcp"), "libfabric tcp 1.00 yes 2.00 9.00 s (1.50 s .. 9.00 s) fastest");
        assert_eq!(line("UCX"), "UCX - - - did not finish -");
        assert_eq!(line("UCX:"), "UCX: timed out after 120 s");
        assert_eq!(
            line("MPICH's own shared memory:"),
            "MPICH's own shared memory: not started: needs 3.00 GiB of free memory, 1.00 GiB are free (repetition 4)"
        );
        assert!(text.contains("1.05 x 10.0 MiB + 64 B x 1,048,576 unexpected messages = 74.5 MiB"), "{text}");
    }

    #[test]
    fn notes_summarise_the_results() {
        let mpi = Mpi {
            kind: Kind::Mpich,
            version: "5.0.2".into(),
            mpiexec: "m".into(),
            found: String::new(),
            unusable: None,
        };
        let notes = notes(&[results()], 3, &Machine::of_this(), &mpi);
        assert_eq!(notes[0], "weir finished within its memory bound in 1 of 1 cases.");
        // In all pairs weir takes exactly half as long, so the interval has no width.
        assert!(notes[1].ends_with("passed 1, failed 0, not resolved 0."), "{notes:?}");
    }

    #[test]
    fn wide_intervals_stay_in_their_cell() {
        let ratio = Ratio { mean: 1.5, low: Some(0.0), high: Some(376_783.0), pairs: 2 };
        assert_eq!(show_ratio(&ratio), "1.50 [0.00 .. > 99]");
    }

    #[test]
    fn records_name_transports_and_all_samples() {
        let json = serde_json::to_value(results()).unwrap();
        let row = |index: usize| &json["rows"][index];
        assert_eq!((&row(0)["transport"], &row(3)["transport"]), (&"weir".into(), &"ucx".into()));
        assert_eq!(row(1)["samples"][2]["seconds"], 4.0);
        assert_eq!(row(3)["ended"]["why"], "timed out after 120 s");
        assert_eq!(json["case"]["mode"], "blocking");
    }
}
