//! Vectors worked by hand, one group per rule of docs/notes/2026-11-24-demand-credits.md.

use super::*;
use crate::flow::LoanView;

const A: Peer = Peer(1);
const B: Peer = Peer(2);
const C: Peer = Peer(3);

/// A pool of `slots` slots for `peers` senders, `n` credit slots and starting credits.
fn pool(slots: u32, peers: u32, n: u32) -> Pool {
    Pool::new(&DataRegion { slots, peers, start_slots: n, ..DataRegion::default() }, n)
}

/// The pool and the accounts of its senders, attached with large lanes.
fn attached<const SENDERS: usize>(mut pool: Pool) -> (Pool, [u32; SENDERS]) {
    let start = pool.region.start;
    let mut peer = 0;
    let accounts = [(); SENDERS].map(|()| {
        peer += 1;
        pool.attach(Peer(peer), 1 << 20, start)
    });
    (pool, accounts)
}

impl Pool {
    /// `slots` slots of a sender are retrieved that wants `wanted` in all and has read all credit packets.
    fn retrieve(&mut self, account: u32, slots: u32, wanted: u32) -> bool {
        self.credit_packets_read(account, self.accounts[account as usize].packets_sent);
        let due = self.retrieved_and_due(account, slots, wanted).expect("it had the credits");
        self.assert_invariants();
        due
    }

    /// The queued accounts in the order of their turns.
    fn waiting(&self) -> Vec<u32> {
        self.queue.in_order(self.indices().filter(|&index| self.accounts[index as usize].queued))
    }

    /// An explicit credit packet, if one is due and none is unread.
    fn explicit(&mut self, account: u32) -> Option<u32> {
        let credits = self.grant(account, self.credit_slots);
        self.assert_invariants();
        credits
    }
}

// Demand and loans.

#[test]
fn a_packet_that_shows_demand_brings_a_loan_at_once() {
    let (mut pool, [a, _]) = attached(pool(26, 2, 1)); // 24 can be lent, the reserve is 6
    // One slot of a message of six: demand 6 - 1 = 5. The guaranteed credit is restored with it.
    assert!(pool.retrieve(a, 1, 6));
    assert_eq!(pool.explicit(a), Some(6));
    assert_eq!(pool.available_slots(), 26 - 6 - 1);
    // The loan is retrieved and is free again. Memory is plenty, so the window has grown to 1 + 5.
    assert!(pool.retrieve(a, 5, 6));
    assert_eq!((pool.region.free, pool.accounts[a as usize].window), (24, 6));
    assert_eq!((pool.explicit(a), pool.region.free), (Some(5), 19));
}

#[test]
fn without_demand_nothing_beyond_the_guarantee_is_granted_while_memory_is_not_plenty() {
    let (mut pool, [a, _]) = attached(pool(40, 2, 2)); // the reserve is 10
    (pool.region.free, pool.region.all) = (20, 20 + 4); // others hold the rest
    // n = 2: the guarantee is due when 2 div 3 + 1 = 1 slot is missing.
    assert!(pool.retrieve(a, 1, 1));
    assert_eq!(pool.explicit(a), Some(1));
    assert!(pool.retrieve(a, 2, 3));
    assert_eq!((pool.explicit(a), pool.granted_total(a)), (Some(2), 3));
}

#[test]
fn the_last_announced_total_counts_also_if_it_is_lower() {
    let (mut pool, [a, _]) = attached(pool(40, 2, 1));
    pool.retrieve(a, 1, 10);
    assert_eq!(pool.explicit(a), Some(10));
    // The nine queued slots became a rendezvous of one slot.
    pool.retrieve(a, 1, 2);
    assert_eq!((pool.demand(a), pool.surplus(a)), (0, 9));
    assert_eq!((pool.tally().vanished, pool.holders.contains(a)), (1, true));
}

#[test]
fn totals_wrap_at_their_end() {
    let (mut pool, [a, _]) = attached(pool(40, 2, 1));
    let account = &mut pool.accounts[a as usize];
    (account.granted_total, account.wanted_total) = (u32::MAX - 2, u32::MAX - 2);
    // Spent: start + granted - credits = 1 + (2^32 - 3) - 0 = 2^32 - 2; four more are queued.
    pool.retrieve(a, 1, 2);
    assert_eq!(pool.demand(a), 4);
    assert_eq!((pool.explicit(a), pool.granted_total(a)), (Some(5), 2));
}

#[test]
fn one_sender_holds_at_most_half_of_what_can_be_lent() {
    let (mut pool, [a, b]) = attached(pool(42, 2, 1)); // 40 can be lent
    pool.retrieve(a, 1, 1000);
    assert_eq!(pool.explicit(a), Some(21)); // 1 guaranteed and 20
    assert_eq!((pool.queued(), pool.region.free), (0, 20));
    pool.retrieve(b, 1, 10);
    assert_eq!(pool.explicit(b), Some(10));
}

#[test]
fn an_absurd_demand_brings_what_one_sender_may_hold() {
    for wanted in [1 << 30, i32::MAX as u32 + 1, 1 << 31, u32::MAX] {
        let (mut pool, [a, _]) = attached(pool(42, 2, 1));
        pool.retrieve(a, 1, wanted);
        pool.explicit(a);
        assert!(pool.accounts[a as usize].current <= 21, "wanted {wanted}");
        pool.retrieve(a, 1, wanted.wrapping_add(1 << 30));
        pool.explicit(a);
        assert!(pool.accounts[a as usize].current <= 21, "wanted {wanted}");
    }
}

#[test]
fn starting_credits_beyond_the_guarantee_come_out_of_the_free_slots() {
    let region = DataRegion { slots: 20, peers: 2, start_slots: 4, ..DataRegion::default() };
    let mut pool = Pool::new(&region, 1);
    for peer in 0..5 {
        pool.attach(Peer(peer), 100, 4);
        pool.assert_invariants();
    }
    assert_eq!((pool.region_slots(), pool.available_slots()), (20, 0));
    pool.attach(Peer(5), 100, 4);
    pool.assert_invariants();
    assert_eq!(pool.region_slots(), 24);
}

// Guarantee.

#[test]
fn guaranteed_credits_are_never_lent_to_others() {
    let (mut pool, [a, b, c]) = attached(pool(6, 3, 1)); // 3 can be lent; the quantum is 1
    pool.retrieve(a, 1, 100);
    assert_eq!(pool.explicit(a), Some(2)); // most = 1 + 3 div 2
    pool.retrieve(b, 1, 100);
    assert_eq!(pool.explicit(b), Some(2));
    pool.retrieve(c, 1, 100);
    // One slot is free, and the guaranteed one of C.
    assert_eq!(pool.explicit(c), Some(2));
    assert_eq!((pool.available_slots(), pool.region.free), (0, 0));
    pool.retrieve(c, 2, 100);
    assert_eq!(pool.explicit(c), Some(2));
}

#[test]
fn gap_a_pool_without_guarantee_starves_a_sender() {
    let run = |mutant: bool| {
        let (mut pool, [a, b]) = attached(pool(4, 2, 1));
        if mutant {
            pool.mutate(Mutant::NothingIsReserved);
        }
        pool.retrieve(b, 1, 1);
        for _ in 0..2 {
            pool.retrieve(a, pool.accounts[a as usize].current, 100);
            pool.grant(a, 1);
        }
        pool.grant(b, 1)
    };
    assert_eq!(run(false), Some(1));
    assert_eq!(run(true), None);
}

/// A and B hold all that can be lent, and C waits for 40 slots.
fn without_slots_to_lend() -> (Pool, [u32; 3]) {
    without_slots_to_lend_from(|_| ())
}

/// The same, in a pool that `change` has changed at the start.
fn without_slots_to_lend_from(change: impl FnOnce(&mut Pool)) -> (Pool, [u32; 3]) {
    let (mut pool, accounts) = attached(pool(27, 3, 1));
    change(&mut pool);
    for (account, wanted) in accounts.into_iter().zip([13, 13, 40]) {
        pool.retrieve(account, 1, wanted);
        pool.explicit(account);
    }
    assert_eq!(pool.region.free, 0);
    assert_eq!(pool.waiting(), [accounts[2]]);
    (pool, accounts)
}

#[test]
fn the_guarantee_of_a_waiting_sender_is_deferred() {
    let (mut pool, [a, _, c]) = without_slots_to_lend();
    assert!(pool.has_deferred() && pool.is_due(c));
    assert_eq!((pool.grant(c, 1), pool.accounts[c as usize].current), (None, 0));
    // Half of its turn does not end that, the whole turn does.
    assert!(pool.retrieve(a, 3, 13));
    assert_eq!((pool.next_waiting(), pool.explicit(c)), (None, None));
    assert!(pool.retrieve(a, 3, 13));
    assert_eq!(pool.next_waiting(), Some((c, C)));
    assert_eq!((pool.explicit(c), pool.has_deferred()), (Some(1 + 6), false));
}

#[test]
fn a_guarantee_that_meets_the_demand_is_not_deferred() {
    let (mut pool, [a, _, c]) = without_slots_to_lend();
    pool.retrieve(c, 0, 2);
    assert_eq!((pool.demand(c), pool.explicit(c), pool.queued()), (1, Some(1), 0));
    assert!(pool.accounts[a as usize].current > 0 && !pool.has_deferred());
}

#[test]
fn an_idle_endpoint_grants_a_deferred_guarantee_once() {
    let (mut pool, [.., c]) = without_slots_to_lend();
    assert_eq!((pool.next_deferred(), pool.next_deferred()), (Some(C), None));
    assert_eq!(pool.explicit(c), Some(1));
    pool.retrieve(c, 1, 40);
    assert_eq!((pool.explicit(c), pool.next_deferred()), (None, Some(C)));
}

/// Both others may be stopped, with all that can be lent.
#[test]
fn a_deferred_guarantee_that_is_forgotten_starves_a_sender() {
    let run = |mutant: bool| {
        let (mut pool, [_, _, c]) = without_slots_to_lend_from(|pool| {
            if mutant {
                pool.mutate(Mutant::DeferredIsForgotten);
            }
        });
        let next = pool.next_deferred();
        (next, pool.explicit(c))
    };
    assert_eq!(run(false), (Some(C), Some(1)));
    assert_eq!(run(true), (None, None));
}

#[test]
fn a_guarantee_that_piggybacks_is_not_deferred() {
    let (mut pool, [.., c]) = without_slots_to_lend();
    assert_eq!((pool.carry(c, true).0, pool.has_deferred()), (1, false));
}

/// A sends small messages with its guaranteed credits, and never spends what it was lent.
#[test]
fn a_guarantee_is_not_deferred_for_more_than_the_turns_of_all_senders() {
    let (mut pool, [a, _, c]) = without_slots_to_lend();
    pool.accounts[a as usize].current = 1;
    pool.region.all -= 12;
    let turns = pool.quantum_slots * 3;
    for message in 0..=turns {
        assert_eq!(pool.next_overdue(), None);
        pool.retrieve(a, 1, 14 + message);
        assert_eq!(pool.explicit(a), Some(1));
    }
    assert!(pool.has_work());
    assert_eq!((pool.next_overdue(), pool.explicit(c)), (Some(C), Some(1)));
}

/// 3 slots can be lent to three senders, so a turn is one slot, as long as the guarantee.
#[test]
fn a_guarantee_as_long_as_a_turn_is_not_deferred() {
    let (mut pool, [a, b, c]) = attached(pool(6, 3, 1));
    for account in [a, b] {
        pool.retrieve(account, 1, 40);
        pool.explicit(account);
    }
    (pool.region.free, pool.region.all) = (0, pool.region.all - pool.region.free);
    pool.retrieve(c, 1, 40);
    assert_eq!((pool.quantum_slots, pool.explicit(c), pool.has_deferred()), (1, Some(1), false));
    assert!(pool.waiting().contains(&c));
}

// Queue.

/// A and B wait because they could not take grants. Most slots are free when they can.
#[test]
fn a_turn_is_an_equal_part_of_many_free_slots() {
    let (mut pool, [a, b]) = attached(pool(1002, 2, 1));
    for account in [a, b] {
        pool.retrieve(account, 1, 2000);
        pool.grants_must_wait(account);
    }
    assert_eq!((pool.waiting(), pool.region.free), ([a, b].to_vec(), 1000));
    [a, b].into_iter().for_each(|account| pool.note_ready(account));
    assert_eq!((pool.quantum_slots, pool.explicit(a)), (64, Some(1 + 500)));
    // B has its turn before A has another, although A could hold no more in any case.
    assert_eq!((pool.next_waiting(), pool.explicit(b)), (Some((b, B)), Some(1 + 500)));
}

#[test]
fn waiting_senders_get_freed_slots_in_turns_of_a_quantum() {
    // 24 can be lent to three senders, at most 12 to each; the quantum is 6.
    let (mut pool, [a, b, c]) = attached(pool(27, 3, 1));
    pool.retrieve(a, 1, 100);
    assert_eq!(pool.explicit(a), Some(13));
    pool.retrieve(b, 1, 100);
    assert_eq!((pool.explicit(b), pool.region.free), (Some(12 + 1), 0));
    pool.retrieve(c, 1, 40);
    assert_eq!((pool.explicit(c), pool.queued()), (None, 1)); // its guarantee is deferred
    // Seven slots of A are retrieved. A has demand again, but C is first. A gets nothing and waits.
    assert!(pool.retrieve(a, 7, 100));
    assert_eq!((pool.explicit(a), pool.queued()), (None, 2));
    assert_eq!(pool.next_waiting(), Some((c, C)));
    // C gets its guarantee and a quantum of 6, and goes behind A.
    assert_eq!(pool.explicit(c), Some(7));
    assert_eq!((pool.waiting()[0], pool.region.free, pool.tally().rotations), (a, 1, 1));
    // A waits for its whole turn.
    assert_eq!((pool.next_waiting(), pool.explicit(a)), (None, None));
    pool.retrieve(b, 5, 100);
    assert_eq!((pool.next_waiting(), pool.explicit(a)), (Some((a, A)), Some(6)));
    assert_eq!((pool.region.free, pool.tally().rotations), (0, 2));
}

#[test]
fn a_sender_that_cannot_take_a_grant_is_passed_over_and_keeps_its_place() {
    let (mut pool, [a, b, c]) = attached(pool(27, 3, 1));
    for account in [a, b] {
        pool.retrieve(account, 1, 100);
        pool.explicit(account);
    }
    pool.retrieve(c, 1, 40);
    assert_eq!((pool.explicit(c), pool.next_deferred()), (None, Some(C)));
    assert_eq!(pool.explicit(c), Some(1)); // one credit packet, not read
    pool.retrieve(a, 4, 100);
    assert_eq!(pool.explicit(a), None); // C is first
    assert_eq!((pool.grant(c, 1), pool.accounts[c as usize].unready), (None, true));
    assert_eq!(pool.explicit(a), Some(4));
    assert_eq!(pool.waiting(), [c]); // A holds all that one sender may
    pool.assert_queue_is_served();
}

/// D waits behind C. C has small demand again and again, which its guarantee ends.
#[test]
fn a_guarantee_that_ends_a_demand_is_no_turn() {
    let (mut pool, [a, b, c, d]) = attached(pool(36, 4, 1)); // 32 can be lent, at most 16 to each
    for (account, wanted) in [(a, 17), (b, 17), (c, 40), (d, 40)] {
        pool.retrieve(account, 1, wanted);
        pool.explicit(account);
    }
    assert_eq!((pool.region.free, pool.waiting()), (0, [c, d].to_vec()));
    for spent in 1..4 {
        // C wants one slot only, then 40 again.
        pool.retrieve(c, 0, spent + 1);
        assert_eq!((pool.explicit(c), pool.waiting()), (Some(1), [d].to_vec()));
        pool.retrieve(c, 1, 40);
        assert_eq!((pool.explicit(c), pool.waiting()), (None, [d, c].to_vec()));
    }
    // No slot was lent meanwhile, so D has seen no turn of another.
    assert_eq!((pool.turns, pool.accounts[d as usize].ahead), (0, 1));
}

#[test]
fn a_sender_that_nothing_can_be_sent_to_is_passed_over() {
    let (mut pool, [a, b, c]) = attached(pool(27, 3, 1));
    for account in [a, b, c] {
        pool.retrieve(account, 1, 40);
        pool.explicit(account);
    }
    pool.retrieve(a, 6, 40);
    assert_eq!((pool.explicit(a), pool.waiting()), (None, [c, a].to_vec()));
    assert_eq!(pool.next_waiting(), Some((c, C)));
    // The lane to C has ended: nothing was granted to it.
    pool.served(c, pool.granted_total(c));
    assert_eq!((pool.next_waiting(), pool.waiting()), (Some((a, A)), [c, a].to_vec()));
    // With a new lane it is first again.
    pool.note_ready(c);
    assert_eq!(pool.next_waiting(), Some((c, C)));
}

/// C waits with demand for two quanta, then A. Twelve slots become free, in two halves. Returns what A has got.
fn second_in_the_queue_gets(mutant: Option<Mutant>) -> u32 {
    let (mut pool, [a, b, c]) = attached(pool(27, 3, 1));
    if let Some(mutant) = mutant {
        pool.mutate(mutant);
    }
    for account in [a, b, c] {
        pool.retrieve(account, 1, 1000);
        pool.explicit(account);
    }
    let before = pool.granted_total(a);
    for _ in 0..2 {
        pool.retrieve(a, 6, 1000);
        pool.explicit(a);
        while let Some((index, _)) = pool.next_waiting() {
            let granted_total = pool.granted_total(index);
            pool.accounts[index as usize].packets_read = pool.accounts[index as usize].packets_sent;
            pool.explicit(index);
            pool.served(index, granted_total);
        }
        pool.assert_queue_is_served();
    }
    pool.granted_total(a) - before
}

#[test]
fn the_second_in_the_queue_gets_the_second_quantum() {
    assert_eq!(second_in_the_queue_gets(None), 6);
}

#[test]
#[should_panic(expected = "D3")]
fn gap_a_queue_without_rotation_gives_the_first_both_quanta() {
    second_in_the_queue_gets(Some(Mutant::QueueDoesNotRotate));
}

/// Steps for each packet while `senders` senders wait: accounts that the queue has visited, and senders that were served.
fn steps_per_packet(senders: u32) -> u64 {
    let mut pool = pool(8 * senders, senders, 1);
    let accounts: Vec<u32> = (0..senders).map(|peer| pool.attach(Peer(peer), 1 << 20, 1)).collect();
    let mut random = fastrand::Rng::with_seed(1);
    let (packets, mut served) = (4 * senders, 0);
    for _ in 0..packets {
        // All slots of one sender are retrieved. Another one says that it has read its credit packets.
        let account = &pool.accounts[accounts[random.usize(0..accounts.len())] as usize];
        let (index, slots, read) = (account.owner.0, account.current, account.packets_sent);
        pool.credit_packets_read(index, read);
        pool.retrieved_and_due(index, slots, 1 << 20).expect("it had the credits");
        pool.grant(index, 1);
        let other = accounts[random.usize(0..accounts.len())];
        pool.credit_packets_read(other, pool.accounts[other as usize].packets_sent);
        while let Some((index, _)) = pool.next_waiting() {
            let granted_total = pool.granted_total(index);
            pool.grant(index, 1);
            pool.served(index, granted_total);
            served += 1;
        }
        assert_eq!(pool.next_request(), None);
    }
    pool.assert_invariants();
    assert!(pool.queued() > senders / 4 * 3, "{} senders wait", pool.queued());
    (pool.queue.visits.get() + served) / u64::from(packets)
}

#[test]
fn a_packet_visits_few_of_the_waiting_senders() {
    for senders in [10, 100, 1000] {
        let each = steps_per_packet(senders);
        assert!(each <= 20, "{each} steps for a packet among {senders} senders");
    }
}

#[test]
fn gap_freed_slots_must_serve_the_queue() {
    for (mutant, work) in [(None, true), (Some(Mutant::QueueIsForgotten), false)] {
        let (mut pool, [a, b, c]) = attached(pool(27, 3, 1));
        if let Some(mutant) = mutant {
            pool.mutate(mutant);
        }
        for (account, wanted) in [(a, 14), (b, 40), (c, 40)] {
            pool.retrieve(account, 1, wanted);
            pool.explicit(account);
        }
        pool.end_work();
        // A has no more demand: its retrieved slots are for C.
        pool.retrieve(a, 13, 14);
        assert_eq!(pool.has_work(), work, "{mutant:?}");
    }
}

// Prefetch.

#[test]
fn a_sender_does_not_wait_for_its_second_message_while_memory_is_plenty() {
    let (mut pool, [a, _]) = attached(pool(102, 2, 1)); // 100 can be lent, the reserve is 25
    pool.retrieve(a, 1, 10);
    assert_eq!(pool.explicit(a), Some(10)); // 9 lent, and the guarantee
    // The burst is over when 10 slots are retrieved and nothing is queued: the window of 1 + 9 is filled.
    pool.retrieve(a, 9, 10);
    assert_eq!((pool.explicit(a), pool.accounts[a as usize].current), (Some(9), 10));
    assert!(!pool.retrieve(a, 1, 20) && pool.demand(a) == 0, "the next message does not wait");
    assert_eq!(pool.tally().lent_slots, 9);
}

/// A stream of messages of `slots` slots each. Returns the explicit credit packets, and those of static credits with as
/// many slots for each of two senders.
fn credit_packets(region: u32, n: u32, slots: u32, messages: u32) -> [u32; 2] {
    let (mut pool, [a, _]) = attached(pool(region, 2, n));
    let mut fixed = crate::flow::static_credits::Receiver::new(region / 2, n, false);
    let mut packets = [0; 2];
    let mut spent = 0;
    for _ in 0..messages {
        let end = spent + slots;
        while spent < end {
            // What is left of the message leaves as far as the credits allow.
            let credits = pool.region.start + pool.granted_total(a) - spent;
            for _ in 0..credits.min(end - spent) {
                spent += 1;
                pool.retrieve(a, 1, end);
                packets[0] += u32::from(pool.explicit(a).is_some());
                fixed.retrieved(1);
                fixed.credit_packets_read(packets[1] as u16);
                packets[1] += u32::from(fixed.grant(n).is_some());
            }
        }
    }
    packets
}

#[test]
fn a_stream_brings_no_more_credit_packets_than_static_credits() {
    for (region, n) in [(128, 1), (128, 2), (16, 2), (32, 1)] {
        let [ours, fixed] = credit_packets(region, n, 1, 1000);
        // Each doubling of the window brings one more. The reserve keeps a few slots from the last window.
        assert!(
            ours <= fixed + fixed / 8 + 8,
            "region {region}, n {n}: {ours} credit packets, static {fixed}"
        );
    }
}

#[test]
fn a_stream_to_a_region_of_many_idle_senders_brings_few_credit_packets() {
    // 8 slots for each of 64 senders, of which one sends. Static credits would bring one for each three messages.
    let mut pool = pool(512, 64, 2);
    let a = pool.attach(A, 1 << 20, 2);
    let mut packets = 0;
    for spent in 1..=2000 {
        pool.retrieve(a, 1, spent);
        packets += u32::from(pool.explicit(a).is_some());
    }
    assert!(packets <= 60, "{packets} credit packets");
    // 384 slots can be lent. Three quarters of them stay free.
    assert!(pool.region.free >= 288, "{} slots are free", pool.region.free);
}

#[test]
fn most_packets_of_an_exchange_piggyback_nothing() {
    let (mut pool, [a, _]) = attached(pool(256, 2, 1));
    let (mut carried, mut explicit) = (0, 0);
    for spent in 1..=1000 {
        pool.retrieve(a, 1, spent);
        explicit += u32::from(pool.explicit(a).is_some());
        carried += u32::from(pool.carry(a, true).0 > 0);
    }
    // A window of 64 slots or more brings credits back after a quarter of it.
    assert!(carried <= 1000 / 16 + 20, "{carried} packets piggyback credits");
    assert!(explicit <= 10, "{explicit} credit packets");
}

#[test]
fn a_burst_brings_one_credit_packet_once_its_window_has_grown() {
    // 37 slots of a half of 124: EXTOLL with 64 slots per peer, two of them for credits.
    let [ours, fixed] = credit_packets(124, 2, 37, 100);
    assert!(ours <= 100 + 3, "{ours} credit packets, static {fixed}");
}

/// Of a sender with credits for all that it has told, as many slots as its window, a quarter is retrieved.
fn grant_within_a_burst(region: u32) -> Option<u32> {
    let (mut pool, [a, _]) = attached(pool(region, 2, 1));
    let mut wanted = 1;
    while pool.accounts[a as usize].window < region / 3 {
        assert!(wanted < 10 * region, "the window does not grow");
        pool.retrieve(a, 1, wanted);
        pool.explicit(a);
        wanted += 1;
    }
    let told = pool.accounts[a as usize].current;
    pool.retrieve(a, told / 4, wanted - 1 + told);
    assert_eq!(pool.demand(a), 0);
    pool.retrieve(a, 1, wanted - 1 + told);
    pool.explicit(a)
}

#[test]
fn a_sender_with_a_large_window_gets_credits_before_its_burst_is_retrieved() {
    let granted = grant_within_a_burst(2000);
    assert!(granted.is_some_and(|credits| credits > 150), "{granted:?} credits");
    // A small window is filled at the end of the burst, with one credit packet.
    assert_eq!(grant_within_a_burst(124), None);
}

/// One sender of small messages is active alone, then 63 senders have a burst of 37 slots in each call of an all-to-all.
#[test]
fn a_window_beyond_the_equal_share_is_given_back_when_all_senders_are_active() {
    let senders = 63;
    let mut pool = pool(62 * senders, senders, 2); // EXTOLL with 64 slots per peer
    let accounts: Vec<u32> = (0..senders).map(|peer| pool.attach(Peer(peer), 1 << 20, 2)).collect();
    let window = |pool: &Pool| pool.accounts[accounts[0] as usize].window;
    for wanted in 1..=2000 {
        pool.retrieve(accounts[0], 1, wanted);
        pool.explicit(accounts[0]);
    }
    assert!(window(&pool) > 900, "{} slots", window(&pool));
    for call in 1..=12 {
        let short = accounts.iter().filter(|&&account| pool.accounts[account as usize].current < 37).count();
        assert!(call < 8 || short == 0, "{short} senders lack credits for their burst in call {call}");
        for &account in &accounts {
            let wanted = 37 * call + if account == accounts[0] { 2000 } else { 0 };
            pool.retrieve(account, 1, wanted);
            pool.explicit(account);
            pool.retrieve(account, 36, wanted);
            pool.explicit(account);
        }
    }
    assert!(window(&pool) <= 62, "{} slots", window(&pool));
}

#[test]
fn while_memory_is_scarce_only_recent_borrowers_get_a_window() {
    // 30 can be lent to 10 senders, the reserve is 10.
    let mut pool = pool(40, 10, 1);
    let accounts: Vec<u32> = (0..10).map(|peer| pool.attach(Peer(peer), 1000, 1)).collect();
    let message = |pool: &mut Pool, account: u32, wanted: u32| {
        pool.retrieve(account, 1, wanted);
        pool.explicit(account);
        pool.retrieve(account, 9, wanted);
        pool.explicit(account);
    };
    pool.region.free -= 15; // others hold them
    pool.region.all -= 15;
    for &account in &accounts {
        message(&mut pool, account, 10);
        assert_eq!(pool.accounts[account as usize].window, 1);
    }
    assert_eq!(pool.tally().prefetched_slots, 0);
    message(&mut pool, accounts[9], 20);
    assert_eq!(pool.accounts[accounts[9] as usize].window, 10);
}

#[test]
fn prefetch_leaves_the_reserve_and_shrinks_windows_while_memory_is_scarce() {
    let (mut pool, [a, _]) = attached(pool(42, 2, 1)); // 40 can be lent, the reserve is 10
    pool.borrows_again(a);
    pool.set_window(a, 21);
    pool.region.free = 14;
    pool.region.all = 14 + 2;
    assert!(pool.retrieve(a, 1, 1));
    assert_eq!((pool.explicit(a), pool.region.free), (Some(5), 10)); // the guaranteed one and 4
    assert_eq!(pool.accounts[a as usize].window, 21);
    // Others have borrowed since.
    pool.borrowers = [u32::MAX; RECENT_BORROWERS];
    for window in [10, 5] {
        assert_eq!((pool.carry(a, true).0, pool.accounts[a as usize].window), (0, window));
    }
    assert!(!pool.is_due(a));
}

#[test]
#[should_panic(expected = "D4: prefetch leaves")]
fn gap_loans_that_return_to_their_sender_use_up_the_reserve() {
    let (mut pool, [a, _]) = attached(pool(42, 2, 1));
    pool.mutate(Mutant::LoansReturnToTheSender);
    pool.borrows_again(a);
    pool.set_window(a, 21);
    pool.region.free = 14;
    pool.region.all = 14 + 2;
    pool.retrieve(a, 1, 1);
    pool.grant(a, 1);
}

// Reclaim.

/// A and C have prefetched credits, and B waits for a loan.
fn with_holders() -> (Pool, [u32; 3]) {
    let (mut pool, [a, b, c]) = attached(pool(27, 3, 1)); // 24 can be lent, the reserve is 6
    for account in [a, c] {
        pool.borrows_again(account);
        pool.set_window(account, 10);
        pool.retrieve(account, 1, 1);
        assert_eq!(pool.explicit(account), Some(10));
    }
    assert_eq!(pool.region.free, 6);
    pool.retrieve(b, 1, 30);
    assert_eq!((pool.explicit(b), pool.region.free, pool.queued()), (Some(7), 0, 1));
    (pool, [a, b, c])
}

#[test]
fn the_longest_idle_holders_are_asked_as_far_as_the_queue_needs() {
    let (mut pool, [a, b, c]) = with_holders();
    // Both got credits since they were considered: they are passed over once.
    assert_eq!(pool.next_request(), None);
    pool.retrieve(c, 3, 4);
    // B may hold 13 - 7 = 6 more, and 3 are free. So one holder is enough.
    assert_eq!((pool.next_waiting(), pool.region.free), (None, 3));
    assert_eq!((pool.next_request(), pool.next_request()), (Some(A), None));
    assert_eq!(pool.accounts[a as usize].window, 1);
    // A gives back 9 - 1: it has spent nothing. Its response fills a slot.
    pool.retrieve(a, 1, 1 + 1 + 8);
    assert_eq!(pool.returned(a, 8), Ok(()));
    pool.assert_invariants();
    assert_eq!((pool.region.free, pool.expected_slots), (3 + 9, 0));
    assert!(pool.has_work());
    assert_eq!(pool.next_waiting(), Some((b, B)));
}

#[test]
fn a_response_without_a_request_is_rejected() {
    let (mut pool, [a, ..]) = with_holders();
    assert_eq!(pool.returned(a, 1), Err(SpendError { slots: 1, credits: 10 }));
    assert_eq!(pool.retrieved_and_due(a, 11, 12), Err(SpendError { slots: 11, credits: 10 }));
    pool.assert_invariants();
}

#[test]
fn credits_lent_for_demand_are_not_asked_for() {
    let (mut pool, [a, b, c]) = attached(pool(27, 3, 1));
    for account in [a, b] {
        pool.retrieve(account, 1, 100);
        pool.explicit(account);
    }
    pool.retrieve(c, 1, 40);
    pool.explicit(c);
    assert_eq!((pool.region.free, pool.queued(), pool.next_request()), (0, 1, None));
}

// Leases.

#[test]
fn a_lease_that_ends_returns_its_credits_and_its_place() {
    let (mut pool, [a, b, c]) = with_holders();
    pool.next_request();
    pool.detach(b);
    assert_eq!(pool.queued(), 0);
    pool.detach(a);
    pool.remove(c);
    pool.assert_invariants();
    assert_eq!((pool.available_slots(), pool.region_slots()), (27, 27));
}

#[test]
fn an_unexpected_sender_makes_the_region_grow_only_by_what_is_not_free() {
    let (mut pool, [a, _]) = attached(pool(4, 2, 1)); // 2 can be lent
    pool.retrieve(a, 1, 9);
    assert_eq!((pool.explicit(a), pool.region.free), (Some(2), 1));
    let c = pool.attach(C, 9, 1);
    assert_eq!((pool.region_slots(), pool.region.free), (4, 0));
    let d = pool.attach(Peer(4), 9, 1);
    assert_eq!(pool.region_slots(), 5);
    pool.assert_invariants();
    for account in [c, d] {
        pool.detach(account);
        pool.assert_invariants();
    }
    assert_eq!((pool.region_slots(), pool.region.free), (4, 1));
}

/// A send on the common path piggybacks credits and ends without looking at the queue.
#[test]
fn piggybacked_credits_leave_the_queue_to_the_next_arrival() {
    let (mut demand, [a, _]) = attached(pool(26, 2, 1));
    (demand.region.free, demand.region.all) = (3, 3 + 2); // others hold the rest
    demand.retrieve(a, 1, 100);
    let mut pool = crate::flow::Pool::of_demand(demand);
    let mut receiver = crate::flow::Receiver::Demand(Receiver::new(a));
    assert_eq!(receiver.carry(true, &mut pool), (1, 1));
    assert_eq!((pool.demand().queued(), pool.demand().has_work(), pool.has_requests()), (1, true, false));
    // The next packet of A says so, also if it changes nothing for A.
    assert!(receiver.wants(100, &mut pool) && pool.has_requests());
}

/// Nobody else can need what a single sender does not use.
#[test]
fn a_single_sender_leaves_no_reserve() {
    let (mut pool, [a]) = attached(pool(256, 1, 4));
    for total in 1..=2000 {
        pool.retrieve(a, 1, total);
        pool.explicit(a);
    }
    assert_eq!((pool.reserve_slots, pool.accounts[a as usize].window), (0, 256));
}

// Reports.

#[test]
fn a_report_tells_demand_idle_credits_window_and_place() {
    let (mut pool, [a, b, c]) = attached(pool(27, 3, 1));
    for account in [a, b] {
        pool.retrieve(account, 1, 100);
        pool.explicit(account);
    }
    pool.retrieve(c, 1, 40);
    assert_eq!((pool.explicit(c), pool.next_deferred(), pool.explicit(c)), (None, Some(C), Some(1)));
    let loan = |account| pool.view(account).loan.expect("credits on demand");
    // A and B hold all that one sender may. C is alone in the queue.
    assert_eq!(loan(a), LoanView { demand: 86, idle: 0, window: 1, ahead: None });
    assert_eq!(loan(c), LoanView { demand: 38, idle: 0, window: 1, ahead: Some(0) });
    assert_eq!((pool.free_slots(), pool.reserve_slots(), pool.queued()), (0, 6, 1));
    pool.retrieve(a, 1, 1000);
    assert_eq!(pool.explicit(a), None);
    assert_eq!(pool.view(a).loan.and_then(|loan| loan.ahead), Some(1));
    // B says that it wants no more than its 14 slots, of which 12 are credits.
    pool.retrieve(b, 1, 2);
    assert_eq!(pool.view(b).loan.map(|loan| (loan.demand, loan.idle)), Some((0, 12)));
}
