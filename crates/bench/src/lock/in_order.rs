//! What a hand-over to a given rank takes without any lock: threads of this process pass a turn around in order, and yield while
//! it is not theirs. A queue lock cannot be faster where its next rank must get a core first.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often `threads` threads pass the turn on in a second.
pub fn passes_per_second(threads: u32, time: Duration) -> f64 {
    let (turn, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let threads = u64::from(threads);
    let pass_on = |own: u64| {
        while !is_over.load(Ordering::Relaxed) {
            let now = turn.load(Ordering::Acquire);
            match now % threads == own {
                true => turn.store(now + 1, Ordering::Release),
                false => std::thread::yield_now(),
            }
        }
    };
    std::thread::scope(|scope| {
        (0..threads).for_each(|own| _ = scope.spawn(move || pass_on(own)));
        let (began, before) = (Instant::now(), turn.load(Ordering::Relaxed));
        std::thread::sleep(time);
        let passed = turn.load(Ordering::Relaxed) - before;
        let elapsed = began.elapsed();
        is_over.store(true, Ordering::Relaxed);
        passed as f64 / elapsed.as_secs_f64()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_passes_the_turn_on() {
        let mut passes = 0.0;
        for _ in 0..1000 {
            passes = passes_per_second(3, Duration::from_millis(1));
            if passes > 3000.0 {
                break; // each more than once in a millisecond
            }
        }
        assert!(passes > 3000.0, "{passes}");
    }
}
