//! Tests of groups by the functions that other libraries call.

use super::*;
use crate::node_endpoints::{offer, offer_alone, withdraw};
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, Ordering};
use weir_engine::config::Settings;
use weir_engine::job::Job;
use weir_link::shm::node_segment::JobKey;
use weir_proto::offload::reduce::Vector;
use weir_proto::offload::{Combination, WordOperation, WordType};

static IDLE_CALLS: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn count(_context: *mut c_void, _: c_int) {
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
    engines.iter().for_each(|engine| offer(engine, Weak::new(), 0, None));
    let endpoints = engines.each_ref().map(|engine| number(&engine.node_handle().unwrap()));
    let mut identity = Identity::default();
    // SAFETY: a variable for the result.
    assert_eq!(unsafe { identify(&mut identity) }, 0);
    assert!(endpoints.contains(&identity.endpoint) && identity.segment != 0);
    assert_eq!(address_of(&identity), engines[0].address());
    let member = |endpoint| {
        let mut member = identity;
        member.endpoint = endpoint;
        member
    };
    let members = endpoints.map(member);
    let joining = |rank| {
        let mut joined = Joined { group: std::ptr::null_mut(), is_crowded: 0 };
        // SAFETY: an array of two members, and a variable for the result.
        let status = unsafe { begin(5, members.as_ptr(), 2, rank, 0, &mut joined) };
        (status, joined.group as usize)
    };
    // SAFETY: a group that has begun to join.
    let finished = |group: usize| unsafe { finish(group as *mut c_void) };
    // The second member comes first: nobody has made the group.
    let (status, second) = joining(1);
    assert_eq!((status, finished(second)), (JOINED, NOT_YET));
    let (status, first) = joining(0);
    assert_eq!((status, finished(first), finished(second)), (JOINED, JOINED, JOINED));
    let other = std::thread::spawn(move || sum(second as *mut c_void, 20));
    assert_eq!(sum(first as *mut c_void, 3), Ok(23));
    assert_eq!(other.join().unwrap(), Ok(23));
    // SAFETY: a joined group, which nobody uses any more.
    unsafe { leave(second as *mut c_void) };
    assert_eq!(sum(first as *mut c_void, 3), Err(GroupFailure { member: 1, fault: PeerFault::Closed }));
    assert!(IDLE_CALLS.load(Ordering::Relaxed) > 0, "the caller does something else meanwhile");
    // SAFETY: as above.
    unsafe { leave(first as *mut c_void) };
    for engine in &engines {
        let [(class, sums)] = engine.operation_times().in_ns()[..] else { panic!("one class") };
        let expected = (OperationKind::AllReduce, Executor::Node, true);
        assert_eq!((class.kind, class.executor, class.is_blocking), expected);
        assert_eq!((sums.count, sums.skew_known), (1, 1), "the operation that failed does not count");
        assert!(sums.skew <= sums.time && sums.time > 0, "{sums:?}");
    }
    engines.iter().for_each(withdraw);
    assert_eq!(joining(0).0, REFUSED, "the endpoint is no longer offered");
    engines.iter_mut().for_each(|engine| drop(engine.close()));
}
