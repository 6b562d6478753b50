//! The gate of a node before its network link: the policer, then one mechanism. Every message of the node's tasks goes
//! through it. It handles one event and calls its driver, like the other machines.
//!
//! - Rate and token control are *inline*: a task that may not inject waits ([`Requested::Waits`]), and so has at
//!   most one message here. While it waits it may do anything but send.
//! - With the proxy a task returns at once ([`Requested::Queued`]), and serves if it can ([`Gate::serve`]). A task that
//!   waits for its messages calls that again from time to time, so that it replaces a dead server.
//! - A message that may pass at once takes the tokens that are free, so that the pool knows it.

use alloc::vec::Vec;

use super::mutant::{Broken, Mutant};
use super::{
    Advice, Descriptor, Load, MAX_TASKS, Proxy, ProxySettings, RateThrottle, Steps, Taken, Task, Thresholds,
    TokenPool, TokenSettings,
};
use crate::time::Instant;

/// How a gate holds messages back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// A minimum delay between two messages of a task (IRT).
    Rate {
        /// By size in bytes. Unit: ns.
        delay_ns: Steps<u64>,
    },
    /// A pool of tokens (ITT).
    Token(TokenSettings),
    /// Few tasks inject for all others.
    Proxy(ProxySettings),
    /// The same, and the servers take tokens.
    ProxyToken(ProxySettings, TokenSettings),
}

/// Settings of a gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateSettings {
    /// Tasks of the node, 1 to [`MAX_TASKS`].
    pub tasks: u32,
    /// What holds messages back.
    pub mechanism: Mechanism,
    /// When it does not. `None`: all messages go through the mechanism.
    pub policer: Option<Thresholds>,
}

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requested {
    /// The message has been injected.
    Injected,
    /// The message is queued. The task goes on, and serves if it can.
    Queued,
    /// The task waits. [`GateDriver::inject`] and [`GateDriver::resume`] follow.
    Waits,
    /// The queue of the task is full, and nothing has changed. The task asks again when one of its messages has left.
    Full,
}

/// What a call of [`Gate::serve`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// Nothing: all queues are empty, or another task serves.
    Idle,
    /// A batch has been injected. The task has the server token, and calls again or leaves.
    Injected,
    /// The task has the server token and waits for tokens. [`GateDriver::resume`] follows.
    Waits,
}

/// Does what a gate decides, at once.
pub trait GateDriver {
    /// The messages leave as one, in this order, by the processor of `server`. It is a message of the first origin;
    /// when it completes, the driver gives back `tokens` ([`Gate::completed`]).
    fn inject(&mut self, server: Task, messages: &[Descriptor], tokens: u32);

    /// `task` waits no more.
    fn resume(&mut self, task: Task);
}

/// Why a task waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// For a time.
    Until(Instant, Descriptor),
    /// For tokens.
    ForTokens(Descriptor),
    /// For tokens for the batch that it has claimed.
    Serves,
}

#[derive(Clone, Copy, Debug, Default)]
struct TaskState {
    is_dead: bool,
    /// It has outstanding or waiting messages.
    is_active: bool,
    /// Its messages that have left and not completed.
    outstanding: u32,
    wait: Option<Wait>,
    throttle: RateThrottle,
}

/// What a gate shows to tests and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateView {
    /// Outstanding messages of the node.
    pub node_messages: u32,
    /// Tasks with outstanding or waiting messages.
    pub active_tasks: u32,
    /// Tokens that nobody holds.
    pub free_tokens: u32,
    /// Tasks that wait for tokens.
    pub tickets: usize,
}

/// The gate of a node.
#[derive(Clone, Debug)]
pub struct Gate {
    settings: GateSettings,
    tasks: Vec<TaskState>,
    node_messages: u32,
    active_tasks: u32,
    pool: TokenPool,
    proxy: Proxy,
    broken: Broken,
}

impl Gate {
    /// A gate through which nothing has passed.
    ///
    /// # Panics
    /// If there are no tasks, too many, or no tokens where they are used.
    pub fn new(settings: GateSettings) -> Gate {
        let tasks = settings.tasks;
        assert!((1..=MAX_TASKS).contains(&tasks), "{tasks} tasks; allowed: 1 to {MAX_TASKS}");
        let tokens = settings.mechanism.tokens().map_or(1, |it| it.tokens);
        let unused = ProxySettings { pools: 1, queue_descriptors: 1, combine_bytes: 0, drains: false };
        Gate {
            tasks: alloc::vec![TaskState::default(); tasks as usize],
            node_messages: 0,
            active_tasks: 0,
            pool: TokenPool::new(tokens, tasks),
            proxy: Proxy::new(settings.mechanism.proxy().unwrap_or(unused), tasks),
            broken: Broken::default(),
            settings,
        }
    }

    /// The origin of `descriptor`, which does not wait, wants to send it.
    ///
    /// # Panics
    /// If the origin waits or is dead.
    pub fn request<D: GateDriver>(
        &mut self,
        now: Instant,
        descriptor: Descriptor,
        driver: &mut D,
    ) -> Requested {
        let task = descriptor.origin;
        let TaskState { is_dead, wait, .. } = self.tasks[task.index()];
        assert!(!is_dead && wait.is_none(), "{task:?} is dead or waits");
        let has_queued = self.proxy.queued(task) > 0;
        let may_overtake = !has_queued || self.broken.has(Mutant::PassingOvertakesTheQueue);
        let advice = self.advise(descriptor);
        if advice == Advice::Inject && may_overtake {
            let cost = self.settings.mechanism.tokens().map_or(0, |it| it.cost.of(descriptor.bytes));
            let tokens = self.pool.take_free(task, cost);
            self.tasks[task.index()].throttle.injected(now);
            self.inject(task, &[descriptor], tokens, driver);
            return Requested::Injected;
        }
        let requested = match &self.settings.mechanism {
            Mechanism::Rate { delay_ns } => {
                let delay_ns = *delay_ns.at(descriptor.bytes);
                match self.tasks[task.index()].throttle.inject(now, delay_ns) {
                    Ok(()) => {
                        self.inject(task, &[descriptor], 0, driver);
                        Requested::Injected
                    }
                    Err(until) => self.wait(task, Wait::Until(until, descriptor)),
                }
            }
            Mechanism::ProxyToken(_, settings) if advice == Advice::AvoidRate && !has_queued => {
                self.take_tokens(*settings, descriptor, driver)
            }
            Mechanism::Token(settings) => self.take_tokens(*settings, descriptor, driver),
            Mechanism::Proxy(_) | Mechanism::ProxyToken(..) => match self.proxy.enqueue(descriptor) {
                true => Requested::Queued,
                false => Requested::Full,
            },
        };
        self.refresh(task);
        requested
    }

    /// Algorithm 1, or the mechanism for all if there is no policer.
    fn advise(&self, descriptor: Descriptor) -> Advice {
        let Some(thresholds) = &self.settings.policer else { return Advice::AvoidBoth };
        let task = &self.tasks[descriptor.origin.index()];
        let load = Load {
            active_tasks: self.active_tasks + u32::from(!task.is_active),
            node_messages: self.node_messages,
            own_messages: task.outstanding,
        };
        thresholds.advise_as(load, descriptor.bytes, self.broken)
    }

    fn take_tokens<D: GateDriver>(
        &mut self,
        settings: TokenSettings,
        descriptor: Descriptor,
        driver: &mut D,
    ) -> Requested {
        let task = descriptor.origin;
        match self.pool.take(task, settings.cost.of(descriptor.bytes)) {
            Taken::Tokens(tokens) => {
                self.inject(task, &[descriptor], tokens, driver);
                Requested::Injected
            }
            Taken::Ticket(_) => self.wait(task, Wait::ForTokens(descriptor)),
        }
    }

    fn wait(&mut self, task: Task, wait: Wait) -> Requested {
        self.tasks[task.index()].wait = Some(wait);
        Requested::Waits
    }

    fn inject<D: GateDriver>(&mut self, server: Task, messages: &[Descriptor], tokens: u32, driver: &mut D) {
        let owner = messages[0].origin;
        self.tasks[owner.index()].outstanding += 1;
        self.node_messages += 1;
        driver.inject(server, messages, tokens);
        self.refresh(owner);
    }

    /// `task`, which does not wait, is in the library and can serve others: at most one batch. With an inline
    /// mechanism it never has to.
    pub fn serve<D: GateDriver>(&mut self, task: Task, driver: &mut D) -> Serving {
        let TaskState { is_dead, wait, .. } = self.tasks[task.index()];
        assert!(!is_dead && wait.is_none(), "{task:?} is dead or waits");
        if self.proxy.server(task) != Some(task) && !self.proxy.has_work(task) {
            return Serving::Idle;
        }
        while self.proxy.try_serve(task) {
            let batch = Vec::from(self.proxy.claim(task));
            let Some(first) = batch.first() else {
                if self.proxy.release(task) {
                    continue;
                }
                return Serving::Idle;
            };
            let owner = first.origin;
            let mut taken = 0;
            if let Some(TokenSettings { cost, .. }) = self.settings.mechanism.tokens() {
                let bytes = batch.iter().fold(0u32, |sum, it| sum.saturating_add(it.bytes));
                let Taken::Tokens(tokens) = self.pool.take(task, cost.of(bytes)) else {
                    self.wait(task, Wait::Serves);
                    self.refresh(task);
                    return Serving::Waits;
                };
                self.pool.pass(task, owner, tokens);
                taken = tokens;
            }
            self.leave_batch(task, &batch, taken, driver);
            return Serving::Injected;
        }
        Serving::Idle
    }

    fn leave_batch<D: GateDriver>(
        &mut self,
        server: Task,
        batch: &[Descriptor],
        tokens: u32,
        driver: &mut D,
    ) {
        self.inject(server, batch, tokens, driver);
        self.proxy.injected(server);
        batch.iter().for_each(|descriptor| self.refresh(descriptor.origin));
    }

    /// `task` serves no more for now, although there may be work. Others that wait for their messages take over.
    pub fn leave(&mut self, task: Task) {
        if self.proxy.server(task) == Some(task) && self.tasks[task.index()].wait.is_none() {
            self.proxy.release(task);
        }
    }

    /// A message of `owner` has completed, for which [`GateDriver::inject`] had `tokens` tokens. Messages of the
    /// dead do not matter.
    pub fn completed<D: GateDriver>(&mut self, owner: Task, tokens: u32, driver: &mut D) {
        let state = &mut self.tasks[owner.index()];
        if state.is_dead {
            return;
        }
        state.outstanding -= 1;
        self.node_messages -= 1;
        self.pool.give_back(owner, tokens);
        self.refresh(owner);
        self.serve_tickets(driver);
    }

    /// Injects for those who wait, in the order of their tickets.
    fn serve_tickets<D: GateDriver>(&mut self, driver: &mut D) {
        while let Some(ticket) = self.pool.next_ticket() {
            let task = ticket.task;
            match self.tasks[task.index()].wait.take() {
                Some(Wait::ForTokens(descriptor)) => self.inject(task, &[descriptor], ticket.tokens, driver),
                Some(Wait::Serves) => {
                    let batch = Vec::from(self.proxy.claim(task));
                    match batch.first() {
                        Some(first) => {
                            self.pool.pass(task, first.origin, ticket.tokens);
                            self.leave_batch(task, &batch, ticket.tokens, driver);
                        }
                        None => self.pool.give_back(task, ticket.tokens), // all of its origins are dead
                    }
                }
                wait => panic!("{task:?} has a ticket and waits for {wait:?}"),
            }
            self.refresh(task);
            driver.resume(task);
            if self.broken.has(Mutant::OneTicketForEachCompletion) {
                return;
            }
        }
    }

    /// When to call [`Gate::expired`], if nothing else happens first.
    pub fn next_deadline(&self) -> Option<Instant> {
        let until = |state: &TaskState| match state.wait {
            Some(Wait::Until(at, _)) => Some(at),
            _ => None,
        };
        self.tasks.iter().filter_map(until).min()
    }

    /// A deadline has passed.
    pub fn expired<D: GateDriver>(&mut self, now: Instant, driver: &mut D) {
        let Mechanism::Rate { delay_ns } = &self.settings.mechanism else { return };
        let delay_ns = delay_ns.clone();
        for number in 0..self.settings.tasks {
            let task = Task(number);
            let state = &mut self.tasks[task.index()];
            let Some(Wait::Until(at, descriptor)) = state.wait else { continue };
            if at > now {
                continue;
            }
            match state.throttle.inject(now, *delay_ns.at(descriptor.bytes)) {
                Ok(()) => {
                    state.wait = None;
                    self.inject(task, &[descriptor], 0, driver);
                    driver.resume(task);
                }
                Err(until) => state.wait = Some(Wait::Until(until, descriptor)),
            }
        }
    }

    /// `task` is dead. What it held is free, what it wanted is void, and whoever waited for it goes on.
    pub fn lost<D: GateDriver>(&mut self, task: Task, driver: &mut D) {
        let state = &mut self.tasks[task.index()];
        if core::mem::replace(&mut state.is_dead, true) {
            return;
        }
        if !self.broken.has(Mutant::MessagesOfTheDeadStay) {
            self.node_messages -= core::mem::take(&mut state.outstanding);
        }
        // A batch that waits for tokens has not left.
        if state.wait.take() == Some(Wait::Serves) {
            self.proxy.unclaim(task);
        }
        self.proxy.lost(task);
        self.pool.lost(task);
        self.refresh(task);
        self.serve_tickets(driver);
    }

    fn refresh(&mut self, task: Task) {
        let queued = self.proxy.queued(task);
        let state = &mut self.tasks[task.index()];
        let is_active = !state.is_dead && (state.outstanding > 0 || state.wait.is_some() || queued > 0);
        match (core::mem::replace(&mut state.is_active, is_active), is_active) {
            (false, true) => self.active_tasks += 1,
            (true, false) => self.active_tasks -= 1,
            _ => {}
        }
    }

    /// Messages of `task` that wait in its queue.
    pub fn queued(&self, task: Task) -> usize {
        self.proxy.queued(task)
    }

    /// Whether nobody has the server token of the pool of `task`.
    pub fn can_serve(&self, task: Task) -> bool {
        self.proxy.server(task).is_none()
    }

    /// Whether `task` has a server token.
    pub fn serves(&self, task: Task) -> bool {
        self.proxy.server(task) == Some(task)
    }

    /// Whether `task` waits ([`Requested::Waits`], [`Serving::Waits`]).
    pub fn waits(&self, task: Task) -> bool {
        self.tasks[task.index()].wait.is_some()
    }

    /// Its state in numbers.
    pub fn view(&self) -> GateView {
        GateView {
            node_messages: self.node_messages,
            active_tasks: self.active_tasks,
            free_tokens: self.pool.free(),
            tickets: self.pool.tickets().len(),
        }
    }

    #[cfg(test)]
    pub(super) fn pool(&self) -> &TokenPool {
        &self.pool
    }

    /// The state without the numbers of tickets, which only grow.
    #[cfg(test)]
    pub(super) fn state(&self) -> alloc::string::String {
        let Gate { tasks, node_messages, proxy, pool, .. } = self;
        let tickets: Vec<_> = pool.tickets().map(|ticket| (ticket.task, ticket.tokens)).collect();
        alloc::format!("{tasks:?} {node_messages} {proxy:?} {} {tickets:?}", pool.free())
    }

    /// Selects a wrong rule.
    #[cfg(test)]
    pub(super) fn mutate(&mut self, mutant: Mutant) {
        let broken = Broken { mutant: Some(mutant) };
        self.broken = broken;
        self.pool.broken = broken;
        self.proxy.broken = broken;
        self.tasks.iter_mut().for_each(|state| state.throttle.broken = broken);
    }
}

impl Mechanism {
    /// The settings of its token pool, if it has one.
    pub fn tokens(&self) -> Option<TokenSettings> {
        match self {
            Mechanism::Token(tokens) | Mechanism::ProxyToken(_, tokens) => Some(*tokens),
            Mechanism::Rate { .. } | Mechanism::Proxy(_) => None,
        }
    }

    /// The settings of its proxy, if it has one.
    pub fn proxy(&self) -> Option<ProxySettings> {
        match self {
            Mechanism::Proxy(proxy) | Mechanism::ProxyToken(proxy, _) => Some(*proxy),
            Mechanism::Rate { .. } | Mechanism::Token(_) => None,
        }
    }
}
