//! Settings: one list of `FI_WEIR_*` variables, for the provider, the command and the documents.
//!
//! [`SETTINGS`] says what there is, [`Settings::from_lookup`] reads and checks it, [`Settings::quota`] checks what
//! depends on the number of peers. Nothing here knows who asks: the provider reads its process's environment,
//! `weir run` its own environment under its flags, a test a closure.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use weir_link::shm::MAX_LANE_SLOTS;
use weir_proto::flow::static_connection;
use weir_proto::{Growth, Scheme};

/// What all variables begin with: libfabric's prefix, and the provider's name.
pub const PREFIX: &str = "FI_WEIR_";

/// Data slots per sender when `FI_WEIR_MAILBOX_SLOTS` is 0.
pub const DEFAULT_SLOTS_PER_SENDER: u32 = 256;

/// One variable, as it is documented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingInfo {
    /// Full name, `FI_WEIR_FLOW`.
    pub variable: &'static str,
    /// What holds when it is not set (or set to nothing). Empty: nothing.
    pub default: &'static str,
    /// What can be given, in words.
    pub allowed: &'static str,
    /// What it does, one sentence.
    pub help: &'static str,
}

impl SettingInfo {
    /// Name as libfabric's `fi_param_define` wants it: `flow` for `FI_WEIR_FLOW`.
    pub fn parameter(&self) -> String {
        self.variable.trim_start_matches(PREFIX).to_ascii_lowercase()
    }
}

const FLOW: &str = "FI_WEIR_FLOW";
const PIGGYBACK: &str = "FI_WEIR_PIGGYBACK";
const MAILBOX_SLOTS: &str = "FI_WEIR_MAILBOX_SLOTS";
const CREDIT_SLOTS: &str = "FI_WEIR_CREDIT_SLOTS";
const PREPOSTED: &str = "FI_WEIR_PREPOSTED";
const RNR_TIMER_US: &str = "FI_WEIR_RNR_TIMER_US";
const RNR_RETRIES: &str = "FI_WEIR_RNR_RETRIES";
const ECM_THRESHOLD: &str = "FI_WEIR_ECM_THRESHOLD";
const ADAPTIVE_START: &str = "FI_WEIR_ADAPTIVE_START";
const ADAPTIVE_MAX: &str = "FI_WEIR_ADAPTIVE_MAX";
const ADAPTIVE_GROWTH: &str = "FI_WEIR_ADAPTIVE_GROWTH";
const QUOTA_REST: &str = "FI_WEIR_QUOTA_REST";
const EAGER_BYTES: &str = "FI_WEIR_EAGER_BYTES";
const CROSS_MEMORY: &str = "FI_WEIR_CROSS_MEMORY";
const MAX_PEERS: &str = "FI_WEIR_MAX_PEERS";
const SPIN: &str = "FI_WEIR_SPIN";
const SLEEP_US: &str = "FI_WEIR_SLEEP_US";
const CLOSE_MS: &str = "FI_WEIR_CLOSE_MS";
const SHM_DIR: &str = "FI_WEIR_SHM_DIR";
const STATS: &str = "FI_WEIR_STATS";

/// All settings, in the order of the documents.
pub const SETTINGS: &[SettingInfo] = &[
    SettingInfo {
        variable: FLOW,
        default: "static",
        allowed: "unlimited, hardware, static, static-connection, adaptive",
        help: "Flow control: static gives every sender a fixed quota of credits (static-connection: in the form of \
               connections), adaptive raises it when senders have to wait; hardware tries again when there is no buffer, \
               unlimited lets a sender look for room.",
    },
    SettingInfo {
        variable: PIGGYBACK,
        default: "1",
        allowed: "0, 1",
        help: "Return credits with messages of the other direction, not only in credit packets.",
    },
    SettingInfo {
        variable: MAILBOX_SLOTS,
        default: "0",
        allowed: "0, or 1 to 16777216",
        help: "Data slots (64 bytes) of an endpoint's mailbox, for all its senders; 0: 256 for each sender.",
    },
    SettingInfo {
        variable: CREDIT_SLOTS,
        default: "2",
        allowed: "1 to 16",
        help: "Slots for explicit credit packets, for each sender.",
    },
    SettingInfo {
        variable: PREPOSTED,
        default: "0",
        allowed: "0, or 1 to 65535",
        help: "hardware, static-connection: slots pre-posted for each sender; 0: as the mailbox is divided.",
    },
    SettingInfo {
        variable: RNR_TIMER_US,
        default: "10",
        allowed: "1 to 655360",
        help: "hardware: how long a sender waits when its receiver is not ready (unit: microseconds).",
    },
    SettingInfo {
        variable: RNR_RETRIES,
        default: "7",
        allowed: "0 to 7",
        help: "hardware: how often a sender tries again before the connection fails; 7: without limit.",
    },
    SettingInfo {
        variable: ECM_THRESHOLD,
        default: "0",
        allowed: "0, or 1 to 65535",
        help: "static-connection, adaptive: credits that gather before an explicit credit message; 0: half of the buffers.",
    },
    SettingInfo {
        variable: ADAPTIVE_START,
        default: "4",
        allowed: "1 to 65535",
        help: "adaptive: slots of each sender at first, no more than the most.",
    },
    SettingInfo {
        variable: ADAPTIVE_MAX,
        default: "0",
        allowed: "0, or 1 to 65535",
        help: "adaptive: most slots of each sender; 0: as the mailbox is divided.",
    },
    SettingInfo {
        variable: ADAPTIVE_GROWTH,
        default: "exponential",
        allowed: "linear:1 to linear:65535, exponential",
        help: "adaptive: how the slots grow with each packet that had to wait for credit.",
    },
    SettingInfo {
        variable: QUOTA_REST,
        default: "first",
        allowed: "first, round",
        help: "Slots left when the mailbox does not divide evenly: one more for each of the first senders, or for nobody.",
    },
    SettingInfo {
        variable: EAGER_BYTES,
        default: "8192",
        allowed: "0 to 1048576",
        help: "Longest message that is sent whole; the receiver fetches longer ones (unit: bytes).",
    },
    SettingInfo {
        variable: CROSS_MEMORY,
        default: "1",
        allowed: "0, 1",
        help: "Copy large messages straight between processes, where the kernel allows it.",
    },
    SettingInfo {
        variable: MAX_PEERS,
        default: "4096",
        allowed: "1 to 4096",
        help: "Most senders that an endpoint's mailbox has lanes for.",
    },
    SettingInfo {
        variable: SPIN,
        default: "0",
        allowed: "0 to 1000000",
        help: "Polls that find nothing before the core is given away; 0: chosen by cores and ranks.",
    },
    SettingInfo {
        variable: SLEEP_US,
        default: "1000",
        allowed: "0 to 100000",
        help: "Longest sleep while the program waits inside the library (unit: microseconds).",
    },
    SettingInfo {
        variable: CLOSE_MS,
        default: "10000",
        allowed: "0 to 600000",
        help: "How long closing waits for peers to take what was sent to them (unit: milliseconds).",
    },
    SettingInfo {
        variable: SHM_DIR,
        default: "/dev/shm",
        allowed: "an existing directory",
        help: "Where mailboxes live; should be in memory (tmpfs).",
    },
    SettingInfo {
        variable: STATS,
        default: "",
        allowed: "an existing directory",
        help: "Where endpoints leave their counters; `weir run` sets and reads it.",
    },
];

/// A setting that is not allowed. Its text is one line that names the variable, the value and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// None of the words or numbers it can be.
    #[error("{variable}={value}: allowed are {allowed}")]
    NotAllowed {
        /// Variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// Names a directory that is not there.
    #[error("{variable}={value}: is not an existing directory")]
    NoDirectory {
        /// Variable.
        variable: &'static str,
        /// Its value.
        value: String,
    },
    /// Fits by itself, but not with this many ranks.
    #[error("{variable}={value}: {ranks} ranks{with} need at least {least}")]
    TooFew {
        /// Variable.
        variable: &'static str,
        /// Its value.
        value: u32,
        /// Endpoints of the job.
        ranks: u32,
        /// What else counts, ` with 2 credit slots each`.
        with: String,
        /// What would do.
        least: u64,
    },
    /// Fits by itself, but is more than this many ranks can share: a sender's part has a bound of its own.
    #[error("{variable}={value}: {ranks} ranks can have at most {most}, {MAX_LANE_SLOTS} slots each")]
    TooMany {
        /// Variable.
        variable: &'static str,
        /// Its value.
        value: u32,
        /// Endpoints of the job.
        ranks: u32,
        /// What would do.
        most: u64,
    },
    /// Fits by itself, but is more than another setting allows.
    #[error("{variable}={value}: more than {other}={most}, which is the most")]
    Beyond {
        /// Variable.
        variable: &'static str,
        /// Its value.
        value: u32,
        /// What it contradicts.
        other: &'static str,
        /// What that allows.
        most: u32,
    },
    /// No setting has this name.
    #[error("{variable}: no such setting; did you mean {nearest}? Known are {}", known_variables())]
    Unknown {
        /// Variable.
        variable: String,
        /// The setting whose name is nearest.
        nearest: &'static str,
    },
}

impl SettingError {
    /// The variable that is to blame.
    pub fn variable(&self) -> &str {
        match self {
            SettingError::NotAllowed { variable, .. }
            | SettingError::NoDirectory { variable, .. }
            | SettingError::TooFew { variable, .. }
            | SettingError::Beyond { variable, .. }
            | SettingError::TooMany { variable, .. } => variable,
            SettingError::Unknown { variable, .. } => variable,
        }
    }
}

fn known_variables() -> String {
    SETTINGS.iter().map(|setting| setting.variable).collect::<Vec<_>>().join(", ")
}

/// What to do with the slots left when the quota does not divide evenly (spec, 2a).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaRest {
    /// One more slot for each of the first senders.
    First,
    /// Nobody gets them.
    Round,
}

/// How the slots of one mailbox are shared among its senders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailboxPlan {
    /// Data slots of every lane.
    pub base_slots: u32,
    /// So many lanes, the first ones, have one slot more.
    pub rest_lanes: u32,
    /// Credits of every sender at first; 0: all its data slots.
    pub start_slots: u32,
    /// Credit slots of every lane.
    pub credit_slots: u32,
}

/// All settings of an endpoint, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `FI_WEIR_FLOW` with what belongs to that scheme alone: `FI_WEIR_PIGGYBACK`, `FI_WEIR_RNR_TIMER_US`,
    /// `FI_WEIR_RNR_RETRIES`, `FI_WEIR_ECM_THRESHOLD`, `FI_WEIR_ADAPTIVE_GROWTH`.
    pub scheme: Scheme,
    /// `FI_WEIR_MAILBOX_SLOTS`: data slots of a mailbox, for all senders; 0: 256 per sender.
    pub mailbox_slots: u32,
    /// `FI_WEIR_CREDIT_SLOTS`: slots per peer for explicit credit packets.
    pub credit_slots: u32,
    /// `FI_WEIR_PREPOSTED`: data slots of a sender (hardware, static in the connection form); 0: its share.
    pub preposted_slots: u32,
    /// `FI_WEIR_ADAPTIVE_START`: data slots of a sender at first.
    pub adaptive_start_slots: u32,
    /// `FI_WEIR_ADAPTIVE_MAX`: the most that they become; 0: its share.
    pub adaptive_max_slots: u32,
    /// `FI_WEIR_QUOTA_REST` (`first`, `round`).
    pub quota_rest: QuotaRest,
    /// `FI_WEIR_EAGER_BYTES`: longest message that travels whole.
    pub eager_bytes: u32,
    /// `FI_WEIR_CROSS_MEMORY` (`0`, `1`): copy large messages straight between processes.
    pub cross_memory: bool,
    /// `FI_WEIR_MAX_PEERS`: lanes of a mailbox.
    pub max_peers: u32,
    /// `FI_WEIR_SPIN`: polls that find nothing before the core is given away; 0: by cores and ranks.
    pub spin: u32,
    /// `FI_WEIR_SLEEP_US`: longest sleep inside a libfabric read, one thread calling.
    pub sleep_us: u32,
    /// `FI_WEIR_CLOSE_MS`: how long closing waits for peers to take what was sent.
    pub close_ms: u32,
    /// `FI_WEIR_SHM_DIR`: where mailboxes live.
    pub shm_dir: PathBuf,
    /// `FI_WEIR_STATS`: directory for counters, read by `weir run`.
    pub stats_dir: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            scheme: Scheme::Static { piggyback: true },
            mailbox_slots: 0,
            credit_slots: 2,
            preposted_slots: 0,
            adaptive_start_slots: 4,
            adaptive_max_slots: 0,
            quota_rest: QuotaRest::First,
            eager_bytes: 8192,
            cross_memory: true,
            max_peers: 4096,
            spin: 0,
            sleep_us: 1000,
            close_ms: 10_000,
            shm_dir: PathBuf::from("/dev/shm"),
            stats_dir: None,
        }
    }
}

impl Settings {
    /// The settings that the environment of this process asks for.
    ///
    /// # Errors
    /// [`SettingError`]: the first setting that is not allowed, or a `FI_WEIR_*` variable that does not exist.
    pub fn from_environment() -> Result<Settings, SettingError> {
        check_names(std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()))?;
        // A value that is no UTF-8 is no allowed value either; lossy, it is refused with a readable message.
        Settings::from_lookup(|variable| {
            std::env::var_os(variable).map(|value| value.to_string_lossy().into_owned())
        })
    }

    /// The settings that `lookup` (variable to value) asks for. What is absent or empty has its default.
    /// Looks at the file system, for the directories only.
    ///
    /// # Errors
    /// [`SettingError`]: the first setting that is not allowed.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Settings, SettingError> {
        let given = |variable: &str| lookup(variable).filter(|value| !value.is_empty());
        let default = Settings::default();
        let scheme = read_scheme(&given)?;
        let preposted_slots = read_number(&given, PREPOSTED, 0..=65535)?.unwrap_or(default.preposted_slots);
        let ecm_threshold = read_number(&given, ECM_THRESHOLD, 0..=65535)?.unwrap_or(0);
        let adaptive_max_slots =
            read_number(&given, ADAPTIVE_MAX, 0..=65535)?.unwrap_or(default.adaptive_max_slots);
        let adaptive_start_slots =
            read_number(&given, ADAPTIVE_START, 1..=65535)?.unwrap_or(default.adaptive_start_slots);
        beyond((ECM_THRESHOLD, ecm_threshold), (PREPOSTED, preposted_slots))?;
        if given(ADAPTIVE_START).is_some() {
            beyond((ADAPTIVE_START, adaptive_start_slots), (ADAPTIVE_MAX, adaptive_max_slots))?;
        }
        let rest_words = [("first", QuotaRest::First), ("round", QuotaRest::Round)];
        Ok(Settings {
            scheme,
            mailbox_slots: read_number(&given, MAILBOX_SLOTS, 0..=1 << 24)?.unwrap_or(default.mailbox_slots),
            credit_slots: read_number(&given, CREDIT_SLOTS, 1..=16)?.unwrap_or(default.credit_slots),
            preposted_slots,
            adaptive_start_slots,
            adaptive_max_slots,
            quota_rest: read_word(&given, QUOTA_REST, &rest_words)?.unwrap_or(default.quota_rest),
            eager_bytes: read_number(&given, EAGER_BYTES, 0..=1 << 20)?.unwrap_or(default.eager_bytes),
            cross_memory: read_word(&given, CROSS_MEMORY, &SWITCH)?.unwrap_or(default.cross_memory),
            max_peers: read_number(&given, MAX_PEERS, 1..=4096)?.unwrap_or(default.max_peers),
            spin: read_number(&given, SPIN, 0..=1_000_000)?.unwrap_or(default.spin),
            sleep_us: read_number(&given, SLEEP_US, 0..=100_000)?.unwrap_or(default.sleep_us),
            close_ms: read_number(&given, CLOSE_MS, 0..=600_000)?.unwrap_or(default.close_ms),
            shm_dir: read_directory(&given, SHM_DIR)?.unwrap_or(default.shm_dir),
            stats_dir: read_directory(&given, STATS)?,
        })
    }

    /// How the mailbox of each endpoint of a job of `peers` endpoints is shared among them. 0: not known yet, counts as
    /// one.
    ///
    /// With credits, `data region >= credit region >= 1 slot per process`: fewer data slots than credit slots would
    /// mean that a sender can be owed more credit packets than it ever sent packets. Without, one slot each is enough.
    /// Source: spec/flow-control.md, 2a, formula 5.2.
    ///
    /// # Errors
    /// [`SettingError::TooFew`], if the mailbox is too small or has too few lanes, [`SettingError::TooMany`], if a
    /// sender's part would be larger than a lane can be.
    pub fn quota(&self, peers: u32) -> Result<MailboxPlan, SettingError> {
        let peers = peers.max(1);
        let too_few = |variable, value, with, least| {
            Err(SettingError::TooFew { variable, value, ranks: peers, with, least })
        };
        if peers > self.max_peers {
            return too_few(MAX_PEERS, self.max_peers, String::new(), u64::from(peers));
        }
        let own_slots = match self.scheme {
            Scheme::Hardware { .. } | Scheme::StaticConnection { .. } => self.preposted_slots,
            Scheme::AdaptiveBacklog { .. } => self.adaptive_max_slots,
            Scheme::Unlimited | Scheme::Static { .. } => 0,
        };
        let slots = if own_slots == 0 { DEFAULT_SLOTS_PER_SENDER } else { own_slots };
        if own_slots > 0 || self.mailbox_slots == 0 {
            return Ok(self.plan(slots, 0));
        }
        let credit_slots = self.credit_slots;
        let (least_per_sender, with) = match self.scheme {
            Scheme::Static { .. } => (credit_slots, format!(" with {credit_slots} credit slots each")),
            Scheme::Unlimited
            | Scheme::Hardware { .. }
            | Scheme::StaticConnection { .. }
            | Scheme::AdaptiveBacklog { .. } => (1, String::new()),
        };
        let least = u64::from(least_per_sender) * u64::from(peers);
        if u64::from(self.mailbox_slots) < least {
            return too_few(MAILBOX_SLOTS, self.mailbox_slots, with, least);
        }
        let most_per_sender = MAX_LANE_SLOTS - credit_slots - 1; // one more for the rest
        if self.mailbox_slots / peers > most_per_sender {
            return Err(SettingError::TooMany {
                variable: MAILBOX_SLOTS,
                value: self.mailbox_slots,
                ranks: peers,
                most: u64::from(most_per_sender) * u64::from(peers),
            });
        }
        let rest_lanes = match self.quota_rest {
            QuotaRest::First => self.mailbox_slots % peers,
            QuotaRest::Round => 0,
        };
        Ok(self.plan(self.mailbox_slots / peers, rest_lanes))
    }

    /// Lanes of `base_slots` data slots with what the scheme needs besides.
    fn plan(&self, base_slots: u32, rest_lanes: u32) -> MailboxPlan {
        let credit_slots = match self.scheme {
            Scheme::Hardware { .. } => 0,
            // As many as are ever unread, also of those who own one slot more.
            Scheme::StaticConnection { ecm_threshold } => {
                let slots = |quota_slots| static_connection::ecm_slots(quota_slots, ecm_threshold);
                slots(base_slots).max(if rest_lanes > 0 { slots(base_slots + 1) } else { 0 })
            }
            Scheme::Unlimited | Scheme::Static { .. } | Scheme::AdaptiveBacklog { .. } => self.credit_slots,
        };
        let start_slots = match self.scheme {
            Scheme::AdaptiveBacklog { .. } => self.adaptive_start_slots.min(base_slots),
            _ => 0,
        };
        MailboxPlan { base_slots, rest_lanes, start_slots, credit_slots }
    }

    /// The settings as variables and values, in the order of [`SETTINGS`]; what has no value, or none in this scheme, is
    /// left out.
    pub fn to_variables(&self) -> Vec<(&'static str, String)> {
        let switch = |on: bool| String::from(if on { "1" } else { "0" });
        let number = |threshold: Option<NonZeroU32>| threshold.map_or(0, NonZeroU32::get).to_string();
        let (flow, of_the_scheme) = match self.scheme {
            Scheme::Unlimited => ("unlimited", vec![]),
            Scheme::Hardware { rnr_timer_ns, rnr_retries } => (
                "hardware",
                vec![
                    (PREPOSTED, self.preposted_slots.to_string()),
                    (RNR_TIMER_US, (rnr_timer_ns / 1000).to_string()),
                    (RNR_RETRIES, rnr_retries.to_string()),
                ],
            ),
            Scheme::Static { piggyback } => ("static", vec![(PIGGYBACK, switch(piggyback))]),
            Scheme::StaticConnection { ecm_threshold } => (
                "static-connection",
                vec![(PREPOSTED, self.preposted_slots.to_string()), (ECM_THRESHOLD, number(ecm_threshold))],
            ),
            Scheme::AdaptiveBacklog { growth, ecm_threshold } => (
                "adaptive",
                vec![
                    (ECM_THRESHOLD, number(ecm_threshold)),
                    (ADAPTIVE_START, self.adaptive_start_slots.to_string()),
                    (ADAPTIVE_MAX, self.adaptive_max_slots.to_string()),
                    (ADAPTIVE_GROWTH, growth_word(growth)),
                ],
            ),
        };
        let rest = match self.quota_rest {
            QuotaRest::First => "first",
            QuotaRest::Round => "round",
        };
        let path = |path: &Path| path.to_string_lossy().into_owned();
        let value = |variable| match variable {
            FLOW => Some(flow.into()),
            MAILBOX_SLOTS => Some(self.mailbox_slots.to_string()),
            CREDIT_SLOTS => Some(self.credit_slots.to_string()),
            QUOTA_REST => Some(rest.into()),
            EAGER_BYTES => Some(self.eager_bytes.to_string()),
            CROSS_MEMORY => Some(switch(self.cross_memory)),
            MAX_PEERS => Some(self.max_peers.to_string()),
            SPIN => Some(self.spin.to_string()),
            SLEEP_US => Some(self.sleep_us.to_string()),
            CLOSE_MS => Some(self.close_ms.to_string()),
            SHM_DIR => Some(path(&self.shm_dir)),
            STATS => self.stats_dir.as_deref().map(path),
            _ => of_the_scheme.iter().find(|(of, _)| *of == variable).map(|(_, value)| value.clone()),
        };
        SETTINGS.iter().filter_map(|setting| Some((setting.variable, value(setting.variable)?))).collect()
    }
}

/// The scheme that is asked for. All that belongs to schemes is checked, also what this one does not use.
fn read_scheme(given: &impl Fn(&str) -> Option<String>) -> Result<Scheme, SettingError> {
    let piggyback = read_word(given, PIGGYBACK, &SWITCH)?.unwrap_or(true);
    let rnr_timer_us = read_number(given, RNR_TIMER_US, 1..=655_360)?.unwrap_or(10);
    let rnr_retries = read_number(given, RNR_RETRIES, 0..=7)?.unwrap_or(7) as u8;
    let ecm_threshold = read_number(given, ECM_THRESHOLD, 0..=65535)?.and_then(NonZeroU32::new);
    let growth = match given(ADAPTIVE_GROWTH) {
        None => Growth::Exponential,
        Some(word) => growth_of(&word).ok_or_else(|| not_allowed(ADAPTIVE_GROWTH, word))?,
    };
    let scheme = Scheme::Static { piggyback };
    let words = [
        ("unlimited", Scheme::Unlimited),
        ("hardware", Scheme::Hardware { rnr_timer_ns: u64::from(rnr_timer_us) * 1000, rnr_retries }),
        ("static", scheme),
        ("static-connection", Scheme::StaticConnection { ecm_threshold }),
        ("adaptive", Scheme::AdaptiveBacklog { growth, ecm_threshold }),
    ];
    Ok(read_word(given, FLOW, &words)?.unwrap_or(scheme))
}

fn growth_of(word: &str) -> Option<Growth> {
    if word == "exponential" {
        return Some(Growth::Exponential);
    }
    let slots = word.strip_prefix("linear:")?.parse().ok().filter(|slots| (1..=65535).contains(slots))?;
    Some(Growth::Linear { slots: NonZeroU32::new(slots)? })
}

fn growth_word(growth: Growth) -> String {
    match growth {
        Growth::Linear { slots } => format!("linear:{slots}"),
        Growth::Exponential => String::from("exponential"),
    }
}

/// Refuses `value` if it is more than `most`, unless that is 0.
fn beyond(
    (variable, value): (&'static str, u32),
    (other, most): (&'static str, u32),
) -> Result<(), SettingError> {
    if most > 0 && value > most {
        return Err(SettingError::Beyond { variable, value, other, most });
    }
    Ok(())
}

/// Refuses names that begin with `FI_WEIR_` and are no setting: a misspelled one would be ignored silently otherwise.
///
/// # Errors
/// [`SettingError::Unknown`], for the first such name in alphabetical order.
pub fn check_names(names: impl IntoIterator<Item = String>) -> Result<(), SettingError> {
    let unknown = names
        .into_iter()
        .filter(|name| name.starts_with(PREFIX))
        .filter(|name| !SETTINGS.iter().any(|setting| setting.variable == name))
        .min();
    match unknown {
        None => Ok(()),
        Some(variable) => Err(SettingError::Unknown { nearest: nearest_setting(&variable), variable }),
    }
}

/// The setting whose name has most in common with `name`; compared without the prefix, which all share. Beginnings
/// count more than ends (Jaro-Winkler), since people shorten names at the end.
fn nearest_setting(name: &str) -> &'static str {
    let tail = |name: &str| name.trim_start_matches(PREFIX).to_ascii_uppercase();
    let likeness = |known: &str| strsim::jaro_winkler(&tail(name), &tail(known));
    SETTINGS
        .iter()
        .map(|setting| setting.variable)
        .max_by(|one, other| likeness(one).total_cmp(&likeness(other)))
        .expect("SETTINGS is not empty")
}

const SWITCH: [(&str, bool); 2] = [("0", false), ("1", true)];

fn not_allowed(variable: &str, value: String) -> SettingError {
    let setting =
        SETTINGS.iter().find(|setting| setting.variable == variable).expect("variable is in SETTINGS");
    SettingError::NotAllowed { variable: setting.variable, value, allowed: setting.allowed }
}

fn read_word<T: Copy>(
    given: &impl Fn(&str) -> Option<String>,
    variable: &str,
    words: &[(&str, T)],
) -> Result<Option<T>, SettingError> {
    let Some(value) = given(variable) else { return Ok(None) };
    match words.iter().find(|(word, _)| *word == value) {
        Some(&(_, meaning)) => Ok(Some(meaning)),
        None => Err(not_allowed(variable, value)),
    }
}

fn read_number(
    given: &impl Fn(&str) -> Option<String>,
    variable: &str,
    range: RangeInclusive<u32>,
) -> Result<Option<u32>, SettingError> {
    let Some(value) = given(variable) else { return Ok(None) };
    match value.parse() {
        Ok(number) if range.contains(&number) => Ok(Some(number)),
        _ => Err(not_allowed(variable, value)),
    }
}

fn read_directory(
    given: &impl Fn(&str) -> Option<String>,
    variable: &'static str,
) -> Result<Option<PathBuf>, SettingError> {
    let Some(value) = given(variable) else { return Ok(None) };
    let path = PathBuf::from(&value);
    if path.is_dir() { Ok(Some(path)) } else { Err(SettingError::NoDirectory { variable, value }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<Settings, SettingError> {
        Settings::from_lookup(|wanted| {
            variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
        })
    }

    fn refusal(variable: &str, value: &str) -> String {
        with(&[(variable, value)]).unwrap_err().to_string()
    }

    #[test]
    fn nothing_given_means_the_documented_defaults() {
        let settings = with(&[]).unwrap();
        assert_eq!(settings, Settings::default());
        // What belongs to schemes that are not the default one has no value.
        let of_others = [
            PREPOSTED,
            RNR_TIMER_US,
            RNR_RETRIES,
            ECM_THRESHOLD,
            ADAPTIVE_START,
            ADAPTIVE_MAX,
            ADAPTIVE_GROWTH,
        ];
        let documented: Vec<_> = SETTINGS
            .iter()
            .filter(|s| !s.default.is_empty() && !of_others.contains(&s.variable))
            .map(|s| (s.variable, s.default.to_owned()))
            .collect();
        assert_eq!(settings.to_variables(), documented);
    }

    #[test]
    fn an_empty_value_means_the_default() {
        let empty: Vec<_> = SETTINGS.iter().map(|setting| (setting.variable, "")).collect();
        assert_eq!(with(&empty).unwrap(), Settings::default());
    }

    #[test]
    fn every_setting_is_read_and_written_back() {
        let here = std::env::temp_dir();
        let here = here.to_str().unwrap();
        let values = [
            (FLOW, ""),
            (PIGGYBACK, "0"),
            (MAILBOX_SLOTS, "16777216"),
            (CREDIT_SLOTS, "16"),
            (PREPOSTED, "65535"),
            (RNR_TIMER_US, "655360"),
            (RNR_RETRIES, "6"),
            (ECM_THRESHOLD, "20"),
            (ADAPTIVE_START, "2"),
            (ADAPTIVE_MAX, "300"),
            (ADAPTIVE_GROWTH, "linear:3"),
            (QUOTA_REST, "round"),
            (EAGER_BYTES, "1048576"),
            (CROSS_MEMORY, "0"),
            (MAX_PEERS, "1"),
            (SPIN, "1000000"),
            (SLEEP_US, "100000"),
            (CLOSE_MS, "600000"),
            (SHM_DIR, here),
            (STATS, here),
        ];
        assert_eq!(
            values.map(|(variable, _)| variable).as_slice(),
            SETTINGS.iter().map(|s| s.variable).collect::<Vec<_>>()
        );
        let schemes: [(&str, Scheme, &[&str]); 5] = [
            ("unlimited", Scheme::Unlimited, &[]),
            (
                "hardware",
                Scheme::Hardware { rnr_timer_ns: 655_360_000, rnr_retries: 6 },
                &[PREPOSTED, RNR_TIMER_US, RNR_RETRIES],
            ),
            ("static", Scheme::Static { piggyback: false }, &[PIGGYBACK]),
            (
                "static-connection",
                Scheme::StaticConnection { ecm_threshold: NonZeroU32::new(20) },
                &[PREPOSTED, ECM_THRESHOLD],
            ),
            (
                "adaptive",
                Scheme::AdaptiveBacklog {
                    growth: Growth::Linear { slots: NonZeroU32::new(3).unwrap() },
                    ecm_threshold: NonZeroU32::new(20),
                },
                &[ECM_THRESHOLD, ADAPTIVE_START, ADAPTIVE_MAX, ADAPTIVE_GROWTH],
            ),
        ];
        let of_schemes: Vec<_> = schemes.iter().flat_map(|(_, _, own)| *own).collect();
        for (flow, scheme, own) in schemes {
            let mut given = values;
            given[0].1 = flow;
            let settings = with(&given).unwrap();
            assert_eq!(settings.scheme, scheme);
            assert_eq!(settings.stats_dir.as_deref(), Some(Path::new(here)));
            let used = |variable: &str| own.contains(&variable) || !of_schemes.contains(&&variable);
            let written: Vec<_> = given
                .iter()
                .filter(|(variable, _)| used(variable))
                .map(|(v, w)| (*v, (*w).to_owned()))
                .collect();
            assert_eq!(settings.to_variables(), written, "{flow}");
        }
    }

    #[test]
    fn growth_is_linear_by_a_number_or_exponential() {
        for good in ["linear:1", "linear:65535", "exponential"] {
            assert_eq!(growth_of(good).map(growth_word).as_deref(), Some(good));
        }
        for bad in ["linear", "linear:", "linear:0", "linear:65536", "linear: 1", "Exponential", "2"] {
            assert_eq!(
                refusal(ADAPTIVE_GROWTH, bad),
                format!("FI_WEIR_ADAPTIVE_GROWTH={bad}: allowed are linear:1 to linear:65535, exponential")
            );
        }
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        let refused = |variables: &[(&str, &str)]| with(variables).unwrap_err().to_string();
        assert_eq!(
            refused(&[(FLOW, "static-connection"), (PREPOSTED, "8"), (ECM_THRESHOLD, "9")]),
            "FI_WEIR_ECM_THRESHOLD=9: more than FI_WEIR_PREPOSTED=8, which is the most"
        );
        assert_eq!(
            refused(&[(FLOW, "adaptive"), (ADAPTIVE_START, "9"), (ADAPTIVE_MAX, "8")]),
            "FI_WEIR_ADAPTIVE_START=9: more than FI_WEIR_ADAPTIVE_MAX=8, which is the most"
        );
        assert!(with(&[(FLOW, "adaptive"), (ADAPTIVE_MAX, "2")]).is_ok(), "the default start is less then");
    }

    #[test]
    fn each_scheme_gets_the_lanes_that_it_needs() {
        let plan = |variables: &[(&str, &str)], peers| {
            let MailboxPlan { base_slots, rest_lanes, start_slots, credit_slots } =
                with(variables).unwrap().quota(peers).unwrap();
            [base_slots, rest_lanes, start_slots, credit_slots]
        };
        assert_eq!(plan(&[(FLOW, "hardware")], 4), [256, 0, 0, 0]);
        assert_eq!(plan(&[(FLOW, "hardware"), (PREPOSTED, "1"), (MAILBOX_SLOTS, "99")], 4), [1, 0, 0, 0]);
        assert_eq!(plan(&[(FLOW, "hardware"), (MAILBOX_SLOTS, "9")], 4), [2, 1, 0, 0]);
        assert_eq!(plan(&[(FLOW, "static-connection")], 4), [256, 0, 0, 2]);
        let connection = [(FLOW, "static-connection"), (PREPOSTED, "100"), (ECM_THRESHOLD, "10")];
        assert_eq!(plan(&connection, 4), [100, 0, 0, 10]);
        assert_eq!(plan(&[(FLOW, "static-connection"), (MAILBOX_SLOTS, "4")], 4), [1, 0, 0, 1]);
        // Half of 3 is 2, half of 4 is 2: the first lane's owner needs two slots for messages of credits.
        assert_eq!(plan(&[(FLOW, "static-connection"), (MAILBOX_SLOTS, "13")], 4), [3, 1, 0, 2]);
        assert_eq!(plan(&[(FLOW, "adaptive")], 4), [256, 0, 4, 2]);
        assert_eq!(
            plan(&[(FLOW, "adaptive"), (ADAPTIVE_MAX, "64"), (ADAPTIVE_START, "1")], 4),
            [64, 0, 1, 2]
        );
        assert_eq!(plan(&[(FLOW, "adaptive"), (MAILBOX_SLOTS, "4")], 4), [1, 0, 1, 2]);
    }

    #[test]
    fn schemes() {
        assert_eq!(with(&[(FLOW, "unlimited")]).unwrap().scheme, Scheme::Unlimited);
        assert_eq!(with(&[(FLOW, "unlimited"), (PIGGYBACK, "1")]).unwrap().scheme, Scheme::Unlimited);
        assert_eq!(with(&[(FLOW, "static")]).unwrap().scheme, Scheme::Static { piggyback: true });
        assert_eq!(
            refusal(FLOW, "fast"),
            "FI_WEIR_FLOW=fast: allowed are unlimited, hardware, static, static-connection, adaptive"
        );
        assert!(refusal(FLOW, "Static").starts_with("FI_WEIR_FLOW=Static: allowed are unlimited, "));
        assert_eq!(refusal(PIGGYBACK, "on"), "FI_WEIR_PIGGYBACK=on: allowed are 0, 1");
    }

    #[test]
    fn numbers_are_inside_their_ranges() {
        let ranges: [(&str, u64, u64); 13] = [
            (MAILBOX_SLOTS, 0, 16_777_216),
            (CREDIT_SLOTS, 1, 16),
            (PREPOSTED, 0, 65535),
            (RNR_TIMER_US, 1, 655_360),
            (RNR_RETRIES, 0, 7),
            (ECM_THRESHOLD, 0, 65535),
            (ADAPTIVE_START, 1, 65535),
            (ADAPTIVE_MAX, 0, 65535),
            (EAGER_BYTES, 0, 1_048_576),
            (MAX_PEERS, 1, 4096),
            (SPIN, 0, 1_000_000),
            (SLEEP_US, 0, 100_000),
            (CLOSE_MS, 0, 600_000),
        ];
        for (variable, least, most) in ranges {
            for inside in [least, most] {
                with(&[(variable, &inside.to_string())]).unwrap_or_else(|error| panic!("{error}"));
            }
            let allowed = SETTINGS.iter().find(|s| s.variable == variable).unwrap().allowed;
            assert!(allowed.contains(&most.to_string()), "{variable}: {allowed}");
            for outside in ["-1", &(most + 1).to_string(), "4294967296", "1e3", "8k", " 1", "0x10", "NaN"] {
                assert_eq!(
                    refusal(variable, outside),
                    format!("{variable}={outside}: allowed are {allowed}")
                );
            }
            if least > 0 {
                assert!(with(&[(variable, "0")]).is_err());
            }
        }
    }

    #[test]
    fn directories_exist() {
        assert_eq!(refusal(SHM_DIR, "/no/such"), "FI_WEIR_SHM_DIR=/no/such: is not an existing directory");
        assert_eq!(
            refusal(STATS, "/proc/version"),
            "FI_WEIR_STATS=/proc/version: is not an existing directory"
        );
    }

    #[test]
    fn misspelled_names_are_refused() {
        let check =
            |name: &str| check_names([String::from("PATH"), name.to_owned()]).map_err(|e| e.to_string());
        assert_eq!(check("FI_WEIR_FLOW"), Ok(()));
        assert_eq!(check("FI_PROVIDER"), Ok(()));
        for (wrong, nearest) in [
            ("FI_WEIR_FLOWS", FLOW),
            ("FI_WEIR_MAILBOX_SLOT", MAILBOX_SLOTS),
            ("FI_WEIR_mailbox_slots", MAILBOX_SLOTS),
            ("FI_WEIR_CREDITS", CREDIT_SLOTS),
            ("FI_WEIR_EAGER", EAGER_BYTES),
        ] {
            let error = check(wrong).unwrap_err();
            assert!(
                error.starts_with(&format!(
                    "{wrong}: no such setting; did you mean {nearest}? Known are FI_WEIR_FLOW, "
                )),
                "{error}"
            );
            assert!(!error.contains('\n'));
        }
    }

    #[test]
    fn the_default_mailbox_grows_with_the_ranks() {
        let plan = MailboxPlan { base_slots: 256, rest_lanes: 0, start_slots: 0, credit_slots: 2 };
        for peers in [0, 1, 8, 4096] {
            assert_eq!(Settings::default().quota(peers), Ok(plan));
        }
    }

    #[test]
    fn a_given_mailbox_is_divided() {
        let settings = Settings { mailbox_slots: 38, ..Settings::default() };
        let plan = |base_slots, rest_lanes| {
            Ok(MailboxPlan { base_slots, rest_lanes, start_slots: 0, credit_slots: 2 })
        };
        assert_eq!(settings.quota(0), plan(38, 0));
        assert_eq!(settings.quota(8), plan(4, 6));
        assert_eq!(settings.quota(19), plan(2, 0));
        let round = Settings { quota_rest: QuotaRest::Round, ..settings };
        assert_eq!(round.quota(8), plan(4, 0));
    }

    #[test]
    fn a_mailbox_too_small_for_the_ranks_is_refused() {
        let settings = Settings { mailbox_slots: 10, ..Settings::default() };
        assert_eq!(
            settings.quota(8).unwrap_err().to_string(),
            "FI_WEIR_MAILBOX_SLOTS=10: 8 ranks with 2 credit slots each need at least 16"
        );
        assert!(settings.quota(5).is_ok());
        assert!(settings.quota(6).is_err());
        let unlimited = Settings { scheme: Scheme::Unlimited, ..settings };
        assert!(unlimited.quota(10).is_ok());
        assert_eq!(
            unlimited.quota(11).unwrap_err().to_string(),
            "FI_WEIR_MAILBOX_SLOTS=10: 11 ranks need at least 11"
        );
    }

    #[test]
    fn a_sender_gets_no_more_slots_than_a_lane_can_have() {
        let settings = Settings { mailbox_slots: 1 << 24, ..Settings::default() };
        let refused = settings.quota(2).map_err(|error| error.to_string());
        let text = "FI_WEIR_MAILBOX_SLOTS=16777216: 2 ranks can have at most 2097146, 1048576 slots each";
        assert_eq!(refused, Err(text.into()));
        assert!(settings.quota(32).is_ok());
    }

    #[test]
    fn more_ranks_than_lanes_are_refused() {
        let settings = Settings { max_peers: 4, ..Settings::default() };
        assert!(settings.quota(4).is_ok());
        assert_eq!(
            settings.quota(8).unwrap_err().to_string(),
            "FI_WEIR_MAX_PEERS=4: 8 ranks need at least 8"
        );
    }

    #[test]
    fn parameters_are_named_as_libfabric_wants_them() {
        assert_eq!(SETTINGS[2].parameter(), "mailbox_slots");
    }
}
