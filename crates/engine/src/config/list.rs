//! What settings there are, as they are documented, and names that are none.

use super::SettingError;

/// What all variables begin with: libfabric's prefix, and the provider's name.
pub const PREFIX: &str = "FI_WEIR_";

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

pub(super) const FLOW: &str = "FI_WEIR_FLOW";
pub(super) const PIGGYBACK: &str = "FI_WEIR_PIGGYBACK";
pub(super) const MAILBOX_SLOTS: &str = "FI_WEIR_MAILBOX_SLOTS";
pub(super) const SLOTS_PER_PEER: &str = "FI_WEIR_SLOTS_PER_PEER";
pub(super) const ATTACH: &str = "FI_WEIR_ATTACH";
pub(super) const CREDIT_SLOTS: &str = "FI_WEIR_CREDIT_SLOTS";
pub(super) const PREPOSTED: &str = "FI_WEIR_PREPOSTED";
pub(super) const RNR_TIMER_US: &str = "FI_WEIR_RNR_TIMER_US";
pub(super) const RNR_RETRIES: &str = "FI_WEIR_RNR_RETRIES";
pub(super) const ECM_THRESHOLD: &str = "FI_WEIR_ECM_THRESHOLD";
pub(super) const ADAPTIVE_START: &str = "FI_WEIR_ADAPTIVE_START";
pub(super) const ADAPTIVE_MAX: &str = "FI_WEIR_ADAPTIVE_MAX";
pub(super) const ADAPTIVE_GROWTH: &str = "FI_WEIR_ADAPTIVE_GROWTH";
pub(super) const QUOTA_REST: &str = "FI_WEIR_QUOTA_REST";
pub(super) const EAGER_BYTES: &str = "FI_WEIR_EAGER_BYTES";
pub(super) const UNEXPECTED_BUDGET: &str = "FI_WEIR_UNEXPECTED_BUDGET";
pub(super) const RETAIN_BYTES: &str = "FI_WEIR_RETAIN_BYTES";
pub(super) const CROSS_MEMORY: &str = "FI_WEIR_CROSS_MEMORY";
pub(super) const SKIP_YIELDS: &str = "FI_WEIR_SKIP_YIELDS";
pub(super) const MAX_PEERS: &str = "FI_WEIR_MAX_PEERS";
pub(super) const IDLE_BYTES: &str = "FI_WEIR_IDLE_BYTES";
pub(super) const SPIN: &str = "FI_WEIR_SPIN";
pub(super) const SLEEP_US: &str = "FI_WEIR_SLEEP_US";
pub(super) const CLOSE_MS: &str = "FI_WEIR_CLOSE_MS";
pub(super) const SHM_DIR: &str = "FI_WEIR_SHM_DIR";
pub(super) const STATS: &str = "FI_WEIR_STATS";
pub(super) const TRACE: &str = "FI_WEIR_TRACE";
pub(super) const STALL_MS: &str = "FI_WEIR_STALL_MS";

/// All settings, in the order of the documents.
pub const SETTINGS: &[SettingInfo] = &[
    SettingInfo {
        variable: FLOW,
        default: "dynamic",
        allowed: "unlimited, hardware, static, static-connection, adaptive, dynamic",
        help: "Flow control: dynamic moves credits to the senders that use them; static gives every sender a fixed quota \
               (static-connection: in the form of connections), adaptive raises it when senders have to wait; hardware \
               tries again when there is no buffer, unlimited lets a sender look for room.",
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
        help: "Data slots (64 bytes) of an endpoint's mailbox, for all its senders; 0: with dynamic credits FI_WEIR_SLOTS_PER_PEER for each, but not less than what its lanes hold, 4096 to 65536 in all; otherwise 256 for each sender.",
    },
    SettingInfo {
        variable: SLOTS_PER_PEER,
        default: "16",
        allowed: "1 to 1024",
        help: "Dynamic credits: data slots of the mailbox for each rank of the job, shared by those who send.",
    },
    SettingInfo {
        variable: ATTACH,
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
        default: "16384",
        allowed: "0 to 1048576",
        help: "Longest message that is sent whole; the receiver fetches longer ones (unit: bytes).",
    },
    SettingInfo {
        variable: UNEXPECTED_BUDGET,
        default: "16777216",
        allowed: "65536 to 1099511627776",
        help: "Memory of a receiver for messages without a receive; beyond it their payload stays with the senders (unit: bytes).",
    },
    SettingInfo {
        variable: RETAIN_BYTES,
        default: "0",
        allowed: "0 to 1099511627776",
        help: "Memory of a sender for messages whose receivers have no room; 0: half of the node's, divided by its ranks (unit: bytes).",
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
        help: "Lanes of an endpoint's mailbox; more senders take turns.",
    },
    SettingInfo {
        variable: IDLE_BYTES,
        default: "655360",
        allowed: "0 to 4294967295",
        help: "Mailbox that idle senders may keep; above it, those idle for a second give their lanes back (unit: bytes).",
    },
    SettingInfo {
        variable: SPIN,
        default: "0",
        allowed: "0 to 1000000",
        help: "Polls that find nothing before the core is given away; 0: chosen by cores and ranks.",
    },
    SettingInfo {
        variable: SKIP_YIELDS,
        default: "1",
        allowed: "0, 1",
        help: "Leave out what an MPI library yields after a read that has found something, or where every rank has a core.",
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
        help: "How long closing waits for operations that are not complete. Messages whose sends are complete are waited for as long as their receivers live (unit: milliseconds).",
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
    SettingInfo {
        variable: TRACE,
        default: "",
        allowed: "an existing directory",
        help: "Where endpoints leave samples of credits, stalls and memory; `weir run --report` sets and reads it.",
    },
    SettingInfo {
        variable: STALL_MS,
        default: "1000",
        allowed: "0 to 3600000",
        help: "Say so when a send has waited so long for credit (unit: milliseconds); 0: never.",
    },
];

/// Former names of settings, each with its name now. The allowed values are the same.
const RENAMED: &[(&str, &str)] = &[("FI_WEIR_ADMIT", ATTACH)];

pub(super) fn known_variables() -> String {
    SETTINGS.iter().map(|setting| setting.variable).collect::<Vec<_>>().join(", ")
}

/// Refuses names that begin with `FI_WEIR_` and are no setting: a misspelled one would be ignored silently otherwise.
///
/// # Errors
/// For the first such name in alphabetical order: [`SettingError::Renamed`] if it is the former name of a setting,
/// [`SettingError::Unknown`] otherwise.
pub fn check_names(names: impl IntoIterator<Item = String>) -> Result<(), SettingError> {
    let unknown = names
        .into_iter()
        .filter(|name| name.starts_with(PREFIX))
        .filter(|name| !SETTINGS.iter().any(|setting| setting.variable == name))
        .min();
    let Some(name) = unknown else { return Ok(()) };
    Err(match RENAMED.iter().find(|(former, _)| *former == name) {
        Some(&(variable, renamed_to)) => SettingError::Renamed { variable, renamed_to },
        None => SettingError::Unknown { nearest: nearest_setting(&name), variable: name },
    })
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
