//! Measures copies by one thread within one process, by `memcpy` and by cross-memory attach. `weir bench native` prints
//! them beside weir's times for messages of the same size.

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::convert::Infallible;
use std::hint::black_box;
use std::io::IoSliceMut;
use std::time::{Duration, Instant};
use weir_output::Failure;

/// Bytes and number of copies between two reads of the clock: at most this many of both.
const BATCH_BYTES: usize = 16 << 10;
const MAX_COPIES: usize = 64;

/// Two buffers of this process. They are copied repeatedly, so they are in a cache as far as they fit.
pub struct Copies {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Copies {
    /// Buffers of `bytes` bytes with all pages touched.
    pub fn new(bytes: usize) -> Copies {
        Copies { from: vec![1; bytes], to: vec![2; bytes] }
    }

    /// One copy of `bytes` bytes by the processor, mean over about `time`. Unit: nanoseconds.
    pub fn memcpy_ns(&mut self, bytes: usize, time: Duration) -> f64 {
        let Copies { from, to } = self;
        let Ok(mean) = mean_ns(bytes, time, || -> Result<(), Infallible> {
            black_box(&mut to[..bytes]).copy_from_slice(black_box(&from[..bytes]));
            Ok(())
        });
        mean
    }

    /// One copy of `bytes` bytes by the kernel (`process_vm_readv` within this process), mean over about `time`. Unit:
    /// nanoseconds.
    ///
    /// # Errors
    /// [`Failure`]: the system does not allow cross-memory attach.
    pub fn cross_memory_ns(&mut self, bytes: usize, time: Duration) -> Result<f64, Failure> {
        let Copies { from, to } = self;
        let remote = RemoteIoVec { base: from.as_ptr() as usize, len: bytes };
        mean_ns(bytes, time, || {
            let mut local = [IoSliceMut::new(&mut to[..bytes])];
            process_vm_readv(Pid::this(), &mut local, &[remote]).map(drop)
        })
        .map_err(|errno| Failure::System { what: "process_vm_readv".into(), source: errno.into() })
    }
}

fn mean_ns<E>(bytes: usize, time: Duration, mut copy: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let batch = (BATCH_BYTES / bytes.max(1)).clamp(1, MAX_COPIES);
    let (began, mut count) = (Instant::now(), 0);
    loop {
        for _ in 0..batch {
            copy()?;
        }
        count += batch;
        let elapsed = began.elapsed();
        if elapsed >= time {
            return Ok(elapsed.as_nanos() as f64 / count as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_copied() {
        let mut copies = Copies::new(5000);
        assert!(copies.memcpy_ns(3000, Duration::ZERO) > 0.0);
        assert_eq!(copies.to.iter().filter(|&&byte| byte == 1).count(), 3000);
        copies.to.fill(2);
        assert!(copies.cross_memory_ns(4000, Duration::ZERO).unwrap() > 0.0);
        assert_eq!(copies.to.iter().filter(|&&byte| byte == 1).count(), 4000);
    }
}
