//! Tests of plans: they expand to worlds, run, and give errors with lines.

use super::record::SAMPLE;
use super::*;

const PLAN: &str = r#"title = "A test"
experiment = "T1"
source = "ours"
seeds = [1, 2]

[base]
network = { file = "extoll" }
ranks = 8
ranks_per_node = 4
mesh_nodes = "2x1"
workload.alltoall = { algorithm = "linear", message_bytes = 200, calls = 1 }

[[sweep]]
scheme = "static"
credit_slots = [1, 2]
slots_per_peer = [8, 12]

[[sweep]]
scheme = "weir"
slots_per_peer = 12
workload.alltoall.message_bytes = 100

[quick]
seeds = [1]
base = { ranks = 4, ranks_per_node = 2 }
sweep = [{ scheme = "dynamic", slots_per_peer = 12 }]
"#;

fn networks() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/networks")
}

fn read(text: &str, quick: bool) -> Result<Plan, String> {
    Plan::parse(text, Path::new("experiments/x.toml"), &networks(), quick)
        .map_err(|fault| format!("{}: {}", line_of(text, fault.span.start), fault.what))
}

/// The error message about the plan in which `old` is replaced by `new`.
fn refusal(old: &str, new: &str) -> String {
    assert!(PLAN.contains(old), "{old}");
    read(&PLAN.replacen(old, new, 1), false).expect_err(new)
}

#[test]
fn a_plan_has_one_world_per_combination_and_seed_and_shared_references() {
    let plan = read(PLAN, false).expect("a plan");
    assert_eq!((plan.title.as_str(), plan.experiment.as_str()), ("A test", "T1"));
    let of = |scheme| plan.worlds.iter().filter(|setup| setup.settings.scheme == scheme).count();
    assert_eq!((of(SchemeName::Static), of(SchemeName::Weir)), (2 * 4, 2));
    assert_eq!(of(SchemeName::Unlimited), 2 * 2, "one for each seed and message size");
    assert_eq!(plan.worlds.len(), 14);
    let keys: HashSet<_> = plan.worlds.iter().map(Setup::key).collect();
    assert_eq!(keys.len(), 14);
    let quick = read(PLAN, true).expect("a plan");
    assert_eq!(quick.worlds.len(), 2);
    assert!(quick.worlds.iter().all(|setup| setup.settings.ranks == 4 && setup.settings.seed == 1));
}

#[test]
fn seeds_differ_in_trace_only_with_call_jitter() {
    let traces = |old: &str, new: &str| {
        let text = PLAN.replacen(old, new, 1);
        let plan = read(&text, true).expect("a plan");
        plan.worlds.iter().map(|setup| run::run(setup).expect("ends").trace).collect::<Vec<_>>()
    };
    let [reference_1, dynamic_1, reference_2, dynamic_2] =
        traces("seeds = [1]\nbase = {", "seeds = [1, 2]\nbase = {")[..]
            .first_chunk()
            .cloned()
            .expect("two worlds for each seed");
    assert_eq!((&reference_1, &dynamic_1), (&reference_2, &dynamic_2));
    let jittered =
        traces("seeds = [1]\nbase = {", "seeds = [1, 2]\nbase = { cost = { call_jitter_ns = 500.0 },");
    let distinct: HashSet<_> = jittered.iter().chain([&reference_1, &dynamic_1]).collect();
    assert_eq!(distinct.len(), 6, "{jittered:?}");
}

#[test]
fn the_same_world_gives_the_same_record() {
    let plan = read(PLAN, false).expect("a plan");
    let setups: Vec<&Setup> = plan.worlds.iter().collect();
    let mut rounds = [Vec::new(), Vec::new()];
    for round in &mut rounds {
        run::run_all(&setups, 2, |_, result| {
            round.push(Record { wall_s: 0.0, ..result.expect("ends") });
            true
        });
        round.sort_by(|a, b| a.key.cmp(&b.key));
    }
    assert_eq!(rounds[0], rounds[1]);
    for record in &rounds[0] {
        // Each rank sends to seven others, twice: 224 or 124 bytes with the header. Two barriers come on top.
        let bytes = record.settings.workload_number("message_bytes").expect("there");
        let setup = plan.worlds.iter().find(|setup| setup.key() == record.key).expect("there");
        let data = estimate::packets(setup).packets;
        assert_eq!(
            data,
            8 * (7 * ((bytes + 24.0) / 56.0).ceil() as u64 + 2 * 3),
            "{}",
            record.settings.describe()
        );
        assert!(record.packets >= data && record.time_ns > 0.0);
        assert_eq!(record.measures["call_ns"].count, 8);
    }
}

#[test]
fn faults_of_a_plan_change_its_worlds() {
    let with = |faults: &str| {
        // A repair takes long there.
        let text = PLAN.replacen("{ file = \"extoll\" }", "{ file = \"infiniband\" }", 1);
        let text = text.replacen("mesh_nodes = \"2x1\"\n", "", 1);
        let text = text.replacen("ranks = 4, ", &format!("ranks = 4, {faults}"), 1);
        let plan = read(&text, true).expect("a plan");
        let record = |scheme| {
            let setup = plan.worlds.iter().find(|setup| setup.settings.scheme == scheme).expect("a world");
            run::run(setup).expect("ends")
        };
        (record(SchemeName::Unlimited), record(SchemeName::Dynamic))
    };
    let (reference, whole) = with("");
    assert_eq!(whole.settings.faults, None);
    assert!(!serde_json::to_string(&whole.settings).expect("text").contains("faults"), "keys stay the same");
    for faults in [
        "faults = { loss_per_million = 200_000 }, ",
        "faults = { reordering_per_million = 200_000 }, ",
        "faults = { link_jitter_ns = 10_000 }, ",
        "faults = { slow = [[{ rank = 1, percent = 300 }]] }, ",
        "faults = { pauses = [[{ rank = 1, at_ns = 100, pause_ns = 50_000 }]] }, ",
    ] {
        let (late_reference, late) = with(faults);
        assert!(late.time_ns > whole.time_ns, "{faults}: {} and {} ns", late.time_ns, whole.time_ns);
        assert!(late_reference.time_ns > reference.time_ns, "{faults}: the reference has the same faults");
        assert_eq!(late.messages, whole.messages, "{faults}");
    }
    let (_, crashed) = with("faults = { crashes = [[{ rank = 3, at_ns = 1000 }]], notice_ns = 20_000 }, ");
    assert!(crashed.messages < whole.messages, "the crashed rank sends less");
}

#[test]
fn a_nic_processor_of_a_plan_delays_its_worlds() {
    let with = |nic: &str| {
        let plan =
            read(&PLAN.replacen("ranks = 4, ", &format!("ranks = 4, {nic}"), 1), true).expect("a plan");
        let record = run::run(&plan.worlds[1]).expect("ends");
        (record, serde_json::to_string(&plan.worlds[1].settings).expect("text"))
    };
    let (whole, settings) = with("");
    assert!(!settings.contains("nic"), "keys of other worlds stay the same");
    let (late, settings) = with(
        "nic = { packet_send_ns = 0.5, send_ns_per_kib = 0.0, packet_receive_ns = 2000.0, copy_send_ns = 0.0, get_ns = 1.0, \
         host_read_ns = 0.0, host_write_ns = 3.0, word_ns = 0.0, copy_ns_per_kib = 0.0, combine_ns_per_kib = 0.0, \
         float_combine_ns_per_kib = 0.0 }, ",
    );
    assert!(late.time_ns > 1.5 * whole.time_ns, "{} and {} ns", late.time_ns, whole.time_ns);
    assert!(settings.contains(
        r#""nic":{"packet_send_ns":0.5,"send_ns_per_kib":0.0,"packet_receive_ns":2000.0,"copy_send_ns":0.0,"get_ns":1.0,"#
    ));
    let read_again: Settings = serde_json::from_str(&settings).expect("settings");
    assert_eq!(read_again, late.settings);
    let negative = "ranks = 8\nnic = { packet_send_ns = -1.0, send_ns_per_kib = 0.0, packet_receive_ns = 0.0, copy_send_ns = 0.0, get_ns = 0.0 }\n";
    let what = refusal("ranks = 8\n", negative);
    assert!(what.starts_with("9: the time is -1.0 ns; allowed: 0 to 1000000000"), "{what}");
    let missing =
        refusal("ranks = 8\n", "ranks = 8\nnic = { packet_send_ns = 1.0, send_ns_per_kib = 0.0 }\n");
    assert!(missing.starts_with("9: missing field `packet_receive_ns`"), "{missing}");
}

const SWITCHED: &str = r#"
title = "queues"
experiment = "T2"
source = "ours"
seeds = [1]
[[sweep]]
network = { file = "switched", QUEUES }
ranks = 8
start_skew_ns = 5000
scheme = "static"
slots_per_peer = 4
workload.alltoall = { algorithm = "linear", message_bytes = 2048, calls = 20 }
"#;

#[test]
fn a_plan_states_finite_queues_and_a_dropped_packet_ends_its_world_with_an_error() {
    let worlds = |queues: &str| read(&SWITCHED.replace("QUEUES", queues), false).expect("a plan").worlds;
    let record = |queues: &str| run::run(&worlds(queues)[1]).expect("ends");
    let (whole, marked) = (record("mark_packets = 0"), record("mark_packets = 1"));
    assert_eq!((whole.drops, whole.marks, marked.drops), (0, 0, 0));
    assert!(marked.marks > 0 && marked.marks < marked.packets, "{}", marked.marks);
    assert_eq!(marked.trace, whole.trace, "a mark changes nothing else");
    // Each of seven senders has at most two data packets and two credit packets under way.
    let bounded = record("queue_packets = 28");
    assert_eq!((bounded.trace, bounded.drops), (whole.trace, 0));
    for world in worlds("queue_packets = 1") {
        let why = run::run(&world).expect_err("nobody sends again").why;
        assert!(why.starts_with("a full queue dropped a packet from rank "), "{why}");
        assert!(why.ends_with("or the table reliability of a plan"), "{why}");
    }
    let what = read(&SWITCHED.replace("QUEUES", "mark_packets = 4, queue_packets = 4"), false).unwrap_err();
    assert!(what.contains("mark_packets is 4, and such a queue is full already"), "{what}");
}

#[test]
fn a_plan_with_reliable_paths_ends_although_queues_drop() {
    let with = |extra: &str| {
        SWITCHED
            .replace("QUEUES", "queue_packets = 2")
            .replace("ranks = 8\n", &format!("ranks = 8\n{extra}\n"))
    };
    let worlds = read(&with("reliability = {}"), false).expect("a plan").worlds;
    let record = run::run(&worlds[1]).expect("ends");
    assert!(record.drops > 0);
    let measure = |name: &str| record.measures.get(name).unwrap_or_else(|| panic!("no measure {name}"));
    assert_eq!(measure("path_sent_again").count, 8 * 7, "a value for each pair");
    assert!(measure("path_sent_again").max > 0.0);
    assert!(measure("path_least_window_bytes").min <= measure("path_window_bytes").mean);
    let lossy = "reliability = {}\nfaults = { loss_per_million = 10000, duplication_per_million = 10000 }";
    assert!(run::run(&read(&with(lossy), false).expect("a plan").worlds[1]).is_ok());
    let refused = |extra: &str| read(&with(extra), false).unwrap_err();
    assert!(
        refused("reliability = { window_packets = 100 }")
            .contains("window_packets is 100; allowed: a power of two")
    );
    assert!(
        refused("faults = { loss_per_million = 1 }").contains("the links of this network do not retransmit")
    );
    let what = refusal("ranks = 8\n", "ranks = 8\nreliability = {}\n");
    assert!(
        what.ends_with("reliability is set on a network whose queues drop nothing; allowed with switched"),
        "{what}"
    );
}

#[test]
fn impossible_faults_are_refused() {
    let refused = |faults: &str| refusal("ranks = 8\n", &format!("ranks = 8\nfaults = {{ {faults} }}\n"));
    assert_eq!(refused("loss_per_million = 500_001"), "9: loss_per_million is 500001; allowed: 0 to 500000");
    assert_eq!(
        refused("slow = [[{ rank = 8, percent = 200 }]]"),
        "9: the rank of a fault is 8; allowed: 0 to 7"
    );
    assert_eq!(refused("slow = [[{ rank = 1, percent = 0 }]]"), "9: percent is 0; allowed: 1 to 100000");
    let ideal = PLAN
        .replacen("{ file = \"extoll\" }", "{ file = \"ideal\" }", 1)
        .replace("ranks_per_node = 4\nmesh_nodes = \"2x1\"", "faults = { loss_per_million = 1 }")
        .replace(", ranks_per_node = 2", "");
    let what = read(&ideal, false).expect_err("no link repairs it");
    assert!(what.ends_with("allowed: 0 to 0, because the links of this network do not retransmit"), "{what}");
}

#[test]
fn one_world_of_sixteen_is_checked_in_release_builds() {
    let seeds: Vec<u64> = (0..400).collect();
    let text = PLAN.replacen("[quick]\nseeds = [1]", &format!("[quick]\nseeds = {seeds:?}"), 1);
    let worlds = read(&text, true).expect("a plan").worlds;
    assert_eq!(worlds.len(), 800);
    let sampled = worlds.iter().filter(|setup| setup.is_sampled()).count() as u64;
    let expected = worlds.len() as u64 / SAMPLE;
    assert!((expected / 2..=2 * expected).contains(&sampled), "{sampled} of {}", worlds.len());
    assert!(run::run(&worlds[0]).expect("ends").checked, "in debug builds all are");
}

#[test]
fn stopping_runs_only_the_worlds_already_started() {
    let plan = read(PLAN, false).expect("a plan");
    let setups: Vec<&Setup> = plan.worlds.iter().collect();
    let mut ended = 0;
    run::run_all(&setups, 1, |_, _| {
        ended += 1;
        false
    });
    assert!(ended <= 2 && setups.len() > 2, "{ended} of {} worlds", setups.len());
}

#[test]
fn keys_differ_exactly_when_worlds_differ() {
    let keys =
        |text: &str| read(text, false).expect("a plan").worlds.iter().map(Setup::key).collect::<Vec<_>>();
    let same = PLAN.replace("A test", "Another title").replace("\"extoll\" }", "\"extoll\" } # the same");
    assert_eq!(keys(PLAN), keys(&same));
    let other = PLAN.replace("{ file = \"extoll\" }", "{ file = \"extoll\", hop_ns = 61.5 }");
    assert!(keys(&other).iter().all(|key| !keys(PLAN).contains(key)));
    let changed = read(&other, false).expect("a plan");
    assert_eq!(changed.worlds[0].settings.network, "extoll hop_ns=61.5");
}

#[test]
fn changed_sources_of_credits_on_demand_change_only_the_keys_of_their_worlds() {
    let text = PLAN.replace("\nscheme = \"weir\"", "\nscheme = [\"weir\", \"demand\"]");
    let plan = read(&text, false).expect("a plan");
    let is_demand = |setup: &&Setup| setup.settings.scheme == SchemeName::Demand;
    assert_eq!(plan.worlds.iter().filter(is_demand).count(), 2, "one for each seed");
    for setup in &plan.worlds {
        assert_eq!(setup.key_with("old") != setup.key_with("new"), is_demand(&setup), "{:?}", setup.settings);
    }
}

#[test]
fn plan_errors_name_the_line_and_the_allowed_values() {
    let starts = |text: String, line: usize, start: &str, allowed: &str| {
        let start = format!("{line}: {start}");
        assert!(
            text.starts_with(&start) && text.contains(allowed),
            "{text:?} is not {start:?} ... {allowed:?}"
        );
    };
    starts(
        refusal("ranks_per_node", "ranks_per_nod"),
        9,
        "unknown field `ranks_per_nod`",
        "`ranks_per_node`",
    );
    starts(refusal("source =", "sauce ="), 3, "unknown field `sauce`", "`source`");
    starts(refusal("seeds = [1, 2]", ""), 1, "seeds is missing", "seeds = [1]");
    starts(refusal("seeds = [1, 2]", "seeds = []"), 4, "seeds is empty", "one number");
    starts(refusal("credit_slots = [1, 2]", "credit_slots = []"), 15, "the list is empty", "one value");
    starts(refusal("\"2x1\"", "\"2x2\""), 10, "mesh_nodes 2x2", "has 16 places, and ranks is 8");
    starts(refusal("\"2x1\"", "\"2x\""), 10, "mesh_nodes is \"2x\"", "as in \"4x4x4\"");
    starts(refusal("[8, 12]", "[8, 3]"), 16, "slots_per_peer is 3", "4 to 65536");
    starts(refusal("credit_slots = [1, 2]", "credit_slots = 99"), 15, "credit_slots is 99", "1 to 16");
    starts(refusal("\"static\"", "\"statik\""), 14, "unknown variant `statik`", "`static`");
    starts(
        refusal("scheme = \"weir\"", "scheme = \"hardware\"\npiggyback = true"),
        20,
        "piggyback is true with",
        "static",
    );
    starts(refusal("slots_per_peer = 12\n", ""), 19, "slots_per_peer is missing", "unlimited");
    starts(refusal("\"extoll\" }", "\"ether\" }"), 7, "", "allowed: extoll");
    starts(refusal("ranks = 8", "ranks = 0"), 8, "ranks is 0", "1 to 1048576");
    starts(
        refusal("message_bytes = 200", "message_bytes = 0x100_0000_0001"),
        11,
        "message_bytes is 0x10000000001",
        "at most 1099511627776",
    );
    starts(
        refusal("ranks = 8", "ranks = 8\nstart_skew_ns = 1000000000001"),
        9,
        "start_skew_ns is",
        "at most",
    );
    starts(refusal("calls = 1", "calls = 0"), 11, "calls is 0", "1 to 1000000000");
    starts(refusal("calls = 1", "calls = 4294967295"), 11, "calls is 4294967295", "1 to 1000000000");
    let warmup = refusal("calls = 1", "calls = 1, warmup_calls = 4294967295");
    starts(warmup, 11, "warmup_calls is 4294967295", "at most 1000000000");
    let order = refusal("\"linear\"", "\"linea\"");
    assert!(order.contains("`linea`, expected one of `linear`") && !order.contains("goal"), "{order}");
    starts(refusal("\"extoll\" }", "\"extoll\", hops_ns = 1 }"), 7, "hops_ns is not in [network]", "hop_ns");
    starts(refusal("\"extoll\" }", "\"extoll\", hop_ns = -1 }"), 7, "the time is -1.0 ns", "hop_ns = -1");
    starts(refusal("\"extoll\" }", "\"extoll\", hop_ns = true }"), 7, "hop_ns", "a number");
    starts(refusal("[quick]\nseeds", "[quick]\nseed"), 24, "unknown field `seed`", "`seeds`");
    // Errors in the quick variant are reported for the full plan too.
    starts(refusal("{ ranks = 4,", "{ rankz = 4,"), 25, "unknown field `rankz`", "`ranks`");
    starts(refusal("scheme = \"dynamic\"", "shceme = \"dynamic\""), 26, "unknown field `shceme`", "`scheme`");
    starts(refusal("alltoall = {", "alltoal = {"), 11, "unknown variant `alltoal`", "`goal`");
    starts(refusal("{ file = \"extoll\" }", "{ fil = \"extoll\" }"), 7, "network has no file", "extoll");
    starts(
        refusal("scheme = \"weir\"", "scheme = \"unlimited\"\npiggyback = true"),
        20,
        "piggyback",
        "static",
    );
    let too_many =
        refusal("scheme = \"weir\"\nslots_per_peer = 12", "scheme = \"unlimited\"\nslots_per_peer = 65537");
    starts(too_many, 20, "slots_per_peer is 65537", "at most 65536");
    let adaptive =
        |start: &str| refusal("scheme = \"weir\"", &format!("scheme = \"adaptive\"\nstart_slots = {start}"));
    starts(
        refusal("sweep = [{ scheme = \"dynamic\", slots_per_peer = 12 }]", "sweep = []"),
        26,
        "sweep is empty",
        "one table or more",
    );
    let local = |ranks_per_node: u32| {
        format!(
            "workload.alltoall_local = {{ ranks_per_node = {ranks_per_node}, local_message_ns = 1, message_bytes = 8, calls = 1 }}"
        )
    };
    let exchange = "workload.alltoall = { algorithm = \"linear\", message_bytes = 200, calls = 1 }";
    starts(refusal(exchange, &local(3)), 11, "alltoall_local has ranks_per_node 3", "that of the world, 4");
    starts(adaptive("13"), 20, "start_slots is 13", "1 to slots_per_peer, which is 12");
    starts(adaptive("0"), 20, "start_slots is 0", "1 to slots_per_peer");
    starts(refusal("title = \"A test\"", "title = "), 1, "", "");
    starts(refusal("ranks = 8", "ranks = 8\neager_bytes = 1048577"), 9, "eager_bytes is 1048577", "1048576");
    let typed = PLAN.replace("ranks = 8", "ranks = \"8\"");
    assert_eq!(
        with_line(
            read(&typed, false).expect_err("no number").split_once(": ").expect("a line").1.to_owned(),
            &typed,
            8
        ),
        "invalid type: string \"8\", allowed: a whole number from 0 to 4294967295; in the line `ranks = \"8\"`"
    );
    let most = PLAN.replace("seeds = [1, 2]", &format!("seeds = [{}]", u64::MAX));
    assert!(read(&most, false).expect("a plan").worlds.iter().all(|setup| setup.settings.seed == u64::MAX));
    let said = with_line(String::from("invalid value: integer `-1`, expected u64"), "seeds = [-1]", 1);
    assert!(said.contains("a whole number from 0 to 18446744073709551615"), "{said}");
}

#[test]
fn a_key_without_its_unit_is_rejected() {
    let text = refusal("message_bytes = 200", "message = 200");
    assert!(text.starts_with("11: unknown field `message`"), "{text}");
    assert!(text.ends_with("the name contains the unit: message_bytes"), "{text}");
    let text = refusal("ranks = 8", "ranks = 8\nstart_skew = 5");
    assert!(text.contains("the name contains the unit: start_skew_ns"), "{text}");
    let text = refusal("ranks = 8", "ranks = 8\nrnr_timer_us = 5");
    assert!(text.contains("the name contains the unit: rnr_timer_ns"), "{text}");
}

#[test]
fn goal_files_run_and_their_errors_have_lines() {
    let directory = std::env::temp_dir().join(format!("weir-goal-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let path = directory.join("x.toml");
    let text = PLAN.replace(
        "workload.alltoall = { algorithm = \"linear\", message_bytes = 200, calls = 1 }",
        "workload.goal = { file = \"two.goal\" }",
    );
    let text = text.replace("workload.alltoall.message_bytes = 100", "").replace("ranks = 8", "ranks = 2");
    let text = text.replace("ranks_per_node = 4", "ranks_per_node = 1");
    let text = text.replace("base = { ranks = 4, ranks_per_node = 2 }", "");
    let goal = |content: &str| {
        std::fs::write(directory.join("two.goal"), content).expect("written");
        let plan = Plan::parse(&text, &path, &networks(), false);
        plan.map_err(|fault| format!("{}: {}", line_of(&text, fault.span.start), fault.what))
    };
    let send = "num_ranks 2\nrank 0 {\na: send 8b to 1\n}\nrank 1 {\n";
    let plan = goal(&format!("{send}a: recv 8b from 0\n}}\n")).expect("a plan");
    let record = run::run(&plan.worlds[0]).expect("ends");
    assert_eq!((record.messages, record.time_ns), (1, record.finished_ns));
    let estimate = estimate::packets(&plan.worlds[0]);
    assert_eq!((estimate.packets, estimate.at_least, estimate.pairs), (1, false, 2));
    let missing = goal(&format!("{send}}}\n")).expect_err("no match");
    assert!(
        missing.starts_with("11: ") && missing.contains("two.goal, line 3: 1 message(s) from rank 0"),
        "{missing}"
    );
    let few = goal("num_ranks 1\nrank 0 {\n}\n").expect_err("too few");
    assert!(few.contains("is for 1 ranks, and ranks is 2"), "{few}");
    std::fs::remove_dir_all(&directory).expect("removed");
}

#[test]
fn the_pools_of_all_receivers_are_recorded_with_dynamic_credits_only() {
    let plan = read(PLAN, true).expect("a plan");
    let mut schemes = Vec::new();
    for setup in &plan.worlds {
        let record = run::run(setup).expect("ends");
        let pools: Vec<_> = record.measures.iter().filter(|(name, _)| name.starts_with("pool_")).collect();
        let dynamic = setup.settings.scheme == SchemeName::Dynamic;
        assert_eq!(pools.len(), if dynamic { 7 } else { 0 }, "{pools:?}");
        assert!(pools.iter().all(|(_, measure)| measure.count == 4), "{pools:?}");
        schemes.push(setup.settings.scheme);
    }
    assert_eq!(schemes, [SchemeName::Unlimited, SchemeName::Dynamic]);
}

#[test]
fn all_shipped_plans_parse() {
    let directory = networks().join("..");
    let mut plans = 0;
    for entry in std::fs::read_dir(&directory).expect("there").map(|entry| entry.expect("there").path()) {
        if entry.extension().is_some_and(|extension| extension == "toml") {
            for quick in [false, true] {
                Plan::read(&entry, &networks(), quick).unwrap_or_else(|error| panic!("{error}"));
            }
            plans += 1;
        }
    }
    assert!(plans > 0);
}
