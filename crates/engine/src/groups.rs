//! Groups of endpoints and their reductions: [`Engine::join_group`], [`Engine::reduce`] and [`Engine::leave_group`].
//!
//! The machine of groups does the work ([`weir_proto::offload::group`]). This file posts the commands to it, and
//! returns an error if there are too many groups, operations of one, or operations. `collectives.rs` has the calls for
//! programs that want all operations, at any length. A group belongs to the calls of one of the two files.

use weir_link::Link;
use weir_link::memory::UserMemory;
use weir_proto::Space;
use weir_proto::offload::group::{GroupCommand, MAX_GROUPS, MAX_ROUNDS, Membership, Operation as Collective};
use weir_proto::offload::reduce::Vector;
use weir_proto::offload::{Combination, OffloadCommand};

use crate::{Engine, MAX_OPERATIONS, Operation, Post, PostError};

/// Our part of a reduction.
#[derive(Debug)]
pub struct ReduceArguments {
    /// The group.
    pub group: u32,
    /// How the vectors are combined, in the order of the ranks.
    pub combination: Combination,
    /// Our vector, with as many elements as those of the other members. That of the root gets the result. At most
    /// [`weir_proto::offload::reduce::MAX_VECTOR_BYTES`].
    pub memory: UserMemory,
}

impl<L: Link> Engine<L> {
    /// Takes part in a group. Members may join in any order.
    ///
    /// # Errors
    /// [`PostError::Again`]: there are as many groups as allowed, or one with this number.
    ///
    /// # Panics
    /// If the rank is not that of a member.
    pub fn join_group(&mut self, membership: Membership) -> Result<(), PostError> {
        self.post_offloaded(OffloadCommand::Group(GroupCommand::Join(membership)))
            .map_err(|_| PostError::Again { limit: MAX_GROUPS as u32 })
    }

    /// Takes part in a group no more. Reductions of other members that need us end with [`weir_proto::Outcome::Lost`].
    pub fn leave_group(&mut self, group: u32) {
        self.post_offloaded(OffloadCommand::Group(GroupCommand::Leave { group }))
            .expect("leaving is not refused");
    }

    /// Starts the next reduction of a group. All members start the same ones in the same order. The completion comes with
    /// [`weir_proto::Outcome::Done`] when the parent in the tree has our part, and at the root when its buffer has the result. It is
    /// `Refused` if there is no such group or the vector is not valid, and `Lost` if a member is lost.
    ///
    /// # Errors
    /// [`PostError::Again`].
    pub fn reduce(&mut self, post: Post, mut arguments: ReduceArguments) -> Result<(), PostError> {
        self.post_reduce(post, &mut arguments)
    }

    /// [`Engine::reduce`] that leaves the buffer where it is if it is refused.
    pub(crate) fn post_reduce(
        &mut self,
        post: Post,
        arguments: &mut ReduceArguments,
    ) -> Result<(), PostError> {
        if self.io.operations.count() >= MAX_OPERATIONS as usize {
            return Err(PostError::Again { limit: MAX_OPERATIONS }); // before `begin` takes the buffer
        }
        let ReduceArguments { group, combination, ref mut memory } = *arguments;
        // Longer ones are refused by the machine.
        let bytes = u32::try_from(memory.bytes()).unwrap_or(u32::MAX);
        let request = self.begin(post, Operation::Collective, Space::Untagged, memory.take())?;
        let operation = Collective::Reduce(Vector { bytes, combination });
        let start = GroupCommand::Start { request, group, operation };
        self.post_offloaded(OffloadCommand::Group(start)).map_err(|_| {
            self.io.operations.give_back(request, memory);
            PostError::Again { limit: MAX_ROUNDS }
        })
    }
}
