//! Wraps a network that drops and marks packets, and sends dropped ones again: each pair of ranks on different hosts has a
//! reliable path at both ends ([`ReliablePath`]), the machine of the links over datagrams.
//!
//! To the world this is a network that loses nothing and keeps the order of each pair. A packet of the world is a bundle of
//! the path. Each datagram travels through the wrapped network by itself.
//!
//! ```text
//! inject a, b of one pair      the path opens: a question, and its answer; then datagrams a, b
//! Dropped(a), Arrived(b)       the path at the receiver holds b, and its acknowledgement says so
//! the timer of the sender      a leaves again, and arrives: the world sees Arrived(a), Arrived(b)
//! Marked(c)                    the world sees Arrived(c); the sender learns of the mark, and lowers its window
//! ```
//! The machines take no time of any processor: they run where the datagrams arrive, as in the driver of an adapter. A datagram
//! has one packet. Acknowledgements travel as empty packets. Memory of hosts takes everything: no grant bounds what is under
//! way to a receiver, only the window does. Ranks of one host send to each other without a path.
//!
//! Faults of links ([`LinkFaults`]) hit datagrams here, and the paths repair them.

mod keys;
mod pair;
mod reading;

use std::collections::BTreeMap;

use weir_proto::Geometry;
use weir_proto::reliability::{Header, ReliabilityConfig, ReliablePath};

pub use self::keys::Reliability;
use self::pair::{Asked, Bundle, PathEnd};
pub use self::reading::PathReading;
use super::faulty::{DrawnFaults, LinkFaults};
use super::{Hold, Injection, Network, Output, Outputs, ScheduledOutput, TrainId, TrainPart};
use crate::Picoseconds;
use crate::queue::Source;

/// IP and UDP carry so much of weir's own beside a packet: the link extension and its tag. Unit: bytes.
const LINK_BYTES: u32 = 44;
/// A reordered or repeated datagram is late by this.
const LATE_PS: Picoseconds = 100_000_000;

/// Something that the wrapped network carries.
#[derive(Clone, Copy, Debug)]
enum Flight {
    /// Packets of a train between two ranks of one host, so many of them still on their way.
    Local { train: TrainId, packets: u32 },
    /// A datagram to the path with this index.
    Datagram { to: u32, header: Header, bundle: Option<(u32, Bundle)> },
}

/// Packets of a train that the processor writes.
#[derive(Clone, Copy, Debug)]
struct Written {
    path: u32,
    train: TrainId,
    next: u32,
    end: u32,
    payload_bytes: u32,
    spacing_ps: Picoseconds,
}

/// An event of the wrapped network, or of the paths.
#[derive(Clone, Copy, Debug)]
pub enum Event<E> {
    /// Of the wrapped network.
    Inner(E),
    /// The next packet of these has been written.
    Written(u32),
    /// A datagram reaches its host.
    Arrives {
        /// Its index.
        flight: u32,
        /// A queue on its way was long.
        marked: bool,
    },
    /// The timer of a path expires, unless it was set again since.
    Expires(u32),
}

/// Things with indices that are used again.
#[derive(Clone, Debug)]
struct Slab<T> {
    things: Vec<T>,
    free: Vec<u32>,
}

impl<T: Copy> Slab<T> {
    const NEW: Slab<T> = Slab { things: Vec::new(), free: Vec::new() };

    fn add(&mut self, thing: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.things[index as usize] = thing;
            return index;
        }
        self.things.push(thing);
        self.things.len() as u32 - 1
    }

    fn take(&mut self, index: u32) -> T {
        self.free.push(index);
        self.things[index as usize]
    }
}

/// A network with reliable paths.
#[derive(Debug)]
pub struct Reliable<N: Network> {
    inner: N,
    config: ReliabilityConfig,
    prepare: fn(&mut ReliablePath),
    faults: DrawnFaults,
    /// By rank and peer.
    numbers: BTreeMap<(u32, u32), u32>,
    paths: Vec<PathEnd>,
    flights: Slab<Flight>,
    written: Slab<Written>,
    /// Datagrams that a fault of a link lost.
    losses: u64,
    /// Outputs of the wrapped network; empty between calls.
    inner_outputs: Outputs<N::Event>,
    scheduled: Vec<ScheduledOutput>,
}

impl<N: Network> Reliable<N> {
    /// Wraps `inner`, with faults of its links.
    pub fn new(inner: N, reliability: Reliability, faults: LinkFaults) -> Reliable<N> {
        let datagram_bytes = inner.geometry().slot_bytes + LINK_BYTES;
        Reliable {
            inner,
            config: reliability.config(datagram_bytes),
            prepare: |_| {},
            faults: DrawnFaults::new(faults),
            numbers: BTreeMap::new(),
            paths: Vec::new(),
            flights: Slab::NEW,
            written: Slab::NEW,
            losses: 0,
            inner_outputs: Outputs::default(),
            scheduled: Vec::new(),
        }
    }

    /// Lets a test change each path before it starts, for example to install a wrong rule.
    #[must_use]
    pub fn with_paths(self, prepare: fn(&mut ReliablePath)) -> Reliable<N> {
        Reliable { prepare, ..self }
    }

    /// The index of the path at `at` to `peer`.
    fn path(&mut self, at: u32, peer: u32) -> u32 {
        let next = self.paths.len() as u32;
        let number = *self.numbers.entry((at, peer)).or_insert(next);
        if number == next {
            self.paths.push(PathEnd::new(at, peer, self.config, self.prepare));
        }
        number
    }

    /// Calls the wrapped network. Its events become events of this one, and datagrams that reach their host too.
    fn pass<R>(
        &mut self,
        outputs: &mut Outputs<Event<N::Event>>,
        something: impl FnOnce(&mut N, &mut Outputs<N::Event>) -> R,
    ) -> R {
        self.inner_outputs.share_sequences(outputs);
        let result = something(&mut self.inner, &mut self.inner_outputs);
        self.inner_outputs.share_sequences(outputs);
        for reminder in self.inner_outputs.reminders() {
            outputs.remind_with_sequence(reminder.at, reminder.sequence, Event::Inner(reminder.event));
        }
        self.inner_outputs.clear_reminders();
        let mut scheduled = self.inner_outputs.take(0, std::mem::take(&mut self.scheduled));
        for output in scheduled.drain(..) {
            self.announced(output, outputs);
        }
        self.scheduled = scheduled;
        result
    }

    fn announced(&mut self, scheduled: ScheduledOutput, outputs: &mut Outputs<Event<N::Event>>) {
        let ScheduledOutput { at, sequence, output } = scheduled;
        match output {
            Output::Arrived(part) | Output::Marked(part) => {
                let flight = part.train.0;
                match &mut self.flights.things[flight as usize] {
                    Flight::Local { train, packets } => {
                        let part = TrainPart { train: *train, ..part };
                        *packets -= part.count;
                        if *packets == 0 {
                            self.flights.take(flight);
                        }
                        outputs.push_with_sequence(at, sequence, Output::Arrived(part));
                    }
                    Flight::Datagram { .. } => {
                        let marked = matches!(output, Output::Marked(_));
                        self.datagram_arrives(at, flight, marked, outputs);
                    }
                }
            }
            Output::Dropped(part) => {
                self.flights.take(part.train.0);
            }
            Output::GetDone { .. } => {
                let late_ps = self.faults.jitter_ps();
                outputs.push_with_sequence(at + late_ps, sequence, output);
            }
            Output::Released { .. } | Output::PathEnded { .. } => {
                outputs.push_with_sequence(at, sequence, output);
            }
        }
    }

    /// A datagram will reach its host at `at`, unless a fault of a link hits it.
    fn datagram_arrives(
        &mut self,
        at: Picoseconds,
        flight: u32,
        marked: bool,
        outputs: &mut Outputs<Event<N::Event>>,
    ) {
        let LinkFaults { loss_per_million, duplication_per_million, reordering_per_million, .. } =
            self.faults.of_links;
        if self.faults.hit(duplication_per_million) {
            let copy = self.flights.add(self.flights.things[flight as usize]);
            outputs.remind(at + LATE_PS + self.faults.jitter_ps(), Event::Arrives { flight: copy, marked });
        }
        if self.faults.hit(loss_per_million) {
            self.losses += 1;
            self.flights.take(flight);
            return;
        }
        let late_ps = if self.faults.hit(reordering_per_million) { LATE_PS } else { 0 };
        outputs.remind(at + late_ps + self.faults.jitter_ps(), Event::Arrives { flight, marked });
    }

    /// The next packets of a train have been written. Those that are written at the same time stay together.
    fn written(&mut self, now: Picoseconds, index: u32, outputs: &mut Outputs<Event<N::Event>>) {
        let Written { path, train, next, end, payload_bytes, spacing_ps } =
            self.written.things[index as usize];
        let until = if spacing_ps == 0 { end } else { next + 1 };
        let header_bytes = self.inner.geometry().eager_header_bytes + LINK_BYTES;
        for packet in next..until {
            let bundle = Bundle { train, packet, payload_bytes, bytes: payload_bytes + header_bytes };
            let asked = self.paths[path as usize].submit(now, bundle);
            self.settle(now, path, asked, outputs);
        }
        if until == end {
            self.written.take(index);
            return;
        }
        self.written.things[index as usize].next = until;
        outputs.remind(now + spacing_ps, Event::Written(index));
    }

    /// Does what a path has asked for.
    fn settle(&mut self, now: Picoseconds, path: u32, asked: Asked, outputs: &mut Outputs<Event<N::Event>>) {
        let PathEnd { at, peer, .. } = self.paths[path as usize];
        outputs.act_as(Source::rank(at));
        for (header, bundle) in asked.sent {
            let to = self.path(peer, at);
            let flight = self.flights.add(Flight::Datagram { to, header, bundle });
            let payload_bytes = bundle.map_or(0, |(_, bundle)| u64::from(bundle.payload_bytes));
            let injection = Injection {
                train: TrainId(flight),
                from: at,
                to: peer,
                first: 0,
                packets: 1,
                payload_bytes,
                spacing_ps: 0,
            };
            self.pass(outputs, |inner, outputs| inner.inject(now, injection, outputs));
            outputs.act_as(Source::rank(at));
        }
        for Bundle { train, packet, .. } in asked.delivered {
            let part = TrainPart { train, to: at, first: packet, count: 1, spacing_ps: 0 };
            outputs.push(now, Output::Arrived(part));
        }
        if let Some(at) = asked.timer {
            outputs.remind(at.max(now), Event::Expires(path));
        }
        if asked.has_ended {
            outputs.push(now, Output::PathEnded { from: at, to: peer });
        }
    }
}

impl<N: Network> Network for Reliable<N> {
    type Event = Event<N::Event>;

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn ranks_per_host(&self) -> u32 {
        self.inner.ranks_per_host()
    }

    fn send_from(&self, from: u32) -> Picoseconds {
        self.inner.send_from(from)
    }

    fn holds(&self) -> bool {
        false
    }

    fn inject(
        &mut self,
        now: Picoseconds,
        injection: Injection,
        outputs: &mut Outputs<Event<N::Event>>,
    ) -> Hold {
        let Injection { train, from, to, first, packets, payload_bytes, spacing_ps } = injection;
        let host = |rank| rank / self.inner.ranks_per_host();
        if host(from) == host(to) {
            let flight = self.flights.add(Flight::Local { train, packets });
            let injection = Injection { train: TrainId(flight), ..injection };
            return self.pass(outputs, |inner, outputs| inner.inject(now, injection, outputs));
        }
        let path = self.path(from, to);
        let payload_bytes = payload_bytes.div_ceil(u64::from(packets)) as u32;
        let end = first + packets;
        let index = self.written.add(Written { path, train, next: first, end, payload_bytes, spacing_ps });
        outputs.remind(now + spacing_ps, Event::Written(index)); // a packet is there when it has been written
        Hold::Until(now + u64::from(packets) * spacing_ps)
    }

    fn retrieved(&mut self, now: Picoseconds, rank: u32, outputs: &mut Outputs<Event<N::Event>>) {
        self.pass(outputs, |inner, outputs| inner.retrieved(now, rank, outputs));
    }

    fn get(
        &mut self,
        now: Picoseconds,
        to: u32,
        from: u32,
        bytes: u64,
        number: u32,
        outputs: &mut Outputs<Event<N::Event>>,
    ) {
        self.pass(outputs, |inner, outputs| inner.get(now, to, from, bytes, number, outputs));
    }

    fn handle(&mut self, now: Picoseconds, event: Event<N::Event>, outputs: &mut Outputs<Event<N::Event>>) {
        match event {
            Event::Inner(event) => self.pass(outputs, |inner, outputs| inner.handle(now, event, outputs)),
            Event::Written(index) => self.written(now, index, outputs),
            Event::Arrives { flight, marked } => {
                let Flight::Datagram { to, header, bundle } = self.flights.take(flight) else {
                    unreachable!("packets of one host have no event of their own");
                };
                let asked = self.paths[to as usize].arrives(now, header, bundle, marked);
                self.settle(now, to, asked, outputs);
            }
            Event::Expires(path) => {
                if let Some(asked) = self.paths[path as usize].expires(now) {
                    self.settle(now, path, asked, outputs);
                }
            }
        }
    }

    fn one_way_ps(&self, from: u32, to: u32) -> Picoseconds {
        self.inner.one_way_ps(from, to)
    }

    fn repairs(&self) -> u64 {
        self.losses
    }

    fn drops(&self) -> u64 {
        self.inner.drops()
    }

    fn marks(&self) -> u64 {
        self.inner.marks()
    }

    fn packet_hops(&self) -> u64 {
        self.inner.packet_hops()
    }

    fn paths(&self) -> Vec<PathReading> {
        self.paths.iter().filter_map(PathEnd::reading).collect()
    }
}
