//! The functions that programs call instead of the MPI's: a group does the call, or it passes to the MPI under its profiling
//! name, or to a library that wraps the MPI.
//!
//! A handle arrives as a `usize`, whatever the binary interface makes of it. A function with counts has a variant with
//! counts of 64 bits, which does the same.
//!
//! Fortran: the bindings of Intel MPI call the C functions here, after they have translated handles and `MPI_IN_PLACE`. Bindings
//! that call `PMPI_` functions stay with the MPI.

use crate::call::{Call, Kind};
use crate::communicators;
use crate::elements::Buffer;
use crate::mpi::{Next, check, mpi};
use crate::reduce_scatter::{Counts, ReduceScatter};
use crate::world;
use std::ffi::{CStr, c_int};
use std::mem::transmute;

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

/// The profiling name of a function.
macro_rules! profiling_name {
    ($name:ident) => {
        const {
            match CStr::from_bytes_with_nul(concat!("P", stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("one NUL, at its end"),
            }
        }
    };
}

/// Calls the function at an address.
macro_rules! call_at {
    ($address:expr, $count:ty, ($($argument:ident: $kind:ident),*), ($($value:expr),*)) => {{
        // The standard gives the function this type; handles are integers or pointers, in the same registers as a `usize`.
        let function =
            transmute::<usize, unsafe extern "C" fn($(argument!($kind, $count)),*) -> c_int>($address);
        function($($value),*)
    }};
}

/// A function with counts, and its variant with large ones.
///
/// - `$call`: what the program asks for.
/// - `$attempt`: the method that asks a group, and its arguments.
macro_rules! function {
    ($name:ident, $large_name:ident, ($($argument:ident: $kind:ident),*), $call:expr, $attempt:ident($($extra:ident)?)) => {
        #[doc = concat!("`", stringify!($name), "`")]
        ///
        /// # Safety
        /// As the standard says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: argument!($kind, c_int)),*) -> c_int {
            static NEXT: Next = Next::new(profiling_name!($name));
            let call = $call;
            // SAFETY: the caller's arguments.
            unsafe {
                match call.$attempt($($extra)?) {
                    Some(status) => status,
                    None => call_at!(NEXT.expect(), c_int, ($($argument: $kind),*), ($($argument),*)),
                }
            }
        }

        #[doc = concat!("`", stringify!($large_name), "`")]
        ///
        /// # Safety
        /// As the standard says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $large_name($($argument: argument!($kind, i64)),*) -> c_int {
            static NEXT: Next = Next::new(profiling_name!($large_name));
            static SMALL: Next = Next::new(profiling_name!($name));
            let call = $call;
            // SAFETY: the caller's arguments.
            unsafe {
                if let Some(status) = call.$attempt($($extra)?) {
                    return status;
                }
                match NEXT.address() {
                    Some(next) => call_at!(next, i64, ($($argument: $kind),*), ($($argument),*)),
                    None => {
                        call_at!(SMALL.expect(), c_int, ($($argument: $kind),*), ($(small!($kind, $argument)),*))
                    }
                }
            }
        }
    };
}

/// A function that waits for its end. `$call`: what it asks of a group.
macro_rules! blocking {
    ($name:ident, $large_name:ident, $arguments:tt, $call:expr) => {
        function! { $name, $large_name, $arguments, $call, perform() }
    };
}

/// A function that waits for its end, and one that does not: it has the same arguments, and a place for a request.
macro_rules! collective {
    ($name:ident, $large_name:ident, $start:ident, $large_start:ident, ($($argument:ident: $kind:ident),*), $call:expr) => {
        blocking! { $name, $large_name, ($($argument: $kind),*), $call }
        function! {
            $start, $large_start, ($($argument: $kind),*, request: address),
            Call { name: stringify!($start), ..$call },
            start(request)
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
    static NEXT: Next = Next::new(c"PMPI_Barrier");
    let call = Call::new("MPI_Barrier", Kind::Barrier, communicator);
    // SAFETY: the caller's arguments. A barrier has no data.
    unsafe {
        match call.perform() {
            Some(status) => status,
            None => call_at!(NEXT.expect(), c_int, (communicator: handle), (communicator)),
        }
    }
}

/// `MPI_Ibarrier`
///
/// # Safety
/// As the standard says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Ibarrier(communicator: usize, request: usize) -> c_int {
    static NEXT: Next = Next::new(c"PMPI_Ibarrier");
    let call = Call::new("MPI_Ibarrier", Kind::Barrier, communicator);
    // SAFETY: the caller's arguments. A barrier has no data.
    unsafe {
        match call.start(request) {
            Some(status) => status,
            None => {
                call_at!(NEXT.expect(), c_int, (communicator: handle, request: address), (communicator, request))
            }
        }
    }
}

collective! {
    MPI_Bcast, MPI_Bcast_c, MPI_Ibcast, MPI_Ibcast_c,
    (at: address, count: count, datatype: handle, root: root, communicator: handle),
    {
        let data = buffer(at, count, datatype);
        Call { send: data, receive: data, root, ..Call::new("MPI_Bcast", Kind::Broadcast, communicator) }
    }
}

collective! {
    MPI_Reduce, MPI_Reduce_c, MPI_Ireduce, MPI_Ireduce_c,
    (send: address, receive: address, count: count, datatype: handle, operation: handle, root: root, communicator: handle),
    {
        let (send, receive) = (buffer(send, count, datatype), buffer(receive, count, datatype));
        Call { send, receive, operation, root, ..Call::new("MPI_Reduce", Kind::Reduce, communicator) }
    }
}

collective! {
    MPI_Allreduce, MPI_Allreduce_c, MPI_Iallreduce, MPI_Iallreduce_c,
    (send: address, receive: address, count: count, datatype: handle, operation: handle, communicator: handle),
    {
        let (send, receive) = (buffer(send, count, datatype), buffer(receive, count, datatype));
        Call { send, receive, operation, ..Call::new("MPI_Allreduce", Kind::AllReduce, communicator) }
    }
}

collective! {
    MPI_Allgather, MPI_Allgather_c, MPI_Iallgather, MPI_Iallgather_c,
    (send: address, send_count: count, send_type: handle, receive: address, receive_count: count, receive_type: handle,
     communicator: handle),
    {
        let (send, receive) = (buffer(send, send_count, send_type), buffer(receive, receive_count, receive_type));
        Call { send, receive, ..Call::new("MPI_Allgather", Kind::AllGather, communicator) }
    }
}

collective! {
    MPI_Alltoall, MPI_Alltoall_c, MPI_Ialltoall, MPI_Ialltoall_c,
    (send: address, send_count: count, send_type: handle, receive: address, receive_count: count, receive_type: handle,
     communicator: handle),
    {
        let (send, receive) = (buffer(send, send_count, send_type), buffer(receive, receive_count, receive_type));
        Call { send, receive, ..Call::new("MPI_Alltoall", Kind::AllToAll, communicator) }
    }
}

collective! {
    MPI_Gather, MPI_Gather_c, MPI_Igather, MPI_Igather_c,
    (send: address, send_count: count, send_type: handle, receive: address, receive_count: count, receive_type: handle,
     root: root, communicator: handle),
    {
        let (send, receive) = (buffer(send, send_count, send_type), buffer(receive, receive_count, receive_type));
        Call { send, receive, root, ..Call::new("MPI_Gather", Kind::Gather, communicator) }
    }
}

collective! {
    MPI_Scatter, MPI_Scatter_c, MPI_Iscatter, MPI_Iscatter_c,
    (send: address, send_count: count, send_type: handle, receive: address, receive_count: count, receive_type: handle,
     root: root, communicator: handle),
    {
        let (send, receive) = (buffer(send, send_count, send_type), buffer(receive, receive_count, receive_type));
        Call { send, receive, root, ..Call::new("MPI_Scatter", Kind::Scatter, communicator) }
    }
}

/// The arguments of a reduce-scatter with one count.
fn even_reduce_scatter(
    name: &'static str,
    (send, receive): (usize, usize),
    count: impl Into<i64>,
    (datatype, operation, communicator): (usize, usize, usize),
) -> ReduceScatter {
    ReduceScatter { name, send, receive, counts: Counts::same(count), datatype, operation, communicator }
}

blocking! {
    MPI_Reduce_scatter_block, MPI_Reduce_scatter_block_c,
    (send: address, receive: address, count: count, datatype: handle, operation: handle, communicator: handle),
    even_reduce_scatter(
        "MPI_Reduce_scatter_block", (send, receive), count, (datatype, operation, communicator))
}

function! {
    MPI_Ireduce_scatter_block, MPI_Ireduce_scatter_block_c,
    (send: address, receive: address, count: count, datatype: handle, operation: handle, communicator: handle,
     request: address),
    even_reduce_scatter(
        "MPI_Ireduce_scatter_block", (send, receive), count, (datatype, operation, communicator)),
    start(request)
}

/// A reduce-scatter with a count for each rank, and its variant with large ones.
///
/// - `$attempt`: the method that asks a group, and its arguments.
/// - `$keep`: what becomes of an array of counts that is made for an MPI without large ones.
macro_rules! reduce_scatter {
    ($name:ident, $large_name:ident, ($($argument:ident),*), $attempt:ident($($extra:ident)?), $keep:expr) => {
        #[doc = concat!("`", stringify!($name), "`")]
        ///
        /// # Safety
        /// As the standard says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(send: usize, receive: usize, counts: *const c_int, $($argument: usize),*) -> c_int {
            static NEXT: Next = Next::new(profiling_name!($name));
            let array = Counts::Small(counts);
            let call = uneven_reduce_scatter!($name, send, receive, array, $($argument),*);
            // SAFETY: the caller's arguments.
            unsafe {
                match call.$attempt($($extra)?) {
                    Some(status) => status,
                    None => pass_reduce_scatter!(NEXT.expect(), send, receive, counts as usize, $($argument),*),
                }
            }
        }

        #[doc = concat!("`", stringify!($large_name), "`")]
        ///
        /// # Safety
        /// As the standard says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $large_name(send: usize, receive: usize, counts: *const i64, $($argument: usize),*) -> c_int {
            static NEXT: Next = Next::new(profiling_name!($large_name));
            static SMALL: Next = Next::new(profiling_name!($name));
            let array = Counts::Large(counts);
            let call = uneven_reduce_scatter!($name, send, receive, array, $($argument),*);
            // SAFETY: the caller's arguments.
            unsafe {
                if let Some(status) = call.$attempt($($extra)?) {
                    return status;
                }
                if let Some(next) = NEXT.address() {
                    return pass_reduce_scatter!(next, send, receive, counts as usize, $($argument),*);
                }
                let Some(small) = small_counts(counts, call.communicator) else { return ERR_COUNT };
                let at = small.as_ptr() as usize;
                let status = pass_reduce_scatter!(SMALL.expect(), send, receive, at, $($argument),*);
                $keep(small);
                status
            }
        }
    };
}

/// The call of a reduce-scatter with a count for each rank.
macro_rules! uneven_reduce_scatter {
    ($name:ident, $send:ident, $receive:ident, $counts:ident,
     $datatype:ident, $operation:ident, $communicator:ident $(, $request:ident)?) => {
        ReduceScatter {
            name: stringify!($name),
            send: $send,
            receive: $receive,
            counts: $counts,
            datatype: $datatype,
            operation: $operation,
            communicator: $communicator,
        }
    };
}

/// Passes a reduce-scatter to the MPI's function at an address, which has this type, with these counts.
macro_rules! pass_reduce_scatter {
    ($function:expr, $send:ident, $receive:ident, $counts:expr, $($argument:ident),*) => {
        call_at!(
            $function,
            c_int,
            (send: address, receive: address, counts: address, $($argument: handle),*),
            ($send, $receive, $counts, $($argument),*)
        )
    };
}

reduce_scatter! {
    MPI_Reduce_scatter, MPI_Reduce_scatter_c, (datatype, operation, communicator), perform(), drop
}

reduce_scatter! {
    MPI_Ireduce_scatter, MPI_Ireduce_scatter_c, (datatype, operation, communicator, request), start(request),
    // The MPI may read them until the request has ended, and nobody tells when.
    std::mem::forget
}

/// The counts of all ranks for an MPI without large counts. `None`: one is too large, or the communicator is wrong.
///
/// # Safety
/// There is a count for each rank.
unsafe fn small_counts(counts: *const i64, communicator: usize) -> Option<Vec<c_int>> {
    let (mpi, mut ranks) = (mpi()?, 0);
    // SAFETY: the MPI's function, and a variable for the result. The caller promises the counts.
    unsafe {
        let handle = mpi.abi.as_ref()?.handle(communicator);
        check((mpi.functions.comm_size)(handle, &mut ranks)).ok()?;
        (0..ranks as usize).map(|rank| c_int::try_from(*counts.add(rank)).ok()).collect()
    }
}

/// `MPI_Win_test`
///
/// MPICH looks before it makes progress, not after. A collective operation made of messages has brought what was sent before
/// it. One of a group has not, so here the MPI makes progress some times before the answer is no.
///
/// # Safety
/// As the standard says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Win_test(window: usize, flag: usize) -> c_int {
    const MOST_LOOKS: u32 = 8;
    static NEXT: Next = Next::new(c"PMPI_Win_test");
    let mut looks = 0;
    loop {
        looks += 1;
        // SAFETY: the caller's arguments: a window, and a variable for the answer, which the MPI has written if it succeeds.
        unsafe {
            let status = call_at!(NEXT.expect(), c_int, (window: handle, flag: address), (window, flag));
            if status != 0 || *(flag as *const c_int) != 0 || looks == MOST_LOOKS {
                return status;
            }
        }
    }
}

/// `MPI_Init`. Then this rank enters the roster of those that use groups.
///
/// # Safety
/// As the standard says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Init(count: usize, words: usize) -> c_int {
    static NEXT: Next = Next::new(c"PMPI_Init");
    // SAFETY: the caller's call, of the type that the standard gives.
    world::initialize(|| unsafe {
        call_at!(NEXT.expect(), c_int, (count: address, words: address), (count, words))
    })
}

/// `MPI_Init_thread`. Then this rank enters the roster of those that use groups.
///
/// # Safety
/// As the standard says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Init_thread(
    count: usize,
    words: usize,
    required: c_int,
    provided: usize,
) -> c_int {
    static NEXT: Next = Next::new(c"PMPI_Init_thread");
    // SAFETY: the caller's call, of the type that the standard gives.
    world::initialize(|| unsafe {
        call_at!(
            NEXT.expect(),
            c_int,
            (count: address, words: address, required: root, provided: address),
            (count, words, required, provided)
        )
    })
}

/// Whether the program is in `MPI_Init`, and takes part across nodes, for the provider.
#[unsafe(no_mangle)]
pub extern "C" fn weir_mpi_initializes() -> c_int {
    world::doings()
}

/// `MPI_Finalize`. Leaves the groups first, while the endpoint is open.
///
/// # Safety
/// As the standard says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Finalize() -> c_int {
    communicators::end();
    static NEXT: Next = Next::new(c"PMPI_Finalize");
    // SAFETY: the caller's call, of the type that the standard gives.
    unsafe { call_at!(NEXT.expect(), c_int, (), ()) }
}

/// The collective operations that groups have done for this process, for tests and measuring.
#[unsafe(no_mangle)]
pub extern "C" fn weir_mpi_performed() -> u64 {
    communicators::performed()
}
