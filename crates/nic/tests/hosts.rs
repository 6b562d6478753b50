//! Tests of the kernel programs across pretended hosts. Where they cannot run, they print why and do nothing.
#![allow(missing_docs, reason = "test code")]

use std::collections::BTreeSet;
use std::net::{SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use weir_nic::control::{self, Command};
use weir_nic::format::{COUNTERS, DEFAULT_PORT, Packet, Way, kind, status};
use weir_nic::pretended::{INTERFACE, Network, address};
use weir_nic::programs::AttachError;
use weir_nic::service::Service;
use weir_nic::{
    AllReduce, Barrier, Combination, Domain, Element, Membership, NicError, Operation, Patience, Remote,
};

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

/// Members of a barrier on these hosts go through `rounds` rounds, and check that nobody is early.
fn pass_barriers(network: &Network, hosts: &[usize], rounds: u64) {
    let arrived = AtomicU64::new(0);
    let list: Vec<SocketAddrV4> = hosts.iter().map(|host| at(*host)).collect();
    std::thread::scope(|scope| {
        for (member, host) in (0..).zip(hosts) {
            let (arrived, list) = (&arrived, &list);
            scope.spawn(move || {
                network.enter(*host);
                let mut random = fastrand::Rng::with_seed(u64::from(member));
                let domain = Domain::of(&SECRET);
                let mut barrier = Barrier::new(&domain, list, member, 17, Patience::default()).unwrap();
                for round in 1..=rounds {
                    if random.u8(..) < 16 {
                        std::thread::sleep(Duration::from_micros(random.u64(..500)));
                    }
                    arrived.fetch_add(1, Ordering::SeqCst);
                    if random.bool() {
                        barrier.enter().unwrap();
                    } else {
                        barrier.start().unwrap();
                        while !barrier.test().unwrap() {
                            std::thread::yield_now();
                        }
                    }
                    let there = arrived.load(Ordering::SeqCst);
                    assert!(there >= round * list.len() as u64, "member {member} left round {round} early");
                }
            });
        }
    });
}

#[test]
fn no_member_leaves_a_barrier_before_all_have_come() {
    for on_hosts in [&[0, 1][..], &[0, 1, 2], &[1, 0, 2, 1, 1], &[0, 1, 2, 3, 4, 5, 6, 7, 0]] {
        let Some(network) = hosts(on_hosts.iter().collect::<BTreeSet<_>>().len()) else { return };
        let members: Vec<Membership> = (0..*on_hosts.iter().max().unwrap() + 1)
            .map(|host| network.join(host, &SECRET).unwrap())
            .collect();
        pass_barriers(&network, on_hosts, 200);
        let word = members[on_hosts[0]].words().load(17);
        assert_eq!(word, 200 << 32, "{on_hosts:?}");
        assert_eq!(counter(&network, on_hosts[0], "releases"), 200);
    }
}

#[test]
fn barriers_complete_although_frames_are_lost() {
    let Some(network) = hosts(4) else { return };
    if let Err(why) = network.lose(150) {
        eprintln!("skipped: nft: {why}");
        return;
    }
    let _members: Vec<Membership> = (0..4).map(|host| network.join(host, &SECRET).unwrap()).collect();
    pass_barriers(&network, &[0, 1, 2, 3], 40);
}

/// The vector of a member in a round: any bits. Floats are numbers of any size, so that their sums depend on the order.
fn vector_of(element: Element, member: u64, round: u64, words: usize) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(member << 32 | round);
    let mut word = || {
        let [a, b] = [(); 2].map(|()| (random.f64() - 0.5) * 10_f64.powi(random.i32(-8..8)));
        match element {
            Element::F64 => a.to_bits(),
            Element::F32 => u64::from((a as f32).to_bits()) << 32 | u64::from((b as f32).to_bits()),
            _ => random.u64(..),
        }
    };
    (0..words).map(|_| word()).collect()
}

/// What a combination of all vectors must give, computed in the order of members.
fn combined(combination: Combination, element: Element, vectors: &[Vec<u64>]) -> Vec<u64> {
    fn of_floats<F: PartialOrd + std::ops::Add<Output = F> + std::ops::Mul<Output = F>>(
        combination: Combination,
        a: F,
        b: F,
    ) -> F {
        match combination {
            Combination::Sum => a + b,
            Combination::Prod => a * b,
            Combination::Min if b < a => b,
            Combination::Max if b > a => b,
            _ => a,
        }
    }
    let half = |a: u32, b: u32| match (combination, element) {
        (_, Element::F32) => of_floats(combination, f32::from_bits(a), f32::from_bits(b)).to_bits(),
        (Combination::Prod, _) => a.wrapping_mul(b),
        (Combination::Sum, _) => a.wrapping_add(b),
        (Combination::Min, Element::I32) => (a as i32).min(b as i32) as u32,
        (Combination::Max, Element::I32) => (a as i32).max(b as i32) as u32,
        (Combination::Min, _) => a.min(b),
        (Combination::Max, _) => a.max(b),
        (Combination::And, _) => a & b,
        (Combination::Or, _) => a | b,
    };
    let whole = |a: u64, b: u64| match (combination, element) {
        (_, Element::F64) => of_floats(combination, f64::from_bits(a), f64::from_bits(b)).to_bits(),
        (Combination::Prod, Element::U64 | Element::I64) => a.wrapping_mul(b),
        (_, Element::U32 | Element::I32 | Element::F32) => {
            u64::from(half((a >> 32) as u32, (b >> 32) as u32)) << 32 | u64::from(half(a as u32, b as u32))
        }
        (Combination::Sum, _) => a.wrapping_add(b),
        (Combination::Min, Element::I64) => (a as i64).min(b as i64) as u64,
        (Combination::Max, Element::I64) => (a as i64).max(b as i64) as u64,
        (Combination::Min, _) => a.min(b),
        (Combination::Max, _) => a.max(b),
        (Combination::And, _) => a & b,
        (Combination::Or, _) => a | b,
    };
    let words = vectors[0].len();
    let word = |at: usize| vectors.iter().map(|vector| vector[at]).reduce(whole).unwrap();
    (0..words).map(word).collect()
}

/// Members on these hosts do `rounds` all-reduces of all kinds and lengths, and check all results.
fn all_reduce(network: &Network, hosts: &[usize], rounds: u64) {
    use Combination::{And, Max, Min, Or, Prod, Sum};
    use Element::{F32, F64, I32, I64, U32, U64};
    let pairs: Vec<(Combination, Element)> = [Sum, Min, Max, Prod, And, Or]
        .into_iter()
        .flat_map(|combination| [U32, I32, U64, I64, F32, F64].map(|element| (combination, element)))
        .filter(|(combination, element)| element.has(*combination))
        .collect();
    let list: Vec<SocketAddrV4> = hosts.iter().map(|host| at(*host)).collect();
    std::thread::scope(|scope| {
        for (member, host) in (0..).zip(hosts) {
            let (list, pairs) = (&list, &pairs);
            scope.spawn(move || {
                network.enter(*host);
                let domain = Domain::of(&SECRET);
                let mut place = AllReduce::new(&domain, list, member, 18, Patience::default()).unwrap();
                for round in 0..rounds {
                    let (combination, element) = pairs[round as usize % pairs.len()];
                    let words = [1, 2, 7, 128][round as usize / 3 % 4];
                    let vector_of = |member| vector_of(element, member, round, words);
                    let vectors: Vec<_> = (0..list.len() as u64).map(vector_of).collect();
                    let result = place.perform(combination, element, &vectors[member as usize]).unwrap();
                    let expected = combined(combination, element, &vectors);
                    assert_eq!(result, expected, "{combination:?} {element:?} of {words}, round {round}");
                }
            });
        }
    });
}

#[test]
fn an_all_reduce_combines_the_vectors_of_all_members() {
    for on_hosts in [&[0, 1][..], &[1, 0, 2, 1, 1], &[0, 1, 2, 3, 4, 5, 6, 7, 0]] {
        let Some(network) = hosts(on_hosts.iter().collect::<BTreeSet<_>>().len()) else { return };
        let members: Vec<Membership> = (0..*on_hosts.iter().max().unwrap() + 1)
            .map(|host| network.join(host, &SECRET).unwrap())
            .collect();
        all_reduce(&network, on_hosts, 200);
        assert_eq!(members[on_hosts[0]].words().load(18), 200 << 32, "{on_hosts:?}");
        assert_eq!(counter(&network, on_hosts[0], "releases"), 200);
    }
}

#[test]
fn all_reduces_complete_with_the_same_results_although_frames_are_lost() {
    let Some(network) = hosts(4) else { return };
    if let Err(why) = network.lose(150) {
        eprintln!("skipped: nft: {why}");
        return;
    }
    let _members: Vec<Membership> = (0..4).map(|host| network.join(host, &SECRET).unwrap()).collect();
    all_reduce(&network, &[0, 1, 2, 3], 60);
}

#[test]
fn members_of_an_all_reduce_that_differ_get_an_error_and_no_result() {
    let Some(network) = hosts(2) else { return };
    let _members: Vec<Membership> = (0..2).map(|host| network.join(host, &SECRET).unwrap()).collect();
    let list: Vec<SocketAddrV4> = (0..2).map(at).collect();
    let perform = |member: u32, place: u64, combination, words: usize| {
        network.at(member as usize, || {
            let domain = Domain::of(&SECRET);
            let mut own = AllReduce::new(&domain, &list, member, place, patience(300)).unwrap();
            own.perform(combination, Element::U64, &vec![1; words]).map_err(|error| error.to_string())
        })
    };
    for (place, of_one) in [(5, (Combination::Sum, 3)), (6, (Combination::Max, 2))] {
        let results = std::thread::scope(|scope| {
            let one = scope.spawn(|| perform(1, place, of_one.0, of_one.1));
            [perform(0, place, Combination::Sum, 2), one.join().unwrap()]
        });
        let text =
            format!("the members of the all-reduce at word {place} have different lengths or operations");
        assert_eq!(results, [Err(text.clone()), Err(text)]);
    }
    let domain = Domain::of(&SECRET);
    let mut own = AllReduce::new(&domain, &list, 0, 7, patience(300)).unwrap();
    let bitwise = own.perform(Combination::And, Element::F64, &[1]).unwrap_err().to_string();
    assert_eq!(bitwise, "combination of floats And: allowed are Sum, Min, Max and Prod");
    let long = perform(0, 7, Combination::Sum, 129).unwrap_err();
    assert_eq!(long, "words of a vector 129: allowed are 1 to 128");
}

#[test]
fn a_barrier_names_the_members_that_do_not_come() {
    let Some(network) = hosts(3) else { return };
    let _members: Vec<Membership> = (0..3).map(|host| network.join(host, &SECRET).unwrap()).collect();
    let hosts: Vec<SocketAddrV4> = (0..3).map(at).collect();
    let enter = |member: u32| {
        network.at(member as usize, || {
            let domain = Domain::of(&SECRET);
            let mut barrier = Barrier::new(&domain, &hosts, member, 0, patience(300)).unwrap();
            barrier.enter().map_err(|error| error.to_string())
        })
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| enter(2));
        let expected = "members [1] have not come to the barrier for 300 ms";
        assert_eq!(
            (enter(0).unwrap_err(), other.join().unwrap().unwrap_err()),
            (expected.into(), expected.into())
        );
    });
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
