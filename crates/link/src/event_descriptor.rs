//! A file descriptor that is readable after a ring, until it is cleared: an `eventfd`. Programs pass it to `poll(2)` and its
//! relatives to wait for an endpoint together with other things.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// A descriptor that can be rung. It closes when this is dropped.
#[derive(Debug)]
pub struct EventDescriptor(OwnedFd);

impl EventDescriptor {
    /// Opens one.
    ///
    /// # Errors
    /// Those of eventfd, usually that the process has too many descriptors.
    pub fn open() -> io::Result<EventDescriptor> {
        Ok(EventDescriptor(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes it readable.
    pub fn ring(&self) {
        // It fails only if it is readable already, after 2^64 - 2 rings.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes it unreadable. Returns whether it was readable.
    pub fn clear(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }

    /// Waits until it is readable, at most `at_most_ns`. A signal ends the wait early.
    pub fn wait(&self, at_most_ns: u64) {
        let timeout = Timespec {
            tv_sec: (at_most_ns / 1_000_000_000) as _,
            tv_nsec: (at_most_ns % 1_000_000_000) as _,
        };
        let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout));
    }

    /// Its number in this process.
    pub fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for EventDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not wait for descriptors")]
    fn it_is_readable_from_a_ring_until_it_is_cleared() {
        let descriptor = EventDescriptor::open().expect("a descriptor");
        let is_readable = || {
            let begun = Instant::now();
            descriptor.wait(5_000_000);
            begun.elapsed() < Duration::from_millis(5)
        };
        descriptor.clear();
        assert!(!is_readable());
        descriptor.ring();
        descriptor.ring();
        assert!(is_readable() && is_readable());
        descriptor.clear();
        assert!(!is_readable());
    }
}
