//! Messages: which receive gets which message. Nothing here sends.
//!
//! Messages wait in [`unexpected`], receives in [`posted`]. Both look through a few in order, as nearly every program has
//! only a few, and turn to an [`index`] when that would take long. Entries lie in a [`slab`], so that memory grows in
//! steps and goes back.

mod index;
pub(crate) mod posted;
pub(crate) mod slab;
pub(crate) mod unexpected;
