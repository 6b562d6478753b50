//! What a case must give: plain loops, one rank after the other, with arithmetic of its own (128-bit integers, 64-bit floats).

use std::collections::HashMap;

use weir_link::shm::node_group::Operation;
use weir_proto::offload::reduce::Vector;
use weir_proto::offload::{Combination, WordOperation, WordType};

use crate::case::{Case, Change, Collective, Results, lengths_to};
use crate::locks;

pub fn expected(case: &Case, members: u32) -> Results {
    match case {
        Case::Collectives(all) => all.iter().map(|it| of_collective(it, members)).collect(),
        Case::Words(lists) => vec![lists.iter().map(|list| of_changes(list)).collect()],
        Case::Lock(lock) => vec![locks::expected(lock, members)],
        Case::MultiSends(lists) => {
            let lengths =
                |to| lengths_to(lists, to).concat().iter().flat_map(|it| it.to_le_bytes()).collect();
            vec![(0..members).map(lengths).collect()]
        }
    }
}

fn of_collective(collective: &Collective, members: u32) -> Vec<Vec<u8>> {
    let Collective { operation, data } = collective;
    let block = |from: usize, number: usize, bytes: u32| {
        let bytes = bytes as usize;
        data[from][number * bytes..(number + 1) * bytes].to_vec()
    };
    let of_rank = |rank: usize| match *operation {
        Operation::Barrier => Vec::new(),
        Operation::AllReduce(vector) => combined(vector, data),
        Operation::Reduce { root, vector } if root as usize == rank => combined(vector, data),
        Operation::Broadcast { root, .. } if root as usize != rank => data[root as usize].clone(),
        Operation::AllGather { .. } => data.concat(),
        Operation::Gather { root, .. } if root as usize == rank => data.concat(),
        Operation::AllToAll { bytes } => {
            (0..members as usize).flat_map(|from| block(from, rank, bytes)).collect()
        }
        Operation::Scatter { root, bytes } if root as usize != rank => block(root as usize, rank, bytes),
        _ => Vec::new(),
    };
    (0..members as usize).map(of_rank).collect()
}

fn combined(vector: Vector, data: &[Vec<u8>]) -> Vec<u8> {
    let Combination { operation, word_type } = vector.combination;
    let bytes = word_type.bytes() as usize;
    let word_of = |rank: usize, at: usize| load(&data[rank][at..at + bytes]);
    let both = |first, second| apply(operation, word_type, [first, second, 0]);
    let elements = (0..vector.bytes as usize).step_by(bytes).flat_map(|at| {
        let words = (0..data.len()).map(|rank| word_of(rank, at));
        let word = words.reduce(both).expect("a member");
        word.to_le_bytes().into_iter().take(bytes)
    });
    elements.collect()
}

fn of_changes(list: &[Change]) -> Vec<u8> {
    let mut words = HashMap::new();
    let olds = list.iter().flat_map(|Change { to, word, update }| {
        let word = words.entry((*to, *word)).or_insert(0_u64);
        let mask = if update.word_type.bytes() == 4 { u64::from(u32::MAX) } else { u64::MAX };
        let old = *word & mask;
        let new = apply(update.operation, update.word_type, [old, update.operand, update.compare]);
        *word = *word & !mask | new & mask;
        old.to_le_bytes()
    });
    olds.collect()
}

fn load(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// The new word of these bits: the old word, the operand, and the compare value.
fn apply(operation: WordOperation, word_type: WordType, bits: [u64; 3]) -> u64 {
    let integers = |value: fn(u64) -> i128| of_integers(operation, bits.map(value));
    match word_type {
        WordType::U32 => u64::from(integers(|bits| (bits as u32).into()) as u32),
        WordType::I32 => u64::from(integers(|bits| (bits as i32).into()) as u32),
        WordType::U64 => integers(|bits| bits.into()) as u64,
        WordType::I64 => integers(|bits| (bits as i64).into()) as u64,
        // 64-bit arithmetic, rounded once more, gives the bits of 32-bit arithmetic.
        WordType::F32 => {
            let values = bits.map(|bits| f64::from(f32::from_bits(bits as u32)));
            (of_floats(operation, values) as f32).to_bits().into()
        }
        WordType::F64 => of_floats(operation, bits.map(f64::from_bits)).to_bits(),
    }
}

/// Whether a conditional swap replaces. `None`: it is none.
fn swaps<T: PartialOrd>(operation: WordOperation, old: &T, compare: &T) -> Option<bool> {
    match operation {
        WordOperation::CompareSwap => Some(compare == old),
        WordOperation::SwapIfNotEqual => Some(compare != old),
        WordOperation::SwapIfLessEqual => Some(compare <= old),
        WordOperation::SwapIfLess => Some(compare < old),
        WordOperation::SwapIfGreaterEqual => Some(compare >= old),
        WordOperation::SwapIfGreater => Some(compare > old),
        _ => None,
    }
}

fn of_integers(operation: WordOperation, [old, operand, compare]: [i128; 3]) -> i128 {
    let is_true = |value: bool| if value { 1 } else { 0 };
    match operation {
        WordOperation::Read => old,
        WordOperation::Write => operand,
        WordOperation::Sum => old + operand,
        WordOperation::Difference => old - operand,
        WordOperation::Product => old.wrapping_mul(operand),
        WordOperation::Min => {
            if operand < old {
                operand
            } else {
                old
            }
        }
        WordOperation::Max => {
            if operand > old {
                operand
            } else {
                old
            }
        }
        WordOperation::And => old & operand,
        WordOperation::Or => old | operand,
        WordOperation::Xor => old ^ operand,
        WordOperation::LogicalAnd => is_true(old != 0 && operand != 0),
        WordOperation::LogicalOr => is_true(old != 0 || operand != 0),
        WordOperation::LogicalXor => is_true((old == 0) != (operand == 0)),
        WordOperation::MaskedSwap => old ^ ((old ^ operand) & compare),
        _ => {
            if swaps(operation, &old, &compare) == Some(true) {
                operand
            } else {
                old
            }
        }
    }
}

fn of_floats(operation: WordOperation, [old, operand, compare]: [f64; 3]) -> f64 {
    let is_true = |value: bool| if value { 1.0 } else { 0.0 };
    match operation {
        WordOperation::Read => old,
        WordOperation::Write => operand,
        WordOperation::Sum => old + operand,
        WordOperation::Difference => old - operand,
        WordOperation::Product => old * operand,
        // A number wins against what is none; the first of two that are equal stays.
        WordOperation::Min if operand.is_nan() => old,
        WordOperation::Max if operand.is_nan() => old,
        WordOperation::Min => {
            if old <= operand {
                old
            } else {
                operand
            }
        }
        WordOperation::Max => {
            if old >= operand {
                old
            } else {
                operand
            }
        }
        WordOperation::LogicalAnd => is_true(old != 0.0 && operand != 0.0),
        WordOperation::LogicalOr => is_true(old != 0.0 || operand != 0.0),
        WordOperation::LogicalXor => is_true((old == 0.0) != (operand == 0.0)),
        _ => {
            if swaps(operation, &old, &compare) == Some(true) {
                operand
            } else {
                old
            }
        }
    }
}
