//! Tests of the registry of networks: the shipped network files, the shape that a plan decides, errors with lines.

use std::path::Path;

use super::*;
use crate::network::{infiniband, loggops};

const EXTOLL: &str = include_str!("../../../../../experiments/networks/extoll.toml");
const INFINIBAND: &str = include_str!("../../../../../experiments/networks/infiniband.toml");
const LOGGOPS: &str = include_str!("../../../../../experiments/networks/loggops.toml");
const IDEAL: &str = include_str!("../../../../../experiments/networks/ideal.toml");

const SHAPE: Shape =
    Shape { ranks: 8, mesh: Mesh { size: [2, 2, 1] }, ranks_per_node: 2, mailbox_slots: Some(9) };

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn refusal(text: &str) -> String {
    Model::parse(text, "x.toml").expect_err("refused").to_string()
}

/// The answers of a network itself, to compare them with its entry.
struct Facts;

impl WithNetwork for Facts {
    type Output = (Geometry, bool);

    fn call<N: Network>(self, network: N) -> (Geometry, bool) {
        (network.geometry(), network.repair_ps().is_some())
    }
}

#[test]
fn each_network_has_a_file_and_a_page_that_names_it_and_is_what_its_entry_says() {
    for info in NETWORKS {
        let path = root().join("experiments/networks").join(info.name).with_extension("toml");
        let model = Model::read(&path).unwrap_or_else(|error| panic!("{}: {error}", info.name));
        assert_eq!(model.info().name, info.name);
        let page = std::fs::read_to_string(root().join("docs").join(info.page)).expect(info.page);
        assert!(page.to_lowercase().contains(info.name), "{} does not name {}", info.page, info.name);
        let (geometry, repairs) = model.build(SHAPE, Facts);
        assert_eq!(geometry, info.geometry.unwrap_or(crate::network::ideal::WHOLE_MESSAGES));
        assert_eq!(repairs, info.repairs, "{}", info.name);
        assert_eq!(model.hosts().is_some(), info.nodes == Nodes::Hosts, "{}", info.name);
    }
}

#[test]
fn a_plan_decides_the_shape_of_a_network() {
    let extoll = Model::parse(EXTOLL, "extoll.toml").expect("a network");
    let parameters = extoll.keys::<ExtollKeys>().expect("an EXTOLL").parameters(SHAPE);
    assert_eq!((parameters.ranks_per_node, parameters.mailbox_slots), (2, Some(9)));
    assert!(parameters.hop_ps > 0 && extoll.cost.packet_send_ps > 0);
    assert!(extoll.keys::<IdealKeys>().is_none() && extoll.kind() == Kind::Extoll);
    let ideal = Model::parse(IDEAL, "ideal.toml").expect("a network");
    assert_eq!(ideal.keys::<IdealKeys>().expect("ideal").network(SHAPE).latency_ps, 1_000_000);
    assert!(ideal.keys::<ExtollKeys>().is_none() && ideal.cost == Cost::FREE);
}

#[test]
fn network_files_equal_the_defaults_in_the_code() {
    let infiniband = Model::parse(INFINIBAND, "infiniband.toml").expect("a network");
    let parameters = infiniband.keys::<InfinibandKeys>().expect("an InfiniBand").parameters(1);
    assert_eq!(parameters, infiniband::Parameters::CLUSTER_2003);
    assert_eq!((infiniband.cost, infiniband.kind()), (infiniband::COST_2003, Kind::Infiniband));
    let loggops = Model::parse(LOGGOPS, "loggops.toml").expect("a network");
    let parameters = loggops.keys::<LoggopsKeys>().expect("LogGOPS").parameters();
    assert_eq!(parameters, loggops::Parameters::DEFAULT);
    assert_eq!(loggops.cost, loggops::Parameters::DEFAULT.cost());
    let refused = |old: &str, new: &str| refusal(&INFINIBAND.replace(old, new));
    assert!(refused("arity = 8", "arity = 1").contains("from 2 to 2^20"));
    assert!(refused("mtu_bytes = 2048", "mtu_bytes = 256").contains("at least 2048"));
    assert!(refused("buffer_packets = 4", "buffer_packets = 0").contains("at least 1"));
    assert!(
        refusal(&LOGGOPS.replace("overhead_ns = 1500.0", "overhead_ns = 1.0"))
            .contains("at least gap_byte_ns")
    );
}

#[test]
fn network_file_errors_name_the_line() {
    let line = 1 + IDEAL.lines().position(|line| line.starts_with("latency_ns")).expect("is there");
    let unknown = refusal(&IDEAL.replace("latency_ns", "latency_us"));
    assert!(unknown.starts_with(&format!("x.toml:{line}: unknown field `latency_us`")), "{unknown}");
    assert!(unknown.contains("`latency_ns`"), "says what is allowed: {unknown}");
    let negative = refusal(&IDEAL.replace("latency_ns = 1000.0", "latency_ns = -1.0"));
    let what = "the time is -1.0 ns; allowed: 0 to 1000000000; in the line `latency_ns = -1.0`";
    assert_eq!(negative, format!("x.toml:{line}: {what}"));
    let missing = refusal(&IDEAL.replace("latency_ns = 1000.0", ""));
    assert!(missing.contains("missing field `latency_ns`"), "{missing}");
    let kind = refusal(&IDEAL.replace("\"ideal\"", "\"ether\""));
    assert!(kind.contains("`extoll`") && kind.contains("`ideal`"), "{kind}");
    let none = refusal(&EXTOLL.replace("nic_packets = 16", "nic_packets = 0"));
    assert!(none.ends_with("nic_packets is 0; allowed: at least 1"), "{none}");
}
