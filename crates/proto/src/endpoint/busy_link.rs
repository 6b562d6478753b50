//! Busy links: a packet that the link refuses waits in its path until the link is ready. This file handles the event
//! [`crate::Event::LinkReady`]. The file that sends a packet notes its refusal (`Paths::take_back`,
//! `Paths::note_busy`).
//!
//! A refused packet leaves no trace: its credits are unspent and its message stays at the head of the backlog. So the
//! packet waits in the path, within the bound of the backlog, and no later message overtakes it. Totals that count as
//! granted go with the next packet. A credit packet and `Detach` have no entry in a backlog, so a mark stands for each.
//!
//! The path sends nothing until the driver reports that event.
//! ```text
//! handle(Posted(Send 8 bytes))       driver.transmit(Eager) -> LinkBusy, driver.hold(0)
//! handle(Posted(Send 8 bytes))       driver.hold(1)
//! handle(LinkReady)                  driver.transmit(Eager), complete(0), transmit(Eager), complete(1)
//! ```

use super::paths::Paths;
use super::payloads::Payloads;
use super::pending::{BusyLink, Waits};
use crate::driver::Driver;
use crate::event::Peer;

impl Paths {
    /// The link takes packets to `peer` again: first those that are in no backlog.
    pub(super) fn link_ready<D: Driver>(&mut self, peer: Peer, payloads: &mut Payloads, driver: &mut D) {
        let Some(state) = self.peers.get_mut(peer.0 as usize) else { return };
        let Some(pending) = state.pending.as_deref_mut() else { return };
        let BusyLink { busy, credit, detach } = core::mem::take(&mut pending.busy_link);
        if !busy {
            return;
        }
        if let Waits::Link(_) = pending.waits {
            pending.waits = Waits::Nothing;
        }
        if credit {
            self.send_credit_packet(peer, driver);
        }
        // A lease that has carried nothing carries something before it ends. Otherwise a peer that is asked to detach
        // whenever the link is busy would starve. Only such a lease does, so the detach is not delayed without end.
        let state = &self.peers[peer.0 as usize];
        if detach && !state.is_link_busy() && state.path.lease_is_unused() {
            self.send_while_credited(peer, payloads, driver);
        }
        if !self.peers[peer.0 as usize].is_link_busy() && detach {
            self.detach(peer, payloads, driver);
            // Credits have become due while the link was busy. They need a new lane.
            let receiver = self.peers.full_entry(peer.0 as usize).map(|state| &state.path.grants.receiver);
            if receiver.is_some_and(|receiver| receiver.as_ref().is_some_and(|half| half.is_due(&self.pool)))
            {
                self.return_credits(peer, driver);
            }
            return;
        }
        if detach {
            self.note_busy(peer).detach = true;
        }
        self.return_credits(peer, driver);
        self.send_while_credited(peer, payloads, driver);
        self.remove_if_idle(peer);
    }
}

#[cfg(test)]
mod tests;
