//! Unexpected messages: what has arrived before its receive, in order of arrival.
//!
//! The payload is the driver's, named by [`MessageId`]; here are the envelopes, at most [`ENVELOPE_BYTES`](crate::ENVELOPE_BYTES) each.
//!
//! *Search.* A pattern is tried on the first [`LINEAR_SEARCH`] messages of its space. If none of them is it, the space gets an
//! [`Index`] for the pattern's selector (with or without a sender, and the ignore mask), and from then on such a pattern
//! costs a look-up, however many messages wait: those that match stand in a queue of their own, the oldest first. An
//! index is built once, in one pass, kept up by every message that comes or goes, and dropped when only a few are left.
//!
//! *Bound.* A space has at most [`MAX_INDEXES`] of them; that is what the bytes of a message pay for. A program that uses more selectors
//! than that walks its queue in turn with the pass that builds an index in place of the least used one: each search
//! looks at every message once at the worst, and all of them together at most five quarters of that.

mod entry;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::index::{Index, Selector};
use super::slab::{Link, Slab};
use crate::action::Envelope;
use crate::event::{MessageId, Pattern, Peer, Transfer};
use crate::packet::Space;
use entry::{Entry, WIDE_BYTES, Wide};

/// Bound: what the queue takes whatever is in it: chunks begun, one of each kind, of which only
/// the pages in use are resident. Unit: bytes.
#[cfg(test)]
const FIXED_BYTES: usize = 512 * 1024;

/// Indexes of a space: two ignore masks, with and without a sender.
const MAX_INDEXES: usize = 4;
/// Messages a search looks at before it turns to an index.
const LINEAR_SEARCH: usize = 32;
/// With so few messages left the indexes go.
const MIN_INDEXED: u32 = 8;
/// Messages walked past for want of an index, for each message waiting, that pay for another index.
const WALKED_BEFORE_EXCHANGE: u64 = 4;

/// What there is of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// All of it is kept.
    Whole,
    /// The first `bytes` are kept, the rest is arriving.
    Arriving { bytes: u64 },
    /// It is with the sender.
    WithSender { transfer: Transfer, address: u64 },
}

/// An unexpected message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unexpected {
    pub space: Space,
    pub envelope: Envelope,
    pub payload: Payload,
    /// The sender's transfer that waits for the match.
    pub acknowledge: Option<Transfer>,
    /// A peek has taken it out of the lists.
    pub claimed: bool,
    /// A peek that reports only what it sees twice has seen it.
    pub seen: bool,
}

impl Unexpected {
    /// Payload bytes that the driver keeps for it.
    fn buffered_bytes(&self) -> u64 {
        match self.payload {
            Payload::WithSender { .. } => 0,
            Payload::Whole | Payload::Arriving { .. } => self.envelope.length,
        }
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
    /// Searches that an index answered, to tell the least used one.
    searches: u64,
    /// Messages walked past beyond [`LINEAR_SEARCH`] since the last exchange.
    walked: u64,
    /// Messages walked past in all, for tests that count instead of timing.
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
    /// Only if there were ever any: thousands of endpoints in one process may never see one.
    waiting: Option<Box<Waiting>>,
    count: u32,
    buffered_bytes: u64,
}

/// Those that wait, and those that are claimed.
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
    /// Messages waiting, claimed ones included.
    #[inline]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Payload bytes that the driver keeps for them.
    #[inline]
    pub fn buffered_bytes(&self) -> u64 {
        self.buffered_bytes
    }

    /// What the queue itself occupies: at most [`ENVELOPE_BYTES`](crate::ENVELOPE_BYTES) for each of the most messages that have waited at a
    /// time since it was empty, and at most 512 KiB for chunks that are begun. Empty chunks go back.
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

    /// Adds a message behind all others. It must not be claimed.
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
        self.count += 1;
        self.buffered_bytes += message.buffered_bytes();
        MessageId(slot)
    }

    /// The first message that `pattern` accepts. Changes nothing that can be seen.
    #[inline]
    pub fn find(&mut self, pattern: &Pattern) -> Option<MessageId> {
        // Most receives are posted before their message is there.
        if self.count == 0 { None } else { self.waiting.as_deref_mut()?.search(pattern) }
    }

    /// A message by name, if there is one.
    pub fn get(&self, message: MessageId) -> Option<Unexpected> {
        let Waiting { entries, wide, .. } = self.waiting.as_deref()?;
        Some(entries.get(message.0)?.unpack(message.0, wide))
    }

    /// Changes what is known of a message: its payload, what is acknowledged, whether it was seen.
    ///
    /// # Panics
    /// If the change touches what it is found by.
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
            "{before:?} cannot become {after:?}: it is found by what would change"
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

    /// Takes a message out of the lists and keeps it for whoever claimed it.
    pub fn claim(&mut self, message: MessageId) {
        let slot = message.0;
        let claimed = Unexpected { claimed: true, ..self.get(message).expect("claimed messages exist") };
        let waiting = self.waiting();
        waiting.unlink(slot, claimed.space);
        if waiting.wide.get_mut(&slot).map(|message| *message = claimed).is_none() {
            *waiting.entry(slot) = Entry::pack(&claimed, Link::NONE, Link::NONE);
        }
    }

    /// Takes a message out altogether.
    pub fn remove(&mut self, message: MessageId) -> Unexpected {
        let removed = self.get(message).expect("removed messages exist");
        let waiting = self.waiting();
        if !removed.claimed {
            waiting.unlink(message.0, removed.space);
        }
        if waiting.entries.remove(message.0).is_wide() {
            waiting.wide.remove(&message.0);
        }
        self.count -= 1;
        self.buffered_bytes -= removed.buffered_bytes();
        removed
    }

    /// Takes out the first message that `pattern` accepts, if it is kept whole and needs no acknowledgement. `None`: nothing that can be
    /// seen has changed.
    pub fn take_whole(&mut self, pattern: &Pattern) -> Option<(MessageId, Envelope)> {
        let waiting = self.waiting.as_deref_mut()?;
        let message = waiting.search(pattern)?;
        let envelope = waiting.entries.get(message.0).expect("found").plain_whole()?;
        waiting.unlink(message.0, pattern.space);
        waiting.entries.remove(message.0);
        self.count -= 1;
        self.buffered_bytes -= envelope.length;
        Some((message, envelope))
    }

    /// The messages of `from` whose payload will not come any more, if it is gone: neither claimed nor whole. In order
    /// of arrival within each space. Cost: a look at every message, once for each peer that is lost.
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
                return self.look_up(pattern, selector).expect("an index was made").map(MessageId);
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

    /// What an index says, if there is one for the selector.
    #[inline]
    fn look_up(&mut self, pattern: &Pattern, selector: Selector) -> Option<Option<u32>> {
        let listed = &mut self.spaces[space_index(pattern.space)];
        let used = listed.indexes.iter_mut().find(|used| used.index.selector() == selector)?;
        listed.searches += 1;
        used.search = listed.searches;
        let wanted = selector.wanted(pattern);
        Some(used.index.first(wanted, |slot| key(&self.entries, &self.wide, selector, slot)))
    }

    /// Makes an index, if one more may be had or one may be exchanged.
    #[cold]
    fn index(&mut self, space: Space, selector: Selector) -> bool {
        let listed = &mut self.spaces[space_index(space)];
        if listed.indexes.len() == MAX_INDEXES {
            if listed.walked < WALKED_BEFORE_EXCHANGE * u64::from(listed.count) {
                return false;
            }
            let least_used = (0..MAX_INDEXES).min_by_key(|&number| listed.indexes[number].search);
            listed.indexes.swap_remove(least_used.expect("there are some"));
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
