//! Remote atomics: an offloaded machine that fetches and changes words of a peer's registered memory.
//!
//! A request names the words and the change. Its answer is the old words, that they have changed, or a refusal. The target
//! needs no application: whoever runs its machine answers. Several initiators are served in the order of arrival, one
//! word at a time. Links are reliable, so no request comes twice. This file does not know addresses of memory.
//! ```text
//! initiator   Atomic { number 0, key, offset, Sum 5 }   ->   target: driver.update_word
//! initiator   <-   AtomicResult { number 0, old 37 }         driver.place_word(37), complete
//! ```
//! A vector has its operands as payload, in as many packets as credits and link require (`atomics/target.rs` has that side).
//! The target changes the words of each packet as it arrives, and answers the last one:
//! ```text
//! initiator   Vector { number 1, at 0, 16 of 24 bytes }   ->   target: allocate, update_vector
//! initiator   Vector { number 1, at 16, 8 bytes }         ->   target: update_vector
//! initiator   <-   VectorResult { number 1, 24 bytes }         driver.copy, complete
//! ```
//! Operations with a compare value have one request for each word.

mod target;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::{Combination, Offloaded, VectorUpdate, WordUpdate};
use crate::action::Outcome;
use crate::endpoint::Refusal;
use crate::event::{BufferId, Peer, PeerFault, Request};
use crate::machine::{Machine, MachineDriver, MachineEvent, Memory, Operand, Payload};
use crate::table::Table;
use target::Target;

/// Bound: atomics with one peer that have no answer yet. Each word with a compare value counts.
pub const MAX_ATOMICS: u32 = 1 << 10;

/// Bound: length of a vector. Unit: bytes.
pub const MAX_ATOMIC_BYTES: u32 = 1 << 12;

/// Bound: fetched vectors with one peer that have no answer yet. Unit: bytes.
pub const MAX_FETCHED_BYTES: u32 = 1 << 16;

/// A packet of this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AtomicPacket {
    /// Asks the destination to change a word of its memory, and for the old word.
    Request {
        /// Key of the destination's region.
        key: u64,
        /// Offset of the word in it. Unit: bytes.
        offset: u64,
        /// The operand, as bits.
        operand: u64,
        /// The compare value, as bits.
        compare: u64,
        /// Operation and type.
        combination: Combination,
        /// The sender wants the old word.
        fetch: bool,
    },
    /// The answer to a request of the destination.
    Result {
        /// The word before the change. 0 if refused, or for a vector.
        old: u64,
        /// No such region, bounds or rights. A word is unchanged.
        refused: bool,
    },
    /// Asks the destination to change a vector of its memory. The payload is a part of the operands.
    Vector {
        /// The whole change.
        update: VectorUpdate,
        /// The sender wants the old words.
        fetch: bool,
        /// Offset of the payload in the vector. Unit: bytes.
        at: u32,
    },
    /// The answer to a vector of the destination that wants the old words. The payload is a part of them.
    VectorResult {
        /// Length of all of them. Unit: bytes.
        bytes: u32,
        /// Offset of the payload in them. Unit: bytes.
        at: u32,
    },
}

impl AtomicPacket {
    /// Asks for a change of a word. Its fields lie side by side, so that no packet is longer for them.
    pub const fn request(key: u64, offset: u64, update: WordUpdate, fetch: bool) -> AtomicPacket {
        let WordUpdate { operation, word_type, operand, compare } = update;
        let combination = Combination { operation, word_type };
        AtomicPacket::Request { key, offset, operand, compare, combination, fetch }
    }

    pub(super) fn is_answer(&self) -> bool {
        matches!(self, AtomicPacket::Result { .. } | AtomicPacket::VectorResult { .. })
    }

    pub(super) fn at_offset(mut self, offset: u32) -> AtomicPacket {
        if let AtomicPacket::Vector { at, .. } | AtomicPacket::VectorResult { at, .. } = &mut self {
            *at = offset;
        }
        self
    }
}

/// The operation that the program asks of this machine.
#[derive(Clone, Debug, PartialEq)]
pub enum AtomicsCommand {
    /// Change a word of a peer's memory. The old word goes into the request's buffer.
    Fetch(FetchCommand),
    /// Change a vector of a peer's memory.
    Vector(VectorCommand),
    /// Change several words of a peer's memory, one after the other, each in its own way. The old words go into the
    /// request's buffer.
    Words {
        /// The request to complete.
        request: Request,
        /// Whose memory.
        peer: Peer,
        /// Key of the region there.
        key: u64,
        /// Offset of the first word in it. Unit: bytes.
        offset: u64,
        /// The changes, at least one, of one type.
        updates: Vec<WordUpdate>,
    },
    /// Peers may change words of the region `key`, which the driver knows.
    Expose {
        /// The key.
        key: u64,
        /// What they may do.
        region: ExposedRegion,
    },
    /// Peers may no more.
    Withdraw {
        /// The key.
        key: u64,
    },
}

/// What peers may do with the words of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExposedRegion {
    /// Its length. Unit: bytes.
    pub bytes: u64,
    /// They may fetch words.
    pub readable: bool,
    /// They may change words.
    pub writable: bool,
}

/// A change of a word of a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FetchCommand {
    /// The request to complete.
    pub request: Request,
    /// Whose memory.
    pub peer: Peer,
    /// Key of the region there.
    pub key: u64,
    /// Offset of the word in it. Unit: bytes.
    pub offset: u64,
    /// The change.
    pub update: WordUpdate,
    /// The old word goes into the request's buffer. Otherwise nothing does.
    pub fetch: bool,
}

/// A change of a vector of a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VectorCommand {
    /// The request to complete. Its buffer has the operands. If `fetch`, the old words replace them.
    pub request: Request,
    /// Whose memory.
    pub peer: Peer,
    /// The change.
    pub update: VectorUpdate,
    /// The old words go into the request's buffer.
    pub fetch: bool,
}

impl VectorUpdate {
    /// Whether it has at least one word, whole ones, not too many, and an operation of their type without compare value.
    fn is_valid(&self) -> bool {
        let VectorUpdate { bytes, combination: Combination { operation, word_type }, .. } = *self;
        let has_operation = !operation.compares() && operation.has_type(word_type);
        has_operation && (1..=MAX_ATOMIC_BYTES).contains(&bytes) && self.combination.divides(bytes)
    }
}

/// What the answer to an operation brings.
#[derive(Clone, Copy, Debug)]
enum Awaited {
    /// That the memory has changed.
    Change,
    /// A word, for this place in the request's buffer. Unit: bytes.
    Word { bytes: u32, place: u32 },
    /// The rest of a vector, of which the first `received` bytes are here. Unit: bytes.
    Vector { bytes: u32, received: u32 },
}

/// An operation without an answer yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    request: Request,
    peer: Peer,
    awaited: Awaited,
}

/// The operations with a peer that have no answer yet.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    count: u32,
    /// Of fetched vectors.
    fetched_bytes: u32,
}

/// A request of several words.
#[derive(Clone, Copy, Debug)]
struct Several {
    /// Words without an answer yet.
    left: u32,
    refused: bool,
}

/// The machine of remote atomics.
#[derive(Clone, Debug, Default)]
pub struct Atomics {
    /// What peers ask of us.
    target: Target,
    /// Our operations, by number.
    pending: Table<Pending>,
    /// Their load, by peer. No entry has none.
    pending_with: BTreeMap<Peer, Load>,
    /// Requests of several words.
    several: BTreeMap<Request, Several>,
}

impl Atomics {
    /// Begins `count` operations with `peer`, if the bounds allow them.
    fn reserve(&mut self, peer: Peer, count: u32, fetched_bytes: u32) -> Result<(), Refusal> {
        let load = self.pending_with.get(&peer).copied().unwrap_or_default();
        let next = Load { count: load.count + count, fetched_bytes: load.fetched_bytes + fetched_bytes };
        if next.count > MAX_ATOMICS || next.fetched_bytes > MAX_FETCHED_BYTES {
            return Err(Refusal::RemoteOperations);
        }
        self.pending_with.insert(peer, next);
        Ok(())
    }

    fn fetch<D: MachineDriver>(&mut self, fetch: FetchCommand, driver: &mut D) -> Result<(), Refusal> {
        let FetchCommand { request, peer, key, offset, update, fetch } = fetch;
        if !update.is_valid() {
            driver.complete(request, Outcome::Refused);
            return Ok(());
        }
        self.reserve(peer, 1, 0)?;
        let awaited = match fetch {
            true => Awaited::Word { bytes: update.word_type.bytes(), place: 0 },
            false => Awaited::Change,
        };
        let number = self.pending.insert(Pending { request, peer, awaited });
        driver.send(peer, number, Offloaded::Atomic(AtomicPacket::request(key, offset, update, fetch)), None);
        Ok(())
    }

    fn words<D: MachineDriver>(
        &mut self,
        (request, peer): (Request, Peer),
        (key, offset): (u64, u64),
        updates: &[WordUpdate],
        driver: &mut D,
    ) -> Result<(), Refusal> {
        let count = u32::try_from(updates.len()).unwrap_or(u32::MAX);
        let bytes = updates.first().map_or(0, |update| update.word_type.bytes());
        let fits = |update: &WordUpdate| update.is_valid() && update.word_type.bytes() == bytes;
        let places = (0..count).map(|nth| u64::from(nth) * u64::from(bytes));
        let is_valid = count > 0 && count <= MAX_ATOMICS && updates.iter().all(fits);
        if !is_valid || offset.checked_add(u64::from(count) * u64::from(bytes)).is_none() {
            driver.complete(request, Outcome::Refused);
            return Ok(());
        }
        self.reserve(peer, count, 0)?;
        self.several.insert(request, Several { left: count, refused: false });
        for (place, &update) in places.zip(updates) {
            let awaited = Awaited::Word { bytes, place: place as u32 };
            let number = self.pending.insert(Pending { request, peer, awaited });
            let packet = AtomicPacket::request(key, offset + place, update, true);
            driver.send(peer, number, Offloaded::Atomic(packet), None);
        }
        Ok(())
    }

    fn vector<D: MachineDriver>(&mut self, command: VectorCommand, driver: &mut D) -> Result<(), Refusal> {
        let VectorCommand { request, peer, update, fetch } = command;
        if !update.is_valid() {
            driver.complete(request, Outcome::Refused);
            return Ok(());
        }
        let fetched_bytes = if fetch { update.bytes } else { 0 };
        self.reserve(peer, 1, fetched_bytes)?;
        let awaited = match fetch {
            true => Awaited::Vector { bytes: update.bytes, received: 0 },
            false => Awaited::Change,
        };
        let number = self.pending.insert(Pending { request, peer, awaited });
        // The target answers when all operands have arrived, so the old words may take their place.
        let operands = Memory::Request { request, offset: 0 };
        let payload =
            target::has_operands(&update).then_some(Payload { memory: operands, bytes: update.bytes });
        let packet = AtomicPacket::Vector { update, fetch, at: 0 };
        driver.send(peer, number, Offloaded::Atomic(packet), payload);
        Ok(())
    }

    /// The operation `number`, if it is one with `from`.
    fn pending(&self, from: Peer, number: u32) -> Option<Pending> {
        self.pending.get(number).copied().filter(|pending| pending.peer == from)
    }

    /// `old`: `None` if the target has refused.
    fn answered<D: MachineDriver>(&mut self, from: Peer, number: u32, old: Option<u64>, driver: &mut D) {
        let Some(Pending { request, awaited, .. }) = self.pending(from, number) else {
            driver.reject(from);
            return;
        };
        if let (Awaited::Vector { .. }, Some(_)) = (awaited, old) {
            driver.reject(from); // it owes the old words
            return;
        }
        self.end(number);
        if let (Awaited::Word { bytes, place }, Some(old)) = (awaited, old) {
            driver.place_word_at(request, place, old, bytes);
        }
        let mut refused = old.is_none();
        if let Some(several) = self.several.get_mut(&request) {
            several.left -= 1;
            several.refused |= refused;
            if several.left > 0 {
                return;
            }
            refused = several.refused;
            self.several.remove(&request);
        }
        driver.complete(request, if refused { Outcome::Refused } else { Outcome::Done });
    }

    /// A part of a fetched vector has arrived: `bytes` of the whole, `at` and `payload_bytes` of the part.
    fn part_fetched<D: MachineDriver>(
        &mut self,
        (from, number): (Peer, u32),
        (bytes, at): (u32, u32),
        payload_bytes: u32,
        driver: &mut D,
    ) {
        let pending = self.pending.get_mut(number).filter(|pending| pending.peer == from);
        let Some(Pending { request, awaited: Awaited::Vector { bytes: all, received }, .. }) = pending else {
            driver.reject(from);
            return;
        };
        let request = *request;
        if bytes != *all || at != *received || payload_bytes == 0 || payload_bytes > *all - *received {
            driver.reject(from);
            return;
        }
        *received += payload_bytes;
        let is_last = received == all;
        let into = Memory::Request { request, offset: at.into() };
        driver.copy(Operand::Arrived, into, payload_bytes);
        if is_last {
            self.end(number);
            driver.complete(request, Outcome::Done);
        }
    }

    /// Removes the operation `number`, which is pending.
    fn end(&mut self, number: u32) {
        let Pending { peer, awaited, .. } = self.pending.remove(number).expect("it is pending");
        let load = self.pending_with.get_mut(&peer).expect("it has a pending operation");
        load.count -= 1;
        if let Awaited::Vector { bytes, .. } = awaited {
            load.fetched_bytes -= bytes;
        }
        if load.count == 0 {
            self.pending_with.remove(&peer);
        }
    }

    /// The buffer of an answer has ended.
    pub(super) fn answer_left(&mut self, buffer: BufferId) {
        self.target.answer_left(buffer);
    }

    fn lose<D: MachineDriver>(&mut self, peer: Peer, fault: PeerFault, driver: &mut D) {
        self.target.lose(peer, driver);
        if !self.pending_with.contains_key(&peer) {
            return;
        }
        let with_peer = self.pending.iter().filter(|(_, pending)| pending.peer == peer);
        let lost: Vec<(u32, Request, bool)> = with_peer
            .map(|(number, Pending { request, .. })| (number, *request, self.several.contains_key(request)))
            .collect();
        for (number, request, is_one_of_several) in lost {
            self.end(number);
            // With the first of its words, a request ends.
            if !is_one_of_several || self.several.remove(&request).is_some() {
                driver.complete(request, Outcome::Lost { peer: Some(peer), fault });
            }
        }
    }
}

impl Machine for Atomics {
    type Command = AtomicsCommand;
    type Packet = AtomicPacket;

    fn handle<D: MachineDriver>(
        &mut self,
        event: MachineEvent<AtomicsCommand, AtomicPacket>,
        driver: &mut D,
    ) -> Result<(), Refusal> {
        match event {
            MachineEvent::Posted(AtomicsCommand::Fetch(fetch)) => self.fetch(fetch, driver)?,
            MachineEvent::Posted(AtomicsCommand::Vector(vector)) => self.vector(vector, driver)?,
            MachineEvent::Posted(AtomicsCommand::Words { request, peer, key, offset, updates }) => {
                self.words((request, peer), (key, offset), &updates, driver)?;
            }
            MachineEvent::Posted(AtomicsCommand::Expose { key, region }) => self.target.expose(key, region),
            MachineEvent::Posted(AtomicsCommand::Withdraw { key }) => self.target.withdraw(key),
            MachineEvent::Arrived { from, number, packet, payload_bytes } => match packet {
                AtomicPacket::Request { key, offset, operand, compare, combination, fetch } => {
                    let Combination { operation, word_type } = combination;
                    let update = WordUpdate { operation, word_type, operand, compare };
                    self.target.requested((from, number), (key, offset), &update, fetch, driver);
                }
                AtomicPacket::Result { old, refused } => {
                    self.answered(from, number, (!refused).then_some(old), driver);
                }
                AtomicPacket::Vector { update, fetch, at } => {
                    let part = target::Part { at, payload_bytes };
                    self.target.vector_requested((from, number), &update, fetch, part, driver);
                }
                AtomicPacket::VectorResult { bytes, at } => {
                    self.part_fetched((from, number), (bytes, at), payload_bytes, driver);
                }
            },
            MachineEvent::TimerExpired(_) => {} // it sets none
            MachineEvent::Lost { peer, fault } => self.lose(peer, fault, driver),
        }
        Ok(())
    }

    fn is_quiescent(&self) -> bool {
        self.pending.count() == 0 && self.target.is_quiescent()
    }

    fn depends_on(&self, visit: impl FnMut(Peer)) {
        self.pending_with.keys().copied().for_each(visit);
    }
}

#[cfg(feature = "explore")]
mod canonical;
#[cfg(test)]
mod tests;
