//! The `weir` command: run, doctor, explain, settings, tune, clean, and the command line of all others. Benchmarks are in
//! `weir-bench`, the simulator commands in `weir-lab`.
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
