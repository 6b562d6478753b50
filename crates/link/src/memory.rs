//! Buffers of operations: [`UserMemory`] is memory of the program, in one or several pieces. [`OwnedMemory`] is memory
//! of weir, for example for bounce buffers, with views of the same type. Both copy, and a `UserMemory` also changes
//! single words atomically.
//!
//! Making a `UserMemory` from addresses is `unsafe`, because the caller promises that they stay valid. A view of weir's
//! own memory is safe to make, but must be dropped before its owner.

use crate::copy::copy;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// One contiguous piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    address: usize,
    bytes: usize,
}

/// Further pieces of a buffer, or memory that it keeps alive.
#[derive(Debug)]
enum Backing {
    /// All pieces but the first.
    Pieces(Box<[Piece]>),
    /// The allocation that the buffer is.
    Owned {
        /// Dropped with the buffer.
        _memory: OwnedMemory,
    },
}

/// The buffer of one operation: usually one piece, several for scattered buffers.
#[derive(Debug)]
pub struct UserMemory {
    first: Piece,
    /// Boxed: few buffers have one, but all are written and read.
    backing: Option<Box<Backing>>,
    bytes: u64,
}

impl UserMemory {
    /// No memory, for messages of length 0.
    pub const EMPTY: UserMemory =
        UserMemory { first: Piece { address: 0, bytes: 0 }, backing: None, bytes: 0 };

    /// A contiguous buffer.
    ///
    /// # Safety
    /// `bytes` bytes from `address` must stay valid for the accesses of the operation (reads for a send, writes for a
    /// receive). They must be valid on every thread until the value and its clones are dropped.
    #[inline]
    pub unsafe fn contiguous(address: *mut u8, bytes: usize) -> UserMemory {
        UserMemory { first: Piece { address: address as usize, bytes }, backing: None, bytes: bytes as u64 }
    }

    /// A scattered buffer of several pieces, in this order.
    ///
    /// # Safety
    /// As for [`UserMemory::contiguous`], for each piece.
    pub unsafe fn scattered(pieces: impl IntoIterator<Item = (*mut u8, usize)>) -> UserMemory {
        let pieces: Vec<Piece> = pieces
            .into_iter()
            .map(|(address, bytes)| Piece { address: address as usize, bytes })
            .filter(|piece| piece.bytes > 0)
            .collect();
        let bytes = pieces.iter().map(|piece| piece.bytes as u64).sum();
        match pieces.split_first() {
            None => UserMemory::EMPTY,
            Some((&first, [])) => UserMemory { first, backing: None, bytes },
            Some((&first, rest)) => {
                UserMemory { first, backing: Some(Box::new(Backing::Pieces(rest.into()))), bytes }
            }
        }
    }

    /// Several buffers as one, in this order.
    pub fn joined(parts: impl IntoIterator<Item = UserMemory>) -> UserMemory {
        let mut pieces = Vec::new();
        for part in parts {
            part.for_each_stretch(0, part.bytes, |address, bytes| pieces.push((address, bytes)));
        }
        // SAFETY: the promises behind the parts cover all pieces of the whole.
        unsafe { UserMemory::scattered(pieces) }
    }

    /// The same buffer. It must not be used after `self` is dropped, as for [`OwnedMemory::view`].
    pub fn view(&self) -> UserMemory {
        let backing = self.rest().map(|rest| Box::new(Backing::Pieces(rest.into())));
        UserMemory { first: self.first, backing, bytes: self.bytes }
    }

    /// `bytes` bytes from `offset` on. The rule of [`UserMemory::view`] applies.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    pub fn part(&self, offset: u64, bytes: u64) -> UserMemory {
        let mut pieces = Vec::new();
        self.for_each_stretch(offset, bytes, |address, bytes| pieces.push((address, bytes)));
        // SAFETY: the promise behind this buffer covers all pieces of the part.
        unsafe { UserMemory::scattered(pieces) }
    }

    /// `bytes` bytes from `offset` on, if they are one piece of the first one. Costs no allocation. The rule of
    /// [`UserMemory::view`] applies.
    #[inline]
    pub fn stretch(&self, offset: u64, bytes: usize) -> Option<UserMemory> {
        let end = offset.checked_add(bytes as u64)?;
        if end > self.first.bytes as u64 || end > self.bytes {
            return None;
        }
        let first = Piece { address: self.first.address + offset as usize, bytes };
        Some(UserMemory { first, backing: None, bytes: bytes as u64 })
    }

    /// Moves the buffer out, and leaves an empty one.
    #[inline(always)]
    pub fn take(&mut self) -> UserMemory {
        let bytes = std::mem::take(&mut self.bytes);
        UserMemory { first: self.first, backing: self.backing.take(), bytes }
    }

    /// Length over all pieces. Unit: bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The pieces after the first.
    #[inline(always)]
    fn rest(&self) -> Option<&[Piece]> {
        match self.backing.as_deref() {
            Some(Backing::Pieces(rest)) => Some(rest),
            Some(Backing::Owned { .. }) | None => None,
        }
    }

    /// Drops the buffer. Most buffers own nothing, so this is checked before the drop, which is a call.
    #[inline(always)]
    pub fn release(self) {
        match &self.backing {
            Some(_) => drop(self),
            None => core::mem::forget(self), // there is nothing to drop
        }
    }

    /// Address of the first byte, if the buffer is one piece.
    #[inline]
    pub fn contiguous_address(&self) -> Option<usize> {
        self.rest().is_none().then_some(self.first.address)
    }

    /// Calls `visit(address, bytes)` for each contiguous part of `[offset, offset + bytes)`, in order.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    #[inline(always)]
    pub fn for_each_stretch(&self, offset: u64, bytes: u64, mut visit: impl FnMut(*mut u8, usize)) {
        assert!(
            offset.checked_add(bytes).is_some_and(|end| end <= self.bytes),
            "{bytes} bytes at {offset} are outside a buffer of {} bytes",
            self.bytes
        );
        match self.rest() {
            // The block moves `visit`, so that only this rare case stores it in memory.
            Some(rest) => for_each_piece(&self.first, rest, offset as usize, bytes as usize, &mut { visit }),
            // A single piece is as long as the whole buffer.
            None if bytes > 0 => visit((self.first.address + offset as usize) as *mut u8, bytes as usize),
            None => {}
        }
    }

    /// Copies `from` into the buffer at `offset`.
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) {
        let mut done = 0;
        self.for_each_stretch(offset, from.len() as u64, |to, bytes| {
            // SAFETY: the maker of this value promised that its pieces are writable while it exists. The part is
            // inside one piece, and `from` is a live slice of at least `done + bytes` bytes. They do not
            // overlap, because `from` is borrowed from safe Rust and the pieces are the program's.
            unsafe { copy_bytes(from.as_ptr().add(done), to, bytes) };
            done += bytes;
        });
    }

    /// Copies `bytes` bytes from the buffer at `offset` to `into` at `into_offset`.
    #[inline]
    pub fn copy_to(&self, offset: u64, bytes: u64, into: &UserMemory, into_offset: u64) {
        let mut done = 0;
        self.for_each_stretch(offset, bytes, |from, length| {
            // SAFETY: as in `write`: readable by the promise behind this value. The program does not write to the
            // bytes while an operation reads them.
            let stretch = unsafe { core::slice::from_raw_parts(from, length) };
            into.write(into_offset + done, stretch);
            done += length as u64;
        });
    }

    /// Changes the word of `bytes` bytes at `offset` to what `change` makes of it, as one step for all threads and
    /// processes that use atomic instructions. Returns the old word, in the lower bytes. `change` may be called repeatedly.
    ///
    /// `None`: the word has not 4 or 8 bytes, is not aligned to its length, or is not in one piece.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    pub fn update_word(&self, offset: u64, bytes: u32, mut change: impl FnMut(u64) -> u64) -> Option<u64> {
        let mut whole = None;
        self.for_each_stretch(offset, bytes.into(), |address, length| {
            if length == bytes as usize && (address as usize).is_multiple_of(length) {
                whole = Some(address);
            }
        });
        let address = whole?;
        match bytes {
            4 => {
                // SAFETY: aligned, and 4 bytes of one piece, which is readable and writable by the promise behind this
                // value. Everybody else who uses the word meanwhile uses atomic instructions too: the program promises
                // that when it lets peers change words of its memory.
                let word = unsafe { AtomicU32::from_ptr(address.cast()) };
                let old = word.fetch_update(SeqCst, SeqCst, |old| Some(change(old.into()) as u32));
                old.ok().map(u64::from)
            }
            8 => {
                // SAFETY: as above, with 8 bytes.
                let word = unsafe { AtomicU64::from_ptr(address.cast()) };
                word.fetch_update(SeqCst, SeqCst, |old| Some(change(old))).ok()
            }
            _ => None,
        }
    }

    /// Appends `bytes` bytes of the buffer at `offset` to `into`.
    #[inline]
    pub fn append_to(&self, offset: u64, bytes: usize, into: &mut Vec<u8>) {
        into.reserve(bytes);
        let mut end = into.len();
        self.for_each_stretch(offset, bytes as u64, |from, length| {
            // SAFETY: as in `write`, with readable pieces. All stretches together have `bytes` bytes, for which `into` has room
            // behind its end.
            unsafe { copy(from, into.as_mut_ptr().add(end), length) };
            end += length;
        });
        // SAFETY: the bytes up to there were written just now.
        unsafe { into.set_len(end) };
    }

    /// Copies from the buffer at `offset` into `into`.
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        let mut done = 0;
        self.for_each_stretch(offset, into.len() as u64, |from, bytes| {
            // SAFETY: as in `write`, with readable pieces and a live mutable slice.
            unsafe { copy(from, into.as_mut_ptr().add(done), bytes) };
            done += bytes;
        });
    }
}

/// [`copy`]. The head of a packet most often carries a word, or the first 16 bytes of a longer message. For
/// these lengths the compiler makes moves instead of a call.
///
/// # Safety
/// `from` is readable and `to` is writable for `bytes` bytes.
#[inline(always)]
pub(crate) unsafe fn copy_bytes(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise; each arm copies `bytes` bytes.
    unsafe {
        match bytes {
            8 => core::ptr::copy(from, to, 8),
            16 => core::ptr::copy(from, to, 16),
            _ => copy(from, to, bytes),
        }
    }
}

/// [`UserMemory::for_each_stretch`] of a scattered buffer.
#[cold]
fn for_each_piece(
    first: &Piece,
    rest: &[Piece],
    mut skip: usize,
    mut left: usize,
    visit: &mut dyn FnMut(*mut u8, usize),
) {
    for piece in core::iter::once(first).chain(rest) {
        if left == 0 {
            break;
        }
        if skip >= piece.bytes {
            skip -= piece.bytes;
            continue;
        }
        let here = left.min(piece.bytes - skip);
        visit((piece.address + skip) as *mut u8, here);
        skip = 0;
        left -= here;
    }
}

/// Memory that weir owns and names like the program's: bounce buffers and unexpected buffers.
#[derive(Debug)]
pub struct OwnedMemory {
    // A `Box<[u8]>` behind a raw pointer, so that views do not alias a Rust reference.
    address: *mut u8,
    bytes: usize,
}

// SAFETY: the allocation belongs to this value alone, not to a thread.
unsafe impl Send for OwnedMemory {}

impl OwnedMemory {
    /// A buffer of `bytes` bytes, all zero.
    pub fn new(bytes: usize) -> OwnedMemory {
        let boxed: Box<[u8]> = vec![0; bytes].into_boxed_slice();
        OwnedMemory { address: Box::into_raw(boxed).cast(), bytes }
    }

    /// A buffer with the contents of `memory`.
    pub fn copy_of(memory: &UserMemory) -> OwnedMemory {
        let owned = OwnedMemory::new(memory.bytes() as usize);
        // SAFETY: this value alone has the allocation, which is as long as its length says.
        let bytes = unsafe { core::slice::from_raw_parts_mut(owned.address, owned.bytes) };
        memory.read(0, bytes);
        owned
    }

    /// Copies the first `bytes` bytes to `memory` at `offset`.
    pub fn copy_to(&self, memory: &UserMemory, offset: u64, bytes: u64) {
        assert!(bytes <= self.bytes as u64, "{bytes} bytes are outside a buffer of {} bytes", self.bytes);
        // SAFETY: inside the allocation by the assertion. Nobody writes to it while `self` is borrowed, because only
        // the owner of the endpoint uses views.
        let from = unsafe { core::slice::from_raw_parts(self.address, bytes as usize) };
        memory.write(offset, from);
    }

    /// A part of the buffer as a view. The rule of [`OwnedMemory::view`] applies.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    #[inline]
    pub fn part(&self, offset: usize, bytes: usize) -> UserMemory {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "{bytes} bytes at {offset} are outside a buffer of {} bytes",
            self.bytes
        );
        // SAFETY: inside the allocation, which lives as long as `self`. By the documented rule views are dropped
        // first.
        unsafe { UserMemory::contiguous(self.address.add(offset), bytes) }
    }

    /// The buffer as a view. The view must not be used after `self` is dropped. So callers keep both in one structure
    /// and drop the view first.
    pub fn view(&self) -> UserMemory {
        // SAFETY: the allocation lives as long as `self`. By the documented rule views are dropped first.
        unsafe { UserMemory::contiguous(self.address, self.bytes) }
    }
}

impl From<OwnedMemory> for UserMemory {
    /// The whole buffer, which lives as long as the value.
    fn from(memory: OwnedMemory) -> UserMemory {
        let first = Piece { address: memory.address as usize, bytes: memory.bytes };
        let bytes = memory.bytes as u64;
        UserMemory { first, backing: Some(Box::new(Backing::Owned { _memory: memory })), bytes }
    }
}

impl Drop for OwnedMemory {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw` in `new` with the same length, and dropped once.
        drop(unsafe { Box::from_raw(core::ptr::slice_from_raw_parts_mut(self.address, self.bytes)) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_is_within_the_first_piece() {
        let (a, b) = (OwnedMemory::new(10), OwnedMemory::new(20));
        let both = UserMemory::joined([a.view(), b.view()]);
        let stretch = both.stretch(4, 6).expect("inside");
        stretch.write(0, &[7; 6]);
        let mut bytes = [0; 10];
        a.view().read(0, &mut bytes);
        assert_eq!((bytes, stretch.bytes()), ([0, 0, 0, 0, 7, 7, 7, 7, 7, 7], 6));
        let outside = [(4, 7), (10, 1), (0, 11), (u64::MAX, 1), (u64::MAX, usize::MAX)];
        assert!(outside.iter().all(|&(offset, bytes)| both.stretch(offset, bytes).is_none()));
        assert!(UserMemory::EMPTY.stretch(0, 1).is_none());
    }

    #[test]
    fn words_change_only_where_they_are_aligned_and_whole() {
        let memory = OwnedMemory::new(24);
        let view = memory.view();
        let start = view.contiguous_address().expect("one piece");
        let first = start.next_multiple_of(8) - start;
        assert_eq!(view.update_word(first as u64, 8, |old| old + (7 << 32) + 5), Some(0));
        assert_eq!(view.update_word(first as u64, 4, |old| old + 1), Some(5), "its lower half");
        assert_eq!(view.update_word(first as u64, 8, |old| old), Some((7 << 32) + 6));
        for (offset, bytes) in [(1, 4), (4, 8), (2, 2)] {
            assert_eq!(view.update_word((first + offset) as u64, bytes, |_| 0), None, "{bytes} at {offset}");
        }
        let two = UserMemory::joined([memory.part(first, 4), memory.part(first + 4, 4)]);
        assert_eq!(two.update_word(0, 8, |_| 0), None, "two pieces");
        assert_eq!(two.update_word(4, 4, |old| old), Some(7));
    }

    #[test]
    fn parts_of_several_pieces_are_appended_in_order() {
        let memory = OwnedMemory::new(8);
        memory.view().write(0, b"abcdefgh");
        let pieces = UserMemory::joined([memory.part(4, 4), memory.part(0, 3)]);
        let mut into = vec![b'-'];
        for (offset, bytes) in [(1, 5), (0, 0), (6, 1)] {
            pieces.append_to(offset, bytes, &mut into);
        }
        assert_eq!(into, b"-fghabc");
    }

    #[test]
    fn a_write_of_any_length_changes_only_its_bytes() {
        let from: Vec<u8> = (1..=40).collect();
        for (offset, bytes) in (0..3).flat_map(|offset| (0..=40).map(move |bytes| (offset, bytes))) {
            let memory = OwnedMemory::new(48);
            memory.view().write(offset, &from[..bytes]);
            let mut all = [0; 48];
            memory.view().read(0, &mut all);
            let (before, rest) = all.split_at(offset as usize);
            assert_eq!(rest[..bytes], from[..bytes], "at {offset}");
            assert!(before.iter().chain(&rest[bytes..]).all(|&byte| byte == 0), "{bytes} bytes at {offset}");
        }
    }

    #[test]
    fn no_change_of_a_word_is_lost() {
        let memory = OwnedMemory::new(16);
        let view = memory.view();
        let start = view.contiguous_address().expect("one piece");
        let offset = (start.next_multiple_of(8) - start) as u64;
        const CHANGES: u64 = if cfg!(miri) { 20 } else { 10_000 };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let view = view.view();
                scope.spawn(move || {
                    for _ in 0..CHANGES {
                        view.update_word(offset, 8, |old| old + 1);
                    }
                });
            }
        });
        assert_eq!(view.update_word(offset, 8, |old| old), Some(2 * CHANGES));
    }
}
