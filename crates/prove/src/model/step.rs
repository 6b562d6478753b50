//! Performs a move of the search: changes the state, passes an event to an endpoint machine and performs its actions,
//! as any driver must. On the way it checks I1, I2 and I5 and the rules of leases, rejects actions that must not occur,
//! and notes the kinds of events that have happened.

use std::sync::Arc;

use weir_proto::canonical::Lease;
use weir_proto::offload::Offloaded;
use weir_proto::offload::atomics::AtomicPacket;
use weir_proto::{
    Action, Body, Command, Endpoint, Event, Instant, MachineEvent, Outcome, Packet, Pattern, Peer, PeerFault,
    ReceiveCommand, Recorder, Request, Scheme, SendCommand, SendLevel, Source, Space,
};

use super::checks::{Violation, guarded, violation};
use super::{Effect, Happened, Item, Move, Setup, State};

impl Setup {
    /// The state after `step`, which must be possible, and the effects.
    ///
    /// # Errors
    /// [`Violation`] if a check fails.
    pub fn apply(&self, state: &State, step: Move) -> Result<(State, Effect), Violation> {
        let mut next = state.clone();
        let effect = self.advance(&mut next, step)?;
        Ok((next, effect))
    }

    /// Performs `step`, which must be possible, and returns its effects.
    ///
    /// # Errors
    /// [`Violation`] if a check fails. Then the state is invalid.
    pub fn advance(&self, next: &mut State, step: Move) -> Result<Effect, Violation> {
        let effect = self.perform_move(next, step)?;
        self.check_at_rest(next)?;
        Ok(effect)
    }

    fn perform_move(&self, next: &mut State, step: Move) -> Result<Effect, Violation> {
        let mut effect = Effect::default();
        let acted = match step {
            Move::Retrieve { from, to } => {
                let packet = match next.lanes[self.lane(from, to)][0] {
                    Item::Packet(packet) => packet,
                    Item::Attach { epoch } => {
                        let lane = self.lane(from, to);
                        self.pop(next, lane);
                        Arc::make_mut(&mut next.data_since_promotion)[lane] = 0;
                        self.handle(next, to, None, self.attached(to, from, epoch), &mut effect)?;
                        self.check_totals(next, to)?;
                        return Ok(effect);
                    }
                };
                self.note_lease(next, from, to, &packet, &mut effect);
                // A lost sender's messages have no receive.
                let lost = next.endpoints[to as usize].fault(Peer(from)).is_some();
                if let Body::Eager { .. } = packet.body
                    && !lost
                {
                    let pattern =
                        Pattern { space: Space::Untagged, from: Some(Peer(from)), tag: 0, ignore: 0 };
                    let request = Request(0);
                    let receive = ReceiveCommand { request, pattern, capacity_bytes: 1 << 20, multi: None };
                    let posted = Event::Posted(Command::Receive(receive));
                    self.handle(next, to, None, posted, &mut effect)?;
                }
                let arrived = Event::Arrived { from: Peer(from), packet: &packet };
                self.handle(next, to, Some(from), arrived, &mut effect)?;
                to
            }
            Move::FindRoom { from, to } => {
                next.asking &= !(1 << self.lane(from, to));
                let slots = self.lane_slots(to) - self.filled_last(next, from, to).0;
                self.handle(next, from, None, Event::Room { peer: Peer(to), slots }, &mut effect)?;
                from
            }
            Move::Post { pair, bytes } => {
                let (from, to) = self.pairs[pair];
                if self.is_lost(next, from, to) {
                    effect.sent = Some(pair);
                    return Ok(effect);
                }
                let send = SendCommand {
                    request: Request(1),
                    to: Peer(to),
                    space: Space::Untagged,
                    tag: 0,
                    data: None,
                    bytes,
                    level: SendLevel::Buffered,
                };
                self.handle(next, from, None, Event::Posted(Command::Send(send)), &mut effect)?;
                from
            }
            Move::Fetch { pair } => {
                let (from, to) = self.pair(pair);
                if self.is_lost(next, from, to) {
                    effect.sent = Some(pair);
                    return Ok(effect);
                }
                self.post_fetch(next, (from, to), &mut effect)?;
                self.send_outgoing(next, from, &mut effect)?;
                from
            }
            Move::Join { who } => {
                self.join(next, who, &mut effect)?;
                self.send_outgoing(next, who, &mut effect)?;
                who
            }
            Move::Start { who } => {
                self.start_round(next, who, &mut effect)?;
                self.send_outgoing(next, who, &mut effect)?;
                who
            }
            Move::Notify { from, to } => {
                let lane = self.lane(from, to);
                next.unnotified &= !(1 << lane);
                let epoch = next.leases[lane].epoch;
                self.handle(next, from, None, self.connected(to, epoch), &mut effect)?;
                from
            }
            Move::Detach { from, to } => {
                next.detaches += u8::from(self.max_detaches.is_some());
                effect.happened |= Happened::Detached.bit();
                self.handle(next, from, None, Event::DetachRequested { peer: Peer(to) }, &mut effect)?;
                from
            }
            Move::Congest { from, to, packets } => {
                let lane = self.lane(from, to);
                next.congested |= 1 << lane;
                next.takes_one |= u64::from(packets) << lane;
                return Ok(effect);
            }
            Move::Ready { from, to, once } => {
                let lane = self.lane(from, to);
                next.refused &= !(1 << lane);
                next.congested &= !(u64::from(!once) << lane);
                next.takes_one |= u64::from(once) << lane;
                self.handle(next, from, None, Event::LinkReady { peer: Peer(to) }, &mut effect)?;
                from
            }
            Move::SendDeferred { who, to } => {
                let before = next.endpoints[who as usize].counters().credit_packets_sent;
                next.deferred &= !(1 << self.lane(who, to));
                self.handle(next, who, None, Event::CreditsDue { peer: Peer(to) }, &mut effect)?;
                let sent = next.endpoints[who as usize].counters().credit_packets_sent - before;
                effect.happened |= if sent > 0 { Happened::LateCredits.bit() } else { 0 };
                who
            }
            Move::Expire { who, timer } => {
                Arc::make_mut(&mut next.timers).remove(&(who, timer));
                self.handle(next, who, None, Event::TimerExpired(timer), &mut effect)?;
                who
            }
            Move::Idle { who } => {
                self.handle(next, who, None, Event::Idle, &mut effect)?;
                who
            }
            Move::LearnLoss { who, of } => {
                let lost = Event::Lost { peer: Peer(of), fault: PeerFault::Unreachable };
                self.handle(next, who, None, lost, &mut effect)?;
                who
            }
            Move::Steal { at } => {
                next.steals += u8::from(self.max_steals.is_some());
                self.act(next, at, None, &mut effect, |machine, actions| {
                    assert!(
                        machine.steal_for_absent_sender(&mut Recorder::new(Instant(0), actions)),
                        "there is an absent sender"
                    );
                })?;
                at
            }
            Move::Crash { who } => {
                next.dead |= 1 << who;
                Arc::make_mut(&mut next.timers).retain(|(owner, _)| *owner != who);
                effect.happened |= Happened::Crashed.bit();
                self.crash_machine(next, who);
                for peer in self.neighbours(who) {
                    for lane in [self.lane(who, peer), self.lane(peer, who)] {
                        next.lanes[lane] = Arc::default();
                        next.busy &= !(1 << lane);
                        self.clear_lane_requests(next, lane);
                        next.deferred &= !(1 << lane);
                        Arc::make_mut(&mut next.data_since_promotion)[lane] = 0;
                    }
                    let lost = Event::Lost { peer: Peer(who), fault: PeerFault::Died };
                    self.handle(next, peer, None, lost, &mut effect)?;
                    self.check_totals(next, peer)?;
                }
                return Ok(effect);
            }
        };
        self.check_totals(next, acted)?;
        Ok(effect)
    }

    fn handle(
        &self,
        state: &mut State,
        endpoint: u32,
        arrived_from: Option<u32>,
        event: Event<'_>,
        effect: &mut Effect,
    ) -> Result<(), Violation> {
        self.handle_event(state, endpoint, arrived_from, event, effect)?;
        self.send_outgoing(state, endpoint, effect)
    }

    /// Gives the endpoint what its machine has sent.
    fn send_outgoing(&self, state: &mut State, endpoint: u32, effect: &mut Effect) -> Result<(), Violation> {
        while let Some(outgoing) = self.next_outgoing(state) {
            self.handle_event(state, endpoint, None, Event::Outgoing(outgoing), effect)?;
        }
        Ok(())
    }

    fn handle_event(
        &self,
        state: &mut State,
        endpoint: u32,
        arrived_from: Option<u32>,
        event: Event<'_>,
        effect: &mut Effect,
    ) -> Result<(), Violation> {
        let arrived = if let Event::Arrived { packet, .. } = &event { Some(**packet) } else { None };
        let machine = &state.endpoints[endpoint as usize];
        let arriving = arrived_from.and_then(|from| machine.arriving_bytes(Peer(from)));
        let received = machine.counters().messages_received;
        let watched = arrived_from.filter(|_| self.watch_activity);
        let before = watched.and_then(|from| self.activity(state, from, endpoint));
        let congested = self.congested_lane(state, endpoint);
        let mut refused = false;
        let mut deferred = Vec::new();
        self.act(state, endpoint, arrived_from, effect, |machine, actions| {
            let mut recorder = match congested {
                Some((_, packets)) => Recorder::with_busy_link(Instant(0), actions, packets),
                None => Recorder::new(Instant(0), actions),
            }
            .deferring_credits(self.deferring);
            machine.handle(event, &mut recorder).expect("within the bounds");
            refused = !recorder.refused.is_empty();
            deferred = recorder.deferred;
        })?;
        deferred.into_iter().for_each(|peer| state.deferred |= 1 << self.lane(endpoint, peer.0));
        if let Some((lane, _)) = congested.filter(|_| refused) {
            state.refused |= 1 << lane;
            effect.happened |= Happened::Refused.bit();
        }
        let Some((packet, from)) = arrived.zip(arrived_from) else { return Ok(()) };
        // I5: a packet that ends a message delivers exactly one, others none.
        let ends = match packet.body {
            Body::Eager { length, .. } => length == packet.payload_bytes,
            Body::More { offset } => arriving == Some(u64::from(offset + packet.payload_bytes)),
            _ => false,
        };
        let machine = &state.endpoints[endpoint as usize];
        let delivered = machine.counters().messages_received - received;
        if delivered != u64::from(ends) && machine.fault(Peer(from)).is_none() {
            return violation("I5", format!("{delivered} messages delivered by {packet:?}"));
        }
        match before {
            Some(before) => self.check_activity(state, from, endpoint, &packet, before),
            None => Ok(()),
        }
    }

    /// The lane of `endpoint` whose link is busy, and how many packets it takes.
    fn congested_lane(&self, state: &State, endpoint: u32) -> Option<(usize, u32)> {
        let lane = self.lane(endpoint, self.neighbours(endpoint).next()?);
        (state.congested & 1 << lane != 0).then(|| (lane, (state.takes_one >> lane & 1) as u32))
    }

    /// Lets the machine of `endpoint` act, and performs its actions.
    fn act(
        &self,
        state: &mut State,
        endpoint: u32,
        arrived_from: Option<u32>,
        effect: &mut Effect,
        what: impl FnOnce(&mut Endpoint, &mut Vec<Action>),
    ) -> Result<(), Violation> {
        let machine = Arc::make_mut(&mut state.endpoints[endpoint as usize]);
        let (counters, tally) = (*machine.counters(), *machine.pool().tally());
        let lending = machine.demand_pool().map(|pool| *pool.tally()).unwrap_or_default();
        let mut actions = Vec::new();
        guarded(|| what(machine, &mut actions))?;
        let (now, tallied) = (machine.counters(), machine.pool().tally());
        let mut note = |kind: Happened, more: bool| effect.happened |= if more { kind.bit() } else { 0 };
        note(Happened::CreditPacket, now.credit_packets_sent > counters.credit_packets_sent);
        note(Happened::Piggyback, now.piggybacked_credits_sent > counters.piggybacked_credits_sent);
        note(Happened::ShortGrant, tallied.short_grants > tally.short_grants);
        note(Happened::Excess, tallied.excesses > tally.excesses);
        note(Happened::Deficit, tallied.deficits > tally.deficits);
        note(Happened::QuotaTransfer, tallied.quota_transfers > tally.quota_transfers);
        let lent = machine.demand_pool().map(|pool| *pool.tally()).unwrap_or_default();
        note(Happened::Loan, lent.lent_slots > lending.lent_slots);
        note(Happened::Prefetch, lent.prefetched_slots > lending.prefetched_slots);
        note(Happened::Queued, lent.queued > lending.queued);
        note(Happened::Turn, lent.rotations > lending.rotations);
        note(Happened::Reclaim, lent.requests > lending.requests);
        note(Happened::Reclaimed, lent.returned_slots > lending.returned_slots);
        note(Happened::NotReady, now.rnr_naks > counters.rnr_naks);
        let grew = now.peak_quota_slots > counters.peak_quota_slots && counters.peak_quota_slots > 0;
        note(Happened::Growth, grew);
        if tallied.deferred_grants > tally.deferred_grants {
            return violation("I2", "a grant waits for a free credit slot".into());
        }
        let mut told = 0u8;
        let mut actions = actions.into_iter();
        while let Some(action) = actions.next() {
            if let Action::Transmit { to, packet, .. } = &action {
                told |= 1 << to.0;
                if let Body::ReturnResponse { credits: 1.. } = packet.body
                    && self.on_demand()
                {
                    let is_data = |later: &Action| {
                        matches!(later, Action::Transmit { to: other, packet, .. }
                            if other == to && matches!(packet.body, Body::Eager { .. } | Body::More { .. }))
                    };
                    let cut = actions.as_slice().iter().any(is_data);
                    self.check_response(state, endpoint, to.0, cut)?;
                }
            }
            self.perform(state, endpoint, arrived_from, action, effect)?;
        }
        if self.on_demand() {
            for to in (0..self.processes).filter(|to| told >> to & 1 != 0) {
                self.check_announced(state, endpoint, to)?;
            }
        }
        Ok(())
    }

    fn perform(
        &self,
        state: &mut State,
        endpoint: u32,
        arrived_from: Option<u32>,
        action: Action,
        effect: &mut Effect,
    ) -> Result<(), Violation> {
        match action {
            Action::Transmit { to, packet, payload } => {
                if let (Body::Offloaded(_), Source::Buffer { buffer, offset }) = (&packet.body, payload) {
                    let pair = (endpoint, to.0);
                    self.push_payload(state, pair, (buffer, offset), packet.payload_bytes);
                }
                self.transmit(state, endpoint, to.0, packet, effect)
            }
            Action::PassOn { from, number, packet, payload_bytes } if self.has_machines() => {
                let arrived = MachineEvent::Arrived { from, number, packet, payload_bytes };
                self.offload(state, endpoint, arrived, effect)
            }
            Action::PeerLost { peer, fault } if self.has_machines() => {
                self.offload(state, endpoint, MachineEvent::Lost { peer, fault }, effect)
            }
            Action::Retire => {
                let lane = self.lane(arrived_from.expect("a retired packet has arrived"), endpoint);
                self.pop(state, lane);
                // A lost sender's `Detach` gives no `FreeLane`.
                let from = lane as u32 / self.processes;
                if state.endpoints[endpoint as usize].fault(Peer(from)).is_some() {
                    self.grant_lane(state, from, endpoint);
                }
                Ok(())
            }
            Action::Connect { to } => {
                state.attaching |= 1 << self.lane(endpoint, to.0);
                self.grant_lane(state, endpoint, to.0);
                Ok(())
            }
            Action::Disconnect { to } => {
                let lane = self.lane(endpoint, to.0);
                self.clear_lane_requests(state, lane);
                Ok(())
            }
            Action::FreeLane { peer } => {
                self.grant_lane(state, peer.0, endpoint);
                Ok(())
            }
            Action::AskRoom { to, .. } => {
                state.asking |= 1 << self.lane(endpoint, to.0);
                Ok(())
            }
            Action::SetTimer { timer, .. } => {
                Arc::make_mut(&mut state.timers).insert((endpoint, timer));
                Ok(())
            }
            Action::CancelTimer { timer } => {
                Arc::make_mut(&mut state.timers).remove(&(endpoint, timer));
                Ok(())
            }
            Action::DropPeer { peer } if self.dead(state, peer.0) => Ok(()),
            Action::DropPeer { peer }
                if matches!(
                    state.endpoints[endpoint as usize].fault(peer),
                    Some(PeerFault::NotReady | PeerFault::Unreachable)
                ) =>
            {
                let lane = self.lane(endpoint, peer.0);
                self.clear_lane_requests(state, lane);
                state.deferred &= !(1 << lane);
                state.dropped |= 1 << lane;
                effect.happened |= Happened::GaveUp.bit();
                Ok(())
            }
            Action::Complete { outcome: Outcome::Lost { peer: Some(peer), .. }, .. }
                if self.is_lost(state, endpoint, peer.0) =>
            {
                Ok(())
            }
            Action::DropPeer { peer } => violation(
                "refused",
                format!("endpoint {endpoint} rejects a packet of {} as malformed", peer.0),
            ),
            Action::AnswerLeft { buffer } => {
                Arc::make_mut(&mut state.machines).ranks[endpoint as usize].end_buffer(buffer);
                Ok(())
            }
            // `tests/worlds.rs` checks bytes and requests.
            Action::Place { .. }
            | Action::PeerLost { .. }
            | Action::Complete { outcome: Outcome::Done | Outcome::Received { .. }, .. } => Ok(()),
            _ => violation("unexpected", format!("endpoint {endpoint} asks for {action:?}")),
        }
    }

    fn transmit(
        &self,
        state: &mut State,
        from: u32,
        to: u32,
        packet: Packet,
        effect: &mut Effect,
    ) -> Result<(), Violation> {
        let lane = self.lane(from, to);
        if state.unnotified & 1 << lane != 0 || !state.leases[lane].is_active {
            return violation("lease", format!("{from} has no lane at {to} for {packet:?}"));
        }
        if let Body::Eager { .. } | Body::More { .. } = packet.body {
            // I5: the lane is first in first out, so numbers in order when sent are in order when read. They restart
            // when both sides have detached.
            let next = state.numbers[lane];
            let first = matches!(packet.body, Body::Eager { .. });
            let again = packet.number == 0 && first && state.leases[lane].epoch > 0;
            if packet.number != next.wrapping_sub(u32::from(!first)) && !again {
                return violation("I5", format!("message number {}, expected {next}", packet.number));
            }
            Arc::make_mut(&mut state.numbers)[lane] = packet.number.wrapping_add(1);
            let pair = self.pairs.iter().position(|pair| *pair == (from, to));
            let pair = pair.expect("data belongs to a sending pair");
            let only = effect.sent.is_none_or(|sent| sent == pair);
            assert!(only || self.has_machines(), "one move made two pairs send");
            effect.sent.get_or_insert(pair);
        }
        if let Body::Offloaded(Offloaded::Atomic(AtomicPacket::Request { .. })) = packet.body {
            let pair = self.offload.fetching.iter().position(|pair| *pair == (from, to));
            effect.sent.get_or_insert(self.pairs.len() + pair.expect("a fetch belongs to a fetching pair"));
        }
        if !packet.body.is_free() {
            let given_back = if let Body::ReturnResponse { credits } = packet.body { credits } else { 0 };
            let slots = self.config.geometry.packet_slots(&packet) + given_back;
            let spent = &mut Arc::make_mut(&mut state.spent)[lane];
            *spent = spent.wrapping_add(slots);
        }
        self.push(state, lane, Item::Packet(packet));
        state.takes_one &= !(1 << lane);
        if packet.body == Body::Detach {
            Arc::make_mut(&mut state.leases)[lane].is_active = false;
            return Ok(());
        }
        let (data_slots, credit_packets) = self.filled_last(state, from, to);
        let lanes_slots: u32 = self.neighbours(to).map(|other| self.filled(state, other, to).0).sum();
        let pool = state.endpoints[to as usize].pool();
        let region_slots = match (self.config.scheme, state.endpoints[to as usize].demand_pool()) {
            (Scheme::Dynamic { .. }, _) => pool.region_slots(),
            (_, Some(pool)) => pool.region_slots(),
            _ => lanes_slots,
        };
        if data_slots > self.lane_slots(to) || lanes_slots > region_slots {
            return violation(
                "I1",
                format!("{data_slots} slots filled by {from}, {lanes_slots} by all senders"),
            );
        }
        let credit_slots = self.config.credit_slots;
        if credit_packets > credit_slots {
            return violation(
                "I2",
                format!("{credit_packets} unread credit packets in {credit_slots} slots"),
            );
        }
        Ok(())
    }

    /// Counts lease events of a packet of `from` before it is read.
    fn note_lease(&self, state: &State, from: u32, to: u32, packet: &Packet, effect: &mut Effect) {
        let lease = state.leases[self.lane(to, from)];
        let told = state.unnotified & 1 << self.lane(to, from) == 0;
        if lease.is_active && told && lease.epoch != packet.epoch && packet.granted_total > 0 {
            effect.happened |= Happened::StaleGrant.bit();
        }
        if !told && packet.body == Body::ReturnRequest && lease.epoch == packet.epoch {
            effect.happened |= Happened::EarlyRequest.bit();
        }
    }

    /// Gives `from` a lane at `to`, if it has asked for one and `overlap` allows it.
    fn grant_lane(&self, state: &mut State, from: u32, to: u32) {
        let lane = self.lane(from, to);
        if state.attaching & 1 << lane == 0 {
            return;
        }
        let items = &state.lanes[lane];
        let detaching = |item: &&Item| {
            matches!(item, Item::Packet(Packet { body: Body::Detach, .. }) | Item::Attach { .. })
        };
        if items.iter().filter(detaching).count() > usize::from(self.overlap) {
            return;
        }
        let lease = &mut Arc::make_mut(&mut state.leases)[lane];
        *lease = Lease { epoch: lease.epoch.wrapping_add(1), is_active: true };
        let item = Item::Attach { epoch: lease.epoch };
        Arc::make_mut(&mut state.spent)[lane] = 0;
        self.push(state, lane, item);
        state.attaching &= !(1 << lane);
        state.unnotified |= 1 << lane;
    }

    /// Drops the pending requests of the sender of a lane.
    fn clear_lane_requests(&self, state: &mut State, lane: usize) {
        for bits in [&mut state.asking, &mut state.attaching, &mut state.unnotified] {
            *bits &= !(1 << lane);
        }
    }
}
