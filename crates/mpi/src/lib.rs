//! Finds an MPI, launches a program under it with weir as its transport, and follows the processes of the job.
#![forbid(unsafe_code)]

pub mod find;
pub mod job;
pub mod launch;
pub mod mailboxes;
pub mod program;
pub mod provider_file;
pub mod scratch;
