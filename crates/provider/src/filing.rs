//! Filing: which queue and which counter of an endpoint an operation's end goes to, and what its sender is called there.
//!
//! It stands apart from the engine, so that the engine can hand it what has ended while it works: an entry of a queue is then
//! written once, with nothing in between. It does not know address vectors; who asks brings the name of a sender that it
//! has not heard of.

use weir_engine::{Completion, Taker};
use weir_proto::Peer;

use crate::completion::{self, Side};
use crate::counter::Counter;
use crate::cq::CompletionQueue;
use crate::ffi::{ADDR_UNSPEC, FiAddr, flags};
use crate::handle::Table;

/// Operations that counters can be bound to. Not what peers do to our memory: most of that happens without our knowledge
/// (copies between processes), so that a count would be wrong and somebody waiting for it would wait for ever.
pub const COUNTED: [u64; 4] = [flags::SEND, flags::RECV, flags::READ, flags::WRITE];

#[inline(always)]
fn counter_place(operation: u64) -> Option<usize> {
    COUNTED.iter().position(|&counted| counted == operation)
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
pub struct Filing {
    /// Whether the program asked to be told who has sent.
    pub names_sources: bool,
    /// Queue of sends, reads and writes.
    pub transmit: Option<Binding>,
    /// Queue of receives.
    pub receive: Option<Binding>,
    /// Counters, in the order of [`COUNTED`].
    pub counters: [Option<usize>; COUNTED.len()],
    /// Entry of each peer in the address vector, where known.
    numbers: Vec<FiAddr>,
}

impl Filing {
    /// Nothing is bound.
    pub fn new(names_sources: bool) -> Filing {
        let counters = [None; COUNTED.len()];
        Filing { names_sources, transmit: None, receive: None, counters, numbers: Vec::new() }
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
    fn file(
        &self,
        ended: &Completion,
        bound: &mut Bound,
        number: impl FnOnce(Peer) -> Option<FiAddr>,
    ) -> bool {
        let mut report = completion::report(ended);
        let binding = if report.queued { self.binding(report.side) } else { None };
        if self.names_sources
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
        if let Some(operation) = report.counted
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
    pub fn file_late(
        &mut self,
        ended: &Completion,
        bound: &mut Bound,
        number: impl FnOnce(Peer) -> Option<FiAddr>,
    ) {
        let mut learnt = None;
        self.file(ended, bound, |peer| {
            learnt = number(peer).map(|number| (peer, number));
            // Not inserted yet: look again each time until it is.
            Some(learnt.map_or(ADDR_UNSPEC, |(_, number)| number))
        });
        if let Some((peer, number)) = learnt {
            self.learn(peer, number);
        }
    }

    /// The entry of a peer is known now.
    fn learn(&mut self, peer: Peer, number: FiAddr) {
        let place = peer.0 as usize;
        if self.numbers.len() <= place {
            self.numbers.resize(place + 1, ADDR_UNSPEC);
        }
        self.numbers[place] = number;
    }

    /// The vector's numbers have changed.
    pub fn forget_numbers(&mut self) {
        self.numbers.clear();
    }
}

/// What can be bound, of a domain.
pub struct Bound<'a> {
    /// Queues.
    pub queues: &'a mut Table<CompletionQueue>,
    /// Counters.
    pub counters: &'a mut Table<Counter>,
}

impl Bound<'_> {
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
pub struct Desk<'a> {
    /// What is bound to the engine's endpoint.
    pub filing: &'a Filing,
    /// The domain's.
    pub bound: Bound<'a>,
}

impl Taker for Desk<'_> {
    #[inline(always)]
    fn take(&mut self, completion: &Completion) -> bool {
        self.filing.file(completion, &mut self.bound, |_| None)
    }

    #[inline]
    fn holds_some(&self) -> bool {
        self.filing.receive.is_some_and(|binding| !self.bound.queues[binding.queue].entries.is_empty())
    }
}
