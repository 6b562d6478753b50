//! A link over datagrams with a helper ([`HelpedLink`]): what is in an open bundle leaves although its program polls no more.
//!
//! The thread starts when the first bundle waits, so an endpoint without remote peers has none. It ends when the link closes.
//! It only sends. What arrives, timers and losses wait for the program, as everything else that needs progress.

use super::helper::{Notice, run};
use super::link::DatagramLink;
use super::network::DatagramNetwork;
use super::options::DatagramOptions;
use crate::cores::spawn_without_signals;
use crate::helper_lock::{Helper, Owner, helper_lock};
use crate::memory::UserMemory;
use crate::{
    Acknowledgements, Address, Addressing, Arrival, Bell, Capabilities, CopyStatus, Inspect, LaneLease, Link,
    LinkKind, LocalHandle, MemoryAttributes, NetworkReport, PathReport, PeerAccess, Polled, Properties,
    Registration, RemoteCopy, RemoteMemory, WakeUp,
};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;
use weir_proto::{CopyFault, LinkBusy, Packet, Peer};

/// See the head of this file.
pub struct HelpedLink<N: DatagramNetwork> {
    link: Owner<DatagramLink<N>>,
    /// The link has [`RemoteMemory`].
    has_memory: bool,
    /// For the thread. `None`: it has started, or could not be started.
    helper: Option<Helper<DatagramLink<N>>>,
    notice: Arc<Notice>,
    thread: Option<JoinHandle<()>>,
}

impl<N: DatagramNetwork + 'static> HelpedLink<N> {
    /// As [`DatagramLink::open`].
    ///
    /// # Panics
    /// As there.
    pub fn open(base: &Address, network: N, options: DatagramOptions) -> HelpedLink<N> {
        HelpedLink::over(DatagramLink::open(base, network, options))
    }

    /// `link` with a helper.
    pub fn over(mut link: DatagramLink<N>) -> HelpedLink<N> {
        let has_memory = link.remote_memory().is_some();
        let (link, helper) = helper_lock(link);
        HelpedLink { link, has_memory, helper: Some(helper), notice: Arc::new(Notice::new()), thread: None }
    }

    /// Calls the link.
    #[inline]
    fn call<R>(&mut self, call: impl FnOnce(&mut DatagramLink<N>) -> R) -> R {
        let mut link = self.link.enter();
        let result = call(&mut link);
        let waits = link.waits_for_poll();
        self.notice.note(waits);
        drop(link);
        if waits && self.helper.is_some() {
            self.start();
        }
        result
    }

    /// Starts the thread. If the system has none, bundles wait for the next poll.
    #[cold]
    fn start(&mut self) {
        let Some(helper) = self.helper.take() else { return };
        let notice = Arc::clone(&self.notice);
        let work = move || run(helper, &notice, DatagramLink::send_waiting);
        self.thread = spawn_without_signals("weir-bundles", work).ok();
    }
}

impl<N: DatagramNetwork> HelpedLink<N> {
    /// Ends the thread.
    fn end_help(&mut self) {
        self.helper = None;
        if let Some(thread) = self.thread.take() {
            self.notice.stop();
            let _ = thread.join(); // a panic of the thread has been reported
        }
    }
}

impl<N: DatagramNetwork + 'static> Link for HelpedLink<N> {
    fn properties(&self) -> Properties {
        self.link.look().properties()
    }

    fn connect(&mut self, peer: Peer, address: &Address) -> Option<LaneLease> {
        self.call(|link| link.connect(peer, address))
    }

    fn disconnect(&mut self, to: Peer) {
        self.call(|link| link.disconnect(to));
    }

    fn transmit(
        &mut self,
        to: Peer,
        packet: &Packet,
        payload: Option<(&UserMemory, u64)>,
    ) -> Result<(), LinkBusy> {
        self.call(|link| link.transmit(to, packet, payload))
    }

    fn poll(&mut self) -> Option<Arrival> {
        self.call(Link::poll)
    }

    fn poll_into(&mut self, packet: &mut Packet) -> Option<Polled> {
        self.call(|link| link.poll_into(packet))
    }

    fn may_have_arrivals(&self) -> bool {
        self.link.look().may_have_arrivals()
    }

    fn accept(&mut self, lane: u32, peer: Peer) {
        self.call(|link| link.accept(lane, peer));
    }

    fn release(&mut self, peer: Peer) {
        self.call(|link| link.release(peer));
    }

    fn copy_payload(&self, memory: &UserMemory, offset: u64, bytes: u64) {
        self.link.look().copy_payload(memory, offset, bytes);
    }

    fn retire(&mut self) {
        self.call(Link::retire);
    }

    fn check_peer(&mut self, peer: Peer, address: &Address) {
        self.call(|link| link.check_peer(peer, address));
    }

    fn forget(&mut self, peer: Peer) {
        self.call(|link| link.forget(peer));
    }

    fn deadline(&self, now: Instant) -> Option<Instant> {
        self.link.look().deadline(now)
    }

    fn give_back_shared(&mut self) {
        self.call(Link::give_back_shared);
    }

    fn close(&mut self) {
        self.end_help();
        self.link.enter().close();
    }

    fn abandon(&mut self) {
        self.end_help();
        self.link.enter().abandon();
    }
}

impl<N: DatagramNetwork + 'static> Addressing for HelpedLink<N> {
    fn kind(&self) -> LinkKind {
        self.link.look().kind()
    }

    fn address(&self) -> Address {
        self.link.look().address()
    }

    fn introduce(&mut self, address: &Address) {
        self.call(|link| link.introduce(address));
    }

    fn reaches(&self, address: &Address) -> bool {
        self.link.look().reaches(address)
    }
}

impl<N: DatagramNetwork + 'static> Inspect for HelpedLink<N> {
    fn process(&self, peer: Peer) -> Option<u32> {
        self.link.look().process(peer)
    }

    fn mailbox_bytes(&self) -> u64 {
        self.link.look().mailbox_bytes()
    }

    fn network_report(&self) -> Option<NetworkReport> {
        self.link.look().network_report()
    }

    fn path_report(&self, peer: Peer) -> Option<PathReport> {
        self.link.look().path_report(peer)
    }

    fn is_held_back(&self, peer: Peer) -> bool {
        self.link.look().is_held_back(peer)
    }
}

impl<N: DatagramNetwork + 'static> Capabilities for HelpedLink<N> {
    fn remote_memory(&mut self) -> Option<&mut dyn RemoteMemory> {
        if self.has_memory { Some(self) } else { None }
    }

    fn wake_up(&mut self) -> Option<&mut dyn WakeUp> {
        Some(self)
    }

    fn acknowledgements(&mut self) -> Option<&mut dyn Acknowledgements> {
        Some(self)
    }
}

impl<N: DatagramNetwork + 'static> RemoteMemory for HelpedLink<N> {
    fn attributes(&mut self, peer: Peer) -> Option<MemoryAttributes> {
        self.link.enter().attributes(peer)
    }

    fn register(
        &mut self,
        domain: u32,
        memory: &UserMemory,
        access: PeerAccess,
    ) -> Result<Registration, CopyFault> {
        self.link.enter().register(domain, memory, access)
    }

    fn deregister(&mut self, registration: &Registration) {
        self.link.enter().deregister(registration);
    }

    fn start(
        &mut self,
        copy: &RemoteCopy,
        memory: &UserMemory,
        handle: Option<LocalHandle>,
    ) -> Result<CopyStatus, CopyFault> {
        self.call(|link| link.start(copy, memory, handle))
    }

    fn next_result(&mut self) -> Option<(u64, Result<(), CopyFault>)> {
        self.link.enter().next_result()
    }

    fn has_moved(&mut self) -> bool {
        self.link.enter().has_moved()
    }

    fn must_poll(&mut self) -> bool {
        self.link.enter().must_poll()
    }
}

impl<N: DatagramNetwork + 'static> Acknowledgements for HelpedLink<N> {
    fn awaited_packets(&mut self, to: Peer) -> Option<u64> {
        self.call(|link| link.awaited_packets(to))
    }

    fn unacknowledged_packets(&mut self) -> u64 {
        self.call(|link| link.unacknowledged_packets())
    }
}

impl<N: DatagramNetwork + 'static> WakeUp for HelpedLink<N> {
    /// The helper waits meanwhile: nothing waits for it, because the link does not sleep before that.
    fn sleep(&mut self, at_most_ns: u64) {
        self.call(|link| link.sleep(at_most_ns));
    }

    fn bell(&self) -> Arc<dyn Bell> {
        self.link.look().bell()
    }

    fn ring_on_arrival(&mut self, bell: &Arc<dyn Bell>) -> bool {
        self.call(|link| link.ring_on_arrival(bell))
    }

    fn arm(&mut self) {
        self.call(WakeUp::arm);
    }
}

impl<N: DatagramNetwork> Drop for HelpedLink<N> {
    fn drop(&mut self) {
        self.end_help();
    }
}
