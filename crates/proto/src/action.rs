//! Actions: calls of a driver as values, for drivers that act later ([`crate::Recorder`]). Calls that only inform or
//! ask the driver have no action. It also has the arguments that all drivers get: [`Source`], [`Destination`],
//! [`MemoryCopy`], [`Envelope`], [`Outcome`].
//!
//! Payload is named by request, transfer, message, region or buffer. Only a copy has an address, that of the peer's
//! memory.

use crate::event::{BufferId, MessageId, Peer, PeerFault, Request, Transfer};
use crate::offload::Offloaded;
use crate::packet::{Packet, RemoteAddress};
use crate::time::Instant;
use crate::timers::Timer;

/// A call of [`crate::Driver`]; the driver says what each means.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Prepare to send to `to`. The driver answers with `Connected` or `Lost`. The answer may be late if all lanes are
    /// in use.
    Connect {
        /// The peer.
        to: Peer,
    },
    /// Put `packet` on the link, with `packet.payload_bytes` bytes from `payload`. The machine has credits for the
    /// slots, so the packet always fits. The driver fills in the address of a rendezvous header and of a `Located`
    /// reply.
    Transmit {
        /// The peer.
        to: Peer,
        /// The packet.
        packet: Packet,
        /// The source of its payload.
        payload: Source,
    },
    /// The packet before this action was `Detach`: write no more into our lane at `to`.
    Disconnect {
        /// The peer.
        to: Peer,
    },
    /// `peer` has detached from our mailbox, and all its packets are retired: its lane is free.
    FreeLane {
        /// The peer.
        peer: Peer,
    },
    /// Schemes without credits: answer with `Room` when at least one slot is free at `to`.
    AskRoom {
        /// The peer.
        to: Peer,
        /// Answer at once, even if no slot is free. The machine has a timer for that case.
        at_once: bool,
    },
    /// Report `TimerExpired` at `at` or soon after. A timer that is set already gets the new time.
    SetTimer {
        /// The timer.
        timer: Timer,
        /// When.
        at: Instant,
    },
    /// Do not report `timer`, which is set.
    CancelTimer {
        /// The timer.
        timer: Timer,
    },
    /// Allocate an unexpected buffer of `bytes` bytes.
    AllocateUnexpected {
        /// The name of the buffer.
        message: MessageId,
        /// Length of the message.
        bytes: u64,
    },
    /// Copy the first `bytes` payload bytes of the packet that has just arrived.
    Place {
        /// The destination.
        to: Destination,
        /// Number of bytes.
        bytes: u64,
    },
    /// The machine needs the arrived packet no more: its slots are free. This action comes exactly once after each
    /// `Arrived`, before any packet that returns credits for those slots.
    Retire,
    /// The packet that has just arrived is one of an offloaded machine of this endpoint.
    PassOn {
        /// The sender.
        from: Peer,
        /// The number of the operation.
        number: u32,
        /// The packet.
        packet: Offloaded,
        /// Its payload, which lies in the slots. Unit: bytes.
        payload_bytes: u32,
    },
    /// The last packet of a machine's answer has left, or none of it leaves any more: its buffer ends.
    AnswerLeft {
        /// The buffer.
        buffer: BufferId,
    },
    /// Copy the first `bytes` bytes of the unexpected buffer of `message` into the buffer of `request` at `offset`.
    Deliver {
        /// The message.
        message: MessageId,
        /// The receive.
        request: Request,
        /// Offset in the receive buffer.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// Free the unexpected buffer of `message`.
    FreeUnexpected {
        /// The message.
        message: MessageId,
    },
    /// Copy the whole buffer of `request` into a bounce buffer of the driver. `transfer` names the bounce buffer, and
    /// peers may read it.
    FillBounce {
        /// Its name, see [`Transfer::bounce_buffer`].
        transfer: Transfer,
        /// Whose buffer.
        request: Request,
    },
    /// Free the bounce buffer of `transfer`.
    FreeBounce {
        /// Its name.
        transfer: Transfer,
    },
    /// Copy between the buffer of a request and the memory of the peer's process. The driver answers with `CopyDone`.
    Copy(MemoryCopy),
    /// `peer` is lost: read and write its lanes no more. Do not report pending copies with it, because their names may
    /// be in use again by then.
    DropPeer {
        /// The peer.
        peer: Peer,
    },
    /// The offloaded machines of this endpoint end their operations with `peer`.
    PeerLost {
        /// The peer.
        peer: Peer,
        /// The reason why it is lost.
        fault: PeerFault,
    },
    /// A peer has written to our memory and asks to notify the program.
    Notify {
        /// The writer.
        from: Peer,
        /// Its completion data.
        data: u64,
        /// Bytes written.
        bytes: u64,
    },
    /// Report a completion to the program. The request is free again unless the outcome is `Received` with `last:
    /// false`.
    Complete {
        /// The request.
        request: Request,
        /// Its outcome.
        outcome: Outcome,
    },
}

/// A copy between the buffer of `request` and the memory of the peer's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryCopy {
    /// The transfer to which `CopyDone` refers.
    pub transfer: Transfer,
    /// Whose buffer.
    pub request: Request,
    /// The peer.
    pub peer: Peer,
    /// From the peer to us, or from us to it.
    pub direction: Direction,
    /// Where the peer's memory is.
    pub address: RemoteAddress,
    /// Offset in the request's buffer. Unit: bytes.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Direction of a copy between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the peer's memory to ours.
    Get,
    /// From our memory to the peer's.
    Put,
}

/// The memory in which the payload of an outgoing packet lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The packet has no payload.
    None,
    /// In the buffer of one of our requests.
    Request {
        /// The request.
        request: Request,
        /// Offset in its buffer.
        offset: u64,
    },
    /// In a registered region of ours.
    Region {
        /// Its key.
        key: u64,
        /// Offset in it.
        offset: u64,
    },
    /// In a bounce buffer that [`crate::PayloadDriver::fill_bounce`] has filled.
    Bounce {
        /// Its name.
        transfer: Transfer,
        /// Offset in it.
        offset: u64,
    },
    /// In a buffer of an offloaded machine ([`crate::MachineDriver::allocate`]).
    Buffer {
        /// Its name.
        buffer: BufferId,
        /// Offset in it.
        offset: u64,
    },
}

/// The memory to which the payload of an arrived packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Into the buffer of one of our requests.
    Request {
        /// The request.
        request: Request,
        /// Offset in its buffer.
        offset: u64,
    },
    /// Into the buffer of an unexpected message.
    Message {
        /// The message.
        message: MessageId,
        /// Offset in it.
        offset: u64,
    },
    /// Into a registered region of ours. The machine has checked the bounds and the access rights.
    Region {
        /// Its key.
        key: u64,
        /// Offset in it.
        offset: u64,
    },
}

/// The metadata of a message, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The sender.
    pub from: Peer,
    /// 64-bit tag.
    pub tag: u64,
    /// Remote completion data.
    pub data: Option<u64>,
    /// Length of the message as sent. Unit: bytes.
    pub length: u64,
}

/// The outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A send or write has reached its completion level, or a read has its data.
    Done,
    /// A message was received.
    Received {
        /// The message. `length > bytes` means that it was truncated.
        envelope: Envelope,
        /// Bytes delivered.
        bytes: u64,
        /// Offset of their start in the receive buffer (multi-receive; otherwise 0).
        offset: u64,
        /// The program owns the receive buffer again.
        last: bool,
    },
    /// The program owns a multi-receive buffer again. All messages in it have completed before.
    Released,
    /// A peek or a discard found this message.
    Found {
        /// The message.
        envelope: Envelope,
        /// Its name, if it was claimed.
        claimed: Option<MessageId>,
    },
    /// A peek found none.
    Absent,
    /// A receive was canceled.
    Canceled,
    /// The peer is lost.
    Lost {
        /// The peer. `None` for a receive from any source.
        peer: Option<Peer>,
        /// The reason.
        fault: PeerFault,
    },
    /// The peer refused a remote read or write: no such key, bounds or rights.
    Refused,
}
