//! Personalised exchange: a block of its own from everybody to everybody.

use std::collections::VecDeque;

use super::Group;
use crate::program::Handle;

impl Group {
    /// All receives and all sends are posted, in linear order from our own number on, with at most `window` sends under way
    /// (0: all at once). Source: Open MPI, `basic_linear`.
    pub async fn alltoall_linear(&self, bytes: u64, window: u32) {
        let tag = self.tag();
        let receives = self.receive_from_all(tag, bytes);
        self.send_to_all(tag, bytes, window).await;
        self.rank.wait_all(receives).await;
    }

    /// The same, but receives are posted when all sends have been taken. What is taken out of the mailbox before, because a send
    /// has to wait, is unexpected. Source: Prades, thesis, 5.3: each process first sends to every other and then receives.
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

    /// `batch` receives and sends are posted and waited for, then the next. Source: MPICH, `scattered` (batch 32).
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

    /// One partner at a time, the same to and from: `me ^ step`. If their number is no power of two, [by
    /// shifts](Group::alltoall_shifted). Source: MPICH, `pairwise`.
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

    /// One to send to and another to receive from at a time: `me + step` and `me - step`. Source: Open MPI, `pairwise`, whatever
    /// their number.
    pub async fn alltoall_shifted(&self, bytes: u64) {
        let tag = self.tag();
        for step in 1..self.size {
            self.exchange(self.after(step), self.before(step), tag, bytes, bytes).await;
        }
    }

    /// `ceil(log2 n)` rounds that carry about half of everything each (Bruck).
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
