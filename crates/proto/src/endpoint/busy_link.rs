//! Busy links: what happens to a packet that the link refuses.
//!
//! A refused packet leaves no trace: its credits are unspent and its message stays at the head of the backlog. So the
//! packet waits in the path, within the bound of the backlog, and nothing can overtake it. Totals that count as granted
//! go with the next packet. A credit packet and `Detach` have no entry in a backlog, so a mark stands for each.
//!
//! The path sends nothing until the driver reports [`crate::Event::LinkReady`].
//! ```text
//! handle(Posted(Send 8 bytes))       driver.transmit(Eager) -> LinkBusy, driver.hold(0)
//! handle(Posted(Send 8 bytes))       driver.hold(1)
//! handle(LinkReady)                  driver.transmit(Eager), complete(0), transmit(Eager), complete(1)
//! ```

use super::sending::BacklogEntry;
use super::{Endpoint, Outbound, PeerEntry, Refusal};
use crate::action::Source;
use crate::driver::Driver;
use crate::event::{Peer, SendCommand, Transfer};
use crate::packet::{Body, Packet};

/// What waits for the link of one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BusyLink {
    /// The link has refused a packet and is not ready yet.
    pub busy: bool,
    /// A credit packet, whose credits count as granted.
    pub credit: bool,
    /// `Detach`.
    pub detach: bool,
}

impl PeerEntry {
    /// Whether the link has refused a packet and is not ready yet.
    #[inline]
    pub(super) fn is_link_busy(&self) -> bool {
        self.pending.as_deref().is_some_and(|pending| pending.busy_link.busy)
    }
}

impl Endpoint {
    /// What waits for the link to `peer`, which has just refused a packet.
    fn note_busy(&mut self, peer: Peer) -> &mut BusyLink {
        let Endpoint { peers, spare, .. } = self;
        let busy_link = &mut spare.begin(&mut peers[peer.0 as usize].pending).busy_link;
        busy_link.busy = true;
        busy_link
    }

    /// The packet `packet` of `slots` slots has not left.
    fn take_back(&mut self, to: Peer, packet: &Packet, slots: u32) {
        self.counters.uncount(&packet.body, slots);
        if let Outbound::Connected(sender) = &mut self.peers[to.0 as usize].path.outbound {
            sender.refund(slots);
        }
        self.note_busy(to);
    }

    /// The link has refused `packet`, the whole message of `send`: queues the message.
    ///
    /// # Errors
    /// As for a send that waits for credit.
    #[cold]
    #[inline(never)]
    pub(super) fn single_packet_refused<D: Driver>(
        &mut self,
        send: SendCommand,
        packet: &Packet,
        driver: D,
    ) -> Result<(), Refusal> {
        self.take_back(send.to, packet, self.config.geometry.packet_slots(packet));
        self.counters.messages_sent -= 1;
        self.counters.bytes_sent -= send.bytes;
        self.peers[send.to.0 as usize].next_number = packet.number;
        self.send_out_of_line(send, driver)
    }

    /// The link has refused the announcement of a bounce buffer: queues it.
    #[cold]
    pub(super) fn forced_rendezvous_refused<D: Driver>(
        &mut self,
        to: Peer,
        packet: &Packet,
        transfer: Transfer,
        driver: &mut D,
    ) {
        driver.announcements_ended(to, transfer, 1);
        self.take_back(to, packet, 1);
        let payload = Source::Bounce { transfer, offset: 0 };
        let entry = BacklogEntry { payload, number: packet.number, ..BacklogEntry::control(packet.body) };
        let Endpoint { peers, spare, .. } = self;
        let backlog = &mut spare.begin(&mut peers[to.0 as usize].pending).backlog;
        spare.push(backlog, entry);
        self.backlogged += 1;
    }

    /// Sends a credit packet. Its credits count as granted.
    #[inline]
    pub(super) fn send_credit_packet<D: Driver>(&mut self, to: Peer, driver: &mut D) {
        let Endpoint { peers, counters, pool, budget, .. } = self;
        let grants = &mut peers[to.0 as usize].path.grants;
        let packet = grants.free_packet(Body::Credit, budget.is_over_limit(), pool, counters);
        if driver.transmit(to, &packet, Source::None).is_err() {
            counters.uncount(&packet.body, 1);
            self.note_busy(to).credit = true;
            return;
        }
        grants.leases.credit_packet_sent();
        counters.credit_packets_sent += 1;
    }

    /// The link has refused `Detach`.
    #[cold]
    pub(super) fn detach_refused(&mut self, peer: Peer, packet: &Packet) {
        self.counters.uncount(&packet.body, 1);
        self.note_busy(peer).detach = true;
    }

    /// The link takes packets to `peer` again: first those that are in no backlog.
    pub(super) fn link_ready<D: Driver>(&mut self, peer: Peer, driver: &mut D) {
        let Some(state) = self.peers.get_mut(peer.0 as usize) else { return };
        let Some(pending) = state.pending.as_deref_mut() else { return };
        let BusyLink { busy, credit, detach } = core::mem::take(&mut pending.busy_link);
        if !busy {
            return;
        }
        if credit {
            self.send_credit_packet(peer, driver);
        }
        if !self.peers[peer.0 as usize].is_link_busy() && detach {
            self.detach(peer, driver);
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
        self.send_while_credited(peer, driver);
        self.remove_if_idle(peer);
    }
}

#[cfg(test)]
mod tests;
