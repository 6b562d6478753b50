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
//! A: transmit                     LinkBusy: the queue is full
//! B: poll                         Packet { from: 0 }, rings A's bell
//! A: poll                         Ready { peer: 0 }
//! ```
//! The credits of its senders bound the packets in a queue, and so can its owner ([`LocalLink::open_with_room`]).

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
    /// The mailboxes of senders whose packets found no room.
    refused: Vec<Arc<Mailbox>>,
    /// Somebody has rung since the last poll.
    rung: bool,
    /// Its owner has ended the use in this way.
    ended: Option<PeerFault>,
}

struct Mailbox {
    key: [u8; 16],
    quota: Quota,
    /// With so many items in the queue, packets are refused.
    room: usize,
    queue: Mutex<Queue>,
    arrival: Condvar,
    registered: RegisteredMemory,
}

impl Mailbox {
    fn ended(&self) -> Option<PeerFault> {
        lock(&self.queue).ended
    }

    /// Whether a packet would not be refused.
    fn has_room(&self) -> bool {
        let queue = lock(&self.queue);
        queue.ended.is_some() || queue.items.len() < self.room
    }

    /// Appends the first item of a new lane. Returns the lane, unless the mailbox is closed.
    fn attach(&self, address: Address, epoch: u16) -> Option<u32> {
        let mut queue = lock(&self.queue);
        let lane = queue.next_lane;
        queue.next_lane += 1;
        self.push(queue, lane, Item::Attach { address, epoch }).then_some(lane)
    }

    /// Appends a packet of a lane. A packet to a closed mailbox is lost with it.
    ///
    /// # Errors
    /// [`LinkBusy`]: there is no room. The owner rings the bells of `sender` when there is.
    fn append(&self, lane: u32, packet: Item, sender: &Arc<Mailbox>) -> Result<(), LinkBusy> {
        let mut queue = lock(&self.queue);
        if queue.ended.is_none() && queue.items.len() >= self.room {
            if !queue.refused.iter().any(|refused| Arc::ptr_eq(refused, sender)) {
                queue.refused.push(Arc::clone(sender));
            }
            return Err(LinkBusy);
        }
        self.push(queue, lane, packet);
        Ok(())
    }

    /// Appends an item and wakes the owner. Returns whether the mailbox is open.
    fn push(&self, mut queue: MutexGuard<'_, Queue>, lane: u32, item: Item) -> bool {
        if queue.ended.is_some() {
            return false;
        }
        queue.items.push_back((lane, item));
        let bell = queue.bell.clone();
        drop(queue);
        self.arrival.notify_one();
        if let Some(bell) = bell {
            bell.ring();
        }
        true
    }

    /// Wakes the owner of the mailbox, wherever it sleeps.
    fn wake_owner(&self) {
        let bell = lock(&self.queue).bell.clone();
        self.ring();
        if let Some(bell) = bell {
            bell.ring();
        }
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
    /// Peers whose mailboxes had no room for a packet.
    busy: Vec<Peer>,
    next_epoch: u16,
}

impl LocalLink {
    /// A mailbox for the endpoint that has the address `base` on its other links. Every sender gets `quota`.
    ///
    /// # Panics
    /// If the address has no room for the part of this link, or has one.
    pub fn open(base: &Address, quota: Quota) -> LocalLink {
        LocalLink::open_with_room(base, quota, usize::MAX)
    }

    /// [`LocalLink::open`], but the mailbox refuses further packets while `room` packets wait in it.
    ///
    /// # Panics
    /// As [`LocalLink::open`], or if `room` is 0.
    pub fn open_with_room(base: &Address, quota: Quota, room: usize) -> LocalLink {
        assert!(room > 0, "a mailbox without room takes no packet at all");
        let address =
            base.with_part(LinkKind::Local, &this_process()).expect("room for one part of this kind");
        let own = Arc::new(Mailbox {
            key: base.key(),
            quota,
            room,
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
            busy: Vec::new(),
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
        let refused = std::mem::take(&mut queue.refused);
        drop(queue);
        refused.iter().for_each(|sender| sender.wake_owner());
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

    /// The next item, unless its lane is not accepted yet. Tells senders that were refused before.
    fn next_item(&mut self) -> Option<(u32, Item)> {
        let mut queue = lock(&self.own.queue);
        queue.rung = false;
        let waits = queue.items.front().is_some_and(|(lane, item)| {
            matches!(item, Item::Packet { .. }) && matches!(self.lanes.get(lane), Some(Lane::Attached(_)))
        });
        if waits {
            return None;
        }
        let item = queue.items.pop_front()?;
        let refused = std::mem::take(&mut queue.refused);
        drop(queue);
        refused.iter().for_each(|sender| sender.wake_owner());
        Some(item)
    }

    /// The first peer that was refused and has room now.
    fn next_ready(&self) -> Option<usize> {
        let has_room = |peer| self.outboxes.get(peer).is_none_or(|outbox| outbox.mailbox.has_room());
        self.busy.iter().position(has_room)
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
        let Some(lane) = mailbox.attach(self.address, epoch) else {
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
        let sent = mailbox.append(*lane, Item::Packet { packet: *packet, payload: bytes }, &self.own);
        if sent.is_err() {
            self.busy.push(to);
        }
        sent
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
        let arrival = match self.next_ready() {
            Some(index) => Arrival::Ready { peer: self.busy.remove(index) },
            None => self.losses.pop_front().map(|(peer, fault)| Arrival::Lost { peer, fault })?,
        };
        Some(Polled::Other(Box::new(arrival)))
    }

    fn may_have_arrivals(&self) -> bool {
        !self.losses.is_empty() || self.next_ready().is_some() || !lock(&self.own.queue).items.is_empty()
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
        self.busy.retain(|busy| *busy != peer);
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
        if self.next_ready().is_some() {
            return;
        }
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
