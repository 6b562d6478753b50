//! Settings: one list of `FI_WEIR_*` variables, for the provider, the command and the documents.
//!
//! [`SETTINGS`] says what there is, [`Settings::from_lookup`] reads and checks it, [`Settings::quota`] checks what
//! depends on the number of peers. Nothing here knows who asks: the provider reads its process's environment,
//! `weir run` its own environment under its flags, a test a closure.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use weir_link::shm::MAX_LANE_SLOTS;
use weir_proto::{Admission, DataRegion, MAX_CREDIT_SLOTS, Scheme};

/// What all variables begin with: libfabric's prefix, and the provider's name.
pub const PREFIX: &str = "FI_WEIR_";

/// Data slots per sender when `FI_WEIR_MAILBOX_SLOTS` is 0.
pub const DEFAULT_SLOTS_PER_SENDER: u32 = 256;

/// Dynamic credits: the least data slots of a mailbox when `FI_WEIR_MAILBOX_SLOTS` is 0, so that a small job has as much as
/// it can use. 256 KiB.
pub const LEAST_REGION_SLOTS: u32 = 4096;

/// Dynamic credits: the most data slots of one sender's lane. A longer one does not make a sender faster, and a lane's memory
/// is touched all over once it has been used for long.
pub const MOST_LANE_SLOTS: u32 = 1024;

/// Dynamic credits: the most credits of a sender that was not heard of before. An eager message of the default size and
/// more, and as many as a fixed quota gives.
const MOST_START_SLOTS: u32 = DEFAULT_SLOTS_PER_SENDER;

/// Dynamic credits: so many times a sender that has just gained credits is passed over as a victim (protocol.md, gap 7).
const HOLD_POINTS: u8 = 4;

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
const SLOTS_PER_PEER: &str = "FI_WEIR_SLOTS_PER_PEER";
const ADMIT: &str = "FI_WEIR_ADMIT";
const CREDIT_SLOTS: &str = "FI_WEIR_CREDIT_SLOTS";
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
        default: "dynamic",
        allowed: "unlimited, static, dynamic",
        help: "Flow control: dynamic moves credits to the senders that use them; static gives every sender a fixed quota; unlimited lets a sender look for room.",
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
        help: "Data slots (64 bytes) of an endpoint's mailbox, for all its senders; 0: with dynamic credits FI_WEIR_SLOTS_PER_PEER for each, but not less than 4096 in all; otherwise 256 for each sender.",
    },
    SettingInfo {
        variable: SLOTS_PER_PEER,
        default: "16",
        allowed: "1 to 1024",
        help: "Dynamic credits: data slots of the mailbox for each rank of the job, shared by those who send.",
    },
    SettingInfo {
        variable: ADMIT,
        default: "contact",
        allowed: "contact, start",
        help: "Dynamic credits: a sender gets its share of the mailbox when it first sends, or all get equal ones from the start (as published).",
    },
    SettingInfo {
        variable: CREDIT_SLOTS,
        default: "2",
        allowed: "1 to 16",
        help: "Slots for explicit credit packets, for each sender; with dynamic credits also the credits guaranteed to it.",
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
    /// Credit slots of every lane.
    pub credit_slots: u32,
    /// Dynamic credits: what all lanes share, and what senders begin with. Else nothing.
    pub region: DataRegion,
}

/// All settings of an endpoint, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `FI_WEIR_FLOW` (`unlimited`, `static`, `dynamic`) and `FI_WEIR_PIGGYBACK` (`0`, `1`).
    pub scheme: Scheme,
    /// `FI_WEIR_MAILBOX_SLOTS`: data slots of a mailbox, for all senders; 0: by the number of ranks.
    pub mailbox_slots: u32,
    /// `FI_WEIR_SLOTS_PER_PEER`: dynamic credits, data slots for each rank.
    pub slots_per_peer: u32,
    /// `FI_WEIR_ADMIT` (`contact`, `start`): dynamic credits, when a sender gets its share.
    pub admission: Admission,
    /// `FI_WEIR_CREDIT_SLOTS`: slots per peer for explicit credit packets.
    pub credit_slots: u32,
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
            scheme: Scheme::Dynamic { piggyback: true },
            mailbox_slots: 0,
            slots_per_peer: 16,
            admission: Admission::FirstContact,
            credit_slots: 2,
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
        let piggyback = read_word(&given, PIGGYBACK, &SWITCH)?.unwrap_or(true);
        let schemes = [
            ("unlimited", Scheme::Unlimited),
            ("static", Scheme::Static { piggyback }),
            ("dynamic", Scheme::Dynamic { piggyback }),
        ];
        let scheme = read_word(&given, FLOW, &schemes)?.unwrap_or(Scheme::Dynamic { piggyback });
        let admissions = [("contact", Admission::FirstContact), ("start", Admission::Start)];
        let rest_words = [("first", QuotaRest::First), ("round", QuotaRest::Round)];
        Ok(Settings {
            scheme,
            mailbox_slots: read_number(&given, MAILBOX_SLOTS, 0..=1 << 24)?.unwrap_or(default.mailbox_slots),
            slots_per_peer: read_number(&given, SLOTS_PER_PEER, 1..=1024)?.unwrap_or(default.slots_per_peer),
            admission: read_word(&given, ADMIT, &admissions)?.unwrap_or(default.admission),
            credit_slots: read_number(&given, CREDIT_SLOTS, 1..=MAX_CREDIT_SLOTS)?
                .unwrap_or(default.credit_slots),
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
        let credit_slots = self.credit_slots;
        let region = DataRegion::default();
        let dynamic = matches!(self.scheme, Scheme::Dynamic { .. });
        if self.mailbox_slots == 0 && dynamic {
            let slots = self.slots_per_peer.max(credit_slots) * peers;
            return Ok(self.shared(slots.max(LEAST_REGION_SLOTS), peers));
        }
        if self.mailbox_slots == 0 {
            let base_slots = DEFAULT_SLOTS_PER_SENDER;
            return Ok(MailboxPlan { base_slots, rest_lanes: 0, credit_slots, region });
        }
        let (least_per_sender, with) = match self.scheme {
            Scheme::Static { .. } | Scheme::Dynamic { .. } => {
                (credit_slots, format!(" with {credit_slots} credit slots each"))
            }
            Scheme::Unlimited => (1, String::new()),
        };
        let least = u64::from(least_per_sender) * u64::from(peers);
        if u64::from(self.mailbox_slots) < least {
            return too_few(MAILBOX_SLOTS, self.mailbox_slots, with, least);
        }
        if dynamic {
            return Ok(self.shared(self.mailbox_slots, peers));
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
        Ok(MailboxPlan { base_slots: self.mailbox_slots / peers, rest_lanes, credit_slots, region })
    }

    /// A data region of `slots` slots that all lanes share.
    ///
    /// Senders that are admitted at first contact begin with enough for most first messages, as long as a quarter of the
    /// region is enough for all that are expected; so three quarters are there for those who send.
    fn shared(&self, slots: u32, peers: u32) -> MailboxPlan {
        let Settings { credit_slots, admission, .. } = *self;
        let base_slots = slots.min(MOST_LANE_SLOTS);
        let start_slots = match admission {
            Admission::Start => credit_slots,
            Admission::FirstContact => {
                (slots / (4 * peers)).clamp(credit_slots, MOST_START_SLOTS).min(base_slots)
            }
        };
        let region = DataRegion { slots, peers, start_slots, admission, hold_points: HOLD_POINTS };
        MailboxPlan { base_slots, rest_lanes: 0, credit_slots, region }
    }

    /// The settings as variables and values, in the order of [`SETTINGS`]; what has no value is left out.
    pub fn to_variables(&self) -> Vec<(&'static str, String)> {
        let switch = |on: bool| String::from(if on { "1" } else { "0" });
        let (flow, piggyback) = match self.scheme {
            Scheme::Unlimited => ("unlimited", None),
            Scheme::Static { piggyback } => ("static", Some(switch(piggyback))),
            Scheme::Dynamic { piggyback } => ("dynamic", Some(switch(piggyback))),
        };
        let rest = match self.quota_rest {
            QuotaRest::First => "first",
            QuotaRest::Round => "round",
        };
        let admit = match self.admission {
            Admission::FirstContact => "contact",
            Admission::Start => "start",
        };
        let path = |path: &Path| path.to_string_lossy().into_owned();
        [
            (FLOW, Some(flow.into())),
            (PIGGYBACK, piggyback),
            (MAILBOX_SLOTS, Some(self.mailbox_slots.to_string())),
            (SLOTS_PER_PEER, Some(self.slots_per_peer.to_string())),
            (ADMIT, Some(admit.into())),
            (CREDIT_SLOTS, Some(self.credit_slots.to_string())),
            (QUOTA_REST, Some(rest.into())),
            (EAGER_BYTES, Some(self.eager_bytes.to_string())),
            (CROSS_MEMORY, Some(switch(self.cross_memory))),
            (MAX_PEERS, Some(self.max_peers.to_string())),
            (SPIN, Some(self.spin.to_string())),
            (SLEEP_US, Some(self.sleep_us.to_string())),
            (CLOSE_MS, Some(self.close_ms.to_string())),
            (SHM_DIR, Some(path(&self.shm_dir))),
            (STATS, self.stats_dir.as_deref().map(path)),
        ]
        .into_iter()
        .filter_map(|(variable, value)| Some((variable, value?)))
        .collect()
    }
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
        let documented: Vec<_> = SETTINGS
            .iter()
            .filter(|s| !s.default.is_empty())
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
            (FLOW, "static"),
            (PIGGYBACK, "0"),
            (MAILBOX_SLOTS, "16777216"),
            (SLOTS_PER_PEER, "1024"),
            (ADMIT, "start"),
            (CREDIT_SLOTS, "16"),
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
        let settings = with(&values).unwrap();
        assert_eq!(settings.to_variables(), values.map(|(variable, value)| (variable, value.to_owned())));
        assert_eq!(settings.scheme, Scheme::Static { piggyback: false });
        assert_eq!(settings.stats_dir.as_deref(), Some(Path::new(here)));
    }

    #[test]
    fn schemes() {
        assert_eq!(with(&[(FLOW, "unlimited")]).unwrap().scheme, Scheme::Unlimited);
        assert_eq!(with(&[(FLOW, "unlimited"), (PIGGYBACK, "1")]).unwrap().scheme, Scheme::Unlimited);
        assert_eq!(with(&[(FLOW, "static")]).unwrap().scheme, Scheme::Static { piggyback: true });
        assert_eq!(
            with(&[(FLOW, "dynamic"), (PIGGYBACK, "0")]).unwrap().scheme,
            Scheme::Dynamic { piggyback: false }
        );
        assert_eq!(refusal(FLOW, "fast"), "FI_WEIR_FLOW=fast: allowed are unlimited, static, dynamic");
        assert_eq!(refusal(FLOW, "Static"), "FI_WEIR_FLOW=Static: allowed are unlimited, static, dynamic");
        assert_eq!(refusal(PIGGYBACK, "on"), "FI_WEIR_PIGGYBACK=on: allowed are 0, 1");
    }

    #[test]
    fn numbers_are_inside_their_ranges() {
        let ranges: [(&str, u64, u64); 8] = [
            (MAILBOX_SLOTS, 0, 16_777_216),
            (SLOTS_PER_PEER, 1, 1024),
            (CREDIT_SLOTS, 1, 16),
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

    fn fixed() -> Settings {
        Settings { scheme: Scheme::Static { piggyback: true }, ..Settings::default() }
    }

    #[test]
    fn the_default_mailbox_of_fixed_quotas_grows_with_the_ranks() {
        let region = DataRegion::default();
        let plan = MailboxPlan { base_slots: 256, rest_lanes: 0, credit_slots: 2, region };
        for peers in [0, 1, 8, 4096] {
            assert_eq!(fixed().quota(peers), Ok(plan));
        }
    }

    #[test]
    fn a_shared_region_has_16_slots_a_rank_and_at_least_256_kib() {
        let region = |peers| Settings::default().quota(peers).unwrap().region;
        let figures = |peers| (region(peers).slots, region(peers).start_slots);
        assert_eq!([0, 2, 4].map(figures), [(4096, 256); 3]);
        assert_eq!([8, 16].map(figures), [(4096, 128), (4096, 64)]);
        assert_eq!([64, 256].map(figures), [(4096, 16), (4096, 4)]);
        assert_eq!([1024, 4096].map(figures), [(16_384, 4), (65_536, 4)]);
        for peers in 1..=4096 {
            let MailboxPlan { base_slots, region, .. } = Settings::default().quota(peers).unwrap();
            assert!(region.start_slots * peers <= region.slots / 4, "{region:?}");
            assert!(region.start_slots <= base_slots && base_slots <= MOST_LANE_SLOTS, "{region:?}");
        }
    }

    #[test]
    fn as_published_senders_begin_with_their_credit_slots_and_equal_shares() {
        let settings = Settings { admission: Admission::Start, mailbox_slots: 120, ..Settings::default() };
        let plan = settings.quota(8).unwrap();
        assert_eq!((plan.base_slots, plan.region.slots, plan.region.start_slots), (120, 120, 2));
        assert_eq!(plan.region.admission, Admission::Start);
        assert!(settings.quota(61).is_err()); // two guaranteed slots each
    }

    #[test]
    fn a_given_mailbox_is_divided() {
        let settings = Settings { mailbox_slots: 38, ..fixed() };
        let region = DataRegion::default();
        let plan =
            |base_slots, rest_lanes| Ok(MailboxPlan { base_slots, rest_lanes, credit_slots: 2, region });
        assert_eq!(settings.quota(0), plan(38, 0));
        assert_eq!(settings.quota(8), plan(4, 6));
        assert_eq!(settings.quota(19), plan(2, 0));
        let round = Settings { quota_rest: QuotaRest::Round, ..settings };
        assert_eq!(round.quota(8), plan(4, 0));
    }

    #[test]
    fn a_mailbox_too_small_for_the_ranks_is_refused() {
        for scheme in [Scheme::Static { piggyback: true }, Scheme::Dynamic { piggyback: true }] {
            let settings = Settings { mailbox_slots: 10, scheme, ..Settings::default() };
            assert_eq!(
                settings.quota(8).unwrap_err().to_string(),
                "FI_WEIR_MAILBOX_SLOTS=10: 8 ranks with 2 credit slots each need at least 16"
            );
            assert!(settings.quota(5).is_ok());
            assert!(settings.quota(6).is_err());
        }
        let unlimited = Settings { mailbox_slots: 10, scheme: Scheme::Unlimited, ..Settings::default() };
        assert!(unlimited.quota(10).is_ok());
        assert_eq!(
            unlimited.quota(11).unwrap_err().to_string(),
            "FI_WEIR_MAILBOX_SLOTS=10: 11 ranks need at least 11"
        );
    }

    #[test]
    fn a_sender_gets_no_more_slots_than_a_lane_can_have() {
        let settings = Settings { mailbox_slots: 1 << 24, ..fixed() };
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
