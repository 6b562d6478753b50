//! Sending: messages that leave at once, and messages that are queued.
//!
//! A message usually leaves at once if it fits into one packet, the credits suffice and nothing waits before it. Most
//! others go through the backlog of their path; those with large payload are announced (rendezvous). To a receiver
//! without memory, small payload is announced too: a bounce buffer, or the program's buffer. A small injected message
//! that cannot leave gets a bounce buffer if one fits. A full backlog refuses the post. `transmit.rs` sends the
//! backlog.

use super::backlog::{BacklogEntry, EntryKind};
use super::bounce::Stage;
use super::hold_queue::Held;
use super::path::Outbound;
use super::paths::Paths;
use super::payloads::Payloads;
use super::pending::PendingWork;
use super::refusal::Refusal;
use super::state::Endpoint;
use crate::action::{Outcome, Source};
use crate::driver::Driver;
use crate::event::{Peer, Request, SendCommand, SendLevel, Transfer};
use crate::packet::{AnnouncementMarks, Body, Marks, Packet, RemoteAddress, Space};
use crate::transfer::{SendStage, State};

impl Endpoint {
    /// Sends a message, or queues it.
    ///
    /// # Errors
    /// [`Refusal`].
    #[inline(always)]
    pub(super) fn send<D: Driver>(&mut self, send: SendCommand, mut driver: D) -> Result<(), Refusal> {
        let SendCommand { request, to, space, tag, data, bytes, level } = send;
        let Some(packet) = self.single_packet(to, space, tag, data, bytes, level) else {
            return self.send_out_of_line(request, to, (space, tag, data, bytes), level, driver);
        };
        if driver.transmit(to, &packet, Source::Request { request, offset: 0 }).is_err() {
            return self.single_packet_refused(request, to, (space, tag, data, bytes), level, driver);
        }
        driver.complete_posted(request, Outcome::Done);
        if self.paths.pool.has_requests() {
            self.request_after_send(driver);
        }
        Ok(())
    }

    /// Piggybacked credits can move quota. The send that carried them then ends with the requests to those that lose it.
    /// The driver is passed by value, so that the common path need not keep it in memory.
    #[cold]
    #[inline(never)]
    fn request_after_send<D: Driver>(&mut self, mut driver: D) {
        self.paths.ask_for_credits(&mut self.payloads, &mut driver);
    }

    /// Sends or queues a message that is no single packet. The arguments are values and not the command, so that only this
    /// case keeps it in memory.
    #[inline(never)]
    fn send_out_of_line<D: Driver>(
        &mut self,
        request: Request,
        to: Peer,
        (space, tag, data, bytes): (Space, u64, Option<u64>, u64),
        level: SendLevel,
        mut driver: D,
    ) -> Result<(), Refusal> {
        let is_eager = self.paths.is_eager(to, bytes, &mut driver);
        let forced = self.forced_rendezvous(to, (space, tag, data, bytes), level, is_eager);
        if let Some((mut packet, transfer)) = forced {
            driver.fill_bounce(transfer, request);
            let payload = Source::Bounce { transfer, offset: 0 };
            packet.body.set_address(driver.announce(to, transfer, payload, bytes));
            if driver.transmit(to, &packet, payload).is_err() {
                self.forced_rendezvous_refused(to, &packet, transfer, &mut driver);
            }
            driver.complete_posted(request, Outcome::Done);
            self.paths.send_return_requests(&mut self.payloads, &mut driver);
            return Ok(());
        }
        self.paths.check_bounds(to, bytes, &driver)?;
        let bounce_buffers = &self.payloads.bounce_buffers;
        if level == SendLevel::Injected
            && self.paths.may_fit_later(to, bytes, bounce_buffers)
            && !driver.may_exceed_bounce_limit(to, self.paths.bounce_buffers_for(to))
        {
            return Err(Refusal::BounceBuffers);
        }
        let announced = !is_eager || self.paths.announces_user_buffer(to, bytes, level, bounce_buffers);
        let request = driver.hold(request, announced);
        self.queue(SendCommand { request, to, space, tag, data, bytes, level }, &mut driver);
        self.paths.send_return_requests(&mut self.payloads, &mut driver);
        Ok(())
    }

    /// Queues a message, and sends what the credits allow.
    pub(super) fn queue<D: Driver>(&mut self, send: SendCommand, driver: &mut D) {
        let SendCommand { request, to, space, tag, data, bytes, level } = send;
        let Endpoint { paths, payloads, .. } = self;
        paths.counters.messages_sent += 1;
        paths.counters.bytes_sent += bytes;
        let mut entry = if bytes <= u64::from(u32::MAX) && paths.is_eager(to, bytes, driver) {
            let acknowledge = (level == SendLevel::Matched).then(|| {
                let stage = SendStage::Queued;
                payloads.transfers.begin(to, State::Send { request, length: 0, stage, awaits_match: true })
            });
            let payload = Source::Request { request, offset: 0 };
            let delivered = level == SendLevel::Delivered;
            let kind = EntryKind::Eager { space, tag, data, acknowledge, delivered };
            let mut entry = BacklogEntry::payload(kind, bytes, payload);
            entry.complete = acknowledge.is_none().then_some(request);
            entry
        } else {
            paths.counters.rendezvous_sent += 1;
            let (stage, awaits_match) = (SendStage::Queued, level == SendLevel::Matched);
            let send = State::Send { request, length: bytes, stage, awaits_match };
            let transfer = payloads.transfers.begin(to, send);
            let body = Body::Rendezvous {
                space,
                tag,
                data: data.into(),
                length: bytes,
                address: RemoteAddress::NONE,
                transfer,
                sender: AnnouncementMarks::new(false, awaits_match),
            };
            // The payload names what the packet announces. The packet carries none of it.
            BacklogEntry { payload: Source::Request { request, offset: 0 }, ..BacklogEntry::control(body) }
        };
        let state = paths.peer(to);
        entry.number = state.next_number;
        state.next_number = state.next_number.wrapping_add(1);
        paths.submit(to, entry, payloads, driver);
        if level == SendLevel::Injected {
            self.copy_injected(to, request, driver);
        }
    }

    /// Completes the injected message of `request`, the last one posted, by a bounce buffer if it has not left.
    fn copy_injected<D: Driver>(&mut self, to: Peer, request: Request, driver: &mut D) {
        let Endpoint {
            paths: Paths { peers, counters, holds, .. },
            payloads: Payloads { bounce_buffers, .. },
            ..
        } = self;
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
        if entry.bytes == 0 && !*holds {
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
        let Paths { config, holds, peers, counters, pool, budget, one_packet_bytes, .. } = &mut self.paths;
        let state = peers.get_mut(to.0 as usize)?;
        let waits =
            !state.sends_on_common_path() || (state.path.grants.rendezvous_only && (bytes > 0 || *holds));
        let Outbound::Connected(sender) = &mut state.path.outbound else { return None };
        if bytes > u64::from(*one_packet_bytes) || level == SendLevel::Matched || waits {
            return None;
        }
        let (geometry, length) = (&config.geometry, bytes as u32);
        let slots = if length == 0 { 1 } else { geometry.slots(geometry.eager_header_bytes, length) };
        if !sender.try_spend(slots) {
            return None;
        }
        let wanted_total = sender.wanted_total(0);
        let used_bytes = geometry.eager_header_bytes + length;
        let grants = &mut state.path.grants;
        let granted_total = grants.piggyback(geometry, used_bytes, slots, true, pool, counters);
        let number = state.next_number;
        state.next_number = number.wrapping_add(1);
        counters.messages_sent += 1;
        counters.bytes_sent += bytes;
        let body = Body::Eager { space, tag, data, length, acknowledge: None };
        let marks = Marks { rendezvous_only: budget.is_over_limit(), backlogged: false };
        Some(grants.header(body, length, number, (granted_total, wanted_total), marks))
    }

    /// The same for a receiver without memory: a rendezvous packet, and the bounce buffer that it announces.
    #[cold]
    fn forced_rendezvous(
        &mut self,
        to: Peer,
        (space, tag, data, bytes): (Space, u64, Option<u64>, u64),
        level: SendLevel,
        is_eager: bool,
    ) -> Option<(Packet, Transfer)> {
        let Paths { config, holds, peers, counters, pool, budget, spare, .. } = &mut self.paths;
        let bounce_buffers = &mut self.payloads.bounce_buffers;
        let held = *holds;
        let state = peers.get_mut(to.0 as usize)?;
        if !state.announces() || (bytes == 0 && !held) {
            return None;
        }
        let hold_waits = state
            .pending
            .as_deref()
            .is_some_and(|pending| pending.has_hold_request() || pending.hold_is_full(config.max_unexpected));
        let waits = state.must_queue() || state.is_due() || hold_waits;
        let Outbound::Connected(sender) = &mut state.path.outbound else { return None };
        let leaves = !waits && sender.credits() > 0;
        let copied = is_eager && level <= SendLevel::Buffered && bounce_buffers.fits(bytes);
        if !leaves || !copied || state.path.grants.said_goodbye {
            return None;
        }
        sender.spend(1);
        let wanted_total = sender.wanted_total(0);
        let transfer = bounce_buffers.begin(to, bytes, Stage::Announced);
        let pending = spare.begin(&mut state.pending);
        pending.bounce_buffers += 1;
        if held {
            let message = Held::new(to, (space, tag, data, bytes), transfer, state.next_number);
            pending.hold.get_or_insert_default().push(&message, bounce_buffers);
            counters.held_messages += 1;
        }
        let body = Body::Rendezvous {
            space,
            tag,
            data: data.into(),
            length: bytes,
            address: RemoteAddress::NONE,
            transfer,
            sender: AnnouncementMarks::new(held, false),
        };
        let marks = Marks { rendezvous_only: budget.is_over_limit(), backlogged: false };
        let geometry = state.geometry(&config.geometry);
        let (grants, number) = (&mut state.path.grants, state.next_number);
        let packet = grants.control_packet(&geometry, body, number, wanted_total, marks, pool, counters);
        state.next_number = state.next_number.wrapping_add(1);
        counters.messages_sent += 1;
        counters.bytes_sent += bytes;
        counters.forced_rendezvous += 1;
        counters.peak_bounce_bytes = counters.peak_bounce_bytes.max(bounce_buffers.used_bytes());
        Some((packet, transfer))
    }

    /// The link has refused the packet of a whole message: queues the message.
    ///
    /// # Errors
    /// As for a send that waits for credit.
    #[cold]
    #[inline(never)]
    fn single_packet_refused<D: Driver>(
        &mut self,
        request: Request,
        to: Peer,
        message: (Space, u64, Option<u64>, u64),
        level: SendLevel,
        driver: D,
    ) -> Result<(), Refusal> {
        let (space, tag, data, bytes) = message;
        let body = Body::Eager { space, tag, data, length: bytes as u32, acknowledge: None };
        let slots = self.paths.config.geometry.packet_slots(&Packet::new(body, bytes as u32));
        self.paths.take_back(to, &body, slots);
        self.paths.counters.messages_sent -= 1;
        self.paths.counters.bytes_sent -= bytes;
        let number = &mut self.paths.peers[to.0 as usize].next_number;
        *number = number.wrapping_sub(1);
        self.send_out_of_line(request, to, message, level, driver)
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
        self.paths.take_back(to, &packet.body, 1);
        self.paths.end_held(to, transfer, &mut self.payloads.bounce_buffers);
        let payload = Source::Bounce { transfer, offset: 0 };
        let entry = BacklogEntry { payload, number: packet.number, ..BacklogEntry::control(packet.body) };
        self.paths.push_backlog(to, entry);
        self.paths.pending(to).link_refused(driver.now());
    }
}
