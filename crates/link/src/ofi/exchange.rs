//! A core provider inside the process, for tests ([`Exchange`]): it delivers every message, in any order, and can be short of
//! room. Names are numbers.
//!
//! ```text
//! Exchange::new(seed, 4, 2048)    open(1), open(2)
//! 1: send(2) five times     Taken four times, then Busy: four messages wait for 2
//! end(2)                    1: next_failure: 2
//! ```

use super::core_endpoint::{CoreAddress, CoreEndpoint, CoreName, NameFormat, Sent};
use crate::event_descriptor::EventDescriptor;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Length of a name. Unit: bytes.
const NAME_BYTES: usize = 8;

#[derive(Debug, Default)]
struct Desk {
    messages: Vec<Vec<u8>>,
    has_ended: bool,
    /// Readable since the first message that came after it was cleared.
    descriptor: Option<Arc<EventDescriptor>>,
}

#[derive(Debug)]
struct State {
    random: u64,
    /// Messages that wait for one endpoint.
    room: usize,
    longest: usize,
    desks: BTreeMap<u64, Desk>,
    taken: u64,
    refused: u64,
    overtaken: u64,
}

impl State {
    fn draw(&mut self) -> u64 {
        // Source: Marsaglia 2003 (xorshift64).
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

/// What an exchange has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeCounters {
    /// Messages that were taken.
    pub taken: u64,
    /// Messages that found no room.
    pub refused: u64,
    /// Messages that others have overtaken.
    pub overtaken: u64,
}

/// See the head of this file. Clones are the same exchange.
#[derive(Clone, Debug)]
pub struct Exchange(Arc<Mutex<State>>);

impl Exchange {
    /// An exchange for messages of at most `longest` bytes, of which `room` wait for one endpoint. Its order comes from
    /// `seed`.
    pub fn new(seed: u64, room: usize, longest: usize) -> Exchange {
        let (desks, random) = (BTreeMap::new(), seed | 1);
        let (taken, refused, overtaken) = (0, 0, 0);
        Exchange(Arc::new(Mutex::new(State { random, room, longest, desks, taken, refused, overtaken })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock can panic half way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The endpoint with this number, which is not 0. It has nothing to wait for.
    pub fn open(&self, number: u64) -> ExchangeEndpoint {
        self.open_desk(number, None)
    }

    /// As [`Exchange::open`], but with a descriptor to wait for.
    ///
    /// # Panics
    /// If the process has too many descriptors.
    pub fn open_with_descriptor(&self, number: u64) -> ExchangeEndpoint {
        self.open_desk(number, Some(Arc::new(EventDescriptor::open().expect("a descriptor"))))
    }

    fn open_desk(&self, number: u64, descriptor: Option<Arc<EventDescriptor>>) -> ExchangeEndpoint {
        let desk = Desk { descriptor: descriptor.clone(), ..Desk::default() };
        self.state().desks.insert(number, desk);
        let name = CoreName { format: NameFormat::Other, bytes: number.to_le_bytes().to_vec() };
        ExchangeEndpoint { exchange: self.clone(), number, name, failures: VecDeque::new(), descriptor }
    }

    /// The endpoint ends without a word. Messages to it fail.
    pub fn end(&self, number: u64) {
        let mut state = self.state();
        if let Some(desk) = state.desks.get_mut(&number) {
            desk.has_ended = true;
        }
    }

    /// A message of a stranger to this endpoint.
    pub fn forge(&self, to: u64, bytes: &[u8]) {
        if let Some(desk) = self.state().desks.get_mut(&to) {
            desk.messages.push(bytes.to_vec());
        }
    }

    /// What it has done.
    pub fn counters(&self) -> ExchangeCounters {
        let State { taken, refused, overtaken, .. } = *self.state();
        ExchangeCounters { taken, refused, overtaken }
    }
}

/// An endpoint of an [`Exchange`].
#[derive(Debug)]
pub struct ExchangeEndpoint {
    exchange: Exchange,
    number: u64,
    name: CoreName,
    failures: VecDeque<u64>,
    descriptor: Option<Arc<EventDescriptor>>,
}

impl CoreEndpoint for ExchangeEndpoint {
    fn provider(&self) -> &str {
        "exchange"
    }

    fn name(&self) -> &CoreName {
        &self.name
    }

    fn longest_message(&self) -> usize {
        self.exchange.state().longest
    }

    fn posted_receives(&self) -> usize {
        self.exchange.state().room
    }

    fn address_of(&mut self, name: &[u8]) -> Option<CoreAddress> {
        let name: [u8; NAME_BYTES] = name.try_into().ok()?;
        Some(CoreAddress(u64::from_le_bytes(name)))
    }

    fn send(&mut self, to: CoreAddress, head: &[u8], body: &[u8]) -> Sent {
        let mut state = self.exchange.state();
        let room = state.room;
        match state.desks.get_mut(&to.0) {
            Some(desk) if desk.has_ended => self.failures.push_back(to.0),
            Some(desk) if desk.messages.len() >= room => {
                state.refused += 1;
                return Sent::Busy;
            }
            Some(desk) => {
                desk.messages.push([head, body].concat());
                desk.descriptor.iter().for_each(|descriptor| descriptor.ring());
            }
            None => return Sent::Failed,
        }
        state.taken += 1;
        Sent::Taken
    }

    fn receive(&mut self, take: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        loop {
            let mut state = self.exchange.state();
            let draw = state.draw() as usize;
            let Some(desk) = state.desks.get_mut(&self.number) else { return false };
            if desk.messages.is_empty() || desk.has_ended {
                return false;
            }
            let index = draw % desk.messages.len();
            let message = desk.messages.remove(index);
            state.overtaken += index as u64;
            drop(state);
            if !take(&message) {
                return true;
            }
        }
    }

    fn next_failure(&mut self) -> Option<CoreAddress> {
        self.failures.pop_front().map(CoreAddress)
    }

    fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_deref().map(AsFd::as_fd)
    }

    fn may_wait(&mut self) -> bool {
        let state = self.exchange.state();
        self.descriptor.iter().for_each(|descriptor| descriptor.clear());
        state.desks.get(&self.number).is_none_or(|desk| desk.messages.is_empty())
    }
}
