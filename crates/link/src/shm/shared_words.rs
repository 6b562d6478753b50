//! Words of 64 bits that others change too, such as programs in the kernel: memory of a file descriptor.

use super::mapping::Mapping;
use super::sync::{AtomicU64, Ordering};
use std::io;
use std::os::fd::BorrowedFd;

/// A range of words. All changes are atomic, for every party.
#[derive(Debug)]
pub struct SharedWords {
    mapping: Mapping,
    count: usize,
}

impl SharedWords {
    /// The first `count` words of what `file` names.
    ///
    /// # Errors
    /// The error of mmap.
    pub fn map(file: BorrowedFd<'_>, count: usize) -> io::Result<SharedWords> {
        Ok(SharedWords { mapping: Mapping::new(file, 0, count * size_of::<u64>())?, count })
    }

    /// How many words there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// # Panics
    /// If there is no such word. The same holds for all functions below.
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.mapping.shared(0, self.count)[index]
    }

    /// The word.
    pub fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Acquire)
    }

    /// Replaces the word. Returns the old one.
    pub fn swap(&self, index: usize, new: u64) -> u64 {
        self.word(index).swap(new, Ordering::AcqRel)
    }

    /// Adds to the word, and wraps. Returns the old one.
    pub fn fetch_add(&self, index: usize, operand: u64) -> u64 {
        self.word(index).fetch_add(operand, Ordering::AcqRel)
    }

    /// Replaces the word if it is `expected`. Returns the old one: equal to `expected` if it was replaced.
    pub fn compare_swap(&self, index: usize, expected: u64, new: u64) -> u64 {
        let changed = self.word(index).compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire);
        changed.unwrap_or_else(|old| old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn two_mappings_of_a_file_are_the_same_words() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let [one, other] = [(); 2].map(|()| SharedWords::map(file.as_fd(), 512).unwrap());
        assert_eq!((one.count(), one.fetch_add(511, 7), other.fetch_add(511, u64::MAX)), (512, 0, 7));
        assert_eq!((one.load(511), one.swap(511, 9)), (6, 6));
        assert_eq!((other.compare_swap(511, 8, 1), other.compare_swap(511, 9, 1), one.load(511)), (9, 9, 1));
    }
}
