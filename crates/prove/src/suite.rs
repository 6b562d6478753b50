//! The suite of the proof: the setups that are searched, the events that each search must have seen, and the mutants
//! that must be detected. Most searches are exhaustive; some in `full` stop at a number of states. `quick` is part of
//! `make test`, `full` is `make prove`.

mod machines;

use std::num::NonZeroU32;
use std::time::Duration;

use weir_proto::flow::Mutant as Wrong;
use weir_proto::flow::static_connection::ecm_slots;
use weir_proto::{AttachPolicy, Config, DataRegion, Geometry, Growth, Scheme};

use crate::explore::Limits;
use crate::model::{Happened, OffloadSetup, Rule, Setup, neighbours};

/// A setup, and what its search must show.
#[derive(Clone, Debug)]
pub struct Case {
    /// The setup.
    pub setup: Setup,
    /// Kinds that must occur in some state; else the search shows nothing about them.
    pub wanted: Vec<Happened>,
    /// The limits of the search.
    pub limits: Limits,
    /// The search must be complete.
    pub complete: bool,
}

/// A mutant, where it must be detected, and by which checks.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// Name in the table: the gap in `docs/explanation/flow-control.md`, and the rule.
    pub name: &'static str,
    /// The setup that shows it, with the mutant in it.
    pub setup: Setup,
    /// The check that detects it.
    pub caught_by: &'static str,
    /// The check that detects it without the machine's own checks, which is what a user would see. `None` if that takes
    /// too long.
    pub from_outside: Option<&'static str>,
}

const STATIC: Scheme = Scheme::Static { piggyback: true };
const DYNAMIC: Scheme = Scheme::Dynamic { piggyback: true };
const EXPLICIT: Scheme = Scheme::Static { piggyback: false };
const CONNECTION: Scheme = Scheme::StaticConnection { ecm_threshold: None };
const DOUBLING: Scheme = Scheme::AdaptiveBacklog { growth: Growth::Exponential, ecm_threshold: None };
const LINEAR: Scheme =
    Scheme::AdaptiveBacklog { growth: Growth::Linear { slots: NonZeroU32::MIN }, ecm_threshold: None };

/// Receiver not ready, with `rnr_retries` retries. The timer value does not matter: it may expire at any moment.
const fn hardware(rnr_retries: u8) -> Scheme {
    Scheme::Hardware { rnr_timer_ns: 1, rnr_retries }
}

/// Message lengths: one slot with space for credits; one slot without; two slots.
const SHORT: u64 = 0;
const FULL: u64 = 32;
const TWO_SLOTS: u64 = 40;
const FOUR_SLOTS: u64 = 150;

/// The pairs of a setup.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Two senders and a receiver.
    Star,
    /// Three senders and a receiver.
    Star3,
    /// A sender and two receivers.
    Fan,
    /// Two processes, one direction.
    OneWay,
    /// Two processes, both directions.
    Both,
    /// Two senders and a receiver that sends to one of them.
    Answers,
    /// Three processes, all directions.
    AllToAll,
}

impl Shape {
    fn pairs(self) -> (u32, Vec<(u32, u32)>) {
        match self {
            Shape::Star => (3, vec![(1, 0), (2, 0)]),
            Shape::Star3 => (4, vec![(1, 0), (2, 0), (3, 0)]),
            Shape::Fan => (3, vec![(0, 1), (0, 2)]),
            Shape::OneWay => (2, vec![(1, 0)]),
            Shape::Both => (2, vec![(0, 1), (1, 0)]),
            Shape::Answers => (3, vec![(1, 0), (2, 0), (0, 1)]),
            Shape::AllToAll => (3, vec![(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Shape::Star => "star",
            Shape::Star3 => "star of three",
            Shape::Fan => "fan",
            Shape::OneWay => "one way",
            Shape::Both => "both ways",
            Shape::Answers => "star and back",
            Shape::AllToAll => "all to all",
        }
    }
}

fn setup(shape: Shape, scheme: Scheme, quota_slots: u32, credit_slots: u32, message_bytes: &[u64]) -> Setup {
    let (processes, pairs) = shape.pairs();
    let scheme_name = match scheme {
        Scheme::Unlimited => "unlimited",
        Scheme::Static { piggyback: true } => "static",
        Scheme::Static { piggyback: false } => "static, explicit",
        Scheme::Dynamic { piggyback: true } => "dynamic",
        Scheme::Demand => "demand",
        Scheme::Dynamic { piggyback: false } => "dynamic, explicit",
        Scheme::Hardware { rnr_retries: 7, .. } => "hardware",
        Scheme::Hardware { .. } => "hardware, few retries",
        Scheme::StaticConnection { .. } => "connection",
        Scheme::AdaptiveBacklog { growth: Growth::Linear { .. }, .. } => "adaptive, linear",
        Scheme::AdaptiveBacklog { growth: Growth::Exponential, .. } => "adaptive, doubling",
    };
    let kinds = match message_bytes {
        [SHORT] => "",
        [SHORT, FULL] => ", full",
        bytes if bytes.contains(&FOUR_SLOTS) => ", 4 slots",
        _ => ", 2 slots",
    };
    let config = Config {
        scheme,
        geometry: Geometry::EXTOLL,
        credit_slots,
        region: DataRegion {
            start_slots: credit_slots,
            attach_policy: AttachPolicy::Start,
            ..DataRegion::default()
        },
        eager_bytes: 2048,
        cross_memory: false,
        remote_inline_bytes: 64,
        max_backlog: u32::MAX,
        max_unexpected: 4,
        // Every message is received at once, so the budget has no effect.
        unexpected_budget_bytes: 1 << 40,
        bounce_bytes: 0,
        envelope_budget_bytes: u64::MAX,
        planned_peers: processes,
        planned_quota_slots: quota_slots,
    };
    Setup {
        name: format!("{scheme_name}: {} q={quota_slots} n={credit_slots}{kinds}", shape.name()),
        processes,
        neighbours: neighbours(processes, &pairs),
        pairs,
        config,
        quota_slots,
        extra_slots: 0,
        rule: Rule::Shipped,
        stealing: false,
        max_steals: None,
        cold: false,
        detaching: Vec::new(),
        max_detaches: None,
        overlap: 0,
        watch_activity: false,
        inner_checks: true,
        busy_links: false,
        deferring: false,
        may_crash: None,
        message_bytes: message_bytes.to_vec(),
        offload: OffloadSetup::default(),
    }
}

/// The searches that end within seconds, also in debug builds: part of `make test`.
pub fn quick() -> Vec<Case> {
    use Happened::*;
    let waits = [Waiting, CreditPacket];
    let all = [Waiting, CreditPacket, Piggyback];
    let mut cases = Vec::new();
    let mut add = |setup, wanted: &[Happened]| {
        let limits = Limits { cpu_time: Duration::from_secs(120), ..Limits::default() };
        cases.push(Case { setup, wanted: wanted.to_vec(), limits, complete: true });
    };
    add(setup(Shape::Both, Scheme::Unlimited, 2, 1, &[SHORT, TWO_SLOTS]), &[Waiting]);
    add(setup(Shape::Both, hardware(7), 2, 1, &[SHORT, TWO_SLOTS]), &[Waiting, NotReady]);
    add(setup(Shape::Both, hardware(1), 2, 1, &[SHORT]), &[Waiting, NotReady, GaveUp]);
    // A sender with two timers, which expire in any order.
    add(setup(Shape::Fan, hardware(2), 2, 1, &[SHORT]), &[Waiting, NotReady, GaveUp]);
    for quota in 1..=3 {
        add(setup(Shape::Star, EXPLICIT, quota, 1, &[SHORT]), &waits);
        // With one slot every retrieval reaches the threshold, so no credits are left to piggyback.
        let wanted = if quota == 1 { &waits[..] } else { &all[..] };
        add(setup(Shape::Both, STATIC, quota, 1, &[SHORT]), wanted);
    }
    add(setup(Shape::Both, STATIC, 2, 1, &[SHORT, FULL]), &all);
    add(setup(Shape::Both, STATIC, 2, 1, &[SHORT, TWO_SLOTS]), &all);
    add(setup(Shape::Both, STATIC, 3, 2, &[SHORT]), &all);
    add(Setup { rule: Rule::ThresholdAlone, ..setup(Shape::Both, STATIC, 3, 1, &[SHORT]) }, &all);
    add(Setup { rule: Rule::ThresholdAlone, ..setup(Shape::Both, STATIC, 3, 2, &[SHORT]) }, &all);
    add(connection(3, &[SHORT]), &all);
    add(setup(Shape::Both, DOUBLING, 2, 1, &[SHORT]), &[Waiting, CreditPacket, Piggyback, Growth]);
    add(setup(Shape::Star, DYNAMIC, 1, 1, &[SHORT]), &waits);
    add(cold(setup(Shape::Star, DYNAMIC, 1, 1, &[SHORT])), &waits);
    let one_way = stealing(setup(Shape::OneWay, DYNAMIC, 2, 1, &[SHORT]));
    // Equal to our rule while packets of a pair are in order: docs/explanation/proof.md.
    let fixed = Rule::Wrong(Wrong::AmountIsFixedByTheRequest);
    let name = one_way.name.clone() + ", amount fixed";
    add(Setup { rule: fixed, name, ..one_way.clone() }, &SINGLE_SENDER_EVENTS);
    add(one_way, &SINGLE_SENDER_EVENTS);
    let detach_events = [Waiting, CreditPacket, Detached, StaleGrant];
    for overlap in 0..2 {
        add(detaching(setup(Shape::OneWay, STATIC, 2, 1, &[SHORT]), &[(1, 0)], overlap), &detach_events);
        add(detaching(setup(Shape::OneWay, DYNAMIC, 2, 1, &[SHORT]), &[(1, 0)], overlap), &detach_events);
    }
    add(detaching(setup(Shape::OneWay, STATIC, 2, 1, &[SHORT]), &[(1, 0), (0, 1)], 0), &detach_events);
    add(
        busy_links(setup(Shape::OneWay, STATIC, 2, 1, &[SHORT, TWO_SLOTS])),
        &[Waiting, CreditPacket, Refused],
    );
    add(busy_links(setup(Shape::Both, STATIC, 2, 1, &[SHORT])), &[Waiting, CreditPacket, Piggyback, Refused]);
    add(busy_links(setup(Shape::OneWay, DYNAMIC, 2, 1, &[SHORT])), &[Waiting, CreditPacket, Refused]);
    let detaching = detaching(setup(Shape::OneWay, STATIC, 2, 1, &[SHORT]), &[(1, 0)], 0);
    add(busy_links(detaching.clone()), &[Waiting, CreditPacket, Detached, Refused]);
    add(deferring(setup(Shape::Both, STATIC, 2, 1, &[SHORT])), &[Waiting, Piggyback, LateCredits]);
    add(deferring(setup(Shape::OneWay, DYNAMIC, 2, 1, &[SHORT])), &[Waiting, LateCredits]);
    add(deferring(demand(Shape::OneWay, 2, 0, &[SHORT, TWO_SLOTS])), &[Waiting, LateCredits, Loan]);
    add(deferring(detaching), &[Waiting, Detached, LateCredits]);
    add(demand(Shape::Star, 1, 0, &[SHORT, TWO_SLOTS]), &[Waiting, CreditPacket, Loan]);
    add(demand(Shape::Star, 1, 1, &[SHORT]), &[Waiting, CreditPacket]);
    add(demand(Shape::Both, 2, 0, &[SHORT, TWO_SLOTS]), &[Waiting, Piggyback, Loan, Prefetch]);
    machines::quick().iter().for_each(|(setup, wanted)| add(setup.clone(), wanted));
    cases
}

/// A world of credits on demand: a region of `quota_slots` slots for each sender and `extra_slots` more.
fn demand(shape: Shape, quota_slots: u32, extra_slots: u32, message_bytes: &[u64]) -> Setup {
    let setup = setup(shape, Scheme::Demand, quota_slots, 1, message_bytes);
    let name = match extra_slots {
        0 => setup.name.clone(),
        slots => format!("{}, {slots} more", setup.name),
    };
    Setup { extra_slots, name, ..setup }
}

/// All searches of `make prove`.
pub fn full() -> Vec<Case> {
    use Happened::*;
    let all = [Waiting, CreditPacket, Piggyback];
    let mut cases = quick();
    let mut add = |setup, wanted: &[Happened], max_states: Option<u32>| {
        let states = max_states.unwrap_or(Limits::default().states);
        let limits = Limits { states, ..Limits::default() };
        cases.push(Case { setup, wanted: wanted.to_vec(), limits, complete: max_states.is_none() });
    };
    let dynamic = |shape, quota| setup(shape, DYNAMIC, quota, 1, &[SHORT]);
    add(setup(Shape::Both, STATIC, 4, 1, &[SHORT, FULL]), &all, None);
    add(setup(Shape::Both, STATIC, 4, 2, &[SHORT, TWO_SLOTS]), &all, None);
    add(setup(Shape::Both, STATIC, 6, 2, &[SHORT]), &all, None);

    // The schemes of Liu & Panda.
    add(setup(Shape::Star, hardware(7), 3, 1, &[SHORT, TWO_SLOTS]), &[Waiting, NotReady], None);
    add(setup(Shape::Star, hardware(2), 2, 1, &[SHORT]), &[Waiting, NotReady, GaveUp], None);
    add(connection(3, &[SHORT, TWO_SLOTS]), &all, None);
    add(connection(4, &[SHORT]), &all, None);
    for scheme in [LINEAR, DOUBLING] {
        add(setup(Shape::Both, scheme, 4, 1, &[SHORT]), &[Waiting, CreditPacket, Piggyback, Growth], None);
    }

    // (a) One receiver, two senders.
    let transfer_events = [Blocked, ShortGrant, QuotaTransfer, ControlWaiting];
    add(dynamic(Shape::Star, 2), &transfer_events, None);
    add(
        may_crash(dynamic(Shape::Star, 2)),
        &[Blocked, ShortGrant, QuotaTransfer, ControlWaiting, Crashed],
        None,
    );
    add(dynamic(Shape::Star, 3), &transfer_events, Some(3_000_000));
    // (b) Two processes in both directions with a stealing environment. Further: one direction only, no stealing, and a
    // bounded search.
    add(stealing(dynamic(Shape::OneWay, 3)), &SINGLE_SENDER_EVENTS, None);
    add(stealing(dynamic(Shape::Both, 1)), &[Waiting, CreditPacket], None);
    add(dynamic(Shape::Both, 4), &[Piggyback, ShortGrant, Excess, Deficit], None);
    add(stealing(dynamic(Shape::Both, 2)), &SINGLE_SENDER_EVENTS, Some(500_000));
    add(busy_links(dynamic(Shape::Both, 2)), &[Piggyback, ShortGrant, Deficit, Refused], None);
    // (c) Three processes, all to all.
    add(dynamic(Shape::AllToAll, 1), &[Waiting, CreditPacket], Some(500_000));
    // Further: messages back to one of two senders, so that piggybacking meets short grants.
    add(dynamic(Shape::Answers, 2), &[Piggyback, ShortGrant], Some(500_000));
    // weir's own rules for victims (gaps 7 and 12); the other lines use the published rules.
    add(with_grace(dynamic(Shape::Star, 2)), &transfer_events, Some(1_000_000));
    add(with_grace(stealing(dynamic(Shape::OneWay, 2))), &SINGLE_SENDER_EVENTS, None);
    add(with_grace(stealing(dynamic(Shape::OneWay, 3))), &SINGLE_SENDER_EVENTS, None);
    // Late attach, and detach with a later attach.
    add(cold(dynamic(Shape::Star, 2)), &transfer_events, None);
    let detach_events = [Waiting, CreditPacket, Detached, StaleGrant];
    let both = [(1, 0), (0, 1)];
    add(detaching(setup(Shape::OneWay, STATIC, 2, 1, &[SHORT]), &both, 1), &detach_events, None);
    add(detaching(dynamic(Shape::OneWay, 2), &both, 1), &detach_events, None);
    add(detaching(dynamic(Shape::Star, 1), &[(1, 0)], 0), &detach_events, None);
    let one_way = stealing(setup(Shape::OneWay, DYNAMIC, 2, 1, &[SHORT]));
    let mut one_way = detaching(one_way, &both, 0);
    (one_way.max_detaches, one_way.name) = (Some(1), one_way.name + " once");
    add(one_way, &[Blocked, Excess, QuotaTransfer, ControlWaiting, Detached, StaleGrant], None);
    add(request_before_connected(), &[Blocked, QuotaTransfer, EarlyRequest], None);
    // Credits on demand. Three senders: turns of waiting senders.
    let demand_events = [Waiting, Loan, Queued, Prefetch, Reclaim, Reclaimed];
    add(demand(Shape::Star, 1, 1, &[SHORT, TWO_SLOTS]), &demand_events, None);
    add(demand(Shape::Star, 2, 0, &[SHORT, TWO_SLOTS]), &demand_events, None);
    add(demand(Shape::Star, 2, 1, &[SHORT, TWO_SLOTS]), &[Waiting, Loan, Prefetch], None);
    add(demand(Shape::Star3, 1, 0, &[SHORT]), &[Waiting, CreditPacket], None);
    add(demand(Shape::Star3, 1, 1, &[SHORT, TWO_SLOTS]), &[Waiting, Loan], None);
    add(demand(Shape::Star3, 2, 1, &[TWO_SLOTS, FOUR_SLOTS]), &[Waiting, Loan, Queued, Turn], Some(500_000));
    add(
        demand(Shape::Answers, 1, 1, &[SHORT, TWO_SLOTS]),
        &[Piggyback, Loan, Queued, Reclaim],
        Some(500_000),
    );
    add(demand(Shape::Both, 3, 0, &[SHORT, TWO_SLOTS]), &[Waiting, Piggyback, Loan, Prefetch], Some(500_000));
    add(may_crash(demand(Shape::Star, 1, 1, &[SHORT, TWO_SLOTS])), &[Queued, Reclaim, Crashed], None);
    add(cold(demand(Shape::Star, 1, 1, &[SHORT, TWO_SLOTS])), &[Queued, Reclaim], Some(500_000));
    add(demand(Shape::Star3, 1, 0, &[FOUR_SLOTS]), &[Waiting, Loan, Queued], None);
    add(demand(Shape::Answers, 1, 0, &[SHORT, TWO_SLOTS]), &[Waiting, Loan, Queued], None);
    // A turn is longer than the guarantee, so guarantees are deferred.
    add(demand(Shape::Star3, 4, 0, &[FOUR_SLOTS, FOUR_SLOTS]), &[Waiting, Loan, Queued], Some(500_000));
    // Leases that end while demand is queued and credits are lent.
    let leases_end = [Loan, Queued, Prefetch, Reclaim, Reclaimed, Detached, StaleGrant];
    let once = detaching(demand(Shape::Star, 1, 1, &[SHORT, TWO_SLOTS]), &[(1, 0)], 0);
    add(Setup { max_detaches: Some(1), name: once.name.clone() + " once", ..once }, &leases_end, None);
    add(detaching(demand(Shape::Star, 2, 0, &[SHORT, TWO_SLOTS]), &[(1, 0)], 0), &leases_end, None);
    add(detaching(demand(Shape::OneWay, 2, 0, &[SHORT]), &both, 1), &[Detached, StaleGrant], None);
    add(victim_without_return_lane(), &[Blocked, ShortGrant, QuotaTransfer, Detached], Some(500_000));
    // Drivers that defer credits.
    add(deferring(dynamic(Shape::Star, 2)), &[Blocked, ShortGrant, LateCredits], Some(500_000));
    add(deferring(dynamic(Shape::Both, 2)), &[Waiting, Piggyback, LateCredits], Some(500_000));
    let scarce = demand(Shape::Star, 1, 1, &[SHORT, TWO_SLOTS]);
    add(deferring(scarce), &[Waiting, Loan, Queued, LateCredits], Some(500_000));
    let stealing = stealing(dynamic(Shape::OneWay, 2));
    add(deferring(stealing), &[Blocked, QuotaTransfer, LateCredits], Some(500_000));
    machines::full().iter().for_each(|(setup, wanted)| add(setup.clone(), wanted, None));
    machines::bounded().iter().for_each(|(setup, wanted)| add(setup.clone(), wanted, Some(500_000)));
    cases
}

fn connection(quota_slots: u32, message_bytes: &[u64]) -> Setup {
    setup(Shape::Both, CONNECTION, quota_slots, ecm_slots(quota_slots, None), message_bytes)
}

/// A sender starts with more than its guaranteed credits. So it can get a return request before its `Connected`.
fn request_before_connected() -> Setup {
    let mut setup = cold(stealing(setup(Shape::OneWay, DYNAMIC, 3, 1, &[SHORT])));
    setup.config.region.start_slots = 2;
    Setup { name: setup.name.clone() + ", 2 initially", ..setup }
}

/// The receiver has no lane to sender 2 for a while, so it cannot return the credits of sender 2. Sender 1 can take all
/// slots without guarantee: with n = 2 and a quota of 3 it can hold 3 T - 1 = 5 of 5 slots.
fn victim_without_return_lane() -> Setup {
    let setup = detaching(setup(Shape::Star, DYNAMIC, 2, 2, &[SHORT]), &[(0, 2)], 0);
    Setup { extra_slots: 1, max_detaches: Some(1), name: setup.name.clone() + " once, 1 more", ..setup }
}

/// Kinds that one sender with stealing must show. Only another sender could cause a short grant.
const SINGLE_SENDER_EVENTS: [Happened; 5] = [
    Happened::Blocked,
    Happened::Excess,
    Happened::Deficit,
    Happened::QuotaTransfer,
    Happened::ControlWaiting,
];

/// `setup` with senders that may get detach requests.
fn detaching(setup: Setup, detaching: &[(u32, u32)], overlap: u8) -> Setup {
    let twice = if overlap > 0 { ", two lanes" } else { "" };
    let name = format!("{}, detach{twice}", setup.name);
    Setup { detaching: detaching.to_vec(), overlap, name, ..setup }
}

/// `setup` without connections at first.
fn cold(setup: Setup) -> Setup {
    Setup { cold: true, name: setup.name.clone() + ", cold", ..setup }
}

/// `setup` with grace for victims: one pass after a gain, and one if the victim is poorer and was active.
fn with_grace(mut setup: Setup) -> Setup {
    setup.config.region.grace_points = 1;
    Setup { name: setup.name.clone() + ", grace", ..setup }
}

fn stealing(setup: Setup) -> Setup {
    Setup { stealing: true, name: setup.name.clone() + ", stealing", ..setup }
}

/// `setup` with links that become busy.
fn busy_links(setup: Setup) -> Setup {
    Setup { busy_links: true, name: setup.name.clone() + ", busy links", ..setup }
}

/// `setup` with drivers that defer credits.
fn deferring(setup: Setup) -> Setup {
    Setup { deferring: true, name: setup.name.clone() + ", deferring", ..setup }
}

fn may_crash(setup: Setup) -> Setup {
    Setup { may_crash: Some(1), name: setup.name.clone() + ", crash", ..setup }
}

/// The mutants that a search detects. `docs/explanation/proof.md` names the others and the reasons.
pub fn mutants() -> Vec<Mutant> {
    let mut mutants = Vec::new();
    let mut add = |rule, name, setup, caught_by, from_outside| {
        mutants.push(Mutant { name, setup: Setup { rule, ..setup }, caught_by, from_outside });
    };
    let star = || setup(Shape::Star, DYNAMIC, 2, 1, &[SHORT]);
    let both = |quota| setup(Shape::Both, DYNAMIC, quota, 1, &[SHORT]);
    let static_star = |quota, n| setup(Shape::Star, EXPLICIT, quota, n, &[SHORT]);
    let watched = |setup: Setup| Setup { watch_activity: true, ..setup };
    let mut two_initially = setup(Shape::OneWay, DYNAMIC, 4, 1, &[SHORT]);
    two_initially.config.region.start_slots = 2;
    // First contact, because an account of policy `Start` is opened before the mutant is selected.
    two_initially.config.region.attach_policy = AttachPolicy::FirstContact;
    add(Rule::DivByNPlus1, "threshold q div n + 1", static_star(2, 1), "I4", Some("I4"));
    add(Rule::DivByN, "threshold q div n", static_star(3, 2), "I2", Some("I2"));
    use Wrong::*;
    let mut dynamic = |wrong, name, setup, caught_by, from_outside| {
        add(Rule::Wrong(wrong), name, setup, caught_by, from_outside);
    };
    dynamic(ShortGrantPushesTheThreshold, "1 a short grant pushes the threshold", star(), "I6", Some("I4"));
    dynamic(ReturnLeavesThresholds, "2 a return leaves the thresholds", star(), "I6", Some("I4"));
    dynamic(BlockedCrossingIsLost, "3 a blocked crossing is consumed", star(), "I6", Some("I4"));
    let answers = setup(Shape::Answers, DYNAMIC, 2, 1, &[SHORT]);
    dynamic(PiggybackOverdraws, "4 piggyback overdraws", answers, "I1", Some("I1"));
    dynamic(PiggybackForgetsTheOvershoot, "5 piggyback forgets the overshoot", both(4), "I6", None);
    let one_way = stealing(setup(Shape::OneWay, DYNAMIC, 2, 1, &[SHORT]));
    dynamic(ResponsesWaitForResponses, "6 responses wait for responses", one_way, "I4", Some("I4"));
    dynamic(
        ControlCountsAsActivity,
        "7 control packets count as activity",
        watched(stealing(both(2))),
        "activity",
        Some("activity"),
    );
    dynamic(ThresholdsStartAsOnes, "8 n + 1 credits, thresholds of one", two_initially, "I6", Some("I2"));
    dynamic(LostPeersKeepTheirShare, "9 lost peers keep their share", may_crash(star()), "I1", Some("I1"));
    dynamic(
        NothingIsReserved,
        "10 guarantees are not reserved",
        victim_without_return_lane(),
        "assertion",
        Some("I4"),
    );
    let busy = || busy_links(setup(Shape::OneWay, STATIC, 2, 1, &[SHORT]));
    dynamic(RefusedPacketSpendsItsCredit, "a refused packet spends its credit", busy(), "I1", Some("I1"));
    dynamic(RefusedCreditsAreForgotten, "refused credits are forgotten", busy(), "I4", Some("I4"));
    let late = deferring(setup(Shape::OneWay, STATIC, 2, 1, &[SHORT]));
    dynamic(CreditsDueAreIgnored, "deferred credits are never sent", late, "I4", Some("I4"));
    let sizes = [SHORT, TWO_SLOTS];
    let scarce = || demand(Shape::Star, 1, 1, &sizes);
    dynamic(DemandDecreases, "demand that decreases", scarce(), "D2", Some("D2"));
    dynamic(
        LoansReturnToTheSender,
        "loans return to the sender",
        demand(Shape::Star, 2, 0, &sizes),
        "D4",
        None,
    );
    dynamic(
        ReclaimTakesLentCredits,
        "reclaim takes lent credits",
        demand(Shape::Star, 2, 0, &[SHORT, FOUR_SLOTS]),
        "reclaim",
        Some("reclaim"),
    );
    dynamic(NothingIsReserved, "demand without guarantee", scarce(), "I4", Some("I4"));
    dynamic(
        QueueDoesNotRotate,
        "a queue that does not rotate",
        demand(Shape::Star3, 2, 1, &[TWO_SLOTS, FOUR_SLOTS]),
        "D3",
        None,
    );
    dynamic(QueueIsForgotten, "freed slots do not serve the queue", scarce(), "D5", None);
    machines::mutants(&mut mutants);
    mutants
}
