//! What `weir bench nic` prints.

use super::barrier::ELEMENTS;
use super::{
    LESS_PROCESSOR, LESS_THAN_LOOP, MANY, RECEIVERS, Results, Samples, UNDER_SPINNING, WHILE_COMPUTING,
    WORD_NS, multi_send,
};
use crate::statistics::{Quartiles, ratios};
use weir_output::quantity::{three_digits, time_ns};
use weir_output::table;

/// The table of all operations, and the targets.
pub fn render(results: &Results) -> String {
    let mut table = table::plain();
    table.set_header([
        "operation",
        "by",
        "time",
        "quartiles",
        "of the kernel's",
        "processor",
        "of the kernel's",
    ]);
    let mut row = |name: String, by: &str, ours: [&[f64]; 2], kernel: [&[f64]; 2]| {
        let [low, median, high] = Quartiles::of(ours[0]).ordered().map(time_ns);
        let ratio = |at: usize| match ratios(ours[at], kernel[at]) {
            Some(ratios) => format!("{} x", three_digits(Quartiles::of(&ratios).median)),
            None => String::new(),
        };
        let processor = match ours[1] {
            [] => String::new(),
            samples => time_ns(Quartiles::of(samples).median),
        };
        let texts = [median, format!("{low} .. {high}"), ratio(0), processor, ratio(1)];
        let cells = [comfy_table::Cell::new(name), comfy_table::Cell::new(by)];
        table.add_row(cells.into_iter().chain(texts.map(table::right)));
    };
    let words = &results.fetch_add;
    let word = || String::from("fetch&add");
    let kernel: [&[f64]; 2] = [&words.kernel_ns, &[]];
    row(word(), "kernel", kernel, kernel);
    row(word(), "kernel, answer to a socket", [&words.kernel_to_socket_ns, &[]], kernel);
    row(word(), "kernel, target computes", [&words.kernel_while_computing_ns, &[]], kernel);
    row(word(), "process that spins", [&words.process_spins_ns, &[]], kernel);
    row(word(), "process that sleeps", [&words.process_waits_ns, &[]], kernel);
    row(word(), "least program", [&words.least_ns, &[]], kernel);
    for one in &results.barriers {
        fn pair(samples: &Samples) -> [&[f64]; 2] {
            [&samples.elapsed_ns, &samples.processor_ns]
        }
        let name = || format!("barrier of {}", one.ranks);
        row(name(), "kernel", pair(&one.kernel), pair(&one.kernel));
        row(name(), "exchange over UDP", pair(&one.exchange), pair(&one.kernel));
        row(name(), "gather over UDP", pair(&one.gather), pair(&one.kernel));
        if !one.least_barrier.elapsed_ns.is_empty() {
            row(name(), "least programs", pair(&one.least_barrier), pair(&one.kernel));
        }
        let name = || format!("all-reduce of {}, {ELEMENTS} binary64", one.ranks);
        let kernel = pair(&one.kernel_all_reduce);
        row(name(), "kernel", kernel, kernel);
        row(name(), "gather over UDP", pair(&one.gather_all_reduce), kernel);
        let name = || format!("multi-send to {}, {} bytes", one.ranks, 8 * multi_send::WORDS);
        let kernel = pair(&one.kernel_multi_send);
        row(name(), "kernel", kernel, kernel);
        row(name(), "loop of sends", pair(&one.loop_of_sends), kernel);
        row(name(), "sendmmsg", pair(&one.sendmmsg), kernel);
        if !one.least_multi_send.elapsed_ns.is_empty() {
            row(name(), "least programs", pair(&one.least_multi_send), kernel);
        }
    }
    let mut text = table::text(&table);
    let mut target = |what: String, samples: Option<Vec<f64>>, limit: f64| {
        let word = Quartiles::of(&samples.unwrap_or_default()).verdict(limit);
        text.push_str(&format!("\nTarget: {what}: {word}."));
    };
    target(format!("fetch&add in at most {}", time_ns(WORD_NS)), Some(words.kernel_ns.clone()), WORD_NS);
    let under = ratios(&words.kernel_ns, &words.process_spins_ns);
    target(
        format!("at least {UNDER_SPINNING} x less than a process that spins"),
        under,
        1.0 / UNDER_SPINNING,
    );
    let computing = ratios(&words.kernel_while_computing_ns, &words.kernel_ns);
    target(format!("at most {WHILE_COMPUTING} x while the target computes"), computing, WHILE_COMPUTING);
    for one in results.barriers.iter().filter(|one| one.ranks >= MANY) {
        let what = format!(
            "barrier of {}, processor time at least {LESS_PROCESSOR} x less than the exchange over UDP",
            one.ranks
        );
        target(what, ratios(&one.kernel.processor_ns, &one.exchange.processor_ns), 1.0 / LESS_PROCESSOR);
    }
    for one in results.barriers.iter().filter(|one| one.ranks == RECEIVERS) {
        let what = format!(
            "multi-send to {RECEIVERS}, processor time at least {LESS_THAN_LOOP} x less than a loop of sends"
        );
        let less = ratios(&one.kernel_multi_send.processor_ns, &one.loop_of_sends.processor_ns);
        target(what, less, 1.0 / LESS_THAN_LOOP);
    }
    text + &limits(results) + "\n" + &results.machine.footer()
}

/// A line for each limit: what the least programs leave to gain, as medians of the ratios of each round.
fn limits(results: &Results) -> String {
    let words = &results.fetch_add;
    let mut text = String::new();
    let mut limit = |what: String, others: &[f64], least: &[f64]| {
        if let Some(ratios) = ratios(others, least) {
            let [low, median, high] = Quartiles::of(&ratios).ordered().map(three_digits);
            text.push_str(&format!("\nLimit: {what} {median} x the least program ({low} .. {high})."));
        }
    };
    let least = time_ns(Quartiles::of(&words.least_ns).median);
    let process = format!("fetch&add at least {least}; a process that spins takes");
    limit(process, &words.process_spins_ns, &words.least_ns);
    for one in &results.barriers {
        let what = format!("barrier of {}, processor time: the exchange over UDP takes", one.ranks);
        limit(what, &one.exchange.processor_ns, &one.least_barrier.processor_ns);
        let what = format!("multi-send to {}, processor time: a loop of sends takes", one.ranks);
        limit(what, &one.loop_of_sends.processor_ns, &one.least_multi_send.processor_ns);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::nic::{Barriers, FetchAdd};

    #[test]
    fn verdicts_come_from_the_ratios_of_each_round() {
        let text = |kernel_ns: [f64; 3], processor: [f64; 3]| {
            let samples =
                |values: [f64; 3]| Samples { elapsed_ns: values.into(), processor_ns: values.into() };
            render(&Results {
                machine: Machine { processor: "P".into(), cores: 2, kernel: "6".into(), load: 0.0 },
                fetch_add: FetchAdd {
                    kernel_ns: kernel_ns.into(),
                    kernel_to_socket_ns: kernel_ns.map(|time| time * 1.5).into(),
                    kernel_while_computing_ns: kernel_ns.map(|time| time * 1.05).into(),
                    process_spins_ns: vec![11_000.0, 11_000.0, 11_000.0],
                    process_waits_ns: vec![30_000.0; 3],
                    least_ns: vec![1_100.0; 3],
                },
                barriers: vec![Barriers {
                    ranks: 16,
                    kernel: samples(processor),
                    exchange: samples([10_000.0, 20_000.0, 40_000.0]),
                    gather: samples([5_000.0; 3]),
                    kernel_all_reduce: samples([4_000.0; 3]),
                    gather_all_reduce: samples([5_000.0; 3]),
                    kernel_multi_send: samples(processor),
                    loop_of_sends: samples([15_000.0, 30_000.0, 60_000.0]),
                    sendmmsg: samples([9_000.0; 3]),
                    least_barrier: samples([5_000.0, 10_000.0, 20_000.0]),
                    least_multi_send: samples([3_000.0, 6_000.0, 12_000.0]),
                }],
            })
        };
        let words = |text: &str| {
            let targets = text.lines().filter(|line| line.starts_with("Target: "));
            targets.map(|line| line.rsplit(": ").next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let good = text([2000.0, 2100.0, 2200.0], [4000.0, 9000.0, 19_000.0]);
        assert_eq!(words(&good), ["reached."; 5], "{good}");
        let bad = text([2600.0, 2700.0, 2800.0], [6000.0, 12_000.0, 24_000.0]);
        assert_eq!(words(&bad), ["MISSED.", "MISSED.", "reached.", "MISSED.", "MISSED."], "{bad}");
        assert!(good.contains("5.24 x"), "{good}");
        for limit in [
            "Limit: fetch&add at least 1.10 us; a process that spins takes 10.0 x the least program (10.0 .. 10.0).",
            "Limit: barrier of 16, processor time: the exchange over UDP takes 2.00 x the least program (2.00 .. 2.00).",
            "Limit: multi-send to 16, processor time: a loop of sends takes 5.00 x the least program (5.00 .. 5.00).",
        ] {
            assert!(good.contains(limit), "{limit} in\n{good}");
        }
    }
}
