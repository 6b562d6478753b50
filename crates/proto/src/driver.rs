//! The driver: the calls that the endpoint machine makes while it handles an event.
//!
//! The endpoint decides, and the driver acts at once: it puts packets on links, copies payload, and reports
//! completions. The engine drives real links. The ranks of the simulator drive modelled processors, with a driver of its
//! own for packets before their time. The simulator's NICs, the search and most tests use a [`Recorder`], which notes
//! calls as [`Action`]s. It can also refuse packets as a busy link does. All of them call [`crate::Endpoint::handle`],
//! so there is one way through the protocol.
//!
//! Worked exchange, an 8 B message that matches a posted receive:
//! ```text
//! handle(Arrived { from 0, Eager })    driver.deliver_packet(request 3, envelope, 8 bytes), driver.retire()
//! ```

use alloc::vec::Vec;

use crate::action::{Action, Destination, Envelope, MemoryCopy, Outcome, Source};
use crate::event::{BufferId, MessageId, Peer, PeerFault, Request, Transfer};
use crate::offload::Offloaded;
use crate::packet::{Packet, RemoteAddress};
use crate::time::Instant;
use crate::timers::Timer;

/// The link takes no packet to this peer now, and has kept nothing of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkBusy;

/// Tells the time and keeps the timers.
pub trait TimeDriver {
    /// The time. The endpoint asks only where it needs the time.
    fn now(&mut self) -> Instant;

    /// Report [`crate::Event::TimerExpired`] at `at` or soon after. A timer that is set already gets the new time.
    fn set_timer(&mut self, timer: Timer, at: Instant);

    /// Do not report `timer`, which is set.
    fn cancel_timer(&mut self, timer: Timer);
}

/// Puts packets on links, and takes and gives back lanes.
pub trait LinkDriver {
    /// Prepare to send to `to`. The answer is `Connected` or `Lost`. It may be late if all lanes are in use.
    fn connect(&mut self, to: Peer);

    /// Put `packet` on the link, with `packet.payload_bytes` bytes from `payload`. The endpoint has credits for the
    /// slots, so the packet always fits at the receiver.
    ///
    /// # Errors
    /// [`LinkBusy`]: the link takes nothing for `to` now. The driver reports `LinkReady` when it does.
    fn transmit(&mut self, to: Peer, packet: &Packet, payload: Source) -> Result<(), LinkBusy>;

    /// The last packet to `to` was `Detach`: write no more into our lane there.
    fn disconnect(&mut self, to: Peer);

    /// `peer` has detached from our mailbox, and all its packets are retired: its lane is free.
    fn free_lane(&mut self, peer: Peer);

    /// Schemes without credits: answer with `Room` when at least one slot is free at `to`. `at_once`: answer even if no
    /// slot is free, because the endpoint has a timer for that case.
    fn ask_room(&mut self, to: Peer, at_once: bool);

    /// The endpoint needs the arrived packet no more: its slots are free. This call comes exactly once after each
    /// `Arrived`, before any packet that returns credits for those slots.
    fn retire(&mut self);

    /// Whether the driver handles packets before their time, to do so at less cost. Then the endpoint takes only packets
    /// of posted receives, and refuses all others unchanged.
    #[inline(always)]
    fn acts_early(&self) -> bool {
        false
    }

    /// A copy of a multi-send leaves next: the first packet to `to` from now on. `before`: copies of it that have
    /// left. The payload of all is the same, so a link that can clone packets needs it once.
    #[inline(always)]
    fn copy_leaves(&mut self, to: Peer, before: u32) {
        let _ = (to, before);
    }

    /// Credits for `peer` are due after an arrival. Returns whether the driver reports `CreditsDue` later, instead of
    /// having them sent now.
    #[inline(always)]
    fn defers_credits(&mut self, peer: Peer) -> bool {
        let _ = peer;
        false
    }

    /// `peer` is lost: read and write its lanes no more. Do not report pending copies with it, because their names may be
    /// in use again by then.
    fn drop_peer(&mut self, peer: Peer);
}

/// Copies and announces payload, and keeps the buffers of messages that wait.
pub trait PayloadDriver {
    /// The next packet to `to` announces the `bytes` bytes that `payload` names, as `transfer`. Returns where
    /// the peer may read or write them.
    #[inline(always)]
    fn announce(&mut self, to: Peer, transfer: Transfer, payload: Source, bytes: u64) -> RemoteAddress {
        let _ = (to, transfer, payload, bytes);
        RemoteAddress::NONE
    }

    /// Whether `to` can read memory of ours that it was told of without our help.
    #[inline(always)]
    fn may_read(&mut self, to: Peer) -> bool {
        let _ = to;
        true
    }

    /// Whether memory of `to` can be written without packets, if `to` says where it is.
    #[inline(always)]
    fn may_write(&mut self, to: Peer) -> bool {
        let _ = to;
        true
    }

    /// `from` has announced a message of `bytes` bytes at `address` of its memory.
    #[inline(always)]
    fn announcement_arrived(&mut self, from: Peer, address: RemoteAddress, bytes: u64) {
        let _ = (from, address, bytes);
    }

    /// `peer` does not need `count` announced transfers from `first` on any more.
    #[inline(always)]
    fn announcements_ended(&mut self, peer: Peer, first: Transfer, count: u32) {
        let _ = (peer, first, count);
    }

    /// An injected message to `to` needs a bounce buffer, and the limit is reached. `held`: bounce buffers for `to`.
    /// Returns whether it may exceed the limit. If not, the endpoint refuses the command.
    #[inline(always)]
    fn may_exceed_bounce_limit(&mut self, to: Peer, held: u32) -> bool {
        let _ = (to, held);
        true
    }

    /// Copy the whole buffer of `request` into a bounce buffer. `transfer` names it, and peers may read it.
    fn fill_bounce(&mut self, transfer: Transfer, request: Request);

    /// Free the bounce buffer of `transfer`.
    fn free_bounce(&mut self, transfer: Transfer);

    /// Allocate an unexpected buffer of `bytes` bytes for the whole of `message`.
    fn allocate_unexpected(&mut self, message: MessageId, bytes: u64);

    /// Copy the first `bytes` payload bytes of the packet that has just arrived.
    fn place(&mut self, to: Destination, bytes: u64);

    /// Copy the first `bytes` bytes of the unexpected buffer of `message` into the buffer of `request` at `offset`.
    fn deliver(&mut self, message: MessageId, request: Request, offset: u64, bytes: u64);

    /// Free the unexpected buffer of `message`.
    fn free_unexpected(&mut self, message: MessageId);

    /// Copy between the memory of the two processes. The answer is `CopyDone`.
    fn copy(&mut self, copy: MemoryCopy);
}

/// Keeps the operations of the program, and reports their ends.
pub trait OperationDriver: PayloadDriver {
    /// Whether [`OperationDriver::hold`] can take one more operation. If not, the endpoint refuses the command.
    #[inline(always)]
    fn can_hold(&self) -> bool {
        true
    }

    /// The posted operation `request` does not end in this event. Returns its name from now on. A driver can give a
    /// number to an operation here, so that operations that end at once need none.
    ///
    /// `announced`: until it completes, a peer may read the buffer of the operation by its address.
    #[inline(always)]
    fn hold(&mut self, request: Request, announced: bool) -> Request {
        let _ = announced;
        request
    }

    /// Report a completion to the program. The request is free again unless the outcome is `Received` with `last: false`.
    fn complete(&mut self, request: Request, outcome: Outcome);

    /// The posted operation `request`, which is not held, ends in this event. Equals [`OperationDriver::complete`].
    #[inline(always)]
    fn complete_posted(&mut self, request: Request, outcome: Outcome) {
        self.complete(request, outcome);
    }

    /// The packet that has just arrived is a whole message for the single-message receive `request`: place its first
    /// `bytes` bytes at the start of the buffer, and complete the receive. Equals [`PayloadDriver::place`] (if there are bytes)
    /// and [`OperationDriver::complete`].
    #[inline(always)]
    fn deliver_packet(&mut self, request: Request, envelope: Envelope, bytes: u64) {
        if bytes > 0 {
            self.place(Destination::Request { request, offset: 0 }, bytes);
        }
        self.complete(request, Outcome::Received { envelope, bytes, offset: 0, last: true });
    }

    /// `count` messages to `peer`, which is lost, do not arrive although their sends are complete. No completion shows it:
    /// the program injected them, or they lay in bounce buffers.
    #[inline(always)]
    fn messages_lost(&mut self, peer: Peer, count: u32, fault: PeerFault) {
        let _ = (peer, count, fault);
    }

    /// `from` has written `bytes` bytes to our memory and asks to notify the program, with its completion data.
    fn notify(&mut self, from: Peer, data: u64, bytes: u64);
}

/// Performs what the endpoint decides, in the order of the calls. Calls name payload by request, transfer, message or
/// region. A driver that has an answer to a call reports it as an event after `handle` has returned.
///
/// Its calls are in traits by what they concern. Those of this trait concern the offloaded machines of the endpoint.
pub trait Driver: TimeDriver + LinkDriver + PayloadDriver + OperationDriver {
    /// The packet that has just arrived is one of an offloaded machine of this endpoint: `packet` of the operation
    /// `number`, with `payload_bytes` bytes in the slots. The machine handles it now, as [`crate::MachineEvent::Arrived`]. The driver reports what it sends as
    /// [`crate::Event::Outgoing`].
    fn pass_on(&mut self, from: Peer, number: u32, packet: &Offloaded, payload_bytes: u32);

    /// The last packet of a machine's answer has left, or none of it leaves any more: its buffer, which an earlier
    /// [`crate::Event::Outgoing`] named, ends ([`Offloaded::owns_payload`]).
    fn answer_left(&mut self, buffer: BufferId);

    /// The offloaded machines of this endpoint end their operations with `peer` ([`crate::MachineEvent::Lost`]). This
    /// call comes when the peer is lost, and for each packet that a machine sends to it later.
    fn peer_lost(&mut self, peer: Peer, fault: PeerFault);
}

/// Writes a method that calls the same method of the driver behind a reference.
macro_rules! forward {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(
            #[inline(always)]
            fn $name(&mut self, $($argument: $type),*) $(-> $result)? {
                (**self).$name($($argument),*)
            }
        )*
    };
}

impl<D: TimeDriver + ?Sized> TimeDriver for &mut D {
    forward! {
        now() -> Instant;
        set_timer(timer: Timer, at: Instant);
        cancel_timer(timer: Timer);
    }
}

impl<D: LinkDriver + ?Sized> LinkDriver for &mut D {
    #[inline(always)]
    fn acts_early(&self) -> bool {
        (**self).acts_early()
    }

    forward! {
        connect(to: Peer);
        transmit(to: Peer, packet: &Packet, payload: Source) -> Result<(), LinkBusy>;
        disconnect(to: Peer);
        free_lane(peer: Peer);
        ask_room(to: Peer, at_once: bool);
        retire();
        copy_leaves(to: Peer, before: u32);
        defers_credits(peer: Peer) -> bool;
        drop_peer(peer: Peer);
    }
}

impl<D: PayloadDriver + ?Sized> PayloadDriver for &mut D {
    forward! {
        announce(to: Peer, transfer: Transfer, payload: Source, bytes: u64) -> RemoteAddress;
        may_read(to: Peer) -> bool;
        may_write(to: Peer) -> bool;
        announcement_arrived(from: Peer, address: RemoteAddress, bytes: u64);
        announcements_ended(peer: Peer, first: Transfer, count: u32);
        may_exceed_bounce_limit(to: Peer, held: u32) -> bool;
        fill_bounce(transfer: Transfer, request: Request);
        free_bounce(transfer: Transfer);
        allocate_unexpected(message: MessageId, bytes: u64);
        place(to: Destination, bytes: u64);
        deliver(message: MessageId, request: Request, offset: u64, bytes: u64);
        free_unexpected(message: MessageId);
        copy(copy: MemoryCopy);
    }
}

impl<D: OperationDriver + ?Sized> OperationDriver for &mut D {
    #[inline(always)]
    fn can_hold(&self) -> bool {
        (**self).can_hold()
    }

    forward! {
        hold(request: Request, announced: bool) -> Request;
        complete(request: Request, outcome: Outcome);
        complete_posted(request: Request, outcome: Outcome);
        deliver_packet(request: Request, envelope: Envelope, bytes: u64);
        messages_lost(peer: Peer, count: u32, fault: PeerFault);
        notify(from: Peer, data: u64, bytes: u64);
    }
}

impl<D: Driver + ?Sized> Driver for &mut D {
    forward! {
        pass_on(from: Peer, number: u32, packet: &Offloaded, payload_bytes: u32);
        answer_left(buffer: BufferId);
        peer_lost(peer: Peer, fault: PeerFault);
    }
}

/// A driver that notes every call as an [`Action`], for drivers that act later. Its time stands still. It announces no
/// addresses: whoever performs a transmit fills them in.
#[derive(Debug)]
pub struct Recorder<'actions> {
    now: Instant,
    actions: &'actions mut Vec<Action>,
    /// Packets that the link takes before it is busy. `None`: it is never busy.
    takes_packets: Option<u32>,
    /// Peers to which the link has refused a packet.
    pub refused: Vec<Peer>,
    defers_credits: bool,
    /// Peers whose due credits it has deferred. [`crate::Event::CreditsDue`] must follow for each.
    pub deferred: Vec<Peer>,
    non_readers: Vec<Peer>,
}

impl<'actions> Recorder<'actions> {
    /// Appends to `actions`. Events happen at `now`.
    pub fn new(now: Instant, actions: &'actions mut Vec<Action>) -> Recorder<'actions> {
        Recorder {
            now,
            actions,
            takes_packets: None,
            refused: Vec::new(),
            defers_credits: false,
            deferred: Vec::new(),
            non_readers: Vec::new(),
        }
    }

    /// The same with a link that takes `packets` packets and is busy then.
    pub fn with_busy_link(
        now: Instant,
        actions: &'actions mut Vec<Action>,
        packets: u32,
    ) -> Recorder<'actions> {
        Recorder { takes_packets: Some(packets), ..Recorder::new(now, actions) }
    }

    /// The same, and it defers credits that are due after an arrival, if `defers`.
    #[must_use]
    pub fn deferring_credits(self, defers: bool) -> Self {
        Recorder { defers_credits: defers, ..self }
    }

    /// The same, and these peers cannot read our memory.
    #[must_use]
    pub fn with_non_readers(self, non_readers: Vec<Peer>) -> Self {
        Recorder { non_readers, ..self }
    }
}

impl TimeDriver for Recorder<'_> {
    fn now(&mut self) -> Instant {
        self.now
    }

    fn set_timer(&mut self, timer: Timer, at: Instant) {
        self.actions.push(Action::SetTimer { timer, at });
    }

    fn cancel_timer(&mut self, timer: Timer) {
        self.actions.push(Action::CancelTimer { timer });
    }
}

impl LinkDriver for Recorder<'_> {
    fn connect(&mut self, to: Peer) {
        self.actions.push(Action::Connect { to });
    }

    fn transmit(&mut self, to: Peer, packet: &Packet, payload: Source) -> Result<(), LinkBusy> {
        if let Some(packets) = &mut self.takes_packets {
            let Some(left) = packets.checked_sub(1) else {
                self.refused.push(to);
                return Err(LinkBusy);
            };
            *packets = left;
        }
        self.actions.push(Action::Transmit { to, packet: *packet, payload });
        Ok(())
    }

    fn disconnect(&mut self, to: Peer) {
        self.actions.push(Action::Disconnect { to });
    }

    fn free_lane(&mut self, peer: Peer) {
        self.actions.push(Action::FreeLane { peer });
    }

    fn ask_room(&mut self, to: Peer, at_once: bool) {
        self.actions.push(Action::AskRoom { to, at_once });
    }

    fn retire(&mut self) {
        self.actions.push(Action::Retire);
    }

    fn defers_credits(&mut self, peer: Peer) -> bool {
        if self.defers_credits {
            self.deferred.push(peer);
        }
        self.defers_credits
    }

    fn drop_peer(&mut self, peer: Peer) {
        self.actions.push(Action::DropPeer { peer });
    }
}

impl PayloadDriver for Recorder<'_> {
    fn may_read(&mut self, to: Peer) -> bool {
        !self.non_readers.contains(&to)
    }

    fn allocate_unexpected(&mut self, message: MessageId, bytes: u64) {
        self.actions.push(Action::AllocateUnexpected { message, bytes });
    }

    fn place(&mut self, to: Destination, bytes: u64) {
        self.actions.push(Action::Place { to, bytes });
    }

    fn deliver(&mut self, message: MessageId, request: Request, offset: u64, bytes: u64) {
        self.actions.push(Action::Deliver { message, request, offset, bytes });
    }

    fn free_unexpected(&mut self, message: MessageId) {
        self.actions.push(Action::FreeUnexpected { message });
    }

    fn fill_bounce(&mut self, transfer: Transfer, request: Request) {
        self.actions.push(Action::FillBounce { transfer, request });
    }

    fn free_bounce(&mut self, transfer: Transfer) {
        self.actions.push(Action::FreeBounce { transfer });
    }

    fn copy(&mut self, copy: MemoryCopy) {
        self.actions.push(Action::Copy(copy));
    }
}

impl OperationDriver for Recorder<'_> {
    fn notify(&mut self, from: Peer, data: u64, bytes: u64) {
        self.actions.push(Action::Notify { from, data, bytes });
    }

    fn complete(&mut self, request: Request, outcome: Outcome) {
        self.actions.push(Action::Complete { request, outcome });
    }
}

impl Driver for Recorder<'_> {
    fn pass_on(&mut self, from: Peer, number: u32, packet: &Offloaded, payload_bytes: u32) {
        self.actions.push(Action::PassOn { from, number, packet: *packet, payload_bytes });
    }

    fn answer_left(&mut self, buffer: BufferId) {
        self.actions.push(Action::AnswerLeft { buffer });
    }

    fn peer_lost(&mut self, peer: Peer, fault: PeerFault) {
        self.actions.push(Action::PeerLost { peer, fault });
    }
}
