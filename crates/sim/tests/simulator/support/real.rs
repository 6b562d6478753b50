//! Runs programs on the real engine: one thread for each rank, mailboxes in a private directory.

use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use weir_engine::config::Settings;
use weir_engine::{Completion, Engine, Operation, Post, SendArguments};
use weir_link::memory::OwnedMemory;
use weir_proto::{Outcome, Pattern, Peer, Scheme, SendLevel, Space};
use weir_sim::program::{self, Call, Handle, Program, Rank, Shared, Status};

use super::journal::Journal;

/// Bound of a run; a longer one never ends.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `program` on each of `ranks` ranks to its end. Returns the journals by rank.
pub fn run(ranks: u32, scheme: Scheme, program: impl Fn(Rank) -> Program + Sync) -> Vec<Journal> {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let settings =
        Settings { shm_dir: directory.path().into(), close_ms: 2000, scheme, ..Settings::default() };
    let open = |_| Engine::open(&settings, ranks, false).expect("a mailbox");
    let mut engines: Vec<Engine> = (0..ranks).map(open).collect();
    let addresses: Vec<_> = engines.iter().map(Engine::address).collect();
    for engine in &mut engines {
        for (number, address) in (0..).zip(&addresses) {
            assert_eq!(engine.peer(address), Peer(number), "peers are numbered like ranks");
        }
    }
    let running = AtomicU32::new(ranks);
    let journals = std::thread::scope(|scope| {
        let run = |(rank, engine)| {
            let (program, running) = (&program, &running);
            scope.spawn(move || Driver::new(engine, rank, ranks).run(program, running))
        };
        let threads: Vec<_> = (0..).zip(engines).map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank that ends")).collect()
    });
    let left: Vec<_> = std::fs::read_dir(directory.path()).expect("the directory").collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    journals
}

/// A pending operation.
struct Open {
    handle: Handle,
    /// Index of a receive in the journal; `None` for a send.
    receive: Option<usize>,
    memory: OwnedMemory,
}

/// One rank: performs the calls of its program on its engine.
struct Driver {
    rank: u32,
    engine: Engine,
    shared: Rc<Shared>,
    open: Vec<Option<Open>>,
    journal: Journal,
    begun: Instant,
    /// Whether an operation has completed since the program last ran.
    has_completions: bool,
}

impl Driver {
    fn new(engine: Engine, rank: u32, ranks: u32) -> Driver {
        Driver {
            rank,
            engine,
            shared: Shared::new(rank, ranks),
            open: Vec::new(),
            journal: Journal::default(),
            begun: Instant::now(),
            has_completions: false,
        }
    }

    fn run(mut self, program: &impl Fn(Rank) -> Program, running: &AtomicU32) -> Journal {
        let mut program = program(Rank::new(&self.shared));
        loop {
            let returned = program::run(&mut program);
            while let Some(call) = self.shared.next_call(false) {
                self.perform(call);
            }
            if returned {
                break;
            }
            self.take_completions();
            while !std::mem::take(&mut self.has_completions) {
                self.wait();
                self.take_completions();
            }
        }
        while self.open.iter().any(Option::is_some) {
            self.wait();
            self.take_completions();
        }
        running.fetch_sub(1, Ordering::AcqRel);
        while running.load(Ordering::Acquire) > 0 {
            self.wait(); // others may need what we have sent
        }
        self.engine.close();
        self.journal
    }

    fn wait(&mut self) {
        assert!(self.begun.elapsed() < TIMEOUT, "rank {} waits for ever", self.rank);
        if self.engine.progress() == 0 {
            self.engine.pause();
        }
    }

    fn perform(&mut self, call: Call) {
        match call {
            Call::Send { handle, to, tag, bytes } => {
                self.journal.sends.push((to, tag, bytes));
                let memory = OwnedMemory::new(bytes as usize);
                memory.view().write(0, &contents(self.rank, tag, bytes));
                let arguments = |memory: &OwnedMemory| SendArguments {
                    to: Peer(to),
                    space: Space::Tagged,
                    tag,
                    data: None,
                    level: SendLevel::Buffered,
                    memory: memory.view(),
                    inject: false,
                };
                let post = Post { context: self.open.len(), cookie: 0 };
                while self.engine.send(post, arguments(&memory)).is_err() {
                    self.take_completions();
                    self.wait();
                }
                self.open.push(Some(Open { handle, receive: None, memory }));
            }
            Call::Receive { handle, from, tag, bytes } => {
                let memory = OwnedMemory::new(bytes as usize);
                let pattern = Pattern { space: Space::Tagged, from: from.map(Peer), tag, ignore: 0 };
                let post = Post { context: self.open.len(), cookie: 0 };
                while self.engine.receive(post, pattern, memory.view(), None).is_err() {
                    self.take_completions();
                    self.wait();
                }
                let receive = Some(self.journal.begin_receive());
                self.open.push(Some(Open { handle, receive, memory }));
            }
            // Real time passes instead of virtual time, without progress of the engine.
            Call::Compute { ps, handle } => {
                let (begun, work) = (Instant::now(), Duration::from_nanos(ps / 1000));
                while begun.elapsed() < work {
                    std::hint::spin_loop();
                }
                if let Some(handle) = handle {
                    self.end_at_once(handle, 0);
                }
            }
            Call::Clock { handle } => {
                let bytes = self.begun.elapsed().as_nanos() as u64 * 1000;
                self.end_at_once(handle, bytes);
            }
            Call::Offload { .. } => panic!("{call:?}: these tests have no offloaded machines"),
            Call::Credits { handle, .. } => self.end_at_once(handle, 0),
            Call::Record { name, .. } => self.journal.records.push(name),
        }
    }

    fn end_at_once(&mut self, handle: Handle, bytes: u64) {
        self.shared.complete(handle, Status { bytes, ..Status::default() });
        self.has_completions = true;
    }

    fn take_completions(&mut self) {
        while let Some(completion) = self.engine.next_completion() {
            self.end(completion);
        }
    }

    fn end(&mut self, completion: Completion) {
        let open = self.open[completion.post.context].take().expect("each operation ends once");
        let status = match (completion.operation, completion.outcome, open.receive) {
            (Operation::Send, Outcome::Done, None) => Status::default(),
            (Operation::Receive, Outcome::Received { envelope, bytes, .. }, Some(receive)) => {
                let status =
                    Status { source: envelope.from.0, tag: envelope.tag, bytes, ..Status::default() };
                let mut got = vec![0; bytes as usize];
                open.memory.view().read(0, &mut got);
                let sent = contents(status.source, status.tag, bytes);
                assert!(got == sent, "rank {}: {status:?} holds something else than was sent", self.rank);
                self.journal.end_receive(receive, status);
                status
            }
            other => panic!("rank {}: {other:?}", self.rank),
        };
        self.shared.complete(open.handle, status);
        self.has_completions = true;
    }
}

/// Content of a message, determined by its source and tag.
fn contents(source: u32, tag: u64, bytes: u64) -> Vec<u8> {
    let seed = source.wrapping_mul(31).wrapping_add(tag as u32) as u8;
    (0..bytes).map(|place| seed.wrapping_add(place as u8)).collect()
}
