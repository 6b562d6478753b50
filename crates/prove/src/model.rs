//! The world that a search explores: its states, the moves that are possible in each, and the setup that decides both.
//! [`crate::explore`] visits all states of a setup; [`crate::worlds`] makes random moves.
//!
//! A [`State`] holds clones of [`Endpoint`], the endpoint machine that ships, and the packets of each ordered pair in
//! first-in first-out order. A [`Move`] is one thing that can happen next:
//!
//! - A receiver retrieves the packet at the head of a lane, or a program posts a message.
//! - A sender learns that slots are free (schemes without credits), gets its lane, or gets a request to detach.
//! - A timer expires, an endpoint crashes, or an endpoint learns that a peer is lost.
//! - A link becomes busy or ready, or a sender without an endpoint takes quota (dynamic credits).
//! - With machines beside the endpoints: a program fetches a word of a peer, joins a group, or starts an operation of it
//!   (`machines.rs`).
//!
//! Senders never finish: whenever no message of a pair waits, the program may post another one. Every receive is posted
//! just before its message is retrieved, so no message is unexpected. Other tests cover matching.
//!
//! A sender that asks for a lane gets it at once. While an earlier lane of it is read, it waits until at most
//! [`Setup::overlap`] earlier leases remain. Its `Connected` and the receiver's `Attached` are two moves, in any order.
//! There is no clock: each timer may expire at any moment. With [`Setup::busy_links`] a link may refuse packets at any
//! moment, and is ready at any later one. With [`Setup::deferring`] credits that are due after an arrival leave at any
//! later moment.
//!
//! After each move [`Setup::advance`] checks the invariants, from outside and in the machines' totals (`checks.rs`).
//! `step.rs` performs moves. [`Setup::canonical`] decides which states are equal. None of them knows how states are
//! searched.
//!
//! Worked state, one sender with a quota of 2, one credit slot. The sender has posted twice (0 credits, 2 packets in
//! the lane). Moves: retrieve the first packet, or post a third message, which waits. After two retrievals a credit
//! packet is in flight back, and its retrieval sends the third message.

mod checks;
mod fetches;
mod groups;
mod happened;
mod machines;
mod moves;
mod step;

use std::collections::BTreeSet;
use std::sync::Arc;

use weir_proto::canonical::{Lease, Origin};
use weir_proto::flow::Mutant;
use weir_proto::offload::Offloaded;
use weir_proto::{Body, Config, DataRegion, Endpoint, Event, Instant, Packet, Peer, Recorder, Scheme, Timer};

pub use checks::Violation;
pub use happened::{Effect, Happened};
use machines::Machines;
pub use machines::{Collective, OffloadSetup, WrongMachine};
pub use moves::Move;

/// A world to explore.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Name in the table.
    pub name: String,
    /// Number of endpoints.
    pub processes: u32,
    /// Pairs of a sender and its receiver. Credits flow back even without data in the other direction.
    pub pairs: Vec<(u32, u32)>,
    /// For each endpoint, its neighbours in the pairs, one bit each: [`neighbours`].
    pub neighbours: Vec<u8>,
    /// Settings of every endpoint. `region.slots` and `region.peers` follow from the quota and the neighbours.
    pub config: Config,
    /// Data slots of each sender. With dynamic credits: its equal share of the region. Unit: slots.
    pub quota_slots: u32,
    /// Dynamic credits: additional slots of the region, for the first senders. Unit: slots.
    pub extra_slots: u32,
    /// The rules: those that ship, or a mutant.
    pub rule: Rule,
    /// Dynamic credits: every endpoint expects one more sender, which never attaches and steals at any moment.
    pub stealing: bool,
    /// Maximum number of these moves, if bounded.
    pub max_steals: Option<u8>,
    /// No endpoint has a lane at first. An endpoint gets one when it has messages to send or credits to return.
    pub cold: bool,
    /// Pairs whose sender may get a detach request at any moment.
    pub detaching: Vec<(u32, u32)>,
    /// Maximum number of these moves, if bounded.
    pub max_detaches: Option<u8>,
    /// Number of earlier leases of a sender that may be unread when it gets a new lane.
    pub overlap: u8,
    /// Checks that control packets are no activity. This needs a count in the state, so there are more states.
    pub watch_activity: bool,
    /// Also uses the machine's own checks of I1, I3 and I6; else only checks from outside.
    pub inner_checks: bool,
    /// Every link may become busy at any moment. Only worlds of two endpoints.
    pub busy_links: bool,
    /// Every driver defers the credits that are due after an arrival. `CreditsDue` comes at any later moment.
    pub deferring: bool,
    /// This endpoint may crash at any moment.
    pub may_crash: Option<u32>,
    /// Possible message lengths. Unit: bytes.
    pub message_bytes: Vec<u64>,
    /// The machines beside the endpoints.
    pub offload: OffloadSetup,
}

/// For each endpoint, its neighbours in the pairs, one bit each.
pub fn neighbours(processes: u32, pairs: &[(u32, u32)]) -> Vec<u8> {
    let mut neighbours = vec![0; processes as usize];
    for &(from, to) in pairs {
        neighbours[from as usize] |= 1 << to;
        neighbours[to as usize] |= 1 << from;
    }
    neighbours
}

/// The rules of the machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Those that ship.
    Shipped,
    /// Those that ship, with so many credit slots that the check of unread packets never delays a grant. Then the
    /// threshold alone must keep I2, as the papers argue.
    ThresholdAlone,
    /// As `ThresholdAlone`, with the threshold `q div n + 1`.
    DivByNPlus1,
    /// As `ThresholdAlone`, with the threshold `q div n`.
    DivByN,
    /// As `ThresholdAlone`, with a mutant of dynamic credits.
    Wrong(Mutant),
    /// As `ThresholdAlone`, with a wrong machine beside the endpoints.
    WrongMachine(WrongMachine),
}

/// An item of a lane.
#[derive(Clone, Copy, Debug)]
enum Item {
    /// The receiver has not yet got `Attached` for this lease.
    Attach {
        epoch: u16,
    },
    Packet(Packet),
}

/// One bit per lane. Lane number: `from * processes + to`.
type Bits = u64;

/// All endpoints and all packets in flight. Clones share unchanged parts.
#[derive(Clone, Debug)]
pub struct State {
    endpoints: Vec<Arc<Endpoint>>,
    /// By lane: its packets.
    lanes: Vec<Arc<Vec<Item>>>,
    /// By lane: the last lease of its sender.
    leases: Arc<Vec<Lease>>,
    /// By lane: the number of the next message, modulo 2^32.
    numbers: Arc<Vec<u32>>,
    /// By lane: slots and credits that its sender has spent in its last lease, modulo 2^32.
    spent: Arc<Vec<u32>>,
    /// By lane: data slots retrieved since its sender's activity last rose, up to the number that matters.
    data_since_promotion: Arc<Vec<u8>>,
    /// The lane has packets.
    busy: Bits,
    /// The sender waits for free slots.
    asking: Bits,
    /// The sender has asked for a lane and has none.
    attaching: Bits,
    /// The sender has a lane but no `Connected` yet.
    unnotified: Bits,
    /// The sender has dropped the receiver.
    dropped: Bits,
    /// The link of the lane is busy: it takes no packet, or one more if the bit in `takes_one` is set too.
    congested: Bits,
    takes_one: Bits,
    /// The link has refused a packet of the lane, and its sender waits for it to be ready.
    refused: Bits,
    /// The driver of the sender has deferred credits for the receiver.
    deferred: Bits,
    /// The timers that are set, with their endpoints.
    timers: Arc<BTreeSet<(u32, Timer)>>,
    machines: Arc<Machines>,
    /// One bit per endpoint: it has crashed.
    dead: u8,
    /// Counts of bounded moves.
    steals: u8,
    detaches: u8,
}

impl Setup {
    /// The initial state: all neighbours connected, nothing sent.
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
            spent: Arc::new(vec![0; n * n]),
            data_since_promotion: Arc::new(vec![0; n * n]),
            busy: 0,
            asking: 0,
            attaching: 0,
            unnotified: 0,
            dropped: 0,
            congested: 0,
            takes_one: 0,
            refused: 0,
            deferred: 0,
            timers: Arc::default(),
            machines: Arc::new(self.initial_machines()),
            dead: 0,
            steals: 0,
            detaches: 0,
        };
        for us in (0..self.processes).filter(|_| self.has_machines()) {
            self.expose_word(&mut state, us).expect("a new region");
        }
        if !self.detaching.is_empty() && self.message_bytes.iter().any(|&bytes| bytes > 0) {
            state.endpoints.iter_mut().for_each(|endpoint| Arc::make_mut(endpoint).rely_on_receives());
        }
        if self.cold {
            return state;
        }
        let mut actions = Vec::new();
        for us in 0..self.processes {
            let endpoint = Arc::make_mut(&mut state.endpoints[us as usize]);
            for peer in self.neighbours(us).map(Peer) {
                for event in [self.attached(us, peer.0, 0), self.connected(peer.0, 0)] {
                    let driver = Recorder::new(Instant(0), &mut actions);
                    endpoint.handle(event, driver).expect("only commands are refused");
                }
                let leases = Arc::make_mut(&mut state.leases);
                leases[self.lane(us, peer.0)] = Lease { epoch: 0, is_active: true };
                let quota_slots = self.lane_slots(peer.0);
                let credit_slots = self.config.credit_slots;
                match self.rule {
                    Rule::DivByNPlus1 => endpoint.set_threshold(peer, quota_slots / credit_slots + 1),
                    Rule::DivByN => endpoint.set_threshold(peer, quota_slots / credit_slots),
                    Rule::Shipped | Rule::ThresholdAlone | Rule::Wrong(_) | Rule::WrongMachine(_) => {}
                }
            }
            if self.rule != Rule::Shipped && !self.on_demand() {
                endpoint.rely_on_thresholds();
            }
        }
        assert!(actions.is_empty(), "setting up asks for {actions:?}");
        state
    }

    fn dynamic(&self) -> bool {
        matches!(self.config.scheme, Scheme::Dynamic { .. })
    }

    fn on_demand(&self) -> bool {
        self.config.scheme == Scheme::Demand
    }

    fn config_of(&self, us: u32) -> Config {
        Config { region: self.region_of(us), ..self.config }
    }

    fn region_of(&self, us: u32) -> DataRegion {
        let peers = self.neighbours[us as usize].count_ones() + u32::from(self.stealing);
        let slots = self.quota_slots * peers + self.extra_slots;
        DataRegion { slots, peers, ..self.config.region }
    }

    /// Maximum of slots of one sender at an endpoint.
    fn lane_slots(&self, at: u32) -> u32 {
        if self.config.scheme.shares_region() { self.region_of(at).slots } else { self.quota_slots }
    }

    /// Starting credits of a sender at an endpoint.
    fn start_slots(&self, at: u32) -> u32 {
        match self.config.scheme {
            Scheme::Dynamic { .. } | Scheme::Demand => self.config.region.start_slots,
            Scheme::AdaptiveBacklog { .. } => self.config.region.start_slots.min(self.quota_slots),
            _ => self.lane_slots(at),
        }
    }

    fn attached(&self, at: u32, from: u32, epoch: u16) -> Event<'static> {
        let (quota_slots, start_slots) = (self.lane_slots(at), self.start_slots(at));
        Event::Attached { peer: Peer(from), quota_slots, start_slots, epoch }
    }

    fn connected(&self, to: u32, epoch: u16) -> Event<'static> {
        let (quota_slots, start_slots) = (self.lane_slots(to), self.start_slots(to));
        let credit_slots = self.config.credit_slots;
        Event::Connected { peer: Peer(to), quota_slots, start_slots, credit_slots, epoch }
    }

    /// The neighbours of `us`.
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

    /// Pair number `pair`: the pairs that send messages, then those that fetch words.
    pub fn pair(&self, pair: usize) -> (u32, u32) {
        let messages = self.pairs.len();
        if pair < messages { self.pairs[pair] } else { self.offload.fetching[pair - messages] }
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
        let item = items.remove(0);
        state.busy &= !(u64::from(items.is_empty()) << lane);
        if let Item::Packet(Packet { body: Body::Offloaded(_), payload_bytes: 1.., .. }) = item {
            self.pop_payload(state, lane);
        }
    }

    /// Slots filled by data and number of credit packets in the lane of a pair, for the lease that is read.
    fn filled(&self, state: &State, from: u32, to: u32) -> (u32, u32) {
        let lane = &state.lanes[self.lane(from, to)];
        self.count(lane.iter().take_while(|item| matches!(item, Item::Packet(_))))
    }

    /// The same for the lease that is written.
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

    /// Whether the link answers a query at once, even if no slot is free.
    fn answers_at_once(&self) -> bool {
        matches!(self.config.scheme, Scheme::Hardware { .. })
    }

    /// Whether `from` will never send to `to` again.
    fn is_lost(&self, state: &State, from: u32, to: u32) -> bool {
        self.dead(state, from) || self.dead(state, to) || state.dropped & 1 << self.lane(from, to) != 0
    }

    fn dead(&self, state: &State, who: u32) -> bool {
        state.dead >> who & 1 != 0
    }

    /// Whether something of pair number `pair` waits for credit.
    pub fn waiting(&self, state: &State, pair: usize) -> bool {
        let (from, to) = self.pair(pair);
        !self.is_lost(state, from, to) && state.endpoints[from as usize].sender_totals(Peer(to)).waiting > 0
    }

    /// The bits of [`Happened`] that describe the state.
    pub fn state_events(&self, state: &State) -> u32 {
        let mut bits = 0;
        if (0..self.pairs.len()).any(|pair| self.waiting(state, pair)) {
            bits |= Happened::Waiting.bit();
        }
        if self.has_machines() && self.any_answer_waits(state) {
            bits |= Happened::AnswerWaiting.bit();
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

    /// The origin of `from` as the sender to `to`.
    fn origin(&self, state: &State, from: u32, to: u32) -> Origin {
        let (outgoing, incoming) = (state.leases[self.lane(from, to)], state.leases[self.lane(to, from)]);
        state.endpoints[from as usize].origin(Peer(to), outgoing, incoming)
    }

    /// The canonical form of the state: equal if and only if the states behave alike.
    pub fn canonical(&self, state: &State, words: &mut Vec<u32>) {
        words.clear();
        words.push(u32::from(state.dead) | u32::from(state.steals) << 8 | u32::from(state.detaches) << 16);
        for us in 0..self.processes {
            if self.dead(state, us) {
                continue;
            }
            let machine = &state.endpoints[us as usize];
            let offloaded = |to: Peer, packet: &Offloaded, number, words: &mut Vec<u32>| {
                self.canonical_offloaded(state, (us, to.0), packet, number, words);
            };
            machine.canonical(|peer| self.origin(state, peer.0, us), offloaded, words);
            self.canonical_machine(state, us, words);
        }
        // A machine that waits for a timer says so in its own form. These words show a timer that it does not wait for.
        words.push(state.timers.len() as u32);
        for (who, Timer { peer, purpose }) in state.timers.iter() {
            words.push(who | peer.0 << 8 | (*purpose as u32) << 16);
        }
        for from in 0..self.processes {
            for to in 0..self.processes {
                let lane = self.lane(from, to);
                let lease = state.leases[lane];
                let waits = [state.asking, state.attaching, state.unnotified, state.dropped];
                let bits = waits.into_iter().chain([
                    state.congested,
                    state.takes_one,
                    state.refused,
                    state.deferred,
                ]);
                let flags = bits.fold(0, |flags, bits| flags << 1 | (bits >> lane & 1) as u32);
                let data_since_promotion = u32::from(state.data_since_promotion[lane]);
                words.push(
                    state.lanes[lane].len() as u32
                        | flags << 15
                        | u32::from(lease.is_active) << 23
                        | data_since_promotion << 24,
                );
                if state.lanes[lane].is_empty() {
                    continue;
                }
                let origin = self.origin(state, to, from);
                let machine = &state.endpoints[from as usize];
                // Demand is measured from what the receiver has granted in the lease that it reads.
                let mut granted_total = state.endpoints[to as usize].granted_total_to(Peer(from));
                for item in state.lanes[lane].iter() {
                    match item {
                        Item::Attach { epoch } => {
                            granted_total = 0;
                            words.push(u32::MAX - u32::from(lease.is(*epoch)));
                        }
                        Item::Packet(packet) => {
                            machine.canonical_packet(Peer(to), packet, origin, granted_total, words);
                            if let Body::Offloaded(offloaded) = &packet.body {
                                self.canonical_offloaded(state, (from, to), offloaded, packet.number, words);
                            }
                        }
                    }
                }
                self.canonical_payloads(state, lane, words);
            }
        }
    }
}
