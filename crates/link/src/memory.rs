//! The program's memory, as the program named it: addresses and lengths that it keeps valid until the
//! operation completes. Making one is the caller's promise (`unsafe`); using it is then safe.

/// One contiguous piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    address: usize,
    bytes: usize,
}

/// Buffer of one operation: one piece most often, several for scattered ones.
#[derive(Clone, Debug)]
pub struct UserMemory {
    first: Piece,
    rest: Option<Box<[Piece]>>,
    bytes: u64,
}

impl UserMemory {
    /// No memory at all, for zero-length messages.
    pub const EMPTY: UserMemory = UserMemory { first: Piece { address: 0, bytes: 0 }, rest: None, bytes: 0 };

    /// A contiguous buffer.
    ///
    /// # Safety
    /// `bytes` bytes from `address` must stay valid for the accesses of the operation (reads for a send,
    /// writes for a receive) until the value and its clones are gone, on whatever thread uses it.
    #[inline]
    pub unsafe fn contiguous(address: *mut u8, bytes: usize) -> UserMemory {
        UserMemory { first: Piece { address: address as usize, bytes }, rest: None, bytes: bytes as u64 }
    }

    /// A scattered buffer: the pieces one after the other.
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
            Some((&first, [])) => UserMemory { first, rest: None, bytes },
            Some((&first, rest)) => UserMemory { first, rest: Some(rest.into()), bytes },
        }
    }

    /// Several buffers as one, in this order.
    pub fn joined(parts: impl IntoIterator<Item = UserMemory>) -> UserMemory {
        let mut pieces = Vec::new();
        for part in parts {
            part.for_each_stretch(0, part.bytes, |address, bytes| pieces.push((address, bytes)));
        }
        // SAFETY: the promise behind each part covers its pieces; it now covers the whole.
        unsafe { UserMemory::scattered(pieces) }
    }

    /// Length over all pieces. Unit: bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Address of the first byte, if the buffer is one piece.
    #[inline]
    pub fn contiguous_address(&self) -> Option<usize> {
        self.rest.is_none().then_some(self.first.address)
    }

    /// Calls `visit(address, bytes)` for each contiguous stretch of `[offset, offset + bytes)`, in order.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    #[inline]
    pub fn for_each_stretch(&self, offset: u64, bytes: u64, mut visit: impl FnMut(*mut u8, usize)) {
        assert!(
            offset.checked_add(bytes).is_some_and(|end| end <= self.bytes),
            "range {offset}+{bytes} outside a buffer of {} bytes",
            self.bytes
        );
        let Some(rest) = self.rest.as_deref() else {
            // One piece, as long as the whole.
            if bytes > 0 {
                visit((self.first.address + offset as usize) as *mut u8, bytes as usize);
            }
            return;
        };
        let mut skip = offset as usize;
        let mut left = bytes as usize;
        for piece in core::iter::once(&self.first).chain(rest) {
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

    /// Copies `from` into the buffer at `offset`.
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) {
        let mut done = 0;
        self.for_each_stretch(offset, from.len() as u64, |to, bytes| {
            // SAFETY: whoever made this value promised that its pieces are writable while it lives; the stretch
            // lies inside one piece, and `from` is a live slice of at least `done + bytes` bytes. The two
            // may not overlap, since `from` is borrowed from safe Rust and the pieces are the program's.
            unsafe { core::ptr::copy(from.as_ptr().add(done), to, bytes) };
            done += bytes;
        });
    }

    /// Copies `bytes` bytes from the buffer at `offset` to `into` at `into_offset`.
    pub fn copy_to(&self, offset: u64, bytes: u64, into: &UserMemory, into_offset: u64) {
        let mut done = 0;
        self.for_each_stretch(offset, bytes, |from, length| {
            // SAFETY: as in `write`: readable by the promise behind this value. The bytes may be the program's, which
            // does not write to them while an operation reads them.
            let stretch = unsafe { core::slice::from_raw_parts(from, length) };
            into.write(into_offset + done, stretch);
            done += length as u64;
        });
    }

    /// Copies from the buffer at `offset` into `into`.
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        let mut done = 0;
        self.for_each_stretch(offset, into.len() as u64, |from, bytes| {
            // SAFETY: as in `write`, with readable pieces and a live mutable slice.
            unsafe { core::ptr::copy(from, into.as_mut_ptr().add(done), bytes) };
            done += bytes;
        });
    }
}

/// Memory of our own that can be named like the program's: bounce buffers, unexpected messages.
#[derive(Debug)]
pub struct OwnedMemory {
    // `Box<[u8]>` behind a raw pointer, so that views do not alias a Rust reference.
    address: *mut u8,
    bytes: usize,
}

// SAFETY: the allocation belongs to this value alone; it is not tied to a thread.
unsafe impl Send for OwnedMemory {}

impl OwnedMemory {
    /// A buffer of `bytes` bytes; not initialised by us beyond what the allocator gives (zeroes).
    pub fn new(bytes: usize) -> OwnedMemory {
        let boxed: Box<[u8]> = vec![0; bytes].into_boxed_slice();
        OwnedMemory { address: Box::into_raw(boxed).cast(), bytes }
    }

    /// A buffer with the contents of `memory`.
    pub fn copy_of(memory: &UserMemory) -> OwnedMemory {
        let owned = OwnedMemory::new(memory.bytes() as usize);
        // SAFETY: the allocation is ours alone here and as long as its length says.
        let bytes = unsafe { core::slice::from_raw_parts_mut(owned.address, owned.bytes) };
        memory.read(0, bytes);
        owned
    }

    /// Copies the first `bytes` bytes to `memory` at `offset`.
    pub fn copy_to(&self, memory: &UserMemory, offset: u64, bytes: u64) {
        assert!(bytes <= self.bytes as u64, "{bytes} bytes of a buffer of {}", self.bytes);
        // SAFETY: inside the allocation by the assertion; nobody writes to it while `self` is borrowed, since views
        // are used only by the one owner of the endpoint.
        let from = unsafe { core::slice::from_raw_parts(self.address, bytes as usize) };
        memory.write(offset, from);
    }

    /// A part of the buffer as operation memory. The same rule as for [`OwnedMemory::view`].
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    #[inline]
    pub fn part(&self, offset: usize, bytes: usize) -> UserMemory {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset, "{offset}+{bytes} of {}", self.bytes);
        // SAFETY: inside the allocation, which lives as long as `self`; the documented rule is that views die first.
        unsafe { UserMemory::contiguous(self.address.add(offset), bytes) }
    }

    /// The buffer as operation memory. The view must not be used after `self` is dropped: callers keep both
    /// in one structure and drop the view first.
    pub fn view(&self) -> UserMemory {
        // SAFETY: the allocation lives as long as `self`; the documented rule is that views die first.
        unsafe { UserMemory::contiguous(self.address, self.bytes) }
    }
}

impl Drop for OwnedMemory {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw` in `new` with the same length, dropped once.
        drop(unsafe { Box::from_raw(core::ptr::slice_from_raw_parts_mut(self.address, self.bytes)) });
    }
}
