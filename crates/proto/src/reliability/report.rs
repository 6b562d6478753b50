//! What a path says about itself, for reports and tests: its counts ([`PathCounters`]) and its state ([`PathView`]).

use super::PathFault;

/// Counts of a path, for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounters {
    /// Datagrams that have left.
    pub datagrams: u64,
    /// Those without a bundle.
    pub bare: u64,
    /// Bundles that were sent again.
    pub sent_again: u64,
    /// Those whose earlier transmission had arrived, as far as this end knows.
    pub sent_needlessly: u64,
    /// Timeouts.
    pub timeouts: u64,
    /// Datagrams that arrived with a mark at the peer.
    pub marked: u64,
    /// Datagrams that were dropped because their number or their bundle had arrived before.
    pub repeated: u64,
    /// Datagrams of other epochs that were dropped.
    pub stale: u64,
    /// Datagrams that no correct peer sends.
    pub malformed: u64,
}

impl PathCounters {
    /// The sum of both, for reports on many paths.
    pub fn plus(self, other: &PathCounters) -> PathCounters {
        PathCounters {
            datagrams: self.datagrams + other.datagrams,
            bare: self.bare + other.bare,
            sent_again: self.sent_again + other.sent_again,
            sent_needlessly: self.sent_needlessly + other.sent_needlessly,
            timeouts: self.timeouts + other.timeouts,
            marked: self.marked + other.marked,
            repeated: self.repeated + other.repeated,
            stale: self.stale + other.stale,
            malformed: self.malformed + other.malformed,
        }
    }
}

/// The state of a path, for reports and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathView {
    /// Both ends know their epochs.
    pub is_open: bool,
    /// The reason why it has ended.
    pub fault: Option<PathFault>,
    /// The first position that the peer has not acknowledged.
    pub first_unacknowledged: u64,
    /// The next position that this end delivers.
    pub next_delivery: u64,
    /// Bundles that were submitted and are not acknowledged.
    pub unacknowledged_bundles: u64,
    /// Bundles that the driver holds out of order.
    pub held_bundles: u32,
    /// The congestion window. Unit: bytes.
    pub window_bytes: u64,
    /// Unit: bytes.
    pub in_flight_bytes: u64,
    /// Bundles that the peer allows to be under way.
    pub grant_bundles: u32,
    /// The smoothed round trip; 0 before the first sample.
    pub round_trip_ns: u64,
    /// Heap memory. It does not change. Unit: bytes.
    pub memory_bytes: usize,
}
