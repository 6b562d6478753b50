//! Errors of processes that use the kernel programs.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

/// The reason why a call failed. The text is one line.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// No program is attached to the interface.
    #[error(
        "no kernel programs are attached to {interface} ({why}); run `weir nic attach {interface}` as root"
    )]
    NotAttached {
        /// The interface.
        interface: String,
        /// What the system says.
        why: io::Error,
    },
    /// The one who serves the interface refuses.
    #[error("the service of {interface} refuses: {why}")]
    Service {
        /// The interface.
        interface: String,
        /// Why.
        why: String,
    },
    /// No program is attached where the packet went.
    #[error("{host} has no kernel programs attached: it refuses packets")]
    Refused {
        /// The other host.
        host: Ipv4Addr,
    },
    /// The host has not answered. The operation may have been performed, once.
    #[error("{host} has not answered for {} ms; it is down, does not know this job, or has programs of another version", .patience.as_millis())]
    NoAnswer {
        /// The other host.
        host: Ipv4Addr,
        /// How long we have waited.
        patience: Duration,
    },
    /// There is no such word.
    #[error("word {place} of {host}: allowed are 0 to {}", .words.saturating_sub(1))]
    NoSuchWord {
        /// The other host.
        host: Ipv4Addr,
        /// The word.
        place: u64,
        /// How many words the host has.
        words: u64,
    },
    /// The tables of the host are full.
    #[error("{host} knows {bound} askers or members already, which is the limit")]
    TableFull {
        /// The other host.
        host: Ipv4Addr,
        /// The limit.
        bound: u64,
    },
    /// Members of an all-reduce have vectors of different lengths, or combine them differently.
    #[error("the members of the all-reduce at word {place} have different lengths or operations")]
    Differ {
        /// The word.
        place: u64,
    },
    /// Members of a barrier or all-reduce have not come.
    #[error("members {missing:?} have not come to the barrier for {} ms", .patience.as_millis())]
    Missing {
        /// Their numbers.
        missing: Vec<u32>,
        /// How long we have waited.
        patience: Duration,
    },
    /// Receivers have not acknowledged a message. They may have it.
    #[error("receivers {missing:?} have not acknowledged the message for {} ms", .patience.as_millis())]
    NotReceived {
        /// Their numbers.
        missing: Vec<u32>,
        /// How long we have waited.
        patience: Duration,
    },
    /// No message of a multi-send has come.
    #[error("no message has come for {} ms", .patience.as_millis())]
    NoMessage {
        /// How long we have waited.
        patience: Duration,
    },
    /// An argument is not allowed.
    #[error("{what} {value}: allowed are {allowed}")]
    Argument {
        /// The argument.
        what: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// A system call has failed.
    #[error("{what}: {why}")]
    System {
        /// The call.
        what: &'static str,
        /// The reason.
        why: io::Error,
    },
}

impl NicError {
    /// For `map_err`: an error of the operating system in `what`.
    pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> NicError {
        move |why| NicError::System { what, why: why.into() }
    }
}
