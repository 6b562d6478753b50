//! How the members of a group agree on a node group: all of them use it, or none.
//!
//! All members are in the call that joins the group, and already have it by messages. So they agree by its operations:
//! ```text
//! all                all-gather of the offers; agreed: no, or the endpoints and the key of the node group
//! the first          makes the node group
//! all                all-reduce: whether it could; if not, all use messages
//! the others         find it
//! all                all-reduce: whether all could; if not, all leave it and use messages
//! ```
//! A group whose members are on several nodes needs none of this: each rank knows the node of each since the endpoint was
//! opened. *Price:* joining a group of one node takes three operations more.

use weir_engine::{CollectiveOperation, oversubscription};
use weir_link::memory::OwnedMemory;
use weir_link::shm::node_group::{MAX_MEMBERS, NodeGroup, NodeGroups};
use weir_proto::offload::{Combination, WordOperation, WordType};

use crate::Error;
use crate::elements::{from_memory, to_memory};
use crate::node_groups::NodeMember;
use crate::state::{Buffers, Inner, Member, Shared};

/// Words of an offer.
const OFFER_WORDS: usize = 3;

/// What a member tells the others: its node segment, its endpoint there, and a number that it offers once. All 0: it takes
/// no part.
type Offer = [u64; OFFER_WORDS];

/// What all members compute from the same offers, by rank: the key of the node group, and the endpoints of its members.
fn agreed(offers: &[Offer]) -> Option<(u64, Vec<u64>)> {
    let &[segment, first, number] = offers.first()?;
    let is_member = |offer: &Offer| offer[0] == segment && offer[1] != 0;
    let agree = segment != 0 && offers.iter().all(is_member);
    // Endpoints have random numbers, so no other first member makes the same key.
    let key = first ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    agree.then(|| (key, offers.iter().map(|offer| offer[1]).collect()))
}

impl Inner {
    /// What this rank offers to a group. `None`: its members are on several nodes, or it has one member.
    fn offer(&self, group: u32) -> Result<Option<Offer>, Error> {
        let Member { ranks, .. } = self.group(group)?;
        let node = |rank: u32| self.nodes.get(rank as usize);
        let is_one_node = ranks.iter().all(|&rank| node(rank) == node(ranks[0]));
        if !is_one_node || ranks.len() < 2 || ranks.len() > MAX_MEMBERS as usize {
            return Ok(None);
        }
        let handle = self.engine.node_handle().filter(|_| self.offers_node_groups);
        Ok(Some(handle.map_or([0; OFFER_WORDS], |handle| [handle.id(), handle.endpoint(), group.into()])))
    }

    /// Makes the node group, as its first member, or finds it. `None`: it cannot.
    fn join_node_group(&self, key: u64, endpoints: &[u64], rank: u32) -> Option<NodeGroup> {
        let handle = self.engine.node_handle()?;
        let groups = NodeGroups::open(handle).ok()?;
        groups.join(key, endpoints, rank).ok()?
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
        let (offer, Member { rank, ranks, .. }) =
            self.with(|inner| Ok((inner.offer(group)?, inner.group(group)?.clone())))?;
        let Some(offer) = offer else { return Ok(()) };
        let words = ranks.len() * OFFER_WORDS;
        let offers = self.agree_by(group, CollectiveOperation::AllGather, &offer, words)?;
        let Some((key, endpoints)) = agreed(offers.as_chunks::<OFFER_WORDS>().0) else { return Ok(()) };
        let mut joined = None;
        for is_turn_of_first in [true, false] {
            let is_ours = is_turn_of_first == (rank == 0);
            if is_ours {
                joined = self.with(|inner| Ok(inner.join_node_group(key, &endpoints, rank)))?;
            }
            if !self.all_could(group, !is_ours || joined.is_some())? {
                return Ok(()); // what we have joined, we leave
            }
        }
        let Some(joined) = joined else { return Ok(()) };
        self.with(|inner| {
            let handle = inner.engine.node_handle();
            let near = handle.map_or(0, |handle| handle.members().len());
            inner.node_groups.is_crowded = near > oversubscription::cores();
            let member = NodeMember::new(joined, rank, ranks.len() as u32, inner.engine.operation_times());
            inner.node_groups.add(group, member);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_one_node_segment_agree() {
        let (key, endpoints) = agreed(&[[3, 10, 1], [3, 11, 5], [3, 12, 9]]).expect("a node group");
        assert_eq!(endpoints, [10, 11, 12]);
        let (next, _) = agreed(&[[3, 10, 2], [3, 11, 5], [3, 12, 9]]).expect("another one");
        assert_ne!(key, next);
    }

    #[test]
    fn one_member_that_differs_means_messages_for_all() {
        for other in [[4, 13, 1], [0, 0, 0], [3, 0, 1]] {
            for place in 0..3 {
                let mut offers = [[3, 10, 1], [3, 11, 1], [3, 12, 1]];
                offers[place] = other;
                assert_eq!(agreed(&offers), None, "{other:?} at {place}");
            }
        }
        assert_eq!(agreed(&[[0, 10, 1], [0, 11, 1]]), None, "no node segment");
    }
}
