//! The offloaded machines of a rank in the simulator, and the words of memory that they change.
//!
//! The processor of the rank drives them, or its NIC does (`nic_endpoint.rs`). Both pass events and take what follows. A
//! program asks for atomics only ([`crate::program::Rank::ifetch`]). Packets of the simulator carry no payload, so it cannot
//! run reductions.

use std::collections::BTreeMap;

use weir_proto::offload::atomics::{AtomicsCommand, FetchCommand};
use weir_proto::offload::{Combination, Offload, OffloadCommand, Offloaded, WordUpdate};
use weir_proto::{
    BufferId, Instant, Machine, MachineDriver, MachineEvent, MachineTimer, Memory, Operand, Outcome,
    Outgoing, Payload, Peer, Request,
};

use crate::program::{Status, WORDS};

/// The region that holds the words of a rank.
const REGION: u64 = 0;
const WORD_BYTES: u64 = 8;

/// A program's change of a word of another rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetch {
    pub request: Request,
    pub to: u32,
    pub word: u32,
    pub update: WordUpdate,
}

impl Fetch {
    /// The event for the machines of the rank that asks. `peer`: its number of the rank that has the word.
    pub fn posted(&self, peer: Peer) -> MachineEvent<OffloadCommand, Offloaded> {
        let &Fetch { request, word, update, .. } = self;
        let offset = u64::from(word) * WORD_BYTES;
        let fetch = FetchCommand { request, peer, key: REGION, offset, update };
        MachineEvent::Posted(OffloadCommand::Atomics(AtomicsCommand::Fetch(fetch)))
    }
}

/// What follows from an event.
#[derive(Debug, Default)]
pub(super) struct Results {
    /// Packets for the endpoint beside the machines.
    pub outgoing: Vec<Outgoing>,
    /// Operations of the program that have ended.
    pub ended: Vec<(Request, Status)>,
}

/// The machines, and the words of their rank.
pub(super) struct WordMachine {
    offload: Offload,
    /// By offset. A word without an entry is 0.
    words: BTreeMap<u64, u64>,
}

impl Default for WordMachine {
    fn default() -> WordMachine {
        let mut machine = WordMachine { offload: Offload::default(), words: BTreeMap::new() };
        let bytes = u64::from(WORDS) * WORD_BYTES;
        let expose = AtomicsCommand::Expose { key: REGION, bytes };
        machine.handle(MachineEvent::Posted(OffloadCommand::Atomics(expose)));
        machine
    }
}

impl WordMachine {
    /// Handles an event.
    pub fn handle(&mut self, event: MachineEvent<OffloadCommand, Offloaded>) -> Results {
        let mut calls = Calls { words: &mut self.words, results: Results::default(), placed: 0 };
        let handled = self.offload.handle(event, &mut calls);
        handled.expect("a simulated rank has fewer fetches under way than the bound of the machine");
        calls.results
    }

    /// Whether no operation is pending.
    pub fn is_quiescent(&self) -> bool {
        self.offload.is_quiescent()
    }
}

/// The driver of one event.
struct Calls<'a> {
    words: &'a mut BTreeMap<u64, u64>,
    results: Results,
    /// The word that was placed for the operation that ends next.
    placed: u64,
}

const ONLY_ATOMICS: &str = "a program of the simulator asks for atomics only";

impl MachineDriver for Calls<'_> {
    fn now(&mut self) -> Instant {
        unreachable!("{ONLY_ATOMICS}")
    }

    fn set_timer(&mut self, _: MachineTimer, _: Instant) {
        unreachable!("{ONLY_ATOMICS}")
    }

    fn cancel_timer(&mut self, _: MachineTimer) {
        unreachable!("{ONLY_ATOMICS}")
    }

    fn send(&mut self, to: Peer, number: u32, packet: Offloaded, payload: Option<Payload>) {
        self.results.outgoing.push(Outgoing { to, number, packet, payload });
    }

    fn reject(&mut self, from: Peer) {
        panic!("{from:?} has sent a packet that makes no sense");
    }

    fn update_word(&mut self, _: u64, offset: u64, update: &WordUpdate) -> Option<u64> {
        let word = self.words.entry(offset).or_insert(0);
        let old = *word;
        *word = update.apply(old);
        Some(old)
    }

    fn place_word(&mut self, _: Request, word: u64, _: u32) {
        self.placed = word;
    }

    fn allocate(&mut self, _: u32) -> BufferId {
        unreachable!("{ONLY_ATOMICS}")
    }

    fn free(&mut self, _: BufferId) {
        unreachable!("{ONLY_ATOMICS}")
    }

    fn copy(&mut self, _: Operand, _: Memory, _: u32) {
        unreachable!("{ONLY_ATOMICS}")
    }

    fn combine(&mut self, _: Operand, _: Memory, _: Combination, _: u32) {
        unreachable!("{ONLY_ATOMICS}")
    }

    fn complete(&mut self, request: Request, outcome: Outcome) {
        let fault = match outcome {
            Outcome::Done => None,
            Outcome::Lost { fault, .. } => Some(fault),
            other => panic!("{other:?} of a fetch; allowed: words 0 to {}", WORDS - 1),
        };
        let bytes = std::mem::take(&mut self.placed);
        self.results.ended.push((request, Status { bytes, fault, ..Status::default() }));
    }
}
