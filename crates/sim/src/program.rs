//! Rank programs: async functions over the calls of an MPI program. This file has what program and driver share: the
//! calls that wait to be performed, and the operations under way. [`Rank`] is what a program sees of it.
//!
//! A program knows its rank and the number of ranks, and makes calls. It does not know its driver: the world in virtual
//! time, or the real engine in a test. Calls queue up in [`Shared`] while the program runs. The driver performs them
//! and notes completions. It polls the program again when an awaited operation has completed. Calls keep their order,
//! except in programs that use [`Rank::wait_any`]: there a call that is no send may overtake sends that the network
//! does not accept yet.
//!
//! ```text
//! let request = rank.isend(1, TAG, 2048);      queues Call::Send { handle 0, to 1, .. }; the program continues
//! rank.wait(request).await;                    the program stops and waits for handle 0
//! driver: performs the call ... complete(0)    returns true: the driver polls the program
//! ```

mod rank;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use weir_proto::PeerFault;
use weir_proto::offload::WordUpdate;
use weir_proto::offload::group::{self, Shape};

use crate::Picoseconds;
pub use rank::{GroupOperation, Rank};

/// A nonblocking operation. The program waits for each operation exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "every operation is waited for"]
pub struct Handle(pub u32);

/// Result of a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Rank that sent the message. For a send: our own rank.
    pub source: u32,
    /// Its tag.
    pub tag: u64,
    /// Its length. Unit: bytes.
    pub bytes: u64,
    /// The reason why the operation failed: the peer is lost, or a peer whose message the receive could have matched.
    pub fault: Option<PeerFault>,
    /// The offloaded machine has refused the operation.
    pub refused: bool,
}

/// A call that the driver performs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Call {
    /// Send.
    Send {
        /// Completes when the buffer may be used again.
        handle: Handle,
        /// Rank.
        to: u32,
        /// Tag.
        tag: u64,
        /// Length. Unit: bytes.
        bytes: u64,
    },
    /// Receive a message.
    Receive {
        /// Completes when the message is in the buffer.
        handle: Handle,
        /// Rank; `None` is any rank.
        from: Option<u32>,
        /// Tag.
        tag: u64,
        /// Length of the buffer. Unit: bytes.
        bytes: u64,
    },
    /// Computation without library calls. The rank receives and sends nothing meanwhile.
    Compute {
        /// Duration.
        ps: Picoseconds,
        /// Completes at the end of the computation.
        handle: Option<Handle>,
    },
    /// Read the time.
    Clock {
        /// Completes at once, with the time in [`Status::bytes`].
        handle: Handle,
    },
    /// Read how many slots of a peer's mailbox are ours. This is an instrument of experiments, not an MPI
    /// call, and takes no time.
    Credits {
        /// Completes at once, with the number in [`Status::bytes`]. 0 if the scheme has no credits or the
        /// driver does not know them.
        handle: Handle,
        /// Rank.
        peer: u32,
    },
    /// Ask the offloaded machines of the rank for something ([`Shared::take_offload_call`]).
    Offload {
        /// Completes with the operation.
        handle: Handle,
    },
    /// Write a number into the records.
    Record {
        /// Name of the quantity.
        name: &'static str,
        /// Index within a series.
        index: u32,
        /// The number.
        value: f64,
    },
}

/// Words of a rank's memory that others can change. Each is 0 at the start.
pub const WORDS: u32 = 1024;

/// A call of an offloaded machine.
#[derive(Clone, Debug, PartialEq)]
pub enum OffloadCall {
    /// Change a word of another rank's memory, and fetch the old word (a remote atomic). It is in [`Status::bytes`].
    Fetch {
        /// Rank.
        to: u32,
        /// Index of the word, less than [`WORDS`].
        word: u32,
        /// The change, of a word of 64 bits.
        update: WordUpdate,
    },
    /// Change a word of our own memory, as one step that takes no time. Completes at once. The old word is in
    /// [`Status::bytes`].
    OwnWord {
        /// Index of the word, less than [`WORDS`].
        word: u32,
        /// The change, of a word of 64 bits.
        update: WordUpdate,
    },
    /// Poll a word of our own memory, until it is another one. It is in [`Status::bytes`].
    WatchWord {
        /// Index of the word, less than [`WORDS`].
        word: u32,
        /// Completes when the word is not this.
        seen: u64,
    },
    /// Take part in a group. Completes at once.
    Join {
        /// Its number.
        group: u32,
        /// The ranks of its members. The first is the root.
        members: Vec<u32>,
        /// Our place in `members`.
        rank: u32,
        /// The group fails if an operation waits longer for others. `None`: it waits. Unit: ns.
        patience_ns: Option<u64>,
        /// How its operations travel.
        shape: Shape,
    },
    /// Take part in it no more. Completes at once.
    Leave {
        /// Its number.
        group: u32,
    },
    /// Start the next operation of a group.
    Start {
        /// The group.
        group: u32,
        /// The operation.
        operation: group::Operation,
        /// Our vector. It gets the result.
        vector: Rc<RefCell<Vec<u8>>>,
    },
    /// Send a message to several ranks. The endpoint does that, and not a machine beside it.
    MultiSend {
        /// Ranks, each with the operation that completes when its copy has left.
        copies: Vec<(u32, Handle)>,
        /// Tag.
        tag: u64,
        /// Length. Unit: bytes.
        bytes: u64,
    },
}

impl Call {
    /// Whether it sends a packet.
    pub fn sends(&self) -> bool {
        matches!(self, Call::Send { .. } | Call::Offload { .. })
    }
}

/// Notes of a driver about a pending operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartedOperation {
    /// Tag of a send; 0 for a receive.
    pub tag: u64,
    /// Length of a send, less than [`MESSAGE_BYTES`]; 0 for a receive. Unit: bytes.
    pub bytes: u64,
    /// Time of the call.
    pub called_at: Picoseconds,
}

/// Bound: every message is shorter. Unit: bytes.
pub const MESSAGE_BYTES: u64 = 1 << 48;

/// A 64-bit number with the alignment of a 32-bit one, so that [`Operation`] needs no padding.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(4))]
struct PackedU64(u64);

/// State of one operation. An all-to-all has as many operations as pairs of ranks. So the variants store the
/// fields of [`StartedOperation`] and [`Status`] without padding.
#[derive(Clone, Copy, Debug)]
enum Operation {
    /// Unused; `next` is the next unused entry.
    Unused { next: Option<u32> },
    /// Pending, with the fields of [`StartedOperation`]. Two fields hold the length.
    Pending { tag: PackedU64, bytes_low: u32, bytes_high: u16, called_at: PackedU64 },
    /// Completed, with the fields of [`Status`].
    Done { source: u32, tag: PackedU64, bytes: PackedU64, fault: Option<PeerFault>, refused: bool },
}

const _: () = assert!(size_of::<Operation>() == 24);

impl Operation {
    #[inline]
    fn pending(started: StartedOperation) -> Operation {
        let StartedOperation { tag, bytes, called_at } = started;
        assert!(bytes < MESSAGE_BYTES, "a message of {bytes} bytes");
        let (bytes_low, bytes_high) = (bytes as u32, (bytes >> 32) as u16);
        Operation::Pending { tag: PackedU64(tag), bytes_low, bytes_high, called_at: PackedU64(called_at) }
    }

    /// The fields of [`StartedOperation`] if the operation is pending.
    #[inline]
    fn started(self) -> Option<StartedOperation> {
        let Operation::Pending {
            tag: PackedU64(tag),
            bytes_low,
            bytes_high,
            called_at: PackedU64(called_at),
        } = self
        else {
            return None;
        };
        Some(StartedOperation { tag, bytes: u64::from(bytes_high) << 32 | u64::from(bytes_low), called_at })
    }

    #[inline]
    fn done(status: Status) -> Operation {
        let Status { source, tag, bytes, fault, refused } = status;
        Operation::Done { source, tag: PackedU64(tag), bytes: PackedU64(bytes), fault, refused }
    }

    /// The result if the operation has completed.
    #[inline]
    fn status(self) -> Option<Status> {
        let Operation::Done { source, tag: PackedU64(tag), bytes: PackedU64(bytes), fault, refused } = self
        else {
            return None;
        };
        Some(Status { source, tag, bytes, fault, refused })
    }
}

/// Initial capacity for operations and calls. A world may have a million ranks, and most of them send and
/// receive one message.
const INITIAL_CAPACITY: usize = 2;
/// Capacity that the call queue keeps when few calls wait.
const SPARE_CALLS: usize = 64;

#[derive(Debug, Default)]
struct State {
    calls: VecDeque<Call>,
    /// What [`Call::Offload`] asks for, by handle. Most programs ask for nothing.
    offload_calls: Option<Box<OffloadCalls>>,
    operations: Vec<Operation>,
    /// First unused entry.
    first_unused: Option<u32>,
    /// The handle that the program waits for.
    awaited: Option<Handle>,
    /// State of programs that use [`Rank::wait_any`].
    wait_any: Option<Box<WaitAnyState>>,
    /// The program waits in [`Rank::wait_any`].
    waits_in_wait_any: bool,
}

/// The calls of offloaded machines that wait to be performed, by handle.
#[derive(Debug, Default)]
struct OffloadCalls(BTreeMap<u32, OffloadCall>);

/// State of a program that uses [`Rank::wait_any`].
#[derive(Debug, Default)]
struct WaitAnyState {
    /// Completed operations in order, each with the start time of what completed it.
    handles: VecDeque<(Handle, Picoseconds)>,
    /// That time of the operation taken last. The program can make its current calls since then.
    since: Picoseconds,
    /// The same time for each waiting call, for the call taken last, and the position of that call in the
    /// queue.
    calls: VecDeque<Picoseconds>,
    call: Picoseconds,
    place: usize,
}

impl State {
    /// Queues a call of the program.
    fn call(&mut self, call: Call) {
        if self.calls.capacity() == 0 {
            self.calls.reserve_exact(INITIAL_CAPACITY);
        }
        self.calls.push_back(call);
        if let Some(wait_any) = &mut self.wait_any {
            wait_any.calls.push_back(wait_any.since);
        }
    }

    /// Takes the next call.
    #[inline]
    fn next_of(calls: &mut VecDeque<Call>) -> Option<Call> {
        let call = calls.pop_front();
        // An all-to-all begins with all its calls. In a world of a thousand ranks their memory matters.
        if calls.capacity() > SPARE_CALLS && calls.len() < calls.capacity() / 4 {
            calls.shrink_to(calls.capacity() / 2);
        }
        call
    }

    /// Makes a pending operation.
    fn begin(&mut self) -> Handle {
        let pending = Operation::pending(StartedOperation::default());
        let Some(index) = self.first_unused else {
            if self.operations.capacity() == 0 {
                self.operations.reserve_exact(INITIAL_CAPACITY);
            }
            self.operations.push(pending);
            return Handle(self.operations.len() as u32 - 1);
        };
        let Operation::Unused { next } = std::mem::replace(&mut self.operations[index as usize], pending)
        else {
            panic!("operation {index} is in use")
        };
        self.first_unused = next;
        Handle(index)
    }

    /// Frees the entry of an operation that was waited for. Returns its last state.
    fn free(&mut self, handle: Handle) -> Operation {
        let next = self.first_unused.replace(handle.0);
        std::mem::replace(&mut self.operations[handle.0 as usize], Operation::Unused { next })
    }
}

/// State that a program and its driver share.
#[derive(Debug)]
pub struct Shared {
    rank: u32,
    size: u32,
    seed: u64,
    state: RefCell<State>,
}

impl Shared {
    /// For the program of `rank` in a world of `size` ranks.
    pub fn new(rank: u32, size: u32) -> Rc<Shared> {
        Shared::with_seed(rank, size, 0)
    }

    /// The same, with the seed of the world, for programs that draw random numbers.
    pub fn with_seed(rank: u32, size: u32, seed: u64) -> Rc<Shared> {
        Rc::new(Shared { rank, size, seed, state: RefCell::default() })
    }

    /// Takes the next call to perform. If the network accepts no send yet, a program with [`Rank::wait_any`]
    /// performs a later call that is no send.
    ///
    /// - `sends_wait`: the network accepts no send yet.
    pub fn next_call(&self, sends_wait: bool) -> Option<Call> {
        let State { calls, wait_any, .. } = &mut *self.state.borrow_mut();
        let Some(wait_any) = wait_any else { return State::next_of(calls) };
        let others = calls.iter().position(|call| !call.sends());
        wait_any.place = others.filter(|_| sends_wait).unwrap_or(0);
        wait_any.call = wait_any.calls.remove(wait_any.place)?;
        calls.remove(wait_any.place)
    }

    /// Puts back the call that was taken last, because the driver cannot perform it yet.
    pub fn postpone(&self, call: Call) {
        let State { calls, wait_any, .. } = &mut *self.state.borrow_mut();
        let Some(wait_any) = wait_any else { return calls.push_front(call) };
        calls.insert(wait_any.place, call);
        wait_any.calls.insert(wait_any.place, wait_any.call);
    }

    /// Whether an operation has completed that a program with [`Rank::wait_any`] has not taken.
    #[inline]
    pub fn has_completed(&self) -> bool {
        self.state.borrow().wait_any.as_ref().is_some_and(|wait_any| !wait_any.handles.is_empty())
    }

    /// Whether the program uses [`Rank::wait_any`].
    #[inline]
    pub fn uses_wait_any(&self) -> bool {
        self.state.borrow().wait_any.is_some()
    }

    /// The time since which the program could make the call that was taken last. `None` for programs without
    /// [`Rank::wait_any`].
    #[inline]
    pub fn ready_since(&self) -> Option<Picoseconds> {
        self.state.borrow().wait_any.as_ref().map(|wait_any| wait_any.call)
    }

    fn note_offload_call(&self, handle: Handle, call: OffloadCall) {
        self.state.borrow_mut().offload_calls.get_or_insert_default().0.insert(handle.0, call);
    }

    /// What the offloaded machines are to do for [`Call::Offload`] with this handle.
    ///
    /// # Panics
    /// Panics if there is no such call, or it was taken before.
    pub fn take_offload_call(&self, handle: Handle) -> OffloadCall {
        let calls = &mut self.state.borrow_mut().offload_calls;
        calls.as_mut().and_then(|calls| calls.0.remove(&handle.0)).expect("an offload call is taken once")
    }

    /// Notes what [`Shared::started`] returns while the operation is pending.
    pub fn begin(&self, handle: Handle, started: StartedOperation) {
        self.state.borrow_mut().operations[handle.0 as usize] = Operation::pending(started);
    }

    /// The driver's notes about a pending operation.
    ///
    /// # Panics
    /// Panics if the operation is not pending.
    pub fn started(&self, handle: Handle) -> StartedOperation {
        let operation = self.state.borrow().operations[handle.0 as usize];
        operation.started().unwrap_or_else(|| panic!("{handle:?} is not pending: {operation:?}"))
    }

    /// Whether the operation is pending.
    #[inline]
    pub fn is_pending(&self, handle: Handle) -> bool {
        matches!(self.state.borrow().operations[handle.0 as usize], Operation::Pending { .. })
    }

    /// Whether the next call to perform is a send.
    pub fn sends_next(&self) -> bool {
        self.state.borrow().calls.front().is_some_and(Call::sends)
    }

    /// Whether calls wait to be performed.
    pub fn has_calls(&self) -> bool {
        !self.state.borrow().calls.is_empty()
    }

    /// Completes an operation. Returns whether the program waits for it.
    pub fn complete(&self, handle: Handle, status: Status) -> bool {
        self.complete_since(handle, status, 0)
    }

    /// The same, with the start time `since` of what completed the operation.
    pub fn complete_since(&self, handle: Handle, status: Status, since: Picoseconds) -> bool {
        let state = &mut *self.state.borrow_mut();
        state.operations[handle.0 as usize] = Operation::done(status);
        if let Some(wait_any) = &mut state.wait_any {
            wait_any.handles.push_back((handle, since));
        }
        state.waits_in_wait_any || state.awaited == Some(handle)
    }
}

/// A program. Its driver polls it whenever it can resume.
pub type Program = Pin<Box<dyn Future<Output = ()>>>;

/// Runs the program until it waits. Returns whether the program has ended.
pub fn run(program: &mut Program) -> bool {
    program.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
}
