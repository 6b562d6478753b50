//! What carries one packet at a time, and when it is to be asked to.
//!
//! A channel could have an event for each packet that is there for it, and look again whenever it has become free. Half of those events
//! would find it busy, without a buffer free behind it, or nobody waiting. So it knows what is on the way to it and asks for one event
//! only: the next at which it starts a packet, or finds that it is busy and has to look again. What frees a buffer starts it at once.
//!
//! Which of two packets goes first when they meet at the same picosecond, and who is told first of what happens at the same time, must not
//! depend on which events are spared. So whatever would have an event draws its [`Sequence`] all the same, when that would have been pushed.
//! ```text
//! now 5   a packet starts towards channel c, is there at 9 (turn 31); c is busy until 12 and looks again then (turn 20): no event
//! 12      in turn 20 c starts it, if there is room
//! 14      there was none, and now a buffer is free: c starts it in the turn of what has freed it
//! ```

use super::super::packet_queue::PacketQueue;
use super::{Event, NEVER};
use crate::Picoseconds;
use crate::network::Outputs;
use crate::network::fat_tree::End;
use crate::queue::Sequence;

/// Where a channel leads.
#[derive(Clone, Copy, Debug)]
pub(super) enum Leads {
    /// From the memory of this host to its adapter.
    In(u32),
    /// From an adapter to this switch.
    Up(u32),
    /// From an adapter to memory.
    Out,
    /// From a switch.
    On(End),
}

/// When something happens, and in which turn among what happens at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub at: Picoseconds,
    pub sequence: Sequence,
}

impl Moment {
    /// After everything.
    pub const NEVER: Moment = Moment { at: NEVER, sequence: Sequence::FIRST };

    #[inline]
    pub fn is_before(self, other: Moment) -> bool {
        self.at < other.at || self.at == other.at && self.sequence.is_before(other.sequence)
    }
}

/// Something that carries one packet at a time.
///
/// Those from memory to an adapter ask the sources for packets, and for an event whenever one may be there. The others know what is on the
/// way to them, and ask only for the event at which they start a packet or find that they are busy; see [`super::InfiniBand::plan`]. What happens
/// at the same time happens in turns, which are drawn as if each packet had told where it is.
#[derive(Clone, Debug)]
pub(super) struct Channel {
    pub leads: Leads,
    /// Packets that wait for it or are on the way there, in order of time. Unused from memory to adapter: those wait in the sources.
    pub packet_queue: PacketQueue,
    /// When the last of them is there.
    pub last_there_at: Picoseconds,
    pub free_at: Picoseconds,
    /// When it looks again by itself; [`Moment::NEVER`]: it does not.
    pub look: Moment,
    /// The event that it waits for, if any; others of its are not meant any more. Unused from memory to adapter.
    pub due: Moment,
    /// Buffers free behind it.
    pub room: u32,
}

impl Channel {
    /// One without packets, with so many buffers behind it.
    pub fn new(leads: Leads, buffer_packets: u32) -> Channel {
        Channel {
            leads,
            packet_queue: PacketQueue::EMPTY,
            last_there_at: 0,
            free_at: 0,
            look: Moment::NEVER,
            due: Moment::NEVER,
            room: if matches!(leads, Leads::Out) { u32::MAX } else { buffer_packets }, // memory takes everything
        }
    }

    /// It looks again as soon as it is free, unless it does so already.
    #[inline]
    pub fn look_when_free(&mut self, outputs: &mut Outputs<Event>) {
        if self.look == Moment::NEVER {
            self.look = Moment { at: self.free_at, sequence: outputs.draw() };
        }
    }

    /// It has looked, and there was nothing to be seen.
    #[inline]
    pub fn forget_look(&mut self, now: Moment) {
        if !now.is_before(self.look) {
            self.look = Moment::NEVER;
        }
    }
}
