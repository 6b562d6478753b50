//! The caller over shared memory, and the machines over messages in shared memory: endpoints of one node in this thread.

use std::cell::RefCell;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use fastrand::Rng;
use tempfile::TempDir;
use weir_engine::config::Settings;
use weir_engine::job::{Job, Ranks};
use weir_engine::{AtomicArguments, CollectiveArguments, CollectiveOperation, CollectiveShape, Engine, Post};
use weir_link::Address;
use weir_link::memory::{OwnedMemory, UserMemory};
use weir_link::shm::node_group::{NodeGroup, NodeGroups, Operation, Task};
use weir_link::shm::node_segment::JobKey;
use weir_proto::offload::lock::Change as LockChange;
use weir_proto::offload::{WordOperation, WordType, WordUpdate};
use weir_proto::{Outcome, Peer};

use crate::case::{Case, Change, Collective, LockCase, Results, WORDS_EACH};
use crate::locks::{Contender, LOCK_WORDS, Words};
use crate::{Executor, LONG};

/// The key of each endpoint's words.
pub const KEY: u64 = 1;

/// The endpoints of a node, in the order of ranks.
pub struct Node {
    pub engines: Vec<Engine>,
    _directory: TempDir,
}

impl Node {
    pub fn new(members: u32, random: &mut Rng) -> Node {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let settings = Settings { shm_dir: directory.path().to_owned(), ..Settings::default() };
        let job = || Job::known(Ranks { node: members, job: members }, JobKey::new(&"executors"));
        let open = |_| Engine::open(&settings, job(), false).expect("an endpoint");
        let mut engines: Vec<Engine> = (0..members).map(open).collect();
        random.shuffle(&mut engines);
        Node { engines, _directory: directory }
    }

    pub fn close(engines: &mut [Engine]) {
        engines.iter_mut().for_each(Engine::begin_close);
        let step = |engine: &mut Engine| u32::from(!engine.close_step(&[]).done);
        while engines.iter_mut().map(step).sum::<u32>() > 0 {}
        engines.iter_mut().for_each(|engine| _ = engine.end_close());
    }
}

/// Calls `turn` for members in a random order, until it has said of each that it has ended. Those that have ended take turns
/// too, since others may need their answers.
pub fn take_turns(members: u32, random: &mut Rng, mut turn: impl FnMut(usize, &mut Rng) -> bool) {
    let mut have_ended = vec![false; members as usize];
    let deadline = Instant::now() + LONG;
    while have_ended.contains(&false) {
        let rank = random.usize(..have_ended.len());
        have_ended[rank] |= turn(rank, random);
        assert!(Instant::now() < deadline, "not all members end: {have_ended:?}");
    }
}

/// No member has ended a barrier that another one has not begun.
pub fn assert_all_have_begun(collectives: &[Collective], number: usize, have_begun: &[bool]) {
    let is_barrier = matches!(collectives[number].operation, Operation::Barrier);
    assert!(!is_barrier || !have_begun.contains(&false), "a barrier ends early: {have_begun:?}");
}

/// Ranks meet in the node segment.
pub struct NodeExecutor {
    groups: Vec<NodeGroup>,
    node: Node,
}

impl NodeExecutor {
    pub fn new(members: u32, random: &mut Rng) -> NodeExecutor {
        let node = Node::new(members, random);
        let handles = node.engines.iter().map(|engine| engine.node_handle().expect("a segment"));
        let handles: Vec<_> = handles.collect();
        let endpoints: Vec<u64> = handles.iter().map(|handle| handle.endpoint()).collect();
        let groups = (0..).zip(handles).map(|(rank, handle)| {
            let groups = NodeGroups::open(handle).expect("memory");
            groups.join(1, &endpoints, rank).expect("room").expect("made before")
        });
        let groups = groups.collect();
        NodeExecutor { groups, node }
    }

    fn perform_all(&mut self, collectives: &[Collective], random: &mut Rng) -> Results {
        let members = self.groups.len() as u32;
        let room = |it: &Collective| {
            (0..members).map(|rank| vec![0xee; it.operation.result_bytes(rank, members)]).collect()
        };
        let mut results: Results = collectives.iter().map(room).collect();
        let mut tasks: Vec<Vec<Option<Task>>> = (0..members).map(|_| Vec::new()).collect();
        let mut have_begun = vec![false; members as usize];
        take_turns(members, random, |rank, _| {
            let (group, tasks) = (&mut self.groups[rank], &mut tasks[rank]);
            if !have_begun[rank] {
                have_begun[rank] = true;
                tasks.extend(collectives.iter().map(|it| Some(group.task(it.operation))));
            }
            for (number, slot) in tasks.iter_mut().enumerate() {
                let Some(task) = slot else { continue };
                let (data, result) = (&collectives[number].data[rank], &mut results[number][rank]);
                if group.advance(task, data, result).expect("no failure") {
                    assert_all_have_begun(collectives, number, &have_begun);
                    *slot = None;
                }
            }
            tasks.iter().all(Option::is_none)
        });
        results
    }
}

impl Executor for NodeExecutor {
    fn name(&self) -> String {
        String::from("caller over shared memory")
    }

    fn takes(&self, case: &Case) -> bool {
        matches!(case, Case::Collectives(_))
    }

    fn perform(&mut self, cases: &[&Case], random: &mut Rng) -> Vec<Results> {
        let each = cases.iter().map(|case| match case {
            Case::Collectives(collectives) => self.perform_all(collectives, random),
            _ => unreachable!("not taken"),
        });
        each.collect()
    }
}

impl Drop for NodeExecutor {
    fn drop(&mut self) {
        self.groups.clear();
        Node::close(&mut self.node.engines);
    }
}

/// The machines beside the endpoints, with the schedules of libfabric's operations.
pub struct MessageExecutor {
    node: Node,
    group: u32,
    words: Vec<OwnedMemory>,
}

impl MessageExecutor {
    pub fn new(members: u32, random: &mut Rng) -> MessageExecutor {
        let mut node = Node::new(members, random);
        let addresses: Vec<_> = node.engines.iter().map(Engine::address).collect();
        let join = |(rank, engine): (u32, &mut Engine)| {
            let peers = addresses.iter().map(|address| engine.peer(address)).collect();
            engine.join_collective(Post::default(), peers, rank).expect("the first group")
        };
        let group = (0..).zip(&mut node.engines).map(join).max().expect("a member");
        let words: Vec<_> = (0..members)
            .map(|_| OwnedMemory::new(((members * WORDS_EACH + LOCK_WORDS) * 8) as usize))
            .collect();
        for (engine, words) in node.engines.iter_mut().zip(&words) {
            engine.register_memory(KEY, words.view(), true, true);
        }
        take_turns(members, random, |rank, _| {
            node.engines[rank].progress();
            node.engines[rank].next_completion().is_some()
        });
        MessageExecutor { node, group, words }
    }

    fn perform_all(&mut self, collectives: &[Collective], random: &mut Rng) -> Results {
        let members = self.node.engines.len() as u32;
        let buffers = |it: &Collective| -> Vec<Buffers> {
            (0..members).map(|rank| Buffers::new(it, rank, members)).collect()
        };
        let buffers: Vec<Vec<Buffers>> = collectives.iter().map(buffers).collect();
        let mut have_begun = vec![false; members as usize];
        let mut ended = vec![0; members as usize];
        let (engines, group) = (&mut self.node.engines, self.group);
        take_turns(members, random, |rank, _| {
            if !have_begun[rank] {
                have_begun[rank] = true;
                for (number, buffers) in buffers.iter().enumerate() {
                    let arguments = buffers[rank].arguments(group);
                    engines[rank].collective(Post { context: number, cookie: 0 }, arguments).expect("room");
                }
            }
            engines[rank].progress();
            while let Some(completion) = engines[rank].next_completion() {
                assert_eq!(completion.outcome, Outcome::Done);
                assert_all_have_begun(collectives, completion.post.context, &have_begun);
                ended[rank] += 1;
            }
            ended[rank] == collectives.len()
        });
        let results = buffers.iter().map(|each| each.iter().map(Buffers::outcome).collect());
        results.collect()
    }

    fn change(&mut self, lists: &[Vec<Change>], random: &mut Rng) -> Results {
        let engines = &mut self.node.engines;
        let addresses: Vec<_> = engines.iter().map(Engine::address).collect();
        let olds: Vec<OwnedMemory> = lists.iter().map(|list| OwnedMemory::new(8 * list.len())).collect();
        let (mut have_begun, mut ended) = (vec![false; lists.len()], vec![0; lists.len()]);
        take_turns(lists.len() as u32, random, |rank, _| {
            let engine = &mut engines[rank];
            if !std::mem::replace(&mut have_begun[rank], true) {
                for (number, change) in lists[rank].iter().enumerate() {
                    let peer = engine.peer(&addresses[change.to as usize]);
                    let arguments = arguments_of(change, rank, peer, olds[rank].part(8 * number, 8));
                    engine.atomic(Post::default(), arguments).expect("room");
                }
            }
            engine.progress();
            while let Some(completion) = engine.next_completion() {
                assert_eq!(completion.outcome, Outcome::Done);
                ended[rank] += 1;
            }
            ended[rank] == lists[rank].len()
        });
        vec![olds.iter().map(|memory| read(&memory.view())).collect()]
    }

    fn use_lock(&mut self, case: &LockCase, random: &mut Rng) -> Results {
        let members = self.words.len() as u32;
        let addresses: Vec<_> = self.node.engines.iter().map(Engine::address).collect();
        let of_member = |(rank, engine): (usize, _)| LockWords {
            member: rank as u32,
            engine: RefCell::new(engine),
            addresses: &addresses,
            own: &self.words[rank],
            first: u64::from(members * WORDS_EACH),
            result: OwnedMemory::new(8),
        };
        let words: Vec<_> = self.node.engines.iter_mut().enumerate().map(of_member).collect();
        let log = RefCell::default();
        let contender = |(member, words)| Contender { words, case, member, members, log: &log };
        let contenders: Vec<_> = (0..).zip(&words).map(contender).collect();
        vec![poll_in_turns(contenders.iter().map(Contender::take_part), random)]
    }
}

/// Polls the programs of members in a random order, until all have ended.
pub fn poll_in_turns<F: Future<Output = Vec<u8>>>(
    programs: impl Iterator<Item = F>,
    random: &mut Rng,
) -> Vec<Vec<u8>> {
    let mut programs: Vec<_> = programs.map(Box::pin).collect();
    let mut results: Vec<Option<Vec<u8>>> = vec![None; programs.len()];
    take_turns(programs.len() as u32, random, |rank, _| {
        if results[rank].is_none() {
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(result) = programs[rank].as_mut().poll(&mut context) {
                results[rank] = Some(result);
            }
        }
        results[rank].is_some()
    });
    results.into_iter().flatten().collect()
}

/// Lets others take their turns before the program continues.
pub async fn pause() {
    let mut has_paused = false;
    std::future::poll_fn(|_| match std::mem::replace(&mut has_paused, true) {
        false => Poll::Pending,
        true => Poll::Ready(()),
    })
    .await;
}

/// The request of member `from` for a change of a word of `peer`, which is that of the change.
pub fn arguments_of(change: &Change, from: usize, peer: Peer, result: UserMemory) -> AtomicArguments {
    let offset = (u64::from(WORDS_EACH) * from as u64 + u64::from(change.word)) * 8;
    AtomicArguments { peer, key: KEY, offset, update: change.update, result }
}

/// A change of a word of a lock.
pub fn update_of(change: LockChange) -> WordUpdate {
    let (operation, operand, compare) = match change {
        LockChange::Read => (WordOperation::Read, 0, 0),
        LockChange::Swap(new) => (WordOperation::Write, new, 0),
        LockChange::CompareSwap { expected, new } => (WordOperation::CompareSwap, new, expected),
    };
    WordUpdate { operation, word_type: WordType::U64, operand, compare }
}

/// Words for locks, behind those that others change.
struct LockWords<'a> {
    member: u32,
    engine: RefCell<&'a mut Engine>,
    addresses: &'a [Address],
    own: &'a OwnedMemory,
    first: u64,
    result: OwnedMemory,
}

impl Words for LockWords<'_> {
    async fn change(&self, owner: u32, word: u32, change: LockChange) -> u64 {
        if owner == self.member && matches!(change, LockChange::Read) {
            // As a member looks at its own words while it waits: in its memory.
            let word = self.own.part(8 * (self.first + u64::from(word)) as usize, 8);
            return number(&word);
        }
        {
            let engine = &mut *self.engine.borrow_mut();
            let arguments = AtomicArguments {
                peer: engine.peer(&self.addresses[owner as usize]),
                key: KEY,
                offset: (self.first + u64::from(word)) * 8,
                update: update_of(change),
                result: self.result.view(),
            };
            engine.atomic(Post::default(), arguments).expect("room");
        }
        loop {
            self.engine.borrow_mut().progress();
            if let Some(completion) = self.engine.borrow_mut().next_completion() {
                assert_eq!(completion.outcome, Outcome::Done);
                return number(&self.result.view());
            }
            pause().await;
        }
    }

    async fn pause(&self) {
        self.engine.borrow_mut().progress();
        pause().await;
    }
}

/// What a member gives and gets, in the engine's words.
pub struct Buffers {
    operation: CollectiveOperation,
    block_bytes: u64,
    data: OwnedMemory,
    result: OwnedMemory,
    /// The data is the result too.
    gets_data: bool,
    /// Length of the result without the root's own block, which it has already. Unit: bytes.
    gets_bytes: usize,
}

impl Buffers {
    pub fn new(collective: &Collective, rank: u32, members: u32) -> Buffers {
        let (operation, block_bytes) = match collective.operation {
            Operation::Barrier => (CollectiveOperation::Barrier, 0),
            Operation::Reduce { root, vector } => {
                (CollectiveOperation::Reduce { root, combination: vector.combination }, vector.bytes)
            }
            Operation::AllReduce(vector) => {
                (CollectiveOperation::AllReduce { combination: vector.combination }, vector.bytes)
            }
            Operation::Broadcast { root, bytes } => (CollectiveOperation::Broadcast { root }, bytes),
            Operation::AllGather { bytes } => (CollectiveOperation::AllGather, bytes),
            Operation::AllToAll { bytes } => (CollectiveOperation::AllToAll, bytes),
            Operation::Gather { root, bytes } => (CollectiveOperation::Gather { root }, bytes),
            Operation::Scatter { root, bytes } => (CollectiveOperation::Scatter { root }, bytes),
        };
        let shape = CollectiveShape { operation, block_bytes: block_bytes.into(), rank, members };
        let data = OwnedMemory::new(shape.data_bytes() as usize);
        data.view().write(0, &collective.data[rank as usize]);
        let result = OwnedMemory::new(shape.result_bytes() as usize);
        let gets_bytes = collective.operation.result_bytes(rank, members);
        let gets_data = matches!(operation, CollectiveOperation::Broadcast { .. });
        Buffers { operation, block_bytes: block_bytes.into(), data, result, gets_data, gets_bytes }
    }

    pub fn arguments(&self, group: u32) -> CollectiveArguments {
        let (data, result) = (self.data.view(), self.result.view());
        let (operation, block_bytes, is_awaited) = (self.operation, self.block_bytes, false);
        CollectiveArguments { group, operation, block_bytes, data, result, is_awaited }
    }

    pub fn outcome(&self) -> Vec<u8> {
        let mut bytes = read(&if self.gets_data { &self.data } else { &self.result }.view());
        bytes.truncate(self.gets_bytes);
        bytes
    }
}

/// A word of 8 bytes.
pub fn number(word: &UserMemory) -> u64 {
    u64::from_le_bytes(read(word).try_into().expect("8 bytes"))
}

pub fn read(memory: &UserMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.bytes() as usize];
    memory.read(0, &mut bytes);
    bytes
}

impl Executor for MessageExecutor {
    fn name(&self) -> String {
        String::from("machines over messages")
    }

    fn takes(&self, case: &Case) -> bool {
        !matches!(case, Case::MultiSends(_))
    }

    fn perform(&mut self, cases: &[&Case], random: &mut Rng) -> Vec<Results> {
        let each = cases.iter().map(|case| match case {
            Case::Collectives(collectives) => self.perform_all(collectives, random),
            Case::Words(lists) => self.change(lists, random),
            Case::Lock(lock) => self.use_lock(lock, random),
            Case::MultiSends(_) => unreachable!("not taken"),
        });
        each.collect()
    }
}

impl Drop for MessageExecutor {
    fn drop(&mut self) {
        let group = self.group;
        self.node.engines.iter_mut().for_each(|engine| _ = engine.close_collective(group));
        Node::close(&mut self.node.engines);
        self.words.clear();
    }
}
