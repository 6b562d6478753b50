//! Poll sets (`fi_poll`): several completion queues and counters, on which one call makes progress and finds those that
//! have something to read. libfabric 2 calls them deprecated, and still has them.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::counter::CounterHandle;
use crate::cq::QueueHandle;
use crate::errno::{Error, status};
use crate::ffi::*;
use crate::state::domain_state::{Domain, ProgressTarget, State, skip_in_forked_child};

/// A queue or counter in the set.
struct Member {
    target: ProgressTarget,
    /// The program's context of the queue or counter.
    context: usize,
}

/// The object that C holds.
#[repr(C)]
pub struct PollSetHandle {
    pub(crate) fid: Fid,
    pub(crate) ops: *const FiOpsPoll<PollSetHandle>,
    pub(crate) domain: Arc<Domain>,
    /// Locked outside of the domain.
    members: Mutex<Vec<Member>>,
}

object!(PollSetHandle, class::POLL, FID_OPS);

static FID_OPS: FiOps<PollSetHandle> = FiOps {
    size: size_of::<FiOps<PollSetHandle>>(),
    close,
    bind: no_bind,
    control: no_control,
    ops_open: not_implemented,
    tostr: not_implemented,
    ops_set: not_implemented,
};

static OPS: FiOpsPoll<PollSetHandle> =
    FiOpsPoll { size: size_of::<FiOpsPoll<PollSetHandle>>(), poll, poll_add, poll_del };

/// `fi_poll_open`.
///
/// # Errors
/// Flags, which are reserved: bad flags.
pub fn open(domain: &Arc<Domain>, attr: Option<&FiPollAttr>) -> Result<*mut PollSetHandle, Error> {
    if attr.is_some_and(|attr| attr.flags != 0) {
        return Err(Error::BAD_FLAGS);
    }
    let fid = Fid { fclass: class::POLL, context: 0, ops: (&raw const FID_OPS).cast() };
    Ok(hand_out(PollSetHandle { fid, ops: &OPS, domain: domain.clone(), members: Mutex::default() }))
}

/// The number of poll sets that a queue or counter is in.
fn poll_sets(state: &mut State, target: ProgressTarget) -> &mut u32 {
    match target {
        ProgressTarget::Queue(index) => &mut state.queues[index].poll_sets,
        ProgressTarget::Counter(index) => &mut state.counters[index].poll_sets,
    }
}

extern "C" fn close(set: Box<PollSetHandle>) -> c_int {
    skip_in_forked_child!(set);
    let mut state = set.domain.enter();
    for member in set.members().iter() {
        *poll_sets(&mut state, member.target) -= 1;
    }
    0
}

impl PollSetHandle {
    fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a call names.
    fn member(&self, object: AnyObject, flags: u64) -> Result<Member, Error> {
        if flags != 0 {
            return Err(Error::BAD_FLAGS);
        }
        let (domain, member) = if let Some(queue) = object.of::<QueueHandle>() {
            (&queue.domain, Member { target: ProgressTarget::Queue(queue.index), context: queue.fid.context })
        } else {
            let counter = object.of::<CounterHandle>().ok_or(Error::INVALID)?;
            let target = ProgressTarget::Counter(counter.index);
            (&counter.domain, Member { target, context: counter.fid.context })
        };
        if Arc::ptr_eq(domain, &self.domain) { Ok(member) } else { Err(Error::OTHER_DOMAIN) }
    }

    fn add(&self, object: AnyObject, flags: u64) -> Result<(), Error> {
        let member = self.member(object, flags)?;
        let mut members = self.members();
        if members.iter().all(|known| known.target != member.target) {
            *poll_sets(&mut self.domain.enter(), member.target) += 1;
            members.push(member);
        }
        Ok(())
    }

    fn remove(&self, object: AnyObject, flags: u64) -> Result<(), Error> {
        let target = self.member(object, flags)?.target;
        let mut members = self.members();
        let place = members.iter().position(|known| known.target == target).ok_or(Error::NO_ENTRY)?;
        members.remove(place);
        *poll_sets(&mut self.domain.enter(), target) -= 1;
        Ok(())
    }
}

/// Makes progress on all members, and returns the contexts of queues with entries and of counters that have changed since
/// the program read them or was told here.
extern "C" fn poll(set: &PollSetHandle, mut contexts: OutArray<usize>, count: c_int) -> c_int {
    let room = usize::try_from(count).unwrap_or(0);
    let members = set.members();
    let mut state = set.domain.enter();
    let mut found = 0;
    for member in members.iter() {
        state.progress(member.target);
    }
    for member in members.iter() {
        if found == room {
            break;
        }
        let has_events = match member.target {
            ProgressTarget::Queue(index) => !state.queues[index].entries.is_empty(),
            ProgressTarget::Counter(index) => std::mem::take(&mut state.counters[index].has_changed),
        };
        if has_events {
            contexts.set(found, member.context);
            found += 1;
        }
    }
    found as c_int
}

extern "C" fn poll_add(set: &PollSetHandle, object: AnyObject, flags: u64) -> c_int {
    status(set.add(object, flags))
}

extern "C" fn poll_del(set: &PollSetHandle, object: AnyObject, flags: u64) -> c_int {
    status(set.remove(object, flags))
}
