//! Tests of the timer queue against a naive model: a list of timers that is searched.

use proptest::prelude::*;
use weir_proto::{Instant, TimerQueue};

const PEERS: u8 = 4;
const PURPOSES: u8 = 3;

/// A peer and a purpose.
type Key = (u8, u8);

#[derive(Clone, Copy, Debug)]
enum Step {
    Set(Key, u64),
    Cancel(Key),
    /// Time passes until here, and all expired timers are taken.
    Expire(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let key = (0..PEERS, 0..PURPOSES);
    prop_oneof![
        (key.clone(), 0..100_u64).prop_map(|(key, at)| Step::Set(key, at)),
        key.prop_map(Step::Cancel),
        (0..100_u64).prop_map(Step::Expire),
    ]
}

proptest! {
    #[test]
    fn timers_expire_in_order_of_time_and_only_once(steps in prop::collection::vec(step(), 0..200)) {
        let mut queue = TimerQueue::default();
        let mut model: Vec<(Instant, Key)> = Vec::new();
        for step in steps {
            match step {
                Step::Set(key, at) => {
                    queue.set(key, Instant(at));
                    model.retain(|(_, other)| *other != key);
                    model.push((Instant(at), key));
                }
                Step::Cancel(key) => {
                    queue.cancel(key);
                    model.retain(|(_, other)| *other != key);
                }
                Step::Expire(now) => {
                    let mut expired: Vec<_> = model.extract_if(.., |(at, _)| *at <= Instant(now)).collect();
                    expired.sort_unstable();
                    for (_, key) in expired {
                        prop_assert_eq!(queue.take_expired(Instant(now)), Some(key));
                    }
                    prop_assert_eq!(queue.take_expired(Instant(now)), None);
                }
            }
            prop_assert_eq!(queue.earliest(), model.iter().map(|(at, _)| *at).min());
            prop_assert_eq!((queue.len(), queue.is_empty()), (model.len(), model.is_empty()));
            prop_assert!(queue.len() <= usize::from(PEERS) * usize::from(PURPOSES));
        }
    }
}
