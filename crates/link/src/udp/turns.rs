//! The order in which a look asks two sockets ([`Turns`]). Each question is a system call, so most looks ask one of them.
//!
//! ```text
//! the partner is connected    the second one in each look; after 8 us again the first one, if the second one is empty
//! both find something         both, and each of them is asked first in turn
//! after a change              the one that has what is older first, until it is empty
//! no partner                  the first one in each look, the second one after a millisecond again
//! ```
//! What goes to the second socket while the kernel disconnects it waits there, so it is never left out for good.

use weir_proto::Instant;

/// A socket of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    First,
    Second,
}

impl Which {
    fn other(self) -> Which {
        match self {
            Which::First => Which::Second,
            Which::Second => Which::First,
        }
    }
}

/// The time after which the first socket is asked again while the second one is connected. Three or four looks in vain take
/// as long.
const FIRST_AGAIN_NS: u64 = 8_000;
/// The time after which the second socket is asked again while it is not connected.
const SECOND_AGAIN_NS: u64 = 1_000_000;
/// After so much more, it is asked first.
const OVERDUE_NS: u64 = 64_000;
/// A socket that has found something of a peer is asked in each look for so long.
const BUSY_NS: u64 = 64_000;
/// Looks in which what is older comes first.
const OLDER_LOOKS: u32 = 256;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Turns {
    /// The second socket can have something.
    has_second: bool,
    /// The one that each look asks.
    favoured: Which,
    /// The other one is asked again then.
    other_at: Instant,
    /// The other one is asked in each look until then.
    busy_until: Instant,
    /// What one of them has is older, for so many looks.
    older: Option<(Which, u32)>,
    looks: u32,
}

impl Turns {
    pub fn new() -> Turns {
        Turns {
            has_second: false,
            favoured: Which::First,
            other_at: Instant(0),
            busy_until: Instant(0),
            older: None,
            looks: 0,
        }
    }

    /// The second socket is connected to a peer from now on, or to none.
    pub fn changed(&mut self, is_connected: bool) {
        self.has_second = true;
        self.favoured = if is_connected { Which::Second } else { Which::First };
        self.older = Some((self.favoured.other(), OLDER_LOOKS));
    }

    /// The next look asks both.
    pub fn ask_both(&mut self) {
        self.other_at = Instant(0);
    }

    /// The sockets that a look asks, the second of them when the first is empty.
    #[inline]
    pub fn begin(&mut self, now: Instant) -> (Which, Option<Which>) {
        if !self.has_second {
            return (Which::First, None);
        }
        let (favoured, other) = (self.favoured, self.favoured.other());
        if let Some((older, looks)) = self.older {
            self.older = looks.checked_sub(1).map(|looks| (older, looks));
            return (older, Some(older.other()));
        }
        self.looks = self.looks.wrapping_add(1);
        if now >= self.other_at.plus_ns(OVERDUE_NS) || (now < self.busy_until && self.looks.is_multiple_of(2))
        {
            (other, Some(favoured))
        } else if now >= self.other_at || now < self.busy_until {
            (favoured, Some(other))
        } else {
            (favoured, None)
        }
    }

    /// A socket was asked, and has found something or was empty. Returns whether it has found something, and is not the one
    /// that each look asks.
    #[inline]
    pub fn asked(&mut self, which: Which, has_found: bool, now: Instant) -> bool {
        let is_other = which != self.favoured;
        if is_other {
            let again_ns = if which == Which::First { FIRST_AGAIN_NS } else { SECOND_AGAIN_NS };
            self.other_at = now.plus_ns(again_ns);
        }
        if !has_found && self.older.is_some_and(|(older, _)| older == which) {
            self.older = None;
        }
        is_other && has_found
    }

    /// What the other socket has found was of a peer.
    #[inline]
    pub fn other_is_busy(&mut self, now: Instant) {
        self.busy_until = now.plus_ns(BUSY_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Which::{First, Second};

    /// A look at sockets that have this much. Returns those that it asks.
    fn look(turns: &mut Turns, now: u64, first: bool, second: bool) -> Vec<Which> {
        look_at(turns, now, first, second, true)
    }

    /// The same for what is of peers, or of strangers.
    fn look_at(turns: &mut Turns, now: u64, first: bool, second: bool, of_peers: bool) -> Vec<Which> {
        let now = Instant(now);
        let (begin, then) = turns.begin(now);
        let mut asked = Vec::new();
        for which in [Some(begin), then].into_iter().flatten() {
            let has_found = if which == First { first } else { second };
            asked.push(which);
            if turns.asked(which, has_found, now) && of_peers {
                turns.other_is_busy(now);
            }
            if has_found {
                break;
            }
        }
        asked
    }

    /// With a partner, after what was older.
    fn connected() -> Turns {
        let mut turns = Turns::new();
        turns.changed(true);
        look(&mut turns, 0, false, false);
        turns
    }

    #[test]
    fn one_socket_is_asked_once() {
        let mut turns = Turns::new();
        for now in 0..100 {
            assert_eq!(look(&mut turns, now * 1000, now % 3 == 0, false), [First]);
        }
    }

    #[test]
    fn the_socket_of_the_partner_is_asked_in_each_look_and_the_first_one_now_and_then() {
        let mut turns = connected();
        let asked: Vec<_> = (1..=1000).map(|us| look(&mut turns, us * 1000, false, false)).collect();
        assert!(asked.iter().all(|asked| asked.contains(&Second)));
        assert_eq!(asked.iter().filter(|asked| asked.contains(&First)).count(), 125);
        turns.ask_both();
        assert_eq!(look(&mut turns, 1_000_001, false, false), [First, Second]);
    }

    #[test]
    fn a_full_socket_of_the_partner_delays_the_first_one_for_a_moment() {
        let mut turns = connected();
        let begun = (0..).find(|&us| look(&mut turns, us * 1000, true, true).contains(&First));
        assert_eq!(begun, Some(72));
    }

    #[test]
    fn neither_socket_starves_when_both_are_full() {
        let mut turns = connected();
        let mut counts = [0, 0];
        for us in 1..=1000 {
            for which in look(&mut turns, us * 1000, true, true) {
                counts[which as usize] += 1;
            }
        }
        assert!(counts.iter().all(|&count| count >= 400), "{counts:?}");
    }

    #[test]
    fn a_socket_that_was_busy_is_asked_for_a_while() {
        let mut turns = connected();
        assert_eq!(look(&mut turns, 10_000, true, false), [Second, First]);
        for ns in (11_000..74_000).step_by(1000) {
            assert_eq!(look(&mut turns, ns, false, false).len(), 2, "at {ns}");
        }
    }

    #[test]
    fn a_socket_that_has_found_strangers_only_is_asked_as_seldom_as_before() {
        let mut turns = connected();
        let asked: Vec<_> = (1..=1000).map(|us| look_at(&mut turns, us * 1000, true, false, false)).collect();
        assert!(asked.iter().all(|asked| asked[0] == Second));
        assert_eq!(asked.iter().filter(|asked| asked.contains(&First)).count(), 125);
    }

    #[test]
    fn what_is_older_comes_first_until_it_is_read_but_not_for_ever() {
        let mut turns = connected();
        turns.changed(true);
        for nth in 0..10 {
            assert_eq!(look(&mut turns, nth, true, true), [First]);
        }
        assert_eq!(look(&mut turns, 10, false, true), [First, Second]);
        assert_eq!(look(&mut turns, 11, false, true)[0], Second);
        turns.changed(false);
        assert_eq!(look(&mut turns, 12, true, true), [Second]);
        let others = (0..1000).filter(|_| look(&mut turns, 13, true, true) == [First]).count();
        assert!(others > 300, "{others}");
    }

    #[test]
    fn a_socket_without_a_partner_is_asked_a_thousand_times_a_second() {
        let mut turns = connected();
        turns.changed(false);
        assert_eq!(look(&mut turns, 1_000_000, false, false), [Second, First]);
        turns.ask_both();
        assert_eq!(
            look(&mut turns, 1_000_000, true, false),
            [Second, First],
            "it is asked although the first is full"
        );
        let asked: Vec<_> = (1001..=11_000).map(|us| look(&mut turns, us * 1000, false, false)).collect();
        assert_eq!(asked.iter().filter(|asked| asked.contains(&Second)).count(), 10);
    }
}
