//! What is kept for peers, by their numbers, and what becomes of it while they are at rest.
//!
//! With credits a pair has books, on both sides. Without, little tells one peer at rest from another: how many messages it was sent,
//! how much room is known there. So its [`PeerState`] can be *folded* into eight bytes, and is unfolded when anything is done to it.
//! A program may speak to thousands of peers once: a barrier among 262,144 ranks makes everybody send to 18 and receive from 18.
//!
//! Whoever meets or unfolds somebody folds others met or unfolded before, but for the last few ([`Recent`]). In an all-to-all everybody is
//! spoken to twice, far apart. Whoever has to unfold more often than it meets anybody gives it up: then a pair at work pays a look at
//! a pointer that it needs anyway. A packet that changes nothing of what is folded needs no unfolding ([`Peers::visit_folded`]).
//! ```text
//! meet 7     3 is at rest, folded: { 5 messages, room for 9 }; 4 has a message half arrived: stays
//! send to 3  unfolded, in the memory of whoever was folded last
//! ```

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU64;
use core::ops::{Deref, Index, IndexMut};

use super::membership::Stays;
use super::{Outbound, PeerState, UnderWay};
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
struct Usual {
    claims: flow::Claim,
    credit_slots: u16,
    cross_memory: bool,
}

impl Usual {
    fn of(config: &Config) -> Option<Usual> {
        let claims = flow::Sender::new(config.scheme, 0, 0).claims()?;
        let credit_slots = u16::try_from(config.credit_slots).ok()?;
        Some(Usual { claims, credit_slots, cross_memory: config.cross_memory })
    }
}

/// A [`PeerState`] at rest: from below the number of the next message, the room known there, whether we have a lane there,
/// whether it has one here, and a one.
#[derive(Clone, Copy, Debug)]
struct Folded(NonZeroU64);

impl Folded {
    const NUMBER_BITS: u32 = 30;
    const ROOM_BITS: u32 = 31;
    const CONNECTED: u64 = 1 << 61;
    const ATTACHED: u64 = 1 << 62;
    const SOMEBODY: NonZeroU64 = NonZeroU64::new(1 << 63).expect("a one");

    /// `None`: there is more to know of it.
    fn of(state: &PeerState, usual: Usual) -> Option<Folded> {
        let PeerState {
            outbound,
            receiver,
            under_way: None,
            next_number,
            inbound: None,
            reserved: None,
            stays,
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
        let (connected, room, usual_slots) = match outbound {
            Outbound::Absent => (0, 0, 0),
            Outbound::Connected(sender) => (Folded::CONNECTED, sender.at_rest()?, usual.credit_slots),
            Outbound::Connecting | Outbound::Lost(_) => return None,
        };
        let attached = match receiver {
            None => 0,
            Some(flow::Receiver::Unlimited) => Folded::ATTACHED,
            Some(_) => return None,
        };
        let fits = next_number >> Folded::NUMBER_BITS == 0 && room >> Folded::ROOM_BITS == 0;
        let as_usual = *credit_slots == usual_slots && *cross_memory == usual.cross_memory;
        if !fits || !as_usual || *stays != Stays::default() {
            return None;
        }
        let numbers = u64::from(room) << Folded::NUMBER_BITS | u64::from(*next_number);
        Some(Folded(Folded::SOMEBODY | (attached | connected | numbers)))
    }

    /// Slots known to be free there; `None`: we have no lane.
    fn room(self) -> Option<u32> {
        let Folded(word) = self;
        let room = word.get() >> Folded::NUMBER_BITS & ((1 << Folded::ROOM_BITS) - 1);
        (word.get() & Folded::CONNECTED > 0).then_some(room as u32)
    }

    fn unfold(self, usual: Usual) -> PeerState {
        let Folded(word) = self;
        let room = self.room();
        let mut state = PeerState::new(usual.cross_memory);
        state.next_number = (word.get() & ((1 << Folded::NUMBER_BITS) - 1)) as u32;
        if let Some(room) = room {
            state.outbound = Outbound::Connected(flow::Sender::with_room(usual.claims, room));
            state.credit_slots = usual.credit_slots;
        }
        state.receiver = (word.get() & Folded::ATTACHED > 0).then_some(flow::Receiver::Unlimited);
        state
    }
}

/// Who was met or unfolded lately, the last first. Who is not in it any more stays as it is.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    peers: [u32; Recent::MOST],
    count: usize,
}

impl Recent {
    /// So many are remembered.
    const MOST: usize = 8;
    /// So many of them are left alone: something else is likely to be done to them soon.
    const SPARED: usize = 2;

    fn note(&mut self, index: usize) {
        self.peers.copy_within(..Recent::MOST - 1, 1);
        self.peers[0] = index as u32;
        self.count = (self.count + 1).min(Recent::MOST);
    }

    /// Takes out the one that was noted first.
    fn next(&mut self) -> Option<usize> {
        let last = self.count.checked_sub(1).filter(|&last| last >= Recent::SPARED)?;
        self.count = last;
        Some(self.peers[last] as usize)
    }
}

/// How often it was of use to fold somebody, and how often not.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    met: u32,
    unfolded: u32,
}

impl Use {
    /// More were unfolded again than were met, and a few: those who were are spoken to again and again.
    fn is_little(self) -> bool {
        self.unfolded > 8 + self.met
    }
}

/// What is kept for a peer, for those who only look.
#[derive(Debug)]
pub(super) enum Seen<'peers> {
    AsItStands(&'peers PeerState),
    Unfolded(PeerState),
}

impl Deref for Seen<'_> {
    type Target = PeerState;
    fn deref(&self) -> &PeerState {
        match self {
            Seen::AsItStands(state) => state,
            Seen::Unfolded(state) => state,
        }
    }
}

/// What is kept for peers, by their numbers. One that was never heard from costs a null pointer, and eight bytes once others are
/// folded; of one that has left and been left remains a bit more: that there is somebody who may die.
#[derive(Clone)]
pub(super) struct Peers {
    states: Vec<Option<Box<PeerState>>>,
    /// Those at rest that are not above; may be shorter.
    folded: Vec<Option<Folded>>,
    /// What makes it possible.
    usual: Option<Usual>,
    /// Who can be folded next.
    recent: Recent,
    using: Use,
    /// The memory of one that was folded, for one that is unfolded or met.
    spare: Option<Box<PeerState>>,
    /// Who has been in contact, a bit each.
    acquainted: Bits,
    /// In whose mailbox we have been.
    stayed: Bits,
    /// How long messages to those waited of whom nothing is kept any more. Unit: ns.
    pub(super) forgotten_stalled_ns: u64,
}

impl Peers {
    /// Of an endpoint that knows nobody.
    pub(super) fn new(config: &Config) -> Peers {
        Peers {
            states: Vec::new(),
            folded: Vec::new(),
            usual: Usual::of(config),
            recent: Recent::default(),
            using: Use::default(),
            spare: None,
            acquainted: Bits::default(),
            stayed: Bits::default(),
            forgotten_stalled_ns: 0,
        }
    }

    /// What is kept for a peer, for those who want to know what of it is under way: of one that is folded nothing is.
    #[inline]
    pub(super) fn kept(&self, index: usize) -> Option<&PeerState> {
        self.states.get(index)?.as_deref()
    }

    fn folded(&self, index: usize) -> Option<Folded> {
        *self.folded.get(index)?
    }

    /// The room known at a peer that is folded, if we have a lane there.
    #[cold]
    pub(super) fn folded_room(&self, index: usize) -> Option<u32> {
        self.folded(index)?.room()
    }

    /// What is kept for a peer.
    pub(super) fn get(&self, index: usize) -> Option<Seen<'_>> {
        if let Some(state) = self.kept(index) {
            return Some(Seen::AsItStands(state));
        }
        Some(Seen::Unfolded(self.folded(index)?.unfold(self.usual?)))
    }

    /// What is kept for a peer, to do something to it.
    #[inline]
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut PeerState> {
        if self.states.get(index)?.is_none() {
            return self.unfold(index);
        }
        self.states.get_mut(index)?.as_deref_mut()
    }

    /// What is kept for a peer that is not folded.
    #[inline(always)]
    pub(super) fn kept_mut(&mut self, index: usize) -> Option<&mut PeerState> {
        self.states.get_mut(index)?.as_deref_mut()
    }

    /// Does something to what is kept for a peer that is folded, which most often leaves it as it is: then it stays so.
    #[cold]
    #[inline(never)]
    pub(super) fn visit_folded<R>(
        &mut self,
        index: usize,
        visit: impl FnOnce(&mut PeerState) -> R,
    ) -> Option<R> {
        let usual = self.usual?;
        let mut state = self.folded(index)?.unfold(usual);
        let result = visit(&mut state);
        match Folded::of(&state, usual) {
            Some(folded) => self.folded[index] = Some(folded),
            None => {
                self.folded[index] = None;
                self.states[index] = Some(Peers::boxed(&mut self.spare, state));
            }
        }
        Some(result)
    }

    #[cold]
    #[inline(never)]
    fn unfold(&mut self, index: usize) -> Option<&mut PeerState> {
        let state = self.folded.get_mut(index)?.take()?.unfold(self.usual?);
        self.using.unfolded += 1;
        if !self.using.is_little() {
            self.fold_next(); // so that they do not become more
            self.recent.note(index);
        }
        let place = &mut self.states[index];
        *place = Some(Peers::boxed(&mut self.spare, state));
        place.as_deref_mut()
    }

    fn boxed(spare: &mut Option<Box<PeerState>>, state: PeerState) -> Box<PeerState> {
        match spare.take() {
            Some(mut place) => {
                *place = state;
                place
            }
            None => Box::new(state),
        }
    }

    /// Keeps `state` for a peer for whom nothing was kept.
    pub(super) fn insert(&mut self, index: usize, state: PeerState) {
        self.using.met += 1;
        if self.usual.is_some() && !self.using.is_little() {
            self.fold_next();
            self.fold_next();
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
    fn fold_next(&mut self) {
        let (Some(usual), Some(index)) = (self.usual, self.recent.next()) else { return };
        let Some(state) = self.states.get_mut(index) else { return };
        let Some(kept) = state.as_deref() else { return }; // it was forgotten
        let Some(folded) = Folded::of(kept, usual) else {
            self.recent.note(index);
            return;
        };
        self.spare = state.take();
        if self.folded.len() <= index {
            self.folded.reserve_exact(self.states.capacity() - self.folded.len());
            self.folded.resize(self.states.len(), None);
        }
        self.folded[index] = Some(folded);
    }

    /// Forgets a peer.
    pub(super) fn remove(&mut self, index: usize) {
        self.states[index] = None;
    }

    /// Takes another's memory for one that is unfolded or met, and gives ours.
    pub(super) fn exchange_spare(&mut self, spare: &mut Option<Box<PeerState>>) {
        core::mem::swap(&mut self.spare, spare);
    }

    /// How many something is kept for.
    pub(super) fn count(&self) -> usize {
        self.kept_all().count() + self.folded.iter().flatten().count()
    }

    /// All that are not folded, for those who want to know what is under way.
    pub(super) fn kept_all(&self) -> impl Iterator<Item = &PeerState> {
        self.states.iter().flatten().map(Box::as_ref)
    }

    /// All of whom something is kept, with their numbers.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (Peer, Seen<'_>)> {
        (0..self.states.len()).filter_map(|index| Some((Peer(index as u32), self.get(index)?)))
    }

    pub(super) fn acquaint(&mut self, peer: Peer) {
        self.acquainted.set(peer);
    }

    /// Everybody who has ever been in contact.
    pub(super) fn acquainted(&self) -> impl Iterator<Item = Peer> {
        self.acquainted.iter()
    }

    /// We are in its mailbox.
    pub(super) fn stay(&mut self, peer: Peer) {
        self.stayed.set(peer);
    }

    /// Whether we have been in its mailbox before.
    pub(super) fn has_stayed(&self, peer: Peer) -> bool {
        self.stayed.contains(peer)
    }

    pub(super) fn bytes(&self) -> u64 {
        let under_way = |under_way: &UnderWay| size_of::<UnderWay>() + under_way.bytes();
        let each =
            |state: &PeerState| size_of::<PeerState>() + state.under_way.as_deref().map_or(0, under_way);
        let index = self.states.capacity() * size_of::<Option<Box<PeerState>>>()
            + self.folded.capacity() * size_of::<Option<Folded>>()
            + self.acquainted.bytes()
            + self.stayed.bytes();
        let spare = self.spare.as_deref().map_or(0, each);
        (index + spare + self.kept_all().map(each).sum::<usize>()) as u64
    }
}

/// What is known of peers: whether one is folded, and who is next, is no state of theirs.
impl fmt::Debug for Peers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Peers { acquainted, stayed, forgotten_stalled_ns, .. } = self;
        let mut peers = formatter.debug_map();
        for (Peer(peer), state) in self.numbered() {
            peers.entry(&peer, &*state);
        }
        peers.entry(&"acquainted", acquainted).entry(&"stayed", stayed);
        peers.entry(&"forgotten_stalled_ns", forgotten_stalled_ns).finish()
    }
}

impl Index<usize> for Peers {
    type Output = PeerState;
    fn index(&self, index: usize) -> &PeerState {
        self.kept(index).expect("a peer of whom something is kept, and more than can be folded")
    }
}

impl IndexMut<usize> for Peers {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut PeerState {
        self.get_mut(index).expect("a peer of whom something is kept")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{DataRegion, Scheme};
    use crate::packet::Geometry;

    const USUAL: Usual = Usual { claims: flow::Claim::WhenFree, credit_slots: 2, cross_memory: true };

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
    fn at_rest(number: u32, room: Option<u32>, attached: bool) -> PeerState {
        let mut state = PeerState { next_number: number, ..PeerState::new(true) };
        if let Some(room) = room {
            state.outbound = Outbound::Connected(flow::Sender::with_room(flow::Claim::WhenFree, room));
            state.credit_slots = 2;
        }
        state.receiver = attached.then_some(flow::Receiver::Unlimited);
        state
    }

    #[test]
    fn a_peer_at_rest_is_unfolded_as_it_was() {
        for number in [0, 1, (1 << 30) - 1] {
            for room in [None, Some(0), Some(7), Some(u32::MAX >> 1)] {
                for attached in [false, true] {
                    let state = at_rest(number, room, attached);
                    let folded = Folded::of(&state, USUAL).expect("it is at rest");
                    assert_eq!(folded.room(), room);
                    let unfolded = folded.unfold(USUAL);
                    assert_eq!(alloc::format!("{unfolded:?}"), alloc::format!("{state:?}"));
                }
            }
        }
    }

    #[test]
    fn whatever_is_not_at_rest_stays() {
        let usual = || at_rest(5, Some(9), true);
        assert!(Folded::of(&usual(), USUAL).is_some());
        let mut another_stay = usual();
        another_stay.stays.here = 1;
        let others = [
            PeerState { outbound: Outbound::Connecting, ..usual() },
            PeerState { outbound: Outbound::Lost(crate::event::PeerFault::Closed), ..usual() },
            PeerState { under_way: Some(Box::default()), ..usual() },
            PeerState { next_number: 1 << 30, ..usual() },
            PeerState { inbound: Some(crate::table::Number::of(0)), ..usual() },
            another_stay,
            PeerState { credit_packets_read: 1, ..usual() },
            PeerState { credit_slots: 3, ..usual() },
            PeerState { asked_room: true, ..usual() },
            PeerState { backlog_waited: true, ..usual() },
            PeerState { cross_memory: false, ..usual() },
            PeerState { said_goodbye: true, ..usual() },
            PeerState { rendezvous_only: true, ..usual() },
            PeerState { unreserved: true, ..usual() },
            at_rest(5, Some(1 << 31), true),
        ];
        for state in others {
            assert!(Folded::of(&state, USUAL).is_none(), "{state:?}");
        }
    }

    #[test]
    fn who_meets_many_keeps_few_unfolded_and_finds_all() {
        let mut peers = peers(Scheme::Unlimited);
        for index in 0..1000 {
            peers.insert(index, at_rest(index as u32, Some(1), false));
            if index % 10 == 0 {
                assert_eq!(peers.get_mut(index / 2).map(|state| state.next_number), Some(index as u32 / 2));
            }
        }
        assert_eq!(peers.count(), 1000);
        assert!(peers.kept_all().count() < 8, "{} are not folded", peers.kept_all().count());
        let numbers = peers.numbered().map(|(peer, state)| (peer.0, state.next_number));
        assert!(numbers.eq((0..1000).map(|number| (number, number))));
        let mut speak_to_all = |most| {
            for index in 0..most {
                let state: &mut PeerState = &mut peers[index];
                assert_eq!(state.next_number, index as u32);
            }
            (peers.kept_all().count(), peers.count())
        };
        let (kept, count) = speak_to_all(900);
        assert!(kept < 10 && count == 1000, "to each once: {kept} are not folded");
        speak_to_all(1000);
        assert_eq!(speak_to_all(1000), (1000, 1000), "again and again");
        assert!(peers.get_mut(1000).is_none() && peers.get(1000).is_none());
    }

    #[test]
    fn who_is_visited_stays_folded_unless_that_changes_more_than_folds() {
        let mut peers = peers(Scheme::Unlimited);
        (0..20).for_each(|index| peers.insert(index, at_rest(index as u32, Some(1), false)));
        let (kept, spoken_to) = (peers.kept_all().count(), peers.using.unfolded);
        assert_eq!(peers.visit_folded(0, |state| core::mem::replace(&mut state.next_number, 7)), Some(0));
        assert_eq!(peers.visit_folded(0, |state| state.next_number), Some(7));
        assert_eq!((peers.kept_all().count(), peers.using.unfolded), (kept, spoken_to));
        peers.visit_folded(0, |state| state.credit_packets_read = 1);
        assert_eq!(peers.kept(0).map(|state| (state.next_number, state.credit_packets_read)), Some((7, 1)));
        assert_eq!((peers.count(), peers.visit_folded(20, |_| ())), (20, None));
    }

    #[test]
    fn who_has_to_unfold_most_gives_it_up() {
        let mut peers = peers(Scheme::Unlimited);
        for index in 0..1000 {
            peers.insert(index, at_rest(index as u32, Some(1), false));
            (0..=index).for_each(|index| assert!(peers.get_mut(index).is_some()));
        }
        assert_eq!(peers.kept_all().count(), 1000);
        assert!(peers.using.unfolded <= peers.using.met + 9, "{:?}", peers.using);
    }

    #[test]
    fn schemes_with_credits_fold_nobody() {
        let mut peers = peers(Scheme::Static { piggyback: true });
        (0..100).for_each(|index| peers.insert(index, at_rest(0, None, false)));
        assert_eq!(peers.kept_all().count(), 100);
    }
}
