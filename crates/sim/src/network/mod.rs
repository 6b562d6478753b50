//! Network models: they say when a packet reaches the mailbox of its receiver, and when its sender may resume. A
//! network also carries remote gets, and some networks drop or mark packets.
//!
//! A model implements [`Network`]. It knows nodes, wires and times. It does not know messages, credits or the content
//! of packets. The world calls it in order of time; the model answers with future events ([`Outputs`]).
//!
//! Packets that leave one sender for one destination back to back travel as a *train*. Where nothing separates its
//! packets, a train needs one event per hop. A network that separates them reports the parts as [`TrainPart`]s.

pub mod extoll;
pub mod fat_tree;
pub mod faulty;
pub mod ideal;
pub mod infiniband;
pub mod loggops;
pub mod manycore;
pub mod mesh;
mod packet_queue;
pub mod registry;
pub mod reliable;
pub mod switched;

use weir_proto::Geometry;

use crate::queue::{Sequence, SequenceCounter, Source};
use crate::{Picoseconds, TIME_LIMIT};

/// The world's number of a train that is in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TrainId(pub u32);

/// Packets handed to the network.
#[derive(Clone, Copy, Debug)]
pub struct Injection {
    /// The train of these packets.
    pub train: TrainId,
    /// Sending rank.
    pub from: u32,
    /// Receiving rank.
    pub to: u32,
    /// Index of the first packet within its train. Not 0 if the processor of a NIC separates them.
    pub first: u32,
    /// Number of packets.
    pub packets: u32,
    /// Payload of all packets. Unit: bytes.
    pub payload_bytes: u64,
    /// Time between two packets that leave the processor.
    pub spacing_ps: Picoseconds,
}

/// One packet for several ranks, handed to the network at once.
#[derive(Clone, Copy, Debug)]
pub struct CopiesInjection<'a> {
    /// Sending rank.
    pub from: u32,
    /// Payload. Unit: bytes.
    pub payload_bytes: u64,
    /// Time until the packet is written, and its first copy can leave.
    pub write_ps: Picoseconds,
    /// Time that the NIC needs for the header of each further copy.
    pub copy_ps: Picoseconds,
    /// Trains of one packet, one for each receiving rank: each copy has a header of its own.
    pub copies: &'a [(TrainId, u32)],
}

/// Packets of a train that arrive one after the other. The packets of a train, and of a pair of ranks, arrive
/// in the order in which they left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainPart {
    /// Their train.
    pub train: TrainId,
    /// Receiving rank.
    pub to: u32,
    /// Index of the first packet within its train.
    pub first: u32,
    /// Number of packets.
    pub count: u32,
    /// Time between two arrivals.
    pub spacing_ps: Picoseconds,
}

/// An event that a network announces to the world.
#[derive(Clone, Copy, Debug)]
pub enum Output {
    /// The first packet of a part stands in the mailbox.
    Arrived(TrainPart),
    /// The same, and a queue on the way was long.
    Marked(TrainPart),
    /// These packets were dropped, because a queue was full.
    Dropped(TrainPart),
    /// The reliable path from one rank to another has ended: nothing has arrived for its limit.
    PathEnded {
        /// Sending rank.
        from: u32,
        /// Receiving rank.
        to: u32,
    },
    /// A sender that was held ([`Hold::UntilReleased`]) may resume.
    Released {
        /// Its rank.
        rank: u32,
    },
    /// The remote get with this number has delivered its last byte to rank `to`.
    GetDone {
        /// The rank that asked.
        to: u32,
        /// The number it gave.
        number: u32,
    },
}

/// The time for which the sender's processor is busy with an injection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Until this time.
    Until(Picoseconds),
    /// Until [`Output::Released`], because of back-pressure.
    UntilReleased,
}

/// An output with its time.
#[derive(Clone, Copy, Debug)]
pub struct ScheduledOutput {
    /// Time.
    pub at: Picoseconds,
    /// Its order among events of that time.
    pub sequence: Sequence,
    /// The output.
    pub output: Output,
}

/// An event that a network schedules for itself.
#[derive(Clone, Copy, Debug)]
pub struct Reminder<E> {
    /// Time.
    pub at: Picoseconds,
    /// Its order among events of that time.
    pub sequence: Sequence,
    /// The event.
    pub event: E,
}

/// Collects the future events that a network schedules.
#[derive(Clone, Debug)]
pub struct Outputs<E> {
    scheduled: Vec<ScheduledOutput>,
    reminders: Vec<Reminder<E>>,
    /// Draws the sequences of all events of a world.
    sequences: SequenceCounter,
}

impl<E> Default for Outputs<E> {
    fn default() -> Outputs<E> {
        Outputs { scheduled: Vec::new(), reminders: Vec::new(), sequences: SequenceCounter::default() }
    }
}

impl<E> Outputs<E> {
    /// Schedules an output.
    #[inline]
    pub fn push(&mut self, at: Picoseconds, output: Output) {
        let sequence = self.draw(at);
        self.push_with_sequence(at, sequence, output);
    }

    /// The same with a sequence that was drawn earlier, for this time.
    #[inline]
    pub fn push_with_sequence(&mut self, at: Picoseconds, sequence: Sequence, output: Output) {
        self.scheduled.push(ScheduledOutput { at, sequence, output });
    }

    /// Schedules an event of the network.
    #[inline]
    pub fn remind(&mut self, at: Picoseconds, event: E) {
        let sequence = self.draw(at);
        self.remind_with_sequence(at, sequence, event);
    }

    /// The same with a sequence that was drawn earlier, for this time.
    #[inline]
    pub fn remind_with_sequence(&mut self, at: Picoseconds, sequence: Sequence, event: E) {
        self.reminders.push(Reminder { at, sequence, event });
    }

    /// The events that the network has scheduled for itself.
    #[inline]
    pub fn reminders(&self) -> &[Reminder<E>] {
        &self.reminders
    }

    /// Forgets them.
    #[inline]
    pub fn clear_reminders(&mut self) {
        self.reminders.clear();
    }

    /// Draws the sequence of an event at `at`. The event need not be scheduled.
    #[inline]
    pub fn draw(&mut self, at: Picoseconds) -> Sequence {
        self.sequences.draw(at)
    }

    /// Draws for another source from now on: for the rank or element that handles the current event. Returns the one before.
    #[inline]
    pub fn act_as(&mut self, source: Source) -> Source {
        self.sequences.act_as(source)
    }

    /// The sequence of the current event.
    #[inline]
    pub fn present(&self) -> Sequence {
        self.sequences.present()
    }

    /// Lets the outputs of a wrapped network draw from the sequences of these, or ends that: call it before and after.
    pub fn share_sequences<F>(&mut self, others: &mut Outputs<F>) {
        std::mem::swap(&mut self.sequences, &mut others.sequences);
    }

    /// Starts the event with this time and sequence.
    #[inline]
    pub fn begin(&mut self, now: Picoseconds, sequence: Sequence) {
        self.sequences.begin(now, sequence);
    }

    /// Number of scheduled outputs.
    #[inline]
    pub fn count(&self) -> usize {
        self.scheduled.len()
    }

    /// Takes the outputs after the first `kept`, in order. If `kept` is 0, the memory of `instead` serves the
    /// next outputs.
    #[inline]
    pub fn take(&mut self, kept: usize, mut instead: Vec<ScheduledOutput>) -> Vec<ScheduledOutput> {
        if kept == 0 {
            instead.clear();
            return std::mem::replace(&mut self.scheduled, instead);
        }
        self.scheduled.split_off(kept)
    }
}

/// Time of `bytes` bytes on a wire, at most the bound of virtual time.
#[inline]
fn bytes_ps(bytes: u64, byte_ps: Picoseconds) -> Picoseconds {
    bytes.saturating_mul(byte_ps).min(TIME_LIMIT)
}

/// A modelled network.
pub trait Network {
    /// An event that the network schedules for itself.
    type Event: Copy;

    /// Slots and headers of a packet on this network.
    fn geometry(&self) -> Geometry;

    /// Ranks of a host, which share its NIC. Rank `r` is on host `r / ranks_per_host`. 1 where there are no nodes.
    fn ranks_per_host(&self) -> u32 {
        1
    }

    /// Earliest time at which rank `from` may begin a send. A processor that wants to send earlier retrieves
    /// packets meanwhile.
    fn send_from(&self, _from: u32) -> Picoseconds {
        0
    }

    /// Whether the network may keep a processor longer than the packets take: by [`Network::send_from`], or
    /// by a [`Hold`] beyond the spacing of the last packet.
    fn holds(&self) -> bool {
        true
    }

    /// Injects packets. The first leaves the processor now, the others follow at their spacing. Returns when
    /// the sender's processor is free again.
    fn inject(&mut self, now: Picoseconds, injection: Injection, outputs: &mut Outputs<Self::Event>) -> Hold;

    /// Injects one packet for several ranks. It is written once; then its copies leave in this order. Returns when the
    /// sender's processor is free again.
    ///
    /// A network without adapters has no time between the copies.
    fn inject_copies(
        &mut self,
        now: Picoseconds,
        injection: &CopiesInjection<'_>,
        outputs: &mut Outputs<Self::Event>,
    ) -> Hold {
        let &CopiesInjection { from, payload_bytes, write_ps, copy_ps, copies } = injection;
        let mut spacing_ps = write_ps;
        let mut hold = Hold::Until(now + write_ps);
        for &(train, to) in copies {
            let copy = Injection { train, from, to, first: 0, packets: 1, payload_bytes, spacing_ps };
            if self.inject(now, copy, outputs) == Hold::UntilReleased {
                hold = Hold::UntilReleased;
            }
            spacing_ps += copy_ps;
        }
        hold
    }

    /// Rank `rank` has retrieved a packet from its mailbox.
    fn retrieved(&mut self, _now: Picoseconds, _rank: u32, _outputs: &mut Outputs<Self::Event>) {}

    /// Copies `bytes` bytes from rank `from`'s memory to that of `to`, without help of `from`'s processor.
    fn get(
        &mut self,
        now: Picoseconds,
        to: u32,
        from: u32,
        bytes: u64,
        number: u32,
        outputs: &mut Outputs<Self::Event>,
    );

    /// Handles an event that the network has scheduled for itself, as the source that it belongs to ([`Outputs::act_as`]).
    fn handle(&mut self, now: Picoseconds, event: Self::Event, outputs: &mut Outputs<Self::Event>);

    /// Brings memory that an event will need into the caches. `soon`: what was asked for at the last call is there now, and
    /// may be read to find the rest. Changes nothing.
    #[inline]
    fn prefetch(&self, _event: Self::Event, _soon: bool) {}

    /// Time from the NIC of rank `from` to that of `to` through an idle network, without payload and
    /// processors. It is the time of an answer of the hardware (RNR NAK).
    fn one_way_ps(&self, from: u32, to: u32) -> Picoseconds;

    /// Time in which the links deliver a damaged or out-of-order packet again. `None`: the links of this
    /// model do not retransmit, and a lost packet stays lost.
    fn repair_ps(&self) -> Option<Picoseconds> {
        None
    }

    /// Number of retransmitted packets and discarded duplicates.
    fn repairs(&self) -> u64 {
        0
    }

    /// Whether it may drop packets ([`Output::Dropped`]).
    fn may_drop(&self) -> bool {
        false
    }

    /// Number of packets that were dropped, because a queue was full.
    fn drops(&self) -> u64 {
        0
    }

    /// Number of packets that were delivered with a mark ([`Output::Marked`]).
    fn marks(&self) -> u64 {
        0
    }

    /// The reliable paths over which ranks have sent.
    fn paths(&self) -> Vec<reliable::PathReading> {
        Vec::new()
    }

    /// Number of hops of all packets so far.
    fn packet_hops(&self) -> u64;
}
