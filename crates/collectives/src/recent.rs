//! The last calls of a thread for a communicator, by kind. Programs make the same call again and again, most often with other buffers.
//! What follows from its counts and handles is found out once.
//!
//! Only calls are remembered whose data a group takes and gives in the program's buffers, and only handles that mean the same
//! as long as the MPI runs: those of built-in datatypes and operations. This file does not know what a group does.

use crate::call::{Call, Kind};
use std::ffi::c_int;
use weir_link::shm::node_group::Operation;
use weir_proto::offload::reduce::Vector;

/// What a remembered call does, but for its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Barrier,
    Broadcast { bytes: u32 },
    Reduce(Vector),
    AllReduce(Vector),
}

/// A remembered call.
#[derive(Clone, Copy, Debug)]
struct Remembered {
    count: i64,
    /// The handles, as they came.
    datatype: usize,
    operation: usize,
    shape: Shape,
}

/// A call that is like a remembered one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeated {
    /// What the group does.
    pub operation: Operation,
    /// What this member contributes. 0: nothing.
    pub data: usize,
    /// Where its result goes. 0: it gets none.
    pub result: usize,
}

/// The last calls.
#[derive(Debug, Default)]
pub struct Recent {
    barrier: Option<Remembered>,
    broadcast: Option<Remembered>,
    reduce: Option<Remembered>,
    all_reduce: Option<Remembered>,
}

impl Recent {
    fn place(&mut self, kind: Kind) -> Option<&mut Option<Remembered>> {
        match kind {
            Kind::Barrier => Some(&mut self.barrier),
            Kind::Broadcast => Some(&mut self.broadcast),
            Kind::Reduce => Some(&mut self.reduce),
            Kind::AllReduce => Some(&mut self.all_reduce),
            _ => None,
        }
    }

    /// Remembers a call whose buffers a group can use as they are.
    pub fn remember(&mut self, call: &Call, operation: Operation) {
        let shape = match operation {
            Operation::Barrier => Shape::Barrier,
            Operation::Broadcast { bytes, .. } => Shape::Broadcast { bytes },
            Operation::Reduce { vector, .. } => Shape::Reduce(vector),
            Operation::AllReduce(vector) => Shape::AllReduce(vector),
            _ => return,
        };
        if let Some(place) = self.place(call.kind) {
            let (count, datatype) = (call.receive.count, call.receive.datatype);
            *place = Some(Remembered { count, datatype, operation: call.operation, shape });
        }
    }

    /// What a call does that is like a remembered one. `None`: it is another one, or one whose buffers need a closer look.
    ///
    /// - `rank`, `members`: of the communicator.
    /// - `in_place`: the address that is `MPI_IN_PLACE`.
    #[inline]
    pub fn repeated(
        &mut self,
        call: &Call,
        (rank, members): (u32, u32),
        in_place: usize,
    ) -> Option<Repeated> {
        let remembered = (*self.place(call.kind)?)?;
        let is_same = (call.receive.count, call.receive.datatype, call.operation)
            == (remembered.count, remembered.datatype, remembered.operation);
        if !is_same {
            return None;
        }
        let root = |root: c_int| u32::try_from(root).ok().filter(|&root| root < members);
        let is_buffer = |at: usize| at != 0 && at != in_place;
        let (send, receive) = (call.send.at, call.receive.at);
        let are_buffers = |vector: Vector| {
            let is_apart = send.abs_diff(receive) >= vector.bytes as usize;
            (is_buffer(send) && is_buffer(receive) && is_apart).then_some((send, receive))
        };
        let (operation, (data, result)) = match remembered.shape {
            Shape::Barrier => (Operation::Barrier, (0, 0)),
            Shape::Broadcast { bytes } => {
                let (root, at) = (root(call.root)?, Some(receive).filter(|&at| is_buffer(at))?);
                (Operation::Broadcast { root, bytes }, if root == rank { (at, 0) } else { (0, at) })
            }
            Shape::Reduce(vector) => {
                let root = root(call.root)?;
                let data = || is_buffer(send).then_some((send, 0));
                (Operation::Reduce { root, vector }, if root == rank { are_buffers(vector) } else { data() }?)
            }
            Shape::AllReduce(vector) => (Operation::AllReduce(vector), are_buffers(vector)?),
        };
        Some(Repeated { operation, data, result })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elements::Buffer;
    use weir_proto::offload::{Combination, WordOperation, WordType};

    const IN_PLACE: usize = usize::MAX;
    const DOUBLE: usize = 0x4c00_080b;
    const SUM: usize = 0x5800_0003;

    fn buffer(at: usize, count: i64) -> Buffer {
        Buffer { at, count, datatype: DOUBLE }
    }

    fn reduction(kind: Kind, send: usize, receive: usize, root: c_int) -> Call {
        let (send, receive) = (buffer(send, 2), buffer(receive, 2));
        Call { send, receive, operation: SUM, root, ..Call::new("a reduction", kind, 1) }
    }

    fn vector() -> Vector {
        let combination = Combination { operation: WordOperation::Sum, word_type: WordType::F64 };
        Vector { bytes: 16, combination }
    }

    #[test]
    fn a_call_with_other_buffers_or_another_root_is_the_same_again() {
        let mut recent = Recent::default();
        let call = reduction(Kind::Reduce, 100, 200, 0);
        assert_eq!(recent.repeated(&call, (0, 3), IN_PLACE), None, "nothing is remembered");
        recent.remember(&call, Operation::Reduce { root: 0, vector: vector() });
        let of = |root, data, result| {
            let operation = Operation::Reduce { root, vector: vector() };
            Some(Repeated { operation, data, result })
        };
        let mut repeated = |call: &Call, rank| recent.repeated(call, (rank, 3), IN_PLACE);
        assert_eq!(repeated(&reduction(Kind::Reduce, 300, 400, 2), 2), of(2, 300, 400));
        assert_eq!(
            repeated(&reduction(Kind::Reduce, 300, 0, 2), 1),
            of(2, 300, 0),
            "others need no receive buffer"
        );
        assert_eq!(repeated(&reduction(Kind::AllReduce, 300, 400, 2), 2), None, "another kind");
        let longer = Call { receive: buffer(400, 3), ..reduction(Kind::Reduce, 300, 400, 2) };
        assert_eq!(repeated(&longer, 2), None);
        let other = Call { operation: SUM + 1, ..reduction(Kind::Reduce, 300, 400, 2) };
        assert_eq!(repeated(&other, 2), None);
        let typed = Call { receive: Buffer { datatype: DOUBLE + 1, ..buffer(400, 2) }, ..call };
        assert_eq!(repeated(&typed, 2), None);
    }

    #[test]
    fn what_needs_a_closer_look_is_not_the_same_again() {
        let mut recent = Recent::default();
        let call = reduction(Kind::AllReduce, 100, 200, 0);
        recent.remember(&call, Operation::AllReduce(vector()));
        recent
            .remember(&reduction(Kind::Reduce, 100, 200, 0), Operation::Reduce { root: 0, vector: vector() });
        let mut repeats = |kind, send, receive, root| {
            recent.repeated(&reduction(kind, send, receive, root), (1, 3), IN_PLACE).is_some()
        };
        assert!(repeats(Kind::AllReduce, 100, 116, 0) && repeats(Kind::AllReduce, 116, 100, 0));
        for (send, receive) in [(IN_PLACE, 200), (0, 200), (100, 0), (100, 115), (115, 100), (100, 100)] {
            assert!(!repeats(Kind::AllReduce, send, receive, 0), "{send}, {receive}");
            assert!(!repeats(Kind::Reduce, send, receive, 1), "{send}, {receive}: at the root");
        }
        for root in [3, -1, c_int::MIN] {
            assert!(!repeats(Kind::Reduce, 100, 200, root), "{root} is no root");
        }
    }

    #[test]
    fn of_a_broadcast_the_root_gives_its_buffer_and_others_get_theirs() {
        let mut recent = Recent::default();
        let call = |at, root| Call {
            send: buffer(at, 2),
            receive: buffer(at, 2),
            root,
            ..Call::new("a broadcast", Kind::Broadcast, 1)
        };
        recent.remember(&call(100, 0), Operation::Broadcast { root: 0, bytes: 16 });
        let mut repeated = |at, root| recent.repeated(&call(at, root), (1, 3), IN_PLACE);
        let of = |root, data, result| {
            let operation = Operation::Broadcast { root, bytes: 16 };
            Some(Repeated { operation, data, result })
        };
        assert_eq!((repeated(300, 1), repeated(300, 2)), (of(1, 300, 0), of(2, 0, 300)));
        assert_eq!((repeated(0, 1), repeated(IN_PLACE, 2)), (None, None));
    }

    #[test]
    fn barriers_are_all_the_same_and_calls_with_blocks_are_never_remembered() {
        let mut recent = Recent::default();
        let barrier = Call::new("MPI_Barrier", Kind::Barrier, 1);
        recent.remember(&barrier, Operation::Barrier);
        let repeated = Some(Repeated { operation: Operation::Barrier, data: 0, result: 0 });
        assert_eq!(recent.repeated(&barrier, (0, 2), IN_PLACE), repeated);
        let gather = Call { receive: buffer(100, 2), ..Call::new("MPI_Allgather", Kind::AllGather, 1) };
        recent.remember(&gather, Operation::AllGather { bytes: 16 });
        assert_eq!(recent.repeated(&gather, (0, 2), IN_PLACE), None);
    }
}
