//! What it costs that sums of floats are combined from the left: the time of an all-reduce among 8 and 16 NICs, beside that of a
//! binomial tree, which has other bits. `cargo test -p weir-sim --test simulator float_sums:: -- --nocapture` prints the times. The
//! engine cuts such vectors into parts of 2 KiB (`engine/collectives/parts.rs`).

use crate::support::spec;
use weir_proto::offload::group::{ReductionTree, Shape};
use weir_proto::offload::{Combination, WordOperation, WordType};
use weir_proto::{Geometry, Scheme};
use weir_sim::cost::NicCost;
use weir_sim::network::ideal::Ideal;
use weir_sim::program::{Program, Rank};
use weir_sim::world::{World, WorldSpec};

const US: u64 = 1_000_000;
const GROUP: u32 = 9;
const SUM: Combination = Combination { operation: WordOperation::Sum, word_type: WordType::F64 };
/// The longest vector of one operation.
const LONGEST_PART: usize = 4096;
const CALLS: u64 = 3;

/// Mean time of an all-reduce, alone in its group. Unit: microseconds.
fn time_us(hosts: u32, bytes: usize, part: usize, reduction: ReductionTree) -> f64 {
    let program = |calls: u64| {
        let program = move |rank: Rank| -> Program {
            Box::pin(async move {
                let members: Vec<u32> = (0..hosts).collect();
                let shape = Shape { reduction, ..Shape::default() };
                rank.join_shaped_group(GROUP, &members, None, shape).await;
                for _ in 0..calls {
                    let barrier = rank.ibarrier(GROUP);
                    rank.ended(barrier).await;
                    let parts = (0..bytes.div_ceil(part)).map(|_| vec![0; bytes.min(part)]);
                    let parts: Vec<_> = parts.map(|part| rank.iall_reduce(GROUP, SUM, part)).collect();
                    for part in parts {
                        let (status, _) = rank.ended(part).await;
                        assert_eq!((status.fault, status.refused), (None, false));
                    }
                }
            })
        };
        // Packets of 56 B of payload, which take 1 us on the wire.
        let nic = NicCost {
            packet_send_ps: US / 10,
            packet_receive_ps: US / 10,
            copy_ps_per_kib: US / 20,
            combine_ps_per_kib: US / 5,
            float_combine_ps_per_kib: US / 5,
            ..NicCost::FREE
        };
        let spec = WorldSpec {
            nic: Some(nic),
            machines_on_nic: true,
            ..spec(hosts, Scheme::Static { piggyback: false })
        };
        let world = World::new(spec, Ideal::with_geometry(US, 100, Geometry::EXTOLL), program);
        world.run().expect("ends").finished.iter().copied().max().expect("a host")
    };
    (program(1 + CALLS) - program(1)) as f64 / (CALLS * US) as f64
}

#[test]
fn sums_of_floats_in_parts_of_2_kib_cost_about_what_a_tree_costs() {
    for hosts in [8, 16] {
        // The longest one takes seconds: once is enough.
        for bytes in [8, 512, 2048, 4096, 65_536].into_iter().filter(|bytes| *bytes < 10_000 || hosts == 16) {
            let tree = time_us(hosts, bytes, LONGEST_PART, ReductionTree::Binomial);
            let from_the_left = |part| time_us(hosts, bytes, part, ReductionTree::FromTheLeft);
            let (short, long) = (from_the_left(LONGEST_PART / 2), from_the_left(LONGEST_PART));
            println!(
                "{hosts} hosts, {bytes} B: tree {tree:.1} us; from the left {:.2} times that, in parts of 4 KiB {:.2}",
                short / tree,
                long / tree
            );
            assert!(short < 1.6 * tree, "{hosts} hosts, {bytes} B: {short} us, tree {tree} us");
            // A rank alone passes on a part of 4 KiB: all others wait.
            assert!(
                bytes != LONGEST_PART || long > 1.6 * tree && long > 1.6 * short,
                "{long} us, {short} us"
            );
        }
    }
}
