//! Receiver not ready (RNR): free slots at peers in schemes without credits, refusals, and retries.
//!
//! The link answers whether a peer has free slots. This file does not know how the link finds out.

use alloc::vec::Vec;

use super::{Endpoint, Outbound};
use crate::action::Action;
use crate::event::{Peer, PeerFault};
use crate::flow::NotReady;
use crate::time::Instant;

impl Endpoint {
    /// The link has looked for free slots at `peer`.
    pub(super) fn room_answered(&mut self, now: Instant, peer: Peer, slots: u32, actions: &mut Vec<Action>) {
        let Endpoint { config, peers, counters, timers, .. } = self;
        let Some(state) = peers.get_mut(peer.0 as usize) else { return };
        let Outbound::Connected(sender) = &mut state.outbound else { return };
        state.asked_room = false;
        if slots > 0 {
            sender.found_room(slots);
        } else {
            match sender.found_none(now, &config.scheme) {
                NotReady::AskAgain => {}
                NotReady::RetryAt(at) => {
                    counters.rnr_naks += 1;
                    if let Some(pending) = state.pending.as_deref_mut()
                        && pending.stalled_since.is_none()
                        && !pending.backlog.is_empty()
                    {
                        pending.stalled_since = Some(now);
                        counters.stalls += 1;
                    }
                    // The machine does not ask again before the timer. New messages wait behind the refused packet.
                    state.asked_room = true;
                    timers.set(peer, at);
                    return;
                }
                NotReady::GiveUp => {
                    counters.rnr_naks += 1;
                    self.lose(peer, PeerFault::NotReady, actions);
                    return;
                }
            }
        }
        self.send_while_credited(now, peer, actions);
    }

    /// Retries all peers whose timer has expired.
    pub(super) fn retry(&mut self, now: Instant, actions: &mut Vec<Action>) {
        while let Some(peer) = self.timers.take_due(now) {
            let state = &mut self.peers[peer.0 as usize];
            if !state.has_backlog() && !state.is_due() {
                // A goodbye has voided the refused packet. The next message asks for itself.
                state.asked_room = false;
                if let Some(pending) = &mut state.pending {
                    pending.stalled_since = None;
                }
                continue;
            }
            self.counters.rnr_retries += 1;
            actions.push(Action::AskRoom { to: peer, at_once: true });
        }
    }
}
