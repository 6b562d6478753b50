//! Finds an MPI, launches a program under it with weir as its transport, and runs the job until it ends. Removes what
//! crashed jobs have left behind.
#![forbid(unsafe_code)]

pub mod find;
pub mod job;
pub mod launch;
pub mod mailboxes;
pub mod program;
pub mod provider_file;
pub mod scratch;
