//! The texts of error numbers, for `fi_cq_strerror` and `fi_eq_strerror`.

use std::ffi::{CStr, c_char, c_int};

use crate::errno::completion;
use crate::ffi::OutArray;

/// The text that `fi_cq_strerror` and `fi_eq_strerror` return for an error number of this provider.
fn error_text(number: c_int) -> &'static CStr {
    match number {
        0 => c"no error",
        completion::TRUNCATED => c"weir: the message was longer than the posted buffer; post a larger one",
        completion::NO_MESSAGE => c"weir: no unexpected message matches",
        completion::CANCELED => c"weir: the operation was cancelled",
        completion::REFUSED => c"weir: the peer refused the access to its memory; check key, bounds and access rights",
        completion::NOT_READY => {
            c"weir: the peer had no buffer for all RNR retries; raise FI_WEIR_RNR_RETRIES or post more receives"
        }
        libc::ECONNRESET => c"weir: the peer's process ended without closing its endpoint; look for its own error",
        libc::EHOSTUNREACH => {
            c"weir: the peer cannot be reached: it is gone, has another version or flow-control scheme, or no space, or a \
              firewall is between; a line of weir on standard error says more"
        }
        libc::ECONNABORTED => c"weir: the peer sent a malformed packet; run one version of weir on all ranks",
        libc::ESHUTDOWN => c"weir: the peer has closed its endpoint",
        _ => c"weir: unknown error",
    }
}

/// Copies the text of error `number` into the caller's buffer of `bytes` bytes, if there is a buffer. Returns a
/// string.
pub fn copy_error_text(number: c_int, buffer: &mut OutArray<u8>, bytes: usize) -> *const c_char {
    let text = error_text(number);
    let with_end = text.to_bytes_with_nul();
    if !buffer.is_some() || bytes == 0 {
        return text.as_ptr();
    }
    let room = (bytes - 1).min(with_end.len() - 1);
    buffer.set_bytes(&with_end[..room]);
    buffer.set(room, 0);
    buffer.as_ptr().cast()
}
