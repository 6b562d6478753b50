//! Workloads of operations that a NIC can carry out: their times are those of the published equations, all executors
//! end under every scheme, and a NIC works while its rank computes.

use crate::support;
use crate::support::{SCHEMES, workload};
use weir_proto::{Geometry, Scheme};
use weir_sim::cost::{Cost, NicCost};
use weir_sim::network::ideal::{Ideal, WHOLE_MESSAGES};
use weir_sim::workload::Workload;
use weir_sim::workload::offload::Executor;
use weir_sim::world::{Report, World, WorldSpec};

const US: u64 = 1_000_000;
const COST: Cost = Cost { packet_send_ps: 5 * US, packet_receive_ps: 9 * US, ..Cost::FREE };
const NIC: NicCost = NicCost {
    packet_send_ps: 7 * US,
    packet_receive_ps: 3 * US,
    host_read_ps: 11 * US,
    host_write_ps: 13 * US,
    word_ps: 17 * US,
    combine_ps_per_kib: 128 * 2 * US, // 2 us for eight bytes
    float_combine_ps_per_kib: 128 * 4 * US,
    ..NicCost::FREE
};
const LATENCY: u64 = US;
/// A message from program to program: send, SDMA, transmit, network, receive, RDMA, receive of the host.
const ONE_WAY: u64 = 5 + 11 + 7 + 1 + 3 + 13 + 9;
/// A packet from NIC to NIC.
const NIC_STEP: u64 = 7 + 1 + 3;
/// A descriptor to the NIC, and the notice back.
const NIC_ENDS: u64 = 5 + 3 + 13 + 9;

fn run(workload: &Workload, ranks: u32, scheme: Scheme) -> Report {
    run_with(workload, ranks, scheme, NIC)
}

fn run_with(workload: &Workload, ranks: u32, scheme: Scheme, nic: NicCost) -> Report {
    let machines_on_nic = workload.executor() == Some(Executor::Nic);
    let cost = if scheme == Scheme::Unlimited { COST } else { support::spec(ranks, scheme).cost };
    let spec = WorldSpec { cost, nic: Some(nic), machines_on_nic, ..support::spec(ranks, scheme) };
    let network = Ideal::with_geometry(LATENCY, 0, Geometry::EXTOLL);
    let world = World::new(spec, network, |rank| workload.program(rank)).checked(true);
    world.run().unwrap_or_else(|error| panic!("{workload:?} among {ranks}, {scheme:?}: {error}"))
}

/// The mean over ranks of what they recorded under this name. Unit: us.
fn mean_us(report: &Report, name: &str) -> f64 {
    let values: Vec<f64> = report.records.iter().filter(|it| it.name == name).map(|it| it.value).collect();
    assert!(!values.is_empty(), "no {name}");
    values.iter().sum::<f64>() / values.len() as f64 / 1e3
}

fn time_us(text: &str, ranks: u32, name: &str) -> f64 {
    mean_us(&run(&workload(text), ranks, Scheme::Unlimited), name)
}

/// Clocks of ranks differ by a microsecond at the begin of a measurement.
fn near(us: f64, expected: u64) {
    assert!((us - expected as f64).abs() < 0.2, "{us} us, not {expected}");
}

/// Source: Buntinas, equations 3.1 and 3.2. The notice to the host takes no time here: a NIC that is busy with it can
/// delay the next barrier of others, which the equations do not know.
#[test]
fn barriers_by_exchange_take_the_time_of_the_equations() {
    let nic = NicCost { host_write_ps: 0, ..NIC };
    for steps in 1..5 {
        let ranks = 1 << steps;
        let time = |executor| {
            let text = format!(
                "[barrier]\nexecutor = '{executor}'\nalgorithm = 'pairwise_exchange'\nwarmup_calls = 10\ncalls = 5"
            );
            mean_us(&run_with(&workload(&text), ranks, Scheme::Unlimited, nic), "call_ns")
        };
        near(time("messages"), steps * (ONE_WAY - 13));
        near(time("nic"), NIC_ENDS - 13 + steps * NIC_STEP);
    }
}

#[test]
fn reductions_over_a_chain_take_one_combination_for_each_rank() {
    // Not the first call: there a NIC attaches to its child first, so its contribution leaves before its first answer.
    let time = |executor, word, ranks| {
        let text = format!(
            "[reduction]\nexecutor = '{executor}'\ntree = 'chain'\nword = '{word}'\nlast_delay_ns = 900000
            warmup_calls = 1\ncalls = 3"
        );
        time_us(&text, ranks, "latency_ns")
    };
    for ranks in 2..9 {
        let grows = |executor, word| time(executor, word, ranks + 1) - time(executor, word, ranks);
        assert_eq!(grows("messages", "integer"), ONE_WAY as f64);
        // A NIC answers a contribution before it sends its own.
        assert_eq!(grows("nic", "integer"), (NIC_STEP + 7 + 2) as f64);
        assert_eq!(grows("nic", "float"), (NIC_STEP + 7 + 4) as f64);
    }
}

#[test]
fn a_rank_whose_nic_reduces_spends_only_the_time_of_a_descriptor() {
    let text = "[reduction]\nexecutor = 'nic'\ntree = 'binomial'\nword = 'integer'\nmax_delay_ns = 500000\ncalls = 6";
    let report = run(&workload(text), 8, Scheme::Unlimited);
    let of_others = report.records.iter().filter(|it| it.name == "host_ns" && it.rank > 0);
    assert_eq!(of_others.map(|it| it.value).collect::<Vec<_>>(), [5000.0; 7]);
    let host = time_us(&text.replace("'nic'", "'messages'"), 8, "host_ns");
    assert!(host > 2.0 * mean_us(&report, "host_ns"), "ranks wait for late ones: {host}");
}

#[test]
fn a_nic_forwards_broadcasts_for_ranks_that_are_late() {
    let time = |executor| {
        let text = format!(
            "[broadcast]\nexecutor = '{executor}'\nmessage_bytes = 8\nmax_delay_ns = 2000000\ncalls = 20"
        );
        time_us(&text, 16, "host_ns")
    };
    let (host, nic) = (time("messages"), time("nic"));
    assert!(host > 300.0 && nic < 60.0, "{host} us host, {nic} us NIC");
}

#[test]
fn atomics_of_a_nic_pass_no_processor_of_the_target() {
    let time = |more: &str| time_us(&format!("[atomics]\ncalls = 5\n{more}"), 3, "call_ns");
    assert_eq!(time("executor = 'messages'"), (2 * ONE_WAY) as f64);
    assert_eq!(time("executor = 'messages'\nwake_ns = 6000"), (2 * ONE_WAY + 6) as f64);
    assert_eq!(time("executor = 'nic'"), (NIC_ENDS + 2 * NIC_STEP + 17) as f64);
}

/// A rank alone: a swap and a compare&swap. Two ranks: between two turns of one there is that of the other. Each is a
/// hand-over, in which a rank sees its turn, asks its NIC to pass it on, and that writes the turn of the other.
#[test]
fn a_lock_is_handed_over_by_one_change_of_a_word() {
    let time = |executor: &str, ranks| {
        time_us(&format!("[lock]\nexecutor = '{executor}'\nwarmup_calls = 4\ncalls = 50"), ranks, "call_ns")
    };
    let change = NIC_ENDS + 2 * NIC_STEP + 17;
    assert_eq!(time("nic", 2), (2 * change) as f64);
    assert_eq!(time("processor", 2), (2 * 2 * ONE_WAY) as f64);
}

#[test]
fn all_executors_end_with_any_number_of_ranks_under_every_scheme() {
    let texts = [
        "[barrier]\nalgorithm = 'pairwise_exchange'\nsteps = 2\ncompute_ns = 2000\ncompute_spread_percent = 30\ncalls = 3",
        "[barrier]\nalgorithm = 'gather_broadcast'\ndegree = 2\ncalls = 3",
        "[reduction]\ntree = 'flat'\nword = 'integer'\nmax_delay_ns = 3000\ncalls = 3",
        "[reduction]\ntree = 'binomial'\nword = 'float'\nlast_delay_ns = 9000\ncalls = 9",
        "[broadcast]\nmessage_bytes = 5000\nmax_delay_ns = 3000\ncalls = 3",
        "[atomics]\ncalls = 3",
        "[lock]\ncalls = 3",
    ];
    for (text, executor) in texts.into_iter().flat_map(|text| ["processor", "nic"].map(|it| (text, it))) {
        let workload = workload(&format!("{text}\nexecutor = '{executor}'"));
        for (ranks, scheme) in [2, 5, 8].into_iter().flat_map(|ranks| SCHEMES.map(|scheme| (ranks, scheme))) {
            let report = run(&workload, ranks, scheme);
            for name in workload.records() {
                assert!(mean_us(&report, name) > 0.0, "{workload:?}, {ranks}, {scheme:?}");
            }
        }
    }
}

/// Source: Buntinas, section 2.1: send + (k - 1) transmit + receive for a multi-send to k ranks, k send + receive for a loop.
#[test]
fn multi_sends_take_the_time_of_the_equations() {
    const KIB_PS: u64 = 1024 * 10_000; // 10 ns for a byte
    let cost = Cost { send_ps_per_kib: 3 * KIB_PS, copy_ps_per_kib: KIB_PS, ..COST };
    let nic = NicCost { host_read_ps: 0, copy_send_ps: NIC.packet_send_ps, send_ps_per_kib: KIB_PS, ..NIC };
    for (to, bytes) in [1, 2, 6, 15].into_iter().flat_map(|to| [0, 1500].map(|bytes| (to, bytes))) {
        let time = |executor| {
            let text = format!(
                "[multicast]\nexecutor = '{executor}'\nmessage_bytes = {bytes}\npacket_bytes = 1500\nlambda = 99
                warmup_calls = 1\ncalls = 4"
            );
            let spec = WorldSpec { cost, nic: Some(nic), ..support::spec(to + 1, Scheme::Unlimited) };
            let network = Ideal::new(LATENCY, 0);
            let spec =
                WorldSpec { config: weir_proto::Config { geometry: WHOLE_MESSAGES, ..spec.config }, ..spec };
            let world = World::new(spec, network, |rank| workload(&text).program(rank)).checked(true);
            mean_us(&world.run().expect("it ends"), "latency_ns")
        };
        let byte_us = bytes / 100;
        let (send, transmit) = (5 + 3 * byte_us, 7 + byte_us);
        let receive = transmit + 1 + 3 + 13 + 9 + byte_us;
        let to = u64::from(to);
        near(time("nic"), send + (to - 1) * transmit + receive);
        // A processor that is faster than its NIC waits for it nowhere, so the NIC's queue decides then.
        near(time("messages"), send + (to - 1) * send.max(transmit) + receive);
    }
}
