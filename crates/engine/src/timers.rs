//! Timers: reports expired timers to the endpoint machine or to the offloaded machine that has set them. It also says
//! whether the endpoint waits for a time at all.
//!
//! Only a call of the engine reports a timer, so a report may be late. A sleep ends in time for the first one.

use weir_link::Link;
use weir_proto::{Event, Instant, TimerKey};

use crate::Engine;

impl<L: Link> Engine<L> {
    /// Reports the timers that have expired to the endpoint machine; the first one is set to `earliest`. Returns 1 if
    /// that changed something. A peer that is still not ready is no reason to stay awake.
    #[cold]
    pub(crate) fn handle_timers(&mut self, earliest: Instant) -> usize {
        // One time for all, so that a timer that is set again does not expire in the same call.
        let now = self.io.clock();
        if now < earliest {
            return 0;
        }
        let refused = self.machine.counters().rnr_naks;
        let mut of_machines = false;
        while let Some(timer) = self.io.timers.take_expired(now) {
            match timer {
                TimerKey::Endpoint(timer) => self.handle(Event::TimerExpired(timer)),
                TimerKey::Machine(timer) => {
                    self.machine_timer_expired(timer);
                    of_machines = true;
                }
            }
        }
        usize::from(of_machines || self.machine.counters().rnr_naks == refused || self.io.timers.is_empty())
    }

    /// Whether the endpoint machine waits for a timer, or for idleness to send coalesced acknowledgements.
    #[inline(always)]
    pub(crate) fn waits_for_time(&self) -> bool {
        !self.io.timers.is_empty() || self.machine.waits_for_idle()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant as Clock};

    use weir_proto::{Growth, Peer, Purpose, Scheme, Timer};

    use crate::Engine;
    use crate::config::Settings;

    const TIMER: Duration = Duration::from_millis(2);

    #[test]
    fn timers_expire_and_end_sleeps_under_every_scheme() {
        let schemes = [
            Scheme::Unlimited,
            Scheme::Hardware { rnr_timer_ns: 10_000, rnr_retries: 7 },
            Scheme::Static { piggyback: true },
            Scheme::StaticConnection { ecm_threshold: None },
            Scheme::AdaptiveBacklog { growth: Growth::Exponential, ecm_threshold: None },
            Scheme::Dynamic { piggyback: true },
            Scheme::Demand,
        ];
        for scheme in schemes {
            let directory = tempfile::tempdir().expect("a directory");
            let settings = Settings { scheme, shm_dir: directory.path().into(), ..Settings::default() };
            let mut engine = Engine::open(&settings, 2, false).expect("a mailbox");
            let began = Clock::now();
            // A machine ignores a timer that it does not wait for.
            for peer in 0..3 {
                let at = engine.io.clock().plus_ns(TIMER.as_nanos() as u64);
                engine.io.timers.set(Timer { peer: Peer(peer), purpose: Purpose::Rnr }.into(), at);
            }
            while !engine.io.timers.is_empty() {
                engine.wait(20_000_000_000);
                engine.progress();
            }
            assert!(began.elapsed() >= TIMER, "{scheme:?}: {:?}", began.elapsed());
            assert!(began.elapsed() < Duration::from_secs(5), "{scheme:?}: {:?}", began.elapsed());
        }
    }
}
