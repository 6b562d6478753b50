//! The engine runs the protocol of one endpoint over its link, in real time: the endpoint machine of `weir-proto` and
//! the offloaded machines beside it. The provider and the benchmarks use it.
//!
//! It performs what the machines decide: it puts packets on the link, copies payloads, stores unexpected messages and
//! bounce buffers, and reports completions. It decides itself how to open, wait and close, and when a sender must wait
//! for its receiver. For users it has the settings ([`config`]), counters ([`stats`]), traces ([`trace`]) and reports
//! of stalls ([`stalls`]) and loans ([`loans`]).
//!
//! No thread works in the background unless [`executor`] or [`watcher`] starts one. Packets are handled, and periodic work is done,
//! inside [`Engine::progress`] and the other calls. This file has the state, [`Engine`]; the other files add its calls.
//!
//! Worked exchange: `send` posts a command. The machine calls `transmit` of the driver, and the link writes a slot. At
//! the other end `progress` polls the slot, and the machine calls `deliver_packet` and `retire`. The driver copies the
//! payload from the slot to the posted buffer. The completion goes to the caller's [`CompletionSink`], or waits for
//! [`Engine::next_completion`].
#![forbid(unsafe_code)]

pub mod addresses;
mod atomics;
pub mod automatic_progress;
mod back_pressure;
mod bounce_buffers;
mod bounce_limit;
mod calls;
mod closing;
mod collectives;
pub mod config;
mod cooperative;
mod deliveries;
pub mod delivery;
mod driver;
pub mod executor;
mod expectation;
mod groups;
mod io;
pub mod job;
mod launcher;
pub mod levels;
pub mod loans;
mod machine_buffers;
mod machines;
pub mod node_group_interface;
pub mod node_memory;
mod observe;
mod open;
pub mod operation_times;
mod operations;
pub mod oversubscription;
mod peer_checks;
mod post;
mod posting;
mod process_rank;
mod progress;
mod read_ahead;
mod read_spin;
mod remote_memory;
pub mod short_integers;
pub mod stalls;
pub mod stats;
mod timers;
pub mod trace;
mod unexpected_buffers;
mod waiting;
pub mod watcher;

use std::collections::VecDeque;
use std::time::{Duration, Instant as Clock};

pub use atomics::{AtomicArguments, AtomicVector};
use back_pressure::BackPressure;
use bounce_limit::BounceLimitWait;
use closing::Closing;
pub use closing::{CloseStep, GivenUp};
pub use collectives::{
    CollectiveArguments, CollectiveOperation, CollectiveShape, MAX_COLLECTIVE_BYTES, MAX_COLLECTIVE_MEMBERS,
    MAX_COLLECTIVES, QuietEnd, Ticket,
};
use expectation::Laps;
pub use groups::ReduceArguments;
use io::Io;
use job::{NodeView, Ranks};
pub use open::{OpenCore, OpenError};
use peer_checks::PeerChecks;
pub use post::{
    Completion, CompletionSink, NullSink, Operation, Post, PostError, RemoteArguments, SendArguments,
};
use read_spin::ReadSpin;
use waiting::Waiting;
pub use weir_link::NetworkReport;
use weir_link::links::Links;
use weir_link::shm::ShmLink;
use weir_link::shm::node_segment::{NodeHandle, NodeSegmentError};
use weir_link::{Address, Link};
use weir_proto::{Counters, Endpoint, Packet, Peer};

/// Bound: outstanding operations. Beyond it posting returns [`PostError::Again`].
pub const MAX_OPERATIONS: u32 = 1 << 20;
/// Bound: sends and packets that wait for credit at one peer. Beyond it sends return [`PostError::Again`]; receives do not.
pub const MAX_BACKLOG: u32 = 1 << 16;
/// Capacity for completions that an empty queue retains.
const MAX_SPARE_COMPLETIONS: usize = 4096;
/// Longest remote read or write that travels in packets. A copy between processes costs two messages and a system call.
/// Unit: bytes.
const REMOTE_INLINE_BYTES: u64 = 8192;

/// One endpoint at work. Not thread-safe: its owner locks it, see [`weir_link::biased_lock`].
pub struct Engine<L: Link = Links<ShmLink>> {
    /// The ranks of this node and of the job. Dropped before the mailbox.
    node: NodeView,
    machine: Endpoint,
    /// State on which the calls of the endpoint machine act.
    io: Io<L>,
    /// The header of the packet that was polled last.
    packet: Packet,
    /// An injected send that waits for a bounce buffer, or has waited in vain.
    bounce_limit_wait: Option<BounceLimitWait>,
    back_pressure: BackPressure,
    /// Which first messages wait for the answer of their peer.
    contact: BackPressure,
    /// The same for packets of groups that wait when an operation ends.
    groups_leave: BackPressure,
    /// Something has arrived since [`Engine::clear_new_arrivals`].
    new_arrivals: bool,
    /// Calls of `progress` in a row that found nothing.
    idle_polls: u32,
    /// Bytes of our mailbox that idle peers may retain.
    idle_bytes: u64,
    peak_mailbox_bytes: u64,
    /// The reason why this endpoint has no node segment.
    node_segment_error: Option<NodeSegmentError>,
    /// More ranks than cores.
    oversubscribed: bool,
    /// Cores that the ranks of this node share.
    cores: usize,
    /// At least as many cores as ranks, as far as is known.
    core_per_rank: bool,
    /// Redundant yields of the program may be skipped.
    skips_yields: bool,
    /// One thread calls, as far as is known.
    single_threaded: bool,
    /// Yields skipped in a row.
    skipped_yields: u32,
    waiting: Waiting,
    read_spin: ReadSpin,
    /// Calls of `progress`, modulo 2^32.
    progress_calls: u32,
    /// The number of the call of `progress` at the last peek.
    peeked_at: Option<u32>,
    laps: Laps,
    peers_checked_at: Clock,
    peer_checks: PeerChecks,
    close_ms: u32,
    linger: Duration,
    /// The state of the close, once it has begun.
    closing: Option<Box<Closing>>,
    /// The counter page, which `weir run` reads.
    stats: Option<stats::Writer>,
    /// The trace, if `FI_WEIR_TRACE` is set.
    trace: Option<Box<trace::Recorder>>,
    stall_watch: stalls::StallWatch,
    /// Receives the lines about stalls.
    warn: Option<fn(&str)>,
    /// `progress_calls` when the watcher looked last.
    seen_progress_calls: u32,
}

impl<L: Link> Engine<L> {
    /// Our address.
    pub fn address(&self) -> Address {
        self.io.link.address()
    }

    /// The ranks of this node and of the job, as far as is known.
    pub fn ranks(&self) -> Ranks {
        self.node.ranks
    }

    /// The reason why this endpoint of a known job has no node segment. It then knows only the ranks of which its
    /// launcher says that they are on this node.
    pub fn node_segment_error(&self) -> Option<&NodeSegmentError> {
        self.node_segment_error.as_ref()
    }

    /// The node segment, for those that use its groups. `None`: this endpoint has none.
    pub fn node_handle(&self) -> Option<NodeHandle> {
        self.node.handle()
    }

    /// Ranks have come or gone, or have begun or ceased to share their cores with those of other hosts. With more ranks than
    /// cores this endpoint yields its core sooner.
    #[cold]
    pub(crate) fn ranks_have_changed(&mut self) {
        let ranks = self.node.launched_near().max(self.node.ranks.node);
        let is_shared = self.node.has_network && self.waiting.shares_cores();
        let oversubscribed = ranks as usize > self.cores || is_shared;
        if oversubscribed != self.oversubscribed {
            self.oversubscribed = oversubscribed;
            self.core_per_rank = self.node.launched_near() > 0 && !oversubscribed;
            self.waiting.set_oversubscribed(oversubscribed);
            self.read_spin.allow(may_spin_in_reads(oversubscribed, !self.single_threaded));
        }
    }

    /// The link.
    pub fn link(&self) -> &L {
        &self.io.link
    }

    /// The number of the peer at `address`. The same address gives the same peer. Does not connect.
    pub fn peer(&mut self, address: &Address) -> Peer {
        Peer(self.io.peers.insert(*address))
    }

    /// The address of a peer.
    pub fn address_of(&self, peer: Peer) -> Address {
        *self.io.peers.address(peer.0).expect("peers are numbered here")
    }

    /// Whether [`Engine::next_completion`] would return one.
    #[inline]
    pub fn has_completions(&self) -> bool {
        !self.io.completions.is_empty()
    }

    /// Takes the next completion, in order.
    #[inline]
    pub fn next_completion(&mut self) -> Option<Completion> {
        let next = self.io.completions.pop_front();
        if next.is_none() && self.io.completions.capacity() > MAX_SPARE_COMPLETIONS {
            self.io.completions = VecDeque::new(); // frees the memory of a burst
        }
        next
    }

    /// The counters of this endpoint.
    pub fn counters(&self) -> Counters {
        *self.machine.counters()
    }

    /// Whether the program has used the endpoint.
    pub fn is_used(&self) -> bool {
        self.progress_calls > 0 || self.io.operations.count() > 0 || self.machine.has_contacts()
    }

    /// Several threads call, not at the same time (`FI_THREAD_DOMAIN`). One of them may wait for the program's lock while
    /// another one sleeps in the engine, so sleeps are short from now on.
    pub fn several_threads_call(&mut self) {
        self.waiting.limit_sleeps();
        self.read_spin.allow(false);
        self.single_threaded = false;
    }
}

/// Whether reads may spin for an arrival: only with a core for each rank, and if no other thread waits meanwhile.
fn may_spin_in_reads(oversubscribed: bool, several_threads: bool) -> bool {
    weir_link::cores::TICKS && !oversubscribed && !several_threads
}
