//! The native interface: groups, barriers, broadcasts, reductions, atomics and registered memory for runtimes of PGAS
//! languages, without MPI or libfabric. This is its Rust form; `include/weir.h` is its C form (`c.rs`).
//!
//! It adds no protocol. An [`Endpoint`] is one engine ([`weir_engine::Engine`]) with a rank. [`Group`] has its
//! collective operations; groups of one node do short ones in shared memory. [`Segment`] is memory that other ranks
//! read, write and change, and [`Request`] is an operation under way.
//!
//! ```text
//! Endpoint::open        rank and size, two exchanges, the group of all         every rank
//! world.start_barrier   -> Request;  compute;  test or wait                    split phase
//! endpoint.expose(7)    -> Segment: atomic words of this rank                  rank 1
//! endpoint.fetch_add    the word at (rank 1, key 7, offset 0)                  rank 0
//! close                 closes the groups with the others, then the engine     every rank
//! ```
//! **Memory.** What the program gives is copied, and what it gets is new. So a request that is dropped, or a program
//! that leaves early, leaves nothing behind that the engine would write to.
//!
//! **Threads.** All values can be used by any thread. Collective operations of a group start in the order of the calls,
//! which must be the same at all members.
//!
//! **Errors** are values ([`Error`]). A rank that dies ends all operations that need it. Every wait ends.

mod agreement;
mod atomics;
pub mod c;
mod elements;
mod endpoint;
mod error;
mod exchange;
mod group;
mod launcher;
mod lock;
mod membership;
mod node_groups;
mod pmi;
mod remote;
mod request;
mod segment;
mod state;

pub use elements::{Element, Plain};
pub use endpoint::{Endpoint, MAX_RANKS, Options};
pub use error::{Error, Fault};
pub use exchange::{Exchange, ExchangeError};
pub use group::{Group, MAX_JOINED_GROUPS};
pub use lock::Lock;
pub use remote::Place;
pub use request::Request;
pub use segment::Segment;
pub use state::MAX_REQUESTS;
pub use weir_engine::{MAX_COLLECTIVE_BYTES, MAX_COLLECTIVES};
pub use weir_proto::offload::atomics::MAX_ATOMICS;
pub use weir_proto::offload::{WordOperation, WordType};
