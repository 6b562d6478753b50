//! The arithmetic of floats that the kernel programs do in integers (`xdp/floats.h`), compiled for this host and compared with
//! its processor in a million cases. Without a compiler the test prints why, and does nothing.
#![allow(missing_docs, reason = "test code")]

use fastrand::Rng;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use weir_nic::{Combination, Element};

const CASES: usize = 1_000_000;
const COMBINATIONS: [Combination; 4] =
    [Combination::Sum, Combination::Prod, Combination::Min, Combination::Max];

/// Values at the borders of binary64, and a NaN with bits of its own.
const SPECIAL: [u64; 16] = [
    0,
    1,
    2,
    (1 << 52) - 1,
    1 << 52,
    (1 << 52) + 1,
    0x3FF0_0000_0000_0000,
    0x3FF0_0000_0000_0001,
    0x3FEF_FFFF_FFFF_FFFF,
    0x4340_0000_0000_0000,
    0x4340_0000_0000_0001,
    0x7FE0_0000_0000_0000,
    0x7FEF_FFFF_FFFF_FFFF,
    0x7FF0_0000_0000_0000,
    0x7FF0_0000_0000_0001,
    0x7FF8_0000_0000_0123,
];
/// The same of binary32.
const SPECIAL_NARROW: [u32; 14] = [
    0,
    1,
    2,
    (1 << 23) - 1,
    1 << 23,
    (1 << 23) + 1,
    0x3F80_0000,
    0x3F80_0001,
    0x3F7F_FFFF,
    0x4B80_0001,
    0x7F7F_FFFF,
    0x7F80_0000,
    0x7F80_0001,
    0x7FC0_0123,
];

/// Two binary64: any bits, special ones, or near each other, so that they cancel or need the last bits.
fn draw_wide(random: &mut Rng) -> [u64; 2] {
    let one = |random: &mut Rng| match random.u8(..4) {
        0 => SPECIAL[random.usize(..SPECIAL.len())] ^ random.u64(..2) << 63,
        // Few bits, so that sums and products are often halfway between two numbers.
        1 => random.u64(..) & (0xFFF8 << 48 | 1 << random.u8(..52)),
        _ => random.u64(..),
    };
    let a = one(random);
    let b = match random.u8(..4) {
        0 => one(random),
        1 => a ^ 1 << 63 ^ random.u64(..4),
        _ => {
            let exponent = (a >> 52 & 0x7FF) as i64;
            // For products: the exponents whose sum is near that of the smallest numbers.
            let near = if random.bool() {
                exponent + random.i64(-58..58)
            } else {
                1023 - exponent - random.i64(-60..60)
            };
            one(random) & !(0x7FF << 52) | (near.clamp(0, 0x7FF) as u64) << 52
        }
    };
    [a, b]
}

/// The same for binary32.
fn draw_narrow(random: &mut Rng) -> [u64; 2] {
    let one = |random: &mut Rng| match random.u8(..4) {
        0 => SPECIAL_NARROW[random.usize(..SPECIAL_NARROW.len())] ^ random.u32(..2) << 31,
        1 => random.u32(..) & (0xFF80 << 16 | 1 << random.u8(..23)),
        _ => random.u32(..),
    };
    let a = one(random);
    let b = match random.u8(..4) {
        0 => one(random),
        1 => a ^ 1 << 31 ^ random.u32(..4),
        _ => {
            let exponent = (a >> 23 & 0xFF) as i32;
            let near = if random.bool() {
                exponent + random.i32(-28..28)
            } else {
                127 - exponent - random.i32(-30..30)
            };
            one(random) & !(0xFF << 23) | (near.clamp(0, 0xFF) as u32) << 23
        }
    };
    [a.into(), b.into()]
}

macro_rules! by_processor {
    ($combination:expr, $type:ty, $bits:ty, $case:expr) => {{
        let [a, b] = $case.map(|bits| <$type>::from_bits(bits as $bits));
        let result = match $combination {
            Combination::Sum => a + b,
            Combination::Prod => a * b,
            Combination::Min if b < a || a.is_nan() => b,
            Combination::Max if b > a || a.is_nan() => b,
            _ => a,
        };
        // Sums and products that are not a number have bits of the processor's own choice.
        let is_free = result.is_nan() && matches!($combination, Combination::Sum | Combination::Prod);
        u64::from(if is_free { <$bits>::MAX } else { result.to_bits() })
    }};
}

/// The bits that the programs must give; those of all ones: of any number that is none.
fn expected(combination: Combination, element: Element, case: [u64; 2]) -> u64 {
    match element {
        Element::F64 => by_processor!(combination, f64, u64, case),
        _ => by_processor!(combination, f32, u32, case),
    }
}

fn agree(element: Element, found: u64, expected: u64) -> bool {
    match element {
        Element::F64 if expected == u64::MAX => f64::from_bits(found).is_nan(),
        Element::F32 if expected == u64::from(u32::MAX) => f32::from_bits(found as u32).is_nan(),
        _ => found == expected,
    }
}

/// Compiles the program. `None`, and a line: there is no compiler.
fn program() -> Option<String> {
    let manifest = env!("CARGO_MANIFEST_DIR");
    let program = format!("{}/floats", env!("CARGO_TARGET_TMPDIR"));
    for compiler in ["clang", "cc"] {
        let mut command = Command::new(compiler);
        command.args(["-O2", "-Wall", "-Wextra", "-Werror", &format!("-I{manifest}/../../xdp")]);
        command.arg(format!("{manifest}/tests/floats.c")).args(["-o", &program]);
        let Ok(output) = command.output() else { continue };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return Some(program);
    }
    eprintln!("skipped: neither clang nor cc is installed");
    None
}

#[test]
fn integer_arithmetic_gives_the_bits_of_the_processor() {
    let Some(program) = program() else { return };
    let mut random = Rng::with_seed(26);
    let cases: Vec<(Combination, Element, [u64; 2])> = (0..CASES)
        .map(|number| {
            let combination = COMBINATIONS[number % 4];
            let is_wide = number / 4 % 4 != 0;
            let element = if is_wide { Element::F64 } else { Element::F32 };
            (combination, element, if is_wide { draw_wide(&mut random) } else { draw_narrow(&mut random) })
        })
        .collect();
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut results = Vec::new();
    std::thread::scope(|scope| {
        let cases = &cases;
        scope.spawn(move || {
            let word = |(combination, element, [a, b]): &(Combination, Element, [u64; 2])| {
                [*combination as u64 | *element as u64, *a, *b]
            };
            let mut bytes = Vec::with_capacity(24 * CASES);
            for word in cases.iter().flat_map(word) {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
            input.write_all(&bytes).unwrap();
        });
        output.read_to_end(&mut results).unwrap();
    });
    assert!(child.wait().unwrap().success());
    assert_eq!(results.len(), 8 * CASES);
    for ((combination, element, case), found) in cases.into_iter().zip(results.as_chunks::<8>().0) {
        let (found, expected) = (u64::from_le_bytes(*found), expected(combination, element, case));
        assert!(
            agree(element, found, expected),
            "{combination:?} {element:?} of {case:x?}: {found:x} and not {expected:x}"
        );
    }
}
