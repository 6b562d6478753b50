//! The receiver's record of holders: peers that hold messages whose envelopes we have dropped.
//!
//! A receive that finds nothing kept is asked for at each holder that it accepts, in the order of posting. Until a holder
//! has answered, the receive is *undecided* with it: a message that arrives from this holder must not match it. This
//! file does not know packets or messages. docs/explanation/receiver-memory.md explains holding.
//!
//! Worked exchange: B drops messages 3, 4 and 5 of A, and posts two receives.
//! ```text
//! begin(A, 3), note_dropped twice       A: 3 dropped from number 3 on
//! add(receive 0), add(receive 1)        both wait for A
//! next(A) = receive 0                   B -> A  ask        A -> B  offer 4      took(A): 2 dropped
//! next(A) = receive 1                   B -> A  ask        A -> B  no match     decided(A, receive 1)
//! ```

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::hold_mutant::SelectedMutant;
use crate::event::{Pattern, PeekThen, Peer, Request};
use crate::message::posted::{PostOrder, PostedQueue};

/// A peer that holds messages which we have dropped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    /// Number of its first dropped message, or lower. We keep or have taken all earlier ones.
    pub first: u32,
    /// Dropped messages that we have not taken.
    pub dropped: u32,
    /// The number after that of the last message that has arrived.
    pub next: u32,
    /// All receives and peeks posted before are decided.
    pub decided: PostOrder,
    /// The request that it has not answered.
    pub request: Option<HolderRequest>,
}

/// Our request to a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HolderRequest {
    /// The first match of the receive or peek at `order`. An offer of a message from number `next` on does not count:
    /// the message has arrived in the meantime, and an older receive may have taken it.
    Ask { order: PostOrder, next: u32 },
    /// Announce this many messages again.
    Resume(u32),
}

/// A receive or a peek that waits for answers of holders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub order: PostOrder,
    pub request: Request,
    pub pattern: Pattern,
    /// `None`: a receive.
    pub peek: Option<PeekThen>,
    /// Holders that have not decided it.
    waits_for: u32,
    /// A peek has ended. A receive has ended when it is not posted any more.
    ended: bool,
    /// A holder has offered a message that this peek sees for the first time.
    offered: bool,
}

impl Asked {
    fn accepts(&self, holder: Peer) -> bool {
        self.pattern.from.is_none_or(|from| from == holder)
    }

    fn is_alive(&self, posted: &mut PostedQueue) -> bool {
        match self.peek {
            Some(_) => !self.ended,
            None => posted.has(self.pattern.space, self.request, self.order),
        }
    }

    /// Whether the first match of one at a holder is the first match of the other.
    fn is_same_question(&self, other: &Asked) -> bool {
        let key = |asked: &Asked| (asked.pattern.space, asked.pattern.tag, asked.pattern.ignore);
        key(self) == key(other)
            && self.looks() == other.looks()
            && self.peek.is_some() == other.peek.is_some()
    }

    /// Whether a holder has offered a message that this peek sees for the first time.
    pub fn was_offered(&self) -> bool {
        self.offered
    }

    /// Whether the holder has to note that the message was seen.
    pub fn looks(&self) -> bool {
        self.peek == Some(PeekThen::LeaveUntilSeenTwice)
    }
}

/// All holders, and what they are asked for. Most endpoints never have one, so the lists are allocated with the first.
#[derive(Clone, Debug, Default)]
pub(super) struct Holders {
    lists: Option<Box<Lists>>,
    pub mutant: SelectedMutant,
}

/// The lists of an endpoint with holders.
#[derive(Clone, Debug, Default)]
struct Lists {
    holders: BTreeMap<Peer, Holder>,
    /// In the order of posting.
    asked: VecDeque<Asked>,
    /// Number of entries at which ended ones are removed.
    compact_at: usize,
    /// The holder that was last asked to announce messages again.
    last_resumed: Option<Peer>,
}

impl Lists {
    fn place(&self, order: PostOrder) -> usize {
        self.asked.partition_point(|asked| asked.order < order)
    }

    /// The receive or peek of this place, also if it has ended.
    fn at(&mut self, order: PostOrder) -> Option<&mut Asked> {
        let place = self.place(order);
        self.asked.get_mut(place).filter(|asked| asked.order == order)
    }
}

impl Holders {
    /// Number of entries below which ended ones may stay.
    const FEW: usize = 64;

    #[inline]
    pub fn exist(&self) -> bool {
        self.lists.is_some()
    }

    #[inline]
    pub fn get(&self, peer: Peer) -> Option<&Holder> {
        self.lists.as_deref()?.holders.get(&peer)
    }

    pub fn get_mut(&mut self, peer: Peer) -> Option<&mut Holder> {
        self.lists.as_deref_mut()?.holders.get_mut(&peer)
    }

    /// All holders.
    pub fn peers(&self) -> impl Iterator<Item = Peer> {
        self.lists.as_deref().into_iter().flat_map(|lists| lists.holders.keys().copied())
    }

    /// The holders that a pattern accepts.
    pub fn accepted_by(&self, pattern: &Pattern) -> Vec<Peer> {
        match pattern.from {
            Some(peer) => self.get(peer).map(|_| peer).into_iter().collect(),
            None => self.peers().collect(),
        }
    }

    /// Whether a pattern accepts several holders.
    pub fn are_several(&self, pattern: &Pattern) -> bool {
        pattern.from.is_none() && self.lists.as_deref().is_some_and(|lists| lists.holders.len() > 1)
    }

    /// Whether a receive or peek waits for an answer.
    pub fn is_asking(&self) -> bool {
        self.lists
            .as_deref()
            .is_some_and(|lists| lists.holders.values().any(|holder| holder.request.is_some()))
    }

    /// Memory that it uses. Unit: bytes.
    pub fn bytes(&self) -> usize {
        // A node of the map is between half full and full.
        let list = |lists: &Lists| {
            let holders = 2 * lists.holders.len() * size_of::<(Peer, Holder)>();
            size_of::<Lists>() + holders + lists.asked.capacity() * size_of::<Asked>()
        };
        self.lists.as_deref().map_or(0, list)
    }

    /// `peer` becomes a holder: we have dropped its message `first`. All receives up to now are decided.
    pub fn begin(&mut self, peer: Peer, first: u32, decided: PostOrder) {
        let next = first.wrapping_add(1);
        let lists = self.lists.get_or_insert_default();
        lists.holders.insert(peer, Holder { first, dropped: 1, next, decided, request: None });
    }

    /// Adds a receive or a peek that has found nothing.
    pub fn add(
        &mut self,
        (order, request): (PostOrder, Request),
        pattern: Pattern,
        peek: Option<PeekThen>,
        posted: &mut PostedQueue,
    ) {
        let waits_for = self.accepted_by(&pattern).len() as u32;
        let Some(lists) = self.lists.as_deref_mut() else { return };
        if lists.asked.len() >= lists.compact_at.max(Holders::FEW) {
            lists.asked.retain(|asked| asked.waits_for > 0 && asked.is_alive(posted));
            lists.compact_at = 2 * lists.asked.len();
        }
        lists.asked.push_back(Asked {
            order,
            request,
            pattern,
            peek,
            waits_for,
            ended: false,
            offered: false,
        });
    }

    /// The receive or peek of this place, if it has not ended.
    pub fn alive(&mut self, order: PostOrder, posted: &mut PostedQueue) -> Option<Asked> {
        let asked = *self.lists.as_deref_mut()?.at(order)?;
        asked.is_alive(posted).then_some(asked)
    }

    /// The receive or peek that an offer to the question for `order` serves: that one, or if it has ended, the next one
    /// of this holder if its question is the same.
    pub fn served(&mut self, peer: Peer, order: PostOrder, posted: &mut PostedQueue) -> Option<Asked> {
        if let Some(asked) = self.alive(order, posted) {
            return Some(asked);
        }
        let asked = *self.lists.as_deref_mut()?.at(order)?;
        self.next(peer, posted).filter(|next| next.is_same_question(&asked))
    }

    /// The oldest receive or peek that is undecided with a holder. Those that have ended are decided.
    pub fn next(&mut self, peer: Peer, posted: &mut PostedQueue) -> Option<Asked> {
        let Lists { holders, asked, .. } = self.lists.as_deref_mut()?;
        let holder = holders.get_mut(&peer)?;
        let undecided = asked.partition_point(|asked| asked.order < holder.decided);
        for asked in asked.range_mut(undecided..) {
            if asked.accepts(peer) {
                if asked.is_alive(posted) {
                    return Some(*asked);
                }
                asked.waits_for -= 1;
            }
            holder.decided = asked.order + 1;
        }
        None
    }

    /// `peer` has no match for the receive or peek of this place. Returns it if that was its last holder.
    pub fn decide(&mut self, peer: Peer, order: PostOrder) -> Option<Asked> {
        let lists = self.lists.as_deref_mut()?;
        let holder = lists.holders.get_mut(&peer)?;
        if holder.decided > order {
            return None;
        }
        holder.decided = order + 1;
        let asked = lists.at(order)?;
        asked.waits_for -= 1;
        (asked.waits_for == 0).then_some(*asked)
    }

    /// A holder has offered a message that this peek sees for the first time.
    pub fn note_offered(&mut self, order: PostOrder) {
        if let Some(asked) = self.lists.as_deref_mut().and_then(|lists| lists.at(order)) {
            asked.offered = true;
        }
    }

    /// A peek has ended.
    pub fn end_peek(&mut self, order: PostOrder) {
        if let Some(asked) = self.lists.as_deref_mut().and_then(|lists| lists.at(order)) {
            asked.ended = true;
        }
    }

    /// `peer` holds nothing for us any more. Returns it, and the peeks for which it was the last holder.
    pub fn end(&mut self, peer: Peer) -> Option<(Holder, Vec<Asked>)> {
        let lists = self.lists.as_deref_mut()?;
        let holder = lists.holders.remove(&peer)?;
        let mut over = Vec::new();
        let undecided = lists.place(holder.decided);
        for asked in lists.asked.range_mut(undecided..) {
            if asked.accepts(peer) {
                asked.waits_for -= 1;
                if asked.waits_for == 0 && asked.peek.is_some() && !asked.ended {
                    asked.ended = true;
                    over.push(*asked);
                }
            }
        }
        self.lists.take_if(|lists| lists.holders.is_empty());
        Some((holder, over))
    }

    /// The next holder after the last one that was asked to announce messages again.
    pub fn next_in_turn(&self) -> Option<Peer> {
        let idle = |&(_, holder): &(&Peer, &Holder)| holder.request.is_none();
        let Lists { holders, last_resumed, .. } = self.lists.as_deref()?;
        let after = last_resumed.map_or(0, |Peer(last)| last + 1);
        let mut from_there = holders.range(Peer(after)..).filter(idle);
        from_there.next().or_else(|| holders.iter().find(idle)).map(|(&peer, _)| peer)
    }

    /// A holder is asked to announce messages again.
    pub fn note_resumed(&mut self, peer: Peer) {
        if let Some(lists) = &mut self.lists {
            lists.last_resumed = Some(peer);
        }
    }

    /// No receive waits any more: the endpoint closes.
    pub fn end_receives(&mut self) {
        if let Some(lists) = &mut self.lists {
            lists.asked.clear();
        }
    }
}
