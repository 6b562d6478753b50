//! What is searched: the setups of the proof, each with what it must have seen, and the rules that must be caught.

use std::time::Duration;

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
    /// The rule.
    pub rule: Rule,
    /// How the table calls it.
    pub name: &'static str,
    /// Where it shows.
    pub setup: Setup,
    /// The checks that may catch it.
    pub caught_by: &'static [&'static str],
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
    add(Setup { rule: Rule::ThresholdAlone, ..setup(Shape::Both, STATIC, 3, 2, &[SHORT]) }, &all);
    cases
}

/// All searches of `make prove`.
pub fn full() -> Vec<Case> {
    let all = vec![Happened::Waiting, Happened::CreditPacket, Happened::Piggyback];
    let mut cases = quick();
    let mut add = |setup, complete| {
        let limits = Limits::default();
        cases.push(Case { setup, wanted: all.clone(), limits, complete });
    };
    add(setup(Shape::Both, STATIC, 4, 1, &[SHORT, FULL]), true);
    add(setup(Shape::Both, STATIC, 4, 2, &[SHORT, TWO_SLOTS]), true);
    add(setup(Shape::Both, STATIC, 6, 2, &[SHORT]), true);
    for quota in 1..=3 {
        add(setup(Shape::Star, DYNAMIC, quota, 1, &[SHORT]), quota <= 2);
    }
    for quota in 1..=3 {
        add(Setup { thief: true, ..setup(Shape::Both, DYNAMIC, quota, 1, &[SHORT]) }, quota <= 2);
    }
    add(setup(Shape::AllToAll, DYNAMIC, 1, 1, &[SHORT]), false);
    cases
}

/// Every rule that is known to be wrong.
pub fn mutants() -> Vec<Mutant> {
    let mut mutants = Vec::new();
    let mut add = |rule, name, setup, caught_by| {
        mutants.push(Mutant { rule, name, setup: Setup { rule, ..setup }, caught_by });
    };
    add(Rule::DivByNPlus1, "threshold q div n + 1", setup(Shape::Star, EXPLICIT, 2, 1, &[SHORT]), &["I4"]);
    add(Rule::DivByN, "threshold q div n", setup(Shape::Star, EXPLICIT, 3, 2, &[SHORT]), &["I2"]);
    mutants
}

/// tmp
pub fn candidates() -> Vec<Setup> {
    let thief = |setup: Setup| Setup { thief: true, watch_activity: true, name: setup.name.clone() + ", thief", ..setup };
    vec![
        setup(Shape::Star, DYNAMIC, 2, 1, &[SHORT]),
        thief(setup(Shape::OneWay, DYNAMIC, 2, 1, &[SHORT])),
        thief(setup(Shape::OneWay, DYNAMIC, 3, 1, &[SHORT])),
        setup(Shape::Both, DYNAMIC, 3, 1, &[SHORT]),
        setup(Shape::Both, DYNAMIC, 5, 1, &[SHORT]),
        thief(setup(Shape::Both, DYNAMIC, 2, 1, &[SHORT])),
        thief(setup(Shape::Both, DYNAMIC, 3, 1, &[SHORT])),
        setup(Shape::Answers, DYNAMIC, 2, 1, &[SHORT]),
        setup(Shape::AllToAll, DYNAMIC, 2, 1, &[SHORT]),
        Setup { mortal: Some(1), ..setup(Shape::Star, DYNAMIC, 2, 1, &[SHORT]) },
        {
            let mut s = setup(Shape::OneWay, DYNAMIC, 4, 1, &[SHORT]);
            s.config.region.start_slots = 2;
            s
        },
    ]
}
