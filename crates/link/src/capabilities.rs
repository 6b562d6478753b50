//! Capabilities: traits for what only some links can do. These are copies between two processes ([`RemoteMemory`]),
//! sleep and wake-up ([`WakeUp`]), lane reclamation ([`LaneReclamation`]), a count of free slots ([`FreeSlots`]), and
//! acknowledgements of packets ([`Acknowledgements`]). The engine asks a link for each ([`Capabilities`]).

use crate::Look;
use crate::memory::UserMemory;
use std::sync::Arc;
use weir_proto::{CopyFault, Direction, Peer, RemoteAddress};

/// The capabilities of a link beside the transport. By default: nothing.
pub trait Capabilities {
    /// Access to the memory of peers.
    fn remote_memory(&mut self) -> Option<&mut dyn RemoteMemory> {
        None
    }

    /// Something to sleep on. Without it an endpoint must poll.
    fn wake_up(&mut self) -> Option<&mut dyn WakeUp> {
        None
    }

    /// The management of lanes that are taken back from idle senders.
    fn lane_reclamation(&mut self) -> Option<&mut dyn LaneReclamation> {
        None
    }

    /// The number of free slots at peers. Without it a link serves only schemes with credits.
    fn free_slots(&mut self) -> Option<&mut dyn FreeSlots> {
        None
    }

    /// Acknowledgements of packets. Without them the receiver's side holds every packet that was transmitted.
    fn acknowledgements(&mut self) -> Option<&mut dyn Acknowledgements> {
        None
    }
}

/// Copies of fewer bytes are made by one side alone. Unit: bytes.
pub const COOPERATIVE_COPY_BYTES: u64 = 128 << 10;

/// How a link accesses the memory of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryAttributes {
    /// Registered memory serves all peers with the same number.
    pub domain: u32,
    /// Both ends of a copy must be registered. If not, a handle is `None` and a remote address has no key.
    pub registers: bool,
    /// Bound on the copies under way with one peer.
    pub copies_per_peer: u32,
    /// A copy needs the owner of the other memory: it must poll meanwhile. Such copies only read.
    pub needs_owner: bool,
}

/// The rights of peers to registered memory. This endpoint may always copy from it and to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerAccess {
    /// They may read it.
    pub read: bool,
    /// They may write it.
    pub write: bool,
}

/// The name of registered memory inside this endpoint (`fi_mr_desc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalHandle(pub u64);

/// Registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// See [`MemoryAttributes::domain`].
    pub domain: u32,
    /// For copies of this endpoint. `None`: the link needs none, and there is nothing to deregister.
    pub handle: Option<LocalHandle>,
    /// Where peers find its first byte (`fi_mr_key` and the address).
    pub remote: RemoteAddress,
}

/// A copy between memory of this endpoint and memory of a peer.
#[derive(Clone, Copy, Debug)]
pub struct RemoteCopy {
    /// Names the copy in its result. Unique among the copies under way.
    pub context: u64,
    /// The peer.
    pub peer: Peer,
    /// From the peer or to it.
    pub direction: Direction,
    /// Place of the bytes at the peer.
    pub remote: RemoteAddress,
    /// Their offset in our memory.
    pub offset: u64,
    /// Unit: bytes.
    pub bytes: u64,
}

/// The state of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStatus {
    /// All bytes are copied. There is no further result.
    Done,
    /// The copy is under way. [`RemoteMemory::next_result`] returns its result.
    Pending,
    /// The link takes no further copy with this peer now, and has kept nothing. Try again when a result has come.
    Busy,
}

/// Access to the memory of peers.
///
/// ```text
/// B: register(memory)         handle 4, remote address { 0, key 0x9a }; a packet carries the remote address to A
/// A: register(memory)         handle 7
/// A: start(get, context 1)    Pending
/// A: start(get, context 2)    Pending
/// A: next_result              (2, Ok)    in any order
/// A: next_result              (1, Ok)
/// B: deregister(handle 4)     further copies from there fail
/// ```
pub trait RemoteMemory {
    /// How copies with `peer`, which was contacted, work. `None`: its link has no remote memory.
    fn attributes(&mut self, peer: Peer) -> Option<MemoryAttributes>;

    /// Registers `memory`. It must remain valid until [`RemoteMemory::deregister`], or until the link is closed.
    ///
    /// # Errors
    /// [`CopyFault`]: the link cannot access this memory, so packets carry its contents.
    fn register(
        &mut self,
        domain: u32,
        memory: &UserMemory,
        access: PeerAccess,
    ) -> Result<Registration, CopyFault>;

    /// Ends a registration that no copy of this endpoint uses. When it returns, no peer accesses the memory any more.
    fn deregister(&mut self, registration: &Registration);

    /// Starts a copy between the memory of the peer and `memory`, which is registered as `handle`. Never waits for a peer.
    ///
    /// # Errors
    /// [`CopyFault`]. There is no further result then.
    fn start(
        &mut self,
        copy: &RemoteCopy,
        memory: &UserMemory,
        handle: Option<LocalHandle>,
    ) -> Result<CopyStatus, CopyFault>;

    /// The context and the result of a pending copy that has ended. Each is returned once. Copies with peers that were
    /// forgotten have none, and write to our memory no more.
    fn next_result(&mut self) -> Option<(u64, Result<(), CopyFault>)>;

    /// Whether something of a pending copy has come since the last question, so that more comes soon.
    fn has_moved(&mut self) -> bool {
        false
    }

    /// Whether copies are under way whose end wakes nobody, or is near. Then the caller polls instead of sleeping.
    fn must_poll(&mut self) -> bool;

    /// Copies from any address of the peer's process in the call, as only links without keys can.
    ///
    /// # Errors
    /// [`CopyFault`].
    fn read_at_once(&mut self, copy: &RemoteCopy, memory: &UserMemory) -> Result<(), CopyFault> {
        let _ = (copy, memory);
        Err(CopyFault::Forbidden)
    }

    /// Copies a part of what `peer` copies from this endpoint, if it does and if both sides can copy. Returns whether it
    /// does.
    fn help_copy(&mut self, peer: Peer) -> bool {
        let _ = peer;
        false
    }
}

/// Something to sleep on.
pub trait WakeUp {
    /// Sleeps until something arrives, at most `at_most_ns`. Returns at once if something has arrived. No wake-up is
    /// lost.
    fn sleep(&mut self, at_most_ns: u64);

    /// A bell that ends the sleep, for other links and threads. A ring before the sleep ends it too, unless the link was
    /// polled in between.
    fn bell(&self) -> Arc<dyn Bell>;

    /// Rings `bell` for arrivals from now on, because this endpoint sleeps elsewhere. `false`: the link cannot. A link may
    /// ring only after [`WakeUp::arm`].
    fn ring_on_arrival(&mut self, bell: &Arc<dyn Bell>) -> bool {
        let _ = bell;
        false
    }

    /// The endpoint is about to sleep at another link: the next arrival rings, and so does what waits already. A link that
    /// rings for every arrival does nothing.
    fn arm(&mut self) {}

    /// The place where another thread, the watcher, sleeps for this endpoint while the endpoint sleeps elsewhere. From
    /// then on the endpoint must not call [`WakeUp::sleep`]. `None`: the link has no such place.
    fn sleeper(&self) -> Option<Arc<dyn Sleeper>> {
        None
    }

    /// Announces that the endpoint sleeps elsewhere: the next arrival wakes the watcher. A sleep that was announced
    /// before ends. `false`: something has arrived, so the endpoint must not sleep.
    fn begin_sleep(&mut self) -> bool {
        false
    }

    /// Ends the sleep elsewhere, so that arrivals need not wake the watcher.
    fn end_sleep(&mut self) {}
}

/// The place where a watcher sleeps ([`WakeUp::sleeper`]).
pub trait Sleeper: Send + Sync {
    /// The state of the endpoint's sleep.
    fn look(&self) -> Look;

    /// Sleeps until the state is not `look` any more, or until [`Sleeper::wake`], at most `at_most_ns`. May return early.
    fn sleep_since(&self, look: Look, at_most_ns: u64);

    /// Ends the watcher's sleep, if it sleeps now.
    fn wake(&self);
}

/// Wakes the endpoint that it belongs to.
pub trait Bell: Send + Sync {
    /// Ends the sleep of the endpoint.
    fn ring(&self);
}

/// Lanes that are taken back from idle senders, and assigned to waiting ones.
pub trait LaneReclamation {
    /// Call this a few times a second. Looks after senders that wait for a lane here. Asks idle senders to detach
    /// while this mailbox occupies more than `keep_bytes`. Checks senders that do not answer.
    fn maintain(&mut self, keep_bytes: u64);
}

/// Free slots at peers, for schemes without credits.
pub trait FreeSlots {
    /// Slots at `to` that have become free since the last call. The first call counts all slots of the lane.
    fn newly_free_slots(&mut self, to: Peer) -> u32;
}

/// Acknowledgements of packets. `Ok` of [`Link::transmit`](crate::Link::transmit) then says only that the link keeps the
/// packet until the receiver acknowledges it.
pub trait Acknowledgements {
    /// The packets that were transmitted to `to` so far, up to the last one that closing must not lose, if its side does not
    /// hold all of them. Then [`Arrival::Acknowledged`](crate::Arrival::Acknowledged) follows with at least this number, or
    /// [`Arrival::Lost`](crate::Arrival::Lost). `None`: it holds all.
    fn awaited_packets(&mut self, to: Peer) -> Option<u64>;

    /// Packets to all peers that are not lost, up to the last one that closing must not lose, which their sides do not
    /// hold. Credits and goodbyes alone do not count. Who asks waits for them, so peers hold no acknowledgement back any more.
    /// Unit: packets.
    fn unacknowledged_packets(&mut self) -> u64;
}
