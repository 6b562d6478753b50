//! The common cases of arrivals and receives, which come first when an event is handled.
//!
//! Most packets carry a whole message for a posted receive, or credits, or the middle of a longer message. Most other
//! messages arrive whole before their receive. These cases need a few checks and sums, and are inlined into the
//! driver's code. Their results are those of the uncommon cases. A packet that comes before its time (look-ahead) is
//! refused unless it is one of the first three cases.
//! ```text
//! arrived        whole message with a receive    deliver_packet, retire; credits
//!                credit packet                   retire; credits
//!                part of a message               place, retire; credits
//!                whole message, no receive       allocate_unexpected, place, retire; credits
//!                all others                      see `Endpoint::arrived_uncommon`
//! receive        no message waits                hold
//!                a whole message waits           deliver, free_unexpected, complete
//!                all others                      see `Endpoint::receive_uncommon`
//! ```

use super::matching::Matching;
use super::path::{Outbound, apply_update_to_sender};
use super::paths::Paths;
use super::peer_entry::PeerEntry;
use super::refusal::Refusal;
use super::state::Endpoint;
use crate::action::{Destination, Envelope, Outcome};
use crate::config::{Config, MAX_EAGER_BYTES};
use crate::counters::Counters;
use crate::driver::Driver;
use crate::event::{MessageId, Pattern, Peer, ReceiveCommand, Request};
use crate::flow;
use crate::message::posted::{Place, PostedQueue};
use crate::message::unexpected::{Payload, Unexpected};
use crate::packet::{Body, Packet};

/// A message that has arrived whole and has matched a receive for one message.
struct ReceivedMessage {
    request: Request,
    envelope: Envelope,
    bytes: u64,
    credits_due: bool,
}

/// A message that has arrived whole before its receive, and has an entry in the queue now.
struct UnexpectedArrival {
    message: MessageId,
    bytes: u64,
    credits_due: bool,
}

/// A packet from the middle of an eager message.
struct MessagePart {
    to: Destination,
    bytes: u64,
    credits_due: bool,
}

/// Finds the single-message receive of a whole message, and applies the header of its packet. Returns the place,
/// request and capacity of the receive, and whether credits are due. `None` as in [`apply_data_header`].
#[inline(always)]
fn match_whole_message(
    config: &Config,
    state: &mut PeerEntry,
    posted: &PostedQueue,
    pool: &mut flow::Pool,
    counters: &mut Counters,
    from: Peer,
    packet: &Packet,
) -> Option<(Place, Request, u64, bool)> {
    let Body::Eager { space, tag, length, .. } = packet.body else { return None };
    if state.path.inbound.is_some()
        || !state.receives_on_common_path()
        || pool.has_requests()
        || u64::from(length) > MAX_EAGER_BYTES
    {
        return None;
    }
    let (place, request, capacity_bytes) = posted.find_plain(space, from, tag)?;
    let slots = config.geometry.slots(config.geometry.eager_header_bytes, length);
    let slots = if length == 0 { 1 } else { slots };
    let credits_due = apply_data_header(config, state, pool, counters, packet, slots)?;
    Some((place, request, capacity_bytes, credits_due))
}

/// Applies the common header of a data packet of `slots` slots, which count as retrieved. Returns whether credits are
/// due. `None`: nothing has changed except by updates that `handle` can repeat.
#[inline(always)]
fn apply_data_header(
    config: &Config,
    state: &mut PeerEntry,
    pool: &mut flow::Pool,
    counters: &mut Counters,
    packet: &Packet,
    slots: u32,
) -> Option<bool> {
    // The first credits need a lane back to the sender.
    let (mut credits_due, mut has_read_more) = (false, false);
    if let Outbound::Connected(sender) = &mut state.path.outbound {
        has_read_more = apply_update_to_sender(sender, &mut state.path.grants, packet)?;
    } else {
        match state.path.outbound {
            Outbound::Lost(_) => return None,
            Outbound::Absent => credits_due = config.scheme.grants(),
            Outbound::Connecting | Outbound::Connected(_) => {}
        }
    }
    let super::path::Grants { receiver, leases, .. } = &mut state.path.grants;
    if let Some(flow::Receiver::Demand(receiver)) = receiver {
        if has_read_more {
            pool.demand_mut().credit_packets_read(receiver.account, leases.credit_packets_read());
        }
        // In the schemes that share a region the backlog mark has no effect.
        credits_due |= pool.demand_retrieved_and_due(receiver, slots, packet.wanted_total).ok()?;
    } else if let Some(flow::Receiver::Dynamic(account)) = receiver {
        credits_due |= pool.dynamic.retrieved_and_due(*account, slots, leases.credit_packets_read()).ok()?;
    } else if let Some(receiver) = receiver {
        credits_due |= receiver.retrieved_and_due(slots, leases.credit_packets_read(), pool).ok()?;
        if packet.marks.backlogged
            && let Some(quota_slots) = receiver.packet_was_backlogged()
        {
            counters.peak_quota_slots = counters.peak_quota_slots.max(u64::from(quota_slots));
            credits_due |= receiver.is_due(pool);
        }
    }
    state.path.grants.backlog_waited = false;
    Some(credits_due)
}

impl Endpoint {
    /// A packet has arrived.
    ///
    /// # Errors
    /// [`Refusal::Early`].
    #[inline(always)]
    pub(super) fn arrived<D: Driver>(
        &mut self,
        from: Peer,
        packet: &Packet,
        mut driver: D,
    ) -> Result<(), Refusal> {
        let credits_due = match packet.body {
            Body::Eager { acknowledge: None, length, .. } if length == packet.payload_bytes => {
                let Some(received) = self.receive_message(from, packet) else {
                    return self.arrived_out_of_line(from, packet, driver);
                };
                driver.deliver_packet(received.request, received.envelope, received.bytes);
                received.credits_due
            }
            Body::Credit => match self.receive_credits(from, packet) {
                Some(credits_due) => credits_due,
                None => return self.arrived_out_of_line(from, packet, driver),
            },
            _ => return self.arrived_out_of_line(from, packet, driver),
        };
        driver.retire();
        if credits_due {
            self.send_due_credits(from, driver);
        }
        Ok(())
    }

    #[inline(never)]
    fn arrived_out_of_line<D: Driver>(
        &mut self,
        from: Peer,
        packet: &Packet,
        mut driver: D,
    ) -> Result<(), Refusal> {
        let credits_due =
            if let Some(MessagePart { to, bytes, credits_due }) = self.receive_part(from, packet) {
                if bytes > 0 {
                    driver.place(to, bytes);
                }
                credits_due
            } else if driver.acts_early() {
                return Err(Refusal::Early);
            } else if let Some(unexpected) = self.receive_unexpected(from, packet) {
                let UnexpectedArrival { message, bytes, credits_due } = unexpected;
                if bytes > 0 {
                    driver.allocate_unexpected(message, bytes);
                    driver.place(Destination::Message { message, offset: 0 }, bytes);
                }
                credits_due
            } else {
                self.arrived_uncommon(from, packet, &mut driver);
                self.paths.send_return_requests(&mut self.payloads, &mut driver);
                return Ok(());
            };
        driver.retire();
        if credits_due {
            self.send_due_credits(from, driver);
        }
        Ok(())
    }

    /// The slots of a packet are free, and credits for its sender are due.
    #[inline(never)]
    fn send_due_credits<D: Driver>(&mut self, peer: Peer, mut driver: D) {
        if !driver.defers_credits(peer) {
            self.paths.return_credits(peer, &mut driver);
            self.paths.send_return_requests(&mut self.payloads, &mut driver);
        }
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`Refusal::Operations`].
    #[inline(always)]
    pub(super) fn receive<D: Driver>(
        &mut self,
        receive: ReceiveCommand,
        mut driver: D,
    ) -> Result<(), Refusal> {
        let ReceiveCommand { request, pattern, capacity_bytes, multi } = receive;
        if multi.is_some()
            || !self.matching.unexpected.is_bare()
            || self.paths.pool.has_requests()
            || self.only_failed_peers_match(&pattern).is_some()
        {
            return self.receive_out_of_line(receive, driver);
        }
        if !driver.can_hold() {
            return Err(Refusal::Operations);
        }
        let request = driver.hold(request, false);
        self.matching.posted.post(request, pattern, capacity_bytes, None);
        Ok(())
    }

    #[inline(never)]
    fn receive_out_of_line<D: Driver>(
        &mut self,
        receive: ReceiveCommand,
        mut driver: D,
    ) -> Result<(), Refusal> {
        let ReceiveCommand { request, pattern, capacity_bytes, multi } = receive;
        if multi.is_none()
            && let Some((message, envelope)) = self.take_unexpected(&pattern)
        {
            let bytes = envelope.length.min(capacity_bytes);
            self.paths.counters.messages_received += 1;
            self.paths.counters.bytes_received += bytes;
            if bytes > 0 {
                driver.deliver(message, request, 0, bytes);
            }
            if envelope.length > 0 {
                driver.free_unexpected(message);
            }
            driver.complete_posted(request, Outcome::Received { envelope, bytes, offset: 0, last: true });
            if self.matching.holders.exist() {
                self.resume_holders(&mut driver);
            }
            return Ok(());
        }
        if !driver.can_hold() {
            return Err(Refusal::Operations);
        }
        let request = driver.hold(request, false);
        self.receive_uncommon(ReceiveCommand { request, ..receive }, &mut driver);
        if self.matching.holders.exist() {
            self.resume_holders(&mut driver);
        }
        self.paths.send_return_requests(&mut self.payloads, &mut driver);
        Ok(())
    }

    /// Takes the message for a new receive out of the queue, if it is buffered whole and needs no acknowledgement.
    #[inline]
    fn take_unexpected(&mut self, pattern: &Pattern) -> Option<(MessageId, Envelope)> {
        if self.paths.pool.has_requests() {
            return None;
        }
        let (message, envelope) = self.matching.unexpected.take_whole(pattern)?;
        self.paths.budget.refund(&envelope, true);
        Some((message, envelope))
    }

    /// A whole message. `None`: nothing has changed except by updates that can be repeated.
    #[inline(always)]
    fn receive_message(&mut self, from: Peer, packet: &Packet) -> Option<ReceivedMessage> {
        let Body::Eager { tag, data, length, .. } = packet.body else { return None };
        let Paths { config, peers, counters, pool, .. } = &mut self.paths;
        let posted = &mut self.matching.posted;
        let index = from.0 as usize;
        let (place, request, capacity_bytes, credits_due) = if let Some(state) = peers.full_entry_mut(index) {
            match_whole_message(config, state, posted, pool, counters, from, packet)?
        } else {
            peers.visit_compact(index, |state| {
                match_whole_message(config, state, posted, pool, counters, from, packet)
            })??
        };
        posted.remove_plain(place);
        let bytes = u64::from(length).min(capacity_bytes);
        counters.packets_received += 1;
        counters.messages_received += 1;
        counters.bytes_received += bytes;
        let envelope = Envelope { from, tag, data, length: u64::from(length) };
        Some(ReceivedMessage { request, envelope, bytes, credits_due })
    }

    /// A credit packet for which no message waits. Returns whether credits are due. `None` as above.
    #[inline(always)]
    fn receive_credits(&mut self, from: Peer, packet: &Packet) -> Option<bool> {
        let Paths { peers, counters, pool, .. } = &mut self.paths;
        let state = peers.get_mut(from.0 as usize)?;
        // Without a lane there, the machine may have to ask for one.
        let connected = matches!(state.path.outbound, Outbound::Connected(_));
        if !connected
            || !state.has_nothing_to_send()
            || pool.has_requests()
            || !state.path.apply_credit_update(packet)
        {
            return None;
        }
        let mut credits_due = false;
        if let Some(receiver) = &mut state.path.grants.receiver {
            receiver.credit_packets_read(state.path.grants.leases.credit_packets_read(), pool);
            // The grant waited until a credit packet was read, or there is demand, or work for the queue.
            credits_due = receiver.wants(packet.wanted_total, pool) || receiver.is_due(pool);
        }
        state.path.grants.backlog_waited = false;
        state.path.grants.leases.credit_packets_received =
            state.path.grants.leases.credit_packets_received.wrapping_add(1);
        counters.packets_received += 1;
        counters.credit_packets_received += 1;
        Some(credits_due)
    }

    /// A whole message that only has to be buffered. `None` as above.
    #[inline]
    fn receive_unexpected(&mut self, from: Peer, packet: &Packet) -> Option<UnexpectedArrival> {
        let Body::Eager { acknowledge: None, space, tag, data, length } = packet.body else { return None };
        let Paths { config, peers, counters, pool, budget, .. } = &mut self.paths;
        let matching = &mut self.matching;
        let state = peers.get_mut(from.0 as usize)?;
        if state.path.inbound.is_some()
            || !state.receives_on_common_path()
            || pool.has_requests()
            || length != packet.payload_bytes
            || u64::from(length) > MAX_EAGER_BYTES
            || matching.unexpected.count() >= config.max_unexpected
            || budget.is_over_limit_with(length.into()) // has its sender read the mark?
            || matching.posted.find(space, from, tag).is_some()
        {
            return None;
        }
        let slots = config.geometry.packet_slots(packet);
        let credits_due = apply_data_header(config, state, pool, counters, packet, slots)?;
        counters.packets_received += 1;
        let bytes = u64::from(length);
        let envelope = Envelope { from, tag, data, length: bytes };
        let unexpected = Unexpected::new(space, envelope, Payload::Whole, None);
        let message = matching.queue_unexpected(unexpected, budget, counters);
        Some(UnexpectedArrival { message, bytes, credits_due })
    }

    /// A packet from the middle of an eager message. `None` as above.
    #[inline]
    fn receive_part(&mut self, from: Peer, packet: &Packet) -> Option<MessagePart> {
        let Body::More { offset } = packet.body else { return None };
        let (offset, bytes) = (u64::from(offset), u64::from(packet.payload_bytes));
        let Paths { config, peers, counters, pool, .. } = &mut self.paths;
        let Matching { inbounds, unexpected, .. } = &mut self.matching;
        let state = peers.get_mut(from.0 as usize)?;
        let inbound = inbounds.get_mut(state.path.inbound?.get())?;
        let in_the_middle = inbound.continues_with(offset, bytes) && !inbound.completes_with(bytes);
        if !in_the_middle || !state.receives_on_common_path() || pool.has_requests() {
            return None;
        }
        let slots = config.geometry.slots(config.geometry.more_header_bytes, packet.payload_bytes);
        let credits_due = apply_data_header(config, state, pool, counters, packet, slots)?;
        counters.packets_received += 1;
        let (to, bytes) = inbound.add_part(packet.payload_bytes, unexpected);
        Some(MessagePart { to, bytes, credits_due })
    }
}
