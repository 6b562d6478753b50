//! Unexpected messages: what has arrived before its receive, in order of arrival.
//!
//! Each message stands in two lists, one of its space and one of its space and sender, so that a directed receive
//! walks only its sender's messages. The payload is the driver's, named by [`MessageId`]; here are the envelopes.

use alloc::vec::Vec;

use crate::action::Envelope;
use crate::event::{MessageId, Pattern, Peer, Transfer};
use crate::packet::Space;

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
#[derive(Clone, Copy, Debug)]
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

const NONE: u32 = u32::MAX;
const BY_SPACE: usize = 0;
const BY_SENDER: usize = 1;

#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
}

impl Default for Ends {
    fn default() -> Ends {
        Ends { first: NONE, last: NONE }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    message: Unexpected,
    next: [u32; 2],
    previous: [u32; 2],
}

/// All unexpected messages of an endpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnexpectedQueue {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    by_space: [Ends; 2],
    by_sender: [Vec<Ends>; 2],
    count: u32,
    kept_bytes: u64,
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
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// Adds a message behind all others.
    pub fn push(&mut self, message: Unexpected) -> MessageId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        self.entries[index as usize] = Some(Entry { message, next: [NONE; 2], previous: [NONE; 2] });
        for list in [BY_SPACE, BY_SENDER] {
            let ends = self.ends(list, message.space, message.envelope.from);
            let last = core::mem::replace(&mut ends.last, index);
            if last == NONE {
                ends.first = index;
            } else {
                self.entry(last).next[list] = index;
            }
            self.entry(index).previous[list] = last;
        }
        self.count += 1;
        self.kept_bytes += Self::kept(&message);
        MessageId(index)
    }

    /// The first message that `pattern` accepts.
    pub fn find(&self, pattern: &Pattern) -> Option<MessageId> {
        let (list, ends) = match pattern.from {
            None => (BY_SPACE, self.by_space[space_index(pattern.space)]),
            Some(Peer(peer)) => (BY_SENDER, *self.by_sender[space_index(pattern.space)].get(peer as usize)?),
        };
        let mut index = ends.first;
        while index != NONE {
            let entry = self.entries[index as usize].as_ref().expect("listed messages exist");
            if pattern.accepts(entry.message.envelope.from, entry.message.envelope.tag) {
                return Some(MessageId(index));
            }
            index = entry.next[list];
        }
        None
    }

    /// A message by name, if there is one.
    pub fn get(&self, message: MessageId) -> Option<&Unexpected> {
        self.entries.get(message.0 as usize)?.as_ref().map(|entry| &entry.message)
    }

    /// A message that is being received, to note its progress.
    pub fn get_mut(&mut self, message: MessageId) -> Option<&mut Unexpected> {
        self.entries.get_mut(message.0 as usize)?.as_mut().map(|entry| &mut entry.message)
    }

    /// Takes a message out of the lists and keeps it for whoever claimed it.
    pub fn claim(&mut self, message: MessageId) {
        self.unlink(message.0);
        self.entry(message.0).message.claimed = true;
    }

    /// Takes a message out altogether.
    pub fn remove(&mut self, message: MessageId) -> Unexpected {
        if !self.entry(message.0).message.claimed {
            self.unlink(message.0);
        }
        let entry = self.entries[message.0 as usize].take().expect("removed messages exist");
        self.free.push(message.0);
        self.count -= 1;
        self.kept_bytes -= Self::kept(&entry.message);
        entry.message
    }

    /// The messages of `from` whose payload will not come any more, if it is gone: neither claimed nor whole.
    pub fn incomplete_from(&self, from: Peer) -> Vec<MessageId> {
        let incomplete = |entry: &Entry| {
            let message = &entry.message;
            message.envelope.from == from && message.payload != Payload::Whole && !message.claimed
        };
        self.entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.as_ref().is_some_and(incomplete))
            .map(|(index, _)| MessageId(index as u32))
            .collect()
    }

    fn kept(message: &Unexpected) -> u64 {
        match message.payload {
            Payload::WithSender { .. } => 0,
            Payload::Whole | Payload::Arriving { .. } => message.envelope.length,
        }
    }

    fn unlink(&mut self, index: u32) {
        let entry = *self.entry(index);
        for list in [BY_SPACE, BY_SENDER] {
            let (previous, next) = (entry.previous[list], entry.next[list]);
            if previous == NONE {
                self.ends(list, entry.message.space, entry.message.envelope.from).first = next;
            } else {
                self.entry(previous).next[list] = next;
            }
            if next == NONE {
                self.ends(list, entry.message.space, entry.message.envelope.from).last = previous;
            } else {
                self.entry(next).previous[list] = previous;
            }
        }
    }

    fn entry(&mut self, index: u32) -> &mut Entry {
        self.entries[index as usize].as_mut().expect("listed messages exist")
    }

    fn ends(&mut self, list: usize, space: Space, from: Peer) -> &mut Ends {
        if list == BY_SPACE {
            return &mut self.by_space[space_index(space)];
        }
        let senders = &mut self.by_sender[space_index(space)];
        if senders.len() <= from.0 as usize {
            senders.resize(from.0 as usize + 1, Ends::default());
        }
        &mut senders[from.0 as usize]
    }
}
