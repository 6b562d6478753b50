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
use weir_proto::{
    Action, Body, Command, Config, Endpoint, Event, Instant, Outcome, Packet, Pattern, Peer, ReceiveCommand,
    Request, SendCommand, SendLevel, Space,
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
    /// What every endpoint is made with.
    pub config: Config,
    /// Data slots of each sender. Unit: slots.
    pub quota_slots: u32,
    /// By which rules: our own, or one that is known to be wrong.
    pub rule: Rule,
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
}

/// What must hold and does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which check: `I1` to `I6`, `refused`, `assertion`.
    pub check: &'static str,
    /// The numbers.
    pub detail: String,
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
}

impl Happened {
    /// All, in the order of the table.
    pub const ALL: [Happened; 3] = [Happened::Waiting, Happened::CreditPacket, Happened::Piggyback];

    /// The heading of its column.
    pub fn name(self) -> &'static str {
        match self {
            Happened::Waiting => "waiting",
            Happened::CreditPacket => "credit packet",
            Happened::Piggyback => "piggyback",
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
}

impl Setup {
    /// Everybody connected, nothing sent.
    pub fn initial(&self) -> State {
        let n = self.processes as usize;
        let endpoint = || Arc::new(Endpoint::new(self.config));
        let mut state = State {
            endpoints: (0..n).map(|_| endpoint()).collect(),
            lanes: vec![Arc::default(); n * n],
            asking: 0,
        };
        let mut actions = Vec::new();
        for us in 0..self.processes {
            for peer in (0..self.processes).filter(|&peer| self.neighbours(us, peer)) {
                let endpoint = Arc::make_mut(&mut state.endpoints[us as usize]);
                let (peer, quota_slots) = (Peer(peer), self.quota_slots);
                endpoint.handle(Instant(0), Event::Attached { peer, quota_slots }, &mut actions);
                let credit_slots = self.config.credit_slots;
                match self.rule {
                    Rule::Ours | Rule::ThresholdAlone => {}
                    Rule::DivByNPlus1 => endpoint.set_threshold(peer, quota_slots / credit_slots + 1),
                    Rule::DivByN => endpoint.set_threshold(peer, quota_slots / credit_slots),
                }
            }
        }
        for us in 0..self.processes {
            for peer in (0..self.processes).filter(|&peer| self.neighbours(us, peer)) {
                let endpoint = Arc::make_mut(&mut state.endpoints[us as usize]);
                let credit_slots = match self.rule {
                    Rule::Ours => self.config.credit_slots,
                    Rule::ThresholdAlone | Rule::DivByNPlus1 | Rule::DivByN => 1000,
                };
                let connected =
                    Event::Connected { peer: Peer(peer), quota_slots: self.quota_slots, credit_slots };
                endpoint.handle(Instant(0), connected, &mut actions);
            }
        }
        assert!(actions.is_empty(), "setting up asks for {actions:?}");
        state
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
                if state.asking & 1 << lane != 0 && self.filled(state, from, to).0 < self.quota_slots {
                    moves.push(Move::FindRoom { from, to });
                }
            }
        }
        for (pair, &(from, to)) in self.pairs.iter().enumerate() {
            if state.endpoints[from as usize].sender_books(Peer(to)).waiting == 0 {
                moves.extend(self.message_bytes.iter().map(|&bytes| Move::Post { pair, bytes }));
            }
        }
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
                    let pattern = Pattern { space: Space::Untagged, from: None, tag: 0, ignore: 0 };
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
                let slots = self.quota_slots - self.filled(next, from, to).0;
                self.handle(next, from, None, Event::Room { peer: Peer(to), slots }, &mut effect)?;
                from
            }
            Move::Post { pair, bytes } => {
                let (from, to) = self.pairs[pair];
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
        let machine = Arc::make_mut(&mut state.endpoints[node as usize]);
        let arrived = if let Event::Arrived { packet, .. } = &event { Some(*packet) } else { None };
        let arriving = arrived_from.and_then(|from| machine.arriving_bytes(Peer(from)));
        let before = *machine.counters();
        let mut actions = Vec::new();
        let handled = catch_unwind(AssertUnwindSafe(|| machine.handle(Instant(0), event, &mut actions)));
        if let Err(panic) = handled {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without text");
            return violation("assertion", text.into());
        }
        let after = *machine.counters();
        if after.credit_packets_sent > before.credit_packets_sent {
            effect.happened |= Happened::CreditPacket.bit();
        }
        if after.piggybacked_credits_sent > before.piggybacked_credits_sent {
            effect.happened |= Happened::Piggyback.bit();
        }
        for action in actions {
            self.perform(state, node, arrived_from, action, effect)?;
        }
        // I5: a packet that ends a message delivers exactly one, others none.
        let ends = arrived.is_some_and(|packet| match packet.body {
            Body::Eager { length, .. } => length == packet.payload_bytes,
            Body::More { offset } => arriving == Some(u64::from(offset + packet.payload_bytes)),
            _ => false,
        });
        let delivered = after.messages_received - before.messages_received;
        if delivered != u64::from(ends) {
            return violation("I5", format!("{delivered} messages delivered by {arrived:?}"));
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
            Action::AskRoom { to } => {
                state.asking |= 1 << self.lane(node, to.0);
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
        if data_slots > self.quota_slots {
            return violation("I1", format!("{data_slots} of {} slots filled", self.quota_slots));
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

    /// I1 in the books: every data slot is a credit, filled, retrieved and not granted, or granted on the way. For the
    /// pairs of the endpoint that has `acted`; the books of others have not changed.
    fn check_books(&self, state: &State, acted: u32) -> Result<(), Violation> {
        for peer in (0..self.processes).filter(|&peer| self.neighbours(acted, peer)) {
            for (from, to) in [(acted, peer), (peer, acted)] {
                let origin = self.origin(state, from, to);
                let receiver = &state.endpoints[to as usize];
                let Some(books) = receiver.receiver_books(Peer(from), origin) else { continue };
                let credits = state.endpoints[from as usize].sender_books(Peer(to)).credits;
                let (filled, _) = self.filled(state, from, to);
                let sum = credits + filled + books.retrieved + books.granted_unknown;
                if sum != self.quota_slots {
                    let quota = self.quota_slots;
                    return violation(
                        "I1",
                        format!("{from} to {to}: {credits} credits + {filled} filled + {books:?} of {quota}"),
                    );
                }
            }
        }
        Ok(())
    }

    /// Whether a message of pair number `pair` waits for credit.
    pub fn waiting(&self, state: &State, pair: usize) -> bool {
        let (from, to) = self.pairs[pair];
        state.endpoints[from as usize].sender_books(Peer(to)).waiting > 0
    }

    /// The bits of [`Happened`] that say how things stand.
    pub fn standing(&self, state: &State) -> u16 {
        let waits = (0..self.pairs.len()).any(|pair| self.waiting(state, pair));
        if waits { Happened::Waiting.bit() } else { 0 }
    }

    /// The state as numbers that do not grow: equal if and only if the states behave alike.
    pub fn canonical(&self, state: &State, words: &mut Vec<u32>) {
        words.clear();
        for us in 0..self.processes {
            let machine = &state.endpoints[us as usize];
            machine.canonical(|peer| self.origin(state, peer.0, us), words);
        }
        for from in 0..self.processes {
            for to in 0..self.processes {
                let lane = self.lane(from, to);
                words.push(state.lanes[lane].len() as u32 | u32::from(state.asking >> lane & 1 != 0) << 16);
                let origin = self.origin(state, to, from);
                let machine = &state.endpoints[from as usize];
                for packet in state.lanes[lane].iter() {
                    machine.canonical_packet(Peer(to), packet, origin, words);
                }
            }
        }
    }
}
