//! Tests of collective algorithms: they send the messages and bytes that their sources state, and libraries choose
//! the right algorithm.

use crate::support;
use std::pin::Pin;

use crate::support::catalogue::imb;
use crate::support::{barrier_messages, journal, run_programs};
use weir_proto::Scheme;
use weir_sim::collective::Group;
use weir_sim::program::Program;
use weir_sim::workload::Workload;

/// A call of a collective on a group.
type Call = fn(Group) -> Pin<Box<dyn Future<Output = ()>>>;

/// Makes a [`Call`] from a method of [`Group`].
macro_rules! call {
    ($method:ident($($argument:expr),*)) => {
        (|group| Box::pin(async move { group.$method($($argument),*).await })) as Call
    };
}

/// Messages and bytes that each rank sends, by rank.
fn sent(n: u32, call: Call) -> Vec<(u64, u64)> {
    let report = run_programs(n, Scheme::Unlimited, |rank| -> Program { call(Group::all(&rank)) });
    report.counters.iter().map(|c| (c.messages_sent, c.bytes_sent)).collect()
}

/// The same, summed over all ranks.
fn total(n: u32, call: Call) -> (u64, u64) {
    sent(n, call).iter().fold((0, 0), |(messages, bytes), rank| (messages + rank.0, bytes + rank.1))
}

const SIZES: [u32; 7] = [1, 2, 3, 5, 8, 11, 16];

/// Number of rounds that halve or double: `ceil(log2 n)`.
fn rounds(n: u32) -> u64 {
    u64::from(n.next_power_of_two().ilog2())
}

/// Number of hops of blocks `0..n` along a binomial tree from or to block 0.
fn hops(n: u32) -> u64 {
    (0..n).map(|block| u64::from(block.count_ones())).sum()
}

#[test]
fn barriers_by_exchange_and_by_tree_send_the_messages_of_their_schedules() {
    for n in SIZES {
        let paired = 1 << n.ilog2();
        let exchanged = u64::from(paired * n.ilog2() + 2 * (n - paired));
        assert_eq!(total(n, call!(barrier_pairwise())), (exchanged, 0), "{n}");
        let edges = (2 * (u64::from(n) - 1), 0);
        assert_eq!(total(n, call!(barrier_gather_broadcast(1))), edges, "{n}");
        assert_eq!(total(n, call!(barrier_gather_broadcast(3))), edges, "{n}");
        assert_eq!(total(n, call!(barrier_gather_broadcast(40))), edges, "{n}");
    }
}

#[test]
fn rooted_collectives_send_one_message_per_tree_edge() {
    for n in SIZES {
        let others = u64::from(n) - 1;
        let edges = (others, others * 4800);
        assert_eq!(total(n, call!(broadcast(0, 4800))), edges);
        assert_eq!(total(n, call!(reduce(0, 4800))), edges);
        assert_eq!(total(n, call!(reduce_linear(0, 4800))), edges);
        for linear in [
            call!(scatter_linear(0, 4800)),
            call!(scatter_in_turn(0, 4800)),
            call!(gather_linear(0, 4800)),
            call!(gather_in_turn(0, 4800)),
        ] {
            assert_eq!(total(n, linear), edges);
        }
        let in_segments = (5 * others, edges.1);
        assert_eq!(total(n, call!(reduce_segmented(0, 4800, 1000))), in_segments);
        assert_eq!(total(n, call!(reduce_pipeline(0, 4800, 1000))), in_segments);
        assert_eq!(total(n, call!(broadcast_pipeline(0, 4800, 1000))), in_segments);
        assert_eq!(total(n, call!(gather_synchronised(0, 4800, 1000))), (3 * others, edges.1));
        // Along a tree a block travels once for each bit of its number.
        assert_eq!(total(n, call!(scatter_binomial(0, 4800))), (others, hops(n) * 4800));
        assert_eq!(total(n, call!(gather_binomial(0, 4800))), (others, hops(n) * 4800));
        // Each member gets all of the message, in two halves of at most three segments.
        if n >= 3 {
            assert_eq!(total(n, call!(broadcast_split_binary(0, 4800, 1000))), (4 * others, edges.1));
        }
    }
}

#[test]
fn any_rank_can_be_the_root() {
    for root in [1, 4, 6] {
        let by_root: [(Call, Call); 6] = match root {
            1 => with_root::<1>(),
            4 => with_root::<4>(),
            _ => with_root::<6>(),
        };
        for (at_zero, elsewhere) in by_root {
            let mut turned = sent(7, at_zero);
            turned.rotate_right(root);
            assert_eq!(turned, sent(7, elsewhere), "root {root}");
        }
    }
}

/// Collectives with root 0 and with root `ROOT`.
fn with_root<const ROOT: u32>() -> [(Call, Call); 6] {
    [
        (call!(broadcast(0, 700)), call!(broadcast(ROOT, 700))),
        (call!(broadcast_split_binary(0, 700, 100)), call!(broadcast_split_binary(ROOT, 700, 100))),
        (call!(broadcast_pipeline(0, 700, 100)), call!(broadcast_pipeline(ROOT, 700, 100))),
        (call!(reduce(0, 700)), call!(reduce(ROOT, 700))),
        (call!(gather_binomial(0, 700)), call!(gather_binomial(ROOT, 700))),
        (call!(scatter_binomial(0, 700)), call!(scatter_binomial(ROOT, 700))),
    ]
}

#[test]
fn long_broadcasts_and_reductions_move_parts() {
    for n in [2, 8, 16] {
        let (members, others, rounds) = (u64::from(n), u64::from(n) - 1, rounds(n));
        let tree_bytes = hops(n) * 4800 / members;
        assert_eq!(
            total(n, call!(broadcast_scatter_doubling(0, 4800))),
            (others + members * rounds, tree_bytes + others * 4800)
        );
        assert_eq!(
            total(n, call!(broadcast_scatter_ring(0, 4800))),
            (others + members * others, tree_bytes + others * 4800)
        );
        assert_eq!(
            total(n, call!(reduce_halving(0, 4800))),
            (members * rounds + others, others * 4800 + tree_bytes)
        );
    }
    // With five members, rank 0 gives its vector to rank 1, which returns the result.
    let (messages, bytes) = total(5, call!(reduce_halving(0, 4800)));
    assert_eq!((messages, bytes), (1 + 4 * 2 + 3 + 1, 4800 + 3 * 4800 + 4800 + 4800));
}

#[test]
fn symmetric_collectives_send_one_message_per_round() {
    for n in SIZES {
        let (members, others) = (u64::from(n), u64::from(n) - 1);
        // A member beyond the largest power of two gives its vector to a neighbour and gets the result.
        let power = 1_u64 << n.ilog2();
        let (rest, doublings) = (members - power, u64::from(n.ilog2()));
        let folded = (2 * rest + power * doublings, 2 * rest + power * doublings);
        assert_eq!(total(n, call!(allreduce(4800))), (folded.0, folded.1 * 4800));
        assert_eq!(
            total(n, call!(allreduce_halving(4800))),
            (2 * rest + 2 * power * doublings, 2 * rest * 4800 + 2 * (power - 1) * 4800)
        );
        assert_eq!(total(n, call!(allreduce_ring(4800))), (2 * members * others, 2 * others * 4800));
        assert_eq!(total(n, call!(reduce_scatter_pairwise(4800))), (members * others, others * 4800));
        assert_eq!(total(n, call!(reduce_scatter_ring(4800))), (members * others, others * 4800));
        let (messages, bytes) = total(n, call!(reduce_scatter_halving(4800)));
        assert_eq!(messages, 2 * rest + power * doublings);
        if rest == 0 {
            assert_eq!(bytes, others * 4800);
        }
        // Each member gets a block from each other member.
        let all = members * others * 4800;
        assert_eq!(total(n, call!(allgather_ring(4800))), (members * others, all));
        assert_eq!(total(n, call!(allgather_bruck(4800))), (members * rounds(n), all));
        if rest == 0 {
            assert_eq!(total(n, call!(allgather_doubling(4800))), (members * doublings, all));
            assert_eq!(total(n, call!(barrier_doubling())), (members * doublings, 0));
        }
        if members.is_multiple_of(2) {
            assert_eq!(total(n, call!(allgather_neighbours(4800))), (members * members / 2, all));
        }
        assert_eq!(total(n, call!(barrier())), (members * rounds(n), 0));
        let linear: Vec<_> = (0..n).map(|rank| (if rank == 0 { others } else { 1 }, 0)).collect();
        assert_eq!(sent(n, call!(barrier_linear())), linear);
        for batch in [call!(alltoall_batches(4800, 4)), call!(alltoall_batches(4800, 32))] {
            assert_eq!(total(n, batch), (members * others, all));
        }
    }
}

#[test]
fn libraries_choose_by_length_and_ranks() {
    /// Checks that the call of a library sends what `algorithm` sends.
    fn chosen(workload: &Workload, n: u32, algorithm: Call) {
        let report = support::run(workload, n, Scheme::Unlimited);
        // Two barriers precede timed calls.
        let of_barriers = 2 * barrier_messages(n.into()) / u64::from(n);
        let seen: Vec<_> =
            report.counters.iter().map(|c| (c.messages_sent - of_barriers, c.bytes_sent)).collect();
        assert_eq!(seen, sent(n, algorithm), "{workload:?} among {n}");
    }
    let mpich = |benchmark, bytes, n, algorithm| chosen(&imb(benchmark, "mpich", bytes, 1), n, algorithm);
    mpich("barrier", 0, 8, call!(barrier()));
    mpich("bcast", 12_287, 8, call!(broadcast(0, 12_287)));
    mpich("bcast", 12_288, 7, call!(broadcast(0, 12_288)));
    mpich("bcast", 12_288, 8, call!(broadcast_scatter_doubling(0, 12_288)));
    mpich("bcast", 12_288, 9, call!(broadcast_scatter_ring(0, 12_288)));
    mpich("bcast", 524_288, 8, call!(broadcast_scatter_ring(0, 524_288)));
    mpich("reduce", 2048, 8, call!(reduce(0, 2048)));
    mpich("reduce", 2052, 8, call!(reduce_halving(0, 2052)));
    mpich("allreduce", 2048, 6, call!(allreduce(2048)));
    mpich("allreduce", 4096, 6, call!(allreduce_halving(4096)));
    mpich("reduce_scatter", 2048, 6, call!(reduce_scatter_halving(2048)));
    mpich("reduce_scatter", 524_288, 6, call!(reduce_scatter_pairwise(524_288)));
    mpich("allgather", 2048, 8, call!(allgather_doubling(2048)));
    mpich("allgather", 2048, 6, call!(allgather_bruck(2048)));
    mpich("allgatherv", 65_536, 8, call!(allgather_ring(65_536)));
    mpich("gather", 2048, 6, call!(gather_binomial(0, 2048)));
    mpich("gatherv", 2048, 6, call!(gather_linear(0, 2048)));
    mpich("scatter", 2048, 6, call!(scatter_binomial(0, 2048)));
    mpich("scatterv", 2048, 6, call!(scatter_linear(0, 2048)));
    mpich("alltoall", 256, 8, call!(alltoall_bruck(256)));
    mpich("alltoall", 256, 7, call!(alltoall_batches(256, 32)));
    mpich("alltoall", 40_000, 6, call!(alltoall_pairwise(40_000)));
    mpich("alltoallv", 2048, 6, call!(alltoall_batches(2048, 32)));
    let open_mpi =
        |benchmark, bytes, n, algorithm| chosen(&imb(benchmark, "open_mpi", bytes, 1), n, algorithm);
    open_mpi("barrier", 0, 8, call!(barrier_doubling()));
    open_mpi("barrier", 0, 6, call!(barrier()));
    open_mpi("bcast", 2047, 6, call!(broadcast(0, 2047)));
    open_mpi("bcast", 2048, 6, call!(broadcast_split_binary(0, 2048, 1024)));
    open_mpi("bcast", 400_000, 16, call!(broadcast_pipeline(0, 400_000, 8192)));
    open_mpi("reduce", 511, 7, call!(reduce_linear(0, 511)));
    open_mpi("reduce", 2047, 8, call!(reduce(0, 2047)));
    open_mpi("reduce", 2048, 8, call!(reduce_segmented(0, 2048, 1024)));
    open_mpi("allreduce", 9999, 6, call!(allreduce(9999)));
    open_mpi("allreduce", 10_000, 6, call!(allreduce_ring(10_000)));
    open_mpi("reduce_scatter", 2048, 6, call!(reduce_scatter_halving(2048)));
    open_mpi("reduce_scatter", 100_000, 6, call!(reduce_scatter_ring(100_000)));
    open_mpi("allgather", 2048, 8, call!(allgather_doubling(2048)));
    open_mpi("allgather", 2048, 6, call!(allgather_bruck(2048)));
    open_mpi("allgather", 20_000, 6, call!(allgather_neighbours(20_000)));
    open_mpi("allgather", 20_000, 7, call!(allgather_ring(20_000)));
    open_mpi("allgatherv", 2048, 8, call!(allgather_bruck(2048)));
    open_mpi("gather", 1023, 11, call!(gather_binomial(0, 1023)));
    open_mpi("gather", 2048, 11, call!(gather_in_turn(0, 2048)));
    open_mpi("gather", 6001, 11, call!(gather_synchronised(0, 6001, 1024)));
    open_mpi("scatter", 299, 11, call!(scatter_binomial(0, 299)));
    open_mpi("scatter", 2048, 11, call!(scatter_in_turn(0, 2048)));
    open_mpi("alltoall", 199, 13, call!(alltoall_bruck(199)));
    open_mpi("alltoall", 2048, 13, call!(alltoall_linear(2048, 0)));
    open_mpi("alltoall", 3000, 13, call!(alltoall_shifted(3000)));
    open_mpi("alltoallv", 2048, 8, call!(alltoall_shifted(2048)));
}

#[test]
fn libraries_pair_ranks_in_their_own_ways() {
    let partners_of_3 = |library, n| {
        let journals = journal::simulated(&imb("alltoall", library, 40_000, 1), n, Scheme::Unlimited);
        let sends = journals[3].sends.iter().filter(|(_, _, bytes)| *bytes == 40_000);
        sends.map(|(to, ..)| *to).collect::<Vec<_>>()
    };
    assert_eq!(partners_of_3("mpich", 8), [2, 1, 0, 7, 6, 5, 4]);
    assert_eq!(partners_of_3("mpich", 6), [4, 5, 0, 1, 2]);
    assert_eq!(partners_of_3("open_mpi", 8), [4, 5, 6, 7, 0, 1, 2]);
}

#[test]
fn imb_plays_pairs_and_rings_and_moves_the_root() {
    let bytes_by_rank = |workload: &Workload, n| -> Vec<u64> {
        let report = support::run(workload, n, Scheme::Unlimited);
        report.counters.iter().map(|c| c.bytes_sent).collect()
    };
    for benchmark in ["ping_pong", "ping_ping"] {
        assert_eq!(bytes_by_rank(&imb(benchmark, "mpich", 100, 3), 5), [300, 300, 0, 0, 0]);
        let pairs = support::workload(&format!(
            "[imb]\nbenchmark = '{benchmark}'\nlibrary = 'mpich'\nmessage_bytes = 100\ncalls = 3\nevery_pair = true"
        ));
        assert_eq!(bytes_by_rank(&pairs, 5), [300, 300, 300, 300, 0]);
    }
    assert_eq!(bytes_by_rank(&imb("sendrecv", "mpich", 100, 3), 5), [300; 5]);
    assert_eq!(bytes_by_rank(&imb("exchange", "mpich", 100, 3), 5), [600; 5]);
    assert_eq!(bytes_by_rank(&imb("scatterv", "mpich", 100, 3), 4), [300, 300, 300, 0]);
    let fixed = "[imb]\nbenchmark = 'scatterv'\nlibrary = 'mpich'\nmessage_bytes = 100\ncalls = 3\nroot_shift = false";
    assert_eq!(bytes_by_rank(&support::workload(fixed), 4), [900, 0, 0, 0]);
}

#[test]
fn reduction_compute_takes_time() {
    let time = |combine_ns_per_kib: u64| {
        let toml = format!(
            "[imb]\nbenchmark = 'reduce'\nlibrary = 'mpich'\nmessage_bytes = 1024\ncalls = 1\ncombine_ns_per_kib = {combine_ns_per_kib}"
        );
        support::run(&support::workload(&toml), 8, Scheme::Unlimited).finished[0]
    };
    assert_eq!(time(5000) - time(0), 3 * 5_000_000, "three additions on the longest path");
}
