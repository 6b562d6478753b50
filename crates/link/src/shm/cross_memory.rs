//! Cross-memory attach: copying straight between our memory and that of another process of this user.
//!
//! It does not know rendezvous or regions: the address was checked by whoever named it. A copy:
//! ```text
//! Get of 5 GiB into three pieces: process_vm_readv, at most 1 GiB and 1024 pieces a call, until all is there
//! ```
//! A short count is not an error (the kernel stops at a bad page, or for a signal): the rest is asked for again, and
//! a bad address then shows as `EFAULT`. A process id can be reused once the peer is dead; the kernel then
//! checks only that the new process is of the same user. The engine learns of deaths within a second, and
//! process ids go round far more slowly.

use crate::memory::UserMemory;
use std::io;
use weir_proto::{CopyFault, Direction};

/// Bound on the pieces of one call; the kernel's own (`UIO_MAXIOV`).
const MAX_PIECES: usize = 1024;
/// Bound on the length of one call, below the kernel's of 2^31 less a page. Unit: bytes.
const MAX_CALL_BYTES: u64 = 1 << 30;

/// Lets other processes of this user copy from and to this one where the Yama security module restricts that to
/// descendants (`ptrace_scope` 1, as on Ubuntu). Without Yama this does nothing. With it, a process of the same user could
/// trace us too, as it could without Yama.
pub fn allow_other_processes() {
    // SAFETY: this prctl takes integers and changes nothing but who may attach to us.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

/// Copies `bytes` bytes between `memory` at `offset` and `address` in process `pid`.
///
/// # Errors
/// [`CopyFault`]; what was copied before stays.
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
        // Most often: one piece, one call. The range is checked as the loop below would.
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

/// Lists the pieces of the range, at most [`MAX_PIECES`]; returns how many bytes they have.
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
    // SAFETY: the lists live across the call. Pieces that are written to are the program's memory, valid for this by the promise
    // behind `UserMemory`; those that are read, and the remote range, are the kernel's to check.
    let moved = unsafe {
        match direction {
            Direction::Get => libc::process_vm_readv(pid, pieces.as_ptr(), count, &raw const remote, 1, 0),
            Direction::Put => libc::process_vm_writev(pid, pieces.as_ptr(), count, &raw const remote, 1, 0),
        }
    };
    match moved {
        1.. => Ok(moved as u64),
        0 => Err(CopyFault::BadAddress), // nothing moved and nothing said: do not go round for ever
        _ => match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => Ok(0),
            Some(libc::ESRCH) => Err(CopyFault::Gone),
            Some(libc::EFAULT | libc::EINVAL) => Err(CopyFault::BadAddress),
            _ => Err(CopyFault::Forbidden),
        },
    }
}

/// Copies `bytes` bytes from our address `from` to `to` in process `pid`. Both are the other process's word: the kernel checks
/// them, and what is not ours to read is an error. Returns whether everything was copied.
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

/// Copies inside this process.
pub fn copy_inside(direction: Direction, address: u64, memory: &UserMemory, offset: u64, bytes: u64) {
    let mut at = address as usize;
    memory.for_each_stretch(offset, bytes, |here, length| {
        let there = at as *mut u8;
        // SAFETY: `here` is the program's memory by the promise behind `UserMemory`; `there` is memory that another
        // endpoint of this process has named for this operation, under the same promise to that endpoint. They
        // may overlap, so `copy`.
        unsafe {
            match direction {
                Direction::Get => core::ptr::copy(there, here, length),
                Direction::Put => core::ptr::copy(here, there, length),
            }
        }
        at += length;
    });
}
