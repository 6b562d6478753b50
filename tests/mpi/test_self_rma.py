"""A rank that works on messages to itself is not put to sleep by its empty reads of weir."""

import re

import launch
import pytest

SOURCE = launch.ROOT / "tests" / "mpi" / "self_rma.c"
MESSAGE_BYTES = 2 << 20


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_an_accumulate_to_itself_does_not_sleep(over_weir, ranks):
    def median_us(*flags):
        program = [launch.compile_c(SOURCE), str(MESSAGE_BYTES)]
        outcome, _ = over_weir(ranks, program, flags=flags, timeout=60)
        return float(re.search(r"median ([0-9.]+) us", outcome.output).group(1))

    sleepless = median_us("--set", "FI_WEIR_SLEEP_US=0")
    # Every sleep takes 1 ms, and the library reads the queue some hundred times.
    assert median_us() < 3 * sleepless + 10_000
