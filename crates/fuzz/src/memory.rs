//! The memory of an endpoint ([`RankMemory`]): buffers of requests, regions, unexpected buffers, bounce buffers, and those of
//! machines. It refuses every access outside of them, so that a header can never name memory that is not its own.

use std::collections::{BTreeMap, VecDeque};
use weir_proto::offload::{Combination, Offloaded, VectorUpdate, WordUpdate};
use weir_proto::{
    BufferId, Destination, Event, Instant, MachineDriver, MachineTimer, Memory, MessageId, Operand, Outcome,
    Outgoing, Payload, Peer, PeerFault, Request, Source, TimerKey, TimerQueue, Transfer,
};

/// The key of the region that peers may read and write.
pub(crate) const KEY: u64 = 5;
/// Its length. Unit: bytes.
pub(crate) const REGION_BYTES: usize = 4096;

/// See the head of this file.
#[derive(Default)]
pub(crate) struct RankMemory {
    requests: BTreeMap<Request, Vec<u8>>,
    next_request: u32,
    region: Vec<u8>,
    unexpected: BTreeMap<MessageId, Vec<u8>>,
    bounce: BTreeMap<Transfer, Vec<u8>>,
    machine_buffers: BTreeMap<BufferId, Vec<u8>>,
    next_buffer: u32,
    /// What follows from an event, for the endpoint.
    pub events: VecDeque<Event<'static>>,
    pub timers: TimerQueue<TimerKey>,
    /// Copies between processes that are under way.
    pub copies: Vec<(Peer, Transfer)>,
    pub now: Instant,
    /// The payload of the packet that has arrived.
    arrived: Vec<u8>,
}

impl RankMemory {
    pub fn new() -> RankMemory {
        RankMemory { region: vec![0; REGION_BYTES], ..RankMemory::default() }
    }

    /// A request with a buffer of `bytes` bytes.
    pub fn request(&mut self, bytes: usize) -> Request {
        let request = Request(self.next_request);
        self.next_request += 1;
        self.requests.insert(request, vec![1; bytes]);
        request
    }

    /// The request was refused, so it does not complete.
    pub fn refuse(&mut self, request: Request) {
        self.requests.remove(&request);
    }

    /// Requests that have not completed.
    pub fn outstanding(&self) -> impl Iterator<Item = Request> {
        self.requests.keys().copied()
    }

    /// Number of buffers of machines.
    pub fn machine_buffers(&self) -> usize {
        self.machine_buffers.len()
    }

    /// The payload of the packet that arrives next.
    pub fn arrives(&mut self, slot: &[u8], payload_bytes: u32) {
        self.arrived = slot.iter().copied().cycle().take(payload_bytes as usize).collect();
    }

    pub fn allocate_unexpected(&mut self, message: MessageId, bytes: u64) {
        let before = self.unexpected.insert(message, vec![0; bytes as usize]);
        assert!(before.is_none(), "{message:?} has two buffers");
    }

    pub fn free_unexpected(&mut self, message: MessageId) {
        assert!(self.unexpected.remove(&message).is_some(), "{message:?} is freed twice");
    }

    pub fn fill_bounce(&mut self, transfer: Transfer, request: Request) {
        let copy = self.requests[&request].clone();
        assert!(self.bounce.insert(transfer, copy).is_none(), "{transfer:?} has two bounce buffers");
    }

    pub fn free_bounce(&mut self, transfer: Transfer) {
        assert!(self.bounce.remove(&transfer).is_some(), "{transfer:?} is freed twice");
    }

    pub fn free_machine_buffer(&mut self, buffer: BufferId) {
        assert!(self.machine_buffers.remove(&buffer).is_some(), "{buffer:?} is freed twice");
    }

    /// Copies payload that has arrived.
    pub fn place(&mut self, to: Destination, bytes: u64) {
        let (whole, offset) = match to {
            Destination::Request { request, offset } => (self.requests.get_mut(&request), offset),
            Destination::Message { message, offset } => (self.unexpected.get_mut(&message), offset),
            Destination::Region { key, offset } => ((key == KEY).then_some(&mut self.region), offset),
        };
        let whole = whole.unwrap_or_else(|| panic!("there is no {to:?}"));
        whole[offset as usize..][..bytes as usize].copy_from_slice(&self.arrived[..bytes as usize]);
    }

    /// Copies from an unexpected buffer.
    pub fn deliver(&mut self, message: MessageId, request: Request, offset: u64, bytes: u64) {
        let from = &self.unexpected[&message][..bytes as usize];
        let into = self.requests.get_mut(&request).expect("an outstanding receive");
        into[offset as usize..][..bytes as usize].copy_from_slice(from);
    }

    /// Checks that a copy to or from the memory of a peer stays in the buffer.
    pub fn check_copy(&self, request: Request, offset: u64, bytes: u64) {
        let _ = &self.requests[&request][offset as usize..][..bytes as usize];
    }

    /// Checks that what a packet carries is there.
    pub fn check_source(&self, source: Source, bytes: u32) {
        let (whole, offset) = match source {
            _ if bytes == 0 => return,
            Source::None => panic!("a payload of {bytes} bytes without a source"),
            Source::Request { request, offset } => (self.requests.get(&request), offset),
            Source::Region { key, offset } => ((key == KEY).then_some(&self.region), offset),
            Source::Bounce { transfer, offset } => (self.bounce.get(&transfer), offset),
            Source::Buffer { buffer, offset } => (self.machine_buffers.get(&buffer), offset),
        };
        let whole = whole.unwrap_or_else(|| panic!("there is no {source:?}"));
        let _ = &whole[offset as usize..][..bytes as usize];
    }

    /// A request has ended, or one message of a receive for several has come.
    pub fn completed(&mut self, request: Request, outcome: Outcome) {
        assert!(
            self.requests.contains_key(&request),
            "{request:?} has ended before, or never was: {outcome:?}"
        );
        if let Outcome::Received { bytes, offset, .. } = outcome {
            self.check_copy(request, offset, bytes);
        }
        if !matches!(outcome, Outcome::Received { last: false, .. }) {
            self.requests.remove(&request);
        }
    }

    fn memory(&mut self, memory: Memory, bytes: u32) -> &mut [u8] {
        let (whole, offset) = match memory {
            Memory::Request { request, offset } => (self.requests.get_mut(&request), offset),
            Memory::Region { key, offset } => ((key == KEY).then_some(&mut self.region), offset),
            Memory::Buffer { buffer, offset } => (self.machine_buffers.get_mut(&buffer), offset),
        };
        let whole = whole.unwrap_or_else(|| panic!("there is no {memory:?}"));
        &mut whole[offset as usize..][..bytes as usize]
    }

    fn operand(&mut self, operand: Operand, bytes: u32) -> Vec<u8> {
        match operand {
            Operand::Arrived => self.arrived[..bytes as usize].to_vec(),
            Operand::Memory(memory) => self.memory(memory, bytes).to_vec(),
        }
    }
}

impl MachineDriver for RankMemory {
    fn now(&mut self) -> Instant {
        self.now
    }

    fn set_timer(&mut self, timer: MachineTimer, at: Instant) {
        self.timers.set(timer.into(), at);
    }

    fn cancel_timer(&mut self, timer: MachineTimer) {
        self.timers.cancel(timer.into());
    }

    fn send(&mut self, to: Peer, number: u32, packet: Offloaded, payload: Option<Payload>) {
        self.events.push_back(Event::Outgoing(Outgoing { to, number, packet, payload }));
    }

    fn reject(&mut self, from: Peer) {
        self.events.push_back(Event::Lost { peer: from, fault: PeerFault::Malformed });
    }

    fn update_word(&mut self, key: u64, offset: u64, update: &WordUpdate) -> Option<u64> {
        let bytes = update.word_type.bytes();
        let word = self.memory(Memory::Region { key, offset }, bytes);
        let mut old = [0; 8];
        old[..bytes as usize].copy_from_slice(word);
        let old = u64::from_le_bytes(old);
        word.copy_from_slice(&update.apply(old).to_le_bytes()[..bytes as usize]);
        Some(old)
    }

    fn update_vector(&mut self, update: &VectorUpdate, old: Option<Memory>) -> bool {
        let operands = std::mem::take(&mut self.arrived);
        let mut before = vec![0; update.bytes as usize];
        let words = self.memory(Memory::Region { key: update.key, offset: update.offset }, update.bytes);
        update.apply(words, &operands, Some(&mut before));
        self.arrived = operands;
        if let Some(old) = old {
            self.memory(old, update.bytes).copy_from_slice(&before);
        }
        true
    }

    fn place_word(&mut self, request: Request, word: u64, bytes: u32) {
        self.place_word_at(request, 0, word, bytes);
    }

    fn place_word_at(&mut self, request: Request, offset: u32, word: u64, bytes: u32) {
        let place = self.memory(Memory::Request { request, offset: offset.into() }, bytes);
        place.copy_from_slice(&word.to_le_bytes()[..bytes as usize]);
    }

    fn allocate(&mut self, bytes: u32) -> BufferId {
        let buffer = BufferId(self.next_buffer);
        self.next_buffer += 1;
        self.machine_buffers.insert(buffer, vec![0; bytes as usize]);
        buffer
    }

    fn free(&mut self, buffer: BufferId) {
        self.free_machine_buffer(buffer);
    }

    fn copy(&mut self, from: Operand, into: Memory, bytes: u32) {
        let from = self.operand(from, bytes);
        self.memory(into, bytes).copy_from_slice(&from);
    }

    fn combine(&mut self, from: Operand, into: Memory, combination: Combination, bytes: u32) {
        let from = self.operand(from, bytes);
        combination.combine(self.memory(into, bytes), &from);
    }

    fn complete(&mut self, request: Request, outcome: Outcome) {
        self.completed(request, outcome);
    }
}
