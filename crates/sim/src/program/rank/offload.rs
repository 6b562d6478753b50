//! What a program can ask of the offloaded machines of its rank: changes of words of other ranks, and operations of a
//! group. It can also read and poll its own words. The machines run beside the endpoint of the rank, or on its NIC
//! ([`crate::world::WorldSpec::machines_on_nic`]); a program does not see the difference.
//!
//! ```text
//! rank.join_group(7, &[0, 1, 2, 3], None).await
//! let reduction = rank.ireduce(7, SUM, vector);          queues Call::Offload; the program continues
//! let (status, vector) = rank.ended(reduction).await;    member 0 has the result
//! ```

use std::cell::RefCell;
use std::rc::Rc;

use weir_proto::offload::group::{Operation, Shape};
use weir_proto::offload::reduce::Vector;
use weir_proto::offload::{Combination, WordOperation, WordType, WordUpdate};

use super::super::{Call, Handle, OffloadCall, Status, WORDS};
use super::Rank;

/// An operation of a group under way.
#[derive(Debug)]
#[must_use = "every operation is waited for"]
pub struct GroupOperation {
    handle: Handle,
    vector: Rc<RefCell<Vec<u8>>>,
}

impl GroupOperation {
    /// The operation, for [`Rank::wait_any`].
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// The vector: the result where there is one, if the operation has completed without fault.
    pub fn into_vector(self) -> Vec<u8> {
        self.vector.take()
    }
}

impl Rank {
    /// Begins to change a word of another rank, and to fetch the old word.
    ///
    /// # Panics
    /// If there is no such rank or word, or the rank is our own.
    pub fn ifetch(&self, to: u32, word: u32, operation: WordOperation, operand: u64) -> Handle {
        self.update(to, word, update(operation, operand))
    }

    /// Begins to replace a word of another rank by `operand` if it equals `compare`, and to fetch the old word.
    ///
    /// # Panics
    /// As [`Rank::ifetch`].
    pub fn icompare_swap(&self, to: u32, word: u32, compare: u64, operand: u64) -> Handle {
        let (operation, word_type) = (WordOperation::CompareSwap, WordType::U64);
        self.update(to, word, WordUpdate { operation, word_type, operand, compare })
    }

    fn update(&self, to: u32, word: u32, update: WordUpdate) -> Handle {
        assert!(to < self.size() && to != self.rank(), "a word of rank {to}; allowed: ranks of others");
        check_word(word);
        self.offload(OffloadCall::Fetch { to, word, update })
    }

    /// Adds to a word of another rank. Returns the old word.
    pub async fn fetch_add(&self, to: u32, word: u32, operand: u64) -> u64 {
        let handle = self.ifetch(to, word, WordOperation::Sum, operand);
        self.wait(handle).await.bytes
    }

    /// A word of our own memory, which others may have changed.
    ///
    /// # Panics
    /// If there is no such word.
    pub async fn own_word(&self, word: u32) -> u64 {
        self.change_own_word(word, update(WordOperation::Read, 0)).await
    }

    /// Writes a word of our own memory.
    ///
    /// # Panics
    /// If there is no such word.
    pub async fn set_own_word(&self, word: u32, value: u64) {
        self.change_own_word(word, update(WordOperation::Write, value)).await;
    }

    /// Changes a word of our own memory as others do it. Returns the old word.
    ///
    /// # Panics
    /// If there is no such word.
    pub async fn change_own_word(&self, word: u32, update: WordUpdate) -> u64 {
        check_word(word);
        let handle = self.offload(OffloadCall::OwnWord { word, update });
        self.wait(handle).await.bytes
    }

    /// Polls a word of our own memory until it is not `seen`. Returns it. The rank serves others meanwhile.
    ///
    /// # Panics
    /// If there is no such word.
    pub async fn word_changes(&self, word: u32, seen: u64) -> u64 {
        check_word(word);
        let handle = self.offload(OffloadCall::WatchWord { word, seen });
        self.wait(handle).await.bytes
    }

    /// Begins to send a message to each of these ranks. The library writes it once, and the NIC sends copies. Each operation
    /// completes like a send.
    ///
    /// # Panics
    /// If one of them is no rank, or there is none.
    pub fn imulti_send(&self, to: &[u32], tag: u64, bytes: u64) -> Vec<Handle> {
        assert!(
            !to.is_empty() && to.iter().all(|&rank| rank < self.size()),
            "{to:?} of {} ranks",
            self.size()
        );
        let state = &mut *self.0.state.borrow_mut();
        let copies: Vec<(u32, Handle)> = to.iter().map(|&rank| (rank, state.begin())).collect();
        let handles: Vec<Handle> = copies.iter().map(|(_, handle)| *handle).collect();
        let call = OffloadCall::MultiSend { copies, tag, bytes };
        state.offload_calls.get_or_insert_default().0.insert(handles[0].0, call);
        state.call(Call::Offload { handle: handles[0] });
        handles
    }

    /// Takes part in a group, whose members are these ranks. The first is the root. Members may join in any order.
    /// [`Status::refused`]: we are in as many groups as allowed, or in one with this number.
    ///
    /// - `patience_ns`: the group fails if an operation waits longer for others. `None`: it waits.
    ///
    /// # Panics
    /// If we are not one of the members, or one of them is no rank.
    pub async fn join_group(&self, group: u32, members: &[u32], patience_ns: Option<u64>) -> Status {
        self.join_shaped_group(group, members, patience_ns, Shape::default()).await
    }

    /// [`Rank::join_group`] for a group whose operations travel in this way.
    ///
    /// # Panics
    /// As [`Rank::join_group`].
    pub async fn join_shaped_group(
        &self,
        group: u32,
        members: &[u32],
        patience_ns: Option<u64>,
        shape: Shape,
    ) -> Status {
        assert!(
            members.iter().all(|&rank| rank < self.size()),
            "members {members:?} of {} ranks",
            self.size()
        );
        let place = members.iter().position(|&rank| rank == self.rank());
        let rank =
            place.unwrap_or_else(|| panic!("rank {} joins a group of {members:?}", self.rank())) as u32;
        let members = members.to_vec();
        let handle = self.offload(OffloadCall::Join { group, members, rank, patience_ns, shape });
        self.wait(handle).await
    }

    /// Takes part in a group no more. Operations of other members that need us fail.
    pub async fn leave_group(&self, group: u32) {
        let handle = self.offload(OffloadCall::Leave { group });
        self.wait(handle).await;
    }

    /// Starts a reduction of a group to its first member. All members start the same operations in the same order. It
    /// completes when the vector is on its way, and at the root when the result is there. [`Status::refused`]: there is no
    /// such group, or the vector is not valid ([`Vector::is_valid`]).
    pub fn ireduce(&self, group: u32, combination: Combination, vector: Vec<u8>) -> GroupOperation {
        self.start(group, Operation::Reduce(Vector { bytes: length(&vector), combination }), vector)
    }

    /// Starts a reduction whose result all members get. Otherwise as [`Rank::ireduce`].
    pub fn iall_reduce(&self, group: u32, combination: Combination, vector: Vec<u8>) -> GroupOperation {
        self.start(group, Operation::AllReduce(Vector { bytes: length(&vector), combination }), vector)
    }

    /// Starts a broadcast from the member `root`, by its place in the group. The vectors have one length, and all get that
    /// of the root. It completes at once at the root, and elsewhere when the vector is there. [`Status::refused`] as in
    /// [`Rank::ireduce`].
    pub fn ibroadcast(&self, group: u32, root: u32, vector: Vec<u8>) -> GroupOperation {
        self.start(group, Operation::Broadcast { root, bytes: length(&vector) }, vector)
    }

    /// Starts an exchange: the vector goes to the member `distance` places behind us, and that of the member as far before us
    /// takes its place. [`Status::refused`] as in [`Rank::ireduce`].
    pub fn iexchange(&self, group: u32, distance: u32, vector: Vec<u8>) -> GroupOperation {
        self.start(group, Operation::Exchange { distance, bytes: length(&vector) }, vector)
    }

    /// Starts a gather of blocks of `bytes` bytes at the member `root`, by its place in the group. The vector of the root has all
    /// blocks, from its own on in the order of places, in a circle; that of another member is its own block.
    /// [`Status::refused`] as in [`Rank::ireduce`].
    pub fn igather(&self, group: u32, root: u32, bytes: u32, vector: Vec<u8>) -> GroupOperation {
        self.start(group, Operation::Gather { root, bytes }, vector)
    }

    /// Starts a scatter from the member `root`, with vectors as for [`Rank::igather`].
    pub fn iscatter(&self, group: u32, root: u32, bytes: u32, vector: Vec<u8>) -> GroupOperation {
        self.start(group, Operation::Scatter { root, bytes }, vector)
    }

    /// Starts an all-gather of blocks of `bytes` bytes. The vector has those of all, from our own on in the order of places, in a
    /// circle. [`Status::refused`] as in [`Rank::ireduce`].
    pub fn iall_gather(&self, group: u32, bytes: u32, vector: Vec<u8>) -> GroupOperation {
        self.start(group, Operation::AllGather { bytes }, vector)
    }

    /// Starts an all-to-all with a vector as for [`Rank::iall_gather`]: what comes takes the place of what goes there.
    pub fn iall_to_all(&self, group: u32, bytes: u32, vector: Vec<u8>) -> GroupOperation {
        self.start(group, Operation::AllToAll { bytes }, vector)
    }

    /// Starts a barrier of a group. It completes when all members have started it.
    pub fn ibarrier(&self, group: u32) -> GroupOperation {
        self.start(group, Operation::Barrier, Vec::new())
    }

    fn start(&self, group: u32, operation: Operation, vector: Vec<u8>) -> GroupOperation {
        let vector = Rc::new(RefCell::new(vector));
        let call = OffloadCall::Start { group, operation, vector: vector.clone() };
        GroupOperation { handle: self.offload(call), vector }
    }

    /// Waits until an operation of a group has completed. Returns its vector.
    pub async fn ended(&self, operation: GroupOperation) -> (Status, Vec<u8>) {
        let status = self.wait(operation.handle).await;
        (status, operation.into_vector())
    }

    fn offload(&self, call: OffloadCall) -> Handle {
        let handle = self.call(|handle| Call::Offload { handle });
        self.0.note_offload_call(handle, call);
        handle
    }
}

/// The length of a vector in a command. A longer one is refused.
fn length(vector: &[u8]) -> u32 {
    u32::try_from(vector.len()).unwrap_or(u32::MAX)
}

/// A change of a word without a compare value.
fn update(operation: WordOperation, operand: u64) -> WordUpdate {
    WordUpdate { operation, word_type: WordType::U64, operand, compare: 0 }
}

fn check_word(word: u32) {
    assert!(word < WORDS, "word {word}; allowed: 0 to {}", WORDS - 1);
}
