//! Collective algorithms of MPI libraries, as methods of a [`Group`] of ranks (a communicator). [`library`] holds the
//! choice that a library makes among them.
//!
//! ```text
//! rooted      broadcast, reduce, gather, scatter          symmetric   allreduce, allgather, reduce-scatter, barrier
//! alltoall    personalised exchange                       library     MPICH's and Open MPI's choices
//! ```
//!
//! Sources: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005; Bruck
//! et al. 1997; Hensgen, Finkel, Manber 1988 (dissemination); Open MPI, `coll/base`.

mod alltoall;
pub mod library;
mod rooted;
mod symmetric;

use std::ops::Range;

use crate::Picoseconds;
use crate::program::{Handle, Rank};

/// A group of ranks with consecutive numbers (a communicator). Each collective call has its own tag, so that
/// calls do not mix.
#[derive(Debug)]
pub struct Group {
    rank: Rank,
    first: u32,
    size: u32,
    me: u32,
    context: u64,
    calls: std::cell::Cell<u64>,
    combine_ps_per_kib: Picoseconds,
}

/// Tags of collective calls have this bit; tags of programs do not.
const COLLECTIVE: u64 = 1 << 63;

impl Group {
    /// The group of all ranks.
    pub fn all(rank: &Rank) -> Group {
        Group::of(rank, 0..rank.size(), 0)
    }

    /// The group of the ranks in `members`, which must contain ours. `context` distinguishes groups with
    /// common ranks.
    pub fn of(rank: &Rank, members: Range<u32>, context: u16) -> Group {
        assert!(
            members.contains(&rank.rank()) && members.end <= rank.size(),
            "{members:?} of {}",
            rank.size()
        );
        Group {
            rank: rank.clone(),
            first: members.start,
            size: members.end - members.start,
            me: rank.rank() - members.start,
            context: COLLECTIVE | u64::from(context) << 40,
            calls: std::cell::Cell::new(0),
            combine_ps_per_kib: 0,
        }
    }

    /// The same group, with a price for the reduction operation: processor time to combine one KiB. The
    /// default is 0.
    pub fn combining(self, combine_ps_per_kib: Picoseconds) -> Group {
        Group { combine_ps_per_kib, ..self }
    }

    /// Number of members.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Our number in the group.
    pub fn me(&self) -> u32 {
        self.me
    }

    fn tag(&self) -> u64 {
        self.calls.set(self.calls.get() + 1);
        self.context | (self.calls.get() & 0xff_ffff_ffff)
    }

    fn global(&self, member: u32) -> u32 {
        self.first + member
    }

    /// The member `distance` after us in the ring.
    fn after(&self, distance: u32) -> u32 {
        (self.me + distance) % self.size
    }

    /// The member `distance` before us in the ring; `distance` is at most the size.
    fn before(&self, distance: u32) -> u32 {
        (self.me + self.size - distance) % self.size
    }

    /// Our number relative to `root`. [`Group::absolute`] is the inverse.
    fn relative(&self, root: u32) -> u32 {
        (self.me + self.size - root) % self.size
    }

    fn absolute(&self, relative: u32, root: u32) -> u32 {
        (relative + root) % self.size
    }

    fn begin_send(&self, to: u32, tag: u64, bytes: u64) -> Handle {
        self.rank.isend(self.global(to), tag, bytes)
    }

    fn begin_receive(&self, from: u32, tag: u64, bytes: u64) -> Handle {
        self.rank.irecv(Some(self.global(from)), tag, bytes)
    }

    async fn send(&self, to: u32, tag: u64, bytes: u64) {
        self.rank.send(self.global(to), tag, bytes).await;
    }

    async fn receive(&self, from: u32, tag: u64, bytes: u64) {
        self.rank.recv(Some(self.global(from)), tag, bytes).await;
    }

    /// Sends to `to` and receives from `from` at the same time.
    fn exchange(
        &self,
        to: u32,
        from: u32,
        tag: u64,
        send_bytes: u64,
        receive_bytes: u64,
    ) -> impl Future<Output = ()> {
        self.rank.sendrecv(self.global(to), self.global(from), tag, send_bytes, receive_bytes)
    }

    /// Combines `bytes` received bytes with our own.
    fn combine(&self, bytes: u64) {
        if self.combine_ps_per_kib > 0 {
            self.rank.compute(self.combine_ps_per_kib * bytes / 1024);
        }
    }

    /// Offset of part `part`, if `bytes` bytes are split into `parts` nearly equal parts.
    fn part_start(bytes: u64, part: u32, parts: u32) -> u64 {
        bytes * u64::from(part) / u64::from(parts)
    }

    /// Length of the parts in `range`, if `bytes` bytes are split into `parts` nearly equal parts.
    fn part_bytes(bytes: u64, range: Range<u32>, parts: u32) -> u64 {
        Group::part_start(bytes, range.end, parts) - Group::part_start(bytes, range.start, parts)
    }
}

/// Reduces the members to a power of two, for algorithms that need one. Of the first `2 * rest` members only
/// the odd ones take part. Each also stands for its left neighbour.
#[derive(Clone, Copy, Debug)]
struct Folding {
    power: u32,
    rest: u32,
}

impl Folding {
    fn of(size: u32) -> Folding {
        let power = 1 << size.ilog2();
        Folding { power, rest: size - power }
    }

    /// The number of `member` among those that take part; `None` if its right neighbour stands for it.
    fn number(&self, member: u32) -> Option<u32> {
        match member {
            _ if member >= 2 * self.rest => Some(member - self.rest),
            _ if member.is_multiple_of(2) => None,
            _ => Some(member / 2),
        }
    }

    /// The member that has this number among those that take part.
    fn member(&self, number: u32) -> u32 {
        if number < self.rest { 2 * number + 1 } else { number + self.rest }
    }

    /// The first member for which the member with this number stands.
    fn first_part(&self, number: u32) -> u32 {
        if number < self.rest { 2 * number } else { number + self.rest }
    }
}

/// Splits `bytes` bytes into segments of at most `segment_bytes` (0: one segment). There is at least one
/// segment, which may be empty.
fn segments(bytes: u64, segment_bytes: u64) -> impl Iterator<Item = u64> {
    let segment_bytes = if segment_bytes == 0 { bytes.max(1) } else { segment_bytes };
    let count = bytes.div_ceil(segment_bytes).max(1);
    (0..count).map(move |index| segment_bytes.min(bytes - index * segment_bytes))
}
