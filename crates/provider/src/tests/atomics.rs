//! Tests of remote atomics: every operation on every type against plain expressions, in all forms of the calls.

use super::*;

const KEY: u64 = 9;
const BOTH: u64 = flags::REMOTE_READ | flags::REMOTE_WRITE;
const INT32: c_int = 4;
const INT64: c_int = 6;
const UINT64: c_int = 7;
const DOUBLE: c_int = 9;
const SUM: c_int = 2;
const READ: c_int = 10;
const CSWAP: c_int = 12;
/// Words of a vector in these tests.
const WORDS: usize = 5;

/// Registers memory on `side`.
fn register(side: &Side, memory: &mut [u8], access: u64) -> Box<RegionHandle> {
    let (mr, bytes) = (table(side.domain.mr), memory.len());
    let memory = buffer(memory);
    opened(|out| (mr.reg)(&side.domain, memory, bytes, access, 0, KEY, 0, out, 0))
}

fn close(region: Box<RegionHandle>) {
    assert_eq!((ops::<RegionHandle>(&region.fid).close)(region), 0);
}

/// A type of libfabric, with what its operations make of target, operand and compare value.
trait Word: Copy + PartialEq + std::fmt::Debug {
    const NUMBER: c_int;
    const VALUES: [Self; WORDS];
    /// `None`: the type does not have the operation.
    fn expected(operation: c_int, target: Self, operand: Self, compare: Self) -> Option<Self>;
    fn bytes(words: &[Self]) -> Vec<u8>;
}

/// The operations that all types have, as fi_atomic(3) says them.
macro_rules! common {
    ($operation:ident, $target:ident, $operand:ident, $compare:ident, $sum:expr, $product:expr, $difference:expr) => {
        match $operation {
            0 => Some(if $operand < $target { $operand } else { $target }),
            1 => Some(if $operand > $target { $operand } else { $target }),
            2 => Some($sum),
            3 => Some($product),
            4 => Some(Self::from(i8::from($target != Self::default() || $operand != Self::default()) as u8)),
            5 => Some(Self::from(i8::from($target != Self::default() && $operand != Self::default()) as u8)),
            8 => Some(Self::from(
                i8::from(($target != Self::default()) != ($operand != Self::default())) as u8
            )),
            10 => Some($target),
            11 => Some($operand),
            12 => Some(if $compare == $target { $operand } else { $target }),
            13 => Some(if $compare != $target { $operand } else { $target }),
            14 => Some(if $compare <= $target { $operand } else { $target }),
            15 => Some(if $compare < $target { $operand } else { $target }),
            16 => Some(if $compare >= $target { $operand } else { $target }),
            17 => Some(if $compare > $target { $operand } else { $target }),
            19 => Some($difference),
            _ => None,
        }
    };
}

macro_rules! integers {
    ($($type:ty: $number:literal, $values:expr;)*) => {$(
        impl Word for $type {
            const NUMBER: c_int = $number;
            const VALUES: [$type; WORDS] = $values;

            fn expected(operation: c_int, target: $type, operand: $type, compare: $type) -> Option<$type> {
                match operation {
                    6 => Some(target | operand),
                    7 => Some(target & operand),
                    9 => Some(target ^ operand),
                    18 => Some((operand & compare) | (target & !compare)),
                    _ => common!(
                        operation, target, operand, compare,
                        target.wrapping_add(operand), target.wrapping_mul(operand), target.wrapping_sub(operand)
                    ),
                }
            }

            fn bytes(words: &[$type]) -> Vec<u8> {
                words.iter().flat_map(|word| word.to_ne_bytes()).collect()
            }
        }
    )*};
}
integers! {
    i32: 4, [0, -1, 7, i32::MIN, i32::MAX];
    u32: 5, [0, 1, 7, 1 << 31, u32::MAX];
    i64: 6, [0, -1, 7, i64::MIN, i64::MAX];
    u64: 7, [0, 1, 7, 1 << 63, u64::MAX];
}

macro_rules! floats {
    ($($type:ty: $number:literal;)*) => {$(
        impl Word for $type {
            const NUMBER: c_int = $number;
            const VALUES: [$type; WORDS] = [0.0, -1.5, 7.0, 1e30, <$type>::MAX];

            fn expected(operation: c_int, target: $type, operand: $type, compare: $type) -> Option<$type> {
                common!(
                    operation, target, operand, compare,
                    target + operand, target * operand, target - operand
                )
            }

            fn bytes(words: &[$type]) -> Vec<u8> {
                words.iter().flat_map(|word| word.to_ne_bytes()).collect()
            }
        }
    )*};
}
floats! {
    f32: 8;
    f64: 9;
}

/// The values, from place `first` on.
fn turned<T: Word>(first: usize) -> [T; WORDS] {
    std::array::from_fn(|place| T::VALUES[(place + first) % WORDS])
}

/// Calls every operation on vectors of one word and of several, each with every pair of values.
fn check_type<T: Word>(one: &Side, other: &Side, window: &mut [u8]) {
    let (atomic, null) = (table(one.endpoint().atomic), std::ptr::null_mut());
    let bytes = size_of::<T>() * WORDS;
    for operation in 0..=20 {
        let is_compare = (12..=18).contains(&operation);
        let has_operation = T::expected(operation, T::VALUES[1], T::VALUES[2], T::VALUES[2]).is_some();
        let mut count = 0;
        let valid = |family: c_int, count: &mut usize| {
            let valid = [atomic.writevalid, atomic.readwritevalid, atomic.compwritevalid][family as usize];
            let code = valid(one.endpoint(), T::NUMBER, operation, Out::from(count));
            assert!(code == 0 || code == -95, "{code}");
            code == 0
        };
        let found = [0, 1, 2].map(|family| valid(family, &mut count));
        let expected = [
            has_operation && !is_compare && operation != READ,
            has_operation && !is_compare,
            has_operation && is_compare,
        ];
        assert_eq!(found, expected, "operation {operation} of type {}", T::NUMBER);
        assert!(!has_operation || count == 4096 / size_of::<T>());
        for (shift, compare_shift) in (0..WORDS * WORDS).map(|number| (number / WORDS, number % WORDS)) {
            let (targets, operands, compares): ([T; WORDS], [T; WORDS], [T; WORDS]) =
                (turned(0), turned(shift), turned(compare_shift));
            let words = if compare_shift % 2 == 0 { WORDS } else { 1 };
            let new: Vec<T> = (0..WORDS)
                .filter_map(|place| match place < words {
                    true => T::expected(operation, targets[place], operands[place], compares[place]),
                    false => Some(targets[place]),
                })
                .collect();
            let (mut from, mut compare) = (T::bytes(&operands), T::bytes(&compares));
            let mut old = vec![0; bytes];
            window[..bytes].copy_from_slice(&T::bytes(&targets));
            let (ep, code) = (one.endpoint(), (T::NUMBER, operation));
            let (from, into, with) = (buffer(&mut from), buffer(&mut old), buffer(&mut compare));
            let posted = if is_compare {
                (atomic.compwrite)(
                    ep, from, words, null, with, null, into, null, 1, 0, KEY, code.0, code.1, 4,
                )
            } else {
                (atomic.readwrite)(ep, from, words, null, into, null, 1, 0, KEY, code.0, code.1, 4)
            };
            if !has_operation {
                assert_eq!(posted, -95, "operation {operation} of type {}", T::NUMBER);
                break;
            }
            assert_eq!(posted, 0, "operation {operation} of type {}", T::NUMBER);
            let entry = one.read(other).expect("the answer").0;
            assert_eq!((entry.op_context, entry.flags), (4, flags::ATOMIC | flags::READ));
            let case = format!("operation {operation} of {targets:?}, {operands:?}, {compares:?}");
            let fetched = words * size_of::<T>();
            assert_eq!(&old[..fetched], &T::bytes(&targets)[..fetched], "{case}");
            assert_eq!(window[..bytes], T::bytes(&new), "{case}");
            if is_compare || operation == READ {
                continue;
            }
            // The same without the old words.
            window[..bytes].copy_from_slice(&T::bytes(&targets));
            assert_eq!((atomic.write)(ep, from, words, null, 1, 0, KEY, code.0, code.1, 5), 0);
            let entry = one.read(other).expect("the answer").0;
            assert_eq!((entry.op_context, entry.flags), (5, flags::ATOMIC | flags::WRITE));
            assert_eq!(window[..bytes], T::bytes(&new), "{case}");
        }
    }
}

#[test]
fn every_operation_on_every_type_does_what_libfabric_says() {
    let (one, other) = pair(threading::SAFE, 0);
    let mut window = vec![0; 8 * WORDS];
    let region = register(&other, &mut window, BOTH);
    check_type::<i32>(&one, &other, &mut window);
    check_type::<u32>(&one, &other, &mut window);
    check_type::<i64>(&one, &other, &mut window);
    check_type::<u64>(&one, &other, &mut window);
    check_type::<f32>(&one, &other, &mut window);
    check_type::<f64>(&one, &other, &mut window);
    close(region);
    let atomic = table(one.endpoint().atomic);
    for datatype in [-1, 0, 3, 10, 15] {
        assert_eq!((atomic.writevalid)(one.endpoint(), datatype, SUM, Out::from(&mut 0)), -95);
    }
}

#[test]
fn a_query_says_what_the_valid_calls_say() {
    let (one, _other) = pair(threading::SAFE, 0);
    let query = |datatype, operation, flags| {
        let mut attr = FiAtomicAttr { count: 0, size: 0 };
        let query = table(one.domain.ops).query_atomic;
        (query(&one.domain, datatype, operation, Out::from(&mut attr), flags), attr.count, attr.size)
    };
    assert_eq!(query(DOUBLE, SUM, 0), (0, 512, 8));
    assert_eq!(query(INT32, READ, 1 << 58), (0, 1024, 4));
    assert_eq!(query(INT32, READ, 0), (-95, 0, 0));
    assert_eq!(query(UINT64, CSWAP, 1 << 59), (0, 512, 8));
    assert_eq!(query(UINT64, CSWAP, 1 << 58), (-95, 0, 0));
    assert_eq!(query(DOUBLE, SUM, 1), (-260, 0, 0));
}

/// The vector and message forms, with the longest vector.
#[test]
fn vectors_in_pieces_are_changed_as_a_whole() {
    const LONGEST: usize = 512;
    let (one, other) = pair(threading::SAFE, SELECTIVE);
    let mut window = vec![1_u64; LONGEST + 1].iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let region = register(&other, &mut window, BOTH);
    let atomic = table(one.endpoint().atomic);
    let mut operands: Vec<u8> = (0..LONGEST as u64).flat_map(u64::to_ne_bytes).collect();
    let mut old = vec![0; 8 * LONGEST];
    let pieces = |memory: &mut [u8]| {
        let (first, second) = memory.split_at_mut(24);
        let (counts, second_bytes) = ((3, LONGEST - 3), second.len());
        assert_eq!(second_bytes, 8 * counts.1);
        [FiIoc { addr: buffer(first), count: counts.0 }, FiIoc { addr: buffer(second), count: counts.1 }]
    };
    let (from, into) = (pieces(&mut operands), pieces(&mut old));
    // SAFETY: the pieces are live during the calls.
    let [from, into] = [&from, &into].map(|pieces| unsafe { UserWords::new(pieces.as_ptr()) });
    let remote = [FiRmaIoc { addr: 8, count: LONGEST, key: KEY }];
    let message = |op| FiMsgAtomic {
        msg_iov: from,
        iov_count: 2,
        addr: 1,
        rma_iov: remote.as_ptr(),
        rma_iov_count: 1,
        datatype: INT64,
        op,
        context: 7,
        ..zeroed()
    };
    let (ep, null) = (one.endpoint(), std::ptr::null_mut());
    let asked = flags::COMPLETION | flags::DELIVERY_COMPLETE;
    assert_eq!((atomic.readwritemsg)(ep, &message(SUM), into, null, 2, asked), 0);
    assert_eq!(one.read(&other).expect("the answer").0.op_context, 7);
    let word =
        |bytes: &[u8], place: usize| u64::from_ne_bytes(bytes[8 * place..][..8].try_into().expect("a word"));
    for place in 0..LONGEST {
        assert_eq!((word(&old, place), word(&window, place + 1)), (1, 1 + place as u64), "{place}");
    }
    assert_eq!(word(&window, 0), 1, "before the vector");
    // A read without operands.
    let read = FiMsgAtomic { iov_count: 0, ..message(READ) };
    assert_eq!((atomic.readwritemsg)(ep, &read, into, null, 2, flags::COMPLETION), 0);
    one.read(&other).expect("the answer");
    assert_eq!((word(&old, 0), word(&old, LONGEST - 1)), (1, LONGEST as u64));
    // Compares: all words that equal the operands plus one get the operands.
    assert_eq!(
        (atomic.compwritemsg)(ep, &message(CSWAP), into, null, 2, into, null, 2, flags::COMPLETION),
        0
    );
    one.read(&other).expect("the answer");
    assert_eq!((word(&window, 1), word(&window, LONGEST)), (0, LONGEST as u64 - 1));
    // Without completion only the counter of writes shows the end: the queue is selective.
    let before = one.sent();
    assert_eq!((atomic.writemsg)(ep, &message(SUM), flags::DELIVERY_COMPLETE), 0);
    while one.sent() < before + 1 {
        other.progress();
    }
    assert_eq!((atomic.inject)(ep, buffer(&mut operands), LONGEST, 1, 8, KEY, INT64, SUM), 0);
    operands.fill(0xAA); // it is the program's again
    while one.sent() < before + 2 {
        other.progress();
    }
    assert_eq!((word(&window, 1), word(&window, LONGEST)), (0, 3 * (LONGEST as u64 - 1)));
    close(region);
}

#[test]
fn calls_that_make_no_sense_are_rejected() {
    let (one, other) = pair(threading::SAFE, 0);
    let mut window = [0_u8; 64];
    let region = register(&other, &mut window, BOTH);
    let (atomic, null) = (table(one.endpoint().atomic), std::ptr::null_mut());
    let mut words = vec![0_u8; 8 * 600];
    let (ep, words) = (one.endpoint(), buffer(&mut words));
    assert_eq!((atomic.write)(ep, words, 0, null, 1, 0, KEY, INT64, SUM, 1), -22);
    assert_eq!((atomic.write)(ep, words, 513, null, 1, 0, KEY, INT64, SUM, 1), -90); // too long
    assert_eq!((atomic.write)(ep, words, 1, null, 1, 0, KEY, INT64, READ, 1), -95);
    assert_eq!((atomic.write)(ep, words, 1, null, 7, 0, KEY, INT64, SUM, 1), -22); // no such address
    let piece = [FiIoc { addr: words, count: 2 }];
    // SAFETY: the piece is live during the calls.
    let piece = unsafe { UserWords::new(piece.as_ptr()) };
    let remote = [FiRmaIoc { addr: 0, count: 3, key: KEY }, FiRmaIoc { addr: 0, count: 2, key: KEY }];
    let message = |rma_iov: &[FiRmaIoc]| FiMsgAtomic {
        msg_iov: piece,
        iov_count: 1,
        addr: 1,
        rma_iov: rma_iov.as_ptr(),
        rma_iov_count: rma_iov.len(),
        datatype: INT64,
        op: SUM,
        ..zeroed()
    };
    assert_eq!((atomic.writemsg)(ep, &message(&remote[..1]), 0), -22); // other counts
    assert_eq!((atomic.writemsg)(ep, &message(&remote), 0), -22); // two remote pieces
    let fits = message(&remote[1..]);
    assert_eq!((atomic.writemsg)(ep, &fits, flags::REMOTE_CQ_DATA), -260);
    assert_eq!((atomic.writemsg)(ep, &fits, flags::FENCE), -260);
    assert_eq!((atomic.writemsg)(ep, &fits, 0), 0);
    one.read(&other).expect("the answer");
    close(region);
}

#[test]
fn a_target_without_rights_or_bounds_refuses_and_stays_unchanged() {
    let (one, other) = pair(threading::SAFE, 0);
    let mut window = [1_u8; 64];
    let (atomic, null) = (table(one.endpoint().atomic), std::ptr::null_mut());
    let (mut words, mut old) = ([1_u8; 64], [0_u8; 64]);
    let (ep, words, old) = (one.endpoint(), buffer(&mut words), buffer(&mut old));
    // Whether a change, a read and a change that fetches succeed with these rights.
    for (access, [changes, reads, fetches]) in [
        (flags::REMOTE_READ, [false, true, false]),
        (flags::REMOTE_WRITE, [true, false, false]),
        (BOTH, [true, true, true]),
    ] {
        let region = register(&other, &mut window, access);
        for count in [1, 4] {
            let ended = |posted: isize| {
                assert_eq!(posted, 0);
                match one.read(&other) {
                    Ok(_) => true,
                    Err(-259) => one.error().err != 13,
                    Err(error) => panic!("{error}"),
                }
            };
            assert_eq!(ended((atomic.write)(ep, words, count, null, 1, 0, KEY, INT64, SUM, 1)), changes);
            let read = (atomic.readwrite)(ep, words, count, null, old, null, 1, 0, KEY, INT64, READ, 1);
            assert_eq!(ended(read), reads);
            let fetch = (atomic.readwrite)(ep, words, count, null, old, null, 1, 0, KEY, INT64, SUM, 1);
            assert_eq!(ended(fetch), fetches);
            let beyond = (atomic.write)(ep, words, count, null, 1, 64 - 4, KEY, INT64, SUM, 1);
            assert!(!ended(beyond), "beyond the end");
        }
        close(region);
    }
    assert_eq!(window[40..], [1; 24], "no vector had so many words");
}

/// Programs on x86 may have such windows. MPICH's own path changes them too.
#[test]
fn words_that_are_not_aligned_are_changed() {
    let (one, other) = pair(threading::SAFE, 0);
    let mut window = [0_u8; 64];
    let region = register(&other, &mut window, BOTH);
    let (atomic, null) = (table(one.endpoint().atomic), std::ptr::null_mut());
    let mut words: Vec<u8> = [5_u64, 6].iter().flat_map(|word| word.to_ne_bytes()).collect();
    for count in [1, 2] {
        let posted =
            (atomic.write)(one.endpoint(), buffer(&mut words), count, null, 1, 3, KEY, INT64, SUM, 1);
        assert_eq!(posted, 0);
        one.read(&other).expect("the answer");
    }
    let word = |offset: usize| u64::from_ne_bytes(window[offset..][..8].try_into().expect("a word"));
    assert_eq!((word(3), word(11)), (10, 6));
    close(region);
}

#[test]
fn an_endpoint_changes_its_own_memory_too() {
    let (one, _other) = pair(threading::SAFE, 0);
    let mut window = [0_u8; 64];
    let region = register(&one, &mut window, BOTH);
    let (atomic, null) = (table(one.endpoint().atomic), std::ptr::null_mut());
    let mut words: Vec<u8> = [5_u64, 6].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let posted = (atomic.write)(one.endpoint(), buffer(&mut words), 2, null, 0, 8, KEY, INT64, SUM, 1);
    assert_eq!(posted, 0);
    one.read(&one).expect("the answer");
    assert_eq!(window[8..24], words);
    close(region);
}
