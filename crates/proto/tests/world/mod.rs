//! A world for tests: endpoints, lanes between them, real bytes, and a schedule by seed.
//!
//! This file has the state of the world, and its possible events. `plan.rs` has its settings, `drivers.rs` what drivers
//! answer. `actions.rs` performs what endpoints want done, `machines.rs` drives their offloaded machines, and `checks.rs`
//! checks the world from outside.

mod actions;
mod checks;
mod drivers;
mod machines;
mod plan;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use weir_proto::offload::atomics::{AtomicsCommand, ExposedRegion};
use weir_proto::offload::{Offload, OffloadCommand};
use weir_proto::{
    Action, Command, Endpoint, Event, Instant, MachineEvent, MessageId, Outcome, Packet, Peer, PeerFault,
    Request, TimerKey, TimerQueue,
};

pub use drivers::{DriverFault, Seen};
pub use plan::Plan;

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
    CreditsDue,
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
    /// Peers whose credits are deferred, with the number of events before that.
    deferred: BTreeMap<Peer, u64>,
    /// Number of events.
    handled: u64,
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
    pub seen: Seen,
    /// The drivers break this rule.
    pub fault: Option<DriverFault>,
}

impl World {
    pub fn new(plan: Plan) -> World {
        let rank = |_| TestRank {
            machine: plan.endpoint(),
            offload: Offload::default(),
            buffers: Vec::new(),
            unexpected: BTreeMap::new(),
            peak_unexpected_cost_bytes: 0,
            bounce: BTreeMap::new(),
            peak_bounce_bytes: 0,
            regions: BTreeMap::new(),
            events: VecDeque::new(),
            awaiting_room: Vec::new(),
            deferred: BTreeMap::new(),
            handled: 0,
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
            seen: Seen::default(),
            fault: None,
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
        let region = ExposedRegion { bytes, readable: true, writable: true };
        self.ranks[rank as usize].regions.insert(key, memory);
        self.post(rank, Command::RegisterMemory { key, bytes, readable: true, writable: true });
        self.post_offloaded(rank, OffloadCommand::Atomics(AtomicsCommand::Expose { key, region }));
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
        for (index, rank) in (0..).zip(&self.ranks).filter(|(_, rank)| !rank.dead) {
            candidates.extend(rank.deferred.keys().map(|peer| (Candidate::CreditsDue, index, peer.0)));
        }
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
                        self.offload(from, MachineEvent::TimerExpired(timer)).expect("no command");
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
                self.begin_path(to, from);
                self.handle(to, Event::Attached { peer: Peer(from), quota_slots, start_slots, epoch });
            }
            Candidate::Connection => {
                let last = lanes.back_mut().expect("chosen");
                last.connected = true;
                let epoch = last.epoch;
                let peer = Peer(to);
                self.ranks[from as usize].slots.remove(&peer);
                self.begin_path(from, to);
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
            Candidate::CreditsDue => {
                let TestRank { deferred, handled, .. } = &mut self.ranks[from as usize];
                let before = deferred.remove(&Peer(to)).expect("chosen");
                self.seen.late_credits += u64::from(*handled > before);
                self.handle(from, Event::CreditsDue { peer: Peer(to) });
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
            if machine.waits_for_idle() && !dead {
                any = true;
                self.handle(rank, Event::Idle);
            }
        }
        any
    }

    /// Requests of `rank` that have not completed.
    pub fn outstanding(&self, rank: u32) -> Vec<Request> {
        let buffers = self.ranks[rank as usize].buffers.iter().enumerate();
        buffers.filter(|(_, buffer)| buffer.is_some()).map(|(index, _)| Request(index as u32)).collect()
    }

    pub fn handle(&mut self, rank: u32, event: Event<'_>) {
        let mut actions = Vec::new();
        let mut next = Some(event);
        while let Some(event) = next {
            let arrived_from = match &event {
                Event::Arrived { from, .. } => Some(from.0),
                _ => None,
            };
            let mut driver = self.driver(rank, &mut actions);
            self.ranks[rank as usize].handled += 1;
            self.ranks[rank as usize].machine.handle(event, &mut driver).expect("within the bounds");
            self.refusals += driver.refused.len() as u64;
            for to in driver.refused {
                let again = !self.refused.insert((rank, to.0));
                assert!(!again, "a packet to {to:?} before the link was ready");
            }
            let deferred = driver.deferred;
            if self.fault != Some(DriverFault::ForgetsDeferredCredits) {
                let rank = &mut self.ranks[rank as usize];
                deferred.into_iter().for_each(|peer| _ = rank.deferred.entry(peer).or_insert(rank.handled));
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
}
