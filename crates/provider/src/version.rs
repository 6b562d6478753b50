//! The name and the versions of the provider.

use std::ffi::CStr;

use crate::ffi::version;

/// The provider's name. It must not begin like a provider that Open MPI excludes, nor like a utility provider.
pub const NAME: &CStr = c"weir";

/// The version of libfabric that the provider reports. The core skips providers that are older than what the program
/// asks for, and MPICH asks for the core's own version.
pub const API_VERSION: u32 = version(2, 6);

/// The version of the provider itself.
pub const VERSION: u32 = version(0, 1);
