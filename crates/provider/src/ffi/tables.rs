//! The tables of functions, and the structure by which the core knows the provider ([`FiProvider`]). Each table begins
//! with its size, which tells the core how many entries it has. Every entry is filled, because most of the core's
//! inline wrappers call without checking for NULL. Entries without a function of their own get one that does nothing or
//! returns an error, such as [`not_supported`].
#![allow(missing_docs)]

use libc::{c_char, c_int, c_void, ssize_t};
use std::mem::{offset_of, size_of};

use super::attributes::*;
use super::constants::FiAddr;
use super::error_entry::{CqErrorOut, EqErrorOut};
use super::objects::{AnyObject, Fid};
use super::pointers::*;
use crate::errno::Error;
use weir_link::ADDRESS_BYTES;

/// An operation that is not supported. The caller passes arguments, and nothing reads them. The C calling conventions
/// of all Unix platforms allow this, because the caller cleans up. Callers that expect `int` see the lower half.
pub type Stub = extern "C" fn() -> ssize_t;

/// `-FI_ENOSYS`.
pub extern "C" fn not_implemented() -> ssize_t {
    Error::NOT_IMPLEMENTED.code() as ssize_t
}

/// `-FI_EOPNOTSUPP`.
pub extern "C" fn not_supported() -> ssize_t {
    Error::NOT_SUPPORTED.code() as ssize_t
}

/// For objects to which nothing can be bound.
pub extern "C" fn no_bind<H>(_handle: &H, _other: AnyObject, _flags: u64) -> c_int {
    Error::NOT_IMPLEMENTED.code()
}

/// For objects without commands.
pub extern "C" fn no_control<H>(_handle: &H, _command: c_int, _argument: *mut c_void) -> c_int {
    Error::NOT_IMPLEMENTED.code()
}

/// 0: nothing needs to be done.
pub extern "C" fn nothing_to_do() -> ssize_t {
    0
}

pub type GetInfo = for<'a> extern "C" fn(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: Option<&'a FiInfo>,
    info: Out<'a, *mut FiInfo>,
) -> c_int;
pub type OpenFabric<F> =
    for<'a> extern "C" fn(attr: Option<&'a FiFabricAttr>, fabric: Out<'a, *mut F>, context: usize) -> c_int;

/// The structure that represents the provider in the core.
#[repr(C)]
pub struct FiProvider<F: 'static> {
    pub version: u32,
    pub fi_version: u32,
    /// The core writes here; zero at first.
    pub context: [usize; 4],
    pub name: *const c_char,
    pub getinfo: GetInfo,
    pub fabric: OpenFabric<F>,
    pub cleanup: extern "C" fn(),
}

// As a C compiler printed for libfabric 1.17 and 2.5 on x86-64.
const _: () = {
    assert!(size_of::<FiProvider<()>>() == 72);
    assert!(offset_of!(FiProvider<()>, context) == 8 && offset_of!(FiProvider<()>, name) == 40);
};

/// The functions that all objects have. `H` is the object.
#[repr(C)]
pub struct FiOps<H: 'static> {
    pub size: usize,
    pub close: extern "C" fn(handle: Box<H>) -> c_int,
    pub bind: extern "C" fn(handle: &H, other: AnyObject, flags: u64) -> c_int,
    pub control: extern "C" fn(handle: &H, command: c_int, argument: *mut c_void) -> c_int,
    pub ops_open: Stub,
    pub tostr: Stub,
    pub ops_set: Stub,
}

#[repr(C)]
pub struct FiOpsFabric<F: 'static, D: 'static, Q: 'static> {
    pub size: usize,
    pub domain: extern "C" fn(&F, Option<&FiInfo>, Out<*mut D>, usize) -> c_int,
    pub passive_ep: Stub,
    pub eq_open: extern "C" fn(&F, Option<&FiEqAttr>, Out<*mut Q>, usize) -> c_int,
    pub wait_open: Stub,
    pub trywait: extern "C" fn(&F, InArray<AnyObject>, c_int) -> c_int,
    pub domain2: extern "C" fn(&F, Option<&FiInfo>, Out<*mut D>, u64, usize) -> c_int,
}

#[repr(C)]
pub struct FiOpsDomain<D: 'static, A: 'static, C: 'static, E: 'static, N: 'static, P: 'static> {
    pub size: usize,
    pub av_open: extern "C" fn(&D, Option<&mut FiAvAttr>, Out<*mut A>, usize) -> c_int,
    pub cq_open: extern "C" fn(&D, Option<&FiCqAttr>, Out<*mut C>, usize) -> c_int,
    pub endpoint: extern "C" fn(&D, Option<&FiInfo>, Out<*mut E>, usize) -> c_int,
    pub scalable_ep: Stub,
    pub cntr_open: extern "C" fn(&D, Option<&FiCntrAttr>, Out<*mut N>, usize) -> c_int,
    pub poll_open: extern "C" fn(&D, Option<&FiPollAttr>, Out<*mut P>) -> c_int,
    pub stx_ctx: Stub,
    pub srx_ctx: Stub,
    pub query_atomic: extern "C" fn(&D, c_int, c_int, Out<FiAtomicAttr>, u64) -> c_int,
    pub query_collective: extern "C" fn(&D, c_int, Option<&mut FiCollectiveAttr>, u64) -> c_int,
    pub endpoint2: extern "C" fn(&D, Option<&FiInfo>, Out<*mut E>, u64, usize) -> c_int,
}

#[repr(C)]
pub struct FiOpsMr<D: 'static, M: 'static> {
    pub size: usize,
    #[allow(clippy::type_complexity)]
    pub reg: extern "C" fn(&D, UserBuffer, usize, u64, u64, u64, u64, Out<*mut M>, usize) -> c_int,
    #[allow(clippy::type_complexity)]
    pub regv: extern "C" fn(&D, UserVector, usize, u64, u64, u64, u64, Out<*mut M>, usize) -> c_int,
    pub regattr: extern "C" fn(&D, Option<&FiMrAttr>, u64, Out<*mut M>) -> c_int,
}

#[repr(C)]
pub struct FiOpsAv<A: 'static, S: 'static> {
    pub size: usize,
    pub insert: for<'a> extern "C" fn(
        &'a A,
        InArray<'a, [u8; ADDRESS_BYTES]>,
        usize,
        OutArray<'a, FiAddr>,
        u64,
        OutArray<'a, c_int>,
    ) -> c_int,
    pub insertsvc: Stub,
    pub insertsym: Stub,
    pub remove: extern "C" fn(&A, InArray<FiAddr>, usize, u64) -> c_int,
    pub lookup: extern "C" fn(&A, FiAddr, OutArray<u8>, Out<usize>) -> c_int,
    pub straddr: extern "C" fn(&A, InArray<[u8; ADDRESS_BYTES]>, OutArray<u8>, Out<usize>) -> *const c_char,
    pub av_set: extern "C" fn(&A, Option<&FiAvSetAttr>, Out<*mut S>, usize) -> c_int,
    /// Since 1.20 (two) and 2.0.
    pub insert_auth_key: Stub,
    pub lookup_auth_key: Stub,
    pub set_user_id: Stub,
}

#[repr(C)]
pub struct FiOpsCq<C: 'static> {
    pub size: usize,
    pub read: extern "C" fn(&C, OutArray<u8>, usize) -> ssize_t,
    pub readfrom: extern "C" fn(&C, OutArray<u8>, usize, OutArray<FiAddr>) -> ssize_t,
    pub readerr: extern "C" fn(&C, CqErrorOut, u64) -> ssize_t,
    pub sread: extern "C" fn(&C, OutArray<u8>, usize, *const c_void, c_int) -> ssize_t,
    pub sreadfrom: extern "C" fn(&C, OutArray<u8>, usize, OutArray<FiAddr>, *const c_void, c_int) -> ssize_t,
    pub signal: extern "C" fn(&C) -> c_int,
    pub strerror: extern "C" fn(&C, c_int, *const c_void, OutArray<u8>, usize) -> *const c_char,
}

#[repr(C)]
pub struct FiOpsCntr<N: 'static> {
    pub size: usize,
    pub read: extern "C" fn(&N) -> u64,
    pub readerr: extern "C" fn(&N) -> u64,
    pub add: extern "C" fn(&N, u64) -> c_int,
    pub set: extern "C" fn(&N, u64) -> c_int,
    pub wait: extern "C" fn(&N, u64, c_int) -> c_int,
    pub adderr: extern "C" fn(&N, u64) -> c_int,
    pub seterr: extern "C" fn(&N, u64) -> c_int,
}

#[repr(C)]
pub struct FiOpsPoll<P: 'static> {
    pub size: usize,
    pub poll: extern "C" fn(&P, OutArray<usize>, c_int) -> c_int,
    pub poll_add: extern "C" fn(&P, AnyObject, u64) -> c_int,
    pub poll_del: extern "C" fn(&P, AnyObject, u64) -> c_int,
}

#[repr(C)]
pub struct FiOpsEq<Q: 'static> {
    pub size: usize,
    pub read: extern "C" fn(&Q, Out<u32>, OutArray<u8>, usize, u64) -> ssize_t,
    pub readerr: extern "C" fn(&Q, EqErrorOut, u64) -> ssize_t,
    pub write: extern "C" fn(&Q, u32, InArray<u8>, usize, u64) -> ssize_t,
    pub sread: extern "C" fn(&Q, Out<u32>, OutArray<u8>, usize, c_int, u64) -> ssize_t,
    pub strerror: extern "C" fn(&Q, c_int, *const c_void, OutArray<u8>, usize) -> *const c_char,
}

#[repr(C)]
pub struct FiOpsEp<E: 'static> {
    pub size: usize,
    pub cancel: extern "C" fn(&E, usize) -> ssize_t,
    pub getopt: extern "C" fn(&E, c_int, c_int, Out<usize>, Out<usize>) -> c_int,
    pub setopt: extern "C" fn(&E, c_int, c_int, InArray<usize>, usize) -> c_int,
    pub tx_ctx: Stub,
    pub rx_ctx: Stub,
    pub rx_size_left: Stub,
    pub tx_size_left: Stub,
}

#[repr(C)]
pub struct FiOpsCm<E: 'static> {
    pub size: usize,
    pub setname: Stub,
    pub getname: extern "C" fn(&E, OutArray<u8>, Out<usize>) -> c_int,
    pub getpeer: Stub,
    pub connect: Stub,
    pub listen: Stub,
    pub accept: Stub,
    pub reject: Stub,
    pub shutdown: Stub,
    /// The address is an [`FiCollectiveAddr`] if the flags have `FI_COLLECTIVE`.
    pub join: extern "C" fn(&E, *const c_void, u64, Out<*mut Fid>, usize) -> c_int,
}

/// Descriptors of registered memory. The provider does not request them, so they are ignored.
pub type Desc = *mut c_void;

#[repr(C)]
pub struct FiOpsMsg<E: 'static> {
    pub size: usize,
    pub recv: extern "C" fn(&E, UserBuffer, usize, Desc, FiAddr, usize) -> ssize_t,
    pub recvv: extern "C" fn(&E, UserVector, Desc, usize, FiAddr, usize) -> ssize_t,
    pub recvmsg: extern "C" fn(&E, &FiMsg, u64) -> ssize_t,
    pub send: extern "C" fn(&E, UserBuffer, usize, Desc, FiAddr, usize) -> ssize_t,
    pub sendv: extern "C" fn(&E, UserVector, Desc, usize, FiAddr, usize) -> ssize_t,
    pub sendmsg: extern "C" fn(&E, &FiMsg, u64) -> ssize_t,
    pub inject: extern "C" fn(&E, UserBuffer, usize, FiAddr) -> ssize_t,
    pub senddata: extern "C" fn(&E, UserBuffer, usize, Desc, u64, FiAddr, usize) -> ssize_t,
    pub injectdata: extern "C" fn(&E, UserBuffer, usize, u64, FiAddr) -> ssize_t,
}

#[repr(C)]
pub struct FiOpsTagged<E: 'static> {
    pub size: usize,
    pub recv: extern "C" fn(&E, UserBuffer, usize, Desc, FiAddr, u64, u64, usize) -> ssize_t,
    pub recvv: extern "C" fn(&E, UserVector, Desc, usize, FiAddr, u64, u64, usize) -> ssize_t,
    pub recvmsg: extern "C" fn(&E, &FiMsgTagged, u64) -> ssize_t,
    pub send: extern "C" fn(&E, UserBuffer, usize, Desc, FiAddr, u64, usize) -> ssize_t,
    pub sendv: extern "C" fn(&E, UserVector, Desc, usize, FiAddr, u64, usize) -> ssize_t,
    pub sendmsg: extern "C" fn(&E, &FiMsgTagged, u64) -> ssize_t,
    pub inject: extern "C" fn(&E, UserBuffer, usize, FiAddr, u64) -> ssize_t,
    pub senddata: extern "C" fn(&E, UserBuffer, usize, Desc, u64, FiAddr, u64, usize) -> ssize_t,
    pub injectdata: extern "C" fn(&E, UserBuffer, usize, u64, FiAddr, u64) -> ssize_t,
}

#[repr(C)]
pub struct FiOpsRma<E: 'static> {
    pub size: usize,
    pub read: extern "C" fn(&E, UserBuffer, usize, Desc, FiAddr, u64, u64, usize) -> ssize_t,
    pub readv: extern "C" fn(&E, UserVector, Desc, usize, FiAddr, u64, u64, usize) -> ssize_t,
    pub readmsg: extern "C" fn(&E, &FiMsgRma, u64) -> ssize_t,
    pub write: extern "C" fn(&E, UserBuffer, usize, Desc, FiAddr, u64, u64, usize) -> ssize_t,
    pub writev: extern "C" fn(&E, UserVector, Desc, usize, FiAddr, u64, u64, usize) -> ssize_t,
    pub writemsg: extern "C" fn(&E, &FiMsgRma, u64) -> ssize_t,
    pub inject: extern "C" fn(&E, UserBuffer, usize, FiAddr, u64, u64) -> ssize_t,
    #[allow(clippy::type_complexity)]
    pub writedata: extern "C" fn(&E, UserBuffer, usize, Desc, u64, FiAddr, u64, u64, usize) -> ssize_t,
    pub injectdata: extern "C" fn(&E, UserBuffer, usize, u64, FiAddr, u64, u64) -> ssize_t,
}

type AtomicValid<E> = extern "C" fn(&E, c_int, c_int, Out<usize>) -> c_int;

#[repr(C)]
#[allow(clippy::type_complexity)]
pub struct FiOpsAtomic<E: 'static> {
    pub size: usize,
    pub write: extern "C" fn(&E, UserBuffer, usize, Desc, FiAddr, u64, u64, c_int, c_int, usize) -> ssize_t,
    pub writev: extern "C" fn(&E, UserWords, Desc, usize, FiAddr, u64, u64, c_int, c_int, usize) -> ssize_t,
    pub writemsg: extern "C" fn(&E, &FiMsgAtomic, u64) -> ssize_t,
    pub inject: extern "C" fn(&E, UserBuffer, usize, FiAddr, u64, u64, c_int, c_int) -> ssize_t,
    pub readwrite: extern "C" fn(
        &E,
        UserBuffer,
        usize,
        Desc,
        UserBuffer,
        Desc,
        FiAddr,
        u64,
        u64,
        c_int,
        c_int,
        usize,
    ) -> ssize_t,
    pub readwritev: extern "C" fn(
        &E,
        UserWords,
        Desc,
        usize,
        UserWords,
        Desc,
        usize,
        FiAddr,
        u64,
        u64,
        c_int,
        c_int,
        usize,
    ) -> ssize_t,
    pub readwritemsg: extern "C" fn(&E, &FiMsgAtomic, UserWords, Desc, usize, u64) -> ssize_t,
    pub compwrite: extern "C" fn(
        &E,
        UserBuffer,
        usize,
        Desc,
        UserBuffer,
        Desc,
        UserBuffer,
        Desc,
        FiAddr,
        u64,
        u64,
        c_int,
        c_int,
        usize,
    ) -> ssize_t,
    pub compwritev: extern "C" fn(
        &E,
        UserWords,
        Desc,
        usize,
        UserWords,
        Desc,
        usize,
        UserWords,
        Desc,
        usize,
        FiAddr,
        u64,
        u64,
        c_int,
        c_int,
        usize,
    ) -> ssize_t,
    pub compwritemsg:
        extern "C" fn(&E, &FiMsgAtomic, UserWords, Desc, usize, UserWords, Desc, usize, u64) -> ssize_t,
    pub writevalid: AtomicValid<E>,
    pub readwritevalid: AtomicValid<E>,
    pub compwritevalid: AtomicValid<E>,
}

#[repr(C)]
pub struct FiOpsAvSet<S: 'static> {
    pub size: usize,
    pub set_union: extern "C" fn(&S, AnyObject) -> c_int,
    pub intersect: extern "C" fn(&S, AnyObject) -> c_int,
    pub diff: extern "C" fn(&S, AnyObject) -> c_int,
    pub insert: extern "C" fn(&S, FiAddr) -> c_int,
    pub remove: extern "C" fn(&S, FiAddr) -> c_int,
    pub addr: extern "C" fn(&S, Out<FiAddr>) -> c_int,
}

/// Buffer, count, group, type, flags, context of a collective call; calls with a result have it behind the buffer.
#[repr(C)]
#[allow(clippy::type_complexity)]
pub struct FiOpsCollective<E: 'static> {
    pub size: usize,
    pub barrier: extern "C" fn(&E, FiAddr, usize) -> ssize_t,
    pub broadcast: extern "C" fn(&E, UserBuffer, usize, Desc, FiAddr, FiAddr, c_int, u64, usize) -> ssize_t,
    pub alltoall:
        extern "C" fn(&E, UserBuffer, usize, Desc, UserBuffer, Desc, FiAddr, c_int, u64, usize) -> ssize_t,
    pub allreduce: extern "C" fn(
        &E,
        UserBuffer,
        usize,
        Desc,
        UserBuffer,
        Desc,
        FiAddr,
        c_int,
        c_int,
        u64,
        usize,
    ) -> ssize_t,
    pub allgather:
        extern "C" fn(&E, UserBuffer, usize, Desc, UserBuffer, Desc, FiAddr, c_int, u64, usize) -> ssize_t,
    pub reduce_scatter: extern "C" fn(
        &E,
        UserBuffer,
        usize,
        Desc,
        UserBuffer,
        Desc,
        FiAddr,
        c_int,
        c_int,
        u64,
        usize,
    ) -> ssize_t,
    pub reduce: extern "C" fn(
        &E,
        UserBuffer,
        usize,
        Desc,
        UserBuffer,
        Desc,
        FiAddr,
        FiAddr,
        c_int,
        c_int,
        u64,
        usize,
    ) -> ssize_t,
    pub scatter: extern "C" fn(
        &E,
        UserBuffer,
        usize,
        Desc,
        UserBuffer,
        Desc,
        FiAddr,
        FiAddr,
        c_int,
        u64,
        usize,
    ) -> ssize_t,
    pub gather: extern "C" fn(
        &E,
        UserBuffer,
        usize,
        Desc,
        UserBuffer,
        Desc,
        FiAddr,
        FiAddr,
        c_int,
        u64,
        usize,
    ) -> ssize_t,
    pub msg: Stub,
    pub barrier2: extern "C" fn(&E, FiAddr, u64, usize) -> ssize_t,
}

const _: () = {
    type H = ();
    assert!(size_of::<FiOps<H>>() == 56);
    assert!(size_of::<FiOpsFabric<H, H, H>>() == 56);
    assert!(size_of::<FiOpsDomain<H, H, H, H, H, H>>() == 96);
    assert!(size_of::<FiOpsMr<H, H>>() == 32);
    assert!(size_of::<FiOpsAv<H, H>>() == 88);
    assert!(size_of::<FiOpsCq<H>>() == 64);
    assert!(size_of::<FiOpsCntr<H>>() == 64);
    assert!(size_of::<FiOpsEq<H>>() == 48);
    assert!(size_of::<FiOpsPoll<H>>() == 32);
    assert!(size_of::<FiOpsEp<H>>() == 64);
    assert!(size_of::<FiOpsCm<H>>() == 80);
    assert!(size_of::<FiOpsMsg<H>>() == 80);
    assert!(size_of::<FiOpsTagged<H>>() == 80);
    assert!(size_of::<FiOpsRma<H>>() == 80);
    assert!(size_of::<FiOpsAtomic<H>>() == 112);
    assert!(size_of::<FiOpsCollective<H>>() == 96);
    assert!(size_of::<FiOpsAvSet<H>>() == 56);
};
