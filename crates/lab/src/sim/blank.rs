//! Makes records of worlds that did not run, for the tests of verdicts (`reproduce/points`) and pages.

use weir_sim::plan::{Key, Record, Settings};

/// A record with these fields; all others are 0 or empty. Unit of the time: ns.
pub fn record(key: Key, settings: Settings, time_ns: f64) -> Record {
    Record {
        key,
        settings,
        trace: String::new(),
        finished_ns: time_ns,
        time_ns,
        measures: Default::default(),
        events: 0,
        packet_hops: 0,
        packets: 0,
        credit_packets: 0,
        messages: 1000,
        stalls: 0,
        stalled_ns: 0,
        rnr_naks: 0,
        drops: 0,
        marks: 0,
        peak_quota_slots: 0,
        latency_p50_ns: 0,
        latency_p99_ns: 0,
        peak_mailbox_slots: 0,
        checked: false,
        wall_s: 0.0,
    }
}
