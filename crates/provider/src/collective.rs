//! libfabric's collective operations: each call becomes one operation of the engine ([`weir_engine::Engine::collective`]).
//! It makes an entry in the transmit queue when the caller's buffers are free and its result is there.
//!
//! `count` is the number of elements that a member contributes for one other: in a scatter, an all-to-all and a
//! reduce-scatter, buffers for all members have so many times their number. Blocks lie in the order of ranks, which is that
//! of the set. Operations that combine nothing take any type. The others take 32 and 64-bit integers, `float` and
//! `double`, and combine in the order of ranks, so each run gives the same bits.

use std::ffi::c_int;

use weir_engine::{
    CollectiveArguments, CollectiveOperation, CollectiveShape, MAX_COLLECTIVE_BYTES, MAX_COLLECTIVE_MEMBERS,
};
use weir_link::memory::UserMemory;
use weir_proto::offload::Combination;

use crate::data_type::{element_bytes, word_operation, word_type};
use crate::endpoint_handle::EndpointHandle;
use crate::errno::{Error, ssize_status};
use crate::ffi::*;
use crate::group::group_at;
use crate::limits::COLLECTIVE_CALL_FLAGS;
use crate::state::completion::Side;
use crate::state::endpoint::Flags;

/// How a reduction of this type and operation combines.
///
/// # Errors
/// [`Error::NOT_SUPPORTED`].
fn combination(datatype: c_int, operation: c_int) -> Result<Combination, Error> {
    let found = word_operation(operation).zip(word_type(datatype));
    let found = found.map(|(operation, word_type)| Combination { operation, word_type });
    found.filter(|combination| combination.is_valid()).ok_or(Error::NOT_SUPPORTED)
}

/// `fi_query_collective`, which is the same for all domains: whether there is the operation `operation` with the type and
/// the operation on it that `attr` asks for, and its limits.
///
/// # Errors
/// Unknown flags, no structure or a mode: bad flags, invalid. There is none: not supported.
pub fn query(operation: c_int, attr: Option<&mut FiCollectiveAttr>, flags: u64) -> Result<(), Error> {
    if flags != 0 {
        return Err(Error::BAD_FLAGS);
    }
    let attr = attr.filter(|attr| attr.mode == 0).ok_or(Error::INVALID)?;
    let size = match operation {
        collective_op::BARRIER if attr.datatype == collective_type::VOID => 0,
        collective_op::ALLREDUCE | collective_op::REDUCE | collective_op::REDUCE_SCATTER => {
            combination(attr.datatype, attr.op)?.word_type.bytes() as usize
        }
        collective_op::BROADCAST
        | collective_op::ALLTOALL
        | collective_op::ALLGATHER
        | collective_op::SCATTER
        | collective_op::GATHER => element_bytes(attr.datatype).ok_or(Error::NOT_SUPPORTED)?,
        _ => return Err(Error::NOT_SUPPORTED),
    };
    let count = (MAX_COLLECTIVE_BYTES as usize).checked_div(size).unwrap_or(0);
    attr.datatype_attr = FiAtomicAttr { count, size };
    attr.max_members = MAX_COLLECTIVE_MEMBERS;
    Ok(())
}

/// What a call does, before its root is known by rank.
#[derive(Clone, Copy)]
enum Kind {
    Barrier,
    Broadcast,
    AllToAll,
    AllReduce(Combination),
    AllGather,
    ReduceScatter(Combination),
    Reduce(Combination),
    Scatter,
    Gather,
}

impl Kind {
    /// The operation with the root of this rank, if it has one.
    fn with_root(self, root: u32) -> CollectiveOperation {
        match self {
            Kind::Barrier => CollectiveOperation::Barrier,
            Kind::Broadcast => CollectiveOperation::Broadcast { root },
            Kind::AllToAll => CollectiveOperation::AllToAll,
            Kind::AllReduce(combination) => CollectiveOperation::AllReduce { combination },
            Kind::AllGather => CollectiveOperation::AllGather,
            Kind::ReduceScatter(combination) => CollectiveOperation::ReduceScatter { combination },
            Kind::Reduce(combination) => CollectiveOperation::Reduce { root, combination },
            Kind::Scatter => CollectiveOperation::Scatter { root },
            Kind::Gather => CollectiveOperation::Gather { root },
        }
    }
}

/// The arguments of a call.
struct Call {
    group: FiAddr,
    root: Option<FiAddr>,
    data: Option<UserBuffer>,
    result: Option<UserBuffer>,
    count: usize,
    datatype: c_int,
    /// Added to the default flags of the endpoint.
    flags: u64,
    context: usize,
}

impl Call {
    fn barrier(group: FiAddr, flags: u64, context: usize) -> Call {
        let (root, data, result, count, datatype) = (None, None, None, 0, 0);
        Call { group, root, data, result, count, datatype, flags, context }
    }

    /// Starts the operation. Returns the result of the call.
    fn post(self, endpoint: &EndpointHandle, kind: Result<Kind, Error>) -> isize {
        ssize_status(kind.and_then(|kind| self.try_post(endpoint, kind)))
    }

    fn try_post(self, endpoint: &EndpointHandle, kind: Kind) -> Result<usize, Error> {
        if self.flags & !COLLECTIVE_CALL_FLAGS != 0 {
            return Err(Error::BAD_FLAGS);
        }
        let group = group_at(self.group)?;
        let element_bytes = element_bytes(self.datatype).ok_or(Error::NOT_SUPPORTED)?;
        let block_bytes = self.count.checked_mul(element_bytes).ok_or(Error::MESSAGE_SIZE)? as u64;
        let (root, flags) = (self.root, Flags::Added(self.flags));
        endpoint.post(Side::Transmit, root.unwrap_or(ADDR_UNSPEC), self.context, flags, |posting| {
            let engine = posting.engine;
            let (rank, members) = engine.collective_group(group).ok_or(Error::BAD_STATE)?;
            let root = match (root, posting.peer) {
                (None, _) => 0,
                (Some(_), Some(peer)) => engine.collective_rank(group, peer).ok_or(Error::INVALID)?,
                (Some(_), None) => return Err(Error::INVALID),
            };
            let operation = kind.with_root(root);
            let shape = CollectiveShape { operation, block_bytes, rank, members };
            if !shape.is_valid() {
                return Err(Error::MESSAGE_SIZE); // type, operation and root are checked
            }
            let memory = |buffer: Option<UserBuffer>, bytes: u64| match buffer {
                Some(buffer) if bytes > 0 && buffer.is_null() => Err(Error::INVALID),
                Some(buffer) if bytes > 0 => Ok(buffer.memory(bytes as usize)),
                _ => Ok(UserMemory::EMPTY),
            };
            let data = memory(self.data, shape.data_bytes())?;
            let result = memory(self.result, shape.result_bytes())?;
            let is_awaited = false; // weir does not know what the program does until it reads the entry
            let arguments = CollectiveArguments { group, operation, block_bytes, data, result, is_awaited };
            engine.collective(posting.post, arguments)?;
            Ok(0)
        })
    }
}

/// The table of each endpoint.
pub static OPS: FiOpsCollective<EndpointHandle> = FiOpsCollective {
    size: size_of::<FiOpsCollective<EndpointHandle>>(),
    barrier,
    broadcast,
    alltoall,
    allreduce,
    allgather,
    reduce_scatter,
    reduce,
    scatter,
    gather,
    msg: not_implemented, // libfabric has no function that calls it
    barrier2,
};

extern "C" fn barrier(endpoint: &EndpointHandle, group: FiAddr, context: usize) -> isize {
    Call::barrier(group, 0, context).post(endpoint, Ok(Kind::Barrier))
}

extern "C" fn barrier2(endpoint: &EndpointHandle, group: FiAddr, flags: u64, context: usize) -> isize {
    Call::barrier(group, flags, context).post(endpoint, Ok(Kind::Barrier))
}

extern "C" fn broadcast(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    count: usize,
    _desc: Desc,
    group: FiAddr,
    root: FiAddr,
    datatype: c_int,
    flags: u64,
    context: usize,
) -> isize {
    let (root, data) = (Some(root), Some(buffer));
    Call { group, root, data, result: None, count, datatype, flags, context }
        .post(endpoint, Ok(Kind::Broadcast))
}

extern "C" fn alltoall(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    count: usize,
    _desc: Desc,
    result: UserBuffer,
    _result_desc: Desc,
    group: FiAddr,
    datatype: c_int,
    flags: u64,
    context: usize,
) -> isize {
    let (data, result) = (Some(buffer), Some(result));
    Call { group, root: None, data, result, count, datatype, flags, context }
        .post(endpoint, Ok(Kind::AllToAll))
}

extern "C" fn allreduce(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    count: usize,
    _desc: Desc,
    result: UserBuffer,
    _result_desc: Desc,
    group: FiAddr,
    datatype: c_int,
    operation: c_int,
    flags: u64,
    context: usize,
) -> isize {
    let (data, result) = (Some(buffer), Some(result));
    Call { group, root: None, data, result, count, datatype, flags, context }
        .post(endpoint, combination(datatype, operation).map(Kind::AllReduce))
}

extern "C" fn allgather(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    count: usize,
    _desc: Desc,
    result: UserBuffer,
    _result_desc: Desc,
    group: FiAddr,
    datatype: c_int,
    flags: u64,
    context: usize,
) -> isize {
    let (data, result) = (Some(buffer), Some(result));
    Call { group, root: None, data, result, count, datatype, flags, context }
        .post(endpoint, Ok(Kind::AllGather))
}

extern "C" fn reduce_scatter(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    count: usize,
    _desc: Desc,
    result: UserBuffer,
    _result_desc: Desc,
    group: FiAddr,
    datatype: c_int,
    operation: c_int,
    flags: u64,
    context: usize,
) -> isize {
    let (data, result) = (Some(buffer), Some(result));
    Call { group, root: None, data, result, count, datatype, flags, context }
        .post(endpoint, combination(datatype, operation).map(Kind::ReduceScatter))
}

extern "C" fn reduce(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    count: usize,
    _desc: Desc,
    result: UserBuffer,
    _result_desc: Desc,
    group: FiAddr,
    root: FiAddr,
    datatype: c_int,
    operation: c_int,
    flags: u64,
    context: usize,
) -> isize {
    let (root, data, result) = (Some(root), Some(buffer), Some(result));
    Call { group, root, data, result, count, datatype, flags, context }
        .post(endpoint, combination(datatype, operation).map(Kind::Reduce))
}

extern "C" fn scatter(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    count: usize,
    _desc: Desc,
    result: UserBuffer,
    _result_desc: Desc,
    group: FiAddr,
    root: FiAddr,
    datatype: c_int,
    flags: u64,
    context: usize,
) -> isize {
    let (root, data, result) = (Some(root), Some(buffer), Some(result));
    Call { group, root, data, result, count, datatype, flags, context }.post(endpoint, Ok(Kind::Scatter))
}

extern "C" fn gather(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    count: usize,
    _desc: Desc,
    result: UserBuffer,
    _result_desc: Desc,
    group: FiAddr,
    root: FiAddr,
    datatype: c_int,
    flags: u64,
    context: usize,
) -> isize {
    let (root, data, result) = (Some(root), Some(buffer), Some(result));
    Call { group, root, data, result, count, datatype, flags, context }.post(endpoint, Ok(Kind::Gather))
}
