//! The shared-memory link: one mailbox per endpoint, in a segment file that its senders map.
//!
//! It knows slots, lanes, doorbells and processes; not credits, matching or requests. `docs/mailbox.md` says why it
//! is laid out this way. A sender claims one lane of the receiver's mailbox and from then on is its only
//! writer: nobody waits for it and it waits for nobody.
//!
//! ```text
//! A: connect(B)    opens B's segment, checks facts and key, takes lane 5, reserves its memory,
//!                  writes its own address there, lane ready, rings
//! B: poll          -> Attached { lane: 5, address: A, quota }     B: admit(5, peer 0)
//! A: transmit      slot written, word published; announced, since the lane is quiet
//! B: poll          takes the announcement, polls lane 5 from now on -> Packet { from: 0, .. }
//! B: take, retire  payload copied, slot zeroed
//! A: transmit      slot written, word published: nothing else to do
//! ```

mod attach;
mod bell;
#[cfg(test)]
mod heap;
mod inbox;
#[cfg(test)]
mod interleavings;
mod layout;
mod mapping;
mod outbox;
mod ring;
mod segment;
#[cfg(test)]
mod steps;
pub(crate) mod sync;
mod told;

use crate::memory::UserMemory;
use crate::{Address, Arrival, Link, Liveness, Quota};
use inbox::{Inbox, Limits};
pub use layout::MAX_LANE_SLOTS;
use layout::{LayoutError, Place, Shape, lane_state};
use mapping::{MappedHeader, MappedLane};
use outbox::Outbox;
use ring::{Found, GEOMETRY, Head};
use segment::{Absent, OwnSegment, PeerSegment};
pub use segment::{SystemError, cleanup, owners};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_proto::{CopyFault, Direction, Geometry, Packet, Peer, PeerFault};

/// How a mailbox is made.
#[derive(Clone, Debug)]
pub struct ShmOptions {
    /// Directory of the segment files; a tmpfs.
    pub dir: PathBuf,
    /// Data slots of every lane.
    pub quota_data_slots: u32,
    /// Lanes with a smaller number get one data slot more.
    pub quota_rest_lanes: u32,
    /// Data slots of a lane that its sender owns from the beginning; 0: all.
    pub start_slots: u32,
    /// Slots of every lane for explicit credit packets.
    pub credit_slots: u32,
    /// How many senders there can ever be.
    pub max_lanes: u32,
    /// Copy between processes with cross-memory attach.
    pub cross_memory: bool,
    /// Senders pay a full fence for each packet (some 7 ns), so that going to sleep costs no membarrier (some 17 us
    /// while others run): for nodes with more ranks than cores.
    pub full_fences: bool,
    /// No credits: senders look for room ([`Link::room`]), and all slots of a lane are data slots.
    pub conditional: bool,
}

/// Why a mailbox could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ShmError {
    /// A setting is out of range.
    #[error(transparent)]
    Setting(#[from] LayoutError),
    /// The operating system refused.
    #[error(transparent)]
    System(#[from] SystemError),
}

/// What we know of a lane of our own mailbox.
#[derive(Clone, Debug, Default)]
enum Lane {
    /// Nobody has it, as far as we know.
    #[default]
    Free,
    /// Reported as attached.
    Waiting(Address, MappedLane),
    /// Being read.
    Open(Peer),
    /// Not read any more.
    Refused,
}

/// What we know of a peer, apart from its outbox.
#[derive(Debug, Default)]
struct Acquaintance {
    address: Option<Address>,
    quota: Option<Quota>,
    segment: Option<PeerSegment>,
    /// Its lane in our mailbox.
    lane: Option<u32>,
    forgotten: bool,
}

/// The packet last polled.
#[derive(Debug)]
struct Current {
    lane: u32,
    found: Found,
}

/// An endpoint's shared-memory link.
#[derive(Debug)]
pub struct ShmLink {
    outboxes: Vec<Option<Outbox<MappedLane, MappedHeader>>>,
    inbox: Inbox<MappedLane>,
    current: Option<Current>,
    /// Its head, copied out.
    head: Head,
    bell: MappedHeader,
    lanes: Vec<Lane>,
    /// Who has had a lane of our mailbox: at most one each, for good.
    claimants: HashSet<Address>,
    acquaintances: Vec<Acquaintance>,
    own: Option<Arc<OwnSegment>>,
    place: Place,
    shape: Shape,
    dir: PathBuf,
    cross_memory: bool,
    fences_registered: bool,
    pid_namespace: u64,
    pid: u32,
}

impl ShmLink {
    /// Makes the mailbox.
    ///
    /// # Errors
    /// [`ShmError`]; nothing is left behind.
    pub fn open(options: &ShmOptions) -> Result<ShmLink, ShmError> {
        let shape = Shape::new(
            options.quota_data_slots,
            options.quota_rest_lanes,
            options.credit_slots,
            options.max_lanes,
            options.conditional,
            segment::page_bytes(),
        )?
        .starting_with(options.start_slots)?;
        // Before anybody can send to us: from now on the others' heavy fences reach this process.
        let fences_registered = sync::register_across_processes();
        let full_fences = options.full_fences || !fences_registered;
        if options.cross_memory {
            attach::allow_siblings();
        }
        let own = OwnSegment::create(&options.dir, shape, full_fences)?;
        let facts = *own.facts();
        Ok(ShmLink {
            outboxes: Vec::new(),
            inbox: Inbox::new(Limits { full_fences, ..Limits::default() }),
            current: None,
            head: [0; _],
            bell: own.header(),
            lanes: vec![Lane::Free; shape.max_lanes as usize],
            claimants: HashSet::new(),
            acquaintances: Vec::new(),
            own: Some(own),
            place: Place { id: facts.id, key: facts.key },
            shape,
            dir: options.dir.clone(),
            cross_memory: options.cross_memory,
            fences_registered,
            pid_namespace: facts.pid_namespace,
            pid: facts.pid,
        })
    }

    /// The segment file, while it has a name.
    pub fn path(&self) -> Option<&Path> {
        self.own.as_deref().map(OwnSegment::path)
    }

    /// How many lanes are polled at the moment, for statistics.
    pub fn polled_lanes(&self) -> usize {
        self.inbox.active_lanes()
    }

    fn acquaintance(&mut self, peer: Peer) -> &mut Acquaintance {
        let index = peer.0 as usize;
        if self.acquaintances.len() <= index {
            self.acquaintances.resize_with(index + 1, Acquaintance::default);
        }
        &mut self.acquaintances[index]
    }

    /// Looks at an announced lane that is not being read.
    fn attached(&mut self, lane: u32) -> Option<Arrival> {
        // A bit without a claim, or for a lane that we know: somebody's mistake or late announcement.
        if !matches!(self.lanes.get(lane as usize), Some(Lane::Free)) || lane >= self.bell.claimed_lanes() {
            return None;
        }
        // Also reserves the lane's memory, in case that its owner has not: looking must not cost us a SIGBUS.
        let memory = self.own.as_ref()?.lane(lane).ok()?;
        // What was sent before its owner gave us up is still valid.
        if !matches!(memory.state(), lane_state::READY | lane_state::ABANDONED) {
            return None;
        }
        let address = Address(memory.owner());
        // Messages in a second lane would overtake those in the first, and begin to count anew in the middle.
        if !self.claimants.insert(address) {
            memory.set_state(lane_state::REFUSED);
            self.lanes[lane as usize] = Lane::Refused;
            return None;
        }
        self.lanes[lane as usize] = Lane::Waiting(address, memory);
        Some(Arrival::Attached { lane, address, quota: self.shape.quota(lane) })
    }

    /// Whether `peer` lives but has given us up: it writes no more, and its buffers are its program's again.
    fn abandoned(&self, peer: usize) -> bool {
        let lane = self.acquaintances.get(peer).and_then(|known| known.lane);
        let reader = lane.and_then(|lane| self.inbox.reader(lane));
        reader.is_some_and(|reader| reader.lane().state() == lane_state::ABANDONED)
    }

    /// Stops reading `lane`.
    fn refuse(&mut self, lane: u32) {
        if let Some(reader) = self.inbox.reader(lane) {
            reader.lane().set_state(lane_state::REFUSED);
        }
        self.inbox.shut(lane);
        if let Some(state) = self.lanes.get_mut(lane as usize) {
            *state = Lane::Refused;
        }
    }

    /// The segment of a peer that may only have attached to us.
    fn segment_of(&mut self, peer: Peer) -> Result<&PeerSegment, CopyFault> {
        self.acquaintance(peer); // exists from here on
        let ShmLink { acquaintances, dir, .. } = self;
        let known = &mut acquaintances[peer.0 as usize];
        if known.forgotten {
            return Err(CopyFault::Gone);
        }
        if known.segment.is_none() {
            let place = known.address.as_ref().and_then(Place::parse).ok_or(CopyFault::Gone)?;
            known.segment = Some(PeerSegment::open(dir, &place).map_err(|_| CopyFault::Gone)?);
        }
        known.segment.as_ref().ok_or(CopyFault::Gone)
    }

    fn try_connect(&mut self, peer: Peer, address: &Address) -> Result<Quota, PeerFault> {
        let place = Place::parse(address).ok_or(PeerFault::Unreachable)?;
        let segment = PeerSegment::open(&self.dir, &place).map_err(|absent| match absent {
            Absent::Missing | Absent::Foreign => PeerFault::Unreachable,
            Absent::Dead => PeerFault::Died,
            Absent::Closed => PeerFault::Closed,
        })?;
        let facts = segment.facts();
        // One side would wait for credits that the other does not give.
        if facts.shape.conditional != self.shape.conditional {
            told::other_flow(self.shape.conditional);
            return Err(PeerFault::Unreachable);
        }
        let lane = segment.header().claim_lane(facts.shape.max_lanes).ok_or(PeerFault::Unreachable)?;
        let memory = segment.lane(lane).map_err(|error| {
            told::no_room(facts.shape.stride, &self.dir, &error);
            PeerFault::Unreachable
        })?;
        memory.set_owner(&self.place.address().0);
        memory.set_state(lane_state::READY);
        let full_fences = facts.full_fences || !self.fences_registered;
        let mut outbox = Outbox::new(lane, memory, segment.header().clone(), full_fences);
        outbox.ring();
        let quota = facts.shape.quota(lane);
        let index = peer.0 as usize;
        if self.outboxes.len() <= index {
            self.outboxes.resize_with(index + 1, || None);
        }
        self.outboxes[index] = Some(outbox);
        let known = self.acquaintance(peer);
        known.address = Some(*address);
        known.quota = Some(quota);
        known.segment = Some(segment);
        known.forgotten = false;
        Ok(quota)
    }
}

impl Link for ShmLink {
    fn geometry(&self) -> Geometry {
        GEOMETRY
    }

    fn address(&self) -> Address {
        self.place.address()
    }

    fn connect(&mut self, peer: Peer, address: &Address) -> Result<Quota, PeerFault> {
        match self.acquaintances.get(peer.0 as usize) {
            // A second lane would break the order of packets, so the first one stays.
            Some(Acquaintance { quota: Some(quota), address: Some(known), .. }) if known == address => {
                Ok(*quota)
            }
            _ => self.try_connect(peer, address),
        }
    }

    #[inline]
    fn transmit(&mut self, to: Peer, packet: &Packet, payload: Option<(&UserMemory, u64)>) {
        if let Some(Some(outbox)) = self.outboxes.get_mut(to.0 as usize) {
            outbox.send(packet, payload);
        }
    }

    fn room(&mut self, to: Peer) -> u32 {
        match self.outboxes.get_mut(to.0 as usize) {
            Some(Some(outbox)) => outbox.room(),
            _ => 0,
        }
    }

    #[inline]
    fn poll(&mut self) -> Option<Arrival> {
        assert!(self.current.is_none(), "poll before the last packet was retired");
        let lane = loop {
            while let Some(stranger) = self.inbox.next_stranger() {
                if let Some(arrival) = self.attached(stranger) {
                    return Some(arrival);
                }
            }
            // This also takes the announcements, those of strangers among them.
            if let Some(lane) = self.inbox.next(&self.bell) {
                break lane;
            }
            if !self.inbox.has_strangers() {
                return None;
            }
        };
        let Lane::Open(from) = *self.lanes.get(lane as usize)? else { return None };
        match self.inbox.reader(lane)?.look(&mut self.head) {
            Ok((packet, found)) => {
                self.current = Some(Current { lane, found });
                Some(Arrival::Packet { from, packet })
            }
            Err(ring::NoPacket) => {
                self.refuse(lane);
                Some(Arrival::Malformed { from })
            }
        }
    }

    fn admit(&mut self, lane: u32, peer: Peer) {
        let Some(state) = self.lanes.get_mut(lane as usize) else { return };
        if !matches!(state, Lane::Waiting(..)) {
            return;
        }
        if let Lane::Waiting(address, memory) = std::mem::replace(state, Lane::Open(peer)) {
            if address == self.place.address() {
                self.inbox.open_own(lane, memory);
            } else {
                self.inbox.open(lane, memory);
            }
            // While it has a name: how it ended is told by its header, which we see as long as we have it mapped. If it
            // is gone already, nobody can tell.
            let segment =
                Place::parse(&address).and_then(|place| PeerSegment::of_any(&self.dir, &place).ok());
            let known = self.acquaintance(peer);
            known.address = Some(address);
            known.lane = Some(lane);
            if known.segment.is_none() && !known.forgotten {
                known.segment = segment;
            }
        }
    }

    #[inline]
    fn take(&self, memory: &UserMemory, offset: u64, bytes: u64) {
        if let Some(Current { lane, found }) = &self.current
            && let Some(reader) = self.inbox.reader(*lane)
        {
            reader.take(&self.head, found, memory, offset, bytes);
        }
    }

    #[inline]
    fn retire(&mut self) {
        // After `forget` there is no reader any more, and nothing to retire.
        if let Some(Current { lane, found }) = self.current.take()
            && let Some(reader) = self.inbox.reader_mut(lane)
        {
            reader.retire(&found);
        }
    }

    fn copy(
        &mut self,
        peer: Peer,
        direction: Direction,
        address: u64,
        memory: &UserMemory,
        offset: u64,
        bytes: u64,
    ) -> Result<(), CopyFault> {
        let (cross_memory, pid, namespace) = (self.cross_memory, self.pid, self.pid_namespace);
        let facts = *self.segment_of(peer)?.facts();
        if facts.pid_namespace != namespace || !cross_memory {
            return Err(CopyFault::Forbidden);
        }
        if facts.pid == pid {
            attach::copy_inside(direction, address, memory, offset, bytes);
        } else {
            attach::copy_across(facts.pid, direction, address, memory, offset, bytes)?;
        }
        // Looked at afterwards: the peer says so before its program may use the buffer again, so if it has not said so
        // by now, what we have copied is what it announced.
        if self.abandoned(peer.0 as usize) { Err(CopyFault::Gone) } else { Ok(()) }
    }

    fn liveness(&mut self, address: &Address) -> Liveness {
        let Some(place) = Place::parse(address) else { return Liveness::Unknown };
        let index = self.acquaintances.iter().position(|known| known.address.as_ref() == Some(address));
        let known = index.and_then(|index| self.acquaintances[index].segment.as_ref());
        let found = segment::liveness(&self.dir, &place, known.map(PeerSegment::header));
        let outbox = index.and_then(|index| self.outboxes.get(index)?.as_ref());
        let refused = outbox.is_some_and(|outbox| outbox.lane().state() == lane_state::REFUSED);
        if found == Liveness::Alive && (refused || index.is_some_and(|index| self.abandoned(index))) {
            return Liveness::Refused;
        }
        found
    }

    fn forget(&mut self, peer: Peer) {
        if let Some(outbox) = self.outboxes.get_mut(peer.0 as usize).and_then(Option::take) {
            outbox.lane().set_state(lane_state::ABANDONED);
        }
        let known = self.acquaintance(peer);
        let (lane, address) = (known.lane.take(), known.address);
        if let Some(lane) = lane {
            self.refuse(lane);
            // Asked while its header is mapped: the name may be gone.
            let dead = address.is_some_and(|address| self.liveness(&address) == Liveness::Dead);
            if dead && let Some(own) = &self.own {
                own.punch(lane);
            }
        }
        let known = self.acquaintance(peer);
        known.forgotten = true;
        known.quota = None;
        known.segment = None;
    }

    fn sleep(&mut self, at_most_ns: u64) {
        self.inbox.sleep(&self.bell, at_most_ns);
    }

    fn process(&self, peer: Peer) -> Option<u32> {
        let segment = self.acquaintances.get(peer.0 as usize)?.segment.as_ref()?;
        // Numbers of another namespace mean somebody else here.
        let facts = segment.facts();
        (facts.pid_namespace == self.pid_namespace).then_some(facts.pid)
    }

    fn mailbox_bytes(&self) -> u64 {
        self.own.as_ref().map_or(0, |own| own.touched_bytes())
    }

    fn close(&mut self) {
        if let Some(own) = self.own.take() {
            own.close();
        }
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        self.close();
    }
}
