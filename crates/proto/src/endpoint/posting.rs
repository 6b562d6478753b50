//! Peeks, and the receives that the common path (`fast_path.rs`) leaves to this file: multi-receive buffers, and receives
//! that find no whole unexpected message or that only failed peers could match.
//!
//! Each looks first at the unexpected messages kept here. If none matches, it asks the holders: senders that keep
//! envelopes for which this receiver has no space (`asking.rs`). This file does not know packets.

use super::state::Endpoint;
use crate::action::Outcome;
use crate::driver::Driver;
use crate::event::{Pattern, PeekThen, ReceiveCommand, Request};
use crate::message::unexpected::Unexpected;

impl Endpoint {
    /// A receive that the common cases do not cover.
    pub(super) fn receive_uncommon<D: Driver>(&mut self, receive: ReceiveCommand, driver: &mut D) {
        let ReceiveCommand { request, pattern, capacity_bytes, multi } = receive;
        if let Some(min_free_bytes) = multi {
            let index = self.matching.multi.add(capacity_bytes, min_free_bytes);
            let order = self.matching.posted.post(request, pattern, capacity_bytes, Some(index));
            // Unexpected messages fill it in order, until it closes or an older receive matches one.
            while let Some(message) = self.matching.unexpected.find(&pattern) {
                let Unexpected { space, envelope, .. } =
                    self.matching.unexpected.get(message).expect("found");
                let Some(range) = self.matching.match_posted(space, &envelope, driver) else { break };
                self.deliver(message, range, driver);
            }
            // It may have closed. Its buffer is then free, or waits for its messages.
            if let Some(lost) = self.only_failed_peers_match(&pattern)
                && self.matching.posted.remove_request(request).is_some()
            {
                self.matching.fail_multi(index, request, lost, driver);
            }
            if self.matching.posted.has(pattern.space, request, order) {
                self.ask_holders((order, request), pattern, None, driver);
            }
            return;
        }
        if let Some(message) = self.matching.unexpected.find(&pattern) {
            self.deliver_whole(message, request, capacity_bytes, driver);
            return;
        }
        if let Some(outcome) = self.only_failed_peers_match(&pattern) {
            driver.complete(request, outcome);
            return;
        }
        let order = self.matching.posted.post(request, pattern, capacity_bytes, None);
        self.ask_holders((order, request), pattern, None, driver);
    }

    pub(super) fn peek<D: Driver>(
        &mut self,
        request: Request,
        pattern: &Pattern,
        then: PeekThen,
        driver: &mut D,
    ) {
        if self.peek_kept(request, pattern, then, driver) {
            return;
        }
        if let Some(outcome) = self.only_failed_peers_match(pattern) {
            driver.complete(request, outcome);
            return;
        }
        let order = self.matching.posted.take_order();
        if !self.ask_holders((order, request), *pattern, Some(then), driver) {
            driver.complete(request, Outcome::Absent);
        }
    }
}
