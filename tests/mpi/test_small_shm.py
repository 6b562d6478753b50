"""Jobs run with a small /dev/shm. Containers have 64 MiB by default."""

import os
import pathlib
import subprocess

import launch
import pytest

BURST = pathlib.Path(__file__).with_name("burst.c")
# Mounts a /dev/shm of the size $1 that only the command after it sees.
MOUNTED = 'size=$1; shift; mount -t tmpfs -o size="$size" tmpfs /dev/shm && exec "$@"'


def may_mount():
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    return os.geteuid() == 0 and subprocess.run(probe, check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(not may_mount(), reason="this user may not mount a /dev/shm of its own")
@pytest.mark.parametrize("size,ranks", [("8m", 8), ("64m", 32), ("64m", 64)])
def test_an_all_to_all_completes(size, ranks):
    job = launch.weir_run(ranks, [launch.compile_c(BURST), "0"])
    outcome = launch.run(["unshare", "-m", "sh", "-c", MOUNTED, "sh", size, *job], timeout=180)
    assert outcome.ok, outcome
    assert not outcome.leftovers, outcome
    assert outcome.output.count("after pause 1") == ranks, outcome
