//! Parameters of a link over datagrams ([`DatagramOptions`]).

use crate::Quota;
use weir_proto::reliability::ReliabilityConfig;

/// Parameters of a link.
#[derive(Clone, Copy, Debug)]
pub struct DatagramOptions {
    /// What every sender gets in the mailbox.
    pub quota: Quota,
    /// Parameters of each path. The link sets the length of datagrams.
    pub reliability: ReliabilityConfig,
    /// Copies of bundles that peers have not acknowledged, for all paths together. Each path has a few more of its own.
    pub most_copies: usize,
    /// The longest time that closing waits until peers know of it.
    pub close_ns: u64,
}

impl DatagramOptions {
    /// The defaults, with `quota`.
    pub fn new(quota: Quota) -> DatagramOptions {
        DatagramOptions {
            quota,
            reliability: ReliabilityConfig::default(),
            most_copies: 8192,
            close_ns: 300_000_000,
        }
    }
}
