//! Hosts: the ranks of a node share a NIC.
//!
//! The network model has the queues, DMA and links of the NIC. This file adds a processor to it, as Myrinet's LANai
//! has, if the world sets its prices ([`NicCost`]). The processor does one thing at a time for all ranks of the host:
//! it handles a packet, a descriptor or the end of a remote get. A NIC without prices, NIC machines and endpoints takes
//! no time and costs no event.
//!
//! A NIC can also run NIC machines ([`NicMachine`]) while the processors of the ranks compute. A NIC machine keeps a
//! packet, lets it pass, or sends copies to several ranks. `nic_endpoint.rs` has the endpoints that a NIC drives.
//!
//! ```text
//! rank 4 --writes a packet, 100 ns--> NIC of host 1 --host_read_ps, packet_send_ps--> network
//! network --> NIC of host 2 --packet_receive_ps, asks its NIC machines, host_write_ps--> mailbox of rank 9
//! ```
//! The queue in front of the processor has no limit. So only the network can hold a rank back.

use std::fmt;
use std::ops::Range;

use weir_proto::{Instant, Packet};

use super::rank_state::instant;
use super::{Event, World};
use crate::Picoseconds;
use crate::cost::NicCost;
use crate::network::{CopiesInjection, Hold, Injection, Network, TrainId, TrainPart};

/// A packet that a NIC has received.
#[derive(Clone, Copy, Debug)]
pub struct NicArrival {
    /// The time when the processor of the NIC has received it.
    pub at: Instant,
    /// Sending rank.
    pub from: u32,
    /// The rank of this host for which it is.
    pub to: u32,
    /// The packet. The simulator carries no payload.
    pub packet: Packet,
}

/// A packet that a NIC sends by itself, to one or several ranks: one injection, and a copy for each rank.
#[derive(Clone, Debug, PartialEq)]
pub struct NicTransmit {
    /// The rank that receivers see as its sender. It has sent to each of them before.
    pub from: u32,
    /// Receiving ranks, each with the packet that it gets. There is at least one.
    pub copies: Vec<(u32, Packet)>,
}

/// A machine that a NIC runs. It is asked about each packet that enters its host, before the mailbox. A rank reaches the
/// machine of its own host by a packet to a rank of that host.
pub trait NicMachine {
    /// Handles a packet. Appends what the NIC then sends. Returns whether the machine keeps the packet, so that the
    /// rank does not get it.
    fn arrived(&mut self, arrival: &NicArrival, transmits: &mut Vec<NicTransmit>) -> bool;
}

/// The NIC of a host.
#[derive(Default)]
struct Nic {
    /// The processor is busy until this time.
    free_at: Picoseconds,
    machines: Vec<Box<dyn NicMachine>>,
}

impl Nic {
    /// The processor works for `ps`, as soon as it is free. Returns when that is done.
    fn serve(&mut self, now: Picoseconds, ps: Picoseconds) -> Picoseconds {
        self.free_at = self.free_at.max(now) + ps;
        self.free_at
    }
}

/// A node, which its ranks share.
struct Host {
    ranks: Range<u32>,
    nic: Nic,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Host { ranks, nic: Nic { free_at, machines } } = self;
        let count = machines.len();
        write!(f, "ranks {ranks:?}, NIC free at {free_at} ps, {count} machines")
    }
}

/// The hosts of a world.
#[derive(Debug)]
pub(super) struct Hosts {
    ranks: u32,
    ranks_per_host: u32,
    cost: NicCost,
    /// Empty if no NIC has a processor or a machine: a large world need not store hosts that do nothing.
    hosts: Vec<Host>,
    has_machines: bool,
    /// Copies that NICs will send, each with the rank of the host that acts. Events name them by index, because events must
    /// be small.
    copies: Vec<(u32, Vec<(TrainId, u32)>)>,
    free_copies: Vec<u32>,
}

impl Hosts {
    /// The hosts of `ranks` ranks. `cost`: prices of the processors of NICs, if NICs have processors. `has_endpoints`: NICs
    /// drive endpoints.
    pub fn new(ranks: u32, ranks_per_host: u32, cost: Option<NicCost>, has_endpoints: bool) -> Hosts {
        let mut hosts = Hosts {
            ranks,
            ranks_per_host,
            cost: cost.unwrap_or(NicCost::FREE),
            hosts: Vec::new(),
            has_machines: false,
            copies: Vec::new(),
            free_copies: Vec::new(),
        };
        if cost.is_some() || has_endpoints {
            hosts.add_nics();
        }
        hosts
    }

    fn add_nics(&mut self) {
        if self.hosts.is_empty() {
            let starts = (0..self.ranks).step_by(self.ranks_per_host as usize);
            let end = |start: u32| start.saturating_add(self.ranks_per_host).min(self.ranks);
            self.hosts = starts.map(|start| Host { ranks: start..end(start), nic: Nic::default() }).collect();
        }
    }

    /// Whether packets pass NICs that take time or run machines.
    #[inline]
    pub fn has_nics(&self) -> bool {
        !self.hosts.is_empty()
    }

    /// Whether NICs may keep packets.
    pub fn has_machines(&self) -> bool {
        self.has_machines
    }

    /// Prices of the processors of NICs.
    pub fn cost(&self) -> &NicCost {
        &self.cost
    }

    fn nic(&mut self, rank: u32) -> &mut Nic {
        let Host { ranks, nic } = &mut self.hosts[(rank / self.ranks_per_host) as usize];
        debug_assert!(ranks.contains(&rank));
        nic
    }
}

impl<N: Network> World<N> {
    /// Adds a machine to the NIC of the host of `rank`. The external checks end with it: they do not know packets that a
    /// NIC keeps or sends.
    #[must_use]
    pub fn with_nic_machine(mut self, rank: u32, machine: Box<dyn NicMachine>) -> World<N> {
        self.hosts.add_nics();
        self.hosts.has_machines = true;
        self.hosts.nic(rank).machines.push(machine);
        self.checked(false)
    }

    /// A train leaves its rank: the first packet is there when it has been written.
    pub(super) fn pass_nic(&mut self, now: Picoseconds, train: TrainId) {
        let Injection { spacing_ps, .. } = self.trains.injection(train);
        self.schedule(now + spacing_ps, Event::WrittenToNic { train, index: 0 });
    }

    /// A rank has written a packet of a train. Its NIC sends it when the processor of the NIC has time.
    pub(super) fn written_to_nic(&mut self, now: Picoseconds, train: TrainId, index: u32) {
        let Injection { from, packets, payload_bytes, spacing_ps, .. } = self.trains.injection(train);
        self.act_as(from);
        let NicCost { host_read_ps, packet_send_ps, copy_send_ps, .. } = self.hosts.cost;
        let header_ps =
            if self.trains.take_copy(train) { copy_send_ps } else { host_read_ps + packet_send_ps };
        let price_ps = header_ps + self.hosts.cost.send_bytes_ps(payload_bytes.div_ceil(u64::from(packets)));
        // Packets that are written at the same time stay together, so that no later train comes between them.
        let next = if spacing_ps == 0 { packets } else { index + 1 };
        for index in index..next {
            let at = self.hosts.nic(from).serve(now, price_ps);
            self.schedule(at, Event::LeaveNic { train, index });
        }
        if next < packets {
            self.schedule(now + spacing_ps, Event::WrittenToNic { train, index: next });
        }
    }

    /// The processor of a NIC has sent a packet.
    pub(super) fn leave_nic(&mut self, now: Picoseconds, train: TrainId, index: u32) {
        let Injection { from, packets, payload_bytes, .. } = self.trains.injection(train);
        self.act_as(from);
        let payload_bytes = payload_bytes.div_ceil(u64::from(packets));
        let injection = Injection {
            first: index,
            packets: 1,
            payload_bytes,
            spacing_ps: 0,
            ..self.trains.injection(train)
        };
        let hold = self.network.inject(now, injection, &mut self.outputs);
        // The rank has handed the packet over. Only back-pressure of the network reaches it.
        if hold == Hold::UntilReleased {
            self.rank_states[from as usize].hold(hold);
        }
        self.take_outputs();
    }

    /// Packets have reached a NIC. Its processor receives them, its machines keep them or let them pass.
    pub(super) fn at_nic(&mut self, now: Picoseconds, index: u32) {
        let part = self.take_part(index);
        self.act_as(part.to);
        if part.count > 1 {
            let rest = TrainPart { first: part.first + 1, count: part.count - 1, ..part };
            let rest = self.note_part(rest);
            self.schedule(now + part.spacing_ps, Event::AtNic(rest));
        }
        let part = TrainPart { count: 1, spacing_ps: 0, ..part };
        let done_at = self.nic_receives(now, part.to);
        if self.is_of_nic_endpoint(part) {
            return self.nic_endpoint_receives(now, done_at, part);
        }
        if self.hosts.has_machines && self.nic_keeps(done_at, part) {
            self.drop_packets(now, part);
        } else {
            let done_at = self.nic_writes_to_host(done_at, part.to);
            let index = self.note_part(part);
            self.schedule(done_at, Event::PartArrived(index));
        }
    }

    /// The processor of the NIC of `rank` works for `ps`. Returns when it has.
    pub(super) fn nic_works(&mut self, now: Picoseconds, rank: u32, ps: Picoseconds) -> Picoseconds {
        self.hosts.nic(rank).serve(now, ps)
    }

    /// The processor of the NIC of `rank` receives a packet or a descriptor. Returns when it has.
    pub(super) fn nic_receives(&mut self, now: Picoseconds, rank: u32) -> Picoseconds {
        let price_ps = self.hosts.cost.packet_receive_ps;
        self.hosts.nic(rank).serve(now, price_ps)
    }

    /// The processor of the NIC of `rank` sends a packet. Returns when it has.
    pub(super) fn nic_sends(&mut self, now: Picoseconds, rank: u32) -> Picoseconds {
        let price_ps = self.hosts.cost.packet_send_ps;
        self.hosts.nic(rank).serve(now, price_ps)
    }

    /// The processor of the NIC of `rank` puts a packet or the end of an operation into the memory of the host. Returns
    /// when it has.
    pub(super) fn nic_writes_to_host(&mut self, now: Picoseconds, rank: u32) -> Picoseconds {
        let price_ps = self.hosts.cost.host_write_ps;
        self.hosts.nic(rank).serve(now, price_ps)
    }

    /// Asks the machines of a NIC about a packet, and sends what they want sent. Returns whether one keeps it.
    fn nic_keeps(&mut self, at: Picoseconds, part: TrainPart) -> bool {
        let from = self.trains.source(part.train);
        let packet = self.trains.packet(part.train, part.first);
        let arrival = NicArrival { at: instant(at), from, to: part.to, packet };
        let mut transmits = Vec::new();
        let mut machines = std::mem::take(&mut self.hosts.nic(part.to).machines);
        let keeps = machines.iter_mut().any(|machine| machine.arrived(&arrival, &mut transmits));
        self.hosts.nic(part.to).machines = machines;
        for NicTransmit { from, copies } in transmits {
            let copies: Vec<_> = copies
                .iter()
                .map(|(to, packet)| (self.trains.begin(from, *to, packet, 0, at), *to))
                .collect();
            let NicCost { packet_send_ps, copy_send_ps, .. } = self.hosts.cost;
            let price_ps = packet_send_ps + copy_send_ps * (copies.len() as u64).saturating_sub(1);
            let leaves_at = self.hosts.nic(part.to).serve(at, price_ps) - price_ps;
            let index = match self.hosts.free_copies.pop() {
                Some(index) => index,
                None => {
                    self.hosts.copies.push((0, Vec::new()));
                    self.hosts.copies.len() as u32 - 1
                }
            };
            self.hosts.copies[index as usize] = (part.to, copies);
            self.schedule(leaves_at, Event::CopiesLeaveNic(index));
        }
        keeps
    }

    /// The processor of a NIC begins to send copies of a packet. No rank waits for them, also if the network holds
    /// their sender back.
    pub(super) fn copies_leave_nic(&mut self, now: Picoseconds, index: u32) {
        let (host_rank, copies) = std::mem::take(&mut self.hosts.copies[index as usize]);
        self.act_as(host_rank);
        self.hosts.free_copies.push(index);
        let Some(&(train, _)) = copies.first() else { return };
        let Injection { from, payload_bytes, .. } = self.trains.injection(train);
        let NicCost { packet_send_ps: write_ps, copy_send_ps: copy_ps, .. } = self.hosts.cost;
        let injection = CopiesInjection { from, payload_bytes, write_ps, copy_ps, copies: &copies };
        self.network.inject_copies(now, &injection, &mut self.outputs);
        self.take_outputs();
    }

    /// The last byte of a remote get has reached a NIC.
    pub(super) fn get_at_nic(&mut self, now: Picoseconds, to: u32, number: u32) {
        self.act_as(to);
        let price_ps = self.hosts.cost.get_ps;
        let done_at = self.hosts.nic(to).serve(now, price_ps);
        self.schedule(done_at, Event::GetDone { to, number });
    }
}
