//! Remote reads and writes (`fi_rma`): each call becomes one operation of the engine. A write completes when its data
//! is in the target's memory, for every completion level.

use weir_engine::RemoteArguments;
use weir_link::memory::UserMemory;

use crate::endpoint_handle::EndpointHandle;
use crate::errno::{Error, ssize_status};
use crate::ffi::*;
use crate::limits::SEND_CALL_FLAGS;
use crate::message::{data_of, message_parts, scattered};
use crate::state::completion::Side;
use crate::state::endpoint::Flags;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// The arguments of a remote operation.
struct Remote {
    direction: Direction,
    memory: UserMemory,
    peer: FiAddr,
    offset: u64,
    key: u64,
    data: Option<u64>,
    context: usize,
    flags: Flags,
}

impl Remote {
    /// A read or write with the endpoint's default flags.
    fn plain(
        direction: Direction,
        memory: UserMemory,
        peer: FiAddr,
        offset: u64,
        key: u64,
        context: usize,
    ) -> Remote {
        Remote { direction, memory, peer, offset, key, data: None, context, flags: Flags::Default }
    }

    /// Posts the operation. Returns the result of the call.
    fn post(self, endpoint: &EndpointHandle) -> isize {
        let Remote { direction, memory, peer, offset, key, data, context, flags } = self;
        ssize_status(endpoint.post(Side::Transmit, peer, context, flags, |posting| {
            let peer = posting.peer.ok_or(Error::INVALID)?;
            let inject = posting.flags & flags::INJECT != 0;
            let arguments = RemoteArguments { peer, key, offset, memory, data, inject };
            match direction {
                Direction::Read => posting.engine.read(posting.post, arguments)?,
                Direction::Write => posting.engine.write(posting.post, arguments)?,
            }
            Ok(0)
        }))
    }

    /// A `*msg` call, with one remote piece (`rma_iov_limit`).
    fn from_message(direction: Direction, message: &FiMsgRma, flags: u64) -> Result<Remote, Error> {
        let target = match message.rma_iov_count {
            1 => inner(message.rma_iov).ok_or(Error::INVALID)?,
            _ => return Err(Error::INVALID),
        };
        let (memory, call_flags) = message_parts(message.msg_iov, message.iov_count, flags, SEND_CALL_FLAGS)?;
        Ok(Remote {
            direction,
            memory,
            peer: message.addr,
            offset: target.addr,
            key: target.key,
            data: data_of(flags, message.data),
            context: message.context,
            flags: call_flags,
        })
    }
}

/// The table of each endpoint.
pub static OPS: FiOpsRma<EndpointHandle> = FiOpsRma {
    size: size_of::<FiOpsRma<EndpointHandle>>(),
    read,
    readv,
    readmsg,
    write,
    writev,
    writemsg,
    inject,
    writedata,
    injectdata,
};

extern "C" fn read(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    bytes: usize,
    _desc: Desc,
    from: FiAddr,
    offset: u64,
    key: u64,
    context: usize,
) -> isize {
    Remote::plain(Direction::Read, buffer.memory(bytes), from, offset, key, context).post(endpoint)
}

extern "C" fn readv(
    endpoint: &EndpointHandle,
    pieces: UserVector,
    _desc: Desc,
    count: usize,
    from: FiAddr,
    offset: u64,
    key: u64,
    context: usize,
) -> isize {
    match scattered(pieces, count) {
        Ok(memory) => Remote::plain(Direction::Read, memory, from, offset, key, context).post(endpoint),
        Err(error) => error.code() as isize,
    }
}

extern "C" fn readmsg(endpoint: &EndpointHandle, message: &FiMsgRma, flags: u64) -> isize {
    match Remote::from_message(Direction::Read, message, flags) {
        Ok(remote) => remote.post(endpoint),
        Err(error) => error.code() as isize,
    }
}

extern "C" fn write(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    bytes: usize,
    _desc: Desc,
    to: FiAddr,
    offset: u64,
    key: u64,
    context: usize,
) -> isize {
    Remote::plain(Direction::Write, buffer.memory(bytes), to, offset, key, context).post(endpoint)
}

extern "C" fn writev(
    endpoint: &EndpointHandle,
    pieces: UserVector,
    _desc: Desc,
    count: usize,
    to: FiAddr,
    offset: u64,
    key: u64,
    context: usize,
) -> isize {
    match scattered(pieces, count) {
        Ok(memory) => Remote::plain(Direction::Write, memory, to, offset, key, context).post(endpoint),
        Err(error) => error.code() as isize,
    }
}

extern "C" fn writemsg(endpoint: &EndpointHandle, message: &FiMsgRma, flags: u64) -> isize {
    match Remote::from_message(Direction::Write, message, flags) {
        Ok(remote) => remote.post(endpoint),
        Err(error) => error.code() as isize,
    }
}

extern "C" fn inject(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    bytes: usize,
    to: FiAddr,
    offset: u64,
    key: u64,
) -> isize {
    let plain = Remote::plain(Direction::Write, buffer.memory(bytes), to, offset, key, 0);
    Remote { flags: Flags::Inject, ..plain }.post(endpoint)
}

extern "C" fn writedata(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    bytes: usize,
    _desc: Desc,
    data: u64,
    to: FiAddr,
    offset: u64,
    key: u64,
    context: usize,
) -> isize {
    let plain = Remote::plain(Direction::Write, buffer.memory(bytes), to, offset, key, context);
    Remote { data: Some(data), ..plain }.post(endpoint)
}

extern "C" fn injectdata(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    bytes: usize,
    data: u64,
    to: FiAddr,
    offset: u64,
    key: u64,
) -> isize {
    let plain = Remote::plain(Direction::Write, buffer.memory(bytes), to, offset, key, 0);
    Remote { data: Some(data), flags: Flags::Inject, ..plain }.post(endpoint)
}
