//! The list of all settings with their documentation, and the check of variable names.

use super::SettingError;

/// The prefix of all variables: libfabric's prefix, and the provider's name.
pub const PREFIX: &str = "FI_WEIR_";

/// One variable and its documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingInfo {
    /// Full name, `FI_WEIR_FLOW`.
    pub variable: &'static str,
    /// The value if the variable is not set or empty. Empty: none.
    pub default: &'static str,
    /// The allowed values, in words.
    pub allowed: &'static str,
    /// The effect of the setting, in a sentence or two.
    pub help: &'static str,
}

impl SettingInfo {
    /// The name for libfabric's `fi_param_define`: `flow` for `FI_WEIR_FLOW`.
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
pub(super) const FAR_EAGER_BYTES: &str = "FI_WEIR_FAR_EAGER_BYTES";
pub(super) const UNEXPECTED_BUDGET: &str = "FI_WEIR_UNEXPECTED_BUDGET";
pub(super) const ENVELOPE_BUDGET: &str = "FI_WEIR_ENVELOPE_BUDGET";
pub(super) const BOUNCE_BYTES: &str = "FI_WEIR_BOUNCE_BYTES";
pub(super) const CROSS_MEMORY: &str = "FI_WEIR_CROSS_MEMORY";
pub(super) const SKIP_YIELDS: &str = "FI_WEIR_SKIP_YIELDS";
pub(super) const SHORT_SLICE: &str = "FI_WEIR_SHORT_SLICE";
pub(super) const COLLECTIVES: &str = "FI_WEIR_COLLECTIVES";
pub(super) const COLLECTIVES_ACROSS: &str = "FI_WEIR_COLLECTIVES_ACROSS";
pub(super) const MAX_PEERS: &str = "FI_WEIR_MAX_PEERS";
pub(super) const IDLE_BYTES: &str = "FI_WEIR_IDLE_BYTES";
pub(super) const SPIN: &str = "FI_WEIR_SPIN";
pub(super) const SLEEP_US: &str = "FI_WEIR_SLEEP_US";
pub(super) const CLOSE_MS: &str = "FI_WEIR_CLOSE_MS";
pub(super) const LINGER_S: &str = "FI_WEIR_LINGER_S";
pub(super) const LINK: &str = "FI_WEIR_LINK";
pub(super) const NET: &str = weir_link::udp::NET_SETTING;
pub(super) const PORTS: &str = weir_link::udp::PORTS_SETTING;
pub(super) const SOCKET_BUFFER: &str = weir_link::udp::BUFFER_SETTING;
pub(super) const PROTECTION: &str = "FI_WEIR_PROTECTION";
pub(super) const CONNECTED_SOCKET: &str = weir_link::udp::CONNECT_SETTING;
pub(super) const PEER_TIMEOUT_S: &str = "FI_WEIR_PEER_TIMEOUT_S";
pub(super) const ADMIT: &str = "FI_WEIR_ADMIT";
pub(super) const ADMIT_TOKENS: &str = "FI_WEIR_ADMIT_TOKENS";
pub(super) const ADMIT_DELAY_NS: &str = "FI_WEIR_ADMIT_DELAY_NS";
pub(super) const ADMIT_THRESHOLDS: &str = "FI_WEIR_ADMIT_THRESHOLDS";
pub(super) const ADMIT_SERVERS: &str = "FI_WEIR_ADMIT_SERVERS";
pub(super) const ADMIT_DRAIN: &str = "FI_WEIR_ADMIT_DRAIN";
pub(super) const SHM_DIR: &str = "FI_WEIR_SHM_DIR";
pub(super) const STATS: &str = "FI_WEIR_STATS";
pub(super) const TRACE: &str = "FI_WEIR_TRACE";
pub(super) const STALL_MS: &str = "FI_WEIR_STALL_MS";

/// All settings, in the order of the documentation.
pub const SETTINGS: &[SettingInfo] = &[
    SettingInfo {
        variable: FLOW,
        default: "demand",
        allowed: "unlimited, hardware, static, static-connection, adaptive, dynamic, demand",
        help: "Flow-control scheme. demand: credits are lent when a sender says how many it needs. dynamic: \
               credits move to the senders that use them. static: every \
               sender has a fixed quota (static-connection: in the form of connections). adaptive: the \
               quota grows when a sender has to wait. hardware: a refused sender tries again. unlimited: a \
               sender checks for room.",
    },
    SettingInfo {
        variable: PIGGYBACK,
        default: "1",
        allowed: "0, 1",
        help: "Return credits with messages in the other direction, not only in credit packets.",
    },
    SettingInfo {
        variable: MAILBOX_SLOTS,
        default: "0",
        allowed: "0, or 1 to 16777216",
        help: "Data slots (64 bytes) of an endpoint's mailbox, for all its senders. 0 with demand and dynamic: \
               FI_WEIR_SLOTS_PER_PEER for each rank, but at least what the lanes hold (4096 to 65536). 0 \
               with other schemes: 256 for each sender.",
    },
    SettingInfo {
        variable: SLOTS_PER_PEER,
        default: "16",
        allowed: "1 to 1024",
        help: "demand, dynamic: data slots of the mailbox for each rank of this node; all senders share them.",
    },
    SettingInfo {
        variable: ATTACH,
        default: "contact",
        allowed: "contact, start",
        help: "dynamic: when a sender gets its share of the mailbox. contact: when it first sends. \
               start: all senders get equal shares from the start (as published).",
    },
    SettingInfo {
        variable: CREDIT_SLOTS,
        default: "2",
        allowed: "1 to 16",
        help: "Slots for credit packets, for each sender; with demand and dynamic also its guaranteed credits.",
    },
    SettingInfo {
        variable: PREPOSTED,
        default: "0",
        allowed: "0, or 1 to 65535",
        help: "hardware, static-connection: pre-posted slots of each sender; 0: its share of the mailbox.",
    },
    SettingInfo {
        variable: RNR_TIMER_US,
        default: "10",
        allowed: "1 to 655360 microseconds",
        help: "hardware: how long a refused sender waits before it tries again.",
    },
    SettingInfo {
        variable: RNR_RETRIES,
        default: "7",
        allowed: "0 to 7",
        help: "hardware: how often a refused sender tries again before the connection fails; 7: without \
               limit.",
    },
    SettingInfo {
        variable: ECM_THRESHOLD,
        default: "0",
        allowed: "0, or 1 to 65535",
        help: "static-connection, adaptive: credits that a receiver gathers before it sends an explicit \
               credit message; 0: half of the sender's slots.",
    },
    SettingInfo {
        variable: ADAPTIVE_START,
        default: "4",
        allowed: "1 to 65535",
        help: "adaptive: slots of each sender at first, at most FI_WEIR_ADAPTIVE_MAX.",
    },
    SettingInfo {
        variable: ADAPTIVE_MAX,
        default: "0",
        allowed: "0, or 1 to 65535",
        help: "adaptive: most slots of each sender; 0: its share of the mailbox.",
    },
    SettingInfo {
        variable: ADAPTIVE_GROWTH,
        default: "exponential",
        allowed: "linear:1 to linear:65535, exponential",
        help: "adaptive: how a sender's slots grow when a packet had to wait for credit.",
    },
    SettingInfo {
        variable: QUOTA_REST,
        default: "first",
        allowed: "first, round",
        help: "Slots that remain when the mailbox does not divide evenly. first: one more for each of the \
               first senders. round: they stay unused.",
    },
    SettingInfo {
        variable: EAGER_BYTES,
        default: "16384",
        allowed: "0 to 1048576 bytes",
        help: "Longest eager message; the receiver fetches longer ones by rendezvous.",
    },
    SettingInfo {
        variable: FAR_EAGER_BYTES,
        default: "65536",
        allowed: "0 to 1048576 bytes",
        help: "The same for ranks that cannot read the memory of this one, such as those of other hosts over UDP. \
               It counts if it is longer, and if a message of each rank of the job takes at most a quarter of \
               FI_WEIR_UNEXPECTED_BUDGET.",
    },
    SettingInfo {
        variable: UNEXPECTED_BUDGET,
        default: "16777216",
        allowed: "65536 to 1099511627776 bytes",
        help: "Unexpected-message budget: memory of a receiver for messages without a posted receive. \
               Beyond it the payload stays with the senders.",
    },
    SettingInfo {
        variable: ENVELOPE_BUDGET,
        default: "67108864",
        allowed: "0 to 1099511627776 bytes",
        help: "Memory of a receiver for the envelopes of unexpected messages, 64 bytes each, of all senders. \
               Beyond it the envelopes stay with the senders too, and the receiver asks for them. 0: no limit.",
    },
    SettingInfo {
        variable: BOUNCE_BYTES,
        default: "0",
        allowed: "0 to 1099511627776 bytes",
        help: "Memory of a sender for bounce buffers, which hold messages whose receivers have no room; 0: \
               half of the node's memory divided by its ranks.",
    },
    SettingInfo {
        variable: CROSS_MEMORY,
        default: "1",
        allowed: "0, 1",
        help: "Copy large messages directly between processes, if the kernel allows it. Between hosts, UDP \
               carries them without packets and without a copy at the sender; tagged messages of a core provider \
               (FI_WEIR_LINK=ofi:NAME) do so, or without protection (FI_WEIR_PROTECTION=off) its own reads and writes. 0: the packets of \
               weir carry them.",
    },
    SettingInfo {
        variable: COLLECTIVES,
        default: "1",
        allowed: "0, 1",
        help: "Collective operations of ranks of one node go through shared memory instead of \
               messages: in MPI programs that load libweir-mpi.so, as those of `weir run` do, and in programs of the \
               native interface.",
    },
    SettingInfo {
        variable: COLLECTIVES_ACROSS,
        default: "auto",
        allowed: "0, auto, 1",
        help: "With FI_WEIR_COLLECTIVES=1: communicators across hosts too. Ranks of a host meet in shared \
               memory, and one rank of each host meets the others. auto: those with several ranks on one of the hosts; \
               others use messages, which cost them no more. 1: all. Native groups: auto and 1 are the same.",
    },
    SettingInfo {
        variable: MAX_PEERS,
        default: "4096",
        allowed: "1 to 4096",
        help: "Lanes of an endpoint's mailbox. With more senders, idle ones return their lanes on request.",
    },
    SettingInfo {
        variable: IDLE_BYTES,
        default: "655360",
        allowed: "0 to 4294967295 bytes",
        help: "Mailbox bytes that idle senders may retain; above it, senders that are idle for a second \
               return their lanes.",
    },
    SettingInfo {
        variable: SPIN,
        default: "0",
        allowed: "0 to 1000000",
        help: "Empty polls before the core is yielded; 0: chosen by cores and ranks.",
    },
    SettingInfo {
        variable: SKIP_YIELDS,
        default: "1",
        allowed: "0, 1",
        help: "Skip redundant sched_yield calls of the MPI library: after a read that found something, where every rank has a \
               core, and while nothing is outstanding.",
    },
    SettingInfo {
        variable: SHORT_SLICE,
        default: "1",
        allowed: "0, 1",
        help: "Ask the scheduler for a short time slice (Linux 6.12 and later), so that a rank whose message has come need \
               not wait for the slices of processes that compute on its core. Its share of the core stays the same.",
    },
    SettingInfo {
        variable: SLEEP_US,
        default: "1000",
        allowed: "0 to 100000 microseconds",
        help: "Longest sleep while the program waits inside the library.",
    },
    SettingInfo {
        variable: CLOSE_MS,
        default: "10000",
        allowed: "0 to 600000 milliseconds",
        help: "Close timeout for operations that are not complete. For messages of \
               completed sends see FI_WEIR_LINGER_S.",
    },
    SettingInfo {
        variable: LINGER_S,
        default: "300",
        allowed: "0 to 86400 seconds",
        help: "Longest time that closing waits while live receivers take none of the messages of completed \
               sends; then these messages are given up, and closing reports it; 0: do not wait.",
    },
    SettingInfo {
        variable: LINK,
        default: "auto",
        allowed: "auto, shm, udp, shm,udp, ofi:NAME, shm,ofi:NAME, where NAME is a core provider of libfabric other than weir",
        help: "Links of an endpoint. shm,udp: shared memory to ranks of this node, UDP to others. udp: UDP to all other \
               ranks. ofi:NAME instead of udp: the core provider NAME of libfabric, such as tcp or verbs;ofi_rxm. shm: no \
               network. auto: shm,udp if the launcher says that the job has more ranks than this node, \
               otherwise shm.",
    },
    SettingInfo {
        variable: NET,
        default: "",
        allowed: "the name of an interface, an address, or a subnet such as 10.0.0.0/8 or fd00::/8",
        help: "UDP: the network between the hosts. Not set: the first interface that is up, not loopback and not of a \
               container.",
    },
    SettingInfo {
        variable: PORTS,
        default: "",
        allowed: "two numbers from 1 to 65535, such as 20100-21100",
        help: "UDP: the ports that endpoints use, one each, for UDP and TCP. Not set: the kernel chooses.",
    },
    SettingInfo {
        variable: SOCKET_BUFFER,
        default: "4194304",
        allowed: "65536 to 1073741824 bytes",
        help: "UDP: memory of the kernel for datagrams that arrive. The kernel gives at most net.core.rmem_max.",
    },
    SettingInfo {
        variable: CONNECTED_SOCKET,
        default: "1",
        allowed: "0, 1",
        help: "UDP: 1: a second socket, which is connected to the peer to which nearly all datagrams go, if there is one. \
               It has the same port.",
    },
    SettingInfo {
        variable: PROTECTION,
        default: "encrypt",
        allowed: "encrypt, authenticate, off",
        help: "Networks: what protects datagrams against everyone who has no address of the job. encrypt: nobody else reads, \
               changes or forges them. authenticate: nobody else changes or forges them. off: whoever can read them can \
               forge them, and only the checksum of the network finds bytes that changed by accident. A core provider then \
               reads and writes large messages by itself. Of two endpoints with different values, the stronger one holds.",
    },
    SettingInfo {
        variable: PEER_TIMEOUT_S,
        default: "10",
        allowed: "1 to 3600 seconds",
        help: "Networks: a peer that does not answer for so long is lost. The error comes at most half a second later, over \
               a core provider a tenth of this time. The kernel of a peer that computes or is stopped says that its \
               process lives, so it is not lost. Time in which the waiting process does not run counts only after \
               it has reached this time too. A core provider whose addresses are not those of sockets reports lost peers \
               itself.",
    },
    SettingInfo {
        variable: ADMIT,
        default: "auto",
        allowed: "off, rate, token, auto, proxy, proxy,token",
        help: "Holds packets back before a network, so that fewer of them are under way at once. token: the ranks of a \
               job on one node share a number of tokens, one for each datagram that no peer has acknowledged. rate: \
               a rank waits between packets. auto: as token, with the numbers of FI_WEIR_ADMIT_THRESHOLDS, and without \
               these as off. proxy: one rank of a job on the node at a time sends the datagrams of all; over ofi, only \
               with addresses of sockets, as tcp has them. proxy,token: proxy and token. Shared memory is not affected. \
               An earlier setting of this name, with contact and start, is FI_WEIR_ATTACH now.",
    },
    SettingInfo {
        variable: ADMIT_TOKENS,
        default: "256",
        allowed: "1 to 65535",
        help: "FI_WEIR_ADMIT=token: datagrams that the ranks of a job on one node may have under way together. Ranks that \
               begin to send at the same moment can exceed it for 50 microseconds.",
    },
    SettingInfo {
        variable: ADMIT_DELAY_NS,
        default: "2000",
        allowed: "1 to 1000000000 ns",
        help: "FI_WEIR_ADMIT=rate: least time between two packets of a rank that begin datagrams.",
    },
    SettingInfo {
        variable: ADMIT_THRESHOLDS,
        default: "",
        allowed: "LINK:BYTES:RANKS:TOKENS, several separated by commas, with LINK udp or ofi, BYTES 0 to 4294967295, RANKS \
                  1 to 4096, TOKENS 0 to 65535",
        help: "FI_WEIR_ADMIT=auto: for messages from BYTES on, with RANKS active ranks on the node or more, these ranks share \
               TOKENS tokens over this link; 0: nothing limits them. The longest BYTES that a message reaches decides, \
               then the most RANKS. `weir tune --network` measures thresholds, and `weir run` passes those that it has saved.",
    },
    SettingInfo {
        variable: ADMIT_SERVERS,
        default: "1",
        allowed: "1 to 64",
        help: "FI_WEIR_ADMIT=proxy: so many ranks of a job may send at a time on one node. The first 64 endpoints of a node \
               have a queue; others send their datagrams themselves.",
    },
    SettingInfo {
        variable: ADMIT_DRAIN,
        default: "0",
        allowed: "0, 1",
        help: "FI_WEIR_ADMIT=proxy: 1: who sends for the others empties a queue before the next. 0: it takes up to 64 \
               datagrams of each in turn.",
    },
    SettingInfo {
        variable: SHM_DIR,
        default: "/dev/shm",
        allowed: "an existing directory",
        help: "Directory of the mailboxes; should be in memory (tmpfs).",
    },
    SettingInfo {
        variable: STATS,
        default: "",
        allowed: "an existing directory",
        help: "Directory for the counters of endpoints; `weir run` sets and reads it.",
    },
    SettingInfo {
        variable: TRACE,
        default: "",
        allowed: "an existing directory",
        help: "Directory for samples of credits, stalls and memory; `weir run --report` sets and reads it.",
    },
    SettingInfo {
        variable: STALL_MS,
        default: "1000",
        allowed: "0 to 3600000 milliseconds",
        help: "Log a send that waits this long for credit; 0: never.",
    },
];

/// Former names of settings and their present names. The allowed values are the same.
const RENAMED: &[(&str, &str)] = &[("FI_WEIR_RETAIN_BYTES", BOUNCE_BYTES)];

pub(super) fn known_variables() -> String {
    SETTINGS.iter().map(|setting| setting.variable).collect::<Vec<_>>().join(", ")
}

/// Rejects names that begin with `FI_WEIR_` and are no setting. Otherwise a misspelled name would have no effect.
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

/// The setting whose name is most similar to `name`, compared without the common prefix. Beginnings count more than
/// ends (Jaro-Winkler), since people shorten names at the end.
fn nearest_setting(name: &str) -> &'static str {
    let tail = |name: &str| name.trim_start_matches(PREFIX).to_ascii_uppercase();
    let likeness = |known: &str| strsim::jaro_winkler(&tail(name), &tail(known));
    SETTINGS
        .iter()
        .map(|setting| setting.variable)
        .max_by(|one, other| likeness(one).total_cmp(&likeness(other)))
        .expect("SETTINGS is not empty")
}
