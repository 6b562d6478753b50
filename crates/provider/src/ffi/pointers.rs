//! Pointers that cross the border between C and us, as types.
//!
//! The functions in the tables are reached only through the objects that carry them, so every argument comes from
//! a program that speaks libfabric, and libfabric's manual pages say what it promises. A type here stands for one
//! such promise; it has no public constructor from a bare pointer, so that safe Rust cannot forge it. Objects
//! arrive as `&Handle` (made by us with [`hand_out`], not closed yet) and, in `fi_close`, as `Box<Handle>` (made by us, given back
//! once, no other call under way). Optional structures arrive as `Option<&T>`, which is a C pointer that may be NULL.

use super::{FiCqErrEntry, Fid};
use libc::{c_char, c_void, iovec};
use std::ffi::CStr;
use std::marker::PhantomData;
use std::ptr::NonNull;
use weir_link::memory::UserMemory;

/// Makes an object the program's: C keeps the pointer until it gives it back to `fi_close`.
pub fn hand_out<H>(handle: H) -> *mut H {
    Box::into_raw(Box::new(handle))
}

/// A place of the caller's for one result. May be NULL; writing to that does nothing.
#[repr(transparent)]
pub struct Out<'a, T>(Option<NonNull<T>>, PhantomData<&'a mut T>);

impl<T> Out<'_, T> {
    /// Fills the place in.
    pub fn set(&mut self, value: T) {
        if let Some(place) = self.0 {
            // SAFETY: the caller of the entry point gave a pointer to one writable, aligned T, valid during
            // the call (which is as long as this value lives). What was there is plain C data: no drop is due.
            unsafe { place.as_ptr().write(value) };
        }
    }

    /// Whether there is a place.
    pub fn is_some(&self) -> bool {
        self.0.is_some()
    }
}

impl<T: Copy> Out<'_, T> {
    /// What stands there: for lengths, which callers give and take at the same place.
    pub fn value(&self) -> Option<T> {
        // SAFETY: as in `set`; used only where libfabric says that the caller has initialised the place.
        self.0.map(|place| unsafe { place.as_ptr().read() })
    }
}

impl<'a, T> From<&'a mut T> for Out<'a, T> {
    fn from(place: &'a mut T) -> Out<'a, T> {
        Out(Some(NonNull::from(place)), PhantomData)
    }
}

/// An array of the caller's for results, its length given beside it. May be NULL.
#[repr(transparent)]
pub struct OutArray<'a, T>(Option<NonNull<T>>, PhantomData<&'a mut T>);

impl<'a, T> OutArray<'a, T> {
    /// The same place, for elements of another type: where the type depends on how the object was opened.
    pub fn cast<U>(self) -> OutArray<'a, U> {
        OutArray(self.0.map(NonNull::cast), PhantomData)
    }

    /// No array: what is written to it is lost.
    pub fn none() -> OutArray<'a, T> {
        OutArray(None, PhantomData)
    }

    /// The same array once more, for a call that tries until it succeeds.
    pub fn reborrow(&self) -> OutArray<'a, T> {
        OutArray(self.0, PhantomData)
    }

    /// Fills in element `index`, which must be below the caller's count.
    pub fn set(&mut self, index: usize, value: T) {
        if let Some(array) = self.0 {
            // SAFETY: the caller gave room for `count` elements, and the entry points only name indices below
            // that. Unaligned, since `fi_av_insert` and the completion buffers are plain bytes to some callers.
            unsafe { array.as_ptr().add(index).write_unaligned(value) };
        }
    }

    /// Copies `bytes` to the beginning; there must be room for them.
    pub fn set_bytes(&mut self, bytes: &[u8]) {
        if let Some(array) = self.0 {
            // SAFETY: the caller gave at least as many bytes as the entry point has compared with; our slice is
            // live and cannot overlap memory of the program.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), array.as_ptr().cast(), bytes.len()) };
        }
    }

    /// Whether there is an array.
    pub fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// The pointer, to be returned to the caller.
    pub fn as_ptr(&self) -> *mut T {
        self.0.map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }
}

impl<'a, T> From<&'a mut [T]> for OutArray<'a, T> {
    fn from(array: &'a mut [T]) -> OutArray<'a, T> {
        OutArray(NonNull::new(array.as_mut_ptr()), PhantomData)
    }
}

/// An array of the caller's to be read, its length given beside it. May be NULL.
#[repr(transparent)]
pub struct InArray<'a, T>(Option<NonNull<T>>, PhantomData<&'a T>);

impl<'a, T: Copy> InArray<'a, T> {
    /// Element `index`, which must be below the caller's count.
    pub fn at(&self, index: usize) -> Option<T> {
        // SAFETY: the caller gave `count` elements, and entry points only name indices below that. Addresses in
        // `fi_av_insert` need not be aligned.
        self.0.map(|array| unsafe { array.as_ptr().add(index).read_unaligned() })
    }
}

impl<'a, T> From<&'a [T]> for InArray<'a, T> {
    fn from(array: &'a [T]) -> InArray<'a, T> {
        InArray(NonNull::new(array.as_ptr().cast_mut()), PhantomData)
    }
}

/// A place of the caller's for an error of a completion queue. How long it is depends on the version of the API that the
/// program was written for, which it gave when it asked for the fabric.
#[repr(transparent)]
pub struct CqErrorOut(*mut FiCqErrEntry);

impl CqErrorOut {
    /// Fills the entry in, as far as a program of `api_version` has room. We have no further data on errors: where
    /// the program offers a buffer for it, the length is set to 0.
    pub fn fill(&self, entry: &FiCqErrEntry, api_version: u32) {
        let place = self.0;
        if place.is_null() {
            return;
        }
        // SAFETY: the program gave one entry of its API version's size. Each member is written through the pointer,
        // without a reference to the whole structure, and only those that this version has.
        unsafe {
            (*place).op_context = entry.op_context;
            (*place).flags = entry.flags;
            (*place).len = entry.len;
            (*place).buf = entry.buf;
            (*place).data = entry.data;
            (*place).tag = entry.tag;
            (*place).olen = entry.olen;
            (*place).err = entry.err;
            (*place).prov_errno = entry.prov_errno;
            if api_version >= super::version(1, 5) {
                if (*place).err_data_size == 0 {
                    (*place).err_data = std::ptr::null_mut();
                }
                (*place).err_data_size = 0;
            } else {
                (*place).err_data = std::ptr::null_mut();
            }
            if api_version >= super::version(1, 20) {
                (*place).src_addr = entry.src_addr;
            }
        }
    }
}

impl From<*mut FiCqErrEntry> for CqErrorOut {
    /// For tests, which give whole entries.
    fn from(place: *mut FiCqErrEntry) -> CqErrorOut {
        CqErrorOut(place)
    }
}

/// A buffer of a data operation: the program keeps it valid until the operation completes.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct UserBuffer(*mut c_void);

impl UserBuffer {
    /// The buffer and its length as operation memory.
    #[inline]
    pub fn memory(self, bytes: usize) -> UserMemory {
        // SAFETY: a UserBuffer exists only as an argument of a libfabric call with its length beside it. The
        // program has promised to leave it valid until the completion, inject: until the call returns (then
        // the engine copies). `fi_mr_reg`: until the region is closed; the engine forgets it then.
        unsafe { UserMemory::contiguous(self.0.cast(), bytes) }
    }

    /// For tests and the C side: memory of the caller.
    ///
    /// # Safety
    /// What [`UserMemory::contiguous`] asks for must hold for the operation that it is given to.
    pub const unsafe fn new(address: *mut c_void) -> UserBuffer {
        UserBuffer(address)
    }
}

/// A scattered buffer of a data operation: the vector is valid during the call, what it names until the completion.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct UserVector(*const iovec);

impl UserVector {
    /// The pieces as operation memory. Zero or one piece (the usual case) allocates nothing.
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

    /// The pieces themselves.
    pub fn pieces<'a>(self, count: usize) -> &'a [iovec] {
        if self.0.is_null() || count == 0 {
            return &[];
        }
        // SAFETY: the program gave `count` elements at this address, valid during the call; callers in this
        // crate do not keep the slice longer.
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

/// Whose kind of object is whose: the structures that begin with a [`Fid`] of class `CLASS`.
///
/// # Safety
/// The type is `repr(C)`, begins with a `Fid`, and every `Fid` with this class and [`Object::ops`] begins one.
pub unsafe trait Object {
    /// `fid.fclass` of all objects of this type.
    const CLASS: usize;
    /// The table that only our objects of this type carry.
    fn ops() -> *const c_void;
}

/// An object that the program names by its beginning; of any kind, perhaps another provider's. May be NULL.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct AnyObject<'a>(*const Fid, PhantomData<&'a Fid>);

impl<'a> AnyObject<'a> {
    /// Its kind.
    pub fn class(self) -> Option<usize> {
        // SAFETY: NULL, or an open object of the program, which begins with a Fid.
        unsafe { self.0.as_ref() }.map(|fid| fid.fclass)
    }

    /// The whole object, if it is one of ours of this kind.
    pub fn of<T: Object>(self) -> Option<&'a T> {
        // SAFETY: as in `class`.
        let fid = unsafe { self.0.as_ref() }?;
        if fid.fclass != T::CLASS || fid.ops != T::ops() {
            return None;
        }
        // SAFETY: class and table say that the Fid begins a T of ours (promise of `Object`). The pointer is the one that
        // `hand_out` gave, which covers the whole T, and the program has not closed it.
        Some(unsafe { &*self.0.cast::<T>() })
    }
}

impl From<*const Fid> for AnyObject<'_> {
    /// For pointers found in structures of the program.
    fn from(fid: *const Fid) -> Self {
        AnyObject(fid, PhantomData)
    }
}

/// Says how objects of a type are recognised: `object!(Handle, class, table)`.
macro_rules! object {
    ($handle:ty, $class:expr, $table:expr) => {
        // SAFETY: the handle is `repr(C)` with its `Fid` first, and the table is private to the file that makes
        // handles, so that nothing else carries it.
        unsafe impl crate::ffi::Object for $handle {
            const CLASS: usize = $class;
            fn ops() -> *const std::ffi::c_void {
                (&raw const $table).cast()
            }
        }
        const _: () = assert!(std::mem::offset_of!($handle, fid) == 0);
    };
}
pub(crate) use object;

/// A structure inside one that the caller gave (`fi_info.tx_attr` and the like); may be NULL.
///
/// `pointer` must come from such a structure: libfabric promises that what it names is valid during the call.
pub(crate) fn inner<'a, T>(pointer: *const T) -> Option<&'a T> {
    // SAFETY: see above; used only on members of structures of the current call, and not kept.
    unsafe { pointer.as_ref() }
}

/// A string inside a structure that the caller gave; may be NULL.
pub(crate) fn inner_string<'a>(pointer: *const c_char) -> Option<&'a CStr> {
    // SAFETY: as for `inner`; strings in libfabric's structures end with a NUL.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) })
}
