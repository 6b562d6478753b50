//! The C interface by which another library of the process uses the groups of an endpoint: `libweir-mpi.so` those of
//! `libweir-fi.so`. It has the types; the provider has the functions.
//!
//! ```text
//! libweir-mpi.so     finds libweir-fi.so in its process, and calls ENTRY: a table of functions
//! libweir-fi.so      opens an endpoint, and calls INITIALIZES: others are to wait for this process
//! enter              MPI_Init is over: this rank of the world does collective operations by groups, or it does not
//! ask                whether all members of a communicator do, who are on this node
//! probed             whether a member on any node does, after the MPI has looked for a message from it
//! identify           node segment, endpoint and address, which the members tell each other
//! begin, finish      of joining: first members of nodes make what the others then find
//! perform            as NodeGroup::perform, or on two levels as LevelGroup
//! take_receive       the next receive of this thread stands for an operation; has_taken: whether it does
//! leave              before the endpoint closes
//! ```
//! **Addresses.** Nobody can ask a rank without the library, which is in another call. But it has an address, which it
//! gives to all by the MPI. So a process that takes part across nodes has a mark in its address. Which address a rank has,
//! only its MPI knows. When that looks for a message of the rank, the provider sees the address.
//!
//! Both libraries are files of one version of weir. [`VERSION`] and the limits in the table find out if they are not.

use core::ffi::{CStr, c_int, c_void};
use weir_link::ADDRESS_BYTES;
use weir_link::shm::node_group::{GroupFailure, Operation};
use weir_proto::PeerFault;
use weir_proto::offload::reduce::Vector;
use weir_proto::offload::{Combination, WordOperation, WordType};

use crate::delivery::{Delivery, OwnBlock};
use crate::operation_times::OperationKind;
use crate::short_integers::ShortInteger;

/// The name of the function that returns the table.
pub const ENTRY: &CStr = c"weir_node_groups";
/// The type of that function.
pub type Entry = unsafe extern "C" fn() -> *const NodeGroupFunctions;
/// The version of this interface. Count it up with each change of a type of this file.
pub const VERSION: u32 = 8;

/// The name of a function of the other library: what its process does.
pub const INITIALIZES: &CStr = c"weir_mpi_initializes";
/// The type of that function, which returns bits.
pub type Initializes = unsafe extern "C" fn() -> c_int;
/// It is in `MPI_Init`, called by way of that library.
pub const INITIALIZING: c_int = 1;
/// It takes part in groups across nodes.
pub const ACROSS: c_int = 2;

/// Words of an address.
pub const ADDRESS_WORDS: usize = ADDRESS_BYTES / 8;

/// What identifies an endpoint.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The number of the node segment.
    pub segment: u64,
    /// The number of the endpoint in it. Never 0.
    pub endpoint: u64,
    /// Its address.
    pub address: [u64; ADDRESS_WORDS],
    /// Whether its program promises to call from one thread at a time: 0 or 1.
    pub is_serialised: u64,
}

/// An [`Operation`], in C's types.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationWords {
    kind: u32,
    root: u32,
    operation: u32,
    word_type: u32,
    bytes: u32,
    /// The number of an [`OperationKind`].
    call: u32,
    /// 0, or 1 more than the place of a [`ShortInteger`].
    short: u32,
    /// Of a reduce-scatter that takes a receive: where the own block begins in the vector, and its length. Unit: bytes.
    block_begin: u32,
    block_bytes: u32,
}

/// A [`GroupFailure`], in C's types.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailureWords {
    member: u32,
    fault: u32,
}

/// The answer to an attempt to join.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The group, for the other functions. Null unless the status is [`JOINED`].
    pub group: *mut c_void,
    /// Whether the node has more endpoints than cores, so that members must yield while they wait: 0 or 1.
    pub is_crowded: u32,
}

/// The endpoint has joined.
pub const JOINED: c_int = 0;
/// Not all members have joined yet, or it is not known whether all ranks have entered.
pub const NOT_YET: c_int = 1;
/// It cannot join, ever.
pub const REFUSED: c_int = 2;

/// All these ranks have entered.
pub const ALL: c_int = 0;
/// Some have not, and never will.
pub const NOT_ALL: c_int = 2;

/// The rank takes part in groups across nodes.
pub const MARKED: c_int = 0;
/// It does not.
pub const UNMARKED: c_int = 1;
/// The provider has not seen that the MPI has looked for a message.
pub const UNSEEN: c_int = 2;

/// Called while a member waits, with the context of the call, and [`LOOKED`], [`PAUSED`] or [`PROGRESS_IS_DUE`].
pub type Idle = unsafe extern "C" fn(*mut c_void, c_int);

/// The provider has looked whether the wait is over.
pub const LOOKED: c_int = 0;
/// It has looked at the network too, and spun, yielded or slept as it does for messages.
pub const PAUSED: c_int = 1;
/// The same, and the MPI is to make progress: completions wait for it, or the member has slept.
pub const PROGRESS_IS_DUE: c_int = 2;

/// The functions.
#[repr(C)]
#[derive(Debug)]
pub struct NodeGroupFunctions {
    /// [`VERSION`] of the library that has these functions.
    pub version: u32,
    /// Most members of a group.
    pub max_members: u32,
    /// Longest vector of a reduction. Unit: bytes.
    pub max_vector_bytes: u32,
    /// Longest broadcast. Unit: bytes.
    pub max_broadcast_bytes: u32,
    /// Called when `MPI_Init` is over. This process, of rank `rank` in a world of `ranks` ranks, does collective operations by
    /// groups; if `rank` is negative, it does not. Returns 0, or 1 if it never can.
    pub enter: unsafe extern "C" fn(rank: c_int, ranks: c_int) -> c_int,
    /// Whether all `count` ranks of the world do collective operations by groups: [`ALL`], [`NOT_ALL`] or [`NOT_YET`]. With
    /// `is_last` it is never the third. All who ask for the same ranks, and are among them, get the same answer.
    pub ask: unsafe extern "C" fn(ranks: *const c_int, count: u32, is_last: c_int) -> c_int,
    /// The first open endpoint of this process that is in a node segment. Returns 0, or 1 if there is none.
    pub identify: unsafe extern "C" fn(identity: *mut Identity) -> c_int,
    /// Whether the rank for whose message this thread's MPI has looked last takes part in groups across nodes: [`MARKED`],
    /// [`UNMARKED`] or [`UNSEEN`], which is also the answer to the next question until the MPI looks again.
    pub probed: unsafe extern "C" fn() -> c_int,
    /// Begins to join a group: the key, all `count` members, our rank. The first member of a node makes the node group, and
    /// begins to join those of other nodes. Returns [`JOINED`], which means that it has begun, or [`REFUSED`].
    ///
    /// - `takes_receives`: its operations take receives (1), or it performs them (0).
    pub begin: unsafe extern "C" fn(
        key: u64,
        members: *const Identity,
        count: u32,
        rank: u32,
        takes_receives: c_int,
        joined: *mut Joined,
    ) -> c_int,
    /// Goes on to join, when all members have begun. Returns [`JOINED`], [`NOT_YET`] or [`REFUSED`].
    pub finish: unsafe extern "C" fn(group: *mut c_void) -> c_int,
    /// Performs an operation: `data` and `result` are as long as the operation says, and do not overlap. One thread at a
    /// time. Returns 0, or 1 and the failure.
    pub perform: unsafe extern "C" fn(
        group: *mut c_void,
        operation: *const OperationWords,
        data: *const u8,
        result: *mut u8,
        idle: Idle,
        context: *mut c_void,
        failure: *mut FailureWords,
    ) -> c_int,
    /// The next tagged receive that this thread posts at the group's endpoint is taken by an operation. No message
    /// completes it, but the end of the operation: its buffer then has what the words say of the result
    /// ([`OperationWords::delivery`]). Without an operation (null), it completes at once: a trial. For groups that have begun
    /// with `takes_receives`; the MPI makes the calls of libfabric.
    ///
    /// - `data`: as long as the operation says. With `is_copied` (1) it is free at the return, otherwise (0) when the receive
    ///   has completed.
    pub take_receive: unsafe extern "C" fn(
        group: *mut c_void,
        operation: *const OperationWords,
        data: *const u8,
        is_copied: c_int,
    ),
    /// Whether a receive of this thread has been taken since then: 0, or 1. If not, none will be.
    pub has_taken: unsafe extern "C" fn() -> c_int,
    /// Leaves the group, when the operations have ended that have taken receives. Its pointer is then no longer valid.
    pub leave: unsafe extern "C" fn(group: *mut c_void),
}

const BARRIER: u32 = 0;
const REDUCE: u32 = 1;
const ALL_REDUCE: u32 = 2;
const BROADCAST: u32 = 3;
const ALL_GATHER: u32 = 4;
const ALL_TO_ALL: u32 = 5;
const GATHER: u32 = 6;
const SCATTER: u32 = 7;

impl From<Operation> for OperationWords {
    fn from(operation: Operation) -> OperationWords {
        let call = OperationKind::from(operation) as u32;
        let without = |kind, root, bytes| OperationWords {
            kind,
            root,
            operation: 0,
            word_type: 0,
            bytes,
            call,
            short: 0,
            block_begin: 0,
            block_bytes: 0,
        };
        let of = |kind, root, vector: Vector| without(kind, root, vector.bytes).combined(vector.combination);
        match operation {
            Operation::Barrier => without(BARRIER, 0, 0),
            Operation::Reduce { root, vector } => of(REDUCE, root, vector),
            Operation::AllReduce(vector) => of(ALL_REDUCE, 0, vector),
            Operation::Broadcast { root, bytes } => without(BROADCAST, root, bytes),
            Operation::AllGather { bytes } => without(ALL_GATHER, 0, bytes),
            Operation::AllToAll { bytes } => without(ALL_TO_ALL, 0, bytes),
            Operation::Gather { root, bytes } => without(GATHER, root, bytes),
            Operation::Scatter { root, bytes } => without(SCATTER, root, bytes),
        }
    }
}

impl OperationWords {
    /// The same for a program that has called another operation, which is done by this one.
    pub fn of_call(self, call: OperationKind) -> OperationWords {
        OperationWords { call: call as u32, ..self }
    }

    fn combined(self, combination: Combination) -> OperationWords {
        let (operation, word_type) = (combination.operation as u32, combination.word_type as u32);
        OperationWords { operation, word_type, ..self }
    }

    fn combination(self) -> Option<Combination> {
        let operation = *WordOperation::ALL.get(self.operation as usize)?;
        let word_type = *WordType::ALL.get(self.word_type as usize)?;
        Some(Combination { operation, word_type })
    }

    fn narrowed(self, short: Option<ShortInteger>) -> OperationWords {
        let place = short.and_then(|short| ShortInteger::ALL.iter().position(|&it| it == short));
        OperationWords { short: place.map_or(0, |place| place as u32 + 1), ..self }
    }

    /// The same for a receive that gets this of the result. A block makes it a reduce-scatter.
    pub fn delivered(self, delivery: Delivery) -> OperationWords {
        match delivery {
            Delivery::Whole => self.narrowed(None),
            Delivery::Integers(short) => self.narrowed(Some(short)),
            Delivery::Block(OwnBlock { combination, short, begin, bytes, .. }) => {
                let words = self.of_call(OperationKind::ReduceScatter).narrowed(short).combined(combination);
                OperationWords { block_begin: begin, block_bytes: bytes, ..words }
            }
        }
    }

    /// What the receive gets of the result. `None`: these numbers are none.
    pub fn delivery(self) -> Option<Delivery> {
        let short = match (self.short as usize).checked_sub(1) {
            Some(place) => Some(*ShortInteger::ALL.get(place)?),
            None => None,
        };
        if self.call()? != OperationKind::ReduceScatter {
            return Some(short.map_or(Delivery::Whole, Delivery::Integers));
        }
        let exchanged_bytes = if self.kind == ALL_TO_ALL { self.bytes } else { 0 };
        let (begin, bytes) = (self.block_begin, self.block_bytes);
        Some(Delivery::Block(OwnBlock {
            combination: self.combination()?,
            short,
            exchanged_bytes,
            begin,
            bytes,
        }))
    }

    /// What the program has called. `None`: the number is none.
    pub fn call(self) -> Option<OperationKind> {
        OperationKind::ALL.get(self.call as usize).copied()
    }

    /// The operation. `None`: these numbers are none.
    pub fn operation(self) -> Option<Operation> {
        let OperationWords { kind, root, bytes, .. } = self;
        let vector = || Some(Vector { bytes, combination: self.combination()? });
        Some(match kind {
            BARRIER => Operation::Barrier,
            REDUCE => Operation::Reduce { root, vector: vector()? },
            ALL_REDUCE => Operation::AllReduce(vector()?),
            BROADCAST => Operation::Broadcast { root, bytes },
            ALL_GATHER => Operation::AllGather { bytes },
            ALL_TO_ALL => Operation::AllToAll { bytes },
            GATHER => Operation::Gather { root, bytes },
            SCATTER => Operation::Scatter { root, bytes },
            _ => return None,
        })
    }
}

const FAULTS: [PeerFault; 3] = [PeerFault::Died, PeerFault::Closed, PeerFault::Malformed];

impl From<GroupFailure> for FailureWords {
    fn from(failure: GroupFailure) -> FailureWords {
        let fault = FAULTS.iter().position(|&fault| fault == failure.fault).unwrap_or(0);
        FailureWords { member: failure.member, fault: fault as u32 }
    }
}

impl FailureWords {
    /// The failure.
    pub fn failure(self) -> GroupFailure {
        let fault = FAULTS.get(self.fault as usize).copied().unwrap_or(PeerFault::Malformed);
        GroupFailure { member: self.member, fault }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_and_failure_crosses_the_interface_unchanged() {
        let (root, bytes) = (3, 4096);
        let mut operations = vec![
            Operation::Barrier,
            Operation::Broadcast { root, bytes },
            Operation::AllGather { bytes },
            Operation::AllToAll { bytes },
            Operation::Gather { root, bytes },
            Operation::Scatter { root, bytes },
        ];
        for operation in WordOperation::ALL {
            for word_type in WordType::ALL {
                let vector = Vector { bytes: 24, combination: Combination { operation, word_type } };
                operations.extend([Operation::AllReduce(vector), Operation::Reduce { root: 7, vector }]);
            }
        }
        for operation in operations {
            let words = OperationWords::from(operation);
            assert_eq!((words.operation(), words.call()), (Some(operation), Some(operation.into())));
        }
        let call = OperationKind::ReduceScatter;
        let words = OperationWords::from(Operation::AllToAll { bytes }).of_call(call);
        assert_eq!((words.operation(), words.call()), (Some(Operation::AllToAll { bytes }), Some(call)));
        let combination = Combination { operation: WordOperation::Min, word_type: WordType::I32 };
        let block = |exchanged_bytes, short| {
            Delivery::Block(OwnBlock { combination, short, exchanged_bytes, begin: 6, bytes: 4 })
        };
        let vector = Vector { bytes: 24, combination };
        for short in ShortInteger::ALL.map(Some).into_iter().chain([None]) {
            let integers = short.map_or(Delivery::Whole, Delivery::Integers);
            for (operation, delivery) in [
                (Operation::AllReduce(vector), integers),
                (Operation::AllReduce(vector), block(0, short)),
                (Operation::AllToAll { bytes }, block(bytes, short)),
            ] {
                let words = OperationWords::from(operation).delivered(delivery);
                assert_eq!((words.operation(), words.delivery()), (Some(operation), Some(delivery)));
            }
        }
        for fault in FAULTS {
            let failure = GroupFailure { member: 9, fault };
            assert_eq!(FailureWords::from(failure).failure(), failure);
        }
    }

    #[test]
    fn numbers_of_no_operation_are_rejected() {
        let words = OperationWords::from(Operation::Barrier);
        assert_eq!(OperationWords { kind: 8, ..words }.operation(), None);
        assert_eq!(OperationWords { call: 9, ..words }.call(), None);
        let no_operation = WordOperation::ALL.len() as u32;
        assert_eq!(OperationWords { kind: ALL_REDUCE, operation: no_operation, ..words }.operation(), None);
        let no_type = WordType::ALL.len() as u32;
        assert_eq!(OperationWords { kind: REDUCE, word_type: no_type, ..words }.operation(), None);
    }
}
