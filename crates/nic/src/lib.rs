//! Operations that the kernel carries out where frames arrive (XDP), without the process that they concern: changes of
//! words of another host, barriers, and all-reduces.
//!
//! ```text
//! host 1: weir nic attach eth0        host 2: weir nic attach eth0
//! Membership::join("eth0", secret)    Remote::new(domain, address of host 1)
//!   words().load(7)                     fetch_add(7, 1)
//!      ^                                   |  UDP: asker, number, tag
//!      +--- program on eth0 of host 1 <----+  answered by the program; the process of host 1 does nothing
//! ```
//! - [`Membership`] is a process's share of an attached interface: the words of this host.
//! - [`Remote`] changes words of another host, once each, whatever the network loses or doubles. That of a [`Membership`]
//!   finds replies in memory while it spins, and needs one system call for a change.
//! - [`Barrier`] is a barrier that the programs of one host count. [`AllReduce`] also combines vectors.
//! - [`MultiSend`] sends a message to many hosts in one frame. The programs copy it, and write it to the memory of each
//!   [`Inbox`].
//! - [`service`] and [`programs`] are what `weir nic attach` runs, and [`pretended`] has hosts for tests and benchmarks. They
//!   exist with the feature `loader`.
//!
//! It does not know MPI, groups or the engine. Who takes part, the secret and the addresses come from the caller.
//!
//! **Trust.** Each packet has a tag under the key of its domain (SipHash-2-4), which also names both hosts. The hash has two
//! words. The second one is what acknowledges a message of a multi-send: only who has the key and the message knows it. Packets
//! are not encrypted. Addresses of hosts must not be translated on the way.
#![forbid(unsafe_code)]

mod all_reduce;
mod asker;
mod barrier;
pub mod control;
mod domain;
mod error;
pub mod format;
mod meeting;
mod membership;
mod multi_send;
#[cfg(feature = "loader")]
pub mod pretended;
#[cfg(feature = "loader")]
pub mod programs;
mod remote;
mod reply_slot;
#[cfg(feature = "loader")]
pub mod service;
mod siphash;
#[cfg(feature = "loader")]
mod switch;

pub use all_reduce::AllReduce;
pub use asker::Patience;
pub use barrier::Barrier;
pub use domain::{Domain, Secret};
pub use error::NicError;
pub use format::{Combination, Element, Operation};
pub use membership::Membership;
pub use multi_send::{INBOX_WORDS, Inbox, MultiSend};
pub use remote::Remote;
