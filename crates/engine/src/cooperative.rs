//! Large announced messages of ours. Their receivers may copy them together with us (cooperative copies).
//!
//! A program may have any number of them, to any number of peers. No call costs more because others wait.

use std::collections::{HashMap, HashSet, VecDeque};

use weir_proto::{Peer, Transfer};

/// The messages, by peer.
#[derive(Debug, Default)]
pub(crate) struct CooperativeSends {
    by_peer: HashMap<Peer, HashSet<u32>>,
    /// The peers of `by_peer`, each once. Some have no message any more.
    turns: VecDeque<Peer>,
    count: usize,
    /// Messages that were looked up, for tests that count instead of timing.
    #[cfg(test)]
    looks: usize,
}

impl CooperativeSends {
    /// The number of messages.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// A message is announced.
    pub fn begin(&mut self, peer: Peer, transfer: Transfer) {
        let CooperativeSends { by_peer, turns, .. } = self;
        let transfers = by_peer.entry(peer).or_insert_with(|| {
            turns.push_back(peer);
            HashSet::new()
        });
        self.count += usize::from(transfers.insert(transfer.0));
    }

    /// The `count` transfers to a peer from `first` on have ended. Some of them may be none of these messages.
    pub fn end(&mut self, peer: Peer, first: Transfer, count: u32) {
        if self.count == 0 {
            return;
        }
        let Some(transfers) = self.by_peer.get_mut(&peer) else { return };
        for offset in 0..count {
            if transfers.is_empty() {
                break;
            }
            #[cfg(test)]
            {
                self.looks += 1;
            }
            self.count -= usize::from(transfers.remove(&first.0.wrapping_add(offset)));
        }
    }

    /// Nothing more is sent to a peer.
    pub fn forget(&mut self, peer: Peer) {
        if let Some(transfers) = self.by_peer.get_mut(&peer) {
            self.count -= transfers.len();
            transfers.clear();
        }
    }

    /// The next peer in turn that has a message. Peers that have none are forgotten. `None`: there is none.
    pub fn next_peer(&mut self) -> Option<Peer> {
        while let Some(peer) = self.turns.pop_front() {
            if self.by_peer.get(&peer).is_some_and(|transfers| !transfers.is_empty()) {
                self.turns.push_back(peer);
                return Some(peer);
            }
            self.by_peer.remove(&peer);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_message_visits_no_other_message() {
        let mut sends = CooperativeSends::default();
        let all = 0..10_000;
        all.clone().for_each(|number| sends.begin(Peer(number % 3), Transfer(number)));
        assert_eq!(sends.count(), 10_000);
        for number in all {
            sends.end(Peer(number % 3), Transfer(number), 1);
        }
        assert_eq!((sends.count(), sends.looks), (0, 10_000));
        sends.end(Peer(0), Transfer(0), u32::MAX);
        assert_eq!(sends.looks, 10_000, "there is nothing to look at");
    }

    #[test]
    fn several_transfers_end_at_once_also_beyond_the_last_number() {
        let mut sends = CooperativeSends::default();
        [u32::MAX, 0, 1, 3].into_iter().for_each(|number| sends.begin(Peer(7), Transfer(number)));
        sends.begin(Peer(8), Transfer(0));
        sends.end(Peer(7), Transfer(u32::MAX), 3);
        assert_eq!(sends.count(), 2);
        sends.forget(Peer(7));
        assert_eq!((sends.count(), sends.next_peer()), (1, Some(Peer(8))));
    }

    #[test]
    fn peers_take_turns_while_they_have_a_message() {
        let mut sends = CooperativeSends::default();
        (0..3).for_each(|peer| sends.begin(Peer(peer), Transfer(peer)));
        let turns = |sends: &mut CooperativeSends| [0; 4].map(|_| sends.next_peer().map(|peer| peer.0));
        assert_eq!(turns(&mut sends), [Some(0), Some(1), Some(2), Some(0)]);
        sends.end(Peer(1), Transfer(1), 1);
        sends.end(Peer(2), Transfer(2), 1);
        sends.begin(Peer(2), Transfer(9));
        assert_eq!(turns(&mut sends), [Some(2), Some(0), Some(2), Some(0)]);
        assert_eq!(sends.turns.len(), 2, "each peer once");
        [0, 2].into_iter().for_each(|peer| sends.forget(Peer(peer)));
        assert_eq!((sends.next_peer(), sends.turns.len(), sends.count()), (None, 0, 0));
    }
}
