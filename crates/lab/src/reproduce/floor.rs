//! Computes what a workload costs at least with few slots, from the network's file. [`Traffic`] says who sends to a rank
//! in a call. [`Work`] is the work of a rank in a call; [`Floor`] the overhead that follows.
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
//!
//! A rank that hears only from a few others, the same in each call, has memory for a burst of each. Then both floors are
//! 0. An all-to-all in steps (`MPI_Alltoallv` of Open MPI) hears from one rank after the other. A receiver that knows the
//! steps could lend each its burst in time, so the floor of memory is 0. Whether a burst comes before its receive depends
//! on how far the ranks are apart, so no second copy is counted. Where a root moves there is no floor: who is ahead of
//! whom follows from several calls.

use serde_json::Value;
use weir_sim::plan::{SchemeName, Settings, Setup};

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
    /// The work in a world with credits; `None` if no floor can be computed: not on EXTOLL, or of other traffic.
    pub fn of(setup: &Setup) -> Option<Work> {
        let it = &setup.settings;
        if it.scheme == SchemeName::Unlimited {
            return None;
        }
        let neighbour_ps = setup.network.model.extoll_neighbour_ps()?;
        let bytes = it.workload_number("message_bytes")? as u64;
        let peers = f64::from(it.ranks - 1);
        let data_slots = f64::from(it.slots_per_peer.saturating_sub(it.credit_slots)) * peers;
        let (active, sends_first, is_one_at_a_time, is_in_steps) = match Traffic::of(it, bytes)? {
            Traffic::Few { senders, bytes } => {
                let needed = f64::from(senders) * setup.network.packets(bytes) as f64;
                return (data_slots >= needed).then_some(Work {
                    plain_ns: 0.0,
                    memory_ns: 0.0,
                    waiting_ns: 0.0,
                });
            }
            Traffic::Steps => (it.ranks, false, true, true),
            Traffic::Linear { active, sends_first, is_one_at_a_time } => {
                (active, sends_first, is_one_at_a_time, false)
            }
        };
        let cost = setup.network.cost();
        let ns = |ps: u64| ps as f64 / 1e3;
        let (send, receive) = (ns(cost.packet_send_ps), ns(cost.packet_receive_ps));
        let credit = ns(cost.credit_send_ps + cost.credit_receive_ps);
        let second_copy = if sends_first { ns(cost.unexpected_copy_ps(bytes)) } else { 0.0 };
        let packets = setup.network.packets(bytes) as f64;
        let bursts = f64::from(active.checked_sub(1).filter(|bursts| *bursts > 0)?);
        let waits = (1.0 - data_slots / bursts / packets).max(0.0);
        // What the guaranteed credits beyond the announcing packet take is sent meanwhile.
        let sent_meanwhile = f64::from(it.credit_slots.saturating_sub(1)) * send;
        let round_trip = 2.0 * ns(neighbour_ps) + receive + credit - sent_meanwhile;
        let idle = (round_trip - packets * receive).max(0.0);
        let with_data = match (it.piggyback, is_one_at_a_time) {
            (false, _) => 0.0,
            (true, true) => 0.5,
            (true, false) => 1.0,
        };
        let explicit = (waits - with_data).max(0.0);
        let of_calls = ns(cost.send_call_ps + cost.receive_call_ps + 2 * cost.call_jitter_ps);
        Some(Work {
            plain_ns: bursts * (packets * (send + receive) + of_calls),
            memory_ns: if is_in_steps { 0.0 } else { bursts * (waits * second_copy + explicit * credit) },
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

/// Who sends to a rank in a call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Traffic {
    /// The same few ranks in each call.
    Few {
        /// Number of them, at most.
        senders: u32,
        /// Length of the longest message. Unit: bytes.
        bytes: u64,
    },
    /// Every other rank, in steps: a rank exchanges messages with one pair of ranks after the other.
    Steps,
    /// Every other active rank, in no order that the receiver sees.
    Linear { active: u32, sends_first: bool, is_one_at_a_time: bool },
}

impl Traffic {
    /// `None`: of other traffic. `bytes`: length of a message.
    fn of(it: &Settings, bytes: u64) -> Option<Traffic> {
        let workload = it.workload.get(it.workload_name())?;
        let word = |key: &str| workload.get(key).and_then(Value::as_str);
        let linear = |active| Traffic::Linear {
            active,
            sends_first: word("order") == Some("sends_first"),
            is_one_at_a_time: it.workload_number("window_messages") == Some(1.0),
        };
        match it.workload_name() {
            "alltoall" if word("algorithm") == Some("linear") => Some(linear(it.ranks)),
            "alltoall_groups" if workload.get("groups").is_none_or(|groups| *groups == 1) => {
                Some(linear(it.workload_number("group_ranks")? as u32))
            }
            "multi_pingpong" => Some(Traffic::Few { senders: 1, bytes }),
            "imb" if word("library") == Some("open_mpi") => {
                Traffic::of_open_mpi(word("benchmark")?, it.ranks, bytes)
            }
            _ => None,
        }
    }

    /// Of the algorithms that Open MPI has for these sizes. Source: `crates/sim/src/collective/library.rs`.
    fn of_open_mpi(benchmark: &str, ranks: u32, bytes: u64) -> Option<Traffic> {
        let is_ring = bytes * u64::from(ranks) >= 50_000 && ranks.is_multiple_of(2);
        match benchmark {
            "ping_pong" | "ping_ping" | "sendrecv" => Some(Traffic::Few { senders: 1, bytes }),
            "exchange" => Some(Traffic::Few { senders: 2, bytes }),
            "allgather" | "allgatherv" if is_ring => Some(Traffic::Few { senders: 2, bytes: 2 * bytes }),
            // By doubling.
            "allreduce" if bytes < 10_000 => {
                Some(Traffic::Few { senders: ranks.next_power_of_two().ilog2() + 1, bytes })
            }
            "alltoall" if (200..3000).contains(&bytes) => {
                Some(Traffic::Linear { active: ranks, sends_first: false, is_one_at_a_time: false })
            }
            "alltoallv" => Some(Traffic::Steps),
            _ => None,
        }
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

    /// The floors of a benchmark of Open MPI among 64 ranks with so many slots.
    fn of_benchmark(name: &str, slots: u32) -> Option<Floor> {
        let workload = format!(
            "workload.imb = {{ library = 'open_mpi', message_bytes = 2048, calls = 2, benchmark = '{name}' }}\n"
        );
        let sweep = format!(
            "[[sweep]]\nranks = 64\nranks_per_node = 8\nscheme = 'demand'\nslots_per_peer = {slots}\n"
        );
        let plan = plan(&format!("{name}-{slots}"), &workload, &sweep);
        let works: Vec<Work> = plan.worlds.iter().filter_map(Work::of).collect();
        works.first().map(|work| work.floor(work.plain_ns))
    }

    #[test]
    fn benchmarks_have_the_floor_of_who_sends_to_a_rank() {
        let none = Some(Floor { of_memory: 0.0, of_waiting: 0.0 });
        // Six partners of an allreduce have 378 slots together, so 54 for each of seven.
        for few in ["ping_pong", "ping_ping", "sendrecv", "exchange", "allreduce", "allgather", "allgatherv"]
        {
            assert_eq!(of_benchmark(few, 8), none, "{few}");
        }
        assert_eq!(of_benchmark("allreduce", 4), None, "126 slots hold no burst of 37 for each of seven");
        for all in ["alltoall", "alltoallv"] {
            let floor = of_benchmark(all, 8).expect("an all-to-all");
            assert_eq!(floor.of_memory, 0.0, "{all}");
            assert!((floor.of_waiting - 100.0 * 0.8378 * 2.582 / 95.534).abs() < 0.05, "{all}: {floor:?}");
            assert_eq!(of_benchmark(all, 39), none, "{all}");
        }
        for rooted in ["bcast", "reduce", "gather", "scatter"] {
            assert_eq!(of_benchmark(rooted, 8), None, "{rooted}");
        }
    }

    #[test]
    fn no_simulated_benchmark_with_credits_on_demand_is_below_its_floor() {
        let workload = "workload.imb = { library = 'open_mpi', message_bytes = 2048, warmup_calls = 4, calls = 4, \
                        benchmark = ['alltoall', 'alltoallv'] }\n";
        let plan =
            plan("benchmarks", workload, "[[sweep]]\nscheme = 'demand'\nslots_per_peer = [4, 8, 20, 36]\n");
        let overheads = above_reference(&plan);
        assert_eq!(overheads.len(), 8);
        let is_above = |(_, overhead, floor): &(String, f64, Floor)| *overhead >= floor.of_waiting;
        assert!(overheads.iter().all(is_above), "{overheads:#?}");
        assert!(overheads.iter().all(|(.., floor)| floor.of_waiting > 0.0), "{overheads:#?}");
    }

    /// The worlds of a plan that have a floor: their names, overheads and floors.
    fn above_reference(plan: &Plan) -> Vec<(String, f64, Floor)> {
        let time = |setup: &Setup| run::run(setup).unwrap_or_else(|failed| panic!("{failed}")).time_ns;
        let of = |setup: &Setup| {
            let work = Work::of(setup)?;
            let reference = time(&setup.reference());
            let overhead = 100.0 * (time(setup) / reference - 1.0);
            Some((setup.settings.describe(), overhead, work.floor(reference)))
        };
        plan.worlds.iter().filter_map(of).collect()
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
        for (name, overhead, floor) in above_reference(&plan) {
            assert!(overhead >= floor.of_memory, "{name}: {overhead} {floor:?}");
            if name.contains("demand") {
                assert!(overhead >= floor.of_waiting, "{name}: {overhead} {floor:?}");
            }
            above_zero += u32::from(floor.of_memory > 0.0);
        }
        assert!(above_zero > 16, "{above_zero} worlds have a floor");
    }
}
