//! Sends that complete when the receiver's side holds the message, over links that keep a packet until the receiver
//! acknowledges it ([`weir_link::Acknowledgements`]). Such a send has left, and its completion waits here
//! for [`weir_link::Arrival::Acknowledged`].
//!
//! ```text
//! complete(request 3)            packets that have left for peer 1: 7, not all acknowledged; waits
//! Acknowledged { peer 1, 6 }     nothing
//! Acknowledged { peer 1, 9 }     the completion is reported
//! ```
//! Sends over other links never come here. This file does not know what a packet contains.

use std::collections::{HashMap, VecDeque};

use weir_proto::{Outcome, Peer, PeerFault};

use crate::Completion;

/// See the head of this file. Bound: the packets that the link has under way, which are those in the window of each peer.
#[derive(Debug, Default)]
pub(crate) struct Deliveries {
    /// For each peer, in order: the packets that must be acknowledged, and the completion.
    of_peers: HashMap<Peer, VecDeque<(u64, Completion)>>,
}

impl Deliveries {
    /// `completion` waits until `to` has acknowledged its first `packets` packets.
    pub fn add(&mut self, to: Peer, packets: u64, completion: Completion) {
        self.of_peers.entry(to).or_default().push_back((packets, completion));
    }

    /// `peer` has acknowledged its first `packets` packets. Moves completions to `completions`.
    pub fn acknowledged(&mut self, peer: Peer, packets: u64, completions: &mut VecDeque<Completion>) {
        let Some(waiting) = self.of_peers.get_mut(&peer) else { return };
        while let Some((_, completion)) = waiting.pop_front_if(|(needed, _)| *needed <= packets) {
            completions.push_back(completion);
        }
        if waiting.is_empty() {
            self.of_peers.remove(&peer);
        }
    }

    /// `peer` is lost, and so may be what waits for it.
    pub fn lost(&mut self, peer: Peer, fault: PeerFault, completions: &mut VecDeque<Completion>) {
        let outcome = Outcome::Lost { peer: Some(peer), fault };
        let waiting = self.of_peers.remove(&peer).unwrap_or_default();
        completions.extend(waiting.into_iter().map(|(_, completion)| Completion { outcome, ..completion }));
    }
}
