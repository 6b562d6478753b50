//! What the members of a group combine: vectors of one length and type. `group.rs` has the operations that do it.

use super::Combination;

/// Bound: length of a vector. Unit: bytes.
pub const MAX_VECTOR_BYTES: u32 = 1 << 12;

/// The vectors of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vector {
    /// Length of each, at most [`MAX_VECTOR_BYTES`]. Unit: bytes.
    pub bytes: u32,
    /// How they are combined.
    pub combination: Combination,
}

impl Vector {
    /// Whether the combination exists, and the vectors have whole elements and are short enough.
    pub fn is_valid(&self) -> bool {
        let Vector { bytes, combination } = *self;
        bytes <= MAX_VECTOR_BYTES && combination.is_valid() && combination.divides(bytes)
    }
}
