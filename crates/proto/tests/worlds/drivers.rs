//! Wrong drivers, which random worlds must notice.

use fastrand::Rng;
use weir_proto::Geometry;

use super::world::{DriverFault, Plan, World};
use super::{plan, run_program};

/// Runs `worlds` worlds with and without the fault. Without it, all hold; with it, more than 10 must not.
fn assert_detected(fault: DriverFault, worlds: u64, changed: impl Fn(Plan) -> Plan) {
    let holds = |fault, seed| {
        let mut rng = Rng::with_seed(seed);
        let plan = changed(plan(&mut rng));
        let mut world = World::new(plan);
        world.fault = fault;
        let run = std::panic::AssertUnwindSafe(|| run_program(world, rng));
        std::panic::catch_unwind(run).is_ok()
    };
    let mut found = 0;
    for seed in 0..worlds {
        assert!(holds(None, seed), "seed {seed:x} fails without {fault:?}");
        found += u32::from(!holds(Some(fault), seed));
    }
    println!("{fault:?}: {found} of {worlds} worlds fail");
    assert!(found > 10, "{found} of {worlds} worlds notice {fault:?}");
}

#[test]
fn forgotten_deferred_credits_are_detected() {
    assert_detected(DriverFault::ForgetsDeferredCredits, 100, |plan| Plan { deferring: u32::MAX, ..plan });
}

#[test]
fn whole_messages_to_readers_are_detected() {
    assert_detected(DriverFault::NobodyReads, 100, |plan| {
        let (cross_memory, readable_eager_bytes) = (true, 64);
        Plan { cross_memory, readable_eager_bytes, eager_bytes: 2048, ..plan }
    });
}

#[test]
fn a_geometry_that_only_one_side_knows_is_detected() {
    assert_detected(DriverFault::OneSideLearnsTheGeometry, 100, |plan| {
        let (geometry, far_geometry) = (Geometry::SHARED_MEMORY, Geometry::EXTOLL);
        Plan { geometry, far_geometry, second_node: 0b1010_1010, ..plan }
    });
}
