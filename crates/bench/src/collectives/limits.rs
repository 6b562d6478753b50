//! What limits collective operations in a node: the least programs that do something of the same kind, measured in each round beside
//! all contenders, and what they leave of a target.
//!
//! - *Flat counter:* a barrier of as many processes by one counter, with yields. It is what the barrier is compared with.
//! - *Exchange:* two cores write a cache line each, and wait for that of the other. A barrier or an all-reduce of two ranks
//!   needs that at least, or what the counter needs: which one is faster depends on the processor.
//! - *Cache line:* from one core to another. A broadcast or reduce of two ranks whose root changes each time needs one; of late
//!   ranks each but the root.

use super::{Job, MPICH, Results, Target, ratio};
use crate::engine_pair::cache_line;
use crate::node_group;
use crate::statistics::{Quartiles, ratios};
use serde::Serialize;
use std::time::Duration;
use weir_engine::config::Settings;
use weir_link::cores;
use weir_output::Failure;
use weir_output::quantity::{three_digits, time_ns};

/// The verdict of a target that is missed, and that the least program misses too.
const OUT_OF_REACH: &str = "out of reach";

/// Times of the least programs by round. Unit: nanoseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Least {
    /// A barrier by the flat counter.
    pub flat_counter_ns: Vec<f64>,
    /// A cache line. Empty: there is one core.
    pub cache_line_ns: Vec<f64>,
    /// An exchange. Empty: there is one core.
    pub exchange_ns: Vec<f64>,
}

impl Least {
    /// Measures one round beside jobs of `ranks` ranks.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn measure(&mut self, settings: &Settings, ranks: u32, time: Duration) -> Result<(), Failure> {
        self.flat_counter_ns.push(node_group::flat_counter_ns(settings, ranks, time)?);
        let allowed = cores::allowed().map_err(Failure::system("sched_getaffinity"))?;
        let [one, other, ..] = allowed[..] else { return Ok(()) };
        // In a thread of its own, since it is bound to a core and jobs must not be.
        let lines = std::thread::spawn(move || {
            Ok::<_, Failure>([cache_line::one_way_ns([one, other])?, cache_line::exchange_ns([one, other])?])
        });
        let [line, exchange] = lines.join().expect("the thread does not panic")?;
        self.cache_line_ns.push(line);
        self.exchange_ns.push(exchange);
        Ok(())
    }

    /// What an operation of `ranks` ranks takes at least, by round, and what that is. `None`: nothing is known.
    ///
    /// - `word`: the first word of its result line.
    fn of(&self, word: &str, ranks: u32) -> Option<(Vec<f64>, &'static str)> {
        let (times, what) = match (word, ranks) {
            ("barrier" | "allreduce", 2) => {
                let both = self.exchange_ns.iter().zip(&self.flat_counter_ns);
                let faster = both.map(|(exchange, counter)| exchange.min(*counter)).collect();
                (faster, "the faster of two cores that exchange cache lines and of the flat counter takes")
            }
            ("reduce" | "broadcast-short", 2) => {
                (self.cache_line_ns.clone(), "a cache line to another core takes")
            }
            ("broadcast-late", _) => {
                let share = f64::from(ranks - 1) / f64::from(ranks);
                let mean = self.cache_line_ns.iter().map(|line| line * share).collect();
                (mean, "a cache line to all ranks but the root takes, as a mean over the ranks,")
            }
            _ => return None,
        };
        (!times.is_empty()).then_some((times, what))
    }
}

/// The verdict about an operation of a job. A target that is not reached is out of reach if the least program misses it too.
///
/// - `theirs`: times of the MPI that the target names, by round. Unit: microseconds.
pub fn verdict(job: &Job, word: &str, target: &Target, theirs: &[f64]) -> &'static str {
    let ours = job.time_us[0].get(word).map_or(&[][..], Vec::as_slice);
    let found = Quartiles::of(&ratios(ours, theirs).unwrap_or_default()).verdict(target.share);
    let limit = limit(job, word, theirs).map(|(_, _, of_theirs)| of_theirs.verdict(target.share));
    if found == "MISSED" && limit == Some("MISSED") { OUT_OF_REACH } else { found }
}

/// What an operation takes at least, by round, what that is, and its share of an MPI's time.
fn limit(job: &Job, word: &str, theirs: &[f64]) -> Option<(Vec<f64>, &'static str, Quartiles)> {
    let (least_ns, what) = job.least.of(word, job.ranks)?;
    let theirs_ns: Vec<f64> = theirs.iter().map(|us| us * 1e3).collect();
    let shares = ratios(&least_ns, &theirs_ns)?;
    Some((least_ns, what, Quartiles::of(&shares)))
}

/// Lines below the table: targets beside the flat counter, limits of other targets, and of late reduces.
pub fn lines(results: &Results) -> String {
    let mut text = String::new();
    for job in &results.jobs {
        text.push_str(&beside_counter(job));
    }
    let column = |mpi: &str| results.contenders.iter().position(|name| name == mpi);
    for (operation, job) in
        super::OPERATIONS.iter().flat_map(|it| results.jobs.iter().map(move |job| (it, job)))
    {
        let Some(target) = &operation.target else { continue };
        let Some(index) = column(target.mpi) else { continue };
        let theirs = job.time_us[index].get(operation.word).map_or(&[][..], Vec::as_slice);
        let Some((least_ns, what, shares)) = limit(job, operation.word, theirs) else { continue };
        let [low, share, high] = shares.ordered().map(ratio);
        text.push_str(&format!(
            "\nLimit: {}, {} ranks: {what} {}, {share} x {} ({low} .. {high}).",
            operation.name,
            job.ranks,
            time_ns(Quartiles::of(&least_ns).median),
            target.mpi,
        ));
    }
    let Some(mpich) = column(MPICH) else { return text };
    for job in &results.jobs {
        let of = |index: usize, word: &str| job.time_us[index].get(word).map_or(&[][..], Vec::as_slice);
        if let Some(ratios) = ratios(of(0, "reduce-late-least"), of(mpich, "reduce-late")) {
            text.push_str(&format!(
                "\nLimit: reduce 8 B, late ranks, {} ranks: its root's wait alone is {} x the time of {MPICH}.",
                job.ranks,
                ratio(Quartiles::of(&ratios).median),
            ));
        }
    }
    text
}

/// The target of the barrier beside the flat counter.
fn beside_counter(job: &Job) -> String {
    let ours_ns: Vec<f64> =
        job.time_us[0].get("barrier").map_or(&[][..], Vec::as_slice).iter().map(|us| us * 1e3).collect();
    let counter_ns = &job.least.flat_counter_ns;
    let Some(ratios) = ratios(&ours_ns, counter_ns) else { return String::new() };
    let ratios = Quartiles::of(&ratios);
    format!(
        "\nTarget: barrier, {} ranks, at most {} x the flat counter ({}): {} ({} x).",
        job.ranks,
        node_group::LIMIT,
        time_ns(Quartiles::of(counter_ns).median),
        ratios.verdict(node_group::LIMIT),
        three_digits(ratios.median),
    )
}
