//! The published results of the experiments on a programmable NIC, as records. Where only some numbers were published,
//! the others are ours.

use super::super::e4::{NIC, SLOW, is_mpi, network, word};
use super::{Measure, Record, number};

/// Sets the times of a record to the published ones.
pub fn as_published(id: &str, record: &mut Record) {
    let us = match id {
        "E4.1" => multi_send_us(record),
        "E4.2" => multicast_us(record),
        "E4.3" => barrier_us(record),
        "E4.4" => computation_us(record),
        "E4.5" => reduction_us(record),
        "E4.6" => atomics_us(record),
        "E4.7" => lock_us(record),
        _ => broadcast_us(record),
    };
    record.time_ns = 1e3 * us;
}

/// Multiplies what a record says about a measure.
pub fn scale(record: &mut Record, name: &str, factor: f64) {
    record.measures.entry(name.to_owned()).and_modify(|measure| measure.mean *= factor);
}

fn note(record: &mut Record, name: &str, us: f64) {
    let measure = Measure { count: 1, mean: 1e3 * us, min: 0.0, max: 0.0, of_rank_0: Vec::new() };
    record.measures.insert(name.to_owned(), measure);
}

/// The NIC takes 100 us, always.
fn multi_send_us(record: &Record) -> f64 {
    let (bytes, to) = (number(record, "message_bytes"), f64::from(record.settings.ranks - 1));
    if word(&record.settings, "executor") == NIC {
        return 100.0;
    }
    let more = (bytes.max(32.0).log2() - 5.0) / 9.0;
    if bytes < 32.0 { 95.0 } else { 100.0 * (1.0 + 2.51 * more * to / 15.0) }
}

/// The NIC takes 100 us with pipelining and the best lambda.
fn multicast_us(record: &Record) -> f64 {
    let it = &record.settings;
    let (bytes, lambda) = (number(record, "message_bytes"), number(record, "lambda"));
    let (pipelined, whole) = match it.ranks {
        4 => (1.86, 1.86),
        8 => (1.7, 1.53),
        _ => (1.85, 1.3),
    };
    if word(it, "executor") == NIC {
        let is_pipelined = it.workload["multicast"]["pipelined"].as_bool() == Some(true);
        let waits = if bytes <= 1536.0 || is_pipelined { 1.0 } else { pipelined / whole };
        return 100.0 * waits + 5.0 * (lambda - 2.0).abs();
    }
    match lambda {
        2.0 if bytes < 32.0 => 95.0,
        _ if bytes < 32.0 => 110.0,
        _ => 100.0 * pipelined + 5.0 * (lambda - 1.0),
    }
}

/// Steps of a pairwise exchange.
fn exchanges(ranks: u32) -> f64 {
    let more = if ranks.is_power_of_two() { 0.0 } else { 2.0 };
    f64::from(ranks.ilog2()) + more
}

fn barrier_us(record: &Record) -> f64 {
    let it = &record.settings;
    let (is_slow, is_nic) = (network(it) == SLOW, word(it, "executor") == NIC);
    let steps = exchanges(it.ranks);
    if word(it, "algorithm") == "gather_broadcast" {
        let best = if number(record, "degree") == 3.0 { 0.0 } else { 20.0 };
        let nic = if it.ranks == 16 { 152.27 } else { 60.0 };
        let factor = if it.ranks == 2 { 0.9 } else { 1.46 };
        return best + if is_nic { nic } else { nic * factor };
    }
    match (is_slow, is_mpi(it), is_nic) {
        (true, false, false) => 45.45 * steps,
        (true, false, true) => 22.14 + 20.0 * steps,
        (true, true, false) => 54.175 * steps,
        (true, true, true) => 25.37 + 20.0 * steps,
        (false, false, false) => 30.08 * steps,
        (false, false, true) => 18.5 + 10.25 * steps,
        (false, true, false) => 34.287 * steps,
        (false, true, true) => 15.66 + 10.25 * steps,
    }
}

fn computation_us(record: &Record) -> f64 {
    let it = &record.settings;
    let (is_slow, is_nic) = (network(it) == SLOW, word(it, "executor") == NIC);
    let compute = number(record, "compute_ns") / 1e3;
    let (steps, spread) = (number(record, "steps"), number(record, "compute_spread_percent"));
    if steps > 1.0 {
        let factor = [1.86, 1.87, 1.92, 1.93][usize::from(steps > 8.0) + 2 * usize::from(!is_slow)];
        return if is_nic { 1000.0 } else { 1000.0 * factor };
    }
    if spread > 0.0 {
        return compute + if is_nic { 100.0 } else { 190.0 - 2.0 * spread };
    }
    let (half, most) = match (is_slow, is_nic) {
        (true, false) => (366.40, 1831.98),
        (true, true) => (204.76, 1023.82),
        (false, false) => (179.18, 895.91),
        (false, true) => (120.62, 603.11),
    };
    let efficiency =
        if compute <= 2.0 * half { (0.5 * compute / half).min(0.85) } else { 0.9 * compute / most };
    compute / efficiency
}

/// The NIC takes 100 us, always.
fn reduction_us(record: &mut Record) -> f64 {
    let it = record.settings.clone();
    let (is_nic, is_float) = (word(&it, "executor") == NIC, word(&it, "word") == "float");
    let of_ranks = |factors: [f64; 4]| factors[it.ranks.ilog2() as usize - 1];
    let latency = match word(&it, "tree") {
        "binomial" if is_float => 100.0 * of_ranks([0.8, 0.95, 1.02, 1.06]),
        "binomial" => 100.0 * of_ranks([0.9, 1.05, 1.1, 1.19]),
        tree => {
            let (first, level) = if is_float { (-3.63, 2.64) } else { (-2.19, 3.7) };
            100.0 + first + if tree == "chain" { level * f64::from(it.ranks - 2) } else { 0.0 }
        }
    };
    let factor = match number(record, "max_delay_ns") / 1e3 {
        0.0 if is_float => of_ranks([0.9, 1.3, 1.8, 2.3]),
        0.0 => of_ranks([0.95, 1.5, 2.0, 2.7]),
        1000.0 => of_ranks([1.5, 2.5, 3.5, 4.5]),
        _ => 3.7,
    };
    note(record, "latency_ns", if is_nic { 100.0 } else { latency });
    note(record, "host_ns", if is_nic { 100.0 } else { 100.0 * factor });
    latency
}

fn atomics_us(record: &Record) -> f64 {
    match word(&record.settings, "executor") {
        NIC => 15.9,
        _ if number(record, "wake_ns") > 0.0 => 29.2,
        _ => 19.8,
    }
}

fn lock_us(record: &Record) -> f64 {
    let contenders = f64::from(record.settings.ranks - 1);
    let nic = 40.0 + 5.0 * (contenders - 7.0).max(0.0);
    let most = 1.0 - 0.3 * (contenders - 2.0).abs() / 13.0;
    match word(&record.settings, "executor") {
        NIC => nic,
        _ if number(record, "wake_ns") > 0.0 => 2.6 * most.max(0.5) * nic,
        _ if contenders < 8.0 => nic * (1.5 + 0.1 * (contenders - 1.0)),
        _ => 2.1 * nic,
    }
}

fn broadcast_us(record: &Record) -> f64 {
    let it = &record.settings;
    let late = number(record, "max_delay_ns") / 666_000.0;
    let factor = match number(record, "message_bytes") {
        1.0 => 30.0,
        2048.0 => 8.0,
        4096.0 => 4.2,
        _ => 2.2,
    };
    match word(it, "executor") {
        NIC => 20.0 - 5.0 * late,
        _ => 15.0 * factor * (0.5 + 0.5 * late) * f64::from(it.ranks) / 32.0,
    }
}
