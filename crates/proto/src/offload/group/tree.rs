//! Trees of the ranks of a group: who is below whom.
//!
//! - *Binomial*: the parent of a rank is the rank without its lowest bit. So each subtree is an interval of ranks, and the
//!   children of a rank, in order, cover the ranks behind it.
//! - *Of a degree*: the children of rank `r` are `r * degree + 1` to `r * degree + degree`.
//! - *Of intervals*: each rank leads an interval of ranks. It has at most [`MAX_CHILDREN`] children, which lead intervals of
//!   equal lengths, or lengths that differ by one.
//! - *Postal*: the fastest tree for a message that keeps its sender busy for one unit of time, and that its receiver can
//!   forward `lambda` units after the sender has begun. Source: Bar-Noy and Kipnis, "Designing broadcasting algorithms in
//!   the postal model for message-passing systems", 1992; the greedy construction is that of Buntinas, 2003.
//! ```text
//! 8 members, binomial        0: 1, 2, 4    2: 3    4: 5, 6    6: 7
//! 8 members, degree 3        0: 1, 2, 3    1: 4, 5, 6    2: 7
//! 8 members, lambda 2.5      0: 1, 2, 3, 5    1: 4, 6    2: 7
//! 193 members, intervals     0: 1, 4, 7, ...    1: 2, 3    4: 5, 6
//! ```

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The parent of `rank` in the binomial tree. `None`: it is the root.
pub(super) fn parent(rank: u32) -> Option<u32> {
    (rank != 0).then(|| rank & (rank - 1))
}

/// The children of `rank` among `members` ranks in the binomial tree, in ascending order.
pub(super) fn children(rank: u32, members: u32) -> impl Iterator<Item = u32> {
    let most = if rank == 0 { u32::BITS } else { rank.trailing_zeros() };
    (0..most).map_while(move |bit| rank.checked_add(1 << bit)).take_while(move |child| *child < members)
}

/// The parent of `rank` in the tree of this degree. `None`: it is the root.
pub(super) fn parent_of_degree(rank: u32, degree: u32) -> Option<u32> {
    rank.checked_sub(1).map(|before| before / degree.max(1))
}

/// The children of `rank` among `members` ranks in the tree of this degree.
pub(super) fn children_of_degree(rank: u32, degree: u32, members: u32) -> impl Iterator<Item = u32> {
    let degree = u64::from(degree.max(1));
    let first = u64::from(rank) * degree + 1;
    (first..first + degree).take_while(move |child| *child < u64::from(members)).map(|child| child as u32)
}

/// Bound: children of a rank in the tree of intervals. It bounds the peers of a member.
const MAX_CHILDREN: u32 = 64;

/// A rank in the tree of intervals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interval {
    /// `None`: it is the root.
    pub parent: Option<u32>,
    /// In ascending order.
    pub children: Vec<u32>,
    /// Number of ranks of the interval that it leads, itself included.
    pub ranks: u32,
}

/// `rank` among `members` ranks in the tree of intervals.
pub(super) fn interval(rank: u32, members: u32) -> Interval {
    // Where the interval of child number `child` begins, behind a leader with `below` ranks in `shares` intervals.
    let begin = |child: u64, below: u64, shares: u64| child * below / shares;
    let shares_of = |below: u64| below.min(MAX_CHILDREN.into());
    let (rank, mut leader, mut ranks, mut parent) = (u64::from(rank), 0, u64::from(members), None);
    while rank > leader {
        let below = ranks - 1;
        let shares = shares_of(below);
        let place = rank - leader - 1;
        let child = ((place + 1) * shares - 1) / below;
        let first = begin(child, below, shares);
        parent = Some(leader as u32);
        leader += 1 + first;
        ranks = begin(child + 1, below, shares) - first;
    }
    let below = ranks - 1;
    let shares = shares_of(below);
    let children = (0..shares).map(|child| (leader + 1 + begin(child, below, shares)) as u32).collect();
    Interval { parent, children, ranks: ranks as u32 }
}

/// The parent and the children of `rank` among `members` ranks in the postal tree, in the order of sending.
///
/// - `lambda_thousandths`: see above, at least 1000. Unit: thousandths of the time that a message occupies its sender.
/// - Cost: linear in `members`.
pub fn postal(rank: u32, members: u32, lambda_thousandths: u32) -> (Option<u32>, Vec<u32>) {
    const UNIT: u64 = 1000;
    let lambda = u64::from(lambda_thousandths).max(UNIT);
    // Ranks by the time when they can send next: those that have not sent yet, and the others. Each is in order.
    let mut new = VecDeque::from([(0, 0)]);
    let mut old: VecDeque<(u64, u32)> = VecDeque::new();
    let (mut parent, mut children) = (None, Vec::new());
    for child in 1..members {
        let is_old = match (old.front(), new.front()) {
            (Some((old, _)), Some((new, _))) => old <= new,
            (old, _) => old.is_some(),
        };
        let next = if is_old { old.pop_front() } else { new.pop_front() };
        let (time, sender) = next.expect("the root sends again and again");
        if child == rank {
            parent = Some(sender);
        }
        if sender == rank {
            children.push(child);
        }
        new.push_back((time + lambda, child));
        old.push_back((time + UNIT, sender));
    }
    (parent, children)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_children_of_each_rank_cover_the_ranks_behind_it_in_order() {
        for members in 1..70 {
            fn visit(rank: u32, members: u32, order: &mut Vec<u32>) {
                order.push(rank);
                for child in children(rank, members) {
                    assert_eq!(parent(child), Some(rank));
                    visit(child, members, order);
                }
            }
            let mut order = Vec::new();
            visit(0, members, &mut order);
            assert_eq!(order, (0..members).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_rank_has_few_children_and_the_largest_number_of_members_works() {
        assert_eq!(children(0, 8).collect::<Vec<_>>(), [1, 2, 4]);
        assert_eq!(children(6, 8).collect::<Vec<_>>(), [7]);
        assert_eq!(children(0, u32::MAX).count(), 32);
        assert_eq!(children(1 << 31, u32::MAX).count(), 31);
        assert_eq!(children_of_degree(u32::MAX / 2, u32::MAX, u32::MAX).count(), 0);
    }

    #[test]
    fn a_tree_of_a_degree_has_each_rank_once_below_its_parent() {
        for (degree, members) in (1..9).flat_map(|degree| (1..40).map(move |members| (degree, members))) {
            let below = |rank| children_of_degree(rank, degree, members);
            let all: Vec<u32> = (0..members).flat_map(below).collect();
            assert_eq!(all, (1..members).collect::<Vec<_>>());
            let parents = |rank| below(rank).all(|child| parent_of_degree(child, degree) == Some(rank));
            assert!((0..members).all(parents), "{degree}, {members}");
        }
        assert_eq!(children_of_degree(1, 3, 8).collect::<Vec<_>>(), [4, 5, 6]);
    }

    #[test]
    fn the_tree_of_intervals_is_flat_for_few_members_and_has_few_levels_for_many() {
        for members in (1..140).chain([193, 4096, 4161, 4162]) {
            let of = |rank| interval(rank, members);
            assert_eq!((of(0).parent, of(0).ranks), (None, members));
            let mut depths = alloc::vec![0; members as usize];
            for rank in 0..members {
                let Interval { children, ranks, .. } = of(rank);
                assert!(children.len() <= 64);
                // Own rank, then the intervals of the children without gaps.
                let mut next = rank + 1;
                for &child in &children {
                    assert_eq!((child, of(child).parent), (next, Some(rank)), "{members} members");
                    next += of(child).ranks;
                    depths[child as usize] = depths[rank as usize] + 1;
                }
                assert_eq!(next, rank + ranks, "{rank} of {members}");
                let lengths = children.iter().map(|child| of(*child).ranks);
                let (least, most) = (lengths.clone().min(), lengths.max());
                assert!(most.unwrap_or(0) - least.unwrap_or(0) <= 1, "{rank} of {members}");
            }
            let deepest = depths.into_iter().max().expect("a member");
            let expected = [1, 65, 4161].iter().filter(|most| members > **most).count();
            assert_eq!(deepest, expected, "{members}");
        }
        let of_193 =
            [0, 1, 4, 2].map(|rank| interval(rank, 193).children.into_iter().take(3).collect::<Vec<_>>());
        assert_eq!(of_193, [alloc::vec![1, 4, 7], alloc::vec![2, 3], alloc::vec![5, 6], alloc::vec![]]);
        assert_eq!(interval(u32::MAX - 1, u32::MAX).ranks, 1);
    }

    /// The times at which the first `members` ranks can know a message at best, in order. Whoever knows it at time t sends it
    /// at t, t + 1, ... So the earliest next time is the least of those that a known time gives, each once.
    fn best_times(members: usize, lambda: u64) -> Vec<u64> {
        let mut known = alloc::vec![0];
        let mut given = alloc::vec![0];
        while known.len() < members {
            let next = |sender: usize| known[sender] + given[sender] * 1000 + lambda;
            let sender = (0..known.len()).min_by_key(|sender| next(*sender)).expect("the root");
            let time = next(sender);
            given[sender] += 1;
            known.push(time);
            given.push(0);
        }
        known
    }

    /// The number of ranks that know a message at each whole time, from the recurrence of the postal model.
    fn reached(times: usize, lambda: usize) -> Vec<u64> {
        let mut reached = Vec::new();
        for time in 0..times {
            reached.push(if time < lambda { 1 } else { reached[time - 1] + reached[time - lambda] });
        }
        reached
    }

    /// When the last rank knows the message: its place among the children of its parent counts.
    fn last_time(members: u32, lambda: u32) -> u64 {
        let mut known = alloc::vec![0];
        for rank in 1..members {
            let parent = postal(rank, members, lambda).0.expect("only rank 0 has none");
            let siblings = postal(parent, members, lambda).1;
            let place = siblings.iter().position(|child| *child == rank).expect("a child") as u64;
            known.push(known[parent as usize] + place * 1000 + u64::from(lambda));
        }
        known.into_iter().max().expect("a member")
    }

    #[test]
    fn the_postal_tree_needs_the_least_time() {
        for lambda in [1, 2, 3, 10] {
            let reached = reached(60, lambda);
            for members in 1..34 {
                let best = reached.iter().position(|reached| *reached >= members).expect("in time");
                assert_eq!(last_time(members as u32, lambda as u32 * 1000), best as u64 * 1000);
            }
        }
        for (lambda, members) in
            [1500, 2500, 3700].into_iter().flat_map(|lambda| (1..34).map(move |n| (lambda, n)))
        {
            let best = best_times(members as usize, lambda.into()).into_iter().max();
            assert_eq!(Some(last_time(members, lambda)), best, "{members} members, lambda {lambda}");
        }
    }

    #[test]
    fn lambda_decides_between_the_binomial_tree_and_a_flat_one() {
        let flat = postal(0, 9, 20_000).1;
        assert_eq!(flat, (1..9).collect::<Vec<_>>());
        let depth = |rank| core::iter::successors(Some(rank), |rank| postal(*rank, 16, 1000).0).count() - 1;
        assert_eq!((0..16).map(depth).max(), Some(4));
        assert_eq!(postal(0, 8, 2500), (None, alloc::vec![1, 2, 3, 5]));
        assert_eq!(postal(1, 8, 2500), (Some(0), alloc::vec![4, 6]));
        assert_eq!(postal(2, 8, 2500), (Some(0), alloc::vec![7]));
    }
}
