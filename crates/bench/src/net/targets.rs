//! The performance targets of weir between hosts, and the verdict of a run on each.
//!
//! ```text
//! over UDP     weir over bare UDP, over the best of all others, over a fixed value
//!              incast over one to one; with 1 % lost over the same run without losses
//!              memory of a flooded receiver over its bound inside a host
//! over ofi:tcp weir over libfabric's tcp provider
//! protection   weir with and without encryption over weir without protection
//! crowded      collective operations of more ranks than cores over the best of all others
//! ```

use super::flood::FloodBound;
use super::limits::Bare;
use crate::compare::measure::{EXCHANGE_BYTES, LARGE_BYTES, Measure, Quantity, SMALL_BYTES};
use crate::compare::results::{Results, WEIR};
use crate::compare::targets::{best, samples, title};
use crate::compare::verdict::{Baseline, JudgedTarget, Limit, Samples, judge};
use crate::contender::{Contender, HostTransport, OtherMpi, WeirVariant};
use crate::transport::Transport;
use std::collections::BTreeMap;

/// The loss of the targets. Unit: frames of a thousand.
pub const LOSS_PER_MILLE: u32 = 10;
const TCP: Contender = Contender::Mpich(Transport::OfiTcp);
/// weir whose limit is plain TCP.
pub const OVER_TCP: Contender = Contender::Weir(WeirVariant::OfiTcp);
const AUTHENTICATED: Contender = Contender::Weir(WeirVariant::Authenticate);
const UNPROTECTED: Contender = Contender::Weir(WeirVariant::Unprotected);
/// The transports beside which weir is first.
const PEERS: [Contender; 5] = [
    TCP,
    Contender::MpichBetweenHosts(HostTransport::OfiRxd),
    Contender::Mpich(Transport::Ucx),
    Contender::OtherMpi(OtherMpi::IntelMpi),
    Contender::OtherMpi(OtherMpi::OpenMpi),
];
/// Senders of the targets for incast.
pub const SENDERS: [u64; 2] = [7, 15];
/// Collective operations of the targets for more ranks than cores.
const COLLECTIVES: [Quantity; 3] = [Quantity::BarrierUs, Quantity::AllreduceUs, Quantity::AlltoallUs];
/// Hosts of these targets, with one rank each.
const CROWDED_HOSTS: u64 = 8;
/// Senders of the flood.
const FLOOD_SENDERS: u64 = 3;

/// What a run has measured.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// By loss.
    pub results: &'a BTreeMap<u32, Results>,
    /// Limits.
    pub bare: &'a BTreeMap<Bare, Vec<f64>>,
    /// The bound of the flood, if there is one.
    pub flood: Option<&'a FloodBound>,
}

/// Half a round trip of messages of `bytes` bytes.
pub const fn half_round_trip(bytes: u64) -> Measure {
    Measure { what: Quantity::HalfRoundTripUs, at: bytes }
}

const RATE: Measure = Measure { what: Quantity::MessagesPerS, at: SMALL_BYTES };
const BANDWIDTH: Measure = Measure { what: Quantity::BytesPerS, at: LARGE_BYTES };

impl Run<'_> {
    /// Judges all targets.
    pub fn judge(&self) -> Vec<JudgedTarget> {
        let mut judged = Vec::new();
        for bytes in [SMALL_BYTES, EXCHANGE_BYTES] {
            let measure = half_round_trip(bytes);
            judged.push(self.over_bare_udp(measure, 1.3));
            judged.push(self.over_best(measure, Limit::AtMost(1.0)));
        }
        judged.push(self.over_value(0, RATE, Limit::AtLeast(1.0), 1e6));
        judged.push(self.over_best(RATE, Limit::AtLeast(8.0)));
        judged.push(self.over_best(BANDWIDTH, Limit::AtLeast(1.4)));
        judged.extend(SENDERS.iter().flat_map(|&senders| self.incast(senders)));
        judged.extend([WEIR, OVER_TCP].map(|contender| self.flood(contender)));
        judged.push(self.over_value(LOSS_PER_MILLE, half_round_trip(SMALL_BYTES), Limit::AtMost(1.0), 30.0));
        judged.extend([RATE, BANDWIDTH].map(|measure| self.with_loss(measure)));
        judged.extend(self.over_core_provider());
        for contender in [AUTHENTICATED, WEIR] {
            let half = half_round_trip(SMALL_BYTES);
            judged.push(self.between(contender, half, Limit::AtMost(1.1), UNPROTECTED));
            judged.push(self.between(contender, BANDWIDTH, Limit::AtLeast(0.8), UNPROTECTED));
        }
        let crowded = COLLECTIVES.map(|what| Measure { what, at: CROWDED_HOSTS });
        judged.extend(crowded.map(|measure| self.over_best(measure, Limit::AtMost(1.2))));
        judged
    }

    fn samples(&self, loss: u32, measure: Measure, contender: Contender) -> Option<Samples> {
        samples(self.results.get(&loss)?, measure, contender)
    }

    fn over_bare_udp(&self, measure: Measure, most: f64) -> JudgedTarget {
        let bare = self.bare.get(&Bare::udp(measure)).and_then(|values| Samples::of(values));
        let bare = bare.map(|bare| (String::from("bare UDP"), bare));
        let ours = self.samples(0, measure, WEIR);
        let text = format!("{} over bare UDP", title(measure));
        judge(text, measure.what, Limit::AtMost(most), ours, Baseline::Value(bare))
    }

    fn over_best(&self, measure: Measure, limit: Limit) -> JudgedTarget {
        let theirs = self.results.get(&0).and_then(|results| best(results, measure, limit, &PEERS));
        let text = format!("{} over the best of all others", title(measure));
        let ours = self.samples(0, measure, WEIR);
        judge(text, measure.what, limit, ours, Baseline::Value(theirs))
    }

    fn over_value(&self, loss: u32, measure: Measure, limit: Limit, value: f64) -> JudgedTarget {
        let text = format!("{}{} over {}", title(measure), lost(loss), measure.what.show(value));
        let theirs = Some((String::new(), Samples::constant(value)));
        judge(text, measure.what, limit, self.samples(loss, measure, WEIR), Baseline::Value(theirs))
    }

    fn with_loss(&self, measure: Measure) -> JudgedTarget {
        let text = format!("{}{} over that without a loss", title(measure), lost(LOSS_PER_MILLE));
        let ours = self.samples(LOSS_PER_MILLE, measure, WEIR);
        let theirs = self.samples(0, measure, WEIR).map(|theirs| (String::from("without"), theirs));
        judge(text, measure.what, Limit::AtLeast(0.5), ours, Baseline::Value(theirs))
    }

    fn incast(&self, senders: u64) -> [JudgedTarget; 4] {
        let limits = [
            (Quantity::IncastShare, Limit::AtLeast(1.0)),
            (Quantity::IncastFairness, Limit::AtLeast(0.95)),
            (Quantity::IncastSentAgain, Limit::AtMost(0.01)),
            (Quantity::IncastLost, Limit::AtMost(0.0)),
        ];
        limits.map(|(what, limit)| {
            let measure = Measure { what, at: senders };
            judge(measure.describe(), what, limit, self.samples(0, measure, WEIR), Baseline::Nothing)
        })
    }

    /// The growth of a flooded receiver over its bound inside a host.
    fn flood(&self, contender: Contender) -> JudgedTarget {
        let growth = Measure { what: Quantity::FloodGrowthBytes, at: FLOOD_SENDERS };
        let bound = self.flood.map(|flood| Samples::constant(flood.bound_bytes as f64));
        let bound = bound.map(|bound| (String::from("bound"), bound));
        let name = if contender == WEIR { String::new() } else { format!("{}: ", contender.heading()) };
        let text = format!("{name}{} over its bound inside a host", title(growth));
        let ours = self.samples(0, growth, contender);
        judge(text, growth.what, Limit::AtMost(1.0), ours, Baseline::Value(bound))
    }

    /// A contender over another one in the same measure.
    fn between(&self, ours: Contender, measure: Measure, limit: Limit, theirs: Contender) -> JudgedTarget {
        let name = if ours == WEIR { String::new() } else { format!("{}: ", ours.heading()) };
        let text = format!("{name}{} over {}", title(measure), theirs.heading());
        let beside = self.samples(0, measure, theirs).map(|samples| (theirs.heading(), samples));
        judge(text, measure.what, limit, self.samples(0, measure, ours), Baseline::Value(beside))
    }

    fn over_core_provider(&self) -> Vec<JudgedTarget> {
        let limits = [
            (half_round_trip(SMALL_BYTES), Limit::DifferenceAtMost(1.0)),
            (half_round_trip(EXCHANGE_BYTES), Limit::AtMost(1.1)),
            (RATE, Limit::AtLeast(0.9)),
            (BANDWIDTH, Limit::AtLeast(0.9)),
        ];
        let beside_tcp = limits.map(|(measure, limit)| self.between(OVER_TCP, measure, limit, TCP));
        let share = Measure { what: Quantity::IncastShare, at: SENDERS[0] };
        let text = format!("{}: {}", OVER_TCP.heading(), share.describe());
        let ours = self.samples(0, share, OVER_TCP);
        let incast = judge(text, share.what, Limit::AtLeast(0.9), ours, Baseline::Nothing);
        beside_tcp.into_iter().chain([incast]).collect()
    }
}

/// ` with 1 % lost`; empty: without a loss.
fn lost(per_mille: u32) -> String {
    match per_mille {
        0 => String::new(),
        _ => format!(" with {} % lost", f64::from(per_mille) / 10.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::results::tests::measured;
    use crate::compare::verdict::Verdict;

    type Value = (u32, Contender, Quantity, u64, f64);

    /// The verdicts on a run in which each value was measured three times, by text.
    fn judged(values: &[Value], bare_us: f64) -> BTreeMap<String, JudgedTarget> {
        let losses = [0, LOSS_PER_MILLE].map(|loss| {
            let of_loss = values.iter().filter(|value| value.0 == loss);
            let jobs =
                of_loss.map(|&(_, contender, what, at, value)| measured(contender, what, at, &[value; 3]));
            (loss, Results::new(&[WEIR, TCP], &jobs.collect::<Vec<_>>().concat()))
        });
        let results = BTreeMap::from(losses);
        let bare = BTreeMap::from([(Bare::udp(half_round_trip(8)), vec![bare_us; 3])]);
        let flood = FloodBound { payload_bytes: 90 << 20, bound_bytes: 20 << 20, datagram_bytes: 3 << 20 };
        let judged = Run { results: &results, bare: &bare, flood: Some(&flood) }.judge();
        judged.into_iter().map(|target| (target.text.clone(), target)).collect()
    }

    #[test]
    fn a_run_is_judged_beside_bare_udp_peers_itself_and_fixed_values() {
        let what = Quantity::HalfRoundTripUs;
        let values = [
            (0, WEIR, what, 8, 9.0),
            (0, TCP, what, 8, 10.0),
            (0, OVER_TCP, what, 8, 11.5),
            (0, UNPROTECTED, what, 8, 8.5),
            (0, AUTHENTICATED, what, 8, 9.5),
            (0, WEIR, Quantity::BarrierUs, CROWDED_HOSTS, 90.0),
            (0, TCP, Quantity::BarrierUs, CROWDED_HOSTS, 60.0),
            (LOSS_PER_MILLE, WEIR, what, 8, 31.0),
            (0, WEIR, Quantity::MessagesPerS, 8, 1.2e6),
            (LOSS_PER_MILLE, WEIR, Quantity::MessagesPerS, 8, 0.7e6),
            (0, WEIR, Quantity::IncastSentAgain, 7, 0.004),
            (0, WEIR, Quantity::IncastLost, 7, 0.0),
            (0, WEIR, Quantity::IncastSentAgain, 15, 0.02),
            (0, WEIR, Quantity::FloodGrowthBytes, 3, f64::from(18 << 20)),
            (0, OVER_TCP, Quantity::FloodGrowthBytes, 3, f64::from(21 << 20)),
        ];
        let judged = judged(&values, 6.0);
        for (text, verdict, found) in [
            ("Half round trip, 8 B over bare UDP", Verdict::Missed, "1.50 (9.00 us / 6.00 us bare UDP)"),
            (
                "Half round trip, 8 B over the best of all others",
                Verdict::Reached,
                "0.90 (9.00 us / 10.0 us libfabric tcp)",
            ),
            ("Rate of 8 B messages over 1.00 M/s", Verdict::Reached, "1.20 (1.20 M/s / 1.00 M/s)"),
            ("Half round trip, 8 B with 1 % lost over 30.0 us", Verdict::Missed, "1.03 (31.0 us / 30.0 us)"),
            (
                "Rate of 8 B messages with 1 % lost over that without a loss",
                Verdict::Reached,
                "0.58 (700 k/s / 1.20 M/s without)",
            ),
            ("Incast: sent again, 7 to 1", Verdict::Reached, "0.40 % (0.40 % .. 0.40 %)"),
            ("Incast: lost, 7 to 1", Verdict::Reached, "0 % (0 % .. 0 %)"),
            ("Incast: sent again, 15 to 1", Verdict::Missed, "2.00 % (2.00 % .. 2.00 %)"),
            (
                "weir over ofi:tcp: Half round trip, 8 B over libfabric tcp",
                Verdict::Missed,
                "1.15 (11.5 us / 10.0 us libfabric tcp)",
            ),
            (
                "Half round trip, 8 B over weir, unprotected",
                Verdict::Reached,
                "1.06 (9.00 us / 8.50 us weir, unprotected)",
            ),
            (
                "weir, not encrypted: Half round trip, 8 B over weir, unprotected",
                Verdict::Missed,
                "1.12 (9.50 us / 8.50 us weir, unprotected)",
            ),
            (
                "Barrier, 8 ranks over the best of all others",
                Verdict::Missed,
                "1.50 (90.0 us / 60.0 us libfabric tcp)",
            ),
            ("Incast: lost, 15 to 1", Verdict::NotMeasured, "-"),
            (
                "Flood: growth of the receiver, 3 senders over its bound inside a host",
                Verdict::Reached,
                "0.90 (18.0 MiB / 20.0 MiB bound)",
            ),
            (
                "weir over ofi:tcp: Flood: growth of the receiver, 3 senders over its bound inside a host",
                Verdict::Missed,
                "1.05 (21.0 MiB / 20.0 MiB bound)",
            ),
        ] {
            let target =
                judged.get(text).unwrap_or_else(|| panic!("{text} is not among {:#?}", judged.keys()));
            assert_eq!((target.verdict, target.found.as_str()), (verdict, found), "{text}");
        }
        assert_eq!(judged["Incast: sent again, 7 to 1"].limit, "at most 1.00 %");
        let difference = &judged["weir over ofi:tcp: Half round trip, 8 B over libfabric tcp"];
        assert_eq!(difference.limit, "at most 1.00 us more");
    }
}
