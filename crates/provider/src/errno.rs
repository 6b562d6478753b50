//! libfabric's error numbers: those that calls return ([`Error`]), and those in entries of completion queues
//! ([`completion`]). Errors of the engine are converted here, and results to what calls return ([`status`],
//! [`ssize_status`]).

use std::ffi::c_int;
use weir_engine::{OpenError, PostError};

/// The reason why a call fails: a positive error number. It is as wide as a count, so that a result of either is
/// returned in two registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error(isize);

impl Error {
    /// Try again after making progress.
    pub const AGAIN: Error = Error(libc::EAGAIN as isize);
    /// Nothing matches the request.
    pub const NO_DATA: Error = Error(libc::ENODATA as isize);
    /// An argument is invalid.
    pub const INVALID: Error = Error(libc::EINVAL as isize);
    /// The object is in the wrong state, usually an endpoint before `fi_enable`.
    pub const BAD_STATE: Error = Error(258);
    /// Unknown flags.
    pub const BAD_FLAGS: Error = Error(260);
    /// The caller's buffer is too small.
    pub const TOO_SMALL: Error = Error(257);
    /// The message is longer than allowed.
    pub const MESSAGE_SIZE: Error = Error(libc::EMSGSIZE as isize);
    /// The function is not implemented.
    pub const NOT_IMPLEMENTED: Error = Error(libc::ENOSYS as isize);
    /// The operation is not supported.
    pub const NOT_SUPPORTED: Error = Error(libc::EOPNOTSUPP as isize);
    /// The option is not known.
    pub const NO_OPTION: Error = Error(libc::ENOPROTOOPT as isize);
    /// The key is in use.
    pub const NO_KEY: Error = Error(266);
    /// No address vector is bound.
    pub const NO_VECTOR: Error = Error(267);
    /// No event queue is bound.
    pub const NO_EVENT_QUEUE: Error = Error(261);
    /// No completion queue is bound.
    pub const NO_QUEUE: Error = Error(263);
    /// The object belongs to another domain.
    pub const OTHER_DOMAIN: Error = Error(262);
    /// Other objects still use it.
    pub const BUSY: Error = Error(libc::EBUSY as isize);
    /// There is no such entry.
    pub const NO_ENTRY: Error = Error(libc::ENOENT as isize);
    /// No memory, or no space in shared memory.
    pub const NO_MEMORY: Error = Error(libc::ENOMEM as isize);
    /// An error waits in the queue.
    pub const ERROR_AVAILABLE: Error = Error(259);
    /// The timeout has expired.
    pub const TIMED_OUT: Error = Error(libc::ETIMEDOUT as isize);

    /// The operating system returned this error number.
    pub fn system(number: c_int) -> Error {
        Error(number as isize)
    }

    /// The negative number that libfabric returns.
    #[inline]
    pub fn code(self) -> c_int {
        -(self.0 as c_int)
    }
}

impl From<PostError> for Error {
    fn from(error: PostError) -> Error {
        match error {
            PostError::Again { .. } | PostError::Full { .. } => Error::AGAIN,
        }
    }
}

impl From<&OpenError> for Error {
    fn from(error: &OpenError) -> Error {
        match error {
            OpenError::Setting { .. } => Error::INVALID,
            OpenError::Link { .. } | OpenError::Scheme { .. } | OpenError::Admission { .. } => {
                Error::NOT_SUPPORTED
            }
            OpenError::Network(_) | OpenError::Core(_) => Error::NOT_SUPPORTED,
            OpenError::Mailbox(_) => Error::NO_MEMORY,
            OpenError::System { source, .. } => Error::system(source.raw_os_error().unwrap_or(libc::EIO)),
        }
    }
}

/// The result of a call that returns `int`.
pub fn status(result: Result<(), Error>) -> c_int {
    result.map_or_else(Error::code, |()| 0)
}

/// The result of a call that returns `ssize_t`.
#[inline]
pub fn ssize_status(result: Result<usize, Error>) -> isize {
    match result {
        Ok(count) => count as isize,
        Err(Error(number)) => -number,
    }
}

/// Numbers in error entries of completion queues, which are positive.
pub mod completion {
    use std::ffi::c_int;

    use weir_proto::PeerFault;

    /// The message was longer than the buffer: `FI_ETRUNC`.
    pub const TRUNCATED: c_int = 265;
    /// A peek found nothing: `FI_ENOMSG`.
    pub const NO_MESSAGE: c_int = libc::ENOMSG;
    /// The operation was cancelled: `FI_ECANCELED`.
    pub const CANCELED: c_int = libc::ECANCELED;
    /// The peer refused a remote read or write (key, bounds or rights): `FI_EACCES`.
    pub const REFUSED: c_int = libc::EACCES;
    /// The receiver had no buffer for longer than the retries allow: `FI_ENORX`.
    pub const NOT_READY: c_int = 269;

    /// The number for a lost peer.
    ///
    /// - Reset: its process died. No route: it was never reached. Aborted: it sent a malformed packet.
    /// - Shut down: it closed its endpoint. Not ready: it had no buffer for too long.
    pub fn lost(fault: PeerFault) -> c_int {
        match fault {
            PeerFault::Died => libc::ECONNRESET,
            PeerFault::Unreachable => libc::EHOSTUNREACH,
            PeerFault::Malformed => libc::ECONNABORTED,
            PeerFault::Closed => libc::ESHUTDOWN,
            PeerFault::NotReady => NOT_READY,
        }
    }

    /// Whether it is the number for a peer that is gone.
    pub fn is_loss(number: c_int) -> bool {
        [PeerFault::Died, PeerFault::Unreachable, PeerFault::Malformed, PeerFault::Closed]
            .into_iter()
            .any(|fault| lost(fault) == number)
    }
}
