//! Exploration of the endpoint machine: every state of small worlds, or as many as a bound permits, and random runs of
//! larger ones. The search must also find errors that we put in (mutants). Offloaded machines (remote atomics,
//! reductions) run beside the endpoints.
//!
//! The explored code is [`weir_proto::Endpoint`] itself, not a separate model that could differ. `make prove` prints
//! the results, and `docs/explanation/proof.md` says what is proven and what is not.
#![forbid(unsafe_code)]

pub mod explore;
pub mod holding;
mod liveness;
pub mod model;
pub mod paths;
pub mod suite;
pub mod table;
pub mod worlds;
