//! An event queue: events of the program, and the ends of joins.
//!
//! It belongs to a fabric, not to a domain, so it has its own lock. A call may take this lock inside a domain, and never
//! enters a domain while it holds it. Joins that have not ended are noted: `fi_trywait` must not let the program block
//! then, because an arriving packet does not ring the queue's descriptor.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::errno::Error;
use crate::ffi::{FiEqEntry, FiEqErrEntry, Out, OutArray, event, flags};
use crate::wait_object::WaitObject;

enum Event {
    /// Of this number, with its data. `fid`: the object, unless the program wrote it.
    Success {
        number: u32,
        data: Box<[u8]>,
        fid: usize,
    },
    Failure(FiEqErrEntry),
}

impl Event {
    fn fid(&self) -> usize {
        match self {
            Event::Success { fid, .. } => *fid,
            Event::Failure(entry) => entry.fid,
        }
    }
}

#[derive(Default)]
struct Events {
    queued: VecDeque<Event>,
    /// The groups whose joins have not ended, by their objects.
    joining: Vec<usize>,
}

/// The queue.
pub struct EventQueue {
    events: Mutex<Events>,
    /// How the program waits for events.
    pub wait: WaitObject,
}

impl EventQueue {
    /// An empty queue.
    pub fn new(wait: WaitObject) -> EventQueue {
        EventQueue { events: Mutex::default(), wait }
    }

    fn lock(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: Event) {
        self.lock().queued.push_back(event);
        if let Some(descriptor) = self.wait.descriptor() {
            descriptor.ring();
        }
    }

    /// The program writes an event.
    pub fn write(&self, number: u32, data: Box<[u8]>) {
        self.push(Event::Success { number, data, fid: 0 });
    }

    /// The group with the object at `fid` is being joined.
    pub fn begin_join(&self, fid: usize) {
        self.lock().joining.push(fid);
    }

    /// All have joined, or the join has failed with a positive error number.
    pub fn end_join(&self, fid: usize, context: usize, error: c_int) {
        {
            let mut events = self.lock();
            let Some(place) = events.joining.iter().position(|joining| *joining == fid) else { return };
            events.joining.swap_remove(place);
        }
        let entry = FiEqEntry { fid, context, data: 0 };
        self.push(match error {
            0 => Event::Success { number: event::JOIN_COMPLETE, data: entry.bytes().into(), fid },
            _ => Event::Failure(FiEqErrEntry {
                fid,
                context,
                data: 0,
                err: error,
                prov_errno: error,
                ..FiEqErrEntry::EMPTY
            }),
        });
    }

    /// The object at `fid` is closed: nobody wants to hear of it.
    pub fn forget(&self, fid: usize) {
        let mut events = self.lock();
        events.joining.retain(|joining| *joining != fid);
        events.queued.retain(|event| event.fid() != fid);
    }

    /// Takes the oldest event, or only looks at it. Returns the length of its data. Without a buffer, the data is dropped.
    ///
    /// # Errors
    /// No event, an error that must be read first, or a buffer that is too short.
    pub fn take(
        &self,
        number: &mut Out<u32>,
        to: &mut OutArray<u8>,
        room: usize,
        call_flags: u64,
    ) -> Result<usize, Error> {
        let mut events = self.lock();
        let (event_number, data) = match events.queued.front() {
            None => return Err(Error::AGAIN),
            Some(Event::Failure(_)) => return Err(Error::ERROR_AVAILABLE),
            Some(Event::Success { number, data, .. }) => (*number, data),
        };
        if to.is_some() && room < data.len() {
            return Err(Error::TOO_SMALL);
        }
        number.set(event_number);
        to.set_bytes(data);
        let bytes = data.len();
        if call_flags & flags::PEEK == 0 {
            events.queued.pop_front();
        }
        Ok(bytes)
    }

    /// Takes the oldest event if it is an error, or only looks at it.
    pub fn take_error(&self, call_flags: u64) -> Option<FiEqErrEntry> {
        let mut events = self.lock();
        let Some(Event::Failure(entry)) = events.queued.front() else { return None };
        let entry = *entry;
        if call_flags & flags::PEEK == 0 {
            events.queued.pop_front();
        }
        Some(entry)
    }

    /// `fi_trywait`: whether the program may block at the descriptor.
    ///
    /// # Errors
    /// The queue has none.
    pub fn try_wait(&self) -> Result<bool, Error> {
        let descriptor = self.wait.descriptor().ok_or(Error::INVALID)?;
        let events = self.lock(); // so that an event after the clearing is written after it
        descriptor.clear();
        Ok(events.queued.is_empty() && events.joining.is_empty())
    }
}
