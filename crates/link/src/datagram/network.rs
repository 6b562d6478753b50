//! The network below a datagram link ([`DatagramNetwork`]): it sends and receives datagrams, which it may lose, repeat,
//! reorder or change. It also has the clock, so that a test decides when time passes.
//!
//! A network does not know packets, keys or peers.

use crate::memory::UserMemory;
use crate::{
    Bell, CopyStatus, LinkKind, LocalHandle, MemoryAttributes, PeerAccess, Registration, RemoteCopy,
};
use core::fmt::Debug;
use core::hash::Hash;
use core::ops::Range;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use weir_proto::reliability::{ReliabilityConfig, Standing};
use weir_proto::{CopyFault, Geometry, Instant};

/// As in shared memory. A packet that is longer than a datagram is cut.
pub const GEOMETRY: Geometry = Geometry::SHARED_MEMORY;

/// Room for the datagrams of one call of [`DatagramNetwork::receive`]. Unit: bytes.
pub const BATCH_BYTES: usize = 512 << 10;
/// The most datagrams of one call.
pub const BATCH_DATAGRAMS: usize = 512;

/// A datagram in a [`Batch`].
#[derive(Clone, Debug)]
pub struct Received<P> {
    /// Its sender, as the network says. Nobody has checked it.
    pub from: P,
    /// Its bytes in [`Batch::bytes`].
    pub range: Range<usize>,
    /// A queue on its way was long (ECN, congestion experienced).
    pub marked: bool,
}

/// Datagrams that have arrived.
#[derive(Debug)]
pub struct Batch<P> {
    /// [`BATCH_BYTES`] bytes, for the bytes of all of them.
    pub bytes: Box<[u8]>,
    /// The datagrams, in order of arrival.
    pub datagrams: Vec<Received<P>>,
}

impl<P> Batch<P> {
    pub(super) fn new() -> Batch<P> {
        Batch { bytes: vec![0; BATCH_BYTES].into(), datagrams: Vec::with_capacity(BATCH_DATAGRAMS) }
    }
}

/// Counts of a network, for reports. One that knows none of them reports zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Datagrams that it has taken.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Those that have left through a socket that is connected to their receiver.
    pub connected: u64,
    /// Datagrams that it has refused for good, such as those without a route, or has taken and not delivered.
    pub failed: u64,
    /// Calls in which it was busy.
    pub busy: u64,
    /// Datagrams that have arrived.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Those that it has dropped before a look found them: strangers', or there was no room for them.
    pub dropped: u64,
    /// What has arrived and was no datagram.
    pub malformed: u64,
    /// Looks for arrivals that cost a system call.
    pub looks: u64,
    /// Copies from and to memory of peers that have ended well.
    pub copies: u64,
    /// Their bytes.
    pub copied_bytes: u64,
}

/// The monotonic time of this host.
#[inline]
fn host_time() -> Instant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Instant((time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64))
}

/// The clock of a network of this host.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The host's time when it began.
    origin: Instant,
}

impl Clock {
    /// A clock that begins at 0.
    pub fn start() -> Clock {
        Clock { origin: host_time() }
    }

    /// [`DatagramNetwork::now`].
    #[inline]
    pub fn now(&self) -> Instant {
        Instant(host_time().since_ns(self.origin))
    }

    /// [`DatagramNetwork::host_time_at`].
    #[inline]
    pub fn host_time_at(&self, now: Instant) -> Instant {
        self.origin.plus_ns(now.0)
    }
}

/// The [`DatagramNetwork::domain`] of endpoints that are in one network namespace and alike in `reach`. `None`: the namespace is
/// not known.
pub(crate) fn domain_of(reach: impl Hash) -> Option<u64> {
    let namespace = rustix::fs::stat("/proc/self/ns/net").ok()?;
    let mut hasher = DefaultHasher::new();
    (namespace.st_dev, namespace.st_ino, reach).hash(&mut hasher);
    Some(hasher.finish().max(1))
}

/// A network that carries datagrams between places.
pub trait DatagramNetwork: Send {
    /// Where a datagram goes, or comes from.
    type Place: Copy + Eq + Hash + Debug + Send + 'static;

    /// The kind of the link over this network.
    fn kind(&self) -> LinkKind;

    /// Name of the interface that it uses, if it knows that.
    fn interface(&self) -> Option<&str> {
        None
    }

    /// What peers need to reach this endpoint: the part of its address.
    fn part(&self) -> Vec<u8>;

    /// The place of an endpoint whose address has this part. `None`: this network does not reach it.
    fn place_of(&self, part: &[u8]) -> Option<Self::Place>;

    /// Whether both places are on one host, so that an endpoint at one may have sent a datagram for one at the other.
    fn is_same_host(&self, one: Self::Place, other: Self::Place) -> bool {
        one == other
    }

    /// Length of the largest datagram. It can become less, and grow again up to what it was first. Unit: bytes.
    fn largest_datagram(&self) -> usize;

    /// Whether every datagram that the network takes arrives once and unchanged, in any order, or [`standing`] says that
    /// the peer has ended. Then none is sent again.
    ///
    /// [`standing`]: DatagramNetwork::standing
    fn is_lossless(&self) -> bool {
        false
    }

    /// A network that is busy may be so for one place only, as long as a peer there computes. Then what it refuses for long may be
    /// dropped: it is sent again.
    fn is_busy_for_one_place(&self) -> bool {
        false
    }

    /// Whether nothing that is sent to `to` from here arrives any more. Others may reach it.
    fn has_failed(&self, to: Self::Place) -> bool {
        let _ = to;
        false
    }

    /// Datagrams of the largest length that wait here without being lost. `None`: any number.
    fn buffered_datagrams(&self) -> Option<u64> {
        None
    }

    /// The most datagrams to a peer that it has not acknowledged: the bound of what it keeps of them.
    fn window(&self) -> u32 {
        ReliabilityConfig::default().window_bundles
    }

    /// Sends datagrams to one place: `bytes` cut into pieces of `segment_bytes`; the last may be shorter. They may be lost
    /// without notice. `in_fragments`: larger than what passes the path, so it leaves in fragments. Returns the bytes of those that it has taken, from the first one on. Fewer than all: it is busy.
    fn send(&mut self, to: Self::Place, bytes: &[u8], segment_bytes: usize, in_fragments: bool) -> usize;

    /// From now on, a datagram may be dropped before a look finds it if its little-endian number at byte `at` is not
    /// `verification`. Then the network counts it ([`Traffic::dropped`]).
    fn admit_only(&mut self, at: usize, verification: u32) {
        let _ = (at, verification);
    }

    /// Adds datagrams that have arrived to `batch`, which is empty. Never waits.
    fn receive(&mut self, batch: &mut Batch<Self::Place>);

    /// A number of this network, never 0: endpoints of a host with the same number reach the same places, and their peers
    /// take datagrams from each of them ([`super::SendProxy`]). `None`: nobody else can send for this endpoint.
    fn domain(&self) -> Option<u64> {
        None
    }

    /// Counts.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    /// Whether [`DatagramNetwork::receive`] may find something. Cheap.
    fn may_have_arrivals(&self) -> bool;

    /// The time. It never goes back.
    fn now(&self) -> Instant;

    /// A time that is the same for all endpoints of this host. It never goes back.
    fn host_time(&self) -> Instant {
        host_time()
    }

    /// What [`DatagramNetwork::host_time`] was when [`DatagramNetwork::now`] was `now`. Without another look at the clock, where
    /// that is possible.
    fn host_time_at(&self, now: Instant) -> Instant {
        let _ = now;
        self.host_time()
    }

    /// Waits until a datagram has arrived, at most until `until`.
    fn wait(&mut self, until: Instant);

    /// The time of the next arrival, if the network knows it.
    fn next_arrival(&self) -> Option<Instant> {
        None
    }

    /// Ends a [`DatagramNetwork::wait`] of this network, also one that begins later.
    fn bell(&self) -> Arc<dyn Bell>;

    /// As [`WakeUp::ring_on_arrival`](crate::WakeUp::ring_on_arrival).
    fn ring_on_arrival(&mut self, bell: &Arc<dyn Bell>) -> bool {
        let _ = bell;
        false
    }

    /// As [`WakeUp::arm`](crate::WakeUp::arm).
    fn arm(&mut self) {}

    /// Whether nothing has arrived since [`DatagramNetwork::arm`], as far as is known. Without a system call.
    fn is_quiet(&self) -> bool {
        false
    }

    /// A datagram from `place` that the last look has found is authentic. Only such ones say where peers are: what strangers
    /// send says nothing.
    fn authenticated(&mut self, place: Self::Place) {
        let _ = place;
    }

    /// The peer at `place` has answered, so [`DatagramNetwork::standing`] begins anew when it is silent again.
    fn heard(&mut self, place: Self::Place) {
        let _ = place;
    }

    /// Whether the process at `place` lives, if the network has another way to find out than datagrams. Asked again and
    /// again while the peer is silent, so the first answer may be late.
    fn standing(&mut self, place: Self::Place) -> Standing {
        let _ = place;
        Standing::Unknown
    }

    /// Access to the memory of peers, for paths without protection. `None`: packets carry everything.
    fn memory(&mut self) -> Option<&mut dyn NetworkMemory<Self::Place>> {
        None
    }

    /// Whether datagrams carry contents of announced messages, if there are no large messages. Otherwise packets do.
    fn carries_contents(&self) -> bool {
        false
    }

    /// Large messages, for contents on paths with protection. `None`: datagrams carry everything.
    fn large(&mut self) -> Option<&mut dyn LargeMessages<Self::Place>> {
        None
    }
}

/// Large messages of a network, beside its datagrams: they have receives of their own. A message arrives once and unchanged, or
/// never, if its sender has ended. A receiver has told its peers before how many may come.
pub trait LargeMessages<Place> {
    /// Length of the longest message. Unit: bytes.
    fn longest(&self) -> usize;

    /// Makes memory for messages that arrive, if there is none yet. Returns for how many.
    fn begin(&mut self) -> usize;

    /// Passes messages that have arrived to `take`, which may change them.
    fn receive(&mut self, take: &mut dyn FnMut(&mut [u8]));

    /// Sends what `write` writes; it returns the length. Returns whether the network has room. If not, `write` was not called. To a
    /// peer that has ended, the message is lost.
    fn send(&mut self, to: Place, write: &mut dyn FnMut(&mut [u8]) -> usize) -> bool;
}

/// Access to the memory of peers, as [`RemoteMemory`](crate::RemoteMemory), with places instead of peers.
pub trait NetworkMemory<Place> {
    /// How copies work.
    fn attributes(&self) -> MemoryAttributes;

    /// Registers `memory`.
    ///
    /// # Errors
    /// [`CopyFault`]: the network cannot access this memory.
    fn register(&mut self, memory: &UserMemory, access: PeerAccess) -> Result<Registration, CopyFault>;

    /// Ends a registration.
    fn deregister(&mut self, registration: &Registration);

    /// Starts a copy.
    ///
    /// # Errors
    /// [`CopyFault`]. There is no further result then.
    fn start(
        &mut self,
        place: Place,
        copy: &RemoteCopy,
        memory: &UserMemory,
        handle: Option<LocalHandle>,
    ) -> Result<CopyStatus, CopyFault>;

    /// The context and the result of a copy that has ended.
    fn next_result(&mut self) -> Option<(u64, Result<(), CopyFault>)>;

    /// Whether copies are under way whose end wakes nobody, or is near.
    fn must_poll(&self) -> bool;

    /// Copies with this place have no result, and access no memory when this returns.
    fn forget(&mut self, place: Place);

    /// The same for all places.
    fn forget_all(&mut self);
}
