//! FastPathCounts: what most messages need, without events and actions.
//!
//! Nearly every receive is posted before its message, nearly every message is one packet, and nearly every packet finds
//! nothing waiting that it could set in motion. Such a message needs a few checks and a few sums; an event and a list of actions
//! would cost several times as much. So a driver may ask first:
//! ```text
//! try_post_receive(pattern)   true: posted                              false: handle(Posted(Receive))
//! try_arrival(packet)    Some: place, complete, retire; settle     None:  handle(Arrived)
//! try_part_arrival(packet)       Some: place, retire; settle               None:  handle(Arrived)
//! ```
//! A flood is the other common case: whole messages before their receives, which then find them.
//! ```text
//! try_unexpected_arrival(packet)      Some: keep, place, retire; settle         None:  handle(Arrived)
//! try_receive_unexpected(pattern)    Some: deliver, forget, complete           None:  handle(Posted(Receive))
//! ```
//! There are no rules of their own here: matching, credits and counts are those of the long way, called in the same order, and
//! whatever is not common takes that way. The random worlds take either at random, and a test compares the two, state by state.

use alloc::vec::Vec;

use super::lane_lease::Leases;
use super::{Endpoint, Outbound, PeerEntry};
use crate::action::{Action, Destination, Envelope};
use crate::config::{Config, MAX_EAGER_BYTES};
use crate::counters::Counters;
use crate::event::{MessageId, Pattern, Peer, Request};
use crate::flow;
use crate::message::posted::{Place, PostedQueue};
use crate::message::unexpected::{Payload, Unexpected};
use crate::packet::{Body, Packet};
use crate::time::Instant;

/// A message that has arrived whole and has matched a receive of its own. The actions for it would have been: `Place` the first
/// `bytes` bytes at the start of the buffer (if there are any), `Complete` with `Received`, `Retire`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// The receive.
    pub request: Request,
    /// The message.
    pub envelope: Envelope,
    /// Bytes delivered.
    pub bytes: u64,
}

/// What a packet was that needed no more than a look. After its slots are retired, [`Endpoint::send_due_credits`] is to be called if
/// `credits_due` says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastArrival {
    /// A message.
    Message {
        /// Where it goes.
        received: ReceivedMessage,
        /// Something is to be sent now.
        credits_due: bool,
    },
    /// Credits. Nothing waited for them. To be retired.
    Credits {
        /// Something is to be sent now.
        credits_due: bool,
    },
}

/// A message that has arrived whole before its receive. The actions for it would have been: `Keep` it and `Place` it there (if it has any
/// bytes), `Retire`. After its slots are retired, [`Endpoint::send_due_credits`] is to be called if `credits_due` says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnexpectedArrival {
    /// Its name.
    pub message: MessageId,
    /// Its length.
    pub bytes: u64,
    /// Something is to be sent now.
    pub credits_due: bool,
}

/// A message that has waited, for the receive that finds it. The actions for it would have been: `Deliver` the first `bytes` bytes
/// to the start of the buffer (if there are any), `Forget` it (if it has any bytes), `Complete` with `Received`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnexpectedMatch {
    /// Its name, which is free again.
    pub message: MessageId,
    /// The message.
    pub envelope: Envelope,
    /// Bytes delivered.
    pub bytes: u64,
}

/// A packet from the middle of a message. The actions for it would have been: `Place` its first `bytes` bytes (if there are
/// any), `Retire`. After its slots are retired, [`Endpoint::send_due_credits`] is to be called if `credits_due` says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessagePart {
    /// Where they go.
    pub to: Destination,
    /// How many.
    pub bytes: u64,
    /// Something is to be sent now.
    pub credits_due: bool,
}

/// What every packet says of our credits at its sender. Hearing it again changes nothing. `false`: it cannot be.
#[inline(always)]
pub(super) fn apply_credit_update(state: &mut PeerEntry, packet: &Packet) -> bool {
    match &mut state.outbound {
        Outbound::Connected(sender) => {
            apply_update_to_sender(sender, &mut state.leases, &mut state.rendezvous_only, packet)
        }
        _ => true,
    }
}

#[inline(always)]
fn apply_update_to_sender(
    sender: &mut flow::Sender,
    leases: &mut Leases,
    rendezvous_only: &mut bool,
    packet: &Packet,
) -> bool {
    // What is said of an earlier stay of ours there says nothing.
    if packet.epoch != leases.outgoing {
        return true;
    }
    leases.note_credit_packets_read(packet.credit_packets_read);
    *rendezvous_only = packet.marks.rendezvous_only;
    sender.granted(packet.granted_total).is_ok()
}

/// Finds the plain receive of a whole message, and hears what the packet says besides. Returns its place, request and capacity, and whether something is to be
/// sent then; else as [`apply_data_header`].
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
    if state.inbound.is_some()
        || !state.has_nothing_to_send()
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

/// What a data packet of `slots` slots says besides what is in it, and what those are worth once they are free. Returns whether something is
/// to be sent then. `None`: nothing has changed, or nothing that hearing it again would change.
#[inline(always)]
fn apply_data_header(
    config: &Config,
    state: &mut PeerEntry,
    pool: &mut flow::Pool,
    counters: &mut Counters,
    packet: &Packet,
    slots: u32,
) -> Option<bool> {
    // The first credits need a way back.
    let mut credits_due = false;
    if let Outbound::Connected(sender) = &mut state.outbound {
        if !apply_update_to_sender(sender, &mut state.leases, &mut state.rendezvous_only, packet) {
            return None;
        }
    } else {
        match state.outbound {
            Outbound::Lost(_) => return None,
            Outbound::Absent => credits_due = config.scheme.grants(),
            Outbound::Connecting | Outbound::Connected(_) => {}
        }
    }
    let read = state.leases.credit_packets_read();
    if let Some(flow::Receiver::Dynamic(account)) = state.receiver {
        // The usual scheme, in which it makes no difference that a message has waited.
        credits_due |= pool.retrieved_and_due(account, slots, read).ok()?;
    } else if let Some(receiver) = &mut state.receiver {
        credits_due |= receiver.retrieved_and_due(slots, read, pool).ok()?;
        if packet.marks.backlogged
            && let Some(quota_slots) = receiver.packet_was_backlogged()
        {
            counters.peak_quota_slots = counters.peak_quota_slots.max(u64::from(quota_slots));
            credits_due |= receiver.is_due(pool);
        }
    }
    state.backlog_waited = false;
    Some(credits_due)
}

impl Endpoint {
    /// Posts a receive for one message, if nothing that waits or has happened concerns it. `false`: nothing has changed, post it
    /// by `handle`. The effects are those of `handle` with `Posted(Receive)` that has no actions.
    #[inline(always)]
    pub fn try_post_receive(&mut self, request: Request, pattern: &Pattern, capacity_bytes: u64) -> bool {
        if self.unexpected.count() > 0
            || self.pool.has_requests()
            || self.only_failed_peers_match(pattern).is_some()
        {
            return false;
        }
        self.posted.post(request, *pattern, capacity_bytes, None);
        true
    }

    /// Takes a packet that needs no more than a look. `None`: nothing has changed, or nothing that hearing the packet again
    /// would change; pass it to `handle`. The effects are those of `handle` with `Arrived`.
    #[inline(always)]
    pub fn try_arrival(&mut self, from: Peer, packet: &Packet) -> Option<FastArrival> {
        match packet.body {
            Body::Eager { acknowledge: None, length, .. } if length == packet.payload_bytes => {
                self.try_message(from, packet)
            }
            Body::Credit => self.try_credits(from, packet),
            _ => None,
        }
    }

    #[inline(always)]
    fn try_message(&mut self, from: Peer, packet: &Packet) -> Option<FastArrival> {
        let Body::Eager { tag, data, length, .. } = packet.body else { return None };
        let Endpoint { config, peers, posted, counters, pool, .. } = self;
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
        Some(FastArrival::Message { received: ReceivedMessage { request, envelope, bytes }, credits_due })
    }

    #[inline(always)]
    fn try_credits(&mut self, from: Peer, packet: &Packet) -> Option<FastArrival> {
        let Endpoint { peers, counters, pool, .. } = self;
        let state = peers.get_mut(from.0 as usize)?;
        // Without a lane there the next thing may be to ask for one.
        let connected = matches!(state.outbound, Outbound::Connected(_));
        if !connected
            || !state.has_nothing_to_send()
            || pool.has_requests()
            || !apply_credit_update(state, packet)
        {
            return None;
        }
        let mut credits_due = false;
        if let Some(receiver) = &mut state.receiver {
            receiver.credit_packets_read(state.leases.credit_packets_read(), pool);
            credits_due = receiver.is_due(pool); // it waited for this one to be read
        }
        state.backlog_waited = false;
        state.credit_packets_read = state.credit_packets_read.wrapping_add(1);
        counters.packets_received += 1;
        counters.credit_packets_received += 1;
        Some(FastArrival::Credits { credits_due })
    }

    /// Takes a whole message that [`Endpoint::try_arrival`] has not taken, if it has come before its receive and needs no more than to be
    /// kept. `None`: nothing has changed, or nothing that hearing the packet again would change.
    #[inline]
    pub fn try_unexpected_arrival(&mut self, from: Peer, packet: &Packet) -> Option<UnexpectedArrival> {
        let Body::Eager { acknowledge: None, space, tag, data, length } = packet.body else { return None };
        let Endpoint { config, peers, posted, unexpected, counters, pool, .. } = self;
        let state = peers.get_mut(from.0 as usize)?;
        if state.inbound.is_some()
            || !state.has_nothing_to_send()
            || pool.has_requests()
            || length != packet.payload_bytes
            || u64::from(length) > MAX_EAGER_BYTES
            || unexpected.count() >= config.max_unexpected
            || posted.find(space, from, tag).is_some()
        {
            return None;
        }
        let slots = config.geometry.packet_slots(packet);
        let credits_due = apply_data_header(config, state, pool, counters, packet, slots)?;
        counters.packets_received += 1;
        let bytes = u64::from(length);
        let message = self.queue_unexpected(Unexpected {
            space,
            envelope: Envelope { from, tag, data, length: bytes },
            payload: Payload::Whole,
            acknowledge: None,
            claimed: false,
            seen: false,
        });
        Some(UnexpectedArrival { message, bytes, credits_due })
    }

    /// Finds the message for a receive that is to take one, if it lies here whole and nobody waits for word that it was taken; then it
    /// is taken. `None`: nothing has changed, post the receive by `handle`.
    #[inline]
    pub fn try_receive_unexpected(
        &mut self,
        pattern: &Pattern,
        capacity_bytes: u64,
    ) -> Option<UnexpectedMatch> {
        if self.pool.has_requests() {
            return None;
        }
        let (message, envelope) = self.unexpected.take_whole(pattern)?;
        if envelope.length > 0 {
            self.budget.refund(envelope.length);
        }
        let bytes = envelope.length.min(capacity_bytes);
        self.counters.messages_received += 1;
        self.counters.bytes_received += bytes;
        Some(UnexpectedMatch { message, envelope, bytes })
    }

    /// Takes a packet from the middle of a message that needs no more than a look, as [`Endpoint::try_arrival`] takes whole ones.
    #[inline]
    pub fn try_part_arrival(&mut self, from: Peer, packet: &Packet) -> Option<MessagePart> {
        let Body::More { offset } = packet.body else { return None };
        let (offset, bytes) = (u64::from(offset), u64::from(packet.payload_bytes));
        let Endpoint { config, peers, inbounds, unexpected, counters, pool, .. } = self;
        let state = peers.get_mut(from.0 as usize)?;
        let inbound = inbounds.get_mut(state.inbound?.get())?;
        let in_the_middle = inbound.continues_with(offset, bytes) && !inbound.completes_with(bytes);
        if !in_the_middle || !state.has_nothing_to_send() || pool.has_requests() {
            return None;
        }
        let slots = config.geometry.slots(config.geometry.more_header_bytes, packet.payload_bytes);
        let credits_due = apply_data_header(config, state, pool, counters, packet, slots)?;
        counters.packets_received += 1;
        let (to, bytes) = inbound.add_part(packet.payload_bytes, unexpected);
        Some(MessagePart { to, bytes, credits_due })
    }

    /// Returns credits to `peer` if they are due, and asks others to give back if that is due: the end of an event that took a
    /// shortcut.
    pub fn send_due_credits(&mut self, now: Instant, peer: Peer, actions: &mut Vec<Action>) {
        self.return_credits(peer, actions);
        if self.pool.has_requests() {
            self.ask_for_credits(now, actions);
        }
    }
}
