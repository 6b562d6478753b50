//! An endpoint that the NIC of a host drives for a rank, with the offloaded machines beside it.
//!
//! The rank keeps its own endpoint for messages. This one has paths and credits of its own, to the NICs of other ranks. So no
//! processor of a rank takes part in an offloaded operation, except to ask for it and to see its end. The processor of the
//! NIC takes its own prices, one packet at a time, for all ranks of the host.
//!
//! ```text
//! rank 4  writes a descriptor --> NIC of host 1 --packet_receive_ps, asks the machine, packet_send_ps--> network
//! network --> NIC of host 2 --packet_receive_ps, changes the word of rank 9, packet_send_ps--> network
//! network --> NIC of host 1 --packet_receive_ps--> rank 4 sees the end of its operation
//! ```

use std::collections::{BTreeMap, VecDeque};

use weir_proto::{Action, Endpoint, Event as ProtoEvent, MachineEvent, Packet, Peer};

use super::peer_numbers::PeerNumbers;
use super::rank_state::drive;
use super::word_machine::{Fetch, Results, WordMachine};
use super::{Event, World, WorldSpec};
use crate::Picoseconds;
use crate::network::{Network, TrainPart};
use crate::program::Status;

/// The endpoint of a rank on its NIC.
pub(super) struct NicEndpoint {
    machine: Endpoint,
    words: WordMachine,
    peers: PeerNumbers,
    /// Results that the rank has not seen, by request.
    ended: BTreeMap<u32, Status>,
}

impl NicEndpoint {
    fn new(spec: &WorldSpec) -> NicEndpoint {
        NicEndpoint {
            machine: Endpoint::new(spec.config),
            words: WordMachine::default(),
            peers: PeerNumbers::with_ranks(spec.ranks),
            ended: BTreeMap::new(),
        }
    }

    /// The NIC of rank `from` begins to send to us.
    fn attached(&mut self, now: Picoseconds, from: u32, spec: &WorldSpec) {
        let peer = Peer(self.peers.number(from));
        let (quota_slots, start_slots) = (spec.quota_slots, spec.start_slots());
        let event = ProtoEvent::Attached { peer, quota_slots, start_slots, epoch: 0 };
        let mut actions = Vec::new();
        drive(&mut self.machine, now, event, &mut actions);
        assert!(actions.is_empty(), "an attach causes no action");
    }
}

/// The endpoints of all NICs, and what is on its way to them.
#[derive(Default)]
pub(super) struct NicEndpoints {
    by_rank: BTreeMap<u32, NicEndpoint>,
    /// Trains of these endpoints that are in the network, by number.
    trains: BTreeMap<u32, ()>,
    /// Descriptors on their way from a rank to its NIC. Events name them by index.
    posted: Vec<Option<(u32, Fetch)>>,
}

impl NicEndpoints {
    /// Names of everything that is left at the end.
    pub fn leftovers(&self) -> Option<String> {
        let left = |(rank, endpoint): (&u32, &NicEndpoint)| {
            let quiet = endpoint.machine.is_quiescent() && endpoint.words.is_quiescent();
            (!quiet || !endpoint.ended.is_empty())
                .then(|| format!("at the end the NIC of rank {rank} has pending work"))
        };
        self.by_rank.iter().find_map(left)
    }
}

/// What the NIC handles for a rank.
enum Input {
    Posted(Fetch),
    Arrived { from: u32, packet: Packet },
}

impl<N: Network> World<N> {
    /// A rank has written a descriptor: its NIC has it from `at` on.
    pub(super) fn post_to_nic(&mut self, at: Picoseconds, rank: u32, fetch: Fetch) {
        let posted = &mut self.nic_endpoints.posted;
        let free = posted.iter().position(Option::is_none).unwrap_or_else(|| {
            posted.push(None);
            posted.len() - 1
        });
        posted[free] = Some((rank, fetch));
        self.schedule(at, Event::PostedToNic(free as u32));
    }

    /// The NIC of a rank reads a descriptor, which costs it as much as a packet.
    pub(super) fn posted_to_nic(&mut self, now: Picoseconds, index: u32) {
        let posted = self.nic_endpoints.posted[index as usize].take();
        let (rank, fetch) = posted.expect("a descriptor is read once");
        self.act_as(rank);
        let done_at = self.nic_receives(now, rank);
        self.drive_nic_endpoint(done_at, rank, Input::Posted(fetch));
    }

    /// Whether a train is one of these endpoints.
    pub(super) fn is_of_nic_endpoint(&self, part: TrainPart) -> bool {
        self.nic_endpoints.trains.contains_key(&part.train.0)
    }

    /// The processor of the NIC has received a packet for the endpoint there at `done_at`.
    pub(super) fn nic_endpoint_receives(&mut self, now: Picoseconds, done_at: Picoseconds, part: TrainPart) {
        self.nic_endpoints.trains.remove(&part.train.0);
        let from = self.trains.source(part.train);
        let packet = self.trains.packet(part.train, part.first);
        self.drop_packets(now, part);
        self.trace.note(done_at);
        self.trace.note(u64::from(part.to) << 32 | u64::from(from));
        self.drive_nic_endpoint(done_at, part.to, Input::Arrived { from, packet });
    }

    /// The rank learns that an operation on its NIC has ended.
    pub(super) fn fetch_done(&mut self, now: Picoseconds, rank: u32, request: u32) {
        self.act_as(rank);
        let ended = self.nic_endpoints.by_rank.get_mut(&rank).and_then(|nic| nic.ended.remove(&request));
        let status = ended.expect("an operation ends once");
        self.rank_states[rank as usize].fetched(request, status);
        self.wake(now, rank);
    }

    /// Passes an event to the endpoint of `rank` on its NIC, or to the machines beside it, and does what they want done.
    fn drive_nic_endpoint(&mut self, at: Picoseconds, rank: u32, input: Input) {
        let spec = self.spec;
        let by_rank = &mut self.nic_endpoints.by_rank;
        let mut nic = by_rank.remove(&rank).unwrap_or_else(|| NicEndpoint::new(&spec));
        let (mut actions, mut events) = (Vec::new(), VecDeque::new());
        match input {
            Input::Posted(fetch) => {
                let peer = Peer(nic.peers.number(fetch.to));
                let results = nic.words.handle(fetch.posted(peer));
                self.take_results(at, rank, &mut nic, results, &mut events);
            }
            Input::Arrived { from, packet } => {
                let from = Peer(nic.peers.number(from));
                drive(&mut nic.machine, at, ProtoEvent::Arrived { from, packet: &packet }, &mut actions);
            }
        }
        loop {
            for action in actions.drain(..) {
                self.perform_on_nic(at, rank, &mut nic, action, &mut events);
            }
            let Some(event) = events.pop_front() else { break };
            drive(&mut nic.machine, at, event, &mut actions);
        }
        self.nic_endpoints.by_rank.insert(rank, nic);
    }

    fn take_results(
        &mut self,
        at: Picoseconds,
        rank: u32,
        nic: &mut NicEndpoint,
        results: Results,
        events: &mut VecDeque<ProtoEvent<'static>>,
    ) {
        events.extend(results.outgoing.into_iter().map(ProtoEvent::Outgoing));
        for (request, status) in results.ended {
            nic.ended.insert(request.0, status);
            self.schedule(at, Event::FetchDone { rank, request: request.0 });
        }
    }

    fn perform_on_nic(
        &mut self,
        at: Picoseconds,
        rank: u32,
        nic: &mut NicEndpoint,
        action: Action,
        events: &mut VecDeque<ProtoEvent<'static>>,
    ) {
        match action {
            Action::Transmit { to, packet, .. } => {
                let train = self.trains.begin(rank, nic.peers.rank(to.0), &packet, 0, at);
                self.nic_endpoints.trains.insert(train.0, ());
                let leaves_at = self.nic_sends(at, rank);
                self.schedule(leaves_at, Event::LeaveNic { train, index: 0 });
            }
            Action::Connect { to } => {
                let spec = self.spec;
                let other = self.nic_endpoints.by_rank.entry(nic.peers.rank(to.0));
                other.or_insert_with(|| NicEndpoint::new(&spec)).attached(at, rank, &spec);
                events.push_back(ProtoEvent::Connected {
                    peer: to,
                    quota_slots: spec.quota_slots,
                    start_slots: spec.start_slots(),
                    credit_slots: spec.config.credit_slots,
                    epoch: 0,
                });
            }
            // As at a mailbox without flow control: there are as many slots as needed.
            Action::AskRoom { to, .. } => events.push_back(ProtoEvent::Room { peer: to, slots: 1 << 30 }),
            Action::PassOn { from, number, packet, payload_bytes } => {
                let event = MachineEvent::Arrived { from, number, packet, payload_bytes };
                let results = nic.words.handle(event);
                self.take_results(at, rank, nic, results, events);
            }
            Action::Retire => {} // its slots are in the NIC
            other => panic!("{other:?} on a NIC that has only words"),
        }
    }
}
