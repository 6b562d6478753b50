//! Schedules: whom a member sends to after whom it has heard, for each operation of a group.
//!
//! A schedule is a list of steps. A step is over when the member has heard all its ranks, and then it sends to others. So
//! a schedule knows no packets, no memory and no peers, and two members need to agree on nothing but its arguments.
//! ```text
//! barrier of 4, pairwise exchange, rank 1    -> 0;   hear 0 -> 3;   hear 3
//! barrier of 4, degree 3, rank 0             hear 1, 2, 3 -> 1, 2, 3
//! all-reduce of 4, rank 2                    hear 3 -> 0;   hear 0 -> 3
//! ```
//! Pairwise exchange takes log2 of the largest power of two that is not above the number of members. Each rank beyond it
//! pairs with one below: it sends before the exchange, and hears after it.

use alloc::vec;
use alloc::vec::Vec;

use super::{Operation, tree};

/// How the operations of a group travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Of barriers.
    pub barrier: BarrierSchedule,
    /// Of broadcasts.
    pub broadcast: BroadcastTree,
    /// Of reductions and all-reduces.
    pub reduction: ReductionTree,
}

/// The schedule of barriers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BarrierSchedule {
    /// Pairwise exchange.
    #[default]
    PairwiseExchange,
    /// Up a tree to member 0, and down again.
    GatherBroadcast {
        /// Children of a member, at least 1.
        degree: u32,
    },
}

/// The tree of broadcasts, for ranks counted from the root on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BroadcastTree {
    /// Binomial.
    #[default]
    Binomial,
    /// The fastest in the postal model.
    Postal {
        /// Time from the begin of sending until the receiver can forward, divided by the time that sending takes, at least
        /// 1000. Unit: thousandths.
        lambda_thousandths: u32,
    },
}

/// The tree of reductions. In each of them the ranks below a child are an interval, so members combine in the order of
/// ranks: all trees give the same bits, if the operation is associative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReductionTree {
    /// Binomial.
    #[default]
    Binomial,
    /// Each rank has one child, the next rank.
    Chain,
    /// All other ranks are children of rank 0.
    Flat,
}

/// What a member does with the payload of those that it hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// There is none.
    Nothing,
    /// Combines it with its own, in the order of the list.
    Combine,
    /// Its own is the same. It forwards each packet as it comes.
    Place,
}

/// A step of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// The ranks to hear.
    pub hear: Vec<u32>,
    pub usage: Use,
    /// The ranks to send to then.
    pub tell: Vec<u32>,
}

impl Step {
    fn new(hear: Vec<u32>, usage: Use, tell: Vec<u32>) -> Step {
        Step { hear, usage, tell }
    }
}

/// The steps of `rank` among `members` ranks. Those of a group of one do nothing.
pub(super) fn steps(shape: Shape, operation: &Operation, rank: u32, members: u32) -> Vec<Step> {
    match *operation {
        Operation::Barrier => match shape.barrier {
            BarrierSchedule::PairwiseExchange => exchange(rank, members),
            BarrierSchedule::GatherBroadcast { degree } => {
                let up = tree::parent_of_degree(rank, degree).into_iter().collect();
                let below = tree::children_of_degree(rank, degree, members).collect();
                up_and_down(below, up, Use::Nothing, Use::Nothing)
            }
        },
        Operation::Reduce(_) => {
            let (up, below) = reduction(shape.reduction, rank, members);
            vec![Step::new(below, Use::Combine, up)]
        }
        Operation::AllReduce(_) => {
            let (up, below) = reduction(shape.reduction, rank, members);
            up_and_down(below, up, Use::Combine, Use::Place)
        }
        Operation::Broadcast { root, .. } => {
            let (up, below) = from_root(shape.broadcast, rank, members, root);
            let usage = if up.is_empty() { Use::Nothing } else { Use::Place };
            vec![Step::new(up, usage, below)]
        }
    }
}

fn up_and_down(below: Vec<u32>, up: Vec<u32>, upwards: Use, downwards: Use) -> Vec<Step> {
    match up.is_empty() {
        true => vec![Step::new(below.clone(), upwards, below)],
        false => vec![Step::new(below.clone(), upwards, up.clone()), Step::new(up, downwards, below)],
    }
}

/// The parent and the children of `rank` in the tree of reductions.
fn reduction(tree: ReductionTree, rank: u32, members: u32) -> (Vec<u32>, Vec<u32>) {
    let of_degree = |degree| {
        let up = tree::parent_of_degree(rank, degree).into_iter().collect();
        (up, tree::children_of_degree(rank, degree, members).collect())
    };
    match tree {
        ReductionTree::Binomial => {
            (tree::parent(rank).into_iter().collect(), tree::children(rank, members).collect())
        }
        ReductionTree::Chain => of_degree(1),
        ReductionTree::Flat => of_degree(members),
    }
}

/// The parent and the children of `rank` in the tree whose root is `root`.
fn from_root(tree: BroadcastTree, rank: u32, members: u32, root: u32) -> (Vec<u32>, Vec<u32>) {
    let modulo = |rank: u64| (rank % u64::from(members)) as u32;
    let relative = modulo(u64::from(rank) + u64::from(members) - u64::from(root));
    let (up, below) = match tree {
        BroadcastTree::Binomial => {
            // The largest subtree first: it takes longest.
            let mut below: Vec<u32> = tree::children(relative, members).collect();
            below.reverse();
            (tree::parent(relative), below)
        }
        BroadcastTree::Postal { lambda_thousandths } => tree::postal(relative, members, lambda_thousandths),
    };
    let absolute = |relative: u32| modulo(u64::from(relative) + u64::from(root));
    (up.map(absolute).into_iter().collect(), below.into_iter().map(absolute).collect())
}

fn exchange(rank: u32, members: u32) -> Vec<Step> {
    let paired = 1 << members.ilog2();
    if rank >= paired {
        let partner = vec![rank - paired];
        return vec![
            Step::new(Vec::new(), Use::Nothing, partner.clone()),
            Step::new(partner, Use::Nothing, Vec::new()),
        ];
    }
    let beyond: Vec<u32> = rank.checked_add(paired).filter(|beyond| *beyond < members).into_iter().collect();
    let mut hear = beyond.clone();
    let mut steps = Vec::new();
    for bit in 0..paired.ilog2() {
        let partner = vec![rank ^ 1 << bit];
        steps.push(Step::new(core::mem::replace(&mut hear, partner.clone()), Use::Nothing, partner));
    }
    steps.push(Step::new(hear, Use::Nothing, beyond));
    steps
}

#[cfg(test)]
mod tests;
