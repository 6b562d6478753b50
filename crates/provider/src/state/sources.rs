//! The sources of a domain: where the receives lie that operations have taken ([`super::taken_receives`]). Reads of their
//! queues advance them ([`State::advance_source`]).

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
