//! The roster of this process's job, for `libweir-mpi.so`: the functions `enter` and `ask` of the interface in
//! [`weir_engine::node_group_interface`]. What a roster is, [`weir_link::shm::node_group::Roster`] says.

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use weir_engine::node_group_interface::{ALL, NOT_ALL, NOT_YET};
use weir_link::shm::node_group::Roster;
use weir_link::shm::node_segment::NodeHandle;

use crate::{log, node_endpoints};

/// The roster that a process has entered, with the process: a forked child inherits it.
static ENTERED: Mutex<Option<(u32, Roster)>> = Mutex::new(None);

/// See [`weir_engine::node_group_interface::NodeGroupFunctions`].
///
/// # Safety
/// None: it takes numbers. Its type is that of the table.
pub unsafe extern "C" fn enter(rank: c_int, ranks: c_int) -> c_int {
    let place = u32::try_from(rank).ok().zip(u32::try_from(ranks).ok());
    let endpoint = place.and(node_endpoints::find(|_| true)).map(|endpoint| endpoint.handle);
    let roster = endpoint.zip(place).and_then(|(endpoint, place)| enter_as(endpoint, place));
    let has_entered = roster.is_some();
    *ENTERED.lock().unwrap_or_else(PoisonError::into_inner) =
        roster.map(|roster| (std::process::id(), roster));
    node_endpoints::set_unawaited(); // after entering: who sees it also sees the place in the roster
    c_int::from(!has_entered)
}

fn enter_as(endpoint: NodeHandle, (rank, ranks): (u32, u32)) -> Option<Roster> {
    match Roster::open(endpoint, ranks) {
        Ok(roster) => roster.enter(rank).then_some(roster),
        Err(error) => {
            log::info(|| format!("no roster: {error}; the MPI does the collective operations"));
            None
        }
    }
}

/// See [`weir_engine::node_group_interface::NodeGroupFunctions`].
///
/// # Safety
/// `ranks` are `count` numbers.
pub unsafe extern "C" fn ask(ranks: *const c_int, count: u32, is_last: c_int) -> c_int {
    // SAFETY: the caller gives an array of `count` numbers, which nobody changes during the call.
    let ranks = unsafe { std::slice::from_raw_parts(ranks, count as usize) };
    let Ok(ranks) = ranks.iter().map(|&rank| u32::try_from(rank)).collect::<Result<Vec<_>, _>>() else {
        return NOT_ALL;
    };
    let entered = ENTERED.lock().unwrap_or_else(PoisonError::into_inner);
    // Without an entry of its own the caller is ruled out, and others find that too.
    let Some((_, roster)) = entered.as_ref().filter(|(process, _)| *process == std::process::id()) else {
        return NOT_ALL;
    };
    match roster.have_all_entered(&ranks, is_last != 0) {
        Some(true) => ALL,
        Some(false) => NOT_ALL,
        None => NOT_YET,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_engine::Engine;
    use weir_engine::config::Settings;
    use weir_engine::job::Job;
    use weir_link::shm::node_segment::JobKey;

    fn asked(ranks: &[c_int]) -> c_int {
        // SAFETY: an array of so many numbers.
        unsafe { ask(ranks.as_ptr(), ranks.len() as u32, 1) }
    }

    fn entered(rank: c_int, ranks: c_int) -> c_int {
        // SAFETY: it takes numbers.
        unsafe { enter(rank, ranks) }
    }

    #[test]
    fn a_process_asks_for_others_after_it_has_entered() {
        let _alone = node_endpoints::offer_alone();
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let settings = Settings { shm_dir: directory.path().to_owned(), ..Settings::default() };
        let job = Job::from(2).with_key(JobKey::new(&"roster of the provider"));
        let mut engines = [0, 1].map(|_| Engine::open(&settings, job, true).unwrap());
        let other = Roster::open(engines[1].node_handle().unwrap(), 3).unwrap();
        assert!(other.enter(1));
        node_endpoints::offer(&engines[0], std::sync::Weak::new(), 0, None);
        engines[0].node_handle().unwrap().set_awaited(true);
        assert_eq!(asked(&[1]), NOT_ALL, "this process has not entered");
        assert_eq!(entered(0, 3), 0);
        assert_eq!((asked(&[0, 1]), asked(&[0, 1, 2]), asked(&[0, -1])), (ALL, NOT_ALL, NOT_ALL));
        assert_eq!(other.have_all_entered(&[0, 1], false), Some(true));
        assert!(!engines[0].node_handle().unwrap().is_any_awaited(), "it has entered");
        assert_eq!((entered(-1, 0), asked(&[0, 1])), (1, NOT_ALL), "it uses no groups");
        node_endpoints::withdraw(&engines[0]);
        engines.iter_mut().for_each(|engine| drop(engine.close()));
    }
}
