//! Tests of admission: ranks of a node share the tokens of their network, and messages wait, arrive and keep their order.

#[path = "common/admitted.rs"]
mod admitted;
#[path = "common/exchange.rs"]
mod exchange;
#[path = "common/faults.rs"]
mod faults;

use admitted::{
    GOOD, LIMIT_NS, LOSSY, MICROSECOND, THRESHOLDS, TwoLinks, open, open_helped, open_with_limit, thresholds,
    with,
};
use exchange::{AnyEngine, exchange};
use faults::directory;
use weir_engine::config::{Admission, Settings};
use weir_engine::{Post, SendArguments};
use weir_link::Inspect;
use weir_link::datagram::lossy::Switch;
use weir_link::memory::OwnedMemory;
use weir_proto::{Outcome, Pattern, Peer, SendLevel, Space};

/// Endpoints 0 and 1 are on one node, endpoint 2 is on another. Messages between 0 and 1 take no tokens.
fn exchange_with(admission: Admission) {
    let (node, other_node) = (directory(), directory());
    let switch = Switch::new(1, LOSSY);
    let here = with(&node, admission);
    let engines: Vec<Box<dyn AnyEngine>> = vec![
        Box::new(open(&here, &switch, 1)),
        Box::new(open(&here, &switch, 2)),
        Box::new(open(&with(&other_node, admission), &switch, 3)),
    ];
    exchange(engines, &[(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]);
}

#[test]
fn messages_arrive_in_order_and_whole_with_three_tokens() {
    exchange_with(Admission::Token);
}

#[test]
fn messages_arrive_in_order_and_whole_with_a_delay() {
    exchange_with(Admission::Rate);
}

#[test]
fn messages_arrive_in_order_and_whole_with_thresholds() {
    exchange_with(Admission::Auto);
}

#[test]
fn messages_arrive_in_order_and_whole_through_a_proxy_with_and_without_tokens() {
    exchange_with(Admission::Proxy);
    exchange_with(Admission::ProxyToken);
}

fn send(engine: &mut TwoLinks, to: Peer, payload: &OwnedMemory) {
    let (space, level, memory) = (Space::Tagged, SendLevel::Buffered, payload.view());
    let arguments = SendArguments { to, space, tag: 0, data: None, level, memory, inject: false };
    engine.send(Post::default(), arguments).expect("taken");
}

fn payload_of(number: u8) -> OwnedMemory {
    let payload = OwnedMemory::new(2000);
    payload.view().write(0, &[number; 2000]);
    payload
}

/// Two nodes and the network between them.
struct Nodes {
    switch: Switch,
    directories: [tempfile::TempDir; 2],
}

impl Nodes {
    fn new() -> Nodes {
        Nodes { switch: Switch::new(1, GOOD), directories: [directory(), directory()] }
    }

    fn open(&self, node: usize, admission: Admission, port: u16) -> TwoLinks {
        open(&with(&self.directories[node], admission), &self.switch, port)
    }

    /// A sender whose link has a helper, as in a program, and a receiver. Neither loses the other, however long the sender does
    /// not poll.
    fn open_for_silence(&self, of_sender: &Settings) -> (TwoLinks, TwoLinks) {
        let limit_ns = 1_000_000 * LIMIT_NS;
        let sender = open_helped(of_sender, &self.switch, 1, limit_ns);
        (sender, open_with_limit(&with(&self.directories[1], Admission::Off), &self.switch, 2, limit_ns))
    }

    /// Sends messages of 2000 bytes. Returns what the network of the sender did.
    fn send(&self, sender: &mut TwoLinks, receiver: &mut TwoLinks, messages: u8) -> weir_link::NetworkReport {
        let to = sender.peer(&receiver.address());
        let into: Vec<_> = (0..messages).map(|_| OwnedMemory::new(2000)).collect();
        let from = Some(receiver.peer(&sender.address()));
        for memory in &into {
            let pattern = Pattern { space: Space::Tagged, from, tag: 0, ignore: 0 };
            receiver.receive(Post { context: 1, cookie: 0 }, pattern, memory.view(), None).expect("taken");
        }
        let payloads: Vec<_> = (0..messages).map(payload_of).collect();
        payloads.iter().for_each(|payload| send(sender, to, payload));
        let (mut received, until) = (0, self.switch.now().plus_ns(LIMIT_NS / 2));
        while received < messages {
            assert!(self.switch.now() < until, "{received} of {messages}");
            sender.progress();
            receiver.progress();
            while sender.next_completion().is_some() {}
            while let Some(completion) = receiver.next_completion() {
                assert!(
                    matches!(completion.outcome, Outcome::Received { bytes: 2000, .. }),
                    "{completion:?}"
                );
                received += 1;
            }
        }
        for (number, memory) in (0..).zip(&into) {
            let mut bytes = [0; 2000];
            memory.view().read(0, &mut bytes);
            assert!(bytes == [number; 2000], "message {number}");
        }
        sender.link().network_report().expect("a network")
    }
}

#[test]
fn messages_wait_for_tokens_and_the_report_says_so() {
    let nodes = Nodes::new();
    let (mut a, mut b) = (nodes.open(0, Admission::Token, 1), nodes.open(1, Admission::Token, 2));
    let report = nodes.send(&mut a, &mut b, 50);
    assert!(report.gate_waits >= 10 && report.gate_waited_ns >= 10 * 10 * MICROSECOND, "{report:?}");
    // A packet that asks takes at most the three tokens, others such as a credit packet take more.
    assert!((3..=6).contains(&report.gate_most_held), "{report:?}");
    let report = nodes.send(&mut b, &mut a, 50);
    assert!(report.gate_waits >= 10, "{report:?}");
}

#[test]
fn messages_wait_for_the_tokens_of_the_step_in_force() {
    let nodes = Nodes::new();
    let auto = |word: &str| Settings {
        admission_thresholds: thresholds(word),
        ..with(&nodes.directories[0], Admission::Auto)
    };
    let mut b = nodes.open(1, Admission::Off, 1);
    for (port, (word, step, waits)) in (2..).zip([
        (THRESHOLDS, [3, 1000, 1], true),
        ("udp:1000:1:3,udp:2000:1:9", [9, 2000, 1], true),
        ("udp:1000:1:3,udp:2000:1:0", [0; 3], false),
        ("udp:1000:1:3,udp:2000:2:9", [0; 3], false),
        ("udp:2001:1:3", [0; 3], false),
        ("ofi:1000:1:3", [0; 3], false),
    ]) {
        let mut a = open(&auto(word), &nodes.switch, port);
        let report = nodes.send(&mut a, &mut b, 50);
        assert_eq!([report.gate_tokens, report.gate_step_bytes, report.gate_step_ranks], step, "{word}");
        assert_eq!(report.gate_waits >= 5, waits, "{word}: {report:?}");
        assert!(waits || (report.gate_waits, report.gate_most_held) == (0, 0), "{word}: {report:?}");
        assert!(report.gate_most_held <= step[0], "{word}: {report:?}");
    }
}

#[test]
fn without_admission_nothing_waits_or_is_counted() {
    let nodes = Nodes::new();
    let (mut a, mut b) = (nodes.open(0, Admission::Off, 1), nodes.open(1, Admission::Token, 2));
    let report = nodes.send(&mut a, &mut b, 50);
    assert_eq!((report.gate_waits, report.gate_waited_ns, report.gate_most_held), (0, 0, 0));
}

#[test]
fn a_rank_that_stops_with_tokens_does_not_stop_the_others_of_its_node() {
    let nodes = Nodes::new();
    let (mut a, mut b) = (nodes.open(0, Admission::Token, 1), nodes.open(1, Admission::Off, 2));
    let mut stopped = nodes.open(0, Admission::Token, 3);
    nodes.send(&mut stopped, &mut b, 1);
    let to_b = stopped.peer(&b.address());
    let payloads: Vec<_> = (0..20).map(payload_of).collect();
    payloads.iter().for_each(|payload| send(&mut stopped, to_b, payload));
    let before = nodes.switch.now();
    let report = nodes.send(&mut a, &mut b, 20);
    let longest_ns = 4 * weir_proto::admission::HOLD_NS;
    assert!(nodes.switch.now().since_ns(before) < longest_ns, "it waits once for the tokens of the other");
    assert!(report.gate_waited_ns > 0);
    nodes.switch.cut(3);
    nodes.switch.cut(1);
}

/// Polls until so many messages have come. The helper of their sender needs the processor too.
fn receive_all(receiver: &mut TwoLinks, messages: u8) {
    let (mut received, begun) = (0, std::time::Instant::now());
    while received < messages {
        assert!(begun.elapsed().as_secs() < 50, "{received} of {messages}: nothing happens any more");
        receiver.progress();
        while receiver.next_completion().is_some() {
            received += 1;
        }
        std::thread::yield_now();
    }
}

/// Sends three messages of which those with `injected` are complete at once. The program of the sender never polls again: with
/// Open MPI it may wait in its launcher for what the receiver does then.
fn leave_without_another_call(injected: [bool; 3]) {
    let nodes = Nodes::new();
    // Two delays are shorter than the least polls of a wait, and one is longer than the looks behind it, whatever the load.
    let slow = Settings {
        admission_delay_ns: 50 * MICROSECOND as u32,
        ..with(&nodes.directories[0], Admission::Rate)
    };
    let (mut sender, mut receiver) = nodes.open_for_silence(&slow);
    nodes.send(&mut sender, &mut receiver, 1);
    let (to, from) = (sender.peer(&receiver.address()), receiver.peer(&sender.address()));
    let (payload, into) = (payload_of(1), OwnedMemory::new(2000));
    for inject in injected {
        let (space, level, memory) = (Space::Tagged, SendLevel::Buffered, payload.view());
        let arguments = SendArguments { to, space, tag: 0, data: None, level, memory, inject };
        sender.send(Post::default(), arguments).expect("taken");
        let pattern = Pattern { space, from: Some(from), tag: 0, ignore: 0 };
        receiver.receive(Post::default(), pattern, into.view(), None).expect("taken");
    }
    receive_all(&mut receiver, 3);
    assert!(
        sender.link().network_report().is_some_and(|report| report.gate_waits > 0),
        "nothing was held back"
    );
}

#[test]
fn injected_messages_that_admission_holds_back_leave_without_another_call() {
    leave_without_another_call([true; 3]);
}

/// The program waits for the first two when it has returned from its launcher.
#[test]
fn an_injected_message_behind_incomplete_ones_leaves_without_another_call() {
    leave_without_another_call([false, false, true]);
}

/// The sender, whose helper is a thread, sends so many short messages that are complete at once, and never
/// polls again. All arrive, in order. Returns what its network did.
fn send_short(admission: Admission, messages: u8) -> weir_link::NetworkReport {
    let nodes = Nodes::new();
    let settings = Settings { admission_tokens: 1, ..with(&nodes.directories[0], admission) };
    let (mut sender, mut receiver) = nodes.open_for_silence(&settings);
    nodes.send(&mut sender, &mut receiver, 1);
    let (to, from) = (sender.peer(&receiver.address()), receiver.peer(&sender.address()));
    let before = sender.link().network_report().expect("a network");
    let (from_memory, into) = (OwnedMemory::new(1), OwnedMemory::new(messages.into()));
    for number in 0..messages {
        let pattern = Pattern { space: Space::Tagged, from: Some(from), tag: 0, ignore: 0 };
        let part = into.part(number.into(), 1);
        receiver.receive(Post::default(), pattern, part, None).expect("taken");
    }
    for number in 0..messages {
        from_memory.view().write(0, &[number]);
        let (space, level, memory) = (Space::Tagged, SendLevel::Buffered, from_memory.view());
        let arguments = SendArguments { to, space, tag: 0, data: None, level, memory, inject: true };
        sender.send(Post::default(), arguments).expect("taken");
    }
    receive_all(&mut receiver, messages);
    let mut numbers = vec![0; messages.into()];
    into.view().read(0, &mut numbers);
    assert!(numbers.into_iter().eq(0..messages), "order of the messages");
    let mut report = sender.link().network_report().expect("a network");
    report.bare_datagrams_sent -= before.bare_datagrams_sent;
    report.sent_again -= before.sent_again;
    report.datagrams_sent -= before.datagrams_sent + report.bare_datagrams_sent + report.sent_again;
    report.gate_waits -= before.gate_waits;
    report
}

#[test]
fn short_messages_share_a_token_while_they_wait_and_leave_without_another_call() {
    let report = send_short(Admission::Token, 40);
    assert!(report.gate_waits > 0, "{report:?}");
    assert!(report.datagrams_sent < 10, "they share datagrams: {report:?}");
    assert!(report.gate_most_held <= 3, "{report:?}");
    let report = send_short(Admission::Rate, 40);
    assert!(report.gate_waits > 0 && report.datagrams_sent < 20, "{report:?}");
}
