//! The search of paths over a network with faults: no violation, every kind of fault occurs, and each wrong rule is detected.

use weir_prove::paths::{flaw_of, quick, search, wrong_rules};

#[test]
fn bundles_arrive_once_and_in_order_and_every_state_comes_to_rest() {
    for world in quick() {
        let found = search(&world, None, usize::MAX);
        assert_eq!(found.flaw.map(|flaw| flaw.to_string()), None, "{world:?}");
        assert_eq!(found.evidence.missing(&world), [""; 0], "{world:?}");
    }
}

#[test]
fn every_wrong_rule_of_a_path_is_detected() {
    for mutant in wrong_rules() {
        let caught = quick().iter().any(|world| flaw_of(world, mutant, usize::MAX).is_some());
        assert!(caught, "{mutant:?} was not detected");
    }
}
