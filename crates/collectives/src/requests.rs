//! Requests of non-blocking calls: receives of the MPI that end when an operation of the group has ended.
//!
//! A request must be one of the MPI, since programs wait for it by `MPI_Waitany` and others, together with requests of
//! messages, and by other names than these (`PMPI_Wait`, bindings of Fortran). So the MPI makes it: a receive, with
//! the buffer and the type of the call's result. The provider does not wait for a message, but for the operation, and
//! writes the result as if it had come in one. Progress is the MPI's, and there is no thread of ours.
//! ```text
//! program   MPI_Iallreduce(in, out, 1, MPI_DOUBLE, MPI_SUM, comm, &request)
//! start     provider: the next receive is for this all-reduce; PMPI_Irecv(out, 1, MPI_DOUBLE, ..., &request)
//! provider  the MPI posts the receive; the operation takes it, and writes our vector for the others
//! program   MPI_Wait(&request): the MPI reads its queue, the provider finds the vectors of all, and completes the receive
//! ```
//! Members must agree whether this works: each tries it with an empty receive while they agree on the group.
//!
//! These operations have a group of their own. MPI requires one order of all collective calls of a communicator. But with
//! messages a rank may enter a barrier before a non-blocking call, and another one after it, and mpi4py's suite does so
//! (`Iagree`). Only the first blocking call of a communicator, in which its members agree, must be in order.

use crate::abi::Abi;
use crate::elements::Elements;
use crate::member::{Communicator, lock};
use crate::mpi::Mpi;
use crate::provider::{Group, has_taken};
use std::ffi::c_int;
use weir_engine::delivery::Delivery;
use weir_link::shm::node_group::Operation;

/// The tag of the receives, which every MPI allows. Nobody sees it, unless an MPI gives a receive to something else than
/// the provider.
const TAG: c_int = 32_767;

/// Whether operations of a group can take receives of this MPI. Tries it.
pub fn takes_receives(
    mpi: &Mpi,
    abi: &Abi,
    handle: usize,
    (members, rank): (u32, u32),
    group: &mut Group,
) -> bool {
    let mut request = 0_usize;
    let request = (&raw mut request) as usize;
    // SAFETY: a group for such operations that has joined; a trial has no data.
    unsafe { group.take_receive(None, Delivery::Whole, std::ptr::null(), false) };
    // SAFETY: the MPI's functions, no buffer, and a variable for the request, which is as large as any handle.
    unsafe {
        let source = neighbour(members, rank);
        let posted = (mpi.functions.irecv)(0, 0, abi.constants.byte, source, TAG, handle, request);
        let taken = has_taken();
        if posted != 0 {
            return false;
        }
        if !taken {
            (mpi.functions.cancel)(request);
        }
        (mpi.functions.wait)(request, abi.constants.values.status_ignore) == 0 && taken
    }
}

/// The source of the receives: another member, since messages to itself may stay in the MPI.
fn neighbour(members: u32, rank: u32) -> c_int {
    ((rank + 1) % members) as c_int
}

/// A non-blocking operation of this member.
#[derive(Debug)]
pub struct Start<'a> {
    /// The call, for the user.
    pub name: &'a str,
    /// The operation.
    pub operation: Operation,
    /// What this member contributes.
    pub data: *const u8,
    /// The operation copies it when it starts.
    pub is_copied: bool,
    /// Where what it gets goes, if it gets anything.
    pub result: Option<&'a Elements>,
    /// What it gets of the result of the operation.
    pub delivery: Delivery,
    /// The address of the program's variable for the request.
    pub request: usize,
}

impl Communicator {
    /// Starts an operation in the group. Returns the status for the program. `None`: the communicator has been freed.
    ///
    /// # Safety
    /// `data` and `result` are as long as the operation says for this member. They stay until the request has ended, but for
    /// data that is copied.
    pub unsafe fn start(&self, mpi: &Mpi, abi: &Abi, start: &Start) -> Option<c_int> {
        let &Start { name, operation, data, is_copied, result, delivery, request } = start;
        {
            let mut locked = lock(&self.member);
            let member = locked.as_mut()?;
            let requests = member.requests.as_mut()?;
            // SAFETY: a group for such operations, and what the caller promises.
            unsafe { requests.take_receive(Some(operation), delivery, data, is_copied) };
        }
        let (at, count, datatype) = result.map_or((0, 0, abi.constants.byte), Elements::arguments);
        let source = neighbour(self.members, self.rank);
        // SAFETY: the MPI's function, and what the caller promises.
        let posted = unsafe { (mpi.functions.irecv)(at, count, datatype, source, TAG, self.handle, request) };
        let is_taken = has_taken();
        if is_taken {
            let _locked = lock(&self.member);
            self.count_performed();
        }
        if is_taken || posted != 0 {
            return Some(posted); // the MPI has told its error handler of an error
        }
        // The trial has shown that this MPI gives its receives to the provider. Others may be in the operation already.
        eprintln!("weir: {name}: the MPI has not posted a receive, so the operation cannot take part");
        let error = abi.constants.values.member_failed;
        // SAFETY: the MPI's functions. A handler may end the process, or return.
        unsafe {
            (mpi.functions.cancel)(request);
            (mpi.functions.wait)(request, abi.constants.values.status_ignore);
            (mpi.functions.comm_call_errhandler)(self.handle, error);
        }
        Some(error)
    }
}
