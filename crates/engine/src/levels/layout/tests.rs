//! Tests of layouts: what is done on which level, and where blocks go.

use super::*;
use weir_proto::offload::{Combination, WordOperation, WordType};

fn vector(word_type: WordType, bytes: u32) -> Vector {
    Vector { bytes, combination: Combination { operation: WordOperation::Sum, word_type } }
}

fn layout(rank: u32) -> Layout {
    Layout::new(&[7, 3, 7, 7, 3], rank).expect("few members")
}

#[test]
fn nodes_have_the_order_of_their_first_ranks() {
    let places: Vec<_> = (0..5).map(|rank| (layout(rank).node(), layout(rank).place())).collect();
    assert_eq!(places, [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1)]);
    assert_eq!((layout(4).neighbours(), layout(4).nodes(), layout(4).members()), (&[1, 4][..], 2, 5));
    assert!(layout(0).participants().eq([0, 1]));
    assert_eq!(Layout::new(&[7; 300], 0), None, "more than a node group has");
    assert_eq!(Layout::new(&[7], 1), None, "no such rank");
}

#[test]
fn a_broadcast_goes_down_only_where_the_bytes_have_not_been() {
    let of = |root| Operation::Broadcast { root, bytes: 5 };
    let at = |place| Some(Operation::Broadcast { root: place, bytes: 5 });
    // The root is a participant, or the third of its node.
    assert_eq!((layout(2).up(of(0)), layout(2).down(of(0))), (None, at(0)));
    assert_eq!((layout(2).up(of(3)), layout(2).down(of(3))), (at(2), None));
    assert_eq!((layout(1).up(of(3)), layout(1).down(of(3))), (None, at(0)));
    assert_eq!(layout(1).network(of(4)).operation, CollectiveOperation::Broadcast { root: 1 });
    let alone = Layout::new(&[1, 2, 2], 0).expect("few");
    assert_eq!((alone.up(of(0)), alone.down(of(0))), (None, None));
}

#[test]
fn floats_are_combined_rank_by_rank_and_integers_node_by_node() {
    let floats = Operation::AllReduce(vector(WordType::F64, 8));
    assert_eq!(layout(0).up(floats), Some(Operation::Gather { root: 0, bytes: 8 }));
    assert_eq!(
        layout(0).network(floats),
        NetworkStep { operation: CollectiveOperation::AllGather, block_bytes: 24 }
    );
    let values = [1e16, 1.0, -1e16, 1.0, 3.0];
    let gathered: Vec<u8> = [values[0], values[2], values[3], values[1], values[4], 0.0]
        .iter()
        .flat_map(|value: &f64| value.to_ne_bytes())
        .collect();
    let mut outcome = [0; 8];
    layout(1).finish(floats, &gathered, &mut outcome);
    assert_eq!(f64::from_ne_bytes(outcome), values.iter().sum::<f64>(), "as by one rank after the other");

    let integers = Operation::AllReduce(vector(WordType::I64, 8));
    assert_eq!(layout(0).up(integers), Some(Operation::Reduce { root: 0, vector: vector(WordType::I64, 8) }));
    let gathered: Vec<u8> = [5_i64, -2].iter().flat_map(|value| value.to_ne_bytes()).collect();
    layout(1).finish(integers, &gathered, &mut outcome);
    assert_eq!(i64::from_ne_bytes(outcome), 3);
}

#[test]
fn gathered_blocks_have_the_order_of_ranks() {
    let operation = Operation::AllGather { bytes: 2 };
    let mut outcome = [0; 10];
    layout(0).finish(operation, b"aaccddbbee..", &mut outcome);
    assert_eq!(&outcome, b"aabbccddee");
}

#[test]
fn a_gather_ends_at_its_root_and_a_scatter_passes_by_the_nodes_that_have_it() {
    let gather = |root| Operation::Gather { root, bytes: 2 };
    let all = Some(Operation::Broadcast { root: 0, bytes: 10 });
    assert_eq!((layout(2).down(gather(3)), layout(2).down(gather(0))), (all, None));
    assert_eq!((layout(4).down(gather(3)), layout(1).down(gather(4))), (None, all));
    let step = NetworkStep { operation: CollectiveOperation::Gather { root: 1 }, block_bytes: 6 };
    assert_eq!(layout(0).network(gather(4)), step);

    let scatter = |root| Operation::Scatter { root, bytes: 2 };
    let blocks = Some(Operation::Broadcast { root: 2, bytes: 10 });
    assert_eq!((layout(2).up(scatter(3)), layout(2).down(scatter(3))), (blocks, None));
    let own = Some(Operation::Scatter { root: 0, bytes: 2 });
    assert_eq!((layout(4).up(scatter(3)), layout(4).down(scatter(3))), (None, own));
    let step = NetworkStep { operation: CollectiveOperation::Scatter { root: 0 }, block_bytes: 6 };
    assert_eq!(layout(4).network(scatter(3)), step);
    let sent = layout(0).scattered(2, b"aabbccddee");
    assert_eq!(sent, b"aaccddbbee\0\0");
    let mut outcome = [0; 4];
    layout(4).finish(scatter(3), &sent[6..], &mut outcome);
    assert_eq!(&outcome, b"bbee");
}

#[test]
fn blocks_of_an_all_to_all_go_to_their_nodes_and_places() {
    // From rank 0 to 4: AA to AE, and so on.
    let of = |rank: u8| (0..5).flat_map(move |to| [b'A' + rank, b'A' + to]).collect::<Vec<u8>>();
    let operation = Operation::AllToAll { bytes: 2 };
    let given = [[0, 2, 3].map(of).concat(), [1, 4].map(of).concat()];
    let sent = [layout(0).exchanged(2, &given[0]), layout(1).exchanged(2, &given[1])];
    let NetworkStep { operation: step, block_bytes } = layout(0).network(operation);
    assert_eq!((step, block_bytes), (CollectiveOperation::AllToAll, 18));
    assert!(sent.iter().all(|sent| sent.len() == 36));
    for (node, rank) in [(0, 0), (1, 1)] {
        let layout = layout(rank);
        let gathered = sent.each_ref().map(|sent| sent[node * 18..(node + 1) * 18].to_vec()).concat();
        let mut outcome = vec![0; layout.outcome_bytes(operation)];
        layout.finish(operation, &gathered, &mut outcome);
        let to = |to: &u32| (0..5).flat_map(|from| [b'A' + from, b'A' + *to as u8]).collect::<Vec<u8>>();
        assert_eq!(outcome, layout.neighbours().iter().flat_map(to).collect::<Vec<u8>>());
    }
}

#[test]
fn all_members_take_the_same_operations() {
    let limit = MOST_GATHERED_BYTES as u32;
    for rank in 0..5 {
        let layout = layout(rank);
        for (operation, is_taken) in [
            (Operation::Barrier, true),
            (Operation::Broadcast { root: 4, bytes: limit }, true),
            (Operation::Broadcast { root: 5, bytes: 1 }, false),
            (Operation::Broadcast { root: 4, bytes: limit + 1 }, false),
            (Operation::AllReduce(vector(WordType::F64, limit / 6 / 8 * 8)), true),
            (Operation::AllReduce(vector(WordType::F64, 4096)), false),
            (Operation::AllReduce(vector(WordType::I64, 4096)), true),
            (Operation::AllGather { bytes: limit / 6 }, true),
            (Operation::AllGather { bytes: limit / 6 + 1 }, false),
            (Operation::Gather { root: 4, bytes: limit / 6 }, true),
            (Operation::Gather { root: 0, bytes: limit / 6 + 1 }, false),
            (Operation::Gather { root: 5, bytes: 1 }, false),
            (Operation::Scatter { root: 4, bytes: limit / 6 }, true),
            (Operation::Scatter { root: 4, bytes: limit / 6 + 1 }, false),
            (Operation::AllToAll { bytes: limit / 18 }, true),
            (Operation::AllToAll { bytes: limit / 18 + 1 }, false),
        ] {
            assert_eq!(layout.takes(operation), is_taken, "{operation:?} at {rank}");
        }
    }
    let many: Vec<u64> = (0..8).collect();
    let layout = Layout::new(&many, 3).expect("few members");
    let of = |word_type| Operation::Reduce { root: 5, vector: vector(word_type, 4096) };
    assert_eq!((layout.takes(of(WordType::U64)), layout.takes(of(WordType::F32))), (true, false));
    assert!(matches!(
        layout.network(of(WordType::U64)).operation,
        CollectiveOperation::Reduce { root: 5, .. }
    ));
}
