//! How one member joins and leaves.

use super::*;

#[test]
fn a_leaf_reports_when_its_parent_has_joined() {
    let mut leaf = Member::joined(3, None);
    assert_eq!(leaf.hear_joined(2, true), ["reject 2"], "it cannot know that yet");
    let mut leaf = Member::joined(3, None);
    assert_eq!(leaf.hear_joined(2, false), ["all joined to 2"]);
    assert_eq!(leaf.begin(5, Operation::Barrier), [""; 0], "others have not joined");
    assert_eq!(leaf.hear_joined(2, true), ["barrier 0 to 2"]);
}

#[test]
fn the_root_tells_all_when_all_have_joined() {
    let mut root = Member::joined(0, None);
    assert_eq!(root.begin(5, Operation::Barrier), [""; 0]);
    assert_eq!(root.hear_joined(2, false), ["joined to 2"], "our own packet may have come before it joined");
    assert_eq!(root.hear_joined(1, true), ["joined to 1"]);
    assert_eq!(root.hear_joined(2, true), ["all joined to 1", "all joined to 2", "barrier 0 to 1"]);
    assert_eq!(root.hear_joined(3, true), ["reject 3"], "no neighbour");
}

#[test]
fn an_inner_member_reports_once_all_below_have_joined() {
    let mut inner = Member::joined(2, None);
    assert_eq!(inner.hear_joined(0, false), ["joined to 0"]);
    assert_eq!(inner.hear_joined(3, true), ["all joined to 0", "joined to 3"]);
    assert_eq!(inner.hear_joined(3, true), [""; 0]);
    assert_eq!(inner.hear_joined(0, true), ["all joined to 3"]);
}

#[test]
fn a_member_that_joins_late_hears_that_the_group_has_failed() {
    let mut root = Member::joined(0, None);
    assert_eq!(root.lose(2), ["failed to 1: 2 Died"]);
    assert_eq!(root.hear_joined(1, false), ["failed to 1: 2 Died"]);
    assert_eq!(root.hear_joined(1, true), [""; 0]);
}

#[test]
fn a_member_that_leaves_ends_the_group_for_the_others() {
    let mut inner = Member::of_four(2);
    inner.start(5, 8);
    inner.contribution(3, 0, 8);
    let calls = inner.post(GroupCommand::Leave { group: GROUP });
    assert_eq!(calls, ["failed to 0: 2 Closed", "failed to 3: 2 Closed", "5 lost with 2 Closed"]);
    assert_eq!(inner.start(6, 8), ["6 Refused"], "it has left");
    assert_eq!(inner.taken(0, 0, true), ["free 0"]);
    assert_eq!(inner.contribution(3, 1, 8), ["refused 1 to 3"], "it had not heard");
    assert_eq!(inner.of(Operation::Barrier, 3, 1, (0, 0)), [""; 0], "nothing to answer");
    assert_eq!(inner.failed(3, 2), [""; 0]);
    let members = (0..4).map(Peer).collect();
    let membership =
        Membership { group: GROUP, members, rank: 2, patience_ns: None, shape: Shape::default() };
    assert_eq!(inner.post(GroupCommand::Join(membership)).len(), 2, "nothing is left of it");
}

/// Without the answer the late member waits for ever.
#[test]
fn a_member_that_joins_after_a_neighbour_has_left_hears_that_the_group_has_failed() {
    let leave = || GroupCommand::Leave { group: GROUP };
    let mut root = Member::joined(0, None);
    assert_eq!(root.lose(2), ["failed to 1: 2 Died"]);
    assert_eq!(root.post(leave()), [""; 0]);
    assert_eq!(root.hear_joined(1, false), ["failed to 1: 2 Died"]);
    assert_eq!(root.hear_joined(1, false), [""; 0], "nothing is left of it");

    let mut inner = Member::joined(2, None);
    assert_eq!(inner.post(leave()), ["failed to 0: 2 Closed", "failed to 3: 2 Closed"]);
    assert_eq!(inner.failed(0, 1), [""; 0], "it has left too, and will not join");
    assert_eq!(inner.hear_joined(3, true), ["failed to 3: 2 Closed"]);
    assert_eq!(inner.hear_joined(3, true), [""; 0]);
}

#[test]
fn a_full_table_forgets_the_group_that_was_left_first() {
    let mut root = Member::joined(0, None);
    root.post(GroupCommand::Leave { group: GROUP });
    let mut post = |group| {
        let shape = Shape::default();
        let membership = Membership { group, members: vec![Peer(0)], rank: 0, patience_ns: None, shape };
        let join = OffloadCommand::Group(GroupCommand::Join(membership));
        root.machine.handle(MachineEvent::Posted(join), &mut root.driver)
    };
    for group in 100..100 + MAX_GROUPS as u32 - 1 {
        assert_eq!(post(group), Ok(()));
    }
    assert_eq!(post(1000), Ok(()), "in the place of the first");
    assert_eq!(post(1001), Err(Refusal::Groups), "none of the others is left");
    assert_eq!(root.hear_joined(1, false), [""; 0], "it is forgotten");
}

#[test]
fn groups_have_a_bound_and_different_numbers() {
    let mut member = Member::of_four(1);
    let join = |group| {
        let members = vec![Peer(0)];
        let membership = Membership { group, members, rank: 0, patience_ns: None, shape: Shape::default() };
        MachineEvent::Posted(OffloadCommand::Group(GroupCommand::Join(membership)))
    };
    let mut post = |group| member.machine.handle(join(group), &mut member.driver);
    assert_eq!(post(GROUP), Err(Refusal::Groups));
    for group in 1..MAX_GROUPS as u32 {
        assert_eq!(post(100 + group), Ok(()));
    }
    assert_eq!(post(1000), Err(Refusal::Groups));
    let start = GroupCommand::Start { request: Request(1), group: 1000, operation: reduce(8) };
    assert_eq!(member.post(start), ["1 Refused"]);
    assert_eq!(member.start(2, 12), ["2 Refused"], "half an element");
}
