//! Faults of ranks: slow processors, pauses and crashes. [`Faults::draw`] draws random ones for tests.
//! [`crate::network::faulty`] models faults of links.
//!
//! A crashed rank does nothing. Packets in its mailbox and later ones are dropped, and its memory cannot be read. Packets
//! that it has handed to the network still arrive. The other ranks learn of the crash later (`Lost`), after all packets
//! that have reached them by then. The delay stands for the timeouts and liveness checks of a real system. Then their
//! endpoint machines must end all operations that depend on the crashed rank, with errors, so that no program hangs.
//!
//! A rank may also give up another one: a receiver was not ready for longer than the retries allow. The other rank
//! learns of it in the same way.
//!
//! ```text
//! 20 us  rank 2 crashes while ranks 0 and 1 wait for it
//! 70 us  ranks 0 and 1 learn of it: their receives from 2, and those from any rank, end with Status::fault
//! ```

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use weir_proto::PeerFault;

use super::World;
use crate::Picoseconds;
use crate::cost::Cost;
use crate::network::Network;
use crate::queue::Source;

/// A rank with a slow processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slow {
    /// The rank.
    pub rank: u32,
    /// Time of everything in percent of the normal one: 300 is three times as long.
    pub percent: u32,
}

/// A pause of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The rank.
    pub rank: u32,
    /// Start. Unit: ps.
    pub at: Picoseconds,
    /// Duration. Unit: ps.
    pub ps: Picoseconds,
}

/// A crash of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// The rank.
    pub rank: u32,
    /// Time. Unit: ps.
    pub at: Picoseconds,
}

/// Faults of the ranks of a world.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Slow ranks.
    pub slow: Vec<Slow>,
    /// Pauses.
    pub pauses: Vec<Pause>,
    /// Crashes.
    pub crashes: Vec<Crash>,
    /// Time from a crash, or from giving up a peer, until the others learn of it. Unit: ps.
    pub notice_ps: Picoseconds,
}

/// Faults that are not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    /// There is no such rank.
    #[error("the rank of a fault is {rank}; allowed: 0 to {}", ranks - 1)]
    Rank {
        /// The rank.
        rank: u32,
        /// Number of ranks.
        ranks: u32,
    },
    /// The percentage is outside its range.
    #[error("percent of slow rank {rank} is {percent}; allowed: 1 to {MAX_PERCENT}")]
    Percent {
        /// The rank.
        rank: u32,
        /// The percentage.
        percent: u32,
    },
}

/// Bound: a thousand times as slow. Unit: percent.
pub const MAX_PERCENT: u32 = 100_000;

impl Faults {
    /// Draws faults from a seed, for a world that takes about `horizon_ps` without them. About a third of the
    /// ranks are slow. There are up to `ranks` pauses of up to the horizon, and at most `crashes` crashes of
    /// different ranks.
    pub fn draw(seed: u64, ranks: u32, horizon_ps: Picoseconds, crashes: u32) -> Faults {
        let mut rng = Rng::with_seed(seed);
        let horizon_ps = horizon_ps.max(1);
        let slow = (0..ranks)
            .filter(|_| rng.u8(..3) == 0)
            .collect::<Vec<_>>()
            .into_iter()
            .map(|rank| Slow { rank, percent: rng.u32(50..=1000) })
            .collect();
        let pauses = (0..rng.u32(..=ranks))
            .map(|_| Pause { rank: rng.u32(..ranks), at: rng.u64(..horizon_ps), ps: rng.u64(..horizon_ps) })
            .collect();
        let mut order: Vec<u32> = (0..ranks).collect();
        rng.shuffle(&mut order);
        let count = crashes.min(ranks) as usize;
        let crashes =
            order[..count].iter().map(|&rank| Crash { rank, at: rng.u64(..2 * horizon_ps) }).collect();
        Faults { slow, pauses, crashes, notice_ps: rng.u64(..=horizon_ps) }
    }
}

/// An event of a fault.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The pause with this index begins. The index keeps the event small.
    Pause(u32),
    Crash {
        rank: u32,
    },
}

/// Fault state of a world.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Prices of slow ranks, and their time in percent of the normal one.
    slow: BTreeMap<u32, (Cost, u32)>,
    pauses: Vec<Pause>,
    crashed: BTreeSet<u32>,
    notice_ps: Picoseconds,
    /// Pending remote gets by our own numbers, because machines reuse theirs.
    gets: BTreeMap<u32, Reading>,
    next_get: u32,
}

/// A pending remote get.
#[derive(Clone, Copy, Debug)]
struct Reading {
    to: u32,
    from: u32,
    /// The number of the get at the reader's machine.
    number: u32,
}

impl State {
    pub fn slow(&self, rank: u32) -> Option<&(Cost, u32)> {
        self.slow.get(&rank)
    }

    pub fn has_crashed(&self, rank: u32) -> bool {
        self.crashed.contains(&rank)
    }

    /// `to` begins to read the memory of `from`. Returns the number of the get for the network.
    pub fn get_begins(&mut self, to: u32, number: u32, from: u32) -> u32 {
        let id = self.next_get;
        self.next_get = self.next_get.wrapping_add(1);
        self.gets.insert(id, Reading { to, from, number });
        id
    }

    /// The get has ended. Returns its number at the reader, and whether the memory was there. `None`: the
    /// reader has given up the owner.
    pub fn get_ends(&mut self, id: u32) -> Option<(u32, bool)> {
        let Reading { from, number, .. } = self.gets.remove(&id)?;
        Some((number, !self.has_crashed(from)))
    }

    /// Drops the gets of `rank` from `peer`. The machine has ended them and may reuse their numbers.
    fn forget_gets(&mut self, rank: u32, peer: u32) {
        self.gets.retain(|_, reading| (reading.to, reading.from) != (rank, peer));
    }
}

impl<N: Network> World<N> {
    /// Adds faults of ranks.
    ///
    /// # Errors
    /// [`FaultError`] for an unknown rank or a percentage outside its range.
    pub fn with_faults(mut self, faults: &Faults) -> Result<World<N>, FaultError> {
        let Faults { slow, pauses, crashes, notice_ps } = faults;
        let ranks = self.spec.ranks;
        let named = slow.iter().map(|slow| slow.rank);
        let named = named.chain(pauses.iter().map(|p| p.rank)).chain(crashes.iter().map(|c| c.rank));
        if let Some(rank) = { named }.find(|&rank| rank >= ranks) {
            return Err(FaultError::Rank { rank, ranks });
        }
        let mut state = self.faults.take().unwrap_or_default();
        state.notice_ps = *notice_ps;
        for &Slow { rank, percent } in slow {
            if !(1..=MAX_PERCENT).contains(&percent) {
                return Err(FaultError::Percent { rank, percent });
            }
            state.slow.insert(rank, (self.spec.cost.times(percent), percent));
        }
        for (number, &Pause { rank, at, .. }) in (state.pauses.len() as u32..).zip(pauses) {
            self.outputs.act_as(Source::rank(rank));
            self.schedule(at, super::Event::Fault(Event::Pause(number)));
        }
        state.pauses.extend(pauses);
        self.faults = Some(state);
        for &Crash { rank, at } in crashes {
            self.outputs.act_as(Source::rank(rank));
            self.schedule(at, super::Event::Fault(Event::Crash { rank }));
        }
        Ok(self)
    }

    pub(super) fn fault(&mut self, now: Picoseconds, event: Event) {
        match event {
            Event::Pause(number) => {
                let state = self.faults.as_ref().expect("a pause is a fault");
                let Pause { rank, ps, .. } = state.pauses[number as usize];
                self.rank_states[rank as usize].pause(now, ps);
            }
            Event::Crash { rank } => self.crash(now, rank),
        }
    }

    /// `rank` learns that it has lost `peer`.
    pub(super) fn lost(&mut self, now: Picoseconds, rank: u32, peer: u32, fault: PeerFault) {
        self.act_as(rank);
        self.rank_states[rank as usize].lost(now, peer, fault);
        self.wake(now, rank);
    }

    fn crash(&mut self, now: Picoseconds, rank: u32) {
        self.act_as(rank);
        let Some(state) = &mut self.faults else { return };
        if !state.crashed.insert(rank) {
            return;
        }
        let notified_at = now + state.notice_ps;
        if let Some(checks) = &mut self.checks {
            checks.crashed(rank);
        }
        self.trace.note(now ^ u64::from(rank) << 48);
        let rank_state = &mut self.rank_states[rank as usize];
        self.ended += u32::from(!rank_state.has_ended());
        rank_state.crash(now);
        // Also packets that are about to enter the mailbox; each is retrieved when it arrives.
        while let Some((train, _)) =
            self.rank_states[rank as usize].mailbox.retrieve(Picoseconds::MAX, &mut self.chunks)
        {
            self.trains.discard(train);
            self.network.retrieved(now, rank, &mut self.outputs);
        }
        self.take_outputs();
        for other in (0..self.spec.ranks).filter(|&other| other != rank) {
            let fault = PeerFault::Died;
            self.schedule(notified_at, super::Event::Lost { rank: other, peer: rank, fault });
            if self.spec.machines_on_nic {
                self.schedule(notified_at, super::Event::NicLost { rank: other, peer: rank, fault });
            }
        }
        self.nic_endpoints.crash(rank);
    }

    /// Whether a rank has crashed.
    #[inline]
    pub(super) fn has_crashed(&self, rank: u32) -> bool {
        self.faults.as_ref().is_some_and(|state| state.has_crashed(rank))
    }

    /// Drops packets for a crashed rank.
    pub(super) fn drop_packets(&mut self, now: Picoseconds, part: crate::network::TrainPart) {
        for _ in 0..part.count {
            self.trains.discard(part.train);
            self.network.retrieved(now, part.to, &mut self.outputs);
        }
        self.take_outputs();
    }

    /// `rank` has given up `peer`, or has learned of its loss. The peer is told.
    pub(super) fn severed(&mut self, now: Picoseconds, rank: u32, peer: u32) {
        if let Some(state) = &mut self.faults {
            state.forget_gets(rank, peer);
        }
        if let Some(checks) = &mut self.checks {
            checks.severed(rank, peer);
        }
        if self.has_crashed(peer) {
            return;
        }
        let notified_at = self.severed_at(now, rank, peer);
        let fault = PeerFault::Unreachable;
        self.schedule(notified_at, super::Event::Lost { rank: peer, peer: rank, fault });
    }

    /// The time when `peer` learns that `rank` has given it up at `now`.
    pub(super) fn severed_at(&self, now: Picoseconds, rank: u32, peer: u32) -> Picoseconds {
        let notice_ps = self.faults.as_ref().map_or(0, |state| state.notice_ps);
        now + notice_ps.max(self.network.one_way_ps(rank, peer))
    }
}
