//! The search of worlds with holders: no violation, and each wrong rule is detected.

use weir_proto::HoldMutant;
use weir_prove::holding::{Orders, search, worlds};

const MOST_STATES: usize = 4000;
/// All orders have more states.
const FEW_STATES: usize = 1000;

#[test]
fn no_message_is_lost_doubled_or_overtaken_while_senders_hold() {
    for world in worlds() {
        let found = search(&world, None, Orders::Representative, MOST_STATES);
        assert_eq!(found.violation, None, "{world:?}");
        assert!(found.requests > 0 || world.envelopes > 0, "nobody was asked: {world:?}");
    }
}

#[test]
fn every_wrong_rule_of_holding_is_detected() {
    for mutant in HoldMutant::ALL {
        let is_caught =
            |world| search(world, Some(mutant), Orders::Representative, MOST_STATES).violation.is_some();
        let caught = worlds().iter().any(is_caught);
        assert!(caught, "{mutant:?} was not detected");
    }
}

#[test]
fn representative_orders_have_the_results_of_all_orders() {
    let (mut compared, mut most) = (0, 0);
    for world in worlds() {
        let all = search(&world, None, Orders::All, FEW_STATES);
        if all.limited {
            continue;
        }
        let some = search(&world, None, Orders::Representative, FEW_STATES);
        assert!(!some.limited && some.states <= all.states, "{world:?}");
        assert_eq!(some.results, all.results, "{world:?}");
        compared += 1;
        most = most.max(all.results.len());
    }
    assert!(compared > 30 && most > 2, "{compared} worlds with at most {most} results");
}
