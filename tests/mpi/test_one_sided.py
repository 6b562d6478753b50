"""Atomic operations of MPI on windows: what they add up to, and a target that waits in a barrier."""

import re

import launch
import netns
import pytest

MPIS = ["mpich", "intel", "openmpi"]
KINDS = ["allocated", "created", "dynamic", "units"]
WINDOWS = launch.ROOT / "tests" / "mpi" / "window_atomics.c"
WAITING = launch.ROOT / "tests" / "mpi" / "waiting_target.c"
OPERATIONS = 2000


def agreeing(output):
    return re.findall(r"window_atomics (\w+) agrees", output)


@pytest.mark.parametrize("mpi", MPIS)
def test_atomic_operations_of_all_ranks_add_up(over_weir, mpi):
    outcome, _ = over_weir(3, [launch.compile_for(mpi, WINDOWS), "20"], timeout=120, mpi=mpi)
    assert agreeing(outcome.output) == KINDS, outcome


@pytest.mark.skipif(netns.reason_not_possible() is not None, reason=str(netns.reason_not_possible()))
def test_open_mpi_uses_the_atomics_of_weir_between_hosts(hosts):
    # Inside a host its ranks share the state of windows. Between hosts they change it by remote atomics (btl/ofi). Open MPI
    # 5.0.11 ends the last kind with MPI_ERR_RMA_RANGE, over its own btl/tcp too.
    words, env = hosts(2).mpiexec("openmpi", 2, [launch.compile_for("openmpi", WINDOWS), "5"],
                                  settings={"FI_WEIR_LINK": "shm,udp", "OMPI_MCA_osc_base_verbose": "20"})
    outcome = launch.run(words, timeout=120, env=env)
    assert agreeing(outcome.output)[:3] == KINDS[:3], outcome
    assert outcome.ok or "MPI_ERR_RMA_RANGE" in outcome.output, outcome
    assert "rdma" in outcome.output, outcome


@pytest.mark.parametrize("mpi", ["mpich", "intel"])
def test_a_target_that_waits_in_a_barrier_stays_awake_for_one_sided_operations(over_weir, mpi):
    outcome, _ = over_weir(2, [launch.compile_for(mpi, WAITING), str(OPERATIONS)], timeout=120, mpi=mpi)
    operations, sleeps = map(int, re.search(r"(\d+) operations, (\d+) sleeps", outcome.output).groups())
    assert operations == OPERATIONS, outcome
    # It would sleep in each of them. It sleeps while rank 0 has no core.
    assert sleeps < OPERATIONS / 2, outcome
