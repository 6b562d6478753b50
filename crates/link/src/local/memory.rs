//! Remote memory of the local link. It behaves as a network with remote access does. Memory must be registered, and has
//! keys. Few copies can be under way. Their results come later and in another order.
//!
//! The endpoint that starts a copy also makes it, when the result is due. It holds the lock of the peer's registered
//! memory meanwhile. So deregistering waits for a copy, and a later one fails.

use super::{LocalLink, Mailbox, RANDOM, lock};
use crate::memory::UserMemory;
use crate::{CopyStatus, LocalHandle, MemoryAttributes, PeerAccess, Registration, RemoteCopy, RemoteMemory};
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use weir_proto::{CopyFault, Direction, Peer, PeerFault, RemoteAddress};

/// Bound on the copies under way with one peer.
pub const COPIES_PER_PEER: u32 = 3;
/// Polls without a result before a copy is made. Each copy takes the next number.
const DELAYS: [u32; 4] = [3, 0, 2, 1];

/// The registered memory of an endpoint, by key.
#[derive(Default)]
pub(super) struct RegisteredMemory(Mutex<HashMap<u64, (UserMemory, PeerAccess)>>);

impl RegisteredMemory {
    /// Adds memory under a key that no memory of this process had before, and that peers do not guess.
    fn add(&self, memory: UserMemory, access: PeerAccess) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut registered = lock(&self.0);
        loop {
            let key = RANDOM.hash_one(NEXT.fetch_add(1, Ordering::Relaxed));
            if key != 0 && !registered.contains_key(&key) {
                registered.insert(key, (memory, access));
                return key;
            }
        }
    }

    fn remove(&self, key: u64) {
        let removed = lock(&self.0).remove(&key);
        assert!(removed.is_some(), "memory with key {key:#x} was deregistered twice");
    }

    fn contains(&self, key: u64) -> bool {
        lock(&self.0).contains_key(&key)
    }

    /// No peer accesses anything after this call.
    pub fn clear(&self) {
        lock(&self.0).clear();
    }
}

impl Mailbox {
    /// Makes `copy`, for which this mailbox is that of the peer.
    fn copy(&self, copy: &RemoteCopy, memory: &UserMemory) -> Result<(), CopyFault> {
        let RemoteCopy { direction, remote, offset, bytes, .. } = *copy;
        let registered = lock(&self.registered.0);
        let Some((theirs, access)) = registered.get(&remote.key) else {
            return Err(match self.ended() {
                Some(PeerFault::Closed) => CopyFault::Closed,
                Some(_) => CopyFault::Gone,
                None => CopyFault::BadAddress,
            });
        };
        let inside = remote.address.checked_add(bytes).is_some_and(|end| end <= theirs.bytes());
        let allowed = match direction {
            Direction::Get => access.read,
            Direction::Put => access.write,
        };
        if !inside || !allowed {
            return Err(CopyFault::BadAddress);
        }
        match direction {
            Direction::Get => theirs.copy_to(remote.address, bytes, memory, offset),
            Direction::Put => memory.copy_to(offset, bytes, theirs, remote.address),
        }
        Ok(())
    }
}

/// A copy under way.
pub(super) struct LocalCopy {
    copy: RemoteCopy,
    memory: UserMemory,
    /// The mailbox of the peer.
    mailbox: Arc<Mailbox>,
    /// Polls without a result before it is made.
    polls: u32,
}

impl LocalCopy {
    pub fn peer(&self) -> Peer {
        self.copy.peer
    }
}

impl RemoteMemory for LocalLink {
    fn attributes(&mut self, _peer: Peer) -> Option<MemoryAttributes> {
        Some(MemoryAttributes {
            domain: 0,
            registers: true,
            copies_per_peer: COPIES_PER_PEER,
            needs_owner: false,
        })
    }

    fn register(
        &mut self,
        domain: u32,
        memory: &UserMemory,
        access: PeerAccess,
    ) -> Result<Registration, CopyFault> {
        let key = self.own.registered.add(memory.view(), access);
        let remote = RemoteAddress { address: 0, key };
        Ok(Registration { domain, handle: Some(LocalHandle(key)), remote })
    }

    fn deregister(&mut self, registration: &Registration) {
        if let Some(LocalHandle(key)) = registration.handle
            && self.own.ended().is_none()
        {
            self.own.registered.remove(key);
        }
    }

    /// # Panics
    /// If the handle is not that of registered memory.
    fn start(
        &mut self,
        copy: &RemoteCopy,
        memory: &UserMemory,
        handle: Option<LocalHandle>,
    ) -> Result<CopyStatus, CopyFault> {
        let is_registered = handle.is_some_and(|LocalHandle(key)| self.own.registered.contains(key));
        assert!(is_registered, "{handle:?} is no handle of registered memory");
        let mailbox = Arc::clone(self.mailboxes.get(&copy.peer).ok_or(CopyFault::Gone)?);
        let under_way = self.copies.iter().filter(|other| other.peer() == copy.peer).count();
        if under_way >= COPIES_PER_PEER as usize {
            return Ok(CopyStatus::Busy);
        }
        let polls = DELAYS[self.copies_started % DELAYS.len()];
        self.copies_started += 1;
        self.copies.push(LocalCopy { copy: *copy, memory: memory.view(), mailbox, polls });
        Ok(CopyStatus::Pending)
    }

    fn next_result(&mut self) -> Option<(u64, Result<(), CopyFault>)> {
        let Some(due) = self.copies.iter().position(|copy| copy.polls == 0) else {
            self.copies.iter_mut().for_each(|copy| copy.polls -= 1);
            return None;
        };
        let LocalCopy { copy, memory, mailbox, .. } = self.copies.remove(due);
        Some((copy.context, mailbox.copy(&copy, &memory)))
    }

    fn must_poll(&mut self) -> bool {
        !self.copies.is_empty()
    }
}
