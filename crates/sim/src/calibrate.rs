//! Calibration of the EXTOLL model: what no source states is fitted to published times without flow control.
//!
//! Four times are published (Prades, section 5.3). Each fitted number is fitted to the time that it decides, one after the other; a
//! time that nothing is fitted to is predicted, and shows what the model is worth:
//!
//! | fitted | to | how |
//! |---|---|---|
//! | `hop_ns` | ping-pong at 14 hops minus ping-pong at 1 hop | the simulated difference follows it one to one |
//! | `packet_receive_ns`, and the processor's prices that are equal to it in the file | ping-pong at 1 hop | secant |
//! | `link_packet_ns`, if asked for | all-to-all among 256 | secant |
//!
//! A fit ends when the simulated time is within [`FIT_TOLERANCE`] of the published one, and fails after [`MAX_FIT_STEPS`] worlds. No
//! randomness: the same file gives the same result everywhere.

use weir_proto::Scheme;

use crate::Picoseconds;
use crate::cost::Cost;
use crate::network::extoll::Extoll;
use crate::network::mesh::Mesh;
use crate::network::parameters::{ExtollWires, Model, Shape};
use crate::workload::alltoall::{Algorithm, Alltoall, Order};
use crate::workload::pairs::MultiPingpong;
use crate::workload::{Workload, measure};
use crate::world::{Plan, World};

/// A fit may stop this near its goal, as a part of it.
pub const FIT_TOLERANCE: f64 = 0.0005;
/// Worlds that one fit may take.
pub const MAX_FIT_STEPS: u32 = 8;
/// Ranks of a node. Source: Prades, chapter 2 (16 cores), section 5.3.
const RANKS_PER_NODE: u32 = 16;
/// Source: Prades, section 5.3. Unit: bytes.
const MESSAGE_BYTES: u64 = 2048;
/// Round trips before those that are timed: until pairs that begin together have spread.
const WARMUP_ROUND_TRIPS: u32 = 100;
const ROUND_TRIPS: u32 = 200;

/// A published time without flow control.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reference {
    /// What is timed.
    pub name: &'static str,
    /// Source: Prades, section 5.3. Unit: us.
    pub published_us: f64,
    mesh: [u32; 3],
    /// Of the partners of a ping-pong; `None`: an all-to-all.
    partner_distance_ranks: Option<u32>,
}

/// Ping-pong between neighbours. The nodes in between do nothing, so a row of them is enough.
pub const PINGPONG_NEAR: Reference = Reference {
    name: "multi-pingpong 2 KB, 16 + 16 ranks, 1 hop",
    published_us: 50.04,
    mesh: [15, 1, 1],
    partner_distance_ranks: Some(RANKS_PER_NODE),
};
/// Ping-pong across 14 links.
pub const PINGPONG_FAR: Reference = Reference {
    name: "multi-pingpong 2 KB, 16 + 16 ranks, 14 hops",
    published_us: 51.17,
    partner_distance_ranks: Some(14 * RANKS_PER_NODE),
    ..PINGPONG_NEAR
};
/// All-to-all on the 2D mesh.
pub const ALLTOALL_256: Reference = Reference {
    name: "all-to-all 2 KB, 256 ranks, 4x4",
    published_us: 52_908.41,
    mesh: [4, 4, 1],
    partner_distance_ranks: None,
};
/// All-to-all on the 3D mesh. Nothing is fitted to it.
pub const ALLTOALL_1024: Reference = Reference {
    name: "all-to-all 2 KB, 1024 ranks, 4x4x4",
    published_us: 278_515.08,
    mesh: [4, 4, 4],
    ..ALLTOALL_256
};

impl Reference {
    /// The ranks that take part.
    pub fn ranks(&self) -> u32 {
        self.mesh.iter().product::<u32>() * RANKS_PER_NODE
    }

    /// What is run. The ping-pong's time is half of there and back, as the Intel MPI Benchmarks report it. The all-to-all: every
    /// process first sends to all others, one after the other, then receives (Prades, section 5.3); one call after a barrier,
    /// since nothing of an earlier call is left over where there is no flow control.
    fn workload(&self) -> Workload {
        match self.partner_distance_ranks {
            Some(partner_distance_ranks) => Workload::MultiPingpong(MultiPingpong {
                message_bytes: MESSAGE_BYTES,
                pairs: RANKS_PER_NODE,
                partner_distance_ranks,
                warmup_round_trips: WARMUP_ROUND_TRIPS,
                round_trips: ROUND_TRIPS,
            }),
            None => Workload::Alltoall(Alltoall {
                algorithm: Algorithm::Linear,
                message_bytes: MESSAGE_BYTES,
                window_messages: 1,
                order: Order::SendsFirst,
                warmup_calls: 0,
                calls: 1,
                barrier_each_call: true,
            }),
        }
    }

    /// The simulated time: of the slowest rank of an all-to-all, the mean over pairs of a ping-pong. Unit: us.
    ///
    /// # Errors
    /// If the model is for another network, or the world does not end.
    pub fn simulate(&self, model: &Model) -> Result<f64, Failure> {
        let shape =
            Shape { mesh: Mesh { size: self.mesh }, ranks_per_node: RANKS_PER_NODE, mailbox_slots: None };
        let parameters = model.extoll(shape).ok_or(Failure::OtherNetwork)?;
        let network = Extoll::new(parameters);
        // No flow control; mailboxes are as large as needed.
        let mut plan = Plan::new(self.ranks(), Scheme::Unlimited, 1 << 30, model.cost);
        plan.config.eager_bytes = MESSAGE_BYTES;
        let workload = self.workload();
        let report = World::new(plan, network, |rank| workload.program(rank))
            .run()
            .map_err(|stuck| Failure::Stuck { what: self.name, stuck: stuck.to_string() })?;
        let name = match self.partner_distance_ranks {
            Some(_) => measure::HALF_ROUND_TRIP_NS,
            None => measure::CALL_NS,
        };
        let ns: Vec<f64> =
            report.records.iter().filter(|record| record.name == name).map(|record| record.value).collect();
        let ns = match self.partner_distance_ranks {
            Some(_) => ns.iter().sum::<f64>() / ns.len().max(1) as f64,
            None => ns.iter().copied().fold(0.0, f64::max),
        };
        Ok(ns / 1000.0)
    }
}

/// Why a calibration ends without a result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The file is for something else.
    #[error("the file is not for an EXTOLL; allowed: kind = \"extoll\"")]
    OtherNetwork,
    /// A world did not end.
    #[error("{what}: {stuck}")]
    Stuck {
        /// Which reference.
        what: &'static str,
        /// Why.
        stuck: String,
    },
    /// The goal is out of reach.
    #[error("{parameter}: no value gives {goal_us} us; with {last_ns} ns the model needs {last_us} us")]
    NoFit {
        /// What was changed.
        parameter: &'static str,
        /// The published time.
        goal_us: f64,
        /// The last value tried.
        last_ns: f64,
        /// And what came of it.
        last_us: f64,
    },
    /// Somebody does not want to go on.
    #[error("interrupted")]
    Interrupted,
}

/// A reference beside what the model says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residual {
    /// Which.
    pub reference: Reference,
    /// Whether some parameter was fitted to it; otherwise it is a prediction.
    pub fitted: bool,
    /// Simulated with the fitted values. Unit: us.
    pub simulated_us: f64,
}

impl Residual {
    /// How far the simulated time is from the published one, as a part of that.
    pub fn part(&self) -> f64 {
        self.simulated_us / self.reference.published_us - 1.0
    }
}

/// What a calibration gives.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The model with the fitted values.
    pub model: Model,
    /// Every reference that was asked for.
    pub residuals: Vec<Residual>,
    /// Worlds that were run.
    pub worlds: u32,
}

/// Runs worlds, counts them and tells about each before it begins.
struct Bench<'a> {
    report_progress: &'a mut dyn FnMut(&str) -> bool,
    worlds: u32,
}

impl Bench<'_> {
    fn time_us(&mut self, reference: &Reference, model: &Model) -> Result<f64, Failure> {
        self.worlds += 1;
        if !(self.report_progress)(reference.name) {
            return Err(Failure::Interrupted);
        }
        reference.simulate(model)
    }

    /// Finds the value of a parameter with which `reference` takes its published time, by the secant method. `begin_ps` is the
    /// first guess, 5 % more the second.
    fn fit(
        &mut self,
        parameter: &'static str,
        reference: &Reference,
        begin_ps: Picoseconds,
        with: impl Fn(Picoseconds) -> Model,
    ) -> Result<Picoseconds, Failure> {
        let goal_us = reference.published_us;
        let mut earlier: Option<(f64, f64)> = None;
        let mut value = begin_ps as f64;
        let mut time_us = 0.0;
        for _ in 0..MAX_FIT_STEPS {
            time_us = self.time_us(reference, &with(value.round() as Picoseconds))?;
            if (time_us / goal_us - 1.0).abs() <= FIT_TOLERANCE {
                return Ok(value.round() as Picoseconds);
            }
            let next = match earlier {
                Some((value_before, time_before)) if time_us != time_before => {
                    value + (goal_us - time_us) * (value - value_before) / (time_us - time_before)
                }
                Some(_) => break,
                None => value * 1.05 + 1000.0,
            };
            earlier = Some((value, time_us));
            // A step outside what has any meaning ends at its border; half and twice the value is far enough.
            value = next.clamp(value / 2.0, value * 2.0 + 1000.0);
        }
        Err(Failure::NoFit { parameter, goal_us, last_ns: value / 1000.0, last_us: time_us })
    }
}

/// Fits the free parameters of an EXTOLL model.
///
/// - `fit_link`: whether the link's time is fitted; otherwise it stays as stated.
/// - `with_large`: whether the reference with 1024 ranks is run as well, which takes much longer than all others together.
/// - `report_progress`: called before each world with what is timed there; `false` ends the calibration.
///
/// # Errors
/// [`Failure`].
pub fn extoll(
    start: &Model,
    fit_link: bool,
    with_large: bool,
    report_progress: &mut dyn FnMut(&str) -> bool,
) -> Result<Calibration, Failure> {
    let wires = start.extoll_wires().ok_or(Failure::OtherNetwork)?;
    let mut bench = Bench { report_progress, worlds: 0 };
    // Everything per hop happens once on each way: one world at each distance tells how far off the guess is.
    let hops = 13.0;
    let published_us = PINGPONG_FAR.published_us - PINGPONG_NEAR.published_us;
    let (near_us, far_us) = (bench.time_us(&PINGPONG_NEAR, start)?, bench.time_us(&PINGPONG_FAR, start)?);
    let missing_ps = (published_us - (far_us - near_us)) * 1e6 / hops;
    let hop_ps = (wires.hop_ps as f64 + missing_ps).round().max(0.0) as Picoseconds;
    let mut model = start.with_extoll_wires(ExtollWires { hop_ps, ..wires });

    let receive = |model: &Model, ps| {
        let mut other = *model;
        let was = model.cost.packet_receive_ps;
        let Cost { packet_send_ps, credit_send_ps, packet_receive_ps, credit_receive_ps, .. } =
            &mut other.cost;
        for price in [packet_send_ps, credit_send_ps, packet_receive_ps, credit_receive_ps] {
            if *price == was {
                *price = ps;
            }
        }
        other
    };
    let begin_ps = model.cost.packet_receive_ps;
    let receive_ps = bench.fit("packet_receive_ns", &PINGPONG_NEAR, begin_ps, |ps| receive(&model, ps))?;
    model = receive(&model, receive_ps);

    let link =
        |model: &Model, link_packet_ps| model.with_extoll_wires(ExtollWires { link_packet_ps, hop_ps });
    if fit_link {
        let begin_ps = wires.link_packet_ps;
        let link_ps = bench.fit("link_packet_ns", &ALLTOALL_256, begin_ps, |ps| link(&model, ps))?;
        model = link(&model, link_ps);
    }

    let mut references = vec![(PINGPONG_NEAR, true), (PINGPONG_FAR, true), (ALLTOALL_256, fit_link)];
    references.extend(with_large.then_some((ALLTOALL_1024, false)));
    let mut residuals = Vec::new();
    for (reference, fitted) in references {
        let simulated_us = bench.time_us(&reference, &model)?;
        residuals.push(Residual { reference, fitted, simulated_us });
    }
    Ok(Calibration { model, residuals, worlds: bench.worlds })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(text: &str) -> Model {
        Model::parse(text, "the file").expect("a network")
    }

    #[test]
    fn the_recorded_values_reproduce_the_published_ping_pong() {
        for text in [
            include_str!("../../../experiments/networks/extoll.toml"),
            include_str!("../../../experiments/networks/extoll-contended.toml"),
        ] {
            let simulated_us = PINGPONG_NEAR.simulate(&model(text)).expect("ends");
            let residual = Residual { reference: PINGPONG_NEAR, fitted: true, simulated_us };
            assert!(residual.part().abs() <= FIT_TOLERANCE, "{simulated_us} us: run `weir calibrate`");
        }
    }

    #[test]
    fn calibration_rejects_other_networks_and_stops_on_request() {
        let ideal = include_str!("../../../experiments/networks/ideal.toml");
        assert_eq!(
            extoll(&model(ideal), false, false, &mut |_| true).expect_err("no EXTOLL"),
            Failure::OtherNetwork
        );
        let recorded = model(include_str!("../../../experiments/networks/extoll.toml"));
        let mut asked = 0;
        let interrupted = extoll(&recorded, false, false, &mut |_| {
            asked += 1;
            false
        });
        assert_eq!((interrupted.expect_err("told to stop"), asked), (Failure::Interrupted, 1));
    }
}
