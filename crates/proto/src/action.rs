//! What the endpoint wants done: the right border of the machine.

use crate::event::{MessageId, Peer, PeerFault, Request, Transfer};
use crate::packet::Packet;

/// What to do next, in this order. Payloads are named, never carried.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Set up sending to `to`; answer with `Connected` (perhaps much later, if others come first) or `Lost`.
    Connect {
        /// The peer.
        to: Peer,
    },
    /// Put `packet` on the link, with `packet.payload_bytes` bytes from `payload`. The slots are credited:
    /// it always fits. For a rendezvous header and a `Located` reply the driver fills in the address.
    Transmit {
        /// The peer.
        to: Peer,
        /// The packet.
        packet: Packet,
        /// Where its payload comes from.
        payload: Source,
    },
    /// We have left the mailbox of `to` with the packet before: its lane is written no more.
    Disconnect {
        /// The peer.
        to: Peer,
    },
    /// `peer` has left our mailbox, and everything it sent there is retired: its lane is free.
    FreeLane {
        /// The peer.
        peer: Peer,
    },
    /// Schemes that claim conditionally: answer with `Room` when at least one slot is free at `to`.
    AskRoom {
        /// The peer.
        to: Peer,
        /// Answer at once, also that there is none: the machine has a timer for that.
        at_once: bool,
    },
    /// Make a buffer for an unexpected message of `bytes` bytes.
    AllocateUnexpected {
        /// Its name from now on.
        message: MessageId,
        /// Its whole length.
        bytes: u64,
    },
    /// Copy the first `bytes` payload bytes of the packet that has just arrived.
    Place {
        /// Where to.
        to: Destination,
        /// How many.
        bytes: u64,
    },
    /// The packet that has just arrived is done with: its slots are free from here on. Comes exactly once after each
    /// `Arrived`, before any credit for those slots leaves.
    Retire,
    /// Copy the first `bytes` bytes kept for `message` into the buffer of `request` at `offset`.
    Deliver {
        /// The message.
        message: MessageId,
        /// The receive.
        request: Request,
        /// Offset in the receive buffer.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// The buffer kept for `message` is no longer needed.
    FreeUnexpected {
        /// The message.
        message: MessageId,
    },
    /// Copy the whole buffer of `request` into memory of the driver's, where `transfer` names it from now on and peers may
    /// read it.
    FillBounce {
        /// Its name, with [`Transfer::copy`].
        transfer: Transfer,
        /// Whose buffer.
        request: Request,
    },
    /// The copy made for `transfer` is no longer needed.
    FreeBounce {
        /// Its name.
        transfer: Transfer,
    },
    /// Copy between the buffer of `request` and the memory of `peer`'s process; answer with `CopyDone`.
    Copy {
        /// What `CopyDone` refers to.
        transfer: Transfer,
        /// Whose buffer.
        request: Request,
        /// The peer.
        peer: Peer,
        /// From the peer to us, or from us to it.
        direction: Direction,
        /// Address in the peer's process.
        address: u64,
        /// Offset in the request's buffer.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// `peer` is lost: read and write its lanes no more, and do not report copies with it that are under way: their names
    /// may stand for something else by then.
    DropPeer {
        /// The peer.
        peer: Peer,
    },
    /// A peer has written to our memory and wants us to know.
    Notify {
        /// The writer.
        from: Peer,
        /// Its completion data.
        data: u64,
        /// Bytes written.
        bytes: u64,
    },
    /// Tell the program. The request is free again unless the outcome is `Received` with `last: false`.
    Complete {
        /// The request.
        request: Request,
        /// How it ended.
        outcome: Outcome,
    },
}

/// Direction of a copy between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the peer's memory to ours.
    Get,
    /// From our memory to the peer's.
    Put,
}

/// Where the payload of a packet to be sent lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// It has none.
    None,
    /// In the buffer of a request of ours.
    Request {
        /// The request.
        request: Request,
        /// Offset in its buffer.
        offset: u64,
    },
    /// In memory that we expose.
    Region {
        /// Its key.
        key: u64,
        /// Offset in it.
        offset: u64,
    },
    /// In a copy that [`Action::FillBounce`] has made.
    Bounce {
        /// Its name.
        transfer: Transfer,
        /// Offset in it.
        offset: u64,
    },
}

/// Where the payload of an arrived packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Into the buffer of a request of ours.
    Request {
        /// The request.
        request: Request,
        /// Offset in its buffer.
        offset: u64,
    },
    /// Into the buffer kept for an unexpected message.
    Message {
        /// The message.
        message: MessageId,
        /// Offset in it.
        offset: u64,
    },
    /// Into memory that we expose. Checked against the region's bounds and rights.
    Region {
        /// Its key.
        key: u64,
        /// Offset in it.
        offset: u64,
    },
}

/// What is known of a message before its payload is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Who sent it.
    pub from: Peer,
    /// 64-bit tag.
    pub tag: u64,
    /// Remote completion data.
    pub data: Option<u64>,
    /// Whole length as sent. Unit: bytes.
    pub length: u64,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A send or write reached its level, or a read has its data.
    Done,
    /// A message was received.
    Received {
        /// The message. `length > bytes` means that it was truncated.
        envelope: Envelope,
        /// Bytes delivered.
        bytes: u64,
        /// Where they start in the receive buffer (multi-receive; otherwise 0).
        offset: u64,
        /// The receive buffer is the program's again.
        last: bool,
    },
    /// A multi-receive buffer is the program's again; all its messages have been completed before.
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
    /// A receive was taken back.
    Canceled,
    /// The peer is gone.
    Lost {
        /// The peer; `None` for a receive that would have accepted any.
        peer: Option<Peer>,
        /// Why.
        fault: PeerFault,
    },
    /// The peer refused a remote read or write: no such key, bounds or rights.
    Refused,
}
