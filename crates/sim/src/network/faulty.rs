//! Wraps a network and adds link faults: variable delay, lost, duplicated and reordered packets.
//!
//! Endpoint machines require links that keep the order of a pair and lose nothing. So this module models faults that
//! the links repair themselves ([`Network::repair_ps`]). A lost or reordered packet arrives later, and the packets
//! behind it wait. A duplicate is discarded. A network whose links do not retransmit accepts variable delay only.
//! EXTOLL repairs on each hop, InfiniBand from end to end (sequence numbers and timeout).
//!
//! ```text
//! inject a, b, c of one pair       the network says: a at 10, b at 11, c at 12 us; a repair takes 5 us
//! b is drawn to be lost            a at 10, b at 16, c at 16 us; other pairs as before
//! ```
//! The model leaves out that retransmissions occupy links, so other pairs do not notice a repair.

use std::collections::BTreeMap;

use fastrand::Rng;
use weir_proto::Geometry;

use super::{Hold, Injection, Network, Output, Outputs, ScheduledOutput, TrainPart};
use crate::Picoseconds;
use crate::queue::Sequence;

/// Faults of links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFaults {
    /// The seed of all draws.
    pub seed: u64,
    /// Largest extra time of packets and reads; a pair keeps its order. Unit: ps.
    pub jitter_ps: Picoseconds,
    /// Lost packets per million.
    pub loss_per_million: u32,
    /// Duplicated packets per million.
    pub duplication_per_million: u32,
    /// Reordered packets per million.
    pub reordering_per_million: u32,
}

/// Faults that are not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkFaultError {
    /// The links do not retransmit.
    #[error("{key} is {value}; allowed: 0, because the links of this network do not retransmit")]
    NotRepaired {
        /// Name of the key.
        key: &'static str,
        /// Its value.
        value: u32,
    },
    /// Too many packets are hit.
    #[error("{key} is {value}; allowed: 0 to {MAX_PER_MILLION}")]
    TooMuch {
        /// Name of the key.
        key: &'static str,
        /// Its value.
        value: u32,
    },
}

/// Bound of each rate: half of the packets.
pub const MAX_PER_MILLION: u32 = 500_000;

/// Draws faults of links from their seed.
#[derive(Clone, Debug)]
pub(super) struct DrawnFaults {
    pub of_links: LinkFaults,
    rng: Rng,
}

impl DrawnFaults {
    pub fn new(of_links: LinkFaults) -> DrawnFaults {
        DrawnFaults { of_links, rng: Rng::with_seed(of_links.seed) }
    }

    /// Whether a fault that hits so many packets in a million hits this one.
    pub fn hit(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.rng.u32(..1_000_000) < per_million
    }

    /// The extra time of an arrival.
    pub fn jitter_ps(&mut self) -> Picoseconds {
        match self.of_links.jitter_ps {
            0 => 0,
            most_ps => self.rng.u64(..=most_ps),
        }
    }
}

/// A network with faulty links.
#[derive(Clone, Debug)]
pub struct Faulty<N: Network> {
    inner: N,
    faults: DrawnFaults,
    repair_ps: Picoseconds,
    /// By train: from, to.
    pairs: Vec<(u32, u32)>,
    /// Arrival of the last packet of a pair.
    last: BTreeMap<(u32, u32), Picoseconds>,
    /// Outputs of the wrapped network; empty between calls.
    scheduled: Vec<ScheduledOutput>,
    repairs: u64,
}

impl<N: Network> Faulty<N> {
    /// Wraps `inner`.
    ///
    /// # Errors
    /// [`LinkFaultError`] if a rate is too high, or if the links of `inner` cannot repair these faults.
    pub fn new(inner: N, faults: LinkFaults) -> Result<Faulty<N>, LinkFaultError> {
        let LinkFaults { loss_per_million, duplication_per_million, reordering_per_million, .. } = faults;
        for (key, value) in [
            ("loss_per_million", loss_per_million),
            ("duplication_per_million", duplication_per_million),
            ("reordering_per_million", reordering_per_million),
        ] {
            if value > MAX_PER_MILLION {
                return Err(LinkFaultError::TooMuch { key, value });
            }
            if value > 0 && inner.repair_ps().is_none() {
                return Err(LinkFaultError::NotRepaired { key, value });
            }
        }
        Ok(Faulty {
            repair_ps: inner.repair_ps().unwrap_or(0),
            inner,
            faults: DrawnFaults::new(faults),
            pairs: Vec::new(),
            last: BTreeMap::new(),
            scheduled: Vec::new(),
            repairs: 0,
        })
    }

    /// Extra time of one packet.
    fn delay_ps(&mut self) -> Picoseconds {
        let LinkFaults { loss_per_million, duplication_per_million, reordering_per_million, .. } =
            self.faults.of_links;
        let mut delay_ps = 0;
        // A retransmitted packet may be lost again.
        while self.faults.hit(loss_per_million) {
            delay_ps += self.repair_ps;
            self.repairs += 1;
        }
        if self.faults.hit(reordering_per_million) {
            delay_ps += self.repair_ps;
            self.repairs += 1;
        }
        self.repairs += u64::from(self.faults.hit(duplication_per_million));
        delay_ps
    }

    /// Calls the wrapped network and passes on its outputs, with the faults.
    fn pass<R>(
        &mut self,
        outputs: &mut Outputs<N::Event>,
        something: impl FnOnce(&mut N, &mut Outputs<N::Event>) -> R,
    ) -> R {
        let before = outputs.count();
        let result = something(&mut self.inner, outputs);
        let mut scheduled = outputs.take(before, std::mem::take(&mut self.scheduled));
        for ScheduledOutput { at, sequence, output } in scheduled.drain(..) {
            match output {
                Output::Arrived(part) => self.arrived(at, sequence, part, Output::Arrived, outputs),
                Output::Marked(part) => self.arrived(at, sequence, part, Output::Marked, outputs),
                Output::GetDone { .. } => {
                    let late_ps = self.faults.jitter_ps() + self.delay_ps();
                    outputs.push_with_sequence(at + late_ps, sequence, output);
                }
                Output::Dropped(_) | Output::Released { .. } | Output::PathEnded { .. } => {
                    outputs.push_with_sequence(at, sequence, output)
                }
            }
        }
        self.scheduled = scheduled;
        result
    }

    fn arrived(
        &mut self,
        at: Picoseconds,
        sequence: Sequence,
        part: TrainPart,
        output: fn(TrainPart) -> Output,
        outputs: &mut Outputs<N::Event>,
    ) {
        let TrainPart { train, first, count, spacing_ps, .. } = part;
        let pair = self.pairs[train.0 as usize];
        let earliest = self.last.get(&pair).copied().unwrap_or(0);
        // Packets that no repair separates arrive as one part.
        let mut run = TrainPart { count: 0, ..part };
        let mut run_at = (at + self.faults.jitter_ps()).max(earliest);
        let mut next_at = run_at;
        for index in first..first + count {
            let delay_ps = self.delay_ps();
            if delay_ps > 0 {
                if run.count > 0 {
                    outputs.push_with_sequence(run_at, sequence, output(run));
                }
                run_at = next_at + delay_ps;
                next_at = run_at;
                run = TrainPart { first: index, count: 0, ..part };
            }
            run.count += 1;
            next_at += spacing_ps;
        }
        outputs.push_with_sequence(run_at, sequence, output(run));
        self.last.insert(pair, next_at - spacing_ps);
    }
}

impl<N: Network> Network for Faulty<N> {
    type Event = N::Event;

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn ranks_per_host(&self) -> u32 {
        self.inner.ranks_per_host()
    }

    fn send_from(&self, from: u32) -> Picoseconds {
        self.inner.send_from(from)
    }

    fn inject(&mut self, now: Picoseconds, injection: Injection, outputs: &mut Outputs<N::Event>) -> Hold {
        let index = injection.train.0 as usize;
        if self.pairs.len() <= index {
            self.pairs.resize(index + 1, (0, 0));
        }
        self.pairs[index] = (injection.from, injection.to);
        self.pass(outputs, |inner, outputs| inner.inject(now, injection, outputs))
    }

    fn retrieved(&mut self, now: Picoseconds, rank: u32, outputs: &mut Outputs<N::Event>) {
        self.pass(outputs, |inner, outputs| inner.retrieved(now, rank, outputs));
    }

    fn get(
        &mut self,
        now: Picoseconds,
        to: u32,
        from: u32,
        bytes: u64,
        number: u32,
        outputs: &mut Outputs<N::Event>,
    ) {
        self.pass(outputs, |inner, outputs| inner.get(now, to, from, bytes, number, outputs));
    }

    fn handle(&mut self, now: Picoseconds, event: N::Event, outputs: &mut Outputs<N::Event>) {
        self.pass(outputs, |inner, outputs| inner.handle(now, event, outputs));
    }

    fn one_way_ps(&self, from: u32, to: u32) -> Picoseconds {
        self.inner.one_way_ps(from, to)
    }

    fn repair_ps(&self) -> Option<Picoseconds> {
        self.inner.repair_ps()
    }

    fn repairs(&self) -> u64 {
        self.repairs
    }

    fn may_drop(&self) -> bool {
        self.inner.may_drop()
    }

    fn drops(&self) -> u64 {
        self.inner.drops()
    }

    fn marks(&self) -> u64 {
        self.inner.marks()
    }

    fn packet_hops(&self) -> u64 {
        self.inner.packet_hops()
    }
}
