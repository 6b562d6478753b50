//! Tests of the link over UDP sockets, on the loopback interface.

mod ends;

use ends::{QUOTA, connect_all, payload_of, run, send_to_first};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use weir_link::datagram::DatagramOptions;
use weir_link::datagram::network::DatagramNetwork;
use weir_link::datagram::seal::verification_tag;
use weir_link::udp::{UdpNetwork, UdpOptions};
use weir_link::{Addressing, Capabilities};
use weir_proto::wire::VERIFICATION_AT;

type End = ends::End<UdpNetwork>;

/// Addresses of the loopback interface.
const LOOPBACKS: [&str; 2] = ["127.0.0.1", "::1"];

fn options(net: &str) -> UdpOptions {
    UdpOptions { net: Some(net.to_owned()), ..UdpOptions::default() }
}

fn network(options: &UdpOptions) -> UdpNetwork {
    UdpNetwork::open(options).unwrap_or_else(|error| panic!("{error}"))
}

fn end(options: &UdpOptions, identity: u64) -> End {
    End::open(network(options), identity, DatagramOptions::new(QUOTA))
}

#[test]
fn packets_arrive_in_order_and_whole_over_both_families() {
    for net in LOOPBACKS {
        let mut ends = [end(&options(net), 0xa), end(&options(net), 0xb)];
        connect_all(&mut ends);
        send_to_first(&mut ends, 5000);
        ends.reverse();
        send_to_first(&mut ends, 5000);
        let counters = ends[0].link.network().traffic();
        assert!(counters.sent > 0 && counters.received > 0 && counters.failed == 0, "{counters:?}");
    }
}

#[test]
fn a_lone_packet_wakes_a_waiting_end() {
    let mut ends = [end(&options("127.0.0.1"), 0xa), end(&options("127.0.0.1"), 0xb)];
    connect_all(&mut ends);
    let settled = Instant::now() + Duration::from_millis(20);
    run(&mut ends, |_| Instant::now() > settled);
    let [a, b] = &mut ends;
    let to_a = b.peer(&a.link.address());
    let from_b = a.peer(&b.link.address());
    let waiting = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            b.send(to_a, 0).expect("room");
        });
        let begun = Instant::now();
        while a.received.is_empty() && begun.elapsed() < Duration::from_secs(20) {
            let wake_up = a.link.wake_up().expect("it sleeps");
            wake_up.sleep(10_000_000_000);
            a.poll();
        }
        begun.elapsed()
    });
    assert!(waiting < Duration::from_secs(5), "{waiting:?}");
    a.check_received(from_b, 0xb, &mut 0);
    // A ring before the sleep ends it too.
    let wake_up = a.link.wake_up().expect("it sleeps");
    wake_up.bell().ring();
    let begun = Instant::now();
    wake_up.sleep(10_000_000_000);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn an_endpoint_without_peers_looks_only_when_something_has_arrived() {
    let mut ends = [end(&options("127.0.0.1"), 0xa), end(&options("127.0.0.1"), 0xb)];
    let elsewhere = network(&options("127.0.0.1")).bell();
    assert!(ends[1].link.wake_up().expect("it sleeps").ring_on_arrival(&elsewhere));
    for _ in 0..10_000 {
        ends[1].poll();
    }
    let looks = ends[1].link.network().traffic().looks;
    assert!(looks < 10, "{looks} looks without a peer");
    connect_all(&mut ends);
    send_to_first(&mut ends, 100);
    for _ in 0..100 {
        ends[1].poll();
    }
    let more = ends[1].link.network().traffic().looks - looks;
    assert!(more >= 50, "{more} looks with a peer");
}

/// Looks of the poll in which the first packet arrives.
fn looks_of_an_arrival() -> u64 {
    let mut ends = [end(&options("127.0.0.1"), 0xa), end(&options("127.0.0.1"), 0xb)];
    connect_all(&mut ends);
    let settled = Instant::now() + Duration::from_millis(20);
    run(&mut ends, |_| Instant::now() > settled);
    let [a, b] = &mut ends;
    let to_b = a.peer(&b.link.address());
    a.send(to_b, 0).expect("room");
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < Duration::from_secs(20), "nothing arrives");
        a.poll();
        let before = b.link.network().traffic().looks;
        b.poll();
        if !b.received.is_empty() {
            return b.link.network().traffic().looks - before;
        }
    }
}

#[test]
fn a_poll_that_finds_something_costs_one_look() {
    // A timer that is due makes another look, which is frequent in a test that is not optimised.
    let fewest = (0..50).map(|_| looks_of_an_arrival()).find(|&looks| looks == 1);
    assert_eq!(fewest, Some(1), "polled until nothing came");
}

#[test]
fn an_endpoint_has_a_port_of_its_range_until_none_is_free() {
    for net in LOOPBACKS {
        let probe = UdpSocket::bind((net, 0)).expect("a port").local_addr().expect("an address").port();
        let first = probe.min(65500);
        let limited = UdpOptions { ports: Some(first..=first + 3), ..options(net) };
        let mut open = Vec::new();
        let error = loop {
            match UdpNetwork::open(&limited) {
                Ok(network) => open.push(network),
                Err(error) => break error.to_string(),
            }
        };
        assert!((1..=4).contains(&open.len()), "{}", open.len());
        assert!(open.iter().all(|network| (first..=first + 3).contains(&network.local_address().port())));
        let expected = format!(
            "FI_WEIR_PORTS={first}-{}: all of these ports of {net} are in use; each endpoint needs one",
            first + 3
        );
        assert_eq!(error, expected);
        open.clear();
        assert!(UdpNetwork::open(&limited).is_ok(), "ports come back");
    }
}

#[test]
fn a_wrong_interface_is_named_with_those_that_exist() {
    let error = UdpNetwork::open(&options("eth99")).expect_err("no such interface").to_string();
    assert!(
        error.starts_with("FI_WEIR_NET=eth99: no interface") && error.contains("lo 127.0.0.1/8"),
        "{error}"
    );
}

#[test]
fn the_part_of_an_address_is_the_place_of_the_socket() {
    let [v4, v6] = LOOPBACKS.map(|net| network(&options(net)));
    for (own, other, length) in [(&v4, &v6, 7), (&v6, &v4, 19)] {
        let part = own.part();
        assert_eq!((part.len(), own.place_of(&part)), (length, Some(own.local_address())));
        assert_eq!(other.place_of(&part), None, "the other family");
        for end in 0..length {
            assert_eq!(own.place_of(&part[..end]), None);
        }
        assert_eq!(own.place_of(&[&part[..], &[0]].concat()), None);
        let no_port = [&part[..length - 2], &[0, 0]].concat();
        assert_eq!(own.place_of(&no_port), None);
    }
    for wrong in [[4, 0, 0, 0, 0, 1, 1], [4, 224, 0, 0, 1, 1, 1], [5, 127, 0, 0, 1, 1, 1]] {
        assert_eq!(v4.place_of(&wrong), None, "{wrong:?}");
    }
}

#[test]
fn garbage_of_a_stranger_is_dropped_and_counted() {
    for net in LOOPBACKS {
        let mut ends = [end(&options(net), 0xa), end(&options(net), 0xb)];
        connect_all(&mut ends);
        let stranger = UdpSocket::bind((net, 0)).expect("a port");
        let at: SocketAddr = ends[0].link.network().local_address();
        let garbage: Vec<Vec<u8>> =
            (0..).map(|number| payload_of(7, number)).filter(|bytes| !bytes.is_empty()).take(200).collect();
        // Every second one has the verification tag, so it passes the kernel.
        let verification = verification_tag(&ends[0].link.address()).to_le_bytes();
        let before = ends[0].link.report();
        for (number, mut bytes) in garbage.into_iter().enumerate() {
            if let Some(tag) = bytes.get_mut(VERIFICATION_AT..).and_then(<[u8]>::first_chunk_mut)
                && number % 2 == 0
            {
                *tag = verification;
            }
            stranger.send_to(&bytes, at).expect("room");
            ends[0].poll();
        }
        send_to_first(&mut ends, 500);
        let after = ends[0].link.report();
        let in_kernel = after.dropped_in_kernel - before.dropped_in_kernel;
        let by_link = (after.dropped_foreign - before.dropped_foreign)
            + (after.dropped_forged - before.dropped_forged)
            + (after.dropped_malformed - before.dropped_malformed);
        assert_eq!(in_kernel + by_link, 200);
        assert!((100..150).contains(&in_kernel), "{in_kernel}: half of all, and short ones");
    }
}

#[test]
fn a_small_receive_buffer_with_seven_senders_loses_nothing() {
    let small = UdpOptions { buffer_bytes: 0, ..options("127.0.0.1") };
    let mut ends: Vec<End> = std::iter::once(end(&small, 1))
        .chain((2..=8).map(|identity| end(&options("127.0.0.1"), identity)))
        .collect();
    connect_all(&mut ends);
    send_to_first(&mut ends, 1000);
}
