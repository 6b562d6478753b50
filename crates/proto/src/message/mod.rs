//! Matching: queues of posted receives and of unexpected messages, searched in MPI's order. Nothing here sends.
//!
//! Messages wait in [`unexpected`], receives in [`posted`]. Both search a short list in order, which is enough for
//! nearly every program. Longer queues use an [`index`]. Entries are stored in a [`slab`], so that memory grows in
//! steps and is released.

mod index;
pub(crate) mod posted;
pub(crate) mod slab;
pub(crate) mod unexpected;
