//! The world of this process, and which of its ranks do collective operations by groups.
//!
//! A rank without this library knows nothing of groups, and waits in the MPI's own operation. So before the members of a
//! communicator agree by messages ([`crate::agreement`]), each looks whether all of them would. The roster of the node
//! segment says so, and says the same to all of them.
//! ```text
//! MPI_Init    the MPI opens an endpoint in the provider: awaited, before any other rank can leave its MPI_Init
//!             afterwards: this rank enters the roster, or does not, since its setting is off or it has been spawned
//! first call  of a communicator: have all members entered? If some have not and somebody is awaited, look again
//! ```
//! The roster knows one node. Ranks of other nodes have a mark in the address that their MPI has given to ours
//! ([`weir_engine::node_group_interface`]). Each member looks for a message of each other one, without taking it, and the
//! provider says whether the address has the mark. A mark says that all messages of the rank come from the provider, so the
//! look of every member shows it.
//!
//! A rank enters only if the program's `MPI_Init` has come to this library: then its other calls come too. The roster has a
//! place for each rank of one world. Spawned processes are in a world of their own, so they never enter.

use crate::abi::{Abi, Kind};
use crate::member::make_progress;
use crate::mpi::{Mpi, check, mpi};
use crate::provider;
use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_engine::config::{AcrossHosts, Settings};
use weir_engine::node_group_interface::{ACROSS, INITIALIZING};

/// The program is in `MPI_Init`.
static IS_INITIALIZING: AtomicBool = AtomicBool::new(false);
/// This rank takes part in groups across nodes.
static IS_MARKED: AtomicBool = AtomicBool::new(false);
/// This process has been spawned, so its world is another one.
static IS_SPAWNED: AtomicBool = AtomicBool::new(false);
/// This rank has entered the roster.
static HAS_ENTERED: AtomicBool = AtomicBool::new(false);

/// Others are waited for so long. They have left their `MPI_Init` long before, unless somebody has stopped them.
const PATIENCE: Duration = Duration::from_secs(10);
/// Distance of two looks.
const LOOK_INTERVAL: Duration = Duration::from_micros(20);

/// Calls `init`, which is `MPI_Init` or `MPI_Init_thread`, and then enters the roster. Returns its status.
pub fn initialize(init: impl FnOnce() -> c_int) -> c_int {
    IS_INITIALIZING.store(true, Ordering::Release);
    IS_MARKED.store(mpi().is_some_and(takes_part_across), Ordering::Release);
    let status = init();
    IS_INITIALIZING.store(false, Ordering::Release);
    let place = if status == 0 { mpi().and_then(place) } else { None };
    HAS_ENTERED.store(provider::enter(place), Ordering::Release);
    status
}

/// What this process does: bits of [`weir_engine::node_group_interface::INITIALIZES`].
pub fn doings() -> c_int {
    if !IS_INITIALIZING.load(Ordering::Acquire) {
        return 0; // an endpoint that opens later is not the MPI's
    }
    INITIALIZING | if IS_MARKED.load(Ordering::Acquire) { ACROSS } else { 0 }
}

/// Whether this rank is to have a mark: it takes part across nodes, and its MPI gives all messages to the provider.
fn takes_part_across(mpi: &Mpi) -> bool {
    is_on() && across() != AcrossHosts::Never && mpi.sees_all_calls && gives_all_messages(mpi)
}

/// The groups across nodes that the settings of this process ask for.
pub fn across() -> AcrossHosts {
    static ACROSS: OnceLock<AcrossHosts> = OnceLock::new();
    // The provider reports settings that are wrong.
    *ACROSS.get_or_init(|| {
        Settings::from_environment().map_or(AcrossHosts::Never, |settings| settings.collectives_across)
    })
}

/// Whether the MPI gives all messages to the provider. MPICH and Intel MPI need a variable for that, which is the same at
/// all ranks.
pub fn gives_all_messages(mpi: &Mpi) -> bool {
    let is = |variable: &str, values: &[&str]| {
        std::env::var(variable).is_ok_and(|value| values.contains(&value.to_lowercase().as_str()))
    };
    let yes = ["1", "yes", "true", "on"];
    match mpi.abi.as_ref().map(|abi| abi.kind) {
        None => false,
        Some(Kind::OpenMpi) => true,
        Some(Kind::Mpich | Kind::Standard) => is("MPIR_CVAR_NOLOCAL", &yes) || is("I_MPI_FABRICS", &["ofi"]),
    }
}

/// Whether this endpoint may be used beside the MPI, for groups across nodes: no other thread calls the MPI meanwhile.
///
/// - `is_serialised`: the MPI promises libfabric to call from one thread at a time. Then it must have no threads of its own
///   either.
pub fn may_share_endpoint(mpi: &Mpi, abi: &Abi, is_serialised: bool) -> bool {
    let has_own_threads = ["MPIR_CVAR_ASYNC_PROGRESS", "I_MPI_ASYNC_PROGRESS"]
        .iter()
        .any(|variable| std::env::var_os(variable).is_some_and(|value| value != "0" && !value.is_empty()));
    let mut level = abi.constants.values.thread_multiple;
    // SAFETY: the MPI's function, and a variable for the result.
    let status = unsafe { (mpi.functions.query_thread)(&mut level) };
    let is_only_caller = status == 0 && level < abi.constants.values.thread_multiple;
    is_only_caller && !(is_serialised && has_own_threads)
}

/// Our rank in the world, and its ranks. `None`: this rank uses no groups.
fn place(mpi: &Mpi) -> Option<(c_int, c_int)> {
    let (abi, functions) = (mpi.abi.as_ref()?, &mpi.functions);
    if !mpi.sees_all_calls || !is_on() {
        return None;
    }
    let (mut parent, mut rank, mut ranks) = (0, 0, 0);
    // SAFETY: the MPI's functions, and variables for their results, one of them as large as any handle.
    let status = unsafe {
        (functions.comm_get_parent)(&mut parent)
            | (functions.comm_rank)(abi.constants.world, &mut rank)
            | (functions.comm_size)(abi.constants.world, &mut ranks)
    };
    let is_spawned = abi.handle(parent) != abi.constants.null_communicator;
    IS_SPAWNED.store(is_spawned || status != 0, Ordering::Release);
    (status == 0 && !is_spawned && ranks > 1).then_some((rank, ranks))
}

/// Whether the setting of this process is on.
fn is_on() -> bool {
    static IS_ON: OnceLock<bool> = OnceLock::new();
    // The provider reports settings that are wrong.
    *IS_ON.get_or_init(|| Settings::from_environment().is_ok_and(|settings| settings.collectives))
}

/// Whether all members of a communicator do collective operations by groups. All members get the same answer.
///
/// - `members`, `rank`: its ranks, and ours.
///
/// # Errors
/// That of the MPI.
pub fn uses_groups(
    mpi: &Mpi,
    abi: &Abi,
    handle: usize,
    (members, rank): (c_int, c_int),
) -> Result<bool, c_int> {
    let has_entered = HAS_ENTERED.load(Ordering::Acquire);
    let is_marked = IS_MARKED.load(Ordering::Acquire) && !IS_SPAWNED.load(Ordering::Acquire);
    if !has_entered && !is_marked {
        return Ok(false);
    }
    let ranks = ranks_in_world(mpi, abi, handle, members)?;
    if has_entered {
        let begin = Instant::now();
        loop {
            match provider::have_all_entered(&ranks, begin.elapsed() >= PATIENCE) {
                Some(true) => return Ok(true),
                Some(false) => break,
                None => {}
            }
            make_progress(mpi, abi, handle, rank);
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
    let is_stranger = |rank: &c_int| *rank < 0;
    Ok(is_marked && !ranks.iter().any(is_stranger) && are_others_marked(mpi, abi, handle, (members, rank)))
}

/// Whether all other members have a mark in their address.
fn are_others_marked(mpi: &Mpi, abi: &Abi, handle: usize, (members, own): (c_int, c_int)) -> bool {
    let values = &abi.constants.values;
    (0..members).filter(|rank| *rank != own).all(|rank| {
        let mut found = 0;
        provider::probed(); // forgets what the program has looked for
        // SAFETY: the MPI's function, a variable for the result, and the value that means no status.
        unsafe { (mpi.functions.iprobe)(rank, values.any_tag, handle, &mut found, values.status_ignore) };
        provider::probed() == Some(true)
    })
}

/// The ranks that the members of a communicator have in the world. Those outside of it have a negative number.
fn ranks_in_world(mpi: &Mpi, abi: &Abi, handle: usize, members: c_int) -> Result<Vec<c_int>, c_int> {
    let ranks: Vec<c_int> = (0..members).collect();
    if handle == abi.constants.world {
        return Ok(ranks);
    }
    let functions = &mpi.functions;
    let mut in_world = vec![-1; ranks.len()];
    let (mut own, mut world) = (0, 0);
    // SAFETY: the MPI's functions; variables as large as any handle; arrays with `members` ranks.
    unsafe {
        check((functions.comm_group)(handle, &mut own))?;
        check((functions.comm_group)(abi.constants.world, &mut world))?;
        let (from, to) = (ranks.as_ptr(), in_world.as_mut_ptr());
        check((functions.group_translate_ranks)(own, members, from, world, to))?;
        check((functions.group_free)(&mut own))?;
        check((functions.group_free)(&mut world))?;
    }
    Ok(in_world)
}
