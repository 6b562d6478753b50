//! libfabric's constants: versions, capabilities, flags, classes and the values of attributes.

/// `FI_VERSION(major, minor)`.
pub const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// An entry of an address vector, or [`ADDR_UNSPEC`].
pub type FiAddr = u64;
/// `FI_ADDR_UNSPEC` and `FI_ADDR_NOTAVAIL`: any address, no known address.
pub const ADDR_UNSPEC: FiAddr = u64::MAX;

/// Capabilities of an endpoint (`fi_info.caps`). Several bits are also operation or completion flags.
pub mod caps {
    #![allow(missing_docs)]
    pub const MSG: u64 = 1 << 1;
    pub const RMA: u64 = 1 << 2;
    pub const TAGGED: u64 = 1 << 3;
    pub const ATOMIC: u64 = 1 << 4;
    pub const COLLECTIVE: u64 = 1 << 6;
    pub const READ: u64 = 1 << 8;
    pub const WRITE: u64 = 1 << 9;
    pub const RECV: u64 = 1 << 10;
    pub const SEND: u64 = 1 << 11;
    pub const REMOTE_READ: u64 = 1 << 12;
    pub const REMOTE_WRITE: u64 = 1 << 13;
    pub const MULTI_RECV: u64 = 1 << 16;
    pub const HMEM: u64 = 1 << 47;
    pub const LOCAL_COMM: u64 = 1 << 51;
    pub const REMOTE_COMM: u64 = 1 << 52;
    pub const SOURCE: u64 = 1 << 57;
    pub const DIRECTED_RECV: u64 = 1 << 59;
}

/// Flags of operations and of completion entries.
pub mod flags {
    #![allow(missing_docs)]
    pub const MSG: u64 = 1 << 1;
    pub const RMA: u64 = 1 << 2;
    pub const TAGGED: u64 = 1 << 3;
    pub const ATOMIC: u64 = 1 << 4;
    pub const COLLECTIVE: u64 = 1 << 6;
    pub const READ: u64 = 1 << 8;
    pub const WRITE: u64 = 1 << 9;
    pub const RECV: u64 = 1 << 10;
    pub const SEND: u64 = 1 << 11;
    pub const REMOTE_READ: u64 = 1 << 12;
    pub const REMOTE_WRITE: u64 = 1 << 13;
    pub const MULTI_RECV: u64 = 1 << 16;
    pub const REMOTE_CQ_DATA: u64 = 1 << 17;
    pub const MORE: u64 = 1 << 18;
    pub const PEEK: u64 = 1 << 19;
    pub const FENCE: u64 = 1 << 21;
    pub const COMPLETION: u64 = 1 << 24;
    pub const INJECT: u64 = 1 << 25;
    pub const INJECT_COMPLETE: u64 = 1 << 26;
    pub const TRANSMIT_COMPLETE: u64 = 1 << 27;
    pub const DELIVERY_COMPLETE: u64 = 1 << 28;
    pub const MATCH_COMPLETE: u64 = 1 << 31;
    /// Of `fi_av_set`: hints of the operations that a set is for, from `FI_BARRIER_SET` to `FI_GATHER_SET`.
    pub const ALL_SETS: u64 = 0x1FF << 40;
    /// Of `fi_av_set`: all addresses.
    pub const UNIVERSE: u64 = 1 << 57;
    /// Of `fi_av_insert`: the context is an array of error codes.
    pub const SYNC_ERR: u64 = 1 << 58;
    pub const DISCARD: u64 = 1 << 58;
    /// Of `fi_query_atomic`.
    pub const FETCH_ATOMIC: u64 = 1 << 58;
    /// Of `fi_query_atomic`.
    pub const COMPARE_ATOMIC: u64 = 1 << 59;
    pub const CLAIM: u64 = 1 << 59;
    /// Of `fi_ep_bind`.
    pub const SELECTIVE_COMPLETION: u64 = 1 << 59;
    /// Of `fi_getinfo`: node and service name the caller's own side.
    pub const SOURCE: u64 = 1 << 57;
    /// Of `fi_getinfo`: the node is an address, not a name.
    pub const NUMERIC_HOST: u64 = 1 << 55;
    /// Of `fi_getinfo` calls that the core makes for a utility provider (`OFI_CORE_PROV_ONLY`).
    pub const CORE_PROVIDER_ONLY: u64 = 1 << 59;
}

/// Message orders.
pub mod order {
    #![allow(missing_docs)]
    pub const SEND_AFTER_SEND: u64 = 1 << 8;
    /// Order of reads and writes among atomic operations.
    pub const ATOMIC: u64 = 0xF << 36;
}

/// Kinds of objects (`fid.fclass`).
pub mod class {
    #![allow(missing_docs)]
    pub const FABRIC: usize = 1;
    pub const DOMAIN: usize = 2;
    pub const EP: usize = 3;
    pub const AV: usize = 11;
    pub const MR: usize = 12;
    pub const EQ: usize = 13;
    pub const CQ: usize = 14;
    pub const CNTR: usize = 15;
    pub const POLL: usize = 17;
    pub const MC: usize = 19;
    pub const AV_SET: usize = 21;
}

/// Events of an event queue.
pub mod event {
    #![allow(missing_docs)]
    pub const JOIN_COMPLETE: u32 = 6;
}

/// `enum fi_collective_op`.
pub mod collective_op {
    #![allow(missing_docs)]
    pub const BARRIER: i32 = 0;
    pub const BROADCAST: i32 = 1;
    pub const ALLTOALL: i32 = 2;
    pub const ALLREDUCE: i32 = 3;
    pub const ALLGATHER: i32 = 4;
    pub const REDUCE_SCATTER: i32 = 5;
    pub const REDUCE: i32 = 6;
    pub const SCATTER: i32 = 7;
    pub const GATHER: i32 = 8;
}

/// Types and operations of collectives alone.
pub mod collective_type {
    #![allow(missing_docs)]
    pub const VOID: i32 = 256;
    pub const NOOP: i32 = 256;
}

/// `enum fi_threading`.
pub mod threading {
    #![allow(missing_docs)]
    pub const SAFE: i32 = 1;
    pub const DOMAIN: i32 = 3;
    /// The last value, `FI_THREAD_ENDPOINT`.
    pub const LAST: i32 = 5;
}

/// `enum fi_progress`.
pub mod progress {
    #![allow(missing_docs)]
    pub const UNSPEC: i32 = 0;
    pub const AUTO: i32 = 1;
    pub const MANUAL: i32 = 2;
    /// Since 2.0.
    pub const CONTROL_UNIFIED: i32 = 3;
}

/// `enum fi_resource_mgmt`.
pub mod resource_mgmt {
    #![allow(missing_docs)]
    pub const ENABLED: i32 = 2;
}

/// `enum fi_av_type`.
pub mod av_type {
    #![allow(missing_docs)]
    pub const UNSPEC: i32 = 0;
    pub const MAP: i32 = 1;
    pub const TABLE: i32 = 2;
}

/// What a program keeps to for a provider (`fi_info.mode`).
pub mod mode {
    #![allow(missing_docs)]
    pub const CONTEXT2: u64 = 1 << 52;
    pub const RX_CQ_DATA: u64 = 1 << 56;
    pub const CONTEXT: u64 = 1 << 59;
}

/// Values of `fi_info.addr_format`.
pub mod address_format {
    #![allow(missing_docs)]
    pub const SOCKADDR: u32 = 1;
    pub const SOCKADDR_IN: u32 = 2;
    pub const SOCKADDR_IN6: u32 = 3;
}

/// Values and bits of `fi_domain_attr.mr_mode`.
pub mod mr_mode {
    #![allow(missing_docs)]
    pub const BASIC: i32 = 1;
    pub const SCALABLE: i32 = 2;
    pub const LOCAL: i32 = 1 << 2;
    pub const VIRT_ADDR: i32 = 1 << 4;
    pub const ALLOCATED: i32 = 1 << 5;
    pub const PROV_KEY: i32 = 1 << 6;
    pub const ENDPOINT: i32 = 1 << 9;
}

/// `enum fi_ep_type`.
pub mod ep_type {
    #![allow(missing_docs)]
    pub const UNSPEC: i32 = 0;
    pub const RDM: i32 = 3;
}

/// `enum fi_wait_obj`.
pub mod wait_obj {
    #![allow(missing_docs)]
    pub const NONE: i32 = 0;
    pub const UNSPEC: i32 = 1;
    pub const SET: i32 = 2;
    pub const FD: i32 = 3;
    pub const YIELD: i32 = 5;
}

/// `enum fi_cq_format`.
pub mod cq_format {
    #![allow(missing_docs)]
    pub const UNSPEC: i32 = 0;
    pub const CONTEXT: i32 = 1;
    pub const MSG: i32 = 2;
    pub const DATA: i32 = 3;
    pub const TAGGED: i32 = 4;
}

/// Commands of `fi_control`.
pub mod control {
    #![allow(missing_docs)]
    pub const GETWAIT: i32 = 5;
    pub const ENABLE: i32 = 6;
    pub const REFRESH: i32 = 14;
    pub const GETWAITOBJ: i32 = 16;
}

/// Options of an endpoint.
pub mod option {
    #![allow(missing_docs)]
    pub const LEVEL_ENDPOINT: i32 = 0;
    pub const MIN_MULTI_RECV: i32 = 0;
}
