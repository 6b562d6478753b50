//! When an operation of a group has begun, and when its last member: what [`OperationTimes`] counts of it.
//!
//! A member sees that others have begun by the end of the first part, which needs something of all from whom this member gets
//! anything. So its skew includes the way of messages. Of operations that do one transfer after the other (long all-to-alls), no
//! part needs something of all: their skew is not known.

use std::sync::Arc;

use weir_link::Link;
use weir_link::cores::stopwatch;
use weir_proto::Outcome;

use super::{Collective, CollectiveShape, Hearer, Kind};
use crate::Engine;
use crate::operation_times::{Executor, OperationClass, OperationSums, OperationTimes};

/// Times of an operation, by the stopwatch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    began: u64,
    /// When the first part has ended. 0: it has not.
    met_at: u64,
    /// The program does nothing but wait.
    is_awaited: bool,
}

impl Timing {
    pub fn begin(is_awaited: bool) -> Timing {
        Timing { began: stopwatch(), met_at: 0, is_awaited }
    }

    /// A part has ended.
    pub fn part_ended(&mut self, now: impl FnOnce() -> u64) {
        if self.met_at == 0 {
            self.met_at = now();
        }
    }

    /// The operation has ended. Returns its class and its times.
    ///
    /// - `by_helper`: a thread of the library has seen the end.
    fn end(self, shape: &CollectiveShape, by_helper: bool, now: u64) -> (OperationClass, OperationSums) {
        let Timing { began, met_at, is_awaited } = self;
        let executor = if by_helper { Executor::Helper } else { Executor::Messages };
        let class = OperationClass { kind: shape.operation.into(), executor, is_blocking: is_awaited };
        // Otherwise the end of a part may have waited for the program's next call.
        let is_seen_at_once = is_awaited || by_helper;
        let skew = (is_seen_at_once && shape.needs_all_at_once()).then(|| met_at.saturating_sub(began));
        let mut sums = OperationSums::default();
        sums.add_one(now.saturating_sub(began), skew);
        (class, sums)
    }
}

impl super::Collectives {
    /// Counts an operation of the program that has ended. Those with a ticket are steps of others, which count.
    pub(super) fn count_operation(&self, collective: &Collective) {
        let Collective { kind, hearer, outcome, shape, timing, .. } = collective;
        if *kind == Kind::Operation && *outcome == Outcome::Done && matches!(hearer, Hearer::Program(_)) {
            let (class, sums) = timing.end(shape, self.helper_drives, stopwatch());
            self.times.add(class, &sums);
        }
    }
}

impl<L: Link> Engine<L> {
    /// The operations of this endpoint, for others that do some for it.
    pub fn operation_times(&self) -> Arc<OperationTimes> {
        Arc::clone(&self.io.collectives.times)
    }

    /// Whether a thread of the library drives this endpoint now, and not the program.
    pub fn set_helper_drives(&mut self, helper_drives: bool) {
        self.io.collectives.helper_drives = helper_drives;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CollectiveOperation;
    use crate::operation_times::OperationKind;

    fn shape(operation: CollectiveOperation) -> CollectiveShape {
        CollectiveShape { operation, block_bytes: 40_000, rank: 1, members: 3 }
    }

    fn ended(
        timing: Timing,
        operation: CollectiveOperation,
        by_helper: bool,
    ) -> (OperationClass, OperationSums) {
        timing.end(&shape(operation), by_helper, 160)
    }

    #[test]
    fn the_skew_of_an_operation_with_messages_ends_with_its_first_part() {
        let mut timing = Timing { began: 100, met_at: 0, is_awaited: true };
        timing.part_ended(|| 140);
        timing.part_ended(|| unreachable!("only the first part counts"));
        let (class, sums) = ended(timing, CollectiveOperation::Broadcast { root: 0 }, false);
        let expected = OperationSums { count: 1, time: 60, skew_known: 1, skew: 40, longest: 60 };
        assert_eq!(sums, expected);
        let executor = Executor::Messages;
        assert_eq!(class, OperationClass { kind: OperationKind::Broadcast, executor, is_blocking: true });
    }

    #[test]
    fn the_skew_is_known_only_to_who_looks_all_the_time_and_of_one_transfer() {
        let skew = |is_awaited, operation, by_helper| {
            let timing = Timing { began: 100, met_at: 140, is_awaited };
            let (class, sums) = ended(timing, operation, by_helper);
            assert_eq!((class.executor == Executor::Helper, sums.time), (by_helper, 60));
            sums.whole_skew()
        };
        assert_eq!(skew(false, CollectiveOperation::Barrier, false), None);
        assert_eq!(skew(false, CollectiveOperation::Barrier, true), Some(40));
        assert_eq!(skew(true, CollectiveOperation::AllGather, false), Some(40));
        assert_eq!(skew(true, CollectiveOperation::AllToAll, true), None, "one exchange after the other");
        let nothing = Timing { began: 100, met_at: 0, is_awaited: true };
        let sums = ended(nothing, CollectiveOperation::Broadcast { root: 1 }, false).1;
        assert_eq!(sums.whole_skew(), Some(0), "without bytes it has no part");
    }
}
