//! The shared-memory link ([`ShmLink`]): one mailbox per endpoint, in a segment file that its senders map.
//!
//! It knows slots, lanes, doorbells and processes. It does not decide about credits, and knows no messages.
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
//!
//! | files | subject |
//! |---|---|
//! | `transport`, `ring`, `outbox`, `inbox`, `doorbell`, `sync`, `wake_up` | packets out and in, and sleep |
//! | `attach`, `lane_queue`, `lanes`, `lane_reclamation` | who holds a lane |
//! | `segment`, `segment_file`, `layout`, `mapping`, `options`, `open_files`, `per_process`, `lock_file` | the memory |
//! | `node_segment`, `token_lines` | where the endpoints of a job on this node meet, and what they show of their tokens |
//! | `proxy_queues` | datagrams of an endpoint that others of the node may send |
//! | `meeting_place`, `liveness`, `diagnostics` | peers out of reach, lost peers, messages to the user |
//! | `remote_memory`, `cross_memory`, `pending_copy`, `cooperative_copy` | copies from and to peers |

mod attach;
mod cooperative_copy;
pub(crate) mod counted_word;
mod cross_memory;
mod diagnostics;
mod doorbell;
#[cfg(test)]
pub(crate) mod forked_victim;
#[doc(hidden)]
pub mod from_outside;
#[cfg(test)]
mod heap_lane;
mod inbox;
#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod killed_senders;
#[cfg(test)]
mod killed_servers;
mod lane_queue;
mod lane_reclamation;
mod lanes;
mod layout;
mod liveness;
mod lock_file;
mod mapping;
mod meeting_place;
pub mod node_group;
pub mod node_segment;
mod open_files;
pub(crate) mod options;
mod outbox;
mod pending_copy;
mod per_process;
pub(crate) mod proxy_queues;
mod remote_memory;
mod ring;
mod segment;
mod segment_file;
pub mod shared_words;
pub(crate) mod sync;
pub(crate) mod token_lines;
mod transport;
mod wake_up;

pub use crate::SchemeName;
use crate::{
    Address, Capabilities, FreeSlots, LaneLease, LaneReclamation, Link, Quota, RemoteMemory, WakeUp,
};
use attach::PendingAttach;
pub use doorbell::Look;
use inbox::{Inbox, PollLimits};
use lane_queue::Ticket;
use lane_reclamation::Reclamation;
use lanes::{Claimant, Lane};
pub use layout::MAX_LANE_SLOTS;
use layout::{SegmentAddress, Shape};
use liveness::{Liveness, Notice};
pub(crate) use lock_file::Report;
use mapping::{MappedHeader, MappedLane};
pub use meeting_place::of_this_user as meeting_place;
use open_files::Locks;
pub(crate) use open_files::is_first_to_report;
pub use open_files::report_once;
pub use options::{MAILBOX_HEADER_BYTES, ShmError, ShmOptions, lane_bytes, lane_data_slots};
use outbox::Outbox;
use pending_copy::PendingCopy;
use ring::Head;
use rustc_hash::FxHashMap;
use segment::{OwnSegment, PeerSegment};
pub use segment_file::{
    FileSystemSpace, SystemError, can_reserve, cleanup, file_system_space, has_unlimited_memory, owners,
};
use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transport::Current;
use weir_proto::Peer;

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
    /// By numbers of this process, which nobody outside chooses: so their hash needs no secret.
    peers: FxHashMap<Peer, PeerEntry>,
    /// Segments of peers that have our version and scheme ([`ShmLink::is_compatible`]).
    compatible: HashSet<u64>,
    pending_attaches: FxHashMap<Peer, PendingAttach>,
    /// The segments of peers that the system refuses to open, and since when.
    refused_since: FxHashMap<u64, Instant>,
    refused_limit: Duration,
    /// Places in queues of peers that were forgotten since.
    unneeded_tickets: Vec<(PeerSegment, Ticket)>,
    /// Notices that polls return beside the contents of lanes.
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
    pending_copies: FxHashMap<Peer, PendingCopy>,
    fences_registered: bool,
    pid_namespace: u64,
    pid: u32,
    /// See [`ShmOptions::needed_bytes`].
    needed_bytes: u64,
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
        let own = options::create_segment(options, shape, full_fences)?;
        let (facts, locks) = (*own.facts(), own.locks().clone());
        let place = meeting_place::of(locks.dir(), locks.uid()).inspect_err(|_| own.abandon())?;
        let place = if options.is_private { place.private(facts.id) } else { place };
        let place = place.of_mailbox(facts.pid_namespace, own.is_in_memory());
        let own_address = SegmentAddress { id: facts.id, key: facts.key, place };
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
            peers: FxHashMap::default(),
            compatible: HashSet::new(),
            pending_attaches: FxHashMap::default(),
            refused_since: FxHashMap::default(),
            refused_limit: options.refused_limit,
            unneeded_tickets: Vec::new(),
            notices: VecDeque::new(),
            next_epoch: 0,
            own: Some(own),
            own_address,
            address: own_address.address().with_scheme(options.scheme),
            shape,
            locks,
            cross_memory: options.cross_memory,
            cooperative_copy: options.cooperative_copy,
            pending_copies: FxHashMap::default(),
            fences_registered,
            pid_namespace: facts.pid_namespace,
            pid: facts.pid,
            needed_bytes: options.needed_bytes,
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

    /// What `address` says about shared memory, if its endpoint meets this one there.
    fn target(&self, address: &Address) -> Option<SegmentAddress> {
        SegmentAddress::parse(address).filter(|target| target.place.meets(self.own_address.place))
    }

    fn peer_entry(&mut self, peer: Peer) -> &mut PeerEntry {
        self.peers.entry(peer).or_default()
    }

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

impl FreeSlots for ShmLink {
    fn newly_free_slots(&mut self, to: Peer) -> u32 {
        match self.outboxes.get_mut(to.0 as usize) {
            Some(Some(outbox)) => outbox.newly_free_slots(),
            _ => 0,
        }
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        self.close();
    }
}
