//! A second InfiniBand model, with an event for each packet at each channel, in the order in which these events are
//! pushed. The tests here compare the real model, which leaves out events, with it. It has no remote reads.

use std::collections::VecDeque;

use proptest::prelude::*;
use weir_proto::{Geometry, Scheme};

use super::*;
use crate::network::{Output, Outputs};
use crate::program::{Program, Rank};
use crate::traffic::Traffic;
use crate::world::{World, WorldSpec};

#[derive(Clone, Copy, Debug)]
enum EagerEvent {
    /// A channel may be able to carry another packet.
    Look(u32),
    /// A packet can leave the buffer behind a channel.
    Behind(u32),
}

#[derive(Default, Clone)]
struct Waiting {
    /// Packets that are ready.
    queue: VecDeque<PacketIndex>,
    /// Packets that cross the channel.
    crossing: VecDeque<PacketIndex>,
    look_at: Option<Picoseconds>,
}

struct EventPerPacket {
    /// Routes, sources and channel states.
    network: InfiniBand,
    waiting: Vec<Waiting>,
}

impl EventPerPacket {
    fn new(parameters: Parameters) -> EventPerPacket {
        let network = InfiniBand::new(parameters);
        EventPerPacket { waiting: vec![Waiting::default(); network.channels.len()], network }
    }

    fn look_at(&mut self, channel: u32, at: Picoseconds, outputs: &mut Outputs<EagerEvent>) {
        let look_at = &mut self.waiting[channel as usize].look_at;
        if look_at.is_none_or(|due| due > at) {
            *look_at = Some(at);
            outputs.remind(at, EagerEvent::Look(channel));
        }
    }

    fn start(&mut self, now: Picoseconds, mut channel: u32, outputs: &mut Outputs<EagerEvent>) {
        loop {
            let Channel { leads, free_at, room, .. } = self.network.channels[channel as usize];
            if room == 0 {
                return;
            }
            if free_at > now {
                return self.look_at(channel, free_at, outputs);
            }
            let place = if let LeadsTo::Adapter(host) = leads {
                match self.network.sources.fetch(now, host) {
                    Ok(Fetched { kind, index, last, to, bytes }) => {
                        let (buffer_behind, there) = (NOWHERE, Moment::NEVER);
                        self.network.packets.add(TransitPacket {
                            kind,
                            index,
                            last,
                            to,
                            bytes,
                            buffer_behind,
                            there,
                        })
                    }
                    Err(Some(ready_at)) => return self.look_at(channel, ready_at, outputs),
                    Err(None) => return,
                }
            } else if let Some(place) = self.waiting[channel as usize].queue.pop_front() {
                place
            } else {
                return;
            };
            let held = self.network.packets[place].buffer_behind;
            let free_at = self.carry(now, channel, place, outputs);
            let more = match leads {
                LeadsTo::Adapter(host) => self.network.sources.has_any(host),
                _ => !self.waiting[channel as usize].queue.is_empty(),
            };
            if more {
                self.look_at(channel, free_at, outputs);
            }
            if held == NOWHERE {
                return;
            }
            self.network.channels[held as usize].room += 1;
            channel = held;
        }
    }

    fn carry(
        &mut self,
        now: Picoseconds,
        channel: u32,
        place: PacketIndex,
        outputs: &mut Outputs<EagerEvent>,
    ) -> Picoseconds {
        let network = &mut self.network;
        let parameters = network.parameters;
        network.packet_hops += 1;
        let TransitPacket { kind, index, to, bytes, .. } = network.packets[place];
        let leads = network.channels[channel as usize].leads;
        let at_host = matches!(leads, LeadsTo::Adapter(_) | LeadsTo::Memory);
        let busy_ps = if at_host { parameters.host_ps(bytes) } else { parameters.link_ps(bytes) };
        let free_at = now + busy_ps;
        network.channels[channel as usize].free_at = free_at;
        if let (LeadsTo::Memory, PacketKind::Train { train, rank }) = (leads, kind) {
            network.packets.remove(place);
            let part = TrainPart { train, to: rank, first: index, count: 1, spacing_ps: 0 };
            let at = free_at + parameters.send_ps + parameters.receive_ps;
            outputs.push(at, Output::Arrived(part));
            return free_at;
        }
        let to_host = network.next_channel(leads, to) == to * HOST_CHANNELS + DELIVERY;
        let behind_ps = match (at_host, to_host) {
            (true, _) => busy_ps,
            (false, true) => parameters.hop_ps + busy_ps,
            (false, false) => parameters.hop_ps,
        };
        network.channels[channel as usize].room -= 1;
        network.packets[place].buffer_behind = channel;
        self.waiting[channel as usize].crossing.push_back(place);
        outputs.remind(now + behind_ps, EagerEvent::Behind(channel));
        free_at
    }
}

impl Network for EventPerPacket {
    type Event = EagerEvent;

    fn geometry(&self) -> Geometry {
        GEOMETRY
    }

    fn ranks_per_host(&self) -> u32 {
        self.network.ranks_per_host()
    }

    fn inject(&mut self, now: Picoseconds, injection: Injection, outputs: &mut Outputs<EagerEvent>) -> Hold {
        let (host, place, outgoing) = self.network.outgoing(now, injection);
        self.network.sources.add(host, place, outgoing);
        self.start(now, host * HOST_CHANNELS + FETCH, outputs);
        Hold::Until(now + u64::from(injection.packets) * injection.spacing_ps)
    }

    fn get(&mut self, _: Picoseconds, _: u32, _: u32, _: u64, _: u32, _: &mut Outputs<EagerEvent>) {
        unimplemented!("this traffic has no gets")
    }

    fn handle(&mut self, now: Picoseconds, event: EagerEvent, outputs: &mut Outputs<EagerEvent>) {
        match event {
            EagerEvent::Look(channel) => {
                outputs.act_as(Source::element(channel));
                self.waiting[channel as usize].look_at.take_if(|at| *at == now);
                self.start(now, channel, outputs);
            }
            EagerEvent::Behind(channel) => {
                let place =
                    self.waiting[channel as usize].crossing.pop_front().expect("they keep their order");
                let leads = self.network.channels[channel as usize].leads;
                let next = self.network.next_channel(leads, self.network.packets[place].to);
                outputs.act_as(Source::element(next));
                self.waiting[next as usize].queue.push_back(place);
                self.start(now, next, outputs);
            }
        }
    }

    fn one_way_ps(&self, from: u32, to: u32) -> Picoseconds {
        self.network.one_way_ps(from, to)
    }

    fn packet_hops(&self) -> u64 {
        self.network.packet_hops
    }
}

/// Round times, so that many things happen at the same picosecond.
fn round_parameters() -> impl Strategy<Value = Parameters> {
    let trees = prop::sample::select(vec![(4, 1), (2, 2), (3, 2), (2, 3)]);
    let times = (1u64..3, 0u64..3, 0u64..3, 0u64..3);
    (trees, 1u32..4, 1u32..4, times).prop_map(|((arity, levels), ranks_per_node, buffer_packets, times)| {
        let (byte_ps, hop, host_packet, send) = times;
        Parameters {
            tree: FatTree { arity, levels },
            ranks_per_node,
            buffer_packets,
            packet_header_bytes: 0,
            link_byte_ps: byte_ps,
            host_byte_ps: 1,
            hop_ps: hop * 500,
            host_packet_ps: host_packet * 500,
            send_ps: send * 1000,
            receive_ps: 1000,
            ..Parameters::CLUSTER_2003
        }
    })
}

/// Every rank sends three messages to each of two others, in several rounds.
fn exchange(rank: Rank, strides: [u32; 2], bytes: u64) -> Program {
    Box::pin(async move {
        let (me, size) = (rank.rank(), rank.size());
        for round in 0..3 {
            let mut calls = Vec::new();
            for stride in strides.map(|stride| stride % size) {
                calls.extend((0..3).map(|_| rank.irecv(Some((me + size - stride) % size), round, bytes)));
                calls.extend((0..3).map(|_| rank.isend((me + stride) % size, round, bytes)));
            }
            rank.wait_all(calls).await;
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn fewer_events_give_the_same_run(
        parameters in round_parameters(),
        packets in 1u32..20,
        bytes in prop::sample::select(vec![452u32, 952, 1952]),
        spacing in 0u64..5,
    ) {
        let ranks = parameters.tree.hosts() * parameters.ranks_per_node;
        let traffic = Traffic { ranks, trains: 3.min(ranks - 1), packets, packet_bytes: bytes, spacing_ps: spacing * 500 };
        let (event_per_packet, spared) = (traffic.run(EventPerPacket::new(parameters)), traffic.run(InfiniBand::new(parameters)));
        prop_assert_eq!(crate::traffic::TrafficReport { events: event_per_packet.events, ..spared }, event_per_packet);
    }

    #[test]
    fn fewer_events_give_the_same_run_with_credits(
        parameters in round_parameters(),
        strides in (1u32..8, 1u32..8),
        bytes in prop::sample::select(vec![452u64, 1952, 9760]),
        quota_slots in 2u32..6,
    ) {
        let ranks = parameters.tree.hosts() * parameters.ranks_per_node;
        let round = crate::cost::Cost { packet_send_ps: 500, packet_receive_ps: 500, ..crate::cost::Cost::FREE };
        let mut spec = WorldSpec::new(ranks, Scheme::Static { piggyback: false }, quota_slots, round);
        spec.config.eager_bytes = 60_000;
        let program = |rank: Rank| exchange(rank, [strides.0, strides.1], bytes);
        let event_per_packet = World::new(spec, EventPerPacket::new(parameters), program).run().expect("ends");
        let spared = World::new(spec, InfiniBand::new(parameters), program).run().expect("ends");
        prop_assert_eq!((spared.trace, spared.finished, spared.packet_hops), (event_per_packet.trace, event_per_packet.finished, event_per_packet.packet_hops));
    }
}
