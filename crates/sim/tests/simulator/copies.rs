//! Tests of one packet for several ranks: one injection, and one copy for each.

use std::path::Path;

use crate::support::drive::drive;
use weir_sim::network::mesh::Mesh;
use weir_sim::network::registry::{Model, NETWORKS, Shape, WithNetwork};
use weir_sim::network::{CopiesInjection, Hold, Network, Output, TrainId};

const WRITE_PS: u64 = 1_000_000;
const COPY_PS: u64 = 10_000_000; // more than any adapter here needs for a packet

/// Rank 0 sends a packet to ranks 1, 2, 3 and 5. Returns the arrivals: time, train, rank.
struct SendCopies;

impl WithNetwork for SendCopies {
    type Output = Vec<(u64, u32, u32)>;

    fn call<N: Network>(self, mut network: N) -> Vec<(u64, u32, u32)> {
        let copies = [(10, 1), (11, 2), (12, 3), (13, 5)].map(|(train, to)| (TrainId(train), to));
        let injection = CopiesInjection {
            from: 0,
            payload_bytes: 8,
            write_ps: WRITE_PS,
            copy_ps: COPY_PS,
            copies: &copies,
        };
        let (hold, announced) =
            drive(&mut network, |network, outputs| network.inject_copies(0, &injection, outputs));
        assert_eq!(hold, Hold::Until(WRITE_PS), "the processor writes the packet once");
        let arrival = |&(at, output): &(u64, Output)| match output {
            Output::Arrived(part) => (at, part.train.0, part.to),
            other => panic!("{other:?}"),
        };
        announced.iter().map(arrival).collect()
    }
}

#[test]
fn each_rank_gets_one_copy_on_every_network() {
    for info in NETWORKS {
        let networks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/networks");
        let model = Model::read(&networks.join(info.name).with_extension("toml")).expect("a network");
        let shape =
            Shape { ranks: 8, mesh: Mesh { size: [8, 1, 1] }, ranks_per_node: 1, mailbox_slots: None };
        let arrivals = model.build(shape, SendCopies);
        let receivers: Vec<_> = arrivals.iter().map(|&(_, train, to)| (train, to)).collect();
        assert_eq!(receivers, [(10, 1), (11, 2), (12, 3), (13, 5)], "{}", info.name);
        let gaps: Vec<u64> = arrivals.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        match info.name {
            "ideal" => assert_eq!(gaps, [0; 3], "it has no adapters"),
            "loggops" => assert!(gaps.iter().all(|&gap| gap > 0), "{gaps:?}"),
            // On a mesh the receivers are at different distances.
            "extoll" => assert!(gaps.iter().all(|&gap| gap >= COPY_PS), "{gaps:?}"),
            _ => assert_eq!(gaps, [COPY_PS; 3], "{}", info.name),
        }
    }
}
