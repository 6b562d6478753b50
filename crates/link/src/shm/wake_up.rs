//! Sleep and wake-up of an endpoint at the doorbell of its mailbox ([`WakeUp`]), and the bell by which other links and
//! threads wake it ([`Bell`]).

use super::ShmLink;
use super::doorbell::call;
use super::mapping::MappedHeader;
use crate::{Bell, Look, Sleeper, WakeUp};
use std::sync::Arc;

impl WakeUp for ShmLink {
    fn sleep(&mut self, at_most_ns: u64) {
        self.reclaim_before_sleep();
        if self.notices.is_empty() {
            self.inbox.sleep(&self.doorbell, at_most_ns);
        }
    }

    fn bell(&self) -> Arc<dyn Bell> {
        Arc::new(DoorbellOfMailbox(self.doorbell.clone()))
    }

    fn sleeper(&self) -> Option<Arc<dyn Sleeper>> {
        Some(Arc::new(DoorbellOfMailbox(self.doorbell.clone())))
    }

    fn begin_sleep(&mut self) -> bool {
        self.reclaim_before_sleep();
        // The last episode may be woken already, and nobody wakes it twice.
        self.inbox.end_sleep(&self.doorbell);
        let asleep = self.notices.is_empty() && self.inbox.begin_sleep(&self.doorbell);
        if !asleep {
            self.inbox.end_sleep(&self.doorbell);
        }
        asleep
    }

    fn end_sleep(&mut self) {
        self.inbox.end_sleep(&self.doorbell);
    }
}

/// The doorbell of a mailbox, for other links and threads.
pub(super) struct DoorbellOfMailbox(pub(super) MappedHeader);

impl Bell for DoorbellOfMailbox {
    fn ring(&self) {
        self.0.call_about(call::BELL);
    }
}

impl Sleeper for DoorbellOfMailbox {
    fn look(&self) -> Look {
        self.0.look()
    }

    fn sleep_since(&self, look: Look, at_most_ns: u64) {
        self.0.sleep_since(look, at_most_ns);
    }

    fn wake(&self) {
        self.0.wake_watcher();
    }
}
