//! Flow control: bounds the memory that a receiver spends on incoming messages. One file per scheme. [`Sender`] and
//! [`Receiver`] choose the file of the scheme.
//!
//! A [`Sender`] says how many slots it may fill at its peer. In schemes with credits, a [`Receiver`] says when
//! retrieved slots are granted again. In the others, the link finds free slots, and the sender decides whether to try
//! again. Neither knows messages. A grant travels as a cumulative total. So a repeated or late grant neither creates
//! nor loses credit, and the totals can be checked. State that a scheme needs once per endpoint is in its [`Pool`].

pub mod activity;
pub mod adaptive_backlog;
#[cfg(feature = "explore")]
mod canonical;
pub mod demand_credits;
pub mod dynamic_credits;
pub mod hardware;
mod mutant;
mod pool;
mod region;
pub mod static_connection;
pub mod static_credits;
pub mod unlimited;
mod view;

use alloc::boxed::Box;

use crate::config::{Config, Scheme};
use crate::event::Peer;
use crate::time::Instant;
#[cfg(feature = "explore")]
pub use canonical::{Base, ReceiverTotals};
#[doc(hidden)]
pub use mutant::Mutant;
pub use pool::Pool;
pub use view::{LoanView, ReceiverView, SenderView};

/// The granted total does not fit what was granted and spent: the peer violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("granted total {granted_total} would leave {credits} credits of a quota of {quota_slots}")]
pub struct GrantError {
    /// The total that arrived.
    pub granted_total: u32,
    /// The credits that would result.
    pub credits: u32,
    /// The quota.
    pub quota_slots: u32,
}

/// The sender filled slots or returned credits that it did not have: it violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{slots} slots spent with {credits} credits")]
pub struct SpendError {
    /// The slots that it spent.
    pub slots: u32,
    /// The credits that it had.
    pub credits: u32,
}

/// The reaction of a sender to a receiver without a free slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// Ask again at any time.
    AskAgain,
    /// Retry at this time.
    RetryAt(Instant),
    /// That was the last attempt.
    GiveUp,
}

/// The sending side of one pair.
#[derive(Clone, Debug)]
pub enum Sender {
    /// See [`unlimited`].
    Unlimited(unlimited::Sender),
    /// See [`static_credits`].
    Static(static_credits::Sender),
    /// See [`hardware`].
    Hardware(hardware::Sender),
    /// See [`static_connection`]. A sender spends credits as in the mailbox form.
    StaticConnection(static_credits::Sender),
    /// See [`adaptive_backlog`]. The same, with fewer starting credits.
    AdaptiveBacklog(static_credits::Sender),
    /// See [`dynamic_credits`].
    Dynamic(dynamic_credits::Sender),
    /// See [`demand_credits`]. A sender spends credits as in the mailbox form, and says what it wants.
    Demand(static_credits::Sender),
}

impl Sender {
    /// A sender half with `start_slots` credits that can own at most `quota_slots` data slots at the receiver.
    pub fn new(scheme: Scheme, quota_slots: u32, start_slots: u32) -> Sender {
        let credited = || static_credits::Sender::starting_with(start_slots, quota_slots);
        match scheme {
            Scheme::Unlimited => Sender::Unlimited(unlimited::Sender::default()),
            Scheme::Static { .. } => Sender::Static(credited()),
            Scheme::Hardware { .. } => Sender::Hardware(hardware::Sender::default()),
            Scheme::StaticConnection { .. } => Sender::StaticConnection(credited()),
            Scheme::AdaptiveBacklog { .. } => Sender::AdaptiveBacklog(credited()),
            Scheme::Dynamic { .. } => Sender::Dynamic(dynamic_credits::Sender::new(quota_slots, start_slots)),
            Scheme::Demand => Sender::Demand(credited()),
        }
    }

    /// Slots that may be filled now.
    #[inline]
    pub fn credits(&self) -> u32 {
        match self {
            Sender::Static(sender) => sender.credits(),
            Sender::Dynamic(sender) => sender.credits(),
            Sender::StaticConnection(sender) | Sender::AdaptiveBacklog(sender) | Sender::Demand(sender) => {
                sender.credits()
            }
            Sender::Unlimited(sender) => sender.room(),
            Sender::Hardware(sender) => sender.room(),
        }
    }

    /// Spends `slots` credits, at most [`Sender::credits`].
    #[inline]
    pub fn spend(&mut self, slots: u32) {
        match self {
            Sender::Static(sender) => sender.spend(slots),
            Sender::Dynamic(sender) => sender.spend(slots),
            Sender::StaticConnection(sender) | Sender::AdaptiveBacklog(sender) | Sender::Demand(sender) => {
                sender.spend(slots);
            }
            Sender::Unlimited(sender) => sender.spend(slots),
            Sender::Hardware(sender) => sender.spend(slots),
        }
    }

    /// Takes back `slots` spent credits: the packet has not left.
    #[cold]
    pub fn refund(&mut self, slots: u32) {
        match self.credited() {
            Some(credits) => credits.refund(slots),
            None => self.found_room(slots),
        }
    }

    /// The credit calculator, in schemes with credits.
    #[inline(always)]
    fn credited(&mut self) -> Option<&mut static_credits::Sender> {
        // The schemes that share a region, without a jump table.
        if let Sender::Demand(sender) = self {
            return Some(sender);
        }
        if let Sender::Dynamic(sender) = self {
            return Some(sender.credits_mut());
        }
        match self {
            Sender::Static(sender)
            | Sender::StaticConnection(sender)
            | Sender::AdaptiveBacklog(sender)
            | Sender::Demand(sender) => Some(sender),
            Sender::Dynamic(sender) => Some(sender.credits_mut()),
            Sender::Unlimited(_) | Sender::Hardware(_) => None,
        }
    }

    /// [`Sender::spend`], if there are enough credits. Returns whether there were.
    #[inline(always)]
    pub fn try_spend(&mut self, slots: u32) -> bool {
        if let Some(credits) = self.credited() {
            return credits.try_spend(slots);
        }
        if let Sender::Unlimited(sender) = self {
            return sender.try_spend(slots);
        }
        let enough = self.credits() >= slots;
        if enough {
            self.spend(slots);
        }
        enough
    }

    /// Applies the granted total of a packet from the receiver.
    ///
    /// # Errors
    /// [`GrantError`] if the total is not valid. Then nothing has changed.
    #[inline(always)]
    pub fn granted(&mut self, granted_total: u32) -> Result<(), GrantError> {
        self.credited().map_or(Ok(()), |credits| credits.granted(granted_total))
    }

    /// The link has found `slots` more free slots.
    pub fn found_room(&mut self, slots: u32) {
        match self {
            Sender::Unlimited(sender) => sender.found_room(slots),
            Sender::Hardware(sender) => sender.found_room(slots),
            Sender::Static(_)
            | Sender::StaticConnection(_)
            | Sender::AdaptiveBacklog(_)
            | Sender::Dynamic(_)
            | Sender::Demand(_) => {}
        }
    }

    /// Credits that a return request reclaims: those beyond the guaranteed ones, which are as many as there are credit
    /// slots. With credits on demand those that the `queued_slots` slots of queued packets need stay too. `None` if the
    /// scheme has no such requests.
    pub fn excess(&self, credit_slots: u16, queued_slots: u32) -> Option<u32> {
        match self {
            Sender::Dynamic(sender) => Some(sender.excess(credit_slots.into())),
            Sender::Demand(sender) => {
                Some(sender.credits().saturating_sub(queued_slots.max(credit_slots.into())))
            }
            Sender::Unlimited(_)
            | Sender::Hardware(_)
            | Sender::Static(_)
            | Sender::StaticConnection(_)
            | Sender::AdaptiveBacklog(_) => None,
        }
    }

    /// The link has found no free slot.
    pub fn found_none(&mut self, now: Instant, scheme: &Scheme) -> NotReady {
        match (self, *scheme) {
            (Sender::Hardware(sender), Scheme::Hardware { rnr_timer_ns, rnr_retries }) => {
                sender.refused(now, rnr_timer_ns, rnr_retries)
            }
            _ => NotReady::AskAgain,
        }
    }

    /// The known free slots, if the half has no other state. So in schemes without credits.
    pub(crate) fn at_rest(&self) -> Option<u32> {
        match self {
            Sender::Unlimited(sender) => Some(sender.room()),
            Sender::Hardware(sender) => sender.at_rest(),
            Sender::Static(_)
            | Sender::StaticConnection(_)
            | Sender::AdaptiveBacklog(_)
            | Sender::Dynamic(_)
            | Sender::Demand(_) => None,
        }
    }

    /// The sender half with `room` free slots and no other state, see [`Sender::at_rest`].
    pub(crate) fn with_room(room_query: RoomQuery, room: u32) -> Sender {
        let mut sender = match room_query {
            RoomQuery::WhenFree => Sender::Unlimited(unlimited::Sender::default()),
            RoomQuery::Immediate => Sender::Hardware(hardware::Sender::default()),
        };
        sender.found_room(room);
        sender
    }

    /// What a packet says of the slots that this half has spent and wants, if `queued_slots` slots are queued behind it.
    #[inline(always)]
    pub fn wanted_total(&self, queued_slots: u32) -> u32 {
        match self {
            Sender::Demand(sender) => sender.spent_total().wrapping_add(queued_slots),
            _ => 0,
        }
    }

    /// Whether packets say what the half wants.
    #[inline]
    pub fn announces_demand(&self) -> bool {
        matches!(self, Sender::Demand(_))
    }

    /// The way in which the half asks for free slots, in schemes without credits.
    #[inline]
    pub fn room_query(&self) -> Option<RoomQuery> {
        match self {
            Sender::Unlimited(_) => Some(RoomQuery::WhenFree),
            Sender::Hardware(_) => Some(RoomQuery::Immediate),
            Sender::Static(_)
            | Sender::StaticConnection(_)
            | Sender::AdaptiveBacklog(_)
            | Sender::Dynamic(_)
            | Sender::Demand(_) => None,
        }
    }
}

/// The question of a sender without credits to its link about free slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoomQuery {
    /// The link answers when a slot is free.
    WhenFree,
    /// The link answers at once, even if no slot is free.
    Immediate,
}

/// The receiving side of one pair.
#[derive(Clone, Debug)]
pub enum Receiver {
    /// Grants nothing: the link shows free slots. Also for [`hardware`].
    Unlimited,
    /// See [`static_credits`].
    Static(static_credits::Receiver),
    /// See [`static_connection`].
    StaticConnection(static_connection::Receiver),
    /// See [`adaptive_backlog`]. Boxed, because it is larger than the others.
    AdaptiveBacklog(Box<adaptive_backlog::Receiver>),
    /// See [`dynamic_credits`]. The state is in the pool, under this account number.
    Dynamic(u32),
    /// See [`demand_credits`].
    Demand(demand_credits::Receiver),
}

impl Receiver {
    /// A receiver half for sender `from`, which starts with `start_slots` credits and can own at most `quota_slots`
    /// data slots here. In the mailbox form the threshold follows from `config.credit_slots`.
    pub fn new(config: &Config, from: Peer, quota_slots: u32, start_slots: u32, pool: &mut Pool) -> Receiver {
        match config.scheme {
            Scheme::Unlimited | Scheme::Hardware { .. } => Receiver::Unlimited,
            Scheme::StaticConnection { ecm_threshold } => {
                Receiver::StaticConnection(static_connection::Receiver::new(quota_slots, ecm_threshold))
            }
            Scheme::AdaptiveBacklog { growth, ecm_threshold } => Receiver::AdaptiveBacklog(Box::new(
                adaptive_backlog::Receiver::new(growth, ecm_threshold, start_slots, quota_slots),
            )),
            Scheme::Static { piggyback } => {
                Receiver::Static(static_credits::Receiver::new(quota_slots, config.credit_slots, piggyback))
            }
            Scheme::Dynamic { .. } => Receiver::Dynamic(pool.dynamic.attach(from, quota_slots, start_slots)),
            Scheme::Demand => {
                let account = pool.demand_mut().attach(from, quota_slots, start_slots);
                Receiver::Demand(demand_credits::Receiver::new(account))
            }
        }
    }

    /// The sender has detached with all its credits. If it attaches again, it gets a new receiver half.
    pub fn detach(self, pool: &mut Pool) {
        match self {
            Receiver::Dynamic(account) => pool.dynamic.detach(account),
            Receiver::Demand(receiver) => {
                pool.demand_mut().detach(receiver.account);
                pool.note_demand();
            }
            _ => {}
        }
    }

    /// The sender is lost.
    pub fn remove(self, pool: &mut Pool) {
        match self {
            Receiver::Dynamic(account) => pool.dynamic.remove(account),
            Receiver::Demand(receiver) => {
                pool.demand_mut().remove(receiver.account);
                pool.note_demand();
            }
            _ => {}
        }
    }

    /// A packet of `slots` data slots has been retrieved. `read` is how many credit packets its sender has read, modulo
    /// 2^16, and `wanted_total` what the packet says of its demand.
    ///
    /// # Errors
    /// [`SpendError`] if the sender had no credits for them and the scheme can tell. Then nothing has changed.
    #[inline]
    pub fn retrieved(
        &mut self,
        slots: u32,
        read: u16,
        wanted_total: u32,
        pool: &mut Pool,
    ) -> Result<(), SpendError> {
        match self {
            Receiver::Unlimited => {}
            Receiver::Static(receiver) => {
                receiver.credit_packets_read(read);
                receiver.retrieved(slots);
            }
            Receiver::Dynamic(account) => return pool.dynamic.retrieved(*account, slots, read),
            Receiver::Demand(receiver) => {
                pool.demand_retrieved_and_due(receiver, slots, wanted_total)?;
                pool.demand_mut().credit_packets_read(receiver.account, read);
            }
            Receiver::StaticConnection(receiver) => {
                receiver.credit_packets_read(read);
                receiver.gather(slots);
            }
            Receiver::AdaptiveBacklog(receiver) => {
                let credits = receiver.credits_mut();
                credits.credit_packets_read(read);
                credits.gather(slots);
            }
        }
        Ok(())
    }

    /// [`Receiver::retrieved`] and [`Receiver::is_due`] in one, for schemes that do not state demand.
    ///
    /// # Errors
    /// As [`Receiver::retrieved`].
    #[inline(always)]
    pub fn retrieved_and_due(&mut self, slots: u32, read: u16, pool: &mut Pool) -> Result<bool, SpendError> {
        match self {
            Receiver::Unlimited => Ok(false),
            _ => self.retrieved_with_credits(slots, read, pool),
        }
    }

    #[inline(never)]
    fn retrieved_with_credits(&mut self, slots: u32, read: u16, pool: &mut Pool) -> Result<bool, SpendError> {
        self.retrieved(slots, read, 0, pool).map(|()| self.is_due(pool))
    }

    /// Whether [`Receiver::grant`] might have credits to return.
    #[inline]
    pub fn is_due(&self, pool: &Pool) -> bool {
        match self {
            Receiver::Unlimited => false,
            Receiver::Dynamic(account) => pool.dynamic.is_due(*account),
            Receiver::Demand(receiver) => pool.demand().is_due(receiver.account),
            Receiver::Static(receiver) => receiver.is_due(),
            Receiver::StaticConnection(receiver) => receiver.is_due(),
            Receiver::AdaptiveBacklog(receiver) => receiver.credits().is_due(),
        }
    }

    /// The retrieved packet had waited for credit. Returns the new number of the sender's slots, if that changes it.
    pub fn packet_was_backlogged(&mut self) -> Option<u32> {
        match self {
            Receiver::AdaptiveBacklog(receiver) => Some(receiver.raise()),
            Receiver::Unlimited
            | Receiver::Static(_)
            | Receiver::StaticConnection(_)
            | Receiver::Dynamic(_)
            | Receiver::Demand(_) => None,
        }
    }

    /// The retrieved packet was a compulsory return request, or a response with `returned` credits.
    ///
    /// # Errors
    /// [`SpendError`] if no response was requested, or the sender does not have so many credits.
    pub fn control_retrieved(&mut self, returned: Option<u32>, pool: &mut Pool) -> Result<(), SpendError> {
        match self {
            Receiver::Dynamic(account) => {
                pool.dynamic.control_retrieved(*account);
                returned.map_or(Ok(()), |credits| pool.dynamic.returned(*account, credits))
            }
            Receiver::Demand(receiver) => {
                let account = receiver.account_mut();
                let result = returned.map_or(Ok(()), |credits| pool.demand_mut().returned(account, credits));
                pool.note_demand();
                result
            }
            _ => Ok(()),
        }
    }

    /// The sender reports how many of our credit packets it has read, modulo 2^16.
    #[inline]
    pub fn credit_packets_read(&mut self, read: u16, pool: &mut Pool) {
        match self {
            Receiver::Unlimited => {}
            Receiver::Static(receiver) => receiver.credit_packets_read(read),
            Receiver::Dynamic(account) => pool.dynamic.credit_packets_read(*account, read),
            Receiver::Demand(receiver) => pool.demand_mut().credit_packets_read(receiver.account, read),
            Receiver::StaticConnection(receiver) => receiver.credit_packets_read(read),
            Receiver::AdaptiveBacklog(receiver) => receiver.credits_mut().credit_packets_read(read),
        }
    }

    /// A packet that fills no data slot says what its sender wants. Returns whether the queue may be served.
    #[inline]
    pub fn wants(&mut self, wanted_total: u32, pool: &mut Pool) -> bool {
        let Receiver::Demand(receiver) = self else { return false };
        pool.demand_mut().wants(receiver.account_mut(), wanted_total);
        pool.note_demand();
        pool.demand().has_work()
    }

    /// A grant to this sender cannot leave now: we have no lane to it, or the link is busy.
    #[inline]
    pub fn grants_must_wait(&self, pool: &mut Pool) {
        if let Receiver::Demand(receiver) = self {
            pool.demand_mut().grants_must_wait(receiver.account);
            pool.note_demand();
        }
    }

    /// Credits for an explicit credit packet, if one is due and one of its `credit_slots` slots at the sender is free.
    /// They count as granted.
    #[inline]
    pub fn grant(&mut self, credit_slots: u32, pool: &mut Pool) -> Option<u32> {
        match self {
            Receiver::Unlimited => None,
            Receiver::Static(receiver) => receiver.grant(credit_slots),
            Receiver::Dynamic(account) => pool.dynamic.grant(*account, credit_slots),
            Receiver::Demand(receiver) => {
                let credits = pool.demand_mut().grant(receiver.account_mut(), credit_slots);
                pool.note_grant();
                credits
            }
            Receiver::StaticConnection(receiver) => receiver.grant(credit_slots),
            Receiver::AdaptiveBacklog(receiver) => receiver.credits_mut().grant(credit_slots),
        }
    }

    /// The credits that a data packet piggybacks, which count as granted, and the granted total. In the mailbox form
    /// credits go with packets that have space for them (`has_room`), in the connection form with every packet. For
    /// dynamic credits see `Pool::carry`.
    #[inline]
    pub fn carry(&mut self, has_room: bool, pool: &mut Pool) -> (u32, u32) {
        match self {
            // What this leaves to do for others waits for the next arrival: a send on the common path ends without it.
            Receiver::Demand(receiver) => receiver.carry(has_room, pool.demand_mut()),
            Receiver::Unlimited | Receiver::Dynamic(_) => (0, 0),
            Receiver::Static(receiver) => {
                let credits = if has_room { receiver.piggyback() } else { 0 };
                (credits, receiver.granted_total())
            }
            Receiver::StaticConnection(receiver) => (receiver.piggyback(), receiver.granted_total()),
            Receiver::AdaptiveBacklog(receiver) => {
                (receiver.credits_mut().piggyback(), receiver.credits().granted_total())
            }
        }
    }

    /// Granted credits in all, modulo 2^32.
    #[inline]
    pub fn granted_total(&self, pool: &Pool) -> u32 {
        match self {
            Receiver::Unlimited => 0,
            Receiver::Static(receiver) => receiver.granted_total(),
            Receiver::Dynamic(account) => pool.dynamic.granted_total(*account),
            Receiver::Demand(receiver) => pool.demand().granted_total(receiver.account),
            Receiver::StaticConnection(receiver) => receiver.granted_total(),
            Receiver::AdaptiveBacklog(receiver) => receiver.credits().granted_total(),
        }
    }
}
