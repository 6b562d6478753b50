//! Tests of lane reclamation: with more engines than lanes all-to-all messages arrive in order, and idle peers
//! return their lanes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use weir_engine::config::Settings;
use weir_engine::{Engine, Operation, Post, SendArguments};
use weir_link::Link;
use weir_link::memory::OwnedMemory;
use weir_proto::{Outcome, Pattern, Scheme, SendLevel, Space};

#[path = "common/sleeper.rs"]
mod sleeper;
use sleeper::Sleeper;

const ANY: Pattern = Pattern { space: Space::Tagged, from: None, tag: 0, ignore: u64::MAX };

fn engines(count: u32, settings: &Settings) -> Vec<Engine> {
    (0..count).map(|_| Engine::open(settings, count, false).expect("a mailbox")).collect()
}

fn settings(directory: &tempfile::TempDir, scheme: Scheme) -> Settings {
    Settings {
        shm_dir: directory.path().into(),
        close_ms: 200,
        scheme,
        mailbox_slots: 64,
        cross_memory: false,
        ..Settings::default()
    }
}

/// Every engine sends to every engine, itself included, and receives as much.
/// Returns how often each engine polled.
fn all_to_all(engines: &mut [Engine], messages: usize, bytes: usize) -> usize {
    all_to_all_driven_by(engines, messages, bytes, |_, engine| {
        engine.progress();
    })
}

/// [`all_to_all`]. `step` drives the engine with this number. Returns how often it was called for each engine.
fn all_to_all_driven_by<L: Link>(
    engines: &mut [Engine<L>],
    messages: usize,
    bytes: usize,
    mut step: impl FnMut(usize, &mut Engine<L>),
) -> usize {
    let addresses: Vec<_> = engines.iter().map(Engine::address).collect();
    let count = engines.len();
    let mut buffers = Vec::new();
    for (from, engine) in engines.iter_mut().enumerate() {
        for number in 0..messages {
            for (to, address) in addresses.iter().enumerate() {
                let memory = OwnedMemory::new(bytes);
                memory.view().write(0, &[from as u8, number as u8]);
                let arguments = SendArguments {
                    to: engine.peer(address),
                    space: Space::Tagged,
                    tag: number as u64,
                    data: None,
                    level: SendLevel::Matched,
                    memory: memory.view(),
                    inject: false,
                };
                engine.send(Post { context: 1, cookie: 0 }, arguments).expect("taken");
                buffers.push(memory);
                let memory = OwnedMemory::new(bytes);
                let post = Post { context: number * count + to, cookie: 0 };
                engine.receive(post, ANY, memory.view(), None).expect("taken");
                buffers.push(memory);
            }
        }
    }
    // The source and tag of each receive, in the order in which they were posted.
    let mut received = vec![vec![None; messages * count]; count];
    let mut sent = vec![0; count];
    let deadline = Instant::now() + Duration::from_secs(30);
    let done = |sent: &[usize], received: &[Vec<Option<_>>]| {
        sent.iter().all(|&sent| sent == messages * count) && received.iter().flatten().all(Option::is_some)
    };
    let mut rounds = 0;
    while !done(&sent, &received) {
        rounds += 1;
        assert!(Instant::now() < deadline, "sent {sent:?}, received {received:?}");
        for (at, engine) in engines.iter_mut().enumerate() {
            step(at, engine);
            while let Some(completion) = engine.next_completion() {
                match (completion.operation, completion.outcome) {
                    (Operation::Send, Outcome::Done) => sent[at] += 1,
                    (Operation::Receive, Outcome::Received { envelope, .. }) => {
                        let from = addresses.iter().position(|a| *a == engine.address_of(envelope.from));
                        let before = received[at][completion.post.context].replace((from, envelope.tag));
                        assert_eq!(before, None, "received once");
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    // An announced message may end later than the message after it, but both were matched in order.
    for received in received {
        let mut next = vec![0; count];
        for (from, tag) in received.into_iter().flatten() {
            let next = &mut next[from.expect("one of us")];
            assert_eq!(tag, *next, "in order");
            *next += 1;
        }
    }
    rounds
}

/// A turn costs a round trip between the mailbox and the next sender. Nothing waits for a time.
#[test]
fn turns_on_one_lane_cost_a_bounded_number_of_polls() {
    const ENGINES: usize = 8;
    let piggyback = true;
    // Leases for each message: the message and its acknowledgement. With credits the message is announced, because the
    // receiver may have no memory for it, and a third lease fetches it.
    let schemes = [
        (Scheme::Demand, 3),
        (Scheme::Dynamic { piggyback }, 3),
        (Scheme::Static { piggyback }, 3),
        (Scheme::Unlimited, 2),
    ];
    for (scheme, leases_per_message) in schemes {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let settings = Settings { max_peers: 1, ..settings(&directory, scheme) };
        let mut engines = engines(ENGINES as u32, &settings);
        all_to_all(&mut engines, 1, 8); // the first contacts
        let leases = |engines: &[Engine]| engines.iter().map(|e| e.counters().lanes_returned).sum::<u64>();
        let (before, exchanges) = (leases(&engines), 20);
        let rounds: usize = (0..exchanges).map(|_| all_to_all(&mut engines, 1, 8)).sum();
        // Each engine has one turn with each other engine and with itself. A turn takes at most some polls.
        let turns = exchanges * ENGINES;
        assert!(rounds <= 6 * turns, "{scheme:?}: {rounds} polls for {turns} turns of each engine");
        let leases = leases(&engines) - before;
        let messages = (exchanges * ENGINES * ENGINES) as u64;
        assert!(
            leases <= leases_per_message * messages,
            "{scheme:?}: {leases} leases for {messages} messages"
        );
        println!("{scheme:?}: {rounds} polls, {turns} turns, {leases} leases, {messages} messages");
    }
}

/// An engine that finds nothing sleeps, and no time passes for it: only an arrival or a call of a peer wakes it.
#[test]
fn no_turn_waits_for_a_time() {
    const ENGINES: usize = 8;
    let piggyback = true;
    for scheme in [Scheme::Demand, Scheme::Dynamic { piggyback }, Scheme::Static { piggyback }] {
        for max_peers in [1, 2, 3, 7] {
            let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
            let settings = Settings { max_peers, ..settings(&directory, scheme) };
            let sleeps: Vec<_> = (0..ENGINES).map(|_| Arc::new(AtomicU64::new(0))).collect();
            let open = |sleeps: &Arc<AtomicU64>| {
                let sleeper = |link, _| Sleeper::new(link, Arc::clone(sleeps));
                Engine::open_over(&settings, ENGINES as u32, false, sleeper).expect("a mailbox")
            };
            let mut engines: Vec<_> = sleeps.iter().map(open).collect();
            let mut polls = 0;
            for exchange in 0..20 {
                let (mut asleep, mut skipped_in_a_row) = ([false; ENGINES], 0);
                all_to_all_driven_by(&mut engines, 1, 8, |number, engine| {
                    if asleep[number] && !engine.link().may_have_arrivals() {
                        skipped_in_a_row += 1;
                        assert!(
                            skipped_in_a_row <= ENGINES,
                            "{scheme:?}, {max_peers} lanes, exchange {exchange}: all engines sleep"
                        );
                        return;
                    }
                    (asleep[number], skipped_in_a_row) = (false, 0);
                    polls += 1;
                    if engine.progress() == 0 && !engine.has_completions() {
                        let before = sleeps[number].load(Relaxed);
                        engine.wait(u64::MAX);
                        asleep[number] = sleeps[number].load(Relaxed) > before;
                    }
                });
            }
            // In an exchange each engine has one turn with each engine.
            let turns = 20 * ENGINES * ENGINES;
            assert!(polls <= 6 * turns, "{scheme:?}, {max_peers} lanes: {polls} polls for {turns} turns");
            println!("{scheme:?}, {max_peers} lanes: {polls} polls for {turns} turns");
        }
    }
}

#[test]
fn with_fewer_lanes_than_peers_everything_arrives_in_order() {
    let piggyback = [true, false];
    let with_credits =
        piggyback.map(|piggyback| [Scheme::Static { piggyback }, Scheme::Dynamic { piggyback }]).into_iter();
    for scheme in with_credits.flatten().chain([Scheme::Demand, Scheme::Unlimited]) {
        for max_peers in [1, 2, 3] {
            let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
            let settings = Settings { max_peers, ..settings(&directory, scheme) };
            let mut engines = engines(5, &settings);
            all_to_all(&mut engines, 6, 300);
            all_to_all(&mut engines, 1, 20_000);
        }
    }
}

#[test]
fn idle_peers_return_their_lanes_and_can_attach_again() {
    // The rest: an index of pointers, state of one peer with packets under way, a short backlog and a few unexpected
    // messages. With dynamic credits the accounts remain too, for reuse.
    for (scheme, remaining_bytes) in [
        (Scheme::Static { piggyback: true }, 8 * 16 + 1280),
        (Scheme::Dynamic { piggyback: true }, 8 * (16 + 256) + 512),
        (Scheme::Demand, 8 * (16 + 256) + 512),
    ] {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let mut engines = engines(8, &Settings { idle_bytes: 0, ..settings(&directory, scheme) });
        let before: Vec<_> = engines.iter_mut().map(Engine::measure).collect();
        for _ in 0..2 {
            all_to_all(&mut engines, 3, 500);
            let burst = engines[0].measure();
            assert!(burst.mailbox_bytes > before[0].mailbox_bytes);
            assert!(burst.peer_state_bytes > remaining_bytes, "{burst:?}");
            let deadline = Instant::now() + Duration::from_secs(20);
            while engines.iter_mut().zip(&before).any(|(e, b)| e.measure().mailbox_bytes > b.mailbox_bytes) {
                assert!(Instant::now() < deadline, "idle peers have not returned their lanes");
                for engine in &mut engines {
                    engine.progress();
                    engine.pause();
                }
            }
            assert!(engines[0].measure().peer_state_bytes <= remaining_bytes, "{:?}", engines[0].measure());
        }
    }
}
