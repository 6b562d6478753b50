//! Tests of two engines over shared memory in one process: payload, waiting and closing, which tests of the
//! endpoint machine alone cannot show.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use weir_engine::config::Settings;
use weir_engine::{Completion, CompletionSink, Engine, Operation, Post, RemoteArguments, SendArguments};
use weir_link::memory::{OwnedMemory, UserMemory};
use weir_proto::{Growth, Outcome, Pattern, Peer, PeerFault, Scheme, SendLevel, Space};

struct Pair {
    engines: [Engine; 2],
    _directory: tempfile::TempDir,
}

fn pair(change: impl Fn(&mut Settings)) -> Pair {
    let directory = tempfile::tempdir().expect("a directory");
    let mut settings = Settings { shm_dir: directory.path().into(), close_ms: 200, ..Settings::default() };
    change(&mut settings);
    let open = || Engine::open(&settings, 2, false).expect("a mailbox");
    Pair { engines: [open(), open()], _directory: directory }
}

fn bytes(length: usize, seed: u8) -> OwnedMemory {
    let memory = OwnedMemory::new(length);
    let pattern: Vec<u8> = (0..length).map(|i| (i as u8).wrapping_mul(13).wrapping_add(seed)).collect();
    memory.view().write(0, &pattern);
    memory
}

fn contents(memory: &OwnedMemory) -> Vec<u8> {
    let view = memory.view();
    let mut contents = vec![0; view.bytes() as usize];
    view.read(0, &mut contents);
    contents
}

impl Pair {
    fn send(&mut self, from: usize, memory: UserMemory, inject: bool) {
        let address = self.engines[1 - from].address();
        let to = self.engines[from].peer(&address);
        let arguments = SendArguments {
            to,
            space: Space::Tagged,
            tag: 7,
            data: Some(1),
            level: SendLevel::Buffered,
            memory,
            inject,
        };
        self.engines[from].send(Post { context: 1, cookie: 2 }, arguments).expect("taken");
    }

    fn receive(&mut self, at: usize, memory: UserMemory) {
        let pattern = Pattern { space: Space::Tagged, from: None, tag: 7, ignore: 0 };
        self.engines[at].receive(Post { context: 3, cookie: 4 }, pattern, memory, None).expect("taken");
    }

    /// Makes progress on both engines until `at` has a completion.
    fn complete(&mut self, at: usize) -> Completion {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            assert!(Instant::now() < deadline, "nothing completes");
            for engine in &mut self.engines {
                engine.progress();
            }
            if let Some(completion) = self.engines[at].next_completion() {
                return completion;
            }
        }
    }
}

const SCHEMES: [Scheme; 9] = [
    Scheme::Unlimited,
    Scheme::Hardware { rnr_timer_ns: 10_000, rnr_retries: 7 },
    Scheme::Static { piggyback: false },
    Scheme::Static { piggyback: true },
    Scheme::StaticConnection { ecm_threshold: None },
    Scheme::AdaptiveBacklog { growth: Growth::Exponential, ecm_threshold: None },
    Scheme::Dynamic { piggyback: false },
    Scheme::Dynamic { piggyback: true },
    Scheme::Demand,
];

#[test]
fn messages_of_all_sizes_arrive_whole_under_every_scheme_and_with_the_smallest_mailbox() {
    for scheme in SCHEMES {
        for (mailbox_slots, cross_memory) in [(0, true), (0, false), (4, false)] {
            let mut pair = pair(|settings| {
                *settings = Settings { scheme, mailbox_slots, cross_memory, ..settings.clone() };
                settings.credit_slots = if mailbox_slots == 0 { 2 } else { 1 };
            });
            for length in [0, 1, 16, 17, 63, 64, 2048, 8192, 8193, 100_000, 3_000_000] {
                let (from, into) = (bytes(length, 5), OwnedMemory::new(length));
                let posted_first = length % 2 == 0;
                if posted_first {
                    pair.receive(1, into.view());
                }
                pair.send(0, from.view(), false);
                if !posted_first {
                    pair.engines[1].progress();
                    pair.receive(1, into.view());
                }
                let completion = pair.complete(1);
                assert_eq!(completion.operation, Operation::Receive);
                assert!(
                    matches!(completion.outcome, Outcome::Received { bytes, .. } if bytes == length as u64),
                    "{scheme:?} {length}: {completion:?}"
                );
                assert_eq!(contents(&into), contents(&from), "{scheme:?} {length} bytes");
                assert_eq!(pair.complete(0).post, Post { context: 1, cookie: 2 });
            }
        }
    }
}

#[test]
fn an_injected_buffer_is_reusable_on_return() {
    let mut pair = pair(|settings| (settings.mailbox_slots, settings.credit_slots) = (4, 1));
    let mut received = Vec::new();
    for seed in 0..20 {
        let from = bytes(100, seed);
        pair.send(0, from.view(), true);
        from.view().write(0, &[0xff; 100]);
    }
    for _ in 0..20 {
        let into = OwnedMemory::new(100);
        pair.receive(1, into.view());
        pair.complete(1);
        received.push(contents(&into));
    }
    let sent: Vec<_> = (0..20).map(|seed| contents(&bytes(100, seed))).collect();
    assert_eq!(received, sent);
}

#[test]
fn a_delivered_injected_message_waits_in_a_buffer_of_its_own_until_it_is_taken() {
    let mut pair = pair(|settings| settings.unexpected_budget_bytes = 1 << 16);
    for seed in 0..100 {
        pair.send(0, bytes(2048, seed).view(), true); // more than the receiver's budget
        pair.engines.iter_mut().for_each(|engine| while engine.progress() > 0 {});
    }
    while pair.engines[0].next_completion().is_some() {}
    let (from, into) = (bytes(512, 7), OwnedMemory::new(512));
    let to = pair.engines[0].peer(&pair.engines[1].address());
    let (space, level, memory) = (Space::Tagged, SendLevel::Delivered, from.view());
    let send = SendArguments { to, space, tag: 8, data: None, level, memory, inject: true };
    pair.engines[0].send(Post { context: 9, cookie: 0 }, send).expect("taken");
    from.view().write(0, &[0xff; 512]); // the program may reuse its buffer
    for _ in 0..1000 {
        for engine in &mut pair.engines {
            engine.progress();
        }
    }
    assert!(pair.engines[0].next_completion().is_none(), "only the sender has it");
    let pattern = Pattern { space: Space::Tagged, from: None, tag: 8, ignore: 0 };
    pair.engines[1].receive(Post::default(), pattern, into.view(), None).expect("taken");
    assert!(matches!(pair.complete(1).outcome, Outcome::Received { bytes: 512, .. }));
    assert_eq!(contents(&into), contents(&bytes(512, 7)));
    assert_eq!(pair.complete(0).post.context, 9);
}

#[test]
fn closing_gives_up_messages_that_a_living_receiver_does_not_take() {
    let mut pair = pair(|settings| settings.linger = Duration::from_millis(300));
    for seed in 0..100 {
        pair.send(0, bytes(16_000, seed).view(), true); // more than a lane holds
    }
    let began = Instant::now();
    let given_up = pair.engines[0].close().expect("the receiver takes nothing");
    let waited = began.elapsed();
    assert!((Duration::from_millis(300)..Duration::from_secs(20)).contains(&waited), "{waited:?}");
    assert_eq!(given_up.peers.len(), 1);
    assert!((1..100).contains(&given_up.messages()), "{given_up}");
    assert_eq!(given_up.bytes(), given_up.messages() * 16_000);
    assert_eq!(pair.engines[0].close(), None, "it is closed");
}

#[test]
fn closing_waits_while_a_receiver_takes_messages() {
    const MESSAGES: u64 = 20;
    let linger = Duration::from_millis(500);
    let mut pair = pair(|settings| (settings.linger, settings.unexpected_budget_bytes) = (linger, 1 << 16));
    for seed in 0..MESSAGES as u8 + 50 {
        pair.send(0, bytes(2048, seed).view(), true); // more than the receiver's budget
        pair.engines.iter_mut().for_each(|engine| while engine.progress() > 0 {});
    }
    let Pair { engines: [mut closing, mut other], _directory } = pair;
    std::thread::scope(|scope| {
        let closed = scope.spawn(move || closing.close());
        let (began, into) = (Instant::now(), OwnedMemory::new(2048));
        let mut taken = 0;
        while !closed.is_finished() {
            assert!(began.elapsed() < Duration::from_secs(60));
            let pattern = Pattern { space: Space::Tagged, from: None, tag: 7, ignore: 0 };
            other.receive(Post::default(), pattern, into.view(), None).expect("taken");
            std::thread::sleep(linger / 10); // in all, longer than closing waits for one message
            for _ in 0..64 {
                other.progress(); // acknowledgements leave when nothing else happens
            }
            while let Some(completion) = other.next_completion() {
                taken += u64::from(matches!(completion.outcome, Outcome::Received { .. }));
            }
        }
        assert_eq!(closed.join().expect("no panic"), None);
        assert!(taken > MESSAGES && began.elapsed() > linger, "{taken} in {:?}", began.elapsed());
    });
}

#[test]
fn remote_memory_is_read_and_written_small_and_large_with_and_without_cross_memory() {
    for cross_memory in [true, false] {
        let mut pair = pair(|settings| settings.cross_memory = cross_memory);
        let region = bytes(1 << 20, 1);
        pair.engines[1].register_memory(5, region.view(), true, true);
        let address = pair.engines[1].address();
        let peer = pair.engines[0].peer(&address);
        for length in [0, 8, 5000, 500_000] {
            let data = bytes(length, 77);
            let write =
                RemoteArguments { peer, key: 5, offset: 100, memory: data.view(), data: None, inject: false };
            pair.engines[0].write(Post::default(), write).expect("taken");
            assert_eq!(pair.complete(0).outcome, Outcome::Done);
            assert_eq!(contents(&region)[100..100 + length], contents(&data));
            let back = OwnedMemory::new(length);
            let read =
                RemoteArguments { peer, key: 5, offset: 100, memory: back.view(), data: None, inject: false };
            pair.engines[0].read(Post::default(), read).expect("taken");
            assert_eq!(pair.complete(0).outcome, Outcome::Done);
            assert_eq!(contents(&back), contents(&data));
        }
        let outside = OwnedMemory::new(10);
        let memory = outside.view();
        let read = RemoteArguments { peer, key: 5, offset: (1 << 20) - 5, memory, data: None, inject: false };
        pair.engines[0].read(Post::default(), read).expect("taken");
        assert_eq!(pair.complete(0).outcome, Outcome::Refused);
    }
}

#[test]
fn an_endpoint_sends_to_itself() {
    let mut pair = pair(|_| {});
    let own = pair.engines[0].address();
    let to = pair.engines[0].peer(&own);
    for length in [8, 100_000] {
        let (from, into) = (bytes(length, 9), OwnedMemory::new(length));
        pair.receive(0, into.view());
        let (space, level, memory) = (Space::Tagged, SendLevel::Buffered, from.view());
        let send = SendArguments { to, space, tag: 7, data: None, level, memory, inject: false };
        pair.engines[0].send(Post::default(), send).expect("taken");
        pair.complete(0);
        pair.complete(0);
        assert_eq!(contents(&into), contents(&from));
    }
}

#[test]
fn close_serves_announced_messages_and_ends_at_its_timeout() {
    let mut pair = pair(|_| {});
    let (from, into) = (bytes(100_000, 3), OwnedMemory::new(100_000));
    pair.send(0, from.view(), false);
    let [mut closing, mut other] = pair.engines;
    std::thread::scope(|scope| {
        scope.spawn(move || closing.close());
        let pattern = Pattern { space: Space::Tagged, from: None, tag: 7, ignore: 0 };
        other.receive(Post::default(), pattern, into.view(), None).expect("taken");
        let deadline = Instant::now() + Duration::from_secs(10);
        while other.next_completion().is_none() {
            assert!(Instant::now() < deadline);
            other.progress();
        }
    });
    assert_eq!(contents(&into), contents(&from));
}

#[test]
fn a_send_to_a_closed_endpoint_fails() {
    let mut pair = pair(|_| {});
    pair.send(0, bytes(8, 0).view(), true);
    pair.complete(0);
    pair.engines[1].close();
    let large = bytes(100_000, 0);
    pair.send(0, large.view(), false);
    let outcome = pair.complete(0).outcome;
    assert_eq!(outcome, Outcome::Lost { peer: Some(Peer(0)), fault: PeerFault::Closed });
}

#[test]
fn messages_sent_before_close_arrive() {
    for scheme in SCHEMES {
        // All messages leave at once.
        let mut pair = pair(|settings| (settings.scheme, settings.adaptive_start_slots) = (scheme, 256));
        let messages: Vec<_> = (0..5).map(|seed| bytes(3000, seed)).collect();
        for message in &messages {
            pair.send(0, message.view(), true);
        }
        pair.engines[0].progress();
        pair.engines[0].close();
        // The receiver polls for the first time now, when nobody can take its credits.
        for message in &messages {
            let into = OwnedMemory::new(3000);
            pair.receive(1, into.view());
            let completion = pair.complete(1);
            assert!(matches!(completion.outcome, Outcome::Received { bytes: 3000, .. }), "{completion:?}");
            assert_eq!(contents(&into), contents(message));
        }
    }
}

#[test]
fn a_close_does_not_end_receives_from_any_source() {
    for scheme in SCHEMES {
        let mut pair = pair(|settings| settings.scheme = scheme);
        let into = OwnedMemory::new(8);
        pair.send(0, bytes(8, 1).view(), true);
        pair.receive(1, into.view());
        pair.complete(1);
        pair.receive(1, into.view()); // from any source
        pair.engines[0].close();
        let until = Instant::now() + Duration::from_millis(500);
        while Instant::now() < until {
            pair.engines[1].progress();
            pair.engines[1].pause();
            assert!(pair.engines[1].next_completion().is_none(), "{scheme:?}: a receive ended with the peer");
        }
    }
}

/// A pair with hardware flow control and one slot. The first message fills the slot, and `second` is refused. It is not
/// injected, since an injected message would complete by a copy.
fn pair_with_refused_message(rnr_timer_ns: u64, rnr_retries: u8, second: &OwnedMemory) -> Pair {
    let mut pair = pair(|settings| {
        settings.scheme = Scheme::Hardware { rnr_timer_ns, rnr_retries };
        settings.preposted_slots = 1;
    });
    pair.send(0, bytes(8, 1).view(), true);
    pair.send(0, second.view(), false);
    // No progress of the receiver: that would free the slot.
    assert_eq!(pair.engines[0].next_completion().map(|first| first.outcome), Some(Outcome::Done));
    assert!(pair.engines[0].next_completion().is_none());
    assert_eq!(pair.engines[0].counters().rnr_naks, 1);
    pair
}

#[test]
fn operations_between_different_schemes_fail_at_both_ends() {
    let others = SCHEMES.into_iter().filter(|&scheme| scheme != Settings::default().scheme);
    for scheme in others {
        let directory = tempfile::tempdir().expect("a directory");
        let settings = Settings { shm_dir: directory.path().into(), close_ms: 200, ..Settings::default() };
        let open = |settings: &Settings| Engine::open(settings, 2, false).expect("a mailbox");
        let engines = [open(&settings), open(&Settings { scheme, ..settings.clone() })];
        let mut pair = Pair { engines, _directory: directory };
        let (from, into) = (bytes(8, 1), OwnedMemory::new(8));
        let address = pair.engines[0].address();
        let sender = pair.engines[1].peer(&address);
        let pattern = Pattern { space: Space::Tagged, from: Some(sender), tag: 7, ignore: 0 };
        pair.engines[1].receive(Post::default(), pattern, into.view(), None).expect("taken");
        pair.send(0, from.view(), false);
        for at in [0, 1] {
            let lost = Outcome::Lost { peer: Some(Peer(0)), fault: PeerFault::Unreachable };
            assert_eq!(pair.complete(at).outcome, lost, "endpoint {at}, the default and {scheme:?}");
        }
    }
}

#[test]
fn a_connection_fails_after_the_rnr_retries() {
    let second = bytes(8, 2);
    let mut pair = pair_with_refused_message(1_000_000, 3, &second);
    let began = Instant::now();
    let [sender, _] = &mut pair.engines;
    let completion = loop {
        assert!(began.elapsed() < Duration::from_secs(10), "nothing completes");
        if let Some(completion) = sender.next_completion() {
            break completion;
        }
        if sender.progress() == 0 {
            sender.pause();
        }
    };
    assert_eq!(completion.outcome, Outcome::Lost { peer: Some(Peer(0)), fault: PeerFault::NotReady });
    assert!(began.elapsed() >= Duration::from_millis(2), "three timers of 1 ms in {:?}", began.elapsed());
    assert_eq!((sender.counters().rnr_naks, sender.counters().rnr_retries), (4, 3));
}

#[test]
fn injected_messages_that_a_failed_connection_loses_are_reported() {
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let record = |line: &str| LINES.lock().expect("no panic while recording").push(line.to_owned());
    let second = bytes(8, 2);
    let mut pair = pair_with_refused_message(1_000_000, 1, &second);
    pair.engines[0].on_stall(record);
    for length in [8, 0] {
        pair.send(0, bytes(length, 3).view(), true); // waits behind the refused one
    }
    // The two injected messages are complete. The second one shows how the connection ends.
    let outcomes: Vec<_> = (0..3)
        .map(|_| {
            let [sender, _] = &mut pair.engines;
            loop {
                if let Some(completion) = sender.next_completion() {
                    return completion.outcome;
                }
                sender.progress();
            }
        })
        .collect();
    let lost = Outcome::Lost { peer: Some(Peer(0)), fault: PeerFault::NotReady };
    assert_eq!(outcomes, [Outcome::Done, Outcome::Done, lost]);
    let process = format!("process {}", std::process::id());
    assert_eq!(
        *LINES.lock().expect("no panic while recording"),
        [format!(
            "{process} has lost 2 messages to {process} whose sends are complete: \
             it was not ready for as long as FI_WEIR_RNR_RETRIES allows"
        )]
    );
}

#[test]
fn a_sleep_ends_with_the_rnr_timer() {
    let second = bytes(8, 2);
    let mut pair = pair_with_refused_message(30_000_000, 7, &second);
    let began = Instant::now();
    pair.engines[0].wait(20_000_000_000);
    assert!(began.elapsed() < Duration::from_secs(5), "slept {:?} with a timer of 30 ms", began.elapsed());
    let into = OwnedMemory::new(8);
    for seed in [1, 2] {
        pair.receive(1, into.view());
        pair.complete(1);
        assert_eq!(contents(&into), contents(&bytes(8, seed)));
    }
}

#[test]
fn adaptive_backlog_gives_slots_to_a_waiting_sender_and_counts_the_peak() {
    let mut pair = pair(|settings| {
        settings.scheme = Scheme::AdaptiveBacklog { growth: Growth::Exponential, ecm_threshold: None };
        (settings.adaptive_start_slots, settings.adaptive_max_slots) = (2, 64);
    });
    for seed in 0..40 {
        pair.send(0, bytes(8, seed).view(), true);
    }
    let into = OwnedMemory::new(8);
    for seed in 0..40 {
        pair.receive(1, into.view());
        pair.complete(1);
        assert_eq!(contents(&into), contents(&bytes(8, seed)));
    }
    let peaks = [0, 1].map(|engine| pair.engines[engine].counters().peak_quota_slots);
    assert_eq!(peaks[1], 64);
    assert!(peaks[0] <= 2, "the first endpoint received only credit packets");
}

/// A program that always has completions to read.
struct SinkWithUnreadReceives;

impl CompletionSink for SinkWithUnreadReceives {
    fn accept(&mut self, _completion: &Completion) -> bool {
        false
    }
    fn has_unread_receives(&self) -> bool {
        true
    }
}

/// Unexpected messages stay in the mailbox while the program has completions to read. Their sender may close meanwhile.
#[test]
fn messages_left_in_the_mailbox_outlive_their_sender() {
    const MESSAGES: usize = 5;
    let Pair { engines: [mut sender, mut receiver], _directory } = pair(|_| {});
    let to = sender.peer(&receiver.address());
    for message in 0..MESSAGES {
        let from = bytes(8, message as u8);
        let (space, tag, data, level) = (Space::Tagged, 7, None, SendLevel::Injected);
        let arguments = SendArguments { to, space, tag, data, level, memory: from.view(), inject: true };
        sender.send(Post::default(), arguments).expect("taken");
        while sender.progress() > 0 {}
    }
    sender.close();
    drop(sender);
    // A closed sender takes no credit. The receiver learns of the close with the first message.
    while receiver.progress_with_sink(&mut SinkWithUnreadReceives) > 0 {}
    for message in 0..MESSAGES {
        let into = OwnedMemory::new(8);
        let pattern = Pattern { space: Space::Tagged, from: None, tag: 7, ignore: 0 };
        receiver.receive(Post::default(), pattern, into.view(), None).expect("taken");
        let completion = receiver.next_completion().expect("it is here");
        assert!(matches!(completion.outcome, Outcome::Received { .. }), "{:?}", completion.outcome);
        assert_eq!(contents(&into), contents(&bytes(8, message as u8)));
    }
}

#[test]
fn an_endpoint_that_closes_without_a_core_gives_up_nothing_before_peers_could_act_in_its_steps() {
    /// More messages than a mailbox has slots for one sender.
    const MANY: usize = 20_000;
    let mut pair = pair(|_| {});
    let payload = bytes(8, 3);
    (0..MANY).for_each(|_| pair.send(0, payload.view(), true));
    let [one, other] = &mut pair.engines;
    let idle = [other.address()];
    one.begin_close();
    for _ in 0..3 {
        assert!(!one.close_step(&idle).done, "the other one has not acted");
        std::thread::sleep(Duration::from_millis(150));
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while !one.close_step(&idle).done {
        other.progress();
        assert!(Instant::now() < deadline);
    }
    assert_eq!(one.end_close(), None);

    // It does not wait for ever.
    let mut pair = self::pair(|_| {});
    (0..MANY).for_each(|_| pair.send(0, payload.view(), true));
    let [one, other] = &mut pair.engines;
    let (idle, began) = ([other.address()], Instant::now());
    one.begin_close();
    while !one.close_step(&idle).done {
        std::thread::sleep(Duration::from_micros(100));
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(one.end_close().is_some_and(|given_up| given_up.messages() > 0));
}
