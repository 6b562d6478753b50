//! libfabric's structures of attributes (`fi_info` and below), messages and completion entries. Field names are
//! libfabric's.
#![allow(missing_docs)]

use libc::{c_char, c_int, c_void, iovec};
use std::mem::{offset_of, size_of};

use super::objects::Fid;
use super::pointers::{FiIoc, UserVector, UserWords};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiTxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
    pub iov_limit: usize,
    pub rma_iov_limit: usize,
    pub tclass: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiRxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
    pub iov_limit: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiEpAttr {
    pub ep_type: c_int,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub msg_prefix_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
}

/// The part of `fi_domain_attr` that all versions of libfabric have (the whole of it in 1.17). The hints of an older
/// core end here, so nothing behind it may be read from them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiDomainAttr {
    pub domain: *mut c_void,
    pub name: *mut c_char,
    pub threading: c_int,
    pub control_progress: c_int,
    pub data_progress: c_int,
    pub resource_mgmt: c_int,
    pub av_type: c_int,
    pub mr_mode: c_int,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
    pub cq_cnt: usize,
    pub ep_cnt: usize,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub max_ep_tx_ctx: usize,
    pub max_ep_rx_ctx: usize,
    pub max_ep_stx_ctx: usize,
    pub max_ep_srx_ctx: usize,
    pub cntr_cnt: usize,
    pub mr_iov_limit: usize,
    pub caps: u64,
    pub mode: u64,
    pub auth_key: *mut u8,
    pub auth_key_size: usize,
    pub max_err_data: usize,
    pub mr_cnt: usize,
    pub tclass: u32,
}

/// `fi_domain_attr` as the provider returns it, with all additions of later versions.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiDomainAttrFull {
    pub common: FiDomainAttr,
    /// Since 1.20.
    pub max_ep_auth_key: usize,
    /// Since 2.0.
    pub max_group_id: u32,
    /// Since 2.5.
    pub max_cntr_value: u64,
    /// Since 2.5.
    pub max_err_cntr_value: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiFabricAttr {
    pub fabric: *mut c_void,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiInfo {
    pub next: *mut FiInfo,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut Fid,
    pub tx_attr: *mut FiTxAttr,
    pub rx_attr: *mut FiRxAttr,
    pub ep_attr: *mut FiEpAttr,
    pub domain_attr: *mut FiDomainAttr,
    pub fabric_attr: *mut FiFabricAttr,
    pub nic: *mut c_void,
}

#[repr(C)]
pub struct FiAvAttr {
    pub av_type: c_int,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

#[repr(C)]
pub struct FiCqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: c_int,
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_cond: c_int,
    pub wait_set: *mut c_void,
}

#[repr(C)]
pub struct FiCntrAttr {
    pub events: c_int,
    pub wait_obj: c_int,
    pub wait_set: *mut c_void,
    pub flags: u64,
}

#[repr(C)]
pub struct FiPollAttr {
    pub flags: u64,
}

#[repr(C)]
pub struct FiEqAttr {
    pub size: usize,
    pub flags: u64,
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_set: *mut c_void,
}

/// The part of `fi_mr_attr` that this crate reads. More follows.
#[repr(C)]
pub struct FiMrAttr {
    pub mr_iov: UserVector,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: usize,
}

#[repr(C)]
pub struct FiMsg {
    pub msg_iov: UserVector,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub context: usize,
    pub data: u64,
}

#[repr(C)]
pub struct FiMsgTagged {
    pub msg_iov: UserVector,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub tag: u64,
    pub ignore: u64,
    pub context: usize,
    pub data: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiRmaIov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

#[repr(C)]
pub struct FiMsgRma {
    pub msg_iov: UserVector,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub rma_iov: *const FiRmaIov,
    pub rma_iov_count: usize,
    pub context: usize,
    pub data: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiRmaIoc {
    pub addr: u64,
    /// Number of words.
    pub count: usize,
    pub key: u64,
}

#[repr(C)]
pub struct FiMsgAtomic {
    pub msg_iov: UserWords,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub rma_iov: *const FiRmaIoc,
    pub rma_iov_count: usize,
    pub datatype: c_int,
    pub op: c_int,
    pub context: usize,
    pub data: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FiAtomicAttr {
    /// The most words of one call.
    pub count: usize,
    /// Length of a word. Unit: bytes.
    pub size: usize,
}

#[repr(C)]
pub struct FiAvSetAttr {
    pub count: usize,
    pub start_addr: u64,
    pub end_addr: u64,
    pub stride: u64,
    pub comm_key_size: usize,
    pub comm_key: *mut u8,
    pub flags: u64,
}

/// What a program asks and learns of a collective operation.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiCollectiveAttr {
    pub op: c_int,
    pub datatype: c_int,
    pub datatype_attr: FiAtomicAttr,
    pub max_members: usize,
    pub mode: u64,
}

/// What `fi_join_collective` passes as the address to join.
#[repr(C)]
pub struct FiCollectiveAddr {
    pub set: *const Fid,
    pub coll_addr: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FiEqEntry {
    /// The address of the object.
    pub fid: usize,
    pub context: usize,
    pub data: u64,
}

impl FiEqEntry {
    /// The entry as the program reads it.
    pub fn bytes(&self) -> [u8; size_of::<FiEqEntry>()] {
        let words = [self.fid as u64, self.context as u64, self.data];
        let mut bytes = [0; size_of::<FiEqEntry>()];
        bytes
            .chunks_exact_mut(8)
            .zip(words)
            .for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_ne_bytes()));
        bytes
    }
}

/// `fi_eq_err_entry` of 1.5 and later. Earlier programs have less space: see `error_entry`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FiEqErrEntry {
    /// The address of the object.
    pub fid: usize,
    pub context: usize,
    pub data: u64,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: usize,
    /// Since 1.5.
    pub err_data_size: usize,
}

impl FiEqErrEntry {
    /// All 0.
    pub const EMPTY: FiEqErrEntry =
        FiEqErrEntry { fid: 0, context: 0, data: 0, err: 0, prov_errno: 0, err_data: 0, err_data_size: 0 };
}

/// `fi_cq_tagged_entry`. The shorter formats are its beginnings.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FiCqTaggedEntry {
    pub op_context: usize,
    pub flags: u64,
    pub len: usize,
    pub buf: usize,
    pub data: u64,
    pub tag: u64,
}

/// `fi_cq_err_entry` of 1.20 and later. Earlier programs have less space: see `cq`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiCqErrEntry {
    pub op_context: usize,
    pub flags: u64,
    pub len: usize,
    pub buf: usize,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    /// Since 1.5.
    pub err_data_size: usize,
    /// Since 1.20.
    pub src_addr: u64,
}

// Sizes and offsets that a C compiler printed for libfabric 1.17 and 2.5 on x86-64.
const _: () = {
    assert!(size_of::<FiTxAttr>() == 80);
    assert!(size_of::<FiRxAttr>() == 64);
    assert!(size_of::<FiEpAttr>() == 96);
    assert!(offset_of!(FiEpAttr, max_msg_size) == 16 && offset_of!(FiEpAttr, mem_tag_format) == 56);
    assert!(size_of::<FiDomainAttr>() == 192);
    assert!(offset_of!(FiDomainAttr, threading) == 16 && offset_of!(FiDomainAttr, mr_mode) == 36);
    assert!(offset_of!(FiDomainAttr, caps) == 136 && offset_of!(FiDomainAttr, tclass) == 184);
    assert!(size_of::<FiDomainAttrFull>() == 224);
    assert!(offset_of!(FiDomainAttrFull, max_cntr_value) == 208);
    assert!(size_of::<FiFabricAttr>() == 32);
    assert!(size_of::<FiInfo>() == 120);
    assert!(offset_of!(FiInfo, tx_attr) == 72 && offset_of!(FiInfo, nic) == 112);
    assert!(size_of::<FiAvAttr>() == 48);
    assert!(size_of::<FiCqAttr>() == 40);
    assert!(size_of::<FiCntrAttr>() == 24);
    assert!(size_of::<FiPollAttr>() == 8);
    assert!(size_of::<FiEqAttr>() == 32);
    assert!(offset_of!(FiMrAttr, context) == 40 && size_of::<FiMrAttr>() <= 80);
    assert!(size_of::<FiMsg>() == 48);
    assert!(size_of::<FiMsgTagged>() == 64);
    assert!(size_of::<FiRmaIov>() == 24);
    assert!(size_of::<FiMsgRma>() == 64);
    assert!(size_of::<FiIoc>() == 16 && size_of::<FiRmaIoc>() == 24 && size_of::<FiAtomicAttr>() == 16);
    assert!(size_of::<FiMsgAtomic>() == 72 && offset_of!(FiMsgAtomic, context) == 56);
    assert!(size_of::<FiAvSetAttr>() == 56 && size_of::<FiCollectiveAddr>() == 16);
    assert!(size_of::<FiCollectiveAttr>() == 40 && size_of::<FiEqEntry>() == 24);
    assert!(size_of::<FiEqErrEntry>() == 48 && offset_of!(FiEqErrEntry, err_data) == 32);
    assert!(size_of::<FiCqTaggedEntry>() == 48);
    assert!(size_of::<FiCqErrEntry>() == 88);
    assert!(offset_of!(FiCqErrEntry, err) == 56 && offset_of!(FiCqErrEntry, err_data_size) == 72);
    assert!(size_of::<iovec>() == 16);
};
