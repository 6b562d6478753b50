//! Loss of a peer: operations that depend on it end with an error, and operations with other peers continue. Messages
//! that have arrived whole can still be received. Receives from any source also end if the peer was reached before. If
//! the peer has closed in good order, posted receives stay, because the program may cancel them.
//!
//! The two sides of a goodbye are here too. When this endpoint closes, it drops its posted receives and sends a goodbye
//! to its peers. When the goodbye of a peer arrives, what was announced to that peer is void. This file does not know
//! how the driver detects a loss.

use alloc::vec::Vec;

use super::backlog::{Backlog, BacklogEntry, EntryKind};
use super::compulsory::Compulsory;
use super::hold_mutant::HoldMutant;
use super::inbound::BufferRange;
use super::path::Outbound;
use super::paths::Paths;
use super::peers::EntryRef;
use super::pending::{BusyLink, PendingWork, Waits};
use super::state::Endpoint;
use crate::action::{Outcome, Source};
use crate::driver::Driver;
use crate::event::{Peer, PeerFault, Request};
use crate::packet::Body;
use crate::transfer::State;

impl Endpoint {
    /// Ends all operations with `peer`. The program can still receive messages that arrived whole.
    pub(super) fn lose<D: Driver>(&mut self, peer: Peer, fault: PeerFault, driver: &mut D) {
        let Endpoint { paths, payloads, matching } = self;
        let state = paths.peer(peer);
        if matches!(state.path.outbound, Outbound::Lost(_)) {
            return;
        }
        state.path.outbound = Outbound::Lost(fault);
        state.path.grants.backlog_waited = false;
        state.path.end_room_wait(peer, driver);
        let receiver = state.path.grants.receiver.take();
        let mut backlog = Backlog::default();
        let mut undelivered = 0;
        if let Some(pending) = state.pending.as_deref_mut() {
            undelivered = pending.bounce_buffers;
            pending.waits = Waits::Nothing;
            pending.busy_link = BusyLink::default();
            pending.compulsory = Compulsory::default();
            pending.hold = None;
            backlog = core::mem::take(&mut pending.backlog);
        }
        let inbound = state.path.inbound.take();
        let inbound = inbound.and_then(|number| matching.inbounds.remove(number.get()));
        if let Some(receiver) = receiver {
            receiver.remove(&mut paths.pool);
        }
        paths.counters.peers_lost += u64::from(fault != PeerFault::Closed);
        paths.counters.malformed_packets += u64::from(fault == PeerFault::Malformed);
        paths.backlogged -= backlog.len() as u32;
        let is_message = |entry: &&BacklogEntry| matches!(entry.kind, EntryKind::Eager { .. });
        undelivered += backlog.iter().filter(is_message).filter(|entry| entry.is_completed()).count() as u32;
        if undelivered > 0 && fault != PeerFault::Closed {
            driver.messages_lost(peer, undelivered, fault);
        }
        driver.drop_peer(peer);
        driver.peer_lost(peer, fault);
        paths.unreserve(peer, payloads, driver);
        paths.multi_sends.forget(peer);
        if paths.multi_sends.has_changed() {
            paths.release_ready_copies(payloads, driver);
        }

        let lost = Outcome::Lost { peer: Some(peer), fault };
        for entry in backlog.iter() {
            if let Some(request) = payloads.end_unsent(entry) {
                driver.complete(request, lost);
            }
            if let Some(buffer) = entry.owned_buffer() {
                driver.answer_left(buffer);
            }
        }
        for transfer in payloads.transfers.with_peer(peer) {
            let entry = payloads.transfers.end(transfer).expect("listed transfers exist");
            match entry.state {
                State::Send { request, .. } | State::Read { request, .. } | State::Write { request, .. } => {
                    driver.complete(request, lost);
                }
                State::Receive { request, multi, offset, bytes, .. } => {
                    let range = BufferRange { request, multi, offset, bytes };
                    matching.receive_lost(range, peer, fault, driver);
                }
            }
        }
        if let Some(range) = inbound.and_then(|inbound| inbound.range()) {
            matching.receive_lost(range, peer, fault, driver);
        }
        for message in matching.unexpected.incomplete_from(peer) {
            matching.free_unexpected(message, &mut paths.budget, driver);
        }
        if !self.matching.holders.mutant.breaks(HoldMutant::LossIsForgotten) {
            self.end_holder(peer, driver);
        }
        let matching = &mut self.matching;
        // An orderly close does not fail posted receives: the program may cancel them. Any other loss fails directed
        // receives and any-source receives, because the awaited message may have been the lost peer's.
        if fault == PeerFault::Closed {
            return;
        }
        let died = fault != PeerFault::Unreachable;
        matching.any_peer_died |= died;
        for posted in matching.posted.remove_for_peer(peer, died) {
            let lost = Outcome::Lost { peer: posted.from(), fault };
            match posted.multi() {
                Some(index) => matching.fail_multi(index, posted.request, lost, driver),
                None => driver.complete(posted.request, lost),
            }
        }
    }

    /// First half of closing: drops posted receives and sends a goodbye to the peers.
    pub(super) fn close<D: Driver>(&mut self, driver: &mut D) {
        let holders = self.closing_holders();
        let Endpoint { paths, payloads, matching } = self;
        matching.posted.clear();
        paths.budget.close();
        paths.flush_acks(payloads, driver); // before the goodbye, which voids unsent acknowledgements
        let connected = |(peer, state): (Peer, EntryRef<'_>)| {
            matches!(state.path.outbound, Outbound::Connected(_)).then_some(peer)
        };
        // Also peers with transfers of ours: they may have announced a rendezvous, and we have detached from them.
        // And holders, which may have detached from us.
        let mut peers: Vec<Peer> = paths.peers.entries().filter_map(connected).collect();
        peers.extend(payloads.transfers.peers().chain(holders));
        peers.sort_unstable();
        peers.dedup();
        for peer in peers {
            paths.submit(peer, BacklogEntry::control(Body::Goodbye), payloads, driver);
        }
    }

    /// A peer closes. Sends that wait for it end, so that two closing endpoints do not wait for each other.
    pub(super) fn goodbye_arrived<D: Driver>(&mut self, from: Peer, driver: &mut D) -> bool {
        let Endpoint { paths, payloads, .. } = self;
        paths.peer(from).path.grants.said_goodbye = true;
        paths.give_up_multi_sends(from, payloads, driver);
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
        let mut ended: Vec<Request> = Vec::new();
        let Paths { peers, backlogged, .. } = paths;
        if let Some(PendingWork { backlog, busy_link, .. }) = peers[from.0 as usize].pending.as_deref_mut() {
            if let Some(entry) = backlog.front_mut()
                && entry.sent > 0
                && let EntryKind::Eager { acknowledge: Some(transfer), .. } = entry.kind
                && let Some(State::Send { request, .. }) =
                    payloads.transfers.end(transfer).map(|entry| entry.state)
            {
                entry.await_last_packet(request); // a message that has started ends with its last packet
            }
            let before = backlog.len();
            backlog.retain(|entry| {
                let is_void = void(entry);
                if is_void {
                    // Of a message that became a rendezvous in the backlog, no transfer knows the request.
                    ended.extend(entry.complete);
                }
                !is_void
            });
            *backlogged -= (before - backlog.len()) as u32;
            if busy_link.busy && backlog.is_empty() {
                // The refused packet would have carried totals that count as granted. `Detach` carries them.
                busy_link.detach = true;
            }
        }
        if let Some(pending) = paths.peer(from).pending.as_deref_mut() {
            pending.hold = None;
        }
        paths.free_bounce_buffers(from, &mut payloads.bounce_buffers, driver);
        for transfer in payloads.transfers.with_peer(from) {
            if let Some(State::Send { request, .. }) = payloads.transfers.get(transfer, from).copied() {
                payloads.transfers.end(transfer);
                ended.push(request);
            }
        }
        for request in ended {
            driver.complete(request, Outcome::Lost { peer: Some(from), fault: PeerFault::Closed });
        }
        true
    }
}
