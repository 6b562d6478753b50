//! Runs the worlds of a plan on several threads, and makes their records. A world runs on one thread and is independent
//! of all others; a panic of one does not end the others.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use super::record::{Key, MAX_KEPT, Measure, Record};
use super::setup::{Programs, Setup};
use crate::network::Network;
use crate::network::faulty::Faulty;
use crate::network::mesh::Mesh;
use crate::network::registry::{NetworkKeys, Shape, SwitchedKeys, WithNetwork};
use crate::network::reliable::{PathReading, Reliable};
use crate::program::{Program, Rank};
use crate::trace::Trace;
use crate::workload::measure;
use crate::world::{PoolReading, Report, World, WorldError};

/// A world that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{world}: {why}")]
pub struct Failed {
    /// Short description of the world.
    pub world: String,
    /// The key of the world's record.
    pub key: Key,
    /// The message of [`WorldError`] or of a panic.
    pub why: String,
}

/// Runs one world on this thread. The external checks are on in debug builds, and elsewhere in a sample of worlds
/// ([`Setup::is_sampled`]).
///
/// # Errors
/// [`Failed`].
pub fn run(setup: &Setup) -> Result<Record, Failed> {
    let started = Instant::now();
    let size = super::network::mesh(&setup.settings.mesh_nodes).unwrap_or([1; 3]);
    let shape = Shape {
        ranks: setup.settings.ranks,
        mesh: Mesh { size },
        ranks_per_node: setup.settings.ranks_per_node.max(1),
        mailbox_slots: setup.mailbox_slots(),
    };
    let world = || match setup.settings.reliability {
        None => setup.network.model.build(shape, RunWorld(setup)),
        Some(reliability) => {
            let keys: SwitchedKeys = setup.network.model.keys().expect("the plan was checked");
            let faults =
                setup.settings.faults.as_ref().and_then(|faults| faults.of_links(setup.settings.seed));
            run_world(setup, Reliable::new(keys.network(shape), reliability, faults.unwrap_or_default()))
        }
    };
    let record = || Ok(record(setup, &world()?, is_checked(setup), started.elapsed().as_secs_f64()));
    without_panic(record).map_err(|why| Failed { world: setup.settings.describe(), key: setup.key(), why })
}

fn is_checked(setup: &Setup) -> bool {
    cfg!(debug_assertions) || setup.is_sampled()
}

/// Catches a panic of a world, so that the other worlds still run. All state of the failed world is dropped.
fn without_panic<T>(world: impl FnOnce() -> Result<T, WorldError>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(world)) {
        Ok(ended) => ended.map_err(|error| error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!("a bug: {}", text.unwrap_or("a panic without a message")))
        }
    }
}

/// Runs the world on a network, with the faults of links that the plan states.
struct RunWorld<'a>(&'a Setup);

impl WithNetwork for RunWorld<'_> {
    type Output = Result<Report, WorldError>;

    fn call<N: Network>(self, network: N) -> Result<Report, WorldError> {
        let RunWorld(setup) = self;
        let faults = setup.settings.faults.as_ref().and_then(|faults| faults.of_links(setup.settings.seed));
        match faults {
            None => run_world(setup, network),
            Some(faults) => run_world(setup, Faulty::new(network, faults).expect("the plan was checked")),
        }
    }
}

fn run_world<N: Network>(setup: &Setup, network: N) -> Result<Report, WorldError> {
    let spec = setup.world_spec(network.geometry());
    let programs = &setup.programs;
    let (skew_ns, seed) = (setup.settings.start_skew_ns, setup.settings.seed);
    let world = World::new(spec, network, |rank| {
        let program = programs.program(rank.clone());
        if skew_ns == 0 {
            return program;
        }
        let mut draw = Trace::default();
        draw.note(seed);
        draw.note(rank.rank().into());
        let late_ps = draw.hash() % (skew_ns * 1000);
        Box::pin(async move {
            rank.compute(late_ps);
            program.await;
        })
    })
    .checked(is_checked(setup));
    match &setup.settings.faults {
        None => world.run(),
        Some(faults) => world.with_faults(&faults.of_ranks()).expect("the plan was checked").run(),
    }
}

impl Programs {
    /// The program of a rank.
    pub(super) fn program(&self, rank: Rank) -> Program {
        match self {
            Programs::Named(workload) => workload.program(rank),
            Programs::Goal(schedule, _) => schedule.program(rank),
        }
    }
}

fn record(setup: &Setup, report: &Report, checked: bool, wall_s: f64) -> Record {
    let mut measures: BTreeMap<String, Measure> = BTreeMap::new();
    let mut note = |name: &str, rank: u32, value: f64| {
        let measure = measures.entry(name.to_owned()).or_insert(Measure {
            count: 0,
            mean: 0.0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            of_rank_0: Vec::new(),
        });
        measure.count += 1;
        measure.mean += value; // the sum, until all are there
        measure.min = measure.min.min(value);
        measure.max = measure.max.max(value);
        if rank == 0 && measure.of_rank_0.len() < MAX_KEPT {
            measure.of_rank_0.push(value);
        }
    };
    for left in &report.records {
        note(left.name, left.rank, left.value);
    }
    for path in &report.paths {
        PathReading::MEASURES.iter().for_each(|(name, value)| note(name, path.rank, value(path)));
    }
    for (rank, pool) in (0..).zip(&report.pools) {
        for (name, value) in PoolReading::MEASURES {
            note(name, rank, value(pool));
        }
    }
    measures.values_mut().for_each(|measure| measure.mean /= measure.count as f64);
    let finished_ns = report.finished_at as f64 / 1000.0;
    let mean = |name: &str| measures.get(name).map(|measure| measure.mean);
    let time_ns = match &setup.programs {
        Programs::Named(workload) => match workload.records() {
            // Larger rates are better. So the time per message is used, which compares like all other times.
            names if names.contains(&measure::MESSAGES_PER_S) => {
                mean(measure::MESSAGES_PER_S).map(|per_s| 1e9 / per_s)
            }
            names => names.first().and_then(|name| mean(name)),
        },
        Programs::Goal(..) => None,
    };
    let total = |count: fn(&weir_proto::Counters) -> u64| report.counters.iter().map(count).sum::<u64>();
    Record {
        key: setup.key(),
        settings: setup.settings.clone(),
        trace: format!("{:016x}", report.trace),
        finished_ns,
        time_ns: time_ns.unwrap_or(finished_ns),
        events: report.events,
        packet_hops: report.packet_hops,
        packets: total(|counters| counters.packets_sent),
        credit_packets: total(|counters| counters.credit_packets_sent),
        messages: total(|counters| counters.messages_sent),
        stalls: total(|counters| counters.stalls),
        stalled_ns: total(|counters| counters.stalled_ns),
        rnr_naks: total(|counters| counters.rnr_naks),
        drops: report.drops,
        marks: report.marks,
        peak_quota_slots: report.counters.iter().map(|counters| counters.peak_quota_slots).max().unwrap_or(0),
        latency_p50_ns: report.latency_ns.value_at_quantile(0.5),
        latency_p99_ns: report.latency_ns.value_at_quantile(0.99),
        peak_mailbox_slots: report.peak_mailbox_slots,
        measures,
        checked,
        wall_s,
    }
}

/// Runs worlds on `jobs` threads, in the order given. Calls `ended` on this thread for each world in the
/// order in which they end. After `ended` returns `false`, no further world begins, except one that each
/// thread may already have begun.
pub fn run_all(
    setups: &[&Setup],
    jobs: usize,
    mut ended: impl FnMut(&Setup, Result<Record, Failed>) -> bool,
) {
    let next = AtomicUsize::new(0);
    let go_on = AtomicBool::new(true);
    // A thread waits until its result is received, so that it never runs far ahead of `ended`.
    let (send, receive) = mpsc::sync_channel(0);
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, setups.len().max(1)) {
            let (next, go_on, send) = (&next, &go_on, send.clone());
            scope.spawn(move || {
                while go_on.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(setup) = setups.get(index) else { return };
                    if send.send((index, run(setup))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        for (index, result) in receive {
            if !ended(setups[index], result) {
                go_on.store(false, Ordering::Relaxed);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panicking_world_is_reported_as_failed() {
        assert_eq!(without_panic(|| Ok(3)), Ok(3));
        let limit = without_panic::<()>(|| Err(WorldError::EventLimit { limit: 7 }));
        assert_eq!(limit, Err(String::from("the world has more than 7 events, its event limit")));
        assert_eq!(without_panic::<()>(|| panic!("slot {}", 5)), Err(String::from("a bug: slot 5")));
        assert_eq!(without_panic::<()>(|| panic!("slots")), Err(String::from("a bug: slots")));
    }
}
