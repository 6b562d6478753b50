//! Exact tests of the calculators and of the gate. `world` has random worlds and the search of a small one, `steps` the
//! proxy with deaths between any two steps of a server, `lines` the pool without a keeper.

extern crate std;

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::mutant::Mutant;
use super::*;
use crate::time::Instant;

mod lines;
mod steps;
mod token_table;
mod world;

/// The result of a world: what is wrong with it.
type Rule<T> = Result<T, String>;

/// Ends a world if a rule does not hold.
macro_rules! rule {
    ($holds:expr, $($reason:tt)*) => {
        if !$holds {
            return Err(format!($($reason)*));
        }
    };
}
use rule;

/// Records what a gate does.
#[derive(Default)]
struct Recorder {
    actions: Vec<String>,
}

impl GateDriver for Recorder {
    fn inject(&mut self, server: Task, messages: &[Descriptor], tokens: u32) {
        let numbers: Vec<u32> = messages.iter().map(|message| message.number).collect();
        self.actions.push(format!("{} injects {numbers:?}, {tokens} tokens", server.0));
    }

    fn resume(&mut self, task: Task) {
        self.actions.push(format!("{} resumes", task.0));
    }
}

/// A gate with the actions of its last event.
struct Tested {
    gate: Gate,
    recorder: Recorder,
}

impl Tested {
    fn new(tasks: u32, mechanism: Mechanism, policer: Option<Thresholds>) -> Tested {
        let gate = Gate::new(GateSettings { tasks, mechanism, policer });
        Tested { gate, recorder: Recorder::default() }
    }

    fn at(&mut self, ns: u64, origin: u32, number: u32, bytes: u32) -> Requested {
        let descriptor = Descriptor { origin: Task(origin), host: 1, bytes, number };
        self.gate.request(Instant(ns), descriptor, &mut self.recorder)
    }

    fn actions(&mut self) -> Vec<String> {
        core::mem::take(&mut self.recorder.actions)
    }

    fn completed(&mut self, owner: u32, tokens: u32) -> Vec<String> {
        self.gate.completed(Task(owner), tokens, &mut self.recorder);
        self.actions()
    }

    fn serve(&mut self, task: u32) -> Serving {
        self.gate.serve(Task(task), &mut self.recorder)
    }

    fn lost(&mut self, task: u32) -> Vec<String> {
        self.gate.lost(Task(task), &mut self.recorder);
        self.actions()
    }
}

fn tokens(tokens: u32, cost: TokenCost) -> Mechanism {
    Mechanism::Token(TokenSettings { tokens, cost })
}

const KIB: TokenCost = TokenCost::BySize { bytes_per_token: 1024 };

fn proxy(pools: u32, combine_bytes: u32, drains: bool) -> ProxySettings {
    ProxySettings { pools, queue_descriptors: 8, combine_bytes, drains }
}

#[test]
fn steps_have_the_value_of_the_last_beginning() {
    let steps = Steps::new(vec![(0, 20), (64, 16), (2048, 8)]).expect("ascending");
    let values = [0, 63, 64, 2047, 2048, u32::MAX].map(|size| *steps.at(size));
    assert_eq!(values, [20, 20, 16, 16, 8, 8]);
    assert_eq!(Steps::<u32>::new(vec![]), Err(StepsError::Count { count: 0 }));
    assert_eq!(Steps::new(vec![(1, 0)]), Err(StepsError::First { begin: 1 }));
    let unordered = Steps::new(vec![(0, 0), (8, 0), (8, 1)]);
    assert_eq!(unordered, Err(StepsError::Order { begin: 8, before: 8 }));
    let many = (0..65).map(|begin| (begin, 0)).collect();
    assert_eq!(Steps::new(many), Err(StepsError::Count { count: 65 }));
}

/// The branches of Algorithm 1, at and below each threshold.
#[test]
fn the_policer_follows_algorithm_1() {
    let task_messages = vec![(0, Steps::constant(40)), (16, Steps::constant(1))];
    let thresholds = Thresholds {
        tasks: Steps::new(vec![(0, 20), (1024, 16)]).expect("ascending"),
        node_messages: Steps::constant(32),
        task_messages: Steps::new(task_messages).expect("ascending"),
    };
    for (active_tasks, node_messages, own_messages, bytes, advice) in [
        (1, 31, 31, 8, Advice::Inject),
        (1, 32, 0, 8, Advice::AvoidRate), // NRCT
        (15, 31, 31, 8, Advice::Inject),
        (16, 31, 1, 8, Advice::AvoidRate), // CRCT of 16 active tasks
        (19, 31, 0, 8, Advice::Inject),
        (20, 0, 0, 8, Advice::AvoidBoth),    // CCT
        (16, 0, 0, 1024, Advice::AvoidBoth), // CCT of larger messages
        (15, 0, 0, 1024, Advice::Inject),
    ] {
        let load = Load { active_tasks, node_messages, own_messages };
        assert_eq!(thresholds.advise(load, bytes), advice, "{load:?}, {bytes} B");
    }
}

#[test]
fn a_throttled_task_waits_until_the_delay_of_its_size_has_passed() {
    let delay_ns = Steps::new(vec![(0, 500), (1024, 2000)]).expect("ascending");
    let mut tested = Tested::new(2, Mechanism::Rate { delay_ns }, None);
    assert_eq!(tested.at(0, 0, 1, 8), Requested::Injected);
    assert_eq!(tested.at(499, 0, 2, 8), Requested::Waits);
    assert_eq!(tested.at(499, 1, 3, 8), Requested::Injected); // it does not see the other task
    assert_eq!(tested.gate.next_deadline(), Some(Instant(500)));
    tested.actions();
    tested.gate.expired(Instant(500), &mut tested.recorder);
    assert_eq!(tested.actions(), ["0 injects [2], 0 tokens", "0 resumes"]);
    assert_eq!(tested.gate.next_deadline(), None);
    assert_eq!(tested.at(1000, 0, 4, 1024), Requested::Waits);
    assert_eq!(tested.gate.next_deadline(), Some(Instant(2500)));
}

#[test]
fn refused_tasks_get_tokens_in_the_order_of_their_tickets() {
    let mut tested = Tested::new(4, tokens(3, KIB), None);
    assert_eq!(tested.at(0, 0, 1, 2048), Requested::Injected);
    assert_eq!(tested.at(0, 1, 2, 4096), Requested::Waits); // takes all three
    assert_eq!(tested.at(0, 2, 3, 8), Requested::Waits); // one token is free, but task 1 comes first
    assert_eq!(tested.at(0, 3, 4, 0), Requested::Waits);
    assert_eq!(
        tested.gate.view(),
        GateView { node_messages: 1, active_tasks: 4, free_tokens: 1, tickets: 3 }
    );
    assert_eq!(tested.actions(), ["0 injects [1], 2 tokens"]);
    assert_eq!(tested.completed(0, 2), ["1 injects [2], 3 tokens", "1 resumes"]);
    let both = ["2 injects [3], 1 tokens", "2 resumes", "3 injects [4], 1 tokens", "3 resumes"];
    assert_eq!(tested.completed(1, 3), both);
}

#[test]
fn the_tokens_and_the_ticket_of_a_dead_task_go_to_the_next() {
    let mut tested = Tested::new(3, tokens(1, TokenCost::One), None);
    assert_eq!(tested.at(0, 0, 1, 8), Requested::Injected);
    assert_eq!(tested.at(0, 1, 2, 8), Requested::Waits);
    assert_eq!(tested.at(0, 2, 3, 8), Requested::Waits);
    tested.actions();
    assert_eq!(tested.lost(1), [""; 0]);
    assert_eq!(tested.lost(0), ["2 injects [3], 1 tokens", "2 resumes"]);
    assert_eq!(tested.completed(0, 1), [""; 0]); // of a dead task: it has no tokens any more
    assert_eq!(
        tested.gate.view(),
        GateView { node_messages: 1, active_tasks: 1, free_tokens: 0, tickets: 0 }
    );
}

#[test]
fn a_server_takes_one_message_of_each_queue_in_turn_beginning_with_its_own() {
    let mut tested = Tested::new(4, Mechanism::Proxy(proxy(2, 0, false)), None);
    for (number, origin) in [(0, 1), (1, 0), (2, 0), (3, 1), (4, 2)] {
        assert_eq!(tested.at(0, origin, number, 8), Requested::Queued);
    }
    while tested.serve(1) == Serving::Injected {
        assert_eq!(tested.serve(0), Serving::Idle); // task 1 serves
    }
    let served = [0, 1, 3, 2].map(|number| format!("1 injects [{number}], 0 tokens"));
    assert_eq!(tested.actions(), served);
    assert_eq!(tested.serve(3), Serving::Injected); // the other pool
    assert_eq!(tested.actions(), ["3 injects [4], 0 tokens"]);
    assert_eq!(tested.at(0, 0, 5, 8), Requested::Queued);
    assert_eq!(tested.serve(0), Serving::Injected); // task 1 has given the token back
}

#[test]
fn a_draining_server_empties_a_queue_before_the_next() {
    let mut tested = Tested::new(2, Mechanism::Proxy(proxy(1, 0, true)), None);
    for (number, origin) in [(0, 1), (1, 0), (2, 0), (3, 1)] {
        tested.at(0, origin, number, 8);
    }
    while tested.serve(0) == Serving::Injected {}
    let served = [1, 2, 0, 3].map(|number| format!("0 injects [{number}], 0 tokens"));
    assert_eq!(tested.actions(), served);
}

#[test]
fn small_messages_to_one_host_leave_together_and_in_order() {
    let mut proxy = Proxy::new(proxy(1, 64, false), 2);
    for (number, origin, host, bytes) in
        [(0, 0, 1, 16), (1, 0, 1, 16), (2, 0, 2, 16), (3, 0, 1, 16), (4, 1, 1, 32), (5, 1, 1, 16)]
    {
        assert!(proxy.enqueue(Descriptor { origin: Task(origin), host, bytes, number }));
    }
    assert!(proxy.try_serve(Task(0)));
    let mut next = || {
        let numbers: Vec<u32> = proxy.claim(Task(0)).iter().map(|it| it.number).collect();
        proxy.injected(Task(0));
        numbers
    };
    // 0, 1 and 4 have 64 bytes. 3 may not overtake 2, which goes to another host.
    assert_eq!([next(), next(), next(), next(), next()], [vec![0, 1, 4], vec![5], vec![2], vec![3], vec![]]);
}

#[test]
fn a_server_that_waits_for_tokens_leaves_the_batch_to_the_next_when_it_dies() {
    let settings = TokenSettings { tokens: 1, cost: TokenCost::One };
    let mut tested = Tested::new(3, Mechanism::ProxyToken(proxy(1, 0, false), settings), None);
    for (number, origin) in [(0, 0), (1, 1), (2, 2)] {
        assert_eq!(tested.at(0, origin, number, 8), Requested::Queued);
    }
    assert_eq!(tested.serve(0), Serving::Injected);
    assert_eq!(tested.serve(0), Serving::Waits);
    assert_eq!(tested.actions(), ["0 injects [0], 1 tokens"]);
    assert_eq!(tested.lost(0), [""; 0]); // the token of message 0 is free
    assert_eq!(tested.serve(2), Serving::Injected); // its own queue first
    assert_eq!(tested.serve(2), Serving::Waits);
    assert_eq!(tested.actions(), ["2 injects [2], 1 tokens"]);
    // The token is that of the message's task, not of the server.
    assert_eq!(tested.completed(2, 1), ["2 injects [1], 1 tokens", "2 resumes"]);
    assert_eq!(tested.gate.pool().held(Task(1)), 1);
}

#[test]
fn a_full_queue_takes_nothing_and_a_message_below_the_thresholds_does_not_overtake_it() {
    let few = Thresholds {
        tasks: Steps::constant(2),
        node_messages: Steps::constant(8),
        task_messages: Steps::constant(Steps::constant(8)),
    };
    let mut tested = Tested::new(2, Mechanism::Proxy(proxy(1, 0, false)), Some(few));
    assert_eq!(tested.at(0, 0, 0, 8), Requested::Injected);
    for number in 1..=8 {
        assert_eq!(tested.at(0, 1, number, 8), Requested::Queued); // two tasks are active
    }
    assert_eq!(tested.at(0, 1, 9, 8), Requested::Full);
    assert_eq!(tested.completed(0, 0), ["0 injects [0], 0 tokens"]); // so far, and nothing more
    assert_eq!(tested.gate.view().active_tasks, 1);
    assert_eq!(tested.serve(0), Serving::Injected);
    assert_eq!(tested.at(0, 1, 9, 8), Requested::Queued); // below the thresholds now, but behind the others
}

#[test]
fn a_message_below_the_thresholds_takes_the_tokens_that_are_free() {
    let thresholds = Thresholds {
        tasks: Steps::constant(3),
        node_messages: Steps::constant(3),
        task_messages: Steps::constant(Steps::constant(3)),
    };
    let mut tested = Tested::new(2, tokens(2, TokenCost::One), Some(thresholds));
    assert_eq!([0, 1, 2].map(|number| tested.at(0, 0, number, 8)), [Requested::Injected; 3]);
    assert_eq!(tested.at(0, 1, 3, 8), Requested::Waits); // NRCT
    let injected = ["0 injects [0], 1 tokens", "0 injects [1], 1 tokens", "0 injects [2], 0 tokens"];
    assert_eq!(tested.actions(), injected);
    assert_eq!(tested.completed(0, 0), [""; 0]);
    assert_eq!(tested.completed(0, 1), ["1 injects [3], 1 tokens", "1 resumes"]);
}

#[test]
fn every_mutant_breaks_a_rule_of_a_world() {
    for mutant in Mutant::ALL {
        assert!(world::detects(mutant) || steps::detects(mutant), "{mutant:?} is not detected");
    }
}
