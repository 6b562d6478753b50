//! The driver of a rank's endpoint machine. It performs what the machine wants done at once, and charges the prices to the
//! rank's processor (`actions.rs`). [`DriverState`] is the part of a rank that it reads and changes.
//!
//! The machine's time stands still while it handles an event, whatever its actions cost.

use std::rc::Rc;

use weir_proto::offload::Offloaded;
use weir_proto::{
    BufferId, Destination, Driver, Instant, LinkBusy, LinkDriver, MachineEvent, MemoryCopy, MessageId,
    OperationDriver, Outcome, Packet, PayloadDriver, Peer, PeerFault, Request, Source, TimeDriver, Timer,
    TimerQueue, Transfer,
};

use super::super::machines::Machines;
use super::super::peer_numbers::PeerNumbers;
use super::retrieval::place_ps;
use super::{Get, Phase, StepContext};
use crate::Picoseconds;
use crate::network::TrainId;
use crate::program::Shared;

/// The part of a rank that its driver reads and changes.
pub(super) struct DriverState {
    pub rank: u32,
    /// Under `hardware` the NIC runs them, otherwise the processor. Most ranks never set one.
    pub timers: Option<Box<TimerQueue>>,
    /// Our numbers of the other ranks.
    pub peers: PeerNumbers,
    pub shared: Rc<Shared>,
    pub phase: Phase,
    /// The processor is busy until this time.
    pub free_at: Picoseconds,
    /// Number of remote gets, and of operations on the NIC, whose ends come as notices.
    pub gets: u32,
    /// The offloaded machines, if the processor drives them and there was something to do.
    pub machines: Option<Box<Machines>>,
    /// Number of pending operations of the program.
    pub open: u32,
    /// Call time of the send whose actions are performed.
    pub called_at: Picoseconds,
    /// Start time of the current work of the processor.
    pub since: Picoseconds,
}

/// The driver while the machine handles one event.
pub(super) struct RankDriver<'event, 'context> {
    pub now: Instant,
    pub state: &'event mut DriverState,
    pub context: &'event mut StepContext<'context>,
    /// The train of the last packet. The next packet may continue it.
    pub train: Option<TrainId>,
    /// The next packet to this peer is a copy of one that has left.
    pub copy: Option<Peer>,
}

/// Methods of calls that do not come in a world without detaching and remote writes.
macro_rules! never {
    ($($name:ident($($type:ty),*);)*) => {
        $(
            fn $name(&mut self, $(_: $type),*) {
                panic!(concat!(stringify!($name), " in a world without detaching and remote writes"))
            }
        )*
    };
}

impl TimeDriver for RankDriver<'_, '_> {
    #[inline]
    fn now(&mut self) -> Instant {
        self.now
    }

    fn set_timer(&mut self, timer: Timer, at: Instant) {
        self.state.timers.get_or_insert_default().set(timer, at);
    }

    fn cancel_timer(&mut self, timer: Timer) {
        if let Some(timers) = &mut self.state.timers {
            timers.cancel(timer);
        }
    }
}

impl LinkDriver for RankDriver<'_, '_> {
    fn connect(&mut self, to: Peer) {
        self.state.connect(to, self.context);
    }

    #[inline]
    fn transmit(&mut self, to: Peer, packet: &Packet, payload: Source) -> Result<(), LinkBusy> {
        if self.copy.is_some() && self.copy.take_if(|copy| *copy == to).is_some() {
            self.train = None;
            self.state.transmit_copy(to, packet, payload, self.context);
            return Ok(());
        }
        self.state.transmit(to, packet, payload, &mut self.train, self.context);
        Ok(())
    }

    fn copy_leaves(&mut self, to: Peer, before: u32) {
        self.copy = (before > 0).then_some(to);
    }

    fn ask_room(&mut self, to: Peer, _at_once: bool) {
        self.state.ask_room(to, self.context);
    }

    #[inline]
    fn retire(&mut self) {
        self.state.retire(self.context);
    }

    fn drop_peer(&mut self, peer: Peer) {
        assert!(self.context.may_lose, "{peer:?} is lost in a world without lost peers");
        self.context.deferred.severed.push(self.state.peers.rank(peer.0));
    }

    never! {
        disconnect(Peer);
        free_lane(Peer);
    }
}

impl PayloadDriver for RankDriver<'_, '_> {
    fn fill_bounce(&mut self, _transfer: Transfer, request: Request) {
        // The copy that completes the send. The numbers of bounce buffers do not matter here.
        let bytes = self.state.started(request).bytes;
        self.state.free_at += self.context.cost.unexpected_copy_ps(bytes);
    }

    fn free_bounce(&mut self, _transfer: Transfer) {}

    #[inline]
    fn allocate_unexpected(&mut self, _message: MessageId, _bytes: u64) {}

    #[inline]
    fn place(&mut self, to: Destination, bytes: u64) {
        self.state.free_at += place_ps(to, bytes, self.context.cost);
    }

    #[inline]
    fn deliver(&mut self, _message: MessageId, _request: Request, _offset: u64, bytes: u64) {
        self.state.free_at += self.context.cost.copy_ps(bytes);
    }

    #[inline]
    fn free_unexpected(&mut self, _message: MessageId) {}

    fn copy(&mut self, copy: MemoryCopy) {
        let MemoryCopy { transfer, peer, bytes, .. } = copy;
        let state = &mut *self.state;
        state.free_at += self.context.cost.get_ps;
        let get = Get { at: state.free_at, from: state.peers.rank(peer.0), bytes, number: transfer.0 };
        self.context.deferred.gets.push(get);
        state.gets += 1;
    }
}

impl OperationDriver for RankDriver<'_, '_> {
    #[inline]
    fn complete(&mut self, request: Request, outcome: Outcome) {
        self.state.complete(request, outcome, self.context);
    }

    never! {
        notify(Peer, u64, u64);
    }
}

impl Driver for RankDriver<'_, '_> {
    fn pass_on(&mut self, from: Peer, number: u32, packet: &Offloaded, payload_bytes: u32) {
        let event = MachineEvent::Arrived { from, number, packet: *packet, payload_bytes };
        self.state.offload(event, self.context);
    }

    fn answer_left(&mut self, buffer: BufferId) {
        self.state.machines.as_mut().expect("a machine has sent it").end_buffer(buffer);
    }

    fn peer_lost(&mut self, peer: Peer, fault: PeerFault) {
        if self.state.machines.is_some() {
            self.state.offload(MachineEvent::Lost { peer, fault }, self.context);
        }
    }
}
