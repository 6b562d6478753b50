//! Lane reclamation: the reader asks senders to detach, and assigns free lanes to those that wait. It also frees
//! lanes and places of senders that died before they were accepted, and refused lanes that their owners gave up. As a
//! sender, this endpoint takes requests to detach, and returns lanes that it does not need.
//!
//! `docs/explanation/mailbox.md`, "Lane leases", gives the reasons. [`super::lane_queue`] has the shared words; this
//! file has the policy of the reader:
//! ```text
//! senders wait, several lanes, all held -> ask as many holders as senders wait: first those with an empty lane, the
//!                                         longest idle first; then those that have filled LEASE_SLOTS slots. A holder that
//!                                         has sent nothing yet is spared for MIN_LEASE_POLLS polls
//! the reader is about to sleep          -> the same, but any holder with an empty lane
//! senders wait, only one lane           -> ask its holder at once. If more wait, ask the next holder in advance
//! none detaches within REQUEST_TIMEOUT  -> ask one more for each: the holder may compute
//! no answer within OVERDUE_AFTER        -> check whether the holder lives
//! no sender waits                       -> ask holders that were idle for IDLE_AFTER, while the mailbox is too large
//! ```
//! Of several lanes one is idle soon, and the others are worth keeping. On a single lane all take turns. Its holder
//! knows when its turn is over: as soon as everything that it can send has left. So a turn carries all that the holder
//! has, and costs one round trip between the reader and the next holder:
//! ```text
//! A, which holds the lane: Detach              reader: frees the lane, assigns it to B as wanted, calls B
//! B: attaches, sends its packets and Detach    reader: reads them, assigns the lane to C, calls C
//! ```
//! The reader reads a clock for a new lane, while a sender waits, and in [`LaneReclamation::maintain`], which the
//! driver calls a few times a second.

use super::doorbell::call;
use super::lane_queue::unclaim;
use super::layout::{SegmentAddress, lane_state};
use super::sync::{AtomicU64, Ordering};
use super::{Lane, Notice, ShmLink, segment};
use crate::{Address, LaneReclamation, Link};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use weir_proto::Peer;

/// A sender that has filled so many slots can be asked to detach, if others wait. Unit: slots.
const LEASE_SLOTS: u64 = 256;
/// A sender that has sent nothing yet keeps one of several lanes for so many polls of the reader, even if others wait. A
/// reader that is about to sleep has nothing to read, so the sender then keeps it no longer.
const MIN_LEASE_POLLS: u32 = 256;
/// Time after a request without an answer until the reader asks another sender.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(5);
/// Time without packets after which a lane is idle.
const IDLE_AFTER: Duration = Duration::from_secs(1);
/// Time after a request without an answer until the sender may be dead.
const OVERDUE_AFTER: Duration = Duration::from_millis(200);
/// Bound on the peers that one call of `maintain` checks.
const MAX_OVERDUE_PEERS: usize = 16;
/// Polls between two checks, while a sender waits.
const POLLS_PER_CHECK: u32 = 32;

/// A lane of this mailbox that a sender holds and that the reader reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenLane {
    pub peer: Peer,
    since: Instant,
    /// Polls in which a sender waited for a lane, since this one is open.
    contended_polls: u32,
    /// Position at the last check, and the time when a check first found it.
    last_position: u64,
    idle_since: Instant,
}

impl OpenLane {
    pub fn new(peer: Peer) -> OpenLane {
        let now = Instant::now();
        OpenLane { peer, since: now, contended_polls: 0, last_position: 0, idle_since: now }
    }
}

/// State of the reader about waiting senders.
#[derive(Debug, Default)]
pub(super) struct Reclamation {
    /// Number of senders that wait for a lane, at the last check.
    waiters: usize,
    polls: u32,
    /// Lanes whose holders are asked to detach, and since when.
    requests: HashMap<u32, Instant>,
}

impl Reclamation {
    /// At the last check.
    #[inline]
    pub fn has_no_waiters(&self) -> bool {
        self.waiters == 0
    }

    /// Requests that are younger than `age`.
    fn younger_than(&self, age: Duration, now: Instant) -> usize {
        self.requests.values().filter(|&&asked| now.duration_since(asked) < age).count()
    }
}

impl ShmLink {
    /// Handles calls: a newcomer waits here, or a peer wants something from this endpoint as a sender.
    #[cold]
    pub(super) fn handle_calls(&mut self) {
        let calls = self.doorbell.take_calls();
        if calls & call::NEWCOMER != 0 {
            self.assign_free_lanes();
            self.reclaim_for_waiters();
        }
        if calls & call::AS_SENDER != 0 {
            for (index, outbox) in self.outboxes.iter().enumerate() {
                if outbox.as_ref().is_some_and(|outbox| outbox.lane().take_detach_request()) {
                    self.notices.push_back(Notice::DetachRequested(Peer(index as u32)));
                }
            }
            self.return_unneeded_lanes();
        }
    }

    /// Checks waiting senders in some polls, while there are any.
    pub(super) fn check_waiters(&mut self) {
        if self.reclamation.waiters > 0 {
            self.reclamation.polls += 1;
            if self.reclamation.polls.is_multiple_of(POLLS_PER_CHECK) {
                for lane in &mut self.lanes {
                    if let Lane::Open(open) = lane {
                        open.contended_polls = open.contended_polls.saturating_add(POLLS_PER_CHECK);
                    }
                }
                self.reclaim_for_waiters();
            }
        }
    }

    /// Asks holders of empty lanes to detach, if others wait. The reader is about to sleep, so nothing else would ask
    /// them until its sleep is over.
    pub(super) fn reclaim_before_sleep(&mut self) {
        self.reclaim_from_holders(0);
    }

    /// Assigns free lanes to waiting senders.
    pub(super) fn assign_free_lanes(&mut self) {
        let Some(own) = self.own.clone() else { return };
        let header = own.header();
        let waiters = header.lane_queue().waiters();
        self.reclamation.waiters = waiters.len();
        if waiters.is_empty() {
            return;
        }
        let claims = header.claims(own.claimable_lanes(self.lanes.len() as u32));
        for waiter in waiters {
            // Without memory for another lane, newcomers wait for one that a sender returns.
            let now = Instant::now();
            let leaving = self.reclamation.younger_than(REQUEST_TIMEOUT, now);
            let is_wanted = self.has_one_lane() && self.reclamation.waiters - 1 > leaving;
            let prepare = |lane| {
                let memory = own.lane(lane);
                memory
                    .map(|memory| {
                        if is_wanted {
                            memory.request_detach()
                        }
                    })
                    .is_ok()
            };
            let Some(lane) = header.lane_queue().assign_lane(waiter, claims, prepare) else { return };
            if is_wanted {
                self.reclamation.requests.insert(lane, now);
            }
            self.reclamation.waiters -= 1;
            if let Some(theirs) = segment::open_header(&self.locks, waiter.segment) {
                theirs.call_about(call::AS_SENDER);
            }
        }
    }

    /// Asks as many senders to detach as others wait.
    #[cold]
    pub(super) fn reclaim_for_waiters(&mut self) {
        self.reclaim_from_holders(MIN_LEASE_POLLS);
    }

    /// Asks as many senders to detach as others wait. A sender that has sent nothing is asked after `min_polls`.
    fn reclaim_from_holders(&mut self, min_polls: u32) {
        if self.reclamation.has_no_waiters() {
            return;
        }
        let now = Instant::now();
        let leaving = self.reclamation.younger_than(REQUEST_TIMEOUT, now);
        let wanted = self.reclamation.waiters.saturating_sub(leaving);
        if wanted == 0 {
            return;
        }
        // Order: idle before busy, then the longest idle first, then the oldest lease first.
        let mut candidates: Vec<(bool, Instant, Instant, u32)> = self
            .unasked_lanes()
            .filter_map(|(lane, open)| {
                let reader = self.inbox.reader(lane)?;
                let min_lease_over = reader.position() > 0 || open.contended_polls >= min_polls;
                let idle = !reader.arrived() && min_lease_over;
                let moved = reader.position() != open.last_position;
                (idle || reader.position() >= LEASE_SLOTS || self.has_one_lane()).then_some((
                    !idle,
                    if moved { now } else { open.idle_since },
                    open.since,
                    lane,
                ))
            })
            .collect();
        candidates.sort_unstable();
        for (.., lane) in candidates.into_iter().take(wanted) {
            self.request_detach(lane, now);
        }
    }

    fn open_lanes(&self) -> impl Iterator<Item = (u32, &OpenLane)> {
        (0..).zip(&self.lanes).filter_map(|(lane, state)| match state {
            Lane::Open(open) => Some((lane, open)),
            _ => None,
        })
    }

    /// Whether others wait for lanes of this mailbox, or have waited when `lane` was assigned.
    pub(super) fn is_wanted(&self, lane: u32) -> bool {
        self.reclamation.waiters > 0 || self.reclamation.requests.contains_key(&lane)
    }

    /// Whether all senders have had to share one lane so far.
    fn has_one_lane(&self) -> bool {
        self.lanes.len() == 1
    }

    /// Open lanes whose holders are not asked to detach.
    fn unasked_lanes(&self) -> impl Iterator<Item = (u32, &OpenLane)> {
        self.open_lanes().filter(|(lane, _)| !self.reclamation.requests.contains_key(lane))
    }

    fn request_detach(&mut self, lane: u32, now: Instant) {
        let Some(Lane::Open(open)) = self.lanes.get(lane as usize) else { return };
        let peer = open.peer;
        self.reclamation.requests.insert(lane, now);
        let Some(reader) = self.inbox.reader(lane) else { return };
        reader.lane().request_detach();
        // A sender that cannot be called finds the request in the lane when something else calls it.
        if let Ok(segment) = self.segment_of(peer) {
            segment.header().call_about(call::AS_SENDER);
        }
    }

    /// Frees `lane`, whose last owner writes there no more. `left`: it has detached, and all its packets are retired.
    pub(super) fn free_lane(&mut self, lane: u32, left: bool) {
        self.reclamation.requests.remove(&lane);
        if let Some(state) = self.lanes.get_mut(lane as usize) {
            *state = Lane::Free;
        }
        let Some(own) = self.own.clone() else { return };
        if own.reserve_claims(lane + 1).is_err() {
            return; // the lane was claimed, so there was memory; a full file system has lost it
        }
        let header = own.header();
        let claim = &header.claims(lane + 1)[lane as usize];
        let keep = left && self.reclamation.waiters > 0;
        own.reset_lane(lane, keep);
        claim.store(0, Ordering::Release);
        self.assign_free_lanes();
        // The waiting senders may be gone. A claim of this endpoint keeps others out while the memory is released.
        if keep && claim.compare_exchange(0, self.own_address.id, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            own.reset_lane(lane, false);
            claim.store(0, Ordering::Release);
            self.assign_free_lanes();
        }
    }

    /// See [`LaneReclamation::maintain`].
    pub(super) fn maintain_lanes(&mut self, keep_bytes: u64) {
        let Some(own) = self.own.clone() else { return };
        let now = Instant::now();
        for index in 0..self.lanes.len() {
            let Lane::Open(open) = &mut self.lanes[index] else { continue };
            let position = self.inbox.reader(index as u32).map_or(0, |reader| reader.position());
            if position != open.last_position {
                (open.last_position, open.idle_since) = (position, now);
            }
        }
        self.free_refused_lanes();
        let header = own.header();
        if header.lane_queue().occupants().next().is_some() {
            self.reclaim_from_dead();
            self.assign_free_lanes();
            self.reclaim_for_waiters();
        } else {
            self.reclamation.waiters = 0;
            self.reclaim_idle(now, own.touched_bytes().saturating_sub(keep_bytes));
        }
    }

    /// Asks idle senders to detach, the longest idle first, until `excess_bytes` will be released.
    fn reclaim_idle(&mut self, now: Instant, excess_bytes: u64) {
        let leaving = self.reclamation.requests.len() as u64;
        let wanted = excess_bytes.div_ceil(self.shape.stride).saturating_sub(leaving);
        if wanted == 0 {
            return;
        }
        let mut idle: Vec<(Instant, u32)> = self
            .unasked_lanes()
            .filter(|(_, open)| now.duration_since(open.idle_since) >= IDLE_AFTER)
            .map(|(lane, open)| (open.idle_since, lane))
            .collect();
        idle.sort_unstable();
        for (_, lane) in idle.into_iter().take(wanted as usize) {
            self.request_detach(lane, now);
        }
    }

    /// Frees refused lanes whose owner has died or has abandoned the lane.
    fn free_refused_lanes(&mut self) {
        for lane in 0..self.lanes.len() as u32 {
            let Lane::Refused(Address(bytes)) = self.lanes[lane as usize] else { continue };
            let alive = SegmentAddress::parse(&Address(bytes))
                .is_some_and(|owner| segment::is_open_and_alive(&self.locks, owner.id));
            let abandoned = || {
                let own = self.own.as_ref();
                own.and_then(|own| own.lane(lane).ok())
                    .is_some_and(|lane| lane.state() == lane_state::ABANDONED)
            };
            if !alive || abandoned() {
                self.free_lane(lane, false);
            }
        }
    }

    /// Frees places and lanes of senders that died before this endpoint accepted them. Costs some system calls for
    /// each.
    fn reclaim_from_dead(&mut self) {
        let Some(own) = self.own.clone() else { return };
        let header = own.header();
        let dead = |id: u64| !segment::is_open_and_alive(&self.locks, id);
        for (place, owner) in header.lane_queue().occupants() {
            if dead(owner) {
                header.lane_queue().free_place(place);
            }
        }
        let claims = header.claims(own.claimable_lanes(self.lanes.len() as u32));
        let unknown = |lane: u32| matches!(self.lanes.get(lane as usize), None | Some(Lane::Free));
        let of_the_dead = |(lane, claim): (u32, &AtomicU64)| {
            let claimant = claim.load(Ordering::Acquire);
            (claimant != 0 && unknown(lane) && dead(claimant)).then_some(lane)
        };
        let lanes: Vec<u32> = (0..).zip(claims).filter_map(of_the_dead).collect();
        for lane in lanes {
            // Ready: the sender died after the last step of attaching, so its packets are valid. They are read before
            // its death is noticed.
            if own.lane(lane).is_ok_and(|memory| memory.state() == lane_state::READY) {
                self.inbox.push_unaccepted_lane(lane);
            } else {
                self.free_lane(lane, false);
            }
        }
    }

    /// Peers that were asked to detach long ago and have not answered.
    pub(super) fn peers_overdue_to_detach(&self) -> Vec<Peer> {
        let now = Instant::now();
        let overdue = |lane: u32| {
            let asked = self.reclamation.requests.get(&lane);
            asked.is_some_and(|&asked| now.duration_since(asked) >= OVERDUE_AFTER)
        };
        self.open_lanes()
            .filter(|&(lane, _)| overdue(lane))
            .map(|(_, open)| open.peer)
            .take(MAX_OVERDUE_PEERS)
            .collect()
    }

    /// Returns lanes that this endpoint got from queues of peers that it has forgotten since.
    fn return_unneeded_lanes(&mut self) {
        let id = self.own_address.id;
        self.unneeded_tickets.retain(|(segment, ticket)| {
            let header = segment.header();
            let Some(lane) = header.lane_queue().assigned_lane(*ticket) else { return true };
            header.lane_queue().leave(*ticket);
            unclaim(header.claims(segment.facts().shape.max_lanes), lane, id);
            header.call_about(call::NEWCOMER);
            false
        });
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
