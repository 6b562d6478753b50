//! Receiver not ready (RNR): free slots at peers in schemes without credits, refusals, and retries.
//!
//! The link answers whether a peer has free slots. This file does not know how the link finds out. [`crate::flow`]
//! decides whether to retry: at once, after the RNR timer, or never.

use super::path::{Outbound, RoomWait, rnr_timer};
use super::paths::Paths;
use super::payloads::Payloads;
use super::pending::Waits;
use crate::driver::Driver;
use crate::event::{Peer, PeerFault};
use crate::flow::NotReady;

impl Paths {
    /// The link has looked for free slots at `peer`. Returns the fault if the peer counts as lost now.
    #[must_use]
    pub(super) fn room_answered<D: Driver>(
        &mut self,
        peer: Peer,
        slots: u32,
        payloads: &mut Payloads,
        driver: &mut D,
    ) -> Option<PeerFault> {
        let Paths { config, peers, counters, .. } = self;
        let state = peers.get_mut(peer.0 as usize)?;
        state.path.end_room_wait(peer, driver);
        let Outbound::Connected(sender) = &mut state.path.outbound else { return None };
        if slots > 0 {
            sender.found_room(slots);
        } else {
            match sender.found_none(driver.now(), &config.scheme) {
                NotReady::AskAgain => {}
                NotReady::RetryAt(at) => {
                    counters.rnr_naks += 1;
                    if let Some(pending) = state.pending.as_deref_mut()
                        && pending.stalled_since().is_none()
                        && !pending.backlog.is_empty()
                    {
                        pending.waits = Waits::Credit(driver.now());
                        counters.stalls += 1;
                    }
                    // The machine does not ask again before the timer. New messages wait behind the refused packet.
                    state.path.grants.room_wait = RoomWait::Timer;
                    driver.set_timer(rnr_timer(peer), at);
                    return None;
                }
                NotReady::GiveUp => {
                    counters.rnr_naks += 1;
                    return Some(PeerFault::NotReady);
                }
            }
        }
        self.send_while_credited(peer, payloads, driver);
        None
    }

    /// The RNR timer of `peer` has expired.
    pub(super) fn retry<D: Driver>(&mut self, peer: Peer, driver: &mut D) {
        let Some(state) = self.peers.get_mut(peer.0 as usize) else { return };
        if state.path.grants.room_wait != RoomWait::Timer {
            return;
        }
        if !state.has_backlog() && !state.is_due() {
            // A goodbye has voided the refused packet. The next message asks for itself.
            state.path.grants.room_wait = RoomWait::Nothing;
            if let Some(pending) = &mut state.pending {
                pending.waits = Waits::Nothing;
            }
            return;
        }
        state.path.grants.room_wait = RoomWait::Answer;
        self.counters.rnr_retries += 1;
        driver.ask_room(peer, true);
    }
}
