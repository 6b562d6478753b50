//! The engine: drives one endpoint machine over one link in real time.
#![forbid(unsafe_code)]

pub mod config;
pub mod stats;

use config::Settings;
use weir_link::memory::UserMemory;
use weir_link::{Address, Link};
use weir_proto::{Counters, MessageId, Outcome, Pattern, PeekThen, Peer, SendLevel, Space};

/// What the program gave with an operation, to be handed back with its completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Post {
    /// The program's context pointer.
    pub context: usize,
    /// The caller's own note (the provider keeps its flags here).
    pub cookie: u64,
}

/// What kind of operation has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Two-sided send.
    Send,
    /// Posted or claimed receive.
    Receive,
    /// Multi-receive buffer.
    MultiReceive,
    /// Peek, or discard of a claimed message.
    Peek,
    /// Remote read.
    Read,
    /// Remote write.
    Write,
    /// A peer wrote to our memory with completion data; `post` is meaningless.
    RemoteWrite {
        /// Completion data.
        data: u64,
        /// Bytes written.
        bytes: u64,
    },
}

/// The end of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// What the program gave.
    pub post: Post,
    /// What it was.
    pub operation: Operation,
    /// Tagged or untagged (sends, receives, peeks).
    pub space: Space,
    /// How it ended.
    pub outcome: Outcome,
    /// Address of the received data (receives into a contiguous buffer), else 0.
    pub buffer: usize,
}

/// A message to send.
#[derive(Debug)]
pub struct SendArguments {
    /// Where to.
    pub to: Peer,
    /// Tagged or untagged.
    pub space: Space,
    /// Tag.
    pub tag: u64,
    /// Remote completion data.
    pub data: Option<u64>,
    /// When it completes.
    pub level: SendLevel,
    /// The payload.
    pub memory: UserMemory,
    /// The buffer is the program's again on return: what cannot leave at once is copied.
    pub inject: bool,
}

/// A remote read or write.
#[derive(Debug)]
pub struct RemoteArguments {
    /// Whose memory.
    pub peer: Peer,
    /// Key of the region there.
    pub key: u64,
    /// Offset in the region. Unit: bytes.
    pub offset: u64,
    /// Our memory.
    pub memory: UserMemory,
    /// Writes: completion data for the target.
    pub data: Option<u64>,
    /// Writes: the buffer is the program's again on return.
    pub inject: bool,
}

/// Why an operation was not taken. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// As many operations as allowed are outstanding; progress makes room.
    #[error("{limit} operations are outstanding, which is the limit")]
    Again {
        /// The limit.
        limit: u32,
    },
}

/// Why an endpoint could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A setting does not fit the number of peers.
    #[error("{variable}={value}: {allowed}")]
    Setting {
        /// Variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
}

/// One endpoint at work. Not thread-safe by itself: its owner is, see [`weir_link`]'s `owner`.
pub struct Engine {
    link: Box<dyn Link>,
}

#[allow(unused_variables)]
impl Engine {
    /// Makes an endpoint with its mailbox in shared memory.
    ///
    /// - `peers`: how many endpoints the job has, as far as is known (0: not known). More may come.
    /// - `several_threads`: sleeps inside [`Engine::progress`] are kept to 50 us.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is left behind.
    pub fn open(settings: &Settings, peers: u32, several_threads: bool) -> Result<Engine, OpenError> {
        todo!()
    }

    /// Our address.
    pub fn address(&self) -> Address {
        self.link.address()
    }

    /// The number of the peer at `address`; the same address gives the same peer. Does not connect.
    pub fn peer(&mut self, address: &Address) -> Peer {
        todo!()
    }

    /// The address of a peer.
    pub fn address_of(&self, peer: Peer) -> Address {
        todo!()
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`PostError::Again`].
    pub fn send(&mut self, post: Post, arguments: SendArguments) -> Result<(), PostError> {
        todo!()
    }

    /// Posts a receive. `multi`: `Some(min_free_bytes)` makes it a multi-receive buffer.
    ///
    /// # Errors
    /// [`PostError::Again`].
    pub fn receive(
        &mut self,
        post: Post,
        pattern: Pattern,
        memory: UserMemory,
        multi: Option<u64>,
    ) -> Result<(), PostError> {
        todo!()
    }

    /// Looks for an unexpected message (after making progress); always ends in one completion, `Found` or `Absent`.
    ///
    /// # Errors
    /// [`PostError::Again`].
    pub fn peek(&mut self, post: Post, pattern: Pattern, then: PeekThen) -> Result<(), PostError> {
        todo!()
    }

    /// Receives a message that a peek has claimed.
    ///
    /// # Errors
    /// [`PostError::Again`].
    pub fn receive_claimed(
        &mut self,
        post: Post,
        message: MessageId,
        memory: UserMemory,
    ) -> Result<(), PostError> {
        todo!()
    }

    /// Throws away a message that a peek has claimed; ends in one completion, `Found`.
    ///
    /// # Errors
    /// [`PostError::Again`].
    pub fn discard_claimed(&mut self, post: Post, message: MessageId) -> Result<(), PostError> {
        todo!()
    }

    /// Takes back the most recent posted receive (or multi-receive) whose context is `context`. Returns whether there
    /// was one; it then ends in exactly one completion, `Canceled` or its normal one.
    pub fn cancel(&mut self, context: usize) -> bool {
        todo!()
    }

    /// Reads remote memory.
    ///
    /// # Errors
    /// [`PostError::Again`].
    pub fn read(&mut self, post: Post, arguments: RemoteArguments) -> Result<(), PostError> {
        todo!()
    }

    /// Writes remote memory; completes when the data is in place there.
    ///
    /// # Errors
    /// [`PostError::Again`].
    pub fn write(&mut self, post: Post, arguments: RemoteArguments) -> Result<(), PostError> {
        todo!()
    }

    /// Exposes memory under `key`, which must be free. Peers address it by offset from its start.
    pub fn expose(&mut self, key: u64, memory: UserMemory, readable: bool, writable: bool) {
        todo!()
    }

    /// Ends the exposure of `key`.
    pub fn conceal(&mut self, key: u64) {
        todo!()
    }

    /// Handles what has arrived. Returns how many things happened. Never sleeps.
    pub fn progress(&mut self) -> usize {
        todo!()
    }

    /// Called when a read of the program found nothing, after [`Engine::progress`] returned 0: spins, yields or sleeps a
    /// little, depending on how often that has happened in a row and on how the ranks share the cores. Bounded.
    pub fn pause(&mut self) {
        todo!()
    }

    /// Sleeps until something arrives, at most `at_most_ns`; for blocking reads.
    pub fn wait(&mut self, at_most_ns: u64) {
        self.link.sleep(at_most_ns);
    }

    /// Takes the next completion, in order.
    pub fn next_completion(&mut self) -> Option<Completion> {
        todo!()
    }

    /// What has been counted.
    pub fn counters(&self) -> Counters {
        todo!()
    }

    /// Sends out what is queued, waits (bounded) until peers have taken what only we hold, closes the mailbox.
    /// Posted receives are forgotten.
    pub fn close(&mut self) {
        todo!()
    }
}
