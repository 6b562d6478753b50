//! The table of outstanding operations: their buffers, their contexts, and copies that outlive the call.

use weir_link::memory::{OwnedMemory, UserMemory};
use weir_proto::table::Table;
use weir_proto::{Request, Space};

use crate::{Operation, Post};

/// One outstanding operation.
#[derive(Debug)]
pub(crate) struct Outstanding {
    pub post: Post,
    pub operation: Operation,
    pub space: Space,
    pub memory: UserMemory,
}

impl Outstanding {
    /// An operation on the program's own buffer.
    pub fn new(post: Post, operation: Operation, space: Space, memory: UserMemory) -> Outstanding {
        Outstanding { post, operation, space, memory }
    }

    /// Copies the buffer, so that the program may reuse its own.
    pub fn use_bounce_buffer(&mut self) {
        self.memory = OwnedMemory::copy_of(&self.memory).into();
    }
}

/// The table of outstanding operations.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    table: Table<Outstanding>,
}

impl Operations {
    /// Number of outstanding operations.
    #[inline]
    pub fn count(&self) -> usize {
        self.table.count()
    }

    #[inline(always)]
    pub fn begin(&mut self, outstanding: Outstanding) -> Request {
        Request(self.table.insert(outstanding))
    }

    #[inline]
    pub fn get(&self, request: Request) -> Option<&Outstanding> {
        self.table.get(request.0)
    }

    pub fn get_mut(&mut self, request: Request) -> Option<&mut Outstanding> {
        self.table.get_mut(request.0)
    }

    /// Removes an operation. It must be outstanding.
    #[inline]
    pub fn end(&mut self, request: Request) {
        self.finish(request, |_| ());
    }

    /// Shows an operation to `last`, and removes it. It must be outstanding.
    #[inline(always)]
    pub fn finish<R>(&mut self, request: Request, last: impl FnOnce(&Outstanding) -> R) -> R {
        self.table.finish(request.0, last).expect("an operation ends once")
    }

    /// The posted receive with this context. If there are several, the one with the highest request.
    pub fn receive_with_context(&self, context: usize) -> Option<Request> {
        let is_it = |outstanding: &Outstanding| {
            outstanding.post.context == context
                && matches!(outstanding.operation, Operation::Receive | Operation::MultiReceive)
        };
        let found = self.table.iter().rev().find(|(_, outstanding)| is_it(outstanding));
        found.map(|(number, _)| Request(number))
    }
}
