//! Tests of known failures of other credit schemes, as far as a search of a small world can exclude them.
//! `docs/explanation/proof.md` has the whole list and the tests of the others.

use weir_prove::explore::explore;
use weir_prove::{suite, table};

/// Runs the quick search of this name to its end and checks that it holds in every state.
fn holds(name: &str) {
    let case =
        suite::quick().into_iter().find(|case| case.setup.name == name).expect("a search of that name");
    let report = explore(&case.setup, case.limits, |_, _| {});
    let (verdict, holds) = table::verdict(&case, &report);
    assert!(holds && report.complete, "{name}: {verdict}");
}

#[test]
fn failure_1_both_sides_may_spend_their_last_credit() {
    holds("static: both ways q=1 n=1"); // every credit is the last one
}

#[test]
fn failure_2_a_grant_does_not_wait_behind_data_that_waits_for_credit() {
    holds("static: both ways q=2 n=1, 2 slots"); // half-sent messages at the head of both backlogs
}

#[test]
fn failure_3_and_5_every_due_grant_arrives() {
    holds("dynamic: one way q=2 n=1, stealing");
}

#[test]
fn failure_7_one_way_traffic_needs_no_return_messages() {
    holds("static, explicit: star q=1 n=1");
    holds("dynamic: star q=1 n=1");
}
