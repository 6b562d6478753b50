//! The variables for error entries, whose lengths depend on the version of the API.

use super::attributes::{FiCqErrEntry, FiEqErrEntry};
use super::constants::version;

/// The caller's variable for an error entry of a completion queue. Its length depends on the version of the API that
/// the program uses, which it gave when it opened the fabric.
#[repr(transparent)]
pub struct CqErrorOut(*mut FiCqErrEntry);

impl CqErrorOut {
    /// Sets the members that a program of `api_version` has. There is no further error data: if the program offers a
    /// buffer for it, its length is set to 0.
    pub fn fill(&self, entry: &FiCqErrEntry, api_version: u32) {
        let place = self.0;
        if place.is_null() {
            return;
        }
        // SAFETY: the program gave one entry of its API version's size. Each member is written through the pointer,
        // without a reference to the whole structure, and only if this version has it.
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
            if api_version >= version(1, 5) {
                if (*place).err_data_size == 0 {
                    (*place).err_data = std::ptr::null_mut();
                }
                (*place).err_data_size = 0;
            } else {
                (*place).err_data = std::ptr::null_mut();
            }
            if api_version >= version(1, 20) {
                (*place).src_addr = entry.src_addr;
            }
        }
    }
}

impl From<*mut FiCqErrEntry> for CqErrorOut {
    /// For tests, which pass whole entries.
    fn from(place: *mut FiCqErrEntry) -> CqErrorOut {
        CqErrorOut(place)
    }
}

/// The caller's variable for an error entry of an event queue. Its length depends on the version of the API.
#[repr(transparent)]
pub struct EqErrorOut(*mut FiEqErrEntry);

impl EqErrorOut {
    /// As [`CqErrorOut::fill`].
    pub fn fill(&self, entry: &FiEqErrEntry, api_version: u32) {
        let place = self.0;
        if place.is_null() {
            return;
        }
        // SAFETY: as in `CqErrorOut::fill`.
        unsafe {
            (*place).fid = entry.fid;
            (*place).context = entry.context;
            (*place).data = entry.data;
            (*place).err = entry.err;
            (*place).prov_errno = entry.prov_errno;
            if api_version >= version(1, 5) {
                if (*place).err_data_size == 0 {
                    (*place).err_data = 0;
                }
                (*place).err_data_size = 0;
            } else {
                (*place).err_data = 0;
            }
        }
    }
}

impl From<*mut FiEqErrEntry> for EqErrorOut {
    /// For tests, which pass whole entries.
    fn from(place: *mut FiEqErrEntry) -> EqErrorOut {
        EqErrorOut(place)
    }
}
