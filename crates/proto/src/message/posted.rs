//! Posted receives, in MPI's order: of all receives that accept a message, the one posted first gets it.
//!
//! Directed receives stand in a queue per peer, the others in one queue; a number given at posting says which of two
//! candidates is older. A message looks at the queue of its sender and at the open one, never at those of others.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::event::{Pattern, Peer, Request};
use crate::packet::Space;

/// A receive that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    order: u64,
    pub request: Request,
    pub pattern: Pattern,
    pub capacity_bytes: u64,
    /// Index in the table of multi-receive buffers.
    pub multi: Option<u32>,
}

#[derive(Clone, Debug, Default)]
struct SpaceQueues {
    directed: Vec<VecDeque<Posted>>,
    open: VecDeque<Posted>,
}

/// All posted receives of an endpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct PostedQueue {
    untagged: SpaceQueues,
    tagged: SpaceQueues,
    next_order: u64,
}

/// Where a posted receive stands, valid until the queue changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    space: Space,
    from: Option<Peer>,
    index: usize,
}

impl PostedQueue {
    pub fn post(&mut self, request: Request, pattern: Pattern, capacity_bytes: u64, multi: Option<u32>) {
        let order = self.next_order;
        self.next_order += 1;
        let queues = self.space(pattern.space);
        let queue = match pattern.from {
            None => &mut queues.open,
            Some(Peer(peer)) => {
                if queues.directed.len() <= peer as usize {
                    queues.directed.resize_with(peer as usize + 1, VecDeque::new);
                }
                &mut queues.directed[peer as usize]
            }
        };
        queue.push_back(Posted { order, request, pattern, capacity_bytes, multi });
    }

    /// The oldest receive that accepts a message from `from` with `tag`. It stays posted.
    #[inline]
    pub fn find(&self, space: Space, from: Peer, tag: u64) -> Option<(Place, Posted)> {
        let queues = match space {
            Space::Untagged => &self.untagged,
            Space::Tagged => &self.tagged,
        };
        let first = |queue: &VecDeque<Posted>| {
            queue
                .iter()
                .enumerate()
                .find(|(_, posted)| posted.pattern.accepts(from, tag))
                .map(|(i, p)| (i, *p))
        };
        let directed = queues.directed.get(from.0 as usize).and_then(first);
        let open = first(&queues.open);
        let (index, posted) = match (directed, open) {
            (Some(directed), Some(open)) if open.1.order < directed.1.order => open,
            (Some(directed), _) => directed,
            (None, open) => open?,
        };
        Some((Place { space, from: posted.pattern.from, index }, posted))
    }

    /// Takes out the receive at a place that `find` has just given.
    #[inline]
    pub fn remove(&mut self, place: Place) {
        let queues = self.space(place.space);
        let queue = match place.from {
            None => &mut queues.open,
            Some(Peer(peer)) => &mut queues.directed[peer as usize],
        };
        queue.remove(place.index);
    }

    /// Takes out the receive of `request`, wherever it stands.
    pub fn remove_request(&mut self, request: Request) -> Option<Posted> {
        self.queues().find_map(|queue| {
            let index = queue.iter().position(|posted| posted.request == request)?;
            queue.remove(index)
        })
    }

    /// Takes out all directed receives from `peer`, and, if `open_too`, those from anybody.
    pub fn remove_waiting_for(&mut self, peer: Peer, open_too: bool) -> Vec<Posted> {
        let mut removed = Vec::new();
        for space in [Space::Untagged, Space::Tagged] {
            let queues = self.space(space);
            if let Some(queue) = queues.directed.get_mut(peer.0 as usize) {
                removed.extend(queue.drain(..));
            }
            if open_too {
                removed.extend(queues.open.drain(..));
            }
        }
        removed.sort_by_key(|posted| posted.order);
        removed
    }

    /// The peers that some directed receive waits for.
    pub fn awaited_peers(&self) -> impl Iterator<Item = Peer> {
        [&self.untagged, &self.tagged].into_iter().flat_map(|queues| {
            queues.directed.iter().enumerate().filter(|(_, q)| !q.is_empty()).map(|(i, _)| Peer(i as u32))
        })
    }

    /// Whether a receive waits that any peer could satisfy.
    pub fn awaits_anybody(&self) -> bool {
        !self.untagged.open.is_empty() || !self.tagged.open.is_empty()
    }

    fn space(&mut self, space: Space) -> &mut SpaceQueues {
        match space {
            Space::Untagged => &mut self.untagged,
            Space::Tagged => &mut self.tagged,
        }
    }

    fn queues(&mut self) -> impl Iterator<Item = &mut VecDeque<Posted>> {
        [&mut self.untagged, &mut self.tagged]
            .into_iter()
            .flat_map(|queues| queues.directed.iter_mut().chain(core::iter::once(&mut queues.open)))
    }
}
