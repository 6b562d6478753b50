//! The budgets of a receiver for unexpected messages, in schemes with credits: payload and envelopes. They reserve
//! memory for what attached and planned senders may still send, decide whether senders must use rendezvous only, and
//! whether an envelope is kept. They find out a sender that does not. The cost of a message is computed here, also for
//! drivers.
//!
//! This file does not know messages or packets. `docs/explanation/receiver-memory.md` explains why the budget holds.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::num::NonZero;

use crate::action::Envelope;
use crate::config::{Config, ENVELOPE_BYTES, Scheme};
use crate::event::Peer;
use crate::packet::Geometry;
use crate::table::Number;

/// Maximum of messages that a holder is asked to announce again at a time.
const MAX_RESUMED: u64 = 1024;
/// Cost of the link from one block of unexpected payload to the next. Unit: bytes.
const LINK_BYTES: u64 = 4;
/// Further cost of an unexpected message: the driver's record of its first block, 8 B in a table that may be half
/// empty. Unit: bytes.
const RECORD_BYTES: u64 = 16;

/// Block size for unexpected payload of `bytes` bytes. Small messages use small blocks, because they would leave a
/// large block nearly empty. Unit: bytes.
#[inline]
pub fn unexpected_block_bytes(bytes: u64) -> u64 {
    if bytes <= 48 { 16 } else { 64 }
}

/// Memory cost of the payload of an unexpected message of `bytes` bytes. Drivers stay within it. Envelopes are not
/// included: every unexpected message has one, wherever its payload is. They have their own bound of 64 bytes each.
#[inline]
pub fn unexpected_cost_bytes(bytes: u64) -> u64 {
    let block_bytes = unexpected_block_bytes(bytes);
    if bytes == 0 { 0 } else { RECORD_BYTES + bytes.div_ceil(block_bytes) * (block_bytes + LINK_BYTES) }
}

/// Further cost of an envelope that does not fit into the compact form: a message of 4 GiB or more, or with completion
/// data beyond 32 bits. Unit: bytes.
const WIDE_ENVELOPE_BYTES: u64 = 200;

/// Memory cost of the envelope of an unexpected message. Unit: bytes.
#[inline]
pub fn envelope_cost_bytes(envelope: &Envelope) -> u64 {
    let most = u64::from(u32::MAX);
    let wide = envelope.length > most || envelope.data.is_some_and(|data| data > most);
    ENVELOPE_BYTES + if wide { WIDE_ENVELOPE_BYTES } else { 0 }
}

/// Maximum cost of the payload of one data slot as an unexpected message. No eager message is longer than
/// `eager_bytes`, however large slots are.
fn max_slot_cost_bytes(geometry: &Geometry, eager_bytes: u64) -> u32 {
    let cost = |slots| {
        let bytes = geometry.payload_bytes(geometry.eager_header_bytes.min(geometry.slot_bytes - 1), slots);
        unexpected_cost_bytes(u64::from(bytes).min(eager_bytes)).div_ceil(u64::from(slots))
    };
    // A message of one packet costs most per slot: further packets add payload but no message.
    let most = (1..=geometry.max_packet_slots).map(cost).max().unwrap_or(0);
    u32::try_from(most).expect("a slot is shorter than 2 GiB")
}

/// Maximum of unexpected payload from a sender with `quota_slots` own data slots, before it reads our answer.
fn reservation_bytes(config: &Config, slot_cost_bytes: u32, quota_slots: u32) -> u64 {
    // The first packet of a message is charged for the whole message.
    u64::from(quota_slots) * u64::from(slot_cost_bytes) + unexpected_cost_bytes(config.eager_bytes)
}

/// Slots that all senders share, as a data region with the starting credits of all of them.
fn region_slots(config: &Config) -> u64 {
    match config.scheme {
        // A sender starts without `rendezvous_only` at its first contact, even if others hold the slots reserved for
        // it.
        Scheme::Dynamic { .. } | Scheme::Demand => {
            let first = u64::from(config.region.start_slots)
                * u64::from(config.planned_peers.max(config.region.peers));
            u64::from(config.region.slots) + first
        }
        _ => 0,
    }
}

/// The reservation for a sender: for its own data slots, and for the message that its last credit starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reservation(Number);

impl Reservation {
    fn envelope_bytes(self) -> u64 {
        u64::from(self.0.get()) * ENVELOPE_BYTES
    }

    fn bytes(self, config: &Config, slot_cost_bytes: u32) -> u64 {
        reservation_bytes(config, slot_cost_bytes, self.0.get())
    }
}

/// The budget for envelopes. Unit: bytes.
#[derive(Clone, Debug)]
struct Envelopes {
    limit: u64,
    planned: u64,
    attached: u64,
    used: u64,
    /// Envelopes that holders have been asked to announce again.
    promised: u64,
    over_limit: bool,
}

impl Envelopes {
    /// What kept envelopes may use: not what is reserved for messages that senders do not hold. `attached_senders`:
    /// number of senders with a reservation; all others begin with rendezvous only. Unit: bytes.
    fn free(&self, attached_senders: u32) -> u64 {
        let attached = if attached_senders > 0 { self.attached } else { 0 };
        self.limit.saturating_sub(self.planned.max(attached))
    }
}

/// The messages that a sender may still bring over the limit: it may have sent them before it read the mark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    messages: u32,
    bytes: u64,
}

/// Senders that have brought messages since the limit was passed.
#[derive(Clone, Debug, Default)]
struct Allowances {
    of_senders: BTreeMap<Peer, Allowance>,
}

/// The receiver's side: the unexpected-message budget.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    limit_bytes: u64,
    /// Maximum cost of the payload of one slot, over all links.
    slot_cost_bytes: u32,
    /// The reservations of all planned senders, if they fit. They include senders that have attached. Not 0, which saves 8
    /// bytes of each endpoint.
    planned_bytes: Option<NonZero<u64>>,
    attached_bytes: u64,
    /// Senders that are attached and not lost.
    attached: u32,
    used_bytes: u64,
    /// The same sums for envelopes: every slot can bring one. `None`: they have no limit.
    envelopes: Option<Box<Envelopes>>,
    /// The payload or the envelopes are over their limit: every sender must use rendezvous only.
    over_limit: bool,
    payload_over_limit: bool,
    /// The scheme grants credits, so the grants bound what can arrive.
    enforced: bool,
    /// `None` below the limit. In a box, because few endpoints are ever above it.
    allowances: Option<Box<Allowances>>,
    /// This endpoint has said goodbye. Its peers announce nothing to it any more.
    is_closing: bool,
    /// Further cost of a message of a sender from another job, whose eager limit may be higher.
    foreign_bytes: u32,
}

impl Budget {
    pub fn new(config: &Config) -> Budget {
        Budget::with_slot_cost(config, max_slot_cost_bytes(&config.geometry, config.eager_bytes))
    }

    /// Covers slots of `geometry` too. Nobody has attached yet.
    pub fn cover(&mut self, config: &Config, geometry: &Geometry) {
        assert!(self.attached == 0 && self.used_bytes == 0, "a geometry was added after the first contact");
        let slot_cost_bytes = max_slot_cost_bytes(geometry, config.eager_bytes).max(self.slot_cost_bytes);
        *self = Budget::with_slot_cost(config, slot_cost_bytes);
    }

    /// Whether the reservations cover slots of `geometry`.
    pub fn covers(&self, config: &Config, geometry: &Geometry) -> bool {
        max_slot_cost_bytes(geometry, config.eager_bytes) <= self.slot_cost_bytes
    }

    fn with_slot_cost(config: &Config, slot_cost_bytes: u32) -> Budget {
        let shared_bytes = region_slots(config) * u64::from(slot_cost_bytes);
        let own_slots = if shared_bytes > 0 { 0 } else { config.planned_quota_slots };
        let one = reservation_bytes(config, slot_cost_bytes, own_slots);
        let all_bytes = one.saturating_mul(u64::from(config.planned_peers)).saturating_add(shared_bytes);
        let enforced = config.scheme.grants();
        let shared_envelopes = region_slots(config) * ENVELOPE_BYTES;
        let own_envelopes = u64::from(own_slots) * ENVELOPE_BYTES;
        let envelopes =
            own_envelopes.saturating_mul(u64::from(config.planned_peers)).saturating_add(shared_envelopes);
        let fits = config.planned_peers > 0
            && all_bytes <= config.unexpected_budget_bytes
            && envelopes <= config.envelope_budget_bytes;
        Budget {
            limit_bytes: config.unexpected_budget_bytes,
            slot_cost_bytes,
            planned_bytes: fits.then(|| NonZero::new(all_bytes).unwrap_or(NonZero::<u64>::MIN)),
            attached_bytes: shared_bytes,
            attached: 0,
            used_bytes: 0,
            envelopes: config.holds().then(|| {
                Box::new(Envelopes {
                    limit: config.envelope_budget_bytes,
                    planned: if fits { envelopes } else { 0 },
                    attached: shared_envelopes,
                    used: 0,
                    promised: 0,
                    over_limit: false,
                })
            }),
            over_limit: false,
            payload_over_limit: false,
            enforced,
            allowances: None,
            is_closing: false,
            foreign_bytes: 0,
        }
    }

    /// Whether every sender starts with `rendezvous_only`, also this endpoint as a sender.
    pub fn starts_rendezvous_only(&self) -> bool {
        self.enforced && self.planned_bytes.is_none()
    }

    /// The reservations: the maximum that may still arrive eagerly.
    fn reserved_bytes(&self) -> u64 {
        self.planned_bytes.map_or(0, NonZero::get).max(self.attached_bytes)
    }

    /// A sender with `quota_slots` has attached. Returns its reservation. `None`: the budget has no space for it, so
    /// the sender must always use rendezvous. The reservation can be 0 in a region without eager messages.
    pub fn attach(&mut self, config: &Config, quota_slots: u32) -> Option<Reservation> {
        // Senders share the slots of a region. For each unexpected sender the region grows by the starting credits.
        let own_slots = match config.scheme {
            Scheme::Dynamic { .. } | Scheme::Demand if self.attached < config.region.peers => 0,
            Scheme::Dynamic { .. } | Scheme::Demand => config.region.start_slots,
            _ => quota_slots,
        };
        let reservation = Reservation(Number::of(own_slots));
        let bytes = reservation.bytes(config, self.slot_cost_bytes);
        let own = reservation.envelope_bytes();
        let has_space = |envelopes: &Envelopes| envelopes.attached + own <= envelopes.limit;
        if !self.enforced
            || self.attached_bytes + bytes > self.limit_bytes
            || !self.envelopes.as_deref().is_none_or(has_space)
        {
            return None;
        }
        self.attached_bytes += bytes;
        if let Some(envelopes) = &mut self.envelopes {
            envelopes.attached += own;
        }
        self.attached += 1;
        self.update();
        Some(reservation)
    }

    /// Whether this endpoint ever asks for rendezvous only.
    #[inline]
    pub fn enforced(&self) -> bool {
        self.enforced
    }

    /// No sender has to use rendezvous only.
    #[cfg(feature = "explore")]
    pub fn do_not_enforce(&mut self) {
        self.enforced = false;
    }

    /// A sender has detached or is lost.
    pub fn detach(&mut self, config: &Config, reserved: Option<Reservation>) {
        self.attached_bytes -=
            reserved.map_or(0, |reservation| reservation.bytes(config, self.slot_cost_bytes));
        self.attached -= u32::from(reserved.is_some());
        if let Some(envelopes) = &mut self.envelopes {
            envelopes.attached -= reserved.map_or(0, Reservation::envelope_bytes);
        }
        self.update();
    }

    /// Whether a message that its sender does not hold arrives over the limit. `payload_bytes`: what has to be kept of
    /// it besides the envelope.
    #[inline]
    pub fn is_over_limit_with(&self, payload_bytes: u64) -> bool {
        let used_bytes = self.used_bytes + unexpected_cost_bytes(payload_bytes);
        let exceeds = self.over_limit || used_bytes > self.limit_bytes.saturating_sub(self.reserved_bytes());
        self.enforced && !self.is_closing && exceeds
    }

    /// Senders from other jobs may have the eager limit `bytes`.
    pub fn expect_foreign(&mut self, config: &Config, bytes: u64) {
        let further = unexpected_cost_bytes(bytes).saturating_sub(unexpected_cost_bytes(config.eager_bytes));
        self.foreign_bytes = u32::try_from(further).unwrap_or(u32::MAX);
    }

    /// A sender that owns `slots` slots, those of the packet included, brings such a message over the limit. Returns whether
    /// it may have sent it before it read the mark. All credits that were granted without the mark are among `slots`, and
    /// each message has taken one. So these messages cost no more than a reservation for `slots` slots.
    #[cold]
    pub fn allow(&mut self, config: &Config, from: Peer, slots: u32, payload_bytes: u64) -> bool {
        let bytes = reservation_bytes(config, self.slot_cost_bytes, slots) + u64::from(self.foreign_bytes);
        let first = Allowance { messages: slots, bytes };
        let allowance = self.allowances.get_or_insert_default().of_senders.entry(from).or_insert(first);
        // Where envelopes have no limit, messages without payload are sent as ever.
        let messages = allowance.messages.checked_sub(u32::from(self.envelopes.is_some()));
        let bytes = allowance.bytes.checked_sub(unexpected_cost_bytes(payload_bytes));
        let (Some(messages), Some(bytes)) = (messages, bytes) else { return false };
        *allowance = Allowance { messages, bytes };
        true
    }

    /// A sender is lost.
    pub fn forget(&mut self, peer: Peer) {
        if let Some(allowances) = &mut self.allowances {
            allowances.of_senders.remove(&peer);
        }
    }

    /// This endpoint has said goodbye: peers cannot announce anything to it.
    pub fn close(&mut self) {
        self.is_closing = true;
    }

    /// A message is kept. `buffered`: its payload too.
    pub fn charge(&mut self, envelope: &Envelope, buffered: bool) {
        self.used_bytes += if buffered { unexpected_cost_bytes(envelope.length) } else { 0 };
        if let Some(envelopes) = &mut self.envelopes {
            envelopes.used += envelope_cost_bytes(envelope);
        }
        self.update();
    }

    /// A kept message is no longer kept.
    pub fn refund(&mut self, envelope: &Envelope, buffered: bool) {
        self.used_bytes -= if buffered { unexpected_cost_bytes(envelope.length) } else { 0 };
        if let Some(envelopes) = &mut self.envelopes {
            envelopes.used -= envelope_cost_bytes(envelope);
        }
        self.update();
    }

    /// Whether the envelope of a message that its sender holds can be kept.
    pub fn may_keep(&self, envelope: &Envelope) -> bool {
        self.envelopes.as_deref().is_none_or(|envelopes| {
            let used = envelopes.used + envelopes.promised;
            used + envelope_cost_bytes(envelope) <= envelopes.free(self.attached)
        })
    }

    /// The number of messages that a holder may announce again, now that the queue has shrunk. 0: it has not.
    pub fn resumable(&self) -> u32 {
        let Some(envelopes) = self.envelopes.as_deref() else { return 0 };
        let (used, free) = (envelopes.used + envelopes.promised, envelopes.free(self.attached));
        if used <= free / 2 { ((free - used) / ENVELOPE_BYTES).min(MAX_RESUMED) as u32 } else { 0 }
    }

    /// A holder announces `count` messages again.
    pub fn promise(&mut self, count: u32) {
        if let Some(envelopes) = &mut self.envelopes {
            envelopes.promised += u64::from(count) * ENVELOPE_BYTES;
        }
    }

    /// It has announced one of them, which is kept: [`Budget::charge`] comes next. So there is no moment below the limit.
    pub fn keep_promise(&mut self) {
        if let Some(envelopes) = &mut self.envelopes {
            envelopes.promised -= ENVELOPE_BYTES;
        }
    }

    /// A receive has taken `count` of them, or the holder will not announce them.
    pub fn end_promise(&mut self, count: u32) {
        if let Some(envelopes) = &mut self.envelopes {
            envelopes.promised -= u64::from(count) * ENVELOPE_BYTES;
        }
        self.update();
    }

    /// Cost of the kept envelopes, if they have a limit. Unit: bytes.
    pub fn envelope_bytes(&self) -> u64 {
        self.envelopes.as_deref().map_or(0, |envelopes| envelopes.used)
    }

    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    #[inline]
    pub fn is_over_limit(&self) -> bool {
        self.over_limit
    }

    fn update(&mut self) {
        let free_bytes = self.limit_bytes.saturating_sub(self.reserved_bytes());
        if self.used_bytes > free_bytes {
            self.payload_over_limit = self.enforced;
        } else if self.used_bytes <= free_bytes / 2 {
            self.payload_over_limit = false;
        }
        self.over_limit = self.payload_over_limit;
        let (attached, enforced) = (self.attached, self.enforced);
        if let Some(envelopes) = &mut self.envelopes {
            // A sender that attaches after a promise reserves the same bytes. It must read the mark in our answer.
            let (used, free) = (envelopes.used + envelopes.promised, envelopes.free(attached));
            if used > free {
                envelopes.over_limit = enforced;
            } else if used <= free / 2 {
                envelopes.over_limit = false;
            }
            self.over_limit |= envelopes.over_limit;
        }
        if !self.over_limit && self.allowances.is_some() {
            self.allowances = None;
        }
    }
}
