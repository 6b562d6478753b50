//! The part of the proof in `make test`: complete searches of small worlds, some random worlds, and every mutant.

use weir_prove::explore::explore;
use weir_prove::{suite, table};

#[test]
fn small_worlds_hold_in_every_state() {
    for case in suite::quick() {
        let report = explore(&case.setup, case.limits, |_, _| {});
        let (verdict, holds) = table::verdict(&case, &report);
        assert!(holds, "{}: {verdict}", case.setup.name);
    }
}

#[test]
fn every_mutant_is_caught() {
    assert!(table::catch_mutants(&suite::mutants(), false), "see the table above");
}

#[test]
fn some_random_worlds_hold() {
    assert!(table::walk(0..500), "see the line above");
}

/// Worlds that found a mistake: a request that a send on the common path did not transmit (2933), and checks that did
/// not know of a message that credits cut short (1113, c3) and of a long backlog (2c76, 7017).
#[test]
fn random_worlds_that_found_mistakes_hold() {
    for seed in [0x2933, 0x1113, 0xc3, 0x2c76, 0x7017] {
        assert!(table::walk(seed..seed + 1), "seed {seed:x}: see the line above");
    }
}
