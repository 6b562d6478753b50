//! Performs the actions of an endpoint of a test world, as any driver must: lanes, packets, buffers and copies. It
//! checks that every packet finds a free slot (I1), and that credit packets fit into their slots (I2).

use std::collections::VecDeque;

use weir_proto::{
    Action, Body, CopyFault, Destination, Direction, Event, MachineEvent, MemoryCopy, Outcome, Packet, Peer,
    RemoteAddress, Request, Source, unexpected_cost_bytes,
};

use super::World;

/// The name of a packet's kind in [`PACKET_KINDS`].
fn kind(body: &Body) -> &'static str {
    match body {
        Body::Eager { .. } => "eager",
        Body::More { .. } => "more",
        Body::Rendezvous { .. } => "rendezvous",
        Body::Credit => "credit",
        Body::Finished { .. } => "finished",
        Body::Piece { .. } => "piece",
        Body::Write { .. }
        | Body::Read { .. }
        | Body::Locate { .. }
        | Body::Located { .. }
        | Body::Written { .. }
        | Body::Offloaded(_) => "remote",
        Body::Fetch { .. }
        | Body::Ask { .. }
        | Body::Offer { .. }
        | Body::EagerOffer { .. }
        | Body::NoMatch
        | Body::Resume { .. }
        | Body::Claimed { .. }
        | Body::Goodbye
        | Body::Detach
        | Body::ReturnRequest
        | Body::ReturnResponse { .. } => "control",
    }
}

impl World {
    /// Performs an action of `rank`. `arrived_from`: the sender of the packet that it handles.
    pub(super) fn perform(&mut self, rank: u32, arrived_from: Option<u32>, action: Action) {
        self.trace = (self.trace ^ u64::from(rank)).wrapping_mul(0x0000_0100_0000_01b3);
        match action {
            Action::Connect { to } => {
                self.ranks[to.0 as usize].waiting.push_back(rank);
                self.grant_lanes(to.0);
            }
            Action::Disconnect { to } => {
                let lane = self.lanes.get_mut(&(rank, to.0)).and_then(VecDeque::back_mut).expect("a lane");
                assert!(!std::mem::replace(&mut lane.left, true), "detached twice");
                // A sender that owns credits at the start of a lease uses the lease, so no sender starves however short
                // the leases are.
                let (spent, starts_with_credit) = (lane.spent_total, self.plan.scheme.grants());
                let machine = &self.ranks[rank as usize].machine;
                let has_backlog = machine.pairs(self.now).any(|pair| pair.peer == to && pair.backlog > 0);
                let idle = has_backlog && starts_with_credit && spent == 0;
                assert!(!idle, "a lease of {rank} at {to:?} carried nothing of its backlog");
                let last = lane.packets.back().map(|(packet, _)| packet.body);
                assert!(last.is_none_or(|body| body == Body::Detach) || self.ranks[to.0 as usize].dead);
                self.ranks[rank as usize].awaiting_room.retain(|awaiting_room| *awaiting_room != to);
            }
            Action::FreeLane { peer } => {
                let lane = self.lanes.get_mut(&(peer.0, rank)).and_then(VecDeque::pop_front).expect("a lane");
                assert!(lane.left && lane.packets.is_empty() && lane.data_slots == 0);
                self.grant_lanes(rank);
            }
            Action::Transmit { to, packet, payload } => self.transmit(rank, to, packet, payload),
            Action::SetTimer { timer, at } => self.ranks[rank as usize].timers.set(timer.into(), at),
            Action::CancelTimer { timer } => self.ranks[rank as usize].timers.cancel(timer.into()),
            Action::AskRoom { to, at_once: false } => self.ranks[rank as usize].awaiting_room.push(to),
            Action::AskRoom { to, at_once: true } => {
                let lane = self.lanes.get(&(rank, to.0)).and_then(VecDeque::back).expect("a lane");
                let slots = self.plan.quota_slots - lane.data_slots;
                self.ranks[rank as usize].events.push_back(Event::Room { peer: to, slots });
            }
            Action::AllocateUnexpected { message, bytes } => {
                let before = self.ranks[rank as usize].unexpected.insert(message, vec![0; bytes as usize]);
                assert!(before.is_none(), "{message:?} has two buffers");
                let rank = &mut self.ranks[rank as usize];
                let cost = rank
                    .unexpected
                    .values()
                    .map(|unexpected| unexpected_cost_bytes(unexpected.len() as u64))
                    .sum();
                rank.peak_unexpected_cost_bytes = rank.peak_unexpected_cost_bytes.max(cost);
            }
            Action::FillBounce { transfer, request } => {
                let rank = &mut self.ranks[rank as usize];
                let copy = rank.buffers[request.0 as usize].clone().expect("outstanding");
                let before = rank.bounce.insert(transfer.bounce_buffer().expect("a bounce buffer"), copy);
                assert!(before.is_none(), "{transfer:?} has two bounce buffers");
                let bytes = rank.bounce.values().map(Vec::len).sum();
                rank.peak_bounce_bytes = rank.peak_bounce_bytes.max(bytes);
            }
            Action::FreeBounce { transfer } => {
                let copy = transfer.bounce_buffer().expect("a bounce buffer");
                let released = self.ranks[rank as usize].bounce.remove(&copy);
                assert!(released.is_some(), "{transfer:?} has no bounce buffer");
            }
            Action::Place { to, bytes } => {
                let lane = &self.lanes[&(arrived_from.expect("an arrival"), rank)][0];
                let payload = lane.packets.front().expect("not retired").1[..bytes as usize].to_vec();
                let rank = &mut self.ranks[rank as usize];
                let (into, offset) = match to {
                    Destination::Request { request, offset } => {
                        (rank.buffers[request.0 as usize].as_mut().expect("outstanding"), offset)
                    }
                    Destination::Message { message, offset } => {
                        (rank.unexpected.get_mut(&message).expect("an unexpected buffer"), offset)
                    }
                    Destination::Region { key, offset } => {
                        (rank.regions.get_mut(&key).expect("registered"), offset)
                    }
                };
                into[offset as usize..][..payload.len()].copy_from_slice(&payload);
            }
            Action::Retire => {
                let from = arrived_from.expect("an arrival");
                let lanes = self.lanes.get_mut(&(from, rank)).expect("a lane");
                let lane = lanes.front_mut().expect("a lane");
                let (packet, _) = lane.packets.pop_front().expect("a packet");
                if packet.body == Body::Detach && self.dropped.contains(&(rank, from)) {
                    lanes.pop_front(); // the machine has dropped the peer and reports no detach
                    self.grant_lanes(rank);
                    return;
                }
                if packet.body.is_credit() {
                    lane.credit_packets -= 1;
                } else if packet.body != Body::Detach {
                    lane.data_slots -= self.plan.path_geometry(from, rank).packet_slots(&packet);
                }
            }
            Action::Deliver { message, request, offset, bytes } => {
                let rank = &mut self.ranks[rank as usize];
                let from = &rank.unexpected[&message][..bytes as usize];
                let into = rank.buffers[request.0 as usize].as_mut().expect("outstanding");
                into[offset as usize..][..from.len()].copy_from_slice(from);
            }
            Action::FreeUnexpected { message } => {
                assert!(
                    self.ranks[rank as usize].unexpected.remove(&message).is_some(),
                    "{message:?} has no buffer"
                );
            }
            Action::Copy(MemoryCopy { transfer, request, peer, direction, address, offset, bytes }) => {
                let result = if address.is_none() {
                    Err(CopyFault::BadAddress)
                } else if self.plan.copies_forbidden {
                    Err(CopyFault::Forbidden)
                } else if self.dropped.contains(&(peer.0, rank)) {
                    Err(CopyFault::Gone)
                } else {
                    self.copy(rank, request, peer, direction, address.address, offset, bytes);
                    Ok(())
                };
                self.ranks[rank as usize].events.push_back(Event::CopyDone { transfer, result });
            }
            Action::DropPeer { peer } => {
                self.dropped.insert((rank, peer.0));
                if self.ranks[peer.0 as usize].dead {
                    self.lanes.remove(&(peer.0, rank));
                    self.ranks[rank as usize].waiting.retain(|waiting| *waiting != peer.0);
                } else if let Some(lanes) = self.lanes.get_mut(&(peer.0, rank)) {
                    // A live peer may continue to write; its packets are not read.
                    lanes.retain(|lane| !lane.left);
                    for lane in lanes {
                        lane.packets.clear();
                        (lane.data_slots, lane.credit_packets) = (0, 0);
                    }
                }
                self.grant_lanes(rank);
                self.ranks[rank as usize].awaiting_room.retain(|awaiting_room| *awaiting_room != peer);
            }
            Action::PassOn { from, number, packet, payload_bytes } => {
                let event = MachineEvent::Arrived { from, number, packet, payload_bytes };
                self.offload(rank, event).expect("no command");
            }
            Action::PeerLost { peer, fault } => {
                self.offload(rank, MachineEvent::Lost { peer, fault }).expect("no command");
            }
            Action::AnswerLeft { buffer } => {
                let rank = &mut self.ranks[rank as usize];
                rank.free_machine_buffer(buffer);
                rank.offload.answer_left(buffer);
            }
            Action::Notify { from, data, bytes } => {
                self.ranks[rank as usize].notices.push((from, data, bytes));
            }
            Action::Complete { request, outcome } => {
                let rank = &mut self.ranks[rank as usize];
                let buffer = rank.buffers[request.0 as usize].clone().expect("completed once");
                if !matches!(outcome, Outcome::Received { last: false, .. }) {
                    rank.buffers[request.0 as usize] = None;
                }
                rank.completions.push_back((request, outcome, buffer));
            }
        }
    }

    fn transmit(&mut self, rank: u32, to: Peer, mut packet: Packet, payload: Source) {
        let geometry = self.plan.path_geometry(rank, to.0);
        let sender = &mut self.ranks[rank as usize];
        *sender.kinds.entry(kind(&packet.body)).or_default() += 1;
        if !packet.body.is_free() {
            *sender.slots.entry(to).or_default() += geometry.packet_slots(&packet);
        }
        self.seen.far_packets += u64::from(geometry != self.plan.geometry);
        let readable = self.plan.may_read(rank, to.0);
        if let Body::Eager { length, .. } = packet.body
            && length > self.plan.readable_eager_bytes
        {
            assert!(!readable, "{length} bytes are sent whole to a rank that can read them");
            self.seen.whole_to_non_readers += 1;
        }
        let from = &self.ranks[rank as usize];
        match (&mut packet.body, payload) {
            (
                Body::Rendezvous { address, .. } | Body::Offer { address, .. },
                Source::Request { request, .. },
            ) if readable => {
                *address = RemoteAddress::without_key((u64::from(request.0) + 1) << 32);
            }
            (
                Body::Rendezvous { address, .. } | Body::Offer { address, .. },
                Source::Bounce { transfer, .. },
            ) if readable => {
                let number = u64::from(transfer.bounce_buffer().expect("a bounce buffer"));
                *address = RemoteAddress::without_key(number + 1);
            }
            (Body::Located { key, offset, address, refused: false, .. }, _) if readable => {
                *address = RemoteAddress::without_key((*key << 48) | *offset);
            }
            _ => {}
        }
        let bytes = packet.payload_bytes as usize;
        let payload = match payload {
            _ if bytes == 0 => Vec::new(),
            Source::None => panic!("a payload of {bytes} bytes without a source"),
            Source::Request { request, offset } => {
                from.buffers[request.0 as usize].as_ref().expect("outstanding")[offset as usize..][..bytes]
                    .to_vec()
            }
            Source::Bounce { transfer, offset } => from.bounce
                [&transfer.bounce_buffer().expect("a bounce buffer")][offset as usize..][..bytes]
                .to_vec(),
            Source::Region { key, offset } => from.regions[&key][offset as usize..][..bytes].to_vec(),
            Source::Buffer { buffer, offset } => {
                from.machine_buffers[&buffer.0][offset as usize..][..bytes].to_vec()
            }
        };
        let slots = geometry.packet_slots(&packet);
        assert!(slots <= geometry.max_packet_slots, "{slots} slots in one packet");
        // The granted total belongs to the lease of the other direction with this epoch.
        let stays = self.lanes.entry((to.0, rank)).or_default();
        if let Some(stay) = stays.iter_mut().find(|lane| lane.epoch == packet.epoch && lane.attached) {
            stay.granted_total = packet.granted_total;
        }
        let lane = self.lanes.get_mut(&(rank, to.0)).and_then(VecDeque::back_mut).expect("a lane");
        assert!(lane.connected && !lane.left, "{packet:?} without a lane");
        let said_rendezvous_only =
            std::mem::replace(&mut lane.says_rendezvous_only, packet.marks.rendezvous_only);
        self.switched_on += u64::from(!said_rendezvous_only && packet.marks.rendezvous_only);
        self.switched_off += u64::from(said_rendezvous_only && !packet.marks.rendezvous_only);
        if packet.body == Body::Detach {
            assert!(lane.packets.iter().all(|(packet, _)| packet.body != Body::Detach));
        } else if packet.body.is_credit() {
            lane.credit_packets += 1;
            assert!(lane.credit_packets <= self.plan.credit_slots, "I2: {} unread", lane.credit_packets);
        } else {
            lane.data_slots += slots;
            let quota = self.plan.quota_slots;
            assert!(lane.data_slots <= quota, "I1: {} of {quota} slots filled", lane.data_slots);
            lane.spent_total += u64::from(slots);
            let owned = u64::from(self.plan.start_slots) + u64::from(lane.granted_total);
            let credited = self.plan.scheme.grants();
            assert!(!credited || lane.spent_total <= owned, "{} slots spent of {owned}", lane.spent_total);
        }
        if !self.ranks[to.0 as usize].dead {
            lane.packets.push_back((packet, payload));
        }
        self.trace = (self.trace ^ u64::from(slots)).wrapping_mul(0x0000_0100_0000_01b3);
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of the action")]
    fn copy(
        &mut self,
        rank: u32,
        request: Request,
        peer: Peer,
        direction: Direction,
        address: u64,
        offset: u64,
        bytes: u64,
    ) {
        let there = &mut self.ranks[peer.0 as usize];
        let key = address >> 48;
        let (memory, at) = if key > 0 {
            (there.regions.get_mut(&key).expect("registered"), (address & ((1 << 48) - 1)) as usize)
        } else if address >> 32 == 0 {
            (there.bounce.get_mut(&(address as u32 - 1)).expect("a bounce buffer"), 0)
        } else {
            let request = (address >> 32) as usize - 1;
            (there.buffers[request].as_mut().expect("announced"), 0)
        };
        let (offset, bytes) = (offset as usize, bytes as usize);
        match direction {
            Direction::Get => {
                let data = memory[at..][..bytes].to_vec();
                let into =
                    self.ranks[rank as usize].buffers[request.0 as usize].as_mut().expect("outstanding");
                into[offset..][..bytes].copy_from_slice(&data);
            }
            Direction::Put => {
                let data = self.ranks[rank as usize].buffers[request.0 as usize]
                    .as_ref()
                    .expect("outstanding")[offset..][..bytes]
                    .to_vec();
                let there = &mut self.ranks[peer.0 as usize];
                let memory = there.regions.get_mut(&key).expect("registered");
                memory[at..][..bytes].copy_from_slice(&data);
            }
        }
    }
}
