//! Memory of peers over a core provider ([`CoreMemory`]): registered memory, and reads and writes.
//!
//! ```text
//! register     fi_mr_reg, if the provider wants it fi_mr_bind to the endpoint and fi_mr_enable; key + 1 and address go to peers
//! start        fi_read, or fi_writemsg with FI_DELIVERY_COMPLETE; its context is that of a free copy
//! next_end     the completion with that context
//! ```
//! Nothing is cached here: providers whose adapters need that have a cache of registrations (`FI_MR_CACHE_MONITOR`).

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use weir_link::memory::UserMemory;
use weir_link::ofi::{CoreCopy, CoreMemory, Sent};
use weir_link::{LocalHandle, PeerAccess};
use weir_proto::{Direction, RemoteAddress};

use super::endpoint::OpenEndpoint;
use super::objects::{Object, RawMr, RawRmaMessage, RawRmaPiece};
use crate::ffi::{control, flags, mr_mode};

/// Attempts to find a key that no other registration has.
const KEY_ATTEMPTS: u32 = 4;
/// The time in which a provider must close a registration that it calls busy.
const CLOSE_TIME: Duration = Duration::from_millis(200);

impl OpenEndpoint {
    /// `fi_mr_reg`, and what follows it.
    fn try_register(&mut self, start: usize, bytes: usize, access: u64) -> Option<Object<RawMr>> {
        let (endpoint, remote) = (self.endpoint.as_ref()?, self.remote.as_mut()?);
        let key = remote.new_key();
        let domain = &self.domain;
        // SAFETY: the domain is open, the memory is that of an operation or region of the program (promise behind
        // `UserMemory`), and the call opens a registration if it returns 0.
        let registration = unsafe {
            Object::<RawMr>::open(|to| {
                let register = (*(*domain.pointer()).mr).reg;
                register(domain.fid(), start as *const _, bytes, access, 0, key, 0, to, null_mut())
            })
        };
        let registration = registration.ok()?;
        if remote.has_mode(mr_mode::ENDPOINT) {
            let fid = registration.fid();
            // SAFETY: registration and endpoint are open.
            let bound = unsafe {
                let operations = (*fid).ops;
                let bound = ((*operations).bind)(fid, endpoint.fid(), 0);
                if bound == 0 { ((*operations).control)(fid, control::ENABLE, null_mut()) } else { bound }
            };
            if bound != 0 {
                return None;
            }
        }
        Some(registration)
    }

    fn descriptor_of(&self, handle: Option<LocalHandle>) -> *mut std::ffi::c_void {
        let registrations = self.remote.as_ref().map(|remote| &remote.registrations);
        let registration =
            handle.and_then(|LocalHandle(number)| registrations.and_then(|all| all.get(&number)));
        // SAFETY: the registration is open.
        registration.map_or(null_mut(), |registration| unsafe { (*registration.pointer()).mem_desc })
    }
}

impl CoreMemory for OpenEndpoint {
    fn registers_own(&self) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.has_mode(mr_mode::LOCAL))
    }

    fn longest_copy(&self) -> u64 {
        self.remote.as_ref().map_or(0, |remote| remote.longest_copy)
    }

    fn register(&mut self, memory: &UserMemory, access: PeerAccess) -> Option<(LocalHandle, RemoteAddress)> {
        let (start, bytes) = (memory.contiguous_address()?, usize::try_from(memory.bytes()).ok()?);
        let mut rights = flags::READ | flags::WRITE;
        for (is_granted, right) in [(access.read, flags::REMOTE_READ), (access.write, flags::REMOTE_WRITE)] {
            rights |= if is_granted { right } else { 0 };
        }
        let registration = (0..KEY_ATTEMPTS).find_map(|_| self.try_register(start, bytes, rights))?;
        // SAFETY: the registration is open and enabled, so it has its key.
        let provider_key = unsafe { (*registration.pointer()).key };
        let key = provider_key.checked_add(1)?; // 0 would say that there is none
        let remote = self.remote.as_mut()?;
        let address = if remote.has_mode(mr_mode::VIRT_ADDR) { start as u64 } else { 0 };
        let handle = remote.next_handle;
        remote.registrations.insert(handle, registration);
        Some((LocalHandle(handle), RemoteAddress { address, key }))
    }

    /// A registration that the provider does not close stays until the process ends, with its memory: nobody knows its key any
    /// more.
    fn deregister(&mut self, handle: LocalHandle) {
        let registration = self.remote.as_mut().and_then(|remote| remote.registrations.remove(&handle.0));
        let Some(mut registration) = registration else { return };
        let begun = Instant::now();
        loop {
            registration = match registration.close() {
                Ok(()) => return,
                Err((registration, libc::EBUSY)) if begun.elapsed() < CLOSE_TIME => registration,
                Err((registration, _)) => return std::mem::forget(registration),
            };
            OpenEndpoint::progress(self);
        }
    }

    fn start(&mut self, copy: &CoreCopy, memory: &UserMemory, handle: Option<LocalHandle>) -> Sent {
        let descriptor = self.descriptor_of(handle);
        let (Some(endpoint), Some(remote)) = (&self.endpoint, &mut self.remote) else { return Sent::Failed };
        let Some(index) = remote.free.pop() else { return Sent::Busy };
        let mut place = None;
        memory.for_each_stretch(copy.offset, copy.bytes, |address, bytes| {
            place.get_or_insert((address, bytes));
        });
        let (Some((address, bytes)), Some(key)) = (place, copy.remote.key.checked_sub(1)) else {
            remote.free.push(index);
            return Sent::Failed;
        };
        assert!(bytes as u64 == copy.bytes, "a copy in pieces: {bytes} of {} bytes", copy.bytes);
        remote.contexts[index - remote.first] = copy.context;
        let (endpoint, context) = (endpoint.pointer(), self.memory.context(index));
        let (peer, from) = (copy.peer.0, copy.remote.address);
        // SAFETY: the endpoint is open, and has these functions, because it was opened with `FI_RMA`. The memory is valid until
        // the copy ends, or the endpoint is closed (promise of the caller). What the message names lives during the call.
        let result = unsafe {
            let operations = (*endpoint).rma;
            match copy.direction {
                Direction::Get => ((*operations).read)(
                    endpoint,
                    address.cast(),
                    bytes,
                    descriptor,
                    peer,
                    from,
                    key,
                    context,
                ),
                Direction::Put => {
                    let piece = libc::iovec { iov_base: address.cast(), iov_len: bytes };
                    let remote_piece = RawRmaPiece { address: from, bytes, key };
                    let mut descriptors = [descriptor];
                    let message = RawRmaMessage {
                        pieces: &raw const piece,
                        descriptors: descriptors.as_mut_ptr(),
                        piece_count: 1,
                        peer,
                        remote_pieces: &raw const remote_piece,
                        remote_count: 1,
                        context,
                        data: 0,
                    };
                    let flags = flags::COMPLETION | flags::DELIVERY_COMPLETE;
                    ((*operations).writemsg)(endpoint, &raw const message, flags)
                }
            }
        };
        if result == 0 {
            return Sent::Taken;
        }
        remote.free.push(index);
        if result == -(libc::EAGAIN as isize) {
            OpenEndpoint::progress(self);
            Sent::Busy
        } else {
            Sent::Failed
        }
    }

    fn progress(&mut self) {
        OpenEndpoint::progress(self);
    }

    fn next_end(&mut self) -> Option<(u64, bool)> {
        self.remote.as_mut()?.ended.pop_front()
    }

    fn close(&mut self) {
        if let Some(remote) = &mut self.remote {
            remote.close_bound();
            remote.ended.clear();
        }
        self.endpoint = None;
    }
}
