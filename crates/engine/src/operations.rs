//! The table of an engine's outstanding operations: their buffers, their contexts, and copies that outlive the call. It
//! also finds the receive that a cancel names by its context.

use std::collections::HashMap;

use weir_link::memory::{OwnedMemory, UserMemory};
use weir_proto::table::Table;
use weir_proto::{Peer, Request, Space};

use crate::{Operation, Post};

/// One outstanding operation.
#[derive(Debug)]
pub(crate) struct Outstanding {
    pub post: Post,
    pub operation: Operation,
    pub space: Space,
    pub memory: UserMemory,
    /// It completes when the link of this peer has acknowledged what has left for it.
    pub delivered_to: Option<Peer>,
}

impl Outstanding {
    /// An operation on the program's own buffer.
    pub fn new(post: Post, operation: Operation, space: Space, memory: UserMemory) -> Outstanding {
        Outstanding { post, operation, space, memory, delivered_to: None }
    }

    fn is_receive(&self) -> bool {
        matches!(self.operation, Operation::Receive | Operation::MultiReceive)
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
    /// The receives that were outstanding at some cancel, by their context. They may have ended since. So a program that
    /// cancels many receives causes one look at all operations, and a receive costs nothing more.
    receives: HashMap<usize, Vec<u32>>,
    /// Looks at all operations, for tests that count instead of timing.
    #[cfg(test)]
    looks: u32,
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
    pub fn end(&mut self, request: Request) {
        self.take(request);
    }

    /// Removes an operation that was refused, and moves its buffer back to `memory`.
    pub fn give_back(&mut self, request: Request, memory: &mut UserMemory) {
        *memory = self.take(request).memory;
    }

    /// Removes an operation and returns it. It must be outstanding.
    #[inline(always)]
    pub fn take(&mut self, request: Request) -> Outstanding {
        self.table.remove(request.0).expect("an operation ends once")
    }

    /// A posted receive with this context, to be canceled.
    pub fn receive_with_context(&mut self, context: usize) -> Option<Request> {
        self.listed_receive(context).or_else(|| {
            self.list_receives();
            self.listed_receive(context)
        })
    }

    /// Removes entries of the list until one is a receive with this context.
    fn listed_receive(&mut self, context: usize) -> Option<Request> {
        let numbers = self.receives.get_mut(&context)?;
        let is_it = |number: &u32| {
            self.table.get(*number).is_some_and(|it| it.is_receive() && it.post.context == context)
        };
        std::iter::from_fn(|| numbers.pop()).find(is_it).map(Request)
    }

    fn list_receives(&mut self) {
        self.receives.clear();
        for (number, outstanding) in self.table.iter().filter(|(_, outstanding)| outstanding.is_receive()) {
            self.receives.entry(outstanding.post.context).or_default().push(number);
        }
        #[cfg(test)]
        {
            self.looks += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(operations: &mut Operations, context: usize, operation: Operation) -> Request {
        let post = Post { context, cookie: 0 };
        operations.begin(Outstanding::new(post, operation, Space::Tagged, UserMemory::EMPTY))
    }

    #[test]
    fn canceling_many_receives_looks_at_all_operations_once() {
        let mut operations = Operations::default();
        begin(&mut operations, 5, Operation::Send);
        let requests: Vec<_> =
            (0..1000).map(|context| begin(&mut operations, context, Operation::Receive)).collect();
        for (context, request) in requests.iter().enumerate() {
            assert_eq!(operations.receive_with_context(context), Some(*request));
            operations.end(*request);
        }
        assert_eq!(operations.looks, 1);
        assert_eq!(operations.receive_with_context(5), None, "only a send is left");
    }

    #[test]
    fn a_receive_posted_after_a_cancel_is_found_and_an_ended_one_is_not() {
        let mut operations = Operations::default();
        let first = begin(&mut operations, 1, Operation::Receive);
        let second = begin(&mut operations, 2, Operation::MultiReceive);
        assert_eq!(operations.receive_with_context(1), Some(first));
        operations.end(first);
        operations.end(second);
        let other = begin(&mut operations, 3, Operation::Receive); // has the number of one of them
        assert_eq!(operations.receive_with_context(2), None);
        assert_eq!(operations.receive_with_context(3), Some(other));
        let later = begin(&mut operations, 3, Operation::Receive);
        operations.end(other);
        assert_eq!(operations.receive_with_context(3), Some(later));
    }
}
