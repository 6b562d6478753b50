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
mod step;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use weir_proto::canonical::{Origin, Stay};
use weir_proto::flow::Mutant;
use weir_proto::{Config, DataRegion, Endpoint, Event, Instant, Packet, Peer, Scheme};

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
    /// Dynamic credits: the region has so many slots more; they are the first senders'. Unit: slots.
    pub extra_slots: u32,
    /// By which rules: our own, or one that is known to be wrong.
    pub rule: Rule,
    /// Dynamic credits: a sender more is expected everywhere, never comes, and steals at any moment.
    pub thief: bool,
    /// So often in all, if that is bounded.
    pub most_steals: Option<u8>,
    /// At first nobody has a lane anywhere: who has something to send, or credits to return, gets one.
    pub cold: bool,
    /// Senders, with their receivers, that may be asked to leave at any moment.
    pub leaving: Vec<(u32, u32)>,
    /// So often in all, if that is bounded.
    pub most_leaves: Option<u8>,
    /// Who comes back has a new lane while so many earlier ones of it are not read to their ends.
    pub overlap: u8,
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
    /// `from` is told that it has a lane at `to`.
    Tell {
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
    },
    /// `from` is asked to leave the mailbox of `to`.
    Leave {
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
    Learn {
        /// Who.
        who: u32,
        /// Of whom.
        of: u32,
    },
    /// This endpoint dies, and everybody knows.
    Die {
        /// Who.
        who: u32,
    },
}

impl Move {
    /// It happens by itself if all programs are silent and nobody in the environment wants anything.
    pub fn is_quiet(&self) -> bool {
        match self {
            Move::Retrieve { .. }
            | Move::FindRoom { .. }
            | Move::Tell { .. }
            | Move::Retry { .. }
            | Move::Learn { .. } => true,
            Move::Post { .. } | Move::Steal { .. } | Move::Leave { .. } | Move::Die { .. } => false,
        }
    }
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
    /// A receiver was not ready.
    NotReady,
    /// It was never ready: the retries are used up, the connection is gone.
    GaveUp,
    /// The buffers of a connection grew.
    Growth,
    /// A sender left.
    Left,
    /// A sender that had come back read what was granted in an earlier stay.
    StaleGrant,
    /// A sender learned of a request for a stay that has not begun for it.
    EarlyRequest,
    /// Somebody died.
    Died,
}

impl Happened {
    /// All, in the order of the table.
    pub const ALL: [Happened; 16] = [
        Happened::Waiting,
        Happened::CreditPacket,
        Happened::Piggyback,
        Happened::Blocked,
        Happened::ShortGrant,
        Happened::Excess,
        Happened::Deficit,
        Happened::Theft,
        Happened::ControlWaiting,
        Happened::NotReady,
        Happened::GaveUp,
        Happened::Growth,
        Happened::Left,
        Happened::StaleGrant,
        Happened::EarlyRequest,
        Happened::Died,
    ];

    /// How the table calls it.
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
            Happened::NotReady => "not ready",
            Happened::GaveUp => "gave up",
            Happened::Growth => "growth",
            Happened::Left => "left",
            Happened::StaleGrant => "stale grant",
            Happened::EarlyRequest => "early request",
            Happened::Died => "died",
        }
    }

    /// Its bit.
    pub fn bit(self) -> u16 {
        1 << self as u16
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
    stays: Arc<Vec<Stay>>,
    /// By lane: the number of the message that leaves next. Unit: messages, modulo 2^32.
    numbers: Arc<Vec<u32>>,
    /// By lane: data slots retrieved since its sender last became more active, as far as they are of interest.
    earned: Arc<Vec<u8>>,
    /// The sender waits to be told of room.
    asking: Bits,
    /// The sender wants a lane and has none.
    joining: Bits,
    /// The sender has a lane and has not been told.
    untold: Bits,
    /// The sender has given up the receiver.
    severed: Bits,
    /// Bit by endpoint: it has died.
    dead: u8,
    /// Moves that are bounded: how many there were.
    steals: u8,
    leaves: u8,
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
            stays: Arc::new(vec![Stay::default(); n * n]),
            numbers: Arc::new(vec![0; n * n]),
            earned: Arc::new(vec![0; n * n]),
            asking: 0,
            joining: 0,
            untold: 0,
            severed: 0,
            dead: 0,
            steals: 0,
            leaves: 0,
        };
        if self.cold {
            return state;
        }
        let mut actions = Vec::new();
        for us in 0..self.processes {
            let endpoint = Arc::make_mut(&mut state.endpoints[us as usize]);
            for peer in (0..self.processes).filter(|&peer| self.neighbours(us, peer)).map(Peer) {
                endpoint.handle(Instant(0), self.attached(us, peer.0, 0), &mut actions);
                endpoint.handle(Instant(0), self.connected(peer.0, 0), &mut actions);
                let stays = Arc::make_mut(&mut state.stays);
                stays[self.lane(us, peer.0)] = Stay { epoch: 0, lasts: true };
                let quota_slots = self.lane_slots(peer.0);
                let credit_slots = self.config.credit_slots;
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
        let region =
            DataRegion { slots: self.quota_slots * peers + self.extra_slots, peers, ..self.config.region };
        Config { region, ..self.config }
    }

    /// The most that one sender can own at an endpoint.
    fn lane_slots(&self, at: u32) -> u32 {
        if self.dynamic() { self.config_of(at).region.slots } else { self.quota_slots }
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

    fn neighbours(&self, a: u32, b: u32) -> bool {
        self.pairs.contains(&(a, b)) || self.pairs.contains(&(b, a))
    }

    fn lane(&self, from: u32, to: u32) -> usize {
        (from * self.processes + to) as usize
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
        moves.clear();
        for from in 0..self.processes {
            for to in 0..self.processes {
                let lane = self.lane(from, to);
                if !state.lanes[lane].is_empty() {
                    moves.push(Move::Retrieve { from, to });
                } else if state.severed & 1 << lane != 0 && state.severed & 1 << self.lane(to, from) == 0 {
                    moves.push(Move::Learn { who: to, of: from });
                }
                if state.asking & 1 << lane != 0
                    && (self.answers_at_once() || self.filled_last(state, from, to).0 < self.lane_slots(to))
                {
                    moves.push(Move::FindRoom { from, to });
                }
                if state.untold & 1 << lane != 0 {
                    moves.push(Move::Tell { from, to });
                }
            }
        }
        for (pair, &(from, to)) in self.pairs.iter().enumerate() {
            // Who has lost its receiver does not send, but counts as if it did: see `advance`.
            if self.is_lost(state, from, to) {
                moves.push(Move::Post { pair, bytes: 0 });
            } else if !self.waiting(state, pair) {
                moves.extend(self.message_bytes.iter().map(|&bytes| Move::Post { pair, bytes }));
            }
        }
        for who in (0..self.processes).filter(|&who| !self.dead(state, who)) {
            if state.endpoints[who as usize].next_deadline().is_some() {
                moves.push(Move::Retry { who });
            }
        }
        if self.thief && self.most_steals.is_none_or(|most| state.steals < most) {
            moves.extend((0..self.processes).map(|at| Move::Steal { at }));
        }
        if self.most_leaves.is_none_or(|most| state.leaves < most) {
            for &(from, to) in &self.leaving {
                let lane = self.lane(from, to);
                if state.stays[lane].lasts && state.untold & 1 << lane == 0 && !self.is_lost(state, from, to)
                {
                    moves.push(Move::Leave { from, to });
                }
            }
        }
        moves.extend(self.mortal.filter(|&who| !self.dead(state, who)).map(|who| Move::Die { who }));
    }

    /// The link answers a sender that looks for room also if there is none.
    fn answers_at_once(&self) -> bool {
        matches!(self.config.scheme, Scheme::Hardware { .. })
    }

    /// Whether `from` will never again send to `to`.
    fn is_lost(&self, state: &State, from: u32, to: u32) -> bool {
        self.dead(state, from) || self.dead(state, to) || state.severed & 1 << self.lane(from, to) != 0
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

    /// Where `from` stands as the sender to `to`.
    fn origin(&self, state: &State, from: u32, to: u32) -> Origin {
        let (there, here) = (state.stays[self.lane(from, to)], state.stays[self.lane(to, from)]);
        state.endpoints[from as usize].origin(Peer(to), there, here)
    }

    /// The state as numbers that do not grow: equal if and only if the states behave alike.
    pub fn canonical(&self, state: &State, words: &mut Vec<u32>) {
        words.clear();
        words.push(u32::from(state.dead) | u32::from(state.steals) << 8 | u32::from(state.leaves) << 16);
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
                let stay = state.stays[lane];
                let bits = [state.asking, state.joining, state.untold, state.severed];
                let flags = bits.iter().fold(0, |flags, bits| flags << 1 | (bits >> lane & 1) as u32);
                let earned = u32::from(state.earned[lane]);
                words.push(
                    state.lanes[lane].len() as u32 | flags << 16 | u32::from(stay.lasts) << 20 | earned << 24,
                );
                if state.lanes[lane].is_empty() {
                    continue;
                }
                let (there, here) = (self.origin(state, to, from), self.origin(state, from, to));
                for item in state.lanes[lane].iter() {
                    match item {
                        Item::Attach { epoch } => words.push(u32::MAX - u32::from(stay.is(*epoch))),
                        Item::Packet(packet) => {
                            Endpoint::canonical_packet(here.credit_packets_read, packet, there, words);
                        }
                    }
                }
            }
        }
    }
}
