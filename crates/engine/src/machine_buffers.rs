//! Memory of the offloaded machines: their own buffers, and the arithmetic on memory that they name.
//!
//! A buffer lives until its machine frees it. The machines bound how many there are. This file does not know what a
//! buffer is for.

use weir_link::memory::{OwnedMemory, UserMemory};
use weir_proto::BufferId;
use weir_proto::offload::Combination;
use weir_proto::table::Table;

/// Bytes that are combined in one step, on the stack. A multiple of the longest element.
const STEP_BYTES: usize = 512;

/// The buffers.
#[derive(Debug, Default)]
pub(crate) struct MachineBuffers {
    buffers: Table<UserMemory>,
}

impl MachineBuffers {
    /// A new buffer of `bytes` bytes, all 0.
    pub fn allocate(&mut self, bytes: u32) -> BufferId {
        BufferId(self.buffers.insert(OwnedMemory::new(bytes as usize).into()))
    }

    /// Frees a buffer, which must exist.
    pub fn free(&mut self, buffer: BufferId) {
        self.buffers.remove(buffer.0).expect("a machine frees its own buffers, once");
    }

    /// The memory of a buffer, which must exist.
    pub fn memory(&self, buffer: BufferId) -> &UserMemory {
        self.buffers.get(buffer.0).expect("a machine names its own buffers")
    }

    /// Number of buffers.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.buffers.count()
    }
}

/// Replaces each element in `bytes` bytes of `into` by its combination with that of `from`. Both are memory and an offset.
pub(crate) fn combine(
    combination: Combination,
    (from, from_offset): (&UserMemory, u64),
    (into, into_offset): (&UserMemory, u64),
    bytes: u32,
) {
    let (mut left, mut right) = ([0; STEP_BYTES], [0; STEP_BYTES]);
    for begin in (0..u64::from(bytes)).step_by(STEP_BYTES) {
        let step_bytes = (u64::from(bytes) - begin).min(STEP_BYTES as u64) as usize;
        let (left, right) = (&mut left[..step_bytes], &mut right[..step_bytes]);
        into.read(into_offset + begin, left);
        from.read(from_offset + begin, right);
        combination.combine(left, right);
        into.write(into_offset + begin, left);
    }
}

#[cfg(test)]
mod tests {
    use weir_proto::offload::{WordOperation, WordType};

    use super::*;

    #[test]
    fn memory_in_pieces_and_without_alignment_is_combined_like_a_slice() {
        let combination = Combination { operation: WordOperation::Sum, word_type: WordType::U64 };
        let whole: Vec<u8> = (0..2000u32).map(|byte| (byte * 7) as u8).collect();
        let own = OwnedMemory::new(2000);
        own.view().write(0, &whole);
        // Pieces that cut elements, and an offset of 1.
        let pieces = UserMemory::joined([own.part(0, 13), own.part(13, 1000), own.part(1013, 987)]);
        let with = OwnedMemory::new(1600);
        with.view().write(0, &whole[..1600]);
        let mut expected = whole.clone();
        combination.combine(&mut expected[1..1601], &whole[..1600]);
        combine(combination, (&with.view(), 0), (&pieces, 1), 1600);
        let mut found = vec![0; 2000];
        own.view().read(0, &mut found);
        assert_eq!(found, expected);
    }

    #[test]
    fn a_freed_buffer_gives_its_name_back() {
        let mut buffers = MachineBuffers::default();
        let first = buffers.allocate(8);
        let second = buffers.allocate(0);
        assert_ne!(first, second);
        buffers.free(first);
        assert_eq!(buffers.allocate(16), first);
        assert_eq!((buffers.memory(first).bytes(), buffers.count()), (16, 2));
    }
}
