//! The worlds that `weir bench sim` measures: for each case a network, a number of ranks and their traffic. Cases whose
//! names begin with `Bare` run a network alone. A world runs here to its end; the caller measures.

use serde::{Deserialize, Serialize};
use weir_proto::{Config, Geometry, Scheme};
use weir_sim::collective::Group;
use weir_sim::cost::Cost;
use weir_sim::network::Network;
use weir_sim::network::extoll::{Extoll, Parameters};
use weir_sim::network::fat_tree::FatTree;
use weir_sim::network::ideal::Ideal;
use weir_sim::network::infiniband::{self, InfiniBand};
use weir_sim::network::loggops::{self, LogGops};
use weir_sim::network::mesh::Mesh;
use weir_sim::program::{Program, Rank};
use weir_sim::traffic::Traffic;
use weir_sim::world::{Report, World, WorldSpec};

const NS: u64 = 1000;

/// A case: a world that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// Linear all-to-all of 2 KB on a 4x4x4 mesh of 16 ranks a node, packet by packet, static credits, back-pressure.
    AlltoallMesh64,
    /// All-to-all as in `alltoall-mesh64`, on a 16x8x8 mesh with one rank on each node.
    AlltoallMesh1024,
    /// Linear all-to-all of 2 KB among 1024 ranks on the ideal network without flow control, at most 8 outstanding
    /// sends for each rank.
    MessagesWindowed,
    /// All-to-all as in `messages-windowed`, with all sends posted at once.
    MessagesAtOnce,
    /// All-to-all as in `messages-windowed`, on the LogGOPS network.
    MessagesLoggops,
    /// All-to-all as in `messages-windowed`, on an InfiniBand fat tree of 64 nodes of 16 ranks, static credits.
    MessagesInfiniband,
    /// Twenty rounds of 2 KB to eight neighbours on the ideal network without flow control, in packets of EXTOLL's
    /// size.
    Neighbours,
    /// Two rounds of 60,000 B to eight neighbours on the same network: messages of 1072 packets.
    NeighboursLong,
    /// Five rounds of 60,000 B to eight other ranks on the InfiniBand network, static credits: messages of 30 packets.
    InfinibandLong,
    /// A barrier by dissemination among 262,144 ranks.
    Barrier,
    /// 65,536 ranks, each with 64 senders, static credits.
    ManySenders,
    /// The network of `alltoall-mesh64` alone: every rank sends 64 trains of 37 packets, which are retrieved as they
    /// arrive.
    BareMesh64,
    /// The network of `alltoall-mesh1024` alone, with the same traffic.
    BareMesh1024,
    /// The network of `messages-infiniband` alone, 64 trains of 30 packets of 2000 B from every rank.
    BareInfiniband,
    /// The ideal network alone, a train of 37 packets from each rank to each rank.
    BareIdeal,
    /// The LogGOPS network alone, a message from each rank to each rank.
    BareLoggops,
}

/// The results of a world.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct WorldResult {
    /// Ranks.
    pub ranks: u32,
    /// Events handled.
    pub events: u64,
    /// Packets retrieved from mailboxes, credit packets included.
    pub packets: u64,
    /// Links crossed, summed over packets.
    pub packet_hops: u64,
    /// Messages received.
    pub messages: u64,
    /// Virtual time. Unit: ps.
    pub finished_ps: u64,
    /// Trace hash: equal for equal runs.
    pub trace: u64,
    /// 99th percentile of the time from the call to the receive; 0 if there are no calls. Unit: ns.
    pub latency_p99_ns: u64,
}

impl Case {
    /// Number of ranks. Quick worlds are small.
    fn ranks(self, quick: bool) -> u32 {
        match (self, quick) {
            (Case::Barrier, false) => 1 << 18,
            (Case::Barrier, true) => 1 << 10,
            (Case::ManySenders, false) => 1 << 16,
            (Case::ManySenders, true) => 1 << 7,
            (_, false) => 1 << 10,
            (_, true) => 1 << 6,
        }
    }

    /// Whether its world reads hundreds of MiB many times, so that huge pages bring more than they cost.
    pub fn reads_memory_often(self) -> bool {
        matches!(self, Case::AlltoallMesh64 | Case::AlltoallMesh1024)
    }

    /// Runs the world of the case to its end.
    ///
    /// # Errors
    /// The reason why the world stopped.
    pub fn run(self, quick: bool) -> Result<WorldResult, String> {
        let ranks = self.ranks(quick);
        match self {
            Case::AlltoallMesh64 => {
                let size = if quick { [2, 2, 1] } else { [4, 4, 4] };
                run(spec(ranks, STATIC, 60), mesh(size, 16), alltoall(0))
            }
            Case::AlltoallMesh1024 => {
                let size = if quick { [4, 4, 4] } else { [16, 8, 8] };
                run(spec(ranks, STATIC, 60), mesh(size, 1), alltoall(0))
            }
            Case::MessagesWindowed => run(spec(ranks, Scheme::Unlimited, 1), ideal(), alltoall(8)),
            Case::MessagesAtOnce => run(spec(ranks, Scheme::Unlimited, 1), ideal(), alltoall(0)),
            Case::MessagesLoggops => {
                let parameters = loggops::Parameters::DEFAULT;
                let spec = WorldSpec { cost: parameters.cost(), ..spec(ranks, Scheme::Unlimited, 1) };
                run(spec, LogGops::new(parameters, ranks), alltoall(8))
            }
            Case::MessagesInfiniband => run(infiniband_spec(ranks, 2048), infiniband(quick), alltoall(8)),
            Case::Neighbours => run(spec(ranks, Scheme::Unlimited, 1), with_extoll_packets(), |rank| {
                exchange(rank, 4, 1, 20, 2048)
            }),
            Case::NeighboursLong => {
                let spec = with_eager_bytes(LONG_BYTES, spec(ranks, Scheme::Unlimited, 1));
                run(spec, with_extoll_packets(), |rank| exchange(rank, 4, 1, 2, LONG_BYTES))
            }
            Case::InfinibandLong => {
                // Ranks on other nodes, and on other switches if there are several.
                let stride = ranks / 8 - 1;
                run(infiniband_spec(ranks, LONG_BYTES), infiniband(quick), move |rank| {
                    exchange(rank, 4, stride, 5, LONG_BYTES)
                })
            }
            Case::Barrier => run(spec(ranks, Scheme::Unlimited, 1), ideal(), barrier),
            Case::ManySenders => run(spec(ranks, STATIC, 16), ideal(), |rank| exchange(rank, 32, 1, 2, 64)),
            Case::BareMesh64 => {
                let size = if quick { [2, 2, 1] } else { [4, 4, 4] };
                Ok(run_network_only(network_only_traffic(ranks, 64, 37, 56), mesh(size, 16)))
            }
            Case::BareMesh1024 => {
                let size = if quick { [4, 4, 4] } else { [16, 8, 8] };
                Ok(run_network_only(network_only_traffic(ranks, 64, 37, 56), mesh(size, 1)))
            }
            Case::BareInfiniband => {
                Ok(run_network_only(network_only_traffic(ranks, 64, 30, 2000), infiniband(quick)))
            }
            Case::BareIdeal => {
                Ok(run_network_only(network_only_traffic(ranks, ranks, 37, 56), with_extoll_packets()))
            }
            Case::BareLoggops => {
                let network = LogGops::new(loggops::Parameters::DEFAULT, ranks);
                Ok(run_network_only(network_only_traffic(ranks, ranks, 1, 2048), network))
            }
        }
    }
}

/// Nearly the longest eager message. Unit: bytes.
const LONG_BYTES: u64 = 60_000;

const STATIC: Scheme = Scheme::Static { piggyback: false };

/// Times of a processor in round numbers. The speed of the simulator does not depend on them.
const COST: Cost = Cost {
    send_call_ps: 300 * NS,
    receive_call_ps: 100 * NS,
    packet_send_ps: 100 * NS,
    send_ps_per_kib: 0,
    packet_receive_ps: 90 * NS,
    credit_send_ps: 100 * NS,
    credit_receive_ps: 90 * NS,
    match_ps: 50 * NS,
    copy_ps_per_kib: 100 * NS,
    unexpected_copy_ps_per_kib: 100 * NS,
    combine_ps_per_kib: 0,
    get_ps: 1000 * NS,
    poll_ps: 0,
    call_jitter_ps: 0,
};

fn spec(ranks: u32, scheme: Scheme, quota_slots: u32) -> WorldSpec {
    WorldSpec::new(ranks, scheme, quota_slots, COST)
}

fn with_eager_bytes(eager_bytes: u64, spec: WorldSpec) -> WorldSpec {
    WorldSpec { config: Config { eager_bytes, ..spec.config }, ..spec }
}

fn ideal() -> Ideal {
    Ideal::new(1000 * NS, 1000)
}

fn with_extoll_packets() -> Ideal {
    Ideal::with_geometry(1000 * NS, 0, Geometry::EXTOLL)
}

fn infiniband_spec(ranks: u32, eager_bytes: u64) -> WorldSpec {
    let spec = with_eager_bytes(eager_bytes, spec(ranks, STATIC, 10));
    WorldSpec { cost: infiniband::COST_2003, ..spec }
}

/// 64 nodes under two levels of switches.
fn infiniband(quick: bool) -> InfiniBand {
    let ranks_per_node = if quick { 1 } else { 16 };
    let tree = FatTree { arity: 8, levels: 2 };
    InfiniBand::new(infiniband::Parameters { tree, ranks_per_node, ..infiniband::Parameters::CLUSTER_2003 })
}

fn mesh(size: [u32; 3], ranks_per_node: u32) -> Extoll {
    let mesh = Mesh { size };
    Extoll::new(Parameters {
        mesh,
        ranks_per_node,
        link_packet_ps: 80 * NS,
        hop_ps: 60 * NS,
        inject_packet_ps: 70 * NS,
        eject_packet_ps: 75 * NS,
        ends_ps: 500 * NS,
        buffer_packets: 8,
        nic_packets: 16,
        // Static credits need the quota and two credit slots for each sender.
        mailbox_slots: Some(62 * mesh.nodes() * ranks_per_node),
        get_byte_ps: 1000,
        get_ps: 2000 * NS,
    })
}

fn alltoall(window: u32) -> impl Fn(Rank) -> Program {
    move |rank| Box::pin(async move { Group::all(&rank).alltoall_linear(2048, window).await })
}

fn barrier(rank: Rank) -> Program {
    Box::pin(async move { Group::all(&rank).barrier().await })
}

/// In each round each rank sends `bytes` bytes to `distance` ranks before and behind it, every `stride`th, and receives
/// as many.
fn exchange(rank: Rank, distance: u32, stride: u32, rounds: u64, bytes: u64) -> Program {
    Box::pin(async move {
        let (me, size) = (rank.rank(), rank.size());
        let others =
            || (1..=distance).flat_map(move |d| [(me + d * stride) % size, (me + size - d * stride) % size]);
        for round in 0..rounds {
            let receives: Vec<_> = others().map(|from| rank.irecv(Some(from), round, bytes)).collect();
            let sends: Vec<_> = others().map(|to| rank.isend(to, round, bytes)).collect();
            rank.wait_all(sends).await;
            rank.wait_all(receives).await;
        }
    })
}

/// `trains` trains from each rank to one other, or one train to each other rank.
fn network_only_traffic(ranks: u32, trains: u32, packets: u32, packet_bytes: u32) -> Traffic {
    Traffic { ranks, trains: trains.min(ranks - 1), packets, packet_bytes, spacing_ps: COST.packet_send_ps }
}

fn run_network_only(traffic: Traffic, network: impl Network) -> WorldResult {
    let carried = traffic.run(network);
    WorldResult {
        ranks: traffic.ranks,
        events: carried.events,
        packets: carried.packets,
        packet_hops: carried.packet_hops,
        messages: u64::from(traffic.ranks) * u64::from(traffic.trains),
        finished_ps: carried.finished_at,
        trace: carried.trace,
        latency_p99_ns: 0,
    }
}

fn run<N: Network>(
    spec: WorldSpec,
    network: N,
    program: impl Fn(Rank) -> Program,
) -> Result<WorldResult, String> {
    let report: Report = World::new(spec, network, program).run().map_err(|error| error.to_string())?;
    let sum = |of: fn(&weir_proto::Counters) -> u64| report.counters.iter().map(of).sum();
    Ok(WorldResult {
        ranks: spec.ranks,
        events: report.events,
        packets: sum(|counters| counters.packets_received),
        packet_hops: report.packet_hops,
        messages: sum(|counters| counters.messages_received),
        finished_ps: report.finished_at,
        trace: report.trace,
        latency_p99_ns: report.latency_ns.value_at_quantile(0.99),
    })
}
