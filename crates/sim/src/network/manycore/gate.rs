//! The gate of a host before its adapter, as a driver of [`weir_proto::admission`].
//!
//! An inline mechanism holds the processor of the rank that has to wait, and a rank that serves others is held as
//! long as it does. A rank that has injected messages waits for them, and serves its pool while it does. Each message
//! costs its rank the time of the gate, and its server the time to take it from a queue. A server takes all messages
//! of a batch before the batch enters the adapter. Prices are assumptions.

use std::collections::VecDeque;

use weir_proto::Instant;
use weir_proto::admission::{
    Descriptor, Gate, GateDriver, GateSettings, Mechanism, ProxySettings, Requested, Serving, Steps, Task,
    Thresholds, TokenCost, TokenSettings,
};

use super::{Event, Manycore, Message, Outputs, Parameters, Post};
use crate::Picoseconds;
use crate::network::{Hold, Output};

/// Bound: descriptors in the queue of a rank.
const QUEUE_DESCRIPTORS: u32 = 1024;

/// The gate of each host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Rate control: the delay between two messages of a rank; 0: none. Unit: ns.
    pub delay_ns: u64,
    /// Tokens of a host; 0: no token control.
    pub tokens: u32,
    /// Bytes of a token; 0: a message takes one token.
    pub bytes_per_token: u32,
    /// Ranks of a host that can serve at a time; 0: no proxy.
    pub servers: u32,
    /// Messages to one host leave together up to so many bytes; 0: each alone.
    pub combine_bytes: u32,
    /// 1: a server empties a queue before the next.
    pub drains: u32,
    /// CCT; 0: no policer.
    pub most_ranks: u32,
    /// NRCT.
    pub most_node_messages: u32,
    /// CRCT.
    pub most_rank_messages: u32,
    /// Time of a rank for each message at the gate.
    pub gate_ps: Picoseconds,
    /// Time of a server for each message that it takes from a queue.
    pub serve_ps: Picoseconds,
}

impl Admission {
    /// The settings of the gate of a host with `tasks` ranks; `None`: it has no gate.
    pub fn settings(&self, tasks: u32) -> Option<GateSettings> {
        let Admission { delay_ns, tokens, bytes_per_token, servers, combine_bytes, drains, .. } = *self;
        let cost = match bytes_per_token {
            0 => TokenCost::One,
            bytes_per_token => TokenCost::BySize { bytes_per_token },
        };
        let token = TokenSettings { tokens, cost };
        let queue_descriptors = QUEUE_DESCRIPTORS;
        let proxy = ProxySettings { pools: servers, queue_descriptors, combine_bytes, drains: drains > 0 };
        let mechanism = match (delay_ns, tokens, servers) {
            (0, 0, 0) => return None,
            (0, 0, _) => Mechanism::Proxy(proxy),
            (0, _, 0) => Mechanism::Token(token),
            (0, _, _) => Mechanism::ProxyToken(proxy, token),
            _ => Mechanism::Rate { delay_ns: Steps::constant(delay_ns) },
        };
        let policer = (self.most_ranks > 0).then(|| Thresholds {
            tasks: Steps::constant(self.most_ranks),
            node_messages: Steps::constant(self.most_node_messages),
            task_messages: Steps::constant(Steps::constant(self.most_rank_messages)),
        });
        Some(GateSettings { tasks, mechanism, policer })
    }
}

/// A rank before its gate.
#[derive(Clone, Debug, Default)]
pub(super) struct Sender {
    /// Posts that the gate has not taken.
    waiting: VecDeque<u32>,
    /// It will serve, or serves.
    serves: bool,
    /// Its next step as a server is an event.
    is_due: bool,
    /// Its processor is held.
    is_held: bool,
    /// Entry of its last message. Later ones stay behind.
    last_entry: Picoseconds,
}

/// What a gate has decided in one call.
#[derive(Debug, Default)]
struct Decisions {
    injections: Vec<(Task, Vec<Descriptor>, u32)>,
    resumed: Vec<Task>,
}

impl Decisions {
    /// Messages that `server` has taken from queues: those of its batch, and one without a batch.
    fn taken(&self, server: Task) -> u64 {
        let batch = self.injections.iter().find(|injection| injection.0 == server);
        batch.map_or(1, |(_, messages, _)| messages.len() as u64)
    }
}

impl GateDriver for Decisions {
    fn inject(&mut self, server: Task, messages: &[Descriptor], tokens: u32) {
        self.injections.push((server, messages.to_vec(), tokens));
    }

    fn resume(&mut self, task: Task) {
        self.resumed.push(task);
    }
}

fn instant(now: Picoseconds) -> Instant {
    Instant(now / 1000)
}

impl Manycore {
    fn task(&self, rank: u32) -> Task {
        Task(rank % self.parameters.ranks_per_node)
    }

    fn gate(&mut self, rank: u32) -> &mut Gate {
        let host = self.host(rank);
        &mut self.gates[host as usize]
    }

    /// A rank hands a message to its gate. Returns when its processor is free.
    pub(super) fn pass_gate(&mut self, now: Picoseconds, post: u32, outputs: &mut Outputs<Event>) -> Hold {
        let Post { injection, written, .. } = &self.posts[post as usize];
        let (from, written) = (injection.from, *written);
        self.senders[from as usize].waiting.push_back(post);
        self.request_waiting(now, from, outputs);
        let is_held = self.has_to_hold(from);
        self.senders[from as usize].is_held = is_held;
        match is_held {
            true => Hold::UntilReleased,
            false => Hold::Until(written + self.parameters.admission.gate_ps),
        }
    }

    fn has_to_hold(&mut self, rank: u32) -> bool {
        let task = self.task(rank);
        let Sender { waiting, serves, .. } = &self.senders[rank as usize];
        !waiting.is_empty() || *serves || self.gate(rank).waits(task)
    }

    /// Asks the gate for what a rank has waiting, until it has to wait.
    fn request_waiting(&mut self, now: Picoseconds, rank: u32, outputs: &mut Outputs<Event>) {
        let (task, host) = (self.task(rank), self.host(rank));
        while !self.gate(rank).waits(task) {
            let Some(&post) = self.senders[rank as usize].waiting.front() else { return };
            let injection = self.posts[post as usize].injection;
            let bytes = u32::try_from(injection.payload_bytes).unwrap_or(u32::MAX);
            let descriptor = Descriptor { origin: task, host: self.host(injection.to), bytes, number: post };
            let mut decisions = Decisions::default();
            let requested = self.gate(rank).request(instant(now), descriptor, &mut decisions);
            if requested == Requested::Full {
                return;
            }
            self.senders[rank as usize].waiting.pop_front();
            match requested {
                Requested::Queued if self.gate(rank).can_serve(task) => {
                    let server = self.next_server(rank);
                    self.senders[server as usize].serves = true;
                    self.serve_at(now, server, outputs);
                }
                Requested::Waits => self.set_deadline(now, host, outputs),
                _ => {}
            }
            self.perform(now, host, decisions, outputs);
        }
    }

    /// The rank that looks at the queues of a pool first after `rank` of it has queued a message.
    fn next_server(&self, rank: u32) -> u32 {
        let Parameters { ranks_per_node, admission, .. } = self.parameters;
        let pool_ranks = ranks_per_node.div_ceil(admission.servers.clamp(1, ranks_per_node));
        let host = rank / ranks_per_node * ranks_per_node;
        let first = host + (rank - host) / pool_ranks * pool_ranks;
        let mut pool = first..(first + pool_ranks).min(host + ranks_per_node);
        pool.find(|&other| self.injected[other as usize] > 0).unwrap_or(rank)
    }

    /// Does what a gate has decided.
    fn perform(&mut self, now: Picoseconds, host: u32, decisions: Decisions, outputs: &mut Outputs<Event>) {
        let first_rank = host * self.parameters.ranks_per_node;
        let Admission { servers, gate_ps: price_ps, serve_ps, .. } = self.parameters.admission;
        let taken = |task| (task, decisions.taken(task));
        let resumed: Vec<(Task, u64)> = decisions.resumed.iter().copied().map(taken).collect();
        for (server, batch, tokens) in decisions.injections {
            let is_served = servers > 0;
            // The first message is there; the server takes the others before the batch leaves.
            let mut at = now + price_ps + serve_ps * (batch.len() as u64 - 1);
            for descriptor in &batch {
                let sender = &self.senders[(first_rank + descriptor.origin.0) as usize];
                let written = self.posts[descriptor.number as usize].written;
                at = at.max(sender.last_entry + 1).max(written + price_ps);
            }
            for descriptor in &batch {
                self.senders[(first_rank + descriptor.origin.0) as usize].last_entry = at;
            }
            let message = Message {
                posts: batch.iter().map(|descriptor| descriptor.number).collect(),
                bytes: batch.iter().map(|descriptor| u64::from(descriptor.bytes)).sum(),
                injector: first_rank + server.0,
                tokens,
                owner: first_rank + batch[0].origin.0,
                losses: 0,
            };
            let index = self.note_message(message);
            outputs.remind(at, Event::Enters(index));
            for descriptor in batch.iter().filter(|_| is_served) {
                self.go_on(now, first_rank + descriptor.origin.0, outputs); // its queue has room again
            }
        }
        for (task, taken) in resumed {
            let rank = first_rank + task.0;
            if self.senders[rank as usize].serves {
                self.serve_at(now + serve_ps * taken, rank, outputs);
            }
            self.go_on(now, rank, outputs);
        }
    }

    /// A rank may go on: it asks for what waits, and its processor is free if nothing holds it.
    fn go_on(&mut self, now: Picoseconds, rank: u32, outputs: &mut Outputs<Event>) {
        if !self.senders[rank as usize].is_held {
            return;
        }
        self.request_waiting(now, rank, outputs);
        if self.senders[rank as usize].is_held && !self.has_to_hold(rank) {
            self.senders[rank as usize].is_held = false;
            outputs.push(now + self.parameters.admission.gate_ps, Output::Released { rank });
        }
    }

    fn serve_at(&mut self, at: Picoseconds, rank: u32, outputs: &mut Outputs<Event>) {
        if !std::mem::replace(&mut self.senders[rank as usize].is_due, true) {
            outputs.remind(at, Event::Serves(rank));
        }
    }

    /// Asks for an event at the first deadline of a gate, unless an earlier one comes.
    fn set_deadline(&mut self, now: Picoseconds, host: u32, outputs: &mut Outputs<Event>) {
        let Some(deadline) = self.gates[host as usize].next_deadline() else { return };
        let at = now.max(deadline.0 * 1000);
        let set = &mut self.deadlines[host as usize];
        if set.is_none_or(|set| at < set) {
            *set = Some(at);
            outputs.remind(at, Event::Expired(host));
        }
    }

    /// A rank serves its pool: one batch. Its next step follows when it has taken all messages of it.
    pub(super) fn serves(&mut self, now: Picoseconds, rank: u32, outputs: &mut Outputs<Event>) {
        let (task, host) = (self.task(rank), self.host(rank));
        self.senders[rank as usize].is_due = false;
        let mut decisions = Decisions::default();
        let serving = match self.gate(rank).waits(task) {
            true => Serving::Waits, // its own message waits for tokens, and resumes it
            false => self.gate(rank).serve(task, &mut decisions),
        };
        match serving {
            Serving::Injected => {
                let taking_ps = self.parameters.admission.serve_ps * decisions.taken(task);
                self.serve_at(now + taking_ps, rank, outputs);
            }
            Serving::Waits => {}
            Serving::Idle => self.senders[rank as usize].serves = false,
        }
        self.perform(now, host, decisions, outputs);
        self.go_on(now, rank, outputs);
    }

    /// A message of `owner` is acknowledged.
    pub(super) fn gate_completed(
        &mut self,
        now: Picoseconds,
        owner: u32,
        tokens: u32,
        outputs: &mut Outputs<Event>,
    ) {
        if self.gates.is_empty() {
            return;
        }
        let mut decisions = Decisions::default();
        let task = self.task(owner);
        self.gate(owner).completed(task, tokens, &mut decisions);
        self.perform(now, self.host(owner), decisions, outputs);
    }

    /// A deadline of a gate has passed.
    pub(super) fn expired(&mut self, now: Picoseconds, host: u32, outputs: &mut Outputs<Event>) {
        if self.deadlines[host as usize] != Some(now) {
            return; // an earlier one was set after this
        }
        self.deadlines[host as usize] = None;
        let mut decisions = Decisions::default();
        self.gates[host as usize].expired(instant(now), &mut decisions);
        self.perform(now, host, decisions, outputs);
        self.set_deadline(now, host, outputs);
    }
}
