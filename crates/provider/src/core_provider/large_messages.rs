//! What an endpoint knows of large messages ([`LargeMessages`]): their memory, and which of it the core has.
//!
//! ```text
//! memory    receive 0  ...  receive r-1   send 0  ...  send s-1     one large message each
//! ```
//! The memory is not touched before its first use. The send that has left last is used next, since its memory is in the cache.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::null_mut;

use weir_link::ofi::{CoreAddress, LARGE_RECEIVES};

use super::objects::{Object, RawEp, RawMr};
use crate::ffi::ADDR_UNSPEC;

/// The tag of all of them.
const TAG: u64 = 1;

/// See the head of this file.
pub struct LargeMessages {
    // Closed before the memory, and after the endpoint (order of the members of `OpenEndpoint`).
    registration: Option<Object<RawMr>>,
    bytes: OwnedBytes,
    pub longest: usize,
    /// The first context. Those of receives come first.
    first: usize,
    pub has_begun: bool,
    /// Receives that the core did not take.
    pub to_post: Vec<usize>,
    /// Receives that are complete, and the bytes of their messages.
    pub arrived: VecDeque<(usize, usize)>,
    /// Sends that nobody uses.
    pub free: Vec<usize>,
    /// The peer of each send that is used.
    pub targets: Vec<Option<CoreAddress>>,
    /// Messages that the core has not taken yet, and their lengths.
    pub unsent: VecDeque<(usize, usize)>,
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

    pub fn place(&self, index: usize) -> *mut u8 {
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

    /// Lets the core take receives and messages that it has not taken. For every look: nothing else says when it would. `context`:
    /// the context with this number. A peer that a message does not reach is added to `failures`.
    ///
    /// # Safety
    /// The endpoint is open, and was opened with `FI_TAGGED`.
    pub unsafe fn work(
        &mut self,
        endpoint: *mut RawEp,
        context: impl Fn(usize) -> *mut c_void,
        failures: &mut VecDeque<CoreAddress>,
    ) {
        while let Some(index) = self.to_post.pop_if(|_| self.has_begun) {
            let (place, context) = (self.place(index), context(self.first + index));
            // SAFETY: promise of the caller. Memory and context of the receive belong to the core from now on.
            let result = unsafe {
                let receive = (*(*endpoint).tagged).recv;
                receive(endpoint, place.cast(), self.longest, self.descriptor(), ADDR_UNSPEC, TAG, 0, context)
            };
            if result != 0 {
                self.to_post.push(index); // the core takes it later
                break;
            }
        }
        // A peer for which the core takes nothing now does not hold back others.
        let mut busy = Vec::new();
        for (send, bytes) in std::mem::take(&mut self.unsent) {
            let index = LARGE_RECEIVES + send;
            let (place, context) = (self.place(index), context(self.first + index));
            let Some(target) = self.targets[send] else { continue };
            if busy.contains(&target) {
                self.unsent.push_back((send, bytes));
                continue;
            }
            // SAFETY: as above. Memory and context of the send belong to the core until its completion.
            let result = unsafe {
                let call = (*(*endpoint).tagged).send;
                call(endpoint, place.cast(), bytes, self.descriptor(), target.0, TAG, context)
            };
            if result == -(libc::EAGAIN as isize) {
                self.unsent.push_back((send, bytes));
                busy.push(target);
            } else if result != 0 {
                failures.extend(self.ended(self.first + index, None));
            }
        }
    }

    /// Whether there is something that the core has not taken.
    pub fn has_untaken(&self) -> bool {
        !self.unsent.is_empty() || (self.has_begun && !self.to_post.is_empty())
    }

    /// Whether something waits that no descriptor shows.
    pub fn has_work(&self) -> bool {
        !self.arrived.is_empty() || self.has_untaken()
    }
}
