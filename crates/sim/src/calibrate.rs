//! Calibration of the EXTOLL model: fits the parameters that no source states to published times without flow control.
//!
//! Prades publishes four such times (section 5.3). Each parameter is fitted to the time that it determines, one after
//! the other. The model predicts the times to which nothing is fitted. Their differences show how good the model is.
//! `weir calibrate` prints them.
//!
//! | parameter | fitted to | method |
//! |---|---|---|
//! | `hop_ns` | ping-pong at 14 hops minus ping-pong at 1 hop | the simulated difference is linear in it |
//! | `packet_receive_ns`, and the prices of the processor that equal it in the file | ping-pong at 1 hop | secant |
//! | `link_packet_ns`, if asked for | all-to-all among 256 ranks | secant |
//!
//! A secant fit ends when the simulated time is within [`FIT_TOLERANCE`] of the published one. It fails after
//! [`MAX_FIT_STEPS`] worlds. There is no randomness: the same file gives the same result everywhere.

use weir_proto::Scheme;

use crate::Picoseconds;
use crate::cost::Cost;
use crate::network::mesh::Mesh;
use crate::network::registry::{ExtollKeys, ExtollWires, Model, NetworkKeys, Shape};
use crate::workload::alltoall::{Algorithm, Alltoall, Order};
use crate::workload::pairs::MultiPingpong;
use crate::workload::{Workload, measure};
use crate::world::{World, WorldSpec};

/// Relative difference between simulated and published time at which a fit ends.
pub const FIT_TOLERANCE: f64 = 0.0005;
/// Most worlds of one fit.
pub const MAX_FIT_STEPS: u32 = 8;
/// Ranks of a node. Source: Prades, chapter 2 (16 cores) and section 5.3.
const RANKS_PER_NODE: u32 = 16;
/// Source: Prades, section 5.3. Unit: bytes.
const MESSAGE_BYTES: u64 = 2048;
/// Round trips before the timed ones, so that pairs that begin together spread out.
const WARMUP_ROUND_TRIPS: u32 = 100;
const ROUND_TRIPS: u32 = 200;

/// A published time without flow control.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reference {
    /// Name of the measurement.
    pub name: &'static str,
    /// Source: Prades, section 5.3. Unit: us.
    pub published_us: f64,
    mesh: [u32; 3],
    /// Distance of the partners of a ping-pong; `None` for an all-to-all.
    partner_distance_ranks: Option<u32>,
}

/// Ping-pong between neighbours. The other nodes are idle, so one row of nodes is enough.
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
    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.mesh.iter().product::<u32>() * RANKS_PER_NODE
    }

    /// The workload. The time of a ping-pong is half a round trip, as in the Intel MPI Benchmarks. In the
    /// all-to-all every process first sends to all others in order, then receives (Prades, section 5.3). One
    /// call after a barrier is enough, because without flow control a call leaves nothing behind for the next
    /// one.
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

    /// Simulates the measurement. Returns the time of the slowest rank for an all-to-all, the mean over all
    /// pairs for a ping-pong. Unit: us.
    ///
    /// # Errors
    /// [`Failure::OtherNetwork`] if the model is not an EXTOLL, [`Failure::WorldError`] if the world does not end.
    pub fn simulate(&self, model: &Model) -> Result<f64, Failure> {
        let shape = Shape {
            ranks: self.ranks(),
            mesh: Mesh { size: self.mesh },
            ranks_per_node: RANKS_PER_NODE,
            mailbox_slots: None,
        };
        let network = model.keys::<ExtollKeys>().ok_or(Failure::OtherNetwork)?.network(shape);
        // No flow control; mailboxes have as many slots as needed.
        let mut spec = WorldSpec::new(self.ranks(), Scheme::Unlimited, 1 << 30, model.cost);
        spec.config.eager_bytes = MESSAGE_BYTES;
        let workload = self.workload();
        let report = World::new(spec, network, |rank| workload.program(rank))
            .run()
            .map_err(|error| Failure::WorldError { what: self.name, error: error.to_string() })?;
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

/// The reason why a calibration ends without a result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The file describes another network.
    #[error("the file describes another network; allowed: kind = \"extoll\"")]
    OtherNetwork,
    /// A world did not end.
    #[error("{what}: {error}")]
    WorldError {
        /// Name of the measurement.
        what: &'static str,
        /// The reason.
        error: String,
    },
    /// No value of the parameter gives the published time.
    #[error(
        "no value of {parameter} gives {goal_us} us; {last_ns} ns gives {last_us} us; start from other values in the file"
    )]
    NoFit {
        /// Name of the parameter.
        parameter: &'static str,
        /// The published time.
        goal_us: f64,
        /// The last value tried.
        last_ns: f64,
        /// The simulated time with that value.
        last_us: f64,
    },
    /// The caller stopped the calibration.
    #[error("interrupted")]
    Interrupted,
}

/// A published time and the simulated one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residual {
    /// The published time.
    pub reference: Reference,
    /// Whether some parameter was fitted to this time; otherwise the simulated time is a prediction.
    pub fitted: bool,
    /// Simulated with the fitted values. Unit: us.
    pub simulated_us: f64,
}

impl Residual {
    /// Relative difference between simulated and published time.
    pub fn part(&self) -> f64 {
        self.simulated_us / self.reference.published_us - 1.0
    }
}

/// Result of a calibration.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The model with the fitted values.
    pub model: Model,
    /// All published times that were simulated.
    pub residuals: Vec<Residual>,
    /// Number of worlds.
    pub worlds: u32,
}

/// Runs worlds, counts them and reports each before it begins.
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

    /// Finds the value of a parameter for which `reference` takes its published time, with the secant method.
    /// `begin_ps` is the first guess. The second guess is 5 % larger.
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
            // Limits a step of the secant method to half and twice the value.
            value = next.clamp(value / 2.0, value * 2.0 + 1000.0);
        }
        Err(Failure::NoFit { parameter, goal_us, last_ns: value / 1000.0, last_us: time_us })
    }
}

/// Fits the free parameters of an EXTOLL model.
///
/// - `fit_link`: fits the time of a packet on a link too. Otherwise that time stays as stated.
/// - `with_large`: also simulates the reference with 1024 ranks. It takes much longer than all others
///   together.
/// - `report_progress`: called with the name of each measurement before it begins; `false` ends the
///   calibration.
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
    // A round trip crosses each hop once in each direction. So one world at each distance gives the error of
    // the guess.
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
