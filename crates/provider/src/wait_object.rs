//! Wait objects of completion queues, counters and event queues: the checks when one is opened, and the commands that
//! return its descriptor.
//!
//! A descriptor is readable after a change of its object, and also if a packet has arrived for one of the object's
//! endpoints and nobody has looked at it. So a program that finds it readable reads the object, which makes progress,
//! and may find nothing. `fi_trywait` makes it unreadable ([`crate::try_wait`]). `state/arming.rs` has the mechanism.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use weir_link::event_descriptor::EventDescriptor;

use crate::errno::Error;
use crate::ffi::*;

/// The wait object of an object that the program opens.
#[derive(Clone, Debug)]
pub struct WaitObject {
    kind: c_int,
    descriptor: Option<Arc<EventDescriptor>>,
}

impl WaitObject {
    /// Checks the kind, and opens the descriptor that it may need.
    ///
    /// # Errors
    /// Wait sets, conditions and lists of descriptors: not implemented. Errors of eventfd.
    pub fn open(kind: c_int) -> Result<WaitObject, Error> {
        let descriptor = match kind {
            wait_obj::NONE | wait_obj::UNSPEC | wait_obj::YIELD => None,
            wait_obj::FD => Some(Arc::new(open_descriptor()?)),
            _ => return Err(Error::NOT_IMPLEMENTED),
        };
        Ok(WaitObject { kind, descriptor })
    }

    /// The descriptor, if the program asked for one.
    pub fn descriptor(&self) -> Option<&Arc<EventDescriptor>> {
        self.descriptor.as_ref()
    }

    /// `fi_control` of the object.
    ///
    /// # Errors
    /// Other commands, and `FI_GETWAIT` without descriptor: not implemented.
    pub fn control(&self, command: c_int, argument: *mut c_void) -> Result<(), Error> {
        let value = match (command, &self.descriptor) {
            (control::GETWAIT, Some(descriptor)) => descriptor.number(),
            (control::GETWAITOBJ, _) => self.kind,
            _ => return Err(Error::NOT_IMPLEMENTED),
        };
        let mut to = answer::<c_int>(argument); // an int for a descriptor, and an enum
        if !to.is_some() {
            return Err(Error::INVALID);
        }
        to.set(value);
        Ok(())
    }
}

/// A descriptor for an object.
///
/// # Errors
/// Those of eventfd.
pub fn open_descriptor() -> Result<EventDescriptor, Error> {
    EventDescriptor::open().map_err(|error| Error::system(error.raw_os_error().unwrap_or(libc::EIO)))
}
