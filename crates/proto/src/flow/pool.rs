//! The state of flow control that exists once per endpoint: the pools of the schemes whose senders share a data region.

use super::{Mutant, demand_credits, dynamic_credits};
use crate::config::{Config, Scheme};
use crate::event::Peer;

/// The pools of an endpoint. Only that of its scheme is in use.
#[derive(Clone, Debug)]
pub struct Pool {
    pub(crate) dynamic: dynamic_credits::Pool,
    pub(crate) demand: demand_credits::Pool,
}

impl Pool {
    /// The pools of an endpoint with these settings.
    ///
    /// # Panics
    /// See [`dynamic_credits::Pool::new`] and [`demand_credits::Pool::new`].
    pub fn new(config: &Config) -> Pool {
        let (mut dynamic, mut demand) = (dynamic_credits::Pool::unused(), demand_credits::Pool::unused());
        match config.scheme {
            Scheme::Dynamic { piggyback } => {
                dynamic = dynamic_credits::Pool::new(&config.region, config.credit_slots, piggyback);
            }
            Scheme::Demand => demand = demand_credits::Pool::new(&config.region, config.credit_slots),
            _ => {}
        }
        Pool { dynamic, demand }
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
        if self.demand.has_work() && !self.dynamic.has_requests() {
            self.dynamic.request_from(Peer(0));
        }
    }

    /// The queue of credits on demand has been served.
    pub(crate) fn end_work(&mut self) {
        while self.dynamic.next_request().is_some() {}
        self.demand.end_work();
    }

    /// Replaces a rule by a mutant.
    #[cfg(any(test, feature = "mutants"))]
    pub(crate) fn mutate(&mut self, mutant: Mutant) {
        self.dynamic.mutate(mutant);
        self.demand.mutate(mutant);
    }

    /// Whether a mutant is selected. Never outside tests and proofs.
    #[inline]
    pub(crate) fn breaks(&self, mutant: Mutant) -> bool {
        self.dynamic.breaks(mutant)
    }

    /// Memory for accounts. Unit: bytes, by capacity.
    pub(crate) fn bytes(&self) -> u64 {
        self.dynamic.bytes() + self.demand.bytes()
    }
}
