//! Unexpected messages: messages that arrived before their receive, in order of arrival.
//!
//! The driver stores the payload under a [`MessageId`]. This file has the envelopes, also of messages that a peek has
//! claimed: at most [`ENVELOPE_BYTES`](crate::ENVELOPE_BYTES) each.
//!
//! *Search.* A search first compares the first [`LINEAR_SEARCH`] messages of the space. If none matches, the space gets
//! an [`Index`] for the pattern's selector (with or without a sender, and the ignore mask). From then on such a pattern
//! costs one look-up: matching messages form their own queue, the oldest first. An index is built in one pass, updated
//! by every insertion and removal, and dropped when few messages are left.
//!
//! *Bound.* A space has at most [`MAX_INDEXES`] indexes, which the memory bound of a message includes. A program with
//! more selectors alternates between searching in order and replacing the least used index. Each search visits every
//! message at most once. On average replacements add at most a quarter to that.

mod entry;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::index::{Index, Selector};
use super::slab::{Link, Slab};
use crate::action::Envelope;
use crate::event::{MessageId, Pattern, Peer, Transfer};
use crate::packet::{RemoteAddress, Space};
use entry::{Entry, WIDE_BYTES, Wide};

/// Bound on the fixed memory of the queue: one started chunk of each kind. Only used pages are resident. Unit: bytes.
#[cfg(test)]
const FIXED_BYTES: usize = 512 * 1024;

/// Maximum number of indexes of a space: two ignore masks, with and without a sender.
const MAX_INDEXES: usize = 4;
/// Messages that a search visits before it uses an index.
const LINEAR_SEARCH: usize = 32;
/// Down to this number of messages the indexes are dropped.
const MIN_INDEXED: u32 = 8;
/// Visits per queued message, for want of an index, that justify a replacement.
const WALKED_BEFORE_EXCHANGE: u64 = 4;

/// The place of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// The unexpected buffer has all of it.
    Whole,
    /// The unexpected buffer has the first `bytes` bytes; the rest is arriving.
    Arriving { bytes: u64 },
    /// The sender has it (rendezvous).
    WithSender { transfer: Transfer, address: RemoteAddress },
}

/// An unexpected message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unexpected {
    pub space: Space,
    pub envelope: Envelope,
    pub payload: Payload,
    /// The sender's transfer that waits for the match.
    pub acknowledge: Option<Transfer>,
    /// A peek has claimed it and removed it from the lists.
    pub claimed: bool,
    /// A `LeaveUntilSeenTwice` peek has seen it once.
    pub seen: bool,
}

impl Unexpected {
    /// A message that no peek has seen.
    pub fn new(
        space: Space,
        envelope: Envelope,
        payload: Payload,
        acknowledge: Option<Transfer>,
    ) -> Unexpected {
        Unexpected { space, envelope, payload, acknowledge, claimed: false, seen: false }
    }

    /// Whether it has an unexpected buffer, unless it is empty.
    #[inline]
    pub fn is_buffered(&self) -> bool {
        !matches!(self.payload, Payload::WithSender { .. })
    }

    /// Payload bytes in its unexpected buffer.
    fn buffered_bytes(&self) -> u64 {
        if self.is_buffered() { self.envelope.length } else { 0 }
    }
}

/// Chunks of nine pages.
type Entries = Slab<Entry, 1024>;

/// An index, and when a search last used it.
#[derive(Clone, Debug)]
struct UsedIndex {
    index: Index,
    search: u64,
}

/// The messages of a space that can be found, in order of arrival.
#[derive(Clone, Debug)]
struct SpaceList {
    first: Link,
    last: Link,
    count: u32,
    /// At most [`MAX_INDEXES`].
    indexes: Vec<UsedIndex>,
    /// Searches that an index has answered, to find the least used index.
    searches: u64,
    /// Messages visited beyond [`LINEAR_SEARCH`] since the last replacement.
    walked: u64,
    /// Messages visited in all, for tests that count instead of timing.
    #[cfg(test)]
    visits: u64,
}

impl Default for SpaceList {
    fn default() -> SpaceList {
        SpaceList {
            first: Link::NONE,
            last: Link::NONE,
            count: 0,
            indexes: Vec::new(),
            searches: 0,
            walked: 0,
            #[cfg(test)]
            visits: 0,
        }
    }
}

/// All unexpected messages of an endpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnexpectedQueue {
    /// Allocated with the first message: thousands of endpoints in one process may never have one.
    waiting: Option<Box<Waiting>>,
    /// Number of messages here, and one for each peer that holds others.
    places: u32,
    /// Peers that hold messages for us. A receive must look here while there is one.
    holders: u32,
    buffered_bytes: u64,
}

/// Queued and claimed messages.
#[derive(Clone, Debug, Default)]
struct Waiting {
    entries: Entries,
    wide: Wide,
    spaces: [SpaceList; 2],
}

fn space_index(space: Space) -> usize {
    match space {
        Space::Untagged => 0,
        Space::Tagged => 1,
    }
}

impl UnexpectedQueue {
    /// Number of messages, with claimed ones.
    #[inline]
    pub fn count(&self) -> u32 {
        self.places - self.holders
    }

    /// Whether no message is here and no peer holds any.
    #[inline(always)]
    pub fn is_bare(&self) -> bool {
        self.places == 0
    }

    /// One more peer holds messages for us.
    pub fn add_holder(&mut self) {
        (self.places, self.holders) = (self.places + 1, self.holders + 1);
    }

    /// One peer fewer holds messages for us.
    pub fn remove_holder(&mut self) {
        (self.places, self.holders) = (self.places - 1, self.holders - 1);
    }

    /// Payload bytes in unexpected buffers.
    #[inline]
    pub fn buffered_bytes(&self) -> u64 {
        self.buffered_bytes
    }

    /// Memory of the queue: at most [`ENVELOPE_BYTES`](crate::ENVELOPE_BYTES) for each message of the peak since it was
    /// empty, and 512 KiB for started chunks. Empty chunks are freed. Unit: bytes.
    pub fn bytes(&self) -> usize {
        let indexes = |listed: &SpaceList| -> usize {
            let table = listed.indexes.capacity() * size_of::<UsedIndex>();
            table + listed.indexes.iter().map(|used| used.index.bytes()).sum::<usize>()
        };
        let waiting = |waiting: &Waiting| {
            size_of::<Waiting>()
                + waiting.entries.bytes()
                + waiting.wide.len() * WIDE_BYTES
                + waiting.spaces.iter().map(indexes).sum::<usize>()
        };
        size_of::<Self>() + self.waiting.as_deref().map_or(0, waiting)
    }

    /// Appends a message. It must not be claimed.
    pub fn push(&mut self, message: Unexpected) -> MessageId {
        let Waiting { entries, wide, spaces } = &mut **self.waiting.get_or_insert_default();
        let listed = &mut spaces[space_index(message.space)];
        let entry = Entry::pack(&message, Link::NONE, listed.last);
        let is_wide = entry.is_wide();
        let slot = entries.insert(entry);
        if is_wide {
            wide.insert(slot, message);
        }
        match listed.last.slot() {
            None => listed.first = Link::to(slot),
            Some(last) => entries.get_mut(last).expect("listed messages exist").next = Link::to(slot),
        }
        listed.last = Link::to(slot);
        listed.count += 1;
        for used in &mut listed.indexes {
            let selector = used.index.selector();
            used.index.append(slot, |slot| key(entries, wide, selector, slot));
        }
        self.places += 1;
        self.buffered_bytes += message.buffered_bytes();
        MessageId(slot)
    }

    /// The first message that `pattern` accepts. Has no visible effect.
    #[inline]
    pub fn find(&mut self, pattern: &Pattern) -> Option<MessageId> {
        // Most receives are posted before their message arrives.
        if self.places == 0 { None } else { self.waiting.as_deref_mut()?.search(pattern) }
    }

    /// The message of this name, if it exists.
    pub fn get(&self, message: MessageId) -> Option<Unexpected> {
        let Waiting { entries, wide, .. } = self.waiting.as_deref()?;
        Some(entries.get(message.0)?.unpack(message.0, wide))
    }

    /// Changes the payload state, the acknowledgement or the seen flag of a message.
    ///
    /// # Panics
    /// If the change affects matching.
    pub fn edit<R>(&mut self, message: MessageId, change: impl FnOnce(&mut Unexpected) -> R) -> Option<R> {
        let slot = message.0;
        let Waiting { entries, wide, .. } = self.waiting.as_deref_mut()?;
        let entry = entries.get_mut(slot)?;
        let before = entry.unpack(slot, wide);
        let mut after = before;
        let result = change(&mut after);
        assert!(
            (before.space, before.claimed) == (after.space, after.claimed)
                && (before.envelope.from, before.envelope.tag) == (after.envelope.from, after.envelope.tag),
            "{before:?} cannot become {after:?}: the change affects matching"
        );
        if entry.is_wide() {
            wide.remove(&slot);
        }
        *entry = Entry::pack(&after, entry.next, entry.previous);
        if entry.is_wide() {
            wide.insert(slot, after);
        }
        self.buffered_bytes = self.buffered_bytes - before.buffered_bytes() + after.buffered_bytes();
        Some(result)
    }

    /// Removes a message from the lists and keeps it for its claimer.
    pub fn claim(&mut self, message: MessageId) {
        let slot = message.0;
        let claimed = Unexpected { claimed: true, ..self.get(message).expect("claimed messages exist") };
        let waiting = self.waiting();
        waiting.unlink(slot, claimed.space);
        if waiting.wide.get_mut(&slot).map(|message| *message = claimed).is_none() {
            *waiting.entry(slot) = Entry::pack(&claimed, Link::NONE, Link::NONE);
        }
    }

    /// Removes a message.
    pub fn remove(&mut self, message: MessageId) -> Unexpected {
        let removed = self.get(message).expect("removed messages exist");
        let waiting = self.waiting();
        if !removed.claimed {
            waiting.unlink(message.0, removed.space);
        }
        if waiting.entries.remove(message.0).is_wide() {
            waiting.wide.remove(&message.0);
        }
        self.places -= 1;
        self.buffered_bytes -= removed.buffered_bytes();
        removed
    }

    /// Removes the first message that `pattern` accepts, if it is buffered whole and needs no acknowledgement. `None`:
    /// no visible change.
    pub fn take_whole(&mut self, pattern: &Pattern) -> Option<(MessageId, Envelope)> {
        let waiting = self.waiting.as_deref_mut()?;
        let message = waiting.search(pattern)?;
        let envelope = waiting.entries.get(message.0).expect("found").plain_whole()?;
        waiting.unlink(message.0, pattern.space);
        waiting.entries.remove(message.0);
        self.places -= 1;
        self.buffered_bytes -= envelope.length;
        Some((message, envelope))
    }

    /// The messages of a lost peer that will not complete: neither claimed nor whole. In order of arrival within each
    /// space. Cost: visits every message, once per lost peer.
    pub fn incomplete_from(&self, from: Peer) -> Vec<MessageId> {
        let mut incomplete = Vec::new();
        let Some(Waiting { entries, wide, spaces }) = self.waiting.as_deref() else { return incomplete };
        for listed in spaces {
            let mut link = listed.first;
            while let Some(slot) = link.slot() {
                let entry = entries.get(slot).expect("listed messages exist");
                let message = entry.unpack(slot, wide);
                if message.envelope.from == from && message.payload != Payload::Whole {
                    incomplete.push(MessageId(slot));
                }
                link = entry.next;
            }
        }
        incomplete
    }

    fn waiting(&mut self) -> &mut Waiting {
        self.waiting.as_deref_mut().expect("a message waits")
    }
}

impl Waiting {
    /// The first message that `pattern` accepts.
    fn search(&mut self, pattern: &Pattern) -> Option<MessageId> {
        let selector = Selector::of(pattern);
        if let Some(answer) = self.look_up(pattern, selector) {
            return answer.map(MessageId);
        }
        let listed = &mut self.spaces[space_index(pattern.space)];
        let mut link = listed.first;
        let mut walked = 0;
        while let Some(slot) = link.slot() {
            if walked == LINEAR_SEARCH && self.index(pattern.space, selector) {
                return self.look_up(pattern, selector).expect("the index was built").map(MessageId);
            }
            let entry = self.entries.get(slot).expect("listed messages exist");
            walked += 1;
            if (entry.tag() | pattern.ignore) == (pattern.tag | pattern.ignore)
                && pattern.from.is_none_or(|peer| peer == entry.from(slot, &self.wide))
            {
                break;
            }
            link = entry.next;
        }
        let listed = &mut self.spaces[space_index(pattern.space)];
        listed.walked += walked.saturating_sub(LINEAR_SEARCH) as u64;
        #[cfg(test)]
        {
            listed.visits += walked as u64;
        }
        link.slot().map(MessageId)
    }

    /// The result of the selector's index, if there is one.
    #[inline]
    fn look_up(&mut self, pattern: &Pattern, selector: Selector) -> Option<Option<u32>> {
        let listed = &mut self.spaces[space_index(pattern.space)];
        let used = listed.indexes.iter_mut().find(|used| used.index.selector() == selector)?;
        listed.searches += 1;
        used.search = listed.searches;
        let wanted = selector.wanted(pattern);
        Some(used.index.first(wanted, |slot| key(&self.entries, &self.wide, selector, slot)))
    }

    /// Builds an index if one more is allowed or one can be replaced. Returns whether it did.
    #[cold]
    fn index(&mut self, space: Space, selector: Selector) -> bool {
        let listed = &mut self.spaces[space_index(space)];
        if listed.indexes.len() == MAX_INDEXES {
            if listed.walked < WALKED_BEFORE_EXCHANGE * u64::from(listed.count) {
                return false;
            }
            let least_used = (0..MAX_INDEXES).min_by_key(|&number| listed.indexes[number].search);
            listed.indexes.swap_remove(least_used.expect("there are indexes"));
        }
        listed.walked = 0;
        let mut index = Index::new(selector);
        let mut link = listed.first;
        while let Some(slot) = link.slot() {
            index.append(slot, |slot| key(&self.entries, &self.wide, selector, slot));
            link = self.entries.get(slot).expect("listed messages exist").next;
        }
        listed.indexes.push(UsedIndex { index, search: listed.searches });
        true
    }

    fn unlink(&mut self, slot: u32, space: Space) {
        let listed = &mut self.spaces[space_index(space)];
        let Entry { next, previous, .. } = *self.entries.get(slot).expect("listed messages exist");
        for used in &mut listed.indexes {
            let selector = used.index.selector();
            used.index.unlink(slot, |slot| key(&self.entries, &self.wide, selector, slot));
        }
        match previous.slot() {
            None => listed.first = next,
            Some(previous) => self.entries.get_mut(previous).expect("listed messages exist").next = next,
        }
        match next.slot() {
            None => listed.last = previous,
            Some(next) => self.entries.get_mut(next).expect("listed messages exist").previous = previous,
        }
        listed.count -= 1;
        if listed.count <= MIN_INDEXED && !listed.indexes.is_empty() {
            listed.indexes = Vec::new();
        }
    }

    fn entry(&mut self, slot: u32) -> &mut Entry {
        self.entries.get_mut(slot).expect("listed messages exist")
    }
}

#[inline]
fn key(entries: &Entries, wide: &Wide, selector: Selector, slot: u32) -> super::index::Key {
    let entry = entries.get(slot).expect("indexed messages exist");
    selector.key(entry.from(slot, wide), entry.tag())
}
