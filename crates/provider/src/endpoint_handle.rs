//! The object that C holds for an endpoint, and how a call that posts an operation enters the domain.
//!
//! [`crate::endpoint`] has the calls on the endpoint itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use weir_link::biased_lock::Guard;

use crate::errno::Error;
use crate::ffi::*;
use crate::state::completion::Side;
use crate::state::cq_writer::DomainQueues;
use crate::state::domain_state::{Domain, State};
use crate::state::endpoint::{Flags, Posting};

/// A place for the table of tagged calls, which changes when operations begin to take receives
/// ([`crate::group_receives`]). C sees a pointer.
#[repr(transparent)]
pub struct TaggedTable(AtomicPtr<FiOpsTagged<EndpointHandle>>);

impl TaggedTable {
    /// With this table.
    pub fn new(table: &'static FiOpsTagged<EndpointHandle>) -> TaggedTable {
        TaggedTable(AtomicPtr::new(std::ptr::from_ref(table).cast_mut()))
    }

    /// From now on this table.
    pub fn set(&self, table: &'static FiOpsTagged<EndpointHandle>) {
        self.0.store(std::ptr::from_ref(table).cast_mut(), Ordering::Release);
    }

    /// The table.
    #[cfg(test)]
    pub fn get(&self) -> *const FiOpsTagged<EndpointHandle> {
        self.0.load(Ordering::Acquire)
    }
}

/// The object that C holds.
#[repr(C)]
pub struct EndpointHandle {
    pub(crate) fid: Fid,
    pub(crate) ops: *const FiOpsEp<EndpointHandle>,
    pub(crate) cm: *const FiOpsCm<EndpointHandle>,
    pub(crate) msg: *const FiOpsMsg<EndpointHandle>,
    pub(crate) rma: *const FiOpsRma<EndpointHandle>,
    pub(crate) tagged: TaggedTable,
    pub(crate) atomic: *const FiOpsAtomic<EndpointHandle>,
    pub(crate) collective: *const FiOpsCollective<EndpointHandle>,
    pub(crate) domain: Arc<Domain>,
    /// Its index in the domain.
    pub(crate) index: usize,
}

const _: () = assert!(std::mem::offset_of!(EndpointHandle, domain) == 80); // fid_ep

impl EndpointHandle {
    /// Enters the domain, for a call that posts an operation.
    #[inline(always)]
    pub fn enter(&self) -> Guard<'_, State> {
        self.domain.enter()
    }

    /// Prepares an operation for the engine: see [`crate::state::endpoint::Endpoint::prepare`].
    ///
    /// # Errors
    /// The endpoint is not enabled, or the address is not in the vector.
    #[inline(always)]
    pub fn prepare<'a>(
        &self,
        state: &'a mut State,
        side: Side,
        address: FiAddr,
        context: usize,
        flags: Flags,
    ) -> Result<Posting<'a>, Error> {
        let State { endpoints, queues, counters, vectors, poll_before_report, .. } = state;
        let bound = DomainQueues { queues, counters };
        endpoints[self.index].prepare((side, address, context, flags), bound, vectors, !*poll_before_report)
    }

    /// [`EndpointHandle::prepare`], then `act`, which posts the operation.
    ///
    /// # Errors
    /// Those of `prepare` and of `act`.
    #[inline]
    pub fn post<R>(
        &self,
        side: Side,
        address: FiAddr,
        context: usize,
        flags: Flags,
        act: impl FnOnce(Posting) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut state = self.enter();
        let result = act(self.prepare(&mut state, side, address, context, flags)?);
        state.after_post(&result);
        if let Some(engine) = state.endpoints[self.index].engine() {
            engine.wake_watcher_for_completions();
        }
        result
    }

    /// Checks that the endpoint is in `domain`.
    ///
    /// # Errors
    /// It is in another domain.
    pub fn same_domain(&self, domain: &Arc<Domain>) -> Result<(), Error> {
        if Arc::ptr_eq(&self.domain, domain) { Ok(()) } else { Err(Error::OTHER_DOMAIN) }
    }
}
