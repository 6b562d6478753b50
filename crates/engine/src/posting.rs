//! Posting without inlining, for executors and for operations whose call costs little compared to the rest.
//!
//! The buffer of an operation that the engine refuses stays in the arguments, so that they can be posted again. The
//! calls that most programs make are in `calls.rs`, and are inlined there.

use weir_link::Link;
use weir_link::memory::UserMemory;
use weir_proto::{
    Command, Event, MessageId, Pattern, ReceiveCommand, Refusal, RemoteCommand, SendCommand, SendLevel, Space,
};

use crate::driver::{EventDriver, POSTED, Posted};
use crate::{Engine, MAX_OPERATIONS, NullSink, Operation, Post, PostError, RemoteArguments, SendArguments};

impl<L: Link> Engine<L> {
    /// [`Engine::send`], without back-pressure on the caller.
    pub(crate) fn post_send(&mut self, post: Post, arguments: &mut SendArguments) -> Result<(), PostError> {
        let level = arguments.effective_level();
        let SendArguments { to, space, tag, data, inject, ref mut memory, .. } = *arguments;
        let bytes = memory.bytes();
        let send = SendCommand { request: POSTED, to, space, tag, data, bytes, level };
        let delivered_to = (level == SendLevel::Delivered).then_some(to);
        let posted = Posted { post, operation: Operation::Send, space, memory, inject, delivered_to };
        self.post_out_of_line(Command::Send(send), posted).map_err(|refusal| self.refused(refusal, to))
    }

    /// [`Engine::receive`].
    pub(crate) fn post_receive(
        &mut self,
        post: Post,
        pattern: Pattern,
        memory: &mut UserMemory,
        multi: Option<u64>,
    ) -> Result<(), PostError> {
        let operation = if multi.is_some() { Operation::MultiReceive } else { Operation::Receive };
        let capacity_bytes = memory.bytes();
        let receive = ReceiveCommand { request: POSTED, pattern, capacity_bytes, multi };
        let posted =
            Posted { post, operation, space: pattern.space, memory, inject: false, delivered_to: None };
        self.post_out_of_line(Command::Receive(receive), posted)
            .map_err(|_| PostError::Again { limit: MAX_OPERATIONS })
    }

    /// [`Engine::receive_claimed`].
    pub(crate) fn post_receive_claimed(
        &mut self,
        post: Post,
        message: MessageId,
        memory: &mut UserMemory,
    ) -> Result<(), PostError> {
        if self.io.operations.count() >= MAX_OPERATIONS as usize {
            return Err(PostError::Again { limit: MAX_OPERATIONS }); // before `begin` takes the buffer
        }
        let capacity_bytes = memory.bytes();
        let request = self.begin(post, Operation::Receive, Space::Tagged, memory.take())?;
        self.post(Command::ReceiveClaimed { request, message, capacity_bytes });
        Ok(())
    }

    /// [`Engine::read`].
    pub(crate) fn post_read(&mut self, post: Post, arguments: &mut RemoteArguments) -> Result<(), PostError> {
        let RemoteArguments { peer, key, offset, ref mut memory, .. } = *arguments;
        let read = RemoteCommand { request: POSTED, peer, key, offset, bytes: memory.bytes(), data: None };
        let (operation, space) = (Operation::Read, Space::Untagged);
        let posted = Posted { post, operation, space, memory, inject: false, delivered_to: None };
        self.post_out_of_line(Command::Read(read), posted).map_err(|refusal| self.refused(refusal, peer))
    }

    /// [`Engine::write`].
    pub(crate) fn post_write(
        &mut self,
        post: Post,
        arguments: &mut RemoteArguments,
    ) -> Result<(), PostError> {
        let RemoteArguments { peer, key, offset, data, inject, ref mut memory } = *arguments;
        let write = RemoteCommand { request: POSTED, peer, key, offset, bytes: memory.bytes(), data };
        let (operation, space) = (Operation::Write, Space::Untagged);
        let posted = Posted { post, operation, space, memory, inject, delivered_to: None };
        self.post_out_of_line(Command::Write(write), posted).map_err(|refusal| self.refused(refusal, peer))
    }

    /// [`Engine::send`] of a message that completes when the receiver's side holds it, for links that acknowledge later.
    #[cold]
    #[inline(never)]
    pub(crate) fn send_acknowledged(
        &mut self,
        post: Post,
        mut arguments: SendArguments,
    ) -> Result<(), PostError> {
        let to = arguments.to;
        self.post_send(post, &mut arguments)?;
        self.apply_back_pressure(to);
        Ok(())
    }

    fn post_out_of_line(&mut self, command: Command, posted: Posted<'_>) -> Result<(), Refusal> {
        let driver = EventDriver { io: &mut self.io, sink: &mut NullSink, posted: Some(posted) };
        self.machine.handle(Event::Posted(command), driver)?;
        if self.io.has_aftermath {
            self.after_event();
        }
        Ok(())
    }
}
