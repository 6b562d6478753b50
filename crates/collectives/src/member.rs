//! A member at work in its group: waiting, and what becomes of a failure.
//!
//! While it waits, a member yields its core, and lets the MPI make progress: others may wait for the answer to a message,
//! and would then never come. `PMPI_Iprobe` does this in every MPI. It asks for messages of this rank to itself, so that it
//! neither finds a message for the program nor fails with another rank.

use crate::abi::Abi;
use crate::mpi::Mpi;
use crate::provider::Group;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_engine::levels::Layout;
use weir_engine::node_group_interface::{LOOKED, PROGRESS_IS_DUE};
use weir_engine::operation_times::OperationKind;
use weir_link::shm::node_group::{GroupFailure, Operation};
use weir_proto::PeerFault;

/// Looks of a waiting member before it yields its core, if every rank of the node has a core.
const SPINS: u32 = 64;
/// Looks before the MPI makes progress; then it does after each. Shorter waits delay nobody.
const FIRST_PROGRESS: u32 = 128;
/// In a wait for another host the MPI makes progress once in so many looks, and when the provider says so. The provider itself
/// pauses and receives messages there, so the MPI has hardly anything to do.
const LOOKS_PER_PROGRESS: u32 = 16;
/// The MPI makes progress once in so many operations, however short they are: another rank may wait for a message of this
/// one, and the program may call nothing else until that rank has it.
const OPERATIONS_PER_PROGRESS: u64 = 64;

/// Our membership in the group of a communicator.
#[derive(Debug)]
pub struct Member {
    group: Group,
    /// The group for non-blocking operations, if there are some.
    pub requests: Option<Group>,
    /// The user knows that the group has failed.
    is_reported: bool,
}

impl Member {
    /// A member that has done nothing.
    pub fn new(group: Group, requests: Option<Group>) -> Member {
        Member { group, requests, is_reported: false }
    }
}

/// A communicator whose decision is known.
#[derive(Debug)]
pub struct Communicator {
    /// Its handle.
    pub handle: usize,
    /// Our rank in it.
    pub rank: u32,
    /// Its ranks.
    pub members: u32,
    /// It has a group. The MPI does its operations otherwise.
    pub has_group: bool,
    /// Where its ranks are, if they are on several nodes. Then the group does only what this says.
    pub layout: Option<Layout>,
    /// Operations can take receives of the MPI, so there are non-blocking ones, in a group of their own.
    pub takes_receives: bool,
    /// Our membership. `None`: it has no group, or has been freed.
    pub member: Mutex<Option<Member>>,
    /// Operations that the group has done for this member. Who holds the membership changes it; anybody may read it, without
    /// a wait for an operation that is under way.
    pub performed: AtomicU64,
}

/// Locks, whatever another thread has left.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A member that waits.
struct Wait<'mpi> {
    mpi: &'mpi Mpi,
    abi: &'mpi Abi,
    communicator: &'mpi Communicator,
    is_crowded: bool,
    looks: u32,
}

impl Wait<'_> {
    fn make_progress(&self) {
        let Communicator { handle, rank, .. } = *self.communicator;
        make_progress(self.mpi, self.abi, handle, rank as c_int);
    }
}

/// Lets the MPI make progress.
///
/// - `handle`, `rank`: a communicator, and our rank in it.
pub fn make_progress(mpi: &Mpi, abi: &Abi, handle: usize, rank: c_int) {
    let (values, mut found) = (&abi.constants.values, 0);
    // SAFETY: the MPI's function, a variable for the result, and the value that means no status. Whatever it returns, the
    // MPI has made progress.
    unsafe { (mpi.functions.iprobe)(rank, values.any_tag, handle, &mut found, values.status_ignore) };
}

/// Called between two looks, with a [`Wait`].
unsafe extern "C" fn idle(context: *mut c_void, course: c_int) {
    // SAFETY: `perform` gives its own variable, which nobody else uses meanwhile.
    let wait = unsafe { &mut *context.cast::<Wait<'_>>() };
    wait.looks = wait.looks.saturating_add(1);
    if course != LOOKED {
        if course == PROGRESS_IS_DUE || wait.looks.is_multiple_of(LOOKS_PER_PROGRESS) {
            wait.make_progress();
        }
        return;
    }
    if !wait.is_crowded && wait.looks <= SPINS {
        std::hint::spin_loop();
        return;
    }
    if wait.looks >= FIRST_PROGRESS {
        wait.make_progress();
    }
    // SAFETY: takes nothing and touches no memory.
    unsafe { libc::sched_yield() };
}

impl Communicator {
    /// Performs an operation in the group. Returns the status for the program: 0, or the error after the error handler of
    /// the communicator has returned. `None`: the communicator has been freed.
    ///
    /// - `name`, `call`: the call, for the user.
    ///
    /// # Safety
    /// `data` and `result` are as long as the operation says for this member, and do not overlap.
    pub unsafe fn perform(
        &self,
        mpi: &Mpi,
        abi: &Abi,
        name: &str,
        (operation, call): (Operation, OperationKind),
        data: *const u8,
        result: *mut u8,
    ) -> Option<c_int> {
        let mut locked = lock(&self.member);
        let member = locked.as_mut()?;
        let mut wait = Wait { mpi, abi, communicator: self, is_crowded: member.group.is_crowded, looks: 0 };
        if self.performed.load(Ordering::Relaxed).is_multiple_of(OPERATIONS_PER_PROGRESS) {
            wait.make_progress();
        }
        // SAFETY: as the caller promises; `idle` gets its own variable.
        let ended =
            unsafe { member.group.perform((operation, call), data, result, idle, (&raw mut wait).cast()) };
        let Err(failure) = ended else {
            self.count_performed();
            // Messages of other hosts have come while it waited. An operation of the MPI would have handled them, and programs expect
            // that, such as one that calls MPI_Win_test once behind a barrier.
            if self.layout.is_some() && wait.looks > 0 {
                wait.make_progress();
            }
            return Some(0);
        };
        let is_news = !std::mem::replace(&mut member.is_reported, true);
        drop(locked); // the error handler may call MPI
        if is_news {
            use std::io::Write;
            // A closed or full standard error is no reason to fail.
            let line = format!("weir: {name}: {}\n", self.describe(failure));
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
        let error = abi.constants.values.member_failed;
        // SAFETY: the MPI's function. A handler may end the process, or return.
        unsafe { (mpi.functions.comm_call_errhandler)(self.handle, error) };
        Some(error)
    }
}

impl Communicator {
    /// Counts an operation that the group has done. The caller holds the membership, so this needs no locked instruction.
    pub fn count_performed(&self) {
        self.performed.store(self.performed.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn describe(&self, failure: GroupFailure) -> String {
        let GroupFailure { member, fault } = failure;
        // A participant says that a member of its node has failed by leaving.
        let speaks_for_node = self.layout.as_ref().is_some_and(|layout| layout.speaks_for_others(member));
        let what = match fault {
            PeerFault::Closed if speaks_for_node => {
                return format!(
                    "rank {member} of the communicator, or another one on its host, has failed or left"
                );
            }
            PeerFault::Died => "its process has ended",
            PeerFault::Closed => "it has freed the communicator or finalized MPI",
            _ => "it is in another collective call, or calls it with other arguments",
        };
        format!("rank {member} of the communicator has failed: {what}")
    }
}
