//! The functions that programs call instead of the MPI's: each chooses, performs in a group, or passes the call on.
//!
//! A handle arrives as a `usize`, whatever the binary interface makes of it. Arguments that only the caller's own rank can
//! have wrong, such as a null pointer, go to the MPI, which reports them before any message leaves.
//!
//! Fortran: the bindings of Intel MPI call the C functions here, after they have translated handles and `MPI_IN_PLACE`. Bindings
//! that call `PMPI_` functions stay with the MPI.

use crate::abi::Abi;
use crate::choice;
use crate::communicators;
use crate::member::Communicator;
use crate::mpi::{Mpi, mpi};
use std::ffi::c_int;
use std::sync::Arc;
use weir_link::shm::node_group::Operation;
use weir_proto::offload::reduce::Vector;

/// `MPI_ERR_COUNT`, which has one value in all binary interfaces.
const ERR_COUNT: c_int = 2;

/// A vector up to this length is copied on the stack, if it lies where its result goes. Unit: bytes.
const SHORT_BYTES: usize = 128;

/// What the checks of a call find.
enum Taken<T> {
    /// The group does the call.
    Yes(T),
    /// The MPI does it.
    No,
    /// It has failed.
    Failed(c_int),
}

/// The communicator of a call that a group can do.
fn grouped(mpi: &Mpi, abi: &Abi, communicator: usize) -> Taken<Arc<Communicator>> {
    match communicators::grouped(mpi, abi, abi.handle(communicator)) {
        Ok(Some(communicator)) => Taken::Yes(communicator),
        Ok(None) => Taken::No,
        Err(error) => Taken::Failed(error),
    }
}

macro_rules! take {
    ($taken:expr) => {
        match $taken {
            Taken::Yes(value) => value,
            Taken::No => return None,
            Taken::Failed(error) => return Some(error),
        }
    };
}

/// Tries a barrier. `None`: the MPI does it. As the functions below.
fn barrier(mpi: &Mpi, communicator: usize) -> Option<c_int> {
    let abi = mpi.abi.as_ref()?;
    let communicator = take!(grouped(mpi, abi, communicator));
    let nothing = std::ptr::null_mut();
    // SAFETY: a barrier has no data.
    unsafe { communicator.perform(mpi, abi, "MPI_Barrier", Operation::Barrier, nothing, nothing) }
}

/// The arguments of a reduction.
struct Reduction {
    send: usize,
    receive: usize,
    count: i64,
    datatype: usize,
    operation: usize,
    communicator: usize,
}

impl Reduction {
    fn vector(&self, abi: &Abi) -> Option<Vector> {
        choice::vector(abi, self.count, abi.handle(self.datatype), abi.handle(self.operation))
    }

    /// The caller's vector and the place of its result. `None`: the MPI reports what is wrong.
    ///
    /// - `has_result`: this member gets the result.
    fn buffers(&self, abi: &Abi, has_result: bool) -> Option<(*const u8, *mut u8)> {
        let in_place = abi.constants.values.in_place;
        let from = if has_result && self.send == in_place { self.receive } else { self.send };
        let is_wrong = |buffer: usize| buffer == 0 || buffer == in_place;
        let result_is_wrong = has_result && (is_wrong(self.receive) || self.send == self.receive);
        (!is_wrong(from) && !result_is_wrong).then_some((from as *const u8, self.receive as *mut u8))
    }

    /// # Safety
    /// The buffers have as many elements as the caller of the MPI says.
    unsafe fn perform(
        &self,
        mpi: &Mpi,
        name: &str,
        operation: impl FnOnce(Vector, &Communicator) -> Option<Operation>,
    ) -> Option<c_int> {
        let abi = mpi.abi.as_ref()?;
        let vector = self.vector(abi)?;
        let communicator = take!(grouped(mpi, abi, self.communicator));
        let operation = operation(vector, &communicator)?;
        let has_result = operation.result_bytes(communicator.rank, communicator.members) > 0;
        let (from, result) = self.buffers(abi, has_result)?;
        let bytes = vector.bytes as usize;
        let overlaps = has_result && (from as usize).abs_diff(result as usize) < bytes;
        let (mut short, mut long) = ([0_u8; SHORT_BYTES], Vec::new());
        let data = match overlaps {
            false => from,
            true => {
                let copy = if bytes <= SHORT_BYTES {
                    short.as_mut_ptr()
                } else {
                    long.resize(bytes, 0);
                    long.as_mut_ptr()
                };
                // SAFETY: the caller's vector has as many bytes as the choice says, and so has the copy.
                unsafe { from.copy_to_nonoverlapping(copy, bytes) };
                copy
            }
        };
        // SAFETY: the caller's vectors have as many bytes as the choice says. They do not overlap, or one is a copy.
        unsafe { communicator.perform(mpi, abi, name, operation, data, result) }
    }

    /// # Safety
    /// As [`Reduction::perform`].
    unsafe fn to_all(&self, mpi: &Mpi) -> Option<c_int> {
        // SAFETY: as the caller promises.
        unsafe { self.perform(mpi, "MPI_Allreduce", |vector, _| Some(Operation::AllReduce(vector))) }
    }

    /// # Safety
    /// As [`Reduction::perform`].
    unsafe fn to_root(&self, mpi: &Mpi, root: c_int) -> Option<c_int> {
        let of = |vector, communicator: &Communicator| {
            let root = choice::root(root, communicator.members)?;
            Some(Operation::Reduce { root, vector })
        };
        // SAFETY: as the caller promises.
        unsafe { self.perform(mpi, "MPI_Reduce", of) }
    }
}

/// # Safety
/// The buffer has `count` elements of the datatype.
unsafe fn broadcast(
    mpi: &Mpi,
    buffer: usize,
    count: i64,
    datatype: usize,
    root: c_int,
    communicator: usize,
) -> Option<c_int> {
    let abi = mpi.abi.as_ref()?;
    let datatype = abi.handle(datatype);
    let facts = abi.datatype(datatype);
    let type_bytes = match facts {
        Some(facts) => facts.bytes as usize,
        None if count <= 0 || datatype == abi.constants.null_datatype => return None,
        None => {
            let mut bytes = 0;
            // SAFETY: the MPI's function, and a variable for the result.
            let status = unsafe { (mpi.functions.type_size)(datatype, &mut bytes) };
            usize::try_from(bytes).ok().filter(|_| status == 0)?
        }
    };
    let bytes = choice::broadcast(count, type_bytes)?;
    let communicator = take!(grouped(mpi, abi, communicator));
    let root = choice::root(root, communicator.members)?;
    let operation = Operation::Broadcast { root, bytes: bytes as u32 };
    // The root gets no result, the others give no data.
    let perform = |buffer: *mut u8| {
        // SAFETY: a buffer of `bytes` bytes, see below.
        unsafe { communicator.perform(mpi, abi, "MPI_Bcast", operation, buffer, buffer) }
    };
    if facts.is_some() {
        if buffer == 0 || buffer == abi.constants.values.in_place {
            return None;
        }
        return perform(buffer as *mut u8); // a datatype of the table has no gaps
    }
    // Another datatype: with gaps, or in another order. Another member may have the same signature without gaps, so this
    // one must not leave the call to the MPI.
    let is_root = communicator.rank == root;
    let mut packed = vec![0_u8; bytes];
    let (room, elements) = (bytes as c_int, count as c_int);
    let mut position = 0;
    // SAFETY: the MPI's functions; the caller's buffer has these elements, whose data has `bytes` bytes.
    unsafe {
        if is_root {
            let place = packed.as_mut_ptr();
            let pack = mpi.functions.pack;
            let status = pack(buffer, elements, datatype, place, room, &mut position, communicator.handle);
            if status != 0 {
                return Some(status);
            }
        }
        let status = perform(packed.as_mut_ptr())?;
        if status != 0 || is_root {
            return Some(status);
        }
        let unpack = mpi.functions.unpack;
        let place = packed.as_ptr();
        Some(unpack(place, room, &mut position, buffer, elements, datatype, communicator.handle))
    }
}

/// A count for a function without large counts.
fn small(count: i64) -> Result<c_int, c_int> {
    c_int::try_from(count).map_err(|_| ERR_COUNT)
}

/// `MPI_Barrier`
///
/// # Safety
/// As the standard says. So for the functions below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Barrier(communicator: usize) -> c_int {
    let mpi = mpi();
    // SAFETY: the caller's arguments, for the MPI. So below.
    barrier(mpi, communicator).unwrap_or_else(|| unsafe { (mpi.functions.barrier)(communicator) })
}

/// `MPI_Bcast`
///
/// # Safety
/// See [`MPI_Barrier`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Bcast(
    buffer: usize,
    count: c_int,
    datatype: usize,
    root: c_int,
    communicator: usize,
) -> c_int {
    let mpi = mpi();
    // SAFETY: the caller's arguments.
    unsafe {
        broadcast(mpi, buffer, count.into(), datatype, root, communicator)
            .unwrap_or_else(|| (mpi.functions.bcast)(buffer, count, datatype, root, communicator))
    }
}

/// `MPI_Bcast_c`
///
/// # Safety
/// See [`MPI_Barrier`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Bcast_c(
    buffer: usize,
    count: i64,
    datatype: usize,
    root: c_int,
    communicator: usize,
) -> c_int {
    let mpi = mpi();
    // SAFETY: the caller's arguments.
    unsafe {
        if let Some(status) = broadcast(mpi, buffer, count, datatype, root, communicator) {
            return status;
        }
        match (mpi.large.bcast, small(count)) {
            (Some(bcast), _) => bcast(buffer, count, datatype, root, communicator),
            (None, Ok(count)) => (mpi.functions.bcast)(buffer, count, datatype, root, communicator),
            (None, Err(error)) => error,
        }
    }
}

/// `MPI_Reduce`
///
/// # Safety
/// See [`MPI_Barrier`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Reduce(
    send: usize,
    receive: usize,
    count: c_int,
    datatype: usize,
    operation: usize,
    root: c_int,
    communicator: usize,
) -> c_int {
    let mpi = mpi();
    let call = Reduction { send, receive, count: count.into(), datatype, operation, communicator };
    // SAFETY: the caller's arguments.
    unsafe {
        call.to_root(mpi, root).unwrap_or_else(|| {
            (mpi.functions.reduce)(send, receive, count, datatype, operation, root, communicator)
        })
    }
}

/// `MPI_Reduce_c`
///
/// # Safety
/// See [`MPI_Barrier`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Reduce_c(
    send: usize,
    receive: usize,
    count: i64,
    datatype: usize,
    operation: usize,
    root: c_int,
    communicator: usize,
) -> c_int {
    let mpi = mpi();
    let call = Reduction { send, receive, count, datatype, operation, communicator };
    // SAFETY: the caller's arguments.
    unsafe {
        if let Some(status) = call.to_root(mpi, root) {
            return status;
        }
        match (mpi.large.reduce, small(count)) {
            (Some(reduce), _) => reduce(send, receive, count, datatype, operation, root, communicator),
            (None, Ok(count)) => {
                (mpi.functions.reduce)(send, receive, count, datatype, operation, root, communicator)
            }
            (None, Err(error)) => error,
        }
    }
}

/// `MPI_Allreduce`
///
/// # Safety
/// See [`MPI_Barrier`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Allreduce(
    send: usize,
    receive: usize,
    count: c_int,
    datatype: usize,
    operation: usize,
    communicator: usize,
) -> c_int {
    let mpi = mpi();
    let call = Reduction { send, receive, count: count.into(), datatype, operation, communicator };
    // SAFETY: the caller's arguments.
    unsafe {
        call.to_all(mpi).unwrap_or_else(|| {
            (mpi.functions.allreduce)(send, receive, count, datatype, operation, communicator)
        })
    }
}

/// `MPI_Allreduce_c`
///
/// # Safety
/// See [`MPI_Barrier`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Allreduce_c(
    send: usize,
    receive: usize,
    count: i64,
    datatype: usize,
    operation: usize,
    communicator: usize,
) -> c_int {
    let mpi = mpi();
    let call = Reduction { send, receive, count, datatype, operation, communicator };
    // SAFETY: the caller's arguments.
    unsafe {
        if let Some(status) = call.to_all(mpi) {
            return status;
        }
        match (mpi.large.allreduce, small(count)) {
            (Some(allreduce), _) => allreduce(send, receive, count, datatype, operation, communicator),
            (None, Ok(count)) => {
                (mpi.functions.allreduce)(send, receive, count, datatype, operation, communicator)
            }
            (None, Err(error)) => error,
        }
    }
}

/// `MPI_Finalize`. Leaves the groups first, while the endpoint is open.
///
/// # Safety
/// See [`MPI_Barrier`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Finalize() -> c_int {
    communicators::end();
    // SAFETY: the caller's call.
    unsafe { (mpi().functions.finalize)() }
}

/// The collective operations that groups have done for this process, for tests and measuring.
#[unsafe(no_mangle)]
pub extern "C" fn weir_mpi_performed() -> u64 {
    communicators::performed()
}
