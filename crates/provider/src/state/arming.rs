//! Blocking at a descriptor: how a thread waits for a queue or counter without holding the domain.
//!
//! The thread arms the object, leaves the domain, and blocks on the object's descriptor. Two events make it readable:
//! - another thread makes progress, or posts, and an entry is written or an operation counted. An armed queue has no
//!   places for entries, so its first entry takes the path that makes places, and finds there that it is armed. A
//!   queue that is not armed costs nothing.
//! - a packet arrives at an endpoint of the object. The endpoint's watcher ([`weir_engine::watcher`]) is woken. With
//!   manual progress it makes the descriptors readable, and does not enter the domain. With automatic progress it makes
//!   progress, which writes entries.
//!
//! ```text
//! program    fi_trywait: clears the descriptor, progress: nothing, arms, begin_sleep: true     poll(2)
//! watcher    woken by a packet: rings the descriptor
//! program    fi_cq_read: progress, returns the entry
//! ```
//! The watcher starts when the first thread blocks. With automatic progress it starts with the endpoint.

use std::sync::Arc;

use weir_link::biased_lock::Guard;
use weir_link::event_descriptor::EventDescriptor;

use super::domain_state::{Domain, ProgressTarget, State};
use crate::errno::Error;
use crate::wait_object::open_descriptor;

/// Longest time that a thread blocks at a descriptor before it looks again. Unit: ns.
const LONGEST_BLOCK_NS: u64 = 1_000_000_000;

impl Domain {
    /// Blocks until something may have happened to `target`, at most `at_most_ns`. May return early. `state`: the domain,
    /// in which the caller has found nothing. It is left at the end.
    ///
    /// # Errors
    /// Those of [`State::arm`].
    pub fn block(
        &self,
        mut state: Guard<'_, State>,
        target: ProgressTarget,
        at_most_ns: u64,
    ) -> Result<(), Error> {
        if !state.blocks_at_descriptor(target) {
            state.wait(target, at_most_ns.min(self.longest_wait_ns()));
            drop(state);
            std::thread::yield_now(); // let other threads enter the domain
            return Ok(());
        }
        let armed = state.arm(target)?;
        drop(state);
        match armed {
            Some(descriptor) => descriptor.wait(at_most_ns.min(LONGEST_BLOCK_NS)),
            None => std::thread::yield_now(),
        }
        Ok(())
    }
}

impl State {
    /// Whether blocking calls on this object block at a descriptor. Otherwise they sleep in the engine.
    pub fn blocks_at_descriptor(&mut self, target: ProgressTarget) -> bool {
        self.descriptor(target).is_some() || self.any_is_watched(target)
    }

    fn any_is_watched(&mut self, target: ProgressTarget) -> bool {
        let State { endpoints, queues, counters, .. } = self;
        let bound = match target {
            ProgressTarget::Queue(index) => &queues[index].endpoints,
            ProgressTarget::Counter(index) => &counters[index].endpoints,
        };
        bound.iter().any(|&index| endpoints[index].engine().is_some_and(|engine| engine.is_watched()))
    }

    fn descriptor(&mut self, target: ProgressTarget) -> &mut Option<Arc<EventDescriptor>> {
        match target {
            ProgressTarget::Queue(index) => &mut self.queues[index].descriptor,
            ProgressTarget::Counter(index) => &mut self.counters[index].descriptor,
        }
    }

    /// Arms an object, so that the caller may leave the domain and block at the descriptor that this returns. Opens the
    /// descriptor if there is none. `None`: there is something to read or to do.
    ///
    /// # Errors
    /// Those of opening a descriptor and of starting a thread.
    pub fn arm(&mut self, target: ProgressTarget) -> Result<Option<Arc<EventDescriptor>>, Error> {
        let descriptor = match self.descriptor(target) {
            Some(descriptor) => Arc::clone(descriptor),
            none => Arc::clone(none.insert(Arc::new(open_descriptor()?))),
        };
        descriptor.clear();
        self.progress(target);
        match target {
            ProgressTarget::Queue(index) => {
                let queue = &mut self.queues[index];
                if queue.signalled || !queue.entries.arm(&descriptor) {
                    return Ok(None);
                }
            }
            ProgressTarget::Counter(index) => {
                let counter = &mut self.counters[index];
                counter.is_armed = true;
                if counter.has_changed {
                    return Ok(None);
                }
            }
        }
        let State { endpoints, queues, counters, .. } = self;
        let bound = match target {
            ProgressTarget::Queue(index) => &queues[index].endpoints,
            ProgressTarget::Counter(index) => &counters[index].endpoints,
        };
        for &index in bound {
            if !endpoints[index].taken.is_empty() {
                return Ok(None); // other members ring no descriptor
            }
            if let (Some(engine), waits) = endpoints[index].engine_and_waits()
                && !waits.begin_sleep(engine, &descriptor)?
            {
                return Ok(None);
            }
        }
        Ok(Some(descriptor))
    }
}
