//! The limits of files and sockets, for messages to the user ([`more_descriptors`]).

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::io;

/// What to do when the system has refused a descriptor with `error`.
pub(crate) fn more_descriptors(error: &io::Error) -> String {
    let limit = getrlimit(Resource::Nofile).current;
    match (Errno::from_io_error(error), limit) {
        (Some(Errno::NFILE), _) => String::from("allow more descriptors in the system (sysctl fs.file-max)"),
        (_, Some(limit)) => format!("allow more descriptors (ulimit -n is {limit})"),
        (_, None) => String::from("allow more descriptors (ulimit -n)"),
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    #[test]
    fn the_limit_that_was_reached_is_named() {
        let limit = getrlimit(Resource::Nofile).current.map_or(String::new(), |limit| format!(" is {limit}"));
        let of_process = more_descriptors(&Errno::MFILE.into());
        assert_eq!(of_process, format!("allow more descriptors (ulimit -n{limit})"));
        assert!(more_descriptors(&Errno::NFILE.into()).contains("fs.file-max"));
    }
}
