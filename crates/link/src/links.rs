//! Several links of one endpoint, as one link. The provider's endpoints have shared memory, and a network if their job may
//! have ranks on other hosts.
//!
//! A peer is reached over one link, in both directions. It is chosen at the first contact: the preferred link of those
//! that both endpoints have and that reach the peer, or the link over which the peer has attached. Both endpoints
//! prefer the kind with the lowest number, so they choose the same.
//!
//! The first link is known at compile time. Where it has no lane and no packet, a cold branch goes to the others. So
//! packets of its peers take no detour.
//! ```text
//! transmit(0)    the first link has a lane of peer 0: it sends
//! transmit(1)    it has none: the link in `routes` sends
//! poll           the first link, then the others in turn
//! ```
//! A look at a network costs a system call, as much as a message in shared memory. So while packets come over the first
//! link, the others are looked at only every `LOOK_TICKS`; while packets come over them, in every poll.
//!
//! The endpoint sleeps at its first link. The others ring its bell ([`WakeUp::ring_on_arrival`]).

use crate::memory::UserMemory;
use crate::{
    Acknowledgements, Address, Addressing, Arrival, Bell, Capabilities, CopyStatus, FreeSlots, Inspect,
    LaneLease, LaneReclamation, Link, LinkKind, LocalHandle, MemoryAttributes, NetworkReport, PathReport,
    PeerAccess, Polled, Properties, Registration, RemoteCopy, RemoteMemory, Sleeper, WakeUp, cores,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use weir_proto::{CopyFault, LinkBusy, Packet, Peer, PeerFault};

/// Polls in a row that find something in the first link before the others are polled too.
const POLLS_OF_FIRST: u32 = 64;
/// While packets come over the first link, the time between two looks at the others. Unit: ticks of the processor, 2 to 4
/// for each nanosecond.
const LOOK_TICKS: u64 = 6000;
/// Packets come over the first link, if the last one came since so many ticks.
const QUIET_TICKS: u64 = 60_000;
/// The lane numbers of link `n` of the others begin at `n + 1` times this.
const LANES_OF_LINK: u32 = 1 << 24;

/// Questions of [`Links`] to its first link. By the answers it finds out whether another link is meant.
pub trait FirstLink: Link + WakeUp {
    /// Whether this endpoint has a lane at `peer` over this link.
    fn has_lane(&self, peer: Peer) -> bool;

    /// [`Link::transmit`] over the lane at `to`. `None`: there is none.
    fn transmit_over_lane(
        &mut self,
        to: Peer,
        packet: &Packet,
        payload: Option<(&UserMemory, u64)>,
    ) -> Option<Result<(), LinkBusy>> {
        self.has_lane(to).then(|| self.transmit(to, packet, payload))
    }

    /// Whether the last polled packet is from this link and not retired yet.
    fn has_polled_packet(&self) -> bool;
}

/// The link to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// The peer was not contacted.
    Unknown,
    First,
    /// This one of the others.
    Other(usize),
}

/// See the head of this file.
pub struct Links<L> {
    first: L,
    others: Vec<Box<dyn Link>>,
    /// The link of each peer, by its number.
    routes: Vec<Route>,
    /// The link of the last polled packet, if it is not the first.
    current: Option<usize>,
    /// Polls in a row that found something in the first link.
    polls_of_first: u32,
    /// There are no others, and no losses to report.
    is_alone: bool,
    /// When the last packet came over the first link, and the others were looked at last. Unit: ticks.
    first_arrival_at: u64,
    looked_at: u64,
    /// The last packet came over the first link.
    first_is_busy: bool,
    /// The link that is polled next.
    next: usize,
    /// All other links ring the bell of the first.
    all_ring: bool,
    losses: VecDeque<(Peer, PeerFault)>,
}

impl<L: FirstLink> Links<L> {
    /// Makes one link of several. Each of `others` was opened with the address of the one before, `first` included.
    pub fn new(mut first: L, mut others: Vec<Box<dyn Link>>) -> Links<L> {
        let address = others.last().map_or_else(|| first.address(), |last| last.address());
        first.introduce(&address);
        let bell = first.bell();
        let mut all_ring = true;
        for other in &mut others {
            other.introduce(&address);
            all_ring &= other.wake_up().is_some_and(|wake_up| wake_up.ring_on_arrival(&bell));
        }
        let is_alone = others.is_empty();
        Links {
            first,
            others,
            routes: Vec::new(),
            current: None,
            polls_of_first: 0,
            is_alone,
            first_arrival_at: 0,
            looked_at: 0,
            first_is_busy: false,
            next: 0,
            all_ring,
            losses: VecDeque::new(),
        }
    }

    /// The number of the link to `peer` among the others, if it was contacted over one of them.
    pub fn other_link_of(&self, peer: Peer) -> Option<usize> {
        match self.routes.get(peer.0 as usize) {
            Some(&Route::Other(index)) => Some(index),
            _ => None,
        }
    }

    fn route_of(&mut self, peer: Peer) -> &mut Route {
        let index = peer.0 as usize;
        if self.routes.len() <= index {
            self.routes.resize(index + 1, Route::Unknown);
        }
        &mut self.routes[index]
    }

    /// The link of a contacted peer.
    fn link_of(&mut self, peer: Peer) -> &mut dyn Link {
        match self.other_link_of(peer) {
            Some(index) => &mut *self.others[index],
            None => &mut self.first,
        }
    }

    /// The link in whose domain memory is registered.
    fn link_of_domain(&mut self, domain: u32) -> &mut dyn Link {
        match domain.checked_sub(1) {
            Some(index) => &mut *self.others[index as usize],
            None => &mut self.first,
        }
    }

    /// Chooses the link to `peer` at the first contact. `None`: none reaches it, and it is reported as lost.
    fn choose(&mut self, peer: Peer, address: &Address) -> Option<&mut dyn Link> {
        if *self.route_of(peer) == Route::Unknown {
            let first = self.first.reaches(address).then(|| (self.first.kind(), Route::First));
            let others = self.others.iter().enumerate();
            let others = others.filter(|(_, link)| link.reaches(address));
            let reaching = others.map(|(index, link)| (link.kind(), Route::Other(index)));
            let Some((_, route)) = first.into_iter().chain(reaching).min_by_key(|(kind, _)| *kind) else {
                self.first.report_unreachable(address);
                self.note_unreachable(peer);
                return None;
            };
            *self.route_of(peer) = route;
        }
        Some(self.link_of(peer))
    }

    /// Reports `peer` as lost.
    fn note_unreachable(&mut self, peer: Peer) {
        if !self.losses.iter().any(|(lost, _)| *lost == peer) {
            self.losses.push_back((peer, PeerFault::Unreachable));
        }
        self.is_alone = false;
    }

    #[cold]
    #[inline(never)]
    fn transmit_elsewhere(
        &mut self,
        to: Peer,
        packet: &Packet,
        payload: Option<(&UserMemory, u64)>,
    ) -> Result<(), LinkBusy> {
        self.link_of(to).transmit(to, packet, payload)
    }

    /// Lets the other links ring for what arrives from now on. `false`: something may have arrived, so the endpoint must not
    /// sleep.
    fn let_others_ring(&mut self) -> bool {
        self.others.iter_mut().filter_map(|link| link.wake_up()).for_each(|wake_up| wake_up.arm());
        self.losses.is_empty() && !self.others.iter().any(|link| link.may_have_arrivals())
    }

    /// Whether a poll may find something in the other links. A network may know only after a look.
    fn others_may_have_arrivals(&self) -> bool {
        !self.losses.is_empty()
            || (!self.others.is_empty()
                && (self.must_look(cores::ticks())
                    || self.others.iter().any(|link| link.may_have_arrivals())))
    }

    /// Whether a poll at this time, in ticks, must look at the other links: not if packets come over the first, and they were
    /// looked at just now.
    fn must_look(&self, now: u64) -> bool {
        !self.first_is_busy
            || !cores::TICKS
            || now.wrapping_sub(self.looked_at) > LOOK_TICKS
            || now.wrapping_sub(self.first_arrival_at) > QUIET_TICKS
    }

    /// The next arrival of all links.
    #[inline(never)]
    fn poll_all(&mut self, packet: &mut Packet) -> Option<Polled> {
        // The first link comes first: its poll also takes the rings of the others, which must be looked at after that.
        if self.polls_of_first < POLLS_OF_FIRST
            && let Some(polled) = self.first.poll_into(packet)
        {
            self.polls_of_first += 1;
            return Some(polled);
        }
        let others_first = self.polls_of_first == POLLS_OF_FIRST;
        let now = cores::ticks();
        if self.polls_of_first > 0 {
            (self.first_is_busy, self.first_arrival_at) = (true, now);
        }
        self.polls_of_first = 0;
        if !others_first && !self.must_look(now) {
            return None;
        }
        self.looked_at = now;
        match self.poll_others(packet) {
            // Once more, because the poll of the first link has taken their rings.
            None if others_first => self.first.poll_into(packet).or_else(|| self.poll_others(packet)),
            polled => {
                self.first_is_busy &= polled.is_none();
                polled
            }
        }
    }

    /// The next arrival of the other links, in turn.
    fn poll_others(&mut self, packet: &mut Packet) -> Option<Polled> {
        for _ in 0..self.others.len() {
            let index = self.next;
            self.next = if index + 1 < self.others.len() { index + 1 } else { 0 };
            match self.others[index].poll_into(packet) {
                None => {}
                Some(Polled::Packet { from }) => {
                    self.current = Some(index);
                    return Some(Polled::Packet { from });
                }
                Some(Polled::Other(mut arrival)) => {
                    if let Arrival::Attached { lane, .. } = &mut *arrival {
                        assert!(*lane < LANES_OF_LINK, "lane {lane} of a link with too many lanes");
                        *lane += (index as u32 + 1) * LANES_OF_LINK;
                    }
                    return Some(Polled::Other(arrival));
                }
            }
        }
        self.is_alone = self.others.is_empty() && self.losses.len() <= 1;
        let (peer, fault) = self.losses.pop_front()?;
        Some(Polled::Other(Box::new(Arrival::Lost { peer, fault })))
    }

    #[cold]
    #[inline(never)]
    fn copy_payload_elsewhere(&self, memory: &UserMemory, offset: u64, bytes: u64) {
        if let Some(index) = self.current {
            self.others[index].copy_payload(memory, offset, bytes);
        }
    }

    #[cold]
    #[inline(never)]
    fn retire_elsewhere(&mut self) {
        if let Some(index) = self.current.take() {
            self.others[index].retire();
        }
    }

    fn all(&self) -> impl Iterator<Item = &dyn Link> {
        std::iter::once(&self.first as &dyn Link).chain(self.others.iter().map(|link| &**link as &dyn Link))
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut dyn Link> {
        let others = self.others.iter_mut().map(|link| &mut **link as &mut dyn Link);
        std::iter::once(&mut self.first as &mut dyn Link).chain(others)
    }
}

impl<L: FirstLink> Link for Links<L> {
    fn properties(&self) -> Properties {
        Properties {
            other_geometries: self.others.iter().map(|link| link.properties().geometry).collect(),
            ordered: self.all().all(|link| link.properties().ordered),
            reliable: self.all().all(|link| link.properties().reliable),
            ..self.first.properties()
        }
    }

    fn connect(&mut self, peer: Peer, address: &Address) -> Option<LaneLease> {
        self.choose(peer, address)?.connect(peer, address)
    }

    fn disconnect(&mut self, to: Peer) {
        self.link_of(to).disconnect(to);
    }

    #[inline(always)]
    fn transmit(
        &mut self,
        to: Peer,
        packet: &Packet,
        payload: Option<(&UserMemory, u64)>,
    ) -> Result<(), LinkBusy> {
        match self.first.transmit_over_lane(to, packet, payload) {
            Some(sent) => sent,
            // A copy, so that only this case keeps the packet in memory.
            None => self.transmit_elsewhere(to, &{ *packet }, payload),
        }
    }

    #[inline(always)]
    fn poll_into(&mut self, packet: &mut Packet) -> Option<Polled> {
        if self.is_alone { self.first.poll_into(packet) } else { self.poll_all(packet) }
    }

    fn may_have_arrivals(&self) -> bool {
        self.first.may_have_arrivals() || self.others_may_have_arrivals()
    }

    fn accept(&mut self, lane: u32, peer: Peer) {
        let index = (lane / LANES_OF_LINK).checked_sub(1).map(|index| index as usize);
        let lane = lane % LANES_OF_LINK;
        let attached = index.map_or(Route::First, Route::Other);
        let route = self.route_of(peer);
        if *route == Route::Unknown {
            *route = attached;
        }
        let route = *route;
        match index {
            Some(index) => self.others[index].accept(lane, peer),
            None => self.first.accept(lane, peer),
        }
        if route != attached {
            // Packets of one pair over two links would overtake each other.
            self.note_unreachable(peer);
        }
    }

    fn release(&mut self, peer: Peer) {
        self.link_of(peer).release(peer);
    }

    #[inline(always)]
    fn copy_payload(&self, memory: &UserMemory, offset: u64, bytes: u64) {
        if !self.first.has_polled_packet() {
            return self.copy_payload_elsewhere(memory, offset, bytes);
        }
        self.first.copy_payload(memory, offset, bytes);
    }

    #[inline(always)]
    fn retire(&mut self) {
        if !self.first.has_polled_packet() {
            return self.retire_elsewhere();
        }
        self.first.retire();
    }

    fn check_peer(&mut self, peer: Peer, address: &Address) {
        if let Some(link) = self.choose(peer, address) {
            link.check_peer(peer, address);
        }
    }

    fn forget(&mut self, peer: Peer) {
        self.losses.retain(|(lost, _)| *lost != peer);
        self.all_mut().for_each(|link| link.forget(peer));
    }

    fn deadline(&self, now: Instant) -> Option<Instant> {
        self.all().filter_map(|link| link.deadline(now)).min()
    }

    fn give_back_shared(&mut self) {
        self.all_mut().for_each(|link| link.give_back_shared());
    }

    fn close(&mut self) {
        self.all_mut().for_each(|link| link.close());
    }

    fn abandon(&mut self) {
        self.all_mut().for_each(|link| link.abandon());
    }
}

impl<L: FirstLink> Addressing for Links<L> {
    fn kind(&self) -> LinkKind {
        self.first.kind()
    }

    fn address(&self) -> Address {
        self.first.address()
    }

    fn introduce(&mut self, address: &Address) {
        self.all_mut().for_each(|link| link.introduce(address));
    }

    fn reaches(&self, address: &Address) -> bool {
        self.all().any(|link| link.reaches(address))
    }
}

impl<L: FirstLink> Inspect for Links<L> {
    fn process(&self, peer: Peer) -> Option<u32> {
        self.all().find_map(|link| link.process(peer))
    }

    fn mailbox_bytes(&self) -> u64 {
        self.all().map(|link| link.mailbox_bytes()).sum()
    }

    fn network_report(&self) -> Option<NetworkReport> {
        self.all().filter_map(|link| link.network_report()).reduce(|one, other| one.plus(&other))
    }

    fn path_report(&self, peer: Peer) -> Option<PathReport> {
        self.all().find_map(|link| link.path_report(peer))
    }

    fn is_held_back(&self, peer: Peer) -> bool {
        self.all().any(|link| link.is_held_back(peer))
    }
}

impl<L: FirstLink> Capabilities for Links<L> {
    fn remote_memory(&mut self) -> Option<&mut dyn RemoteMemory> {
        Some(self)
    }

    fn wake_up(&mut self) -> Option<&mut dyn WakeUp> {
        if !self.all_ring {
            return None;
        }
        if self.is_alone { self.first.wake_up() } else { Some(self) }
    }

    fn lane_reclamation(&mut self) -> Option<&mut dyn LaneReclamation> {
        Some(self)
    }

    fn free_slots(&mut self) -> Option<&mut dyn FreeSlots> {
        if self.all_mut().all(|link| link.free_slots().is_some()) { Some(self) } else { None }
    }

    fn acknowledgements(&mut self) -> Option<&mut dyn Acknowledgements> {
        if self.all_mut().any(|link| link.acknowledgements().is_some()) { Some(self) } else { None }
    }
}

/// Packets over a link without acknowledgements are with their receivers.
impl<L: FirstLink> Acknowledgements for Links<L> {
    fn awaited_packets(&mut self, to: Peer) -> Option<u64> {
        self.link_of(to).acknowledgements()?.awaited_packets(to)
    }

    fn unacknowledged_packets(&mut self) -> u64 {
        let of_link =
            |link: &mut dyn Link| link.acknowledgements().map_or(0, |it| it.unacknowledged_packets());
        self.all_mut().map(of_link).sum()
    }
}

/// The endpoint sleeps at the first link.
impl<L: FirstLink> WakeUp for Links<L> {
    fn sleep(&mut self, at_most_ns: u64) {
        if self.let_others_ring() {
            self.first.sleep(at_most_ns);
        }
    }

    fn bell(&self) -> Arc<dyn Bell> {
        self.first.bell()
    }

    fn sleeper(&self) -> Option<Arc<dyn Sleeper>> {
        self.first.sleeper()
    }

    fn begin_sleep(&mut self) -> bool {
        self.let_others_ring() && self.first.begin_sleep()
    }

    fn end_sleep(&mut self) {
        self.first.end_sleep();
    }
}

/// The domain of the first link is 0, that of link `n` of the others is `n + 1`.
impl<L: FirstLink> RemoteMemory for Links<L> {
    fn attributes(&mut self, peer: Peer) -> Option<MemoryAttributes> {
        let domain = self.other_link_of(peer).map_or(0, |index| index as u32 + 1);
        Some(MemoryAttributes { domain, ..self.link_of(peer).remote_memory()?.attributes(peer)? })
    }

    fn register(
        &mut self,
        domain: u32,
        memory: &UserMemory,
        access: PeerAccess,
    ) -> Result<Registration, CopyFault> {
        let remote = self.link_of_domain(domain).remote_memory().ok_or(CopyFault::Forbidden)?;
        Ok(Registration { domain, ..remote.register(0, memory, access)? })
    }

    fn deregister(&mut self, registration: &Registration) {
        if let Some(remote) = self.link_of_domain(registration.domain).remote_memory() {
            remote.deregister(&Registration { domain: 0, ..*registration });
        }
    }

    fn start(
        &mut self,
        copy: &RemoteCopy,
        memory: &UserMemory,
        handle: Option<LocalHandle>,
    ) -> Result<CopyStatus, CopyFault> {
        let remote = self.link_of(copy.peer).remote_memory().ok_or(CopyFault::Forbidden)?;
        remote.start(copy, memory, handle)
    }

    fn next_result(&mut self) -> Option<(u64, Result<(), CopyFault>)> {
        self.all_mut().find_map(|link| link.remote_memory()?.next_result())
    }

    fn has_moved(&mut self) -> bool {
        let moved = |link: &mut dyn Link| link.remote_memory().is_some_and(|remote| remote.has_moved());
        self.all_mut().fold(false, |any, link| moved(link) | any) // each one is asked
    }

    fn must_poll(&mut self) -> bool {
        self.all_mut().any(|link| link.remote_memory().is_some_and(|remote| remote.must_poll()))
    }

    fn read_at_once(&mut self, copy: &RemoteCopy, memory: &UserMemory) -> Result<(), CopyFault> {
        let remote = self.link_of(copy.peer).remote_memory().ok_or(CopyFault::Forbidden)?;
        remote.read_at_once(copy, memory)
    }

    fn help_copy(&mut self, peer: Peer) -> bool {
        self.link_of(peer).remote_memory().is_some_and(|remote| remote.help_copy(peer))
    }
}

impl<L: FirstLink> LaneReclamation for Links<L> {
    fn maintain(&mut self, keep_bytes: u64) {
        for link in self.all_mut() {
            if let Some(lanes) = link.lane_reclamation() {
                lanes.maintain(keep_bytes);
            }
        }
    }
}

impl<L: FirstLink> FreeSlots for Links<L> {
    fn newly_free_slots(&mut self, to: Peer) -> u32 {
        self.link_of(to).free_slots().map_or(0, |slots| slots.newly_free_slots(to))
    }
}
