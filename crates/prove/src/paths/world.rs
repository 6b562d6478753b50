//! The small worlds of paths: what may happen in each, and how often. And the wrong rules that they must detect.

use weir_proto::reliability::Mutant;

/// A small world. Any order of deliveries is possible in each.
#[derive(Clone, Copy, Debug)]
pub struct World {
    /// Its name.
    pub name: &'static str,
    /// Bundles that each endpoint submits, over all its lives.
    pub bundles: [u32; 2],
    /// Datagrams that the network loses.
    pub losses: u32,
    /// Datagrams that it delivers twice.
    pub repetitions: u32,
    /// Timers of each endpoint that expire before the network becomes fair.
    pub expirations: [u32; 2],
    /// Restarts of each endpoint.
    pub restarts: [u32; 2],
    /// Times that a driver refuses datagrams for a while.
    pub refusals: u32,
    /// The time that each arrival takes on the clock of its endpoint: the round trip that the path measures. Unit: ns.
    pub arrival_ns: u64,
    /// Several datagrams may arrive before the end of a batch.
    pub batches: bool,
}

const NOTHING: World = World {
    name: "",
    bundles: [0, 0],
    losses: 0,
    repetitions: 0,
    expirations: [0, 0],
    restarts: [0, 0],
    refusals: 0,
    arrival_ns: 0,
    batches: false,
};

/// Worlds that are searched in seconds, also in debug builds.
pub fn quick() -> Vec<World> {
    let world = |name| World { name, ..NOTHING };
    vec![
        World {
            bundles: [2, 0],
            losses: 1,
            expirations: [1, 0],
            ..world("two bundles, one loss, one timer")
        },
        World { bundles: [2, 0], repetitions: 1, ..world("two bundles, one repetition") },
        World { bundles: [2, 0], restarts: [1, 0], ..world("two bundles, their sender restarts") },
        World {
            bundles: [2, 0],
            restarts: [0, 1],
            expirations: [1, 0],
            ..world("two bundles, their receiver restarts")
        },
    ]
}

/// All worlds of `make prove`.
pub fn full() -> Vec<World> {
    let world = |name| World { name, ..NOTHING };
    let mut worlds = quick();
    worlds.extend([
        World {
            bundles: [2, 0],
            losses: 1,
            expirations: [2, 1],
            ..world("two bundles, one loss, three timers")
        },
        World { bundles: [2, 0], losses: 2, expirations: [2, 0], ..world("two bundles, two losses") },
        World { bundles: [3, 0], losses: 1, expirations: [1, 0], ..world("three bundles, one loss") },
        World {
            bundles: [2, 0],
            losses: 1,
            repetitions: 1,
            expirations: [1, 0],
            ..world("two bundles, one loss, one repetition")
        },
        World {
            bundles: [2, 0],
            losses: 1,
            expirations: [2, 0],
            arrival_ns: 100_000,
            ..world("two bundles, one loss, slow network")
        },
        World {
            bundles: [2, 0],
            losses: 1,
            expirations: [1, 0],
            batches: true,
            ..world("two bundles, one loss, batches")
        },
        World {
            bundles: [2, 0],
            losses: 1,
            expirations: [1, 0],
            refusals: 1,
            ..world("two bundles, one loss, a refusal")
        },
        World { bundles: [1, 1], losses: 1, expirations: [1, 0], ..world("one bundle each, one loss") },
        World {
            bundles: [1, 1],
            losses: 1,
            expirations: [1, 1],
            ..world("one bundle each, one loss, two timers")
        },
        World {
            bundles: [2, 0],
            losses: 1,
            expirations: [1, 0],
            restarts: [1, 0],
            ..world("two bundles, one loss, their sender restarts")
        },
        World {
            bundles: [2, 0],
            losses: 1,
            expirations: [1, 0],
            restarts: [0, 1],
            ..world("two bundles, one loss, their receiver restarts")
        },
        World {
            bundles: [2, 0],
            repetitions: 1,
            restarts: [1, 1],
            ..world("two bundles, one repetition, both restart")
        },
        World {
            bundles: [1, 1],
            expirations: [1, 0],
            restarts: [1, 1],
            ..world("one bundle each, both restart")
        },
    ]);
    worlds
}

/// Wrong rules that these worlds detect. Those about time, windows and grants have tests beside the machine.
pub fn wrong_rules() -> [Mutant; 6] {
    [
        Mutant::AcknowledgementIsNotCumulative,
        Mutant::EpochsAreNotCompared,
        Mutant::RestartNeedsNoProof,
        Mutant::LaterEpochsAreNotAsked,
        Mutant::RepeatedBundlesAreDelivered,
        Mutant::AcknowledgementsAreAcknowledged,
    ]
}
