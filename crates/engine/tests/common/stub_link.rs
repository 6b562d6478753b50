//! A link without peers' memory: senders attach, packets go nowhere, and calls are counted.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use weir_engine::Engine;
use weir_engine::config::Settings;
use weir_link::memory::UserMemory;
use weir_link::{
    ADDRESS_BYTES, Address, Addressing, Arrival, Bell, Capabilities, Inspect, LaneLease, Link, LinkKind,
    Polled, Properties, Quota, WakeUp,
};
use weir_proto::{Body, DataRegion, Geometry, LinkBusy, Packet, Peer, PeerFault, Scheme};

const QUOTA: Quota = Quota { data_slots: 4, start_slots: 4, credit_slots: 1 };
pub const LEASE: LaneLease =
    LaneLease { quota: QUOTA, epoch: 1, geometry: Geometry::SHARED_MEMORY, wanted: false };

/// The calls that the link has counted, and the peer that has died.
#[derive(Debug, Default)]
pub struct Calls {
    /// Calls of [`Link::check_peer`].
    pub checks: AtomicU64,
    /// Calls of [`WakeUp::sleep`].
    pub sleeps: AtomicU64,
    /// The number of the peer that has died. 0: none has.
    pub dead: AtomicU32,
    /// Checked peers, in order.
    pub checked: Mutex<Vec<u64>>,
    /// Peers that were forgotten, in order.
    pub forgotten: Mutex<Vec<Peer>>,
    /// Bodies of the packets that were sent, in order.
    pub sent: Mutex<Vec<Body>>,
}

/// See the head of this file.
pub struct StubLink {
    arrivals: VecDeque<Arrival>,
    calls: Arc<Calls>,
}

/// The address of the peer with this number, from 1.
pub fn address(number: u32) -> Address {
    let mut bytes = [0; ADDRESS_BYTES];
    bytes[8..12].copy_from_slice(&number.to_le_bytes());
    Address(bytes)
}

/// An engine with a core for itself, to which `attached` senders have attached, and what its link counts.
pub fn engine(attached: u32) -> (Engine<StubLink>, Arc<Calls>) {
    let arrival = |number| Arrival::Attached { lane: number, address: address(number), lease: LEASE };
    let (mut engine, calls) = engine_before((1..=attached).map(arrival).collect());
    while engine.progress() > 0 {}
    (engine, calls)
}

/// The same, before it polls these arrivals.
pub fn engine_before(arrivals: VecDeque<Arrival>) -> (Engine<StubLink>, Arc<Calls>) {
    let calls = Arc::new(Calls::default());
    let link = StubLink { arrivals, calls: Arc::clone(&calls) };
    let settings = Settings { scheme: Scheme::Static { piggyback: true }, ..Settings::default() };
    (Engine::with_link(link, &settings, &DataRegion::default(), 1, false), calls)
}

impl Link for StubLink {
    fn properties(&self) -> Properties {
        let geometry = Geometry::SHARED_MEMORY;
        Properties { geometry, other_geometries: Vec::new(), ordered: true, reliable: true }
    }
    fn connect(&mut self, _: Peer, _: &Address) -> Option<LaneLease> {
        Some(LEASE)
    }
    fn disconnect(&mut self, _: Peer) {}
    fn transmit(&mut self, _: Peer, packet: &Packet, _: Option<(&UserMemory, u64)>) -> Result<(), LinkBusy> {
        self.calls.sent.lock().expect("no panic while sending").push(packet.body);
        Ok(())
    }
    fn poll_into(&mut self, packet: &mut Packet) -> Option<Polled> {
        Some(match self.arrivals.pop_front()? {
            Arrival::Packet { from, packet: arrived } => {
                *packet = arrived;
                Polled::Packet { from }
            }
            arrival => Polled::Other(Box::new(arrival)),
        })
    }
    fn may_have_arrivals(&self) -> bool {
        !self.arrivals.is_empty()
    }
    fn accept(&mut self, _: u32, _: Peer) {}
    fn release(&mut self, _: Peer) {}
    fn copy_payload(&self, _: &UserMemory, _: u64, _: u64) {}
    fn retire(&mut self) {}
    fn check_peer(&mut self, peer: Peer, address: &Address) {
        self.calls.checks.fetch_add(1, Relaxed);
        self.calls.checked.lock().expect("no panic while checking").push(address.identity());
        let dead = self.calls.dead.load(Relaxed);
        if dead > 0 && *address == self::address(dead) {
            self.arrivals.push_back(Arrival::Lost { peer, fault: PeerFault::Died });
        }
    }
    fn forget(&mut self, peer: Peer) {
        self.calls.forgotten.lock().expect("no panic while forgetting").push(peer);
    }
    fn close(&mut self) {}
    fn abandon(&mut self) {}
}

impl Addressing for StubLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Local
    }
    fn address(&self) -> Address {
        address(u32::MAX)
    }
    fn introduce(&mut self, _: &Address) {}
    fn reaches(&self, _: &Address) -> bool {
        true
    }
}

impl Inspect for StubLink {}

impl Capabilities for StubLink {
    fn wake_up(&mut self) -> Option<&mut dyn WakeUp> {
        Some(self)
    }
}

impl WakeUp for StubLink {
    fn sleep(&mut self, at_most_ns: u64) {
        self.calls.sleeps.fetch_add(1, Relaxed);
        std::thread::sleep(std::time::Duration::from_nanos(at_most_ns));
    }
    fn bell(&self) -> Arc<dyn Bell> {
        Arc::new(MuteBell)
    }
}

/// It ends no sleep: the link sleeps as long as it is told.
struct MuteBell;

impl Bell for MuteBell {
    fn ring(&self) {}
}
