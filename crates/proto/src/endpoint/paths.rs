//! The paths of an endpoint: its peers, and what all paths share, for example counters, budget and bounds. [`Scratch`]
//! is spare memory that one endpoint can pass to the next.
//!
//! [`super::transmit`], [`super::credits`], [`super::lane_lease`], [`super::busy_link`], [`super::rnr`] and
//! [`super::receiver_memory`] say what paths do.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::backlog::BacklogEntry;
use super::budget::Budget;
use super::hold_mutant::SelectedMutant;
use super::path::{Outbound, Path};
use super::peer_entry::PeerEntry;
use super::peers::Peers;
use super::pending::{BusyLink, PendingWork, Spare};
use super::refusal::Refusal;
use crate::config::{Config, MAX_UNEXPECTED};
use crate::counters::Counters;
use crate::driver::{Driver, PayloadDriver};
use crate::event::{Peer, PeerFault};
use crate::flow::{self, Mutant};
use crate::offload::multi_send::MultiSends;
use crate::packet::{Body, Geometry};

/// All paths.
#[derive(Clone, Debug)]
pub(super) struct Paths {
    pub config: Config,
    /// See [`Config::holds`].
    pub holds: bool,
    pub hold_mutant: SelectedMutant,
    pub peers: Peers,
    pub counters: Counters,
    /// Flow-control state that exists once per endpoint.
    pub pool: flow::Pool,
    /// The longest eager message that fits into one packet. Unit: bytes.
    pub one_packet_bytes: u32,
    /// Eager limit for peers that can read our memory. At most that of the configuration.
    pub readable_eager_bytes: u32,
    /// The unexpected payload that we can still take, which every header reports.
    pub budget: Budget,
    /// Peers with coalesced acknowledgements, which leave with the next one or when the endpoint is idle.
    pub pending_acks: Vec<Peer>,
    /// Backlog entries of all peers.
    pub backlogged: u32,
    pub spare: Spare,
    /// Multi-sends whose copies are in backlogs, and wait for each other.
    pub multi_sends: MultiSends,
    /// See [`crate::Endpoint::rely_on_thresholds`].
    #[cfg(feature = "explore")]
    pub relies_on_thresholds: bool,
}

impl Paths {
    /// Paths without peers.
    ///
    /// # Panics
    /// See [`crate::Endpoint::new`].
    pub fn new(config: Config) -> Paths {
        assert!(config.credit_slots >= 1, "credit_slots is {}, the minimum is 1", config.credit_slots);
        assert!(
            config.max_unexpected <= MAX_UNEXPECTED,
            "max_unexpected is {}, the maximum is {MAX_UNEXPECTED}",
            config.max_unexpected
        );
        let geometry = &config.geometry;
        assert!(geometry.max_packet_slots >= 1 && geometry.remote_header_bytes <= geometry.slot_bytes);
        let pool = flow::Pool::new(&config);
        let most_bytes = geometry
            .payload_bytes(geometry.eager_header_bytes.min(geometry.slot_bytes), geometry.max_packet_slots);
        let eager_bytes = u32::try_from(config.eager_bytes).unwrap_or(u32::MAX);
        Paths {
            one_packet_bytes: eager_bytes.min(most_bytes),
            readable_eager_bytes: eager_bytes,
            budget: Budget::new(&config),
            holds: config.holds(),
            hold_mutant: SelectedMutant::default(),
            pending_acks: Vec::new(),
            peers: Peers::new(&config),
            config,
            counters: Counters::default(),
            pool,
            backlogged: 0,
            spare: Spare::default(),
            multi_sends: MultiSends::default(),
            #[cfg(feature = "explore")]
            relies_on_thresholds: false,
        }
    }

    /// The entry of a peer; creates it if there is none.
    #[inline]
    pub fn peer(&mut self, peer: Peer) -> &mut PeerEntry {
        if self.peers.get_mut(peer.0 as usize).is_none() {
            self.create_entry(peer);
        }
        &mut self.peers[peer.0 as usize]
    }

    /// Creates the entry of a peer.
    #[cold]
    fn create_entry(&mut self, peer: Peer) {
        let unreserved = self.budget.starts_rendezvous_only();
        let rendezvous_only = unreserved || (self.budget.enforced() && self.peers.has_leased(peer));
        let mut state = PeerEntry::new(self.config.cross_memory);
        state.path.grants.rendezvous_only = rendezvous_only;
        state.path.grants.unreserved = unreserved;
        self.peers.insert(peer.0 as usize, state);
    }

    /// The pending work of a peer with an entry; creates it if there is none.
    pub fn pending(&mut self, peer: Peer) -> &mut PendingWork {
        let Paths { peers, spare, .. } = self;
        spare.begin(&mut peers[peer.0 as usize].pending)
    }

    /// Removes the entry of a peer if neither side has a lane or pending work.
    pub fn remove_if_idle(&mut self, peer: Peer) {
        let cross_memory = self.config.cross_memory;
        let idle = |state: &PeerEntry| {
            matches!(state.path.outbound, Outbound::Absent)
                && state.path.grants.receiver.is_none()
                && state.pending.as_deref().is_none_or(PendingWork::is_idle)
                && state.path.inbound.is_none()
                && !state.path.grants.said_goodbye
                && state.path.grants.cross_memory == cross_memory
        };
        if let Some(state) = self.peers.full_entry(peer.0 as usize).filter(|state| idle(state)) {
            let stalled_ns = state.pending.as_deref().map_or(0, |pending| pending.stalled_ns);
            self.peers.removed_stalled_ns += stalled_ns;
            self.peers.remove(peer.0 as usize);
        }
    }

    /// Whether `peer` is lost, and why.
    pub fn fault(&self, peer: Peer) -> Option<PeerFault> {
        match self.peers.full_entry(peer.0 as usize)?.path.outbound {
            Outbound::Lost(fault) => Some(fault),
            _ => None,
        }
    }

    pub fn is_connecting(&self, to: Peer) -> bool {
        self.peers
            .full_entry(to.0 as usize)
            .is_some_and(|state| matches!(state.path.outbound, Outbound::Connecting))
    }

    /// The path to `peer` has this geometry.
    pub fn set_geometry(&mut self, peer: Peer, geometry: Geometry) {
        assert!(
            self.budget.covers(&self.config, &geometry),
            "expect_geometry was not called for {geometry:?}"
        );
        self.peer(peer);
        if geometry != self.config.geometry {
            self.pending(peer).geometry = Some(Box::new(geometry));
        }
    }

    /// Notes how many data slots a sender owns here.
    pub fn note_quota(&mut self, slots: u32) {
        let peak = &mut self.counters.peak_quota_slots;
        *peak = (*peak).max(u64::from(slots));
    }

    /// Whether a message of `bytes` bytes to `peer` might have to wait for credit now, or waits behind others.
    #[inline]
    pub fn would_wait(&self, peer: Peer, bytes: u64) -> bool {
        // An upper bound on its slots: each packet has a header, and a rendezvous fills one slot.
        let full_entry = self.peers.full_entry(peer.0 as usize);
        let own = &self.config.geometry;
        let geometry = full_entry.map_or(*own, |state| state.geometry(own));
        let packet_bytes =
            u64::from(geometry.slot_bytes * geometry.max_packet_slots - geometry.remote_header_bytes);
        let whole = if bytes > self.config.eager_bytes { 0 } else { bytes };
        let packets = whole / packet_bytes.max(1) + 1;
        let slots = whole / u64::from(geometry.slot_bytes) + 2 * packets;
        match full_entry {
            Some(state @ PeerEntry { path: Path { outbound: Outbound::Connected(sender), .. }, .. }) => {
                u64::from(sender.credits()) < slots || state.must_queue()
            }
            Some(_) => true,
            None => self.peers.compact_room(peer.0 as usize).is_none_or(|room| u64::from(room) < slots),
        }
    }

    /// Whether a message of `bytes` bytes to `to` is eager, and not announced.
    pub fn is_eager<D: PayloadDriver>(&self, to: Peer, bytes: u64, driver: &mut D) -> bool {
        bytes <= u64::from(self.readable_eager_bytes)
            || (bytes <= self.config.eager_bytes && !driver.may_read(to))
    }

    /// Whether the bounds allow an operation that may wait for credit with `bytes` bytes to `to`.
    pub fn check_bounds<D: Driver>(&self, to: Peer, bytes: u64, driver: &D) -> Result<(), Refusal> {
        let state = self.peers.full_entry(to.0 as usize);
        let waiting = state.map_or(0, PeerEntry::backlog_len);
        if waiting >= self.config.max_backlog as usize && self.would_wait(to, bytes) {
            return Err(Refusal::Backlog);
        }
        if driver.can_hold() { Ok(()) } else { Err(Refusal::Operations) }
    }

    /// Adds an entry to the backlog of a peer with an entry.
    pub fn push_backlog(&mut self, to: Peer, entry: BacklogEntry) {
        let Paths { peers, spare, backlogged, .. } = self;
        let backlog = &mut spare.begin(&mut peers[to.0 as usize].pending).backlog;
        spare.push(backlog, entry);
        *backlogged += 1;
    }

    /// The packets that wait for the link to `peer`, which has just refused a packet.
    pub fn note_busy(&mut self, peer: Peer) -> &mut BusyLink {
        let busy_link = &mut self.pending(peer).busy_link;
        busy_link.busy = true;
        busy_link
    }

    /// A packet with this body, of `slots` slots, has not left.
    pub fn take_back(&mut self, to: Peer, body: &Body, slots: u32) {
        self.counters.uncount(body, slots);
        if let Outbound::Connected(sender) = &mut self.peers[to.0 as usize].path.outbound
            && !self.pool.breaks(Mutant::RefusedPacketSpendsItsCredit)
        {
            sender.refund(slots);
        }
        self.note_busy(to);
    }
}

/// Spare memory of freed state. An endpoint has its own. A process with many endpoints can pass it from one to the next
/// ([`crate::Endpoint::exchange_scratch`]).
#[derive(Debug, Default)]
pub struct Scratch {
    pending: Spare,
    peer: Option<Box<PeerEntry>>,
}

impl Scratch {
    /// Swaps the spare memory with that of `paths`.
    #[inline]
    pub(super) fn exchange(&mut self, paths: &mut Paths) {
        core::mem::swap(&mut paths.spare, &mut self.pending);
        paths.peers.exchange_spare(&mut self.peer);
    }
}
