//! Memory of bundles ([`Buffers`]): copies of those that peers have not acknowledged. Its bound is one for the link, and
//! each path has a small share that is always its own. So a peer that does not answer cannot stop the others.

/// Copies that each path may have, however many there are: enough for the longest packet.
const OWN_COPIES: usize = 8;
/// Unused buffers that are kept.
const MOST_UNUSED: usize = 256;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Buffers {
    unused: Vec<Vec<u8>>,
    /// Buffers that paths have.
    taken: usize,
    most: usize,
    capacity: usize,
}

impl Buffers {
    /// Buffers of `capacity` bytes: at most `most` for all paths together, beside their own shares.
    pub(super) fn new(most: usize, capacity: usize) -> Buffers {
        Buffers { unused: Vec::new(), taken: 0, most, capacity }
    }

    /// Whether [`Buffers::take`] would return so many buffers for a path that holds `held`, one after the other.
    pub(super) fn have_for(&self, held: usize, buffers: usize) -> bool {
        held + buffers <= OWN_COPIES || self.taken + buffers <= self.most
    }

    /// Whether paths have more than half of those beside their own shares.
    #[inline]
    pub(super) fn are_scarce(&self) -> bool {
        self.taken > self.most / 2
    }

    /// An empty buffer for a path that holds `held`. `None`: there is none now.
    pub(super) fn take(&mut self, held: usize) -> Option<Vec<u8>> {
        self.have_for(held, 1).then(|| {
            self.taken += 1;
            self.unused.pop().unwrap_or_else(|| Vec::with_capacity(self.capacity))
        })
    }

    /// Takes a buffer back.
    pub(super) fn give(&mut self, mut buffer: Vec<u8>) {
        self.taken -= 1;
        if self.unused.len() < MOST_UNUSED {
            buffer.clear();
            self.unused.push(buffer);
        }
    }

    /// Memory of all buffers. Unit: bytes.
    pub(super) fn bytes(&self) -> usize {
        (self.taken + self.unused.len()) * self.capacity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_without_copies_gets_buffers_when_others_hold_all() {
        let mut buffers = Buffers::new(10, 100);
        let mut taken: Vec<_> = (0..).map_while(|held| buffers.take(held)).collect();
        assert_eq!(taken.len(), 10);
        let own: Vec<_> = (0..).map_while(|held| buffers.take(held)).collect();
        assert_eq!(own.len(), OWN_COPIES);
        buffers.give(taken.pop().expect("ten"));
        assert!(!buffers.have_for(9, 1), "the own share of another path counts");
        own.into_iter().chain(taken).for_each(|buffer| buffers.give(buffer));
        assert_eq!((buffers.taken, buffers.unused.len()), (0, 10 + OWN_COPIES));
        assert!(buffers.have_for(9, 10) && !buffers.have_for(9, 11));
        assert!(buffers.take(9).is_some());
    }
}
