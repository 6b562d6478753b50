//! What a driver tells the endpoint: the left border of the machine.

use crate::packet::{Packet, Space};

/// Another endpoint, as this endpoint numbers it. Dense from 0; the driver maps addresses to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer(pub u32);

/// The program's handle for one operation. The driver gives it; the machine only hands it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Request(pub u32);

/// Something between us and a peer that outlives a packet: a message that waits to be taken, a copy, a remote
/// read or write. Names cross the wire, so that the other side can refer to them; each side has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Transfer(pub u32);

impl Transfer {
    /// Set in the names of transfers whose payload is a copy of the driver's ([`crate::Action::FillBounce`]): nobody waits for
    /// word of their end.
    const BOUNCE: u32 = 1 << 31;

    /// The name of a retained copy.
    pub(crate) fn of_bounce_buffer(number: u32) -> Transfer {
        Transfer(number | Transfer::BOUNCE)
    }

    /// The number of the retained copy that it names, if it does. Dense from 0.
    #[inline]
    pub fn bounce_buffer(self) -> Option<u32> {
        (self.0 & Transfer::BOUNCE != 0).then_some(self.0 & !Transfer::BOUNCE)
    }
}

/// An unexpected message that the driver stores payload for, or that a peek has claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(pub u32);

/// What happened. The driver reports it; the endpoint never goes looking.
#[derive(Clone, Debug)]
pub enum Event {
    /// The program asks for something.
    Posted(Command),
    /// A packet is at the head of a lane. The driver frees its slots when the actions are performed.
    Arrived {
        /// Who sent it (the owner of the credits it used).
        from: Peer,
        /// The checked header. The payload stays in the slots until an [`crate::Action::Place`] names it.
        packet: Packet,
    },
    /// The link to `peer` for sending stands (answer to [`crate::Action::Connect`]).
    Connected {
        /// The peer.
        peer: Peer,
        /// The most data slots we can ever own in its mailbox. Static credits: the quota. Unit: slots.
        quota_slots: u32,
        /// Of those, the ones that we own from the beginning: all, unless the scheme grants the rest later. Both sides know the
        /// same number.
        start_slots: u32,
        /// Slots set aside in its mailbox for our explicit credit packets.
        credit_slots: u32,
        /// Number of this stay in its mailbox, not that of our last one there.
        epoch: u16,
    },
    /// `peer` has attached to our mailbox.
    Attached {
        /// The peer.
        peer: Peer,
        /// The most data slots that it can ever own in our mailbox. Static credits: the quota. Dynamic credits: its lane.
        quota_slots: u32,
        /// Of those, the ones that it owns from the beginning.
        start_slots: u32,
        /// Number of this stay, the same as in its `Connected`.
        epoch: u16,
    },
    /// `peer` asks us to leave its mailbox, since we are idle there or have had our turn and others wait.
    DetachRequested {
        /// The peer.
        peer: Peer,
    },
    /// Schemes that claim conditionally: `slots` more slots are free for us at `peer`, or none (answer to
    /// [`crate::Action::AskRoom`]).
    Room {
        /// The peer.
        peer: Peer,
        /// Slots free beyond those known before.
        slots: u32,
    },
    /// A copy named by [`crate::Action::Copy`] has ended.
    CopyDone {
        /// The transfer that the copy serves.
        transfer: Transfer,
        /// How it ended.
        result: Result<(), CopyFault>,
    },
    /// `peer` is dead, refused or gone. Nothing more arrives from it.
    Lost {
        /// The peer.
        peer: Peer,
        /// Why.
        fault: PeerFault,
    },
    /// The time of [`crate::Endpoint::next_deadline`] has come.
    Deadline,
    /// Nothing has happened for a while: what waits for company may leave.
    Idle,
}

/// Why a copy between processes failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFault {
    /// The kernel forbids it (no cross-memory attach): fall back to the mailbox.
    Forbidden,
    /// The other process is gone.
    Gone,
    /// The addresses were not valid there.
    BadAddress,
}

/// Why a peer is no longer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerFault {
    /// Its process ended without closing the endpoint.
    Died,
    /// It could not be reached at all (no such mailbox, other version, no free lane).
    Unreachable,
    /// It sent something malformed; its lane is no longer read.
    Malformed,
    /// It closed its endpoint in good order while we still had something for it.
    Closed,
    /// It had no buffer for us, for longer than the retries allow (hardware scheme).
    NotReady,
}

/// When a send completes. Ordered from weakest to strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SendLevel {
    /// As `Buffered`, and the buffer is the program's again when the post returns: what cannot leave at once is copied,
    /// as far as that is allowed. The driver copies what is not complete after the actions.
    Injected,
    /// Buffer reusable. On a reliable link the same as `Delivered` for eager messages.
    Buffered,
    /// Accounted for in weir's buffers at either end (libfabric: delivery complete).
    Delivered,
    /// A receive has matched it.
    Matched,
}

/// What the program hands the engine.
#[derive(Clone, Debug)]
pub enum Command {
    /// Send a message of `bytes` bytes from the request's buffer.
    Send(SendCommand),
    /// Post a receive.
    Receive(ReceiveCommand),
    /// Look for an unexpected message. Completes at once with `Found` or `Absent`.
    Peek {
        /// The request to complete.
        request: Request,
        /// What to look for.
        pattern: Pattern,
        /// Whether a found message stays, is set aside for a later claim, or is thrown away.
        then: PeekThen,
    },
    /// Receive a message that a peek has claimed, into a buffer of `capacity_bytes`.
    ReceiveClaimed {
        /// The request to complete.
        request: Request,
        /// The claimed message.
        message: MessageId,
        /// Size of the buffer.
        capacity_bytes: u64,
    },
    /// Throw away a message that a peek has claimed. Completes with `Found`.
    DiscardClaimed {
        /// The request to complete.
        request: Request,
        /// The claimed message.
        message: MessageId,
    },
    /// Take back a posted receive. It completes with `Canceled`, unless it has matched already.
    Cancel {
        /// The receive.
        request: Request,
    },
    /// Read remote memory into the request's buffer.
    Read(RemoteCommand),
    /// Write the request's buffer to remote memory.
    Write(RemoteCommand),
    /// Make memory readable or writable by peers under `key`. The driver has checked that the key is free.
    RegisterMemory {
        /// The key.
        key: u64,
        /// Length of the region. Unit: bytes.
        bytes: u64,
        /// Peers may read it.
        readable: bool,
        /// Peers may write it.
        writable: bool,
    },
    /// End the exposure of `key`.
    DeregisterMemory {
        /// The key.
        key: u64,
    },
    /// Tell every peer that we send to that we take nothing more. What we have announced to them we still serve.
    Close,
}

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct SendCommand {
    /// The request to complete.
    pub request: Request,
    /// Where to.
    pub to: Peer,
    /// Tagged or untagged.
    pub space: Space,
    /// 64-bit tag (0 for untagged).
    pub tag: u64,
    /// Remote completion data.
    pub data: Option<u64>,
    /// Length of the message. Unit: bytes.
    pub bytes: u64,
    /// When it completes.
    pub level: SendLevel,
}

/// What a receive or a peek accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Tagged or untagged.
    pub space: Space,
    /// `None`: from any peer.
    pub from: Option<Peer>,
    /// Wanted tag.
    pub tag: u64,
    /// Bits of the tag that do not matter.
    pub ignore: u64,
}

impl Pattern {
    /// Whether a message from `from` with `tag` is accepted.
    #[inline]
    pub fn accepts(&self, from: Peer, tag: u64) -> bool {
        (tag | self.ignore) == (self.tag | self.ignore) && self.from.is_none_or(|peer| peer == from)
    }
}

/// A receive to post.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveCommand {
    /// The request to complete.
    pub request: Request,
    /// What it accepts.
    pub pattern: Pattern,
    /// Size of the buffer. Unit: bytes.
    pub capacity_bytes: u64,
    /// `Some(min)`: a multi-receive buffer, filled by successive messages without gaps and released when
    /// fewer than `min` bytes are free.
    pub multi: Option<u64>,
}

/// What becomes of a message that a peek finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeekThen {
    /// It stays where it is.
    Leave,
    /// It stays, and is reported only to the second peek of this kind that finds it; to the first the answer is that
    /// there is none. For programs that have a second source of messages to look at in between.
    LeaveUntilSeenTwice,
    /// It leaves the queue and waits for its `ReceiveClaimed` or `DiscardClaimed`.
    Claim,
    /// It is consumed.
    Discard,
}

/// A remote read or write.
#[derive(Clone, Copy, Debug)]
pub struct RemoteCommand {
    /// The request to complete.
    pub request: Request,
    /// Whose memory.
    pub peer: Peer,
    /// Key of the region there.
    pub key: u64,
    /// Offset from the start of the region. Unit: bytes.
    pub offset: u64,
    /// Unit: bytes.
    pub bytes: u64,
    /// Writes only: tell the target, with this completion data.
    pub data: Option<u64>,
}
