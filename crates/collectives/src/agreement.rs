//! The agreement of a communicator: whether its members use a group, which all members compute from the same table.
//!
//! At the first collective call that could use a group, all members are in the same call. They exchange an [`Offer`] each, by
//! the MPI. So everyone sees the same table, and [`agreed`] gives everyone the same answer. A member with another setting,
//! another version or without a node segment leads to no at all members. So does one that cannot reach other nodes, if there are
//! several, or that wants a group across nodes only where ranks share one.
//! ```text
//! all                PMPI_Allgather of the offers; agreed: no, or the members and the key of the group
//! all                begin: the first member of each node makes the node group, and begins to join the other nodes
//! all                PMPI_Allreduce: whether all could; if so, they finish
//! all                a trial: whether an operation can take a receive of the MPI
//! all                PMPI_Allreduce: whether all have joined; if not, all leave. Whether all can take receives
//! ```

use weir_engine::config::AcrossHosts;
use weir_engine::node_group_interface::{ADDRESS_WORDS, Identity};

/// Words of an offer.
pub const OFFER_WORDS: usize = 5 + ADDRESS_WORDS;

/// The version of this agreement and of the choices for each call. Count it up when either changes: members with different
/// versions use no group.
const VERSION: u64 = 9;

/// What a member tells the others, as words.
pub type Offer = [u64; OFFER_WORDS];

/// The offer of a member.
///
/// - `identity`: `None`: it has no endpoint in a node segment, or its setting is off.
/// - `key`: a number that this member has not offered before.
/// - `across`: the groups across nodes that its endpoint may be used for.
pub fn offer(identity: Option<Identity>, key: u64, across: AcrossHosts) -> Offer {
    let Identity { segment, endpoint, address, .. } = identity.unwrap_or_default();
    let mut offer = [0; OFFER_WORDS];
    offer[..5].copy_from_slice(&[VERSION, segment, endpoint, key, number(across)]);
    offer[5..].copy_from_slice(&address);
    offer
}

/// Groups across nodes, as a word of an offer.
fn number(across: AcrossHosts) -> u64 {
    match across {
        AcrossHosts::Never => 0,
        AcrossHosts::WhereShared => 1,
        AcrossHosts::Always => 2,
    }
}

fn of_number(number: u64) -> AcrossHosts {
    match number {
        1 => AcrossHosts::WhereShared,
        2 => AcrossHosts::Always,
        _ => AcrossHosts::Never,
    }
}

/// A group that all members use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The key of the group.
    pub key: u64,
    /// The members, by rank.
    pub members: Vec<Identity>,
}

impl Agreed {
    /// The node segment of each member.
    pub fn segments(&self) -> Vec<u64> {
        self.members.iter().map(|member| member.segment).collect()
    }
}

/// The answer, from the offers of all members by rank. `None`: they use no group.
pub fn agreed(offers: &[Offer]) -> Option<Agreed> {
    let &[version, first_segment, first, key, ..] = offers.first()?;
    let can_be_member =
        |&[version, segment, endpoint, ..]: &Offer| version == VERSION && segment != 0 && endpoint != 0;
    let is_one_node = offers.iter().all(|offer| offer[1] == first_segment);
    let can_meet = is_one_node || {
        let nodes: Vec<u64> = offers.iter().map(|offer| offer[1]).collect();
        offers.iter().all(|offer| of_number(offer[4]).takes(&nodes))
    };
    if version != VERSION || !offers.iter().all(can_be_member) || !can_meet {
        return None;
    }
    let members = offers.iter().map(|offer| {
        let address = std::array::from_fn(|word| offer[5 + word]);
        Identity { segment: offer[1], endpoint: offer[2], address, is_serialised: 0 }
    });
    // Endpoints have random numbers, so no other first member makes the same key.
    Some(Agreed { key: first ^ key.wrapping_mul(0x9e37_79b9_7f4a_7c15), members: members.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(segment: u64, endpoint: u64) -> Identity {
        Identity { segment, endpoint, address: [endpoint; ADDRESS_WORDS], is_serialised: 0 }
    }

    fn of(segment: u64, endpoint: u64) -> Offer {
        offer(Some(identity(segment, endpoint)), 7, AcrossHosts::Never)
    }

    fn across(segment: u64, endpoint: u64) -> Offer {
        offer(Some(identity(segment, endpoint)), 7, AcrossHosts::Always)
    }

    #[test]
    fn members_of_one_node_segment_agree_on_a_group() {
        let agreed_on = agreed(&[of(3, 10), of(3, 11), of(3, 12)]).expect("a group");
        assert_eq!(agreed_on.members, [10, 11, 12].map(|endpoint| identity(3, endpoint)));
    }

    #[test]
    fn one_member_that_differs_means_no_for_all() {
        let without = offer(None, 7, AcrossHosts::Always);
        let mut newer = of(3, 12);
        newer[0] += 1;
        for other in [of(4, 12), of(0, 12), without, newer] {
            for place in 0..3 {
                let mut offers = [of(3, 10), of(3, 11), of(3, 13)];
                offers[place] = other;
                assert_eq!(agreed(&offers), None, "{other:?} at {place}");
            }
        }
        assert_eq!(agreed(&[without, without]), None);
        assert_eq!(agreed(&[newer, newer]), None, "a version that we do not know");
    }

    #[test]
    fn members_of_several_nodes_agree_if_each_reaches_other_nodes() {
        let agreed_on = agreed(&[across(3, 10), across(4, 11), across(3, 12)]).expect("a group");
        assert_eq!(agreed_on.segments(), [3, 4, 3]);
        for place in 0..3 {
            let mut offers = [across(3, 10), across(4, 11), across(3, 12)];
            offers[place][4] = 0;
            assert_eq!(agreed(&offers), None, "{place}");
        }
        assert!(agreed(&[across(3, 10), of(3, 11)]).is_some(), "one node needs no network");
        assert_eq!(agreed(&[across(3, 10), across(0, 11)]), None, "no node segment");
    }

    #[test]
    fn one_member_that_wants_shared_nodes_means_messages_if_no_two_share_one() {
        let where_shared =
            |segment, endpoint| offer(Some(identity(segment, endpoint)), 7, AcrossHosts::WhereShared);
        for place in 0..3 {
            let mut apart = [across(3, 10), across(4, 11), across(5, 12)];
            let mut shared = [across(3, 10), across(4, 11), across(3, 12)];
            apart[place] = where_shared(apart[place][1], 13);
            shared[place] = where_shared(shared[place][1], 13);
            assert_eq!(agreed(&apart), None, "{place}");
            assert!(agreed(&shared).is_some(), "{place}");
        }
    }

    #[test]
    fn groups_of_one_first_member_have_different_keys() {
        let key = |number| {
            let first = offer(Some(identity(3, 10)), number, AcrossHosts::Never);
            agreed(&[first, of(3, 11)]).expect("a group").key
        };
        let mut keys: Vec<_> = (0..1000).map(key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 1000);
    }
}
