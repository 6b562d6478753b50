//! libfabric's objects of other providers, and the functions in their tables that this crate calls. [`Object`] closes an
//! object when it is dropped.
//!
//! `crate::ffi::tables` has the same tables from the side of a provider, with the types of its own objects. Here objects
//! are pointers that libfabric returned. All functions exist in every version since 1.17.
#![allow(missing_docs)]

use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;

use crate::ffi::{FiAddr, FiAvAttr, FiCqAttr, FiCqErrEntry, FiFabricAttr, FiInfo};

#[repr(C)]
pub struct RawFid {
    pub fclass: usize,
    pub context: *mut c_void,
    pub ops: *const RawOps,
}

#[repr(C)]
pub struct RawOps {
    pub size: usize,
    pub close: unsafe extern "C" fn(*mut RawFid) -> c_int,
    pub bind: unsafe extern "C" fn(*mut RawFid, *mut RawFid, u64) -> c_int,
    pub control: unsafe extern "C" fn(*mut RawFid, c_int, *mut c_void) -> c_int,
}

#[repr(C)]
pub struct RawFabric {
    pub fid: RawFid,
    pub ops: *const RawFabricOps,
    pub api_version: u32,
}

#[repr(C)]
pub struct RawFabricOps {
    pub size: usize,
    pub domain: unsafe extern "C" fn(*mut RawFabric, *mut FiInfo, *mut *mut RawDomain, *mut c_void) -> c_int,
    _unused: [*const c_void; 3],
    pub trywait: unsafe extern "C" fn(*mut RawFabric, *mut *mut RawFid, c_int) -> c_int,
}

#[repr(C)]
pub struct RawDomain {
    pub fid: RawFid,
    pub ops: *const RawDomainOps,
    pub mr: *const RawMrOps,
}

#[repr(C)]
pub struct RawDomainOps {
    pub size: usize,
    pub av_open: unsafe extern "C" fn(*mut RawDomain, *mut FiAvAttr, *mut *mut RawAv, *mut c_void) -> c_int,
    pub cq_open: unsafe extern "C" fn(*mut RawDomain, *mut FiCqAttr, *mut *mut RawCq, *mut c_void) -> c_int,
    pub endpoint: unsafe extern "C" fn(*mut RawDomain, *mut FiInfo, *mut *mut RawEp, *mut c_void) -> c_int,
}

/// Memory, its length, access, offset, key and flags.
pub type Register = unsafe extern "C" fn(
    *mut RawFid,
    *const c_void,
    usize,
    u64,
    u64,
    u64,
    u64,
    *mut *mut RawMr,
    *mut c_void,
) -> c_int;

#[repr(C)]
pub struct RawMrOps {
    pub size: usize,
    pub reg: Register,
}

#[repr(C)]
pub struct RawMr {
    pub fid: RawFid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

#[repr(C)]
pub struct RawAv {
    pub fid: RawFid,
    pub ops: *const RawAvOps,
}

#[repr(C)]
pub struct RawAvOps {
    pub size: usize,
    pub insert:
        unsafe extern "C" fn(*mut RawAv, *const c_void, usize, *mut FiAddr, u64, *mut c_void) -> c_int,
}

#[repr(C)]
pub struct RawCq {
    pub fid: RawFid,
    pub ops: *const RawCqOps,
}

#[repr(C)]
pub struct RawCqOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut RawCq, *mut c_void, usize) -> isize,
    _readfrom: *const c_void,
    pub readerr: unsafe extern "C" fn(*mut RawCq, *mut FiCqErrEntry, u64) -> isize,
}

#[repr(C)]
pub struct RawEp {
    pub fid: RawFid,
    _ops: *const c_void,
    pub cm: *const RawCmOps,
    pub msg: *const RawMsgOps,
    pub rma: *const RawRmaOps,
    pub tagged: *const RawTaggedOps,
}

/// Memory, its length and descriptor, a peer, the tag, bits of it that do not count, and the context.
pub type ReceiveTagged =
    unsafe extern "C" fn(*mut RawEp, *mut c_void, usize, *mut c_void, FiAddr, u64, u64, *mut c_void) -> isize;

/// Memory, its length and descriptor, a peer, the tag, and the context.
pub type SendTagged =
    unsafe extern "C" fn(*mut RawEp, *const c_void, usize, *mut c_void, FiAddr, u64, *mut c_void) -> isize;

#[repr(C)]
pub struct RawTaggedOps {
    pub size: usize,
    pub recv: ReceiveTagged,
    _recvv: *const c_void,
    _recvmsg: *const c_void,
    pub send: SendTagged,
}

#[repr(C)]
pub struct RawCmOps {
    pub size: usize,
    _setname: *const c_void,
    pub getname: unsafe extern "C" fn(*mut RawFid, *mut c_void, *mut usize) -> c_int,
}

/// Memory, its length and descriptor, a peer, and the context.
pub type Transfer =
    unsafe extern "C" fn(*mut RawEp, *mut c_void, usize, *mut c_void, FiAddr, *mut c_void) -> isize;

#[repr(C)]
pub struct RawMsgOps {
    pub size: usize,
    pub recv: Transfer,
    _recvv: *const c_void,
    _recvmsg: *const c_void,
    pub send: Transfer,
}

/// Memory, its length and descriptor, a peer, address and key there, and the context.
pub type Read =
    unsafe extern "C" fn(*mut RawEp, *mut c_void, usize, *mut c_void, FiAddr, u64, u64, *mut c_void) -> isize;

#[repr(C)]
pub struct RawRmaOps {
    pub size: usize,
    pub read: Read,
    _readv: *const c_void,
    _readmsg: *const c_void,
    _write: *const c_void,
    _writev: *const c_void,
    pub writemsg: unsafe extern "C" fn(*mut RawEp, *const RawRmaMessage, u64) -> isize,
}

/// `fi_rma_iov`.
#[repr(C)]
pub struct RawRmaPiece {
    pub address: u64,
    pub bytes: usize,
    pub key: u64,
}

/// `fi_msg_rma`.
#[repr(C)]
pub struct RawRmaMessage {
    pub pieces: *const libc::iovec,
    pub descriptors: *mut *mut c_void,
    pub piece_count: usize,
    pub peer: FiAddr,
    pub remote_pieces: *const RawRmaPiece,
    pub remote_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}

/// The structure by which a plug-in is known to the core.
#[repr(C)]
pub struct RawProvider {
    pub version: u32,
    pub fi_version: u32,
    pub context: [usize; 4],
    pub name: *const c_char,
    pub getinfo: GetInfo,
    pub fabric: OpenFabric,
    pub cleanup: *const c_void,
}

pub type GetInfo =
    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const FiInfo, *mut *mut FiInfo) -> c_int;
pub type OpenFabric = unsafe extern "C" fn(*mut FiFabricAttr, *mut *mut RawFabric, *mut c_void) -> c_int;

/// An object of libfabric that this crate has opened. It is closed when this is dropped.
pub struct Object<T>(NonNull<T>);

impl<T> Object<T> {
    /// Takes what a call has opened. `open` gets the variable for it, and returns libfabric's result.
    ///
    /// # Errors
    /// The positive error number.
    ///
    /// # Safety
    /// Where `open` returns 0, it has written a pointer to an open object, which begins with a [`RawFid`] and which nobody
    /// else closes.
    pub unsafe fn open(open: impl FnOnce(*mut *mut T) -> c_int) -> Result<Object<T>, c_int> {
        let mut object = std::ptr::null_mut();
        match open(&raw mut object) {
            0 => NonNull::new(object).map(Object).ok_or(libc::EIO),
            error => Err(-error),
        }
    }

    /// Closes the object, and forgets it.
    ///
    /// # Errors
    /// The object, with the positive error number: the core does not close it now.
    pub fn close(self) -> Result<(), (Object<T>, c_int)> {
        let fid = self.fid();
        // SAFETY: as in `drop`. If it is closed, nothing uses it afterwards, because the value is forgotten.
        match unsafe { ((*(*fid).ops).close)(fid) } {
            0 => {
                std::mem::forget(self);
                Ok(())
            }
            error => Err((self, -error)),
        }
    }

    pub fn pointer(&self) -> *mut T {
        self.0.as_ptr()
    }

    pub fn fid(&self) -> *mut RawFid {
        self.0.as_ptr().cast()
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        let fid = self.fid();
        // SAFETY: the object is open and begins with its fid (promise of `open`). Nothing uses it afterwards.
        unsafe { ((*(*fid).ops).close)(fid) };
    }
}
