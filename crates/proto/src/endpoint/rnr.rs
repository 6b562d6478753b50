//! Receiver not ready (RNR): free slots at peers in schemes without credits, refusals, and retries.
//!
//! The link answers whether a peer has free slots. This file does not know how the link finds out.

use super::path::{Path, RoomWait};
use super::{Endpoint, Outbound};
use crate::driver::Driver;
use crate::event::{Peer, PeerFault};
use crate::flow::NotReady;
use crate::timers::{Purpose, Timer};

/// The RNR timer of `peer`.
fn timer(peer: Peer) -> Timer {
    Timer { peer, purpose: Purpose::Rnr }
}

/// The lane at `peer` ends: nothing waits for free slots there.
pub(super) fn end_wait<D: Driver>(path: &mut Path, peer: Peer, driver: &mut D) {
    if core::mem::replace(&mut path.room_wait, RoomWait::Nothing) == RoomWait::Timer {
        driver.cancel_timer(timer(peer));
    }
}

impl Endpoint {
    /// The link has looked for free slots at `peer`.
    pub(super) fn room_answered<D: Driver>(&mut self, peer: Peer, slots: u32, driver: &mut D) {
        let Endpoint { config, peers, counters, .. } = self;
        let Some(state) = peers.get_mut(peer.0 as usize) else { return };
        end_wait(&mut state.path, peer, driver);
        let Outbound::Connected(sender) = &mut state.path.outbound else { return };
        if slots > 0 {
            sender.found_room(slots);
        } else {
            match sender.found_none(driver.now(), &config.scheme) {
                NotReady::AskAgain => {}
                NotReady::RetryAt(at) => {
                    counters.rnr_naks += 1;
                    if let Some(pending) = state.pending.as_deref_mut()
                        && pending.stalled_since.is_none()
                        && !pending.backlog.is_empty()
                    {
                        pending.stalled_since = Some(driver.now());
                        counters.stalls += 1;
                    }
                    // The machine does not ask again before the timer. New messages wait behind the refused packet.
                    state.path.room_wait = RoomWait::Timer;
                    driver.set_timer(timer(peer), at);
                    return;
                }
                NotReady::GiveUp => {
                    counters.rnr_naks += 1;
                    self.lose(peer, PeerFault::NotReady, driver);
                    return;
                }
            }
        }
        self.send_while_credited(peer, driver);
    }

    /// The RNR timer of `peer` has expired.
    pub(super) fn retry<D: Driver>(&mut self, peer: Peer, driver: &mut D) {
        let Some(state) = self.peers.get_mut(peer.0 as usize) else { return };
        if state.path.room_wait != RoomWait::Timer {
            return;
        }
        if !state.has_backlog() && !state.is_due() {
            // A goodbye has voided the refused packet. The next message asks for itself.
            state.path.room_wait = RoomWait::Nothing;
            if let Some(pending) = &mut state.pending {
                pending.stalled_since = None;
            }
            return;
        }
        state.path.room_wait = RoomWait::Answer;
        self.counters.rnr_retries += 1;
        driver.ask_room(peer, true);
    }
}
