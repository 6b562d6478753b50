//! All executors of offloaded operations do the same random cases, and each must give the bits that plain loops give.
//!
//! | executor | barrier | other collective operations | words | locks | multi-sends |
//! |---|---|---|---|---|---|
//! | caller over shared memory | node group | node group | | | |
//! | machines over messages | pairwise exchange | binomial tree, or blocks from the left; exchanges | all | yes | |
//! | helper over messages | as machines over messages | the same | all | yes | |
//! | endpoints without an engine | | | | | all flow control, with bytes |
//! | two levels across hosts | node group, exchange over UDP | node group, then UDP | | | |
//! | simulated processor and NIC | exchange or any tree | as over messages, or a named tree; postal broadcasts | 64 bits | yes | lengths |
//! | kernel programs (as root, with clang) | one level | all-reduce in a frame | 64 bits | yes | in a frame, with bytes |
//!
//! Sums and products of floats depend on brackets. All executors set them from the left. Named trees do other operations
//! only, except the flat one. The host-based versions in the simulator (`weir_sim::collective`) carry lengths and no
//! bytes, so they have no part here. `locks.rs` says what is checked of locks.
//!
//! `WEIR_CASES=1000000 cargo test --release -p weir-sim --test executors` checks a million cases, and `WEIR_SEED=7` the team of
//! that seed alone, which a failure names. `WEIR_FIRST_TEAM=40` leaves out the 40 teams before it, which have 160,000 of a
//! million cases, so that several runs can share the work.
#![allow(missing_docs, reason = "test code")]

mod case;
mod endpoints;
mod helper;
mod hosts;
mod kernel;
mod locks;
mod node;
mod oracle;
mod simulated;
#[allow(dead_code, reason = "the worlds of weir-proto's own tests use the rest")]
#[path = "../../../proto/tests/world/mod.rs"]
mod world;

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use fastrand::Rng;
use weir_nic::pretended::Network;
use weir_proto::offload::group::ReductionTree;

use case::{Case, Results};
use endpoints::EndpointExecutor;
use helper::HelperExecutor;
use hosts::LevelExecutor;
use kernel::KernelExecutor;
use node::{MessageExecutor, NodeExecutor};
use oracle::expected;
use simulated::SimulatedExecutor;

/// Nothing takes that long.
pub const LONG: Duration = Duration::from_secs(60);
const MOST_MEMBERS: u32 = 9;
/// Cases that an executor gets at once.
const BATCH: usize = 25;
/// Cases of a team, if few or many are wanted in all.
const SHORT_TEAM: usize = 100;
const LONG_TEAM: usize = 4000;
/// What an executor's name begins with.
const KINDS: [&str; 8] = [
    "caller over shared memory",
    "machines over messages",
    "helper over messages",
    "endpoints without an engine",
    "two levels across hosts",
    "simulated processor",
    "simulated NIC",
    "kernel programs",
];

/// Somebody who can carry out cases for a team.
pub trait Executor {
    fn name(&self) -> String;

    /// Whether it has all operations of a case.
    fn takes(&self, case: &Case) -> bool;

    /// Carries out cases that it takes, one after the other.
    fn perform(&mut self, cases: &[&Case], random: &mut Rng) -> Vec<Results>;
}

/// All executors for a team of so many members.
fn executors(members: u32, network: Option<&Network>, random: &mut Rng) -> Vec<Box<dyn Executor>> {
    let mut all: Vec<Box<dyn Executor>> =
        vec![Box::new(NodeExecutor::new(members, random)), Box::new(MessageExecutor::new(members, random))];
    all.push(Box::new(HelperExecutor::new(members, random)));
    all.push(Box::new(EndpointExecutor { members }));
    if let Some(levels) = LevelExecutor::new(members, random) {
        all.push(Box::new(levels));
    }
    use ReductionTree::{Binomial, Chain, Flat, FromTheLeft};
    let named = random.choice([Binomial, Chain, Flat]).expect("three");
    for (on_nic, reduction) in [(false, FromTheLeft), (true, FromTheLeft), (true, named)] {
        all.push(Box::new(SimulatedExecutor::new(members, on_nic, reduction, random)));
    }
    if let Some(kernel) = network.and_then(|network| KernelExecutor::new(network, members, random)) {
        all.push(Box::new(kernel));
    }
    all
}

/// Where results differ, for a message.
fn difference(found: &Results, expected: &Results) -> String {
    let mut text = String::new();
    for (number, (found, expected)) in found.iter().zip(expected).enumerate() {
        for (rank, (found, expected)) in found.iter().zip(expected).enumerate() {
            if found != expected {
                let at = found.iter().zip(expected).position(|(found, expected)| found != expected);
                let around = |bytes: &[u8]| {
                    let from = at.unwrap_or(0) / 8 * 8;
                    bytes.get(from..bytes.len().min(from + 8)).map(<[u8]>::to_vec)
                };
                let lengths = [found.len(), expected.len()];
                let words = [around(found), around(expected)];
                let _ =
                    write!(text, "operation {number} at {rank}: byte {at:?} of {lengths:?}, {words:x?}; ");
            }
        }
    }
    text
}

/// What one kind of executor has done.
#[derive(Clone, Copy, Default)]
struct Share {
    cases: usize,
    /// Of the thread that drives the executor, also while it waits for the kernel.
    time: Duration,
}

/// What each kind of executor has done, in the order of [`KINDS`].
type Shares = [Share; KINDS.len()];

/// One team does cases by all executors. Returns what each of them has done.
fn check_team(seed: u64, cases: usize, network: Option<&Network>) -> Shares {
    let mut random = Rng::with_seed(seed);
    let mut shares = Shares::default();
    // Teams have more cases in long runs.
    let again = if cases > SHORT_TEAM { "WEIR_CASES=1000000 " } else { "" };
    let members = random.u32(1..=MOST_MEMBERS);
    let mut executors = executors(members, network, &mut random);
    for begin in (0..cases).step_by(BATCH) {
        let batch: Vec<Case> =
            (begin..cases.min(begin + BATCH)).map(|_| Case::draw(members, &mut random)).collect();
        for executor in &mut executors {
            let taken: Vec<&Case> = batch.iter().filter(|case| executor.takes(case)).collect();
            let start = Instant::now();
            let found = executor.perform(&taken, &mut random);
            let time = start.elapsed();
            let name = executor.name();
            for (case, found) in taken.iter().zip(&found) {
                let expected = expected(case, members);
                assert!(
                    *found == expected,
                    "{again}WEIR_SEED={seed}, {members} members, {name}: {}\n{case:?}",
                    difference(found, &expected)
                );
            }
            let kind = name.split(',').next().unwrap_or_default();
            let place = KINDS.iter().position(|known| *known == kind);
            let share = &mut shares[place.unwrap_or_else(|| panic!("{kind} is not in the list"))];
            *share = Share { cases: share.cases + taken.len(), time: share.time + time };
        }
    }
    shares
}

/// Checks the teams of these seeds, in one thread for each core. Each thread has pretended hosts of its own.
fn check_teams(seeds: &[u64], cases: usize, with_kernel: bool) -> Shares {
    let threads = available_parallelism().map_or(1, usize::from).min(seeds.len());
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let check = || {
        let network = with_kernel.then(|| kernel::hosts().expect("they were made before"));
        let mut shares = Shares::default();
        while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
            let checked = catch_unwind(AssertUnwindSafe(|| check_team(*seed, cases, network.as_ref())));
            // A difference that one thread finds ends the others after the team that they are at.
            let stop = |_: &_| next.store(seeds.len(), Ordering::Relaxed);
            add(&mut shares, checked.inspect_err(stop).unwrap_or_else(|panic| resume_unwind(panic)));
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(10) && seeds.len() >= 40 {
                eprintln!("{done} of {} teams, from {} on", seeds.len(), seeds[0]);
            }
        }
        shares
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(check)).collect();
        let mut total = Shares::default();
        for thread in running {
            add(&mut total, thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        total
    })
}

fn add(total: &mut Shares, more: Shares) {
    for (total, more) in total.iter_mut().zip(more) {
        *total = Share { cases: total.cases + more.cases, time: total.time + more.time };
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: a number")))
}

#[test]
fn all_executors_give_the_bits_of_plain_loops_in_the_order_of_ranks() {
    let cases = number("WEIR_CASES").unwrap_or(3000) as usize;
    let each = if cases > 100_000 { LONG_TEAM } else { SHORT_TEAM };
    let first = number("WEIR_FIRST_TEAM").unwrap_or(0);
    let seeds: Vec<u64> =
        number("WEIR_SEED").map_or_else(|| (first..cases.div_ceil(each) as u64).collect(), |it| vec![it]);
    let with_kernel = kernel::hosts().is_some();
    let shares = check_teams(&seeds, each, with_kernel);
    for (kind, Share { cases, time }) in KINDS.iter().zip(shares) {
        println!("{kind:28} {cases:8} cases in {:6.1} s", time.as_secs_f64());
    }
    let idle = KINDS.iter().zip(shares).filter(|(_, share)| share.cases == 0).map(|(kind, _)| *kind);
    let idle: Vec<&str> = idle.collect();
    assert!(idle.iter().all(|kind| *kind == "kernel programs" && !with_kernel), "{idle:?} did nothing");
}
