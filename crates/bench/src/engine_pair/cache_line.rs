//! Measures the time of a cache line from one core to another: the lower bound for a message between two processes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_link::cores;
use weir_output::Failure;

/// A word with a cache line of its own (two lines, since processors fetch pairs).
#[repr(align(128))]
struct Line(AtomicU64);

/// Round trips of a measurement.
const ROUND_TRIPS: u64 = 20_000;
/// Bound on a measurement. With one core at a time it would never end.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Half the round trip of a word that one core writes and the other reads, mean of many. Unit: nanoseconds.
///
/// # Errors
/// [`Failure`]: a core is not available, or the other thread got none.
pub fn one_way_ns([here, there]: [usize; 2]) -> Result<f64, Failure> {
    let (to, back) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    cores::pin(here).map_err(Failure::system(format!("core {here}")))?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // If the thread cannot be bound, it still measures two threads.
            let _ = cores::pin(there);
            let began = Instant::now();
            for number in 1..=ROUND_TRIPS {
                if !wait_for_number(&to, number, began) {
                    return;
                }
                back.0.store(number, Ordering::Release);
            }
        });
        let began = Instant::now();
        for number in 1..=ROUND_TRIPS {
            to.0.store(number, Ordering::Release);
            if !wait_for_number(&back, number, began) {
                return Err(Failure::Measurement(format!(
                    "cores {here} and {there} do not run at the same time"
                )));
            }
        }
        Ok(began.elapsed().as_nanos() as f64 / (2 * ROUND_TRIPS) as f64)
    })
}

/// Polls until the line holds `number`; returns whether it came in time. No pause between polls: a pause would last
/// longer than the measured time.
fn wait_for_number(line: &Line, number: u64, began: Instant) -> bool {
    let mut polls = 0u32;
    while line.0.load(Ordering::Acquire) != number {
        polls = polls.wrapping_add(1);
        if polls.is_multiple_of(1 << 16) && began.elapsed() > TIMEOUT {
            return false;
        }
    }
    true
}
