//! Faults of ranks: slow ones, pauses, crashes. Those of links are a network's, see [`crate::network::faulty`].
//!
//! A rank that has crashed does nothing any more: what stands in its mailbox and what comes for it is dropped, its memory cannot be read,
//! what it had handed to the network still arrives. After a while, which stands for the time-outs and liveness checks of a
//! real system, all others are told (`Lost`), after everything that has reached them by then. From there on their machines must end whatever depends
//! on it with errors: nobody hangs. A rank that gives up another by itself (receiver not ready for longer than the retries
//! allow) is a legal end too; the other one is told in the same way.
//!
//! ```text
//! 20 us  rank 2 crashes while 0 and 1 wait for it
//! 70 us  0 and 1 are told: their receives from 2, and those from anybody, end with Status::fault
//! ```

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use weir_proto::PeerFault;

use super::World;
use crate::Picoseconds;
use crate::cost::Cost;
use crate::network::Network;

/// A rank whose processor is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slow {
    /// Which.
    pub rank: u32,
    /// All it does takes so many times as long. In percent: 300 is three times.
    pub percent: u32,
}

/// A rank that does nothing for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Which.
    pub rank: u32,
    /// From when on. Unit: ps.
    pub at: Picoseconds,
    /// For how long. Unit: ps.
    pub ps: Picoseconds,
}

/// A rank that ends without a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// Which.
    pub rank: u32,
    /// When. Unit: ps.
    pub at: Picoseconds,
}

/// What goes wrong at the ranks of a world.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Slow ones.
    pub slow: Vec<Slow>,
    /// Pauses.
    pub pauses: Vec<Pause>,
    /// Crashes.
    pub crashes: Vec<Crash>,
    /// From a crash, or from the moment at which one gives up another, until the others are told. Unit: ps.
    pub notice_ps: Picoseconds,
}

/// Faults that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    /// No such rank.
    #[error("a fault of rank {rank}: ranks are below {ranks}")]
    Rank {
        /// The rank.
        rank: u32,
        /// How many there are.
        ranks: u32,
    },
    /// Nothing is infinitely fast.
    #[error("rank {rank} at {percent} % of its time: from 1 to {MAX_PERCENT} is allowed")]
    Percent {
        /// The rank.
        rank: u32,
        /// What was asked for.
        percent: u32,
    },
}

/// Bound: a thousand times as slow. Unit: percent.
pub const MAX_PERCENT: u32 = 100_000;

impl Faults {
    /// Faults by seed, for a world that would take about `horizon_ps` without them: about a third of the ranks slow, a few pauses of up to the
    /// horizon, and at most `crashes` crashes of different ranks.
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

/// What happens in a world because of faults.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The pause with this number begins. (How long it is would make every event larger.)
    Pause(u32),
    Crash {
        rank: u32,
    },
}

/// What a world with faults keeps.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Prices of slow ranks, and how slow they are. Unit: percent.
    slow: BTreeMap<u32, (Cost, u32)>,
    pauses: Vec<Pause>,
    crashed: BTreeSet<u32>,
    notice_ps: Picoseconds,
    /// Remote gets under way, by numbers of our own: machines use theirs again.
    gets: BTreeMap<u32, Reading>,
    next_get: u32,
}

/// A remote get under way.
#[derive(Clone, Copy, Debug)]
struct Reading {
    to: u32,
    from: u32,
    /// As the machine of the reader calls it.
    number: u32,
}

impl State {
    pub fn slow(&self, rank: u32) -> Option<&(Cost, u32)> {
        self.slow.get(&rank)
    }

    pub fn has_crashed(&self, rank: u32) -> bool {
        self.crashed.contains(&rank)
    }

    /// `to` begins to read the memory of `from`. Returns what the network is to call it.
    pub fn get_begins(&mut self, to: u32, number: u32, from: u32) -> u32 {
        let id = self.next_get;
        self.next_get = self.next_get.wrapping_add(1);
        self.gets.insert(id, Reading { to, from, number });
        id
    }

    /// It has ended: what its reader calls it, and whether the memory was there. `None`: the reader has given up the owner.
    pub fn get_ends(&mut self, id: u32) -> Option<(u32, bool)> {
        let Reading { from, number, .. } = self.gets.remove(&id)?;
        Some((number, !self.has_crashed(from)))
    }

    /// What `rank` reads of the memory of `peer` is not wanted any more: its machine has ended it, and may use the number again.
    fn forget_gets(&mut self, rank: u32, peer: u32) {
        self.gets.retain(|_, reading| (reading.to, reading.from) != (rank, peer));
    }
}

impl<N: Network> World<N> {
    /// With faults.
    ///
    /// # Errors
    /// [`FaultError`].
    pub fn with_faults(mut self, faults: &Faults) -> Result<World<N>, FaultError> {
        let Faults { slow, pauses, crashes, notice_ps } = faults;
        let ranks = self.plan.ranks;
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
            state.slow.insert(rank, (self.plan.cost.times(percent), percent));
        }
        for (number, &Pause { at, .. }) in (state.pauses.len() as u32..).zip(pauses) {
            self.schedule(at, super::Event::Fault(Event::Pause(number)));
        }
        state.pauses.extend(pauses);
        self.faults = Some(state);
        for &Crash { rank, at } in crashes {
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
        self.rank_states[rank as usize].lost(now, peer, fault);
        self.wake(now, rank);
    }

    fn crash(&mut self, now: Picoseconds, rank: u32) {
        let Some(state) = &mut self.faults else { return };
        if !state.crashed.insert(rank) {
            return;
        }
        let notified_at = now + state.notice_ps;
        if let Some(checks) = &mut self.checks {
            checks.died(rank);
        }
        self.trace.note(now ^ u64::from(rank) << 48);
        let rank_state = &mut self.rank_states[rank as usize];
        self.ended += u32::from(!rank_state.has_ended());
        rank_state.crash(now);
        // Also what is on its last way into the mailbox: it is taken the moment it comes.
        while let Some((train, _)) =
            self.rank_states[rank as usize].mailbox.take(Picoseconds::MAX, &mut self.chunks)
        {
            self.flights.discard(train);
            self.network.taken(now, rank, &mut self.outputs);
        }
        self.take_outputs();
        for other in (0..self.plan.ranks).filter(|&other| other != rank) {
            let fault = PeerFault::Died;
            self.schedule(notified_at, super::Event::Lost { rank: other, peer: rank, fault });
        }
    }

    /// Whether a rank has crashed.
    #[inline]
    pub(super) fn has_crashed(&self, rank: u32) -> bool {
        self.faults.as_ref().is_some_and(|state| state.has_crashed(rank))
    }

    /// Packets that nobody takes any more.
    pub(super) fn drop_packets(&mut self, now: Picoseconds, segment: crate::network::Segment) {
        for _ in 0..segment.count {
            self.flights.discard(segment.train);
            self.network.taken(now, segment.to, &mut self.outputs);
        }
        self.take_outputs();
    }

    /// `rank` has given up `peer`, or was told of its end: the other one is told.
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
        let notice_ps = self.faults.as_ref().map_or(0, |state| state.notice_ps);
        let notified_at = now + notice_ps.max(self.network.one_way_ps(rank, peer));
        let fault = PeerFault::Unreachable;
        self.schedule(notified_at, super::Event::Lost { rank: peer, peer: rank, fault });
    }
}
