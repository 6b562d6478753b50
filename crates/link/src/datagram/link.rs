//! The link with all its paths ([`DatagramLink`]): how paths are made and found, and the work of a poll.

use super::arrived::Arrived;
use super::buffers::Buffers;
use super::contents::Contents;
use super::crowd::Crowd;
use super::delivered::{Part, Reading};
use super::epochs::Epochs;
use super::forgotten::Forgotten;
use super::network::{DatagramNetwork, GEOMETRY};
use super::options::DatagramOptions;
use super::outgoing::Outgoing;
use super::path::{OurLane, Path, PathDriver};
use super::report::DatagramCounters;
use super::seal::{Key, LEAST_DATAGRAM_BYTES, verification_tag};
use super::send_gate::SendGate;
use super::send_proxy::{ProxyCounters, SendProxy};
use super::unopened::Unopened;
use crate::{Address, unreachable};
use std::collections::{HashMap, VecDeque};
use weir_proto::reliability::{Grants, LEAST_GRANT, PathCounters, ReliabilityConfig};
use weir_proto::wire::{ATTACH_FRAME, GRANT_FRAME, LEASE_FRAME, VERIFICATION_AT};
use weir_proto::{Geometry, Instant, LinkBusy, Peer, PeerFault, TimerQueue};

/// A poll that comes later after a look is not the second one of the same call. Unit: ns.
const SECOND_POLL_NS: u64 = 50_000;

/// What all paths use.
pub(super) struct Shared<N: DatagramNetwork> {
    pub network: N,
    pub outgoing: Outgoing<N::Place>,
    pub timers: TimerQueue<u32>,
    /// Bundles that peers have not acknowledged.
    pub copies: Buffers,
    /// Bundles that peers have not acknowledged and whose ends were not copied.
    pub borrowed: usize,
    /// Bundles that have arrived.
    pub arrived: Arrived<N::Place>,
    /// Paths with delivered bundles.
    pub ready: VecDeque<u32>,
    /// Paths whose datagrams the network has refused.
    pub refused: Vec<u32>,
    /// Paths that have ended.
    pub lost: Vec<u32>,
    /// Paths whose peers have acknowledged packets that somebody waits for.
    pub acknowledged: VecDeque<u32>,
    /// What peers may have under way to here, if what waits here has a bound.
    pub grants: Option<Grants>,
    /// There is a gate, or a proxy.
    pub is_controlled: bool,
    /// What holds packets back before the network, if anything does.
    pub gate: Option<Box<SendGate>>,
    /// Paths whose open bundles wait for the gate, in the order in which they have begun to.
    pub awaiting: VecDeque<u32>,
    /// Paths whose bundles have passed the gate after a wait, and wait for the pace.
    pub paced: Vec<u32>,
    /// Where bundles wait until this endpoint or another one of the node sends them, if a setting says so.
    pub proxy: Option<Box<SendProxy>>,
    /// What it had done when this endpoint left the node.
    pub left_proxy: ProxyCounters,
    pub crowd: Crowd,
}

impl<N: DatagramNetwork> Shared<N> {
    /// Sends datagrams that wait for others to the same place, and those in queues.
    ///
    /// # Errors
    /// [`LinkBusy`]: they still wait.
    pub(super) fn flush(&mut self) -> Result<(), LinkBusy> {
        if let Some(proxy) = self.proxy.as_mut().filter(|proxy| !proxy.is_empty()) {
            proxy.serve(&mut self.network, &mut self.outgoing)?;
        }
        self.outgoing.flush(&mut self.network)
    }

    /// Whether something waits here that a later poll sends.
    pub(super) fn has_waiting(&self) -> bool {
        !self.outgoing.is_empty()
            || !self.refused.is_empty()
            || (self.is_controlled && self.waits_for_admission())
    }

    fn waits_for_admission(&self) -> bool {
        !self.awaiting.is_empty() || self.proxy.as_ref().is_some_and(|proxy| !proxy.is_empty())
    }
}

/// See the head of the module.
pub struct DatagramLink<N: DatagramNetwork> {
    pub(super) shared: Shared<N>,
    pub(super) address: Address,
    /// Opens introductions to this endpoint.
    pub(super) introduction_key: Key,
    /// What datagrams to this endpoint carry.
    pub(super) verification: u32,
    pub(super) geometry: Geometry,
    pub(super) options: DatagramOptions,
    pub(super) paths: Vec<Option<Box<Path<N::Place>>>>,
    unused: Vec<u32>,
    pub(super) by_address: HashMap<Address, u32>,
    pub(super) by_place: HashMap<N::Place, Vec<u32>>,
    pub(super) epochs: Epochs,
    /// Where the last datagram came from, the epoch that it named, and the path of both.
    pub(super) last_arrival: Option<(N::Place, u16, u32)>,
    /// The path of each peer.
    by_peer: Vec<Option<u32>>,
    pub(super) forgotten: Forgotten,
    /// Paths that introductions have made.
    pub(super) unopened: Unopened,
    /// Losses of peers without a path.
    pub(super) losses: VecDeque<(Peer, PeerFault)>,
    /// Paths with an open bundle, or with a frame that must leave.
    pub(super) open: Vec<u32>,
    /// Something was added to `open` since the last attempt to send it.
    pub(super) has_unsent: bool,
    /// Bundles that were submitted since the last look at the network.
    pub(super) submitted_since_look: u32,
    /// The last look at the network found something, and emptied it.
    pub(super) is_drained: bool,
    /// When the network had given what the last look found.
    pub(super) found_at: Instant,
    /// A poll that found something leaves the rest of its work to the next one.
    postpones_work: bool,
    /// Paths from which something has arrived since the last sleep.
    pub(super) recent: Vec<u32>,
    /// Paths from which something has arrived since the endpoint had last read all.
    pub(super) unread: Vec<u32>,
    /// Paths of the datagrams of a look. Empty between looks.
    pub(super) touched: Vec<u32>,
    /// Paths for which the link is busy.
    pub(super) busy: Vec<u32>,
    pub(super) reading: Option<Reading>,
    /// Parts of the polled packet in bundles before that.
    pub(super) earlier_parts: Vec<Part>,
    /// Contents that pass beside packets.
    pub(super) contents: Contents,
    pub(super) counters: DatagramCounters,
    /// Of paths that were removed.
    pub(super) removed: PathCounters,
    pub(super) is_closed: bool,
}

impl<N: DatagramNetwork> DatagramLink<N> {
    /// A link for the endpoint that has the address `base` on its other links.
    ///
    /// # Panics
    /// If the address has no room for the part of this network, or if its datagrams are shorter than every path carries.
    pub fn open(base: &Address, mut network: N, options: DatagramOptions) -> DatagramLink<N> {
        let address =
            base.with_part(network.kind(), &network.part()).expect("room for the part of this network");
        let datagram_bytes = network.largest_datagram();
        let bundle_bytes = datagram_bytes.saturating_sub(LEAST_DATAGRAM_BYTES);
        assert!(
            datagram_bytes >= ReliabilityConfig::default().base_datagram_bytes as usize,
            "datagrams of {datagram_bytes} bytes"
        );
        let buffered = network.buffered_datagrams();
        let reliability = ReliabilityConfig {
            datagram_bytes: datagram_bytes as u32,
            is_lossless: network.is_lossless(),
            window_bundles: options.reliability.window_bundles.min(network.window()),
            first_grant: if buffered.is_some() { LEAST_GRANT.into() } else { u32::MAX },
            ..options.reliability
        };
        let verification = verification_tag(&address);
        network.admit_only(VERIFICATION_AT, verification);
        let most = u16::try_from(reliability.window_bundles).unwrap_or(u16::MAX);
        DatagramLink {
            shared: Shared {
                network,
                outgoing: Outgoing::new(),
                timers: TimerQueue::default(),
                copies: Buffers::new(options.most_copies, bundle_bytes),
                borrowed: 0,
                arrived: Arrived::new(bundle_bytes),
                ready: VecDeque::new(),
                refused: Vec::new(),
                lost: Vec::new(),
                acknowledged: VecDeque::new(),
                grants: buffered.map(|datagrams| Grants::new(datagrams, most)),
                is_controlled: false,
                gate: None,
                awaiting: VecDeque::new(),
                paced: Vec::new(),
                proxy: None,
                left_proxy: ProxyCounters::default(),
                crowd: Crowd::default(),
            },
            address,
            introduction_key: Key::of_introductions(&address),
            verification,
            geometry: GEOMETRY,
            options: DatagramOptions { reliability, ..options },
            paths: Vec::new(),
            unused: Vec::new(),
            by_address: HashMap::new(),
            by_place: HashMap::new(),
            epochs: Epochs::default(),
            last_arrival: None,
            by_peer: Vec::new(),
            forgotten: Forgotten::default(),
            unopened: Unopened::default(),
            losses: VecDeque::new(),
            open: Vec::new(),
            has_unsent: false,
            submitted_since_look: 0,
            is_drained: false,
            found_at: Instant(0),
            postpones_work: false,
            recent: Vec::new(),
            unread: Vec::new(),
            touched: Vec::new(),
            busy: Vec::new(),
            reading: None,
            earlier_parts: Vec::new(),
            contents: Contents::default(),
            counters: DatagramCounters::default(),
            removed: PathCounters::default(),
            is_closed: false,
        }
    }

    /// The network.
    pub fn network(&self) -> &N {
        &self.shared.network
    }

    /// Datagrams that were dropped.
    pub fn counters(&self) -> DatagramCounters {
        self.counters
    }

    /// Memory for copies of what peers have not acknowledged. Unit: bytes.
    pub fn copy_bytes(&self) -> usize {
        self.shared.copies.bytes()
    }

    /// The path of a peer.
    pub(super) fn id_of(&self, peer: Peer) -> Option<u32> {
        self.by_peer.get(peer.0 as usize).copied().flatten()
    }

    pub(super) fn path(&mut self, id: u32) -> Option<&mut Path<N::Place>> {
        self.paths.get_mut(id as usize)?.as_deref_mut()
    }

    /// The path and what it needs.
    pub(super) fn path_and_shared(&mut self, id: u32) -> Option<(&mut Path<N::Place>, &mut Shared<N>)> {
        let DatagramLink { paths, shared, .. } = self;
        Some((paths.get_mut(id as usize)?.as_deref_mut()?, shared))
    }

    /// Handles an event of the machine of a path.
    pub(super) fn drive(
        &mut self,
        id: u32,
        event: impl FnOnce(&mut weir_proto::reliability::ReliablePath, Instant, &mut PathDriver<'_, N>),
    ) {
        let now = self.shared.network.now();
        self.drive_at(id, now, event);
    }

    /// [`DatagramLink::drive`] at a known time.
    pub(super) fn drive_at(
        &mut self,
        id: u32,
        now: Instant,
        event: impl FnOnce(&mut weir_proto::reliability::ReliablePath, Instant, &mut PathDriver<'_, N>),
    ) {
        if let Some((path, shared)) = self.path_and_shared(id) {
            let Path { machine, io, .. } = path;
            event(machine, now, &mut PathDriver { id, io, shared, arriving: None });
        }
    }

    /// The path to the endpoint at `address`, a new one if there is none. `None`: the network does not reach it, or it has
    /// another scheme.
    pub(super) fn path_to(&mut self, address: &Address) -> Option<u32> {
        if let Some(&id) = self.by_address.get(address) {
            return Some(id);
        }
        let place = self.place_of(address)?;
        if !self.address.has_scheme_of(address) {
            unreachable::report_other_scheme(self.address.scheme(), address.scheme());
            return None;
        }
        let id = self.unused.last().copied().unwrap_or(self.paths.len() as u32);
        // An epoch differs from all others between two endpoints: there is one path for each pair.
        let epoch = self.epochs.add(id)?;
        let path = Path::new(&self.address, address, place, self.options.reliability, epoch);
        if self.unused.pop().is_none() {
            self.paths.push(None);
        }
        self.paths[id as usize] = Some(Box::new(path));
        self.by_address.insert(*address, id);
        self.by_place.entry(place).or_default().push(id);
        self.last_arrival = None;
        self.shared.grants.iter_mut().for_each(|grants| grants.add(id));
        Some(id)
    }

    /// The place of another endpoint.
    pub(super) fn place_of(&self, address: &Address) -> Option<N::Place> {
        let network = &self.shared.network;
        let part = address.part(network.kind())?;
        network.place_of(part).filter(|_| address.identity() != self.address.identity())
    }

    /// Calls a path `peer` from now on.
    pub(super) fn name(&mut self, id: u32, peer: Peer) {
        let index = peer.0 as usize;
        if self.by_peer.len() <= index {
            self.by_peer.resize(index + 1, None);
        }
        self.by_peer[index] = Some(id);
        if let Some(path) = self.path(id) {
            path.peer = Some(peer);
        }
    }

    /// Removes a path and all that belongs to it.
    pub(super) fn remove(&mut self, id: u32) {
        let Some(mut path) = self.paths.get_mut(id as usize).and_then(Option::take) else { return };
        self.removed = self.removed.plus(&path.machine.counters());
        path.free(&mut self.shared);
        self.by_address.remove(&path.io.address);
        self.epochs.remove(path.epoch);
        self.last_arrival = None;
        if let Some(ids) = self.by_place.get_mut(&path.io.place) {
            ids.retain(|&other| other != id);
            if ids.is_empty() {
                self.by_place.remove(&path.io.place);
            }
        }
        if let Some(peer) = path.peer {
            self.by_peer[peer.0 as usize] = None;
        }
        self.contents.remove_path(id);
        self.shared.timers.cancel(id);
        self.shared.grants.iter_mut().for_each(|grants| grants.remove(id));
        for list in [
            &mut self.open,
            &mut self.busy,
            &mut self.recent,
            &mut self.unread,
            &mut self.shared.refused,
            &mut self.shared.paced,
            &mut self.shared.lost,
        ] {
            list.retain(|&other| other != id);
        }
        self.shared.ready.retain(|&other| other != id);
        self.shared.awaiting.retain(|&other| other != id);
        self.shared.acknowledged.retain(|&other| other != id);
        if let Some(reading) = self.reading.as_mut().filter(|reading| reading.id == id) {
            reading.is_void = true;
        }
        self.unused.push(id);
    }

    /// Sends the frames that a path must send, if there is room.
    pub(super) fn send_frames(&mut self, id: u32) -> Result<(), LinkBusy> {
        let Some(path) = self.path(id) else { return Ok(()) };
        let (owes_lease, our_lane) = (path.owes_lease, path.our_lane);
        if let Some(number) = owes_lease {
            self.append_frame(id, LEASE_FRAME, number)?;
            self.path(id).into_iter().for_each(|path| path.owes_lease = None);
        }
        if let OurLane::Wanted { number, asked: false } = our_lane {
            self.append_frame(id, ATTACH_FRAME, number)?;
            self.path(id)
                .into_iter()
                .for_each(|path| path.our_lane = OurLane::Wanted { number, asked: true });
        }
        Ok(())
    }

    /// Whether this poll can be left out: the look just before has found less than it could, and nothing else waits. Most such
    /// polls come between a message and the program that waits for it.
    pub(super) fn has_nothing_to_do(&self) -> bool {
        let Shared { network, timers, grants, crowd, .. } = &self.shared;
        let owes_acknowledgement = |id: &u32| {
            let path = self.paths[*id as usize].as_deref();
            path.is_some_and(|path| path.machine.owes_acknowledgement(crowd.is_crowded))
        };
        let is_due = |now: Instant| {
            now.since_ns(self.found_at) > SECOND_POLL_NS
                || timers.earliest().is_some_and(|at| at <= now)
                || grants.as_ref().is_some_and(|grants| grants.is_due(now))
        };
        self.is_drained
            && !self.has_unsent
            && !self.shared.has_waiting()
            && !self.has_reports()
            && !self.contents.is_in_use()
            && !self.unread.iter().any(owes_acknowledgement)
            && !is_due(network.now())
    }

    /// Sends everything that can leave, runs timers, and takes what has arrived. The endpoint has read what came before.
    pub(super) fn work(&mut self) {
        if self.has_unsent || !self.open.is_empty() {
            self.send_unsent();
        }
        let now = self.shared.network.now();
        if !self.unread.is_empty() {
            while let Some(id) = self.unread.pop() {
                self.drive_at(id, now, |machine, now, driver| machine.bundles_read(now, driver));
            }
            let _ = self.shared.flush(); // before the next look, which may be long; what it refuses leaves later
        }
        // This process may not have run for a while. What it waits for may have arrived.
        self.is_drained &= now.since_ns(self.found_at) <= SECOND_POLL_NS
            && self.shared.timers.earliest().is_none_or(|at| at > now);
        let has_found = self.receive();
        // What has arrived comes first, but not twice in a row.
        self.postpones_work = has_found && !self.postpones_work && !self.shared.has_waiting();
        if !self.postpones_work {
            self.finish_work(now);
        }
    }

    /// Does what this poll has postponed: nothing that it has found is for the program.
    pub(super) fn finish_postponed_work(&mut self) {
        if std::mem::take(&mut self.postpones_work) {
            self.finish_work(self.shared.network.now());
        }
    }

    fn finish_work(&mut self, now: Instant) {
        self.ask_unopened(now);
        if !self.shared.paced.is_empty() {
            self.forget_paced();
        }
        while let Some(id) = self.shared.timers.take_expired(now) {
            self.drive_at(id, now, |machine, now, driver| machine.expired(now, driver));
        }
        self.tell_grants(now);
        if self.shared.has_waiting() {
            self.send_refused();
        }
        if self.contents.is_in_use() {
            self.work_contents();
        }
    }

    /// Tells peers what they may have under way, if that has changed.
    fn tell_grants(&mut self, now: Instant) {
        let Some(mut grants) = self.shared.grants.take_if(|grants| grants.is_due(now)) else { return };
        grants.tell(now, |id, datagrams| {
            let may_tell = self.path(id).is_some_and(|path| path.machine.view().is_open && !path.is_over());
            let Some(path) = self.path(id).filter(|_| may_tell) else { return false };
            let before = path.io.granted_at.replace(u64::MAX); // it waits for the acknowledgement of what leaves now
            let position = self.append_frame(id, GRANT_FRAME, datagrams).ok();
            if let Some(path) = self.path(id) {
                path.io.granted_at = position.or(before);
                if position.is_some() {
                    path.machine.granted(datagrams.into());
                }
            }
            position.is_some()
        });
        self.shared.grants = Some(grants);
    }

    /// Whether something leaves only with the next poll, or with [`DatagramLink::send_waiting`].
    #[inline]
    pub(super) fn waits_for_poll(&self) -> bool {
        !self.is_closed && (self.has_unsent || self.shared.has_waiting() || !self.shared.paced.is_empty())
    }

    /// Sends what waits for the next poll, and nothing else. Returns whether something still waits.
    pub(super) fn send_waiting(&mut self) -> bool {
        if !self.is_closed {
            self.send_unsent();
            self.send_refused();
            self.send_paced();
        }
        self.waits_for_poll()
    }

    pub(super) fn send_unsent(&mut self) {
        self.has_unsent = false;
        if !self.open.is_empty() && !self.shared.awaiting.is_empty() {
            self.admit_awaiting();
        }
        for id in std::mem::take(&mut self.open) {
            let sent = self.send_frames(id).and_then(|()| {
                let now = self.shared.network.now();
                let Some((path, shared)) = self.path_and_shared(id) else { return Ok(()) };
                if path.io.awaits_gate {
                    return Err(LinkBusy);
                }
                path.submit(id, now, shared)?;
                let has_awaited = std::mem::take(&mut path.io.has_awaited);
                if has_awaited && path.machine.is_paced() && !shared.paced.contains(&id) {
                    shared.paced.push(id);
                }
                Ok(())
            });
            if sent.is_err() && !self.open.contains(&id) {
                self.open.push(id);
            }
        }
        // What was appended just now has been submitted, or waits for room.
        self.has_unsent = false;
    }

    /// Flushes, and lets paths send whose datagrams the network has refused.
    fn send_refused(&mut self) {
        if self.shared.flush().is_err() {
            return;
        }
        let Shared { network, proxy, refused, .. } = &mut self.shared;
        if let Some(proxy) = proxy.as_mut().filter(|_| !refused.is_empty()) {
            proxy.sends_at(network.host_time()); // it may have been long since a bundle has begun
        }
        let mut ids = std::mem::take(refused).into_iter();
        for id in ids.by_ref() {
            self.drive(id, |machine, now, driver| machine.writable(now, driver));
            if self.shared.flush().is_err() {
                break;
            }
        }
        self.shared.refused.extend(ids);
    }

    /// Sends the acknowledgements that wait for something to ride on, and ends timers that are not needed: this endpoint is
    /// going to sleep.
    pub(super) fn acknowledge_all(&mut self) {
        for id in std::mem::take(&mut self.recent) {
            self.path(id).into_iter().for_each(|path| path.is_recent = false);
            self.drive(id, |machine, now, driver| machine.idle(now, driver));
        }
        let _ = self.shared.flush(); // what it refuses leaves with a later poll
    }

    /// A peer that has acknowledged packets that somebody waits for, and how many it has acknowledged.
    pub(super) fn next_acknowledged(&mut self) -> Option<(Peer, u64)> {
        let id = self.shared.acknowledged.pop_front()?;
        self.shared.acknowledged.retain(|&other| other != id);
        let path = self.path(id)?;
        path.peer.map(|peer| (peer, path.io.acknowledged_packets))
    }

    /// A path for which the link is not busy any more.
    pub(super) fn next_ready(&mut self) -> Option<Peer> {
        let window = self.options.reliability.window_bundles;
        let most_bytes = (self.geometry.slot_bytes * self.geometry.max_packet_slots) as usize;
        let is_held_back = self.holds_back();
        let index = self.busy.iter().position(|&id| {
            let path = self.paths[id as usize].as_deref();
            let takes = |path: &Path<N::Place>| path.takes(most_bytes, window, &self.shared);
            path.is_none_or(|path| path.is_over() || (!is_held_back && takes(path)))
        })?;
        let id = self.busy.remove(index); // the others keep their order
        self.shared.gate.iter_mut().for_each(|gate| gate.give_turn(id));
        let path = self.path(id)?;
        path.has_refused = false;
        path.peer
    }

    /// Notes that a peer is lost.
    pub(super) fn note_lost(&mut self, id: u32) {
        if !self.shared.lost.contains(&id) {
            self.shared.lost.push(id);
        }
    }

    /// Whether a poll may have to report anything but packets and frames, or the gate waits for one.
    #[inline]
    pub(super) fn has_reports(&self) -> bool {
        let Shared { acknowledged, lost, gate, .. } = &self.shared;
        !(acknowledged.is_empty() && lost.is_empty() && self.busy.is_empty() && self.losses.is_empty())
            || gate.as_ref().is_some_and(|gate| gate.has_waiting())
    }

    /// The next loss whose peer has nothing delivered that is not polled.
    pub(super) fn next_loss(&mut self) -> Option<(Peer, PeerFault)> {
        let reading = self.reading.as_ref().map(|reading| reading.id);
        let index = self.shared.lost.iter().position(|&id| {
            let path = self.paths[id as usize].as_deref();
            reading != Some(id) && path.is_none_or(|path| path.io.delivered.is_empty())
        });
        let Some(index) = index else { return self.losses.pop_front() };
        let id = self.shared.lost.swap_remove(index);
        match self.loss_on(id) {
            Some(loss) => Some(loss),
            None => {
                self.count_if_unopened(id);
                self.remove(id); // the endpoint has never heard of it
                self.next_loss()
            }
        }
    }
}
