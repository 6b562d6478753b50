//! Tests of endpoints with shared memory and a core provider, which delivers in any order.

#[path = "common/exchange.rs"]
mod exchange;
#[path = "common/faults.rs"]
mod faults;

use exchange::{AnyEngine, exchange};
use faults::{directory, settings};
use std::net::Ipv4Addr;
use weir_engine::Engine;
use weir_engine::config::{Admission, LinkChoice, Settings};
use weir_engine::job::Job;
use weir_link::ofi::exchange::Exchange;
use weir_link::ofi::{CoreAccess, CoreEndpoint, CoreError, MESSAGE_BYTES};
use weir_link::shm::node_segment::JobKey;
use weir_link::{LinkKind, Protection};
use weir_proto::Scheme;

const BUDGET_BYTES: u64 = 1 << 26;

fn open(settings: &Settings, core: &Exchange, number: u64) -> Engine {
    let open_core = |provider: &str, net: Option<&str>, access| -> Result<Box<dyn CoreEndpoint>, CoreError> {
        assert_eq!((provider, net), ("exchange", Some("net 7")));
        Ok(Box::new(match access {
            CoreAccess::Packets => core.open(number),
            CoreAccess::Memory => core.open_with_memory(number),
            CoreAccess::Large => core.open_with_large(number),
        }))
    };
    Engine::open_in_libfabric(settings, 3, false, &open_core).expect("an endpoint")
}

/// Endpoints 0 and 1 are on one node, endpoint 2 is on another.
fn exchange_over(links: &LinkChoice, scheme: Scheme, protection: Protection, seed: u64) -> u64 {
    let (node, other_node) = (directory(), directory());
    let core = Exchange::new(seed, 64, MESSAGE_BYTES);
    let engines: Vec<Box<dyn AnyEngine>> = [(&node, 1), (&node, 2), (&other_node, 3)]
        .into_iter()
        .map(|(directory, number)| {
            let settings = Settings {
                links: links.clone(),
                net: Some("net 7".to_owned()),
                protection,
                ..settings(directory, scheme, BUDGET_BYTES)
            };
            let engine = open(&settings, &core, number);
            assert!(engine.address().part(LinkKind::Ofi).is_some());
            Box::new(engine) as Box<dyn AnyEngine>
        })
        .collect();
    exchange(engines, &[(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1), (0, 0)]);
    core.counters().taken
}

#[test]
fn ranks_of_a_node_use_shared_memory_beside_a_core_provider_unless_it_is_alone() {
    for scheme in [Scheme::Dynamic { piggyback: true }, Scheme::Static { piggyback: false }, Scheme::Demand] {
        let provider = String::from("exchange");
        let (beside, alone) = (LinkChoice::SharedMemoryAndOfi(provider.clone()), LinkChoice::Ofi(provider));
        let [beside, alone] =
            [beside, alone].map(|links| exchange_over(&links, scheme, Protection::Encrypt, 1));
        assert!(beside > 500 && alone > beside, "{beside} messages, {alone} alone");
    }
}

#[test]
fn ranks_of_a_node_know_each_other_with_any_protection() {
    let links = LinkChoice::SharedMemoryAndOfi(String::from("exchange"));
    for protection in Protection::ALL {
        exchange_over(&links, Scheme::Demand, protection, 2);
    }
}

/// Large messages between two nodes, whose endpoints want these protections. Returns the copies that the core has made, and its
/// large messages.
fn copies_between(protections: [Protection; 2], cross_memory: bool, seed: u64) -> u64 {
    copies_with(Admission::Auto, protections, cross_memory, seed)
}

fn copies_with(admission: Admission, protections: [Protection; 2], cross_memory: bool, seed: u64) -> u64 {
    let nodes = [directory(), directory()];
    let core = Exchange::new(seed, 64, MESSAGE_BYTES);
    let engines: Vec<Box<dyn AnyEngine>> = (0..2)
        .map(|number: usize| {
            let others = settings(&nodes[number], Scheme::Demand, BUDGET_BYTES);
            let settings = Settings {
                links: LinkChoice::SharedMemoryAndOfi(String::from("exchange")),
                net: Some("net 7".to_owned()),
                protection: protections[number],
                cross_memory,
                admission,
                far_eager_bytes: others.eager_bytes,
                ..others
            };
            Box::new(open(&settings, &core, number as u64 + 1)) as Box<dyn AnyEngine>
        })
        .collect();
    exchange(engines, &[(0, 1), (1, 0)]);
    let registrations = [1, 2].map(|number| core.registrations(number));
    assert_eq!(registrations, [0, 0], "all messages have ended");
    core.counters().copies
}

#[test]
fn the_core_reads_large_messages_if_neither_end_wants_protection() {
    let [off, authenticate] = [Protection::Off, Protection::Authenticate];
    let copies = copies_between([off, off], true, 1);
    // Of seven messages two have more than `eager_bytes`, and one of them takes two pieces.
    assert!(copies > 500, "{copies} copies");
    assert_eq!(copies_between([off, authenticate], true, 2), 0, "each end has another way");
    assert_eq!(copies_between([off, off], false, 3), 0);
}

#[test]
fn what_admission_holds_back_is_copied_by_nobody_else() {
    for protection in [Protection::Off, Protection::Encrypt] {
        assert_eq!(copies_with(Admission::Token, [protection; 2], true, 4), 0);
    }
}

#[test]
fn protected_contents_pass_in_large_messages() {
    for (seed, other) in [(1, Protection::Encrypt), (2, Protection::Authenticate)] {
        assert!(copies_between([Protection::Encrypt, other], true, seed) > 500);
    }
    assert_eq!(copies_between([Protection::Encrypt; 2], false, 3), 0);
}

#[test]
fn a_program_without_libfabric_has_no_core_provider() {
    let directory = directory();
    let settings = settings(&directory, Scheme::Dynamic { piggyback: true }, BUDGET_BYTES);
    let settings = Settings { links: LinkChoice::Ofi(String::from("tcp")), ..settings };
    let error = Engine::open(&settings, 2, false).err().expect("a refusal").to_string();
    assert_eq!(error, "FI_WEIR_LINK: ofi:tcp needs a program that uses libfabric");
}

/// Endpoints 0 and 1 are on one host, endpoint 2 is on another. Packets carry everything.
#[test]
fn ranks_send_for_each_other_over_a_core_whose_names_are_those_of_sockets() {
    for admission in [Admission::Proxy, Admission::ProxyToken] {
        let (node, other_node) = (directory(), directory());
        let core = Exchange::new(4, 64, MESSAGE_BYTES);
        let hosts = [(&node, 2), (&node, 2), (&other_node, 3)];
        let open = |(port, (directory, host)): (u16, (&tempfile::TempDir, u8))| {
            let settings = Settings {
                links: LinkChoice::SharedMemoryAndOfi(String::from("exchange")),
                admission,
                admission_tokens: 3,
                cross_memory: false,
                ..settings(directory, Scheme::Demand, BUDGET_BYTES)
            };
            let open_core = |_: &str, _: Option<&str>, _| -> Result<Box<dyn CoreEndpoint>, CoreError> {
                Ok(Box::new(core.open_on(Ipv4Addr::new(127, 0, 0, host), port)))
            };
            let job = Job::from(3).with_key(JobKey::new(&"a job"));
            let engine = Engine::open_in_libfabric(&settings, job, false, &open_core).expect("an endpoint");
            Box::new(engine) as Box<dyn AnyEngine>
        };
        let engines = (1..).zip(hosts).map(open).collect();
        exchange(engines, &[(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]);
    }
}

#[test]
fn ranks_do_not_send_for_each_other_over_a_core_whose_names_do_not_say_the_host() {
    for (admission, word) in [(Admission::Proxy, "proxy"), (Admission::ProxyToken, "proxy,token")] {
        let directory = directory();
        let links = LinkChoice::Ofi(String::from("exchange"));
        let settings = Settings { links, admission, ..settings(&directory, Scheme::Demand, BUDGET_BYTES) };
        let core = Exchange::new(5, 64, MESSAGE_BYTES);
        let open_core = |_: &str, _: Option<&str>, _| -> Result<Box<dyn CoreEndpoint>, CoreError> {
            Ok(Box::new(core.open(1)))
        };
        let refused = Engine::open_in_libfabric(&settings, 2, false, &open_core).err().expect("a refusal");
        assert!(refused.is_setting());
        let why = format!(
            "FI_WEIR_ADMIT={word}: with FI_WEIR_LINK=ofi:exchange, allowed are off, rate, token, auto; ranks send for each \
             other over udp, and over core providers whose addresses are those of sockets, such as tcp"
        );
        assert_eq!(refused.to_string(), why);
    }
}

#[test]
fn a_scheme_without_credits_is_refused() {
    let directory = directory();
    let settings = settings(&directory, Scheme::Unlimited, BUDGET_BYTES);
    let settings = Settings { links: LinkChoice::Ofi(String::from("tcp")), ..settings };
    let error = Engine::open(&settings, 2, false).err().expect("a refusal").to_string();
    assert!(error.starts_with("FI_WEIR_FLOW=unlimited: works in shared memory only"), "{error}");
}
