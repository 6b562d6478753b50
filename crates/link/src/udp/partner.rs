//! The choice of the peer that the second socket of an endpoint is connected to ([`Choice`]): the one to which nearly all
//! calls go, if there is one. It is called the *partner*.
//!
//! ```text
//! 64 calls in a row to A              A is the partner
//! A A A B A A A B ...                 it stays the partner
//! A B C A B C ...                     it is none any more, and nobody else is
//! ```
//! A call takes one datagram, or several of one length. Those in fragments do not gain by the connected socket, since they leave
//! through the first one. With several busy peers, each look would cost two system calls, so then there is no partner. Each
//! change doubles the row that the next one needs, so a program whose partner changes again and again pays nothing for it.
//!
//! This file does not know sockets.

use std::net::SocketAddr;

/// The row that the first partner needs. Unit: calls.
const FIRST_ROW: u32 = 64;
/// The row that a partner needs after many changes. Unit: calls.
const LONGEST_ROW: u32 = 1024;
/// What a partner has at most. A call to it adds one.
const MOST_BALANCE: i32 = 64;
/// What a call to another peer takes.
const OTHERS_TAKE: i32 = 4;

/// What the second socket has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Connect(SocketAddr),
    Disconnect,
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Choice {
    partner: Option<SocketAddr>,
    balance: i32,
    candidate: Option<SocketAddr>,
    /// Calls to the candidate since one to another peer.
    row: u32,
    needed_row: u32,
}

impl Choice {
    pub fn new() -> Choice {
        Choice { partner: None, balance: 0, candidate: None, row: 0, needed_row: FIRST_ROW }
    }

    /// The peer that the socket is connected to.
    pub fn partner(&self) -> Option<SocketAddr> {
        self.partner
    }

    /// Datagrams leave to `to` in one call. `counts`: not in fragments. The change that follows is to be answered by
    /// [`Choice::changed`].
    #[inline]
    pub fn sent(&mut self, to: SocketAddr, counts: bool) -> Option<Change> {
        if self.partner == Some(to) {
            self.balance = (self.balance + i32::from(counts)).min(MOST_BALANCE);
            self.row = 0;
            return None;
        }
        if self.candidate != Some(to) {
            (self.candidate, self.row) = (Some(to), 0);
        }
        self.row += u32::from(counts);
        if self.row >= self.needed_row {
            return Some(Change::Connect(to));
        }
        self.take(OTHERS_TAKE)
    }

    /// A look has found something of other peers.
    pub fn others_arrived(&mut self) -> Option<Change> {
        self.take(1)
    }

    fn take(&mut self, price: i32) -> Option<Change> {
        self.partner?;
        self.balance -= price;
        (self.balance <= 0).then_some(Change::Disconnect)
    }

    /// Whether the kernel has made the change. If it has not, everything stays, and it is asked again later.
    pub fn changed(&mut self, change: Change, is_made: bool) {
        self.row = 0;
        self.balance = MOST_BALANCE;
        if is_made {
            self.partner = match change {
                Change::Connect(peer) => Some(peer),
                Change::Disconnect => None,
            };
        }
        if let Change::Connect(_) = change {
            self.needed_row = (self.needed_row * 2).min(LONGEST_ROW);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    /// Calls to these peers, and changes that the kernel makes. Returns how many changes there were.
    fn send(choice: &mut Choice, ports: impl IntoIterator<Item = u16>) -> usize {
        let changes = ports.into_iter().filter_map(|port| {
            let change = choice.sent(peer(port), true)?;
            choice.changed(change, true);
            Some(change)
        });
        changes.count()
    }

    fn times(ports: &[u16], times: usize) -> impl Iterator<Item = u16> {
        ports.iter().copied().cycle().take(ports.len() * times)
    }

    #[test]
    fn a_row_of_calls_makes_a_partner() {
        let mut choice = Choice::new();
        send(&mut choice, times(&[1], 63));
        assert_eq!(choice.partner(), None);
        for _ in 0..1000 {
            assert_eq!(choice.sent(peer(1), false), None, "what leaves in fragments gains nothing");
        }
        assert_eq!(choice.sent(peer(1), true), Some(Change::Connect(peer(1))));
        choice.changed(Change::Connect(peer(1)), true);
        assert_eq!(choice.partner(), Some(peer(1)));
    }

    #[test]
    fn peers_in_turn_have_no_partner_among_them() {
        let mut choice = Choice::new();
        assert_eq!(send(&mut choice, times(&[1, 2], 10_000)), 0);
        assert_eq!(send(&mut choice, times(&[1, 1, 1, 1, 1, 1, 1, 2], 10_000)), 0);
    }

    #[test]
    fn a_partner_stays_while_few_datagrams_go_to_others_and_not_longer() {
        let mut choice = Choice::new();
        send(&mut choice, times(&[1], 64));
        assert_eq!(send(&mut choice, times(&[1, 1, 1, 1, 2], 10_000)), 0);
        assert_eq!(send(&mut choice, times(&[1, 1, 1, 2], 10_000)), 1);
        assert_eq!(choice.partner(), None);
    }

    #[test]
    fn arrivals_of_others_end_it_unless_as_much_goes_to_the_partner() {
        let mut choice = Choice::new();
        send(&mut choice, times(&[1], 64));
        for _ in 0..10_000 {
            assert_eq!(choice.others_arrived(), None);
            send(&mut choice, [1]);
        }
        let arrivals = (1..).find(|_| choice.others_arrived().is_some());
        assert_eq!(arrivals, Some(64));
    }

    #[test]
    fn a_change_of_phases_costs_less_and_less() {
        let mut choice = Choice::new();
        let phases = (0..1000).flat_map(|phase| std::iter::repeat_n(1 + phase % 2, 512));
        let changes = send(&mut choice, phases);
        assert!(changes < 16, "{changes} changes");
        send(&mut choice, times(&[3], 1024));
        assert_eq!(choice.partner(), Some(peer(3)), "a long row still makes a partner");
    }

    #[test]
    fn a_change_that_the_kernel_refuses_is_tried_again_after_a_longer_row() {
        let mut choice = Choice::new();
        let mut at = Vec::new();
        for nth in 1..4000 {
            if let Some(change) = choice.sent(peer(1), true) {
                choice.changed(change, false);
                at.push(nth);
            }
        }
        assert_eq!(at, [64, 192, 448, 960, 1984, 3008]);
        assert_eq!(choice.partner(), None);
    }
}
