//! Test that compares the trace hashes of small worlds with a file. A change that does not affect the model changes
//! no hash.
//!
//! This command writes the file again after an intended change of the model:
//! `WEIR_WRITE_TRACES=1 cargo test -p weir-sim --test simulator traces::`.

use std::fmt::Write as _;
use std::path::Path;

use weir_sim::plan::{Plan, run};

#[test]
fn small_worlds_have_the_trace_hashes_on_file() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces");
    let networks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/networks");
    let plan = Plan::read(&tests.join("plan.toml"), &networks, false).expect("a plan");
    let mut found = String::new();
    for setup in &plan.worlds {
        let record = run::run(setup).expect("the world ends");
        let network = &setup.settings.network;
        writeln!(found, "{} {network}: {}", record.trace, setup.settings.describe()).expect("text");
    }
    let path = tests.join("hashes.txt");
    if std::env::var_os("WEIR_WRITE_TRACES").is_some() {
        std::fs::write(&path, &found).expect("written");
    }
    let kept = std::fs::read_to_string(&path).expect("the file of hashes");
    for (found, kept) in found.lines().zip(kept.lines()) {
        assert_eq!(found, kept, "left: found, right: {}", path.display());
    }
    assert_eq!(found.lines().count(), kept.lines().count(), "worlds of the plan");
}
