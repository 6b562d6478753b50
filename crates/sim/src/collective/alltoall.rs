//! All-to-all algorithms (personalised exchange): every rank sends a different block to every rank.

use std::collections::VecDeque;

use super::Group;
use crate::program::Handle;

impl Group {
    /// Posts all receives and all sends, in rank order from our own number on. At most `window` sends are
    /// pending (0: all at once). Source: Open MPI, `basic_linear`.
    pub async fn alltoall_linear(&self, bytes: u64, window: u32) {
        let tag = self.tag();
        let receives = self.receive_from_all(tag, bytes);
        self.send_to_all(tag, bytes, window).await;
        self.rank.wait_all(receives).await;
    }

    /// The same, but a rank posts its receives after all its sends have completed. A packet that a rank
    /// retrieves earlier, while a send waits, is unexpected. Source: Prades, thesis, 5.3: each process first
    /// sends to every other and then receives.
    pub async fn alltoall_sends_first(&self, bytes: u64, window: u32) {
        let tag = self.tag();
        self.send_to_all(tag, bytes, window).await;
        self.rank.wait_all(self.receive_from_all(tag, bytes)).await;
    }

    fn receive_from_all(&self, tag: u64, bytes: u64) -> Vec<Handle> {
        (1..self.size).map(|step| self.begin_receive(self.before(step), tag, bytes)).collect()
    }

    async fn send_to_all(&self, tag: u64, bytes: u64, window: u32) {
        let mut sends = VecDeque::new();
        for step in 1..self.size {
            if window > 0 && sends.len() == window as usize {
                let oldest = sends.pop_front().expect("a full window");
                self.rank.wait(oldest).await;
            }
            sends.push_back(self.begin_send(self.after(step), tag, bytes));
        }
        self.rank.wait_all(sends).await;
    }

    /// Posts `batch` receives and sends, waits for them, then starts the next batch. Source: MPICH,
    /// `scattered` (batch 32).
    pub async fn alltoall_batches(&self, bytes: u64, batch: u32) {
        let tag = self.tag();
        let mut begin = 1;
        while begin < self.size {
            let steps = begin..self.size.min(begin + batch);
            let receives: Vec<_> =
                steps.clone().map(|step| self.begin_receive(self.after(step), tag, bytes)).collect();
            let sends: Vec<_> = steps.map(|step| self.begin_send(self.before(step), tag, bytes)).collect();
            self.rank.wait_all(receives).await;
            self.rank.wait_all(sends).await;
            begin += batch;
        }
    }

    /// Exchanges with one partner at a time: `me ^ step`. Uses [shifts](Group::alltoall_shifted) unless the
    /// number of members is a power of two. Source: MPICH, `pairwise`.
    pub async fn alltoall_pairwise(&self, bytes: u64) {
        if !self.size.is_power_of_two() {
            return self.alltoall_shifted(bytes).await;
        }
        let tag = self.tag();
        for step in 1..self.size {
            let partner = self.me ^ step;
            self.exchange(partner, partner, tag, bytes, bytes).await;
        }
    }

    /// Sends to `me + step` and receives from `me - step`, one step at a time. Source: Open MPI, `pairwise`,
    /// for any number of members.
    pub async fn alltoall_shifted(&self, bytes: u64) {
        let tag = self.tag();
        for step in 1..self.size {
            self.exchange(self.after(step), self.before(step), tag, bytes, bytes).await;
        }
    }

    /// Bruck's algorithm: `ceil(log2 n)` rounds, each of which carries about half of all blocks.
    pub async fn alltoall_bruck(&self, bytes: u64) {
        let tag = self.tag();
        let mut distance = 1;
        while distance < self.size {
            let blocks = (0..self.size).filter(|block| block & distance != 0).count() as u64;
            let (to, from) = (self.after(distance), self.before(distance));
            self.exchange(to, from, tag, blocks * bytes, blocks * bytes).await;
            distance *= 2;
        }
    }
}
