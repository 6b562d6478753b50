//! All executors of offloaded operations do the same random cases, and each must give the bits that plain loops give.
//!
//! | executor | barrier | other collective operations | words | locks | multi-sends |
//! |---|---|---|---|---|---|
//! | caller over shared memory | node group | node group | | | |
//! | machines over messages | pairwise exchange | binomial tree, or blocks from the left; exchanges | all | yes | |
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
//! that seed alone, which a failure names.
#![allow(missing_docs, reason = "test code")]

mod case;
mod endpoints;
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
use std::time::Duration;

use fastrand::Rng;
use weir_nic::pretended::Network;
use weir_proto::offload::group::ReductionTree;

use case::{Case, Results};
use endpoints::EndpointExecutor;
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

/// One team does cases by all executors. Counts the cases that each one has done.
fn check_team(seed: u64, cases: usize, network: Option<&Network>, counts: &mut [(String, usize)]) {
    let mut random = Rng::with_seed(seed);
    let members = random.u32(1..=MOST_MEMBERS);
    let mut executors = executors(members, network, &mut random);
    for begin in (0..cases).step_by(BATCH) {
        let batch: Vec<Case> =
            (begin..cases.min(begin + BATCH)).map(|_| Case::draw(members, &mut random)).collect();
        for executor in &mut executors {
            let taken: Vec<&Case> = batch.iter().filter(|case| executor.takes(case)).collect();
            let found = executor.perform(&taken, &mut random);
            let name = executor.name();
            for (case, found) in taken.iter().zip(&found) {
                let expected = expected(case, members);
                assert!(
                    *found == expected,
                    "WEIR_SEED={seed}, {members} members, {name}: {}\n{case:?}",
                    difference(found, &expected)
                );
            }
            let kind = name.split(',').next().unwrap_or_default();
            match counts.iter_mut().find(|(known, _)| known == kind) {
                Some((_, count)) => *count += taken.len(),
                None => panic!("{kind} has no count"),
            }
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: a number")))
}

#[test]
fn all_executors_give_the_bits_of_plain_loops_in_the_order_of_ranks() {
    const KINDS: [&str; 7] = [
        "caller over shared memory",
        "machines over messages",
        "endpoints without an engine",
        "two levels across hosts",
        "simulated processor",
        "simulated NIC",
        "kernel programs",
    ];
    let cases = number("WEIR_CASES").unwrap_or(3000) as usize;
    let each = if cases > 100_000 { 4000 } else { 100 };
    let network = kernel::hosts();
    let mut counts: Vec<(String, usize)> = KINDS.map(|kind| (kind.to_owned(), 0)).into();
    let teams: Vec<u64> =
        number("WEIR_SEED").map_or_else(|| (0..cases.div_ceil(each) as u64).collect(), |it| vec![it]);
    for seed in teams {
        check_team(seed, each, network.as_ref(), &mut counts);
    }
    println!("cases by executor: {counts:?}");
    let idle: Vec<&String> = counts.iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect();
    assert!(idle.iter().all(|name| *name == "kernel programs" && network.is_none()), "{idle:?} did nothing");
}
