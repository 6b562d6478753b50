//! Tests of the proxy before a link over a core provider: endpoints of a host send for each other, and what a server had
//! taken when it died arrives too.
#![allow(missing_docs)]

mod common;
mod ends;

use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};
use std::time::{Duration, Instant};
use weir_link::Addressing;
use weir_link::datagram::network::DatagramNetwork;
use weir_link::datagram::{DatagramOptions, SendProxy};
use weir_link::ofi::exchange::{Exchange, ExchangeEndpoint};
use weir_link::ofi::{CoreAddress, CoreEndpoint, CoreName, OfiNetwork, OfiOptions, Sent};
use weir_link::shm::ShmLink;
use weir_link::shm::node_segment::{JobKey, NodeSegment};
use weir_proto::Peer;
use weir_proto::reliability::ReliabilityConfig;

const HERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const THERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const RECEIVER: u16 = 60;
const MESSAGES: u32 = 100;
const LIMIT: Duration = Duration::from_secs(20);

const DELIVERS: u8 = 0;
const BUSY: u8 = 1;
/// As a core whose process dies with what it has taken.
const LOSES: u8 = 2;

/// What a core does, and the port that it refuses, as if the endpoint there computed.
#[derive(Debug, Default)]
struct Mood {
    mood: AtomicU8,
    refused_port: AtomicU16,
}

/// An endpoint of the exchange that takes messages in the way which its mood says, and the ports of the others.
struct Moody(ExchangeEndpoint, Arc<Mood>, Vec<(CoreAddress, u16)>);

impl CoreEndpoint for Moody {
    fn provider(&self) -> &str {
        self.0.provider()
    }
    fn name(&self) -> &CoreName {
        self.0.name()
    }
    fn longest_message(&self) -> usize {
        self.0.longest_message()
    }
    fn posted_receives(&self) -> usize {
        self.0.posted_receives()
    }
    fn address_of(&mut self, name: &[u8]) -> Option<CoreAddress> {
        let address = self.0.address_of(name)?;
        // As a sockaddr_in.
        self.2.push((address, u16::from_be_bytes([name[2], name[3]])));
        Some(address)
    }
    fn send(&mut self, to: CoreAddress, head: &[u8], body: &[u8]) -> Sent {
        let refused = self.1.refused_port.load(Ordering::Relaxed);
        if self.2.contains(&(to, refused)) {
            return Sent::Busy;
        }
        match self.1.mood.load(Ordering::Relaxed) {
            BUSY => Sent::Busy,
            LOSES => Sent::Taken,
            _ => self.0.send(to, head, body),
        }
    }
    fn receive(&mut self, take: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.0.receive(take)
    }
    fn next_failure(&mut self) -> Option<CoreAddress> {
        self.0.next_failure()
    }
    fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn may_wait(&mut self) -> bool {
        true
    }
}

const LIMIT_NS: u64 = LIMIT.as_nanos() as u64;

fn network(core: impl CoreEndpoint + 'static) -> OfiNetwork {
    let options = OfiOptions { ports: None, limit_ns: LIMIT_NS, has_proxy: true };
    OfiNetwork::open(Box::new(core), &options).expect("a network")
}

fn open(network: OfiNetwork, port: u16) -> ends::End<OfiNetwork> {
    let reliability = ReliabilityConfig { limit_ns: LIMIT_NS, ..ReliabilityConfig::default() };
    let options = DatagramOptions { reliability, ..DatagramOptions::new(ends::QUOTA) };
    ends::End::open(network, port.into(), options)
}

/// A sender on one host with others, connected to a receiver on another host.
struct Sender {
    end: ends::End<OfiNetwork>,
    core: Arc<Mood>,
    to: Peer,
    _node: NodeSegment,
    _mailbox: ShmLink,
}

impl Sender {
    fn open(
        directory: &tempfile::TempDir,
        exchange: &Exchange,
        port: u16,
        receiver: &mut ends::End<OfiNetwork>,
    ) -> Sender {
        let mailbox = common::open(directory.path());
        let node = NodeSegment::join(&mailbox, JobKey::new(&"a job")).expect("joined");
        let core = Arc::new(Mood::default());
        let network = network(Moody(exchange.open_on(HERE, port), Arc::clone(&core), Vec::new()));
        let domain = network.domain().expect("names of sockets");
        let proxy = SendProxy::open(&node.handle(), 1, false, domain).expect("a queue");
        let mut end = open(network, port).with_proxy(proxy);
        let address = receiver.link.address();
        let (to, begun) = (end.peer(&address), Instant::now());
        while end.connect(&address).is_none() {
            assert!(begun.elapsed() < LIMIT, "never connected");
            end.poll();
            receiver.poll();
        }
        Sender { end, core, to, _node: node, _mailbox: mailbox }
    }

    fn mood(&self, mood: u8) {
        self.core.mood.store(mood, Ordering::Relaxed);
    }

    fn sent_for_others(&self) -> u64 {
        self.end.link.proxy().map_or(0, |proxy| proxy.counters().sent_for_others)
    }
}

/// Two senders of one host. While the core of the first is busy, it queues messages, and the second serves with its core in
/// `mood`. Then the first goes on, and the second only if its core delivers. Returns what the first has sent again.
fn the_second_serves(mood: u8) -> u64 {
    let exchange = Exchange::new(7, 64, 2048);
    let directory = common::directory();
    let mut receiver = open(network(exchange.open_on(THERE, RECEIVER)), RECEIVER);
    let mut first = Sender::open(&directory, &exchange, 1, &mut receiver);
    let mut second = Sender::open(&directory, &exchange, 2, &mut receiver);
    first.mood(BUSY);
    let (mut next, mut others, begun) = (0, 0, Instant::now());
    while second.sent_for_others() == 0 {
        assert!(begun.elapsed() < LIMIT, "the first had nothing in its queue");
        // Nobody queues who sends alone. So the second one sends too, right before the first one finds out again who does.
        std::thread::sleep(Duration::from_millis(2));
        second.mood(DELIVERS);
        others += u32::from(second.end.send(second.to, others).is_ok());
        second.end.poll();
        for _ in 0..3 {
            next += u32::from(next < MESSAGES && first.end.send(first.to, next).is_ok());
        }
        first.end.poll();
        second.mood(mood);
        others += u32::from(second.end.send(second.to, others).is_ok());
        second.end.poll();
        receiver.poll();
    }
    first.mood(DELIVERS);
    let mut second = Some(second).filter(|_| mood == DELIVERS);
    let (from, begun) = (receiver.peer(&first.end.link.address()), Instant::now());
    while receiver.received.get(&from).map_or(0, |messages| messages.len() as u32) < MESSAGES {
        assert!(begun.elapsed() < LIMIT, "{:?}", receiver.received.get(&from).map(|messages| messages.len()));
        while next < MESSAGES && first.end.send(first.to, next).is_ok() {
            next += 1;
        }
        first.end.poll();
        receiver.poll();
        second.iter_mut().for_each(|second| second.end.poll());
    }
    for (number, (found, bytes)) in (0..).zip(&receiver.received[&from]) {
        assert_eq!((number, bytes), (*found, &ends::payload_of(first.end.identity, number)));
    }
    let report = receiver.link.report();
    assert_eq!((report.dropped_forged, report.dropped_foreign), (0, 0), "all are authentic");
    first.end.link.report().sent_again
}

#[test]
fn endpoints_of_a_host_send_for_each_other_over_a_core() {
    the_second_serves(DELIVERS);
}

#[test]
fn what_a_server_had_taken_when_it_died_is_sent_again() {
    assert!(the_second_serves(LOSES) > 0, "a server has lost some");
}

#[test]
fn a_receiver_that_computes_stops_no_server_towards_others() {
    let exchange = Exchange::new(7, 64, 2048);
    let directory = common::directory();
    let [mut computing, mut receiver] =
        [RECEIVER, RECEIVER + 1].map(|port| open(network(exchange.open_on(THERE, port)), port));
    let mut first = Sender::open(&directory, &exchange, 1, &mut computing);
    let mut second = Sender::open(&directory, &exchange, 2, &mut receiver);
    first.mood(BUSY);
    second.core.refused_port.store(RECEIVER, Ordering::Relaxed);
    let (mut next, mut others, begun) = (0, 0, Instant::now());
    while second.sent_for_others() == 0 {
        assert!(begun.elapsed() < LIMIT, "the first had nothing in its queue");
        std::thread::sleep(Duration::from_millis(2));
        others += u32::from(second.end.send(second.to, others).is_ok());
        second.end.poll();
        (0..3).for_each(|_| next += u32::from(next < MESSAGES && first.end.send(first.to, next).is_ok()));
        first.end.poll();
        others += u32::from(second.end.send(second.to, others).is_ok());
        second.end.poll();
        receiver.poll();
    }
    // Now a datagram to the endpoint that computes waits at the core of the second.
    let (from, all, begun) = (receiver.peer(&second.end.link.address()), others + MESSAGES, Instant::now());
    while receiver.received.get(&from).map_or(0, |messages| messages.len() as u32) < all {
        assert!(begun.elapsed() < LIMIT / 2, "{:?}", receiver.received.get(&from).map(|all| all.len()));
        others += u32::from(others < all && second.end.send(second.to, others).is_ok());
        second.end.poll();
        receiver.poll();
    }
    first.mood(DELIVERS);
    let (from, begun) = (computing.peer(&first.end.link.address()), Instant::now());
    while computing.received.get(&from).map_or(0, |messages| messages.len() as u32) < next {
        assert!(begun.elapsed() < LIMIT, "what was dropped is not sent again");
        [&mut first.end, &mut second.end, &mut receiver, &mut computing]
            .into_iter()
            .for_each(|end| end.poll());
    }
}

#[test]
fn without_names_of_sockets_nobody_knows_who_is_on_one_host() {
    assert_eq!(network(Exchange::new(1, 64, 2048).open(1)).domain(), None);
}
