//! Collectives with a root: broadcast, reduce, gather, scatter.

use super::{Folding, Group, segments};

impl Group {
    /// Broadcast of `bytes` bytes from `root` along a binomial tree.
    pub async fn broadcast(&self, root: u32, bytes: u64) {
        let tag = self.tag();
        let relative = self.relative(root);
        let mut mask = 1;
        while mask < self.size {
            if relative & mask != 0 {
                self.receive(self.absolute(relative - mask, root), tag, bytes).await;
                break;
            }
            mask *= 2;
        }
        mask /= 2;
        while mask > 0 {
            if relative + mask < self.size {
                self.send(self.absolute(relative + mask, root), tag, bytes).await;
            }
            mask /= 2;
        }
    }

    /// Broadcast of long messages: scatters the parts along a binomial tree, then all parts travel round the
    /// ring (MPICH).
    pub async fn broadcast_scatter_ring(&self, root: u32, bytes: u64) {
        self.scatter_parts(root, bytes).await;
        let tag = self.tag();
        let relative = self.relative(root);
        let part = |part| Group::part_bytes(bytes, part..part + 1, self.size);
        for step in 0..self.size - 1 {
            let out = (relative + self.size - step) % self.size;
            let back = (relative + self.size - step - 1) % self.size;
            self.exchange(self.after(1), self.before(1), tag, part(out), part(back)).await;
        }
    }

    /// The same, with recursive doubling as second step. The number of members must be a power of two (MPICH,
    /// medium messages).
    pub async fn broadcast_scatter_doubling(&self, root: u32, bytes: u64) {
        assert!(self.size.is_power_of_two(), "{} members", self.size);
        self.scatter_parts(root, bytes).await;
        let tag = self.tag();
        let relative = self.relative(root);
        let parts = |start, count| Group::part_bytes(bytes, start..start + count, self.size);
        let mut mask = 1;
        while mask < self.size {
            let partner = self.absolute(relative ^ mask, root);
            let (mine, theirs) = (relative & !(mask - 1), (relative ^ mask) & !(mask - 1));
            self.exchange(partner, partner, tag, parts(mine, mask), parts(theirs, mask)).await;
            mask *= 2;
        }
    }

    /// Scatters `bytes` bytes along a binomial tree: each member gets its part.
    async fn scatter_parts(&self, root: u32, bytes: u64) {
        self.scatter_tree(root, |range| Group::part_bytes(bytes, range, self.size)).await;
    }

    /// Broadcast along a binary tree, in segments: each side of the tree carries one half of the message.
    /// Then left and right members exchange their halves (Open MPI, `split_bintree`).
    pub async fn broadcast_split_binary(&self, root: u32, bytes: u64, segment_bytes: u64) {
        if self.size < 3 || bytes < 2 {
            return self.broadcast(root, bytes).await;
        }
        let tag = self.tag();
        let relative = self.relative(root);
        let halves = [bytes.div_ceil(2), bytes / 2];
        // Members are numbered by level. Odd members are on the left of the root, even ones on the right.
        let width = 1 << (relative + 1).ilog2();
        let children =
            [relative + width, relative + 2 * width].into_iter().filter(|&child| child < self.size);
        let children: Vec<u32> = children.map(|child| self.absolute(child, root)).collect();
        if relative == 0 {
            let [left, right] = halves.map(|half| segments(half, segment_bytes).collect::<Vec<_>>());
            for index in 0..left.len().max(right.len()) {
                for (child, half) in children.iter().zip([&left, &right]) {
                    if let Some(&segment) = half.get(index) {
                        self.send(*child, tag, segment).await;
                    }
                }
            }
        } else {
            // The parent is half a level before the member, or a whole level.
            let (near, level_start) = (relative - width / 2, width - 1);
            let parent = if near < level_start { near } else { relative - width };
            let half = halves[usize::from(relative.is_multiple_of(2))];
            for segment in segments(half, segment_bytes) {
                self.receive(self.absolute(parent, root), tag, segment).await;
                for &child in &children {
                    self.send(child, tag, segment).await;
                }
            }
        }
        // The last of an even number of members has no right neighbour. It gets the right half from the root.
        let last_is_single = self.size.is_multiple_of(2);
        let last = self.size - 1;
        match relative {
            0 if last_is_single => self.send(self.absolute(last, root), tag, halves[1]).await,
            0 => {}
            _ if last_is_single && relative == last => self.receive(root, tag, halves[1]).await,
            _ if relative.is_multiple_of(2) => {
                let left = self.absolute(relative - 1, root);
                self.exchange(left, left, tag, halves[1], halves[0]).await;
            }
            _ => {
                let right = self.absolute(relative + 1, root);
                self.exchange(right, right, tag, halves[0], halves[1]).await;
            }
        }
    }

    /// Broadcast along a chain, in segments (Open MPI, `pipeline`).
    pub async fn broadcast_pipeline(&self, root: u32, bytes: u64, segment_bytes: u64) {
        let tag = self.tag();
        let relative = self.relative(root);
        for segment in segments(bytes, segment_bytes) {
            if relative > 0 {
                self.receive(self.before(1), tag, segment).await;
            }
            if relative + 1 < self.size {
                self.send(self.after(1), tag, segment).await;
            }
        }
    }

    /// Reduction of `bytes` bytes to `root` along a binomial tree.
    pub async fn reduce(&self, root: u32, bytes: u64) {
        self.reduce_segmented(root, bytes, 0).await;
    }

    /// The same, in segments of `segment_bytes` (0: one segment).
    pub async fn reduce_segmented(&self, root: u32, bytes: u64, segment_bytes: u64) {
        let tag = self.tag();
        let relative = self.relative(root);
        for segment in segments(bytes, segment_bytes) {
            let mut mask = 1;
            while mask < self.size {
                if relative & mask != 0 {
                    self.send(self.absolute(relative & !mask, root), tag, segment).await;
                    break;
                }
                if relative | mask < self.size {
                    self.receive(self.absolute(relative | mask, root), tag, segment).await;
                    self.combine(segment);
                }
                mask *= 2;
            }
        }
    }

    /// Reduction along a chain, in segments (Open MPI, `pipeline`).
    pub async fn reduce_pipeline(&self, root: u32, bytes: u64, segment_bytes: u64) {
        let tag = self.tag();
        let relative = self.relative(root);
        for segment in segments(bytes, segment_bytes) {
            if relative + 1 < self.size {
                self.receive(self.after(1), tag, segment).await;
                self.combine(segment);
            }
            if relative > 0 {
                self.send(self.before(1), tag, segment).await;
            }
        }
    }

    /// Reduction in which the root receives from all members in order (Open MPI, `basic_linear`).
    pub async fn reduce_linear(&self, root: u32, bytes: u64) {
        self.gather_in_turn(root, bytes).await;
        if self.me == root {
            self.combine(bytes * u64::from(self.size - 1));
        }
    }

    /// Reduction of long vectors: reduce-scatter by recursive halving, then a gather of the parts (MPICH;
    /// Rabenseifner). If the root gave its vector to its neighbour at the start, that neighbour collects the
    /// result and sends it to the root.
    pub async fn reduce_halving(&self, root: u32, bytes: u64) {
        let tag = self.tag();
        let folding = Folding::of(self.size);
        let deputy = if folding.number(root).is_some() { root } else { root + 1 };
        let collector = folding.number(deputy).expect("one of two neighbours takes part");
        if let Some(number) = self.fold(folding, tag, bytes).await {
            let parts = |range| Group::part_bytes(bytes, range, folding.power);
            self.halve(folding, number, tag, parts).await;
            // Gathers in the reverse order of the halving. A member whose bit differs from the collector's
            // sends what it has.
            let mut mask = 1;
            while mask < folding.power {
                let partner = folding.member(number ^ mask);
                let start = |number: u32| number & !(mask - 1);
                if (number ^ collector) & mask != 0 {
                    self.send(partner, tag, parts(start(number)..start(number) + mask)).await;
                    break;
                }
                let theirs = start(number ^ mask);
                self.receive(partner, tag, parts(theirs..theirs + mask)).await;
                mask *= 2;
            }
        }
        if deputy != root && self.me == deputy {
            self.send(root, tag, bytes).await;
        } else if deputy != root && self.me == root {
            self.receive(deputy, tag, bytes).await;
        }
    }

    /// Scatter of `bytes` bytes from `root` to each other member. Posts all sends, then waits for them
    /// (MPICH, `MPI_Scatterv`).
    pub async fn scatter_linear(&self, root: u32, bytes: u64) {
        let tag = self.tag();
        if self.me != root {
            return self.receive(root, tag, bytes).await;
        }
        let sends: Vec<_> = self.others().map(|member| self.begin_send(member, tag, bytes)).collect();
        self.rank.wait_all(sends).await;
    }

    /// The same; each send completes before the next begins (Open MPI, `MPI_Scatterv`, `basic_linear`).
    pub async fn scatter_in_turn(&self, root: u32, bytes: u64) {
        let tag = self.tag();
        if self.me != root {
            return self.receive(root, tag, bytes).await;
        }
        for member in self.others() {
            self.send(member, tag, bytes).await;
        }
    }

    /// The same along a binomial tree: a member receives all data of its subtree.
    pub async fn scatter_binomial(&self, root: u32, bytes: u64) {
        self.scatter_tree(root, |range| bytes * range.len() as u64).await;
    }

    async fn scatter_tree(&self, root: u32, blocks: impl Fn(std::ops::Range<u32>) -> u64) {
        let tag = self.tag();
        let relative = self.relative(root);
        let subtree = |first: u32, width: u32| first..self.size.min(first + width);
        let mut mask = 1;
        while mask < self.size && relative & mask == 0 {
            mask *= 2;
        }
        if relative > 0 {
            let parent = self.absolute(relative - mask, root);
            self.receive(parent, tag, blocks(subtree(relative, mask))).await;
        }
        mask /= 2;
        while mask > 0 {
            if relative + mask < self.size {
                let child = self.absolute(relative + mask, root);
                self.send(child, tag, blocks(subtree(relative + mask, mask))).await;
            }
            mask /= 2;
        }
    }

    /// Gather of `bytes` bytes from each other member at `root`, which posts all receives at once (MPICH,
    /// `MPI_Gatherv`).
    pub async fn gather_linear(&self, root: u32, bytes: u64) {
        let tag = self.tag();
        if self.me != root {
            return self.send(root, tag, bytes).await;
        }
        let receives: Vec<_> = self.others().map(|member| self.begin_receive(member, tag, bytes)).collect();
        self.rank.wait_all(receives).await;
    }

    /// The same; the root receives from one member after the other (Open MPI, `MPI_Gatherv`, `basic_linear`).
    pub async fn gather_in_turn(&self, root: u32, bytes: u64) {
        let tag = self.tag();
        if self.me != root {
            return self.send(root, tag, bytes).await;
        }
        for member in self.others() {
            self.receive(member, tag, bytes).await;
        }
    }

    /// The same for long blocks: each member sends its first segment when the root asks for it (Open MPI,
    /// `linear_sync`).
    pub async fn gather_synchronised(&self, root: u32, bytes: u64, segment_bytes: u64) {
        let tag = self.tag();
        let first = segment_bytes.min(bytes);
        if self.me != root {
            self.receive(root, tag, 0).await;
            self.send(root, tag, first).await;
            return self.send(root, tag, bytes - first).await;
        }
        let mut rests = Vec::new();
        for member in self.others() {
            let segment = self.begin_receive(member, tag, first);
            self.send(member, tag, 0).await;
            rests.push(self.begin_receive(member, tag, bytes - first));
            self.rank.wait(segment).await;
        }
        self.rank.wait_all(rests).await;
    }

    /// The same along a binomial tree: a member collects all data of its subtree.
    pub async fn gather_binomial(&self, root: u32, bytes: u64) {
        let tag = self.tag();
        let relative = self.relative(root);
        let mut mask = 1;
        while mask < self.size {
            if relative & mask != 0 {
                let blocks = u64::from(mask.min(self.size - relative));
                return self.send(self.absolute(relative - mask, root), tag, blocks * bytes).await;
            }
            let child = relative | mask;
            if child < self.size {
                let blocks = u64::from(mask.min(self.size - child));
                self.receive(self.absolute(child, root), tag, blocks * bytes).await;
            }
            mask *= 2;
        }
    }

    fn others(&self) -> impl Iterator<Item = u32> {
        let me = self.me;
        (0..self.size).filter(move |&member| member != me)
    }
}
