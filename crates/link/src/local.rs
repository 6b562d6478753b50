//! A link between endpoints of one process ([`LocalLink`]): a queue in the heap for each endpoint.
//!
//! It exists to prove that links are exchangeable: it has other slots than shared memory, remote memory with keys
//! ([`memory`]), and no lanes that are taken back. Tests put it beside shared memory in one endpoint
//! ([`crate::links`]).
//!
//! ```text
//! A: connect(0, address of B)     finds the mailbox of B by the part of its address, appends `Attach`
//! B: poll                         Attached { lane 0 }    B: accept(0, peer 0)
//! A: transmit                     appends the packet and its payload, rings B's bell
//! B: poll                         Packet { from: 0 }
//! ```
//! The credits of its senders bound the packets in a queue.

pub mod memory;

use self::memory::{LocalCopy, RegisteredMemory};
use crate::memory::UserMemory;
use crate::{
    Address, Addressing, Arrival, Bell, Capabilities, Inspect, LaneLease, Link, LinkKind, Polled, Properties,
    Quota, RemoteMemory, WakeUp,
};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weir_proto::{Geometry, LinkBusy, Packet, Peer, PeerFault};

/// Slots of 256 bytes, at most two for one packet. Packets are values here, so a header costs what it would cost on a
/// wire.
pub const GEOMETRY: Geometry = Geometry {
    slot_bytes: 256,
    max_packet_slots: 2,
    eager_header_bytes: 32,
    more_header_bytes: 16,
    remote_header_bytes: 48,
    piggyback_bytes: 0,
};

static RANDOM: LazyLock<RandomState> = LazyLock::new(RandomState::new);
/// The mailboxes of this process, by the identity of their endpoints.
static MAILBOXES: LazyLock<Mutex<HashMap<u64, Arc<Mailbox>>>> = LazyLock::new(Mutex::default);

/// Distinguishes this process from others, also from those that it has forked.
fn this_process() -> [u8; 8] {
    RANDOM.hash_one(std::process::id()).to_le_bytes()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that holds such a lock can panic half way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something in the queue of a mailbox, with the number of its lane.
enum Item {
    Attach { address: Address, epoch: u16 },
    Packet { packet: Packet, payload: Vec<u8> },
}

#[derive(Default)]
struct Queue {
    items: VecDeque<(u32, Item)>,
    next_lane: u32,
    bell: Option<Arc<dyn Bell>>,
    /// Somebody has rung since the last poll.
    rung: bool,
    /// Its owner has ended the use in this way.
    ended: Option<PeerFault>,
}

struct Mailbox {
    key: [u8; 16],
    quota: Quota,
    queue: Mutex<Queue>,
    arrival: Condvar,
    registered: RegisteredMemory,
}

impl Mailbox {
    fn ended(&self) -> Option<PeerFault> {
        lock(&self.queue).ended
    }

    /// Appends an item of a lane and wakes the owner. `lane`: `None` for a new one. Returns the lane, unless the mailbox
    /// is closed.
    fn push(&self, lane: Option<u32>, item: Item) -> Option<u32> {
        let mut queue = lock(&self.queue);
        if queue.ended.is_some() {
            return None;
        }
        let lane = lane.unwrap_or_else(|| {
            queue.next_lane += 1;
            queue.next_lane - 1
        });
        queue.items.push_back((lane, item));
        let bell = queue.bell.clone();
        drop(queue);
        self.arrival.notify_one();
        if let Some(bell) = bell {
            bell.ring();
        }
        Some(lane)
    }
}

/// Our lane in the mailbox of a peer.
struct Outbox {
    mailbox: Arc<Mailbox>,
    lane: u32,
    lease: LaneLease,
}

/// A lane of our mailbox.
enum Lane {
    /// Reported as attached. The mailbox of its sender, unless that is closed.
    Attached(Option<Arc<Mailbox>>),
    Open(Peer),
    /// Not read any more.
    Refused,
}

/// See the head of this file.
pub struct LocalLink {
    own: Arc<Mailbox>,
    /// The whole address of the endpoint.
    address: Address,
    outboxes: HashMap<Peer, Outbox>,
    /// The mailboxes of contacted peers.
    mailboxes: HashMap<Peer, Arc<Mailbox>>,
    copies: Vec<LocalCopy>,
    copies_started: usize,
    lanes: HashMap<u32, Lane>,
    /// The payload of the last polled packet.
    current: Option<Vec<u8>>,
    losses: VecDeque<(Peer, PeerFault)>,
    next_epoch: u16,
}

impl LocalLink {
    /// A mailbox for the endpoint that has the address `base` on its other links. Every sender gets `quota`.
    ///
    /// # Panics
    /// If the address has no room for the part of this link, or has one.
    pub fn open(base: &Address, quota: Quota) -> LocalLink {
        let address =
            base.with_part(LinkKind::Local, &this_process()).expect("room for one part of this kind");
        let own = Arc::new(Mailbox {
            key: base.key(),
            quota,
            queue: Mutex::default(),
            arrival: Condvar::new(),
            registered: RegisteredMemory::default(),
        });
        lock(&MAILBOXES).insert(base.identity(), Arc::clone(&own));
        LocalLink {
            own,
            address,
            outboxes: HashMap::new(),
            mailboxes: HashMap::new(),
            copies: Vec::new(),
            copies_started: 0,
            lanes: HashMap::new(),
            current: None,
            losses: VecDeque::new(),
            next_epoch: 0,
        }
    }

    fn mailbox_of(address: &Address) -> Option<Arc<Mailbox>> {
        let part = address.part(LinkKind::Local)?;
        let mailbox = lock(&MAILBOXES).get(&address.identity()).cloned()?;
        (part == this_process() && mailbox.key == address.key()).then_some(mailbox)
    }

    fn note_loss(&mut self, peer: Peer, fault: PeerFault) {
        if !self.losses.iter().any(|(lost, _)| *lost == peer) {
            self.losses.push_back((peer, fault));
        }
    }

    /// Ends the use of the mailbox. From now on peers see `fault`. An abandoned mailbox stays in the table without
    /// contents, so that peers find out.
    fn end(&mut self, fault: PeerFault) {
        let mut queue = lock(&self.own.queue);
        queue.ended.get_or_insert(fault);
        queue.items = VecDeque::new();
        queue.bell = None;
        drop(queue);
        self.copies.clear();
        self.own.registered.clear();
        let identity = self.address.identity();
        let mut mailboxes = lock(&MAILBOXES);
        let is_own = mailboxes.get(&identity).is_some_and(|mailbox| Arc::ptr_eq(mailbox, &self.own));
        if is_own && self.own.ended() == Some(PeerFault::Closed) {
            mailboxes.remove(&identity);
        }
        self.outboxes.clear();
    }

    /// The next item, unless its lane is not accepted yet.
    fn next_item(&mut self) -> Option<(u32, Item)> {
        let mut queue = lock(&self.own.queue);
        queue.rung = false;
        let waits = queue.items.front().is_some_and(|(lane, item)| {
            matches!(item, Item::Packet { .. }) && matches!(self.lanes.get(lane), Some(Lane::Attached(_)))
        });
        if waits { None } else { queue.items.pop_front() }
    }
}

impl Link for LocalLink {
    fn properties(&self) -> Properties {
        Properties { geometry: GEOMETRY, other_geometries: Vec::new(), ordered: true, reliable: true }
    }

    fn connect(&mut self, peer: Peer, address: &Address) -> Option<LaneLease> {
        if let Some(outbox) = self.outboxes.get(&peer) {
            return Some(outbox.lease);
        }
        let Some(mailbox) = LocalLink::mailbox_of(address) else {
            self.note_loss(peer, PeerFault::Unreachable);
            return None;
        };
        let epoch = self.next_epoch;
        let lease = LaneLease { quota: mailbox.quota, epoch, geometry: GEOMETRY, wanted: false };
        let Some(lane) = mailbox.push(None, Item::Attach { address: self.address, epoch }) else {
            self.note_loss(peer, mailbox.ended().unwrap_or(PeerFault::Closed));
            return None;
        };
        self.next_epoch = self.next_epoch.wrapping_add(1);
        self.mailboxes.insert(peer, Arc::clone(&mailbox));
        self.outboxes.insert(peer, Outbox { mailbox, lane, lease });
        Some(lease)
    }

    fn disconnect(&mut self, to: Peer) {
        self.outboxes.remove(&to);
    }

    fn transmit(
        &mut self,
        to: Peer,
        packet: &Packet,
        payload: Option<(&UserMemory, u64)>,
    ) -> Result<(), LinkBusy> {
        let Some(Outbox { mailbox, lane, .. }) = self.outboxes.get(&to) else { return Ok(()) };
        let mut bytes = vec![0; packet.payload_bytes as usize];
        if let Some((memory, offset)) = payload {
            memory.read(offset, &mut bytes);
        }
        // A packet to a closed mailbox is lost with it.
        mailbox.push(Some(*lane), Item::Packet { packet: *packet, payload: bytes });
        Ok(())
    }

    fn poll_into(&mut self, into: &mut Packet) -> Option<Polled> {
        assert!(self.current.is_none(), "poll was called before the last packet was retired");
        while let Some((lane, item)) = self.next_item() {
            match item {
                Item::Attach { address, epoch } => {
                    self.lanes.insert(lane, Lane::Attached(LocalLink::mailbox_of(&address)));
                    let lease = LaneLease { quota: self.own.quota, epoch, geometry: GEOMETRY, wanted: false };
                    let attached = Arrival::Attached { lane, address, lease };
                    return Some(Polled::Other(Box::new(attached)));
                }
                Item::Packet { packet, payload } => {
                    if let Some(&Lane::Open(from)) = self.lanes.get(&lane) {
                        *into = packet;
                        self.current = Some(payload);
                        return Some(Polled::Packet { from });
                    }
                }
            }
        }
        let (peer, fault) = self.losses.pop_front()?;
        Some(Polled::Other(Box::new(Arrival::Lost { peer, fault })))
    }

    fn may_have_arrivals(&self) -> bool {
        !self.losses.is_empty() || !lock(&self.own.queue).items.is_empty()
    }

    fn accept(&mut self, lane: u32, peer: Peer) {
        if let Some(Lane::Attached(Some(mailbox))) = self.lanes.insert(lane, Lane::Open(peer)) {
            self.mailboxes.insert(peer, mailbox);
        }
    }

    fn release(&mut self, peer: Peer) {
        self.lanes.retain(|_, lane| !matches!(lane, Lane::Open(owner) if *owner == peer));
    }

    fn copy_payload(&self, memory: &UserMemory, offset: u64, bytes: u64) {
        if let Some(payload) = &self.current {
            memory.write(offset, &payload[..bytes as usize]);
        }
    }

    fn retire(&mut self) {
        self.current = None;
    }

    fn check_peer(&mut self, peer: Peer, address: &Address) {
        // A mailbox leaves the table when it closes.
        let ended = match LocalLink::mailbox_of(address) {
            Some(mailbox) => mailbox.ended(),
            None => Some(PeerFault::Closed),
        };
        if let Some(fault) = ended {
            self.note_loss(peer, fault);
        }
    }

    fn forget(&mut self, peer: Peer) {
        self.outboxes.remove(&peer);
        self.mailboxes.remove(&peer);
        self.copies.retain(|copy| copy.peer() != peer);
        self.losses.retain(|(lost, _)| *lost != peer);
        for lane in self.lanes.values_mut() {
            if matches!(lane, Lane::Open(owner) if *owner == peer) {
                *lane = Lane::Refused;
            }
        }
    }

    fn close(&mut self) {
        self.end(PeerFault::Closed);
    }

    fn abandon(&mut self) {
        self.end(PeerFault::Died);
    }
}

impl Addressing for LocalLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Local
    }

    fn address(&self) -> Address {
        self.address
    }

    fn introduce(&mut self, address: &Address) {
        self.address = *address;
    }

    fn reaches(&self, address: &Address) -> bool {
        LocalLink::mailbox_of(address).is_some()
    }
}

impl Inspect for LocalLink {
    fn mailbox_bytes(&self) -> u64 {
        let queue = lock(&self.own.queue);
        let payload = queue.items.iter().map(|(_, item)| match item {
            Item::Packet { payload, .. } => payload.len() as u64,
            Item::Attach { .. } => 0,
        });
        payload.sum::<u64>() + (queue.items.capacity() * size_of::<(u32, Item)>()) as u64
    }
}

impl Capabilities for LocalLink {
    fn remote_memory(&mut self) -> Option<&mut dyn RemoteMemory> {
        Some(self)
    }

    fn wake_up(&mut self) -> Option<&mut dyn WakeUp> {
        Some(self)
    }
}

impl WakeUp for LocalLink {
    fn sleep(&mut self, at_most_ns: u64) {
        let queue = lock(&self.own.queue);
        if queue.items.is_empty() && !queue.rung && self.losses.is_empty() {
            drop(self.own.arrival.wait_timeout(queue, Duration::from_nanos(at_most_ns)));
        }
    }

    fn bell(&self) -> Arc<dyn Bell> {
        Arc::clone(&self.own) as Arc<dyn Bell>
    }

    fn ring_on_arrival(&mut self, bell: &Arc<dyn Bell>) -> bool {
        lock(&self.own.queue).bell = Some(Arc::clone(bell));
        true
    }
}

impl Bell for Mailbox {
    fn ring(&self) {
        lock(&self.queue).rung = true;
        self.arrival.notify_one();
    }
}

impl Drop for LocalLink {
    fn drop(&mut self) {
        self.close();
    }
}
