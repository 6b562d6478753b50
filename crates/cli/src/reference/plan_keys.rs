//! The reference page of plan keys, generated from the tables in `weir_sim::plan::keys`, which include those of network
//! files.

use super::markdown::{GENERATED, item, paragraph};
use weir_sim::network::registry::Nodes;
use weir_sim::plan::keys::{
    COSTS, FAULTS, GOAL, KeyInfo, NETWORKS, NIC, Presence, RELIABILITY, SCHEMES, SWEEP, Section, TOP,
    WORKLOADS,
};

pub fn page() -> String {
    let mut page = format!("# Plan keys\n\n{GENERATED}\n");
    page += &paragraph(
        "A plan is a TOML file that describes worlds for `weir sim`. [Write a plan](../how-to/write-a-plan.md) shows how to \
         use the keys. A key that is not listed here is refused.",
    );
    page += "\n";
    page += &paragraph(
        "The name of a key includes its unit. In `base` and in a sweep, a list has alternative values. A value that is a \
         list itself has double brackets: `grid = [[2, 2, 2]]`.",
    );
    page += "\n## Top of the file\n\n";
    page += &list(TOP);
    page += "\n## Base and sweeps\n\n";
    page += &list(SWEEP);
    page += "\n## Schemes\n\n";
    for (name, meaning) in SCHEMES {
        page += &item(&format!("`{name}`: {meaning}"));
    }
    page += &part("## NIC processors", &NIC);
    page += &part("## Reliable paths", &RELIABILITY);
    page += &part("## Faults", &FAULTS);
    page += "\n## Workloads\n\n";
    page += &paragraph(
        "A workload is a table with the name of the workload, for example \
         `workload.latency = { message_bytes = 8, round_trips = 100 }`. The first name that it records is the \
         time of a world in tables and figures; it is the mean over the ranks.",
    );
    for section in WORKLOADS.iter().chain([&GOAL]) {
        page += &part(&format!("### {}", section.name), section);
    }
    page += "\n## Network files\n\n";
    page += &paragraph(
        "A file in `experiments/networks` has the key `kind`, a table `[network]` and a table `[cost]`. Every key is \
         required. A table `[nic]` with the keys of NIC processors is optional. A plan replaces single values with \
         `network` and `cost`, and the whole table with `nic`.",
    );
    for info in NETWORKS {
        let nodes = match info.nodes {
            Nodes::None => "It has no nodes.",
            Nodes::Mesh => "Its nodes form a mesh.",
            Nodes::Hosts => "It has nodes.",
        };
        page += &format!("\n### {} network\n\n", info.name);
        page += &paragraph(&format!("{} {nodes} [Its model](../{}).", info.about, info.page));
        page += "\n";
        page += &list(info.keys);
    }
    page += &part("### Costs", &COSTS);
    page
}

fn part(heading: &str, section: &Section) -> String {
    let records: Vec<String> = section.records().iter().map(|name| format!("`{name}`")).collect();
    let records = match records.as_slice() {
        [] => String::new(),
        records => format!(" Records {}.", records.join(", ")),
    };
    format!("\n{heading}\n\n{}\n{}", paragraph(&(section.about.to_owned() + &records)), list(section.keys))
}

fn list(keys: &[KeyInfo]) -> String {
    keys.iter().map(|key| item(&line(key))).collect()
}

fn line(key: &KeyInfo) -> String {
    let presence = match key.presence {
        Presence::Required => String::from("Required."),
        Presence::Default(default) => format!("Default: `{default}`."),
        Presence::Optional(without) => format!("Without it: {without}."),
    };
    format!("`{}` ({}): {} {presence}", key.name, key.value, key.meaning)
}
