//! Fast paths: the common operations without events and actions.
//!
//! Most receives are posted before their message, most messages are one packet, and most packets find no pending work.
//! Such a message needs a few checks and sums. An event and a list of actions would cost several times as much. So a
//! driver may first try:
//! ```text
//! try_post_receive(pattern)         true: posted                              false: handle(Posted(Receive))
//! try_arrival(packet)               Some: place, complete, retire; credits    None:  handle(Arrived)
//! try_part_arrival(packet)          Some: place, retire; credits              None:  handle(Arrived)
//! ```
//! Unexpected messages are the other common case: a message arrives whole, and a later receive finds it.
//! ```text
//! try_unexpected_arrival(packet)    Some: buffer, place, retire; credits      None:  handle(Arrived)
//! try_receive_unexpected(pattern)   Some: deliver, free, complete             None:  handle(Posted(Receive))
//! ```
//! Fast paths have no rules of their own. They call the same matching, credit and counting functions in the same order,
//! and decline every uncommon case. The random worlds choose either path at random. A test compares both, state by
//! state.

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

/// A message that has arrived whole and has matched a receive for one message. The equivalent actions are: `Place` the
/// first `bytes` bytes at the start of the buffer (if any), `Complete` with `Received`, `Retire`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// The receive.
    pub request: Request,
    /// The message.
    pub envelope: Envelope,
    /// Bytes delivered.
    pub bytes: u64,
}

/// A packet that the fast path has handled. After its slots are retired, the driver calls
/// [`Endpoint::send_due_credits`] if `credits_due`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastArrival {
    /// A message.
    Message {
        /// The receive that it matched.
        received: ReceivedMessage,
        /// Credits are due now.
        credits_due: bool,
    },
    /// A credit packet. No message waited for the credits.
    Credits {
        /// Credits are due now.
        credits_due: bool,
    },
}

/// A message that has arrived whole before its receive. The equivalent actions are: `AllocateUnexpected` and `Place`
/// (if it has payload), `Retire`. After its slots are retired, the driver calls [`Endpoint::send_due_credits`] if
/// `credits_due`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnexpectedArrival {
    /// Its name.
    pub message: MessageId,
    /// Its length.
    pub bytes: u64,
    /// Credits are due now.
    pub credits_due: bool,
}

/// An unexpected message and the receive that has found it. The equivalent actions are: `Deliver` the first `bytes`
/// bytes to the start of the buffer (if any), `FreeUnexpected` (if it has payload), `Complete` with `Received`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnexpectedMatch {
    /// Its name, which is free again.
    pub message: MessageId,
    /// The message.
    pub envelope: Envelope,
    /// Bytes delivered.
    pub bytes: u64,
}

/// A packet from the middle of an eager message. The equivalent actions are: `Place` its first `bytes` bytes (if any),
/// `Retire`. After its slots are retired, the driver calls [`Endpoint::send_due_credits`] if `credits_due`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessagePart {
    /// Where they go.
    pub to: Destination,
    /// How many.
    pub bytes: u64,
    /// Credits are due now.
    pub credits_due: bool,
}

/// Applies the part of every packet that concerns our credits at its sender. A repeated update changes nothing. Returns
/// whether it is valid.
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
    // An update for an earlier lease has no effect.
    if packet.epoch != leases.outgoing {
        return true;
    }
    leases.note_credit_packets_read(packet.credit_packets_read);
    *rendezvous_only = packet.marks.rendezvous_only;
    sender.granted(packet.granted_total).is_ok()
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
        // In the default scheme the backlog mark has no effect.
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
    /// Posts a receive for one message, if no queued message and no lost peer concerns it. `false`: nothing has
    /// changed; post it by `handle`. The effects equal those of `handle` with `Posted(Receive)` without actions.
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

    /// Handles a packet of the common kinds. `None`: nothing has changed except by updates that `handle` can repeat;
    /// pass the packet to `handle`. The effects equal those of `handle` with `Arrived`.
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
        // Without a lane there, the machine may have to ask for one.
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
            credits_due = receiver.is_due(pool); // the grant waited until a credit packet was read
        }
        state.backlog_waited = false;
        state.credit_packets_read = state.credit_packets_read.wrapping_add(1);
        counters.packets_received += 1;
        counters.credit_packets_received += 1;
        Some(FastArrival::Credits { credits_due })
    }

    /// Handles a whole message that [`Endpoint::try_arrival`] has declined, if it only has to be buffered. `None`:
    /// nothing has changed except by updates that `handle` can repeat.
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

    /// Finds the message for a new receive, if it is buffered whole and needs no acknowledgement, and removes it.
    /// `None`: nothing has changed; post the receive by `handle`.
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

    /// Handles a packet from the middle of an eager message, as [`Endpoint::try_arrival`] handles whole messages.
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

    /// Returns credits to `peer` if they are due, and sends due compulsory return requests. Ends an event on the fast
    /// path.
    pub fn send_due_credits(&mut self, now: Instant, peer: Peer, actions: &mut Vec<Action>) {
        self.return_credits(peer, actions);
        if self.pool.has_requests() {
            self.ask_for_credits(now, actions);
        }
    }
}
