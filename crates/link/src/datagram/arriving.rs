//! Datagrams that arrive: which peer has sent them, and whether that is proved. What is not authentic is dropped before
//! anything else looks at it, and counted.
//!
//! This file does not know what a bundle contains.

use super::arrived::Place;
use super::link::{DatagramLink, Shared};
use super::network::{DatagramNetwork, Received};
use super::path::{INTRODUCTION_BYTES, Path, PathDriver};
use super::seal::SALT_BYTES;
use crate::{ADDRESS_BYTES, Address};
use weir_proto::Instant;
use weir_proto::reliability::{Datagram, Header};
use weir_proto::wire::{EXTENSION_BYTES, split_extension};

impl<N: DatagramNetwork> DatagramLink<N> {
    /// Handles all datagrams that the network has now, one batch of them. After a look that has emptied the network, it
    /// leaves out one: whoever polls until nothing comes pays one look. Without peers it looks only when somebody rings. Returns
    /// whether it has found something.
    pub(super) fn receive(&mut self) -> bool {
        self.submitted_since_look = 0;
        let has_paths = !self.by_address.is_empty();
        if std::mem::take(&mut self.is_drained) || (!has_paths && self.shared.network.is_quiet()) {
            return false;
        }
        let mut filling = self.shared.arrived.fill();
        self.shared.network.receive(&mut filling.batch);
        if filling.batch.datagrams.is_empty() {
            self.shared.arrived.filled(filling);
            self.shared.crowd.found_nothing();
            if !has_paths {
                self.shared.network.arm();
            }
            return false;
        }
        self.is_drained = !self.shared.network.may_have_arrivals();
        let now = self.shared.network.now();
        self.found_at = now;
        let mut touched = std::mem::take(&mut self.touched);
        let mut datagrams = std::mem::take(&mut filling.batch.datagrams);
        for received in datagrams.drain(..) {
            let Received { from, range, marked } = received;
            let place = filling.place(range.start);
            let bytes = &mut filling.batch.bytes[range];
            if let Some(id) = self.datagram_arrived(now, from, bytes, place, marked) {
                self.shared.network.authenticated(from);
                if touched.last() != Some(&id) {
                    touched.push(id);
                }
            }
        }
        if touched.len() > 1 {
            touched.sort_unstable();
            touched.dedup();
        }
        for id in touched.drain(..) {
            self.shared.crowd.found(id, now);
            self.drive_at(id, now, |machine, now, driver| machine.batch_ended(now, driver));
            if let Some(path) = self.path(id)
                && !std::mem::replace(&mut path.is_recent, true)
            {
                self.recent.push(id);
            }
            if !self.unread.contains(&id) {
                self.unread.push(id);
            }
        }
        self.touched = touched;
        filling.batch.datagrams = datagrams;
        self.shared.arrived.filled(filling);
        true
    }

    /// [`DatagramLink::receive`] outside of a poll. What has arrived waits for the next one.
    pub(super) fn look(&mut self) {
        self.is_drained = false;
        self.receive();
    }

    /// Handles a datagram, which lies at `place`. Returns its path.
    fn datagram_arrived(
        &mut self,
        now: Instant,
        from: N::Place,
        bytes: &mut [u8],
        place: Option<Place>,
        marked: bool,
    ) -> Option<u32> {
        let Ok((extension, _)) = split_extension(bytes) else {
            self.counters.malformed += 1;
            return None;
        };
        if extension.verification.get() != self.verification {
            self.counters.foreign += 1;
            return None;
        }
        let header = Header::from(extension);
        if header.destination_epoch == 0 {
            return self.introduced(from, header, bytes, marked);
        }
        let epoch = header.destination_epoch;
        let last = self.last_arrival.filter(|last| (last.0, last.1) == (from, epoch)).map(|last| last.2);
        let named = last.or_else(|| self.named(from, epoch));
        let possible = match &named {
            Some(id) => Some(std::slice::from_ref(id)),
            None => self.by_place.get(&from).map(Vec::as_slice),
        };
        let opened = match possible {
            None => {
                self.counters.foreign += 1;
                return None;
            }
            Some(&[id]) => {
                self.last_arrival = Some((from, epoch, id));
                Some(id).filter(|&id| self.opened(now, id, header, (bytes, place), marked))
            }
            // An endpoint has ended, and another has begun at the same place.
            Some(ids) => {
                let ids = ids.to_vec();
                ids.into_iter().rev().find(|&id| {
                    let mut copy = bytes.to_vec(); // a wrong key destroys it
                    self.opened(now, id, header, (&mut copy, None), marked)
                })
            }
        };
        self.counters.forged += u64::from(opened.is_none());
        opened
    }

    /// The path whose epoch a datagram from `from` names, if its peer is there or on the same host: another endpoint of that
    /// host may have sent the datagram for it. Only its key proves that. The peer's place stays what its address says.
    fn named(&self, from: N::Place, epoch: u16) -> Option<u32> {
        let id = self.epochs.path(epoch)?;
        let path = self.paths[id as usize].as_deref()?;
        let place = path.io.place;
        (place == from || self.shared.network.is_same_host(place, from)).then_some(id)
    }

    /// Handles a datagram if it is from the peer of this path.
    fn opened(
        &mut self,
        now: Instant,
        id: u32,
        header: Header,
        (bytes, place): (&mut [u8], Option<Place>),
        marked: bool,
    ) -> bool {
        let DatagramLink { paths, shared, counters, .. } = self;
        let Some(path) = paths[id as usize].as_deref_mut() else { return false };
        let Ok((bundle, other_epoch)) = path.open(&header, bytes) else { return false };
        let position = match bundle.first_chunk() {
            Some(word) => Some(u32::from_le_bytes(*word)),
            None if bundle.is_empty() => None,
            None => {
                counters.malformed += 1;
                return true;
            }
        };
        if position.is_some() {
            shared.grants.iter_mut().for_each(|grants| grants.arrived(id));
        }
        let Path { machine, io, .. } = path;
        let silent_since = machine.silent_since();
        let place = place.map(|place| place.plus(EXTENSION_BYTES));
        let mut driver = PathDriver { id, io, shared, arriving: Some((bundle, place)) };
        machine.arrived(now, &Datagram { header, position, marked }, &mut driver);
        // What a peer sends does not show that it gets what is sent to it.
        if silent_since.is_some() && machine.silent_since() != silent_since {
            driver.shared.network.heard(driver.io.place);
        }
        if let Some(epoch) = other_epoch {
            path.bind(epoch);
        }
        true
    }

    /// Handles a question of an endpoint that does not know our epoch. It says its address.
    fn introduced(&mut self, from: N::Place, header: Header, bytes: &mut [u8], marked: bool) -> Option<u32> {
        let salt = bytes.get(EXTENSION_BYTES..).and_then(<[u8]>::first_chunk::<SALT_BYTES>).copied();
        let Some(salt) = salt.filter(|_| bytes.len() == INTRODUCTION_BYTES) else {
            self.counters.malformed += 1;
            return None;
        };
        let opened = self.introduction_key.open(&salt, bytes, EXTENSION_BYTES + SALT_BYTES);
        let Some(address) = opened.ok().and_then(<[u8]>::first_chunk::<ADDRESS_BYTES>) else {
            self.counters.forged += 1;
            return None;
        };
        let address = Address(*address);
        let is_refused = self.forgotten.contains(&address) || self.place_of(&address) != Some(from);
        let is_new = !self.by_address.contains_key(&address);
        let Some(id) = (if is_refused { None } else { self.path_to(&address) }) else {
            self.counters.foreign += 1;
            return None;
        };
        let now = self.shared.network.now();
        if is_new {
            self.note_unopened(id, now);
        }
        let (path, shared): (&mut Path<N::Place>, &mut Shared<N>) = self.path_and_shared(id)?;
        let Path { machine, io, .. } = path;
        let mut driver = PathDriver { id, io, shared, arriving: None };
        machine.arrived(now, &Datagram { header, position: None, marked }, &mut driver);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::super::lossy::{Impairments, LossyNetwork, Switch};
    use super::super::seal::DERIVED;
    use super::super::seal::verification_tag;
    use super::super::{DatagramCounters, DatagramOptions};
    use super::*;
    use crate::{Addressing, Arrival, Link, Quota};
    use weir_proto::wire::{VERIFICATION_AT, VERSION};
    use weir_proto::{Peer, PeerFault};

    type OneLink = DatagramLink<LossyNetwork>;

    fn open(switch: &Switch, port: u16) -> OneLink {
        let options = DatagramOptions::new(Quota { data_slots: 100, start_slots: 10, credit_slots: 2 });
        DatagramLink::open(&Address::new(port.into(), [port as u8; 16]), switch.open(port), options)
    }

    /// Polls until nothing comes. The name of a peer is its port. Returns the losses.
    fn poll(link: &mut OneLink) -> Vec<(Peer, PeerFault)> {
        let mut losses = Vec::new();
        while let Some(arrival) = link.poll() {
            match arrival {
                Arrival::Attached { lane, address, .. } => {
                    link.accept(lane, Peer(address.identity() as u32));
                }
                Arrival::Lost { peer, fault } => {
                    losses.push((peer, fault));
                    link.forget(peer);
                }
                _ => {}
            }
        }
        losses
    }

    /// Introductions of nobody, and datagrams from the place of a peer in epochs that it may have. Somebody has seen the
    /// verification tag.
    fn flood(switch: &Switch, from: u16, to: u16, names_epoch: u16, round: u16) {
        let derived = DERIVED.get();
        let verification = verification_tag(&Address::new(to.into(), [to as u8; 16]));
        DERIVED.set(derived);
        let datagram = |epoch: u16, destination_epoch: u16, bytes: usize| {
            let mut datagram = vec![epoch as u8; bytes];
            datagram[..2].copy_from_slice(&[VERSION, 0]);
            datagram[2..4].copy_from_slice(&epoch.to_le_bytes());
            datagram[4..6].copy_from_slice(&destination_epoch.to_le_bytes());
            datagram[VERIFICATION_AT..][..4].copy_from_slice(&verification.to_le_bytes());
            datagram
        };
        for epoch in (round * 50..).take(50).map(|epoch| epoch + 2) {
            switch.forge(77, to, &datagram(epoch, 0, INTRODUCTION_BYTES));
            switch.forge(from, to, &datagram(epoch, names_epoch, 200));
        }
    }

    /// Connects `b` to `a` while a stranger floods `a`. Returns the losses at `a`, and the keys that it has derived.
    fn connect(switch: &Switch, a: &mut OneLink, b: &mut OneLink) -> (Vec<(Peer, PeerFault)>, u64) {
        let (at_a, mut losses, mut derived, mut round) = (a.address(), Vec::new(), 0, 0);
        while losses.is_empty() && b.connect(Peer(1), &at_a).is_none() {
            assert!(round < 100, "nothing happens any more");
            flood(switch, 2, 1, 1, round);
            poll(b);
            let before = DERIVED.get();
            losses = poll(a);
            derived += DERIVED.get() - before;
            switch.advance(100_000);
            round += 1;
        }
        (losses, derived)
    }

    #[test]
    fn a_datagram_of_a_stranger_derives_no_key_and_a_flood_hides_no_peer() {
        let switch = Switch::new(1, Impairments::default());
        let [mut a, mut b] = [1, 2].map(|port| open(&switch, port));
        assert_eq!(connect(&switch, &mut a, &mut b), (vec![], 3), "a key for each direction, and a tag");
        let DatagramCounters { forged, foreign, .. } = a.counters(); // before the path was made
        let derived = DERIVED.get();
        (0..20).for_each(|round| {
            flood(&switch, 2, 1, 1, round);
            poll(&mut a);
        });
        poll(&mut a); // a look may be left out after one that has emptied the network
        assert_eq!((DERIVED.get(), a.counters().forged), (derived, forged + 2000));
        let mut c = open(&switch, 3);
        assert_eq!(connect(&switch, &mut a, &mut c), (vec![], 3));
        assert!(
            a.counters().forged >= forged + 2200 && a.counters().foreign == foreign,
            "{:?}",
            a.counters()
        );
    }

    #[test]
    fn a_datagram_without_the_verification_tag_is_foreign_whatever_it_is_otherwise() {
        let switch = Switch::new(1, Impairments::default());
        let [mut a, mut b] = [1, 2].map(|port| open(&switch, port));
        assert_eq!(connect(&switch, &mut a, &mut b).0, []);
        let before = a.counters();
        a.verification ^= 1;
        flood(&switch, 2, 1, 1, 0);
        (0..2).for_each(|_| assert_eq!(poll(&mut a), []));
        assert_eq!(a.counters(), DatagramCounters { foreign: before.foreign + 100, ..before });
    }

    #[test]
    fn a_peer_that_has_begun_a_new_epoch_is_noticed_during_a_flood() {
        let switch = Switch::new(1, Impairments::default());
        let [mut a, mut b, mut c] = [1, 2, 3].map(|port| open(&switch, port));
        assert_eq!(connect(&switch, &mut a, &mut b).0, []);
        switch.cut(2);
        drop(b);
        let mut b = open(&switch, 2);
        assert_eq!(connect(&switch, &mut c, &mut b).0, [], "the first epoch");
        assert_eq!(connect(&switch, &mut a, &mut b), (vec![(Peer(2), PeerFault::Died)], 0));
        assert!(a.counters().forged > 0);
    }
}
