//! How many packets a world will send, before it runs: its programs are run against nobody, every call ending at once.

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
}

/// What the world's programs will send.
pub fn packets(setup: &Setup) -> Estimate {
    let ranks = setup.settings.ranks;
    let programs = &setup.programs;
    let (mut seen, mut messages, mut packets, mut at_least) = (0u64, 0u64, 0u64, false);
    // Ranks in an order in which any first few are spread over all of them.
    let bits = ranks.next_power_of_two().trailing_zeros();
    let spread =
        (0..1u64 << bits).map(|index| (index as u32).reverse_bits().checked_shr(32 - bits).unwrap_or(0));
    for rank in spread.filter(|&rank| rank < ranks) {
        let shared = Shared::new(rank, ranks);
        let mut program = programs.program(Rank::new(&shared));
        let (sent, carried, ended) = follow(&mut program, &shared, setup);
        at_least |= !ended;
        seen += 1;
        messages += sent;
        packets += carried;
        if messages > MAX_MESSAGES {
            break;
        }
    }
    let packets = (packets as f64 * f64::from(ranks) / seen.max(1) as f64) as u64;
    Estimate { packets, at_least }
}

/// Messages and packets that one program sends, and whether these are all.
fn follow(program: &mut Program, shared: &Shared, setup: &Setup) -> (u64, u64, bool) {
    let (mut messages, mut packets, mut calls, mut now) = (0, 0, 0u64, 0);
    while !program::run(program) {
        let before = calls;
        while let Some(call) = shared.next_call(false) {
            calls += 1;
            match call {
                Call::Send { handle, bytes, .. } => {
                    messages += 1;
                    packets += of_message(bytes, setup);
                    shared.complete(handle, Status { bytes, ..Status::default() });
                }
                Call::Receive { handle, from, tag, bytes } => {
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
