//! The measures of `weir bench pingpong`, and the parsers of the benchmarks' output.

use crate::imb;
use clap::ValueEnum;
use serde::Serialize;

/// Message size of the message rate. Unit: bytes.
pub const RATE_BYTES: u64 = 8;

/// One of Intel's MPI benchmarks, as named on the command line. A job runs one; it provides one measure or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Benchmark {
    /// Half round trip between two ranks (IMB-MPI1 PingPong).
    Pingpong,
    /// Rate of 8 B messages from one rank to another, 64 outstanding (IMB-MPI1 Uniband).
    Rate,
    /// Barrier (IMB-MPI1 Barrier).
    Barrier,
}

impl Benchmark {
    /// Its name on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Benchmark::Pingpong => "pingpong",
            Benchmark::Rate => "rate",
            Benchmark::Barrier => "barrier",
        }
    }
}

/// One row of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "measure", rename_all = "snake_case")]
pub enum Measure {
    /// Half the time of a round trip. Unit of samples: us.
    HalfRoundTripUs {
        /// Message size.
        bytes: u64,
    },
    /// Messages from one rank to another. Unit of samples: messages per second.
    MessagesPerSecond {
        /// Message size.
        bytes: u64,
    },
    /// A barrier, mean over the ranks. Unit of samples: us.
    BarrierUs {
        /// Ranks.
        ranks: u32,
    },
}

impl Measure {
    /// The benchmark whose job provides this measure.
    pub fn benchmark(self) -> Benchmark {
        match self {
            Measure::HalfRoundTripUs { .. } => Benchmark::Pingpong,
            Measure::MessagesPerSecond { .. } => Benchmark::Rate,
            Measure::BarrierUs { .. } => Benchmark::Barrier,
        }
    }
}

/// Reads the output of PingPong: one sample for each size.
///
/// # Errors
/// One line: the column or row that is missing.
pub fn half_round_trips(output: &str, sizes: &[u64]) -> Result<Vec<(Measure, f64)>, String> {
    let values = imb::by_size(output, "t[usec]", sizes)?;
    Ok(sizes.iter().map(|&bytes| Measure::HalfRoundTripUs { bytes }).zip(values).collect())
}

/// Reads the output of Uniband: the rate of messages of [`RATE_BYTES`].
///
/// # Errors
/// One line: the column or row that is missing.
pub fn message_rate(output: &str) -> Result<Vec<(Measure, f64)>, String> {
    let values = imb::by_size(output, "Msg/sec", &[RATE_BYTES])?;
    Ok(values.into_iter().map(|value| (Measure::MessagesPerSecond { bytes: RATE_BYTES }, value)).collect())
}

/// Reads the output of Barrier: the mean over the ranks.
///
/// # Errors
/// One line: the column or row that is missing.
pub fn barrier(output: &str, ranks: u32) -> Result<Vec<(Measure, f64)>, String> {
    let value = imb::first(output, "t_avg[usec]")?;
    Ok(vec![(Measure::BarrierUs { ranks }, value)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pingpong_output_gives_one_sample_for_each_size() {
        let output = "\
       #bytes #repetitions      t[usec]   Mbytes/sec
            8          500         0.59        13.62
         2048          500         1.10      1853.57
";
        let half = |bytes| Measure::HalfRoundTripUs { bytes };
        assert_eq!(half_round_trips(output, &[2048, 8]), Ok(vec![(half(2048), 1.10), (half(8), 0.59)]));
    }

    #[test]
    fn the_message_rate_is_read() {
        let output = "\
       #bytes #repetitions   Mbytes/sec      Msg/sec
            8         2000        22.11      2764372

";
        let rate = Measure::MessagesPerSecond { bytes: 8 };
        assert_eq!(message_rate(output), Ok(vec![(rate, 2_764_372.0)]));
        assert!(message_rate(&output.replace("2764372", "-nan")).is_err());
        assert!(message_rate(&output.replace("2764372", "0")).is_err());
    }

    #[test]
    fn the_barrier_is_read() {
        let output = " #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]\n           29     16000.22     16789.63     16444.89\n";
        assert_eq!(barrier(output, 8), Ok(vec![(Measure::BarrierUs { ranks: 8 }, 16444.89)]));
        assert_eq!(barrier("", 8), Err("no column t_avg[usec]".into()));
    }
}
