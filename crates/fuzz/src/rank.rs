//! An endpoint with its offloaded machines and its memory ([`Rank`]). Its driver does what they ask, as every driver must.

use crate::memory::{KEY, RankMemory};
use std::collections::BTreeSet;
use weir_proto::offload::{Offload, OffloadCommand};
use weir_proto::wire::{decode, encode};
use weir_proto::{
    Action, AttachPolicy, Config, DataRegion, Endpoint, Event, Geometry, Instant, Machine, MachineEvent,
    Packet, Peer, PeerFault, Recorder, Refusal, Request, Scheme, TimerKey,
};

/// Slots that a peer may fill.
pub(crate) const QUOTA_SLOTS: u32 = 64;
const CREDIT_SLOTS: u32 = 2;
/// The peers are 1 to this number; 0 is the endpoint.
pub(crate) const PEERS: u32 = 3;
/// Slots that all peers share, in schemes with a region.
const REGION_SLOTS: u32 = 256 + PEERS * QUOTA_SLOTS;
/// Unexpected messages that the machine keeps.
const MOST_UNEXPECTED: u32 = 1 << 12;
/// What it may spend on their payload. Unit: bytes.
const BUDGET_BYTES: u64 = 1 << 16;
/// The longest payload of a packet: four slots, of which the header takes at least a third of one. Unit: bytes.
pub(crate) const MOST_PAYLOAD: u32 = 4 * Geometry::SHARED_MEMORY.slot_bytes - 20;
/// Bound: events that follow from one, so that a circle is a finding. One loss can end all operations.
const MOST_CAUSED: usize = 100_000;

fn config(scheme: Scheme, cross_memory: bool) -> Config {
    Config {
        scheme,
        geometry: Geometry { max_packet_slots: 4, ..Geometry::SHARED_MEMORY },
        credit_slots: CREDIT_SLOTS,
        region: DataRegion {
            slots: REGION_SLOTS,
            peers: PEERS,
            start_slots: QUOTA_SLOTS,
            attach_policy: AttachPolicy::FirstContact,
            grace_points: 0,
        },
        eager_bytes: 1000,
        cross_memory,
        remote_inline_bytes: 100,
        max_backlog: 64,
        max_unexpected: MOST_UNEXPECTED,
        unexpected_budget_bytes: BUDGET_BYTES,
        bounce_bytes: 1 << 16,
        envelope_budget_bytes: 1 << 12,
        planned_peers: PEERS,
        planned_quota_slots: QUOTA_SLOTS,
    }
}

/// See the head of this file.
pub(crate) struct Rank {
    scheme: Scheme,
    endpoint: Endpoint,
    offload: Offload,
    pub memory: RankMemory,
    attached: BTreeSet<Peer>,
    lost: BTreeSet<Peer>,
    epochs: u16,
    /// The link takes no packets.
    is_busy: bool,
    refused: BTreeSet<Peer>,
}

impl Rank {
    pub fn new(scheme: Scheme, cross_memory: bool) -> Rank {
        Rank {
            scheme,
            endpoint: Endpoint::new(config(scheme, cross_memory)),
            offload: Offload::default(),
            memory: RankMemory::new(),
            attached: BTreeSet::new(),
            lost: BTreeSet::new(),
            epochs: 0,
            is_busy: false,
            refused: BTreeSet::new(),
        }
    }

    /// An event, and all that follows from it.
    ///
    /// # Errors
    /// [`Refusal`]: only a command.
    pub fn handle(&mut self, event: Event<'_>) -> Result<(), Refusal> {
        let handled = self.handle_one(event);
        let mut caused = 0;
        while let Some(event) = self.memory.events.pop_front() {
            caused += 1;
            assert!(caused < MOST_CAUSED, "events follow from events without end: {event:?}");
            self.handle_one(event).expect("only commands are refused");
        }
        let (unexpected, unexpected_bytes) = self.endpoint.unexpected();
        if self.scheme.grants() {
            // Where senders share a region, a peer that ignores the marks can add what the region's slots bring.
            let slots = u64::from(REGION_SLOTS + PEERS * QUOTA_SLOTS);
            let most_bytes = BUDGET_BYTES + slots * u64::from(Geometry::SHARED_MEMORY.slot_bytes);
            assert!(
                unexpected <= MOST_UNEXPECTED && unexpected_bytes <= most_bytes,
                "{unexpected} of {unexpected_bytes} bytes"
            );
        }
        handled
    }

    fn handle_one(&mut self, event: Event<'_>) -> Result<(), Refusal> {
        let arrives = matches!(event, Event::Arrived { .. });
        if let Event::Lost { peer, .. } = event {
            self.lost.insert(peer);
        }
        let mut actions = Vec::new();
        let mut driver = match self.is_busy {
            true => Recorder::with_busy_link(self.memory.now, &mut actions, 0),
            false => Recorder::new(self.memory.now, &mut actions),
        };
        let handled = self.endpoint.handle(event, &mut driver);
        self.refused.extend(driver.refused);
        let retired = actions.iter().filter(|action| **action == Action::Retire).count();
        assert_eq!(retired, usize::from(arrives), "exactly one retirement for each arrival");
        actions.into_iter().for_each(|action| self.perform(action));
        handled
    }

    fn perform(&mut self, action: Action) {
        let Rank { memory, offload, .. } = self;
        match action {
            Action::Connect { to } => self.connect(to),
            Action::Transmit { to, packet, payload } => {
                assert!(!self.lost.contains(&to), "a packet to {to:?}, which is lost: {packet:?}");
                memory.check_source(payload, packet.payload_bytes);
                assert!(packet.payload_bytes <= MOST_PAYLOAD, "{packet:?}");
                assert_eq!(decode(&encode(&packet), MOST_PAYLOAD).map(|read| read.body), Ok(packet.body));
            }
            Action::Disconnect { .. } | Action::Retire | Action::Notify { .. } => {}
            Action::FreeLane { peer } => _ = self.attached.remove(&peer),
            Action::AskRoom { to, .. } => memory.events.push_back(Event::Room { peer: to, slots: 4 }),
            Action::SetTimer { timer, at } => memory.timers.set(timer.into(), at),
            Action::CancelTimer { timer } => memory.timers.cancel(timer.into()),
            Action::AllocateUnexpected { message, bytes } => memory.allocate_unexpected(message, bytes),
            Action::Place { to, bytes } => memory.place(to, bytes),
            Action::PassOn { from, number, packet, payload_bytes } => {
                let event = MachineEvent::Arrived { from, number, packet, payload_bytes };
                offload.handle(event, memory).expect("no command");
            }
            Action::AnswerLeft { buffer } => {
                memory.free_machine_buffer(buffer);
                offload.answer_left(buffer);
            }
            Action::Deliver { message, request, offset, bytes } => {
                memory.deliver(message, request, offset, bytes);
            }
            Action::FreeUnexpected { message } => memory.free_unexpected(message),
            Action::FillBounce { transfer, request } => memory.fill_bounce(transfer, request),
            Action::FreeBounce { transfer } => memory.free_bounce(transfer),
            Action::Copy(copy) => {
                memory.check_copy(copy.request, copy.offset, copy.bytes);
                memory.copies.push((copy.peer, copy.transfer));
            }
            Action::DropPeer { peer } => {
                self.lost.insert(peer);
                memory.copies.retain(|copy| copy.0 != peer);
                self.refused.remove(&peer);
            }
            Action::PeerLost { peer, fault } => {
                offload.handle(MachineEvent::Lost { peer, fault }, memory).expect("no command");
            }
            Action::Complete { request, outcome } => memory.completed(request, outcome),
        }
    }

    fn connect(&mut self, to: Peer) {
        let event = match self.lost.contains(&to) {
            true => Event::Lost { peer: to, fault: PeerFault::Unreachable },
            false => {
                self.epochs += 1;
                Event::Connected {
                    peer: to,
                    quota_slots: QUOTA_SLOTS,
                    start_slots: QUOTA_SLOTS,
                    credit_slots: CREDIT_SLOTS,
                    epoch: self.epochs - 1,
                }
            }
        };
        self.memory.events.push_back(event);
    }

    /// A packet of a peer, unless the peer is lost.
    pub fn arrives(&mut self, from: Peer, slot: &[u8], packet: &Packet) {
        if self.lost.contains(&from) {
            return;
        }
        if self.attached.insert(from) {
            let (quota_slots, start_slots) = (QUOTA_SLOTS, QUOTA_SLOTS);
            self.expect(Event::Attached { peer: from, quota_slots, start_slots, epoch: packet.epoch });
        }
        self.memory.arrives(slot, packet.payload_bytes);
        self.expect(Event::Arrived { from, packet });
    }

    fn expect(&mut self, event: Event<'_>) {
        self.handle(event).expect("only commands are refused");
    }

    /// Peers may read and change the words of the region.
    pub fn expose(&mut self) {
        use weir_proto::Command::RegisterMemory;
        use weir_proto::offload::atomics::{AtomicsCommand, ExposedRegion};
        let bytes = crate::memory::REGION_BYTES as u64;
        self.expect(Event::Posted(RegisterMemory { key: KEY, bytes, readable: true, writable: true }));
        let region = ExposedRegion { bytes, readable: true, writable: true };
        self.post_offloaded(None, OffloadCommand::Atomics(AtomicsCommand::Expose { key: KEY, region }));
    }

    /// A command of the program. `request`: of an operation that ends if it is refused.
    pub fn post(&mut self, request: Request, event: Event<'_>) {
        if self.handle(event).is_err() {
            self.memory.refuse(request);
        }
    }

    /// The same for a machine.
    pub fn post_offloaded(&mut self, request: Option<Request>, command: OffloadCommand) {
        let handled = self.offload.handle(MachineEvent::Posted(command), &mut self.memory);
        if let (Err(_), Some(request)) = (handled, request) {
            self.memory.refuse(request);
        }
        self.aftermath();
    }

    fn aftermath(&mut self) {
        if let Some(event) = self.memory.events.pop_front() {
            self.expect(event);
        }
    }

    /// Time passes, and timers expire.
    pub fn advance(&mut self, ns: u64) {
        self.memory.now = Instant(self.memory.now.0 + ns);
        for _ in 0..16 {
            match self.memory.timers.take_expired(self.memory.now) {
                Some(TimerKey::Endpoint(timer)) => self.expect(Event::TimerExpired(timer)),
                Some(TimerKey::Machine(timer)) => {
                    let event = MachineEvent::TimerExpired(timer);
                    self.offload.handle(event, &mut self.memory).expect("no command");
                    self.aftermath();
                }
                None => return,
            }
        }
    }

    /// The oldest copy between processes ends.
    pub fn copy_ends(&mut self, result: Result<(), weir_proto::CopyFault>) {
        if !self.memory.copies.is_empty() {
            let (_, transfer) = self.memory.copies.remove(0);
            self.expect(Event::CopyDone { transfer, result });
        }
    }

    /// From now on the link takes no packets, or takes them again.
    pub fn set_busy(&mut self, is_busy: bool) {
        self.is_busy = is_busy;
        while !self.is_busy
            && let Some(peer) = self.refused.pop_first()
        {
            self.expect(Event::LinkReady { peer });
        }
    }

    /// The engine reports this loss once.
    pub fn lose(&mut self, peer: Peer) {
        if !self.lost.contains(&peer) {
            self.expect(Event::Lost { peer, fault: PeerFault::Died });
        }
    }

    /// All peers are lost: everything ends that one of them could have ended.
    pub fn end(mut self, may_wait: impl Fn(Request) -> bool) {
        self.set_busy(false);
        while !self.memory.copies.is_empty() {
            self.copy_ends(Ok(()));
        }
        (1..=PEERS).for_each(|peer| self.lose(Peer(peer)));
        let waiting: Vec<Request> = self.memory.outstanding().filter(|request| !may_wait(*request)).collect();
        assert_eq!(waiting, [], "they wait for peers that are lost");
        assert!(self.offload.is_quiescent(), "a machine waits for peers that are lost");
        assert_eq!(self.memory.machine_buffers(), 0, "buffers of machines are left");
    }
}
