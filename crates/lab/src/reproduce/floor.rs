//! Computes what a linear all-to-all costs at least with few slots, from the network's file. [`Work`] is the work of a
//! rank in a call; [`Floor`] the overhead that follows.
//!
//! - *Of memory*: a lower bound for every scheme. When a call begins, at most `d` slots for each burst of `P` packets
//!   are with the senders. So a share `w = max(0, 1 - d/P)` of the packets needs slots that were filled and emptied
//!   before. If sends come first, what a rank empties before its receives is taken twice: `w u` for each burst. Each
//!   burst of this share needs a credit packet, unless credits can travel with data. One send at a time, they can for
//!   half of the bursts: in the other half the receiver has sent its own burst to the sender later, or not yet.
//! - *Of waiting*: what lending on demand costs at least if the receiver does not know which sender comes next, and a
//!   rank that waits empties its mailbox. Then each burst of the share `w` waits, and needs a credit packet. Waits lie
//!   anywhere in a call, so only what comes after the last of `W = w (ranks - 1)` is taken once: `u W / (W + 1)` for
//!   each burst. A round trip costs nothing as long as the packets of one burst take longer to retrieve.
//!
//! Neither knows the jitter of calls, or that packets queue on links.

use serde_json::Value;
use weir_sim::plan::{SchemeName, Setup};

/// Overheads. Unit: percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floor {
    /// No scheme with this memory is below.
    pub of_memory: f64,
    /// Lending on demand without knowledge of the next sender is not below.
    pub of_waiting: f64,
}

/// Work of a rank in a call. Unit: ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Without flow control.
    plain_ns: f64,
    memory_ns: f64,
    waiting_ns: f64,
}

impl Work {
    /// The work in a world with credits; `None` if it is not a linear all-to-all on EXTOLL.
    pub fn of(setup: &Setup) -> Option<Work> {
        let it = &setup.settings;
        if it.scheme == SchemeName::Unlimited {
            return None;
        }
        let neighbour_ps = setup.network.model.extoll_neighbour_ps()?;
        let workload = it.workload.get(it.workload_name())?;
        let active = match it.workload_name() {
            "alltoall" if workload["algorithm"] == "linear" => it.ranks,
            "alltoall_groups" if workload.get("groups").is_none_or(|groups| *groups == 1) => {
                it.workload_number("group_ranks")? as u32
            }
            _ => return None,
        };
        let bytes = it.workload_number("message_bytes")? as u64;
        let sends_first = workload.get("order").and_then(Value::as_str) == Some("sends_first");
        let cost = setup.network.cost();
        let ns = |ps: u64| ps as f64 / 1e3;
        let (send, receive) = (ns(cost.packet_send_ps), ns(cost.packet_receive_ps));
        let credit = ns(cost.credit_send_ps + cost.credit_receive_ps);
        let second_copy = if sends_first { ns(cost.unexpected_copy_ps(bytes)) } else { 0.0 };
        let packets = setup.network.packets(bytes) as f64;
        let bursts = f64::from(active.checked_sub(1).filter(|bursts| *bursts > 0)?);
        let peers = f64::from(it.ranks - 1);
        let slots = f64::from(it.slots_per_peer.saturating_sub(it.credit_slots)) * peers / bursts;
        let waits = (1.0 - slots / packets).max(0.0);
        // What the guaranteed credits beyond the announcing packet take is sent meanwhile.
        let sent_meanwhile = f64::from(it.credit_slots.saturating_sub(1)) * send;
        let round_trip = 2.0 * ns(neighbour_ps) + receive + credit - sent_meanwhile;
        let idle = (round_trip - packets * receive).max(0.0);
        let is_one_at_a_time = it.workload_number("window_messages") == Some(1.0);
        let with_data = match (it.piggyback, is_one_at_a_time) {
            (false, _) => 0.0,
            (true, true) => 0.5,
            (true, false) => 1.0,
        };
        let explicit = (waits - with_data).max(0.0);
        let of_calls = ns(cost.send_call_ps + cost.receive_call_ps + 2 * cost.call_jitter_ps);
        Some(Work {
            plain_ns: bursts * (packets * (send + receive) + of_calls),
            memory_ns: bursts * (waits * second_copy + explicit * credit),
            waiting_ns: bursts * waits * (credit + idle) + bursts * second_copy * last_wait(waits * bursts),
        })
    }

    /// The overheads over a call that takes `reference_ns` without flow control. If that is longer than the work, a rank
    /// can do more work in the rest.
    pub fn floor(&self, reference_ns: f64) -> Floor {
        let percent = |more_ns: f64| (100.0 * ((self.plain_ns + more_ns) / reference_ns - 1.0)).max(0.0);
        let of = |more_ns: f64| if more_ns > 0.0 { percent(more_ns) } else { 0.0 };
        Floor { of_memory: of(self.memory_ns), of_waiting: of(self.waiting_ns) }
    }
}

/// The share of a call before the last of these waits, if they lie anywhere in it.
fn last_wait(waits: f64) -> f64 {
    waits / (waits + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use weir_sim::plan::{Plan, run};

    const HEAD: &str = "
        title = 'T'
        experiment = 'E'
        source = 'S'
        seeds = [1]
        [base]
        network = { file = 'extoll' }
        credit_slots = 2
        ranks = 8
        mesh_nodes = '2x2x2'
    ";
    const ALL: &str = "workload.alltoall = { algorithm = 'linear', order = 'sends_first', window_messages = 1, \
                       message_bytes = 2048, warmup_calls = 2, calls = 2, barrier_each_call = true }\n";
    const SOME: &str = "workload.alltoall_groups = { order = 'sends_first', window_messages = 1, message_bytes = 2048, \
                        group_ranks = 8, calls = 2 }\n";

    fn plan(name: &str, workload: &str, sweeps: &str) -> Plan {
        let experiments = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
        let path = std::env::temp_dir().join(format!("weir-floor-{name}-{}.toml", std::process::id()));
        std::fs::write(&path, format!("{HEAD}{workload}{sweeps}")).expect("a file");
        let plan = Plan::read(&path, &experiments.join("networks"), false);
        std::fs::remove_file(&path).expect("a file");
        plan.unwrap_or_else(|error| panic!("{error}"))
    }

    /// The floor of a world of 64 ranks, over a reference that is all work.
    fn floor(workload: &str, sweep: &str) -> Floor {
        let of_64 = "[[sweep]]\nranks = 64\nranks_per_node = 8\nscheme = 'demand'\n";
        let plan = plan("formula", workload, &format!("{of_64}{sweep}"));
        let works: Vec<Work> = plan.worlds.iter().filter_map(Work::of).collect();
        let [work] = works[..] else { panic!("{} worlds with credits", works.len()) };
        work.floor(work.plain_ns)
    }

    /// 8 slots: d = 6, P = 37, s = r = 1.291 us, u = 47.214 us for each burst.
    #[test]
    fn the_floor_follows_the_formula() {
        let near = |value: f64, expected: f64| assert!((value - expected).abs() < 0.05, "{value} {expected}");
        let few = floor(ALL, "slots_per_peer = 8");
        near(few.of_memory, 100.0 * (0.8378 * 47.214 + 0.3378 * 2.582) / 95.534);
        near(few.of_waiting, 100.0 * (52.784 / 53.784 * 47.214 + 0.8378 * 2.582) / 95.534);
        assert_eq!(floor(ALL, "slots_per_peer = 39"), Floor { of_memory: 0.0, of_waiting: 0.0 });
        let first = "slots_per_peer = 8\nworkload.alltoall.order = 'receives_first'\n";
        near(floor(ALL, first).of_memory, 100.0 * 0.3378 * 2.582 / 95.534);
        near(floor(ALL, first).of_waiting, 100.0 * 0.8378 * 2.582 / 95.534);
        let posted = format!("{first}workload.alltoall.window_messages = 0");
        assert_eq!(floor(ALL, &posted).of_memory, 0.0, "credits travel with data");
        // Eight of 64 ranks: the slots of 63 peers are for seven senders, 18 for each.
        let few = floor(SOME, "slots_per_peer = 4");
        near(few.of_memory, 100.0 * (0.5135 * 47.214 + 0.0135 * 2.582) / 95.534);
    }

    /// Eight ranks, each on a node of its own, so that nothing but credits delays packets.
    #[test]
    fn no_simulated_world_is_below_the_floor() {
        let plan = plan(
            "worlds",
            ALL,
            "
            [[sweep]]
            scheme = ['static', 'dynamic', 'weir', 'demand']
            slots_per_peer = [4, 8, 20, 36, 38, 40]
            [[sweep]]
            scheme = ['static', 'dynamic', 'weir', 'demand']
            slots_per_peer = [4, 8, 20, 36, 38, 40]
            workload.alltoall = { order = 'receives_first', window_messages = 0 }
            ",
        );
        let mut above_zero = 0;
        for setup in plan.worlds.iter() {
            let Some(work) = Work::of(setup) else { continue };
            let time = |setup: &Setup| run::run(setup).unwrap_or_else(|failed| panic!("{failed}")).time_ns;
            let reference = time(&setup.reference());
            let overhead = 100.0 * (time(setup) / reference - 1.0);
            let floor = work.floor(reference);
            assert!(overhead >= floor.of_memory, "{}: {overhead} {floor:?}", setup.settings.describe());
            if setup.settings.scheme == SchemeName::Demand {
                assert!(overhead >= floor.of_waiting, "{}: {overhead} {floor:?}", setup.settings.describe());
            }
            above_zero += u32::from(floor.of_memory > 0.0);
        }
        assert!(above_zero > 16, "{above_zero} worlds have a floor");
    }
}
