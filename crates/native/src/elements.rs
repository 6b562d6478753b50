//! Types of elements: what broadcasts and copies carry ([`Plain`]), and what operations combine ([`Element`]).

use weir_link::memory::OwnedMemory;
use weir_proto::offload::WordType;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A number of any length. This trait is sealed.
pub trait Plain: Copy + FromBytes + IntoBytes + Immutable + Send + sealed::Sealed + 'static {}

/// A number that reductions and atomics combine. This trait is sealed.
pub trait Element: Plain {
    /// Its type.
    const TYPE: WordType;

    /// Its bits, in the lower bytes.
    fn bits(self) -> u64 {
        let mut bits = [0; 8];
        bits[..size_of::<Self>()].copy_from_slice(self.as_bytes());
        u64::from_le_bytes(bits)
    }
}

mod sealed {
    /// Types of this crate only.
    pub trait Sealed {}
}

// The bits of a word are its lower bytes.
const _: () = assert!(cfg!(target_endian = "little"));

macro_rules! plain {
    ($($number:ty),*) => { $(impl sealed::Sealed for $number {} impl Plain for $number {})* };
}
plain!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

macro_rules! element {
    ($($number:ty => $word_type:ident),*) => {
        $(impl Element for $number { const TYPE: WordType = WordType::$word_type; })*
    };
}
element!(u32 => U32, i32 => I32, u64 => U64, i64 => I64, f32 => F32, f64 => F64);

/// A copy of elements as memory of an operation.
pub(crate) fn to_memory<T: Plain>(data: &[T]) -> OwnedMemory {
    let memory = OwnedMemory::new(size_of_val(data));
    memory.view().write(0, data.as_bytes());
    memory
}

/// The elements in the memory of an operation that has ended.
pub(crate) fn from_memory<T: Plain>(memory: &OwnedMemory) -> Vec<T> {
    let view = memory.view();
    let mut elements = vec![T::new_zeroed(); view.bytes() as usize / size_of::<T>()];
    view.read(0, elements.as_mut_slice().as_mut_bytes());
    elements
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_pass_through_memory_unchanged() {
        let data = [1.5_f64, f64::NAN, -0.0];
        let back: Vec<f64> = from_memory(&to_memory(&data));
        assert!(back.iter().zip(&data).all(|(back, sent)| back.to_bits() == sent.to_bits()));
        assert_eq!(from_memory::<u16>(&to_memory::<u16>(&[])), []);
        assert_eq!((-1_i32).bits(), 0xffff_ffff, "the upper half is zero");
        assert_eq!(1.0_f32.bits(), u64::from(1.0_f32.to_bits()));
    }
}
