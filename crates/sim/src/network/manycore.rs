//! Hosts with many ranks and one adapter, which becomes slow when too many ranks inject or too many messages are
//! outstanding. A gate of [`weir_proto::admission`] may stand before the adapter (`manycore/gate.rs`).
//!
//! The adapter serves one message after the other. A message is outstanding from its entry until it is acknowledged,
//! and its rank injects as long as it has one. The adapter holds the states of some ranks and of some messages. Other
//! states are in the memory of the host, and it fetches them: first that of the rank, then that of the message. So the
//! times add. All states are needed equally often, so the share that it does not hold is that of the fetches.
//! Source: Luo et al., ICS 2012. Figures 1 and 2 say what happens; the reason is ours.
//! ```text
//! time of a message = (message + bytes x byte) x (1 + rank_miss x R + message_miss x M)
//! R                 = 1 - free_ranks / injecting ranks, at least 0
//! M                 = 1 - free_messages / outstanding messages, at least 0
//! rank --> gate --> adapter: queue --> network, latency --> mailbox; then the message is acknowledged
//! ```
//! A packet without payload is a signal: it takes the latency and no time of the adapter, and stays behind earlier
//! messages of its pair. Ranks of a host exchange through memory. The switch between the hosts has no limits, or finite
//! queues (`manycore/ports.rs`). Receiving costs the adapter nothing.

mod gate;
mod ports;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};

use weir_proto::Geometry;
use weir_proto::admission::Gate;

use super::ideal::WHOLE_MESSAGES;
use super::{Hold, Injection, Network, Output, Outputs, TrainPart};
use crate::Picoseconds;
use crate::queue::Source;
pub use gate::Admission;
pub use ports::Switch;

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Ranks of a host.
    pub ranks_per_node: u32,
    /// From the adapter to the mailbox, and until the adapter knows it.
    pub latency_ps: Picoseconds,
    /// Time of the adapter for a message without congestion.
    pub message_ps: Picoseconds,
    /// The same for each of its bytes.
    pub byte_ps: Picoseconds,
    /// From rank to rank within a host, beside `byte_ps` for each byte.
    pub local_ps: Picoseconds,
    /// Ranks whose states the adapter can hold.
    pub free_ranks: u32,
    /// What it takes to fetch the state of a rank, of the time of a message without congestion. Unit: thousandths.
    pub rank_miss_permille: u32,
    /// Messages whose states the adapter can hold.
    pub free_messages: u32,
    /// The same for the state of a message. Unit: thousandths.
    pub message_miss_permille: u32,
    /// The gate before the adapter.
    pub admission: Admission,
    /// The switch between the hosts; `None`: it has no limits.
    pub switch: Option<Switch>,
}

/// A message that a rank has handed over.
#[derive(Clone, Debug)]
struct Post {
    injection: Injection,
    /// Its processor has written it.
    written: Picoseconds,
    /// Signals of the same pair behind it, each with the time of its arrival on an empty network.
    signals: Vec<(Injection, Picoseconds)>,
    /// It is at its receiver, behind earlier ones of the pair.
    has_arrived: bool,
}

/// What the adapter serves at once: a message, or several that a proxy has combined.
#[derive(Clone, Debug, Default)]
struct Message {
    posts: Vec<u32>,
    bytes: u64,
    /// Whose processor injects it.
    injector: u32,
    /// Tokens to give back, and the rank that holds them.
    tokens: u32,
    owner: u32,
    /// How often the switch has lost it.
    losses: u32,
}

/// The adapter of a host.
#[derive(Clone, Debug)]
struct Adapter {
    queue: VecDeque<u32>,
    serves: Option<u32>,
    outstanding: u32,
    /// Ranks with outstanding messages.
    injecting: u32,
}

/// An event of the network.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A message reaches its adapter.
    Enters(u32),
    /// The adapter of a host has served a message.
    Served(u32),
    /// A message reaches the port of the switch towards its host.
    Reaches(u32),
    /// The adapter has a message again that the switch has lost.
    Resent(u32),
    /// A message is acknowledged.
    Completed(u32),
    /// A rank serves the queues of its pool.
    Serves(u32),
    /// A deadline of the gate of a host has passed.
    Expired(u32),
}

/// The network.
#[derive(Clone, Debug)]
pub struct Manycore {
    parameters: Parameters,
    adapters: Vec<Adapter>,
    /// By rank: outstanding messages that it has injected.
    injected: Vec<u32>,
    /// By rank: arrival of its last message within its host.
    local: Vec<Picoseconds>,
    posts: Vec<Post>,
    free_posts: Vec<u32>,
    messages: Vec<Message>,
    free_messages: Vec<u32>,
    /// The last post of each pair that is not acknowledged.
    last_posts: HashMap<(u32, u32), u32>,
    gates: Vec<Gate>,
    senders: Vec<gate::Sender>,
    /// By host: the next event for the gate.
    deadlines: Vec<Option<Picoseconds>>,
    ports: Option<ports::Ports>,
    count: u64,
}

impl Manycore {
    /// A network of `ranks` ranks.
    pub fn new(parameters: Parameters, ranks: u32) -> Manycore {
        let hosts = ranks.div_ceil(parameters.ranks_per_node);
        let adapter = Adapter { queue: VecDeque::new(), serves: None, outstanding: 0, injecting: 0 };
        let settings = parameters.admission.settings(parameters.ranks_per_node);
        Manycore {
            parameters,
            adapters: vec![adapter; hosts as usize],
            injected: vec![0; ranks as usize],
            local: vec![0; ranks as usize],
            posts: Vec::new(),
            free_posts: Vec::new(),
            messages: Vec::new(),
            free_messages: Vec::new(),
            last_posts: HashMap::new(),
            gates: settings.map_or_else(Vec::new, |settings| vec![Gate::new(settings); hosts as usize]),
            senders: vec![gate::Sender::default(); ranks as usize],
            deadlines: vec![None; hosts as usize],
            ports: parameters.switch.map(|_| ports::Ports::new(hosts)),
            count: 0,
        }
    }

    fn host(&self, rank: u32) -> u32 {
        rank / self.parameters.ranks_per_node
    }

    /// Time of the adapter of `host` for a message, as it is now.
    fn service_ps(&self, host: u32, bytes: u64) -> Picoseconds {
        let Parameters { message_ps, byte_ps, .. } = self.parameters;
        let Parameters { free_ranks, rank_miss_permille, free_messages, message_miss_permille, .. } =
            self.parameters;
        let Adapter { outstanding, injecting, .. } = self.adapters[host as usize];
        let fetches = missing(injecting, free_ranks, rank_miss_permille)
            + missing(outstanding, free_messages, message_miss_permille);
        (message_ps + super::bytes_ps(bytes, byte_ps)) * (1000 + fetches) / 1000
    }

    /// Keeps a message until it is acknowledged. Returns its index.
    fn note_message(&mut self, message: Message) -> u32 {
        match self.free_messages.pop() {
            Some(index) => {
                self.messages[index as usize] = message;
                index
            }
            None => {
                self.messages.push(message);
                self.messages.len() as u32 - 1
            }
        }
    }

    fn note_post(&mut self, injection: Injection, written: Picoseconds) -> u32 {
        let post = Post { injection, written, signals: Vec::new(), has_arrived: false };
        let index = match self.free_posts.pop() {
            Some(index) => {
                self.posts[index as usize] = post;
                index
            }
            None => {
                self.posts.push(post);
                self.posts.len() as u32 - 1
            }
        };
        let pair = (injection.from, injection.to);
        self.last_posts.insert(pair, index);
        if let Some(ports) = &mut self.ports {
            ports.note_post(pair, index);
        }
        index
    }

    fn enters(&mut self, now: Picoseconds, index: u32, outputs: &mut Outputs<Event>) {
        let injector = self.messages[index as usize].injector;
        let host = self.host(injector);
        let injected = &mut self.injected[injector as usize];
        *injected += 1;
        let adapter = &mut self.adapters[host as usize];
        adapter.outstanding += 1;
        adapter.injecting += u32::from(*injected == 1);
        adapter.queue.push_back(index);
        self.start(now, host, outputs);
    }

    /// The adapter begins the next message if it is idle.
    fn start(&mut self, now: Picoseconds, host: u32, outputs: &mut Outputs<Event>) {
        let adapter = &mut self.adapters[host as usize];
        if adapter.serves.is_some() {
            return;
        }
        let Some(index) = adapter.queue.pop_front() else { return };
        adapter.serves = Some(index);
        let service_ps = self.service_ps(host, self.messages[index as usize].bytes);
        outputs.remind(now + service_ps, Event::Served(host));
    }

    fn served(&mut self, now: Picoseconds, host: u32, outputs: &mut Outputs<Event>) {
        let index = self.adapters[host as usize].serves.take().expect("the adapter serves a message");
        self.count += 1;
        if self.ports.is_some() {
            outputs.remind(now + self.parameters.latency_ps / 2, Event::Reaches(index));
            return self.start(now, host, outputs);
        }
        let at = now + self.parameters.latency_ps;
        for &post in &self.messages[index as usize].posts {
            outputs.push(at, arrived(&self.posts[post as usize].injection));
        }
        outputs.remind(at, Event::Completed(index));
        self.start(now, host, outputs);
    }

    fn completed(&mut self, now: Picoseconds, index: u32, outputs: &mut Outputs<Event>) {
        let Message { posts, injector, tokens, owner, .. } =
            std::mem::take(&mut self.messages[index as usize]);
        self.free_messages.push(index);
        let host = self.host(injector);
        let injected = &mut self.injected[injector as usize];
        *injected -= 1;
        let adapter = &mut self.adapters[host as usize];
        adapter.outstanding -= 1;
        adapter.injecting -= u32::from(*injected == 0);
        for post in posts {
            match self.ports.is_some() {
                true => self.deliver(now, post, outputs),
                false => self.release(now, post, outputs),
            }
        }
        self.gate_completed(now, owner, tokens, outputs);
    }

    /// Forgets a post that its receiver has. The signals behind it arrive.
    fn release(&mut self, now: Picoseconds, post: u32, outputs: &mut Outputs<Event>) {
        let Post { injection, signals, .. } = &mut self.posts[post as usize];
        for (signal, at) in signals.drain(..) {
            outputs.push(now.max(at), arrived(&signal));
        }
        let pair = (injection.from, injection.to);
        if self.last_posts.get(&pair) == Some(&post) {
            self.last_posts.remove(&pair);
        }
        self.free_posts.push(post);
    }
}

/// Time of fetching one of `count` states if the adapter holds `held` of them. Unit: thousandths, like `miss_permille`.
fn missing(count: u32, held: u32, miss_permille: u32) -> u64 {
    u64::from(miss_permille) * u64::from(count.saturating_sub(held)) / u64::from(count.max(1))
}

/// The packets of an injection are in the mailbox.
fn arrived(injection: &Injection) -> Output {
    let Injection { train, to, first, packets, .. } = *injection;
    Output::Arrived(TrainPart { train, to, first, count: packets, spacing_ps: 0 })
}

impl Network for Manycore {
    type Event = Event;

    fn geometry(&self) -> Geometry {
        WHOLE_MESSAGES
    }

    fn ranks_per_host(&self) -> u32 {
        self.parameters.ranks_per_node
    }

    fn inject(&mut self, now: Picoseconds, injection: Injection, outputs: &mut Outputs<Event>) -> Hold {
        let Injection { from, to, payload_bytes, packets, spacing_ps, .. } = injection;
        let Parameters { latency_ps, byte_ps, local_ps, .. } = self.parameters;
        let written = now + spacing_ps * u64::from(packets);
        if self.host(from) == self.host(to) {
            let local = &mut self.local[from as usize];
            let at = (written + local_ps + super::bytes_ps(payload_bytes, byte_ps)).max(*local);
            *local = at;
            outputs.push(at, arrived(&injection));
        } else if payload_bytes == 0 {
            match self.last_posts.get(&(from, to)) {
                Some(&post) => self.posts[post as usize].signals.push((injection, written + latency_ps)),
                None => outputs.push(written + latency_ps, arrived(&injection)),
            }
        } else {
            let post = self.note_post(injection, written);
            if !self.gates.is_empty() {
                return self.pass_gate(now, post, outputs);
            }
            let message = Message {
                posts: vec![post],
                bytes: payload_bytes,
                injector: from,
                owner: from,
                ..Message::default()
            };
            let index = self.note_message(message);
            outputs.remind(written, Event::Enters(index));
        }
        Hold::Until(written)
    }

    fn get(
        &mut self,
        now: Picoseconds,
        to: u32,
        _: u32,
        bytes: u64,
        number: u32,
        outputs: &mut Outputs<Event>,
    ) {
        // The model prices a remote get. It is no message of the adapter.
        let Parameters { latency_ps, byte_ps, .. } = self.parameters;
        let done = now + 2 * latency_ps + super::bytes_ps(bytes, byte_ps);
        outputs.push(done, Output::GetDone { to, number });
    }

    fn handle(&mut self, now: Picoseconds, event: Event, outputs: &mut Outputs<Event>) {
        let host = match event {
            Event::Enters(index) | Event::Reaches(index) | Event::Resent(index) | Event::Completed(index) => {
                self.host(self.messages[index as usize].injector)
            }
            Event::Served(host) | Event::Expired(host) => host,
            Event::Serves(rank) => self.host(rank),
        };
        outputs.act_as(Source::element(host));
        match event {
            Event::Enters(index) => self.enters(now, index, outputs),
            Event::Served(host) => self.served(now, host, outputs),
            Event::Reaches(index) => self.reaches(now, index, outputs),
            Event::Resent(index) => self.resent(now, index, outputs),
            Event::Completed(index) => self.completed(now, index, outputs),
            Event::Serves(rank) => self.serves(now, rank, outputs),
            Event::Expired(host) => self.expired(now, host, outputs),
        }
    }

    fn one_way_ps(&self, from: u32, to: u32) -> Picoseconds {
        match self.host(from) == self.host(to) {
            true => self.parameters.local_ps,
            false => self.parameters.latency_ps,
        }
    }

    fn drops(&self) -> u64 {
        self.ports.as_ref().map_or(0, |ports| ports.losses)
    }

    fn packet_hops(&self) -> u64 {
        self.count
    }
}
