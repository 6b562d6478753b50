//! Paths that an introduction has made and that have not opened ([`Unopened`]). A member of the job has made the introduction,
//! but a stranger may have sent it again after its peer was lost. Nobody else would ever remove such a path.
//!
//! ```text
//! introduction of B                 a path, and an answer
//! datagram of B for its epoch       the path is open: B lives
//! none within the limit             B is asked, as each silent peer is
//! no answer within the limit        the path is removed and counted, unless B's kernel says that B's process lives
//! introduction of B                 a new path, in a new epoch
//! ```
//! The question comes so late because the answer to an introduction must be the only thing that a stranger gets for it at once.

use super::link::DatagramLink;
use super::network::DatagramNetwork;
use std::collections::VecDeque;
use std::num::NonZeroU16;
use weir_proto::Instant;

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Unopened {
    /// When a path is looked at, and its epoch. The earliest first. A path that has been removed since may be in it.
    paths: VecDeque<(Instant, u32, NonZeroU16)>,
}

impl<N: DatagramNetwork> DatagramLink<N> {
    /// An introduction has made this path.
    pub(super) fn note_unopened(&mut self, id: u32, now: Instant) {
        let at = now.plus_ns(self.options.reliability.limit_ns);
        if let Some(epoch) = self.path(id).map(|path| path.epoch) {
            self.unopened.paths.push_back((at, id, epoch));
        }
    }

    /// Asks peers that have introduced themselves long ago and have not opened their paths.
    #[inline]
    pub(super) fn ask_unopened(&mut self, now: Instant) {
        while let Some((_, id, epoch)) = self.unopened.paths.pop_front_if(|(at, ..)| *at <= now) {
            let is_unopened =
                self.path(id).is_some_and(|path| path.epoch == epoch && !path.machine.view().is_open);
            if is_unopened {
                self.drive_at(id, now, |machine, now, driver| machine.check(now, driver));
            }
        }
    }

    /// The path is lost, and the endpoint does not know its peer.
    pub(super) fn count_if_unopened(&mut self, id: u32) {
        let is_unopened = self.path(id).is_some_and(|path| !path.machine.view().is_open);
        self.counters.unopened += u64::from(is_unopened);
    }
}

#[cfg(test)]
mod tests {
    use super::super::lossy::{Impairments, LossyNetwork, Switch};
    use super::super::path::INTRODUCTION_BYTES;
    use super::super::path::extension;
    use super::super::seal::verification_tag;
    use super::super::seal::{Key, SALT_BYTES};
    use super::super::{DatagramCounters, DatagramOptions};
    use super::*;
    use crate::{Address, Addressing, Arrival, Link, LinkKind, Quota};
    use weir_proto::Peer;
    use weir_proto::reliability::Header;
    use weir_proto::wire::EXTENSION_BYTES;
    use zerocopy::IntoBytes;

    const SECOND: u64 = 1_000_000_000;
    const QUOTA: Quota = Quota { data_slots: 100, start_slots: 10, credit_slots: 2 };

    fn open(switch: &Switch, port: u16) -> DatagramLink<LossyNetwork> {
        let base = Address::new(port.into(), [port as u8; 16]);
        DatagramLink::open(&base, switch.open(port), DatagramOptions::new(QUOTA))
    }

    /// An introduction of a member of the job at this port to `to`.
    fn introduction(port: u16, epoch: u16, to: &Address) -> (Address, Vec<u8>) {
        let address = Address::new(port.into(), [port as u8; 16]);
        let address = address.with_part(LinkKind::LastChoice, &port.to_le_bytes()).expect("room");
        let header = Header {
            epoch,
            destination_epoch: 0,
            number: 1,
            acknowledged: 0,
            latest: 0,
            arrived: 0,
            marks: 0,
            asks: true,
            delay_doublings: 0,
        };
        let mut datagram = extension(&header, verification_tag(to)).as_bytes().to_vec();
        let salt = [epoch as u8; SALT_BYTES];
        datagram.extend(salt);
        datagram.extend(address.0);
        Key::of_introductions(to).seal(&salt, &mut datagram, 0, EXTENSION_BYTES + SALT_BYTES);
        assert_eq!(datagram.len(), INTRODUCTION_BYTES);
        (address, datagram)
    }

    /// Polls each 10 ms until then.
    fn poll_until(switch: &Switch, link: &mut DatagramLink<LossyNetwork>, until: Instant) {
        while link.network().now() < until {
            assert!(link.poll().is_none(), "nobody is there");
            switch.advance(SECOND / 100);
        }
    }

    fn left(link: &DatagramLink<LossyNetwork>) -> [usize; 4] {
        let paths = link.paths.iter().flatten().count();
        [paths, link.by_address.len(), link.by_place.len(), link.unopened.paths.len()]
    }

    #[test]
    fn a_path_that_an_introduction_made_and_that_never_opens_is_removed_and_counted() {
        let switch = Switch::new(1, Impairments::default());
        let mut a = open(&switch, 1);
        let limit_ns = a.options.reliability.limit_ns;
        for round in 1..=3 {
            let (address, datagram) = introduction(7, round, &a.address());
            let begun = a.network().now();
            (0..5).for_each(|_| switch.forge(7, 1, &datagram));
            poll_until(&switch, &mut a, begun.plus_ns(limit_ns - SECOND));
            assert_eq!(left(&a), [1; 4]);
            let sent = a.path(a.by_address[&address]).expect("a path").machine.counters().datagrams;
            assert!((1..=5).contains(&sent), "{sent} answers, and no question yet");
            // The limit until it is asked, the limit of a silent peer, and the longest wait of a timer.
            poll_until(&switch, &mut a, begun.plus_ns(2 * limit_ns + 2 * SECOND));
            assert_eq!(left(&a), [0; 4]);
            assert_eq!(a.counters(), DatagramCounters { unopened: round.into(), ..Default::default() });
            assert_eq!(a.report().unopened_paths, u64::from(round));
            assert!(!a.forgotten.contains(&address), "its peer may introduce itself again");
        }
    }

    #[test]
    fn a_path_that_has_opened_stays_and_one_that_the_peer_opens_late_does_too() {
        let switch = Switch::new(1, Impairments::default());
        let [mut a, mut b, mut c] = [1, 2, 3].map(|port| open(&switch, port));
        let at_a = a.address();
        let limit_ns = a.options.reliability.limit_ns;
        // `c` introduces itself, and does not poll for longer than the limit.
        assert!(c.connect(Peer(1), &at_a).is_none());
        let mut attached = 0;
        let mut poll = |links: &mut [&mut DatagramLink<LossyNetwork>]| {
            for link in links {
                while let Some(arrival) = link.poll() {
                    assert!(!matches!(arrival, Arrival::Lost { .. }));
                    if let Arrival::Attached { lane, address, .. } = arrival {
                        link.accept(lane, Peer(address.identity() as u32));
                        attached += 1;
                    }
                }
            }
            switch.advance(SECOND / 100);
        };
        let begun = a.network().now();
        while a.network().now() < begun.plus_ns(limit_ns + 3 * SECOND) {
            let _ = b.connect(Peer(1), &at_a);
            poll(&mut [&mut a, &mut b]);
        }
        assert_eq!(left(&a)[0], 2, "it is asked");
        for _ in 0..1000 {
            let _ = c.connect(Peer(1), &at_a);
            poll(&mut [&mut a, &mut b, &mut c]);
        }
        assert!(c.connect(Peer(1), &at_a).is_some() && b.connect(Peer(1), &at_a).is_some());
        assert_eq!((attached, a.counters().unopened, left(&a)), (2, 0, [2, 2, 2, 0]));
    }
}
