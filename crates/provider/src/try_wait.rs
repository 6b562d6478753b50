//! `fi_trywait`: after it a program may block at the descriptors of queues, counters and event queues.

use std::ffi::c_int;

use crate::counter::CounterHandle;
use crate::cq::QueueHandle;
use crate::eq::EventQueueHandle;
use crate::errno::Error;
use crate::ffi::*;

/// `fi_trywait` for these objects.
///
/// # Errors
/// [`Error::AGAIN`]: an object has something to read or to do, so the program must not block. Objects without descriptor:
/// invalid. Errors of starting the thread that rings.
pub fn try_wait(objects: &InArray<AnyObject>, count: c_int) -> Result<(), Error> {
    for index in 0..usize::try_from(count).map_err(|_| Error::INVALID)? {
        let object = objects.at(index).ok_or(Error::INVALID)?;
        let may_block = if let Some(queue) = object.of::<QueueHandle>() {
            queue.try_wait()?
        } else if let Some(counter) = object.of::<CounterHandle>() {
            counter.try_wait()?
        } else if let Some(events) = object.of::<EventQueueHandle>() {
            events.try_wait()?
        } else {
            return Err(Error::INVALID);
        };
        if !may_block {
            return Err(Error::AGAIN);
        }
    }
    Ok(())
}
