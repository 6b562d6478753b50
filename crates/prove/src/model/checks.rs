//! The checks after each move of a search: the invariants of flow control, and that no sender waits in a state at rest.
//! A panic of an endpoint machine also counts as a [`Violation`]. I2 and I5 are checked in `step.rs`, while the move is
//! performed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use weir_proto::flow::activity::Level;
use weir_proto::flow::demand_credits::Pool;
use weir_proto::{Body, Packet, Peer};

use super::{Item, Setup, State};

/// Entries of a backlog whose slots the announced demand counts exactly (credits on demand).
const COUNTED_ENTRIES: usize = 8;

/// A violated check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The check: `I1` to `I6`, `D2` to `D5`, `reclaim`, `activity`, `assertion`, `lease`, `refused` or `unexpected`. With
    /// machines beside the endpoints also `fetch`, `group` or `machine`.
    pub check: &'static str,
    /// The values that violate it.
    pub detail: String,
}

/// Runs a function. A failed assertion of the machine becomes a violation, with the invariant that it names.
pub(super) fn guarded(run: impl FnOnce()) -> Result<(), Violation> {
    let Err(panic) = catch_unwind(AssertUnwindSafe(run)) else { return Ok(()) };
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without text");
    let check = ["I1", "I2", "I3", "I6", "D3", "D4", "D5"]
        .into_iter()
        .find(|name| text.contains(&format!("{name}:")));
    let line = text.split(" Pool {").next().unwrap_or(text).replace('\n', " ");
    violation(check.unwrap_or("assertion"), line)
}

pub(super) fn violation<T>(check: &'static str, detail: String) -> Result<T, Violation> {
    Err(Violation { check, detail })
}

impl Setup {
    /// I4: in a state without automatic moves, no sender waits, and no sender that got a return request is blocked.
    /// Every sequence of retrievals alone ends in such a state.
    pub(super) fn check_at_rest(&self, state: &State) -> Result<(), Violation> {
        if state.busy | state.asking | state.unnotified | state.refused | state.deferred != 0
            || !state.timers.is_empty()
            || self.any_unknown_loss(state)
            || self.waiting_for_idle(state).next().is_some()
        {
            return Ok(());
        }
        if let Some(pair) = (0..self.pairs.len()).find(|&pair| self.waiting(state, pair)) {
            let (from, to) = self.pairs[pair];
            return violation("I4", format!("{from} waits for credit of {to} and nothing is in flight"));
        }
        if state.attaching != 0 {
            return violation(
                "I4",
                format!("senders of lanes {:b} (bit mask) never attach", state.attaching),
            );
        }
        for us in (0..self.processes).filter(|&us| !self.dead(state, us)) {
            let machine = &state.endpoints[us as usize];
            let mut accounts = machine.demand_pool().into_iter().flat_map(Pool::accounts);
            if let Some(account) = accounts.find(|account| account.asked) {
                let owner = account.owner.0;
                return violation(
                    "I4",
                    format!("{owner} stays asked at {us}: no request or response is in flight"),
                );
            }
            let blocked = machine.pool().accounts().find(|account| account.blocked);
            if let Some(account) = blocked.filter(|_| self.dynamic()) {
                let owner = account.owner.0;
                return violation(
                    "I4",
                    format!("{owner} stays blocked at {us}: no request or response is in flight"),
                );
            }
        }
        if self.has_machines() {
            self.check_fetches_at_rest(state)?;
            self.check_group_at_rest(state)?;
        }
        Ok(())
    }

    /// The activity of `from` at `to` with dynamic credits: the level from 0 (null) to 3, and the slots retrieved since
    /// the last threshold.
    pub(super) fn activity(&self, state: &State, from: u32, to: u32) -> Option<(u8, u32)> {
        let pool = state.endpoints[to as usize].pool();
        let account = pool.accounts().find(|account| account.owner == Peer(from))?;
        let level = match account.level {
            Level::Null => 0,
            Level::Low => 1,
            Level::Medium => 2,
            Level::High => 3,
        };
        Some((level, account.retrieved + account.piggybacked))
    }

    /// Control packets are no activity: a sender whose activity rises has had at least n + 1 data slots retrieved since
    /// the last rise.
    pub(super) fn check_activity(
        &self,
        state: &mut State,
        from: u32,
        to: u32,
        packet: &Packet,
        before: (u8, u32),
    ) -> Result<(), Violation> {
        let lane = self.lane(from, to);
        let wanted = self.config.credit_slots as u8 + 1;
        let slots = self.config.geometry.packet_slots(packet);
        if let Body::Eager { .. } | Body::More { .. } | Body::Offloaded(_) = packet.body {
            let data_since_promotion = &mut Arc::make_mut(&mut state.data_since_promotion)[lane];
            *data_since_promotion = (u32::from(*data_since_promotion) + slots).min(u32::from(wanted)) as u8;
        }
        let Some((after, _)) = self.activity(state, from, to) else { return Ok(()) }; // it has detached
        if after > before.0 {
            if state.data_since_promotion[lane] < wanted {
                let data_since_promotion = state.data_since_promotion[lane];
                let detail =
                    format!("{from} becomes more active at {to} with {data_since_promotion} slots of data");
                return violation("activity", detail);
            }
            // At most these thresholds were crossed beyond the counted one, or can be without a further slot.
            Arc::make_mut(&mut state.data_since_promotion)[lane] =
                (before.1 + slots - 1).min(u32::from(wanted)) as u8;
        }
        Ok(())
    }

    /// I1 in the totals, for the pairs of the endpoint that has `acted`; totals of other pairs have not changed.
    ///
    /// Static credits: every data slot is a credit, filled, retrieved and not granted, or a grant in flight. Dynamic
    /// credits: the receiver's `current` equals what exists of these, and with the free slots it is the region. Then
    /// the machine's own checks of I1, I3 and I6 follow. While the two sides are in different leases, `current` is at
    /// least the filled slots.
    pub(super) fn check_totals(&self, state: &State, acted: u32) -> Result<(), Violation> {
        for peer in self.neighbours(acted) {
            if self.dead(state, peer) || state.dropped & 1 << self.lane(acted, peer) != 0 {
                continue;
            }
            for (from, to) in [(acted, peer), (peer, acted)] {
                let origin = self.origin(state, from, to);
                let receiver = &state.endpoints[to as usize];
                let Some(totals) = receiver.receiver_totals(Peer(from), origin) else { continue };
                let credits = state.endpoints[from as usize].sender_totals(Peer(to)).credits;
                let (filled, _) = self.filled(state, from, to);
                let returned_credits = self.returned_credits(state, from, to);
                let wanted = match (totals.current, totals.quota_slots) {
                    (Some(current), _) => current.wrapping_sub(returned_credits),
                    (None, Some(quota_slots)) => quota_slots.wrapping_sub(totals.retrieved),
                    (None, None) => continue,
                };
                let agree = match self.share_a_lease(state, from, to) {
                    true => credits.wrapping_add(filled).wrapping_add(totals.granted_unknown) == wanted,
                    false => filled <= wanted,
                };
                if !agree {
                    let detail = format!("{from} to {to}: {credits} credits + {filled} filled, {totals:?}");
                    return violation("I1", detail);
                }
            }
        }
        if self.dynamic() {
            self.check_pool(state, acted)?;
        } else if self.on_demand() {
            self.check_demand_pool(state, acted)?;
        }
        Ok(())
    }

    /// D1; then the machine's own checks of D1, D3 and D5.
    fn check_demand_pool(&self, state: &State, at: u32) -> Result<(), Violation> {
        let pool = state.endpoints[at as usize].demand_pool().expect("the scheme is credits on demand");
        let living = pool.accounts().filter(|account| !self.dead(state, account.owner.0));
        let current = living.map(|account| account.current).sum();
        self.check_region(at, pool.available_slots(), current, pool.region_slots())?;
        if !self.inner_checks {
            return Ok(());
        }
        guarded(|| {
            state.endpoints[at as usize].assert_accounts();
            // Slots whose credits are deferred may be free while senders wait.
            if !self.defers(state, at) {
                pool.assert_queue_is_served();
            }
        })
    }

    /// Slots that `from` has queued for `to`, counted from outside.
    ///
    /// - `began`: the first packet of the message has left.
    /// - `counted`: the entries whose slots count. Each other entry counts as one slot.
    fn queued_slots(&self, state: &State, from: u32, to: u32, began: bool, counted: usize) -> u32 {
        let machine = &state.endpoints[from as usize];
        let geometry = &self.config.geometry;
        let slots = |bytes: u64| {
            let body = match began {
                true => Body::More { offset: 0 },
                false => Body::Eager {
                    space: weir_proto::Space::Untagged,
                    tag: 0,
                    data: None,
                    length: 0,
                    acknowledge: None,
                },
            };
            let (mut left, mut slots, mut header_bytes) = (bytes as u32, 0, geometry.header_bytes(&body));
            loop {
                let most_bytes = geometry.payload_bytes(header_bytes, geometry.max_packet_slots);
                let part = left.min(most_bytes);
                slots += if part == 0 { 1 } else { geometry.slots(header_bytes, part) };
                left -= part;
                header_bytes = geometry.more_header_bytes;
                if left == 0 {
                    return slots;
                }
            }
        };
        let count = |(entry, bytes): (usize, u64)| if entry < counted { slots(bytes) } else { 1 };
        let messages: u32 = machine.backlog_payloads(Peer(to)).enumerate().map(count).sum();
        messages + machine.sender_totals(Peer(to)).control
    }

    /// D2: the last packet of `from` to `to` tells what `from` has spent and queued.
    pub(super) fn check_announced(&self, state: &State, from: u32, to: u32) -> Result<(), Violation> {
        let lane = self.lane(from, to);
        let Some(Item::Packet(packet)) = state.lanes[lane].last() else { return Ok(()) };
        let total = |began, counted| {
            state.spent[lane].wrapping_add(self.queued_slots(state, from, to, began, counted)) // one message waits at most
        };
        let wanted = [total(false, usize::MAX), total(true, usize::MAX)];
        // A request may have been queued after the packet, in the same event.
        let control = state.endpoints[from as usize].sender_totals(Peer(to)).control;
        // The packet may have left an entry of a long backlog, when the last counted entry was one further behind.
        let least = [total(false, COUNTED_ENTRIES - 1), total(true, COUNTED_ENTRIES - 1)];
        let between =
            |told: u32, (least, most): (u32, u32)| told.wrapping_sub(least) <= most.wrapping_sub(least);
        let tells = |range: (u32, u32)| {
            (0..=control).any(|later| between(packet.wanted_total.wrapping_add(later), range))
        };
        if packet.body != Body::Detach && !least.into_iter().zip(wanted).any(tells) {
            return violation(
                "D2",
                format!("{from} tells {to} that it wants {} in all, not {wanted:?}", packet.wanted_total),
            );
        }
        Ok(())
    }

    /// A response has left: it took no credits that queued packets need. It may fill one of their slots itself.
    ///
    /// - `cut`: a packet of a message has left after it. The credits cut it short, so the rest needs another header.
    pub(super) fn check_response(
        &self,
        state: &State,
        from: u32,
        to: u32,
        cut: bool,
    ) -> Result<(), Violation> {
        let credits = state.endpoints[from as usize].sender_totals(Peer(to)).credits;
        let queued_slots = self.queued_slots(state, from, to, true, COUNTED_ENTRIES);
        if queued_slots > credits + 1 + u32::from(cut) {
            return violation(
                "reclaim",
                format!("{from} gives credits back to {to} and lacks {} slots", queued_slots - credits),
            );
        }
        Ok(())
    }

    /// Whether sender and receiver are in the same lease, and know it.
    fn share_a_lease(&self, state: &State, from: u32, to: u32) -> bool {
        let lane = self.lane(from, to);
        state.leases[lane].is_active
            && state.unnotified & 1 << lane == 0
            && !state.lanes[lane].iter().any(|item| matches!(item, Item::Attach { .. }))
    }

    /// Credits in responses in flight, in the lease that is read.
    fn returned_credits(&self, state: &State, from: u32, to: u32) -> u32 {
        let credits = |item: &Item| match item {
            Item::Packet(Packet { body: Body::ReturnResponse { credits }, .. }) => Some(*credits),
            Item::Packet(_) => Some(0),
            Item::Attach { .. } => None,
        };
        state.lanes[self.lane(from, to)].iter().map_while(credits).sum()
    }

    fn check_pool(&self, state: &State, at: u32) -> Result<(), Violation> {
        let pool = state.endpoints[at as usize].pool();
        let living = pool.accounts().filter(|account| !self.dead(state, account.owner.0));
        let current: u32 = living.map(|account| account.current).sum();
        let available = pool.available_slots().wrapping_add(pool.expected_slots());
        self.check_region(at, available, current, pool.region_slots())?;
        if self.inner_checks { guarded(|| pool.assert_invariants()) } else { Ok(()) }
    }

    /// The slots of the data region at `at`: all are available or with senders, and repeated attach and detach does not
    /// grow the region each time.
    fn check_region(&self, at: u32, available: u32, current: u32, region: u32) -> Result<(), Violation> {
        if available.wrapping_add(current) != region {
            return violation("I1", format!("{available} free + {current} with senders, region {region}"));
        }
        let most = self.region_of(at);
        if region > most.slots + most.start_slots * most.peers {
            return violation("I1", format!("a region of {} slots has grown to {region} slots", most.slots));
        }
        Ok(())
    }
}
