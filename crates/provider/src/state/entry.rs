//! An entry of a completion queue, in one form for all formats.

use std::ffi::c_int;

use crate::ffi::{FiAddr, FiCqErrEntry, FiCqTaggedEntry};

/// A completion with the fields of all formats.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    /// The program's context.
    pub context: usize,
    /// Flags that describe the operation.
    pub flags: u64,
    /// Bytes received.
    pub length: u64,
    /// Address of the received bytes (multi-receive).
    pub buffer: usize,
    /// Remote completion data.
    pub data: u64,
    /// Tag.
    pub tag: u64,
    /// The sender.
    pub source: FiAddr,
    /// Bytes that did not fit.
    pub excess: u64,
    /// 0, or a positive error number.
    pub error: c_int,
}

impl Entry {
    /// The entry in the format `FI_CQ_FORMAT_TAGGED`.
    pub fn tagged(&self) -> FiCqTaggedEntry {
        FiCqTaggedEntry {
            op_context: self.context,
            flags: self.flags,
            len: self.length as usize,
            buf: self.buffer,
            data: self.data,
            tag: self.tag,
        }
    }

    /// The entry of a failed operation.
    pub fn error(&self) -> FiCqErrEntry {
        FiCqErrEntry {
            op_context: self.context,
            flags: self.flags,
            len: self.length as usize,
            buf: self.buffer,
            data: self.data,
            tag: self.tag,
            olen: self.excess as usize,
            err: self.error,
            prov_errno: self.error,
            err_data: std::ptr::null_mut(),
            err_data_size: 0,
            src_addr: self.source,
        }
    }
}
