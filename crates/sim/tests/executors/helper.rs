//! The helper: a thread of each endpoint, its watcher, makes progress while the callers compute. This is what automatic
//! progress of the provider and of the native interface does, with their rules ([`make_progress`]) and their lock.
//!
//! ```text
//! callers    post for one member after the other, and sleep until all operations have ended: they poll nothing
//! helpers    sleep, are woken by packets, and take the completions
//! ```
//! In some cases callers poll for a moment and then stop, so that helpers must notice that. In some cases the last member comes
//! late, so that the helpers of the others sleep already. An operation that does not end is a failure after [`PATIENCE`].

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use weir_engine::automatic_progress::{EngineOwner, make_progress};
use weir_engine::watcher::Watcher;
use weir_engine::{AtomicArguments, Completion, Engine, Post};
use weir_link::Address;
use weir_link::biased_lock::BiasedLock;
use weir_link::memory::OwnedMemory;
use weir_proto::Outcome;
use weir_proto::offload::lock::Change as LockChange;

use crate::Executor;
use crate::case::{Case, Change, Collective, LockCase, Results, WORDS_EACH};
use crate::locks::{Contender, LOCK_WORDS, Log, Words};
use crate::node::{
    Buffers, KEY, Node, arguments_of, assert_all_have_begun, number, pause, poll_in_turns, read, update_of,
};

/// It takes one of so many cases: each wake-up of a thread costs more than a whole case of most other executors.
const EACH: usize = 4;
/// No case takes helpers that long.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time after which the helpers of the members that have posted sleep, most often.
const LATE: Duration = Duration::from_micros(100);

/// How many operations have ended.
#[derive(Default)]
struct Ends {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Ends {
    fn add(&self, more: usize) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += more;
        self.changed.notify_one();
    }

    /// Sleeps until so many have ended. The count begins again at 0. `false`: they do not end.
    fn wait_for(&self, all: usize) -> bool {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(count, PATIENCE, |count| *count < all);
        let (mut count, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let have_ended = *count == all;
        if have_ended {
            *count = 0;
        }
        have_ended
    }
}

/// What the lock of a member protects.
struct Inner {
    /// `None`: the team has ended.
    engine: Option<Engine>,
    /// Those that nobody has taken.
    completions: Vec<Completion>,
    ends: Arc<Ends>,
}

impl Inner {
    fn post(&mut self, post: impl FnOnce(&mut Engine)) {
        let engine = self.engine.as_mut().expect("the team works");
        post(engine);
        engine.wake_watcher_for_completions();
    }
}

impl EngineOwner for Inner {
    fn engine(&mut self) -> Option<&mut Engine> {
        self.engine.as_mut()
    }

    fn progress(&mut self) -> usize {
        let Some(engine) = &mut self.engine else { return 0 };
        let events = engine.progress();
        let before = self.completions.len();
        self.completions.extend(std::iter::from_fn(|| engine.next_completion()));
        if self.completions.len() > before {
            self.ends.add(self.completions.len() - before);
        }
        events
    }
}

type Member = Arc<BiasedLock<Inner>>;

/// See the head of this file.
pub struct HelperExecutor {
    members: Vec<Member>,
    watchers: Vec<Watcher>,
    ends: Arc<Ends>,
    addresses: Vec<Address>,
    group: u32,
    words: Vec<OwnedMemory>,
    /// Cases that it could have taken.
    offered: Cell<usize>,
    /// Has the engines at the end.
    node: Node,
}

impl HelperExecutor {
    pub fn new(members: u32, random: &mut Rng) -> HelperExecutor {
        let mut node = Node::new(members, random);
        let addresses: Vec<_> = node.engines.iter().map(Engine::address).collect();
        let words = || OwnedMemory::new(((members * WORDS_EACH + LOCK_WORDS) * 8) as usize);
        let words: Vec<_> = (0..members).map(|_| words()).collect();
        let (ends, mut watchers) = (Arc::new(Ends::default()), Vec::new());
        let start = |(mut engine, words): (Engine, &OwnedMemory)| {
            engine.register_memory(KEY, words.view(), true, true);
            let inner = Inner { engine: Some(engine), completions: Vec::new(), ends: Arc::clone(&ends) };
            let several = |inner: &mut Inner| inner.engine.iter_mut().for_each(Engine::several_threads_call);
            let member = Arc::new(BiasedLock::shared(inner, several));
            let inside = Arc::downgrade(&member);
            let on_wake = move || make_progress(&mut *inside.upgrade()?.enter());
            let mut inner = member.enter();
            let engine = inner.engine.as_mut().expect("just given");
            let watcher = engine.start_watcher("weir-progress", Some(0), on_wake).expect("a thread");
            watchers.push(watcher.expect("shared memory has a place to sleep"));
            drop(inner);
            member
        };
        let members = node.engines.drain(..).zip(&words).map(start).collect();
        let offered = Cell::default();
        let mut executor =
            HelperExecutor { members, watchers, ends, addresses, group: 0, words, offered, node };
        executor.join();
        executor
    }

    fn join(&mut self) {
        for (rank, member) in (0..).zip(&self.members) {
            member.enter().post(|engine| {
                let peers = self.addresses.iter().map(|address| engine.peer(address)).collect();
                self.group = engine.join_collective(Post::default(), peers, rank).expect("the first group");
            });
        }
        self.wait_for(&vec![1; self.members.len()]);
    }

    /// The callers compute until the helpers have ended so many operations of each member. Returns the completions.
    fn wait_for(&self, expected: &[usize]) -> Vec<Vec<Completion>> {
        let in_time = self.ends.wait_for(expected.iter().sum());
        let take = |member: &Member| std::mem::take(&mut member.enter().completions);
        let completions: Vec<Vec<Completion>> = self.members.iter().map(take).collect();
        let found: Vec<usize> = completions.iter().map(Vec::len).collect();
        assert!(in_time && found == expected, "helpers have ended {found:?} operations of {expected:?}");
        assert!(completions.iter().flatten().all(|it| it.outcome == Outcome::Done), "{completions:?}");
        completions
    }

    /// Posts for each member, in a random order, and leaves them to their helpers.
    fn post(
        &self,
        random: &mut Rng,
        mut post: impl FnMut(usize, &mut Engine),
        before_last: impl FnOnce(&[Member]),
    ) {
        let mut order: Vec<usize> = (0..self.members.len()).collect();
        random.shuffle(&mut order);
        let (last, others) = order.split_last().expect("a member");
        others.iter().for_each(|&rank| self.members[rank].enter().post(|engine| post(rank, engine)));
        if random.u8(..8) == 0 {
            std::thread::sleep(LATE);
        }
        before_last(&self.members);
        self.members[*last].enter().post(|engine| post(*last, engine));
        if random.u8(..16) == 0 {
            for _ in 0..random.u8(..20) {
                random.choice(&self.members).expect("a member").enter().progress();
            }
        }
    }

    fn perform_all(&self, collectives: &[Collective], random: &mut Rng) -> Results {
        let members = self.members.len();
        let buffers = |it: &Collective| -> Vec<Buffers> {
            (0..members as u32).map(|rank| Buffers::new(it, rank, members as u32)).collect()
        };
        let buffers: Vec<Vec<Buffers>> = collectives.iter().map(buffers).collect();
        let post = |rank: usize, engine: &mut Engine| {
            for (number, buffers) in buffers.iter().enumerate() {
                let post = Post { context: number, cookie: 0 };
                engine.collective(post, buffers[rank].arguments(self.group)).expect("room");
            }
        };
        let check_barriers = |members: &[Member]| {
            for member in members {
                let ended = member.enter().completions.clone();
                let numbers = ended.iter().map(|completion| completion.post.context);
                numbers.for_each(|number| assert_all_have_begun(collectives, number, &[false]));
            }
        };
        self.post(random, post, check_barriers);
        self.wait_for(&vec![collectives.len(); members]);
        buffers.iter().map(|each| each.iter().map(Buffers::outcome).collect()).collect()
    }

    fn change(&self, lists: &[Vec<Change>], random: &mut Rng) -> Results {
        let olds: Vec<OwnedMemory> = lists.iter().map(|list| OwnedMemory::new(8 * list.len())).collect();
        let post = |rank: usize, engine: &mut Engine| {
            for (number, change) in lists[rank].iter().enumerate() {
                let peer = engine.peer(&self.addresses[change.to as usize]);
                let arguments = arguments_of(change, rank, peer, olds[rank].part(8 * number, 8));
                engine.atomic(Post::default(), arguments).expect("room");
            }
        };
        self.post(random, post, |_| {});
        self.wait_for(&lists.iter().map(Vec::len).collect::<Vec<_>>());
        vec![olds.iter().map(|memory| read(&memory.view())).collect()]
    }

    fn use_lock(&self, case: &LockCase, random: &mut Rng) -> Results {
        let members = self.members.len() as u32;
        let words =
            (0..members).map(|member| LockWords { member, executor: self, result: OwnedMemory::new(8) });
        let words: Vec<_> = words.collect();
        let log = RefCell::<Log>::default();
        let contenders: Vec<_> = words
            .iter()
            .map(|words| Contender { words, case, member: words.member, members, log: &log })
            .collect();
        let results = poll_in_turns(contenders.iter().map(Contender::take_part), random);
        *self.ends.count.lock().unwrap_or_else(PoisonError::into_inner) = 0;
        vec![results]
    }
}

/// Words for locks, behind those that others change.
struct LockWords<'a> {
    member: u32,
    executor: &'a HelperExecutor,
    result: OwnedMemory,
}

impl Words for LockWords<'_> {
    async fn change(&self, owner: u32, word: u32, change: LockChange) -> u64 {
        let HelperExecutor { members, addresses, words, .. } = self.executor;
        let member = &members[self.member as usize];
        let offset = u64::from(members.len() as u32 * WORDS_EACH + word) * 8;
        if owner == self.member && matches!(change, LockChange::Read) {
            // The helper changes it for others, with the lock.
            let _inner = member.enter();
            return number(&words[self.member as usize].part(offset as usize, 8));
        }
        member.enter().post(|engine| {
            let peer = engine.peer(&addresses[owner as usize]);
            let (update, result) = (update_of(change), self.result.view());
            let arguments = AtomicArguments { peer, key: KEY, offset, update, result };
            engine.atomic(Post::default(), arguments).expect("room");
        });
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(completion) = member.enter().completions.pop() {
                assert_eq!(completion.outcome, Outcome::Done);
                return number(&self.result.view());
            }
            assert!(Instant::now() < deadline, "helpers do not end {change:?} of {} at {owner}", self.member);
            self.pause().await;
        }
    }

    async fn pause(&self) {
        std::thread::yield_now();
        pause().await;
    }
}

impl Executor for HelperExecutor {
    fn name(&self) -> String {
        String::from("helper over messages")
    }

    fn takes(&self, case: &Case) -> bool {
        let offered = self.offered.get();
        let is_possible = !matches!(case, Case::MultiSends(_));
        self.offered.set(offered + usize::from(is_possible));
        is_possible && offered.is_multiple_of(EACH)
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

impl Drop for HelperExecutor {
    fn drop(&mut self) {
        self.watchers.clear(); // without a lock, for which they may wait
        for member in self.members.drain(..) {
            let mut engine = member.enter().engine.take().expect("given back once");
            engine.end_watch();
            engine.close_collective(self.group);
            self.node.engines.push(engine);
        }
        Node::close(&mut self.node.engines);
        self.words.clear();
    }
}
