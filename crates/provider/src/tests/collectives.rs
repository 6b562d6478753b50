//! Tests of sets of addresses, of joining by events, and of collective calls, in one process. `tests/mpi/fi_collectives.c`
//! compares the results of all calls.

use super::*;
use crate::av_set::SetHandle;
use crate::eq::EventQueueHandle;
use crate::group::GroupHandle;

const INT64: c_int = 6;
const SUM: c_int = 2;

/// The caps of a program that asks for collectives.
const CHOICES: Choices = Choices {
    caps: caps::MSG | caps::TAGGED | caps::COLLECTIVE | caps::DIRECTED_RECV,
    progress: 0,
    queue_wait: 0,
    counter_wait: 0,
};

fn set(side: &Side, start: FiAddr, end: FiAddr, stride: u64, flags: u64) -> Box<SetHandle> {
    let attr = FiAvSetAttr { start_addr: start, end_addr: end, stride, flags, ..zeroed() };
    let vector = side.vector.as_ref().expect("open");
    opened(|out| (table(vector.ops).av_set)(vector, Some(&attr), out, 0))
}

fn close_set(set: Box<SetHandle>) {
    assert_eq!((ops::<SetHandle>(&set.fid).close)(set), 0);
}

/// An event queue that is bound to the endpoint.
fn events(side: &Side, wait_obj: c_int) -> Box<EventQueueHandle> {
    let attr = FiEqAttr { wait_obj, ..zeroed() };
    let queue: Box<EventQueueHandle> =
        opened(|out| (table(side.fabric.ops).eq_open)(&side.fabric, Some(&attr), out, 0));
    assert_eq!((ops::<EndpointHandle>(&side.endpoint().fid).bind)(side.endpoint(), any(&queue.fid), 0), 0);
    queue
}

/// `fi_join_collective`: the result, and the object if there is one.
fn join(side: &Side, set: &SetHandle, context: usize) -> Result<Box<GroupHandle>, c_int> {
    let address = FiCollectiveAddr { set: &raw const set.fid, coll_addr: ADDR_UNSPEC };
    let mut made: *mut Fid = std::ptr::null_mut();
    let (join, address) = (table(side.endpoint().cm).join, (&raw const address).cast());
    match join(side.endpoint(), address, flags::COLLECTIVE, Out::from(&mut made), context) {
        // SAFETY: a successful call has made it, and the test is the program that owns it.
        0 => Ok(unsafe { Box::from_raw(made.cast()) }),
        error => Err(error),
    }
}

fn close_group(group: Box<GroupHandle>) -> c_int {
    (ops::<GroupHandle>(&group.fid).close)(group)
}

/// Reads an event: the result of the call, its number, and its data.
fn read(queue: &EventQueueHandle) -> (isize, u32, [u8; 24]) {
    let (mut event, mut data) = (0, [0; 24]);
    let read = (table(queue.ops).read)(queue, Out::from(&mut event), OutArray::from(&mut data[..]), 24, 0);
    (read, event, data)
}

/// Reads events of both sides in turn until the first has one.
fn await_event(queue: &EventQueueHandle, other: &EventQueueHandle) -> (isize, u32, [u8; 24]) {
    loop {
        match read(queue) {
            (-11, ..) => {
                let (mut event, flags) = (0, flags::PEEK);
                (table(other.ops).read)(other, Out::from(&mut event), OutArray::none(), 0, flags);
            }
            found => return found,
        }
    }
}

#[test]
fn sets_keep_the_order_in_which_addresses_come() {
    let (one, other) = pair_with(threading::SAFE, 0, CHOICES, CHOICES);
    let further = [2, 3, 4].map(|byte| {
        let mut address = other.address();
        address[34] ^= byte; // in its first part
        address
    });
    one.insert_addresses(&further);
    let numbers = |set: &SetHandle| set.numbers();
    let all = set(&one, ADDR_UNSPEC, ADDR_UNSPEC, 0, flags::UNIVERSE | flags::ALL_SETS);
    let calls = table(all.ops);
    assert_eq!(numbers(&all), [0, 1, 2, 3, 4]);
    let even = set(&one, 0, 100, 2, 0);
    assert_eq!(numbers(&even), [0, 2, 4]);
    let some = set(&one, 3, 3, 1, 0);
    assert_eq!([(calls.insert)(&some, 0), (calls.insert)(&some, 2), (calls.insert)(&some, 2)], [0, 0, -22]);
    assert_eq!((calls.insert)(&some, 5), -22, "no such address");
    assert_eq!(numbers(&some), [3, 0, 2]);
    assert_eq!((calls.intersect)(&some, any(&even.fid)), 0);
    assert_eq!(numbers(&some), [0, 2]);
    assert_eq!((calls.set_union)(&some, any(&all.fid)), 0);
    assert_eq!(numbers(&some), [0, 2, 1, 3, 4]);
    assert_eq!((calls.diff)(&some, any(&even.fid)), 0);
    assert_eq!(numbers(&some), [1, 3]);
    assert_eq!([(calls.remove)(&some, 1), (calls.remove)(&some, 1)], [0, -22]);
    assert_eq!((calls.diff)(&some, any(&some.fid)), 0, "a set and itself");
    assert!(numbers(&some).is_empty());
    let elsewhere = set(&other, 0, 1, 1, 0);
    assert_eq!((calls.set_union)(&some, any(&elsewhere.fid)), -22, "of another vector");
    assert_eq!((calls.set_union)(&some, any(&one.domain.fid)), -22, "no set");
    [all, even, some, elsewhere].into_iter().for_each(close_set);
}

#[test]
fn joining_needs_an_event_queue_the_capability_and_a_place_in_the_set() {
    let (one, other) = pair_with(threading::SAFE, 0, CHOICES, Choices::default());
    let (of_one, of_other) = (set(&one, 0, 1, 1, 0), set(&other, 0, 1, 1, 0));
    assert_eq!(join(&one, &of_one, 1).err(), Some(-261));
    let queues = [&one, &other].map(|side| events(side, wait_obj::NONE));
    assert_eq!(join(&other, &of_other, 1).err(), Some(-95), "opened without FI_COLLECTIVE");
    assert_eq!(join(&one, &of_other, 1).err(), Some(-262), "a set of another domain");
    assert_eq!((table(of_one.ops).remove)(&of_one, 0), 0);
    assert_eq!(join(&one, &of_one, 1).err(), Some(-22), "no member");
    [of_one, of_other].into_iter().for_each(close_set);
    for queue in queues {
        assert_eq!((ops::<EventQueueHandle>(&queue.fid).close)(queue), 0);
    }
}

#[test]
fn an_event_ends_a_join_and_operations_of_the_group_make_entries() {
    let (one, other) = pair_with(threading::SAFE, SELECTIVE, CHOICES, CHOICES);
    let sets = [set(&one, 0, 1, 1, 0), set(&other, ADDR_UNSPEC, ADDR_UNSPEC, 0, 0)];
    // The other one has itself as address 0, and is the second member.
    assert_eq!([1, 0].map(|number| (table(sets[1].ops).insert)(&sets[1], number)), [0, 0]);
    let queues = [events(&one, wait_obj::FD), events(&other, wait_obj::NONE)];
    let try_wait =
        || (table(one.fabric.ops).trywait)(&one.fabric, InArray::from(&[any(&queues[0].fid)][..]), 1);
    assert_eq!(try_wait(), 0);
    let first = join(&one, &sets[0], 77).expect("a group");
    assert_eq!(try_wait(), -11, "no packet rings the descriptor");
    assert_eq!(read(&queues[0]).0, -11);
    let second = join(&other, &sets[1], 78).expect("a group");
    let entry =
        |group: &GroupHandle, context| FiEqEntry { fid: &raw const *group as usize, context, data: 0 };
    assert_eq!(await_event(&queues[0], &queues[1]), (24, 6, entry(&first, 77).bytes()));
    assert_eq!(await_event(&queues[1], &queues[0]), (24, 6, entry(&second, 78).bytes()));
    assert_eq!(try_wait(), 0);

    let null = std::ptr::null_mut();
    let reduce =
        |side: &Side, group: &GroupHandle, words: &mut [u8; 8], result: &mut [u8; 8], flags, context| {
            let (from, into) = (buffer(words), buffer(result));
            let call = table(side.endpoint().collective).allreduce;
            call(side.endpoint(), from, 1, null, into, null, group.fi_addr, INT64, SUM, flags, context)
        };
    let (mut words, mut results) = ([3_i64, 4].map(i64::to_ne_bytes), [[0; 8]; 2]);
    assert_eq!(reduce(&one, &first, &mut words[0], &mut results[0], flags::COMPLETION, 5), 0);
    assert_eq!(reduce(&other, &second, &mut words[1], &mut results[1], flags::COMPLETION, 6), 0);
    for (side, partner, context) in [(&one, &other, 5), (&other, &one, 6)] {
        let (entry, _) = side.read(partner).expect("an entry");
        assert_eq!((entry.op_context, entry.flags), (context, flags::COLLECTIVE));
    }
    assert_eq!(results, [7_i64.to_ne_bytes(); 2]);
    assert_eq!(reduce(&one, &first, &mut words[0], &mut results[0], flags::PEEK, 5), -260);

    // A member that goes is an error at the other one, in the queue of entries.
    assert_eq!(reduce(&one, &first, &mut words[0], &mut results[0], 0, 9), 0);
    assert_eq!(close_group(first), -16, "an operation has not ended");
    sets.into_iter().for_each(close_set);
    drop(other);
    assert_eq!(one.read(&one).err(), Some(-259));
    let error = one.error();
    assert_eq!((error.op_context, error.flags, error.err), (9, flags::COLLECTIVE, libc::ESHUTDOWN));
    for queue in queues {
        assert_eq!((ops::<EventQueueHandle>(&queue.fid).close)(queue), 0);
    }
}

#[test]
fn a_member_that_gives_up_is_an_error_event_at_the_others() {
    let (one, other) = pair_with(threading::SAFE, 0, CHOICES, CHOICES);
    let sets = [set(&one, 0, 1, 1, 0), set(&other, ADDR_UNSPEC, ADDR_UNSPEC, 0, 0)];
    assert_eq!([1, 0].map(|number| (table(sets[1].ops).insert)(&sets[1], number)), [0, 0]);
    let queues = [&one, &other].map(|side| events(side, wait_obj::NONE));
    let first = join(&one, &sets[0], 77).expect("a group");
    let second = join(&other, &sets[1], 78).expect("a group");
    assert_eq!(close_group(second), 0);
    assert_eq!(await_event(&queues[0], &queues[1]).0, -259);
    let mut entry = FiEqErrEntry { err_data_size: 9, err_data: 7, ..FiEqErrEntry::EMPTY };
    let readerr = table(queues[0].ops).readerr;
    assert_eq!(readerr(&queues[0], EqErrorOut::from(&raw mut entry), flags::PEEK), 48);
    assert_eq!(readerr(&queues[0], EqErrorOut::from(&raw mut entry), 0), 48);
    let fid = &raw const *first as usize;
    let expected = FiEqErrEntry { fid, context: 77, err: libc::ESHUTDOWN, ..entry };
    assert_eq!((entry, entry.err_data_size), (expected, 0));
    assert_eq!(readerr(&queues[0], EqErrorOut::from(&raw mut entry), 0), -11);
    assert_eq!((read(&queues[0]).0, read(&queues[1]).0), (-11, -11));
    assert_eq!(close_group(first), 0);
    sets.into_iter().for_each(close_set);
    for queue in queues {
        assert_eq!((ops::<EventQueueHandle>(&queue.fid).close)(queue), 0);
    }
}
