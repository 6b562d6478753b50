//! Calls of the engine that answer at once, for clients whose engine another thread drives: peers, registered memory,
//! groups and counters. They end in no completion, so each brings its answer back itself.
//!
//! ```text
//! client     let (submission, answer) = Submission::call(move |engine| engine.peer(&address))
//! executor   calls the closure between two submissions
//! client     answer.recv_timeout(..)     reaps completions meanwhile, so that the ring does not fill up
//! ```

use std::fmt::{self, Debug, Formatter};
use std::sync::mpsc::{Receiver, sync_channel};

use weir_link::memory::UserMemory;
use weir_link::{Address, Link};
use weir_proto::offload::group::Membership;
use weir_proto::{Counters, Peer};

use super::Submission;
use crate::{Engine, PostError};

/// The calls, of an engine over any link.
pub trait EngineCalls {
    /// [`Engine::peer`].
    fn peer(&mut self, address: &Address) -> Peer;

    /// [`Engine::register_memory`].
    fn register_memory(&mut self, key: u64, memory: UserMemory, readable: bool, writable: bool);

    /// [`Engine::deregister_memory`].
    fn deregister_memory(&mut self, key: u64);

    /// [`Engine::join_group`].
    ///
    /// # Errors
    /// [`PostError::Again`].
    ///
    /// # Panics
    /// If the rank is not that of a member.
    fn join_group(&mut self, membership: Membership) -> Result<(), PostError>;

    /// [`Engine::leave_group`].
    fn leave_group(&mut self, group: u32);

    /// [`Engine::counters`].
    fn counters(&self) -> Counters;
}

impl<L: Link> EngineCalls for Engine<L> {
    fn peer(&mut self, address: &Address) -> Peer {
        Engine::peer(self, address)
    }

    fn register_memory(&mut self, key: u64, memory: UserMemory, readable: bool, writable: bool) {
        Engine::register_memory(self, key, memory, readable, writable);
    }

    fn deregister_memory(&mut self, key: u64) {
        Engine::deregister_memory(self, key);
    }

    fn join_group(&mut self, membership: Membership) -> Result<(), PostError> {
        Engine::join_group(self, membership)
    }

    fn leave_group(&mut self, group: u32) {
        Engine::leave_group(self, group);
    }

    fn counters(&self) -> Counters {
        Engine::counters(self)
    }
}

type Closure = Box<dyn FnOnce(&mut dyn EngineCalls) + Send>;

/// A call that waits for the executor.
pub struct Call(Option<Closure>);

impl Call {
    /// Makes the call, once.
    pub(super) fn make(&mut self, engine: &mut dyn EngineCalls) {
        if let Some(call) = self.0.take() {
            call(engine);
        }
    }
}

impl Debug for Call {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Call").finish_non_exhaustive()
    }
}

impl Submission {
    /// A submission that has the executor make `call`, and the channel on which the answer comes. If the executor ends
    /// before, the channel is closed. The executor ends if `call` panics.
    pub fn call<R: Send + 'static>(
        call: impl FnOnce(&mut dyn EngineCalls) -> R + Send + 'static,
    ) -> (Submission, Receiver<R>) {
        let (answer, answers) = sync_channel(1);
        let call = move |engine: &mut dyn EngineCalls| {
            let _ = answer.send(call(engine)); // an error: nobody wants the answer any more
        };
        (Submission::Call(Call(Some(Box::new(call)))), answers)
    }
}
