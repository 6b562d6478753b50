//! The proxy step by step: servers die between any two steps, also between the injection of a batch and the note
//! that it has left. In each world:
//!
//! - every message of the living leaves once, those of a task in order, and one of the dead at most once;
//! - while a server serves, no queue of its pool with work is passed over more often than there are tasks;
//! - when nobody dies any more, all queues become empty, though a task that has queued its last message looks no more
//!   while another serves.

use super::*;

/// Where a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// It queues its next message, or has none.
    Program,
    /// It has queued a message and tries to serve.
    Tries,
    /// It serves: the next step is to claim.
    Claims,
    /// A batch is claimed: the next step is to inject.
    Injects,
    /// The batch has left: the next step is to say so.
    Notes,
    /// All queues were empty: the next step is to release the token.
    Releases,
    Dead,
}

struct World {
    proxy: Proxy,
    at: Vec<At>,
    /// Messages of each task, queued so far.
    queued: Vec<u32>,
    messages: u32,
    left: Vec<Descriptor>,
    /// By task: batches of others since its queue has had work.
    passed: Vec<u32>,
    settings: ProxySettings,
}

const TASKS: u32 = 4;

impl World {
    fn step(&mut self, task: Task, random: &mut fastrand::Rng) -> Rule<()> {
        let index = task.index();
        self.at[index] = match self.at[index] {
            At::Program if self.queued[index] < self.messages => {
                let (host, bytes) = (random.u32(..2), [8, 40][random.usize(..2)]);
                let descriptor = Descriptor { origin: task, host, bytes, number: self.queued[index] };
                self.queued[index] += u32::from(self.proxy.enqueue(descriptor));
                At::Tries
            }
            At::Program | At::Dead => self.at[index],
            At::Tries if self.proxy.try_serve(task) => At::Claims,
            At::Tries => At::Program,
            At::Claims if self.proxy.claim(task).is_empty() => At::Releases,
            At::Claims => At::Injects,
            At::Injects => {
                let batch = Vec::from(self.proxy.claim(task));
                self.left.extend(&batch);
                self.note_turn(task, &batch)?;
                At::Notes
            }
            At::Notes => {
                self.proxy.injected(task);
                At::Claims
            }
            At::Releases if self.proxy.release(task) => At::Tries,
            At::Releases => At::Program,
        };
        Ok(())
    }

    fn note_turn(&mut self, server: Task, batch: &[Descriptor]) -> Rule<()> {
        let pool = TASKS.div_ceil(self.settings.pools);
        for task in (0..TASKS).map(Task).filter(|task| task.0 / pool == server.0 / pool) {
            let passed = &mut self.passed[task.index()];
            let has_work = self.proxy.queued(task) > 0 && !self.proxy.is_doubtful(task);
            let is_in = batch.iter().any(|it| it.origin == task);
            *passed = if has_work && !is_in { *passed + 1 } else { 0 };
            // A new server starts with its own queue, so a turn may begin again once for each task.
            rule!(self.settings.drains || *passed <= 2 * TASKS, "{task:?} was passed over {passed} times");
        }
        Ok(())
    }

    fn die(&mut self, task: Task) {
        self.at[task.index()] = At::Dead;
        self.proxy.lost(task);
    }

    /// The tasks whose messages a dead server had claimed find out what has left.
    fn resolve(&mut self) {
        for task in (0..TASKS).map(Task).filter(|task| self.at[task.index()] != At::Dead) {
            if self.proxy.is_doubtful(task) {
                let left = self.left.iter().filter(|it| it.origin == task).count() as u32;
                let gone = self.queued[task.index()] - self.proxy.queued(task) as u32;
                self.proxy.resolve(task, left > gone);
            }
        }
    }

    fn check(&self) -> Rule<()> {
        let mut next = [0; TASKS as usize];
        for descriptor in &self.left {
            let expected = &mut next[descriptor.origin.index()];
            rule!(descriptor.number == *expected, "{descriptor:?} leaves, and {expected} is next");
            *expected += 1;
        }
        Ok(())
    }

    fn end(&mut self, random: &mut fastrand::Rng) -> Rule<()> {
        self.resolve();
        for round in 0..1000 {
            for task in (0..TASKS).map(Task) {
                // A task that waits for its messages looks again from time to time, since a server may have died.
                let waits = self.proxy.queued(task) > 0 && self.had_deaths();
                if round % 10 == 9 && waits && self.at[task.index()] == At::Program {
                    self.at[task.index()] = At::Tries;
                }
                self.step(task, random)?;
            }
        }
        self.check()?;
        for task in (0..TASKS).map(Task).filter(|task| self.at[task.index()] != At::Dead) {
            let left = self.left.iter().filter(|it| it.origin == task).count() as u32;
            rule!(left == self.messages, "{left} of {} messages of {task:?} have left", self.messages);
        }
        Ok(())
    }

    fn had_deaths(&self) -> bool {
        self.at.contains(&At::Dead)
    }
}

fn run(seed: u64, mutant: Option<Mutant>) -> Rule<u32> {
    let mut random = fastrand::Rng::with_seed(seed);
    let settings = ProxySettings {
        pools: random.u32(1..3),
        queue_descriptors: [1, 4, 16][random.usize(..3)],
        combine_bytes: [0, 64][random.usize(..2)],
        drains: random.bool(),
    };
    let tasks = TASKS as usize;
    let mut world = World {
        proxy: Proxy::new(settings, TASKS),
        at: vec![At::Program; tasks],
        queued: vec![0; tasks],
        messages: random.u32(1..24),
        left: Vec::new(),
        passed: vec![0; tasks],
        settings,
    };
    world.proxy.broken.mutant = mutant;
    let (mut doubts, may_die) = (0, random.bool());
    for _ in 0..random.u32(..600) {
        let task = Task(random.u32(..TASKS));
        if may_die && random.u32(..80) == 0 && world.at.iter().filter(|at| **at == At::Dead).count() < 2 {
            world.die(task);
        } else {
            world.step(task, &mut random)?;
        }
        doubts += (0..TASKS).filter(|task| world.proxy.is_doubtful(Task(*task))).count() as u32;
        if random.u32(..20) == 0 {
            world.resolve();
        }
        world.check()?;
    }
    world.end(&mut random)?;
    Ok(doubts)
}

pub(super) fn detects(mutant: Mutant) -> bool {
    let breaks = |seed: u64| !matches!(std::panic::catch_unwind(|| run(seed, Some(mutant))), Ok(Ok(_)));
    (0..1000).any(breaks)
}

#[test]
fn servers_that_die_between_any_two_steps_lose_and_repeat_nothing() {
    let mut doubts = 0;
    for seed in 0..3000 {
        doubts += run(seed, None).unwrap_or_else(|reason| panic!("world {seed}: {reason}"));
    }
    assert!(doubts > 0, "no batch was in doubt");
}
