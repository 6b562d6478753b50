//! Packets that a machine was told of before their time.
//!
//! In an all-to-all thousands of packets can stand in a mailbox, and each is taken by a step of its own: between two steps of a rank
//! all other ranks do something, so that a rank's tables are out of the caches whenever its turn comes. What a packet from the middle of
//! a message does to a machine nobody else can see or change. So a step that finds several of them tells the machine of all, and
//! notes what it answered; the steps in which they are taken then only look at the notes (`RankState::retrieve_early`). These come at the same
//! times and in the same order as without, so nothing about the world changes: a test compares it with one that is checked, in which
//! this is not done.
//!
//! ```text
//! mailbox   a1 b1 a2 c1 b2 [c] d0 ...       parts of the messages a, b, c; an explicit credit; the begin of another message
//! step      the machine hears of a1 b1 a2 c1 b2; a1 is taken
//! 4 steps   b1, a2, c1, b2 are taken: prices, trace, the network is told
//! step      [c] is taken as ever
//! ```
//! It ends with a packet after which something is to be sent, which is seen to when that packet is taken. Where trains arrive as such (the
//! ideal network) their packets are told by the time at which each arrives, as far as they have.
//!
//! Of messages of one packet a thousand can stand there as well, each of which has to be read from far away, its sender's state too. So a
//! step that finds several reads all of that at once, where one need not wait for the other. What comes of them is the program's business, so
//! where packets carry credits it notes only how many there are. Without credits the machine is told of them too: a receive that it
//! matches was posted before, and none that the program posts meanwhile can come before that. The program hears of it when the packet is taken.

use weir_proto::{Config, Geometry, Peer, Request, Scheme};

use crate::Picoseconds;

/// Bound: so many at a time. All ranks together should fit into a cache.
pub(super) const MAX_PACKETS: usize = 32;
/// Fewer are not worth it.
pub(super) const MIN_PACKETS: usize = 4;

/// A packet of which the machine knows already: from the middle of a message, or a whole one.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlyPacket {
    pub from: u32,
    pub number: u32,
    pub payload_bytes: u32,
    /// When its message was sent.
    pub called_at: Picoseconds,
    /// What placing it costs.
    pub place_ps: Picoseconds,
    pub then: AfterRetrieval,
}

/// What is to be done when a packet is taken of which the machine knows already.
#[derive(Clone, Copy, Debug)]
pub(super) enum AfterRetrieval {
    Nothing,
    /// Something is to be sent to its sender.
    SendDueCredits(Peer),
    /// It is a message, for this receive.
    Complete {
        request: Request,
        tag: u64,
        bytes: u32,
    },
}

/// Those of one rank, in the order in which they are taken.
#[derive(Debug, Default)]
pub(super) struct Lookahead {
    seen: Vec<EarlyPacket>,
    taken: usize,
    /// Packets behind these that are messages by themselves: nothing is to be told of them.
    messages: usize,
}

impl Lookahead {
    pub fn is_empty(&self) -> bool {
        self.taken == self.seen.len()
    }

    /// Notes that the next packets are messages.
    #[inline]
    pub fn note_messages(&mut self, messages: usize) {
        self.messages = messages;
    }

    /// Whether the next packet was noted as a message; it is taken now.
    #[inline]
    pub fn take_message(&mut self) -> bool {
        let noted = self.messages > 0;
        self.messages -= usize::from(noted);
        noted
    }

    /// Notes one more.
    #[inline]
    pub fn push(&mut self, seen: EarlyPacket) {
        self.seen.push(seen);
    }

    /// The next one, which stays.
    #[inline]
    pub fn next(&self) -> Option<&EarlyPacket> {
        self.seen.get(self.taken)
    }

    /// Takes the next one.
    #[inline]
    pub fn take(&mut self) -> Option<EarlyPacket> {
        let seen = *self.seen.get(self.taken)?;
        self.taken += 1;
        if self.taken == self.seen.len() {
            self.seen.clear();
            self.taken = 0;
        }
        Some(seen)
    }

    /// Slots that packets of `from` still fill, though the machine thinks that they are retrieved.
    pub fn slots_of(&self, from: u32, geometry: &Geometry) -> u32 {
        let slots = |seen: &EarlyPacket| match (seen.payload_bytes, seen.then) {
            (0, _) => 1, // every header fits in one slot
            (bytes, AfterRetrieval::Complete { .. }) => geometry.slots(geometry.eager_header_bytes, bytes),
            (bytes, _) => geometry.slots(geometry.more_header_bytes, bytes),
        };
        self.seen[self.taken..].iter().filter(|seen| seen.from == from).map(slots).sum()
    }
}

/// Whether a machine can be told of whole messages too.
pub(super) fn supports_message_lookahead(config: &Config) -> bool {
    matches!(config.scheme, Scheme::Unlimited)
}

/// Whether what a packet says is between its two ranks alone: with dynamic credits all senders share, with an adaptive backlog quotas
/// change, with the hardware's a buffer is posted again when its packet is taken.
pub(super) fn supports_lookahead(config: &Config) -> bool {
    matches!(config.scheme, Scheme::Unlimited | Scheme::Static { .. } | Scheme::StaticConnection { .. })
}
