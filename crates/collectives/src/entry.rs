//! The functions that programs call instead of the MPI's: a group does the call, or the MPI does it under its profiling
//! name.
//!
//! A handle arrives as a `usize`, whatever the binary interface makes of it. A function with counts has a variant with
//! counts of 64 bits, which does the same.
//!
//! Fortran: the bindings of Intel MPI call the C functions here, after they have translated handles and `MPI_IN_PLACE`. Bindings
//! that call `PMPI_` functions stay with the MPI.

use crate::call::{Call, Kind};
use crate::communicators;
use crate::elements::Buffer;
use crate::mpi::mpi;
use std::ffi::c_int;

/// `MPI_ERR_COUNT`, which has one value in all binary interfaces.
const ERR_COUNT: c_int = 2;

/// The C type of an argument: `count` is the given one.
macro_rules! argument {
    (count, $count:ty) => {
        $count
    };
    (root, $count:ty) => {
        c_int
    };
    ($handle_or_address:ident, $count:ty) => {
        usize
    };
}

/// An argument for a function without large counts. Returns from the function if the count is too large.
macro_rules! small {
    (count, $value:ident) => {
        match c_int::try_from($value) {
            Ok(count) => count,
            Err(_) => return ERR_COUNT,
        }
    };
    ($kind:ident, $value:ident) => {
        $value
    };
}

/// A function with counts, and its variant with large ones. `$field` is that of the MPI, `$call` what it asks of a group.
macro_rules! collective {
    ($name:ident, $large_name:ident, $field:ident, ($($argument:ident: $kind:ident),*), $call:expr) => {
        #[doc = concat!("`", stringify!($name), "`")]
        ///
        /// # Safety
        /// As the standard says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: argument!($kind, c_int)),*) -> c_int {
            let (mpi, call): (_, Call) = (mpi(), $call);
            // SAFETY: the caller's arguments.
            unsafe { call.perform(mpi).unwrap_or_else(|| (mpi.small.$field)($($argument),*)) }
        }

        #[doc = concat!("`", stringify!($large_name), "`")]
        ///
        /// # Safety
        /// As the standard says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $large_name($($argument: argument!($kind, i64)),*) -> c_int {
            let (mpi, call): (_, Call) = (mpi(), $call);
            // SAFETY: the caller's arguments.
            unsafe {
                match (call.perform(mpi), &mpi.large) {
                    (Some(status), _) => status,
                    (None, Some(large)) => (large.$field)($($argument),*),
                    (None, None) => (mpi.small.$field)($(small!($kind, $argument)),*),
                }
            }
        }
    };
}

/// A buffer of a call. A count has 32 or 64 bits.
fn buffer(at: usize, count: impl Into<i64>, datatype: usize) -> Buffer {
    Buffer { at, count: count.into(), datatype }
}

/// `MPI_Barrier`
///
/// # Safety
/// As the standard says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Barrier(communicator: usize) -> c_int {
    let (mpi, call) = (mpi(), Call::new("MPI_Barrier", Kind::Barrier, communicator));
    // SAFETY: the caller's arguments. A barrier has no data.
    unsafe { call.perform(mpi).unwrap_or_else(|| (mpi.functions.barrier)(communicator)) }
}

collective! {
    MPI_Bcast, MPI_Bcast_c, bcast,
    (at: address, count: count, datatype: handle, root: root, communicator: handle),
    {
        let data = buffer(at, count, datatype);
        Call { send: data, receive: data, root, ..Call::new("MPI_Bcast", Kind::Broadcast, communicator) }
    }
}

collective! {
    MPI_Reduce, MPI_Reduce_c, reduce,
    (send: address, receive: address, count: count, datatype: handle, operation: handle, root: root, communicator: handle),
    {
        let (send, receive) = (buffer(send, count, datatype), buffer(receive, count, datatype));
        Call { send, receive, operation, root, ..Call::new("MPI_Reduce", Kind::Reduce, communicator) }
    }
}

collective! {
    MPI_Allreduce, MPI_Allreduce_c, allreduce,
    (send: address, receive: address, count: count, datatype: handle, operation: handle, communicator: handle),
    {
        let (send, receive) = (buffer(send, count, datatype), buffer(receive, count, datatype));
        Call { send, receive, operation, ..Call::new("MPI_Allreduce", Kind::AllReduce, communicator) }
    }
}

collective! {
    MPI_Allgather, MPI_Allgather_c, allgather,
    (send: address, send_count: count, send_type: handle, receive: address, receive_count: count, receive_type: handle,
     communicator: handle),
    {
        let (send, receive) = (buffer(send, send_count, send_type), buffer(receive, receive_count, receive_type));
        Call { send, receive, ..Call::new("MPI_Allgather", Kind::AllGather, communicator) }
    }
}

collective! {
    MPI_Alltoall, MPI_Alltoall_c, alltoall,
    (send: address, send_count: count, send_type: handle, receive: address, receive_count: count, receive_type: handle,
     communicator: handle),
    {
        let (send, receive) = (buffer(send, send_count, send_type), buffer(receive, receive_count, receive_type));
        Call { send, receive, ..Call::new("MPI_Alltoall", Kind::AllToAll, communicator) }
    }
}

collective! {
    MPI_Gather, MPI_Gather_c, gather,
    (send: address, send_count: count, send_type: handle, receive: address, receive_count: count, receive_type: handle,
     root: root, communicator: handle),
    {
        let (send, receive) = (buffer(send, send_count, send_type), buffer(receive, receive_count, receive_type));
        Call { send, receive, root, ..Call::new("MPI_Gather", Kind::Gather, communicator) }
    }
}

collective! {
    MPI_Scatter, MPI_Scatter_c, scatter,
    (send: address, send_count: count, send_type: handle, receive: address, receive_count: count, receive_type: handle,
     root: root, communicator: handle),
    {
        let (send, receive) = (buffer(send, send_count, send_type), buffer(receive, receive_count, receive_type));
        Call { send, receive, root, ..Call::new("MPI_Scatter", Kind::Scatter, communicator) }
    }
}

/// `MPI_Finalize`. Leaves the groups first, while the endpoint is open.
///
/// # Safety
/// As the standard says.
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
