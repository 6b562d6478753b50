//! Cross-memory attach: direct copies between this process and another process of the same user. [`copy_inside`] copies
//! between two endpoints of this process. [`allow_other_processes`] permits all processes of this user to do so with
//! this one.
//!
//! It does not know rendezvous or regions. The caller has checked the address. Only for `write_across` the other
//! process names both addresses, and the kernel checks them. An example:
//! ```text
//! Get of 5 GiB into three pieces: process_vm_readv, at most 1 GiB and 1024 pieces a call, until all is copied
//! ```
//! A short count is not an error: the kernel stops at a bad page, or for a signal. The next call asks for the rest, and
//! a bad address then shows as `EFAULT`. The kernel can reuse the process id of a dead peer. It then checks only that
//! the new process has the same user. The engine usually learns of deaths within a second, and process ids repeat far
//! more slowly.
//!
//! The kernel copies by `rep movsb`, so it is as slow as [`crate::copy`] says where a destination is a little behind its source
//! in the page. There a copy takes a detour through memory of ours at a better place.

use crate::copy::{copy, is_slow};
use crate::memory::UserMemory;
use core::mem::MaybeUninit;
use rustix::process::PTracer;
use std::io;
use weir_proto::{CopyFault, Direction};

/// Bound on the pieces of one call, which is the kernel's own (`UIO_MAXIOV`).
const MAX_PIECES: usize = 1024;
/// Bound on the length of one call, below the kernel's of 2^31 less a page. Unit: bytes.
const MAX_CALL_BYTES: u64 = 1 << 30;
/// Memory of a detour, on the stack: it stays in the cache. Unit: bytes.
const DETOUR_BYTES: usize = 32 << 10;
const PAGE_BYTES: usize = 4096;

/// Allows other processes of this user to copy from and to this one. The Yama security module can restrict this to
/// descendants (`ptrace_scope` 1, as on Ubuntu). Without Yama this does nothing. With Yama, processes of the same
/// user can then also trace this one, as they could without Yama.
pub fn allow_other_processes() {
    let _ = rustix::process::set_ptracer(PTracer::Any);
}

/// Copies `bytes` bytes between `memory` at `offset` and `address` in process `pid`.
///
/// # Errors
/// [`CopyFault`]. Bytes copied before the error stay.
pub fn copy_across(
    pid: u32,
    direction: Direction,
    address: u64,
    memory: &UserMemory,
    offset: u64,
    bytes: u64,
) -> Result<(), CopyFault> {
    address.checked_add(bytes).ok_or(CopyFault::BadAddress)?;
    let mut done = 0;
    if let Some(start) = memory.contiguous_address()
        && bytes <= MAX_CALL_BYTES
    {
        // The common case: one piece, one call. This checks the range, as the loop below does.
        memory.for_each_stretch(offset, bytes, |_, _| ());
        let at = start + offset as usize;
        let (from, to) = match direction {
            Direction::Get => (address as usize, at),
            Direction::Put => (at, address as usize),
        };
        if is_slow(from, to, bytes as usize) {
            return copy_by_detour(pid, direction, address, at as *mut u8, bytes);
        }
        let piece = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: bytes as usize };
        done = transfer_once(pid, direction, address, &[piece], bytes)?;
    }
    let mut pieces = Vec::new();
    while done < bytes {
        let wanted = gather(memory, offset + done, (bytes - done).min(MAX_CALL_BYTES), &mut pieces);
        let moved = transfer_once(pid, direction, address + done, &pieces, wanted)?;
        done += moved;
    }
    Ok(())
}

/// [`copy_across`] through memory whose place in its page is that of `address`.
#[cold]
fn copy_by_detour(
    pid: u32,
    direction: Direction,
    address: u64,
    at: *mut u8,
    bytes: u64,
) -> Result<(), CopyFault> {
    let mut room = [MaybeUninit::<u8>::uninit(); DETOUR_BYTES + PAGE_BYTES];
    let mut done = 0;
    while done < bytes {
        let remote = address + done;
        let length = (bytes - done).min(DETOUR_BYTES as u64);
        let begin = (remote as usize).wrapping_sub(room.as_ptr().addr()) % PAGE_BYTES;
        let between = room[begin..].as_mut_ptr().cast::<u8>();
        let piece = libc::iovec { iov_base: between.cast(), iov_len: length as usize };
        // SAFETY: `at` belongs to the program for `bytes` bytes, by the promise behind `UserMemory`. There is room for
        // `length` bytes behind `between`, and what is copied from there was written just before.
        done += unsafe {
            match direction {
                Direction::Get => {
                    let moved = transfer_once(pid, direction, remote, &[piece], length)?;
                    copy(between, at.add(done as usize), moved as usize);
                    moved
                }
                Direction::Put => {
                    copy(at.add(done as usize), between, length as usize);
                    transfer_once(pid, direction, remote, &[piece], length)?
                }
            }
        };
    }
    Ok(())
}

/// Lists the pieces of the range, at most [`MAX_PIECES`]. Returns the number of their bytes.
fn gather(memory: &UserMemory, offset: u64, bytes: u64, pieces: &mut Vec<libc::iovec>) -> u64 {
    pieces.clear();
    let mut total = 0;
    memory.for_each_stretch(offset, bytes, |at, length| {
        if pieces.len() < MAX_PIECES {
            pieces.push(libc::iovec { iov_base: at.cast(), iov_len: length });
            total += length as u64;
        }
    });
    total
}

fn transfer_once(
    pid: u32,
    direction: Direction,
    address: u64,
    pieces: &[libc::iovec],
    bytes: u64,
) -> Result<u64, CopyFault> {
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes as usize };
    let pid = pid as libc::pid_t;
    let count = pieces.len() as libc::c_ulong;
    // SAFETY: the lists outlive the call. Pieces that are written to belong to the program and are valid by the
    // promise behind `UserMemory`. The kernel checks the pieces that are read, and the remote range.
    let moved = unsafe {
        match direction {
            Direction::Get => libc::process_vm_readv(pid, pieces.as_ptr(), count, &raw const remote, 1, 0),
            Direction::Put => libc::process_vm_writev(pid, pieces.as_ptr(), count, &raw const remote, 1, 0),
        }
    };
    match moved {
        1.. => Ok(moved as u64),
        0 => Err(CopyFault::BadAddress), // no progress without an error: avoid an endless loop
        _ => match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => Ok(0),
            Some(libc::ESRCH) => Err(CopyFault::Gone),
            Some(libc::EFAULT | libc::EINVAL) => Err(CopyFault::BadAddress),
            _ => Err(CopyFault::Forbidden),
        },
    }
}

/// Copies `bytes` bytes from address `from` of this process to `to` in process `pid`. The other process names both
/// addresses, and the kernel checks them. Returns whether all bytes were copied.
pub fn write_across(pid: u32, from: u64, to: u64, bytes: u64) -> bool {
    let mut done = 0;
    while done < bytes {
        let length = (bytes - done).min(MAX_CALL_BYTES);
        let piece =
            libc::iovec { iov_base: from.wrapping_add(done) as *mut libc::c_void, iov_len: length as usize };
        match transfer_once(pid, Direction::Put, to.wrapping_add(done), &[piece], length) {
            Ok(moved) => done += moved,
            Err(_) => return false,
        }
    }
    true
}

/// Copies within this process.
///
/// # Errors
/// [`CopyFault::BadAddress`]: the address is 0, as of a scattered buffer.
pub fn copy_inside(
    direction: Direction,
    address: u64,
    memory: &UserMemory,
    offset: u64,
    bytes: u64,
) -> Result<(), CopyFault> {
    if address == 0 {
        return Err(CopyFault::BadAddress);
    }
    let mut at = address as usize;
    memory.for_each_stretch(offset, bytes, |here, length| {
        let there = at as *mut u8;
        // SAFETY: `here` belongs to the program, by the promise behind `UserMemory`. `there` was named for this
        // operation by another endpoint of this process, under the same promise. They may overlap, so this uses
        // `copy`.
        unsafe {
            match direction {
                Direction::Get => copy(there, here, length),
                Direction::Put => copy(here, there, length),
            }
        }
        at += length;
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::OwnedMemory;

    const BYTES: usize = 3 * DETOUR_BYTES + 77;

    /// Copies within this process, as if it were another one, from a place in the page to a place `distance` bytes behind it.
    fn copied(direction: Direction, distance: usize) -> (Vec<u8>, Vec<u8>) {
        let room = BYTES + 2 * PAGE_BYTES;
        let (source, sink) = (OwnedMemory::new(room), OwnedMemory::new(room));
        let bytes: Vec<u8> = (0..BYTES).map(|index| (index % 251) as u8).collect();
        let (source, sink) = (source.view(), sink.view());
        let start = |memory: &UserMemory| memory.contiguous_address().expect("one piece");
        let from = start(&source).next_multiple_of(PAGE_BYTES) - start(&source) + 16;
        let to = start(&sink).next_multiple_of(PAGE_BYTES) - start(&sink) + 16 + distance;
        source.write(from as u64, &bytes);
        let (memory, offset, other, at) = match direction {
            Direction::Get => (&sink, to, &source, from),
            Direction::Put => (&source, from, &sink, to),
        };
        let address = (start(other) + at) as u64;
        let pid = std::process::id();
        copy_across(pid, direction, address, memory, offset as u64, BYTES as u64).expect("a copy");
        let mut all = vec![0; room];
        sink.read(0, &mut all);
        let arrived = all.drain(to..to + BYTES).collect();
        assert!(all.iter().all(|&byte| byte == 0), "bytes beside the copy");
        (bytes, arrived)
    }

    #[test]
    fn a_copy_has_all_bytes_wherever_source_and_destination_are() {
        for direction in [Direction::Get, Direction::Put] {
            for distance in [0, 1, 16, 63, 64, 2048] {
                let (bytes, arrived) = copied(direction, distance);
                assert!(bytes == arrived, "{direction:?} at a distance of {distance}");
            }
        }
    }

    #[test]
    fn a_detour_to_a_bad_address_is_an_error() {
        let memory = OwnedMemory::new(BYTES + PAGE_BYTES);
        let memory = memory.view();
        let start = memory.contiguous_address().expect("one piece");
        // Nobody has the first pages of a process.
        for (direction, distance) in [(Direction::Get, 16), (Direction::Put, PAGE_BYTES - 16)] {
            let address = (PAGE_BYTES + (start + PAGE_BYTES - distance) % PAGE_BYTES) as u64;
            let result = copy_across(std::process::id(), direction, address, &memory, 0, BYTES as u64);
            assert_eq!(result, Err(CopyFault::BadAddress), "{direction:?}");
        }
    }
}
