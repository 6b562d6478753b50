//! Remote atomic operations, which are not supported and not advertised. Callers do not check entries for NULL, so
//! each is filled.

use crate::ffi::{FiOpsAtomic, not_implemented, not_supported};

/// The table of each endpoint.
pub static OPS: FiOpsAtomic = FiOpsAtomic {
    size: size_of::<FiOpsAtomic>(),
    operations: [not_implemented; 10],
    valid: [not_supported; 3],
};
