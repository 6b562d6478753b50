//! Packets that an endpoint machine has processed before their virtual time. This makes large worlds faster. This file
//! has the notes about such packets and the schemes that permit it; `rank_state/retrieval.rs` processes the packets.
//!
//! In an all-to-all thousands of packets can stand in a mailbox. Each is retrieved in a step of its own, and all other
//! ranks act between two steps of a rank. So the tables of a rank are never in the caches when it acts. No other rank
//! can see or change what a packet from the middle of a message does to a machine. So a step that finds several such
//! packets lets the machine process all of them, and notes the results. It does so only in schemes in which a packet
//! concerns only its two ranks ([`supports_lookahead`]). The steps that retrieve them only read the notes
//! (`RankState::retrieve_early`).
//!
//! These steps have the same times and order as without look-ahead, so the world does not change. A test compares it with
//! a checked world, which never looks ahead.
//!
//! ```text
//! mailbox   a1 b1 a2 c1 b2 [c] d0 ...       parts of messages a, b, c; an explicit credit packet; a new message
//! step      the machine processes a1 b1 a2 c1 b2; a1 is retrieved
//! 4 steps   b1, a2, c1, b2 are retrieved: prices, trace, the network is told
//! step      [c] is retrieved and processed as usual
//! ```
//! The look-ahead ends with a packet after which the machine sends something. The machine sends it when that packet is
//! retrieved. Where whole trains arrive (the ideal network), packets are processed in the order of their arrival.
//!
//! A thousand messages of one packet can stand in a mailbox too. Each packet, and the state of its sender, is far away in
//! memory. So a step that finds several reads all of them at once, where one access need not wait for another.
//! Such messages concern the program. With credits, the step only notes their number. Without credits, the machine
//! processes them too: the receive that a message matches was posted before, and no later receive can come before it.
//! The program learns of the message when the packet is retrieved.

use weir_proto::{Config, Geometry, Peer, Request, Scheme};

use crate::Picoseconds;

/// Most packets at a time. All ranks together should fit into a cache.
pub(super) const MAX_PACKETS: usize = 32;
/// Fewest packets that are worth it.
pub(super) const MIN_PACKETS: usize = 4;
/// Fewest packets to look at.
const MIN_REACH: usize = 8;

/// A packet that the machine has processed: from the middle of a message, or a whole message.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlyPacket {
    pub from: u32,
    pub number: u32,
    pub payload_bytes: u32,
    /// Time of the send call.
    pub called_at: Picoseconds,
    /// Price of placing its payload.
    pub place_ps: Picoseconds,
    pub then: AfterRetrieval,
}

/// The action after the retrieval of such a packet.
#[derive(Clone, Copy, Debug)]
pub(super) enum AfterRetrieval {
    Nothing,
    /// The machine sends something to its sender.
    SendDueCredits(Peer),
    /// The packet is a message; it completes this receive.
    Complete {
        request: Request,
        tag: u64,
        bytes: u32,
    },
}

/// Such packets of one rank, in order of retrieval.
#[derive(Debug, Default)]
pub(super) struct Lookahead {
    seen: Vec<EarlyPacket>,
    taken: usize,
    /// Number of packets behind these that are messages of one packet. They are processed when they are
    /// retrieved.
    messages: u32,
    /// Packets that the last look did not need.
    spared: u32,
}

impl Lookahead {
    pub fn is_empty(&self) -> bool {
        self.taken == self.seen.len()
    }

    /// Number of packets to look at.
    #[inline]
    pub fn reach(&self) -> usize {
        MAX_PACKETS - self.spared as usize
    }

    /// The machine has processed `processed` packets from the middle of messages. The next look is for twice as many: each
    /// packet that is looked at is far away in memory, and with few credits the first ones end the look.
    #[inline]
    pub fn set_reach(&mut self, processed: usize) {
        self.spared = (MAX_PACKETS - (2 * processed).clamp(MIN_REACH, MAX_PACKETS)) as u32;
    }

    /// Notes that the next packets are messages of one packet.
    #[inline]
    pub fn note_messages(&mut self, messages: usize) {
        self.messages = messages as u32;
    }

    /// Whether the next packet was noted as a message. It is retrieved now.
    #[inline]
    pub fn take_message(&mut self) -> bool {
        let noted = self.messages > 0;
        self.messages -= u32::from(noted);
        noted
    }

    /// Adds a packet.
    #[inline]
    pub fn push(&mut self, seen: EarlyPacket) {
        self.seen.push(seen);
    }

    /// The next packet, which stays.
    #[inline]
    pub fn next(&self) -> Option<&EarlyPacket> {
        self.seen.get(self.taken)
    }

    /// Takes the next packet.
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

    /// Slots that packets of `from` still fill, although the machine has processed them.
    pub fn slots_of(&self, from: u32, geometry: &Geometry) -> u32 {
        let slots = |seen: &EarlyPacket| match (seen.payload_bytes, seen.then) {
            (0, _) => 1, // every header fits in one slot
            (bytes, AfterRetrieval::Complete { .. }) => geometry.slots(geometry.eager_header_bytes, bytes),
            (bytes, _) => geometry.slots(geometry.more_header_bytes, bytes),
        };
        self.seen[self.taken..].iter().filter(|seen| seen.from == from).map(slots).sum()
    }
}

/// Whether a machine can process whole messages early.
pub(super) fn supports_message_lookahead(config: &Config) -> bool {
    matches!(config.scheme, Scheme::Unlimited)
}

/// Whether the effect of a packet concerns only its two ranks. With dynamic credits all senders share the
/// slots. With an adaptive backlog quotas change. With the scheme `hardware` the buffer is posted again when
/// the packet is retrieved.
pub(super) fn supports_lookahead(config: &Config) -> bool {
    matches!(config.scheme, Scheme::Unlimited | Scheme::Static { .. } | Scheme::StaticConnection { .. })
}
