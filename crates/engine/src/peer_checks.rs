//! Chooses the peers whose liveness is checked next: a bounded number, in turn.
//!
//! A check of one peer costs some system calls. A receive from any source depends on every peer with any contact, so
//! a check of all would cost more with each idle peer. The peers of one round are collected once and checked over
//! several calls. A death is noticed at most two rounds later: the operation that depends on the peer may have been
//! posted after its round began.
//! ```text
//! 300 peers, 128 a check     0..128   128..256   256..300, new round: 0..84   84..212   ...
//! ```

use weir_proto::Peer;

/// Most peers that one check looks at. With five checks a second, a death among 256 peers is noticed within a second,
/// and among N peers within N / 320 seconds and two checks.
pub(crate) const PEERS_PER_CHECK: usize = 128;

/// The peers that are left of this round.
#[derive(Debug, Default)]
pub(crate) struct PeerChecks {
    /// In descending order, without repetition: the next is the last.
    left: Vec<Peer>,
}

impl PeerChecks {
    /// The peers to check now, in any order, at most [`PEERS_PER_CHECK`]. A peer may be there twice if a round ends.
    ///
    /// `collect` appends the peers of a new round. It is called at most once, and only if this round ends.
    pub fn next(&mut self, collect: impl FnOnce(&mut Vec<Peer>)) -> Vec<Peer> {
        let rest = PEERS_PER_CHECK.min(self.left.len());
        let mut next = self.left.split_off(self.left.len() - rest);
        if self.left.is_empty() {
            collect(&mut self.left);
            self.left.sort_unstable_by(|a, b| b.cmp(a));
            self.left.dedup();
            let more = (PEERS_PER_CHECK - rest).min(self.left.len());
            let begun = self.left.split_off(self.left.len() - more);
            next.extend(begun);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(peers: &[Peer]) -> Vec<u32> {
        peers.iter().map(|peer| peer.0).collect()
    }

    #[test]
    fn all_peers_are_checked_in_turn() {
        let mut checks = PeerChecks::default();
        let mut check = || {
            let mut next = checks.next(|peers| peers.extend((0..300).chain(0..10).map(Peer)));
            next.sort_unstable();
            numbers(&next)
        };
        assert_eq!(check(), (0..128).collect::<Vec<_>>());
        assert_eq!(check(), (128..256).collect::<Vec<_>>());
        assert_eq!(check(), (0..84).chain(256..300).collect::<Vec<_>>());
        assert_eq!(check(), (84..212).collect::<Vec<_>>());
    }

    #[test]
    fn few_peers_are_all_checked_each_time() {
        let mut checks = PeerChecks::default();
        for _ in 0..3 {
            let mut next = numbers(&checks.next(|peers| peers.extend([2, 1, 2].map(Peer))));
            next.sort_unstable();
            assert_eq!(next, [1, 2]);
        }
        assert_eq!(checks.next(|_| {}), []);
    }
}
