//! Remote atomic operations: not offered yet, and not advertised. Every entry answers, since callers do not look.

use crate::ffi::{FiOpsAtomic, not_implemented, not_supported};

/// The table that endpoints carry.
pub static OPS: FiOpsAtomic = FiOpsAtomic {
    size: size_of::<FiOpsAtomic>(),
    operations: [not_implemented; 10],
    valid: [not_supported; 3],
};
