//! Messages with tags (`fi_tagged`): the hot path of MPI. [`crate::message`] has the part that untagged messages share.

use weir_link::memory::UserMemory;
use weir_proto::Space;

use crate::endpoint_handle::EndpointHandle;
use crate::ffi::*;
use crate::limits::{RECEIVE_CALL_FLAGS, SEND_CALL_FLAGS};
use crate::message::{Receive, Send, data_of, message_parts, scattered};
use crate::state::endpoint::Flags;

/// The table of each endpoint.
pub static OPS: FiOpsTagged<EndpointHandle> = FiOpsTagged {
    size: size_of::<FiOpsTagged<EndpointHandle>>(),
    recv,
    recvv,
    recvmsg,
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
};

/// A send without an entry, whose buffer belongs to the program again on return.
fn injected(memory: UserMemory, to: FiAddr, tag: u64, data: Option<u64>) -> Send {
    Send { space: Space::Tagged, memory, to, tag, data, context: 0, flags: Flags::Inject }
}

/// A send with the endpoint's default flags.
fn plain_send(memory: UserMemory, to: FiAddr, tag: u64, data: Option<u64>, context: usize) -> Send {
    Send { space: Space::Tagged, memory, to, tag, data, context, flags: Flags::Default }
}

/// A receive with the endpoint's default flags.
fn plain_receive(memory: UserMemory, from: FiAddr, tag: u64, ignore: u64, context: usize) -> Receive {
    Receive { space: Space::Tagged, memory, from, tag, ignore, context, flags: Flags::Default }
}

extern "C" fn recv(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    bytes: usize,
    _desc: Desc,
    from: FiAddr,
    tag: u64,
    ignore: u64,
    context: usize,
) -> isize {
    plain_receive(buffer.memory(bytes), from, tag, ignore, context).post(endpoint)
}

extern "C" fn recvv(
    endpoint: &EndpointHandle,
    pieces: UserVector,
    _desc: Desc,
    count: usize,
    from: FiAddr,
    tag: u64,
    ignore: u64,
    context: usize,
) -> isize {
    match scattered(pieces, count) {
        Ok(memory) => plain_receive(memory, from, tag, ignore, context).post_out_of_line(endpoint),
        Err(error) => error.code() as isize,
    }
}

extern "C" fn recvmsg(endpoint: &EndpointHandle, message: &FiMsgTagged, flags: u64) -> isize {
    let &FiMsgTagged { msg_iov, iov_count, addr, tag, ignore, context, .. } = message;
    match message_parts(msg_iov, iov_count, flags, RECEIVE_CALL_FLAGS) {
        Ok((memory, flags)) => {
            Receive { space: Space::Tagged, memory, from: addr, tag, ignore, context, flags }
                .post_out_of_line(endpoint)
        }
        Err(error) => error.code() as isize,
    }
}

extern "C" fn send(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    bytes: usize,
    _desc: Desc,
    to: FiAddr,
    tag: u64,
    context: usize,
) -> isize {
    plain_send(buffer.memory(bytes), to, tag, None, context).post(endpoint)
}

extern "C" fn sendv(
    endpoint: &EndpointHandle,
    pieces: UserVector,
    _desc: Desc,
    count: usize,
    to: FiAddr,
    tag: u64,
    context: usize,
) -> isize {
    match scattered(pieces, count) {
        Ok(memory) => plain_send(memory, to, tag, None, context).post_out_of_line(endpoint),
        Err(error) => error.code() as isize,
    }
}

extern "C" fn sendmsg(endpoint: &EndpointHandle, message: &FiMsgTagged, flags: u64) -> isize {
    let &FiMsgTagged { msg_iov, iov_count, addr, tag, context, data, .. } = message;
    let data = data_of(flags, data);
    match message_parts(msg_iov, iov_count, flags, SEND_CALL_FLAGS) {
        Ok((memory, flags)) => Send { space: Space::Tagged, memory, to: addr, tag, data, context, flags }
            .post_out_of_line(endpoint),
        Err(error) => error.code() as isize,
    }
}

extern "C" fn inject(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    bytes: usize,
    to: FiAddr,
    tag: u64,
) -> isize {
    injected(buffer.memory(bytes), to, tag, None).post(endpoint)
}

extern "C" fn senddata(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    bytes: usize,
    _desc: Desc,
    data: u64,
    to: FiAddr,
    tag: u64,
    context: usize,
) -> isize {
    plain_send(buffer.memory(bytes), to, tag, Some(data), context).post(endpoint)
}

extern "C" fn injectdata(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    bytes: usize,
    data: u64,
    to: FiAddr,
    tag: u64,
) -> isize {
    injected(buffer.memory(bytes), to, tag, Some(data)).post(endpoint)
}
