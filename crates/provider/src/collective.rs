//! The table of libfabric's collective operations. weir does not support or advertise them: each entry returns an
//! error.

use crate::ffi::{FiOpsCollective, not_implemented};

/// The table of each endpoint.
pub static OPS: FiOpsCollective =
    FiOpsCollective { size: size_of::<FiOpsCollective>(), operations: [not_implemented; 11] };
