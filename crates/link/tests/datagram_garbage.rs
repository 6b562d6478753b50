//! Property tests of everything that the link over datagrams reads from outside: no bytes make it fail, or hold more
//! memory than its bounds. Datagrams are random, or those of a real peer with changes.

mod ends;

use ends::{End, QUOTA};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use weir_link::datagram::network::{BATCH_DATAGRAMS, Batch, DatagramNetwork, Received};
use weir_link::datagram::{DatagramLink, DatagramOptions};
use weir_link::{Addressing, Bell, Inspect, Link, LinkKind};
use weir_proto::Instant;

const DATAGRAM_BYTES: usize = 1452;

/// Datagrams between two endpoints.
#[derive(Default)]
struct UnderWay {
    /// That were sent: from, to.
    sent: Vec<(u8, u8, Vec<u8>)>,
    /// That arrive at each endpoint, with their senders.
    arrive: [VecDeque<(u8, Vec<u8>)>; 2],
}

type Queues = Arc<Mutex<UnderWay>>;

/// One end of a cable that a test can read and change.
struct Cable {
    end: u8,
    queues: Queues,
    now: Arc<Mutex<u64>>,
}

struct NoBell;

impl Bell for NoBell {
    fn ring(&self) {}
}

impl DatagramNetwork for Cable {
    type Place = u8;

    fn kind(&self) -> LinkKind {
        LinkKind::LastChoice
    }

    fn part(&self) -> Vec<u8> {
        vec![self.end]
    }

    fn place_of(&self, part: &[u8]) -> Option<u8> {
        part.first().copied()
    }

    fn largest_datagram(&self) -> usize {
        DATAGRAM_BYTES
    }

    fn buffered_datagrams(&self) -> Option<u64> {
        Some(100)
    }

    fn send(&mut self, to: u8, bytes: &[u8], segment_bytes: usize, _in_fragments: bool) -> usize {
        let mut queues = self.queues.lock().expect("no panic");
        queues.sent.extend(bytes.chunks(segment_bytes).map(|datagram| (self.end, to, datagram.to_vec())));
        bytes.len()
    }

    fn receive(&mut self, batch: &mut Batch<u8>) {
        let mut queues = self.queues.lock().expect("no panic");
        let mut at = 0;
        while batch.datagrams.len() < BATCH_DATAGRAMS
            && let Some((from, bytes)) = queues.arrive[usize::from(self.end)].pop_front()
        {
            let range = at..at + bytes.len();
            at = range.end;
            batch.bytes[range.clone()].copy_from_slice(&bytes);
            batch.datagrams.push(Received { from, range, marked: false });
            if at + 4096 > batch.bytes.len() {
                return;
            }
        }
    }

    fn may_have_arrivals(&self) -> bool {
        !self.queues.lock().expect("no panic").arrive[usize::from(self.end)].is_empty()
    }

    fn now(&self) -> Instant {
        let mut now = self.now.lock().expect("no panic");
        *now += 100; // each look takes time, so that a wait ends
        Instant(*now)
    }

    fn wait(&mut self, until: Instant) {
        let mut now = self.now.lock().expect("no panic");
        *now = until.0.max(*now);
    }

    fn bell(&self) -> Arc<dyn Bell> {
        Arc::new(NoBell)
    }
}

/// What happens to a datagram, or beside it.
#[derive(Clone, Debug)]
enum Change {
    None,
    Lose,
    Repeat,
    Flip {
        bit: usize,
    },
    Cut {
        bytes: usize,
    },
    Grow {
        bytes: Vec<u8>,
    },
    /// The first bytes of it, and then others.
    Graft {
        at: usize,
        bytes: Vec<u8>,
    },
    Random {
        bytes: Vec<u8>,
        from: u8,
    },
    /// It comes back to its sender.
    Reflect,
}

fn change() -> impl Strategy<Value = Change> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..300);
    prop_oneof![
        8 => Just(Change::None),
        1 => Just(Change::Lose),
        1 => Just(Change::Repeat),
        2 => any::<usize>().prop_map(|bit| Change::Flip { bit }),
        1 => (0_usize..1500).prop_map(|bytes| Change::Cut { bytes }),
        1 => bytes().prop_map(|bytes| Change::Grow { bytes }),
        2 => (0_usize..60, bytes()).prop_map(|(at, bytes)| Change::Graft { at, bytes }),
        2 => (bytes(), 0_u8..4).prop_map(|(bytes, from)| Change::Random { bytes, from }),
        1 => Just(Change::Reflect),
    ]
}

fn apply(change: &Change, from: u8, to: u8, bytes: &[u8], queues: &mut UnderWay) {
    let mut deliver = |to: u8, from: u8, bytes: Vec<u8>| {
        if let Some(queue) = queues.arrive.get_mut(usize::from(to)) {
            queue.push_back((from, bytes));
        }
    };
    let whole = bytes.to_vec();
    match change {
        Change::None => deliver(to, from, whole),
        Change::Lose => {}
        Change::Repeat => {
            deliver(to, from, whole.clone());
            deliver(to, from, whole);
        }
        Change::Flip { bit } => {
            let mut changed = whole;
            if !changed.is_empty() {
                let bit = bit % (8 * changed.len());
                changed[bit / 8] ^= 1 << (bit % 8);
            }
            deliver(to, from, changed);
        }
        Change::Cut { bytes: keep } => deliver(to, from, bytes[..bytes.len().min(*keep)].to_vec()),
        Change::Grow { bytes: more } => deliver(to, from, [bytes, more].concat()),
        Change::Graft { at, bytes: other } => {
            deliver(to, from, [&bytes[..bytes.len().min(*at)], other].concat());
        }
        Change::Random { bytes: other, from } => {
            deliver(to, *from, other.clone());
            deliver(to, 1 - to, whole);
        }
        Change::Reflect => {
            deliver(from, to, whole.clone());
            deliver(to, from, whole);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_datagram_makes_a_link_fail_or_hold_more_than_its_bounds(
        changes in proptest::collection::vec(change(), 1..60),
        sizes in proptest::collection::vec(0_u32..40, 40..120),
    ) {
        let (queues, now) = (Queues::default(), Arc::default());
        let options = DatagramOptions { close_ns: 0, ..DatagramOptions::new(QUOTA) };
        let open = |end: u8| {
            let cable = Cable { end, queues: Arc::clone(&queues), now: Arc::clone(&now) };
            End::open(cable, u64::from(end) + 1, options)
        };
        let mut ends = [open(0), open(1)];
        let addresses = [ends[0].link.address(), ends[1].link.address()];
        let mut changes = changes.iter().cycle();
        let mut next = [0; 2];
        for &burst in &sizes {
            for index in 0..2 {
                let other = addresses[1 - index];
                let to = ends[index].peer(&other);
                if ends[index].connect(&other).is_some() {
                    for _ in 0..burst {
                        if ends[index].send(to, next[index]).is_ok() {
                            next[index] += 1;
                        }
                    }
                }
                let mut queues = queues.lock().expect("no panic");
                for (from, to, bytes) in std::mem::take(&mut queues.sent) {
                    let change = changes.next().expect("a cycle");
                    apply(change, from, to, &bytes, &mut queues);
                }
                drop(queues);
                *now.lock().expect("no panic") += 50_000;
                while ends[index].link.may_have_arrivals() {
                    ends[index].poll();
                }
                ends[index].poll();
            }
        }
        for (index, mut end) in ends.into_iter().enumerate() {
            // Everything that has arrived is whole, and in order.
            let from = end.peer(&addresses[1 - index]);
            end.check_received(from, 2 - index as u64, &mut 0);
            prop_assert!(end.lost.is_empty(), "{:?}", end.lost);
            // Both windows, of bundles that arrive and of those that wait for acknowledgements.
            prop_assert!(end.link.mailbox_bytes() <= 256 * 2 * DATAGRAM_BYTES as u64);
            prop_assert!(end.link.copy_bytes() <= (256 + 256) * DATAGRAM_BYTES);
        }
    }

    #[test]
    fn random_datagrams_leave_no_trace(
        datagrams in proptest::collection::vec(
            (0_u8..4, proptest::collection::vec(any::<u8>(), 0..DATAGRAM_BYTES)), 1..200,
        ),
    ) {
        let queues = Queues::default();
        let cable = Cable { end: 0, queues: Arc::clone(&queues), now: Arc::default() };
        let base = weir_link::Address::new(1, [1; 16]);
        let mut link = DatagramLink::open(&base, cable, DatagramOptions::new(QUOTA));
        let count = datagrams.len() as u64;
        queues.lock().expect("no panic").arrive[0].extend(datagrams);
        while link.may_have_arrivals() {
            prop_assert!(link.poll().is_none());
        }
        let drops = link.counters();
        prop_assert_eq!(drops.foreign + drops.forged + drops.malformed, count);
        prop_assert_eq!((link.mailbox_bytes(), link.copy_bytes(), link.report().open_paths), (0, 0, 0));
    }
}
