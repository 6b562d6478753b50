//! What a hand-over to a given rank takes without any lock: threads of this process pass a turn around in order, and sleep until
//! it is theirs. A queue lock also hands itself to a given rank, which must get a core first.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// How often `threads` threads pass the turn on in a second.
pub fn passes_per_second(threads: u32, time: Duration) -> f64 {
    let (turn, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let names = Mutex::new(vec![None; threads as usize]);
    let all_are_there = Barrier::new(threads as usize + 1);
    let take_part = |own: u32| {
        let names_of_all = || names.lock().expect("no thread panics");
        names_of_all()[own as usize] = Some(thread::current());
        all_are_there.wait();
        let next = names_of_all()[((own + 1) % threads) as usize].clone();
        while !is_over.load(Ordering::Relaxed) {
            let now = turn.load(Ordering::Acquire);
            if now % u64::from(threads) == u64::from(own) {
                turn.store(now + 1, Ordering::Release);
                next.iter().for_each(thread::Thread::unpark);
            } else {
                thread::park();
            }
        }
        // The others look again whether it is over.
        next.iter().for_each(thread::Thread::unpark);
    };
    let take_part = &take_part;
    thread::scope(|scope| {
        (0..threads).for_each(|own| _ = scope.spawn(move || take_part(own)));
        all_are_there.wait();
        let (began, before) = (Instant::now(), turn.load(Ordering::Relaxed));
        thread::sleep(time);
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
    fn every_thread_passes_the_turn_on_and_all_end() {
        let passes = || passes_per_second(3, Duration::from_millis(1));
        assert!((0..1000).any(|_| passes() > 3000.0), "never one more than there are threads");
    }
}
