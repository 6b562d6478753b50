//! The `weir` command: its command line, and the commands run, doctor, explain, settings, tune, clean, nic and reference
//! (pages, man pages and completions made from the code). Benchmarks are in `weir-bench`, the simulator commands in
//! `weir-lab`.
//!
//! It is a library so that tests can read the command line and the reference pages. `main.rs` is the program.
#![forbid(unsafe_code)]

mod clean;
pub mod command_line;
mod doctor;
mod explain;
mod hosts;
mod nic;
mod page;
pub mod reference;
mod report;
mod run;
mod settings;
mod tune;
