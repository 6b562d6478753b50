//! Engines with admission over shared memory and over a network that is simulated.
#![allow(dead_code, reason = "each test file uses a part")]

use weir_engine::Engine;
use weir_engine::config::{Admission, Settings, Thresholds};
use weir_engine::job::Job;
use weir_link::Link;
use weir_link::datagram::lossy::{Impairments, LossyNetwork, Switch};
use weir_link::datagram::network::DatagramNetwork;
use weir_link::datagram::{DatagramLink, DatagramOptions, HelpedLink};
use weir_link::links::Links;
use weir_link::shm::ShmLink;
use weir_link::shm::node_segment::{JobKey, NodeHandle};
use weir_proto::Scheme;
use weir_proto::reliability::ReliabilityConfig;

use super::faults::settings;

pub type TwoLinks = Engine<Links<ShmLink>>;

pub const MICROSECOND: u64 = 1_000;
pub const LIMIT_NS: u64 = 1_000_000 * MICROSECOND;

/// A network that loses and refuses some datagrams. Each look at it takes some time.
pub const LOSSY: Impairments = Impairments {
    lost: 20,
    repeated: 0,
    changed: 0,
    marked: 0,
    refused: 50,
    delay_ns: 10 * MICROSECOND,
    jitter_ns: 20 * MICROSECOND,
    look_ns: MICROSECOND,
};
pub const GOOD: Impairments = Impairments { lost: 0, refused: 0, jitter_ns: 0, ..LOSSY };

/// Messages from 1000 bytes on take tokens, the others none.
pub const THRESHOLDS: &str = "udp:1000:1:3";

pub fn thresholds(word: &str) -> Thresholds {
    word.parse().expect("thresholds")
}

pub fn with(directory: &tempfile::TempDir, admission: Admission) -> Settings {
    let scheme = Scheme::Dynamic { piggyback: true };
    Settings {
        admission,
        admission_tokens: 3,
        admission_delay_ns: 20_000,
        admission_thresholds: thresholds(THRESHOLDS),
        ..settings(directory, scheme, 1 << 26)
    }
}

pub fn open(settings: &Settings, switch: &Switch, port: u16) -> TwoLinks {
    open_with_limit(settings, switch, port, LIMIT_NS)
}

/// The same with a helper of the link, as in a program.
pub fn open_helped(settings: &Settings, switch: &Switch, port: u16, limit_ns: u64) -> TwoLinks {
    open_over(settings, switch, port, limit_ns, |datagrams| Box::new(HelpedLink::over(datagrams)))
}

/// - `limit_ns`: a peer that is silent for so long is lost.
pub fn open_with_limit(settings: &Settings, switch: &Switch, port: u16, limit_ns: u64) -> TwoLinks {
    open_over(settings, switch, port, limit_ns, |datagrams| Box::new(datagrams))
}

fn open_over(
    settings: &Settings,
    switch: &Switch,
    port: u16,
    limit_ns: u64,
    as_link: fn(DatagramLink<LossyNetwork>) -> Box<dyn Link>,
) -> TwoLinks {
    let make = |shm: ShmLink, node: Option<NodeHandle>| {
        assert!(node.is_some());
        let reliability = ReliabilityConfig { limit_ns, ..ReliabilityConfig::default() };
        let options = DatagramOptions { reliability, ..DatagramOptions::new(shm.quota()) };
        let datagrams = DatagramLink::open(&shm.address(), switch.open(port), options);
        let datagrams = datagrams.with_gate(settings.send_gate(node.as_ref(), 0));
        let domain = switch.open(port).domain();
        Links::new(shm, vec![as_link(datagrams.with_proxy(settings.send_proxy(node.as_ref(), domain)))])
    };
    let job = Job::from(3).with_key(JobKey::new(&"a job"));
    Engine::open_over(settings, job, false, make).expect("an endpoint")
}
