//! What is kept for peers, by their numbers, and what becomes of it while they are at rest.
//!
//! With credits a pair has books, on both sides. Without, little tells one peer at rest from another: how many messages it was sent,
//! how much room is known there. So its [`PeerEntry`] can be *folded* into eight bytes, and is unfolded when anything is done to it.
//! A program may speak to thousands of peers once: a barrier among 262,144 ranks makes everybody send to 18 and receive from 18.
//!
//! Whoever meets or unfolds somebody folds others met or unfolded before, but for the last few ([`Recent`]). In an all-to-all everybody is
//! spoken to twice, far apart. Whoever has to unfold more often than it meets anybody gives it up: then a pair at work pays a look at
//! a pointer that it needs anyway. A packet that changes nothing of what is folded needs no unfolding ([`Peers::visit_compact`]).
//! ```text
//! meet 7     3 is at rest, folded: { 5 messages, room for 9 }; 4 has a message half arrived: stays
//! send to 3  unfolded, in the memory of whoever was folded last
//! ```

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU64;
use core::ops::{Deref, Index, IndexMut};

use super::lane_lease::Leases;
use super::{Outbound, PeerEntry, PendingWork};
use crate::config::Config;
use crate::event::Peer;
use crate::flow;

/// A set of peers, a bit each. The first ones need no memory of their own: many endpoints never meet more.
#[derive(Clone, Debug, Default)]
struct Bits {
    first: u64,
    others: Vec<u64>,
}

impl Bits {
    fn set(&mut self, peer: Peer) {
        let bit = 1 << (peer.0 % 64);
        let Some(word) = (peer.0 as usize / 64).checked_sub(1) else {
            self.first |= bit;
            return;
        };
        if self.others.len() <= word {
            self.others.resize(word + 1, 0);
        }
        self.others[word] |= bit;
    }

    fn contains(&self, peer: Peer) -> bool {
        let word = match (peer.0 as usize / 64).checked_sub(1) {
            None => self.first,
            Some(word) => self.others.get(word).copied().unwrap_or(0),
        };
        word >> (peer.0 % 64) & 1 == 1
    }

    fn iter(&self) -> impl Iterator<Item = Peer> {
        let bits = |(word, bits): (u32, u64)| {
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| Peer(word * 64 + bit))
        };
        (0..).zip(core::iter::once(self.first).chain(self.others.iter().copied())).flat_map(bits)
    }

    fn bytes(&self) -> usize {
        self.others.capacity() * size_of::<u64>()
    }
}

/// What peers at rest have in common, in schemes without credits.
#[derive(Clone, Copy, Debug)]
struct CommonState {
    room_query: flow::RoomQuery,
    credit_slots: u16,
    cross_memory: bool,
}

impl CommonState {
    fn of(config: &Config) -> Option<CommonState> {
        let room_query = flow::Sender::new(config.scheme, 0, 0).room_query()?;
        let credit_slots = u16::try_from(config.credit_slots).ok()?;
        Some(CommonState { room_query, credit_slots, cross_memory: config.cross_memory })
    }
}

/// A [`PeerEntry`] at rest: from below the number of the next message, the room known there, whether we have a lane there,
/// whether it has one here, and a one.
#[derive(Clone, Copy, Debug)]
struct CompactEntry(NonZeroU64);

impl CompactEntry {
    const NUMBER_BITS: u32 = 30;
    const ROOM_BITS: u32 = 31;
    const CONNECTED: u64 = 1 << 61;
    const ATTACHED: u64 = 1 << 62;
    const SOMEBODY: NonZeroU64 = NonZeroU64::new(1 << 63).expect("a one");

    /// `None`: there is more to know of it.
    fn of(state: &PeerEntry, common: CommonState) -> Option<CompactEntry> {
        let PeerEntry {
            outbound,
            receiver,
            pending: None,
            next_number,
            inbound: None,
            reserved: None,
            leases,
            credit_packets_read: 0,
            credit_slots,
            asked_room: false,
            backlog_waited: false,
            cross_memory,
            said_goodbye: false,
            rendezvous_only: false,
            unreserved: false,
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
        Some(CompactEntry(CompactEntry::SOMEBODY | (attached | connected | numbers)))
    }

    /// Slots known to be free there; `None`: we have no lane.
    fn room(self) -> Option<u32> {
        let CompactEntry(word) = self;
        let room = word.get() >> CompactEntry::NUMBER_BITS & ((1 << CompactEntry::ROOM_BITS) - 1);
        (word.get() & CompactEntry::CONNECTED > 0).then_some(room as u32)
    }

    fn expand(self, common: CommonState) -> PeerEntry {
        let CompactEntry(word) = self;
        let room = self.room();
        let mut state = PeerEntry::new(common.cross_memory);
        state.next_number = (word.get() & ((1 << CompactEntry::NUMBER_BITS) - 1)) as u32;
        if let Some(room) = room {
            state.outbound = Outbound::Connected(flow::Sender::with_room(common.room_query, room));
            state.credit_slots = common.credit_slots;
        }
        state.receiver = (word.get() & CompactEntry::ATTACHED > 0).then_some(flow::Receiver::Unlimited);
        state
    }
}

/// Who was met or unfolded lately, the last first. Who is not in it any more stays as it is.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    peers: [u32; Recent::CAPACITY],
    count: usize,
}

impl Recent {
    /// So many are remembered.
    const CAPACITY: usize = 8;
    /// So many of them are left alone: something else is likely to be done to them soon.
    const EXEMPT: usize = 2;

    fn note(&mut self, index: usize) {
        self.peers.copy_within(..Recent::CAPACITY - 1, 1);
        self.peers[0] = index as u32;
        self.count = (self.count + 1).min(Recent::CAPACITY);
    }

    /// Takes out the one that was noted first.
    fn next(&mut self) -> Option<usize> {
        let last = self.count.checked_sub(1).filter(|&last| last >= Recent::EXEMPT)?;
        self.count = last;
        Some(self.peers[last] as usize)
    }
}

/// How often it was of use to fold somebody, and how often not.
#[derive(Clone, Copy, Debug, Default)]
struct CompactionUse {
    created: u32,
    expanded: u32,
}

impl CompactionUse {
    /// More were unfolded again than were met, and a few: those who were are spoken to again and again.
    fn is_rarely_useful(self) -> bool {
        self.expanded > 8 + self.created
    }
}

/// What is kept for a peer, for those who only look.
#[derive(Debug)]
pub(super) enum EntryRef<'peers> {
    Full(&'peers PeerEntry),
    Expanded(PeerEntry),
}

impl Deref for EntryRef<'_> {
    type Target = PeerEntry;
    fn deref(&self) -> &PeerEntry {
        match self {
            EntryRef::Full(state) => state,
            EntryRef::Expanded(state) => state,
        }
    }
}

/// What is kept for peers, by their numbers. One that was never heard from costs a null pointer, and eight bytes once others are
/// folded; of one that has left and been left remains a bit more: that there is somebody who may die.
#[derive(Clone)]
pub(super) struct Peers {
    states: Vec<Option<Box<PeerEntry>>>,
    /// Those at rest that are not above; may be shorter.
    compact: Vec<Option<CompactEntry>>,
    /// What makes it possible.
    common: Option<CommonState>,
    /// Who can be folded next.
    recent: Recent,
    compaction: CompactionUse,
    /// The memory of one that was folded, for one that is unfolded or met.
    spare: Option<Box<PeerEntry>>,
    /// Who has been in contact, a bit each.
    contacted: Bits,
    /// In whose mailbox we have been.
    leased: Bits,
    /// How long messages to those waited of whom nothing is kept any more. Unit: ns.
    pub(super) removed_stalled_ns: u64,
}

impl Peers {
    /// Of an endpoint that knows nobody.
    pub(super) fn new(config: &Config) -> Peers {
        Peers {
            states: Vec::new(),
            compact: Vec::new(),
            common: CommonState::of(config),
            recent: Recent::default(),
            compaction: CompactionUse::default(),
            spare: None,
            contacted: Bits::default(),
            leased: Bits::default(),
            removed_stalled_ns: 0,
        }
    }

    /// What is kept for a peer, for those who want to know what of it is under way: of one that is folded nothing is.
    #[inline]
    pub(super) fn full_entry(&self, index: usize) -> Option<&PeerEntry> {
        self.states.get(index)?.as_deref()
    }

    fn compact(&self, index: usize) -> Option<CompactEntry> {
        *self.compact.get(index)?
    }

    /// The room known at a peer that is folded, if we have a lane there.
    #[cold]
    pub(super) fn compact_room(&self, index: usize) -> Option<u32> {
        self.compact(index)?.room()
    }

    /// What is kept for a peer.
    pub(super) fn get(&self, index: usize) -> Option<EntryRef<'_>> {
        if let Some(state) = self.full_entry(index) {
            return Some(EntryRef::Full(state));
        }
        Some(EntryRef::Expanded(self.compact(index)?.expand(self.common?)))
    }

    /// What is kept for a peer, to do something to it.
    #[inline]
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut PeerEntry> {
        if self.states.get(index)?.is_none() {
            return self.expand(index);
        }
        self.states.get_mut(index)?.as_deref_mut()
    }

    /// What is kept for a peer that is not folded.
    #[inline(always)]
    pub(super) fn full_entry_mut(&mut self, index: usize) -> Option<&mut PeerEntry> {
        self.states.get_mut(index)?.as_deref_mut()
    }

    /// Does something to what is kept for a peer that is folded, which most often leaves it as it is: then it stays so.
    #[cold]
    #[inline(never)]
    pub(super) fn visit_compact<R>(
        &mut self,
        index: usize,
        visit: impl FnOnce(&mut PeerEntry) -> R,
    ) -> Option<R> {
        let common = self.common?;
        let mut state = self.compact(index)?.expand(common);
        let result = visit(&mut state);
        match CompactEntry::of(&state, common) {
            Some(compact) => self.compact[index] = Some(compact),
            None => {
                self.compact[index] = None;
                self.states[index] = Some(Peers::boxed(&mut self.spare, state));
            }
        }
        Some(result)
    }

    #[cold]
    #[inline(never)]
    fn expand(&mut self, index: usize) -> Option<&mut PeerEntry> {
        let state = self.compact.get_mut(index)?.take()?.expand(self.common?);
        self.compaction.expanded += 1;
        if !self.compaction.is_rarely_useful() {
            self.compact_next(); // so that they do not become more
            self.recent.note(index);
        }
        let place = &mut self.states[index];
        *place = Some(Peers::boxed(&mut self.spare, state));
        place.as_deref_mut()
    }

    fn boxed(spare: &mut Option<Box<PeerEntry>>, state: PeerEntry) -> Box<PeerEntry> {
        match spare.take() {
            Some(mut place) => {
                *place = state;
                place
            }
            None => Box::new(state),
        }
    }

    /// Keeps `state` for a peer for whom nothing was kept.
    pub(super) fn insert(&mut self, index: usize, state: PeerEntry) {
        self.compaction.created += 1;
        if self.common.is_some() && !self.compaction.is_rarely_useful() {
            self.compact_next();
            self.compact_next();
            self.recent.note(index);
        }
        if self.states.len() <= index {
            if self.states.capacity() <= index {
                let more = (index + 1 - self.states.len()).max(self.states.len() / 2).max(4);
                self.states.reserve_exact(more); // not twice as many: it is eight bytes for each
            }
            self.states.resize_with(index + 1, || None);
        }
        self.states[index] = Some(Peers::boxed(&mut self.spare, state));
    }

    /// Folds the peer whose turn it is, if it is at rest; else it waits for its next turn.
    fn compact_next(&mut self) {
        let (Some(common), Some(index)) = (self.common, self.recent.next()) else { return };
        let Some(state) = self.states.get_mut(index) else { return };
        let Some(kept) = state.as_deref() else { return }; // it was forgotten
        let Some(compact) = CompactEntry::of(kept, common) else {
            self.recent.note(index);
            return;
        };
        self.spare = state.take();
        if self.compact.len() <= index {
            self.compact.reserve_exact(self.states.capacity() - self.compact.len());
            self.compact.resize(self.states.len(), None);
        }
        self.compact[index] = Some(compact);
    }

    /// Forgets a peer.
    pub(super) fn remove(&mut self, index: usize) {
        self.states[index] = None;
    }

    /// Takes another's memory for one that is unfolded or met, and gives ours.
    pub(super) fn exchange_spare(&mut self, spare: &mut Option<Box<PeerEntry>>) {
        core::mem::swap(&mut self.spare, spare);
    }

    /// How many something is kept for.
    pub(super) fn count(&self) -> usize {
        self.full_entries().count() + self.compact.iter().flatten().count()
    }

    /// All that are not folded, for those who want to know what is under way.
    pub(super) fn full_entries(&self) -> impl Iterator<Item = &PeerEntry> {
        self.states.iter().flatten().map(Box::as_ref)
    }

    /// All of whom something is kept, with their numbers.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Peer, EntryRef<'_>)> {
        (0..self.states.len()).filter_map(|index| Some((Peer(index as u32), self.get(index)?)))
    }

    pub(super) fn note_contact(&mut self, peer: Peer) {
        self.contacted.set(peer);
    }

    /// Everybody who has ever been in contact.
    pub(super) fn contacted(&self) -> impl Iterator<Item = Peer> {
        self.contacted.iter()
    }

    /// We are in its mailbox.
    pub(super) fn note_lease(&mut self, peer: Peer) {
        self.leased.set(peer);
    }

    /// Whether we have been in its mailbox before.
    pub(super) fn has_leased(&self, peer: Peer) -> bool {
        self.leased.contains(peer)
    }

    pub(super) fn bytes(&self) -> u64 {
        let pending = |pending: &PendingWork| size_of::<PendingWork>() + pending.bytes();
        let each = |state: &PeerEntry| size_of::<PeerEntry>() + state.pending.as_deref().map_or(0, pending);
        let index = self.states.capacity() * size_of::<Option<Box<PeerEntry>>>()
            + self.compact.capacity() * size_of::<Option<CompactEntry>>()
            + self.contacted.bytes()
            + self.leased.bytes();
        let spare = self.spare.as_deref().map_or(0, each);
        (index + spare + self.full_entries().map(each).sum::<usize>()) as u64
    }
}

/// What is known of peers: whether one is folded, and who is next, is no state of theirs.
impl fmt::Debug for Peers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Peers { contacted, leased, removed_stalled_ns, .. } = self;
        let mut peers = formatter.debug_map();
        for (Peer(peer), state) in self.entries() {
            peers.entry(&peer, &*state);
        }
        peers.entry(&"acquainted", contacted).entry(&"stayed", leased);
        peers.entry(&"removed_stalled_ns", removed_stalled_ns).finish()
    }
}

impl Index<usize> for Peers {
    type Output = PeerEntry;
    fn index(&self, index: usize) -> &PeerEntry {
        self.full_entry(index).expect("a peer of whom something is kept, and more than can be folded")
    }
}

impl IndexMut<usize> for Peers {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut PeerEntry {
        self.get_mut(index).expect("a peer of whom something is kept")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{DataRegion, Scheme};
    use crate::packet::Geometry;

    const COMMON: CommonState =
        CommonState { room_query: flow::RoomQuery::WhenFree, credit_slots: 2, cross_memory: true };

    fn peers(scheme: Scheme) -> Peers {
        Peers::new(&Config {
            scheme,
            geometry: Geometry::SHARED_MEMORY,
            credit_slots: 2,
            region: DataRegion::default(),
            eager_bytes: 2048,
            cross_memory: true,
            remote_inline_bytes: 64,
            max_unexpected: 1,
            unexpected_budget_bytes: 0,
            bounce_bytes: 0,
            planned_peers: 0,
            planned_quota_slots: 0,
        })
    }

    /// One that was sent `number` messages, and knows of `room` slots if we have a lane there.
    fn at_rest(number: u32, room: Option<u32>, attached: bool) -> PeerEntry {
        let mut state = PeerEntry { next_number: number, ..PeerEntry::new(true) };
        if let Some(room) = room {
            state.outbound = Outbound::Connected(flow::Sender::with_room(flow::RoomQuery::WhenFree, room));
            state.credit_slots = 2;
        }
        state.receiver = attached.then_some(flow::Receiver::Unlimited);
        state
    }

    #[test]
    fn an_idle_entry_survives_compaction() {
        for number in [0, 1, (1 << 30) - 1] {
            for room in [None, Some(0), Some(7), Some(u32::MAX >> 1)] {
                for attached in [false, true] {
                    let state = at_rest(number, room, attached);
                    let compact = CompactEntry::of(&state, COMMON).expect("it is at rest");
                    assert_eq!(compact.room(), room);
                    let expanded = compact.expand(COMMON);
                    assert_eq!(alloc::format!("{expanded:?}"), alloc::format!("{state:?}"));
                }
            }
        }
    }

    #[test]
    fn an_active_entry_is_not_compacted() {
        let common = || at_rest(5, Some(9), true);
        assert!(CompactEntry::of(&common(), COMMON).is_some());
        let mut another_stay = common();
        another_stay.leases.incoming = 1;
        let others = [
            PeerEntry { outbound: Outbound::Connecting, ..common() },
            PeerEntry { outbound: Outbound::Lost(crate::event::PeerFault::Closed), ..common() },
            PeerEntry { pending: Some(Box::default()), ..common() },
            PeerEntry { next_number: 1 << 30, ..common() },
            PeerEntry { inbound: Some(crate::table::Number::of(0)), ..common() },
            another_stay,
            PeerEntry { credit_packets_read: 1, ..common() },
            PeerEntry { credit_slots: 3, ..common() },
            PeerEntry { asked_room: true, ..common() },
            PeerEntry { backlog_waited: true, ..common() },
            PeerEntry { cross_memory: false, ..common() },
            PeerEntry { said_goodbye: true, ..common() },
            PeerEntry { rendezvous_only: true, ..common() },
            PeerEntry { unreserved: true, ..common() },
            at_rest(5, Some(1 << 31), true),
        ];
        for state in others {
            assert!(CompactEntry::of(&state, COMMON).is_none(), "{state:?}");
        }
    }

    #[test]
    fn few_entries_of_many_contacts_stay_expanded() {
        let mut peers = peers(Scheme::Unlimited);
        for index in 0..1000 {
            peers.insert(index, at_rest(index as u32, Some(1), false));
            if index % 10 == 0 {
                assert_eq!(peers.get_mut(index / 2).map(|state| state.next_number), Some(index as u32 / 2));
            }
        }
        assert_eq!(peers.count(), 1000);
        assert!(peers.full_entries().count() < 8, "{} are not folded", peers.full_entries().count());
        let numbers = peers.entries().map(|(peer, state)| (peer.0, state.next_number));
        assert!(numbers.eq((0..1000).map(|number| (number, number))));
        let mut speak_to_all = |most| {
            for index in 0..most {
                let state: &mut PeerEntry = &mut peers[index];
                assert_eq!(state.next_number, index as u32);
            }
            (peers.full_entries().count(), peers.count())
        };
        let (kept, count) = speak_to_all(900);
        assert!(kept < 10 && count == 1000, "to each once: {kept} are not folded");
        speak_to_all(1000);
        assert_eq!(speak_to_all(1000), (1000, 1000), "again and again");
        assert!(peers.get_mut(1000).is_none() && peers.get(1000).is_none());
    }

    #[test]
    fn a_visited_entry_stays_compact_if_its_new_state_fits() {
        let mut peers = peers(Scheme::Unlimited);
        (0..20).for_each(|index| peers.insert(index, at_rest(index as u32, Some(1), false)));
        let (kept, spoken_to) = (peers.full_entries().count(), peers.compaction.expanded);
        assert_eq!(peers.visit_compact(0, |state| core::mem::replace(&mut state.next_number, 7)), Some(0));
        assert_eq!(peers.visit_compact(0, |state| state.next_number), Some(7));
        assert_eq!((peers.full_entries().count(), peers.compaction.expanded), (kept, spoken_to));
        peers.visit_compact(0, |state| state.credit_packets_read = 1);
        assert_eq!(
            peers.full_entry(0).map(|state| (state.next_number, state.credit_packets_read)),
            Some((7, 1))
        );
        assert_eq!((peers.count(), peers.visit_compact(20, |_| ())), (20, None));
    }

    #[test]
    fn frequent_expansion_disables_compaction() {
        let mut peers = peers(Scheme::Unlimited);
        for index in 0..1000 {
            peers.insert(index, at_rest(index as u32, Some(1), false));
            (0..=index).for_each(|index| assert!(peers.get_mut(index).is_some()));
        }
        assert_eq!(peers.full_entries().count(), 1000);
        assert!(peers.compaction.expanded <= peers.compaction.created + 9, "{:?}", peers.compaction);
    }

    #[test]
    fn schemes_with_credits_compact_no_entry() {
        let mut peers = peers(Scheme::Static { piggyback: true });
        (0..100).for_each(|index| peers.insert(index, at_rest(0, None, false)));
        assert_eq!(peers.full_entries().count(), 100);
    }
}
