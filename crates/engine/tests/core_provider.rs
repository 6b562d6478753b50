//! Tests of endpoints with shared memory and a core provider, which delivers in any order.

#[path = "common/exchange.rs"]
mod exchange;
#[path = "common/faults.rs"]
mod faults;

use exchange::{AnyEngine, exchange};
use faults::{directory, settings};
use weir_engine::Engine;
use weir_engine::config::{LinkChoice, Settings};
use weir_link::LinkKind;
use weir_link::ofi::exchange::Exchange;
use weir_link::ofi::{CoreEndpoint, CoreError, MESSAGE_BYTES};
use weir_proto::Scheme;

const BUDGET_BYTES: u64 = 1 << 26;

fn open(settings: &Settings, core: &Exchange, number: u64) -> Engine {
    let open_core = |provider: &str, net: Option<&str>| -> Result<Box<dyn CoreEndpoint>, CoreError> {
        assert_eq!((provider, net), ("exchange", Some("net 7")));
        Ok(Box::new(core.open(number)))
    };
    Engine::open_in_libfabric(settings, 3, false, &open_core).expect("an endpoint")
}

/// Endpoints 0 and 1 are on one node, endpoint 2 is on another.
fn exchange_over(links: &LinkChoice, scheme: Scheme, seed: u64) -> u64 {
    let (node, other_node) = (directory(), directory());
    let core = Exchange::new(seed, 64, MESSAGE_BYTES);
    let engines: Vec<Box<dyn AnyEngine>> = [(&node, 1), (&node, 2), (&other_node, 3)]
        .into_iter()
        .map(|(directory, number)| {
            let settings = Settings {
                links: links.clone(),
                net: Some("net 7".to_owned()),
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
        let beside = exchange_over(&LinkChoice::SharedMemoryAndOfi(provider.clone()), scheme, 1);
        let alone = exchange_over(&LinkChoice::Ofi(provider), scheme, 1);
        assert!(beside > 500 && alone > beside, "{beside} messages, {alone} alone");
    }
}

#[test]
fn a_program_without_libfabric_has_no_core_provider() {
    let directory = directory();
    let settings = settings(&directory, Scheme::Dynamic { piggyback: true }, BUDGET_BYTES);
    let settings = Settings { links: LinkChoice::Ofi(String::from("tcp")), ..settings };
    let error = Engine::open(&settings, 2, false).err().expect("a refusal").to_string();
    assert_eq!(error, "FI_WEIR_LINK: ofi:tcp needs a program that uses libfabric");
}

#[test]
fn a_scheme_without_credits_is_refused() {
    let directory = directory();
    let settings = settings(&directory, Scheme::Unlimited, BUDGET_BYTES);
    let settings = Settings { links: LinkChoice::Ofi(String::from("tcp")), ..settings };
    let error = Engine::open(&settings, 2, false).err().expect("a refusal").to_string();
    assert!(error.starts_with("FI_WEIR_FLOW=unlimited: works in shared memory only"), "{error}");
}
