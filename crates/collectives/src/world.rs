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
//! A rank enters only if the program's `MPI_Init` has come to this library: then its other calls come too. The roster has a
//! place for each rank of one world. Spawned processes are in a world of their own, so they never enter.

use crate::abi::Abi;
use crate::member::make_progress;
use crate::mpi::{Mpi, check, mpi};
use crate::provider;
use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_engine::config::Settings;

/// The program is in `MPI_Init`.
static IS_INITIALIZING: AtomicBool = AtomicBool::new(false);
/// This rank has entered the roster.
static HAS_ENTERED: AtomicBool = AtomicBool::new(false);

/// Others are waited for so long. They have left their `MPI_Init` long before, unless somebody has stopped them.
const PATIENCE: Duration = Duration::from_secs(10);
/// Distance of two looks.
const LOOK_INTERVAL: Duration = Duration::from_micros(20);

/// Calls `init`, which is `MPI_Init` or `MPI_Init_thread`, and then enters the roster. Returns its status.
pub fn initialize(init: impl FnOnce() -> c_int) -> c_int {
    IS_INITIALIZING.store(true, Ordering::Release);
    let status = init();
    IS_INITIALIZING.store(false, Ordering::Release);
    let place = if status == 0 { mpi().and_then(place) } else { None };
    HAS_ENTERED.store(provider::enter(place), Ordering::Release);
    status
}

/// Whether the program is in `MPI_Init`: [`weir_engine::node_group_interface::INITIALIZES`].
pub fn is_initializing() -> bool {
    IS_INITIALIZING.load(Ordering::Acquire)
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
    if !HAS_ENTERED.load(Ordering::Acquire) {
        return Ok(false);
    }
    let ranks = ranks_in_world(mpi, abi, handle, members)?;
    let begin = Instant::now();
    loop {
        if let Some(answer) = provider::have_all_entered(&ranks, begin.elapsed() >= PATIENCE) {
            return Ok(answer);
        }
        make_progress(mpi, abi, handle, rank);
        std::thread::sleep(LOOK_INTERVAL);
    }
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
