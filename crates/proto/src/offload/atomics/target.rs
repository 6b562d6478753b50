//! The target's side of remote atomics: exposed regions, and vectors of which the last packet has not arrived.
//!
//! Buffers for old words are bounded for each peer, by what a peer may ask. The packets of a vector come one after the other, because a peer's packets stay in order. So a peer has at most one
//! vector of which only a part is here. This file knows nothing of our own operations.

use alloc::collections::BTreeMap;

use super::{AtomicPacket, ExposedRegion, MAX_FETCHED_BYTES};
use crate::event::{BufferId, Peer};
use crate::machine::{MachineDriver, Memory, Payload};
use crate::offload::{Offloaded, VectorUpdate, WordOperation, WordUpdate};

/// A part of a vector that a packet brings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Its offset in the vector. Unit: bytes.
    pub at: u32,
    /// Payload of the packet. Unit: bytes.
    pub payload_bytes: u32,
}

/// A vector of which a part has arrived.
#[derive(Clone, Copy, Debug)]
struct Incoming {
    number: u32,
    update: VectorUpdate,
    fetch: bool,
    /// Bytes that are here.
    received: u32,
    /// The old words, if the peer wants them.
    old: Option<BufferId>,
    refused: bool,
}

/// What peers ask of us.
#[derive(Clone, Debug, Default)]
pub(super) struct Target {
    regions: BTreeMap<u64, ExposedRegion>,
    incoming: BTreeMap<Peer, Incoming>,
    /// The buffers of answers that have not left, and their lengths. Unit: bytes.
    answers: BTreeMap<BufferId, (Peer, u32)>,
    /// Bytes of these buffers, by peer. No entry is 0.
    answer_bytes: BTreeMap<Peer, u32>,
}

/// Whether the request of a vector has operands as payload.
pub(super) fn has_operands(update: &VectorUpdate) -> bool {
    update.combination.operation != WordOperation::Read
}

impl Target {
    pub fn expose(&mut self, key: u64, region: ExposedRegion) {
        self.regions.insert(key, region);
    }

    pub fn withdraw(&mut self, key: u64) {
        self.regions.remove(&key);
    }

    /// Whether peers may do `operation` with the `bytes` bytes at `offset`.
    fn allows(&self, (key, offset, bytes): (u64, u64, u32), operation: WordOperation, fetch: bool) -> bool {
        let end = offset.checked_add(bytes.into());
        self.regions.get(&key).zip(end).is_some_and(|(region, end)| {
            let reads = fetch || operation == WordOperation::Read;
            let writes = operation != WordOperation::Read;
            end <= region.bytes && (region.readable || !reads) && (region.writable || !writes)
        })
    }

    /// A peer asks for a change of a word. `from`: the peer, and the number of its operation.
    pub fn requested<D: MachineDriver>(
        &mut self,
        (from, number): (Peer, u32),
        (key, offset): (u64, u64),
        update: &WordUpdate,
        fetch: bool,
        driver: &mut D,
    ) {
        let allowed = self.allows((key, offset, update.word_type.bytes()), update.operation, fetch);
        let old = if allowed { driver.update_word(key, offset, update) } else { None };
        let word = old.filter(|_| fetch).unwrap_or(0);
        let result = AtomicPacket::Result { old: word, refused: old.is_none() };
        driver.send(from, number, Offloaded::Atomic(result), None);
    }

    /// A part of a vector has arrived.
    pub fn vector_requested<D: MachineDriver>(
        &mut self,
        (from, number): (Peer, u32),
        update: &VectorUpdate,
        fetch: bool,
        part: Part,
        driver: &mut D,
    ) {
        let Part { at, payload_bytes } = part;
        let part_bytes = if has_operands(update) { payload_bytes } else { update.bytes };
        let known = self.incoming.remove(&from);
        let follows = match &known {
            Some(known) => {
                (known.number, known.update, known.fetch, known.received) == (number, *update, fetch, at)
            }
            None => at == 0,
        };
        let fits = part_bytes > 0 && part_bytes <= update.bytes.saturating_sub(at);
        let payload_fits = has_operands(update) || payload_bytes == 0;
        let whole_words = update.combination.divides(part_bytes);
        if !update.is_valid() || !follows || !fits || !payload_fits || !whole_words {
            known.and_then(|known| known.old).into_iter().for_each(|buffer| self.free(buffer, driver));
            driver.reject(from);
            return;
        }
        // Also for later parts: the program may have withdrawn the region.
        let VectorUpdate { key, offset, bytes, combination } = *update;
        let allowed = self.allows((key, offset, bytes), combination.operation, fetch);
        let mut incoming = match known {
            Some(known) => known,
            None => {
                let old = match fetch && allowed {
                    true if self
                        .answer_bytes
                        .get(&from)
                        .is_some_and(|have| have + bytes > MAX_FETCHED_BYTES) =>
                    {
                        driver.reject(from);
                        return;
                    }
                    true => Some(self.allocate(from, bytes, driver)),
                    false => None,
                };
                Incoming { number, update: *update, fetch, received: 0, old, refused: false }
            }
        };
        incoming.refused |= !allowed;
        if !incoming.refused {
            let old = incoming.old.map(|buffer| Memory::Buffer { buffer, offset: at.into() });
            let change = VectorUpdate { offset: offset + u64::from(at), bytes: part_bytes, ..*update };
            incoming.refused = !driver.update_vector(&change, old);
        }
        incoming.received += part_bytes;
        if incoming.received < bytes {
            self.incoming.insert(from, incoming);
            return;
        }
        let result = match incoming.old {
            Some(buffer) if !incoming.refused => {
                let payload = Payload { memory: Memory::Buffer { buffer, offset: 0 }, bytes };
                let packet = AtomicPacket::VectorResult { bytes, at: 0 };
                driver.send(from, number, Offloaded::Atomic(packet), Some(payload));
                return;
            }
            old => {
                old.into_iter().for_each(|buffer| self.free(buffer, driver));
                AtomicPacket::Result { old: 0, refused: incoming.refused }
            }
        };
        driver.send(from, number, Offloaded::Atomic(result), None);
    }

    /// A buffer for an answer to `peer`.
    fn allocate<D: MachineDriver>(&mut self, peer: Peer, bytes: u32, driver: &mut D) -> BufferId {
        let buffer = driver.allocate(bytes);
        self.answers.insert(buffer, (peer, bytes));
        *self.answer_bytes.entry(peer).or_default() += bytes;
        buffer
    }

    /// The answer is not sent after all.
    fn free<D: MachineDriver>(&mut self, buffer: BufferId, driver: &mut D) {
        self.answer_left(buffer);
        driver.free(buffer);
    }

    /// The buffer of an answer has ended.
    pub fn answer_left(&mut self, buffer: BufferId) {
        let Some((peer, bytes)) = self.answers.remove(&buffer) else { return }; // of a lost peer
        let left = self.answer_bytes.get_mut(&peer).expect("it has an answer");
        *left -= bytes;
        if *left == 0 {
            self.answer_bytes.remove(&peer);
        }
    }

    /// Nothing more arrives from `peer`. Buffers of answers under way end without us.
    pub fn lose<D: MachineDriver>(&mut self, peer: Peer, driver: &mut D) {
        let incoming = self.incoming.remove(&peer);
        incoming.and_then(|incoming| incoming.old).into_iter().for_each(|buffer| self.free(buffer, driver));
        if self.answer_bytes.remove(&peer).is_some() {
            self.answers.retain(|_, (of, _)| *of != peer);
        }
    }

    pub fn is_quiescent(&self) -> bool {
        self.incoming.is_empty()
    }

    /// Appends the canonical form (`atomics/canonical.rs`).
    #[cfg(feature = "explore")]
    pub fn canonical(&self, words: &mut alloc::vec::Vec<u32>) {
        let Target {
            regions, // the search gives them short keys
            // The search has no vectors.
            incoming,
            answers,
            answer_bytes,
        } = self;
        assert!(incoming.is_empty() && answers.is_empty() && answer_bytes.is_empty(), "no vectors");
        words.push(regions.len() as u32);
        let form = |(key, region): (&u64, &ExposedRegion)| {
            [*key as u32, region.bytes as u32, u32::from(region.readable), u32::from(region.writable)]
        };
        words.extend(regions.iter().flat_map(form));
    }
}
