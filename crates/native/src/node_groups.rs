//! Groups whose members share nodes do their short operations in the node segment ([`weir_link::shm::node_group`]), and with
//! one member of each node over the network, if there are several nodes ([`weir_engine::levels`]).
//!
//! A group has messages always, and a node group if all members have agreed on one (`agreement.rs`). Below, a *node group* may
//! be one on two levels (`membership.rs`). The choice for each operation follows from its kind and its length, which are equal
//! at all members. An operation that goes by messages has a *mark* in the node group, so both ways together have one order:
//! ```text
//! program          node group                         messages
//! all-reduce 8 B   task: all-reduce
//! broadcast 1 MiB  task: mark; nobody waits for it    the broadcast
//! barrier          task: barrier
//! ```
//! On several nodes there are no marks: the first steps of two operations may look the same there.
//!
//! A member of a group of one node that gives another operation or length therefore finds different words at the others,
//! whichever way each of them has chosen, and the group fails. A group that has failed one way has failed the other way too.
//!
//! Calls of this endpoint advance the operations, whatever they wait for. This file does not know requests, but their
//! numbers, and does not know how members agree.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use weir_engine::operation_times::{Looks, OperationKind, OperationTimes, Tally};
use weir_engine::{CollectiveOperation, CollectiveShape, Engine, MAX_COLLECTIVES};
use weir_link::cores::stopwatch;
use weir_link::memory::{OwnedMemory, UserMemory};
use weir_link::shm::node_group::{GroupFailure, Operation};
use weir_proto::offload::reduce::Vector;

use crate::membership::{GroupTask, Membership};

/// The longest block that goes by a node group, which copies twice. Longer ones go by messages. Unit: bytes.
const LONGEST_BLOCK: u64 = 16 << 10;
/// Looks of a member that waits, with a core for each rank, before it yields.
const SPINS: u32 = 100;
/// It waits so long awake, some tenths of a millisecond or more. Unit: that of the stopwatch.
const AWAKE_TIME: u64 = 1 << 21;
/// It asks so often whether the others run, some milliseconds. Unit: that of the stopwatch.
const CHECK_INTERVAL: u64 = 1 << 24;
/// It sleeps so long at most, which delays its answers to messages.
const ANSWER_TIME: Duration = Duration::from_micros(100);

/// What a node group may do for an operation. `None`: it goes by messages. All members find the same.
fn node_operation(shape: &CollectiveShape) -> Option<Operation> {
    let CollectiveShape { operation, block_bytes, .. } = *shape;
    if block_bytes > LONGEST_BLOCK {
        return None;
    }
    let bytes = block_bytes as u32;
    Some(match operation {
        CollectiveOperation::Barrier => Operation::Barrier,
        CollectiveOperation::Broadcast { root } => Operation::Broadcast { root, bytes },
        CollectiveOperation::Reduce { root, combination } => {
            Operation::Reduce { root, vector: Vector { bytes, combination } }
        }
        CollectiveOperation::AllReduce { combination } => Operation::AllReduce(Vector { bytes, combination }),
        CollectiveOperation::AllGather => Operation::AllGather { bytes },
        _ => return None,
    })
}

/// An operation that has not ended.
struct Pending {
    /// Its request. `None`: a mark.
    request: Option<u64>,
    operation: Operation,
    task: GroupTask,
    data: UserMemory,
    result: UserMemory,
    /// A copy of the data, if the result is in the same place.
    _copy: Option<OwnedMemory>,
    looks: Looks,
    is_awaited: bool,
}

/// How an operation has ended.
pub(crate) struct NodeEnd {
    pub request: u64,
    /// `None`: well.
    pub failure: Option<GroupFailure>,
}

/// Our membership in a node group.
pub(crate) struct NodeMember {
    group: Membership,
    rank: u32,
    members: u32,
    /// In the order of their begin.
    pending: VecDeque<Pending>,
    failure: Option<GroupFailure>,
    /// The program has closed the group.
    is_closing: bool,
    blocking: Tally,
    others: Tally,
    times: Arc<OperationTimes>,
}

impl Drop for NodeMember {
    fn drop(&mut self) {
        self.blocking.add_to(&self.times);
        self.others.add_to(&self.times);
    }
}

/// The bytes of a buffer of the program or of an operation.
///
/// # Safety
/// The buffer is in one piece, and nobody writes to it during `'bytes`.
unsafe fn read_bytes<'bytes>(memory: &UserMemory, length: usize) -> &'bytes [u8] {
    match memory.contiguous_address() {
        // SAFETY: the maker of the value promised that its bytes are there, and the caller that nobody writes.
        Some(address) if length > 0 => unsafe { std::slice::from_raw_parts(address as *const u8, length) },
        _ => &[],
    }
}

/// As [`read_bytes`], to write to.
///
/// # Safety
/// The buffer is in one piece, and nobody else uses it during `'bytes`.
unsafe fn written_bytes<'bytes>(memory: &UserMemory, length: usize) -> &'bytes mut [u8] {
    match memory.contiguous_address() {
        // SAFETY: the maker of the value promised that its bytes are there, and the caller that nobody else uses them.
        Some(address) if length > 0 => unsafe { std::slice::from_raw_parts_mut(address as *mut u8, length) },
        _ => &mut [],
    }
}

/// Whether two buffers have bytes in common.
fn overlap(one: &UserMemory, other: &UserMemory) -> bool {
    let range = |memory: &UserMemory| {
        let first = memory.contiguous_address().unwrap_or(0) as u64;
        (first, first + memory.bytes())
    };
    let ((first, end), (other_first, other_end)) = (range(one), range(other));
    first < other_end && other_first < end
}

impl NodeMember {
    pub fn new(group: Membership, rank: u32, members: u32, times: Arc<OperationTimes>) -> NodeMember {
        let executor = group.executor();
        NodeMember {
            group,
            rank,
            members,
            pending: VecDeque::new(),
            failure: None,
            is_closing: false,
            blocking: Tally::new(executor, true),
            others: Tally::new(executor, false),
            times,
        }
    }

    /// Adds an operation behind the others.
    fn add(
        &mut self,
        request: Option<u64>,
        operation: Operation,
        (data, result): (UserMemory, UserMemory),
        is_awaited: bool,
    ) {
        let (mut data, mut result, mut copy) = (data, result, None);
        if matches!(operation, Operation::Broadcast { root, .. } if root != self.rank) {
            (data, result) = (UserMemory::EMPTY, data); // the one buffer of a broadcast
        }
        if overlap(&data, &result) {
            let owned = OwnedMemory::copy_of(&data);
            data = owned.view();
            copy = Some(owned);
        }
        let (task, looks) = (self.group.task(operation), Looks::begin(stopwatch()));
        let pending = Pending { request, operation, task, data, result, _copy: copy, looks, is_awaited };
        self.pending.push_back(pending);
    }

    /// Does what it can of all operations. Calls `ended` for each of the program that has ended.
    ///
    /// # Errors
    /// The group has failed.
    fn step(&mut self, engine: &mut Engine, ended: &mut impl FnMut(NodeEnd)) -> Result<(), GroupFailure> {
        let mut at = 0;
        while let Some(pending) = self.pending.get_mut(at) {
            let Pending { operation, task, data, result, .. } = pending;
            // SAFETY: the program leaves the buffers to the operation until it has ended, and so does the owner of those
            // of the request, who keeps them as long. Both are in one piece: they come from one address each, in
            // `c/operations.rs` and `group.rs`. They do not overlap, since the data would be a copy. One thread at a time
            // is here, behind the lock of the endpoint, and the slices do not outlive the call.
            let (data, result) = unsafe {
                let data = read_bytes(data, operation.data_bytes(self.rank, self.members));
                (data, written_bytes(result, operation.result_bytes(self.rank, self.members)))
            };
            if !self.group.advance(engine, task, data, result)? {
                if !task.has_begun() {
                    break; // no later one may be advanced
                }
                pending.looks.missing(stopwatch());
                at += 1;
                continue;
            }
            let Some(Pending { request, operation, task, looks, is_awaited, .. }) = self.pending.remove(at)
            else {
                break;
            };
            let Some(request) = request else { continue };
            let now = stopwatch();
            let (kind, span) = (OperationKind::from(operation), (looks.began(), now));
            let seen = task.waited_until(now);
            if is_awaited {
                let skew = seen.map_or(0, |seen| seen.saturating_sub(looks.began()));
                self.blocking.count(kind, span, Some(skew), &self.times);
            } else {
                let skew = seen.map_or(Some(0), |seen| looks.skew(seen));
                self.others.count(kind, span, skew, &self.times);
            }
            ended(NodeEnd { request, failure: None });
        }
        Ok(())
    }

    /// Ends all operations with an error.
    fn end_all(&mut self, failure: GroupFailure, ended: &mut impl FnMut(NodeEnd)) {
        self.failure = Some(failure);
        for request in self.pending.drain(..).filter_map(|pending| pending.request) {
            ended(NodeEnd { request, failure: Some(failure) });
        }
    }
}

/// The node groups of an endpoint, by group. They must be dropped before the engine closes.
pub(crate) struct NodeMembers {
    members: BTreeMap<u32, NodeMember>,
    /// More ranks than cores: a member that waits yields at each look.
    pub is_crowded: bool,
    /// Operations that have not ended, with marks.
    under_way: usize,
    /// Groups about which this rank agrees with others just now.
    pub offered: usize,
    /// Looks of the wait that lasts, and when it began. 0: there is none.
    looks: u32,
    waits_since: u64,
    /// When the others were checked last, or nothing was under way.
    checked_at: u64,
}

impl NodeMembers {
    pub fn new() -> NodeMembers {
        NodeMembers {
            members: BTreeMap::new(),
            is_crowded: false,
            under_way: 0,
            offered: 0,
            looks: 0,
            waits_since: 0,
            checked_at: 0,
        }
    }

    /// All members of a group have joined its node group.
    pub fn add(&mut self, group: u32, member: NodeMember) {
        self.members.insert(group, member);
    }

    /// Whether a group has a node group.
    pub fn has(&self, group: u32) -> bool {
        self.members.contains_key(&group)
    }

    /// What the node group of a group does for an operation. `None`: it goes by messages. All members find the same.
    pub fn operation(&self, group: u32, shape: &CollectiveShape) -> Option<Operation> {
        let member = self.members.get(&group)?;
        node_operation(shape).filter(|operation| member.group.takes(*operation, shape.members))
    }

    /// How many are on two levels, or may soon be.
    pub fn may_be_on_levels(&self) -> usize {
        self.on_levels() + self.offered
    }

    /// How many are on two levels.
    pub fn on_levels(&self) -> usize {
        self.members.values().filter(|member| matches!(member.group, Membership::Levels(_))).count()
    }

    /// Whether operations are under way that may send packets.
    pub fn may_send(&self) -> bool {
        self.under_way > 0
            && self.members.values().any(|member| matches!(member.group, Membership::Levels(_)))
    }

    /// Why a group has failed.
    pub fn failure(&self, group: u32) -> Option<GroupFailure> {
        self.members.get(&group).and_then(|member| member.failure)
    }

    /// Whether operations have not ended.
    pub fn are_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// Whether there is room for one more.
    pub fn have_room(&self) -> bool {
        self.under_way < MAX_COLLECTIVES as usize
    }

    fn count(&mut self) {
        if self.under_way == 0 {
            self.checked_at = stopwatch();
        }
        self.under_way += 1;
    }

    /// Begins an operation of a group. [`NodeMembers::advance`] starts it.
    pub fn begin(
        &mut self,
        group: u32,
        request: u64,
        operation: Operation,
        buffers: (UserMemory, UserMemory),
        is_awaited: bool,
    ) {
        let member = self.members.get_mut(&group).expect("the caller has asked");
        member.add(Some(request), operation, buffers, is_awaited);
        self.count();
    }

    /// An operation of a group goes by messages.
    pub fn mark(&mut self, group: u32) {
        if let Some(member) = self.members.get_mut(&group) {
            let Some(mark) = member.group.mark() else { return };
            member.add(None, mark, (UserMemory::EMPTY, UserMemory::EMPTY), false);
            self.count();
        }
    }

    /// Does what it can. Returns how many operations have ended. Calls `ended` for those of the program, and `failed` for
    /// each group that has failed just now.
    pub fn advance(
        &mut self,
        engine: &mut Engine,
        mut ended: impl FnMut(NodeEnd),
        mut failed: impl FnMut(u32),
    ) -> usize {
        if self.under_way == 0 {
            return 0;
        }
        let checks = stopwatch().saturating_sub(self.checked_at) >= CHECK_INTERVAL;
        let mut left = 0;
        for (&group, member) in &mut self.members {
            if member.pending.is_empty() {
                continue;
            }
            let mut stepped = member.step(engine, &mut ended);
            if checks && stepped.is_ok() && !member.pending.is_empty() {
                stepped = member.group.check(engine);
            }
            if let Err(failure) = stepped {
                member.end_all(failure, &mut ended);
                failed(group);
            }
            left += member.pending.len();
        }
        if checks {
            self.checked_at = stopwatch();
        }
        let before = std::mem::replace(&mut self.under_way, left);
        if left < before {
            self.members.retain(|_, member| {
                let is_over = member.is_closing && member.pending.is_empty();
                if is_over {
                    member.group.leave(engine);
                }
                !is_over
            });
            self.resume();
        }
        before - left
    }

    /// A member of a group is lost by messages: those that wait for us in the node group learn it.
    pub fn fail(
        &mut self,
        group: u32,
        failure: GroupFailure,
        engine: &mut Engine,
        mut ended: impl FnMut(NodeEnd),
    ) {
        let Some(member) = self.members.get_mut(&group).filter(|member| member.failure.is_none()) else {
            return;
        };
        member.group.fail(engine, failure);
        self.under_way -= member.pending.len();
        member.end_all(failure, &mut ended);
    }

    /// Closes the node group of a group, when its operations have ended.
    pub fn close(&mut self, group: u32, engine: &mut Engine) {
        let Some(member) = self.members.get_mut(&group) else { return };
        member.is_closing = true;
        if member.pending.is_empty() {
            member.group.leave(engine);
            self.members.remove(&group);
        }
    }

    /// Closes all now.
    pub fn clear(&mut self, engine: &mut Engine) {
        self.members.values_mut().for_each(|member| member.group.leave(engine));
        self.members.clear();
        self.under_way = 0;
    }

    /// The program's wait has ended, or something has happened.
    pub fn resume(&mut self) {
        (self.looks, self.waits_since) = (0, 0);
    }

    /// Waits for a moment after a look that has found nothing, while operations are under way.
    ///
    /// - `request`: what the caller waits for.
    pub fn pause(&mut self, request: Option<u64>, engine: &mut Engine) {
        self.looks = self.looks.saturating_add(1);
        if self.looks < SPINS && !self.is_crowded {
            return std::hint::spin_loop();
        }
        let now = stopwatch();
        if self.waits_since == 0 {
            self.waits_since = now;
        }
        if now.saturating_sub(self.waits_since) < AWAKE_TIME {
            return engine.yield_core();
        }
        let awaits = |member: &&mut NodeMember| {
            request.is_some() && member.pending.iter().any(|pending| pending.request == request)
        };
        let member = self.members.values_mut().find(awaits);
        match member.is_some_and(|member| member.group.sleep(ANSWER_TIME)) {
            true => engine.yield_core(), // which also checks peers now and then
            false => engine.wait(ANSWER_TIME.as_nanos() as u64),
        }
    }
}
