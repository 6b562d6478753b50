//! Workloads of operations that a NIC can carry out beside its rank (experiments E4): barriers, reductions, broadcasts,
//! remote atomics and a lock. Each also runs host-based, by messages between ranks, so that both can be compared.
//!
//! The members of the offloaded group are all ranks. A workload joins it before anything is timed.
//!
//! ```text
//! executor = "messages"     rank: send, receive, send, ...                 each step passes both hosts
//! executor = "nic"          rank: one descriptor; NIC: packet, packet, ...; rank: one notice
//! ```
//! Source: Buntinas, "Improving cluster performance through the use of programmable network interfaces", 2003.

mod atomics;
mod barrier;
mod broadcast;
mod lock;
mod multicast;
mod reduction;

use serde::Deserialize;
use weir_proto::offload::group::Shape;

use crate::program::Rank;
use crate::trace::Trace;
pub use atomics::Atomics;
pub use barrier::{Barrier, BarrierAlgorithm};
pub use broadcast::Broadcast;
pub use lock::Lock;
pub use multicast::Multicast;
pub use reduction::{Reduction, Tree, Word};

/// Who carries out an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Executor {
    /// The ranks, by messages.
    Messages,
    /// An offloaded machine that the processor of each rank runs, while the rank is in the library.
    Processor,
    /// An offloaded machine that the NIC of each rank runs.
    Nic,
}

/// The number of the group of all ranks.
const GROUP: u32 = 1;

impl Executor {
    /// Takes part in the group of all ranks, if an offloaded machine needs one. Returns when all have joined.
    async fn join(self, rank: &Rank, shape: Shape) {
        if self != Executor::Messages {
            let members: Vec<u32> = (0..rank.size()).collect();
            rank.join_shaped_group(GROUP, &members, None, shape).await;
            let barrier = rank.ibarrier(GROUP);
            rank.ended(barrier).await;
        }
    }
}

/// Distinguishes these draws from others of the same seed and rank.
const DRAW: u64 = u64::from_le_bytes(*b"offload.");

/// A random number from 0 to `most`, of the event `number` of this rank.
fn draw(rank: &Rank, number: u64, most: u64) -> u64 {
    let mut draw = Trace::default();
    [DRAW, rank.seed(), rank.rank().into(), number].into_iter().for_each(|word| draw.note(word));
    draw.hash() % (most + 1)
}
