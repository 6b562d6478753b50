//! The queue for lanes of a mailbox: words that name the holder of each lane and the newcomers that wait for one.
//! [`super::lane_reclamation`] decides who detaches when.
//!
//! Each lane has a *claim word*: 0, or the number of the claimant's segment. A newcomer sets it, or the mailbox's owner
//! for a newcomer that waits. The owner clears it, except that a claimant may return a claim that it never used. Each
//! *place* in the queue has an owner (a segment's number), a ticket and an answer.
//! ```text
//! newcomer: nobody waits, a claim word is 0: sets it to its number             the newcomer holds the lane
//!       or: takes a free place (owner word), draws a ticket, writes it, calls the owner
//! owner:    a lane is free: sets its claim word to the number of the lowest ticket, answers (ticket, lane), calls
//! newcomer: reads the answer, returns the place                                the newcomer holds the lane
//! ```
//! **Newcomers that are stopped or killed.** Each word names who took it, from the first instruction. So the owner
//! finds the words of dead newcomers by checking whether they run ([`LaneQueue::occupants`], and the claim words). At
//! worst a dead newcomer gets a lane. It delays others only until the next check.
//!
//! **No ABA.** An answer carries its ticket, and no ticket is drawn twice (48 bits). The owner clears a claim word only
//! when it knows that the holder writes no more.

use super::ring::CacheLine;
use super::sync::{AtomicU64, LANE_QUEUE_PLACES, Ordering};

const LANE_BITS: u32 = 16;
const TICKETS: u64 = (1 << (64 - LANE_BITS)) - 1;

/// A place in the queue.
#[repr(C)]
#[derive(Debug, Default)]
struct QueuePlace {
    owner: AtomicU64,
    /// 0 while the place is being taken or returned.
    ticket: AtomicU64,
    /// Ticket, and lane number plus 1.
    answer: AtomicU64,
}

/// The queue, as it lies in the header of the segment.
#[repr(C)]
#[derive(Debug)]
pub struct LaneQueue {
    tickets: CacheLine<AtomicU64>,
    places: [QueuePlace; LANE_QUEUE_PLACES],
}

impl Default for LaneQueue {
    fn default() -> LaneQueue {
        LaneQueue { tickets: CacheLine::default(), places: core::array::from_fn(|_| QueuePlace::default()) }
    }
}

/// A newcomer's copy of its place and ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    place: usize,
    number: u64,
}

/// A waiting newcomer, as the owner of the mailbox sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    ticket: Ticket,
    /// Number of its segment. A peer wrote it, so it may be wrong.
    pub segment: u64,
}

/// Claims a free lane for the segment `id`. `None`: all are held.
pub fn claim(claims: &[AtomicU64], id: u64) -> Option<u32> {
    let free = |word: &AtomicU64| {
        word.load(Ordering::Relaxed) == 0
            && word.compare_exchange(0, id, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    claims.iter().position(free).map(|lane| lane as u32)
}

/// Returns a claim of a lane to which nothing was written.
pub fn unclaim(claims: &[AtomicU64], lane: u32, id: u64) {
    if let Some(word) = claims.get(lane as usize) {
        let _ = word.compare_exchange(id, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

impl LaneQueue {
    /// Whether any newcomer waits, so that another one must not overtake.
    pub fn has_waiters(&self) -> bool {
        self.places.iter().any(QueuePlace::waits)
    }

    /// Takes a place for the segment `id`. `None`: no place is free.
    pub fn enter(&self, id: u64) -> Option<Ticket> {
        let take = |place: &QueuePlace| {
            place.owner.load(Ordering::Relaxed) == 0
                && place.owner.compare_exchange(0, id, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let place = self.places.iter().position(take)?;
        let number = (self.tickets.0.fetch_add(1, Ordering::Relaxed) % TICKETS) + 1;
        self.places[place].ticket.store(number, Ordering::Release);
        Some(Ticket { place, number })
    }

    /// The lane that the owner has assigned to the holder of `ticket`.
    pub fn assigned_lane(&self, ticket: Ticket) -> Option<u32> {
        let answer = self.places[ticket.place].answer.load(Ordering::Acquire);
        if answer >> LANE_BITS != ticket.number {
            return None;
        }
        ((answer & ((1 << LANE_BITS) - 1)) as u32).checked_sub(1)
    }

    /// Returns a place.
    pub fn leave(&self, ticket: Ticket) {
        let place = &self.places[ticket.place];
        place.ticket.store(0, Ordering::Release);
        place.owner.store(0, Ordering::Release);
    }

    /// The waiting newcomers, lowest ticket first.
    pub fn waiters(&self) -> Vec<Waiter> {
        let mut waiters: Vec<Waiter> = (0..self.places.len())
            .filter(|&place| self.places[place].waits())
            .map(|place| Waiter {
                ticket: Ticket { place, number: self.places[place].ticket.load(Ordering::Acquire) },
                segment: self.places[place].owner.load(Ordering::Acquire),
            })
            .filter(|waiter| waiter.segment != 0 && waiter.ticket.number != 0)
            .collect();
        waiters.sort_unstable_by_key(|waiter| waiter.ticket.number);
        waiters
    }

    /// Assigns a free lane to a waiting newcomer, and returns the lane. `prepare` makes it ready before the newcomer can
    /// see it. `None`: no lane is free, or `prepare` says that the free one has no memory.
    pub fn assign_lane(
        &self,
        waiter: Waiter,
        claims: &[AtomicU64],
        prepare: impl FnOnce(u32) -> bool,
    ) -> Option<u32> {
        let lane = claim(claims, waiter.segment)?;
        if !prepare(lane) {
            unclaim(claims, lane, waiter.segment);
            return None;
        }
        let answer = waiter.ticket.number << LANE_BITS | u64::from(lane + 1);
        self.places[waiter.ticket.place].answer.store(answer, Ordering::Release);
        Some(lane)
    }

    /// The places that are not free, with their owners.
    pub fn occupants(&self) -> impl Iterator<Item = (usize, u64)> {
        let owners = self.places.iter().map(|place| place.owner.load(Ordering::Acquire)).enumerate();
        owners.filter(|&(_, owner)| owner != 0)
    }

    /// Frees the place of a dead newcomer. Its claim word shows a lane that it was assigned.
    pub fn free_place(&self, place: usize) {
        self.leave(Ticket { place, number: 0 });
    }
}

impl QueuePlace {
    fn waits(&self) -> bool {
        let ticket = self.ticket.load(Ordering::Acquire);
        ticket != 0 && self.answer.load(Ordering::Acquire) >> LANE_BITS != ticket
    }
}

#[cfg(test)]
impl LaneQueue {
    /// [`LaneQueue::enter`] without its last step, for tests that stop a newcomer there.
    pub fn enter_halfway(&self, id: u64) {
        let free = |place: &&QueuePlace| {
            place.owner.compare_exchange(0, id, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        self.places.iter().find(free).expect("a place");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(lanes: usize) -> Vec<AtomicU64> {
        (0..lanes).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn first_come_first_served() {
        let (queue, claims) = (LaneQueue::default(), claims(1));
        assert_eq!(claim(&claims, 7), Some(0));
        assert!(!queue.has_waiters());
        let first = queue.enter(8).expect("a place");
        let second = queue.enter(9).expect("a place");
        assert!(queue.has_waiters());
        let waiters = queue.waiters();
        assert_eq!(waiters.iter().map(|waiter| waiter.segment).collect::<Vec<_>>(), [8, 9]);
        assert_eq!(queue.assign_lane(waiters[0], &claims, |_| true), None, "no lane is free");
        claims[0].store(0, Ordering::Release);
        assert_eq!(queue.assign_lane(waiters[0], &claims, |_| false), None, "no memory for the lane");
        assert_eq!(claims[0].load(Ordering::Relaxed), 0);
        assert_eq!(queue.assign_lane(waiters[0], &claims, |_| true), Some(0));
        assert_eq!((queue.assigned_lane(first), queue.assigned_lane(second)), (Some(0), None));
        assert_eq!(claims[0].load(Ordering::Relaxed), 8);
        queue.leave(first);
        assert_eq!(queue.waiters(), [waiters[1]]);
    }

    #[test]
    fn an_answer_to_an_earlier_holder_of_the_place_is_none() {
        let (queue, claims) = (LaneQueue::default(), claims(2));
        let first = queue.enter(8).expect("a place");
        let late = queue.waiters()[0];
        queue.leave(first);
        let second = queue.enter(9).expect("a place");
        assert_eq!(second.place, first.place);
        assert_eq!(queue.assign_lane(late, &claims, |_| true), Some(0));
        assert_eq!(queue.assigned_lane(second), None);
        assert!(queue.has_waiters(), "the second still waits");
    }

    #[test]
    fn all_places_can_be_taken_and_the_dead_be_cleared() {
        let queue = LaneQueue::default();
        queue.enter_halfway(5);
        assert!(!queue.has_waiters(), "no ticket yet");
        while queue.enter(6).is_some() {}
        assert_eq!(queue.waiters().len(), LANE_QUEUE_PLACES - 1);
        for (place, _) in queue.occupants().filter(|&(_, owner)| owner == 5).collect::<Vec<_>>() {
            queue.free_place(place);
        }
        assert!(queue.enter(7).is_some());
        assert!(queue.enter(7).is_none());
    }
}
