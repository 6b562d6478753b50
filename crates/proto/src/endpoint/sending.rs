//! Sending: the backlog of each peer, cut into packets as credits allow. Data packets leave only here.
//!
//! This file does not know when credits return; [`crate::flow`] decides that.

use super::path::RoomWait;
use super::receiver_memory::{Stage, announce};
use super::{Endpoint, Outbound, Path, PendingWork, Refusal, compulsory};
use crate::action::{Outcome, Source};
use crate::driver::Driver;
use crate::event::{Peer, Request, SendCommand, SendLevel, Transfer};
use crate::flow::RoomQuery;
use crate::packet::{Body, Geometry, Marks, Packet, Space};
use crate::transfer::{SendStage, State};

/// An entry of a peer's backlog: it leaves in one packet or several.
#[derive(Clone, Copy, Debug)]
pub(super) struct BacklogEntry {
    pub kind: EntryKind,
    /// Payload bytes that have left.
    pub sent: u64,
    /// Payload bytes in all.
    pub bytes: u64,
    pub payload: Source,
    /// The request to complete when the last packet has left.
    pub complete: Option<Request>,
    pub number: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum EntryKind {
    /// An eager message. `delivered`: its send completes only when the receiver's side holds it
    /// ([`SendLevel::Delivered`]).
    Eager { space: Space, tag: u64, data: Option<u64>, acknowledge: Option<Transfer>, delivered: bool },
    /// One packet without payload.
    Control(Body),
    /// The response to a fetch or read of the peer's `transfer`. `ours`: the send that is fetched, if it has no bounce
    /// buffer.
    Pieces { transfer: Transfer, ours: Option<Transfer> },
    /// A remote write.
    Write { transfer: Transfer, key: u64, offset: u64, data: Option<u64> },
}

impl EntryKind {
    /// Our send or write that the entry serves, if it has a name that the peer can answer to.
    fn own_transfer(&self) -> Option<Transfer> {
        match *self {
            EntryKind::Eager { acknowledge, .. } => acknowledge,
            EntryKind::Control(Body::Rendezvous { transfer, .. }) | EntryKind::Write { transfer, .. } => {
                Some(transfer)
            }
            EntryKind::Pieces { ours, .. } => ours,
            EntryKind::Control(_) => None,
        }
    }
}

impl BacklogEntry {
    pub(super) fn control(body: Body) -> BacklogEntry {
        BacklogEntry {
            kind: EntryKind::Control(body),
            sent: 0,
            bytes: 0,
            payload: Source::None,
            complete: None,
            number: 0,
        }
    }

    /// Whether it belongs to an operation that was reported complete, and would be lost if the endpoint closed now.
    /// Bounce buffers are not included: the endpoint counts them whether they have left or not.
    pub(super) fn is_completed(&self) -> bool {
        match self.kind {
            EntryKind::Eager { acknowledge, .. } => {
                self.complete.is_none() && acknowledge.is_none() && !self.is_bounced()
            }
            EntryKind::Control(Body::Finished { .. }) => true,
            // These belong to an incomplete operation of ours or to a bounce buffer, or are not needed after closing.
            EntryKind::Control(_) | EntryKind::Pieces { .. } | EntryKind::Write { .. } => false,
        }
    }

    /// Whether its payload is in a bounce buffer.
    pub(super) fn is_bounced(&self) -> bool {
        matches!(self.payload, Source::Bounce { .. })
    }

    pub(super) fn payload(kind: EntryKind, bytes: u64, payload: Source) -> BacklogEntry {
        BacklogEntry { kind, sent: 0, bytes, payload, complete: None, number: 0 }
    }

    /// Whether it answers a remote read or write of the peer.
    pub(super) fn is_answer(&self) -> bool {
        match self.kind {
            EntryKind::Pieces { .. } => matches!(self.payload, Source::Region { .. }),
            EntryKind::Control(Body::Located { .. } | Body::Finished { .. }) => true,
            _ => false,
        }
    }

    /// The eager message of `request` waited for the match. Now it waits only for its own last packet.
    pub(super) fn await_last_packet(&mut self, request: Request) {
        if let EntryKind::Eager { acknowledge, .. } = &mut self.kind {
            *acknowledge = None;
            self.complete = Some(request);
        }
    }

    /// The body of the next packet if it carries `payload_bytes` of payload.
    fn body(&self, payload_bytes: u64) -> Body {
        let last = self.sent + payload_bytes == self.bytes;
        match self.kind {
            EntryKind::Eager { space, tag, data, acknowledge, .. } if self.sent == 0 => {
                Body::Eager { space, tag, data, length: self.bytes as u32, acknowledge }
            }
            EntryKind::Eager { .. } => Body::More { offset: self.sent as u32 },
            EntryKind::Control(body) => body,
            EntryKind::Pieces { transfer, .. } => Body::Piece { transfer, offset: self.sent, last },
            EntryKind::Write { transfer, key, offset, data } => {
                let left = self.bytes - self.sent - payload_bytes;
                let data = if last { data } else { None };
                Body::Write { transfer, key, offset: offset + self.sent, left, data }
            }
        }
    }

    /// Cuts the next packet, of at most `credits` slots. Returns the payload bytes, the slots and the body.
    #[inline]
    fn cut(&self, geometry: &Geometry, credits: u32) -> (u32, u32, Body) {
        let left = self.bytes - self.sent;
        let header_bytes = geometry.header_bytes(&self.body(left));
        if left == 0 {
            return (0, 1, self.body(0));
        }
        let most_slots = credits.min(geometry.max_packet_slots);
        let most_bytes = geometry.payload_bytes(header_bytes, most_slots);
        if u64::from(most_bytes) >= left {
            let bytes = left as u32;
            return (bytes, geometry.slots(header_bytes, bytes), self.body(left));
        }
        (most_bytes, most_slots, self.body(u64::from(most_bytes)))
    }
}

impl Endpoint {
    /// Sends a message, or queues it.
    ///
    /// # Errors
    /// [`Refusal`].
    #[inline(always)]
    pub(super) fn send<D: Driver>(&mut self, send: SendCommand, mut driver: D) -> Result<(), Refusal> {
        let SendCommand { request, to, space, tag, data, bytes, level } = send;
        let Some(packet) = self.single_packet(to, space, tag, data, bytes, level) else {
            return self.send_out_of_line(send, driver);
        };
        if driver.transmit(to, &packet, Source::Request { request, offset: 0 }).is_err() {
            return self.single_packet_refused(send, &packet, driver);
        }
        driver.complete_posted(request, Outcome::Done);
        Ok(())
    }

    #[inline(never)]
    pub(super) fn send_out_of_line<D: Driver>(
        &mut self,
        send: SendCommand,
        mut driver: D,
    ) -> Result<(), Refusal> {
        let SendCommand { request, to, space, tag, data, bytes, level } = send;
        if let Some((mut packet, transfer)) = self.forced_rendezvous(to, space, tag, data, bytes, level) {
            driver.fill_bounce(transfer, request);
            let payload = Source::Bounce { transfer, offset: 0 };
            packet.body.set_address(driver.announce(to, transfer, payload, bytes));
            if driver.transmit(to, &packet, payload).is_err() {
                self.forced_rendezvous_refused(to, &packet, transfer, &mut driver);
            }
            driver.complete_posted(request, Outcome::Done);
            return Ok(());
        }
        self.check_bounds(to, bytes, &driver)?;
        if level == SendLevel::Injected
            && self.may_fit_later(to, bytes)
            && !driver.may_exceed_bounce_limit(to, self.bounce_buffers_for(to))
        {
            return Err(Refusal::BounceBuffers);
        }
        let announced = self.announces_user_buffer(to, bytes, level);
        let request = driver.hold(request, announced);
        self.queue(SendCommand { request, ..send }, &mut driver);
        self.send_return_requests(&mut driver);
        Ok(())
    }

    /// Queues a message, and sends what the credits allow.
    fn queue<D: Driver>(&mut self, send: SendCommand, driver: &mut D) {
        let SendCommand { request, to, space, tag, data, bytes, level } = send;
        self.counters.messages_sent += 1;
        self.counters.bytes_sent += bytes;
        let mut entry = if bytes <= self.config.eager_bytes.min(u64::from(u32::MAX)) {
            let acknowledge = (level == SendLevel::Matched).then(|| {
                self.transfers.begin(to, State::Send { request, length: 0, stage: SendStage::Queued })
            });
            let payload = Source::Request { request, offset: 0 };
            let delivered = level == SendLevel::Delivered;
            let kind = EntryKind::Eager { space, tag, data, acknowledge, delivered };
            let mut entry = BacklogEntry::payload(kind, bytes, payload);
            entry.complete = acknowledge.is_none().then_some(request);
            entry
        } else {
            self.counters.rendezvous_sent += 1;
            let stage = SendStage::Queued;
            let transfer = self.transfers.begin(to, State::Send { request, length: bytes, stage });
            let body = Body::Rendezvous { space, tag, data, length: bytes, address: 0, transfer };
            // The payload names what the packet announces. The packet carries none of it.
            BacklogEntry { payload: Source::Request { request, offset: 0 }, ..BacklogEntry::control(body) }
        };
        let state = self.peer(to);
        entry.number = state.next_number;
        state.next_number = state.next_number.wrapping_add(1);
        self.submit(to, entry, driver);
        if level == SendLevel::Injected {
            self.copy_injected(to, request, driver);
        }
    }

    /// Completes the injected message of `request`, the last one posted, by a bounce buffer if it has not left.
    fn copy_injected<D: Driver>(&mut self, to: Peer, request: Request, driver: &mut D) {
        let Endpoint { peers, bounce_buffers, counters, .. } = self;
        let state = &mut peers[to.0 as usize];
        let Some(PendingWork { backlog, bounce_buffers: bounce_buffers_there, .. }) =
            state.pending.as_deref_mut()
        else {
            return;
        };
        let Some(entry) = backlog.back_mut() else { return };
        let eager = matches!(entry.kind, EntryKind::Eager { .. });
        if !eager || entry.complete != Some(request) {
            return;
        }
        if entry.bytes == 0 {
            // There is nothing to copy. It is complete, so that a closing endpoint waits until it has left.
            (entry.payload, entry.complete) = (Source::None, None);
            driver.complete(request, Outcome::Done);
            return;
        }
        if !bounce_buffers.fits(entry.bytes) {
            return;
        }
        let transfer = bounce_buffers.begin(to, entry.bytes, Stage::Waiting);
        *bounce_buffers_there += 1;
        counters.peak_bounce_bytes = counters.peak_bounce_bytes.max(bounce_buffers.used_bytes());
        entry.payload = Source::Bounce { transfer, offset: 0 };
        entry.complete = None;
        driver.fill_bounce(transfer, request);
        driver.complete(request, Outcome::Done);
    }

    /// The packet of a message that can leave at once: it fits into one packet, the credits suffice, and nothing waits
    /// before it.
    #[inline(always)]
    fn single_packet(
        &mut self,
        to: Peer,
        space: Space,
        tag: u64,
        data: Option<u64>,
        bytes: u64,
        level: SendLevel,
    ) -> Option<Packet> {
        let Endpoint { config, peers, counters, pool, budget, one_packet_bytes, .. } = self;
        let state = peers.get_mut(to.0 as usize)?;
        let waits = !state.sends_on_common_path() || (state.path.rendezvous_only && bytes > 0);
        let Outbound::Connected(sender) = &mut state.path.outbound else { return None };
        if bytes > *one_packet_bytes || level == SendLevel::Matched || waits {
            return None;
        }
        let (geometry, length) = (&config.geometry, bytes as u32);
        let slots = if length == 0 { 1 } else { geometry.slots(geometry.eager_header_bytes, length) };
        if !sender.try_spend(slots) {
            return None;
        }
        let used_bytes = geometry.eager_header_bytes + length;
        let grants = &mut state.path.grants;
        let granted_total = grants.piggyback(geometry, used_bytes, slots, true, pool, counters);
        let number = state.next_number;
        state.next_number = number.wrapping_add(1);
        counters.messages_sent += 1;
        counters.bytes_sent += bytes;
        let body = Body::Eager { space, tag, data, length, acknowledge: None };
        let marks = Marks { rendezvous_only: budget.is_over_limit(), backlogged: false };
        Some(grants.header(body, length, number, granted_total, marks))
    }

    /// The same for a receiver without memory: a rendezvous packet, and the bounce buffer that it announces.
    #[cold]
    fn forced_rendezvous(
        &mut self,
        to: Peer,
        space: Space,
        tag: u64,
        data: Option<u64>,
        bytes: u64,
        level: SendLevel,
    ) -> Option<(Packet, Transfer)> {
        let Endpoint { config, peers, counters, pool, budget, bounce_buffers, spare, .. } = self;
        let state = peers.get_mut(to.0 as usize)?;
        if !state.path.rendezvous_only || bytes == 0 {
            return None;
        }
        let waits = state.must_queue() || state.is_due();
        let Outbound::Connected(sender) = &mut state.path.outbound else { return None };
        let leaves = !waits && sender.credits() > 0;
        let copied =
            bytes <= config.eager_bytes && level <= SendLevel::Buffered && bounce_buffers.fits(bytes);
        if !leaves || !copied || state.said_goodbye {
            return None;
        }
        sender.spend(1);
        let transfer = bounce_buffers.begin(to, bytes, Stage::Announced);
        spare.begin(&mut state.pending).bounce_buffers += 1;
        let body = Body::Rendezvous { space, tag, data, length: bytes, address: 0, transfer };
        let marks = Marks { rendezvous_only: budget.is_over_limit(), backlogged: false };
        let geometry = state.geometry(&config.geometry);
        let (grants, number) = (&mut state.path.grants, state.next_number);
        let packet = grants.control_packet(&geometry, body, number, marks, pool, counters);
        state.next_number = state.next_number.wrapping_add(1);
        counters.messages_sent += 1;
        counters.bytes_sent += bytes;
        counters.forced_rendezvous += 1;
        counters.peak_bounce_bytes = counters.peak_bounce_bytes.max(bounce_buffers.used_bytes());
        Some((packet, transfer))
    }

    /// Queues `entry` behind everything submitted before, and sends what the credits allow.
    pub(super) fn submit<D: Driver>(&mut self, to: Peer, entry: BacklogEntry, driver: &mut D) {
        self.peer(to);
        let Endpoint { peers, spare, .. } = self;
        let state = &mut peers[to.0 as usize];
        match state.path.outbound {
            Outbound::Absent => {
                state.path.outbound = Outbound::Connecting;
                driver.connect(to);
            }
            Outbound::Lost(fault) => {
                if let Some(request) = self.requester(&entry) {
                    driver.complete(request, Outcome::Lost { peer: Some(to), fault });
                }
                return;
            }
            Outbound::Connecting | Outbound::Connected(_) => {}
        }
        let backlog = &mut spare.begin(&mut state.pending).backlog;
        spare.push(backlog, entry);
        self.backlogged += 1;
        self.send_while_credited(to, driver);
    }

    /// Ends the transfer of an entry that will not be sent. Returns the request that the entry serves.
    pub(super) fn requester(&mut self, entry: &BacklogEntry) -> Option<Request> {
        let transfer = match entry.kind {
            EntryKind::Eager { acknowledge, .. } => acknowledge,
            EntryKind::Write { transfer, .. } => Some(transfer),
            EntryKind::Control(
                Body::Rendezvous { transfer, .. }
                | Body::Read { transfer, .. }
                | Body::Locate { transfer, .. },
            ) => Some(transfer),
            // These carry names of the peer's transfers, or none.
            EntryKind::Control(_) | EntryKind::Pieces { .. } => None,
        };
        let of_transfer =
            transfer.and_then(|transfer| self.transfers.end(transfer)).map(|entry| match entry.state {
                State::Send { request, .. }
                | State::Receive { request, .. }
                | State::Read { request, .. }
                | State::Write { request, .. } => request,
            });
        entry.complete.or(of_transfer)
    }

    /// Sends the backlog of `to` in order, until it is empty or the credits are used up.
    #[inline]
    pub(super) fn send_while_credited<D: Driver>(&mut self, to: Peer, driver: &mut D) {
        let Endpoint {
            config,
            peers,
            counters,
            pool,
            backlogged,
            spare,
            regions,
            budget,
            bounce_buffers,
            transfers,
            ..
        } = self;
        let Some(state) = peers.get_mut(to.0 as usize) else { return };
        if state
            .pending
            .as_deref()
            .is_some_and(|pending| pending.compulsory.waits() && !pending.busy_link.busy)
        {
            let marks = Marks { rendezvous_only: budget.is_over_limit(), backlogged: false };
            compulsory::send(config, state, to, marks, pool, counters, driver);
        }
        let Outbound::Connected(sender) = &mut state.path.outbound else { return };
        let Some(pending) = state.pending.as_deref_mut() else {
            state.path.backlog_waited = false;
            return;
        };
        if pending.busy_link.busy {
            return;
        }
        let geometry = pending.geometry.unwrap_or(config.geometry);
        loop {
            if pending.backlog.is_empty() && !pending.acks.is_due() {
                state.path.backlog_waited = false;
                spare.end(&mut state.pending);
                return;
            }
            let credits = sender.credits();
            if credits == 0 {
                let room_query = sender.room_query();
                // The answer shows whether an attempt is refused. Only then does the message wait.
                let waits = room_query != Some(RoomQuery::Immediate);
                state.path.backlog_waited |= waits;
                if waits && pending.stalled_since.is_none() && !pending.backlog.is_empty() {
                    pending.stalled_since = Some(driver.now());
                    counters.stalls += 1;
                }
                if let Some(room_query) = room_query
                    && state.path.room_wait == RoomWait::Nothing
                {
                    state.path.room_wait = RoomWait::Answer;
                    driver.ask_room(to, room_query == RoomQuery::Immediate);
                }
                return;
            }
            if let Some(since) = pending.stalled_since.take() {
                let stalled_ns = driver.now().since_ns(since);
                counters.stalled_ns += stalled_ns;
                pending.stalled_ns += stalled_ns;
            }
            let marks =
                Marks { rendezvous_only: budget.is_over_limit(), backlogged: state.path.backlog_waited };
            if pending.acks.is_due()
                && let Some((transfer, count)) = pending.acks.first()
            {
                let body = Body::Finished { transfer, count, refused: false };
                let grants = &mut state.path.grants;
                let packet = grants.control_packet(&geometry, body, 0, marks, pool, counters);
                if driver.transmit(to, &packet, Source::None).is_err() {
                    counters.uncount(&body, 1);
                    pending.busy_link.busy = true;
                    return;
                }
                sender.spend(1);
                pending.acks.remove_first();
                continue;
            }
            let Some(entry) = pending.backlog.front_mut() else { return };
            if let EntryKind::Eager { space, tag, data, acknowledge, delivered } = entry.kind
                && state.path.rendezvous_only
                && entry.sent == 0
                && entry.bytes > 0
                && !state.said_goodbye
                && let Some((transfer, payload)) =
                    announce(entry, acknowledge, delivered, to, bounce_buffers, transfers)
            {
                counters.forced_rendezvous += 1;
                match (payload, entry.complete) {
                    (Source::Bounce { .. }, Some(request)) => {
                        pending.bounce_buffers += 1;
                        counters.peak_bounce_bytes =
                            counters.peak_bounce_bytes.max(bounce_buffers.used_bytes());
                        driver.fill_bounce(transfer, request);
                    }
                    _ => entry.complete = None, // complete already, or when the receiver has it
                }
                let body = Body::Rendezvous { space, tag, data, length: entry.bytes, address: 0, transfer };
                let (complete, number) = (entry.complete, entry.number);
                *entry = BacklogEntry { payload, complete, number, ..BacklogEntry::control(body) };
            }
            if let Source::Region { key, offset } = entry.payload
                && !regions.get(&key).is_some_and(|region| region.allows(offset, entry.bytes, false))
            {
                // The region was deregistered during the read, or replaced: the reader gets a refusal.
                if let EntryKind::Pieces { transfer, .. } = entry.kind {
                    *entry = BacklogEntry::control(Body::Finished { transfer, count: 1, refused: true });
                }
            }
            let (payload_bytes, slots, mut body) = entry.cut(&geometry, credits);
            let payload = match entry.payload {
                Source::Request { request, offset } => {
                    Source::Request { request, offset: offset + entry.sent }
                }
                Source::Region { key, offset } => Source::Region { key, offset: offset + entry.sent },
                Source::Bounce { transfer, offset } => {
                    Source::Bounce { transfer, offset: offset + entry.sent }
                }
                Source::None => Source::None,
            };
            match body {
                Body::Rendezvous { transfer, length, .. } => {
                    body.set_address(driver.announce(to, transfer, payload, length));
                }
                Body::Located { transfer, key, offset, refused: false, .. } => {
                    let region = Source::Region { key, offset };
                    body.set_address(driver.announce(to, transfer, region, 0));
                }
                _ => {}
            }
            let sent = entry.sent + u64::from(payload_bytes);
            let finished = sent == entry.bytes;
            counters.count_kind(&body);
            let grants = &mut state.path.grants;
            let used_bytes = geometry.header_bytes(&body) + payload_bytes;
            let granted_total = grants.piggyback(&geometry, used_bytes, slots, finished, pool, counters);
            let packet = grants.header(body, payload_bytes, entry.number, granted_total, marks);
            if driver.transmit(to, &packet, payload).is_err() {
                if let Body::Rendezvous { transfer, .. } = body {
                    driver.announcements_ended(to, transfer, 1); // it is announced again
                }
                counters.uncount(&body, slots);
                pending.busy_link.busy = true;
                return;
            }
            sender.spend(slots);
            entry.sent = sent;
            if let Some(transfer) = entry.kind.own_transfer() {
                transfers.packet_left(transfer, to, finished);
            }
            if finished {
                if let Some(request) = entry.complete {
                    driver.complete(request, Outcome::Done);
                }
                match (entry.kind, entry.payload) {
                    (EntryKind::Eager { .. }, Source::Bounce { transfer, .. }) => {
                        pending.bounce_buffers -= 1;
                        bounce_buffers.end(transfer);
                        driver.free_bounce(transfer);
                    }
                    (EntryKind::Pieces { .. }, Source::Bounce { transfer, .. }) => {
                        bounce_buffers.pieces_left(transfer);
                    }
                    _ => {}
                }
                spare.pop(&mut pending.backlog);
                *backlogged -= 1;
            }
        }
    }

    /// Returns credits to `to` explicitly, if they are due. Credit packets cost no credit and never wait behind data.
    #[inline]
    pub(super) fn return_credits<D: Driver>(&mut self, to: Peer, driver: &mut D) {
        let Endpoint { config, peers, counters, pool, .. } = self;
        let Some(state) = peers.get_mut(to.0 as usize) else { return };
        let busy = state.is_link_busy();
        let Path { outbound, grants, credit_slots, .. } = &mut state.path;
        let Some(receiver) = &mut grants.receiver else { return };
        match outbound {
            Outbound::Connected(_) if busy => return, // a grant waits until the link is ready
            Outbound::Connected(_) => {}
            Outbound::Absent if config.scheme.grants() => {
                // The first credits to a peer that we have nothing to send to: we need a lane to it.
                *outbound = Outbound::Connecting;
                driver.connect(to);
                return;
            }
            _ => return,
        }
        #[cfg(feature = "explore")]
        let credit_slots = if self.relies_on_thresholds { &u16::MAX } else { credit_slots };
        let Some(credits) = receiver.grant((*credit_slots).into(), pool) else { return };
        counters.explicit_credits_sent += u64::from(credits);
        self.send_credit_packet(to, driver);
    }
}
