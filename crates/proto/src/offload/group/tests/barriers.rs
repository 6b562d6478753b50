//! Barriers of one member.

use super::*;

fn of_degree(rank: u32, degree: u32) -> Member {
    let mut member = Member::alone();
    let members = (0..4).map(Peer).collect();
    let shape = Shape { barrier: BarrierSchedule::GatherBroadcast { degree }, ..Shape::default() };
    member.post(GroupCommand::Join(Membership { group: GROUP, members, rank, patience_ns: None, shape }));
    member.hear_all(rank);
    member
}

#[test]
fn a_step_of_a_pairwise_exchange_follows_the_packet_of_the_step_before() {
    let mut member = Member::of_four(1);
    assert_eq!(member.begin(5, Operation::Barrier), ["barrier 0 to 0"]);
    assert_eq!(member.of(Operation::Barrier, 0, 0, (0, 0)), ["barrier 0 to 3"]);
    assert_eq!(member.of(Operation::Barrier, 3, 0, (0, 0)), ["5 Done"]);
    assert!(member.machine.is_quiescent());
}

#[test]
fn early_packets_of_a_barrier_are_recorded() {
    let mut member = Member::of_four(1);
    assert_eq!(member.of(Operation::Barrier, 3, 0, (0, 0)), [""; 0]);
    assert_eq!(member.of(Operation::Barrier, 3, 1, (0, 0)), [""; 0]);
    assert_eq!(member.begin(5, Operation::Barrier), ["barrier 0 to 0"]);
    assert_eq!(member.of(Operation::Barrier, 0, 0, (0, 0)), ["barrier 0 to 3", "5 Done"]);
    assert_eq!(member.of(Operation::Barrier, 0, 1, (0, 0)), [""; 0]);
    assert_eq!(member.begin(6, Operation::Barrier), ["barrier 1 to 0", "barrier 1 to 3", "6 Done"]);
    assert_eq!(member.buffers(), 0);
}

#[test]
fn several_barriers_are_under_way_and_end_in_any_order() {
    let mut member = Member::of_four(1);
    (0..MAX_ROUNDS).for_each(|request| drop(member.begin(request, Operation::Barrier)));
    assert_eq!(member.of(Operation::Barrier, 0, 1, (0, 0)), ["barrier 1 to 3"]);
    assert_eq!(member.of(Operation::Barrier, 3, 1, (0, 0)), ["1 Done"]);
    assert_eq!(member.of(Operation::Barrier, 0, 0, (0, 0)), ["barrier 0 to 3"]);
    assert_eq!(member.of(Operation::Barrier, 3, 0, (0, 0)), ["0 Done"]);
}

#[test]
fn a_member_of_a_tree_gathers_before_it_broadcasts() {
    let mut root = of_degree(0, 2);
    assert_eq!(root.begin(5, Operation::Barrier), [""; 0]);
    assert_eq!(root.of(Operation::Barrier, 2, 0, (0, 0)), [""; 0]);
    assert_eq!(root.of(Operation::Barrier, 1, 0, (0, 0)), ["barrier 0 to 1", "barrier 0 to 2", "5 Done"]);
    let mut inner = of_degree(1, 2);
    assert_eq!(inner.of(Operation::Barrier, 3, 0, (0, 0)), [""; 0]);
    assert_eq!(inner.begin(5, Operation::Barrier), ["barrier 0 to 0"]);
    assert_eq!(inner.of(Operation::Barrier, 0, 0, (0, 0)), ["barrier 0 to 3", "5 Done"]);
}

#[test]
fn packets_of_a_barrier_that_make_no_sense_are_rejected() {
    let mut member = Member::of_four(1);
    assert_eq!(member.of(Operation::Barrier, 2, 0, (0, 0)), ["reject 2"], "no partner");
    member.of(Operation::Barrier, 0, 0, (0, 0));
    assert_eq!(member.of(Operation::Barrier, 0, 0, (0, 0)), ["reject 0"], "twice");
    assert_eq!(member.of(Operation::Barrier, 3, 0, (0, 8)), ["reject 3"], "with payload");
    assert_eq!(member.taken(0, 0, false), ["reject 0"], "nothing to answer");
    assert_eq!(member.start(5, 8), ["reject 0", "5 lost with 0 Malformed"], "another operation");
}
