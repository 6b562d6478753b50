"""Non-blocking collective operations of groups (libweir-mpi.so), in one host and across pretended ones: requests of the MPI, with the
results that they must have."""

import launch
import netns
import pytest
from test_collectives import ON, performed
from test_collectives_hosts import run

SOURCE = launch.ROOT / "tests" / "mpi" / "nonblocking.c"
MPIS = ["mpich", "intel", "openmpi"]
reason = netns.reason_not_possible()
across_hosts = pytest.mark.skipif(reason is not None, reason=str(reason))


def program(*arguments, mpi="mpich", standard_abi=False):
    return [launch.compile_for(mpi, SOURCE, standard_abi=standard_abi), *map(str, arguments)]


@pytest.mark.parametrize("mpi,ranks", [("mpich", 1), ("mpich", 2), ("mpich", 5), ("mpich", 8), ("intel", 4), ("openmpi", 3)])
def test_random_operations_under_way_together_end_with_their_results(over_weir, mpi, ranks):
    outcome, _ = over_weir(ranks, program("random", 1500, mpi=mpi), mpi=mpi, flags=ON, timeout=120)
    # An eighth is messages; a few operations are long, of other types, or in a communicator of one rank.
    assert performed(outcome) > 900 or ranks == 1, outcome


@pytest.mark.parametrize("mpi", ["mpich", "intel"])
def test_programs_of_the_standard_abi_get_their_results(over_weir, mpi):
    outcome, _ = over_weir(4, program("random", 400, mpi=mpi, standard_abi=True), mpi=mpi, flags=ON, timeout=60)
    assert performed(outcome) > 200, outcome


@pytest.mark.parametrize("mpi,ranks", [("mpich", 2), ("mpich", 5), ("intel", 4), ("openmpi", 3)])
def test_reductions_of_all_types_have_the_results_of_plain_loops(over_weir, mpi, ranks):
    outcome, _ = over_weir(ranks, program("types", 1500, mpi=mpi), mpi=mpi, flags=ON, timeout=120)
    # A twentieth has no elements; some vectors are long. Rank 0 may be alone in one of the two communicators.
    assert performed(outcome) > 600, outcome


@pytest.mark.parametrize("mpi", ["mpich", "intel"])
def test_reductions_of_the_standard_abi_have_the_results_of_plain_loops(over_weir, mpi):
    outcome, _ = over_weir(4, program("types", 500, mpi=mpi, standard_abi=True), mpi=mpi, flags=ON, timeout=60)
    assert performed(outcome) > 350, outcome


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


@pytest.mark.parametrize("mpi", MPIS)
def test_a_rank_that_computes_does_not_stop_others(over_weir, tmp_path, mpi):
    outcome, _ = over_weir(4, program("away", 20, tmp_path, mpi=mpi), mpi=mpi, flags=ON, timeout=120)
    assert performed(outcome) == 20 * 5, outcome


def test_a_killed_member_ends_the_job_with_a_message(tmp_path, private_shm):
    """MPICH aborts in the wait for a request that has failed. So the other survivor may be gone before it has seen the death."""
    # The launcher must not end the survivors when the rank dies, but when one of them aborts.
    outlived = ["sh", "-c", '"$@" 2>"$0/$PMI_RANK"; status=$?; sleep 3; exit $status', str(tmp_path)]
    outcome = launch.run(launch.weir_run(3, [*outlived, *program("die", 30)], flags=ON), timeout=60)
    assert outcome.status not in (0, None), outcome
    assert not outcome.leftovers, outcome
    survivors = [(tmp_path / str(rank)).read_text() for rank in (0, 1)]
    line = "weir: a non-blocking collective operation has failed: rank 2 of the communicator: its process has ended"
    assert any(line in text for text in survivors), (survivors, outcome)
    assert launch.run([launch.WEIR, "clean"], timeout=20).ok
    assert launch.shm_files(private_shm) == [], "mailboxes are left after the run"


@across_hosts
@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("count,ranks", [(2, 4), (2, 7), (3, 3)])
def test_random_operations_under_way_together_across_hosts_end_with_their_results(hosts, mpi, count, ranks):
    outcome = run(hosts(count), mpi, ranks, program("random", 600, mpi=mpi))
    assert outcome.ok and not outcome.leftovers, outcome
    # Some blocks are too long together, and a ninth is messages.
    assert performed(outcome) > 300, outcome


@across_hosts
@pytest.mark.parametrize("mpi", MPIS)
def test_reductions_of_all_types_across_hosts_have_the_results_of_plain_loops(hosts, mpi):
    outcome = run(hosts(2), mpi, 5, program("types", 500, mpi=mpi))
    assert outcome.ok and not outcome.leftovers, outcome
    assert performed(outcome) > 250, outcome


@across_hosts
@pytest.mark.parametrize("mpi", MPIS)
def test_blocking_operations_across_hosts_are_no_part_of_their_order(hosts, mpi):
    outcome = run(hosts(2), mpi, 3, program("beside", 100, mpi=mpi))
    assert outcome.ok, outcome
    assert performed(outcome) == 200, outcome


@across_hosts
@pytest.mark.parametrize("mpi", MPIS)
def test_operations_across_hosts_end_in_communicators_that_are_freed(hosts, mpi):
    """An endpoint has 128 groups, and a communicator two of them."""
    outcome = run(hosts(2), mpi, 4, program("freed", 150, mpi=mpi))
    assert outcome.ok, outcome
    assert performed(outcome) == 150 * 7, outcome


@across_hosts
@pytest.mark.parametrize("mpi", MPIS)
def test_a_rank_beside_the_participant_of_its_host_that_computes_does_not_stop_others(hosts, tmp_path, mpi):
    outcome = run(hosts(2), mpi, 4, program("away", 20, tmp_path, mpi=mpi))
    assert outcome.ok, outcome
    assert performed(outcome) == 20 * 5, outcome


@across_hosts
@pytest.mark.parametrize("count,ranks", [(2, 4), (3, 3)])
def test_a_killed_member_across_hosts_ends_the_job_with_a_message(hosts, tmp_path, count, ranks):
    """It is beside the participant of its host, or is one. MPICH aborts in the wait for a request that has failed."""
    outlived = ["sh", "-c", '"$@" 2>"$0/$PMI_RANK"; status=$?; sleep 3; exit $status', str(tmp_path)]
    words = [*outlived, *program("die", 30)]
    outcome = run(hosts(count), "mpich", ranks, words, timeout=60, FI_WEIR_PEER_TIMEOUT_S="2")
    assert outcome.status not in (0, None) and not outcome.leftovers, outcome
    survivors = [(tmp_path / str(rank)).read_text() for rank in range(ranks - 1)]
    line = "weir: a non-blocking collective operation has failed: rank "
    assert any(line in text for text in survivors), (survivors, outcome)
