//! Tests of the second socket of an endpoint over UDP, which is connected to the peer to which nearly all datagrams go.

mod ends;

use ends::{QUOTA, connect_all, run, send_to_first};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use weir_link::Bell;
use weir_link::datagram::DatagramOptions;
use weir_link::datagram::network::{BATCH_BYTES, Batch, DatagramNetwork};
use weir_link::datagram::seal::verification_tag;
use weir_link::udp::{UdpNetwork, UdpOptions};
use weir_link::{Addressing, Capabilities, Link};
use weir_proto::PeerFault;
use weir_proto::wire::VERIFICATION_AT;

type End = ends::End<UdpNetwork>;

/// Addresses of the loopback interface.
const LOOPBACKS: [&str; 2] = ["127.0.0.1", "::1"];
/// A row of calls that makes a partner whatever was before.
const LONG_ROW: usize = 1200;
const LONG: Duration = Duration::from_secs(20);

fn options(net: &str) -> UdpOptions {
    UdpOptions { net: Some(net.to_owned()), ..UdpOptions::default() }
}

fn network(options: &UdpOptions) -> UdpNetwork {
    UdpNetwork::open(options).unwrap_or_else(|error| panic!("{error}"))
}

fn place(network: &UdpNetwork) -> SocketAddr {
    network.local_address()
}

fn no_datagrams() -> Batch<SocketAddr> {
    Batch { bytes: vec![0; BATCH_BYTES].into(), datagrams: Vec::new() }
}

/// Sends a lone datagram.
fn send(from: &mut UdpNetwork, to: SocketAddr, bytes: &[u8]) {
    assert_eq!(from.send(to, bytes, bytes.len(), false), bytes.len());
}

/// The next datagrams that arrive from peers, `count` of them: their sender and their first byte.
fn take(network: &mut UdpNetwork, count: usize) -> Vec<(SocketAddr, u8)> {
    take_of(network, count, true)
}

/// The next datagrams that arrive from peers, or from strangers.
fn take_of(network: &mut UdpNetwork, count: usize, is_peer: bool) -> Vec<(SocketAddr, u8)> {
    let mut batch = no_datagrams();
    let mut taken = Vec::new();
    let begun = Instant::now();
    while taken.len() < count {
        assert!(begun.elapsed() < LONG, "{} of {count} datagrams have arrived", taken.len());
        let _ = network.now();
        network.receive(&mut batch);
        let Batch { bytes, datagrams } = &mut batch;
        datagrams.iter().filter(|_| is_peer).for_each(|received| network.authenticated(received.from));
        taken.extend(datagrams.drain(..).map(|received| (received.from, bytes[received.range.start])));
    }
    taken
}

/// Lone datagrams from `from` to `to`, which takes them, until `to` is the partner.
fn make_partner(from: &mut UdpNetwork, to: &mut UdpNetwork) {
    let at = place(to);
    for _ in 0..LONG_ROW {
        send(from, at, b"row");
        take(to, 1);
    }
    assert_eq!(from.partner(), Some(at));
}

/// One packet there, and one back, so many times.
fn ping_pong(ends: &mut [End; 2], first: u32, count: u32) {
    for number in first..first + count {
        for sender in [0, 1] {
            let to = ends[1 - sender].link.address();
            let peer = ends[sender].peer(&to);
            ends[sender].send(peer, number).expect("room");
            run(ends, |ends| !ends[1 - sender].received.is_empty());
            let identity = ends[sender].identity;
            let from = ends[1 - sender].peer(&ends[sender].link.address());
            let mut next = number;
            ends[1 - sender].check_received(from, identity, &mut next);
            assert_eq!(next, number + 1);
        }
    }
}

#[test]
fn ends_that_answer_each_other_use_their_connected_sockets() {
    for net in LOOPBACKS {
        let open = |identity| End::open(network(&options(net)), identity, DatagramOptions::new(QUOTA));
        let mut ends = [open(0xa), open(0xb)];
        connect_all(&mut ends);
        ping_pong(&mut ends, 0, 300);
        for (nth, end) in ends.iter().enumerate() {
            let traffic = end.link.network().traffic();
            assert_eq!(end.link.network().partner(), Some(place(ends[1 - nth].link.network())));
            assert!(traffic.connected > 50 && traffic.failed == 0, "{net}: {traffic:?}");
        }
        // Large packets leave through the first socket, and arrive at the second.
        send_to_first(&mut ends, 3000);
    }
}

#[test]
fn without_the_setting_there_is_one_socket() {
    let one = UdpOptions { connects: false, ..options("127.0.0.1") };
    let open = |identity| End::open(network(&one), identity, DatagramOptions::new(QUOTA));
    let mut ends = [open(0xa), open(0xb)];
    connect_all(&mut ends);
    ping_pong(&mut ends, 0, 300);
    for end in &ends {
        assert_eq!((end.link.network().partner(), end.link.network().traffic().connected), (None, 0));
    }
}

#[test]
fn everybody_reaches_an_endpoint_with_a_partner() {
    for net in LOOPBACKS {
        let [mut a, mut b, mut c] = [(); 3].map(|()| network(&options(net)));
        make_partner(&mut a, &mut b);
        for round in 0..200 {
            send(&mut b, place(&a), &[round]);
            send(&mut c, place(&a), &[round]);
            let mut taken = take(&mut a, 2);
            taken.sort_unstable_by_key(|&(from, _)| from != place(&b));
            assert_eq!(taken, [(place(&b), round), (place(&c), round)], "{net}");
        }
    }
}

#[test]
fn a_look_that_asks_both_sockets_finds_what_waits_at_either() {
    let [mut a, mut b, mut c] = [(); 3].map(|()| network(&options("127.0.0.1")));
    make_partner(&mut a, &mut b);
    let mut batch = no_datagrams();
    for _ in 0..50 {
        send(&mut b, place(&a), b"before");
        take(&mut a, 1);
        send(&mut b, place(&a), b"partner");
        send(&mut c, place(&a), b"other");
        // After a sleep both are asked. A look after one that found something does not end with the first datagram.
        let now = a.now();
        a.wait(now);
        a.receive(&mut batch);
        assert_eq!(batch.datagrams.drain(..).count(), 2);
    }
}

#[test]
fn a_partner_changes_without_loss() {
    for net in LOOPBACKS {
        let [mut a, mut b, mut c] = [(); 3].map(|()| network(&options(net)));
        for _ in 0..3 {
            make_partner(&mut a, &mut b);
            (0..20).for_each(|number| send(&mut b, place(&a), &[number]));
            // They wait at the second socket while it leaves them.
            (0..20).for_each(|_| send(&mut a, place(&c), b"other"));
            assert_eq!(a.partner(), None);
            (20..40).for_each(|number| send(&mut b, place(&a), &[number]));
            let numbers: Vec<u8> = take(&mut a, 40).into_iter().map(|(_, number)| number).collect();
            assert_eq!(numbers, (0..40).collect::<Vec<u8>>(), "what is older comes first");
            (0..20).for_each(|number| send(&mut c, place(&a), &[number]));
            take(&mut c, 20);
            make_partner(&mut a, &mut c);
            (20..40).for_each(|number| send(&mut c, place(&a), &[number]));
            let numbers: Vec<u8> = take(&mut a, 40).into_iter().map(|(_, number)| number).collect();
            assert_eq!(numbers, (0..40).collect::<Vec<u8>>(), "what is older comes first");
        }
    }
}

#[test]
fn peers_in_turn_end_a_partner() {
    let mut all: [UdpNetwork; 4] = std::array::from_fn(|_| network(&options("127.0.0.1")));
    let [a, others @ ..] = &mut all;
    make_partner(a, &mut others[0]);
    for _ in 0..100 {
        for other in &mut *others {
            send(a, place(other), b"in turn");
            send(other, place(a), b"in turn");
        }
        take(a, 3);
    }
    assert_eq!(a.partner(), None);
    let before = a.traffic();
    for _ in 0..100 {
        for other in &mut *others {
            send(other, place(a), b"in turn");
        }
        take(a, 3);
    }
    let looks = a.traffic().looks - before.looks;
    assert!(looks < 100 * 3 * 4, "{looks} looks");
    assert_eq!(a.traffic().connected, before.connected);
}

#[test]
fn what_is_not_authentic_ends_no_partner() {
    let [mut a, mut b, mut c] = [(); 3].map(|()| network(&options("127.0.0.1")));
    make_partner(&mut a, &mut b);
    for _ in 0..1000 {
        send(&mut c, place(&a), b"of a stranger");
        take_of(&mut a, 1, false);
    }
    assert_eq!(a.partner(), Some(place(&b)));
    for number in 0..100 {
        send(&mut b, place(&a), &[number]);
        assert_eq!(take(&mut a, 1), [(place(&b), number)]);
    }
}

#[test]
fn a_flood_of_strangers_ends_no_partner_of_two_ends() {
    for net in LOOPBACKS {
        let open = |identity| End::open(network(&options(net)), identity, DatagramOptions::new(QUOTA));
        let mut ends = [open(0xa), open(0xb)];
        connect_all(&mut ends);
        ping_pong(&mut ends, 0, 300);
        let stranger = UdpSocket::bind((net, 0)).expect("a port");
        let places = [0, 1].map(|nth: usize| place(ends[nth].link.network()));
        let mut garbage = [0; 16];
        let verification = verification_tag(&ends[0].link.address());
        garbage[VERIFICATION_AT..][..4].copy_from_slice(&verification.to_le_bytes());
        for number in 300..600 {
            (0..20).for_each(|_| drop(stranger.send_to(&garbage, places[0])));
            ping_pong(&mut ends, number, 1);
        }
        assert_eq!(ends[0].link.network().partner(), Some(places[1]), "{net}");
        let counters = ends[0].link.counters();
        assert!(counters.malformed > 1000, "{net}: {counters:?}");
    }
}

#[test]
fn a_partner_that_ends_and_begins_again_is_reached() {
    for net in LOOPBACKS {
        let [mut a, mut b, mut c] = [(); 3].map(|()| network(&options(net)));
        make_partner(&mut a, &mut b);
        let at = place(&b);
        drop(b);
        for number in 0..100 {
            send(&mut a, at, b"nobody is there");
            send(&mut c, place(&a), &[number]);
            assert_eq!(take(&mut a, 1), [(place(&c), number)]);
        }
        assert_eq!((a.traffic().failed, a.traffic().busy), (0, 0));
        let again = UdpOptions { ports: Some(at.port()..=at.port()), ..options(net) };
        let mut b = network(&again);
        send(&mut a, at, b"welcome");
        send(&mut b, place(&a), b"thanks");
        assert_eq!((take(&mut b, 1), take(&mut a, 1)), (vec![(place(&a), b'w')], vec![(at, b't')]));
        assert_eq!(a.partner(), Some(at));
    }
}

/// As without a connected socket.
#[test]
fn an_endpoint_at_the_place_of_a_partner_that_has_ended_is_a_new_peer() {
    for connects in [false, true] {
        let options = UdpOptions { connects, ..options("127.0.0.1") };
        let open = |options: &UdpOptions, identity| {
            End::open(network(options), identity, DatagramOptions::new(QUOTA))
        };
        let mut ends = [open(&options, 0xa), open(&options, 0xb)];
        connect_all(&mut ends);
        ping_pong(&mut ends, 0, 200);
        let (at, address) = (place(ends[1].link.network()), ends[1].link.address());
        let again = UdpOptions { ports: Some(at.port()..=at.port()), ..options.clone() };
        let [a, b] = ends;
        drop(b);
        let mut ends = [a, open(&again, 0xc)];
        connect_all(&mut ends);
        ping_pong(&mut ends, 0, 200);
        let partner = ends[0].link.network().partner();
        assert_eq!(partner, connects.then_some(at));
        let lost = ends[0].peer(&address);
        run(&mut ends, |ends| {
            ends[0].link.check_peer(lost, &address);
            !ends[0].lost.is_empty()
        });
        assert_eq!(ends[0].lost, [(lost, PeerFault::Closed)]);
    }
}

#[test]
fn either_socket_wakes_an_endpoint_that_sleeps_at_them() {
    for from_partner in [true, false] {
        let [mut a, mut b, mut c] = [(); 3].map(|()| network(&options("127.0.0.1")));
        make_partner(&mut a, &mut b);
        let sender = if from_partner { &mut b } else { &mut c };
        let to_a = place(&a);
        for _ in 0..20 {
            let begun = Instant::now();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(2));
                    send(sender, to_a, b"wake up");
                });
                let until = a.now().plus_ns(2 * LONG.as_nanos() as u64);
                a.wait(until);
            });
            assert!(begun.elapsed() < LONG, "from the partner: {from_partner}");
            // The look after a sleep finds what has ended it.
            let mut batch = no_datagrams();
            a.receive(&mut batch);
            assert_eq!(batch.datagrams.len(), 1, "from the partner: {from_partner}");
        }
    }
}

struct Channel(Sender<()>);

impl Bell for Channel {
    fn ring(&self) {
        let _ = self.0.send(());
    }
}

#[test]
fn either_socket_rings_the_bell_of_an_endpoint_that_sleeps_elsewhere() {
    let [mut a, mut b, mut c] = [(); 3].map(|()| network(&options("127.0.0.1")));
    let (sender, rings) = channel();
    let bell: Arc<dyn Bell> = Arc::new(Channel(sender));
    assert!(a.ring_on_arrival(&bell));
    make_partner(&mut a, &mut b);
    for nth in 0..40 {
        while rings.try_recv().is_ok() {}
        a.arm();
        send(if nth % 2 == 0 { &mut b } else { &mut c }, place(&a), b"wake up");
        rings.recv_timeout(LONG).expect("a ring");
        let mut batch = no_datagrams();
        a.receive(&mut batch);
        assert_eq!(batch.datagrams.len(), 1, "the look after a sleep finds what has ended it");
    }
}

#[test]
fn an_end_with_a_partner_sleeps_until_something_arrives() {
    let mut ends =
        [0xa, 0xb].map(|identity| End::open(network(&options("::1")), identity, DatagramOptions::new(QUOTA)));
    connect_all(&mut ends);
    ping_pong(&mut ends, 0, 200);
    let settled = Instant::now() + Duration::from_millis(20);
    run(&mut ends, |_| Instant::now() > settled);
    let [a, b] = &mut ends;
    let to_a = b.peer(&a.link.address());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            b.send(to_a, 200).expect("room");
        });
        let begun = Instant::now();
        while a.received.is_empty() {
            assert!(begun.elapsed() < LONG);
            a.link.wake_up().expect("it sleeps").sleep(2 * LONG.as_nanos() as u64);
            a.poll();
        }
    });
}
