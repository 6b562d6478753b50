//! Sleep and wake-up of an endpoint at the doorbell of its mailbox ([`WakeUp`]), and the bell by which other links and
//! threads wake it ([`Bell`]).

use super::ShmLink;
use super::doorbell::call;
use super::mapping::MappedHeader;
use crate::{Bell, WakeUp};
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
}

/// The doorbell of a mailbox, for other links and threads.
pub(super) struct DoorbellOfMailbox(pub(super) MappedHeader);

impl Bell for DoorbellOfMailbox {
    fn ring(&self) {
        self.0.call_about(call::BELL);
    }
}
