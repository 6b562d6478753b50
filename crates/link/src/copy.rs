//! Copies of bytes ([`copy`], [`copy_slice`], [`append`]) that stay fast wherever the bytes are.
//!
//! C libraries copy many bytes by `rep movsb`. AMD's Zen 3 copies 1.5 to 2 GB/s with it instead of 30 to 50, if the
//! destination is 1 to 31 bytes behind the source, counted from the beginnings of their pages. Intel's processors since
//! Ice Lake have a similar weakness up to 63 bytes (glibc, `Avoid_Short_Distance_REP_MOVSB`, from which AMD's are left out).
//! Buffers come from allocators in such places often: memory that `malloc` maps begins 16 bytes behind the beginning of a page.
//!
//! There, pieces are copied that are too short for `rep movsb`. The example `costs` measures both.

/// Shorter copies use no `rep movsb`: glibc begins at 2 KiB for each 16 bytes of the vector registers that it uses.
const LONG_BYTES: usize = 2048;
/// Length of a piece. Unit: bytes.
const PIECE_BYTES: usize = 1024;
/// Distances below that are slow.
const SLOW_DISTANCES: usize = 64;
const PAGE_BYTES: usize = 4096;

/// Whether many bytes are copied slowly by `rep movsb` from `from` to `to`.
#[inline]
pub(crate) fn is_slow(from: usize, to: usize, bytes: usize) -> bool {
    let distance = to.wrapping_sub(from) % PAGE_BYTES;
    cfg!(target_arch = "x86_64") && bytes >= LONG_BYTES && distance > 0 && distance < SLOW_DISTANCES
}

/// [`core::ptr::copy`].
///
/// # Safety
/// `from` is readable and `to` is writable for `bytes` bytes.
#[inline(always)]
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    if is_slow(from.addr(), to.addr(), bytes) {
        // SAFETY: the caller's promise.
        unsafe { copy_in_pieces(from, to, bytes) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { core::ptr::copy(from, to, bytes) };
    }
}

/// # Safety
/// As for [`copy`].
#[cold]
#[inline(never)]
unsafe fn copy_in_pieces(from: *const u8, to: *mut u8, bytes: usize) {
    // Pieces go forward. A destination that begins inside the source must be written from its end.
    let piece_bytes = if to.addr().wrapping_sub(from.addr()) < bytes { bytes } else { PIECE_BYTES };
    for at in (0..bytes).step_by(piece_bytes) {
        // SAFETY: the caller's promise, for a part of the range.
        unsafe { core::ptr::copy(from.add(at), to.add(at), piece_bytes.min(bytes - at)) };
    }
}

/// [`slice::copy_from_slice`].
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn copy_slice(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "lengths of source and destination");
    // SAFETY: both slices have that length.
    unsafe { copy(from.as_ptr(), to.as_mut_ptr(), from.len()) };
}

/// [`Vec::extend_from_slice`].
#[inline]
pub fn append(from: &[u8], to: &mut Vec<u8>) {
    to.reserve(from.len());
    // SAFETY: there is room behind the end, and its bytes are written before they count.
    unsafe {
        copy(from.as_ptr(), to.as_mut_ptr().add(to.len()), from.len());
        to.set_len(to.len() + from.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: [usize; 5] = [0, LONG_BYTES - 1, LONG_BYTES, PIECE_BYTES * 3 + 5, PAGE_BYTES + 1];

    #[test]
    fn every_byte_is_copied_and_no_other_one_at_every_distance() {
        let bytes: Vec<u8> = (0..PAGE_BYTES + 100).map(|index| (index % 251) as u8).collect();
        let from = &bytes[bytes.as_ptr().align_offset(8)..];
        for distance in [0, 1, 16, 31, 32, 63, 64, 65, 2048, 4095] {
            for length in LENGTHS {
                let mut to = vec![255; 3 * PAGE_BYTES];
                let at = (from.as_ptr().addr() + distance).wrapping_sub(to.as_ptr().addr()) % PAGE_BYTES;
                copy_slice(&from[..length], &mut to[at..at + length]);
                assert_eq!(to[at..at + length], from[..length], "{length} bytes at distance {distance}");
                let others = to[..at].iter().chain(&to[at + length..]);
                assert!(others.into_iter().all(|&byte| byte == 255), "{length} bytes at distance {distance}");
            }
        }
    }

    #[test]
    fn bytes_may_move_within_a_buffer() {
        for (from, to) in [(0, 16), (16, 0), (0, PAGE_BYTES + 16), (PAGE_BYTES + 16, 32)] {
            let bytes: Vec<u8> = (0..4 * PAGE_BYTES).map(|index| (index % 253) as u8).collect();
            let (mut moved, mut expected) = (bytes.clone(), bytes);
            expected.copy_within(from..from + 5000, to);
            // SAFETY: both ranges are inside the buffer.
            unsafe { copy(moved.as_ptr().add(from), moved.as_mut_ptr().add(to), 5000) };
            assert_eq!(moved, expected, "from {from} to {to}");
        }
    }

    #[test]
    fn bytes_are_appended_behind_the_end() {
        for length in LENGTHS {
            let bytes: Vec<u8> = (0..length).map(|index| (index % 241) as u8).collect();
            let mut to = vec![7, 8];
            append(&bytes, &mut to);
            assert_eq!((&to[..2], &to[2..]), (&[7, 8][..], &bytes[..]));
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn slow_is_a_destination_that_is_a_little_behind_the_source_in_its_page() {
        let slow = |from, to| is_slow(from * PAGE_BYTES + 4090, to, LONG_BYTES);
        assert!(slow(7, 4091) && slow(7, 9 * PAGE_BYTES + 10), "also across the end of the page");
        assert!(!slow(7, 4090) && !slow(7, 4089) && !slow(7, 4090 + 64));
        assert!(!is_slow(0, 16, LONG_BYTES - 1), "a short copy");
    }
}
