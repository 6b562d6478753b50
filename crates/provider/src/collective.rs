//! Collective operations of libfabric: not offered yet, and not advertised. Every entry answers.

use crate::ffi::{FiOpsCollective, not_implemented};

/// The table that endpoints carry.
pub static OPS: FiOpsCollective =
    FiOpsCollective { size: size_of::<FiOpsCollective>(), operations: [not_implemented; 11] };
