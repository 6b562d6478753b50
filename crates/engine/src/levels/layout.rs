//! Where the members of a group are: which share a node, and who is the participant of each node. And what they do for an
//! operation on each level. All of it follows from a table that all members have, so they compute the same.
//! ```text
//! ranks 0 1 2 3 4 on nodes a b a a b      node 0 is a: ranks 0 2 3, participant 0; node 1 is b: ranks 1 4, participant 1
//!
//! level       all-reduce of floats                         barrier          broadcast, root 3
//! up          a, b: gather to the participant               as before, 0 B   a: broadcast of rank 3
//! network     0, 1: all-gather of the nodes' vectors        barrier          broadcast of participant 0
//! down        a, b: broadcast of the participant            as before, 0 B   b: broadcast of the participant
//!
//! level       gather, root 3                   scatter, root 3                         all-to-all
//! up          as for the all-reduce            a: broadcast of rank 3, all blocks      a, b: gather of all blocks
//! network     gather to participant 0          scatter of participant 0: a node's own  all-to-all: blocks of two nodes
//! down        a: broadcast of the participant  b: scatter of the participant           a, b: scatter of the participant
//! ```
//! **Order.** MPI advises that a result should not depend on where ranks are. Sums and products of floats depend on the
//! order and on the brackets. So vectors of floats travel as they are, and each participant combines them rank by rank, as a
//! group of one node does. The bits are those of one node, for any number of nodes. Of integers any order gives the same
//! bits, so a node sends one combined vector.

use weir_link::shm::node_group::{MAX_MEMBERS, Operation};
use weir_proto::offload::reduce::Vector;

use crate::collectives::MAX_GATHERED_VECTORS_BYTES;
use crate::{CollectiveOperation, MAX_COLLECTIVE_MEMBERS};

/// Most bytes that a participant gets from all others for one operation. It carries the data of all ranks of its node
/// alone, so beyond this the MPI is faster, whose ranks send their own.
pub const MOST_GATHERED_BYTES: usize = 16 << 10;
/// Among more nodes, combined vectors that are long together go up and down a tree. Otherwise each participant gets those of all
/// others, which takes half as many steps.
const FEW_NODES: usize = 4;
/// Vectors of all nodes that are not long. Unit: bytes.
const SHORT_BYTES: usize = MAX_GATHERED_VECTORS_BYTES as usize;

/// The places of the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    rank: u32,
    /// The node of each rank, and its place there.
    places: Vec<(u32, u32)>,
    /// The ranks of each node, in their order. The first is the participant.
    nodes: Vec<Vec<u32>>,
}

/// What a participant does on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkStep {
    /// The operation, whose root is a node.
    pub operation: CollectiveOperation,
    /// Length of a block. Unit: bytes.
    pub block_bytes: usize,
}

impl Layout {
    /// - `segments`: the number of the node segment of each member, by rank.
    /// - `rank`: ours.
    ///
    /// `None`: too many members.
    pub fn new(segments: &[u64], rank: u32) -> Option<Layout> {
        let mut found: Vec<u64> = Vec::new();
        let (mut places, mut nodes) = (Vec::new(), Vec::<Vec<u32>>::new());
        for (member, segment) in (0..).zip(segments) {
            let node = found.iter().position(|other| other == segment).unwrap_or_else(|| {
                found.push(*segment);
                nodes.push(Vec::new());
                nodes.len() - 1
            });
            places.push((node as u32, nodes[node].len() as u32));
            nodes[node].push(member);
        }
        let fits = nodes.len() <= MAX_COLLECTIVE_MEMBERS
            && nodes.iter().all(|ranks| ranks.len() <= MAX_MEMBERS as usize)
            && (rank as usize) < segments.len();
        fits.then_some(Layout { rank, places, nodes })
    }

    /// Members.
    pub fn members(&self) -> u32 {
        self.places.len() as u32
    }

    /// Our rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Nodes, in the order of their participants.
    pub fn nodes(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// Our node.
    pub fn node(&self) -> u32 {
        self.places[self.rank as usize].0
    }

    /// Our place in our node. That of the participant is 0.
    pub fn place(&self) -> u32 {
        self.places[self.rank as usize].1
    }

    /// Whether we are the participant of our node.
    pub fn is_participant(&self) -> bool {
        self.place() == 0
    }

    /// The ranks of our node, in their order.
    pub fn neighbours(&self) -> &[u32] {
        &self.nodes[self.node() as usize]
    }

    /// The rank of the participant of each node.
    pub fn participants(&self) -> impl Iterator<Item = u32> {
        self.nodes.iter().map(|ranks| ranks[0])
    }

    /// Whether a member of another node is the participant for several.
    pub fn speaks_for_others(&self, rank: u32) -> bool {
        let Some(&(node, place)) = self.places.get(rank as usize) else { return false };
        node != self.node() && place == 0 && self.nodes[node as usize].len() > 1
    }

    /// Members of the node with most of them.
    fn largest_node(&self) -> usize {
        self.nodes.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Blocks that a participant gives for an operation that gathers.
    fn blocks_of_node(&self, operation: Operation) -> usize {
        if is_combined_early(operation) { 1 } else { self.largest_node() }
    }

    /// Length of what each participant gives for an operation that gathers. Unit: bytes.
    fn piece_bytes(&self, operation: Operation) -> usize {
        self.blocks_of_node(operation) * block_bytes(operation)
    }

    /// Whether the members do this operation themselves. All of them find the same.
    pub fn takes(&self, operation: Operation) -> bool {
        let is_short = self.piece_bytes(operation) * self.nodes.len() <= MOST_GATHERED_BYTES;
        operation.is_valid(self.members())
            && match operation {
                Operation::Barrier => true,
                Operation::Broadcast { bytes, .. } => bytes as usize <= MOST_GATHERED_BYTES,
                Operation::Reduce { .. } | Operation::AllReduce(_) => is_short || self.uses_tree(operation),
                Operation::AllGather { .. } | Operation::Gather { .. } | Operation::Scatter { .. } => {
                    is_short
                }
                Operation::AllToAll { bytes } => {
                    self.exchanged_bytes(bytes) * self.nodes.len() <= MOST_GATHERED_BYTES
                }
            }
    }

    /// Length of a block for each member. Unit: bytes.
    fn all_blocks(&self, bytes: u32) -> usize {
        bytes as usize * self.places.len()
    }

    /// Length of what a node gives another one in an all-to-all: a block from each member for each member. Unit: bytes.
    fn exchanged_bytes(&self, bytes: u32) -> usize {
        bytes as usize * self.largest_node() * self.largest_node()
    }

    /// Where the block from the member at `from` of a node for that at `to` of another begins in what the one gives the
    /// other. Unit: bytes.
    fn exchanged_at(&self, bytes: u32, from: u32, to: u32) -> usize {
        (from as usize * self.largest_node() + to as usize) * bytes as usize
    }

    /// Whether combined vectors go up and down a tree.
    fn uses_tree(&self, operation: Operation) -> bool {
        let is_long = self.piece_bytes(operation) * self.nodes.len() > SHORT_BYTES;
        is_combined_early(operation) && self.nodes.len() > FEW_NODES && is_long
    }

    /// The root's node, and its place there.
    fn place_of_root(&self, root: u32) -> (u32, u32) {
        self.places[root as usize]
    }

    /// Whether the root is in our node and is not its participant.
    fn has_root_beside_participant(&self, root: u32) -> bool {
        let (node, place) = self.place_of_root(root);
        node == self.node() && place != 0
    }

    /// What the members of our node do first, if it has several.
    pub fn up(&self, operation: Operation) -> Option<Operation> {
        let of_root = |root, bytes| {
            let is_needed = self.has_root_beside_participant(root);
            is_needed.then_some(Operation::Broadcast { root: self.place_of_root(root).1, bytes })
        };
        let first = match operation {
            Operation::Broadcast { root, bytes } => return of_root(root, bytes),
            Operation::Scatter { root, bytes } => return of_root(root, self.all_blocks(bytes) as u32),
            Operation::AllToAll { bytes } => {
                Operation::Gather { root: 0, bytes: self.all_blocks(bytes) as u32 }
            }
            Operation::Reduce { vector, .. } | Operation::AllReduce(vector)
                if is_combined_early(operation) =>
            {
                Operation::Reduce { root: 0, vector }
            }
            other => Operation::Gather { root: 0, bytes: block_bytes(other) as u32 },
        };
        (self.neighbours().len() > 1).then_some(first)
    }

    /// What participants do then.
    pub fn network(&self, operation: Operation) -> NetworkStep {
        let gathered = self.piece_bytes(operation);
        let uses_tree = self.uses_tree(operation);
        let (operation, block_bytes) = match operation {
            Operation::Barrier => (CollectiveOperation::Barrier, 0),
            Operation::Broadcast { root, bytes } => {
                (CollectiveOperation::Broadcast { root: self.place_of_root(root).0 }, bytes as usize)
            }
            Operation::Scatter { root, .. } => {
                (CollectiveOperation::Scatter { root: self.place_of_root(root).0 }, gathered)
            }
            Operation::Gather { root, .. } => {
                (CollectiveOperation::Gather { root: self.place_of_root(root).0 }, gathered)
            }
            Operation::AllToAll { bytes } => (CollectiveOperation::AllToAll, self.exchanged_bytes(bytes)),
            Operation::Reduce { root, vector } => {
                let (root, combination) = (self.place_of_root(root).0, vector.combination);
                match uses_tree {
                    true => (CollectiveOperation::Reduce { root, combination }, gathered),
                    false => (CollectiveOperation::Gather { root }, gathered),
                }
            }
            Operation::AllReduce(vector) if uses_tree => {
                (CollectiveOperation::AllReduce { combination: vector.combination }, gathered)
            }
            _ => (CollectiveOperation::AllGather, gathered),
        };
        NetworkStep { operation, block_bytes }
    }

    /// What the members of our node do at last, if it has several.
    pub fn down(&self, operation: Operation) -> Option<Operation> {
        let is_needed = match operation {
            Operation::Broadcast { root, .. } | Operation::Scatter { root, .. } => {
                !self.has_root_beside_participant(root)
            }
            Operation::Reduce { root, .. } | Operation::Gather { root, .. } => {
                self.has_root_beside_participant(root)
            }
            _ => true,
        };
        let last = match operation {
            Operation::Scatter { bytes, .. } => Operation::Scatter { root: 0, bytes },
            Operation::AllToAll { bytes } => {
                Operation::Scatter { root: 0, bytes: self.all_blocks(bytes) as u32 }
            }
            _ => Operation::Broadcast { root: 0, bytes: self.outcome_bytes(operation) as u32 },
        };
        (is_needed && self.neighbours().len() > 1).then_some(last)
    }

    /// Length of what the participant has after the network's step. Unit: bytes.
    pub fn outcome_bytes(&self, operation: Operation) -> usize {
        match operation {
            Operation::AllGather { bytes } | Operation::Gather { bytes, .. } => self.all_blocks(bytes),
            Operation::Scatter { bytes, .. } => bytes as usize * self.neighbours().len(),
            Operation::AllToAll { bytes } => self.all_blocks(bytes) * self.neighbours().len(),
            other => block_bytes(other),
        }
    }

    /// What the participant of the root's node gives in a scatter, by node.
    ///
    /// - `blocks`: those of all members, by rank.
    pub fn scattered(&self, bytes: u32, blocks: &[u8]) -> Vec<u8> {
        let (block, piece) = (bytes as usize, bytes as usize * self.largest_node());
        let mut sent = vec![0; piece * self.nodes.len()];
        for (block, &(node, place)) in blocks.chunks_exact(block.max(1)).zip(&self.places) {
            let at = node as usize * piece + place as usize * block.len();
            sent[at..at + block.len()].copy_from_slice(block);
        }
        sent
    }

    /// What the participant gives in an all-to-all, by node.
    ///
    /// - `given`: the blocks of each member of our node, by place.
    pub fn exchanged(&self, bytes: u32, given: &[u8]) -> Vec<u8> {
        let (block, for_node) = (bytes as usize, self.exchanged_bytes(bytes));
        let mut sent = vec![0; for_node * self.nodes.len()];
        for (from, blocks) in (0..).zip(given.chunks_exact(self.all_blocks(bytes).max(1))) {
            for (block, &(node, to)) in blocks.chunks_exact(block.max(1)).zip(&self.places) {
                let at = node as usize * for_node + self.exchanged_at(bytes, from, to);
                sent[at..at + block.len()].copy_from_slice(block);
            }
        }
        sent
    }

    /// Makes the outcome from what all participants have given.
    ///
    /// - `gathered`: a piece of each node, in their order, as long as [`Layout::network`] says. Of a scatter: that of our node.
    /// - `outcome`: as long as [`Layout::outcome_bytes`] says. What is for single members of our node has the order of places.
    pub fn finish(&self, operation: Operation, gathered: &[u8], outcome: &mut [u8]) {
        let (block, piece) = (block_bytes(operation), self.piece_bytes(operation));
        let block_at = |node: u32, place: u32| {
            let at = node as usize * piece + place as usize * block;
            &gathered[at..at + block]
        };
        match operation {
            Operation::Scatter { .. } => {
                outcome.copy_from_slice(&gathered[..block * self.neighbours().len()])
            }
            Operation::AllToAll { bytes } => {
                let of_member = outcome.chunks_exact_mut(self.all_blocks(bytes).max(1));
                for (to, blocks) in (0..).zip(of_member) {
                    for (block, &(node, from)) in blocks.chunks_exact_mut(block.max(1)).zip(&self.places) {
                        let at =
                            node as usize * self.exchanged_bytes(bytes) + self.exchanged_at(bytes, from, to);
                        block.copy_from_slice(&gathered[at..][..block.len()]);
                    }
                }
            }
            Operation::AllGather { .. } | Operation::Gather { .. } => {
                let blocks = outcome.chunks_mut(block.max(1));
                blocks
                    .zip(&self.places)
                    .for_each(|(to, &(node, place))| to.copy_from_slice(block_at(node, place)));
            }
            Operation::Reduce { vector, .. } | Operation::AllReduce(vector) => {
                let is_early = is_combined_early(operation);
                let nodes = (0..self.nodes()).map(|node| (node, 0)).filter(|_| is_early);
                let ranks = self.places.iter().copied().filter(|_| !is_early);
                for (number, (node, place)) in nodes.chain(ranks).enumerate() {
                    match number {
                        0 => outcome.copy_from_slice(block_at(node, place)),
                        _ => vector.combination.combine(outcome, block_at(node, place)),
                    }
                }
            }
            _ => {}
        }
    }
}

/// Length of a vector or block. Unit: bytes.
fn block_bytes(operation: Operation) -> usize {
    match operation {
        Operation::Barrier => 0,
        Operation::Reduce { vector: Vector { bytes, .. }, .. }
        | Operation::AllReduce(Vector { bytes, .. }) => bytes as usize,
        Operation::Broadcast { bytes, .. }
        | Operation::AllGather { bytes }
        | Operation::AllToAll { bytes }
        | Operation::Gather { bytes, .. }
        | Operation::Scatter { bytes, .. } => bytes as usize,
    }
}

/// Whether each node may combine its vectors by itself, because any order gives the same bits.
fn is_combined_early(operation: Operation) -> bool {
    match operation {
        Operation::Reduce { vector, .. } | Operation::AllReduce(vector) => {
            vector.combination.word_type.is_integer()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
