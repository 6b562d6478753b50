//! What is explored: real endpoints, packets on their way between them, and everything that can happen next.
//!
//! A [`State`] holds clones of [`Endpoint`], the machine that ships, and the packets of each ordered pair, first in
//! first out. A [`Move`] is one thing that the environment may do: let the packet at the head of a lane be retrieved, let a
//! program post one more message, let a sender find room. Senders never finish: whenever nothing of a pair waits,
//! another message may be posted. Every receive is posted just before its message is retrieved, so nothing is ever
//! unexpected; matching is tested elsewhere.
//!
//! Who has no lane at a receiver and wants one gets it at once, or, while an earlier one is read, as soon as no more than
//! [`Setup::overlap`] says are left over. That its sender has it and that its receiver has noticed it are two moves, in
//! any order. There is no clock: a timer has run out whenever the environment says so.
//!
//! [`Setup::apply`] checks after each move, from outside and in the machines' books, what must always hold (`checks.rs`); what a
//! move does is in `step.rs`. Neither knows how states are searched.
//!
//! Worked state, one sender with a quota of 2, one credit slot: the sender has posted twice (0 credits, 2 packets in the lane).
//! Moves: retrieve the first packet; post a third message (it waits). After two retrievals a credit packet is on its way
//! back, and retrieving that sends the third.

mod checks;
mod happened;
mod step;

use std::sync::Arc;

use weir_proto::canonical::{Lease, Origin};
use weir_proto::flow::Mutant;
use weir_proto::{Config, DataRegion, Endpoint, Event, Instant, Packet, Peer, Scheme};

pub use checks::Violation;
pub use happened::{Effect, Happened};

/// A world to explore.
#[derive(Clone, Debug)]
pub struct Setup {
    /// How the table calls it.
    pub name: String,
    /// How many endpoints.
    pub processes: u32,
    /// Who sends to whom for ever. Credits flow the other way whether or not data does.
    pub pairs: Vec<(u32, u32)>,
    /// By endpoint, who sends to it or is sent to, a bit each: [`neighbours`] of the pairs.
    pub neighbours: Vec<u8>,
    /// What every endpoint is made with; `region.slots` and `region.peers` follow from the quota and the neighbours.
    pub config: Config,
    /// Data slots of each sender; dynamic credits: its equal share of the region. Unit: slots.
    pub quota_slots: u32,
    /// Dynamic credits: the region has so many slots more; they are the first senders'. Unit: slots.
    pub extra_slots: u32,
    /// By which rules: our own, or one that is known to be wrong.
    pub rule: Rule,
    /// Dynamic credits: a sender more is expected everywhere, never comes, and steals at any moment.
    pub stealing: bool,
    /// So often in all, if that is bounded.
    pub max_steals: Option<u8>,
    /// At first nobody has a lane anywhere: who has something to send, or credits to return, gets one.
    pub cold: bool,
    /// Senders, with their receivers, that may be asked to leave at any moment.
    pub detaching: Vec<(u32, u32)>,
    /// So often in all, if that is bounded.
    pub max_detaches: Option<u8>,
    /// Who comes back has a new lane while so many earlier ones of it are not read to their ends.
    pub overlap: u8,
    /// Check that control packets are no activity. That needs a count in the state, so there are more states.
    pub watch_activity: bool,
    /// What the machine checks itself counts too (I1, I3, I6); else only what shows from outside.
    pub inner_checks: bool,
    /// This endpoint may die at any moment.
    pub may_crash: Option<u32>,
    /// Lengths that a message may have. Unit: bytes.
    pub message_bytes: Vec<u64>,
}

/// By endpoint, who sends to it or is sent to, a bit each.
pub fn neighbours(processes: u32, pairs: &[(u32, u32)]) -> Vec<u8> {
    let mut neighbours = vec![0; processes as usize];
    for &(from, to) in pairs {
        neighbours[from as usize] |= 1 << to;
        neighbours[to as usize] |= 1 << from;
    }
    neighbours
}

/// By which rules the machines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Those that ship.
    Shipped,
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
    /// `from` is told that it has a lane at `to`.
    Notify {
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
    },
    /// `from` is asked to leave the mailbox of `to`.
    Detach {
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
    },
    /// The timers of `who` have run out.
    Retry {
        /// Whose.
        who: u32,
    },
    /// `who` learns that `of` has given it up, after it has read all that `of` had sent.
    LearnLoss {
        /// Who.
        who: u32,
        /// Of whom.
        of: u32,
    },
    /// This endpoint dies, and everybody knows.
    Crash {
        /// Who.
        who: u32,
    },
}

impl Move {
    /// It happens by itself if all programs are silent and nobody in the environment wants anything.
    pub fn is_automatic(&self) -> bool {
        match self {
            Move::Retrieve { .. }
            | Move::FindRoom { .. }
            | Move::Notify { .. }
            | Move::Retry { .. }
            | Move::LearnLoss { .. } => true,
            Move::Post { .. } | Move::Steal { .. } | Move::Detach { .. } | Move::Crash { .. } => false,
        }
    }
}

/// What is on its way in a lane.
#[derive(Clone, Copy, Debug)]
enum Item {
    /// The receiver has not noticed that this stay has begun.
    Attach {
        epoch: u16,
    },
    Packet(Packet),
}

/// A lane for each ordered pair, by `from * processes + to`, and what may be true of it, a bit each.
type Bits = u64;

/// All endpoints and all packets on their way. Cloning shares what does not change.
#[derive(Clone, Debug)]
pub struct State {
    endpoints: Vec<Arc<Endpoint>>,
    /// By lane: its packets.
    lanes: Vec<Arc<Vec<Item>>>,
    /// By lane: the last stay of its sender.
    leases: Arc<Vec<Lease>>,
    /// By lane: the number of the message that leaves next. Unit: messages, modulo 2^32.
    numbers: Arc<Vec<u32>>,
    /// By lane: data slots retrieved since its sender last became more active, as far as they are of interest.
    data_since_promotion: Arc<Vec<u8>>,
    /// There are packets in it.
    busy: Bits,
    /// The sender waits to be told of room.
    asking: Bits,
    /// The sender wants a lane and has none.
    attaching: Bits,
    /// The sender has a lane and has not been told.
    unnotified: Bits,
    /// The sender has given up the receiver.
    dropped: Bits,
    /// Bit by endpoint: it has died.
    dead: u8,
    /// Moves that are bounded: how many there were.
    steals: u8,
    detaches: u8,
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
            leases: Arc::new(vec![Lease::default(); n * n]),
            numbers: Arc::new(vec![0; n * n]),
            data_since_promotion: Arc::new(vec![0; n * n]),
            busy: 0,
            asking: 0,
            attaching: 0,
            unnotified: 0,
            dropped: 0,
            dead: 0,
            steals: 0,
            detaches: 0,
        };
        if self.cold {
            return state;
        }
        let mut actions = Vec::new();
        for us in 0..self.processes {
            let endpoint = Arc::make_mut(&mut state.endpoints[us as usize]);
            for peer in self.neighbours(us).map(Peer) {
                endpoint.handle(Instant(0), self.attached(us, peer.0, 0), &mut actions);
                endpoint.handle(Instant(0), self.connected(peer.0, 0), &mut actions);
                let leases = Arc::make_mut(&mut state.leases);
                leases[self.lane(us, peer.0)] = Lease { epoch: 0, is_active: true };
                let quota_slots = self.lane_slots(peer.0);
                let credit_slots = self.config.credit_slots;
                match self.rule {
                    Rule::DivByNPlus1 => endpoint.set_threshold(peer, quota_slots / credit_slots + 1),
                    Rule::DivByN => endpoint.set_threshold(peer, quota_slots / credit_slots),
                    Rule::Shipped | Rule::ThresholdAlone | Rule::Wrong(_) => {}
                }
            }
            if self.rule != Rule::Shipped {
                endpoint.rely_on_thresholds();
            }
        }
        assert!(actions.is_empty(), "setting up asks for {actions:?}");
        state
    }

    fn dynamic(&self) -> bool {
        matches!(self.config.scheme, Scheme::Dynamic { .. })
    }

    fn config_of(&self, us: u32) -> Config {
        Config { region: self.region_of(us), ..self.config }
    }

    fn region_of(&self, us: u32) -> DataRegion {
        let peers = self.neighbours[us as usize].count_ones() + u32::from(self.stealing);
        let slots = self.quota_slots * peers + self.extra_slots;
        DataRegion { slots, peers, ..self.config.region }
    }

    /// The most that one sender can own at an endpoint.
    fn lane_slots(&self, at: u32) -> u32 {
        if self.dynamic() { self.region_of(at).slots } else { self.quota_slots }
    }

    /// What a sender owns at first at an endpoint.
    fn start_slots(&self, at: u32) -> u32 {
        match self.config.scheme {
            Scheme::Dynamic { .. } => self.config.region.start_slots,
            Scheme::AdaptiveBacklog { .. } => self.config.region.start_slots.min(self.quota_slots),
            _ => self.lane_slots(at),
        }
    }

    fn attached(&self, at: u32, from: u32, epoch: u16) -> Event {
        let (quota_slots, start_slots) = (self.lane_slots(at), self.start_slots(at));
        Event::Attached { peer: Peer(from), quota_slots, start_slots, epoch }
    }

    fn connected(&self, to: u32, epoch: u16) -> Event {
        let (quota_slots, start_slots) = (self.lane_slots(to), self.start_slots(to));
        let credit_slots = self.config.credit_slots;
        Event::Connected { peer: Peer(to), quota_slots, start_slots, credit_slots, epoch }
    }

    /// Who sends to `us` or is sent to.
    fn neighbours(&self, us: u32) -> impl Iterator<Item = u32> + use<> {
        let mut left = self.neighbours[us as usize];
        std::iter::from_fn(move || {
            let next = left.trailing_zeros();
            (left != 0).then(|| {
                left &= left - 1;
                next
            })
        })
    }

    fn lane(&self, from: u32, to: u32) -> usize {
        (from * self.processes + to) as usize
    }

    fn push(&self, state: &mut State, lane: usize, item: Item) {
        Arc::make_mut(&mut state.lanes[lane]).push(item);
        state.busy |= 1 << lane;
    }

    fn pop(&self, state: &mut State, lane: usize) {
        let items = Arc::make_mut(&mut state.lanes[lane]);
        items.remove(0);
        state.busy &= !(u64::from(items.is_empty()) << lane);
    }

    /// Slots filled in the lane of a pair, by data and by credit packets: those of the stay that is read.
    fn filled(&self, state: &State, from: u32, to: u32) -> (u32, u32) {
        let lane = &state.lanes[self.lane(from, to)];
        self.count(lane.iter().take_while(|item| matches!(item, Item::Packet(_))))
    }

    /// The same of the stay that is written.
    fn filled_last(&self, state: &State, from: u32, to: u32) -> (u32, u32) {
        let lane = &state.lanes[self.lane(from, to)];
        self.count(lane.iter().rev().take_while(|item| matches!(item, Item::Packet(_))))
    }

    fn count<'a>(&self, items: impl Iterator<Item = &'a Item>) -> (u32, u32) {
        let (mut data_slots, mut credit_packets) = (0, 0);
        for item in items {
            let Item::Packet(packet) = item else { continue };
            if packet.body.is_credit() {
                credit_packets += 1;
            } else if !packet.body.is_free() {
                data_slots += self.config.geometry.packet_slots(packet);
            }
        }
        (data_slots, credit_packets)
    }

    /// Everything that may happen now, in a fixed order.
    pub fn moves(&self, state: &State, moves: &mut Vec<Move>) {
        self.automatic_moves(state, moves);
        for pair in 0..self.pairs.len() {
            moves.extend(self.posts(state, pair));
        }
        if self.stealing && self.max_steals.is_none_or(|most| state.steals < most) {
            // A sender that comes back may have taken the place of the one that never came.
            let expected = |&at: &u32| state.endpoints[at as usize].pool().expected_slots() > 0;
            moves.extend((0..self.processes).filter(expected).map(|at| Move::Steal { at }));
        }
        if self.max_detaches.is_none_or(|most| state.detaches < most) {
            for &(from, to) in &self.detaching {
                let lane = self.lane(from, to);
                if state.leases[lane].is_active
                    && state.unnotified & 1 << lane == 0
                    && !self.is_lost(state, from, to)
                {
                    moves.push(Move::Detach { from, to });
                }
            }
        }
        moves.extend(self.may_crash.filter(|&who| !self.dead(state, who)).map(|who| Move::Crash { who }));
    }

    /// What may happen by itself, in a fixed order: the moves that are [`Move::is_automatic`].
    pub fn automatic_moves(&self, state: &State, moves: &mut Vec<Move>) {
        moves.clear();
        let mut lanes = state.busy | state.asking | state.unnotified | state.dropped;
        while lanes != 0 {
            let lane = lanes.trailing_zeros();
            lanes &= lanes - 1;
            let (from, to) = (lane / self.processes, lane % self.processes);
            if state.busy & 1 << lane != 0 {
                moves.push(Move::Retrieve { from, to });
            } else if self.has_unknown_loss(state, to, from) {
                moves.push(Move::LearnLoss { who: to, of: from });
            }
            if state.asking & 1 << lane != 0
                && (self.answers_at_once() || self.filled_last(state, from, to).0 < self.lane_slots(to))
            {
                moves.push(Move::FindRoom { from, to });
            }
            if state.unnotified & 1 << lane != 0 {
                moves.push(Move::Notify { from, to });
            }
        }
        if self.answers_at_once() {
            let waits = |&who: &u32| {
                !self.dead(state, who) && state.endpoints[who as usize].next_deadline().is_some()
            };
            moves.extend((0..self.processes).filter(waits).map(|who| Move::Retry { who }));
        }
    }

    /// `who` has not learned yet that `of` has given it up.
    fn has_unknown_loss(&self, state: &State, who: u32, of: u32) -> bool {
        state.dropped & 1 << self.lane(of, who) != 0 && state.dropped & 1 << self.lane(who, of) == 0
    }

    fn any_unknown_loss(&self, state: &State) -> bool {
        let pairs = || (0..self.processes).flat_map(|who| self.neighbours(who).map(move |of| (who, of)));
        state.dropped != 0 && pairs().any(|(who, of)| self.has_unknown_loss(state, who, of))
    }

    /// The posts of a pair that are possible now: none while a message waits. Who has lost its receiver does not send, but counts
    /// as if it did: see `advance`.
    pub fn posts(&self, state: &State, pair: usize) -> impl Iterator<Item = Move> {
        let (from, to) = self.pairs[pair];
        let lengths = if self.waiting(state, pair) { 0 } else { self.message_bytes.len() };
        let lengths = if self.is_lost(state, from, to) { 1 } else { lengths };
        self.message_bytes[..lengths].iter().map(move |&bytes| Move::Post { pair, bytes })
    }

    /// The link answers a sender that looks for room also if there is none.
    fn answers_at_once(&self) -> bool {
        matches!(self.config.scheme, Scheme::Hardware { .. })
    }

    /// Whether `from` will never again send to `to`.
    fn is_lost(&self, state: &State, from: u32, to: u32) -> bool {
        self.dead(state, from) || self.dead(state, to) || state.dropped & 1 << self.lane(from, to) != 0
    }

    fn dead(&self, state: &State, who: u32) -> bool {
        state.dead >> who & 1 != 0
    }

    /// Whether a message of pair number `pair` waits for credit.
    pub fn waiting(&self, state: &State, pair: usize) -> bool {
        let (from, to) = self.pairs[pair];
        !self.is_lost(state, from, to) && state.endpoints[from as usize].sender_books(Peer(to)).waiting > 0
    }

    /// The bits of [`Happened`] that say how things stand.
    pub fn state_events(&self, state: &State) -> u16 {
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

    /// Where `from` stands as the sender to `to`.
    fn origin(&self, state: &State, from: u32, to: u32) -> Origin {
        let (outgoing, incoming) = (state.leases[self.lane(from, to)], state.leases[self.lane(to, from)]);
        state.endpoints[from as usize].origin(Peer(to), outgoing, incoming)
    }

    /// The state as numbers that do not grow: equal if and only if the states behave alike.
    pub fn canonical(&self, state: &State, words: &mut Vec<u32>) {
        words.clear();
        words.push(u32::from(state.dead) | u32::from(state.steals) << 8 | u32::from(state.detaches) << 16);
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
                let lease = state.leases[lane];
                let bits = [state.asking, state.attaching, state.unnotified, state.dropped];
                let flags = bits.iter().fold(0, |flags, bits| flags << 1 | (bits >> lane & 1) as u32);
                let data_since_promotion = u32::from(state.data_since_promotion[lane]);
                words.push(
                    state.lanes[lane].len() as u32
                        | flags << 16
                        | u32::from(lease.is_active) << 20
                        | data_since_promotion << 24,
                );
                if state.lanes[lane].is_empty() {
                    continue;
                }
                let origin = self.origin(state, to, from);
                let machine = &state.endpoints[from as usize];
                for item in state.lanes[lane].iter() {
                    match item {
                        Item::Attach { epoch } => words.push(u32::MAX - u32::from(lease.is(*epoch))),
                        Item::Packet(packet) => {
                            machine.canonical_packet(Peer(to), packet, origin, words);
                        }
                    }
                }
            }
        }
    }
}
