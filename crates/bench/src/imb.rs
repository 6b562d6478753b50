//! Intel's MPI benchmarks (IMB): writes the file of message lengths that they read, and parses their output, which
//! is rows of numbers below a heading that names the columns.

use std::path::Path;
use weir_output::Failure;

/// The value of `column` for each of these message sizes. If a size was measured several times, the smallest value counts.
///
/// # Errors
/// One line: the column or row that is missing.
pub fn by_size(output: &str, column: &str, sizes: &[u64]) -> Result<Vec<f64>, String> {
    let table = Table::find(output, column)?;
    let of_size = |&bytes: &u64| {
        let values = table.values(column, |row| row.first() == Some(&(bytes as f64)));
        values.min_by(f64::total_cmp).ok_or_else(|| format!("no row for {bytes} bytes"))
    };
    sizes.iter().map(of_size).collect()
}

/// Writes a file with message lengths, for the option -msglen.
///
/// # Errors
/// [`Failure::System`].
pub fn write_lengths(path: &Path, sizes: impl IntoIterator<Item = u64>) -> Result<(), Failure> {
    let text: String = sizes.into_iter().map(|size| format!("{size}\n")).collect();
    std::fs::write(path, text).map_err(Failure::system(path.display().to_string()))
}

/// The output of one benchmark, if a job ran several.
pub fn section<'a>(output: &'a str, benchmark: &str) -> Option<&'a str> {
    const HEADING: &str = "# Benchmarking ";
    output.split(HEADING).skip(1).find(|section| section.split_whitespace().next() == Some(benchmark))
}

/// The first positive number of `column`.
///
/// # Errors
/// One line: the column or row that is missing.
pub fn first(output: &str, column: &str) -> Result<f64, String> {
    let table = Table::find(output, column)?;
    table.values(column, |_| true).next().ok_or_else(|| String::from("no row of numbers"))
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
    fn values_are_found_by_column_and_size() {
        assert_eq!(by_size(PINGPONG, "t[usec]", &[2048, 8]), Ok(vec![1.10, 0.59]));
        assert_eq!(by_size(PINGPONG, "t[usec]", &[16]), Err("no row for 16 bytes".into()));
        assert_eq!(by_size("", "t[usec]", &[16]), Err("no column t[usec]".into()));
        assert_eq!(first(PINGPONG, "Mbytes/sec"), Ok(13.62));
        assert_eq!(first(" t[usec]\n x\n", "t[usec]"), Err("no row of numbers".into()));
    }

    #[test]
    fn the_smallest_value_of_a_repeated_size_counts() {
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
}
