//! The performance targets of weir inside a host, and the verdict of a run on each (`verdict.rs`).
//!
//! A target limits a ratio: of weir to the best of some contenders, to weir in another measure, or a value that is a
//! ratio already.

use super::measure::{EXCHANGE_BYTES, LARGE_BYTES, Measure, Quantity, SMALL_BYTES};
use super::results::{Results, WEIR};
use super::verdict::{self, JudgedTarget, Limit, Samples};
use crate::contender::{Contender, OtherMpi};
use crate::transport::Transport;
use weir_output::quantity::exact_bytes;

const SHM: Contender = Contender::Mpich(Transport::OfiShm);
const UCX: Contender = Contender::Mpich(Transport::Ucx);
const MPICH: Contender = Contender::Mpich(Transport::MpichShm);
const INTEL: Contender = Contender::OtherMpi(OtherMpi::IntelMpi);
/// Ranks of the targets for more ranks than cores. Some targets use twice as many.
const OVERSUBSCRIBED_RANKS: u64 = 8;

/// The transport or MPI that a target compares weir with.
#[derive(Clone, Copy, Debug)]
enum Baseline {
    /// The best of these contenders in the same measure.
    Best(&'static [Contender]),
    /// weir in another measure.
    Itself(Measure),
    /// Nothing: the value is a ratio already.
    Nothing,
}

/// A target.
#[derive(Clone, Copy, Debug)]
struct Target {
    measure: Measure,
    limit: Limit,
    baseline: Baseline,
}

fn targets() -> Vec<Target> {
    let target = |what, at, limit, baseline| Target { measure: Measure { what, at }, limit, baseline };
    let collectives = [Quantity::BarrierUs, Quantity::AllreduceUs, Quantity::AlltoallUs];
    let libfabric_and_ucx = Baseline::Best(&[SHM, UCX]);
    // All three read the sender's memory, if the kernel allows it. Open MPI and Intel MPI stop doing so after a few
    // failures and then copy twice.
    let single_copy = Baseline::Best(&[MPICH, SHM, UCX]);
    let mut targets = vec![
        target(Quantity::HalfRoundTripUs, SMALL_BYTES, Limit::AtMost(0.85), libfabric_and_ucx),
        target(Quantity::HalfRoundTripUs, EXCHANGE_BYTES, Limit::AtMost(0.7), libfabric_and_ucx),
        target(Quantity::MessagesPerS, SMALL_BYTES, Limit::AtLeast(1.3), libfabric_and_ucx),
        target(Quantity::BytesPerS, LARGE_BYTES, Limit::AtLeast(1.2), single_copy),
    ];
    targets.extend(
        collectives
            .map(|what| target(what, OVERSUBSCRIBED_RANKS, Limit::AtMost(1.2), Baseline::Best(&[INTEL]))),
    );
    targets.extend(collectives.map(|what| {
        let fewer = Baseline::Itself(Measure { what, at: OVERSUBSCRIBED_RANKS });
        target(what, 2 * OVERSUBSCRIBED_RANKS, Limit::AtMost(3.0), fewer)
    }));
    targets.push(target(
        Quantity::IncastShare,
        OVERSUBSCRIBED_RANKS - 1,
        Limit::AtLeast(0.9),
        Baseline::Nothing,
    ));
    targets.push(target(
        Quantity::IncastFairness,
        OVERSUBSCRIBED_RANKS - 1,
        Limit::AtLeast(0.95),
        Baseline::Nothing,
    ));
    targets
}

/// Judges all targets.
pub fn judge(results: &Results) -> Vec<JudgedTarget> {
    targets().iter().map(|target| target.judge(results)).collect()
}

/// The samples of a contender.
pub fn samples(results: &Results, measure: Measure, contender: Contender) -> Option<Samples> {
    Samples::of(&results.samples(measure, contender))
}

/// `Half round trip, 8 B`.
pub fn title(measure: Measure) -> String {
    match measure.what {
        Quantity::MessagesPerS => format!("Rate of {} messages", exact_bytes(measure.at)),
        _ => measure.describe(),
    }
}

/// The names of contenders as a baseline: `the best of UCX, Intel MPI`.
fn best_of(contenders: &[Contender]) -> String {
    let names: Vec<_> = contenders.iter().map(|contender| contender.heading()).collect();
    let best = if names.len() == 1 { "" } else { "the best of " };
    format!("{best}{}", names.join(", "))
}

/// The best contender by its median, with its name.
pub fn best(
    results: &Results,
    measure: Measure,
    limit: Limit,
    contenders: &[Contender],
) -> Option<(String, Samples)> {
    let of_each = contenders
        .iter()
        .filter_map(|contender| Some((contender.heading(), samples(results, measure, *contender)?)));
    let median = |it: &(String, Samples)| it.1.spread.median;
    match limit {
        Limit::AtMost(_) | Limit::DifferenceAtMost(_) => {
            of_each.min_by(|one, other| median(one).total_cmp(&median(other)))
        }
        Limit::AtLeast(_) => of_each.max_by(|one, other| median(one).total_cmp(&median(other))),
    }
}

impl Target {
    fn judge(&self, results: &Results) -> JudgedTarget {
        let Target { measure, limit, baseline } = *self;
        let (over, theirs) = match baseline {
            Baseline::Nothing => (String::new(), verdict::Baseline::Nothing),
            Baseline::Itself(other) => {
                let place = other.what.place(other.at);
                let theirs = samples(results, other, WEIR).map(|theirs| (place.clone(), theirs));
                (format!(" over {place}"), verdict::Baseline::Value(theirs))
            }
            Baseline::Best(contenders) => {
                let theirs = best(results, measure, limit, contenders);
                (format!(" over {}", best_of(contenders)), verdict::Baseline::Value(theirs))
            }
        };
        let text = format!("{}{over}", title(measure));
        verdict::judge(text, measure.what, limit, samples(results, measure, WEIR), theirs)
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::measured;
    use super::super::verdict::Verdict;
    use super::*;

    fn judged(samples: &[(Contender, Quantity, u64, &[f64])], wanted: &str) -> JudgedTarget {
        let all =
            samples.iter().flat_map(|&(contender, what, at, values)| measured(contender, what, at, values));
        let results = Results::new(&[WEIR, SHM, UCX, INTEL], &all.collect::<Vec<_>>());
        let judged = judge(&results);
        judged.into_iter().find(|target| target.text.starts_with(wanted)).unwrap()
    }

    fn latency(weir: &[f64], shm: &[f64], ucx: &[f64]) -> JudgedTarget {
        let what = Quantity::HalfRoundTripUs;
        judged(&[(WEIR, what, 8, weir), (SHM, what, 8, shm), (UCX, what, 8, ucx)], "Half round trip, 8 B")
    }

    #[test]
    fn lower_times_reach_the_target() {
        let target = latency(&[0.4, 0.41, 0.42], &[0.7, 0.7, 0.7], &[0.5, 0.51, 0.52]);
        assert_eq!(target.text, "Half round trip, 8 B over the best of libfabric shm, UCX");
        assert_eq!(target.found, "0.80 (410 ns / 510 ns UCX)");
        assert_eq!((target.limit.as_str(), target.verdict), ("at most 0.85", Verdict::Reached));
        assert_eq!(latency(&[0.6, 0.7, 0.7], &[0.7, 0.7, 0.7], &[0.5, 0.52, 0.5]).verdict, Verdict::Missed);
        // The medians reach the target, but one combination of rounds does not.
        assert_eq!(latency(&[0.4, 0.4, 0.6], &[0.7], &[0.5, 0.5, 0.5]).verdict, Verdict::WithinNoise);
        let alone = latency(&[0.4, 0.4, 0.4], &[], &[0.5, 0.5, 0.5]);
        assert_eq!(alone.verdict, Verdict::Reached, "one of the two is enough");
        let few = latency(&[0.4, 0.4], &[], &[0.5, 0.5, 0.5]);
        assert_eq!((few.found.as_str(), few.verdict), ("0.80 (400 ns / 500 ns UCX)", Verdict::TooFewRounds));
        let missing = latency(&[0.4], &[], &[]);
        assert_eq!((missing.found.as_str(), missing.verdict), ("-", Verdict::NotMeasured));
        assert_eq!(latency(&[], &[0.4], &[0.4]).verdict, Verdict::NotMeasured);
    }

    #[test]
    fn higher_rates_reach_the_target() {
        let rate = |weir: &[f64]| {
            let what = Quantity::MessagesPerS;
            let target = judged(
                &[(WEIR, what, 8, weir), (SHM, what, 8, &[6e6; 3]), (UCX, what, 8, &[7e6; 3])],
                "Rate",
            );
            (target.found, target.verdict)
        };
        assert_eq!(rate(&[14e6; 3]), ("2.00 (14.0 M/s / 7.00 M/s UCX)".to_owned(), Verdict::Reached));
        assert_eq!(rate(&[7e6; 3]).1, Verdict::Missed);
        assert_eq!(rate(&[7e6, 7e6, 14e6]).1, Verdict::WithinNoise);
    }

    #[test]
    fn incast_and_oversubscription_targets_compare_weir_with_itself() {
        let share = judged(
            &[(WEIR, Quantity::IncastPerS, 1, &[10.0; 3]), (WEIR, Quantity::IncastPerS, 7, &[9.5, 9.3, 9.1])],
            "Incast: rate",
        );
        assert_eq!((share.verdict, share.found.as_str()), (Verdict::Reached, "0.93 (0.91 .. 0.95)"));
        let fair = judged(&[(WEIR, Quantity::IncastFairness, 7, &[0.949; 3])], "Incast: Jain");
        assert_eq!((fair.verdict, fair.found.as_str()), (Verdict::Missed, "0.949 (0.949 .. 0.949)"));
        let crowd = judged(
            &[(WEIR, Quantity::BarrierUs, 8, &[40.0; 3]), (WEIR, Quantity::BarrierUs, 16, &[100.0; 3])],
            "Barrier, 16 ranks",
        );
        assert_eq!(crowd.found, "2.50 (100 us / 40.0 us 8 ranks)");
        let intel = judged(
            &[(WEIR, Quantity::BarrierUs, 8, &[40.0; 3]), (INTEL, Quantity::BarrierUs, 8, &[20.0; 3])],
            "Barrier, 8 ranks over Intel MPI",
        );
        assert_eq!(intel.verdict, Verdict::Missed);
    }
}
