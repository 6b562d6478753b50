//! A member of the job that says anything in its headers: a path never fails, delivers once and in order, and keeps to its
//! bounds.

use super::*;
use proptest::prelude::*;

/// A number near those in use, or any.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0_u32..300, 1 => any::<u32>(), 1 => (u32::MAX - 300)..=u32::MAX]
}

fn epoch_of_peer() -> impl Strategy<Value = u16> {
    prop_oneof![8 => Just(PEERS), 1 => 0_u16..3]
}

fn datagram() -> impl Strategy<Value = Datagram> {
    let header = (
        epoch_of_peer(),
        prop_oneof![8 => Just(OURS), 1 => 0_u16..3],
        number(),
        number(),
        number(),
        any::<u64>(),
        any::<u16>(),
        (any::<bool>(), 0_u8..8),
    );
    (header, proptest::option::of(number()), any::<bool>()).prop_map(|(header, position, marked)| {
        let (epoch, destination_epoch, number, acknowledged, latest, arrived, marks, (asks, delay_doublings)) = header;
        let header = Header {
            epoch,
            destination_epoch,
            number,
            acknowledged,
            latest,
            arrived,
            marks,
            asks,
            delay_doublings,
        };
        Datagram { header, position, marked }
    })
}

#[derive(Clone, Debug)]
enum Step {
    Arrives(Datagram),
    Submit(u32),
    Time(u64),
    Busy(bool),
    Grant(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => datagram().prop_map(Step::Arrives),
        4 => (1_u32..=1452).prop_map(Step::Submit),
        2 => (0_u64..20_000_000).prop_map(Step::Time),
        1 => any::<bool>().prop_map(Step::Busy),
        1 => any::<u16>().prop_map(Step::Grant),
    ]
}

proptest! {
    #[test]
    fn a_path_keeps_to_its_bounds_whatever_its_peer_says(steps in proptest::collection::vec(step(), 0..400)) {
        let window = u64::from(ReliabilityConfig::default().window_bundles);
        let mut bench = Bench::new();
        let mut delivered = FIRST;
        for step in steps {
            let calls = match step {
                Step::Arrives(datagram) => {
                    bench.path.arrived(bench.now, &datagram, &mut bench.calls);
                    bench.path.batch_ended(bench.now, &mut bench.calls);
                    bench.path.bundles_read(bench.now, &mut bench.calls);
                    bench.take()
                }
                Step::Submit(bytes) => {
                    let _ = bench.path.submit(bench.now, bytes, &mut bench.calls);
                    bench.take()
                }
                Step::Time(ns) => bench.run_until(bench.now.plus_ns(ns)),
                Step::Busy(is_busy) => {
                    bench.calls.is_busy = is_busy;
                    if !is_busy {
                        bench.path.writable(bench.now, &mut bench.calls);
                    }
                    bench.take()
                }
                Step::Grant(bundles) => {
                    bench.path.set_grant(bench.now, bundles.into(), &mut bench.calls);
                    bench.take()
                }
            };
            for call in calls {
                if let Call::Deliver(position) | Call::DeliverHeld(position) = call {
                    prop_assert_eq!(position, delivered);
                    delivered += 1;
                }
            }
            let view = bench.path.view();
            prop_assert!(u64::from(view.held_bundles) <= window && view.unacknowledged_bundles <= window);
            prop_assert!(view.in_flight_bytes <= window * 1452);
            prop_assert_eq!(view.next_delivery, delivered);
        }
    }
}

/// The peer says that the datagram has arrived, and that the position in it has not. The bundle counts once.
#[test]
fn a_peer_that_contradicts_itself_takes_no_bundle_off_twice() {
    let mut bench = Bench::open();
    let number_of = |calls: &[Call]| {
        calls.iter().find_map(|call| match call {
            Call::Transmit(header, Some(_)) => Some(header.number),
            _ => None,
        })
    };
    let first = number_of(&bench.submit()).expect("it leaves at once");
    assert_eq!(bench.path.view().in_flight_bytes, 100);
    bench.acknowledgement_arrives(0, first, 0);
    assert_eq!(bench.path.view().in_flight_bytes, 0);
    let again = bench.run_until(bench.now.plus_ns(1_000_000_000));
    let again = number_of(&again).expect("the position is not acknowledged, so it leaves again");
    bench.acknowledgement_arrives(0, again, 0);
    assert_eq!(bench.path.view().in_flight_bytes, 0);
}
