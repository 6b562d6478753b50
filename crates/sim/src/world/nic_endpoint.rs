//! An endpoint that the NIC of a host drives for a rank, with the offloaded machines beside it.
//!
//! The rank keeps its own endpoint for messages. This one has paths and credits of its own, to the NICs of other ranks. So no
//! processor of a rank takes part in an offloaded operation, except to ask for it and to see its end. The processor of the
//! NIC takes its own prices, one packet at a time, for all ranks of the host. It also reports the timers. The end of a
//! rank ends its endpoint here, and the NICs of all others learn of it as their ranks do.
//!
//! ```text
//! rank 4  writes a descriptor --> NIC of host 1 --packet_receive_ps, asks the machine, packet_send_ps--> network
//! network --> NIC of host 2 --packet_receive_ps, word_ps for the word of rank 9, packet_send_ps--> network
//! network --> NIC of host 1 --packet_receive_ps, host_write_ps--> rank 4 sees the end of its operation
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use weir_proto::offload::{OffloadCommand, Offloaded};
use weir_proto::{
    Action, Body, Endpoint, Event as ProtoEvent, MachineEvent, Packet, Peer, PeerFault, Timer, TimerQueue,
};

use super::machines::{Machines, Results};
use super::peer_numbers::PeerNumbers;
use super::rank_state::{Post, drive, instant};
use super::{Event, World, WorldSpec};
use crate::Picoseconds;
use crate::network::{Network, TrainPart};
use crate::program::Status;

/// The endpoint of a rank on its NIC.
pub(super) struct NicEndpoint {
    machine: Endpoint,
    machines: Machines,
    peers: PeerNumbers,
    timers: TimerQueue<Timer>,
    /// The time for which an event of the first timer is scheduled.
    timer_at: Option<Picoseconds>,
    /// Results that the rank has not seen, by request.
    ended: BTreeMap<u32, Status>,
}

impl NicEndpoint {
    fn new(spec: &WorldSpec) -> NicEndpoint {
        NicEndpoint {
            machine: Endpoint::new(spec.config),
            machines: Machines::default(),
            peers: PeerNumbers::with_ranks(spec.ranks),
            timers: TimerQueue::default(),
            timer_at: None,
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

    /// The time of the first timer of the endpoint and the machines.
    fn first_timer(&self) -> Option<Picoseconds> {
        let timers = [self.timers.earliest(), self.machines.first_timer()];
        timers.into_iter().flatten().min().map(|at| at.0 * 1000)
    }
}

/// The endpoints of all NICs, and what is on its way to them.
#[derive(Default)]
pub(super) struct NicEndpoints {
    by_rank: BTreeMap<u32, NicEndpoint>,
    /// Trains of these endpoints that are in the network, by number.
    trains: BTreeSet<u32>,
    /// Descriptors on their way from a rank to its NIC. Events name them by index.
    posted: Vec<Option<(u32, Post)>>,
}

impl NicEndpoints {
    /// The machines that the NIC runs for a rank.
    pub fn machines(&mut self, rank: u32, spec: &WorldSpec) -> &mut Machines {
        &mut self.by_rank.entry(rank).or_insert_with(|| NicEndpoint::new(spec)).machines
    }

    /// Names of everything that is left at the end.
    pub fn leftovers(&self) -> Option<String> {
        let left = |(rank, nic): (&u32, &NicEndpoint)| {
            let quiet = nic.machine.is_quiescent() && nic.machines.is_quiescent() && nic.timers.is_empty();
            (!quiet || !nic.ended.is_empty())
                .then(|| format!("at the end the NIC of rank {rank} has pending work"))
        };
        self.by_rank.iter().find_map(left)
    }

    /// The result of an operation, for its rank.
    pub fn take_ended(&mut self, rank: u32, request: u32) -> Option<Status> {
        self.by_rank.get_mut(&rank)?.ended.remove(&request)
    }

    /// The rank has crashed: its endpoint ends with it.
    pub fn crash(&mut self, rank: u32) {
        self.by_rank.remove(&rank);
    }
}

/// What the NIC handles for a rank.
enum Input {
    Posted(Post),
    Arrived { from: u32, packet: Packet, payload: Vec<u8> },
    Lost { rank: u32, fault: PeerFault },
    TimerExpired,
}

/// An endpoint that handles an input, and what remains to be done.
struct Work {
    rank: u32,
    /// The processor of the NIC has done everything so far at this time.
    at: Picoseconds,
    nic: NicEndpoint,
    events: VecDeque<ProtoEvent<'static>>,
    /// The payload of the packet that has arrived.
    payload: Vec<u8>,
}

impl<N: Network> World<N> {
    /// A rank has written a descriptor: its NIC has it from `at` on.
    pub(super) fn post_to_nic(&mut self, at: Picoseconds, rank: u32, post: Post) {
        let posted = &mut self.nic_endpoints.posted;
        let free = posted.iter().position(Option::is_none).unwrap_or_else(|| {
            posted.push(None);
            posted.len() - 1
        });
        posted[free] = Some((rank, post));
        self.schedule(at, Event::PostedToNic(free as u32));
    }

    /// The NIC of a rank reads a descriptor, which costs it as much as a packet.
    pub(super) fn posted_to_nic(&mut self, now: Picoseconds, index: u32) {
        let posted = self.nic_endpoints.posted[index as usize].take();
        let (rank, post) = posted.expect("a descriptor is read once");
        self.act_as(rank);
        let done_at = self.nic_receives(now, rank);
        self.drive_nic_endpoint(done_at, rank, Input::Posted(post));
    }

    /// Whether a train is one of these endpoints.
    pub(super) fn is_of_nic_endpoint(&self, part: TrainPart) -> bool {
        self.nic_endpoints.trains.contains(&part.train.0)
    }

    /// The processor of the NIC has received a packet for the endpoint there at `done_at`.
    pub(super) fn nic_endpoint_receives(&mut self, now: Picoseconds, done_at: Picoseconds, part: TrainPart) {
        self.nic_endpoints.trains.remove(&part.train.0);
        let from = self.trains.source(part.train);
        let packet = self.trains.packet(part.train, part.first);
        let payload = self.trains.take_payload(part.train);
        self.drop_packets(now, part);
        self.trace.note(done_at);
        self.trace.note(u64::from(part.to) << 32 | u64::from(from));
        self.drive_nic_endpoint(done_at, part.to, Input::Arrived { from, packet, payload });
    }

    /// The NIC of `rank` learns that it has lost that of `peer`, after all packets that have reached it by now.
    pub(super) fn nic_lost(&mut self, now: Picoseconds, rank: u32, peer: u32, fault: PeerFault) {
        self.act_as(rank);
        let at = self.nic_works(now, rank, 0);
        self.drive_nic_endpoint(at, rank, Input::Lost { rank: peer, fault });
    }

    /// A timer of the endpoint of `rank` on its NIC may have expired.
    pub(super) fn nic_timer_expired(&mut self, now: Picoseconds, rank: u32) {
        let nic = self.nic_endpoints.by_rank.get_mut(&rank);
        if nic.and_then(|nic| nic.timer_at.take_if(|at| *at <= now)).is_none() {
            return; // an earlier event has replaced this one
        }
        self.act_as(rank);
        let at = self.nic_works(now, rank, 0);
        self.drive_nic_endpoint(at, rank, Input::TimerExpired);
    }

    /// The rank learns that an operation on its NIC has ended.
    pub(super) fn offloaded_ended(&mut self, now: Picoseconds, rank: u32, request: u32) {
        let Some(status) = self.nic_endpoints.take_ended(rank, request) else { return }; // the rank has crashed
        self.act_as(rank);
        self.rank_states[rank as usize].offloaded_ended(request, status);
        self.wake(now, rank);
    }

    /// Passes an event to the endpoint of `rank` on its NIC, or to the machines beside it, and does what they want done.
    fn drive_nic_endpoint(&mut self, at: Picoseconds, rank: u32, input: Input) {
        if self.has_crashed(rank) {
            return;
        }
        let nic = self.nic_endpoints.by_rank.remove(&rank).unwrap_or_else(|| NicEndpoint::new(&self.spec));
        let mut work = Work { rank, at, nic, events: VecDeque::new(), payload: Vec::new() };
        let mut actions = Vec::new();
        match input {
            Input::Posted(Post { request, call }) => {
                let NicEndpoint { machines, peers, .. } = &mut work.nic;
                let results = machines.post(instant(at), request, call, |rank| Peer(peers.number(rank)));
                self.take_results(&mut work, results);
            }
            Input::Arrived { from, packet, payload } => {
                work.payload = payload;
                let from = Peer(work.nic.peers.number(from));
                drive(&mut work.nic.machine, at, ProtoEvent::Arrived { from, packet: &packet }, &mut actions);
            }
            Input::Lost { rank, fault } => {
                let peer = Peer(work.nic.peers.number(rank));
                work.events.push_back(ProtoEvent::Lost { peer, fault });
            }
            Input::TimerExpired => {
                while let Some(timer) = work.nic.timers.take_expired(instant(at)) {
                    work.events.push_back(ProtoEvent::TimerExpired(timer));
                }
                while let Some(timer) = work.nic.machines.take_expired(instant(at)) {
                    self.trace.note(at ^ u64::from(rank) << 48);
                    self.offload_on_nic(&mut work, MachineEvent::TimerExpired(timer));
                }
            }
        }
        loop {
            for action in actions.drain(..) {
                self.perform_on_nic(&mut work, action);
            }
            // No packet waits for the NIC, so it is idle whenever it has nothing to do.
            let idle = || work.nic.machine.waits_for_idle().then_some(ProtoEvent::Idle);
            let Some(event) = work.events.pop_front().or_else(idle) else { break };
            drive(&mut work.nic.machine, work.at, event, &mut actions);
        }
        let Work { mut nic, .. } = work;
        if let Some(first) = nic.first_timer().filter(|first| nic.timer_at.is_none_or(|at| *first < at)) {
            nic.timer_at = Some(first.max(self.queue.now()));
            self.schedule(first.max(self.queue.now()), Event::NicTimer { rank });
        }
        self.nic_endpoints.by_rank.insert(rank, nic);
    }

    /// Passes an event to the machines.
    fn offload_on_nic(&mut self, work: &mut Work, event: MachineEvent<OffloadCommand, Offloaded>) {
        let Work { at, nic, payload, .. } = work;
        let results = nic.machines.handle(instant(*at), event, payload);
        self.take_results(work, results);
    }

    fn take_results(&mut self, work: &mut Work, results: Results) {
        let Results { outgoing, ended, rejected, seen, work: done } = results;
        let Work { rank, at, nic, events, .. } = work;
        let ps = self.hosts.cost().memory_ps(done);
        *at = self.nic_works(*at, *rank, ps);
        events.extend(outgoing.into_iter().map(ProtoEvent::Outgoing));
        for from in rejected {
            if self.may_lose() {
                events.push_back(ProtoEvent::Lost { peer: from, fault: PeerFault::Malformed });
            } else {
                self.schedule(*at, Event::Rejected { rank: *rank, from: nic.peers.rank(from.0) });
            }
        }
        for ended in ended {
            nic.ended.insert(ended.request.0, ended.status(|peer| nic.peers.rank(peer.0)));
            *at = self.nic_writes_to_host(*at, *rank);
            self.schedule(*at, Event::OffloadedEnded { rank: *rank, request: ended.request.0 });
        }
        for (request, word) in seen {
            nic.ended.insert(request.0, Status { bytes: word, ..Status::default() });
            self.schedule(*at, Event::OwnWordSeen { rank: *rank, request: request.0 });
        }
    }

    fn perform_on_nic(&mut self, work: &mut Work, action: Action) {
        let Work { rank, at, nic, events, .. } = work;
        match action {
            Action::Transmit { to, packet, payload } => {
                let (rank, to, at) = (*rank, nic.peers.rank(to.0), *at);
                let train = self.trains.begin(rank, to, &packet, 0, at);
                if let Body::Offloaded(_) = packet.body {
                    let payload = nic.machines.payload(payload, packet.payload_bytes);
                    self.trains.set_payload(train, payload);
                }
                self.nic_endpoints.trains.insert(train.0);
                let leaves_at = self.nic_sends(at, rank);
                self.schedule(leaves_at, Event::LeaveNic { train, index: 0 });
            }
            Action::Connect { to } => {
                let spec = self.spec;
                let other = nic.peers.rank(to.0);
                if !self.has_crashed(other) {
                    let other = self.nic_endpoints.by_rank.entry(other);
                    other.or_insert_with(|| NicEndpoint::new(&spec)).attached(*at, *rank, &spec);
                }
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
            Action::SetTimer { timer, at } => nic.timers.set(timer, at),
            Action::CancelTimer { timer } => nic.timers.cancel(timer),
            Action::PassOn { from, number, packet, payload_bytes } => {
                self.offload_on_nic(work, MachineEvent::Arrived { from, number, packet, payload_bytes });
            }
            Action::AnswerLeft { buffer } => nic.machines.end_buffer(buffer),
            Action::PeerLost { peer, fault } => {
                self.offload_on_nic(work, MachineEvent::Lost { peer, fault });
            }
            // The NIC of a living peer is told.
            Action::DropPeer { peer } => {
                let (rank, peer) = (*rank, nic.peers.rank(peer.0));
                if !self.has_crashed(peer) {
                    let at = self.severed_at(*at, rank, peer);
                    let fault = PeerFault::Unreachable;
                    self.schedule(at, Event::NicLost { rank: peer, peer: rank, fault });
                }
            }
            Action::Retire => {} // its slots are in the NIC
            other => unreachable!("{other:?} on a NIC, whose endpoint has no messages and remote accesses"),
        }
    }
}
