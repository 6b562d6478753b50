//! The waits of threads for one endpoint: the descriptors at which they block, and the endpoint's watcher, which rings them.
//! `arming.rs` says how a thread blocks.

use std::sync::{Arc, Mutex, PoisonError};

use weir_engine::Engine;
use weir_engine::watcher::Watcher;
use weir_link::event_descriptor::EventDescriptor;

use crate::errno::Error;

/// The descriptors of the queues and counters of an endpoint at which threads have blocked.
#[derive(Clone, Default)]
pub struct Bells(Arc<Mutex<Vec<Arc<EventDescriptor>>>>);

impl Bells {
    fn add(&self, descriptor: &Arc<EventDescriptor>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.iter().any(|known| Arc::ptr_eq(known, descriptor)) {
            all.push(Arc::clone(descriptor));
        }
    }

    /// Rings all except one.
    fn ring_except(&self, except: Option<&Arc<EventDescriptor>>) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for descriptor in all.iter().filter(|&bell| except.is_none_or(|except| !Arc::ptr_eq(bell, except))) {
            descriptor.ring();
        }
    }
}

/// The watcher of an endpoint, and what it rings.
#[derive(Default)]
pub struct EndpointWaits {
    bells: Bells,
    watcher: Option<Watcher>,
    /// The watcher makes progress.
    automatic: bool,
}

impl EndpointWaits {
    /// The watcher makes progress itself.
    pub fn progress_automatically(&mut self, watcher: Watcher) {
        self.watcher = Some(watcher);
        self.automatic = true;
    }

    /// Takes the watcher, to end it outside of the domain.
    pub fn take_watcher(&mut self) -> Option<Watcher> {
        self.watcher.take()
    }

    /// A thread is about to block at `descriptor`. Returns whether it may: nothing has arrived, and the next arrival makes
    /// it readable.
    ///
    /// # Errors
    /// Those of starting the watcher. The link has no place to sleep: not implemented.
    pub fn begin_sleep(
        &mut self,
        engine: &mut Engine,
        descriptor: &Arc<EventDescriptor>,
    ) -> Result<bool, Error> {
        if !self.automatic {
            self.bells.add(descriptor);
        }
        if self.watcher.is_none() {
            let bells = self.bells.clone();
            let on_wake = move || {
                bells.ring_except(None);
                None
            };
            let watcher = engine.start_watcher("weir-wait", None, on_wake);
            let watcher =
                watcher.map_err(|error| Error::system(error.raw_os_error().unwrap_or(libc::EAGAIN)))?;
            self.watcher = Some(watcher.ok_or(Error::NOT_IMPLEMENTED)?);
        }
        if engine.begin_sleep() {
            return Ok(true);
        }
        // Threads that block already rely on an announced sleep. They must look again too.
        match self.automatic {
            true => engine.wake_watcher(),
            false => self.bells.ring_except(Some(descriptor)),
        }
        Ok(false)
    }
}
