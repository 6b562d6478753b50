//! Random worlds of a gate, and the search of all states of small ones: tasks send, serve and die, the link completes
//! messages in any order, time passes. In each world:
//!
//! - tokens are conserved, and held by the tasks whose messages are outstanding;
//! - tickets are served in order, and nobody overtakes them;
//! - a message leaves once, and those of a task in order;
//! - a message that passes at once was below the thresholds, and a throttled task keeps its delay;
//! - when nobody dies any more, every message of the living leaves and nobody waits.

use alloc::collections::{BTreeSet, VecDeque};

use super::*;

/// What happens in a world.
#[derive(Clone, Debug)]
struct Setup {
    settings: GateSettings,
    /// Messages of each task: host and bytes.
    messages: Vec<(u32, u32)>,
    /// So many tasks may die.
    deaths: u32,
}

/// The link: messages that have left and not completed, and all that have left.
#[derive(Clone, Debug, Default)]
struct Link {
    outstanding: Vec<(Task, u32)>,
    left: Vec<(Task, Descriptor, u32)>,
    resumed: Vec<Task>,
    /// The tokens of the last injection.
    tokens: u32,
}

impl GateDriver for Link {
    fn inject(&mut self, server: Task, messages: &[Descriptor], tokens: u32) {
        self.outstanding.push((messages[0].origin, tokens));
        self.outstanding.sort_unstable(); // the order of completions is free anyway
        self.left.extend(messages.iter().map(|it| (server, *it, tokens)));
        self.tokens = tokens;
    }

    fn resume(&mut self, task: Task) {
        self.resumed.push(task);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Request(Task),
    Serve(Task),
    Leave(Task),
    Complete(usize),
    Pass,
    Die(Task),
}

#[derive(Clone)]
struct World {
    setup: Setup,
    gate: Gate,
    link: Link,
    now: Instant,
    /// By task: messages requested so far, and whether it is dead.
    requested: Vec<u32>,
    dead: Vec<bool>,
    deaths: u32,
    /// Those who wait for tokens, in order.
    waiting: VecDeque<Task>,
    /// By task: time of the last injection.
    last: Vec<Option<Instant>>,
}

impl World {
    fn new(setup: &Setup, mutant: Option<Mutant>) -> World {
        let mut gate = Gate::new(setup.settings.clone());
        if let Some(mutant) = mutant {
            gate.mutate(mutant);
        }
        let tasks = setup.settings.tasks as usize;
        World {
            setup: setup.clone(),
            gate,
            link: Link::default(),
            now: Instant(0),
            requested: vec![0; tasks],
            dead: vec![false; tasks],
            deaths: setup.deaths,
            waiting: VecDeque::new(),
            last: vec![None; tasks],
        }
    }

    fn tasks(&self) -> impl Iterator<Item = Task> + use<> {
        (0..self.setup.settings.tasks).map(Task)
    }

    fn can_act(&self, task: Task) -> bool {
        !self.dead[task.index()] && !self.gate.waits(task)
    }

    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for task in self.tasks() {
            if self.can_act(task) && !self.has_requested_all(task) {
                actions.push(Action::Request(task));
            }
            if self.can_act(task) && self.setup.settings.mechanism.proxy().is_some() {
                actions.extend([Action::Serve(task), Action::Leave(task)]);
            }
            if self.deaths > 0 && !self.dead[task.index()] {
                actions.push(Action::Die(task));
            }
        }
        actions.extend((0..self.link.outstanding.len()).map(Action::Complete));
        if matches!(self.setup.settings.mechanism, Mechanism::Rate { .. }) && self.now.0 < 1000 {
            actions.push(Action::Pass);
        }
        actions
    }

    fn perform(&mut self, action: Action) -> Rule<()> {
        let left_before = self.link.left.len();
        let outstanding_before = self.living_outstanding();
        self.link.resumed.clear();
        let waiting_before = self.waiting.clone();
        match action {
            Action::Request(task) => {
                let number = self.requested[task.index()];
                let (host, bytes) = self.setup.messages[number as usize];
                let descriptor = Descriptor { origin: task, host, bytes, number };
                let requested = self.gate.request(self.now, descriptor, &mut self.link);
                self.requested[task.index()] += u32::from(requested != Requested::Full);
                match requested {
                    Requested::Injected => {
                        self.passed(descriptor, &waiting_before, outstanding_before)?;
                    }
                    Requested::Waits if self.has_tokens() => self.waiting.push_back(task),
                    _ => {}
                }
                let count = usize::from(requested == Requested::Injected);
                rule!(self.link.left.len() == left_before + count, "{requested:?} and not as many left");
            }
            Action::Serve(task) => {
                if self.gate.serve(task, &mut self.link) == Serving::Waits {
                    self.waiting.push_back(task);
                } else {
                    let left = self.link.left.len() > left_before;
                    let overtakes = left && self.has_tokens() && !waiting_before.is_empty();
                    rule!(!overtakes, "{task:?} serves before {waiting_before:?}");
                }
            }
            Action::Leave(task) => self.gate.leave(task),
            Action::Complete(index) => {
                let (owner, tokens) = self.link.outstanding.remove(index);
                self.gate.completed(owner, tokens, &mut self.link);
            }
            Action::Pass => {
                self.now =
                    self.gate.next_deadline().filter(|at| *at > self.now).unwrap_or(self.now.plus_ns(70));
                self.gate.expired(self.now, &mut self.link);
            }
            Action::Die(task) => {
                self.dead[task.index()] = true;
                self.deaths -= 1;
                self.waiting.retain(|other| *other != task);
                self.gate.lost(task, &mut self.link);
            }
        }
        if self.has_tokens() {
            for task in core::mem::take(&mut self.link.resumed) {
                let first = self.waiting.pop_front();
                rule!(first == Some(task), "{task:?} resumes and {first:?} is first");
            }
        }
        self.check(left_before)
    }

    fn has_requested_all(&self, task: Task) -> bool {
        self.dead[task.index()] || self.requested[task.index()] as usize == self.setup.messages.len()
    }

    fn has_tokens(&self) -> bool {
        self.setup.settings.mechanism.tokens().is_some()
    }

    fn living_outstanding(&self) -> u32 {
        self.link.outstanding.iter().filter(|(owner, _)| !self.dead[owner.index()]).count() as u32
    }

    /// A message has left at once.
    fn passed(&self, descriptor: Descriptor, waiting: &VecDeque<Task>, outstanding: u32) -> Rule<()> {
        let Some(thresholds) = &self.setup.settings.policer else {
            rule!(waiting.is_empty(), "{descriptor:?} overtakes {waiting:?}");
            return Ok(());
        };
        let cost = self
            .setup
            .settings
            .mechanism
            .tokens()
            .map_or(0, |it| it.cost.of(descriptor.bytes).min(it.tokens));
        let most = *thresholds.node_messages.at(descriptor.bytes);
        let is_free = cost > 0 && self.link.tokens == cost;
        let is_rate = matches!(self.setup.settings.mechanism, Mechanism::Rate { .. });
        rule!(
            is_free || is_rate || outstanding < most,
            "{descriptor:?} passes with {outstanding} outstanding"
        );
        Ok(())
    }

    /// The rules that hold after every action.
    fn check(&mut self, left_before: usize) -> Rule<()> {
        let view = self.gate.view();
        if let Some(settings) = self.setup.settings.mechanism.tokens() {
            let mut held = 0;
            for task in self.tasks() {
                let own = self.link.outstanding.iter().filter(|(owner, _)| *owner == task);
                let tokens: u32 = own.map(|(_, tokens)| tokens).sum();
                let tokens = if self.dead[task.index()] { 0 } else { tokens };
                let of_pool = self.gate.pool().held(task);
                rule!(of_pool == tokens, "{task:?} holds {of_pool} tokens, and {tokens} are outstanding");
                held += tokens;
            }
            let total = view.free_tokens + held;
            rule!(total == settings.tokens, "{total} tokens of {}", settings.tokens);
            let order: Vec<Task> = self.gate.pool().tickets().map(|ticket| ticket.task).collect();
            rule!(self.waiting.iter().eq(&order), "tickets {order:?}, waiting {:?}", self.waiting);
        }
        let outstanding = self.living_outstanding();
        rule!(view.node_messages == outstanding, "{view:?} with {outstanding} outstanding");
        let is_active = |task: &Task| {
            let is_outstanding = self.link.outstanding.iter().any(|(owner, _)| owner == task);
            !self.dead[task.index()]
                && (is_outstanding || self.gate.waits(*task) || self.gate.queued(*task) > 0)
        };
        let active = self.tasks().filter(is_active).count() as u32;
        rule!(view.active_tasks == active, "{view:?}, and {active} are active");
        for index in left_before..self.link.left.len() {
            let (_, descriptor, _) = self.link.left[index];
            let earlier = self.link.left[..index].iter().filter(|it| it.1.origin == descriptor.origin);
            let expected = earlier.count() as u32;
            rule!(descriptor.number == expected, "{descriptor:?} leaves, and message {expected} is next");
            let last = self.last[descriptor.origin.index()].replace(self.now);
            if let (Mechanism::Rate { delay_ns }, Some(last)) = (&self.setup.settings.mechanism, last)
                && self.setup.settings.policer.is_none()
            {
                let (passed, delay) = (self.now.since_ns(last), *delay_ns.at(descriptor.bytes));
                rule!(passed >= delay, "{descriptor:?} leaves after {passed} ns, the delay is {delay}");
            }
        }
        Ok(())
    }

    /// Nobody dies any more: everything has to end.
    fn end(mut self) -> Rule<World> {
        self.deaths = 0;
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..10_000 {
            let mut actions = self.actions();
            actions.retain(|action| !matches!(action, Action::Leave(_)));
            actions.extend(self.gate.next_deadline().map(|_| Action::Pass));
            let works = |task: Task| self.gate.queued(task) > 0 || self.gate.waits(task);
            if self.tasks().all(|task| self.has_requested_all(task) && !works(task))
                && self.link.outstanding.is_empty()
            {
                break;
            }
            let Some(action) = random.choice(&actions) else { break };
            self.perform(*action)?;
        }
        for task in self.tasks().filter(|task| !self.dead[task.index()]) {
            let left = self.link.left.iter().filter(|it| it.1.origin == task).count();
            let all = self.setup.messages.len();
            rule!(left == all, "{left} of {all} messages of {task:?} have left: {:?}", self.gate);
        }
        rule!(self.waiting.is_empty() && self.gate.view().node_messages == 0, "{:?}", self.gate);
        Ok(self)
    }
}

fn draw(random: &mut fastrand::Rng) -> Setup {
    let cost = if random.bool() { TokenCost::One } else { KIB };
    let tokens = TokenSettings { tokens: random.u32(1..6), cost };
    let proxy = ProxySettings {
        pools: random.u32(1..4),
        queue_descriptors: random.u32(1..6),
        combine_bytes: [0, 64, 4096][random.usize(..3)],
        drains: random.bool(),
    };
    let mechanism = match random.u32(..4) {
        0 => Mechanism::Rate { delay_ns: Steps::new(vec![(0, 100), (1024, 300)]).expect("ascending") },
        1 => Mechanism::Token(tokens),
        2 => Mechanism::Proxy(proxy),
        _ => Mechanism::ProxyToken(proxy, tokens),
    };
    let policer = random.bool().then(|| Thresholds {
        tasks: Steps::constant(random.u32(1..6)),
        node_messages: Steps::constant(random.u32(1..6)),
        task_messages: Steps::constant(Steps::constant(random.u32(1..4))),
    });
    let tasks = random.u32(1..6);
    let messages = (0..random.u32(1..12)).map(|_| (random.u32(..2), [8, 32, 2048, 5000][random.usize(..4)]));
    let messages = messages.collect();
    let deaths = if random.bool() { random.u32(..tasks) } else { 0 };
    Setup { settings: GateSettings { tasks, mechanism, policer }, messages, deaths }
}

fn run(seed: u64, mutant: Option<Mutant>) -> Rule<World> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut world = World::new(&draw(&mut random), mutant);
    for _ in 0..random.u32(..200) {
        let actions = world.actions();
        // Death comes in any state, and rarely.
        let kind = random.u32(..60);
        let may = |action: &&Action| matches!(action, Action::Die(_)) == (kind == 0);
        let actions: Vec<Action> = actions.iter().filter(may).copied().collect();
        if let Some(action) = random.choice(&actions) {
            world.perform(*action)?;
        }
    }
    world.end()
}

/// Seeds of a normal run. `WEIR_WORLDS` has another number.
fn seeds() -> u64 {
    std::env::var("WEIR_WORLDS").ok().and_then(|count| count.parse().ok()).unwrap_or(3000)
}

pub(super) fn detects(mutant: Mutant) -> bool {
    let breaks = |seed: u64| !matches!(std::panic::catch_unwind(|| run(seed, Some(mutant))), Ok(Ok(_)));
    (0..seeds()).any(breaks)
}

#[test]
fn random_worlds_keep_the_rules() {
    let (mut deaths, mut tickets, mut combined, mut served) = (0, 0, 0, 0);
    for seed in 0..seeds() {
        let world = run(seed, None).unwrap_or_else(|reason| panic!("world {seed}: {reason}"));
        deaths += world.dead.iter().filter(|dead| **dead).count();
        tickets += usize::from(world.has_tokens());
        served += world.link.left.iter().filter(|it| it.0 != it.1.origin).count();
        combined +=
            usize::from(world.setup.settings.mechanism.proxy().is_some_and(|it| it.combine_bytes > 0));
    }
    assert!(deaths > 0 && tickets > 0 && combined > 0 && served > 0, "the worlds contain everything");
}

/// All states of small worlds, with a death at every step. Two states are the same if their gates, links and tasks are.
#[test]
fn all_states_of_small_worlds_keep_the_rules() {
    let tokens = TokenSettings { tokens: 2, cost: KIB };
    let proxy = ProxySettings { pools: 1, queue_descriptors: 2, combine_bytes: 64, drains: false };
    for mechanism in [Mechanism::Token(tokens), Mechanism::Proxy(proxy), Mechanism::ProxyToken(proxy, tokens)]
    {
        let settings = GateSettings { tasks: 3, mechanism, policer: None };
        let setup = Setup { settings, messages: vec![(0, 8), (0, 4096)], deaths: 1 };
        let mut found = BTreeSet::new();
        let mut open = vec![World::new(&setup, None)];
        while let Some(world) = open.pop() {
            for action in world.actions() {
                let mut next = world.clone();
                next.perform(action).unwrap_or_else(|reason| panic!("{action:?}: {reason}"));
                if found.insert(next.state()) {
                    open.push(next);
                }
            }
            world.end().unwrap_or_else(|reason| panic!("{reason}"));
        }
        std::println!("{:?}: {} states", setup.settings.mechanism, found.len());
        assert!(found.len() > 500, "{} states", found.len());
    }
}

impl World {
    /// The state, without numbers that only grow.
    fn state(&self) -> String {
        let World { link, requested, dead, deaths, waiting, .. } = self;
        format!("{:?} {:?} {requested:?} {dead:?} {deaths} {waiting:?}", self.gate.state(), link.outstanding)
    }
}
