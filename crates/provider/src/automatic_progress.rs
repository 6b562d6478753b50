//! Automatic progress (`FI_PROGRESS_AUTO`): each endpoint of the domain has a thread, its watcher, that makes progress while
//! the program computes. Only programs that ask for it get it.
//!
//! The thread sleeps until a packet needs it. A program that polls by itself must not wake it with every packet. So when
//! the thread is woken and the program has polled since, it leaves the work to the program, and looks again after
//! `LOOK_INTERVAL_NS`. Once the program has not polled for that time, the thread makes progress again, and announces
//! its sleep to senders. *Price:* a packet that arrives just after the program's last poll waits up to twice that time,
//! and the thread wakes a thousand times a second while a program polls. The domain is shared between threads even if
//! the program promises one, so calls take its lock.

use std::sync::{Arc, Weak};

use crate::errno::Error;
use crate::state::domain_state::{Domain, State};

/// Time between two looks of the thread at a program that polls itself. Unit: ns.
const LOOK_INTERVAL_NS: u64 = 1_000_000;
/// Time until the next look while something is under way that nobody announces, for example a copy. Unit: ns.
const RETRY_NS: u64 = 20_000;
/// Turns in a row, so that other threads can enter the domain.
const MAX_TURNS: usize = 16;

/// Starts the thread of an endpoint that is enabled.
///
/// # Errors
/// The link has no place to sleep: not implemented. Errors of starting a thread.
pub fn start(domain: &Arc<Domain>, index: usize) -> Result<(), Error> {
    let inside = Arc::downgrade(domain);
    let mut state = domain.enter();
    let (Some(engine), waits) = state.endpoints[index].engine_and_waits() else {
        return Err(Error::BAD_STATE);
    };
    let watcher = engine.start_watcher("weir-progress", Some(0), move || make_progress(&inside, index));
    let watcher = watcher.map_err(|error| Error::system(error.raw_os_error().unwrap_or(libc::EAGAIN)))?;
    waits.progress_automatically(watcher.ok_or(Error::NOT_IMPLEMENTED)?);
    Ok(())
}

/// What the thread does when it is woken. Returns the time until it must look again, if it must. Unit: ns.
fn make_progress(domain: &Weak<Domain>, index: usize) -> Option<u64> {
    let domain = domain.upgrade()?;
    let mut state = domain.enter();
    let engine = state.endpoints.get_mut(index)?.engine()?;
    if engine.was_polled() {
        engine.end_sleep();
        return Some(LOOK_INTERVAL_NS);
    }
    engine.set_helper_drives(true);
    let next = drive(&mut state, index);
    state.endpoints[index].engine()?.set_helper_drives(false);
    next
}

/// Makes progress until there is nothing to do. Returns as [`make_progress`].
fn drive(state: &mut State, index: usize) -> Option<u64> {
    for _ in 0..MAX_TURNS {
        if state.progress_endpoint(index) == 0 && state.endpoints[index].engine()?.begin_sleep() {
            return None;
        }
    }
    state.endpoints[index].engine()?.was_polled(); // by this thread
    Some(RETRY_NS)
}
