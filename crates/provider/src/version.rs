//! The name and the versions of the provider.

use std::ffi::CStr;

use crate::ffi::version;

/// The provider's name. It must not begin like a provider that Open MPI excludes, nor like a utility provider.
pub const NAME: &CStr = c"weir";

/// The newest version of libfabric whose additions this crate knows.
pub const API_VERSION: u32 = version(2, 6);

/// The version of libfabric that the provider reports to a core of version `core`.
///
/// A core skips providers that report less than what the program asks for, and MPICH asks for the version of the core
/// that it is built with. Later versions only add: members at the end of structures, which are zero in an answer, and
/// functions at the end of tables, whose sizes say that this crate has none. So it reports the version of a later core,
/// unless the major version differs.
pub fn reported_version(core: Option<u32>) -> u32 {
    let major = |version: u32| version >> 16;
    core.filter(|&core| major(core) == major(API_VERSION)).map_or(API_VERSION, |core| core.max(API_VERSION))
}

/// The version of the provider itself.
pub const VERSION: u32 = version(0, 1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reported_version_is_at_least_that_of_the_core() {
        for (core, reported) in [((1, 17), (2, 6)), ((2, 5), (2, 6)), ((2, 6), (2, 6)), ((2, 7), (2, 7))] {
            let [core, reported] = [core, reported].map(|(major, minor)| version(major, minor));
            assert_eq!(reported_version(Some(core)), reported);
        }
        assert_eq!(reported_version(None), API_VERSION);
        assert_eq!(reported_version(Some(version(3, 0))), API_VERSION, "its structures may differ");
    }
}
