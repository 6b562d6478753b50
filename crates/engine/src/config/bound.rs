//! The bound of the memory that a receiver spends on incoming messages ([`ReceiverBound`]), as one number.
//!
//! This file adds up what other files keep: the mailbox plan, the two budgets, a constant for each peer, the spare memory of
//! an endpoint, and what a link over a network keeps. Claimed messages and large messages are not part of it (docs/explanation/receiver-memory.md).

use weir_link::shm::FileSystemSpace;
use weir_link::{ofi, udp};
use weir_proto::{ENVELOPE_BYTES, PEER_BYTES};

use super::{SettingError, Settings};
use crate::{read_ahead, unexpected_buffers};

/// The memory of one endpoint for incoming messages. Unit: bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverBound {
    /// Its mailbox, with a lane for each peer.
    pub mailbox: u64,
    /// Payload of unexpected messages.
    pub payload: u64,
    /// Envelopes of unexpected messages; `None`: no limit.
    pub envelopes: Option<u64>,
    /// State of the peers that have sent.
    pub peers: u64,
    /// Spare buffers.
    pub spare: u64,
    /// Datagrams that were not read; 0: the endpoint has no network.
    pub datagrams: u64,
}

impl ReceiverBound {
    /// What is bounded.
    pub fn bounded(&self) -> u64 {
        self.mailbox + self.payload + self.envelopes.unwrap_or(0) + self.peers + self.spare + self.datagrams
    }

    /// What each unexpected message costs in addition.
    pub fn per_message(&self) -> u64 {
        if self.envelopes.is_some() { 0 } else { ENVELOPE_BYTES }
    }
}

impl Settings {
    /// The bound of each endpoint in a job of `peers` endpoints on one node, with this `space` in the directory of the
    /// mailboxes. `spans_nodes`: any of them may be on another node. `None`: a scheme without credits, which has no bound.
    ///
    /// # Errors
    /// As for [`Settings::quota`].
    pub fn receiver_bound(
        &self,
        peers: u32,
        spans_nodes: bool,
        space: Option<FileSystemSpace>,
        has_unlimited_memory: impl FnOnce() -> bool,
    ) -> Result<Option<ReceiverBound>, SettingError> {
        let (_, place) = self.placed(peers, space, has_unlimited_memory)?;
        let ranks = u64::from(peers.max(1));
        Ok(self.scheme.grants().then_some(ReceiverBound {
            mailbox: place.job_bytes / ranks,
            payload: self.unexpected_budget_bytes,
            envelopes: (self.envelope_budget_bytes > 0).then_some(self.envelope_budget_bytes),
            peers: ranks * PEER_BYTES,
            spare: unexpected_buffers::spare_bytes(self.unexpected_budget_bytes) + read_ahead::BUFFER_BYTES,
            datagrams: self.datagram_bytes(ranks - 1, spans_nodes),
        }))
    }

    /// The most memory of an endpoint with so many peers for datagrams that were not read.
    fn datagram_bytes(&self, peers: u64, spans_nodes: bool) -> u64 {
        match self.links.core_provider() {
            _ if !self.links.has_network(spans_nodes) => 0,
            Some(_) => ofi::most_arrived_bytes(peers),
            None => udp::most_arrived_bytes(self.net.as_deref(), peers),
        }
    }
}
