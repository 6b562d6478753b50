//! Values that pass between a caller and the engine: arguments of operations, refusals, completions, and the sink
//! that takes completions as they happen.

use weir_link::memory::UserMemory;
use weir_proto::{Outcome, Peer, SendLevel, Space};

/// The program's values for an operation, which its completion returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Post {
    /// The program's context pointer.
    pub context: usize,
    /// A value of the caller (the provider stores its flags here).
    pub cookie: u64,
}

/// The kind of a completed operation.
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
    /// Change of words of a peer's memory, which fetches the old ones.
    Atomic,
    /// Change of words of a peer's memory, which fetches nothing.
    AtomicWrite,
    /// Our part of an operation of a group.
    Collective,
    /// All members of a group have joined it, or one is lost.
    Join,
    /// A peer wrote to our memory with completion data. `post` has no meaning; the outcome says what was received.
    RemoteWrite,
}

/// The end of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The program's values.
    pub post: Post,
    /// The kind of operation.
    pub operation: Operation,
    /// Tagged or untagged (sends, receives, peeks).
    pub space: Space,
    /// Its outcome.
    pub outcome: Outcome,
    /// Address of the received data (receives into a contiguous buffer), else 0.
    pub buffer: usize,
}

/// Receives completions as they happen and stores them in a form of its own, so that each is written once.
pub trait CompletionSink {
    /// Takes a completion, in order. `false`: rejected. [`crate::Engine::next_completion`] returns a rejected
    /// completion, and the engine does not call the sink again while one waits there.
    fn accept(&mut self, completion: &Completion) -> bool;

    /// Whether the program has unread completions of receives. It then posts further receives soon, so the engine
    /// leaves unexpected messages in the mailbox for the moment.
    fn has_unread_receives(&self) -> bool {
        false
    }
}

/// Rejects all completions.
pub struct NullSink;

impl CompletionSink for NullSink {
    #[inline(always)]
    fn accept(&mut self, _completion: &Completion) -> bool {
        false
    }
}

/// A message to send.
#[derive(Debug)]
pub struct SendArguments {
    /// The receiver.
    pub to: Peer,
    /// Tagged or untagged.
    pub space: Space,
    /// Tag.
    pub tag: u64,
    /// Remote completion data.
    pub data: Option<u64>,
    /// The completion level of the send.
    pub level: SendLevel,
    /// The payload.
    pub memory: UserMemory,
    /// The buffer is the program's again on return: the engine copies what cannot leave at once.
    pub inject: bool,
}

impl SendArguments {
    /// The completion level of the send. An injected message completes as soon as the engine has it, unless its level
    /// demands more.
    #[inline(always)]
    pub(crate) fn effective_level(&self) -> SendLevel {
        match (self.inject, self.level) {
            (true, SendLevel::Injected | SendLevel::Buffered) => SendLevel::Injected,
            (_, level) => level,
        }
    }
}

/// A remote read or write.
#[derive(Debug)]
pub struct RemoteArguments {
    /// The peer that owns the remote memory.
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

/// The reason why the engine rejected an operation. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The number of outstanding operations is at its limit. Progress makes room.
    #[error("{limit} operations are outstanding, which is the limit; try again after making progress")]
    Again {
        /// The limit.
        limit: u32,
    },
    /// The receiver has no room and the bounce buffers are at their limit. Progress may make room.
    #[error(
        "copies of messages for receivers without room take {limit_bytes} bytes, which is the limit (FI_WEIR_BOUNCE_BYTES); try again after making progress"
    )]
    Full {
        /// The limit.
        limit_bytes: u64,
    },
}
