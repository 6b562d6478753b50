//! Tests of the link over UDP sockets between network namespaces, which are joined by virtual cables. They need root.

mod ends;

use ends::{QUOTA, connect_all, send_to_first};
use nix::sched::{CloneFlags, setns, unshare};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::Command;
use weir_link::Inspect;
use weir_link::datagram::DatagramOptions;
use weir_link::datagram::network::DatagramNetwork;
use weir_link::udp::{UdpNetwork, UdpOptions};

/// A network namespace. It ends with its last socket.
struct Host(File);

impl Host {
    /// `None`: this process may not make one.
    fn new() -> Option<Host> {
        let made = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).ok()?;
            File::open("/proc/thread-self/ns/net").ok()
        });
        let host = Host(made.join().expect("no panic")?);
        host.run("ip link set lo up").then_some(host)
    }

    /// Two hosts.
    fn pair() -> Option<[Host; 2]> {
        let hosts = Host::new().zip(Host::new()).map(|(a, b)| [a, b]);
        if hosts.is_none() {
            let test = std::thread::current().name().unwrap_or_default().to_owned();
            let line =
                format!("skipped: {test}: network namespaces need root, and the programs ip and nsenter\n");
            let _ = std::io::stderr().write_all(line.as_bytes()); // past the capture of the test harness
        }
        hosts
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Runs a command of the shell there. Returns whether it succeeds.
    fn run(&self, command: &str) -> bool {
        let mut inside = Command::new("nsenter");
        let inside = inside.arg(format!("--net={}", self.path())).args(["sh", "-c", command]);
        inside.status().is_ok_and(|status| status.success())
    }

    fn must(&self, command: &str) {
        assert!(self.run(command), "{command}");
    }

    /// Joins two hosts by a cable, `name` here and there.
    fn join(&self, other: &Host, name: &str, mtu: u32) {
        let there = other.path();
        self.must(&format!("ip link add {name} mtu {mtu} type veth peer name far mtu {mtu}"));
        self.must(&format!("ip link set far netns {there} && ip link set {name} up"));
        other.must(&format!("ip link set far name {name} && ip link set {name} up"));
    }

    fn open(&self, net: &str) -> UdpNetwork {
        self.open_with(&UdpOptions { net: Some(net.to_owned()), ..UdpOptions::default() })
    }

    fn open_with(&self, options: &UdpOptions) -> UdpNetwork {
        let opened = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                setns(&self.0, CloneFlags::CLONE_NEWNET).expect("a namespace");
                UdpNetwork::open(options)
            });
            thread.join().expect("no panic")
        });
        opened.unwrap_or_else(|error| panic!("{error}"))
    }
}

type End = ends::End<UdpNetwork>;

fn end(network: UdpNetwork, identity: u64) -> End {
    End::open(network, identity, DatagramOptions::new(QUOTA))
}

/// Two hosts on one cable.
fn cabled(mtu: u32) -> Option<[Host; 2]> {
    let hosts = Host::pair()?;
    hosts[0].join(&hosts[1], "eth0", mtu);
    for (host, last) in hosts.iter().zip(1..) {
        host.must(&format!("ip addr add 10.211.0.{last}/24 dev eth0"));
        host.must(&format!("ip addr add fd11::{last}/64 dev eth0 nodad"));
    }
    Some(hosts)
}

#[test]
fn hosts_exchange_packets_in_datagrams_of_the_length_of_their_mtu() {
    for (mtu, net, datagram_bytes) in [
        (1500, "eth0", 1472),
        (1500, "fd11::/64", 1452),
        (9000, "10.0.0.0/8", 8972),
        (1280, "fd11::/64", 1232),
    ] {
        let Some([a, b]) = cabled(mtu) else { return };
        let networks = [a.open(net), b.open(net)];
        assert!(
            networks.iter().all(|network| network.largest_datagram() == datagram_bytes),
            "{net} of {mtu}"
        );
        let mut ends: Vec<End> =
            networks.into_iter().zip(1..).map(|(network, id)| end(network, id)).collect();
        connect_all(&mut ends);
        send_to_first(&mut ends, 5000);
        let counters = ends[1].link.network().traffic();
        assert_eq!(counters.failed, 0, "{counters:?}");
    }
}

#[test]
fn the_first_address_that_is_not_loopback_is_chosen() {
    let Some([a, _b]) = cabled(1500) else { return };
    a.must(
        "ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0 && ip link set docker0 up",
    );
    let network = a.open_with(&UdpOptions::default());
    assert_eq!(
        (network.interface(), network.local_address().ip().to_string().as_str()),
        ("eth0", "10.211.0.1")
    );
}

#[test]
fn an_interface_whose_mtu_shrinks_carries_on() {
    for net in ["10.0.0.0/8", "fd11::/64"] {
        let Some([a, b]) = cabled(1500) else { return };
        let mut ends = [end(a.open(net), 1), end(b.open(net), 2)];
        connect_all(&mut ends);
        send_to_first(&mut ends, 500);
        b.must("ip link set eth0 mtu 1300");
        // This thread sends for both. Only there it can ask for the new MTU.
        setns(&b.0, CloneFlags::CLONE_NEWNET).expect("a namespace");
        // Bundles that are too large now are under way.
        send_to_first(&mut ends, 2000);
        let largest = ends[1].link.network().largest_datagram();
        assert_eq!(largest, if net.contains(':') { 1252 } else { 1272 });
    }
}

/// Two hosts, and a router between them. Both hosts believe that their cables carry `mtu`, but behind the router it is `behind`.
fn routed(mtu: u32, behind: u32) -> Option<[Host; 3]> {
    let ([a, b], router) = (Host::pair()?, Host::new()?);
    a.join(&router, "near", mtu);
    router.join(&b, "behind", behind);
    b.must(&format!("ip link set behind mtu {mtu}"));
    router.must("ip addr add 10.211.1.2/24 dev near && ip addr add 10.211.2.2/24 dev behind");
    router.must("echo 1 > /proc/sys/net/ipv4/ip_forward");
    a.must("ip addr add 10.211.1.1/24 dev near && ip route add default via 10.211.1.2");
    b.must("ip addr add 10.211.2.1/24 dev behind && ip route add default via 10.211.2.2");
    Some([a, b, router])
}

#[test]
fn a_router_with_a_smaller_mtu_drops_only_what_is_too_large() {
    let Some([a, b, _router]) = routed(1500, 1300) else { return };
    let mut ends = [end(b.open("behind"), 1), end(a.open("near"), 2)];
    assert_eq!(ends[1].link.network().largest_datagram(), 1472);
    connect_all(&mut ends);
    send_to_first(&mut ends, 3000);
}

/// Packets that the router had to cut, or to drop because they were too long and may not be cut.
fn cut_or_dropped(router: &Host) -> u64 {
    let counts = std::thread::scope(|scope| {
        let read = || {
            setns(&router.0, CloneFlags::CLONE_NEWNET).expect("a namespace");
            std::fs::read_to_string("/proc/thread-self/net/snmp").expect("counts of the kernel")
        };
        scope.spawn(read).join().expect("no panic")
    });
    let mut lines = counts.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let of = |(name, value): (&str, &str)| match name {
        "FragOKs" | "FragFails" => value.parse::<u64>().expect("a number"),
        _ => 0,
    };
    names.split(' ').zip(values.split(' ')).map(of).sum()
}

#[test]
fn a_path_through_a_router_uses_nearly_its_mtu() {
    for (mtu, behind, least_bytes) in [(1500, 1400, 1000), (9000, 8900, 4000)] {
        let Some([a, b, router]) = routed(mtu, behind) else { return };
        let mut ends = [end(b.open("behind"), 1), end(a.open("near"), 2)];
        connect_all(&mut ends);
        let (mut cut, mut rounds_without) = (0, 0);
        // A probe that passes is not cut, so a search may go on after a round without.
        for _ in 0..100 {
            send_to_first(&mut ends, 2000);
            let is_without = std::mem::replace(&mut cut, cut_or_dropped(&router)) == cut && cut > 0;
            rounds_without = if is_without { rounds_without + 1 } else { 0 };
            if rounds_without == 5 {
                break;
            }
        }
        assert!(cut > 0, "datagrams were longer at first");
        let before = ends[1].link.report();
        send_to_first(&mut ends, 2000);
        assert_eq!(cut_or_dropped(&router), cut, "{mtu}, {behind}");
        let after = ends[1].link.report();
        let bundles = (after.datagrams_sent - after.bare_datagrams_sent)
            - (before.datagrams_sent - before.bare_datagrams_sent);
        let mean_bytes = (after.bytes_sent - before.bytes_sent) / bundles;
        assert!(mean_bytes > least_bytes, "{mean_bytes} bytes on a path of {behind}");
    }
}

/// The kernel lets a socket have no more waiting at its interface than its send buffer, and drops what a queue has no room for.
/// It tells a socket of neither by `ENOBUFS` unless that asks for errors (ip(7), `IP_RECVERR`).
#[test]
fn a_full_queue_at_the_own_interface_loses_nothing() {
    // In the first queue everything has room, in the second two datagrams.
    for (rate, limit, buffer_bytes) in [("50mbit", "4mb", 4 << 10), ("400mbit", "3kb", 1 << 20)] {
        let Some([a, b]) = cabled(1500) else { return };
        if !b.run(&format!("tc qdisc add dev eth0 root tbf rate {rate} burst 4kb limit {limit}")) {
            eprintln!("skipped: the kernel has no token bucket, or the program tc is missing");
            return;
        }
        let options =
            UdpOptions { net: Some("10.0.0.0/8".to_owned()), buffer_bytes, ..UdpOptions::default() };
        let mut ends = [end(a.open("10.0.0.0/8"), 1), end(b.open_with(&options), 2)];
        connect_all(&mut ends);
        send_to_first(&mut ends, 3000);
        let report = ends[1].link.network_report().expect("a network");
        if limit == "4mb" {
            assert!(report.busy_calls > 0, "{report:?}");
        } else {
            assert!(report.sent_again > 0, "{report:?}");
        }
    }
}
