//! EXTOLL: a mesh of nodes with one router each, dimension-order routing, cut-through switching and back-pressure.
//!
//! The model follows each packet. A packet occupies a buffer in every router in which it waits, and takes time on every
//! link. A link carries one packet at a time, and only if the router behind it has a free buffer. A packet whose
//! mailbox is full stays in a buffer of its destination's router. The links behind it fill, until the senders stand
//! still. Credits avoid this (Prades, thesis, chapter 2).
//!
//! ```text
//! processor --PIO--> NIC --injection--> router ==link==> router ==link==> router --ejection--> mailbox
//!  one packet per spacing            buffers          buffers          buffers
//! ```
//! The model leaves out link errors and retransmission. It has no two virtual channels, because dimension order cannot
//! deadlock in a mesh. Every VELO packet has the price of a full one. A remote get has a price and no packets.
//! [`super::faulty`] models damaged packets.

use std::collections::VecDeque;

use prefetch_index::prefetch_index;
use weir_proto::Geometry;

use super::mesh::{DIRECTIONS, Mesh, PackedRouting};
use super::packet_queue::{PacketIndex, PacketQueue, Packets};
use super::{Hold, Injection, Network, Output, Outputs, TrainId, TrainPart};
use crate::Picoseconds;
use crate::queue::Source;

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// The mesh.
    pub mesh: Mesh,
    /// Ranks of a node. Rank `r` is on node `r / ranks_per_node`.
    pub ranks_per_node: u32,
    /// Time of a 64-byte packet on a link.
    pub link_packet_ps: Picoseconds,
    /// Time from the start of a packet on a link until the router behind the link can forward it
    /// (cut-through).
    pub hop_ps: Picoseconds,
    /// Time of one packet from the NIC queue to the router of the node. All ranks of a node share this
    /// channel.
    pub inject_packet_ps: Picoseconds,
    /// Time of one packet from the router of the node to memory. All ranks of a node share this channel.
    pub eject_packet_ps: Picoseconds,
    /// Remaining time of a packet at both ends together: host interface and memory.
    pub ends_ps: Picoseconds,
    /// Packets that a router buffers for each link that leads to it.
    pub buffer_packets: u32,
    /// Packets of one rank that its NIC holds before the writing processor stands still.
    pub nic_packets: u32,
    /// Slots of a mailbox; `None`: as many as needed.
    pub mailbox_slots: Option<u32>,
    /// Time of a byte of a remote get on the wire.
    pub get_byte_ps: Picoseconds,
    /// Set-up time of a remote get, both ends together.
    pub get_ps: Picoseconds,
}

/// Something that carries one packet at a time: a link between routers, the injection channel from the NIC to
/// the router, or the ejection channel from the router to memory.
///
/// A channel needs one event per hop: the start of its next packet, which is known as soon as there is room
/// behind it. The struct fills one cache line, because a hop reads three channels, and a mesh has many.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Channel {
    /// Packets in the router before the channel or on the way there, by the time at which they can leave.
    /// Injection channels do not use it.
    packet_queue: PacketQueue,
    /// The time when the last of them can leave.
    last_ready_at: Picoseconds,
    /// The time when the next packet can leave; [`NEVER`]: there is none, or its mailbox is full.
    ready_at: Picoseconds,
    /// The channel is busy until this time.
    free_at: Picoseconds,
    /// The time when the channel starts its next packet; [`NEVER`]: there is none, or no room behind the channel.
    start_at: Picoseconds,
    /// Free buffers behind the channel.
    room: u32,
    /// First channel of the router behind this one.
    leads_to: u32,
    /// Packed coordinates of that router, see [`PackedRouting::place`].
    place_behind: u32,
}

const NEVER: Picoseconds = Picoseconds::MAX;

/// A packet in the network.
#[derive(Clone, Copy, Debug)]
struct TransitPacket {
    /// The time when the packet can leave its current router, or the router to which it travels.
    ready_at: Picoseconds,
    train: TrainId,
    index: u32,
    to: u32,
    /// Packed coordinates of the node of `to`, see [`PackedRouting::place`].
    there: u32,
    /// The channel behind which the packet occupies a buffer.
    buffer_behind: u32,
}

/// Packets of a train that a NIC has not sent. Packet `next` is written at `ready_at`, the others follow at
/// their spacing.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    train: TrainId,
    to: u32,
    next: u32,
    count: u32,
    ready_at: Picoseconds,
    spacing_ps: Picoseconds,
}

/// One rank's part of a NIC.
#[derive(Clone, Debug, Default)]
struct Sender {
    waiting: VecDeque<Waiting>,
    packets: u32,
    /// The processor stands still. Without back-pressure it would have been free at this time.
    held_from: Option<Picoseconds>,
}

/// Event: a channel may be able to start a packet.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    channel: u32,
}

/// The network.
#[derive(Clone, Debug)]
pub struct Extoll {
    parameters: Parameters,
    /// By node: six links, the injection channel, the ejection channel.
    channels: Vec<Channel>,
    packets: Packets<TransitPacket>,
    senders: Vec<Sender>,
    /// By rank: when the next packet of its NIC is written; [`NEVER`]: there is none. Each injection reads
    /// the entries of all ranks of a node.
    sends_at: Vec<Picoseconds>,
    /// By node: the rank on the node that sends next.
    next_ranks: Vec<u32>,
    /// By rank: free slots of the mailbox.
    mailbox_room: Vec<u32>,
    routing: PackedRouting,
    /// By node: packed coordinates.
    places: Vec<u32>,
    packet_hops: u64,
}

/// Number of channels of a node.
const PORTS: u32 = DIRECTIONS + 2;
const INJECTION: u32 = DIRECTIONS;
const EJECTION: u32 = DIRECTIONS + 1;

impl Extoll {
    /// A network without packets.
    ///
    /// # Panics
    /// Panics if buffers, NICs, nodes or mailboxes have size 0.
    pub fn new(parameters: Parameters) -> Extoll {
        let Parameters { mesh, ranks_per_node, buffer_packets, nic_packets, mailbox_slots, .. } = parameters;
        assert!(buffer_packets >= 1 && nic_packets >= 1 && ranks_per_node >= 1);
        assert!(mailbox_slots != Some(0));
        let ranks = (mesh.nodes() * ranks_per_node) as usize;
        let routing = PackedRouting::new(mesh);
        let channel = |index: u32| {
            let (node, port) = (index / PORTS, index % PORTS);
            // Routes stay inside the mesh, so no packet uses a link that leads out of it.
            let behind = if port < DIRECTIONS { mesh.neighbour(node, port).unwrap_or(node) } else { node };
            Channel {
                packet_queue: PacketQueue::EMPTY,
                last_ready_at: 0,
                ready_at: NEVER,
                free_at: 0,
                start_at: NEVER,
                // Mailboxes bound the room behind an ejection channel.
                room: if port == EJECTION { u32::MAX } else { buffer_packets },
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
            next_ranks: vec![0; mesh.nodes() as usize],
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

    /// The time when a channel can start its next packet, as far as known at `now`.
    #[inline]
    fn next_start(&self, now: Picoseconds, channel: u32) -> Picoseconds {
        let &Channel { ready_at, free_at, room, .. } = &self.channels[channel as usize];
        if room == 0 { NEVER } else { ready_at.max(free_at).max(now) }
    }

    /// The time when the next packet of a channel can leave.
    #[inline]
    fn first_ready(&self, channel: u32) -> Picoseconds {
        let Channel { packet_queue, .. } = &self.channels[channel as usize];
        if channel % PORTS == INJECTION {
            return self.injection_ready_at(channel / PORTS);
        }
        let Some(first) = packet_queue.first() else { return NEVER };
        let TransitPacket { ready_at, to, .. } = self.packets[first];
        match channel % PORTS {
            EJECTION if self.mailbox_room[to as usize] == 0 => NEVER,
            _ => ready_at,
        }
    }

    /// The ranks of a node.
    fn ranks_of(&self, node: u32) -> std::ops::Range<usize> {
        let count = self.parameters.ranks_per_node as usize;
        node as usize * count..(node as usize + 1) * count
    }

    /// The time when the first packet of the NIC of a node is written.
    fn injection_ready_at(&self, node: u32) -> Picoseconds {
        self.sends_at[self.ranks_of(node)].iter().copied().min().unwrap_or(NEVER)
    }

    /// Schedules the event at which a channel can start.
    #[inline]
    fn schedule_start(&mut self, now: Picoseconds, channel: u32, outputs: &mut Outputs<Event>) {
        let at = self.next_start(now, channel);
        let start_at = &mut self.channels[channel as usize].start_at;
        // An event for a later time, if any, is ignored when it comes.
        if at < *start_at {
            *start_at = at;
            outputs.remind(at, Event { channel });
        }
    }

    /// Starts the next packet of a channel. That frees a buffer, so that the channel before it may start as
    /// well, and so on back to a NIC.
    fn start(&mut self, now: Picoseconds, mut channel: u32, outputs: &mut Outputs<Event>) {
        loop {
            self.channels[channel as usize].start_at = NEVER;
            self.packet_hops += 1;
            let freed = match channel % PORTS {
                INJECTION => {
                    self.start_injection(now, channel, outputs);
                    None
                }
                EJECTION => Some(self.start_ejection(now, channel, outputs)),
                _ => Some(self.start_link(now, channel, outputs)),
            };
            self.channels[channel as usize].ready_at = self.first_ready(channel);
            self.schedule_start(now, channel, outputs);
            let Some(freed) = freed else { return };
            self.channels[freed as usize].room += 1;
            if self.channels[freed as usize].room > 1 {
                return; // the channel did not wait for a buffer
            }
            if self.next_start(now, freed) > now {
                return self.schedule_start(now, freed, outputs);
            }
            channel = freed;
        }
    }

    /// From the NIC to the router. The ranks of the node send in turn, packet by packet.
    fn start_injection(&mut self, now: Picoseconds, channel: u32, outputs: &mut Outputs<Event>) {
        let Parameters { ranks_per_node, nic_packets, inject_packet_ps, .. } = self.parameters;
        let node = channel / PORTS;
        let (turn, sends_at) = (self.next_ranks[node as usize], &self.sends_at[self.ranks_of(node)]);
        let is_ready = |&turn: &u32| sends_at[turn as usize] <= now;
        let turn =
            (turn..ranks_per_node).chain(0..turn).find(is_ready).expect("some rank has a packet ready");
        self.next_ranks[node as usize] = (turn + 1) % ranks_per_node;
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
        let packet = TransitPacket {
            ready_at: now + inject_packet_ps,
            train,
            index,
            to,
            there,
            buffer_behind: channel,
        };
        let place = self.packets.add(packet);
        self.carry(now, channel, place, inject_packet_ps, outputs);
    }

    /// From the router to memory. Returns the channel behind which a buffer became free.
    fn start_ejection(&mut self, now: Picoseconds, channel: u32, outputs: &mut Outputs<Event>) -> u32 {
        let Channel { packet_queue, free_at, .. } = &mut self.channels[channel as usize];
        let place = self.packets.take_first(packet_queue).expect("a packet that can start");
        let TransitPacket { train, index, to, buffer_behind, .. } = self.packets.remove(place);
        self.mailbox_room[to as usize] -= 1;
        let done = now + self.parameters.eject_packet_ps;
        *free_at = done;
        let part = TrainPart { train, to, first: index, count: 1, spacing_ps: 0 };
        outputs.push(done + self.parameters.ends_ps, Output::Arrived(part));
        buffer_behind
    }

    /// From router to router. Returns the channel behind which a buffer became free.
    #[inline]
    fn start_link(&mut self, now: Picoseconds, channel: u32, outputs: &mut Outputs<Event>) -> u32 {
        let packet_queue = &mut self.channels[channel as usize].packet_queue;
        let place = self.packets.take_first(packet_queue).expect("a packet that can start");
        let Parameters { link_packet_ps, hop_ps, .. } = self.parameters;
        let packet = &mut self.packets[place];
        packet.ready_at = now + hop_ps;
        let freed = std::mem::replace(&mut packet.buffer_behind, channel);
        self.carry(now, channel, place, link_packet_ps, outputs);
        freed
    }

    /// Puts a packet on a channel, and into the queue of the channel that carries it next.
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
        let port = self.routing.direction(carrier.place_behind, there).unwrap_or(EJECTION);
        let next = carrier.leads_to + port;
        let Channel { packet_queue, last_ready_at, .. } = &mut self.channels[next as usize];
        if packet_queue.is_empty() || *last_ready_at <= ready_at {
            *last_ready_at = ready_at;
            self.packets.append(packet_queue, place);
        } else {
            // Channels into a router take different times, so a packet that started later can be there
            // earlier.
            self.packets.insert(packet_queue, place, |other| other.ready_at > ready_at);
        }
        if packet_queue.first() == Some(place) {
            self.channels[next as usize].ready_at = self.first_ready(next);
            self.schedule_start(now, next, outputs);
        }
    }
}

impl Network for Extoll {
    type Event = Event;

    fn geometry(&self) -> Geometry {
        Geometry::EXTOLL
    }

    fn ranks_per_host(&self) -> u32 {
        self.parameters.ranks_per_node
    }

    fn inject(&mut self, now: Picoseconds, injection: Injection, outputs: &mut Outputs<Event>) -> Hold {
        let Injection { train, from, to, first, packets, spacing_ps, .. } = injection;
        let Parameters { ranks_per_node, nic_packets, .. } = self.parameters;
        let sender = &mut self.senders[from as usize];
        let ready_at = now + spacing_ps; // a packet is there when it has been written
        if sender.waiting.is_empty() {
            self.sends_at[from as usize] = ready_at;
        }
        let count = first + packets;
        sender.waiting.push_back(Waiting { train, to, next: first, count, ready_at, spacing_ps });
        sender.packets += packets;
        let done = now + u64::from(packets) * spacing_ps;
        let hold = if sender.packets > nic_packets {
            sender.held_from = Some(done);
            Hold::UntilReleased
        } else {
            Hold::Until(done)
        };
        let injection_channel = from / ranks_per_node * PORTS + INJECTION;
        self.channels[injection_channel as usize].ready_at = self.first_ready(injection_channel);
        self.schedule_start(now, injection_channel, outputs);
        hold
    }

    fn retrieved(&mut self, now: Picoseconds, rank: u32, outputs: &mut Outputs<Event>) {
        let Some(slots) = self.parameters.mailbox_slots else { return };
        let room = &mut self.mailbox_room[rank as usize];
        *room += 1;
        assert!(*room <= slots, "rank {rank} has retrieved a packet that never came");
        if *room == 1 {
            let ejection_channel = self.node(rank) * PORTS + EJECTION;
            self.channels[ejection_channel as usize].ready_at = self.first_ready(ejection_channel);
            self.schedule_start(now, ejection_channel, outputs);
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
        // The model prices a remote get and does not simulate its packets. A get takes no mailbox slots.
        let Parameters { mesh, hop_ps, get_ps, get_byte_ps, .. } = self.parameters;
        let hops = u64::from(mesh.distance(self.node(from), self.node(to)));
        let done = now + get_ps + 2 * hops * hop_ps + super::bytes_ps(bytes, get_byte_ps);
        outputs.push(done, Output::GetDone { to, number });
    }

    fn handle(&mut self, now: Picoseconds, Event { channel }: Event, outputs: &mut Outputs<Event>) {
        outputs.act_as(Source::element(channel));
        if self.channels[channel as usize].start_at != now {
            return;
        }
        if self.next_start(now, channel) == now {
            self.start(now, channel, outputs);
        } else {
            // Another packet came before the expected one, and its mailbox is full.
            self.channels[channel as usize].start_at = NEVER;
            self.schedule_start(now, channel, outputs);
        }
    }

    #[inline]
    fn prefetch(&self, Event { channel }: Event, soon: bool) {
        if !soon {
            return prefetch_index(&self.channels, channel as usize);
        }
        match self.channels[channel as usize].packet_queue.first() {
            Some(first) => self.packets.prefetch(first),
            None => {
                let rank = channel / PORTS * self.parameters.ranks_per_node;
                prefetch_index(&self.senders, rank as usize);
            }
        }
    }

    fn one_way_ps(&self, from: u32, to: u32) -> Picoseconds {
        let Parameters { mesh, hop_ps, inject_packet_ps, eject_packet_ps, ends_ps, .. } = self.parameters;
        let hops = u64::from(mesh.distance(self.node(from), self.node(to)));
        inject_packet_ps + hops * hop_ps + eject_packet_ps + ends_ps
    }

    fn repair_ps(&self) -> Option<Picoseconds> {
        // Link-level retransmission: the end of the link requests the packet, which travels again.
        Some(2 * self.parameters.hop_ps + self.parameters.link_packet_ps)
    }

    fn packet_hops(&self) -> u64 {
        self.packet_hops
    }
}
