//! The communicators of this process that have had a collective call, and the decision of each: its group, or none.
//!
//! The first call of a communicator decides, together with all members ([`crate::agreement`]). The decision stays until the
//! communicator is freed: an attribute's delete function tells us, and the group is left. A duplicate gets no attribute, so
//! it decides for itself.
//!
//! Only communicators are considered whose members all do collective operations by groups ([`crate::world`]): all members of
//! a communicator find the same, without a message.

use crate::abi::Abi;
use crate::agreement::{self, OFFER_WORDS, Offer};
use crate::member::{Communicator, Member, lock, make_progress};
use crate::mpi::{Mpi, check, mpi};
use crate::provider::Group;
use crate::recent::Recent;
use crate::requests::takes_receives;
use crate::{provider, world};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use weir_engine::config::AcrossHosts;
use weir_engine::levels::Layout;
use weir_link::shm::node_group::MAX_MEMBERS;

/// By handle.
static KNOWN: Mutex<BTreeMap<usize, Arc<Communicator>>> = Mutex::new(BTreeMap::new());
/// Communicators that have been freed: a handle may mean another communicator afterwards.
static FREED: AtomicU64 = AtomicU64::new(0);
/// `MPI_Finalize` has begun.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);
/// Operations of communicators that have been freed.
static PERFORMED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static LAST: Cell<Option<Last>> = const { Cell::new(None) };
}

/// The communicator of this thread's last call.
struct Last {
    /// [`FREED`] then.
    freed: u64,
    communicator: Arc<Communicator>,
    /// What its last calls were.
    recent: Recent,
}

/// Calls `work` with the communicator, if its operations are done by a group; else `None`. The first call that may decides,
/// with all members.
///
/// - `may_decide`: the call may wait for the other members.
///
/// # Errors
/// The MPI failed while the members agreed. It has told its error handler.
pub fn with_group<R>(
    mpi: &Mpi,
    abi: &Abi,
    handle: usize,
    may_decide: bool,
    work: impl FnOnce(&Communicator, &mut Recent) -> R,
) -> Result<Option<R>, c_int> {
    let freed = FREED.load(Ordering::Acquire);
    // Taken out and put back: a further reference would cost two locked instructions. A call in between finds none.
    let mut last = match LAST.take() {
        Some(last) if last.freed == freed && last.communicator.handle == handle => last,
        _ if HAS_ENDED.load(Ordering::Acquire) => return Ok(None),
        _ => {
            let known = lock(&KNOWN).get(&handle).cloned();
            let found = match known {
                None if may_decide => begin(mpi, abi, handle)?,
                known => known,
            };
            match found {
                Some(communicator) => Last { freed, communicator, recent: Recent::default() },
                None => return Ok(None),
            }
        }
    };
    let result = last.communicator.has_group.then(|| work(&last.communicator, &mut last.recent));
    LAST.set(Some(last));
    Ok(result)
}

/// Calls `work` with the communicator, if this thread has called it last and its operations are done by a group. Nobody decides
/// and nobody is asked.
#[inline]
pub fn with_last<R>(handle: usize, work: impl FnOnce(&Communicator, &mut Recent) -> Option<R>) -> Option<R> {
    let mut last = LAST.take()?;
    let is_it = last.freed == FREED.load(Ordering::Acquire)
        && last.communicator.handle == handle
        && last.communicator.has_group;
    let result = if is_it { work(&last.communicator, &mut last.recent) } else { None };
    LAST.set(Some(last));
    result
}

/// Operations that groups have done for this process.
pub fn performed() -> u64 {
    let known = lock(&KNOWN);
    let running: u64 = known.values().map(|known| known.performed.load(Ordering::Relaxed)).sum();
    PERFORMED.load(Ordering::Relaxed) + running
}

/// Leaves all groups. From now on all calls pass through. The mailboxes close in the MPI's own `MPI_Finalize`.
pub fn end() {
    HAS_ENDED.store(true, Ordering::Release);
    let known = std::mem::take(&mut *lock(&KNOWN));
    known.values().for_each(|communicator| forget(communicator));
    provider::enter(None);
}

fn forget(communicator: &Communicator) {
    FREED.fetch_add(1, Ordering::AcqRel);
    *lock(&communicator.member) = None;
    PERFORMED.fetch_add(communicator.performed.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Decides about a communicator, together with its members. `None`: it has no decision, and the MPI does this call.
fn begin(mpi: &Mpi, abi: &Abi, handle: usize) -> Result<Option<Arc<Communicator>>, c_int> {
    let functions = &mpi.functions;
    let (mut is_initialized, mut is_finalized, mut is_between_groups) = (0, 0, 0);
    let (mut members, mut rank) = (0, 0);
    // SAFETY: the MPI's functions, and variables for their results.
    unsafe {
        (functions.initialized)(&mut is_initialized);
        (functions.finalized)(&mut is_finalized);
        if is_initialized == 0 || is_finalized != 0 || handle == abi.constants.null_communicator {
            return Ok(None);
        }
        check((functions.comm_test_inter)(handle, &mut is_between_groups))?;
        check((functions.comm_size)(handle, &mut members))?;
        check((functions.comm_rank)(handle, &mut rank))?;
    }
    let is_considered = is_between_groups == 0
        && (2..=MAX_MEMBERS as c_int).contains(&members)
        && world::uses_groups(mpi, abi, handle, (members, rank))?;
    let is_watched = watch(mpi, handle);
    let (members, rank) = (members as u32, rank as u32);
    let agreed = if is_considered { agree(mpi, abi, handle, (members, rank), is_watched)? } else { None };
    if !is_watched {
        return Ok(None);
    }
    let has_group = agreed.is_some();
    let Agreed { group, requests, layout } = agreed.unwrap_or_default();
    let takes_receives = requests.is_some();
    let member = Mutex::new(group.map(|group| Member::new(group, requests)));
    let performed = AtomicU64::new(0);
    let communicator =
        Communicator { handle, rank, members, has_group, layout, takes_receives, member, performed };
    let communicator = Arc::new(communicator);
    lock(&KNOWN).insert(handle, Arc::clone(&communicator));
    Ok(Some(communicator))
}

/// What the members of a communicator have agreed on.
#[derive(Default)]
struct Agreed {
    /// Our membership.
    group: Option<Group>,
    /// That of the group for non-blocking operations, if there are some.
    requests: Option<Group>,
    /// Where its ranks are, if they are on several nodes.
    layout: Option<Layout>,
}

/// The agreement. Returns its result if all members have joined.
fn agree(
    mpi: &Mpi,
    abi: &Abi,
    handle: usize,
    (members, rank): (u32, u32),
    is_watched: bool,
) -> Result<Option<Agreed>, c_int> {
    static KEYS: AtomicU64 = AtomicU64::new(1);
    let identity = is_watched.then(provider::identity).flatten();
    let reaches_nodes =
        identity.is_some_and(|identity| world::may_share_endpoint(mpi, abi, identity.is_serialised != 0));
    let across = if reaches_nodes { world::across() } else { AcrossHosts::Never };
    let offer = agreement::offer(identity, KEYS.fetch_add(1, Ordering::Relaxed), across);
    let mut offers: Vec<Offer> = vec![[0; OFFER_WORDS]; members as usize];
    let (bytes, byte) = (size_of::<Offer>() as c_int, abi.constants.byte);
    let (from, to) = ((&raw const offer) as usize, offers.as_mut_ptr() as usize);
    // SAFETY: the MPI's function; an offer, and room for those of all members.
    check(unsafe { (mpi.functions.allgather)(from, bytes, byte, to, bytes, byte, handle) })?;
    let Some(agreed) = agreement::agreed(&offers) else { return Ok(None) };
    let layout = Layout::new(&agreed.segments(), rank).filter(|layout| layout.nodes() > 1);

    let join = |key, takes| provider::begin(key, &agreed.members, rank, takes);
    let mut group = join(agreed.key, false);
    // Programs that mix blocking and non-blocking calls in different orders work with messages, so there are two groups.
    let may_take_receives = world::gives_all_messages(mpi) && group.is_some();
    let mut requests = if may_take_receives { join(!agreed.key, true) } else { None };
    const ONE: c_int = 1;
    const BOTH: c_int = 2;
    let have = |group: bool, requests: bool| c_int::from(group) + c_int::from(group && requests);
    let begun = least(mpi, abi, handle, have(group.is_some(), requests.is_some()))?;
    if begun < ONE {
        return Ok(None);
    }
    let progress = || make_progress(mpi, abi, handle, rank as c_int);
    let has_joined = group.as_mut().is_some_and(|group| finish(group, progress));
    requests = requests.filter(|_| begun == BOTH);
    let takes = requests.as_mut().is_some_and(|requests| {
        finish(requests, progress) && takes_receives(mpi, abi, handle, (members, rank), requests)
    });
    let all = least(mpi, abi, handle, have(has_joined, takes))?;
    Ok((all >= ONE).then(|| Agreed { group, requests: requests.filter(|_| all == BOTH), layout }))
}

/// Joins a group that all members have begun. Returns whether it has.
fn finish(group: &mut Group, progress: impl Fn()) -> bool {
    loop {
        match group.finish() {
            Some(false) => progress(),
            has_joined => return has_joined == Some(true),
        }
    }
}

/// The least number of all members.
fn least(mpi: &Mpi, abi: &Abi, handle: usize, mine: c_int) -> Result<c_int, c_int> {
    let mut least = 0;
    let (from, to) = ((&raw const mine) as usize, (&raw mut least) as usize);
    // SAFETY: the MPI's function, and two variables.
    check(unsafe { (mpi.functions.allreduce)(from, to, 1, abi.constants.int, abi.constants.min, handle) })?;
    Ok(least)
}

/// Attaches the attribute whose delete function ends the communicator's group.
fn watch(mpi: &Mpi, handle: usize) -> bool {
    static KEY: Mutex<Option<c_int>> = Mutex::new(None);
    let mut key = lock(&KEY);
    if key.is_none() {
        let mut new = 0;
        // SAFETY: the MPI's function, functions of the types that the standard gives, and a variable for the result.
        let status = unsafe { (mpi.functions.comm_create_keyval)(copy_nothing, is_freed, &mut new, 0) };
        *key = (status == 0).then_some(new);
    }
    // SAFETY: the MPI's function; the value is only a mark.
    key.is_some_and(|key| unsafe { (mpi.functions.comm_set_attr)(handle, key, 1) } == 0)
}

/// A duplicate of a communicator gets no attribute.
unsafe extern "C" fn copy_nothing(
    _communicator: usize,
    _key: c_int,
    _extra: *mut c_void,
    _value: *mut c_void,
    _copy: *mut c_void,
    is_copied: *mut c_int,
) -> c_int {
    // SAFETY: the MPI gives a variable for the answer.
    unsafe { is_copied.write(0) };
    0
}

/// A communicator is freed.
unsafe extern "C" fn is_freed(
    communicator: usize,
    _key: c_int,
    _value: *mut c_void,
    _extra: *mut c_void,
) -> c_int {
    if let Some(abi) = mpi().and_then(|mpi| mpi.abi.as_ref()) {
        let freed = lock(&KNOWN).remove(&abi.handle(communicator));
        if let Some(freed) = freed {
            forget(&freed);
        }
    }
    0
}
