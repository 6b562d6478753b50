//! The offloaded machines of a rank in the simulator, and the memory that they name: the words that others may change,
//! buffers, and the vectors of the program.
//!
//! The processor of the rank drives them, or its NIC does (`nic_endpoint.rs`). Both pass events, and then perform and price
//! what follows ([`Results`]). A machine combines real vectors, so results do not depend on where it runs. This file does
//! not know prices, paths and ranks.
//!
//! A command that exceeds a bound of its machine waits here, and later ones behind it, as in a program that tries again.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use weir_proto::offload::atomics::{AtomicsCommand, ExposedRegion, FetchCommand};
use weir_proto::offload::group::{GroupCommand, Membership};
use weir_proto::offload::{
    Combination, Offload, OffloadCommand, Offloaded, WordOperation, WordType, WordUpdate,
};
use weir_proto::table::Table;
use weir_proto::{
    BufferId, Instant, Machine, MachineDriver, MachineEvent, MachineTimer, Memory, Operand, Outcome,
    Outgoing, Payload, Peer, Refusal, Request, Source, TimerQueue,
};

use crate::cost::MemoryWork;
use crate::program::{OffloadCall, Status, WORDS};

/// The region that holds the words of a rank.
const REGION: u64 = 0;
const WORD_BYTES: u64 = 8;
const REGION_BYTES: u64 = WORDS as u64 * WORD_BYTES;

/// The end of an operation of the program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub request: Request,
    outcome: Outcome,
    /// The word that a fetch has placed.
    word: u64,
}

impl Ended {
    /// What the program learns. `rank`: the rank of a peer.
    pub fn status(&self, rank: impl FnOnce(Peer) -> u32) -> Status {
        match self.outcome {
            Outcome::Done => Status { bytes: self.word, ..Status::default() },
            Outcome::Lost { peer, fault } => {
                Status { source: peer.map_or(0, rank), fault: Some(fault), ..Status::default() }
            }
            Outcome::Refused => Status { refused: true, ..Status::default() },
            other => unreachable!("{other:?} of an offloaded operation"),
        }
    }
}

/// What follows from an event.
#[derive(Debug, Default)]
pub(super) struct Results {
    /// Packets for the endpoint beside the machines.
    pub outgoing: Vec<Outgoing>,
    /// Operations of the program that have ended.
    pub ended: Vec<Ended>,
    /// Peers that have sent a packet that makes no sense.
    pub rejected: Vec<Peer>,
    /// Words that the program watches and that have changed, each with the operation that has ended.
    pub seen: Vec<(Request, u64)>,
    /// What was done with memory.
    pub work: MemoryWork,
}

/// The memory that machines of a rank name.
#[derive(Debug, Default)]
struct MachineMemory {
    /// The words of the rank. Empty: nobody has named one, and all are 0.
    words: Vec<u8>,
    buffers: Table<Vec<u8>>,
    /// Vectors of operations under way, by request. The program has them too.
    vectors: BTreeMap<u32, Rc<RefCell<Vec<u8>>>>,
}

/// A word of its own that the program polls.
#[derive(Clone, Copy, Debug)]
struct Watch {
    request: Request,
    word: u32,
    /// The operation ends when the word is not this.
    seen: u64,
}

impl MachineMemory {
    fn word(&mut self, word: u32) -> u64 {
        let read =
            WordUpdate { operation: WordOperation::Read, word_type: WordType::U64, operand: 0, compare: 0 };
        self.update(u64::from(word) * WORD_BYTES, &read)
    }

    /// Changes a word and returns the old one. The offset is a multiple of its length.
    fn update(&mut self, offset: u64, update: &WordUpdate) -> u64 {
        self.with(Memory::Region { key: REGION, offset }, update.word_type.bytes(), |word| {
            let mut old = [0; WORD_BYTES as usize];
            old[..word.len()].copy_from_slice(word);
            let old = u64::from_le_bytes(old);
            word.copy_from_slice(&update.apply(old).to_le_bytes()[..word.len()]);
            old
        })
    }

    /// Shows `bytes` bytes of memory to `work`. The machine has checked the bounds.
    fn with<R>(&mut self, memory: Memory, bytes: u32, work: impl FnOnce(&mut [u8]) -> R) -> R {
        let part = |offset: u64| offset as usize..offset as usize + bytes as usize;
        match memory {
            Memory::Request { request, offset } => {
                let vector = self.vectors.get(&request.0).expect("a machine names requests that are pending");
                work(&mut vector.borrow_mut()[part(offset)])
            }
            Memory::Region { offset, .. } => {
                self.words.resize(REGION_BYTES as usize, 0);
                work(&mut self.words[part(offset)])
            }
            Memory::Buffer { buffer, offset } => {
                let buffer = self.buffers.get_mut(buffer.0).expect("a machine names its own buffers");
                work(&mut buffer[part(offset)])
            }
        }
    }
}

/// The machines, their memory and their timers.
#[derive(Debug)]
pub(super) struct Machines {
    offload: Offload,
    memory: MachineMemory,
    timers: TimerQueue<MachineTimer>,
    /// Commands that exceed a bound for now, or wait behind such a one, with the operations of the program.
    waiting: VecDeque<(Request, OffloadCommand)>,
    watches: Vec<Watch>,
}

impl Default for Machines {
    fn default() -> Machines {
        let mut machines = Machines {
            offload: Offload::default(),
            memory: MachineMemory::default(),
            timers: TimerQueue::default(),
            waiting: VecDeque::new(),
            watches: Vec::new(),
        };
        let region = ExposedRegion { bytes: REGION_BYTES, readable: true, writable: true };
        let expose = AtomicsCommand::Expose { key: REGION, region };
        machines.handle(Instant(0), MachineEvent::Posted(OffloadCommand::Atomics(expose)), &[]);
        machines
    }
}

impl Machines {
    /// The program asks for something. `peer`: our number of a rank.
    pub fn post(
        &mut self,
        now: Instant,
        request: Request,
        call: OffloadCall,
        mut peer: impl FnMut(u32) -> Peer,
    ) -> Results {
        let command = match call {
            OffloadCall::Fetch { to, word, update } => {
                let offset = u64::from(word) * WORD_BYTES;
                let fetch =
                    FetchCommand { request, peer: peer(to), key: REGION, offset, update, fetch: true };
                OffloadCommand::Atomics(AtomicsCommand::Fetch(fetch))
            }
            OffloadCall::Join { group, members, rank, patience_ns, shape } => {
                let members = members.into_iter().map(peer).collect();
                let membership = Membership { group, members, rank, patience_ns, shape };
                OffloadCommand::Group(GroupCommand::Join(membership))
            }
            OffloadCall::MultiSend { .. } => unreachable!("the endpoint does that"),
            OffloadCall::OwnWord { .. } | OffloadCall::WatchWord { .. } => {
                unreachable!("`access_own_word` does that")
            }
            OffloadCall::Leave { group } => OffloadCommand::Group(GroupCommand::Leave { group }),
            OffloadCall::Start { group, operation, vector } => {
                self.memory.vectors.insert(request.0, vector);
                OffloadCommand::Group(GroupCommand::Start { request, group, operation })
            }
        };
        self.waiting.push_back((request, command));
        self.drive(now, None, &[])
    }

    /// The program reads, changes or watches a word of its own. Returns the word if the operation ends at once.
    pub fn access_own_word(&mut self, request: Request, call: &OffloadCall) -> Option<u64> {
        match *call {
            OffloadCall::OwnWord { word, update } => {
                let old = self.memory.update(u64::from(word) * WORD_BYTES, &update);
                assert!(self.watches.is_empty(), "a program that polls a word does nothing else");
                Some(old)
            }
            OffloadCall::WatchWord { word, seen } => {
                let found = self.memory.word(word);
                if found != seen {
                    return Some(found);
                }
                self.watches.push(Watch { request, word, seen });
                None
            }
            ref other => unreachable!("{other:?} is of other ranks"),
        }
    }

    /// Handles an event that is no command of the program. `payload`: that of the packet that has arrived.
    pub fn handle(
        &mut self,
        now: Instant,
        event: MachineEvent<OffloadCommand, Offloaded>,
        payload: &[u8],
    ) -> Results {
        self.drive(now, Some(event), payload)
    }

    fn drive(
        &mut self,
        now: Instant,
        event: Option<MachineEvent<OffloadCommand, Offloaded>>,
        payload: &[u8],
    ) -> Results {
        let Machines { offload, memory, timers, waiting, watches } = self;
        let mut calls = Calls { now, memory, timers, payload, placed: 0, results: Results::default() };
        if let Some(event) = event {
            offload.handle(event, &mut calls).expect("only commands of the program are refused");
        }
        while let Some((request, command)) = waiting.front() {
            match offload.handle(MachineEvent::Posted(command.clone()), &mut calls) {
                Ok(()) => match command {
                    // These complete by themselves.
                    OffloadCommand::Atomics(_) | OffloadCommand::Group(GroupCommand::Start { .. }) => {}
                    OffloadCommand::Group(_) => calls.complete(*request, Outcome::Done),
                },
                Err(Refusal::Groups) => calls.complete(*request, Outcome::Refused),
                Err(_) => break, // the end of another operation makes room
            }
            waiting.pop_front();
        }
        let Calls { memory, mut results, .. } = calls;
        if results.work.words > 0 {
            watches.retain(|&Watch { request, word, seen }| {
                let found = memory.word(word);
                if found != seen {
                    results.seen.push((request, found));
                }
                found == seen
            });
        }
        results
    }

    /// The payload of a packet that a machine has sent.
    pub fn payload(&mut self, source: Source, bytes: u32) -> Vec<u8> {
        let memory = match source {
            Source::Request { request, offset } => Memory::Request { request, offset },
            Source::Region { key, offset } => Memory::Region { key, offset },
            Source::Buffer { buffer, offset } => Memory::Buffer { buffer, offset },
            Source::Bounce { .. } | Source::None => return Vec::new(),
        };
        self.memory.with(memory, bytes, |bytes| bytes.to_vec())
    }

    /// A packet that owned this buffer has left.
    pub fn end_buffer(&mut self, buffer: BufferId) {
        self.memory.buffers.remove(buffer.0).expect("a packet owns a buffer of a machine");
        self.offload.answer_left(buffer);
    }

    /// The time of the first timer.
    #[inline]
    pub fn first_timer(&self) -> Option<Instant> {
        self.timers.earliest()
    }

    /// Removes the first timer that has expired.
    pub fn take_expired(&mut self, now: Instant) -> Option<MachineTimer> {
        self.timers.take_expired(now)
    }

    /// Whether no operation is pending, and nothing is left.
    pub fn is_quiescent(&self) -> bool {
        let MachineMemory { buffers, vectors, .. } = &self.memory;
        let memory_is_free = buffers.count() == 0 && vectors.is_empty();
        let nobody_waits = self.waiting.is_empty() && self.watches.is_empty();
        self.offload.is_quiescent() && nobody_waits && self.timers.is_empty() && memory_is_free
    }
}

/// The driver of one event.
struct Calls<'a> {
    now: Instant,
    memory: &'a mut MachineMemory,
    timers: &'a mut TimerQueue<MachineTimer>,
    payload: &'a [u8],
    /// The word that was placed for the operation that ends next.
    placed: u64,
    results: Results,
}

impl Calls<'_> {
    fn operand(&mut self, operand: Operand, bytes: u32) -> Vec<u8> {
        match operand {
            Operand::Arrived => {
                let mut payload = self.payload.to_vec();
                payload.resize(bytes as usize, 0); // a packet that a NIC machine has made has no payload
                payload
            }
            Operand::Memory(memory) => self.memory.with(memory, bytes, |bytes| bytes.to_vec()),
        }
    }
}

impl MachineDriver for Calls<'_> {
    fn now(&mut self) -> Instant {
        self.now
    }

    fn set_timer(&mut self, timer: MachineTimer, at: Instant) {
        self.timers.set(timer, at);
    }

    fn cancel_timer(&mut self, timer: MachineTimer) {
        self.timers.cancel(timer);
    }

    fn send(&mut self, to: Peer, number: u32, packet: Offloaded, payload: Option<Payload>) {
        self.results.outgoing.push(Outgoing { to, number, packet, payload });
    }

    fn reject(&mut self, from: Peer) {
        self.results.rejected.push(from);
    }

    fn update_word(&mut self, _: u64, offset: u64, update: &WordUpdate) -> Option<u64> {
        if !offset.is_multiple_of(update.word_type.bytes().into()) {
            return None;
        }
        self.results.work.words += 1;
        Some(self.memory.update(offset, update))
    }

    fn place_word(&mut self, _: Request, word: u64, _: u32) {
        self.placed = word;
    }

    fn allocate(&mut self, bytes: u32) -> BufferId {
        BufferId(self.memory.buffers.insert(vec![0; bytes as usize]))
    }

    fn free(&mut self, buffer: BufferId) {
        self.memory.buffers.remove(buffer.0).expect("a machine frees its own buffers, once");
    }

    fn copy(&mut self, from: Operand, into: Memory, bytes: u32) {
        let from = self.operand(from, bytes);
        self.memory.with(into, bytes, |into| into.copy_from_slice(&from));
        self.results.work.copied_bytes += u64::from(bytes);
    }

    fn combine(&mut self, from: Operand, into: Memory, combination: Combination, bytes: u32) {
        let from = self.operand(from, bytes);
        self.memory.with(into, bytes, |into| combination.combine(into, &from));
        let MemoryWork { combined_bytes, combined_float_bytes, .. } = &mut self.results.work;
        let is_float = matches!(combination.word_type, WordType::F32 | WordType::F64);
        *(if is_float { combined_float_bytes } else { combined_bytes }) += u64::from(bytes);
    }

    fn complete(&mut self, request: Request, outcome: Outcome) {
        self.memory.vectors.remove(&request.0);
        let word = std::mem::take(&mut self.placed);
        self.results.ended.push(Ended { request, outcome, word });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::PeerFault;
    use weir_proto::offload::atomics::MAX_ATOMICS;
    use weir_proto::offload::group::{MAX_GROUPS, MAX_ROUNDS, Operation, Shape};
    use weir_proto::offload::reduce::Vector;

    const SUM: Combination = Combination { operation: WordOperation::Sum, word_type: WordType::U64 };

    fn outcomes(results: &Results) -> Vec<(u32, Outcome)> {
        results.ended.iter().map(|ended| (ended.request.0, ended.outcome)).collect()
    }

    fn join(machines: &mut Machines, request: u32, group: u32, members: u32) -> Results {
        let members = (0..members).collect();
        let call =
            OffloadCall::Join { group, members, rank: 0, patience_ns: Some(1000), shape: Shape::default() };
        machines.post(Instant(0), Request(request), call, Peer)
    }

    fn reduce(machines: &mut Machines, request: u32, vector: &Rc<RefCell<Vec<u8>>>) -> Results {
        let operation = Operation::Reduce(Vector { bytes: 8, combination: SUM });
        let call = OffloadCall::Start { group: 0, operation, vector: vector.clone() };
        machines.post(Instant(5), Request(request), call, Peer)
    }

    #[test]
    fn commands_beyond_a_bound_wait_in_order_and_a_group_too_many_is_refused() {
        let mut machines = Machines::default();
        for group in 0..MAX_GROUPS as u32 {
            assert_eq!(outcomes(&join(&mut machines, 1, group, 2)), [(1, Outcome::Done)]);
        }
        assert_eq!(outcomes(&join(&mut machines, 1, 1000, 2)), [(1, Outcome::Refused)]);
        let vector = Rc::new(RefCell::new(vec![1; 8]));
        for request in 0..=MAX_ROUNDS {
            assert_eq!(outcomes(&reduce(&mut machines, request, &vector)), []);
        }
        let update =
            WordUpdate { operation: WordOperation::Sum, word_type: WordType::U64, operand: 1, compare: 0 };
        let fetch = OffloadCall::Fetch { to: 1, word: 0, update };
        let results = machines.post(Instant(6), Request(100), fetch, Peer);
        assert_eq!((results.outgoing.len(), machines.waiting.len()), (0, 2), "it waits behind a reduction");
        assert_eq!(machines.first_timer(), Some(Instant(1005)));
        let lost = MachineEvent::Lost { peer: Peer(1), fault: PeerFault::Died };
        let ended = outcomes(&machines.handle(Instant(7), lost, &[]));
        let lost = Outcome::Lost { peer: Some(Peer(1)), fault: PeerFault::Died };
        assert!(ended.iter().copied().eq((0..=MAX_ROUNDS).map(|request| (request, lost))), "{ended:?}");
        assert_eq!(machines.first_timer(), None);
        assert!(machines.waiting.is_empty(), "{:?}", machines.waiting);
    }

    #[test]
    fn fetches_beyond_the_bound_leave_when_answers_come() {
        let (mut machines, mut target) = (Machines::default(), Machines::default());
        let update =
            WordUpdate { operation: WordOperation::Sum, word_type: WordType::U64, operand: 1, compare: 0 };
        let mut sent = Vec::new();
        for request in 0..=MAX_ATOMICS {
            let fetch = OffloadCall::Fetch { to: 1, word: 3, update };
            sent.extend(machines.post(Instant(0), Request(request), fetch, Peer).outgoing);
        }
        assert_eq!((sent.len(), machines.waiting.len()), (MAX_ATOMICS as usize, 1));
        for (word, leave) in [(0, 1), (1, 0)] {
            let arrived = |from, Outgoing { number, packet, .. }: Outgoing| MachineEvent::Arrived {
                from: Peer(from),
                number,
                packet,
                payload_bytes: 0,
            };
            let answers = target.handle(Instant(0), arrived(0, sent[word as usize]), &[]).outgoing;
            let results = machines.handle(Instant(0), arrived(1, answers[0]), &[]);
            assert_eq!(results.ended[0].status(|peer| peer.0).bytes, word, "the old word");
            assert_eq!(results.outgoing.len(), leave, "the last fetch takes the place of the first");
        }
        assert!(machines.waiting.is_empty());
    }
}
