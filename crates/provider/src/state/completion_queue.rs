//! The part of a completion queue that belongs to the domain: its entries, the endpoints that write them, and whether
//! the program has signalled it. `cq.rs` of the crate has the calls.

use std::sync::Arc;

use weir_link::event_descriptor::EventDescriptor;

use super::entry_queue::EntryQueue;

/// The domain's part of a queue.
#[derive(Default)]
pub struct CompletionQueue {
    /// Oldest first.
    pub entries: EntryQueue,
    /// The endpoints that write entries here.
    pub endpoints: Vec<usize>,
    /// `fi_cq_signal` was called: the next blocking read returns.
    pub signalled: bool,
    /// Threads block here, see `arming.rs`.
    pub descriptor: Option<Arc<EventDescriptor>>,
    /// Poll sets that it is in.
    pub poll_sets: u32,
}
