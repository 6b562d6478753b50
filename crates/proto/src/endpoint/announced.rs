//! Announcements: a message whose payload stays with its sender, and maybe its envelope too.
//!
//! A posted receive takes the message. Otherwise its envelope is kept, or dropped if its sender holds the message and the
//! budget is used up. This file does not know how holders are asked.

use super::hold_mutant::HoldMutant;
use super::holders::HolderRequest;
use super::receiving::Announced;
use super::state::Endpoint;
use crate::driver::Driver;
use crate::message::posted::PostOrder;
use crate::message::unexpected::{Payload, Unexpected};
use crate::packet::AnnouncementMarks;

impl Endpoint {
    /// A sender has announced a message.
    pub(super) fn rendezvous_arrived<D: Driver>(
        &mut self,
        announced: Announced,
        number: u32,
        sender: AnnouncementMarks,
        driver: &mut D,
    ) -> bool {
        let Announced { space, envelope, address, transfer } = announced;
        let from = envelope.from;
        if self.paths.peer(from).path.inbound.is_some() {
            return false;
        }
        let holder = self.matching.holders.get(from).is_some();
        if sender.held() {
            if self.held_arrived(announced, number, driver) {
                return true;
            }
        } else if holder {
            match self.announced_again(announced, number, driver) {
                None => return false,
                Some(true) => {
                    self.continue_with_holder(from, driver);
                    return true;
                }
                Some(false) => {}
            }
        } else if let Some(range) = self.matching.match_posted(space, &envelope, driver) {
            self.take_announced(range, announced, driver);
            return true;
        }
        let is_unheld = !sender.held() && !holder;
        if self.matching.unexpected.count() >= self.paths.config.max_unexpected
            || (is_unheld && !self.paths.heeds_mark(from, 0))
        {
            return false;
        }
        let mutant = self.matching.holders.mutant;
        if envelope.length == 0
            && !sender.awaits_match()
            && !mutant.breaks(HoldMutant::KeptMessagesStayWithSenders)
        {
            // The envelope is the whole message: its sender can forget it.
            self.queue_unexpected(Unexpected::new(space, envelope, Payload::Whole, None));
            self.acknowledge(from, transfer, 0, driver);
        } else {
            driver.announcement_arrived(from, address, envelope.length);
            let payload = Payload::WithSender { transfer, address };
            self.queue_unexpected(Unexpected::new(space, envelope, payload, None));
        }
        if holder {
            self.continue_with_holder(from, driver);
        }
        true
    }

    /// A sender has announced a message and holds it. Returns whether a receive took it or the envelope is dropped;
    /// otherwise it is to be kept.
    pub(super) fn held_arrived<D: Driver>(
        &mut self,
        announced: Announced,
        number: u32,
        driver: &mut D,
    ) -> bool {
        let Endpoint { paths, matching, .. } = self;
        let Announced { space, envelope, .. } = announced;
        let from = envelope.from;
        if let Some(holder) = matching.holders.get_mut(from) {
            holder.next = number.wrapping_add(1);
        }
        let holder = matching.holders.get(from);
        let (dropping, decided) = holder.map_or((false, PostOrder::MAX), |holder| (true, holder.decided));
        let mutant = matching.holders.mutant;
        let decided =
            if mutant.breaks(HoldMutant::UndecidedReceivesMatch) { PostOrder::MAX } else { decided };
        // An undecided receive may match an earlier message of this holder.
        if let Some(range) = matching.match_posted_before(decided, space, &envelope, driver) {
            self.take_announced(range, announced, driver);
            return true;
        }
        if dropping && mutant.breaks(HoldMutant::KeepsBehindDropped) && paths.budget.may_keep(&envelope) {
            return false;
        }
        if dropping {
            matching.holders.get_mut(from).expect("a holder").dropped += 1;
            if envelope.length == 0 && mutant.breaks(HoldMutant::DroppedMessagesAreAcknowledged) {
                self.acknowledge(from, announced.transfer, 0, driver);
            }
            return true;
        }
        if paths.budget.may_keep(&envelope) && matching.unexpected.count() < paths.config.max_unexpected {
            return false;
        }
        matching.holders.begin(from, number, matching.posted.next_order());
        matching.unexpected.add_holder();
        true
    }

    /// A holder has announced a message again. Returns whether it was asked to, and whether a receive took the message.
    pub(super) fn announced_again<D: Driver>(
        &mut self,
        announced: Announced,
        number: u32,
        driver: &mut D,
    ) -> Option<bool> {
        let Endpoint { paths, matching, .. } = self;
        let Announced { space, envelope, .. } = announced;
        let holder = matching.holders.get_mut(envelope.from)?;
        let Some(HolderRequest::Resume(left)) = holder.request else { return None };
        holder.first = number.wrapping_add(1);
        holder.dropped -= 1;
        holder.request = (left > 1).then_some(HolderRequest::Resume(left - 1));
        // Every older message of this holder has been announced again or taken, so its order is that of arrivals.
        let Some(range) = matching.match_posted(space, &envelope, driver) else {
            paths.budget.keep_promise();
            return Some(false);
        };
        paths.budget.end_promise(1);
        self.take_announced(range, announced, driver);
        Some(true)
    }
}
