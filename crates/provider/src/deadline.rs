//! Deadlines of blocking calls, from their timeouts in milliseconds, and the time that is left until then.

use std::ffi::c_int;
use std::time::{Duration, Instant};

/// The time when a call with this timeout ends. `None`: never.
pub(crate) fn deadline(timeout_ms: c_int) -> Option<Instant> {
    let timeout_ms = u64::try_from(timeout_ms).ok()?;
    Some(Instant::now() + Duration::from_millis(timeout_ms))
}

/// Time until the deadline. `None`: it has passed.
pub(crate) fn remaining_ns(deadline: Option<Instant>) -> Option<u64> {
    match deadline {
        None => Some(u64::MAX),
        Some(deadline) => {
            let left = deadline.saturating_duration_since(Instant::now());
            (!left.is_zero()).then_some(left.as_nanos() as u64)
        }
    }
}
