//! The search of worlds with holders: no violation, and each wrong rule is detected.

use weir_proto::HoldMutant;
use weir_prove::holding::{search, worlds};

const MOST_STATES: usize = 4000;

#[test]
fn no_message_is_lost_doubled_or_overtaken_while_senders_hold() {
    for world in worlds() {
        let found = search(&world, None, MOST_STATES);
        assert_eq!(found.violation, None, "{world:?}");
        assert!(found.requests > 0 || world.envelopes > 0, "nobody was asked: {world:?}");
    }
}

#[test]
fn every_wrong_rule_of_holding_is_detected() {
    for mutant in HoldMutant::ALL {
        let caught =
            worlds().iter().any(|world| search(world, Some(mutant), MOST_STATES).violation.is_some());
        assert!(caught, "{mutant:?} was not detected");
    }
}
