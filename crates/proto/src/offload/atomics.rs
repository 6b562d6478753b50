//! Remote atomics: an offloaded machine that fetches and changes words of a peer's registered memory.
//!
//! A request names the word and the change. Its answer is the old word, or a refusal. The target needs no application:
//! whoever runs its machine answers. Several initiators are served in the order of arrival, one word at a time. Links
//! are reliable, so no request comes twice. This file does not know addresses of memory.
//! ```text
//! initiator   Atomic { number 0, key, offset, Sum 5 }   ->   target: driver.update_word
//! initiator   <-   AtomicResult { number 0, old 37 }         driver.place_word(37), complete
//! ```

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::{Offloaded, WordUpdate};
use crate::action::Outcome;
use crate::endpoint::Refusal;
use crate::event::{Peer, PeerFault, Request};
use crate::machine::{Machine, MachineDriver, MachineEvent};
use crate::table::Table;

/// Bound: atomics with one peer that have no answer yet.
pub const MAX_ATOMICS: u32 = 1 << 10;

/// A packet of this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AtomicPacket {
    /// Asks the destination to change a word of its memory, and for the old word.
    Request {
        /// Key of the destination's region.
        key: u64,
        /// Offset of the word in it. Unit: bytes.
        offset: u64,
        /// The change.
        update: WordUpdate,
    },
    /// The answer to a request of the destination.
    Result {
        /// The word before the change. 0 if refused.
        old: u64,
        /// No such region, bounds, alignment or rights. The word is unchanged.
        refused: bool,
    },
}

impl AtomicPacket {
    pub(super) fn is_answer(&self) -> bool {
        matches!(self, AtomicPacket::Result { .. })
    }
}

/// The operation that the program asks of this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AtomicsCommand {
    /// Change a word of a peer's memory. The old word goes into the request's buffer.
    Fetch(FetchCommand),
    /// Peers may change words of the region `key`, which the driver knows.
    Expose {
        /// The key.
        key: u64,
        /// Length of the region. Unit: bytes.
        bytes: u64,
    },
    /// Peers may no more.
    Withdraw {
        /// The key.
        key: u64,
    },
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
}

/// An operation without an answer yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    request: Request,
    peer: Peer,
    word_bytes: u32,
}

/// The machine of remote atomics.
#[derive(Clone, Debug, Default)]
pub struct Atomics {
    /// Length of each region whose words peers may change, by key. Unit: bytes.
    regions: BTreeMap<u64, u64>,
    /// Our operations, by number.
    pending: Table<Pending>,
    /// Their number, by peer. No entry is 0.
    pending_with: BTreeMap<Peer, u32>,
}

impl Atomics {
    fn fetch<D: MachineDriver>(&mut self, fetch: FetchCommand, driver: &mut D) -> Result<(), Refusal> {
        let FetchCommand { request, peer, key, offset, update } = fetch;
        if !update.is_valid() {
            driver.complete(request, Outcome::Refused);
            return Ok(());
        }
        let count = self.pending_with.entry(peer).or_insert(0);
        if *count >= MAX_ATOMICS {
            return Err(Refusal::RemoteOperations);
        }
        *count += 1;
        let number = self.pending.insert(Pending { request, peer, word_bytes: update.word_type.bytes() });
        driver.send(peer, number, Offloaded::Atomic(AtomicPacket::Request { key, offset, update }), None);
        Ok(())
    }

    fn requested<D: MachineDriver>(
        &mut self,
        from: Peer,
        number: u32,
        (key, offset, update): (u64, u64, WordUpdate),
        driver: &mut D,
    ) {
        let end = offset.checked_add(u64::from(update.word_type.bytes()));
        let allowed = end.zip(self.regions.get(&key)).is_some_and(|(end, bytes)| end <= *bytes);
        let old = if allowed { driver.update_word(key, offset, &update) } else { None };
        let result = AtomicPacket::Result { old: old.unwrap_or(0), refused: old.is_none() };
        driver.send(from, number, Offloaded::Atomic(result), None);
    }

    fn answered<D: MachineDriver>(&mut self, from: Peer, number: u32, old: Option<u64>, driver: &mut D) {
        let Some(Pending { request, word_bytes, .. }) =
            self.pending.get(number).copied().filter(|pending| pending.peer == from)
        else {
            driver.reject(from);
            return;
        };
        self.end(number, from);
        let Some(old) = old else {
            driver.complete(request, Outcome::Refused);
            return;
        };
        driver.place_word(request, old, word_bytes);
        driver.complete(request, Outcome::Done);
    }

    /// Removes the operation `number` with `peer`, which is pending.
    fn end(&mut self, number: u32, peer: Peer) {
        self.pending.remove(number);
        let count = self.pending_with.get_mut(&peer).expect("it has a pending operation");
        *count -= 1;
        if *count == 0 {
            self.pending_with.remove(&peer);
        }
    }

    fn lose<D: MachineDriver>(&mut self, peer: Peer, fault: PeerFault, driver: &mut D) {
        if !self.pending_with.contains_key(&peer) {
            return;
        }
        let lost: Vec<(u32, Request)> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.peer == peer)
            .map(|(number, pending)| (number, pending.request))
            .collect();
        for (number, request) in lost {
            self.end(number, peer);
            driver.complete(request, Outcome::Lost { peer: Some(peer), fault });
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
            MachineEvent::Posted(AtomicsCommand::Expose { key, bytes }) => {
                self.regions.insert(key, bytes);
            }
            MachineEvent::Posted(AtomicsCommand::Withdraw { key }) => {
                self.regions.remove(&key);
            }
            MachineEvent::Arrived {
                from,
                number,
                packet: AtomicPacket::Request { key, offset, update },
                ..
            } => {
                self.requested(from, number, (key, offset, update), driver);
            }
            MachineEvent::Arrived { from, number, packet: AtomicPacket::Result { old, refused }, .. } => {
                self.answered(from, number, (!refused).then_some(old), driver);
            }
            MachineEvent::TimerExpired(_) => {} // it sets none
            MachineEvent::Lost { peer, fault } => self.lose(peer, fault, driver),
        }
        Ok(())
    }

    fn is_quiescent(&self) -> bool {
        self.pending.count() == 0
    }

    fn depends_on(&self, visit: impl FnMut(Peer)) {
        self.pending_with.keys().copied().for_each(visit);
    }
}

#[cfg(feature = "explore")]
mod canonical;
#[cfg(test)]
mod tests;
