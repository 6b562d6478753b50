//! Finds an MPI and weir's plug-in, launches programs under that MPI over weir or another transport, and runs the job
//! until it ends. It also has the temporary directories of running commands ([`scratch`]), and removes what crashed
//! jobs have left behind ([`mailboxes`]).
#![forbid(unsafe_code)]

pub mod find;
pub mod hosts;
pub mod job;
pub mod launch;
pub mod mailboxes;
pub mod program;
pub mod provider_file;
pub mod remote;
pub mod scratch;
