//! Tests of admission beneath groups and remote atomics: with every mechanism they give what they give without, and a member that
//! stops while it holds and awaits tokens ends the operations of its group and nothing else.

#[path = "common/admitted.rs"]
mod admitted;
#[path = "common/faults.rs"]
mod faults;

use admitted::{GOOD, LIMIT_NS, LOSSY, TwoLinks, open_with_limit, with};
use faults::directory;
use weir_engine::config::Admission;
use weir_engine::{
    AtomicArguments, CollectiveArguments, CollectiveOperation, CollectiveShape, Completion, Operation, Post,
    SendArguments,
};
use weir_link::Inspect;
use weir_link::datagram::lossy::{Impairments, Switch};
use weir_link::memory::OwnedMemory;
use weir_proto::admission::HOLD_NS;
use weir_proto::offload::{Combination, WordOperation, WordType, WordUpdate};
use weir_proto::{Outcome, Peer, SendLevel, Space};

/// Endpoints 0 and 2 are on one node, 1 and 3 on another. So neighbours in a group meet over the network.
const MEMBERS: usize = 4;
const KEY: u64 = 3;
/// Words of a region: one for each member.
const WORDS: usize = MEMBERS;
const MECHANISMS: [Admission; 6] = [
    Admission::Off,
    Admission::Rate,
    Admission::Token,
    Admission::Auto,
    Admission::Proxy,
    Admission::ProxyToken,
];
const SUM: Combination = Combination { operation: WordOperation::Sum, word_type: WordType::F64 };

struct Nodes {
    switch: Switch,
    engines: Vec<TwoLinks>,
    /// Endpoints that make no progress any more.
    stopped: Vec<usize>,
    words: Vec<OwnedMemory>,
    _directories: [tempfile::TempDir; 2],
}

fn read(memory: &OwnedMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.view().bytes() as usize];
    memory.view().read(0, &mut bytes);
    bytes
}

/// What a member gives: floats whose sum depends on the order.
fn data(rank: usize, bytes: u64) -> OwnedMemory {
    let value = |at: u64| ((at + 1) as f64 + 0.1) * 10_f64.powi(rank as i32 * 5 - 7);
    let values: Vec<u8> = (0..bytes / 8).flat_map(|at| value(at).to_le_bytes()).collect();
    let memory = OwnedMemory::new(bytes as usize);
    memory.view().write(0, &values);
    memory
}

impl Nodes {
    /// - `limit_ns`: a peer that is silent for so long is lost.
    fn new(admission: Admission, impairments: Impairments, limit_ns: u64) -> Nodes {
        let (directories, switch) = ([directory(), directory()], Switch::new(7, impairments));
        let at = |rank: usize| {
            open_with_limit(&with(&directories[rank % 2], admission), &switch, rank as u16 + 1, limit_ns)
        };
        let mut engines: Vec<TwoLinks> = (0..MEMBERS).map(at).collect();
        let words: Vec<OwnedMemory> = engines.iter().map(|_| OwnedMemory::new(8 * WORDS)).collect();
        for (engine, words) in engines.iter_mut().zip(&words) {
            engine.register_memory(KEY, words.view(), true, true);
        }
        Nodes { switch, engines, stopped: Vec::new(), words, _directories: directories }
    }

    fn peer(&mut self, of: usize, rank: usize) -> Peer {
        let address = self.engines[rank].address();
        self.engines[of].peer(&address)
    }

    fn progress(&mut self) {
        for (rank, engine) in self.engines.iter_mut().enumerate() {
            if !self.stopped.contains(&rank) {
                engine.progress();
            }
        }
    }

    /// Makes progress until each of these has so many completions of an operation.
    fn complete(&mut self, ranks: &[usize], operation: Operation, count: usize) -> Vec<Vec<Completion>> {
        let mut found: Vec<Vec<Completion>> = vec![Vec::new(); ranks.len()];
        let until = self.switch.now().plus_ns(4 * LIMIT_NS);
        while found.iter().any(|found| found.len() < count) {
            assert!(self.switch.now() < until, "{operation:?} does not end: {found:?}");
            self.progress();
            for (rank, found) in ranks.iter().zip(&mut found) {
                let ended = std::iter::from_fn(|| self.engines[*rank].next_completion());
                found.extend(ended.filter(|completion| completion.operation == operation));
            }
        }
        found
    }

    /// A group of these, in this order.
    fn join(&mut self, members: &[usize]) -> u32 {
        let mut group = 0;
        for (place, rank) in members.iter().enumerate() {
            let peers = members.iter().map(|member| self.peer(*rank, *member)).collect();
            group = self.engines[*rank].join_collective(Post::default(), peers, place as u32).expect("room");
        }
        for completions in self.complete(members, Operation::Join, 1) {
            assert_eq!(completions[0].outcome, Outcome::Done);
        }
        group
    }

    /// Begins an operation at these members. Returns the memory of each one, in which the result is.
    fn begin(
        &mut self,
        group: u32,
        members: &[usize],
        operation: CollectiveOperation,
        block_bytes: u64,
    ) -> Vec<(OwnedMemory, OwnedMemory)> {
        let buffers: Vec<(OwnedMemory, OwnedMemory)> = (0..members.len())
            .map(|place| {
                let (rank, members) = (place as u32, members.len() as u32);
                let shape = CollectiveShape { operation, block_bytes, rank, members };
                (data(place, shape.data_bytes()), OwnedMemory::new(shape.result_bytes() as usize))
            })
            .collect();
        for (rank, (data, result)) in members.iter().zip(&buffers) {
            let (data, result) = (data.view(), result.view());
            let arguments =
                CollectiveArguments { group, operation, block_bytes, data, result, is_awaited: false };
            self.engines[*rank].collective(Post::default(), arguments).expect("room");
        }
        buffers
    }

    /// All kinds of operations, three at a time. Returns what is in the memory of all members at the end.
    fn all_operations(&mut self, group: u32, members: &[usize]) -> Vec<Vec<u8>> {
        let mut results = Vec::new();
        for bytes in [8, 1200, 9000] {
            use CollectiveOperation::{AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Scatter};
            let [first, last] = [0, members.len() as u32 - 1];
            for three in [
                [AllReduce { combination: SUM }, Barrier, Broadcast { root: last }],
                [AllToAll, AllGather, CollectiveOperation::Reduce { root: first, combination: SUM }],
                [Gather { root: last }, Scatter { root: first }, AllReduce { combination: SUM }],
            ] {
                let buffers: Vec<_> = three
                    .into_iter()
                    .map(|operation| {
                        let is_barrier = matches!(operation, Barrier);
                        self.begin(group, members, operation, if is_barrier { 0 } else { bytes })
                    })
                    .collect();
                for completions in self.complete(members, Operation::Collective, three.len()) {
                    assert!(completions.iter().all(|it| it.outcome == Outcome::Done), "{completions:?}");
                }
                results
                    .extend(buffers.iter().flatten().flat_map(|(data, result)| [read(data), read(result)]));
            }
        }
        results
    }

    /// Each of these members changes its word at each other one, again and again. Returns the words that it has found.
    fn atomics(&mut self, members: &[usize]) -> Vec<Vec<u8>> {
        const ROUNDS: u64 = 12;
        let others = |rank: usize| members.iter().copied().filter(move |other| *other != rank);
        let count = (members.len() - 1) * ROUNDS as usize;
        let olds: Vec<OwnedMemory> = members.iter().map(|_| OwnedMemory::new(8 * count)).collect();
        for (rank, olds) in members.iter().zip(&olds) {
            let changes = (0..ROUNDS).flat_map(|round| others(*rank).map(move |to| (round, to)));
            for (number, (round, to)) in changes.enumerate() {
                let peer = self.peer(*rank, to);
                let operation = if round == 0 { WordOperation::Write } else { WordOperation::Sum };
                let update =
                    WordUpdate { operation, word_type: WordType::U64, operand: round + 5, compare: 0 };
                let (offset, result) = (8 * *rank as u64, olds.part(8 * number, 8));
                let arguments = AtomicArguments { peer, key: KEY, offset, update, result };
                self.engines[*rank].atomic(Post::default(), arguments).expect("room");
            }
        }
        for completions in self.complete(members, Operation::Atomic, count) {
            assert!(completions.iter().all(|it| it.outcome == Outcome::Done), "{completions:?}");
        }
        let words = members.iter().map(|rank| read(&self.words[*rank]));
        olds.iter().map(read).chain(words).collect()
    }

    fn close(mut self) {
        self.engines.iter_mut().for_each(|engine| engine.begin_close());
        let until = self.switch.now().plus_ns(4 * LIMIT_NS);
        let step = |engine: &mut TwoLinks| u32::from(!engine.close_step(&[]).done);
        while self.engines.iter_mut().map(step).sum::<u32>() > 0 && self.switch.now() < until {}
        self.engines.iter_mut().for_each(|engine| _ = engine.end_close());
    }
}

#[test]
fn groups_and_atomics_give_the_same_with_every_mechanism() {
    let all: Vec<usize> = (0..MEMBERS).collect();
    let of_mechanism = |admission: Admission| {
        let mut nodes = Nodes::new(admission, LOSSY, LIMIT_NS);
        let group = nodes.join(&all);
        let results = (nodes.all_operations(group, &all), nodes.atomics(&all));
        let reports = nodes.engines.iter().filter_map(|engine| engine.link().network_report());
        let waits: u64 = reports.map(|report| report.gate_waits).sum();
        for rank in &all {
            assert!(nodes.engines[*rank].close_collective(group), "operations have ended");
        }
        nodes.close();
        (results, waits)
    };
    let (expected, _) = of_mechanism(Admission::Off);
    for admission in &MECHANISMS[1..] {
        let (results, waits) = of_mechanism(*admission);
        assert!(results == expected, "{admission:?}");
        // A proxy alone has no tokens. All others hold packets of these operations back.
        assert_eq!(waits > 0, *admission != Admission::Proxy, "{admission:?}: {waits} waits");
    }
}

/// Endpoint 2, on the node of endpoint 0, stops with more messages than it has tokens for.
fn stops_while_it_waits(admission: Admission) {
    const VICTIM: usize = 2;
    let all: Vec<usize> = (0..MEMBERS).collect();
    let survivors = [0, 1, 3];
    // Its neighbour in the group is on the other node, which misses it.
    let order = [1, VICTIM, 0, 3];
    let mut nodes = Nodes::new(admission, GOOD, 4 * HOLD_NS);
    let (group, other_group) = (nodes.join(&order), nodes.join(&survivors));
    nodes.all_operations(group, &order);
    nodes.atomics(&all);
    let to = nodes.peer(VICTIM, 1);
    let payloads: Vec<OwnedMemory> = (0..40).map(|_| OwnedMemory::new(2000)).collect();
    for payload in &payloads {
        let (space, level, memory) = (Space::Tagged, SendLevel::Buffered, payload.view());
        let arguments = SendArguments { to, space, tag: 0, data: None, level, memory, inject: false };
        nodes.engines[VICTIM].send(Post::default(), arguments).expect("taken");
    }
    nodes.engines[VICTIM].progress();
    nodes.stopped.push(VICTIM);
    nodes.switch.cut(VICTIM as u16 + 1);
    // The others begin, and it does not.
    let reduction = CollectiveOperation::AllReduce { combination: SUM };
    let mut buffers = Vec::new();
    for rank in survivors {
        let (data, result) = (data(rank, 2000), OwnedMemory::new(2000));
        let arguments = CollectiveArguments {
            group,
            operation: reduction,
            block_bytes: 2000,
            data: data.view(),
            result: result.view(),
            is_awaited: false,
        };
        nodes.engines[rank].collective(Post::default(), arguments).expect("room");
        buffers.push((data, result));
    }
    for (rank, completions) in survivors.iter().zip(nodes.complete(&survivors, Operation::Collective, 1)) {
        let outcome = completions[0].outcome;
        let victim = nodes.peer(*rank, VICTIM);
        let is_lost = matches!(outcome, Outcome::Lost { peer: Some(peer), .. } if peer == victim);
        assert!(is_lost, "{admission:?}, {rank}: {outcome:?}");
    }
    // What does not need it goes on, on its node too.
    nodes.all_operations(other_group, &survivors);
    nodes.atomics(&survivors);
    let after = nodes.join(&[3, 0]);
    nodes.all_operations(after, &[3, 0]);
    nodes.switch.cut(1);
    nodes.switch.cut(2);
    nodes.switch.cut(4);
}

#[test]
fn a_member_that_stops_while_it_waits_for_tokens_ends_its_group_and_nothing_else() {
    MECHANISMS.into_iter().for_each(stops_while_it_waits);
}

/// A member leaves for something else when it has completed an operation, as a rank that computes. The gate of its endpoint holds
/// its packets back behind messages, so it has all blocks of the others while those wait for its own.
#[test]
fn a_member_that_polls_no_more_when_it_has_ended_an_operation_has_sent_all_that_others_need() {
    const LEAVER: usize = 2;
    let all: Vec<usize> = (0..MEMBERS).collect();
    let others = [0, 1, 3];
    for operation in
        [CollectiveOperation::Barrier, CollectiveOperation::AllGather, CollectiveOperation::AllToAll]
    {
        let mut nodes = Nodes::new(Admission::Rate, GOOD, LIMIT_NS);
        let group = nodes.join(&all);
        nodes.all_operations(group, &all);
        let waits = |nodes: &Nodes| {
            nodes.engines[LEAVER].link().network_report().map_or(0, |report| report.gate_waits)
        };
        let (to, waits_before) = (nodes.peer(LEAVER, 1), waits(&nodes));
        let payload = OwnedMemory::new(2000);
        // Few enough that they need no credit, which nobody gives back while this test waits in one endpoint.
        for _ in 0..5 {
            let (space, level, memory) = (Space::Tagged, SendLevel::Buffered, payload.view());
            let arguments = SendArguments { to, space, tag: 0, data: None, level, memory, inject: false };
            nodes.engines[LEAVER].send(Post::default(), arguments).expect("taken");
        }
        let bytes = if operation == CollectiveOperation::Barrier { 0 } else { 800 };
        let _buffers = nodes.begin(group, &all, operation, bytes);
        let until = nodes.switch.now().plus_ns(LIMIT_NS / 2);
        let mut has_ended = false;
        while !has_ended {
            assert!(nodes.switch.now() < until, "{operation:?}");
            nodes.progress();
            while let Some(completion) = nodes.engines[LEAVER].next_completion() {
                has_ended |= completion.operation == Operation::Collective;
            }
        }
        // The wait has a bound of real time, in which the simulated clock stands still while others have the core. Each call after
        // a useless one waits more rarely.
        for _ in 0..1000 {
            nodes.engines[LEAVER].let_groups_leave();
        }
        nodes.stopped.push(LEAVER);
        assert!(waits(&nodes) > waits_before, "nothing was held back");
        for completions in nodes.complete(&others, Operation::Collective, 1) {
            assert_eq!(completions[0].outcome, Outcome::Done, "{operation:?}");
        }
    }
}
