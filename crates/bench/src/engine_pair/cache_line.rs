//! Measures the time of cache lines between two cores: of one from a core to another, the lower bound for a message between two
//! processes; and of two that both cores write and read at the same time, the lower bound for a barrier.

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
pub fn one_way_ns(cores: [usize; 2]) -> Result<f64, Failure> {
    let sends_first = |to: &Line, back: &Line, number, began| {
        to.0.store(number, Ordering::Release);
        wait_for_number(back, number, began)
    };
    let answers = |to: &Line, back: &Line, number, began| {
        let came = wait_for_number(back, number, began);
        to.0.store(number, Ordering::Release);
        came
    };
    Ok(round_trip_ns(cores, sends_first, answers)? / 2.0)
}

/// The time in which two cores exchange lines: each writes its own, and waits for that of the other; mean of many. Unit:
/// nanoseconds.
///
/// # Errors
/// As for [`one_way_ns`].
pub fn exchange_ns(cores: [usize; 2]) -> Result<f64, Failure> {
    let exchanges = |to: &Line, back: &Line, number, began| {
        to.0.store(number, Ordering::Release);
        wait_for_number(back, number, began)
    };
    round_trip_ns(cores, exchanges, exchanges)
}

/// The time of a step of two threads, mean of many. Each gets the line that it writes, the line that it reads, the number of the
/// step, and when the measurement began; it returns whether the other one came in time.
fn round_trip_ns(
    [here, there]: [usize; 2],
    first: impl Fn(&Line, &Line, u64, Instant) -> bool,
    second: impl Fn(&Line, &Line, u64, Instant) -> bool + Sync,
) -> Result<f64, Failure> {
    let lines = [Line(AtomicU64::new(0)), Line(AtomicU64::new(0))];
    cores::pin(here).map_err(Failure::system(format!("core {here}")))?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // If the thread cannot be bound, it still measures two threads.
            let _ = cores::pin(there);
            let began = Instant::now();
            (1..=ROUND_TRIPS).all(|number| second(&lines[1], &lines[0], number, began))
        });
        let began = Instant::now();
        if !(1..=ROUND_TRIPS).all(|number| first(&lines[0], &lines[1], number, began)) {
            let why = format!("cores {here} and {there} do not run at the same time");
            return Err(Failure::Measurement(why));
        }
        Ok(began.elapsed().as_nanos() as f64 / ROUND_TRIPS as f64)
    })
}

/// Polls until the line holds `number`, or the next one, which the other thread may write before we look; returns whether it came
/// in time. No pause between polls: a pause would last longer than the measured time.
fn wait_for_number(line: &Line, number: u64, began: Instant) -> bool {
    let mut polls = 0u32;
    while line.0.load(Ordering::Acquire) < number {
        polls = polls.wrapping_add(1);
        if polls.is_multiple_of(1 << 16) && began.elapsed() > TIMEOUT {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_one_step_ahead_ends_the_wait_too() {
        let line = Line(AtomicU64::new(5));
        let long_ago = Instant::now() - 2 * TIMEOUT;
        assert!(wait_for_number(&line, 5, long_ago) && wait_for_number(&line, 4, long_ago));
        assert!(!wait_for_number(&line, 6, long_ago));
    }
}
