//! libfabric's structures and constants (1.17 to 2.6), written by hand so that building does not need its headers.
//! The compiler checks sizes and offsets against those that a C compiler printed. `tests/structures.rs` compares every
//! member with the headers, where they are installed.
//!
//! - `constants`: capabilities, flags, classes, values of attributes.
//! - `pointers`: pointers between C and Rust, as types that state the promises of the C side.
//! - `objects`: the beginning of every object, and objects that C passes back.
//! - `attributes`: structures with attributes (`fi_info` and below, messages, completion entries).
//! - `error_entry`: the variable for an error entry of a completion queue.
//! - `tables`: the tables of functions of each object, and of the provider.

pub mod attributes;
pub mod constants;
pub mod error_entry;
pub mod objects;
pub mod pointers;
pub mod tables;

pub use attributes::*;
pub use constants::*;
pub use error_entry::*;
pub(crate) use objects::object;
pub use objects::*;
pub use pointers::*;
pub(crate) use pointers::{answer, inner, inner_string};
pub use tables::*;
