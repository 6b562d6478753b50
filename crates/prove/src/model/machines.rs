//! The offloaded machines of a search, with their programs and their memory. `fetches.rs` and `groups.rs` say what
//! the programs must see.
//!
//! A world with machines has one [`Offload`] beside each endpoint. Its driver acts at once. Packets that a machine sends
//! follow as events of the endpoint, as with every driver.
//!
//! Words and vectors take unboundedly many values, and a machine takes no decision by them. So the canonical form has
//! names instead: a fetch is its position among those of its pair, and a vector is the list of what was combined.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::Arc;

use weir_proto::offload::canonical::Names;
use weir_proto::offload::group::{GroupPacket, Operation};
use weir_proto::offload::{Combination, Offload, OffloadCommand, Offloaded, WORD_BYTES, WordUpdate};
use weir_proto::{
    BufferId, Instant, Machine, MachineDriver, MachineEvent, MachineTimer, Memory, Operand, Outcome,
    Outgoing, Payload, Peer, Request,
};

use super::checks::{Violation, guarded, violation};
use super::fetches::{Fetch, UPDATE};
use super::{Effect, Happened, Rule, Setup, State};

/// The machines of a world and what their programs do. The default is a world without machines.
#[derive(Clone, Debug, Default)]
pub struct OffloadSetup {
    /// Pairs of an endpoint and one whose word it fetches and changes.
    pub fetching: Vec<(u32, u32)>,
    /// Maximum of fetches of a pair without an answer.
    pub max_fetches: usize,
    /// The endpoints of a group, by rank.
    pub members: Vec<u32>,
    /// What they do together.
    pub collective: Collective,
    /// Maximum of operations of the group that a member has started and that have not ended.
    pub max_rounds: u32,
    /// Length of a vector. Unit: words.
    pub vector_words: u32,
}

/// The operation of the group of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Collective {
    /// Reduction to the first member.
    #[default]
    Reduce,
    /// Reduction whose result all members get.
    AllReduce,
    /// Barrier by pairwise exchange.
    Barrier,
    /// Exchange with the next member.
    Exchange,
    /// Gather at the first member.
    Gather,
    /// Scatter from the first member.
    Scatter,
    /// All-gather.
    AllGather,
    /// All-to-all.
    AllToAll,
}

/// A wrong machine. The driver of the search makes it from the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrongMachine {
    /// The target of a fetch answers twice.
    AnswersTwice,
    /// The target of a fetch does not answer if the initiator has another one under way.
    ForgetsEarlierFetches,
    /// Contributions are combined from the left.
    CombinesFromTheLeft,
    /// A contribution that comes before its turn is not kept.
    LosesEarlyContributions,
    /// The last of three members gets no packet of a barrier.
    ForgetsTheLastMember,
}

/// An element of a vector: the contributions that were combined, by rank and number of the reduction.
pub(super) type Element = Vec<(u32, u32)>;

/// A vector or a part of one.
type Contents = Vec<Element>;

/// The machines of all endpoints. Empty in a world without machines.
#[derive(Clone, Debug, Default)]
pub(super) struct Machines {
    pub ranks: Vec<MachineRank>,
    /// By lane from the initiator to the target: the fetches without an answer, oldest first.
    pub fetches: Vec<VecDeque<Fetch>>,
    /// By lane: the payload of the contributions in it, oldest first.
    payloads: Vec<VecDeque<Contents>>,
    /// The packets that the machine of the acting endpoint has sent. Empty between moves.
    outgoing: VecDeque<Outgoing>,
}

/// The machines of one endpoint, and their memory.
#[derive(Clone, Debug, Default)]
pub(super) struct MachineRank {
    offload: Offload,
    /// Its word. Every fetch adds one.
    word: u64,
    /// The buffers of outstanding requests. That of a fetch has no elements.
    requests: BTreeMap<u32, Contents>,
    buffers: BTreeMap<u32, Contents>,
    pub joined: bool,
    /// Operations of the group that it has started, and those of them that have ended, modulo 2^32.
    pub started: u32,
    pub ended: u32,
    /// The requests and numbers of the others, oldest first.
    pub rounds: VecDeque<(Request, u32)>,
}

impl MachineRank {
    /// A new request with this buffer.
    pub fn request(&mut self, contents: Contents) -> Request {
        let number = (0..).find(|number| !self.requests.contains_key(number)).expect("a free number");
        self.requests.insert(number, contents);
        Request(number)
    }

    pub fn accepts_operation(&self, group: u32) -> bool {
        self.offload.accepts_operation(group)
    }

    /// A packet that owned this buffer has left.
    pub fn end_buffer(&mut self, buffer: BufferId) {
        assert!(self.buffers.remove(&buffer.0).is_some(), "{buffer:?} is freed twice");
        self.offload.answer_left(buffer);
    }

    pub fn has_buffers(&self) -> bool {
        !self.buffers.is_empty()
    }

    fn memory(&mut self, memory: Memory, bytes: u32) -> &mut [Element] {
        let (contents, offset) = match memory {
            Memory::Request { request, offset } => (self.requests.get_mut(&request.0), offset),
            Memory::Buffer { buffer, offset } => (self.buffers.get_mut(&buffer.0), offset),
            Memory::Region { .. } => panic!("groups use no region"),
        };
        &mut contents.expect("memory in use")[words(offset, bytes)]
    }
}

fn is_of_barrier(packet: &Offloaded) -> bool {
    matches!(packet, Offloaded::Group(GroupPacket::Part { operation: Operation::Barrier, .. }))
}

/// The words in `bytes` bytes from `offset` on.
fn words(offset: u64, bytes: u32) -> std::ops::Range<usize> {
    let begin = (offset / u64::from(WORD_BYTES)) as usize;
    begin..begin + (bytes / WORD_BYTES) as usize
}

/// A call of a machine that needs a check.
pub(super) enum Call {
    /// It has changed the word.
    Updated { old: u64 },
    /// It has completed `request`. `word`: what it has placed before. `contents`: of the buffer.
    Completed { request: Request, outcome: Outcome, word: Option<u64>, contents: Contents },
    /// It has done something that no machine of a search may do.
    Unexpected(String),
}

struct Driver<'machines> {
    wrong: Option<WrongMachine>,
    rank: &'machines mut MachineRank,
    outgoing: &'machines mut VecDeque<Outgoing>,
    /// The payload of the arrived packet.
    arrived: Contents,
    /// Other fetches of its sender are under way.
    more_fetches: bool,
    placed: Option<(Request, u64)>,
    calls: Vec<Call>,
    /// Bits of [`Happened`].
    happened: u32,
}

impl Driver<'_> {
    fn operand(&mut self, from: Operand, bytes: u32) -> Contents {
        match from {
            Operand::Arrived => self.arrived[words(0, bytes)].to_vec(),
            Operand::Memory(memory) => self.rank.memory(memory, bytes).to_vec(),
        }
    }

    fn unexpected(&mut self, call: String) {
        self.calls.push(Call::Unexpected(call));
    }
}

impl MachineDriver for Driver<'_> {
    fn now(&mut self) -> Instant {
        Instant(0)
    }

    fn set_timer(&mut self, timer: MachineTimer, _at: Instant) {
        self.unexpected(format!("timer {timer:?}"));
    }

    fn cancel_timer(&mut self, _timer: MachineTimer) {}

    fn send(&mut self, to: Peer, number: u32, packet: Offloaded, payload: Option<Payload>) {
        let copies = match (self.wrong, packet.is_answer()) {
            (Some(WrongMachine::AnswersTwice), true) => 2,
            (Some(WrongMachine::ForgetsEarlierFetches), true) if self.more_fetches => 0,
            (Some(WrongMachine::ForgetsTheLastMember), _) if is_of_barrier(&packet) && to == Peer(2) => 0,
            _ => 1,
        };
        let outgoing = Outgoing { to, number, packet, payload };
        self.outgoing.extend(std::iter::repeat_n(outgoing, copies));
    }

    fn reject(&mut self, from: Peer) {
        self.unexpected(format!("rejection of a packet of {}", from.0));
    }

    fn update_word(&mut self, key: u64, offset: u64, update: &WordUpdate) -> Option<u64> {
        if (key, offset, update) != (0, 0, &UPDATE) {
            self.unexpected(format!("{update:?} of word {offset} in region {key}"));
        }
        let old = self.rank.word;
        self.rank.word += 1;
        self.calls.push(Call::Updated { old });
        Some(old)
    }

    fn place_word(&mut self, request: Request, word: u64, _bytes: u32) {
        self.placed = Some((request, word));
    }

    fn allocate(&mut self, bytes: u32) -> BufferId {
        let buffers = &mut self.rank.buffers;
        let name = (0..).find(|name| !buffers.contains_key(name)).expect("a free name");
        buffers.insert(name, vec![Element::new(); words(0, bytes).len()]);
        BufferId(name)
    }

    fn free(&mut self, buffer: BufferId) {
        assert!(self.rank.buffers.remove(&buffer.0).is_some(), "{buffer:?} is freed twice");
    }

    fn copy(&mut self, from: Operand, into: Memory, bytes: u32) {
        if let Operand::Arrived = from {
            self.happened |= Happened::EarlyContribution.bit();
            if self.wrong == Some(WrongMachine::LosesEarlyContributions) {
                return;
            }
        }
        let from = self.operand(from, bytes);
        self.rank.memory(into, bytes).clone_from_slice(&from);
    }

    fn combine(&mut self, from: Operand, into: Memory, combination: Combination, bytes: u32) {
        assert!(combination.is_valid() && combination.divides(bytes), "{bytes} bytes of {combination:?}");
        let from = self.operand(from, bytes);
        for (into, from) in self.rank.memory(into, bytes).iter_mut().zip(from) {
            let at = if self.wrong == Some(WrongMachine::CombinesFromTheLeft) { 0 } else { into.len() };
            into.splice(at..at, from);
        }
    }

    fn complete(&mut self, request: Request, outcome: Outcome) {
        let word = self.placed.take().filter(|(placed, _)| *placed == request).map(|(_, word)| word);
        let contents = self.rank.requests.remove(&request.0).expect("a request completes once");
        self.calls.push(Call::Completed { request, outcome, word, contents });
    }
}

impl Setup {
    /// Whether the world has machines beside the endpoints.
    pub fn has_machines(&self) -> bool {
        !self.offload.fetching.is_empty() || !self.offload.members.is_empty()
    }

    pub(super) fn initial_machines(&self) -> Machines {
        if !self.has_machines() {
            return Machines::default();
        }
        let lanes = (self.processes * self.processes) as usize;
        Machines {
            ranks: vec![MachineRank::default(); self.processes as usize],
            fetches: vec![VecDeque::new(); lanes],
            payloads: vec![VecDeque::new(); lanes],
            outgoing: VecDeque::new(),
        }
    }

    /// The program of `us` asks its machine for something. Returns the number of the first packet that it sends.
    pub(super) fn post_offloaded(
        &self,
        state: &mut State,
        us: u32,
        command: OffloadCommand,
        effect: &mut Effect,
    ) -> Result<Option<u32>, Violation> {
        self.offload(state, us, MachineEvent::Posted(command), effect)?;
        Ok(state.machines.outgoing.front().map(|outgoing| outgoing.number))
    }

    /// Passes an event to the machine of `us`. What it sends waits in `outgoing`.
    pub(super) fn offload(
        &self,
        state: &mut State,
        us: u32,
        event: MachineEvent<OffloadCommand, Offloaded>,
        effect: &mut Effect,
    ) -> Result<(), Violation> {
        let from = if let MachineEvent::Arrived { from, .. } = &event { Some(from.0) } else { None };
        let machines = Arc::make_mut(&mut state.machines);
        let Machines { ranks, fetches, payloads, outgoing } = machines;
        let lane = from.map(|from| self.lane(from, us));
        let rank = &mut ranks[us as usize];
        let mut offload = mem::take(&mut rank.offload);
        let mut driver = Driver {
            wrong: if let Rule::WrongMachine(wrong) = self.rule { Some(wrong) } else { None },
            rank,
            outgoing,
            arrived: lane.and_then(|lane| payloads[lane].front().cloned()).unwrap_or_default(),
            more_fetches: lane.is_some_and(|lane| fetches[lane].len() > 1),
            placed: None,
            calls: Vec::new(),
            happened: 0,
        };
        guarded(|| offload.handle(event, &mut driver).expect("within the bounds"))?;
        let Driver { calls, happened, .. } = driver;
        machines.ranks[us as usize].offload = offload;
        effect.happened |= happened;
        for call in calls {
            match call {
                Call::Updated { old } => self.word_updated(state, us, from, old)?,
                Call::Completed { request, outcome, word, contents } => {
                    let of_group = |(of_group, _): &(Request, u32)| *of_group == request;
                    if state.machines.ranks[us as usize].rounds.iter().any(of_group) {
                        self.round_ended(state, us, request, outcome, &contents, effect)?;
                    } else {
                        self.fetch_ended(state, us, request, outcome, word, effect)?;
                    }
                }
                Call::Unexpected(call) => {
                    return violation("machine", format!("unexpected call of the machine of {us}: {call}"));
                }
            }
        }
        Ok(())
    }

    /// Whether an answer of a machine waits for credit.
    pub(super) fn any_answer_waits(&self, state: &State) -> bool {
        let waits = |us: u32, peer| state.endpoints[us as usize].sender_totals(Peer(peer)).answers > 0;
        (0..self.processes).any(|us| self.neighbours(us).any(|peer| waits(us, peer)))
    }

    /// The next packet that the machine of the acting endpoint has sent.
    pub(super) fn next_outgoing(&self, state: &mut State) -> Option<Outgoing> {
        if state.machines.outgoing.is_empty() {
            return None;
        }
        Arc::make_mut(&mut state.machines).outgoing.pop_front()
    }

    /// A packet with `bytes` bytes of payload from a buffer enters a lane.
    pub(super) fn push_payload(
        &self,
        state: &mut State,
        (from, to): (u32, u32),
        (buffer, offset): (BufferId, u64),
        bytes: u32,
    ) {
        let machines = Arc::make_mut(&mut state.machines);
        let memory = Memory::Buffer { buffer, offset };
        let payload = machines.ranks[from as usize].memory(memory, bytes).to_vec();
        machines.payloads[self.lane(from, to)].push_back(payload);
    }

    /// A packet with payload of a machine leaves a lane.
    pub(super) fn pop_payload(&self, state: &mut State, lane: usize) {
        Arc::make_mut(&mut state.machines).payloads[lane].pop_front();
    }

    /// `who` has crashed. Its neighbours learn it by their own events.
    pub(super) fn crash_machine(&self, state: &mut State, who: u32) {
        if !self.has_machines() {
            return;
        }
        let lanes: Vec<usize> = self.neighbours(who).map(|peer| self.lane(who, peer)).collect();
        let machines = Arc::make_mut(&mut state.machines);
        lanes.into_iter().for_each(|lane| machines.fetches[lane].clear());
    }

    /// The canonical form of the machines of `us` and of its program.
    pub(super) fn canonical_machine(&self, state: &State, us: u32, words: &mut Vec<u32>) {
        if !self.has_machines() {
            return;
        }
        let names = MachineNames { setup: self, state, us };
        let MachineRank { offload, word: _, requests: _, buffers: _, joined, started, ended, rounds: _ } =
            &state.machines.ranks[us as usize];
        offload.canonical(&names, words);
        let base = self.first_round(state);
        words.extend([u32::from(*joined), started.wrapping_sub(base), ended.wrapping_sub(base)]);
        for peer in self.neighbours(us) {
            let fetches = &state.machines.fetches[self.lane(us, peer)];
            let bits = fetches.iter().fold(1, |bits, fetch| bits << 1 | u32::from(fetch.value.is_some()));
            words.push(bits);
        }
    }

    /// The canonical form of a packet of a machine from `from` to `to`, without its payload.
    pub(super) fn canonical_offloaded(
        &self,
        state: &State,
        (from, to): (u32, u32),
        packet: &Offloaded,
        number: u32,
        words: &mut Vec<u32>,
    ) {
        match packet {
            Offloaded::Atomic(packet) => self.canonical_atomic(state, (from, to), packet, number, words),
            Offloaded::Group(packet) => self.canonical_group(state, packet, number, words),
        }
    }

    /// The canonical form of the payloads in a lane.
    pub(super) fn canonical_payloads(&self, state: &State, lane: usize, words: &mut Vec<u32>) {
        let Some(payloads) = state.machines.payloads.get(lane) else { return };
        for payload in payloads {
            self.canonical_contents(state, payload, words);
        }
    }

    fn canonical_contents(&self, state: &State, contents: &[Element], words: &mut Vec<u32>) {
        let base = self.first_round(state);
        words.push(contents.len() as u32);
        for element in contents {
            words.push(element.len() as u32);
            words.extend(element.iter().flat_map(|(rank, number)| [*rank, number.wrapping_sub(base)]));
        }
    }
}

struct MachineNames<'a> {
    setup: &'a Setup,
    state: &'a State,
    us: u32,
}

impl Names for MachineNames<'_> {
    fn fetch(&self, number: u32, request: Request) -> u32 {
        let Self { setup, state, us } = self;
        let name = |peer| {
            let mut fetches = state.machines.fetches[setup.lane(*us, peer)].iter();
            let position = fetches.position(|fetch| (fetch.number, fetch.request) == (number, request))?;
            Some(peer << 8 | position as u32)
        };
        setup.neighbours(*us).find_map(name).unwrap_or(u32::MAX)
    }

    fn operation(&self, _group: u32, number: u32) -> u32 {
        number.wrapping_sub(self.setup.first_round(self.state))
    }

    fn contents(&self, memory: Memory, bytes: u32, out: &mut Vec<u32>) {
        let rank = &self.state.machines.ranks[self.us as usize];
        let contents = match memory {
            Memory::Request { request, .. } => &rank.requests[&request.0],
            Memory::Buffer { buffer, .. } => &rank.buffers[&buffer.0],
            Memory::Region { .. } => panic!("groups use no region"),
        };
        self.setup.canonical_contents(self.state, &contents[words(0, bytes)], out);
    }
}
