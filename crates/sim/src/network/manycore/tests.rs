//! Exact times of the adapter and of what the gate does before it, with round numbers.

use super::*;
use crate::network::TrainId;
use crate::queue::Queue;

const NO_GATE: Admission = Admission {
    delay_ns: 0,
    tokens: 0,
    bytes_per_token: 0,
    servers: 0,
    combine_bytes: 0,
    drains: 0,
    most_ranks: 0,
    most_node_messages: 0,
    most_rank_messages: 0,
    gate_ps: 0,
    serve_ps: 10_000,
};

/// Two hosts with four ranks. A message takes 100 ns and 1 ns for each byte, the way 1000 ns.
const PARAMETERS: Parameters = Parameters {
    ranks_per_node: 4,
    latency_ps: 1_000_000,
    message_ps: 100_000,
    byte_ps: 1000,
    local_ps: 50_000,
    free_ranks: 2,
    rank_miss_permille: 1500,
    free_messages: 3,
    message_miss_permille: 4000,
    admission: NO_GATE,
    switch: None,
};

/// A network with its future events, and what has happened: ns, and what.
struct Tested {
    network: Manycore,
    outputs: Outputs<Event>,
    future: Queue<Event>,
    happened: Vec<(u64, String)>,
    trains: u32,
}

impl Tested {
    fn new(parameters: Parameters) -> Tested {
        let network = Manycore::new(parameters, 8);
        Tested { network, outputs: Outputs::default(), future: Queue::new(), happened: Vec::new(), trains: 0 }
    }

    /// Rank `from` sends at `ns`. Returns whether its processor is held.
    fn send(&mut self, ns: u64, from: u32, to: u32, payload_bytes: u64) -> bool {
        let train = TrainId(self.trains);
        self.trains += 1;
        let injection = Injection { train, from, to, first: 0, packets: 1, payload_bytes, spacing_ps: 0 };
        let hold = self.network.inject(ns * 1000, injection, &mut self.outputs);
        self.collect();
        hold == Hold::UntilReleased
    }

    fn collect(&mut self) {
        for output in self.outputs.take(0, Vec::new()) {
            let what = match output.output {
                Output::Arrived(part) => format!("{} at {}", part.train.0, part.to),
                Output::Released { rank } => format!("{rank} goes on"),
                other => panic!("{other:?}"),
            };
            self.happened.push((output.at / 1000, what));
        }
        for reminder in self.outputs.reminders() {
            self.future.push(reminder.at, reminder.sequence, reminder.event);
        }
        self.outputs.clear_reminders();
    }

    /// Handles the next event, if there is one.
    fn step(&mut self) -> bool {
        let Some((at, sequence, event)) = self.future.pop() else { return false };
        self.outputs.begin(at, sequence);
        self.network.handle(at, event, &mut self.outputs);
        self.collect();
        true
    }

    /// Runs to the end. Returns what has happened, in order of time.
    fn run(mut self) -> Vec<(u64, String)> {
        while self.step() {}
        assert!(self.network.last_posts.is_empty());
        assert!(self.network.ports.iter().all(ports::Ports::is_empty));
        assert!(self.network.adapters.iter().all(|adapter| adapter.outstanding + adapter.injecting == 0));
        self.happened.sort_by_key(|it| it.0);
        self.happened
    }
}

fn named(expected: &[(u64, &str)]) -> Vec<(u64, String)> {
    expected.iter().map(|(at, what)| (*at, (*what).to_owned())).collect()
}

#[test]
fn an_adapter_serves_one_message_after_the_other() {
    let mut tested = Tested::new(PARAMETERS);
    assert!(!tested.send(0, 0, 4, 10));
    assert!(!tested.send(0, 1, 5, 20));
    assert!(!tested.send(0, 4, 0, 10)); // the other host
    assert!(!tested.send(0, 2, 3, 10)); // through memory
    let expected = [(60, "3 at 3"), (1110, "0 at 4"), (1110, "2 at 0"), (1230, "1 at 5")];
    assert_eq!(tested.run(), named(&expected));
}

#[test]
fn many_ranks_and_many_messages_make_messages_longer() {
    let mut tested = Tested::new(PARAMETERS);
    // One rank: 4 are outstanding at the second message, which takes twice as long, and so do the others.
    (0..4).for_each(|_| assert!(!tested.send(0, 0, 4, 100)));
    let expected = [(1200, "0 at 4"), (1600, "1 at 4"), (2000, "2 at 4"), (2400, "3 at 4")];
    assert_eq!(tested.run(), named(&expected));
    let mut tested = Tested::new(PARAMETERS);
    // Three ranks: the second and third message take half as long again.
    (0..3).for_each(|rank| assert!(!tested.send(0, rank, 4, 100)));
    assert_eq!(tested.run(), named(&[(1200, "0 at 4"), (1500, "1 at 4"), (1800, "2 at 4")]));
    let mut tested = Tested::new(PARAMETERS);
    // Three ranks with four messages: a half and as much again, so two and a half times.
    [0, 1, 2, 0].iter().for_each(|&rank| assert!(!tested.send(0, rank, 4, 100)));
    assert_eq!(tested.run()[..3], named(&[(1200, "0 at 4"), (1700, "1 at 4"), (2200, "2 at 4")]));
}

#[test]
fn a_signal_takes_no_time_of_the_adapter_and_does_not_overtake() {
    let mut tested = Tested::new(PARAMETERS);
    tested.send(0, 0, 4, 900);
    tested.send(10, 0, 4, 0); // behind the message
    tested.send(10, 0, 5, 0);
    let expected = [(1010, "2 at 5"), (2000, "0 at 4"), (2000, "1 at 4")];
    assert_eq!(tested.run(), named(&expected));
}

#[test]
fn a_rank_without_token_is_held_until_a_message_is_acknowledged() {
    let mut tested = Tested::new(Parameters { admission: Admission { tokens: 1, ..NO_GATE }, ..PARAMETERS });
    assert!(!tested.send(0, 0, 4, 100));
    assert!(tested.send(0, 1, 5, 100));
    let expected = [(1200, "0 at 4"), (1200, "1 goes on"), (2400, "1 at 5")];
    assert_eq!(tested.run(), named(&expected));
}

#[test]
fn a_rank_waits_for_the_delay_of_rate_control() {
    let mut tested =
        Tested::new(Parameters { admission: Admission { delay_ns: 500, ..NO_GATE }, ..PARAMETERS });
    assert!(!tested.send(0, 0, 4, 100));
    assert!(tested.send(100, 0, 4, 100));
    assert!(!tested.send(100, 1, 4, 100));
    let expected = [(500, "0 goes on"), (1200, "0 at 4"), (1400, "2 at 4"), (1700, "1 at 4")];
    assert_eq!(tested.run(), named(&expected));
}

#[test]
fn one_rank_serves_the_queues_of_all() {
    let admission = Admission { servers: 1, combine_bytes: 0, ..NO_GATE };
    let mut tested = Tested::new(Parameters { admission, ..PARAMETERS });
    assert!(tested.send(0, 0, 4, 100)); // it serves
    assert!(tested.send(0, 1, 5, 100)); // it cannot know yet that another serves
    assert!(tested.send(0, 2, 5, 100));
    let happened = tested.run();
    let arrivals: Vec<_> = happened.iter().filter(|it| it.1.contains("at")).cloned().collect();
    assert_eq!(arrivals, named(&[(1200, "0 at 4"), (1400, "1 at 5"), (1600, "2 at 5")]), "{happened:?}");
    assert_eq!(happened.len(), 6, "{happened:?}");
}

#[test]
fn a_rank_that_waits_for_its_messages_serves_before_others() {
    let admission = Admission { servers: 2, combine_bytes: 0, ..NO_GATE };
    let mut tested = Tested::new(Parameters { admission, ..PARAMETERS });
    assert!(tested.send(0, 0, 4, 900));
    // It takes its message and finds its queue empty. The adapter has the message.
    (0..3).for_each(|_| assert!(tested.step()));
    assert_eq!(tested.network.adapters[0].outstanding, 1);
    assert!(!tested.send(50, 1, 5, 100)); // rank 0 serves it
    assert!(tested.send(50, 2, 5, 100)); // another pool
    (0..4).for_each(|_| assert!(tested.step()));
    assert_eq!(tested.network.adapters[0].injecting, 2, "ranks 0 and 2");
}

#[test]
fn a_server_combines_small_messages_to_one_host() {
    let admission = Admission { servers: 1, combine_bytes: 64, ..NO_GATE };
    let mut tested = Tested::new(Parameters { admission, ..PARAMETERS });
    (0..3).for_each(|rank| _ = tested.send(0, rank, 4 + rank, 10));
    let happened = tested.run();
    let arrivals: Vec<_> = happened.into_iter().filter(|it| it.1.contains("at")).collect();
    // The server takes two more messages, 10 ns each, before all leave together.
    assert_eq!(arrivals, named(&[(1150, "0 at 4"), (1150, "1 at 5"), (1150, "2 at 6")]));
}

#[test]
fn a_server_spends_time_on_each_message_that_it_takes() {
    let happened = |combine_bytes: u32| {
        let admission = Admission { servers: 1, combine_bytes, serve_ps: 2_000_000, ..NO_GATE };
        let mut tested = Tested::new(Parameters { admission, ..PARAMETERS });
        (0..3).for_each(|rank| assert!(tested.send(0, rank, 4 + rank, 10)));
        tested.run()
    };
    let last = |happened: &[(u64, String)]| happened.last().expect("messages arrived").clone();
    // The server goes on when it has taken the third message, after three times 2000 ns in both cases.
    let (alone, together) = (happened(0), happened(64));
    assert_eq!(last(&alone), (6000, String::from("0 goes on")), "{alone:?}");
    assert_eq!(last(&together), (6000, String::from("0 goes on")), "{together:?}");
    let arrivals: Vec<_> = together.iter().filter(|it| it.1.contains("at")).cloned().collect();
    assert_eq!(arrivals, named(&[(5130, "0 at 4"), (5130, "1 at 5"), (5130, "2 at 6")]));
}

/// A queue of two messages of 100 B: 400 bytes with what stands for their headers.
const SWITCHED: Parameters = Parameters {
    free_ranks: 8,
    free_messages: 64,
    switch: Some(Switch { queue_bytes: 400, resend_ps: 10_000_000 }),
    ..PARAMETERS
};

#[test]
fn messages_to_one_host_wait_in_the_queue_of_its_port() {
    // Three hosts: 0 and 2 send to host 1 at once.
    let mut tested = Tested::new(SWITCHED);
    tested.network = Manycore::new(SWITCHED, 12);
    assert!(!tested.send(0, 0, 4, 100));
    assert!(!tested.send(0, 8, 5, 100));
    assert!(!tested.send(0, 1, 8, 100)); // another port
    // At the port at 700, sent at 900 and 1100.
    assert_eq!(tested.run(), named(&[(1400, "0 at 4"), (1600, "2 at 8"), (1600, "1 at 5")]));
}

#[test]
fn a_message_that_does_not_fit_is_sent_again_and_those_behind_it_wait() {
    let mut tested = Tested::new(SWITCHED);
    tested.network = Manycore::new(SWITCHED, 16);
    // Three hosts send to host 0 at once. The queue has room for two.
    assert!(!tested.send(0, 4, 0, 100));
    assert!(!tested.send(0, 8, 1, 100));
    assert!(!tested.send(0, 12, 2, 100));
    assert!(!tested.send(1000, 12, 2, 100)); // overtakes on the way
    assert!(!tested.send(1000, 12, 2, 0)); // a signal behind both
    // The lost message is at its adapter again at 10700, and at the port at 11400.
    let expected =
        [(1400, "0 at 0"), (1600, "1 at 1"), (12_100, "2 at 2"), (12_100, "3 at 2"), (12_100, "4 at 2")];
    while tested.step() {}
    assert_eq!(tested.network.drops(), 1);
    assert_eq!(tested.run(), named(&expected));
}

#[test]
fn tokens_keep_the_queue_of_a_port_from_overflowing() {
    let losses = |tokens: u32| {
        let parameters = Parameters { admission: Admission { tokens, ..NO_GATE }, ..SWITCHED };
        let mut tested = Tested::new(parameters);
        tested.network = Manycore::new(parameters, 12);
        // Two hosts send to host 0: each of their ranks one message.
        (4..12).for_each(|rank| _ = tested.send(0, rank, rank % 4, 100));
        while tested.step() {}
        let losses = tested.network.drops();
        let arrivals = tested.run().into_iter().filter(|it| it.1.contains("at")).count();
        assert_eq!(arrivals, 8);
        losses
    };
    assert_eq!(losses(1), 0, "two hosts with one message each fit");
    assert!(losses(4) > 0);
    assert_eq!(losses(4), losses(0), "as without a gate: a rank has one message");
}
