//! Tests of jobs whose ranks are threads of this process, over shared memory.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::Instant;

use super::*;
use crate::{MAX_ATOMICS, MAX_JOINED_GROUPS, Place, Request, WordOperation};

/// Where the ranks of a job meet in memory.
struct Meeting {
    blocks: Mutex<Vec<Vec<u8>>>,
    all: Barrier,
}

impl Meeting {
    fn of(size: usize) -> Arc<Meeting> {
        Arc::new(Meeting { blocks: Mutex::new(vec![Vec::new(); size]), all: Barrier::new(size) })
    }

    fn exchange(self: &Arc<Meeting>, rank: usize) -> Exchange {
        let meeting = Arc::clone(self);
        Exchange::Call(Box::new(move |block| {
            meeting.blocks.lock().unwrap()[rank] = block.to_vec();
            meeting.all.wait();
            let blocks = meeting.blocks.lock().unwrap().concat();
            meeting.all.wait(); // before anybody writes the next one
            Ok(blocks)
        }))
    }
}

/// Runs `rank` with the endpoint of each rank, in a thread each. Returns their results.
fn job_of<R: Send>(size: u32, automatic_progress: bool, rank: impl Fn(Endpoint) -> R + Sync) -> Vec<R> {
    job_with(size, automatic_progress, |_| true, rank)
}

/// The same. `collectives`: whether a rank offers node groups.
fn job_with<R: Send>(
    size: u32,
    automatic_progress: bool,
    collectives: impl Fn(u32) -> bool,
    rank: impl Fn(Endpoint) -> R + Sync,
) -> Vec<R> {
    let settings = |rank| Settings { collectives: collectives(rank), ..Settings::default() };
    job_on(&vec![0; size as usize], automatic_progress, settings, rank)
}

/// The same for ranks on several nodes, which meet over UDP. `nodes`: the node of each rank.
fn job_on<R: Send>(
    nodes: &[usize],
    automatic_progress: bool,
    settings: impl Fn(u32) -> Settings,
    rank: impl Fn(Endpoint) -> R + Sync,
) -> Vec<R> {
    let of_node = |_| tempfile::tempdir_in("/dev/shm").unwrap();
    let directories: Vec<_> = (0..=nodes.iter().copied().max().unwrap_or(0)).map(of_node).collect();
    let (meeting, size) = (Meeting::of(nodes.len()), nodes.len() as u32);
    std::thread::scope(|scope| {
        let start = |number: u32| {
            let (meeting, rank) = (&meeting, &rank);
            let shm_dir = directories[nodes[number as usize]].path().to_owned();
            let settings = Settings { shm_dir, net: Some("lo".into()), ..settings(number) };
            scope.spawn(move || {
                let options = Options {
                    rank_and_size: Some((number, size)),
                    exchange: meeting.exchange(number as usize),
                    automatic_progress,
                    ..Options::default()
                };
                rank(Endpoint::open_with(options, &settings).unwrap())
            })
        };
        let threads: Vec<_> = (0..size).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn at(rank: u32, key: u64, offset: u64) -> Place {
    Place { rank, key, offset }
}

#[test]
fn every_collective_operation_gives_what_a_plain_computation_does() {
    for (size, in_node) in [(1, true), (2, true), (3, false), (3, true), (5, false), (5, true)] {
        job_with(size, false, |_| in_node, every_collective_operation);
    }
}

#[test]
fn every_collective_operation_gives_the_same_on_several_nodes() {
    use AcrossHosts::{Never, WhereShared};
    for (nodes, across, on_levels) in [
        (&[0, 0, 1, 1, 0][..], WhereShared, 1),
        (&[0, 1, 1], WhereShared, 1),
        (&[0, 1, 2], WhereShared, 0),
        (&[0, 1, 1, 0], Never, 0),
    ] {
        let settings = |_| Settings { collectives_across: across, ..Settings::default() };
        job_on(nodes, false, settings, |endpoint| {
            let found = endpoint.shared().with(|inner| Ok(inner.node_groups.on_levels())).unwrap();
            assert_eq!(found, on_levels, "{nodes:?}, {across:?}");
            every_collective_operation(endpoint);
        });
    }
}

fn every_collective_operation(endpoint: Endpoint) {
    let world = endpoint.world().unwrap();
    let rank = world.rank();
    let size = world.size();
    assert_eq!((rank, size), (endpoint.rank(), endpoint.size()));
    for count in [0_usize, 1, 7, 5000] {
        let vector = |rank: u32| -> Vec<f64> {
            (0..count).map(|place| (place as f64 + 0.1) * 10_f64.powi(4 * rank as i32)).collect()
        };
        let mine = vector(rank);
        let maximum: Vec<f64> = vector(size - 1);
        for root in 0..size {
            world.barrier().unwrap();
            let mut data = mine.clone();
            world.broadcast(root, &mut data).unwrap();
            assert_eq!(data, vector(root));
            let least = world.reduce(root, WordOperation::Min, &mine).unwrap();
            assert_eq!(least, (rank == root).then(|| vector(0)));
            let words: Vec<u32> = (0..count as u32).map(|place| place + rank).collect();
            let sum = world.start_reduce(root, WordOperation::Sum, &words).unwrap().wait().unwrap();
            let expected = |place: u32| (0..size).map(|rank| place + rank).sum::<u32>();
            assert_eq!(sum, (rank == root).then(|| (0..count as u32).map(expected).collect()));
        }
        assert_eq!(world.all_reduce(WordOperation::Max, &mine).unwrap(), maximum);
        let bytes: Vec<u16> = (0..count as u16).map(|place| place + rank as u16).collect();
        let all = world.all_gather(&bytes).unwrap();
        let expected = (0..size).flat_map(|rank| (0..count as u16).map(move |place| place + rank as u16));
        assert!(all.into_iter().eq(expected));
    }
    endpoint.close().unwrap();
}

#[test]
fn operations_under_way_together_keep_their_order() {
    for (nodes, collectives) in [([0, 0, 0], true), ([0, 0, 0], false), ([1, 0, 1], true)] {
        operations_under_way_together(&nodes, collectives);
    }
}

fn operations_under_way_together(nodes: &[usize], collectives: bool) {
    const LONG: usize = 5000; // by messages, beside a node group too
    job_on(
        nodes,
        false,
        |_| Settings { collectives, ..Settings::default() },
        |endpoint| {
            let world = endpoint.world().unwrap();
            let mut sums: Vec<Request<Vec<u64>>> = Vec::new();
            let mut long: Vec<Request<Vec<u64>>> = Vec::new();
            for number in 0..20 {
                sums.push(
                    world.start_all_reduce(WordOperation::Sum, &[number + u64::from(world.rank())]).unwrap(),
                );
                drop(world.start_barrier().unwrap()); // it ends by itself
                drop(world.start_broadcast(1, &[number; 1000]).unwrap());
                long.push(world.start_broadcast(2, &[number + 100 * u64::from(world.rank()); LONG]).unwrap());
            }
            assert!(sums.first_mut().unwrap().test().is_ok());
            for (number, sum) in (0..).zip(sums) {
                assert_eq!(sum.wait().unwrap(), [3 * number + 3]);
            }
            for (number, long) in (200..).zip(long) {
                assert_eq!(long.wait().unwrap(), [number; LONG]);
            }
            endpoint.close().unwrap();
        },
    );
}

#[test]
fn groups_have_their_order_and_their_numbers_are_used_again() {
    job_of(4, false, |endpoint| {
        let rank = endpoint.rank();
        let pair = if rank < 2 { [1, 0] } else { [3, 2] };
        for repeat in 0..2 * MAX_JOINED_GROUPS as u64 {
            let group = endpoint.group(&pair).unwrap();
            assert_eq!((group.ranks(), group.rank(), group.size()), (&pair[..], (rank + 1) % 2, 2));
            assert_eq!(
                group.all_gather(&[u64::from(rank) + repeat]).unwrap(),
                pair.map(|it| u64::from(it) + repeat)
            );
        }
        let many: Vec<_> = (1..MAX_JOINED_GROUPS).map(|_| endpoint.group(&pair).unwrap()).collect();
        let error = endpoint.group(&pair).map(|_| ()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("number of groups {MAX_JOINED_GROUPS}: allowed")), "{error}");
        drop(many);
        let alone = endpoint.group(&[rank]).unwrap();
        alone.barrier().unwrap();
        assert_eq!(alone.all_reduce(WordOperation::Sum, &[rank]).unwrap(), [rank]);
        assert_eq!(alone.reduce(0, WordOperation::Xor, &[7_i64]).unwrap(), Some(vec![7]));
        let two = [endpoint.group(&[2, 0, 1, 3]).unwrap(), endpoint.group(&[3, 1, 0, 2]).unwrap()];
        let sums =
            two.each_ref().map(|group| group.start_all_reduce(WordOperation::Sum, &[group.rank()]).unwrap());
        assert!(sums.into_iter().all(|sum| sum.wait().unwrap() == [6]));
        endpoint.close().unwrap();
    });
}

#[test]
fn each_fetch_gets_what_the_one_before_has_left() {
    const TIMES: u64 = 200;
    let fetched = job_of(3, false, |endpoint| {
        let world = endpoint.world().unwrap();
        let segment = endpoint.expose(9, 2).unwrap();
        world.barrier().unwrap();
        let mut old: Vec<u64> = Vec::new();
        for number in 0..TIMES {
            old.push(endpoint.fetch_add(at(1, 9, 0), 1_u64).unwrap());
            if number % 2 == 0 {
                let request =
                    endpoint.start_atomic_without_fetch(at(2, 9, 8), WordOperation::Sum, 3_u64).unwrap();
                request.wait().unwrap();
            }
        }
        world.barrier().unwrap();
        assert_eq!(endpoint.load::<u64>(at(1, 9, 0)).unwrap(), 3 * TIMES);
        assert_eq!(endpoint.load::<u64>(at(2, 9, 8)).unwrap(), 3 * 3 * TIMES / 2);
        if endpoint.rank() == 1 {
            assert_eq!(segment.words()[0].load(Ordering::SeqCst), 3 * TIMES);
        }
        world.barrier().unwrap();
        endpoint.close().unwrap();
        old
    });
    let all: BTreeSet<u64> = fetched.concat().into_iter().collect();
    assert!(all.into_iter().eq(0..3 * TIMES), "no value twice, none lost");
}

#[test]
fn words_of_each_type_change_at_any_rank() {
    job_of(2, false, |endpoint| {
        let world = endpoint.world().unwrap();
        let other = 1 - endpoint.rank();
        let _segment = endpoint.expose(u64::MAX, 8).unwrap();
        world.barrier().unwrap();
        for rank in [other, endpoint.rank()] {
            let place = |offset| at(rank, u64::MAX, offset + 32 * u64::from(endpoint.rank()));
            assert_eq!(endpoint.swap(place(0), 5_i64).unwrap(), 0);
            assert_eq!(endpoint.compare_swap(place(0), 4, -1_i64).unwrap(), 5, "it differs");
            assert_eq!(endpoint.compare_swap(place(0), 5, -1_i64).unwrap(), 5);
            assert_eq!(endpoint.atomic(place(0), WordOperation::Max, 3_i64, None).unwrap(), -1);
            assert_eq!(endpoint.load::<i64>(place(0)).unwrap(), 3);
            endpoint.store(place(8), 1.5_f64).unwrap();
            assert_eq!(endpoint.fetch_add(place(8), 0.25_f64).unwrap(), 1.5);
            endpoint.store(place(16), u32::MAX).unwrap();
            assert_eq!(endpoint.fetch_add(place(16), 2_u32).unwrap(), u32::MAX);
            assert_eq!(endpoint.load::<u64>(place(16)).unwrap(), 1, "the upper half is not touched");
            assert_eq!(endpoint.swap(place(20), 2.0_f32).unwrap(), 0.0);
            world.barrier().unwrap();
        }
        endpoint.close().unwrap();
    });
}

#[test]
fn bytes_of_any_number_are_put_and_got() {
    const WORDS: usize = 1 << 17;
    job_of(2, false, |endpoint| {
        let world = endpoint.world().unwrap();
        let (rank, other) = (endpoint.rank(), 1 - endpoint.rank());
        let segment = endpoint.expose(3, WORDS).unwrap();
        world.barrier().unwrap();
        for target in [other, rank] {
            for count in [0, 1, 100, 2000, WORDS] {
                let data: Vec<u64> = (0..count as u64).map(|place| place * 3 + u64::from(rank)).collect();
                let offset = 8 * (WORDS - count) as u64;
                endpoint.put(at(target, 3, offset), &data).unwrap();
                assert_eq!(endpoint.get::<u64>(at(target, 3, offset), count).unwrap(), data);
                let under_way = endpoint.start_get::<u8>(at(target, 3, offset), 8 * count.min(1)).unwrap();
                let first = data.first().map_or(vec![], |word| word.to_le_bytes().to_vec());
                assert_eq!(under_way.wait().unwrap(), first);
                world.barrier().unwrap();
            }
            let last = segment.words()[WORDS - 1].load(Ordering::SeqCst);
            assert_eq!(last, (WORDS as u64 - 1) * 3 + u64::from(if target == other { other } else { rank }));
            world.barrier().unwrap();
        }
        endpoint.close().unwrap();
    });
}

#[test]
fn what_is_not_allowed_is_named() {
    job_of(2, false, |endpoint| {
        let world = endpoint.world().unwrap();
        let rank = endpoint.rank();
        let segment = endpoint.expose(1, 2).unwrap();
        world.barrier().unwrap();
        let text = |result: Result<u64, Error>| result.unwrap_err().to_string();
        assert_eq!(text(endpoint.fetch_add(at(2, 1, 0), 1)), "rank 2: allowed are 0 to 1");
        assert_eq!(text(endpoint.fetch_add(at(0, 1, 4), 1)), "offset 4: allowed are multiples of 8 for U64");
        let on_floats = endpoint.atomic(at(0, 1, 0), WordOperation::Xor, 1.0, None);
        assert!(on_floats.unwrap_err().to_string().starts_with("operation Xor on F64: "));
        for place in [at(1 - rank, 1, 16), at(1 - rank, 2, 0), at(rank, 1, u64::MAX - 7)] {
            let refused = endpoint.fetch_add(place, 1_u64);
            assert!(
                matches!(refused, Err(Error::Refused { offset, .. }) if offset == place.offset),
                "{refused:?}"
            );
            let refused = endpoint.put(place, &[1_u64]);
            assert!(matches!(refused, Err(Error::Refused { key, .. }) if key == place.key), "{refused:?}");
            let refused = endpoint.get::<u8>(place, 8);
            assert!(matches!(refused, Err(Error::Refused { bytes: 8, .. })), "{refused:?}");
        }
        let joined = |ranks: &[u32]| endpoint.group(ranks).map(|_| ()).unwrap_err().to_string();
        assert_eq!(joined(&[]), "number of members 0: allowed are 1 to 4096");
        assert_eq!(joined(&[rank, 7]), "rank 7: allowed are 0 to 1");
        assert_eq!(joined(&[0, 1, 0]), "member 0: allowed are each rank once");
        let without = format!("members without this rank: allowed are lists with rank {rank} of 2");
        assert_eq!(joined(&[1 - rank]), without);
        let root = world.broadcast(2, &mut [0_u8]).unwrap_err().to_string();
        assert_eq!(root, "root 2: allowed are 0 to 1");
        let operation = world.all_reduce(WordOperation::CompareSwap, &[1]).unwrap_err().to_string();
        assert!(operation.starts_with("operation CompareSwap on I32: allowed are sum, "), "{operation}");
        assert_eq!(endpoint.expose(1, 0).err().unwrap().code(), 2, "the key is in use");
        world.barrier().unwrap();
        drop(segment);
        world.barrier().unwrap();
        assert!(
            matches!(endpoint.load::<u32>(at(1 - rank, 1, 0)), Err(Error::Refused { .. })),
            "no longer there"
        );
        world.barrier().unwrap();
        let late = endpoint.clone();
        endpoint.close().unwrap();
        assert!(matches!(late.progress(), Err(Error::Closed)));
        assert!(matches!(world.barrier(), Err(Error::Closed)));
        assert!(matches!(late.expose(5, 1), Err(Error::Closed)));
        assert!(matches!(late.close(), Err(Error::Closed)));
    });
}

#[test]
fn a_request_is_known_once() {
    job_of(1, false, |endpoint| {
        let world = Arc::clone(&endpoint.owner);
        let start = |inner: &mut Inner| {
            let operation = weir_engine::CollectiveOperation::Barrier;
            inner.start_collective(1, operation, 0, crate::state::Buffers::EMPTY, false)
        };
        let first = world.0.with(start).unwrap();
        assert!(world.0.wait(first).unwrap().is_ok());
        assert_eq!(world.0.test(first).unwrap_err().code(), 2, "it has been waited for");
        let second = world.0.with(start).unwrap();
        assert_ne!(first, second, "another one at the same place");
        assert_eq!(world.0.wait(first).unwrap_err().code(), 2);
        assert!(world.0.wait(second).unwrap().is_ok());
        assert!(
            world
                .0
                .with(|inner| inner.start_collective(
                    2,
                    weir_engine::CollectiveOperation::Barrier,
                    0,
                    crate::state::Buffers::EMPTY,
                    false
                ))
                .is_err()
        );
    });
}

#[test]
fn a_limit_is_an_error_and_nothing_has_started() {
    job_of(2, false, |endpoint| {
        let world = endpoint.world().unwrap();
        let _segment = endpoint.expose(1, 1).unwrap();
        world.barrier().unwrap();
        let other = at(1 - endpoint.rank(), 1, 0);
        let start = || endpoint.start_atomic_without_fetch(other, WordOperation::Sum, 1_u64);
        let started: Vec<Request<()>> = (0..MAX_ATOMICS).map(|_| start().unwrap()).collect();
        let refused = start();
        assert!(matches!(refused, Err(Error::Again { limit, .. }) if limit == u64::from(MAX_ATOMICS)));
        // The blocking form waits for room.
        endpoint.fetch_add(other, 1_u64).unwrap();
        started.into_iter().for_each(|request| request.wait().unwrap());
        world.barrier().unwrap();
        assert_eq!(endpoint.load::<u64>(other).unwrap(), u64::from(MAX_ATOMICS) + 1);
        world.barrier().unwrap();
        endpoint.close().unwrap();
    });
}

#[test]
fn several_threads_of_a_rank_use_one_endpoint() {
    const TIMES: u64 = 100;
    job_of(2, false, |endpoint| {
        let world = endpoint.world().unwrap();
        let _segment = endpoint.expose(1, 1).unwrap();
        let groups = [0, 1, 2].map(|_| endpoint.group(&[1, 0]).unwrap());
        let sums = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for group in &groups {
                let (endpoint, sums) = (&endpoint, &sums);
                scope.spawn(move || {
                    for number in 0..TIMES {
                        endpoint.fetch_add(at(0, 1, 0), 1_u64).unwrap();
                        let sum = group.all_reduce(WordOperation::Sum, &[number]).unwrap();
                        sums.fetch_add(sum[0], Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(sums.into_inner(), 3 * TIMES * (TIMES - 1));
        world.barrier().unwrap();
        assert_eq!(endpoint.load::<u64>(at(0, 1, 0)).unwrap(), 2 * 3 * TIMES);
        world.barrier().unwrap();
        drop(groups);
        endpoint.close().unwrap();
    });
}

#[test]
fn a_rank_that_closes_early_is_an_error_at_all_others() {
    let failed = AtomicU64::new(0);
    let lost = job_of(4, false, |endpoint| {
        let world = endpoint.world().unwrap();
        let _segment = endpoint.expose(1, 1).unwrap();
        let rank = endpoint.rank();
        let others = if rank == 3 { endpoint.group(&[3]) } else { endpoint.group(&[0, 1, 2]) }.unwrap();
        world.barrier().unwrap();
        if rank == 3 {
            // As an error would, without waiting for the others.
            let inner = endpoint.owner.0.with(|inner| {
                inner.groups.clear();
                Ok(())
            });
            inner.unwrap();
            endpoint.close().unwrap();
            return None;
        }
        let error = world.barrier().unwrap_err();
        assert!(matches!(error, Error::Lost { rank: Some(3), .. }), "{error}");
        assert!(matches!(world.all_reduce(WordOperation::Sum, &[1]), Err(Error::Lost { .. })), "for ever");
        let fetched = endpoint.fetch_add(at(3, 1, 0), 1);
        assert!(matches!(fetched, Err(Error::Lost { rank: Some(3), .. })), "{fetched:?}");
        let sum = others.all_reduce(WordOperation::Sum, &[rank]).unwrap();
        // The first comes when another one has failed already.
        while rank == 0 && failed.load(Ordering::Acquire) == 0 {
            endpoint.progress().unwrap();
        }
        let joined = endpoint.group(&[0, 1, 2, 3]).map(|_| ());
        assert!(matches!(joined, Err(Error::Lost { .. })), "nobody joins with it: {joined:?}");
        failed.fetch_add(1, Ordering::Release);
        others.barrier().unwrap();
        endpoint.close().unwrap();
        Some(sum)
    });
    assert_eq!(lost, [Some(vec![3]), Some(vec![3]), Some(vec![3]), None]);
}

#[test]
fn a_lock_lets_one_rank_in_at_a_time() {
    const TIMES: u64 = 100;
    job_of(3, false, |endpoint| {
        let world = endpoint.world().unwrap();
        let segment = endpoint.expose(1, 1).unwrap();
        let group = endpoint.group(&[2, 1, 0]).unwrap();
        let lock = endpoint.lock(&group, 1, 2).unwrap();
        for _ in 0..TIMES {
            lock.acquire().unwrap();
            let seen = endpoint.load::<u64>(at(0, 1, 0)).unwrap();
            endpoint.store(at(0, 1, 0), seen + 1).unwrap();
            lock.release().unwrap();
        }
        assert_eq!(lock.release().unwrap_err().code(), 2);
        lock.close().unwrap();
        if endpoint.rank() == 0 {
            assert_eq!(segment.words()[0].load(Ordering::SeqCst), 3 * TIMES);
        }
        world.barrier().unwrap();
        drop(group);
        endpoint.close().unwrap();
    });
}

#[test]
fn a_lock_whose_holder_has_ended_is_an_error_at_those_that_wait() {
    job_of(3, false, |endpoint| {
        let world = endpoint.world().unwrap();
        let lock = endpoint.lock(&world, 0, 2).unwrap();
        if endpoint.rank() == 2 {
            lock.acquire().unwrap();
            world.barrier().unwrap();
            endpoint
                .owner
                .0
                .with(|inner| {
                    inner.groups.clear(); // as a rank that fails: it does not wait for the others
                    Ok(())
                })
                .unwrap();
            return endpoint.close().unwrap();
        }
        world.barrier().unwrap();
        assert!(matches!(lock.acquire(), Err(Error::Lost { .. })));
        assert!(matches!(lock.acquire(), Err(Error::Lost { .. })), "for good");
        endpoint.close().unwrap();
    });
}

#[test]
fn automatic_progress_answers_while_the_program_computes() {
    job_of(2, true, |endpoint| {
        let world = endpoint.world().unwrap();
        let segment = endpoint.expose(1, 1).unwrap();
        world.barrier().unwrap();
        if endpoint.rank() == 1 {
            let began = Instant::now();
            while segment.words()[0].load(Ordering::Acquire) == 0 {
                assert!(began.elapsed() < Duration::from_secs(60), "nobody answers");
                std::thread::sleep(Duration::from_millis(1)); // no call of weir
            }
        } else {
            assert_eq!(endpoint.fetch_add(at(1, 1, 0), 1_u64).unwrap(), 0);
        }
        world.barrier().unwrap();
        endpoint.close().unwrap();
    });
}

#[test]
fn ranks_that_do_not_fit_together_are_refused() {
    let own = Greeting { rank: 0, size: 2, random: 5, node: 7 };
    let other = |change: fn(&mut Greeting)| {
        let mut greeting = Greeting { rank: 1, random: 9, ..own };
        change(&mut greeting);
        job(&[own.to_bytes(), greeting.to_bytes()], &own)
    };
    let (near, nodes) = other(|_| ()).unwrap();
    assert_eq!(nodes, [7, 7]);
    assert_eq!((near.ranks(), near.spans_nodes()), (Ranks { node: 2, job: 2 }, false));
    let (far, nodes) = other(|it| it.node = 8).unwrap();
    assert_eq!(nodes, [7, 8]);
    assert_eq!((far.ranks(), far.spans_nodes()), (Ranks { node: 1, job: 2 }, true));
    assert!(matches!(other(|it| it.size = 3), Err(ExchangeError::Stranger { rank: 1 })));
    assert!(matches!(other(|it| it.rank = 0), Err(ExchangeError::Stranger { rank: 1 })));
    let job = job(&[own.to_bytes(), [0; GREETING_BYTES]], &own);
    assert!(matches!(job, Err(ExchangeError::Stranger { rank: 1 })));
    for (rank, size, what) in
        [(0, 0, "number of ranks 0"), (2, 2, "rank 2"), (0, 4097, "number of ranks 4097")]
    {
        let options = Options { rank_and_size: Some((rank, size)), ..Options::default() };
        let error = Endpoint::open_with(options, &Settings::default()).err().unwrap().to_string();
        assert!(error.starts_with(what), "{error}");
    }
}

/// Whether this rank has a node group for a group.
fn has_node_group(endpoint: &Endpoint, group: &Group) -> bool {
    let number = group.number();
    endpoint.owner.0.with(|inner| Ok(inner.node_groups.has(number))).unwrap()
}

#[test]
fn members_use_a_node_group_if_all_can() {
    for without in [None, Some(0), Some(2)] {
        let have = job_with(
            3,
            false,
            |rank| without != Some(rank),
            |endpoint| {
                let world = endpoint.world().unwrap();
                let rank = endpoint.rank();
                assert_eq!(world.all_reduce(WordOperation::Sum, &[rank]).unwrap(), [3]);
                let pair = if rank == 2 { endpoint.group(&[2]) } else { endpoint.group(&[1, 0]) }.unwrap();
                assert_eq!(pair.all_gather(&[rank]).unwrap(), pair.ranks());
                let have = (has_node_group(&endpoint, &world), has_node_group(&endpoint, &pair));
                world.barrier().unwrap();
                drop(pair);
                endpoint.close().unwrap();
                have
            },
        );
        let pair = without != Some(0);
        assert_eq!(have, [(without.is_none(), pair), (without.is_none(), pair), (without.is_none(), false)]);
    }
}

#[test]
fn sums_of_floats_have_the_same_bits_in_messages_and_wherever_the_ranks_are() {
    let sums = [([0; 5], true), ([0; 5], false), ([1, 0, 0, 1, 0], true)].map(|(nodes, collectives)| {
        let settings = |_| Settings { collectives, ..Settings::default() };
        job_on(&nodes, false, settings, |endpoint| {
            let world = endpoint.world().unwrap();
            let rank = f64::from(endpoint.rank());
            let sums = [1, 100, 5000].map(|count| {
                let vector: Vec<f64> = (0..count)
                    .map(|place| (f64::from(place) + rank * 7.3).sin() * 10_f64.powf(rank))
                    .collect();
                let all = world.all_reduce(WordOperation::Sum, &vector).unwrap();
                let at_root = world.reduce(3, WordOperation::Product, &vector).unwrap();
                let bits = |vector: Vec<f64>| vector.into_iter().map(f64::to_bits).collect::<Vec<_>>();
                (bits(all), at_root.map(bits))
            });
            endpoint.close().unwrap();
            sums
        })
    });
    assert_eq!(sums[0], sums[1]);
    assert_eq!(sums[0], sums[2]);
}

/// Beside the first member of its node, and as that member.
#[test]
fn a_rank_that_closes_early_is_an_error_at_all_others_on_every_node() {
    for nodes in [[0, 1, 0, 1], [0, 0, 0, 1], [1, 1, 0, 0]] {
        let settings = |_| Settings { peer_timeout: Duration::from_secs(2), ..Settings::default() };
        job_on(&nodes, false, settings, |endpoint| {
            let world = endpoint.world().unwrap();
            world.barrier().unwrap();
            if endpoint.rank() == 3 {
                let inner = endpoint.owner.0.with(|inner| {
                    inner.groups.clear(); // as an error would, without waiting for the others
                    Ok(())
                });
                inner.unwrap();
                return endpoint.close().unwrap();
            }
            for _ in 0..2 {
                let ended = world.all_reduce(WordOperation::Sum, &[1]);
                assert!(matches!(ended, Err(Error::Lost { .. })), "{nodes:?}: {ended:?}");
            }
            let long = world.all_gather(&[1_u64; 5000]);
            assert!(matches!(long, Err(Error::Lost { .. })), "{nodes:?}: by messages too: {long:?}");
            endpoint.close().unwrap();
        });
    }
}

#[test]
fn members_that_choose_different_ways_lose_each_other() {
    for lengths in [[1000, 5000], [5000, 1000], [0, 5000]] {
        job_of(2, false, |endpoint| {
            let world = endpoint.world().unwrap();
            let count = lengths[endpoint.rank() as usize];
            let sent = vec![1_u64; count];
            // The root may have sent all it has before it learns that the other one waits for something else.
            let first = if count == 0 { world.barrier() } else { world.broadcast(0, &mut sent.clone()) };
            let second = world.barrier();
            assert!(
                matches!(first, Err(Error::Lost { .. })) || matches!(second, Err(Error::Lost { .. })),
                "{first:?} {second:?}"
            );
            assert!(matches!(world.all_gather(&sent), Err(Error::Lost { .. })), "for ever");
            endpoint.close().unwrap();
        });
    }
}

#[test]
fn operations_end_although_their_group_and_requests_are_dropped() {
    job_of(3, false, |endpoint| {
        let rank = endpoint.rank();
        let world = endpoint.world().unwrap();
        let group = endpoint.group(&[0, 1, 2]).unwrap();
        let number = group.number();
        world.barrier().unwrap();
        if rank == 0 {
            (0..20).for_each(|_| drop(group.start_all_reduce(WordOperation::Sum, &[1_u64; 100]).unwrap()));
            drop(group);
        } else {
            for _ in 0..20 {
                assert_eq!(group.all_reduce(WordOperation::Sum, &[1_u64; 100]).unwrap(), [3; 100]);
            }
            drop(group);
        }
        world.barrier().unwrap();
        while endpoint.owner.0.with(|inner| Ok(inner.node_groups.has(number))).unwrap() {
            endpoint.progress().unwrap();
        }
        endpoint.close().unwrap();
    });
}

#[test]
fn automatic_progress_moves_parts_in_the_node_segment_while_the_program_computes() {
    const COUNT: usize = 2048; // two parts each
    let received = AtomicU64::new(0);
    job_of(2, true, |endpoint| {
        let world = endpoint.world().unwrap();
        assert!(has_node_group(&endpoint, &world));
        if endpoint.rank() == 0 {
            let sent: Vec<_> =
                (0..10_u64).map(|number| world.start_broadcast(0, &[number; COUNT]).unwrap()).collect();
            let began = Instant::now();
            while received.load(Ordering::Acquire) < 10 {
                assert!(began.elapsed() < Duration::from_secs(60), "nobody goes on");
                std::thread::sleep(Duration::from_millis(1)); // no call of weir
            }
            sent.into_iter().for_each(|request| drop(request.wait().unwrap()));
        } else {
            for number in 0..10_u64 {
                let mut data = [0; COUNT];
                world.broadcast(0, &mut data).unwrap();
                assert_eq!(data, [number; COUNT]);
                received.fetch_add(1, Ordering::Release);
            }
        }
        world.barrier().unwrap();
        endpoint.close().unwrap();
    });
}

#[test]
fn a_reduction_may_put_its_result_where_its_data_is() {
    use weir_link::memory::OwnedMemory;
    use weir_proto::offload::{Combination, WordType};

    for in_node in [true, false] {
        job_with(
            2,
            false,
            |_| in_node,
            |endpoint| {
                let combination = Combination { operation: WordOperation::Sum, word_type: WordType::U64 };
                let operation = weir_engine::CollectiveOperation::AllReduce { combination };
                let memory = OwnedMemory::new(4096);
                (0..512_u64).for_each(|word| memory.view().write(8 * word, &(word + 1).to_le_bytes()));
                let shared = &endpoint.owner.0;
                let start = |inner: &mut Inner| {
                    let buffers = crate::state::Buffers::of_caller(memory.view(), memory.view());
                    inner.start_collective(crate::c::WORLD, operation, 4096, buffers, false)
                };
                let request = shared.with(start).unwrap();
                assert!(shared.wait(request).unwrap().is_ok());
                for word in 0..512_u64 {
                    let mut sum = [0; 8];
                    memory.view().read(8 * word, &mut sum);
                    assert_eq!(u64::from_le_bytes(sum), 2 * (word + 1));
                }
                endpoint.world().unwrap().barrier().unwrap();
                endpoint.close().unwrap();
            },
        );
    }
}
