//! Exploration of weir's machines: every state of small worlds, random runs of larger worlds, and mutants.
//!
//! The explored code is [`weir_proto::Endpoint`] itself, not a separate model that could differ. `docs/proof.md` says
//! what is proven and what is not. `make prove` prints it.
#![forbid(unsafe_code)]

pub mod explore;
mod liveness;
pub mod model;
pub mod suite;
pub mod table;
pub mod worlds;
