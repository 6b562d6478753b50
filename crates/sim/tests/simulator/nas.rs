//! Tests of NAS kernels: they send the messages and bytes of the benchmarks' sources, and the message counts of Liu
//! & Panda.

use crate::support;
use crate::support::catalogue::nas;
use crate::support::{journal, workload};
use weir_proto::Scheme;
use weir_sim::workload::Workload;
use weir_sim::world::WorldSpec;

/// Messages and bytes of one iteration, summed over all ranks, without the barrier before it.
fn iteration(kernel: &str, class: &str, ranks: u32) -> (u64, u64) {
    let (once, twice) = (
        support::messages_and_bytes(&nas(kernel, class, 1), ranks),
        support::messages_and_bytes(&nas(kernel, class, 2), ranks),
    );
    (twice.0 - once.0, twice.1 - once.1)
}

#[test]
fn integer_sort_adds_up_buckets_and_exchanges_keys() {
    // 512 buckets and 5 places: 2068 B, long enough for recursive halving. Key counts use Bruck's algorithm.
    // 65,536 keys.
    let (buckets, counts, keys) = ((48, 2 * 7 * 2068), (24, 8 * 12 * 4), (56, 56 * 65_536 / 64 * 4));
    assert_eq!(iteration("is", "S", 8), (buckets.0 + counts.0 + keys.0, buckets.1 + counts.1 + keys.1));
}

#[test]
fn fourier_transposes_once_and_checks_its_sum() {
    assert_eq!(iteration("ft", "S", 8), (56 + 7, 56 * (64 * 64 * 64 / 64 * 16) + 7 * 16));
    assert_eq!(iteration("ft", "A", 8), (56 + 7, 56 * 2 * 1024 * 1024 + 7 * 16), "2 MiB for each pair");
}

#[test]
fn lu_sends_edges_plane_by_plane() {
    // 4 x 2 ranks, 10 edges between them, two sweeps over 10 inner planes; then all edges in both directions.
    let (messages, bytes) = iteration("lu", "S", 8);
    assert_eq!(messages, 2 * 10 * 10 + 2 * 10);
    // Inner points: 2 + 3 + 3 + 2 along x, 5 of 6 along y. Faces: all points, twelve planes, two layers.
    let plane = 5 * 8 * (10 + 6 * 5);
    let layers = 2 * 2 * 5 * 8 * 12 * (4 * 3 + 6 * 6);
    assert_eq!(bytes, 2 * 10 * plane + layers);
}

#[test]
fn conjugate_gradient_sums_along_rows_and_transposes() {
    // 2 x 4 ranks. A sum takes two exchanges. Four ranks are their own transposed rank. Pieces are 350
    // numbers.
    let (pieces, transposed) = (26 * 2 * 8, 26 * 4);
    let (one, two) = ((1 + 25 * 2 + 1) * 2 * 8, 2 * 8);
    assert_eq!(
        iteration("cg", "S", 8),
        (pieces + transposed + one + two, (pieces + transposed) * 2800 + one * 8 + two * 16)
    );
    // 4 x 4 ranks, of which four are on the diagonal.
    let (messages, _) = iteration("cg", "S", 16);
    assert_eq!(messages, 16 * (26 * 2 + 52 * 2 + 2) + 26 * 12);
}

#[test]
fn multigrid_exchanges_six_faces_of_every_grid() {
    // 32^3 points on 2 x 2 x 2 ranks: levels 1 to 5, each with one exchange per operation.
    let exchanges = [(5, 3), (4, 3), (3, 3), (2, 3), (1, 2)];
    let messages: u64 = exchanges.iter().map(|&(_, times)| times * 6 * 8).sum();
    let face_bytes = |level: u32| {
        let inner = 1_u64 << (level - 1);
        let whole = inner + 2;
        2 * 8 * 8 * (inner * inner + whole * inner + whole * whole)
    };
    let bytes: u64 = exchanges.iter().map(|&(level, times)| times * face_bytes(level)).sum();
    assert_eq!(iteration("mg", "S", 8), (messages, bytes));
}

#[test]
fn multipartition_solvers_sweep_along_diagonals() {
    // 4 x 4 ranks, cells of 3^3: six faces, then three stages forwards and backwards along each axis.
    let (faces, each_way) = (6 * 16, 3 * 3 * 16);
    let face_bytes = 3 * 2 * 5 * 8 * 9;
    let bytes = |numbers| faces * face_bytes + each_way * 8 * 9 * numbers;
    assert_eq!(iteration("bt", "S", 16), (faces + 2 * each_way, bytes(30 + 5)));
    assert_eq!(iteration("sp", "S", 16), (faces + 2 * each_way, bytes(22 + 10)));
}

/// MPI messages of each process as MVAPICH sends them. A long message takes a request and an end from the
/// sender, and an answer from the receiver.
fn protocol_messages(workload: &Workload, ranks: u32) -> Vec<u64> {
    const LONG: u64 = 2048;
    let journals = journal::simulated(workload, ranks, Scheme::Unlimited);
    let count = |journal: &journal::Journal| {
        let sends: u64 = journal.sends.iter().map(|&(_, _, bytes)| if bytes > LONG { 2 } else { 1 }).sum();
        sends + journal.receives.iter().flatten().filter(|status| status.bytes > LONG).count() as u64
    };
    journals.iter().map(count).collect()
}

#[test]
fn message_counts_match_liu_and_panda() {
    // "#Total Msg" of their table for class A. They ran BT and SP on 16 processes. Their rows of BT and SP
    // fit if they are exchanged, because SP has twice as many steps with as many messages each. The CG row is
    // that of a rank that is its own transposed rank, such as rank 0. The LU row is that of a rank inside the
    // grid. We count one iteration; start-up and verification are not part of the model.
    let per_iteration = |kernel, ranks| {
        let (once, twice) =
            (protocol_messages(&nas(kernel, "A", 1), ranks), protocol_messages(&nas(kernel, "A", 2), ranks));
        once.iter().zip(&twice).map(|(once, twice)| twice - once).collect::<Vec<u64>>()
    };
    let lu = per_iteration("lu", 8);
    let largest = *lu.iter().max().expect("eight ranks");
    let rows = [
        ("LU", 250 * largest, 48_805),
        ("CG", 16 * per_iteration("cg", 8)[0], 4202),
        ("BT", 201 * per_iteration("bt", 16)[0], 14_531),
        ("SP", 401 * per_iteration("sp", 16)[0], 28_913),
    ];
    for (kernel, ours, theirs) in rows {
        let off = (ours as f64 / f64::from(theirs) - 1.0) * 100.0;
        println!("{kernel}: {ours} messages, Liu & Panda {theirs}, {off:+.2} %");
        assert!(off.abs() < 1.0, "{kernel}: {ours} messages, Liu & Panda {theirs}, {off:+.2} %");
    }
    println!("MG: {:?} in each of 4 or 5 iterations, Liu & Panda 1595 in all", per_iteration("mg", 8));
}

#[test]
fn unsuitable_rank_counts_are_rejected() {
    let refused = |workload: Workload, ranks| workload.check(ranks).expect_err("refused");
    assert_eq!(
        refused(nas("lu", "S", 1), 6),
        "ranks is 6 for Lu of class S; allowed: a power of two, with enough points for each"
    );
    assert_eq!(
        refused(nas("bt", "S", 1), 8),
        "ranks is 8 for Bt of class S; allowed: a square, with enough points for each"
    );
    assert_eq!(refused(nas("ft", "A", 7), 8), "iterations is 7; allowed: at most 6, as many as Ft A has");
    assert_eq!(refused(nas("lu", "S", 1), 64), refused(nas("lu", "S", 1), 6).replace("is 6", "is 64"));
    let whole = "[nas]\nkernel = 'cg'\nclass = 'S'\nlibrary = 'open_mpi'\niteration_compute_ns = 1000";
    assert_eq!(workload(whole).check(8), Ok(()));
}

#[test]
fn imbalance_divides_the_work_by_seed_and_keeps_the_messages() {
    let finished = |imbalance_percent: u32, seed| {
        let workload = support::workload(&format!(
            "[nas]\nkernel = 'mg'\nclass = 'S'\nlibrary = 'mpich'\niteration_compute_ns = 10_000_000\niterations = 1\n\
             imbalance_percent = {imbalance_percent}"
        ));
        let spec = WorldSpec { seed, ..support::spec(8, Scheme::Unlimited) };
        let report = support::run_with(&workload, spec);
        let messages: u64 = report.counters.iter().map(|counters| counters.messages_sent).sum();
        (report.finished_at as f64 / 1e9, messages)
    };
    let [(even_ms, messages), (same_ms, _)] = [finished(0, 1), finished(0, 2)];
    assert_eq!(even_ms, same_ms, "without imbalance the seed does not matter");
    let uneven = [1, 2, 3].map(|seed| finished(20, seed));
    for (ms, sent) in uneven {
        assert_eq!(sent, messages);
        // The slowest of eight ranks decides. It has up to 20 % more work than the mean, which takes 10 ms.
        assert!(ms > even_ms + 0.2 && ms < even_ms + 2.1, "{ms} ms after {even_ms} ms");
    }
    assert_eq!(uneven[0], finished(20, 1));
    assert!(uneven[0] != uneven[1] && uneven[1] != uneven[2]);
}
