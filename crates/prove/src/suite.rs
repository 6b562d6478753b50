//! What is searched: the setups of the proof, each with what it must have seen, and the rules that must be caught.

use std::time::Duration;

use weir_proto::flow::Mutant as Wrong;
use weir_proto::{Admission, Config, DataRegion, Geometry, Scheme};

use crate::explore::Limits;
use crate::model::{Happened, Rule, Setup};

/// A setup and what its search must show.
#[derive(Clone, Debug)]
pub struct Case {
    /// The setup.
    pub setup: Setup,
    /// What must have happened in some state, or the search has shown nothing.
    pub wanted: Vec<Happened>,
    /// Where it stops.
    pub limits: Limits,
    /// It is to be searched to the end.
    pub complete: bool,
}

/// A rule that is known to be wrong, where it must be caught, and by which checks it may be.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// How the table calls it: the gap in `docs/protocol.md`, section 4, and the rule.
    pub name: &'static str,
    /// Where it shows, with the rule in it.
    pub setup: Setup,
    /// The check that catches it.
    pub caught_by: &'static str,
    /// The check that catches it without the machine's own: what a user would see. `None` if that takes too long.
    pub from_outside: Option<&'static str>,
}

const STATIC: Scheme = Scheme::Static { piggyback: true };
const DYNAMIC: Scheme = Scheme::Dynamic { piggyback: true };
const EXPLICIT: Scheme = Scheme::Static { piggyback: false };

/// A message of one slot with room for credits; one without; one of two slots.
const SHORT: u64 = 0;
const FULL: u64 = 32;
const TWO_SLOTS: u64 = 40;

/// Who sends to whom.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Two senders and a receiver.
    Star,
    /// Two processes, one direction.
    OneWay,
    /// Two processes, both directions.
    Both,
    /// Two senders and a receiver that answers one of them.
    Answers,
    /// Three processes, all directions.
    AllToAll,
}

impl Shape {
    fn pairs(self) -> (u32, Vec<(u32, u32)>) {
        match self {
            Shape::Star => (3, vec![(1, 0), (2, 0)]),
            Shape::OneWay => (2, vec![(1, 0)]),
            Shape::Both => (2, vec![(0, 1), (1, 0)]),
            Shape::Answers => (3, vec![(1, 0), (2, 0), (0, 1)]),
            Shape::AllToAll => (3, vec![(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Shape::Star => "star",
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
        Scheme::Dynamic { piggyback: false } => "dynamic, explicit",
        other => panic!("{other:?} is not explored"),
    };
    let kinds = match message_bytes {
        [SHORT] => "",
        [SHORT, FULL] => ", full",
        _ => ", 2 slots",
    };
    let config = Config {
        scheme,
        geometry: Geometry::EXTOLL,
        credit_slots,
        region: DataRegion {
            start_slots: credit_slots,
            admission: Admission::Start,
            ..DataRegion::default()
        },
        eager_bytes: 2048,
        cross_memory: false,
        remote_inline_bytes: 64,
        max_unexpected: 4,
        // Everything is received at once: there is nothing to hold back.
        unexpected_budget_bytes: 1 << 40,
        retain_bytes: 0,
        planned_peers: processes,
        planned_quota_slots: quota_slots,
    };
    Setup {
        name: format!("{scheme_name}: {} q={quota_slots} n={credit_slots}{kinds}", shape.name()),
        processes,
        pairs,
        config,
        quota_slots,
        rule: Rule::Ours,
        thief: false,
        watch_activity: false,
        inner_checks: true,
        mortal: None,
        message_bytes: message_bytes.to_vec(),
    }
}

/// The searches that end within seconds, also without optimisation: part of `make test`.
pub fn quick() -> Vec<Case> {
    let waits = vec![Happened::Waiting, Happened::CreditPacket];
    let all = vec![Happened::Waiting, Happened::CreditPacket, Happened::Piggyback];
    let mut cases = Vec::new();
    let mut add = |setup, wanted: &Vec<Happened>| {
        let limits = Limits { time: Duration::from_secs(60), ..Limits::default() };
        cases.push(Case { setup, wanted: wanted.clone(), limits, complete: true });
    };
    add(setup(Shape::Both, Scheme::Unlimited, 2, 1, &[SHORT, TWO_SLOTS]), &vec![Happened::Waiting]);
    for quota in 1..=3 {
        add(setup(Shape::Star, EXPLICIT, quota, 1, &[SHORT]), &waits);
        // With one slot every retrieval reaches the threshold, so nothing is left to go with data.
        let wanted = if quota == 1 { &waits } else { &all };
        add(setup(Shape::Both, STATIC, quota, 1, &[SHORT]), wanted);
    }
    add(setup(Shape::Both, STATIC, 2, 1, &[SHORT, FULL]), &all);
    add(setup(Shape::Both, STATIC, 2, 1, &[SHORT, TWO_SLOTS]), &all);
    add(setup(Shape::Both, STATIC, 3, 2, &[SHORT]), &all);
    add(Setup { rule: Rule::ThresholdAlone, ..setup(Shape::Both, STATIC, 3, 1, &[SHORT]) }, &all);
    add(setup(Shape::Star, DYNAMIC, 1, 1, &[SHORT]), &waits);
    add(thief(setup(Shape::OneWay, DYNAMIC, 2, 1, &[SHORT])), &EVERYTHING_OF_ONE.to_vec());
    add(Setup { rule: Rule::ThresholdAlone, ..setup(Shape::Both, STATIC, 3, 2, &[SHORT]) }, &all);
    cases
}

/// All searches of `make prove`.
pub fn full() -> Vec<Case> {
    let all = vec![Happened::Waiting, Happened::CreditPacket, Happened::Piggyback];
    let mut cases = quick();
    let mut add = |setup, wanted: &[Happened], complete| {
        let limits = Limits::default();
        cases.push(Case { setup, wanted: wanted.to_vec(), limits, complete });
    };
    add(setup(Shape::Both, STATIC, 4, 1, &[SHORT, FULL]), &all, true);
    add(setup(Shape::Both, STATIC, 4, 2, &[SHORT, TWO_SLOTS]), &all, true);
    add(setup(Shape::Both, STATIC, 6, 2, &[SHORT]), &all, true);

    // (a) One receiver, two senders.
    let taking = [Happened::Blocked, Happened::ShortGrant, Happened::Theft, Happened::ControlWaiting];
    add(setup(Shape::Star, DYNAMIC, 2, 1, &[SHORT]), &taking, true);
    add(mortal(setup(Shape::Star, DYNAMIC, 2, 1, &[SHORT])), &taking, true);
    add(setup(Shape::Star, DYNAMIC, 3, 1, &[SHORT]), &taking, false);
    // (b) Two processes, both directions, an environment that steals.
    add(thief(setup(Shape::OneWay, DYNAMIC, 3, 1, &[SHORT])), &EVERYTHING_OF_ONE, true);
    add(
        thief(setup(Shape::Both, DYNAMIC, 1, 1, &[SHORT])),
        &[Happened::Waiting, Happened::CreditPacket],
        true,
    );
    add(thief(setup(Shape::Both, DYNAMIC, 2, 1, &[SHORT])), &EVERYTHING_OF_ONE, false);
    // (c) Three, all to all.
    add(setup(Shape::AllToAll, DYNAMIC, 1, 1, &[SHORT]), &[Happened::Waiting, Happened::CreditPacket], false);
    // Beyond: an answer to one of two senders, so that piggybacking meets short grants.
    add(setup(Shape::Answers, DYNAMIC, 2, 1, &[SHORT]), &[Happened::Piggyback, Happened::ShortGrant], false);
    cases
}

/// What one sender and a thief must show: nobody else can leave the pool short.
const EVERYTHING_OF_ONE: [Happened; 5] =
    [Happened::Blocked, Happened::Excess, Happened::Deficit, Happened::Theft, Happened::ControlWaiting];

fn thief(setup: Setup) -> Setup {
    Setup { thief: true, name: setup.name.clone() + ", thief", ..setup }
}

fn mortal(setup: Setup) -> Setup {
    Setup { mortal: Some(1), name: setup.name.clone() + ", mortal", ..setup }
}

/// The rules that are known to be wrong and that a search finds; `docs/proof.md` names the others and their tests.
pub fn mutants() -> Vec<Mutant> {
    let mut mutants = Vec::new();
    let mut add = |rule, name, setup, caught_by, from_outside| {
        mutants.push(Mutant { name, setup: Setup { rule, ..setup }, caught_by, from_outside });
    };
    let star = || setup(Shape::Star, DYNAMIC, 2, 1, &[SHORT]);
    let both = |quota| setup(Shape::Both, DYNAMIC, quota, 1, &[SHORT]);
    let static_star = |quota, n| setup(Shape::Star, EXPLICIT, quota, n, &[SHORT]);
    let watched = |setup: Setup| Setup { watch_activity: true, ..setup };
    let mut four_of_two = setup(Shape::OneWay, DYNAMIC, 4, 1, &[SHORT]);
    four_of_two.config.region.start_slots = 2;
    // Admitted when it comes: an account that is open from the start is older than the wrong rule.
    four_of_two.config.region.admission = Admission::FirstContact;
    add(Rule::DivByNPlus1, "threshold q div n + 1", static_star(2, 1), "I4", Some("I4"));
    add(Rule::DivByN, "threshold q div n", static_star(3, 2), "I2", Some("I2"));
    use Wrong::*;
    let mut dynamic = |wrong, name, setup, caught_by, from_outside| {
        add(Rule::Wrong(wrong), name, setup, caught_by, from_outside);
    };
    dynamic(ShortGrantPushesTheThreshold, "1 short grant pushes the threshold", star(), "I6", Some("I4"));
    dynamic(ReturnLeavesThresholds, "2 a return leaves the thresholds", star(), "I6", Some("I4"));
    dynamic(BlockedCrossingIsLost, "3 blocked crossing is used up", star(), "I6", Some("I4"));
    let answers = setup(Shape::Answers, DYNAMIC, 2, 1, &[SHORT]);
    dynamic(PiggybackOverdraws, "4 piggyback overdraws", answers, "I1", Some("I1"));
    dynamic(PiggybackForgetsTheOvershoot, "5 piggyback forgets the overshoot", both(5), "I6", None);
    dynamic(
        ControlCountsAsActivity,
        "7 control packets are activity",
        watched(thief(both(2))),
        "activity",
        Some("activity"),
    );
    dynamic(ThresholdsStartAsOnes, "8 n + 1 at first, thresholds of one", four_of_two, "I6", Some("I2"));
    dynamic(TheDeadKeepTheirShare, "9 the dead keep their share", mortal(star()), "I1", Some("I1"));
    mutants
}
