//! How an operation of a group takes a receive: the functions of the interface for non-blocking calls
//! ([`weir_engine::node_group_interface`]), and the table of tagged calls that looks for such receives.
//!
//! ```text
//! libweir-mpi.so   take_receive(group, all-reduce, data): remembered for this thread
//!                  PMPI_Irecv(result): the MPI calls fi_trecv
//! this table       the thread has an operation: it takes the receive, and starts
//! libweir-mpi.so   has_taken: yes; the program gets the MPI's request
//! fi_cq_read       advances the operation, later writes the entry of the receive
//! ```
//! **No cost for others.** A program calls through the table of its endpoint. The usual one knows nothing of this. The first
//! operation of a process gives each endpoint the table of this file, whose receives look at a variable of their thread. A
//! trial does so for its duration.
//!
//! **Who uses the group.** Whoever has the domain advances its operations. So the caller does not ([`SharedMember`]).

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use weir_engine::Engine;
use weir_engine::delivery::Delivery;
use weir_engine::levels::{LevelFailure, LevelGroup, LevelTask, Step};
use weir_engine::node_group_interface::OperationWords;
use weir_engine::operation_times::{Looks, OperationKind};
use weir_link::cores::stopwatch;
use weir_link::memory::UserMemory;
use weir_link::shm::node_group::{GroupFailure, Operation, Task};
use weir_proto::PeerFault;

use crate::endpoint_handle::EndpointHandle;
use crate::ffi::*;
use crate::group_wait::Wait;
use crate::log;
use crate::message::scattered;
use crate::node_endpoints::{OpenEndpoint, set_tables};
use crate::node_groups::{Member, Membership, SharedMember, describe, to_group};
use crate::state::completion::Side;
use crate::state::endpoint::Flags;
use crate::state::taken_receives::{GroupOperation, TakenReceive};
use crate::tagged;

thread_local! {
    /// What the next receive of this thread is for.
    static NEXT: RefCell<Option<Next>> = const { RefCell::new(None) };
    /// This thread has begun a trial.
    static IS_TRYING: Cell<bool> = const { Cell::new(false) };
}

/// Trials under way.
static TRIALS: Mutex<u32> = Mutex::new(0);
/// An operation has begun, so endpoints keep the table of this file. It is set while [`TRIALS`] is locked.
static KEEPS_TABLE: AtomicBool = AtomicBool::new(false);

fn begin_trial() {
    IS_TRYING.set(true);
    let mut trials = TRIALS.lock().unwrap_or_else(PoisonError::into_inner);
    *trials += 1;
    set_tables(&OPS);
}

fn end_trial() {
    let mut trials = TRIALS.lock().unwrap_or_else(PoisonError::into_inner);
    *trials -= 1;
    if *trials == 0 && !KEEPS_TABLE.load(Ordering::Acquire) {
        set_tables(&tagged::OPS);
    }
}

fn keep_table() {
    if !KEEPS_TABLE.load(Ordering::Acquire) {
        let _trials = TRIALS.lock().unwrap_or_else(PoisonError::into_inner);
        set_tables(&OPS);
        KEEPS_TABLE.store(true, Ordering::Release);
    }
}

/// What takes a receive.
struct Next {
    shared: Arc<SharedMember>,
    /// `None`: a trial, which ends at once.
    operation: Option<(OperationWords, Operation, Data)>,
}

impl Next {
    /// Length of what the receive gets. Unit: bytes.
    fn received_bytes(&self) -> u64 {
        let SharedMember { rank, members, .. } = *self.shared;
        self.operation.as_ref().map_or(0, |(words, operation, _)| {
            let bytes = operation.result_bytes(rank, members);
            delivery(words).bytes(bytes) as u64
        })
    }
}

/// What the receive gets of the result.
fn delivery(words: &OperationWords) -> Delivery {
    words.delivery().expect("the caller makes it of an operation")
}

/// What this member contributes.
enum Data {
    /// Memory of the program: address, length.
    Program(usize, usize),
    /// A copy.
    Copy(Vec<u8>),
}

impl Data {
    fn bytes(&self) -> &[u8] {
        match self {
            Data::Program(_, 0) => &[],
            // SAFETY: the program leaves its memory alone until the operation has finished.
            Data::Program(address, bytes) => unsafe {
                std::slice::from_raw_parts(*address as *const u8, *bytes)
            },
            Data::Copy(bytes) => bytes,
        }
    }
}

/// An operation that has taken a receive.
struct Taken {
    /// `None`: the operation has ended.
    shared: Option<Arc<SharedMember>>,
    operation: Operation,
    data: Data,
    course: Course,
    wait: Wait,
    call: OperationKind,
    looks: Looks,
}

/// How far an operation is.
enum Course {
    /// It is not advanced yet.
    New,
    /// In a group of one node.
    Node(Task),
    /// In one of several nodes. Some look has found that it had not ended.
    Levels(LevelTask, bool),
}

impl Course {
    /// Advances the operation in its group.
    fn advance(
        &mut self,
        membership: &mut Membership,
        engine: Option<&mut Engine>,
        operation: Operation,
        (data, result): (&[u8], &mut [u8]),
    ) -> Result<bool, GroupFailure> {
        match (membership, self) {
            (Membership::Node(group), course) => {
                if let Course::New = course {
                    *course = Course::Node(group.task(operation));
                }
                let Course::Node(task) = course else { unreachable!("it began in this group") };
                group.advance(task, data, result)
            }
            (Membership::Levels(group), course) => {
                if let Course::New = course {
                    *course = Course::Levels(group.task(operation), false);
                }
                let Course::Levels(task, has_waited) = course else { unreachable!("it began in this group") };
                let is_done = advance_on_levels(group, engine, task, (data, result)).map_err(to_group)?;
                *has_waited |= !is_done;
                Ok(is_done)
            }
            (Membership::Begun, _) => unreachable!("the caller has finished joining"),
        }
    }

    fn has_begun(&self) -> bool {
        match self {
            Course::New => false,
            Course::Node(task) => task.has_begun(),
            Course::Levels(task, _) => task.has_begun(),
        }
    }

    /// Until when it has waited for others. `None`: it has not.
    fn all_had_begun(&self, ended: u64) -> Option<u64> {
        match self {
            Course::Node(task) => task.waited_until(ended),
            Course::Levels(_, true) => Some(ended),
            Course::New | Course::Levels(_, false) => None,
        }
    }
}

/// Advances an operation as far as it can inside the node and beyond it. Returns whether it has ended.
fn advance_on_levels(
    group: &mut LevelGroup,
    mut engine: Option<&mut Engine>,
    task: &mut LevelTask,
    (data, result): (&[u8], &mut [u8]),
) -> Result<bool, LevelFailure> {
    let own = group.layout().rank();
    loop {
        match group.advance(task, data, result)? {
            Step::Done => return Ok(true),
            Step::Node => return Ok(false),
            Step::Network => {
                let closed = LevelFailure { rank: own, fault: PeerFault::Closed };
                let engine = engine.as_deref_mut().ok_or(closed)?;
                if !group.advance_network(engine, task)? {
                    return Ok(false);
                }
            }
        }
    }
}

impl Taken {
    fn shared(&self) -> &Arc<SharedMember> {
        self.shared.as_ref().expect("the operation has not ended")
    }

    fn advance_in(
        &mut self,
        member: &mut Member,
        engine: Option<&mut Engine>,
        result: &mut [u8],
    ) -> Result<bool, GroupFailure> {
        let Taken { operation, data, course, wait, looks, .. } = self;
        let is_done = course.advance(&mut member.membership, engine, *operation, (data.bytes(), result))?;
        if !is_done {
            looks.missing(stopwatch());
            if wait.due().check {
                match &mut member.membership {
                    Membership::Node(group) => group.check()?,
                    Membership::Levels(group) => group.check().map_err(to_group)?,
                    Membership::Begun => {}
                }
            }
        }
        Ok(is_done)
    }
}

impl GroupOperation for Taken {
    fn group(&self) -> usize {
        Arc::as_ptr(self.shared()) as usize
    }

    fn result_bytes(&self) -> usize {
        let SharedMember { rank, members, .. } = **self.shared();
        self.operation.result_bytes(rank, members)
    }

    fn advance(&mut self, mut engine: Option<&mut Engine>, result: &mut [u8]) -> Result<bool, PeerFault> {
        let shared = self.shared.take().expect("the operation has not ended");
        // SAFETY: the group takes receives, and the caller has the domain.
        let member = unsafe { shared.member() };
        let advanced = self.advance_in(member, engine.as_deref_mut(), result);
        match advanced {
            Ok(false) => {
                self.shared = Some(shared);
                return Ok(false);
            }
            Ok(true) => {
                let ended = stopwatch();
                member.count_request(self.call, &self.looks, self.course.all_had_begun(ended), ended);
            }
            Err(failure) => {
                if !std::mem::replace(&mut member.is_reported, true) {
                    let why = describe(failure);
                    log::report(&format!("a non-blocking collective operation has failed: {why}"));
                }
                member.leave_by(engine.as_deref_mut()); // so that other nodes learn it
            }
        }
        SharedMember::release(shared, engine);
        advanced.map_err(|failure| failure.fault)
    }

    fn has_begun(&self) -> bool {
        self.course.has_begun()
    }
}

/// See [`weir_engine::node_group_interface::NodeGroupFunctions`].
///
/// # Safety
/// As the interface says.
pub unsafe extern "C" fn take_receive(
    group: *mut c_void,
    operation: *const OperationWords,
    data: *const u8,
    is_copied: c_int,
) {
    match operation.is_null() {
        true => begin_trial(),
        false => keep_table(),
    }
    // SAFETY: `begin` made the pointer from an `Arc`, and `leave` has not got it.
    let shared = unsafe {
        Arc::increment_strong_count(group.cast::<SharedMember>());
        Arc::from_raw(group.cast_const().cast::<SharedMember>())
    };
    // SAFETY: null, or the caller's variable.
    let operation = unsafe { operation.as_ref() }.map(|words| {
        let operation = words.operation().expect("the caller makes it of an operation");
        let bytes = operation.data_bytes(shared.rank, shared.members);
        let data = match is_copied != 0 && bytes > 0 {
            false => Data::Program(data as usize, bytes),
            // SAFETY: the caller gives as many bytes as the operation says.
            true => Data::Copy(unsafe { std::slice::from_raw_parts(data, bytes) }.to_vec()),
        };
        (*words, operation, data)
    });
    NEXT.set(Some(Next { shared, operation }));
}

/// See [`weir_engine::node_group_interface::NodeGroupFunctions`].
///
/// # Safety
/// None: it takes nothing. Its type is that of the table.
pub unsafe extern "C" fn has_taken() -> c_int {
    if IS_TRYING.take() {
        end_trial();
    }
    NEXT.take().is_some().into()
}

/// The usual table, but its receives look whether an operation takes them.
static OPS: FiOpsTagged<EndpointHandle> = FiOpsTagged { recv, recvv, recvmsg, ..tagged::OPS };

/// Whether an operation takes a receive of this endpoint. Then it does.
///
/// - `memory`: the buffer. It has room for the result, if the receive is the one that the caller of the group posts.
fn takes(
    endpoint: &EndpointHandle,
    (tag, ignore): (u64, u64),
    context: usize,
    flags: Flags,
    memory: impl FnOnce() -> UserMemory,
) -> bool {
    if NEXT.with_borrow(Option::is_none) {
        return false;
    }
    let memory = memory();
    let mut state = endpoint.enter();
    let bound = &mut state.endpoints[endpoint.index];
    let has_queue = bound.bindings.receive.is_some(); // whose reads advance the operation
    let is_ours = |next: &mut Next| {
        let OpenEndpoint { domain, index, .. } = &next.shared.endpoint;
        let is_here =
            std::ptr::eq(domain.as_ptr(), Arc::as_ptr(&endpoint.domain)) && *index == endpoint.index;
        is_here && has_queue && memory.bytes() >= next.received_bytes()
    };
    let Some(Next { shared, operation }) = NEXT.with_borrow_mut(|next| next.take_if(is_ours)) else {
        return false;
    };
    let (post, _) = bound.post(Side::Receive, context, flags);
    let tag = tag & !ignore;
    match operation {
        None => state.complete_receive(endpoint.index, post, tag),
        Some((words, operation, data)) => {
            let call = words.call().unwrap_or(operation.into());
            let (course, wait, looks) = (Course::New, Wait::default(), Looks::begin(stopwatch()));
            let taken = Box::new(Taken { shared: Some(shared), operation, data, course, wait, call, looks });
            let receive = TakenReceive::new(post, tag, memory, taken, delivery(&words));
            state.take_receive(endpoint.index, receive);
        }
    }
    state.after_post(&Ok(()));
    true
}

extern "C" fn recv(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    bytes: usize,
    desc: Desc,
    from: FiAddr,
    tag: u64,
    ignore: u64,
    context: usize,
) -> isize {
    match takes(endpoint, (tag, ignore), context, Flags::Default, || buffer.memory(bytes)) {
        true => 0,
        false => (tagged::OPS.recv)(endpoint, buffer, bytes, desc, from, tag, ignore, context),
    }
}

extern "C" fn recvv(
    endpoint: &EndpointHandle,
    pieces: UserVector,
    desc: Desc,
    count: usize,
    from: FiAddr,
    tag: u64,
    ignore: u64,
    context: usize,
) -> isize {
    let memory = || scattered(pieces, count).unwrap_or(UserMemory::EMPTY);
    match takes(endpoint, (tag, ignore), context, Flags::Default, memory) {
        true => 0,
        false => (tagged::OPS.recvv)(endpoint, pieces, desc, count, from, tag, ignore, context),
    }
}

extern "C" fn recvmsg(endpoint: &EndpointHandle, message: &FiMsgTagged, flags: u64) -> isize {
    let &FiMsgTagged { msg_iov, iov_count, tag, ignore, context, .. } = message;
    let memory = || scattered(msg_iov, iov_count).unwrap_or(UserMemory::EMPTY);
    let is_receive = flags & (flags::PEEK | flags::CLAIM) == 0;
    match is_receive && takes(endpoint, (tag, ignore), context, Flags::Given(flags), memory) {
        true => 0,
        false => (tagged::OPS.recvmsg)(endpoint, message, flags),
    }
}
