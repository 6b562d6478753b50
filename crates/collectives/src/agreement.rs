//! The agreement of a communicator: whether its members use a group, which all members compute from the same table.
//!
//! At the first collective call that could use a group, all members are in the same call. They exchange an [`Offer`] each, by
//! the MPI. So everyone sees the same table, and [`agreed`] gives everyone the same answer. A member with another setting,
//! another version, in another node segment or in none leads to no at all members.
//! ```text
//! all        PMPI_Allgather of the offers; agreed: no, or the endpoints of the members and the key of the group
//! member 0   makes the group under its key
//! all        PMPI_Bcast: whether it could; if so, the others join
//! all        PMPI_Allreduce: whether all have joined; if not, all leave
//! ```

use weir_engine::node_group_interface::Identity;

/// Words of an offer.
pub const OFFER_WORDS: usize = 4;

/// The version of this agreement and of the choices for each call. Count it up when either changes: members with different
/// versions use no group.
const VERSION: u64 = 2;

/// What a member tells the others, as words.
pub type Offer = [u64; OFFER_WORDS];

/// The offer of a member.
///
/// - `identity`: `None`: it has no endpoint in a node segment, or its setting is off.
/// - `key`: a number that this member has not offered before.
pub fn offer(identity: Option<Identity>, key: u64) -> Offer {
    let Identity { segment, endpoint } = identity.unwrap_or_default();
    [VERSION, segment, endpoint, key]
}

/// A group that all members use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The key of the group.
    pub key: u64,
    /// The endpoints of the members, by rank.
    pub endpoints: Vec<u64>,
}

/// The answer, from the offers of all members by rank. `None`: they use no group.
pub fn agreed(offers: &[Offer]) -> Option<Agreed> {
    let &[version, segment, first, key] = offers.first()?;
    let is_equal = |offer: &Offer| offer[0] == version && offer[1] == segment && offer[2] != 0;
    if version != VERSION || segment == 0 || !offers.iter().all(is_equal) {
        return None;
    }
    let endpoints = offers.iter().map(|offer| offer[2]).collect();
    // Endpoints have random numbers, so no other first member makes the same key.
    Some(Agreed { key: first ^ key.wrapping_mul(0x9e37_79b9_7f4a_7c15), endpoints })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(segment: u64, endpoint: u64) -> Offer {
        offer(Some(Identity { segment, endpoint }), 7)
    }

    #[test]
    fn members_of_one_node_segment_agree_on_a_group() {
        let agreed_on = agreed(&[of(3, 10), of(3, 11), of(3, 12)]).expect("a group");
        assert_eq!(agreed_on.endpoints, [10, 11, 12]);
    }

    #[test]
    fn one_member_that_differs_means_no_for_all() {
        let without = offer(None, 7);
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
    fn groups_of_one_first_member_have_different_keys() {
        let key = |number| {
            let first = offer(Some(Identity { segment: 3, endpoint: 10 }), number);
            agreed(&[first, of(3, 11)]).expect("a group").key
        };
        let mut keys: Vec<_> = (0..1000).map(key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 1000);
    }
}
