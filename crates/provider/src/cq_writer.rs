//! Filing: which queue and which counter of an endpoint an operation's end goes to, and what its sender is called there.
//!
//! It stands apart from the engine, so that the engine can hand it what has ended while it works: an entry of a queue is then
//! written once, with nothing in between. It does not know address vectors; who asks brings the name of a sender that it
//! has not heard of.

use weir_engine::{Completion, CompletionSink};
use weir_proto::Peer;

use crate::completion::{self, Side};
use crate::counter::Counter;
use crate::cq::CompletionQueue;
use crate::ffi::{ADDR_UNSPEC, FiAddr, flags};
use crate::handle::Table;

/// Operations that counters can be bound to. Not what peers do to our memory: most of that happens without our knowledge
/// (copies between processes), so that a count would be wrong and somebody waiting for it would wait for ever.
pub const COUNTER_FLAGS: [u64; 4] = [flags::SEND, flags::RECV, flags::READ, flags::WRITE];

#[inline(always)]
fn counter_place(operation: u64) -> Option<usize> {
    COUNTER_FLAGS.iter().position(|&counter_flag| counter_flag == operation)
}

/// A completion queue bound to one side of an endpoint.
#[derive(Clone, Copy)]
pub struct Binding {
    /// Its number.
    pub queue: usize,
    /// Only operations that ask for it make entries.
    pub selective: bool,
}

/// What is bound to an endpoint.
pub struct EndpointBindings {
    /// Whether the program asked to be told who has sent.
    pub reports_sources: bool,
    /// Queue of sends, reads and writes.
    pub transmit: Option<Binding>,
    /// Queue of receives.
    pub receive: Option<Binding>,
    /// Counters, in the order of [`COUNTER_FLAGS`].
    pub counters: [Option<usize>; COUNTER_FLAGS.len()],
    /// Entry of each peer in the address vector, where known.
    numbers: Vec<FiAddr>,
}

impl EndpointBindings {
    /// Nothing is bound.
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

    /// Files the end of an operation. `number` gives the entry of a peer that is not known here; if it gives none, nothing is filed
    /// and the result is `false`.
    #[inline(always)]
    fn write_completion(
        &self,
        ended: &Completion,
        bound: &mut DomainQueues,
        number: impl FnOnce(Peer) -> Option<FiAddr>,
    ) -> bool {
        let mut report = completion::report(ended);
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

    /// Files what the engine has kept. `number` gives the entry of a peer, if it has one yet.
    #[inline(never)]
    pub fn write_deferred(
        &mut self,
        ended: &Completion,
        bound: &mut DomainQueues,
        number: impl FnOnce(Peer) -> Option<FiAddr>,
    ) {
        let mut found = None;
        self.write_completion(ended, bound, |peer| {
            found = number(peer).map(|number| (peer, number));
            // Not inserted yet: look again each time until it is.
            Some(found.map_or(ADDR_UNSPEC, |(_, number)| number))
        });
        if let Some((peer, number)) = found {
            self.cache_number(peer, number);
        }
    }

    /// The entry of a peer is known now.
    fn cache_number(&mut self, peer: Peer, number: FiAddr) {
        let place = peer.0 as usize;
        if self.numbers.len() <= place {
            self.numbers.resize(place + 1, ADDR_UNSPEC);
        }
        self.numbers[place] = number;
    }

    /// The vector's numbers have changed.
    pub fn clear_cached_numbers(&mut self) {
        self.numbers.clear();
    }
}

/// What can be bound, of a domain.
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
    }
}

/// Files what ends while the engine works.
pub struct CqWriter<'a> {
    /// What is bound to the engine's endpoint.
    pub bindings: &'a EndpointBindings,
    /// The domain's.
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
