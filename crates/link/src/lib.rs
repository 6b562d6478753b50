//! Links: what carries packets between endpoints, and the one place for shared memory and foreign calls.
//!
//! A link knows slots, lanes, doorbells and addresses. It does not know credits, matching or requests: it
//! writes a packet where the machine says that there is room, and hands up what arrives, checked.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod biased_lock;
pub mod cores;
pub mod counted_heap;
pub mod counter_page;
pub mod membarrier;
pub mod memory;
pub mod page_allocator;
pub mod sched_yield;
pub mod shm;

use memory::UserMemory;
use weir_proto::{CopyFault, Direction, Geometry, Packet, Peer, PeerFault};

/// Length of an address on every link. MPI libraries exchange it as bytes. Unit: bytes.
pub const ADDRESS_BYTES: usize = 32;

/// Where an endpoint is found, and the key that shows that one belongs to its job. Opaque outside its link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address(pub [u8; ADDRESS_BYTES]);

impl Address {
    /// What tells the endpoint apart from others and may be shown: not its key. Never 0.
    pub fn identity(&self) -> u64 {
        let mut number = [0; 8];
        number.copy_from_slice(&self.0[8..16]);
        u64::from_le_bytes(number).max(1)
    }
}

/// What a sender can own in a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Data slots (with a conditional scheme: the slots of the lane).
    pub data_slots: u32,
    /// Of those, the ones it owns from the beginning: all, unless the scheme grants the rest later.
    pub start_slots: u32,
    /// Slots for explicit credit packets.
    pub credit_slots: u32,
}

/// A stay in a mailbox has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneLease {
    /// What we own there.
    pub quota: Quota,
    /// Its number: not that of our last stay there.
    pub epoch: u16,
}

/// What [`Link::poll`] found.
#[derive(Debug)]
pub enum Arrival {
    /// A packet. Its payload can be copied until [`Link::retire`], which must be called before the next poll.
    Packet {
        /// Who sent it.
        from: Peer,
        /// Its checked header.
        packet: Packet,
    },
    /// An endpoint has claimed a lane of our mailbox. Answer with [`Link::accept`]; its packets wait till then.
    Attached {
        /// The lane.
        lane: u32,
        /// Whose it is.
        address: Address,
        /// What it owns here.
        quota: Quota,
        /// Number of this stay.
        epoch: u16,
    },
    /// We are asked to leave a mailbox: others wait, or its owner wants the memory back. Answer, with nothing under way
    /// there but what is to be sent in our next stay, by `Leave` and [`Link::disconnect`].
    DetachRequested {
        /// The mailbox's owner.
        by: Peer,
    },
    /// The lane of this peer held something that is no packet. It is not read any more.
    Malformed {
        /// Whose lane.
        from: Peer,
    },
}

/// What [`Link::poll_in_place`] found.
#[derive(Debug)]
pub enum Polled {
    /// A packet, which [`Link::polled`] shows.
    Packet {
        /// Who sent it.
        from: Peer,
    },
    /// Something else. Boxed, since it is rare and what is looked at for every packet is to be small.
    Other(Box<Arrival>),
}

/// Whether an endpoint still lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It does.
    Alive,
    /// It was closed in good order.
    Closed,
    /// Its process ended without closing it.
    Dead,
    /// There is no such mailbox any more and we never saw one: closed and removed, or cleaned up after a death.
    Unknown,
    /// It does, but it does not read what we send any more: we have sent it something malformed, or it has given us up.
    Refused,
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStatus {
    /// Everything is there.
    Done,
    /// The peer has taken a part and is at it: ask [`Link::copy_result`]. Nobody rings when it is done.
    Pending,
}

/// Copies of fewer bytes are made by one side. Unit: bytes.
pub const COOPERATIVE_COPY_BYTES: u64 = 128 << 10;

/// A way for packets between endpoints. One owner at a time; `Send`, so that ownership can be handed over.
pub trait Link: Send {
    /// What a slot holds.
    fn geometry(&self) -> Geometry;

    /// Our own address, to be given to peers.
    fn address(&self) -> Address;

    /// Sets up sending to the endpoint at `address`, from now on called `peer`. `None`: others come first; call again, until
    /// there is an answer.
    ///
    /// # Errors
    /// [`PeerFault`], if it is not there, of another version, or no memory is left.
    fn connect(&mut self, peer: Peer, address: &Address) -> Result<Option<LaneLease>, PeerFault>;

    /// Ends our stay at `to`, after the packet `Leave`. Nothing is written there until we are connected again.
    fn disconnect(&mut self, to: Peer);

    /// The stay of `peer` in our mailbox has ended: its `Leave` is retired. Its lane is given to others.
    fn release(&mut self, peer: Peer);

    /// To be called some times a second. Looks after those who wait for a lane here, and asks idle senders to leave while our
    /// mailbox occupies more than `keep_bytes`.
    fn maintain(&mut self, keep_bytes: u64);

    /// Some of those who have been asked to leave and have not answered for long: they may be dead.
    fn overdue_peers(&self) -> Vec<Peer>;

    /// Puts `packet` and its payload (from `memory`, at `offset`) on the way to a connected peer, and rings its doorbell
    /// if it sleeps. Never waits: the caller owns the slots, by credit or by [`Link::newly_free_slots`].
    fn transmit(&mut self, to: Peer, packet: &Packet, payload: Option<(&UserMemory, u64)>);

    /// Slots that have become free at `to` since the last call, for schemes without credits. The first call
    /// counts all slots of the lane.
    fn newly_free_slots(&mut self, to: Peer) -> u32;

    /// The next thing that has arrived: first what we have sent to ourselves, then fairly among senders; `None` if
    /// nothing has.
    fn poll(&mut self) -> Option<Arrival> {
        Some(match self.poll_in_place()? {
            Polled::Packet { from } => Arrival::Packet { from, packet: *self.polled() },
            Polled::Other(arrival) => *arrival,
        })
    }

    /// [`Link::poll`] that leaves a packet where it is: for drivers that look at most of them once.
    fn poll_in_place(&mut self) -> Option<Polled>;

    /// The packet last polled, until the next poll.
    fn polled(&self) -> &Packet;

    /// Whether a poll may find something. Cheap, for those who wait.
    fn may_have_arrivals(&self) -> bool;

    /// Names the owner of a lane that was reported as attached.
    fn accept(&mut self, lane: u32, peer: Peer);

    /// Copies the first `bytes` payload bytes of the packet last polled to `memory` at `offset`.
    fn copy_payload(&self, memory: &UserMemory, offset: u64, bytes: u64);

    /// Frees the slots of the packet last polled.
    fn retire(&mut self);

    /// Copies between our memory and the memory of the peer's process. The peer may take a part in it ([`Link::help_copy`]), and need
    /// not.
    ///
    /// # Errors
    /// [`CopyFault`].
    fn copy(
        &mut self,
        peer: Peer,
        direction: Direction,
        address: u64,
        memory: &UserMemory,
        offset: u64,
        bytes: u64,
    ) -> Result<CopyStatus, CopyFault>;

    /// How a copy with `peer` has ended that was pending; `None`: it still is.
    fn copy_result(&mut self, peer: Peer) -> Option<Result<(), CopyFault>>;

    /// Copies a part of what `peer` is copying from us, if it is. Returns whether it was.
    fn help_copy(&mut self, peer: Peer) -> bool;

    /// Whether the endpoint at `address` lives. A system call or two.
    fn liveness(&mut self, address: &Address) -> Liveness;

    /// Forgets a lost peer: its lane is not read any more, nothing is written to it.
    fn forget(&mut self, peer: Peer);

    /// Sleeps until something arrives, for at most `at_most_ns`. Returns at once if something has. No
    /// wake-up is lost: see the link's own account.
    fn sleep(&mut self, at_most_ns: u64);

    /// The process of a peer that we send to, for messages to people; `None` if it is not known.
    fn process(&self, peer: Peer) -> Option<u32>;

    /// Bytes of shared memory that our mailbox occupies now (touched, not reserved).
    fn mailbox_bytes(&self) -> u64;

    /// Closes the mailbox in good order and removes its name. Peers see [`Liveness::Closed`].
    fn close(&mut self);
}
