//! Settings: the `FI_WEIR_*` variables, for the provider, the command and the documentation.
//!
//! [`SETTINGS`] lists them, [`Settings::from_lookup`] reads and checks them (`readers.rs`), and [`Settings::quota`] checks what
//! depends on the number of peers. The caller supplies the values. The provider reads the environment of its process,
//! `weir run` adds its options, and a test uses a closure. [`Settings::to_variables`] writes settings back as
//! variables.

mod across_hosts;
mod admission;
mod bound;
mod links;
mod list;
mod plan;
mod readers;

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_link::Protection;
use weir_link::shm::MAX_LANE_SLOTS;
use weir_proto::{AttachPolicy, MAX_CREDIT_SLOTS, Scheme};

use crate::{launcher, node_memory};
pub use across_hosts::AcrossHosts;
pub use admission::{Admission, ThresholdLink, Thresholds, ThresholdsError};
pub use bound::ReceiverBound;
pub use links::LinkChoice;
use list::*;
pub use list::{PREFIX, SETTINGS, SettingInfo, check_names};
pub use plan::{DEFAULT_SLOTS_PER_SENDER, MailboxPlan, Placement};
use readers::*;

/// All ranks of a node together use at most 1 / this of its memory for bounce buffers.
const BOUNCE_DIVISOR: u64 = 2;

/// A setting that is not allowed. Its text is one line with the variable, the value and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// The value is none of the allowed words or numbers.
    #[error("{variable}={value}: allowed are {allowed}")]
    NotAllowed {
        /// Variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The value is no number, or one with a unit.
    #[error("{variable}={value}: allowed are {allowed}, as a number alone, without a unit")]
    NoNumber {
        /// Variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The directory does not exist.
    #[error("{variable}={value}: is not an existing directory; create it or name another")]
    NoDirectory {
        /// Variable.
        variable: &'static str,
        /// Its value.
        value: String,
    },
    /// The value is too small for this many ranks.
    #[error("{variable}={value}: {ranks} ranks{with} need at least {least}")]
    TooFew {
        /// Variable.
        variable: &'static str,
        /// Its value.
        value: u32,
        /// Endpoints of the job.
        ranks: u32,
        /// A further condition, for example ` with 2 credit slots each`.
        with: String,
        /// The least value that is allowed.
        least: u64,
    },
    /// The value is too large for this many ranks: a sender's share has a bound of its own.
    #[error("{variable}={value}: {ranks} ranks can have at most {most}, {MAX_LANE_SLOTS} slots each")]
    TooMany {
        /// Variable.
        variable: &'static str,
        /// Its value.
        value: u32,
        /// Endpoints of the job.
        ranks: u32,
        /// The greatest value that is allowed.
        most: u64,
    },
    /// The value is greater than another setting allows.
    #[error("{variable}={value}: must be at most {other}={most}")]
    ExceedsOther {
        /// Variable.
        variable: &'static str,
        /// Its value.
        value: u32,
        /// The other variable.
        other: &'static str,
        /// The value of the other variable.
        most: u32,
    },
    /// The setting has another name now.
    #[error("{variable}: this setting is called {renamed_to} now; set {renamed_to} instead")]
    Renamed {
        /// Variable.
        variable: &'static str,
        /// The setting that replaces it, with the same values.
        renamed_to: &'static str,
    },
    /// A part of the value is not allowed.
    #[error("{variable}={value}: {wrong}; allowed are {allowed}")]
    Part {
        /// Variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The part, and what is wrong with it.
        wrong: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// No setting has this name.
    #[error("{variable}: no such setting; did you mean {nearest}? Known are {}", known_variables())]
    Unknown {
        /// Variable.
        variable: String,
        /// The setting with the most similar name.
        nearest: &'static str,
    },
}

impl SettingError {
    /// The variable that is at fault.
    pub fn variable(&self) -> &str {
        match self {
            SettingError::NotAllowed { variable, .. }
            | SettingError::NoNumber { variable, .. }
            | SettingError::NoDirectory { variable, .. }
            | SettingError::Part { variable, .. }
            | SettingError::TooFew { variable, .. }
            | SettingError::ExceedsOther { variable, .. }
            | SettingError::TooMany { variable, .. }
            | SettingError::Renamed { variable, .. } => variable,
            SettingError::Unknown { variable, .. } => variable,
        }
    }
}

/// The use of the slots that remain when the mailbox does not divide evenly (spec, 2a).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaRest {
    /// One more slot for each of the first senders.
    First,
    /// They stay unused.
    Round,
}

/// All settings of an endpoint, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `FI_WEIR_FLOW`, and the settings of that scheme alone: `FI_WEIR_PIGGYBACK`, `FI_WEIR_RNR_TIMER_US`,
    /// `FI_WEIR_RNR_RETRIES`, `FI_WEIR_ECM_THRESHOLD`, `FI_WEIR_ADAPTIVE_GROWTH`.
    pub scheme: Scheme,
    /// `FI_WEIR_MAILBOX_SLOTS`: data slots of a mailbox, for all senders; 0: chosen by the number of ranks.
    pub mailbox_slots: u32,
    /// `FI_WEIR_SLOTS_PER_PEER`: dynamic credits, data slots for each rank.
    pub slots_per_peer: u32,
    /// `FI_WEIR_ATTACH` (`contact`, `start`): dynamic credits, when a sender gets its share.
    pub attach: AttachPolicy,
    /// `FI_WEIR_CREDIT_SLOTS`: slots for credit packets, for each peer.
    pub credit_slots: u32,
    /// `FI_WEIR_PREPOSTED`: data slots of a sender (hardware, static in the connection form); 0: its share.
    pub preposted_slots: u32,
    /// `FI_WEIR_ADAPTIVE_START`: data slots of a sender at first.
    pub adaptive_start_slots: u32,
    /// `FI_WEIR_ADAPTIVE_MAX`: most data slots of a sender; 0: its share.
    pub adaptive_max_slots: u32,
    /// `FI_WEIR_QUOTA_REST` (`first`, `round`).
    pub quota_rest: QuotaRest,
    /// `FI_WEIR_EAGER_BYTES`: longest eager message.
    pub eager_bytes: u32,
    /// `FI_WEIR_FAR_EAGER_BYTES`: the same for ranks that cannot read the memory of this one, if the endpoint has a network and
    /// the budget suffices.
    pub far_eager_bytes: u32,
    /// The same for ranks that can, at most `eager_bytes`. No setting: it follows from the job of an endpoint.
    pub readable_eager_bytes: u32,
    /// `FI_WEIR_UNEXPECTED_BUDGET`: the unexpected-message budget. Unit: bytes.
    pub unexpected_budget_bytes: u64,
    /// `FI_WEIR_ENVELOPE_BUDGET`: memory for envelopes of unexpected messages; 0: no limit. Unit: bytes.
    pub envelope_budget_bytes: u64,
    /// `FI_WEIR_BOUNCE_BYTES`: memory for bounce buffers; 0: see [`Settings::bounce_limit_bytes`]. Unit: bytes.
    pub bounce_bytes: u64,
    /// `FI_WEIR_CROSS_MEMORY` (`0`, `1`): copy large messages directly between processes.
    pub cross_memory: bool,
    /// `FI_WEIR_SKIP_YIELDS` (`0`, `1`): skip redundant yields of the MPI library ([`weir_link::sched_yield`]).
    pub skip_yields: bool,
    /// `FI_WEIR_SHORT_SLICE` (`0`, `1`): a short time slice for the threads of the program ([`weir_link::time_slice`]).
    pub short_slice: bool,
    /// `FI_WEIR_COLLECTIVES` (`0`, `1`): collective operations of MPI programs and of the native interface go through
    /// node groups.
    pub collectives: bool,
    /// `FI_WEIR_COLLECTIVES_ACROSS` (`0`, `auto`, `1`): also those of communicators across hosts.
    pub collectives_across: AcrossHosts,
    /// `FI_WEIR_MAX_PEERS`: lanes of a mailbox.
    pub max_peers: u32,
    /// `FI_WEIR_IDLE_BYTES`: mailbox bytes that idle senders may retain.
    pub idle_bytes: u32,
    /// `FI_WEIR_SPIN`: empty polls before the core is yielded; 0: chosen by cores and ranks.
    pub spin: u32,
    /// `FI_WEIR_SLEEP_US`: longest sleep inside a libfabric read, if one thread calls.
    pub sleep_us: u32,
    /// `FI_WEIR_CLOSE_MS`: close timeout for operations that are not complete.
    pub close_ms: u32,
    /// `FI_WEIR_LINGER_S`: how long closing waits while receivers take no message of a completed send.
    pub linger: Duration,
    /// `FI_WEIR_LINK`: the links of an endpoint.
    pub links: LinkChoice,
    /// `FI_WEIR_NET`: interface, address or subnet.
    pub net: Option<String>,
    /// `FI_WEIR_PORTS`: ports of endpoints.
    pub ports: Option<RangeInclusive<u16>>,
    /// `FI_WEIR_SOCKET_BUFFER`: memory of the kernel for arriving datagrams. Unit: bytes.
    pub socket_buffer_bytes: u32,
    /// `FI_WEIR_PROTECTION` (`encrypt`, `authenticate`, `off`): what protects datagrams on a network.
    pub protection: Protection,
    /// `FI_WEIR_CONNECTED_SOCKET` (`0`, `1`): connect a second socket to the peer to which nearly all datagrams go.
    pub connected_socket: bool,
    /// `FI_WEIR_PEER_TIMEOUT_S`: a peer on the network that is silent for so long is lost.
    pub peer_timeout: Duration,
    /// `FI_WEIR_ADMIT` (`off`, `rate`, `token`, `auto`, `proxy`, `proxy,token`): what holds packets back before a network.
    pub admission: Admission,
    /// `FI_WEIR_ADMIT_TOKENS`: datagrams of a node and job without acknowledgement.
    pub admission_tokens: u32,
    /// `FI_WEIR_ADMIT_DELAY_NS`: delay between packets of an endpoint. Unit: ns.
    pub admission_delay_ns: u32,
    /// `FI_WEIR_ADMIT_THRESHOLDS`: tokens by message size and active ranks.
    pub admission_thresholds: Thresholds,
    /// `FI_WEIR_ADMIT_SERVERS`: endpoints of a node that send at a time, with a proxy.
    pub admission_servers: u32,
    /// `FI_WEIR_ADMIT_DRAIN` (`0`, `1`): such an endpoint empties a queue before the next.
    pub admission_drains: bool,
    /// `FI_WEIR_SHM_DIR`: directory of the mailboxes.
    pub shm_dir: PathBuf,
    /// `FI_WEIR_STATS`: directory for counters, read by `weir run`.
    pub stats_dir: Option<PathBuf>,
    /// `FI_WEIR_TRACE`: directory for traces, read by `weir run --report`.
    pub trace_dir: Option<PathBuf>,
    /// `FI_WEIR_STALL_MS`: shortest wait for credit that is reported; 0: none is.
    pub stall_ms: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            scheme: Scheme::Demand,
            mailbox_slots: 0,
            slots_per_peer: 16,
            attach: AttachPolicy::FirstContact,
            credit_slots: 2,
            preposted_slots: 0,
            adaptive_start_slots: 4,
            adaptive_max_slots: 0,
            quota_rest: QuotaRest::First,
            eager_bytes: 16384,
            far_eager_bytes: weir_proto::FAR_EAGER_BYTES as u32,
            readable_eager_bytes: u32::MAX,
            unexpected_budget_bytes: 16 << 20,
            envelope_budget_bytes: 64 << 20,
            bounce_bytes: 0,
            cross_memory: true,
            skip_yields: true,
            short_slice: true,
            collectives: true,
            collectives_across: AcrossHosts::WhereShared,
            max_peers: 4096,
            idle_bytes: 640 << 10,
            spin: 0,
            sleep_us: 1000,
            close_ms: 10_000,
            linger: Duration::from_secs(300),
            links: LinkChoice::Auto,
            net: None,
            ports: None,
            socket_buffer_bytes: 4 << 20,
            protection: Protection::Encrypt,
            connected_socket: true,
            peer_timeout: Duration::from_secs(10),
            admission: Admission::Auto,
            admission_tokens: 256,
            admission_delay_ns: 2000,
            admission_thresholds: Thresholds::default(),
            admission_servers: 1,
            admission_drains: false,
            shm_dir: PathBuf::from("/dev/shm"),
            stats_dir: None,
            trace_dir: None,
            stall_ms: 1000,
        }
    }
}

/// Calls `report`, which shows the user a wrong setting. Ranks that one launcher has started on this node call it once: most
/// often they have the same settings.
pub fn report_once_in_job(report: impl FnOnce()) {
    if !launcher::has_started_us() {
        return report();
    }
    let dir = std::env::var_os(SHM_DIR).map(PathBuf::from).filter(|dir| dir.is_dir());
    weir_link::shm::report_once(&dir.unwrap_or(Settings::default().shm_dir), report);
}

impl Settings {
    /// Reads the settings from the environment of this process.
    ///
    /// # Errors
    /// [`SettingError`]: the first setting that is not allowed, or a `FI_WEIR_*` variable that does not exist.
    pub fn from_environment() -> Result<Settings, SettingError> {
        check_names(std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()))?;
        // Values that are not UTF-8 are not allowed either. The lossy text makes the error readable.
        Settings::from_lookup(|variable| {
            std::env::var_os(variable).map(|value| value.to_string_lossy().into_owned())
        })
    }

    /// Reads the settings from `lookup`, which maps variables to values. Absent and empty values mean the default.
    /// Accesses the file system only to check directories.
    ///
    /// # Errors
    /// [`SettingError`]: the first setting that is not allowed.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Settings, SettingError> {
        let given = |variable: &str| lookup(variable).filter(|value| !value.is_empty());
        let default = Settings::default();
        let scheme = read_scheme(&given)?;
        let preposted_slots = read_number(&given, PREPOSTED, 0..=65535)?.unwrap_or(default.preposted_slots);
        let ecm_threshold = read_number(&given, ECM_THRESHOLD, 0..=65535u32)?.unwrap_or(0);
        let adaptive_max_slots =
            read_number(&given, ADAPTIVE_MAX, 0..=65535)?.unwrap_or(default.adaptive_max_slots);
        let adaptive_start_slots =
            read_number(&given, ADAPTIVE_START, 1..=65535)?.unwrap_or(default.adaptive_start_slots);
        check_not_above((ECM_THRESHOLD, ecm_threshold), (PREPOSTED, preposted_slots))?;
        if given(ADAPTIVE_START).is_some() {
            check_not_above((ADAPTIVE_START, adaptive_start_slots), (ADAPTIVE_MAX, adaptive_max_slots))?;
        }
        let attach_words = [("contact", AttachPolicy::FirstContact), ("start", AttachPolicy::Start)];
        let rest_words = [("first", QuotaRest::First), ("round", QuotaRest::Round)];
        let protection_words = Protection::ALL.map(|protection| (protection.word(), protection));
        Ok(Settings {
            scheme,
            mailbox_slots: read_number(&given, MAILBOX_SLOTS, 0..=1 << 24)?.unwrap_or(default.mailbox_slots),
            slots_per_peer: read_number(&given, SLOTS_PER_PEER, 1..=1024)?.unwrap_or(default.slots_per_peer),
            attach: read_word(&given, ATTACH, &attach_words)?.unwrap_or(default.attach),
            credit_slots: read_number(&given, CREDIT_SLOTS, 1..=MAX_CREDIT_SLOTS)?
                .unwrap_or(default.credit_slots),
            preposted_slots,
            adaptive_start_slots,
            adaptive_max_slots,
            quota_rest: read_word(&given, QUOTA_REST, &rest_words)?.unwrap_or(default.quota_rest),
            eager_bytes: read_number(&given, EAGER_BYTES, 0..=1 << 20)?.unwrap_or(default.eager_bytes),
            far_eager_bytes: read_number(&given, FAR_EAGER_BYTES, 0..=1 << 20)?
                .unwrap_or(default.far_eager_bytes),
            readable_eager_bytes: default.readable_eager_bytes,
            unexpected_budget_bytes: read_number(&given, UNEXPECTED_BUDGET, 1 << 16..=1 << 40)?
                .unwrap_or(default.unexpected_budget_bytes),
            envelope_budget_bytes: read_number(&given, ENVELOPE_BUDGET, 0..=1 << 40)?
                .unwrap_or(default.envelope_budget_bytes),
            bounce_bytes: read_number(&given, BOUNCE_BYTES, 0..=1 << 40)?.unwrap_or(default.bounce_bytes),
            cross_memory: read_word(&given, CROSS_MEMORY, &SWITCH)?.unwrap_or(default.cross_memory),
            collectives: read_word(&given, COLLECTIVES, &SWITCH)?.unwrap_or(default.collectives),
            collectives_across: read_word(&given, COLLECTIVES_ACROSS, &AcrossHosts::WORDS)?
                .unwrap_or(default.collectives_across),
            skip_yields: read_word(&given, SKIP_YIELDS, &SWITCH)?.unwrap_or(default.skip_yields),
            short_slice: read_word(&given, SHORT_SLICE, &SWITCH)?.unwrap_or(default.short_slice),
            max_peers: read_number(&given, MAX_PEERS, 1..=4096)?.unwrap_or(default.max_peers),
            idle_bytes: read_number(&given, IDLE_BYTES, 0..=u32::MAX)?.unwrap_or(default.idle_bytes),
            spin: read_number(&given, SPIN, 0..=1_000_000)?.unwrap_or(default.spin),
            sleep_us: read_number(&given, SLEEP_US, 0..=100_000)?.unwrap_or(default.sleep_us),
            close_ms: read_number(&given, CLOSE_MS, 0..=600_000)?.unwrap_or(default.close_ms),
            linger: read_number(&given, LINGER_S, 0..=86_400u32)?
                .map_or(default.linger, |seconds| Duration::from_secs(seconds.into())),
            links: read_links(&given)?.unwrap_or(default.links),
            net: given(NET),
            ports: read_ports(&given)?,
            socket_buffer_bytes: read_number(&given, SOCKET_BUFFER, 1 << 16..=1 << 30)?
                .unwrap_or(default.socket_buffer_bytes),
            protection: read_word(&given, PROTECTION, &protection_words)?.unwrap_or(default.protection),
            connected_socket: read_word(&given, CONNECTED_SOCKET, &SWITCH)?
                .unwrap_or(default.connected_socket),
            peer_timeout: read_number(&given, PEER_TIMEOUT_S, 1..=3600u32)?
                .map_or(default.peer_timeout, |seconds| Duration::from_secs(seconds.into())),
            admission: read_word(&given, ADMIT, &Admission::WORDS)?.unwrap_or(default.admission),
            admission_tokens: read_number(&given, ADMIT_TOKENS, 1..=65535)?
                .unwrap_or(default.admission_tokens),
            admission_delay_ns: read_number(&given, ADMIT_DELAY_NS, 1..=1_000_000_000)?
                .unwrap_or(default.admission_delay_ns),
            admission_thresholds: read_thresholds(&given)?.unwrap_or(default.admission_thresholds),
            admission_servers: read_number(&given, ADMIT_SERVERS, 1..=64)?
                .unwrap_or(default.admission_servers),
            admission_drains: read_word(&given, ADMIT_DRAIN, &SWITCH)?.unwrap_or(default.admission_drains),
            shm_dir: read_directory(&given, SHM_DIR)?.unwrap_or(default.shm_dir),
            stats_dir: read_directory(&given, STATS)?,
            trace_dir: read_directory(&given, TRACE)?,
            stall_ms: read_number(&given, STALL_MS, 0..=3_600_000)?.unwrap_or(default.stall_ms),
        })
    }

    /// Most memory that a sender uses for bounce buffers, with `ranks` ranks on this node (0: not known, counts as
    /// one). Unit: bytes.
    pub fn bounce_limit_bytes(&self, ranks: u32) -> u64 {
        match self.bounce_bytes {
            0 => node_memory::available_bytes() / BOUNCE_DIVISOR / u64::from(ranks.max(1)),
            given => given,
        }
    }

    /// The settings as variables and values, in the order of [`SETTINGS`], without those that have no value or do not
    /// apply to this scheme.
    pub fn to_variables(&self) -> Vec<(&'static str, String)> {
        let switch = |on: bool| String::from(if on { "1" } else { "0" });
        let number = |threshold: Option<NonZeroU32>| threshold.map_or(0, NonZeroU32::get).to_string();
        let attach_word = match self.attach {
            AttachPolicy::FirstContact => "contact",
            AttachPolicy::Start => "start",
        };
        let of_the_scheme = match self.scheme {
            Scheme::Unlimited => vec![],
            Scheme::Hardware { rnr_timer_ns, rnr_retries } => vec![
                (PREPOSTED, self.preposted_slots.to_string()),
                (RNR_TIMER_US, (rnr_timer_ns / 1000).to_string()),
                (RNR_RETRIES, rnr_retries.to_string()),
            ],
            Scheme::Static { piggyback } => vec![(PIGGYBACK, switch(piggyback))],
            Scheme::StaticConnection { ecm_threshold } => {
                vec![(PREPOSTED, self.preposted_slots.to_string()), (ECM_THRESHOLD, number(ecm_threshold))]
            }
            Scheme::AdaptiveBacklog { growth, ecm_threshold } => vec![
                (ECM_THRESHOLD, number(ecm_threshold)),
                (ADAPTIVE_START, self.adaptive_start_slots.to_string()),
                (ADAPTIVE_MAX, self.adaptive_max_slots.to_string()),
                (ADAPTIVE_GROWTH, growth_word(growth)),
            ],
            Scheme::Dynamic { piggyback } => vec![
                (PIGGYBACK, switch(piggyback)),
                (SLOTS_PER_PEER, self.slots_per_peer.to_string()),
                (ATTACH, attach_word.into()),
            ],
            Scheme::Demand => vec![(SLOTS_PER_PEER, self.slots_per_peer.to_string())],
        };
        let rest = match self.quota_rest {
            QuotaRest::First => "first",
            QuotaRest::Round => "round",
        };
        let path = |path: &Path| path.to_string_lossy().into_owned();
        let value = |variable| match variable {
            FLOW => Some(self.scheme.name().into()),
            MAILBOX_SLOTS => Some(self.mailbox_slots.to_string()),
            CREDIT_SLOTS => Some(self.credit_slots.to_string()),
            QUOTA_REST => Some(rest.into()),
            EAGER_BYTES => Some(self.eager_bytes.to_string()),
            FAR_EAGER_BYTES => Some(self.far_eager_bytes.to_string()),
            UNEXPECTED_BUDGET => Some(self.unexpected_budget_bytes.to_string()),
            ENVELOPE_BUDGET => Some(self.envelope_budget_bytes.to_string()),
            BOUNCE_BYTES => Some(self.bounce_bytes.to_string()),
            CROSS_MEMORY => Some(switch(self.cross_memory)),
            SKIP_YIELDS => Some(switch(self.skip_yields)),
            SHORT_SLICE => Some(switch(self.short_slice)),
            COLLECTIVES => Some(switch(self.collectives)),
            COLLECTIVES_ACROSS => Some(self.collectives_across.word().into()),
            MAX_PEERS => Some(self.max_peers.to_string()),
            IDLE_BYTES => Some(self.idle_bytes.to_string()),
            SPIN => Some(self.spin.to_string()),
            SLEEP_US => Some(self.sleep_us.to_string()),
            CLOSE_MS => Some(self.close_ms.to_string()),
            LINGER_S => Some(self.linger.as_secs().to_string()),
            LINK => Some(self.links.word()),
            NET => self.net.clone(),
            PORTS => self.ports.as_ref().map(|ports| format!("{}-{}", ports.start(), ports.end())),
            SOCKET_BUFFER => Some(self.socket_buffer_bytes.to_string()),
            PROTECTION => Some(self.protection.word().into()),
            CONNECTED_SOCKET => Some(switch(self.connected_socket)),
            PEER_TIMEOUT_S => Some(self.peer_timeout.as_secs().to_string()),
            ADMIT => Some(self.admission.word().into()),
            ADMIT_TOKENS => Some(self.admission_tokens.to_string()),
            ADMIT_DELAY_NS => Some(self.admission_delay_ns.to_string()),
            ADMIT_THRESHOLDS => Some(self.admission_thresholds.word()).filter(|word| !word.is_empty()),
            ADMIT_SERVERS => Some(self.admission_servers.to_string()),
            ADMIT_DRAIN => Some(switch(self.admission_drains)),
            SHM_DIR => Some(path(&self.shm_dir)),
            STATS => self.stats_dir.as_deref().map(path),
            TRACE => self.trace_dir.as_deref().map(path),
            STALL_MS => Some(self.stall_ms.to_string()),
            _ => of_the_scheme.iter().find(|(of, _)| *of == variable).map(|(_, value)| value.clone()),
        };
        SETTINGS.iter().filter_map(|setting| Some((setting.variable, value(setting.variable)?))).collect()
    }
}

#[cfg(test)]
mod tests;
