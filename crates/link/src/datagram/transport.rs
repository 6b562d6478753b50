//! The transport over datagrams ([`Link`]), its address and its capabilities.

use super::appending::Item;
use super::link::{DatagramLink, Shared};
use super::network::DatagramNetwork;
use super::path::{OurLane, PeersLane};
use super::seal::{Key, verification_tag};
use crate::memory::UserMemory;
use crate::{
    Acknowledgements, Address, Addressing, Arrival, Bell, Capabilities, Inspect, LaneLease, Link, LinkKind,
    NetworkReport, PathReport, Polled, Properties, RemoteMemory, WakeUp,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_proto::wire::{LEAVE_FRAME, MOST_HEADER_BYTES, VERIFICATION_AT, encode_bytes};
use weir_proto::{Body, LinkBusy, Packet, Peer, PeerFault};

/// The time after which a network that refused is asked again.
const REFUSED_INTERVAL: Duration = Duration::from_micros(100);

impl<N: DatagramNetwork> DatagramLink<N> {
    fn note_unreachable(&mut self, peer: Peer, fault: PeerFault) {
        if !self.losses.iter().any(|(lost, _)| *lost == peer) {
            self.losses.push_back((peer, fault));
        }
    }

    /// The path to `peer`, if it can be used. Otherwise the peer is reported as lost.
    fn usable_path(&mut self, peer: Peer, address: &Address) -> Option<u32> {
        if self.is_closed {
            return None;
        }
        let id = if self.forgotten.contains(address) { None } else { self.path_to(address) };
        let Some(id) = id else {
            self.note_unreachable(peer, PeerFault::Unreachable);
            return None;
        };
        self.name(id, peer);
        if self.path(id).is_some_and(|path| path.is_over()) {
            self.note_lost(id);
            return None;
        }
        Some(id)
    }

    /// Tells all peers that this endpoint has ended, and waits a moment until they know it.
    fn end(&mut self, fault: PeerFault) {
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        if let Some(memory) = self.shared.network.memory() {
            memory.forget_all();
        }
        self.contents.close();
        self.keep_borrowed(None);
        let begun = self.shared.network.now();
        let until = begun.plus_ns(self.options.close_ns);
        let ids = 0..self.paths.len() as u32;
        let told: Vec<u32> = ids
            .filter(|&id| {
                let is_open =
                    self.path(id).is_some_and(|path| path.machine.view().is_open && !path.is_over());
                is_open && self.append_frame(id, LEAVE_FRAME, fault as u16).is_ok()
            })
            .collect();
        self.work();
        // The answer shows at once what has arrived.
        told.iter().for_each(|&id| self.drive(id, |machine, now, driver| machine.check(now, driver)));
        self.work();
        let mut packet = Packet::blank();
        loop {
            while self.next_delivered(&mut packet).is_some() {
                self.retire();
            }
            let waits = |path: &mut super::path::Path<N::Place>| {
                !path.is_over() && (path.unacknowledged() > 0 || path.io.open.is_some())
            };
            let now = self.shared.network.now();
            if now >= until || !told.iter().any(|&id| self.path(id).is_some_and(waits)) {
                return;
            }
            let timer = self.shared.timers.earliest().unwrap_or(until);
            self.shared.network.wait(timer.min(until));
            self.work();
        }
    }
}

impl<N: DatagramNetwork> Link for DatagramLink<N> {
    fn properties(&self) -> Properties {
        Properties { geometry: self.geometry, other_geometries: Vec::new(), ordered: true, reliable: true }
    }

    fn connect(&mut self, peer: Peer, address: &Address) -> Option<LaneLease> {
        let id = self.usable_path(peer, address)?;
        let path = self.path(id)?;
        match path.our_lane {
            OurLane::Leased(lease) => return Some(lease),
            OurLane::Absent => {
                path.our_lane = OurLane::Wanted { number: path.next_lease, asked: false };
                path.next_lease = path.next_lease.wrapping_add(1);
            }
            OurLane::Wanted { .. } => {}
        }
        if self.send_frames(id).is_err() {
            self.note_unsent(id);
        }
        None
    }

    fn disconnect(&mut self, to: Peer) {
        if let Some(id) = self.id_of(to)
            && let Some(path) = self.path(id)
        {
            path.our_lane = OurLane::Absent;
        }
    }

    fn transmit(
        &mut self,
        to: Peer,
        packet: &Packet,
        payload: Option<(&UserMemory, u64)>,
    ) -> Result<(), LinkBusy> {
        let Some(id) = self.id_of(to) else { return Ok(()) };
        let Some(path) = self.path(id) else { return Ok(()) };
        let is_owed = !matches!(packet.body, Body::Credit | Body::Goodbye | Body::Detach);
        // A packet to a peer that has ended is lost with it.
        if path.is_over() || !matches!(path.our_lane, OurLane::Leased(_)) {
            if is_owed {
                path.io.owed_packets = u64::MAX; // nobody acknowledges it
            }
            return Ok(());
        }
        if path.has_refused {
            return Err(LinkBusy);
        }
        let mut header = [0; MOST_HEADER_BYTES];
        let header_bytes = encode_bytes(packet, &mut header);
        let payload_bytes = packet.payload_bytes as usize;
        let more_follow = path.more_follow(packet);
        let header = &header[..header_bytes];
        let sent = self.append(
            id,
            &Item { header, payload, payload_bytes, packet: Some(packet), asks: is_owed, more_follow },
        );
        let has_turn = self.gate().is_some_and(|gate| gate.has_turn(id));
        if let Some(path) = self.path(id) {
            if sent.is_err() {
                path.has_refused = true;
                let place = if has_turn { 0 } else { self.busy.len() };
                self.busy.insert(place, id);
            } else if is_owed {
                path.io.owed_packets = path.io.taken_packets;
            }
        }
        sent.map(drop)
    }

    fn poll_into(&mut self, packet: &mut Packet) -> Option<Polled> {
        assert!(
            self.reading.as_ref().is_none_or(|reading| reading.payload.is_none()),
            "poll was called before the last packet was retired"
        );
        if self.is_closed {
            return None;
        }
        if self.has_delivered()
            && let Some(polled) = self.next_delivered(packet)
        {
            return Some(polled);
        }
        if self.has_nothing_to_do() {
            self.is_drained = false;
            return None;
        }
        self.work();
        if self.has_delivered()
            && let Some(polled) = self.next_delivered(packet)
        {
            return Some(polled);
        }
        self.finish_postponed_work();
        if !self.has_reports() {
            return None;
        }
        let arrival = if let Some((peer, packets)) = self.next_acknowledged() {
            Arrival::Acknowledged { peer, packets }
        } else if let Some(peer) = self.next_ready() {
            Arrival::Ready { peer }
        } else {
            self.next_loss().map(|(peer, fault)| Arrival::Lost { peer, fault })?
        };
        Some(Polled::Other(Box::new(arrival)))
    }

    fn may_have_arrivals(&self) -> bool {
        !self.is_closed
            && (self.has_unsent
                || self.has_delivered()
                || !self.shared.lost.is_empty()
                || !self.losses.is_empty()
                || !self.shared.acknowledged.is_empty()
                || self.contents_may_move()
                || self.shared.network.may_have_arrivals()
                || self.shared.timers.earliest().is_some_and(|at| at <= self.shared.network.now()))
    }

    fn accept(&mut self, lane: u32, peer: Peer) {
        self.name(lane, peer);
        let DatagramLink { paths, shared, .. } = self;
        if let Some(path) = paths.get_mut(lane as usize).and_then(Option::as_deref_mut) {
            path.peers_lane = PeersLane::Open;
            if !path.io.delivered.is_empty() && !std::mem::replace(&mut path.io.is_listed, true) {
                shared.ready.push_back(lane);
            }
        }
    }

    fn release(&mut self, peer: Peer) {
        if let Some(id) = self.id_of(peer)
            && let Some(path) = self.path(id)
        {
            path.peers_lane = PeersLane::Absent;
        }
    }

    fn copy_payload(&self, memory: &UserMemory, offset: u64, bytes: u64) {
        let Some(reading) = &self.reading else { return };
        let (mut at, mut left) = (offset, bytes as usize);
        let arrived = &self.shared.arrived;
        let earlier = self.earlier_parts.iter().map(|part| part.payload(arrived));
        for part in earlier.chain([reading.payload(arrived)]) {
            let part = &part[..part.len().min(left)];
            memory.write(at, part);
            (at, left) = (at + part.len() as u64, left - part.len());
        }
    }

    fn retire(&mut self) {
        if let Some(reading) = &mut self.reading {
            reading.payload = None;
        }
        self.earlier_parts.drain(..).for_each(|part| self.shared.arrived.give(part.bundle));
    }

    fn check_peer(&mut self, peer: Peer, address: &Address) {
        if let Some(id) = self.usable_path(peer, address) {
            self.drive(id, |machine, now, driver| machine.check(now, driver));
        }
    }

    fn forget(&mut self, peer: Peer) {
        self.losses.retain(|(lost, _)| *lost != peer);
        if let Some(id) = self.id_of(peer) {
            self.forget_copies(id);
            if let Some(path) = self.path(id) {
                let address = path.io.address;
                self.forgotten.add(address);
            }
            self.remove(id);
        }
    }

    fn deadline(&self, now: Instant) -> Option<Instant> {
        if self.is_closed {
            return None;
        }
        if self.has_unsent || self.may_have_arrivals() {
            return Some(now);
        }
        let clock = self.shared.network.now();
        // What contents in datagrams wait for comes in a datagram.
        let waits_for_room = !self.shared.network.carries_contents() && self.contents.waits_for_room();
        let after = |at: weir_proto::Instant| now + Duration::from_nanos(at.since_ns(clock));
        let times = [
            self.shared.timers.earliest().map(after),
            self.shared.network.next_arrival().map(after),
            (self.shared.has_waiting() || waits_for_room).then(|| now + REFUSED_INTERVAL),
            self.shared.gate_wait_ns().map(|ns| now + Duration::from_nanos(ns)),
        ];
        times.into_iter().flatten().min()
    }

    fn give_back_shared(&mut self) {
        let Shared { network, gate, proxy, outgoing, left_proxy, .. } = &mut self.shared;
        gate.iter_mut().for_each(|gate| gate.open(network.host_time()));
        // From now on everything leaves directly.
        if let Some(mut proxy) = proxy.take() {
            proxy.leave(network, outgoing);
            *left_proxy = proxy.counters();
        }
    }

    fn close(&mut self) {
        self.end(PeerFault::Closed);
    }

    fn abandon(&mut self) {
        self.end(PeerFault::Died);
    }
}

impl<N: DatagramNetwork> Addressing for DatagramLink<N> {
    fn kind(&self) -> LinkKind {
        self.shared.network.kind()
    }

    fn address(&self) -> Address {
        self.address
    }

    fn introduce(&mut self, address: &Address) {
        self.address = *address;
        self.introduction_key = Key::of_introductions(address);
        self.verification = verification_tag(address);
        self.shared.network.admit_only(VERIFICATION_AT, self.verification);
    }

    /// An endpoint does not reach itself over a network.
    fn reaches(&self, address: &Address) -> bool {
        self.place_of(address).is_some()
    }
}

impl<N: DatagramNetwork> Inspect for DatagramLink<N> {
    fn mailbox_bytes(&self) -> u64 {
        self.paths.iter().flatten().map(|path| path.arrived_bytes() as u64).sum()
    }

    fn network_report(&self) -> Option<NetworkReport> {
        Some(self.report())
    }

    fn path_report(&self, peer: Peer) -> Option<PathReport> {
        self.report_on(peer)
    }

    fn is_held_back(&self, peer: Peer) -> bool {
        self.is_refused_by_gate(peer)
    }
}

impl<N: DatagramNetwork> Capabilities for DatagramLink<N> {
    fn remote_memory(&mut self) -> Option<&mut dyn RemoteMemory> {
        let has_memory = self.shared.network.memory().is_some() || self.has_contents();
        if has_memory { Some(self) } else { None }
    }

    fn wake_up(&mut self) -> Option<&mut dyn WakeUp> {
        Some(self)
    }

    fn acknowledgements(&mut self) -> Option<&mut dyn Acknowledgements> {
        Some(self)
    }
}

impl<N: DatagramNetwork> Acknowledgements for DatagramLink<N> {
    /// Packets that closing may lose are not waited for: a peer that has what was sent to it, and has closed, acknowledges no
    /// credits.
    fn awaited_packets(&mut self, to: Peer) -> Option<u64> {
        let id = self.id_of(to)?;
        let path = self.path(id)?;
        if path.io.owed_packets <= path.io.acknowledged_packets {
            return None;
        }
        if path.is_over() {
            self.note_lost(id);
            return Some(u64::MAX);
        }
        let packets = path.io.owed_packets;
        path.io.awaited_packets = packets;
        self.drive(id, |machine, now, driver| machine.hurry(now, driver));
        Some(packets)
    }

    fn unacknowledged_packets(&mut self) -> u64 {
        let mut packets = 0;
        for id in 0..self.paths.len() as u32 {
            let Some(path) = self.path(id).filter(|path| !path.is_over()) else { continue };
            let of_path = path.io.owed_packets.saturating_sub(path.io.acknowledged_packets);
            if of_path > 0 {
                self.drive(id, |machine, now, driver| machine.hurry(now, driver));
            }
            packets += of_path;
        }
        packets
    }
}

impl<N: DatagramNetwork> WakeUp for DatagramLink<N> {
    fn sleep(&mut self, at_most_ns: u64) {
        self.acknowledge_all();
        let until = self.shared.network.now().plus_ns(at_most_ns);
        self.shared.network.wait(until);
    }

    fn bell(&self) -> Arc<dyn Bell> {
        self.shared.network.bell()
    }

    fn ring_on_arrival(&mut self, bell: &Arc<dyn Bell>) -> bool {
        self.shared.network.ring_on_arrival(bell)
    }

    fn arm(&mut self) {
        self.acknowledge_all();
        self.shared.network.arm();
    }
}

impl<N: DatagramNetwork> Drop for DatagramLink<N> {
    fn drop(&mut self) {
        self.close();
    }
}
