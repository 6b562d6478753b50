//! The engine runs the protocol of one endpoint over its link, in real time: the endpoint machine of `weir-proto`
//! and the offloaded machines beside it.
//!
//! It performs what the endpoint machine decides: it puts packets on the link, copies payloads and reports
//! completions. It also decides how to wait. It knows no matching, no credits and no libfabric. Nothing happens in
//! the background: data moves when somebody calls [`Engine::progress`]. [`executor`] lets a thread do that.
//!
//! Worked exchange: `send` posts a command. The machine calls `transmit` of the driver, and the link writes a slot. At
//! the other end `progress` polls the slot, and the machine calls `deliver_packet` and `retire`. The driver copies the
//! payload from the slot to the posted buffer. The completion waits for [`Engine::next_completion`].
#![forbid(unsafe_code)]

pub mod addresses;
mod back_pressure;
mod bounce_buffers;
mod bounce_limit;
mod closing;
pub mod config;
mod driver;
pub mod executor;
mod expectation;
pub mod job;
mod launcher;
mod machines;
pub mod node_memory;
mod observe;
mod operations;
pub mod oversubscription;
mod peer_checks;
mod posting;
mod progress;
mod read_ahead;
mod read_spin;
pub mod stalls;
pub mod stats;
mod timers;
pub mod trace;
mod unexpected_buffers;
mod waiting;

use std::collections::VecDeque;
use std::time::{Duration, Instant as Clock};

use back_pressure::BackPressure;
use bounce_limit::BounceLimitWait;
use closing::Closing;
pub use closing::{CloseStep, GivenUp};
use config::Settings;
use driver::{EventDriver, Io, POSTED, Posted};
use expectation::Laps;
use job::{Job, NodeView, Ranks};
pub use machines::AtomicArguments;
use operations::Outstanding;
use peer_checks::PeerChecks;
use read_spin::ReadSpin;
use waiting::Waiting;
use weir_link::memory::UserMemory;
use weir_link::shm::ShmLink;
use weir_link::shm::node_segment::NodeSegmentError;
use weir_link::{Address, Link};
use weir_proto::{
    Body, Command, Config, Counters, DataRegion, Endpoint, Event, MAX_REMOTE_OPERATIONS, MAX_UNEXPECTED,
    MessageId, Outcome, Packet, Pattern, PeekThen, Peer, ReceiveCommand, Refusal, Request, SendCommand,
    SendLevel, Space,
};

/// Bound: outstanding operations. Beyond it posting returns [`PostError::Again`].
pub const MAX_OPERATIONS: u32 = 1 << 20;
/// Bound: sends and packets that wait for credit at one peer. Beyond it sends return [`PostError::Again`]; receives do not.
pub const MAX_BACKLOG: u32 = 1 << 16;
/// Capacity for completions that an empty queue retains.
const MAX_SPARE_COMPLETIONS: usize = 4096;
/// Longest remote read or write that travels in packets. A copy between processes costs two messages and a system call.
/// Unit: bytes.
const REMOTE_INLINE_BYTES: u64 = 8192;

/// The program's values for an operation, which its completion returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Post {
    /// The program's context pointer.
    pub context: usize,
    /// A value of the caller (the provider stores its flags here).
    pub cookie: u64,
}

/// The kind of a completed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Two-sided send.
    Send,
    /// Posted or claimed receive.
    Receive,
    /// Multi-receive buffer.
    MultiReceive,
    /// Peek, or discard of a claimed message.
    Peek,
    /// Remote read.
    Read,
    /// Remote write.
    Write,
    /// Change of a word of a peer's memory.
    Atomic,
    /// A peer wrote to our memory with completion data. `post` has no meaning; the outcome says what was received.
    RemoteWrite,
}

/// The end of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The program's values.
    pub post: Post,
    /// The kind of operation.
    pub operation: Operation,
    /// Tagged or untagged (sends, receives, peeks).
    pub space: Space,
    /// Its outcome.
    pub outcome: Outcome,
    /// Address of the received data (receives into a contiguous buffer), else 0.
    pub buffer: usize,
}

/// Receives completions as they happen and stores them in a form of its own, so that each is written once.
pub trait CompletionSink {
    /// Takes a completion, in order. `false`: rejected. [`Engine::next_completion`] returns a rejected completion, and
    /// the engine does not call the sink again while one waits there.
    fn accept(&mut self, completion: &Completion) -> bool;

    /// Whether the program has unread completions of receives. It then posts further receives soon, so the engine
    /// leaves unexpected messages in the mailbox for the moment.
    fn has_unread_receives(&self) -> bool {
        false
    }
}

/// Rejects all completions.
pub struct NullSink;

impl CompletionSink for NullSink {
    #[inline(always)]
    fn accept(&mut self, _completion: &Completion) -> bool {
        false
    }
}

/// A message to send.
#[derive(Debug)]
pub struct SendArguments {
    /// The receiver.
    pub to: Peer,
    /// Tagged or untagged.
    pub space: Space,
    /// Tag.
    pub tag: u64,
    /// Remote completion data.
    pub data: Option<u64>,
    /// The completion level of the send.
    pub level: SendLevel,
    /// The payload.
    pub memory: UserMemory,
    /// The buffer is the program's again on return: the engine copies what cannot leave at once.
    pub inject: bool,
}

impl SendArguments {
    /// The completion level of the send. An injected message completes as soon as the engine has it, unless its level
    /// demands more.
    #[inline(always)]
    fn effective_level(&self) -> SendLevel {
        match (self.inject, self.level) {
            (true, SendLevel::Injected | SendLevel::Buffered) => SendLevel::Injected,
            (_, level) => level,
        }
    }
}

/// A remote read or write.
#[derive(Debug)]
pub struct RemoteArguments {
    /// The peer that owns the remote memory.
    pub peer: Peer,
    /// Key of the region there.
    pub key: u64,
    /// Offset in the region. Unit: bytes.
    pub offset: u64,
    /// Our memory.
    pub memory: UserMemory,
    /// Writes: completion data for the target.
    pub data: Option<u64>,
    /// Writes: the buffer is the program's again on return.
    pub inject: bool,
}

/// The reason why the engine rejected an operation. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The number of outstanding operations is at its limit. Progress makes room.
    #[error("{limit} operations are outstanding, which is the limit; try again after making progress")]
    Again {
        /// The limit.
        limit: u32,
    },
    /// The receiver has no room and the bounce buffers are at their limit. Progress may make room.
    #[error(
        "copies of messages for receivers without room take {limit_bytes} bytes, which is the limit (FI_WEIR_BOUNCE_BYTES); try again after making progress"
    )]
    Full {
        /// The limit.
        limit_bytes: u64,
    },
}

/// The reason why an endpoint could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A setting does not fit the number of peers.
    #[error(transparent)]
    Setting(#[from] config::SettingError),
    /// The mailbox could not be created.
    #[error(transparent)]
    Mailbox(#[from] weir_link::shm::ShmError),
    /// The machine has no reorder queue and no retransmission, and a link needs one of them.
    #[error("the link {link:?} is not {missing}; allowed: links that are ordered and reliable")]
    Link {
        /// The link.
        link: weir_link::LinkKind,
        /// The promise that the link does not make.
        missing: &'static str,
    },
    /// The operating system returned an error.
    #[error("{what}: {source}")]
    System {
        /// The action that failed.
        what: String,
        /// The reason.
        source: std::io::Error,
    },
}

/// One endpoint at work. Not thread-safe: its owner locks it, see [`weir_link::biased_lock`].
pub struct Engine<L: Link = ShmLink> {
    /// The ranks of this node and of the job. Dropped before the mailbox.
    node: NodeView,
    machine: Endpoint,
    /// State on which the calls of the machine act.
    io: Io<L>,
    /// The header of the packet that was polled last.
    packet: Packet,
    /// An injected send that waits for a bounce buffer, or has waited in vain.
    bounce_limit_wait: Option<BounceLimitWait>,
    back_pressure: BackPressure,
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
}

impl Engine<ShmLink> {
    /// Opens an endpoint with its mailbox in shared memory.
    ///
    /// - `job`: its ranks, as far as is known; a number means ranks of one node (0: not known). More may come.
    /// - `several_threads`: limits sleeps inside [`Engine::pause`] to 50 us.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is left behind.
    pub fn open(
        settings: &Settings,
        job: impl Into<Job>,
        several_threads: bool,
    ) -> Result<Engine, OpenError> {
        Engine::open_over(settings, job, several_threads, |link| link)
    }
}

/// Checks that the machine can use `link`.
fn check_promises(link: &impl Link) -> Result<(), OpenError> {
    let properties = link.properties();
    let missing = if !properties.ordered {
        "ordered"
    } else if !properties.reliable {
        "reliable"
    } else {
        return Ok(());
    };
    Err(OpenError::Link { link: link.kind(), missing })
}

fn cannot_write(directory: &std::path::Path) -> impl Fn(std::io::Error) -> OpenError {
    move |source| OpenError::System { what: format!("cannot write to {}", directory.display()), source }
}

impl<L: Link> Engine<L> {
    /// [`Engine::open`] over the link that `make` makes of the mailbox in shared memory.
    ///
    /// # Errors
    /// As for [`Engine::open`].
    pub fn open_over(
        settings: &Settings,
        job: impl Into<Job>,
        several_threads: bool,
        make: impl FnOnce(ShmLink) -> L,
    ) -> Result<Engine<L>, OpenError> {
        let job = job.into();
        let (near_ranks, job_ranks) = (job.ranks().near(), job.ranks().job);
        let cores = oversubscription::cores();
        let space = weir_link::shm::file_system_space(&settings.shm_dir);
        let (plan, place) = settings.placed(near_ranks, space, weir_link::shm::has_unlimited_memory)?;
        let oversubscribed = near_ranks as usize > cores;
        let options = weir_link::shm::ShmOptions {
            dir: settings.shm_dir.clone(),
            in_memory: place.in_memory,
            reserved_lanes: place.reserved_lanes,
            ranks: near_ranks,
            quota_data_slots: plan.base_slots,
            start_slots: plan.start_slots,
            quota_rest_lanes: plan.rest_lanes,
            credit_slots: plan.credit_slots,
            max_lanes: settings.max_peers,
            cross_memory: settings.cross_memory,
            full_fences: oversubscribed,
            cooperative_copy: !oversubscribed,
            conditional: !settings.scheme.grants(),
            scheme: weir_link::shm::SchemeName::new(config::flow_word(settings.scheme)),
        };
        let mailbox = ShmLink::open(&options)?;
        let (node, node_segment_error) = NodeView::join(&mailbox, &job);
        let link = make(mailbox);
        check_promises(&link)?;
        let mut engine =
            Engine::with_link_among(link, settings, &plan.region, job.ranks(), cores, several_threads);
        (engine.node, engine.node_segment_error) = (node, node_segment_error);
        engine.more_ranks_have_come(); // some may run already
        if let Some(directory) = &settings.stats_dir {
            let identity = engine.address().identity();
            let stats = stats::Writer::create(directory, settings.scheme, identity)
                .map_err(cannot_write(directory))?;
            engine.stats = Some(stats);
            engine.write_counters();
        }
        if let Some(directory) = &settings.trace_dir {
            let identity = engine.address().identity();
            let recorder =
                trace::Recorder::create(directory, identity, job_ranks).map_err(cannot_write(directory))?;
            engine.trace = Some(Box::new(recorder));
        }
        Ok(engine)
    }

    /// Opens an endpoint over any link, whose lanes fit `region`. Other arguments as for [`Engine::open`].
    pub fn with_link(
        link: L,
        settings: &Settings,
        region: &DataRegion,
        peers: u32,
        several_threads: bool,
    ) -> Engine<L> {
        let ranks = Job::from(peers).ranks();
        Engine::with_link_among(link, settings, region, ranks, oversubscription::cores(), several_threads)
    }

    fn with_link_among(
        link: L,
        settings: &Settings,
        region: &DataRegion,
        ranks: Ranks,
        cores: usize,
        several_threads: bool,
    ) -> Engine<L> {
        let mut link = link;
        let near_ranks = ranks.near();
        let oversubscribed = near_ranks as usize > cores;
        assert!(
            settings.scheme.grants() || link.free_slots().is_some(),
            "a scheme without credits needs a link that counts free slots"
        );
        let properties = link.properties();
        let config = Config {
            scheme: settings.scheme,
            geometry: properties.geometry,
            credit_slots: settings.credit_slots,
            region: *region,
            eager_bytes: u64::from(settings.eager_bytes),
            cross_memory: settings.cross_memory,
            remote_inline_bytes: REMOTE_INLINE_BYTES,
            max_backlog: MAX_BACKLOG,
            max_unexpected: MAX_UNEXPECTED,
            unexpected_budget_bytes: settings.unexpected_budget_bytes,
            bounce_bytes: settings.bounce_limit_bytes(near_ranks),
            planned_peers: ranks.job,
            planned_quota_slots: settings
                .quota(near_ranks)
                .map_or(u32::MAX, |plan| plan.base_slots + u32::from(plan.rest_lanes > 0)),
        };
        let mut machine = Endpoint::new(config);
        properties.other_geometries.iter().for_each(|geometry| machine.expect_geometry(geometry));
        Engine {
            machine,
            packet: Packet::new(Body::Credit, 0),
            io: Io::new(link, settings.cross_memory),
            bounce_limit_wait: None,
            back_pressure: BackPressure::default(),
            new_arrivals: false,
            idle_polls: 0,
            idle_bytes: u64::from(settings.idle_bytes),
            peak_mailbox_bytes: 0,
            node: NodeView::without_segment(ranks),
            node_segment_error: None,
            oversubscribed,
            cores,
            skips_yields: settings.skip_yields,
            core_per_rank: near_ranks > 0 && !oversubscribed,
            single_threaded: !several_threads,
            skipped_yields: 0,
            waiting: Waiting::new(settings.spin, settings.sleep_us, oversubscribed, several_threads),
            read_spin: ReadSpin::new(weir_link::cores::TICKS && !oversubscribed && !several_threads),
            progress_calls: 0,
            peeked_at: None,
            laps: Laps::default(),
            peers_checked_at: Clock::now(),
            peer_checks: PeerChecks::default(),
            close_ms: settings.close_ms,
            linger: settings.linger,
            closing: None,
            stats: None,
            trace: None,
            stall_watch: stalls::StallWatch::new(settings.stall_ms),
            warn: None,
        }
    }

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

    /// More ranks have come. With more ranks than cores now, this endpoint yields its core sooner from now on.
    #[cold]
    pub(crate) fn more_ranks_have_come(&mut self) {
        if !self.oversubscribed && self.node.ranks.node as usize > self.cores {
            self.oversubscribed = true;
            self.core_per_rank = false;
            self.waiting.share_core();
            self.read_spin.disable();
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

    /// Sends a message.
    ///
    /// # Errors
    /// [`PostError::Again`]; with `inject` also [`PostError::Full`].
    #[inline]
    pub fn send(&mut self, post: Post, arguments: SendArguments) -> Result<(), PostError> {
        self.send_with_sink(post, arguments, &mut NullSink)
    }

    /// [`Engine::send`] that offers the completion of a message that leaves at once to `sink`.
    ///
    /// # Errors
    /// As for [`Engine::send`].
    #[inline(always)]
    pub fn send_with_sink(
        &mut self,
        post: Post,
        arguments: SendArguments,
        sink: &mut impl CompletionSink,
    ) -> Result<(), PostError> {
        let level = arguments.effective_level();
        let SendArguments { to, space, tag, data, mut memory, inject, .. } = arguments;
        let bytes = memory.bytes();
        let send = SendCommand { request: POSTED, to, space, tag, data, bytes, level };
        let posted = Some(Posted { post, operation: Operation::Send, space, memory: &mut memory, inject });
        let driver = EventDriver { io: &mut self.io, sink, posted };
        match self.machine.handle(Event::Posted(Command::Send(send)), driver) {
            Ok(()) if self.io.has_aftermath => self.after_send(to),
            Ok(()) => {}
            Err(refusal) => return Err(self.refused(refusal, to)),
        }
        Ok(())
    }

    /// Ends a send to `to`. A sender far ahead of its receiver waits a moment.
    #[inline(never)]
    fn after_send(&mut self, to: Peer) {
        self.after_event();
        self.apply_back_pressure(to);
    }

    /// The error for an operation with `to` that the endpoint machine has refused. If waiting does not help, the next
    /// attempt is not refused.
    #[cold]
    fn refused(&mut self, refusal: Refusal, to: Peer) -> PostError {
        match refusal {
            Refusal::Operations => PostError::Again { limit: MAX_OPERATIONS },
            Refusal::Backlog => PostError::Again { limit: MAX_BACKLOG },
            Refusal::RemoteOperations => PostError::Again { limit: MAX_REMOTE_OPERATIONS },
            Refusal::BounceBuffers => self.wait_for_bounce_buffer(to),
            Refusal::Early => unreachable!("the engine acts in time"),
        }
    }

    /// Posts a receive. `multi`: `Some(min_free_bytes)` makes it a multi-receive buffer.
    ///
    /// # Errors
    /// [`PostError::Again`].
    pub fn receive(
        &mut self,
        post: Post,
        pattern: Pattern,
        memory: UserMemory,
        multi: Option<u64>,
    ) -> Result<(), PostError> {
        self.receive_with_sink(post, pattern, memory, multi, &mut NullSink)
    }

    /// [`Engine::receive`] that offers the completion to `sink`, if the message has arrived already.
    ///
    /// # Errors
    /// As for [`Engine::receive`].
    #[inline(always)]
    pub fn receive_with_sink(
        &mut self,
        post: Post,
        pattern: Pattern,
        mut memory: UserMemory,
        multi: Option<u64>,
        sink: &mut impl CompletionSink,
    ) -> Result<(), PostError> {
        let operation = if multi.is_some() { Operation::MultiReceive } else { Operation::Receive };
        let capacity_bytes = memory.bytes();
        let receive = ReceiveCommand { request: POSTED, pattern, capacity_bytes, multi };
        let posted = Posted { post, operation, space: pattern.space, memory: &mut memory, inject: false };
        let driver = EventDriver { io: &mut self.io, sink, posted: Some(posted) };
        match self.machine.handle(Event::Posted(Command::Receive(receive)), driver) {
            Ok(()) if self.io.has_aftermath => self.after_event(),
            Ok(()) => {}
            Err(_) => return Err(PostError::Again { limit: MAX_OPERATIONS }),
        }
        Ok(())
    }

    /// Makes progress and looks for an unexpected message. Ends in one completion: `Found`, `Absent`, or `Lost` if only
    /// failed peers could match.
    ///
    /// # Errors
    /// [`PostError::Again`].
    pub fn peek(&mut self, post: Post, pattern: Pattern, then: PeekThen) -> Result<(), PostError> {
        self.progress();
        self.peeked_at = Some(self.progress_calls);
        let request = self.begin(post, Operation::Peek, pattern.space, UserMemory::EMPTY)?;
        self.post(Command::Peek { request, pattern, then });
        Ok(())
    }

    /// Receives a message that a peek has claimed.
    ///
    /// # Errors
    /// [`PostError::Again`].
    pub fn receive_claimed(
        &mut self,
        post: Post,
        message: MessageId,
        memory: UserMemory,
    ) -> Result<(), PostError> {
        let capacity_bytes = memory.bytes();
        let request = self.begin(post, Operation::Receive, Space::Tagged, memory)?;
        self.post(Command::ReceiveClaimed { request, message, capacity_bytes });
        Ok(())
    }

    /// Discards a message that a peek has claimed. Ends in one completion, `Found`.
    ///
    /// # Errors
    /// [`PostError::Again`].
    pub fn discard_claimed(&mut self, post: Post, message: MessageId) -> Result<(), PostError> {
        let request = self.begin(post, Operation::Peek, Space::Tagged, UserMemory::EMPTY)?;
        self.post(Command::DiscardClaimed { request, message });
        Ok(())
    }

    /// Cancels a posted receive (or multi-receive buffer) whose context is `context`. Returns whether there was one. It
    /// then ends in exactly one completion, `Canceled` or its normal one.
    pub fn cancel(&mut self, context: usize) -> bool {
        let Some(request) = self.io.operations.receive_with_context(context) else { return false };
        self.post(Command::Cancel { request });
        true
    }

    /// Reads remote memory.
    ///
    /// # Errors
    /// [`PostError::Again`].
    pub fn read(&mut self, post: Post, mut arguments: RemoteArguments) -> Result<(), PostError> {
        self.post_read(post, &mut arguments)
    }

    /// Writes remote memory. Completes when the data is in place there.
    ///
    /// # Errors
    /// [`PostError::Again`].
    pub fn write(&mut self, post: Post, mut arguments: RemoteArguments) -> Result<(), PostError> {
        self.post_write(post, &mut arguments)
    }

    /// Registers memory under `key`, which must be free. Peers address it by its offset from the start.
    pub fn register_memory(&mut self, key: u64, memory: UserMemory, readable: bool, writable: bool) {
        let bytes = memory.bytes();
        self.io.regions.insert(key, memory);
        self.post(Command::RegisterMemory { key, bytes, readable, writable });
        self.expose_words(key, (readable && writable).then_some(bytes));
    }

    /// Deregisters the memory of `key`.
    pub fn deregister_memory(&mut self, key: u64) {
        self.post(Command::DeregisterMemory { key });
        self.expose_words(key, None);
        self.io.regions.remove(&key);
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

    #[inline(always)]
    fn begin(
        &mut self,
        post: Post,
        operation: Operation,
        space: Space,
        memory: UserMemory,
    ) -> Result<Request, PostError> {
        if self.io.operations.count() >= MAX_OPERATIONS as usize {
            return Err(PostError::Again { limit: MAX_OPERATIONS });
        }
        Ok(self.io.operations.begin(Outstanding::new(post, operation, space, memory)))
    }

    /// Whether the program has used the endpoint.
    pub fn is_used(&self) -> bool {
        self.progress_calls > 0 || self.io.operations.count() > 0 || self.machine.has_contacts()
    }

    /// Several threads call, not at the same time (`FI_THREAD_DOMAIN`). One of them may wait for the program's lock while
    /// another one sleeps in the engine, so sleeps are short from now on.
    pub fn several_threads_call(&mut self) {
        self.waiting.limit_sleeps();
        self.read_spin.disable();
        self.single_threaded = false;
    }
}
