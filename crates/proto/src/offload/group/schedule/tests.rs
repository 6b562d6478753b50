//! Tests of schedules: all members together do each operation, with the packets and steps that it needs.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;

use super::*;
use crate::offload::reduce::Vector;
use crate::offload::{Combination, WordOperation, WordType};

const MOST: u32 = 33;

fn vector() -> Vector {
    let combination = Combination { operation: WordOperation::Sum, word_type: WordType::U64 };
    Vector { bytes: 8, combination }
}

/// What a run of a schedule at all members costs.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    packets: u32,
    /// For each rank: those that it knows of at the end.
    known: Vec<BTreeSet<u32>>,
    /// The time when the last member ends, if a packet takes one unit of time and everything else none.
    time: u32,
}

/// Runs the schedules of all members: each packet carries what its sender knows.
fn run(shape: Shape, operation: Operation, members: u32) -> Run {
    let mut left: Vec<Vec<Step>> = (0..members).map(|rank| steps(shape, &operation, rank, members)).collect();
    left.iter_mut().for_each(|steps| steps.reverse());
    let mut known: Vec<BTreeSet<u32>> = (0..members).map(|rank| BTreeSet::from([rank])).collect();
    let mut sent: BTreeMap<(u32, u32), (u32, BTreeSet<u32>)> = BTreeMap::new();
    let (mut packets, mut clocks) = (0, vec![0; members as usize]);
    loop {
        let mut moves = false;
        for rank in 0..members {
            let steps = &mut left[rank as usize];
            let Some(step) = steps.last() else { continue };
            if !step.hear.iter().all(|from| sent.contains_key(&(*from, rank))) {
                continue;
            }
            let step = steps.pop().expect("there is one");
            for from in &step.hear {
                let (time, news) = sent.remove(&(*from, rank)).expect("heard");
                let clock = &mut clocks[rank as usize];
                *clock = time.max(*clock);
                known[rank as usize].extend(news);
            }
            for to in step.tell {
                let packet = (clocks[rank as usize] + 1, known[rank as usize].clone());
                assert!(sent.insert((rank, to), packet).is_none(), "two packets from {rank} to {to}");
                packets += 1;
            }
            moves = true;
        }
        if !moves {
            break;
        }
    }
    assert!(
        sent.is_empty() && left.iter().all(Vec::is_empty),
        "{operation:?} of {members} does not end: {left:?}"
    );
    Run { packets, known, time: clocks.into_iter().max().expect("a member") }
}

fn everyone(members: u32) -> Vec<BTreeSet<u32>> {
    vec![(0..members).collect(); members as usize]
}

#[test]
fn a_pairwise_exchange_takes_the_logarithm_of_steps_and_at_most_two_more() {
    for members in 1..=MOST {
        let run = run(Shape::default(), Operation::Barrier, members);
        let (paired, log) = (1 << members.ilog2(), members.ilog2());
        let beyond = members - paired;
        assert_eq!(run.known, everyone(members), "{members}: all know that all have come");
        assert_eq!(run.packets, paired * log + 2 * beyond, "{members}");
        // A rank that waits for one beyond delays only the rank with all bits flipped. If that one serves another one
        // beyond, the answer comes one step later still.
        let more = u32::from(beyond > 0) + u32::from(2 * beyond > paired);
        assert_eq!(run.time, log + more, "{members}");
        for rank in 0..members {
            let sends: usize = exchange(rank, members).iter().map(|step| step.tell.len()).sum();
            let expected = match rank {
                rank if rank >= paired => 1,
                rank if rank < beyond => log + 1,
                _ => log,
            };
            assert_eq!(sends, expected as usize, "rank {rank} of {members}");
        }
    }
}

#[test]
fn a_barrier_over_a_tree_takes_two_packets_for_each_edge() {
    for (degree, members) in (1..=MOST).flat_map(|degree| (1..=MOST).map(move |members| (degree, members))) {
        let barrier = BarrierSchedule::GatherBroadcast { degree };
        let run = run(Shape { barrier, ..Shape::default() }, Operation::Barrier, members);
        assert_eq!(run.known, everyone(members), "{members}, {degree}");
        assert_eq!(run.packets, 2 * (members - 1), "{members}, {degree}");
        let above = |rank: &u32| tree::parent_of_degree(*rank, degree);
        let depth = core::iter::successors(Some(members - 1), above).count() as u32 - 1;
        assert_eq!(run.time, 2 * depth, "{members}, {degree}");
    }
}

#[test]
fn reductions_take_one_packet_for_each_edge_and_all_reduces_two() {
    for members in 1..=MOST {
        let reduce = run(Shape::default(), Operation::Reduce(vector()), members);
        assert_eq!((reduce.packets, &reduce.known[0]), (members - 1, &everyone(members)[0]));
        // The depth of the binomial tree is the largest number of bits of a rank.
        let depth = (0..members).map(u32::count_ones).max().expect("a member");
        assert_eq!(reduce.time, depth, "{members}");
        let all_reduce = run(Shape::default(), Operation::AllReduce(vector()), members);
        assert_eq!(all_reduce, Run { packets: 2 * (members - 1), known: everyone(members), time: 2 * depth });
    }
}

#[test]
fn a_chain_and_a_flat_tree_reduce_in_the_order_of_ranks() {
    for (tree, members) in [ReductionTree::Chain, ReductionTree::Flat]
        .into_iter()
        .flat_map(|tree| (1..=MOST).map(move |n| (tree, n)))
    {
        let shape = Shape { reduction: tree, ..Shape::default() };
        let depth = match tree {
            ReductionTree::Chain => members - 1,
            _ => u32::from(members > 1),
        };
        let reduce = run(shape, Operation::Reduce(vector()), members);
        assert_eq!((reduce.packets, reduce.time), (members - 1, depth), "{tree:?}, {members}");
        assert_eq!(reduce.known[0], everyone(members)[0]);
        let all_reduce = run(shape, Operation::AllReduce(vector()), members);
        assert_eq!(all_reduce, Run { packets: 2 * (members - 1), known: everyone(members), time: 2 * depth });
        // What a member combines: its own, then that of each child, which covers the ranks behind the one before.
        fn visit(shape: Shape, rank: u32, members: u32, order: &mut Vec<u32>) {
            order.push(rank);
            let step = steps(shape, &Operation::Reduce(vector()), rank, members).remove(0);
            step.hear.iter().for_each(|child| visit(shape, *child, members, order));
        }
        let mut order = Vec::new();
        visit(shape, 0, members, &mut order);
        assert_eq!(order, (0..members).collect::<Vec<_>>(), "{tree:?}");
    }
}

fn of_floats(bytes: u32) -> Vector {
    let combination = Combination { operation: WordOperation::Sum, word_type: WordType::F64 };
    Vector { bytes, combination }
}

/// What `rank` has when it has combined, with the brackets. `members`: of the group.
fn brackets(operation: Operation, rank: u32, members: u32) -> String {
    let of = |rank| brackets(operation, rank, members);
    let mut own = format!("{rank}");
    for step in steps(Shape::default(), &operation, rank, members) {
        for other in step.hear {
            match step.usage {
                Use::Combine => own = format!("({own}+{})", of(other)),
                Use::Continue => own = format!("({}+{own})", of(other)),
                Use::Place | Use::Keep | Use::Nothing | Use::Collect | Use::Split | Use::Fill => {}
            }
        }
    }
    own
}

#[test]
fn sums_of_floats_have_brackets_from_the_left_for_any_length() {
    for members in 1..=MOST {
        let from_the_left = (1..members).fold(String::from("0"), |left, rank| format!("({left}+{rank})"));
        for (bytes, block_ranks) in [(0, 64), (8, 64), (264, 15), (1024, 4), (2048, 2), (2056, 1), (4096, 1)]
        {
            let what = format!("{members} members, {bytes} B");
            let blocks = members.div_ceil(block_ranks);
            let last = (blocks - 1) * block_ranks;
            let [reduce, all_reduce] =
                [Operation::Reduce, Operation::AllReduce].map(|of| of(of_floats(bytes)));
            assert_eq!(brackets(reduce, last, members), from_the_left, "{what}");
            assert_eq!(brackets(all_reduce, last, members), from_the_left, "{what}");
            // Leaders combine one after the other, when the vectors of their blocks are there.
            let in_block = u32::from(block_ranks > 1 && members > 1);
            let back = u32::from(blocks > 1);
            let ends = run(Shape::default(), reduce, members);
            assert_eq!((ends.packets, &ends.known[0]), (members - 1 + back, &everyone(members)[0]), "{what}");
            let in_first = u32::from(block_ranks.min(members) > 1);
            assert_eq!(ends.time, in_first + blocks - 1 + back, "{what}");
            let ends = run(Shape::default(), all_reduce, members);
            assert_eq!((ends.packets, ends.known), (2 * (members - 1), everyone(members)), "{what}");
            let depth = (0..blocks).map(u32::count_ones).max().expect("a block");
            assert!(ends.time <= in_first + blocks - 1 + depth + in_block, "{what}: {}", ends.time);
            for rank in 0..members {
                let heard = steps(Shape::default(), &all_reduce, rank, members);
                let heard: Vec<u32> = heard.into_iter().flat_map(|step| step.hear).collect();
                let different: BTreeSet<u32> = heard.iter().copied().collect();
                assert_eq!(heard.len(), different.len(), "{what}: {rank} hears {heard:?}");
                let most = (4096 / bytes.max(64)) as usize + 2;
                assert!(heard.len() <= most, "{what}: {rank} hears {heard:?}");
            }
        }
    }
}

#[test]
fn operations_that_do_not_depend_on_brackets_keep_the_binomial_tree() {
    use WordOperation::{Max, Min, Product, Sum};
    let is_tree = |operation, word_type| {
        let vector = Vector { bytes: 4096, combination: Combination { operation, word_type } };
        let of = |reduction, rank| {
            steps(Shape { reduction, ..Shape::default() }, &Operation::AllReduce(vector), rank, 7)
        };
        (0..7).all(|rank| of(ReductionTree::FromTheLeft, rank) == of(ReductionTree::Binomial, rank))
    };
    for word_type in WordType::ALL {
        assert_eq!(is_tree(Sum, word_type), word_type.is_integer());
        assert_eq!(is_tree(Product, word_type), word_type.is_integer());
        assert!(is_tree(Min, word_type) && is_tree(Max, word_type));
    }
}

#[test]
fn children_are_heard_in_the_order_of_ranks() {
    let hear = |rank| steps(Shape::default(), &Operation::AllReduce(vector()), rank, 16)[0].hear.clone();
    assert_eq!((hear(0), hear(8), hear(15)), (vec![1, 2, 4, 8], vec![9, 10, 12], vec![]));
}

#[test]
fn a_broadcast_reaches_each_member_once_from_any_root_over_any_tree() {
    let postal = |lambda_thousandths| BroadcastTree::Postal { lambda_thousandths };
    for broadcast in [BroadcastTree::Binomial, postal(1000), postal(2700), postal(9000)] {
        for members in 1..=MOST {
            for root in 0..members {
                let shape = Shape { broadcast, ..Shape::default() };
                let operation = Operation::Broadcast { root, bytes: 8 };
                let run = run(shape, operation, members);
                assert_eq!(run.packets, members - 1, "{members} from {root}");
                assert!(run.known.iter().all(|known| known.contains(&root)), "{members} from {root}");
                let heard = |rank| steps(shape, &operation, rank, members)[0].hear.len();
                assert!((0..members).all(|rank| heard(rank) == usize::from(rank != root)), "one parent");
            }
        }
    }
}

#[test]
fn the_exchanges_of_all_distances_take_each_pair_once() {
    for members in 2..=MOST {
        let mut pairs = BTreeSet::new();
        for distance in 1..members {
            let operation = Operation::Exchange { distance, bytes: 8 };
            let run = run(Shape::default(), operation, members);
            assert_eq!((run.packets, run.time), (members, 1), "{members}, {distance}");
            for rank in 0..members {
                let of = |rank| steps(Shape::default(), &operation, rank, members);
                let (to, steps) = (of(rank)[0].tell[0], of(rank));
                assert_eq!(of(to)[1].hear, [rank], "{members}, {distance}");
                assert_eq!((steps[0].usage, steps[1].usage), (Use::Nothing, Use::Keep));
                assert!(to != rank && pairs.insert((rank, to)), "{rank} to {to} of {members}");
            }
        }
        assert_eq!(pairs.len() as u32, members * (members - 1));
    }
}

#[test]
fn each_block_of_a_gather_comes_to_its_root_and_each_of_a_scatter_to_its_member() {
    for members in (1..=MOST).chain([66, 130, 200]) {
        for root in (0..members).step_by(members as usize / 20 + 1) {
            let gather = Operation::Gather { root, bytes: 8 };
            let scatter = Operation::Scatter { root, bytes: 8 };
            let levels = u32::from(members > 1) + u32::from(members > 65);
            let there = run(Shape::default(), gather, members);
            assert_eq!((there.packets, there.time), (members - 1, levels), "{members} to {root}");
            assert_eq!(there.known[root as usize], everyone(members)[0], "{members} to {root}");
            let back = run(Shape::default(), scatter, members);
            assert_eq!((back.packets, back.time), (members - 1, levels), "{members} from {root}");
            assert!(back.known.iter().all(|known| known.contains(&root)), "{members} from {root}");
            for rank in 0..members {
                let [up, down] =
                    [gather, scatter].map(|it| steps(Shape::default(), &it, rank, members).remove(0));
                assert_eq!((&up.hear, &up.tell), (&down.tell, &down.hear), "{rank} of {members}, {root}");
                // The blocks of a member are its own, and then those of the ones below, without gaps.
                let mut next = 1;
                for below in up.hear {
                    assert_eq!(first_block_of(&gather, rank, below, members), next);
                    let blocks = blocks_between(&gather, (below, rank), members);
                    assert_eq!(blocks_between(&scatter, (rank, below), members), blocks);
                    next += blocks;
                }
                assert_eq!(
                    (blocks_at(&gather, rank, members), blocks_at(&scatter, rank, members)),
                    (next, next)
                );
            }
        }
    }
}

#[test]
fn an_all_gather_takes_the_logarithm_of_steps_and_an_all_to_all_one() {
    for members in (1..=MOST).chain([127, 128, 129]) {
        let all_gather = Operation::AllGather { bytes: 8 };
        let there = run(Shape::default(), all_gather, members);
        let log = members.next_power_of_two().ilog2();
        assert_eq!(there, Run { packets: members * log, known: everyone(members), time: log }, "{members}");
        for rank in 0..members {
            // Whom each place of the buffer is from, and who has filled it.
            let mut places = vec![rank];
            for Step { hear, tell, .. } in steps(Shape::default(), &all_gather, rank, members) {
                for from in hear {
                    let first = first_block_of(&all_gather, rank, from, members) as usize;
                    assert_eq!(first, places.len(), "{members}, {rank} hears {from}");
                    let blocks = blocks_between(&all_gather, (from, rank), members);
                    places.extend((0..blocks).map(|block| (from + block) % members));
                }
                for to in tell {
                    let blocks = blocks_between(&all_gather, (rank, to), members) as usize;
                    assert!(blocks <= places.len(), "{members}, {rank} has what it sends to {to}");
                }
            }
            assert!((0..members).all(|place| places[place as usize] == (rank + place) % members));
            assert_eq!(places.len() as u32, blocks_at(&all_gather, rank, members), "{rank} of {members}");
        }
        let all_to_all = Operation::AllToAll { bytes: 8 };
        let there = run(Shape::default(), all_to_all, members);
        assert_eq!((there.packets, there.time), (members * (members - 1), u32::from(members > 1)));
        assert_eq!(there.known, everyone(members), "{members}");
    }
}

#[test]
fn the_examples_hold() {
    let of_degree =
        |degree| Shape { barrier: BarrierSchedule::GatherBroadcast { degree }, ..Shape::default() };
    let written = |steps: Vec<Step>| {
        let step = |step: &Step| format!("{:?} -> {:?}", step.hear, step.tell);
        steps.iter().map(step).collect::<Vec<String>>()
    };
    let steps = |shape, operation, rank, members| written(steps(shape, &operation, rank, members));
    assert_eq!(steps(Shape::default(), Operation::Barrier, 1, 4), ["[] -> [0]", "[0] -> [3]", "[3] -> []"]);
    assert_eq!(steps(of_degree(3), Operation::Barrier, 0, 4), ["[1, 2, 3] -> [1, 2, 3]"]);
    assert_eq!(steps(Shape::default(), Operation::AllReduce(vector()), 2, 4), ["[3] -> [0]", "[0] -> [3]"]);
    let exchange = Operation::Exchange { distance: 3, bytes: 8 };
    assert_eq!(steps(Shape::default(), exchange, 1, 4), ["[] -> [0]", "[2] -> []"]);
    let gather = Operation::Gather { root: 2, bytes: 8 };
    assert_eq!(steps(Shape::default(), gather, 2, 4), ["[3, 0, 1] -> []"]);
    assert_eq!(steps(Shape::default(), gather, 1, 4), ["[] -> [2]"]);
    let all_gather = Operation::AllGather { bytes: 8 };
    assert_eq!(
        steps(Shape::default(), all_gather, 0, 8),
        ["[] -> [7]", "[1] -> [6]", "[2] -> [4]", "[4] -> []"]
    );
    let all_to_all = Operation::AllToAll { bytes: 8 };
    assert_eq!(steps(Shape::default(), all_to_all, 1, 4), ["[] -> [2, 3, 0]", "[0, 3, 2] -> []"]);
    let in_blocks = Operation::AllReduce(of_floats(2048));
    assert_eq!(steps(Shape::default(), in_blocks, 2, 4), ["[0] -> []", "[3] -> [0, 3]"]);
    assert_eq!(steps(Shape::default(), Operation::Barrier, 0, 3), ["[2] -> [1]", "[1] -> [2]"]);
    assert_eq!(steps(Shape::default(), Operation::Barrier, 2, 3), ["[] -> [0]", "[0] -> []"]);
}
