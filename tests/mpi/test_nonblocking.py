"""Non-blocking collective operations of node groups (libweir-mpi.so): requests of the MPI, with the results that they must have."""

import re

import launch
import pytest
from test_collectives import ON, OUTLIVED, performed

SOURCE = launch.ROOT / "tests" / "mpi" / "nonblocking.c"
MPIS = ["mpich", "intel", "openmpi"]


def program(*arguments, mpi="mpich"):
    # Intel MPI comes without a compiler. Programs for MPICH have the same binary interface.
    return [launch.compile_c(SOURCE, "mpich" if mpi == "intel" else mpi), *map(str, arguments)]


@pytest.mark.parametrize("mpi,ranks", [("mpich", 1), ("mpich", 2), ("mpich", 5), ("mpich", 8), ("intel", 4), ("openmpi", 3)])
def test_random_operations_under_way_together_end_with_their_results(over_weir, mpi, ranks):
    outcome, _ = over_weir(ranks, program("random", 1500, mpi=mpi), mpi=mpi, flags=ON, timeout=120)
    # An eighth is messages; a few operations are long, of other types, or in a communicator of one rank.
    assert performed(outcome) > 900 or ranks == 1, outcome


@pytest.mark.parametrize("mpi", MPIS)
def test_an_operation_ends_before_an_earlier_one_that_waits(over_weir, mpi):
    outcome, _ = over_weir(4, program("order", 200, mpi=mpi), mpi=mpi, flags=ON, timeout=60)
    assert performed(outcome) == 400, outcome


@pytest.mark.parametrize("mpi", MPIS)
def test_blocking_operations_are_no_part_of_their_order(over_weir, mpi):
    outcome, _ = over_weir(3, program("beside", 300, mpi=mpi), mpi=mpi, flags=ON, timeout=60)
    assert performed(outcome) == 600, outcome


@pytest.mark.parametrize("mpi", MPIS)
def test_operations_end_in_communicators_that_are_freed(over_weir, mpi):
    # A node has 256 groups; those of freed communicators are used again when their operations have ended.
    outcome, _ = over_weir(3, program("freed", 200, mpi=mpi), mpi=mpi, flags=ON, timeout=60)
    assert performed(outcome) == 200 * 7, outcome


def test_a_killed_member_is_an_error_of_the_request(tmp_path, private_shm):
    errors = tmp_path / "errors"
    errors.mkdir()
    words = launch.weir_run(3, [*OUTLIVED, *program("die", 30, errors)], flags=ON)
    outcome = launch.run(words, timeout=60)
    assert outcome.status not in (0, None), outcome
    assert sorted(path.name for path in errors.iterdir()) == ["0", "1"], outcome
    line = "weir: a non-blocking collective operation has failed: rank 2 of the communicator: its process has ended"
    assert re.search(re.escape(line), outcome.output), outcome
    assert launch.run([launch.WEIR, "clean"], timeout=20).ok
    assert launch.shm_files(private_shm) == [], "mailboxes are left after the run"
