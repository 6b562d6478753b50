//! The answers of a holder: the packet for the request that its hold queue stores, and what happens when it has left.
//!
//! The packet is made when it can leave. It speaks of all messages that have left before it, and of no others. This file
//! does not know credits or links.

use super::hold_queue::{Held, HoldQueue, HoldRequest};
use super::payloads::Payloads;
use crate::action::Source;
use crate::event::{Peer, Transfer};
use crate::packet::{AnnouncementMarks, Body, RemoteAddress};
use crate::transfer::State;

/// The packet of an answer.
pub(super) struct Answer {
    pub body: Body,
    /// Number of the message that it announces, or 0.
    pub number: u32,
    /// Where the payload of that message is.
    pub payload: Source,
    /// How much of it the packet carries: all or nothing.
    pub payload_bytes: u32,
}

impl Answer {
    const NO_MATCH: Answer =
        Answer { body: Body::NoMatch, number: 0, payload: Source::None, payload_bytes: 0 };
}

impl HoldQueue {
    /// The answer to the request of `to`, with at most `room_bytes` of payload. `None`: nothing is left to announce
    /// again.
    pub fn answer(&mut self, to: Peer, room_bytes: u32, payloads: &mut Payloads) -> Option<Answer> {
        let (held, carry_bytes) = match self.request? {
            HoldRequest::Ask { pattern, carry_bytes, .. } => match self.find(&pattern) {
                Some(held) => (held, Some(carry_bytes)),
                None => return Some(Answer::NO_MATCH),
            },
            HoldRequest::Resume { .. } => (self.first()?, None),
        };
        let Held { space, envelope, transfer, number, seen } = held;
        let (tag, data, length) = (envelope.tag, envelope.data.into(), envelope.length);
        let (payload, awaits_match) = payload_of(transfer, to, payloads);
        let address = RemoteAddress::NONE;
        let (body, payload_bytes) = match carry_bytes {
            None => {
                let sender = AnnouncementMarks::new(false, awaits_match);
                (Body::Rendezvous { space, tag, data, length, address, transfer, sender }, 0)
            }
            Some(most @ 1..) if length <= u64::from(most.min(room_bytes)) => {
                let length = length as u32;
                (Body::EagerOffer { space, tag, data, length, transfer }, length)
            }
            Some(_) => (Body::Offer { space, tag, data, length, address, transfer, seen }, 0),
        };
        Some(Answer { body, number, payload, payload_bytes })
    }

    /// The packet of an answer has left.
    pub fn answered(&mut self, body: &Body, payloads: &mut Payloads) {
        match (&mut self.request, *body) {
            (Some(HoldRequest::Resume { left }), Body::Rendezvous { transfer, .. }) => {
                *left -= 1;
                let ended = *left == 0;
                self.remove(transfer, &mut payloads.bounce_buffers);
                if ended {
                    self.request = None;
                }
            }
            (Some(HoldRequest::Ask { pattern, look: true, .. }), Body::Offer { .. }) => {
                let pattern = *pattern;
                self.note_seen(&pattern);
                self.request = None;
            }
            _ => self.request = None,
        }
    }
}

/// Where the payload of a held message is, and whether its send waits for the match.
fn payload_of(transfer: Transfer, to: Peer, payloads: &mut Payloads) -> (Source, bool) {
    if transfer.bounce_buffer().is_some() {
        return (Source::Bounce { transfer, offset: 0 }, false);
    }
    match payloads.transfers.get(transfer, to) {
        Some(State::Send { request, awaits_match, .. }) => {
            (Source::Request { request: *request, offset: 0 }, *awaits_match)
        }
        _ => (Source::None, false),
    }
}
