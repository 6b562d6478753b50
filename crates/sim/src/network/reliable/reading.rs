//! What a reliable path says at the end of a world ([`PathReading`]).

use weir_proto::reliability::{PathCounters, PathView};

/// The sending end of a path. Only ends that have sent a packet have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathReading {
    /// Sending rank.
    pub rank: u32,
    /// Receiving rank.
    pub peer: u32,
    /// Packets that the rank has sent.
    pub packets: u64,
    /// Counts.
    pub counters: PathCounters,
    /// State.
    pub view: PathView,
    /// The smallest congestion window. Unit: bytes.
    pub least_window_bytes: u64,
}

/// A measure of records: its name, and its value.
type PathMeasure = (&'static str, fn(&PathReading) -> f64);

impl PathReading {
    /// The measures of records. One value for each path.
    pub const MEASURES: [PathMeasure; 8] = [
        ("path_datagrams", |path| path.counters.datagrams as f64),
        ("path_bare_datagrams", |path| path.counters.bare as f64),
        ("path_sent_again", |path| path.counters.sent_again as f64),
        ("path_sent_needlessly", |path| path.counters.sent_needlessly as f64),
        ("path_timeouts", |path| path.counters.timeouts as f64),
        ("path_marked", |path| path.counters.marked as f64),
        ("path_window_bytes", |path| path.view.window_bytes as f64),
        ("path_least_window_bytes", |path| path.least_window_bytes as f64),
    ];
}
