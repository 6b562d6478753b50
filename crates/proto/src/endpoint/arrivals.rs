//! Arrivals: handles packets that the common cases (`fast_path.rs`) do not cover. It passes the body to the function
//! for its kind. Around that it counts slots, returns credits, sends what waited for credit, and loses a peer that sent
//! a malformed packet.
//!
//! This file knows all kinds of packets. It decides nothing about messages.

use super::asking::Offer;
use super::hold_queue::HoldRequest;
use super::path::Outbound;
use super::paths::Paths;
use super::receiving::Announced;
use super::state::Endpoint;
use crate::action::Envelope;
use crate::driver::Driver;
use crate::event::{Pattern, Peer, PeerFault};
use crate::packet::{Body, Packet, RemoteAddress};

impl Endpoint {
    /// A packet that the common cases do not cover has arrived. Its slots count as retrieved after
    /// [`crate::LinkDriver::retire`], and only then can they be granted again.
    pub(super) fn arrived_uncommon<D: Driver>(&mut self, from: Peer, packet: &Packet, driver: &mut D) {
        self.paths.counters.packets_received += 1;
        self.paths.peer(from);
        let Paths { config, peers, pool, counters, .. } = &mut self.paths;
        let state = &mut peers[from.0 as usize];
        let slots = state.geometry(&config.geometry).packet_slots(packet);
        if matches!(state.path.outbound, Outbound::Lost(_)) {
            driver.retire();
            return;
        }
        let granted = state.path.apply_credit_update(packet);
        let read = state.path.grants.leases.credit_packets_read();
        let credit = packet.body.is_credit();
        if credit {
            if let Some(receiver) = &mut state.path.grants.receiver {
                receiver.credit_packets_read(read, pool);
                receiver.wants(packet.wanted_total, pool);
            }
            state.path.grants.leases.credit_packets_received =
                state.path.grants.leases.credit_packets_received.wrapping_add(1);
            counters.credit_packets_received += 1;
        }
        let accepted = granted && (packet.body.is_free() || self.accept(from, packet, driver));
        driver.retire();
        let well_formed =
            accepted && (packet.body.is_free() || self.paths.retrieved(from, slots, read, packet));
        if !well_formed {
            self.lose(from, PeerFault::Malformed, driver);
            return;
        }
        if packet.body == Body::Detach {
            self.paths.peer_detached(from, driver);
        }
        if !driver.defers_credits(from) {
            self.paths.return_credits(from, driver);
        }
        self.paths.send_while_credited(from, &mut self.payloads, driver);
        if packet.body == Body::Detach {
            self.paths.remove_if_idle(from);
        }
    }

    /// Handles the body of a packet. Returns whether it was valid.
    fn accept<D: Driver>(&mut self, from: Peer, packet: &Packet, driver: &mut D) -> bool {
        let bytes = u64::from(packet.payload_bytes);
        match packet.body {
            Body::Eager { space, tag, data, length, acknowledge } => {
                self.eager_arrived(from, space, tag, data, length, acknowledge, bytes, driver)
            }
            Body::More { offset } => self.more_arrived(from, u64::from(offset), bytes, driver),
            Body::Rendezvous { space, tag, data, length, address, transfer, sender } => {
                let envelope = Envelope { from, tag, data: data.into(), length };
                let announced = Announced { space, envelope, address, transfer };
                self.rendezvous_arrived(announced, packet.number, sender, driver)
            }
            Body::Ask { space, tag, ignore, carry_bytes, look } => {
                let pattern = Pattern { space, from: None, tag, ignore };
                let request = HoldRequest::Ask { pattern, look, carry_bytes };
                self.hold_request_arrived(from, packet.number, request, driver)
            }
            Body::Offer { space, tag, data, length, address, transfer, seen } => {
                let envelope = Envelope { from, tag, data: data.into(), length };
                let announced = Announced { space, envelope, address, transfer };
                self.offer_arrived(Offer { announced, number: packet.number, seen, carried: false }, driver)
            }
            Body::EagerOffer { space, tag, data, length, transfer } => {
                let envelope = Envelope { from, tag, data: data.into(), length: length.into() };
                let announced = Announced { space, envelope, address: RemoteAddress::NONE, transfer };
                let (number, seen, carried) = (packet.number, false, true);
                self.offer_arrived(Offer { announced, number, seen, carried }, driver)
            }
            Body::NoMatch => self.no_match_arrived(from, driver),
            Body::Resume { count } => {
                let request = HoldRequest::Resume { left: count };
                count > 0 && self.hold_request_arrived(from, packet.number, request, driver)
            }
            Body::Claimed { transfer } => {
                self.paths.claimed_arrived(from, transfer, packet.number, &mut self.payloads.bounce_buffers);
                true
            }
            Body::Credit | Body::Detach => true,
            Body::Finished { transfer, count, refused } => {
                self.finished_arrived(from, transfer, count, refused, driver)
            }
            Body::Fetch { transfer, reply, length } => {
                self.fetch_arrived(from, transfer, reply, length, driver)
            }
            Body::Piece { transfer, offset, last } => {
                self.piece_arrived(from, transfer, offset, last, bytes, driver)
            }
            Body::Write { transfer, key, offset, left, data } => {
                self.write_arrived(from, transfer, key, offset, left, data, bytes, driver)
            }
            Body::Read { transfer, key, offset, length } => {
                self.read_arrived(from, transfer, key, offset, length, driver)
            }
            Body::Locate { transfer, key, offset, length, write } => {
                self.locate_arrived(from, transfer, key, offset, length, write, driver)
            }
            Body::Located { transfer, address, refused, .. } => {
                self.located_arrived(from, transfer, address, refused, driver)
            }
            Body::Goodbye => self.goodbye_arrived(from, driver),
            Body::ReturnRequest => self.paths.return_request_arrived(from, packet.epoch),
            Body::ReturnResponse { .. } => {
                let pending = self.paths.peer(from).pending.as_deref_mut();
                pending.is_some_and(|pending| pending.compulsory.answered())
            }
            Body::Offloaded(ref offloaded) => {
                driver.pass_on(from, packet.number, offloaded, packet.payload_bytes);
                true
            }
            Body::Written { data, bytes } => {
                driver.notify(from, data, bytes);
                true
            }
        }
    }
}
