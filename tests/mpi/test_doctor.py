"""`weir doctor` reports that weir works in the environments that `make env` creates."""

import os

import launch
import pytest


def doctor(env=None):
    outcome = launch.run([launch.WEIR, "doctor"], timeout=120, env=env)
    assert outcome.ok and "weir works on this host." in outcome.output, outcome
    assert "FAIL" not in outcome.output, outcome
    return outcome


def test_doctor_finds_fresh_environments_working():
    outcome = doctor({"WEIR_ENV_PATH": str(launch.OUT / "env"), "VIRTUAL_ENV": "", "WEIR_MPI": "", "I_MPI_ROOT": ""})
    assert outcome.output.count("ok    runs") >= 3, outcome
    assert " ".join(outcome.output.split()).count("used weir, with collective operations in shared memory") >= 3, outcome


@pytest.mark.parametrize("mpi", ["mpich", "intel", "openmpi"])
def test_doctor_finds_an_active_environment_working(mpi):
    """Intel's environment has an fi_info in PATH that does not find the real one."""
    bins = launch.env_dir(mpi) / "bin"
    doctor({"PATH": f"{bins}:{os.environ['PATH']}", "VIRTUAL_ENV": str(bins.parent), "WEIR_MPI": mpi})
