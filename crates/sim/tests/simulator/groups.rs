//! Barriers, all-reduces and broadcasts of a group in the simulator, on the processors of ranks and on their NICs: results,
//! what waits for whom, and the time of a computing rank.

use std::cell::RefCell;
use std::rc::Rc;

use crate::support::{SCHEMES, spec};
use weir_proto::offload::group::{BarrierSchedule, BroadcastTree, ReductionTree, Shape};
use weir_proto::offload::{Combination, WordOperation, WordType};
use weir_proto::{Geometry, Scheme};
use weir_sim::cost::NicCost;
use weir_sim::network::ideal::Ideal;
use weir_sim::program::{Program, Rank};
use weir_sim::world::{World, WorldSpec};

const US: u64 = 1_000_000;
const GROUP: u32 = 9;
const STATIC: Scheme = Scheme::Static { piggyback: false };
const SUM: Combination = Combination { operation: WordOperation::Sum, word_type: WordType::U64 };
const NIC: NicCost = NicCost {
    packet_send_ps: US / 5,
    packet_receive_ps: US / 4,
    copy_ps_per_kib: US / 10,
    combine_ps_per_kib: US,
    ..NicCost::FREE
};

fn world(ranks: u32, scheme: Scheme, on_nic: bool, program: impl Fn(Rank) -> Program) -> World<Ideal> {
    let nic = on_nic.then_some(NIC);
    let spec = WorldSpec { nic, machines_on_nic: on_nic, ..spec(ranks, scheme) };
    World::new(spec, Ideal::with_geometry(US, 100, Geometry::EXTOLL), program).checked(true)
}

fn shapes() -> [Shape; 3] {
    let of_degree = |degree| BarrierSchedule::GatherBroadcast { degree };
    let broadcast = BroadcastTree::Postal { lambda_thousandths: 3500 };
    let of = |degree, reduction| Shape { barrier: of_degree(degree), broadcast, reduction };
    [Shape::default(), of(2, ReductionTree::Chain), of(9, ReductionTree::Flat)]
}

#[test]
fn members_get_the_sum_of_all_and_the_bytes_of_each_root() {
    for (ranks, scheme, shape, on_nic) in [1, 2, 7, 16].into_iter().flat_map(|ranks| {
        let schemes = SCHEMES.into_iter().flat_map(move |scheme| shapes().map(|shape| (scheme, shape)));
        schemes.flat_map(move |(scheme, shape)| [false, true].map(|on_nic| (ranks, scheme, shape, on_nic)))
    }) {
        let ended = Rc::new(RefCell::new(0));
        let program = |rank: Rank| -> Program {
            let ended = ended.clone();
            Box::pin(async move {
                let members: Vec<u32> = (0..ranks).collect();
                rank.join_shaped_group(GROUP, &members, None, shape).await;
                let own = u64::from(rank.rank()) + 1;
                let sum = rank.iall_reduce(GROUP, SUM, own.to_ne_bytes().repeat(5));
                let roots: Vec<_> = (0..ranks)
                    .map(|root| rank.ibroadcast(GROUP, root, vec![rank.rank() as u8; 3000]))
                    .collect();
                let barrier = rank.ibarrier(GROUP);
                let expected = u64::from(ranks) * u64::from(ranks + 1) / 2;
                assert_eq!(rank.ended(sum).await.1, expected.to_ne_bytes().repeat(5));
                for (root, broadcast) in (0..).zip(roots) {
                    assert_eq!(rank.ended(broadcast).await.1, [root; 3000], "from {root}");
                }
                let (status, _) = rank.ended(barrier).await;
                assert_eq!((status.fault, status.refused), (None, false));
                *ended.borrow_mut() += 1;
            })
        };
        let run = world(ranks, scheme, on_nic, program).run();
        run.unwrap_or_else(|error| panic!("{ranks} ranks, {scheme:?}, {shape:?}, {on_nic}: {error}"));
        assert_eq!(*ended.borrow(), ranks);
    }
}

#[test]
fn a_barrier_ends_when_the_last_rank_has_come() {
    const LATE: u64 = 500 * US;
    for (on_nic, shape) in [false, true].into_iter().flat_map(|on_nic| shapes().map(|shape| (on_nic, shape)))
    {
        let program = |rank: Rank| -> Program {
            Box::pin(async move {
                let members: Vec<u32> = (0..rank.size()).collect();
                rank.join_shaped_group(GROUP, &members, None, shape).await;
                if rank.rank() == 5 {
                    rank.compute(LATE);
                }
                let barrier = rank.ibarrier(GROUP);
                rank.ended(barrier).await;
            })
        };
        let report = world(9, STATIC, on_nic, program).run().expect("ends");
        let finished = &report.finished;
        assert!(finished.iter().all(|at| *at > LATE && *at < LATE + 200 * US), "{on_nic}: {finished:?}");
    }
}

/// When each rank has a broadcast of rank 0, while rank 4, which forwards it to ranks 5 to 7, computes first.
fn times_of_a_broadcast(on_nic: bool) -> Vec<u64> {
    let program = |rank: Rank| -> Program {
        Box::pin(async move {
            let members: Vec<u32> = (0..rank.size()).collect();
            rank.join_group(GROUP, &members, None).await;
            let barrier = rank.ibarrier(GROUP);
            rank.ended(barrier).await;
            if rank.rank() == 4 {
                rank.compute(1000 * US);
            }
            let broadcast = rank.ibroadcast(GROUP, 0, vec![3; 1000]);
            rank.ended(broadcast).await;
        })
    };
    world(8, STATIC, on_nic, program).run().expect("ends").finished.clone()
}

#[test]
fn a_nic_forwards_a_broadcast_while_its_rank_computes() {
    let late = |times: Vec<u64>| (0..8).filter(|rank| times[*rank] > 900 * US).collect::<Vec<usize>>();
    assert_eq!(late(times_of_a_broadcast(true)), [4]);
    assert_eq!(late(times_of_a_broadcast(false)), [4, 5, 6, 7], "the processor of rank 4 runs the machine");
}
