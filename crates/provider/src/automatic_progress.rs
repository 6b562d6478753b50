//! Automatic progress (`FI_PROGRESS_AUTO`): each endpoint of the domain has a thread, its watcher, that makes progress while
//! the program computes ([`weir_engine::automatic_progress`]). Only programs that ask for it get it.
//!
//! The domain is shared between threads even if the program promises one, so calls take its lock.

use std::sync::{Arc, Weak};

use weir_engine::Engine;
use weir_engine::automatic_progress::{self, EngineOwner};

use crate::errno::Error;
use crate::state::domain_state::{Domain, State};

/// Starts the thread of an endpoint that is enabled.
///
/// # Errors
/// The link has no place to sleep: not implemented. Errors of starting a thread.
pub fn start(domain: &Arc<Domain>, index: usize) -> Result<(), Error> {
    let inside = Arc::downgrade(domain);
    let mut state = domain.enter();
    let (Some(engine), waits) = state.endpoints[index].engine_and_waits() else {
        return Err(Error::BAD_STATE);
    };
    let watcher = engine.start_watcher("weir-progress", Some(0), move || make_progress(&inside, index));
    let watcher = watcher.map_err(|error| Error::system(error.raw_os_error().unwrap_or(libc::EAGAIN)))?;
    waits.progress_automatically(watcher.ok_or(Error::NOT_IMPLEMENTED)?);
    Ok(())
}

/// What the thread does when it is woken. Returns the time until it must look again, if it must. Unit: ns.
fn make_progress(domain: &Weak<Domain>, index: usize) -> Option<u64> {
    let domain = domain.upgrade()?;
    automatic_progress::make_progress(&mut EndpointOfDomain { state: &mut domain.enter(), index })
}

/// An endpoint, whose completions go to the queues and counters of its domain.
struct EndpointOfDomain<'a> {
    state: &'a mut State,
    index: usize,
}

impl EngineOwner for EndpointOfDomain<'_> {
    fn engine(&mut self) -> Option<&mut Engine> {
        self.state.endpoints.get_mut(self.index)?.engine()
    }

    fn progress(&mut self) -> usize {
        self.state.progress_endpoint(self.index)
    }
}
