//! `weir bench memory`, also used by `weir sim` and `weir reproduce`: the memory that a receiver needs for n peers,
//! compared with the formulae of Prades' thesis.
//!
//! The benchmark uses weir's engine without MPI and libfabric, and imitates the provider's tables. It counts heap of
//! the receiver's thread and shared memory of its mailbox, three times: while all peers are idle, with 64 active peers,
//! and after these have returned their lanes. The active peers run in another thread.
//!
//! Expected for each idle peer: its address (64 B), 1 to 2 B for its number of insertions in the address vector, 5 to
//! 12 B to find it. Expected for each active peer: a lane (68 KiB with 1024 slots, 20 KiB with 256) and less than 4 KiB
//! of heap. Five sizes take some 20 s.

use crate::options::RecordOption;
use clap::Args;
use serde::Serialize;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use weir_engine::addresses::AddressTable;
use weir_engine::config::Settings;
use weir_engine::{Engine, Post, SendArguments};
use weir_link::counted_heap::in_use_bytes;
use weir_link::memory::OwnedMemory;
use weir_link::{Address, LinkKind};
use weir_output::Failure;
use weir_output::table;
use weir_proto::{Outcome, Pattern, Peer, SendLevel, Space};

/// Peers that become active.
const ACTIVE: usize = 64;
/// Messages that each of them sends and gets back.
const ROUNDS: usize = 10;
/// Time limit of each part of a measurement.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Options of `weir bench memory`.
#[derive(Args, Debug)]
#[command(after_help = "\
The published formulae for n peers are 4n + 2 + 4096n bytes for static credits and 150n + 1024n for dynamic ones \
(Prades, thesis). They include a buffer of 64 or 16 slots for every peer, active or not. In weir only active peers \
have a lane, whose size depends on FI_WEIR_FLOW and FI_WEIR_MAILBOX_SLOTS. For this many ranks the default is 1024 \
slots in 68 KiB; with static credits it is 256 slots in 20 KiB.

Exit status:
  0      everything was measured
  1      a measurement failed")]
pub struct MemoryArguments {
    /// Numbers of peers.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18],
        value_parser = clap::value_parser!(u32).range(64..=1 << 22))]
    peers: Vec<u32>,
    #[command(flatten)]
    record: RecordOption,
}

/// The results for one number of peers. Unit: bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Row {
    /// Number of peers.
    pub peers: u32,
    /// Heap with all addresses inserted and no active peer, the endpoint itself included.
    pub idle_heap_bytes: i64,
    /// Mailbox without an active peer.
    pub idle_mailbox_bytes: u64,
    /// Heap with the active peers.
    pub active_heap_bytes: i64,
    /// Mailbox with the active peers.
    pub active_mailbox_bytes: u64,
    /// Heap after the active peers have detached.
    pub after_heap_bytes: i64,
    /// Mailbox after the active peers have detached.
    pub after_mailbox_bytes: u64,
    /// Formula 7.2 of the thesis with static credits.
    pub published_static_bytes: u64,
    /// Formula 7.2 of the thesis with dynamic credits.
    pub published_dynamic_bytes: u64,
}

/// The part of the `--json` record below its head.
#[derive(Serialize)]
struct Results<'a> {
    active: usize,
    settings: std::collections::BTreeMap<&'static str, String>,
    rows: &'a [Row],
}

/// Measures and prints.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &MemoryArguments) -> Result<u8, Failure> {
    arguments.record.check()?;
    let settings = Settings { idle_bytes: 0, stats_dir: None, ..Settings::from_environment()? };
    let rows =
        arguments.peers.iter().map(|&peers| measure(peers, &settings)).collect::<Result<Vec<_>, _>>()?;
    arguments.record.print(render(&rows))?;
    let settings = settings.to_variables().into_iter().collect();
    arguments.record.write("weir-bench-memory-1", Results { active: ACTIVE, settings, rows: &rows })?;
    Ok(0)
}

/// Measures one number of peers with weir's default settings.
///
/// # Errors
/// [`Failure`].
pub fn measure_with_defaults(peers: u32) -> Result<Row, Failure> {
    measure(peers, &Settings { idle_bytes: 0, ..Settings::default() })
}

fn open(settings: &Settings, peers: u32) -> Result<Engine, Failure> {
    Engine::open(settings, peers, false).map_err(|error| Failure::Measurement(error.to_string()))
}

/// An address without an endpoint at the place of `active`: as random as real ones.
fn unused_address(number: u32, active: &Address) -> Address {
    let mut rng = fastrand::Rng::with_seed(u64::from(number));
    let mut key = [0; 16];
    rng.fill(&mut key);
    let place = active.part(LinkKind::SharedMemory).expect("it has shared memory");
    Address::new(rng.u64(..), key).with_part(LinkKind::SharedMemory, place).expect("room for the first part")
}

fn measure(peers: u32, settings: &Settings) -> Result<Row, Failure> {
    let (to_active, from_main) = mpsc::channel::<Address>();
    let (to_main, from_active) = mpsc::channel::<Result<Vec<Address>, Failure>>();
    let active_settings = settings.clone();
    let active = std::thread::spawn(move || run_active_peers(&active_settings, peers, &to_main, &from_main));
    let ended = || Failure::Measurement(String::from("the thread of the active peers ended early"));
    let addresses = from_active.recv().map_err(|_| ended())??;

    let before = in_use_bytes();
    let mut vector = AddressTable::default();
    let step = peers as usize / ACTIVE;
    for number in 0..peers {
        let at = number as usize;
        let real = (at.is_multiple_of(step)).then(|| addresses.get(at / step)).flatten();
        vector.insert(real.copied().unwrap_or_else(|| unused_address(number, &addresses[0])));
    }
    let uses = vec![1_u32; peers as usize]; // the provider's address vector counts the insertions of each address
    let mut engine = open(settings, peers)?;
    let idle = (in_use_bytes() - before, engine.measure().mailbox_bytes);

    // The provider maps entries of the address vector to peers of the endpoint.
    let index: Vec<Option<Peer>> = (0..peers)
        .map(|number| {
            let address = *vector.address(number).expect("inserted");
            (number as usize).is_multiple_of(step).then(|| engine.peer(&address))
        })
        .collect();
    to_active.send(engine.address()).map_err(|_| ended())?;
    answer(&mut engine)?;
    let active_now = (in_use_bytes() - before, engine.measure().mailbox_bytes);

    let started = Instant::now();
    while engine.measure().mailbox_bytes > idle.1 && started.elapsed() < TIMEOUT {
        engine.progress();
        engine.pause();
    }
    let after = (in_use_bytes() - before, engine.measure().mailbox_bytes);
    drop(to_active); // the active peers may close
    drop((vector, uses, index));
    engine.close();
    active.join().map_err(|_| ended())?;
    let n = u64::from(peers);
    Ok(Row {
        peers,
        idle_heap_bytes: idle.0,
        idle_mailbox_bytes: idle.1,
        active_heap_bytes: active_now.0,
        active_mailbox_bytes: active_now.1,
        after_heap_bytes: after.0,
        after_mailbox_bytes: after.1,
        published_static_bytes: 4 * n + 2 + 4096 * n,
        published_dynamic_bytes: 150 * n + 1024 * n,
    })
}

fn post_receive(engine: &mut Engine, memory: &OwnedMemory) -> Result<(), Failure> {
    let pattern = Pattern { space: Space::Tagged, from: None, tag: 0, ignore: u64::MAX };
    let posted = engine.receive(Post { context: 1, cookie: 0 }, pattern, memory.view(), None);
    posted.map_err(|error| Failure::Measurement(error.to_string()))
}

fn send(engine: &mut Engine, to: Peer, memory: &OwnedMemory) -> Result<(), Failure> {
    let arguments = SendArguments {
        to,
        space: Space::Tagged,
        tag: 0,
        data: None,
        level: SendLevel::Buffered,
        memory: memory.view(),
        inject: false,
    };
    let sent = engine.send(Post { context: 2, cookie: 0 }, arguments);
    sent.map_err(|error| Failure::Measurement(error.to_string()))
}

/// Receives every message and sends it back.
fn answer(engine: &mut Engine) -> Result<(), Failure> {
    let memory = OwnedMemory::new(64);
    let (mut answered, mut sent) = (0, 0);
    let started = Instant::now();
    post_receive(engine, &memory)?;
    while answered < ACTIVE * ROUNDS || sent < answered {
        if started.elapsed() > TIMEOUT {
            return Err(Failure::Measurement(format!("only {answered} messages arrived within {TIMEOUT:?}")));
        }
        engine.progress();
        while let Some(completion) = engine.next_completion() {
            match completion.outcome {
                Outcome::Received { envelope, .. } => {
                    answered += 1;
                    send(engine, envelope.from, &memory)?;
                    if answered < ACTIVE * ROUNDS {
                        post_receive(engine, &memory)?;
                    }
                }
                Outcome::Done => sent += 1,
                other => return Err(Failure::Measurement(format!("a message failed: {other:?}"))),
            }
        }
    }
    Ok(())
}

/// Runs the active peers: each sends a message and waits for the answer, repeatedly. Then they make progress until
/// `from_main` is disconnected.
fn run_active_peers(
    settings: &Settings,
    peers: u32,
    to_main: &mpsc::Sender<Result<Vec<Address>, Failure>>,
    from_main: &mpsc::Receiver<Address>,
) {
    let opened: Result<Vec<Engine>, Failure> = (0..ACTIVE).map(|_| open(settings, peers)).collect();
    let mut engines = match opened {
        Ok(engines) => engines,
        Err(failure) => return drop(to_main.send(Err(failure))),
    };
    let addresses = engines.iter().map(Engine::address).collect();
    if to_main.send(Ok(addresses)).is_err() {
        return;
    }
    let Ok(address) = from_main.recv() else { return };
    let memory = OwnedMemory::new(64);
    let mut rounds = vec![0; ACTIVE];
    for engine in &mut engines {
        let to = engine.peer(&address);
        if post_receive(engine, &memory).and_then(|()| send(engine, to, &memory)).is_err() {
            return;
        }
    }
    while from_main.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
        for (engine, rounds) in engines.iter_mut().zip(&mut rounds) {
            engine.progress();
            engine.pause();
            while let Some(completion) = engine.next_completion() {
                if let Outcome::Received { envelope, .. } = completion.outcome {
                    *rounds += 1;
                    let again = *rounds < ROUNDS;
                    if again
                        && post_receive(engine, &memory)
                            .and_then(|()| send(engine, envelope.from, &memory))
                            .is_err()
                    {
                        return;
                    }
                }
            }
        }
    }
}

/// The table of the results.
pub fn render(rows: &[Row]) -> String {
    let mut table = table::plain();
    let headings = [
        "peers",
        "idle:\nheap",
        "B per\npeer",
        "64 active:\nheap",
        "mailbox",
        "B per\npeer",
        "idle again:\nheap",
        "mailbox",
        "static\npublished",
        "dynamic\npublished",
    ];
    table.set_header(headings.map(table::right));
    for row in rows {
        let each = |bytes: i64| format!("{:.1}", bytes as f64 / f64::from(row.peers));
        let bytes = |bytes: i64| weir_output::quantity::bytes(u64::try_from(bytes).unwrap_or(0));
        table.add_row(
            [
                weir_output::quantity::count(row.peers.into()),
                bytes(row.idle_heap_bytes),
                each(row.idle_heap_bytes + row.idle_mailbox_bytes as i64),
                bytes(row.active_heap_bytes),
                weir_output::quantity::bytes(row.active_mailbox_bytes),
                each(row.active_heap_bytes + row.active_mailbox_bytes as i64),
                bytes(row.after_heap_bytes),
                weir_output::quantity::bytes(row.after_mailbox_bytes),
                weir_output::quantity::bytes(row.published_static_bytes),
                weir_output::quantity::bytes(row.published_dynamic_bytes),
            ]
            .map(table::right),
        );
    }
    format!(
        "{}\nB per peer: heap and mailbox of the receiver divided by all peers. Heap: allocated bytes, addresses included.",
        table::text(&table)
    )
}
