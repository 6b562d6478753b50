//! Exploration of weir's machines: every state of small worlds, random runs of larger worlds, and mutants.
//!
//! The explored code is [`weir_proto::Endpoint`] itself, not a separate model that could differ. `make prove` prints
//! the results, and `docs/explanation/proof.md` says what is proven and what is not.
#![forbid(unsafe_code)]

pub mod explore;
mod liveness;
pub mod model;
pub mod suite;
pub mod table;
pub mod worlds;
