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

use crate::memory::UserMemory;
use rustix::process::PTracer;
use std::io;
use weir_proto::{CopyFault, Direction};

/// Bound on the pieces of one call, which is the kernel's own (`UIO_MAXIOV`).
const MAX_PIECES: usize = 1024;
/// Bound on the length of one call, below the kernel's of 2^31 less a page. Unit: bytes.
const MAX_CALL_BYTES: u64 = 1 << 30;

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
        let piece =
            libc::iovec { iov_base: (start + offset as usize) as *mut libc::c_void, iov_len: bytes as usize };
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
                Direction::Get => core::ptr::copy(there, here, length),
                Direction::Put => core::ptr::copy(here, there, length),
            }
        }
        at += length;
    });
    Ok(())
}
