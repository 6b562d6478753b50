//! The state of a small world with holders: machines, packets, copies and programs, its moves, and the oracle of MPI's
//! order.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use weir_proto::{
    Action, Body, Command, Config, CopyFault, DataRegion, ENVELOPE_BYTES, Endpoint, Envelope, Event,
    Geometry, HoldMutant, Instant, MessageId, Outcome, Packet, Pattern, PeekThen, Peer, PeerFault,
    ReceiveCommand, Recorder, RemoteAddress, Request, Scheme, SendCommand, SendLevel, Space, Transfer,
};

use super::Orders;
use super::world::{Credits, Step, World};

/// A message: sender and number.
type Name = (u32, u32);

/// A posted receive or claim.
#[derive(Clone, Debug, Hash)]
struct Posted {
    from: Option<u32>,
    tag: Option<u64>,
    claims: bool,
    got: Option<Name>,
    over: bool,
    /// It ended because a sender was lost.
    failed: bool,
}

impl Posted {
    fn accepts(&self, from: u32, tag: u64) -> bool {
        self.from.is_none_or(|wanted| wanted == from) && self.tag.is_none_or(|wanted| wanted == tag)
    }
}

/// What has become of the sender that a world loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fate {
    Alive,
    /// It does nothing more. What it has sent can still arrive.
    Ended,
    /// The receiver has learned it.
    Lost,
}

/// Hashes what is written to it.
struct TextHasher(DefaultHasher);

impl Write for TextHasher {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// A machine. States that differ in another one share it.
#[derive(Clone)]
struct Machine {
    endpoint: Endpoint,
    /// The hash of all its fields but counters.
    hash: u64,
}

impl Machine {
    fn new(endpoint: Endpoint) -> Machine {
        let mut machine = Machine { endpoint, hash: 0 };
        machine.rehash();
        machine
    }

    fn rehash(&mut self) {
        let mut hasher = TextHasher(DefaultHasher::new());
        write!(hasher, "{:?}", self.endpoint).expect("a hasher takes everything");
        self.hash = hasher.0.finish();
    }
}

#[derive(Clone)]
pub(super) struct State {
    machines: Vec<Rc<Machine>>,
    lanes: BTreeMap<(u32, u32), VecDeque<Packet>>,
    /// Copies that each rank has begun, and from whom.
    copies: Vec<VecDeque<(Transfer, Peer)>>,
    next: Vec<usize>,
    /// The tags of the messages of each sender.
    sent: Vec<Vec<u64>>,
    posted: Vec<Posted>,
    /// Receives of claimed messages: the request, and the message.
    settled: BTreeMap<u32, Name>,
    /// Of the sender `LOST`.
    fate: Fate,
    /// Requests to holders on the way to this state. Not part of its hash.
    pub requests: u64,
}

#[derive(Clone, Copy)]
pub(super) enum Move {
    Program(usize),
    Arrival(u32, u32),
    Copy(usize),
    Idle(usize),
    /// The sender that the world loses ends.
    End,
    /// The receiver learns that.
    Loss,
}

/// The sender that a world with a loss loses.
const LOST: u32 = 1;

/// Requests of receives of claimed messages begin here.
const SETTLING: u32 = 1000;
/// The request of every reply.
const REPLY: u32 = u32::MAX;

impl State {
    pub fn new(world: &World, mutant: Option<HoldMutant>) -> State {
        let ranks = world.programs.len();
        let peers = ranks as u32 - 1;
        let fixed = Scheme::Static { piggyback: false };
        let (scheme, quota_slots, start_slots) = match world.credits {
            Credits::Plenty => (fixed, 60, 60),
            Credits::One => (fixed, 1, 1),
            Credits::OnDemand => (Scheme::Demand, 60, 1),
        };
        let region = DataRegion { slots: peers + 1, peers, start_slots: 1, ..DataRegion::default() };
        let config = Config {
            scheme,
            geometry: Geometry::SHARED_MEMORY,
            credit_slots: 1,
            region,
            eager_bytes: 100,
            cross_memory: true,
            remote_inline_bytes: 64,
            max_backlog: u32::MAX,
            max_unexpected: 100,
            unexpected_budget_bytes: 1 << 20,
            bounce_bytes: 1 << 20,
            envelope_budget_bytes: world.envelopes * ENVELOPE_BYTES,
            planned_peers: 0,
            planned_quota_slots: 0,
        };
        let mut endpoint = Endpoint::new(config);
        if let Some(mutant) = mutant {
            endpoint.mutate_holding(mutant);
        }
        let shared = Rc::new(Machine::new(endpoint));
        let mut state = State {
            machines: vec![shared; ranks],
            lanes: BTreeMap::new(),
            copies: vec![VecDeque::new(); ranks],
            next: vec![0; ranks],
            sent: vec![Vec::new(); ranks],
            posted: Vec::new(),
            settled: BTreeMap::new(),
            fate: Fate::Alive,
            requests: 0,
        };
        for rank in 0..ranks {
            for peer in (0..ranks as u32).filter(|&peer| (peer == 0) != (rank == 0)).map(Peer) {
                let (credit_slots, epoch) = (1, 0);
                let connected = Event::Connected { peer, quota_slots, start_slots, credit_slots, epoch };
                state.handle(rank, connected).expect("no message yet");
                let attached = Event::Attached { peer, quota_slots, start_slots, epoch };
                state.handle(rank, attached).expect("no message yet");
            }
        }
        state
    }

    /// A number that differs for states that can go on differently.
    pub fn hash(&self) -> u64 {
        let mut hasher = TextHasher(DefaultHasher::new());
        let machines = self.machines.iter().map(|machine| machine.hash).collect::<Vec<_>>();
        (machines, &self.copies, &self.next, &self.sent, &self.posted, &self.settled, self.fate)
            .hash(&mut hasher.0);
        write!(hasher, "{:?}", self.lanes).expect("a hasher takes everything");
        hasher.0.finish()
    }

    /// The moves to search: all that are possible, or with representative orders all of one rank if that is enough.
    ///
    /// A move reads the first packet of one lane, and appends packets to others. So moves of two ranks can be made in
    /// either order, with the same result. If every lane to a rank has a packet, no other rank can change what this
    /// rank can do next. Then it is enough to search its moves now: they can come first in every run.
    pub fn moves(&self, world: &World, orders: Orders) -> Vec<Move> {
        let ranks = 0..self.machines.len();
        let mut all = Vec::new();
        let mut fewest: Option<Vec<Move>> = None;
        for rank in ranks.clone() {
            let (moves, alone) = self.moves_of(rank, world);
            all.extend(&moves);
            let alone = alone && !moves.is_empty() && orders == Orders::Representative;
            if alone && fewest.as_ref().is_none_or(|fewest| moves.len() < fewest.len()) {
                fewest = Some(moves);
            }
        }
        if let Some(fewest) = fewest {
            return fewest;
        }
        if all.iter().all(|chosen| matches!(chosen, Move::End)) {
            let waits = |rank: &usize| self.machines[*rank].endpoint.waits_for_idle();
            all.extend(ranks.filter(waits).map(Move::Idle));
        }
        all
    }

    /// The moves of a rank, and whether no other rank can change them.
    fn moves_of(&self, rank: usize, world: &World) -> (Vec<Move>, bool) {
        let mut moves = Vec::new();
        if world.loss.is_some() && rank == LOST as usize && self.fate != Fate::Alive {
            return (moves, false);
        }
        if self.next[rank] < world.programs[rank].len() {
            moves.push(Move::Program(rank));
        }
        if !self.copies[rank].is_empty() {
            moves.push(Move::Copy(rank));
        }
        let mut alone = true;
        if world.loss.is_some() {
            // The end of a sender changes the results of the receiver's copies, and lets it learn of the loss.
            match (rank as u32, self.fate) {
                (LOST, _) => {
                    moves.push(Move::End);
                    alone = false;
                }
                (0, Fate::Alive) => alone = false,
                (0, Fate::Ended) => moves.push(Move::Loss),
                _ => {}
            }
        }
        for from in (0..self.machines.len()).filter(|&from| (from == 0) != (rank == 0)) {
            let (from, to) = (from as u32, rank as u32);
            match self.lanes.get(&(from, to)).is_some_and(|lane| !lane.is_empty()) {
                true => moves.push(Move::Arrival(from, to)),
                false => alone &= from == LOST && self.fate != Fate::Alive, // or nothing comes from there
            }
        }
        (moves, alone)
    }

    /// Makes a move.
    ///
    /// # Errors
    /// A violation, in words.
    pub fn apply(&mut self, world: &World, chosen: Move) -> Result<(), String> {
        match chosen {
            Move::Program(rank) => {
                let step = world.programs[rank][self.next[rank]];
                self.next[rank] += 1;
                self.run(rank, step, world.bytes)
            }
            Move::Arrival(from, to) => {
                let packet = *self.lanes[&(from, to)].front().expect("chosen");
                self.handle(to as usize, Event::Arrived { from: Peer(from), packet: &packet })
            }
            Move::Copy(rank) => {
                let (transfer, peer) = self.copies[rank].pop_front().expect("chosen");
                let is_gone = peer == Peer(LOST) && self.fate != Fate::Alive;
                let result = match world.loss {
                    Some(PeerFault::Closed) if is_gone => Err(CopyFault::Closed),
                    Some(_) if is_gone => Err(CopyFault::Gone),
                    _ => Ok(()),
                };
                self.handle(rank, Event::CopyDone { transfer, result })
            }
            Move::Idle(rank) => self.handle(rank, Event::Idle),
            Move::End => {
                let rank = LOST as usize;
                self.fate = Fate::Ended;
                self.next[rank] = world.programs[rank].len();
                self.copies[rank].clear();
                self.lanes.remove(&(0, LOST));
                Rc::make_mut(&mut self.machines[rank]).hash = 0; // its state means nothing any more
                Ok(())
            }
            Move::Loss => {
                let fault = world.loss.expect("a world with a loss");
                self.handle(0, Event::Lost { peer: Peer(LOST), fault })
            }
        }
    }

    fn run(&mut self, rank: usize, step: Step, bytes: u64) -> Result<(), String> {
        let pattern = |from: Option<u32>, tag: Option<u64>| Pattern {
            space: Space::Tagged,
            from: from.map(Peer),
            tag: tag.unwrap_or(0),
            ignore: if tag.is_some() { 0 } else { u64::MAX },
        };
        let request = Request(self.posted.len() as u32);
        let command = match step {
            Step::Send(tag) => {
                let number = self.sent[rank].len() as u32;
                self.sent[rank].push(tag);
                Command::Send(SendCommand {
                    request: Request(number),
                    to: Peer(0),
                    space: Space::Tagged,
                    tag,
                    data: Some(u64::from(number)),
                    bytes,
                    level: SendLevel::Buffered,
                })
            }
            Step::Receive(from, tag) => {
                self.posted.push(Posted { from, tag, claims: false, got: None, over: false, failed: false });
                let (pattern, capacity_bytes) = (pattern(from, tag), bytes);
                Command::Receive(ReceiveCommand { request, pattern, capacity_bytes, multi: None })
            }
            Step::Claim(from, tag) => {
                self.posted.push(Posted { from, tag, claims: true, got: None, over: false, failed: false });
                Command::Peek { request, pattern: pattern(from, tag), then: PeekThen::Claim }
            }
            Step::Reply(to) => Command::Send(SendCommand {
                request: Request(REPLY),
                to: Peer(to),
                space: Space::Tagged,
                tag: 0,
                data: None,
                bytes: 0,
                level: SendLevel::Buffered,
            }),
            Step::Cancel(place) => Command::Cancel { request: Request(place) },
        };
        self.handle(rank, Event::Posted(command))
    }

    fn handle(&mut self, rank: usize, event: Event<'_>) -> Result<(), String> {
        let arrived = match &event {
            Event::Arrived { from, .. } => Some(from.0),
            _ => None,
        };
        let mut actions = Vec::new();
        let driver = Recorder::new(Instant(0), &mut actions);
        let machine = Rc::make_mut(&mut self.machines[rank]);
        machine.endpoint.handle(event, driver).map_err(|refusal| format!("{refusal:?}"))?;
        let counters = machine.endpoint.take_counters();
        machine.rehash();
        self.requests += counters.holder_requests_sent;
        if counters.malformed_packets > 0 {
            return Err(format!("rank {rank} has rejected a packet"));
        }
        let mut claimed = Vec::new();
        for action in actions {
            match action {
                Action::Transmit { to: Peer(LOST), .. } if self.fate != Fate::Alive => {}
                Action::Transmit { to, mut packet, .. } => {
                    if let Body::Rendezvous { address, .. } | Body::Offer { address, .. } = &mut packet.body {
                        *address = RemoteAddress::without_key(1);
                    }
                    self.lanes.entry((rank as u32, to.0)).or_default().push_back(packet);
                }
                Action::Retire => {
                    let lane = self.lanes.get_mut(&(arrived.expect("an arrival"), rank as u32));
                    lane.expect("a lane").pop_front();
                }
                Action::Copy(copy) => self.copies[rank].push_back((copy.transfer, copy.peer)),
                Action::DropPeer { peer: Peer(LOST) } if self.fate != Fate::Alive => {
                    self.fate = Fate::Lost;
                    self.lanes.remove(&(LOST, 0)); // nobody reads what is left
                    self.copies[0].retain(|&(_, peer)| peer != Peer(LOST)); // as drivers have to
                }
                Action::DropPeer { peer } => return Err(format!("rank {rank} lost {peer:?}")),
                Action::Complete { request, outcome } if rank == 0 => {
                    claimed.extend(self.completed(request, outcome)?);
                }
                _ => {}
            }
        }
        for (message, name) in claimed {
            let request = Request(SETTLING + self.settled.len() as u32);
            self.settled.insert(request.0, name);
            let capacity_bytes = 100;
            self.handle(0, Event::Posted(Command::ReceiveClaimed { request, message, capacity_bytes }))?;
        }
        Ok(())
    }

    fn completed(&mut self, request: Request, outcome: Outcome) -> Result<Option<(MessageId, Name)>, String> {
        let name = |envelope: Envelope| (envelope.from.0, envelope.data.unwrap_or(0) as u32);
        if request.0 == REPLY {
            return Ok(None);
        }
        if request.0 >= SETTLING {
            let expected = self.settled.get(&request.0).copied();
            if self.is_loss(&outcome) && expected.is_some_and(|(from, _)| from == LOST) {
                return Ok(None);
            }
            let Outcome::Received { envelope, .. } = outcome else { return Err(format!("{outcome:?}")) };
            return match expected == Some(name(envelope)) {
                true => Ok(None),
                false => Err(format!("claimed {expected:?}, received {envelope:?}")),
            };
        }
        let place = request.0 as usize;
        let (got, message) = match outcome {
            Outcome::Received { envelope, .. } => (Some(name(envelope)), None),
            Outcome::Found { envelope, claimed } => (Some(name(envelope)), claimed),
            Outcome::Absent | Outcome::Canceled => (None, None),
            _ if self.is_loss(&outcome) && self.posted[place].from.is_none_or(|from| from == LOST) => {
                self.posted[place].failed = true;
                (None, None)
            }
            other => return Err(format!("receive {place} ended with {other:?}")),
        };
        self.posted[place].over = true;
        self.posted[place].got = got;
        if let Some(got) = got
            && self.posted.iter().filter(|posted| posted.got == Some(got)).count() > 1
        {
            return Err(format!("message {got:?} was received twice"));
        }
        Ok(message.zip(got))
    }

    /// Whether a request may end so, because a sender is lost.
    fn is_loss(&self, outcome: &Outcome) -> bool {
        self.fate == Fate::Lost && matches!(outcome, Outcome::Lost { peer: None | Some(Peer(LOST)), .. })
    }

    /// The message of each receive.
    pub fn result(&self) -> Vec<Option<Name>> {
        self.posted.iter().map(|posted| posted.got).collect()
    }

    /// Nothing can happen any more.
    ///
    /// # Errors
    /// A violation, in words.
    pub fn check_end(&self, world: &World) -> Result<(), String> {
        let owner = |name: Name| self.posted.iter().position(|posted| posted.got == Some(name));
        for (place, posted) in self.posted.iter().enumerate() {
            let Some((from, number)) = posted.got else { continue };
            if !posted.accepts(from, self.sent[from as usize][number as usize]) {
                return Err(format!("{posted:?} does not accept its message"));
            }
            for older in 0..number {
                let accepts = posted.accepts(from, self.sent[from as usize][older as usize]);
                let in_time = owner((from, older)).is_some_and(|owner| owner < place || posted.claims);
                // A receive that failed may have had it.
                let had_it = |other: &Posted| {
                    other.failed && other.accepts(from, self.sent[from as usize][older as usize])
                };
                if accepts && !in_time && !self.posted.iter().any(had_it) {
                    return Err(format!("{from}:{number} overtook {older}: {:?}", self.posted));
                }
            }
        }
        for (from, tags) in self.sent.iter().enumerate() {
            // What the lost sender held is lost with it.
            let tags = if self.is_lost(from) { &[][..] } else { tags };
            for (number, &tag) in tags.iter().enumerate() {
                let waits = |posted: &Posted| !posted.over && posted.accepts(from as u32, tag);
                if owner((from as u32, number as u32)).is_none() && self.posted.iter().any(waits) {
                    return Err(format!(
                        "{from}:{number} and a receive wait for each other: {:?}",
                        self.posted
                    ));
                }
            }
        }
        if let Some(posted) = self.posted.iter().find(|posted| posted.claims && !posted.over) {
            return Err(format!("{posted:?} never ended"));
        }
        // After an orderly close a receive may wait for others, or is canceled.
        let waits = |posted: &&Posted| !posted.over && posted.from.is_none_or(|from| from == LOST);
        if self.is_lost(LOST as usize)
            && world.loss != Some(PeerFault::Closed)
            && let Some(posted) = self.posted.iter().find(waits)
        {
            return Err(format!("{posted:?} waits for a lost sender"));
        }
        self.check_places(world)
    }

    fn is_lost(&self, from: usize) -> bool {
        from == LOST as usize && self.fate == Fate::Lost
    }

    /// Each message of no bytes that nobody has received is in one place: with its sender, or whole at the receiver. A lost
    /// sender takes its messages along.
    fn check_places(&self, world: &World) -> Result<(), String> {
        let received = self.posted.iter().filter(|posted| posted.got.is_some()).count() as u64;
        let sent = self.sent.iter().map(Vec::len).sum::<usize>() as u64;
        let senders = self.machines[1..].iter().flat_map(|machine| machine.endpoint.undelivered());
        let with_senders: u64 = senders.map(|undelivered| undelivered.messages).sum();
        let kept = u64::from(self.machines[0].endpoint.unexpected_count());
        if world.bytes == 0 && world.loss.is_none() && sent != received + with_senders + kept {
            return Err(format!(
                "{sent} sent, {received} received, {with_senders} with senders, {kept} kept"
            ));
        }
        Ok(())
    }
}
