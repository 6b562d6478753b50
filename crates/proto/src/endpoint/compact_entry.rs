//! The compact form of a peer's entry: 64 bits while the peer is idle, in schemes without credits. [`super::peers`]
//! compacts entries of idle peers, and expands them on the next access.

use core::num::NonZeroU64;

use super::leases::Leases;
use super::path::{Grants, Outbound, Path, RoomWait};
use super::peer_entry::PeerEntry;
use crate::config::Config;
use crate::flow;

/// The fields that all idle peers share, in schemes without credits.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommonState {
    room_query: flow::RoomQuery,
    credit_slots: u16,
    cross_memory: bool,
}

impl CommonState {
    pub fn of(config: &Config) -> Option<CommonState> {
        let room_query = flow::Sender::new(config.scheme, 0, 0).room_query()?;
        let credit_slots = u16::try_from(config.credit_slots).ok()?;
        Some(CommonState { room_query, credit_slots, cross_memory: config.cross_memory })
    }
}

/// An idle [`PeerEntry`] in 64 bits. From the lowest bit: the number of the next message, the known free slots, whether
/// we have a lane there, whether it has one here, and a one.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompactEntry(NonZeroU64);

impl CompactEntry {
    const NUMBER_BITS: u32 = 30;
    const ROOM_BITS: u32 = 31;
    const CONNECTED: u64 = 1 << 61;
    const ATTACHED: u64 = 1 << 62;
    const PRESENT: NonZeroU64 = NonZeroU64::new(1 << 63).expect("a one");

    /// `None` if the entry has other state.
    pub fn of(state: &PeerEntry, common: CommonState) -> Option<CompactEntry> {
        let PeerEntry {
            path:
                Path {
                    outbound,
                    grants:
                        Grants {
                            receiver,
                            leases,
                            credit_slots,
                            rendezvous_only: false,
                            unreserved: false,
                            room_wait: RoomWait::Nothing,
                            backlog_waited: false,
                            cross_memory,
                            said_goodbye: false,
                        },
                    inbound: None,
                },
            pending: None,
            next_number,
            reserved: None,
        } = state
        else {
            return None;
        };
        let (connected, room, common_slots) = match outbound {
            Outbound::Absent => (0, 0, 0),
            Outbound::Connected(sender) => (CompactEntry::CONNECTED, sender.at_rest()?, common.credit_slots),
            Outbound::Connecting | Outbound::Lost(_) => return None,
        };
        let attached = match receiver {
            None => 0,
            Some(flow::Receiver::Unlimited) => CompactEntry::ATTACHED,
            Some(_) => return None,
        };
        let fits = next_number >> CompactEntry::NUMBER_BITS == 0 && room >> CompactEntry::ROOM_BITS == 0;
        let is_common = *credit_slots == common_slots && *cross_memory == common.cross_memory;
        if !fits || !is_common || *leases != Leases::default() {
            return None;
        }
        let numbers = u64::from(room) << CompactEntry::NUMBER_BITS | u64::from(*next_number);
        Some(CompactEntry(CompactEntry::PRESENT | (attached | connected | numbers)))
    }

    /// Known free slots at the peer. `None`: we have no lane.
    pub fn room(self) -> Option<u32> {
        let CompactEntry(word) = self;
        let room = word.get() >> CompactEntry::NUMBER_BITS & ((1 << CompactEntry::ROOM_BITS) - 1);
        (word.get() & CompactEntry::CONNECTED > 0).then_some(room as u32)
    }

    pub fn expand(self, common: CommonState) -> PeerEntry {
        let CompactEntry(word) = self;
        let room = self.room();
        let mut state = PeerEntry::new(common.cross_memory);
        state.next_number = (word.get() & ((1 << CompactEntry::NUMBER_BITS) - 1)) as u32;
        if let Some(room) = room {
            state.path.outbound = Outbound::Connected(flow::Sender::with_room(common.room_query, room));
            state.path.grants.credit_slots = common.credit_slots;
        }
        state.path.grants.receiver =
            (word.get() & CompactEntry::ATTACHED > 0).then_some(flow::Receiver::Unlimited);
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMON: CommonState =
        CommonState { room_query: flow::RoomQuery::WhenFree, credit_slots: 2, cross_memory: true };

    #[test]
    fn an_idle_entry_survives_compaction() {
        for number in [0, 1, (1 << 30) - 1] {
            for room in [None, Some(0), Some(7), Some(u32::MAX >> 1)] {
                for attached in [false, true] {
                    let state = PeerEntry::at_rest(number, room, attached);
                    let compact = CompactEntry::of(&state, COMMON).expect("an idle entry");
                    assert_eq!(compact.room(), room);
                    let expanded = compact.expand(COMMON);
                    assert_eq!(alloc::format!("{expanded:?}"), alloc::format!("{state:?}"));
                }
            }
        }
    }

    #[test]
    fn an_active_entry_is_not_compacted() {
        let common = || PeerEntry::at_rest(5, Some(9), true);
        assert!(CompactEntry::of(&common(), COMMON).is_some());
        let with = |change: fn(&mut PeerEntry)| {
            let mut state = common();
            change(&mut state);
            state
        };
        let others = [
            with(|state| state.path.outbound = Outbound::Connecting),
            with(|state| state.path.outbound = Outbound::Lost(crate::event::PeerFault::Closed)),
            with(|state| state.pending = Some(alloc::boxed::Box::default())),
            with(|state| state.next_number = 1 << 30),
            with(|state| state.path.inbound = Some(crate::table::Number::of(0))),
            with(|state| state.path.grants.leases.incoming = 1),
            with(|state| state.path.grants.leases.credit_packets_received = 1),
            with(|state| state.path.grants.credit_slots = 3),
            with(|state| state.path.grants.room_wait = RoomWait::Answer),
            with(|state| state.path.grants.backlog_waited = true),
            with(|state| state.path.grants.cross_memory = false),
            with(|state| state.path.grants.said_goodbye = true),
            with(|state| state.path.grants.rendezvous_only = true),
            with(|state| state.path.grants.unreserved = true),
            PeerEntry::at_rest(5, Some(1 << 31), true),
        ];
        for state in others {
            assert!(CompactEntry::of(&state, COMMON).is_none(), "{state:?}");
        }
    }
}
