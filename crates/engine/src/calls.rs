//! The calls by which a program posts operations: send, receive, peek, claimed messages, cancel, remote read and write,
//! memory regions. Those on the common path are inlined into their callers; `posting.rs` has the parts that are not.
//! The answer to a refusal by the endpoint machine is here too.

use weir_link::memory::UserMemory;
use weir_link::{Link, PeerAccess};

use weir_proto::offload::atomics::ExposedRegion;
use weir_proto::{
    Command, Event, MAX_REMOTE_OPERATIONS, MessageId, Pattern, PeekThen, Peer, ReceiveCommand, Refusal,
    Request, SendCommand, SendLevel, Space,
};

use crate::driver::{EventDriver, POSTED, Posted};
use crate::operations::Outstanding;
use crate::remote_memory::Region;
use crate::{
    CompletionSink, Engine, MAX_BACKLOG, MAX_OPERATIONS, NullSink, Operation, Post, PostError,
    RemoteArguments, SendArguments,
};

impl<L: Link> Engine<L> {
    /// Sends a message.
    ///
    /// # Errors
    /// [`PostError::Again`]; with `inject` also [`PostError::Full`].
    #[inline]
    pub fn send(&mut self, post: Post, arguments: SendArguments) -> Result<(), PostError> {
        self.send_with_sink(post, arguments, &mut NullSink)
    }

    /// [`Engine::send`] that offers the completion of a message that leaves at once to `sink`.
    ///
    /// # Errors
    /// As for [`Engine::send`].
    #[inline(always)]
    pub fn send_with_sink(
        &mut self,
        post: Post,
        arguments: SendArguments,
        sink: &mut impl CompletionSink,
    ) -> Result<(), PostError> {
        let level = arguments.effective_level();
        if level == SendLevel::Delivered && self.io.reports_acknowledgements {
            return self.send_acknowledged(post, arguments);
        }
        let SendArguments { to, space, tag, data, mut memory, inject, .. } = arguments;
        let bytes = memory.bytes();
        let send = SendCommand { request: POSTED, to, space, tag, data, bytes, level };
        let operation = Operation::Send;
        let posted = Posted { post, operation, space, memory: &mut memory, inject, delivered_to: None };
        let driver = EventDriver { io: &mut self.io, sink, posted: Some(posted) };
        match self.machine.handle(Event::Posted(Command::Send(send)), driver) {
            Ok(()) if self.io.has_aftermath => self.after_send(to, level),
            Ok(()) => {}
            Err(refusal) => return Err(self.refused(refusal, to)),
        }
        Ok(())
    }

    /// Ends a send to `to`. A sender far ahead of its receiver waits a moment, and so do the first one to another host and one that
    /// is complete, but held back.
    #[inline(never)]
    fn after_send(&mut self, to: Peer, level: SendLevel) {
        self.after_event();
        self.make_contact(to);
        if level == SendLevel::Injected {
            self.pass_admission(to);
        }
        self.apply_back_pressure(to);
    }

    /// The error for an operation with `to` that the endpoint machine has refused. If waiting does not help, the next
    /// attempt is not refused.
    #[cold]
    pub(crate) fn refused(&mut self, refusal: Refusal, to: Peer) -> PostError {
        match refusal {
            Refusal::Operations => PostError::Again { limit: MAX_OPERATIONS },
            Refusal::Backlog => PostError::Again { limit: MAX_BACKLOG },
            Refusal::RemoteOperations => PostError::Again { limit: MAX_REMOTE_OPERATIONS },
            Refusal::BounceBuffers => self.wait_for_bounce_buffer(to),
            Refusal::Groups | Refusal::Early => {
                unreachable!("of no command that the endpoint gets: {refusal:?}")
            }
        }
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
        self.receive_with_sink(post, pattern, memory, multi, &mut NullSink)
    }

    /// [`Engine::receive`] that offers the completion to `sink`, if the message has arrived already.
    ///
    /// # Errors
    /// As for [`Engine::receive`].
    #[inline(always)]
    pub fn receive_with_sink(
        &mut self,
        post: Post,
        pattern: Pattern,
        mut memory: UserMemory,
        multi: Option<u64>,
        sink: &mut impl CompletionSink,
    ) -> Result<(), PostError> {
        let operation = if multi.is_some() { Operation::MultiReceive } else { Operation::Receive };
        let capacity_bytes = memory.bytes();
        let receive = ReceiveCommand { request: POSTED, pattern, capacity_bytes, multi };
        let posted = Posted {
            post,
            operation,
            space: pattern.space,
            memory: &mut memory,
            inject: false,
            delivered_to: None,
        };
        let driver = EventDriver { io: &mut self.io, sink, posted: Some(posted) };
        match self.machine.handle(Event::Posted(Command::Receive(receive)), driver) {
            Ok(()) if self.io.has_aftermath => self.after_event(),
            Ok(()) => {}
            Err(_) => return Err(PostError::Again { limit: MAX_OPERATIONS }),
        }
        Ok(())
    }

    /// Makes progress and looks for an unexpected message. Ends in one completion: `Found`, `Absent`, or `Lost` if only
    /// failed peers could match.
    ///
    /// # Errors
    /// [`PostError::Again`].
    pub fn peek(&mut self, post: Post, pattern: Pattern, then: PeekThen) -> Result<(), PostError> {
        self.progress();
        self.peeked_at = Some(self.progress_calls);
        let request = self.begin(post, Operation::Peek, pattern.space, UserMemory::EMPTY)?;
        self.post(Command::Peek { request, pattern, then });
        Ok(())
    }

    /// Receives a message that a peek has claimed.
    ///
    /// # Errors
    /// [`PostError::Again`].
    pub fn receive_claimed(
        &mut self,
        post: Post,
        message: MessageId,
        mut memory: UserMemory,
    ) -> Result<(), PostError> {
        self.post_receive_claimed(post, message, &mut memory)
    }

    /// Discards a message that a peek has claimed. Ends in one completion, `Found`.
    ///
    /// # Errors
    /// [`PostError::Again`].
    pub fn discard_claimed(&mut self, post: Post, message: MessageId) -> Result<(), PostError> {
        let request = self.begin(post, Operation::Peek, Space::Tagged, UserMemory::EMPTY)?;
        self.post(Command::DiscardClaimed { request, message });
        Ok(())
    }

    /// Cancels a posted receive (or multi-receive buffer) whose context is `context`. Returns whether there was one. It
    /// then ends in exactly one completion, `Canceled` or its normal one.
    pub fn cancel(&mut self, context: usize) -> bool {
        let Some(request) = self.io.operations.receive_with_context(context) else { return false };
        self.post(Command::Cancel { request });
        true
    }

    /// Reads remote memory.
    ///
    /// # Errors
    /// [`PostError::Again`].
    pub fn read(&mut self, post: Post, mut arguments: RemoteArguments) -> Result<(), PostError> {
        self.post_read(post, &mut arguments)
    }

    /// Writes remote memory. Completes when the data is in place there.
    ///
    /// # Errors
    /// [`PostError::Again`].
    pub fn write(&mut self, post: Post, mut arguments: RemoteArguments) -> Result<(), PostError> {
        self.post_write(post, &mut arguments)
    }

    /// Registers memory under `key`, which must be free. Peers address it by its offset from the start.
    pub fn register_memory(&mut self, key: u64, memory: UserMemory, readable: bool, writable: bool) {
        let bytes = memory.bytes();
        let access = PeerAccess { read: readable, write: writable };
        self.io.regions.insert(key, Region::new(memory, access));
        self.post(Command::RegisterMemory { key, bytes, readable, writable });
        self.expose_words(key, Some(ExposedRegion { bytes, readable, writable }));
    }

    /// Deregisters the memory of `key`.
    pub fn deregister_memory(&mut self, key: u64) {
        self.post(Command::DeregisterMemory { key });
        self.expose_words(key, None);
        self.io.remove_region(key);
    }

    #[inline(always)]
    pub(crate) fn begin(
        &mut self,
        post: Post,
        operation: Operation,
        space: Space,
        memory: UserMemory,
    ) -> Result<Request, PostError> {
        if self.io.operations.count() >= MAX_OPERATIONS as usize {
            return Err(PostError::Again { limit: MAX_OPERATIONS });
        }
        Ok(self.io.operations.begin(Outstanding::new(post, operation, space, memory)))
    }
}
