//! Tests that compare the key tables with the structs that read the files: names, defaults and allowed values.

use super::*;
use crate::network::registry::Model;
use crate::plan::{Plan, SchemeName, Setup};
use crate::workload::Workload;
use std::path::Path;

fn networks() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/networks")
}

fn read(text: &str) -> Result<Plan, String> {
    Plan::parse(text, Path::new("x.toml"), &networks(), false).map_err(|error| error.what)
}

/// The names that serde expects, from its message about an unknown name.
fn expected(message: &str) -> Vec<String> {
    let known =
        message.split_once("expected").map_or("", |(_, known)| known).split("; the name contains").next();
    known.unwrap_or("").split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn names(keys: &[KeyInfo]) -> Vec<&str> {
    keys.iter().map(|key| key.name).collect()
}

fn sorted<T: Ord>(list: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut list: Vec<T> = list.into_iter().collect();
    list.sort();
    list
}

fn assert_same_names(documented: Vec<&str>, message: &str) {
    assert_eq!(sorted(documented), sorted(expected(message)), "crates/sim/src/plan/keys: {message}");
}

/// A plan whose sweep has the required keys and these. A given key replaces a required one of the same name.
fn plan(extra: &[(&str, &str)]) -> String {
    let mut sweep: Vec<(&str, &str)> = Vec::new();
    for key in SWEEP.iter().filter(|key| key.presence == Presence::Required || key.name == "slots_per_peer") {
        sweep.push((key.name, key.example));
    }
    for (name, value) in extra {
        sweep.retain(|(other, _)| other != name);
        sweep.push((name, value));
    }
    let lines: String = sweep.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
    format!("{}seeds = [1]\n[[sweep]]\n{lines}", head(""))
}

/// The required keys at the top, except one.
fn head(without: &str) -> String {
    let keys = TOP.iter().filter(|key| key.presence == Presence::Required && key.name != without);
    keys.map(|key| format!("{} = {}\n", key.name, key.example)).collect()
}

fn worlds(text: &str) -> Vec<Setup> {
    read(text).unwrap_or_else(|what| panic!("{what}\n{text}")).worlds
}

#[test]
fn top_keys_are_documented() {
    let unknown = read(&format!("{}no_such_key = 1\nmemory_peers = [64]", head(""))).unwrap_err();
    // `quick` is removed before the check.
    let documented = names(TOP).into_iter().filter(|name| *name != "quick");
    let mut known = expected(&unknown);
    known.retain(|name| name != "quick");
    assert_eq!(sorted(documented), sorted(known), "{unknown}");
    for key in TOP.iter().filter(|key| key.presence == Presence::Required) {
        let text = format!("{}memory_peers = [64]", head(key.name));
        assert!(read(&text).unwrap_err().contains(&format!("missing field `{}`", key.name)), "{}", key.name);
    }
    let default = plan(&[]);
    let stated = format!("reference = true\n{default}");
    let keys = |text: &str| worlds(text).iter().map(Setup::key).collect::<Vec<_>>();
    assert_eq!(keys(&default), keys(&stated));
}

#[test]
fn sweep_keys_are_documented() {
    let unknown = read(&plan(&[("no_such_key", "1")])).unwrap_err();
    assert_same_names(names(SWEEP), &unknown);
    for key in SWEEP.iter().filter(|key| key.presence == Presence::Required) {
        let text = plan(&[]).replace(&format!("\n{} = {}\n", key.name, key.example), "\n");
        let what = read(&text).unwrap_err();
        assert!(what.contains("missing") && what.contains(key.name), "{}: {what}", key.name);
    }
}

#[test]
fn sweep_defaults_are_documented() {
    for scheme in SCHEMES.iter().map(|(name, _)| format!("\"{name}\"")) {
        for key in SWEEP {
            let Presence::Default(default) = key.presence else { continue };
            let settings = |extra: &[(&str, &str)]| {
                let all: Vec<_> =
                    [("scheme", scheme.as_str())].into_iter().chain(extra.iter().copied()).collect();
                worlds(&plan(&all)).into_iter().map(|setup| setup.settings).collect::<Vec<_>>()
            };
            assert_eq!(settings(&[]), settings(&[(key.name, default)]), "{} with {scheme}", key.name);
        }
    }
}

#[test]
fn keys_of_nic_processors_are_documented() {
    let unknown = read(&plan(&[("nic", "{ no_such_key = 1 }")])).unwrap_err();
    assert_same_names(names(NIC.keys), &unknown);
    let example: Vec<String> = NIC.keys.iter().map(|key| format!("{} = {}", key.name, key.example)).collect();
    let stated = worlds(&plan(&[("nic", &format!("{{ {} }}", example.join(", ")))]));
    assert!(stated.iter().all(|setup| setup.settings.nic.is_some()));
}

#[test]
fn keys_of_faults_are_documented() {
    let faults = |keys: &str| plan(&[("faults", &format!("{{ {keys} }}"))]);
    let unknown = read(&faults("no_such_key = 1")).unwrap_err();
    assert_same_names(names(FAULTS.keys), &unknown);
    let settings =
        |text: &str| worlds(text).into_iter().map(|setup| setup.settings.faults).collect::<Vec<_>>();
    for key in FAULTS.keys {
        let Presence::Default(default) = key.presence else { panic!("{} has a default", key.name) };
        let default = if default == "[]" { "[[]]" } else { default };
        assert_eq!(settings(&faults("")), settings(&faults(&format!("{} = {default}", key.name))));
    }
}

#[test]
fn keys_of_reliability_are_documented() {
    let switched = "{ file = \"switched\" }";
    let reliability = |keys: &str| plan(&[("network", switched), ("reliability", &format!("{{ {keys} }}"))]);
    let unknown = read(&reliability("no_such_key = 1")).unwrap_err();
    assert_same_names(names(RELIABILITY.keys), &unknown);
    let settings = |text: &str| {
        worlds(text).into_iter().map(|setup| setup.settings.reliability.expect("stated")).collect::<Vec<_>>()
    };
    for key in RELIABILITY.keys {
        let Presence::Default(default) = key.presence else { panic!("{} has a default", key.name) };
        assert_eq!(settings(&reliability("")), settings(&reliability(&format!("{} = {default}", key.name))));
    }
}

#[test]
fn schemes_are_documented() {
    let unknown = serde_json::from_str::<SchemeName>("\"no-such\"").unwrap_err().to_string();
    assert_same_names(SCHEMES.iter().map(|(name, _)| *name).collect(), &unknown);
    let scheme = SWEEP.iter().find(|key| key.name == "scheme").expect("documented");
    let Value::OneOf(names) = scheme.value else { panic!("a list") };
    assert_eq!(sorted(names.to_vec()), sorted(SCHEMES.iter().map(|(name, _)| *name)));
}

fn workload(name: &str, lines: &str) -> Result<Workload, String> {
    toml::from_str(&format!("[{name}]\n{lines}")).map_err(|error| error.message().to_owned())
}

#[test]
fn workloads_and_their_keys_are_documented() {
    let unknown = workload("no_such_workload", "").unwrap_err();
    assert_same_names(WORKLOADS.iter().map(|section| section.name).collect(), &unknown);
    for section in WORKLOADS {
        let name = section.name;
        let unknown = workload(name, "no_such_key = 1").unwrap_err();
        assert_same_names(names(section.keys), &unknown);
        let minimal = workload(name, &section.example()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(section.records(), minimal.records());
        minimal.check(8).unwrap_or_else(|error| panic!("{name}: {error}"));
        for key in section.keys {
            let line = |value: &str| format!("{} = {value}\n", key.name);
            let rest = section.example().replace(&line(key.example), "");
            match key.presence {
                Presence::Required => {
                    let error = workload(name, &rest).unwrap_err();
                    assert!(error.contains(&format!("missing field `{}`", key.name)), "{name}: {error}");
                }
                Presence::Default(default) => {
                    let stated = workload(name, &(rest + &line(default))).expect("allowed");
                    assert_eq!(stated, minimal, "{name}: {}", key.name);
                }
                Presence::Optional(_) => {
                    let stated = workload(name, &(rest.clone() + &line(key.example))).expect("allowed");
                    assert_ne!(stated, minimal, "{name}: {}", key.name);
                }
            }
            if let Value::OneOf(values) = key.value {
                let rest = section.example().replace(&line(key.example), "");
                let error = workload(name, &(rest + &line("\"no_such_value\""))).unwrap_err();
                assert_same_names(values.to_vec(), &error);
            }
        }
    }
}

#[test]
fn keys_of_goal_are_documented() {
    let text = plan(&[("workload", "{ goal = { no_such_key = 1 } }")]);
    let unknown = read(&text).unwrap_err();
    assert_eq!(names(GOAL.keys), ["file"]);
    assert!(unknown.contains("expected `file`"), "{unknown}");
}

#[test]
fn network_keys_are_documented() {
    let kinds = Model::parse("kind = \"no_such_kind\"", "x").unwrap_err().to_string();
    assert_same_names(NETWORKS.iter().map(|section| section.name).collect(), &kinds);
    let costs = format!("[cost]\n{}", COSTS.example());
    for info in NETWORKS {
        let section = Section { name: info.name, about: info.about, keys: info.keys };
        let costs = if info.has_cost { &costs } else { "" };
        let file = |keys: &str, costs: &str| {
            let text = format!("kind = \"{}\"\n[network]\n{keys}{costs}", section.name);
            Model::parse(&text, "x").map_err(|error| error.to_string())
        };
        file(&section.example(), costs).unwrap_or_else(|error| panic!("{error}"));
        assert_same_names(names(section.keys), &file("no_such_key = 1\n", costs).unwrap_err());
        for key in section.keys {
            let rest = section.example().replace(&format!("{} = {}\n", key.name, key.example), "");
            let error = file(&rest, costs).unwrap_err();
            assert!(error.contains(&format!("missing field `{}`", key.name)), "{error}");
        }
        if !costs.is_empty() {
            let unknown = file(&section.example(), "[cost]\nno_such_key = 1\n").unwrap_err();
            assert_same_names(names(COSTS.keys), &unknown);
        }
    }
}
