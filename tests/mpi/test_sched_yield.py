"""Redundant yields: MPICH yields the core after each poll. weir skips those that serve nothing."""

import os
import re

import launch
import pytest

PROGRAM = launch.ROOT / "tests" / "mpi" / "yields.c"
MESSAGES = 2000
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
