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
        // A member of a gather ends at once, and so does the root of a scatter. So what it may start depends on the others.
        let others = self.offload.members.iter().map(|member| &state.machines.ranks[*member as usize]);
        let slowest = others.map(|other| rank.started.wrapping_sub(other.started) as i32).max().unwrap_or(0);
        let ends_early = matches!(self.offload.collective, Collective::Gather | Collective::Scatter);
        let is_near =
            !ends_early || slowest < self.offload.max_rounds as i32 && rank.accepts_operation(GROUP);
        rank.joined && (rank.rounds.len() as u32) < self.offload.max_rounds && is_near
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
        let vector = Vector { bytes: self.offload.vector_words * WORD_BYTES, combination: COMBINATION };
        let operation = match self.offload.collective {
            Collective::Reduce => Operation::Reduce(vector),
            Collective::AllReduce => Operation::AllReduce(vector),
            Collective::Barrier => Operation::Barrier,
            Collective::Exchange => Operation::Exchange { distance: 1, bytes: vector.bytes },
            Collective::Gather => Operation::Gather { root: 0, bytes: vector.bytes },
            Collective::Scatter => Operation::Scatter { root: 0, bytes: vector.bytes },
            Collective::AllGather => Operation::AllGather { bytes: vector.bytes },
            Collective::AllToAll => Operation::AllToAll { bytes: vector.bytes },
        };
        let members = self.offload.members.len() as u32;
        let words = operation.buffer_bytes(rank, members) / WORD_BYTES;
        let machine = &mut Arc::make_mut(&mut state.machines).ranks[who as usize];
        // The root of a scatter gives each member its rank.
        let given = |word| {
            if self.offload.collective == Collective::Scatter && rank == 0 {
                word / self.offload.vector_words
            } else {
                rank
            }
        };
        let contents = (0..words).map(|word| vec![(given(word), machine.started)]).collect();
        let request = machine.request(contents);
        machine.rounds.push_back((request, machine.started));
        machine.started = machine.started.wrapping_add(1);
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
        let gets_result = match self.offload.collective {
            Collective::Reduce | Collective::Gather => rank == 0,
            Collective::Scatter => rank > 0,
            _ => true,
        };
        let members = self.offload.members.len() as u32;
        let result = |word: u32| -> Element {
            match self.offload.collective {
                Collective::Exchange => vec![((rank + members - 1) % members, number)],
                Collective::Gather => vec![(word / self.offload.vector_words, number)],
                Collective::Scatter => vec![(rank, number)],
                Collective::AllGather | Collective::AllToAll => {
                    vec![((rank + word / self.offload.vector_words) % members, number)]
                }
                _ => (0..members).map(|rank| (rank, number)).collect(),
            }
        };
        let mut right = !gets_result || (0..).zip(contents).all(|(word, element)| *element == result(word));
        // Barriers may overtake each other; all others end in order.
        right &= place == 0 || self.offload.collective == Collective::Barrier;
        use Collective::{AllGather, AllReduce, AllToAll, Barrier};
        if matches!(self.offload.collective, AllReduce | Barrier | AllGather | AllToAll) {
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
        match self.offload.collective {
            Collective::Exchange => return self.check_exchanges_at_rest(state, all_joined),
            Collective::Gather => return self.check_one_way_at_rest(state, all_joined, true),
            Collective::Scatter => return self.check_one_way_at_rest(state, all_joined, false),
            _ => {}
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

    /// In a state at rest, a gather or scatter has ended at each member that has started it, if its blocks have been sent.
    /// `is_gather`: to the root, otherwise from it.
    fn check_one_way_at_rest(
        &self,
        state: &State,
        all_joined: bool,
        is_gather: bool,
    ) -> Result<(), Violation> {
        let ranks: Vec<_> =
            self.offload.members.iter().map(|member| &state.machines.ranks[*member as usize]).collect();
        let (root, others) = ranks.split_first().expect("a member");
        // How many of its operations a member can end, if it needs those that another one has started.
        let could_end =
            |own: u32, of_sender: u32| own.wrapping_add((of_sender.wrapping_sub(own) as i32).min(0) as u32);
        let slowest = others
            .iter()
            .map(|rank| rank.started)
            .min_by_key(|started| started.wrapping_sub(root.started) as i32);
        let (at_root, at_other): (u32, Box<dyn Fn(u32) -> u32>) = match is_gather {
            true => (could_end(root.started, slowest.unwrap_or(root.started)), Box::new(|started| started)),
            false => (root.started, Box::new(|started| could_end(started, root.started))),
        };
        let all_ended =
            root.ended == at_root && others.iter().all(|rank| rank.ended == at_other(rank.started));
        let all_taken = ranks.iter().all(|rank| rank.started == root.started);
        if all_joined && (!all_ended || all_taken && ranks.iter().any(|rank| rank.has_buffers())) {
            let detail = format!("a gather or scatter never ends, or a buffer is not freed: {ranks:?}");
            return violation("group", detail);
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
            GroupPacket::Part { operation, blocks: _, offset, .. } => {
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
