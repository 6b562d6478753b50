//! Proxy: tasks queue descriptors, and a task that finds the server token of its pool serves the queues of all. The
//! others return at once. So at most one task of a pool injects at a time.
//!
//! A server claims a batch, injects it and says so, step after step. It may die between any two. The queues are then as
//! they were, and the next task that finds the token serves them. Only the batch of the dead is in doubt: it may
//! have left or not. The task whose messages they are finds out from its path, and says so ([`Proxy::resolve`]).
//! Until then its queue waits. So no message is lost, and none leaves twice.
//! ```text
//! task 0   enqueue(a)   try_serve: yes   claim: [a]   driver injects   injected   claim: [b]  ...
//! task 1                enqueue(b)       try_serve: no, returns
//! ```
//! Messages of a task leave in order. A batch is one descriptor, or several to one host that leave as one message.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

use super::mutant::{Broken, Mutant};
use super::{Descriptor, Task};

/// Settings of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxySettings {
    /// Pools of the node, at least 1: so many tasks can serve at a time. Neighbouring tasks share a pool.
    pub pools: u32,
    /// Bound: descriptors in the queue of a task, at least 1.
    pub queue_descriptors: u32,
    /// Messages to one host leave together up to so many bytes; 0: each leaves alone. Unit: bytes.
    pub combine_bytes: u32,
    /// A server empties a queue before it takes the next. Otherwise it takes one batch from each in turn.
    pub drains: bool,
}

/// The queue of a task.
#[derive(Clone, Debug, Default)]
struct Queue {
    descriptors: VecDeque<Descriptor>,
    /// So many at the front are in a batch.
    claimed: usize,
    /// The server that claimed them is dead.
    is_doubtful: bool,
}

impl Queue {
    fn can_be_claimed(&self) -> bool {
        self.claimed == 0 && !self.descriptors.is_empty()
    }

    fn end_claim(&mut self, left: bool) {
        let claimed = core::mem::take(&mut self.claimed);
        self.is_doubtful = false;
        if left {
            self.descriptors.drain(..claimed);
        }
    }

    /// Claims descriptors to `host` from the front, as long as all of the batch has at most `most` bytes.
    fn combine(&mut self, host: u32, most: u32, batch: &mut Vec<Descriptor>, broken: Broken) {
        let mut bytes: u64 = batch.iter().map(|it| u64::from(it.bytes)).sum();
        loop {
            if broken.has(Mutant::CombiningOvertakes) {
                let claimed = self.claimed;
                let next = self.descriptors.iter().skip(claimed).position(|it| it.host == host);
                if let Some(next) = next.and_then(|next| self.descriptors.remove(claimed + next)) {
                    self.descriptors.insert(claimed, next);
                }
            }
            let Some(next) = self.descriptors.get(self.claimed) else { return };
            bytes += u64::from(next.bytes);
            if next.host != host || bytes > u64::from(most) {
                return;
            }
            batch.push(*next);
            self.claimed += 1;
        }
    }
}

/// Tasks that share a server token.
#[derive(Clone, Debug)]
struct Pool {
    tasks: Range<u32>,
    server: Option<Task>,
    /// Whose queue is next.
    turn: u32,
    /// What the server has claimed. The first descriptor is from the queue whose turn it was.
    batch: Vec<Descriptor>,
}

impl Pool {
    fn after(&self, task: u32) -> u32 {
        if task + 1 < self.tasks.end { task + 1 } else { self.tasks.start }
    }

    /// All tasks, from `first` on.
    fn from(&self, first: u32) -> impl Iterator<Item = u32> + use<> {
        let Range { start, end } = self.tasks;
        (first..end).chain(start..first)
    }
}

/// The queues and server tokens of a node.
#[derive(Clone, Debug)]
pub struct Proxy {
    settings: ProxySettings,
    queues: Vec<Queue>,
    pools: Vec<Pool>,
    tasks_per_pool: u32,
    pub(super) broken: Broken,
}

impl Proxy {
    /// The proxy of `tasks` tasks, at least one.
    pub fn new(settings: ProxySettings, tasks: u32) -> Proxy {
        let tasks_per_pool = tasks.div_ceil(settings.pools.clamp(1, tasks));
        let pool = |start: u32| {
            let tasks = start..(start + tasks_per_pool).min(tasks);
            Pool { turn: start, tasks, server: None, batch: Vec::new() }
        };
        Proxy {
            settings,
            queues: alloc::vec![Queue::default(); tasks as usize],
            pools: (0..tasks).step_by(tasks_per_pool as usize).map(pool).collect(),
            tasks_per_pool,
            broken: Broken::default(),
        }
    }

    fn pool_index(&self, task: Task) -> usize {
        (task.0 / self.tasks_per_pool) as usize
    }

    fn pool(&self, task: Task) -> &Pool {
        &self.pools[self.pool_index(task)]
    }

    /// Queues a message of its origin. Returns whether there was room.
    pub fn enqueue(&mut self, descriptor: Descriptor) -> bool {
        let queue = &mut self.queues[descriptor.origin.index()];
        let has_room = queue.descriptors.len() < self.settings.queue_descriptors.max(1) as usize;
        if has_room {
            queue.descriptors.push_back(descriptor);
        }
        has_room
    }

    /// Takes the server token of the pool of `task`. Returns whether `task` has it now. A new server starts with its
    /// own queue.
    pub fn try_serve(&mut self, task: Task) -> bool {
        let index = self.pool_index(task);
        let pool = &mut self.pools[index];
        if pool.server.is_none() {
            pool.server = Some(task);
            pool.turn = task.0;
        }
        pool.server == Some(task)
    }

    /// The server claims the next batch. Returns it, in the order in which it leaves; empty if all queues are empty. A
    /// server that has claimed a batch gets the same again.
    ///
    /// # Panics
    /// If `server` does not have the token.
    pub fn claim(&mut self, server: Task) -> &[Descriptor] {
        let index = self.pool_index(server);
        let Proxy { settings, queues, pools, broken, .. } = self;
        let pool = &mut pools[index];
        assert_eq!(pool.server, Some(server), "{server:?} has the server token");
        if !pool.batch.is_empty() {
            return &pool.batch;
        }
        let turn = if broken.has(Mutant::OwnQueueComesFirst) { server.0 } else { pool.turn };
        let Some(first) = pool.from(turn).find(|&task| queues[task as usize].can_be_claimed()) else {
            return &[];
        };
        let queue = &mut queues[first as usize];
        let descriptor = queue.descriptors[0];
        pool.batch.push(descriptor);
        queue.claimed = 1;
        if descriptor.bytes < settings.combine_bytes {
            for task in pool.from(first) {
                let queue = &mut queues[task as usize];
                if task == first || queue.can_be_claimed() {
                    queue.combine(descriptor.host, settings.combine_bytes, &mut pool.batch, *broken);
                }
            }
        }
        let queue = &queues[first as usize];
        let stays = settings.drains && queue.claimed < queue.descriptors.len();
        pool.turn = if stays { first } else { pool.after(first) };
        &pool.batch
    }

    /// The claimed batch has left. Its descriptors are gone.
    pub fn injected(&mut self, server: Task) {
        self.end_claims(server, true);
    }

    /// The claimed batch has not left. Its descriptors wait again, in their places.
    pub fn unclaim(&mut self, server: Task) {
        self.end_claims(server, false);
    }

    fn end_claims(&mut self, server: Task, left: bool) {
        let index = self.pool_index(server);
        let pool = &mut self.pools[index];
        for descriptor in core::mem::take(&mut pool.batch) {
            let queue = &mut self.queues[descriptor.origin.index()];
            if queue.claimed > 0 && !queue.is_doubtful {
                queue.end_claim(left);
            }
        }
    }

    /// The server gives back its token, between two batches. Returns whether it has to try again, because something
    /// can be served that it has not seen.
    pub fn release(&mut self, server: Task) -> bool {
        let index = self.pool_index(server);
        let pool = &mut self.pools[index];
        assert_eq!(pool.server, Some(server), "{server:?} has the server token");
        assert!(pool.batch.is_empty(), "{server:?} has claimed a batch");
        pool.server = None;
        self.has_work(server) && !self.broken.has(Mutant::ReleaseDoesNotLookAgain)
    }

    /// Whether a queue of the pool of `task` can be served.
    pub fn has_work(&self, task: Task) -> bool {
        let tasks = &self.pool(task).tasks;
        self.queues[tasks.start as usize..tasks.end as usize].iter().any(Queue::can_be_claimed)
    }

    /// `task` is dead: its queue is void. If it was a server, its token is free, and the batch that it had claimed
    /// is in doubt ([`Proxy::is_doubtful`]).
    pub fn lost(&mut self, task: Task) {
        let index = self.pool_index(task);
        let Proxy { queues, pools, broken, .. } = self;
        let pool = &mut pools[index];
        queues[task.index()] = Queue::default();
        pool.batch.retain(|descriptor| descriptor.origin != task);
        if pool.server != Some(task) || broken.has(Mutant::DeadServersKeepTheToken) {
            return;
        }
        pool.server = None;
        for descriptor in core::mem::take(&mut pool.batch) {
            let queue = &mut queues[descriptor.origin.index()];
            if broken.has(Mutant::ClaimsOfTheDeadAreLost) {
                queue.end_claim(true);
            } else if broken.has(Mutant::DoubtfulMessagesAreServed) {
                queue.end_claim(false);
            } else {
                queue.is_doubtful = true;
            }
        }
    }

    /// Whether a dead server had claimed messages of `task`.
    pub fn is_doubtful(&self, task: Task) -> bool {
        self.queues[task.index()].is_doubtful
    }

    /// `task` has found out whether those messages left. Otherwise they wait again.
    pub fn resolve(&mut self, task: Task, left: bool) {
        let queue = &mut self.queues[task.index()];
        if queue.is_doubtful {
            queue.end_claim(left);
        }
    }

    /// Messages of `task` that have not left, as far as known.
    pub fn queued(&self, task: Task) -> usize {
        self.queues[task.index()].descriptors.len()
    }

    /// Who has the server token of the pool of `task`.
    pub fn server(&self, task: Task) -> Option<Task> {
        self.pool(task).server
    }
}
