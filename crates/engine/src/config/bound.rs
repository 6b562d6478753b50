//! The bound of the memory that a receiver spends on incoming messages ([`ReceiverBound`]), as one number.
//!
//! This file adds up what other files keep: the mailbox plan, the two budgets, a constant for each peer, and the spare
//! memory of an endpoint. Claimed messages and large messages are not part of it (docs/explanation/receiver-memory.md).

use weir_link::shm::FileSystemSpace;
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
}

impl ReceiverBound {
    /// What is bounded.
    pub fn bounded(&self) -> u64 {
        self.mailbox + self.payload + self.envelopes.unwrap_or(0) + self.peers + self.spare
    }

    /// What each unexpected message costs in addition.
    pub fn per_message(&self) -> u64 {
        if self.envelopes.is_some() { 0 } else { ENVELOPE_BYTES }
    }
}

impl Settings {
    /// The bound of each endpoint in a job of `peers` endpoints on one node, with this `space` in the directory of the
    /// mailboxes. `None`: a scheme without credits, which has no bound.
    ///
    /// # Errors
    /// As for [`Settings::quota`].
    pub fn receiver_bound(
        &self,
        peers: u32,
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
        }))
    }
}
