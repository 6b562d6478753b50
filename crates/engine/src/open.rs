//! Opening an endpoint: its mailbox, its node segment, its links, its endpoint machine, its counter page and its trace.
//! [`Engine::open`] uses shared memory, and a network if the setting or the launcher says so. A link that does not keep
//! packets in order or may lose them is refused. Tests bring their own link ([`Engine::open_over`],
//! [`Engine::with_link`]).

use std::time::Instant as Clock;

use weir_link::datagram::network::DatagramNetwork;
use weir_link::datagram::{DatagramLink, DatagramOptions, HelpedLink, SendGate, SendProxy};
use weir_link::links::Links;
use weir_link::ofi::{CoreAccess, CoreEndpoint, CoreError, MESSAGE_BYTES, OfiNetwork, OfiOptions};
use weir_link::shm::ShmLink;
use weir_link::shm::node_segment::NodeHandle;
use weir_link::udp::{UdpError, UdpNetwork, UdpOptions};
use weir_link::{Address, Link, Protection};
use weir_proto::reliability::ReliabilityConfig;
use weir_proto::{Config, DataRegion, Endpoint, FAR_EAGER_BYTES, MAX_UNEXPECTED, NO_ENVELOPE_BUDGET, Packet};

use crate::back_pressure::BackPressure;
use crate::config::{self, Admission, Settings};
use crate::expectation::Laps;
use crate::io::Io;
use crate::job::{Job, NodeView};
use crate::peer_checks::PeerChecks;
use crate::read_spin::ReadSpin;
use crate::waiting::Waiting;
use crate::{
    Engine, MAX_BACKLOG, REMOTE_INLINE_BYTES, may_spin_in_reads, oversubscription, stalls, stats, trace,
};

/// Copies of what peers have not acknowledged, over a core provider, whose datagrams are long: 16 MiB.
const OFI_COPIES: usize = (16 << 20) / MESSAGE_BYTES;

/// The reason why an endpoint could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A setting does not fit the number of peers.
    #[error(transparent)]
    Setting(#[from] config::SettingError),
    /// The mailbox could not be created.
    #[error(transparent)]
    Mailbox(#[from] weir_link::shm::ShmError),
    /// The network could not be opened.
    #[error(transparent)]
    Network(#[from] UdpError),
    /// The core provider could not be opened.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// The scheme counts free slots at peers, which no network does.
    #[error(
        "FI_WEIR_FLOW={scheme}: works in shared memory only; choose a scheme with credits, such as dynamic, or \
             FI_WEIR_LINK=shm"
    )]
    Scheme {
        /// The value of `FI_WEIR_FLOW`.
        scheme: &'static str,
    },
    /// Endpoints of this core provider cannot send for each other: nothing says which of its addresses are on one host.
    #[error(
        "FI_WEIR_ADMIT={}: with FI_WEIR_LINK=ofi:{provider}, allowed are off, rate, token, auto; ranks send for each \
             other over udp, and over core providers whose addresses are those of sockets, such as tcp", admission.word()
    )]
    Admission {
        /// `FI_WEIR_ADMIT`.
        admission: Admission,
        /// Name of the core provider.
        provider: String,
    },
    /// The endpoint machine has no reorder queue and no retransmission, and a link needs one of them.
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

impl OpenError {
    /// Whether the reason is a setting, which most often all ranks of the job share.
    pub fn is_setting(&self) -> bool {
        matches!(self, OpenError::Setting(_) | OpenError::Scheme { .. } | OpenError::Admission { .. })
    }
}

/// Opens an endpoint of the core provider with this name, on the network of `FI_WEIR_NET` if that is set. The last argument:
/// how large contents reach their memory, if the provider has that.
pub type OpenCore<'call> =
    &'call dyn Fn(&str, Option<&str>, CoreAccess) -> Result<Box<dyn CoreEndpoint>, CoreError>;

impl Engine {
    /// [`Engine::open_in_libfabric`] for a program without libfabric.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is left behind.
    pub fn open(
        settings: &Settings,
        job: impl Into<Job>,
        several_threads: bool,
    ) -> Result<Engine, OpenError> {
        let no_library = |provider: &str, _: Option<&str>, _| -> Result<Box<dyn CoreEndpoint>, CoreError> {
            Err(CoreError::NoLibrary { provider: provider.to_owned() })
        };
        Engine::open_in_libfabric(settings, job, several_threads, &no_library)
    }

    /// Opens an endpoint with its mailbox in shared memory, and with a network if it needs one.
    ///
    /// - `job`: its ranks, as far as is known; a number means ranks of one node (0: not known). More may come.
    /// - `several_threads`: limits sleeps inside [`Engine::pause`] to 50 us.
    /// - `open_core`: for `FI_WEIR_LINK=ofi:NAME`.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is left behind.
    pub fn open_in_libfabric(
        settings: &Settings,
        job: impl Into<Job>,
        several_threads: bool,
        open_core: OpenCore<'_>,
    ) -> Result<Engine, OpenError> {
        if settings.short_slice {
            // Without it everything works, and takes longer beside processes that compute.
            let _ = weir_link::time_slice::shorten();
        }
        let mut job = job.into();
        job.has_network = settings.links.has_network(job.spans_nodes());
        let settings = &settings.among(&job);
        let ranks = job.near_ranks();
        let network = if job.has_network { Some(Network::open(settings, ranks, open_core)?) } else { None };
        Engine::open_over(settings, job, several_threads, |shm, node| {
            let gate = network.as_ref().and_then(|_| settings.send_gate(node.as_ref(), ranks));
            // Nobody sends for a rank that is alone on its node.
            let others = node.as_ref().filter(|_| ranks != 1);
            let network = network.map(|network| network.link(&shm, settings, gate, others));
            Links::new(shm, network.into_iter().collect())
        })
    }
}

/// The network of an endpoint.
enum Network {
    Udp(Box<UdpNetwork>),
    Ofi(Box<OfiNetwork>),
}

impl Network {
    fn open(settings: &Settings, ranks: u32, open_core: OpenCore<'_>) -> Result<Network, OpenError> {
        if !settings.scheme.grants() {
            return Err(OpenError::Scheme { scheme: settings.scheme.name() });
        }
        let (net, ports) = (settings.net.clone(), settings.ports.clone());
        let limit_ns = settings.peer_timeout.as_nanos() as u64;
        if let Some(provider) = settings.links.core_provider() {
            let admission = settings.admission;
            // Nobody sends for a rank that is alone on its node.
            let has_proxy = admission.has_proxy() && ranks > 1;
            // What the core reads and writes by itself, nothing protects, and nothing holds back.
            let access = match settings.protection {
                _ if !settings.cross_memory || settings.holds_packets_back(ranks) => CoreAccess::Packets,
                Protection::Off => CoreAccess::Memory,
                Protection::Authenticate | Protection::Encrypt => CoreAccess::Large,
            };
            let endpoint = open_core(provider, net.as_deref(), access)?;
            let network = OfiNetwork::open(endpoint, &OfiOptions { ports, limit_ns, has_proxy })?;
            if has_proxy && network.domain().is_none() {
                return Err(OpenError::Admission { admission, provider: provider.to_owned() });
            }
            return Ok(Network::Ofi(Box::new(network)));
        }
        let buffer_bytes = settings.socket_buffer_bytes as usize;
        let connects = settings.connected_socket;
        let options = UdpOptions { net, ports, buffer_bytes, connects, limit_ns };
        Ok(Network::Udp(Box::new(UdpNetwork::open(&options)?)))
    }

    /// The link over it of the endpoint with this mailbox. Its senders get the same quota. It may send for `others` of its
    /// node, and they for it.
    fn link(
        self,
        shm: &ShmLink,
        settings: &Settings,
        gate: Option<SendGate>,
        others: Option<&NodeHandle>,
    ) -> Box<dyn Link> {
        let limit_ns = settings.peer_timeout.as_nanos() as u64;
        let reliability = ReliabilityConfig { limit_ns, ..ReliabilityConfig::default() };
        let options = DatagramOptions { reliability, ..DatagramOptions::new(shm.quota()) };
        let base = shm.address().with_protection(settings.protection);
        match self {
            Network::Udp(network) => {
                let proxy = settings.send_proxy(others, network.domain());
                helped(&base, *network, options, (gate, proxy))
            }
            Network::Ofi(network) => {
                let options = DatagramOptions { most_copies: OFI_COPIES, ..options };
                let proxy = settings.send_proxy(others, network.domain());
                helped(&base, *network, options, (gate, proxy))
            }
        }
    }
}

fn helped<N: DatagramNetwork + 'static>(
    base: &Address,
    network: N,
    options: DatagramOptions,
    (gate, proxy): (Option<SendGate>, Option<SendProxy>),
) -> Box<dyn Link> {
    let link = DatagramLink::open(base, network, options).with_gate(gate).with_proxy(proxy);
    Box::new(HelpedLink::over(link))
}

/// Checks that the endpoint machine can use `link`.
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
    /// [`Engine::open`] over the link that `make` makes of the mailbox in shared memory and of the node segment, if the
    /// endpoint has one.
    ///
    /// # Errors
    /// As for [`Engine::open`].
    pub fn open_over(
        settings: &Settings,
        job: impl Into<Job>,
        several_threads: bool,
        make: impl FnOnce(ShmLink, Option<NodeHandle>) -> L,
    ) -> Result<Engine<L>, OpenError> {
        let job = job.into();
        let (senders, job_ranks) = (job.ranks().senders(), job.ranks().job);
        let cores = oversubscription::cores();
        let space = weir_link::shm::file_system_space(&settings.shm_dir);
        let (plan, place) = settings.placed(senders, space, weir_link::shm::has_unlimited_memory)?;
        let oversubscribed = job.near_ranks() as usize > cores;
        // A rank without others on its node has no senders in shared memory. Those that come later execute full fences, so
        // that it need not interrupt all cores when it sleeps.
        let is_alone = job.has_network && job.near_ranks() == 1;
        let options = weir_link::shm::ShmOptions {
            dir: settings.shm_dir.clone(),
            in_memory: place.in_memory,
            reserved_lanes: place.reserved_lanes,
            ranks: senders,
            needed_bytes: place.needed_bytes,
            is_private: settings.links.is_network_alone(),
            quota_data_slots: plan.base_slots,
            start_slots: plan.start_slots,
            quota_rest_lanes: plan.rest_lanes,
            credit_slots: plan.credit_slots,
            max_lanes: settings.max_peers,
            cross_memory: settings.cross_memory,
            full_fences: oversubscribed || is_alone,
            cooperative_copy: !oversubscribed,
            conditional: !settings.scheme.grants(),
            refused_limit: settings.peer_timeout,
            scheme: weir_link::SchemeName::new(settings.scheme.name()),
        };
        let mailbox = ShmLink::open(&options)?;
        let (node, node_segment_error) = NodeView::join(&mailbox, &job);
        let link = make(mailbox, node.handle());
        check_promises(&link)?;
        let mut engine = Engine::with_link_among(link, settings, &plan.region, &job, cores, several_threads);
        (engine.node, engine.node_segment_error) = (node, node_segment_error);
        engine.ranks_have_changed(); // some may run already
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
        let job = Job::from(peers);
        Engine::with_link_among(link, settings, region, &job, oversubscription::cores(), several_threads)
    }

    fn with_link_among(
        link: L,
        settings: &Settings,
        region: &DataRegion,
        job: &Job,
        cores: usize,
        several_threads: bool,
    ) -> Engine<L> {
        let mut link = link;
        let (ranks, near_ranks) = (job.ranks(), job.near_ranks());
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
            envelope_budget_bytes: match settings.envelope_budget_bytes {
                0 => NO_ENVELOPE_BUDGET,
                bytes => bytes,
            },
            planned_peers: ranks.job,
            planned_quota_slots: settings
                .quota(ranks.senders())
                .map_or(u32::MAX, |plan| plan.base_slots + u32::from(plan.rest_lanes > 0)),
        };
        let mut machine = Endpoint::new(config);
        properties.other_geometries.iter().for_each(|geometry| machine.expect_geometry(geometry));
        machine.announce_to_readers_beyond(settings.readable_eager_bytes);
        if job.has_network {
            machine.expect_foreign_eager(FAR_EAGER_BYTES);
        }
        let mut waiting = Waiting::new(settings.spin, settings.sleep_us, oversubscribed, several_threads);
        if job.has_network {
            waiting.limit_spin_time(oversubscribed);
        }
        Engine {
            machine,
            packet: Packet::blank(),
            io: Io::new(link, settings.cross_memory, settings.unexpected_budget_bytes),
            bounce_limit_wait: None,
            back_pressure: BackPressure::default(),
            contact: BackPressure::default(),
            groups_leave: BackPressure::default(),
            new_arrivals: false,
            idle_polls: 0,
            idle_bytes: u64::from(settings.idle_bytes),
            peak_mailbox_bytes: 0,
            node: NodeView::without_segment(job),
            node_segment_error: None,
            oversubscribed,
            cores,
            skips_yields: settings.skip_yields,
            core_per_rank: near_ranks > 0 && !oversubscribed,
            single_threaded: !several_threads,
            skipped_yields: 0,
            waiting,
            read_spin: ReadSpin::new(may_spin_in_reads(oversubscribed, several_threads)),
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
            seen_progress_calls: 0,
        }
    }
}
