//! The provider in this process, whose endpoint is a member of the node groups.
//!
//! This library opens no endpoint of its own: that would cost a mailbox for each rank, and count twice among the ranks of
//! the node. The provider has been loaded by the MPI's libfabric, so it is found among the loaded libraries.

use crate::mpi::{last_part, loaded_libraries, open_loaded};
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use weir_engine::delivery::Delivery;
use weir_engine::node_group_interface::{
    ALL, ENTRY, Entry, FailureWords, Identity, Idle, JOINED, Joined, MARKED, NOT_YET, NodeGroupFunctions,
    OperationWords, UNSEEN, VERSION,
};
use weir_engine::operation_times::OperationKind;
use weir_link::shm::node_group::{
    GroupFailure, MAX_BROADCAST_BYTES, MAX_MEMBERS, MAX_VECTOR_BYTES, Operation,
};

/// Ends of the file names of the plug-in: as installed, and as built by cargo.
const NAMES: [&[u8]; 2] = [b"libweir-fi.so", b"libweir_fi.so"];

/// The functions of the provider. `None`: this process has none of this version.
fn functions() -> Option<&'static NodeGroupFunctions> {
    static FOUND: OnceLock<&'static NodeGroupFunctions> = OnceLock::new();
    if let Some(&found) = FOUND.get() {
        return Some(found);
    }
    let names = loaded_libraries();
    let name = names.iter().find(|name| NAMES.contains(&last_part(name)))?;
    let handle = open_loaded(name)?;
    // SAFETY: a loaded library, and a string that ends with NUL. The provider gives the function this name and this type,
    // and its table is constant.
    let functions = unsafe {
        let address = libc::dlsym(handle, ENTRY.as_ptr());
        if address.is_null() {
            return None;
        }
        &*std::mem::transmute::<*mut c_void, Entry>(address)()
    };
    let limits = (functions.max_members, functions.max_vector_bytes, functions.max_broadcast_bytes);
    let is_ours =
        functions.version == VERSION && limits == (MAX_MEMBERS, MAX_VECTOR_BYTES, MAX_BROADCAST_BYTES);
    is_ours.then(|| *FOUND.get_or_init(|| functions))
}

/// The endpoint of this process in its node segment. `None`: it has none.
pub fn identity() -> Option<Identity> {
    let functions = functions()?;
    let mut identity = Identity::default();
    // SAFETY: the provider's function, and a variable for its result.
    (unsafe { (functions.identify)(&mut identity) } == 0).then_some(identity)
}

/// Enters the roster, when `MPI_Init` is over. Returns whether others find this process there.
///
/// - `place`: our rank in the world, and its ranks. `None`: this process does no operations by groups.
pub fn enter(place: Option<(c_int, c_int)>) -> bool {
    let (rank, ranks) = place.unwrap_or((-1, 0));
    // SAFETY: the provider's function, which takes numbers.
    functions().is_some_and(|functions| unsafe { (functions.enter)(rank, ranks) } == 0)
}

/// Whether all these ranks of the world have entered. `None`: it is not known yet; `is_last` excludes this.
pub fn have_all_entered(ranks: &[c_int], is_last: bool) -> Option<bool> {
    let Some(functions) = functions() else { return Some(false) };
    // SAFETY: the provider's function, and an array of so many numbers.
    match unsafe { (functions.ask)(ranks.as_ptr(), ranks.len() as u32, is_last.into()) } {
        NOT_YET => None,
        answer => Some(answer == ALL),
    }
}

/// Whether the rank for whose message the MPI has looked last takes part across nodes. `None`: the provider has not seen it.
pub fn probed() -> Option<bool> {
    // SAFETY: the provider's function.
    let probed = functions().map_or(UNSEEN, |functions| unsafe { (functions.probed)() });
    (probed != UNSEEN).then_some(probed == MARKED)
}

/// Whether the receive that this thread has posted since [`Group::take_receive`] stands for the operation. If not, none will.
pub fn has_taken() -> bool {
    // SAFETY: the provider's function, which takes nothing.
    functions().is_some_and(|functions| unsafe { (functions.has_taken)() } == 0)
}

/// A group that this process has joined. It leaves when the value is dropped.
#[derive(Debug)]
pub struct Group {
    functions: &'static NodeGroupFunctions,
    group: *mut c_void,
    /// More endpoints than cores: members must yield while they wait.
    pub is_crowded: bool,
}

// SAFETY: a membership may move between threads; `perform` needs a unique reference.
unsafe impl Send for Group {}

/// Begins to join a group. `None`: the endpoint cannot.
///
/// - `takes_receives`: it is for [`Group::take_receive`]. Otherwise it is for [`Group::perform`].
pub fn begin(key: u64, members: &[Identity], rank: u32, takes_receives: bool) -> Option<Group> {
    let functions = functions()?;
    let mut joined = Joined { group: std::ptr::null_mut(), is_crowded: 0 };
    let (first, count) = (members.as_ptr(), members.len() as u32);
    // SAFETY: the provider's function, an array of so many members, and a variable for the result.
    let status = unsafe { (functions.begin)(key, first, count, rank, takes_receives.into(), &mut joined) };
    (status == JOINED).then(|| Group { functions, group: joined.group, is_crowded: joined.is_crowded != 0 })
}

impl Group {
    /// Goes on to join, when all members have begun. `None`: it cannot. `Some(false)`: not all have joined yet.
    pub fn finish(&mut self) -> Option<bool> {
        // SAFETY: the group that the provider has given.
        match unsafe { (self.functions.finish)(self.group) } {
            JOINED => Some(true),
            NOT_YET => Some(false),
            _ => None,
        }
    }

    /// Performs an operation, for a program that has called `call`. Calls `idle` with `context` while it waits.
    ///
    /// # Errors
    /// The group has failed.
    ///
    /// # Safety
    /// `data` and `result` are as long as the operation says for this member, and do not overlap. `idle` may be called with
    /// `context`.
    pub unsafe fn perform(
        &mut self,
        (operation, call): (Operation, OperationKind),
        data: *const u8,
        result: *mut u8,
        idle: Idle,
        context: *mut c_void,
    ) -> Result<(), GroupFailure> {
        let words = OperationWords::from(operation).of_call(call);
        let mut failure = FailureWords::default();
        // SAFETY: the group that the provider has given, one call at a time, and what the caller promises.
        let status: c_int = unsafe {
            (self.functions.perform)(self.group, &words, data, result, idle, context, &mut failure)
        };
        if status == 0 { Ok(()) } else { Err(failure.failure()) }
    }

    /// The next receive that this thread posts stands for the operation; its buffer gets the result. `None`: a trial, which
    /// ends at once.
    ///
    /// - `delivery`: what the buffer gets of the result.
    /// - `is_copied`: `data` is free at the return. Otherwise when the receive has completed.
    ///
    /// # Safety
    /// The group was begun for this. `data` is as long as the operation says for this member.
    pub unsafe fn take_receive(
        &mut self,
        operation: Option<Operation>,
        delivery: Delivery,
        data: *const u8,
        is_copied: bool,
    ) {
        let words = operation.map(|operation| OperationWords::from(operation).delivered(delivery));
        let words = words.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the group that the provider has given, and what the caller promises.
        unsafe { (self.functions.take_receive)(self.group, words, data, is_copied.into()) };
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: the group that the provider has given, which is used no more.
        unsafe { (self.functions.leave)(self.group) };
    }
}
