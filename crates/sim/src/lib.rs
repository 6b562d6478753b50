//! The simulated cluster: the endpoint machines of `weir-proto`, unchanged, on modelled networks in virtual time.
//!
//! A [`world::World`] runs on one thread. It depends only on its [`world::WorldSpec`], its network, its programs and
//! its faults. It reads no clock, has no global state and draws all random numbers from its seed. The same world gives
//! the same [`world::Report::trace`] on every host.
//!
//! The simulator does not know MPI libraries, operating systems or caches. [`cost::Cost`] holds the time that each
//! step takes on a processor. A file of [`network`] describes what a network does.
//!
//! ```text
//! program     an async fn for each rank; calls send, recv, wait and compute on its program::Rank
//! world       performs the calls on the rank's Endpoint, prices its actions, keeps its mailbox
//! network     says when an injected packet arrives, and when its sender may resume
//! queue       orders events by time
//! ```
#![forbid(unsafe_code)]

pub mod calibrate;
pub mod collective;
pub mod cost;
pub mod goal;
pub mod jitter;
pub mod keys;
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

/// Bound of virtual time: 53 days. A world that reaches it ends with an error. An addition to a smaller time
/// does not overflow.
pub const TIME_LIMIT: Picoseconds = 1 << 62;

/// Most ranks of a world.
pub const MAX_RANKS: u32 = 1 << 20;
/// Bound of plan keys that end in `_bytes`, and of a message in a GOAL schedule: one tebibyte. Unit: bytes.
pub const MAX_BYTES: u64 = 1 << 40;
/// Bound of plan keys that end in `_ns`, and of one computation in a GOAL schedule: a quarter of an hour.
/// [`TIME_LIMIT`] is 4,600 times as long. Unit: ns.
pub const MAX_NS: u64 = 1_000_000_000_000;
