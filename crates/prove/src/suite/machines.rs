//! The searches with machines beside the endpoints, and the mutants that they must detect.

use weir_proto::Scheme;
use weir_proto::flow::Mutant as Wrong;
use weir_proto::flow::static_connection::ecm_slots;

use super::{
    CONNECTION, DOUBLING, DYNAMIC, EXPLICIT, Mutant, SHORT, STATIC, Shape, busy_links, demand, detaching,
    hardware, may_crash, setup, stealing,
};
use crate::model::{Collective, Happened, OffloadSetup, Rule, Setup, WrongMachine};

fn connection_of(shape: Shape, quota_slots: u32) -> Setup {
    setup(shape, CONNECTION, quota_slots, ecm_slots(quota_slots, None), &[SHORT])
}

/// `setup` in which every sender also fetches and changes the word of its receiver, with at most `max_fetches` fetches
/// without an answer.
fn fetching(setup: Setup, max_fetches: usize) -> Setup {
    let offload = OffloadSetup { fetching: setup.pairs.clone(), max_fetches, ..OffloadSetup::default() };
    let count = if max_fetches == 1 { "fetches".into() } else { format!("{max_fetches} fetches") };
    Setup { name: format!("{}, {count}", setup.name), offload, ..setup }
}

/// `setup` whose first `members` endpoints also reduce vectors of `vector_words` words.
fn reducing(setup: Setup, members: u32, vector_words: u32) -> Setup {
    let members: Vec<u32> = (0..members).collect();
    let name = format!("{}, reductions of {vector_words}", setup.name);
    let offload = OffloadSetup { members, max_rounds: 2, vector_words, ..OffloadSetup::default() };
    Setup { name, offload, ..setup }
}

/// `setup` whose first `members` endpoints also do this operation of a group, with vectors of a word.
fn together(setup: Setup, members: u32, collective: Collective) -> Setup {
    let mut together = reducing(setup.clone(), members, u32::from(collective != Collective::Barrier));
    together.offload.collective = collective;
    let operations = match collective {
        Collective::Barrier => "barriers",
        Collective::Exchange => "exchanges",
        Collective::Gather => "gathers",
        Collective::Scatter => "scatters",
        Collective::AllGather => "all-gathers",
        Collective::AllToAll => "all-to-alls",
        Collective::Reduce | Collective::AllReduce => "all-reduces",
    };
    Setup { name: format!("{}, {operations}", setup.name), ..together }
}

/// `setup` without messages, whose first `members` endpoints reduce one word at a time.
fn only_reducing(setup: Setup, members: u32) -> Setup {
    let mut setup = Setup { pairs: Vec::new(), ..reducing(setup, members, 1) };
    setup.offload.max_rounds = 1;
    Setup { name: setup.name.clone() + ", no messages", ..setup }
}

/// The searches that end within seconds, with what each must show.
pub(super) fn quick() -> Vec<(Setup, Vec<Happened>)> {
    use Happened::*;
    let star = |scheme| fetching(setup(Shape::Star, scheme, 1, 1, &[SHORT]), 1);
    let one_way = |scheme| setup(Shape::OneWay, scheme, 2, 1, &[SHORT]);
    // An answer waits for credit only if the one before it has used the last.
    let waits = vec![Waiting, Fetched, AnswerWaiting];
    let with = |more: &[Happened]| [&waits[..], more].concat();
    vec![
        (star(Scheme::Unlimited), waits.clone()),
        (star(hardware(7)), with(&[NotReady])),
        (star(STATIC), vec![Waiting, Fetched, CreditPacket]),
        (fetching(one_way(EXPLICIT), 2), with(&[CreditPacket])),
        (fetching(one_way(DOUBLING), 2), with(&[CreditPacket, Piggyback, Growth])),
        (fetching(one_way(DYNAMIC), 2), with(&[CreditPacket])),
        (fetching(demand(Shape::OneWay, 2, 0, &[SHORT]), 2), vec![Waiting, Fetched, CreditPacket]),
        (fetching(connection_of(Shape::OneWay, 3), 2), vec![Waiting, Fetched, CreditPacket, Piggyback]),
        (fetching(setup(Shape::Both, STATIC, 1, 1, &[SHORT]), 1), with(&[CreditPacket])),
        (busy_links(fetching(one_way(STATIC), 1)), with(&[CreditPacket, Refused])),
        (detaching(fetching(one_way(STATIC), 1), &[(1, 0)], 0), with(&[Detached, StaleGrant])),
        (may_crash(fetching(setup(Shape::Both, STATIC, 1, 1, &[SHORT]), 1)), with(&[Crashed])),
        (reducing(one_way(STATIC), 2, 1), vec![Waiting, Reduced, EarlyContribution]),
        (together(one_way(STATIC), 2, Collective::AllReduce), vec![Waiting, Reduced]),
        (together(one_way(STATIC), 2, Collective::Barrier), vec![Waiting, Reduced]),
        (together(one_way(STATIC), 2, Collective::Exchange), vec![Waiting, Reduced, EarlyContribution]),
        (together(one_way(STATIC), 2, Collective::Gather), vec![Waiting, Reduced, EarlyContribution]),
        (together(one_way(STATIC), 2, Collective::Scatter), vec![Waiting, Reduced, EarlyContribution]),
        (together(one_way(STATIC), 2, Collective::AllGather), vec![Waiting, Reduced, EarlyContribution]),
        (together(one_way(STATIC), 2, Collective::AllToAll), vec![Waiting, Reduced, EarlyContribution]),
    ]
}

/// Searches that may be too large to complete.
pub(super) fn bounded() -> Vec<(Setup, Vec<Happened>)> {
    use Happened::*;
    let star = setup(Shape::Star, DYNAMIC, 1, 1, &[SHORT]);
    let one_way = stealing(setup(Shape::OneWay, DYNAMIC, 2, 1, &[SHORT]));
    let reductions = vec![Waiting, Reduced, EarlyContribution];
    vec![
        (fetching(star, 1), vec![Waiting, Fetched, CreditPacket]),
        (fetching(one_way, 2), vec![Waiting, Fetched, Blocked, QuotaTransfer]),
        (only_reducing(setup(Shape::Star, STATIC, 1, 1, &[SHORT]), 3), vec![Reduced, EarlyContribution]),
        // A vector of two packets.
        (reducing(setup(Shape::OneWay, STATIC, 2, 1, &[SHORT]), 2, 5), reductions),
    ]
}

/// The larger searches.
pub(super) fn full() -> Vec<(Setup, Vec<Happened>)> {
    use Happened::*;
    let star = |scheme, quota| setup(Shape::Star, scheme, quota, 1, &[SHORT]);
    let waits = [Waiting, Fetched, AnswerWaiting];
    vec![
        (fetching(star(STATIC, 1), 2), waits.to_vec()),
        (fetching(star(EXPLICIT, 2), 1), vec![Waiting, Fetched, CreditPacket]),
        (fetching(connection_of(Shape::Star, 3), 1), vec![Waiting, Fetched, CreditPacket]),
        (fetching(star(DOUBLING, 2), 1), vec![Waiting, Fetched, CreditPacket, Growth]),
        (fetching(star(hardware(2), 1), 1), vec![Waiting, Fetched, NotReady, GaveUp]),
        (fetching(demand(Shape::Star, 1, 0, &[SHORT]), 1), vec![Waiting, Fetched, CreditPacket]),
        (may_crash(fetching(star(STATIC, 1), 1)), vec![Waiting, Fetched, Crashed]),
    ]
}

/// Adds the mutants.
pub(super) fn mutants(mutants: &mut Vec<Mutant>) {
    let mut add = |rule, name, setup, caught_by| {
        let setup = Setup { rule, ..setup };
        mutants.push(Mutant { name, setup, caught_by, from_outside: Some(caught_by) });
    };
    let one_way = || fetching(setup(Shape::OneWay, STATIC, 2, 1, &[SHORT]), 2);
    let both = fetching(setup(Shape::Both, STATIC, 1, 1, &[SHORT]), 1);
    let reduces = || reducing(setup(Shape::OneWay, STATIC, 2, 1, &[SHORT]), 2, 1);
    let no_credit = Rule::Wrong(Wrong::OffloadedPacketsTakeNoCredit);
    add(no_credit, "packets of machines take no credit", one_way(), "I1");
    let dropped = Rule::Wrong(Wrong::AnswersBehindABacklogAreDropped);
    add(dropped, "answers behind a backlog are dropped", both, "fetch");
    let mut machine = |wrong, name, setup, caught_by| add(Rule::WrongMachine(wrong), name, setup, caught_by);
    use WrongMachine::*;
    machine(AnswersTwice, "a fetch is answered twice", one_way(), "machine");
    machine(ForgetsEarlierFetches, "one of two fetches is not answered", one_way(), "fetch");
    machine(CombinesFromTheLeft, "contributions are combined from the left", reduces(), "group");
    machine(LosesEarlyContributions, "early contributions are lost", reduces(), "group");
    let star = Setup { pairs: Vec::new(), ..setup(Shape::Star, STATIC, 1, 1, &[SHORT]) };
    let mut barrier = together(star, 3, Collective::Barrier);
    barrier.offload.max_rounds = 1;
    machine(ForgetsTheLastMember, "the last member gets no packet of a barrier", barrier, "group");
}
