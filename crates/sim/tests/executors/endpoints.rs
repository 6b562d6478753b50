//! Multi-sends by the endpoint machines alone, with the lanes, bytes and random schedules of `weir-proto`'s test
//! worlds.

use std::collections::BTreeMap;

use fastrand::Rng;
use weir_proto::{
    AttachPolicy, DataRegion, Event, Geometry, MessageCopy, MultiSendCommand, Outcome, Pattern, Peer,
    ReceiveCommand, Scheme, SendLevel, Space,
};

use crate::Executor;
use crate::case::{Case, LONGEST_MULTI_SEND, MultiSend, Results, lengths_to, message};
use crate::world::{Plan, World};

pub struct EndpointExecutor {
    pub members: u32,
}

/// A world with few credits, so that copies wait for them.
fn plan(endpoints: u32, random: &mut Rng) -> Plan {
    let schemes = [
        Scheme::Unlimited,
        Scheme::Static { piggyback: false },
        Scheme::Static { piggyback: true },
        Scheme::Dynamic { piggyback: true },
        Scheme::Demand,
    ];
    let scheme = random.choice(schemes).expect("some");
    let credit_slots = random.u32(1..=3);
    let start_slots = credit_slots + random.u32(..3);
    let region = DataRegion {
        slots: start_slots * endpoints,
        peers: endpoints,
        start_slots,
        attach_policy: AttachPolicy::FirstContact,
        grace_points: 1,
    };
    let narrow = Geometry { max_packet_slots: random.u32(1..=4), ..Geometry::SHARED_MEMORY };
    let geometry = random.choice([Geometry::SHARED_MEMORY, Geometry::EXTOLL, narrow]).expect("three");
    Plan {
        endpoints,
        scheme,
        geometry,
        quota_slots: start_slots,
        start_slots,
        credit_slots,
        region,
        eager_bytes: random.choice([0, 100, 100_000]).expect("three"),
        cross_memory: random.bool(),
        copies_forbidden: false,
        max_lanes: endpoints as usize,
        budget_bytes: 1 << 30,
        bounce_bytes: random.choice([0, 1 << 30]).expect("two"),
        envelope_bytes: u64::MAX,
        planned: true,
        deferring: random.choice([0, u32::MAX]).expect("two"),
        second_node: 0,
        nodes_read: false,
        far_geometry: geometry,
        readable_eager_bytes: u32::MAX,
    }
}

fn perform(lists: &[Vec<MultiSend>], random: &mut Rng) -> Results {
    let members = lists.len() as u32;
    let mut world = World::new(plan(members, random));
    let (space, tag) = (Space::Tagged, 0);
    // What each member has to do: its multi-sends in their order, and a receive for each message.
    let mut sends = vec![0; lists.len()];
    let mut receives: Vec<Vec<u32>> = Vec::new();
    for member in 0..members {
        let lengths = lengths_to(lists, member);
        let mut senders: Vec<u32> =
            (0..).zip(&lengths).flat_map(|(from, lengths)| lengths.iter().map(move |_| from)).collect();
        random.shuffle(&mut senders);
        receives.push(senders);
    }
    // The receives under way, with their senders, and what has come from each one.
    let mut posted = BTreeMap::new();
    let mut received: Vec<Vec<Vec<u64>>> = vec![vec![Vec::new(); lists.len()]; lists.len()];
    let mut order = vec![vec![0; lists.len()]; lists.len()];
    while (0..lists.len()).any(|rank| sends[rank] < lists[rank].len() || !receives[rank].is_empty()) {
        let rank = random.u32(..members);
        let own = rank as usize;
        if let Some(MultiSend { to, bytes }) = lists[own].get(sends[own]).filter(|_| random.bool()) {
            let copy = |to: &u32| {
                let request = world.request(rank, message(rank, sends[own], *bytes));
                MessageCopy { to: Peer(*to), request, data: None }
            };
            let copies: Vec<MessageCopy> = to.iter().map(copy).collect();
            let level = random.choice([SendLevel::Buffered, SendLevel::Delivered]).expect("two");
            let bytes = *bytes as u64;
            let multi_send = MultiSendCommand { copies: &copies, space, tag, bytes, level };
            world.handle(rank, Event::PostedCopies(multi_send));
            sends[own] += 1;
        } else if let Some(from) = receives[own].pop() {
            let request = world.request(rank, vec![0; LONGEST_MULTI_SEND]);
            // Receives of a pair accept its messages in the order in which they were posted.
            let number: &mut usize = &mut order[own][from as usize];
            posted.insert((rank, request), (from, *number));
            *number += 1;
            let pattern = Pattern { space, from: Some(Peer(from)), tag, ignore: 0 };
            let capacity_bytes = LONGEST_MULTI_SEND as u64;
            let receive = ReceiveCommand { request, pattern, capacity_bytes, multi: None };
            world.post(rank, weir_proto::Command::Receive(receive));
        }
        for _ in 0..random.u8(..6) {
            world.step(|count| random.usize(..count));
        }
        collect(&mut world, &mut posted, &mut received, lists);
    }
    world.run_to_rest(|count| random.usize(..count));
    collect(&mut world, &mut posted, &mut received, lists);
    world.assert_at_rest();
    assert!(posted.is_empty(), "receives without a message: {posted:?}");
    let lengths = |of: &Vec<Vec<u64>>| of.concat().iter().flat_map(|it| it.to_le_bytes()).collect();
    vec![received.iter().map(lengths).collect()]
}

/// Takes the completions. Checks all bytes.
fn collect(
    world: &mut World,
    posted: &mut BTreeMap<(u32, weir_proto::Request), (u32, usize)>,
    received: &mut [Vec<Vec<u64>>],
    lists: &[Vec<MultiSend>],
) {
    for (rank, state) in (0..).zip(&mut world.ranks) {
        for (request, outcome, buffer) in state.completions.drain(..) {
            // The others are copies.
            let Some((from, number)) = posted.remove(&(rank, request)) else {
                assert_eq!(outcome, Outcome::Done);
                continue;
            };
            let Outcome::Received { bytes, .. } = outcome else { panic!("{outcome:?}") };
            let sent = lists[from as usize].iter().enumerate().filter(|(_, it)| it.to.contains(&rank));
            let (in_list, _) = sent.clone().nth(number).expect("as many as receives");
            assert_eq!(buffer[..bytes as usize], message(from, in_list, bytes as usize), "{from} to {rank}");
            let lengths = &mut received[rank as usize][from as usize];
            lengths.resize(lengths.len().max(number + 1), u64::MAX);
            lengths[number] = bytes;
        }
    }
}

impl Executor for EndpointExecutor {
    fn name(&self) -> String {
        String::from("endpoints without an engine")
    }

    fn takes(&self, case: &Case) -> bool {
        self.members > 1 && matches!(case, Case::MultiSends(_))
    }

    fn perform(&mut self, cases: &[&Case], random: &mut Rng) -> Vec<Results> {
        let each = cases.iter().map(|case| match case {
            Case::MultiSends(lists) => perform(lists, random),
            _ => unreachable!("not taken"),
        });
        each.collect()
    }
}
