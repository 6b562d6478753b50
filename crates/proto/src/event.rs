//! Events: everything that a driver reports to the endpoint machine, with the commands of the program. They name peers,
//! requests, transfers and messages by the numbers that are defined here ([`Peer`], [`Request`], [`Transfer`]). The
//! completion levels of sends ([`SendLevel`]) and the reasons of losses ([`PeerFault`]) are here too.
//!
//! The types here do not know libfabric structures or addresses.

use crate::machine::Payload;
use crate::offload::Offloaded;
use crate::packet::{Geometry, Packet, Space};
use crate::timers::Timer;
use zerocopy::{Immutable, KnownLayout, TryFromBytes};

/// Another endpoint, by the number that this endpoint uses. Dense from 0. The driver maps addresses to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer(pub u32);

/// The handle of one operation of the program. The driver chooses it; the machine only returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Request(pub u32);

/// Something between two endpoints that outlives a packet: a pending rendezvous, a copy, a remote read or write. The
/// names cross the wire, so that the other side can refer to them. Each side has its own names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Transfer(pub u32);

impl Transfer {
    /// Set in the names of transfers whose payload is in a bounce buffer ([`crate::PayloadDriver::fill_bounce`]). No operation
    /// waits for the end of such a transfer.
    const BOUNCE: u32 = 1 << 31;

    /// The name of the bounce buffer of this number.
    pub(crate) fn of_bounce_buffer(number: u32) -> Transfer {
        Transfer(number | Transfer::BOUNCE)
    }

    /// The number of the bounce buffer that it names, if it names one. Dense from 0.
    #[inline]
    pub fn bounce_buffer(self) -> Option<u32> {
        (self.0 & Transfer::BOUNCE != 0).then_some(self.0 & !Transfer::BOUNCE)
    }
}

/// An unexpected message whose payload the driver stores, or that a peek has claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(pub u32);

/// A buffer that the driver has allocated for an offloaded machine ([`crate::MachineDriver::allocate`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// An event. The driver reports it; the endpoint does not poll.
#[derive(Clone, Debug)]
pub enum Event<'packet> {
    /// The program asks for something.
    Posted(Command),
    /// A packet is at the head of a lane. The driver frees its slots in [`crate::LinkDriver::retire`].
    Arrived {
        /// The sender: the owner of the credits that the packet used.
        from: Peer,
        /// The checked header. The payload stays in the slots until [`crate::PayloadDriver::place`] copies it.
        packet: &'packet Packet,
    },
    /// The path to `peer` is over a link whose slots differ from those of the endpoint. Comes before each `Connected` and
    /// `Attached` of this peer. See [`crate::Endpoint::expect_geometry`].
    PathGeometry {
        /// The peer.
        peer: Peer,
        /// The slots in both directions.
        geometry: Geometry,
    },
    /// We can send to `peer` (answer to [`crate::LinkDriver::connect`]).
    Connected {
        /// The peer.
        peer: Peer,
        /// Maximum of data slots that we can own in its mailbox. Static credits: the quota. Unit: slots.
        quota_slots: u32,
        /// Of those, our starting credits: all, unless the scheme grants the rest later. Both sides know the same
        /// number.
        start_slots: u32,
        /// Slots in its mailbox that are reserved for our explicit credit packets.
        credit_slots: u32,
        /// Number of this lease of a lane in its mailbox. It differs from the number of our previous lease there.
        epoch: u16,
    },
    /// `peer` has attached to our mailbox.
    Attached {
        /// The peer.
        peer: Peer,
        /// Maximum of data slots that it can own in our mailbox. Static credits: the quota. Dynamic credits: its lane.
        quota_slots: u32,
        /// Of those, its starting credits.
        start_slots: u32,
        /// Number of this lease, the same as in its `Connected`.
        epoch: u16,
    },
    /// `peer` asks us to detach from its mailbox: we are idle there, or our lease has lasted long and others wait.
    DetachRequested {
        /// The peer.
        peer: Peer,
    },
    /// Schemes without credits: `slots` more slots are free for us at `peer`, or none (answer to
    /// [`crate::LinkDriver::ask_room`]).
    Room {
        /// The peer.
        peer: Peer,
        /// Free slots beyond those known before.
        slots: u32,
    },
    /// A copy named by [`crate::PayloadDriver::copy`] has ended.
    CopyDone {
        /// The transfer that the copy serves.
        transfer: Transfer,
        /// Its outcome.
        result: Result<(), CopyFault>,
    },
    /// The driver has deferred credits for `peer` ([`crate::LinkDriver::defers_credits`]). They may leave now.
    CreditsDue {
        /// The peer.
        peer: Peer,
    },
    /// The link takes packets to `peer` again, after [`crate::LinkBusy`].
    LinkReady {
        /// The peer.
        peer: Peer,
    },
    /// `peer` is dead, unreachable or closed. Nothing more arrives from it.
    Lost {
        /// The peer.
        peer: Peer,
        /// The reason.
        fault: PeerFault,
    },
    /// The time of a timer has passed ([`crate::TimeDriver::set_timer`]). It is set no more. A late report delays only the
    /// messages that wait for it.
    TimerExpired(Timer),
    /// Another machine of this endpoint sends a packet ([`crate::MachineDriver::send`]).
    Outgoing(Outgoing),
    /// The program sends one message to several peers.
    PostedCopies(MultiSendCommand<'packet>),
    /// Nothing has happened for a while: coalesced acknowledgements may leave, and a guarantee that was deferred.
    Idle,
}

/// The copy of a message to one of several peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageCopy {
    /// The destination.
    pub to: Peer,
    /// The request to complete.
    pub request: Request,
    /// Data that arrives with the message, if any.
    pub data: Option<u64>,
}

/// A message to several peers: [`crate::offload::multi_send`].
///
/// Each copy completes by itself, like a send of its own ([`SendCommand`]). If a peer is lost, its copy ends with an
/// error and the others arrive. A peer that comes twice gets two messages, of which the second does not wait for
/// others.
#[derive(Clone, Copy, Debug)]
pub struct MultiSendCommand<'list> {
    /// The copies, at most [`crate::offload::multi_send::MAX_DESTINATIONS`]. The driver has room for all requests,
    /// whose buffers have the same content.
    pub copies: &'list [MessageCopy],
    /// The space of the tag.
    pub space: Space,
    /// The tag.
    pub tag: u64,
    /// Length. Unit: bytes.
    pub bytes: u64,
    /// When the copies complete. Injected counts as buffered.
    pub level: SendLevel,
}

/// A packet that an offloaded machine sends over the paths of the endpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outgoing {
    /// The destination.
    pub to: Peer,
    /// The number of the operation.
    pub number: u32,
    /// The packet. If the payload needs several packets, each says its offset.
    pub packet: Offloaded,
    /// What it carries.
    pub payload: Option<Payload>,
}

/// The reason why a copy between processes failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFault {
    /// The kernel forbids it (no cross-memory attach). The machine uses packets instead.
    Forbidden,
    /// The other process has ended.
    Gone,
    /// The other endpoint has closed in good order. Its memory may hold something else now.
    Closed,
    /// The addresses were not valid there.
    BadAddress,
}

/// The reason why a peer is lost. The numbers are those of packets.
#[derive(TryFromBytes, Immutable, KnownLayout, Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PeerFault {
    /// Its process ended without closing the endpoint.
    Died = 0,
    /// It could not be reached: no such mailbox, another version, or no free lane.
    Unreachable = 1,
    /// It sent a malformed packet. Its lane is no longer read.
    Malformed = 2,
    /// It closed its endpoint in good order while we still had something to send to it.
    Closed = 3,
    /// It was not ready for longer than the retries allow (hardware scheme).
    NotReady = 4,
}

/// The completion levels of a send, from weakest to strongest. Each level names that of libfabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SendLevel {
    /// As `Buffered`, and the program may reuse the buffer when the post returns. The machine copies what cannot leave
    /// at once, within its limit. The driver copies what is not complete after the actions.
    Injected,
    /// The program may reuse the buffer (inject complete). The message is in memory of weir at either end, so it is lost
    /// if the sender dies while the receiver has no memory for it.
    Buffered,
    /// The receiver's side holds the message: in its mailbox, its unexpected buffers or the buffer of a receive
    /// (transmit complete, delivery complete). The message does not depend on the sender any more.
    Delivered,
    /// A receive has matched the message (match complete; synchronous send).
    Matched,
}

/// A request of the program to the engine.
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
        /// The pattern of the wanted message.
        pattern: Pattern,
        /// The fate of a found message.
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
    /// Discard a message that a peek has claimed. Completes with `Found`.
    DiscardClaimed {
        /// The request to complete.
        request: Request,
        /// The claimed message.
        message: MessageId,
    },
    /// Cancel a posted receive. It completes with `Canceled`, unless it has matched already.
    Cancel {
        /// The receive.
        request: Request,
    },
    /// Read remote memory into the request's buffer.
    Read(RemoteCommand),
    /// Write the request's buffer to remote memory.
    Write(RemoteCommand),
    /// Register memory that peers may read or write under `key`. The driver has checked that the key is free.
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
    /// Deregister the memory of `key`.
    DeregisterMemory {
        /// The key.
        key: u64,
    },
    /// First half of closing: send a goodbye to every peer that we send to. After it we receive nothing more. We still
    /// serve the rendezvous that we have announced.
    Close,
}

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct SendCommand {
    /// The request to complete.
    pub request: Request,
    /// The receiver.
    pub to: Peer,
    /// Tagged or untagged.
    pub space: Space,
    /// 64-bit tag (0 for untagged).
    pub tag: u64,
    /// Remote completion data.
    pub data: Option<u64>,
    /// Length of the message. Unit: bytes.
    pub bytes: u64,
    /// Its completion level.
    pub level: SendLevel,
}

/// The messages that a receive or a peek accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Tagged or untagged.
    pub space: Space,
    /// `None`: from any peer.
    pub from: Option<Peer>,
    /// Wanted tag.
    pub tag: u64,
    /// Bits of the tag that the match ignores.
    pub ignore: u64,
}

impl Pattern {
    /// Whether it accepts a message from `from` with `tag`.
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
    /// The messages that it accepts.
    pub pattern: Pattern,
    /// Size of the buffer. Unit: bytes.
    pub capacity_bytes: u64,
    /// `Some(min)`: a multi-receive buffer. Successive messages fill it without gaps. It is released when fewer than
    /// `min` bytes are free.
    pub multi: Option<u64>,
}

/// The fate of a message that a peek finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeekThen {
    /// It stays in the queue.
    Leave,
    /// It stays in the queue. The first peek of this kind that finds it reports `Absent`; the second one reports it. A
    /// program with two sources of messages can look at the other one in between.
    LeaveUntilSeenTwice,
    /// It leaves the queue until `ReceiveClaimed` or `DiscardClaimed`.
    Claim,
    /// It is removed.
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
    /// Writes only: notify the target program with this completion data.
    pub data: Option<u64>,
}
