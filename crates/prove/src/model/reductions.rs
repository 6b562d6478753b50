//! Reductions of a search: programs join a group at any moment, and start reductions.
//!
//! Each word of a vector is a list of contributions, and combining appends. So the result of the root must be the list of
//! all ranks in order, for the reduction that is next.

use std::sync::Arc;

use weir_proto::offload::reduce::{Membership, ReduceCommand, ReducePacket, Vector};
use weir_proto::offload::{Combination, OffloadCommand, WORD_BYTES, WordOperation, WordType};
use weir_proto::{Outcome, Peer, Request};

use super::checks::{Violation, violation};
use super::machines::Element;
use super::{Effect, Happened, Setup, State};

const GROUP: u32 = 0;

/// What a machine is told about the vectors. The search has its own arithmetic.
const COMBINATION: Combination = Combination { operation: WordOperation::Sum, word_type: WordType::U64 };

impl Setup {
    /// The number of the first reduction that has not ended at the root, modulo 2^32.
    pub(super) fn first_reduction(&self, state: &State) -> u32 {
        self.offload.members.first().map_or(0, |root| state.machines.ranks[*root as usize].ended)
    }

    pub(super) fn may_start(&self, state: &State, who: u32) -> bool {
        let rank = &state.machines.ranks[who as usize];
        rank.joined && (rank.reductions.len() as u32) < self.offload.max_reductions
    }

    pub(super) fn join(&self, state: &mut State, who: u32, effect: &mut Effect) -> Result<(), Violation> {
        let members = self.offload.members.iter().map(|member| Peer(*member)).collect();
        let rank = self.rank_of(who);
        let membership = Membership { group: GROUP, members, rank, patience_ns: None };
        Arc::make_mut(&mut state.machines).ranks[who as usize].joined = true;
        let command = OffloadCommand::Reduce(ReduceCommand::Join(membership));
        self.post_offloaded(state, who, command, effect).map(|_| ())
    }

    pub(super) fn start_reduction(
        &self,
        state: &mut State,
        who: u32,
        effect: &mut Effect,
    ) -> Result<(), Violation> {
        let rank = self.rank_of(who);
        let machine = &mut Arc::make_mut(&mut state.machines).ranks[who as usize];
        let contents = vec![vec![(rank, machine.started)]; self.offload.vector_words as usize];
        let request = machine.request(contents);
        machine.started = machine.started.wrapping_add(1);
        machine.reductions.push_back(request);
        let vector = Vector { bytes: self.offload.vector_words * WORD_BYTES, combination: COMBINATION };
        let command = OffloadCommand::Reduce(ReduceCommand::Start { request, group: GROUP, vector });
        self.post_offloaded(state, who, command, effect).map(|_| ())
    }

    /// The machine of `us` has completed a reduction.
    pub(super) fn reduction_ended(
        &self,
        state: &mut State,
        us: u32,
        request: Request,
        outcome: Outcome,
        contents: &[Element],
        effect: &mut Effect,
    ) -> Result<(), Violation> {
        let rank = self.rank_of(us);
        let machine = &mut Arc::make_mut(&mut state.machines).ranks[us as usize];
        let number = machine.ended;
        let result = (0..self.offload.members.len() as u32).map(|rank| (rank, number)).collect::<Vec<_>>();
        let right = rank != 0 || contents.iter().all(|element| *element == result);
        if machine.reductions.pop_front() != Some(request) || outcome != Outcome::Done || !right {
            let detail = format!("reduction {number} of rank {rank} ends with {outcome:?}, {contents:?}");
            return violation("reduction", detail);
        }
        machine.ended = number.wrapping_add(1);
        effect.happened |= if rank == 0 { Happened::Reduced.bit() } else { 0 };
        Ok(())
    }

    /// In a state at rest, a reduction has ended at each member that waits for no program. At most three members, so
    /// all others are children of the root.
    pub(super) fn check_reductions_at_rest(&self, state: &State) -> Result<(), Violation> {
        let Some((root, children)) = self.offload.members.split_first() else { return Ok(()) };
        let rank = |member: u32| &state.machines.ranks[member as usize];
        let base = self.first_reduction(state);
        let started = |member: u32| rank(member).started.wrapping_sub(base) as i32;
        // A child sends nothing before the root has joined. The root takes contributions in the order of ranks.
        let mut taken = started(*root);
        let mut all_ended = true;
        for child in children {
            taken = taken.min(if rank(*root).joined { started(*child) } else { 0 });
            all_ended &= rank(*child).ended.wrapping_sub(base) as i32 == taken;
        }
        if !all_ended || taken != 0 {
            let ranks: Vec<_> = self.offload.members.iter().map(|member| rank(*member)).collect();
            return violation("reduction", format!("a reduction never ends: {ranks:?}"));
        }
        let idle = self.offload.members.iter().all(|member| rank(*member).reductions.is_empty());
        if idle && self.offload.members.iter().any(|member| rank(*member).has_buffers()) {
            return violation("reduction", "a buffer is not freed".into());
        }
        Ok(())
    }

    pub(super) fn canonical_reduce(
        &self,
        state: &State,
        packet: &ReducePacket,
        number: u32,
        words: &mut Vec<u32>,
    ) {
        let number = number.wrapping_sub(self.first_reduction(state));
        match *packet {
            ReducePacket::Joined { .. } => words.push(10),
            ReducePacket::Contribution { vector, offset, .. } => {
                words.extend([11, number, vector.bytes, offset])
            }
            ReducePacket::Taken { refused, .. } => words.extend([12, number, u32::from(refused)]),
            ReducePacket::Failed { member, fault, .. } => words.extend([13, member, fault as u32]),
        }
    }

    fn rank_of(&self, member: u32) -> u32 {
        let position = self.offload.members.iter().position(|endpoint| *endpoint == member);
        position.expect("a member of the group") as u32
    }
}
