//! EXTOLL: a mesh of nodes with a router each, dimension-order routing, cut-through switching, and back-pressure.
//!
//! Packet by packet: every packet holds a buffer of every router it waits in, and is counted on every link it crosses.
//! A link carries one packet at a time and only if the router behind it has a buffer free. A packet whose mailbox is full
//! stays where it is, in the buffers of its destination's router; behind it the links fill, until the senders stand
//! still: that is what credits are for (Prades, thesis, chapter 2).
//!
//! ```text
//! processor --PIO--> NIC --way in--> router ==link==> router ==link==> router --way out--> mailbox
//!  one packet per spacing          buffers          buffers          buffers
//! ```
//! What is left out: link errors and retransmission, the two virtual channels (dimension order cannot deadlock in a
//! mesh), the size of a packet (every VELO packet is charged as a full one).

use std::collections::VecDeque;

use weir_proto::Geometry;

use super::mesh::{DIRECTIONS, Mesh};
use super::{Hold, Injection, Network, Output, Outputs, Segment, TrainId};
use crate::Picoseconds;

/// Parameters, all stated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// The mesh.
    pub mesh: Mesh,
    /// Ranks of a node; rank `r` lives on node `r / ranks_per_node`.
    pub ranks_per_node: u32,
    /// A 64-byte packet on a link.
    pub link_packet_ps: Picoseconds,
    /// From the start of a packet on a link to the moment at which the router behind it can send it on (cut through).
    pub hop_ps: Picoseconds,
    /// Between the NIC queue and the node's router, for one packet; all ranks of a node share it.
    pub inject_packet_ps: Picoseconds,
    /// Between the node's router and memory, for one packet; all ranks of a node share it.
    pub eject_packet_ps: Picoseconds,
    /// What a packet spends at the two ends together beside that: host interface, memory.
    pub ends_ps: Picoseconds,
    /// Packets that a router buffers for each link that leads to it.
    pub buffer_packets: u32,
    /// Packets of one rank that its NIC holds before the processor that writes them stands still.
    pub nic_packets: u32,
    /// Slots of a mailbox; `None`: as large as needed.
    pub mailbox_slots: Option<u32>,
    /// A byte of a remote get on the wire. Unit: ps.
    pub get_byte_ps: Picoseconds,
    /// Setting up a remote get at both ends.
    pub get_ps: Picoseconds,
}

/// Something that carries one packet at a time: a link between routers, the way from the NIC into the router, the
/// way from the router into memory.
#[derive(Clone, Debug, Default)]
struct Channel {
    /// Packets that wait for it in the router before it, in order of arrival. Unused on ways in.
    queue: VecDeque<Crossing>,
    /// Packets that are on it or have not been dealt with behind it, in order.
    crossing: VecDeque<Crossing>,
    busy: bool,
    /// Buffers free behind it.
    room: u32,
}

/// A packet in the network.
#[derive(Clone, Copy, Debug)]
struct Crossing {
    train: TrainId,
    index: u32,
    to: u32,
    /// The channel behind which it occupies a buffer.
    holds: u32,
}

/// Packets of a train that a rank's NIC has not sent: packet `next` is there from `ready_at` on, the others follow.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    train: TrainId,
    to: u32,
    next: u32,
    count: u32,
    ready_at: Picoseconds,
    spacing_ps: Picoseconds,
}

/// One rank's side of a NIC.
#[derive(Clone, Debug, Default)]
struct Sender {
    waiting: VecDeque<Waiting>,
    packets: u32,
    /// The processor stands still; it would have been done at this time.
    held_from: Option<Picoseconds>,
}

/// The NIC of a node.
#[derive(Clone, Debug, Default)]
struct Nic {
    /// The rank, by number on the node, whose turn it is.
    turn: u32,
    /// When it looks again for packets that are not ready yet.
    look_at: Option<Picoseconds>,
}

/// What the network reminds itself of.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A channel has carried its packet.
    Idle(u32),
    /// A packet can leave the router behind a channel.
    Behind(u32),
    /// The NIC of a node has a packet ready.
    Ready(u32),
}

/// The network.
#[derive(Clone, Debug)]
pub struct Extoll {
    parameters: Parameters,
    /// By node: six links, the way in, the way out.
    channels: Vec<Channel>,
    senders: Vec<Sender>,
    nics: Vec<Nic>,
    /// Slots free in each mailbox.
    mailbox_room: Vec<u32>,
    /// `[from * nodes + to]`: the port by which a packet leaves.
    routes: Vec<u8>,
    packet_hops: u64,
}

/// Channels of a node.
const PORTS: u32 = DIRECTIONS + 2;
const IN: u32 = DIRECTIONS;
const OUT: u32 = DIRECTIONS + 1;

impl Extoll {
    /// A network without packets.
    ///
    /// # Panics
    /// If something holds no packet.
    pub fn new(parameters: Parameters) -> Extoll {
        let Parameters { mesh, ranks_per_node, buffer_packets, nic_packets, mailbox_slots, .. } = parameters;
        assert!(buffer_packets >= 1 && nic_packets >= 1 && ranks_per_node >= 1);
        assert!(mailbox_slots != Some(0));
        let ranks = (mesh.nodes() * ranks_per_node) as usize;
        let channel = |index: u32| Channel {
            // The way out ends in memory, whose room is the mailboxes'.
            room: if index % PORTS == OUT { u32::MAX } else { buffer_packets },
            ..Channel::default()
        };
        Extoll {
            parameters,
            channels: (0..mesh.nodes() * PORTS).map(channel).collect(),
            senders: vec![Sender::default(); ranks],
            nics: vec![Nic::default(); mesh.nodes() as usize],
            mailbox_room: vec![mailbox_slots.unwrap_or(u32::MAX); ranks],
            routes: routes(&mesh),
            packet_hops: 0,
        }
    }

    #[inline]
    fn node(&self, rank: u32) -> u32 {
        rank / self.parameters.ranks_per_node
    }

    /// The channel that a packet for rank `to` takes from the router of `node`.
    #[inline]
    fn next_channel(&self, node: u32, to: u32) -> u32 {
        let route = node as usize * self.nics.len() + self.node(to) as usize;
        node * PORTS + u32::from(self.routes[route])
    }

    /// Lets a channel carry its next packet, if it is idle and there is room behind it. That frees a buffer, so that the
    /// channel that leads there may start as well, and so on back to a NIC.
    fn start(&mut self, now: Picoseconds, mut channel: u32, outputs: &mut Outputs<Event>) {
        loop {
            let Channel { busy, room, .. } = &self.channels[channel as usize];
            if *busy || *room == 0 {
                return;
            }
            let freed = match channel % PORTS {
                IN => return self.start_in(now, channel, outputs),
                OUT => self.start_out(now, channel, outputs),
                _ => self.start_link(now, channel, outputs),
            };
            let Some(freed) = freed else { return };
            self.channels[freed as usize].room += 1;
            channel = freed;
        }
    }

    /// From the NIC into the router: the ranks of the node take turns, packet by packet.
    fn start_in(&mut self, now: Picoseconds, channel: u32, outputs: &mut Outputs<Event>) {
        let Parameters { ranks_per_node, nic_packets, inject_packet_ps, .. } = self.parameters;
        let node = channel / PORTS;
        let nic = &mut self.nics[node as usize];
        let mut next_ready_at = Picoseconds::MAX;
        for step in 0..ranks_per_node {
            let turn = (nic.turn + step) % ranks_per_node;
            let rank = node * ranks_per_node + turn;
            let sender = &mut self.senders[rank as usize];
            let Some(waiting) = sender.waiting.front_mut() else { continue };
            if waiting.ready_at > now {
                next_ready_at = next_ready_at.min(waiting.ready_at);
                continue;
            }
            let packet =
                Crossing { train: waiting.train, index: waiting.next, to: waiting.to, holds: channel };
            waiting.next += 1;
            waiting.ready_at += waiting.spacing_ps;
            if waiting.next == waiting.count {
                sender.waiting.pop_front();
            }
            sender.packets -= 1;
            if sender.packets <= nic_packets
                && let Some(from) = sender.held_from.take()
            {
                outputs.push((from.max(now), Output::Released { rank }));
            }
            nic.turn = (turn + 1) % ranks_per_node;
            return self.carry(now, channel, packet, inject_packet_ps, inject_packet_ps, outputs);
        }
        if next_ready_at < Picoseconds::MAX && nic.look_at.is_none_or(|at| at > next_ready_at) {
            nic.look_at = Some(next_ready_at);
            outputs.push((next_ready_at, Output::Internal(Event::Ready(node))));
        }
    }

    /// From the router into memory, if there is a slot in the mailbox. Returns the channel behind which a buffer is free now.
    fn start_out(&mut self, now: Picoseconds, channel: u32, outputs: &mut Outputs<Event>) -> Option<u32> {
        let packet = *self.channels[channel as usize].queue.front()?;
        let room = &mut self.mailbox_room[packet.to as usize];
        if *room == 0 {
            return None;
        }
        *room -= 1;
        let Channel { queue, busy, .. } = &mut self.channels[channel as usize];
        queue.pop_front();
        *busy = true;
        self.packet_hops += 1;
        let done = now + self.parameters.eject_packet_ps;
        outputs.push((done, Output::Internal(Event::Idle(channel))));
        let segment = Segment { train: packet.train, first: packet.index, count: 1, spacing_ps: 0 };
        outputs.push((done + self.parameters.ends_ps, Output::Arrived(segment)));
        Some(packet.holds)
    }

    fn start_link(&mut self, now: Picoseconds, channel: u32, outputs: &mut Outputs<Event>) -> Option<u32> {
        let packet = self.channels[channel as usize].queue.pop_front()?;
        let Parameters { link_packet_ps, hop_ps, .. } = self.parameters;
        let freed = packet.holds;
        self.carry(now, channel, Crossing { holds: channel, ..packet }, link_packet_ps, hop_ps, outputs);
        Some(freed)
    }

    /// Puts a packet on a channel; after `behind_ps` the router behind it can send it on.
    fn carry(
        &mut self,
        now: Picoseconds,
        channel: u32,
        packet: Crossing,
        packet_ps: Picoseconds,
        behind_ps: Picoseconds,
        outputs: &mut Outputs<Event>,
    ) {
        self.packet_hops += 1;
        let Channel { crossing, busy, room, .. } = &mut self.channels[channel as usize];
        *busy = true;
        *room -= 1;
        crossing.push_back(packet);
        outputs.push((now + packet_ps, Output::Internal(Event::Idle(channel))));
        outputs.push((now + behind_ps, Output::Internal(Event::Behind(channel))));
    }
}

fn routes(mesh: &Mesh) -> Vec<u8> {
    let pairs = (0..mesh.nodes()).flat_map(|from| (0..mesh.nodes()).map(move |to| (from, to)));
    pairs.map(|(from, to)| mesh.direction(from, to).unwrap_or(OUT) as u8).collect()
}

impl Network for Extoll {
    type Event = Event;

    fn geometry(&self) -> Geometry {
        Geometry::EXTOLL
    }

    fn inject(&mut self, now: Picoseconds, injection: Injection, outputs: &mut Outputs<Event>) -> Hold {
        let Injection { train, from, to, packets, spacing_ps, .. } = injection;
        let sender = &mut self.senders[from as usize];
        let ready_at = now + spacing_ps; // a packet is there when it has been written
        sender.waiting.push_back(Waiting { train, to, next: 0, count: packets, ready_at, spacing_ps });
        sender.packets += packets;
        let done = now + u64::from(packets) * spacing_ps;
        let hold = if sender.packets > self.parameters.nic_packets {
            sender.held_from = Some(done);
            Hold::UntilReleased
        } else {
            Hold::Until(done)
        };
        self.start(now, self.node(from) * PORTS + IN, outputs);
        hold
    }

    fn taken(&mut self, now: Picoseconds, rank: u32, outputs: &mut Outputs<Event>) {
        let Some(slots) = self.parameters.mailbox_slots else { return };
        let room = &mut self.mailbox_room[rank as usize];
        *room += 1;
        assert!(*room <= slots, "rank {rank} has taken a packet that never came");
        if *room == 1 {
            self.start(now, self.node(rank) * PORTS + OUT, outputs);
        }
    }

    fn get(
        &mut self,
        now: Picoseconds,
        to: u32,
        from: u32,
        bytes: u64,
        number: u32,
        outputs: &mut Outputs<Event>,
    ) {
        // Large transfers are priced, not simulated: they take no mailbox slots and little of what is asked here.
        let Parameters { mesh, hop_ps, get_ps, get_byte_ps, .. } = self.parameters;
        let hops = u64::from(mesh.distance(self.node(from), self.node(to)));
        let done = now + get_ps + 2 * hops * hop_ps + bytes * get_byte_ps;
        outputs.push((done, Output::GetDone { to, number }));
    }

    fn handle(&mut self, now: Picoseconds, event: Event, outputs: &mut Outputs<Event>) {
        match event {
            Event::Idle(channel) => {
                self.channels[channel as usize].busy = false;
                self.start(now, channel, outputs);
            }
            Event::Behind(channel) => {
                let (node, port) = (channel / PORTS, channel % PORTS);
                let router = match port {
                    IN => node,
                    direction => self.parameters.mesh.neighbour(node, direction).expect("routes stay inside"),
                };
                let crossing = &mut self.channels[channel as usize].crossing;
                let packet = crossing.pop_front().expect("packets come out in order");
                let next = self.next_channel(router, packet.to);
                self.channels[next as usize].queue.push_back(packet);
                self.start(now, next, outputs);
            }
            Event::Ready(node) => {
                if self.nics[node as usize].look_at == Some(now) {
                    self.nics[node as usize].look_at = None;
                }
                self.start(now, node * PORTS + IN, outputs);
            }
        }
    }

    fn way_ps(&self, from: u32, to: u32) -> Picoseconds {
        let Parameters { mesh, hop_ps, inject_packet_ps, eject_packet_ps, ends_ps, .. } = self.parameters;
        let hops = u64::from(mesh.distance(self.node(from), self.node(to)));
        inject_packet_ps + hops * hop_ps + eject_packet_ps + ends_ps
    }

    fn packet_hops(&self) -> u64 {
        self.packet_hops
    }
}
