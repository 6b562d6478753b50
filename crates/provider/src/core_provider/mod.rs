//! Core providers as networks of weir's own endpoints (`FI_WEIR_LINK=ofi:NAME`): this plug-in as a program of the libfabric
//! that has loaded it.
//!
//! ```text
//! open("tcp", None)    fi_getinfo(prov_name tcp)    one of the answers    fabric, domain, queue, endpoint, receives
//! ```
//! - `objects` has the core's objects, as the other side of their tables, and closes them.
//! - `library` calls the core's functions, and is silent while the core asks weir itself.
//! - `discovery` finds the provider, and chooses among its networks.
//! - `endpoint` is the endpoint ([`weir_link::ofi::CoreEndpoint`]). `memory` registers memory, and reads and writes that of
//!   peers ([`weir_link::ofi::CoreMemory`]); `registrations` is what it keeps. `large` sends and receives large messages
//!   ([`weir_link::ofi::CoreLarge`]); `large_messages` is their memory.

mod discovery;
mod endpoint;
mod large;
mod large_messages;
mod library;
mod memory;
pub mod objects;
mod registrations;

use weir_link::ofi::{CoreAccess, CoreEndpoint, CoreError};

pub use library::is_looking;

/// Opens an endpoint of the core provider `provider`. `net`: the network, as `FI_WEIR_NET` names it. With `access`, if the provider
/// has it.
///
/// # Errors
/// [`CoreError`].
pub fn open(
    provider: &str,
    net: Option<&str>,
    access: CoreAccess,
) -> Result<Box<dyn CoreEndpoint>, CoreError> {
    let found = discovery::find(provider, net, access)?;
    Ok(Box::new(endpoint::OpenEndpoint::open(provider, &found)?))
}
