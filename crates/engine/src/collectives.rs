//! Collective operations of a group of endpoints: [`Engine::join_collective`], [`Engine::collective`] and
//! [`Engine::close_collective`].
//!
//! The machine of groups does the work ([`weir_proto::offload::group`]). Its vectors have bounded lengths, and at most
//! [`weir_proto::offload::group::MAX_ROUNDS`] operations of a group are under way. So an operation here is a number of
//! parts (`collectives/parts.rs`), which wait until the machine takes them. All members start the parts in the order of
//! the program's calls.
//!
//! Joining ends in a barrier. So does closing: only when all members have begun to close does a member leave, so no
//! operation of another member fails because of it.
//! ```text
//! join_collective    Join, Start(barrier)        completion Join: all members have joined
//! collective         Start(broadcast), ...       a completion when the last part has ended
//! close_collective   Start(barrier), Leave       nobody is told
//! ```

mod parts;
mod quiet;
mod timing;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hasher;
use std::sync::Arc;

use fnv::FnvHasher;
use weir_link::Link;
use weir_link::cores::stopwatch;
use weir_link::memory::{OwnedMemory, UserMemory};
use weir_proto::offload::OffloadCommand;
use weir_proto::offload::group::{GroupCommand, Membership, Shape};
use weir_proto::table::Table;
use weir_proto::{MachineEvent, Outcome, Peer, Request, Space};

use crate::io::Io;
use crate::operation_times::OperationTimes;
use crate::operations::Outstanding;
use crate::{Completion, Engine, MAX_OPERATIONS, Operation, Post, PostError};
pub(crate) use parts::MAX_GATHERED_VECTORS_BYTES;
use parts::Part;
pub use parts::{CollectiveOperation, CollectiveShape, MAX_COLLECTIVE_BYTES};
use quiet::QuietMemory;
pub use quiet::{QuietEnd, Ticket};
use timing::Timing;

/// Bound: collective operations of an endpoint that have not ended.
pub const MAX_COLLECTIVES: u32 = 1 << 10;
/// Bound: members of a group.
pub const MAX_COLLECTIVE_MEMBERS: usize = 1 << 12;

/// A collective operation.
#[derive(Debug)]
pub struct CollectiveArguments {
    /// The group, from [`Engine::join_collective`].
    pub group: u32,
    /// What the members do.
    pub operation: CollectiveOperation,
    /// Length of a block. Unit: bytes.
    pub block_bytes: u64,
    /// What we give, as long as [`CollectiveShape::data_bytes`] says.
    pub data: UserMemory,
    /// Gets the result, as long as [`CollectiveShape::result_bytes`] says.
    pub result: UserMemory,
    /// The caller does nothing but wait for the end. The counters then say the time of its call.
    pub is_awaited: bool,
}

/// What the program is told when an operation has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A completion of [`Operation::Join`].
    Join,
    /// A completion of [`Operation::Collective`].
    Operation,
    /// Nothing. We then leave the group.
    Close,
}

/// Who learns how an operation ends.
#[derive(Clone, Copy, Debug)]
enum Hearer {
    /// The program, by a completion.
    Program(Post),
    /// Whoever has the ticket of this number (`collectives/quiet.rs`).
    Ticket(u64),
}

/// An operation that has not ended.
#[derive(Debug)]
struct Collective {
    hearer: Hearer,
    kind: Kind,
    group: u32,
    shape: CollectiveShape,
    data: UserMemory,
    result: UserMemory,
    /// Blocks that are combined into the result at the end.
    gathered: Option<OwnedMemory>,
    /// The part that is started next.
    next_part: u64,
    parts: u64,
    under_way: u32,
    outcome: Outcome,
    timing: Timing,
    /// Memory of `data` and `result`, if they are not the program's.
    memory: Option<QuietMemory>,
}

impl Collective {
    fn has_ended(&self) -> bool {
        self.next_part == self.parts && self.under_way == 0
    }
}

/// A part that the machine has.
#[derive(Debug)]
struct UnderWay {
    request: Request,
    collective: u32,
    /// Memory of its buffer, which ends with it.
    _scratch: Option<OwnedMemory>,
}

/// A group that we have joined.
#[derive(Debug)]
struct Member {
    /// The members, by rank.
    members: Vec<Peer>,
    rank: u32,
    has_joined: bool,
    is_closing: bool,
    /// Operations with parts that have not started, in order.
    waiting: VecDeque<u32>,
    /// Operations of the program that have not ended.
    operations: u32,
}

/// The collective operations of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Collectives {
    groups: BTreeMap<u32, Member>,
    collectives: Table<Collective>,
    under_way: Vec<UnderWay>,
    /// Parts that have ended, to be looked at after the event: the operation, and how.
    ended: VecDeque<(u32, Outcome)>,
    /// How often we have joined a group of these members, by the digest of their addresses.
    joined: HashMap<u64, u32>,
    /// The number of the last ticket.
    last_ticket: u64,
    /// How operations with a ticket have ended, until somebody asks.
    ends: HashMap<u64, QuietEnd>,
    /// What has been done, also by others for this endpoint.
    times: Arc<OperationTimes>,
    /// A thread of the library drives the endpoint now.
    helper_drives: bool,
}

impl Collectives {
    /// A request of the machine has ended. Returns whether it was a part of an operation here.
    pub fn part_ended(&mut self, request: Request, outcome: Outcome) -> bool {
        let Some(place) = self.under_way.iter().position(|part| part.request == request) else {
            return false;
        };
        let part = self.under_way.swap_remove(place);
        self.ended.push_back((part.collective, outcome));
        true
    }

    /// Whether an event of the machine can start or end something.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.collectives.count() == 0
    }

    /// The members of groups that wait for others to close them.
    pub fn members_of_closing(&self) -> impl Iterator<Item = Peer> {
        let closing = self.groups.values().filter(|group| group.is_closing);
        closing.flat_map(|group| group.members.iter().copied())
    }

    fn add(&mut self, collective: Collective) {
        let (group, is_operation) = (collective.group, collective.kind == Kind::Operation);
        let number = self.collectives.insert(collective);
        let member = self.groups.get_mut(&group).expect("of a group that we have joined");
        member.waiting.push_back(number);
        member.operations += u32::from(is_operation);
    }

    /// Counts an ended part. If one fails, no further ones start.
    fn count_ended(&mut self, number: u32, outcome: Outcome) {
        let collective = self.collectives.get_mut(number).expect("its parts are under way");
        collective.under_way -= 1;
        collective.timing.part_ended(stopwatch);
        if outcome != Outcome::Done {
            (collective.outcome, collective.parts) = (outcome, collective.next_part);
        }
    }

    /// The shape of the barrier that ends a join and begins a close.
    fn barrier(rank: u32, members: u32) -> CollectiveShape {
        CollectiveShape { operation: CollectiveOperation::Barrier, block_bytes: 0, rank, members }
    }
}

/// The number of a group, which all its members compute alike: FNV-1a over their addresses, and over how often these
/// members have met before. Two groups of an endpoint have the same number once in four billion pairs; then the later one
/// is refused.
fn group_number(digest: u64, meetings: u32) -> u32 {
    let mut hash = FnvHasher::with_key(digest);
    hash.write(&meetings.to_le_bytes());
    let mixed = hash.finish();
    (mixed >> 32) as u32 ^ mixed as u32
}

impl<L: Link> Engine<L> {
    /// Joins a group. All members call it with the same ones in the same order, and as often. Returns the number of the
    /// group. When all have joined, or one is lost, a completion of [`Operation::Join`] comes.
    ///
    /// # Errors
    /// [`PostError::Again`]: there are as many groups or operations as allowed, or one with this number.
    ///
    /// # Panics
    /// If the rank is not that of a member, or there are more than [`MAX_COLLECTIVE_MEMBERS`].
    pub fn join_collective(&mut self, post: Post, members: Vec<Peer>, rank: u32) -> Result<u32, PostError> {
        let mut hash = FnvHasher::default();
        members.iter().for_each(|peer| hash.write(&self.address_of(*peer).0));
        let digest = hash.finish();
        let meetings = self.io.collectives.joined.get(&digest).copied().unwrap_or(0);
        let group = group_number(digest, meetings);
        self.join_numbered(Hearer::Program(post), group, members, rank)?;
        self.io.collectives.joined.insert(digest, meetings.wrapping_add(1));
        Ok(group)
    }

    /// Joins the group of a number.
    fn join_numbered(
        &mut self,
        hearer: Hearer,
        group: u32,
        members: Vec<Peer>,
        rank: u32,
    ) -> Result<(), PostError> {
        assert!(members.len() <= MAX_COLLECTIVE_MEMBERS, "{} members", members.len());
        self.check_collectives()?;
        let shape = Collectives::barrier(rank, members.len() as u32);
        let membership =
            Membership { group, members: members.clone(), rank, patience_ns: None, shape: Shape::default() };
        self.join_group(membership)?;
        let member = Member {
            members,
            rank,
            has_joined: false,
            is_closing: false,
            waiting: VecDeque::new(),
            operations: 0,
        };
        self.io.collectives.groups.insert(group, member);
        let nothing = [UserMemory::EMPTY, UserMemory::EMPTY];
        self.begin_collective(hearer, (Kind::Join, false), group, shape, nothing, None);
        Ok(())
    }

    /// Our rank in a group, and the number of its members. `None`: we have not joined it, or not all others have yet, or it
    /// is being closed.
    pub fn collective_group(&self, group: u32) -> Option<(u32, u32)> {
        let member = self.io.collectives.groups.get(&group)?;
        let is_open = member.has_joined && !member.is_closing;
        is_open.then_some((member.rank, member.members.len() as u32))
    }

    /// The rank of a peer in a group.
    pub fn collective_rank(&self, group: u32, peer: Peer) -> Option<u32> {
        let members = &self.io.collectives.groups.get(&group)?.members;
        members.iter().position(|member| *member == peer).map(|rank| rank as u32)
    }

    /// Starts the next operation of a group. All members start the same ones in the same order, with the same lengths. A
    /// completion of [`Operation::Collective`] comes when our buffers are ours again and the result is there, or with
    /// [`Outcome::Lost`] if a member is lost. `Refused`: the group is not open, or the operation is not valid
    /// ([`CollectiveShape::is_valid`]).
    ///
    /// # Errors
    /// [`PostError::Again`].
    ///
    /// # Panics
    /// If a buffer is shorter than the shape says.
    pub fn collective(&mut self, post: Post, arguments: CollectiveArguments) -> Result<(), PostError> {
        let hearer = Hearer::Program(post);
        let CollectiveArguments { group, operation, block_bytes, data, result, is_awaited } = arguments;
        self.check_collectives()?;
        let Some(shape) = self.shape_in(group, operation, block_bytes) else {
            self.io.report_collective(hearer, Operation::Collective, Outcome::Refused, Vec::new());
            return Ok(());
        };
        let (have, need) = ((data.bytes(), result.bytes()), (shape.data_bytes(), shape.result_bytes()));
        assert!(have.0 >= need.0 && have.1 >= need.1, "buffers of {have:?} bytes instead of {need:?}");
        self.begin_collective(hearer, (Kind::Operation, is_awaited), group, shape, [data, result], None);
        Ok(())
    }

    /// Closes a group. The program has no operations in it any more. We leave when all members have closed it, and before
    /// that its number stays in use. A group that not all members have joined ends at once, with an error at the others.
    ///
    /// Returns `false`, and does nothing, if operations have not ended.
    pub fn close_collective(&mut self, group: u32) -> bool {
        let Some(member) = self.io.collectives.groups.get_mut(&group) else { return true };
        if member.operations > 0 {
            return false;
        }
        if member.is_closing {
            return true;
        }
        member.is_closing = true;
        let (rank, members, has_joined) = (member.rank, member.members.len() as u32, member.has_joined);
        if has_joined {
            let shape = Collectives::barrier(rank, members);
            self.begin_collective(
                Hearer::Program(Post::default()),
                (Kind::Close, false),
                group,
                shape,
                [UserMemory::EMPTY, UserMemory::EMPTY],
                None,
            );
        } else {
            // So the barrier of the join, which fails now, is not reported.
            self.abandon_collective(group);
        }
        true
    }

    /// Leaves a group at once, and tells nobody here. Operations of other members end with [`Outcome::Lost`].
    pub fn abandon_collective(&mut self, group: u32) {
        let Collectives { groups, collectives, .. } = &mut self.io.collectives;
        let Some(member) = groups.remove(&group) else { return };
        // No further parts start. Those that are under way end with the group.
        for number in member.waiting {
            let collective = collectives.get_mut(number).expect("an operation that waits has not ended");
            collective.parts = collective.next_part;
            if collective.has_ended() {
                collectives.remove(number);
            }
        }
        self.leave_group(group);
    }

    fn check_collectives(&self) -> Result<(), PostError> {
        match self.io.collectives.collectives.count() < MAX_COLLECTIVES as usize {
            true => Ok(()),
            false => Err(PostError::Again { limit: MAX_COLLECTIVES }),
        }
    }

    fn begin_collective(
        &mut self,
        hearer: Hearer,
        (kind, is_awaited): (Kind, bool),
        group: u32,
        shape: CollectiveShape,
        [data, result]: [UserMemory; 2],
        memory: Option<QuietMemory>,
    ) {
        let timing = Timing::begin(is_awaited);
        let parts = shape.parts();
        let (next_part, under_way, outcome) = (0, 0, Outcome::Done);
        let gathered_bytes = shape.gathered_bytes() as usize;
        let gathered = (gathered_bytes > 0).then(|| OwnedMemory::new(gathered_bytes));
        let into = gathered.as_ref().map(OwnedMemory::view);
        parts::keep_own_block(&shape, &data, into.as_ref().unwrap_or(&result));
        let collective = Collective {
            hearer,
            kind,
            group,
            shape,
            data,
            result,
            gathered,
            next_part,
            parts,
            under_way,
            outcome,
            timing,
            memory,
        };
        self.io.collectives.add(collective);
        self.io.advance_collectives();
        if self.io.has_aftermath {
            self.after_event();
        }
    }
}

impl<L: Link> Io<L> {
    /// Ends operations whose parts have ended, and starts parts, as far as the machine takes them.
    #[cold]
    pub(crate) fn advance_collectives(&mut self) {
        loop {
            while let Some((number, outcome)) = self.collectives.ended.pop_front() {
                self.collectives.count_ended(number, outcome);
                self.end_collective_if_over(number);
            }
            let waiting = self.collectives.groups.iter().filter(|(_, member)| !member.waiting.is_empty());
            let waiting: Vec<u32> = waiting.map(|(group, _)| *group).collect();
            let started = waiting.into_iter().filter(|group| self.start_next_part(*group)).count();
            if started == 0 && self.collectives.ended.is_empty() {
                return;
            }
        }
    }

    /// Starts the next part of the first operation that waits in a group. Returns `false` if there is none, or if the
    /// machine has as many as it takes.
    fn start_next_part(&mut self, group: u32) -> bool {
        let Collectives { groups, collectives, under_way, .. } = &mut self.collectives;
        let Some(member) = groups.get_mut(&group) else { return false };
        let Some(&number) = member.waiting.front() else { return false };
        let collective = collectives.get_mut(number).expect("an operation that waits has not ended");
        if collective.next_part == collective.parts {
            member.waiting.pop_front();
            self.end_collective_if_over(number);
            return true;
        }
        if !self.offload.accepts_operation(group) || self.operations.count() >= MAX_OPERATIONS as usize {
            return false;
        }
        let Collective { hearer, shape, data, result, gathered, next_part, .. } = &*collective;
        let into = gathered.as_ref().map(OwnedMemory::view);
        let into = into.as_ref().unwrap_or(result);
        let Part { operation, memory, scratch } = parts::prepare(shape, *next_part, data, into);
        let post = match *hearer {
            Hearer::Program(post) => post,
            Hearer::Ticket(_) => Post::default(),
        };
        let outstanding = Outstanding::new(post, Operation::Collective, Space::Untagged, memory);
        let request = self.operations.begin(outstanding);
        collective.next_part += 1;
        collective.under_way += 1;
        under_way.push(UnderWay { request, collective: number, _scratch: scratch });
        let start = GroupCommand::Start { request, group, operation };
        self.offload_event(MachineEvent::Posted(OffloadCommand::Group(start))).expect("it accepts one more");
        true
    }

    fn end_collective_if_over(&mut self, number: u32) {
        let collectives = &mut self.collectives.collectives;
        if !collectives.get(number).is_some_and(Collective::has_ended) {
            return;
        }
        let collective = collectives.remove(number).expect("just looked at");
        let Collective { hearer, kind, group, outcome, shape, gathered, result, .. } = &collective;
        if let Some(gathered) = gathered.as_ref().filter(|_| *outcome == Outcome::Done) {
            parts::combine_gathered(shape, &gathered.view(), result);
        }
        self.collectives.count_operation(&collective);
        let result = collective.memory.as_ref().filter(|_| *outcome == Outcome::Done);
        let result = result.map_or(Vec::new(), |memory| memory.result(shape.operation));
        let (hearer, kind, group, outcome) = (*hearer, *kind, *group, *outcome);
        let groups = &mut self.collectives.groups;
        let Some(member) = groups.get_mut(&group) else { return };
        member.waiting.retain(|waiting| *waiting != number);
        match kind {
            Kind::Join => {
                member.has_joined = outcome == Outcome::Done;
                self.report_collective(hearer, Operation::Join, outcome, result);
            }
            Kind::Operation => {
                member.operations -= 1;
                self.report_collective(hearer, Operation::Collective, outcome, result);
            }
            Kind::Close => {
                groups.remove(&group);
                let leave = OffloadCommand::Group(GroupCommand::Leave { group });
                self.offload_event(MachineEvent::Posted(leave)).expect("leaving is not refused");
            }
        }
    }

    fn report_collective(&mut self, hearer: Hearer, operation: Operation, outcome: Outcome, result: Vec<u8>) {
        let space = Space::Untagged;
        match hearer {
            Hearer::Program(post) => {
                self.completions.push_back(Completion { post, operation, space, outcome, buffer: 0 });
            }
            Hearer::Ticket(number) => _ = self.collectives.ends.insert(number, QuietEnd { outcome, result }),
        }
    }
}

#[cfg(test)]
mod tests;
