//! Loss of a peer, and closing: every operation that depends on the peer ends with an error.
//!
//! No operation waits for a lost peer, and operations with other peers continue. This file does not know how the driver
//! detects a loss.

use alloc::vec::Vec;

use super::busy_link::BusyLink;
use super::compulsory::Compulsory;
use super::peers::EntryRef;
use super::pending::Backlog;
use super::receiving::BufferRange;
use super::sending::{BacklogEntry, EntryKind};
use super::{Endpoint, Outbound, PendingWork, rnr};
use crate::action::{Outcome, Source};
use crate::driver::Driver;
use crate::event::{Peer, PeerFault};
use crate::message::posted::PostedQueue;
use crate::packet::Body;
use crate::transfer::State;

impl Endpoint {
    /// Ends all operations with `peer`. The program can still receive messages that arrived whole.
    pub(super) fn lose<D: Driver>(&mut self, peer: Peer, fault: PeerFault, driver: &mut D) {
        let state = self.peer(peer);
        if matches!(state.path.outbound, Outbound::Lost(_)) {
            return;
        }
        state.path.outbound = Outbound::Lost(fault);
        state.path.backlog_waited = false;
        rnr::end_wait(&mut state.path, peer, driver);
        let receiver = state.path.grants.receiver.take();
        let mut backlog = Backlog::default();
        let mut undelivered = 0;
        if let Some(pending) = state.pending.as_deref_mut() {
            undelivered = pending.bounce_buffers;
            pending.stalled_since = None;
            pending.busy_link = BusyLink::default();
            pending.compulsory = Compulsory::default();
            backlog = core::mem::take(&mut pending.backlog);
        }
        let inbound = state.inbound.take();
        let inbound = inbound.and_then(|number| self.inbounds.remove(number.get()));
        if let Some(receiver) = receiver {
            receiver.remove(&mut self.pool);
        }
        self.counters.peers_lost += u64::from(fault != PeerFault::Closed);
        self.counters.malformed_packets += u64::from(fault == PeerFault::Malformed);
        self.backlogged -= backlog.len() as u32;
        let is_message = |entry: &&BacklogEntry| matches!(entry.kind, EntryKind::Eager { .. });
        undelivered += backlog.iter().filter(is_message).filter(|entry| entry.is_completed()).count() as u32;
        if undelivered > 0 && fault != PeerFault::Closed {
            driver.messages_lost(peer, undelivered, fault);
        }
        driver.drop_peer(peer);
        self.unreserve(peer, driver);

        let lost = Outcome::Lost { peer: Some(peer), fault };
        for entry in backlog.iter() {
            if let Some(request) = self.requester(entry) {
                driver.complete(request, lost);
            }
        }
        for transfer in self.transfers.with_peer(peer) {
            let entry = self.transfers.end(transfer).expect("listed transfers exist");
            match entry.state {
                State::Send { request, .. } | State::Read { request, .. } | State::Write { request, .. } => {
                    driver.complete(request, lost);
                }
                State::Receive { request, multi, offset, bytes, .. } => {
                    self.receive_lost(BufferRange { request, multi, offset, bytes }, peer, fault, driver);
                }
            }
        }
        if let Some(range) = inbound.and_then(|inbound| inbound.range()) {
            self.receive_lost(range, peer, fault, driver);
        }
        for message in self.unexpected.incomplete_from(peer) {
            self.free_unexpected(message, driver);
        }
        // An orderly close does not fail posted receives: the program may cancel them. Any other loss fails directed
        // receives and any-source receives, because the awaited message may have been the lost peer's.
        if fault == PeerFault::Closed {
            return;
        }
        let died = fault != PeerFault::Unreachable;
        self.any_peer_died |= died;
        for posted in self.posted.remove_for_peer(peer, died) {
            let lost = Outcome::Lost { peer: posted.from(), fault };
            match posted.multi() {
                Some(index) => self.fail_multi(index, posted.request, lost, driver),
                None => driver.complete(posted.request, lost),
            }
        }
    }

    /// First half of closing: drops posted receives and sends a goodbye to the peers.
    pub(super) fn close<D: Driver>(&mut self, driver: &mut D) {
        self.posted = PostedQueue::default();
        self.flush_acks(driver); // before the goodbye, which voids unsent acknowledgements
        let connected = |(peer, state): (Peer, EntryRef<'_>)| {
            matches!(state.path.outbound, Outbound::Connected(_)).then_some(peer)
        };
        // Also peers with transfers of ours: they may have announced a rendezvous, and we have detached from them.
        let mut peers: Vec<Peer> =
            self.peers.entries().filter_map(connected).chain(self.transfers.peers()).collect();
        peers.sort_unstable();
        peers.dedup();
        for peer in peers {
            self.submit(peer, BacklogEntry::control(Body::Goodbye), driver);
        }
    }

    /// A peer closes. Sends that wait for it end, so that two closing endpoints do not wait for each other.
    pub(super) fn goodbye_arrived<D: Driver>(&mut self, from: Peer, driver: &mut D) -> bool {
        self.peer(from).said_goodbye = true;
        // Announced rendezvous are void. Neither the announcement nor its pieces nor a queued injected message needs to
        // leave, nor a message that waits for a match.
        let void = |entry: &BacklogEntry| match entry.kind {
            EntryKind::Control(Body::Rendezvous { .. }) => true,
            EntryKind::Pieces { .. } => !matches!(entry.payload, Source::Region { .. }),
            EntryKind::Eager { acknowledge, .. } => {
                // `Source::None`: an injected message without payload.
                matches!(entry.payload, Source::Bounce { .. } | Source::None) || acknowledge.is_some()
            }
            _ => false,
        };
        let Endpoint { peers, transfers, backlogged, .. } = self;
        if let Some(PendingWork { backlog, busy_link, .. }) = peers[from.0 as usize].pending.as_deref_mut() {
            if let Some(entry) = backlog.front_mut()
                && entry.sent > 0
                && let EntryKind::Eager { acknowledge: Some(transfer), .. } = entry.kind
                && let Some(State::Send { request, .. }) = transfers.end(transfer).map(|entry| entry.state)
            {
                entry.await_last_packet(request); // a message that has started ends with its last packet
            }
            let before = backlog.len();
            backlog.retain(|entry| !void(entry));
            *backlogged -= (before - backlog.len()) as u32;
            if busy_link.busy && backlog.is_empty() {
                // The refused packet would have carried totals that count as granted. `Detach` carries them.
                busy_link.detach = true;
            }
        }
        self.free_bounce_buffers(from, driver);
        for transfer in self.transfers.with_peer(from) {
            if let Some(State::Send { request, .. }) = self.transfers.get(transfer, from).copied() {
                self.transfers.end(transfer);
                let outcome = Outcome::Lost { peer: Some(from), fault: PeerFault::Closed };
                driver.complete(request, outcome);
            }
        }
        true
    }
}
