//! Peer entries by peer number, and their compact form while a peer is idle. The table also remembers the peers that
//! were ever contacted, and those in whose mailbox we had a lane, after their entries are removed.
//!
//! In schemes with credits a pair has totals on both sides. In other schemes an idle peer mostly differs only in the
//! number of messages sent to it and in its known free slots. Then its [`PeerEntry`] fits into eight bytes
//! ([`CompactEntry`]). The table expands it on the next access. This saves memory when a program contacts thousands of
//! peers once: in a barrier among 262,144 ranks every rank sends to 18 ranks and receives from 18.
//!
//! Each created or expanded entry compacts older idle ones, except the most recent ([`Recent`]). If clearly more
//! entries are expanded than created, compaction stops. Then an active pair costs only a pointer access that it needs
//! anyway. A packet that changes only compact fields needs no expansion ([`Peers::visit_compact`]).
//! ```text
//! create 7   3 is idle: compact { 5 messages, 9 free slots }; 4 has a message half arrived: stays full
//! send to 3  expanded, in the memory of the entry that was compacted last
//! ```

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::ops::{Deref, Index, IndexMut};

use super::compact_entry::{CommonState, CompactEntry};
use super::peer_entry::PeerEntry;
use super::pending::PendingWork;
use crate::config::Config;
use crate::event::Peer;

/// A set of peers, one bit each. The first 64 need no heap memory: many endpoints never contact more.
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

/// Recently created or expanded peers, the last first. Older peers keep the form that they have.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    peers: [u32; Recent::CAPACITY],
    count: usize,
}

impl Recent {
    /// Number of peers in the list.
    const CAPACITY: usize = 8;
    /// The most recent ones are not compacted: the next access is likely to be to them.
    const EXEMPT: usize = 2;

    fn note(&mut self, index: usize) {
        self.peers.copy_within(..Recent::CAPACITY - 1, 1);
        self.peers[0] = index as u32;
        self.count = (self.count + 1).min(Recent::CAPACITY);
    }

    /// Removes the oldest one.
    fn next(&mut self) -> Option<usize> {
        let last = self.count.checked_sub(1).filter(|&last| last >= Recent::EXEMPT)?;
        self.count = last;
        Some(self.peers[last] as usize)
    }
}

/// Counts of useful and of useless compactions.
#[derive(Clone, Copy, Debug, Default)]
struct CompactionUse {
    created: u32,
    expanded: u32,
}

impl CompactionUse {
    /// Whether more entries were expanded than created, with some margin: the program contacts the same peers
    /// repeatedly.
    fn is_rarely_useful(self) -> bool {
        self.expanded > 8 + self.created
    }
}

/// A peer entry for read access.
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

/// All peer entries, by peer number. A peer without contact costs a null pointer, and eight bytes once other entries
/// are compact. A peer after mutual detach costs one more bit: we still need to know that it may die.
#[derive(Clone)]
pub(super) struct Peers {
    states: Vec<Option<Box<PeerEntry>>>,
    /// Compact entries. May be shorter than `states`.
    compact: Vec<Option<CompactEntry>>,
    /// The shared fields. `None`: no compaction.
    common: Option<CommonState>,
    /// Candidates for compaction.
    recent: Recent,
    compaction: CompactionUse,
    /// The memory of an entry that was compacted, for the next one.
    spare: Option<Box<PeerEntry>>,
    /// Peers with any contact so far.
    contacted: Bits,
    /// Peers in whose mailbox we have had a lane.
    leased: Bits,
    /// Stall time of messages to peers whose entry was removed. Unit: ns.
    pub(super) removed_stalled_ns: u64,
}

impl Peers {
    /// An empty table.
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

    /// The full entry of a peer. A peer with a compact entry has no pending work, so it is `None` here.
    #[inline]
    pub(super) fn full_entry(&self, index: usize) -> Option<&PeerEntry> {
        self.states.get(index)?.as_deref()
    }

    fn compact(&self, index: usize) -> Option<CompactEntry> {
        *self.compact.get(index)?
    }

    /// Known free slots at a peer with a compact entry, if we have a lane there.
    #[cold]
    pub(super) fn compact_room(&self, index: usize) -> Option<u32> {
        self.compact(index)?.room()
    }

    /// The entry of a peer for read access.
    pub(super) fn get(&self, index: usize) -> Option<EntryRef<'_>> {
        if let Some(state) = self.full_entry(index) {
            return Some(EntryRef::Full(state));
        }
        Some(EntryRef::Expanded(self.compact(index)?.expand(self.common?)))
    }

    /// The entry of a peer for write access; expands it.
    #[inline]
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut PeerEntry> {
        if self.states.get(index)?.is_none() {
            return self.expand(index);
        }
        self.states.get_mut(index)?.as_deref_mut()
    }

    /// The full entry of a peer for write access.
    #[inline(always)]
    pub(super) fn full_entry_mut(&mut self, index: usize) -> Option<&mut PeerEntry> {
        self.states.get_mut(index)?.as_deref_mut()
    }

    /// Applies `visit` to a compact entry. The entry stays compact if the new state allows it.
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
            self.compact_next(); // so that their number does not grow
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

    /// Adds the entry of a peer without one.
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
                self.states.reserve_exact(more); // no doubling: each place has eight bytes
            }
            self.states.resize_with(index + 1, || None);
        }
        self.states[index] = Some(Peers::boxed(&mut self.spare, state));
    }

    /// Compacts the oldest candidate if it is idle; else it becomes a candidate again.
    fn compact_next(&mut self) {
        let (Some(common), Some(index)) = (self.common, self.recent.next()) else { return };
        let Some(state) = self.states.get_mut(index) else { return };
        let Some(kept) = state.as_deref() else { return }; // it was removed
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

    /// Removes the entry of a peer.
    pub(super) fn remove(&mut self, index: usize) {
        self.states[index] = None;
    }

    /// Swaps the spare memory.
    pub(super) fn exchange_spare(&mut self, spare: &mut Option<Box<PeerEntry>>) {
        core::mem::swap(&mut self.spare, spare);
    }

    /// Number of entries.
    pub(super) fn count(&self) -> usize {
        self.full_entries().count() + self.compact.iter().flatten().count()
    }

    /// All full entries. Only these can have pending work.
    pub(super) fn full_entries(&self) -> impl Iterator<Item = &PeerEntry> {
        self.states.iter().flatten().map(Box::as_ref)
    }

    /// All entries with their peer numbers.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Peer, EntryRef<'_>)> {
        (0..self.states.len()).filter_map(|index| Some((Peer(index as u32), self.get(index)?)))
    }

    pub(super) fn note_contact(&mut self, peer: Peer) {
        self.contacted.set(peer);
    }

    /// All peers with any contact so far.
    pub(super) fn contacted(&self) -> impl Iterator<Item = Peer> {
        self.contacted.iter()
    }

    /// We have a lane in its mailbox.
    pub(super) fn note_lease(&mut self, peer: Peer) {
        self.leased.set(peer);
    }

    /// Whether we have had a lane in its mailbox before.
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

/// Shows the state of peers. Compaction is not part of it.
impl fmt::Debug for Peers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Peers { contacted, leased, removed_stalled_ns, .. } = self;
        let mut peers = formatter.debug_map();
        for (Peer(peer), state) in self.entries() {
            peers.entry(&peer, &*state);
        }
        peers.entry(&"contacted", contacted).entry(&"leased", leased);
        peers.entry(&"removed_stalled_ns", removed_stalled_ns).finish()
    }
}

impl Index<usize> for Peers {
    type Output = PeerEntry;
    fn index(&self, index: usize) -> &PeerEntry {
        self.full_entry(index).expect("a peer with a full entry")
    }
}

impl IndexMut<usize> for Peers {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut PeerEntry {
        self.get_mut(index).expect("a peer with an entry")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{DataRegion, Scheme};
    use crate::packet::Geometry;

    fn peers(scheme: Scheme) -> Peers {
        Peers::new(&Config {
            scheme,
            geometry: Geometry::SHARED_MEMORY,
            credit_slots: 2,
            region: DataRegion::default(),
            eager_bytes: 2048,
            cross_memory: true,
            remote_inline_bytes: 64,
            max_backlog: u32::MAX,
            max_unexpected: 1,
            unexpected_budget_bytes: 0,
            bounce_bytes: 0,
            envelope_budget_bytes: u64::MAX,
            planned_peers: 0,
            planned_quota_slots: 0,
        })
    }

    /// Worlds of the simulator have a million pairs. An entry of 88 B takes 96 B of the heap, one of 89 B takes 112 B.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn the_state_of_a_peer_stays_small() {
        assert!(size_of::<PeerEntry>() <= 88, "{} B", size_of::<PeerEntry>());
        // 8 and 32 of these bytes are for tests and mutants.
        assert!(size_of::<PendingWork>() <= 160 + 8, "{} B", size_of::<PendingWork>());
        assert!(size_of::<crate::Endpoint>() <= 1456 + 32, "{} B", size_of::<crate::Endpoint>());
    }

    #[test]
    fn few_entries_of_many_contacts_stay_expanded() {
        let mut peers = peers(Scheme::Unlimited);
        for index in 0..1000 {
            peers.insert(index, PeerEntry::at_rest(index as u32, Some(1), false));
            if index % 10 == 0 {
                assert_eq!(peers.get_mut(index / 2).map(|state| state.next_number), Some(index as u32 / 2));
            }
        }
        assert_eq!(peers.count(), 1000);
        assert!(peers.full_entries().count() < 8, "{} full entries", peers.full_entries().count());
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
        assert!(kept < 10 && count == 1000, "after one access each: {kept} full entries");
        speak_to_all(1000);
        assert_eq!(speak_to_all(1000), (1000, 1000), "after repeated accesses");
        assert!(peers.get_mut(1000).is_none() && peers.get(1000).is_none());
    }

    #[test]
    fn a_visited_entry_stays_compact_if_its_new_state_fits() {
        let mut peers = peers(Scheme::Unlimited);
        (0..20).for_each(|index| peers.insert(index, PeerEntry::at_rest(index as u32, Some(1), false)));
        let (kept, spoken_to) = (peers.full_entries().count(), peers.compaction.expanded);
        assert_eq!(peers.visit_compact(0, |state| core::mem::replace(&mut state.next_number, 7)), Some(0));
        assert_eq!(peers.visit_compact(0, |state| state.next_number), Some(7));
        assert_eq!((peers.full_entries().count(), peers.compaction.expanded), (kept, spoken_to));
        peers.visit_compact(0, |state| state.path.grants.leases.credit_packets_received = 1);
        assert_eq!(
            peers
                .full_entry(0)
                .map(|state| (state.next_number, state.path.grants.leases.credit_packets_received)),
            Some((7, 1))
        );
        assert_eq!((peers.count(), peers.visit_compact(20, |_| ())), (20, None));
    }

    #[test]
    fn frequent_expansion_disables_compaction() {
        let mut peers = peers(Scheme::Unlimited);
        for index in 0..1000 {
            peers.insert(index, PeerEntry::at_rest(index as u32, Some(1), false));
            (0..=index).for_each(|index| assert!(peers.get_mut(index).is_some()));
        }
        assert_eq!(peers.full_entries().count(), 1000);
        assert!(peers.compaction.expanded <= peers.compaction.created + 9, "{:?}", peers.compaction);
    }

    #[test]
    fn schemes_with_credits_compact_no_entry() {
        let mut peers = peers(Scheme::Static { piggyback: true });
        (0..100).for_each(|index| peers.insert(index, PeerEntry::at_rest(0, None, false)));
        assert_eq!(peers.full_entries().count(), 100);
    }
}
