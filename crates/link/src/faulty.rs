//! A link that refuses packets, delays arrivals and loses peers by a script, around any other link, for tests.
//!
//! ```text
//! transmit(0, packet)      the script says Refuse { polls: 2 }: LinkBusy
//! transmit(0, packet)      LinkBusy, without asking the script
//! poll_into                what the inner link has; after two polls Ready { peer: 0 }
//! poll_into                a packet; the delays say 3: the next three polls find nothing in the inner link
//! ```
//! A script counts in polls, not in time. So a test repeats exactly. A [`Gate`] decides by something outside of the
//! link, such as tokens in the node segment. It says itself when a peer is ready again, so the endpoint may sleep
//! meanwhile.
//!
//! A test can also give the link another kind and other properties. Nothing is lost except packets to a peer that the
//! script kills. So a reliable link stays reliable.

use crate::links::FirstLink;
use crate::memory::UserMemory;
use crate::{
    Acknowledgements, Address, Addressing, Arrival, Bell, Capabilities, FreeSlots, Inspect, LaneLease,
    LaneReclamation, Link, LinkKind, NetworkReport, PathReport, Polled, Properties, RemoteMemory, Sleeper,
    WakeUp,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use weir_proto::{LinkBusy, Packet, Peer, PeerFault};

/// A fault, which happens to a packet instead of its transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The link is busy for so many polls.
    Refuse {
        /// Unit: polls.
        polls: u32,
    },
    /// The receiver dies: it is reported as lost when all arrivals are handled.
    Kill,
}

/// Decides about each packet that the inner link could take.
pub type Script = Box<dyn FnMut(Peer, &Packet) -> Option<Fault> + Send>;

/// Decides after each packet that arrives for how many polls nothing arrives then.
pub type Delays = Box<dyn FnMut(Peer, &Packet) -> u32 + Send>;

/// Decides whether packets may leave, before the script does.
pub trait Gate: Send {
    /// Whether `packet` may leave for `to` now.
    fn admits(&mut self, to: Peer, packet: &Packet) -> bool;

    /// Whether the gate may admit the packets of a refused peer now.
    fn is_open(&self, to: Peer) -> bool;

    /// See [`Link::give_back_shared`].
    fn give_back_shared(&mut self) {}
}

/// See the head of this file.
pub struct Faulty<L> {
    link: L,
    script: Script,
    delays: Option<Delays>,
    gate: Option<Box<dyn Gate>>,
    /// Peers that the gate has refused.
    refused: Vec<Peer>,
    /// Packets that the inner link has refused.
    inner_refusals: Option<Arc<AtomicU64>>,
    /// Polls in which nothing arrives.
    silent_polls: u32,
    /// Peers for which the link is busy, and for how many polls.
    busy: Vec<(Peer, u32)>,
    /// Peers that the script has killed, and whether that was reported.
    killed: Vec<(Peer, bool)>,
    /// The properties of this link, if they differ from those of the inner link.
    properties: Option<Properties>,
    /// What the link says that it is.
    kind: Option<LinkKind>,
}

impl<L: Link> Faulty<L> {
    /// Wraps `link`.
    pub fn new(link: L, script: Script) -> Faulty<L> {
        Faulty {
            link,
            script,
            delays: None,
            gate: None,
            refused: Vec::new(),
            inner_refusals: None,
            silent_polls: 0,
            busy: Vec::new(),
            killed: Vec::new(),
            properties: None,
            kind: None,
        }
    }

    /// The same link, but arrivals are late. Their order stays.
    pub fn with_delays(self, delays: Delays) -> Faulty<L> {
        Faulty { delays: Some(delays), ..self }
    }

    /// The same link. It counts the packets that the inner link refuses.
    pub fn with_inner_refusals(self, count: Arc<AtomicU64>) -> Faulty<L> {
        Faulty { inner_refusals: Some(count), ..self }
    }

    /// The same link, but packets leave only through `gate`.
    pub fn with_gate(self, gate: Box<dyn Gate>) -> Faulty<L> {
        Faulty { gate: Some(gate), ..self }
    }

    /// The same link, but it promises `properties`.
    pub fn with_properties(self, properties: Properties) -> Faulty<L> {
        Faulty { properties: Some(properties), ..self }
    }

    /// The same link, but [`crate::links`] treats it as a link of this kind.
    pub fn with_kind(self, kind: LinkKind) -> Faulty<L> {
        Faulty { kind: Some(kind), ..self }
    }

    fn is_killed(&self, peer: Peer) -> bool {
        self.killed.iter().any(|(killed, _)| *killed == peer)
    }

    fn has_loss_to_report(&self) -> bool {
        self.killed.iter().any(|(_, reported)| !reported)
    }

    /// Whether something follows only after further polls.
    fn waits_for_polls(&self) -> bool {
        !self.busy.is_empty() || self.silent_polls > 0 || self.has_loss_to_report()
    }

    /// The first peer that the gate has refused and may admit now.
    fn next_admissible(&self) -> Option<usize> {
        let gate = self.gate.as_ref()?;
        self.refused.iter().position(|&peer| gate.is_open(peer))
    }

    /// A peer for which the link is not busy any more after this poll.
    fn next_ready(&mut self) -> Option<Peer> {
        if let Some(index) = self.next_admissible() {
            return Some(self.refused.remove(index));
        }
        self.busy.iter_mut().for_each(|(_, polls)| *polls = polls.saturating_sub(1));
        let index = self.busy.iter().position(|(_, polls)| *polls == 0)?;
        Some(self.busy.remove(index).0)
    }

    fn next_loss(&mut self) -> Option<Peer> {
        let (peer, reported) = self.killed.iter_mut().find(|(_, reported)| !reported)?;
        *reported = true;
        Some(*peer)
    }
}

impl<L: Link> Link for Faulty<L> {
    fn properties(&self) -> Properties {
        self.properties.clone().unwrap_or_else(|| self.link.properties())
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
        if self.is_killed(to) {
            return Ok(());
        }
        if self.refused.contains(&to) || self.busy.iter().any(|(busy, _)| *busy == to) {
            return Err(LinkBusy);
        }
        if self.gate.as_mut().is_some_and(|gate| !gate.admits(to, packet)) {
            self.refused.push(to);
            return Err(LinkBusy);
        }
        match (self.script)(to, packet) {
            None => {
                let sent = self.link.transmit(to, packet, payload);
                if let (Err(LinkBusy), Some(count)) = (sent, &self.inner_refusals) {
                    count.fetch_add(1, Relaxed);
                }
                sent
            }
            Some(Fault::Refuse { polls }) => {
                self.busy.push((to, polls.max(1)));
                Err(LinkBusy)
            }
            Some(Fault::Kill) => {
                self.killed.push((to, false));
                Ok(())
            }
        }
    }

    fn poll_into(&mut self, packet: &mut Packet) -> Option<Polled> {
        if let Some(peer) = self.next_ready() {
            return Some(Polled::Other(Box::new(Arrival::Ready { peer })));
        }
        if self.silent_polls > 0 {
            self.silent_polls -= 1;
            return None;
        }
        if let Some(polled) = self.link.poll_into(packet) {
            if let (Polled::Packet { from }, Some(delays)) = (&polled, &mut self.delays) {
                self.silent_polls = delays(*from, packet);
            }
            return Some(polled);
        }
        let peer = self.next_loss()?;
        Some(Polled::Other(Box::new(Arrival::Lost { peer, fault: PeerFault::Died })))
    }

    fn may_have_arrivals(&self) -> bool {
        self.waits_for_polls() || self.next_admissible().is_some() || self.link.may_have_arrivals()
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
        self.busy.retain(|(busy, _)| *busy != peer);
        self.refused.retain(|refused| *refused != peer);
        self.link.forget(peer);
    }

    fn deadline(&self, now: Instant) -> Option<Instant> {
        if self.waits_for_polls() { Some(now) } else { self.link.deadline(now) }
    }

    fn give_back_shared(&mut self) {
        if let Some(gate) = &mut self.gate {
            gate.give_back_shared();
        }
        self.link.give_back_shared();
    }

    fn close(&mut self) {
        self.link.close();
    }

    fn abandon(&mut self) {
        self.link.abandon();
    }
}

impl<L: Link> Addressing for Faulty<L> {
    fn kind(&self) -> LinkKind {
        self.kind.unwrap_or_else(|| self.link.kind())
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

    fn report_unreachable(&self, peer: &Address) {
        self.link.report_unreachable(peer);
    }
}

impl<L: Link> Inspect for Faulty<L> {
    fn process(&self, peer: Peer) -> Option<u32> {
        self.link.process(peer)
    }

    fn mailbox_bytes(&self) -> u64 {
        self.link.mailbox_bytes()
    }

    fn network_report(&self) -> Option<NetworkReport> {
        self.link.network_report()
    }

    fn path_report(&self, peer: Peer) -> Option<PathReport> {
        self.link.path_report(peer)
    }

    fn is_held_back(&self, peer: Peer) -> bool {
        self.link.is_held_back(peer)
    }
}

impl<L: Link> Capabilities for Faulty<L> {
    fn remote_memory(&mut self) -> Option<&mut dyn RemoteMemory> {
        self.link.remote_memory()
    }

    fn wake_up(&mut self) -> Option<&mut dyn WakeUp> {
        self.link.wake_up()
    }

    fn lane_reclamation(&mut self) -> Option<&mut dyn LaneReclamation> {
        self.link.lane_reclamation()
    }

    fn free_slots(&mut self) -> Option<&mut dyn FreeSlots> {
        self.link.free_slots()
    }

    fn acknowledgements(&mut self) -> Option<&mut dyn Acknowledgements> {
        self.link.acknowledgements()
    }
}

impl<L: FirstLink> WakeUp for Faulty<L> {
    fn sleep(&mut self, at_most_ns: u64) {
        self.link.sleep(at_most_ns);
    }

    fn bell(&self) -> Arc<dyn Bell> {
        self.link.bell()
    }

    fn sleeper(&self) -> Option<Arc<dyn Sleeper>> {
        self.link.sleeper()
    }

    fn begin_sleep(&mut self) -> bool {
        self.link.begin_sleep()
    }

    fn end_sleep(&mut self) {
        self.link.end_sleep();
    }
}

impl<L: FirstLink> FirstLink for Faulty<L> {
    fn has_lane(&self, peer: Peer) -> bool {
        self.link.has_lane(peer)
    }

    fn has_polled_packet(&self) -> bool {
        self.link.has_polled_packet()
    }
}
