//! What a link over datagrams has done, and what it has dropped ([`DatagramReport`]).

use weir_proto::reliability::{PathCounters, PathView};

/// Counts of a link, for reports. All are of datagrams that were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramCounters {
    /// From places where no peer is.
    pub foreign: u64,
    /// Their tag was wrong: changed on the way, or not from a member of the job.
    pub forged: u64,
    /// Too short, of another version, or with wrong flags.
    pub malformed: u64,
}

/// What a link has done, for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramReport {
    /// The sum of all paths, those of lost peers included.
    pub paths: PathCounters,
    /// Datagrams that were dropped.
    pub drops: DatagramCounters,
    /// Paths that have opened and not ended.
    pub open_paths: u32,
    /// The least and the greatest smoothed round trip of them; 0 if none was measured.
    pub round_trip_ns: (u64, u64),
    /// Paths on which only small datagrams pass.
    pub narrow_paths: u32,
}

impl DatagramReport {
    /// Adds a path that has not ended.
    pub(super) fn add(&mut self, view: &PathView, is_narrow: bool) {
        if !view.is_open {
            return;
        }
        self.open_paths += 1;
        self.narrow_paths += u32::from(is_narrow);
        if view.round_trip_ns > 0 {
            let (least, greatest) = &mut self.round_trip_ns;
            *least = if *least == 0 { view.round_trip_ns } else { view.round_trip_ns.min(*least) };
            *greatest = view.round_trip_ns.max(*greatest);
        }
    }
}
