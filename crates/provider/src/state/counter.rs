//! The part of a counter that belongs to the domain: its values, and the endpoints that count. `counter.rs` of the
//! crate has the calls.

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
}
