//! Receiver memory of each path: reservations in our budget, senders that ignore our mark, and our bounce buffers for messages that a receiver does
//! not have yet. It also decides whether a message to a receiver without memory stays in the program's buffer, and
//! whether waiting could free a bounce buffer for it.
//!
//! [`super::budget`] and [`super::bounce`] count.

use super::bounce::{BounceBuffers, Stage};
use super::hold_mutant::HoldMutant;
use super::path::Outbound;
use super::paths::Paths;
use super::payloads::Payloads;
use super::pending::PendingWork;
use crate::driver::Driver;
use crate::event::{Peer, SendLevel, Transfer};

impl Paths {
    /// A peer has attached: reserve memory for what it can send before it reads our answer.
    pub(super) fn reserve(&mut self, peer: Peer, quota_slots: u32) {
        let before = self.peer(peer).reserved.take();
        self.budget.detach(&self.config, before);
        let reserved = self.budget.attach(&self.config, quota_slots);
        let state = self.peer(peer);
        state.reserved = reserved;
        state.path.grants.unreserved = reserved.is_none();
        if !self.budget.enforced() {
            self.peer(peer).path.grants.unreserved = false;
        }
    }

    /// A peer is lost: free its reservation, its acknowledgements and its bounce buffers.
    pub(super) fn unreserve<D: Driver>(&mut self, peer: Peer, payloads: &mut Payloads, driver: &mut D) {
        let state = self.peer(peer);
        let reserved = state.reserved.take();
        if let Some(PendingWork { acks, .. }) = state.pending.as_deref_mut() {
            acks.clear();
        }
        self.budget.detach(&self.config, reserved);
        self.budget.forget(peer);
        self.free_bounce_buffers(peer, &mut payloads.bounce_buffers, driver);
    }

    /// Whether `from` may have sent a message that it does not hold, and that no receive takes, although we ask for
    /// rendezvous only. `payload_bytes`: what has to be kept of it besides the envelope.
    #[inline]
    pub(super) fn heeds_mark(&mut self, from: Peer, payload_bytes: u64) -> bool {
        !self.budget.is_over_limit_with(payload_bytes) || self.may_precede_mark(from, payload_bytes)
    }

    #[cold]
    fn may_precede_mark(&mut self, from: Peer, payload_bytes: u64) -> bool {
        self.peer(from); // expands the entry
        let Paths { config, peers, pool, budget, .. } = self;
        let receiver = peers[from.0 as usize].path.grants.receiver.as_ref();
        let slots = receiver.and_then(|receiver| receiver.view(pool).current).unwrap_or(0);
        budget.allow(config, from, slots, payload_bytes)
    }

    /// Frees the bounce buffers for `peer`, which will not receive them.
    pub(super) fn free_bounce_buffers<D: Driver>(
        &mut self,
        peer: Peer,
        bounce_buffers: &mut BounceBuffers,
        driver: &mut D,
    ) {
        let Some(PendingWork { bounce_buffers: count, .. }) = self.peer(peer).pending.as_deref_mut() else {
            return;
        };
        if core::mem::take(count) == 0 {
            return;
        }
        for transfer in bounce_buffers.with_peer(peer) {
            bounce_buffers.end(transfer);
            driver.free_bounce(transfer);
        }
    }

    /// The message of `transfer` is not held for `peer` any more, if it was: the receiver has it, or it has not left.
    pub(super) fn end_held(&mut self, peer: Peer, transfer: Transfer, bounce_buffers: &mut BounceBuffers) {
        let Some(pending) =
            self.peers.get_mut(peer.0 as usize).and_then(|state| state.pending.as_deref_mut())
        else {
            return;
        };
        if let Some(hold) = pending.hold.as_deref_mut() {
            hold.remove(transfer, bounce_buffers);
            pending.end_hold();
        }
    }

    /// `peer` has claimed message `number`, whose transfer was `transfer`. Its acknowledgement may have arrived before, and
    /// the name may belong to a later message now.
    pub(super) fn claimed_arrived(
        &mut self,
        peer: Peer,
        transfer: Transfer,
        number: u32,
        bounce_buffers: &mut BounceBuffers,
    ) {
        let mutant = self.hold_mutant;
        let pending = self.peers.get_mut(peer.0 as usize).and_then(|state| state.pending.as_deref_mut());
        let hold = pending.and_then(|pending| pending.hold.as_deref());
        let held = hold.and_then(|hold| hold.number(transfer, bounce_buffers));
        if held == Some(number) || mutant.breaks(HoldMutant::ClaimsEndLaterMessages) {
            self.end_held(peer, transfer, bounce_buffers);
        }
    }

    /// Whether an eager send to a peer in rendezvous-only mode would have to leave its payload in the program's own buffer.
    #[inline]
    pub(super) fn announces_user_buffer(
        &self,
        to: Peer,
        bytes: u64,
        level: SendLevel,
        bounce_buffers: &BounceBuffers,
    ) -> bool {
        if bytes > self.config.eager_bytes {
            return true;
        }
        bytes > 0
            && self.is_rendezvous_only(to)
            && (level >= SendLevel::Delivered || !bounce_buffers.fits(bytes))
    }

    /// Whether waiting could free a bounce buffer for `bytes` bytes that do not fit now. The bounce buffer is needed
    /// because `to` has no memory, or because the message cannot leave.
    #[inline]
    pub(super) fn may_fit_later(&self, to: Peer, bytes: u64, bounce_buffers: &BounceBuffers) -> bool {
        (1..=self.config.eager_bytes).contains(&bytes)
            && (self.is_rendezvous_only(to) || self.would_wait(to, bytes))
            && !bounce_buffers.fits(bytes)
            && !bounce_buffers.is_empty()
    }

    /// Number of bounce buffers with messages that `to` has not received.
    #[inline]
    pub(super) fn bounce_buffers_for(&self, to: Peer) -> u32 {
        let pending = self.peers.full_entry(to.0 as usize).and_then(|state| state.pending.as_deref());
        pending.map_or(0, |pending| pending.bounce_buffers)
    }

    /// Whether something that waits to leave to `to` is complete for the program.
    pub(super) fn has_complete_waiting(&self, to: Peer) -> bool {
        let pending = self.peers.full_entry(to.0 as usize).and_then(|state| state.pending.as_deref());
        pending.is_some_and(|pending| pending.backlog.has_complete())
    }

    #[inline]
    fn is_rendezvous_only(&self, to: Peer) -> bool {
        match self.peers.full_entry(to.0 as usize) {
            Some(state) => state.announces() && !matches!(state.path.outbound, Outbound::Lost(_)),
            None => {
                self.budget.starts_rendezvous_only() || (self.budget.enforced() && self.peers.has_leased(to))
            }
        }
    }

    /// `peer` acknowledges `count` bounce buffers from number `first` on. Returns whether the acknowledgement is valid.
    pub(super) fn bounce_buffers_finished<D: Driver>(
        &mut self,
        peer: Peer,
        first: u32,
        count: u32,
        bounce_buffers: &mut BounceBuffers,
        driver: &mut D,
    ) -> bool {
        for number in (first..).take(count as usize) {
            match bounce_buffers.of_peer(number, peer).map(|buffer| buffer.stage()) {
                Some(Stage::Announced | Stage::Left) => {}
                // A goodbye has freed it already; the peer still acknowledges what it received before.
                None | Some(Stage::Waiting) => return self.peer(peer).path.grants.said_goodbye,
                Some(Stage::Fetched) => return false, // requested pieces have not left
            }
            let transfer = Transfer::of_bounce_buffer(number);
            self.end_held(peer, transfer, bounce_buffers);
            let pending = self.peer(peer).pending.as_deref_mut();
            let PendingWork { bounce_buffers: held, .. } =
                pending.expect("a peer with bounce buffers has pending work");
            *held -= 1;
            bounce_buffers.end(transfer);
            driver.free_bounce(transfer);
        }
        count > 0
    }
}
