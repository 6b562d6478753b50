//! `make prove` and `make worlds`: explores, prints tables, and fails on a violation or on a check without effect.

use std::process::ExitCode;
use std::time::Duration;

use weir_prove::{holding, paths, suite, table};

const USAGE: &str = "\
weir-prove                      run all searches, then the mutants
weir-prove quick                run the searches that take seconds, then the mutants
weir-prove only TEXT [SECONDS]  run the searches whose name contains TEXT; processor time of each (default 600)
weir-prove holding [STATES]     run the searches of holders, at most STATES states each (default 1000000)
weir-prove paths [quick]        run the searches of paths over a network that loses; quick: those that take seconds
weir-prove mutants              run the mutants only
weir-prove worlds [N]           run N random worlds (default 1000000), seeds from 0
weir-prove worlds --seed HEX    repeat one random world";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let good = match arguments[..] {
        [] => table::prove(&suite::full()) & catch_mutants() & holding::prove(1_000_000) & all_paths(),
        ["quick"] => table::prove(&suite::quick()) & catch_mutants() & holding::prove(20_000) & quick_paths(),
        ["only", text] => table::prove(&only(text, 600)),
        ["only", text, seconds] => match seconds.parse() {
            Ok(seconds) => table::prove(&only(text, seconds)),
            Err(error) => return usage(&format!("only {text} {seconds}: {error}")),
        },
        ["holding"] => holding::prove(1_000_000),
        ["holding", states] => match states.parse() {
            Ok(states) => holding::prove(states),
            Err(error) => return usage(&format!("holding {states}: {error}")),
        },
        ["paths"] => all_paths(),
        ["paths", "quick"] => quick_paths(),
        ["mutants"] => catch_mutants(),
        ["worlds"] => table::walk(0..1_000_000),
        ["worlds", "--seed", seed] => match u64::from_str_radix(seed, 16) {
            Ok(seed) => table::walk(seed..seed + 1),
            Err(error) => return usage(&format!("--seed {seed}: {error}")),
        },
        ["worlds", count] => match count.parse() {
            Ok(count) => table::walk(0..count),
            Err(error) => return usage(&format!("worlds {count}: {error}")),
        },
        _ => return usage("unknown arguments"),
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn only(text: &str, seconds: u64) -> Vec<suite::Case> {
    let mut cases = suite::full();
    cases.iter_mut().for_each(|case| case.limits.cpu_time = Duration::from_secs(seconds));
    cases.retain(|case| case.setup.name.contains(text));
    cases
}

fn all_paths() -> bool {
    paths::prove(&paths::full(), 1_000_000)
}

fn quick_paths() -> bool {
    paths::prove(&paths::quick(), 1_000_000)
}

fn catch_mutants() -> bool {
    println!();
    table::catch_mutants(&suite::mutants(), true)
}

fn usage(error: &str) -> ExitCode {
    eprintln!("{error}\n{USAGE}");
    ExitCode::from(2)
}
