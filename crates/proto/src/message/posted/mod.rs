//! Posted receives, matched in MPI's order: of all receives that accept a message, the one posted first gets it.
//!
//! The receives of a space form one list while messages find their receive among the first [`LINEAR_SEARCH`] entries.
//! If a message finds none there, a longer list becomes one [`Index`] per selector in use (with or without a sender,
//! and the ignore mask). A message then asks each index for the oldest receive with its key. It takes the oldest of
//! these by the number given at posting.
//!
//! A cancel in a long list also turns it into indexes, and adds a map from requests to receives.
//!
//! Receives of selectors beyond [`MAX_INDEXES`] are searched in order; no MPI library has so many. A peer without
//! receives uses no memory. This file does not know payloads.

#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use super::index::{Index, Selector};
use super::slab::Slab;
use crate::event::{Pattern, Peer, Request};
use crate::packet::Space;
use crate::table::Number;

/// Receives that a search visits before it uses indexes.
const LINEAR_SEARCH: usize = 16;
/// Down to this number of receives the indexes become a list again.
const MAX_LISTED: usize = 2;
/// Maximum number of indexes.
const MAX_INDEXES: usize = 8;

/// A receive's or a peek's place in the order of posting.
pub(crate) type PostOrder = u64;

/// A posted receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    order: PostOrder,
    pub capacity_bytes: u64,
    /// The pattern in compact form: thousands of receives may be posted.
    tag: u64,
    ignore: u64,
    from: Option<Number>,
    pub request: Request,
    multi: Option<Number>,
    space: Space,
}

impl Posted {
    #[inline]
    pub fn pattern(&self) -> Pattern {
        Pattern { space: self.space, from: self.from(), tag: self.tag, ignore: self.ignore }
    }

    #[inline]
    pub fn order(&self) -> PostOrder {
        self.order
    }

    #[inline]
    pub fn from(&self) -> Option<Peer> {
        self.from.map(|number| Peer(number.get()))
    }

    /// Index in the table of multi-receive buffers.
    #[inline]
    pub fn multi(&self) -> Option<u32> {
        self.multi.map(Number::get)
    }

    #[inline]
    fn accepts(&self, from: Peer, tag: u64) -> bool {
        self.pattern().accepts(from, tag)
    }
}

/// Chunks of twelve pages.
type Entries = Slab<Posted, 1024>;

/// Receives by selector and key.
#[derive(Clone, Debug, Default)]
struct Indexed {
    entries: Entries,
    count: usize,
    indexes: Vec<Index>,
    /// Slots of receives whose selector had no index when they were posted, in the order of posting.
    unindexed: Vec<u32>,
    /// The slots of all receives by request, since the first cancel.
    by_request: Option<BTreeMap<Request, u32>>,
    /// Receives of `unindexed` that removals looked at, for tests that count instead of timing.
    #[cfg(test)]
    looks: u64,
}

#[derive(Clone, Debug, Default)]
struct SpaceQueue {
    /// All receives; empty if they are indexed.
    list: VecDeque<Posted>,
    indexed: Option<Box<Indexed>>,
    /// Number of receives from any source.
    any_source_count: u32,
    /// Receives visited one by one, for tests that count instead of timing.
    #[cfg(test)]
    visits: u64,
}

/// All posted receives of an endpoint.
#[derive(Clone, Debug)]
pub(crate) struct PostedQueue {
    untagged: SpaceQueue,
    tagged: SpaceQueue,
    next_order: u64,
}

/// An empty queue with space for one receive: often there is never a second one.
impl Default for PostedQueue {
    fn default() -> PostedQueue {
        let tagged = SpaceQueue { list: VecDeque::with_capacity(1), ..SpaceQueue::default() };
        PostedQueue { untagged: SpaceQueue::default(), tagged, next_order: 0 }
    }
}

/// The position of a posted receive, valid until the queue changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    space: Space,
    /// Index in the list, or slot.
    index: usize,
}

impl PostedQueue {
    #[inline(always)]
    pub fn post(
        &mut self,
        request: Request,
        pattern: Pattern,
        capacity_bytes: u64,
        multi: Option<u32>,
    ) -> PostOrder {
        let order = self.next_order;
        self.next_order += 1;
        let queue = self.space(pattern.space);
        queue.any_source_count += u32::from(pattern.from.is_none());
        let Pattern { space, from, tag, ignore } = pattern;
        let from = from.map(|peer| Number::of(peer.0));
        let multi = multi.map(Number::of);
        let posted = Posted { order, capacity_bytes, tag, ignore, from, request, multi, space };
        match &mut queue.indexed {
            None => queue.list.push_back(posted),
            Some(indexed) => indexed.add(posted),
        }
        order
    }

    /// Removes all receives.
    pub fn clear(&mut self) {
        *self = PostedQueue { next_order: self.next_order, ..PostedQueue::default() };
    }

    /// The place of the next receive.
    pub fn next_order(&self) -> PostOrder {
        self.next_order
    }

    /// Takes a place in the order, for a peek.
    pub fn take_order(&mut self) -> PostOrder {
        self.next_order += 1;
        self.next_order - 1
    }

    /// Whether the receive `request`, posted at `order`, is still posted.
    pub fn has(&mut self, space: Space, request: Request, order: PostOrder) -> bool {
        let queue = self.space(space);
        if queue.indexed.is_none() {
            return queue.list.binary_search_by_key(&order, |posted| posted.order).is_ok();
        }
        let indexed = queue.index();
        let Some(slot) = indexed.slot_of(request) else { return false };
        indexed.entries.get(slot).is_some_and(|posted| posted.order == order)
    }

    /// The oldest receive that accepts a message from `from` with `tag`. It stays posted.
    #[inline]
    pub fn find(&mut self, space: Space, from: Peer, tag: u64) -> Option<(Place, Posted)> {
        let queue = self.space(space);
        let accepts = |(_, posted): &(usize, &Posted)| posted.accepts(from, tag);
        if let Some((index, posted)) = queue.list.iter().enumerate().take(LINEAR_SEARCH).find(accepts) {
            return Some((Place { space, index }, *posted));
        }
        if queue.indexed.is_none() && queue.list.len() <= LINEAR_SEARCH {
            return None;
        }
        let (slot, posted) = queue.index().find(from, tag)?;
        Some((Place { space, index: slot as usize }, posted))
    }

    /// Removes the receive at a place that `find` has just returned.
    #[inline]
    pub fn remove(&mut self, place: Place) {
        let queue = self.space(place.space);
        let removed = match &mut queue.indexed {
            None => queue.list.remove(place.index).expect("a place that was found"),
            Some(indexed) => indexed.remove(place.index as u32),
        };
        queue.removed(&removed);
    }

    /// As `find`, if the result is a single-message receive near the front of the list: its place, request and
    /// capacity.
    #[inline(always)]
    pub fn find_plain(&self, space: Space, from: Peer, tag: u64) -> Option<(Place, Request, u64)> {
        let queue = match space {
            Space::Untagged => &self.untagged,
            Space::Tagged => &self.tagged,
        };
        let first = queue.list.front()?;
        let (index, posted) = match first.accepts(from, tag) {
            true => (0, first),
            false => queue.find_behind_first(from, tag)?,
        };
        posted.multi.is_none().then_some((Place { space, index }, posted.request, posted.capacity_bytes))
    }

    /// Removes the receive at a place that `find_plain` has just returned.
    #[inline(always)]
    pub fn remove_plain(&mut self, place: Place) {
        let queue = self.space(place.space);
        let from = queue.list.get(place.index).expect("a place that was found").from;
        queue.any_source_count -= u32::from(from.is_none());
        // Most often it is the oldest.
        match place.index {
            0 => drop(queue.list.pop_front()),
            index => drop(queue.list.remove(index)),
        }
    }

    /// The receive at this place of the list.
    #[inline]
    pub fn listed(&self, space: Space, place: usize) -> Option<Request> {
        let queue = match space {
            Space::Untagged => &self.untagged,
            Space::Tagged => &self.tagged,
        };
        queue.list.get(place).map(|posted| posted.request)
    }

    /// Removes the receive of `request`.
    pub fn remove_request(&mut self, request: Request) -> Option<Posted> {
        [&mut self.untagged, &mut self.tagged].into_iter().find_map(|queue| queue.remove_request(request))
    }

    /// Removes all directed receives from `peer` and, if `any_source_too`, those from any source.
    pub fn remove_for_peer(&mut self, peer: Peer, any_source_too: bool) -> Vec<Posted> {
        let waits = |posted: &Posted| posted.from().map_or(any_source_too, |from| from == peer);
        let mut removed = self.untagged.take(waits);
        removed.append(&mut self.tagged.take(waits));
        removed.sort_by_key(|posted| posted.order);
        removed
    }

    /// The sources of all directed receives. Cost: visits every receive.
    pub fn directed_sources(&self) -> impl Iterator<Item = Peer> {
        let mut peers = BTreeSet::new();
        for queue in [&self.untagged, &self.tagged] {
            peers.extend(queue.iter().filter_map(Posted::from));
        }
        peers.into_iter()
    }

    /// Whether a receive from any source is posted.
    pub fn has_any_source_receive(&self) -> bool {
        self.untagged.any_source_count > 0 || self.tagged.any_source_count > 0
    }

    /// Memory of the queue. Unit: bytes.
    pub fn bytes(&self) -> usize {
        let bytes = |queue: &SpaceQueue| {
            let list = queue.list.capacity() * size_of::<Posted>();
            list + queue.indexed.as_ref().map_or(0, |indexed| indexed.bytes())
        };
        size_of::<Self>() + bytes(&self.untagged) + bytes(&self.tagged)
    }

    #[inline]
    fn space(&mut self, space: Space) -> &mut SpaceQueue {
        match space {
            Space::Untagged => &mut self.untagged,
            Space::Tagged => &mut self.tagged,
        }
    }
}

impl SpaceQueue {
    #[inline(never)]
    fn find_behind_first(&self, from: Peer, tag: u64) -> Option<(usize, &Posted)> {
        let mut listed = self.list.iter().enumerate().take(LINEAR_SEARCH).skip(1);
        listed.find(|(_, posted)| posted.accepts(from, tag))
    }

    /// In no particular order.
    fn iter(&self) -> impl Iterator<Item = &Posted> {
        let indexed =
            self.indexed.iter().flat_map(|indexed| indexed.entries.iter().map(|(_, posted)| posted));
        self.list.iter().chain(indexed)
    }

    /// The indexes; builds them from the list if needed.
    #[inline(never)]
    fn index(&mut self) -> &mut Indexed {
        let list = &mut self.list;
        self.indexed.get_or_insert_with(|| {
            let mut indexed = Box::<Indexed>::default();
            core::mem::take(list).into_iter().for_each(|posted| indexed.add(posted));
            indexed
        })
    }

    fn remove_request(&mut self, request: Request) -> Option<Posted> {
        if self.indexed.is_none() && self.list.len() <= LINEAR_SEARCH {
            let place = self.list.iter().position(|posted| posted.request == request)?;
            let removed = self.list.remove(place).expect("a place that was found");
            self.removed(&removed);
            return Some(removed);
        }
        let slot = self.index().slot_of(request)?;
        let removed = self.index().remove(slot);
        self.removed(&removed);
        Some(removed)
    }

    /// Removes the receives that `wanted` accepts, in no particular order.
    fn take(&mut self, wanted: impl Fn(&Posted) -> bool) -> Vec<Posted> {
        let mut taken = Vec::new();
        #[cfg(test)]
        {
            self.visits += self.iter().count() as u64;
        }
        match &mut self.indexed {
            None => self.list.retain(|posted| {
                let take = wanted(posted);
                if take {
                    taken.push(*posted);
                }
                !take
            }),
            Some(indexed) => {
                let slots = indexed.entries.iter().filter(|(_, posted)| wanted(posted));
                let slots: Vec<u32> = slots.map(|(slot, _)| slot).collect();
                taken.extend(slots.into_iter().map(|slot| indexed.remove(slot)));
            }
        }
        for posted in &taken {
            self.removed(posted);
        }
        taken
    }

    /// Updates the counts after a removal.
    #[inline]
    fn removed(&mut self, posted: &Posted) {
        self.any_source_count -= u32::from(posted.from.is_none());
        if self.indexed.as_ref().is_some_and(|indexed| indexed.count <= MAX_LISTED) {
            self.rebuild_list();
        }
    }

    #[cold]
    fn rebuild_list(&mut self) {
        let Some(indexed) = self.indexed.take() else { return };
        let mut left: Vec<Posted> = indexed.entries.iter().map(|(_, posted)| *posted).collect();
        left.sort_by_key(|posted| posted.order);
        self.list = left.into();
    }
}

impl Indexed {
    #[inline(never)]
    fn add(&mut self, posted: Posted) {
        let slot = self.entries.insert(posted);
        self.count += 1;
        if let Some(by_request) = &mut self.by_request {
            by_request.insert(posted.request, slot);
        }
        let selector = Selector::of(&posted.pattern());
        let entries = &self.entries;
        let known = self.indexes.iter_mut().find(|index| index.selector() == selector);
        match known {
            Some(index) => index.append(slot, |slot| key(entries, selector, slot)),
            None => {
                // An empty index is replaced. It has no receives, so the order is safe.
                if self.indexes.len() == MAX_INDEXES {
                    match self.indexes.iter().position(Index::is_empty) {
                        Some(empty) => drop(self.indexes.swap_remove(empty)),
                        None => return self.unindexed.push(slot),
                    }
                }
                let mut index = Index::new(selector);
                index.append(slot, |slot| key(entries, selector, slot));
                self.indexes.push(index);
            }
        }
    }

    #[inline(never)]
    fn find(&self, from: Peer, tag: u64) -> Option<(u32, Posted)> {
        let entries = &self.entries;
        let posted = |slot: u32| *entries.get(slot).expect("indexed receives exist");
        let indexed = self.indexes.iter().filter(|index| !index.is_empty()).filter_map(|index| {
            let selector = index.selector();
            index.first(selector.key(from, tag), |slot| key(entries, selector, slot))
        });
        let unindexed = self.unindexed.iter().copied().find(|&slot| posted(slot).accepts(from, tag));
        indexed.chain(unindexed).map(|slot| (slot, posted(slot))).min_by_key(|(_, posted)| posted.order)
    }

    /// The slot of the receive of `request`.
    #[cold]
    fn slot_of(&mut self, request: Request) -> Option<u32> {
        let entries = &self.entries;
        let build = || entries.iter().map(|(slot, posted)| (posted.request, slot)).collect();
        self.by_request.get_or_insert_with(build).get(&request).copied()
    }

    fn bytes(&self) -> usize {
        // A node of the map is between half full and full.
        let by_request = self.by_request.as_ref().map_or(0, BTreeMap::len) * 2 * size_of::<(Request, u32)>();
        let table = self.indexes.capacity() * size_of::<Index>();
        let indexes = table + self.indexes.iter().map(Index::bytes).sum::<usize>();
        let unindexed = self.unindexed.capacity() * size_of::<u32>();
        size_of::<Self>() + self.entries.bytes() + indexes + unindexed + by_request
    }

    /// Removes the slot from `unindexed`. Returns whether it was there.
    #[cold]
    #[inline(never)]
    fn remove_unindexed(&mut self, slot: u32) -> bool {
        let order = |slot: u32| self.entries.get(slot).expect("unindexed receives exist").order;
        let wanted = order(slot);
        let place = self.unindexed.binary_search_by(|&other| {
            #[cfg(test)]
            {
                self.looks += 1;
            }
            order(other).cmp(&wanted)
        });
        place.map(|place| self.unindexed.remove(place)).is_ok()
    }

    #[inline(never)]
    fn remove(&mut self, slot: u32) -> Posted {
        let selector = Selector::of(&self.entries.get(slot).expect("indexed receives exist").pattern());
        // A selector may have both unindexed receives and an index that was built later.
        if self.unindexed.is_empty() || !self.remove_unindexed(slot) {
            let index = self.indexes.iter_mut().find(|index| index.selector() == selector);
            let entries = &self.entries;
            index.expect("the index of the selector").unlink(slot, |slot| key(entries, selector, slot));
        }
        self.count -= 1;
        let removed = self.entries.remove(slot);
        if let Some(by_request) = &mut self.by_request {
            by_request.remove(&removed.request);
        }
        removed
    }
}

#[inline]
fn key(entries: &Entries, selector: Selector, slot: u32) -> super::index::Key {
    selector.wanted(&entries.get(slot).expect("indexed receives exist").pattern())
}
