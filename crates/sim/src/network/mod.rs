//! Networks: what happens between the moment a packet leaves a processor and the moment it stands in a mailbox.
//!
//! A network knows nodes, wires and times. It does not know messages, credits or what is in a packet. It is asked in order of
//! time and answers with things that will happen.
//!
//! Packets that leave one sender for one destination back to back travel as a *train*: one event per hop for all of
//! them, as long as nothing pulls them apart. A network that has to split one reports the parts as [`Segment`]s.

pub mod extoll;
pub mod fat_tree;
pub mod faulty;
pub mod ideal;
pub mod infiniband;
pub mod loggops;
pub mod mesh;
mod packet_queue;
pub mod parameters;

use weir_proto::Geometry;

use crate::queue::{Sequence, SequenceCounter};
use crate::{Picoseconds, TIME_LIMIT};

/// The world's name for a train that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TrainId(pub u32);

/// Packets handed to the network.
#[derive(Clone, Copy, Debug)]
pub struct Injection {
    /// Which.
    pub train: TrainId,
    /// Sending rank.
    pub from: u32,
    /// Receiving rank.
    pub to: u32,
    /// How many packets.
    pub packets: u32,
    /// Payload of all of them together. Unit: bytes.
    pub payload_bytes: u64,
    /// From one packet's leaving the processor to the next one's.
    pub spacing_ps: Picoseconds,
}

/// Packets of a train that arrive one after the other. Every network brings the packets of a train, and of a pair of ranks, in the
/// order in which they left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Of which train.
    pub train: TrainId,
    /// Receiving rank.
    pub to: u32,
    /// The first of them, counted from the train's first packet.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// From one arrival to the next.
    pub spacing_ps: Picoseconds,
}

/// What a network says will happen.
#[derive(Clone, Copy, Debug)]
pub enum Output {
    /// The first packet of a segment stands in the mailbox.
    Arrived(Segment),
    /// A sender that was held ([`Hold::UntilReleased`]) may go on.
    Released {
        /// Its rank.
        rank: u32,
    },
    /// The remote get with this number has brought its last byte to rank `to`.
    GetDone {
        /// The rank that asked.
        to: u32,
        /// The number it gave.
        number: u32,
    },
}

/// How long a sender's processor is busy with what it has injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Until this time.
    Until(Picoseconds),
    /// The network pushes back: until [`Output::Released`].
    UntilReleased,
}

/// Something that will happen.
#[derive(Clone, Copy, Debug)]
pub struct ScheduledOutput {
    /// When.
    pub at: Picoseconds,
    /// In which turn among other things of that time.
    pub sequence: Sequence,
    /// What.
    pub output: Output,
}

/// Something of its own that a network wants to be reminded of: most of what happens.
#[derive(Clone, Copy, Debug)]
pub struct Reminder<E> {
    /// When.
    pub at: Picoseconds,
    /// In which turn among other things of that time.
    pub sequence: Sequence,
    /// Of what.
    pub event: E,
}

/// Where a network puts what will happen, and when.
#[derive(Clone, Debug)]
pub struct Outputs<E> {
    scheduled: Vec<ScheduledOutput>,
    reminders: Vec<Reminder<E>>,
    /// Those of all events of a world.
    sequences: SequenceCounter,
    /// That of the event that is being dealt with.
    present: Sequence,
}

impl<E> Default for Outputs<E> {
    fn default() -> Outputs<E> {
        let mut sequences = SequenceCounter::default();
        Outputs { scheduled: Vec::new(), reminders: Vec::new(), present: sequences.draw(), sequences }
    }
}

impl<E> Outputs<E> {
    /// Says what will happen.
    #[inline]
    pub fn push(&mut self, at: Picoseconds, output: Output) {
        let sequence = self.draw();
        self.push_with_sequence(at, sequence, output);
    }

    /// The same for something whose turn was drawn, perhaps long ago.
    #[inline]
    pub fn push_with_sequence(&mut self, at: Picoseconds, sequence: Sequence, output: Output) {
        self.scheduled.push(ScheduledOutput { at, sequence, output });
    }

    /// Wants to be reminded of `event`.
    #[inline]
    pub fn remind(&mut self, at: Picoseconds, event: E) {
        let sequence = self.draw();
        self.remind_with_sequence(at, sequence, event);
    }

    /// The same in a turn that was drawn, perhaps long ago.
    #[inline]
    pub fn remind_with_sequence(&mut self, at: Picoseconds, sequence: Sequence, event: E) {
        self.reminders.push(Reminder { at, sequence, event });
    }

    /// Whether it wants to be reminded of anything.
    #[inline]
    pub fn has_reminders(&self) -> bool {
        !self.reminders.is_empty()
    }

    /// Takes what it wants to be reminded of.
    #[inline]
    pub fn reminders(&mut self) -> std::vec::Drain<'_, Reminder<E>> {
        self.reminders.drain(..)
    }

    /// A turn for something that will happen; it need not be said.
    #[inline]
    pub fn draw(&mut self) -> Sequence {
        self.sequences.draw()
    }

    /// The turn of what is happening now.
    #[inline]
    pub fn present(&self) -> Sequence {
        self.present
    }

    /// Something happens whose turn this is.
    #[inline]
    pub fn begin(&mut self, sequence: Sequence) {
        self.present = sequence;
    }

    /// How much has been said, without reminders.
    #[inline]
    pub fn count(&self) -> usize {
        self.scheduled.len()
    }

    /// Takes what has been said after the first `kept`, in order; the memory of `instead` is used from now on if nothing is kept.
    #[inline]
    pub fn take(&mut self, kept: usize, mut instead: Vec<ScheduledOutput>) -> Vec<ScheduledOutput> {
        if kept == 0 {
            instead.clear();
            return std::mem::replace(&mut self.scheduled, instead);
        }
        self.scheduled.split_off(kept)
    }
}

/// What `bytes` bytes take, one after the other; not more than a world can last.
#[inline]
fn bytes_ps(bytes: u64, byte_ps: Picoseconds) -> Picoseconds {
    bytes.saturating_mul(byte_ps).min(TIME_LIMIT)
}

/// A modelled network.
pub trait Network {
    /// What it wants to be reminded of.
    type Event: Copy;

    /// What a slot of a mailbox holds.
    fn geometry(&self) -> Geometry;

    /// From when on rank `from` may begin a send. A processor that would begin one earlier takes what arrives meanwhile.
    fn send_from(&self, _from: u32) -> Picoseconds {
        0
    }

    /// Whether it ever keeps a processor longer than that has asked for: by [`Network::send_from`], or by a [`Hold`] beyond the
    /// last packet's spacing.
    fn holds(&self) -> bool {
        true
    }

    /// Takes packets; the first leaves the processor now, the others follow at their spacing. Returns when the sender's
    /// processor is free of them.
    fn inject(&mut self, now: Picoseconds, injection: Injection, outputs: &mut Outputs<Self::Event>) -> Hold;

    /// Rank `rank` has taken a packet out of its mailbox.
    fn taken(&mut self, _now: Picoseconds, _rank: u32, _outputs: &mut Outputs<Self::Event>) {}

    /// Reads `bytes` bytes of rank `from`'s memory into that of `to`, without the help of `from`'s processor.
    fn get(
        &mut self,
        now: Picoseconds,
        to: u32,
        from: u32,
        bytes: u64,
        number: u32,
        outputs: &mut Outputs<Self::Event>,
    );

    /// Something it wanted to be reminded of.
    fn handle(&mut self, now: Picoseconds, event: Self::Event, outputs: &mut Outputs<Self::Event>);

    /// From the NIC of rank `from` to that of `to` through an idle network, without payload and without processors: what an
    /// answer of the hardware takes (RNR NAK).
    fn one_way_ps(&self, from: u32, to: u32) -> Picoseconds;

    /// How long the links take to bring a packet once more that was damaged or came out of turn, if they do that by themselves;
    /// `None`: there is nothing of the kind in the model, and what is lost would stay lost.
    fn repair_ps(&self) -> Option<Picoseconds> {
        None
    }

    /// Packets that were brought once more, or came twice and were thrown away, for the report.
    fn repairs(&self) -> u64 {
        0
    }

    /// Hops that packets have made so far, for the report.
    fn packet_hops(&self) -> u64;
}
