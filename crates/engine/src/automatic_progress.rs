//! Automatic progress: what the watcher of an endpoint does when it is woken while the program computes. The provider
//! (`FI_PROGRESS_AUTO`) and the native interface use it.
//!
//! The watcher sleeps until a packet needs it. A program that polls by itself must not wake it with every packet. So when
//! it is woken and the program has polled since, it leaves the work to the program, and looks again after
//! [`LOOK_INTERVAL_NS`]. Once the program has not polled for that time, the watcher makes progress again, and announces
//! its sleep to senders. *Price:* a packet that arrives just after the program's last poll waits up to twice that time,
//! and the watcher wakes a thousand times a second while a program polls.
//!
//! ```text
//! program    posts, and computes
//! sender     transmit: wakes the watcher
//! watcher    enters the owner's lock, make_progress: progress, progress: 0, begin_sleep: true; sleeps
//! ```
//! This file does not know the lock of the endpoint's owner, which the caller holds, nor what completions become.

use crate::Engine;

/// Time between two looks of the watcher at a program that polls itself. Unit: ns.
pub const LOOK_INTERVAL_NS: u64 = 1_000_000;
/// Time until the next look while something is under way that nobody announces, for example a copy. Unit: ns.
const RETRY_NS: u64 = 20_000;
/// Turns in a row, so that other threads can enter the lock.
const MAX_TURNS: usize = 16;

/// Whoever has an engine, and takes its completions.
pub trait EngineOwner {
    /// The engine. `None`: it is closed.
    fn engine(&mut self) -> Option<&mut Engine>;

    /// Makes progress, and takes all completions. Returns the number of events.
    fn progress(&mut self) -> usize;
}

/// What the watcher does when it is woken. Returns the time until it must look again, if it must, as
/// [`Engine::start_watcher`] wants it. Unit: ns.
pub fn make_progress(owner: &mut impl EngineOwner) -> Option<u64> {
    let engine = owner.engine()?;
    if engine.was_polled() {
        engine.end_sleep();
        return Some(LOOK_INTERVAL_NS);
    }
    engine.set_helper_drives(true);
    let next = drive(owner);
    owner.engine()?.set_helper_drives(false);
    next
}

/// Makes progress until there is nothing to do. Returns as [`make_progress`].
fn drive(owner: &mut impl EngineOwner) -> Option<u64> {
    for _ in 0..MAX_TURNS {
        if owner.progress() == 0 && owner.engine()?.begin_sleep() {
            return None;
        }
    }
    owner.engine()?.was_polled(); // by this thread
    Some(RETRY_NS)
}
