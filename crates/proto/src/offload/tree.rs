//! The tree of a group: which members a member hears from, and which one it reports to.
//!
//! The tree is binomial, with member 0 as root: the parent of a rank is the rank without its lowest bit. So each
//! subtree is an interval of ranks, and the children of a rank, in order, cover the ranks behind it.
//! ```text
//! 8 members    0: 1, 2, 4    2: 3    4: 5, 6    6: 7
//! ```

/// The parent of `rank`. `None`: it is the root.
pub(super) fn parent(rank: u32) -> Option<u32> {
    (rank != 0).then(|| rank & (rank - 1))
}

/// The children of `rank` among `members` ranks, in ascending order.
pub(super) fn children(rank: u32, members: u32) -> impl Iterator<Item = u32> {
    let most = if rank == 0 { u32::BITS } else { rank.trailing_zeros() };
    (0..most).map_while(move |bit| rank.checked_add(1 << bit)).take_while(move |child| *child < members)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

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
    }
}
