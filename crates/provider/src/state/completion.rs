//! Translates the engine's completions to queue entries and counts.
//!
//! These completions make an entry, as libfabric and MPI libraries require:
//! - errors, peeks, remote writes of a peer that carry data, and the release of a multi-receive buffer: always.
//! - successes: if the queue was bound without `FI_SELECTIVE_COMPLETION`, or the call requested it ([`WANTS_ENTRY`]).
//! - successes of injected messages: never.
//!
//! Counters count sends, receives, reads and writes once each, whether they make an entry or not.

use std::ffi::c_int;
use weir_engine::{Completion, Operation};
use weir_proto::{Envelope, Outcome, Space};

use super::entry::Entry;
use crate::errno::completion as number;
use crate::ffi::{ADDR_UNSPEC, flags};

/// Bit in the cookie of a post: a success makes a queue entry.
pub const WANTS_ENTRY: u64 = 1;

/// Bit in the cookie of a post: the operation receives or discards a claimed message without tag. The engine does not
/// report the kind of claimed messages.
pub const UNTAGGED_CLAIM: u64 = 2;

/// The side of an endpoint whose queue gets an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Sends, reads and writes.
    Transmit,
    /// Receives, and accesses of peers to this process's memory.
    Receive,
}

/// A completion as the program sees it.
#[derive(Debug)]
pub struct Report {
    /// The side whose queue gets the entry.
    pub side: Side,
    /// The entry, still without its source.
    pub entry: Entry,
    /// Whether the entry goes to the queue.
    pub queued: bool,
    /// The counter that counts it, if any: one of the operation bits of [`flags`].
    pub counter_flag: Option<u64>,
    /// The message, for its source and claim.
    pub envelope: Option<Envelope>,
}

/// Flags that describe an operation.
#[inline(always)]
fn kind_flags(completion: &Completion) -> (Side, u64) {
    let space = match completion.space {
        _ if completion.post.cookie & UNTAGGED_CLAIM != 0 => flags::MSG,
        Space::Tagged => flags::TAGGED,
        Space::Untagged => flags::MSG,
    };
    match completion.operation {
        Operation::Send => (Side::Transmit, flags::SEND | space),
        Operation::Read => (Side::Transmit, flags::RMA | flags::READ),
        Operation::Write => (Side::Transmit, flags::RMA | flags::WRITE),
        Operation::Atomic => (Side::Transmit, flags::ATOMIC | flags::READ),
        Operation::AtomicWrite => (Side::Transmit, flags::ATOMIC | flags::WRITE),
        Operation::Collective | Operation::Join => (Side::Transmit, flags::COLLECTIVE),
        Operation::Receive | Operation::MultiReceive | Operation::Peek => {
            (Side::Receive, flags::RECV | space)
        }
        Operation::RemoteWrite => (Side::Receive, flags::RMA | flags::REMOTE_WRITE | flags::REMOTE_CQ_DATA),
    }
}

/// The counter that counts an operation.
#[inline(always)]
fn counter_of(operation: Operation) -> Option<u64> {
    match operation {
        Operation::Send => Some(flags::SEND),
        Operation::Receive | Operation::MultiReceive => Some(flags::RECV),
        Operation::Read | Operation::Atomic => Some(flags::READ),
        Operation::Write | Operation::AtomicWrite => Some(flags::WRITE),
        Operation::Peek | Operation::Collective | Operation::Join | Operation::RemoteWrite => None,
    }
}

/// Translates one completion. It is inlined, because little is left of it where the operation is known.
#[inline(always)]
pub fn report(completion: &Completion) -> Report {
    let (side, kind_flags) = kind_flags(completion);
    let multi = completion.operation == Operation::MultiReceive;
    let mut entry = Entry {
        context: completion.post.context,
        flags: kind_flags,
        length: 0,
        buffer: 0,
        data: 0,
        tag: 0,
        source: ADDR_UNSPEC,
        excess: 0,
        error: 0,
    };
    let always_queued = matches!(completion.operation, Operation::Peek | Operation::RemoteWrite);
    let mut queued = always_queued || completion.post.cookie & WANTS_ENTRY != 0;
    let mut counter_flag = counter_of(completion.operation);
    let mut message_envelope = None;
    match completion.outcome {
        Outcome::Done => {}
        Outcome::Received { envelope, bytes, last, .. } => {
            set_envelope(&mut entry, &envelope);
            entry.length = bytes;
            entry.buffer = completion.buffer;
            if envelope.length > bytes {
                fail(&mut entry, number::TRUNCATED);
                entry.excess = envelope.length - bytes;
            }
            if multi && last {
                entry.flags |= flags::MULTI_RECV;
                queued = true;
            }
            message_envelope = Some(envelope);
        }
        Outcome::Released => {
            // Without FI_RECV, because MPI libraries take that for a message.
            entry.flags = flags::MULTI_RECV;
            queued = true;
            counter_flag = None;
        }
        Outcome::Found { envelope, .. } => {
            set_envelope(&mut entry, &envelope);
            entry.length = envelope.length;
            message_envelope = Some(envelope);
        }
        Outcome::Absent => fail(&mut entry, number::NO_MESSAGE),
        Outcome::Canceled => fail(&mut entry, number::CANCELED),
        Outcome::Lost { fault, .. } => fail(&mut entry, number::lost(fault)),
        Outcome::Refused => fail(&mut entry, number::REFUSED),
    }
    if entry.error != 0 {
        queued = true;
        if multi && matches!(completion.outcome, Outcome::Canceled | Outcome::Lost { .. }) {
            entry.flags |= flags::MULTI_RECV; // the buffer belongs to the program again
        }
    }
    Report { side, entry, queued, counter_flag, envelope: message_envelope }
}

#[inline(always)]
fn set_envelope(entry: &mut Entry, envelope: &Envelope) {
    entry.tag = envelope.tag;
    if let Some(data) = envelope.data {
        entry.data = data;
        entry.flags |= flags::REMOTE_CQ_DATA;
    }
}

#[inline(always)]
fn fail(entry: &mut Entry, error: c_int) {
    entry.error = error;
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_engine::Post;
    use weir_proto::Peer;

    fn completion(operation: Operation, outcome: Outcome, cookie: u64) -> Completion {
        Completion {
            post: Post { context: 77, cookie },
            operation,
            space: Space::Tagged,
            outcome,
            buffer: 4096,
        }
    }

    fn received(length: u64, bytes: u64, last: bool) -> Outcome {
        let envelope = Envelope { from: Peer(3), tag: 9, data: Some(5), length };
        Outcome::Received { envelope, bytes, offset: 0, last }
    }

    #[test]
    fn a_send_without_completion_flag_counts_but_makes_no_entry() {
        let report = report(&completion(Operation::Send, Outcome::Done, 0));
        assert!(!report.queued);
        assert_eq!(report.counter_flag, Some(flags::SEND));
    }

    #[test]
    fn a_fetching_atomic_counts_as_a_read() {
        let report = report(&completion(Operation::Atomic, Outcome::Done, WANTS_ENTRY));
        assert_eq!((report.side, report.counter_flag), (Side::Transmit, Some(flags::READ)));
        assert_eq!((report.queued, report.entry.flags), (true, flags::ATOMIC | flags::READ));
    }

    #[test]
    fn an_atomic_that_fetches_nothing_counts_as_a_write() {
        let report = report(&completion(Operation::AtomicWrite, Outcome::Done, WANTS_ENTRY));
        assert_eq!((report.side, report.counter_flag), (Side::Transmit, Some(flags::WRITE)));
        assert_eq!((report.queued, report.entry.flags), (true, flags::ATOMIC | flags::WRITE));
    }

    #[test]
    fn a_tagged_receive_with_data_has_the_flags_that_mpi_expects() {
        let entry = report(&completion(Operation::Receive, received(8, 8, true), WANTS_ENTRY)).entry;
        assert_eq!((entry.flags, entry.length, entry.tag, entry.data), (0x20408, 8, 9, 5));
    }

    #[test]
    fn a_truncated_receive_is_an_error_with_both_lengths() {
        let report = report(&completion(Operation::Receive, received(10, 4, true), 0));
        assert!(report.queued);
        assert_eq!((report.entry.error, report.entry.length, report.entry.excess), (265, 4, 6));
    }

    #[test]
    fn a_released_multi_receive_buffer_is_reported_without_fi_recv() {
        let report = report(&completion(Operation::MultiReceive, Outcome::Released, 0));
        assert!(report.queued && report.counter_flag.is_none());
        assert_eq!(report.entry.flags, flags::MULTI_RECV);
    }

    #[test]
    fn a_cancelled_multi_receive_has_the_flags_that_intel_mpi_waits_for() {
        let mut canceled = completion(Operation::MultiReceive, Outcome::Canceled, 0);
        canceled.space = Space::Untagged;
        let entry = report(&canceled).entry;
        assert_eq!((entry.error, entry.flags), (125, flags::MULTI_RECV | flags::RECV | flags::MSG));
    }

    #[test]
    fn a_peek_that_finds_nothing_is_an_error_entry() {
        let report = report(&completion(Operation::Peek, Outcome::Absent, 0));
        assert!(report.queued && report.counter_flag.is_none());
        assert_eq!(report.entry.error, 42);
    }
}
