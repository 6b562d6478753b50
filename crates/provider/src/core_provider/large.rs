//! Large messages ([`CoreLarge`]): tagged ones, which only receives with the same tag take, in memory of their own.
//!
//! ```text
//! memory    receive 0  ...  receive r-1   send 0  ...  send s-1     one large message each
//! begin     fi_trecv for each receive
//! send      the message is written into the memory of a free send; fi_tsend, now or when the core takes it
//! ```
//! The memory is not touched before its first use. The send that has left last is used next, since its memory is in the cache.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::null_mut;

use weir_link::ofi::{CoreAddress, CoreLarge, LARGE_RECEIVES, LARGE_SENDS_PER_PEER, Sent};

use super::endpoint::OpenEndpoint;
use super::objects::{Object, RawMr};

/// The tag of all of them.
const TAG: u64 = 1;

/// See the head of this file.
pub struct LargeMessages {
    // Closed before the memory, and after the endpoint (order of the members of `OpenEndpoint`).
    registration: Option<Object<RawMr>>,
    bytes: OwnedBytes,
    longest: usize,
    /// The first context. Those of receives come first.
    first: usize,
    has_begun: bool,
    /// Receives that the core did not take.
    to_post: Vec<usize>,
    /// Receives that are complete, and the bytes of their messages.
    arrived: VecDeque<(usize, usize)>,
    /// Sends that nobody uses.
    free: Vec<usize>,
    /// The peer of each send that is used.
    targets: Vec<Option<CoreAddress>>,
    /// Messages that the core has not taken yet, and their lengths.
    unsent: VecDeque<(usize, usize)>,
}

/// Bytes that the core writes and reads.
struct OwnedBytes(*mut [u8]);

impl Drop for OwnedBytes {
    fn drop(&mut self) {
        // SAFETY: `LargeMessages::new` has made it, and the endpoint, which used it, is closed before.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

impl LargeMessages {
    /// Messages of at most `longest` bytes with these contexts.
    pub fn new(longest: usize, contexts: Range<usize>) -> LargeMessages {
        let sends = contexts.len() - LARGE_RECEIVES;
        let bytes = vec![0; contexts.len() * longest].into_boxed_slice(); // the kernel's zeros, which are no memory yet
        LargeMessages {
            registration: None,
            bytes: OwnedBytes(Box::into_raw(bytes)),
            longest,
            first: contexts.start,
            has_begun: false,
            to_post: (0..LARGE_RECEIVES).collect(),
            arrived: VecDeque::new(),
            free: (0..sends).rev().collect(),
            targets: vec![None; sends],
            unsent: VecDeque::new(),
        }
    }

    /// Their memory.
    pub fn bytes(&self) -> *mut [u8] {
        self.bytes.0
    }

    /// With the registration of their memory.
    #[must_use]
    pub fn registered(self, registration: Option<Object<RawMr>>) -> LargeMessages {
        LargeMessages { registration, ..self }
    }

    fn place(&self, index: usize) -> *mut u8 {
        assert!((index + 1) * self.longest <= self.bytes.0.len(), "large message {index}");
        // SAFETY: within the allocation (asserted).
        unsafe { self.bytes.0.cast::<u8>().add(index * self.longest) }
    }

    fn descriptor(&self) -> *mut c_void {
        // SAFETY: the registration is open.
        self.registration.as_ref().map_or(null_mut(), |region| unsafe { (*region.pointer()).mem_desc })
    }

    /// The operation with this context has ended. `None`: with an error. Returns the peer whom a message does not reach.
    pub fn ended(&mut self, context: usize, bytes: Option<usize>) -> Option<CoreAddress> {
        let index = context - self.first;
        match (index.checked_sub(LARGE_RECEIVES), bytes) {
            (None, Some(bytes)) => self.arrived.push_back((index, bytes)),
            (None, None) => self.to_post.push(index), // too long, for example
            (Some(send), _) => {
                let target = self.targets[send].take();
                self.free.push(send);
                return target.filter(|_| bytes.is_none());
            }
        }
        None
    }

    /// Whether there is something that the core has not taken.
    fn has_untaken(&self) -> bool {
        !self.unsent.is_empty() || (self.has_begun && !self.to_post.is_empty())
    }

    /// Whether something waits that no descriptor shows.
    pub fn has_work(&self) -> bool {
        !self.arrived.is_empty() || self.has_untaken()
    }
}

impl OpenEndpoint {
    /// Lets the core take what it has not taken. For every look: nothing else says when it would.
    pub(super) fn work_large(&mut self) {
        if self.large.as_ref().is_some_and(LargeMessages::has_untaken) {
            self.post_large();
            self.send_large();
        }
    }

    /// Posts the receives that are not posted.
    fn post_large(&mut self) {
        let Some(endpoint) = self.endpoint.as_ref().map(Object::pointer) else { return };
        let Some(large) = &mut self.large else { return };
        while let Some(index) = large.to_post.pop() {
            let (place, context) = (large.place(index), self.memory.context(large.first + index));
            // SAFETY: the endpoint is open, and has these functions, because it was opened with `FI_TAGGED`. Memory and context
            // of the receive belong to the core from now on.
            let result = unsafe {
                let receive = (*(*endpoint).tagged).recv;
                let any = crate::ffi::ADDR_UNSPEC;
                receive(endpoint, place.cast(), large.longest, large.descriptor(), any, TAG, 0, context)
            };
            if result != 0 {
                large.to_post.push(index); // the core takes it later
                return;
            }
        }
    }

    /// Lets the core take messages that it has not taken.
    fn send_large(&mut self) {
        let Some(endpoint) = self.endpoint.as_ref().map(Object::pointer) else { return };
        let Some(large) = &mut self.large else { return };
        // A peer for which the core takes nothing now does not hold back others.
        let mut busy = Vec::new();
        for (send, bytes) in std::mem::take(&mut large.unsent) {
            let index = LARGE_RECEIVES + send;
            let (place, context) = (large.place(index), self.memory.context(large.first + index));
            let Some(target) = large.targets[send] else { continue };
            if busy.contains(&target) {
                large.unsent.push_back((send, bytes));
                continue;
            }
            // SAFETY: as above. Memory and context of the send belong to the core until its completion.
            let result = unsafe {
                let call = (*(*endpoint).tagged).send;
                call(endpoint, place.cast(), bytes, large.descriptor(), target.0, TAG, context)
            };
            if result == -(libc::EAGAIN as isize) {
                large.unsent.push_back((send, bytes));
                busy.push(target);
            } else if result != 0 {
                self.failures.extend(large.ended(large.first + index, None));
            }
        }
    }
}

impl CoreLarge for OpenEndpoint {
    fn longest(&self) -> usize {
        self.large.as_ref().map_or(0, |large| large.longest)
    }

    fn begin(&mut self) -> usize {
        if let Some(large) = &mut self.large
            && !std::mem::replace(&mut large.has_begun, true)
        {
            self.post_large();
        }
        self.large.as_ref().map_or(0, |large| LARGE_RECEIVES - large.to_post.len())
    }

    fn receive(&mut self, take: &mut dyn FnMut(&mut [u8])) {
        let Some(large) = &mut self.large else { return };
        while let Some((index, bytes)) = large.arrived.pop_front() {
            // SAFETY: the receive is complete, so the core does not use its memory until it is posted again.
            take(unsafe { std::slice::from_raw_parts_mut(large.place(index), bytes.min(large.longest)) });
            large.to_post.push(index);
        }
        self.work_large();
    }

    fn send(&mut self, to: CoreAddress, write: &mut dyn FnMut(&mut [u8]) -> usize) -> Sent {
        if self.endpoint.is_none() {
            return Sent::Failed;
        }
        let Some(large) = &mut self.large else { return Sent::Failed };
        let to_peer = large.targets.iter().filter(|target| **target == Some(to)).count();
        if to_peer >= LARGE_SENDS_PER_PEER {
            return Sent::Busy;
        }
        let Some(send) = large.free.pop() else { return Sent::Busy };
        // SAFETY: the memory of a free send is not used by the core.
        let room =
            unsafe { std::slice::from_raw_parts_mut(large.place(LARGE_RECEIVES + send), large.longest) };
        let bytes = write(room);
        large.targets[send] = Some(to);
        large.unsent.push_back((send, bytes));
        self.send_large();
        Sent::Taken
    }
}
