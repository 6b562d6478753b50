//! The reader's side of a mailbox: which lanes to look at, in which order.
//!
//! It does not know whose the lanes are. Looking at every lane would cost as much as there are peers, and having
//! every sender announce every packet would cost each two locked instructions on shared words. So lanes are of two kinds:
//! - *polled*: in the active set (bounded), which the reader goes round; the writer only writes its slot;
//! - *quiet*: the writer announces in the doorbell. An announced lane joins the active set, or, if that is full, a
//!   queue of announced lanes from which it leaves when it is found empty. It stays quiet there, so everything
//!   that comes later is announced again: nothing is lost and nobody is demoted in haste.
//!
//! A lane becomes quiet again when nothing has come in it for some ten thousand polls:
//! ```text
//! reader: polled = 0, heavy fence, looks once more: empty -> out of the active set
//!                                                   not   -> polled = 1, stays
//! writer: publishes, light fence, reads polled: 0 -> announces;  1 -> its slot was there for that last look
//! ```
//! Polls alternate between the active set and the queue, and both are round robin, so that no lane waits
//! for more than one packet of each other lane that has something, times two.
//!
//! *Our own lane goes first*: what we send to ourselves is read before anything of others. Whatever another endpoint does
//! because of something that we have done since is then read later: programs count on it (mpi4py resets a variable in
//! its own memory, tells the others, and waits for them to set it), though MPI does not promise it. Only we
//! fill that lane, so the others wait for no more than what we have sent to ourselves and not read.

use super::doorbell::{Doorbell, Episode};
use super::ring::{LaneMemory, Reader};
use super::sync::{Ordering, heavy_fence};
use std::collections::VecDeque;

/// The bounds of polling.
#[derive(Clone, Copy, Debug)]
pub struct PollLimits {
    /// The most lanes that are polled: an empty poll looks at so many cache lines.
    pub max_active: usize,
    /// So many stay polled however idle they are; a demotion costs a heavy fence.
    pub keep_active: usize,
    /// Polls without an arrival after which a lane is demoted, and between two looks for such lanes.
    pub idle_polls: u64,
    /// All senders pay full fences, so that going idle is cheap for us.
    pub full_fences: bool,
}

/// An empty poll takes 4 ns and more, a heavy fence up to 20 us (see [`super::sync`]): with at least 260 us between two
/// looks, fences cost at most a few percent of a reader that only polls.
impl Default for PollLimits {
    fn default() -> PollLimits {
        PollLimits { max_active: 64, keep_active: 8, idle_polls: 65_536, full_fences: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneKind {
    /// Our own, looked at in every poll.
    Own,
    Quiet,
    Queued,
    Active,
}

#[derive(Debug)]
struct Entry<L> {
    reader: Reader<L>,
    kind: LaneKind,
}

#[derive(Clone, Copy, Debug)]
struct Active {
    lane: u32,
    last_arrival: u64,
}

/// All lanes that are being read.
#[derive(Debug)]
pub struct Inbox<L> {
    lanes: Vec<Option<Entry<L>>>,
    own: Option<u32>,
    active: Vec<Active>,
    cursor: usize,
    queue: VecDeque<u32>,
    queue_first: bool,
    /// Announced lanes that are not (yet) read.
    unaccepted_lanes: VecDeque<u32>,
    polls: u64,
    next_sweep: u64,
    limits: PollLimits,
    episode: Episode,
}

impl<L: LaneMemory> Inbox<L> {
    /// Nothing to read yet.
    pub fn new(limits: PollLimits) -> Inbox<L> {
        Inbox {
            lanes: Vec::new(),
            own: None,
            active: Vec::with_capacity(limits.max_active),
            cursor: 0,
            queue: VecDeque::new(),
            queue_first: false,
            unaccepted_lanes: VecDeque::new(),
            polls: 0,
            next_sweep: limits.idle_polls,
            limits,
            episode: Episode::default(),
        }
    }

    /// Reads `lane` from now on.
    pub fn open_lane(&mut self, lane: u32, memory: L) {
        self.insert(lane, memory, LaneKind::Quiet);
        // What came before we read it may have been announced in vain.
        self.schedule(lane);
    }

    /// Reads `lane`, which is our own, from now on, and before all others.
    pub fn open_own_lane(&mut self, lane: u32, memory: L) {
        self.insert(lane, memory, LaneKind::Own);
        self.own = Some(lane);
        self.set_polled(lane, 1);
    }

    fn insert(&mut self, lane: u32, memory: L, kind: LaneKind) {
        let index = lane as usize;
        if self.lanes.len() <= index {
            self.lanes.resize_with(index + 1, || None);
        }
        self.lanes[index] = Some(Entry { reader: Reader::new(memory), kind });
    }

    /// Does not read `lane` any more.
    pub fn close_lane(&mut self, lane: u32) {
        if let Some(entry) = self.lanes.get_mut(lane as usize) {
            *entry = None;
        }
        self.own = self.own.filter(|&own| own != lane);
        self.active.retain(|active| active.lane != lane);
        self.queue.retain(|&queued| queued != lane);
        self.cursor = 0;
    }

    /// The reader of a lane that is being read.
    #[inline]
    pub fn reader(&self, lane: u32) -> Option<&Reader<L>> {
        self.lanes.get(lane as usize)?.as_ref().map(|entry| &entry.reader)
    }

    /// The reader of a lane that is being read.
    #[inline]
    pub fn reader_mut(&mut self, lane: u32) -> Option<&mut Reader<L>> {
        self.lanes.get_mut(lane as usize)?.as_mut().map(|entry| &mut entry.reader)
    }

    /// The next announced lane that is not being read.
    #[inline]
    pub fn next_unaccepted_lane(&mut self) -> Option<u32> {
        self.unaccepted_lanes.pop_front()
    }

    /// A lane to be looked at as if it had been announced.
    pub fn push_unaccepted_lane(&mut self, lane: u32) {
        self.unaccepted_lanes.push_back(lane);
    }

    /// Whether [`Inbox::next_unaccepted_lane`] would give one.
    #[inline]
    pub fn has_unaccepted_lanes(&self) -> bool {
        !self.unaccepted_lanes.is_empty()
    }

    /// Whether nothing but a packet in a lane that is polled can be next: nothing is announced, nobody calls, no lane is queued and
    /// none is due to be made quiet.
    #[inline]
    pub fn only_polled_lanes_matter(&self, bell: &Doorbell) -> bool {
        let waiting = self.queue.len() | self.unaccepted_lanes.len();
        !bell.announced() && waiting == 0 && self.polls < self.next_sweep
    }

    /// What [`Inbox::next`] gives while [`Inbox::only_polled_lanes_matter`].
    #[inline(always)]
    pub fn next_polled(&mut self) -> Option<u32> {
        self.polls += 1;
        match self.own {
            Some(own) if self.has_packet(own) => self.own,
            _ => self.next_active(),
        }
    }

    /// The next lane in which something has arrived. `None` also when unaccepted lanes have been announced: look at them
    /// first. So it is when somebody has called.
    #[inline]
    pub fn next(&mut self, bell: &Doorbell) -> Option<u32> {
        self.polls += 1;
        if self.polls >= self.next_sweep {
            self.demote_idle();
        }
        if bell.announced() {
            self.take_announcements(bell);
            if !self.unaccepted_lanes.is_empty() || bell.called() {
                return None; // our own lane may be among them
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
        // One lane, most often.
        let first = self.active.get_mut(self.cursor)?;
        if let Some(Some(entry)) = self.lanes.get(first.lane as usize)
            && entry.reader.arrived()
        {
            first.last_arrival = self.polls;
            let next = self.cursor + 1;
            let lane = first.lane;
            self.cursor = if next == self.active.len() { 0 } else { next };
            return Some(lane);
        }
        if self.active.len() > 1 { self.next_active_after_cursor() } else { None }
    }

    /// The same for all but the one whose turn it is.
    fn next_active_after_cursor(&mut self) -> Option<u32> {
        let count = self.active.len();
        let mut at = if self.cursor + 1 == count { 0 } else { self.cursor + 1 };
        for _ in 1..count {
            let here = at;
            at = if at + 1 == count { 0 } else { at + 1 };
            let active = &mut self.active[here];
            let entry = self.lanes[active.lane as usize].as_ref();
            if entry.is_some_and(|entry| entry.reader.arrived()) {
                active.last_arrival = self.polls;
                self.cursor = at;
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
    fn take_announcements(&mut self, bell: &Doorbell) {
        bell.take(|lane| match self.lanes.get(lane as usize) {
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
        self.active.push(Active { lane, last_arrival: self.polls });
    }

    /// Makes lanes quiet in which nothing has come for long.
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

    /// Sleeps until something comes, at most `at_most_ns`.
    pub fn sleep(&mut self, bell: &Doorbell, at_most_ns: u64) {
        let mut episode = self.episode;
        bell.sleep(&mut episode, self.limits.full_fences, at_most_ns, || self.may_have_arrivals(bell));
        self.episode = episode;
    }

    /// Whether something has come, or is announced.
    pub fn may_have_arrivals(&self, bell: &Doorbell) -> bool {
        bell.announced()
            || !self.queue.is_empty()
            || !self.unaccepted_lanes.is_empty()
            || self.own.is_some_and(|own| self.has_packet(own))
            || self.active.iter().any(|active| self.has_packet(active.lane))
    }

    #[inline]
    fn has_packet(&self, lane: u32) -> bool {
        self.reader(lane).is_some_and(Reader::arrived)
    }

    /// How many lanes are polled.
    pub fn active_lanes(&self) -> usize {
        self.active.len()
    }
}
