//! Transmission: everything for a peer that cannot leave at once is submitted here, and leaves as credits allow.
//! Compulsory returns go first, then acknowledgements, then the backlog in order. If the receiver has no memory left, a
//! queued eager message becomes a rendezvous. The first submission contacts the peer, and stalls are counted here. A
//! copy of a multi-send leaves together with those to other peers.
//!
//! This file does not know when credits return; [`crate::flow`] decides that.

use super::backlog::{BacklogEntry, EntryKind};
use super::held_answers::Answer;
use super::hold_mutant::HoldMutant;
use super::hold_queue::Held;
use super::path::{Outbound, RoomWait, announced};
use super::paths::Paths;
use super::payloads::Payloads;
use super::pending::{PendingWork, Waits};
use crate::action::{Outcome, Source};
use crate::config::Scheme;
use crate::counters::Counters;
use crate::driver::Driver;
use crate::event::{Peer, Transfer};
use crate::flow::RoomQuery;
use crate::offload::multi_send::HeldCopy;
use crate::packet::{AnnouncementMarks, Body, Marks, RemoteAddress};

impl Paths {
    /// Queues `entry` behind everything submitted before, and sends what the credits allow.
    pub(super) fn submit<D: Driver>(
        &mut self,
        to: Peer,
        entry: BacklogEntry,
        payloads: &mut Payloads,
        driver: &mut D,
    ) {
        let state = self.peer(to);
        match state.path.outbound {
            Outbound::Absent => {
                state.path.outbound = Outbound::Connecting;
                driver.connect(to);
            }
            Outbound::Lost(fault) => {
                if let Some(request) = payloads.end_unsent(&entry) {
                    driver.complete(request, Outcome::Lost { peer: Some(to), fault });
                }
                return;
            }
            Outbound::Connecting | Outbound::Connected(_) => {}
        }
        self.push_backlog(to, entry);
        self.send_while_credited(to, payloads, driver);
    }

    /// Sends the backlog of `to` in order, until it is empty or the credits are used up. Copies of multi-sends to other
    /// peers leave too, if they have waited only for the one to `to`.
    #[inline]
    pub(super) fn send_while_credited<D: Driver>(
        &mut self,
        to: Peer,
        payloads: &mut Payloads,
        driver: &mut D,
    ) {
        self.send_backlog(to, payloads, driver);
        if self.multi_sends.has_changed() {
            self.release_ready_copies(payloads, driver);
        }
    }

    /// Sends the copies of the multi-sends that wait for nothing any more.
    #[cold]
    pub(super) fn release_ready_copies<D: Driver>(&mut self, payloads: &mut Payloads, driver: &mut D) {
        loop {
            let Paths { multi_sends, peers, .. } = self;
            let is_ready = |copy: HeldCopy| {
                peers.full_entry(copy.to.0 as usize).is_some_and(|state| state.sends_next(copy.number))
            };
            let Some(copies) = multi_sends.take_ready(is_ready) else { return };
            self.release_copies(&copies, payloads, driver);
        }
    }

    /// Sends the copies of the multi-sends to `peer` as far as the credits allow, and does not wait for the others.
    pub(super) fn give_up_multi_sends<D: Driver>(
        &mut self,
        peer: Peer,
        payloads: &mut Payloads,
        driver: &mut D,
    ) {
        while let Some(copies) = self.multi_sends.take_with(peer) {
            self.release_copies(&copies, payloads, driver);
        }
        if self.multi_sends.has_changed() {
            self.release_ready_copies(payloads, driver);
        }
    }

    fn release_copies<D: Driver>(&mut self, copies: &[HeldCopy], payloads: &mut Payloads, driver: &mut D) {
        for (before, copy) in (0..).zip(copies) {
            driver.copy_leaves(copy.to, before);
            self.send_backlog(copy.to, payloads, driver);
        }
    }

    /// Sends the backlog of `to` up to the first held copy.
    fn send_backlog<D: Driver>(&mut self, to: Peer, payloads: &mut Payloads, driver: &mut D) {
        let Paths {
            config,
            holds,
            hold_mutant,
            peers,
            counters,
            pool,
            backlogged,
            spare,
            budget,
            multi_sends,
            ..
        } = self;
        let Some(state) = peers.get_mut(to.0 as usize) else { return };
        if let Some(pending) = state.pending.as_deref_mut()
            && pending.compulsory.waits()
            && !pending.busy_link.busy
        {
            let marks = Marks { rendezvous_only: budget.is_over_limit(), backlogged: false };
            let geometry = pending.geometry(&config.geometry);
            let behind = match config.scheme {
                Scheme::Demand => pending.backlog.slots(&geometry) + pending.answer_packets(),
                _ => 0,
            };
            let sent = pending.compulsory.send(
                &mut state.path,
                to,
                &geometry,
                behind,
                marks,
                pool,
                counters,
                driver,
            );
            pending.busy_link.busy = sent.is_err();
        }
        let Outbound::Connected(sender) = &mut state.path.outbound else { return };
        let Some(pending) = state.pending.as_deref_mut() else {
            state.path.grants.backlog_waited = false;
            return;
        };
        if pending.busy_link.busy {
            if pending.waits == Waits::Nothing && !pending.backlog.is_empty() {
                pending.waits = Waits::Link(driver.now());
            }
            return;
        }
        let geometry = pending.geometry(&config.geometry);
        loop {
            if pending.backlog.is_empty() && !pending.acks.is_due() && !pending.has_hold_request() {
                state.path.grants.backlog_waited = false;
                spare.end(&mut state.pending);
                return;
            }
            let credits = sender.credits();
            if credits == 0 {
                let room_query = sender.room_query();
                // The answer shows whether an attempt is refused. Only then does the message wait.
                let waits = room_query != Some(RoomQuery::Immediate);
                state.path.grants.backlog_waited |= waits;
                if waits && pending.waits == Waits::Nothing && !pending.backlog.is_empty() {
                    pending.waits = Waits::Credit(driver.now());
                    counters.stalls += 1;
                }
                if let Some(room_query) = room_query
                    && state.path.grants.room_wait == RoomWait::Nothing
                {
                    state.path.grants.room_wait = RoomWait::Answer;
                    driver.ask_room(to, room_query == RoomQuery::Immediate);
                }
                return;
            }
            if let Waits::Credit(since) = core::mem::take(&mut pending.waits) {
                let stalled_ns = driver.now().since_ns(since);
                counters.stalled_ns += stalled_ns;
                pending.stalled_ns += stalled_ns;
            }
            let marks = Marks {
                rendezvous_only: budget.is_over_limit(),
                backlogged: state.path.grants.backlog_waited,
            };
            if pending.acks.is_due()
                && let Some((transfer, count)) = pending.acks.first()
            {
                let body = Body::Finished { transfer, count, refused: false };
                let grants = &mut state.path.grants;
                let wanted_total = match sender.announces_demand() {
                    true => announced(sender, 0, pending.queued_slots(&geometry), pool), // includes this packet
                    false => 0,
                };
                let packet = grants.control_packet(&geometry, body, 0, wanted_total, marks, pool, counters);
                if driver.transmit(to, &packet, Source::None).is_err() {
                    counters.uncount(&body, 1);
                    pending.link_refused(driver.now());
                    return;
                }
                sender.spend(1);
                pending.acks.remove_first();
                continue;
            }
            if pending.has_hold_request() {
                let behind = pending.queued_slots(&geometry).saturating_sub(1); // without this packet
                let hold = pending.hold.as_deref_mut().expect("it has the request");
                let room_bytes = geometry
                    .payload_bytes(geometry.remote_header_bytes, credits.min(geometry.max_packet_slots));
                let Some(answer) = hold.answer(to, room_bytes, payloads) else {
                    hold.request = None;
                    pending.end_hold();
                    continue;
                };
                let Answer { mut body, number, payload, payload_bytes } = answer;
                announce_address(&mut body, to, payload, driver);
                let header_bytes = geometry.header_bytes(&body);
                let (slots, payload) = match payload_bytes {
                    0 => (1, Source::None),
                    bytes => (geometry.slots(header_bytes, bytes), payload),
                };
                counters.count_kind(&body);
                let grants = &mut state.path.grants;
                let used_bytes = header_bytes + payload_bytes;
                let granted_total = grants.piggyback(&geometry, used_bytes, slots, true, pool, counters);
                let wanted_total = match sender.announces_demand() {
                    true => announced(sender, slots, behind, pool),
                    false => 0,
                };
                let totals = (granted_total, wanted_total);
                let packet = grants.header(body, payload_bytes, number, totals, marks);
                if driver.transmit(to, &packet, payload).is_err() {
                    counters.uncount(&body, slots);
                    pending.link_refused(driver.now());
                    return;
                }
                sender.spend(slots);
                hold.answered(&body, payloads);
                let forgotten = match body {
                    Body::Offer { transfer, .. } => Some((transfer, HoldMutant::OffersAreForgotten)),
                    Body::EagerOffer { transfer, .. } => {
                        Some((transfer, HoldMutant::EagerOffersAreForgotten))
                    }
                    _ => None,
                };
                if let Some((transfer, mutant)) = forgotten
                    && hold_mutant.breaks(mutant)
                {
                    hold.remove(transfer, &mut payloads.bounce_buffers);
                }
                pending.end_hold();
                continue;
            }
            let behind = match sender.announces_demand() {
                true => pending.backlog.slots_behind_first(&geometry) + pending.compulsory.slots(),
                false => 0,
            };
            let Some(entry) = pending.backlog.front_mut() else { return };
            if !multi_sends.is_empty() && entry.starts_message() && multi_sends.holds(to, entry.number) {
                return;
            }
            let announces = state.path.grants.rendezvous_only || pending.hold.is_some();
            let held = announces && *holds && !state.path.grants.said_goodbye;
            if held && entry.starts_message() && pending.hold_is_full(config.max_unexpected) {
                return; // until the receiver takes a message
            }
            let Some(entry) = pending.backlog.front_mut() else { return };
            if announces && entry.sent == 0 && (entry.bytes > 0 || held) && !state.path.grants.said_goodbye {
                become_rendezvous(entry, to, &mut pending.bounce_buffers, payloads, counters, driver);
            }
            if let Source::Region { key, offset } = entry.payload
                && !payloads.allows(key, offset, entry.bytes, false)
            {
                // The region was deregistered during the read, or replaced: the reader gets a refusal.
                if let EntryKind::Pieces { transfer, .. } = entry.kind {
                    *entry = BacklogEntry::control(Body::Finished { transfer, count: 1, refused: true });
                }
            }
            let (payload_bytes, slots, mut body) = entry.cut(&geometry, credits);
            body.set_held(held);
            let payload = entry.unsent_payload();
            announce_address(&mut body, to, payload, driver);
            let sent = entry.sent + u64::from(payload_bytes);
            let finished = sent == entry.bytes;
            counters.count_kind(&body);
            let grants = &mut state.path.grants;
            let used_bytes = geometry.header_bytes(&body) + payload_bytes;
            let granted_total = grants.piggyback(&geometry, used_bytes, slots, finished, pool, counters);
            let wanted_total = match sender.announces_demand() {
                true if finished => announced(sender, slots, behind, pool),
                true => announced(sender, slots, behind + entry.slots_after(sent, &geometry), pool),
                false => 0,
            };
            let totals = (granted_total, wanted_total);
            let packet = grants.header(body, payload_bytes, entry.number, totals, marks);
            if driver.transmit(to, &packet, payload).is_err() {
                if let Body::Rendezvous { transfer, .. } = body {
                    driver.announcements_ended(to, transfer, 1); // it is announced again
                }
                counters.uncount(&body, slots);
                pending.link_refused(driver.now());
                return;
            }
            sender.spend(slots);
            if let Body::Rendezvous { space, tag, data, length, transfer, sender, .. } = body
                && sender.held()
            {
                let message = Held::new(to, (space, tag, data.into(), length), transfer, entry.number);
                let hold = pending.hold.get_or_insert_default();
                hold.push(&message, &mut payloads.bounce_buffers);
                counters.held_messages += 1;
            }
            entry.sent = sent;
            if let Some(transfer) = entry.kind.own_transfer() {
                payloads.transfers.packet_left(transfer, to, finished);
            }
            if finished {
                last_packet_left(entry, &mut pending.bounce_buffers, payloads, driver);
                spare.pop(&mut pending.backlog);
                *backlogged -= 1;
            }
        }
    }

    /// Acknowledges `transfer` of `to`, with `bytes` bytes of payload, which has ended well.
    pub(super) fn acknowledge_transfer<D: Driver>(
        &mut self,
        to: Peer,
        transfer: Transfer,
        bytes: u64,
        payloads: &mut Payloads,
        driver: &mut D,
    ) {
        let state = self.peer(to);
        match state.path.outbound {
            Outbound::Absent => {
                state.path.outbound = Outbound::Connecting;
                driver.connect(to);
            }
            Outbound::Lost(_) => return,
            Outbound::Connecting | Outbound::Connected(_) => {}
        }
        let acks = &mut self.pending(to).acks;
        acks.add(transfer, bytes);
        if acks.is_due() {
            self.send_while_credited(to, payloads, driver);
        } else if acks.list() {
            self.pending_acks.push(to);
        }
    }

    /// Sends all coalesced acknowledgements.
    pub(super) fn flush_acks<D: Driver>(&mut self, payloads: &mut Payloads, driver: &mut D) {
        for peer in core::mem::take(&mut self.pending_acks) {
            self.send_acks(peer, payloads, driver);
        }
    }

    /// Sends the coalesced acknowledgements for `peer`. Called before we detach from its mailbox: otherwise they would
    /// need a lease of their own.
    pub(super) fn flush_acks_to<D: Driver>(&mut self, peer: Peer, payloads: &mut Payloads, driver: &mut D) {
        if let Some(index) = self.pending_acks.iter().position(|&listed| listed == peer) {
            self.pending_acks.remove(index);
            self.send_acks(peer, payloads, driver);
        }
    }

    /// Sends the coalesced acknowledgements for `peer`, which is not in the list any more.
    fn send_acks<D: Driver>(&mut self, peer: Peer, payloads: &mut Payloads, driver: &mut D) {
        let state = self.peer(peer);
        if let Some(PendingWork { acks, .. }) = state.pending.as_deref_mut() {
            acks.unlist();
        }
        if state.is_due() && matches!(state.path.outbound, Outbound::Absent) {
            state.path.outbound = Outbound::Connecting; // we have detached in the meantime
            driver.connect(peer);
        }
        self.send_while_credited(peer, payloads, driver);
        self.remove_if_idle(peer);
    }
}

/// The receiver has no memory: an eager message becomes a rendezvous, if its payload can be announced. `bounce_count`:
/// bounce buffers of the peer.
fn become_rendezvous<D: Driver>(
    entry: &mut BacklogEntry,
    to: Peer,
    bounce_count: &mut u32,
    payloads: &mut Payloads,
    counters: &mut Counters,
    driver: &mut D,
) {
    let EntryKind::Eager { space, tag, data, acknowledge, delivered } = entry.kind else { return };
    let Some((transfer, payload)) = payloads.announce(entry, acknowledge, delivered, to) else { return };
    counters.forced_rendezvous += 1;
    match (payload, entry.complete) {
        (Source::Bounce { .. }, Some(request)) => {
            *bounce_count += 1;
            counters.peak_bounce_bytes = counters.peak_bounce_bytes.max(payloads.bounce_buffers.used_bytes());
            driver.fill_bounce(transfer, request);
        }
        _ => entry.complete = None, // complete already, or when the receiver has it
    }
    let body = Body::Rendezvous {
        space,
        tag,
        data: data.into(),
        length: entry.bytes,
        address: RemoteAddress::NONE,
        transfer,
        sender: AnnouncementMarks::new(false, acknowledge.is_some()),
    };
    let (complete, number) = (entry.complete, entry.number);
    *entry = BacklogEntry { payload, complete, number, ..BacklogEntry::control(body) };
}

/// Writes the address of announced memory into a packet that announces some.
fn announce_address<D: Driver>(body: &mut Body, to: Peer, payload: Source, driver: &mut D) {
    match *body {
        Body::Rendezvous { transfer, length, .. } => {
            body.set_address(driver.announce(to, transfer, payload, length));
        }
        Body::Offer { transfer, length, .. } => {
            driver.announcements_ended(to, transfer, 1); // it was announced before
            body.set_address(driver.announce(to, transfer, payload, length));
        }
        Body::Located { transfer, key, offset, refused: false, .. } => {
            let region = Source::Region { key, offset };
            body.set_address(driver.announce(to, transfer, region, 0));
        }
        _ => {}
    }
}

/// The last packet of an entry has left. `bounce_count`: bounce buffers of the peer.
fn last_packet_left<D: Driver>(
    entry: &BacklogEntry,
    bounce_count: &mut u32,
    payloads: &mut Payloads,
    driver: &mut D,
) {
    if let Some(request) = entry.complete {
        driver.complete(request, Outcome::Done);
    }
    match (entry.kind, entry.payload) {
        (EntryKind::Eager { .. }, Source::Bounce { transfer, .. }) => {
            *bounce_count -= 1;
            payloads.bounce_buffers.end(transfer);
            driver.free_bounce(transfer);
        }
        (EntryKind::Pieces { .. }, Source::Bounce { transfer, .. }) => {
            payloads.bounce_buffers.pieces_left(transfer);
        }
        (EntryKind::Offloaded(packet), Source::Buffer { buffer, .. }) if packet.owns_payload() => {
            driver.answer_left(buffer);
        }
        _ => {}
    }
}
