//! The figure of `weir bench flood --figure`: the memory of the flooded rank over time, one curve for each contender
//! with samples. Also parses the lines in which the flood program prints these samples.

use super::table::CaseResults;
use crate::result_line::ResultLine;
use serde::Serialize;
use weir_output::chart::{Chart, Curve};
use weir_output::quantity::{bytes, time_ns};

/// Interval at which the flooded rank samples its memory. Unit: ms.
pub const SAMPLE_INTERVAL_MS: u64 = 10;
/// Most points of a curve; a longer curve shows the largest sample of each part.
const MAX_POINTS: usize = 240;

/// Memory of the flooded rank at one time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MemorySample {
    /// Time since the senders began. Unit: s.
    pub s: f64,
    /// Growth of RssAnon + RssShmem since MPI_Init; 0 if they shrank.
    pub growth_bytes: u64,
}

impl MemorySample {
    /// Reads the lines `memory s=... growth_kib=...` of the program. A line that was cut off is left out.
    pub fn parse_all(output: &str) -> Vec<MemorySample> {
        let sample = |line: ResultLine<'_>| {
            let growth_kib = line.number("growth_kib").ok()?.max(0.0) as u64;
            // Rounded to the interval, so that the first sample is at 0.
            let s = (line.number("s").ok()? * 100.0).round() / 100.0;
            Some(MemorySample { s, growth_bytes: growth_kib.saturating_mul(1024) })
        };
        ResultLine::all(output, "memory").filter_map(sample).collect()
    }
}

/// Draws the memory samples of `results` as an SVG file. `None` if there are no samples.
///
/// The time axis ends with the longest flood that finished. Transports that did not finish have a curve up to there.
pub fn draw(results: &CaseResults) -> Option<String> {
    let rows = || results.memory().filter(|row| !row.samples.is_empty());
    let end = |finished: bool| {
        let ends =
            rows().filter(|row| row.seconds.is_some() == finished).filter_map(|row| row.samples.last());
        ends.map(|sample| sample.s).fold(0.0, f64::max)
    };
    let end_s = if rows().any(|row| row.seconds.is_some()) { end(true) } else { end(false) };
    let mut chart = Chart::new(
        "Memory of a flooded receiver",
        "time since the senders began (s)",
        "growth since MPI_Init (MiB)",
    )
    .without_markers();
    for (number, row) in rows().enumerate() {
        let peak_bytes = row.samples.iter().map(|sample| sample.growth_bytes).max().unwrap_or(0);
        let end = match row.seconds {
            Some(seconds) => time_ns(seconds * 1e9),
            None => String::from("did not finish"),
        };
        let name = format!("{}: at most {}, {end}", row.contender.heading(), bytes(peak_bytes));
        chart.spread_curve(number, name, curve(row.samples, end_s), Vec::new());
    }
    (!chart.is_empty()).then(|| chart.draw_file(&results.case.describe()))
}

/// The samples up to `end_s`, in MiB. Of each of [`MAX_POINTS`] parts of the time, the largest sample is a point.
fn curve(samples: &[MemorySample], end_s: f64) -> Curve {
    let mut points: Vec<(usize, f64, f64)> = Vec::new();
    for sample in samples.iter().filter(|sample| sample.s <= end_s) {
        let part = (sample.s / end_s * MAX_POINTS as f64) as usize;
        let mebibytes = sample.growth_bytes as f64 / f64::from(1 << 20);
        match points.last_mut() {
            Some((last, _, largest)) if *last == part => *largest = largest.max(mebibytes),
            _ => points.push((part, sample.s, mebibytes)),
        }
    }
    Curve(points.into_iter().map(|(_, s, mebibytes)| (s, mebibytes)).collect())
}

#[cfg(test)]
mod tests {
    use super::super::cases::{CaseArgument, Sample};
    use super::super::table::{Budgets, Outcome};
    use super::*;
    use crate::contender::Contender;
    use crate::jobs::Unfinished;
    use crate::transport::Transport;

    const WEIR: Contender = Contender::Mpich(Transport::Weir);
    const SHM: Contender = Contender::Mpich(Transport::MpichShm);
    const TCP: Contender = Contender::Mpich(Transport::OfiTcp);

    const BUDGETS: Budgets = Budgets { budget_bytes: 16 << 20, envelope_budget_bytes: 0 };

    /// Samples every 10 ms for `seconds`, rising to `mebibytes`.
    fn rising(seconds: f64, mebibytes: f64) -> Vec<MemorySample> {
        let count = (seconds * 100.0) as u32;
        let sample = |number: u32| MemorySample {
            s: f64::from(number) / 100.0,
            growth_bytes: (f64::from(number) / f64::from(count) * mebibytes * 1_048_576.0) as u64,
        };
        (0..=count).map(sample).collect()
    }

    fn results() -> CaseResults {
        let case = "3x100000x2048-blocking".parse::<CaseArgument>().unwrap().cases[0];
        let mut results = CaseResults::new(case, &[WEIR, SHM, TCP], BUDGETS);
        let sample = Sample { seconds: 1.0, growth_bytes: 1, node_growth_bytes: 1, unexpected_messages: 1 };
        results.add(WEIR, Outcome::Finished(sample));
        results.add(SHM, Outcome::Finished(sample));
        results.add(TCP, Outcome::Unfinished(Unfinished::TimedOut { seconds: 120 }));
        results.set_memory(WEIR, rising(2.0, 20.0));
        results.set_memory(SHM, rising(6.0, 800.0));
        results.set_memory(TCP, rising(120.0, 3.0));
        results
    }

    #[test]
    fn memory_lines_are_read_and_cut_off_lines_are_left_out() {
        let output =
            "hello\nmemory s=0.0100 growth_kib=4\nmemory s=0.0200 growth_kib=-8\nmemory s=0.0300 grow";
        let sample = |s, growth_bytes| MemorySample { s, growth_bytes };
        assert_eq!(MemorySample::parse_all(output), [sample(0.01, 4096), sample(0.02, 0)]);
        assert_eq!(MemorySample::parse_all("flood senders=1\n"), []);
    }

    #[test]
    fn the_figure_has_a_curve_and_a_legend_entry_for_each_transport() {
        let svg = draw(&results()).unwrap();
        for text in [
            "Memory of a flooded receiver",
            "3 senders x 100,000 messages of 2 KiB, blocking sends",
            "(s)",
            "(MiB)",
            "weir: at most 20.0 MiB, 1.00 s",
            "MPICH&apos;s own shared memory: at most 800 MiB, 1.00 s",
            "libfabric tcp: at most 3.00 MiB, did not finish",
        ] {
            assert!(svg.contains(text) || svg.contains(&text.replace("&apos;", "'")), "{text}: {svg}");
        }
        assert!(svg.matches("<polyline").count() >= 3, "{svg}");
        assert!(svg.contains("#FFFFFF") && svg.len() < 60_000, "{} bytes", svg.len());
    }

    #[test]
    fn the_time_axis_ends_with_the_longest_flood_that_finished() {
        let end = |curve: Curve| curve.0.last().map(|point| point.0);
        assert_eq!(end(curve(&rising(120.0, 3.0), 6.0)), Some(6.0));
        assert_eq!(end(curve(&rising(2.0, 20.0), 6.0)), Some(2.0));
        let curve = curve(&rising(6.0, 800.0), 6.0);
        assert!(curve.0.len() <= MAX_POINTS + 1);
        assert!((curve.0.last().unwrap().1 - 800.0).abs() < 0.1, "the peak stays");
    }

    #[test]
    fn without_samples_there_is_no_figure() {
        let case = results().case;
        assert_eq!(draw(&CaseResults::new(case, &[WEIR], BUDGETS)), None);
    }
}
