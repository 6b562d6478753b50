//! Questions to holders: a receiver without space for envelopes asks the senders that hold them.
//!
//! A receiver has at most one request with each holder: a question for the oldest undecided receive or peek, or a request
//! to announce messages again. So a holder's answers need no numbers. docs/explanation/receiver-memory.md explains why
//! MPI's order holds.
//! ```text
//! A -> B   rendezvous 0, held      B has no receive for it and no space: dropped
//! B        posts a receive         B -> A   ask, from number 0 on
//! A -> B   offer 0                 B copies the payload       B -> A   finished
//! ```

use alloc::vec::Vec;

use super::backlog::BacklogEntry;
use super::hold_mutant::HoldMutant;
use super::hold_queue::HoldRequest;
use super::holders::{Asked, Holder, HolderRequest};
use super::inbound::BufferRange;
use super::path::Outbound;
use super::paths::Paths;
use super::receiving::Announced;
use super::state::Endpoint;
use crate::action::Outcome;
use crate::config::MAX_EAGER_BYTES;
use crate::driver::Driver;
use crate::event::{Pattern, PeekThen, Peer, Request};
use crate::message::posted::PostOrder;
use crate::message::unexpected::{Payload, Unexpected};
use crate::packet::Body;

/// A holder's offer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub announced: Announced,
    /// The number of the message.
    pub number: u32,
    /// An earlier peek has seen it.
    pub seen: bool,
    /// The packet carries the whole message.
    pub carried: bool,
}

impl Endpoint {
    /// A receive or a peek has found nothing here. Asks the holders that it accepts. Returns whether there are any.
    pub(super) fn ask_holders<D: Driver>(
        &mut self,
        (order, request): (PostOrder, Request),
        pattern: Pattern,
        peek: Option<PeekThen>,
        driver: &mut D,
    ) -> bool {
        let holders = self.matching.holders.accepted_by(&pattern);
        if holders.is_empty() {
            return false;
        }
        let matching = &mut self.matching;
        matching.holders.add((order, request), pattern, peek, &mut matching.posted);
        for holder in holders {
            self.send_request(holder, driver);
        }
        true
    }

    /// Sends the next request to a holder, if it has answered the last one and something is to be asked.
    pub(super) fn send_request<D: Driver>(&mut self, peer: Peer, driver: &mut D) {
        let Some(&Holder { first, dropped, next, request: None, .. }) = self.matching.holders.get(peer)
        else {
            return;
        };
        // A message that is being received is in its hold queue, until the acknowledgement ends it there.
        let mutant = self.matching.holders.mutant;
        let receives =
            self.payloads.transfers.receiving(peer) > 0 && !mutant.breaks(HoldMutant::AsksDuringReceives);
        if dropped == 0 || receives {
            return;
        }
        let asked = self.next_asked(peer, driver);
        let carry_bytes = asked.map_or(0, |asked| self.carry_bytes(peer, &asked));
        let Endpoint { paths, payloads, matching } = self;
        let (request, body) = if let Some(asked) = asked {
            let Pattern { space, tag, ignore, .. } = asked.pattern;
            (
                HolderRequest::Ask { order: asked.order, next },
                Body::Ask { space, tag, ignore, carry_bytes, look: asked.looks() },
            )
        } else {
            let count = paths.budget.resumable().min(dropped);
            if count == 0 {
                return;
            }
            paths.budget.promise(count);
            matching.holders.note_resumed(peer);
            (HolderRequest::Resume(count), Body::Resume { count })
        };
        let holder = matching.holders.get_mut(peer).expect("a holder");
        holder.request = Some(request);
        paths.counters.holder_requests_sent += 1;
        if let Some(pending) = paths.peer(peer).pending.as_deref_mut()
            && !mutant.breaks(HoldMutant::AsksBeforeAcknowledging)
        {
            pending.acks.all_are_due(); // before the request
        }
        paths.submit(peer, BacklogEntry { number: first, ..BacklogEntry::control(body) }, payloads, driver);
    }

    /// Longest message that the holder's answer may carry. A peek takes no payload. If several holders are asked, only
    /// one answer is taken, so the others may cost no more than a slot. Unit: bytes.
    fn carry_bytes(&mut self, peer: Peer, asked: &Asked) -> u32 {
        let Endpoint { paths, matching, .. } = self;
        paths.peer(peer); // expands the entry
        let Paths { config, peers, .. } = paths;
        let state = &peers[peer.0 as usize];
        let inline_bytes = match state.path.grants.cross_memory {
            true => config.remote_inline_bytes.min(MAX_EAGER_BYTES),
            false => MAX_EAGER_BYTES, // packets carry it in any case
        } as u32;
        match (asked.peek, matching.holders.are_several(&asked.pattern)) {
            (Some(_), _) => 0,
            (None, false) => inline_bytes,
            (None, true) => {
                let geometry = state.geometry(&config.geometry);
                inline_bytes.min(geometry.payload_bytes(geometry.remote_header_bytes, 1))
            }
        }
    }

    /// The receive or peek that a holder is to be asked for next.
    fn next_asked<D: Driver>(&mut self, peer: Peer, driver: &mut D) -> Option<Asked> {
        loop {
            let matching = &mut self.matching;
            let asked = matching.holders.next(peer, &mut matching.posted)?;
            // A message that was announced again meets the posted receives, but no peek. The holder does not offer it.
            match asked.peek {
                Some(then) if self.peek_kept(asked.request, &asked.pattern, then, driver) => {
                    self.matching.holders.end_peek(asked.order);
                }
                _ => return Some(asked),
            }
        }
    }

    /// The queue has shrunk: asks holders to announce messages again, in turn.
    #[cold]
    pub(super) fn resume_holders<D: Driver>(&mut self, driver: &mut D) {
        while self.paths.budget.resumable() > 0 {
            let Some(peer) = self.matching.holders.next_in_turn() else { return };
            let before = self.paths.counters.holder_requests_sent;
            self.send_request(peer, driver);
            if self.paths.counters.holder_requests_sent == before {
                return;
            }
        }
    }

    /// A holder has answered a request, or a message of it was taken: ends it if nothing is dropped any more, or sends the
    /// next request.
    pub(super) fn continue_with_holder<D: Driver>(&mut self, peer: Peer, driver: &mut D) {
        let Some(holder) = self.matching.holders.get(peer) else { return };
        if holder.dropped == 0 {
            self.end_holder(peer, driver);
        } else {
            self.send_request(peer, driver);
        }
    }

    /// `peer` holds nothing for us any more, or is lost.
    pub(super) fn end_holder<D: Driver>(&mut self, peer: Peer, driver: &mut D) {
        let Some((holder, over)) = self.matching.holders.end(peer) else { return };
        self.matching.unexpected.remove_holder();
        if let Some(HolderRequest::Resume(left)) = holder.request {
            self.paths.budget.end_promise(left);
        }
        for peek in over {
            self.finish_peek(peek, driver);
        }
    }

    /// A holder offers its first match. Returns whether it was asked for that.
    pub(super) fn offer_arrived<D: Driver>(&mut self, offer: Offer, driver: &mut D) -> bool {
        let matching = &mut self.matching;
        let Offer { announced: Announced { space, envelope, .. }, number, .. } = offer;
        let from = envelope.from;
        let Some(holder) = matching.holders.get_mut(from) else { return false };
        let Some(HolderRequest::Ask { order, next }) = holder.request.take() else { return false };
        let mutant = matching.holders.mutant;
        let in_time =
            (number.wrapping_sub(next) as i32) < 0 || mutant.breaks(HoldMutant::LateArrivalsAreTaken);
        if mutant.breaks(HoldMutant::OffersServeAnyReceive)
            && let Some(range) = matching.match_posted(space, &envelope, driver)
        {
            self.take_offered(range, offer, driver);
            self.continue_with_holder(from, driver);
            return true;
        }
        if in_time && let Some(asked) = matching.holders.served(from, order, &mut matching.posted) {
            let Pattern { space: wanted, .. } = asked.pattern;
            if wanted != space || !asked.pattern.accepts(from, envelope.tag) {
                return false;
            }
            match asked.peek {
                Some(_) if offer.carried => return false, // a peek asks for no payload
                Some(PeekThen::LeaveUntilSeenTwice) if !offer.seen => {
                    // Another holder may have a message that was seen before.
                    matching.holders.note_offered(asked.order);
                    self.decided(from, asked.order, driver);
                }
                Some(then) => self.peek_found(asked, then, offer, driver),
                None => {
                    let end = asked.order + 1;
                    if let Some(range) = matching.match_posted_before(end, space, &envelope, driver) {
                        self.take_offered(range, offer, driver);
                    }
                }
            }
        }
        self.continue_with_holder(from, driver);
        true
    }

    /// A receive takes an offered message.
    fn take_offered<D: Driver>(&mut self, range: BufferRange, offer: Offer, driver: &mut D) {
        let Announced { envelope, transfer, .. } = offer.announced;
        note_taken(self.matching.holders.get_mut(envelope.from));
        if offer.carried {
            range.place(0, envelope.length, driver);
            self.rendezvous_received(envelope.from, range, &envelope, transfer, driver);
        } else {
            self.take_announced(range, offer.announced, driver);
        }
    }

    /// A peek has found a message at a holder.
    fn peek_found<D: Driver>(&mut self, asked: Asked, then: PeekThen, offer: Offer, driver: &mut D) {
        let Offer { announced: Announced { space, envelope, address, transfer }, number, .. } = offer;
        let from = envelope.from;
        self.matching.holders.end_peek(asked.order);
        let mut claimed = None;
        match then {
            PeekThen::Leave | PeekThen::LeaveUntilSeenTwice => {}
            PeekThen::Claim => {
                note_taken(self.matching.holders.get_mut(from));
                driver.announcement_arrived(from, address, envelope.length);
                let payload = Payload::WithSender { transfer, address };
                let message = self.queue_unexpected(Unexpected::new(space, envelope, payload, None));
                self.matching.unexpected.claim(message);
                let claimed_packet =
                    BacklogEntry { number, ..BacklogEntry::control(Body::Claimed { transfer }) };
                self.paths.submit(from, claimed_packet, &mut self.payloads, driver);
                claimed = Some(message);
            }
            PeekThen::Discard => {
                note_taken(self.matching.holders.get_mut(from));
                self.acknowledge(from, transfer, envelope.length, driver);
            }
        }
        driver.complete(asked.request, Outcome::Found { envelope, claimed });
    }

    /// A holder has no match. Returns whether it was asked.
    pub(super) fn no_match_arrived<D: Driver>(&mut self, from: Peer, driver: &mut D) -> bool {
        let holders = &mut self.matching.holders;
        let Some(holder) = holders.get_mut(from) else { return false };
        let Some(HolderRequest::Ask { order, .. }) = holder.request.take() else { return false };
        self.decided(from, order, driver);
        self.continue_with_holder(from, driver);
        true
    }

    /// `from` has nothing for the receive or peek of this place.
    fn decided<D: Driver>(&mut self, from: Peer, order: PostOrder, driver: &mut D) {
        let holders = &mut self.matching.holders;
        let last = holders.decide(from, order);
        if let Some(peek) = last.filter(|asked| asked.peek.is_some())
            && holders.alive(order, &mut self.matching.posted).is_some()
        {
            holders.end_peek(order);
            self.finish_peek(peek, driver);
        }
    }

    /// No holder has a message for a peek.
    fn finish_peek<D: Driver>(&mut self, asked: Asked, driver: &mut D) {
        // A message may have been kept in the meantime.
        if let Some(then) = asked.peek
            && !self.peek_kept(asked.request, &asked.pattern, then, driver)
        {
            let failed = self.only_failed_peers_match(&asked.pattern).filter(|_| !asked.was_offered());
            let outcome = failed.unwrap_or(Outcome::Absent);
            driver.complete(asked.request, outcome);
        }
    }

    /// `from` asks us about the messages that we hold for it. Returns whether it keeps the bound of one request.
    pub(super) fn hold_request_arrived<D: Driver>(
        &mut self,
        from: Peer,
        first: u32,
        request: HoldRequest,
        driver: &mut D,
    ) -> bool {
        let Endpoint { paths, payloads, .. } = self;
        let state = paths.peer(from);
        if state.path.grants.said_goodbye {
            return true; // it asked before it closed
        }
        if state.pending.as_deref().is_some_and(|pending| pending.has_hold_request()) {
            return false;
        }
        if matches!(state.path.outbound, Outbound::Absent) {
            state.path.outbound = Outbound::Connecting;
            driver.connect(from);
        }
        let hold = paths.pending(from).hold.get_or_insert_default();
        hold.prune(first, &mut payloads.bounce_buffers);
        hold.request = Some(request);
        true // it is answered when the packet is retired
    }

    /// The receives of a closing endpoint end without completion.
    pub(super) fn closing_holders(&mut self) -> Vec<Peer> {
        self.matching.holders.end_receives();
        self.matching.holders.peers().collect()
    }
}

/// A dropped message of a holder is taken.
fn note_taken(holder: Option<&mut Holder>) {
    if let Some(holder) = holder {
        holder.dropped = holder.dropped.saturating_sub(1);
    }
}
