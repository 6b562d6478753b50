//! The sources of a domain: where the receives lie that operations have taken ([`super::taken_receives`]), and when a queue
//! looks at them.

use weir_engine::Post;

use super::cq_writer::DomainQueues;
use super::domain_state::State;
use super::endpoint::Endpoint;
use super::taken_receives::{TakenReceive, write_empty};

impl State {
    /// An operation takes a receive of an endpoint. It begins in this call, if the group has room.
    pub fn take_receive(&mut self, endpoint: usize, receive: TakenReceive) {
        let source = self.source_of(endpoint);
        let bindings = self.endpoints[endpoint].bindings.clone();
        let queue = bindings.receive.map(|binding| binding.queue);
        self.endpoints[source].bindings = bindings;
        self.endpoints[source].taken.add(receive);
        self.advance_source(source);
        let State { endpoints, queues, .. } = self;
        if let Some(queue) = queue
            && !endpoints[source].is_idle_source()
            && !queues[queue].endpoints.contains(&source)
        {
            queues[queue].endpoints.push(source);
            if let Some(descriptor) = &queues[queue].descriptor {
                descriptor.ring(); // a thread that blocks there is to look instead
            }
        }
    }

    /// Advances the operations of an endpoint, if it is a source. They may use the engine of the endpoint whose receives
    /// they have taken. Returns the number of those that have ended.
    #[cold]
    pub fn advance_source(&mut self, source: usize) -> usize {
        let State { endpoints, queues, counters, vectors, .. } = self;
        let Some(owner) = endpoints.get_mut(source).and_then(|endpoint| endpoint.source_of()) else {
            return 0;
        };
        let Some([source, owner]) = endpoints.both_mut([source, owner]) else { return 0 };
        let bound = &mut DomainQueues { queues: &mut *queues, counters: &mut *counters };
        let ended = source.taken.advance(owner.engine(), &mut source.bindings, bound);
        // What they have started may have ended operations of the program.
        owner.write_completions(queues, counters, vectors);
        ended
    }

    /// Advances the operations of all sources. Returns the number of those that have ended.
    #[cold]
    pub fn advance_all_sources(&mut self) -> usize {
        let sources: Vec<usize> = self.endpoints.iter_mut().filter_map(|endpoint| endpoint.source).collect();
        sources.into_iter().map(|source| self.advance_source(source)).sum()
    }

    /// Completes a receive at once, without data.
    pub fn complete_receive(&mut self, endpoint: usize, post: Post, tag: u64) {
        let State { endpoints, queues, counters, .. } = self;
        let bound = &mut DomainQueues { queues, counters };
        write_empty(&mut endpoints[endpoint].bindings, bound, post, tag);
    }

    fn source_of(&mut self, endpoint: usize) -> usize {
        if let Some(source) = self.endpoints[endpoint].source {
            return source;
        }
        let source = self.endpoints.insert(Endpoint::source(endpoint));
        self.endpoints[endpoint].source = Some(source);
        self.has_sources = true;
        source
    }
}
