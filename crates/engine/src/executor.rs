//! Executors: they drive an engine for a client that only submits and reaps, usually in a thread of their own.
//!
//! [`pair`] splits an engine into a [`Client`] and an [`Executor`], with a bounded ring for submissions and one for
//! completions. The caller of [`Executor::turn`] runs the machines: a helper thread that calls [`Executor::run`], or
//! the application itself. With a helper thread, the endpoint answers remote accesses and atomics while the
//! application computes. The client gets completions in order. If the engine has no room yet, the submission stays
//! first and is tried again.
//!
//! ```text
//! client     push the submission, ring the bell of the link
//! executor   poll the link, look at the ring, sleep
//! ```
//! A poll can take the bell before the sleep. So the executor looks at the ring once more after the poll. The client
//! pushes before it rings, so that look finds the submission.
//!
//! The rings are channels of the standard library, so a client can block until a completion comes. They are inside one
//! process: an executor of another process needs a ring in shared memory that survives the death of either side.

mod call;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::Duration;

use weir_link::memory::UserMemory;
use weir_link::{Bell, Link};
use weir_proto::{MessageId, Pattern, PeekThen};

use crate::{
    AtomicArguments, Completion, Engine, Post, PostError, ReduceArguments, RemoteArguments, SendArguments,
};

pub use call::{Call, EngineCalls};

/// Most submissions that one turn takes, so that arrivals do not wait for a flood of them.
const BATCH: usize = 64;
/// Longest sleep while a submission is refused, or while completions wait for room in the ring. No bell reports the end of
/// either. Unit: ns.
const RETRY_NS: u64 = 100_000;
/// Longest sleep of [`Executor::run`]. It ends sleeps that no bell can end, for example to check peers. Unit: ns.
const LONGEST_SLEEP_NS: u64 = 100_000_000;

/// An operation that a client submits. Each ends in one completion, except [`Submission::Cancel`], [`Submission::Call`] and
/// multi-receives.
#[derive(Debug)]
pub enum Submission {
    /// [`Engine::send`].
    Send(Post, SendArguments),
    /// [`Engine::receive`].
    Receive {
        /// The program's values.
        post: Post,
        /// The messages that it accepts.
        pattern: Pattern,
        /// The buffer.
        memory: UserMemory,
        /// See [`Engine::receive`].
        multi: Option<u64>,
    },
    /// [`Engine::peek`].
    Peek {
        /// The program's values.
        post: Post,
        /// The messages that it looks for.
        pattern: Pattern,
        /// What happens to the message.
        then: PeekThen,
    },
    /// [`Engine::receive_claimed`].
    ReceiveClaimed {
        /// The program's values.
        post: Post,
        /// The message.
        message: MessageId,
        /// The buffer.
        memory: UserMemory,
    },
    /// [`Engine::discard_claimed`].
    DiscardClaimed {
        /// The program's values.
        post: Post,
        /// The message.
        message: MessageId,
    },
    /// [`Engine::read`].
    Read(Post, RemoteArguments),
    /// [`Engine::write`].
    Write(Post, RemoteArguments),
    /// [`Engine::atomic`].
    Atomic(Post, AtomicArguments),
    /// [`Engine::reduce`]. The executor's engine has joined the group before ([`Executor::engine`]).
    Reduce(Post, ReduceArguments),
    /// [`Engine::cancel`].
    Cancel {
        /// The context of the receive.
        context: usize,
    },
    /// A call that answers at once, from [`Submission::call`].
    Call(Call),
}

/// The reason why a submission was not taken. It is returned.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The ring is full.
    #[error("{capacity} submissions wait, which is the capacity of the ring; reap completions and try again")]
    Full {
        /// The capacity.
        capacity: usize,
        /// The submission.
        submission: Submission,
    },
    /// The executor has ended.
    #[error("the executor has ended, so nothing drives the endpoint")]
    Ended {
        /// The submission.
        submission: Submission,
    },
}

/// The executor has ended, and no completion is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the executor has ended, so no further operation completes")]
pub struct ExecutorEnded;

/// The end of the rings that submits and reaps. One thread at a time uses it.
pub struct Client {
    /// `None` while it is dropped.
    submissions: Option<SyncSender<Submission>>,
    completions: Receiver<Completion>,
    bell: Option<Arc<dyn Bell>>,
    gone: Arc<AtomicBool>,
    capacity: usize,
}

/// The end of the rings that drives the engine. It can move between threads.
pub struct Executor<L: Link> {
    engine: Engine<L>,
    submissions: Receiver<Submission>,
    completions: SyncSender<Completion>,
    /// A submission that the engine has refused for now, or that was found before a sleep.
    head: Option<Submission>,
    /// A completion that does not fit into the ring.
    waiting: Option<Completion>,
    /// The client is dropped. The ring shows it too, but only once it is empty.
    gone: Arc<AtomicBool>,
    client_is_gone: bool,
}

/// Splits `engine` into two ends. Each ring holds `capacity` entries, at least 1.
pub fn pair<L: Link>(mut engine: Engine<L>, capacity: usize) -> (Client, Executor<L>) {
    let capacity = capacity.max(1);
    let bell = engine.io.link.wake_up().map(|wake_up| wake_up.bell());
    let (submit, submissions) = sync_channel(capacity);
    let (complete, completions) = sync_channel(capacity);
    let gone = Arc::new(AtomicBool::new(false));
    let client = Client { submissions: Some(submit), completions, bell, gone: gone.clone(), capacity };
    let (head, waiting, client_is_gone) = (None, None, false);
    (client, Executor { engine, submissions, completions: complete, head, waiting, gone, client_is_gone })
}

impl Client {
    /// Submits an operation, and wakes the executor. Never blocks.
    ///
    /// # Errors
    /// [`SubmitError`]; the executor does not get the operation then.
    ///
    /// # Panics
    /// If the buffer of an atomic is shorter than its word.
    pub fn submit(&mut self, submission: Submission) -> Result<(), SubmitError> {
        if let Submission::Atomic(_, arguments) = &submission {
            arguments.check(); // here, and not in the thread of the executor
        }
        let Client { submissions, capacity, .. } = self;
        let submissions = submissions.as_ref().expect("it is not dropped");
        submissions.try_send(submission).map_err(|error| match error {
            TrySendError::Full(submission) => SubmitError::Full { capacity: *capacity, submission },
            TrySendError::Disconnected(submission) => SubmitError::Ended { submission },
        })?;
        self.ring();
        Ok(())
    }

    /// Takes the next completion, in order, if there is one.
    pub fn reap(&mut self) -> Option<Completion> {
        self.completions.try_recv().ok()
    }

    /// Takes the next completion, in order. Blocks at most `at_most`.
    ///
    /// # Errors
    /// [`ExecutorEnded`].
    pub fn wait(&mut self, at_most: Duration) -> Result<Option<Completion>, ExecutorEnded> {
        match self.completions.recv_timeout(at_most) {
            Ok(completion) => Ok(Some(completion)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(ExecutorEnded),
        }
    }

    fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }
}

impl Drop for Client {
    /// The executor finds that the client is gone.
    fn drop(&mut self) {
        self.submissions = None; // before the bell, as for a submission
        self.gone.store(true, Ordering::Release);
        self.ring();
    }
}

impl<L: Link> Executor<L> {
    /// Takes submissions, handles what has arrived, and reports completions. Returns how much it has done. Never sleeps.
    pub fn turn(&mut self) -> usize {
        let submitted = self.take_submissions();
        let handled = self.engine.progress();
        submitted + handled + self.report()
    }

    /// Sleeps until something arrives or is submitted, at most `at_most_ns`. Call it after a turn that did nothing.
    pub fn wait(&mut self, at_most_ns: u64) {
        if self.head.is_some() || self.waiting.is_some() {
            return self.engine.wait(at_most_ns.min(RETRY_NS));
        }
        // The link was polled in the turn. A bell that this poll has taken was for a submission that is in the ring now.
        self.head = self.next_submission();
        if self.head.is_none() && !self.client_is_gone {
            self.engine.wait(at_most_ns);
        }
    }

    /// Drives the engine until the client is dropped. Returns the engine, for closing. Operations that have not completed
    /// still use their buffers. Submissions that the engine has not taken by then are dropped.
    pub fn run(mut self) -> Engine<L> {
        while !self.client_is_gone {
            if self.turn() == 0 {
                self.wait(LONGEST_SLEEP_NS);
            }
        }
        self.engine
    }

    /// Whether the client was dropped, and the engine has taken or refused all that it had submitted.
    pub fn client_is_gone(&self) -> bool {
        self.client_is_gone
    }

    /// The engine, for calls that have no submission.
    pub fn engine(&mut self) -> &mut Engine<L> {
        &mut self.engine
    }

    fn next_submission(&mut self) -> Option<Submission> {
        match self.submissions.try_recv() {
            Ok(submission) => Some(submission),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                self.client_is_gone = true;
                None
            }
        }
    }

    fn take_submissions(&mut self) -> usize {
        // A client that does not reap gets no more completions than the ring holds.
        if self.waiting.is_some() {
            return 0;
        }
        for taken in 0..BATCH {
            let Some(mut submission) = self.head.take().or_else(|| self.next_submission()) else {
                return taken;
            };
            if self.post(&mut submission).is_err() {
                // Progress makes room. But nobody waits for that if the client is gone.
                self.head = Some(submission);
                self.client_is_gone = self.gone.load(Ordering::Acquire);
                return taken;
            }
        }
        BATCH
    }

    /// Posts a submission. If it is refused, its buffer stays in it.
    fn post(&mut self, submission: &mut Submission) -> Result<(), PostError> {
        match submission {
            Submission::Send(post, arguments) => self.engine.post_send(*post, arguments),
            Submission::Receive { post, pattern, memory, multi } => {
                self.engine.post_receive(*post, *pattern, memory, *multi)
            }
            Submission::Peek { post, pattern, then } => self.engine.peek(*post, *pattern, *then),
            Submission::ReceiveClaimed { post, message, memory } => {
                self.engine.post_receive_claimed(*post, *message, memory)
            }
            Submission::DiscardClaimed { post, message } => self.engine.discard_claimed(*post, *message),
            Submission::Read(post, arguments) => self.engine.post_read(*post, arguments),
            Submission::Write(post, arguments) => self.engine.post_write(*post, arguments),
            Submission::Atomic(post, arguments) => self.engine.post_atomic(*post, arguments),
            Submission::Reduce(post, arguments) => self.engine.post_reduce(*post, arguments),
            Submission::Cancel { context } => {
                self.engine.cancel(*context);
                Ok(())
            }
            Submission::Call(call) => {
                call.make(&mut self.engine);
                Ok(())
            }
        }
    }

    /// Moves completions to the ring. Returns how many.
    fn report(&mut self) -> usize {
        let mut reported = 0;
        while let Some(completion) = self.waiting.take().or_else(|| self.engine.next_completion()) {
            match self.completions.try_send(completion) {
                Ok(()) => reported += 1,
                Err(TrySendError::Full(completion)) => {
                    self.waiting = Some(completion);
                    break;
                }
                Err(TrySendError::Disconnected(_)) => {} // nobody wants it
            }
        }
        reported
    }
}
