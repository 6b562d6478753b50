//! Groups of ranks and their collective operations.
//!
//! All members call the same operations of a group in the same order, with the same lengths. The engine cuts long
//! ones into parts, and keeps the order. A group is joined and left by all its members.

use std::sync::Arc;

use weir_engine::{
    CollectiveArguments, CollectiveOperation, CollectiveShape, MAX_COLLECTIVE_BYTES, MAX_COLLECTIVE_MEMBERS,
    MAX_COLLECTIVES,
};
use weir_link::memory::OwnedMemory;
use weir_proto::offload::group::MAX_GROUPS;
use weir_proto::offload::{Combination, WordOperation};

use crate::agreement::MAX_LEVEL_GROUPS;
use crate::elements::{Element, Plain, from_memory, to_memory};
use crate::remote::{bytes_of, elements};
use crate::state::{About, Buffers, Inner, Member, Owner, Shared};
use crate::{Error, Request};

/// Bound: groups that a rank has joined and not closed, that of all ranks among them. Groups on two levels take another place of
/// the engine's.
pub const MAX_JOINED_GROUPS: usize = MAX_GROUPS - MAX_LEVEL_GROUPS;

impl Inner {
    /// A group that this rank has joined and not closed.
    ///
    /// # Errors
    /// There is none of this number.
    pub fn group(&self, group: u32) -> Result<&Member, Error> {
        let member = self.groups.get(&group);
        member
            .ok_or_else(|| Error::argument("group", group, "those that this rank has joined and not closed"))
    }

    /// Starts to join a group. Returns its number, and the request of the join.
    ///
    /// # Errors
    /// Wrong ranks; too many groups ([`Error::Argument`]). [`Error::Again`]: groups that are being closed take the room.
    fn start_join(&mut self, ranks: &[u32], own: u32) -> Result<(u32, u64), Error> {
        let size = self.peers.len();
        if self.groups.len() >= MAX_JOINED_GROUPS {
            let allowed = format!("less than {MAX_JOINED_GROUPS} when it joins another one");
            return Err(Error::argument("number of groups", self.groups.len(), allowed));
        }
        if ranks.is_empty() || ranks.len() > MAX_COLLECTIVE_MEMBERS {
            let allowed = format!("1 to {MAX_COLLECTIVE_MEMBERS}");
            return Err(Error::argument("number of members", ranks.len(), allowed));
        }
        let peers = ranks.iter().map(|&rank| self.peer(rank)).collect::<Result<Vec<_>, Error>>()?;
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::argument("member", twice[0], "each rank once"));
        }
        let Some(rank) = ranks.iter().position(|&rank| rank == own) else {
            return Err(Error::argument(
                "members",
                "without this rank",
                format!("lists with rank {own} of {size}"),
            ));
        };
        let (rank, mut engine_number) = (rank as u32, 0);
        let group = self.next_group;
        let request = self.begin(About::Group(group), Buffers::EMPTY, |engine, post, _, _| {
            engine_number = engine.join_collective(post, peers, rank)?;
            Ok(())
        })?;
        self.next_group += 1;
        let (messages, has_left) = (0, false);
        self.groups
            .insert(group, Member { number: engine_number, ranks: ranks.into(), rank, messages, has_left });
        Ok((group, request))
    }

    /// Starts an operation of a group. `buffers` are as long as the shape says.
    ///
    /// - `is_awaited`: the caller does nothing but wait for its end.
    ///
    /// # Errors
    /// A wrong group, root, operation or length, or [`Error::Again`].
    pub fn start_collective(
        &mut self,
        group: u32,
        operation: CollectiveOperation,
        block_bytes: u64,
        buffers: Buffers,
        is_awaited: bool,
    ) -> Result<u64, Error> {
        let member = self.group(group)?;
        let (rank, members) = (member.rank, member.ranks.len() as u32);
        let shape = CollectiveShape { operation, block_bytes, rank, members };
        check(&shape)?;
        if !self.node_groups.has(group) {
            return self.start_by_messages(group, operation, block_bytes, buffers, is_awaited);
        }
        if let Some(request) = self.begin_failed(group)? {
            return Ok(request);
        }
        if let Some(operation) = self.node_groups.operation(group, &shape) {
            return self.begin_in_node(group, operation, buffers, is_awaited);
        }
        if !self.node_groups.have_room() {
            return Err(Error::Again { what: "operations of a kind", limit: MAX_COLLECTIVES.into() });
        }
        let request = self.start_by_messages(group, operation, block_bytes, buffers, is_awaited)?;
        self.node_groups.mark(group);
        Ok(request)
    }

    /// Starts an operation of a group by messages. The arguments are right.
    ///
    /// # Errors
    /// A wrong group, or [`Error::Again`].
    pub fn start_by_messages(
        &mut self,
        group: u32,
        operation: CollectiveOperation,
        block_bytes: u64,
        buffers: Buffers,
        is_awaited: bool,
    ) -> Result<u64, Error> {
        let number = self.group(group)?.number;
        let request = self.begin(About::Group(group), buffers, |engine, post, data, result| {
            let group = number;
            let arguments = CollectiveArguments { group, operation, block_bytes, data, result, is_awaited };
            engine.collective(post, arguments)
        })?;
        if let Some(member) = self.groups.get_mut(&group) {
            member.messages += 1;
        }
        Ok(request)
    }

    /// Closes a group for this rank, when its operations have ended.
    ///
    /// # Errors
    /// There is none of this number.
    pub fn close_group(&mut self, group: u32) -> Result<(), Error> {
        let Member { number, has_left, .. } = *self.group(group)?;
        self.groups.remove(&group);
        self.node_groups.close(group, &mut self.engine);
        if !has_left && !self.engine.close_collective(number) {
            self.closing.push(number);
        }
        Ok(())
    }
}

/// # Errors
/// An operation that the engine would refuse.
fn check(shape: &CollectiveShape) -> Result<(), Error> {
    use CollectiveOperation::{AllReduce, Broadcast, Reduce};
    let CollectiveShape { operation, block_bytes, members, .. } = *shape;
    let (root, combination) = match operation {
        Broadcast { root } => (root, None),
        Reduce { root, combination } => (root, Some(combination)),
        AllReduce { combination } => (0, Some(combination)),
        _ => (0, None),
    };
    if root >= members {
        return Err(Error::argument("root", root, format!("0 to {}", members - 1)));
    }
    if let Some(Combination { operation, word_type }) = combination.filter(|it| !it.is_valid()) {
        let value = format!("{operation:?} on {word_type:?}");
        let allowed = "sum, product, minimum, maximum, logical ones on all types, bitwise ones on integers";
        return Err(Error::argument("operation", value, allowed));
    }
    if !shape.is_valid() {
        let allowed = format!("0 to {} in a group of {members}", MAX_COLLECTIVE_BYTES / u64::from(members));
        return Err(Error::argument("length in bytes", block_bytes, allowed));
    }
    Ok(())
}

impl Shared {
    /// Joins a group with all its members. Returns its number.
    ///
    /// # Errors
    /// Wrong ranks; [`Error::Lost`].
    pub fn join(&self, ranks: &[u32]) -> Result<u32, Error> {
        let (group, request) = loop {
            match self.with(|inner| inner.start_join(ranks, self.rank)) {
                Err(Error::Again { .. }) => self.make_progress(true)?,
                other => break other?,
            }
        };
        let joined = self.wait(request)?.and_then(|_| self.agree(group));
        if joined.is_err() {
            self.with(|inner| inner.close_group(group))?;
        }
        joined.map(|()| group)
    }
}

/// Closes the group when the last of its values is dropped.
struct Membership {
    owner: Arc<Owner>,
    number: u32,
    /// If it is neither that of all ranks nor one of C's interface.
    closes: bool,
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.closes {
            let _ = self.owner.0.with(|inner| inner.close_group(self.number)); // the endpoint is closed
        }
    }
}

/// A group that this rank has joined. It is left when its last clone is dropped and its operations have ended; its
/// number stays in use until all members have left.
#[derive(Clone)]
pub struct Group {
    membership: Arc<Membership>,
    ranks: Arc<[u32]>,
    rank: u32,
}

impl Group {
    pub(crate) fn new(owner: Arc<Owner>, number: u32, closes: bool) -> Result<Group, Error> {
        let Member { ranks, rank, .. } = owner.0.with(|inner| inner.group(number).cloned())?;
        Ok(Group { membership: Arc::new(Membership { owner, number, closes }), ranks, rank })
    }

    /// The group of a number that C's interface knows. It is not closed with this value.
    ///
    /// # Errors
    /// There is none of this number.
    pub(crate) fn of_number(owner: Arc<Owner>, number: u32) -> Result<Group, Error> {
        Group::new(owner, number, false)
    }

    /// Its number, as C's interface has it.
    #[cfg(test)]
    pub(crate) fn number(&self) -> u32 {
        self.membership.number
    }

    /// Our rank in the group.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of members.
    pub fn size(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// The ranks in the job of the members, by rank in the group.
    pub fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    fn shared(&self) -> &Shared {
        &self.membership.owner.0
    }

    fn start<T>(
        &self,
        operation: CollectiveOperation,
        block_bytes: usize,
        buffers: Buffers,
        convert: fn(Option<OwnedMemory>) -> T,
    ) -> Result<Request<T>, Error> {
        let number = self.membership.number;
        let start =
            |inner: &mut Inner| inner.start_collective(number, operation, block_bytes as u64, buffers, false);
        let request = self.shared().with(start)?;
        Ok(Request::new(Arc::clone(&self.membership.owner), request, convert))
    }

    /// Starts an operation, if it must wait for a limit, and waits for its end.
    fn perform(
        &self,
        operation: CollectiveOperation,
        block_bytes: usize,
        buffers: impl Fn() -> Buffers,
    ) -> Result<Option<OwnedMemory>, Error> {
        let number = self.membership.number;
        let request = self.shared().start_blocking(|inner| {
            inner.start_collective(number, operation, block_bytes as u64, buffers(), true)
        })?;
        self.shared().wait(request)?
    }

    /// Starts a barrier: it ends when all members have started it.
    ///
    /// # Errors
    /// [`Error::Again`].
    pub fn start_barrier(&self) -> Result<Request<()>, Error> {
        self.start(CollectiveOperation::Barrier, 0, Buffers::EMPTY, |_| ())
    }

    /// Waits until all members are in the same call.
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub fn barrier(&self) -> Result<(), Error> {
        self.perform(CollectiveOperation::Barrier, 0, || Buffers::EMPTY).map(|_| ())
    }

    /// Starts a broadcast of the elements of the member `root`. Ends with them. All members give as many.
    ///
    /// # Errors
    /// A wrong root or length, or [`Error::Again`].
    pub fn start_broadcast<T: Plain>(&self, root: u32, data: &[T]) -> Result<Request<Vec<T>>, Error> {
        let buffers = Buffers::one(to_memory(data));
        self.start(CollectiveOperation::Broadcast { root }, size_of_val(data), buffers, elements)
    }

    /// Broadcasts the elements of the member `root` into `data` of all.
    ///
    /// # Errors
    /// A wrong root or length; [`Error::Lost`].
    pub fn broadcast<T: Plain>(&self, root: u32, data: &mut [T]) -> Result<(), Error> {
        let operation = CollectiveOperation::Broadcast { root };
        let memory = self.perform(operation, size_of_val(data), || Buffers::one(to_memory(data)))?;
        data.copy_from_slice(&elements(memory));
        Ok(())
    }

    /// Starts a reduction to the member `root`, in the order of ranks. Ends with the result there, and with nothing
    /// elsewhere, when others do not need this member any more. All members give as many elements.
    ///
    /// # Errors
    /// A wrong root, operation or length, or [`Error::Again`].
    pub fn start_reduce<T: Element>(
        &self,
        root: u32,
        operation: WordOperation,
        data: &[T],
    ) -> Result<Request<Option<Vec<T>>>, Error> {
        let convert = if root == self.rank {
            |memory: Option<OwnedMemory>| memory.map(|memory| from_memory(&memory))
        } else {
            |_: Option<OwnedMemory>| None
        };
        let combination = Combination { operation, word_type: T::TYPE };
        let operation = CollectiveOperation::Reduce { root, combination };
        self.start(operation, size_of_val(data), with_result(data), convert)
    }

    /// Reduces to the member `root`, in the order of ranks. `None` elsewhere.
    ///
    /// # Errors
    /// A wrong root, operation or length; [`Error::Lost`].
    pub fn reduce<T: Element>(
        &self,
        root: u32,
        operation: WordOperation,
        data: &[T],
    ) -> Result<Option<Vec<T>>, Error> {
        let combination = Combination { operation, word_type: T::TYPE };
        let operation = CollectiveOperation::Reduce { root, combination };
        let memory = self.perform(operation, size_of_val(data), || with_result(data))?;
        Ok((root == self.rank).then(|| elements(memory)))
    }

    /// Starts a reduction whose result all members get, with the same bits.
    ///
    /// # Errors
    /// A wrong operation or length, or [`Error::Again`].
    pub fn start_all_reduce<T: Element>(
        &self,
        operation: WordOperation,
        data: &[T],
    ) -> Result<Request<Vec<T>>, Error> {
        let combination = Combination { operation, word_type: T::TYPE };
        let operation = CollectiveOperation::AllReduce { combination };
        self.start(operation, size_of_val(data), with_result(data), elements)
    }

    /// Reduces, and gives the result to all members, with the same bits.
    ///
    /// # Errors
    /// A wrong operation or length; [`Error::Lost`].
    pub fn all_reduce<T: Element>(&self, operation: WordOperation, data: &[T]) -> Result<Vec<T>, Error> {
        let combination = Combination { operation, word_type: T::TYPE };
        let operation = CollectiveOperation::AllReduce { combination };
        self.perform(operation, size_of_val(data), || with_result(data)).map(elements)
    }

    /// Starts to gather the elements of all members at all, by rank. All members give as many.
    ///
    /// # Errors
    /// A wrong length, or [`Error::Again`].
    pub fn start_all_gather<T: Plain>(&self, data: &[T]) -> Result<Request<Vec<T>>, Error> {
        let all = bytes_of::<T>(data.len().saturating_mul(self.ranks.len()))?;
        let buffers = Buffers::owned(to_memory(data), OwnedMemory::new(all));
        self.start(CollectiveOperation::AllGather, size_of_val(data), buffers, elements)
    }

    /// Gathers the elements of all members at all, by rank.
    ///
    /// # Errors
    /// A wrong length; [`Error::Lost`].
    pub fn all_gather<T: Plain>(&self, data: &[T]) -> Result<Vec<T>, Error> {
        let all = bytes_of::<T>(data.len().saturating_mul(self.ranks.len()))?;
        let buffers = || Buffers::owned(to_memory(data), OwnedMemory::new(all));
        self.perform(CollectiveOperation::AllGather, size_of_val(data), buffers).map(elements)
    }
}

/// A copy of `data`, and memory for a result of the same length.
fn with_result<T: Plain>(data: &[T]) -> Buffers {
    Buffers::owned(to_memory(data), OwnedMemory::new(size_of_val(data)))
}
