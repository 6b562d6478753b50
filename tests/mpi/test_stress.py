"""The stress program, briefly. `make stress` runs longer, with all numbers of ranks."""

import launch
import pytest
import stress


@pytest.mark.parametrize("ranks,name", [(2, "smallest"), (3, "smallest, no piggybacking"), (4, "smallest"), (4, "default"),
                                        (4, "unlimited"), (2, "no cross-memory attach"), (8, "smallest")])
def test_every_byte_is_correct(over_weir, ranks, name):
    program = [launch.compile_c(stress.SOURCE), "--seed", 20 + ranks, "--rounds", 20, "--max-bytes", 2 << 20]
    outcome, report = over_weir(ranks, program, flags=stress.settings(ranks)[name], timeout=240)
    assert "all correct" in outcome.output, outcome
    if name.startswith("smallest"):
        assert report["total"]["counters"]["stalls"] > 0, "one slot for each peer, and no sender waited for credit"
        if "no piggybacking" in name:
            assert report["total"]["counters"]["piggybacked_credits_sent"] == 0


def test_every_byte_is_correct_under_open_mpi(over_weir):
    program = [launch.compile_c(stress.SOURCE, "openmpi"), "--seed", 7, "--rounds", 15, "--max-bytes", 1 << 20]
    outcome, report = over_weir(2, program, mpi="openmpi", timeout=120)
    assert "all correct" in outcome.output, outcome
    assert all(rank["counters"]["messages_sent"] > 0 for rank in report["ranks"])
