//! Links: they carry packets between endpoints. All code for shared memory and foreign calls is here.
//!
//! A link knows slots, lanes, doorbells and addresses. It does not know credits, matching or requests. It writes a
//! packet where the machine says that there is space. It checks what arrives and hands it up.
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
use weir_proto::{Body, CopyFault, Direction, Geometry, Packet, Peer, PeerFault};

/// Length of an address on every link. MPI libraries exchange addresses as bytes. Unit: bytes.
pub const ADDRESS_BYTES: usize = 32;

/// Names an endpoint, and holds the key that proves that the owner of the address belongs to the job. Only the link
/// that made an address can interpret it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address(pub [u8; ADDRESS_BYTES]);

impl Address {
    /// A number that identifies the endpoint and may be shown. It is not the key. Never 0.
    pub fn identity(&self) -> u64 {
        let mut number = [0; 8];
        number.copy_from_slice(&self.0[8..16]);
        u64::from_le_bytes(number).max(1)
    }
}

/// The slots that a sender can own in a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Data slots. With a scheme without credits: all slots of the lane.
    pub data_slots: u32,
    /// Data slots that the sender owns from the start. The scheme may grant the others later.
    pub start_slots: u32,
    /// Slots for credit packets.
    pub credit_slots: u32,
}

/// A lease: the sender now holds a lane of a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneLease {
    /// The slots that the sender can own there.
    pub quota: Quota,
    /// Number of the lease. It differs from that of the sender's previous lease there.
    pub epoch: u16,
}

/// The result of [`Link::poll`].
#[derive(Debug)]
pub enum Arrival {
    /// A packet. Its payload can be copied until [`Link::retire`], which the caller must call before the next poll.
    Packet {
        /// The sender.
        from: Peer,
        /// The checked header.
        packet: Packet,
    },
    /// A sender has claimed a lane of this mailbox. Answer with [`Link::accept`]; until then its packets wait.
    Attached {
        /// The lane.
        lane: u32,
        /// The sender's address.
        address: Address,
        /// The slots that the sender can own here.
        quota: Quota,
        /// Number of its lease.
        epoch: u16,
    },
    /// The owner of a mailbox asks this endpoint to detach, because others wait or because it wants the memory back.
    /// Answer with the packet `Detach` and [`Link::disconnect`]. Unfinished messages continue in the next lease.
    DetachRequested {
        /// The mailbox's owner.
        by: Peer,
    },
    /// The lane of this peer held a malformed packet. The link stops reading it.
    Malformed {
        /// The sender.
        from: Peer,
    },
}

/// The result of [`Link::poll_into`].
#[derive(Debug)]
pub enum Polled {
    /// A packet.
    Packet {
        /// The sender.
        from: Peer,
    },
    /// Something other than a packet. It is boxed to keep this type small, because it is rare.
    Other(Box<Arrival>),
}

/// Whether an endpoint still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It runs.
    Alive,
    /// It closed its mailbox in good order.
    Closed,
    /// Its process ended without closing the mailbox.
    Dead,
    /// Its segment has no name any more, and this endpoint never mapped it. It was closed, or removed after a death.
    Unknown,
    /// It runs, but does not read what this endpoint sends. It found a malformed packet, or it has given this
    /// endpoint up.
    Refused,
}

/// The state of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStatus {
    /// All bytes are copied.
    Done,
    /// The peer still copies its part. Ask [`Link::copy_result`]: the peer does not ring when it is done.
    Pending,
}

/// Copies of fewer bytes are made by one side alone. Unit: bytes.
pub const COOPERATIVE_COPY_BYTES: u64 = 128 << 10;

/// A way for packets between endpoints. It has one owner at a time. It is `Send`, so that another thread can take
/// over.
pub trait Link: Send {
    /// The slot sizes of this link.
    fn geometry(&self) -> Geometry;

    /// The address of this endpoint, for its peers.
    fn address(&self) -> Address;

    /// Claims a lane at the endpoint at `address`, from now on called `peer`. `None`: the endpoint waits in the queue
    /// for a lane. Call again until there is a lease.
    ///
    /// # Errors
    /// [`PeerFault`], if the peer is not there, has another version, or no memory is left.
    fn connect(&mut self, peer: Peer, address: &Address) -> Result<Option<LaneLease>, PeerFault>;

    /// Ends the lease at `to`, after the packet `Detach`. Nothing is written there until the next [`Link::connect`].
    fn disconnect(&mut self, to: Peer);

    /// Frees the lane of `peer` in this mailbox. The caller has retired its `Detach`.
    fn release(&mut self, peer: Peer);

    /// Call this a few times a second. Looks after senders that wait for a lane here. Asks idle senders to detach
    /// while this mailbox occupies more than `keep_bytes`.
    fn maintain(&mut self, keep_bytes: u64);

    /// Peers that were asked to detach long ago and have not answered. They may be dead. At most a few at a time.
    fn overdue_peers(&self) -> Vec<Peer>;

    /// Writes `packet` and its payload (from `memory`, at `offset`) to a connected peer, and wakes that peer if it
    /// sleeps. Never waits. The caller owns the slots, by credit or by [`Link::newly_free_slots`].
    fn transmit(&mut self, to: Peer, packet: &Packet, payload: Option<(&UserMemory, u64)>);

    /// Slots at `to` that have become free since the last call, for schemes without credits. The first call counts
    /// all slots of the lane.
    fn newly_free_slots(&mut self, to: Peer) -> u32;

    /// The next arrival, or `None`. Packets that this endpoint has sent to itself come first. The others follow in
    /// fair order.
    fn poll(&mut self) -> Option<Arrival> {
        let mut packet = Packet::new(Body::Credit, 0);
        Some(match self.poll_into(&mut packet)? {
            Polled::Packet { from } => Arrival::Packet { from, packet },
            Polled::Other(arrival) => *arrival,
        })
    }

    /// As [`Link::poll`], but writes the header of a packet to `packet`. This serves drivers that poll often.
    fn poll_into(&mut self, packet: &mut Packet) -> Option<Polled>;

    /// Whether a poll may find something. Cheap, so that a waiting caller can repeat it.
    fn may_have_arrivals(&self) -> bool;

    /// Names the sender of a lane that was reported as [`Arrival::Attached`].
    fn accept(&mut self, lane: u32, peer: Peer);

    /// Copies the first `bytes` payload bytes of the last polled packet to `memory` at `offset`.
    fn copy_payload(&self, memory: &UserMemory, offset: u64, bytes: u64);

    /// Frees the slots of the last polled packet.
    fn retire(&mut self);

    /// Copies between this endpoint's memory and the memory of the peer's process. The peer may copy a part
    /// ([`Link::help_copy`]).
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

    /// The result of a pending copy with `peer`. `None`: it is still pending.
    fn copy_result(&mut self, peer: Peer) -> Option<Result<(), CopyFault>>;

    /// Copies a part of what `peer` copies from this endpoint, if it does. Returns whether it does.
    fn help_copy(&mut self, peer: Peer) -> bool;

    /// Whether the endpoint at `address` runs. Costs one or two system calls.
    fn liveness(&mut self, address: &Address) -> Liveness;

    /// Forgets a lost peer. Its lane is not read any more, and nothing is written to it.
    fn forget(&mut self, peer: Peer);

    /// Sleeps until something arrives, at most `at_most_ns`. Returns at once if something has arrived. No wake-up is
    /// lost.
    fn sleep(&mut self, at_most_ns: u64);

    /// The process of a peer that this endpoint sends to, for messages to users. `None`: not known.
    fn process(&self, peer: Peer) -> Option<u32>;

    /// Shared memory that this mailbox occupies now. Reserved but untouched memory does not count. Unit: bytes.
    fn mailbox_bytes(&self) -> u64;

    /// Closes the mailbox and removes its name. Peers then see [`Liveness::Closed`].
    fn close(&mut self);

    /// As [`Link::close`], but peers see [`Liveness::Dead`]. For an endpoint that owes messages to a peer: that peer
    /// must not wait for them.
    fn abandon(&mut self);
}
