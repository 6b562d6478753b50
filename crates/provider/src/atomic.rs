//! Remote atomics (`fi_atomic`): each call becomes one operation of the engine. It completes when the words in the target's
//! memory have changed, for every completion level.
//!
//! Supported are 32 and 64-bit integers, `float` and `double`, with all operations that libfabric has for them. A vector
//! has at most [`MAX_ATOMIC_BYTES`] bytes, in one piece of the target's memory. There is no completion data.

use std::ffi::c_int;

use weir_engine::AtomicVector;
use weir_link::memory::UserMemory;
use weir_proto::offload::atomics::MAX_ATOMIC_BYTES;
use weir_proto::offload::{Combination, WordOperation};

use crate::data_type::{word_operation, word_type};
use crate::endpoint_handle::EndpointHandle;
use crate::errno::{Error, ssize_status, status};
use crate::ffi::*;
use crate::limits::{ATOMIC_CALL_FLAGS, IOV_LIMIT};
use crate::state::completion::Side;
use crate::state::endpoint::Flags;

/// A family of calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    /// `fi_atomic`.
    Base,
    /// `fi_fetch_atomic`.
    Fetch,
    /// `fi_compare_atomic`.
    Compare,
}

/// Operation and type of a call of `family`.
///
/// # Errors
/// [`Error::NOT_SUPPORTED`].
fn combination(family: Family, datatype: c_int, operation: c_int) -> Result<Combination, Error> {
    let (word_type, operation) =
        word_type(datatype).zip(word_operation(operation)).ok_or(Error::NOT_SUPPORTED)?;
    let in_family = match family {
        Family::Base => !operation.compares() && operation != WordOperation::Read,
        Family::Fetch => !operation.compares(),
        Family::Compare => operation.compares(),
    };
    match in_family && operation.has_type(word_type) {
        true => Ok(Combination { operation, word_type }),
        false => Err(Error::NOT_SUPPORTED),
    }
}

/// The most words of a call.
fn most_words(combination: Combination) -> usize {
    (MAX_ATOMIC_BYTES / combination.word_type.bytes()) as usize
}

/// Words of the program: a buffer with a count, or a vector of such. Absent: NULL, where the call has no such argument.
#[derive(Clone, Copy)]
enum Words {
    Absent,
    Buffer(UserBuffer, usize),
    Vector(UserWords, usize),
}

impl Words {
    /// The memory, and the number of words.
    ///
    /// # Errors
    /// Too many words or pieces.
    fn memory(self, combination: Combination) -> Result<(UserMemory, usize), Error> {
        let word_bytes = combination.word_type.bytes() as usize;
        let count = match self {
            Words::Absent => 0,
            Words::Buffer(_, count) => count,
            Words::Vector(_, pieces) if pieces > IOV_LIMIT => return Err(Error::INVALID),
            Words::Vector(words, pieces) => words.count(pieces),
        };
        if count > most_words(combination) {
            return Err(Error::MESSAGE_SIZE);
        }
        let memory = match self {
            Words::Absent => UserMemory::EMPTY,
            Words::Buffer(buffer, count) => buffer.memory(count * word_bytes),
            Words::Vector(words, pieces) => words.memory(pieces, word_bytes),
        };
        Ok((memory, count))
    }
}

/// The words in the target's memory.
#[derive(Clone, Copy)]
struct Target {
    peer: FiAddr,
    offset: u64,
    key: u64,
    /// Their number, where the call names it.
    count: Option<usize>,
}

/// The arguments of a call.
struct Call {
    family: Family,
    datatype: c_int,
    operation: c_int,
    operands: Words,
    compare: Words,
    result: Words,
    target: Target,
    context: usize,
    flags: Flags,
}

impl Call {
    /// A call of `fi_atomic` with the endpoint's default flags.
    fn new(target: Target, (datatype, operation): (c_int, c_int), operands: Words, context: usize) -> Call {
        let (family, absent) = (Family::Base, Words::Absent);
        let flags = Flags::Default;
        Call {
            family,
            datatype,
            operation,
            operands,
            compare: absent,
            result: absent,
            target,
            context,
            flags,
        }
    }

    /// It fetches the old words.
    fn fetch(self, result: Words) -> Call {
        Call { family: Family::Fetch, result, ..self }
    }

    /// It compares, and fetches the old words.
    fn compare(self, compare: Words, result: Words) -> Call {
        Call { family: Family::Compare, compare, result, ..self }
    }

    /// A `*msg` call, with one remote piece.
    fn of_message(message: &FiMsgAtomic, flags: u64) -> Result<Call, Error> {
        if flags & !ATOMIC_CALL_FLAGS != 0 {
            return Err(Error::BAD_FLAGS);
        }
        let remote = match message.rma_iov_count {
            1 => inner(message.rma_iov).ok_or(Error::INVALID)?,
            _ => return Err(Error::INVALID),
        };
        let target =
            Target { peer: message.addr, offset: remote.addr, key: remote.key, count: Some(remote.count) };
        let operands = Words::Vector(message.msg_iov, message.iov_count);
        let call = Call::new(target, (message.datatype, message.op), operands, message.context);
        Ok(Call { flags: Flags::Given(flags), ..call })
    }

    /// Posts the operation. Returns the result of the call.
    fn post(self, endpoint: &EndpointHandle) -> isize {
        ssize_status(self.try_post(endpoint))
    }

    fn try_post(self, endpoint: &EndpointHandle) -> Result<usize, Error> {
        let combination = combination(self.family, self.datatype, self.operation)?;
        let is_read = combination.operation == WordOperation::Read;
        // A read has no operands, and may give their number or none.
        let operands = match is_read {
            true => (UserMemory::EMPTY, None),
            false => self.operands.memory(combination).map(|(memory, count)| (memory, Some(count)))?,
        };
        let compare = self.compare.memory(combination)?;
        let result = self.result.memory(combination)?;
        let count = if self.family == Family::Base { operands.1.unwrap_or(0) } else { result.1 };
        let counts = [
            operands.1,
            (self.family == Family::Compare).then_some(compare.1),
            (self.family != Family::Base).then_some(result.1),
            self.target.count,
        ];
        if count == 0 || counts.into_iter().flatten().any(|other| other != count) {
            return Err(Error::INVALID);
        }
        let Target { peer, offset, key, .. } = self.target;
        let result = (self.family != Family::Base).then_some(result.0);
        endpoint.post(Side::Transmit, peer, self.context, self.flags, |posting| {
            let vector = AtomicVector {
                peer: posting.peer.ok_or(Error::INVALID)?,
                key,
                offset,
                combination,
                bytes: count as u32 * combination.word_type.bytes(),
                operands: operands.0,
                compare: compare.0,
                result,
                inject: posting.flags & flags::INJECT != 0,
            };
            posting.engine.atomic_vector(posting.post, vector)?;
            Ok(0)
        })
    }
}

/// Posts a `*msg` call, if its message is valid.
fn post_message(endpoint: &EndpointHandle, call: Result<Call, Error>) -> isize {
    ssize_status(call.and_then(|call| call.try_post(endpoint)))
}

fn valid(family: Family, datatype: c_int, operation: c_int, mut count: Out<usize>) -> c_int {
    status(combination(family, datatype, operation).map(|combination| count.set(most_words(combination))))
}

/// `fi_query_atomic`, which is the same for all domains. `flags`: the family.
pub fn query(datatype: c_int, operation: c_int, mut attr: Out<FiAtomicAttr>, flags: u64) -> c_int {
    let family = match flags {
        0 => Family::Base,
        flags::FETCH_ATOMIC => Family::Fetch,
        flags::COMPARE_ATOMIC => Family::Compare,
        _ => return Error::BAD_FLAGS.code(),
    };
    status(combination(family, datatype, operation).map(|combination| {
        let size = combination.word_type.bytes() as usize;
        attr.set(FiAtomicAttr { count: most_words(combination), size });
    }))
}

/// The table of each endpoint.
pub static OPS: FiOpsAtomic<EndpointHandle> = FiOpsAtomic {
    size: size_of::<FiOpsAtomic<EndpointHandle>>(),
    write,
    writev,
    writemsg,
    inject,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
};

extern "C" fn write(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    count: usize,
    _desc: Desc,
    peer: FiAddr,
    offset: u64,
    key: u64,
    datatype: c_int,
    operation: c_int,
    context: usize,
) -> isize {
    let target = Target { peer, offset, key, count: None };
    Call::new(target, (datatype, operation), Words::Buffer(buffer, count), context).post(endpoint)
}

extern "C" fn writev(
    endpoint: &EndpointHandle,
    words: UserWords,
    _desc: Desc,
    pieces: usize,
    peer: FiAddr,
    offset: u64,
    key: u64,
    datatype: c_int,
    operation: c_int,
    context: usize,
) -> isize {
    let target = Target { peer, offset, key, count: None };
    Call::new(target, (datatype, operation), Words::Vector(words, pieces), context).post(endpoint)
}

extern "C" fn writemsg(endpoint: &EndpointHandle, message: &FiMsgAtomic, flags: u64) -> isize {
    post_message(endpoint, Call::of_message(message, flags))
}

extern "C" fn inject(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    count: usize,
    peer: FiAddr,
    offset: u64,
    key: u64,
    datatype: c_int,
    operation: c_int,
) -> isize {
    let target = Target { peer, offset, key, count: None };
    let call = Call::new(target, (datatype, operation), Words::Buffer(buffer, count), 0);
    Call { flags: Flags::Inject, ..call }.post(endpoint)
}

extern "C" fn readwrite(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    count: usize,
    _desc: Desc,
    result: UserBuffer,
    _result_desc: Desc,
    peer: FiAddr,
    offset: u64,
    key: u64,
    datatype: c_int,
    operation: c_int,
    context: usize,
) -> isize {
    let target = Target { peer, offset, key, count: None };
    Call::new(target, (datatype, operation), Words::Buffer(buffer, count), context)
        .fetch(Words::Buffer(result, count))
        .post(endpoint)
}

extern "C" fn readwritev(
    endpoint: &EndpointHandle,
    words: UserWords,
    _desc: Desc,
    pieces: usize,
    result: UserWords,
    _result_desc: Desc,
    result_pieces: usize,
    peer: FiAddr,
    offset: u64,
    key: u64,
    datatype: c_int,
    operation: c_int,
    context: usize,
) -> isize {
    let target = Target { peer, offset, key, count: None };
    Call::new(target, (datatype, operation), Words::Vector(words, pieces), context)
        .fetch(Words::Vector(result, result_pieces))
        .post(endpoint)
}

extern "C" fn readwritemsg(
    endpoint: &EndpointHandle,
    message: &FiMsgAtomic,
    result: UserWords,
    _result_desc: Desc,
    result_pieces: usize,
    flags: u64,
) -> isize {
    let result = Words::Vector(result, result_pieces);
    post_message(endpoint, Call::of_message(message, flags).map(|call| call.fetch(result)))
}

extern "C" fn compwrite(
    endpoint: &EndpointHandle,
    buffer: UserBuffer,
    count: usize,
    _desc: Desc,
    compare: UserBuffer,
    _compare_desc: Desc,
    result: UserBuffer,
    _result_desc: Desc,
    peer: FiAddr,
    offset: u64,
    key: u64,
    datatype: c_int,
    operation: c_int,
    context: usize,
) -> isize {
    let target = Target { peer, offset, key, count: None };
    Call::new(target, (datatype, operation), Words::Buffer(buffer, count), context)
        .compare(Words::Buffer(compare, count), Words::Buffer(result, count))
        .post(endpoint)
}

extern "C" fn compwritev(
    endpoint: &EndpointHandle,
    words: UserWords,
    _desc: Desc,
    pieces: usize,
    compare: UserWords,
    _compare_desc: Desc,
    compare_pieces: usize,
    result: UserWords,
    _result_desc: Desc,
    result_pieces: usize,
    peer: FiAddr,
    offset: u64,
    key: u64,
    datatype: c_int,
    operation: c_int,
    context: usize,
) -> isize {
    let target = Target { peer, offset, key, count: None };
    Call::new(target, (datatype, operation), Words::Vector(words, pieces), context)
        .compare(Words::Vector(compare, compare_pieces), Words::Vector(result, result_pieces))
        .post(endpoint)
}

extern "C" fn compwritemsg(
    endpoint: &EndpointHandle,
    message: &FiMsgAtomic,
    compare: UserWords,
    _compare_desc: Desc,
    compare_pieces: usize,
    result: UserWords,
    _result_desc: Desc,
    result_pieces: usize,
    flags: u64,
) -> isize {
    let compare = Words::Vector(compare, compare_pieces);
    let result = Words::Vector(result, result_pieces);
    post_message(endpoint, Call::of_message(message, flags).map(|call| call.compare(compare, result)))
}

extern "C" fn writevalid(
    _endpoint: &EndpointHandle,
    datatype: c_int,
    operation: c_int,
    count: Out<usize>,
) -> c_int {
    valid(Family::Base, datatype, operation, count)
}

extern "C" fn readwritevalid(
    _endpoint: &EndpointHandle,
    datatype: c_int,
    operation: c_int,
    count: Out<usize>,
) -> c_int {
    valid(Family::Fetch, datatype, operation, count)
}

extern "C" fn compwritevalid(
    _endpoint: &EndpointHandle,
    datatype: c_int,
    operation: c_int,
    count: Out<usize>,
) -> c_int {
    valid(Family::Compare, datatype, operation, count)
}
