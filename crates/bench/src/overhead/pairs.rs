//! Compares the times of two schemes for `weir bench overhead`, in pairs of runs of Intel's MPI benchmarks.

use super::super::imb;
use super::super::jobs::{self, Jobs};
use super::super::statistics::Ratio;
use super::Schemes;
use crate::options::OutputOptions;
use serde::Serialize;
use std::ffi::OsString;
use std::path::PathBuf;
use weir_mpi::find::Mpi;
use weir_mpi::launch::{JobTransport, Launch};
use weir_output::Failure;

/// Name of each benchmark, and its column of times.
const BENCHMARKS: [(&str, &str); 3] =
    [("PingPong", "t[usec]"), ("Sendrecv", "t_avg[usec]"), ("Exchange", "t_avg[usec]")];
/// Measurements of each size in a run. The smallest counts, since other work disturbs some.
pub const BLOCKS: usize = 6;
/// Repetitions in a block: several periods of credits (one in some 90 packets of a slot), 10 ms for 64 KiB.
const REPETITIONS: &str = "500";
/// Time limit of a block: on a busy host it has fewer repetitions. Unit: seconds.
const BLOCK_S: &str = "0.1";

/// The inputs of all pairs.
pub struct Pairs {
    /// MPICH.
    pub mpi: Mpi,
    /// IMB-MPI1.
    pub imb: PathBuf,
    /// Directory of weir's plug-in.
    pub provider: PathBuf,
    /// File with the message lengths, [`BLOCKS`] times, for IMB.
    pub lengths: PathBuf,
    /// The message lengths.
    pub sizes: Vec<u64>,
    /// The two schemes.
    pub schemes: Schemes,
    /// Limits of a run.
    pub jobs: Jobs,
}

/// The times of a benchmark at one size in all pairs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Name of the benchmark.
    pub benchmark: &'static str,
    /// Message size.
    pub bytes: u64,
    /// Times with `flow`, by pair. Unit: us.
    pub flow_us: Vec<f64>,
    /// Times with `over`, by pair. Unit: us.
    pub over_us: Vec<f64>,
}

impl Point {
    /// The mean ratio over the pairs.
    pub fn ratio(&self) -> Option<Ratio> {
        Ratio::of_pairs(&self.flow_us, &self.over_us)
    }
}

/// The results of all pairs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairsResult {
    /// By benchmark and size.
    pub points: Vec<Point>,
    /// The mean over the pairs. The ratio of a pair is the mean over benchmarks and sizes.
    pub overall: Option<Ratio>,
}

impl PairsResult {
    /// Combines the pairs: `pairs[i][point] = (flow, over)`.
    fn new(sizes: &[u64], pairs: &[Vec<(f64, f64)>]) -> PairsResult {
        let names = BENCHMARKS.iter().flat_map(|(name, _)| sizes.iter().map(move |bytes| (*name, *bytes)));
        let points = names.enumerate().map(|(index, (benchmark, bytes))| Point {
            benchmark,
            bytes,
            flow_us: pairs.iter().map(|pair| pair[index].0).collect(),
            over_us: pairs.iter().map(|pair| pair[index].1).collect(),
        });
        let mean_log = |pair: &Vec<(f64, f64)>| {
            pair.iter().map(|(flow, over)| (flow / over).ln()).sum::<f64>() / pair.len() as f64
        };
        let logs: Vec<f64> = pairs.iter().map(mean_log).collect();
        PairsResult { points: points.collect(), overall: Ratio::of_logs(&logs) }
    }
}

impl Pairs {
    /// Runs `count` pairs. Returns the result of the finished pairs, if any, and one line why there are fewer.
    ///
    /// # Errors
    /// A signal ended this command.
    pub fn measure(
        &self,
        count: u32,
        output: &OutputOptions,
    ) -> Result<(Option<PairsResult>, Option<String>), Failure> {
        let bar = output.progress_bar(u64::from(count) * 2);
        let mut pairs: Vec<Vec<(f64, f64)>> = Vec::new();
        // One run first, so that caches and files are warm.
        let mut failed = self.run_once(&self.schemes.over)?.err();
        for pair in 0..count {
            if failed.is_some() {
                break;
            }
            let mut times: [Vec<f64>; 2] = Default::default();
            // The first scheme alternates, so that an advantage of the second run cancels out.
            for &(half, flow) in
                jobs::rotated(&[(0, &self.schemes.flow), (1, &self.schemes.over)], pair as usize)
            {
                bar.set_message(format!("pair {}: {flow}", pair + 1));
                match self.run_once(flow)? {
                    Ok(run) => times[half] = run,
                    Err(why) => failed = Some(format!("{flow}: {why}")),
                }
                bar.inc(1);
            }
            if failed.is_none() {
                let [flow, over] = times;
                pairs.push(flow.into_iter().zip(over).collect());
            }
        }
        let why = failed.map(|why| format!("only {} of {count} pairs were run: {why}", pairs.len()));
        Ok(((!pairs.is_empty()).then(|| PairsResult::new(&self.sizes, &pairs)), why))
    }

    /// Times of all benchmarks and sizes, in order. Unit: us.
    fn run_once(&self, flow: &str) -> Result<Result<Vec<f64>, String>, Failure> {
        let mut launch = Launch::new(&self.mpi, 2, JobTransport::Weir(&self.provider), &[]);
        launch.set("FI_WEIR_FLOW", flow);
        let mut words: Vec<OsString> = BENCHMARKS.iter().map(|(name, _)| (*name).into()).collect();
        words.extend(
            ["-iter", REPETITIONS, "-time", BLOCK_S, "-iter_policy", "dynamic", "-msglen"]
                .map(OsString::from),
        );
        words.push(self.lengths.clone().into());
        launch.program(&self.imb, words);
        Ok(match self.jobs.run(&launch, || true)? {
            Err(unfinished) => Err(unfinished.to_string()),
            Ok(output) => times(&output, &self.sizes),
        })
    }
}

fn times(output: &str, sizes: &[u64]) -> Result<Vec<f64>, String> {
    let mut times = Vec::new();
    for (name, column) in BENCHMARKS {
        let section = imb::section(output, name).ok_or_else(|| format!("no results of {name}"))?;
        times.extend(imb::by_size(section, column, sizes).map_err(|why| format!("{name}: {why}"))?);
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
# Benchmarking PingPong
       #bytes #repetitions      t[usec]   Mbytes/sec
            8         1000         0.50        13.62
         2048         1000         1.00      1853.57

# Benchmarking Sendrecv
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]   Mbytes/sec
            8         1000         0.60         0.80         0.70        22.00
         2048         1000         1.60         1.80         1.70        22.00

# Benchmarking Exchange
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]   Mbytes/sec
            8         1000         2.60         2.80         2.70        22.00
         2048         1000         3.60         3.80         3.70        22.00
";

    #[test]
    fn all_benchmarks_of_a_run_are_read() {
        assert_eq!(times(OUTPUT, &[8, 2048]), Ok(vec![0.5, 1.0, 0.7, 1.7, 2.7, 3.7]));
        let short = &OUTPUT[..OUTPUT.find("# Benchmarking Exchange").unwrap()];
        assert_eq!(times(short, &[8]), Err(String::from("no results of Exchange")));
        assert_eq!(times(OUTPUT, &[16]), Err(String::from("PingPong: no row for 16 bytes")));
    }

    #[test]
    fn a_pair_counts_once_for_any_number_of_sizes() {
        // Six points: all 2 % slower in one pair, all 4 % slower in the other.
        let pair =
            |factor: f64| (1..=6).map(|us| (f64::from(us) * factor, f64::from(us))).collect::<Vec<_>>();
        let result = PairsResult::new(&[8, 2048], &[pair(1.02), pair(1.04)]);
        let overall = result.overall.unwrap();
        assert_eq!(overall.pairs, 2);
        assert!((overall.mean - (1.02_f64 * 1.04).sqrt()).abs() < 1e-12);
        assert_eq!(result.points.len(), 6);
        assert_eq!((result.points[3].benchmark, result.points[3].bytes), ("Sendrecv", 2048));
        assert!((result.points[3].flow_us[1] - 4.16).abs() < 1e-12);
        assert_eq!(result.points[3].over_us, [4.0, 4.0]);
    }
}
