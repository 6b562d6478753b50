//! `weir bench one-sided`: puts, gets and accumulates of a rank to itself and to another one, over weir and other
//! transports.
//!
//! Rounds are interleaved, as in `weir bench pingpong`. A job runs all operations of one transport.
//!
//! Expected on 2 cores: a job measures 18 rows for 0.1 s each, so a round of three transports takes 6 s, and five rounds
//! half a minute.

mod table;

use crate::contender::Contender;
use crate::contender_set::ContenderSet;
use crate::jobs::{self, Jobs};
use crate::machine::Machine;
use crate::options::{MpichOption, OutputOptions, TimeoutOption};
use crate::program::ONE_SIDED;
use crate::result_line::ResultLine;
use crate::transport::Transport;
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use table::{Results, Row};
use weir_engine::config::Settings;
use weir_mpi::scratch;
use weir_output::Failure;

/// Transports without `--only`.
const DEFAULT_TRANSPORTS: [Transport; 3] = [Transport::Weir, Transport::MpichShm, Transport::OfiTcp];

/// Most bytes of an operation.
const MAX_BYTES: u64 = 1 << 30;

/// Options of `weir bench one-sided`.
#[derive(Args, Debug)]
#[command(after_help = "\
Rank 0 puts, gets and accumulates, each in one MPI_Win_lock and MPI_Win_unlock, to itself and to rank 1, which waits in a \
barrier. The data are checked. Each cell of the table has the median of the rounds, the least and the greatest value, and \
the ratio to weir's median. If the range of a transport overlaps with weir's, the difference is marked as within noise.

It needs an MPICH with libfabric, UCX and mpicc (pip install mpich), and a C compiler. weir's settings come from the \
environment (see `weir settings`).

Exit status:
  0      everything was measured
  1      a transport is missing, failed or timed out
  2      a wrong option or setting")]
pub struct OneSidedArguments {
    /// Sizes of the operations: multiples of 4. Unit: bytes.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = [8, 16384, 2 << 20])]
    sizes: Vec<u64>,
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Time for each row of a job. Unit: seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.1)]
    seconds: f64,
    /// Measure only these transports [default: weir,mpich-shm,ofi-tcp].
    #[arg(long, value_name = "TRANSPORT", value_delimiter = ',')]
    only: Vec<Transport>,
    #[command(flatten)]
    mpich: MpichOption,
    #[command(flatten)]
    timeout: TimeoutOption,
    #[command(flatten)]
    output: OutputOptions,
}

impl OneSidedArguments {
    /// # Errors
    /// [`Failure::Usage`]: a size or time that the program does not take.
    fn check(&self) -> Result<(), Failure> {
        if let Some(size) = self.sizes.iter().find(|&&size| size == 0 || size % 4 != 0 || size > MAX_BYTES) {
            return Err(Failure::Usage(format!(
                "--sizes {size}: allowed are multiples of 4 up to {MAX_BYTES}"
            )));
        }
        if !(self.seconds > 0.0 && self.seconds <= 60.0) {
            return Err(Failure::Usage(format!(
                "--seconds {}: allowed is more than 0 and at most 60",
                self.seconds
            )));
        }
        Ok(())
    }

    fn transports(&self) -> Vec<Transport> {
        if self.only.is_empty() { DEFAULT_TRANSPORTS.to_vec() } else { self.only.clone() }
    }
}

/// The part of the `--json` record below its head.
#[derive(Serialize)]
struct RecordContent<'a> {
    machine: &'a Machine,
    mpis: Vec<String>,
    rounds: u32,
    settings: BTreeMap<&'static str, String>,
    results: &'a Results,
}

/// Measures and prints. Returns the exit status.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &OneSidedArguments) -> Result<u8, Failure> {
    arguments.output.record.check()?;
    arguments.check()?;
    let settings = Settings::from_environment()?;
    settings.quota(2)?;
    let scratch = scratch::directory()?;
    let wanted: Vec<Contender> = arguments.transports().into_iter().map(Contender::Mpich).collect();
    let set = ContenderSet::prepare(&arguments.mpich, &wanted, &[ONE_SIDED], scratch.path())?;
    let jobs = Jobs { limit: arguments.timeout.limit(), shm_dir: settings.shm_dir.clone() };
    let machine = Machine::of_this();
    let mut results = Results::new(arguments.transports());
    for (contender, why) in &set.missing {
        results.fail(contender.word(), format!("missing: {why}"));
    }
    let mut words = vec![arguments.seconds.to_string()];
    words.extend(arguments.sizes.iter().map(u64::to_string));
    let bar = arguments.output.progress_bar(u64::from(arguments.repeat) * set.ready.len() as u64);
    for round in 1..=arguments.repeat {
        for &contender in jobs::rotated(&set.ready, round as usize - 1) {
            bar.set_message(format!("round {round}: {}", contender.word()));
            bar.inc(1);
            let Contender::Mpich(transport) = contender else { continue };
            if results.has_failed(contender.word()) {
                continue;
            }
            match jobs.run(&set.launch(contender, 2, ONE_SIDED, words.clone()), || true)? {
                Err(unfinished) => results.fail(contender.word(), unfinished.to_string()),
                Ok(output) => match samples(&output) {
                    Ok(samples) => samples.into_iter().for_each(|(row, us)| results.add(transport, row, us)),
                    Err(why) => results.fail(contender.word(), format!("unexpected output: {why}")),
                },
            }
        }
    }
    drop(bar);
    arguments.output.record.print(table::render(
        &results,
        &machine,
        &set.mpis().join(", "),
        arguments.repeat,
    ))?;
    let content = RecordContent {
        machine: &machine,
        mpis: set.mpis(),
        rounds: arguments.repeat,
        settings: settings.to_variables().into_iter().collect(),
        results: &results,
    };
    arguments.output.record.write("weir-bench-one-sided-1", content)?;
    Ok(u8::from(!results.is_complete()))
}

/// The rows of a job and their times. Unit: us.
fn samples(output: &str) -> Result<Vec<(Row, f64)>, String> {
    let lines: Vec<_> = ResultLine::all(output, "one_sided").collect();
    if lines.is_empty() {
        return Err("it printed no result".into());
    }
    let row = |line: &ResultLine| {
        let (to_itself, operation) = (line.value("target")? == "self", line.value("operation")?.to_owned());
        let bytes = line.value("bytes")?.parse().map_err(|_| String::from("bytes is no number"))?;
        Ok((Row { to_itself, operation, bytes }, line.positive("us")?))
    };
    lines.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_the_program_is_a_sample() {
        let output = "hello\none_sided operation=put target=self bytes=8 us=0.910 times=7\n\
                      one_sided operation=get target=other bytes=16384 us=3.5 times=9\n";
        let row = |to_itself, operation: &str, bytes| Row { to_itself, operation: operation.into(), bytes };
        assert_eq!(samples(output), Ok(vec![(row(true, "put", 8), 0.91), (row(false, "get", 16384), 3.5)]));
        assert_eq!(samples("hello\n"), Err("it printed no result".into()));
        assert!(samples("one_sided operation=put target=self bytes=8 us=0\n").is_err());
    }
}
