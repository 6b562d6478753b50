//! Settings: one list of `FI_WEIR_*` variables, for the provider, the command and the documents.

use std::path::PathBuf;
use weir_proto::Scheme;

/// What to do with the slots left when the quota does not divide evenly (spec, 2a).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaRest {
    /// One more slot for each of the first senders.
    First,
    /// Nobody gets them.
    Round,
}

/// All settings of an endpoint, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `FI_WEIR_FLOW` (`unlimited`, `static`) and `FI_WEIR_PIGGYBACK` (`0`, `1`).
    pub scheme: Scheme,
    /// `FI_WEIR_MAILBOX_SLOTS`: data slots of a mailbox, for all senders; 0: 256 per sender.
    pub mailbox_slots: u32,
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
            scheme: Scheme::Static { piggyback: true },
            mailbox_slots: 0,
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
