//! Rank programs: async functions over the calls an MPI program makes.
//!
//! A program knows its rank and the number of ranks, and calls. It does not know who runs it: the world in virtual
//! time, or the real engine in a test. Calls queue up in [`Shared`] while the program runs; whoever drives takes
//! them out in order, performs them, notes what has completed, and lets the program go on when what it
//! waits for has.
//!
//! ```text
//! let request = rank.isend(1, TAG, 2048);      Call::Send { handle 0, to 1, .. } queued; the program runs on
//! rank.wait(request).await;                    the program stops: it waits for handle 0
//! driver: performs the call ... complete(0)    `can_go_on` is true now: the driver polls the program
//! ```

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use weir_proto::PeerFault;

use crate::Picoseconds;

/// A nonblocking operation under way. Waited for exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "every operation is waited for"]
pub struct Handle(pub u32);

/// What a wait tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Who sent the message (sends: our own rank).
    pub source: u32,
    /// Its tag.
    pub tag: u64,
    /// Its length. Unit: bytes.
    pub bytes: u64,
    /// It failed: the peer is lost, or somebody whose message the receive may have waited for.
    pub fault: Option<PeerFault>,
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
    /// Receive a message with this tag.
    Receive {
        /// Completes when the message is there.
        handle: Handle,
        /// Rank; `None` is any.
        from: Option<u32>,
        /// Tag.
        tag: u64,
        /// Length of the buffer. Unit: bytes.
        bytes: u64,
    },
    /// Work that does not call the library: nothing is received or sent meanwhile.
    Compute {
        /// How long.
        ps: Picoseconds,
        /// Completes with it, if somebody wants to know.
        handle: Option<Handle>,
    },
    /// Tell the time.
    Clock {
        /// Completes at once, with the time in [`Status::bytes`].
        handle: Handle,
    },
    /// How many slots of a peer's mailbox are ours: not a call of MPI but the instrument of an experiment. Takes no time.
    Credits {
        /// Completes at once, with the number in [`Status::bytes`]; 0 if the scheme has none, or the driver cannot tell.
        handle: Handle,
        /// Rank.
        peer: u32,
    },
    /// Leave a number in the records.
    Record {
        /// What it is.
        name: &'static str,
        /// Which of a series.
        index: u32,
        /// The number.
        value: f64,
    },
}

/// What a driver wants to remember of an operation while it is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Begun {
    /// What a send's wait will tell; nothing for a receive.
    pub tag: u64,
    /// As above, less than [`MESSAGE_BYTES`]. Unit: bytes.
    pub bytes: u64,
    /// When it was called.
    pub called_at: Picoseconds,
}

/// Bound: messages are shorter. Unit: bytes.
pub const MESSAGE_BYTES: u64 = 1 << 48;

/// A number among smaller ones, without the room that eight bytes in a row would leave between them.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(4))]
struct PackedU64(u64);

/// One operation. An all-to-all among many has as many as pairs, so what [`Begun`] and [`Status`] say stands here without them
/// and their padding.
#[derive(Clone, Copy, Debug)]
enum Slot {
    /// With the one that is taken after it.
    Free { next: Option<u32> },
    /// The length is in two parts.
    Open { tag: PackedU64, bytes_low: u32, bytes_high: u16, called_at: PackedU64 },
    /// With what [`Status`] says.
    Done { source: u32, tag: PackedU64, bytes: PackedU64, fault: Option<PeerFault> },
}

const _: () = assert!(size_of::<Slot>() == 24);

impl Slot {
    #[inline]
    fn open(begun: Begun) -> Slot {
        let Begun { tag, bytes, called_at } = begun;
        assert!(bytes < MESSAGE_BYTES, "a message of {bytes} bytes");
        let (bytes_low, bytes_high) = (bytes as u32, (bytes >> 32) as u16);
        Slot::Open { tag: PackedU64(tag), bytes_low, bytes_high, called_at: PackedU64(called_at) }
    }

    /// What was noted, if it is under way.
    #[inline]
    fn begun(self) -> Option<Begun> {
        let Slot::Open { tag: PackedU64(tag), bytes_low, bytes_high, called_at: PackedU64(called_at) } = self
        else {
            return None;
        };
        Some(Begun { tag, bytes: u64::from(bytes_high) << 32 | u64::from(bytes_low), called_at })
    }

    #[inline]
    fn done(status: Status) -> Slot {
        let Status { source, tag, bytes, fault } = status;
        Slot::Done { source, tag: PackedU64(tag), bytes: PackedU64(bytes), fault }
    }

    /// How it has ended, if it has.
    #[inline]
    fn status(self) -> Option<Status> {
        let Slot::Done { source, tag: PackedU64(tag), bytes: PackedU64(bytes), fault } = self else {
            return None;
        };
        Some(Status { source, tag, bytes, fault })
    }
}

/// Operations and calls that there is room for at first: there may be a million ranks, and most send one message and receive one.
const INITIAL_CAPACITY: usize = 2;
/// Room for calls that is kept when few wait.
const SPARE_CALLS: usize = 64;

#[derive(Debug, Default)]
struct State {
    calls: VecDeque<Call>,
    slots: Vec<Slot>,
    /// The free slot that is taken next.
    free: Option<u32>,
    /// The handle that the program waits for.
    awaited: Option<Handle>,
    /// For programs that take whatever ends next.
    ended: Option<Box<Ended>>,
    /// Such a program waits.
    awaits_any: bool,
}

/// What has ended and was not taken by such a program, and since when its calls could be made.
#[derive(Debug, Default)]
struct Ended {
    /// In order, each with the time at which what ended it began.
    handles: VecDeque<(Handle, Picoseconds)>,
    /// That time of the one taken last: since then calls can be made that are made now.
    since: Picoseconds,
    /// The same of the calls that wait, in order, and of the one that was taken last, and where that stood.
    calls: VecDeque<Picoseconds>,
    call: Picoseconds,
    place: usize,
}

impl State {
    /// The program has made a call.
    fn call(&mut self, call: Call) {
        if self.calls.capacity() == 0 {
            self.calls.reserve_exact(INITIAL_CAPACITY);
        }
        self.calls.push_back(call);
        if let Some(ended) = &mut self.ended {
            ended.calls.push_back(ended.since);
        }
    }

    /// The next of these.
    #[inline]
    fn next_of(calls: &mut VecDeque<Call>) -> Option<Call> {
        let call = calls.pop_front();
        // An all-to-all begins with all its calls, and of a thousand ranks that is much.
        if calls.capacity() > SPARE_CALLS && calls.len() < calls.capacity() / 4 {
            calls.shrink_to(calls.capacity() / 2);
        }
        call
    }

    /// An operation is under way.
    fn begin(&mut self) -> Handle {
        let open = Slot::open(Begun::default());
        let Some(index) = self.free else {
            if self.slots.capacity() == 0 {
                self.slots.reserve_exact(INITIAL_CAPACITY);
            }
            self.slots.push(open);
            return Handle(self.slots.len() as u32 - 1);
        };
        let Slot::Free { next } = std::mem::replace(&mut self.slots[index as usize], open) else {
            panic!("slot {index} is not free")
        };
        self.free = next;
        Handle(index)
    }

    /// An operation was waited for. Returns how it stood.
    fn free(&mut self, handle: Handle) -> Slot {
        let next = self.free.replace(handle.0);
        std::mem::replace(&mut self.slots[handle.0 as usize], Slot::Free { next })
    }
}

/// What a program and its driver share.
#[derive(Debug)]
pub struct Shared {
    rank: u32,
    size: u32,
    seed: u64,
    state: RefCell<State>,
}

impl Shared {
    /// For the program of `rank` among `size`.
    pub fn new(rank: u32, size: u32) -> Rc<Shared> {
        Shared::with_seed(rank, size, 0)
    }

    /// The same for a program that draws numbers from the seed of its world.
    pub fn with_seed(rank: u32, size: u32, seed: u64) -> Rc<Shared> {
        Rc::new(Shared { rank, size, seed, state: RefCell::default() })
    }

    /// The next call to perform. Of a program that takes whatever ends next, another one goes before a send that has to wait.
    ///
    /// - `sends_wait`: the network takes no send yet.
    pub fn next_call(&self, sends_wait: bool) -> Option<Call> {
        let State { calls, ended, .. } = &mut *self.state.borrow_mut();
        let Some(ended) = ended else { return State::next_of(calls) };
        let others = calls.iter().position(|call| !matches!(call, Call::Send { .. }));
        ended.place = others.filter(|_| sends_wait).unwrap_or(0);
        ended.call = ended.calls.remove(ended.place)?;
        calls.remove(ended.place)
    }

    /// Puts back the call that was taken last: it cannot be performed yet.
    pub fn postpone(&self, call: Call) {
        let State { calls, ended, .. } = &mut *self.state.borrow_mut();
        let Some(ended) = ended else { return calls.push_front(call) };
        calls.insert(ended.place, call);
        ended.calls.insert(ended.place, ended.call);
    }

    /// Whether something has ended that a program has not taken which takes whatever ends next.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.state.borrow().ended.as_ref().is_some_and(|ended| !ended.handles.is_empty())
    }

    /// Whether the program takes whatever ends next.
    #[inline]
    pub fn uses_wait_any(&self) -> bool {
        self.state.borrow().ended.is_some()
    }

    /// Since when the call that was taken last could have been made, for programs that take whatever ends next.
    #[inline]
    pub fn ready_since(&self) -> Option<Picoseconds> {
        self.state.borrow().ended.as_ref().map(|ended| ended.call)
    }

    /// Notes what will be asked for with [`Shared::begun`] until the operation has ended.
    pub fn begin(&self, handle: Handle, begun: Begun) {
        self.state.borrow_mut().slots[handle.0 as usize] = Slot::open(begun);
    }

    /// What was noted of an operation under way.
    ///
    /// # Panics
    /// If it is not under way.
    pub fn begun(&self, handle: Handle) -> Begun {
        let slot = self.state.borrow().slots[handle.0 as usize];
        slot.begun().unwrap_or_else(|| panic!("{handle:?} is not under way: {slot:?}"))
    }

    /// Whether an operation is under way.
    #[inline]
    pub fn is_under_way(&self, handle: Handle) -> bool {
        matches!(self.state.borrow().slots[handle.0 as usize], Slot::Open { .. })
    }

    /// Whether the next call to perform is a send.
    pub fn sends_next(&self) -> bool {
        matches!(self.state.borrow().calls.front(), Some(Call::Send { .. }))
    }

    /// Whether calls wait to be performed.
    pub fn has_calls(&self) -> bool {
        !self.state.borrow().calls.is_empty()
    }

    /// An operation has ended. Returns whether the program waits for it.
    pub fn complete(&self, handle: Handle, status: Status) -> bool {
        self.complete_since(handle, status, 0)
    }

    /// The same, by something that began at `since`.
    pub fn complete_since(&self, handle: Handle, status: Status, since: Picoseconds) -> bool {
        let state = &mut *self.state.borrow_mut();
        state.slots[handle.0 as usize] = Slot::done(status);
        if let Some(ended) = &mut state.ended {
            ended.handles.push_back((handle, since));
        }
        state.awaits_any || state.awaited == Some(handle)
    }
}

/// A program: polled by its driver whenever it can go on.
pub type Program = Pin<Box<dyn Future<Output = ()>>>;

/// Lets the program run until it waits. Returns whether it has ended.
pub fn run(program: &mut Program) -> bool {
    program.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// A program's view of its rank.
#[derive(Clone, Debug)]
pub struct Rank(Rc<Shared>);

impl Rank {
    /// The view onto what is shared with the driver.
    pub fn new(shared: &Rc<Shared>) -> Rank {
        Rank(Rc::clone(shared))
    }

    /// Our number, from 0.
    pub fn rank(&self) -> u32 {
        self.0.rank
    }

    /// How many there are.
    pub fn size(&self) -> u32 {
        self.0.size
    }

    /// The seed of the world. What a program draws from it must depend on nothing else but its parameters and its rank.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// Begins to send `bytes` bytes.
    pub fn isend(&self, to: u32, tag: u64, bytes: u64) -> Handle {
        assert!(to < self.0.size, "rank {to} of {}", self.0.size);
        self.call(|handle| Call::Send { handle, to, tag, bytes })
    }

    /// Posts a receive of at most `bytes` bytes from `from` (`None`: from anybody).
    pub fn irecv(&self, from: Option<u32>, tag: u64, bytes: u64) -> Handle {
        self.call(|handle| Call::Receive { handle, from, tag, bytes })
    }

    /// Waits until an operation has ended.
    pub fn wait(&self, handle: Handle) -> impl Future<Output = Status> {
        Wait { shared: &self.0, handle }
    }

    /// Waits for all of them.
    pub async fn wait_all(&self, handles: impl IntoIterator<Item = Handle>) {
        for handle in handles {
            self.wait(handle).await;
        }
    }

    /// From now on [`Rank::wait_any`] is used instead of `wait`.
    ///
    /// # Panics
    /// If calls were made before.
    pub fn use_wait_any(&self) {
        let state = &mut *self.0.state.borrow_mut();
        assert!(state.calls.is_empty(), "calls were made before");
        state.ended.get_or_insert_default();
    }

    /// Waits until any of the operations begun since [`Rank::use_wait_any`] has ended.
    pub async fn wait_any(&self) -> (Handle, Status) {
        WaitAny { shared: &self.0 }.await
    }

    /// Sends; the buffer may be used again on return.
    pub async fn send(&self, to: u32, tag: u64, bytes: u64) {
        let handle = self.isend(to, tag, bytes);
        self.wait(handle).await;
    }

    /// Receives.
    pub async fn recv(&self, from: Option<u32>, tag: u64, bytes: u64) -> Status {
        let handle = self.irecv(from, tag, bytes);
        self.wait(handle).await
    }

    /// Sends to one and receives from another at the same time. Both begin at once; what is returned waits for them.
    pub fn sendrecv(
        &self,
        to: u32,
        from: u32,
        tag: u64,
        send_bytes: u64,
        receive_bytes: u64,
    ) -> impl Future<Output = ()> {
        let receive = self.irecv(Some(from), tag, receive_bytes);
        let send = self.isend(to, tag, send_bytes);
        async move {
            self.wait(receive).await;
            self.wait(send).await;
        }
    }

    /// Works for `ps` without calling the library.
    pub fn compute(&self, ps: Picoseconds) {
        self.0.state.borrow_mut().call(Call::Compute { ps, handle: None });
    }

    /// The same as an operation.
    pub fn icompute(&self, ps: Picoseconds) -> Handle {
        self.call(|handle| Call::Compute { ps, handle: Some(handle) })
    }

    /// The time, after all calls made so far.
    pub async fn clock(&self) -> Picoseconds {
        let handle = self.call(|handle| Call::Clock { handle });
        self.wait(handle).await.bytes
    }

    /// Slots of `peer`'s mailbox that are ours: credits that we have, that are on their way, and that fill slots which are not
    /// retrieved yet. The reading of an instrument, not a call of MPI.
    pub async fn credits(&self, peer: u32) -> u64 {
        let handle = self.call(|handle| Call::Credits { handle, peer });
        self.wait(handle).await.bytes
    }

    /// Leaves a number in the records of the run.
    pub fn record(&self, name: &'static str, value: f64) {
        self.record_of_series(name, 0, value);
    }

    /// Leaves a number of a series, such as one for each call.
    pub fn record_of_series(&self, name: &'static str, index: u32, value: f64) {
        self.0.state.borrow_mut().call(Call::Record { name, index, value });
    }

    fn call(&self, call: impl FnOnce(Handle) -> Call) -> Handle {
        let state = &mut *self.0.state.borrow_mut();
        let handle = state.begin();
        state.call(call(handle));
        handle
    }
}

struct Wait<'a> {
    shared: &'a Shared,
    handle: Handle,
}

impl Future for Wait<'_> {
    type Output = Status;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Status> {
        let state = &mut *self.shared.state.borrow_mut();
        let index = self.handle.0 as usize;
        let slot = state.slots[index];
        if let Some(status) = slot.status() {
            state.free(self.handle);
            state.awaited = None;
            return Poll::Ready(status);
        }
        assert!(!matches!(slot, Slot::Free { .. }), "{:?} is waited for twice", self.handle);
        state.awaited = Some(self.handle);
        Poll::Pending
    }
}

struct WaitAny<'a> {
    shared: &'a Shared,
}

impl Future for WaitAny<'_> {
    type Output = (Handle, Status);

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<(Handle, Status)> {
        let state = &mut *self.shared.state.borrow_mut();
        let ended = state.ended.as_mut().expect("take_as_they_end comes first");
        let next = ended.handles.pop_front();
        state.awaits_any = next.is_none();
        let Some((handle, since)) = next else { return Poll::Pending };
        ended.since = since;
        let slot = state.free(handle);
        let status = slot.status().unwrap_or_else(|| panic!("{handle:?} has ended and is {slot:?}"));
        Poll::Ready((handle, status))
    }
}
