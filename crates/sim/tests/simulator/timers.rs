//! Tests of the timers of endpoint machines in the simulator, under every scheme.

use crate::support::{SCHEMES, spec};
use weir_proto::{Geometry, Instant, Peer, Purpose, Scheme, Timer};
use weir_sim::network::ideal::Ideal;
use weir_sim::program::Rank;
use weir_sim::world::{Report, World};

/// Rank 0 computes for 100 us and sends to rank 1, which waits. Each rank has the timers of `timers`, in us.
fn run(scheme: Scheme, timers: [Option<u64>; 2]) -> Report {
    let network = Ideal::with_geometry(1_000_000, 100, Geometry::EXTOLL);
    let program = |rank: Rank| -> weir_sim::program::Program {
        Box::pin(async move {
            if rank.rank() == 0 {
                rank.compute(100_000_000);
                rank.send(1, 0, 8).await;
            } else {
                rank.recv(Some(0), 0, 8).await;
            }
        })
    };
    let mut world = World::new(spec(2, scheme), network, program).checked(true);
    for (rank, at) in (0..).zip(timers) {
        let timer = Timer { peer: Peer(0), purpose: Purpose::Rnr };
        if let Some(us) = at {
            world = world.with_timer(rank, timer, Instant(us * 1000));
        }
    }
    // A world that ends with a timer set is an error.
    world.run().unwrap_or_else(|error| panic!("{scheme:?}, timers {timers:?}: {error}"))
}

#[test]
fn timers_expire_while_ranks_compute_wait_and_after_their_programs_have_ended() {
    for scheme in SCHEMES {
        let plain = run(scheme, [None, None]);
        for timers in [[Some(30), None], [None, Some(50)], [Some(150), Some(90)], [Some(900), Some(800)]] {
            let report = run(scheme, timers);
            assert!(report.events > plain.events || timers[1].is_none(), "{scheme:?}, {timers:?}");
            // The machines do not wait for these timers, so the messages go as before.
            assert_eq!(report.finished, plain.finished, "{scheme:?}, {timers:?}");
        }
    }
}

#[test]
fn the_trace_shows_when_a_processor_handles_a_timer() {
    for scheme in SCHEMES.into_iter().filter(|scheme| !matches!(scheme, Scheme::Hardware { .. })) {
        let trace = |us| run(scheme, [None, us]).trace;
        assert_eq!(trace(Some(50)), trace(Some(50)), "{scheme:?}");
        assert_ne!(trace(Some(50)), trace(Some(51)), "{scheme:?}");
        assert_ne!(trace(Some(50)), trace(None), "{scheme:?}");
        // A computing rank handles both of them after its work, at the same time.
        let computing = |us| run(scheme, [Some(us), None]).trace;
        assert_eq!(computing(30), computing(40), "{scheme:?}");
    }
}
