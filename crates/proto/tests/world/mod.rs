//! A world for tests: endpoints, lanes between them, real bytes, and a schedule by seed.
//!
//! It performs actions as any driver must. It checks from outside that every packet finds a free slot (I1), that credit
//! packets fit into their slots (I2), and that nothing is left at the end.

mod machines;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use weir_proto::flow::demand_credits;
use weir_proto::offload::atomics::AtomicsCommand;
use weir_proto::offload::{Offload, OffloadCommand};
use weir_proto::{
    Action, Body, Command, Config, CopyFault, DataRegion, Destination, Direction, Endpoint, Event, Geometry,
    Instant, Machine, MachineEvent, MemoryCopy, MessageId, Outcome, PACKET_KINDS, Packet, Peer, PeerFault,
    Recorder, RemoteAddress, Request, Scheme, Source, TimerKey, TimerQueue, unexpected_cost_bytes,
};

/// Settings of all endpoints of a world.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub endpoints: u32,
    pub scheme: Scheme,
    pub geometry: Geometry,
    pub quota_slots: u32,
    /// Starting credits. Fewer than the quota only in schemes that grant more later. With dynamic credits those of the
    /// region.
    pub start_slots: u32,
    pub credit_slots: u32,
    /// With dynamic credits `quota_slots` is the size of a lane.
    pub region: DataRegion,
    pub eager_bytes: u64,
    pub cross_memory: bool,
    /// The kernel forbids copies.
    pub copies_forbidden: bool,
    /// Number of lanes of a mailbox. More senders take turns.
    pub max_lanes: usize,
    pub budget_bytes: u64,
    pub bounce_bytes: u64,
    /// `u64::MAX`: no limit.
    pub envelope_bytes: u64,
    /// Endpoints know the number of endpoints.
    pub planned: bool,
}

impl Plan {
    pub fn config(&self) -> Config {
        Config {
            scheme: self.scheme,
            geometry: self.geometry,
            credit_slots: self.credit_slots,
            region: self.region,
            eager_bytes: self.eager_bytes,
            cross_memory: self.cross_memory,
            remote_inline_bytes: 64,
            max_backlog: u32::MAX,
            max_unexpected: 1 << 20,
            unexpected_budget_bytes: self.budget_bytes,
            bounce_bytes: self.bounce_bytes,
            envelope_budget_bytes: self.envelope_bytes,
            planned_peers: if self.planned { self.endpoints } else { 0 },
            planned_quota_slots: self.quota_slots,
        }
    }
}

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
        | Body::NoMatch
        | Body::Resume { .. }
        | Body::Claimed { .. }
        | Body::Goodbye
        | Body::Detach
        | Body::ReturnRequest
        | Body::ReturnResponse { .. } => "control",
    }
}

/// A lease of a lane. A pair can have several: the last is written, the first is read.
#[derive(Debug, Default)]
struct Lane {
    packets: VecDeque<(Packet, Vec<u8>)>,
    data_slots: u32,
    credit_packets: u32,
    epoch: u16,
    /// The sender knows of its lease.
    connected: bool,
    /// The receiver knows of the lease.
    attached: bool,
    /// The sender has detached.
    left: bool,
    /// The last packet carried `rendezvous_only`.
    says_rendezvous_only: bool,
    /// Slots filled in all, and credits granted in all by packets of the other direction.
    spent_total: u64,
    granted_total: u32,
}

/// The kinds of possible events.
#[derive(Clone, Copy, Debug)]
enum Candidate {
    Arrival,
    Attachment,
    Connection,
    Room,
    Request,
    Timer,
    LinkReady,
}

#[derive(Debug)]
pub struct TestRank {
    pub machine: Endpoint,
    /// The machines beside it.
    pub offload: Offload,
    buffers: Vec<Option<Vec<u8>>>,
    unexpected: BTreeMap<MessageId, Vec<u8>>,
    /// Maximum cost of the unexpected buffers. Unit: bytes.
    pub peak_unexpected_cost_bytes: u64,
    bounce: BTreeMap<u32, Vec<u8>>,
    /// Maximum of bytes in bounce buffers. Unit: bytes.
    pub peak_bounce_bytes: usize,
    regions: BTreeMap<u64, Vec<u8>>,
    events: VecDeque<Event<'static>>,
    awaiting_room: Vec<Peer>,
    timers: TimerQueue<TimerKey>,
    /// Buffers of the offloaded machines.
    machine_buffers: BTreeMap<u32, Vec<u8>>,
    next_epoch: u16,
    /// Endpoints that wait for a lane of this mailbox.
    waiting: VecDeque<u32>,
    /// Completions: the request, the outcome, and the buffer at that time.
    pub completions: VecDeque<(Request, Outcome, Vec<u8>)>,
    pub notices: Vec<(Peer, u64, u64)>,
    dead: bool,
    /// Packets sent, by kind, and data slots filled in the current lease, by peer.
    kinds: BTreeMap<&'static str, u64>,
    slots: BTreeMap<Peer, u32>,
}

thread_local! {
    static BUSY_LINKS: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Runs `work`. In its worlds links are busy at random, by `seed`.
pub fn with_busy_links<R>(seed: u64, work: impl FnOnce() -> R) -> R {
    BUSY_LINKS.set(Some(seed));
    let result = work();
    BUSY_LINKS.set(None);
    result
}

pub struct World {
    pub plan: Plan,
    pub ranks: Vec<TestRank>,
    /// The leases of each pair: the last is written, the first is read.
    lanes: BTreeMap<(u32, u32), VecDeque<Lane>>,
    /// Pairs (endpoint, lost peer): the buffers of the first must not be copied any more.
    dropped: BTreeSet<(u32, u32)>,
    pub now: Instant,
    pub trace: u64,
    /// All actions with their endpoint, if requested.
    pub record: Option<Vec<(u32, Action)>>,
    /// Links are busy at random: the state of the generator.
    busy_links: Option<u64>,
    /// Pairs (endpoint, peer): the link of the endpoint has refused a packet to the peer.
    refused: BTreeSet<(u32, u32)>,
    /// Packets that links have refused.
    pub refusals: u64,
    /// Packets that set `rendezvous_only` after one that did not, and the other way round.
    pub switched_on: u64,
    pub switched_off: u64,
}

impl World {
    pub fn new(plan: Plan) -> World {
        let rank = |_| TestRank {
            machine: Endpoint::new(plan.config()),
            offload: Offload::default(),
            buffers: Vec::new(),
            unexpected: BTreeMap::new(),
            peak_unexpected_cost_bytes: 0,
            bounce: BTreeMap::new(),
            peak_bounce_bytes: 0,
            regions: BTreeMap::new(),
            events: VecDeque::new(),
            awaiting_room: Vec::new(),
            timers: TimerQueue::default(),
            machine_buffers: BTreeMap::new(),
            next_epoch: 0,
            waiting: VecDeque::new(),
            completions: VecDeque::new(),
            notices: Vec::new(),
            dead: false,
            kinds: BTreeMap::new(),
            slots: BTreeMap::new(),
        };
        World {
            plan,
            ranks: (0..plan.endpoints).map(rank).collect(),
            lanes: BTreeMap::new(),
            dropped: BTreeSet::new(),
            now: Instant(0),
            trace: 0,
            record: None,
            busy_links: BUSY_LINKS.get(),
            refused: BTreeSet::new(),
            refusals: 0,
            switched_on: 0,
            switched_off: 0,
        }
    }

    /// A new request of `rank` with this buffer.
    pub fn request(&mut self, rank: u32, buffer: Vec<u8>) -> Request {
        let buffers = &mut self.ranks[rank as usize].buffers;
        let index = buffers.iter().position(Option::is_none).unwrap_or_else(|| {
            buffers.push(None);
            buffers.len() - 1
        });
        buffers[index] = Some(buffer);
        Request(index as u32)
    }

    pub fn expose(&mut self, rank: u32, key: u64, memory: Vec<u8>) {
        let bytes = memory.len() as u64;
        self.ranks[rank as usize].regions.insert(key, memory);
        self.post(rank, Command::RegisterMemory { key, bytes, readable: true, writable: true });
        self.post_offloaded(rank, OffloadCommand::Atomics(AtomicsCommand::Expose { key, bytes }));
    }

    pub fn region(&self, rank: u32, key: u64) -> &[u8] {
        &self.ranks[rank as usize].regions[&key]
    }

    pub fn post(&mut self, rank: u32, command: Command) {
        self.handle(rank, Event::Posted(command));
    }

    /// The endpoint of `rank` stops: its packets stay, and it handles no event any more.
    pub fn kill(&mut self, rank: u32) {
        self.ranks[rank as usize].dead = true;
    }

    pub fn is_dead(&self, rank: u32) -> bool {
        self.ranks[rank as usize].dead
    }

    pub fn lose(&mut self, rank: u32, peer: u32) {
        self.handle(rank, Event::Lost { peer: Peer(peer), fault: PeerFault::Died });
    }

    /// `to` asks `from` to detach from its mailbox.
    pub fn request_detach(&mut self, from: u32, to: u32) {
        if !self.ranks[from as usize].dead {
            self.handle(from, Event::DetachRequested { peer: Peer(to) });
        }
    }

    /// Number of lanes of the mailbox of `rank` that are in use.
    pub fn used_lanes(&self, rank: u32) -> usize {
        self.lanes.iter().filter(|((_, to), _)| *to == rank).map(|(_, lanes)| lanes.len()).sum()
    }

    /// Performs one possible event, chosen by `choose(count)`: an arrival, free slots, a new lane, an attach, a detach
    /// request, or the first timer. Returns whether any was possible.
    pub fn step(&mut self, mut choose: impl FnMut(usize) -> usize) -> bool {
        let mut candidates = Vec::new();
        for (&(from, to), lanes) in &self.lanes {
            let (Some(first), Some(last)) = (lanes.front(), lanes.back()) else { continue };
            let dead = |rank: u32| self.ranks[rank as usize].dead;
            if first.attached && !first.packets.is_empty() && !dead(to) {
                candidates.push((Candidate::Arrival, from, to));
            }
            if !first.attached && !dead(to) {
                candidates.push((Candidate::Attachment, from, to));
            }
            if !last.connected && !dead(from) {
                candidates.push((Candidate::Connection, from, to));
            }
            let awaiting_room = self.ranks[from as usize].awaiting_room.contains(&Peer(to));
            if awaiting_room && last.data_slots < self.plan.quota_slots && !dead(from) {
                candidates.push((Candidate::Room, from, to));
            }
            let others_wait = !self.ranks[to as usize].waiting.is_empty();
            if last.connected && !last.left && others_wait && !dead(from) && !dead(to) {
                candidates.push((Candidate::Request, from, to));
            }
        }
        let waits = |rank: &TestRank| !rank.dead && !rank.timers.is_empty();
        let waiting = (0..).zip(&self.ranks).filter(|(_, rank)| waits(rank));
        candidates.extend(waiting.map(|(index, _)| (Candidate::Timer, index, index)));
        let alive = |&&(from, _): &&(u32, u32)| !self.ranks[from as usize].dead;
        candidates
            .extend(self.refused.iter().filter(alive).map(|&(from, to)| (Candidate::LinkReady, from, to)));
        if candidates.is_empty() {
            return false;
        }
        self.now = self.now.plus_ns(100);
        let (candidate, from, to) = candidates[choose(candidates.len())];
        let Plan { quota_slots, start_slots, credit_slots, .. } = self.plan;
        let lanes = self.lanes.entry((from, to)).or_default();
        match candidate {
            Candidate::Timer => {
                let timers = &mut self.ranks[from as usize].timers;
                self.now = self.now.max(timers.earliest().expect("it waits"));
                let timer = timers.take_expired(self.now).expect("its time has come");
                match timer {
                    TimerKey::Endpoint(timer) => self.handle(from, Event::TimerExpired(timer)),
                    TimerKey::Machine(timer) => {
                        self.offload(from, MachineEvent::TimerExpired(timer));
                        self.handle_caused(from);
                    }
                }
            }
            Candidate::Arrival => {
                let packet = lanes[0].packets[0].0;
                self.handle(to, Event::Arrived { from: Peer(from), packet: &packet });
            }
            Candidate::Attachment => {
                lanes[0].attached = true;
                let epoch = lanes[0].epoch;
                self.handle(to, Event::Attached { peer: Peer(from), quota_slots, start_slots, epoch });
            }
            Candidate::Connection => {
                let last = lanes.back_mut().expect("chosen");
                last.connected = true;
                let epoch = last.epoch;
                let peer = Peer(to);
                self.ranks[from as usize].slots.remove(&peer);
                let connected = Event::Connected { peer, quota_slots, start_slots, credit_slots, epoch };
                self.handle(from, connected);
            }
            Candidate::Room => {
                let free = quota_slots - lanes.back().expect("chosen").data_slots;
                self.ranks[from as usize].awaiting_room.retain(|peer| peer.0 != to);
                self.handle(from, Event::Room { peer: Peer(to), slots: free });
            }
            Candidate::Request => self.request_detach(from, to),
            Candidate::LinkReady => {
                self.refused.remove(&(from, to));
                self.handle(from, Event::LinkReady { peer: Peer(to) });
            }
        }
        true
    }

    /// Gives free lanes of the mailbox of `rank` to waiting endpoints, in order.
    fn grant_lanes(&mut self, rank: u32) {
        while self.used_lanes(rank) < self.plan.max_lanes {
            let Some(from) = self.ranks[rank as usize].waiting.pop_front() else { return };
            let sender = &mut self.ranks[from as usize];
            let lane = Lane { epoch: sender.next_epoch, ..Lane::default() };
            sender.next_epoch += 1;
            self.lanes.entry((from, rank)).or_default().push_back(lane);
        }
    }

    /// Performs all possible events. When none is left, endpoints get `Idle`.
    pub fn run_to_rest(&mut self, mut choose: impl FnMut(usize) -> usize) {
        let mut steps = 0;
        while self.step(&mut choose) || self.idle() {
            steps += 1;
            assert!(steps < 10_000_000, "the world does not come to rest");
        }
    }

    /// Sends `Idle` to the endpoints. Returns whether one of them had waited for it.
    pub fn idle(&mut self) -> bool {
        let mut any = false;
        for rank in 0..self.plan.endpoints {
            let TestRank { machine, dead, .. } = &self.ranks[rank as usize];
            if machine.has_pending_acks() && !dead {
                any = true;
                self.handle(rank, Event::Idle);
            }
        }
        any
    }

    /// Asserts that no work is pending anywhere.
    pub fn assert_at_rest(&self) {
        for (index, rank) in self.ranks.iter().enumerate().filter(|(_, rank)| !rank.dead) {
            assert!(rank.machine.is_quiescent(), "endpoint {index} is not at rest: {:?}", rank.machine);
            assert!(rank.offload.is_quiescent(), "endpoint {index} is not at rest: {:?}", rank.offload);
            assert!(rank.timers.is_empty(), "endpoint {index} has set timers: {:?}", rank.timers);
            assert!(rank.machine_buffers.is_empty(), "endpoint {index} has buffers of machines: {rank:?}");
            let left: Vec<_> = rank.buffers.iter().filter(|buffer| buffer.is_some()).collect();
            assert!(left.is_empty(), "endpoint {index}: {} requests never completed", left.len());
            assert!(
                rank.unexpected.is_empty(),
                "endpoint {index} still has unexpected buffers {:?}",
                rank.unexpected.keys()
            );
            assert!(
                rank.bounce.is_empty(),
                "endpoint {index} still has bounce buffers {:?}",
                rank.bounce.keys()
            );
        }
        self.assert_counted();
        for (pair, lanes) in &self.lanes {
            assert!(lanes.len() <= 1, "{pair:?} has a detached lease");
            assert!(lanes.iter().all(|lane| lane.packets.is_empty()), "lane {pair:?} holds packets");
        }
        assert!(self.ranks.iter().all(|rank| rank.waiting.is_empty()), "an endpoint still waits for a lane");
    }

    /// Asserts that the counters of the machines equal the counts from outside.
    fn assert_counted(&self) {
        for rank in self.ranks.iter().filter(|rank| !rank.dead) {
            let counters = rank.machine.counters();
            let by_kind = counters.packets_by_kind();
            let seen = PACKET_KINDS.map(|kind| rank.kinds.get(kind).copied().unwrap_or(0));
            assert_eq!(by_kind, seen, "packets by kind: {PACKET_KINDS:?}");
            assert_eq!(counters.packets_sent, seen.iter().sum::<u64>());
            let pairs: Vec<_> = rank.machine.pairs(self.now).collect();
            let stalled_ns: u64 = pairs.iter().map(|pair| pair.stalled_ns).sum();
            assert_eq!(stalled_ns + rank.machine.removed_stalled_ns(), counters.stalled_ns);
            for pair in pairs {
                let Some(sending) = pair.sending else { continue };
                let (Some(quota), Some(granted)) = (sending.quota_slots, sending.granted_total) else {
                    continue;
                };
                let spent = rank.slots.get(&pair.peer).copied().unwrap_or(0);
                assert_eq!((sending.spent_total, sending.credits), (Some(spent), quota + granted - spent));
            }
        }
    }

    /// Asserts that no endpoint has exceeded its budget or its bounce-buffer limit.
    pub fn assert_within_budget(&self) {
        let bounds = self.plan.scheme.grants();
        for (index, rank) in self.ranks.iter().enumerate() {
            let (unexpected, budget) = (rank.peak_unexpected_cost_bytes, self.plan.budget_bytes);
            assert!(
                !bounds || unexpected <= budget,
                "endpoint {index}: {unexpected} unexpected bytes, budget {budget}"
            );
            let (bounce, limit) = (rank.peak_bounce_bytes as u64, self.plan.bounce_bytes);
            assert!(bounce <= limit, "endpoint {index}: {bounce} bytes in bounce buffers, limit {limit}");
        }
    }

    /// Requests of `rank` that have not completed.
    pub fn outstanding(&self, rank: u32) -> Vec<Request> {
        let buffers = self.ranks[rank as usize].buffers.iter().enumerate();
        buffers.filter(|(_, buffer)| buffer.is_some()).map(|(index, _)| Request(index as u32)).collect()
    }

    /// Asserts that every request of these endpoints has completed.
    pub fn assert_no_requests_left(&self, ranks: &[usize]) {
        for &index in ranks {
            let left = self.ranks[index].buffers.iter().filter(|buffer| buffer.is_some()).count();
            assert_eq!(left, 0, "endpoint {index}: requests never completed");
        }
    }

    fn handle(&mut self, rank: u32, event: Event<'_>) {
        let mut actions = Vec::new();
        let mut next = Some(event);
        while let Some(event) = next {
            let arrived_from = match &event {
                Event::Arrived { from, .. } => Some(from.0),
                _ => None,
            };
            let mut driver = match self.next_busy_link() {
                Some(packets) => Recorder::with_busy_link(self.now, &mut actions, packets),
                None => Recorder::new(self.now, &mut actions),
            };
            self.ranks[rank as usize].machine.handle(event, &mut driver).expect("within the bounds");
            self.refusals += driver.refused.len() as u64;
            for to in driver.refused {
                let again = !self.refused.insert((rank, to.0));
                assert!(!again, "a packet to {to:?} before the link was ready");
            }
            let mut retired = 0;
            for action in actions.drain(..) {
                retired += u32::from(action == Action::Retire);
                if let Some(record) = &mut self.record {
                    record.push((rank, action.clone()));
                }
                let placed_late =
                    retired > 0 && matches!(action, Action::Place { .. } | Action::PassOn { .. });
                assert!(!placed_late, "a payload is placed after its slots were freed");
                self.perform(rank, arrived_from, action);
            }
            assert_eq!(retired, u32::from(arrived_from.is_some()), "exactly one retirement per arrival");
            self.check_pool(rank);
            next = self.ranks[rank as usize].events.pop_front();
        }
    }

    /// Packets that the link takes in the next event. `None`: all.
    fn next_busy_link(&mut self) -> Option<u32> {
        let state = self.busy_links.as_mut()?;
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let packets = (*state >> 33) % 5;
        (packets < 4).then_some(packets as u32)
    }

    /// Checks I1, I3 and I6 by the machine's totals, and I1 by the lanes. With equal settings the thresholds alone keep
    /// I2.
    fn check_pool(&self, rank: u32) {
        if let Some(pool) = self.ranks[rank as usize].machine.demand_pool() {
            return self.check_demand_pool(rank, pool);
        }
        let Scheme::Dynamic { .. } = self.plan.scheme else { return };
        let pool = self.ranks[rank as usize].machine.pool();
        pool.assert_invariants();
        assert_eq!(pool.tally().deferred_grants, 0, "the thresholds alone keep I2");
        let Plan { region, endpoints, .. } = self.plan;
        let grown = endpoints + endpoints.saturating_sub(region.peers);
        assert!(pool.region_slots() <= region.slots + region.start_slots * grown, "{pool:?}");
        for account in pool.accounts() {
            // The account is that of the lease that is read; a later lease may have started.
            let lane = self.lanes.get(&(account.owner.0, rank)).and_then(VecDeque::front);
            assert!(lane.is_none_or(|lane| lane.attached), "the account of a detached sender: {account:?}");
            let filled = lane.map_or(0, |lane| lane.data_slots);
            assert!(filled <= account.current, "I1: {filled} slots filled: {account:?}");
        }
    }

    /// The same for credits on demand, with D3 and D5.
    fn check_demand_pool(&self, rank: u32, pool: &demand_credits::Pool) {
        pool.assert_invariants();
        pool.assert_queue_is_served();
        let Plan { region, endpoints, .. } = self.plan;
        let grown = endpoints + endpoints.saturating_sub(region.peers);
        assert!(pool.region_slots() <= region.slots + region.start_slots * grown, "{pool:?}");
        for account in pool.accounts() {
            let lane = self.lanes.get(&(account.owner.0, rank)).and_then(VecDeque::front);
            assert!(lane.is_none_or(|lane| lane.attached), "the account of a detached sender: {account:?}");
            let filled = lane.map_or(0, |lane| lane.data_slots);
            assert!(filled <= account.current, "I1: {filled} slots filled: {account:?}");
        }
    }

    fn perform(&mut self, rank: u32, arrived_from: Option<u32>, action: Action) {
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
                    lane.data_slots -= self.plan.geometry.packet_slots(&packet);
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
                let result = if self.plan.copies_forbidden {
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
                self.offload(rank, MachineEvent::Arrived { from, number, packet, payload_bytes });
            }
            Action::PeerLost { peer, fault } => self.offload(rank, MachineEvent::Lost { peer, fault }),
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
        let sender = &mut self.ranks[rank as usize];
        *sender.kinds.entry(kind(&packet.body)).or_default() += 1;
        if !packet.body.is_free() {
            *sender.slots.entry(to).or_default() += self.plan.geometry.packet_slots(&packet);
        }
        let from = &self.ranks[rank as usize];
        match (&mut packet.body, payload) {
            (
                Body::Rendezvous { address, .. } | Body::Offer { address, .. },
                Source::Request { request, .. },
            ) if self.plan.cross_memory => {
                *address = RemoteAddress::without_key((u64::from(request.0) + 1) << 32);
            }
            (
                Body::Rendezvous { address, .. } | Body::Offer { address, .. },
                Source::Bounce { transfer, .. },
            ) if self.plan.cross_memory => {
                let number = u64::from(transfer.bounce_buffer().expect("a bounce buffer"));
                *address = RemoteAddress::without_key(number + 1);
            }
            (Body::Located { key, offset, address, refused: false, .. }, _) => {
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
        let slots = self.plan.geometry.packet_slots(&packet);
        assert!(slots <= self.plan.geometry.max_packet_slots, "{slots} slots in one packet");
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
