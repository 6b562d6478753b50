//! The node groups of this process's endpoints, for `libweir-mpi.so`: the functions of the interface in
//! [`weir_engine::node_group_interface`].
//!
//! MPI programs get the operations of a node group by that library, not by libfabric. It lies in the same process and has
//! no endpoint of its own, so it uses one of ours. This file does not know MPI, nor messages.

use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use weir_engine::node_group_interface::{
    FailureWords, Identity, Idle, JOINED, Joined, NOT_YET, NodeGroupFunctions, OperationWords, REFUSED,
    VERSION,
};
use weir_engine::oversubscription;
use weir_link::shm::node_group::{
    GroupFailure, MAX_BROADCAST_BYTES, MAX_MEMBERS, MAX_VECTOR_BYTES, NodeGroup, NodeGroups, Operation,
};
use weir_link::shm::node_segment::NodeHandle;

use crate::node_endpoints::{find, number};
use crate::{log, roster};

/// What the caller holds for a group that it has joined.
struct Member {
    group: NodeGroup,
    handle: NodeHandle,
    /// Operations that the handle does not know yet.
    uncounted: u64,
    rank: u32,
    members: u32,
}

/// So many operations are counted at once: a locked instruction for each would cost some percent of a barrier.
const COUNTED_AT_ONCE: u64 = 64;
/// A member that waits reads the clock once in so many looks.
const LOOKS_PER_CLOCK: u32 = 16;
/// It asks so often whether the others run.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// It waits so long awake.
const AWAKE_TIME: Duration = Duration::from_millis(1);
/// It then sleeps for at most so long. The MPI gets no time meanwhile, so this delays its answers to messages.
const ANSWER_TIME: Duration = Duration::from_micros(100);

impl Member {
    /// As [`NodeGroup::perform`], with shorter sleeps.
    fn perform(
        &mut self,
        operation: Operation,
        data: &[u8],
        result: &mut [u8],
        mut idle: impl FnMut(),
    ) -> Result<(), GroupFailure> {
        let mut task = self.group.task(operation);
        let (mut looks, mut times, mut sleeps) = (0_u32, None, false);
        while !self.group.advance(&mut task, data, result)? {
            idle();
            looks = looks.wrapping_add(1);
            if sleeps || looks.is_multiple_of(LOOKS_PER_CLOCK) {
                let now = Instant::now();
                let (began, checked) = times.get_or_insert((now, now));
                if now.duration_since(*checked) >= CHECK_INTERVAL {
                    *checked = now;
                    self.group.check()?;
                }
                sleeps = now.duration_since(*began) >= AWAKE_TIME;
                if sleeps {
                    self.group.sleep(ANSWER_TIME);
                }
            }
        }
        self.uncounted += 1;
        if self.uncounted == COUNTED_AT_ONCE {
            self.count();
        }
        Ok(())
    }

    fn count(&mut self) {
        self.handle.count_group_operations(std::mem::take(&mut self.uncounted));
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.count();
    }
}

static FUNCTIONS: NodeGroupFunctions = NodeGroupFunctions {
    version: VERSION,
    max_members: MAX_MEMBERS,
    max_vector_bytes: MAX_VECTOR_BYTES,
    max_broadcast_bytes: MAX_BROADCAST_BYTES,
    enter: roster::enter,
    ask: roster::ask,
    identify,
    join,
    perform,
    leave,
};

/// The table of these functions: [`weir_engine::node_group_interface::ENTRY`].
// SAFETY: no other library of a process has this name.
#[unsafe(no_mangle)]
pub extern "C" fn weir_node_groups() -> *const NodeGroupFunctions {
    &raw const FUNCTIONS
}

unsafe extern "C" fn identify(identity: *mut Identity) -> c_int {
    let Some(handle) = find(|_| true) else { return 1 };
    // SAFETY: the caller gives a variable for the result.
    unsafe { identity.write(Identity { segment: handle.id(), endpoint: number(&handle) }) };
    0
}

unsafe extern "C" fn join(
    endpoint: u64,
    key: u64,
    members: *const u64,
    count: u32,
    rank: u32,
    joined: *mut Joined,
) -> c_int {
    let Some(handle) = find(|handle| number(handle) == endpoint) else { return REFUSED };
    // SAFETY: the caller gives an array of `count` numbers, which nobody changes during the call.
    let members = unsafe { std::slice::from_raw_parts(members, count as usize) };
    let is_crowded = NodeHandle::members(&handle).len() > oversubscription::cores();
    let group = NodeGroups::open(handle.clone())
        .map_err(Into::into)
        .and_then(|groups| NodeGroups::join(&groups, key, members, rank));
    match group {
        Ok(Some(group)) => {
            let member = Member { group, handle, uncounted: 0, rank, members: members.len() as u32 };
            let group = Box::into_raw(Box::new(member)).cast();
            // SAFETY: the caller gives a variable for the result.
            unsafe { joined.write(Joined { group, is_crowded: is_crowded.into() }) };
            JOINED
        }
        Ok(None) => NOT_YET,
        Err(error) => {
            log::info(|| format!("no node group: {error}; the MPI does the collective operations"));
            REFUSED
        }
    }
}

unsafe extern "C" fn perform(
    group: *mut c_void,
    operation: *const OperationWords,
    data: *const u8,
    result: *mut u8,
    idle: Idle,
    context: *mut c_void,
    failure: *mut FailureWords,
) -> c_int {
    // SAFETY: `join` made the pointer, `leave` has not got it, and one thread at a time calls. The operation is the
    // caller's variable.
    let (member, operation) = unsafe { (&mut *group.cast::<Member>(), (*operation).operation()) };
    let operation = operation.expect("the caller makes it of an operation");
    let (rank, members) = (member.rank, member.members);
    let (data_bytes, result_bytes) =
        (operation.data_bytes(rank, members), operation.result_bytes(rank, members));
    // SAFETY: the caller gives as many bytes as the operation says, apart from each other. Without bytes, the pointer may be
    // null, so it is not used.
    let (data, result) = unsafe {
        let data = if data_bytes == 0 { &[] } else { std::slice::from_raw_parts(data, data_bytes) };
        let result =
            if result_bytes == 0 { &mut [] } else { std::slice::from_raw_parts_mut(result, result_bytes) };
        (data, result)
    };
    // SAFETY: the caller's function and its context.
    match member.perform(operation, data, result, || unsafe { idle(context) }) {
        Ok(()) => 0,
        Err(fault) => {
            // SAFETY: the caller gives a variable for the failure.
            unsafe { failure.write(fault.into()) };
            1
        }
    }
}

unsafe extern "C" fn leave(group: *mut c_void) {
    // SAFETY: `join` made the pointer, and the caller returns it.
    drop(unsafe { Box::from_raw(group.cast::<Member>()) });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_endpoints::{offer, offer_alone, withdraw};
    use std::sync::atomic::{AtomicU32, Ordering};
    use weir_engine::Engine;
    use weir_engine::config::Settings;
    use weir_engine::job::Job;
    use weir_link::shm::node_segment::JobKey;
    use weir_proto::PeerFault;
    use weir_proto::offload::reduce::Vector;
    use weir_proto::offload::{Combination, WordOperation, WordType};

    static IDLE_CALLS: AtomicU32 = AtomicU32::new(0);

    unsafe extern "C" fn count(_context: *mut c_void) {
        IDLE_CALLS.fetch_add(1, Ordering::Relaxed);
        std::thread::yield_now();
    }

    fn sum(group: *mut c_void, value: i64) -> Result<i64, GroupFailure> {
        let combination = Combination { operation: WordOperation::Sum, word_type: WordType::I64 };
        let words = OperationWords::from(Operation::AllReduce(Vector { bytes: 8, combination }));
        let (data, mut result, mut failure) = (value.to_ne_bytes(), [0; 8], FailureWords::default());
        // SAFETY: a joined group, and variables of the lengths that the operation has.
        let status = unsafe {
            let (data, result) = (data.as_ptr(), result.as_mut_ptr());
            perform(group, &words, data, result, count, std::ptr::null_mut(), &mut failure)
        };
        if status == 0 { Ok(i64::from_ne_bytes(result)) } else { Err(failure.failure()) }
    }

    #[test]
    fn endpoints_join_a_group_and_combine_until_one_leaves() {
        let _alone = offer_alone();
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let settings = Settings { shm_dir: directory.path().to_owned(), ..Settings::default() };
        let job = Job::from(2).with_key(JobKey::new(&"node groups of the provider"));
        let mut engines = [0, 1].map(|_| Engine::open(&settings, job, true).unwrap());
        engines.iter().for_each(offer);
        let endpoints = engines.each_ref().map(|engine| number(&engine.node_handle().unwrap()));
        let mut identity = Identity::default();
        // SAFETY: a variable for the result.
        assert_eq!(unsafe { identify(&mut identity) }, 0);
        assert!(endpoints.contains(&identity.endpoint) && identity.segment != 0);
        let mut groups = Vec::new();
        // The second member comes first: nobody has made the group.
        for (rank, expected) in [(1, NOT_YET), (0, JOINED), (1, JOINED)] {
            let mut joined = Joined { group: std::ptr::null_mut(), is_crowded: 0 };
            // SAFETY: an array of two numbers, and a variable for the result.
            let status =
                unsafe { join(endpoints[rank as usize], 5, endpoints.as_ptr(), 2, rank, &mut joined) };
            assert_eq!(status, expected, "rank {rank}");
            if status == JOINED {
                groups.push(joined.group as usize);
            }
        }
        let [first, second] = [groups[0], groups[1]];
        let other = std::thread::spawn(move || sum(second as *mut c_void, 20));
        assert_eq!(sum(first as *mut c_void, 3), Ok(23));
        assert_eq!(other.join().unwrap(), Ok(23));
        // SAFETY: a joined group, which nobody uses any more.
        unsafe { leave(second as *mut c_void) };
        assert_eq!(sum(first as *mut c_void, 3), Err(GroupFailure { member: 1, fault: PeerFault::Closed }));
        assert!(IDLE_CALLS.load(Ordering::Relaxed) > 0, "the caller does something else meanwhile");
        // SAFETY: as above.
        unsafe { leave(first as *mut c_void) };
        let counted = engines.each_ref().map(|engine| engine.node_handle().unwrap().group_operations());
        assert_eq!(counted, [1, 1], "the operation that failed does not count");
        engines.iter().for_each(withdraw);
        let mut joined = Joined { group: std::ptr::null_mut(), is_crowded: 0 };
        // SAFETY: as above.
        let status = unsafe { join(endpoints[0], 6, endpoints.as_ptr(), 2, 0, &mut joined) };
        assert_eq!(status, REFUSED, "the endpoint is no longer offered");
        engines.iter_mut().for_each(|engine| drop(engine.close()));
    }
}
