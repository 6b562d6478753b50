//! A link whose endpoint sleeps until something wakes it: no time passes for it. For tests in one thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use weir_link::memory::UserMemory;
use weir_link::shm::ShmLink;
use weir_link::{
    Address, Addressing, Bell, Capabilities, FreeSlots, Inspect, LaneLease, LaneReclamation, Link, LinkKind,
    Polled, Properties, RemoteMemory, WakeUp,
};
use weir_proto::{LinkBusy, Packet, Peer};

/// The mailbox in shared memory. [`WakeUp::sleep`] returns at once, and counts.
pub struct Sleeper {
    link: ShmLink,
    sleeps: Arc<AtomicU64>,
}

impl Sleeper {
    pub fn new(link: ShmLink, sleeps: Arc<AtomicU64>) -> Sleeper {
        Sleeper { link, sleeps }
    }
}

impl Link for Sleeper {
    fn properties(&self) -> Properties {
        self.link.properties()
    }
    fn connect(&mut self, peer: Peer, address: &Address) -> Option<LaneLease> {
        self.link.connect(peer, address)
    }
    fn disconnect(&mut self, to: Peer) {
        self.link.disconnect(to);
    }
    fn transmit(
        &mut self,
        to: Peer,
        packet: &Packet,
        payload: Option<(&UserMemory, u64)>,
    ) -> Result<(), LinkBusy> {
        self.link.transmit(to, packet, payload)
    }
    fn poll_into(&mut self, packet: &mut Packet) -> Option<Polled> {
        self.link.poll_into(packet)
    }
    fn may_have_arrivals(&self) -> bool {
        self.link.may_have_arrivals()
    }
    fn accept(&mut self, lane: u32, peer: Peer) {
        self.link.accept(lane, peer);
    }
    fn release(&mut self, peer: Peer) {
        self.link.release(peer);
    }
    fn copy_payload(&self, memory: &UserMemory, offset: u64, bytes: u64) {
        self.link.copy_payload(memory, offset, bytes);
    }
    fn retire(&mut self) {
        self.link.retire();
    }
    fn check_peer(&mut self, peer: Peer, address: &Address) {
        self.link.check_peer(peer, address);
    }
    fn forget(&mut self, peer: Peer) {
        self.link.forget(peer);
    }
    fn deadline(&self, _: Instant) -> Option<Instant> {
        None // the time does not come
    }
    fn close(&mut self) {
        self.link.close();
    }
    fn abandon(&mut self) {
        self.link.abandon();
    }
}

impl Addressing for Sleeper {
    fn kind(&self) -> LinkKind {
        self.link.kind()
    }
    fn address(&self) -> Address {
        self.link.address()
    }
    fn introduce(&mut self, address: &Address) {
        self.link.introduce(address);
    }
    fn reaches(&self, address: &Address) -> bool {
        self.link.reaches(address)
    }
}

impl Inspect for Sleeper {}

impl Capabilities for Sleeper {
    fn remote_memory(&mut self) -> Option<&mut dyn RemoteMemory> {
        self.link.remote_memory()
    }
    fn wake_up(&mut self) -> Option<&mut dyn WakeUp> {
        Some(self)
    }
    fn lane_reclamation(&mut self) -> Option<&mut dyn LaneReclamation> {
        None // nothing happens a few times a second
    }
    fn free_slots(&mut self) -> Option<&mut dyn FreeSlots> {
        self.link.free_slots()
    }
}

impl WakeUp for Sleeper {
    fn sleep(&mut self, _: u64) {
        self.sleeps.fetch_add(1, Relaxed);
        self.link.wake_up().expect("shared memory can sleep").sleep(0);
    }
    fn bell(&self) -> Arc<dyn Bell> {
        unreachable!("nobody rings this link")
    }
}
