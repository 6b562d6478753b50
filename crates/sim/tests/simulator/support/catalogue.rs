//! Small variants of every workload, as plans name them.

use weir_sim::workload::Workload;

pub const CATALOGUE: &[&str] = &[
    "[multi_pingpong]\nmessage_bytes = 2048\npairs = 1\npartner_distance_ranks = 1\nround_trips = 3\nwarmup_round_trips = 1",
    "[alltoall]\nalgorithm = 'linear'\nmessage_bytes = 2048\ncalls = 2",
    "[alltoall]\nalgorithm = 'linear'\nmessage_bytes = 2044\ncalls = 2\nwindow_messages = 2\nbarrier_each_call = true",
    "[alltoall]\nalgorithm = 'linear'\nmessage_bytes = 2048\ncalls = 2\nwindow_messages = 1\norder = 'sends_first'\nbarrier_each_call = true",
    "[alltoall]\nalgorithm = 'pairwise'\nmessage_bytes = 512\ncalls = 2\nwarmup_calls = 1",
    "[alltoall]\nalgorithm = 'bruck'\nmessage_bytes = 64\ncalls = 2",
    "[alltoall_groups]\nmessage_bytes = 2048\ngroup_ranks = 1\ncalls = 2",
    "[alltoall_groups]\nmessage_bytes = 2048\ngroup_ranks = 4\ngroups = 2\ncalls = 2\nwarmup_calls = 1\norder = 'sends_first'\nbarrier_each_call = true",
    "[alltoall_phases]\nmessage_bytes = 2048\ngroup_ends = [1]\nphases = [{ ranks = 1, calls = 1 }]",
    "[alltoall_phases]\nmessage_bytes = 2048\ngroup_ends = [2, 4, 8]\nphases = [{ ranks = 8, calls = 2 }, { ranks = 2, calls = 2 }, { ranks = 4, calls = 1 }]",
    "[alltoall_phases]\nmessage_bytes = 100\nbarrier = 'linear'\ngroup_ends = [2]\nphases = [{ ranks = 2, calls = 2 }, { ranks = 1, calls = 1 }]",
    "[alltoall_local]\nmessage_bytes = 2048\nranks_per_node = 2\nlocal_message_ns = 900\ncalls = 2",
    "[alltoall_local]\nmessage_bytes = 2048\nranks_per_node = 2\nlocal_message_ns = 900\norder = 'sends_first'\nwindow_messages = 1\ncalls = 2",
    "[windows]\nmessage_bytes = 512\nranks_per_node = 2\nactive_ranks = 1\nwindow_messages = 3\nwindows = 3\nwarmup_windows = 1",
    "[windows]\nmessage_bytes = 16\nranks_per_node = 4\nactive_ranks = 4\nwindow_messages = 1\npartner = 'random'\nwindows = 5",
    "[latency]\nmessage_bytes = 4\nround_trips = 5",
    "[bandwidth]\nmessage_bytes = 4\nwindow_messages = 40\nblocking = true\nwindows = 3",
    "[bandwidth]\nmessage_bytes = 32768\nwindow_messages = 10\nblocking = false\nwindows = 3\nwarmup_windows = 1",
    "[scatterv_moving_root]\nlibrary = 'open_mpi'\nmessage_bytes = 2048\ncalls_per_root = 2\ncalls = 7",
    "[scatterv_moving_root]\nlibrary = 'mpich'\nmessage_bytes = 2048\ncalls_per_root = 1\ncalls = 5\nbarrier_each_call = true",
    "[incast]\nmessage_bytes = 2048\nmessages = 3",
    "[incast]\nmessage_bytes = 60000\nmessages = 3\nwindow_messages = 1",
    "[barrier]\nexecutor = 'messages'\nalgorithm = 'pairwise_exchange'\ncompute_ns = 3000\ncompute_spread_percent = 50\nsteps = 2\ncalls = 3",
    "[barrier]\nexecutor = 'messages'\nalgorithm = 'gather_broadcast'\ndegree = 3\nwarmup_calls = 1\ncalls = 3",
    "[reduction]\nexecutor = 'messages'\ntree = 'binomial'\nword = 'integer'\nlast_delay_ns = 1000\nmax_delay_ns = 20000\ncalls = 3",
    "[reduction]\nexecutor = 'messages'\ntree = 'chain'\nword = 'float'\ncalls = 2",
    "[reduction]\nexecutor = 'messages'\ntree = 'flat'\nword = 'float'\ncalls = 2\nwarmup_calls = 1",
    "[broadcast]\nexecutor = 'messages'\nmessage_bytes = 4096\nmax_delay_ns = 20000\ncalls = 3",
    "[atomics]\nexecutor = 'messages'\nwake_ns = 2000\ncalls = 3",
    "[neighbours]\ngrid = [1, 1, 1]\nperiodic = true\nface_bytes = [9, 9, 9]\nsteps = 2",
    "[neighbours]\ngrid = [2, 1, 1]\nperiodic = true\nface_bytes = [9000, 9, 9]\nsteps = 2",
    "[neighbours]\ngrid = [4, 2, 2]\nperiodic = false\nface_bytes = [512, 1024, 2048]\nsteps = 3\ncompute_ns = 5000",
];

/// The Intel MPI Benchmarks that send messages.
pub const IMB: &[&str] = &[
    "ping_pong",
    "ping_ping",
    "sendrecv",
    "exchange",
    "bcast",
    "reduce",
    "allreduce",
    "reduce_scatter",
    "allgather",
    "allgatherv",
    "gather",
    "gatherv",
    "scatter",
    "scatterv",
    "alltoall",
    "alltoallv",
];

/// One Intel MPI Benchmark.
pub fn imb(benchmark: &str, library: &str, message_bytes: u64, calls: u32) -> Workload {
    super::workload(&format!(
        "[imb]\nbenchmark = '{benchmark}'\nlibrary = '{library}'\nmessage_bytes = {message_bytes}\ncalls = {calls}"
    ))
}

/// One NAS kernel.
pub fn nas(kernel: &str, class: &str, iterations: u32) -> Workload {
    super::workload(&format!(
        "[nas]\nkernel = '{kernel}'\nclass = '{class}'\nlibrary = 'mpich'\niteration_compute_ns = 20000\niterations = {iterations}"
    ))
}

/// All workloads. Long messages are part of it, so that every algorithm of every library runs.
pub fn catalogue() -> Vec<Workload> {
    let mut all: Vec<Workload> = CATALOGUE.iter().map(|toml| super::workload(toml)).collect();
    for library in ["mpich", "open_mpi"] {
        all.push(imb("barrier", library, 0, 3));
        for benchmark in IMB {
            all.extend([100, 2048, 60_000].map(|bytes| imb(benchmark, library, bytes, 2)));
        }
    }
    all.extend([600_000, 3_000_000].map(|bytes| imb("bcast", "mpich", bytes, 1)));
    all.extend([600_000, 3_000_000].map(|bytes| imb("bcast", "open_mpi", bytes, 1)));
    all.extend(["is", "ft", "lu", "cg", "mg", "bt", "sp"].map(|kernel| nas(kernel, "S", 2)));
    all.extend(["is", "ft", "cg", "mg", "bt", "sp"].map(|kernel| nas(kernel, "A", 1)));
    all
}
