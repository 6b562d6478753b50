//! Assumed parameters: prices, random delays, and times of work that no published time determines. A sweep changes one
//! of them in a world.
//!
//! This module does not know verdicts about published statements. A caller takes the worlds of a plan, changes one
//! parameter in each, runs them, and evaluates the same rules again.
//!
//! A world to which a parameter does not apply stays as it is. So does one whose plan sets that price or the RNR timer
//! itself. Jitter and the work of NAS kernels are changed although plans set them.

use super::setup::{Programs, RNR_TIMER_NS, SchemeName, Setup};
use crate::network::registry::{ManycoreKeys, Nanoseconds};
use crate::workload::Workload;

/// A parameter that we chose and did not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Assumed {
    /// Time of a processor to send or to take an explicit credit packet, as a multiple of the network file's price.
    CreditPrice,
    /// Time of a processor to copy a packet that came before its receive, as a multiple of the network file's
    /// price.
    UnexpectedCopyPrice,
    /// Time of a call that posts a receive. Unit: ns.
    ReceiveCall,
    /// RNR timer of the scheme `hardware`. Unit: us.
    RnrTimer,
    /// Mean of the random extra time of each send call and receive call. Unit: ns.
    CallJitter,
    /// Time that ranks of a NAS kernel compute in an iteration, as a multiple of the plan's.
    ComputeTime,
    /// Largest difference between the work of a rank of a NAS kernel and the mean. Unit: percent.
    WorkImbalance,
    /// Time of a rank and of a server for each message at the gate of its host, as a multiple of the network file's.
    GatePrice,
}

impl Assumed {
    /// All of them.
    pub const ALL: [Assumed; 8] = [
        Assumed::CreditPrice,
        Assumed::UnexpectedCopyPrice,
        Assumed::ReceiveCall,
        Assumed::RnrTimer,
        Assumed::CallJitter,
        Assumed::ComputeTime,
        Assumed::WorkImbalance,
        Assumed::GatePrice,
    ];

    /// Name and unit, for tables.
    pub fn name(self) -> &'static str {
        match self {
            Assumed::CreditPrice => "credit price (x)",
            Assumed::UnexpectedCopyPrice => "unexpected copy (x)",
            Assumed::ReceiveCall => "receive call (ns)",
            Assumed::RnrTimer => "RNR timer (us)",
            Assumed::CallJitter => "call jitter (ns)",
            Assumed::ComputeTime => "computing (x)",
            Assumed::WorkImbalance => "work imbalance (%)",
            Assumed::GatePrice => "gate price (x)",
        }
    }

    /// Values that a sweep tries, in order; [`Assumed::base`] is one of them. No value makes a world one that a plan
    /// already distinguishes by it: E1.5 has worlds whose credit packets cost nothing, and E2.3 a timer of 640 us.
    pub fn values(self) -> &'static [f64] {
        match self {
            Assumed::CreditPrice => &[0.1, 0.5, 1.0, 2.0],
            Assumed::UnexpectedCopyPrice => &[0.0, 0.5, 1.0, 2.0],
            Assumed::ReceiveCall => &[0.0, 100.0, 300.0, 1000.0],
            Assumed::RnrTimer => &[10.0, 20.0, 80.0, 320.0, 960.0],
            Assumed::CallJitter => &[0.0, 1000.0, 10_000.0],
            Assumed::ComputeTime => &[0.01, 0.1, 1.0, 2.0],
            Assumed::WorkImbalance => &[0.0, 5.0, 20.0],
            Assumed::GatePrice => &[0.0, 0.5, 1.0, 2.0, 4.0],
        }
    }

    /// The value with which the published experiments run.
    pub fn base(self) -> f64 {
        match self {
            Assumed::CreditPrice
            | Assumed::UnexpectedCopyPrice
            | Assumed::ComputeTime
            | Assumed::GatePrice => 1.0,
            Assumed::ReceiveCall => 300.0,
            Assumed::RnrTimer => RNR_TIMER_NS as f64 / 1000.0,
            Assumed::CallJitter => 0.0,
            Assumed::WorkImbalance => 5.0,
        }
    }

    /// The value with which these worlds run: [`Assumed::base`], or the jitter that their plan sets.
    pub fn base_of(self, worlds: &[Setup]) -> f64 {
        match (self, worlds.first()) {
            (Assumed::CallJitter, Some(world)) => world.network.model.cost.call_jitter_ps as f64 / 1000.0,
            _ => self.base(),
        }
    }

    /// The world with another value; `None` if the parameter is no assumption of this world.
    #[must_use]
    pub fn set(self, setup: &Setup, value: f64) -> Option<Setup> {
        let mut changed = setup.clone();
        let cost = &mut changed.network.model.cost;
        let scaled = |ps: u64| (ps as f64 * value).round() as u64;
        let mut keys: Vec<(&str, u64)> = Vec::new();
        match self {
            Assumed::CreditPrice => {
                cost.credit_send_ps = scaled(cost.credit_send_ps);
                cost.credit_receive_ps = scaled(cost.credit_receive_ps);
                keys.push(("credit_send_ns", cost.credit_send_ps));
                keys.push(("credit_receive_ns", cost.credit_receive_ps));
            }
            Assumed::UnexpectedCopyPrice => {
                cost.unexpected_copy_ps_per_kib = scaled(cost.unexpected_copy_ps_per_kib);
                keys.push(("unexpected_copy_ns_per_kib", cost.unexpected_copy_ps_per_kib));
            }
            Assumed::ReceiveCall => {
                if !setup.network.model.info().assumes_receive_call {
                    return None;
                }
                cost.receive_call_ps = (value * 1000.0) as u64;
                keys.push(("receive_call_ns", cost.receive_call_ps));
            }
            Assumed::CallJitter => {
                // Without `[cost]` the model has no price of a call.
                if !setup.network.model.info().has_cost {
                    return None;
                }
                cost.call_jitter_ps = (value * 1000.0) as u64;
                // A plan that sets the jitter wants noise between seeds. Its amount is still an assumption.
                let name = &mut changed.settings.network;
                let kept: Vec<&str> =
                    name.split(' ').filter(|it| !it.starts_with("call_jitter_ns=")).collect();
                *name = kept.join(" ");
                name.push_str(&format!(" call_jitter_ns={value}"));
                return Some(changed);
            }
            Assumed::RnrTimer => {
                let timer_ns = &mut changed.settings.rnr_timer_ns;
                if setup.settings.scheme != SchemeName::Hardware || *timer_ns != RNR_TIMER_NS {
                    return None;
                }
                *timer_ns = (value * 1000.0) as u64;
                return Some(changed);
            }
            Assumed::GatePrice => {
                let keys = changed.network.model.keys::<ManycoreKeys>().filter(ManycoreKeys::has_gate)?;
                let [gate_ns, serve_ns] = [keys.gate_ns, keys.serve_ns].map(|it| Nanoseconds(scaled(it.0)));
                changed.network.model =
                    changed.network.model.with_keys(ManycoreKeys { gate_ns, serve_ns, ..keys });
                for (key, price) in [("gate_ns", gate_ns), ("serve_ns", serve_ns)] {
                    let name = &mut changed.settings.network;
                    name.push_str(&format!(" {key}={}", price.0 as f64 / 1000.0));
                }
                return Some(changed);
            }
            Assumed::ComputeTime | Assumed::WorkImbalance => {
                let Programs::Named(Workload::Nas(nas)) = &mut changed.programs else { return None };
                let (key, number) = if self == Assumed::ComputeTime {
                    nas.iteration_compute_ns = (nas.iteration_compute_ns as f64 * value).round() as u64;
                    ("iteration_compute_ns", nas.iteration_compute_ns)
                } else {
                    nas.imbalance_percent = value as u32;
                    ("imbalance_percent", nas.imbalance_percent.into())
                };
                changed.settings.workload["nas"][key] = number.into();
                return Some(changed);
            }
        }
        for (key, price_ps) in keys {
            if setup.settings.network_value(key).is_some() {
                return None;
            }
            changed.settings.network.push_str(&format!(" {key}={}", price_ps as f64 / 1000.0));
        }
        (changed.network.model.cost != setup.network.model.cost || value == self.base()).then_some(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use std::path::PathBuf;

    fn worlds(name: &str) -> Vec<Setup> {
        let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
        Plan::read(&directory.join(name), &directory.join("networks"), true).expect("a plan").worlds
    }

    #[test]
    fn a_changed_world_has_another_key_and_names_the_price() {
        let worlds = worlds("e1.2.toml");
        let changed = Assumed::CreditPrice.set(&worlds[0], 0.5).expect("an assumption of EXTOLL");
        assert_ne!(changed.key(), worlds[0].key());
        assert_eq!(changed.settings.network, "extoll credit_send_ns=645.5 credit_receive_ns=645.5");
        assert_eq!(changed.settings.network_value("credit_send_ns"), Some(645.5));
        assert_eq!(Assumed::ReceiveCall.set(&worlds[0], 0.0).map(|it| it.settings.network), None);
    }

    #[test]
    fn a_world_keeps_the_values_that_its_plan_sets() {
        let is_free = |it: &&Setup| it.settings.network_value("credit_send_ns") == Some(0.0);
        let worlds = worlds("e1.5.toml");
        let free = worlds.iter().find(is_free).expect("worlds without a price of credit packets");
        assert!(Assumed::CreditPrice.set(free, 2.0).is_none());
        let priced = worlds.iter().find(|it| !is_free(it)).expect("worlds with it");
        assert!(Assumed::CreditPrice.set(priced, 2.0).is_some());
    }

    #[test]
    fn only_the_default_rnr_timer_of_hardware_is_swept() {
        let worlds = worlds("e2.3.toml");
        for world in &worlds {
            let is_assumed =
                world.settings.scheme == SchemeName::Hardware && world.settings.rnr_timer_ns == RNR_TIMER_NS;
            let changed = Assumed::RnrTimer.set(world, 80.0);
            assert_eq!(changed.map(|it| it.settings.rnr_timer_ns), is_assumed.then_some(80_000));
        }
    }

    #[test]
    fn work_is_an_assumption_of_nas_kernels_only() {
        let kernels = worlds("e2.5.toml");
        for (parameter, value, key) in [
            (Assumed::ComputeTime, 0.1, "iteration_compute_ns"),
            (Assumed::WorkImbalance, 20.0, "imbalance_percent"),
        ] {
            let (world, factor) = (&kernels[0], parameter.base_of(&kernels));
            let number = |it: &Setup| it.settings.workload_number(key).expect("stated");
            let changed = parameter.set(world, value).expect("an assumption of a kernel");
            let expected = match parameter {
                Assumed::ComputeTime => number(world) * value / factor,
                _ => value,
            };
            assert_eq!(number(&changed), expected, "{key}");
            assert_ne!(changed.key(), world.key(), "{key}");
            assert!(parameter.set(&worlds("e2.3.toml")[0], value).is_none(), "{key}");
        }
    }

    #[test]
    fn the_price_of_a_gate_is_an_assumption_of_worlds_with_one() {
        for world in worlds("e3.3.toml") {
            let has_gate = ["rate_delay_ns", "tokens", "servers"]
                .iter()
                .any(|key| world.settings.network_value(key).is_some_and(|value| value > 0.0));
            let changed = Assumed::GatePrice.set(&world, 2.0);
            assert_eq!(changed.is_some(), has_gate, "{}", world.settings.network);
            let Some(changed) = changed else { continue };
            assert_ne!(changed.key(), world.key());
            let prices = ["gate_ns", "serve_ns"].map(|key| changed.settings.network_value(key));
            assert_eq!(prices, [Some(100.0), Some(300.0)]);
            let keys = changed.network.model.keys::<ManycoreKeys>().expect("hosts with many ranks");
            assert_eq!([keys.gate_ns.0, keys.serve_ns.0], [100_000, 300_000]);
        }
    }

    #[test]
    fn the_values_of_a_sweep_contain_the_base() {
        for parameter in Assumed::ALL {
            assert!(parameter.values().contains(&parameter.base()), "{}", parameter.name());
            assert!(parameter.values().is_sorted(), "{}", parameter.name());
        }
    }
}
