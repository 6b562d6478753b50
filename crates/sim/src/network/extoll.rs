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

use super::mesh::{DIRECTIONS, Mesh, PackedRouting};
use super::packet_queue::{PacketIndex, PacketQueue, Packets};
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
///
/// When it can start its next packet is known as soon as there is room behind it, so that this is the only event of a hop.
/// One line of the processor's cache: a hop looks at three channels, and a mesh has many.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Channel {
    /// Packets for it in the router before it or on the way there, by the time from which on it can carry them. Unused on
    /// ways in.
    packet_queue: PacketQueue,
    /// When the last of them can be carried.
    last_ready_at: Picoseconds,
    /// When its next packet is there for it; [`NEVER`]: there is none, or its mailbox is full.
    ready_at: Picoseconds,
    /// It is busy until then.
    free_at: Picoseconds,
    /// When it starts its next packet; [`NEVER`]: there is none, or no room behind it.
    start_at: Picoseconds,
    /// Buffers free behind it.
    room: u32,
    /// The first channel of the router behind it.
    leads_to: u32,
    /// Where that router is. Unit: as [`PackedRouting::place`].
    place_behind: u32,
}

const NEVER: Picoseconds = Picoseconds::MAX;

/// A packet in the network.
#[derive(Clone, Copy, Debug)]
struct TransitPacket {
    /// When it can leave the router that it is in, or on the way to.
    ready_at: Picoseconds,
    train: TrainId,
    index: u32,
    to: u32,
    /// Where the node of `to` is. Unit: as [`PackedRouting::place`].
    there: u32,
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

/// What the network reminds itself of: a channel can start a packet.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    channel: u32,
}

/// The network.
#[derive(Clone, Debug)]
pub struct Extoll {
    parameters: Parameters,
    /// By node: six links, the way in, the way out.
    channels: Vec<Channel>,
    packets: Packets<TransitPacket>,
    senders: Vec<Sender>,
    /// By rank: when the next packet of its NIC is there; [`NEVER`]: there is none. Every packet looks at all of a node, which
    /// are 16 in what was published.
    sends_at: Vec<Picoseconds>,
    /// By node: the rank, by number there, whose turn it is.
    turns: Vec<u32>,
    /// Slots free in each mailbox.
    mailbox_room: Vec<u32>,
    routing: PackedRouting,
    /// Of every node.
    places: Vec<u32>,
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
        let routing = PackedRouting::new(mesh);
        let channel = |index: u32| {
            let (node, port) = (index / PORTS, index % PORTS);
            // Routes stay inside: what leads out of the mesh is never used.
            let behind = if port < DIRECTIONS { mesh.neighbour(node, port).unwrap_or(node) } else { node };
            Channel {
                packet_queue: PacketQueue::EMPTY,
                last_ready_at: 0,
                ready_at: NEVER,
                free_at: 0,
                start_at: NEVER,
                // The way out ends in memory, whose room is the mailboxes'.
                room: if port == OUT { u32::MAX } else { buffer_packets },
                leads_to: behind * PORTS,
                place_behind: routing.place(behind),
            }
        };
        Extoll {
            parameters,
            channels: (0..mesh.nodes() * PORTS).map(channel).collect(),
            packets: Packets::default(),
            senders: vec![Sender::default(); ranks],
            sends_at: vec![NEVER; ranks],
            turns: vec![0; mesh.nodes() as usize],
            mailbox_room: vec![mailbox_slots.unwrap_or(u32::MAX); ranks],
            routing,
            places: (0..mesh.nodes()).map(|node| routing.place(node)).collect(),
            packet_hops: 0,
        }
    }

    #[inline]
    fn node(&self, rank: u32) -> u32 {
        rank / self.parameters.ranks_per_node
    }

    /// When a channel can start its next packet, as far as that is known at `now`.
    #[inline]
    fn next_start(&self, now: Picoseconds, channel: u32) -> Picoseconds {
        let &Channel { ready_at, free_at, room, .. } = &self.channels[channel as usize];
        if room == 0 { NEVER } else { ready_at.max(free_at).max(now) }
    }

    /// When the next packet of a channel is there for it, now that its first has left or another has come before that.
    #[inline]
    fn first_ready(&self, channel: u32) -> Picoseconds {
        let Channel { packet_queue, .. } = &self.channels[channel as usize];
        if channel % PORTS == IN {
            return self.ready_in(channel / PORTS);
        }
        let Some(first) = packet_queue.first() else { return NEVER };
        let TransitPacket { ready_at, to, .. } = self.packets[first];
        match channel % PORTS {
            OUT if self.mailbox_room[to as usize] == 0 => NEVER,
            _ => ready_at,
        }
    }

    /// The ranks of a node.
    fn ranks_of(&self, node: u32) -> std::ops::Range<usize> {
        let count = self.parameters.ranks_per_node as usize;
        node as usize * count..(node as usize + 1) * count
    }

    /// When the first packet of a NIC is there.
    fn ready_in(&self, node: u32) -> Picoseconds {
        self.sends_at[self.ranks_of(node)].iter().copied().min().unwrap_or(NEVER)
    }

    /// Sees to it that a channel starts when it can.
    #[inline]
    fn plan(&mut self, now: Picoseconds, channel: u32, outputs: &mut Outputs<Event>) {
        let at = self.next_start(now, channel);
        let start_at = &mut self.channels[channel as usize].start_at;
        // An event for a later time finds that it is not meant any more.
        if at < *start_at {
            *start_at = at;
            outputs.remind(at, Event { channel });
        }
    }

    /// A channel carries its next packet. That frees a buffer, so that the channel that leads there may start as well, and so
    /// on back to a NIC.
    fn start(&mut self, now: Picoseconds, mut channel: u32, outputs: &mut Outputs<Event>) {
        loop {
            self.channels[channel as usize].start_at = NEVER;
            self.packet_hops += 1;
            let freed = match channel % PORTS {
                IN => {
                    self.start_in(now, channel, outputs);
                    None
                }
                OUT => Some(self.start_out(now, channel, outputs)),
                _ => Some(self.start_link(now, channel, outputs)),
            };
            self.channels[channel as usize].ready_at = self.first_ready(channel);
            self.plan(now, channel, outputs);
            let Some(freed) = freed else { return };
            self.channels[freed as usize].room += 1;
            if self.channels[freed as usize].room > 1 {
                return; // it did not wait for that
            }
            if self.next_start(now, freed) > now {
                return self.plan(now, freed, outputs);
            }
            channel = freed;
        }
    }

    /// From the NIC into the router: the ranks of the node take turns, packet by packet.
    fn start_in(&mut self, now: Picoseconds, channel: u32, outputs: &mut Outputs<Event>) {
        let Parameters { ranks_per_node, nic_packets, inject_packet_ps, .. } = self.parameters;
        let node = channel / PORTS;
        let (turn, sends_at) = (self.turns[node as usize], &self.sends_at[self.ranks_of(node)]);
        let is_ready = |&turn: &u32| sends_at[turn as usize] <= now;
        let turn =
            (turn..ranks_per_node).chain(0..turn).find(is_ready).expect("some rank has a packet ready");
        self.turns[node as usize] = (turn + 1) % ranks_per_node;
        let rank = node * ranks_per_node + turn;
        let sender = &mut self.senders[rank as usize];
        let waiting = sender.waiting.front_mut().expect("it has a packet ready");
        let Waiting { train, to, next: index, .. } = *waiting;
        waiting.next += 1;
        waiting.ready_at += waiting.spacing_ps;
        if waiting.next == waiting.count {
            sender.waiting.pop_front();
        }
        self.sends_at[rank as usize] = sender.waiting.front().map_or(NEVER, |next| next.ready_at);
        sender.packets -= 1;
        if sender.packets <= nic_packets
            && let Some(from) = sender.held_from.take()
        {
            outputs.push(from.max(now), Output::Released { rank });
        }
        let there = self.places[(to / ranks_per_node) as usize];
        let packet =
            TransitPacket { ready_at: now + inject_packet_ps, train, index, to, there, holds: channel };
        let place = self.packets.add(packet);
        self.carry(now, channel, place, inject_packet_ps, outputs);
    }

    /// From the router into memory. Returns the channel behind which a buffer is free now.
    fn start_out(&mut self, now: Picoseconds, channel: u32, outputs: &mut Outputs<Event>) -> u32 {
        let Channel { packet_queue, free_at, .. } = &mut self.channels[channel as usize];
        let place = self.packets.take_first(packet_queue).expect("a packet that can start");
        let TransitPacket { train, index, to, holds, .. } = self.packets.remove(place);
        self.mailbox_room[to as usize] -= 1;
        let done = now + self.parameters.eject_packet_ps;
        *free_at = done;
        let segment = Segment { train, to, first: index, count: 1, spacing_ps: 0 };
        outputs.push(done + self.parameters.ends_ps, Output::Arrived(segment));
        holds
    }

    /// From router to router. Returns the channel behind which a buffer is free now.
    #[inline]
    fn start_link(&mut self, now: Picoseconds, channel: u32, outputs: &mut Outputs<Event>) -> u32 {
        let packet_queue = &mut self.channels[channel as usize].packet_queue;
        let place = self.packets.take_first(packet_queue).expect("a packet that can start");
        let Parameters { link_packet_ps, hop_ps, .. } = self.parameters;
        let packet = &mut self.packets[place];
        packet.ready_at = now + hop_ps;
        let freed = std::mem::replace(&mut packet.holds, channel);
        self.carry(now, channel, place, link_packet_ps, outputs);
        freed
    }

    /// Puts a packet on a channel, and into the line of the channel that carries it on.
    #[inline]
    fn carry(
        &mut self,
        now: Picoseconds,
        channel: u32,
        place: PacketIndex,
        packet_ps: Picoseconds,
        outputs: &mut Outputs<Event>,
    ) {
        let TransitPacket { ready_at, there, .. } = self.packets[place];
        let carrier = &mut self.channels[channel as usize];
        carrier.free_at = now + packet_ps;
        carrier.room -= 1;
        let port = self.routing.direction(carrier.place_behind, there).unwrap_or(OUT);
        let next = carrier.leads_to + port;
        let Channel { packet_queue, last_ready_at, .. } = &mut self.channels[next as usize];
        if packet_queue.is_empty() || *last_ready_at <= ready_at {
            *last_ready_at = ready_at;
            self.packets.append(packet_queue, place);
        } else {
            // The ways into a router differ in how long they take: this one started later and is there earlier.
            self.packets.insert(packet_queue, place, |other| other.ready_at > ready_at);
        }
        if packet_queue.first() == Some(place) {
            self.channels[next as usize].ready_at = self.first_ready(next);
            self.plan(now, next, outputs);
        }
    }
}

impl Network for Extoll {
    type Event = Event;

    fn geometry(&self) -> Geometry {
        Geometry::EXTOLL
    }

    fn inject(&mut self, now: Picoseconds, injection: Injection, outputs: &mut Outputs<Event>) -> Hold {
        let Injection { train, from, to, packets, spacing_ps, .. } = injection;
        let Parameters { ranks_per_node, nic_packets, .. } = self.parameters;
        let sender = &mut self.senders[from as usize];
        let ready_at = now + spacing_ps; // a packet is there when it has been written
        if sender.waiting.is_empty() {
            self.sends_at[from as usize] = ready_at;
        }
        sender.waiting.push_back(Waiting { train, to, next: 0, count: packets, ready_at, spacing_ps });
        sender.packets += packets;
        let done = now + u64::from(packets) * spacing_ps;
        let hold = if sender.packets > nic_packets {
            sender.held_from = Some(done);
            Hold::UntilReleased
        } else {
            Hold::Until(done)
        };
        let way_in = from / ranks_per_node * PORTS + IN;
        self.channels[way_in as usize].ready_at = self.first_ready(way_in);
        self.plan(now, way_in, outputs);
        hold
    }

    fn taken(&mut self, now: Picoseconds, rank: u32, outputs: &mut Outputs<Event>) {
        let Some(slots) = self.parameters.mailbox_slots else { return };
        let room = &mut self.mailbox_room[rank as usize];
        *room += 1;
        assert!(*room <= slots, "rank {rank} has taken a packet that never came");
        if *room == 1 {
            let way_out = self.node(rank) * PORTS + OUT;
            self.channels[way_out as usize].ready_at = self.first_ready(way_out);
            self.plan(now, way_out, outputs);
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
        let done = now + get_ps + 2 * hops * hop_ps + super::bytes_ps(bytes, get_byte_ps);
        outputs.push(done, Output::GetDone { to, number });
    }

    fn handle(&mut self, now: Picoseconds, Event { channel }: Event, outputs: &mut Outputs<Event>) {
        if self.channels[channel as usize].start_at != now {
            return;
        }
        if self.next_start(now, channel) == now {
            self.start(now, channel, outputs);
        } else {
            // Another packet came before the one that was meant, and its mailbox is full.
            self.channels[channel as usize].start_at = NEVER;
            self.plan(now, channel, outputs);
        }
    }

    fn one_way_ps(&self, from: u32, to: u32) -> Picoseconds {
        let Parameters { mesh, hop_ps, inject_packet_ps, eject_packet_ps, ends_ps, .. } = self.parameters;
        let hops = u64::from(mesh.distance(self.node(from), self.node(to)));
        inject_packet_ps + hops * hop_ps + eject_packet_ps + ends_ps
    }

    fn repair_ps(&self) -> Option<Picoseconds> {
        // Link-level retransmission: the link's end asks for it, and the packet comes again.
        Some(2 * self.parameters.hop_ps + self.parameters.link_packet_ps)
    }

    fn packet_hops(&self) -> u64 {
        self.packet_hops
    }
}
