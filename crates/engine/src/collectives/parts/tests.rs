//! Tests of the cut: all members prepare the same parts, and a machine that does them as it says gives each member what
//! the operation says.

use weir_proto::offload::{WordOperation, WordType};

use super::*;

const SUM: Combination = Combination { operation: WordOperation::Sum, word_type: WordType::U32 };

fn bytes_of(memory: &UserMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.bytes() as usize];
    memory.read(0, &mut bytes);
    bytes
}

/// Does a part of all members as the machine does.
fn perform(parts: &[Part]) {
    let operation = parts[0].operation;
    assert!(parts.iter().all(|part| part.operation == operation), "members start different operations");
    let count = parts.len() as u32;
    let lengths = (0..).zip(parts).map(|(rank, part)| (part, operation.buffer_bytes(rank, count)));
    lengths.for_each(|(part, bytes)| assert_eq!(part.memory.bytes(), u64::from(bytes), "{operation:?}"));
    let combined = |combination: Combination| {
        let all = parts.iter().map(|part| bytes_of(&part.memory));
        all.reduce(|mut left, right| {
            combination.combine(&mut left, &right);
            left
        })
    };
    match operation {
        MachineOperation::Barrier => {}
        MachineOperation::Broadcast { root, bytes } => {
            assert!(bytes > 0 && bytes <= MAX_BROADCAST_BYTES);
            let given = bytes_of(&parts[root as usize].memory);
            let others = parts.iter().enumerate().filter(|(rank, _)| *rank != root as usize);
            others.for_each(|(_, part)| part.memory.write(0, &given));
        }
        MachineOperation::Exchange { distance, bytes } => {
            assert!(
                bytes > 0 && bytes <= MAX_EXCHANGE_BYTES && (1..parts.len()).contains(&(distance as usize))
            );
            let given: Vec<Vec<u8>> = parts.iter().map(|part| bytes_of(&part.memory)).collect();
            for (from, block) in given.iter().enumerate() {
                parts[(from + distance as usize) % parts.len()].memory.write(0, block);
            }
        }
        MachineOperation::Gather { root, bytes } | MachineOperation::Scatter { root, bytes } => {
            assert!(bytes > 0 && bytes <= MAX_EXCHANGE_BYTES && bytes * count <= MAX_GATHERED_BYTES);
            for place in 1..count {
                let (other, at) = ((root + place) % count, u64::from(place * bytes));
                let [other, root] = [other, root].map(|rank| &parts[rank as usize].memory);
                match operation {
                    MachineOperation::Gather { .. } => root.write(at, &bytes_of(other)),
                    _ => other.write(0, &bytes_of(&root.part(at, bytes.into()))),
                }
            }
        }
        MachineOperation::AllGather { bytes } | MachineOperation::AllToAll { bytes } => {
            assert!(bytes > 0 && bytes <= MAX_EXCHANGE_BYTES && bytes * count <= MAX_GATHERED_BYTES);
            let is_gather = matches!(operation, MachineOperation::AllGather { .. });
            let given: Vec<Vec<u8>> = parts.iter().map(|part| bytes_of(&part.memory)).collect();
            for (from, to) in (0..count).flat_map(|from| (0..count).map(move |to| (from, to))) {
                let place = |of: u32, other: u32| ((other + count - of) % count * bytes) as usize;
                let begin = if is_gather { 0 } else { place(from, to) };
                let block = &given[from as usize][begin..begin + bytes as usize];
                parts[to as usize].memory.write(place(to, from) as u64, block);
            }
        }
        MachineOperation::Reduce(vector) | MachineOperation::AllReduce(vector) => {
            assert!(vector.is_valid() && vector.bytes > 0, "{vector:?}");
            let result = combined(vector.combination).expect("a member");
            let is_reduce = matches!(operation, MachineOperation::Reduce(_));
            let members = if is_reduce { &parts[..1] } else { parts };
            members.iter().for_each(|part| part.memory.write(0, &result));
        }
    }
}

/// Byte `place` of what `rank` gives.
fn given(rank: u32, place: u64) -> u8 {
    (u64::from(rank) * 101 + place * 7 + place / 251) as u8
}

/// What `rank` must have in its result, or of a broadcast in its data.
fn expected(shape: CollectiveShape) -> Vec<u8> {
    use CollectiveOperation as Op;
    let CollectiveShape { operation, block_bytes, rank, members } = shape;
    let block = |of: u32, first: u64| (first..first + block_bytes).map(move |place| given(of, place));
    let begin = |rank: u32| block_bytes * u64::from(rank);
    let combined = |first: u64| {
        let all = (0..members).map(|of| block(of, first).collect::<Vec<u8>>());
        let sum = all.reduce(|mut left, right| {
            SUM.combine(&mut left, &right);
            left
        });
        sum.expect("a member")
    };
    match operation {
        Op::Barrier => Vec::new(),
        Op::Broadcast { root } => block(root, 0).collect(),
        Op::Reduce { root, .. } | Op::Gather { root } if root != rank => Vec::new(),
        Op::Reduce { .. } | Op::AllReduce { .. } => combined(0),
        Op::ReduceScatter { .. } => combined(begin(rank)),
        Op::AllGather | Op::Gather { .. } => (0..members).flat_map(|of| block(of, 0)).collect(),
        Op::Scatter { root } => block(root, begin(rank)).collect(),
        Op::AllToAll => (0..members).flat_map(|of| block(of, begin(rank))).collect(),
    }
}

fn check(operation: CollectiveOperation, block_bytes: u64, members: u32) {
    let shapes = (0..members).map(|rank| CollectiveShape { operation, block_bytes, rank, members });
    let shapes: Vec<CollectiveShape> = shapes.collect();
    let buffers: Vec<[OwnedMemory; 2]> = shapes
        .iter()
        .map(|shape| {
            assert!(shape.is_valid());
            let data = OwnedMemory::new(shape.data_bytes() as usize);
            let bytes: Vec<u8> = (0..shape.data_bytes()).map(|place| given(shape.rank, place)).collect();
            data.view().write(0, &bytes);
            [data, OwnedMemory::new(shape.result_bytes() as usize)]
        })
        .collect();
    let gathered = shapes[0].gathered_bytes() as usize;
    let gathered = shapes.iter().map(|_| (gathered > 0).then(|| OwnedMemory::new(gathered)));
    let gathered: Vec<Option<OwnedMemory>> = gathered.collect();
    let into = |rank: usize| gathered[rank].as_ref().unwrap_or(&buffers[rank][1]).view();
    for (rank, (shape, [data, _])) in shapes.iter().zip(&buffers).enumerate() {
        keep_own_block(shape, &data.view(), &into(rank));
    }
    for part in 0..shapes[0].parts() {
        let members = shapes.iter().zip(&buffers).enumerate();
        let parts = members.map(|(rank, (shape, [data, _]))| prepare(shape, part, &data.view(), &into(rank)));
        perform(&parts.collect::<Vec<Part>>());
    }
    for (shape, ([_, result], gathered)) in shapes.iter().zip(buffers.iter().zip(&gathered)) {
        if let Some(gathered) = gathered {
            combine_gathered(shape, &gathered.view(), &result.view());
        }
    }
    for (shape, [data, result]) in shapes.iter().zip(&buffers) {
        let is_broadcast = matches!(operation, CollectiveOperation::Broadcast { .. });
        let found = bytes_of(&if is_broadcast { data.view() } else { result.view() });
        assert!(found == expected(*shape), "{shape:?}");
        let unchanged = (0..shape.data_bytes()).map(|place| given(shape.rank, place));
        assert!(is_broadcast || bytes_of(&data.view()).into_iter().eq(unchanged), "the data of {shape:?}");
    }
}

#[test]
fn every_operation_gives_each_member_its_result_at_any_length() {
    use CollectiveOperation::*;
    for members in [1, 2, 3, 5, 8] {
        let mut operations = vec![
            Barrier,
            AllReduce { combination: SUM },
            ReduceScatter { combination: SUM },
            AllGather,
            AllToAll,
        ];
        for root in 0..members {
            operations.extend([
                Broadcast { root },
                Reduce { root, combination: SUM },
                Gather { root },
                Scatter { root },
            ]);
        }
        for operation in operations {
            // Blocks that end within a part, at its end and in a later one.
            for block_bytes in [0, 4, 1000, 4096, 5000, 16_384, 20_004] {
                let block_bytes = if operation == Barrier { 0 } else { block_bytes };
                check(operation, block_bytes, members);
            }
        }
    }
}

#[test]
fn short_operations_of_all_are_one_part_and_longer_ones_are_cut() {
    use CollectiveOperation::*;
    let parts = |operation, block_bytes, members| {
        let shape = CollectiveShape { operation, block_bytes, rank: 1, members };
        let bytes = (shape.data_bytes() as usize, (shape.result_bytes() + shape.gathered_bytes()) as usize);
        let (data, result) = (OwnedMemory::new(bytes.0), OwnedMemory::new(bytes.1));
        let first = prepare(&shape, 0, &data.view(), &result.view());
        (shape.parts(), first.operation)
    };
    let bytes = |bytes| (1, MachineOperation::AllGather { bytes });
    assert_eq!(parts(AllGather, 16_384, 8), bytes(16_384));
    assert_eq!(parts(AllGather, 16_385, 8), (2, MachineOperation::AllGather { bytes: 16_384 }));
    assert_eq!(parts(AllReduce { combination: SUM }, 512, 8), bytes(512));
    let vector = Vector { bytes: 516, combination: SUM };
    assert_eq!(parts(AllReduce { combination: SUM }, 516, 8), (1, MachineOperation::AllReduce(vector)));
    assert_eq!(parts(AllToAll, 8192, 8), (1, MachineOperation::AllToAll { bytes: 8192 }));
    let exchange = |bytes| MachineOperation::Exchange { distance: 1, bytes };
    assert_eq!(parts(AllToAll, 8193, 8), (7, exchange(8193)));
}

#[test]
fn an_all_to_all_sends_each_member_its_own_blocks_only() {
    let bytes_sent = |operation, block_bytes, members| {
        let shape = CollectiveShape { operation, block_bytes, rank: 1, members };
        let (data, result) = (OwnedMemory::new(shape.data_bytes() as usize), OwnedMemory::new(1 << 20));
        let parts = (0..shape.parts()).map(|part| prepare(&shape, part, &data.view(), &result.view()));
        let sent = |operation: MachineOperation| match operation {
            MachineOperation::AllToAll { bytes } => u64::from(bytes * (members - 1)),
            operation => operation.bytes().into(),
        };
        parts.map(|part| sent(part.operation)).sum::<u64>()
    };
    let combination = SUM;
    for members in [2, 3, 8] {
        assert_eq!(
            bytes_sent(CollectiveOperation::AllToAll, 20_000, members),
            20_000 * u64::from(members - 1)
        );
        let long = CollectiveOperation::ReduceScatter { combination };
        assert_eq!(bytes_sent(long, 20_000, members), 20_000 * u64::from(members - 1));
        // A short one is a single part.
        assert_eq!(bytes_sent(long, 512, members), 512 * u64::from(members));
    }
}

#[test]
fn a_gather_and_a_scatter_of_many_members_have_shorter_parts() {
    for operation in [CollectiveOperation::Gather { root: 3 }, CollectiveOperation::Scatter { root: 3 }] {
        let parts =
            |block_bytes, members| CollectiveShape { operation, block_bytes, rank: 0, members }.parts();
        assert_eq!((parts(16_384, 64), parts(16_385, 64)), (1, 2), "16 KiB of each");
        assert_eq!((parts(4096, 256), parts(4097, 256)), (1, 2), "1 MiB of all");
        assert_eq!((parts(256, 4096), parts(0, 4096)), (1, 0));
    }
    for root in [0, 2, 4] {
        for block_bytes in [16_384, 16_388, 40_000] {
            check(CollectiveOperation::Gather { root }, block_bytes, 70);
            check(CollectiveOperation::Scatter { root }, block_bytes, 70);
        }
    }
}

#[test]
fn sums_of_floats_have_shorter_parts() {
    let parts = |word_type, operation| {
        let combination = Combination { operation, word_type };
        let operation = CollectiveOperation::AllReduce { combination };
        CollectiveShape { operation, block_bytes: 4096, rank: 0, members: 16 }.parts()
    };
    assert_eq!(parts(WordType::F64, WordOperation::Sum), 2);
    assert_eq!((parts(WordType::F64, WordOperation::Max), parts(WordType::I64, WordOperation::Sum)), (1, 1));
}

#[test]
fn data_and_result_may_be_one_buffer_in_an_all_reduce() {
    let shapes = [0, 1].map(|rank| CollectiveShape {
        operation: CollectiveOperation::AllReduce { combination: SUM },
        block_bytes: 4096,
        rank,
        members: 2,
    });
    let buffers = [1_u8, 2].map(|value| {
        let memory = OwnedMemory::new(4096);
        memory.view().write(0, &[value; 4096]);
        memory
    });
    let prepared = |rank: usize| prepare(&shapes[rank], 0, &buffers[rank].view(), &buffers[rank].view());
    perform(&[prepared(0), prepared(1)]);
    assert!(buffers.iter().all(|buffer| bytes_of(&buffer.view()) == [3; 4096]));
}

#[test]
fn shapes_that_no_member_can_do_are_not_valid() {
    use CollectiveOperation::*;
    let valid = |operation, block_bytes, members| {
        CollectiveShape { operation, block_bytes, rank: 0, members }.is_valid()
    };
    assert!(valid(Broadcast { root: 1 }, 3, 2) && !valid(Broadcast { root: 2 }, 3, 2));
    assert!(valid(AllReduce { combination: SUM }, 8, 2) && !valid(AllReduce { combination: SUM }, 6, 2));
    let none = Combination { operation: WordOperation::Write, ..SUM };
    assert!(!valid(ReduceScatter { combination: none }, 8, 2));
    assert!(
        valid(AllToAll, MAX_COLLECTIVE_BYTES / 2, 2) && !valid(AllToAll, MAX_COLLECTIVE_BYTES / 2 + 1, 2)
    );
    assert!(!valid(AllGather, u64::MAX, 3));
}
