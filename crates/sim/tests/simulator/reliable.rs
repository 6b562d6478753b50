//! Reliable paths over switched Ethernet: many ranks send to one over queues that drop and mark, and over links that lose,
//! repeat and reorder. Every message arrives once and in order.

use std::cell::RefCell;
use std::rc::Rc;

use weir_proto::reliability::Mutant;
use weir_proto::{Config, Scheme};
use weir_sim::cost::Cost;
use weir_sim::network::fat_tree::FatTree;
use weir_sim::network::faulty::LinkFaults;
use weir_sim::network::reliable::{PathReading, Reliability, Reliable};
use weir_sim::network::switched::{GEOMETRY, Parameters, Switched};
use weir_sim::program::{Program, Rank};
use weir_sim::world::{Report, World, WorldError, WorldSpec};

const NS: u64 = 1000;
const MESSAGE_BYTES: u64 = 1300;

/// 10 Gb/s, as `experiments/networks/switched.toml`.
const PARAMETERS: Parameters = Parameters {
    tree: FatTree { arity: 16, levels: 1 },
    ranks_per_node: 1,
    packet_header_bytes: 106,
    link_byte_ps: 800,
    hop_ps: 500 * NS,
    ends_ps: 5000 * NS,
    queue_packets: 32,
    mark_packets: 0,
};

/// A world in which `senders` ranks send to rank 0.
#[derive(Clone, Copy)]
struct Incast {
    senders: u32,
    messages: u32,
    parameters: Parameters,
    reliability: Reliability,
    faults: LinkFaults,
    scheme: Scheme,
}

const INCAST: Incast = Incast {
    senders: 7,
    messages: 300,
    parameters: PARAMETERS,
    reliability: Reliability::PROVIDER,
    faults: LinkFaults {
        seed: 1,
        jitter_ps: 0,
        loss_per_million: 0,
        duplication_per_million: 0,
        reordering_per_million: 0,
    },
    scheme: Scheme::Unlimited,
};

impl Incast {
    fn network(self) -> Reliable<Switched> {
        Reliable::new(Switched::new(self.parameters), self.reliability, self.faults)
    }

    /// Runs it. Each message has its number as tag, so a receive of a number gets that message only.
    fn run_on(self, network: Reliable<Switched>) -> Result<Report, WorldError> {
        let Incast { senders, messages, scheme, .. } = self;
        let cost = Cost { packet_send_ps: 200 * NS, packet_receive_ps: 200 * NS, ..Cost::FREE };
        let spec = WorldSpec::new(senders + 1, scheme, 8, cost);
        let spec = WorldSpec { config: Config { geometry: GEOMETRY, ..spec.config }, ..spec };
        let order = Rc::new(RefCell::new(vec![0; senders as usize + 1]));
        let program = {
            let order = Rc::clone(&order);
            move |rank: Rank| -> Program {
                let order = Rc::clone(&order);
                Box::pin(async move {
                    if rank.rank() > 0 {
                        for number in 0..messages {
                            rank.send(0, number.into(), MESSAGE_BYTES).await;
                        }
                        return;
                    }
                    for number in 0..messages {
                        for _ in 0..senders {
                            let source = rank.recv(None, number.into(), MESSAGE_BYTES).await.source;
                            let received = &mut order.borrow_mut()[source as usize];
                            assert_eq!(*received, number, "a message of rank {source} is out of order");
                            *received += 1;
                        }
                    }
                })
            }
        };
        let report = World::new(spec, network, program).run()?;
        assert_eq!(order.borrow()[1..], vec![messages; senders as usize]);
        assert_eq!(report.counters[0].messages_received, u64::from(senders * messages));
        Ok(report)
    }

    fn run(self) -> Report {
        self.run_on(self.network()).unwrap_or_else(|error| panic!("{error}"))
    }
}

fn sum(report: &Report, count: impl Fn(&PathReading) -> u64) -> u64 {
    report.paths.iter().map(count).sum()
}

/// The time that the link to rank 0 needs for all packets.
fn link_ps(incast: Incast) -> u64 {
    u64::from(incast.senders * incast.messages) * (MESSAGE_BYTES + 48 + 106) * 800
}

#[test]
fn many_to_one_over_a_short_queue_ends_and_loses_nothing() {
    for senders in [1, 3, 7, 15] {
        let incast = Incast { senders, ..INCAST };
        let report = incast.run();
        assert_eq!(report.paths.len(), senders as usize);
        assert!(senders == 1 || report.drops > 0, "{senders} senders fill the queue");
        let sent_again = sum(&report, |path| path.counters.sent_again);
        assert!(sent_again >= report.drops / 2, "{} drops, {sent_again} sent again", report.drops);
        // No collapse: the link is busy most of the time.
        let least_ps = link_ps(incast);
        assert!(report.finished_at < 2 * least_ps, "{senders}: {} of {least_ps} ps", report.finished_at);
    }
}

#[test]
fn the_same_seed_gives_the_same_world() {
    let faults = LinkFaults {
        loss_per_million: 10_000,
        duplication_per_million: 10_000,
        reordering_per_million: 10_000,
        jitter_ps: 3000 * NS,
        ..INCAST.faults
    };
    let incast = Incast { messages: 100, faults, ..INCAST };
    let (first, again) = (incast.run(), incast.run());
    assert_eq!((first.trace, first.events, &first.paths), (again.trace, again.events, &again.paths));
    let other = Incast { faults: LinkFaults { seed: 2, ..faults }, ..incast }.run();
    assert_ne!(first.trace, other.trace);
}

#[test]
fn losses_repetitions_and_reordering_of_links_are_repaired() {
    for per_million in [10_000, 30_000, 100_000] {
        let faults = LinkFaults {
            loss_per_million: per_million,
            duplication_per_million: per_million,
            reordering_per_million: per_million,
            ..INCAST.faults
        };
        let parameters = Parameters { queue_packets: 0, ..PARAMETERS };
        let report = Incast { senders: 3, faults, parameters, ..INCAST }.run();
        assert_eq!(report.drops, 0);
        assert!(report.repairs > 0, "{per_million} per million lose nothing");
        assert!(sum(&report, |path| path.counters.sent_again) > 0);
    }
}

#[test]
fn a_path_without_drops_sends_nothing_again() {
    let parameters = Parameters { queue_packets: 0, ..PARAMETERS };
    let report = Incast { senders: 1, parameters, ..INCAST }.run();
    assert_eq!((report.drops, sum(&report, |path| path.counters.sent_again)), (0, 0));
    let [path] = report.paths[..] else { panic!("{:?}", report.paths) };
    assert_eq!((path.rank, path.peer, path.packets), (1, 0, u64::from(INCAST.messages)));
    assert_eq!(path.least_window_bytes, path.view.window_bytes, "nothing lowers the window");
}

#[test]
fn marks_lower_the_window_before_the_queue_is_full() {
    // Windows start at their largest value, so the first burst drops packets with marks too. What follows it counts.
    let later_drops = |mark_packets| {
        let parameters = Parameters { queue_packets: 128, mark_packets, ..PARAMETERS };
        let [short, long] = [1000, 4000].map(|messages| Incast { messages, parameters, ..INCAST }.run());
        let marked = sum(&long, |path| path.counters.marked);
        assert_eq!((long.marks > 0, marked > 0), (mark_packets > 0, mark_packets > 0));
        long.drops - short.drops
    };
    let (without, with) = (later_drops(0), later_drops(16));
    assert!(2 * with < without, "{with} drops with marks, {without} without");
}

#[test]
fn a_wrong_window_that_ignores_losses_drops_more() {
    let incast = Incast { messages: 1000, ..INCAST };
    let wrong = incast.network().with_paths(|path| path.mutate(Mutant::WindowIgnoresLosses));
    let wrong = incast.run_on(wrong).unwrap_or_else(|error| panic!("{error}"));
    let right = incast.run();
    assert!(wrong.drops > 2 * right.drops, "{} and {} drops", wrong.drops, right.drops);
}

#[test]
fn credits_and_paths_work_together() {
    let scheme = Scheme::Static { piggyback: false };
    let parameters = Parameters { queue_packets: 8, ..PARAMETERS };
    let report = Incast { scheme, parameters, ..INCAST }.run();
    assert!(report.drops > 0, "seven senders have eight credits each");
}

#[test]
fn a_path_over_which_nothing_passes_ends_the_world_with_an_error() {
    let faults = LinkFaults { loss_per_million: 1_000_000, ..INCAST.faults };
    let incast = Incast { senders: 1, messages: 1, faults, ..INCAST };
    let error = incast.run_on(incast.network()).expect_err("nothing passes");
    assert!(matches!(error, WorldError::PathEnded { from: 1, to: 0, .. }), "{error}");
}
