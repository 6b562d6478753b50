//! What a program does with words of its own memory, which others change meanwhile: it reads, writes and polls them. That
//! takes no time of its NIC. The words are those of the machines beside its endpoint, or on its NIC.
//!
//! ```text
//! rank 4  watches word 2, which is 0
//! rank 7  fetch and write of word 2 --> NIC of rank 4 or its processor: 0 -> 1 --> rank 4 goes on
//! ```

use weir_proto::Request;

use super::World;
use super::rank_state::Post;
use crate::Picoseconds;
use crate::network::Network;

impl<N: Network> World<N> {
    /// The program of a rank reads, changes or watches a word of its own.
    pub(super) fn access_own_word(&mut self, rank: u32, post: Post) {
        let Post { request, call } = post;
        let machines = match self.spec.machines_on_nic {
            true => self.nic_endpoints.machines(rank, &self.spec),
            false => self.rank_states[rank as usize].machines(),
        };
        if let Some(word) = machines.access_own_word(request, &call) {
            self.rank_states[rank as usize].own_word_read(request, word);
        }
    }

    /// A word that the program polls has changed.
    pub(super) fn own_word_seen(&mut self, now: Picoseconds, rank: u32, request: u32) {
        let Some(status) = self.nic_endpoints.take_ended(rank, request) else { return }; // the rank has crashed
        self.act_as(rank);
        self.rank_states[rank as usize].own_word_changed(Request(request), status.bytes);
        self.wake(now, rank);
    }
}
