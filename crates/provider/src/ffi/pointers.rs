//! Pointers between C and Rust, as types that state the promises of the C side: [`Out`], [`OutArray`] and [`InArray`]
//! for variables and arrays, [`UserBuffer`] and [`UserVector`] for the memory of messages.
//!
//! Programs reach the functions in the tables only through objects, so every argument comes from a program that uses
//! libfabric. libfabric's manual pages state what it promises. Each type here stands for one such promise. It has no
//! safe constructor from a bare pointer, so safe Rust cannot forge it. Pointers inside structures of the caller have no
//! such type: `inner` and `inner_string` follow them. Optional structures arrive as `Option<&T>`, which is a C pointer
//! that may be NULL.

use libc::{c_char, c_void, iovec};
use std::ffi::CStr;
use std::marker::PhantomData;
use std::ptr::NonNull;
use weir_link::memory::UserMemory;

/// The caller's variable for one result. May be NULL; writing to it then does nothing.
#[repr(transparent)]
pub struct Out<'a, T>(Option<NonNull<T>>, PhantomData<&'a mut T>);

impl<T> Out<'_, T> {
    /// Sets the variable.
    pub fn set(&mut self, value: T) {
        if let Some(place) = self.0 {
            // SAFETY: the caller of the entry point gave a pointer to one writable, aligned T, valid during the call.
            // This value does not outlive the call. The old content is plain C data, so nothing must be dropped.
            unsafe { place.as_ptr().write(value) };
        }
    }

    /// Whether the pointer is not NULL.
    pub fn is_some(&self) -> bool {
        self.0.is_some()
    }
}

impl<T: Copy> Out<'_, T> {
    /// The current value. For lengths, which callers give and get in the same variable.
    pub fn value(&self) -> Option<T> {
        // SAFETY: as in `set`. Used only where libfabric says that the caller has initialised the variable.
        self.0.map(|place| unsafe { place.as_ptr().read() })
    }
}

impl<'a, T> From<&'a mut T> for Out<'a, T> {
    fn from(place: &'a mut T) -> Out<'a, T> {
        Out(Some(NonNull::from(place)), PhantomData)
    }
}

/// The caller's array for results. The caller gives its length beside it. May be NULL.
#[repr(transparent)]
pub struct OutArray<'a, T>(Option<NonNull<T>>, PhantomData<&'a mut T>);

impl<'a, T> OutArray<'a, T> {
    /// The same array for elements of another type, if the type depends on how the object was opened.
    pub fn cast<U>(self) -> OutArray<'a, U> {
        OutArray(self.0.map(NonNull::cast), PhantomData)
    }

    /// No array. Writes to it do nothing.
    pub fn none() -> OutArray<'a, T> {
        OutArray(None, PhantomData)
    }

    /// The same array once more, for a call that repeats.
    pub fn reborrow(&self) -> OutArray<'a, T> {
        OutArray(self.0, PhantomData)
    }

    /// Sets element `index`, which must be below the caller's count.
    pub fn set(&mut self, index: usize, value: T) {
        if let Some(array) = self.0 {
            // SAFETY: the caller gave an array of `count` elements, and the entry points use only indices below that.
            // Unaligned, because `fi_av_insert` and completion buffers are plain bytes for some callers.
            unsafe { array.as_ptr().add(index).write_unaligned(value) };
        }
    }

    /// Copies `bytes` to the start. The array must be long enough.
    pub fn set_bytes(&mut self, bytes: &[u8]) {
        if let Some(array) = self.0 {
            // SAFETY: the entry point has checked that the caller gave at least as many bytes. The slice is live and
            // cannot overlap memory of the program.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), array.as_ptr().cast(), bytes.len()) };
        }
    }

    /// Whether the pointer is not NULL.
    pub fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// The pointer, to return it to the caller.
    pub fn as_ptr(&self) -> *mut T {
        self.0.map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }
}

impl<'a, T> From<&'a mut [T]> for OutArray<'a, T> {
    fn from(array: &'a mut [T]) -> OutArray<'a, T> {
        OutArray(NonNull::new(array.as_mut_ptr()), PhantomData)
    }
}

/// The caller's array of arguments. The caller gives its length beside it. May be NULL.
#[repr(transparent)]
pub struct InArray<'a, T>(Option<NonNull<T>>, PhantomData<&'a T>);

impl<'a, T: Copy> InArray<'a, T> {
    /// Element `index`, which must be below the caller's count.
    pub fn at(&self, index: usize) -> Option<T> {
        // SAFETY: the caller gave `count` elements, and the entry points use only indices below that. Addresses in
        // `fi_av_insert` need not be aligned.
        self.0.map(|array| unsafe { array.as_ptr().add(index).read_unaligned() })
    }
}

impl<'a, T> From<&'a [T]> for InArray<'a, T> {
    fn from(array: &'a [T]) -> InArray<'a, T> {
        InArray(NonNull::new(array.as_ptr().cast_mut()), PhantomData)
    }
}

/// The buffer of a data operation. The program keeps it valid until the operation completes.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct UserBuffer(*mut c_void);

impl UserBuffer {
    /// Whether the pointer is NULL.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The buffer and its length as a view.
    #[inline]
    pub fn memory(self, bytes: usize) -> UserMemory {
        // SAFETY: a UserBuffer exists only as an argument of a libfabric call with its length beside it. The program
        // promises that it stays valid until the completion. For inject it stays valid until the call returns, and
        // the engine copies it. For `fi_mr_reg` it stays valid until the region is closed, and the engine forgets it
        // then.
        unsafe { UserMemory::contiguous(self.0.cast(), bytes) }
    }

    /// For tests: memory of the caller.
    ///
    /// # Safety
    /// The conditions of [`UserMemory::contiguous`] must hold for the operation that gets it.
    pub const unsafe fn new(address: *mut c_void) -> UserBuffer {
        UserBuffer(address)
    }
}

/// The scattered buffer of a data operation. The vector is valid during the call, the memory that it names until the
/// completion.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct UserVector(*const iovec);

impl UserVector {
    /// The pieces as a view. Zero or one piece, the usual case, allocates nothing.
    #[inline]
    pub fn memory(self, count: usize) -> UserMemory {
        match self.pieces(count) {
            [] => UserMemory::EMPTY,
            [one] => UserBuffer(one.iov_base).memory(one.iov_len),
            several => {
                let pieces = several.iter().map(|piece| (piece.iov_base.cast(), piece.iov_len));
                // SAFETY: as for `UserBuffer::memory`, for each piece.
                unsafe { UserMemory::scattered(pieces) }
            }
        }
    }

    /// The pieces.
    pub fn pieces<'a>(self, count: usize) -> &'a [iovec] {
        if self.0.is_null() || count == 0 {
            return &[];
        }
        // SAFETY: the program gave `count` elements at this address, valid during the call. Callers in this crate do
        // not keep the slice longer.
        unsafe { std::slice::from_raw_parts(self.0, count) }
    }

    /// For tests: a vector of the caller.
    ///
    /// # Safety
    /// As for [`UserMemory::scattered`].
    pub const unsafe fn new(pieces: *const iovec) -> UserVector {
        UserVector(pieces)
    }
}

/// `fi_ioc`: words of the program, in one piece.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiIoc {
    /// Where they lie.
    pub addr: UserBuffer,
    /// Number of words.
    pub count: usize,
}

/// The words of an atomic operation, in pieces (`fi_ioc`). The vector is valid during the call, the memory that it names
/// until the completion.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct UserWords(*const FiIoc);

impl UserWords {
    /// Number of words in the first `pieces` pieces.
    pub fn count(self, pieces: usize) -> usize {
        self.pieces(pieces).iter().fold(0, |count, piece| count.saturating_add(piece.count))
    }

    /// The words, of `word_bytes` bytes each. Their number must be checked before.
    pub fn memory(self, pieces: usize, word_bytes: usize) -> UserMemory {
        match self.pieces(pieces) {
            [] => UserMemory::EMPTY,
            [one] => one.addr.memory(one.count * word_bytes),
            several => {
                let pieces = several.iter().map(|piece| (piece.addr.0.cast(), piece.count * word_bytes));
                // SAFETY: as for `UserBuffer::memory`, for each piece.
                unsafe { UserMemory::scattered(pieces) }
            }
        }
    }

    fn pieces<'a>(self, count: usize) -> &'a [FiIoc] {
        if self.0.is_null() || count == 0 {
            return &[];
        }
        // SAFETY: the program gave `count` elements at this address, valid during the call. The slice is not kept longer.
        unsafe { std::slice::from_raw_parts(self.0, count) }
    }

    /// For tests: a vector of the caller.
    ///
    /// # Safety
    /// As for [`UserMemory::scattered`].
    pub const unsafe fn new(pieces: *const FiIoc) -> UserWords {
        UserWords(pieces)
    }
}

/// The variable for the answer to a command of `fi_control`. May be NULL.
///
/// `argument` must come from a call whose command, by libfabric's manual pages, has a `T *` there.
pub(crate) fn answer<'a, T>(argument: *mut c_void) -> Out<'a, T> {
    Out(NonNull::new(argument.cast()), PhantomData)
}

/// A structure inside a structure of the caller (such as `fi_info.tx_attr`). May be NULL.
///
/// `pointer` must come from such a structure. libfabric promises that its target is valid during the call.
pub(crate) fn inner<'a, T>(pointer: *const T) -> Option<&'a T> {
    // SAFETY: see above. Used only for members of structures of the current call, and not kept.
    unsafe { pointer.as_ref() }
}

/// A string inside a structure of the caller. May be NULL.
pub(crate) fn inner_string<'a>(pointer: *const c_char) -> Option<&'a CStr> {
    // SAFETY: as for `inner`. Strings in libfabric's structures end with NUL.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) })
}
