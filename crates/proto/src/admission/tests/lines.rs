//! Tests of the token pool without a keeper.

use alloc::vec::Vec;

use crate::admission::{
    Allowance, FAR_SHARE, HOLD_NS, LineSettings, LineTicket, Task, TaskLine, active_tasks, request_tokens,
};
use crate::time::Instant;

const US: u64 = 1000;

fn settings(tokens: u32, look_ns: u64) -> LineSettings {
    LineSettings { tokens, look_ns, single_look_ns: 0 }
}

/// Tasks that take steps in any order. A task that has died is never asked again, and its line stays as it was.
struct Node {
    settings: LineSettings,
    now: Instant,
    lines: Vec<TaskLine>,
}

impl Node {
    fn new(tokens: u32, tasks: usize) -> Node {
        let lines = alloc::vec![TaskLine::default(); tasks];
        Node { settings: settings(tokens, 0), now: Instant(100 * HOLD_NS), lines }
    }

    fn after(&mut self, ns: u64) -> &mut Node {
        self.now = self.now.plus_ns(ns);
        self
    }

    fn ask(&self, task: usize, tokens: u32) -> Option<Allowance> {
        let others = self.lines.iter().enumerate().filter(|(other, _)| *other != task);
        let others = others.map(|(other, line)| (Task(other as u32), *line));
        request_tokens(&self.settings, self.now, (Task(task as u32), &self.lines[task]), others, tokens)
    }

    /// Asks and does what the answer says. Returns whether the message has passed.
    fn send(&mut self, task: usize, tokens: u32) -> bool {
        let (now, passes) = (self.now, self.ask(task, tokens).is_some());
        let line = &mut self.lines[task];
        if passes {
            (line.held, line.changed) = (line.held + tokens.min(self.settings.tokens), now);
            line.ticket = None;
        } else {
            line.ticket = Some(LineTicket { since: line.ticket.map_or(now, |it| it.since), looked: now });
        }
        passes
    }

    fn complete(&mut self, task: usize, tokens: u32) {
        let line = &mut self.lines[task];
        (line.held, line.changed) = (line.held - tokens, self.now);
    }

    fn held(&self) -> u32 {
        self.lines.iter().map(|line| line.held_at(self.now)).sum()
    }
}

#[test]
fn tickets_pass_in_the_order_of_their_times() {
    let mut node = Node::new(2, 4);
    assert!(node.send(0, 2));
    assert!(!node.after(US).send(3, 2));
    assert!(!node.after(US).send(1, 1) && !node.send(2, 1), "both draw a ticket at the same time");
    node.complete(0, 1);
    assert!(!node.after(US).send(1, 1), "one is free, but the first ticket needs two");
    node.complete(0, 1);
    assert!(!node.after(US).send(1, 1) && node.send(3, 2));
    node.complete(3, 2);
    assert!(!node.after(US).send(2, 1), "the lower number comes first");
    assert!(!node.send(0, 1), "who has no ticket comes last");
    assert!(node.send(1, 1) && node.send(2, 1));
}

#[test]
fn a_message_that_takes_more_tokens_than_there_are_takes_all() {
    let mut node = Node::new(3, 2);
    assert!(node.send(0, 1));
    assert!(!node.send(1, 9));
    node.complete(0, 1);
    assert!(node.send(1, 9));
    assert_eq!(node.held(), 3);
    assert!(!node.send(0, 1));
}

#[test]
fn tokens_and_ticket_of_a_task_that_stops_at_any_step_are_void_after_a_while() {
    // The steps of a message: it draws a ticket, passes, completes. Task 0 stops after so many of them.
    for steps in 0..=3 {
        let mut node = Node::new(1, 3);
        assert!(node.send(2, 1));
        let _ = steps > 0 && node.after(US).send(0, 1);
        node.after(US).complete(2, 1);
        assert_eq!(steps > 1 && node.send(0, 1), steps > 1);
        if steps > 2 {
            node.complete(0, 1);
        }
        let is_free_at_once = [0, 3].contains(&steps);
        assert_eq!(node.after(US).send(1, 1), is_free_at_once, "{steps} steps");
        assert!(is_free_at_once || !node.after(HOLD_NS - 10 * US).send(1, 1), "{steps} steps: too early");
        assert!(is_free_at_once || node.after(10 * US).send(1, 1), "{steps} steps");
    }
}

#[test]
fn a_task_that_looks_again_after_a_while_has_its_old_place() {
    let mut node = Node::new(1, 3);
    assert!(node.send(0, 1));
    assert!(!node.after(US).send(1, 1));
    assert!(!node.after(HOLD_NS / 2).send(2, 1));
    node.after(2 * HOLD_NS).complete(0, 0); // task 1 computes meanwhile
    assert!(!node.send(2, 1) && !node.send(1, 1), "task 0 has the token");
    node.complete(0, 1);
    assert!(!node.send(2, 1) && node.send(1, 1));
}

#[test]
fn tasks_are_active_while_they_have_tokens_wait_or_have_done_so_lately() {
    let mut node = Node::new(1, 4);
    let active = |node: &Node, task: usize| {
        let lines = node.lines.iter().enumerate().filter(|(other, _)| *other != task);
        active_tasks(node.now, lines.map(|(other, line)| (Task(other as u32), *line)))
    };
    assert_eq!(active(&node, 0), 1, "the task that asks, although it has shown nothing");
    assert!(node.send(0, 1) && !node.after(US).send(1, 1));
    assert_eq!([0, 1, 2].map(|task| active(&node, task)), [2, 2, 3]);
    node.complete(0, 1);
    assert_eq!(active(&node, 2), 3, "it has just completed a message");
    node.after(HOLD_NS - 2 * US);
    assert_eq!(active(&node, 2), 3);
    node.after(2 * US);
    assert_eq!(active(&node, 2), 1);
}

#[test]
fn an_allowance_is_a_share_of_what_is_free_and_ends() {
    let mut node = Node { settings: settings(64, 50 * US), ..Node::new(64, 4) };
    let mut alone = node.ask(0, 1).expect("nobody holds anything");
    assert!(alone.covers(node.now, 0, 64) && !alone.covers(node.now, 0, 65));
    alone.took(60);
    assert!(alone.covers(node.now, 60, 4) && !alone.covers(node.now, 60, 5));
    assert!(!alone.covers(node.now.plus_ns(50 * US), 0, 1), "it is time to look");
    (1..4).for_each(|task| assert!(node.send(task, 8)));
    let share = node.ask(0, 1).expect("40 are free");
    assert!(share.covers(node.now, 0, 10) && !share.covers(node.now, 0, 11));
    assert!(node.send(1, 39));
    let last = node.ask(0, 1).expect("one is free");
    assert!(last.covers(node.now, 0, 1) && !last.covers(node.now, 0, 2));
    assert!(!Allowance::default().covers(node.now, 0, 0));
}

#[test]
fn a_task_that_holds_nothing_takes_one_token_without_a_look_while_the_limit_is_far() {
    let singles = LineSettings { single_look_ns: 1000 * US, ..settings(4 * FAR_SHARE, 50 * US) };
    let mut node = Node { settings: singles, ..Node::new(1, 4) };
    let far = node.ask(0, 1).expect("nobody holds anything");
    let later = node.now.plus_ns(999 * US);
    assert!(far.covers(later, 0, 1) && !far.covers(later, 0, 2) && !far.covers(later, 1, 1));
    assert!(!far.covers(node.now.plus_ns(1000 * US), 0, 1), "it is time to look");
    // Others that hold nothing count too, if they have sent lately: they may take one as well.
    (1..4).for_each(|task| assert!(node.send(task, 1)));
    (1..4).for_each(|task| node.complete(task, 1));
    assert!(node.ask(0, 1).expect("all are free").covers(later, 0, 1));
    assert!(node.send(1, 1));
    let near = node.ask(0, 1).expect("all but one are free");
    assert!(near.covers(node.now, 0, 10) && !near.covers(later, 0, 1));
}

/// Tasks that look before each message, or take one at a time without a look.
#[test]
fn random_worlds_in_which_tasks_take_one_without_a_look_exceed_the_limit_by_one_in_so_many() {
    let (mut without_look, mut most_beyond) = (0, 0);
    for seed in 0..300u64 {
        let mut draw = draws(seed);
        let (tasks, tokens) = (2 + draw(12) as usize, FAR_SHARE + draw(8 * u64::from(FAR_SHARE)) as u32);
        let singles = LineSettings { single_look_ns: 1000 * US, ..settings(tokens, 0) };
        let mut node = Node { settings: singles, ..Node::new(1, tasks) };
        let mut allowances = alloc::vec![Allowance::default(); tasks];
        // By turns most tasks send one message at a time, and one takes as much as it gets.
        let is_greedy = |task: usize, steps: u32| task == (steps / 500) as usize % tasks;
        for steps in 0..3000 {
            node.after(draw(10) * US);
            let task = draw(tasks as u64) as usize;
            let (now, held) = (node.now, node.lines[task].held);
            if held > 0 && draw(100) < 30 && !is_greedy(task, steps) {
                node.complete(task, held);
            } else if allowances[task].covers(now, held, 1) {
                allowances[task].took(1);
                (node.lines[task].held, node.lines[task].changed) = (1, now);
                without_look += 1;
            } else if held == 0 || is_greedy(task, steps) {
                let wanted = if is_greedy(task, steps) { 1 + draw(u64::from(tokens)) as u32 } else { 1 };
                allowances[task] = node.ask(task, wanted).unwrap_or_default();
                node.send(task, wanted);
            }
            let beyond = node.held().saturating_sub(tokens);
            assert!(beyond <= tokens / FAR_SHARE, "seed {seed}: {beyond} beyond {tokens}");
            most_beyond = most_beyond.max(beyond);
        }
    }
    assert!(without_look > 1000 && most_beyond > 0, "{without_look}, {most_beyond}");
}

/// Numbers below what is asked for, which follow from the seed.
fn draws(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

/// Random worlds with deaths: the limit holds, no task that lives waits behind a later one, and everybody who lives passes.
#[test]
fn random_worlds_keep_the_limit_and_serve_everybody_who_lives() {
    for seed in 0..300u64 {
        let mut draw = draws(seed);
        let (tasks, tokens) = (2 + draw(6) as usize, 1 + draw(5) as u32);
        let mut node = Node::new(tokens, tasks);
        let mut left = alloc::vec![20u32; tasks];
        let mut is_dead = alloc::vec![false; tasks];
        let mut steps = 0;
        while (0..tasks).any(|task| !is_dead[task] && left[task] > 0) {
            node.after(draw(20) * US);
            let task = draw(tasks as u64) as usize;
            if is_dead[task] {
                continue;
            }
            match draw(100) {
                0 if is_dead.iter().filter(|dead| !**dead).count() > 1 => is_dead[task] = true,
                1..40 if node.lines[task].held > 0 => node.complete(task, 1),
                _ if left[task] > 0 => left[task] -= u32::from(node.send(task, 1 + draw(2) as u32)),
                _ => {}
            }
            assert!(node.held() <= tokens, "seed {seed}: {} of {tokens}", node.held());
            steps += 1;
            assert!(steps < 100_000, "seed {seed}: {left:?} {:?}", node.lines);
        }
    }
}

/// A task is stopped while it holds two tokens, and resumed when others have them.
#[test]
fn a_task_that_resumes_late_exceeds_the_limit_by_its_tokens_and_nobody_passes_until_they_fit() {
    let mut node = Node::new(2, 3);
    assert!(node.send(0, 2));
    assert!(!node.after(HOLD_NS - US).send(1, 2));
    assert!(node.after(US).send(1, 2), "the tokens of task 0 count no more");
    node.complete(0, 1); // it resumes
    assert_eq!(node.held(), 3, "one of its tokens is beyond the limit");
    assert!(!node.after(US).send(0, 1) && !node.after(US).send(2, 1));
    node.complete(1, 1);
    assert!(!node.after(US).send(0, 1) && !node.send(2, 1), "two are held");
    node.complete(0, 1);
    assert!(node.after(US).send(0, 1) && !node.send(2, 1));
    assert_eq!(node.held(), 2);
}

/// Random worlds in which one task at a time is stopped before any step, also between a look and what it takes by that look, and
/// resumed, often when its line counts no more. What counts exceeds the limit by no fresh look, and all tokens together exceed it
/// by at most those of the task that was stopped, which are never more than the limit.
#[test]
fn random_worlds_with_tasks_that_resume_late_exceed_the_limit_by_at_most_their_tokens() {
    let mut most_beyond = 0;
    for seed in 0..300u64 {
        let mut draw = draws(seed);
        let (tasks, tokens) = (2 + draw(6) as usize, 1 + draw(5) as u32);
        let mut node = Node::new(tokens, tasks);
        let mut left = alloc::vec![20u32; tasks];
        // The task that is stopped, until when, and the tokens that it takes then by a look before it was stopped.
        let mut stopped: Option<(usize, Instant, u32)> = None;
        let mut steps = 0;
        while left.iter().any(|&left| left > 0) || stopped.is_some() {
            node.after(draw(20) * US);
            if let Some((late, _, looked_for)) = stopped.filter(|(_, until, _)| node.now >= *until) {
                stopped = None;
                if looked_for > 0 {
                    let line = &mut node.lines[late];
                    (line.held, line.changed, line.ticket) = (line.held + looked_for, node.now, None);
                    left[late] = left[late].saturating_sub(1);
                }
            }
            let task = draw(tasks as u64) as usize;
            if stopped.is_some_and(|(late, ..)| late == task) {
                continue;
            }
            let wants = (1 + draw(2) as u32).min(tokens);
            match draw(100) {
                0..3 if stopped.is_none() => {
                    let looked_for =
                        if left[task] > 0 && node.ask(task, wants).is_some() { wants } else { 0 };
                    let until = node.now.plus_ns(HOLD_NS / 2 + draw(2 * HOLD_NS));
                    stopped = Some((task, until, looked_for));
                }
                3..50 if node.lines[task].held > 0 => node.complete(task, 1),
                _ if left[task] > 0 && node.send(task, wants) => {
                    left[task] -= 1;
                    assert!(
                        node.held() <= tokens,
                        "seed {seed}: it passes beyond the limit of those that count"
                    );
                }
                _ => {}
            }
            let held: u32 = node.lines.iter().map(|line| line.held).sum();
            let beyond = held.saturating_sub(tokens);
            assert!(beyond <= tokens, "seed {seed}: {beyond} beyond {tokens}");
            most_beyond = most_beyond.max(beyond);
            steps += 1;
            assert!(steps < 300_000, "seed {seed}: {left:?} {:?}", node.lines);
        }
    }
    assert!(most_beyond > 0, "no task that resumed was beyond the limit");
}
