//! Loans: what a receiver with credits on demand lends, to whom, and who waits for it. A receiver writes them into its
//! page ([`crate::stats`]); `weir explain` and the line about a stall ([`crate::stalls`]) read them.
//!
//! Worked example: a receiver lends 448 slots. Rank 1 holds 224 of them, none idle, and wants 300 more. Rank 2 wants 64.
//! Nothing is free, so both wait in its queue, rank 1 as the first.

use crate::stalls::{UNKNOWN, known, plural};

/// What one sender has and wants of a receiver, in the receiver's page. Units: slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    /// The sender: see [`weir_link::Address::identity`].
    pub from: u64,
    /// Slots that it wants beyond those that it holds.
    pub demand: u64,
    /// Slots that it holds: its credits, credits on the way, and filled slots.
    pub held: u64,
    /// Of these, credits for which it has told no use: guaranteed or prefetched ones.
    pub idle: u64,
    /// The slots that prefetch may let it hold.
    pub window: u64,
    /// Slots granted, modulo 2^32.
    pub granted_total: u64,
    /// Senders that get a turn before it, at most; `None`: it does not wait for free slots.
    pub ahead: Option<u64>,
}

/// What a receiver can lend now, and has lent since it was opened. In its page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lending {
    /// Slots of its data region.
    pub region_slots: u64,
    /// Slots that any sender can be lent now.
    pub free_slots: u64,
    /// Slots that prefetch leaves free.
    pub reserve_slots: u64,
    /// Senders that wait for free slots now.
    pub waiting_senders: u64,
    /// Slots lent to senders that showed demand.
    pub lent_slots: u64,
    /// Slots granted beyond the guarantee to senders without demand.
    pub prefetched_slots: u64,
    /// Number of times that a sender began to wait for free slots.
    pub demands_queued: u64,
    /// Turns of waiting senders that ended with demand left.
    pub queue_turns: u64,
}

impl Loan {
    /// Words of a loan in a page.
    pub(crate) const WORDS: usize = 7;

    pub(crate) fn words(&self) -> [u64; Loan::WORDS] {
        let Loan { from, demand, held, idle, window, granted_total, ahead } = *self;
        [from, demand, held, idle, window, granted_total, ahead.unwrap_or(UNKNOWN)]
    }

    pub(crate) fn from_words(words: [u64; Loan::WORDS]) -> Loan {
        let [from, demand, held, idle, window, granted_total, ahead] = words;
        Loan { from, demand, held, idle, window, granted_total, ahead: known(ahead) }
    }

    /// The order in a page that has no room for all: senders that wait, in the order of their turns, then those that
    /// hold most.
    pub(crate) fn rank(&self) -> (u64, std::cmp::Reverse<u64>) {
        (self.ahead.unwrap_or(UNKNOWN), std::cmp::Reverse(self.held))
    }

    /// The part of a stall line that tells what the receiver knows of the sender. `granted_total`: what the sender has
    /// read, modulo 2^32. `None`: the page is older than that.
    pub(crate) fn line(&self, granted_total: Option<u64>, lending: Option<&Lending>) -> Option<String> {
        let unread = granted_total.map_or(0, |total| (self.granted_total as u32).wrapping_sub(total as u32));
        if (unread as i32) < 0 {
            return None;
        }
        let slots = |count| plural(count, "slot");
        let mut line = match self.ahead {
            Some(0) => format!("knows of its demand of {}, which is first in its queue", slots(self.demand)),
            Some(ahead) => {
                format!(
                    "knows of its demand of {}, which waits behind at most {}",
                    slots(self.demand),
                    plural(ahead, "sender")
                )
            }
            None if self.demand > 0 => format!("knows of its demand of {}, and can lend", slots(self.demand)),
            None => String::from("knows of no demand"),
        };
        line += &format!(", has granted it {} ({} idle)", slots(self.held), self.idle);
        if let Some(lending) = lending {
            line += &format!(", and has {} of {} free", lending.free_slots, slots(lending.region_slots));
        }
        if unread > 0 {
            line += &format!("; {} granted and not yet read", plural(u64::from(unread), "credit"));
        }
        Some(line)
    }
}

impl Lending {
    /// Names of the values, in the order of [`Lending::values`].
    pub const NAMES: [&str; Lending::WORDS] = [
        "region_slots",
        "free_slots",
        "reserve_slots",
        "waiting_senders",
        "lent_slots",
        "prefetched_slots",
        "demands_queued",
        "queue_turns",
    ];

    /// Words in a page: these values, all 0 without a scheme that lends.
    pub(crate) const WORDS: usize = 8;

    /// The values, in the order of [`Lending::NAMES`].
    pub fn values(&self) -> [u64; Lending::WORDS] {
        let Lending { region_slots, free_slots, reserve_slots, waiting_senders, .. } = *self;
        let Lending { lent_slots, prefetched_slots, demands_queued, queue_turns, .. } = *self;
        [
            region_slots,
            free_slots,
            reserve_slots,
            waiting_senders,
            lent_slots,
            prefetched_slots,
            demands_queued,
            queue_turns,
        ]
    }

    pub(crate) fn from_words(words: [u64; Lending::WORDS]) -> Option<Lending> {
        let [region_slots, free_slots, reserve_slots, waiting_senders, ..] = words;
        let [.., lent_slots, prefetched_slots, demands_queued, queue_turns] = words;
        (region_slots > 0).then_some(Lending {
            region_slots,
            free_slots,
            reserve_slots,
            waiting_senders,
            lent_slots,
            prefetched_slots,
            demands_queued,
            queue_turns,
        })
    }

    /// What several receivers lend together.
    #[must_use]
    pub fn plus(&self, other: &Lending) -> Lending {
        let mut sum = self.values();
        // The numbers come from files, so an overflow must not stop a report.
        for (sum, more) in sum.iter_mut().zip(other.values()) {
            *sum = sum.saturating_add(more);
        }
        Lending::from_words(sum).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAN: Loan =
        Loan { from: 30, demand: 12, held: 24, idle: 1, window: 8, granted_total: 100, ahead: Some(2) };
    const LENDING: Lending = Lending {
        region_slots: 448,
        free_slots: 0,
        reserve_slots: 112,
        waiting_senders: 3,
        lent_slots: 900,
        prefetched_slots: 80,
        demands_queued: 7,
        queue_turns: 2,
    };

    #[test]
    fn loans_survive_encoding() {
        for loan in [LOAN, Loan { ahead: None, ..LOAN }] {
            assert_eq!(Loan::from_words(loan.words()), loan);
        }
        assert_eq!(Lending::from_words(LENDING.values()), Some(LENDING));
        assert_eq!(Lending::from_words(Lending::default().values()), None);
        assert_eq!(LENDING.plus(&LENDING).queue_turns, 4);
    }

    #[test]
    fn waiting_senders_come_first_in_the_order_of_their_turns() {
        let of = |held, ahead| Loan { held, ahead, ..LOAN };
        let mut loans = [of(5, None), of(9, None), of(1, Some(1)), of(2, Some(0))];
        loans.sort_by_key(Loan::rank);
        assert_eq!(loans.map(|loan| loan.held), [2, 1, 9, 5]);
    }

    #[test]
    fn a_line_tells_demand_loan_place_and_free_slots() {
        let line = |loan: Loan, granted| loan.line(Some(granted), Some(&LENDING));
        assert_eq!(
            line(LOAN, 100).unwrap(),
            "knows of its demand of 12 slots, which waits behind at most 2 senders, has granted it 24 slots (1 idle), \
             and has 0 of 448 slots free"
        );
        let first = Loan { ahead: Some(0), ..LOAN };
        assert!(line(first, 100).unwrap().contains("12 slots, which is first in its queue"));
        let served = Loan { demand: 0, ahead: None, ..LOAN };
        let text = line(served, 76).unwrap();
        assert!(
            text.starts_with("knows of no demand") && text.ends_with("24 credits granted and not yet read")
        );
        assert_eq!(line(LOAN, 101), None, "the page is older than what the sender has read");
    }
}
