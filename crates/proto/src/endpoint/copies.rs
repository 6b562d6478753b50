//! Multi-sends: one message for several peers. Its copies go through the backlogs of their paths, and `transmit.rs`
//! holds them until all can leave. Source: Buntinas, 2003, section 2.1; [`crate::offload::multi_send`] says what we
//! changed.
//!
//! Without credits but those of a link that refuses (the scheme `hardware`), nobody can know that all copies will be
//! taken. There a multi-send is a loop of sends.

use alloc::vec::Vec;

use super::refusal::Refusal;
use super::state::Endpoint;
use crate::config::Scheme;
use crate::driver::Driver;
use crate::event::{MessageCopy, MultiSendCommand, Peer, SendCommand, SendLevel};
use crate::offload::multi_send::{HeldCopy, MAX_DESTINATIONS};

impl Endpoint {
    /// Sends a message to several peers.
    ///
    /// # Errors
    /// [`Refusal::Backlog`]: too many destinations, too many multi-sends wait, or as many entries as allowed wait at
    /// one of the peers; [`Refusal::Operations`]. Nothing has changed then.
    pub(super) fn send_copies<D: Driver>(
        &mut self,
        multi_send: MultiSendCommand<'_>,
        driver: &mut D,
    ) -> Result<(), Refusal> {
        let MultiSendCommand { copies, space, tag, bytes, level } = multi_send;
        if copies.len() > MAX_DESTINATIONS || self.paths.multi_sends.is_full() {
            return Err(Refusal::Backlog);
        }
        for copy in copies {
            self.paths.check_bounds(copy.to, bytes, driver)?;
        }
        self.hold_copies(copies.iter().map(|copy| copy.to));
        for &MessageCopy { to, request, data } in copies {
            let is_eager = self.paths.is_eager(to, bytes, driver);
            let bounce_buffers = &self.payloads.bounce_buffers;
            let announced = !is_eager || self.paths.announces_user_buffer(to, bytes, level, bounce_buffers);
            let request = driver.hold(request, announced);
            // An injected message would be copied for each peer.
            let level = level.max(SendLevel::Buffered);
            self.queue(SendCommand { request, to, space, tag, data, bytes, level }, driver);
        }
        Ok(())
    }

    /// Holds the next message to each of these peers until all can leave.
    fn hold_copies(&mut self, peers: impl Iterator<Item = Peer>) {
        if let Scheme::Hardware { .. } = self.paths.config.scheme {
            return;
        }
        let mut held: Vec<HeldCopy> = Vec::new();
        for to in peers {
            if self.paths.fault(to).is_none() && held.iter().all(|copy| copy.to != to) {
                held.push(HeldCopy { to, number: self.paths.peer(to).next_number });
            }
        }
        self.paths.multi_sends.hold(held);
    }
}
