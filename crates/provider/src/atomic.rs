//! The table of libfabric's remote atomic operations. weir does not advertise them: each entry returns an error,
//! since callers do not check entries for NULL.

use crate::ffi::{FiOpsAtomic, not_implemented, not_supported};

/// The table of each endpoint.
pub static OPS: FiOpsAtomic = FiOpsAtomic {
    size: size_of::<FiOpsAtomic>(),
    operations: [not_implemented; 10],
    valid: [not_supported; 3],
};
