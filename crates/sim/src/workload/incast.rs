//! A workload in which all other ranks send to rank 0, so that they share its mailbox.

use std::collections::VecDeque;

use serde::Deserialize;

use super::{at_least, measure, nanoseconds, repetitions};
use crate::program::Rank;

/// Tag of all messages.
const TAG: u64 = 1;

/// Every rank except 0 (or all ranks from `local_ranks` on) sends the same number of messages to rank 0, which receives
/// them in the order of arrival.
///
/// The shares of the senders are counted when the first of them has delivered its last message. Until then all
/// of them have messages to send. Source: weir's own goal of fairness (credits on demand).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Incast {
    /// Length of each message. Unit: bytes.
    pub message_bytes: u64,
    /// Messages of each sender.
    pub messages: u32,
    /// Pending sends of a rank; 0: all at once.
    #[serde(default)]
    pub window_messages: u32,
    /// So many ranks, rank 0 among them, do not send: those of its host. 0: all others send.
    #[serde(default)]
    pub local_ranks: u32,
}

impl Incast {
    pub(super) fn check(&self, ranks: u32) -> Result<(), String> {
        at_least("ranks", ranks, 2)?;
        if self.local_ranks >= ranks {
            return Err(format!("local_ranks is {}; allowed: less than ranks, {ranks}", self.local_ranks));
        }
        repetitions("messages", self.messages, 0)
    }

    pub(super) async fn run(self, rank: Rank) {
        match rank.rank() {
            0 => self.receive(&rank).await,
            local if local < self.local_ranks => {}
            _ => self.send(&rank).await,
        }
    }

    async fn receive(&self, rank: &Rank) {
        let mut received = vec![0; rank.size() as usize];
        let mut is_counted = false;
        let begun = rank.clock().await;
        let first_sender = self.local_ranks.max(1);
        let messages = u64::from(self.messages) * u64::from(rank.size() - first_sender);
        for _ in 0..messages {
            let source = rank.recv(None, TAG, self.message_bytes).await.source;
            let of_sender = &mut received[source as usize];
            *of_sender += 1;
            if *of_sender >= self.messages && !is_counted {
                is_counted = true;
                for (sender, &count) in (0..).zip(&received[first_sender as usize..]) {
                    rank.record_of_series(measure::SENDER_MESSAGES, sender, f64::from(count));
                }
            }
        }
        rank.record(measure::MESSAGE_NS, nanoseconds(rank.clock().await - begun) / messages as f64);
    }

    async fn send(&self, rank: &Rank) {
        let mut sends = VecDeque::new();
        for _ in 0..self.messages {
            if self.window_messages > 0 && sends.len() == self.window_messages as usize {
                rank.wait(sends.pop_front().expect("a full window")).await;
            }
            sends.push_back(rank.isend(0, TAG, self.message_bytes));
        }
        rank.wait_all(sends).await;
    }
}
