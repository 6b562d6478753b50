//! What is explored: real endpoints, packets on their way between them, and everything that can happen next.
//!
//! A [`State`] holds clones of [`Endpoint`], the machine that ships, and the packets of each ordered pair, first in
//! first out. A [`Move`] is one thing that the environment may do: let the packet at the head of a lane be retrieved, let a
//! program post one more message, let a sender find room. Senders never finish: whenever nothing of a pair waits,
//! another message may be posted. Every receive is posted just before its message is retrieved, so nothing is ever
//! unexpected; matching is tested elsewhere.
//!
//! [`Setup::apply`] checks after each move, from outside and in the machines' books, what must always hold. It knows nothing
//! of how states are searched.
//!
//! Worked state, one sender with a quota of 2, one credit slot: the sender has posted twice (0 credits, 2 packets in the lane).
//! Moves: retrieve the first packet; post a third message (it waits). After two retrievals a credit packet is on its way
//! back, and retrieving that sends the third.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use weir_proto::canonical::Origin;
use weir_proto::flow::Mutant;
use weir_proto::flow::activity::Level;
use weir_proto::{
    Action, Body, Command, Config, DataRegion, Endpoint, Event, Instant, Outcome, Packet, Pattern, Peer,
    PeerFault, ReceiveCommand, Request, Scheme, SendCommand, SendLevel, Space,
};

/// A world to explore.
#[derive(Clone, Debug)]
pub struct Setup {
    /// How the table calls it.
    pub name: String,
    /// How many endpoints.
    pub processes: u32,
    /// Who sends to whom for ever. Credits flow the other way whether or not data does.
    pub pairs: Vec<(u32, u32)>,
    /// What every endpoint is made with; `region.slots` and `region.peers` follow from the quota and the neighbours.
    pub config: Config,
    /// Data slots of each sender; dynamic credits: its equal share of the region. Unit: slots.
    pub quota_slots: u32,
    /// By which rules: our own, or one that is known to be wrong.
    pub rule: Rule,
    /// Dynamic credits: a sender more is expected everywhere, never comes, and steals at any moment.
    pub thief: bool,
    /// Check that control packets are no activity. That needs a count in the state, so there are more states.
    pub watch_activity: bool,
    /// What the machine checks itself counts too (I1, I3, I6); else only what shows from outside.
    pub inner_checks: bool,
    /// This endpoint may die at any moment.
    pub mortal: Option<u32>,
    /// Lengths that a message may have. Unit: bytes.
    pub message_bytes: Vec<u64>,
}

/// By which rules the machines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Those that ship.
    Ours,
    /// Those that ship, but the receiver is told of so many credit slots that its check of what is unread never holds a
    /// grant back: the threshold alone must keep I2, as the papers argue.
    ThresholdAlone,
    /// As before, with the threshold `q div n + 1`.
    DivByNPlus1,
    /// As before, with the threshold `q div n`.
    DivByN,
    /// As before, with a wrong rule of dynamic credits.
    Wrong(Mutant),
}

/// One thing that may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// `to` retrieves the packet at the head of the lane from `from`.
    Retrieve {
        /// Its sender.
        from: u32,
        /// Its receiver.
        to: u32,
    },
    /// The link tells `from` how many slots at `to` are free.
    FindRoom {
        /// Who asked.
        from: u32,
        /// Where.
        to: u32,
    },
    /// The program of pair number `pair` posts one more message.
    Post {
        /// Index in [`Setup::pairs`].
        pair: usize,
        /// Its length. Unit: bytes.
        bytes: u64,
    },
    /// The sender that never comes is at a monitoring point of endpoint `at`.
    Steal {
        /// Where.
        at: u32,
    },
    /// This endpoint dies, and everybody knows.
    Die {
        /// Who.
        who: u32,
    },
}

/// What must hold and does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which check: `I1` to `I6`, `refused`, `assertion`.
    pub check: &'static str,
    /// The numbers.
    pub detail: String,
}

/// Runs it; a broken assertion of the machine is a violation like others, by the invariant that it names.
fn guarded(run: impl FnOnce()) -> Result<(), Violation> {
    let Err(panic) = catch_unwind(AssertUnwindSafe(run)) else { return Ok(()) };
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without text");
    let check = ["I1", "I2", "I3", "I6"].into_iter().find(|name| text.contains(&format!("{name}:")));
    let line = text.split(" Pool {").next().unwrap_or(text).replace('\n', " ");
    violation(check.unwrap_or("assertion"), line)
}

fn violation<T>(check: &'static str, detail: String) -> Result<T, Violation> {
    Err(Violation { check, detail })
}

/// What a move did that a reader of the counts wants to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// The pair, by index in [`Setup::pairs`], of which a data packet left. A move lets at most one pair send.
    pub sent: Option<usize>,
    /// Bits of [`Happened`].
    pub happened: u16,
}

/// The kinds of states that are counted, each a bit of [`Effect::happened`] and [`Setup::standing`]: a check that never
/// sees them proves less than it seems to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// Standing: a message waits for credit.
    Waiting,
    /// A credit packet was sent.
    CreditPacket,
    /// Credits went with a data packet.
    Piggyback,
    /// Standing: some sender was told to give back and has not answered.
    Blocked,
    /// Fewer credits were granted than the new threshold says.
    ShortGrant,
    /// A threshold was reached by piggybacking, with more returned than the new one says.
    Excess,
    /// A threshold was reached by piggybacking, with no more returned than it says.
    Deficit,
    /// Quota moved from one sender to another.
    Theft,
    /// Standing: a request or a response waits for a credit.
    ControlWaiting,
}

impl Happened {
    /// All, in the order of the table.
    pub const ALL: [Happened; 9] = [
        Happened::Waiting,
        Happened::CreditPacket,
        Happened::Piggyback,
        Happened::Blocked,
        Happened::ShortGrant,
        Happened::Excess,
        Happened::Deficit,
        Happened::Theft,
        Happened::ControlWaiting,
    ];

    /// The heading of its column.
    pub fn name(self) -> &'static str {
        match self {
            Happened::Waiting => "waiting",
            Happened::CreditPacket => "credit packet",
            Happened::Piggyback => "piggyback",
            Happened::Blocked => "blocked",
            Happened::ShortGrant => "short grant",
            Happened::Excess => "excess",
            Happened::Deficit => "deficit",
            Happened::Theft => "theft",
            Happened::ControlWaiting => "control waits",
        }
    }

    /// Its bit.
    pub fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// All endpoints and all packets on their way. Cloning shares what does not change.
#[derive(Clone, Debug)]
pub struct State {
    endpoints: Vec<Arc<Endpoint>>,
    /// By `from * processes + to`.
    lanes: Vec<Arc<Vec<Packet>>>,
    /// Bit `from * processes + to`: the sender waits to be told of room.
    asking: u64,
    /// Bit by endpoint: it has died.
    dead: u8,
    /// By lane: data slots retrieved since its sender last became more active, as far as they are of interest.
    earned: Vec<u8>,
}

impl Setup {
    /// Everybody connected, nothing sent.
    pub fn initial(&self) -> State {
        let n = self.processes as usize;
        let endpoint = |us| {
            let mut endpoint = Endpoint::new(self.config_of(us));
            if let Rule::Wrong(mutant) = self.rule {
                endpoint.mutate(mutant);
            }
            Arc::new(endpoint)
        };
        let mut state = State {
            endpoints: (0..self.processes).map(endpoint).collect(),
            lanes: vec![Arc::default(); n * n],
            asking: 0,
            dead: 0,
            earned: vec![0; n * n],
        };
        let mut actions = Vec::new();
        for us in 0..self.processes {
            let endpoint = Arc::make_mut(&mut state.endpoints[us as usize]);
            for peer in (0..self.processes).filter(|&peer| self.neighbours(us, peer)).map(Peer) {
                let start =
                    |quota_slots| if self.dynamic() { self.config.region.start_slots } else { quota_slots };
                let quota_slots = self.lane_slots(us);
                let start_slots = start(quota_slots);
                let attached = Event::Attached { peer, quota_slots, start_slots, epoch: 0 };
                endpoint.handle(Instant(0), attached, &mut actions);
                let quota_slots = self.lane_slots(peer.0);
                let start_slots = start(quota_slots);
                let credit_slots = self.config.credit_slots;
                let connected = Event::Connected { peer, quota_slots, start_slots, credit_slots, epoch: 0 };
                endpoint.handle(Instant(0), connected, &mut actions);
                match self.rule {
                    Rule::DivByNPlus1 => endpoint.set_threshold(peer, quota_slots / credit_slots + 1),
                    Rule::DivByN => endpoint.set_threshold(peer, quota_slots / credit_slots),
                    Rule::Ours | Rule::ThresholdAlone | Rule::Wrong(_) => {}
                }
            }
            if self.rule != Rule::Ours {
                endpoint.trust_thresholds();
            }
        }
        assert!(actions.is_empty(), "setting up asks for {actions:?}");
        state
    }

    fn dynamic(&self) -> bool {
        matches!(self.config.scheme, Scheme::Dynamic { .. })
    }

    fn config_of(&self, us: u32) -> Config {
        let neighbours = (0..self.processes).filter(|&peer| self.neighbours(us, peer)).count() as u32;
        let peers = neighbours + u32::from(self.thief);
        let region = DataRegion { slots: self.quota_slots * peers, peers, ..self.config.region };
        Config { region, ..self.config }
    }

    /// The most that one sender can own at an endpoint.
    fn lane_slots(&self, at: u32) -> u32 {
        if self.dynamic() { self.config_of(at).region.slots } else { self.quota_slots }
    }

    fn neighbours(&self, a: u32, b: u32) -> bool {
        self.pairs.contains(&(a, b)) || self.pairs.contains(&(b, a))
    }

    fn lane(&self, from: u32, to: u32) -> usize {
        (from * self.processes + to) as usize
    }

    /// Slots filled in the lane of a pair, by data and by credit packets.
    fn filled(&self, state: &State, from: u32, to: u32) -> (u32, u32) {
        let (mut data_slots, mut credit_packets) = (0, 0);
        for packet in state.lanes[self.lane(from, to)].iter() {
            if packet.body.is_credit() {
                credit_packets += 1;
            } else {
                data_slots += self.config.geometry.packet_slots(packet);
            }
        }
        (data_slots, credit_packets)
    }

    /// Everything that may happen now, in a fixed order.
    pub fn moves(&self, state: &State, moves: &mut Vec<Move>) {
        moves.clear();
        for from in 0..self.processes {
            for to in 0..self.processes {
                let lane = self.lane(from, to);
                if !state.lanes[lane].is_empty() {
                    moves.push(Move::Retrieve { from, to });
                }
                if state.asking & 1 << lane != 0 && self.filled(state, from, to).0 < self.lane_slots(to) {
                    moves.push(Move::FindRoom { from, to });
                }
            }
        }
        for (pair, &(from, to)) in self.pairs.iter().enumerate() {
            // The dead do not send, but count as if they did: see `advance`.
            if self.dead(state, from) || self.dead(state, to) {
                moves.push(Move::Post { pair, bytes: 0 });
            } else if !self.waiting(state, pair) {
                moves.extend(self.message_bytes.iter().map(|&bytes| Move::Post { pair, bytes }));
            }
        }
        if self.thief {
            moves.extend((0..self.processes).map(|at| Move::Steal { at }));
        }
        moves.extend(self.mortal.filter(|&who| !self.dead(state, who)).map(|who| Move::Die { who }));
    }

    fn dead(&self, state: &State, who: u32) -> bool {
        state.dead >> who & 1 != 0
    }

    /// The state after `step`, which must be possible, and what it did.
    ///
    /// # Errors
    /// [`Violation`] if something does not hold any more.
    pub fn apply(&self, state: &State, step: Move) -> Result<(State, Effect), Violation> {
        let mut next = state.clone();
        let effect = self.advance(&mut next, step)?;
        Ok((next, effect))
    }

    /// Makes `step`, which must be possible, and says what it did.
    ///
    /// # Errors
    /// [`Violation`] if something does not hold any more; the state is then of no use.
    pub fn advance(&self, next: &mut State, step: Move) -> Result<Effect, Violation> {
        let mut effect = Effect::default();
        let acted = match step {
            Move::Retrieve { from, to } => {
                let packet = next.lanes[self.lane(from, to)][0];
                if let Body::Eager { .. } = packet.body {
                    let pattern =
                        Pattern { space: Space::Untagged, from: Some(Peer(from)), tag: 0, ignore: 0 };
                    let request = Request(0);
                    let receive = ReceiveCommand { request, pattern, capacity_bytes: 1 << 20, multi: None };
                    let posted = Event::Posted(Command::Receive(receive));
                    self.handle(next, to, None, posted, &mut effect)?;
                }
                let arrived = Event::Arrived { from: Peer(from), packet };
                self.handle(next, to, Some(from), arrived, &mut effect)?;
                to
            }
            Move::FindRoom { from, to } => {
                next.asking &= !(1 << self.lane(from, to));
                let slots = self.lane_slots(to) - self.filled(next, from, to).0;
                self.handle(next, from, None, Event::Room { peer: Peer(to), slots }, &mut effect)?;
                from
            }
            Move::Post { pair, bytes } => {
                let (from, to) = self.pairs[pair];
                if self.dead(next, from) || self.dead(next, to) {
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
                    level: SendLevel::Delivered,
                };
                self.handle(next, from, None, Event::Posted(Command::Send(send)), &mut effect)?;
                from
            }
            Move::Steal { at } => {
                self.act(next, at, None, &mut effect, |machine, actions| {
                    assert!(machine.stir(Instant(0), actions), "somebody is expected");
                })?;
                at
            }
            Move::Die { who } => {
                next.dead |= 1 << who;
                for peer in (0..self.processes).filter(|&peer| self.neighbours(who, peer)) {
                    for lane in [self.lane(who, peer), self.lane(peer, who)] {
                        next.lanes[lane] = Arc::default();
                        next.asking &= !(1 << lane);
                        next.earned[lane] = 0;
                    }
                    let lost = Event::Lost { peer: Peer(who), fault: PeerFault::Died };
                    self.handle(next, peer, None, lost, &mut effect)?;
                    self.check_books(next, peer)?;
                }
                return Ok(effect);
            }
        };
        self.check_books(next, acted)?;
        Ok(effect)
    }

    fn handle(
        &self,
        state: &mut State,
        node: u32,
        arrived_from: Option<u32>,
        event: Event,
        effect: &mut Effect,
    ) -> Result<(), Violation> {
        let arrived = if let Event::Arrived { packet, .. } = &event { Some(*packet) } else { None };
        let machine = &state.endpoints[node as usize];
        let arriving = arrived_from.and_then(|from| machine.arriving_bytes(Peer(from)));
        let received = machine.counters().messages_received;
        let watched = arrived_from.filter(|_| self.watch_activity);
        let before = watched.and_then(|from| self.activity(state, from, node));
        self.act(state, node, arrived_from, effect, |machine, actions| {
            machine.handle(Instant(0), event, actions);
        })?;
        let Some((packet, from)) = arrived.zip(arrived_from) else { return Ok(()) };
        // I5: a packet that ends a message delivers exactly one, others none.
        let ends = match packet.body {
            Body::Eager { length, .. } => length == packet.payload_bytes,
            Body::More { offset } => arriving == Some(u64::from(offset + packet.payload_bytes)),
            _ => false,
        };
        let delivered = state.endpoints[node as usize].counters().messages_received - received;
        if delivered != u64::from(ends) {
            return violation("I5", format!("{delivered} messages delivered by {packet:?}"));
        }
        match before {
            Some(before) => self.check_activity(state, from, node, &packet, before),
            None => Ok(()),
        }
    }

    /// How active `from` is at `to`, with dynamic credits: 0 (null) to 3; and what was retrieved of it since the last
    /// threshold. Unit: slots.
    fn activity(&self, state: &State, from: u32, to: u32) -> Option<(u8, u32)> {
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

    /// What only control packets pay for is no activity: a sender that becomes more active has had at least n + 1 slots of
    /// data retrieved since it last did.
    fn check_activity(
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
        if let Body::Eager { .. } | Body::More { .. } = packet.body {
            state.earned[lane] = (u32::from(state.earned[lane]) + slots).min(u32::from(wanted)) as u8;
        }
        let (after, _) = self.activity(state, from, to).expect("it was there before");
        if after > before.0 {
            if state.earned[lane] < wanted {
                let earned = state.earned[lane];
                let detail = format!("{from} becomes more active at {to} with {earned} slots of data");
                return violation("activity", detail);
            }
            // At most so many thresholds were crossed beyond the one that counted, or can be without a further slot.
            state.earned[lane] = (before.1 + slots - 1).min(u32::from(wanted)) as u8;
        }
        Ok(())
    }

    /// Lets the machine of `node` do something, and performs what it wants done.
    fn act(
        &self,
        state: &mut State,
        node: u32,
        arrived_from: Option<u32>,
        effect: &mut Effect,
        what: impl FnOnce(&mut Endpoint, &mut Vec<Action>),
    ) -> Result<(), Violation> {
        let machine = Arc::make_mut(&mut state.endpoints[node as usize]);
        let (counters, tally) = (*machine.counters(), *machine.pool().tally());
        let mut actions = Vec::new();
        guarded(|| what(machine, &mut actions))?;
        let (now, tallied) = (machine.counters(), machine.pool().tally());
        let mut note = |kind: Happened, more: bool| effect.happened |= if more { kind.bit() } else { 0 };
        note(Happened::CreditPacket, now.credit_packets_sent > counters.credit_packets_sent);
        note(Happened::Piggyback, now.piggybacked_credits_sent > counters.piggybacked_credits_sent);
        note(Happened::ShortGrant, tallied.short_grants > tally.short_grants);
        note(Happened::Excess, tallied.excesses > tally.excesses);
        note(Happened::Deficit, tallied.deficits > tally.deficits);
        note(Happened::Theft, tallied.thefts > tally.thefts);
        if tallied.put_off > tally.put_off {
            return violation("I2", "a grant waits for room for credit packets".into());
        }
        for action in actions {
            self.perform(state, node, arrived_from, action, effect)?;
        }
        Ok(())
    }

    fn perform(
        &self,
        state: &mut State,
        node: u32,
        arrived_from: Option<u32>,
        action: Action,
        effect: &mut Effect,
    ) -> Result<(), Violation> {
        match action {
            Action::Transmit { to, packet, .. } => self.transmit(state, node, to.0, packet, effect),
            Action::Retire => {
                let lane = self.lane(arrived_from.expect("only what has arrived is retired"), node);
                Arc::make_mut(&mut state.lanes[lane]).remove(0);
                Ok(())
            }
            Action::AskRoom { to, .. } => {
                state.asking |= 1 << self.lane(node, to.0);
                Ok(())
            }
            Action::Sever { peer } if self.dead(state, peer.0) => Ok(()),
            Action::Complete { outcome: Outcome::Lost { peer: Some(peer), .. }, .. }
                if self.dead(state, peer.0) =>
            {
                Ok(())
            }
            Action::Sever { peer } => {
                violation("refused", format!("endpoint {node} takes what {} says for malformed", peer.0))
            }
            // Bytes and requests are the business of tests/worlds.rs.
            Action::Place { .. }
            | Action::Complete { outcome: Outcome::Done | Outcome::Received { .. }, .. } => Ok(()),
            _ => violation("unexpected", format!("endpoint {node} wants {action:?}")),
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
        let packets = Arc::make_mut(&mut state.lanes[lane]);
        if let Body::Eager { .. } | Body::More { .. } = packet.body {
            // I5: the lane is first in first out, so numbers in order at its entrance are in order at its end.
            let message = |packet: &&Packet| matches!(packet.body, Body::Eager { .. } | Body::More { .. });
            let last = packets.iter().rev().find(message).map(|last| last.number);
            let step = u32::from(matches!(packet.body, Body::Eager { .. }));
            if last.is_some_and(|last| last.wrapping_add(step) != packet.number) {
                return violation("I5", format!("message {} after {last:?}", packet.number));
            }
            let pair = self.pairs.iter().position(|pair| *pair == (from, to));
            let pair = pair.expect("data leaves only on pairs that send");
            assert!(effect.sent.is_none_or(|sent| sent == pair), "one move lets two pairs send");
            effect.sent = Some(pair);
        }
        packets.push(packet);
        let (data_slots, credit_packets) = self.filled(state, from, to);
        let lanes_slots: u32 = (0..self.processes).map(|other| self.filled(state, other, to).0).sum();
        let region_slots = if self.dynamic() { self.config_of(to).region.slots } else { lanes_slots };
        if data_slots > self.lane_slots(to) || lanes_slots > region_slots {
            return violation("I1", format!("{data_slots} slots of {from} filled, {lanes_slots} of all"));
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

    fn origin(&self, state: &State, from: u32, to: u32) -> Origin {
        state.endpoints[from as usize].origin(Peer(to))
    }

    /// I1 in the books, for the pairs of the endpoint that has `acted`; the books of others have not changed. Static: every
    /// data slot is a credit, filled, retrieved and not granted, or granted on the way. Dynamic: what the receiver believes
    /// that a sender has is what there is of it, and with what is free that is the region; then the machine's own checks of
    /// I1, I3 and I6.
    fn check_books(&self, state: &State, acted: u32) -> Result<(), Violation> {
        for peer in (0..self.processes).filter(|&peer| self.neighbours(acted, peer)) {
            if self.dead(state, peer) {
                continue;
            }
            for (from, to) in [(acted, peer), (peer, acted)] {
                let origin = self.origin(state, from, to);
                let receiver = &state.endpoints[to as usize];
                let Some(books) = receiver.receiver_books(Peer(from), origin) else { continue };
                let credits = state.endpoints[from as usize].sender_books(Peer(to)).credits;
                let (filled, _) = self.filled(state, from, to);
                let has = credits.wrapping_add(filled).wrapping_add(books.granted_unknown);
                let (sum, wanted) = match books.current {
                    None => (has.wrapping_add(books.retrieved), self.quota_slots),
                    Some(current) => (has.wrapping_add(self.given_back(state, from, to)), current),
                };
                if sum != wanted {
                    let detail = format!("{from} to {to}: {credits} credits + {filled} filled, {books:?}");
                    return violation("I1", detail);
                }
            }
        }
        if self.dynamic() {
            self.check_pool(state, acted)?;
        }
        Ok(())
    }

    /// Credits in responses on their way.
    fn given_back(&self, state: &State, from: u32, to: u32) -> u32 {
        let credits = |packet: &Packet| match packet.body {
            Body::ReturnResponse { credits } => credits,
            _ => 0,
        };
        state.lanes[self.lane(from, to)].iter().map(credits).sum()
    }

    fn check_pool(&self, state: &State, at: u32) -> Result<(), Violation> {
        let pool = state.endpoints[at as usize].pool();
        let living = pool.accounts().filter(|account| !self.dead(state, account.owner.0));
        let current: u32 = living.map(|account| account.current).sum();
        let phantom = if self.thief { self.config.region.start_slots } else { 0 };
        if pool.available_slots().wrapping_add(current) + phantom != pool.region_slots() {
            let (available, region) = (pool.available_slots(), pool.region_slots());
            return violation("I1", format!("{available} free + {current} with senders, region {region}"));
        }
        if self.inner_checks { guarded(|| pool.assert_invariants()) } else { Ok(()) }
    }

    /// Whether a message of pair number `pair` waits for credit.
    pub fn waiting(&self, state: &State, pair: usize) -> bool {
        let (from, to) = self.pairs[pair];
        state.endpoints[from as usize].sender_books(Peer(to)).waiting > 0
    }

    /// The bits of [`Happened`] that say how things stand.
    pub fn standing(&self, state: &State) -> u16 {
        let mut bits = 0;
        if (0..self.pairs.len()).any(|pair| self.waiting(state, pair)) {
            bits |= Happened::Waiting.bit();
        }
        if self.dynamic() {
            let living = (0..self.processes).filter(|&us| !self.dead(state, us));
            for machine in living.map(|us| &state.endpoints[us as usize]) {
                if machine.pool().accounts().any(|account| account.blocked) {
                    bits |= Happened::Blocked.bit();
                }
                if machine.control_waits() {
                    bits |= Happened::ControlWaiting.bit();
                }
            }
        }
        bits
    }

    /// The state as numbers that do not grow: equal if and only if the states behave alike.
    pub fn canonical(&self, state: &State, words: &mut Vec<u32>) {
        words.clear();
        words.push(u32::from(state.dead));
        for us in 0..self.processes {
            if self.dead(state, us) {
                continue;
            }
            let machine = &state.endpoints[us as usize];
            machine.canonical(|peer| self.origin(state, peer.0, us), words);
        }
        for from in 0..self.processes {
            for to in 0..self.processes {
                let lane = self.lane(from, to);
                let asking = u32::from(state.asking >> lane & 1 != 0);
                words.push(
                    state.lanes[lane].len() as u32 | asking << 16 | u32::from(state.earned[lane]) << 24,
                );
                let origin = self.origin(state, to, from);
                let machine = &state.endpoints[from as usize];
                for packet in state.lanes[lane].iter() {
                    machine.canonical_packet(Peer(to), packet, origin, words);
                }
            }
        }
    }
}
