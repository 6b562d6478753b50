//! Errors: what a call could not do, with the value and what is allowed. [`Error::code`] is the number that C gets.

use weir_engine::OpenError;
use weir_proto::PeerFault;

use crate::exchange::ExchangeError;

/// Why a rank is lost.
pub type Fault = PeerFault;

/// The reason why a call failed. The text is one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A limit is reached for the moment. Nothing has started.
    #[error("{limit} {what} are under way, which is the limit; try again after making progress")]
    Again {
        /// What is limited.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// An argument is not allowed. Nothing has started.
    #[error("{what} {value}: allowed are {allowed}")]
    Argument {
        /// The argument.
        what: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// A rank is lost. The operation has ended, and memory that it changes has no certain content.
    #[error("{} is lost: it {}", name(*rank), reason(*fault))]
    Lost {
        /// The rank, if it is known.
        rank: Option<u32>,
        /// Why.
        fault: Fault,
    },
    /// The rank that has the memory refuses.
    #[error(
        "rank {rank} refuses {bytes} bytes at offset {offset} of key {key}: allowed are keys that it has registered, \
         offsets within, and what it permits"
    )]
    Refused {
        /// The rank.
        rank: u32,
        /// The key.
        key: u64,
        /// Unit: bytes.
        offset: u64,
        /// Unit: bytes.
        bytes: u64,
    },
    /// The ranks could not tell each other their addresses.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The endpoint could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A setting (`FI_WEIR_*`) is not allowed.
    #[error(transparent)]
    Setting(#[from] weir_engine::config::SettingError),
    /// The thread for automatic progress could not be started.
    #[error("automatic progress needs a thread: {0}")]
    Thread(std::io::Error),
    /// The endpoint is closed, or this process is a fork of the one that opened it.
    #[error("the endpoint is closed")]
    Closed,
}

fn name(rank: Option<u32>) -> String {
    rank.map_or_else(|| "a rank".to_owned(), |rank| format!("rank {rank}"))
}

fn reason(fault: Fault) -> &'static str {
    match fault {
        Fault::Died => "ended without closing its endpoint",
        Fault::Unreachable => "could not be reached",
        Fault::Malformed => "did something else than the others, or sent a malformed packet",
        Fault::Closed => "closed its endpoint, or left the group",
        Fault::NotReady => "was not ready in time",
    }
}

impl Error {
    /// The number of this error in C's interface (`enum weir_status`). Never 0.
    pub fn code(&self) -> i32 {
        match self {
            Error::Again { .. } => 1,
            Error::Argument { .. } => 2,
            Error::Lost { .. } => 3,
            Error::Refused { .. } => 4,
            Error::Exchange(_) => 5,
            Error::Open(_) | Error::Setting(_) | Error::Thread(_) => 6,
            Error::Closed => 7,
        }
    }

    pub(crate) fn argument(
        what: &'static str,
        value: impl std::fmt::Display,
        allowed: impl Into<String>,
    ) -> Error {
        Error::Argument { what, value: value.to_string(), allowed: allowed.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_the_value_and_what_is_allowed() {
        let lost = Error::Lost { rank: Some(3), fault: Fault::Died };
        assert_eq!(lost.to_string(), "rank 3 is lost: it ended without closing its endpoint");
        let argument = Error::argument("rank", 9, "0 to 3");
        assert_eq!(argument.to_string(), "rank 9: allowed are 0 to 3");
        let again = Error::Again { what: "atomics with a rank", limit: 5 };
        assert!(again.to_string().starts_with("5 atomics with a rank are under way"), "{again}");
    }
}
