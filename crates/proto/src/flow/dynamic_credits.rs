//! Dynamic credits: slots of one data region move to the senders that use them. Source: Prades, thesis, chapter 6. Our
//! changes and their reasons are in `docs/explanation/flow-control.md`.
//!
//! The receiver has one [`Pool`] for all senders. It counts the slots that no sender holds. For every sender it has the
//! credits that the sender holds (`current`), its quota (`intended`), and the counts of retrieved slots at which it
//! gets more (the thresholds). This file does not know packets or messages.
//!
//! Invariant I6 holds after every event, for every sender: `sum(thresholds) = current + retrieved + 1`. The last
//! threshold is reached one slot after all granted slots. So a sender without credit reaches a threshold, and nothing
//! deadlocks. Also, of `n + 1` credit packets the sender has read the first, so the credit region does not overflow.
//!
//! Worked exchange, one credit slot (n = 1), region 8, two senders A and B, each with 1 credit and an intended quota of
//! 4:
//! ```text
//! A -> R   a               R retrieves it: the first threshold of A, 1, is reached. 4 div 2 + 1 = 3 become the new one
//! R -> A   credit total 3  thresholds of A: 1, 3
//! A -> R   b, c, d         b reaches 1: 3 more. That was n + 1 thresholds: A's first monitoring point, A becomes
//!                          medium; at the second it becomes high, at the third it takes intended quota from B, the
//!                          last of low
//! R -> B   return request  if B's quota is down to the guaranteed credits and it holds more
//! B -> R   return response
//! ```

#[cfg(feature = "explore")]
mod canonical;

use alloc::vec::Vec;

use super::activity::{Activity, Level};
use super::mutant::Mutant;
use super::static_credits;
use super::{ReceiverView, SenderView, SpendError};
use crate::config::{AttachPolicy, DataRegion, MAX_CREDIT_SLOTS};
use crate::event::Peer;
use crate::mailbox::{quota, threshold};

/// The sending side of one pair.
#[derive(Clone, Debug)]
pub struct Sender {
    credits: static_credits::Sender,
}

impl Sender {
    pub(super) fn new(most_slots: u32, start_slots: u32) -> Sender {
        Sender { credits: static_credits::Sender::starting_with(start_slots, most_slots) }
    }

    /// Slots that may be filled now.
    #[inline]
    pub fn credits(&self) -> u32 {
        self.credits.credits()
    }

    #[inline]
    pub(super) fn spend(&mut self, slots: u32) {
        self.credits.spend(slots);
    }

    #[inline(always)]
    pub(super) fn credits_mut(&mut self) -> &mut static_credits::Sender {
        &mut self.credits
    }

    pub(super) fn view(&self) -> SenderView {
        SenderView { quota_slots: None, ..self.credits.view() }
    }

    /// Credits beyond the guaranteed ones, which a compulsory return does not reclaim.
    pub(super) fn excess(&self, guaranteed: u32) -> u32 {
        self.credits().saturating_sub(guaranteed)
    }
}

/// The account of one sender.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Account {
    /// Slots retrieved since the last threshold and not piggybacked since.
    retrieved: u32,
    /// Credits piggybacked since the last threshold.
    piggybacked: u32,
    /// Slots that the sender holds: its credits, credits in flight, and filled slots.
    current: u32,
    /// Its intended quota.
    intended: u32,
    /// Size of its lane.
    lane_slots: u32,
    /// The value of `current` that piggybacking may reach. Follows from the quota, the lane and `blocked`.
    piggyback_to: u32,
    granted_total: u32,
    /// Explicit credit packets sent, modulo 2^16.
    packets_sent: u16,
    /// Of those, the ones that the sender has read.
    packets_read: u16,
    /// A compulsory return request is queued or pending.
    blocked: bool,
    /// How many times it is not chosen as a victim.
    grace: u8,
    /// It was active since it was last considered as a victim.
    recently_active: bool,
    /// Thresholds crossed since its last monitoring point.
    crossed: u32,
    /// Of the slots retrieved for the next threshold, those of requests and responses.
    control: u32,
    /// The first `n + 1` entries are in use; the current threshold is the first.
    thresholds: [u32; MAX_CREDIT_SLOTS as usize + 1],
    /// The sender. `None` before it has attached and after it has detached.
    owner: Option<Peer>,
}

/// Counts of rare events, for tests, proofs and reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tally {
    /// Intended quota moved from one sender to another.
    pub quota_transfers: u64,
    /// Victims that were not chosen because they had just gained quota.
    pub victims_passed_over: u64,
    /// Compulsory return requests.
    pub requests: u64,
    /// Grants below the new threshold.
    pub short_grants: u64,
    /// Thresholds reached by piggybacking, with more returned already than the new threshold.
    pub excesses: u64,
    /// The same, with at most the new threshold returned.
    pub deficits: u64,
    /// Grants delayed because all credit slots were unread. Stays 0 if both sides have the same settings.
    pub deferred_grants: u64,
}

/// A view of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountView<'pool> {
    /// Who.
    pub owner: Peer,
    /// Slots that the sender holds: its credits, credits in flight, and filled slots.
    pub current: u32,
    /// Its intended quota.
    pub intended: u32,
    /// Slots retrieved since the last threshold.
    pub retrieved: u32,
    /// Credits piggybacked since the last threshold.
    pub piggybacked: u32,
    /// A compulsory return is pending.
    pub blocked: bool,
    /// Its activity level.
    pub level: Level,
    /// Its thresholds.
    pub thresholds: &'pool [u32],
}

/// The data region of an endpoint and the accounts of its senders.
#[derive(Clone, Debug)]
pub struct Pool {
    credit_slots: u32,
    piggyback: bool,
    start_slots: u32,
    grace_points: u8,
    /// Number of senders whose starting credits fit into `planned_slots`.
    planned_senders: u32,
    planned_slots: u32,
    /// All slots. More than planned while there are more senders, or while others hold slots of detached senders.
    region_slots: u32,
    /// Slots that no sender holds and that any sender can be granted.
    free_slots: u32,
    /// Slots that no sender holds, reserved by guarantees: for senders below their guaranteed credits, and for expected
    /// senders.
    guaranteed_slots: u32,
    /// The part of `guaranteed_slots` for expected senders.
    reserved_slots: u32,
    /// Intended quota that no sender has.
    unassigned_slots: u32,
    /// The part of the free slots and quota that will be reserved for expected senders or given up.
    missing_slots: u32,
    accounts: Vec<Account>,
    /// Accounts without an owner: those of expected senders with the attach policy `Start`.
    placeholders: core::ops::Range<u32>,
    free: Vec<u32>,
    activity: Activity,
    /// Senders that need a compulsory return request.
    requests: Vec<Peer>,
    tally: Tally,
    #[cfg(any(test, feature = "mutants"))]
    mutant: Option<Mutant>,
}

impl Pool {
    /// A pool without senders, or with all expected senders under the attach policy `Start`.
    ///
    /// # Panics
    /// If the region is too small for the senders' starting credits, or these are fewer than `credit_slots`.
    pub fn new(region: &DataRegion, credit_slots: u32, piggyback: bool) -> Pool {
        let DataRegion { slots, peers, start_slots, attach_policy, grace_points } = *region;
        assert!(
            (1..=MAX_CREDIT_SLOTS).contains(&credit_slots),
            "{credit_slots} credit slots, allowed are 1 to {MAX_CREDIT_SLOTS}"
        );
        assert!(
            start_slots >= credit_slots,
            "{start_slots} starting credits are fewer than the {credit_slots} guaranteed ones"
        );
        let starting = u64::from(start_slots) * u64::from(peers);
        assert!(
            u64::from(slots) >= starting,
            "a region of {slots} slots cannot hold {start_slots} slots for each of {peers} senders"
        );
        let mut pool = Pool {
            credit_slots,
            piggyback,
            start_slots,
            grace_points,
            planned_senders: peers,
            planned_slots: slots,
            region_slots: slots,
            free_slots: slots - starting as u32,
            guaranteed_slots: starting as u32,
            reserved_slots: starting as u32,
            unassigned_slots: slots - starting as u32,
            missing_slots: 0,
            accounts: Vec::new(),
            placeholders: 0..0,
            free: Vec::new(),
            activity: Activity::default(),
            requests: Vec::new(),
            tally: Tally::default(),
            #[cfg(any(test, feature = "mutants"))]
            mutant: None,
        };
        if attach_policy == AttachPolicy::Start {
            for index in 0..peers {
                let intended = quota(slots, peers, index, true);
                pool.unassigned_slots -= intended - start_slots;
                pool.open(intended, u32::MAX);
            }
            pool.placeholders = 0..peers;
        }
        pool
    }

    /// The empty pool of endpoints with another scheme.
    pub fn unused() -> Pool {
        Pool::new(&DataRegion { start_slots: 1, ..DataRegion::default() }, 1, false)
    }

    /// Replaces a rule by a mutant.
    #[cfg(any(test, feature = "mutants"))]
    pub fn mutate(&mut self, mutant: Mutant) {
        self.mutant = Some(mutant);
        if mutant == Mutant::VictimsGetNoGrace {
            self.grace_points = 0;
        }
    }

    /// Whether a mutant is selected. Never outside tests and proofs.
    #[inline]
    pub(crate) fn breaks(&self, mutant: Mutant) -> bool {
        #[cfg(any(test, feature = "mutants"))]
        return self.mutant == Some(mutant);
        #[cfg(not(any(test, feature = "mutants")))]
        {
            let _ = mutant;
            false
        }
    }

    /// A sender has attached with a lane of `lane_slots` data slots. It holds `start_slots` credits, which the link has
    /// told it. Returns its account.
    ///
    /// # Panics
    /// If the link tells senders another number than the region reserves for them.
    pub fn attach(&mut self, owner: Peer, lane_slots: u32, start_slots: u32) -> u32 {
        assert_eq!(
            start_slots, self.start_slots,
            "starting credits of the link differ from those of the region"
        );
        assert!(
            self.start_slots <= lane_slots,
            "{} starting credits exceed a lane of {lane_slots} slots",
            self.start_slots
        );
        if let Some(index) = self.placeholders.next() {
            let account = &mut self.accounts[index as usize];
            (account.owner, account.lane_slots) = (Some(owner), lane_slots);
            let too_much = account.intended.saturating_sub(lane_slots);
            account.intended -= too_much;
            self.unassigned_slots += too_much;
            self.limit_piggybacking(index);
            return index;
        }
        if self.reserved_slots < self.start_slots {
            // An unexpected sender, or one that attaches again while others hold its slots. Free and unassigned slots
            // are reserved for it. The region grows by the rest.
            let missing = self.start_slots - self.reserved_slots;
            let found = self.set_aside(missing);
            self.region_slots += missing - found;
            self.reserved_slots += missing - found;
            self.guaranteed_slots += missing - found;
        }
        let index = self.open(self.start_slots, lane_slots);
        self.refill();
        let gift = self.first_share(lane_slots) - self.start_slots;
        self.unassigned_slots -= gift;
        let account = &mut self.accounts[index as usize];
        account.owner = Some(owner);
        account.intended += gift;
        self.limit_piggybacking(index);
        index
    }

    /// The first quota of a sender: an equal share, as far as it is available. A more active sender gains the rest,
    /// half of it at a time. A larger first quota would be missing for later senders, who take it back one by one.
    fn first_share(&self, lane_slots: u32) -> u32 {
        let equal = quota(self.planned_slots, self.planned_senders.max(self.senders()), 0, false);
        let there = self.start_slots + self.unassigned_slots.saturating_sub(self.missing_slots);
        equal.min(there).min(lane_slots).max(self.start_slots)
    }

    /// Opens an account with the starting credits, from the reserved slots.
    fn open(&mut self, intended: u32, lane_slots: u32) -> u32 {
        let start_slots = self.start_slots;
        self.reserved_slots -= start_slots;
        self.guaranteed_slots -= start_slots;
        // Thresholds of one give an active sender more credits soon. The last threshold satisfies I6. With more than
        // `n` starting credits and only ones, more credit packets would leave than there are slots for.
        let last = self.credit_slots as usize;
        let mut thresholds = [0; MAX_CREDIT_SLOTS as usize + 1];
        thresholds[..=last].fill(1);
        if !self.breaks(Mutant::ThresholdsStartAsOnes) {
            thresholds[last] = start_slots + 1 - self.credit_slots;
        }
        let account = Account {
            retrieved: 0,
            piggybacked: 0,
            current: start_slots,
            intended,
            lane_slots,
            piggyback_to: 0,
            granted_total: 0,
            packets_sent: 0,
            packets_read: 0,
            blocked: false,
            grace: 0,
            recently_active: false,
            crossed: 0,
            control: 0,
            thresholds,
            owner: None,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.accounts[index as usize] = account;
                index
            }
            None => {
                self.accounts.push(account);
                self.accounts.len() as u32 - 1
            }
        };
        self.activity.insert(index);
        self.limit_piggybacking(index);
        index
    }

    /// Recomputes the piggyback limit after a change of quota, lane or `blocked`.
    fn limit_piggybacking(&mut self, index: u32) {
        let may = self.piggyback && !self.accounts[index as usize].blocked;
        let account = &mut self.accounts[index as usize];
        // Thresholds bring a sender up to `n` above its quota. Piggybacking must not exceed that. Otherwise a sender
        // that lost its quota would keep its credits while there is reverse traffic.
        let most = account.intended.saturating_add(self.credit_slots).min(account.lane_slots);
        account.piggyback_to = if may { most } else { 0 };
    }

    /// The difference to the guaranteed credits, if `current` is below them.
    fn shortfall(&self, current: u32) -> u32 {
        let nothing = self.breaks(Mutant::NothingIsReserved);
        if nothing { 0 } else { self.credit_slots.saturating_sub(current) }
    }

    /// Reserves free and unassigned slots for expected senders, at most `slots`. Returns how many.
    fn set_aside(&mut self, slots: u32) -> u32 {
        let found = slots.min(self.free_slots).min(self.unassigned_slots);
        self.free_slots -= found;
        self.unassigned_slots -= found;
        self.reserved_slots += found;
        self.guaranteed_slots += found;
        found
    }

    /// Senders with an account.
    fn senders(&self) -> u32 {
        (self.accounts.len() - self.free.len()) as u32
    }

    /// The missing reservation for planned senders that are not attached, and the surplus size of the region.
    fn missing(&self) -> (u32, u32) {
        let senders = self.senders();
        let starting = |count: u32| self.start_slots * count;
        let reserve = starting(self.planned_senders.saturating_sub(senders));
        let region = self.planned_slots + starting(senders.saturating_sub(self.planned_senders));
        (reserve.saturating_sub(self.reserved_slots), self.region_slots.saturating_sub(region))
    }

    /// Reduces what is missing by free and unassigned slots. Until the rest is available, no sender gains that quota.
    /// So repeated attach and detach does not grow the region each time. It stays within the planned size for the
    /// current number of senders, plus their starting credits once.
    fn refill(&mut self) {
        let (reserve, surplus) = self.missing();
        let set_aside = self.set_aside(reserve);
        let shrunk = surplus.min(self.free_slots).min(self.unassigned_slots);
        self.free_slots -= shrunk;
        self.unassigned_slots -= shrunk;
        self.region_slots -= shrunk;
        self.missing_slots = reserve - set_aside + surplus - shrunk;
    }

    /// A sender has detached with all its credits and may attach again. Its slots are free, and its starting credits
    /// are reserved.
    pub fn detach(&mut self, index: u32) {
        self.close(index);
        self.refill();
    }

    /// A sender is lost. Its slots are free, and its quota is unassigned.
    pub fn remove(&mut self, index: u32) {
        if self.breaks(Mutant::LostPeersKeepTheirShare) {
            return;
        }
        // Its planned slots are available to the others.
        match self.senders() > self.planned_senders {
            true => self.planned_slots += self.start_slots,
            false => self.planned_senders -= 1,
        }
        self.close(index);
    }

    fn close(&mut self, index: u32) {
        let account = &mut self.accounts[index as usize];
        let owner = account.owner.take();
        let (current, intended) = (account.current, account.intended);
        (account.current, account.intended) = (0, 0);
        let shortfall = self.shortfall(current);
        self.guaranteed_slots -= shortfall;
        self.free_slots += current + shortfall;
        self.unassigned_slots += intended;
        self.requests.retain(|&request| Some(request) != owner);
        self.activity.remove(index);
        self.free.push(index);
    }

    /// `slots` data slots of this sender have been retrieved. It has read `read` credit packets, modulo 2^16.
    ///
    /// # Errors
    /// [`SpendError`] if it had no credits for them. Then nothing has changed.
    #[inline]
    pub fn retrieved(&mut self, index: u32, slots: u32, read: u16) -> Result<(), SpendError> {
        self.retrieved_and_due(index, slots, read).map(|_| ())
    }

    /// The same. Returns whether a threshold is reached.
    #[inline(always)]
    pub(crate) fn retrieved_and_due(
        &mut self,
        index: u32,
        slots: u32,
        read: u16,
    ) -> Result<bool, SpendError> {
        let account = &mut self.accounts[index as usize];
        let before = account.current;
        let Some(current) = before.checked_sub(slots) else {
            return Err(SpendError { slots, credits: before });
        };
        // A total beyond what was sent makes all credit packets look unread, so a wrong sender gets no more of them.
        account.packets_read = read;
        account.retrieved += slots;
        account.current = current;
        let due = account.retrieved >= account.thresholds[0];
        if current >= self.credit_slots {
            self.free_slots += slots;
        } else {
            self.reserve_guaranteed(before, slots);
        }
        Ok(due)
    }

    /// A sender with `before` slots has `slots` less and is below its guaranteed credits: the difference is reserved
    /// for it.
    fn reserve_guaranteed(&mut self, before: u32, slots: u32) {
        let guaranteed_slots = self.shortfall(before - slots) - self.shortfall(before);
        self.guaranteed_slots += guaranteed_slots;
        self.free_slots += slots - guaranteed_slots;
    }

    fn grant_slots(&mut self, index: u32, slots: u32) {
        let guaranteed_slots = self.shortfall(self.accounts[index as usize].current).min(slots);
        let account = &mut self.accounts[index as usize];
        account.current += slots;
        account.granted_total = account.granted_total.wrapping_add(slots);
        self.guaranteed_slots -= guaranteed_slots;
        assert!(
            slots - guaranteed_slots <= self.free_slots,
            "I1: {slots} slots granted, {} free",
            self.free_slots
        );
        self.free_slots -= slots - guaranteed_slots;
    }

    /// Maximum of slots that this sender can be granted now: free slots that are not guaranteed to others, within its
    /// lane. At least one if it is below its guaranteed credits.
    #[inline]
    fn grantable(&self, index: u32) -> u32 {
        let account = &self.accounts[index as usize];
        (self.free_slots + self.shortfall(account.current)).min(account.lane_slots - account.current)
    }

    /// The retrieved packet was a request or a response, which is no activity of the program.
    pub fn control_retrieved(&mut self, index: u32) {
        if !self.breaks(Mutant::ControlCountsAsActivity) {
            self.accounts[index as usize].control += 1;
        }
    }

    /// A sender responds that it has returned `credits`, after the slot of its response was retrieved.
    ///
    /// # Errors
    /// [`SpendError`] if there was no request or it does not have so many credits. Then nothing has changed.
    pub fn returned(&mut self, index: u32, credits: u32) -> Result<(), SpendError> {
        let last = self.credit_slots as usize;
        let account = &mut self.accounts[index as usize];
        let sum: u32 = account.thresholds[..=last].iter().sum();
        let most = account.current.min(sum - self.credit_slots - 1);
        if !account.blocked || credits > most {
            return Err(SpendError { slots: credits, credits: most });
        }
        account.blocked = false;
        let before = account.current;
        account.current -= credits;
        self.reserve_guaranteed(before, credits);
        self.limit_piggybacking(index);
        if self.breaks(Mutant::ReturnLeavesThresholds) {
            return Ok(());
        }
        let mut left = credits;
        for threshold in self.accounts[index as usize].thresholds[..=last].iter_mut().rev() {
            let lowered = left.min(*threshold - 1);
            *threshold -= lowered;
            left -= lowered;
        }
        assert_eq!(left, 0, "returned credits exceed what thresholds can be lowered by");
        Ok(())
    }

    /// The sender reports how many credit packets it has read, modulo 2^16.
    #[inline]
    pub fn credit_packets_read(&mut self, index: u32, read: u16) {
        self.accounts[index as usize].packets_read = read;
    }

    /// Whether a threshold is reached.
    #[inline]
    pub fn is_due(&self, index: u32) -> bool {
        let account = &self.accounts[index as usize];
        account.retrieved >= account.thresholds[0]
    }

    /// Credits for an explicit credit packet, if a threshold is reached, slots are available, and one of the
    /// `credit_slots` slots at the sender is free. They count as granted.
    #[inline]
    pub fn grant(&mut self, index: u32, credit_slots: u32) -> Option<u32> {
        if self.is_due(index) { self.grant_reached(index, credit_slots) } else { None }
    }

    /// A packet of several slots can pass several thresholds. Each is crossed, and one credit packet leaves.
    fn grant_reached(&mut self, index: u32, credit_slots: u32) -> Option<u32> {
        let account = &self.accounts[index as usize];
        if u32::from(account.packets_sent.wrapping_sub(account.packets_read)) >= credit_slots {
            self.tally.deferred_grants += 1;
            return None;
        }
        let mut credits = 0;
        loop {
            let account = &self.accounts[index as usize];
            if account.retrieved < account.thresholds[0] {
                break;
            }
            let crossed = match account.blocked {
                true => self.cross_blocked(index),
                false => self.cross(index, 0),
            };
            let Some(granted) = crossed else { break };
            credits += granted;
        }
        if credits == 0 {
            return None;
        }
        let (lost, twice) = (self.breaks(Mutant::CreditIsLost), self.breaks(Mutant::CreditsReturnTwice));
        let account = &mut self.accounts[index as usize];
        if lost {
            account.granted_total = account.granted_total.wrapping_sub(1);
        } else if twice {
            account.granted_total = account.granted_total.wrapping_add(credits);
        }
        account.packets_sent = account.packets_sent.wrapping_add(1);
        Some(credits)
    }

    /// Granted credits in all, if there are no retrieved slots to return.
    #[inline(always)]
    pub(crate) fn settled_total(&self, index: u32) -> Option<u32> {
        let account = &self.accounts[index as usize];
        (account.retrieved == 0).then_some(account.granted_total)
    }

    /// The credits that a packet piggybacks if it `has_room`, which count as granted, and the granted total.
    #[inline(always)]
    pub(crate) fn carry(&mut self, index: u32, has_room: bool) -> (u32, u32) {
        let account = &mut self.accounts[index as usize];
        let credits = account.retrieved;
        if credits == 0 || !has_room {
            return (0, account.granted_total);
        }
        let (current, piggybacked) = (account.current + credits, account.piggybacked + credits);
        // The common case needs only a few additions.
        if piggybacked < account.thresholds[0]
            && current <= account.piggyback_to
            && account.current >= self.credit_slots
            && credits <= self.free_slots
        {
            account.retrieved = 0;
            (account.current, account.piggybacked) = (current, piggybacked);
            account.granted_total = account.granted_total.wrapping_add(credits);
            self.free_slots -= credits;
            return (credits, account.granted_total);
        }
        self.carry_carefully(index)
    }

    #[cold]
    fn carry_carefully(&mut self, index: u32) -> (u32, u32) {
        (self.piggyback_carefully(index), self.granted_total(index))
    }

    fn piggyback_carefully(&mut self, index: u32) -> u32 {
        let account = &self.accounts[index as usize];
        if !self.piggyback || account.blocked {
            return 0;
        }
        let mut credits = account.retrieved;
        if !self.breaks(Mutant::PiggybackIgnoresTheQuota) {
            credits = credits.min(account.piggyback_to.saturating_sub(account.current));
        }
        if !self.breaks(Mutant::PiggybackOverdraws) {
            credits = credits.min(self.grantable(index));
        }
        let account = &mut self.accounts[index as usize];
        account.retrieved -= credits;
        account.piggybacked += credits;
        let reached = account.retrieved + account.piggybacked >= account.thresholds[0];
        self.grant_slots(index, credits);
        if reached { credits + self.cross_piggybacked(index) } else { credits }
    }

    /// Crosses the thresholds that piggybacking has reached (6.6). Returns further credits to piggyback.
    fn cross_piggybacked(&mut self, index: u32) -> u32 {
        let mut credits = 0;
        loop {
            let Account { retrieved, piggybacked, thresholds, .. } = &self.accounts[index as usize];
            if retrieved + piggybacked < thresholds[0] {
                return credits;
            }
            let Some(granted) = self.cross(index, *piggybacked) else { return credits };
            credits += granted;
        }
    }

    /// Crosses the current threshold of a sender that is not blocked; `returned` credits were piggybacked. Runs the
    /// activity control, computes the new threshold, and grants it as far as slots are available and not yet returned.
    /// `None`: there is nothing to grant. The threshold then stays until the next retrieval.
    fn cross(&mut self, index: u32, returned: u32) -> Option<u32> {
        if self.missing_slots > 0 {
            self.refill();
        }
        let most = self.grantable(index);
        if most == 0 && returned == 0 {
            return None;
        }
        self.monitor(index);
        let wanted = threshold(self.accounts[index as usize].intended, self.credit_slots);
        let granted = wanted.saturating_sub(returned).min(most);
        let excess = returned.saturating_sub(wanted);
        self.tally.short_grants += u64::from(granted + returned < wanted);
        self.tally.excesses += u64::from(excess > 0);
        self.tally.deficits += u64::from(returned > 0 && excess == 0);
        let overshoot = !(returned > 0 && self.breaks(Mutant::PiggybackForgetsTheOvershoot));
        let pushed = match self.breaks(Mutant::ShortGrantPushesTheThreshold) {
            true => wanted,
            // The granted amount is pushed; an excess is kept for the next threshold.
            false => granted + returned - excess,
        };
        let account = &mut self.accounts[index as usize];
        let left = account.retrieved + returned - account.thresholds[0];
        account.retrieved = if overshoot { left } else { 0 };
        self.push_threshold(index, pushed);
        self.accounts[index as usize].thresholds[0] += excess;
        self.grant_slots(index, granted);
        Some(granted)
    }

    /// A blocked sender gets one credit at a time, and only below its guaranteed credits.
    fn cross_blocked(&mut self, index: u32) -> Option<u32> {
        let account = &mut self.accounts[index as usize];
        if account.current >= self.credit_slots {
            if self.breaks(Mutant::BlockedCrossingIsLost) {
                self.accounts[index as usize].retrieved = 0;
            }
            return None;
        }
        account.retrieved -= account.thresholds[0];
        self.push_threshold(index, 1);
        self.grant_slots(index, 1);
        Some(1)
    }

    fn push_threshold(&mut self, index: u32, threshold: u32) {
        let last = self.credit_slots as usize;
        let account = &mut self.accounts[index as usize];
        account.control = account.control.saturating_sub(account.thresholds[0]).min(account.retrieved);
        account.thresholds.copy_within(1..=last, 0);
        account.thresholds[last] = threshold;
        account.piggybacked = 0;
    }

    /// Activity control at a threshold. After `n + 1` crossings (a monitoring point) a sender rises one level. The most
    /// active senders take quota from the least active.
    fn monitor(&mut self, index: u32) {
        let account = &mut self.accounts[index as usize];
        // Only data counts as activity: ignore a threshold that requests and responses alone have reached.
        if account.control >= account.thresholds[0] {
            return;
        }
        account.recently_active = self.grace_points > 0;
        account.crossed += 1;
        if account.crossed <= self.credit_slots {
            return;
        }
        account.crossed = 0;
        match self.activity.level(index) {
            Level::Low => self.activity.move_to_front(index, Level::Medium),
            Level::Medium => self.activity.move_to_front(index, Level::High),
            Level::High | Level::Null => {
                self.activity.shift_if_low_is_empty();
                self.activity.move_to_front(index, Level::High);
                self.gain_quota(index);
            }
        }
    }

    /// An active sender gains intended quota: unassigned quota, or else from the least active sender (6.1).
    fn gain_quota(&mut self, index: u32) {
        let least = self.credit_slots + 1;
        let account = &self.accounts[index as usize];
        let intended = account.intended;
        let room = account.lane_slots - intended;
        if room == 0 {
            return;
        }
        let missing_slots = self.missing_slots;
        let unassigned_slots = self.unassigned_slots.saturating_sub(missing_slots);
        if unassigned_slots > 0 {
            let amount = least.max(unassigned_slots / 2).min(unassigned_slots).min(room);
            self.unassigned_slots -= amount;
            self.accounts[index as usize].intended += amount;
            self.limit_piggybacking(index);
            return;
        }
        let Some(victim) = self.activity.least_active() else { return };
        let loser = &mut self.accounts[victim as usize];
        if loser.grace > 0 {
            loser.grace -= 1;
            self.tally.victims_passed_over += 1;
            self.activity.move_to_front(victim, Level::Medium);
            return;
        }
        // A recently active victim with no larger quota than the gaining sender gets a second chance. So quota moves
        // only from larger to smaller shares among equally active senders, and shares become equal.
        if core::mem::take(&mut loser.recently_active) && loser.intended < intended + least {
            self.activity.move_to_front(victim, Level::Medium);
            return;
        }
        let amount = least.max(intended.abs_diff(loser.intended) / 2);
        let amount = amount.min(loser.intended - self.credit_slots).min(room);
        loser.intended -= amount;
        let emptied = loser.intended == self.credit_slots;
        if emptied
            && loser.current > loser.intended
            && let Some(owner) = loser.owner
        {
            loser.blocked = true;
            self.requests.push(owner);
            self.tally.requests += 1;
        }
        self.activity.move_to_front(victim, if emptied { Level::Null } else { Level::Medium });
        let kept_back = amount.min(missing_slots.saturating_sub(self.unassigned_slots));
        self.unassigned_slots += kept_back;
        let account = &mut self.accounts[index as usize];
        account.intended += amount - kept_back;
        if amount > kept_back {
            account.grace = self.grace_points;
            self.tally.quota_transfers += 1;
        }
        self.limit_piggybacking(index);
        self.limit_piggybacking(victim);
    }

    /// Credits granted to this sender beyond the starting ones, modulo 2^32.
    #[inline]
    pub fn granted_total(&self, index: u32) -> u32 {
        self.accounts[index as usize].granted_total
    }

    /// Whether a compulsory return request is needed.
    #[inline]
    pub fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// The next sender that needs a compulsory return request.
    pub fn next_request(&mut self) -> Option<Peer> {
        self.requests.pop()
    }

    /// Counts of rare events.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Memory for accounts, used or not. Unit: bytes, by capacity.
    pub fn bytes(&self) -> u64 {
        let accounts =
            self.accounts.capacity() * size_of::<Account>() + self.free.capacity() * size_of::<u32>();
        (accounts + self.activity.bytes()) as u64
    }

    /// Slots of the region.
    pub fn region_slots(&self) -> u32 {
        self.region_slots
    }

    /// Slots that no sender holds.
    pub fn available_slots(&self) -> u32 {
        self.free_slots + self.guaranteed_slots
    }

    /// Intended quota that no sender has, with the reservations for expected senders.
    pub fn unassigned_slots(&self) -> u32 {
        self.unassigned_slots + self.reserved_slots
    }

    /// All senders with an account, by account number.
    pub fn accounts(&self) -> impl Iterator<Item = AccountView<'_>> {
        let numbered = self.accounts.iter().zip(0..);
        numbered.filter_map(|(account, index)| {
            Some(AccountView {
                owner: account.owner?,
                current: account.current,
                intended: account.intended,
                retrieved: account.retrieved,
                piggybacked: account.piggybacked,
                blocked: account.blocked,
                level: self.activity.level(index),
                thresholds: &account.thresholds[..=self.credit_slots as usize],
            })
        })
    }

    /// A view of one sender for reports.
    pub(super) fn view(&self, index: u32) -> ReceiverView {
        let account = &self.accounts[index as usize];
        ReceiverView {
            quota_slots: Some(account.intended),
            current: Some(account.current),
            retrieved: Some(account.retrieved),
            threshold: Some(account.thresholds[0]),
            granted_total: Some(account.granted_total),
            unread_credit_packets: Some(u32::from(account.packets_sent.wrapping_sub(account.packets_read))),
        }
    }

    /// Checks I1, I3 and I6. For tests and proofs: linear in the senders.
    ///
    /// # Panics
    /// If one of them does not hold.
    pub fn assert_invariants(&self) {
        let open = |index: &u32| !self.free.contains(index);
        let indices = || (0..self.accounts.len() as u32).filter(open);
        let sum = |value: fn(&Account) -> u32| -> u32 {
            indices().map(|index| value(&self.accounts[index as usize])).sum()
        };
        let (current, intended) = (sum(|account| account.current), sum(|account| account.intended));
        assert_eq!(self.available_slots() + current, self.region_slots, "I1: {self:?}");
        assert_eq!(intended + self.unassigned_slots(), self.region_slots, "I3: {self:?}");
        let mut guaranteed_slots = self.reserved_slots;
        for index in indices() {
            let account = &self.accounts[index as usize];
            guaranteed_slots += self.credit_slots.saturating_sub(account.current);
            let thresholds = &account.thresholds[..=self.credit_slots as usize];
            let total = account.current + account.retrieved + 1;
            assert_eq!(thresholds.iter().sum::<u32>(), total, "I6: account {index} of {self:?}");
            assert!(thresholds.iter().all(|&threshold| threshold >= 1), "I6: account {index} of {self:?}");
            assert!(account.intended >= self.credit_slots, "I3: account {index} of {self:?}");
            assert!(account.current <= account.lane_slots, "I1: account {index} of {self:?}");
        }
        assert_eq!(self.guaranteed_slots, guaranteed_slots, "guaranteed slots are not reserved: {self:?}");
    }
}

#[cfg(test)]
mod tests;
