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
//! network     gather to participant 0          broadcast of participant 0, all blocks  all-to-all: blocks of two nodes
//! down        a: broadcast of the participant  b: scatter of the participant           a, b: scatter of the participant
//! ```
//! **Order.** MPI advises that a result should not depend on where ranks are. Sums and products of floats depend on the
//! order and on the brackets. So vectors of floats travel as they are, and each participant combines them rank by rank, as a
//! group of one node does. The bits are those of one node, for any number of nodes. Of integers any order gives the same
//! bits, so a node sends one combined vector.

use weir_link::shm::node_group::{MAX_MEMBERS, Operation};
use weir_proto::offload::reduce::Vector;

use crate::{CollectiveOperation, MAX_COLLECTIVE_MEMBERS};

/// Most bytes that a participant gets from all others for one operation. It carries the data of all ranks of its node
/// alone, so beyond this the MPI is faster, whose ranks send their own.
pub const MOST_GATHERED_BYTES: usize = 16 << 10;
/// Among more nodes, combined vectors go up and down a tree. Among fewer, each participant gets those of all others, which
/// takes one step between two nodes, and the tree takes two.
const FEW_NODES: usize = 4;

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
                Operation::AllGather { .. } | Operation::Gather { .. } => is_short,
                Operation::Scatter { bytes, .. } => self.all_blocks(bytes) <= MOST_GATHERED_BYTES,
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
        is_combined_early(operation) && self.nodes.len() > FEW_NODES
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
            Operation::Scatter { root, bytes } => {
                (CollectiveOperation::Broadcast { root: self.place_of_root(root).0 }, self.all_blocks(bytes))
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
    /// - `gathered`: a piece of each node, in their order, as long as [`Layout::network`] says. Of a scatter: all blocks.
    /// - `outcome`: as long as [`Layout::outcome_bytes`] says. What is for single members of our node has the order of places.
    pub fn finish(&self, operation: Operation, gathered: &[u8], outcome: &mut [u8]) {
        let (block, piece) = (block_bytes(operation), self.piece_bytes(operation));
        let block_at = |node: u32, place: u32| {
            let at = node as usize * piece + place as usize * block;
            &gathered[at..at + block]
        };
        match operation {
            Operation::Scatter { .. } => {
                let ours = outcome.chunks_exact_mut(block.max(1)).zip(self.neighbours());
                ours.for_each(|(to, &rank)| {
                    to.copy_from_slice(&gathered[rank as usize * block..][..block]);
                });
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
mod tests {
    use super::*;
    use weir_proto::offload::{Combination, WordOperation, WordType};

    fn vector(word_type: WordType, bytes: u32) -> Vector {
        Vector { bytes, combination: Combination { operation: WordOperation::Sum, word_type } }
    }

    fn layout(rank: u32) -> Layout {
        Layout::new(&[7, 3, 7, 7, 3], rank).expect("few members")
    }

    #[test]
    fn nodes_have_the_order_of_their_first_ranks() {
        let places: Vec<_> = (0..5).map(|rank| (layout(rank).node(), layout(rank).place())).collect();
        assert_eq!(places, [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1)]);
        assert_eq!((layout(4).neighbours(), layout(4).nodes(), layout(4).members()), (&[1, 4][..], 2, 5));
        assert!(layout(0).participants().eq([0, 1]));
        assert_eq!(Layout::new(&[7; 300], 0), None, "more than a node group has");
        assert_eq!(Layout::new(&[7], 1), None, "no such rank");
    }

    #[test]
    fn a_broadcast_goes_down_only_where_the_bytes_have_not_been() {
        let of = |root| Operation::Broadcast { root, bytes: 5 };
        let at = |place| Some(Operation::Broadcast { root: place, bytes: 5 });
        // The root is a participant, or the third of its node.
        assert_eq!((layout(2).up(of(0)), layout(2).down(of(0))), (None, at(0)));
        assert_eq!((layout(2).up(of(3)), layout(2).down(of(3))), (at(2), None));
        assert_eq!((layout(1).up(of(3)), layout(1).down(of(3))), (None, at(0)));
        assert_eq!(layout(1).network(of(4)).operation, CollectiveOperation::Broadcast { root: 1 });
        let alone = Layout::new(&[1, 2, 2], 0).expect("few");
        assert_eq!((alone.up(of(0)), alone.down(of(0))), (None, None));
    }

    #[test]
    fn floats_are_combined_rank_by_rank_and_integers_node_by_node() {
        let floats = Operation::AllReduce(vector(WordType::F64, 8));
        assert_eq!(layout(0).up(floats), Some(Operation::Gather { root: 0, bytes: 8 }));
        assert_eq!(
            layout(0).network(floats),
            NetworkStep { operation: CollectiveOperation::AllGather, block_bytes: 24 }
        );
        let values = [1e16, 1.0, -1e16, 1.0, 3.0];
        let gathered: Vec<u8> = [values[0], values[2], values[3], values[1], values[4], 0.0]
            .iter()
            .flat_map(|value: &f64| value.to_ne_bytes())
            .collect();
        let mut outcome = [0; 8];
        layout(1).finish(floats, &gathered, &mut outcome);
        assert_eq!(f64::from_ne_bytes(outcome), values.iter().sum::<f64>(), "as by one rank after the other");

        let integers = Operation::AllReduce(vector(WordType::I64, 8));
        assert_eq!(
            layout(0).up(integers),
            Some(Operation::Reduce { root: 0, vector: vector(WordType::I64, 8) })
        );
        let gathered: Vec<u8> = [5_i64, -2].iter().flat_map(|value| value.to_ne_bytes()).collect();
        layout(1).finish(integers, &gathered, &mut outcome);
        assert_eq!(i64::from_ne_bytes(outcome), 3);
    }

    #[test]
    fn gathered_blocks_have_the_order_of_ranks() {
        let operation = Operation::AllGather { bytes: 2 };
        let mut outcome = [0; 10];
        layout(0).finish(operation, b"aaccddbbee..", &mut outcome);
        assert_eq!(&outcome, b"aabbccddee");
    }

    #[test]
    fn a_gather_ends_at_its_root_and_a_scatter_passes_by_the_nodes_that_have_it() {
        let gather = |root| Operation::Gather { root, bytes: 2 };
        let all = Some(Operation::Broadcast { root: 0, bytes: 10 });
        assert_eq!((layout(2).down(gather(3)), layout(2).down(gather(0))), (all, None));
        assert_eq!((layout(4).down(gather(3)), layout(1).down(gather(4))), (None, all));
        let step = NetworkStep { operation: CollectiveOperation::Gather { root: 1 }, block_bytes: 6 };
        assert_eq!(layout(0).network(gather(4)), step);

        let scatter = |root| Operation::Scatter { root, bytes: 2 };
        let blocks = Some(Operation::Broadcast { root: 2, bytes: 10 });
        assert_eq!((layout(2).up(scatter(3)), layout(2).down(scatter(3))), (blocks, None));
        let own = Some(Operation::Scatter { root: 0, bytes: 2 });
        assert_eq!((layout(4).up(scatter(3)), layout(4).down(scatter(3))), (None, own));
        let mut outcome = [0; 4];
        layout(4).finish(scatter(3), b"aabbccddee", &mut outcome);
        assert_eq!(&outcome, b"bbee");
    }

    #[test]
    fn blocks_of_an_all_to_all_go_to_their_nodes_and_places() {
        // From rank 0 to 4: AA to AE, and so on.
        let of = |rank: u8| (0..5).flat_map(move |to| [b'A' + rank, b'A' + to]).collect::<Vec<u8>>();
        let operation = Operation::AllToAll { bytes: 2 };
        let given = [[0, 2, 3].map(of).concat(), [1, 4].map(of).concat()];
        let sent = [layout(0).exchanged(2, &given[0]), layout(1).exchanged(2, &given[1])];
        let NetworkStep { operation: step, block_bytes } = layout(0).network(operation);
        assert_eq!((step, block_bytes), (CollectiveOperation::AllToAll, 18));
        assert!(sent.iter().all(|sent| sent.len() == 36));
        for (node, rank) in [(0, 0), (1, 1)] {
            let layout = layout(rank);
            let gathered = sent.each_ref().map(|sent| sent[node * 18..(node + 1) * 18].to_vec()).concat();
            let mut outcome = vec![0; layout.outcome_bytes(operation)];
            layout.finish(operation, &gathered, &mut outcome);
            let to = |to: &u32| (0..5).flat_map(|from| [b'A' + from, b'A' + *to as u8]).collect::<Vec<u8>>();
            assert_eq!(outcome, layout.neighbours().iter().flat_map(to).collect::<Vec<u8>>());
        }
    }

    #[test]
    fn all_members_take_the_same_operations() {
        let limit = MOST_GATHERED_BYTES as u32;
        for rank in 0..5 {
            let layout = layout(rank);
            for (operation, is_taken) in [
                (Operation::Barrier, true),
                (Operation::Broadcast { root: 4, bytes: limit }, true),
                (Operation::Broadcast { root: 5, bytes: 1 }, false),
                (Operation::Broadcast { root: 4, bytes: limit + 1 }, false),
                (Operation::AllReduce(vector(WordType::F64, limit / 6 / 8 * 8)), true),
                (Operation::AllReduce(vector(WordType::F64, 4096)), false),
                (Operation::AllReduce(vector(WordType::I64, 4096)), true),
                (Operation::AllGather { bytes: limit / 6 }, true),
                (Operation::AllGather { bytes: limit / 6 + 1 }, false),
                (Operation::Gather { root: 4, bytes: limit / 6 }, true),
                (Operation::Gather { root: 0, bytes: limit / 6 + 1 }, false),
                (Operation::Gather { root: 5, bytes: 1 }, false),
                (Operation::Scatter { root: 4, bytes: limit / 5 }, true),
                (Operation::Scatter { root: 4, bytes: limit / 5 + 1 }, false),
                (Operation::AllToAll { bytes: limit / 18 }, true),
                (Operation::AllToAll { bytes: limit / 18 + 1 }, false),
            ] {
                assert_eq!(layout.takes(operation), is_taken, "{operation:?} at {rank}");
            }
        }
        let many: Vec<u64> = (0..8).collect();
        let layout = Layout::new(&many, 3).expect("few members");
        let of = |word_type| Operation::Reduce { root: 5, vector: vector(word_type, 4096) };
        assert_eq!((layout.takes(of(WordType::U64)), layout.takes(of(WordType::F32))), (true, false));
        assert!(matches!(
            layout.network(of(WordType::U64)).operation,
            CollectiveOperation::Reduce { root: 5, .. }
        ));
    }
}
