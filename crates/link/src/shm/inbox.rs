//! The reader's side of a mailbox: selects the lanes that it polls, and their order. It also lists announced lanes that
//! the link has not accepted yet, and sleeps on the doorbell.
//!
//! It knows the holder of a lane by its number only. Polling every lane would cost as much as there are peers. If every sender
//! announced every packet, each packet would cost two locked instructions on shared words. So there are two kinds of
//! lanes:
//! - *Polled* lanes are in the active set, which is bounded. The reader polls them in turn. The writer only writes
//!   its slot.
//! - *Quiet* lanes are announced by their writer in the doorbell. An announced lane joins the active set. If that is
//!   full, the lane joins a queue until there is room or a poll finds it empty. It stays quiet there, so the writer
//!   announces every later packet, and no packet is lost.
//!
//! While more than `keep_active` lanes are in the active set, those that had no packet for `idle_polls` polls become
//! quiet. The reader looks for them every `idle_polls` polls:
//! ```text
//! reader: polled = 0, heavy fence, polls once more: empty -> leaves the active set
//!                                                   not   -> polled = 1, stays
//! writer: publishes, light fence, reads polled: 0 -> announces;  1 -> the reader's last poll sees its slot
//! ```
//! Polls alternate between the active set and the queue, and take turns in each. So no sender keeps the packets of
//! others waiting, except as follows.
//!
//! **The endpoint's own lane comes first.** An endpoint receives what it has sent to itself before anything from
//! others. So it later receives what peers do in response to its own later actions. MPI does not promise this order,
//! but programs rely on it: mpi4py resets a variable in its own memory, tells other ranks, and waits until they set
//! it. Only this endpoint fills that lane, so others wait only for what it has sent to itself.

use super::doorbell::{Doorbell, Episode};
use super::ring::{Found, LaneMemory, NextWord, Reader};
use super::sync::{Ordering, heavy_fence};
use std::collections::VecDeque;
use weir_proto::Peer;

/// The bounds of polling.
#[derive(Clone, Copy, Debug)]
pub struct PollLimits {
    /// Bound on polled lanes. An empty poll reads one cache line for each.
    pub max_active: usize,
    /// So many lanes stay polled even if they are idle, because each demotion costs a heavy fence.
    pub keep_active: usize,
    /// Polls without a packet after which a lane becomes quiet, and polls between two checks for such lanes.
    pub idle_polls: u64,
    /// All senders execute full fences, so that the reader needs no `membarrier`.
    pub full_fences: bool,
}

/// With so many polls between two checks, heavy fences cost a few percent at most of a reader that only polls. The
/// example `costs` measures both prices.
impl Default for PollLimits {
    fn default() -> PollLimits {
        PollLimits { max_active: 64, keep_active: 8, idle_polls: 65_536, full_fences: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneKind {
    /// The endpoint's own lane, checked in every poll.
    Own,
    Quiet,
    Queued,
    Active,
}

#[derive(Debug)]
struct Entry<L> {
    reader: Reader<L>,
    /// The sender that holds the lane.
    sender: Peer,
    kind: LaneKind,
}

#[derive(Debug)]
struct Active<L> {
    lane: u32,
    last_arrival: u64,
    next: NextWord<L>,
}

/// All lanes that are read.
#[derive(Debug)]
pub struct Inbox<L> {
    lanes: Vec<Option<Entry<L>>>,
    own: Option<u32>,
    active: Vec<Active<L>>,
    cursor: usize,
    /// Where in `active` the lane of the last packet was found.
    found: usize,
    queue: VecDeque<u32>,
    queue_first: bool,
    /// Announced lanes that are not read, or not yet.
    unaccepted_lanes: VecDeque<u32>,
    polls: u64,
    next_sweep: u64,
    limits: PollLimits,
    episode: Episode,
}

impl<L: LaneMemory + Clone> Inbox<L> {
    /// An inbox without lanes.
    pub fn new(limits: PollLimits) -> Inbox<L> {
        Inbox {
            lanes: Vec::new(),
            own: None,
            active: Vec::with_capacity(limits.max_active),
            cursor: 0,
            found: 0,
            queue: VecDeque::new(),
            queue_first: false,
            unaccepted_lanes: VecDeque::new(),
            polls: 0,
            next_sweep: limits.idle_polls,
            limits,
            episode: Episode::default(),
        }
    }

    /// Starts reading `lane`, which `sender` holds.
    pub fn open_lane(&mut self, lane: u32, sender: Peer, memory: L) {
        self.insert(lane, sender, memory, LaneKind::Quiet);
        // Packets from before this call may have been announced while the lane was not read.
        self.schedule(lane);
    }

    /// Starts reading `lane`, which is the endpoint's own, before all others. `sender` is the endpoint.
    pub fn open_own_lane(&mut self, lane: u32, sender: Peer, memory: L) {
        self.insert(lane, sender, memory, LaneKind::Own);
        self.own = Some(lane);
        self.set_polled(lane, 1);
    }

    fn insert(&mut self, lane: u32, sender: Peer, memory: L, kind: LaneKind) {
        let index = lane as usize;
        if self.lanes.len() <= index {
            self.lanes.resize_with(index + 1, || None);
        }
        self.lanes[index] = Some(Entry { reader: Reader::new(memory), sender, kind });
    }

    /// Stops reading `lane`.
    pub fn close_lane(&mut self, lane: u32) {
        if let Some(entry) = self.lanes.get_mut(lane as usize) {
            *entry = None;
        }
        self.own = self.own.filter(|&own| own != lane);
        self.active.retain(|active| active.lane != lane);
        self.queue.retain(|&queued| queued != lane);
        self.cursor = 0;
    }

    /// The reader of `lane`, if the lane is read.
    #[inline]
    pub fn reader(&self, lane: u32) -> Option<&Reader<L>> {
        self.lanes.get(lane as usize)?.as_ref().map(|entry| &entry.reader)
    }

    /// Frees the slots of `found`, the current packet of `lane`. A lane that is not read any more has nothing to free.
    #[inline(always)]
    pub fn retire(&mut self, lane: u32, found: &Found) {
        let Some(Some(entry)) = self.lanes.get_mut(lane as usize) else { return };
        entry.reader.retire(found);
        match self.active.get_mut(self.found) {
            Some(active) if active.lane == lane => active.next.follow(&entry.reader),
            _ => self.follow_elsewhere(lane),
        }
    }

    /// The reader of a lane has retired a packet that was not found in the active set, or the set has changed since.
    #[cold]
    #[inline(never)]
    fn follow_elsewhere(&mut self, lane: u32) {
        if let Some(Some(entry)) = self.lanes.get(lane as usize)
            && let Some(active) = self.active.iter_mut().find(|active| active.lane == lane)
        {
            active.next.follow(&entry.reader);
        }
    }

    /// The sender that holds `lane`, and the reader of the lane, if it is read.
    #[inline]
    pub fn sender_and_reader(&mut self, lane: u32) -> Option<(Peer, &mut Reader<L>)> {
        self.lanes.get_mut(lane as usize)?.as_mut().map(|entry| (entry.sender, &mut entry.reader))
    }

    /// The next announced lane that is not read.
    #[inline]
    pub fn next_unaccepted_lane(&mut self) -> Option<u32> {
        self.unaccepted_lanes.pop_front()
    }

    /// Queues `lane` as if it had been announced.
    pub fn push_unaccepted_lane(&mut self, lane: u32) {
        self.unaccepted_lanes.push_back(lane);
    }

    /// Whether [`Inbox::next_unaccepted_lane`] returns a lane.
    #[inline]
    pub fn has_unaccepted_lanes(&self) -> bool {
        !self.unaccepted_lanes.is_empty()
    }

    /// Whether only packets in polled lanes can be next: no announcement, no call, no queued lane, no check for idle
    /// lanes due.
    #[inline]
    pub fn only_polled_lanes_matter(&self, doorbell: &Doorbell) -> bool {
        let waiting = self.queue.len() | self.unaccepted_lanes.len();
        !doorbell.announced() && waiting == 0 && self.polls < self.next_sweep
    }

    /// As [`Inbox::next`], if [`Inbox::only_polled_lanes_matter`].
    #[inline(always)]
    pub fn next_polled(&mut self) -> Option<u32> {
        self.polls += 1;
        match self.own {
            Some(own) if self.has_packet(own) => self.own,
            _ => self.next_active(),
        }
    }

    /// The next lane with a packet. Also `None` if there are unaccepted lanes or calls: the caller handles those
    /// first.
    #[inline]
    pub fn next(&mut self, doorbell: &Doorbell) -> Option<u32> {
        self.polls += 1;
        if self.polls >= self.next_sweep {
            self.demote_idle();
        }
        if doorbell.announced() {
            self.take_announcements(doorbell);
            if !self.unaccepted_lanes.is_empty() || doorbell.called() {
                return None; // the endpoint's own lane may be among them
            }
        }
        if self.own.is_some_and(|own| self.has_packet(own)) {
            return self.own;
        }
        if self.queue.is_empty() {
            return self.next_active();
        }
        self.queue_first = !self.queue_first;
        if self.queue_first {
            self.next_queued().or_else(|| self.next_active())
        } else {
            self.next_active().or_else(|| self.next_queued())
        }
    }

    #[inline(always)]
    fn next_active(&mut self) -> Option<u32> {
        // There is often only one lane.
        let first = self.active.get_mut(self.cursor)?;
        if first.next.arrived() {
            first.last_arrival = self.polls;
            self.found = self.cursor;
            let next = self.cursor + 1;
            let lane = first.lane;
            self.cursor = if next == self.active.len() { 0 } else { next };
            return Some(lane);
        }
        if self.active.len() > 1 { self.next_active_after_cursor() } else { None }
    }

    /// As [`Inbox::next_active`], for all lanes except the one at the cursor.
    fn next_active_after_cursor(&mut self) -> Option<u32> {
        let count = self.active.len();
        let mut at = if self.cursor + 1 == count { 0 } else { self.cursor + 1 };
        for _ in 1..count {
            let here = at;
            at = if at + 1 == count { 0 } else { at + 1 };
            let active = &mut self.active[here];
            if active.next.arrived() {
                active.last_arrival = self.polls;
                (self.found, self.cursor) = (here, at);
                return Some(active.lane);
            }
        }
        None
    }

    #[cold]
    fn next_queued(&mut self) -> Option<u32> {
        while let Some(lane) = self.queue.pop_front() {
            let Some(entry) = &mut self.lanes[lane as usize] else { continue };
            if entry.reader.arrived() {
                if self.active.len() < self.limits.max_active {
                    self.activate(lane);
                } else {
                    self.queue.push_back(lane);
                }
                return Some(lane);
            }
            entry.kind = LaneKind::Quiet;
        }
        None
    }

    #[cold]
    fn take_announcements(&mut self, doorbell: &Doorbell) {
        doorbell.take(|lane| match self.lanes.get(lane as usize) {
            Some(Some(_)) => self.schedule(lane),
            _ => self.unaccepted_lanes.push_back(lane),
        });
    }

    fn schedule(&mut self, lane: u32) {
        let Some(Some(entry)) = self.lanes.get_mut(lane as usize) else { return };
        if entry.kind == LaneKind::Quiet {
            if self.active.len() < self.limits.max_active {
                self.activate(lane);
            } else {
                entry.kind = LaneKind::Queued;
                self.queue.push_back(lane);
            }
        }
    }

    fn activate(&mut self, lane: u32) {
        let Some(Some(entry)) = self.lanes.get_mut(lane as usize) else { return };
        entry.kind = LaneKind::Active;
        entry.reader.lane().control().polled.0.store(1, Ordering::Relaxed);
        let next = NextWord::of(&entry.reader);
        self.active.push(Active { lane, last_arrival: self.polls, next });
    }

    /// Makes idle lanes quiet.
    #[cold]
    fn demote_idle(&mut self) {
        self.next_sweep = self.polls + self.limits.idle_polls;
        let spare = self.active.len().saturating_sub(self.limits.keep_active);
        let oldest_arrival = self.polls.saturating_sub(self.limits.idle_polls);
        let idle: Vec<u32> = self
            .active
            .iter()
            .filter(|a| a.last_arrival <= oldest_arrival)
            .map(|a| a.lane)
            .take(spare)
            .collect();
        if idle.is_empty() {
            return;
        }
        for &lane in &idle {
            self.set_polled(lane, 0);
        }
        let fenced = heavy_fence(self.limits.full_fences);
        for lane in idle {
            let Some(Some(entry)) = self.lanes.get_mut(lane as usize) else { continue };
            if !fenced || entry.reader.arrived() {
                self.set_polled(lane, 1);
            } else {
                entry.kind = LaneKind::Quiet;
                self.active.retain(|active| active.lane != lane);
            }
        }
        self.cursor = 0;
    }

    fn set_polled(&self, lane: u32, polled: u32) {
        if let Some(reader) = self.reader(lane) {
            reader.lane().control().polled.0.store(polled, Ordering::Relaxed);
        }
    }

    /// Sleeps until something arrives, at most `at_most_ns`.
    pub fn sleep(&mut self, doorbell: &Doorbell, at_most_ns: u64) {
        let mut episode = self.episode;
        doorbell
            .sleep(&mut episode, self.limits.full_fences, at_most_ns, || self.may_have_arrivals(doorbell));
        self.episode = episode;
    }

    /// Announces a sleep elsewhere. `false`: something has arrived, or a wake-up could be missed.
    pub fn begin_sleep(&mut self, doorbell: &Doorbell) -> bool {
        doorbell.begin_sleep(&self.episode, self.limits.full_fences) && !self.may_have_arrivals(doorbell)
    }

    /// Ends the sleep elsewhere.
    pub fn end_sleep(&mut self, doorbell: &Doorbell) {
        doorbell.end_sleep(&mut self.episode);
    }

    /// Whether a lane has a packet, or there is an announcement or call.
    pub fn may_have_arrivals(&self, doorbell: &Doorbell) -> bool {
        doorbell.announced()
            || !self.queue.is_empty()
            || !self.unaccepted_lanes.is_empty()
            || self.own.is_some_and(|own| self.has_packet(own))
            || self.active.iter().any(|active| active.next.arrived())
    }

    #[inline]
    fn has_packet(&self, lane: u32) -> bool {
        self.reader(lane).is_some_and(Reader::arrived)
    }

    /// Number of polled lanes.
    pub fn active_lanes(&self) -> usize {
        self.active.len()
    }
}
