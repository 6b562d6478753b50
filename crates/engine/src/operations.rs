//! The table of an engine's outstanding operations: their buffers, their contexts, and copies that outlive the call. It
//! also finds the receive that a cancel names by its context.

use std::collections::HashMap;

use weir_link::memory::{OwnedMemory, UserMemory};
use weir_proto::table::Table;
use weir_proto::{Peer, Request, Space};

use crate::{Operation, Post};

/// A list of at most so many receives is kept, however few of them are outstanding.
const LEAST_LISTED: usize = 64;

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
    /// While this list is kept: the receives that were outstanding at some cancel or have begun since, by their context. They
    /// may have ended. Only programs that cancel pay for it.
    receives: HashMap<usize, Vec<u32>>,
    keeps_list: bool,
    /// Receives in the list.
    listed: usize,
    /// Operations looked at for the list, for tests that count instead of timing.
    #[cfg(test)]
    looks: usize,
}

impl Operations {
    /// Number of outstanding operations.
    #[inline]
    pub fn count(&self) -> usize {
        self.table.count()
    }

    #[inline(always)]
    pub fn begin(&mut self, outstanding: Outstanding) -> Request {
        let (context, is_listed) = (outstanding.post.context, self.keeps_list && outstanding.is_receive());
        let number = self.table.insert(outstanding);
        if is_listed {
            self.list(context, number);
        }
        Request(number)
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
        if !self.keeps_list {
            self.list_receives();
        }
        let Operations { receives, listed, table, .. } = self;
        let numbers = receives.get_mut(&context)?;
        let is_it =
            |number: &u32| table.get(*number).is_some_and(|it| it.is_receive() && it.post.context == context);
        while numbers.last().is_some_and(|number| !is_it(number)) {
            numbers.pop();
            *listed -= 1;
        }
        // It stays in the list until it has ended: one that is arriving cannot be canceled.
        let found = numbers.last().copied();
        if found.is_none() {
            receives.remove(&context);
        }
        found.map(Request)
    }

    #[cold]
    #[inline(never)]
    fn list(&mut self, context: usize, number: u32) {
        self.receives.entry(context).or_default().push(number);
        self.listed += 1;
        // Most of them have ended: the next cancel makes a new list. It looks at fewer operations than have begun since.
        if self.listed > 2 * self.table.count() + LEAST_LISTED {
            (self.keeps_list, self.listed) = (false, 0);
            self.receives.clear();
        }
    }

    fn list_receives(&mut self) {
        self.keeps_list = true;
        for (number, outstanding) in self.table.iter().filter(|(_, outstanding)| outstanding.is_receive()) {
            self.receives.entry(outstanding.post.context).or_default().push(number);
            self.listed += 1;
        }
        #[cfg(test)]
        {
            self.looks += self.table.count();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

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
        assert_eq!(operations.receive_with_context(5), None, "only a send is left");
        assert_eq!(operations.looks, 1001);
    }

    #[test]
    fn a_receive_is_found_until_it_has_ended() {
        let mut operations = Operations::default();
        let [first, second] = [(); 2].map(|()| begin(&mut operations, 1, Operation::Receive));
        assert_eq!([(); 2].map(|()| operations.receive_with_context(1)), [Some(second); 2]);
        operations.end(second);
        assert_eq!(operations.receive_with_context(1), Some(first));
        operations.end(first);
        assert_eq!(operations.receive_with_context(1), None);
    }

    #[test]
    fn cancels_among_posts_and_ends_look_at_few_operations() {
        let mut operations = Operations::default();
        (0..1000).for_each(|_| _ = begin(&mut operations, 9, Operation::Send));
        let mut requests = VecDeque::new();
        for context in 10..10_010 {
            requests.push_back(begin(&mut operations, context, Operation::Receive));
            if context % 2 == 0 {
                let newest = requests.pop_back();
                assert_eq!(operations.receive_with_context(context), newest);
                operations.end(newest.expect("just posted"));
            }
            assert_eq!(operations.receive_with_context(1), None, "an unknown context");
            // Others end without a cancel.
            if requests.len() > 100 {
                operations.end(requests.pop_front().expect("one of 101"));
            }
        }
        assert!(operations.looks <= 10 * 2000, "{}", operations.looks);
        assert!(operations.listed <= 2 * operations.count() + LEAST_LISTED);
        let left: usize = operations.receives.values().map(Vec::len).sum();
        assert_eq!(operations.listed, left);
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
