//! Memory of an answer of `fi_getinfo`: structures that the core frees piece by piece with `free`.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};

use weir_link::ADDRESS_BYTES;

use crate::core_library;
use crate::ffi::FiInfo;

/// `fi_allocinfo` of the core: a `fi_info` with its substructures, all zero, in the sizes of the core's version. Null:
/// this is no core, or no memory is left.
pub fn empty_info() -> *mut FiInfo {
    type DuplicateInfo = unsafe extern "C" fn(*const FiInfo) -> *mut FiInfo;
    // SAFETY: the core exports this name with this type, unchanged since 1.0. Of NULL it makes an empty structure.
    unsafe { core_library::function::<DuplicateInfo>(c"fi_dupinfo").map_or(null_mut(), |make| make(null())) }
}

/// Writes `value` to the beginning of `piece`, which the core allocated. Its structures may be larger than this
/// crate's, or smaller. So the piece grows to the size of `T` if necessary. Without a piece it makes one. `None`: no
/// memory is left.
pub fn fill<T>(piece: Option<*mut T>, value: T) -> Option<*mut T> {
    let piece = piece.unwrap_or(null_mut()).cast::<c_void>();
    // SAFETY: the piece is null or a whole allocation of the C library, which only the answer names. The new one is
    // large enough for a T, and aligned for all of C's types, of which T is made.
    unsafe {
        let bytes = libc::malloc_usable_size(piece).max(size_of::<T>());
        let place = libc::realloc(piece, bytes).cast::<T>();
        (!place.is_null()).then(|| {
            place.write(value);
            place
        })
    }
}

/// A copy of a string in memory of the C library. `None`: no memory is left.
pub fn c_string(text: &CStr) -> Option<*mut c_char> {
    // SAFETY: a CStr ends with NUL.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    (!copy.is_null()).then_some(copy)
}

/// A copy of an address in memory of the C library. `None`: no memory is left.
pub fn copy(address: &[u8; ADDRESS_BYTES]) -> Option<*mut c_void> {
    fill(None, *address).map(|place| place.cast())
}
