//! One step of a processor: runs the program and performs its calls, or retrieves packets.

use weir_proto::{
    Command, Event, MessageCopy, MultiSendCommand, Pattern, ReceiveCommand, Request, SendCommand, SendLevel,
    Space,
};

use super::super::Record;
use super::{DeferredWork, Phase, Post, RankState, StepContext, StepResult};
use crate::program::{self, Call, Handle, OffloadCall, StartedOperation, Status};
use crate::{Picoseconds, TIME_LIMIT};

/// Bound of calls in one step. It catches a program that never waits.
const MAX_CALLS_PER_STEP: u32 = 4096;

/// Bound of trains in one step. Waiting trains take memory, and there may be a million ranks.
const MAX_TRAINS_PER_STEP: usize = 32;

impl RankState {
    /// Retrieves a packet, or performs calls and runs the program, as far as no other rank has influence. A
    /// running program retrieves nothing, so arrivals wait in any case. [`RankState::packet_goes_first`] is
    /// the exception.
    pub fn step(&mut self, now: Picoseconds, context: &mut StepContext<'_>) -> StepResult {
        if self.step_at != Some(now) {
            return StepResult::default(); // an earlier step replaced this one
        }
        self.step_at = None;
        if self.held || self.crashed {
            return StepResult::default();
        }
        if self.driver.free_at > now {
            return self.step_again_at(self.driver.free_at, false);
        }
        self.driver.free_at = now;
        let mut ended = false;
        for _ in 0..MAX_CALLS_PER_STEP {
            if self.driver.phase == Phase::Running && !self.returned && self.driver.shared.has_completed() {
                // The program may make calls that go before waiting ones.
                self.returned = program::run(&mut self.program);
            }
            match self.driver.phase {
                Phase::Running => match self.driver.shared.next_call(context.send_from > now) {
                    Some(call) if call.sends() && context.send_from > now => {
                        self.driver.shared.postpone(call);
                        self.postponed = true;
                        self.serve(context);
                    }
                    Some(call) if self.packet_goes_first(&call, context) => {
                        self.driver.shared.postpone(call);
                        self.serve(context);
                    }
                    Some(call) => {
                        self.postponed = false;
                        self.perform_call(call, context);
                    }
                    None if self.returned || program::run(&mut self.program) => {
                        self.returned = true;
                        if !self.driver.shared.has_calls() {
                            self.driver.phase = Phase::Ended(self.driver.free_at);
                            ended = true;
                        }
                    }
                    // The program waits. The next steps perform the calls that it made before.
                    None if self.driver.shared.has_calls() => {}
                    None => self.driver.phase = Phase::Waiting,
                },
                Phase::Waiting | Phase::Ended(_) => self.serve(context),
            }
            if !self.can_continue(now, context) {
                break;
            }
        }
        let step_at = match self.driver.phase {
            Phase::Running if self.postponed => {
                let seen = self.next_at().map(|at| context.cost.seen_ps(self.driver.free_at, at));
                Some(seen.map_or(context.send_from, |at| at.min(context.send_from)).max(self.driver.free_at))
            }
            Phase::Running => Some(self.driver.free_at),
            _ if self.has_due_notice() => Some(self.driver.free_at),
            _ => self.serves_at(context.cost),
        };
        match step_at {
            Some(at) => self.step_again_at(at, ended),
            None => StepResult { step_at: None, ended },
        }
    }

    /// Whether the program can continue at `free_at` in this step.
    fn can_continue(&self, now: Picoseconds, context: &StepContext<'_>) -> bool {
        let DeferredWork { injections, gets, posted, own_words, attaches, readings, .. } = &*context.deferred;
        // The world asks the network for gets, other ranks for their slots, and NICs for words, in order of time.
        let asked = gets.len() + posted.len() + own_words.len() + readings.len();
        if self.driver.phase != Phase::Running || asked > 0 {
            return false;
        }
        // Hardware events and faults come at any time.
        if self.postponed || context.posted_buffers.is_some() || context.may_lose {
            return false;
        }
        // With `wait_any`, a packet that arrives meanwhile may come first.
        if self.driver.free_at > now && self.driver.shared.uses_wait_any() {
            return false;
        }
        // An injection may hold the processor, and a sender may find credits that arrived meanwhile.
        if context.sends_never_wait {
            return injections.len() < MAX_TRAINS_PER_STEP;
        }
        injections.is_empty() && attaches.is_empty() && !self.driver.shared.sends_next()
    }

    pub(super) fn step_again_at(&mut self, at: Picoseconds, ended: bool) -> StepResult {
        self.step_at = Some(at);
        StepResult { step_at: Some(at), ended }
    }

    /// Whether a packet is retrieved before `call` is performed. With `wait_any`, the older one goes first. A
    /// message is as old as its send call, a call as old as the start of what allowed it. LogGOPSim does the
    /// same. A program that waits for chosen operations retrieves nothing until it waits again.
    #[inline]
    fn packet_goes_first(&self, call: &Call, context: &StepContext<'_>) -> bool {
        let Some(since) = self.driver.shared.ready_since() else { return false };
        let takes_time = call.sends() || matches!(call, Call::Compute { .. });
        takes_time && self.next_called_at(context).is_some_and(|called_at| called_at < since)
    }

    fn perform_call(&mut self, call: Call, context: &mut StepContext<'_>) {
        let cost = context.cost;
        self.driver.since = self.driver.free_at;
        match call {
            Call::Send { handle, to, tag, bytes } => {
                self.driver.called_at = self.driver.free_at;
                let started = StartedOperation { tag, bytes, called_at: self.driver.called_at };
                let request = self.begin(handle, started);
                self.driver.free_at += cost.send_call_ps + self.jitter.draw_ps(cost.call_jitter_ps);
                self.sent_at = self.driver.free_at;
                // For the latency of the message, and for the checks.
                let data = Some(match &mut context.checks {
                    Some(checks) => {
                        checks.posted(self.driver.rank, to, tag, bytes, self.driver.called_at).into()
                    }
                    None => self.driver.called_at,
                });
                let (to, space, level) = (self.driver.peer(to), Space::Tagged, SendLevel::Buffered);
                let send = SendCommand { request, to, space, tag, data, bytes, level };
                self.handle(Event::Posted(Command::Send(send)), context);
            }
            Call::Receive { handle, from, tag, bytes } => {
                let request = self.begin(
                    handle,
                    StartedOperation { called_at: self.driver.free_at, ..StartedOperation::default() },
                );
                self.driver.free_at += cost.receive_call_ps + self.jitter.draw_ps(cost.call_jitter_ps);
                let from = from.map(|from| self.driver.peer(from));
                let pattern = Pattern { space: Space::Tagged, from, tag, ignore: 0 };
                let receive = ReceiveCommand { request, pattern, capacity_bytes: bytes, multi: None };
                self.handle(Event::Posted(Command::Receive(receive)), context);
            }
            Call::Compute { ps, handle } => {
                let ps = ps.saturating_mul(u64::from(context.percent)) / 100;
                self.driver.free_at = self.driver.free_at.saturating_add(ps).min(TIME_LIMIT);
                if let Some(handle) = handle {
                    self.driver.shared.complete_since(handle, Status::default(), self.driver.since);
                }
            }
            Call::Clock { handle } => {
                let status = Status { bytes: self.driver.free_at, ..Status::default() };
                self.driver.shared.complete_since(handle, status, self.driver.since);
            }
            Call::Offload { handle } => {
                let call = self.driver.shared.take_offload_call(handle);
                self.perform_offload_call(handle, call, context);
            }
            Call::Credits { handle, peer } => context.deferred.readings.push((handle, peer)),
            Call::Record { name, index, value } => {
                context.records.push(Record {
                    at: self.driver.free_at,
                    rank: self.driver.rank,
                    name,
                    index,
                    value,
                });
            }
        }
    }

    fn perform_offload_call(&mut self, handle: Handle, call: OffloadCall, context: &mut StepContext<'_>) {
        if let OffloadCall::MultiSend { copies, tag, bytes } = call {
            return self.multi_send(copies, tag, bytes, context);
        }
        let started = StartedOperation { called_at: self.driver.free_at, ..StartedOperation::default() };
        let request = self.begin(handle, started);
        if let OffloadCall::OwnWord { .. } | OffloadCall::WatchWord { .. } = call {
            return context.deferred.own_words.push(Post { request, call });
        }
        let cost = context.cost;
        self.driver.free_at += cost.send_call_ps + self.jitter.draw_ps(cost.call_jitter_ps);
        self.sent_at = self.driver.free_at;
        self.post_offloaded(Post { request, call }, context);
    }

    /// Sends a message to several ranks.
    fn multi_send(
        &mut self,
        copies: Vec<(u32, Handle)>,
        tag: u64,
        bytes: u64,
        context: &mut StepContext<'_>,
    ) {
        let called_at = self.driver.free_at;
        self.driver.called_at = called_at;
        self.driver.free_at += context.cost.send_call_ps + self.jitter.draw_ps(context.cost.call_jitter_ps);
        self.sent_at = self.driver.free_at;
        let mut list = Vec::new();
        for (to, handle) in copies {
            let request = self.begin(handle, StartedOperation { tag, bytes, called_at });
            let data = Some(match &mut context.checks {
                Some(checks) => checks.posted(self.driver.rank, to, tag, bytes, called_at).into(),
                None => called_at,
            });
            list.push(MessageCopy { to: self.driver.peer(to), request, data });
        }
        let (space, level) = (Space::Tagged, SendLevel::Buffered);
        let multi_send = MultiSendCommand { copies: &list, space, tag, bytes, level };
        self.handle(Event::PostedCopies(multi_send), context);
    }

    /// Begins an operation of the program. The request has the number of the handle.
    fn begin(&mut self, handle: Handle, started: StartedOperation) -> Request {
        self.driver.open += 1;
        self.driver.shared.begin(handle, started);
        Request(handle.0)
    }
}
