//! Tests of executors: a helper thread drives an engine over shared memory while the client only submits and reaps.

#[path = "common/stub_link.rs"]
mod stub_link;

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use weir_engine::config::Settings;
use weir_engine::executor::{Client, EngineCalls, ExecutorEnded, Submission, SubmitError, pair};
use weir_engine::{
    AtomicArguments, Completion, Engine, Operation, Post, PostError, ReduceArguments, RemoteArguments,
    SendArguments,
};
use weir_link::memory::OwnedMemory;
use weir_proto::offload::atomics::MAX_ATOMICS;
use weir_proto::offload::group::{MAX_GROUPS, Membership, Shape};
use weir_proto::offload::{Combination, WordOperation, WordType, WordUpdate};
use weir_proto::{Outcome, Pattern, PeekThen, Peer, PeerFault, SendLevel, Space};

const LONG: Duration = Duration::from_secs(30);
const KEY: u64 = 5;

fn engines() -> (tempfile::TempDir, [Engine; 2], [Peer; 2]) {
    engines_that_close_within(Settings::default().close_ms)
}

fn engines_that_close_within(close_ms: u32) -> (tempfile::TempDir, [Engine; 2], [Peer; 2]) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let settings = Settings { shm_dir: directory.path().to_owned(), close_ms, ..Settings::default() };
    let mut engines = [(); 2].map(|()| Engine::open(&settings, 2, true).expect("an endpoint"));
    let addresses = engines.each_ref().map(Engine::address);
    let peers = [engines[0].peer(&addresses[1]), engines[1].peer(&addresses[0])];
    (directory, engines, peers)
}

fn send(to: Peer, number: usize, memory: &OwnedMemory) -> Submission {
    let (space, level, memory) = (Space::Tagged, SendLevel::Buffered, memory.view());
    let (tag, data, inject) = (7, Some(number as u64), false);
    let post = Post { context: number, cookie: 0 };
    Submission::Send(post, SendArguments { to, space, tag, data, level, memory, inject })
}

fn receive(number: usize, memory: &OwnedMemory) -> Submission {
    let pattern = Pattern { space: Space::Tagged, from: None, tag: 7, ignore: 0 };
    Submission::Receive {
        post: Post { context: number, cookie: 0 },
        pattern,
        memory: memory.view(),
        multi: None,
    }
}

fn fetch_and_add(peer: Peer, result: &OwnedMemory) -> Submission {
    let update =
        WordUpdate { operation: WordOperation::Sum, word_type: WordType::U64, operand: 1, compare: 0 };
    let arguments = AtomicArguments { peer, key: KEY, offset: 0, update, result: result.view() };
    Submission::Atomic(Post::default(), arguments)
}

fn wait(client: &mut Client) -> Completion {
    client.wait(LONG).expect("the executor runs").expect("something completes")
}

/// Submits, and reaps into `completions` while the ring is full.
fn submit(client: &mut Client, mut submission: Submission, completions: &mut Vec<Completion>) {
    loop {
        match client.submit(submission) {
            Ok(()) => return,
            Err(SubmitError::Full { submission: again, capacity: 4 }) => submission = again,
            Err(error) => panic!("{error}"),
        }
        completions.extend(client.wait(Duration::from_millis(1)).expect("the executor runs"));
    }
}

#[test]
fn helper_threads_carry_messages_in_order_while_the_clients_only_submit_and_reap() {
    const MESSAGES: usize = 3000;
    let (_directory, [sender, receiver], [to, _]) = engines();
    let memory: Vec<OwnedMemory> = (0..MESSAGES).map(|number| OwnedMemory::new(number % 100)).collect();
    let into: Vec<OwnedMemory> = (0..MESSAGES).map(|_| OwnedMemory::new(100)).collect();
    let ((mut sends, sending), (mut receives, receiving)) = (pair(sender, 4), pair(receiver, 4));
    let helpers = [sending, receiving].map(|executor| std::thread::spawn(|| executor.run()));
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    for number in 0..MESSAGES {
        submit(&mut sends, send(to, number, &memory[number]), &mut sent);
        submit(&mut receives, receive(number, &into[number]), &mut received);
    }
    while sent.len() < MESSAGES {
        sent.push(wait(&mut sends));
    }
    while received.len() < MESSAGES {
        received.push(wait(&mut receives));
    }
    assert!(sent.iter().all(|completion| completion.outcome == Outcome::Done));
    for (number, completion) in received.iter().enumerate() {
        let Outcome::Received { envelope, bytes, .. } = completion.outcome else { panic!("{completion:?}") };
        assert_eq!(completion.post.context, number);
        assert_eq!((envelope.data, bytes), (Some(number as u64), number as u64 % 100));
    }
    assert_eq!((sends.reap().is_none(), receives.reap().is_none()), (true, true));
    drop((sends, receives));
    // Each may wait for the other to close.
    std::thread::scope(|scope| {
        for helper in helpers {
            let mut engine = helper.join().expect("a helper");
            scope.spawn(move || drop(engine.close()));
        }
    });
}

/// The point of an executor: the target's application computes, and its memory is read and changed meanwhile.
#[test]
fn a_target_answers_remote_accesses_while_its_application_is_away() {
    const ATOMICS: u64 = 500;
    let (_directory, [mut initiator, mut target], [to, _]) = engines();
    let (memory, result) = (OwnedMemory::new(8), OwnedMemory::new(8));
    target.register_memory(KEY, memory.view(), true, true);
    let (client, executor) = pair(target, 1);
    let helper = std::thread::spawn(|| executor.run());
    let update =
        WordUpdate { operation: WordOperation::Sum, word_type: WordType::U64, operand: 1, compare: 0 };
    let began = Instant::now();
    let complete = |initiator: &mut Engine| loop {
        initiator.progress();
        if let Some(completion) = initiator.next_completion() {
            return completion.outcome;
        }
        assert!(began.elapsed() < LONG, "nothing completes");
        initiator.wait(1_000_000);
    };
    for _ in 0..ATOMICS {
        let arguments = AtomicArguments { peer: to, key: KEY, offset: 0, update, result: result.view() };
        initiator.atomic(Post::default(), arguments).expect("taken");
        assert_eq!(complete(&mut initiator), Outcome::Done);
    }
    let read =
        RemoteArguments { peer: to, key: KEY, offset: 0, memory: result.view(), data: None, inject: false };
    initiator.read(Post::default(), read).expect("taken");
    assert_eq!(complete(&mut initiator), Outcome::Done);
    let mut word = [0; 8];
    result.view().read(0, &mut word);
    assert_eq!(u64::from_ne_bytes(word), ATOMICS);
    drop(client);
    drop(helper.join().expect("the helper"));
}

#[test]
fn helper_threads_reduce_vectors_while_the_clients_only_submit_and_reap() {
    const REDUCTIONS: u64 = 200;
    let (_directory, [mut root, mut leaf], [to_leaf, to_root]) = engines();
    let to_self = [&mut root, &mut leaf].map(|engine| engine.peer(&engine.address()));
    let members = [vec![to_self[0], to_leaf], vec![to_root, to_self[1]]];
    for (engine, (rank, members)) in [&mut root, &mut leaf].into_iter().zip((0..).zip(members)) {
        let membership = Membership { group: 3, members, rank, patience_ns: None, shape: Shape::default() };
        engine.join_group(membership).expect("the first group");
    }
    let sum = Combination { operation: WordOperation::Sum, word_type: WordType::U64 };
    let (mut clients, executors): (Vec<_>, Vec<_>) =
        [root, leaf].map(|engine| pair(engine, 4)).into_iter().unzip();
    let helpers: Vec<_> =
        executors.into_iter().map(|executor| std::thread::spawn(|| executor.run())).collect();
    let vectors = [OwnedMemory::new(8), OwnedMemory::new(8)];
    for number in 0..REDUCTIONS {
        for (client, (vector, share)) in clients.iter_mut().zip(vectors.iter().zip([1000, number])) {
            vector.view().write(0, &share.to_ne_bytes());
            let arguments = ReduceArguments { group: 3, combination: sum, memory: vector.view() };
            client.submit(Submission::Reduce(Post::default(), arguments)).expect("room in the ring");
        }
        for client in &mut clients {
            assert_eq!(wait(client).outcome, Outcome::Done);
        }
        let mut result = [0; 8];
        vectors[0].view().read(0, &mut result);
        assert_eq!(u64::from_ne_bytes(result), 1000 + number);
    }
    drop(clients);
    helpers.into_iter().for_each(|helper| drop(helper.join().expect("a helper")));
}

/// Submits a call, and waits for its answer.
fn call<R: Send + 'static>(
    client: &mut Client,
    call: impl FnOnce(&mut dyn EngineCalls) -> R + Send + 'static,
) -> R {
    let (submission, answer) = Submission::call(call);
    client.submit(submission).expect("room in the ring");
    answer.recv_timeout(LONG).expect("the executor answers")
}

#[test]
fn a_client_peeks_claims_discards_and_cancels_through_the_rings() {
    let (_directory, [engine, _other], _) = engines();
    let address = engine.address();
    let (mut client, executor) = pair(engine, 4);
    let helper = std::thread::spawn(|| executor.run());
    let myself = call(&mut client, move |engine| engine.peer(&address));
    let pattern = Pattern { space: Space::Tagged, from: Some(myself), tag: 7, ignore: 0 };
    let post = |context| Post { context, cookie: 0 };
    let peek = |then| Submission::Peek { post: post(5), pattern, then };
    let (payload, into) = (OwnedMemory::new(8), OwnedMemory::new(8));
    let mut ask = |submission| {
        client.submit(submission).expect("room in the ring");
        wait(&mut client)
    };
    assert_eq!(ask(peek(PeekThen::Leave)).outcome, Outcome::Absent);
    for number in 0..3 {
        payload.view().write(0, &[number as u8; 8]);
        assert_eq!(ask(send(myself, number, &payload)).outcome, Outcome::Done);
    }
    let mut claim = || match ask(peek(PeekThen::Claim)).outcome {
        Outcome::Found { envelope, claimed: Some(message) } => (envelope.data, message),
        other => panic!("{other:?}"),
    };
    let ((first, to_receive), (second, to_discard)) = (claim(), claim());
    assert_eq!((first, second), (Some(0), Some(1)));
    let completion = ask(Submission::DiscardClaimed { post: post(6), message: to_discard });
    assert!(matches!(completion.outcome, Outcome::Found { .. }), "{completion:?}");
    let memory = into.view();
    let completion = ask(Submission::ReceiveClaimed { post: post(7), message: to_receive, memory });
    assert!(matches!(completion.outcome, Outcome::Received { bytes: 8, .. }), "{completion:?}");
    assert_eq!((completion.post.context, completion.operation), (7, Operation::Receive));
    let third = ask(peek(PeekThen::Discard)).outcome;
    assert!(matches!(third, Outcome::Found { envelope, .. } if envelope.data == Some(2)), "{third:?}");
    assert_eq!(ask(peek(PeekThen::Leave)).outcome, Outcome::Absent);
    client.submit(receive(77, &into)).expect("room in the ring");
    client.submit(Submission::Cancel { context: 12_345 }).expect("room in the ring"); // of no receive
    client.submit(Submission::Cancel { context: 77 }).expect("room in the ring");
    let completion = wait(&mut client);
    assert_eq!((completion.post.context, completion.outcome), (77, Outcome::Canceled));
    drop(client);
    drop(helper.join().expect("the helper"));
}

#[test]
fn calls_of_a_running_executor_answer_and_remote_accesses_show_what_they_did() {
    let (_directory, [target, initiator], _) = engines();
    let addresses = [target.address(), initiator.address()];
    let ((mut targets, answering), (mut client, asking)) = (pair(target, 4), pair(initiator, 4));
    let helpers = [answering, asking].map(|executor| std::thread::spawn(|| executor.run()));
    let to = call(&mut client, move |engine| engine.peer(&addresses[0]));
    assert_eq!(call(&mut client, move |engine| engine.peer(&addresses[0])), to);
    let memory = OwnedMemory::new(64);
    let view = memory.view();
    call(&mut targets, move |engine| engine.register_memory(KEY, view, true, true));
    let own = OwnedMemory::new(16);
    let remote = |offset| RemoteArguments {
        peer: to,
        key: KEY,
        offset,
        memory: own.view(),
        data: None,
        inject: false,
    };
    let mut ask = |submission| {
        client.submit(submission).expect("room in the ring");
        wait(&mut client).outcome
    };
    own.view().write(0, &[9; 16]);
    assert_eq!(ask(Submission::Write(Post::default(), remote(8))), Outcome::Done);
    own.view().write(0, &[0; 16]);
    assert_eq!(ask(Submission::Read(Post::default(), remote(0))), Outcome::Done);
    let mut found = [1; 16];
    own.view().read(0, &mut found);
    assert_eq!((&found[..8], &found[8..]), (&[0; 8][..], &[9; 8][..]));
    assert_eq!(ask(Submission::Read(Post::default(), remote(56))), Outcome::Refused, "beyond the end");
    call(&mut targets, |engine| engine.deregister_memory(KEY));
    assert_eq!(ask(Submission::Write(Post::default(), remote(0))), Outcome::Refused, "no such key");
    assert_eq!(ask(fetch_and_add(to, &own)), Outcome::Refused, "no such key");

    let alone = move || Membership {
        group: 1,
        members: vec![to],
        rank: 0,
        patience_ns: None,
        shape: Shape::default(),
    };
    call(&mut client, move |engine| engine.join_group(alone())).expect("the first group");
    let again = call(&mut client, move |engine| engine.join_group(alone()));
    assert_eq!(again, Err(PostError::Again { limit: MAX_GROUPS as u32 }));
    let sum = Combination { operation: WordOperation::Sum, word_type: WordType::U64 };
    let reduce = || ReduceArguments { group: 1, combination: sum, memory: own.view() };
    let mut ask = |submission| {
        client.submit(submission).expect("room in the ring");
        wait(&mut client).outcome
    };
    assert_eq!(ask(Submission::Reduce(Post::default(), reduce())), Outcome::Done);
    call(&mut client, |engine| engine.leave_group(1));
    let (submission, packets) = Submission::call(|engine| engine.counters().packets_sent);
    client.submit(submission).expect("room in the ring");
    assert!(packets.recv_timeout(LONG).expect("an answer") >= 4);
    client.submit(Submission::Reduce(Post::default(), reduce())).expect("room in the ring");
    assert_eq!(wait(&mut client).outcome, Outcome::Refused, "no such group");
    drop((client, targets));
    helpers.into_iter().for_each(|helper| drop(helper.join().expect("a helper")));
}

/// A call that waits in the ring when the executor ends is not made, and its channel says so.
#[test]
fn the_answer_of_a_call_that_is_not_made_is_an_error() {
    let (_directory, [engine, _other], _) = engines();
    let (mut client, executor) = pair(engine, 1);
    let (submission, answer) = Submission::call(|engine| engine.counters().packets_sent);
    client.submit(submission).expect("the ring is empty");
    drop(executor);
    assert!(answer.recv().is_err());
}

#[test]
fn an_executor_that_ends_leaves_operations_under_way_to_the_close() {
    const LONG_BYTES: usize = 1 << 20;
    let (_directory, [engine, mut other], [to, from]) = engines_that_close_within(300);
    let (mut client, executor) = pair(engine, 8);
    let helper = std::thread::spawn(|| executor.run());
    let (short, long, into) =
        (OwnedMemory::new(8), OwnedMemory::new(LONG_BYTES), OwnedMemory::new(LONG_BYTES));
    client.submit(receive(1, &into)).expect("room in the ring");
    client.submit(send(to, 2, &long)).expect("room in the ring"); // announced, and not received in time
    client.submit(send(to, 3, &short)).expect("room in the ring");
    let completion = wait(&mut client);
    assert_eq!((completion.post.context, completion.outcome), (3, Outcome::Done));
    drop(client);
    let mut engine = helper.join().expect("the helper");
    let given_up = std::thread::scope(|scope| {
        let closing = scope.spawn(|| engine.close());
        let began = Instant::now();
        while !closing.is_finished() {
            other.progress();
            assert!(began.elapsed() < LONG, "the close waits for the peer");
            std::thread::yield_now();
        }
        closing.join().expect("no panic")
    });
    assert!(given_up.is_none(), "the peer has what was complete: {given_up:?}");
    // The short message has been delivered. The long one was not, and its receive says so, if it finds it at all.
    let pattern = Pattern { space: Space::Tagged, from: Some(from), tag: 7, ignore: 0 };
    loop {
        other.receive(Post::default(), pattern, into.view(), None).expect("taken");
        let outcome = loop {
            other.progress();
            if let Some(completion) = other.next_completion() {
                break completion.outcome;
            }
        };
        match outcome {
            Outcome::Lost { .. } => {}
            Outcome::Received { bytes, envelope, .. } => {
                assert_eq!((bytes, envelope.data), (8, Some(3)));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_death_of_a_peer_reaches_a_client_whose_executor_sleeps() {
    let (engine, calls) = stub_link::engine(3);
    let (mut client, mut executor) = pair(engine, 4);
    let peer = executor.engine().peer(&stub_link::address(2));
    let (into, result) = (OwnedMemory::new(8), OwnedMemory::new(8));
    let helper = std::thread::spawn(|| executor.run());
    client.submit(receive(1, &into)).expect("room in the ring");
    client.submit(fetch_and_add(peer, &result)).expect("room in the ring");
    assert!(client.wait(Duration::from_millis(300)).expect("it runs").is_none(), "nobody has died");
    let died = Instant::now();
    calls.dead.store(2, Relaxed);
    for _ in 0..2 {
        let outcome = wait(&mut client).outcome;
        assert!(matches!(outcome, Outcome::Lost { fault: PeerFault::Died, .. }), "{outcome:?}");
    }
    assert!(died.elapsed() < Duration::from_secs(2), "reported after {:?}", died.elapsed());
    client.submit(fetch_and_add(peer, &result)).expect("room in the ring");
    let outcome = wait(&mut client).outcome;
    assert!(matches!(outcome, Outcome::Lost { fault: PeerFault::Died, .. }), "{outcome:?}");
    drop(client);
    drop(helper.join().expect("the helper"));
}

#[test]
fn an_executor_that_sleeps_wakes_for_a_submission_and_for_the_end_of_its_client() {
    let (_directory, [engine, _other], _) = engines();
    let (mut client, mut executor) = pair(engine, 1);
    let myself = {
        let address = executor.engine().address();
        executor.engine().peer(&address)
    };
    let helper = std::thread::spawn(move || {
        let mut sleeps = 0;
        while !executor.client_is_gone() {
            if executor.turn() == 0 {
                executor.wait(60_000_000_000);
                sleeps += 1;
            }
        }
        sleeps
    });
    let began = Instant::now();
    let (payload, into) = (OwnedMemory::new(8), OwnedMemory::new(8));
    for number in 0..20 {
        std::thread::sleep(Duration::from_millis(5));
        client.submit(send(myself, number, &payload)).expect("the ring is empty");
        assert_eq!(wait(&mut client).outcome, Outcome::Done);
        client.submit(receive(number, &into)).expect("the ring is empty");
        assert!(matches!(wait(&mut client).outcome, Outcome::Received { bytes: 8, .. }));
    }
    drop(client);
    let sleeps = helper.join().expect("the helper");
    assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
    assert!((10..1000).contains(&sleeps), "{sleeps} sleeps");
}

/// Without a helper: the application turns the executor itself.
#[test]
fn full_rings_return_submissions_and_delay_completions_without_losing_any() {
    const FETCHES: usize = 50;
    let (_directory, [mut engine, _other], _) = engines();
    let memory = OwnedMemory::new(8);
    engine.register_memory(KEY, memory.view(), true, true);
    let address = engine.address();
    let myself = engine.peer(&address);
    let results: Vec<OwnedMemory> = (0..FETCHES).map(|_| OwnedMemory::new(8)).collect();
    let (mut client, mut executor) = pair(engine, 2);
    let (mut posted, mut reaped, mut refusals) = (0, 0, 0);
    while posted < FETCHES {
        match client.submit(fetch_and_add(myself, &results[posted])) {
            Ok(()) => posted += 1,
            Err(SubmitError::Full { capacity: 2, submission: Submission::Atomic(_, arguments) }) => {
                assert_eq!(arguments.result.bytes(), 8, "the buffer is returned");
                executor.turn();
                refusals += 1;
                if refusals % 100 == 0 {
                    assert!(posted < reaped + 10, "{posted} taken, {reaped} reaped");
                    reaped += usize::from(client.reap().is_some());
                }
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    for _ in 0..10_000 {
        executor.turn();
        reaped +=
            usize::from(client.reap().is_some_and(|completion| completion.operation == Operation::Atomic));
    }
    assert_eq!(reaped, FETCHES);
    let word = |memory: &OwnedMemory| {
        let mut word = [0; 8];
        memory.view().read(0, &mut word);
        u64::from_ne_bytes(word)
    };
    assert!(results.iter().map(word).eq(0..FETCHES as u64));
    drop(executor);
    assert!(matches!(client.submit(fetch_and_add(myself, &results[0])), Err(SubmitError::Ended { .. })));
    assert_eq!(client.wait(LONG).map(|_| ()), Err(ExecutorEnded));
}

/// The peer is alive and answers nothing, so the engine refuses the last of these operations for ever.
#[test]
fn an_executor_ends_with_its_client_although_a_submission_is_refused() {
    let (_directory, [engine, _silent], [to, _]) = engines();
    let result = OwnedMemory::new(8);
    let (mut client, executor) = pair(engine, 2 * MAX_ATOMICS as usize);
    for _ in 0..=MAX_ATOMICS {
        client.submit(fetch_and_add(to, &result)).expect("the ring has room");
    }
    let helper = std::thread::spawn(move || executor.run());
    std::thread::sleep(Duration::from_millis(50));
    assert!(!helper.is_finished(), "the client is there");
    drop(client);
    let began = Instant::now();
    while !helper.is_finished() {
        assert!(began.elapsed() < LONG, "the executor waits for the peer");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
#[should_panic(expected = "a buffer of 4 bytes for a word of 8")]
fn a_short_buffer_is_the_mistake_of_the_client() {
    let (_directory, [engine, _other], [to, _]) = engines();
    let (mut client, _executor) = pair(engine, 1);
    let _ = client.submit(fetch_and_add(to, &OwnedMemory::new(4)));
}
