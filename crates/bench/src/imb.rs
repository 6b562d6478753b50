//! Reading what Intel's MPI benchmarks print: rows of numbers under a heading that names the columns.

use super::pingpong::Group;
use serde::Serialize;

/// Message size of the message rate. Unit: bytes.
pub const RATE_BYTES: u64 = 8;

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
    /// The job that measures it.
    pub fn group(self) -> Group {
        match self {
            Measure::HalfRoundTripUs { .. } => Group::Pingpong,
            Measure::MessagesPerSecond { .. } => Group::Rate,
            Measure::BarrierUs { .. } => Group::Barrier,
        }
    }
}

/// PingPong: one row for each size.
pub fn half_round_trips(output: &str, sizes: &[u64]) -> Result<Vec<(Measure, f64)>, String> {
    let values = by_size(output, "t[usec]", sizes)?;
    Ok(sizes.iter().map(|&bytes| Measure::HalfRoundTripUs { bytes }).zip(values).collect())
}

/// The values of `column` in the rows of these sizes; where a size was measured several times, the least.
pub fn by_size(output: &str, column: &str, sizes: &[u64]) -> Result<Vec<f64>, String> {
    let table = Table::find(output, column)?;
    let of_size = |&bytes: &u64| {
        let values = table.values(column, |row| row.first() == Some(&(bytes as f64)));
        values.min_by(f64::total_cmp).ok_or_else(|| format!("no row for {bytes} bytes"))
    };
    sizes.iter().map(of_size).collect()
}

/// What was printed by one of several benchmarks.
pub fn section<'a>(output: &'a str, benchmark: &str) -> Option<&'a str> {
    const HEADING: &str = "# Benchmarking ";
    output.split(HEADING).skip(1).find(|section| section.split_whitespace().next() == Some(benchmark))
}

/// Uniband: the rate of its only size.
pub fn message_rate(output: &str) -> Result<Vec<(Measure, f64)>, String> {
    let table = Table::find(output, "Msg/sec")?;
    let value = table.value("Msg/sec", |row| row.first() == Some(&(RATE_BYTES as f64)));
    Ok(vec![(Measure::MessagesPerSecond { bytes: RATE_BYTES }, value.ok_or("no row for 8 bytes")?)])
}

/// Barrier: mean over the ranks.
pub fn barrier(output: &str, ranks: u32) -> Result<Vec<(Measure, f64)>, String> {
    let table = Table::find(output, "t_avg[usec]")?;
    let value = table.value("t_avg[usec]", |_| true).ok_or("no row of numbers")?;
    Ok(vec![(Measure::BarrierUs { ranks }, value)])
}

/// The rows below the heading line that has a certain column.
struct Table<'a> {
    columns: Vec<&'a str>,
    rows: Vec<Vec<f64>>,
}

impl<'a> Table<'a> {
    fn find(output: &'a str, column: &str) -> Result<Table<'a>, String> {
        let mut lines = output.lines();
        let columns: Vec<&str> = lines
            .by_ref()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .find(|words| words.contains(&column))
            .ok_or_else(|| format!("no column {column}"))?;
        let parse =
            |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>();
        let rows = lines.map_while(|line| parse(line).filter(|row| row.len() == columns.len())).collect();
        Ok(Table { columns, rows })
    }

    /// The value of `column` in the first row that `wanted` accepts and that has a positive number there.
    fn value(&self, column: &str, wanted: impl Fn(&[f64]) -> bool) -> Option<f64> {
        self.values(column, wanted).next()
    }

    /// The positive numbers of `column` in all rows that `wanted` accepts.
    fn values(&self, column: &str, wanted: impl Fn(&[f64]) -> bool) -> impl Iterator<Item = f64> {
        let index = self.columns.iter().position(|name| *name == column);
        let rows = self.rows.iter().filter(move |row| wanted(row));
        rows.filter_map(move |row| row.get(index?).copied()).filter(|value| value.is_finite() && *value > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PINGPONG: &str = "\
#---------------------------------------------------
# Benchmarking PingPong 
# #processes = 2 
#---------------------------------------------------
       #bytes #repetitions      t[usec]   Mbytes/sec
            8          500         0.59        13.62
         2048          500         1.10      1853.57


# All processes entering MPI_Finalize
";

    #[test]
    fn pingpong_is_read_by_size() {
        let half = |bytes| Measure::HalfRoundTripUs { bytes };
        assert_eq!(half_round_trips(PINGPONG, &[2048, 8]), Ok(vec![(half(2048), 1.10), (half(8), 0.59)]));
        assert_eq!(half_round_trips(PINGPONG, &[16]), Err("no row for 16 bytes".into()));
        assert_eq!(half_round_trips("", &[16]), Err("no column t[usec]".into()));
    }

    #[test]
    fn the_least_of_repeated_sizes_counts() {
        let again = PINGPONG.replace("\n\n\n#", "\n            8          500         0.55        13.62\n            8          500         0.57        13.62\n\n");
        assert_eq!(by_size(&again, "t[usec]", &[8, 2048]), Ok(vec![0.55, 1.10]));
    }

    #[test]
    fn sections_of_several_benchmarks_are_separated() {
        let output =
            format!("{PINGPONG}# Benchmarking PingPongSpecificSource \nx\n# Benchmarking Exchange \ny\n");
        assert_eq!(section(&output, "Exchange"), Some("Exchange \ny\n"));
        assert!(section(&output, "PingPong").unwrap().contains("0.59"));
        assert_eq!(section(&output, "Ping"), None);
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
        assert_eq!(barrier(PINGPONG, 8), Err("no column t_avg[usec]".into()));
    }
}
