//! Messages without tags (`fi_msg`), and the common part of all messages. [`Send`] and [`Receive`] turn a call into an
//! operation of the engine, with peeks and claims, for tagged messages too. [`scattered`] and [`message_parts`] read
//! the buffers and flags of a call, also for other calls of the provider.

use weir_engine::SendArguments;
use weir_link::memory::UserMemory;
use weir_proto::{Pattern, PeekThen, Space};

use crate::endpoint_handle::EndpointHandle;
use crate::errno::{Error, ssize_status};
use crate::ffi::*;
use crate::limits::{IOV_LIMIT, RECEIVE_CALL_FLAGS, SEND_CALL_FLAGS};
use crate::marks;
use crate::state::completion::{Side, UNTAGGED_CLAIM};
use crate::state::domain_state::State;
use crate::state::endpoint::{Flags, Posting};

/// The arguments of a send, tagged or not.
pub struct Send {
    /// Tagged or not.
    pub space: Space,
    /// The payload.
    pub memory: UserMemory,
    /// The receiver.
    pub to: FiAddr,
    /// Tag.
    pub tag: u64,
    /// Remote completion data.
    pub data: Option<u64>,
    /// The program's context.
    pub context: usize,
    /// Flags.
    pub flags: Flags,
}

impl Send {
    /// Posts the send. Returns the result of the call. It is inlined in the calls that MPI libraries use most, where
    /// the flags are known and no argument is moved.
    #[inline(always)]
    pub fn post(self, endpoint: &EndpointHandle) -> isize {
        let mut state = endpoint.enter();
        let result = self.submit(endpoint, &mut state);
        state.after_post(&result);
        ssize_status(result)
    }

    #[inline(always)]
    fn submit(self, endpoint: &EndpointHandle, state: &mut State) -> Result<usize, Error> {
        let Send { space, memory, to, tag, data, context, flags } = self;
        let posting = endpoint.prepare(state, Side::Transmit, to, context, flags)?;
        let to = posting.peer.ok_or(Error::INVALID)?;
        let inject = posting.flags & flags::INJECT != 0;
        let level = posting.level();
        let arguments = SendArguments { to, space, tag, data, level, memory, inject };
        let Posting { engine, post, mut cq_writer, .. } = posting;
        engine.send_with_sink(post, arguments, &mut cq_writer)?;
        Ok(0)
    }

    /// [`Send::post`] for rarely used calls.
    #[inline(never)]
    pub fn post_out_of_line(self, endpoint: &EndpointHandle) -> isize {
        self.post(endpoint)
    }
}

/// The arguments of a receive or a peek, tagged or not.
pub struct Receive {
    /// Tagged or not.
    pub space: Space,
    /// The buffer.
    pub memory: UserMemory,
    /// The sender. [`ADDR_UNSPEC`]: any.
    pub from: FiAddr,
    /// Wanted tag.
    pub tag: u64,
    /// Bits of the tag that are ignored.
    pub ignore: u64,
    /// The program's context.
    pub context: usize,
    /// Flags.
    pub flags: Flags,
}

impl Receive {
    /// Posts the receive, peek, claim or discard. Returns the result of the call.
    ///
    /// A peek for a message from any sender finds it at once, as `fi_tagged(3)` wants, unless the call has `FI_COMPLETION`.
    /// With this flag it reports a message only when it sees it for the second time. The reason is MPICH, which gives the
    /// flag, and does not give messages of a process to itself to the provider. `MPI_Probe` with `MPI_ANY_SOURCE`
    /// asks the provider before it looks at those. But the receive that follows prefers them, so it can get another
    /// message than the probe reported. MPICH's own `MPI_Dist_graph_create` fails then. Between two peeks MPICH looks
    /// at its own messages.
    ///
    /// So a single peek of this kind says `FI_ENOMSG` although a message is there. The provider cannot tell MPICH from
    /// others that give the flag, as Open MPI does. A program that repeats its peek, as `MPI_Iprobe` requires, loses one
    /// look. Peeks from one sender, and those that claim or discard, always report at once: no later receive can get
    /// another message.
    ///
    /// A message that `FI_PEEK | FI_CLAIM` found is identified by the context of that call. A later `FI_CLAIM` uses
    /// only the context. If several messages were claimed with one context, it gets the first of them.
    #[inline(always)]
    pub fn post(self, endpoint: &EndpointHandle) -> isize {
        let mut state = endpoint.enter();
        let result = self.submit(endpoint, &mut state);
        state.after_post(&result);
        ssize_status(result)
    }

    #[inline(always)]
    fn submit(self, endpoint: &EndpointHandle, state: &mut State) -> Result<usize, Error> {
        let Receive { space, memory, from, tag, ignore, context, flags } = self;
        let posting = endpoint.prepare(state, Side::Receive, from, context, flags)?;
        let Posting { engine, post, flags, peer, min_multi_recv, claims, mut cq_writer } = posting;
        if flags & (flags::PEEK | flags::CLAIM) != 0 {
            // Arguments made here are in memory in this case only.
            let posting = Posting { engine, post, flags, peer, min_multi_recv, claims, cq_writer };
            let result = peek_or_claim(posting, Pattern { space, from: peer, tag, ignore }, memory, context);
            note_probe(state, endpoint.index, from);
            return result;
        }
        let pattern = Pattern { space, from: peer, tag, ignore };
        let multi = (flags & flags::MULTI_RECV != 0).then_some(min_multi_recv);
        engine.receive_with_sink(post, pattern, memory, multi, &mut cq_writer)?;
        Ok(0)
    }

    /// [`Receive::post`] for rarely used calls.
    #[inline(never)]
    pub fn post_out_of_line(self, endpoint: &EndpointHandle) -> isize {
        self.post(endpoint)
    }
}

/// Notes whose message was looked for ([`crate::marks`]).
fn note_probe(state: &State, endpoint: usize, from: FiAddr) {
    if from != ADDR_UNSPEC
        && let Some(vector) = state.endpoints[endpoint].vector
    {
        marks::note_probe(state.vectors[vector].is_marked(from));
    }
}

/// A peek, or the receive or discard of a claimed message.
#[inline(never)]
fn peek_or_claim(
    posting: Posting,
    pattern: Pattern,
    memory: UserMemory,
    context: usize,
) -> Result<usize, Error> {
    let flag = |bit| posting.flags & bit != 0;
    if flag(flags::PEEK) {
        let then = match (flag(flags::CLAIM), flag(flags::DISCARD)) {
            (true, _) => PeekThen::Claim,
            (false, true) => PeekThen::Discard,
            (false, false) if pattern.from.is_none() && flag(flags::COMPLETION) => {
                PeekThen::LeaveUntilSeenTwice
            }
            (false, false) => PeekThen::Leave,
        };
        posting.engine.peek(posting.post, pattern, then)?;
    } else {
        let message = posting.claims.first(context).ok_or(Error::INVALID)?;
        let mut post = posting.post;
        if pattern.space == Space::Untagged {
            post.cookie |= UNTAGGED_CLAIM;
        }
        match flag(flags::DISCARD) {
            true => posting.engine.discard_claimed(post, message)?,
            false => posting.engine.receive_claimed(post, message, memory)?,
        }
        posting.claims.remove_first(context);
    }
    posting.engine.wake_watcher_for_completions();
    Ok(0)
}

/// The scattered buffer of a call.
///
/// # Errors
/// More pieces than [`IOV_LIMIT`].
#[inline]
pub fn scattered(pieces: UserVector, count: usize) -> Result<UserMemory, Error> {
    if count > IOV_LIMIT { Err(Error::INVALID) } else { Ok(pieces.memory(count)) }
}

/// The scattered buffer and the flags of a `*msg` call. `known`: the flags that the provider knows for this call.
///
/// # Errors
/// Those of [`scattered`]; [`Error::BAD_FLAGS`] for other flags. `FI_FENCE` is one: nothing here waits for the end of
/// earlier operations.
pub fn message_parts(
    pieces: UserVector,
    count: usize,
    flags: u64,
    known: u64,
) -> Result<(UserMemory, Flags), Error> {
    if flags & !known != 0 {
        return Err(Error::BAD_FLAGS);
    }
    Ok((scattered(pieces, count)?, Flags::Given(flags)))
}

/// The data that a `*msg` call sends, if its flags request it.
#[inline]
pub fn data_of(flags: u64, data: u64) -> Option<u64> {
    (flags & flags::REMOTE_CQ_DATA != 0).then_some(data)
}

fn send_untagged(
    endpoint: &EndpointHandle,
    memory: UserMemory,
    to: FiAddr,
    data: Option<u64>,
    context: usize,
    flags: Flags,
) -> isize {
    Send { space: Space::Untagged, memory, to, tag: 0, data, context, flags }.post_out_of_line(endpoint)
}

fn receive_untagged(
    endpoint: &EndpointHandle,
    memory: UserMemory,
    from: FiAddr,
    context: usize,
    flags: Flags,
) -> isize {
    Receive { space: Space::Untagged, memory, from, tag: 0, ignore: 0, context, flags }
        .post_out_of_line(endpoint)
}

/// The table of each endpoint.
pub static OPS: FiOpsMsg<EndpointHandle> = FiOpsMsg {
    size: size_of::<FiOpsMsg<EndpointHandle>>(),
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

extern "C" fn recv(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    bytes: usize,
    _desc: Desc,
    from: FiAddr,
    context: usize,
) -> isize {
    receive_untagged(endpoint, buffer.memory(bytes), from, context, Flags::Default)
}

extern "C" fn recvv(
    endpoint: &EndpointHandle,
    pieces: UserVector,
    _desc: Desc,
    count: usize,
    from: FiAddr,
    context: usize,
) -> isize {
    match scattered(pieces, count) {
        Ok(memory) => receive_untagged(endpoint, memory, from, context, Flags::Default),
        Err(error) => error.code() as isize,
    }
}

extern "C" fn recvmsg(endpoint: &EndpointHandle, message: &FiMsg, flags: u64) -> isize {
    match message_parts(message.msg_iov, message.iov_count, flags, RECEIVE_CALL_FLAGS) {
        Ok((memory, flags)) => receive_untagged(endpoint, memory, message.addr, message.context, flags),
        Err(error) => error.code() as isize,
    }
}

extern "C" fn send(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    bytes: usize,
    _desc: Desc,
    to: FiAddr,
    context: usize,
) -> isize {
    send_untagged(endpoint, buffer.memory(bytes), to, None, context, Flags::Default)
}

extern "C" fn sendv(
    endpoint: &EndpointHandle,
    pieces: UserVector,
    _desc: Desc,
    count: usize,
    to: FiAddr,
    context: usize,
) -> isize {
    match scattered(pieces, count) {
        Ok(memory) => send_untagged(endpoint, memory, to, None, context, Flags::Default),
        Err(error) => error.code() as isize,
    }
}

extern "C" fn sendmsg(endpoint: &EndpointHandle, message: &FiMsg, flags: u64) -> isize {
    let data = data_of(flags, message.data);
    match message_parts(message.msg_iov, message.iov_count, flags, SEND_CALL_FLAGS) {
        Ok((memory, flags)) => send_untagged(endpoint, memory, message.addr, data, message.context, flags),
        Err(error) => error.code() as isize,
    }
}

extern "C" fn inject(endpoint: &EndpointHandle, buffer: UserBuffer, bytes: usize, to: FiAddr) -> isize {
    send_untagged(endpoint, buffer.memory(bytes), to, None, 0, Flags::Inject)
}

extern "C" fn senddata(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    bytes: usize,
    _desc: Desc,
    data: u64,
    to: FiAddr,
    context: usize,
) -> isize {
    send_untagged(endpoint, buffer.memory(bytes), to, Some(data), context, Flags::Default)
}

extern "C" fn injectdata(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    bytes: usize,
    data: u64,
    to: FiAddr,
) -> isize {
    send_untagged(endpoint, buffer.memory(bytes), to, Some(data), 0, Flags::Inject)
}
