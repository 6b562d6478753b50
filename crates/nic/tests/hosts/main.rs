//! Tests of the kernel programs across pretended hosts. Where they cannot run, they print why and do nothing.
#![allow(missing_docs, reason = "test code")]

mod meetings;
mod multi_sends;

use std::net::{SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weir_nic::control::{self, Command};
use weir_nic::format::{COUNTERS, DEFAULT_PORT, Packet, Way, kind, status};
use weir_nic::pretended::{INTERFACE, Network, address};
use weir_nic::programs::AttachError;
use weir_nic::service::Service;
use weir_nic::{Domain, NicError, Operation, Patience, Remote};

const SECRET: [u8; 16] = *b"sixteen secrets!";

/// Hosts with programs, or `None` and a line that says why there are none.
fn hosts(count: usize) -> Option<Network> {
    let made = Network::new(count).map_err(|why| why.to_string());
    let attached = made.and_then(|mut network| match network.attach(DEFAULT_PORT) {
        Ok(()) => Ok(network),
        Err(error @ (AttachError::NotBuilt | AttachError::NotPermitted)) => Err(error.to_string()),
        Err(error) => panic!("{error}"),
    });
    attached.inspect_err(|why| eprintln!("skipped: {why}")).ok()
}

fn at(host: usize) -> SocketAddrV4 {
    SocketAddrV4::new(address(host), DEFAULT_PORT)
}

fn patience(ms: u64) -> Patience {
    Patience { silence: Duration::from_millis(ms), ..Patience::default() }
}

fn remote(network: &Network, from: usize, to: usize) -> Remote {
    network.at(from, || Remote::new(&Domain::of(&SECRET), at(to), Patience::default()).unwrap())
}

fn counter(network: &Network, host: usize, name: &str) -> u64 {
    let answer = network.at(host, || control::ask(INTERFACE, Command::Status).unwrap());
    answer.counters[COUNTERS.iter().position(|known| *known == name).unwrap()]
}

/// Sends bytes to the programs of host 1 from host 0, and returns the datagram that comes back.
fn exchange(network: &Network, bytes: &[u8]) -> Option<Vec<u8>> {
    network.at(0, || {
        let socket = UdpSocket::bind((address(0), 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        socket.send_to(bytes, at(1)).unwrap();
        let mut answer = [0; 128];
        socket.recv(&mut answer).ok().map(|length| answer[..length].to_vec())
    })
}

const WAY: fn() -> Way = || Way { from: address(0), to: address(1) };

fn addition(number: u64, operand: u64) -> Packet {
    let (kind, operation) = (kind::WORD, Operation::Add as u8);
    Packet { kind, operation, status: 0, asker: 77, number, place: 3, operand, compare: 0 }
}

#[test]
fn words_of_another_host_change_by_all_operations() {
    let Some(network) = hosts(2) else { return };
    let member = network.join(1, &SECRET).unwrap();
    let mut remote = remote(&network, 0, 1);
    assert_eq!((member.address(), member.is_attached()), (at(1), true));
    assert_eq!((remote.fetch_add(5, 40).unwrap(), remote.fetch_add(5, u64::MAX).unwrap()), (0, 40));
    assert_eq!((member.words().load(5), remote.load(5).unwrap()), (39, 39));
    assert_eq!((remote.swap(5, 12).unwrap(), member.words().swap(5, 9)), (39, 12));
    assert_eq!(remote.compare_swap(5, 8, 1).unwrap(), 9);
    assert_eq!((remote.compare_swap(5, 9, 0b1100).unwrap(), member.words().load(5)), (9, 0b1100));
    assert_eq!(remote.perform(Operation::And, 5, 0b0110, 0).unwrap(), 0b1100);
    assert_eq!(remote.perform(Operation::Or, 5, 0b0011, 0).unwrap(), 0b0100);
    assert_eq!(remote.perform(Operation::Xor, 5, 0b0101, 0).unwrap(), 0b0111);
    assert_eq!((member.words().load(5), remote.fetch_add(4095, 1).unwrap()), (0b0010, 0));
    let beyond = remote.fetch_add(4096, 1).unwrap_err().to_string();
    assert_eq!(beyond, "word 4096 of 10.98.0.2: allowed are 0 to 4095");
    assert_eq!(counter(&network, 1, "refused"), 1);
}

#[test]
fn a_request_that_comes_twice_is_performed_once_and_an_old_one_never() {
    let Some(network) = hosts(2) else { return };
    let member = network.join(1, &SECRET).unwrap();
    let domain = Domain::of(&SECRET);
    let ask = |number, operand| {
        let answer = exchange(&network, &addition(number, operand).to_bytes(&domain, WAY()))?;
        let reply = Packet::of_bytes(&answer, &domain, WAY().reversed()).expect("an answer with a tag");
        assert_eq!((reply.kind, reply.status, reply.number), (kind::REPLY, status::DONE, number));
        Some(reply.operand)
    };
    assert_eq!([ask(1, 10), ask(2, 10), ask(1, 10), ask(2, 10)], [Some(0), Some(10), Some(0), Some(10)]);
    assert_eq!([ask(9, 1), ask(10, 1)], [Some(20), Some(21)]); // in the places of 1 and 2
    assert_eq!([ask(1, 10), ask(10, 1)], [None, Some(21)]);
    assert_eq!(member.words().load(3), 22);
    assert_eq!((counter(&network, 1, "duplicates"), counter(&network, 1, "old")), (3, 1));
    // A domain that ends forgets its askers, and its words.
    drop(member);
    let status = || network.at(1, || control::ask(INTERFACE, Command::Status).unwrap());
    while status().domains > 0 {
        std::thread::sleep(Duration::from_millis(1)); // the service hears of it soon
    }
    assert_eq!(ask(11, 1), None);
    assert_eq!(counter(&network, 1, "strangers"), 1);
    let member = network.join(1, &SECRET).unwrap();
    assert_eq!((ask(1, 5), member.words().load(3)), (Some(0), 5));
}

#[test]
fn packets_of_strangers_are_dropped_and_counted() {
    let Some(network) = hosts(2) else { return };
    let member = network.join(1, &SECRET).unwrap();
    let domain = Domain::of(&SECRET);
    let good = addition(1, 1).to_bytes(&domain, WAY());
    // Bits 0 to 31: magic, 32 to 39: version, 64 to 127: domain. All others are under the tag, and the tag itself.
    for (bit, name) in
        [(0, "malformed"), (33, "other_version"), (70, "strangers"), (41, "forged"), (511, "forged")]
    {
        let mut bad = good;
        bad[bit / 8] ^= 1 << (bit % 8);
        let before = counter(&network, 1, name);
        assert_eq!((exchange(&network, &bad), counter(&network, 1, name)), (None, before + 1), "bit {bit}");
    }
    for bytes in [&good[..63], &[&good[..], &[0]].concat(), &[]] {
        assert_eq!(exchange(&network, bytes), None);
    }
    assert_eq!(counter(&network, 1, "malformed"), 4);
    let to_another = addition(1, 1).to_bytes(&domain, Way { to: address(2), ..WAY() });
    assert_eq!((exchange(&network, &to_another), counter(&network, 1, "forged")), (None, 3));
    let reply = Packet { kind: kind::REPLY, ..addition(1, 1) }.to_bytes(&domain, WAY());
    assert_eq!((exchange(&network, &reply), counter(&network, 1, "malformed")), (None, 5));
    assert_eq!((member.words().load(3), counter(&network, 1, "requests")), (0, 0));
    assert!(exchange(&network, &good).is_some());
    // Another job has its own words, and cannot reach ours.
    let other = network.at(0, || Remote::new(&Domain::of(&[1; 16]), at(1), patience(50)).unwrap());
    let mut other = other;
    assert!(matches!(other.fetch_add(3, 1), Err(NicError::NoAnswer { .. })));
    let members = network.join(1, &[1; 16]).unwrap();
    assert_eq!((other.fetch_add(3, 5).unwrap(), members.words().load(3), member.words().load(3)), (0, 5, 1));
}

#[test]
fn other_packets_pass() {
    let Some(network) = hosts(2) else { return };
    let server = network.at(1, || UdpSocket::bind((address(1), 900)).unwrap());
    server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    network.at(0, || {
        let socket = UdpSocket::bind((address(0), 0)).unwrap();
        socket.send_to(&[7; 1200], (address(1), 900)).unwrap();
    });
    let mut bytes = [0; 2000];
    assert_eq!((server.recv(&mut bytes).unwrap(), bytes[1199]), (1200, 7));
}

#[test]
fn each_addition_happens_once_although_frames_are_lost() {
    let Some(network) = hosts(2) else { return };
    if let Err(why) = network.lose(250) {
        eprintln!("skipped: nft: {why}");
        return;
    }
    let member = network.join(1, &SECRET).unwrap();
    let mut remote = remote(&network, 0, 1);
    let old: Vec<u64> = (0..100).map(|_| remote.fetch_add(8, 1).unwrap()).collect();
    assert_eq!(old, (0..100).collect::<Vec<u64>>());
    assert_eq!(member.words().load(8), 100);
    let repeated = counter(&network, 1, "duplicates");
    assert!(repeated > 0, "a quarter of a hundred answers is lost, and so is none");
}

#[test]
fn a_member_that_spins_finds_replies_in_memory_and_one_that_sleeps_at_its_socket() {
    let Some(network) = hosts(2) else { return };
    let (member, other) = (network.join(0, &SECRET).unwrap(), network.join(1, &SECRET).unwrap());
    let spinning = Patience { spin: Duration::from_secs(5), ..Patience::default() };
    let remote_with = |patience| network.at(0, || member.remote(at(1), patience).unwrap());
    let mut remote = remote_with(spinning);
    let old: Vec<u64> = (0..100).map(|_| remote.fetch_add(8, 1).unwrap()).collect();
    assert_eq!((old, counter(&network, 0, "delivered")), ((0..100).collect(), 100));
    assert_eq!(
        remote.fetch_add(4096, 1).unwrap_err().to_string(),
        "word 4096 of 10.98.0.2: allowed are 0 to 4095"
    );
    // A stranger does not know the key, and is not delivered.
    assert_eq!((counter(&network, 0, "delivered"), counter(&network, 0, "forged")), (101, 0));
    // On a virtual interface the reply is there when the request has been sent. So a loss makes this one sleep.
    if let Err(why) = network.lose(250) {
        eprintln!("skipped: nft: {why}");
        return;
    }
    let mut sleepy = remote_with(Patience { spin: Duration::ZERO, ..Patience::default() });
    let old: Vec<u64> = (0..60)
        .map(|number| if number % 2 == 0 { &mut sleepy } else { &mut remote }.fetch_add(9, 1).unwrap())
        .collect();
    assert_eq!((old, other.words().load(9)), ((0..60).collect(), 60));
    assert!(counter(&network, 0, "delivered") < 161, "some replies went to the socket");
    network.lose(0).unwrap();
    // The seventeenth has no slot, and works as well. Without a membership the slots stay as long as somebody uses them.
    let mut many: Vec<Remote> = (0..17).map(|_| remote_with(spinning)).collect();
    drop(member);
    assert!(many.iter_mut().all(|remote| remote.fetch_add(10, 1).is_ok()));
    assert_eq!((other.words().load(10), counter(&network, 0, "delivered") >= 101 + 14), (17, true));
}

#[test]
fn changes_by_the_owner_and_by_other_hosts_are_atomic() {
    const EACH: u64 = 1000;
    let Some(network) = hosts(3) else { return };
    let member = network.join(2, &SECRET).unwrap();
    let ended = AtomicBool::new(false);
    let own = std::thread::scope(|scope| {
        let owner = scope.spawn(|| {
            let (mut added, mut replaced) = (0, 0);
            while !ended.load(Ordering::Relaxed) {
                member.words().fetch_add(0, 1);
                added += 1;
                // Seldom, so that others have a chance.
                if added % 4096 == 0 && replaced < EACH {
                    let old = member.words().load(1);
                    replaced += u64::from(member.words().compare_swap(1, old, old + 1) == old);
                }
            }
            (added, replaced)
        });
        let others = [0, 1].map(|host| {
            let mut remote = remote(&network, host, 2);
            scope.spawn(move || {
                let mut old = 0;
                for _ in 0..EACH {
                    remote.fetch_add(0, 1).unwrap();
                    loop {
                        match remote.compare_swap(1, old, old + 1).unwrap() {
                            found if found == old => break,
                            found => old = found,
                        }
                    }
                }
            })
        });
        for other in others {
            other.join().unwrap();
        }
        ended.store(true, Ordering::Relaxed);
        owner.join().unwrap()
    });
    let words = [0, 1].map(|place| member.words().load(place));
    assert_eq!(words, [own.0 + 2 * EACH, own.1 + 2 * EACH]);
}

#[test]
fn what_cannot_be_attached_is_refused_with_a_reason() {
    let Some(mut network) = hosts(1) else { return };
    let refusal = |network: &Network, interface: &str| {
        network
            .at(0, || Service::attach(interface, DEFAULT_PORT).err().map(|error| error.to_string()).unwrap())
    };
    let second = refusal(&network, INTERFACE);
    assert_eq!(second, "the kernel programs are attached to eth0 already; `weir nic status` shows them");
    let nowhere = refusal(&network, "eth7");
    assert_eq!(
        nowhere,
        "eth7 has no IPv4 address; allowed are interfaces with one: `ip -4 address` lists them"
    );
    let inside = refusal(&network, "lo");
    assert!(inside.starts_with("the driver of lo does not run XDP programs itself: "), "{inside}");
    assert_eq!(network.at(0, || control::interfaces().unwrap()), [INTERFACE]);
    network.detach();
    assert_eq!(network.at(0, || control::interfaces().unwrap()), [""; 0]);
    let error = network.join(0, &SECRET).unwrap_err();
    assert!(matches!(error, NicError::NotAttached { .. }), "{error}");
}

#[test]
fn a_host_without_programs_refuses() {
    let Ok(network) = Network::new(2) else { return };
    let mut remote = remote(&network, 0, 1);
    assert!(matches!(remote.fetch_add(0, 1), Err(NicError::Refused { .. })));
}
