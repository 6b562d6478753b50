//! A collective call, blocking or not: which operation of a group it is, what this member contributes, and where its result
//! goes.
//!
//! | call | length agreed by | contributes | gets |
//! |---|---|---|---|
//! | barrier | | nothing | nothing |
//! | broadcast | the buffer | the root: it | the others: it |
//! | reduce, all-reduce | vector, type, operation | `send` | the root, or all: `receive` |
//! | all-gather | a block of `receive` | `send` | all blocks of `receive` |
//! | all-to-all | a block of `receive` | all blocks of `send` | all blocks of `receive` |
//! | gather | the root: a block of `receive`; the others: `send` | `send` | the root: all blocks of `receive` |
//! | scatter | the root: a block of `send`; the others: `receive` | the root: all blocks of `send` | `receive` |
//!
//! In place, `receive` has the contribution: the whole vector, the member's own block, or all blocks. MPI ignores the
//! other arguments of `send` then, so nothing is chosen by them.
//!
//! Arguments that only the caller's own rank can have wrong, such as a null pointer, go to the MPI, which reports them
//! before any message leaves. One buffer for both sides is wrong too, but programs do it, and not all MPIs report it:
//! then the others would wait for this rank. So it is done as in place.

use crate::abi::Abi;
use crate::choice::{self, Reduction};
use crate::communicators;
use crate::elements::{Buffer, Copy, Element, Elements};
use crate::member::Communicator;
use crate::mpi::{Mpi, mpi};
use crate::recent::{Recent, Repeated};
use crate::requests::Start;
use std::ffi::c_int;
use weir_engine::delivery::Delivery;
use weir_link::shm::node_group::Operation;

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Barrier,
    Broadcast,
    Reduce,
    AllReduce,
    AllGather,
    AllToAll,
    Gather,
    Scatter,
}

/// A call, with the arguments that it has. A broadcast has one buffer, here twice.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The function, for the user.
    pub name: &'static str,
    pub kind: Kind,
    pub send: Buffer,
    pub receive: Buffer,
    pub operation: usize,
    pub root: c_int,
    pub communicator: usize,
}

/// What this member does in an operation.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    /// What it contributes.
    data: Option<Elements>,
    /// Where its result goes.
    result: Option<Elements>,
    /// The root of a scatter copies its own block itself: from, to.
    own_block: Option<(Elements, Elements)>,
}

impl Call {
    /// A call without data.
    pub fn new(name: &'static str, kind: Kind, communicator: usize) -> Call {
        let (send, receive) = (Buffer::default(), Buffer::default());
        Call { name, kind, send, receive, operation: 0, root: 0, communicator }
    }

    /// Does the call in the group of its communicator. Returns the status for the program. `None`: the MPI does it.
    ///
    /// # Safety
    /// The buffers have as many elements as MPI requires for this call.
    pub unsafe fn perform(&self) -> Option<c_int> {
        // SAFETY: as the caller promises.
        unsafe { self.act(None) }
    }

    /// Starts the call in the group of its communicator, with a request of the MPI for its end. Returns the status for the
    /// program. `None`: the MPI does it.
    ///
    /// - `request`: the address of the program's variable.
    ///
    /// # Safety
    /// As for [`Call::perform`], until the request has ended.
    pub unsafe fn start(&self, request: usize) -> Option<c_int> {
        // SAFETY: as the caller promises.
        unsafe { self.act(Some(request)) }
    }

    /// Performs the call, or starts it with a request.
    ///
    /// # Safety
    /// As for [`Call::perform`] and [`Call::start`].
    #[inline]
    unsafe fn act(&self, request: Option<usize>) -> Option<c_int> {
        let mpi = mpi()?;
        let abi = mpi.abi.as_ref()?;
        let handle = abi.handle(self.communicator);
        if request.is_none() {
            let again = communicators::with_last(handle, |communicator, recent| {
                // SAFETY: as the caller promises.
                unsafe { self.act_again(mpi, abi, communicator, recent) }
            });
            if again.is_some() {
                return again;
            }
        }
        let root = u32::try_from(self.root).ok()?;
        let chosen = match self.kind {
            Kind::Gather | Kind::Scatter => None, // only the rank tells which buffer counts
            _ => Some(self.chosen(mpi, abi, &self.receive, root)?),
        };
        let may_decide = request.is_none(); // a call that must not wait cannot agree with the other members
        let status = communicators::with_group(mpi, abi, handle, may_decide, |communicator, recent| {
            if request.is_some() && !communicator.takes_receives {
                return None;
            }
            // SAFETY: as the caller promises.
            unsafe { self.act_in(mpi, abi, (communicator, recent), chosen, root, request) }
        });
        status.map_or_else(Some, Option::flatten)
    }

    /// Performs a call that is like one before. `None`: it is not, or the communicator has been freed.
    ///
    /// # Safety
    /// As for [`Call::perform`].
    #[inline]
    unsafe fn act_again(
        &self,
        mpi: &Mpi,
        abi: &Abi,
        communicator: &Communicator,
        recent: &mut Recent,
    ) -> Option<c_int> {
        let Communicator { rank, members, .. } = *communicator;
        let in_place = abi.constants.values.in_place;
        let Repeated { operation, data, result } = recent.repeated(self, (rank, members), in_place)?;
        let (data, result) = (data as *const u8, result as *mut u8);
        // SAFETY: the buffers are as long as the operation says, as the caller promises, and apart from each other.
        unsafe { communicator.perform(mpi, abi, self.name, (operation, operation.into()), data, result) }
    }

    /// Performs or starts the call in the group of a communicator. Returns the status for the program. `None`: the MPI does it.
    ///
    /// - `chosen`: the operation, if it is known without the rank.
    ///
    /// # Safety
    /// As for [`Call::act`].
    unsafe fn act_in(
        &self,
        mpi: &Mpi,
        abi: &Abi,
        (communicator, recent): (&Communicator, &mut Recent),
        chosen: Option<Operation>,
        root: u32,
        request: Option<usize>,
    ) -> Option<c_int> {
        let operation = match chosen {
            Some(operation) => operation,
            None => {
                let is_sender = (self.kind == Kind::Scatter) == (communicator.rank == root);
                let agreed_by = if is_sender { &self.send } else { &self.receive };
                self.chosen(mpi, abi, agreed_by, root)?
            }
        };
        if !operation.is_valid(communicator.members) {
            return None; // the root is no member
        }
        if communicator.layout.as_ref().is_some_and(|layout| !layout.takes(operation)) {
            return None;
        }
        let share = self.share(mpi, abi, operation, communicator)?;
        if !share.has_lengths_of(operation, communicator) {
            // The arguments of this rank contradict each other. The others may be in the operation already, so the MPI
            // could not do it.
            let error = abi.constants.values.truncated;
            // SAFETY: the MPI's function. A handler may end the process, or return.
            unsafe { (mpi.functions.comm_call_errhandler)(communicator.handle, error) };
            return Some(error);
        }
        if request.is_none() && communicator.layout.is_none() && share.is_in_plain_buffers() {
            recent.remember(self, operation);
        }
        let ended = match request {
            // SAFETY: as the caller promises; the lengths are those of the operation.
            None => unsafe { share.perform(mpi, abi, self.name, operation, communicator) },
            // SAFETY: as above.
            Some(request) => unsafe { share.start(mpi, abi, self.name, operation, communicator, request) },
        };
        ended.transpose().map(|status| status.unwrap_or_else(|error| error))
    }

    /// The operation. `None`: the MPI does it.
    ///
    /// - `agreed_by`: the buffer whose block has the same length at all members.
    fn chosen(&self, mpi: &Mpi, abi: &Abi, agreed_by: &Buffer, root: u32) -> Option<Operation> {
        let block = || choice::block(agreed_by.count, Element::of(mpi, abi, agreed_by)?.bytes, self.kind);
        let vector = || {
            let (datatype, operation) = (abi.handle(agreed_by.datatype), abi.handle(self.operation));
            Reduction::new(abi, datatype, operation)?.vector(agreed_by.count)
        };
        Some(match self.kind {
            Kind::Barrier => Operation::Barrier,
            Kind::Broadcast => Operation::Broadcast { root, bytes: block()? },
            Kind::Reduce => Operation::Reduce { root, vector: vector()? },
            Kind::AllReduce => Operation::AllReduce(vector()?),
            Kind::AllGather => Operation::AllGather { bytes: block()? },
            Kind::AllToAll => Operation::AllToAll { bytes: block()? },
            Kind::Gather => Operation::Gather { root, bytes: block()? },
            Kind::Scatter => Operation::Scatter { root, bytes: block()? },
        })
    }

    /// What this member contributes and gets. `None`: the MPI reports what is wrong.
    fn share(
        &self,
        mpi: &Mpi,
        abi: &Abi,
        operation: Operation,
        communicator: &Communicator,
    ) -> Option<Share> {
        let Communicator { rank, members, handle, .. } = *communicator;
        let in_place = abi.constants.values.in_place;
        let is_reduction = matches!(self.kind, Kind::Reduce | Kind::AllReduce);
        let blocks = |buffer: &Buffer, first: u32, blocks: u32| match buffer.at == in_place {
            true => None,
            false => Elements::new(mpi, abi, buffer, (first, blocks), handle).map(|it| match is_reduction {
                true => it.as_words(abi),
                false => it,
            }),
        };
        let has_data = operation.data_bytes(rank, members) > 0;
        let has_result = operation.result_bytes(rank, members) > 0;
        let is_in_place = has_result && self.send.at == in_place;
        let data = || match (self.kind, is_in_place) {
            (Kind::AllToAll | Kind::Scatter, false) => blocks(&self.send, 0, members),
            (Kind::AllToAll, true) => blocks(&self.receive, 0, members),
            (Kind::AllGather | Kind::Gather, true) => blocks(&self.receive, rank, 1),
            (Kind::Reduce | Kind::AllReduce, true) => blocks(&self.receive, 0, 1),
            _ => blocks(&self.send, 0, 1),
        };
        let result = || match self.kind {
            Kind::AllGather | Kind::AllToAll | Kind::Gather => blocks(&self.receive, 0, members),
            _ => blocks(&self.receive, 0, 1),
        };
        let mut share = Share::default();
        if has_data {
            share.data = Some(data()?);
        }
        if has_result {
            share.result = Some(result()?);
        }
        if self.kind == Kind::Scatter && has_data && self.receive.at != in_place {
            share.own_block = Some((blocks(&self.send, rank, 1)?, blocks(&self.receive, 0, 1)?));
        }
        Some(share)
    }
}

impl Share {
    /// Whether the group uses the program's buffers, and those that MPI names for this call.
    fn is_in_plain_buffers(&self) -> bool {
        let is_plain = |elements: &Elements| elements.is_plain;
        self.data.iter().chain(&self.result).all(is_plain)
    }

    /// Whether the arguments of this member agree with each other.
    fn has_lengths_of(&self, operation: Operation, communicator: &Communicator) -> bool {
        let Communicator { rank, members, .. } = *communicator;
        let bytes = |elements: Option<Elements>| elements.map_or(0, |elements| elements.bytes);
        bytes(self.data) == operation.data_bytes(rank, members)
            && bytes(self.result) == operation.result_bytes(rank, members)
            && self.own_block.is_none_or(|(from, to)| from.bytes == to.bytes)
    }

    /// Performs the operation: packs what is not plain, or lies where the result goes. `None`: the communicator has been
    /// freed.
    ///
    /// # Errors
    /// That of the MPI, whose error handler knows it.
    ///
    /// # Safety
    /// The program's buffers have these elements, whose lengths are those of the operation.
    unsafe fn perform(
        &self,
        mpi: &Mpi,
        abi: &Abi,
        name: &str,
        operation: Operation,
        communicator: &Communicator,
    ) -> Result<Option<c_int>, c_int> {
        // Made where they are needed: most operations copy nothing.
        let (mut copy_of_data, mut copy_of_result);
        let nothing = std::ptr::null_mut();
        let overlaps = |data: &Elements| self.result.is_some_and(|result| data.overlaps(&result));
        let data = match &self.data {
            None => nothing,
            Some(data) if data.is_plain && !overlaps(data) => data.address(),
            Some(data) => {
                copy_of_data = Copy::default();
                let copy = copy_of_data.room(data.bytes);
                // SAFETY: as the caller promises, and room.
                unsafe { data.pack(mpi, copy) }?;
                copy
            }
        };
        let result = match &self.result {
            None => nothing,
            Some(result) if result.is_plain => result.address(),
            Some(result) => {
                copy_of_result = Copy::default();
                copy_of_result.room(result.bytes)
            }
        };
        // SAFETY: as long as the operation says, and apart from each other.
        let Some(status) =
            (unsafe { communicator.perform(mpi, abi, name, (operation, operation.into()), data, result) })
        else {
            return Ok(None);
        };
        // The blocks of the others have been read, should a program use one buffer for both.
        // SAFETY: as the caller promises.
        unsafe { self.copy_own_block(mpi) }?;
        match &self.result {
            // SAFETY: as the caller promises, and the data of the result.
            Some(to) if status == 0 && !to.is_plain => unsafe { to.unpack(mpi, result) }?,
            _ => {}
        }
        Ok(Some(status))
    }

    /// Copies the own block of a scatter's root.
    ///
    /// # Errors
    /// That of the MPI, whose error handler knows it.
    ///
    /// # Safety
    /// The program's buffers have these elements.
    unsafe fn copy_own_block(&self, mpi: &Mpi) -> Result<(), c_int> {
        let Some((from, to)) = &self.own_block else { return Ok(()) };
        let mut copy = Copy::default();
        let block = copy.room(from.bytes);
        // SAFETY: as the caller promises, and room.
        unsafe {
            from.pack(mpi, block)?;
            to.unpack(mpi, block)
        }
    }

    /// Starts the operation. The receive of its request has the program's buffer and type, so the MPI unpacks the result.
    /// `None`: the communicator has been freed.
    ///
    /// # Errors
    /// That of the MPI, whose error handler knows it.
    ///
    /// # Safety
    /// The program's buffers have these elements until the request has ended. The lengths are those of the operation.
    unsafe fn start(
        &self,
        mpi: &Mpi,
        abi: &Abi,
        name: &str,
        operation: Operation,
        communicator: &Communicator,
        request: usize,
    ) -> Result<Option<c_int>, c_int> {
        let mut copy = Copy::default();
        let is_apart = |data: &Elements| !self.result.is_some_and(|result| data.overlaps(&result));
        let is_in_scatter = self.own_block.is_some(); // of which the own block is copied at once
        let (data, is_copied) = match &self.data {
            None => (std::ptr::null_mut(), false),
            Some(data) if data.is_plain && is_apart(data) && !is_in_scatter => (data.address(), false),
            Some(data) => {
                let copy = copy.room(data.bytes);
                // SAFETY: as the caller promises, and room.
                unsafe { data.pack(mpi, copy) }?;
                (copy, true)
            }
        };
        // SAFETY: as the caller promises; what the operation still needs is copied.
        unsafe { self.copy_own_block(mpi) }?;
        let short = self.result.and_then(|result| result.short);
        let delivery = short.map_or(Delivery::Whole, Delivery::Integers);
        let start =
            Start { name, operation, data, is_copied, result: self.result.as_ref(), delivery, request };
        // SAFETY: as the caller promises.
        Ok(unsafe { communicator.start(mpi, abi, &start) })
    }
}
