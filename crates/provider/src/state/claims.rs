//! Claimed messages: those that `FI_PEEK | FI_CLAIM` has taken out of the queue, by the context of the peek.
//!
//! A call with `FI_CLAIM` names only a context. It receives or discards the message that was claimed first with that
//! context. This file does not know what becomes of a message.

use std::collections::{HashMap, VecDeque};

use weir_proto::MessageId;

/// The claimed messages of one endpoint. Bound: its unexpected messages.
#[derive(Debug, Default)]
pub struct Claims {
    by_context: HashMap<usize, VecDeque<MessageId>>,
}

impl Claims {
    /// Adds a message that was claimed with `context`.
    pub fn add(&mut self, context: usize, message: MessageId) {
        self.by_context.entry(context).or_default().push_back(message);
    }

    /// The message that was claimed first with `context`.
    pub fn first(&self, context: usize) -> Option<MessageId> {
        self.by_context.get(&context)?.front().copied()
    }

    /// Removes the message of [`Claims::first`].
    pub fn remove_first(&mut self, context: usize) {
        let Some(messages) = self.by_context.get_mut(&context) else { return };
        messages.pop_front();
        if messages.is_empty() {
            self.by_context.remove(&context);
        }
    }
}
