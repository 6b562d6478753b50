//! Receives of the MPI that operations of groups have taken: no message completes them, but the end of the operation.
//!
//! An MPI completes a request only for what its libfabric reports. So a non-blocking collective call of
//! `libweir-mpi.so` posts a receive by its MPI, and the operation takes it ([`crate::group_receives`]). The MPI then tests it,
//! waits for it and unpacks it like any other.
//!
//! They lie in a *source*: an endpoint of the domain's table without an engine. While it has receives, it is among the
//! endpoints of the queue that gets their entries, so each read of the queue advances their operations. Those that meet other
//! nodes get the engine of the endpoint whose receives they have taken. A queue without such receives does not know of all this,
//! and its reads cost no instruction for it.

use weir_engine::delivery::Delivery;
use weir_engine::{Completion, Engine, Operation, Post};
use weir_link::memory::UserMemory;
use weir_proto::{Envelope, Outcome, Peer, PeerFault, Space};

use super::cq_writer::{DomainQueues, EndpointBindings};

/// An operation of a group, in progress.
pub trait GroupOperation: Send {
    /// A number of its group, which no other group has at the same time.
    fn group(&self) -> usize;

    /// Length of the result. Unit: bytes.
    fn result_bytes(&self) -> usize;

    /// Starts and tests what it can. Returns whether it has finished; then `result` has the result. It is not called again
    /// after that, or after an error.
    ///
    /// - `engine`: that of the endpoint. `None`: it closes.
    /// - `result`: the same memory in all calls, of [`GroupOperation::result_bytes`] bytes.
    ///
    /// # Errors
    /// The group has failed.
    fn advance(&mut self, engine: Option<&mut Engine>, result: &mut [u8]) -> Result<bool, PeerFault>;

    /// Whether a part of it has started. Operations of a group start in the order in which they were posted.
    fn has_begun(&self) -> bool;
}

/// Where the operation leaves its result.
enum Room {
    /// In the buffer of the receive.
    Buffer(usize),
    /// In memory of ours, since the buffer has several pieces, or gets something else.
    Own(Vec<u8>),
}

/// A receive that an operation has taken.
pub struct TakenReceive {
    post: Post,
    tag: u64,
    memory: UserMemory,
    operation: Box<dyn GroupOperation>,
    room: Room,
    delivery: Delivery,
}

impl TakenReceive {
    /// - `post`, `tag`, `memory`: of the receive.
    /// - `delivery`: what the buffer gets of the result.
    ///
    /// # Panics
    /// If the buffer is shorter than what it gets.
    pub fn new(
        post: Post,
        tag: u64,
        memory: UserMemory,
        operation: Box<dyn GroupOperation>,
        delivery: Delivery,
    ) -> TakenReceive {
        let bytes = operation.result_bytes();
        let room = match (delivery, memory.contiguous_address()) {
            (Delivery::Whole, Some(address)) => Room::Buffer(address),
            _ => Room::Own(vec![0; bytes]),
        };
        let received = delivery.bytes(bytes);
        assert!(memory.bytes() >= received as u64, "{} bytes for a result of {received}", memory.bytes());
        TakenReceive { post, tag, memory, operation, room, delivery }
    }

    /// Advances the operation. Returns the outcome of the receive, when there is one.
    fn advance(&mut self, engine: Option<&mut Engine>) -> Option<Outcome> {
        let bytes = self.operation.result_bytes();
        let result = match &mut self.room {
            _ if bytes == 0 => &mut [],
            // SAFETY: the buffer has so many bytes, and is the program's until the receive completes.
            Room::Buffer(address) => unsafe { std::slice::from_raw_parts_mut(*address as *mut u8, bytes) },
            Room::Own(result) => result.as_mut_slice(),
        };
        match self.operation.advance(engine, result) {
            Ok(false) => return None,
            Ok(true) => {}
            Err(fault) => return Some(Outcome::Lost { peer: None, fault }),
        }
        let received_bytes = self.delivery.bytes(bytes);
        if let Room::Own(result) = &self.room {
            let mut delivered = vec![0; received_bytes];
            self.delivery.write(result, &mut delivered);
            self.memory.write(0, &delivered);
        }
        Some(received(self.tag, received_bytes as u64))
    }
}

/// The outcome of a receive that has got so many bytes. It has no sender, which nobody asks for.
fn received(tag: u64, bytes: u64) -> Outcome {
    let envelope = Envelope { from: Peer(u32::MAX), tag, data: None, length: bytes };
    Outcome::Received { envelope, bytes, offset: 0, last: true }
}

/// Writes the completion of a receive that ends at once, without data.
pub fn write_empty(bindings: &mut EndpointBindings, bound: &mut DomainQueues, post: Post, tag: u64) {
    write(bindings, bound, post, received(tag, 0));
}

fn write(bindings: &mut EndpointBindings, bound: &mut DomainQueues, post: Post, outcome: Outcome) {
    let (operation, space) = (Operation::Receive, Space::Tagged);
    bindings.write_deferred(&Completion { post, operation, space, outcome, buffer: 0 }, bound, |_| None);
}

/// The receives of a source, in the order in which they were posted.
#[derive(Default)]
pub struct TakenReceives(Vec<TakenReceive>);

impl TakenReceives {
    /// Adds one, behind the others.
    pub fn add(&mut self, receive: TakenReceive) {
        self.0.push(receive);
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Advances the operations, and writes the completions of those that have ended. Returns their number.
    ///
    /// - `engine`: that of the endpoint whose receives they are. `None`: it closes.
    pub fn advance(
        &mut self,
        mut engine: Option<&mut Engine>,
        bindings: &mut EndpointBindings,
        bound: &mut DomainQueues,
    ) -> usize {
        let before = self.0.len();
        let mut held_back = Vec::new();
        self.0.retain_mut(|receive| {
            let group = receive.operation.group();
            if held_back.contains(&group) {
                return true; // an earlier operation of the group has not begun
            }
            match receive.advance(engine.as_deref_mut()) {
                Some(outcome) => write(bindings, bound, receive.post, outcome),
                None if receive.operation.has_begun() => return true,
                None => {
                    held_back.push(group);
                    return true;
                }
            }
            false
        });
        before - self.0.len()
    }
}
