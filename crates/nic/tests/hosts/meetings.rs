//! Barriers and all-reduces.

use crate::{SECRET, at, counter, hosts, patience};
use std::collections::BTreeSet;
use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use weir_nic::pretended::Network;
use weir_nic::{AllReduce, Barrier, Combination, Domain, Element, Membership, Patience};

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
