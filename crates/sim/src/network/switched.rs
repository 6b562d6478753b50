//! Switched Ethernet: hosts on a fat tree of switches that store and forward, with an output queue for each port.
//!
//! Nothing holds a sender back: a link has no credits, so a queue grows when packets come faster than its link carries them. A
//! queue may be finite. Then a packet that finds it full is dropped (tail drop), and a packet that finds it long may be
//! marked, as explicit congestion notification does. Queues of hosts are in host memory and take everything.
//!
//! ```text
//! processor --writes--> host queue ==link==> switch: port queue ==link==> switch: port queue ==link==> host --> mailbox
//!                                            full: Output::Dropped
//!                                            long: marked, Output::Marked at the end
//! ```
//! A queue of `queue_packets` holds that many packets, with the one on the link. Source of marking at the entry of the
//! queue: Alizadeh et al., "Data center TCP (DCTCP)", 2010, section 3.1.
//!
//! All packets of a pair take one route, so they stay in order. The model prices a remote get and does not simulate its
//! packets. It leaves out pause frames (IEEE 802.3x), which would hold senders back.

use std::collections::VecDeque;

use weir_proto::Geometry;

use super::fat_tree::{End, FatTree};
use super::packet_queue::{PacketIndex, Packets};
use super::{Hold, Injection, Network, Output, Outputs, TrainId, TrainPart};
use crate::Picoseconds;
use crate::queue::Source;

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// The switches.
    pub tree: FatTree,
    /// Ranks of a node. Rank `r` is on node `r / ranks_per_node`.
    pub ranks_per_node: u32,
    /// Headers of each packet on a link, beside weir's own. Unit: bytes.
    pub packet_header_bytes: u32,
    /// Time of a byte on a link.
    pub link_byte_ps: Picoseconds,
    /// Time from the end of a packet on a link until it enters the next queue.
    pub hop_ps: Picoseconds,
    /// Remaining latency of a packet at both ends together: operating system, host interface, memory.
    pub ends_ps: Picoseconds,
    /// Packets that the queue of a switch port holds; 0: as many as needed.
    pub queue_packets: u32,
    /// A packet that finds as many packets in the queue of a switch port is marked; 0: none is.
    pub mark_packets: u32,
}

/// A slot is a buffer for one datagram, and a packet fills one slot. With Ethernet's 1,500 bytes there is room for the headers of
/// IP and UDP and for weir's link extension and tag of 44 bytes. The header sizes are those of [`weir_proto::wire`].
pub const GEOMETRY: Geometry = Geometry {
    slot_bytes: 1408,
    max_packet_slots: 1,
    eager_header_bytes: 48,
    more_header_bytes: 32,
    remote_header_bytes: 56,
    piggyback_bytes: 0,
};

/// The output queue of a link, with the packet on the link.
#[derive(Clone, Debug, Default)]
struct Queue {
    /// The time when the link has carried all packets of the queue.
    free_at: Picoseconds,
    /// The time when it has carried each, if the length of the queue matters.
    departures: VecDeque<Picoseconds>,
}

impl Queue {
    /// Number of packets in the queue.
    fn len(&mut self, now: Picoseconds) -> usize {
        while self.departures.front().is_some_and(|&at| at <= now) {
            self.departures.pop_front();
        }
        self.departures.len()
    }

    /// Appends a packet that takes `packet_ps` on the link. Returns when the link has carried it.
    fn append(&mut self, now: Picoseconds, packet_ps: Picoseconds, counts: bool) -> Picoseconds {
        self.free_at = self.free_at.max(now) + packet_ps;
        if counts {
            self.departures.push_back(self.free_at);
        }
        self.free_at
    }
}

/// A packet in the network.
#[derive(Clone, Copy, Debug)]
struct TransitPacket {
    train: TrainId,
    index: u32,
    /// Receiving rank.
    to: u32,
    packet_ps: Picoseconds,
    /// The switch whose queue it enters next.
    switch: u32,
    marked: bool,
}

/// Packets of a train that the processor writes.
#[derive(Clone, Copy, Debug)]
struct Written {
    train: TrainId,
    from: u32,
    to: u32,
    next: u32,
    count: u32,
    packet_ps: Picoseconds,
    spacing_ps: Picoseconds,
}

/// An event that the network schedules for itself.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// The next packet of these has been written.
    Written(u32),
    /// A packet reaches a switch.
    AtSwitch(u32),
}

/// The network.
#[derive(Clone, Debug)]
pub struct Switched {
    parameters: Parameters,
    /// By host.
    host_queues: Vec<Queue>,
    /// By switch and port.
    port_queues: Vec<Queue>,
    packets: Packets<TransitPacket>,
    written: Vec<Written>,
    free_written: Vec<u32>,
    packet_hops: u64,
    drops: u64,
    marks: u64,
}

impl Switched {
    /// A network without packets.
    ///
    /// # Panics
    /// Panics if nodes have no ranks.
    pub fn new(parameters: Parameters) -> Switched {
        let Parameters { tree, ranks_per_node, .. } = parameters;
        assert!(ranks_per_node >= 1);
        Switched {
            parameters,
            host_queues: vec![Queue::default(); tree.hosts() as usize],
            port_queues: vec![Queue::default(); (tree.switches() * tree.ports()) as usize],
            packets: Packets::default(),
            written: Vec::new(),
            free_written: Vec::new(),
            packet_hops: 0,
            drops: 0,
            marks: 0,
        }
    }

    fn node(&self, rank: u32) -> u32 {
        rank / self.parameters.ranks_per_node
    }

    /// The next packet of a train enters the queue of its host. Packets that are written at the same time stay together, so
    /// that no later train comes between them.
    fn written(&mut self, now: Picoseconds, index: u32, outputs: &mut Outputs<Event>) {
        outputs.act_as(Source::rank(self.written[index as usize].from));
        loop {
            let Written { next, count, spacing_ps, .. } = self.written[index as usize];
            self.written[index as usize].next += 1;
            self.enter(now, index, next, outputs);
            if next + 1 == count {
                return self.free_written.push(index);
            }
            if spacing_ps > 0 {
                return outputs.remind(now + spacing_ps, Event::Written(index));
            }
        }
    }

    fn enter(&mut self, now: Picoseconds, index: u32, next: u32, outputs: &mut Outputs<Event>) {
        let Written { train, from, to, packet_ps, .. } = self.written[index as usize];
        let (host, destination) = (self.node(from), self.node(to));
        let carried_at = self.host_queues[host as usize].append(now, packet_ps, false);
        self.packet_hops += 1;
        let switch = self.parameters.tree.leaf(host);
        let packet = TransitPacket { train, index: next, to, packet_ps, switch, marked: false };
        if host == destination {
            return self.deliver(carried_at, packet, outputs); // the host keeps a packet for itself
        }
        let place = self.packets.add(packet);
        outputs.remind(carried_at + self.parameters.hop_ps, Event::AtSwitch(place.number()));
    }

    /// A packet enters the queue of the port by which it leaves a switch, if there is room.
    fn forward(&mut self, now: Picoseconds, place: PacketIndex, outputs: &mut Outputs<Event>) {
        let Parameters { tree, hop_ps, queue_packets, mark_packets, .. } = self.parameters;
        let TransitPacket { train, index, to, packet_ps, switch, .. } = self.packets[place];
        outputs.act_as(Source::element(switch));
        let port = tree.port(switch, self.node(to));
        let queue = &mut self.port_queues[(switch * tree.ports() + port) as usize];
        let counts = queue_packets > 0 || mark_packets > 0;
        let length = if counts { queue.len(now) } else { 0 };
        if queue_packets > 0 && length >= queue_packets as usize {
            self.packets.remove(place);
            self.drops += 1;
            let part = TrainPart { train, to, first: index, count: 1, spacing_ps: 0 };
            return outputs.push(now, Output::Dropped(part));
        }
        self.packets[place].marked |= mark_packets > 0 && length >= mark_packets as usize;
        let carried_at = queue.append(now, packet_ps, counts);
        self.packet_hops += 1;
        match tree.end(switch, port).expect("a route stays in the tree") {
            End::Switch(next) => {
                self.packets[place].switch = next;
                outputs.remind(carried_at + hop_ps, Event::AtSwitch(place.number()));
            }
            End::Host(_) => {
                let packet = self.packets.remove(place);
                self.deliver(carried_at + hop_ps, packet, outputs);
            }
        }
    }

    /// A packet has reached its host.
    fn deliver(&mut self, at: Picoseconds, packet: TransitPacket, outputs: &mut Outputs<Event>) {
        let TransitPacket { train, index, to, marked, .. } = packet;
        let part = TrainPart { train, to, first: index, count: 1, spacing_ps: 0 };
        self.marks += u64::from(marked);
        let output = if marked { Output::Marked(part) } else { Output::Arrived(part) };
        outputs.push(at + self.parameters.ends_ps, output);
    }
}

impl Network for Switched {
    type Event = Event;

    fn geometry(&self) -> Geometry {
        GEOMETRY
    }

    fn ranks_per_host(&self) -> u32 {
        self.parameters.ranks_per_node
    }

    fn holds(&self) -> bool {
        false
    }

    fn may_drop(&self) -> bool {
        self.parameters.queue_packets > 0
    }

    fn inject(&mut self, now: Picoseconds, injection: Injection, outputs: &mut Outputs<Event>) -> Hold {
        let Injection { train, from, to, first, packets, payload_bytes, spacing_ps } = injection;
        let Parameters { packet_header_bytes, link_byte_ps, .. } = self.parameters;
        let header_bytes = u64::from(GEOMETRY.eager_header_bytes + packet_header_bytes);
        let bytes = payload_bytes.div_ceil(u64::from(packets)) + header_bytes;
        let packet_ps = super::bytes_ps(bytes, link_byte_ps);
        let written = Written { train, from, to, next: first, count: first + packets, packet_ps, spacing_ps };
        let index = match self.free_written.pop() {
            Some(index) => {
                self.written[index as usize] = written;
                index
            }
            None => {
                self.written.push(written);
                self.written.len() as u32 - 1
            }
        };
        outputs.remind(now + spacing_ps, Event::Written(index)); // a packet is there when it has been written
        Hold::Until(now + u64::from(packets) * spacing_ps)
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
        let bytes_ps = super::bytes_ps(bytes, self.parameters.link_byte_ps);
        let done = now + self.one_way_ps(to, from) + self.one_way_ps(from, to) + bytes_ps;
        outputs.push(done, Output::GetDone { to, number });
    }

    fn handle(&mut self, now: Picoseconds, event: Event, outputs: &mut Outputs<Event>) {
        match event {
            Event::Written(index) => self.written(now, index, outputs),
            Event::AtSwitch(number) => self.forward(now, PacketIndex::of_number(number), outputs),
        }
    }

    fn one_way_ps(&self, from: u32, to: u32) -> Picoseconds {
        let Parameters { tree, packet_header_bytes, link_byte_ps, hop_ps, ends_ps, .. } = self.parameters;
        let links = u64::from(tree.distance(self.node(from), self.node(to)));
        let header_bytes = u64::from(GEOMETRY.eager_header_bytes + packet_header_bytes);
        ends_ps + links * (hop_ps + header_bytes * link_byte_ps)
    }

    fn packet_hops(&self) -> u64 {
        self.packet_hops
    }

    fn drops(&self) -> u64 {
        self.drops
    }

    fn marks(&self) -> u64 {
        self.marks
    }
}
