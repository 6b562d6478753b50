//! A core provider inside the process, for tests ([`Exchange`]): it delivers every message, in any order, and can be short of
//! room. Names are numbers, or those of sockets with the number as port ([`Exchange::open_on`]).
//!
//! ```text
//! Exchange::new(seed, 4, 2048)    open(1), open(2)
//! 1: send(2) five times     Taken four times, then Busy: four messages wait for 2
//! end(2)                    1: next_failure: 2
//! ```
//! Endpoints that are opened with memory ([`Exchange::open_with_memory`]) read and write the memory of each other. Their copies
//! end in any order too, and a copy with an endpoint that has vanished never ends ([`Exchange::vanish`]). Endpoints that are opened
//! with large messages ([`Exchange::open_with_large`]) have few receives for them; more of them than that is an error of the link.

use super::core_endpoint::{
    CoreAddress, CoreCopy, CoreEndpoint, CoreLarge, CoreMemory, CoreName, LARGE_SENDS_PER_PEER, NameFormat,
    Sent,
};
use crate::event_descriptor::EventDescriptor;
use crate::memory::UserMemory;
use crate::{LocalHandle, PeerAccess};
use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_proto::{Direction, RemoteAddress};

/// Length of a name. Unit: bytes.
const NAME_BYTES: usize = 8;
/// The most copies of one endpoint that are under way.
pub const COPIES: u64 = 4;
/// Length of the longest copy. Unit: bytes.
pub const LONGEST_COPY: u64 = 5000;
/// Length of the longest large message. Unit: bytes.
pub const LONGEST_LARGE: usize = 3000;
/// Receives for large messages.
pub const LARGE_ROOM: usize = 5;

#[derive(Debug, Default)]
struct Desk {
    messages: Vec<Vec<u8>>,
    /// With their senders.
    large: Vec<(u64, Vec<u8>)>,
    has_ended: bool,
    /// Copies with it do not end.
    has_vanished: bool,
    /// By key.
    registered: BTreeMap<u64, (UserMemory, PeerAccess)>,
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
    copies: u64,
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
    /// Copies that were made, and large messages that were taken.
    pub copies: u64,
}

/// See the head of this file. Clones are the same exchange.
#[derive(Clone, Debug)]
pub struct Exchange(Arc<Mutex<State>>);

impl Exchange {
    /// An exchange for messages of at most `longest` bytes, of which `room` wait for one endpoint. Its order comes from
    /// `seed`.
    pub fn new(seed: u64, room: usize, longest: usize) -> Exchange {
        let (desks, random) = (BTreeMap::new(), seed | 1);
        let (taken, refused, overtaken, copies) = (0, 0, 0, 0);
        let state = State { random, room, longest, desks, taken, refused, overtaken, copies };
        Exchange(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock can panic half way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The endpoint with this number, which is not 0. It has nothing to wait for.
    pub fn open(&self, number: u64) -> ExchangeEndpoint {
        self.open_desk(number, None)
    }

    /// As [`Exchange::open`], but with access to the memory of others.
    pub fn open_with_memory(&self, number: u64) -> ExchangeEndpoint {
        ExchangeEndpoint { has_memory: true, ..self.open(number) }
    }

    /// As [`Exchange::open`], but with large messages.
    pub fn open_with_large(&self, number: u64) -> ExchangeEndpoint {
        ExchangeEndpoint { has_large: true, ..self.open(number) }
    }

    /// As [`Exchange::open`], but with a descriptor to wait for.
    ///
    /// # Panics
    /// If the process has too many descriptors.
    pub fn open_with_descriptor(&self, number: u64) -> ExchangeEndpoint {
        self.open_desk(number, Some(Arc::new(EventDescriptor::open().expect("a descriptor"))))
    }

    /// As [`Exchange::open`], with the name of a socket on the host with this address. The number is the port.
    pub fn open_on(&self, host: Ipv4Addr, port: u16) -> ExchangeEndpoint {
        let mut endpoint = self.open(port.into());
        let family = (libc::AF_INET as u16).to_ne_bytes();
        let bytes = [&family[..], &port.to_be_bytes(), &host.octets(), &[0; 8]].concat();
        endpoint.name = CoreName { format: NameFormat::Socket, bytes };
        endpoint
    }

    fn open_desk(&self, number: u64, descriptor: Option<Arc<EventDescriptor>>) -> ExchangeEndpoint {
        let desk = Desk { descriptor: descriptor.clone(), ..Desk::default() };
        self.state().desks.insert(number, desk);
        let name = CoreName { format: NameFormat::Other, bytes: number.to_le_bytes().to_vec() };
        let (exchange, failures) = (self.clone(), VecDeque::new());
        let (has_memory, has_large, copies, is_closed) = (false, false, Vec::new(), false);
        let unsent_large = Vec::new();
        ExchangeEndpoint {
            exchange,
            number,
            name,
            failures,
            descriptor,
            has_memory,
            has_large,
            unsent_large,
            copies,
            is_closed,
        }
    }

    /// The endpoint ends without a word. Messages to it fail.
    pub fn end(&self, number: u64) {
        let mut state = self.state();
        if let Some(desk) = state.desks.get_mut(&number) {
            desk.has_ended = true;
        }
    }

    /// Copies with the endpoint do not end any more.
    pub fn vanish(&self, number: u64) {
        if let Some(desk) = self.state().desks.get_mut(&number) {
            desk.has_vanished = true;
        }
    }

    /// Registered memory of the endpoint.
    pub fn registrations(&self, number: u64) -> usize {
        self.state().desks.get(&number).map_or(0, |desk| desk.registered.len())
    }

    /// A message of a stranger to this endpoint.
    pub fn forge(&self, to: u64, bytes: &[u8]) {
        if let Some(desk) = self.state().desks.get_mut(&to) {
            desk.messages.push(bytes.to_vec());
        }
    }

    /// A large message of a stranger to this endpoint.
    pub fn forge_large(&self, to: u64, bytes: &[u8]) {
        if let Some(desk) = self.state().desks.get_mut(&to) {
            desk.large.push((0, bytes.to_vec()));
        }
    }

    /// Takes the large messages that wait for this endpoint: somebody on the way has them.
    pub fn take_large(&self, to: u64) -> Vec<Vec<u8>> {
        let mut state = self.state();
        let desk = state.desks.get_mut(&to);
        desk.map_or(Vec::new(), |desk| desk.large.drain(..).map(|(_, bytes)| bytes).collect())
    }

    /// What it has done.
    pub fn counters(&self) -> ExchangeCounters {
        let State { taken, refused, overtaken, copies, .. } = *self.state();
        ExchangeCounters { taken, refused, overtaken, copies }
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
    has_memory: bool,
    has_large: bool,
    /// Large messages that leave with the next look, and their receivers.
    unsent_large: Vec<(u64, Vec<u8>)>,
    /// Copies under way.
    copies: Vec<(CoreCopy, UserMemory)>,
    is_closed: bool,
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
        if self.name.format == NameFormat::Socket {
            let port = name.get(2..)?.first_chunk()?;
            return Some(CoreAddress(u16::from_be_bytes(*port).into()));
        }
        let name: [u8; NAME_BYTES] = name.try_into().ok()?;
        Some(CoreAddress(u64::from_le_bytes(name)))
    }

    fn send(&mut self, to: CoreAddress, head: &[u8], body: &[u8]) -> Sent {
        if self.is_closed {
            return Sent::Failed;
        }
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
        let late = std::mem::take(&mut self.unsent_large);
        late.into_iter()
            .for_each(|(to, message)| self.exchange.state().deliver_large(self.number, to, message));
        loop {
            let mut state = self.exchange.state();
            let draw = state.draw() as usize;
            let Some(desk) = state.desks.get_mut(&self.number) else { return false };
            if desk.messages.is_empty() || desk.has_ended || self.is_closed {
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
        if let Some(descriptor) = &self.descriptor {
            descriptor.clear();
        }
        state.desks.get(&self.number).is_none_or(|desk| desk.messages.is_empty())
    }

    fn memory(&mut self) -> Option<&mut dyn CoreMemory> {
        if self.has_memory { Some(self) } else { None }
    }

    fn large(&mut self) -> Option<&mut dyn CoreLarge> {
        if self.has_large { Some(self) } else { None }
    }
}

impl CoreLarge for ExchangeEndpoint {
    fn longest(&self) -> usize {
        LONGEST_LARGE
    }

    fn begin(&mut self) -> usize {
        LARGE_ROOM
    }

    fn receive(&mut self, take: &mut dyn FnMut(&mut [u8])) {
        loop {
            let mut state = self.exchange.state();
            let draw = state.draw() as usize;
            let Some(desk) = state.desks.get_mut(&self.number) else { return };
            // Some come only with a later look.
            if desk.large.is_empty() || desk.has_ended || self.is_closed || draw.is_multiple_of(3) {
                return;
            }
            let index = draw % desk.large.len();
            let (_, mut message) = desk.large.remove(index);
            state.overtaken += index as u64;
            drop(state);
            take(&mut message);
        }
    }

    /// # Panics
    /// If it finds no receive: the receiver has not asked for it.
    fn send(&mut self, to: CoreAddress, write: &mut dyn FnMut(&mut [u8]) -> usize) -> Sent {
        let mut state = self.exchange.state();
        let draw = state.draw();
        let Some(desk) = state.desks.get_mut(&to.0).filter(|desk| !desk.has_ended) else {
            return Sent::Failed;
        };
        let arrived = desk.large.iter().filter(|(from, _)| *from == self.number).count();
        let unsent = self.unsent_large.iter().filter(|(receiver, _)| *receiver == to.0).count();
        if draw.is_multiple_of(4) || arrived + unsent >= LARGE_SENDS_PER_PEER {
            return Sent::Busy;
        }
        let mut message = vec![0; LONGEST_LARGE];
        let bytes = write(&mut message);
        message.truncate(bytes);
        state.copies += 1;
        // A core may take a message, and send it only when somebody looks at it again.
        if draw.is_multiple_of(3) {
            self.unsent_large.push((to.0, message));
        } else {
            state.deliver_large(self.number, to.0, message);
        }
        Sent::Taken
    }
}

impl State {
    fn deliver_large(&mut self, from: u64, to: u64, message: Vec<u8>) {
        if let Some(desk) = self.desks.get_mut(&to) {
            desk.large.push((from, message));
            assert!(desk.large.len() <= LARGE_ROOM, "more large messages than receives");
        }
    }

    /// Makes a copy. Returns whether the peer allows it.
    fn copy(&mut self, copy: &CoreCopy, memory: &UserMemory) -> bool {
        let CoreCopy { peer, direction, remote, offset, bytes, .. } = *copy;
        let Some(desk) = self.desks.get(&peer.0).filter(|desk| !desk.has_ended) else { return false };
        let Some((theirs, access)) = desk.registered.get(&remote.key) else { return false };
        let is_inside = remote.address.checked_add(bytes).is_some_and(|end| end <= theirs.bytes());
        let is_allowed = match direction {
            Direction::Get => access.read,
            Direction::Put => access.write,
        };
        if !is_inside || !is_allowed {
            return false;
        }
        match direction {
            Direction::Get => theirs.copy_to(remote.address, bytes, memory, offset),
            Direction::Put => memory.copy_to(offset, bytes, theirs, remote.address),
        }
        self.copies += 1;
        true
    }
}

/// Memory must be registered for every copy, in one piece.
impl CoreMemory for ExchangeEndpoint {
    fn registers_own(&self) -> bool {
        true
    }

    fn longest_copy(&self) -> u64 {
        LONGEST_COPY
    }

    fn register(&mut self, memory: &UserMemory, access: PeerAccess) -> Option<(LocalHandle, RemoteAddress)> {
        memory.contiguous_address()?;
        let mut state = self.exchange.state();
        let key = state.draw();
        let desk = state.desks.get_mut(&self.number)?;
        desk.registered.insert(key, (memory.view(), access));
        Some((LocalHandle(key), RemoteAddress { address: 0, key }))
    }

    /// # Panics
    /// If the handle is not that of registered memory.
    fn deregister(&mut self, handle: LocalHandle) {
        if let Some(desk) = self.exchange.state().desks.get_mut(&self.number) {
            assert!(desk.registered.remove(&handle.0).is_some(), "{handle:?} was deregistered twice");
        }
    }

    /// # Panics
    /// If the copy is not one that a core may get.
    fn start(&mut self, copy: &CoreCopy, memory: &UserMemory, handle: Option<LocalHandle>) -> Sent {
        let is_registered = |handle: LocalHandle| {
            let state = self.exchange.state();
            state.desks.get(&self.number).is_some_and(|desk| desk.registered.contains_key(&handle.0))
        };
        assert!(handle.is_some_and(is_registered), "{handle:?} is no handle of registered memory");
        assert!((1..=LONGEST_COPY).contains(&copy.bytes), "a copy of {} bytes", copy.bytes);
        if self.is_closed {
            return Sent::Failed;
        }
        if self.copies.len() as u64 == COPIES {
            return Sent::Busy;
        }
        self.copies.push((*copy, memory.view()));
        Sent::Taken
    }

    fn progress(&mut self) {}

    fn next_end(&mut self) -> Option<(u64, bool)> {
        let mut state = self.exchange.state();
        let draw = state.draw() as usize;
        if self.copies.is_empty() || self.is_closed || draw.is_multiple_of(3) {
            return None;
        }
        let index = draw % self.copies.len();
        let peer = self.copies[index].0.peer;
        if state.desks.get(&peer.0).is_some_and(|desk| desk.has_vanished) {
            return None;
        }
        let (copy, memory) = self.copies.swap_remove(index);
        let is_whole = state.copy(&copy, &memory);
        Some((copy.context, is_whole))
    }

    fn close(&mut self) {
        self.is_closed = true;
        self.copies.clear();
    }
}
