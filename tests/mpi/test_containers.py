"""Ranks in containers of their own that share the node's `/dev/shm`: they have other host names, and equal process ids."""

import subprocess

import launch
import pytest
from test_small_shm import MOUNTED, may_mount

# Process ids, host name, System V memory and mounts of its own. The rank is not the first process there: no signal of its own would
# end that.
CONTAINER = ["unshare", "--pid", "--uts", "--ipc", "--mount", "--fork", "--mount-proc", "bash", "-c",
             'hostname "container$RANDOM"; "$@"; exit $?', "-"]
SOURCES = launch.ROOT / "tests" / "mpi"
possible = subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode == 0
pytestmark = pytest.mark.skipif(not possible, reason="no namespaces of processes and mounts here")


@pytest.mark.parametrize("link", ["shm", "shm,udp"])
@pytest.mark.parametrize("mpi", ["mpich", "intel", "openmpi"])
def test_every_byte_is_right(mpi, link, private_shm):
    stress = [launch.compile_for(mpi, SOURCES / "stress.c"), "--rounds", 20, "--seed", 3]
    outcome = launch.run(launch.weir_run(4, [*CONTAINER, *stress], mpi=mpi, flags=["--set", f"FI_WEIR_LINK={link}"]), timeout=60)
    assert outcome.ok and "all correct" in outcome.output and not outcome.leftovers, outcome
    assert launch.shm_files(private_shm) == [], outcome


def test_survivors_get_an_error(tmp_path, private_shm):
    (tmp_path / "ranks").mkdir()
    traffic = [launch.compile_c(SOURCES / "traffic.c"), tmp_path / "ranks", "exchange", 2, 50]
    flags = ["--launcher-arg", "-disable-auto-cleanup"]
    outcome = launch.run(launch.weir_run(3, [*CONTAINER, *traffic], flags=flags), timeout=30)
    assert outcome.status not in (0, None) and not outcome.leftovers, outcome
    assert launch.run([launch.WEIR, "clean"], timeout=20).ok
    assert launch.shm_files(private_shm) == [], outcome


def run_in_small_shm(link):
    """A job of four containers that share 2 MB of /dev/shm: their mailboxes do not fit, so they are in memory of each container."""
    stress = [launch.compile_c(SOURCES / "stress.c"), "--rounds", 20, "--seed", 3]
    job = launch.weir_run(4, [*CONTAINER, *stress], flags=["--set", f"FI_WEIR_LINK={link}"])
    return launch.run(["unshare", "-m", "sh", "-c", MOUNTED, "sh", "2m", *job], timeout=90)


@pytest.mark.skipif(not may_mount(), reason="this user may not mount a /dev/shm of its own")
def test_a_small_shared_directory_leaves_udp():
    outcome = run_in_small_shm("shm,udp")
    assert outcome.ok and "all correct" in outcome.output and not outcome.leftovers, outcome


@pytest.mark.skipif(not may_mount(), reason="this user may not mount a /dev/shm of its own")
def test_a_small_shared_directory_without_network_is_named():
    outcome = run_in_small_shm("shm")
    assert outcome.status not in (0, None) and not outcome.leftovers, outcome
    said = [line for line in outcome.output.splitlines() if "weir: cannot connect:" in line]
    wanted = ("/dev/shm is too small for the mailboxes of ranks in different containers", "KiB are needed", "docker run --shm-size")
    assert said and all(part in line for part in wanted for line in said), outcome
