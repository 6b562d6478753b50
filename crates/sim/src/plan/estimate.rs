//! What a world will cost, before it runs: packets and memory. Its programs are run against nobody, and every call ends at once.

use std::collections::HashSet;

use super::setup::Setup;
use crate::program::{self, Call, Program, Rank, Shared, Status};

/// After so many messages the rest of the ranks is estimated from those looked at.
const MAX_MESSAGES: u64 = 1 << 20;
/// A schedule of calls that does not end after so many is not followed further.
const MAX_CALLS: u64 = 1 << 24;

/// What a world's programs send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Packets with data, about; credit packets come on top.
    pub packets: u64,
    /// There may be more: a program was not followed to its end.
    pub at_least: bool,
    /// Peers with which ranks exchange messages, summed over ranks.
    pub pairs: u64,
    /// Ranks.
    pub ranks: u32,
}

impl Estimate {
    /// Memory that the world takes while it runs, rounded up. Unit: bytes.
    ///
    /// Measured with `/usr/bin/time` on worlds of 256 and 1,024 ranks: 0.3 to 0.9 KiB for each pair (`unlimited`, `dynamic`), and
    /// 140 KiB for each rank.
    pub fn memory_bytes(&self) -> u64 {
        const WORLD: u64 = 32 << 20;
        const RANK: u64 = 160 << 10;
        const PAIR: u64 = 1 << 10;
        WORLD + RANK * u64::from(self.ranks) + PAIR * self.pairs
    }
}

/// What the world's programs will send.
pub fn packets(setup: &Setup) -> Estimate {
    let ranks = setup.settings.ranks;
    let programs = &setup.programs;
    let (mut seen, mut messages, mut packets, mut at_least, mut pairs) = (0u64, 0u64, 0u64, false, 0u64);
    // Ranks in an order in which any first few are spread over all of them.
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

/// Messages and packets that one program sends, and whether these are all. Adds the peers that it sends to or receives from.
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
        return 2; // asked for, pulled, and said to be done
    }
    setup.network.packets(bytes)
}
