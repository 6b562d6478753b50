"""Intel's MPI benchmarks over weir, with few sizes. `make imb` runs all sizes."""

import imb
import launch
import pytest

QUICK = ["-msglog", "0:16", "-iter", "10", "-time", "100"]


@pytest.mark.parametrize("ranks", [2, 4])
def test_all_benchmarks_complete_under_mpich(over_weir, ranks):
    outcome, _ = over_weir(ranks, imb.program(ranks, imb.BENCHMARKS["IMB-MPI1"], *QUICK), timeout=120)
    assert imb.complete(outcome.output, imb.BENCHMARKS["IMB-MPI1"]), outcome


def test_more_ranks_than_cores_complete(over_weir):
    benchmarks = ["Exchange", "Allreduce", "Alltoall", "Barrier"]
    outcome, _ = over_weir(8, imb.program(8, benchmarks, *QUICK), timeout=120)
    assert imb.complete(outcome.output, benchmarks), outcome


def test_large_messages_complete(over_weir):
    benchmarks = ["PingPong", "Sendrecv"]
    outcome, _ = over_weir(2, imb.program(2, benchmarks, "-msglog", "20:22", "-iter", "5"), timeout=60)
    assert imb.complete(outcome.output, benchmarks), outcome


@pytest.mark.parametrize("ranks", [2, 4])
def test_benchmarks_complete_under_intel_mpi(over_weir, ranks):
    outcome, report = over_weir(ranks, imb.program(ranks, imb.INTEL, *QUICK), mpi="intel", timeout=120)
    assert imb.complete(outcome.output, imb.INTEL), outcome
    assert all(rank["counters"]["messages_sent"] > 0 for rank in report["ranks"])


@pytest.mark.parametrize("mpi", ["mpich", "intel"])
def test_weir_carries_the_traffic(over_weir, mpi):
    """1,000 more round trips add their messages and bytes on both ranks."""

    def sent(repetitions):
        sizes = ["-msglog", "10:10", "-iter", str(repetitions), "-iter_policy", "off", "-time", "100"]
        _, report = over_weir(2, imb.program(2, ["PingPong"], *sizes), mpi=mpi, timeout=60)
        assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
        return [(rank["counters"]["messages_sent"], rank["counters"]["bytes_sent"]) for rank in report["ranks"]]

    for (few, few_bytes), (many, many_bytes) in zip(sent(100), sent(1100)):
        # IMB also sends 0 bytes, repeats everything for warm-up, and has a little traffic of its own.
        assert 2000 <= many - few <= 4400, f"{few} and {many} messages"
        assert 1000 * 1024 <= many_bytes - few_bytes <= 2200 * 1024, f"{few_bytes} and {many_bytes} bytes"


def test_weir_carries_the_barriers_of_intel_mpi(over_weir):
    """Intel MPI could use its own shared memory. Over weir, each rank sends at least two messages for a barrier of 4 ranks, or
    the group of the communicator does the barrier."""
    barriers = 500
    sizes = ["-iter", str(barriers), "-iter_policy", "off", "-time", "100"]
    benchmark = imb.program(4, ["Barrier"], *sizes)
    _, report = over_weir(4, benchmark, mpi="intel", flags=["--collectives", "off"], timeout=60)
    for rank in report["ranks"]:
        assert rank["counters"]["messages_sent"] >= 2 * barriers and rank["group_operations"] == 0, rank
    _, report = over_weir(4, benchmark, mpi="intel", flags=["--collectives", "on"], timeout=60)
    for rank in report["ranks"]:
        assert rank["group_operations"] >= barriers > rank["counters"]["messages_sent"], rank


@pytest.mark.parametrize("mpi", ["mpich", "intel"])
def test_a_run_without_the_provider_fails(tmp_path, mpi):
    """The same environment without the plug-in: an MPI that had another transport would use it here."""
    env = launch.plain_environment(mpi)
    env |= {"FI_PROVIDER_PATH": str(tmp_path), "FI_PROVIDER": "weir", "MPIR_CVAR_CH4_NETMOD": "ofi",
            "MPIR_CVAR_NOLOCAL": "1", "I_MPI_FABRICS": "ofi", "I_MPI_OFI_PROVIDER": "weir"}
    words = [*launch.plain_mpiexec(mpi, 2), *imb.program(2, ["PingPong"], "-msglog", "0:3", "-iter", "5")]
    outcome = launch.run(words, timeout=60, env=env)
    assert not outcome.ok, outcome
