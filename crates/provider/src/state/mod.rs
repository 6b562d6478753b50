//! The state of a domain: what one lock guards. The objects that C holds have a domain and a number, and find their part
//! here. No file here knows those objects.

pub mod address_vector;
pub mod claims;
pub mod completion;
pub mod completion_queue;
pub mod counter;
pub mod cq_writer;
pub mod domain_state;
pub mod endpoint;
pub mod entry;
pub mod entry_queue;
pub mod table;
