//! State of a receiver's pool at the end of a world: movements of credits, and their distribution. It serves
//! records only; nothing in a world depends on it.

use weir_proto::flow::{demand_credits, dynamic_credits};

/// The pool of one receiver, in schemes with a shared region. With credits on demand a quota is a window, a transfer is
/// a turn that ended with demand left, and a short grant is a sender that had to queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolReading {
    /// Quota transfers from one sender to another.
    pub quota_transfers: u64,
    /// Return requests.
    pub return_requests: u64,
    /// Grants below the new threshold, because no more was free.
    pub short_grants: u64,
    /// Slots for which no sender holds a credit.
    pub available_slots: u32,
    /// Senders whose intended quota exceeds the guaranteed credits.
    pub sharers: u32,
    /// Smallest intended quota among them; 0 without any.
    pub least_intended_slots: u32,
    /// Largest intended quota among them.
    pub most_intended_slots: u32,
}

/// Reads a number of a reading.
type Value = fn(&PoolReading) -> f64;

impl PoolReading {
    /// The names of these numbers in records.
    pub const MEASURES: [(&'static str, Value); 7] = [
        ("pool_quota_transfers", |pool| pool.quota_transfers as f64),
        ("pool_return_requests", |pool| pool.return_requests as f64),
        ("pool_short_grants", |pool| pool.short_grants as f64),
        ("pool_available_slots", |pool| pool.available_slots.into()),
        ("pool_sharers", |pool| pool.sharers.into()),
        ("pool_least_intended_slots", |pool| pool.least_intended_slots.into()),
        ("pool_most_intended_slots", |pool| pool.most_intended_slots.into()),
    ];

    /// The same of a pool that lends credits on demand.
    pub(super) fn of_demand(pool: &demand_credits::Pool, guaranteed: u32) -> PoolReading {
        let tally = pool.tally();
        let shares = || pool.accounts().map(|account| account.window).filter(|&slots| slots > guaranteed);
        PoolReading {
            quota_transfers: tally.rotations,
            return_requests: tally.requests,
            short_grants: tally.queued,
            available_slots: pool.available_slots(),
            sharers: shares().count() as u32,
            least_intended_slots: shares().min().unwrap_or(0),
            most_intended_slots: shares().max().unwrap_or(0),
        }
    }

    /// - `guaranteed`: credits that a sender never loses. Unit: slots.
    pub(super) fn of(pool: &dynamic_credits::Pool, guaranteed: u32) -> PoolReading {
        let tally = pool.tally();
        let shares = || pool.accounts().map(|account| account.intended).filter(|&slots| slots > guaranteed);
        PoolReading {
            quota_transfers: tally.quota_transfers,
            return_requests: tally.requests,
            short_grants: tally.short_grants,
            available_slots: pool.available_slots(),
            sharers: shares().count() as u32,
            least_intended_slots: shares().min().unwrap_or(0),
            most_intended_slots: shares().max().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_proto::{AttachPolicy, DataRegion, Peer};

    use super::*;

    #[test]
    fn one_active_sender_gets_all_slots_above_the_guarantees() {
        let region = DataRegion {
            slots: 24,
            peers: 3,
            start_slots: 2,
            attach_policy: AttachPolicy::Start,
            grace_points: 0,
        };
        let mut pool = dynamic_credits::Pool::new(&region, 2, false);
        let accounts = [0, 1, 2].map(|peer| pool.attach(Peer(peer), 24, 2));
        let equal = PoolReading {
            available_slots: 18,
            sharers: 3,
            least_intended_slots: 8,
            most_intended_slots: 8,
            ..PoolReading::default()
        };
        assert_eq!(PoolReading::of(&pool, 2), equal);
        let mut read = 0;
        for _ in 0..400 {
            pool.retrieved(accounts[0], 1, read).expect("it has credits");
            // A credit packet is read as soon as it is sent.
            read += u16::from(pool.grant(accounts[0], 2).is_some());
        }
        let alone = PoolReading::of(&pool, 2);
        assert_eq!((alone.sharers, alone.least_intended_slots, alone.most_intended_slots), (1, 20, 20));
        // A sender that is idle from the start holds its guaranteed credits only, so no return request is
        // needed.
        assert_eq!((alone.return_requests, alone.short_grants), (0, 0));
        assert!(alone.quota_transfers >= 4, "{alone:?}");
    }
}
