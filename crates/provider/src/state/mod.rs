//! The state of a libfabric domain: endpoints, queues, counters, address vectors and memory regions, behind one lock.
//! An object that a C program holds has the domain and an index into its tables. The files here do not use those
//! objects.

pub mod address_vector;
pub mod arming;
pub mod claims;
pub mod completion;
pub mod completion_queue;
pub mod counter;
pub mod cq_writer;
pub mod domain_state;
pub mod endpoint;
pub mod entry;
pub mod entry_queue;
pub mod event_queue;
pub mod sources;
pub mod table;
pub mod taken_receives;
pub mod waits;
