//! Writes completions: finds the queue and the counter of an endpoint for each, and the number of its source in the
//! address vector. [`EndpointBindings`] has the queues and counters that are bound to an endpoint, and remembers such
//! numbers.
//!
//! It is separate from the engine's endpoint, so that the engine can pass completions to it during progress
//! ([`CqWriter`]). Most entries are then written once, without an intermediate copy. A completion from a source whose
//! number is not known waits in the engine first.

use weir_engine::{Completion, CompletionSink};
use weir_proto::Peer;

use super::completion::{self, Side};
use super::completion_queue::CompletionQueue;
use super::counter::Counter;
use super::table::Table;
use crate::ffi::{ADDR_UNSPEC, FiAddr, flags};

/// Operations that counters can be bound to. Accesses of peers to this process's memory are not among them. Most of
/// them are copies that this process does not see, so a count would be wrong, and a program could wait for it for
/// ever.
pub const COUNTER_FLAGS: [u64; 4] = [flags::SEND, flags::RECV, flags::READ, flags::WRITE];

#[inline(always)]
fn counter_place(operation: u64) -> Option<usize> {
    COUNTER_FLAGS.iter().position(|&counter_flag| counter_flag == operation)
}

/// A completion queue bound to one side of an endpoint.
#[derive(Clone, Copy)]
pub struct Binding {
    /// Index of the queue.
    pub queue: usize,
    /// Only operations that request a completion make entries.
    pub selective: bool,
}

/// The queues and counters that are bound to an endpoint.
#[derive(Clone)]
pub struct EndpointBindings {
    /// Whether entries name their source (`FI_SOURCE`).
    pub reports_sources: bool,
    /// Queue of sends, reads and writes.
    pub transmit: Option<Binding>,
    /// Queue of receives.
    pub receive: Option<Binding>,
    /// Counters, in the order of [`COUNTER_FLAGS`].
    pub counters: [Option<usize>; COUNTER_FLAGS.len()],
    /// Number of each peer in the address vector, if known.
    numbers: Vec<FiAddr>,
}

impl EndpointBindings {
    /// No queue or counter is bound.
    pub fn new(reports_sources: bool) -> EndpointBindings {
        let counters = [None; COUNTER_FLAGS.len()];
        EndpointBindings { reports_sources, transmit: None, receive: None, counters, numbers: Vec::new() }
    }

    /// The queue bound to a side.
    #[inline(always)]
    pub fn binding(&self, side: Side) -> Option<Binding> {
        match side {
            Side::Transmit => self.transmit,
            Side::Receive => self.receive,
        }
    }

    /// Writes a completion. `number` returns the vector's number of a peer that is not known here. If it returns
    /// none, nothing is written and the result is `false`.
    #[inline(always)]
    fn write_completion(
        &self,
        completion: &Completion,
        bound: &mut DomainQueues,
        number: impl FnOnce(Peer) -> Option<FiAddr>,
    ) -> bool {
        let mut report = completion::report(completion);
        let binding = if report.queued { self.binding(report.side) } else { None };
        if self.reports_sources
            && binding.is_some()
            && let Some(envelope) = report.envelope
        {
            match self.numbers.get(envelope.from.0 as usize) {
                Some(&known) if known != ADDR_UNSPEC => report.entry.source = known,
                _ => match number(envelope.from) {
                    Some(number) => report.entry.source = number,
                    None => return false,
                },
            }
        }
        if let Some(operation) = report.counter_flag
            && let Some(place) = counter_place(operation)
            && let Some(counter) = self.counters[place]
        {
            bound.count(counter, report.entry.error != 0);
        }
        if let Some(binding) = binding {
            bound.queues[binding.queue].entries.push_back(report.entry);
        }
        true
    }

    /// Writes a completion that waited in the engine. `number` returns the vector's number of a peer, if it has one.
    #[inline(never)]
    pub fn write_deferred(
        &mut self,
        completion: &Completion,
        bound: &mut DomainQueues,
        number: impl FnOnce(Peer) -> Option<FiAddr>,
    ) {
        let mut found = None;
        self.write_completion(completion, bound, |peer| {
            found = number(peer).map(|number| (peer, number));
            // The program has not inserted the peer yet: ask again next time.
            Some(found.map_or(ADDR_UNSPEC, |(_, number)| number))
        });
        if let Some((peer, number)) = found {
            self.cache_number(peer, number);
        }
    }

    /// Stores the vector's number of a peer.
    fn cache_number(&mut self, peer: Peer, number: FiAddr) {
        let place = peer.0 as usize;
        if self.numbers.len() <= place {
            self.numbers.resize(place + 1, ADDR_UNSPEC);
        }
        self.numbers[place] = number;
    }

    /// Forgets the numbers of all peers, because the vector's entries have changed.
    pub fn clear_cached_numbers(&mut self) {
        self.numbers.clear();
    }
}

/// The queues and counters of a domain.
pub struct DomainQueues<'a> {
    /// Queues.
    pub queues: &'a mut Table<CompletionQueue>,
    /// Counters.
    pub counters: &'a mut Table<Counter>,
}

impl DomainQueues<'_> {
    #[inline(never)]
    fn count(&mut self, counter: usize, failed: bool) {
        let counter = &mut self.counters[counter];
        match failed {
            false => counter.value += 1,
            true => counter.errors += 1,
        }
        counter.changed();
    }
}

/// Writes completions during the engine's progress.
pub struct CqWriter<'a> {
    /// The bindings of the engine's endpoint.
    pub bindings: &'a EndpointBindings,
    /// The domain's queues and counters.
    pub bound: DomainQueues<'a>,
}

impl CompletionSink for CqWriter<'_> {
    #[inline(always)]
    fn accept(&mut self, completion: &Completion) -> bool {
        self.bindings.write_completion(completion, &mut self.bound, |_| None)
    }

    #[inline]
    fn has_unread_receives(&self) -> bool {
        self.bindings.receive.is_some_and(|binding| !self.bound.queues[binding.queue].entries.is_empty())
    }
}
