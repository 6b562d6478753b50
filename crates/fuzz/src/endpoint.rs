//! The machine of an endpoint and its offloaded machines. Three peers, members of the job, send packets in any order, while
//! the program sends, receives, changes words and takes part in a group.

use crate::memory::KEY;
use crate::rank::{MOST_PAYLOAD, PEERS, Rank};
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use weir_proto::offload::atomics::{AtomicPacket, AtomicsCommand, FetchCommand, VectorCommand};
use weir_proto::offload::group::{GroupCommand, GroupPacket, Membership, Operation, Shape};
use weir_proto::offload::reduce::Vector;
use weir_proto::offload::{
    Combination, OffloadCommand, Offloaded, VectorUpdate, WordOperation, WordType, WordUpdate,
};
use weir_proto::wire::{SLOT_BYTES, decode, encode};
use weir_proto::{
    Body, Command, CopyFault, Event, Growth, MessageCopy, MultiSendCommand, Packet, Pattern, PeekThen, Peer,
    ReceiveCommand, RemoteCommand, Request, Scheme, SendCommand, SendLevel, Space,
};

/// Of an input: the scheme, and bits for the rest.
const HEAD_BYTES: usize = 2;
/// A control byte with this bit comes before a slot. Its lowest bits name the sender.
const PACKET: u8 = 0x80;
/// The group, and the rank of the endpoint in it.
const GROUP: u32 = 9;

/// Every scheme, and both settings of those that have one.
fn scheme(number: u8) -> Scheme {
    let some = NonZeroU32::new(3);
    match number % 9 {
        0 => Scheme::Demand,
        1 => Scheme::Static { piggyback: true },
        2 => Scheme::Static { piggyback: false },
        3 => Scheme::Dynamic { piggyback: true },
        4 => Scheme::Dynamic { piggyback: false },
        5 => Scheme::Unlimited,
        6 => Scheme::Hardware { rnr_timer_ns: 1000, rnr_retries: 2 },
        7 => Scheme::StaticConnection { ecm_threshold: some },
        _ => Scheme::AdaptiveBacklog { growth: Growth::Exponential, ecm_threshold: None },
    }
}

/// What the program does.
struct Program {
    rank: Rank,
    /// Receives from anybody: they may wait when all peers are lost.
    from_anybody: BTreeSet<Request>,
    operations: u8,
}

/// The scheme, a byte of settings, and then control bytes: with [`PACKET`] a slot follows, otherwise it is an act of the
/// program.
pub fn packets_of_peers(bytes: &[u8]) {
    let Some((&[number, settings], mut rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return };
    let rank = Rank::new(scheme(number), settings & 1 != 0);
    let mut program = Program { rank, from_anybody: BTreeSet::new(), operations: 0 };
    program.rank.expose();
    if settings & 2 != 0 {
        program.join(settings >> 2);
    }
    while let Some((&control, behind)) = rest.split_first() {
        rest = behind;
        if control & PACKET == 0 {
            program.act(control & 0x1f, Peer(1 + u32::from(control >> 5) % PEERS));
            continue;
        }
        let (bytes, behind) = rest.split_at(rest.len().min(SLOT_BYTES));
        rest = behind;
        let mut slot = [0; SLOT_BYTES];
        slot[..bytes.len()].copy_from_slice(bytes);
        if let Ok(packet) = decode(&slot, MOST_PAYLOAD) {
            program.rank.arrives(Peer(1 + u32::from(control) % PEERS), &slot, &packet);
        }
    }
    let Program { mut rank, from_anybody, .. } = program;
    if settings & 2 != 0 {
        rank.post_offloaded(None, OffloadCommand::Group(GroupCommand::Leave { group: GROUP }));
    }
    rank.end(|request| from_anybody.contains(&request));
}

impl Program {
    /// Takes part in a group of all, with any rank.
    fn join(&mut self, rank: u8) {
        let rank = u32::from(rank) % (PEERS + 1);
        let mut members: Vec<Peer> = (1..=PEERS).map(Peer).collect();
        members.insert(rank as usize, Peer(0));
        let patience_ns = Some(1_000_000);
        let membership = Membership { group: GROUP, members, rank, patience_ns, shape: Shape::default() };
        self.rank.post_offloaded(None, OffloadCommand::Group(GroupCommand::Join(membership)));
    }

    fn act(&mut self, act: u8, peer: Peer) {
        let space = Space::Tagged;
        match act {
            0 => self.receive(None, 100, None),
            1 => self.receive(Some(peer), 4000, None),
            2 => self.receive(None, 3000, Some(100)),
            3 => self.send(peer, 8, SendLevel::Injected),
            4 => self.send(peer, 900, SendLevel::Delivered),
            5 => self.send(peer, 5000, SendLevel::Matched),
            6 => self.send(peer, 5000, SendLevel::Buffered),
            7 => {
                let to_each = |to: u32| MessageCopy {
                    to: Peer(to),
                    request: self.rank.memory.request(600),
                    data: None,
                };
                let copies: Vec<MessageCopy> = (1..=PEERS).map(to_each).collect();
                let level = SendLevel::Buffered;
                let multi_send = MultiSendCommand { copies: &copies, space, tag: 7, bytes: 600, level };
                if self.rank.handle(Event::PostedCopies(multi_send)).is_err() {
                    copies.iter().for_each(|copy| self.rank.memory.refuse(copy.request));
                }
            }
            8 | 9 => {
                let (request, bytes) = (self.rank.memory.request(2000), 2000);
                let remote =
                    RemoteCommand { request, peer, key: 3, offset: 8, bytes, data: (act == 9).then_some(4) };
                let command = if act == 8 { Command::Read(remote) } else { Command::Write(remote) };
                self.rank.post(request, Event::Posted(command));
            }
            10..13 => self.change_words(act, peer),
            13 | 14 => self.operate(),
            15 => self.rank.advance(2000),
            16 => self.rank.advance(2_000_000),
            17 => _ = self.rank.handle(Event::Idle),
            18 => _ = self.rank.handle(Event::CreditsDue { peer }),
            19 => self.rank.copy_ends(Ok(())),
            20 => self.rank.copy_ends(Err(CopyFault::Forbidden)),
            21 => self.rank.copy_ends(Err(CopyFault::BadAddress)),
            22 => self.rank.set_busy(true),
            23 => self.rank.set_busy(false),
            24 => self.rank.lose(peer),
            25 | 26 => {
                let request = self.rank.memory.request(0);
                let pattern = Pattern { space, from: None, tag: 0, ignore: u64::MAX };
                let then = if act == 25 { PeekThen::LeaveUntilSeenTwice } else { PeekThen::Discard };
                // A peek that asks a holder waits for its answer.
                self.rank.post(request, Event::Posted(Command::Peek { request, pattern, then }));
            }
            27 => {
                if let Some(request) = self.from_anybody.iter().next().copied()
                    && self.rank.memory.outstanding().any(|outstanding| outstanding == request)
                {
                    self.rank.post(request, Event::Posted(Command::Cancel { request }));
                }
            }
            _ => {}
        }
    }

    fn receive(&mut self, from: Option<Peer>, capacity_bytes: u64, multi: Option<u64>) {
        let request = self.rank.memory.request(capacity_bytes as usize);
        if from.is_none() {
            self.from_anybody.insert(request);
        }
        let pattern = Pattern { space: Space::Tagged, from, tag: 0, ignore: u64::MAX };
        let receive = ReceiveCommand { request, pattern, capacity_bytes, multi };
        self.rank.post(request, Event::Posted(Command::Receive(receive)));
    }

    fn send(&mut self, to: Peer, bytes: u64, level: SendLevel) {
        let request = self.rank.memory.request(bytes as usize);
        let send = SendCommand { request, to, space: Space::Tagged, tag: 7, data: None, bytes, level };
        self.rank.post(request, Event::Posted(Command::Send(send)));
    }

    /// Changes words of a peer: one, a vector, or several with a compare value.
    fn change_words(&mut self, act: u8, peer: Peer) {
        let update = WordUpdate {
            operation: WordOperation::CompareSwap,
            word_type: WordType::U64,
            operand: 4,
            compare: 5,
        };
        let (key, offset) = (3, 8);
        let (request, command) = match act {
            10 => {
                let request = self.rank.memory.request(8);
                let fetch = FetchCommand { request, peer, key, offset, update, fetch: true };
                (request, AtomicsCommand::Fetch(fetch))
            }
            11 => {
                let request = self.rank.memory.request(800);
                let combination = Combination { operation: WordOperation::Sum, word_type: WordType::I32 };
                let update = VectorUpdate { key, offset, bytes: 800, combination };
                (request, AtomicsCommand::Vector(VectorCommand { request, peer, update, fetch: true }))
            }
            _ => {
                let request = self.rank.memory.request(24);
                (request, AtomicsCommand::Words { request, peer, key, offset, updates: vec![update; 3] })
            }
        };
        self.rank.post_offloaded(Some(request), OffloadCommand::Atomics(command));
    }

    /// Starts the next operation of the group.
    fn operate(&mut self) {
        let sum = |bytes, word_type| Vector {
            bytes,
            combination: Combination { operation: WordOperation::Sum, word_type },
        };
        let operation = match self.operations % 8 {
            0 => Operation::Barrier,
            1 => Operation::AllReduce(sum(800, WordType::F64)),
            2 => Operation::Reduce(sum(8, WordType::U64)),
            3 => Operation::Broadcast { root: 2, bytes: 700 },
            4 => Operation::Exchange { distance: 1, bytes: 600 },
            5 => Operation::Gather { root: 1, bytes: 300 },
            6 => Operation::Scatter { root: 0, bytes: 300 },
            _ => Operation::AllReduce(sum(40, WordType::I32)),
        };
        self.operations = self.operations.wrapping_add(1);
        // Room for the blocks of all.
        let request = self.rank.memory.request(operation.bytes() as usize * (PEERS as usize + 1));
        let command = GroupCommand::Start { request, group: GROUP, operation };
        self.rank.post_offloaded(Some(request), OffloadCommand::Group(command));
    }
}

/// Packets of every kind that matters to the machines, as a correct member could send them.
fn packets() -> Vec<Packet> {
    let eager = Body::Eager { space: Space::Tagged, tag: 7, data: None, length: 4, acknowledge: None };
    let long = Body::Eager { space: Space::Tagged, tag: 7, data: None, length: 300, acknowledge: None };
    let update = |operation| WordUpdate { operation, word_type: WordType::U64, operand: 3, compare: 0 };
    let combination = Combination { operation: WordOperation::Sum, word_type: WordType::U32 };
    let vector = VectorUpdate { key: KEY, offset: 16, bytes: 64, combination };
    let atomic = |packet| Body::Offloaded(Offloaded::Atomic(packet));
    let group = |packet| Body::Offloaded(Offloaded::Group(packet));
    let part = |operation| group(GroupPacket::Part { group: GROUP, operation, blocks: 1, offset: 0 });
    let sums = Vector { bytes: 800, combination: Combination { word_type: WordType::F64, ..combination } };
    [
        (eager, 4),
        (long, 200),
        (Body::More { offset: 200 }, 100),
        (Body::Credit, 0),
        (atomic(AtomicPacket::request(KEY, 8, update(WordOperation::Sum), true)), 0),
        (atomic(AtomicPacket::Vector { update: vector, fetch: true, at: 0 }), 64),
        (atomic(AtomicPacket::Result { old: 7, refused: false }), 0),
        (atomic(AtomicPacket::VectorResult { bytes: 800, at: 0 }), 200),
        (group(GroupPacket::Joined { group: GROUP, all: true }), 0),
        (part(Operation::Barrier), 0),
        (part(Operation::AllReduce(sums)), 200),
        (part(Operation::Broadcast { root: 2, bytes: 700 }), 200),
        (part(Operation::Exchange { distance: 1, bytes: 600 }), 200),
        (group(GroupPacket::Taken { group: GROUP, refused: false }), 0),
        (group(GroupPacket::Failed { group: GROUP, member: 1, fault: weir_proto::PeerFault::Died }), 0),
        (Body::Goodbye, 0),
    ]
    .into_iter()
    .map(|(body, payload_bytes)| Packet::new(body, payload_bytes))
    .collect()
}

pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut seeds = Vec::new();
    let packets = packets();
    for number in 0..9 {
        for settings in [0, 1, 2, 6, 10, 14] {
            let mut bytes = vec![number, settings];
            // Acts of the program and packets of all peers, in turn.
            for (act, packet) in (0..).zip(&packets) {
                bytes.extend([act % 15, 13]);
                for peer in 0..PEERS as u8 {
                    bytes.push(PACKET | peer);
                    bytes.extend(encode(&Packet { number: u32::from(act) / 3, ..*packet }));
                }
            }
            seeds.push(("endpoint", bytes));
        }
    }
    seeds
}
