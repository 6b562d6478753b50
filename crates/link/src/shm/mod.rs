//! The shared-memory link: one mailbox per endpoint, in a segment file that its senders map.
//!
//! It knows slots, lanes, doorbells and processes. It does not know credits, matching or requests.
//! `docs/explanation/mailbox.md` explains the layout. A sender claims one lane of the receiver's mailbox. During its
//! lease it is the only writer of that lane, so senders do not wait for each other. If all lanes are held, the sender
//! waits in a queue.
//!
//! ```text
//! A: connect(B)    opens B's segment, checks facts and key, claims lane 5, reserves its memory,
//!                  writes its own address there, sets the lane ready, rings
//! B: poll          -> Attached { lane: 5, address: A, quota }     B: accept(5, peer 0)
//! A: transmit      writes the slot, publishes its word, announces it, since the lane is quiet
//! B: poll          takes the announcement, polls lane 5 from now on -> Packet { from: 0, .. }
//! B: copy_payload, retire   copies the payload, zeroes the slot
//! A: transmit      writes the slot, publishes its word: nothing else to do
//! ```

mod cooperative_copy;
mod cross_memory;
mod diagnostics;
mod doorbell;
#[cfg(test)]
mod heap_lane;
mod inbox;
#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod killed_senders;
mod lane_queue;
mod lane_reclamation;
mod layout;
mod lock_file;
mod mapping;
mod outbox;
mod pending_copy;
mod ring;
mod segment;
mod segment_file;
pub(crate) mod sync;

use crate::links::FirstLink;
use crate::memory::UserMemory;
use crate::{
    Address, Addressing, Arrival, Bell, COOPERATIVE_COPY_BYTES, Capabilities, CopyStatus, FreeSlots, Inspect,
    LaneLease, LaneReclamation, Link, LinkKind, Polled, Properties, Quota, RemoteCopy, RemoteMemory, WakeUp,
};
use doorbell::call;
use inbox::{Inbox, PollLimits};
use lane_queue::{Ticket, unclaim};
use lane_reclamation::{OpenLane, Reclamation};
use layout::{LayoutError, SegmentAddress, Shape, lane_state};
pub use layout::{MAX_LANE_SLOTS, SchemeName};
use mapping::{MappedHeader, MappedLane};
use outbox::Outbox;
use pending_copy::PendingCopy;
use ring::{Found, GEOMETRY, Head, LaneMemory};
use segment::{Locks, OwnSegment, PeerSegment, Unavailable};
pub use segment_file::{
    FileSystemSpace, SystemError, cleanup, file_system_space, has_unlimited_memory, owners,
};

/// Memory of a mailbox without its lanes. Unit: bytes.
pub const MAILBOX_HEADER_BYTES: u64 = layout::RESERVED_HEADER_BYTES;

/// Memory of a lane of so many data slots and credit slots. Unit: bytes.
pub fn lane_bytes(data_slots: u32, credit_slots: u32) -> u64 {
    layout::lane_bytes(u64::from(data_slots) + u64::from(credit_slots), segment_file::page_bytes())
}

/// Most data slots of a lane that has at most `bytes` bytes, beside `credit_slots` credit slots. 0: it has no room.
pub fn lane_data_slots(bytes: u64, credit_slots: u32) -> u32 {
    let pages = bytes / segment_file::page_bytes();
    let slots = layout::lane_slots_within(pages * segment_file::page_bytes());
    slots.saturating_sub(credit_slots.into()).min(MAX_LANE_SLOTS.into()) as u32
}
use segment_file::{is_no_space, is_not_now};
use std::collections::{HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use sync::Ordering;
use weir_proto::{CopyFault, Direction, LinkBusy, Packet, Peer, PeerFault, Transfer};

/// The options of a mailbox.
#[derive(Clone, Debug)]
pub struct ShmOptions {
    /// Directory of the segment files, on a tmpfs.
    pub dir: PathBuf,
    /// Prefer memory that the size of the directory's file system does not limit (memfd). The directory then has only
    /// the names. Without this such memory is used if the directory has no space. It is the same memory for the kernel,
    /// but only processes in one pid namespace can share it.
    pub in_memory: bool,
    /// Lanes whose memory is reserved as long as the mailbox exists. With at least one, senders can take turns when no
    /// other lane gets memory.
    pub reserved_lanes: u32,
    /// Ranks of the job on this node, for messages. 0: not known.
    pub ranks: u32,
    /// Data slots of every lane.
    pub quota_data_slots: u32,
    /// Lanes with a smaller number have one more data slot.
    pub quota_rest_lanes: u32,
    /// Data slots of a lane that its sender owns from the start. 0: all.
    pub start_slots: u32,
    /// Slots of every lane for credit packets.
    pub credit_slots: u32,
    /// Number of senders that can hold a lane at the same time.
    pub max_lanes: u32,
    /// Copy between processes with cross-memory attach.
    pub cross_memory: bool,
    /// Senders execute a full fence for each packet, so that the reader can sleep without `membarrier`. This suits
    /// nodes with more ranks than cores. The example `costs` measures both.
    pub full_fences: bool,
    /// Both sides copy a large message, if both wait in the library. This suits ranks with a core each.
    pub cooperative_copy: bool,
    /// No credits: senders count free slots ([`FreeSlots`]), and all slots of a lane are data slots.
    pub conditional: bool,
    /// The scheme. Peers with another one are not connected.
    pub scheme: SchemeName,
}

/// The mailbox could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ShmError {
    /// A setting is out of range.
    #[error("cannot make a mailbox: {0}")]
    Setting(#[from] LayoutError),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
}

impl ShmError {
    /// Whether memory is short. One process of the job has told the user then how much is needed.
    pub fn is_no_space(&self) -> bool {
        matches!(self, ShmError::System(error) if error.is_no_space())
    }
}

/// Whether an endpoint still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It runs.
    Alive,
    /// It closed its mailbox in good order.
    Closed,
    /// Its process ended without closing the mailbox.
    Dead,
    /// Its segment has no name any more, and this endpoint never mapped it. It was closed, or removed after a death.
    Unknown,
    /// It runs, but does not read what this endpoint sends. It found a malformed packet, or it has given this
    /// endpoint up.
    Refused,
}

impl Liveness {
    /// Why the endpoint is lost. `None`: it is not.
    fn fault(self) -> Option<PeerFault> {
        match self {
            Liveness::Alive => None,
            Liveness::Closed => Some(PeerFault::Closed),
            Liveness::Dead => Some(PeerFault::Died),
            Liveness::Unknown | Liveness::Refused => Some(PeerFault::Unreachable),
        }
    }
}

/// How long a wait for a place in a full queue, or for a lane, lasts at most between two looks.
const ATTACH_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Something to report that is in no lane.
#[derive(Clone, Copy, Debug)]
enum Notice {
    /// A peer asks this endpoint to detach.
    DetachRequested(Peer),
    /// A peer is lost. It is reported when all arrivals are handled: what the peer sent while it lived is still valid.
    Lost(Peer, Address, PeerFault),
}

impl Notice {
    fn peer(&self) -> Peer {
        match *self {
            Notice::DetachRequested(peer) | Notice::Lost(peer, ..) => peer,
        }
    }
}

/// The state of a lane of this mailbox.
#[derive(Clone, Debug, Default)]
enum Lane {
    /// Not held by any sender that this endpoint knows.
    #[default]
    Free,
    /// Reported as attached, not accepted yet.
    Attached(Address, MappedLane),
    /// Its owner holds an earlier lane that is not read to its end.
    Parked,
    /// The reader reads it.
    Open(OpenLane),
    /// The reader does not read it any more.
    Refused(Address),
}

/// Whether the lane of an address is read. An address has at most one lane that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claimant {
    Accepted,
    /// Permanent: messages in another lane would overtake those that are lost.
    Refused,
}

/// A lane in a peer's mailbox that this endpoint waits for.
#[derive(Debug)]
struct PendingAttach {
    segment: PeerSegment,
    /// `None`: the queue was full.
    ticket: Option<Ticket>,
}

/// An entry for a peer. Its outbox is in [`ShmLink`].
#[derive(Debug, Default)]
struct PeerEntry {
    address: Option<Address>,
    lease: Option<LaneLease>,
    segment: Option<PeerSegment>,
    /// The peer's lane in this mailbox.
    lane: Option<u32>,
    forgotten: bool,
}

/// The result of a poll's search.
enum Next {
    /// A packet in this lane.
    Lane(u32),
    /// Something other than a packet.
    Arrival(Arrival),
}

/// The last polled packet. `head` and `packet` of [`ShmLink`] hold its header.
#[derive(Debug)]
struct Current {
    lane: u32,
    found: Found,
}

/// An endpoint's shared-memory link.
#[derive(Debug)]
pub struct ShmLink {
    /// By peer number. Boxed, because most peers have none.
    outboxes: Vec<Option<Box<Outbox<MappedLane, MappedHeader>>>>,
    inbox: Inbox<MappedLane>,
    current: Option<Current>,
    /// Copy of the current packet's first slot.
    head: Head,
    doorbell: MappedHeader,
    /// Up to the highest lane that was ever held.
    lanes: Vec<Lane>,
    claimants: HashMap<Address, Claimant>,
    /// Lanes of senders that attached again before their previous lane was read to its end.
    parked: Vec<(Address, u32)>,
    reclamation: Reclamation,
    peers: HashMap<Peer, PeerEntry>,
    /// Segments of peers that have our version and scheme ([`ShmLink::is_compatible`]).
    compatible: HashSet<u64>,
    pending_attaches: HashMap<Peer, PendingAttach>,
    /// Places in queues of peers that were forgotten since.
    unneeded_tickets: Vec<(PeerSegment, Ticket)>,
    /// What polls return beside the contents of lanes.
    notices: VecDeque<Notice>,
    /// Number of this endpoint's next lease at any peer.
    next_epoch: u16,
    own: Option<Arc<OwnSegment>>,
    own_address: SegmentAddress,
    /// The whole address of the endpoint.
    address: Address,
    shape: Shape,
    /// Shows which peers run. It also knows the directory.
    locks: Locks,
    cross_memory: bool,
    cooperative_copy: bool,
    /// Copies of which the peer has taken the last pieces.
    pending_copies: HashMap<Peer, PendingCopy>,
    fences_registered: bool,
    pid_namespace: u64,
    pid: u32,
}

/// Makes the segment where there is space for it.
fn create_segment(
    options: &ShmOptions,
    shape: Shape,
    full_fences: bool,
) -> Result<Arc<OwnSegment>, SystemError> {
    let create = |in_memory, reserved_lanes| {
        OwnSegment::create(&options.dir, shape, full_fences, reserved_lanes, in_memory)
    };
    if options.in_memory
        && let Ok(own) = create(true, options.reserved_lanes)
    {
        return Ok(own);
    }
    let error = match create(false, options.reserved_lanes) {
        Err(error) if error.is_no_space() => error,
        result => return result,
    };
    // More senders than reserved lanes take turns, so one lane suffices.
    create(true, options.reserved_lanes).or_else(|_| create(false, options.reserved_lanes.min(1))).map_err(
        |_| {
            let bytes = shape.reserved_bytes(options.reserved_lanes.min(1));
            diagnostics::report_too_small(&options.dir, options.ranks, bytes, &error.source);
            error
        },
    )
}

impl ShmLink {
    /// Makes the mailbox.
    ///
    /// # Errors
    /// [`ShmError`]. Nothing is left behind.
    pub fn open(options: &ShmOptions) -> Result<ShmLink, ShmError> {
        let shape = Shape::new(
            options.quota_data_slots,
            options.quota_rest_lanes,
            options.credit_slots,
            options.max_lanes,
            options.conditional,
            segment_file::page_bytes(),
        )?
        .with_start_slots(options.start_slots)?
        .with_scheme(options.scheme);
        // Register before any peer can send: from now on the heavy fences of peers reach this process.
        let fences_registered = sync::register_across_processes();
        let full_fences = options.full_fences || !fences_registered;
        if options.cross_memory {
            cross_memory::allow_other_processes();
        }
        let own = create_segment(options, shape, full_fences)?;
        let (facts, locks) = (*own.facts(), own.locks().clone());
        let own_address = SegmentAddress { id: facts.id, key: facts.key };
        Ok(ShmLink {
            outboxes: Vec::new(),
            inbox: Inbox::new(PollLimits { full_fences, ..PollLimits::default() }),
            current: None,
            head: [0; _],
            doorbell: own.header(),
            lanes: Vec::new(),
            claimants: HashMap::new(),
            parked: Vec::new(),
            reclamation: Reclamation::default(),
            peers: HashMap::new(),
            compatible: HashSet::new(),
            pending_attaches: HashMap::new(),
            unneeded_tickets: Vec::new(),
            notices: VecDeque::new(),
            next_epoch: 0,
            own: Some(own),
            own_address,
            address: own_address.address(),
            shape,
            locks,
            cross_memory: options.cross_memory,
            cooperative_copy: options.cooperative_copy,
            pending_copies: HashMap::new(),
            fences_registered,
            pid_namespace: facts.pid_namespace,
            pid: facts.pid,
        })
    }

    /// The segment file, while it has a name.
    pub fn path(&self) -> Option<&Path> {
        self.own.as_deref().map(OwnSegment::path)
    }

    /// The address of this endpoint, for its peers.
    pub fn address(&self) -> Address {
        self.address
    }

    /// The slots of a sender with the last lane. Other lanes may have one more.
    pub fn quota(&self) -> Quota {
        self.shape.quota(self.shape.max_lanes.saturating_sub(1))
    }

    /// Number of polled lanes, for statistics.
    pub fn polled_lanes(&self) -> usize {
        self.inbox.active_lanes()
    }

    fn peer_entry(&mut self, peer: Peer) -> &mut PeerEntry {
        self.peers.entry(peer).or_default()
    }

    fn set_lane(&mut self, lane: u32, state: Lane) {
        let index = lane as usize;
        if self.lanes.len() <= index {
            self.lanes.resize(index + 1, Lane::Free);
        }
        self.lanes[index] = state;
    }

    /// Checks an announced lane that is not read yet.
    fn check_announced_lane(&mut self, lane: u32) -> Option<Arrival> {
        // The bit has no claim, or the lane is known: an error of the sender, or a late announcement.
        if !matches!(self.lanes.get(lane as usize), None | Some(Lane::Free)) || lane >= self.shape.max_lanes {
            return None;
        }
        let own = self.own.clone()?;
        own.reserve_claims(lane + 1).ok()?;
        let claimant = own.header().claims(lane + 1)[lane as usize].load(Ordering::Acquire);
        if claimant == 0 {
            return None;
        }
        // This also reserves the lane's memory. The sender should have done so; without memory a read is a SIGBUS.
        let memory = own.lane(lane).ok()?;
        let address = memory.owner(claimant);
        // Packets that were sent before the owner abandoned the lane are valid.
        if !matches!(memory.state(), lane_state::READY | lane_state::ABANDONED)
            || SegmentAddress::parse(&address).is_none()
        {
            return None;
        }
        match self.claimants.get(&address) {
            None => {}
            Some(Claimant::Refused) => {
                memory.set_state(lane_state::REFUSED);
                self.set_lane(lane, Lane::Refused(address));
                return None;
            }
            Some(Claimant::Accepted) => {
                // Messages in this lane would overtake those in the first one.
                self.set_lane(lane, Lane::Parked);
                self.parked.push((address, lane));
                return None;
            }
        }
        self.claimants.insert(address, Claimant::Accepted);
        let epoch = memory.epoch();
        self.set_lane(lane, Lane::Attached(address, memory));
        let lease = LaneLease { quota: self.shape.quota(lane), epoch, geometry: GEOMETRY };
        Some(Arrival::Attached { lane, address, lease })
    }

    /// Allows the parked lanes of `address` to be read: its first lane is not read any more.
    fn unpark_lanes(&mut self, address: &Address) {
        while let Some(index) = self.parked.iter().position(|(owner, _)| owner == address) {
            let (_, lane) = self.parked.remove(index);
            self.set_lane(lane, Lane::Free);
            self.inbox.push_unaccepted_lane(lane);
        }
    }

    /// Whether `peer` has given this endpoint up. It then writes no more, and its buffers belong to its program
    /// again.
    fn abandoned(&self, peer: Peer) -> bool {
        let lane = self.peers.get(&peer).and_then(|entry| entry.lane);
        let reader = lane.and_then(|lane| self.inbox.reader(lane));
        reader.is_some_and(|reader| reader.lane().state() == lane_state::ABANDONED)
    }

    /// Whether `peer` does not read this endpoint's packets any more.
    fn is_refused(&self, peer: Peer) -> bool {
        let outbox = self.outboxes.get(peer.0 as usize).and_then(Option::as_ref);
        outbox.is_some_and(|outbox| outbox.lane().state() == lane_state::REFUSED)
    }

    /// A poll that must look beyond packets in polled lanes.
    #[cold]
    fn poll_slow_path(&mut self) -> Option<Next> {
        self.check_waiters();
        loop {
            if self.doorbell.called() {
                self.handle_calls();
            }
            if let Some(by) = self.next_detach_request() {
                return Some(Next::Arrival(Arrival::DetachRequested { by }));
            }
            while let Some(lane) = self.inbox.next_unaccepted_lane() {
                if let Some(arrival) = self.check_announced_lane(lane) {
                    return Some(Next::Arrival(arrival));
                }
            }
            // This also takes the announcements, including those of unaccepted lanes.
            if let Some(lane) = self.inbox.next(&self.doorbell) {
                return Some(Next::Lane(lane));
            }
            if !self.inbox.has_unaccepted_lanes() && !self.doorbell.called() {
                return self.next_loss().map(Next::Arrival);
            }
        }
    }

    fn next_detach_request(&mut self) -> Option<Peer> {
        let index = self.notices.iter().position(|notice| matches!(notice, Notice::DetachRequested(_)))?;
        self.notices.remove(index).map(|notice| notice.peer())
    }

    /// The next lost peer, when nothing else is left to report.
    fn next_loss(&mut self) -> Option<Arrival> {
        let Notice::Lost(peer, address, fault) = self.notices.pop_front()? else { return None };
        // If we know the peer, we distinguish an orderly close from a crash.
        let fault = match self.liveness_of(Some(peer), &address) {
            Liveness::Closed => PeerFault::Closed,
            Liveness::Dead => PeerFault::Died,
            _ => fault,
        };
        Some(Arrival::Lost { peer, fault })
    }

    /// Reports `peer` as lost after all arrivals.
    fn note_loss(&mut self, peer: Peer, address: &Address, fault: PeerFault) {
        if !self.is_noted_as_lost(peer) {
            self.notices.push_back(Notice::Lost(peer, *address, fault));
        }
    }

    fn is_noted_as_lost(&self, peer: Peer) -> bool {
        self.notices.iter().any(|notice| matches!(*notice, Notice::Lost(lost, ..) if lost == peer))
    }

    /// Claims a lane at the endpoint at `address`. `None`: the endpoint waits in the queue for a lane.
    ///
    /// # Errors
    /// [`PeerFault`], if the peer is not there, has another version, or no memory is left.
    pub fn attach(&mut self, peer: Peer, address: &Address) -> Result<Option<LaneLease>, PeerFault> {
        match self.peers.get(&peer) {
            // A second lane would break the order of packets, so the first one stays.
            Some(PeerEntry { lease: Some(lease), address: Some(known), .. }) if known == address => {
                Ok(Some(*lease))
            }
            _ if self.pending_attaches.contains_key(&peer) => self.check_queue(peer, address),
            _ => self.try_attach(peer, address),
        }
    }

    /// Whether the endpoint at `address` runs. Costs one or two system calls.
    pub fn liveness(&mut self, address: &Address) -> Liveness {
        let known = self.peers.iter().find(|(_, entry)| entry.address.as_ref() == Some(address));
        self.liveness_of(known.map(|(&peer, _)| peer), address)
    }

    /// Whether the endpoint at `address`, called `peer` if it has a number, runs. Costs one or two system calls.
    fn liveness_of(&mut self, peer: Option<Peer>, address: &Address) -> Liveness {
        let Some(target) = SegmentAddress::parse(address) else { return Liveness::Unknown };
        let entry = peer.and_then(|peer| self.peers.get(&peer));
        let header = entry.and_then(|entry| entry.segment.as_ref()).map(PeerSegment::header);
        // A peer that has attached has made the same check of its version and scheme.
        let is_attached = entry.is_some_and(|entry| entry.segment.is_some() || entry.lane.is_some());
        let found = segment::liveness(&self.locks, &target, header);
        if found != Liveness::Alive {
            return found;
        }
        let gave_up = |peer| self.is_refused(peer) || self.has_abandoned_us(peer);
        if peer.is_some_and(gave_up) || !is_attached && !self.is_compatible(&target) {
            return Liveness::Refused;
        }
        found
    }

    /// Stops reading `lane`.
    #[cold]
    fn refuse_lane(&mut self, lane: u32) {
        if let Some(reader) = self.inbox.reader(lane) {
            reader.lane().set_state(lane_state::REFUSED);
        }
        self.inbox.close_lane(lane);
        let owner = self.peers.values().find(|entry| entry.lane == Some(lane));
        if let Some(address) = owner.and_then(|entry| entry.address) {
            self.claimants.insert(address, Claimant::Refused);
            self.set_lane(lane, Lane::Refused(address));
            self.unpark_lanes(&address);
        }
    }

    /// The segment of a peer, opened if the peer has only attached to this endpoint so far.
    fn segment_of(&mut self, peer: Peer) -> Result<&PeerSegment, CopyFault> {
        let ShmLink { peers, locks, .. } = self;
        let entry = peers.entry(peer).or_default();
        if entry.forgotten {
            return Err(CopyFault::Gone);
        }
        if entry.segment.is_none() {
            let target = entry.address.as_ref().and_then(SegmentAddress::parse).ok_or(CopyFault::Gone)?;
            entry.segment = Some(PeerSegment::open(locks, &target).map_err(|reason| match reason {
                // The peer lives. This message can travel in packets.
                Unavailable::Refused(_) | Unavailable::OtherLockFile => CopyFault::BadAddress,
                Unavailable::Closed => CopyFault::Closed,
                Unavailable::Missing
                | Unavailable::Dead
                | Unavailable::Foreign
                | Unavailable::OtherVersion(_) => CopyFault::Gone,
            })?);
        }
        entry.segment.as_ref().ok_or(CopyFault::Gone)
    }

    /// Copies, or starts a cooperative copy.
    fn start_copy(&mut self, copy: &RemoteCopy, memory: &UserMemory) -> Result<CopyStatus, CopyFault> {
        let RemoteCopy { transfer, peer, direction, address, offset, bytes } = *copy;
        let (cross_memory, pid, namespace) = (self.cross_memory, self.pid, self.pid_namespace);
        let facts = *self.segment_of(peer)?.facts();
        if facts.pid_namespace != namespace || !cross_memory {
            return Err(CopyFault::Forbidden);
        }
        if facts.pid == pid {
            cross_memory::copy_inside(direction, address, memory, offset, bytes)?;
        } else if let Some(transfer) = transfer
            && self.cooperative_copy
            && bytes >= COOPERATIVE_COPY_BYTES
            && direction == Direction::Get
        {
            return self.copy_cooperatively(transfer, facts.pid, copy, memory);
        } else {
            cross_memory::copy_across(facts.pid, direction, address, memory, offset, bytes)?;
        }
        self.check_source_valid(peer).map(|()| CopyStatus::Done)
    }

    /// `None`: the peer runs, but this process cannot open its segment for the moment, or waits in its queue.
    fn try_attach(&mut self, peer: Peer, address: &Address) -> Result<Option<LaneLease>, PeerFault> {
        let target = SegmentAddress::parse(address).ok_or(PeerFault::Unreachable)?;
        let segment = match PeerSegment::open(&self.locks, &target) {
            Ok(segment) => segment,
            Err(Unavailable::Missing | Unavailable::Foreign) => return Err(PeerFault::Unreachable),
            Err(Unavailable::OtherVersion(error)) => {
                diagnostics::report_other_version(&error);
                return Err(PeerFault::Unreachable);
            }
            Err(Unavailable::Dead) => return Err(PeerFault::Died),
            Err(Unavailable::Closed) => return Err(PeerFault::Closed),
            Err(Unavailable::OtherLockFile) => {
                diagnostics::report_other_lock_file(&self.locks);
                return Err(PeerFault::Unreachable);
            }
            Err(Unavailable::Refused(error)) => return self.refused(target.id, &error).map(|()| None),
        };
        self.check_scheme(&segment)?;
        self.peer_entry(peer).address = Some(*address);
        self.claim_or_queue(peer, address, segment)
    }

    /// Whether the owner of `segment` uses our scheme. Otherwise one side would wait for credit that the other side does
    /// not return.
    fn check_scheme(&self, segment: &PeerSegment) -> Result<(), PeerFault> {
        let Shape { scheme, conditional, .. } = segment.facts().shape;
        if (scheme, conditional) == (self.shape.scheme, self.shape.conditional) {
            return Ok(());
        }
        diagnostics::report_other_scheme(self.shape.scheme, scheme);
        Err(PeerFault::Unreachable)
    }

    /// Whether this endpoint and the running one at `target` can exchange messages: same version, same scheme. Looks
    /// once for each peer.
    fn is_compatible(&mut self, target: &SegmentAddress) -> bool {
        if self.compatible.contains(&target.id) {
            return true;
        }
        match PeerSegment::open_any(&self.locks, target) {
            Ok(segment) if self.check_scheme(&segment).is_err() => return false,
            Err(Unavailable::OtherVersion(error)) => {
                diagnostics::report_other_version(&error);
                return false;
            }
            // What else is wrong shows when we connect.
            Ok(_) | Err(_) => {}
        }
        self.compatible.insert(target.id);
        true
    }

    /// The kernel has refused an action on the segment `id` of a peer. `Ok`: the caller may try again later.
    fn refused(&self, id: u64, error: &std::io::Error) -> Result<(), PeerFault> {
        if !segment::is_open_and_alive(&self.locks, id) {
            return Err(PeerFault::Unreachable); // it has ended meanwhile
        }
        diagnostics::report_refused(self.locks.dir(), error);
        if is_not_now(error) { Ok(()) } else { Err(PeerFault::Unreachable) }
    }

    /// Claims a lane at `segment`, or takes a place in the queue for one.
    fn claim_or_queue(
        &mut self,
        peer: Peer,
        address: &Address,
        segment: PeerSegment,
    ) -> Result<Option<LaneLease>, PeerFault> {
        let id = self.own_address.id;
        if !segment.header().lane_queue().has_waiters() {
            match self.claim_with_memory(&segment) {
                Ok(Some((lane, memory))) => {
                    return Ok(Some(self.begin_lease(peer, address, segment, lane, memory)));
                }
                Ok(None) => {}
                Err(error) => {
                    self.refused(segment.facts().id, &error)?;
                    self.pending_attaches.insert(peer, PendingAttach { segment, ticket: None });
                    return Ok(None);
                }
            }
        }
        let ticket = segment.header().lane_queue().enter(id);
        if ticket.is_some() {
            segment.header().call_about(call::NEWCOMER);
        }
        self.pending_attaches.insert(peer, PendingAttach { segment, ticket });
        Ok(None)
    }

    /// Claims a free lane, and reserves its memory. `None`: all lanes are held, or there is no memory for another one.
    fn claim_with_memory(&self, segment: &PeerSegment) -> std::io::Result<Option<(u32, MappedLane)>> {
        let id = self.own_address.id;
        let claimed = segment.claim_lane(id).and_then(|lane| {
            let Some(lane) = lane else { return Ok(None) };
            segment.lane(lane).map(|memory| Some((lane, memory))).inspect_err(|_| {
                unclaim(segment.header().claims(segment.facts().shape.max_lanes), lane, id);
                segment.header().call_about(call::NEWCOMER); // somebody may have seen no free lane meanwhile
            })
        });
        match claimed {
            Err(error) if is_no_space(&error) => {
                diagnostics::report_lane_reclamation(&self.locks, segment.facts().shape.stride, &error);
                Ok(None)
            }
            result => result,
        }
    }

    /// Checks whether the queue has assigned a lane to this endpoint.
    fn check_queue(&mut self, peer: Peer, address: &Address) -> Result<Option<LaneLease>, PeerFault> {
        let Some(PendingAttach { segment, ticket }) = self.pending_attaches.remove(&peer) else {
            return Ok(None);
        };
        let Some(ticket) = ticket else { return self.claim_or_queue(peer, address, segment) };
        let wait = |link: &mut ShmLink, segment| {
            link.pending_attaches.insert(peer, PendingAttach { segment, ticket: Some(ticket) });
            Ok(None)
        };
        let Some(lane) = segment.header().lane_queue().assigned_lane(ticket) else {
            return wait(self, segment);
        };
        if lane >= segment.facts().shape.max_lanes {
            return Err(PeerFault::Unreachable); // not a valid answer
        }
        match segment.lane(lane) {
            Ok(memory) => {
                segment.header().lane_queue().leave(ticket);
                Ok(Some(self.begin_lease(peer, address, segment, lane, memory)))
            }
            // The lane stays assigned to this endpoint.
            Err(error) if is_not_now(&error) => {
                self.refused(segment.facts().id, &error)?;
                wait(self, segment)
            }
            Err(error) => {
                unclaim(segment.header().claims(segment.facts().shape.max_lanes), lane, self.own_address.id);
                segment.header().lane_queue().leave(ticket);
                segment.header().call_about(call::NEWCOMER);
                self.refused(segment.facts().id, &error).map(|()| None)
            }
        }
    }

    /// Begins a lease of `lane`, which this endpoint has claimed.
    fn begin_lease(
        &mut self,
        peer: Peer,
        address: &Address,
        segment: PeerSegment,
        lane: u32,
        memory: MappedLane,
    ) -> LaneLease {
        let facts = *segment.facts();
        let epoch = self.next_epoch;
        self.next_epoch = self.next_epoch.wrapping_add(1);
        memory.set_owner(&self.address);
        memory.set_epoch(epoch);
        memory.set_state(lane_state::READY);
        let full_fences = facts.full_fences || !self.fences_registered;
        let mut outbox = Outbox::new(lane, memory, segment.header().clone(), full_fences);
        outbox.ring();
        let lease = LaneLease { quota: facts.shape.quota(lane), epoch, geometry: GEOMETRY };
        let index = peer.0 as usize;
        if self.outboxes.len() <= index {
            self.outboxes.resize_with(index + 1, || None);
        }
        self.outboxes[index] = Some(Box::new(outbox));
        let entry = self.peer_entry(peer);
        entry.address = Some(*address);
        entry.lease = Some(lease);
        entry.segment = Some(segment);
        entry.forgotten = false;
        lease
    }
}

impl Link for ShmLink {
    fn properties(&self) -> Properties {
        Properties { geometry: GEOMETRY, other_geometries: Vec::new(), ordered: true, reliable: true }
    }

    fn connect(&mut self, peer: Peer, address: &Address) -> Option<LaneLease> {
        if self.is_noted_as_lost(peer) {
            return None;
        }
        self.attach(peer, address).unwrap_or_else(|fault| {
            self.note_loss(peer, address, fault);
            None
        })
    }

    fn disconnect(&mut self, to: Peer) {
        if let Some(outbox) = self.outboxes.get_mut(to.0 as usize) {
            *outbox = None;
        }
        self.peer_entry(to).lease = None;
    }

    #[inline(always)]
    fn transmit(
        &mut self,
        to: Peer,
        packet: &Packet,
        payload: Option<(&UserMemory, u64)>,
    ) -> Result<(), LinkBusy> {
        if let Some(Some(outbox)) = self.outboxes.get_mut(to.0 as usize) {
            outbox.send(packet, payload);
        }
        Ok(())
    }

    #[inline(always)]
    fn poll_into(&mut self, packet: &mut Packet) -> Option<Polled> {
        assert!(self.current.is_none(), "poll was called before the last packet was retired");
        let fast = self.reclamation.has_no_waiters()
            && self.notices.is_empty()
            && self.inbox.only_polled_lanes_matter(&self.doorbell);
        let lane = if fast {
            self.inbox.next_polled()?
        } else {
            match self.poll_slow_path()? {
                Next::Lane(lane) => lane,
                Next::Arrival(arrival) => return Some(Polled::Other(Box::new(arrival))),
            }
        };
        let Lane::Open(OpenLane { peer: from, .. }) = *self.lanes.get(lane as usize)? else { return None };
        match self.inbox.reader_mut(lane)?.read_head(&mut self.head, packet) {
            Ok(found) => {
                self.current = Some(Current { lane, found });
                Some(Polled::Packet { from })
            }
            Err(ring::MalformedPacket) => {
                diagnostics::report_malformed(ring::header_fault(&self.head));
                self.refuse_lane(lane);
                Some(Polled::Other(Box::new(Arrival::Lost { peer: from, fault: PeerFault::Malformed })))
            }
        }
    }

    #[inline]
    fn may_have_arrivals(&self) -> bool {
        !self.notices.is_empty() || self.inbox.may_have_arrivals(&self.doorbell)
    }

    fn accept(&mut self, lane: u32, peer: Peer) {
        let Some(state) = self.lanes.get_mut(lane as usize) else { return };
        if !matches!(state, Lane::Attached(..)) {
            return;
        }
        if let Lane::Attached(address, memory) = std::mem::replace(state, Lane::Open(OpenLane::new(peer))) {
            if address == self.address {
                self.inbox.open_own_lane(lane, memory);
            } else {
                self.inbox.open_lane(lane, memory);
            }
            // The header stays mapped, so it still shows how the peer ended when its name is gone. If the name is
            // gone already, nothing can show it.
            let segment = SegmentAddress::parse(&address)
                .and_then(|target| PeerSegment::open_any(&self.locks, &target).ok());
            let entry = self.peer_entry(peer);
            entry.address = Some(address);
            entry.lane = Some(lane);
            if entry.segment.is_none() && !entry.forgotten {
                entry.segment = segment;
            }
        }
    }

    fn release(&mut self, peer: Peer) {
        let entry = self.peer_entry(peer);
        let (Some(lane), Some(address)) = (entry.lane.take(), entry.address) else { return };
        // A peer that has detached has written all its pieces. The next sender in this lane reuses these words.
        if let Some(copy) = self.pending_copies.get_mut(&peer) {
            copy.result();
        }
        self.inbox.close_lane(lane);
        self.free_lane(lane, true);
        self.claimants.remove(&address);
        self.unpark_lanes(&address);
    }

    #[inline(always)]
    fn copy_payload(&self, memory: &UserMemory, offset: u64, bytes: u64) {
        if let Some(Current { lane, found }) = &self.current
            && let Some(reader) = self.inbox.reader(*lane)
        {
            reader.copy_payload(&self.head, found, memory, offset, bytes);
        }
    }

    #[inline(always)]
    fn retire(&mut self) {
        // After `forget` the lane has no reader, and there is nothing to retire.
        if let Some(Current { lane, found }) = self.current.take()
            && let Some(reader) = self.inbox.reader_mut(lane)
        {
            reader.retire(&found);
        }
    }

    fn check_peer(&mut self, peer: Peer, address: &Address) {
        if let Some(fault) = self.liveness_of(Some(peer), address).fault() {
            self.note_loss(peer, address, fault);
        }
    }

    fn forget(&mut self, peer: Peer) {
        if let Some(outbox) = self.outboxes.get_mut(peer.0 as usize).and_then(Option::take) {
            outbox.lane().set_state(lane_state::ABANDONED);
        }
        if let Some(PendingAttach { segment, ticket: Some(ticket) }) = self.pending_attaches.remove(&peer) {
            self.unneeded_tickets.push((segment, ticket));
        }
        self.notices.retain(|notice| notice.peer() != peer);
        self.finish_pending_copy(peer);
        let entry = self.peer_entry(peer);
        let (lane, address) = (entry.lane, entry.address);
        if let Some(lane) = lane {
            self.refuse_lane(lane);
            // Check while the header is mapped, because the name may be gone.
            if address.is_some_and(|address| Self::has_ended(self.liveness_of(Some(peer), &address))) {
                self.free_lane(lane, false);
            }
        }
        if let Some(address) = address {
            self.claimants.insert(address, Claimant::Refused);
        }
        let entry = self.peer_entry(peer);
        entry.lane = None;
        entry.forgotten = true;
        entry.lease = None;
        entry.segment = None;
    }

    fn deadline(&self, now: Instant) -> Option<Instant> {
        // A lane that becomes free is announced. A place in a full queue that becomes free is not.
        (!self.pending_attaches.is_empty()).then(|| now + ATTACH_POLL_INTERVAL)
    }

    fn close(&mut self) {
        self.end(OwnSegment::close);
    }

    fn abandon(&mut self) {
        self.end(OwnSegment::abandon);
    }
}

impl Addressing for ShmLink {
    fn kind(&self) -> LinkKind {
        LinkKind::SharedMemory
    }

    fn address(&self) -> Address {
        self.address
    }

    fn introduce(&mut self, address: &Address) {
        self.address = *address;
    }

    fn reaches(&self, address: &Address) -> bool {
        SegmentAddress::parse(address).is_some()
    }
}

impl Inspect for ShmLink {
    fn process(&self, peer: Peer) -> Option<u32> {
        let segment = self.peers.get(&peer)?.segment.as_ref()?;
        // In another pid namespace the number denotes another process.
        let facts = segment.facts();
        (facts.pid_namespace == self.pid_namespace).then_some(facts.pid)
    }

    fn mailbox_bytes(&self) -> u64 {
        self.own.as_ref().map_or(0, |own| own.touched_bytes())
    }
}

impl Capabilities for ShmLink {
    #[inline]
    fn remote_memory(&mut self) -> Option<&mut dyn RemoteMemory> {
        Some(self)
    }

    #[inline]
    fn wake_up(&mut self) -> Option<&mut dyn WakeUp> {
        Some(self)
    }

    #[inline]
    fn lane_reclamation(&mut self) -> Option<&mut dyn LaneReclamation> {
        Some(self)
    }

    #[inline]
    fn free_slots(&mut self) -> Option<&mut dyn FreeSlots> {
        Some(self)
    }
}

impl RemoteMemory for ShmLink {
    fn copy(&mut self, copy: &RemoteCopy, memory: &UserMemory) -> Result<CopyStatus, CopyFault> {
        match self.start_copy(copy, memory) {
            Ok(CopyStatus::Pending) => Ok(CopyStatus::Pending),
            result => self.check_open(copy.peer, result),
        }
    }

    fn next_result(&mut self) -> Option<(Transfer, Result<(), CopyFault>)> {
        let ended = |(&peer, copy): (&Peer, &mut PendingCopy)| Some((peer, copy.transfer(), copy.result()?));
        let (peer, transfer, result) = self.pending_copies.iter_mut().find_map(ended)?;
        self.pending_copies.remove(&peer);
        let result = result.and_then(|()| self.check_source_valid(peer));
        Some((transfer, self.check_open(peer, result)))
    }

    #[inline]
    fn help_copy(&mut self, peer: Peer) -> bool {
        let Some(Some(outbox)) = self.outboxes.get(peer.0 as usize) else { return false };
        let cooperative_copy = &outbox.lane().control().copy.0;
        cooperative_copy.is_open() && self.help_slow_path(peer, cooperative_copy)
    }
}

impl WakeUp for ShmLink {
    fn sleep(&mut self, at_most_ns: u64) {
        if self.notices.is_empty() {
            self.inbox.sleep(&self.doorbell, at_most_ns);
        }
    }

    fn bell(&self) -> Arc<dyn Bell> {
        Arc::new(DoorbellOfMailbox(self.doorbell.clone()))
    }
}

/// The doorbell of a mailbox, for other links and threads.
struct DoorbellOfMailbox(MappedHeader);

impl Bell for DoorbellOfMailbox {
    fn ring(&self) {
        self.0.call_about(call::BELL);
    }
}

impl FirstLink for ShmLink {
    #[inline(always)]
    fn has_lane(&self, peer: Peer) -> bool {
        matches!(self.outboxes.get(peer.0 as usize), Some(Some(_)))
    }

    #[inline(always)]
    fn has_polled_packet(&self) -> bool {
        self.current.is_some()
    }
}

impl LaneReclamation for ShmLink {
    fn maintain(&mut self, keep_bytes: u64) {
        self.maintain_lanes(keep_bytes);
        for peer in self.peers_overdue_to_detach() {
            if let Some(address) = self.peers.get(&peer).and_then(|entry| entry.address) {
                self.check_peer(peer, &address);
            }
        }
    }
}

impl FreeSlots for ShmLink {
    fn newly_free_slots(&mut self, to: Peer) -> u32 {
        match self.outboxes.get_mut(to.0 as usize) {
            Some(Some(outbox)) => outbox.newly_free_slots(),
            _ => 0,
        }
    }
}

impl ShmLink {
    /// Ends the use of the mailbox, which `end` removes.
    fn end(&mut self, end: fn(&OwnSegment)) {
        // Helpers must not write to buffers that belong to the program again.
        while let Some(&peer) = self.pending_copies.keys().next() {
            self.finish_pending_copy(peer);
        }
        if let Some(own) = self.own.take() {
            end(&own);
        }
        self.outboxes.clear(); // a closed endpoint sends nothing
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        self.close();
    }
}
