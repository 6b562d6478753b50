//! Memory that peers access, and copies from and to their memory.
//!
//! A link with remote keys accesses registered memory only. So this file registers what the endpoint machine announces,
//! until the operation or the bounce buffer ends, and the other end of each copy, until the copy ends. The memory of a
//! region stays registered until the program deregisters it. Shared memory needs no registration, so none is noted here
//! for it.
//!
//! A link bounds the copies under way with a peer. Further ones wait here, in order:
//! ```text
//! copy(transfer 5)    start: Pending
//! copy(transfer 6)    the bound is reached: waits
//! poll                result of 5: CopyDone; then start 6: Pending
//! ```
//! Each waiting copy belongs to a transfer. A multi-receive can have several.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use weir_link::memory::UserMemory;
use weir_link::{CopyStatus, Link, PeerAccess, Registration, RemoteCopy};
use weir_proto::{CopyFault, Event, MemoryCopy, Peer, RemoteAddress, Request, Source, Transfer};

use crate::Engine;
use crate::io::{Io, bounce_buffer_number};

/// Memory that the program has registered.
pub(crate) struct Region {
    pub memory: UserMemory,
    pub access: PeerAccess,
    /// With each link whose peers have asked for it.
    registrations: Vec<Registration>,
}

impl Region {
    pub fn new(memory: UserMemory, access: PeerAccess) -> Region {
        Region { memory, access, registrations: Vec::new() }
    }
}

/// Announced memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Announced {
    /// The buffer of an operation.
    Request(Request),
    /// A bounce buffer.
    Bounce(u32),
}

/// A copy that the link has taken.
struct UnderWay {
    peer: Peer,
    registration: Option<Registration>,
}

#[derive(Default)]
struct PeerCopies {
    under_way: u32,
    waiting: VecDeque<MemoryCopy>,
}

/// Registrations of announced memory, and the copies that have not ended.
#[derive(Default)]
pub(crate) struct Copies {
    /// Copies under way or waiting.
    outstanding: usize,
    under_way: FxHashMap<Transfer, UnderWay>,
    /// Only peers with outstanding copies.
    peers: FxHashMap<Peer, PeerCopies>,
    announced: FxHashMap<Announced, Registration>,
}

impl Copies {
    /// Copies under way or waiting.
    #[inline]
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    fn with(&self, peer: Peer) -> Option<&PeerCopies> {
        if self.outstanding == 0 { None } else { self.peers.get(&peer) }
    }

    fn begin(&mut self, copy: &MemoryCopy, registration: Option<Registration>) {
        let MemoryCopy { transfer, peer, .. } = *copy;
        self.outstanding += 1;
        self.under_way.insert(transfer, UnderWay { peer, registration });
        self.peers.entry(peer).or_default().under_way += 1;
    }

    fn end(&mut self, transfer: Transfer) -> Option<Registration> {
        let UnderWay { peer, registration } = self.under_way.remove(&transfer)?;
        self.outstanding -= 1;
        if let Some(copies) = self.peers.get_mut(&peer) {
            copies.under_way -= 1;
            self.remove_if_idle(peer);
        }
        registration
    }

    fn remove_if_idle(&mut self, peer: Peer) {
        if self.peers.get(&peer).is_some_and(|copies| copies.under_way == 0 && copies.waiting.is_empty()) {
            self.peers.remove(&peer);
        }
    }

    fn push_waiting(&mut self, copy: MemoryCopy) {
        self.outstanding += 1;
        self.peers.entry(copy.peer).or_default().waiting.push_back(copy);
    }

    fn next_waiting(&self, peer: Peer) -> Option<MemoryCopy> {
        self.peers.get(&peer)?.waiting.front().copied()
    }

    fn pop_waiting(&mut self, peer: Peer) {
        if self.peers.get_mut(&peer).is_some_and(|copies| copies.waiting.pop_front().is_some()) {
            self.outstanding -= 1;
            self.remove_if_idle(peer);
        }
    }

    /// Removes all copies with `peer`. Returns their registrations.
    fn forget(&mut self, peer: Peer) -> Vec<Registration> {
        let Some(copies) = self.peers.remove(&peer) else { return Vec::new() };
        let of_peer: Vec<Transfer> = self
            .under_way
            .iter()
            .filter(|(_, copy)| copy.peer == peer)
            .map(|(&transfer, _)| transfer)
            .collect();
        self.outstanding -= copies.waiting.len();
        of_peer.into_iter().filter_map(|transfer| self.end(transfer)).collect()
    }
}

impl<L: Link> Io<L> {
    /// Whether `to` may read memory of messages that it is told of, without help of this endpoint.
    pub fn may_read(&mut self, to: Peer) -> bool {
        let remote = self.link.remote_memory().filter(|_| self.cross_memory);
        let attributes = remote.and_then(|remote| remote.attributes(to));
        attributes.is_some_and(|attributes| !attributes.needs_owner)
    }

    /// Whether the link may write to memory of `to`. Where it has no access at all, the first attempt finds that out.
    pub fn may_write(&mut self, to: Peer) -> bool {
        let attributes = self.link.remote_memory().and_then(|remote| remote.attributes(to));
        attributes.is_none_or(|attributes| !attributes.needs_owner)
    }

    /// Where `to` may access the memory that `payload` names.
    pub fn announced_address(&mut self, to: Peer, payload: Source) -> RemoteAddress {
        let Io { link, operations, bounce_buffers, regions, copies, cross_memory, .. } = self;
        let Some(remote) = link.remote_memory() else { return RemoteAddress::NONE };
        let Some(domain) = remote.attributes(to).map(|attributes| attributes.domain) else {
            return RemoteAddress::NONE;
        };
        let mut register = |memory: &UserMemory, access| remote.register(domain, memory, access).ok();
        let bounce_memory;
        let (announced, memory) = match payload {
            Source::Region { key, offset } => {
                // The machine has checked the bounds.
                let Some(region) = regions.get_mut(&key) else { return RemoteAddress::NONE };
                let known = region.registrations.iter().find(|registration| registration.domain == domain);
                let Some(registration) = known.copied().or_else(|| register(&region.memory, region.access))
                else {
                    return RemoteAddress::NONE;
                };
                if known.is_none() && registration.handle.is_some() {
                    region.registrations.push(registration);
                }
                let RemoteAddress { address, key } = registration.remote;
                return RemoteAddress { address: address.wrapping_add(offset), key };
            }
            _ if !*cross_memory => return RemoteAddress::NONE,
            Source::Request { request, .. } => match operations.get(request) {
                Some(outstanding) => (Announced::Request(request), &outstanding.memory),
                None => return RemoteAddress::NONE,
            },
            Source::Bounce { transfer, .. } => {
                let number = bounce_buffer_number(transfer);
                bounce_memory = bounce_buffers.memory(number);
                (Announced::Bounce(number), &bounce_memory)
            }
            Source::None | Source::Buffer { .. } => return RemoteAddress::NONE,
        };
        // The link has refused the packet that announced it before.
        if !copies.announced.is_empty()
            && let Some(registration) = copies.announced.get(&announced)
        {
            return registration.remote;
        }
        let access = PeerAccess { read: true, write: false };
        let Some(registration) = register(memory, access) else { return RemoteAddress::NONE };
        if registration.handle.is_some() {
            copies.announced.insert(announced, registration);
        }
        registration.remote
    }

    /// The buffer of `request` is not announced any more.
    #[inline]
    pub fn end_announcement_of_request(&mut self, request: Request) {
        if !self.copies.announced.is_empty() {
            self.end_announcement(Announced::Request(request));
        }
    }

    /// The bounce buffer is not announced any more.
    #[inline]
    pub fn end_announcement_of_bounce(&mut self, number: u32) {
        if !self.copies.announced.is_empty() {
            self.end_announcement(Announced::Bounce(number));
        }
    }

    #[cold]
    fn end_announcement(&mut self, announced: Announced) {
        if let Some(registration) = self.copies.announced.remove(&announced) {
            self.deregister(&[registration]);
        }
    }

    fn deregister(&mut self, registrations: &[Registration]) {
        let Some(remote) = self.link.remote_memory() else { return };
        registrations.iter().for_each(|registration| remote.deregister(registration));
    }

    /// Removes a region of the program. Peers do not access it any more.
    pub fn remove_region(&mut self, key: u64) {
        if let Some(region) = self.regions.remove(&key) {
            self.deregister(&region.registrations);
        }
    }

    /// Starts a copy, or lets it wait. Returns its result if it has ended.
    pub fn copy(&mut self, copy: &MemoryCopy) -> Option<Result<(), CopyFault>> {
        if self.copies.with(copy.peer).is_some_and(|copies| !copies.waiting.is_empty()) {
            self.copies.push_waiting(*copy);
            return None;
        }
        match self.start(copy) {
            Ok(CopyStatus::Done) => Some(Ok(())),
            Ok(CopyStatus::Pending) => None,
            Ok(CopyStatus::Busy) => {
                self.copies.push_waiting(*copy);
                None
            }
            Err(fault) => Some(Err(fault)),
        }
    }

    fn start(&mut self, copy: &MemoryCopy) -> Result<CopyStatus, CopyFault> {
        let MemoryCopy { transfer, request, peer, direction, address, offset, bytes } = *copy;
        let Io { link, operations, copies, .. } = self;
        // Without remote memory, packets carry it.
        let remote = link.remote_memory().ok_or(CopyFault::Forbidden)?;
        let attributes = remote.attributes(peer).ok_or(CopyFault::Forbidden)?;
        if copies.with(peer).is_some_and(|copies| copies.under_way >= attributes.copies_per_peer) {
            return Ok(CopyStatus::Busy);
        }
        let memory = &operations.get(request).expect("copies serve outstanding operations").memory;
        let registration = match attributes.registers {
            true => Some(remote.register(attributes.domain, memory, PeerAccess::default())?),
            false => None,
        };
        let handle = registration.and_then(|registration| registration.handle);
        let copy_of_link =
            RemoteCopy { context: transfer.0.into(), peer, direction, remote: address, offset, bytes };
        let status = remote.start(&copy_of_link, memory, handle);
        match (status, registration) {
            (Ok(CopyStatus::Pending), _) => copies.begin(copy, registration),
            (_, Some(registration)) => remote.deregister(&registration),
            (_, None) => {}
        }
        if matches!(status, Ok(CopyStatus::Pending)) {
            self.wake_watcher();
        }
        status
    }

    /// The next copy of the link that has ended.
    fn next_copy_result(&mut self) -> Option<(Transfer, Result<(), CopyFault>)> {
        let (context, result) = self.link.remote_memory()?.next_result()?;
        let transfer = Transfer(context as u32);
        if let Some(registration) = self.copies.end(transfer) {
            self.deregister(&[registration]);
        }
        Some((transfer, result))
    }

    /// `peer` is lost, and the link has forgotten it.
    pub fn forget_copies(&mut self, peer: Peer) {
        if self.copies.with(peer).is_some() {
            let registrations = self.copies.forget(peer);
            self.deregister(&registrations);
        }
    }
}

impl<L: Link> Engine<L> {
    /// Polls the copies that have not ended, and starts those that waited. Returns how many have ended.
    pub(crate) fn poll_copies(&mut self) -> usize {
        let mut found = usize::from(self.io.link.remote_memory().is_some_and(|remote| remote.has_moved()));
        while let Some((transfer, result)) = self.io.next_copy_result() {
            found += 1;
            self.handle(Event::CopyDone { transfer, result });
        }
        let with_waiting = self.io.copies.peers.iter().filter(|(_, copies)| !copies.waiting.is_empty());
        for peer in with_waiting.map(|(&peer, _)| peer).collect::<Vec<_>>() {
            while let Some(copy) = self.io.copies.next_waiting(peer) {
                let result = match self.io.start(&copy) {
                    Ok(CopyStatus::Busy) => break,
                    Ok(CopyStatus::Pending) => None,
                    Ok(CopyStatus::Done) => Some(Ok(())),
                    Err(fault) => Some(Err(fault)),
                };
                self.io.copies.pop_waiting(peer);
                if let Some(result) = result {
                    found += 1;
                    self.handle(Event::CopyDone { transfer: copy.transfer, result });
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;
    use crate::{Post, RemoteArguments, SendArguments};
    use weir_link::links::Links;
    use weir_link::local::LocalLink;
    use weir_link::memory::OwnedMemory;
    use weir_link::shm::ShmLink;
    use weir_proto::{Outcome, Pattern, SendLevel, Space};

    type LocalEngine = Engine<Links<ShmLink>>;
    const BYTES: usize = 20_000;

    /// Two endpoints that reach each other over a link with keys.
    fn pair(directory: &tempfile::TempDir) -> [LocalEngine; 2] {
        let settings = Settings { shm_dir: directory.path().to_owned(), ..Settings::default() };
        let make = |shm: ShmLink, _| {
            let local = LocalLink::open(&shm.address(), shm.quota());
            Links::new(shm, vec![Box::new(local)])
        };
        [0, 1].map(|_| Engine::open_over(&settings, 2, false, make).expect("an endpoint"))
    }

    fn is_empty(engine: &LocalEngine) -> bool {
        let Copies { outstanding, under_way, peers, announced } = &engine.io.copies;
        *outstanding == 0 && under_way.is_empty() && peers.is_empty() && announced.is_empty()
    }

    fn outcome(engines: &mut [LocalEngine; 2]) -> Outcome {
        for _ in 0..100_000 {
            engines.iter_mut().for_each(|engine| _ = engine.progress());
            if let Some(completion) = engines[0].next_completion() {
                return completion.outcome;
            }
        }
        panic!("nothing completes")
    }

    #[test]
    fn announced_memory_is_registered_until_its_operation_ends() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let mut engines = pair(&directory);
        let (own, other) = (engines[0].address(), engines[1].address());
        let (to, from) = (engines[0].peer(&other), engines[1].peer(&own));
        let (payload, into) = (OwnedMemory::new(BYTES), OwnedMemory::new(BYTES));
        let (space, level, memory) = (Space::Tagged, SendLevel::Buffered, payload.view());
        let send = SendArguments { to, space, tag: 0, data: None, level, memory, inject: false };
        engines[0].send(Post::default(), send).expect("taken");
        for _ in 0..100 {
            engines.iter_mut().for_each(|engine| _ = engine.progress());
        }
        assert_eq!(engines[0].io.copies.announced.len(), 1);
        let pattern = Pattern { space, from: Some(from), tag: 0, ignore: 0 };
        engines[1].receive(Post::default(), pattern, into.view(), None).expect("taken");
        assert_eq!(engines[1].io.copies.outstanding(), 1);
        assert_eq!(outcome(&mut engines), Outcome::Done);
        assert!(engines.iter().all(is_empty));
    }

    #[test]
    fn copies_with_a_lost_peer_are_forgotten() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let mut engines = pair(&directory);
        let other = engines[1].address();
        let peer = engines[0].peer(&other);
        let region = OwnedMemory::new(BYTES);
        engines[1].register_memory(5, region.view(), true, true);
        let buffers: Vec<_> = (0..8).map(|_| OwnedMemory::new(BYTES)).collect();
        for buffer in &buffers {
            let memory = buffer.view();
            let read = RemoteArguments { peer, key: 5, offset: 0, memory, data: None, inject: false };
            engines[0].read(Post::default(), read).expect("taken");
        }
        // Some copies are under way, and the others wait.
        for _ in 0..100_000 {
            engines[1].progress();
            engines[0].progress();
            if engines[0].io.copies.outstanding() > 3 {
                break;
            }
        }
        assert!(engines[0].io.copies.outstanding() > 3, "{}", engines[0].io.copies.outstanding());
        engines[0].handle(Event::Lost { peer, fault: weir_proto::PeerFault::Died });
        assert!(is_empty(&engines[0]));
    }
}
