"""Intel's MPI benchmarks, which nobody here wrote, over weir: few sizes here, all of them with `make imb`."""

import imb
import launch
import pytest

QUICK = ["-msglog", "0:16", "-iter", "10", "-time", "100"]


@pytest.mark.parametrize("ranks", [2, 4])
def test_all_benchmarks_under_mpich(over_weir, ranks):
    outcome, _ = over_weir(ranks, imb.program(ranks, imb.MPICH, *QUICK), timeout=120)
    assert imb.complete(outcome.output, imb.MPICH), outcome


def test_more_ranks_than_cores(over_weir):
    benchmarks = ["Exchange", "Allreduce", "Alltoall", "Barrier"]
    outcome, _ = over_weir(8, imb.program(8, benchmarks, *QUICK), timeout=120)
    assert imb.complete(outcome.output, benchmarks), outcome


def test_large_messages(over_weir):
    benchmarks = ["PingPong", "Sendrecv"]
    outcome, _ = over_weir(2, imb.program(2, benchmarks, "-msglog", "20:22", "-iter", "5"), timeout=60)
    assert imb.complete(outcome.output, benchmarks), outcome


@pytest.mark.parametrize("ranks", [2, 4])
def test_intel_mpi(over_weir, ranks):
    outcome, report = over_weir(ranks, imb.program(ranks, imb.INTEL, *QUICK), mpi="intel", timeout=120)
    assert imb.complete(outcome.output, imb.INTEL), outcome
    assert all(rank["counters"]["messages_sent"] > 0 for rank in report["ranks"])


@pytest.mark.parametrize("mpi", ["mpich", "intel"])
def test_weir_carries_the_traffic(over_weir, mpi):
    """1,000 round trips more are so many messages and bytes more, on each side."""

    def sent(repetitions):
        sizes = ["-msglog", "10:10", "-iter", str(repetitions), "-iter_policy", "off", "-time", "100"]
        _, report = over_weir(2, imb.program(2, ["PingPong"], *sizes), mpi=mpi, timeout=60)
        assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
        return [(rank["counters"]["messages_sent"], rank["counters"]["bytes_sent"]) for rank in report["ranks"]]

    for (few, few_bytes), (many, many_bytes) in zip(sent(100), sent(1100)):
        # 1 KB and before it 0 bytes; IMB warms up with as many again, and has a little traffic of its own.
        assert 2000 <= many - few <= 4400, f"{few} and {many} messages"
        assert 1000 * 1024 <= many_bytes - few_bytes <= 2200 * 1024, f"{few_bytes} and {many_bytes} bytes"


def test_weir_carries_the_barriers_of_intel_mpi(over_weir):
    """Intel MPI would rather synchronise in a segment of its own: each barrier of 4 ranks is two messages of each at least."""
    barriers = 500
    sizes = ["-iter", str(barriers), "-iter_policy", "off", "-time", "100"]
    _, report = over_weir(4, imb.program(4, ["Barrier"], *sizes), mpi="intel", timeout=60)
    for rank in report["ranks"]:
        assert rank["counters"]["messages_sent"] >= 2 * barriers, rank


@pytest.mark.parametrize("mpi", ["mpich", "intel"])
def test_without_the_provider_nothing_runs(tmp_path, mpi):
    """The same environment with the plug-in hidden: if the MPI had another way, it would take it here."""
    env = launch.plain_environment(mpi)
    env |= {"FI_PROVIDER_PATH": str(tmp_path), "FI_PROVIDER": "weir", "MPIR_CVAR_CH4_NETMOD": "ofi",
            "MPIR_CVAR_NOLOCAL": "1", "I_MPI_FABRICS": "ofi", "I_MPI_OFI_PROVIDER": "weir"}
    words = [*launch.plain_mpiexec(mpi, 2), *imb.program(2, ["PingPong"], "-msglog", "0:3", "-iter", "5")]
    outcome = launch.run(words, timeout=60, env=env)
    assert not outcome.ok, outcome
