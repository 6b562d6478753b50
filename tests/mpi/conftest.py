"""Fixtures of the MPI tests. They need out/bin/weir, out/lib/libweir-fi.so and out/env; `make test-mpi` builds them."""

import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))

import launch  # noqa: E402
import netns  # noqa: E402
import pytest  # noqa: E402


def pytest_sessionstart(session):
    # An empty directory: settings that `weir tune --save` has saved on this host are not read.
    session.empty_config_home = tempfile.TemporaryDirectory(prefix="weir-test-config-")
    os.environ["XDG_CONFIG_HOME"] = session.empty_config_home.name
    launch.require(launch.WEIR, launch.PROVIDER, *map(launch.env_dir, ("mpich", "intel", "openmpi")))


def pytest_sessionfinish(session):
    session.empty_config_home.cleanup()


@pytest.fixture
def private_shm(tmp_path, monkeypatch):
    """A directory in shared memory for the mailboxes of one test."""
    with tempfile.TemporaryDirectory(prefix="weir-test-", dir="/dev/shm") as directory:
        monkeypatch.setenv("FI_WEIR_SHM_DIR", directory)
        yield pathlib.Path(directory)


@pytest.fixture
def hosts():
    """Makes pretended hosts; they are gone after the test."""
    made = []

    def make(count):
        made.append(netns.Hosts(count).__enter__())
        return made[-1]

    yield make
    for hosts in made:
        hosts.down()


@pytest.fixture
def over_weir(tmp_path, private_shm):
    """Runs a program over weir. Returns its outcome and report. Checks that no process and no mailbox is left."""

    def run(ranks, program, *, timeout, mpi="mpich", flags=()):
        report = tmp_path / "report.json"
        report.unlink(missing_ok=True)
        words = launch.weir_run(ranks, program, mpi=mpi, flags=flags, report=report)
        outcome = launch.run(words, timeout=timeout)
        assert outcome.ok, outcome
        assert not outcome.leftovers, f"processes are left: {outcome.leftovers}\n{outcome}"
        assert launch.shm_files(private_shm) == [], "mailboxes are left after the run"
        return outcome, launch.read_report(report)

    return run
