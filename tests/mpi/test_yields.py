"""MPICH gives the core away after each pass over its sources of messages. Where that is of no use, it does not reach the system."""

import os
import re

import launch

PROGRAM = launch.ROOT / "tests" / "mpi" / "yields.c"
MESSAGES = 2000


def yields(over_weir, *flags, ranks=2):
    outcome, _ = over_weir(ranks, [launch.compile_c(PROGRAM), str(MESSAGES)], flags=flags, timeout=60)
    found = re.search(rf"receives={MESSAGES} yields=(\d+) waiting=(\d+)", outcome.output)
    assert found, outcome
    assert int(found[2]) > 0, "whoever waits for long gives the core away"
    return int(found[1])


def test_a_receive_whose_message_is_there_yields_nothing(over_weir):
    assert yields(over_weir, "--set", "FI_WEIR_SKIP_YIELDS=0") >= MESSAGES
    assert yields(over_weir) < MESSAGES // 10


def test_nor_with_more_ranks_than_cores(over_weir):
    assert yields(over_weir, ranks=2 * os.cpu_count()) < MESSAGES // 10
