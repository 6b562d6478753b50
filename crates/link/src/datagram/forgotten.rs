//! Addresses that a link does not believe any more, because their endpoints were lost ([`Forgotten`]): the latest
//! [`MOST_FORGOTTEN`] ones. The address of an endpoint that was lost before those can open a path again.
//!
//! ```text
//! lose(A)                        introduction of A: refused
//! lose(B), ... 4095 more         introduction of A: still refused
//! lose(C)                        introduction of A: a new path, in a new epoch
//! datagram of A's old epochs     dropped, since its path has other epochs
//! ```
//! So old packets are refused in any case. The engine knows all peers that it has met, and loses A again at once.

use crate::Address;
use std::collections::{HashSet, VecDeque};

/// Lost endpoints whose addresses are remembered. With the hash table they take at most 1.5 MB.
pub(super) const MOST_FORGOTTEN: usize = 4096;

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Forgotten {
    /// The oldest first.
    order: VecDeque<Address>,
    all: HashSet<Address>,
}

impl Forgotten {
    /// The endpoint at `address` is lost.
    pub(super) fn add(&mut self, address: Address) {
        if !self.all.insert(address) {
            return;
        }
        if self.order.len() == MOST_FORGOTTEN
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
        }
        self.order.push_back(address);
    }

    /// Whether it is one of the latest that were lost.
    pub(super) fn contains(&self, address: &Address) -> bool {
        self.all.contains(address)
    }
}

#[cfg(test)]
mod tests {
    use super::super::DatagramOptions;
    use super::super::link::DatagramLink;
    use super::super::lossy::{Impairments, LossyNetwork, Switch};
    use super::super::network::DatagramNetwork;
    use super::super::path::extension;
    use super::super::seal::{Key, nonce_of};
    use super::*;
    use crate::{Addressing, Arrival, Link, LinkKind, Quota};
    use weir_proto::reliability::Header;
    use weir_proto::wire::EXTENSION_BYTES;
    use weir_proto::{Peer, PeerFault};
    use zerocopy::IntoBytes;

    fn open(switch: &Switch, port: u16) -> DatagramLink<LossyNetwork> {
        let options = DatagramOptions {
            close_ns: 0,
            ..DatagramOptions::new(Quota { data_slots: 100, start_slots: 10, credit_slots: 2 })
        };
        DatagramLink::open(&Address::new(port.into(), [port as u8; 16]), switch.open(port), options)
    }

    /// The link of `a` meets endpoints that never answer, and loses them.
    fn lose_others(a: &mut DatagramLink<LossyNetwork>, identities: std::ops::Range<u64>) {
        let part = 9_u16.to_le_bytes();
        for identity in identities {
            let address = Address::new(identity, [3; 16]).with_part(LinkKind::LastChoice, &part);
            let peer = Peer(10 + identity as u32 % 2);
            assert!(a.connect(peer, &address.expect("room")).is_none());
            a.forget(peer);
        }
    }

    /// Connects `b` to `a`, and returns their epochs: of `b` and of `a`.
    fn connect(
        switch: &Switch,
        a: &mut DatagramLink<LossyNetwork>,
        b: &mut DatagramLink<LossyNetwork>,
    ) -> Option<(u16, u16)> {
        let at_a = a.address();
        for _ in 0..100 {
            if b.connect(Peer(1), &at_a).is_some() {
                let ids = (b.by_address[&at_a], a.by_address[&b.address()]);
                return Some((b.path(ids.0)?.epoch.get(), a.path(ids.1)?.epoch.get()));
            }
            for link in [&mut *a, &mut *b] {
                while let Some(arrival) = link.poll() {
                    if let Arrival::Attached { lane, .. } = arrival {
                        link.accept(lane, Peer(2));
                    }
                }
            }
            switch.advance(100_000);
        }
        None
    }

    #[test]
    fn a_link_that_meets_thousands_of_peers_remembers_the_latest_ones_only() {
        let switch = Switch::new(1, Impairments::default());
        let mut a = open(&switch, 1);
        lose_others(&mut a, 100..20_100);
        assert_eq!((a.forgotten.order.len(), a.forgotten.all.len()), (MOST_FORGOTTEN, MOST_FORGOTTEN));
        assert!(a.forgotten.order.capacity().max(a.forgotten.all.capacity()) < 4 * MOST_FORGOTTEN);
        let left = (a.paths.iter().flatten().count(), a.by_address.len(), a.by_place.len());
        assert_eq!((left, a.paths.len()), ((0, 0, 0), 1));
        assert!(a.copy_bytes() <= 1452, "one buffer, for the next bundle");
        let mut drops = 0;
        while let Some(arrival) = a.poll() {
            drops += u32::from(matches!(arrival, Arrival::Lost { .. }));
        }
        assert_eq!(drops, 0, "each peer was forgotten");
    }

    #[test]
    fn a_lost_peer_is_refused_and_old_packets_are_after_thousands_of_other_losses_too() {
        let switch = Switch::new(1, Impairments::default());
        let [mut a, mut b] = [1, 2].map(|port| open(&switch, port));
        let at_b = b.address();
        let (of_b, of_a) = connect(&switch, &mut a, &mut b).expect("a lane");
        a.forget(Peer(2));
        lose_others(&mut a, 100..100 + MOST_FORGOTTEN as u64 - 1);
        switch.cut(2);
        drop(b);
        let mut b = open(&switch, 2);
        assert_eq!(connect(&switch, &mut a, &mut b), None, "its address is remembered");
        assert_eq!(a.connect(Peer(2), &at_b), None);
        assert_eq!(a.next_loss(), Some((Peer(2), PeerFault::Unreachable)));
        lose_others(&mut a, 50..51);
        switch.cut(2);
        drop(b);
        let mut b = open(&switch, 2);
        let again = connect(&switch, &mut a, &mut b).expect("a lane");
        assert!(again.1 != of_a, "{again:?}");
        // A packet of the old path that has been on its way until now: a number that has not come yet, and a bundle.
        let number = 1000;
        let header = Header {
            epoch: of_b,
            destination_epoch: of_a,
            number,
            acknowledged: 0,
            latest: 0,
            arrived: 0,
            marks: 0,
            asks: false,
            delay_doublings: 0,
        };
        let mut datagram = extension(&header, a.verification).as_bytes().to_vec();
        datagram.extend([0; 100]);
        let key = Key::of_path(&at_b, &a.address());
        key.seal(&nonce_of((of_b, of_a), number.into()), &mut datagram, 0, EXTENSION_BYTES);
        let id = a.by_address[&at_b];
        let before = a.path(id).expect("a path").machine.view().next_delivery;
        switch.forge(2, 1, &datagram);
        assert!(a.poll().is_none());
        let machine = &a.path(id).expect("a path").machine;
        assert_eq!((machine.counters().stale, machine.view().next_delivery), (1, before));
        assert_eq!((a.counters().forged, a.network().traffic().received), (0, 0));
    }
}
