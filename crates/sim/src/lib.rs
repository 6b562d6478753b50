//! The simulated cluster: the machines of `weir-proto`, unchanged, on modelled networks, in virtual time.
//!
//! A [`world::World`] is one thread's business and a function of its plan: no clock, no global state, no randomness
//! that is not drawn from the seed. The same plan gives the same [`world::Report::trace`] on every machine.
//!
//! What it does not know: MPI libraries, operating systems, caches. What a processor spends is a number in
//! [`cost::Cost`], what a network does is a file in [`network`].
//!
//! ```text
//! a rank's program     async fn, calls send, recv, wait, compute on its program::Rank
//! world                performs the calls on the rank's Endpoint, prices its actions, keeps its mailbox
//! network              says when what was injected arrives, and when the sender may go on
//! queue                what happens next
//! ```
#![forbid(unsafe_code)]

pub mod calibrate;
pub mod collective;
pub mod cost;
pub mod goal;
pub mod jitter;
pub mod network;
pub mod plan;
pub mod program;
pub mod queue;
pub mod trace;
pub mod traffic;
pub mod workload;
pub mod world;

/// Virtual time. Unit: picoseconds since the start; 2^64 of them are 213 days.
pub type Picoseconds = u64;

/// A world that comes to this time ends with an error: 53 days. What is added to a time that is still earlier has room behind it.
pub const TIME_LIMIT: Picoseconds = 1 << 62;

/// Ranks of a world at most.
pub const MAX_RANKS: u32 = 1 << 20;
/// The most that a plan may give a name that ends in `_bytes`, and a GOAL schedule a message: a tebibyte, more packets than anybody
/// simulates. Unit: bytes.
pub const MAX_BYTES: u64 = 1 << 40;
/// The same for names that end in `_ns`, and work of a GOAL schedule: a quarter of an hour. There is room for 4,600 of them in a world's
/// time ([`TIME_LIMIT`]). Unit: ns.
pub const MAX_NS: u64 = 1_000_000_000_000;
