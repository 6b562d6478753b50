//! How the members of a group agree on a node group, or on a group on two levels if they are on several nodes: all of them use
//! it, or none.
//!
//! All members are in the call that joins the group, and already have it by messages. So they agree by its operations:
//! ```text
//! all                all-gather of the offers; agreed: no, or the endpoints, their nodes and the key of the node groups
//! first of a node    makes the node groups; on several nodes all of these begin to join each other
//! all                all-reduce: whether it could; if not, all use messages
//! the others         find them
//! first of a node    waits until all of these have joined
//! all                all-reduce: whether all could; if not, all leave and use messages
//! ```
//! Nodes with one member each need none of this, since messages cost them as much: each rank knows the node of each since the
//! endpoint was opened. *Price:* joining another group takes three operations more, and one on several nodes two places for
//! groups of the engine.

use weir_engine::config::AcrossHosts;
use weir_engine::levels::{Layout, LevelGroup};
use weir_engine::{CollectiveOperation, Engine, oversubscription};
use weir_link::memory::OwnedMemory;
use weir_link::shm::node_group::{MAX_MEMBERS, NodeGroup, NodeGroups};
use weir_proto::Peer;
use weir_proto::offload::{Combination, WordOperation, WordType};

use crate::Error;
use crate::elements::{from_memory, to_memory};
use crate::membership::Membership;
use crate::node_groups::NodeMember;
use crate::state::{Buffers, Inner, Member, Shared};

/// Words of an offer.
const OFFER_WORDS: usize = 3;
/// Bound: groups of a rank that are on two levels. Each takes two places of the engine's groups.
pub(crate) const MAX_LEVEL_GROUPS: usize = 16;

/// What a member tells the others: its node segment, its endpoint there, and a number that it offers once. All 0: it takes
/// no part.
type Offer = [u64; OFFER_WORDS];

/// What all members compute from the same offers.
#[derive(Debug, PartialEq, Eq)]
struct Agreed {
    /// The key of the node groups.
    key: u64,
    /// By rank.
    segments: Vec<u64>,
    endpoints: Vec<u64>,
}

/// `None`: they use messages.
fn agreed(offers: &[Offer]) -> Option<Agreed> {
    let &[_, first, number] = offers.first()?;
    let takes_part = |&[segment, endpoint, _]: &Offer| segment != 0 && endpoint != 0;
    // Endpoints have random numbers, so no other first member makes the same key.
    let key = first ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    offers.iter().all(takes_part).then(|| Agreed {
        key,
        segments: offers.iter().map(|offer| offer[0]).collect(),
        endpoints: offers.iter().map(|offer| offer[1]).collect(),
    })
}

/// What a member joins.
struct Joining {
    layout: Layout,
    key: u64,
    endpoints: Vec<u64>,
    peers: Vec<Peer>,
    joined: Option<Membership>,
}

impl Joining {
    /// The keys of our node groups. Several operations may be under way on two levels, which needs a second one.
    fn keys(&self) -> Vec<u64> {
        match (self.layout.neighbours().len(), self.layout.nodes()) {
            (1, _) => Vec::new(),
            (_, 1) => vec![self.key],
            _ => vec![self.key, self.key.rotate_left(1)],
        }
    }

    /// Makes our node groups, as the first member of the node, or finds them. The first members begin to join each other. `None`:
    /// it cannot.
    fn begin(&self, engine: &mut Engine) -> Option<Membership> {
        let Joining { layout, endpoints, .. } = self;
        let neighbours: Vec<u64> = layout.neighbours().iter().map(|rank| endpoints[*rank as usize]).collect();
        let join = |key| {
            let groups = NodeGroups::open(engine.node_handle()?).ok()?;
            groups.join(key, &neighbours, layout.place()).ok()?
        };
        let mut nodes: Vec<NodeGroup> = self.keys().into_iter().map(join).collect::<Option<_>>()?;
        if layout.nodes() == 1 {
            return nodes.pop().map(|node| Membership::Node(Box::new(node)));
        }
        let mut group = Box::new(LevelGroup::new(layout.clone(), nodes));
        if group.needs_engine() {
            let participants = layout.participants().map(|rank| self.peers[rank as usize]).collect();
            group.join_network(engine, network_number(self.key), participants).ok()?;
        }
        Some(Membership::Levels(group))
    }
}

impl Inner {
    /// What this rank offers to a group. `None`: it has one member, or no two of its members share a node.
    fn offer(&self, group: u32) -> Result<Option<Offer>, Error> {
        let Member { ranks, .. } = self.group(group)?;
        let nodes = self.nodes_of(ranks);
        let (is_one_node, is_shared) =
            (nodes.iter().all(|node| *node == nodes[0]), AcrossHosts::WhereShared.takes(&nodes));
        if !is_shared || (is_one_node && ranks.len() > MAX_MEMBERS as usize) {
            return Ok(None);
        }
        let is_offered = match is_one_node {
            true => self.offered.on_one_node,
            false => self.offered.across_nodes && self.node_groups.may_be_on_levels() < MAX_LEVEL_GROUPS,
        };
        let handle = self.engine.node_handle().filter(|_| is_offered);
        Ok(Some(handle.map_or([0; OFFER_WORDS], |handle| [handle.id(), handle.endpoint(), group.into()])))
    }

    fn nodes_of(&self, ranks: &[u32]) -> Vec<u64> {
        ranks.iter().map(|rank| self.nodes.get(*rank as usize).copied().unwrap_or(0)).collect()
    }
}

impl Shared {
    /// An operation of a group by messages, on words. Nobody has used the group yet.
    fn agree_by(
        &self,
        group: u32,
        operation: CollectiveOperation,
        words: &[u64],
        result_words: usize,
    ) -> Result<Vec<u64>, Error> {
        let request = self.start_blocking(|inner| {
            let buffers = Buffers::owned(to_memory(words), OwnedMemory::new(8 * result_words));
            inner.start_by_messages(group, operation, size_of_val(words) as u64, buffers, true)
        })?;
        let memory = self.wait(request)??;
        Ok(memory.map_or(Vec::new(), |memory| from_memory(&memory)))
    }

    /// Whether all members could.
    fn all_could(&self, group: u32, could: bool) -> Result<bool, Error> {
        let combination = Combination { operation: WordOperation::Min, word_type: WordType::U64 };
        let least =
            self.agree_by(group, CollectiveOperation::AllReduce { combination }, &[could.into()], 1)?;
        Ok(least == [1])
    }

    /// The members of a group that all have joined agree on a node group, or on none.
    ///
    /// # Errors
    /// [`Error::Lost`]: the group can do nothing.
    pub fn agree(&self, group: u32) -> Result<(), Error> {
        let (offer, member) = self.with(|inner| {
            let offer = inner.offer(group)?;
            inner.node_groups.offered += usize::from(offer.is_some());
            Ok((offer, inner.group(group)?.clone()))
        })?;
        let Some(offer) = offer else { return Ok(()) };
        let agreed = self.agree_on(group, offer, member);
        self.with(|inner| {
            inner.node_groups.offered -= 1;
            Ok(())
        })?;
        agreed
    }

    fn agree_on(&self, group: u32, offer: Offer, Member { rank, ranks, .. }: Member) -> Result<(), Error> {
        let words = ranks.len() * OFFER_WORDS;
        let offers = self.agree_by(group, CollectiveOperation::AllGather, &offer, words)?;
        let Some(Agreed { key, segments, endpoints }) = agreed(offers.as_chunks::<OFFER_WORDS>().0) else {
            return Ok(());
        };
        let (by_greetings, peers) = self.with(|inner| {
            let peers = ranks.iter().map(|&rank| inner.peer(rank)).collect::<Result<_, _>>()?;
            Ok((Layout::new(&inner.nodes_of(&ranks), rank), peers))
        })?;
        let layout = Layout::new(&segments, rank).filter(|layout| Some(layout) == by_greetings.as_ref());
        let Some(layout) = layout else { return Ok(()) }; // as for all others
        let mut joining = Joining { layout, key, endpoints, peers, joined: None };
        let mut agreed = Ok(true);
        for is_turn_of_first in [true, false] {
            agreed = self.join_in_turn(&mut joining, is_turn_of_first);
            agreed = agreed.and_then(|could| self.all_could(group, could));
            if !matches!(agreed, Ok(true)) {
                break;
            }
        }
        self.with(|inner| {
            let Some(mut membership) = joining.joined.take() else { return Ok(()) };
            if !matches!(agreed, Ok(true)) {
                membership.leave(&mut inner.engine);
                return Ok(());
            }
            let handle = inner.engine.node_handle();
            let near = handle.map_or(0, |handle| handle.members().len());
            inner.node_groups.is_crowded = near > oversubscription::cores();
            let times = inner.engine.operation_times();
            inner.node_groups.add(group, NodeMember::new(membership, rank, ranks.len() as u32, times));
            Ok(())
        })?;
        agreed.map(|_| ())
    }

    /// Does what a member has to do in the turn of the first members of nodes, or in that of the others, in which the first ones
    /// wait until they have joined each other. Returns whether it could.
    fn join_in_turn(&self, joining: &mut Joining, is_turn_of_first: bool) -> Result<bool, Error> {
        if is_turn_of_first == joining.layout.is_participant() {
            joining.joined = self.with(|inner| Ok(joining.begin(&mut inner.engine)))?;
            return Ok(joining.joined.is_some());
        }
        let Some(Membership::Levels(group)) = &mut joining.joined else { return Ok(true) };
        loop {
            if let Some(has_joined) = self.with(|inner| Ok(group.has_joined(&mut inner.engine)))? {
                return Ok(has_joined);
            }
            self.make_progress(true)?;
        }
    }
}

/// The number of the group of the first members of all nodes.
fn network_number(key: u64) -> u32 {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_all_offer_something_agree() {
        let first = agreed(&[[3, 10, 1], [4, 11, 5], [3, 12, 9]]).expect("a node group");
        assert_eq!((first.segments, first.endpoints), (vec![3, 4, 3], vec![10, 11, 12]));
        let next = agreed(&[[3, 10, 2], [4, 11, 5], [3, 12, 9]]).expect("another one");
        assert_ne!(first.key, next.key);
    }

    #[test]
    fn one_member_that_offers_nothing_means_messages_for_all() {
        for other in [[0, 13, 1], [0, 0, 0], [3, 0, 1]] {
            for place in 0..3 {
                let mut offers = [[3, 10, 1], [3, 11, 1], [3, 12, 1]];
                offers[place] = other;
                assert_eq!(agreed(&offers), None, "{other:?} at {place}");
            }
        }
        assert_eq!(agreed(&[[0, 10, 1], [0, 11, 1]]), None, "no node segment");
    }
}
