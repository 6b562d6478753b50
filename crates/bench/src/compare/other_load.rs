//! Measures the share of the cores that other work takes while a job runs. It shows whether numbers are usable; a
//! load average reports that late and covers the last minute.
//!
//! It is the time that the kernel counts as not idle, less the time of our own descendants that have ended. The kernel
//! counts in ticks of 10 ms, so a few percent mean nothing.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::unistd::{SysconfVar, sysconf};
use std::time::Instant;

/// Share from which the numbers are not usable.
pub const MAX_OTHER_LOAD: f64 = 0.1;

/// The processor time before a job.
pub struct OtherLoad {
    began: Instant,
    /// Of all processes, since the start of the host. Unit: s.
    all_s: Option<f64>,
    /// Of our descendants. Unit: s.
    ours_s: f64,
}

impl OtherLoad {
    /// Starts the measurement.
    pub fn begin() -> OtherLoad {
        OtherLoad { began: Instant::now(), all_s: busy().map(|(all_s, _)| all_s), ours_s: ours_s() }
    }

    /// The share of all cores that other work has taken since [`OtherLoad::begin`], from 0 to 1. `None`: not known.
    pub fn share(&self) -> Option<f64> {
        let (all_s, cores) = busy()?;
        let other_s = (all_s - self.all_s?) - (ours_s() - self.ours_s);
        let there_was_s = self.began.elapsed().as_secs_f64() * cores as f64;
        Some((other_s / there_was_s).clamp(0.0, 1.0))
    }
}

/// Processor time of all descendants that have ended. Unit: s.
fn ours_s() -> f64 {
    getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0.0, |usage| {
        (usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 * 1e-6
    })
}

/// Time in which cores were not idle, in s, and the number of cores.
fn busy() -> Option<(f64, usize)> {
    let ticks_per_s = sysconf(SysconfVar::CLK_TCK).ok()??;
    let (ticks, cores) = busy_ticks(&std::fs::read_to_string("/proc/stat").ok()?)?;
    Some((ticks as f64 / ticks_per_s as f64, cores))
}

fn busy_ticks(stat: &str) -> Option<(u64, usize)> {
    let cores = stat.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count();
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    // user, nice, system, (idle, iowait), irq, softirq, steal; the time of guests is part of user.
    let busy = ticks.get(..3)?.iter().chain(ticks.get(5..8)?).sum();
    (cores > 0).then_some((busy, cores))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_ticks_count_all_but_idle() {
        let stat = "cpu  10 20 30 1000 500 1 2 3 7 7\ncpu0 1 2\ncpu1 1 2\nintr 5\n";
        assert_eq!(busy_ticks(stat), Some((66, 2)));
        assert_eq!(busy_ticks("cpu  1 2\ncpu0 1 2\n"), None);
        assert_eq!(busy_ticks(""), None);
    }

    #[test]
    fn load_share_is_between_0_and_1() {
        let watch = OtherLoad::begin();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(watch.share().is_some_and(|share| (0.0..=1.0).contains(&share)));
    }
}
