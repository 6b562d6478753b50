//! Collectives without a root: barrier, allreduce, allgather, reduce-scatter. The halving that long reductions need is
//! here too, also for those with a root.

use super::{Folding, Group};

impl Group {
    /// Dissemination barrier: `ceil(log2 n)` rounds, one message per member and round.
    pub async fn barrier(&self) {
        let tag = self.tag();
        let mut distance = 1;
        while distance < self.size {
            self.exchange(self.after(distance), self.before(distance), tag, 0, 0).await;
            distance *= 2;
        }
    }

    /// Linear barrier (Open MPI, `basic_linear`): member 0 receives a message from each other member, then sends one to each.
    pub async fn barrier_linear(&self) {
        let tag = self.tag();
        if self.me > 0 {
            self.send(0, tag, 0).await;
            self.receive(0, tag, 0).await;
            return;
        }
        for from in 1..self.size {
            self.receive(from, tag, 0).await;
        }
        let sends: Vec<_> = (1..self.size).map(|to| self.begin_send(to, tag, 0)).collect();
        self.rank.wait_all(sends).await;
    }

    /// Barrier by recursive doubling. The number of members must be a power of two.
    pub async fn barrier_doubling(&self) {
        assert!(self.size.is_power_of_two(), "{} members", self.size);
        let tag = self.tag();
        let mut mask = 1;
        while mask < self.size {
            self.exchange(self.me ^ mask, self.me ^ mask, tag, 0, 0).await;
            mask *= 2;
        }
    }

    /// Barrier by pairwise exchange for any number of members (MPICH 1.2). Each member beyond the largest power of two
    /// pairs with one below: it sends before the exchange, and receives after it.
    pub async fn barrier_pairwise(&self) {
        let tag = self.tag();
        let paired = 1 << self.size.ilog2();
        if self.me >= paired {
            self.send(self.me - paired, tag, 0).await;
            return self.receive(self.me - paired, tag, 0).await;
        }
        let beyond = Some(self.me + paired).filter(|beyond| *beyond < self.size);
        if let Some(beyond) = beyond {
            self.receive(beyond, tag, 0).await;
        }
        let mut mask = 1;
        while mask < paired {
            self.exchange(self.me ^ mask, self.me ^ mask, tag, 0, 0).await;
            mask *= 2;
        }
        if let Some(beyond) = beyond {
            self.send(beyond, tag, 0).await;
        }
    }

    /// Barrier up a tree to member 0, and down again. The children of member `m` are `m * degree + 1` to
    /// `m * degree + degree`; `degree` is at least 1.
    pub async fn barrier_gather_broadcast(&self, degree: u32) {
        let tag = self.tag();
        let first = u64::from(self.me) * u64::from(degree) + 1;
        let size = u64::from(self.size);
        let below = (first..first + u64::from(degree)).take_while(|child| *child < size);
        let below: Vec<u32> = below.map(|child| child as u32).collect();
        let receives: Vec<_> = below.iter().map(|from| self.begin_receive(*from, tag, 0)).collect();
        self.rank.wait_all(receives).await;
        if self.me > 0 {
            let parent = (self.me - 1) / degree;
            self.send(parent, tag, 0).await;
            self.receive(parent, tag, 0).await;
        }
        let sends: Vec<_> = below.iter().map(|to| self.begin_send(*to, tag, 0)).collect();
        self.rank.wait_all(sends).await;
    }

    /// Allreduce by recursive doubling. Members beyond the largest power of two first give their vector to a
    /// neighbour.
    pub async fn allreduce(&self, bytes: u64) {
        let tag = self.tag();
        let folding = Folding::of(self.size);
        let Some(number) = self.fold(folding, tag, bytes).await else {
            self.receive(self.me + 1, tag, bytes).await;
            return;
        };
        let mut mask = 1;
        while mask < folding.power {
            let partner = folding.member(number ^ mask);
            self.exchange(partner, partner, tag, bytes, bytes).await;
            self.combine(bytes);
            mask *= 2;
        }
        self.unfold(folding, tag, bytes).await;
    }

    /// Allreduce of long vectors: reduce-scatter by recursive halving, then allgather by recursive doubling
    /// (Rabenseifner).
    pub async fn allreduce_halving(&self, bytes: u64) {
        let tag = self.tag();
        let folding = Folding::of(self.size);
        let Some(number) = self.fold(folding, tag, bytes).await else {
            self.receive(self.me + 1, tag, bytes).await;
            return;
        };
        let parts = |range| Group::part_bytes(bytes, range, folding.power);
        self.halve(folding, number, tag, parts).await;
        let mut mask = 1;
        while mask < folding.power {
            let partner = folding.member(number ^ mask);
            let (mine, theirs) = (number & !(mask - 1), (number ^ mask) & !(mask - 1));
            self.exchange(partner, partner, tag, parts(mine..mine + mask), parts(theirs..theirs + mask))
                .await;
            mask *= 2;
        }
        self.unfold(folding, tag, bytes).await;
    }

    /// Allreduce round the ring: `n - 1` steps that combine, then `n - 1` steps that distribute (Open MPI,
    /// `ring`).
    pub async fn allreduce_ring(&self, bytes: u64) {
        let tag = self.tag();
        let part = |part| Group::part_bytes(bytes, part..part + 1, self.size);
        for round in 0..2 {
            for step in 0..self.size - 1 {
                // In the second round each member starts with the part that it has completed: that of its
                // right neighbour.
                let (out, back) = (self.before(step), self.before(step + 1));
                let shifted = |member: u32| (member + round) % self.size;
                let (out, back) = (part(shifted(out)), part(shifted(back)));
                self.exchange(self.after(1), self.before(1), tag, out, back).await;
                if round == 0 {
                    self.combine(back);
                }
            }
        }
    }

    /// Allgather of `bytes` bytes from each member, round the ring.
    pub async fn allgather_ring(&self, bytes: u64) {
        let tag = self.tag();
        for _ in 1..self.size {
            self.exchange(self.after(1), self.before(1), tag, bytes, bytes).await;
        }
    }

    /// The same by recursive doubling. The number of members must be a power of two.
    pub async fn allgather_doubling(&self, bytes: u64) {
        assert!(self.size.is_power_of_two(), "{} members", self.size);
        let tag = self.tag();
        let mut mask = 1;
        while mask < self.size {
            let have = bytes * u64::from(mask);
            self.exchange(self.me ^ mask, self.me ^ mask, tag, have, have).await;
            mask *= 2;
        }
    }

    /// The same in `ceil(log2 n)` rounds, for any number of members (Bruck).
    pub async fn allgather_bruck(&self, bytes: u64) {
        let tag = self.tag();
        let mut distance = 1;
        while distance < self.size {
            let blocks = bytes * u64::from(distance.min(self.size - distance));
            self.exchange(self.before(distance), self.after(distance), tag, blocks, blocks).await;
            distance *= 2;
        }
    }

    /// The same with the left and right neighbour in turn. The number of members must be even (Open MPI,
    /// `neighbor_exchange`).
    pub async fn allgather_neighbours(&self, bytes: u64) {
        assert!(self.size.is_multiple_of(2), "{} members", self.size);
        let tag = self.tag();
        for step in 0..self.size / 2 {
            let to_the_right = (self.me + step).is_multiple_of(2);
            let partner = if to_the_right { self.after(1) } else { self.before(1) };
            let blocks = if step == 0 { bytes } else { 2 * bytes };
            self.exchange(partner, partner, tag, blocks, blocks).await;
        }
    }

    /// Reduce-scatter of `bytes` bytes, counted over all members, by recursive halving (MPICH and Open MPI,
    /// short vectors).
    pub async fn reduce_scatter_halving(&self, bytes: u64) {
        let tag = self.tag();
        let folding = Folding::of(self.size);
        let part = |member| Group::part_bytes(bytes, member..member + 1, self.size);
        let Some(number) = self.fold(folding, tag, bytes).await else {
            self.receive(self.me + 1, tag, part(self.me)).await;
            return;
        };
        let start = |number| match number {
            _ if number == folding.power => self.size,
            _ => folding.first_part(number),
        };
        let parts = |range: std::ops::Range<u32>| {
            Group::part_bytes(bytes, start(range.start)..start(range.end), self.size)
        };
        self.halve(folding, number, tag, parts).await;
        if self.me < 2 * folding.rest {
            self.send(self.me - 1, tag, part(self.me - 1)).await;
        }
    }

    /// The same with one partner at a time, which gets its part (MPICH, long vectors).
    pub async fn reduce_scatter_pairwise(&self, bytes: u64) {
        let tag = self.tag();
        let part = |member| Group::part_bytes(bytes, member..member + 1, self.size);
        for step in 1..self.size {
            let to = self.after(step);
            self.exchange(to, self.before(step), tag, part(to), part(self.me)).await;
            self.combine(part(self.me));
        }
    }

    /// The same round the ring (Open MPI, long vectors).
    pub async fn reduce_scatter_ring(&self, bytes: u64) {
        let tag = self.tag();
        let part = |member| Group::part_bytes(bytes, member..member + 1, self.size);
        for step in 1..self.size {
            let (out, back) = (part(self.before(step)), part(self.before(step + 1)));
            self.exchange(self.after(1), self.before(1), tag, out, back).await;
            self.combine(back);
        }
    }

    /// Step before an algorithm that needs a power of two. Returns our number in it, or `None` if we gave our
    /// vector to the right neighbour.
    pub(super) async fn fold(&self, folding: Folding, tag: u64, bytes: u64) -> Option<u32> {
        let number = folding.number(self.me);
        if number.is_none() {
            self.send(self.me + 1, tag, bytes).await;
        } else if self.me < 2 * folding.rest {
            self.receive(self.me - 1, tag, bytes).await;
            self.combine(bytes);
        }
        number
    }

    /// Step after such an algorithm: sends the result to the left neighbour if we stood for it.
    async fn unfold(&self, folding: Folding, tag: u64, bytes: u64) {
        if self.me < 2 * folding.rest {
            self.send(self.me - 1, tag, bytes).await;
        }
    }

    /// Reduce-scatter by recursive halving. `parts` returns the length of the parts of a range of numbers.
    pub(super) async fn halve(
        &self,
        folding: Folding,
        number: u32,
        tag: u64,
        parts: impl Fn(std::ops::Range<u32>) -> u64,
    ) {
        let mut mine = 0..folding.power;
        while mine.len() > 1 {
            let half = mine.len() as u32 / 2;
            let middle = mine.start + half;
            let (kept, given) = match number < middle {
                true => (mine.start..middle, middle..mine.end),
                false => (middle..mine.end, mine.start..middle),
            };
            let partner = folding.member(number ^ half);
            self.exchange(partner, partner, tag, parts(given), parts(kept.clone())).await;
            self.combine(parts(kept.clone()));
            mine = kept;
        }
    }
}
