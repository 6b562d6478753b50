//! Tests of random worlds by seed: all networks, all schemes, random programs, faults of links and of ranks.
//!
//! `faults/single.rs` has exact tests of one fault each.
//!
//! `WEIR_SEED=7f3a cargo test -p weir-sim --test simulator NAME` repeats one world; `WEIR_WORLDS=10000` runs more.

mod single;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use fastrand::Rng;
use weir_proto::flow::hardware::WITHOUT_LIMIT;
use weir_proto::flow::static_connection::ecm_slots;
use weir_proto::{AttachPolicy, Config, DataRegion, Geometry, Growth, Scheme};
use weir_sim::collective::Group;
use weir_sim::cost::{Cost, NicCost};
use weir_sim::network::extoll::{self, Extoll};
use weir_sim::network::fat_tree::FatTree;
use weir_sim::network::faulty::{Faulty, LinkFaultError, LinkFaults};
use weir_sim::network::ideal::{Ideal, WHOLE_MESSAGES};
use weir_sim::network::infiniband::{self, InfiniBand};
use weir_sim::network::loggops::{self, LogGops};
use weir_sim::network::mesh::Mesh;
use weir_sim::network::switched::{self, Switched};
use weir_sim::network::{Network, ScheduledOutput};
use weir_sim::program::{Program, Rank};
use weir_sim::world::faults::{Crash, FaultError, Faults, Slow};
use weir_sim::world::{Report, World, WorldError, WorldSpec};

const NS: u64 = 1000;
const US: u64 = 1_000_000;

const COST: Cost = Cost {
    send_call_ps: 300 * NS,
    receive_call_ps: 200 * NS,
    packet_send_ps: 60 * NS,
    send_ps_per_kib: 0,
    packet_receive_ps: 70 * NS,
    credit_send_ps: 50 * NS,
    credit_receive_ps: 50 * NS,
    match_ps: 30 * NS,
    copy_ps_per_kib: 200 * NS,
    unexpected_copy_ps_per_kib: 300 * NS,
    combine_ps_per_kib: 100 * NS,
    get_ps: 400 * NS,
    poll_ps: 0,
    call_jitter_ps: 0,
};

/// Faults of ranks in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ranks {
    /// None.
    NoFaults,
    /// Ranks are slow or pause. Nothing is lost.
    Late,
    /// Some ranks crash, and senders may give up receivers that are not ready.
    MayCrash,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    from: u32,
    to: u32,
    tag: u64,
    bytes: u64,
}

/// Rounds of messages. Each rank begins all its sends and receives of a round in some order and waits for
/// them. A rank receives all messages sent to it, by sender or from any rank.
struct Script {
    rounds: Vec<Vec<Message>>,
    /// By rank: whether its receives name their senders.
    directed: Vec<bool>,
    /// Whether a collective of all ranks separates the rounds.
    collectives: bool,
    seed: u64,
}

const LONGEST: u64 = 6000;

impl Script {
    fn draw(rng: &mut Rng, ranks: u32, may_crash: bool) -> Script {
        // A receive that fails may leave an announced message without receive, whose sender would wait. So
        // either no message is announced, or all receives name their senders.
        let rounds = (0..rng.u32(1..4)).map(|round| {
            let message = |_| Message {
                from: rng.u32(..ranks),
                to: rng.u32(..ranks),
                tag: u64::from(round) * 4 + rng.u64(..3),
                bytes: [0, rng.u64(..30), rng.u64(..400), rng.u64(..LONGEST)][rng.usize(..4)],
            };
            (0..60 / ranks.max(4) * ranks.min(8)).map(message).collect()
        });
        Script {
            rounds: rounds.collect(),
            directed: (0..ranks).map(|_| may_crash || rng.bool()).collect(),
            collectives: !may_crash && rng.bool(),
            seed: rng.u64(..),
        }
    }

    async fn run(self: Rc<Script>, rank: Rank, errors: Rc<RefCell<u64>>) {
        let me = rank.rank();
        let mut rng = Rng::with_seed(self.seed ^ u64::from(me) << 40);
        let group = Group::all(&rank);
        for round in &self.rounds {
            let mine = round
                .iter()
                .flat_map(|m| [(m.from == me).then_some((true, *m)), (m.to == me).then_some((false, *m))]);
            let mut calls: Vec<(bool, Message)> = mine.flatten().collect();
            rng.shuffle(&mut calls);
            let mut handles = Vec::new();
            for (sends, Message { from, to, tag, bytes }) in calls {
                if rng.u8(..4) == 0 {
                    rank.compute(rng.u64(..3 * US));
                }
                handles.push(if sends {
                    rank.isend(to, tag, bytes)
                } else {
                    let from = self.directed[me as usize].then_some(from);
                    rank.irecv(from, tag, LONGEST)
                });
            }
            for handle in handles {
                let status = rank.wait(handle).await;
                *errors.borrow_mut() += u64::from(status.fault.is_some());
            }
            if self.collectives {
                group.alltoall_linear(500, 0).await;
                group.allreduce(8).await;
            }
        }
    }
}

/// A world with everything that was drawn for it.
struct Drawn {
    spec: WorldSpec,
    network: u8,
    mailbox_slots: Option<u32>,
    buffers: u32,
    links: LinkFaults,
    faults: Faults,
    script: Rc<Script>,
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Drawn { spec, network, mailbox_slots, links, faults, .. } = self;
        write!(f, "network {network}, mailbox {mailbox_slots:?}, {links:?}, {faults:?}, {spec:?}")
    }
}

fn draw(seed: u64, kind: Ranks) -> Drawn {
    let mut rng = Rng::with_seed(seed);
    let ranks = rng.u32(2..=8);
    let may_crash = kind == Ranks::MayCrash;
    let mut credit_slots = rng.u32(1..=3);
    let mut quota_slots = credit_slots + [0, 0, 1, 5, 40][rng.usize(..5)];
    let ecm_threshold = NonZeroU32::new(rng.u32(..=quota_slots.min(8)));
    let slots = NonZeroU32::new(rng.u32(1..=4)).expect("not 0");
    let growth = [Growth::Linear { slots }, Growth::Exponential][rng.usize(..2)];
    let rnr_retries = if may_crash { rng.u8(..=WITHOUT_LIMIT) } else { WITHOUT_LIMIT };
    let scheme = [
        Scheme::Unlimited,
        Scheme::Hardware { rnr_timer_ns: rng.u64(100..20_000), rnr_retries },
        Scheme::Static { piggyback: false },
        Scheme::Static { piggyback: true },
        Scheme::StaticConnection { ecm_threshold },
        Scheme::AdaptiveBacklog { growth, ecm_threshold },
        Scheme::Dynamic { piggyback: false },
        Scheme::Dynamic { piggyback: true },
        Scheme::Demand,
    ][rng.usize(..9)];
    let mut region = DataRegion::default();
    let mut start_slots = quota_slots;
    match scheme {
        Scheme::StaticConnection { .. } => credit_slots = ecm_slots(quota_slots, ecm_threshold),
        Scheme::AdaptiveBacklog { .. } => start_slots = rng.u32(1..=quota_slots),
        Scheme::Dynamic { .. } | Scheme::Demand => {
            let start = credit_slots + [0, 0, 1, 7][rng.usize(..4)];
            let peers = [0, 2, ranks, ranks + 1][rng.usize(..4)];
            region = DataRegion {
                slots: start * peers + [0, 1, 4, 30, 300][rng.usize(..5)],
                peers,
                start_slots: start,
                attach_policy: [AttachPolicy::FirstContact, AttachPolicy::Start][rng.usize(..2)],
                grace_points: [0, 0, 0, 4][rng.usize(..4)],
            };
            (start_slots, quota_slots) = (start, start + [0, 3, 40, 1000][rng.usize(..4)]);
        }
        _ => {}
    }
    let network = rng.u8(..4);
    let geometry = [Geometry::EXTOLL, Geometry::SHARED_MEMORY, WHOLE_MESSAGES][rng.usize(..3)];
    let config = Config {
        scheme,
        geometry, // of the ideal network; the others have their own
        credit_slots,
        eager_bytes: [100, 2000, 6000][rng.usize(..3)],
        cross_memory: rng.u8(..4) > 0,
        remote_inline_bytes: 64,
        max_backlog: u32::MAX,
        max_unexpected: 1 << 20,
        unexpected_budget_bytes: [0, 20_000, 1 << 30][rng.usize(..3)],
        bounce_bytes: [0, 10_000, 1 << 30][rng.usize(..3)],
        envelope_budget_bytes: u64::MAX,
        planned_peers: if rng.bool() { ranks } else { 0 },
        planned_quota_slots: quota_slots,
        region,
    };
    let spec = WorldSpec {
        ranks,
        config,
        quota_slots,
        start_slots,
        cost: COST,
        nic: None,
        machines_on_nic: false,
        server_wake_ps: 0,
        tolerates_loss: false,
        event_limit: 5_000_000,
        seed,
    };
    let repairs = network % 2 == 1; // EXTOLL, InfiniBand
    let mut per_million = |most: u32| if repairs && rng.bool() { rng.u32(..most) } else { 0 };
    let (loss, duplication, reordering) = (per_million(100_000), per_million(100_000), per_million(50_000));
    let links = LinkFaults {
        seed,
        jitter_ps: [0, 100 * NS, 20 * US][rng.usize(..3)],
        loss_per_million: loss,
        duplication_per_million: duplication,
        reordering_per_million: reordering,
    };
    let horizon_ps = [20, 100, 1000][rng.usize(..3)] * US;
    let faults = match kind {
        Ranks::NoFaults => Faults::default(),
        Ranks::Late => Faults::draw(rng.u64(..), ranks, horizon_ps, 0),
        Ranks::MayCrash => {
            let crashes = rng.u32(..=2);
            Faults::draw(rng.u64(..), ranks, horizon_ps, crashes)
        }
    };
    // Back-pressure only with credits. Without credits, full mailboxes can block each other.
    let lanes = ranks * (quota_slots + credit_slots + 1);
    let mut drawn = Drawn {
        spec,
        network,
        mailbox_slots: (scheme.grants() && rng.bool()).then_some(lanes),
        buffers: rng.u32(1..=4),
        links,
        faults,
        script: Rc::new(Script::draw(&mut rng, ranks, may_crash)),
    };
    if drawn.network == 0 && rng.bool() {
        drawn.network = 4;
    }
    if rng.u8(..3) == 0 {
        let mut price_ps = || rng.u64(..3 * US);
        let (packet_send_ps, packet_receive_ps, get_ps) = (price_ps(), price_ps(), price_ps());
        drawn.spec.nic = Some(NicCost { packet_send_ps, packet_receive_ps, get_ps, ..NicCost::FREE });
    }
    drawn
}

/// The report, and the number of errors that programs got.
type RunResult = Result<(Report, u64), WorldError>;

fn run_on<N: Network>(
    drawn: &Drawn,
    network: N,
    prepare: impl FnOnce(World<Faulty<N>>) -> World<Faulty<N>>,
) -> RunResult {
    let errors = Rc::new(RefCell::new(0));
    let network = Faulty::new(network, drawn.links).expect("faults that this network repairs");
    let world = World::new(drawn.spec, network, |rank| -> Program {
        Box::pin(Rc::clone(&drawn.script).run(rank, Rc::clone(&errors)))
    });
    let world = if drawn.faults == Faults::default() {
        world
    } else {
        world.with_faults(&drawn.faults).expect("valid faults of ranks")
    };
    let report = prepare(world.checked(true)).run()?;
    let errors = *errors.borrow();
    Ok((report, errors))
}

fn run(drawn: &Drawn, mutant: Option<weir_proto::flow::Mutant>) -> RunResult {
    macro_rules! on {
        ($network:expr) => {
            run_on(drawn, $network, |world| match mutant {
                Some(mutant) => world.with_machines(|_, machine| machine.mutate(mutant)),
                None => world,
            })
        };
    }
    let ranks = drawn.spec.ranks;
    match drawn.network {
        0 => on!(Ideal::with_geometry(2 * US, 1000, drawn.spec.config.geometry)),
        1 => on!(Extoll::new(extoll::Parameters {
            mesh: Mesh { size: [ranks.div_ceil(4), 2, 1] },
            ranks_per_node: 2,
            link_packet_ps: 80 * NS,
            hop_ps: 60 * NS,
            inject_packet_ps: 70 * NS,
            eject_packet_ps: 75 * NS,
            ends_ps: 500 * NS,
            buffer_packets: drawn.buffers,
            nic_packets: 4,
            mailbox_slots: drawn.mailbox_slots,
            get_byte_ps: 1000,
            get_ps: 2000 * NS,
        })),
        4 => on!(Switched::new(switched::Parameters {
            tree: FatTree { arity: 2, levels: 3 },
            ranks_per_node: 2,
            packet_header_bytes: 106,
            link_byte_ps: 800,
            hop_ps: 500 * NS,
            ends_ps: 2 * US,
            queue_packets: 0,
            mark_packets: drawn.buffers,
        })),
        2 => on!(LogGops::new(loggops::Parameters::DEFAULT, ranks)),
        _ => on!(InfiniBand::new(infiniband::Parameters {
            tree: FatTree { arity: 2, levels: 3 },
            buffer_packets: drawn.buffers,
            ack_timeout_ps: 50 * US,
            ..infiniband::Parameters::CLUSTER_2003
        })),
    }
}

/// Runs a world twice. Returns its report and the errors of its programs, or the reason of a failure with the
/// command that repeats it.
fn world(
    name: &str,
    seed: u64,
    kind: Ranks,
    mutant: Option<weir_proto::flow::Mutant>,
) -> Result<(Report, u64), String> {
    let with_command = |what: String| {
        format!("{what}\nrepeat: WEIR_SEED={seed:x} cargo test -p weir-sim --test simulator {name}")
    };
    let drawn = draw(seed, kind);
    let once = || catch_unwind(AssertUnwindSafe(|| run(&drawn, mutant)));
    match (once(), once()) {
        (Ok(Ok(first)), Ok(Ok(second))) => {
            let same =
                (first.0.trace, first.0.events, first.1) == (second.0.trace, second.0.events, second.1);
            if same { Ok(first) } else { Err(with_command("two runs of the same world differ".into())) }
        }
        (Ok(Err(error)), _) | (_, Ok(Err(error))) => Err(with_command(format!("{error}\n{drawn}"))),
        (Err(panic), _) | (_, Err(panic)) => {
            let what = panic.downcast_ref::<String>().cloned();
            let what = what.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            Err(with_command(format!("{}\n{drawn}", what.unwrap_or_default())))
        }
    }
}

fn seeds(default_worlds: u64) -> Vec<u64> {
    if let Ok(seed) = std::env::var("WEIR_SEED") {
        return vec![u64::from_str_radix(&seed, 16).expect("WEIR_SEED is a hexadecimal number")];
    }
    let worlds = std::env::var("WEIR_WORLDS").ok().and_then(|worlds| worlds.parse().ok());
    (0..worlds.unwrap_or(default_worlds)).collect()
}

/// Runs several worlds and counts the events in them.
fn worlds(name: &str, kind: Ranks, default_worlds: u64) -> BTreeMap<&'static str, u64> {
    let mut seen = BTreeMap::new();
    for seed in seeds(default_worlds) {
        let (report, errors) = world(name, seed, kind, None).unwrap_or_else(|why| panic!("{why}"));
        let sum = |count: fn(&weir_proto::Counters) -> u64| report.counters.iter().map(count).sum::<u64>();
        if kind != Ranks::MayCrash {
            assert_eq!(sum(|c| c.messages_sent), sum(|c| c.messages_received), "seed {seed:x}");
            assert_eq!(errors, 0, "seed {seed:x}");
        }
        for (what, count) in [
            ("repairs", report.repairs),
            ("marks", report.marks),
            ("stalls", sum(|c| c.stalls)),
            ("NAKs", sum(|c| c.rnr_naks)),
            ("return requests", sum(|c| c.return_requests_sent)),
            ("messages held", sum(|c| c.forced_rendezvous)),
            ("gets", sum(|c| c.cross_memory_copies)),
            ("piggybacked credits", sum(|c| c.piggybacked_credits_sent)),
            ("errors", errors),
            ("peers lost", sum(|c| c.peers_lost)),
        ] {
            *seen.entry(what).or_insert(0) += count;
        }
    }
    println!("{name}: {seen:?}");
    seen
}

/// Checks that each of these events happened, so that no test is vacuous. Skipped when one world is repeated.
fn assert_seen(seen: &BTreeMap<&'static str, u64>, what: &[&str]) {
    let alone = std::env::var("WEIR_SEED").is_ok();
    assert!(alone || what.iter().all(|what| seen[what] > 10), "{seen:?}");
}

const ALWAYS: [&str; 6] =
    ["stalls", "NAKs", "return requests", "messages held", "gets", "piggybacked credits"];

#[test]
fn worlds_without_rank_faults_end() {
    let seen = worlds("worlds_without_rank_faults_end", Ranks::NoFaults, 150);
    assert_seen(&seen, &ALWAYS);
    assert_seen(&seen, &["repairs", "marks"]);
}

#[test]
fn slow_ranks_delay_and_lose_nothing() {
    let seen = worlds("slow_ranks_delay_and_lose_nothing", Ranks::Late, 100);
    assert_seen(&seen, &ALWAYS);
}

#[test]
fn no_rank_waits_for_a_crashed_rank() {
    let seen = worlds("no_rank_waits_for_a_crashed_rank", Ranks::MayCrash, 150);
    assert_seen(&seen, &["errors", "peers lost"]);
}

#[test]
fn injected_bugs_are_found_with_a_repeat_command() {
    use weir_proto::flow::Mutant;
    let name = "injected_bugs_are_found_with_a_repeat_command";
    for mutant in [Mutant::CreditIsLost, Mutant::CreditsReturnTwice, Mutant::ThresholdsStartAsOnes] {
        let dynamic =
            |seed: &u64| matches!(draw(*seed, Ranks::NoFaults).spec.config.scheme, Scheme::Dynamic { .. });
        let failing =
            |seed: u64| world(name, seed, Ranks::NoFaults, Some(mutant)).err().map(|why| (seed, why));
        let (seed, why) = (0..1000)
            .filter(dynamic)
            .find_map(failing)
            .unwrap_or_else(|| panic!("{mutant:?} is not found in 1000 worlds"));
        println!("{mutant:?} is found by seed {seed:x}: {}", why.lines().next().unwrap_or_default());
        let line = format!("repeat: WEIR_SEED={seed:x} cargo test -p weir-sim --test simulator {name}");
        assert_eq!(why.lines().last(), Some(line.as_str()));
        assert_eq!(failing(seed), Some((seed, why)), "the same world fails in the same way");
        assert!(world(name, seed, Ranks::NoFaults, None).is_ok(), "the right rule passes");
    }
}
