//! Copies between memory of this endpoint and that of peers, by reads and writes of the core ([`Copies`]).
//!
//! ```text
//! start(read of 9 x 128 KiB from A)    pieces 0 to 7: the core takes them        Pending
//! end of piece 0                       piece 8
//! end of pieces 1 to 8                 the result of the copy
//! ```
//! A piece is contiguous in our memory. Few pieces are under way, so that messages of both sides pass the same connection between
//! them. A copy has a result when no piece of it is under way, so the core does not access its memory any more.

use super::core_endpoint::{CoreAddress, CoreCopy, CoreMemory, Sent};
use super::place::OfiPlace;
use crate::memory::UserMemory;
use crate::{LocalHandle, RemoteCopy};
use std::time::{Duration, Instant};
use weir_proto::{CopyFault, Direction, RemoteAddress};

/// Length of a piece: short enough that the kernels' copies of those under way stay in the cache. Unit: bytes.
pub(super) const PIECE_BYTES: u64 = 128 << 10;
/// Pieces of one copy that are under way.
const PIECES_UNDER_WAY: u32 = 8;
/// Pieces that have begun or ended so recently say that others will end soon. A peer that computes ends none for longer.
const SOON: Duration = Duration::from_millis(5);

#[derive(Debug)]
struct Copy {
    /// Names its pieces at the core.
    number: u64,
    context: u64,
    place: OfiPlace,
    peer: CoreAddress,
    direction: Direction,
    remote: RemoteAddress,
    memory: UserMemory,
    handle: Option<LocalHandle>,
    /// Offset of the copy in our memory.
    begin: u64,
    bytes: u64,
    /// Bytes of the pieces that the core has taken.
    started: u64,
    under_way: u32,
    has_failed: bool,
}

impl Copy {
    /// The next piece.
    fn next_piece(&self, longest: u64) -> CoreCopy {
        let offset = self.begin + self.started;
        let most = (self.bytes - self.started).min(longest);
        let mut bytes = None;
        self.memory.for_each_stretch(offset, most, |_, stretch| {
            bytes.get_or_insert(stretch as u64);
        });
        let address = self.remote.address.wrapping_add(self.started);
        CoreCopy {
            context: self.number,
            peer: self.peer,
            direction: self.direction,
            remote: RemoteAddress { address, ..self.remote },
            offset,
            bytes: bytes.unwrap_or(0),
        }
    }

    /// Whether it has no piece any more, under way or to come.
    fn has_ended(&self) -> bool {
        self.under_way == 0 && (self.has_failed || self.started == self.bytes)
    }

    /// Lets the core take pieces.
    fn work(&mut self, core: &mut dyn CoreMemory) {
        while !self.has_failed && self.under_way < PIECES_UNDER_WAY && self.started < self.bytes {
            let piece = self.next_piece(core.longest_copy().min(PIECE_BYTES));
            match core.start(&piece, &self.memory, self.handle) {
                Sent::Taken => {
                    self.started += piece.bytes;
                    self.under_way += 1;
                }
                Sent::Busy => return,
                Sent::Failed => self.has_failed = true,
            }
        }
    }
}

/// A copy that has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub context: u64,
    pub place: OfiPlace,
    pub result: Result<u64, CopyFault>,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Copies {
    copies: Vec<Copy>,
    next_number: u64,
    /// When a piece has begun or ended last.
    moved_at: Option<Instant>,
}

impl Copies {
    /// Starts `copy`, whose peer is `peer` of the core at `place`.
    pub fn start(
        &mut self,
        (place, peer): (OfiPlace, CoreAddress),
        copy: &RemoteCopy,
        memory: &UserMemory,
        handle: Option<LocalHandle>,
        core: &mut dyn CoreMemory,
    ) {
        let RemoteCopy { context, direction, remote, offset: begin, bytes, .. } = *copy;
        let (number, memory) = (self.next_number, memory.view());
        let (started, under_way, has_failed) = (0, 0, false);
        self.next_number += 1;
        let mut copy = Copy {
            number,
            context,
            place,
            peer,
            direction,
            remote,
            memory,
            handle,
            begin,
            bytes,
            started,
            under_way,
            has_failed,
        };
        copy.work(core);
        self.copies.push(copy);
        self.moved_at = Some(Instant::now());
    }

    /// Takes the pieces that have ended, and lets the core take others.
    fn work(&mut self, core: &mut dyn CoreMemory) {
        while let Some((number, is_whole)) = core.next_end() {
            if let Some(copy) = self.copies.iter_mut().find(|copy| copy.number == number) {
                copy.under_way -= 1;
                copy.has_failed |= !is_whole;
            }
            self.moved_at = Some(Instant::now());
        }
        self.copies.iter_mut().for_each(|copy| copy.work(core));
    }

    /// A copy that has ended. One that has failed may have written any part of its bytes.
    pub fn next_ended(&mut self, core: &mut dyn CoreMemory) -> Option<Ended> {
        if self.copies.is_empty() {
            return None;
        }
        self.work(core);
        let index = self.copies.iter().position(Copy::has_ended)?;
        let Copy { context, place, bytes, has_failed, .. } = self.copies.remove(index);
        let result = if has_failed { Err(CopyFault::BadAddress) } else { Ok(bytes) };
        Some(Ended { context, place, result })
    }

    /// Whether a copy ends soon, as far as its pieces say, or has pieces that the core takes only later.
    pub fn must_poll(&self) -> bool {
        let waits = |copy: &Copy| copy.under_way == 0;
        let is_soon = || self.moved_at.is_some_and(|moved_at| moved_at.elapsed() < SOON);
        !self.copies.is_empty() && (self.copies.iter().any(waits) || is_soon())
    }

    /// Starts no piece of the copies that `forgets` any more, and drops those without a piece under way. Returns whether some
    /// are left.
    pub fn forget(&mut self, forgets: impl Fn(OfiPlace) -> bool, core: &mut dyn CoreMemory) -> bool {
        let forgotten = |copy: &&mut Copy| forgets(copy.place);
        self.copies.iter_mut().filter(forgotten).for_each(|copy| copy.has_failed = true);
        self.work(core);
        self.copies.retain(|copy| !(forgets(copy.place) && copy.has_ended()));
        self.copies.iter().any(|copy| forgets(copy.place))
    }

    /// The core accesses no memory any more: all copies have failed.
    pub fn core_has_closed(&mut self) {
        self.copies.iter_mut().for_each(|copy| (copy.under_way, copy.has_failed) = (0, true));
    }
}
