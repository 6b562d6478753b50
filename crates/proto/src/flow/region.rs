//! The slots of a data region, as its pool counts them: those that any sender can be granted, and those that guarantees
//! reserve. Dynamic credits and credits on demand differ in who gets free slots; both count them here.
//!
//! A slot is held by a sender, free, or guaranteed. It is guaranteed if a sender is below its guaranteed credits, or if a
//! sender is expected. A pool can limit what leaves the free slots, because it has promised them in a way of its own
//! (dynamic credits: intended quota). This file does not know accounts.
//!
//! Worked example, 12 slots, two expected senders with 2 starting credits each, 1 guaranteed:
//! ```text
//!                                    free  guaranteed  of these for expected senders
//! at the start                          8           4                              4
//! A attaches (it holds 2)               8           2                              2
//! A's 2 slots are retrieved             9           3                              2      1 of them is guaranteed to A
//! A is granted 4                        6           2                              2      the guaranteed one first
//! ```

use crate::config::DataRegion;

/// See the head of this file. The unit of all numbers is slots, except for those of senders.
#[derive(Clone, Debug)]
pub(super) struct RegionSlots {
    /// Credits that each sender can always have.
    guarantee: u32,
    /// Credits of a sender when it attaches.
    pub start: u32,
    /// Number of senders whose starting credits fit into `planned`.
    pub planned_senders: u32,
    pub planned: u32,
    /// All slots. More than planned while there are more senders, or while others hold slots of detached senders.
    pub all: u32,
    /// Slots that no sender holds and that any sender can be granted.
    pub free: u32,
    /// Slots that no sender holds, for senders below their guarantee and for expected senders.
    pub guaranteed: u32,
    /// The part of `guaranteed` for expected senders.
    pub reserved: u32,
    /// Free slots that will first be reserved for expected senders, or given up.
    pub missing: u32,
}

impl RegionSlots {
    /// A region without senders.
    ///
    /// # Panics
    /// If it is too small for the starting credits of the expected senders, or these are fewer than `guarantee`.
    pub fn new(region: &DataRegion, guarantee: u32) -> RegionSlots {
        let starting = region.assert_holds_starting_credits(guarantee);
        RegionSlots {
            guarantee,
            start: region.start_slots,
            planned_senders: region.peers,
            planned: region.slots,
            all: region.slots,
            free: region.slots - starting,
            guaranteed: starting,
            reserved: starting,
            missing: 0,
        }
    }

    /// Replaces the rule that slots are guaranteed.
    #[cfg(any(test, feature = "mutants"))]
    pub fn guarantee_nothing(&mut self) {
        self.guarantee = 0;
    }

    /// The difference to the guaranteed credits, if a sender with `current` is below them.
    #[inline]
    pub fn shortfall(&self, current: u32) -> u32 {
        self.guarantee.saturating_sub(current)
    }

    /// The credits that each sender can always have, by the rule in force.
    pub fn guarantee(&self) -> u32 {
        self.guarantee
    }

    /// Slots that no sender holds.
    pub fn available(&self) -> u32 {
        self.free + self.guaranteed
    }

    /// A sender with `before` slots holds `slots` less.
    #[inline(always)]
    pub fn release(&mut self, before: u32, slots: u32) {
        if before - slots >= self.guarantee {
            self.free += slots;
        } else {
            self.release_below_guarantee(before, slots);
        }
    }

    fn release_below_guarantee(&mut self, before: u32, slots: u32) {
        let owed = self.shortfall(before - slots) - self.shortfall(before);
        self.guaranteed += owed;
        self.free += slots - owed;
    }

    /// A sender with `current` slots gets `slots` more.
    ///
    /// # Panics
    /// If so many are not free or owed to it.
    #[inline]
    pub fn grant(&mut self, current: u32, slots: u32) {
        let owed = self.shortfall(current).min(slots);
        assert!(slots - owed <= self.free, "I1: {slots} slots granted, {} free and {owed} owed", self.free);
        self.guaranteed -= owed;
        self.free -= slots - owed;
    }

    /// Makes sure that the starting credits of one more sender are reserved: it is unexpected, or attaches again while others
    /// hold its slots. At most `most` free slots are used. The region grows by the rest. Returns how many were free.
    pub fn make_room(&mut self, most: u32) -> u32 {
        let lacking = self.start.saturating_sub(self.reserved);
        let found = self.set_aside(lacking, most);
        self.all += lacking - found;
        self.reserved += lacking - found;
        self.guaranteed += lacking - found;
        found
    }

    /// A sender attaches: it holds its starting credits, which were reserved.
    pub fn attach(&mut self) {
        self.reserved -= self.start;
        self.guaranteed -= self.start;
    }

    /// A sender with `current` slots has ended. All of them are free.
    pub fn close(&mut self, current: u32) {
        let owed = self.shortfall(current);
        self.guaranteed -= owed;
        self.free += current + owed;
    }

    /// One of `senders` senders is lost. The slots that were planned for it are available to the others.
    pub fn forget_one_of(&mut self, senders: u32) {
        match senders > self.planned_senders {
            true => self.planned += self.start,
            false => self.planned_senders -= 1,
        }
    }

    /// Reserves free slots for planned senders that are not among the `senders`, and gives up free slots beyond the planned
    /// size, at most `most` in all. So repeated attach and detach does not grow the region each time. Returns how many.
    pub fn settle(&mut self, senders: u32, most: u32) -> u32 {
        let starting = |count: u32| self.start * count;
        let reserve = starting(self.planned_senders.saturating_sub(senders)).saturating_sub(self.reserved);
        let planned = self.planned + starting(senders.saturating_sub(self.planned_senders));
        let surplus = self.all.saturating_sub(planned);
        let reserved = self.set_aside(reserve, most);
        let shrunk = surplus.min(self.free).min(most - reserved);
        self.free -= shrunk;
        self.all -= shrunk;
        self.missing = reserve - reserved + surplus - shrunk;
        reserved + shrunk
    }

    /// Reserves free slots for expected senders, at most `slots` and `most`. Returns how many.
    fn set_aside(&mut self, slots: u32, most: u32) -> u32 {
        let found = slots.min(self.free).min(most);
        self.free -= found;
        self.reserved += found;
        self.guaranteed += found;
        found
    }

    /// Checks that each slot is counted once, and that `guarantee` credits are kept for each sender. `current`: what each
    /// sender holds.
    ///
    /// # Panics
    /// If one is not.
    pub fn assert_counted(&self, guarantee: u32, current: impl Iterator<Item = u32> + Clone) {
        let held: u32 = current.clone().sum();
        assert_eq!(self.available() + held, self.all, "I1: {self:?}");
        let owed: u32 = current.map(|current| guarantee.saturating_sub(current)).sum();
        assert_eq!(self.guaranteed, self.reserved + owed, "guaranteed slots are not kept: {self:?}");
    }

    /// The numbers that change, for the canonical form.
    #[cfg(feature = "explore")]
    pub fn canonical(&self) -> [u32; 7] {
        let RegionSlots {
            guarantee: _, // constant
            start: _,     // constant
            planned_senders,
            planned,
            all,
            free,
            guaranteed,
            reserved,
            missing,
        } = *self;
        [planned_senders, planned, all, free, guaranteed, reserved, missing]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> RegionSlots {
        let region = DataRegion { slots: 12, peers: 2, start_slots: 2, ..DataRegion::default() };
        RegionSlots::new(&region, 1)
    }

    fn counts(region: &RegionSlots) -> [u32; 4] {
        [region.free, region.guaranteed, region.reserved, region.all]
    }

    #[test]
    fn slots_are_guaranteed_before_they_are_free() {
        let mut region = region();
        assert_eq!(counts(&region), [8, 4, 4, 12]);
        assert_eq!(region.make_room(u32::MAX), 0);
        region.attach();
        assert_eq!(counts(&region), [8, 2, 2, 12]);
        region.release(2, 2);
        assert_eq!(counts(&region), [9, 3, 2, 12]);
        region.assert_counted(1, [0].into_iter());
        region.grant(0, 4);
        assert_eq!(counts(&region), [6, 2, 2, 12]);
        region.close(4);
        assert_eq!(counts(&region), [10, 2, 2, 12]);
        assert_eq!(region.settle(0, u32::MAX), 2);
        assert_eq!(counts(&region), [8, 4, 4, 12]);
    }

    #[test]
    fn the_region_grows_for_unexpected_senders_and_shrinks_when_they_are_gone() {
        let mut region = region();
        for _ in 0..2 {
            region.make_room(u32::MAX);
            region.attach();
        }
        assert_eq!(region.make_room(1), 1, "no more than one free slot may be used");
        region.attach();
        assert_eq!(counts(&region), [7, 0, 0, 13]);
        assert_eq!(region.settle(3, u32::MAX), 0, "14 slots are planned for three");
        region.close(2);
        assert_eq!(region.settle(2, 0), 0);
        assert_eq!(region.missing, 1);
        assert_eq!(region.settle(2, u32::MAX), 1);
        assert_eq!((counts(&region), region.missing), ([8, 0, 0, 12], 0));
    }

    #[test]
    fn the_slots_of_a_lost_sender_are_available_to_others() {
        let mut region = region();
        region.make_room(u32::MAX);
        region.attach();
        region.forget_one_of(1);
        region.close(2);
        region.settle(0, u32::MAX);
        assert_eq!(counts(&region), [10, 2, 2, 12], "one sender is expected");
    }

    #[test]
    #[should_panic(expected = "I1: 6 slots granted, 4 free and 1 owed")]
    fn a_grant_beyond_free_and_owed_slots_panics() {
        let mut region = region();
        region.free = 4;
        region.grant(0, 6);
    }

    #[test]
    #[should_panic(expected = "guaranteed slots are not kept")]
    fn a_wrong_guarantee_is_detected() {
        let mut region = region();
        region.attach();
        region.guarantee_nothing();
        region.release(2, 2);
        region.assert_counted(1, [0].into_iter());
    }
}
