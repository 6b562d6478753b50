//! InfiniBand reliable connections on a fat tree: packets of at most an MTU, link-level credits, remote reads.
//!
//! The model follows each packet. A link carries one packet at a time, and only if the port behind it has a free
//! buffer. These are link-level credits, here counted in packets of any size. Switches cut through; adapters store and
//! forward. All packets of a pair take one route, so they stay in order. An adapter accepts packets even if the host
//! has posted no receive buffer. The world then refuses the attempt (`world/rnr.rs`), with a NAK that takes
//! [`Network::one_way_ps`].
//!
//! ```text
//! processor --doorbell--> adapter ==link==> switch ==link==> switch ==link==> adapter --> memory, completion entry
//!            DMA, one packet at a time   buffers          buffers          buffers    DMA
//! remote read: request (16 B) to the adapter of the owner; it answers with packets of an MTU, without its processor
//! ```
//! The model leaves out acknowledgements (at most 30 B for each message, against the data) and virtual lanes (it uses
//! one). It leaves out limits on outstanding reads and paging of the adapter's tables. NAKs do not queue behind data.
//! An adapter answers one read after the other. [`super::faulty`] models damaged packets. The parameters and prices of
//! a cluster of 2003 are here too ([`Parameters::CLUSTER_2003`], [`COST_2003`]).

mod channel;
#[cfg(test)]
mod event_per_packet;
mod sources;

use weir_proto::Geometry;

use super::fat_tree::{End, FatTree};
use super::packet_queue::{PacketIndex, PacketQueue, Packets};
use super::{Hold, Injection, Network, Output, Outputs, TrainId, TrainPart};
use crate::Picoseconds;
use crate::cost::Cost;
use crate::queue::Source;
use channel::{Channel, LeadsTo, Moment};
use sources::{Fetched, Outgoing, Sources};

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// The switches.
    pub tree: FatTree,
    /// Ranks of a node. Rank `r` is on node `r / ranks_per_node`.
    pub ranks_per_node: u32,
    /// Most payload of one packet, of a message or a remote read. At least a slot. Unit: bytes.
    pub mtu_bytes: u32,
    /// Headers of each packet on a link. Unit: bytes.
    pub packet_header_bytes: u32,
    /// Time of a byte on a link.
    pub link_byte_ps: Picoseconds,
    /// Time from the start of a packet on a link until the switch behind the link can forward it
    /// (cut-through).
    pub hop_ps: Picoseconds,
    /// Packets that a port buffers for the link that leads to it.
    pub buffer_packets: u32,
    /// Time of a byte between adapter and memory.
    pub host_byte_ps: Picoseconds,
    /// Further time of a packet in the adapter, at each end. The adapter handles no other packet of that
    /// direction meanwhile.
    pub host_packet_ps: Picoseconds,
    /// Latency from the doorbell to the start of the DMA. Other packets are handled meanwhile.
    pub send_ps: Picoseconds,
    /// Latency from the last byte in memory until a polling processor sees the completion entry.
    pub receive_ps: Picoseconds,
    /// Time from the arrival of a read request to the start of the answer.
    pub read_ps: Picoseconds,
    /// Time for which a connection waits for an acknowledgement before it retransmits (local ACK timeout). Only
    /// faults use it.
    pub ack_timeout_ps: Picoseconds,
}

impl Parameters {
    /// Eight nodes as in Liu & Panda: InfiniHost MT23108 adapters (4x, PCI-X 64 bit at 133 MHz) on one
    /// InfiniScale switch.
    ///
    /// Standards give these values. 4x at 2.5 Gb/s with 8b/10b coding is 1 GB/s, so a byte takes 1 ns. The
    /// headers are LRH 8, BTH 12, ICRC 4 and VCRC 2 bytes (InfiniBand Architecture, volume 1). The largest
    /// MTU of that adapter is 2048.
    ///
    /// The slides state neither bandwidth nor latency. They come from what the authors report of these
    /// machines in "High performance RDMA-based MPI implementation over InfiniBand" (Liu, Wu, Kini, Wyckoff,
    /// Panda, 2003; quoted from memory):
    ///
    /// - 871 MB/s, or 2 KB in 2.35 us: 300 ns for a packet and 1 ns for a byte. The bus peaks at 1,066 MB/s.
    /// - 6.8 us for small messages with RDMA, which needs no completion entry at the receiver. Here, with
    ///   send and receive, the latencies at the ends are such that 4 B take 7.5 us with [`COST_2003`].
    ///
    /// We chose 200 ns for a hop, four buffers for a port and a timeout of 4.096 us times 2^10.
    pub const CLUSTER_2003: Parameters = Parameters {
        tree: FatTree { arity: 8, levels: 1 },
        ranks_per_node: 1,
        mtu_bytes: 2048,
        packet_header_bytes: 26,
        link_byte_ps: 1_000,
        hop_ps: 200_000,
        buffer_packets: 4,
        host_byte_ps: 1_000,
        host_packet_ps: 300_000,
        send_ps: 2_900_000,
        receive_ps: 1_700_000,
        read_ps: 1_000_000,
        ack_timeout_ps: 4_194_304_000,
    };

    fn node(&self, rank: u32) -> u32 {
        rank / self.ranks_per_node
    }

    fn host_ps(&self, bytes: u32) -> Picoseconds {
        self.host_packet_ps + u64::from(bytes) * self.host_byte_ps
    }

    fn link_ps(&self, bytes: u32) -> Picoseconds {
        u64::from(bytes + self.packet_header_bytes) * self.link_byte_ps
    }
}

/// A slot is a pre-posted receive buffer of 2 KB, and a packet fills one slot. Source: MPI libraries of the
/// time posted buffers of 2 KB for each connection. The header sizes are those of [`weir_proto::wire`]. Every
/// header has room for credits, since Liu & Panda piggyback on any message.
pub const GEOMETRY: Geometry = Geometry {
    slot_bytes: 2048,
    max_packet_slots: 1,
    eager_header_bytes: 48,
    more_header_bytes: 32,
    remote_header_bytes: 56,
    piggyback_bytes: 0,
};

/// Prices of processors of 2.4 GHz with a 400 MHz bus, and of an MPI library that copies small messages. We
/// chose them; nobody published them: about half a microsecond for each call and each descriptor, and 1 GB/s
/// for copies, two of which a message needs.
pub const COST_2003: Cost = Cost {
    send_call_ps: 500_000,
    receive_call_ps: 300_000,
    packet_send_ps: 400_000,
    send_ps_per_kib: 0,
    packet_receive_ps: 600_000,
    credit_send_ps: 500_000,
    credit_receive_ps: 500_000,
    match_ps: 200_000,
    copy_ps_per_kib: 1_000_000,
    unexpected_copy_ps_per_kib: 1_000_000,
    combine_ps_per_kib: 0,
    get_ps: 800_000,
    poll_ps: 0,
    call_jitter_ps: 0,
};

/// weir's own header of each packet. Unit: bytes.
const MESSAGE_HEADER_BYTES: u32 = GEOMETRY.eager_header_bytes;
/// Extended headers of a read request (RETH) and of its answer (AETH). Unit: bytes.
const REQUEST_BYTES: u32 = 16;
const ANSWER_BYTES: u32 = 4;

/// Number of channels of a host: memory to adapter, adapter to leaf, adapter to memory. The ports of the
/// switches follow.
const HOST_CHANNELS: u32 = 3;
const FETCH: u32 = 0;
const UPLINK: u32 = 1;
const DELIVERY: u32 = 2;

/// The packet occupies no buffer.
const NOWHERE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketKind {
    /// A packet of the world for this rank.
    Train { train: TrainId, rank: u32 },
    /// Request of a remote read.
    Request { get: u32 },
    /// Data of a remote read.
    Answer { get: u32 },
}

/// A packet in the network.
#[derive(Clone, Copy, Debug)]
struct TransitPacket {
    kind: PacketKind,
    index: u32,
    /// Whether it is the last packet of its train or answer.
    last: bool,
    /// Node.
    to: u32,
    bytes: u32,
    /// The channel behind which the packet occupies a buffer.
    buffer_behind: u32,
    /// The time when the packet is ready for the channel in whose queue it stands.
    there: Moment,
}

const NEVER: Picoseconds = Picoseconds::MAX;

/// A remote read under way.
#[derive(Clone, Copy, Debug)]
struct Get {
    to: u32,
    from: u32,
    bytes: u64,
    number: u32,
}

/// An event that the network schedules for itself.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// An adapter may be able to fetch another packet from memory.
    Fetch(u32),
    /// Another channel may be able to carry another packet.
    Look(u32),
    /// A remote read begins.
    Begin(u32),
    /// The adapter that owns the memory of a remote read answers.
    Answer(u32),
}

/// The network.
#[derive(Clone, Debug)]
pub struct InfiniBand {
    parameters: Parameters,
    channels: Vec<Channel>,
    packets: Packets<TransitPacket>,
    /// Packets that adapters have yet to fetch. The last source of each adapter is its own, for answers to reads.
    sources: Sources,
    hosts: u32,
    /// By switch and host: the port by which a packet leaves.
    ports: Vec<u16>,
    gets: Vec<Get>,
    free_gets: Vec<u32>,
    packet_hops: u64,
}

impl InfiniBand {
    /// A network without packets.
    ///
    /// # Panics
    /// Panics if nodes or buffers have size 0, or if an MTU is smaller than a slot.
    pub fn new(parameters: Parameters) -> InfiniBand {
        let Parameters { tree, ranks_per_node, mtu_bytes, buffer_packets, .. } = parameters;
        assert!(buffer_packets >= 1 && ranks_per_node >= 1);
        assert!(
            mtu_bytes >= GEOMETRY.slot_bytes,
            "an MTU of {mtu_bytes}, a slot has {}",
            GEOMETRY.slot_bytes
        );
        let hosts = tree.hosts();
        let channel = |leads| Channel::new(leads, buffer_packets);
        // In the order of FETCH, UPLINK and DELIVERY, then the ports of the switches.
        let of_hosts = (0..hosts)
            .flat_map(|host| [LeadsTo::Adapter(host), LeadsTo::Leaf(tree.leaf(host)), LeadsTo::Memory]);
        let switch_ports = (0..tree.switches()).flat_map(|s| (0..tree.ports()).map(move |port| (s, port)));
        // No route leads up from the top level.
        let of_switches =
            switch_ports.map(|(s, port)| LeadsTo::Next(tree.end(s, port).unwrap_or(End::Host(NOWHERE))));
        let routes = (0..tree.switches()).flat_map(|s| (0..hosts).map(move |to| tree.port(s, to) as u16));
        InfiniBand {
            parameters,
            channels: of_hosts.chain(of_switches).map(channel).collect(),
            packets: Packets::default(),
            sources: Sources::new(hosts, ranks_per_node + 1),
            hosts,
            ports: routes.collect(),
            gets: Vec::new(),
            free_gets: Vec::new(),
            packet_hops: 0,
        }
    }

    /// The channel by which a packet for host `to` leaves `switch`.
    #[inline]
    fn switch_channel(&self, switch: u32, to: u32) -> u32 {
        let port = self.ports[(switch * self.hosts + to) as usize];
        self.hosts * HOST_CHANNELS + switch * self.parameters.tree.ports() + u32::from(port)
    }

    /// The channel that a packet for host `to` takes behind another one.
    #[inline]
    fn next_channel(&self, leads: LeadsTo, to: u32) -> u32 {
        match leads {
            // The adapter keeps a packet for its own host.
            LeadsTo::Adapter(host) => host * HOST_CHANNELS + if to == host { DELIVERY } else { UPLINK },
            LeadsTo::Leaf(switch) | LeadsTo::Next(End::Switch(switch)) => self.switch_channel(switch, to),
            LeadsTo::Next(End::Host(host)) => host * HOST_CHANNELS + DELIVERY,
            LeadsTo::Memory => unreachable!("memory is the end of a route"),
        }
    }

    /// Lets a channel carry its next packet, if the channel is idle and has room behind it. That frees a
    /// buffer, so that the channel before it may start as well, and so on back to an adapter.
    fn start(&mut self, now: Moment, mut channel: u32, outputs: &mut Outputs<Event>) {
        while let LeadsTo::Leaf(_) | LeadsTo::Next(_) | LeadsTo::Memory =
            self.channels[channel as usize].leads
        {
            let Some(held) = self.start_link(now, channel, outputs) else { return };
            self.channels[held as usize].room += 1;
            channel = held;
        }
        self.start_fetch(now, channel, outputs);
    }

    /// Lets an adapter fetch its next packet, if it can.
    fn start_fetch(&mut self, now: Moment, channel: u32, outputs: &mut Outputs<Event>) {
        let Channel { leads: LeadsTo::Adapter(host), free_at, room, .. } = self.channels[channel as usize]
        else {
            panic!("channel {channel} does not lead from memory");
        };
        if room == 0 {
            return; // a freed buffer starts the channel again
        }
        let look_at = if free_at > now.at {
            Some(free_at)
        } else {
            match self.sources.fetch(now.at, host) {
                Ok(Fetched { kind, index, last, to, bytes }) => {
                    let packet =
                        TransitPacket { kind, index, last, to, bytes, buffer_behind: NOWHERE, there: now };
                    let place = self.packets.add(packet);
                    let free_at = self.carry(now, channel, place, outputs);
                    self.sources.has_any(host).then_some(free_at)
                }
                Err(ready_at) => ready_at,
            }
        };
        let look = &mut self.channels[channel as usize].look;
        if let Some(at) = look_at
            && look.at > at
        {
            let sequence = outputs.draw(at);
            *look = Moment { at, sequence };
            outputs.remind_with_sequence(at, sequence, Event::Fetch(channel));
        }
    }

    /// Lets any other channel carry its next packet, if it can. Returns the channel behind which a buffer
    /// became free.
    #[inline]
    fn start_link(&mut self, now: Moment, channel: u32, outputs: &mut Outputs<Event>) -> Option<u32> {
        let state = &mut self.channels[channel as usize];
        state.forget_look(now);
        if state.room == 0 {
            return None; // a freed buffer starts the channel again
        }
        let mut held = None;
        if state.free_at > now.at {
            state.look_when_free(outputs);
        } else if let Some(first) = state.packet_queue.first()
            && !now.is_before(self.packets[first].there)
        {
            let place = self.packets.take_first(&mut state.packet_queue).expect("it was peeked");
            held = Some(self.packets[place].buffer_behind);
            self.carry(now, channel, place, outputs);
            let state = &mut self.channels[channel as usize];
            if state.packet_queue.first().is_some_and(|next| !now.is_before(self.packets[next].there)) {
                state.look_when_free(outputs);
            }
        }
        self.schedule_start(channel, outputs);
        held
    }

    /// Schedules the event at which a channel may start, after it has started a packet or could not.
    ///
    /// A packet needs no event of its own in two cases. If the channel is busy, the channel looks again when
    /// it is free. If there is no room behind the channel, a freed buffer starts it.
    #[inline]
    fn schedule_start(&mut self, channel: u32, outputs: &mut Outputs<Event>) {
        let state = &self.channels[channel as usize]; // most fields are rarely needed
        if state.room == 0 {
            return self.wait_for(channel, Moment::NEVER, outputs);
        }
        let look = &state.look;
        if state.free_at > look.at {
            return self.wait_for(channel, *look, outputs); // it has started something at that time, by another event
        }
        let first = state.packet_queue.first().map_or(&Moment::NEVER, |place| &self.packets[place].there);
        let planned = if look.is_never() || look.is_before(*first) {
            *first
        } else if state.last_there.at >= look.at {
            // A packet that becomes ready at that very time, with an earlier sequence, starts the channel.
            let there = self.first_since(state.packet_queue, look.at);
            there.filter(|there| there.is_before(*look)).unwrap_or(*look)
        } else {
            *look
        };
        self.wait_for(channel, planned, outputs);
    }

    /// Another packet entered the queue of a channel.
    #[inline]
    fn schedule_arrival(&mut self, channel: u32, there: Moment, outputs: &mut Outputs<Event>) {
        let Channel { look, due, room, .. } = self.channels[channel as usize];
        // A packet that is ready when the channel looks may start it before, if its sequence is an earlier one.
        let planned = if there.at < look.at && !look.is_never() { look } else { there };
        if room > 0 && planned.is_before(due) {
            self.wait_for(channel, planned, outputs);
        }
    }

    #[inline]
    fn wait_for(&mut self, channel: u32, planned: Moment, outputs: &mut Outputs<Event>) {
        let due = &mut self.channels[channel as usize].due;
        if *due != planned {
            *due = planned;
            if !planned.is_never() {
                let Moment { at, sequence } = planned;
                outputs.remind_with_sequence(at, sequence, Event::Look(channel));
            }
        }
    }

    /// The time when the first packet of a queue that is not ready before `at` becomes ready.
    #[cold]
    fn first_since(&self, packet_queue: PacketQueue, at: Picoseconds) -> Option<Moment> {
        self.packets.after(packet_queue).map(|packet| packet.there).find(|there| there.at >= at)
    }

    /// Puts a packet on a channel. Returns when the channel is free again.
    #[inline]
    fn carry(
        &mut self,
        now: Moment,
        channel: u32,
        place: PacketIndex,
        outputs: &mut Outputs<Event>,
    ) -> Picoseconds {
        let parameters = &self.parameters;
        self.packet_hops += 1;
        let TransitPacket { to, bytes, .. } = self.packets[place];
        let leads = self.channels[channel as usize].leads;
        let busy_ps = match leads {
            LeadsTo::Adapter(_) | LeadsTo::Memory => parameters.host_ps(bytes),
            _ => parameters.link_ps(bytes),
        };
        let free_at = now.at + busy_ps;
        self.channels[channel as usize].free_at = free_at;
        if matches!(leads, LeadsTo::Memory) {
            let packet = self.packets.remove(place);
            self.deliver(free_at, packet, outputs);
            return free_at;
        }
        let next = self.next_channel(leads, to);
        let there_at = match leads {
            LeadsTo::Adapter(_) => free_at,
            // The adapter at the end waits for the whole packet.
            _ if next == to * HOST_CHANNELS + DELIVERY => free_at + parameters.hop_ps,
            _ => now.at + parameters.hop_ps,
        };
        self.channels[channel as usize].room -= 1;
        let there = Moment { at: there_at, sequence: outputs.draw(there_at) };
        self.packets[place].buffer_behind = channel;
        self.packets[place].there = there;
        let state = &mut self.channels[next as usize];
        if state.packet_queue.is_empty() || state.last_there.is_before(there) {
            state.last_there = there;
            self.packets.append(&mut state.packet_queue, place);
        } else {
            self.packets.insert(&mut state.packet_queue, place, |other| there.is_before(other.there));
        }
        state.forget_look(now);
        self.schedule_arrival(next, there, outputs);
        free_at
    }

    /// A packet reached memory at `at`, or the adapter if the adapter itself handles it.
    fn deliver(&mut self, at: Picoseconds, packet: TransitPacket, outputs: &mut Outputs<Event>) {
        let Parameters { send_ps, receive_ps, read_ps, .. } = self.parameters;
        match packet.kind {
            PacketKind::Train { train, rank } => {
                let part = TrainPart { train, to: rank, first: packet.index, count: 1, spacing_ps: 0 };
                outputs.push(at + send_ps + receive_ps, Output::Arrived(part));
            }
            PacketKind::Request { get } => outputs.remind(at + read_ps, Event::Answer(get)),
            PacketKind::Answer { get } if packet.last => {
                let Get { to, number, .. } = self.gets[get as usize];
                self.free_gets.push(get);
                outputs.push(at + send_ps + receive_ps, Output::GetDone { to, number });
            }
            PacketKind::Answer { .. } => {}
        }
    }

    /// The packets that an adapter fetches for an injection. Returns the host, its source, and the packets.
    fn outgoing(&self, now: Picoseconds, injection: Injection) -> (u32, u32, Outgoing) {
        let Injection { train, from, to, first, packets, payload_bytes, spacing_ps } = injection;
        let bytes = payload_bytes.div_ceil(u64::from(packets)) as u32 + MESSAGE_HEADER_BYTES;
        let outgoing = Outgoing {
            kind: PacketKind::Train { train, rank: to },
            to: self.parameters.node(to),
            next: first,
            count: first + packets,
            packet_bytes: bytes,
            last_bytes: bytes,
            ready_at: now + spacing_ps, // a packet is there when its descriptor has been written
            spacing_ps,
        };
        (self.parameters.node(from), from % self.parameters.ranks_per_node, outgoing)
    }

    /// An adapter sends packets of its own.
    fn send_own(&mut self, now: Picoseconds, host: u32, outgoing: Outgoing, outputs: &mut Outputs<Event>) {
        let own = self.parameters.ranks_per_node;
        self.sources.add(host, own, outgoing);
        let moment = Moment { at: now, sequence: outputs.present() };
        self.start_fetch(moment, host * HOST_CHANNELS + FETCH, outputs);
    }
}

impl Network for InfiniBand {
    type Event = Event;

    fn geometry(&self) -> Geometry {
        GEOMETRY
    }

    fn ranks_per_host(&self) -> u32 {
        self.parameters.ranks_per_node
    }

    fn inject(&mut self, now: Picoseconds, injection: Injection, outputs: &mut Outputs<Event>) -> Hold {
        let Injection { packets, spacing_ps, .. } = injection;
        let (host, place, outgoing) = self.outgoing(now, injection);
        self.sources.add(host, place, outgoing);
        let moment = Moment { at: now, sequence: outputs.present() };
        self.start_fetch(moment, host * HOST_CHANNELS + FETCH, outputs);
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
        let get = Get { to, from, bytes, number };
        let index = match self.free_gets.pop() {
            Some(index) => {
                self.gets[index as usize] = get;
                index
            }
            None => {
                self.gets.push(get);
                self.gets.len() as u32 - 1
            }
        };
        outputs.remind(now, Event::Begin(index));
    }

    fn handle(&mut self, now: Picoseconds, event: Event, outputs: &mut Outputs<Event>) {
        match event {
            Event::Fetch(channel) => {
                outputs.act_as(Source::element(channel));
                let now = Moment { at: now, sequence: outputs.present() };
                let look = &mut self.channels[channel as usize].look;
                if look.at == now.at {
                    *look = Moment::NEVER;
                }
                self.start_fetch(now, channel, outputs);
            }
            Event::Look(channel) => {
                outputs.act_as(Source::element(channel));
                let now = Moment { at: now, sequence: outputs.present() };
                let due = &mut self.channels[channel as usize].due;
                if *due == now {
                    *due = Moment::NEVER;
                    self.start(now, channel, outputs);
                }
            }
            Event::Begin(get) => {
                let Get { to, from, .. } = self.gets[get as usize];
                let (host, owner) = (self.parameters.node(to), self.parameters.node(from));
                outputs.act_as(Source::element(host * HOST_CHANNELS + FETCH));
                let request = Outgoing {
                    kind: PacketKind::Request { get },
                    to: owner,
                    next: 0,
                    count: 1,
                    packet_bytes: REQUEST_BYTES,
                    last_bytes: REQUEST_BYTES,
                    ready_at: now,
                    spacing_ps: 0,
                };
                self.send_own(now, host, request, outputs);
            }
            Event::Answer(get) => {
                let Get { to, from, bytes, .. } = self.gets[get as usize];
                let (host, owner) = (self.parameters.node(to), self.parameters.node(from));
                outputs.act_as(Source::element(owner * HOST_CHANNELS + FETCH));
                let mtu_bytes = u64::from(self.parameters.mtu_bytes);
                let count = bytes.div_ceil(mtu_bytes).max(1);
                let last_bytes = (bytes - (count - 1) * mtu_bytes) as u32;
                let answer = Outgoing {
                    kind: PacketKind::Answer { get },
                    to: host,
                    next: 0,
                    count: count as u32,
                    packet_bytes: self.parameters.mtu_bytes + ANSWER_BYTES,
                    last_bytes: last_bytes + ANSWER_BYTES,
                    ready_at: now,
                    spacing_ps: 0,
                };
                self.send_own(now, owner, answer, outputs);
            }
        }
    }

    fn one_way_ps(&self, from: u32, to: u32) -> Picoseconds {
        // From adapter to adapter, without memory and processors.
        let parameters = &self.parameters;
        let links = parameters.tree.distance(parameters.node(from), parameters.node(to));
        2 * parameters.host_packet_ps
            + u64::from(links) * parameters.hop_ps
            + parameters.link_ps(ANSWER_BYTES)
    }

    fn repair_ps(&self) -> Option<Picoseconds> {
        // End to end. The model assumes that no later packet shows the gap before the timeout.
        Some(self.parameters.ack_timeout_ps)
    }

    fn packet_hops(&self) -> u64 {
        self.packet_hops
    }
}
