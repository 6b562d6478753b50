//! The part of a counter that belongs to the domain: its values, and the endpoints that count. `counter.rs` of the
//! crate has the calls.

use std::sync::Arc;

use weir_link::event_descriptor::EventDescriptor;

/// The domain's part of a counter.
#[derive(Default)]
pub struct Counter {
    /// Operations that succeeded.
    pub value: u64,
    /// Operations that failed.
    pub errors: u64,
    /// The endpoints that count here.
    pub endpoints: Vec<usize>,
    /// The value that the last read returned.
    pub last_read: u64,
    /// It has changed since the program read it last.
    pub has_changed: bool,
    /// A change makes the descriptor readable.
    pub is_armed: bool,
    /// Threads block here, see `arming.rs`.
    pub descriptor: Option<Arc<EventDescriptor>>,
    /// Poll sets that it is in.
    pub poll_sets: u32,
}

impl Counter {
    /// Call this after each change.
    #[inline]
    pub fn changed(&mut self) {
        self.has_changed = true;
        if self.is_armed {
            self.ring();
        }
    }

    #[cold]
    fn ring(&mut self) {
        self.is_armed = false;
        if let Some(descriptor) = &self.descriptor {
            descriptor.ring();
        }
    }
}
