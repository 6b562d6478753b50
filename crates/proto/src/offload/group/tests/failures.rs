//! How a group fails at one member.

use super::*;

#[test]
fn other_packets_that_make_no_sense_are_rejected() {
    let mut root = Member::of_four(0);
    assert_eq!(root.taken(1, 0, false), ["reject 1"]);
    assert_eq!(root.failed(1, 4), ["reject 1"], "no such member");
    assert_eq!(root.failed(9, 1), ["reject 9"], "no member");
    let mut leaf = Member::of_four(1);
    leaf.start(5, 8);
    assert_eq!(leaf.taken(0, 0, true), ["reject 0"], "the parent has not said why");
    assert_eq!(leaf.taken(0, 1, false), ["reject 0"], "another number");
    assert_eq!(leaf.taken(2, 0, false), ["reject 2"], "another member");
}

#[test]
fn a_lost_child_ends_all_operations_and_the_neighbours_are_told() {
    let mut inner = Member::of_four(2);
    inner.start(5, 8);
    inner.contribution(3, 0, 8);
    inner.start(6, 8);
    inner.begin(7, Operation::Barrier);
    assert_eq!(
        inner.lose(3),
        ["failed to 0: 3 Died", "5 lost with 3 Died", "free 1", "6 lost with 3 Died", "7 lost with 3 Died"],
        "buffer 0 may wait for credit"
    );
    assert_eq!(inner.lose(3), [""; 0], "it may come again");
    assert_eq!(inner.start(8, 8), ["8 lost with 3 Died"]);
    assert_eq!(inner.taken(0, 0, false), ["free 0"]);
    assert_eq!(inner.buffers(), 0);
}

#[test]
fn a_lost_parent_ends_what_it_has_not_answered() {
    let mut inner = Member::of_four(2);
    inner.start(5, 8);
    inner.contribution(3, 0, 8);
    inner.start(6, 8);
    inner.part(3, 1, 8, (0, 8));
    inner.part(3, 2, 16, (0, 8)); // the first half
    assert_eq!(
        inner.lose(0),
        ["failed to 3: 0 Died", "5 lost with 0 Died", "6 lost with 0 Died", "free 2", "free 0", "free 1"]
    );
    assert_eq!((inner.buffers(), inner.machine.is_quiescent()), (0, true));
    assert_eq!(inner.part(3, 2, 16, (8, 8)), ["refused 2 to 3"], "it had not heard");
}

#[test]
fn a_partner_that_is_no_neighbour_fails_the_group_as_well() {
    let mut member = Member::of_four(1);
    member.begin(5, Operation::Barrier);
    assert_eq!(member.lose(3), ["failed to 0: 3 Died", "5 lost with 3 Died"]);
    assert!(member.machine.is_quiescent());
}

#[test]
fn the_loss_of_a_distant_member_comes_from_a_neighbour_and_goes_to_the_others() {
    let mut root = Member::of_four(0);
    root.contribution(1, 0, 8);
    root.start(5, 8);
    root.contribution(1, 1, 8);
    assert_eq!(
        root.failed(2, 3),
        ["failed to 1: 3 Died", "5 lost with 3 Died", "refused 1 to 1", "free 0"],
        "reduction 0 has taken the contribution of member 1"
    );
    assert_eq!(root.contribution(2, 0, 8), ["refused 0 to 2"], "it was on its way");
    let mut leaf = Member::of_four(1);
    leaf.start(5, 8);
    leaf.start(6, 8);
    assert_eq!(leaf.failed(0, 3), ["5 lost with 3 Died", "6 lost with 3 Died"]);
    assert_eq!(leaf.taken(0, 0, false), ["free 0"]);
    assert_eq!(leaf.taken(0, 1, true), ["free 1"]);
    assert!(leaf.machine.is_quiescent());
}

#[test]
fn contributions_to_an_all_reduce_without_a_result_are_answered() {
    let vector = Vector { bytes: 8, combination: SUM };
    let mut root = Member::of_four(0);
    root.begin(5, Operation::AllReduce(vector));
    root.of(Operation::AllReduce(vector), 1, 0, (0, 8));
    assert_eq!(root.lose(2), ["failed to 1: 2 Died", "refused 0 to 1", "5 lost with 2 Died"]);
}

#[test]
fn the_result_of_an_all_reduce_answers_the_contribution_of_a_failed_member() {
    let vector = Vector { bytes: 16, combination: SUM };
    let mut inner = Member::of_four(2);
    inner.begin(5, Operation::AllReduce(vector));
    inner.of(Operation::AllReduce(vector), 3, 0, (0, 16));
    assert_eq!(inner.lose(3), ["failed to 0: 3 Died", "5 lost with 3 Died"]);
    assert_eq!(inner.of(Operation::AllReduce(vector), 0, 0, (0, 8)), ["free 0"]);
    assert_eq!(inner.of(Operation::AllReduce(vector), 0, 0, (8, 8)), ["refused 0 to 0"]);
    assert!(inner.machine.is_quiescent());
}

#[test]
fn an_operation_that_waits_too_long_names_the_missing_member() {
    let mut root = Member::ready(0, Some(50));
    assert_eq!(root.start(5, 8), ["timer at 150"]);
    assert_eq!(root.start(6, 8), [""; 0], "the oldest one counts");
    root.contribution(1, 0, 8);
    let expired = MachineEvent::TimerExpired(MachineTimer::Group { group: GROUP });
    assert_eq!(
        root.event(expired.clone()),
        [
            "no timer",
            "failed to 1: 2 NotReady",
            "failed to 2: 2 NotReady",
            "5 lost with 2 NotReady",
            "6 lost with 2 NotReady"
        ]
    );
    assert_eq!(root.event(expired.clone()), [""; 0], "a late report");
    let mut leaf = Member::joined(1, Some(50));
    leaf.start(5, 8);
    assert_eq!(
        leaf.event(expired.clone())[1..],
        ["failed to 0: 0 NotReady", "free 0", "5 lost with 0 NotReady"]
    );
    let mut root = Member::joined(0, Some(50));
    root.begin(5, Operation::Barrier);
    root.hear_joined(1, true);
    assert_eq!(root.event(expired)[3], "5 lost with 2 NotReady", "it has not joined");
    let mut quick = Member::ready(0, Some(50));
    quick.start(5, 8);
    quick.contribution(2, 0, 8);
    assert_eq!(quick.contribution(1, 0, 8)[4..], ["taken 0 to 2", "5 Done", "no timer"]);
}

#[test]
fn pending_operations_depend_on_the_neighbours_and_on_those_that_they_wait_for() {
    let watched = |member: &Member| {
        let mut peers = Vec::new();
        member.machine.depends_on(|peer| peers.push(peer));
        peers
    };
    let mut inner = Member::of_four(2);
    assert_eq!(watched(&inner), []);
    inner.start(5, 8);
    assert_eq!(watched(&inner), [Peer(0), Peer(3)]);
    let mut member = Member::of_four(1);
    member.begin(5, Operation::Barrier);
    assert_eq!(watched(&member), [Peer(0), Peer(3)], "member 3 is a partner");
}
