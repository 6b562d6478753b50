"""How ranks share cores: MPICH yields the core after each poll, and weir skips yields that serve nothing; time slices."""

import os
import pathlib
import platform
import re

import launch
import pytest

PROGRAM = launch.ROOT / "tests" / "mpi" / "yields.c"
MESSAGES = 2000
LINUX = tuple(map(int, re.match(r"(\d+)\.(\d+)", platform.release()).groups()))
SCHEDULING = pathlib.Path("/proc/self/sched")
CORES = sorted(os.sched_getaffinity(0))


def yields(over_weir, *flags, ranks=2):
    outcome, _ = over_weir(ranks, [launch.compile_c(PROGRAM), str(MESSAGES)], flags=flags, timeout=60)
    found = re.search(rf"receives={MESSAGES} yields=(\d+) waiting=(\d+) round_trips=(\d+)", outcome.output)
    assert found, outcome
    in_receives, waiting, in_round_trips = map(int, found.groups())
    assert waiting > 0, "a rank that waits long yields"
    return in_receives, in_round_trips


def test_a_receive_of_an_arrived_message_yields_nothing(over_weir):
    assert yields(over_weir, "--set", "FI_WEIR_SKIP_YIELDS=0")[0] >= MESSAGES
    assert yields(over_weir)[0] < MESSAGES // 10


def test_a_receive_yields_nothing_with_more_ranks_than_cores(over_weir):
    assert yields(over_weir, ranks=2 * len(CORES))[0] < MESSAGES // 10


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_bound_ranks_are_not_counted_as_oversubscribed(over_weir):
    def bound(cores, ranks):
        words = ("-bind-to", "user:" + ",".join(map(str, cores)))
        return yields(over_weir, *(f"--launcher-arg={word}" for word in words), ranks=ranks)[1]

    # A rank yields some hundred times if other programs interrupt it.
    assert min(bound(CORES[:2], 2) for _ in range(3)) < MESSAGES // 4 < bound(CORES[:1] * 2, 2 * len(CORES))


@pytest.mark.skipif(LINUX < (6, 12), reason="threads choose their time slices since Linux 6.12")
@pytest.mark.skipif("se.slice" not in SCHEDULING.read_text(), reason="this kernel shows no time slices")
def test_ranks_have_a_short_time_slice_unless_told_otherwise(over_weir):
    program = [launch.python("mpich"), "-c", "from mpi4py import MPI; print(open('/proc/self/sched').read())"]

    def slices(*flags):
        outcome, _ = over_weir(2, program, flags=flags, timeout=60)
        found = [int(ns) for ns in re.findall(r"se\.slice\s*:\s*(\d+)", outcome.output)]
        assert len(found) == 2, outcome
        return set(found)

    own = int(re.search(r"se\.slice\s*:\s*(\d+)", SCHEDULING.read_text())[1])
    assert slices() == {100_000}
    assert slices("--set", "FI_WEIR_SHORT_SLICE=0") == {own}
