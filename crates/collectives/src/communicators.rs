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
use crate::{provider, world};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
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
    /// The communicator of this thread's last call, and [`FREED`] then.
    static LAST: Cell<Option<(u64, Arc<Communicator>)>> = const { Cell::new(None) };
}

/// Calls `work` with the communicator, if its operations are done by a group; else `None`. The first call decides, with
/// all members.
///
/// # Errors
/// The MPI failed while the members agreed. It has told its error handler.
pub fn with_group<R>(
    mpi: &Mpi,
    abi: &Abi,
    handle: usize,
    work: impl FnOnce(&Communicator) -> R,
) -> Result<Option<R>, c_int> {
    let freed = FREED.load(Ordering::Acquire);
    // Taken out and put back: a further reference would cost two locked instructions. A call in between finds none.
    let (freed, communicator) = match LAST.take() {
        Some(last) if last.0 == freed && last.1.handle == handle => last,
        _ if HAS_ENDED.load(Ordering::Acquire) => return Ok(None),
        _ => {
            let known = lock(&KNOWN).get(&handle).cloned();
            match known.map_or_else(|| begin(mpi, abi, handle), |known| Ok(Some(known)))? {
                Some(communicator) => (freed, communicator),
                None => return Ok(None),
            }
        }
    };
    let result = communicator.has_group.then(|| work(&communicator));
    LAST.set(Some((freed, communicator)));
    Ok(result)
}

/// Operations that groups have done for this process.
pub fn performed() -> u64 {
    let known = lock(&KNOWN);
    let running: u64 = known.values().filter_map(|known| Some(lock(&known.member).as_ref()?.performed)).sum();
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
    if let Some(member) = lock(&communicator.member).take() {
        PERFORMED.fetch_add(member.performed, Ordering::Relaxed);
    }
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
    let member = if is_considered { agree(mpi, abi, handle, (members, rank), is_watched)? } else { None };
    if !is_watched {
        return Ok(None);
    }
    let has_group = member.is_some();
    let (member, layout) = member.unzip();
    let (member, layout) = (Mutex::new(member), layout.flatten());
    let communicator = Communicator { handle, rank, members, has_group, layout, member };
    let communicator = Arc::new(communicator);
    lock(&KNOWN).insert(handle, Arc::clone(&communicator));
    Ok(Some(communicator))
}

/// The agreement. Returns the membership if all members have joined, with their places if these are on several nodes.
fn agree(
    mpi: &Mpi,
    abi: &Abi,
    handle: usize,
    (members, rank): (u32, u32),
    is_watched: bool,
) -> Result<Option<(Member, Option<Layout>)>, c_int> {
    static KEYS: AtomicU64 = AtomicU64::new(1);
    let identity = is_watched.then(provider::identity).flatten();
    let reaches_nodes =
        identity.is_some_and(|identity| world::may_share_endpoint(mpi, abi, identity.is_serialised != 0));
    let offer = agreement::offer(identity, KEYS.fetch_add(1, Ordering::Relaxed), reaches_nodes);
    let mut offers: Vec<Offer> = vec![[0; OFFER_WORDS]; members as usize];
    let (bytes, byte) = (size_of::<Offer>() as c_int, abi.constants.byte);
    let (from, to) = ((&raw const offer) as usize, offers.as_mut_ptr() as usize);
    // SAFETY: the MPI's function; an offer, and room for those of all members.
    check(unsafe { (mpi.functions.allgather)(from, bytes, byte, to, bytes, byte, handle) })?;
    let Some(agreed) = agreement::agreed(&offers) else { return Ok(None) };
    let layout = Layout::new(&agreed.segments(), rank);

    let mut group = provider::begin(agreed.key, &agreed.members, rank);
    if !do_all(mpi, abi, handle, group.is_some())? {
        return Ok(None);
    }
    let mut has_joined = Some(false);
    while let (Some(false), Some(group)) = (has_joined, &mut group) {
        has_joined = group.finish();
        make_progress(mpi, abi, handle, rank as c_int);
    }
    let all = do_all(mpi, abi, handle, has_joined == Some(true))?;
    let layout = layout.filter(|layout| layout.nodes() > 1);
    Ok(group.filter(|_| all).map(|group| (Member::new(group), layout)))
}

/// Whether all members say yes.
fn do_all(mpi: &Mpi, abi: &Abi, handle: usize, mine: bool) -> Result<bool, c_int> {
    let (mine, mut all) = (c_int::from(mine), 0);
    let (from, to) = ((&raw const mine) as usize, (&raw mut all) as usize);
    // SAFETY: the MPI's function, and two variables.
    check(unsafe { (mpi.functions.allreduce)(from, to, 1, abi.constants.int, abi.constants.min, handle) })?;
    Ok(all == 1)
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
