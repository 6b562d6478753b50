//! Tests of the log, counter page and trace of an endpoint, while it works and while it waits.

mod common;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use weir_engine::config::Settings;
use weir_engine::{Engine, Post, stats, trace};
use weir_link::memory::OwnedMemory;
use weir_proto::{Pattern, Space};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn record_line(line: &str) {
    LINES.lock().expect("no panic while recording").push(line.to_owned());
}

fn work(engine: &mut Engine, until: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !until() {
        assert!(Instant::now() < deadline, "nothing happens");
        if engine.progress() == 0 {
            engine.pause(); // sleeps: nothing comes
        }
    }
}

#[test]
fn a_stalled_sleeping_sender_reports_the_stall_in_log_page_and_trace() {
    let directory = tempfile::tempdir().expect("a directory");
    let (pages, traces) = (directory.path().join("pages"), directory.path().join("traces"));
    for place in [&pages, &traces] {
        std::fs::create_dir(place).expect("made");
    }
    let settings = Settings {
        scheme: weir_proto::Scheme::Static { piggyback: true },
        shm_dir: directory.path().into(),
        mailbox_slots: 8,
        credit_slots: 1,
        stall_ms: 300,
        close_ms: 200,
        stats_dir: Some(pages.clone()),
        trace_dir: Some(traces.clone()),
        ..Settings::default()
    };
    let open = || Engine::open(&settings, 2, false).expect("a mailbox");
    let (mut sender, mut receiver) = (open(), open());
    sender.on_stall(record_line);
    common::inject(&mut sender, &receiver, 10);
    let began = Instant::now();
    work(&mut sender, || !LINES.lock().expect("no panic while recording").is_empty());
    let waited = began.elapsed();
    assert!((250..1500).contains(&waited.as_millis()), "reported after {waited:?}, FI_WEIR_STALL_MS is 300");
    let line = LINES.lock().expect("no panic while recording")[0].clone();
    let process = format!("process {}", std::process::id());
    assert!(
        line.starts_with(&format!("{process} has waited "))
            && line.contains(&format!(" for credit from {process}")),
        "{line}"
    );
    // With a quota of 4 slots, 4 messages are in the mailbox and 6 wait.
    assert!(
        line.contains(": 6 messages (48 B) behind, 0 of 4 credits left, 0 granted since the start, 4 spent"),
        "{line}"
    );

    let left = stats::read_dir(&pages).expect("a directory").endpoints;
    let [one, other] = left.as_slice() else { panic!("{left:?}") };
    let (waiting, quiet) =
        if one.identity == sender.address().identity() { (one, other) } else { (other, one) };
    assert_eq!(quiet.identity, receiver.address().identity());
    assert!(quiet.stalls.is_empty() && waiting.stalled_peers == 1 && waiting.backlog == 6);
    let stall = waiting.stalls[0];
    assert_eq!((stall.to, stall.credits, stall.backlog, stall.spent_total), (quiet.identity, 0, 6, Some(4)));

    let pattern = Pattern { space: Space::Tagged, from: None, tag: 7, ignore: 0 };
    let into = OwnedMemory::new(8);
    for _ in 0..10 {
        receiver.receive(Post::default(), pattern, into.view(), None).expect("taken");
    }
    // The receiver grants at 3, 6 and 9, so the goodbye has credit too.
    while sender.counters().credit_packets_received < 3 {
        receiver.progress();
        sender.progress();
    }
    assert!(sender.counters().stalled_ns >= 250_000_000);
    let counted = sender.counters();
    sender.close();
    drop(receiver);
    assert_eq!(LINES.lock().expect("no panic while recording").len(), 1);

    let found = trace::read_dir(&traces).expect("a directory");
    let trace =
        found.traces.iter().find(|trace| trace.subject.identity == waiting.identity).expect("a trace");
    let samples = &trace.samples;
    // One sample a millisecond, but sleeps are longer on a busy machine.
    assert!(samples.len() >= 10, "{} samples in {waited:?}", samples.len());
    let mut sampled_pairs = samples.iter().filter_map(|sample| sample.pairs.values().next());
    assert!(sampled_pairs.clone().any(|pair| pair.credits == Some(0) && pair.backlog == 6));
    // Ten messages and the goodbye were sent.
    let last = sampled_pairs.next_back().expect("the pair was seen");
    assert_eq!((last.backlog, last.spent_total, last.stalled_ns), (0, Some(11), counted.stalled_ns));
    let last = samples.last().expect("a sample");
    assert_eq!(last.counters.stalled_ns, counted.stalled_ns);
    assert!(
        last.gauges.process_bytes > 100_000
            && last.gauges.mailbox_bytes > 0
            && last.gauges.peer_state_bytes > 0
    );
}

#[test]
fn a_receiver_tells_what_it_lends_and_to_whom() {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = Settings {
        scheme: weir_proto::Scheme::Demand,
        shm_dir: directory.path().into(),
        mailbox_slots: 16,
        credit_slots: 1,
        close_ms: 200,
        ..Settings::default()
    };
    let open = || Engine::open(&settings, 2, false).expect("a mailbox");
    let (mut sender, mut receiver) = (open(), open());
    // Two lanes share 16 slots. A sender begins with two of them, so eight of its messages wait.
    common::inject(&mut sender, &receiver, 10);
    let deadline = Instant::now() + Duration::from_secs(10);
    while receiver.counters().packets_received < 10 {
        assert!(Instant::now() < deadline, "messages are missing");
        receiver.progress();
        sender.progress();
    }
    let state = receiver.measure();
    let lending = state.lending.expect("the scheme lends");
    assert_eq!((lending.region_slots, lending.waiting_senders, lending.demands_queued), (16, 0, 0));
    assert!(lending.lent_slots >= 1 && lending.lent_slots <= 10, "{lending:?}");
    let [loan] = state.loans.as_slice() else { panic!("{:?}", state.loans) };
    assert_eq!((loan.from, loan.demand, loan.ahead), (sender.address().identity(), 0, None));
    assert_eq!(loan.held, loan.idle, "all that it has sent is retrieved");
    let of_receiver = sender.measure().loans;
    assert!(
        of_receiver.iter().all(|loan| loan.held == loan.idle),
        "it has sent only credits: {of_receiver:?}"
    );
}
