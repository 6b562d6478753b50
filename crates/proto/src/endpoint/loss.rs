//! The loss of a peer: everything that depends on it ends in an error, nothing hangs, nobody else notices.

use alloc::vec::Vec;

use super::receiving::Landing;
use super::sending::{Job, JobKind};
use super::{Endpoint, Outbound};
use crate::action::{Action, Outcome};
use crate::event::{Peer, PeerFault};
use crate::packet::Body;
use crate::time::Instant;
use crate::transfer::State;

impl Endpoint {
    /// Ends everything with `peer`. What arrived whole from it can still be received.
    pub(super) fn lose(&mut self, peer: Peer, fault: PeerFault, actions: &mut Vec<Action>) {
        let state = self.peer(peer);
        if matches!(state.outbound, Outbound::Lost(_)) {
            return;
        }
        state.outbound = Outbound::Lost(fault);
        state.stalled_since = None;
        let backlog = core::mem::take(&mut state.backlog);
        let inbound = state.inbound.take();
        self.counters.peers_lost += u64::from(fault != PeerFault::Closed);
        self.backlogged -= backlog.len() as u32;
        actions.push(Action::Sever { peer });

        let lost = Outcome::Lost { peer: Some(peer), fault };
        for job in &backlog {
            if let Some(request) = self.requester(job) {
                Self::complete(actions, request, lost);
            }
        }
        for transfer in self.transfers.with_peer(peer) {
            let entry = self.transfers.end(transfer).expect("listed transfers exist");
            match entry.state {
                State::Send { request, .. } | State::Read { request, .. } | State::Write { request, .. } => {
                    Self::complete(actions, request, lost);
                }
                State::Take { request, multi, offset, bytes, .. } => {
                    self.receive_lost(Landing { request, multi, offset, bytes }, peer, fault, actions);
                }
            }
        }
        if let Some(landing) = inbound.and_then(|inbound| inbound.landing()) {
            self.receive_lost(landing, peer, fault, actions);
        }
        for message in self.unexpected.incomplete_from(peer) {
            self.forget(message, actions);
        }
        // An orderly end is no reason to fail receives: the program may cancel them. Any other is, and also for those
        // that would accept anybody: the message they wait for may have been the dead peer's.
        if fault == PeerFault::Closed {
            return;
        }
        let died = fault != PeerFault::Unreachable;
        self.somebody_died |= died;
        for posted in self.posted.remove_waiting_for(peer, died) {
            let peer = posted.pattern.from;
            if let Some(index) = posted.multi {
                self.release_multi(index, posted.request, actions);
            } else {
                Self::complete(actions, posted.request, Outcome::Lost { peer, fault });
            }
        }
    }

    /// Closing, first half: the peers learn that nothing announced to us will be taken.
    pub(super) fn farewell(&mut self, now: Instant, actions: &mut Vec<Action>) {
        for index in 0..self.peers.len() {
            if matches!(self.peers[index].outbound, Outbound::Connected(_)) {
                self.submit(now, Peer(index as u32), Job::control(Body::Goodbye), actions);
            }
        }
    }

    /// A peer takes nothing more. Sends that wait for it end; so two endpoints that close do not wait for each other.
    pub(super) fn goodbye_arrived(&mut self, from: Peer, actions: &mut Vec<Action>) -> bool {
        for transfer in self.transfers.with_peer(from) {
            if let Some(State::Send { request, .. }) = self.transfers.get(transfer, from).copied() {
                if let Some(job) = self.unsent(from, request) {
                    // It says goodbye while it takes something: no. While it would wait for the match: then not.
                    let JobKind::Eager { acknowledge, .. } = &mut job.kind else { return false };
                    *acknowledge = None;
                    job.complete = Some(request);
                    self.transfers.end(transfer);
                    continue;
                }
                self.transfers.end(transfer);
                let outcome = Outcome::Lost { peer: Some(from), fault: PeerFault::Closed };
                Self::complete(actions, request, outcome);
            }
        }
        true
    }
}
