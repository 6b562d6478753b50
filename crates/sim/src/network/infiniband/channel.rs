//! A channel of the InfiniBand model, which carries one packet at a time, and the moments for which it asks for events.
//!
//! An event for each packet that becomes ready, and for each moment at which a channel becomes free, would be simple.
//! Half of these events would find the channel busy, without room behind it, or without packets. So a channel between
//! adapters and switches, or to memory, knows which packets travel to it, and asks for one event only
//! (`InfiniBand::schedule_start`). At this event it starts a packet, or finds that it is busy and has to look again. A
//! freed buffer starts it at once. A channel from memory to an adapter asks for an event whenever a packet may be
//! ready.
//!
//! The result must not depend on which events are left out. Two packets may meet at the same picosecond, and outputs
//! may have the same time; their order must stay. So each event that is left out still draws its [`Sequence`], at the
//! moment at which it would have been pushed.
//! ```text
//! now 5   a packet starts towards channel c and is ready at 9 (sequence 31); c is busy until 12 and looks again then
//!         (sequence 20): no event
//! 12      with sequence 20 c starts the packet, if there is room
//! 14      there was no room before; a buffer becomes free: c starts the packet with the sequence of that event
//! ```

use super::super::packet_queue::PacketQueue;
use super::{Event, NEVER};
use crate::Picoseconds;
use crate::network::Outputs;
use crate::network::fat_tree::End;
use crate::queue::Sequence;

/// The end of a channel.
#[derive(Clone, Copy, Debug)]
pub(super) enum LeadsTo {
    /// From the memory of this host to its adapter.
    Adapter(u32),
    /// From an adapter to this leaf switch.
    Leaf(u32),
    /// From an adapter to memory.
    Memory,
    /// From a switch to another switch or to a host.
    Next(End),
}

/// A time, and the sequence among events of that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub at: Picoseconds,
    pub sequence: Sequence,
}

impl Moment {
    /// Later than everything.
    pub const NEVER: Moment = Moment { at: NEVER, sequence: Sequence::FIRST };

    /// Whether it is [`Moment::NEVER`].
    #[inline]
    pub fn is_never(self) -> bool {
        self.at == NEVER
    }

    #[inline]
    pub fn is_before(self, other: Moment) -> bool {
        self.at < other.at || self.at == other.at && self.sequence.is_before(other.sequence)
    }
}

/// Something that carries one packet at a time.
///
/// A channel from memory to an adapter asks the sources for packets, and asks for an event whenever a packet
/// may be ready. Any other channel knows which packets travel to it. It asks only for the event at which it
/// starts a packet or finds that it is busy, see [`super::InfiniBand::schedule_start`].
#[derive(Clone, Debug)]
pub(super) struct Channel {
    pub leads: LeadsTo,
    /// Packets that wait for the channel or travel to it, in order of time. Unused from memory to adapter,
    /// where packets wait in the sources.
    pub packet_queue: PacketQueue,
    /// The time when the last of them is ready, with its sequence.
    pub last_there: Moment,
    pub free_at: Picoseconds,
    /// The time when the channel looks for packets again by itself; [`Moment::NEVER`]: it does not.
    pub look: Moment,
    /// The event for which the channel waits. It ignores all others. Unused from memory to adapter.
    pub due: Moment,
    /// Free buffers behind the channel.
    pub room: u32,
}

impl Channel {
    /// A channel without packets, with `buffer_packets` buffers behind it.
    pub fn new(leads: LeadsTo, buffer_packets: u32) -> Channel {
        Channel {
            leads,
            packet_queue: PacketQueue::EMPTY,
            last_there: Moment::NEVER,
            free_at: 0,
            look: Moment::NEVER,
            due: Moment::NEVER,
            room: if matches!(leads, LeadsTo::Memory) { u32::MAX } else { buffer_packets }, // memory takes everything
        }
    }

    /// The channel looks again as soon as it is free, unless it does so already.
    #[inline]
    pub fn look_when_free(&mut self, outputs: &mut Outputs<Event>) {
        if self.look.is_never() {
            self.look = Moment { at: self.free_at, sequence: outputs.draw(self.free_at) };
        }
    }

    /// The channel has looked.
    #[inline]
    pub fn forget_look(&mut self, now: Moment) {
        if !now.is_before(self.look) {
            self.look = Moment::NEVER;
        }
    }
}
