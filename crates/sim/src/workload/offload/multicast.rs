//! A workload of messages to all other ranks along a tree (experiments E4.1 and E4.2).

use serde::Deserialize;
use weir_proto::offload::group::postal_tree;

use super::super::{at_least, measure, nanoseconds, repetitions};
use super::Executor;
use crate::Picoseconds;
use crate::program::{Handle, Rank};

/// Rank 0 sends a message to all others along a postal tree. A rank forwards to its children by a loop of sends, or by a
/// multi-send for each packet. The last child of each parent, if it has no children, in turn answers rank 0 with an empty
/// message. The latency is the time until the answer, without the one-way time of an empty message: the largest mean of all
/// that answer.
///
/// With `lambda` 1 the tree is binomial, and with at least the number of ranks it is flat.
///
/// Source: Buntinas, section 2.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Multicast {
    /// `Messages`: sends, all packets for a child before those for the next. Otherwise multi-sends.
    pub executor: Executor,
    /// Length. Unit: bytes.
    pub message_bytes: u64,
    /// Longest packet. Each packet is a message of its own. Unit: bytes.
    pub packet_bytes: u64,
    /// Time until a child can forward, divided by the time that a packet occupies its sender.
    pub lambda: u32,
    /// A rank forwards each packet as it comes, and does not wait for the whole message.
    #[serde(default)]
    pub pipelined: bool,
    /// Calls before the timed ones, for each rank that answers.
    #[serde(default)]
    pub warmup_calls: u32,
    /// Timed calls for each rank that answers.
    pub calls: u32,
}

const TAG: u64 = 1;
const ANSWER: u64 = 2;
/// Bound of `lambda`, and of the packets of a message.
const MOST: u64 = 1024;
/// Empty messages from which their one-way time follows.
const ROUND_TRIPS: u64 = 10;

impl Multicast {
    pub(in super::super) fn check(&self, ranks: u32) -> Result<(), String> {
        at_least("ranks", ranks, 2)?;
        if !(1..=MOST).contains(&self.lambda.into()) {
            return Err(format!("lambda is {}; allowed: 1 to {MOST}", self.lambda));
        }
        if self.packet_bytes == 0 || self.message_bytes.div_ceil(self.packet_bytes) > MOST {
            let Multicast { message_bytes, packet_bytes, .. } = self;
            return Err(format!(
                "{message_bytes} bytes in packets of {packet_bytes}; allowed: at most {MOST} packets"
            ));
        }
        if self.pipelined && self.executor == Executor::Messages {
            return Err("pipelined is true; allowed with the executor messages: false".to_owned());
        }
        repetitions("calls", self.calls, self.warmup_calls)
    }

    pub(in super::super) async fn run(self, rank: Rank) {
        let children = |parent| postal_tree(parent, rank.size(), self.lambda * 1000).1;
        let (parent, own) = postal_tree(rank.rank(), rank.size(), self.lambda * 1000);
        let last_children = (0..rank.size()).filter_map(|parent| children(parent).last().copied());
        let answering: Vec<u32> = last_children.filter(|child| children(*child).is_empty()).collect();
        let mut latency_ps = 0;
        for answers in answering {
            let mut spent_ps = 0;
            for call in 0..self.warmup_calls + self.calls {
                let begun = rank.clock().await;
                self.multicast(&rank, parent, &own).await;
                if rank.rank() == answers {
                    rank.send(0, ANSWER, 0).await;
                }
                if rank.rank() == 0 {
                    rank.recv(Some(answers), ANSWER, 0).await;
                    let took_ps = rank.clock().await - begun;
                    spent_ps += if call < self.warmup_calls { 0 } else { took_ps };
                }
            }
            latency_ps = latency_ps.max(spent_ps / u64::from(self.calls));
        }
        let one_way_ps = one_way_ps(&rank).await;
        if rank.rank() == 0 {
            rank.record(measure::LATENCY_NS, nanoseconds(latency_ps.saturating_sub(one_way_ps)));
        }
    }

    /// Length of each packet. An empty message is one packet.
    fn packets(&self) -> Vec<u64> {
        let count = self.message_bytes.div_ceil(self.packet_bytes).max(1);
        let left = |packet: u64| self.message_bytes - packet * self.packet_bytes;
        (0..count).map(|packet| left(packet).min(self.packet_bytes)).collect()
    }

    async fn multicast(&self, rank: &Rank, parent: Option<u32>, children: &[u32]) {
        let packets = self.packets();
        let mut sends: Vec<Handle> = Vec::new();
        let receives: Vec<Handle> =
            parent.iter().flat_map(|_| &packets).map(|bytes| rank.irecv(parent, TAG, *bytes)).collect();
        if self.pipelined && !children.is_empty() {
            for (packet, bytes) in packets.iter().enumerate() {
                if let Some(receive) = receives.get(packet) {
                    rank.wait(*receive).await;
                }
                sends.extend(rank.imulti_send(children, TAG, *bytes));
            }
        } else {
            rank.wait_all(receives).await;
            match self.executor {
                Executor::Messages => {
                    for child in children {
                        sends.extend(packets.iter().map(|bytes| rank.isend(*child, TAG, *bytes)));
                    }
                }
                Executor::Processor | Executor::Nic if !children.is_empty() => {
                    sends.extend(packets.iter().flat_map(|bytes| rank.imulti_send(children, TAG, *bytes)));
                }
                Executor::Processor | Executor::Nic => {}
            }
        }
        rank.wait_all(sends).await;
    }
}

/// Half a round trip of empty messages between ranks 0 and 1. 0 at other ranks.
async fn one_way_ps(rank: &Rank) -> Picoseconds {
    let other = 1 - rank.rank().min(1);
    if rank.rank() > 1 {
        return 0;
    }
    let mut begun = 0;
    for trip in 0..=ROUND_TRIPS {
        if trip == 1 {
            begun = rank.clock().await; // after the first trip both ranks are ready
        }
        if rank.rank() == 0 {
            rank.send(other, ANSWER, 0).await;
            rank.recv(Some(other), ANSWER, 0).await;
        } else {
            rank.recv(Some(other), ANSWER, 0).await;
            rank.send(other, ANSWER, 0).await;
        }
    }
    (rank.clock().await - begun) / (2 * ROUND_TRIPS)
}
