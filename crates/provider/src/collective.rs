//! libfabric's collective operations, which are not supported and not advertised. Each entry is filled.

use crate::ffi::{FiOpsCollective, not_implemented};

/// The table of each endpoint.
pub static OPS: FiOpsCollective =
    FiOpsCollective { size: size_of::<FiOpsCollective>(), operations: [not_implemented; 11] };
