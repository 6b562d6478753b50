//! A world for tests: endpoints, lanes between them, real bytes, and a schedule drawn from a seed.
//!
//! It performs actions as any driver must, and watches from outside: that no packet arrives without a free slot
//! (I1), that credit packets never outnumber their slots (I2), that nothing is left over at the end.

use std::collections::{BTreeMap, VecDeque};

use weir_proto::{
    Action, Body, Command, Config, CopyFault, DataRegion, Destination, Direction, Endpoint, Event, Geometry,
    Instant, MessageId, Outcome, Packet, Peer, PeerFault, Request, Scheme, SendCommand, Source,
};

/// What all endpoints of a world have in common.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub endpoints: u32,
    pub scheme: Scheme,
    pub geometry: Geometry,
    pub quota_slots: u32,
    pub credit_slots: u32,
    /// With dynamic credits `quota_slots` is what a lane can hold.
    pub region: DataRegion,
    pub eager_bytes: u64,
    pub cross_memory: bool,
    /// The kernel says no when a copy is tried.
    pub copies_forbidden: bool,
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
        }
    }
}

#[derive(Debug, Default)]
struct Lane {
    packets: VecDeque<(Packet, Vec<u8>)>,
    data_slots: u32,
    credit_packets: u32,
}

#[derive(Debug)]
pub struct Node {
    pub machine: Endpoint,
    buffers: Vec<Option<Vec<u8>>>,
    kept: BTreeMap<MessageId, Vec<u8>>,
    regions: BTreeMap<u64, Vec<u8>>,
    events: VecDeque<Event>,
    asking: Vec<Peer>,
    /// What has completed: the request, how, and the buffer as it was then.
    pub completions: VecDeque<(Request, Outcome, Vec<u8>)>,
    pub notices: Vec<(Peer, u64, u64)>,
    dead: bool,
}

pub struct World {
    pub plan: Plan,
    pub nodes: Vec<Node>,
    lanes: BTreeMap<(u32, u32), Lane>,
    pub now: Instant,
    pub trace: u64,
    /// Everything that was done, by whom, if somebody asks for it.
    pub record: Option<Vec<(u32, Action)>>,
}

impl World {
    pub fn new(plan: Plan) -> World {
        let node = |_| Node {
            machine: Endpoint::new(plan.config()),
            buffers: Vec::new(),
            kept: BTreeMap::new(),
            regions: BTreeMap::new(),
            events: VecDeque::new(),
            asking: Vec::new(),
            completions: VecDeque::new(),
            notices: Vec::new(),
            dead: false,
        };
        World {
            plan,
            nodes: (0..plan.endpoints).map(node).collect(),
            lanes: BTreeMap::new(),
            now: Instant(0),
            trace: 0,
            record: None,
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
                let payload = Source::Request { request, offset: 0 };
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

    /// Lets one thing happen, chosen by `choose(count)`: a packet arrives somewhere, or somebody finds room. Returns
    /// whether anything could.
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
        if candidates.is_empty() {
            return false;
        }
        self.now = self.now.plus_ns(100);
        let choice = choose(candidates.len());
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

    /// Lets everything happen that can.
    pub fn settle(&mut self, mut choose: impl FnMut(usize) -> usize) {
        let mut steps = 0;
        while self.step(&mut choose) {
            steps += 1;
            assert!(steps < 10_000_000, "the world does not come to rest");
        }
    }

    /// Nothing is under way or left over anywhere.
    pub fn assert_at_rest(&self) {
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| !node.dead) {
            assert!(node.machine.is_quiet(), "endpoint {index} is not at rest: {:?}", node.machine);
            let left: Vec<_> = node.buffers.iter().filter(|buffer| buffer.is_some()).collect();
            assert!(left.is_empty(), "endpoint {index}: {} requests never completed", left.len());
            assert!(node.kept.is_empty(), "endpoint {index} keeps {:?}", node.kept.keys());
        }
        for (pair, lane) in &self.lanes {
            assert!(lane.packets.is_empty(), "lane {pair:?} holds packets");
        }
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
                let Plan { quota_slots, credit_slots, .. } = self.plan;
                let us = Peer(node);
                if to.0 != node {
                    self.handle(to.0, Event::Attached { peer: us, quota_slots });
                } else {
                    self.nodes[node as usize].events.push_back(Event::Attached { peer: us, quota_slots });
                }
                let start_slots = match self.plan.scheme {
                    Scheme::Dynamic { .. } => self.plan.region.start_slots,
                    _ => quota_slots,
                };
                let connected = Event::Connected { peer: to, quota_slots, start_slots, credit_slots };
                self.nodes[node as usize].events.push_back(connected);
            }
            Action::Transmit { to, packet, payload } => self.transmit(node, to, packet, payload),
            Action::AskRoom { to } => self.nodes[node as usize].asking.push(to),
            Action::Keep { message, bytes } => {
                let before = self.nodes[node as usize].kept.insert(message, vec![0; bytes as usize]);
                assert!(before.is_none(), "{message:?} is kept twice");
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
                } else {
                    self.copy(node, request, peer, direction, address, offset, bytes);
                    Ok(())
                };
                self.nodes[node as usize].events.push_back(Event::CopyDone { transfer, result });
            }
            Action::Sever { peer } => {
                if let Some(lane) = self.lanes.get_mut(&(peer.0, node)) {
                    *lane = Lane::default();
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
        let from = &self.nodes[node as usize];
        match (&mut packet.body, payload) {
            (Body::Rendezvous { address, .. }, Source::Request { request, .. }) if self.plan.cross_memory => {
                *address = (u64::from(request.0) + 1) << 32;
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
            Source::Region { key, offset } => from.regions[&key][offset as usize..][..bytes].to_vec(),
        };
        let slots = self.plan.geometry.packet_slots(&packet);
        assert!(slots <= self.plan.geometry.max_packet_slots, "{slots} slots in one packet");
        let lane = self.lanes.entry((node, to.0)).or_default();
        if packet.body.is_credit() {
            lane.credit_packets += 1;
            assert!(lane.credit_packets <= self.plan.credit_slots, "I2: {} unread", lane.credit_packets);
        } else {
            lane.data_slots += slots;
            let quota = self.plan.quota_slots;
            assert!(lane.data_slots <= quota, "I1: {} of {quota} slots filled", lane.data_slots);
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
