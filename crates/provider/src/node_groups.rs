//! The groups of this process's endpoints, for `libweir-mpi.so`: the functions of the interface in
//! [`weir_engine::node_group_interface`]. The members of a group are on one node, or on several, where they meet on two
//! levels ([`weir_engine::levels`]).
//!
//! MPI programs get these operations by that library, not by libfabric. It lies in the same process and has no endpoint of its
//! own, so it uses one of ours. On two levels, the participant of a node makes the progress of its endpoint while it waits
//! for other nodes. This file does not know MPI, nor messages.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use weir_engine::levels::{Layout, LevelFailure, LevelGroup, LevelTask, Step};
use weir_engine::node_group_interface::{
    FailureWords, Identity, Idle, JOINED, Joined, LOOKED, NOT_YET, OperationWords, PAUSED, PROGRESS_IS_DUE,
    REFUSED,
};
use weir_engine::operation_times::{Executor, Looks, OperationKind, Tally};
use weir_engine::{Engine, oversubscription};
use weir_link::Address;
use weir_link::cores::stopwatch;
use weir_link::shm::node_group::{GroupFailure, JoinError, NodeGroup, NodeGroups, Operation, Task};
use weir_link::shm::node_segment::NodeHandle;
use weir_proto::PeerFault;

use crate::group_wait::{GroupPrecedence, Wait};
use crate::log;
use crate::node_endpoints::{OpenEndpoint, find, number};
use crate::state::domain_state::{Mode, State};

/// How far an endpoint has joined.
pub enum Membership {
    /// It has to find the node group that the first member of its node has made.
    Begun,
    /// All members are on its node.
    Node(Box<NodeGroup>),
    /// They are on several nodes.
    Levels(Box<LevelGroup>),
}

/// An endpoint's part of a group.
pub struct Member {
    /// How far it has joined.
    pub membership: Membership,
    endpoint: OpenEndpoint,
    layout: Layout,
    /// Numbers of the endpoints on our node, by place.
    neighbours: Vec<u64>,
    /// Keys of the node groups that we need.
    node_keys: Vec<u64>,
    /// Those that we have joined, until we have all.
    nodes: Vec<NodeGroup>,
    /// The blocking operations.
    tally: Tally,
    /// The others.
    requests: Tally,
    /// The user knows that an operation has failed that has taken a receive.
    pub is_reported: bool,
    /// The node has more endpoints than cores, so that members must yield while they wait.
    is_crowded: bool,
}

/// What the caller holds for a group. Operations that have taken a receive hold it too.
///
/// A group performs operations for its caller, or it takes receives. In the first case the caller uses the member, from one
/// thread at a time. In the second the caller only joins and leaves, and whoever has the endpoint's domain uses it.
pub struct SharedMember {
    member: UnsafeCell<Member>,
    /// Our rank in the group.
    pub rank: u32,
    /// Its members.
    pub members: u32,
    /// Our endpoint.
    pub endpoint: OpenEndpoint,
    /// The members are on several nodes.
    is_across: bool,
}

// SAFETY: one thread at a time uses the member, as above. The first receive is taken after the caller has joined.
unsafe impl Send for SharedMember {}
// SAFETY: as above.
unsafe impl Sync for SharedMember {}

impl SharedMember {
    fn new(member: Member) -> SharedMember {
        let (rank, members) = (member.layout.rank(), member.layout.members());
        let (endpoint, is_across) = (member.endpoint.clone(), member.layout.nodes() > 1);
        SharedMember { member: UnsafeCell::new(member), rank, members, endpoint, is_across }
    }

    /// Ends one use of a member. The last one leaves the group, for which it needs the endpoint's engine if the members are on
    /// several nodes. The caller has the domain then.
    ///
    /// - `engine`: `None`: the endpoint closes, which tells the other nodes.
    pub fn release(shared: Arc<SharedMember>, engine: Option<&mut Engine>) {
        if let Some(shared) = Arc::into_inner(shared) {
            shared.member.into_inner().leave_by(engine);
        }
    }

    /// The member.
    ///
    /// # Safety
    /// The caller may use it now, as the type says.
    #[expect(clippy::mut_from_ref, reason = "the callers take turns")]
    pub unsafe fn member(&self) -> &mut Member {
        // SAFETY: as the caller promises.
        unsafe { &mut *self.member.get() }
    }
}

/// A failure, for the user.
pub fn describe(failure: GroupFailure) -> String {
    let GroupFailure { member, fault } = failure;
    let what = match fault {
        PeerFault::Died => "its process has ended",
        PeerFault::Closed => "it has left the group",
        _ => "it is in another operation, or gives it other arguments",
    };
    format!("rank {member} of the communicator: {what}")
}

/// A failure on two levels as one of a group of one node: its member is a rank of the whole group.
pub fn to_group(LevelFailure { rank, fault }: LevelFailure) -> GroupFailure {
    GroupFailure { member: rank, fault }
}

/// A member that waits for long sleeps for at most so long. The MPI gets no time meanwhile, so this delays its answers to messages.
const ANSWER_TIME: Duration = Duration::from_micros(100);

/// Looks at one word at the beginning of a wait, if every rank of the node has a core. They take about a microsecond, and most
/// waits are shorter if all ranks come at the same time.
const SPINS: u32 = 512;

/// As [`NodeGroup::perform`], with shorter sleeps. Returns its course.
fn perform_in_node(
    group: &mut NodeGroup,
    (endpoint, is_crowded): (&OpenEndpoint, bool),
    operation: Operation,
    data: &[u8],
    result: &mut [u8],
    idle: impl FnMut(c_int),
) -> Result<Course, GroupFailure> {
    let began = stopwatch();
    let mut task: Task = group.task(operation);
    if !group.begin(&mut task, data, result, if is_crowded { 0 } else { SPINS })? {
        wait_in_node(group, endpoint, (&mut task, data, result), idle)?;
    }
    let ended = stopwatch();
    let waited_until = task.waited_until(ended).unwrap_or(began);
    Ok(Course { began, ended, skew: waited_until.saturating_sub(began) })
}

/// Waits for the end of an operation, which a look has not found.
#[inline(never)]
fn wait_in_node(
    group: &mut NodeGroup,
    endpoint: &OpenEndpoint,
    (task, data, result): (&mut Task, &[u8], &mut [u8]),
    mut idle: impl FnMut(c_int),
) -> Result<(), GroupFailure> {
    let _precedence = GroupPrecedence::begin();
    let mut wait = Wait::default();
    loop {
        idle(LOOKED);
        let due = wait.due();
        if due.check {
            group.check()?;
        }
        if due.sleep && wait.may_sleep(received(endpoint)) {
            group.sleep(ANSWER_TIME);
        }
        if group.advance(task, data, result)? {
            return Ok(());
        }
    }
}

/// Times of an operation that has ended, by the stopwatch.
struct Course {
    began: u64,
    ended: u64,
    skew: u64,
}

/// Calls `work` with the engine of an endpoint, after it has made progress. `None`: it is closed.
fn with_engine<R>(endpoint: &OpenEndpoint, work: impl FnOnce(&mut Engine) -> R) -> Option<R> {
    let domain = endpoint.domain.upgrade()?;
    let mut state = domain.enter();
    state.endpoints.get_mut(endpoint.index)?.engine()?;
    state.progress_endpoint(endpoint.index);
    let engine = state.endpoints.get_mut(endpoint.index)?.engine()?;
    let result = work(engine);
    engine.wake_watcher_for_completions();
    Some(result)
}

/// Packets that an endpoint has received.
fn received(endpoint: &OpenEndpoint) -> u64 {
    let Some(domain) = endpoint.domain.upgrade() else { return 0 };
    let mut state = domain.enter();
    let engine = state.endpoints.get_mut(endpoint.index).and_then(|endpoint| endpoint.engine());
    engine.map_or(0, |engine| engine.counters().packets_received)
}

/// A look at the network for an operation whose step there has not ended. Waits after a look that has found nothing, as the
/// endpoint does for messages.
///
/// - `sleeps`: it has waited for long.
///
/// Returns whether the step has ended, and otherwise what to tell the one that waits.
fn look_at_network(
    group: &mut LevelGroup,
    endpoint: &OpenEndpoint,
    task: &mut LevelTask,
    sleeps: bool,
) -> Result<Option<c_int>, LevelFailure> {
    let closed = LevelFailure { rank: group.layout().rank(), fault: PeerFault::Closed };
    let domain = endpoint.domain.upgrade().ok_or(closed)?;
    let mut state = domain.enter();
    let mut advance = |state: &mut State| {
        let engine = state.endpoints.get_mut(endpoint.index).and_then(|endpoint| endpoint.engine());
        let engine = engine.ok_or(closed)?;
        let is_done = group.advance_network(engine, task);
        engine.wake_watcher_for_completions();
        is_done
    };
    // Before the progress: it sends what the step sends.
    let was_done = advance(&mut state)?;
    let found = state.progress_endpoint(endpoint.index);
    if was_done || advance(&mut state)? {
        return Ok(None);
    }
    if found == 0
        && let Some(endpoint) = state.endpoints.get_mut(endpoint.index)
    {
        if sleeps { endpoint.wait(ANSWER_TIME.as_nanos() as u64) } else { endpoint.pause_awake() }
    }
    // After a sleep the MPI has its time in any case.
    Ok(Some(if sleeps || state.has_entries() { PROGRESS_IS_DUE } else { PAUSED }))
}

fn perform_on_levels(
    group: &mut LevelGroup,
    endpoint: &OpenEndpoint,
    operation: Operation,
    (data, result): (&[u8], &mut [u8]),
    mut idle: impl FnMut(c_int),
) -> Result<Course, LevelFailure> {
    let _precedence = GroupPrecedence::begin();
    let began = stopwatch();
    let (mut waited_until, mut sleeps) = (began, false);
    let (mut task, mut wait): (LevelTask, _) = (group.task(operation), Wait::default());
    loop {
        let step = group.advance(&mut task, data, result)?;
        if step == Step::Done {
            return Ok(Course { began, ended: stopwatch(), skew: waited_until.saturating_sub(began) });
        }
        if step == Step::Network {
            match look_at_network(group, endpoint, &mut task, sleeps)? {
                Some(course) => idle(course),
                None => {
                    waited_until = stopwatch();
                    continue;
                }
            }
        } else {
            idle(LOOKED);
        }
        let due = wait.due();
        if due.check {
            group.check()?;
        }
        sleeps = due.sleep;
        if step == Step::Node && sleeps && wait.may_sleep(received(endpoint)) {
            group.sleep(ANSWER_TIME);
        }
        waited_until = stopwatch();
    }
}

impl Member {
    /// Begins to join: see [`begin`]. `None`: it cannot.
    fn begin(key: u64, members: &[Identity], rank: u32, takes_receives: bool) -> Option<Member> {
        let own = members.get(rank as usize)?;
        let endpoint = find(|handle| number(handle) == own.endpoint)?;
        let segments: Vec<u64> = members.iter().map(|member| member.segment).collect();
        let layout = Layout::new(&segments, rank)?;
        let neighbours = layout.neighbours().iter().map(|rank| members[*rank as usize].endpoint).collect();
        let executor = if layout.nodes() == 1 { Executor::Node } else { Executor::Hosts };
        let node_keys = match (layout.neighbours().len(), layout.nodes()) {
            (1, _) => Vec::new(),
            // Several operations may be under way on two levels, which needs a second node group.
            (_, 2..) if takes_receives => vec![key, key.rotate_left(1)],
            _ => vec![key],
        };
        let is_crowded = NodeHandle::members(&endpoint.handle).len() > oversubscription::cores();
        let mut member = Member {
            membership: Membership::Begun,
            endpoint,
            layout,
            neighbours,
            node_keys,
            nodes: Vec::new(),
            tally: Tally::new(executor, true),
            requests: Tally::new(executor, false),
            is_reported: false,
            is_crowded,
        };
        if member.layout.is_participant() {
            member.join_node()?;
            if let Membership::Levels(group) = &mut member.membership {
                let addresses: Vec<Address> =
                    member.layout.participants().map(|rank| address_of(&members[rank as usize])).collect();
                let begun = with_engine(&member.endpoint, |engine| {
                    let peers = addresses.iter().map(|address| engine.peer(address)).collect();
                    group.join_network(engine, group_number(key), peers)
                });
                begun?.ok()?;
            }
        }
        Some(member)
    }

    /// Finds the node groups, or makes them as the first member of the node. `None`: it cannot. `Some(false)`: not yet.
    fn join_node(&mut self) -> Option<bool> {
        let Member { endpoint, layout, neighbours, node_keys, nodes, .. } = self;
        while nodes.len() < node_keys.len() {
            let key = node_keys[nodes.len()];
            let joined = NodeGroups::open(endpoint.handle.clone())
                .map_err(JoinError::from)
                .and_then(|groups| groups.join(key, neighbours, layout.place()));
            match joined {
                Ok(Some(group)) => nodes.push(group),
                Ok(None) => return Some(false),
                Err(error) => {
                    log::info(|| format!("no node group: {error}; the MPI does the collective operations"));
                    return None;
                }
            }
        }
        let mut nodes = std::mem::take(nodes);
        self.membership = match (self.layout.nodes(), nodes.pop()) {
            (1, Some(group)) => Membership::Node(Box::new(group)),
            (_, last) => {
                nodes.extend(last);
                Membership::Levels(Box::new(LevelGroup::new(self.layout.clone(), nodes)))
            }
        };
        Some(true)
    }

    /// Goes on to join. `None`: it cannot. `Some(false)`: not yet.
    fn finish(&mut self) -> Option<bool> {
        if matches!(self.membership, Membership::Begun) && !self.join_node()? {
            return Some(false);
        }
        match &mut self.membership {
            Membership::Levels(group) if group.needs_engine() => {
                match with_engine(&self.endpoint, |engine| group.has_joined(engine))? {
                    Some(true) => Some(true),
                    Some(false) => None,
                    None => Some(false),
                }
            }
            _ => Some(true),
        }
    }

    fn perform(
        &mut self,
        (operation, call): (Operation, OperationKind),
        data: &[u8],
        result: &mut [u8],
        idle: impl FnMut(c_int),
    ) -> Result<(), FailureWords> {
        let Course { began, ended, skew } = match &mut self.membership {
            Membership::Node(group) => {
                let place = (&self.endpoint, self.is_crowded);
                perform_in_node(group, place, operation, data, result, idle).map_err(FailureWords::from)?
            }
            Membership::Levels(group) => {
                let performed = perform_on_levels(group, &self.endpoint, operation, (data, result), idle);
                performed.map_err(|failure| {
                    self.leave(); // so that other nodes learn it
                    FailureWords::from(to_group(failure))
                })?
            }
            Membership::Begun => unreachable!("the caller has finished joining"),
        };
        self.tally.count(call, (began, ended), Some(skew), &self.endpoint.times);
        Ok(())
    }

    /// A non-blocking operation has ended now.
    ///
    /// - `waited_until`: when all had begun it, if they had not at the first look.
    pub fn count_request(&mut self, call: OperationKind, looks: &Looks, waited_until: Option<u64>, now: u64) {
        let skew = waited_until.map_or(Some(0), |seen| looks.skew(seen));
        self.requests.count(call, (looks.began(), now), skew, &self.endpoint.times);
    }

    /// Leaves the other nodes. The caller has not got the domain.
    fn leave(&mut self) {
        if let Membership::Levels(group) = &mut self.membership
            && group.is_on_network()
        {
            with_engine(&self.endpoint, |engine| group.leave(engine));
        }
    }

    /// Leaves the other nodes. The caller has the domain.
    ///
    /// - `engine`: that of the endpoint. `None`: it closes, which tells them.
    pub fn leave_by(&mut self, engine: Option<&mut Engine>) {
        if let Membership::Levels(group) = &mut self.membership {
            match engine {
                Some(engine) => {
                    group.leave(engine);
                    engine.wake_watcher_for_completions();
                }
                None => group.forget_network(),
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.tally.add_to(&self.endpoint.times);
        self.requests.add_to(&self.endpoint.times);
        self.leave();
    }
}

/// The number of a group on the network, from the key that its members agree on. A communicator has two groups, whose keys are
/// complements of each other.
fn group_number(key: u64) -> u32 {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

fn address_of(identity: &Identity) -> Address {
    let mut bytes = [0; weir_link::ADDRESS_BYTES];
    let words = bytes.chunks_mut(8).zip(identity.address);
    words.for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_ne_bytes()));
    Address(bytes)
}

/// See [`weir_engine::node_group_interface::NodeGroupFunctions`].
///
/// # Safety
/// As the interface says.
pub unsafe extern "C" fn identify(identity: *mut Identity) -> c_int {
    let Some(OpenEndpoint { handle, address, domain, .. }) = find(|_| true) else { return 1 };
    let mut words = address.0.chunks(8).map(|bytes| {
        let mut word = [0; 8];
        word.copy_from_slice(bytes);
        u64::from_ne_bytes(word)
    });
    let address = std::array::from_fn(|_| words.next().unwrap_or(0));
    let is_serialised = domain.upgrade().is_none_or(|domain| domain.mode == Mode::Serialised);
    let (segment, endpoint) = (handle.id(), number(&handle));
    let is_serialised = is_serialised.into();
    // SAFETY: the caller gives a variable for the result.
    unsafe { identity.write(Identity { segment, endpoint, address, is_serialised }) };
    0
}

/// See [`weir_engine::node_group_interface::NodeGroupFunctions`].
///
/// # Safety
/// As the interface says.
pub unsafe extern "C" fn begin(
    key: u64,
    members: *const Identity,
    count: u32,
    rank: u32,
    takes_receives: c_int,
    joined: *mut Joined,
) -> c_int {
    // SAFETY: the caller gives an array of `count` values, which nobody changes during the call.
    let members = unsafe { std::slice::from_raw_parts(members, count as usize) };
    let Some(member) = Member::begin(key, members, rank, takes_receives != 0) else { return REFUSED };
    let is_crowded = member.is_crowded;
    let group = Arc::into_raw(Arc::new(SharedMember::new(member))).cast_mut().cast();
    // SAFETY: the caller gives a variable for the result.
    unsafe { joined.write(Joined { group, is_crowded: is_crowded.into() }) };
    JOINED
}

/// See [`weir_engine::node_group_interface::NodeGroupFunctions`].
///
/// # Safety
/// As the interface says.
pub unsafe extern "C" fn finish(group: *mut c_void) -> c_int {
    // SAFETY: `begin` made the pointer, `leave` has not got it, and one thread at a time calls.
    match unsafe { (*group.cast::<SharedMember>()).member() }.finish() {
        Some(true) => JOINED,
        Some(false) => NOT_YET,
        None => REFUSED,
    }
}

/// See [`weir_engine::node_group_interface::NodeGroupFunctions`].
///
/// # Safety
/// As the interface says.
pub unsafe extern "C" fn perform(
    group: *mut c_void,
    operation: *const OperationWords,
    data: *const u8,
    result: *mut u8,
    idle: Idle,
    context: *mut c_void,
    failure: *mut FailureWords,
) -> c_int {
    // SAFETY: `begin` made the pointer, `leave` has not got it, and one thread at a time calls. The operation is the
    // caller's variable.
    let (shared, words) = unsafe { (&*group.cast::<SharedMember>(), *operation) };
    let (operation, call) = words.operation().zip(words.call()).expect("the caller makes it of an operation");
    let (data_bytes, result_bytes) = (
        operation.data_bytes(shared.rank, shared.members),
        operation.result_bytes(shared.rank, shared.members),
    );
    // SAFETY: the caller gives as many bytes as the operation says, apart from each other. Without bytes, the pointer may be
    // null, so it is not used.
    let (data, result) = unsafe {
        let data = if data_bytes == 0 { &[] } else { std::slice::from_raw_parts(data, data_bytes) };
        let result =
            if result_bytes == 0 { &mut [] } else { std::slice::from_raw_parts_mut(result, result_bytes) };
        (data, result)
    };
    // SAFETY: one thread at a time calls, and this group takes no receives.
    let member = unsafe { shared.member() };
    // SAFETY: the caller's function and its context.
    match member.perform((operation, call), data, result, |course| unsafe { idle(context, course) }) {
        Ok(()) => 0,
        Err(fault) => {
            // SAFETY: the caller gives a variable for the failure.
            unsafe { failure.write(fault) };
            1
        }
    }
}

/// See [`weir_engine::node_group_interface::NodeGroupFunctions`].
///
/// # Safety
/// As the interface says.
pub unsafe extern "C" fn leave(group: *mut c_void) {
    // SAFETY: `begin` made the pointer, and the caller returns it. Operations under way still have the group.
    let shared = unsafe { Arc::from_raw(group.cast_const().cast::<SharedMember>()) };
    let Some(domain) = shared.endpoint.domain.upgrade().filter(|_| shared.is_across) else { return };
    let (mut state, index) = (domain.enter(), shared.endpoint.index);
    let engine = state.endpoints.get_mut(index).and_then(|endpoint| endpoint.engine());
    SharedMember::release(shared, engine);
}

#[cfg(test)]
mod tests;
