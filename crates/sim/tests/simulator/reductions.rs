//! Offloaded reductions in the simulator, on the processors of ranks and on their NICs: the bits of results, timers, lost
//! members, bounds and prices.
//!
//! `WEIR_SEED=7f3a cargo test -p weir-sim --test simulator NAME` repeats one random world; `WEIR_WORLDS=10000` runs more.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::support::{SCHEMES, spec};
use fastrand::Rng;
use weir_proto::offload::group::MAX_ROUNDS;
use weir_proto::offload::reduce::MAX_VECTOR_BYTES;
use weir_proto::offload::{Combination, WordOperation, WordType};
use weir_proto::{Geometry, PeerFault, Scheme};
use weir_sim::cost::NicCost;
use weir_sim::network::ideal::Ideal;
use weir_sim::program::{Program, Rank, Status};
use weir_sim::world::faults::{Crash, Faults};
use weir_sim::world::{Report, World, WorldError, WorldSpec};

const NS: u64 = 1000;
const US: u64 = 1_000_000;
const GROUP: u32 = 9;
const STATIC: Scheme = Scheme::Static { piggyback: false };
const SUM: Combination = Combination { operation: WordOperation::Sum, word_type: WordType::F64 };
const NIC: NicCost = NicCost {
    packet_send_ps: 200 * NS,
    packet_receive_ps: 300 * NS,
    copy_ps_per_kib: 100 * NS,
    float_combine_ps_per_kib: 5 * US,
    ..NicCost::FREE
};

/// Where the machines run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Host,
    Nic,
}

const PLACES: [Place; 2] = [Place::Host, Place::Nic];

fn world(ranks: u32, scheme: Scheme, place: Place, program: impl Fn(Rank) -> Program) -> World<Ideal> {
    let nic = (place == Place::Nic).then_some(NIC);
    let spec = WorldSpec { nic, machines_on_nic: nic.is_some(), ..spec(ranks, scheme) };
    World::new(spec, Ideal::with_geometry(US, 100, Geometry::EXTOLL), program).checked(true)
}

/// The rule, apart from the code under test: one rank after the other.
fn reduced(combination: Combination, vectors: &[Vec<u8>]) -> Vec<u8> {
    let (first, others) = vectors.split_first().expect("a member");
    others.iter().fold(first.clone(), |mut left, right| {
        combination.combine(&mut left, right);
        left
    })
}

/// A vector of floats of different sizes, so that another order gives other bits.
fn floats(rng: &mut Rng, words: usize) -> Vec<u8> {
    (0..words).flat_map(|_| (rng.f64() * f64::from(1 << rng.u32(..30))).to_ne_bytes()).collect()
}

/// What members have got: by rank and number of the reduction.
type Ends = Rc<RefCell<BTreeMap<(u32, usize), (Status, Vec<u8>)>>>;

/// Each rank reduces its vectors, which `vectors` has by number and rank, up to `ahead` of them at a time.
fn reduces(vectors: &Rc<Vec<Vec<Vec<u8>>>>, ahead: usize, ends: &Ends) -> impl Fn(Rank) -> Program + use<> {
    let (vectors, ends) = (vectors.clone(), ends.clone());
    move |rank: Rank| -> Program {
        let (vectors, ends) = (vectors.clone(), ends.clone());
        Box::pin(async move {
            let (me, members): (_, Vec<u32>) = (rank.rank(), (0..rank.size()).collect());
            assert!(!rank.join_group(GROUP, &members, None).await.refused);
            for (batch, numbers) in (0..vectors.len()).collect::<Vec<_>>().chunks(ahead).enumerate() {
                let start = |&number: &usize| rank.ireduce(GROUP, SUM, vectors[number][me as usize].clone());
                let started: Vec<_> = numbers.iter().map(start).collect();
                for (place, reduction) in started.into_iter().enumerate() {
                    let end = rank.ended(reduction).await;
                    ends.borrow_mut().insert((me, batch * ahead + place), end);
                }
            }
        })
    }
}

fn assert_reduced(vectors: &[Vec<Vec<u8>>], ends: &Ends) {
    let ends = ends.borrow();
    assert_eq!(ends.len(), vectors.len() * vectors[0].len());
    for ((rank, number), (status, vector)) in ends.iter() {
        assert_eq!((status.fault, status.refused), (None, false), "reduction {number} at {rank}");
        let expected = match rank {
            0 => reduced(SUM, &vectors[*number]),
            _ => vectors[*number][*rank as usize].clone(),
        };
        assert_eq!(*vector, expected, "reduction {number} at {rank}");
    }
}

#[test]
fn sixty_four_ranks_reduce_to_the_bits_of_the_reference_order_on_hosts_and_on_nics() {
    const RANKS: usize = 64;
    let mut rng = Rng::with_seed(0x64);
    let lengths = [1, 40, 0, MAX_VECTOR_BYTES as usize / 8, 7];
    let vectors = lengths.map(|words| (0..RANKS).map(|_| floats(&mut rng, words)).collect::<Vec<_>>());
    let vectors = Rc::new(vectors.to_vec());
    let mut rotated = vectors[1].clone();
    rotated.rotate_left(1);
    let in_order = reduced(SUM, &vectors[1]);
    assert_ne!(reduced(SUM, &rotated), in_order, "another order gives other bits");
    for scheme in SCHEMES {
        for place in PLACES {
            let run = || {
                let ends = Ends::default();
                let report = world(RANKS as u32, scheme, place, reduces(&vectors, 3, &ends)).run();
                let report = report.unwrap_or_else(|error| panic!("{scheme:?}, {place:?}: {error}"));
                assert_reduced(&vectors, &ends);
                report
            };
            let (first, second) = (run(), run());
            assert_eq!(
                (first.trace, first.finished),
                (second.trace, second.finished),
                "{scheme:?}, {place:?}"
            );
        }
    }
}

#[test]
fn a_thousand_ranks_reduce_on_hosts_and_on_nics() {
    let mut rng = Rng::with_seed(0x1024);
    let vectors = Rc::new(vec![(0..1024).map(|_| floats(&mut rng, 9)).collect::<Vec<_>>()]);
    for place in PLACES {
        let ends = Ends::default();
        world(1024, STATIC, place, reduces(&vectors, 1, &ends)).run().expect("ends");
        assert_reduced(&vectors, &ends);
    }
}

#[test]
fn reductions_beyond_the_bound_wait_and_end_in_order() {
    let mut rng = Rng::with_seed(3);
    let count = 4 * MAX_ROUNDS as usize;
    let draw = |rng: &mut Rng| (0..5).map(|_| floats(rng, 3)).collect::<Vec<_>>();
    let vectors = Rc::new((0..count).map(|_| draw(&mut rng)).collect::<Vec<_>>());
    for place in PLACES {
        let ends = Ends::default();
        world(5, STATIC, place, reduces(&vectors, count, &ends)).run().expect("ends");
        assert_reduced(&vectors, &ends);
    }
}

/// Random groups and lengths, with messages, fetches and computation in between. Both places give the same bits.
#[test]
fn random_worlds_give_the_same_bits_on_hosts_and_on_nics() {
    let text = |name| std::env::var(name).ok();
    let seed = text("WEIR_SEED").map(|seed| u64::from_str_radix(&seed, 16).expect("a hexadecimal seed"));
    let worlds = text("WEIR_WORLDS").map_or(60, |worlds| worlds.parse().expect("a number of worlds"));
    let seeds = seed.map_or(0..worlds, |seed| seed..seed + 1);
    for seed in seeds {
        let mut rng = Rng::with_seed(seed);
        let (ranks, count) = (rng.u32(1..12), rng.usize(1..9));
        let scheme = SCHEMES[rng.usize(..SCHEMES.len())];
        let mut members: Vec<u32> = (0..ranks).collect();
        rng.shuffle(&mut members);
        members.truncate(rng.usize(1..=ranks as usize));
        let draw = |rng: &mut Rng| {
            let words = [0, 1, rng.usize(..20), rng.usize(..513)][rng.usize(..4)];
            members.iter().map(|_| floats(rng, words)).collect::<Vec<_>>()
        };
        let vectors = Rc::new((0..count).map(|_| draw(&mut rng)).collect::<Vec<_>>());
        let members = Rc::new(members);
        let results = PLACES.map(|place| {
            let (ends, fetched) = (Ends::default(), Rc::new(RefCell::new(Vec::new())));
            let program = |rank: Rank| -> Program {
                let (members, vectors, ends) = (members.clone(), vectors.clone(), ends.clone());
                let fetched = fetched.clone();
                Box::pin(async move {
                    let (me, size) = (rank.rank(), rank.size());
                    let mut rng = Rng::with_seed(seed ^ u64::from(me) << 32);
                    let next = (me + 1) % size;
                    let before = (me + size - 1) % size;
                    let place = members.iter().position(|&member| member == me);
                    if place.is_some() {
                        rank.join_group(GROUP, &members, None).await;
                    }
                    let mut started = Vec::new();
                    for vectors in vectors.iter() {
                        if rng.bool() {
                            rank.compute(rng.u64(..30 * US));
                        }
                        if let Some(place) = place {
                            started.push(rank.ireduce(GROUP, SUM, vectors[place].clone()));
                        }
                        rank.sendrecv(next, before, 1, 700, 700).await;
                        if me > 0 {
                            let old = rank.fetch_add(0, 5, 1).await;
                            fetched.borrow_mut().push(old);
                        }
                    }
                    for (number, reduction) in started.into_iter().enumerate() {
                        let end = rank.ended(reduction).await;
                        ends.borrow_mut().insert((place.expect("a member") as u32, number), end);
                    }
                })
            };
            let run = world(ranks, scheme, place, program).run();
            run.unwrap_or_else(|error| panic!("WEIR_SEED={seed:x} {scheme:?}, {place:?}: {error}"));
            assert_reduced(&vectors, &ends);
            let mut fetched = fetched.borrow().clone();
            fetched.sort_unstable();
            assert_eq!(fetched, (0..u64::from(ranks - 1) * count as u64).collect::<Vec<_>>());
            ends.borrow().clone()
        });
        assert_eq!(results[0], results[1], "WEIR_SEED={seed:x}");
    }
}

/// Rank 3 never joins. The group has a time limit.
#[test]
fn a_timer_ends_reductions_that_wait_for_a_missing_member_under_every_scheme() {
    const PATIENCE_NS: u64 = 50_000;
    for scheme in SCHEMES {
        for place in PLACES {
            let faults = Rc::new(RefCell::new(BTreeMap::new()));
            let program = |rank: Rank| -> Program {
                let faults = faults.clone();
                Box::pin(async move {
                    if rank.rank() == 3 {
                        return;
                    }
                    rank.join_group(GROUP, &[0, 1, 2, 3, 4], Some(PATIENCE_NS)).await;
                    let reduction = rank.ireduce(GROUP, SUM, vec![0; 16]);
                    let (status, _) = rank.ended(reduction).await;
                    faults.borrow_mut().insert(rank.rank(), status.fault);
                })
            };
            let report = world(5, scheme, place, program).run();
            let report = report.unwrap_or_else(|error| panic!("{scheme:?}, {place:?}: {error}"));
            // Nobody sends a vector before all have joined.
            let late = Some(PeerFault::NotReady);
            let expected = BTreeMap::from([(0, late), (1, late), (2, late), (4, late)]);
            assert_eq!(*faults.borrow(), expected, "{scheme:?}, {place:?}");
            let waited_us = report.finished_at / US;
            assert!((50..90).contains(&waited_us), "{scheme:?}, {place:?}: {waited_us} us");
        }
    }
}

/// Rank `victim` crashes while all reduce. Returns what the members have got.
fn crash(scheme: Scheme, place: Place, victim: u32, at: u64) -> (Report, Ends) {
    let ends = Ends::default();
    let of_all = ends.clone();
    let program = move |rank: Rank| -> Program {
        let ends = of_all.clone();
        Box::pin(async move {
            let members: Vec<u32> = (0..rank.size()).collect();
            rank.join_group(GROUP, &members, None).await;
            for number in 0..200 {
                let own = f64::from(rank.rank() + 1).to_ne_bytes().repeat(10);
                let reduction = rank.ireduce(GROUP, SUM, own);
                let end = rank.ended(reduction).await;
                let is_last = end.0.fault.is_some();
                ends.borrow_mut().insert((rank.rank(), number), end);
                if is_last {
                    return;
                }
            }
        })
    };
    let crashes = vec![Crash { rank: victim, at }];
    let faults = Faults { crashes, notice_ps: 30 * US, ..Faults::default() };
    let world = world(7, scheme, place, program).with_faults(&faults).expect("a rank of the world");
    let report = world.run().unwrap_or_else(|error| panic!("{scheme:?}, {place:?}, {victim}, {at}: {error}"));
    (report, ends)
}

#[test]
fn a_crashed_member_ends_the_reductions_of_all_others_on_hosts_and_on_nics() {
    let sum = f64::from(7 * 8 / 2).to_ne_bytes().repeat(10);
    for scheme in SCHEMES {
        for place in PLACES {
            for (victim, at) in [(0, 90 * US), (3, 100 * US), (4, 0), (6, 60 * US + 77)] {
                let (report, ends) = crash(scheme, place, victim, at);
                let what = format!("{scheme:?}, {place:?}, rank {victim} at {at}");
                let ends = ends.borrow();
                for member in (0..7).filter(|&member| member != victim) {
                    let of_member = ends.range((member, 0)..(member + 1, 0));
                    let (_, (last, _)) = of_member.clone().last().unwrap_or_else(|| panic!("{what}"));
                    assert_eq!(
                        (last.fault, last.source),
                        (Some(PeerFault::Died), victim),
                        "{what}: {member}"
                    );
                    let mut done = of_member.filter(|(_, (status, _))| status.fault.is_none());
                    assert!(member > 0 || done.all(|(_, (_, vector))| *vector == sum), "{what}");
                }
                assert_eq!(report.trace, crash(scheme, place, victim, at).0.trace, "{what}");
            }
        }
    }
}

/// A fetch of a word of a crashed rank ends with its fault, on both sides of the notice.
#[test]
fn fetches_from_a_crashed_rank_end_with_its_fault() {
    for place in PLACES {
        let faults = Rc::new(RefCell::new(Vec::new()));
        let program = |rank: Rank| -> Program {
            let faults = faults.clone();
            Box::pin(async move {
                while rank.rank() == 1 {
                    let handle = rank.ifetch(0, 1, WordOperation::Sum, 1);
                    let status = rank.wait(handle).await;
                    if status.fault.is_some() {
                        faults.borrow_mut().push(status.fault);
                        let again = rank.ifetch(0, 1, WordOperation::Sum, 1);
                        let status = rank.wait(again).await;
                        faults.borrow_mut().push(status.fault);
                        return;
                    }
                }
                rank.recv(Some(1), 0, 0).await;
            })
        };
        let crashes = vec![Crash { rank: 0, at: 50 * US }];
        let faults_of_ranks = Faults { crashes, notice_ps: 20 * US, ..Faults::default() };
        let world = world(2, STATIC, place, program).with_faults(&faults_of_ranks).expect("a rank");
        world.run().expect("ends");
        assert_eq!(*faults.borrow(), [Some(PeerFault::Died); 2], "{place:?}");
    }
}

/// Rank 1 begins with another vector than rank 0.
fn different_vectors(scheme: Scheme, place: Place) -> (Result<Report, WorldError>, Vec<Option<PeerFault>>) {
    let faults = Rc::new(RefCell::new(vec![None; 2]));
    let of_all = faults.clone();
    let program = move |rank: Rank| -> Program {
        let faults = of_all.clone();
        Box::pin(async move {
            rank.join_group(GROUP, &[0, 1], None).await;
            let bytes = 8 * (1 + rank.rank() as usize);
            let reduction = rank.ireduce(GROUP, SUM, vec![0; bytes]);
            let (status, _) = rank.ended(reduction).await;
            faults.borrow_mut()[rank.rank() as usize] = status.fault;
        })
    };
    let report = world(2, scheme, place, program).run();
    let faults = faults.borrow().clone();
    (report, faults)
}

#[test]
fn members_that_start_different_reductions_are_an_error_or_lost() {
    let may_give_up = Scheme::Hardware { rnr_timer_ns: 10_000, rnr_retries: 6 };
    for place in PLACES {
        let (report, _) = different_vectors(STATIC, place);
        assert!(
            matches!(report, Err(WorldError::Rejected { rank: 0, from: 1, .. })),
            "{place:?}: {report:?}"
        );
        let (report, faults) = different_vectors(may_give_up, place);
        assert!(report.is_ok(), "{place:?}: {report:?}");
        assert_eq!(faults, [Some(PeerFault::Malformed), Some(PeerFault::Unreachable)], "{place:?}");
    }
}

#[test]
fn a_reduction_without_group_or_with_a_bad_vector_is_refused() {
    for place in PLACES {
        let program = |rank: Rank| -> Program {
            Box::pin(async move {
                let start = |bytes, combination| rank.ireduce(GROUP, combination, vec![0; bytes]);
                assert!(rank.ended(start(8, SUM)).await.0.refused, "no group");
                assert!(!rank.join_group(GROUP, &[rank.rank()], None).await.refused);
                assert!(rank.join_group(GROUP, &[rank.rank()], None).await.refused, "a second one");
                assert!(rank.ended(start(7, SUM)).await.0.refused, "no whole element");
                let too_long = MAX_VECTOR_BYTES as usize + 8;
                assert!(rank.ended(start(too_long, SUM)).await.0.refused, "too long");
                let compare = Combination { operation: WordOperation::CompareSwap, ..SUM };
                assert!(rank.ended(start(8, compare)).await.0.refused, "not a combination");
                assert!(!rank.ended(start(8, SUM)).await.0.refused);
                rank.leave_group(GROUP).await;
                assert!(rank.ended(start(8, SUM)).await.0.refused, "no group any more");
            })
        };
        world(2, STATIC, place, program).run().expect("ends");
    }
}

#[test]
fn a_nic_combines_while_its_rank_computes_and_for_its_own_price() {
    let compute_ps = 5000 * US;
    let finished = |place, nic: NicCost| {
        let program = |rank: Rank| -> Program {
            Box::pin(async move {
                rank.join_group(GROUP, &[0, 1], None).await;
                let reduction = rank.ireduce(GROUP, SUM, vec![0; 1024]);
                if rank.rank() == 0 {
                    rank.compute(compute_ps);
                }
                rank.ended(reduction).await;
            })
        };
        let nic = (place == Place::Nic).then_some(nic);
        let spec = WorldSpec { nic, machines_on_nic: nic.is_some(), ..spec(2, STATIC) };
        let network = Ideal::with_geometry(US, 100, Geometry::EXTOLL);
        World::new(spec, network, program).checked(true).run().expect("ends").finished
    };
    let (on_host, on_nic) = (finished(Place::Host, NIC), finished(Place::Nic, NIC));
    assert!(on_host[1] > compute_ps, "{on_host:?}");
    assert!(on_nic[1] < compute_ps / 10, "{on_nic:?}");
    let float_combine_ps_per_kib = NIC.float_combine_ps_per_kib + 7 * US;
    let dearer = finished(Place::Nic, NicCost { float_combine_ps_per_kib, ..NIC });
    let later = dearer[1] - on_nic[1];
    assert!((6 * US..=7 * US).contains(&later), "one KiB is combined for 7 us more: {later} ps");
    let integers = finished(Place::Nic, NicCost { combine_ps_per_kib: 7 * US, ..NIC });
    assert_eq!(integers, on_nic, "the price of integers is not that of floats");
}

#[test]
fn the_processor_of_a_rank_takes_time_to_combine() {
    let finished = |combine_ps_per_kib| {
        let program = |rank: Rank| -> Program {
            Box::pin(async move {
                rank.join_group(GROUP, &[0, 1], None).await;
                let reduction = rank.ireduce(GROUP, SUM, vec![0; 2048]);
                rank.ended(reduction).await;
            })
        };
        let mut spec = spec(2, STATIC);
        spec.cost.combine_ps_per_kib = combine_ps_per_kib;
        let network = Ideal::with_geometry(US, 100, Geometry::EXTOLL);
        World::new(spec, network, program).run().expect("ends").finished[0]
    };
    let later = finished(100 * US) - finished(0);
    assert!((150 * US..=200 * US).contains(&later), "two KiB for 100 us each: {later} ps");
}
