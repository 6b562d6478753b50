//! What a program can ask of the offloaded machines of its rank: changes of words of other ranks, and reductions of a
//! group. The machines run beside the endpoint of the rank, or on its NIC
//! ([`crate::world::WorldSpec::machines_on_nic`]); a program does not see the difference.
//!
//! ```text
//! rank.join_group(7, &[0, 1, 2, 3], None).await
//! let reduction = rank.ireduce(7, SUM, vector);           queues Call::Offload; the program continues
//! let (status, vector) = rank.reduced(reduction).await;   member 0 has the result
//! ```

use std::cell::RefCell;
use std::rc::Rc;

use weir_proto::offload::{Combination, WordOperation, WordType, WordUpdate};

use super::super::{Call, Handle, OffloadCall, Status, WORDS};
use super::Rank;

/// A reduction under way.
#[derive(Debug)]
#[must_use = "every operation is waited for"]
pub struct Reduction {
    handle: Handle,
    vector: Rc<RefCell<Vec<u8>>>,
}

impl Reduction {
    /// The operation, for [`Rank::wait_any`].
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// The vector: at the root the result, if the operation has completed without fault.
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
        self.update(to, word, WordUpdate { operation, word_type: WordType::U64, operand, compare: 0 })
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
        assert!(word < WORDS, "word {word}; allowed: 0 to {}", WORDS - 1);
        self.offload(OffloadCall::Fetch { to, word, update })
    }

    /// Adds to a word of another rank. Returns the old word.
    pub async fn fetch_add(&self, to: u32, word: u32, operand: u64) -> u64 {
        let handle = self.ifetch(to, word, WordOperation::Sum, operand);
        self.wait(handle).await.bytes
    }

    /// Takes part in a group, whose members are these ranks. The first is the root. Members may join in any order.
    /// [`Status::refused`]: we are in as many groups as allowed, or in one with this number.
    ///
    /// - `patience_ns`: the group fails if a reduction waits longer for others. `None`: it waits.
    ///
    /// # Panics
    /// If we are not one of the members, or one of them is no rank.
    pub async fn join_group(&self, group: u32, members: &[u32], patience_ns: Option<u64>) -> Status {
        assert!(
            members.iter().all(|&rank| rank < self.size()),
            "members {members:?} of {} ranks",
            self.size()
        );
        let place = members.iter().position(|&rank| rank == self.rank());
        let rank =
            place.unwrap_or_else(|| panic!("rank {} joins a group of {members:?}", self.rank())) as u32;
        let handle = self.offload(OffloadCall::Join { group, members: members.to_vec(), rank, patience_ns });
        self.wait(handle).await
    }

    /// Takes part in a group no more. Reductions of other members that need us fail.
    pub async fn leave_group(&self, group: u32) {
        let handle = self.offload(OffloadCall::Leave { group });
        self.wait(handle).await;
    }

    /// Starts the next reduction of a group. All members start the same ones in the same order. It completes when the vector
    /// is on its way, and at the root when the result is there. [`Status::refused`]: there is no such group, or the vector
    /// is not valid ([`weir_proto::offload::reduce::Vector::is_valid`]).
    pub fn ireduce(&self, group: u32, combination: Combination, vector: Vec<u8>) -> Reduction {
        let vector = Rc::new(RefCell::new(vector));
        let call = OffloadCall::Reduce { group, combination, vector: vector.clone() };
        Reduction { handle: self.offload(call), vector }
    }

    /// Waits until a reduction has completed. Returns its vector.
    pub async fn reduced(&self, reduction: Reduction) -> (Status, Vec<u8>) {
        let status = self.wait(reduction.handle).await;
        (status, reduction.into_vector())
    }

    fn offload(&self, call: OffloadCall) -> Handle {
        let handle = self.call(|handle| Call::Offload { handle });
        self.0.note_offload_call(handle, call);
        handle
    }
}
