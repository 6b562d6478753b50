//! Tests of the exact actions of compulsory returns, also of two endpoints that request from each other at the same
//! time.

use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::Endpoint;
use crate::action::Action;
use crate::config::{AttachPolicy, Config, DataRegion, Scheme};
use crate::driver::Recorder;
use crate::event::{Command, Event, Request, SendCommand, SendLevel};
use crate::packet::{Geometry, Packet, Space};
use crate::time::Instant;

const ONE_CREDIT_SLOT: u32 = 1;

/// An endpoint machine with peers 1 and 2, one credit each way, and a region of 12 slots.
struct Bench {
    machine: Endpoint,
    granted: [u32; 3],
    credit_packets: [u16; 3],
    /// The budget is used up: every packet must carry `rendezvous_only`.
    says_rendezvous_only: bool,
}

fn config() -> Config {
    Config {
        scheme: Scheme::Dynamic { piggyback: false },
        geometry: Geometry::SHARED_MEMORY,
        credit_slots: ONE_CREDIT_SLOT,
        region: DataRegion {
            slots: 12,
            peers: 2,
            start_slots: 1,
            attach_policy: AttachPolicy::Start,
            grace_points: 0,
        },
        eager_bytes: 1000,
        cross_memory: true,
        remote_inline_bytes: 100,
        max_backlog: u32::MAX,
        max_unexpected: 1000,
        unexpected_budget_bytes: 1 << 20,
        bounce_bytes: 1 << 20,
        envelope_budget_bytes: u64::MAX,
        planned_peers: 2,
        planned_quota_slots: 12,
    }
}

impl Bench {
    fn new(mutant: Option<Mutant>) -> Bench {
        Bench::with_budget(config().unexpected_budget_bytes, mutant)
    }

    fn with_budget(unexpected_budget_bytes: u64, mutant: Option<Mutant>) -> Bench {
        let mut machine = Endpoint::new(Config { unexpected_budget_bytes, ..config() });
        if let Some(mutant) = mutant {
            machine.mutate(mutant);
        }
        let mut bench = Bench {
            machine,
            granted: [0; 3],
            credit_packets: [0; 3],
            says_rendezvous_only: unexpected_budget_bytes == 0,
        };
        for peer in [Peer(1), Peer(2)] {
            let (quota_slots, start_slots, credit_slots) = (12, 1, ONE_CREDIT_SLOT);
            bench.event(Event::Attached { peer, quota_slots, start_slots, epoch: 0 });
            bench.event(Event::Connected { peer, quota_slots, start_slots, credit_slots, epoch: 0 });
        }
        bench
    }

    fn event(&mut self, event: Event<'_>) -> Vec<(u32, Body)> {
        let mut actions = Vec::new();
        self.machine.handle(event, Recorder::new(Instant(0), &mut actions)).expect("within the bounds");
        let sent = |action: &Action| match action {
            Action::Transmit { to, packet, .. } => {
                assert_eq!(packet.marks.rendezvous_only, self.says_rendezvous_only, "{packet:?}");
                Some((to.0, packet.body))
            }
            _ => None,
        };
        let sent: Vec<_> = actions.iter().filter_map(sent).collect();
        // Peers read credit packets at once.
        for (to, body) in &sent {
            self.credit_packets[*to as usize] += u16::from(body.is_credit());
        }
        sent
    }

    fn arrive(&mut self, from: u32, body: Body) -> Vec<(u32, Body)> {
        let packet = Packet {
            credit_packets_read: self.credit_packets[from as usize],
            granted_total: self.granted[from as usize],
            ..Packet::new(body, 0)
        };
        self.event(Event::Arrived { from: Peer(from), packet: &packet })
    }

    fn eager(&mut self, from: u32) -> Vec<(u32, Body)> {
        let (space, tag, data, length, acknowledge) = (Space::Tagged, 0, None, 0, None);
        self.arrive(from, Body::Eager { space, tag, data, length, acknowledge })
    }

    fn grant(&mut self, from: u32, credits: u32) -> Vec<(u32, Body)> {
        self.granted[from as usize] += credits;
        self.arrive(from, Body::Credit)
    }

    fn send(&mut self, to: u32) -> Vec<(u32, Body)> {
        let (request, to, space, level) = (Request(0), Peer(to), Space::Tagged, SendLevel::Buffered);
        let send = SendCommand { request, to, space, tag: 0, data: None, bytes: 0, level };
        self.event(Event::Posted(Command::Send(send)))
    }

    /// Peer 1 gains credits and becomes idle. Peer 2 takes its quota until peer 1 gets a request. Returns the packets
    /// that are sent, without credit packets.
    fn take_quota_of_peer_1(&mut self) -> Vec<(u32, Body)> {
        (0..2).for_each(|_| drop(self.eager(1)));
        for _ in 0..200 {
            let mut sent = self.eager(2);
            sent.retain(|(_, body)| !body.is_credit());
            let peer_1 = |account: &crate::flow::dynamic_credits::AccountView| {
                account.owner == Peer(1) && account.blocked
            };
            if self.machine.pool().accounts().any(|account| peer_1(&account)) {
                return sent;
            }
        }
        panic!("no quota was taken from peer 1");
    }

    fn is_lost(&self, peer: u32) -> bool {
        self.machine.fault(Peer(peer)).is_some()
    }
}

#[test]
fn reclaim_sends_one_request() {
    let mut receiver = Bench::new(None);
    assert_eq!(receiver.take_quota_of_peer_1(), [(1, Body::ReturnRequest)]);
    assert!(!receiver.machine.is_quiescent(), "a response is pending");
    let held = receiver.machine.pool().accounts().next().expect("peer 1").current;
    receiver.arrive(1, Body::ReturnResponse { credits: held - 1 });
    let account = receiver.machine.pool().accounts().next().expect("peer 1");
    assert_eq!((account.current, account.blocked), (1, false)); // one credit, granted again
    receiver.machine.pool().assert_invariants();
    assert!(receiver.machine.is_quiescent());
    receiver.arrive(1, Body::ReturnResponse { credits: 0 });
    assert!(receiver.is_lost(1), "the response was not requested");
}

#[test]
fn return_requests_and_responses_carry_rendezvous_only() {
    let mut receiver = Bench::with_budget(0, None); // `event` checks every packet
    assert_eq!(receiver.take_quota_of_peer_1(), [(1, Body::ReturnRequest)]);
    receiver.grant(2, 1);
    let sent = receiver.arrive(2, Body::ReturnRequest);
    assert!(
        sent.iter().any(|(to, body)| *to == 2 && matches!(body, Body::ReturnResponse { .. })),
        "{sent:?}"
    );
}

#[test]
fn a_return_request_without_credit_waits_and_leaves_before_data() {
    let mut receiver = Bench::new(None);
    receiver.send(1); // the only credit
    receiver.send(1);
    assert_eq!(receiver.take_quota_of_peer_1(), []);
    let sent = receiver.grant(1, 2);
    assert_eq!(sent[0], (1, Body::ReturnRequest));
    assert!(matches!(sent[1..], [(1, Body::Eager { .. })]), "{sent:?}");
}

#[test]
fn a_response_without_a_request_is_rejected() {
    let mut receiver = Bench::new(None);
    receiver.send(1);
    receiver.take_quota_of_peer_1(); // the request waits
    receiver.arrive(1, Body::ReturnResponse { credits: 1 });
    assert!(receiver.is_lost(1));
}

#[test]
fn a_response_keeps_the_guaranteed_credits_less_its_own_cost() {
    let mut sender = Bench::new(None);
    sender.grant(1, 5);
    let answer = Body::ReturnResponse { credits: 5 };
    assert_eq!(sender.arrive(1, Body::ReturnRequest), [(1, Body::Credit), (1, answer)]);
    assert!(sender.machine.would_wait(Peer(1), 1), "6 credits: 5 are given back, 1 paid for the answer");
}

#[test]
fn a_response_with_zero_credits_is_sent() {
    let mut sender = Bench::new(None);
    sender.send(1);
    assert_eq!(
        sender.arrive(1, Body::ReturnRequest).last(),
        Some(&(1, Body::Credit)),
        "the response waits for credit"
    );
    assert_eq!(sender.grant(1, 1), [(1, Body::ReturnResponse { credits: 0 })]);
}

#[test]
fn a_second_request_before_the_response_is_rejected() {
    let mut sender = Bench::new(None);
    sender.send(1);
    sender.arrive(1, Body::ReturnRequest);
    sender.arrive(1, Body::ReturnRequest);
    assert!(sender.is_lost(1));
}

/// The machine waits for a response of peer 1, has no credit, and gets a request itself.
fn request_during_a_request(mutant: Option<Mutant>) -> Bench {
    let mut machine = Bench::new(mutant);
    assert_eq!(machine.take_quota_of_peer_1(), [(1, Body::ReturnRequest)]); // that was its credit
    machine.arrive(1, Body::ReturnRequest);
    machine
}

#[test]
fn gap_6_both_sides_may_request_at_once() {
    let answer = [(1, Body::ReturnResponse { credits: 0 })];
    assert_eq!(request_during_a_request(None).grant(1, 1), answer);
    // Two endpoints that wait for each other's responses wait for ever.
    assert_eq!(request_during_a_request(Some(Mutant::ResponsesWaitForResponses)).grant(1, 1), []);
}

#[test]
fn gap_6_a_request_leaves_before_a_response() {
    let mut machine = Bench::new(None);
    machine.send(1);
    assert_eq!(machine.take_quota_of_peer_1(), []);
    machine.arrive(1, Body::ReturnRequest);
    assert_eq!(machine.grant(1, 1), [(1, Body::ReturnRequest)]);
    assert_eq!(machine.grant(1, 1), [(1, Body::ReturnResponse { credits: 0 })]);
}

#[test]
fn gap_6_the_amount_of_a_response_is_fixed_when_it_leaves() {
    let answer = |mutant| {
        let mut machine = Bench::new(mutant);
        machine.send(1);
        machine.arrive(1, Body::ReturnRequest); // nothing to return, and no credit for the response
        machine.grant(1, 4)
    };
    assert_eq!(answer(None), vec![(1, Body::ReturnResponse { credits: 3 })]);
    assert_eq!(
        answer(Some(Mutant::AmountIsFixedByTheRequest)),
        vec![(1, Body::ReturnResponse { credits: 0 })]
    );
}
