//! A world for tests: endpoints, lanes between them, real bytes, and a schedule drawn from a seed.
//!
//! It performs actions as any driver must, and watches from outside: that no packet arrives without a free slot
//! (I1), that credit packets never outnumber their slots (I2), that nothing is left over at the end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use weir_proto::{
    Action, Body, Command, Config, CopyFault, DataRegion, Destination, Direction, Endpoint, Event, Geometry,
    Instant, MessageId, Outcome, PACKET_KINDS, Packet, Peer, PeerFault, Request, Scheme, SendCommand, Source,
    kept_cost_bytes,
};

/// What all endpoints of a world have in common.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub endpoints: u32,
    pub scheme: Scheme,
    pub geometry: Geometry,
    pub quota_slots: u32,
    /// Credits at first; fewer than the quota only in schemes that grant more later. With dynamic credits those of the region.
    pub start_slots: u32,
    pub credit_slots: u32,
    /// With dynamic credits `quota_slots` is what a lane can hold.
    pub region: DataRegion,
    pub eager_bytes: u64,
    pub cross_memory: bool,
    /// The kernel says no when a copy is tried.
    pub copies_forbidden: bool,
    pub budget_bytes: u64,
    pub retain_bytes: u64,
    /// Endpoints know how many they are.
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
            max_unexpected: 1 << 20,
            unexpected_budget_bytes: self.budget_bytes,
            retain_bytes: self.retain_bytes,
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
        | Body::Written { .. } => "remote",
        Body::Fetch { .. } | Body::Goodbye | Body::ReturnRequest | Body::ReturnResponse { .. } => "control",
    }
}

#[derive(Debug, Default)]
struct Lane {
    packets: VecDeque<(Packet, Vec<u8>)>,
    data_slots: u32,
    credit_packets: u32,
    /// The last packet said hold.
    says_hold: bool,
    /// Slots ever filled, and ever granted by packets the other way.
    spent_total: u64,
    granted_total: u32,
}

#[derive(Debug)]
pub struct Node {
    pub machine: Endpoint,
    buffers: Vec<Option<Vec<u8>>>,
    kept: BTreeMap<MessageId, Vec<u8>>,
    /// The most that the kept messages have cost at a time. Unit: bytes.
    pub peak_kept_cost_bytes: u64,
    retained: BTreeMap<u32, Vec<u8>>,
    /// The most that was retained at a time. Unit: bytes.
    pub peak_retained_bytes: usize,
    regions: BTreeMap<u64, Vec<u8>>,
    events: VecDeque<Event>,
    asking: Vec<Peer>,
    /// What has completed: the request, how, and the buffer as it was then.
    pub completions: VecDeque<(Request, Outcome, Vec<u8>)>,
    pub notices: Vec<(Peer, u64, u64)>,
    dead: bool,
    /// Packets transmitted, by kind, and data slots filled, by peer.
    kinds: BTreeMap<&'static str, u64>,
    slots: BTreeMap<Peer, u32>,
}

pub struct World {
    pub plan: Plan,
    pub nodes: Vec<Node>,
    lanes: BTreeMap<(u32, u32), Lane>,
    /// Who has given up whom: its buffers are not to be copied from any more.
    severed: BTreeSet<(u32, u32)>,
    pub now: Instant,
    pub trace: u64,
    /// Everything that was done, by whom, if somebody asks for it.
    pub record: Option<Vec<(u32, Action)>>,
    /// Packets that said hold after one that did not, and the other way round.
    pub switched_on: u64,
    pub switched_off: u64,
}

impl World {
    pub fn new(plan: Plan) -> World {
        let node = |_| Node {
            machine: Endpoint::new(plan.config()),
            buffers: Vec::new(),
            kept: BTreeMap::new(),
            peak_kept_cost_bytes: 0,
            retained: BTreeMap::new(),
            peak_retained_bytes: 0,
            regions: BTreeMap::new(),
            events: VecDeque::new(),
            asking: Vec::new(),
            completions: VecDeque::new(),
            notices: Vec::new(),
            dead: false,
            kinds: BTreeMap::new(),
            slots: BTreeMap::new(),
        };
        World {
            plan,
            nodes: (0..plan.endpoints).map(node).collect(),
            lanes: BTreeMap::new(),
            severed: BTreeSet::new(),
            now: Instant(0),
            trace: 0,
            record: None,
            switched_on: 0,
            switched_off: 0,
        }
    }

    /// A new request of `node` with this buffer.
    pub fn request(&mut self, node: u32, buffer: Vec<u8>) -> Request {
        let buffers = &mut self.nodes[node as usize].buffers;
        let index = buffers.iter().position(Option::is_none).unwrap_or_else(|| {
            buffers.push(None);
            buffers.len() - 1
        });
        buffers[index] = Some(buffer);
        Request(index as u32)
    }

    pub fn expose(&mut self, node: u32, key: u64, memory: Vec<u8>) {
        let bytes = memory.len() as u64;
        self.nodes[node as usize].regions.insert(key, memory);
        self.post(node, Command::Expose { key, bytes, readable: true, writable: true });
    }

    pub fn region(&self, node: u32, key: u64) -> &[u8] {
        &self.nodes[node as usize].regions[&key]
    }

    pub fn post(&mut self, node: u32, command: Command) {
        self.handle(node, Event::Posted(command));
    }

    /// Sends by `send_now` where that is possible, else by posting.
    pub fn send_quickly(&mut self, from: u32, send: SendCommand) {
        let SendCommand { request, to, space, tag, data, bytes, level } = send;
        let machine = &mut self.nodes[from as usize].machine;
        match machine.send_now(to, space, tag, data, bytes, level) {
            None => self.post(from, Command::Send(send)),
            Some(packet) => {
                let mut payload = Source::Request { request, offset: 0 };
                if let Body::Rendezvous { transfer, .. } = packet.body {
                    self.perform(from, None, Action::Retain { transfer, request });
                    payload = Source::Retained { transfer, offset: 0 };
                }
                if let Some(record) = &mut self.record {
                    record.push((from, Action::Transmit { to, packet, payload }));
                }
                self.transmit(from, to, packet, payload);
                self.perform(from, None, Action::Complete { request, outcome: Outcome::Done });
            }
        }
    }

    /// The endpoint of `node` stops: its packets stay, it handles nothing more.
    pub fn kill(&mut self, node: u32) {
        self.nodes[node as usize].dead = true;
    }

    pub fn lose(&mut self, node: u32, peer: u32) {
        self.handle(node, Event::Lost { peer: Peer(peer), fault: PeerFault::Died });
    }

    /// Lets one thing happen, chosen by `choose(count)`: a packet arrives somewhere, somebody finds room, or somebody's
    /// time has come. Returns whether anything could.
    pub fn step(&mut self, mut choose: impl FnMut(usize) -> usize) -> bool {
        let mut candidates: Vec<(u32, u32)> = self
            .lanes
            .iter()
            .filter(|((_, to), lane)| !lane.packets.is_empty() && !self.nodes[*to as usize].dead)
            .map(|(pair, _)| *pair)
            .collect();
        let arrivals = candidates.len();
        for (index, node) in self.nodes.iter().enumerate() {
            for peer in &node.asking {
                let lane = self.lanes.get(&(index as u32, peer.0));
                let free = lane.map_or(self.plan.quota_slots, |lane| self.plan.quota_slots - lane.data_slots);
                if free > 0 && !node.dead {
                    candidates.push((index as u32, peer.0));
                }
            }
        }
        let rooms = candidates.len();
        let waits = |node: &Node| !node.dead && node.machine.next_deadline().is_some();
        candidates
            .extend((0..).zip(&self.nodes).filter(|(_, node)| waits(node)).map(|(index, _)| (index, 0)));
        if candidates.is_empty() {
            return false;
        }
        self.now = self.now.plus_ns(100);
        let choice = choose(candidates.len());
        if choice >= rooms {
            let node = candidates[choice].0;
            let deadline = self.nodes[node as usize].machine.next_deadline().expect("it waits");
            self.now = self.now.max(deadline);
            self.handle(node, Event::Deadline);
            return true;
        }
        let (from, to) = candidates[choice];
        if choice >= arrivals {
            let node = &mut self.nodes[from as usize];
            node.asking.retain(|peer| peer.0 != to);
            let free = self.plan.quota_slots - self.lanes.entry((from, to)).or_default().data_slots;
            self.handle(from, Event::Room { peer: Peer(to), slots: free });
            return true;
        }
        let packet = self.lanes.get(&(from, to)).and_then(|lane| lane.packets.front()).expect("chosen").0;
        self.handle(to, Event::Arrived { from: Peer(from), packet });
        true
    }

    /// Lets everything happen that can; when nothing does, endpoints are told so.
    pub fn settle(&mut self, mut choose: impl FnMut(usize) -> usize) {
        let mut steps = 0;
        while self.step(&mut choose) || self.idle() {
            steps += 1;
            assert!(steps < 10_000_000, "the world does not come to rest");
        }
    }

    /// Tells the endpoints that nothing happens. Returns whether one of them had been waiting for that.
    pub fn idle(&mut self) -> bool {
        let mut any = false;
        for node in 0..self.plan.endpoints {
            let Node { machine, dead, .. } = &self.nodes[node as usize];
            if machine.has_company_waiting() && !dead {
                any = true;
                self.handle(node, Event::Idle);
            }
        }
        any
    }

    /// Nothing is under way or left over anywhere.
    pub fn assert_at_rest(&self) {
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| !node.dead) {
            assert!(node.machine.is_quiet(), "endpoint {index} is not at rest: {:?}", node.machine);
            let left: Vec<_> = node.buffers.iter().filter(|buffer| buffer.is_some()).collect();
            assert!(left.is_empty(), "endpoint {index}: {} requests never completed", left.len());
            assert!(node.kept.is_empty(), "endpoint {index} keeps {:?}", node.kept.keys());
            assert!(node.retained.is_empty(), "endpoint {index} retains {:?}", node.retained.keys());
        }
        self.assert_counted();
        for (pair, lane) in &self.lanes {
            assert!(lane.packets.is_empty(), "lane {pair:?} holds packets");
        }
    }

    /// What the machines say that they did is what was seen from outside.
    fn assert_counted(&self) {
        for node in self.nodes.iter().filter(|node| !node.dead) {
            let counters = node.machine.counters();
            let by_kind = counters.packets_by_kind();
            let seen = PACKET_KINDS.map(|kind| node.kinds.get(kind).copied().unwrap_or(0));
            assert_eq!(by_kind, seen, "packets by kind: {PACKET_KINDS:?}");
            assert_eq!(counters.packets_sent, seen.iter().sum::<u64>());
            let pairs: Vec<_> = node.machine.pairs(self.now).collect();
            assert_eq!(pairs.iter().map(|pair| pair.stalled_ns).sum::<u64>(), counters.stalled_ns);
            for pair in pairs {
                let Some(sending) = pair.sending else { continue };
                let (Some(quota), Some(granted)) = (sending.quota_slots, sending.granted_total) else {
                    continue;
                };
                let spent = node.slots.get(&pair.peer).copied().unwrap_or(0);
                assert_eq!((sending.spent_total, sending.credits), (Some(spent), quota + granted - spent));
            }
        }
    }

    /// No endpoint has kept or retained more than it was to.
    pub fn assert_within_budget(&self) {
        let bounds = self.plan.scheme.grants();
        for (index, node) in self.nodes.iter().enumerate() {
            let (kept, budget) = (node.peak_kept_cost_bytes, self.plan.budget_bytes);
            assert!(!bounds || kept <= budget, "endpoint {index} kept {kept} of {budget} bytes");
            let (retained, limit) = (node.peak_retained_bytes as u64, self.plan.retain_bytes);
            assert!(retained <= limit, "endpoint {index} retained {retained} of {limit} bytes");
        }
    }

    /// Requests of `node` that have not completed.
    pub fn outstanding(&self, node: u32) -> Vec<Request> {
        let buffers = self.nodes[node as usize].buffers.iter().enumerate();
        buffers.filter(|(_, buffer)| buffer.is_some()).map(|(index, _)| Request(index as u32)).collect()
    }

    /// Every request of these endpoints has completed.
    pub fn assert_no_requests_left(&self, nodes: &[usize]) {
        for &index in nodes {
            let left = self.nodes[index].buffers.iter().filter(|buffer| buffer.is_some()).count();
            assert_eq!(left, 0, "endpoint {index}: requests never completed");
        }
    }

    fn handle(&mut self, node: u32, event: Event) {
        let mut actions = Vec::new();
        let mut next = Some(event);
        while let Some(event) = next {
            let arrived_from = match &event {
                Event::Arrived { from, .. } => Some(from.0),
                _ => None,
            };
            let now = self.now;
            self.nodes[node as usize].machine.handle(now, event, &mut actions);
            let mut retired = 0;
            for action in actions.drain(..) {
                retired += u32::from(action == Action::Retire);
                if let Some(record) = &mut self.record {
                    record.push((node, action.clone()));
                }
                let placed_late = retired > 0 && matches!(action, Action::Place { .. });
                assert!(!placed_late, "a payload is placed after its slots were freed");
                self.perform(node, arrived_from, action);
            }
            assert_eq!(retired, u32::from(arrived_from.is_some()), "exactly one retirement per arrival");
            self.check_pool(node);
            next = self.nodes[node as usize].events.pop_front();
        }
    }

    /// I1, I3 and I6 as the machine counts, and I1 as the lanes show it. With the same settings everywhere the thresholds
    /// alone keep I2.
    fn check_pool(&self, node: u32) {
        let Scheme::Dynamic { .. } = self.plan.scheme else { return };
        let pool = self.nodes[node as usize].machine.pool();
        pool.assert_invariants();
        assert_eq!(pool.tally().put_off, 0, "I2 rests on the thresholds");
        for account in pool.accounts() {
            let filled = self.lanes.get(&(account.owner.0, node)).map_or(0, |lane| lane.data_slots);
            assert!(filled <= account.current, "I1: {filled} slots filled: {account:?}");
        }
    }

    fn perform(&mut self, node: u32, arrived_from: Option<u32>, action: Action) {
        self.trace = (self.trace ^ u64::from(node)).wrapping_mul(0x0000_0100_0000_01b3);
        match action {
            Action::Connect { to } => {
                let Plan { quota_slots, start_slots, credit_slots, .. } = self.plan;
                let us = Peer(node);
                if to.0 != node {
                    self.handle(to.0, Event::Attached { peer: us, quota_slots, start_slots });
                } else {
                    let attached = Event::Attached { peer: us, quota_slots, start_slots };
                    self.nodes[node as usize].events.push_back(attached);
                }
                let connected = Event::Connected { peer: to, quota_slots, start_slots, credit_slots };
                self.nodes[node as usize].events.push_back(connected);
            }
            Action::Transmit { to, packet, payload } => self.transmit(node, to, packet, payload),
            Action::AskRoom { to, at_once: false } => self.nodes[node as usize].asking.push(to),
            Action::AskRoom { to, at_once: true } => {
                let filled = self.lanes.get(&(node, to.0)).map_or(0, |lane| lane.data_slots);
                let slots = self.plan.quota_slots - filled;
                self.nodes[node as usize].events.push_back(Event::Room { peer: to, slots });
            }
            Action::Keep { message, bytes } => {
                let before = self.nodes[node as usize].kept.insert(message, vec![0; bytes as usize]);
                assert!(before.is_none(), "{message:?} is kept twice");
                let node = &mut self.nodes[node as usize];
                let cost = node.kept.values().map(|kept| kept_cost_bytes(kept.len() as u64)).sum();
                node.peak_kept_cost_bytes = node.peak_kept_cost_bytes.max(cost);
            }
            Action::Retain { transfer, request } => {
                let node = &mut self.nodes[node as usize];
                let copy = node.buffers[request.0 as usize].clone().expect("outstanding");
                let before = node.retained.insert(transfer.copy().expect("a copy"), copy);
                assert!(before.is_none(), "{transfer:?} is retained twice");
                let bytes = node.retained.values().map(Vec::len).sum();
                node.peak_retained_bytes = node.peak_retained_bytes.max(bytes);
            }
            Action::Release { transfer } => {
                let copy = transfer.copy().expect("a copy");
                let released = self.nodes[node as usize].retained.remove(&copy);
                assert!(released.is_some(), "{transfer:?} is not retained");
            }
            Action::Place { to, bytes } => {
                let lane = &self.lanes[&(arrived_from.expect("an arrival"), node)];
                let payload = lane.packets.front().expect("not retired").1[..bytes as usize].to_vec();
                let node = &mut self.nodes[node as usize];
                let (into, offset) = match to {
                    Destination::Request { request, offset } => {
                        (node.buffers[request.0 as usize].as_mut().expect("outstanding"), offset)
                    }
                    Destination::Message { message, offset } => {
                        (node.kept.get_mut(&message).expect("kept"), offset)
                    }
                    Destination::Region { key, offset } => {
                        (node.regions.get_mut(&key).expect("exposed"), offset)
                    }
                };
                into[offset as usize..][..payload.len()].copy_from_slice(&payload);
            }
            Action::Retire => {
                let lane = self.lanes.get_mut(&(arrived_from.expect("an arrival"), node)).expect("a lane");
                let (packet, _) = lane.packets.pop_front().expect("a packet");
                if packet.body.is_credit() {
                    lane.credit_packets -= 1;
                } else {
                    lane.data_slots -= self.plan.geometry.packet_slots(&packet);
                }
            }
            Action::Deliver { message, request, offset, bytes } => {
                let node = &mut self.nodes[node as usize];
                let from = &node.kept[&message][..bytes as usize];
                let into = node.buffers[request.0 as usize].as_mut().expect("outstanding");
                into[offset as usize..][..from.len()].copy_from_slice(from);
            }
            Action::Forget { message } => {
                assert!(self.nodes[node as usize].kept.remove(&message).is_some(), "{message:?} is not kept");
            }
            Action::Copy { transfer, request, peer, direction, address, offset, bytes } => {
                let result = if self.plan.copies_forbidden {
                    Err(CopyFault::Forbidden)
                } else if self.severed.contains(&(peer.0, node)) {
                    Err(CopyFault::Gone)
                } else {
                    self.copy(node, request, peer, direction, address, offset, bytes);
                    Ok(())
                };
                self.nodes[node as usize].events.push_back(Event::CopyDone { transfer, result });
            }
            Action::Sever { peer } => {
                self.severed.insert((node, peer.0));
                if let Some(lane) = self.lanes.get_mut(&(peer.0, node)) {
                    let Lane { spent_total, granted_total, .. } = *lane;
                    *lane = Lane { spent_total, granted_total, ..Lane::default() };
                }
                self.nodes[node as usize].asking.retain(|asking| *asking != peer);
            }
            Action::Notify { from, data, bytes } => {
                self.nodes[node as usize].notices.push((from, data, bytes));
            }
            Action::Complete { request, outcome } => {
                let node = &mut self.nodes[node as usize];
                let buffer = node.buffers[request.0 as usize].clone().expect("completed once");
                if !matches!(outcome, Outcome::Received { last: false, .. }) {
                    node.buffers[request.0 as usize] = None;
                }
                node.completions.push_back((request, outcome, buffer));
            }
        }
    }

    fn transmit(&mut self, node: u32, to: Peer, mut packet: Packet, payload: Source) {
        let sender = &mut self.nodes[node as usize];
        *sender.kinds.entry(kind(&packet.body)).or_default() += 1;
        if !packet.body.is_credit() {
            *sender.slots.entry(to).or_default() += self.plan.geometry.packet_slots(&packet);
        }
        let from = &self.nodes[node as usize];
        match (&mut packet.body, payload) {
            (Body::Rendezvous { address, .. }, Source::Request { request, .. }) if self.plan.cross_memory => {
                *address = (u64::from(request.0) + 1) << 32;
            }
            (Body::Rendezvous { address, .. }, Source::Retained { transfer, .. })
                if self.plan.cross_memory =>
            {
                *address = u64::from(transfer.copy().expect("a copy")) + 1;
            }
            (Body::Located { key, offset, address, refused: false, .. }, _) => {
                *address = (*key << 48) | *offset
            }
            _ => {}
        }
        let bytes = packet.payload_bytes as usize;
        let payload = match payload {
            _ if bytes == 0 => Vec::new(),
            Source::None => panic!("a payload of {bytes} bytes from nowhere"),
            Source::Request { request, offset } => {
                from.buffers[request.0 as usize].as_ref().expect("outstanding")[offset as usize..][..bytes]
                    .to_vec()
            }
            Source::Retained { transfer, offset } => {
                from.retained[&transfer.copy().expect("a copy")][offset as usize..][..bytes].to_vec()
            }
            Source::Region { key, offset } => from.regions[&key][offset as usize..][..bytes].to_vec(),
        };
        let slots = self.plan.geometry.packet_slots(&packet);
        assert!(slots <= self.plan.geometry.max_packet_slots, "{slots} slots in one packet");
        // What the packet grants is spent on the lane the other way.
        self.lanes.entry((to.0, node)).or_default().granted_total = packet.granted_total;
        let lane = self.lanes.entry((node, to.0)).or_default();
        let said_hold = std::mem::replace(&mut lane.says_hold, packet.marks.hold);
        self.switched_on += u64::from(!said_hold && packet.marks.hold);
        self.switched_off += u64::from(said_hold && !packet.marks.hold);
        if packet.body.is_credit() {
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
        if !self.nodes[to.0 as usize].dead {
            lane.packets.push_back((packet, payload));
        }
        self.trace = (self.trace ^ u64::from(slots)).wrapping_mul(0x0000_0100_0000_01b3);
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of the action")]
    fn copy(
        &mut self,
        node: u32,
        request: Request,
        peer: Peer,
        direction: Direction,
        address: u64,
        offset: u64,
        bytes: u64,
    ) {
        let there = &mut self.nodes[peer.0 as usize];
        let key = address >> 48;
        let (memory, at) = if key > 0 {
            (there.regions.get_mut(&key).expect("exposed"), (address & ((1 << 48) - 1)) as usize)
        } else if address >> 32 == 0 {
            (there.retained.get_mut(&(address as u32 - 1)).expect("retained"), 0)
        } else {
            let request = (address >> 32) as usize - 1;
            (there.buffers[request].as_mut().expect("announced"), 0)
        };
        let (offset, bytes) = (offset as usize, bytes as usize);
        match direction {
            Direction::Get => {
                let data = memory[at..][..bytes].to_vec();
                let into =
                    self.nodes[node as usize].buffers[request.0 as usize].as_mut().expect("outstanding");
                into[offset..][..bytes].copy_from_slice(&data);
            }
            Direction::Put => {
                let data = self.nodes[node as usize].buffers[request.0 as usize]
                    .as_ref()
                    .expect("outstanding")[offset..][..bytes]
                    .to_vec();
                let there = &mut self.nodes[peer.0 as usize];
                let memory = there.regions.get_mut(&key).expect("exposed");
                memory[at..][..bytes].copy_from_slice(&data);
            }
        }
    }
}
