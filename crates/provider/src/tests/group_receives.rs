//! Receives that operations of groups take, with the calls that `libweir-mpi.so` makes.

use super::*;
use crate::group_functions::weir_node_groups;
use crate::node_endpoints::number;
use crate::state::domain_state::ProgressTarget;
use crate::tagged;
use std::ffi::c_void;
use weir_engine::delivery::{Delivery, OwnBlock};
use weir_engine::node_group_interface::{Identity, JOINED, Joined, NodeGroupFunctions, OperationWords};
use weir_engine::short_integers::ShortInteger;
use weir_link::shm::node_group::Operation;
use weir_proto::offload::reduce::Vector;
use weir_proto::offload::{Combination, WordOperation, WordType};

fn functions() -> &'static NodeGroupFunctions {
    // SAFETY: the table is constant.
    unsafe { &*weir_node_groups() }
}

/// A side in a group of two. It leaves when the value is dropped.
struct Member<'a> {
    side: &'a Side,
    group: *mut c_void,
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        // SAFETY: a joined group, which nobody uses any more.
        unsafe { (functions().leave)(self.group) };
    }
}

impl Member<'_> {
    /// The next receive of this thread is for an operation.
    fn take(&self, operation: Operation, data: &[u8], is_copied: bool) {
        let words = OperationWords::from(operation);
        // SAFETY: a joined group; the tests keep the data until the operation has ended.
        unsafe { (functions().take_receive)(self.group, &words, data.as_ptr(), is_copied.into()) };
    }

    /// Posts a receive that an operation takes.
    fn start(&self, operation: Operation, data: &[u8], result: &mut [u8], context: usize) {
        self.take(operation, data, false);
        self.side.receive(result, 1, 7, context);
        assert!(has_taken());
    }

    /// The context of the next entry, or nothing after some reads.
    fn ended(&self) -> Option<usize> {
        let mut entry = [zeroed::<FiCqTaggedEntry>()];
        let queue = self.side.queue();
        (0..20).find_map(|_| {
            let read = (table(queue.ops).read)(queue, OutArray::from(&mut entry[..]).cast(), 1);
            (read == 1).then(|| entry[0].op_context)
        })
    }

    fn has_usual_table(&self) -> bool {
        std::ptr::eq(self.side.tagged(), &tagged::OPS)
    }

    /// Whether a thread may block at a descriptor until something happens.
    fn may_block(&self) -> bool {
        let queue = self.side.queue();
        let armed = queue.domain.enter().arm(ProgressTarget::Queue(queue.index));
        armed.is_ok_and(|descriptor| descriptor.is_some())
    }

    /// The endpoints that a read of the queue looks at.
    fn looked_at(&self) -> usize {
        let queue = self.side.queue();
        queue.domain.enter().queues[queue.index].endpoints.len()
    }
}

fn has_taken() -> bool {
    // SAFETY: it takes nothing.
    unsafe { (functions().has_taken)() == 0 }
}

/// Calls `work` with two members of a group, in a process of a launcher's job.
fn with_group(key: u64, work: impl FnOnce(Member, Member)) {
    with_group_on([1, 1], key, work);
}

/// The same, with members that take these for the numbers of their node segments. Messages between them stay on one node.
fn with_group_on(segments: [u64; 2], key: u64, work: impl FnOnce(Member, Member)) {
    run_in_child(|| {
        // SAFETY: the process has one thread.
        unsafe {
            std::env::set_var("PMI_RANK", "0");
            std::env::set_var("PMI_SIZE", "2");
        }
        with_members(segments, key, work);
    });
}

fn with_members(segments: [u64; 2], key: u64, work: impl FnOnce(Member, Member)) {
    let (one, other) = pair(threading::DOMAIN, 0);
    let identity = |side: &Side, segment| {
        let endpoint = side.endpoint();
        let mut state = endpoint.domain.enter();
        let engine = state.endpoints[endpoint.index].engine().expect("enabled");
        let address = engine.address().0;
        let words = address.as_chunks().0.iter().map(|bytes| u64::from_ne_bytes(*bytes));
        let mut identity = Identity { segment, ..Identity::default() };
        identity.address.iter_mut().zip(words).for_each(|(to, word)| *to = word);
        identity.endpoint = number(&engine.node_handle().expect("a segment"));
        identity
    };
    let sides = [&one, &other];
    let members = [0, 1].map(|rank| identity(sides[rank], segments[rank]));
    let begin = |rank: u32| {
        let mut joined = Joined { group: std::ptr::null_mut(), is_crowded: 0 };
        // SAFETY: an array of two members, and a variable for the result.
        let begun = unsafe { (functions().begin)(key, members.as_ptr(), 2, rank, 1, &mut joined) };
        assert_eq!(begun, JOINED);
        joined.group
    };
    let groups = [0, 1].map(begin);
    // SAFETY: groups that have begun to join.
    let finished = || groups.map(|group| unsafe { (functions().finish)(group) });
    assert!((0..1000).any(|_| finished() == [JOINED; 2]), "{:?}", finished());
    let [first, second] = [0, 1].map(|rank| Member { side: sides[rank], group: groups[rank] });
    work(first, second);
}

fn sum() -> Operation {
    let combination = Combination { operation: WordOperation::Sum, word_type: WordType::I64 };
    Operation::AllReduce(Vector { bytes: 8, combination })
}

#[test]
fn a_trial_completes_a_receive_and_other_receives_wait_for_messages() {
    with_group(11, |one, other| {
        // SAFETY: a joined group, and no operation.
        unsafe { (functions().take_receive)(one.group, std::ptr::null(), std::ptr::null(), 0) };
        one.side.receive(&mut [], 1, 5, 1);
        assert!(!one.has_usual_table());
        assert!(has_taken());
        assert!(
            one.has_usual_table() && other.has_usual_table(),
            "receives of a program without operations cost nothing more"
        );
        assert_eq!(one.ended(), Some(1));
        // SAFETY: as above.
        unsafe { (functions().take_receive)(one.group, std::ptr::null(), std::ptr::null(), 0) };
        let mut bytes = [0; 8];
        other.side.receive(&mut bytes, 1, 5, 2); // another endpoint
        assert!(!has_taken());
        assert_eq!(other.ended(), None);
        one.side.receive(&mut bytes, 1, 6, 3); // taken by nobody, since `has_taken` was asked
        one.side.inject(&mut [9; 8], 5);
        assert_eq!((one.ended(), other.ended()), (None, Some(2)));
        other.side.inject(&mut [9; 8], 6);
        assert_eq!(one.ended(), Some(3));
    });
}

#[test]
fn an_operation_ends_its_receive_with_the_result_and_messages_do_not() {
    with_group(12, |one, other| {
        let (mine, theirs) = (3_i64.to_ne_bytes(), 20_i64.to_ne_bytes());
        let mut results = [[0; 8]; 2];
        one.start(sum(), &mine, &mut results[0], 1);
        assert!(!one.has_usual_table() && !other.has_usual_table());
        assert_eq!((one.ended(), one.looked_at()), (None, 2));
        assert!(!one.may_block(), "nobody would wake it");
        let mut message = [0; 8];
        other.side.inject(&mut [5; 8], 7); // the tag of the receive
        assert_eq!(one.ended(), None);
        one.side.receive(&mut message, 1, 7, 2);
        assert_eq!((one.ended(), message), (Some(2), [5; 8]));
        other.start(sum(), &theirs, &mut results[1], 3);
        assert_eq!((one.ended(), other.ended()), (Some(1), Some(3)));
        assert_eq!(results.map(i64::from_ne_bytes), [23, 23]);
        one.side.progress();
        assert_eq!((one.looked_at(), other.looked_at()), (1, 1), "nothing is left to look at");
        assert!(one.may_block());
    });
}

#[test]
fn operations_start_in_order_and_end_when_they_can() {
    with_group(13, |one, other| {
        // More than a group has rounds; the last one begins when the first has ended.
        let (data, mut result) = ([8; 8], [0; 8]);
        let broadcast = |root| Operation::Broadcast { root, bytes: 8 };
        for context in 1..=6 {
            one.start(Operation::Barrier, &[], &mut [], context);
        }
        one.start(broadcast(1), &[], &mut result, 7);
        assert_eq!(one.ended(), None);
        other.start(Operation::Barrier, &[], &mut [], 1);
        assert_eq!((one.ended(), one.ended(), other.ended()), (Some(1), None, Some(1)));
        for context in 2..=6 {
            other.start(Operation::Barrier, &[], &mut [], context);
        }
        other.start(broadcast(1), &data, &mut [], 7);
        for context in 2..=7 {
            assert_eq!((one.ended(), other.ended()), (Some(context), Some(context)));
        }
        assert_eq!(result, data);
        // A broadcast of ours needs nobody, a barrier before it does.
        one.start(Operation::Barrier, &[], &mut [], 1);
        one.start(broadcast(0), &data, &mut [], 2);
        assert_eq!((one.ended(), one.ended()), (Some(2), None));
        other.start(Operation::Barrier, &[], &mut [], 1);
        other.start(broadcast(0), &[], &mut result, 2);
        assert_eq!((one.ended(), other.ended(), other.ended()), (Some(1), Some(1), Some(2)));
    });
}

#[test]
fn a_receive_of_short_integers_gets_the_lower_bits_of_each_word() {
    with_group(21, |one, other| {
        let combination = Combination { operation: WordOperation::Sum, word_type: WordType::I32 };
        let sums = Operation::AllReduce(Vector { bytes: 12, combination });
        let words = |values: [i32; 3]| values.map(i32::to_ne_bytes).concat();
        let (mine, theirs) = (words([100, -1, 7]), words([100, -2, 8]));
        let (mut bytes, mut shorter, mut result) = ([9; 4], [9; 2], [0; 12]);
        let narrowed = OperationWords::from(sums).delivered(Delivery::Integers(ShortInteger::I8));
        // SAFETY: a joined group; the data stays until the operation has ended.
        unsafe { (functions().take_receive)(one.group, &narrowed, mine.as_ptr(), 0) };
        one.side.receive(&mut shorter, 1, 6, 1); // of the MPI itself: it has no room
        one.side.receive(&mut bytes, 1, 7, 2);
        assert!(has_taken());
        other.start(sums, &theirs, &mut result, 3);
        assert_eq!((one.ended(), other.ended()), (Some(2), Some(3)));
        assert_eq!(bytes, [200, 253, 15, 9]);
        assert_eq!(result[..], words([200, -3, 15]));
    });
}

#[test]
fn a_receive_of_a_reduce_scatter_gets_the_own_block() {
    with_group(22, |one, other| {
        let combination = Combination { operation: WordOperation::Sum, word_type: WordType::I64 };
        let words = |values: [i64; 2]| values.map(i64::to_ne_bytes).concat();
        let (mine, theirs) = (words([1, 2]), words([30, 40]));
        let exchange = Operation::AllToAll { bytes: 8 };
        let own = |rank: u32| {
            let (exchanged_bytes, bytes, short) = (8, 8, None);
            Delivery::Block(OwnBlock { combination, short, exchanged_bytes, begin: rank * 8, bytes })
        };
        let mut blocks = [[9; 12]; 2];
        for (rank, member, data) in [(0, &one, &mine), (1, &other, &theirs)] {
            let words = OperationWords::from(exchange).delivered(own(rank));
            // SAFETY: a joined group; the data stays until the operation has ended.
            unsafe { (functions().take_receive)(member.group, &words, data.as_ptr(), 0) };
            member.side.receive(&mut blocks[rank as usize], 1, 7, 1 + rank as usize);
            assert!(has_taken());
        }
        assert_eq!((one.ended(), other.ended()), (Some(1), Some(2)));
        for (block, sum) in blocks.iter().zip([31_i64, 42]) {
            assert_eq!((&block[..8], &block[8..]), (&sum.to_ne_bytes()[..], &[9; 4][..]));
        }
    });
}

#[test]
fn a_copied_contribution_is_free_at_once_and_a_receive_without_room_is_another_one() {
    with_group(14, |one, other| {
        let gather = Operation::AllGather { bytes: 4 };
        let (mut mine, mut short, mut long, mut whole) = ([1; 4], [0; 7], [0; 9], [0; 8]);
        one.take(gather, &mine, true);
        one.side.receive(&mut short, 1, 6, 1); // of the MPI itself
        one.side.receive(&mut long, 1, 7, 2);
        assert!(has_taken());
        mine.fill(9);
        other.start(gather, &[2; 4], &mut whole, 3);
        assert_eq!((other.ended(), whole), (Some(3), [1, 1, 1, 1, 2, 2, 2, 2]));
        assert_eq!((one.ended(), long), (Some(2), [1, 1, 1, 1, 2, 2, 2, 2, 0]));
        other.side.inject(&mut [5; 7], 6);
        assert_eq!((one.ended(), short), (Some(1), [5; 7]));
    });
}

#[test]
fn the_end_of_a_member_is_an_error_of_the_receive() {
    with_group(15, |one, other| {
        one.start(Operation::Barrier, &[], &mut [], 1);
        let side = other.side;
        drop(other);
        assert_eq!(one.side.read(side).unwrap_err(), -259);
        assert_eq!(one.side.error().err, libc::ESHUTDOWN);
    });
}

#[test]
fn a_group_that_its_owner_has_left_ends_its_operations() {
    with_group(16, |one, other| {
        let mut results = [[0; 8]; 2];
        one.start(sum(), &1_i64.to_ne_bytes(), &mut results[0], 1);
        one.start(Operation::Barrier, &[], &mut [], 2);
        let side = one.side;
        drop(one);
        other.start(sum(), &2_i64.to_ne_bytes(), &mut results[1], 3);
        other.start(Operation::Barrier, &[], &mut [], 4);
        assert_eq!((other.ended(), other.ended()), (Some(3), Some(4)));
        for context in [1, 2] {
            assert_eq!(side.read(other.side).expect("an entry").0.op_context, context);
        }
        assert_eq!(results.map(i64::from_ne_bytes), [3, 3]);
    });
}

/// Node segments of members that meet on two levels.
const APART: [u64; 2] = [1, 2];

#[test]
fn operations_on_several_nodes_end_their_receives_in_order_by_reads_of_the_queues() {
    with_group_on(APART, 17, |one, other| {
        let (data, mut results, mut bytes) = ([3_i64, 20].map(i64::to_ne_bytes), [[0; 8]; 2], [0; 8]);
        let next = |member: &Member, peer: &Member| {
            member.side.read(peer.side).map(|(entry, _)| entry.op_context).expect("an entry")
        };
        // More than a group has rounds.
        for context in 1..=6 {
            one.start(Operation::Barrier, &[], &mut [], context);
        }
        one.start(sum(), &data[0], &mut results[0], 7);
        one.start(Operation::Broadcast { root: 1, bytes: 8 }, &[], &mut bytes, 8);
        assert_eq!((one.ended(), other.ended()), (None, None));
        for context in 1..=6 {
            other.start(Operation::Barrier, &[], &mut [], context);
        }
        other.start(sum(), &data[1], &mut results[1], 7);
        other.start(Operation::Broadcast { root: 1, bytes: 8 }, &[5; 8], &mut [], 8);
        for context in 1..=8 {
            assert_eq!(next(&one, &other), context);
        }
        let mut ended: Vec<_> = (1..=8).map(|_| next(&other, &one)).collect();
        ended.sort_unstable(); // the broadcast ends early at its root
        assert!(ended.into_iter().eq(1..=8));
        assert_eq!((results.map(i64::from_ne_bytes), bytes), ([23, 23], [5; 8]));
        one.side.progress();
        assert_eq!((one.looked_at(), other.looked_at()), (1, 1), "nothing is left to look at");
    });
}

#[test]
fn a_group_on_several_nodes_that_its_owner_has_left_ends_its_operations() {
    with_group_on(APART, 18, |one, other| {
        let mut results = [[0; 8]; 2];
        one.start(sum(), &1_i64.to_ne_bytes(), &mut results[0], 1);
        one.start(Operation::Barrier, &[], &mut [], 2);
        let (side, peer) = (one.side, other.side);
        drop(one);
        other.start(sum(), &2_i64.to_ne_bytes(), &mut results[1], 3);
        other.start(Operation::Barrier, &[], &mut [], 4);
        drop(other);
        for (side, peer, contexts) in [(side, peer, [1, 2]), (peer, side, [3, 4])] {
            for context in contexts {
                assert_eq!(side.read(peer).expect("an entry").0.op_context, context);
            }
        }
        assert_eq!(results.map(i64::from_ne_bytes), [3, 3]);
    });
}

#[test]
fn a_failure_of_the_group_is_an_error_of_all_its_receives_on_all_nodes() {
    with_group_on(APART, 19, |one, other| {
        let mut results = [[0; 8]; 6];
        for (context, result) in (1..).zip(&mut results) {
            one.start(sum(), &1_i64.to_ne_bytes(), result, context);
        }
        other.start(Operation::Barrier, &[], &mut [], 1); // another operation
        for member in [&one, &other, &one, &one, &one, &one, &one] {
            let peer = if std::ptr::eq(member, &one) { &other } else { &one };
            assert_eq!(member.side.read(peer.side).unwrap_err(), -259);
            assert_ne!(member.side.error().err, 0);
        }
        assert_eq!((one.ended(), other.ended()), (None, None));
        other.start(Operation::Barrier, &[], &mut [], 2);
        assert_eq!(other.side.read(one.side).unwrap_err(), -259, "it stays so");
        other.side.error();
    });
}
