//! Search of small worlds in which a receiver drops envelopes and asks the holders: no message is lost, doubled or
//! overtaken, and nothing hangs.
//!
//! Two senders and a receiver run fixed programs. The search visits every interleaving of their steps, of arrivals and of
//! copies. A world with a program that ends has finitely many states, so they need no canonical form: two states are
//! equal if all their fields are.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use weir_proto::{
    Action, Command, Config, DataRegion, ENVELOPE_BYTES, Endpoint, Event, Geometry, HoldMutant, Instant,
    Outcome, Packet, Pattern, PeekThen, Peer, ReceiveCommand, Recorder, RemoteAddress, Request, Scheme,
    SendCommand, SendLevel, Space, Transfer,
};

/// A step of a program.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// A message with this tag to the receiver.
    Send(u64),
    /// From this sender or anybody, with this tag or any.
    Receive(Option<u32>, Option<u64>),
    /// Claims a message, and receives it at once.
    Claim(Option<u32>, Option<u64>),
    /// Cancels the receive of this number.
    Cancel(u32),
    /// The receiver sends a message to this sender, which nobody receives. It uses up credits.
    Reply(u32),
}

/// A small world.
#[derive(Clone, Debug)]
pub struct World {
    /// Its name.
    pub name: &'static str,
    /// The program of each rank. Rank 0 receives.
    pub programs: Vec<Vec<Step>>,
    /// Envelopes that the receiver keeps.
    pub envelopes: u64,
    /// Payload of each message. Unit: bytes.
    pub bytes: u64,
    /// The credits of each pair.
    pub credits: Credits,
}

/// The credits of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credits {
    /// Static, more than a program needs.
    Plenty,
    /// Static, a single one.
    One,
    /// On demand, one of its own for each sender and one that they share.
    OnDemand,
}

/// What a search has found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// States visited.
    pub states: usize,
    /// The state limit ended the search.
    pub limited: bool,
    /// The first violation.
    pub violation: Option<String>,
    /// Most requests to holders in a state.
    pub requests: u64,
}

/// The worlds of the suite.
pub fn worlds() -> Vec<World> {
    use Step::{Cancel, Claim, Receive, Reply, Send};
    let mut worlds = Vec::new();
    // Messages of 100 bytes are too long for an eager offer.
    let plenty = [(0, 0), (1, 0), (2, 0), (0, 8), (1, 8), (0, 100), (1, 100)];
    let plenty = plenty.map(|(envelopes, bytes)| (Credits::Plenty, envelopes, bytes));
    let few = [Credits::One, Credits::OnDemand].map(|credits| [(credits, 0, 0), (credits, 1, 8)]);
    for (credits, envelopes, bytes) in plenty.into_iter().chain(few.into_iter().flatten()) {
        let mut add = |name, programs: Vec<Vec<Step>>| {
            worlds.push(World { name, programs, envelopes, bytes, credits });
        };
        add(
            "from anybody",
            vec![
                vec![Receive(None, Some(2)), Receive(None, None), Receive(None, Some(1))],
                vec![Send(1), Send(2)],
                vec![Send(1)],
            ],
        );
        add(
            "two holders",
            vec![
                vec![
                    Receive(Some(2), Some(1)),
                    Receive(None, Some(2)),
                    Receive(None, None),
                    Receive(Some(1), None),
                ],
                vec![Send(1), Send(2)],
                vec![Send(2), Send(1)],
            ],
        );
        add(
            "two under way",
            vec![
                vec![Receive(Some(1), Some(2)), Receive(Some(1), None), Receive(Some(1), Some(1))],
                vec![Send(1), Send(1), Send(2)],
            ],
        );
        add(
            "one by one",
            vec![
                vec![
                    Receive(None, None),
                    Receive(None, Some(2)),
                    Receive(None, Some(1)),
                    Receive(None, None),
                ],
                vec![Send(1), Send(1), Send(2), Send(1)],
            ],
        );
        add(
            "after a decided one",
            vec![vec![Receive(Some(1), Some(2)), Receive(Some(1), Some(2))], vec![Send(1), Send(2)]],
        );
        add(
            "canceled",
            vec![
                vec![Receive(None, Some(1)), Receive(None, Some(2)), Cancel(0), Receive(None, None)],
                vec![Send(1), Send(2)],
            ],
        );
        add(
            "claimed",
            vec![
                vec![Claim(None, Some(2)), Receive(None, None), Claim(Some(1), None)],
                vec![Send(1), Send(2)],
                vec![Send(2)],
            ],
        );
        add(
            "claim without credits",
            vec![
                vec![Claim(Some(1), None), Reply(1), Receive(Some(1), None), Receive(Some(1), None)],
                vec![Send(1), Send(1), Send(1)],
            ],
        );
    }
    worlds
}

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
}

impl Posted {
    fn accepts(&self, from: u32, tag: u64) -> bool {
        self.from.is_none_or(|wanted| wanted == from) && self.tag.is_none_or(|wanted| wanted == tag)
    }
}

#[derive(Clone)]
struct State {
    machines: Vec<Endpoint>,
    lanes: BTreeMap<(u32, u32), VecDeque<Packet>>,
    /// Copies that each rank has begun.
    copies: Vec<VecDeque<Transfer>>,
    next: Vec<usize>,
    /// The tags of the messages of each sender.
    sent: Vec<Vec<u64>>,
    posted: Vec<Posted>,
    /// Receives of claimed messages: the request, and the message.
    settled: BTreeMap<u32, Name>,
}

#[derive(Clone, Copy)]
enum Move {
    Program(usize),
    Arrival(u32, u32),
    Copy(usize),
    Idle(usize),
}

/// Requests of receives of claimed messages begin here.
const SETTLING: u32 = 1000;
/// The request of every reply.
const REPLY: u32 = u32::MAX;

impl State {
    fn new(world: &World, mutant: Option<HoldMutant>) -> State {
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
        let mut state = State {
            machines: vec![Endpoint::new(config); ranks],
            lanes: BTreeMap::new(),
            copies: vec![VecDeque::new(); ranks],
            next: vec![0; ranks],
            sent: vec![Vec::new(); ranks],
            posted: Vec::new(),
            settled: BTreeMap::new(),
        };
        for rank in 0..ranks {
            if let Some(mutant) = mutant {
                state.machines[rank].mutate_holding(mutant);
            }
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

    fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        format!("{:?}{:?}{:?}", self.machines, self.lanes, self.copies).hash(&mut hasher);
        (&self.next, &self.sent, &self.posted).hash(&mut hasher);
        hasher.finish()
    }

    fn moves(&self, world: &World) -> Vec<Move> {
        let mut moves = Vec::new();
        for (rank, program) in world.programs.iter().enumerate() {
            if self.next[rank] < program.len() {
                moves.push(Move::Program(rank));
            }
            if !self.copies[rank].is_empty() {
                moves.push(Move::Copy(rank));
            }
        }
        let full = self.lanes.iter().filter(|(_, lane)| !lane.is_empty());
        moves.extend(full.map(|(&(from, to), _)| Move::Arrival(from, to)));
        if moves.is_empty() {
            let waits = |rank: &usize| self.machines[*rank].waits_for_idle();
            moves.extend((0..self.machines.len()).filter(waits).map(Move::Idle));
        }
        moves
    }

    fn apply(&mut self, world: &World, chosen: Move) -> Result<(), String> {
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
                let transfer = self.copies[rank].pop_front().expect("chosen");
                self.handle(rank, Event::CopyDone { transfer, result: Ok(()) })
            }
            Move::Idle(rank) => self.handle(rank, Event::Idle),
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
                self.posted.push(Posted { from, tag, claims: false, got: None, over: false });
                let (pattern, capacity_bytes) = (pattern(from, tag), bytes);
                Command::Receive(ReceiveCommand { request, pattern, capacity_bytes, multi: None })
            }
            Step::Claim(from, tag) => {
                self.posted.push(Posted { from, tag, claims: true, got: None, over: false });
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
        self.machines[rank].handle(event, driver).map_err(|refusal| format!("{refusal:?}"))?;
        let mut claimed = Vec::new();
        for action in actions {
            match action {
                Action::Transmit { to, mut packet, .. } => {
                    if let weir_proto::Body::Rendezvous { address, .. }
                    | weir_proto::Body::Offer { address, .. } = &mut packet.body
                    {
                        *address = RemoteAddress::without_key(1);
                    }
                    self.lanes.entry((rank as u32, to.0)).or_default().push_back(packet);
                }
                Action::Retire => {
                    let lane = self.lanes.get_mut(&(arrived.expect("an arrival"), rank as u32));
                    lane.expect("a lane").pop_front();
                }
                Action::Copy(copy) => self.copies[rank].push_back(copy.transfer),
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

    fn completed(
        &mut self,
        request: Request,
        outcome: Outcome,
    ) -> Result<Option<(weir_proto::MessageId, Name)>, String> {
        let name = |envelope: weir_proto::Envelope| (envelope.from.0, envelope.data.unwrap_or(0) as u32);
        if request.0 == REPLY {
            return Ok(None);
        }
        if request.0 >= SETTLING {
            let Outcome::Received { envelope, .. } = outcome else { return Err(format!("{outcome:?}")) };
            let expected = self.settled.get(&request.0).copied();
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

    /// Nothing can happen any more.
    fn check_end(&self) -> Result<(), String> {
        let owner = |name: Name| self.posted.iter().position(|posted| posted.got == Some(name));
        for (place, posted) in self.posted.iter().enumerate() {
            let Some((from, number)) = posted.got else { continue };
            if !posted.accepts(from, self.sent[from as usize][number as usize]) {
                return Err(format!("{posted:?} does not accept its message"));
            }
            for older in 0..number {
                let accepts = posted.accepts(from, self.sent[from as usize][older as usize]);
                let in_time = owner((from, older)).is_some_and(|owner| owner < place || posted.claims);
                if accepts && !in_time {
                    return Err(format!("{from}:{number} overtook {older}: {:?}", self.posted));
                }
            }
        }
        for (from, tags) in self.sent.iter().enumerate() {
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
        match self.machines.iter().position(|machine| machine.counters().malformed_packets > 0) {
            Some(rank) => Err(format!("rank {rank} has rejected a packet")),
            None => Ok(()),
        }
    }
}

/// Visits every state of a world, at most `most_states`, with a wrong rule if one is given.
pub fn search(world: &World, mutant: Option<HoldMutant>, most_states: usize) -> Found {
    let mut found = Found::default();
    let mut seen = HashSet::new();
    let mut open = vec![State::new(world, mutant)];
    while let Some(state) = open.pop() {
        if !seen.insert(state.hash()) {
            continue;
        }
        found.states += 1;
        found.requests = found.requests.max(state.machines[0].counters().holder_requests_sent);
        if found.states >= most_states {
            found.limited = true;
            return found;
        }
        let moves = state.moves(world);
        if moves.is_empty()
            && let Err(violation) = state.check_end()
        {
            found.violation = Some(violation);
            return found;
        }
        for chosen in moves {
            let mut after = state.clone();
            if let Err(violation) = after.apply(world, chosen) {
                found.violation = Some(violation);
                return found;
            }
            open.push(after);
        }
    }
    found
}

/// Searches all worlds and then shows that each wrong rule is detected. Prints a table. Returns whether all is well.
pub fn prove(most_states: usize) -> bool {
    println!("| holding: world | credits | envelopes | bytes | states | result |\n|---|---|---|---|---|---|");
    let mut good = true;
    for world in worlds() {
        let Found { states, limited, violation, requests } = search(&world, None, most_states);
        good &= violation.is_none() && (requests > 0 || world.envelopes > 0);
        let result = violation.unwrap_or(String::from(if limited { "ok, limited" } else { "ok" }));
        let World { name, envelopes, bytes, credits, .. } = world;
        println!("| {name} | {credits:?} | {envelopes} | {bytes} | {states} | {result} |");
    }
    println!("\n| wrong rule of holding | detected in | as |\n|---|---|---|");
    for mutant in HoldMutant::ALL {
        let caught = worlds().into_iter().find_map(|world| {
            let violation = search(&world, Some(mutant), most_states).violation?;
            Some((world.name, violation))
        });
        good &= caught.is_some();
        let (name, violation) = caught.unwrap_or(("nowhere", String::new()));
        println!("| {mutant:?} | {name} | {} |", violation.chars().take(60).collect::<String>());
    }
    good
}
