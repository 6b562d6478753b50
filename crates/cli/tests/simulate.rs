//! Tests of `weir sim` and `weir reproduce` with small plans: recorded worlds do not run again, errors name their
//! line, the page is self-contained.
#![allow(missing_docs, reason = "test code")]

mod common;
use common::{World, output};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const PLAN: &str = r#"title = "small"
experiment = "mine"
source = "ours"
seeds = [1]

[base]
network = { file = "extoll" }
ranks = 8
ranks_per_node = 4
mesh_nodes = "2x1"
workload.alltoall = { algorithm = "linear", message_bytes = 500, calls = 1 }

[[sweep]]
scheme = "static"
slots_per_peer = [6, 12, 24]
"#;

fn experiments() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments")
}

fn weir(world: &World, words: &[&str]) -> (Option<i32>, String, String) {
    let out = world.at("results").display().to_string();
    let words = [words, &["--quiet", "--out", &out]].concat();
    output(world.weir(&words).env("WEIR_EXPERIMENTS_PATH", experiments()))
}

fn plan(world: &World, text: &str) -> String {
    let path = world.at("mine.toml");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn worlds_run_once_and_an_interrupted_run_resumes() {
    let world = World::new("");
    let path = plan(&world, PLAN);
    let (code, table, progress) = weir(&world, &["sim", &path]);
    assert_eq!(code, Some(0), "{progress}");
    // Ten packets to each of seven others, and the reference without credits.
    assert!(progress.contains("4 worlds with about 2,"), "{progress}");
    assert_eq!(table.matches("static").count(), 3, "{table}");
    assert_eq!(table.matches("unlimited").count(), 1, "{table}");
    let page = world.at("results/mine.html");
    assert!(table.ends_with(&format!("page: {}\n", page.display())), "{table}");
    let page = std::fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<svg").count(), 2, "time and overhead over slots");
    assert!(page.contains("slots per peer") && page.contains("title = &quot;small&quot;"), "{page}");

    let records = world.at("results/worlds.jsonl");
    let lines = std::fs::read_to_string(&records).unwrap();
    assert_eq!(lines.lines().count(), 4);
    let (code, again, progress) = weir(&world, &["sim", &path]);
    assert_eq!((code, &again), (Some(0), &table));
    assert!(progress.contains("all 4 worlds are recorded") && !progress.contains("data packets"));

    // As after a kill while the third line was written.
    let third = lines.match_indices('\n').nth(1).unwrap().0;
    std::fs::write(&records, &lines[..third + 40]).unwrap();
    let (code, resumed, progress) = weir(&world, &["sim", &path, "--jobs", "1"]);
    assert!(progress.contains("2 worlds with") && progress.contains("2 more are recorded"), "{progress}");
    assert_eq!((code, &resumed), (Some(0), &table));
    let traces = |text: &str| {
        let records = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let mut traces: Vec<_> =
            records.map(|record| (record["key"].to_string(), record["trace"].to_string())).collect();
        traces.sort();
        traces
    };
    assert_eq!(traces(&std::fs::read_to_string(&records).unwrap()), traces(&lines));

    // One number changed: only the worlds with it run.
    let changed = plan(&world, &PLAN.replace("12, 24", "13, 24"));
    let (_, _, progress) = weir(&world, &["sim", &changed]);
    assert!(progress.contains("1 world with") && progress.contains("3 more are recorded"), "{progress}");
}

/// A schedule that ends with eager messages. With rendezvous each send waits for its receive, and it never ends.
fn both_send_first() -> String {
    let ranks = [(0, 1), (1, 0)].map(|(rank, other)| {
        format!("rank {rank} {{\na: send 1000b to {other}\nb: recv 1000b from {other}\nb requires a\n}}\n")
    });
    format!("num_ranks 2\n{}", ranks.concat())
}

#[test]
fn a_failed_world_does_not_affect_others_and_can_be_repeated() {
    let world = World::new("");
    std::fs::write(world.at("both.goal"), both_send_first()).unwrap();
    let path = plan(
        &world,
        r#"title = "both send first"
experiment = "mine"
source = "ours"
seeds = [1]

[base]
network = { file = "ideal" }
ranks = 2
workload.goal = { file = "both.goal" }

[[sweep]]
scheme = "unlimited"
eager_bytes = [999, 1000]
"#,
    );
    let (code, table, stderr) = weir(&world, &["sim", &path]);
    assert_eq!((code, table.matches(" us ").count()), (Some(1), 1), "{table}{stderr}");
    assert!(world.at("results/mine.html").exists());
    let said = stderr.lines().last().unwrap();
    let (what, command) = said.split_once(" (weir ").unwrap();
    assert_eq!(
        what,
        "weir: a world did not end: goal among 2 ranks, unlimited, seed 1: deadlock at 1000 ns: no event is left and 2 \
         programs wait, the first is rank 0"
    );
    let command: Vec<&str> = command.trim_end_matches(')').split_whitespace().collect();
    let (code, again, repeated) = weir(&world, &command);
    assert_eq!((code, again.as_str()), (Some(1), ""));
    assert_eq!(repeated.lines().last(), Some(said), "{command:?}");
    assert!(repeated.contains("1 world with about 4 data packets"), "{repeated}");
    let (code, _, stderr) = weir(&world, &["sim", &path, "--only", "nothing"]);
    assert!(code == Some(2) && stderr.contains("no world of"), "{stderr}");
}

#[test]
fn an_experiment_without_all_its_worlds_has_a_page_and_no_verdicts() {
    let world = World::new("");
    std::fs::create_dir(world.at("experiments")).unwrap();
    std::os::unix::fs::symlink(
        experiments().join("networks").canonicalize().unwrap(),
        world.at("experiments/networks"),
    )
    .unwrap();
    std::fs::write(world.at("experiments/both.goal"), both_send_first()).unwrap();
    let plan = std::fs::read_to_string(experiments().join("e2.1.toml")).unwrap();
    let broken = "[[sweep]]\nscheme = \"unlimited\"\nranks = 2\neager_bytes = 999\nworkload.goal = { file = \"both.goal\" }\n";
    let quick = plan.find("[quick]").unwrap();
    let plan = format!("{}{broken}\n{}", &plan[..quick], &plan[quick..]);
    std::fs::write(world.at("experiments/e2.1.toml"), plan).unwrap();
    let out = world.at("results").display().to_string();
    let mut command = world.weir(&["reproduce", "E2.1", "--quiet", "--out", &out]);
    let (code, table, stderr) = output(command.env("WEIR_EXPERIMENTS_PATH", world.at("experiments")));
    assert_eq!(code, Some(1), "{table}{stderr}");
    // The sensitivity sweep runs the world again at each value of the assumed prices.
    assert!(stderr.contains("worlds did not end:\n  goal among 2 ranks"), "{stderr}");
    assert!(
        table.contains("a world is missing; without:") && table.contains("1 is not evaluated"),
        "{table}"
    );
    assert!(std::fs::read_to_string(world.at("results/reproduce.html")).unwrap().contains("<svg"));
}

#[test]
fn an_interrupt_reports_that_records_are_kept() {
    let world = World::new("");
    weir(&world, &["sim", &plan(&world, PLAN)]);
    // Two more worlds, one of them the reference, which would take a minute.
    let long = format!(
        "{PLAN}\n[[sweep]]\nscheme = \"static\"\nslots_per_peer = 6\nworkload.alltoall.calls = 10000\n"
    );
    let path = plan(&world, &long);
    let records = world.at("results/worlds.jsonl");
    let note =
        format!("4 of 6 worlds have records in {}; the same command resumes there\n", records.display());
    for (signal, status) in [("INT", 130), ("TERM", 143)] {
        let out = world.at("results").display().to_string();
        let mut command = world.weir(&["sim", &path, "--quiet", "--out", &out]);
        command.env("WEIR_EXPERIMENTS_PATH", experiments()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Waits until worlds run.
        while std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().count() < 3 {
            assert_eq!(child.try_wait().unwrap(), None, "it has ended");
            std::thread::sleep(Duration::from_millis(5));
        }
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{stderr}");
        assert!(stderr.ends_with(&format!("weir: ended by signal {}; {note}", status - 128)), "{stderr}");
    }
    assert_eq!(std::fs::read_to_string(records).unwrap().lines().count(), 4);
}

#[test]
fn a_plan_error_is_one_line_with_its_position() {
    let world = World::new("");
    let path = plan(&world, &PLAN.replace("\"2x1\"", "\"3x1\""));
    let (code, stdout, stderr) = weir(&world, &["sim", &path]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    let what = "mesh_nodes 3x1 with ranks_per_node 4 has 12 places, and ranks is 8; allowed: the same number";
    assert_eq!(stderr, format!("weir: {path}:10: {what}\n"));
    let path = plan(&world, &PLAN.replace("message_bytes", "message"));
    let (code, _, stderr) = weir(&world, &["sim", &path]);
    assert_eq!(code, Some(2));
    assert!(stderr.starts_with(&format!("weir: {path}:11: unknown field `message`")), "{stderr}");
    assert!(stderr.ends_with("the name contains the unit: message_bytes\n"), "{stderr}");
    let (code, _, stderr) = weir(&world, &["reproduce", "E9.9"]);
    assert!(
        code == Some(2) && stderr.starts_with("weir: E9.9: no such experiment; allowed: all, list, E1.1")
    );
    assert!(!world.at("results").exists(), "nothing was begun");
}

#[test]
fn a_part_of_the_published_experiments_is_repeated() {
    let world = World::new("");
    let (code, table, progress) = weir(&world, &["reproduce", "E2.1", "E2.3", "--quick"]);
    assert_eq!(code, Some(0), "{progress}");
    assert!(table.contains("all schemes have the same latency") && table.contains("page: "), "{table}");
    let page = std::fs::read_to_string(world.at("results/reproduce.html")).unwrap();
    let without_names = page.replace("http://www.w3.org/2000/svg", "");
    for reference in ["http:", "https:", "src=", "href=", "url(", "@import"] {
        assert!(!without_names.contains(reference), "{reference}");
    }
    assert_eq!(page.matches("<svg").count(), 1 + 2);
    let text = std::fs::read_to_string(world.at("results/points.json")).unwrap();
    let points: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ids: Vec<_> = points["experiments"].as_array().unwrap().iter().map(|it| it["id"].clone()).collect();
    assert_eq!(ids, ["E2.1", "E2.3"]);
    let verdicts: Vec<String> = points["experiments"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|it| it["points"].as_array().unwrap())
        .map(|point| point["verdict"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(verdicts.iter().filter(|verdict| *verdict != "not-published").count(), 1 + 4);
    assert!(!verdicts.iter().any(|verdict| verdict == "not-evaluated"), "{verdicts:?}");
    // Strict or not, the same is printed; the status says whether all of it holds.
    let all_hold = !verdicts.iter().any(|verdict| verdict == "does-not-hold");
    let (code, strict, _) = weir(&world, &["reproduce", "E2.1", "E2.3", "--quick", "--strict"]);
    assert_eq!((code, strict), (Some(i32::from(!all_hold)), table));
}

/// Runs the commands of docs/explanation/simulator.md, "Change one number", as they are written there.
#[test]
fn documented_overrides_change_a_parameter() {
    let world = World::new("");
    let document = std::fs::read_to_string(experiments().join("../docs/explanation/simulator.md")).unwrap();
    let recipe = document.split("## Change one number").nth(1).and_then(|text| text.split("```").nth(1));
    let script = recipe.and_then(|block| block.strip_prefix("sh\n")).expect("a block of commands");
    std::os::unix::fs::symlink(experiments().canonicalize().unwrap(), world.at("experiments")).unwrap();
    let command = Path::new(env!("CARGO_BIN_EXE_weir")).parent().unwrap();
    let path = format!("{}:/usr/bin:/bin", command.display());
    let mut shell = Command::new("/bin/sh");
    shell.args(["-ec", script]).current_dir(world.at("")).env("PATH", path);
    let (code, tables, stderr) = output(&mut shell);
    assert_eq!(code, Some(0), "{stderr}");
    let with_4_bytes =
        |time: &str| tables.lines().filter(|row| row.contains(&format!(" 4   {time} "))).count();
    assert_eq!((with_4_bytes("7.49 us"), with_4_bytes("8.89 us")), (6, 6), "{tables}");
}

#[test]
fn experiments_are_listed() {
    let world = World::new("");
    let (code, list, _) = weir(&world, &["reproduce", "list"]);
    assert_eq!(code, Some(0));
    for id in ["E1.2", "E1.10", "E2.4"] {
        assert!(list.lines().any(|line| line.starts_with(id)), "{list}");
    }
    assert!(list.contains("experiments/e1.2.toml"));
}

/// Each world runs again, so a change of a protocol or of a model that alters results is seen here. Others take too long.
#[test]
fn the_cheapest_experiments_still_have_the_committed_results() {
    let world = World::new("");
    let cheapest = ["E3.1", "E4.1", "E4.3", "E4.6"];
    let (code, _, progress) = weir(&world, &[&["reproduce", "--no-sweep"][..], &cheapest].concat());
    assert_eq!(code, Some(0), "{progress}");
    let read =
        |path: PathBuf| -> Value { serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap() };
    let committed = ["e3", "e4"].map(|name| read(experiments().join(format!("{name}.json"))));
    let committed: Vec<_> =
        committed.iter().flat_map(|it| it["experiments"].as_array().unwrap()).map(results_of).collect();
    let ours = read(world.at("results/points.json"));
    let ours = ours["experiments"].as_array().unwrap();
    assert_eq!(ours.iter().map(|it| it["id"].as_str().unwrap()).collect::<Vec<_>>(), cheapest);
    for experiment in ours.iter().map(results_of) {
        let before = committed.iter().find(|it| it["id"] == experiment["id"]).expect("committed results");
        if let Some(place) = difference(before, &experiment) {
            panic!(
                "{}{place}: not as in experiments/*.json. If the new result is right, run weir reproduce E3 (or E4), \
                 copy its points.json to experiments and run make reference",
                experiment["id"]
            );
        }
    }
}

/// The results of an experiment without what the sweep of assumed parameters has found.
fn results_of(experiment: &Value) -> Value {
    let mut experiment = experiment.clone();
    for point in experiment["points"].as_array_mut().unwrap() {
        point["sensitivity"].take();
        if point["verdict"].as_str().unwrap().starts_with("holds") {
            point["verdict"] = "holds".into();
        }
    }
    experiment
}

/// The first place where two values differ, with both; numbers that differ only by rounding are equal.
fn difference(before: &Value, now: &Value) -> Option<String> {
    let nested = |name: String, place: Option<String>| place.map(|place| format!(", {name}{place}"));
    match (before, now) {
        (Value::Object(one), Value::Object(other)) if one.keys().eq(other.keys()) => {
            one.keys().find_map(|name| nested(name.clone(), difference(&one[name], &other[name])))
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            let pairs = one.iter().zip(other).enumerate();
            pairs.into_iter().find_map(|(at, (one, other))| nested(at.to_string(), difference(one, other)))
        }
        (Value::Number(one), Value::Number(other)) => {
            let [one, other] = [one, other].map(|number| number.as_f64().unwrap());
            let is_equal = (one - other).abs() <= 1e-12 * one.abs();
            (!is_equal).then(|| format!(": {one} before, {other} now"))
        }
        _ => (before != now).then(|| format!(": {before} before, {now} now")),
    }
}
