//! The endpoint machine: its three parts, how it is made, and questions that a driver asks about them.
//!
//! Other files of this directory handle its events: see [`crate::Endpoint::handle`].

#[cfg(any(test, feature = "mutants"))]
use super::hold_mutant::HoldMutant;
use super::matching::Matching;
use super::paths::{Paths, Scratch};
use super::payloads::Payloads;
use crate::config::Config;
use crate::counters::Counters;
use crate::event::{Peer, PeerFault};
use crate::flow;
use crate::packet::Geometry;

/// The endpoint machine.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub(super) paths: Paths,
    pub(super) payloads: Payloads,
    pub(super) matching: Matching,
}

impl Endpoint {
    /// An endpoint without peers.
    ///
    /// # Panics
    /// If the configuration has no credit slots or a geometry in which a header does not fit into a slot.
    pub fn new(config: Config) -> Endpoint {
        Endpoint {
            payloads: Payloads::new(&config),
            paths: Paths::new(config),
            matching: Matching::default(),
        }
    }

    /// Paths over other links have this geometry ([`crate::Event::PathGeometry`]). Call it before the first event: the
    /// budget for unexpected messages must cover the largest slots.
    pub fn expect_geometry(&mut self, geometry: &Geometry) {
        let Paths { config, budget, .. } = &mut self.paths;
        budget.cover(config, geometry);
    }

    /// Messages of more than `bytes` bytes are announced to peers that can read our memory
    /// ([`crate::PayloadDriver::may_read`]), although others get them whole up to [`Config::eager_bytes`].
    pub fn announce_to_readers_beyond(&mut self, bytes: u32) {
        let Paths { one_packet_bytes, readable_eager_bytes, .. } = &mut self.paths;
        *readable_eager_bytes = bytes.min(*readable_eager_bytes);
        // A longer message is not sent before the driver was asked.
        *one_packet_bytes = bytes.min(*one_packet_bytes);
    }

    /// Peers of other jobs may send whole messages of up to `bytes` bytes, whatever the eager limit is here. Call it after
    /// [`Endpoint::expect_geometry`].
    pub fn expect_foreign_eager(&mut self, bytes: u64) {
        let Paths { config, budget, .. } = &mut self.paths;
        budget.expect_foreign(config, bytes);
    }

    /// Swaps the spare memory with that in `scratch`. Changes nothing else.
    #[inline]
    pub fn exchange_scratch(&mut self, scratch: &mut Scratch) {
        scratch.exchange(&mut self.paths);
    }

    /// The settings it was made with.
    #[inline]
    pub fn config(&self) -> &Config {
        &self.paths.config
    }

    /// Flow-control state of all senders, with dynamic credits.
    pub fn pool(&self) -> &flow::dynamic_credits::Pool {
        &self.paths.pool.dynamic
    }

    /// Flow-control state of all senders, if the scheme is credits on demand.
    pub fn demand_pool(&self) -> Option<&flow::demand_credits::Pool> {
        self.paths.pool.demand_pool()
    }

    /// Checks the accounts of credits on demand: D1, D3, and what each pair knows of its account. For tests and proofs:
    /// linear in the peers.
    ///
    /// # Panics
    /// If one of them does not hold.
    pub fn assert_accounts(&self) {
        let Some(pool) = self.paths.pool.demand_pool() else { return };
        pool.assert_invariants();
        for state in self.paths.peers.full_entries() {
            if let Some(flow::Receiver::Demand(receiver)) = &state.path.grants.receiver {
                receiver.assert_known(pool);
            }
        }
    }

    /// Replaces a rule of flow control by a mutant.
    #[cfg(any(test, feature = "mutants"))]
    pub fn mutate(&mut self, mutant: flow::Mutant) {
        self.paths.pool.mutate(mutant);
    }

    /// Replaces a rule of holding by a wrong one.
    #[cfg(any(test, feature = "mutants"))]
    pub fn mutate_holding(&mut self, mutant: HoldMutant) {
        self.paths.hold_mutant.select(mutant);
        self.matching.holders.mutant.select(mutant);
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.paths.counters
    }

    /// Whether a message of `bytes` bytes to `peer` might have to wait for credit now, or waits behind others. For
    /// drivers that read the clock only when needed.
    #[inline]
    pub fn would_wait(&self, peer: Peer, bytes: u64) -> bool {
        self.paths.would_wait(peer, bytes)
    }

    /// Number of bounce buffers with messages that `to` has not received.
    #[inline]
    pub fn bounce_buffers_for(&self, to: Peer) -> u32 {
        self.paths.bounce_buffers_for(to)
    }

    /// Whether something that waits to leave to `to` is complete for the program, which need not call again for it. Cheap just
    /// after such a message was posted.
    pub fn has_complete_waiting(&self, to: Peer) -> bool {
        self.paths.has_complete_waiting(to)
    }

    /// Whether [`crate::Event::Idle`] might send acknowledgements or credits.
    #[inline]
    pub fn waits_for_idle(&self) -> bool {
        !self.paths.pending_acks.is_empty() || self.paths.pool.waits_for_idle()
    }

    /// Number of backlog entries of all peers.
    pub fn backlogged(&self) -> u32 {
        self.paths.backlogged
    }

    /// Number of peer entries.
    pub fn peer_entries(&self) -> u64 {
        self.paths.peers.count() as u64
    }

    /// Whether there was contact with any peer, ourselves included.
    pub fn has_contacts(&self) -> bool {
        self.paths.peers.contacted().next().is_some()
    }

    /// Whether `peer` is lost, and why.
    pub fn fault(&self, peer: Peer) -> Option<PeerFault> {
        self.paths.fault(peer)
    }

    /// Whether this endpoint has asked for a lane at `to` and does not have it yet.
    pub fn is_connecting(&self, to: Peer) -> bool {
        self.paths.is_connecting(to)
    }

    /// Memory for envelopes of unexpected messages, without the payload that the driver stores. Unit: bytes.
    pub fn unexpected_bytes(&self) -> usize {
        self.matching.unexpected.bytes()
    }

    /// Number of unexpected messages.
    #[inline]
    pub fn unexpected_count(&self) -> u32 {
        self.matching.unexpected.count()
    }

    /// Whether there are unexpected messages.
    #[inline]
    pub fn has_unexpected(&self) -> bool {
        self.matching.unexpected.count() > 0
    }

    /// Memory for posted receives. Unit: bytes.
    pub fn posted_bytes(&self) -> usize {
        self.matching.posted.bytes()
    }

    /// Number of multi-receive buffers that have not ended.
    #[inline]
    pub fn multi_receives(&self) -> usize {
        self.matching.multi.count()
    }

    /// Whether a rendezvous of a peer is being received, so that its sender must not get a goodbye yet.
    pub fn is_receiving(&self) -> bool {
        self.payloads.transfers.is_receiving_payload()
    }
}
