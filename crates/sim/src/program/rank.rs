//! What a program sees of its rank ([`Rank`]): the calls that it can make, and the futures of its waits.

mod offload;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::{Call, Handle, Operation, Shared, Status};
use crate::Picoseconds;
pub use offload::GroupOperation;

/// A program's view of its rank.
#[derive(Clone, Debug)]
pub struct Rank(Rc<Shared>);

impl Rank {
    /// The view of the state that `shared` holds.
    pub fn new(shared: &Rc<Shared>) -> Rank {
        Rank(Rc::clone(shared))
    }

    /// Our number, from 0.
    pub fn rank(&self) -> u32 {
        self.0.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.0.size
    }

    /// The seed of the world. Random numbers of a program depend on this seed, its parameters and its rank
    /// only.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// Begins to send `bytes` bytes.
    pub fn isend(&self, to: u32, tag: u64, bytes: u64) -> Handle {
        assert!(to < self.0.size, "rank {to} of {}", self.0.size);
        self.call(|handle| Call::Send { handle, to, tag, bytes })
    }

    /// Posts a receive of at most `bytes` bytes from `from`; `None` is any rank.
    pub fn irecv(&self, from: Option<u32>, tag: u64, bytes: u64) -> Handle {
        self.call(|handle| Call::Receive { handle, from, tag, bytes })
    }

    /// Waits until an operation has completed.
    pub fn wait(&self, handle: Handle) -> impl Future<Output = Status> {
        Wait { shared: &self.0, handle }
    }

    /// Waits until all of these operations have completed.
    pub async fn wait_all(&self, handles: impl IntoIterator<Item = Handle>) {
        for handle in handles {
            self.wait(handle).await;
        }
    }

    /// The program uses [`Rank::wait_any`] instead of `wait` from now on.
    ///
    /// # Panics
    /// Panics if the program has made calls before.
    pub fn use_wait_any(&self) {
        let state = &mut *self.0.state.borrow_mut();
        assert!(state.calls.is_empty(), "calls were made before");
        state.wait_any.get_or_insert_default();
    }

    /// Waits until any operation begun since [`Rank::use_wait_any`] has completed.
    pub async fn wait_any(&self) -> (Handle, Status) {
        WaitAny { shared: &self.0 }.await
    }

    /// Sends; the buffer may be used again on return.
    pub async fn send(&self, to: u32, tag: u64, bytes: u64) {
        let handle = self.isend(to, tag, bytes);
        self.wait(handle).await;
    }

    /// Receives a message.
    pub async fn recv(&self, from: Option<u32>, tag: u64, bytes: u64) -> Status {
        let handle = self.irecv(from, tag, bytes);
        self.wait(handle).await
    }

    /// Begins a send to one rank and a receive from another. The returned future waits for both.
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

    /// Computes for `ps` without calling the library.
    pub fn compute(&self, ps: Picoseconds) {
        self.0.state.borrow_mut().call(Call::Compute { ps, handle: None });
    }

    /// The same as an operation, which completes at the end of the computation.
    pub fn icompute(&self, ps: Picoseconds) -> Handle {
        self.call(|handle| Call::Compute { ps, handle: Some(handle) })
    }

    /// The time after all calls so far.
    pub async fn clock(&self) -> Picoseconds {
        let handle = self.call(|handle| Call::Clock { handle });
        self.wait(handle).await.bytes
    }

    /// Slots of `peer`'s mailbox that are ours: credits that we have, credits that travel to us, and slots
    /// that hold our packets. An instrument of experiments, not an MPI call.
    pub async fn credits(&self, peer: u32) -> u64 {
        let handle = self.call(|handle| Call::Credits { handle, peer });
        self.wait(handle).await.bytes
    }

    /// Writes a number into the records of the run.
    pub fn record(&self, name: &'static str, value: f64) {
        self.record_of_series(name, 0, value);
    }

    /// Writes one number of a series, such as one for each call.
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
        let operation = state.operations[index];
        if let Some(status) = operation.status() {
            state.free(self.handle);
            state.awaited = None;
            return Poll::Ready(status);
        }
        assert!(!matches!(operation, Operation::Unused { .. }), "{:?} is waited for twice", self.handle);
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
        let wait_any = state.wait_any.as_mut().expect("`use_wait_any` comes first");
        let next = wait_any.handles.pop_front();
        state.waits_in_wait_any = next.is_none();
        let Some((handle, since)) = next else { return Poll::Pending };
        wait_any.since = since;
        let operation = state.free(handle);
        let status =
            operation.status().unwrap_or_else(|| panic!("{handle:?} has completed and is {operation:?}"));
        Poll::Ready((handle, status))
    }
}
