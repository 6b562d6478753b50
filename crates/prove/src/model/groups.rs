//! Groups of a search: programs join a group at any moment, and start its operations.
//!
//! Each word of a vector is a list of contributions, and combining appends. So a result must be the list of all ranks in
//! order, for the operation that ends. A barrier ends at no member before all have started it.

use std::sync::Arc;

use weir_proto::offload::group::{GroupCommand, GroupPacket, Membership, Operation, Shape};
use weir_proto::offload::reduce::Vector;
use weir_proto::offload::{Combination, OffloadCommand, WORD_BYTES, WordOperation, WordType};
use weir_proto::{Outcome, Peer, Request};

use super::checks::{Violation, violation};
use super::machines::{Collective, Element};
use super::{Effect, Happened, Setup, State};

const GROUP: u32 = 0;

/// What a machine is told about the vectors. The search has its own arithmetic.
const COMBINATION: Combination = Combination { operation: WordOperation::Sum, word_type: WordType::U64 };

impl Setup {
    /// The number of the first operation that has not ended at the root, modulo 2^32.
    pub(super) fn first_round(&self, state: &State) -> u32 {
        self.offload.members.first().map_or(0, |root| state.machines.ranks[*root as usize].ended)
    }

    pub(super) fn may_start(&self, state: &State, who: u32) -> bool {
        let rank = &state.machines.ranks[who as usize];
        rank.joined && (rank.rounds.len() as u32) < self.offload.max_rounds
    }

    pub(super) fn join(&self, state: &mut State, who: u32, effect: &mut Effect) -> Result<(), Violation> {
        let members = self.offload.members.iter().map(|member| Peer(*member)).collect();
        let rank = self.rank_of(who);
        let membership =
            Membership { group: GROUP, members, rank, patience_ns: None, shape: Shape::default() };
        Arc::make_mut(&mut state.machines).ranks[who as usize].joined = true;
        let command = OffloadCommand::Group(GroupCommand::Join(membership));
        self.post_offloaded(state, who, command, effect).map(|_| ())
    }

    pub(super) fn start_round(
        &self,
        state: &mut State,
        who: u32,
        effect: &mut Effect,
    ) -> Result<(), Violation> {
        let rank = self.rank_of(who);
        let machine = &mut Arc::make_mut(&mut state.machines).ranks[who as usize];
        let contents = vec![vec![(rank, machine.started)]; self.offload.vector_words as usize];
        let request = machine.request(contents);
        machine.rounds.push_back((request, machine.started));
        machine.started = machine.started.wrapping_add(1);
        let vector = Vector { bytes: self.offload.vector_words * WORD_BYTES, combination: COMBINATION };
        let operation = match self.offload.collective {
            Collective::Reduce => Operation::Reduce(vector),
            Collective::AllReduce => Operation::AllReduce(vector),
            Collective::Barrier => Operation::Barrier,
            Collective::Exchange => Operation::Exchange { distance: 1, bytes: vector.bytes },
        };
        let command = OffloadCommand::Group(GroupCommand::Start { request, group: GROUP, operation });
        self.post_offloaded(state, who, command, effect).map(|_| ())
    }

    /// The machine of `us` has completed an operation of the group.
    pub(super) fn round_ended(
        &self,
        state: &mut State,
        us: u32,
        request: Request,
        outcome: Outcome,
        contents: &[Element],
        effect: &mut Effect,
    ) -> Result<(), Violation> {
        let rank = self.rank_of(us);
        let rounds = &mut Arc::make_mut(&mut state.machines).ranks[us as usize].rounds;
        let place = rounds.iter().position(|(of_group, _)| *of_group == request).expect("of the group");
        let (_, number) = rounds.remove(place).expect("it has a place");
        let gets_result = rank == 0 || self.offload.collective != Collective::Reduce;
        let members = self.offload.members.len() as u32;
        let result: Vec<_> = match self.offload.collective {
            Collective::Exchange => vec![((rank + members - 1) % members, number)],
            _ => (0..members).map(|rank| (rank, number)).collect(),
        };
        let mut right = !gets_result || contents.iter().all(|element| *element == result);
        // Barriers may overtake each other; all others end in order.
        right &= place == 0 || self.offload.collective == Collective::Barrier;
        if matches!(self.offload.collective, Collective::AllReduce | Collective::Barrier) {
            let started = |member: &u32| state.machines.ranks[*member as usize].started;
            let has_started = |member: &u32| started(member).wrapping_sub(number) as i32 > 0;
            right &= self.offload.members.iter().all(has_started);
        }
        if outcome != Outcome::Done || !right {
            let detail = format!("operation {number} of rank {rank} ends with {outcome:?}, {contents:?}");
            return violation("group", detail);
        }
        let machine = &mut Arc::make_mut(&mut state.machines).ranks[us as usize];
        machine.ended = machine.ended.wrapping_add(1);
        effect.happened |= if rank == 0 { Happened::Reduced.bit() } else { 0 };
        Ok(())
    }

    /// In a state at rest, an operation has ended at each member that waits for no program. At most three members, so
    /// all others are children of the root.
    pub(super) fn check_group_at_rest(&self, state: &State) -> Result<(), Violation> {
        let Some((root, children)) = self.offload.members.split_first() else { return Ok(()) };
        let rank = |member: u32| &state.machines.ranks[member as usize];
        let base = self.first_round(state);
        let started = |member: u32| rank(member).started.wrapping_sub(base) as i32;
        // Nobody sends anything before all have joined. The root takes contributions in the order of ranks.
        let all_joined = self.offload.members.iter().all(|member| rank(*member).joined);
        if self.offload.collective == Collective::Exchange {
            return self.check_exchanges_at_rest(state, all_joined);
        }
        let mut taken = started(*root);
        let mut all_ended = true;
        for child in children {
            taken = taken.min(if all_joined { started(*child) } else { 0 });
            if self.offload.collective == Collective::Reduce {
                all_ended &= rank(*child).ended.wrapping_sub(base) as i32 == taken;
            }
        }
        // The others end everywhere or nowhere.
        if self.offload.collective != Collective::Reduce {
            all_ended = children.iter().all(|child| rank(*child).ended == base);
        }
        if !all_ended || taken != 0 {
            let ranks: Vec<_> = self.offload.members.iter().map(|member| rank(*member)).collect();
            return violation("group", format!("an operation never ends: {ranks:?}"));
        }
        let idle = self.offload.members.iter().all(|member| rank(*member).rounds.is_empty());
        if idle && self.offload.members.iter().any(|member| rank(*member).has_buffers()) {
            return violation("group", "a buffer is not freed".into());
        }
        Ok(())
    }

    /// In a state at rest, an exchange has ended at each member that has started it, and whose predecessor has.
    fn check_exchanges_at_rest(&self, state: &State, all_joined: bool) -> Result<(), Violation> {
        let ranks: Vec<_> =
            self.offload.members.iter().map(|member| &state.machines.ranks[*member as usize]).collect();
        let before = ranks.iter().cycle().skip(ranks.len() - 1);
        let all_ended = ranks.iter().zip(before).all(|(rank, before)| {
            let ahead = before.started.wrapping_sub(rank.started) as i32;
            let could_end = rank.started.wrapping_add(ahead.min(0) as u32);
            !all_joined || rank.ended == could_end
        });
        let idle = ranks.iter().all(|rank| rank.rounds.is_empty());
        if !all_ended || idle && ranks.iter().any(|rank| rank.has_buffers()) {
            return violation(
                "group",
                format!("an exchange never ends, or a buffer is not freed: {ranks:?}"),
            );
        }
        Ok(())
    }

    pub(super) fn canonical_group(
        &self,
        state: &State,
        packet: &GroupPacket,
        number: u32,
        words: &mut Vec<u32>,
    ) {
        let number = number.wrapping_sub(self.first_round(state));
        match *packet {
            GroupPacket::Joined { all, .. } => words.extend([10, u32::from(all)]),
            GroupPacket::Part { operation, offset, .. } => {
                words.extend([11, number, offset]);
                operation.canonical(words);
            }
            GroupPacket::Taken { refused, .. } => words.extend([12, number, u32::from(refused)]),
            GroupPacket::Failed { member, fault, .. } => words.extend([13, member, fault as u32]),
        }
    }

    fn rank_of(&self, member: u32) -> u32 {
        let position = self.offload.members.iter().position(|endpoint| *endpoint == member);
        position.expect("a member of the group") as u32
    }
}
