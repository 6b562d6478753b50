//! Collectives as MPI libraries do them, over the calls of a [`Rank`]: the textbook algorithms, by name.
//!
//! Sources: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005; Bruck et al.
//! 1997; Hensgen, Finkel, Manber 1988 (dissemination).

use std::ops::Range;

use crate::program::Rank;

/// Some of the ranks, by consecutive numbers, with a number of their own for each call so that calls do not mix.
#[derive(Debug)]
pub struct Group {
    rank: Rank,
    first: u32,
    size: u32,
    me: u32,
    context: u64,
    calls: std::cell::Cell<u64>,
}

/// Tags of collectives have this bit; programs use tags below it.
const COLLECTIVE: u64 = 1 << 63;

impl Group {
    /// All ranks.
    pub fn all(rank: &Rank) -> Group {
        Group::of(rank, 0..rank.size(), 0)
    }

    /// The ranks of a range, which must contain ours. `context` tells groups with common ranks apart.
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
        }
    }

    /// How many they are.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Our number among them.
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

    /// Barrier by dissemination: `ceil(log2 n)` rounds of a message each.
    pub async fn barrier(&self) {
        let tag = self.tag();
        let mut distance = 1;
        while distance < self.size {
            let to = (self.me + distance) % self.size;
            let from = (self.me + self.size - distance) % self.size;
            self.rank.sendrecv(self.global(to), self.global(from), tag, 0, 0).await;
            distance *= 2;
        }
    }

    /// Broadcast of `bytes` bytes from member `root` along a binomial tree.
    pub async fn broadcast(&self, root: u32, bytes: u64) {
        let tag = self.tag();
        let relative = (self.me + self.size - root) % self.size;
        let mut mask = 1;
        while mask < self.size {
            if relative & mask != 0 {
                let parent = (relative - mask + root) % self.size;
                self.rank.recv(Some(self.global(parent)), tag, bytes).await;
                break;
            }
            mask *= 2;
        }
        mask /= 2;
        while mask > 0 {
            if relative + mask < self.size {
                let child = (relative + mask + root) % self.size;
                self.rank.send(self.global(child), tag, bytes).await;
            }
            mask /= 2;
        }
    }

    /// Reduction of `bytes` bytes to member `root` along a binomial tree.
    pub async fn reduce(&self, root: u32, bytes: u64) {
        let tag = self.tag();
        let relative = (self.me + self.size - root) % self.size;
        let mut mask = 1;
        while mask < self.size {
            if relative & mask == 0 {
                if relative | mask < self.size {
                    let child = ((relative | mask) + root) % self.size;
                    self.rank.recv(Some(self.global(child)), tag, bytes).await;
                }
            } else {
                let parent = ((relative & !mask) + root) % self.size;
                self.rank.send(self.global(parent), tag, bytes).await;
                break;
            }
            mask *= 2;
        }
    }

    /// Sum over all by recursive doubling; members beyond the largest power of two lend theirs to a neighbour first.
    pub async fn allreduce(&self, bytes: u64) {
        let tag = self.tag();
        let power = 1 << self.size.ilog2();
        let rest = self.size - power;
        let folded = if self.me < 2 * rest {
            if self.me.is_multiple_of(2) {
                self.rank.send(self.global(self.me + 1), tag, bytes).await;
                self.rank.recv(Some(self.global(self.me + 1)), tag, bytes).await;
                return;
            }
            self.rank.recv(Some(self.global(self.me - 1)), tag, bytes).await;
            self.me / 2
        } else {
            self.me - rest
        };
        let mut mask = 1;
        while mask < power {
            let partner = folded ^ mask;
            let partner = if partner < rest { 2 * partner + 1 } else { partner + rest };
            let partner = self.global(partner);
            self.rank.sendrecv(partner, partner, tag, bytes, bytes).await;
            mask *= 2;
        }
        if self.me < 2 * rest {
            self.rank.send(self.global(self.me - 1), tag, bytes).await;
        }
    }

    /// Everybody's `bytes` bytes to everybody, round the ring.
    pub async fn allgather_ring(&self, bytes: u64) {
        let tag = self.tag();
        let right = self.global((self.me + 1) % self.size);
        let left = self.global((self.me + self.size - 1) % self.size);
        for _ in 1..self.size {
            self.rank.sendrecv(right, left, tag, bytes, bytes).await;
        }
    }

    /// Personalised exchange of `bytes` bytes with everybody: all receives and all sends are posted, in linear order from our own
    /// number on, with at most `window` sends under way (0: all at once).
    pub async fn alltoall_linear(&self, bytes: u64, window: u32) {
        let tag = self.tag();
        let mut receives = Vec::with_capacity(self.size as usize);
        for step in 1..self.size {
            let from = (self.me + self.size - step) % self.size;
            receives.push(self.rank.irecv(Some(self.global(from)), tag, bytes));
        }
        let mut sends = std::collections::VecDeque::new();
        for step in 1..self.size {
            if window > 0 && sends.len() == window as usize {
                let oldest = sends.pop_front().expect("a full window");
                self.rank.wait(oldest).await;
            }
            sends.push_back(self.rank.isend(self.global((self.me + step) % self.size), tag, bytes));
        }
        self.rank.wait_all(sends).await;
        self.rank.wait_all(receives).await;
    }

    /// Personalised exchange, one partner at a time.
    pub async fn alltoall_pairwise(&self, bytes: u64) {
        let tag = self.tag();
        for step in 1..self.size {
            let (to, from) = if self.size.is_power_of_two() {
                (self.me ^ step, self.me ^ step)
            } else {
                ((self.me + step) % self.size, (self.me + self.size - step) % self.size)
            };
            self.rank.sendrecv(self.global(to), self.global(from), tag, bytes, bytes).await;
        }
    }

    /// Personalised exchange in `ceil(log2 n)` rounds that carry about half of everything each (Bruck).
    pub async fn alltoall_bruck(&self, bytes: u64) {
        let tag = self.tag();
        let mut distance = 1;
        while distance < self.size {
            let blocks = (0..self.size).filter(|block| block & distance != 0).count() as u64;
            let to = self.global((self.me + distance) % self.size);
            let from = self.global((self.me + self.size - distance) % self.size);
            self.rank.sendrecv(to, from, tag, blocks * bytes, blocks * bytes).await;
            distance *= 2;
        }
    }

    /// `bytes` bytes from member `root` to each of the others, one after the other (as `MPI_Scatterv` is done).
    pub async fn scatter_linear(&self, root: u32, bytes: u64) {
        let tag = self.tag();
        if self.me != root {
            self.rank.recv(Some(self.global(root)), tag, bytes).await;
            return;
        }
        let others = (0..self.size).filter(|&member| member != root);
        let sends: Vec<_> = others.map(|member| self.rank.isend(self.global(member), tag, bytes)).collect();
        self.rank.wait_all(sends).await;
    }

    /// `bytes` bytes from each of the others to member `root`, which takes them in order.
    pub async fn gather_linear(&self, root: u32, bytes: u64) {
        let tag = self.tag();
        if self.me != root {
            self.rank.send(self.global(root), tag, bytes).await;
            return;
        }
        let others = (0..self.size).filter(|&member| member != root);
        let receives: Vec<_> =
            others.map(|member| self.rank.irecv(Some(self.global(member)), tag, bytes)).collect();
        self.rank.wait_all(receives).await;
    }
}
