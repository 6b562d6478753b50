//! Estimates the packets and the memory of a world before it runs. Each program runs alone, and each of its calls
//! completes at once. In a large world only some ranks are followed.

use std::collections::HashSet;

use super::setup::Setup;
use crate::program::{self, Call, OffloadCall, Program, Rank, Shared, Status};

/// After this number of messages the remaining ranks are estimated from those that were followed.
const MAX_MESSAGES: u64 = 1 << 20;
/// Bound of the calls that are followed in one program.
const MAX_CALLS: u64 = 1 << 24;

/// Estimated cost of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Approximate number of data packets. Credit packets come on top.
    pub packets: u64,
    /// Whether there may be more packets, because some program was not followed to its end.
    pub at_least: bool,
    /// Number of peers of each rank, summed over ranks.
    pub pairs: u64,
    /// Number of ranks.
    pub ranks: u32,
}

impl Estimate {
    /// Memory of the running world, rounded up. Unit: bytes.
    ///
    /// `/usr/bin/time` on worlds of 256 and 1,024 ranks shows 0.3 to 0.9 KiB for each pair (`unlimited`,
    /// `dynamic`), and 140 KiB for each rank.
    pub fn memory_bytes(&self) -> u64 {
        const WORLD: u64 = 32 << 20;
        const RANK: u64 = 160 << 10;
        const PAIR: u64 = 1 << 10;
        WORLD + RANK * u64::from(self.ranks) + PAIR * self.pairs
    }
}

/// Estimates the cost of a world.
pub fn packets(setup: &Setup) -> Estimate {
    let ranks = setup.settings.ranks;
    let programs = &setup.programs;
    let (mut seen, mut messages, mut packets, mut at_least, mut pairs) = (0u64, 0u64, 0u64, false, 0u64);
    // Follows ranks in an order whose first ranks are spread over all of them.
    let bits = ranks.next_power_of_two().trailing_zeros();
    let spread =
        (0..1u64 << bits).map(|index| (index as u32).reverse_bits().checked_shr(32 - bits).unwrap_or(0));
    for rank in spread.filter(|&rank| rank < ranks) {
        let shared = Shared::new(rank, ranks);
        let mut program = programs.program(Rank::new(&shared));
        let mut peers = HashSet::new();
        let (sent, carried, ended) = follow(&mut program, &shared, setup, &mut peers);
        pairs += peers.len() as u64;
        at_least |= !ended;
        seen += 1;
        messages += sent;
        packets += carried;
        if messages > MAX_MESSAGES {
            break;
        }
    }
    let of_all = |sum: u64| (sum as f64 * f64::from(ranks) / seen.max(1) as f64) as u64;
    Estimate { packets: of_all(packets), at_least, pairs: of_all(pairs), ranks }
}

/// Follows one program. Returns its messages and packets, and whether it was followed to its end. Adds its
/// peers to `peers`.
fn follow(
    program: &mut Program,
    shared: &Shared,
    setup: &Setup,
    peers: &mut HashSet<u32>,
) -> (u64, u64, bool) {
    let (mut messages, mut packets, mut calls, mut now) = (0, 0, 0u64, 0);
    while !program::run(program) {
        let before = calls;
        while let Some(call) = shared.next_call(false) {
            calls += 1;
            match call {
                Call::Send { handle, to, bytes, .. } => {
                    peers.insert(to);
                    messages += 1;
                    packets += of_message(bytes, setup);
                    shared.complete(handle, Status { bytes, ..Status::default() });
                }
                Call::Receive { handle, from, tag, bytes } => {
                    peers.extend(from);
                    shared.complete(
                        handle,
                        Status { source: from.unwrap_or(0), tag, bytes, ..Status::default() },
                    );
                }
                Call::Clock { handle } => {
                    now += 1000;
                    shared.complete(handle, Status { bytes: now, ..Status::default() });
                }
                Call::Compute { ps, handle } => {
                    now = ps.saturating_add(now);
                    if let Some(handle) = handle {
                        shared.complete(handle, Status::default());
                    }
                }
                Call::Credits { handle, .. } => {
                    shared.complete(handle, Status::default());
                }
                Call::Offload { handle } => {
                    match shared.take_offload_call(handle) {
                        OffloadCall::MultiSend { copies, bytes, .. } => {
                            messages += copies.len() as u64;
                            packets += copies.len() as u64 * of_message(bytes, setup);
                            for (to, handle) in copies {
                                peers.insert(to);
                                shared.complete(handle, Status { bytes, ..Status::default() });
                            }
                            continue;
                        }
                        OffloadCall::OwnWord { .. } => {
                            shared.complete(handle, Status::default());
                            continue;
                        }
                        OffloadCall::WatchWord { seen, .. } => {
                            let bytes = seen.wrapping_add(1);
                            shared.complete(handle, Status { bytes, ..Status::default() });
                            continue;
                        }
                        OffloadCall::Fetch { to, .. } => _ = peers.insert(to),
                        _ => {}
                    }
                    (messages, packets) = (messages + 1, packets + 2); // a packet and its answer
                    shared.complete(handle, Status::default());
                }
                Call::Record { .. } => {}
            }
        }
        if calls == before || calls > MAX_CALLS {
            return (messages, packets, calls == before);
        }
    }
    (messages, packets, true)
}

fn of_message(bytes: u64, setup: &Setup) -> u64 {
    if bytes > setup.settings.eager_bytes {
        return 2; // its announcement, and the packet that ends the transfer
    }
    setup.network.packets(bytes)
}
