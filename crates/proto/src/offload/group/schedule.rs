//! Schedules: whom a member sends to after whom it has heard, for each operation of a group.
//!
//! A schedule is a list of steps. A step is over when the member has heard all its ranks, and then it sends to others. So
//! a schedule knows no packets, no memory and no peers, and two members need to agree on nothing but its arguments.
//! ```text
//! barrier of 4, pairwise exchange, rank 1    -> 0;   hear 0 -> 3;   hear 3
//! barrier of 4, degree 3, rank 0             hear 1, 2, 3 -> 1, 2, 3
//! all-reduce of 4, rank 2                    hear 3 -> 0;   hear 0 -> 3
//! all-reduce of 4 in two blocks, rank 2      hear 0;   hear 3 -> 0, 3
//! exchange of 4, distance 3, rank 1          -> 0;   hear 2
//! gather of 4, root 2                        rank 2 hears 3, 0, 1;   rank 1 -> 2
//! all-gather of 8, rank 0                    -> 7;   hear 1 -> 6;   hear 2 -> 4;   hear 4
//! all-to-all of 4, rank 1                    -> 2, 3, 0;   hear 0, 3, 2
//! ```
//! Blocks of a gather and a scatter travel over the tree of intervals (`tree.rs`) from the root on. So they go directly to or
//! from the root of a group of at most 65 members. In larger ones a member passes on the blocks of all behind it, as one.
//!
//! All-gather is Bruck's: in step k a member gets what the one 2^k ranks behind it has, which begins where its own ends. So
//! it has twice as many blocks after each step, and all of them after log2 of the number of members, rounded up. Source: Bruck
//! and others, "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997, section 5.
//!
//! Pairwise exchange takes log2 of the largest power of two that is not above the number of members. Each rank beyond it
//! pairs with one below: it sends before the exchange, and hears after it.
//!
//! *Blocks* are for vectors whose result [depends on brackets](super::Combination::depends_on_brackets). They combine from
//! the left, rank by rank: ((0 + 1) + 2) + 3. A block is an interval of ranks, and its first rank leads it. The leader
//! gets what all ranks before it give, combined. It combines its own vector and those of its block, and sends the result to
//! the next leader. The last leader has the result of all. Long vectors have short blocks, so that a
//! leader never holds more than [`MAX_VECTOR_BYTES`] of a block. Short vectors of few members have one block, whose leader
//! is rank 0.

use alloc::vec;
use alloc::vec::Vec;

use super::super::reduce::{MAX_VECTOR_BYTES, Vector};
use super::tree::Interval;
use super::{Operation, tree};

/// Bound: ranks of a block. It bounds the peers of a leader.
const MAX_BLOCK_RANKS: u32 = 64;

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
/// ranks: all trees give the same bits, unless [`Combination::depends_on_brackets`].
///
/// [`Combination::depends_on_brackets`]: super::Combination::depends_on_brackets
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReductionTree {
    /// The bits of plain loops over the ranks, for all operations: blocks for those that depend on brackets, and a binomial
    /// tree for the others.
    #[default]
    FromTheLeft,
    /// Binomial.
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
    /// It is of the ranks before: combines its own with it, from the right.
    Continue,
    /// Its own is the same. It forwards each packet as it comes.
    Place,
    /// It is for this member alone, and takes the place of its own.
    Keep,
    /// Blocks of ranks behind it: they follow its own, in order.
    Collect,
    /// Its own block, and behind it those that it sends on.
    Split,
    /// Blocks, for their places in the buffer of the request, after its own have left.
    Fill,
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
        Operation::Reduce(vector) | Operation::AllReduce(vector)
            if shape.reduction == ReductionTree::FromTheLeft && vector.combination.depends_on_brackets() =>
        {
            let to_all = matches!(operation, Operation::AllReduce(_));
            Blocks::new(vector, members).steps(rank, to_all)
        }
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
        Operation::Exchange { distance, .. } => {
            let before = members - distance % members;
            vec![
                Step::new(Vec::new(), Use::Nothing, vec![behind(rank, distance, members)]),
                Step::new(vec![behind(rank, before, members)], Use::Keep, Vec::new()),
            ]
        }
        Operation::Gather { root, .. } => {
            let Interval { parent, children, .. } = interval(rank, root, members);
            let (up, below) = around(parent, &children, root, members);
            vec![Step::new(below, Use::Collect, up)]
        }
        Operation::Scatter { root, .. } => {
            let Interval { parent, children, .. } = interval(rank, root, members);
            let (up, below) = around(parent, &children, root, members);
            let usage = if below.is_empty() { Use::Keep } else { Use::Split };
            vec![Step::new(up, usage, below)]
        }
        Operation::AllGather { .. } => {
            let distances = doublings(members);
            let to = distances.clone().map(|distance| vec![behind(rank, members - distance, members)]);
            let from = distances.map(|distance| vec![behind(rank, distance, members)]);
            let hear = core::iter::once(Vec::new()).chain(from);
            let tell = to.chain(core::iter::once(Vec::new()));
            hear.zip(tell).map(|(hear, tell)| Step::new(hear, Use::Fill, tell)).collect()
        }
        Operation::AllToAll { .. } => {
            let to = (1..members).map(|distance| behind(rank, distance, members)).collect();
            let from = (1..members).map(|distance| behind(rank, members - distance, members)).collect();
            vec![Step::new(Vec::new(), Use::Nothing, to), Step::new(from, Use::Fill, Vec::new())]
        }
    }
}

/// The rank that is `distance` ranks behind, in a circle.
fn behind(rank: u32, distance: u32, members: u32) -> u32 {
    ((u64::from(rank) + u64::from(distance)) % u64::from(members)) as u32
}

/// 1, 2, 4 and so on, below `members`.
fn doublings(members: u32) -> impl Iterator<Item = u32> + Clone {
    (0..u32::BITS).map(|bit| 1 << bit).take_while(move |distance| *distance < members)
}

/// The interval that `rank` leads, counted from `root` on.
fn interval(rank: u32, root: u32, members: u32) -> Interval {
    tree::interval(from_root_on(rank, root, members), members)
}

fn from_root_on(rank: u32, root: u32, members: u32) -> u32 {
    behind(rank, members - root % members, members)
}

/// The parent and the children in a tree that counts from `root` on, by rank.
fn around(parent: Option<u32>, children: &[u32], root: u32, members: u32) -> (Vec<u32>, Vec<u32>) {
    let rank = |relative: u32| ((u64::from(relative) + u64::from(root)) % u64::from(members)) as u32;
    (parent.map(rank).into_iter().collect(), children.iter().copied().map(rank).collect())
}

/// How many vectors or blocks `from` sends to `to`, if it does.
pub(super) fn blocks_between(operation: &Operation, (from, to): (u32, u32), members: u32) -> u32 {
    match *operation {
        Operation::Gather { root, .. } => interval(from, root, members).ranks,
        Operation::Scatter { root, .. } => interval(to, root, members).ranks,
        // As many as it is away, or as are missing.
        Operation::AllGather { .. } => {
            let distance = from_root_on(from, to, members);
            distance.min(members - distance)
        }
        _ => 1,
    }
}

/// How many vectors or blocks `rank` has together, its own among them.
pub(super) fn blocks_at(operation: &Operation, rank: u32, members: u32) -> u32 {
    match *operation {
        Operation::Gather { root, .. } | Operation::Scatter { root, .. } => {
            interval(rank, root, members).ranks
        }
        Operation::AllGather { .. } | Operation::AllToAll { .. } => members,
        _ => 1,
    }
}

/// Where what `below` sends or gets begins in what `rank` has. Unit: blocks.
pub(super) fn first_block_of(operation: &Operation, rank: u32, below: u32, members: u32) -> u32 {
    match *operation {
        Operation::Gather { root, .. } | Operation::Scatter { root, .. } => {
            let [below, rank] = [below, rank].map(|rank| from_root_on(rank, root, members));
            below.saturating_sub(rank)
        }
        Operation::AllGather { .. } | Operation::AllToAll { .. } => from_root_on(below, rank, members),
        _ => 0,
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
        ReductionTree::FromTheLeft | ReductionTree::Binomial => {
            (tree::parent(rank).into_iter().collect(), tree::children(rank, members).collect())
        }
        ReductionTree::Chain => of_degree(1),
        ReductionTree::Flat => of_degree(members),
    }
}

/// The blocks of a reduction from the left.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    members: u32,
    block_ranks: u32,
}

impl Blocks {
    fn new(vector: Vector, members: u32) -> Blocks {
        let block_ranks = (MAX_VECTOR_BYTES / vector.bytes.max(1)).clamp(1, MAX_BLOCK_RANKS);
        Blocks { members, block_ranks }
    }

    /// - `to_all`: all members get the result. Otherwise rank 0.
    fn steps(self, rank: u32, to_all: bool) -> Vec<Step> {
        let Blocks { members, block_ranks } = self;
        let (place, last) = (rank / block_ranks, (members - 1) / block_ranks);
        let leader = |place: u32| place * block_ranks;
        if rank != leader(place) {
            let leader = vec![leader(place)];
            let mut steps = vec![Step::new(Vec::new(), Use::Combine, leader.clone())];
            if to_all {
                steps.push(Step::new(leader, Use::Place, Vec::new()));
            }
            return steps;
        }
        let block: Vec<u32> = (rank + 1..members.min(rank.saturating_add(block_ranks))).collect();
        let mut steps = Vec::new();
        if place > 0 {
            steps.push(Step::new(vec![leader(place - 1)], Use::Continue, Vec::new()));
        }
        // The result goes down a binomial tree of the leaders, whose root is the last one. So it comes from the right, and a
        // leader hears nobody twice.
        let from_last = |place: u32| leader(last - place);
        let (above, below) = match to_all {
            true => {
                let mut below: Vec<u32> = tree::children(last - place, last + 1).map(from_last).collect();
                below.reverse();
                below.extend(&block);
                (tree::parent(last - place).map(from_last), below)
            }
            false if rank == 0 => ((last > 0).then(|| leader(last)), Vec::new()),
            false if place == last => (None, vec![0]),
            false => (None, Vec::new()),
        };
        if place == last {
            steps.push(Step::new(block, Use::Combine, below));
        } else {
            steps.push(Step::new(block, Use::Combine, vec![leader(place + 1)]));
            steps.extend(above.map(|above| Step::new(vec![above], Use::Place, below)));
        }
        steps
    }
}

/// The parent and the children of `rank` in the tree whose root is `root`.
fn from_root(tree: BroadcastTree, rank: u32, members: u32, root: u32) -> (Vec<u32>, Vec<u32>) {
    let relative = from_root_on(rank, root, members);
    let (up, below) = match tree {
        BroadcastTree::Binomial => {
            // The largest subtree first: it takes longest.
            let mut below: Vec<u32> = tree::children(relative, members).collect();
            below.reverse();
            (tree::parent(relative), below)
        }
        BroadcastTree::Postal { lambda_thousandths } => tree::postal(relative, members, lambda_thousandths),
    };
    around(up, &below, root, members)
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
