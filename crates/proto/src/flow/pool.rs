//! The state of flow control that exists once per endpoint: the pools of the schemes whose senders share a data region.

use alloc::boxed::Box;

use super::{Mutant, SpendError, demand_credits, dynamic_credits};
use crate::config::{Config, Scheme};
use crate::event::Peer;

/// The pools of an endpoint. Only that of its scheme is in use.
#[derive(Clone, Debug)]
pub struct Pool {
    pub(crate) dynamic: dynamic_credits::Pool,
    /// Only with credits on demand. Every endpoint has this structure, so the pool has memory of its own.
    demand: Option<Box<demand_credits::Pool>>,
    /// Guarantees may be deferred until the endpoint is idle. The common path need not look at the pool for that.
    may_defer: bool,
}

impl Pool {
    /// The pools of an endpoint with these settings.
    ///
    /// # Panics
    /// See [`dynamic_credits::Pool::new`] and [`demand_credits::Pool::new`].
    pub fn new(config: &Config) -> Pool {
        let Config { region, credit_slots, .. } = config;
        match config.scheme {
            Scheme::Dynamic { piggyback } => Pool {
                dynamic: dynamic_credits::Pool::new(region, *credit_slots, piggyback),
                ..Pool::unused()
            },
            Scheme::Demand => Pool::of_demand(demand_credits::Pool::new(region, *credit_slots)),
            _ => Pool::unused(),
        }
    }

    fn unused() -> Pool {
        Pool { dynamic: dynamic_credits::Pool::unused(), demand: None, may_defer: false }
    }

    pub(super) fn of_demand(demand: demand_credits::Pool) -> Pool {
        Pool { demand: Some(Box::new(demand)), ..Pool::unused() }
    }

    /// The pool of credits on demand, if that is the scheme.
    pub(crate) fn demand_pool(&self) -> Option<&demand_credits::Pool> {
        self.demand.as_deref()
    }

    /// The pool of credits on demand, which is the scheme.
    #[inline]
    pub(crate) fn demand(&self) -> &demand_credits::Pool {
        self.demand.as_deref().expect("credits on demand have a pool")
    }

    /// The same, to change it.
    #[inline]
    pub(crate) fn demand_mut(&mut self) -> &mut demand_credits::Pool {
        self.demand.as_deref_mut().expect("credits on demand have a pool")
    }

    /// Whether credits of other peers than that of the event are to be sent or requested.
    ///
    /// With credits on demand the list of dynamic credits only says that there is work. So the common path has one
    /// check for both.
    #[inline]
    pub(crate) fn has_requests(&self) -> bool {
        self.dynamic.has_requests()
    }

    /// The queue of credits on demand may have work.
    #[inline]
    pub(super) fn note_demand(&mut self) {
        if self.demand().has_work() && !self.dynamic.has_requests() {
            self.dynamic.request_from(Peer(0));
        }
    }

    /// Slots of a sender have been retrieved (credits on demand): see [`demand_credits::Pool::retrieved_and_due`].
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub(crate) fn demand_retrieved_and_due(
        &mut self,
        receiver: &mut demand_credits::Receiver,
        slots: u32,
        wanted_total: u32,
    ) -> Result<bool, SpendError> {
        let due = self.demand_mut().retrieved_and_due(receiver.account_mut(), slots, wanted_total)?;
        if due {
            self.note_demand();
        }
        Ok(due)
    }

    /// A grant of credits on demand has left, or had to wait.
    #[inline]
    pub(super) fn note_grant(&mut self) {
        self.note_demand();
        self.may_defer |= self.demand().has_deferred();
    }

    /// Whether a guarantee may be deferred until the endpoint is idle.
    #[inline]
    pub(crate) fn waits_for_idle(&self) -> bool {
        self.may_defer
    }

    /// The endpoint is idle. Returns the sender whose guarantee has been deferred longest.
    pub(crate) fn next_deferred(&mut self) -> Option<Peer> {
        let demand = self.demand.as_deref_mut()?;
        let peer = demand.next_deferred();
        self.may_defer = demand.has_deferred();
        peer
    }

    /// The queue of credits on demand has been served.
    pub(crate) fn end_work(&mut self) {
        while self.dynamic.next_request().is_some() {}
        self.demand_mut().end_work();
    }

    /// Replaces a rule by a mutant.
    #[cfg(any(test, feature = "mutants"))]
    pub(crate) fn mutate(&mut self, mutant: Mutant) {
        self.dynamic.mutate(mutant);
        if let Some(demand) = &mut self.demand {
            demand.mutate(mutant);
        }
    }

    /// Whether a mutant is selected. Never outside tests and proofs.
    #[inline]
    pub(crate) fn breaks(&self, mutant: Mutant) -> bool {
        self.dynamic.breaks(mutant)
    }

    /// Memory for accounts. Unit: bytes, by capacity.
    pub(crate) fn bytes(&self) -> u64 {
        self.dynamic.bytes() + self.demand.as_deref().map_or(0, demand_credits::Pool::bytes)
    }
}
