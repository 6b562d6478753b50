//! Exploration of weir's machines: every state of small worlds, random ways through larger ones, and the rules that
//! are known to be wrong, which must be caught.
//!
//! What is explored is [`weir_proto::Endpoint`] itself, the code that ships; there is no model of it that could differ.
//! `docs/explanation/proof.md` says what is proven and what is not; `make prove` prints it.
#![forbid(unsafe_code)]

pub mod explore;
mod liveness;
pub mod model;
pub mod suite;
pub mod table;
pub mod worlds;
