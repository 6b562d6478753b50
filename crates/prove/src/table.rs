//! Runs the suite of `make prove` and prints its tables: a line for each search of a setup, and a line for each mutant
//! with the check that detects it. A failed search also prints the moves that lead to the failure. [`walk`] runs random
//! worlds by their seeds, for `make worlds` and to repeat one.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::explore::{Limits, Report, explore};
use crate::model::{Happened, Setup};
use crate::suite::{Case, Mutant};
use crate::worlds;

/// Searches all cases and prints the table. Returns whether every check holds and every wanted kind was seen.
pub fn prove(cases: &[Case]) -> bool {
    println!(
        "{:<46}{:>9}{:>10}{:>6}{:>7}{:>7}{:>6}  verdict; number of states with ...",
        "search", "states", "moves", "depth", "s", "CPU s", "MB"
    );
    let mut total = Duration::ZERO;
    let mut good = true;
    for case in cases {
        let mut last_report = Instant::now();
        let report = explore(&case.setup, case.limits, |states, depth| {
            if last_report.elapsed().as_secs() >= 10 {
                last_report = Instant::now();
                eprintln!("{:<46}{states:>9}{depth:>16}", case.setup.name);
            }
        });
        let (verdict, holds) = verdict(case, &report);
        good &= holds;
        let Report { states, edges, depth, time, cpu_time, memory_bytes, happened, .. } = &report;
        total += *cpu_time;
        let (time, cpu_time) = (time.as_secs_f64(), cpu_time.as_secs_f64());
        let memory = memory_bytes >> 20;
        print!(
            "{:<46}{states:>9}{edges:>10}{depth:>6}{time:>7.1}{cpu_time:>7.1}{memory:>6}",
            case.setup.name
        );
        let seen = Happened::ALL.into_iter().filter(|&kind| happened[kind as usize] > 0);
        let seen: Vec<_> = seen.map(|kind| format!("{} {}", kind.name(), happened[kind as usize])).collect();
        println!("  {verdict}; {}", seen.join(", "));
        let _ = std::io::stdout().flush();
    }
    println!("all searches: {:.0} s of processor time", total.as_secs_f64());
    good
}

/// The verdict on a report in words, and whether the case is as expected.
pub fn verdict(case: &Case, report: &Report) -> (String, bool) {
    if let Some((violation, path)) = &report.failure {
        let path: Vec<String> = path.iter().map(|step| format!("{step:?}")).collect();
        return (
            format!("FAILS {}: {}\n    {}", violation.check, violation.detail, path.join("\n    ")),
            false,
        );
    }
    let unseen = report.unseen(&case.wanted);
    if !unseen.is_empty() {
        return (format!("NO EVIDENCE, never seen: {}", unseen.join(", ")), false);
    }
    match (report.complete, case.complete) {
        (true, _) => ("holds".into(), true),
        (false, true) => ("INCOMPLETE".into(), false),
        (false, false) => (format!("holds to depth {}", report.depth), true),
    }
}

/// Searches all mutants and prints which check detects each. With `from_outside` it also searches without the machine's
/// own checks, which shows what a user would see. Returns whether the expected checks detect all of them.
pub fn catch_mutants(mutants: &[Mutant], from_outside: bool) -> bool {
    println!("{:<38}{:<48}{:<31}without the machine's own checks", "mutant", "setup", "detected by");
    println!(
        "{:<86}{:<10}{:>9}{:>7}     {:<10}{:>9}{:>7}",
        "", "check", "states", "moves", "check", "states", "moves"
    );
    let mut good = true;
    for mutant in mutants {
        let all = caught(&mutant.setup);
        print!("{:<38}{:<48}{:<10}{:>9}{:>7}     ", mutant.name, mutant.setup.name, all.0, all.1, all.2);
        let mut verdict = if all.0 == mutant.caught_by { "" } else { "  NOT AS EXPECTED" };
        match mutant.from_outside.filter(|_| from_outside) {
            None => print!("{:<26}", "-"),
            Some(expected) => {
                let outside = caught(&Setup { inner_checks: false, ..mutant.setup.clone() });
                print!("{:<10}{:>9}{:>7}", outside.0, outside.1, outside.2);
                if outside.0 != expected {
                    verdict = "  NOT AS EXPECTED";
                }
            }
        }
        println!("{verdict}");
        let _ = std::io::stdout().flush();
        good &= verdict.is_empty();
    }
    good
}

/// The check that fails, the number of states, and the number of moves to the failure.
fn caught(setup: &Setup) -> (&'static str, u32, usize) {
    // A mutant may violate the machine's own assertions. They count as checks, so their output is suppressed.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let limits = Limits { states: 400_000, threads: 1, ..Limits::default() };
    let report = explore(setup, limits, |_, _| {});
    std::panic::set_hook(hook);
    report
        .failure
        .map_or(("NONE", report.states, 0), |(violation, path)| (violation.check, report.states, path.len()))
}

/// Runs the worlds of `seeds` with two threads. Prints progress every five seconds. For the first failure it prints the
/// command that repeats it.
pub fn walk(seeds: std::ops::Range<u64>) -> bool {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    let (next, moves) = (AtomicU64::new(seeds.start), AtomicU64::new(0));
    let failed = AtomicBool::new(false);
    let start = Instant::now();
    let work = |reports: bool| {
        let mut last_report = Instant::now();
        while !failed.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            match worlds::walk(seed) {
                Ok(made) => {
                    moves.fetch_add(made, Ordering::Relaxed);
                }
                Err(violation) => {
                    failed.store(true, Ordering::Relaxed);
                    let Setup { processes, config, quota_slots, .. } = worlds::setup(seed);
                    println!("FAILS {}: {}", violation.check, violation.detail);
                    println!("  {processes} processes, quota {quota_slots}, {config:?}");
                    println!("repeat with: cargo run --release -p weir-prove -- worlds --seed {seed:x}");
                    return;
                }
            }
            if reports && last_report.elapsed().as_secs() >= 5 {
                last_report = Instant::now();
                let done = seed - seeds.start;
                let left = start.elapsed().as_secs_f64() / (done + 1) as f64 * (seeds.end - seed) as f64;
                eprintln!("{done} of {} worlds, {left:.0} s left", seeds.end - seeds.start);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(false));
        work(true);
    });
    let failed = failed.into_inner();
    if !failed {
        let worlds = seeds.end - seeds.start;
        println!(
            "{worlds} worlds, {} moves, {:.0} s: no violation",
            moves.into_inner(),
            start.elapsed().as_secs_f64()
        );
    }
    !failed
}
