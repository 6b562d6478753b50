"""A rank that works on messages to itself is not put to sleep by its empty reads of weir."""

import re

import launch
import pytest

SOURCE = launch.ROOT / "tests" / "mpi" / "self_rma.c"
MESSAGE_BYTES = 2 << 20


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_an_accumulate_to_itself_does_not_sleep(over_weir, ranks):
    outcome, _ = over_weir(ranks, [launch.compile_c(SOURCE), str(MESSAGE_BYTES)], timeout=60)
    operations, sleeps = map(int, re.search(r"(\d+) operations, (\d+) sleeps", outcome.output).groups())
    # The library reads the queue some hundred times in an operation. If each of these reads slept, there would be 60 sleeps
    # in an operation. A few occur, because a library that works also comes back quickly now and then.
    assert sleeps < 10 * operations, outcome
