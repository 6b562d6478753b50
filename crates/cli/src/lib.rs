//! The `weir` command: runs MPI programs over weir and reports on them, compares transports, checks the host.
//!
//! A library, so that tests can ask the command line what it accepts; `main.rs` is the command.
#![forbid(unsafe_code)]

mod clean;
pub mod command_line;
mod doctor;
mod explain;
mod page;
pub mod reference;
mod report;
mod run;
mod settings;
mod tune;
