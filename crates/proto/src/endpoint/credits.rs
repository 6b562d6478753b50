//! Credits of the senders to this endpoint: retrieved slots are counted, and credits leave in credit packets. With
//! dynamic credits, this file also sends the return requests that the pool decides, and accepts those of peers.
//!
//! The caller says how many slots a packet has filled. A lane that only credits need is asked for here too.

use super::path::{Outbound, Path};
use super::paths::Paths;
use super::payloads::Payloads;
use crate::action::Source;
use crate::config::Scheme;
use crate::driver::Driver;
use crate::event::Peer;
use crate::flow::Mutant;
use crate::packet::{Body, Packet};

impl Paths {
    /// Returns credits to `to` explicitly, if they are due. Credit packets cost no credit and never wait behind data.
    #[inline]
    pub(super) fn return_credits<D: Driver>(&mut self, to: Peer, driver: &mut D) {
        let Paths { config, peers, counters, pool, .. } = self;
        let Some(state) = peers.get_mut(to.0 as usize) else { return };
        let busy = state.is_link_busy();
        let Path { outbound, grants, .. } = &mut state.path;
        let credit_slots = grants.credit_slots;
        let Some(receiver) = &mut grants.receiver else { return };
        match outbound {
            Outbound::Connected(_) if busy => return receiver.grants_must_wait(pool), // until the link is ready
            Outbound::Connected(_) => {}
            Outbound::Absent if config.scheme.grants() => {
                let is_due = receiver.is_due(pool);
                receiver.grants_must_wait(pool);
                return self.connect_for_credits(to, is_due, driver);
            }
            _ => return receiver.grants_must_wait(pool),
        }
        #[cfg(feature = "explore")]
        let credit_slots = if self.relies_on_thresholds { u16::MAX } else { credit_slots };
        let Some(credits) = receiver.grant(credit_slots.into(), pool) else { return };
        counters.explicit_credits_sent += u64::from(credits);
        self.send_credit_packet(to, driver);
    }

    /// Asks for a lane at a peer to which we have only credits to send. `is_due`: they are due. At the first contact we ask
    /// before that, so that the lane is there in time. Later the lane may be one that others wait for.
    #[cold]
    fn connect_for_credits<D: Driver>(&mut self, to: Peer, is_due: bool, driver: &mut D) {
        if is_due || !self.peers.has_leased(to) {
            self.peers[to.0 as usize].path.outbound = Outbound::Connecting;
            driver.connect(to);
        }
    }

    /// Sends a credit packet. Its credits count as granted.
    #[inline]
    pub(super) fn send_credit_packet<D: Driver>(&mut self, to: Peer, driver: &mut D) {
        let Paths { config, peers, counters, pool, budget, .. } = self;
        let state = &mut peers[to.0 as usize];
        let wanted_total = state.announced_demand(&config.geometry, pool);
        let grants = &mut state.path.grants;
        let packet = grants.free_packet(Body::Credit, wanted_total, budget.is_over_limit(), pool, counters);
        if driver.transmit(to, &packet, Source::None).is_err() {
            counters.uncount(&packet.body, 1);
            self.note_busy(to).credit = !self.pool.breaks(Mutant::RefusedCreditsAreForgotten);
            return;
        }
        grants.leases.credit_packet_sent();
        counters.credit_packets_sent += 1;
    }

    /// The slots of a packet are free. Returns whether its sender had credits for them.
    #[inline]
    pub(super) fn retrieved(&mut self, from: Peer, slots: u32, read: u16, packet: &Packet) -> bool {
        let Paths { peers, pool, .. } = self;
        let Some(receiver) = &mut peers[from.0 as usize].path.grants.receiver else { return true };
        let spent = receiver.retrieved(slots, read, packet.wanted_total, pool);
        let spent = match packet.body {
            Body::ReturnRequest => spent.and_then(|()| receiver.control_retrieved(None, pool)),
            Body::ReturnResponse { credits } => {
                spent.and_then(|()| receiver.control_retrieved(Some(credits), pool))
            }
            _ => spent,
        };
        if spent.is_err() {
            return false;
        }
        if packet.marks.backlogged
            && let Some(quota_slots) = receiver.packet_was_backlogged()
        {
            self.note_quota(quota_slots);
        }
        true
    }

    /// Requests credits from senders whose quota was taken, or serves the senders that wait for a loan.
    #[cold]
    pub(super) fn ask_for_credits<D: Driver>(&mut self, payloads: &mut Payloads, driver: &mut D) {
        if let Scheme::Demand = self.config.scheme {
            return self.serve_waiting(payloads, driver);
        }
        while let Some(peer) = self.pool.dynamic.next_request() {
            self.request_credits(peer, payloads, driver);
        }
    }

    fn request_credits<D: Driver>(&mut self, peer: Peer, payloads: &mut Payloads, driver: &mut D) {
        self.peer(peer);
        self.pending(peer).compulsory.request();
        let state = &mut self.peers[peer.0 as usize];
        if let Outbound::Absent = state.path.outbound {
            state.path.outbound = Outbound::Connecting;
            driver.connect(peer);
        }
        self.send_while_credited(peer, payloads, driver);
    }

    /// Grants free slots to the senders that wait for them (credits on demand), and requests credits of others if none
    /// is free.
    fn serve_waiting<D: Driver>(&mut self, payloads: &mut Payloads, driver: &mut D) {
        loop {
            while let Some((account, peer)) = self.pool.demand().next_waiting() {
                let granted_total = self.pool.demand().granted_total(account);
                self.return_credits(peer, driver);
                self.pool.demand_mut().served(account, granted_total);
            }
            let Some(peer) = self.pool.demand_mut().next_overdue() else { break };
            self.return_credits(peer, driver);
        }
        while let Some(peer) = self.pool.demand_mut().next_request() {
            self.request_credits(peer, payloads, driver);
        }
        self.pool.end_work();
    }

    /// A request for the excess credits of our lease `epoch` has arrived. Returns whether it is valid. One request at a
    /// time is valid, and only with dynamic credits. A request for an ended lease is ignored: its credits have been
    /// returned.
    pub(super) fn return_request_arrived(&mut self, from: Peer, epoch: u16) -> bool {
        let has_requests = self.config.scheme.shares_region();
        let fixed = self.pool.breaks(Mutant::AmountIsFixedByTheRequest);
        self.peer(from);
        let Paths { peers, spare, .. } = self;
        let state = &mut peers[from.0 as usize];
        let excess = match &state.path.outbound {
            Outbound::Connected(sender) if epoch == state.path.grants.leases.outgoing() => {
                sender.excess(state.path.grants.credit_slots, 0)
            }
            Outbound::Connecting => {
                spare.begin(&mut state.pending).compulsory.note_early_request(epoch);
                return has_requests;
            }
            _ => return has_requests,
        };
        let Some(excess) = excess else { return false };
        spare.begin(&mut state.pending).compulsory.respond(fixed.then_some(excess))
    }

    /// Ends an event: credits that the pool has decided to take back are requested.
    #[inline]
    pub(super) fn send_return_requests<D: Driver>(&mut self, payloads: &mut Payloads, driver: &mut D) {
        if self.pool.has_requests() {
            self.ask_for_credits(payloads, driver);
        }
    }
}
