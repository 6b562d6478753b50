//! What the calls of the endpoint machine act on ([`Io`]): the link, buffers, the table of operations, timers. What has to
//! wait until an event is handled is noted here, for example events that the machine's calls cause and work on lanes
//! ([`LaneWork`]).
//!
//! This file does not know the event that is being handled ([`crate::driver`]).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant as Clock;

use weir_link::Link;
use weir_proto::offload::Offload;
use weir_proto::{
    Event, Geometry, Instant, LinkBusy, Outcome, Packet, Peer, PeerFault, Request, Source, TimerKey,
    TimerQueue, Transfer,
};

use crate::addresses::AddressTable;
use crate::bounce_buffers::BounceBuffers;
use crate::collectives::Collectives;
use crate::cooperative::CooperativeSends;
use crate::deliveries::Deliveries;
use crate::machine_buffers::MachineBuffers;
use crate::operations::{Operations, Outstanding};
use crate::read_ahead::ReadAhead;
use crate::remote_memory::{Copies, Region};
use crate::unexpected_buffers::UnexpectedBuffers;
use crate::{Completion, watcher};

/// Something about our lane at a peer, to be done when the arrivals so far are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneWork {
    /// We wait for a lane: ask again.
    Connect(Peer),
    /// Credits are due, unless the peer has detached meanwhile.
    ReturnCredits(Peer),
    /// Others want the lane, and everything that can leave has left: detach.
    Detach(Peer),
}

impl LaneWork {
    pub fn peer(self) -> Peer {
        match self {
            LaneWork::Connect(peer) | LaneWork::ReturnCredits(peer) | LaneWork::Detach(peer) => peer,
        }
    }
}

/// The number of the bounce buffer that `transfer` names.
pub(crate) fn bounce_buffer_number(transfer: Transfer) -> u32 {
    transfer.bounce_buffer().expect("the machine names bounce buffers")
}

/// State on which the calls of the endpoint machine act.
pub(crate) struct Io<L: Link> {
    pub link: L,
    pub operations: Operations,
    /// The offloaded machines.
    pub offload: Offload,
    /// Their buffers.
    pub machine_buffers: MachineBuffers,
    /// Collective operations, which the machine of groups does part by part.
    pub collectives: Collectives,
    /// Payload of unexpected messages.
    pub unexpected_buffers: UnexpectedBuffers,
    /// Copies of our messages for receivers without room.
    pub bounce_buffers: BounceBuffers,
    /// Announced messages that lie one after the other, and what was read of them in advance.
    pub read_ahead: ReadAhead,
    /// Bounce buffers freed since the start.
    pub bounce_buffers_freed: u64,
    /// The next injected message may exceed the limit of bounce buffers.
    pub may_exceed_bounce_limit: bool,
    /// The injected operation that the event has posted and that was held in the program's buffer.
    pub held_injected: Option<Request>,
    /// There is work after the event: caused events, a held injected operation, or a check of sender back-pressure.
    pub has_aftermath: bool,
    pub regions: HashMap<u64, Region>,
    pub peers: AddressTable,
    pub completions: VecDeque<Completion>,
    /// Completions that wait for acknowledgements of the link.
    pub deliveries: Deliveries,
    /// The link has [`weir_link::Acknowledgements`].
    pub reports_acknowledgements: bool,
    /// Peers in whose mailbox we wait for room.
    pub awaiting_room: Vec<Peer>,
    /// Work on lanes at peers, for the end of the call or for the next one.
    pub lane_work: Vec<LaneWork>,
    /// Our mailbox has had more senders than lanes. A sender may detach with its next packet, and its credits are void
    /// then. So credits wait until the arrivals are handled.
    pub lanes_are_scarce: bool,
    /// Large announced messages of ours.
    pub cooperative_sends: CooperativeSends,
    /// Copies that have not ended.
    pub copies: Copies,
    /// Events that calls of the endpoint machine have caused, to be handled next.
    pub events: VecDeque<Event<'static>>,
    /// Messages of complete sends that a loss has destroyed, to be reported: the peer, its process, their number, why.
    pub lost_messages: Vec<(Peer, Option<u32>, u32, PeerFault)>,
    /// The time when a machine wants `TimerExpired`.
    pub timers: TimerQueue<TimerKey>,
    pub cross_memory: bool,
    /// The geometry of most paths.
    pub geometry: Geometry,
    pub origin: Clock,
    /// Shared with the watcher, if there is one.
    pub watched: Option<Arc<watcher::Shared>>,
}

impl<L: Link> Io<L> {
    pub fn new(mut link: L, cross_memory: bool, unexpected_budget_bytes: u64) -> Io<L> {
        Io {
            geometry: link.properties().geometry,
            reports_acknowledgements: link.acknowledgements().is_some(),
            deliveries: Deliveries::default(),
            link,
            operations: Operations::default(),
            offload: Offload::default(),
            machine_buffers: MachineBuffers::default(),
            collectives: Collectives::default(),
            unexpected_buffers: UnexpectedBuffers::new(unexpected_budget_bytes),
            bounce_buffers: BounceBuffers::default(),
            read_ahead: ReadAhead::default(),
            bounce_buffers_freed: 0,
            may_exceed_bounce_limit: false,
            held_injected: None,
            has_aftermath: false,
            regions: HashMap::new(),
            peers: AddressTable::default(),
            completions: VecDeque::new(),
            awaiting_room: Vec::new(),
            lane_work: Vec::new(),
            lanes_are_scarce: false,
            cooperative_sends: CooperativeSends::default(),
            copies: Copies::default(),
            events: VecDeque::new(),
            lost_messages: Vec::new(),
            timers: TimerQueue::default(),
            cross_memory,
            origin: Clock::now(),
            watched: None,
        }
    }

    /// The time since the start.
    pub fn clock(&self) -> Instant {
        Instant(self.origin.elapsed().as_nanos() as u64)
    }

    /// Whether an event may come that does not show in our mailbox.
    #[inline]
    pub fn awaits_other_events(&self) -> bool {
        let copies = self.cooperative_sends.count() | self.copies.outstanding();
        (self.awaiting_room.len() | self.lane_work.len() | copies) > 0
    }

    /// Notes work on a lane. Without further calls of the program it must not wait for ever.
    pub fn add_lane_work(&mut self, work: LaneWork) {
        self.lane_work.push(work);
        self.wake_watcher();
    }

    /// Something begins that no packet ends, so the endpoint must not sleep elsewhere: makes the watcher call `on_wake`.
    #[inline]
    pub fn wake_watcher(&mut self) {
        if self.watched.is_some() {
            self.interrupt_watcher();
        }
    }

    #[cold]
    fn interrupt_watcher(&mut self) {
        let Some(watched) = &self.watched else { return };
        watched.bring_forward(0);
        if let Some(wake_up) = self.link.wake_up() {
            wake_up.end_sleep(); // changes the word, in case that the watcher is about to wait
        }
        watched.wake();
    }

    /// Slots at `to` that have become free since the last call.
    pub fn newly_free_slots(&mut self, to: Peer) -> u32 {
        // Without this capability the engine takes no scheme that asks.
        self.link.free_slots().map_or(0, |slots| slots.newly_free_slots(to))
    }

    /// The packets to `to` whose acknowledgement a completion awaits ([`weir_link::Acknowledgements`]).
    pub fn awaited_packets(&mut self, to: Peer) -> Option<u64> {
        self.link.acknowledgements()?.awaited_packets(to)
    }

    /// Packets that the sides of living peers do not hold ([`weir_link::Acknowledgements`]).
    pub fn unacknowledged_packets(&mut self) -> u64 {
        self.link.acknowledgements().map_or(0, |link| link.unacknowledged_packets())
    }

    /// A call of the endpoint machine has this result. The machine gets it after the current event.
    pub fn cause(&mut self, event: Event<'static>) {
        self.events.push_back(event);
        self.has_aftermath = true;
    }

    /// Reports the end of a held operation.
    #[inline(never)]
    pub fn complete_held(&mut self, request: Request, outcome: Outcome) {
        self.end_announcement_of_request(request);
        if outcome == Outcome::Done
            && let Some(to) = self.operations.get(request).and_then(|outstanding| outstanding.delivered_to)
            && let Some(packets) = self.awaited_packets(to)
        {
            let Outstanding { post, operation, space, .. } = self.operations.take(request);
            self.deliveries.add(to, packets, Completion { post, operation, space, outcome, buffer: 0 });
            return;
        }
        complete_held(&mut self.operations, &mut self.completions, request, outcome);
    }

    /// [`Link::transmit`] of a packet whose payload is not in the posted buffer.
    #[inline(never)]
    pub fn transmit_held(&mut self, to: Peer, packet: &Packet, payload: Source) -> Result<(), LinkBusy> {
        if let Source::Bounce { transfer, offset } = payload
            && packet.payload_bytes > 0
        {
            let bounce_buffer = self.bounce_buffers.memory(bounce_buffer_number(transfer));
            return self.link.transmit(to, packet, Some((&bounce_buffer, offset)));
        }
        let Io { link, operations, regions, machine_buffers, .. } = self;
        let from = match payload {
            _ if packet.payload_bytes == 0 => None,
            Source::None | Source::Bounce { .. } => None,
            Source::Buffer { buffer, offset } => Some((machine_buffers.memory(buffer), offset)),
            Source::Request { request, offset } => {
                operations.get(request).map(|outstanding| (&outstanding.memory, offset))
            }
            Source::Region { key, offset } => regions.get(&key).map(|region| (&region.memory, offset)),
        };
        link.transmit(to, packet, from)
    }
}

/// Reports the end of a held operation.
#[inline(always)]
pub(crate) fn complete_held(
    operations: &mut Operations,
    completions: &mut VecDeque<Completion>,
    request: Request,
    outcome: Outcome,
) {
    let outstanding = operations.get(request).expect("completed operations are outstanding");
    let buffer = match &outcome {
        Outcome::Received { offset, .. } => {
            outstanding.memory.contiguous_address().map_or(0, |start| start + *offset as usize)
        }
        _ => 0,
    };
    let Outstanding { post, operation, space, .. } = *outstanding;
    completions.push_back(Completion { post, operation, space, outcome, buffer });
    if !matches!(outcome, Outcome::Received { last: false, .. }) {
        operations.end(request);
    }
}
