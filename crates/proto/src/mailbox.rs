//! Mailbox arithmetic: how slots are divided and when credits are returned.
//!
//! This file has numbers only; layouts belong to the links. Source: Prades, thesis, sections 5.1 to 5.3 (digest:
//! `docs/explanation/flow-control.md`). A mailbox has a data region and a credit region. The data region is divided
//! into the senders' quotas. The credit region has `credit_slots` slots for the explicit credit packets of each peer.
//!
//! Worked exchange, quota 20, two credit slots, threshold 7. The sender fills its 20 slots and stops. The receiver
//! retrieves 7 slots and returns 7 credits, twice. Now both credit slots may be full, and 6 slots are left to retrieve.
//! So the third return cannot come before the sender has read the first.

/// Slots whose retrieval makes a credit return due: `q div (n + 1) + 1` (5.1).
///
/// - `quota_slots`, `q`: data slots of the sender, at least 1.
/// - `credit_slots`, `n`: its credit slots for us, at least 1.
///
/// The result is between 1 and `q`, so it is reached. Also `(n + 1) * threshold > q`, so credit packet `n + 1` waits
/// until the sender has read an earlier one.
#[inline]
pub fn threshold(quota_slots: u32, credit_slots: u32) -> u32 {
    quota_slots / (credit_slots + 1) + 1
}

/// Slots of a data region that sender number `index` of `senders` owns. If `rest_to_first`, the remainder of the
/// division goes to the first senders; else no sender owns it.
pub fn quota(data_slots: u32, senders: u32, index: u32, rest_to_first: bool) -> u32 {
    let rest = data_slots % senders;
    data_slots / senders + u32::from(rest_to_first && index < rest)
}

/// Whether a sender of messages of `packets` slots never stalls in a steady flow: `q - q div (n + 1) >= packets`
/// (5.4).
pub fn steady(quota_slots: u32, credit_slots: u32, packets: u32) -> bool {
    quota_slots - quota_slots / (credit_slots + 1) >= packets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_equal_the_published_values() {
        let published = [
            ((100, 1), 51),
            ((100, 2), 34),
            ((100, 3), 26),
            ((100, 4), 21),
            ((100, 5), 17),
            ((60, 2), 21),
            ((40, 2), 14),
            ((20, 2), 7),
            ((10, 2), 4),
            ((3, 2), 2),
        ];
        for ((q, n), t) in published {
            assert_eq!(threshold(q, n), t, "q={q} n={n}");
        }
    }

    /// Simulates a sender that always has something to send and reads credit packets as late as it can. The receiver
    /// retrieves at once. Returns the maximum of unread credit packets, or `None` if the sender stops for ever.
    fn flow(q: u32, threshold: u32) -> Option<u32> {
        let (mut credits, mut unread, mut retrieved, mut worst) = (q, 0, 0, 0);
        for _ in 0..10 * q + 10 {
            while credits > 0 {
                credits -= 1;
                retrieved += 1;
                if retrieved == threshold {
                    (retrieved, unread) = (0, unread + 1);
                    worst = worst.max(unread);
                }
            }
            if unread == 0 {
                return None;
            }
            unread -= 1;
            credits += threshold;
        }
        Some(worst)
    }

    #[test]
    fn the_threshold_neither_deadlocks_nor_overflows_the_credit_region() {
        for q in 1..200 {
            for n in 1..=16.min(q) {
                let worst = flow(q, threshold(q, n)).expect("deadlock");
                assert!(worst <= n, "q={q} n={n}: {worst} unread credit packets in {n} slots");
            }
        }
    }

    #[test]
    fn the_formula_with_q_div_n_plus_1_deadlocks_with_one_credit_slot() {
        let wrong = |q: u32, n: u32| q / n + 1;
        assert_eq!(flow(100, wrong(100, 1)), None);
    }

    #[test]
    fn the_formula_q_div_n_overflows_the_credit_region() {
        assert!(flow(3, 3 / 2).expect("no deadlock") > 2);
    }

    #[test]
    fn a_steady_flow_of_2_kb_messages_needs_the_published_slots() {
        // Data region slots `q` and receive buffer slots `q + n`, thesis 5.5.
        for (n, buffer_slots) in [(1, 74), (2, 57), (3, 52), (4, 50), (5, 49)] {
            let smallest = (1..).find(|&q| steady(q, n, 37)).expect("a large enough quota");
            assert_eq!(smallest + n, buffer_slots, "n={n}");
        }
    }

    #[test]
    fn the_remainder_goes_to_the_first_senders_or_to_none() {
        let shares = |rest| -> alloc::vec::Vec<u32> { (0..3).map(|i| quota(8, 3, i, rest)).collect() };
        assert_eq!(shares(true), [3, 3, 2]);
        assert_eq!(shares(false), [2, 2, 2]);
    }
}
