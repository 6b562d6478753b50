//! What the links of an endpoint over networks have done, and what they have dropped ([`NetworkReport`]), for reports.
//! And what is known of one path ([`PathReport`]), for traces.
//!
//! ```text
//! a link's report    [`NetworkReport::values`]    a counter page    [`NetworkReport::from_values`]    `weir run`
//! ```

/// What is known of the path to one peer over a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathReport {
    /// The smoothed round trip; 0: none was measured. Unit: ns.
    pub round_trip_ns: u64,
    /// Bundles of packets that were sent again.
    pub sent_again: u64,
}

/// Counts of the links of an endpoint over networks: the sum of all paths, those of lost peers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkReport {
    /// Paths that have opened and not ended.
    pub open_paths: u64,
    /// Those on which only small datagrams pass.
    pub narrow_paths: u64,
    /// The least smoothed round trip of open paths; 0: none was measured. Unit: ns.
    pub least_round_trip_ns: u64,
    /// The greatest. Unit: ns.
    pub greatest_round_trip_ns: u64,
    /// Datagrams that have left.
    pub datagrams_sent: u64,
    /// Those without packets: questions and acknowledgements.
    pub bare_datagrams_sent: u64,
    /// Those that left through a socket that is connected to their receiver.
    pub connected_datagrams_sent: u64,
    /// Bytes that have left.
    pub bytes_sent: u64,
    /// Datagrams that have arrived, those that were dropped included.
    pub datagrams_received: u64,
    /// Their bytes.
    pub bytes_received: u64,
    /// Bundles of packets that were sent again.
    pub sent_again: u64,
    /// Those whose earlier transmission had arrived, as far as is known.
    pub sent_needlessly: u64,
    /// Timeouts.
    pub timeouts: u64,
    /// Datagrams that arrived at a peer with a mark of a long queue.
    pub marked: u64,
    /// Calls in which the network was busy.
    pub busy_calls: u64,
    /// Datagrams that the network has refused for good, such as those without a route.
    pub refused_datagrams: u64,
    /// Looks at the network that cost a system call.
    pub looks: u64,
    /// Dropped: the datagram or its packets had arrived before.
    pub dropped_repeated: u64,
    /// Dropped: of an earlier life of an endpoint.
    pub dropped_stale: u64,
    /// Dropped: too short, of another version, or nothing that a correct peer sends.
    pub dropped_malformed: u64,
    /// Dropped: from places where no peer is.
    pub dropped_foreign: u64,
    /// Dropped: the tag was wrong. It was changed on the way, or does not come from a member of the job.
    pub dropped_forged: u64,
    /// Packets that have waited at the gate of admission.
    pub gate_waits: u64,
    /// Their time there. Unit: ns.
    pub gate_waited_ns: u64,
    /// The most datagrams of an endpoint that held tokens. Of several endpoints: the sum.
    pub gate_most_held: u64,
    /// Tokens of the node for the last packet that held some; 0: none did. Of several endpoints: those of one that has
    /// waited most.
    pub gate_tokens: u64,
    /// The step of the thresholds that gave them (`auto`): the length of messages from which it holds. Unit: bytes.
    pub gate_step_bytes: u64,
    /// And the active ranks. 0: the tokens do not depend on them.
    pub gate_step_ranks: u64,
    /// Datagrams that went to the queue of a proxy.
    pub proxy_queued: u64,
    /// Datagrams of other endpoints of the node that were sent.
    pub proxy_sent_for_others: u64,
    /// Times that the queue had no room.
    pub proxy_without_room: u64,
    /// Copies from and to memory of peers without packets: by reads and writes of a core provider, or in its large messages.
    pub copies: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// Paths that an introduction has opened here and its sender never did, and that were removed.
    pub unopened_paths: u64,
    /// Dropped by the kernel at a socket: without the verification tag of this endpoint, or without room.
    pub dropped_in_kernel: u64,
}

impl NetworkReport {
    /// Number of values.
    pub const COUNT: usize = 35;

    /// Names of the values, in the order of [`NetworkReport::values`].
    pub const NAMES: [&str; NetworkReport::COUNT] = [
        "open_paths",
        "narrow_paths",
        "least_round_trip_ns",
        "greatest_round_trip_ns",
        "datagrams_sent",
        "bare_datagrams_sent",
        "connected_datagrams_sent",
        "bytes_sent",
        "datagrams_received",
        "bytes_received",
        "sent_again",
        "sent_needlessly",
        "timeouts",
        "marked",
        "busy_calls",
        "refused_datagrams",
        "looks",
        "dropped_repeated",
        "dropped_stale",
        "dropped_malformed",
        "dropped_foreign",
        "dropped_forged",
        "gate_waits",
        "gate_waited_ns",
        "gate_most_held",
        "gate_tokens",
        "gate_step_bytes",
        "gate_step_ranks",
        "proxy_queued",
        "proxy_sent_for_others",
        "proxy_without_room",
        "copies",
        "copied_bytes",
        "unopened_paths",
        "dropped_in_kernel",
    ];

    /// The values, in the order of [`NetworkReport::NAMES`].
    pub fn values(&self) -> [u64; NetworkReport::COUNT] {
        let mut copy = *self;
        copy.fields().map(|field| *field)
    }

    /// A report of these values.
    pub fn from_values(values: [u64; NetworkReport::COUNT]) -> NetworkReport {
        let mut report = NetworkReport::default();
        for (field, value) in report.fields().into_iter().zip(values) {
            *field = value;
        }
        report
    }

    fn fields(&mut self) -> [&mut u64; NetworkReport::COUNT] {
        [
            &mut self.open_paths,
            &mut self.narrow_paths,
            &mut self.least_round_trip_ns,
            &mut self.greatest_round_trip_ns,
            &mut self.datagrams_sent,
            &mut self.bare_datagrams_sent,
            &mut self.connected_datagrams_sent,
            &mut self.bytes_sent,
            &mut self.datagrams_received,
            &mut self.bytes_received,
            &mut self.sent_again,
            &mut self.sent_needlessly,
            &mut self.timeouts,
            &mut self.marked,
            &mut self.busy_calls,
            &mut self.refused_datagrams,
            &mut self.looks,
            &mut self.dropped_repeated,
            &mut self.dropped_stale,
            &mut self.dropped_malformed,
            &mut self.dropped_foreign,
            &mut self.dropped_forged,
            &mut self.gate_waits,
            &mut self.gate_waited_ns,
            &mut self.gate_most_held,
            &mut self.gate_tokens,
            &mut self.gate_step_bytes,
            &mut self.gate_step_ranks,
            &mut self.proxy_queued,
            &mut self.proxy_sent_for_others,
            &mut self.proxy_without_room,
            &mut self.copies,
            &mut self.copied_bytes,
            &mut self.unopened_paths,
            &mut self.dropped_in_kernel,
        ]
    }

    /// Adds a round trip of an open path.
    pub(crate) fn add_round_trip(&mut self, least_ns: u64, greatest_ns: u64) {
        if least_ns > 0 {
            let least = self.least_round_trip_ns;
            self.least_round_trip_ns = if least == 0 { least_ns } else { least.min(least_ns) };
        }
        self.greatest_round_trip_ns = self.greatest_round_trip_ns.max(greatest_ns);
    }

    /// The report of both: sums, and the least and the greatest round trip.
    #[must_use]
    pub fn plus(&self, other: &NetworkReport) -> NetworkReport {
        let mut sum = *self;
        for (field, more) in sum.fields().into_iter().zip(other.values()) {
            *field = field.saturating_add(more); // numbers come from files too
        }
        sum.least_round_trip_ns = self.least_round_trip_ns;
        sum.greatest_round_trip_ns = self.greatest_round_trip_ns;
        sum.add_round_trip(other.least_round_trip_ns, other.greatest_round_trip_ns);
        let weight = |report: &NetworkReport| (report.gate_waits, report.gate_tokens > 0);
        let last = if weight(other) > weight(self) { other } else { self };
        (sum.gate_tokens, sum.gate_step_bytes) = (last.gate_tokens, last.gate_step_bytes);
        sum.gate_step_ranks = last.gate_step_ranks;
        sum
    }

    /// Datagrams that were dropped.
    pub fn dropped(&self) -> u64 {
        let NetworkReport { dropped_repeated, dropped_stale, dropped_malformed, dropped_foreign, .. } = *self;
        let of_strangers = [dropped_foreign, self.dropped_forged, self.dropped_in_kernel];
        [dropped_repeated, dropped_stale, dropped_malformed]
            .into_iter()
            .chain(of_strangers)
            .fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_order_and_sums_keep_the_range_of_round_trips() {
        let values = std::array::from_fn(|index| index as u64 + 1);
        let report = NetworkReport::from_values(values);
        assert_eq!((report.open_paths, report.least_round_trip_ns, report.dropped_forged), (1, 3, 22));
        assert_eq!(report.values(), values);
        assert_eq!((report.copies, report.copied_bytes, report.unopened_paths), (32, 33, 34));
        assert_eq!((report.dropped_in_kernel, report.dropped()), (35, 18 + 19 + 20 + 21 + 22 + 35));
        let other = NetworkReport { least_round_trip_ns: 2, greatest_round_trip_ns: 9, ..report };
        let sum = report.plus(&other).plus(&NetworkReport::default());
        assert_eq!((sum.least_round_trip_ns, sum.greatest_round_trip_ns, sum.looks), (2, 9, 34));
        let least = NetworkReport::default().plus(&report).least_round_trip_ns;
        assert_eq!(least, 3, "0 is no round trip");
        let step =
            |report: &NetworkReport| [report.gate_tokens, report.gate_step_bytes, report.gate_step_ranks];
        let waited = NetworkReport { gate_waits: 1000, gate_tokens: 7, ..report };
        assert_eq!([step(&report.plus(&waited)), step(&waited.plus(&report))], [[7, 27, 28]; 2], "no sum");
        assert_eq!(
            step(&NetworkReport::default().plus(&NetworkReport { gate_waits: 0, ..report })),
            [26, 27, 28]
        );
    }
}
